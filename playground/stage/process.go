package stage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/redlatch/redlatch/internal/test/memredis"
	"github.com/redlatch/redlatch/internal/torture/simnet"
	"github.com/redlatch/redlatch/internal/torture/simstop"
	"github.com/redlatch/redlatch/primitives"
)

// client is a row of the page. It has one process at a time.
type client struct {
	number  int
	process *process
	row     row // waits and holds
	marks   row // renewals
	faults  row
}

// The states of a process.
const (
	idle      = "idle"
	waiting   = "waiting"
	holding   = "holding"
	releasing = "releasing"
	killed    = "killed"
)

// process is one client process.
type process struct {
	s        *Stage
	owner    *client
	group    int    // of its goroutines
	id       string // of its client
	network  *simnet.Client
	rdb      *redis.Client
	redlatch *primitives.Client
	lock     *primitives.Lock

	// Guarded by Stage.mu.
	state      string
	cut        bool
	stopped    bool
	stoodStill bool               // since Redis has confirmed the hold
	end        context.CancelFunc // ends the wait or the hold
	hold       *primitives.Hold   // nil if it has none
	validUntil float64
	silent     bool   // the latest renewal failed
	lostBy     string // why the latest hold was lost; "" if it was not
}

// section is what a process does while it holds the lock.
type section struct {
	process *process
	ended   float64 // 0: it lasts
	how     string  // the class of the span of a hold that has ended
}

