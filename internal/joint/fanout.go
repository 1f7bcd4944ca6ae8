package joint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/failure"
)

// Questions to several members of a joint lock at the same time. The caller often decides before
// all members have answered, because one of them may be silent. Calls that have not returned by
// then go on in their goroutines, and Close waits for them.

// rollbackWait is how long a joint acquisition whose time is over waits for the release of the
// members that it has acquired. The rest goes on in the background.
const rollbackWait = 20 * time.Millisecond

// fanOut is one question to several members. The goroutine that asked owns it and receives the
// answers.
type fanOut struct {
	votes

	core    *engine.Core
	answers chan error // has room for all answers, so that a late one blocks no goroutine
	began   time.Time
	open    int // the number of answers that have not been received yet
}

// newFanOut runs f for all i < n in goroutines that Close of c waits for. Each of them ends when
// its call of f returns. The caller must be a call that Close waits for. Otherwise Spawn might do
// nothing, and no answer would come.
func newFanOut(c *engine.Core, n int, f func(i int) error) *fanOut {
	o := &fanOut{core: c, answers: make(chan error, n), began: time.Now(), open: n}
	for i := range n {
		c.Spawn(func() { o.answers <- f(i) })
	}
	return o
}

// votes are the counted answers of one question. A member that fails is not a refusal: it may or
// may not hold the lock, so it counts for neither side.
type votes struct {
	yes       int
	no        int             // refusals: another client holds the member, or this one does not
	lost      int             // refusals by members that were granted or held before, and then lost
	late      int             // grants that were given back because the attempt was over
	refusal   error           // the last ErrNotAcquired, which names a holder
	failed    []error         // neither a grant nor a refusal: no answer, or a server error
	leaseEnds []time.Duration // how long the holders' leases last, where that is known
}

// add counts an answer. An error that only reports the end of ctx is not a refusal, even if its
// cause is ErrLost, because ctx may be the context of another hold that was lost.
func (v *votes) add(ctx context.Context, answer error) {
	switch {
	case answer == nil:
		v.yes++
	case errors.Is(answer, errTooLate):
		v.late++
	case ctx.Err() != nil && errors.Is(answer, context.Cause(ctx)):
		v.failed = append(v.failed, answer)
	case errors.Is(answer, engine.ErrNotAcquired):
		v.no++
		if errors.Is(answer, engine.ErrUnavailable) {
			return // the member refused before it fell silent, so the refusal does not name the present holder
		}
		v.refusal = answer
		var held interface{ LeaseLeft() time.Duration }
		if errors.As(answer, &held) && held.LeaseLeft() > 0 {
			v.leaseEnds = append(v.leaseEnds, held.LeaseLeft())
		}
	case errors.Is(answer, engine.ErrLost):
		v.no++
		v.lost++
	case errors.Is(answer, engine.ErrNotHeld):
		v.no++
	default:
		v.failed = append(v.failed, answer)
	}
}

// retryAfter returns how long it takes until enough of the holders' leases have ended for need
// members to be acquired. It returns -1 if that is unknown.
func (v votes) retryAfter(need int) time.Duration {
	slices.Sort(v.leaseEnds)
	if missing := need - v.yes; missing > 0 && missing <= len(v.leaseEnds) {
		return v.leaseEnds[missing-1]
	}
	return -1
}

// decide turns the answers into a result, where need members must agree. refused means that too
// many members refused. An error means that too few answered, and that the silent ones may or may
// not hold the lock.
func (v votes) decide(need int) (refused bool, err error) {
	switch {
	case v.yes >= need:
		return false, nil
	case v.yes+len(v.failed) < need:
		return true, nil
	}
	return false, join(v.failed)
}

// count waits for all answers, until ctx is done, and for limit at most if limit is not 0. Members
// without an answer count as failed.
func (o *fanOut) count(ctx context.Context, limit time.Duration) votes {
	o.collect(ctx, limit)
	o.countMissing(ctx)
	return o.votes
}

// collect counts answers until all have arrived, until ctx is done, and for limit at most if limit
// is not 0. It may be called again for the answers that are left.
func (o *fanOut) collect(ctx context.Context, limit time.Duration) { o.collectUntil(ctx, limit, nil) }

// collectUntil is collect, but it stops as soon as enough, which is called after each answer,
// returns true.
func (o *fanOut) collectUntil(ctx context.Context, limit time.Duration, enough func() bool) {
	var late <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		late = timer.C
	}
	for o.open > 0 {
		var answer error
		select {
		case answer = <-o.answers: // comes first: an answer that has arrived counts even if the time is over
		default:
			select {
			case answer = <-o.answers:
			case <-ctx.Done():
				return
			case <-late:
				return
			}
		}
		o.open--
		o.add(ctx, answer)
		if enough != nil && enough() {
			return
		}
	}
}

// collectReasons waits briefly for the members whose calls have ended with the context that they
// share. Their errors say why they have not answered, and whether anything was sent.
func (o *fanOut) collectReasons(ctx context.Context) {
	timer := time.NewTimer(rollbackWait)
	defer timer.Stop()
	for o.open > 0 {
		select {
		case answer := <-o.answers:
			o.open--
			o.add(ctx, answer)
		case <-timer.C:
			return
		}
	}
}

