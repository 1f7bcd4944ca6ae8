package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// How a multi lock is acquired.
//
// It acquires its members one after another. Among multi locks the order of the members prevents a
// deadlock. But another program, such as one with Redisson, may acquire them in another order:
//
//	multi lock                      other program
//	acquires A
//	                                acquires B
//	waits for B                     waits for A
//
// So a multi lock with some members waits for the next one for its patience only. Then it releases them,
// waits with nothing held until the missing member can be acquired, and begins anew with more patience.

// The patience of a multi lock. It doubles with each round, because a member may simply be held for long.
const (
	firstPatience   = 100 * time.Millisecond
	longestPatience = 2 * time.Second
)

// multi is the driver of a lock that needs all its members. It acquires them one after another.
type multi struct{ *Joint }

// NewMulti sets up j as a lock that is held while all its members are.
func NewMulti(j *Joint) {
	m := &multi{j}
	j.Need = len(j.Members)
	j.Resource.Driver = m
	j.Resource.Traits = &Traits{
		Leased: true, Nests: true, Outer: j.outer, NestsInTurn: true,
		NewQueue: func(context.Context, *Request) (Queue, error) { return j.retryQueue(), nil },
	}
}

// Subscribe implements [Driver]. It is not used: members wait in queues of their own.
func (m *multi) Subscribe(*Request, func(bool)) []Subscription { return nil }

// TryAcquire implements [Driver]. A request that may queue waits here, for one member after another, in
// the members' queues. On failure it has released what it acquired, or does so in the background.
func (m *multi) TryAcquire(ctx context.Context, q *Request) (Result, error) {
	c := m.Resource.Core
	if !q.MayQueue {
		attempt := c.newAttemptTime(ctx, &q.wait)
		defer attempt.cancel()
		res, _, err := m.acquireInOrder(ctx, attempt, q, wait{silent: true}, 0)
		return res, err
	}
	waiting, cancel := m.whileOpen(ctx)
	defer cancel()
	attempt := c.newAttemptTime(waiting, &q.wait)
	defer attempt.cancel()
	// A call for a member may go on after the wait is over. It must not change q.wait then.
	var mu sync.Mutex
	over := false
	defer func() {
		mu.Lock()
		over = true
		mu.Unlock()
	}()
	w := wait{limit: q.wait.limit, until: q.wait.until, notify: func() {
		mu.Lock()
		defer mu.Unlock()
		if !over {
			q.wait.begin(m.Resource, q.ID)
		}
	}}
	waited := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return q.wait.waited
	}
	for patience := firstPatience; ; patience = min(2*patience, longestPatience) {
		res, missing, err := m.acquireInOrder(waiting, attempt, q, w, patience)
		if missing >= 0 {
			if err = m.awaitMember(waiting, attempt, q, missing, w); err == nil {
				continue
			}
		}
		switch {
		case err == nil:
			return res, nil
		case ctx.Err() == nil && waiting.Err() != nil:
			return Result{}, ErrClosed
		case errors.Is(err, errYield), waited() && c.failure(err).Retry:
			return Result{RetryAfter: -1, Met: err}, nil
		}
		return Result{}, err
	}
}

// whileOpen returns ctx, but ended when the multi lock's client closes. Members on other clients wait in
// the queues of those clients, which would not notice the Close. The goroutine ends with the attempt, or
// on closing. The caller must call cancel.
func (m *multi) whileOpen(ctx context.Context) (context.Context, context.CancelFunc) {
	c := m.Resource.Core
	if !slices.ContainsFunc(m.Members, func(member *Resource) bool { return member.Core != c }) {
		return ctx, func() {}
	}
	waiting, cancel := context.WithCancel(ctx)
	c.Spawn(func() {
		select {
		case <-c.closing:
			cancel()
		case <-waiting.Done():
		}
	})
	return waiting, cancel
}

// awaitMember waits until the i-th member can be acquired, acquires it and releases it. Nothing is held
// while it waits, so no other program waits for us.
func (m *multi) awaitMember(ctx context.Context, attempt *attemptTime, q *Request, i int, w wait) error {
	o, err := m.beginAttempt(ctx, q)
	if err != nil {
		return err
	}
	pending, err := attempt.call(func() error {
		hold, err := o.acquireMember(ctx, i, q, w)
		if err == nil {
			_ = hold.Release(ctx) // goes on in the background if it must
		}
		return err
	})
	if pending != nil {
		attempt.settle(0, pending)
		return pending.gaveUp(ctx, q)
	}
	return err
}

// acquireInOrder acquires all members, or none: on failure it releases the members that it has. missing
// is the index of the member for which patience was over; otherwise it is negative. If the end of ctx or
// of the wait cut the attempt short, the error matches ErrNotAcquired or ErrUnavailable.
func (m *multi) acquireInOrder(
	ctx context.Context, attempt *attemptTime, q *Request, w wait, patience time.Duration,
) (res Result, missing int, err error) {
	o, err := m.beginAttempt(ctx, q)
	if err != nil {
		return Result{}, -1, err
	}
	if o.shortest > 0 {
		patience = min(patience, o.shortest/2) // leases without renewal run already: leave half of them
	}
	for i := range m.Members {
		mine, cut := w, i > 0 && w.limit != 0
		if cut { // at random, so that rivals do not give way at the same time
			mine = w.within(patience/2 + rand.N(patience)) //nolint:gosec // jitter
		}
		pending, err := attempt.call(func() error { return o.acquireAndAdd(ctx, i, q, mine) })
		if pending != nil {
			// The time is over and the member is silent. releaseMembers seals o, so acquireAndAdd
			// releases the member if it is acquired late.
			attempt.settle(0, o.releaseMembers(ctx), pending)
			return Result{}, -1, pending.gaveUp(ctx, q)
		}
		if err == nil {
			continue
		}
		attempt.settle(0, o.releaseMembers(ctx))
		if cut && mine.over() && stopped(err) && ctx.Err() == nil {
			return Result{}, i, err
		}
		return Result{}, -1, err
	}
	switch {
	case ctx.Err() != nil:
		err = GaveUp(ctx, nil)
	case !o.enough():
		err = fmt.Errorf("%w: a member was lost meanwhile: %w", ErrNotAcquired, errYield)
	default:
		o.seal()
		stateOf(q).granted = o
		return Result{Granted: true, Sent: time.Now(), holding: o}, -1, nil
	}
	attempt.settle(0, o.releaseMembers(ctx))
	return Result{}, -1, err
}
