package presence

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/failure"
	"github.com/redlatch/redlatch/pubsub"
)

// A takeover is what ForceRelease, ReleaseID or Adopt does to a holder. The client that made the
// call publishes a notice on the channel of the holder's client: "<kind>\n<raw name>\n<id>". The
// holder's client then asks Redis whether it still has the hold (verify). A notice proves nothing,
// so a forged one only costs a check. If a notice is lost, the next renewal finds the loss.
//
// The first half of this file sends notices, and the second half reads them. presence.go
// subscribes.

// Announce notifies the clients of these ids that they may have lost a lock, or permits, of that
// kind and name on the wire. It is best effort, and does not block. A goroutine of the core sends
// the notices, for noticeTimeout at most, and then sends to the channel, which must have room.
// Callers wait for that no longer than NoticeLimit.
func (p *Presence) Announce(ctx context.Context, kind, name string, ids []string, sent chan<- struct{}) {
	notices := p.notices(kind, name, ids)
	p.core.Spawn(func() {
		defer func() { sent <- struct{}{} }()
		// The takeover has happened, so the holder should hear of it even if the caller's time is
		// over.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noticeTimeout)
		defer cancel()
		for batch := range slices.Chunk(notices, pipelined) {
			if _, err := p.Runner.Commands(ctx, batch...); err != nil {
				return // the others would probably fail, too; the holders find the loss with their next renewal
			}
		}
	})
}

// notices returns the commands that publish to the clients of these ids. Permits of one client
// share notices, because one operation may take thousands of them.
func (p *Presence) notices(kind, name string, ids []string) (commands [][]any) {
	texts := map[string]int{} // by tag
	for _, id := range ids {
		tag := TagOf(id)
		if at, ok := texts[tag]; ok && p.ManyIDs(kind) {
			if text := commands[at][2].(string); len(text) < maxNotice {
				commands[at][2] = text + "," + id
				continue
			}
		}
		texts[tag] = len(commands)
		text := kind + "\n" + name + "\n" + id
		commands = append(commands, []any{p.Runner.Publish(), tagged(holderChannel, tag), text})
	}
	return commands
}

// noticeTimeout bounds the sending of notices in the background.
const noticeTimeout = time.Second

// Receive is the listener of a tag's channel. A goroutine of the hub calls it, so it must not
// block: it only queues the notice. The first notice in the queue starts a goroutine that reads all
// of them.
func (p *Presence) Receive(sig pubsub.Signal) {
	if sig.Resubscribed { // a notice or a request may have been missed, and Redis may have forgotten all holds
		p.core.GiveUpAllLingering()
		p.RecheckAll()
		return
	}
	if ask, ok := strings.CutPrefix(sig.Payload, askPrefix); ok {
		p.queueAsk(ask)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// The latest notices are dropped, not the earliest: a flood cannot push out a notice that came
	// before it.
	if len(p.unread) >= maxNotices || p.unreadBytes+len(sig.Payload) > maxNoticeBytes {
		return
	}
	p.unread = append(p.unread, sig.Payload)
	p.unreadBytes += len(sig.Payload)
	if len(p.unread) == 1 {
		p.core.Spawn(p.readNotices)
	}
}

// Bounds of the notices of one client. Further ones are dropped: the next renewal finds the loss.
const (
	maxNotice      = 16 << 10 // the length, in bytes, from which no further ids are added to a notice
	maxNotices     = 10_000   // the number of notices that wait to be read, in case somebody floods the channel
	maxNoticeBytes = 1 << 20  // the total length of the notices that wait to be read
)

// readNotices checks the holds that the queued notices name. It walks the client's holds once,
// however many notices there are. A notice with an unknown name or id matches no hold. The kind
// says only how to read the ids: the client that took the lock over may use it as another kind.
func (p *Presence) readNotices() {
	p.mu.Lock()
	notices := p.unread
	p.unread = nil
	p.unreadBytes = 0
	p.mu.Unlock()
	// The name and the id are not joined, because a notice could have many ids for a long name.
	type holder struct {
		hold string // "<raw name>\n<id>", of a lock; "<raw name>\n" of permits
		id   string // of a permit
	}
	named := map[holder]bool{}
	for _, notice := range notices {
		kind, rest, _ := strings.Cut(notice, "\n")
		if p.ManyIDs(kind) {
			at := strings.LastIndexByte(rest, '\n') + 1 // 0 if there is no name; then no hold matches
			name := rest[:at]
			ids := rest[at:]
			for id := range strings.SplitSeq(ids, ",") {
				named[holder{name, id}] = true
			}
			continue
		}
		named[holder{rest, ""}] = true
	}
	var key []byte
	p.checkHolds(func(h *engine.Hold) bool {
		r := h.Resource()
		key = append(append(append(key[:0], p.Prefix...), r.Name...), '\n')
		if !p.ManyIDs(r.Kind) {
			return named[holder{string(append(key, h.ID()...)), ""}]
		}
		name := string(key)
		for id := range strings.SplitSeq(h.ID(), ",") {
			if named[holder{name, id}] {
				return true
			}
		}
		return false
	})
}

// checkHolds starts a check (verify) of each ownership with a hold for which match is true. An
// ownership that is being checked already will be checked once more.
func (p *Presence) checkHolds(match func(*engine.Hold) bool) {
	for _, o := range p.core.LeasedOwnerships(match) {
		p.mu.Lock()
		if p.suspects == nil {
			p.suspects = map[*engine.Ownership]bool{}
		}
		_, checking := p.suspects[o]
		p.suspects[o] = checking // the check under way may come too early to see the takeover
		p.mu.Unlock()
		if !checking {
			p.core.Spawn(func() { p.verify(o) })
		}
	}
}

// verifyPauses are the pauses between two checks of one hold.
var verifyPauses = [...]time.Duration{
	10 * time.Millisecond, 50 * time.Millisecond, 200 * time.Millisecond, 600 * time.Millisecond,
}

// verify asks Redis whether o still holds the lock, and ends its holds if it does not. At most one
// check of o is in flight, however many notices come. If Redis does not answer, verify repeats the
// question for about a second. After that, the next renewal finds a loss. verify runs in a
// goroutine of the core, which ends with the last answer or when the core stops.
func (p *Presence) verify(o *engine.Ownership) {
	tries := 0
	for {
		err := o.Verify(context.Background())
		// The mutex is held until the deletion below, so that a notice that comes later finds no
		// check, and starts one.
		p.mu.Lock()
		again := p.suspects[o]
		switch {
		case errors.Is(err, engine.ErrLost):
			again = false
		case err != nil && failure.Of(err).Retry():
			tries++
			again = again || tries < len(verifyPauses)
		default:
			tries = 0
		}
		if !again {
			delete(p.suspects, o)
			p.mu.Unlock()
			return
		}
		p.suspects[o] = false
		p.mu.Unlock()
		engine.Pause(context.Background(), verifyPauses[min(tries, len(verifyPauses)-1)], p.core.Stopping())
		if p.core.IsStopping() {
			return
		}
	}
}
