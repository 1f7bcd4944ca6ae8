package joint

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/failure"
)

// The attempts for the members of a redlock. The redlock is acquired as soon as a majority has
// answered. The attempts for the other members go on, and the members that they acquire belong to
// the joint hold:
//
//	asked                 all members, each in a goroutine of its own
//	a majority answers    the joint hold begins
//	a late member answers it joins the joint hold (mayStillCount, add), or is released because the joint hold is over
//	a member refuses      it is asked again while the joint hold lasts (takeLater); so is a late member that was
//	                      released because the others were not confirmed
//	Release               waits briefly for late members (awaitAsked)
//
// If the attempt for the redlock fails, the attempts for members that have not answered are ended
// (asked.end), and roll back what they may have taken.

const (
	// together is how long an acquisition with a majority waits for the other members, if their
	// servers usually answer within that time. So it usually has all members when it returns. It
	// does not wait for a server that is known to be slow or silent.
	together = engine.UsualAnswer
	// promptly is how long after the beginning of the joint hold a late member still counts as one
	// that answered together with the others. A later member counts only after a check of the
	// others.
	promptly = 20 * time.Millisecond
)

// asked are the attempts for all members of a redlock.
type asked struct {
	at   time.Time
	open int           // attempts that are expected to be answered
	none chan struct{} // closed when open reaches 0
	// within is how long the answers may take.
	within   time.Duration
	answered []bool // by the index of the member
	// requests contains the requests for the members, by index. An element is nil if the member was
	// not asked.
	requests []*engine.Request
	// refused contains the requests that were answered by a refusal, by index.
	refused []*engine.Request
	// missing contains the members that failed or refused before there was a joint hold.
	missing []int
	// mayTake means that missing members may be acquired later.
	mayTake bool
	// end ends the attempts. It does not wait for them.
	end context.CancelCauseFunc
	// giveUp ends the attempts that have not been sent yet because another attempt on the same
	// server is under way.
	giveUp func()
	// outlive makes the attempts independent of the context of the acquisition.
	outlive func() bool
}

// overdue is the cause of a context that has ended because its time is over.
type overdue struct{ error }

func (e overdue) Unwrap() error { return e.error }

// Timeout implements the method of [net.Error]: a time limit was the cause.
func (e overdue) Timeout() bool { return true }

// endOf returns why the attempts end with waitCtx, which has ended.
func endOf(waitCtx context.Context) error {
	cause := context.Cause(waitCtx)
	if errors.Is(waitCtx.Err(), context.DeadlineExceeded) {
		return overdue{cause}
	}
	return cause
}

// askAll begins to acquire all members for q, and adds their holds to o. The attempts end with
// waitCtx, until o.asked.outlive is called, and after the command timeout at the latest. It does
// not block: each member has a goroutine, which ends with the member's call.
func (r *red) askAll(ctx, waitCtx context.Context, q *engine.Request, o *Holding) *fanOut {
	c := r.Resource.Core
	n := len(r.Members)
	began := time.Now()
	attemptsCtx, end := context.WithCancelCause(context.WithoutCancel(ctx))
	outlive := context.AfterFunc(waitCtx, func() { end(endOf(waitCtx)) })
	queuedCtx, endQueued := context.WithCancelCause(attemptsCtx)
	giveUp := func() {
		if waitCtx.Err() != nil {
			endQueued(endOf(waitCtx))
			return
		}
		endQueued(overdue{errBudget})
	}
	o.asked = asked{
		at: began, open: n, none: make(chan struct{}), within: engine.UsualAnswer, answered: make([]bool, n),
		requests: make([]*engine.Request, n), refused: make([]*engine.Request, n), end: end, outlive: outlive, giveUp: giveUp,
	}
	o.asked.mayTake = !q.Shared && !o.carried
	if q.MayQueue {
		o.reserved = make([]*engine.Request, n)
		copy(o.reserved, stateOf(q).reserved)
	}
	members := &fanOut{core: c, answers: make(chan error, n), began: began, open: n}
	for i := range n {
		c.Spawn(func() {
			isExpected := true
			expect := func(within time.Duration) {
				if isExpected {
					isExpected = o.expect(within)
				}
			}
			err := r.askMember(attemptsCtx, queuedCtx, i, q, o, expect)
			if err != nil && !errors.Is(err, errTooLate) {
				if attemptsCtx.Err() != nil {
					err = r.cutShort(attemptsCtx, waitCtx, began, err)
				}
				err = r.named(i, err)
			}
			o.memberAnswered(i)
			members.answers <- err
			expect(0)
			mayTake := !errors.Is(err, errTooLate) || errors.Is(err, errUnconfirmed)
			if err != nil && mayTake {
				o.takeLater(i)
			}
		})
	}
	return members
}

