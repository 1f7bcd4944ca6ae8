package engine

import (
	"context"
	"time"

	"github.com/redlatch/redlatch/internal/list"
)

// Waiting is one loop (waitIn) over one kind of waiter. What differs is the Queue: it decides in which order
// waiters go, and knows what wakes them. Whatever happens to the lock becomes a wake-up; the loop then asks
// the queue for the next step. So a wake-up without a reason costs little, and two wake-ups count as one.

// wait is how long an acquisition may wait, and whether it has waited.
type wait struct {
	limit  time.Duration   // negative: none; 0: do not wait
	until  time.Time       // zero: no limit
	caller context.Context //nolint:containedctx // for events
	waited bool
	silent bool   // a member's acquisition: emit no event
	notify func() // called instead of emitting an event, if not nil
}

func newWait(ctx context.Context, began time.Time, limit time.Duration) wait {
	w := wait{limit: limit, caller: ctx}
	if limit >= 0 {
		w.until = began.Add(limit)
	}
	return w
}

// within returns w, limited to d from now.
func (w wait) within(d time.Duration) wait {
	if until := time.Now().Add(d); w.until.IsZero() || until.Before(w.until) {
		w.until, w.limit = until, d
	}
	return w
}

// context bounds ctx by the end of the wait. A single try (limit 0) is bounded by the command timeout alone.
func (w *wait) context(ctx context.Context) (context.Context, context.CancelFunc) {
	if w.limit <= 0 || w.until.IsZero() {
		return ctx, func() {}
	}
	return context.WithDeadlineCause(ctx, w.until.Add(answerGrace), errWaitOver)
}

func (w *wait) over() bool { return !w.until.IsZero() && !time.Now().Before(w.until) }

// begin notes, once, that the acquisition has to wait, and tells the observer. id is the hold's or the
// holder's id.
func (w *wait) begin(r *Resource, id string) {
	if w.waited {
		return
	}
	w.waited = true
	switch {
	case w.notify != nil:
		w.notify()
	case !w.silent:
		r.Core.WaitBegan()
		r.Core.emit(Event{Kind: EventWait, Resource: r, ID: id, Ctx: w.caller})
	}
}

// Queue is where requests for one resource wait: the local wait queue of a name, this client's part of
// a fair lock's queue, or the turns under one hold. Its methods are called from the waiters' goroutines.
type Queue interface {
	// Join adds a waiter at the end. refused is the reply to its first attempt.
	Join(w *Waiter, refused Result)
	// NextStep returns what w should do now. If it should wait, something wakes it up later.
	NextStep(w *Waiter) Step
	// Try makes an attempt for w.
	Try(ctx context.Context, w *Waiter) (Result, error)
	// Tried is told of each attempt that was not granted. passOn: w could not use its reason to try, so
	// the next waiter has the same reason.
	Tried(w *Waiter, res Result, err error, passOn bool)
	// Confirmed is called when the channel in the Step was closed.
	Confirmed(w *Waiter)
	// Leave removes a waiter. granted tells whether it has what it waited for.
	Leave(w *Waiter, res Result)
}

// Step is what a waiter should do next: the first of these that is set, or wait.
type Step struct {
	Granted   *Result         // nothing: another has acquired for it
	Err       error           // give up
	Try       bool            // try now
	Confirmed <-chan struct{} // while it waits, also wait for this
}

// Waiter is one request that waits. It serves every kind of queue.
type Waiter struct {
	Request  *Request
	resource *Resource
	wakeup   Signal

	// The queue that it stands in owns these.
	list.Links[Waiter]
	wantsTry   bool    // there is a reason to try
	trying     bool    // an attempt is under way
	offered    bool    // another is acquiring for it, or was and does not know the outcome
	inDoubt    bool    // another's attempt to acquire for it has an unknown outcome
	granted    *Result // what another has acquired for it
	unanswered bool    // an attempt of its own has an unknown outcome: it may hold the lock without knowing
}

// Wake makes the waiter ask its queue for the next step.
func (w *Waiter) Wake() { w.wakeup.Send() }

// waitIn has q wait in a queue. It is the only waiting loop: fair locks, joint locks and nested
// acquisitions wait in it too. refused is the reply to the first attempt.
func (r *Resource) waitIn(ctx context.Context, queue Queue, q *Request, refused Result) (res Result, err error) {
	c := r.Core
	w := &Waiter{Request: q, resource: r, wakeup: NewSignal()}
	queue.Join(w, refused)
	defer func() { queue.Leave(w, res) }()
	var over <-chan time.Time
	if !q.wait.until.IsZero() {
		timer := time.NewTimer(time.Until(q.wait.until))
		defer timer.Stop()
		over = timer.C
	}
	met := refused.Met
	for {
		// Before NextStep: a waiter that leaves passes its reason to try on.
		switch {
		case ctx.Err() != nil, q.wait.over():
			return Result{}, GaveUp(ctx, met)
		case c.IsClosing():
			return Result{}, ErrClosed
		}
		step := queue.NextStep(w)
		switch {
		case step.Granted != nil:
			return r.tried(ctx, q, *step.Granted, nil)
		case step.Err != nil:
			return Result{}, step.Err
		case !step.Try:
			select {
			case <-w.wakeup:
			case <-step.Confirmed:
				queue.Confirmed(w)
			case <-over:
			case <-ctx.Done():
			case <-c.closing:
			}
			continue
		}

		res, err = queue.Try(ctx, w)
		if err == nil && res.Granted {
			return res, nil
		}
		failure := c.failure(err)
		switch {
		case err == nil:
			met = res.Met
			queue.Tried(w, res, nil, false)
		case failure.NotNow:
			met = err
			queue.Tried(w, Result{RetryAfter: notNowPause}, err, false)
		case failure.Retry:
			met = err
			// If w gives up now, the attempt may come to nothing: the next waiter has the same reason to try.
			queue.Tried(w, Result{RetryAfter: -1}, err, ctx.Err() != nil || q.wait.over())
		default:
			queue.Tried(w, Result{RetryAfter: -1}, err, true)
			return res, err
		}
	}
}
