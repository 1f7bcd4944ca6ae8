package joint

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
)

// How a red lock is acquired.
//
// All members are asked at the same time, each with a budget of a tenth of the TTL. A majority decides.
// If rivals acquired some members each, nobody has a majority. Then all release what they have, and try
// again after a random pause.
//
// A failed member, such as a silent server, is neither a grant nor a refusal. Without a majority of
// grants there are two cases:
//
//   - Refusals alone prevent a majority, or failures alone do not: the lock counts as held, and the
//     request waits.
//   - Otherwise too many members failed: the error says that servers did not answer.
//
// A silent server may execute the attempt later. Then acquireMember returns no hold, and rolls back its own request.
// Or it returns a late hold: that is released, unless the attempt has succeeded without it.

// red is the driver of a lock that needs a majority of its members. It belongs to the handle.
type red struct{ *Lock }

// NewRed sets up l as a lock that is held while a majority of its members is.
func NewRed(l *Lock) {
	r := &red{l}
	l.Need, l.Budgeted = len(l.Members)/2+1, true
	l.Resource.Driver = r
	l.Resource.Traits = &engine.Traits{Leased: true, Nests: true, NewQueue: r.newQueue}
}

// newQueue returns a queue of its own for a request whose context carries a hold of a member. In the
// local queue it could be behind a waiter that waits for that very hold: a deadlock.
func (r *red) newQueue(ctx context.Context, _ *engine.Request) (engine.Queue, error) {
	id, err := r.carriedID(ctx)
	if err != nil || id == "" {
		return nil, err
	}
	return r.retryQueue(), nil
}

// TryAcquire implements [engine.Driver]: it makes one attempt for all members. It blocks for the budget at most,
// after the pause of a split, and then for the releases of a failed attempt.
func (r *red) TryAcquire(ctx context.Context, q *engine.Request) (engine.Result, error) {
	o, err := r.beginAttempt(ctx, q)
	if err != nil {
		return engine.Result{}, err
	}
	state, attempt := stateOf(q), newAttemptTime(ctx, &q.Wait)
	defer attempt.cancel()
	if state.split > 0 {
		// Rivals held some members each. The pauses are random and long compared to an attempt, so that
		// one of the rivals finds all members free.
		pause := rand.N(min(max(16*state.split, 5*time.Millisecond), 250*time.Millisecond)) //nolint:gosec // jitter
		engine.Pause(attempt.ending, pause, nil)
	}
	limited, cancel := context.WithTimeoutCause(attempt.ending, o.budget, errBudget)
	defer cancel()
	began := time.Now()
	asked := r.askAll(attempt.ending, limited, q, o)
	early := o.budget
	if left, limited := q.Wait.Left(); limited {
		// A majority that answers in time must not miss the end of the wait because another member is
		// slow.
		early = min(early, left*3/4)
	}
	asked.collect(attempt.ending, max(early, time.Millisecond))
	if !o.enough() {
		asked.collect(attempt.ending, max(o.budget-time.Since(began), time.Millisecond))
	}
	asked.countMissing(attempt.ending)
	if ctx.Err() == nil && o.enough() {
		state.granted = o
		return o.granted(), nil
	}
	cancel()
	attempt.settle(min(o.budget, r.Resource.Core.RollbackLimit(attempt.began)), o.releaseMembers(ctx))
	v, failed := asked.votes, asked.failed
	if attempt.ending.Err() != nil {
		attempt.settle(o.budget, asked) // members that are acquired late are released here, too
		for _, err := range asked.failed[len(v.failed):] {
			if errors.Is(err, engine.ErrUnavailable) {
				failed = append([]error{err}, v.failed...) // why a member has not answered
			}
		}
	}
	state.split = 0
	if v.yes > 0 {
		state.split = time.Since(began)
	}
	switch tolerated := len(r.Members) - r.Need; {
	case !q.MayQueue && ctx.Err() == nil && v.yes+v.lost >= r.Need: // nobody else had them
		if _, silent := v.decide(r.Need); silent != nil {
			return engine.Result{}, r.joinErrors(failed, tolerated) // the majority of a hold in ctx may still stand
		}
		return engine.Result{}, errMembersLost
	case v.no > tolerated, len(v.failed) <= tolerated: // see the head of this file
		reasons := []error{v.refusal}
		if v.yes >= r.Need {
			reasons = append(reasons, errMembersLost)
		}
		for _, err := range v.failed {
			reasons = append(reasons, engine.WithoutOutage(err)) // enough others have answered
		}
		return engine.Result{RetryAfter: v.retryAfter(r.Need), Met: join(reasons)}, nil
	default:
		return engine.Result{}, r.joinErrors(failed, tolerated)
	}
}

// askAll tries to acquire all members for q, until limited is done, and adds their holds to o. It does
// not block: each member has a goroutine, which ends with the member's call.
func (r *red) askAll(ending, limited context.Context, q *engine.Request, o *Ownership) *fanOut {
	c, began := r.Resource.Core, time.Now()
	return newFanOut(c, len(r.Members), func(i int) error {
		err := o.acquireAndAdd(limited, i, q, engine.Wait{})
		switch {
		case err == nil:
		case ending.Err() != nil:
			if !errors.Is(err, engine.ErrUnavailable) {
				err = c.CutShort(context.Cause(ending), engine.SilenceOf(ending, began))
			}
		case limited.Err() != nil:
			if !errors.Is(err, engine.ErrUnavailable) {
				err = errBudget
			}
			if f := c.Classify(err); f.NotNow && !f.InDoubt {
				return err // so the request waits: see joinErrors
			}
			return c.Unanswered(err)
		}
		return err
	})
}

// joinErrors joins errors so that the first one decides whether waiting goes on. Lasting errors come
// first if they alone prevent a majority: another attempt would fail too. Else temporary refusals come first,
// because a request waits for their end. Members that had no time count only if there is no other error.
func (r *red) joinErrors(errs []error, tolerated int) error {
	lasting, passing, late := []error(nil), []error(nil), []error(nil)
	for _, err := range errs {
		switch f := r.Resource.Core.Classify(err); {
		case f.Ended && !errors.Is(err, engine.ErrUnavailable):
			late = append(late, err)
		case f.NotNow:
			passing = slices.Insert(passing, 0, err)
		case f.Retry:
			passing = append(passing, err)
		default:
			lasting = append(lasting, err)
		}
	}
	if len(passing)+len(lasting) == 0 {
		passing = late
	}
	if len(lasting) > tolerated {
		return join(slices.Concat(lasting, passing))
	}
	return join(slices.Concat(passing, lasting))
}

// Subscribe implements [engine.Driver]. It wakes the queue when a majority of members has announced a release.
// One member is not enough, because the release of a failed attempt is announced too. Two waiters would
// then wake each other for ever, while a third client holds a majority:
//
//	waiter X                             waiter Y
//	acquires 1 of 3, releases it
//	                                     is woken up, acquires 1 of 3, releases it
//	is woken up ...
//
// The mutex is innermost: hear is called without it. The listeners run in goroutines of the transport.
func (r *red) Subscribe(hear func(engine.Message)) (subs []engine.Subscription) {
	var mu sync.Mutex
	announced := map[int]bool{}
	for i, m := range r.Members {
		subs = append(subs, m.Driver.Subscribe(func(message engine.Message) {
			mu.Lock()
			announced[i] = true
			enough := len(announced) >= r.Need
			if enough {
				clear(announced)
			}
			mu.Unlock()
			if message == engine.Missed || enough {
				hear(message)
			}
		})...)
	}
	return subs
}
