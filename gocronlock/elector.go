package gocronlock

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/redlatch/redlatch/primitives"
)

// Elector is a gocron.Elector: the scheduler whose Elector has the lock is the leader. It is safe for
// concurrent use.
type Elector struct {
	lock *primitives.Lock
	opts []primitives.Option

	// turn is full while a call uses the fields below. A call waits for its turn up to its context.
	turn   chan struct{}
	hold   *primitives.Hold // nil: not the leader, as far as is known
	failed error            // of the latest attempt; nil if its own context had ended, which says nothing to others
	closed bool

	attempts atomic.Int64 // that have begun; added to in turn
}

var _ gocron.Elector = (*Elector)(nil)

// NewElector returns an Elector for the schedulers that use the same name. They take part in the election of that name:
// its lock is that of [primitives.Client.Election], whose Leader and Watch say which scheduler leads. NewElector sends
// nothing: the first
// IsLeader tries to become the leader. opts are options of the lock. [primitives.WithWatchdog] says how
// long the others wait for a leader that has died; the default is 30 s. [primitives.WithWait],
// [primitives.WithLinger] and [primitives.WithMinHold] have no effect: Close frees the lock at once.
func NewElector(c *primitives.Client, name string, opts ...primitives.Option) *Elector {
	opts = append(withoutLinger(opts), primitives.WithMinHold(0))
	return &Elector{lock: c.FencedLock(name), opts: slices.Clip(opts), turn: make(chan struct{}, 1)}
}

// IsLeader returns nil if this scheduler is the leader, or has become it now. The leader is told without
// asking Redis: its lock is valid, and it is renewed in the background.
//
// An error makes gocron skip the run. It matches [primitives.ErrNotAcquired] if another scheduler is the
// leader, [primitives.ErrUnavailable] if Redis does not answer, and [primitives.ErrClosed] after Close.
//
// A call that waits for an earlier one takes over the error of an attempt that began meanwhile, so in an
// outage the runs of many jobs are skipped together.
func (e *Elector) IsLeader(ctx context.Context) error {
	before := e.attempts.Load()
	select {
	case e.turn <- struct{}{}:
		defer func() { <-e.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if e.closed {
		return primitives.ErrClosed
	}
	if e.hold != nil {
		// After a pause of the process, the context may not have ended yet.
		if e.hold.Context().Err() == nil && e.hold.ValidUntil().After(time.Now()) {
			return nil
		}
		_ = e.hold.Release(ctx) // it is lost; this removes what a late renewal may have left
		e.hold = nil
	}
	if e.failed != nil && e.attempts.Load() > before {
		return e.failed // of an attempt that began after this call, and so tells as much as another one
	}
	e.attempts.Add(1)
	e.failed = nil
	// The leadership outlasts ctx, which bounds the attempt.
	term := primitives.WithHoldContext(context.WithoutCancel(ctx))
	hold, err := e.lock.TryAcquire(ctx, append(e.opts, term)...)
	if err != nil {
		if ctx.Err() == nil {
			e.failed = err
		}
		return err
	}
	e.hold = hold
	return nil
}

// Close gives the leadership back at once, so that another scheduler need not wait for the lock's TTL.
// Later calls of IsLeader return [primitives.ErrClosed]. Stop the scheduler first: its jobs may still
// run. Close returns nil if this scheduler was not the leader, and the error of the release otherwise.
// It works even if ctx is done. If Redis does not answer, Close returns within two command timeouts
// (10 s by default), because it waits for calls of IsLeader that are under way.
func (e *Elector) Close(ctx context.Context) error {
	e.turn <- struct{}{} // the calls before this one share their attempts, so they end soon
	defer func() { <-e.turn }()
	e.closed = true
	if e.hold == nil {
		return nil
	}
	err := e.hold.Release(ctx)
	e.hold = nil
	if errors.Is(err, primitives.ErrLost) {
		return nil // there is nothing left to give back
	}
	return err
}
