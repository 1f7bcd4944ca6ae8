package joint

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/failure"
)

// How a redlock is acquired.
//
// All members are asked at the same time: see asked.go. The attempt has a budget of a tenth of the
// TTL, and ends as soon as a majority is acquired or impossible. If several rivals acquired some
// members each, nobody has a majority. Then all rivals release their members, and make another
// attempt after a random pause.
//
// A failed member, such as a silent server, is neither a grant nor a refusal. Without a majority of
// grants there are two cases:
//
//   - Refusals alone prevent a majority, or failures alone do not prevent it. Then the lock counts
//     as held, and the request waits.
//   - Otherwise too many members failed, and the error says that servers did not answer. If some of
//     them only missed the budget, for example on a busy machine, a request whose wait has an end
//     makes further attempts, for as long as a command may take.
//
// A silent server may execute the command later. If the other members have made a joint hold, the
// late member joins it. Otherwise it is released, or the request for the member is rolled back.

// red is the driver of a lock that needs a majority of its members. It belongs to the handle.
type red struct{ *Lock }

// NewRed sets up l as a lock that is held while a majority of its members is.
func NewRed(l *Lock) {
	r := &red{l}
	l.Need = len(l.Members)/2 + 1
	l.Budgeted = true
	l.Resource.Driver = r
	l.Resource.Traits = &engine.Traits{Leased: true, Nests: true, NewQueue: r.newQueue}
}

// newQueue returns a private queue for a request whose context carries a hold of a member. In the
// local queue, the request could stand behind a waiter that waits for that very hold, which would
// be a deadlock. For other requests it returns nil.
func (r *red) newQueue(ctx context.Context, _ *engine.Request) (engine.Queue, error) {
	id, err := r.carriedID(ctx)
	if err != nil || id == "" {
		return nil, err
	}
	return r.retryQueue(), nil
}

// TryAcquire implements [engine.Driver]. It makes one attempt for all members. After a split vote
// it pauses first. It blocks until a majority is acquired or impossible, and for the budget at
// most. If the attempt fails, it also blocks for the releases.
func (r *red) TryAcquire(ctx context.Context, q *engine.Request) (engine.Result, error) {
	o, err := r.beginAttempt(ctx, q)
	if err != nil {
		return engine.Result{}, err
	}
	state := stateOf(q)
	attempt := newAttemptTime(ctx, &q.Wait)
	defer attempt.cancel()
	if state.split > 0 {
		// Rivals held some members each. The pauses are random and long compared to an attempt, so
		// that one of the rivals finds all members free.
		pause := rand.N(min(max(16*state.split, 5*time.Millisecond), 250*time.Millisecond)) //nolint:gosec // jitter
		engine.Pause(attempt.waitCtx, pause, nil)
	}
	began := time.Now()
	members := r.askAll(ctx, attempt.waitCtx, q, o)
	defer o.asked.outlive()
	members.collectUntil(attempt.waitCtx, o.budget, func() bool {
		return o.enough() || members.yes+members.open < r.Need
	})
	if ctx.Err() == nil && o.enough() {
		o.awaitTogether(attempt.waitCtx)
		r.dropReservations(ctx, o)
		state.reserved = nil
		state.granted = o
		return o.granted(), nil
	}
	isBudget := r.endFailedAttempt(ctx, attempt, o, members)
	state.keepReservations(o)
	q.WaitRecorded = q.WaitRecorded || len(state.reserved) > 0
	if q.MayQueue {
		o.waitForMembers(q)
	}
	state.split = 0
	if members.yes+members.late > 0 {
		state.split = time.Since(began)
	}
	return r.failed(ctx, q, members.votes, isBudget)
}

