package gocronlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/redlatch/redlatch/primitives"
)

// Elector is a gocron.Elector: the scheduler whose Elector leads runs all jobs. It is safe for
// concurrent use.
//
// It stands in the election of its name ([primitives.Client.Election]) from the first call of
// IsLeader until Close, in a goroutine of its own. After a loss it leaves the leadership to another
// scheduler, if there is one. [primitives.Election.Leader] and [primitives.Election.Watch] say
// which scheduler leads.
type Elector struct {
	client   *primitives.Client
	election *primitives.Election

	mu      sync.Mutex
	hold    *primitives.Hold // of the present term; nil: does not lead
	changed chan struct{}    // closed and replaced when hold or failed changes
	failed  error            // with which the latest candidacy has ended
	stop    func()           // ends the candidacy; nil: there is none
	ended   chan struct{}    // closed when the latest candidacy has ended; nil: there was none
	closed  bool
	left    error // of the release by Close
}

var _ gocron.Elector = (*Elector)(nil)

// NewElector returns an Elector for the schedulers that use the same name. NewElector sends
// nothing: the first IsLeader begins to stand for election. opts are options of the election.
// [primitives.WithWatchdog] says how long the others wait for a leader that has died; the default
// is 30 s. [primitives.WithWait], [primitives.WithLinger] and [primitives.WithMinHold] have no
// effect: Close gives the leadership back at once.
//
// An Elector that was never closed stands until the client is closed.
func NewElector(c *primitives.Client, name string, opts ...primitives.Option) *Elector {
	return &Elector{client: c, election: c.Election(name, opts...), changed: make(chan struct{})}
}

// longestElection is how long IsLeader waits for the end of an election. It is longer than
// afterLoss, and than the second after which a candidate tries again at the latest.
const longestElection = 2 * time.Second

// IsLeader returns nil if this scheduler leads. The leader is told without asking Redis: its lock
// is valid, and it is renewed in the background. Others ask Redis who leads. While nobody leads,
// IsLeader waits for up to 2 s until somebody is elected.
//
// An error makes gocron skip the run. It matches [primitives.ErrNotAcquired] if this scheduler does
// not lead, [primitives.ErrUnavailable] if Redis does not answer, and [primitives.ErrClosed] after
// Close. A permanent error, such as a missing permission, ends the candidacy. The next call stands
// again.
func (e *Elector) IsLeader(ctx context.Context) error {
	tooLong := time.NewTimer(longestElection)
	defer tooLong.Stop()
	for isFirst := true; ; isFirst = false {
		leads, changed, err := e.stand(isFirst)
		switch {
		case leads || err != nil:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		leader, err := e.election.Leader(ctx)
		switch {
		case err != nil:
			return err
		// A leader of this client is this Elector, which is about to learn of it, or another one.
		case leader.ID != "" && !strings.HasPrefix(leader.ID, e.client.ID()+":"):
			return fmt.Errorf("gocronlock: %w: %q is led by %s", primitives.ErrNotAcquired, e.election.Name(),
				cmp.Or(leader.Client, leader.ID))
		}
		select {
		case <-changed:
		case <-time.After(lookAgain):
		case <-ctx.Done():
		case <-tooLong.C:
			return fmt.Errorf("gocronlock: %w: this scheduler was not elected for %q within %v",
				primitives.ErrNotAcquired, e.election.Name(), longestElection)
		}
	}
}

// lookAgain is how often IsLeader asks who leads while nobody does.
const lookAgain = 100 * time.Millisecond

// stand reports whether this scheduler leads. Otherwise it begins to stand for election, unless it
// does. changed is closed when there is news. The end of a candidacy is an error for the calls that
// wait, and not for later ones.
func (e *Elector) stand(isFirst bool) (leads bool, changed <-chan struct{}, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false, nil, primitives.ErrClosed
	}
	if e.hold != nil {
		// After a pause of the process, the context may not have ended yet.
		leads = e.hold.Context().Err() == nil && e.hold.ValidUntil().After(time.Now())
		return leads, e.changed, nil
	}
	if e.failed != nil && !isFirst {
		return false, nil, e.failed
	}
	if e.stop == nil {
		e.failed = nil
		// The leadership outlasts the call, so the candidacy does not have its context.
		ctx, stop := context.WithCancel(context.Background())
		e.stop, e.ended = stop, make(chan struct{})
		go e.run(ctx, e.ended)
	}
	return false, e.changed, nil
}

// run is the goroutine of a candidacy. A term lasts until the leadership is lost, or until Close.
func (e *Elector) run(ctx context.Context, ended chan<- struct{}) {
	defer close(ended)
	err := e.election.Run(ctx, func(leading context.Context, term primitives.Term) error {
		e.set(term.Hold)
		<-leading.Done()
		e.set(nil)
		e.release(leading, term.Hold)
		if errors.Is(context.Cause(leading), primitives.ErrLost) {
			standBack(ctx)
		}
		return nil
	})
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stop()
	e.stop = nil
	if !e.closed {
		e.failed = err
	}
	e.announce()
}

// afterLoss is how long a scheduler that has lost the leadership stands back, so that another one
// leads: its own host may be overloaded. It is longer than the time in which a candidate that has
// heard nothing looks again, a second.
const afterLoss = 1500 * time.Millisecond

// standBack waits for afterLoss, or until ctx ends.
func standBack(ctx context.Context) {
	select {
	case <-time.After(afterLoss):
	case <-ctx.Done():
	}
}

// release releases the hold of a term. Run would do it, too, but Close returns the error.
func (e *Elector) release(ctx context.Context, hold *primitives.Hold) {
	err := hold.Release(ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	isLost := errors.Is(err, primitives.ErrLost) // there is nothing left to give back
	if e.closed && !isLost {
		e.left = err
	}
}

func (e *Elector) set(hold *primitives.Hold) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hold = hold
	e.announce()
}

// announce wakes the calls of IsLeader that wait. Call it with mu.
func (e *Elector) announce() {
	close(e.changed)
	e.changed = make(chan struct{})
}

// Close gives the leadership back at once, so that another scheduler leads a round trip later.
// Later calls of IsLeader return [primitives.ErrClosed]. Stop the scheduler first: its jobs may
// still run. Close returns nil if this scheduler was not the leader, and the error of the release
// otherwise. It works even if ctx is done. If Redis does not answer, Close returns within 5 s.
func (e *Elector) Close(context.Context) error {
	e.mu.Lock()
	e.closed = true
	ended := e.ended
	if e.stop != nil {
		e.stop()
	}
	e.mu.Unlock()
	if ended == nil {
		return nil
	}
	<-ended
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.left
}