// collectReady counts the answers that have arrived.
func (o *fanOut) collectReady(ctx context.Context) {
	for {
		select {
		case answer := <-o.answers:
			o.open--
			o.add(ctx, answer)
		default:
			return
		}
	}
}

// countMissing counts members without an answer as failed and in doubt, because their command may
// be executed.
func (o *fanOut) countMissing(ctx context.Context) {
	missing := failure.Unanswered(errBudget)
	if cause := context.Cause(ctx); cause != nil {
		missing = failure.CutShort(ctx, o.began)
	}
	o.failed = append(o.failed, slices.Repeat([]error{missing}, o.open)...)
}

// ForAllMembers runs f for all members at the same time, in goroutines that Close waits for. It
// blocks until all have returned, until ctx is done, and for the budget at most. Calls of f that
// have not returned by then go on in the background.
//
// At least Need calls must succeed. ForAllMembers fails with ErrNotHeld if so many members refused
// (ErrNotHeld, ErrNotAcquired) that too few can succeed. It fails with ErrLost if too few can
// succeed only because members were lost (ErrLost), and otherwise with the errors of the other
// members. The caller must be a call that Close waits for.
func (l *Lock) ForAllMembers(ctx context.Context, terms *engine.Terms, f func(i int) error) error {
	return l.forMembers(ctx, terms, f, func(*fanOut) bool { return false })
}

// ForEnoughMembers is like ForAllMembers, but also returns as soon as Need calls of f have
// succeeded. It is for questions that change nothing in the members.
func (l *Lock) ForEnoughMembers(ctx context.Context, terms *engine.Terms, f func(i int) error) error {
	return l.forMembers(ctx, terms, f, func(v *fanOut) bool { return v.yes >= l.Need })
}

// forMembers serves ForAllMembers and ForEnoughMembers. It calls isEnough after each answer.
func (l *Lock) forMembers(
	ctx context.Context, terms *engine.Terms, f func(i int) error, isEnough func(*fanOut) bool,
) error {
	ttl, _ := l.shortest(terms)
	v := newFanOut(l.Resource.Core, len(l.Members), func(i int) error { return l.named(i, f(i)) })
	v.collectUntil(ctx, l.budget(ttl), func() bool { return isEnough(v) })
	if ctx.Err() != nil {
		v.collectReasons(ctx)
	}
	v.countMissing(ctx)
	refused, err := v.decide(l.Need)
	switch {
	case refused && v.yes+v.lost+len(v.failed) >= l.Need:
		return errMembersLost
	case refused:
		return engine.ErrNotHeld
	}
	return err
}

// join is like [errors.Join], but its text has one line.
func join(errs []error) (joined error) {
	for _, err := range errs {
		switch {
		case joined == nil:
			joined = err
		case err != nil:
			joined = fmt.Errorf("%w; %w", joined, err)
		}
	}
	return joined
}

// attemptTime is the time that one joint attempt has. The attempt creates it, and calls cancel when
// it ends. One goroutine uses it.
//
// An attempt must return soon after its time is over, even if a member is silent. But it must not
// leave acquired members behind. So settle ends with the time, and the release of the acquired
// members goes on in the background.
type attemptTime struct {
	began   time.Time
	waitCtx context.Context //nolint:containedctx // done when the caller's ctx is, or when the wait is over
	cancel  context.CancelFunc
	until   time.Time // the end of the wait for rollbacks; zero while the attempt's time is not over
}

// newAttemptTime returns the time of an attempt for the acquisition with ctx and w. Without a
// limit, it needs no timer.
func newAttemptTime(ctx context.Context, w *engine.Wait) *attemptTime {
	waitCtx, cancel := w.Bound(ctx)
	return &attemptTime{began: time.Now(), waitCtx: waitCtx, cancel: cancel}
}

// acquire acquires the i-th member for o, unless the time is over. An answer that comes within the
// grace period counts, but no further member is asked then.
func (t *attemptTime) acquire(ctx context.Context, o *Holding, i int, q *engine.Request, w engine.Wait) error {
	if t.waitCtx.Err() != nil {
		return q.GaveUp(ctx)
	}
	return o.lock.named(i, o.acquireAndAdd(ctx, i, q, w))
}

// settle waits until all members have answered, for limit at most if limit is not 0. When the time
// is over, it waits for another rollbackWait at most, in all calls together. A member usually
// answers within that time. Then nothing is held when the acquisition returns. settle reports
// whether all members have answered.
func (t *attemptTime) settle(limit time.Duration, o *fanOut) bool {
	o.collect(t.waitCtx, limit)
	if o.open > 0 && t.waitCtx.Err() != nil {
		if t.until.IsZero() {
			t.until = time.Now().Add(rollbackWait)
		}
		o.collect(context.Background(), max(time.Until(t.until), 1))
	}
	return o.open == 0
}