// endFailedAttempt releases what an attempt without a majority has acquired, and adds the answers
// of members that come late. It reports whether the budget ended the attempt while a majority was
// still possible.
func (r *red) endFailedAttempt(
	ctx context.Context, attempt *attemptTime, o *Holding, members *fanOut,
) (isBudget bool) {
	inTime := members.votes
	released := o.releaseMembers(ctx)
	isOver := members.open > 0 && members.yes+members.open >= r.Need
	isBudget = isOver && attempt.waitCtx.Err() == nil
	switch {
	case isBudget:
		o.asked.end(overdue{errBudget})
	case isOver:
		o.asked.end(endOf(attempt.waitCtx))
	}
	attempt.settle(min(o.budget, r.Resource.Core.RollbackLimit(attempt.began)), released)
	if isOver {
		members.collect(context.Background(), rollbackWait) // their errors say why they have not answered
	} else {
		o.awaitAsked(attempt.waitCtx)
	}
	members.collectReady(attempt.waitCtx)
	if members.open > 0 && inTime.no <= len(r.Members)-r.Need {
		r.addMissing(attempt.waitCtx, o, members, isOver)
	}
	return isBudget
}

// failed returns the result of an attempt without a majority. v contains all answers. isBudget
// reports that the budget ended the attempt while a majority was still possible.
func (r *red) failed(ctx context.Context, q *engine.Request, v votes, isBudget bool) (engine.Result, error) {
	tolerated := len(r.Members) - r.Need
	wasGranted := v.yes+v.lost >= r.Need
	isTry := !q.MayQueue && ctx.Err() == nil
	switch {
	case ctx.Err() != nil && v.yes >= r.Need: // no other client and no server has caused it
		return engine.Result{RetryAfter: -1, Why: withoutOutages(v.failed)}, nil
	case isTry && wasGranted: // no other client had the members
		if _, silent := v.decide(r.Need); silent != nil {
			return engine.Result{}, r.joinErrors(v.failed, tolerated) // the majority of a hold in ctx may still stand
		}
		return engine.Result{}, errMembersLost
	case v.no > tolerated, len(v.failed) <= tolerated: // see the top of this file
		reasons := []error{v.refusal}
		if v.yes >= r.Need {
			reasons = append(reasons, errMembersLost)
		}
		reasons = append(reasons, withoutOutages(v.failed)) // enough others have answered
		return engine.Result{RetryAfter: v.retryAfter(r.Need), Why: join(reasons)}, nil
	}
	err := r.joinErrors(v.failed, tolerated)
	if isBudget {
		err = engine.MissedBudget(err)
	}
	return engine.Result{}, err
}

// withoutOutages joins the errors of members whose silence did not matter. It returns nil if there
// are none.
func withoutOutages(failed []error) error {
	var reasons []error
	for _, err := range failed {
		if member, ok := errors.AsType[*memberError](err); ok {
			err = &memberError{member.member, engine.WithoutOutage(member.err)}
		}
		reasons = append(reasons, err)
	}
	return join(reasons)
}

// joinErrors joins errors so that the first one decides whether waiting goes on. Lasting errors
// come first if they alone prevent a majority, because another attempt would fail, too. Otherwise
// temporary refusals come first, because a request waits for their end. The errors of members that
// had no time come last.
func (r *red) joinErrors(errs []error, tolerated int) error {
	var lasting []error
	var passing []error
	var late []error
	for _, err := range errs {
		verdict := engine.Judge(engine.Result{}, err)
		hadNoTime := failure.Of(err).CallerEnded && !errors.Is(err, engine.ErrUnavailable)
		switch {
		case hadNoTime:
			late = append(late, err)
		case verdict == engine.RefusedForNow:
			passing = slices.Insert(passing, 0, err)
		case verdict == engine.Unanswered:
			passing = append(passing, err)
		default:
			lasting = append(lasting, err)
		}
	}
	if len(lasting) > tolerated {
		return join(slices.Concat(lasting, passing, late))
	}
	return join(slices.Concat(passing, lasting, late))
}

// Subscribe implements [engine.Driver]. It wakes the queue when a majority of members has announced
// a release. One member is not enough, because the release of a failed attempt is announced too.
// Two waiters would then wake each other for ever, while a third client holds a majority:
//
//	waiter X                             waiter Y
//	acquires 1 of 3, releases it
//	                                     is woken up, acquires 1 of 3, releases it
//	is woken up ...
//
// The mutex is innermost, and is not held while hear is called. The listeners run in the
// transport's goroutines.
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
