package engine

import (
	"context"
	"errors"
	"slices"
	"time"
)

// Joint locks ask several members at the same time, and often decide before all have answered. The calls that
// have not returned by then go on in goroutines that Close waits for.

// rollbackWait is how long a joint acquisition whose time is over still waits for members to take back
// what the attempt acquired. It leaves the rest to the background.
const rollbackWait = 20 * time.Millisecond

// fanOut asks several members at the same time.
type fanOut struct {
	answers chan error
	open    int   // answers that nobody has received yet
	failed  error // the last answer that was an error
}

// fanOut runs f for all i < n in goroutines that Close waits for. The caller is a call that Close waits
// for.
func (c *Core) fanOut(n int, f func(i int) error) *fanOut {
	o := &fanOut{answers: make(chan error, n), open: n}
	for i := range n {
		c.Spawn(func() { o.answers <- f(i) })
	}
	return o
}

// next receives an answer. ok is false if done is closed or late fires before there is one.
func (o *fanOut) next(done <-chan struct{}, late <-chan time.Time) (ok bool, answer error) {
	select {
	case answer = <-o.answers: // counts even if the time is over
	default:
		select {
		case answer = <-o.answers:
		case <-done:
			return false, nil
		case <-late:
			return false, nil
		}
	}
	o.open--
	if answer != nil {
		o.failed = answer
	}
	return true, answer
}

// gaveUp is the error of an acquisition that ended before all answers came, or at the same time.
func (o *fanOut) gaveUp(ctx context.Context) error {
	met := o.failed
	if errors.Is(met, ErrNotAcquired) && (ctx.Err() == nil || errors.Is(met, context.Cause(ctx))) {
		return met
	}
	return GaveUp(ctx, met)
}

// votes counts answers.
type votes struct {
	yes    int
	no     int     // refused: another holds it, or it is not held
	failed []error // neither
}

// add counts an answer. An error that is only the end of ctx is no refusal, even if the cause of that
// end looks like one: ctx may be the context of another hold, which was lost.
func (v *votes) add(ctx context.Context, answer error) {
	switch {
	case answer == nil:
		v.yes++
	case ctx.Err() != nil && errors.Is(answer, context.Cause(ctx)):
		v.failed = append(v.failed, answer)
	case errors.Is(answer, ErrNotAcquired), errors.Is(answer, ErrNotHeld), errors.Is(answer, ErrLost):
		v.no++
	default:
		v.failed = append(v.failed, answer)
	}
}

// count counts the answers that come until ctx is done, and within limit if that is not 0. The others
// count as failed.
func (c *Core) count(ctx context.Context, o *fanOut, limit time.Duration) (v votes) {
	o.collect(ctx, limit, &v)
	c.countMissing(ctx, o, &v)
	return v
}

// collect counts the answers that come until ctx is done, and within limit if that is not 0.
func (o *fanOut) collect(ctx context.Context, limit time.Duration, v *votes) {
	var late <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		late = timer.C
	}
	for o.open > 0 {
		ok, answer := o.next(ctx.Done(), late)
		if !ok {
			return
		}
		v.add(ctx, answer)
	}
}

// countMissing counts the answers that have not come as failed.
func (c *Core) countMissing(ctx context.Context, o *fanOut, v *votes) {
	if o.open == 0 {
		return
	}
	missing := errBudget
	if ctx.Err() != nil {
		missing = context.Cause(ctx)
	}
	v.failed = append(v.failed, slices.Repeat([]error{c.Unanswered(missing)}, o.open)...)
}

// AskAll runs f for all i < n at the same time. It waits until all have returned, until ctx is done, or
// for limit if that is not 0. Calls of f that have not returned by then go on in the background. At
// least need of them must succeed: AskAll fails with ErrNotHeld if so many answered with it, with
// ErrLost or with ErrNotAcquired that too few are left, and else with the errors of the others. The
// caller is a call that Close waits for.
func (c *Core) AskAll(ctx context.Context, n, need int, limit time.Duration, f func(i int) error) error {
	v := c.count(ctx, c.fanOut(n, f), limit)
	switch {
	case v.yes >= need:
		return nil
	case v.yes+len(v.failed) < need:
		return ErrNotHeld
	}
	return errors.Join(v.failed...)
}

// attemptTime is the time that one joint attempt has. One goroutine uses it.
type attemptTime struct {
	c      *Core
	ending context.Context //nolint:containedctx // done when the caller's ctx is, or when the wait is over
	cancel context.CancelFunc
	until  time.Time // when to wait no longer for rollbacks; zero: the attempt's time is not over
}

func (c *Core) newAttemptTime(ctx context.Context, w *wait) *attemptTime {
	if w.limit <= 0 || w.until.IsZero() {
		return &attemptTime{c: c, ending: ctx, cancel: func() {}}
	}
	ending, cancel := context.WithDeadlineCause(ctx, w.until, errWaitOver)
	return &attemptTime{c: c, ending: ending, cancel: cancel}
}

// call calls f, but does not wait for it when the time is over: then it returns what f will answer.
func (t *attemptTime) call(f func() error) (pending *fanOut, err error) {
	if t.ending.Done() == nil {
		return nil, f()
	}
	o := t.c.fanOut(1, func(int) error { return f() })
	if ok, answer := o.next(t.ending.Done(), nil); ok {
		return nil, answer
	}
	return o, nil
}

// settle waits until all have answered, or for limit if that is not 0. It returns rollbackWait after the
// time is over in any case.
func (t *attemptTime) settle(limit time.Duration, pending ...*fanOut) {
	var late <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		late = timer.C
	}
	ended := t.ending.Done()
	for _, o := range pending {
		for o.open > 0 {
			ok, _ := o.next(ended, late)
			switch {
			case ok:
			case ended != nil && t.ending.Err() != nil:
				if t.until.IsZero() {
					t.until = time.Now().Add(rollbackWait)
				}
				timer := time.NewTimer(time.Until(t.until))
				defer timer.Stop()
				ended, late = nil, timer.C
			default:
				return
			}
		}
	}
}