// noteRefusal notes that mine, a request for the i-th member, was refused, unless it was granted.
func (o *Holding) noteRefusal(i int, mine *engine.Request, err error) {
	if !errors.Is(err, engine.ErrNotAcquired) {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.asked.refused != nil { // it is an acquisition, not a retake
		o.asked.refused[i] = mine
	}
}

// waitForMembers makes the clients of the members ask the holders that have refused q, as long as q
// waits.
func (o *Holding) waitForMembers(q *engine.Request) {
	o.mu.Lock()
	refused := slices.Clone(o.asked.refused)
	o.mu.Unlock()
	for i, mine := range refused {
		q.WaitForMember(o.lock.Members[i], mine)
	}
}

// askMember acquires the i-th member, unless its server is silent and another attempt is under way
// there. expect is passed to [engine.Resource.ApproachServer]. An attempt that has not been made
// yet ends when queuedCtx ends.
func (r *red) askMember(
	ctx, queuedCtx context.Context, i int, q *engine.Request, o *Holding, expect func(time.Duration),
) error {
	attempt, err := r.Members[i].ApproachServer(queuedCtx, expect)
	if err != nil {
		return err
	}
	err = o.acquireAndAdd(ctx, i, q, engine.Wait{})
	attempt.Leave(ctx, err)
	return err
}

// cutShort returns the error of a member whose attempt was ended early. err may say why there was
// no answer.
func (r *red) cutShort(attemptsCtx, waitCtx context.Context, began time.Time, err error) error {
	f := failure.Of(err)
	isCut := f.CallerEnded || errors.Is(err, engine.ErrNotAcquired) || errors.Is(err, context.Cause(attemptsCtx))
	switch {
	case errors.Is(err, engine.ErrUnavailable), !isCut: // it is the server's own error
		return err
	case waitCtx.Err() != nil:
		return failure.WithoutDoubt(failure.CutShort(waitCtx, began))
	}
	return failure.WithoutDoubt(failure.Unanswered(errBudget))
}

// expect notes that a member is expected to answer within that time after it was asked. 0 means
// that the member has answered, or will probably not answer soon. expect reports whether the member
// is expected to answer.
func (o *Holding) expect(within time.Duration) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked.within = max(o.asked.within, within)
	if within > 0 {
		return true
	}
	o.asked.open--
	if o.asked.open == 0 {
		close(o.asked.none)
	}
	return false
}

// memberAnswered notes that the i-th member has answered, or has failed.
func (o *Holding) memberAnswered(i int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked.answered[i] = true
}

// addMissing counts the members without an answer as failed. The answers that have arrived are
// counted already. isOver means that the budget or the attempt's time is over. Otherwise the other
// members have decided.
func (r *red) addMissing(ctx context.Context, o *Holding, members *fanOut, isOver bool) {
	missing := failure.WithoutDoubt(failure.Unanswered(errNotAwaited))
	if isOver {
		missing = failure.WithoutDoubt(failure.Unanswered(errBudget))
	}
	if cause := context.Cause(ctx); cause != nil {
		missing = failure.WithoutDoubt(failure.CutShort(ctx, members.began))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, answered := range o.asked.answered {
		if !answered {
			members.failed = append(members.failed, r.named(i, missing))
		}
	}
}

// awaitTogether waits for the members that are expected to answer at the same time as the majority.
// waitCtx is the acquisition's context. At least half of its time is left afterwards.
func (o *Holding) awaitTogether(waitCtx context.Context) {
	o.mu.Lock()
	within := o.asked.within
	o.mu.Unlock()
	if within > engine.AnswerFactor*engine.UsualAnswer {
		return // the member is slow
	}
	limit := min(within, together)
	if until, ok := waitCtx.Deadline(); ok {
		limit = min(limit, time.Until(until)/2)
	}
	engine.Pause(waitCtx, limit, o.asked.none)
}

// awaitAsked waits for the members that are expected to answer after o was closed. The holds that
// they acquire are released. If a member takes longer than expected, or longer than the budget,
// that happens in the background. If ctx has ended, awaitAsked waits only briefly.
func (o *Holding) awaitAsked(ctx context.Context) {
	o.mu.Lock()
	isAsked := o.asked.open > 0
	within := o.asked.within
	o.mu.Unlock()
	if !isAsked {
		return
	}
	left := min(within-time.Since(o.asked.at), o.budget)
	engine.Pause(ctx, left, o.asked.none)
	if ctx.Err() != nil {
		engine.Pause(context.Background(), min(rollbackWait, left), o.asked.none)
	}
}

// mayStillCount reports whether a member that was granted just now may belong to the joint hold.
//
// A rival may have had a majority before this member was granted, if one of the others has
// forgotten the lock. So if the joint hold began a while ago, enough of the others must confirm now
// that they hold the lock.
//
// A nested acquisition may have acquired this member with the same id before. Then the server took
// the command that acquired the member for a copy, and has not counted it: see
// [engine.Ownership.ConfirmCount].
func (o *Holding) mayStillCount(member *engine.Hold) bool {
	o.mu.Lock()
	h := o.h
	since := o.since
	closed := o.closed
	holdCtx := context.Background()
	if h != nil {
		holdCtx = o.untilOver()
	}
	o.mu.Unlock()
	if h == nil || closed { // add decides whether the member counts
		return true
	}
	mayHaveMoreCounts := h.WasNested() && !member.Ownership().Shared
	if mayHaveMoreCounts && !member.Ownership().ConfirmCount(holdCtx, o.budget) {
		return false
	}
	return time.Since(since) < promptly || o.isConfirmed(holdCtx)
}
