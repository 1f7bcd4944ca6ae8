package primitives

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/redlatch/redlatch/pubsub"
)

// A takeover is what ForceRelease, ReleaseID or Adopt does to a holder. The client that did it
// publishes a notice on the channel of the holder's client: "<kind>\n<raw name>\n<id>". The holder's
// client then asks Redis whether it still has the hold. A notice proves nothing: a forged one costs
// a check, and a lost one leaves the loss to the next renewal.

// joined is a protocol of several locks.
type joined interface {
	each() []*handle
}

func (j *joint) each() []*handle { return j.members }

// forced reads what the scripts of ForceRelease return: the ids that held, or whether any did.
func (q *request) forced(answer any) (held bool) {
	fields, ok := answer.([]any)
	for _, field := range fields {
		if id, _ := field.(string); id != "mode" {
			q.ousted = append(q.ousted, strings.TrimSuffix(id, ":write"))
		}
	}
	return ok || answer == int64(1)
}

// takenFrom tells the clients of these ids that they may have lost h, by an operation that ended
// with err. It is best effort: the caller waits for it no longer than noticeLimit, and not at all
// if Redis did not answer the operation. A joint lock tells the holders of its members.
func (h *handle) takenFrom(ctx context.Context, err error, ids ...string) {
	if len(ids) == 0 {
		return
	}
	if j, ok := h.proto.(joined); ok {
		members := j.each() // some of which may have been taken, whatever err is
		tell := func(ctx context.Context) {
			h.c.canvass(ctx, len(members), noticeLimit, func(i int) error {
				m := members[i]
				if err := m.c.enter(); err != nil {
					return err
				}
				defer m.c.calls.Done()
				m.takenFrom(ctx, nil, ids...)
				return nil
			})
		}
		if errors.Is(err, ErrOutcomeUnknown) { // the call has used up its time
			h.c.spawn(func() { tell(context.WithoutCancel(ctx)) })
			return
		}
		tell(ctx)
		return
	}
	if err != nil && !standing(err) {
		return
	}
	notices := h.notices(ids)
	done := make(chan struct{})
	h.c.spawn(func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noticeTimeout)
		defer cancel()
		for batch := range slices.Chunk(notices, pipelined) {
			if _, err := h.c.run.Commands(ctx, batch...); err != nil {
				return
			}
		}
	})
	if err != nil {
		return
	}
	timer := time.NewTimer(noticeLimit)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// notices are the commands that tell the clients of these ids. Permits of one client share a notice.
func (h *handle) notices(ids []string) (commands [][]any) {
	texts := map[string]int{} // by tag
	for _, id := range ids {
		tag := tagOf(id)
		if at, ok := texts[tag]; ok && h.kind == permitsKind {
			commands[at][2] = commands[at][2].(string) + "," + id
			continue
		}
		texts[tag] = len(commands)
		text := h.kind + "\n" + h.raw + "\n" + id
		commands = append(commands, []any{h.c.publish(), tagged(holderChannel, tag), text})
	}
	return commands
}

// noticeTimeout bounds the sending of notices in the background.
const noticeTimeout = time.Second

const permitsKind = "permits"

// hear is the listener of a tag's channel. It must not block.
func (p *presence) hear(tag string, sig pubsub.Signal) {
	if sig.Resubscribed {
		// A notice may have been missed. The next renewal is behind it; a fixed lease has none.
		p.c.spawn(func() {
			p.suspect(func(g *grip) bool { return !g.renew && g.tag() == tag })
		})
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.notices) >= maxNotices {
		return
	}
	p.notices = append(p.notices, sig.Payload)
	if len(p.notices) == 1 {
		p.c.spawn(p.heed)
	}
}

// maxNotices bounds how many notices wait to be read. Who publishes more is not to be believed.
const maxNotices = 10_000

// heed reads the notices that have come.
func (p *presence) heed() {
	p.mu.Lock()
	notices := p.notices
	p.notices = nil
	p.mu.Unlock()
	named := map[string]bool{} // "<raw name>\n<id>"
	for _, notice := range notices {
		kind, rest, _ := strings.Cut(notice, "\n")
		if at := strings.LastIndexByte(rest, '\n'); kind == permitsKind && at >= 0 {
			name, ids := rest[:at+1], rest[at+1:]
			for id := range strings.SplitSeq(ids, ",") {
				named[name+id] = true
			}
			continue
		}
		named[rest] = true
	}
	var key []byte
	p.suspect(func(g *grip) bool {
		key = append(append(key[:0], g.h.raw...), '\n')
		start := len(key)
		if g.h.kind != permitsKind {
			return named[string(append(key, g.t.publicID()...))]
		}
		for id := range strings.SplitSeq(g.t.publicID(), ",") {
			if key = append(key[:start], id...); named[string(key)] {
				return true
			}
		}
		return false
	})
}

// suspect has the holds checked to which that applies.
func (p *presence) suspect(applies func(*grip) bool) {
	for _, t := range p.c.holds.leased(applies) {
		p.mu.Lock()
		if p.suspects == nil {
			p.suspects = map[*tenure]bool{}
		}
		_, checking := p.suspects[t]
		p.suspects[t] = checking // the check under way may come too early to see the takeover
		p.mu.Unlock()
		if !checking {
			p.c.spawn(func() { p.verify(t) })
		}
	}
}

// leased returns the tenures of the holds that can be lost and to which that applies.
func (l *holdList) leased(applies func(*grip) bool) (tenures []*tenure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for g := l.head; g != nil; g = g.next {
		if t, ok := g.t.(*tenure); ok && t.leases() && applies(g) {
			tenures = append(tenures, t)
		}
	}
	return tenures
}

// verifyPauses are the pauses between two checks of one hold.
var verifyPauses = [...]time.Duration{
	10 * time.Millisecond, 50 * time.Millisecond, 200 * time.Millisecond, 600 * time.Millisecond,
}

// verify asks Redis whether t still stands, as Check does, which tells its holds of a loss. At most
// one check of t is under way, however many notices come. Without an answer verify asks again for
// about a second: the next renewal is behind it.
func (p *presence) verify(t *tenure) {
	tries := 0
	for {
		lost, err := t.lasts().check(context.Background(), t)
		if err == nil && lost {
			t.loseInBackground()
			err = ErrLost
		}
		p.mu.Lock()
		again := p.suspects[t]
		switch {
		case errors.Is(err, ErrLost):
			again = false
		case err != nil && unanswered(err):
			tries++
			again = again || tries < len(verifyPauses)
		default:
			tries = 0
		}
		if !again {
			delete(p.suspects, t)
			p.mu.Unlock()
			return
		}
		p.suspects[t] = false
		p.mu.Unlock()
		timer := time.NewTimer(verifyPauses[min(tries, len(verifyPauses)-1)])
		select {
		case <-timer.C:
		case <-p.c.stopping:
			timer.Stop()
			return
		}
	}
}