// start starts a process of a client.
func (s *Stage) start(c *client) (err error) {
	p := &process{s: s, owner: c, state: idle, network: s.net.Client(c.number)}
	s.locked(func() {
		s.processes = append(s.processes, p)
		p.group = len(s.processes)
	})
	// What is started from here on stops with the process.
	defer simstop.Join(simstop.Join(p.group))
	p.id = fmt.Sprintf("00000000-0000-4000-8000-%012d", p.group)
	p.rdb = redis.NewClient(&redis.Options{
		Addr: address, Dialer: p.network.Dial, MaxRetries: -1,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	p.redlatch, err = primitives.New(p.rdb, primitives.WithClientID(p.id), primitives.WithObserver(p.observe),
		primitives.WithClientName(fmt.Sprintf("client %d", c.number)),
		primitives.WithDefaults(primitives.WithWatchdog(time.Duration(s.settings.TTL)*time.Millisecond)))
	if err != nil {
		_ = p.rdb.Close()
		return err
	}
	p.lock = p.redlatch.Lock(s.settings.Name)
	if s.settings.Fair {
		p.lock = p.redlatch.FairLock(s.settings.Name)
	}
	s.locked(func() { c.process = p })
	return nil
}

// acquire begins an acquisition. s.mu is held.
func (p *process) acquire() {
	ctx, cancel := context.WithCancel(context.Background())
	p.state, p.end, p.lostBy = waiting, cancel, ""
	defer simstop.Join(simstop.Join(p.group))
	go p.work(ctx)
}

// work is what a program does: it acquires the lock, works until it is told to stop, or until the lock is lost, and
// releases the lock.
func (p *process) work(ctx context.Context) {
	hold, err := p.lock.Acquire(ctx, primitives.WithHoldContext(context.Background()))
	if err != nil {
		p.refused(err)
		return
	}
	p.acquired(hold)
	select {
	case <-hold.Context().Done():
	case <-ctx.Done():
	}
	if hold.Context().Err() != nil {
		p.lost(context.Cause(hold.Context()))
		return
	}
	p.letGo()
	err = hold.Release(context.Background())
	p.released(err)
}

// refused notes an acquisition that has failed.
func (p *process) refused(err error) {
	p.s.locked(func() {
		p.state = idle
		p.owner.row.endAll(p.s.now(), spanRefused)
		p.s.tell(p.owner, "did not acquire the lock: "+withoutName(err), plain)
	})
}

// acquired notes a hold.
func (p *process) acquired(hold *primitives.Hold) {
	validUntil := hold.ValidUntil()
	p.s.locked(func() {
		s := p.s
		p.state, p.hold, p.silent, p.stoodStill = holding, hold, false, false
		p.noteValidity(validUntil)
		p.owner.row.endAll(s.now(), "")
		p.owner.row.begin(Span{What: spanHold, From: s.now(), Text: "holds the lock"})
		s.tell(p.owner, "acquired the lock", good)
		s.compareWithFormer(p)
		s.latest = &section{process: p}
	})
}

// noteValidity notes until when the hold is valid. Stage.mu is held.
func (p *process) noteValidity(until time.Time) {
	p.validUntil = float64(until.Sub(p.s.began).Microseconds()) / 1000
}

// endSection notes that the process does not work under the lock any longer. Stage.mu is held.
func (p *process) endSection(how string) {
	now := p.s.now()
	p.hold = nil
	p.owner.row.endAll(now, how)
	if p.s.latest != nil && p.s.latest.process == p {
		p.s.latest.ended, p.s.latest.how = now, how
	}
}

// lost notes that the lock is lost: the context of the hold has ended.
func (p *process) lost(cause error) {
	p.s.locked(func() {
		s := p.s
		p.state, p.lostBy = idle, withoutName(cause)
		s.tell(p.owner, p.lostBy, fault)
		other := s.latest
		isOvertaken := other != nil && other.process != p
		p.endSection(spanLost)
		if isOvertaken {
			s.note(fmt.Sprintf("Client %d stood still, so nobody could tell it. It learned of the loss as soon as it went on. "+
				"Client %d had the lock by then. No lock can stop a process: if a late write would do harm, use a fenced lock.",
				p.owner.number, other.process.owner.number), fault)
		}
	})
}

// letGo notes that the process begins to release.
func (p *process) letGo() {
	p.s.locked(func() {
		p.state = releasing
		p.endSection(spanHold)
	})
}

// released notes the end of a release.
func (p *process) released(err error) {
	p.s.locked(func() {
		p.state = idle
		if err != nil {
			p.s.tell(p.owner, "the release: "+withoutName(err), fault)
			return
		}
		p.s.tell(p.owner, "released the lock", plain)
	})
}

// observe is told what happens in the background.
func (p *process) observe(e primitives.Event) {
	switch e.Kind {
	case primitives.EventWait:
		p.s.locked(func() {
			p.owner.row.begin(Span{What: spanWait, From: p.s.now(), Text: "waits for the lock"})
			p.s.tell(p.owner, "waits: somebody else has the lock", plain)
		})
	case primitives.EventRenewed:
		p.renewed()
	case primitives.EventRenewFailed:
		p.s.locked(func() {
			if !p.silent {
				p.s.tell(p.owner, "a renewal of the lease got no answer, and is repeated", plain)
			}
			p.silent = true
		})
	default: // the calls of work tell
	}
}

// renewed notes a renewal of the lease.
func (p *process) renewed() {
	var hold *primitives.Hold
	p.s.locked(func() { hold = p.hold })
	if hold == nil {
		return
	}
	until := hold.ValidUntil() // not with the mutex: the process may be stopped in it
	p.s.locked(func() {
		p.noteValidity(until)
		p.silent, p.stoodStill = false, false
		now := p.s.now()
		p.owner.marks.begin(Span{What: spanRenewed, From: now, Text: "the lease was renewed"})
		p.owner.marks.endAll(now, "")
	})
}

// setCut cuts the wire, or mends it. Stage.mu is held.
func (p *process) setCut(on bool) {
	if p.cut == on {
		return
	}
	p.cut = on
	route := p.network.Route(p.s.server)
	route.Hold(simnet.ToServer, on)
	route.Hold(simnet.ToClient, on)
	p.network.HangDials(on)
	p.noteFaults()
}

// setStopped stops the process, or lets it go on. Stage.mu is held.
func (p *process) setStopped(on bool) {
	p.stopped = on
	p.stoodStill = p.stoodStill || on
	p.noteFaults()
	simstop.Stop(p.group, on)
}

// kill ends the process. Stage.mu is held.
func (p *process) kill() {
	if p.hold != nil {
		p.endSection(spanKilled)
	}
	p.state, p.stopped, p.hold = killed, false, nil
	p.owner.row.endAll(p.s.now(), spanKilled)
	p.noteFaults()
	simstop.Stop(p.group, true)
	p.network.Kill()
}

// noteFaults draws the faults that the client has now. Stage.mu is held.
func (p *process) noteFaults() {
	row, now := &p.owner.faults, p.s.now()
	row.endAll(now, "")
	if p.cut {
		row.begin(Span{What: spanCut, From: now, Text: "the wire is cut"})
	}
	if p.stopped {
		row.begin(Span{What: spanStopped, From: now, Text: "the process stands still"})
	}
}

// compareWithFormer tells how long before an acquisition the former holder knew that it had no lock. s.mu is held.
func (s *Stage) compareWithFormer(p *process) {
	former := s.latest
	if former == nil || former.process.owner == p.owner {
		return
	}
	a, b := former.process.owner.number, p.owner.number
	between := fmt.Sprintf("%.0f ms", s.now()-former.ended)
	switch {
	case former.how == spanLost:
		s.note(fmt.Sprintf("Client %d was told that it lost the lock %s before client %d acquired it.", a, between, b), good)
	case former.how == spanKilled:
		s.note(fmt.Sprintf("Client %d acquired the lock %s after client %d was killed: its lease had to end first.",
			b, between, a), good)
	case former.ended > 0:
		s.note(fmt.Sprintf("Client %d acquired the lock %s after client %d began to release it.", b, between, a), good)
	case former.process.stoodStill:
		s.note(fmt.Sprintf("Client %d stands still, so nobody can tell it. Its lease has ended, and client %d has the lock.",
			a, b), fault)
	default:
		s.note(fmt.Sprintf("Clients %d and %d hold the lock at once. This is a defect.", a, b), broken)
	}
}

// holderInRedis returns the process whose hold Redis has, and nil if there is none.
func (s *Stage) holderInRedis() (holder *process) {
	var reply []byte
	s.server.Use(func(*memredis.Server) { reply = s.reader.Do([]string{"hgetall", s.settings.Name}) })
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.processes {
		if bytes.Contains(reply, []byte(p.id)) {
			return p
		}
	}
	return nil
}

// withoutName is the text of an error of the library, without the name of the lock.
func withoutName(err error) string {
	text := err.Error()
	if loss, isLoss := errors.AsType[*primitives.LossError](err); isLoss {
		text = loss.Error()
		text = strings.TrimPrefix(text, fmt.Sprintf("redlatch: %s %q ", loss.Kind, loss.Name))
	}
	return text
}
