package engine

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// How a red lock is acquired.
//
// All members are asked at the same time, each with a budget of a tenth of the TTL. A majority decides. If
// rivals had some members each, nobody has a majority: all release what they have, and come back after a
// random pause. Members that did not answer count against the attempt, but not as refusals: as long as a
// majority might be free, the error tells that servers did not answer rather than that the lock is held.

// red is the driver of a lock that needs a majority of its members. It asks all at the same time.
type red struct{ *Joint }

// NewRed sets up j as a lock that is held while a majority of its members is.
func NewRed(j *Joint) {
	r := &red{j}
	j.Need, j.Budgeted = len(j.Members)/2+1, true
	j.Resource.Driver = r
	j.Resource.Traits = Traits{Leased: true, Outer: j.outer, NestsInTurn: true, NewQueue: r.newQueue}
}

// newQueue: a request whose context carries a hold of a member does not join the local queue, because
// the waiters there may wait for that very hold.
func (r *red) newQueue(ctx context.Context, _ *Request) (Queue, error) {
	id, err := r.carriedID(ctx)
	if err != nil || id == "" {
		return nil, err
	}
	return r.retryQueue(), nil
}

// TryAcquire implements [Driver].
func (r *red) TryAcquire(ctx context.Context, q *Request) (Result, error) {
	o, err := r.beginAttempt(ctx, q)
	if err != nil {
		return Result{}, err
	}
	c, state := r.Resource.Core, stateOf(q)
	attempt := c.newAttemptTime(ctx, &q.wait)
	defer attempt.cancel()
	if state.split > 0 {
		// Rivals held some members each: whoever comes back first should find all of them free.
		pause := rand.N(min(max(16*state.split, 5*time.Millisecond), 250*time.Millisecond)) //nolint:gosec // jitter
		Pause(attempt.ending, pause, nil)
	}
	limited, cancel := context.WithTimeout(attempt.ending, o.budget)
	defer cancel()
	began := time.Now()
	asked := r.askAll(ctx, limited, q, o)
	var v votes
	early := o.budget
	if q.wait.limit > 0 {
		// A majority that answers in time must not miss the end of the wait because another member is slow.
		early = min(early, time.Until(q.wait.until)*3/4)
	}
	asked.collect(attempt.ending, max(early, time.Millisecond), &v)
	if !o.enough() {
		asked.collect(attempt.ending, max(o.budget-time.Since(began), time.Millisecond), &v)
	}
	c.countMissing(attempt.ending, asked, &v)
	o.seal()
	if ctx.Err() == nil && o.enough() {
		state.granted = o
		return Result{Granted: true, Sent: time.Now(), holding: o}, nil
	}
	cancel()
	attempt.settle(o.budget, o.releaseMembers(ctx))
	if attempt.ending.Err() != nil {
		attempt.settle(o.budget, asked) // what was on its way is released too
	}
	state.split = 0
	if v.yes > 0 {
		state.split = time.Since(began)
	}
	switch tolerated := len(r.Members) - r.Need; {
	case ctx.Err() != nil:
		return Result{}, GaveUp(ctx, nil)
	case attempt.ending.Err() != nil:
		return Result{}, GaveUp(ctx, errors.Join(v.failed...))
	case v.no > tolerated, len(v.failed) <= tolerated: // the members that failed are not to blame
		return Result{RetryAfter: -1, Met: errors.Join(v.failed...)}, nil
	default:
		return Result{}, r.decisive(v.failed, tolerated)
	}
}

// askAll asks all members for q until limited is done, and adds what is acquired to o. What is acquired
// later is released.
func (r *red) askAll(ctx, limited context.Context, q *Request, o *JointOwnership) *fanOut {
	c := r.Resource.Core
	return c.fanOut(len(r.Members), func(i int) error {
		hold, err := o.acquireMember(limited, i, q, wait{silent: true})
		switch {
		case err == nil && o.add(hold):
			return nil
		case err == nil:
			_ = hold.Release(ctx) // goes on in the background if it must
			return c.Unanswered(errTooLate)
		case limited.Err() != nil:
			return c.Unanswered(errBudget)
		}
		return err
	})
}

// decisive joins errors so that the first one decides whether waiting goes on: errors that will not pass
// come first if they alone are too many.
func (r *red) decisive(errs []error, tolerated int) error {
	lasting, passing := []error(nil), []error(nil)
	for _, err := range errs {
		if r.Resource.Core.failure(err).Retry {
			passing = append(passing, err)
		} else {
			lasting = append(lasting, err)
		}
	}
	if len(lasting) > tolerated {
		return errors.Join(slices.Concat(lasting, passing)...)
	}
	return errors.Join(slices.Concat(passing, lasting)...)
}

// Subscribe implements [Driver]. The reason to try is that a majority has announced a release. A rollback
// is announced too: if one member were enough, requests that wait for a holder of other members would
// wake each other for ever.
func (r *red) Subscribe(q *Request, wake func(missed bool)) (subs []Subscription) {
	var mu sync.Mutex
	announced := map[int]bool{}
	for i, m := range r.Members {
		subs = append(subs, m.Driver.Subscribe(q, func(missed bool) {
			mu.Lock()
			announced[i] = true
			enough := len(announced) >= r.Need
			if enough {
				clear(announced)
			}
			mu.Unlock()
			if missed || enough {
				wake(missed)
			}
		})...)
	}
	return subs
}
