package joint

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/failure"
)

// How a multilock is acquired if each of its members needs a command of its own. Other multilocks
// are in whole.go.
//
// It acquires its members one after another. Among multilocks, the members' order prevents a
// deadlock. But another program, for example one that uses Redisson, may use another order:
//
//	multilock                      other program
//	acquires A
//	                                acquires B
//	waits for B                     waits for A
//
// So a multilock that holds some members waits for the next one only for a while. Then it
// releases them, waits with nothing held until the missing member can be acquired, and begins
// again with a longer wait for each member.

// How long a multilock that holds some members waits for the next one. The wait doubles with each
// round, because a member may simply be held for long.
const (
	firstMemberWait   = 100 * time.Millisecond
	longestMemberWait = 2 * time.Second
)

// multi is the driver of a lock that needs all its members. It acquires them one after another.
type multi struct{ *Lock }

// NewMulti sets up l as a lock that is held while all its members are.
func NewMulti(l *Lock) {
	m := &multi{l}
	l.Need = len(l.Members)
	l.Resource.Driver = m
	l.Resource.Traits = &engine.Traits{
		Leased: true, Nests: true,
		NewQueue: m.newQueue,
	}
}

// newQueue returns nil for a request that acquires all members as a whole: nil stands for the local
// queue of the multilock's name. Other requests wait in the members' queues.
func (m *multi) newQueue(ctx context.Context, q *engine.Request) (engine.Queue, error) {
	if m.wholeTerms(ctx, q) != nil {
		return nil, nil //nolint:nilnil // as Traits.NewQueue says
	}
	return m.retryQueue(), nil
}

// Subscribe implements [engine.Driver], for requests that acquire all members as a whole.
func (m *multi) Subscribe(hear func(engine.Message)) []engine.Subscription {
	return m.Whole.Subscribe(hear)
}

// TryAcquire implements [engine.Driver].
func (m *multi) TryAcquire(ctx context.Context, q *engine.Request) (engine.Result, error) {
	if terms := m.wholeTerms(ctx, q); terms != nil {
		res, err := m.tryWhole(ctx, q, terms)
		if err == nil || m.Whole.Fits(q.Terms, terms) {
			return res, err
		}
		stateOf(q).whole = nil // the answer says that each member needs a command of its own
	}
	return m.tryInOrder(ctx, q)
}

// tryInOrder acquires the members one after another, each by a command of its own. A request that
// may queue waits here, in the members' queues. On failure it has released the members that it
// acquired, or releases them in the background. Like any acquisition, a member's ends soon after
// the request's time is over, so the caller's goroutine can make it.
func (m *multi) tryInOrder(ctx context.Context, q *engine.Request) (engine.Result, error) {
	if !q.MayQueue {
		attempt := newAttemptTime(ctx, &q.Wait)
		defer attempt.cancel()
		res, _, err := m.acquireInOrder(ctx, attempt, q, engine.Wait{}, 0)
		return res, err
	}
	// Members on other clients wait in those clients' queues, which would not notice that this
	// client closes.
	waitCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(m.Resource.Core.ClosingContext(), cancel)()
	attempt := newAttemptTime(waitCtx, &q.Wait)
	defer attempt.cancel()
	// The observer may be slow. So it is not called while members are held that others may wait
	// for.
	state := stateOf(q)
	w := q.Wait.ForMember(func() {
		state.mustTell = true
		if !state.holds {
			q.Wait.Begin(m.Resource, q.ID)
		}
	})
	for memberWait := firstMemberWait; ; memberWait = min(2*memberWait, longestMemberWait) {
		res, missing, err := m.acquireInOrder(waitCtx, attempt, q, w, memberWait)
		state.holds = false
		if state.mustTell {
			q.Wait.Begin(m.Resource, q.ID)
		}
		if missing >= 0 {
			err = m.awaitMember(waitCtx, attempt, q, missing, w)
			if err == nil {
				continue
			}
		}
		switch {
		case err == nil:
			return res, nil
		case errors.Is(err, engine.ErrObserverSlow):
			continue // the next attempt makes other requests for the members
		case ctx.Err() == nil && waitCtx.Err() != nil:
			return engine.Result{}, engine.ErrClosed
		case errors.Is(err, errYield), errors.Is(err, errMembersLost),
			q.Wait.Waited() && failure.Of(err).Retry():
			return engine.Result{RetryAfter: -1, Why: err}, nil
		}
		return engine.Result{}, err
	}
}

// awaitMember waits until the i-th member can be acquired, acquires it and releases it. Nothing is
// held while it waits, so no other program waits for this one.
func (m *multi) awaitMember(ctx context.Context, attempt *attemptTime, q *engine.Request, i int, w engine.Wait) error {
	o, err := m.beginAttempt(ctx, q)
	if err != nil {
		return err
	}
	err = attempt.acquire(ctx, o, i, q, w)
	if err == nil {
		attempt.settle(0, o.releaseMembers(ctx))
	}
	return err
}

// acquireInOrder acquires all members, or none: on failure it releases the members that it has.
// missing is the index of the member for which memberWait ran out, and is negative otherwise. If
// the end of ctx or of the wait cut the attempt short, the error matches ErrNotAcquired or
// ErrUnavailable.
func (m *multi) acquireInOrder(
	ctx context.Context, attempt *attemptTime, q *engine.Request, w engine.Wait, memberWait time.Duration,
) (res engine.Result, missing int, err error) {
	o, err := m.beginAttempt(ctx, q)
	if err != nil {
		return engine.Result{}, -1, err
	}
	if o.shortest > 0 {
		memberWait = min(memberWait, o.shortest/2) // the members' limits run already: leave half of the time
	}
	stateOf(q).granted = o // set now: if a hook of go-redis panics, Rollback releases what o has
	for i := range m.Members {
		mine := w
		cut := i > 0 && !w.IsSingleTry()
		if cut { // the time is random, so that rivals do not give way at the same time
			mine = w.Within(memberWait/2 + rand.N(memberWait)) //nolint:gosec // jitter
		}
		stateOf(q).holds = i > 0
		err := attempt.acquire(ctx, o, i, q, mine)
		if err == nil {
			continue
		}
		limit := time.Duration(0)
		if f := failure.Of(err); f.InDoubt() || f.Retry() {
			// Other members may be silent or unreachable, too, so all of them together get the time
			// of one command.
			limit = m.Resource.Core.RollbackLimit(attempt.began)
		}
		asked := time.Now()
		if !attempt.settle(limit, o.releaseMembers(ctx)) {
			q.NoteSilence(asked)
		}
		isMemberWaitOver := cut && mine.Over()
		if isMemberWaitOver && engine.IsGiveUp(err) {
			if ctx.Err() == nil {
				return engine.Result{}, i, err
			}
			err = q.GaveUp(ctx) // ctx ended during the releases
		}
		return engine.Result{}, -1, err
	}
	if o.enough() {
		return o.granted(), -1, nil
	}
	attempt.settle(0, o.releaseMembers(ctx))
	return engine.Result{}, -1, errMembersLost
}
