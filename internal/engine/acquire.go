package engine

import (
	"context"
	"errors"
	"time"
)

const (
	// answerGrace is how much longer than its wait an acquisition waits for a reply that is on its way.
	answerGrace = 20 * time.Millisecond
	// notNowPause is how soon a request is tried again that the server refused for the moment.
	notNowPause = 100 * time.Millisecond
)

// Acquire acquires r: under a hold that ctx carries, or by a request that is tried, and waits, until
// it is granted, the limit is over, ctx ends or the client closes. A negative limit is none; 0 tries
// once. On failure nothing is held, and a rollback removes what the request may have left. Acquire
// emits one event.
func (r *Resource) Acquire(ctx context.Context, terms *Terms, limit time.Duration) (*Hold, error) {
	c, began := r.Core, time.Now()
	err := context.Cause(ctx)
	switch {
	case err != nil:
		err = GaveUp(ctx, nil)
	case c.IsClosing():
		err = ErrClosed
	default:
		if err = c.Begin(ctx); err != nil && ctx.Err() != nil {
			err = GaveUp(ctx, err)
		}
	}
	if err != nil {
		r.ReportNotAcquired(ctx, err)
		return nil, err
	}
	defer c.Leave()

	q := r.NewRequest(terms)
	q.wait = newWait(ctx, began, limit)
	var hold *Hold
	kind := EventNested
	// Only the server judges an owner that the caller names, so the holds in ctx do not matter then.
	if r.Traits.Outer != nil && terms.Owner == "" {
		hold, err = r.acquireNested(ctx, q)
	}
	if hold == nil && err == nil {
		kind = EventAcquired
		hold, err = r.acquireOutermost(ctx, q, nil)
	}

	waited := time.Duration(0)
	if q.wait.waited {
		c.WaitEnded()
		waited = time.Since(began)
	}
	if err != nil {
		if ctx.Err() != nil && !errors.Is(err, ErrNotAcquired) && c.failure(err).Retry {
			err = GaveUp(ctx, err)
		}
	}
	r.emitResult(ctx, kind, hold, waited, err)
	return hold, err
}

// emitResult emits the event of an acquisition: of the given kind, or not acquired.
func (r *Resource) emitResult(ctx context.Context, kind EventKind, hold *Hold, waited time.Duration, err error) {
	if r.Core.Observe == nil {
		return
	}
	e := Event{Kind: kind, Resource: r, ID: hold.ID(), Waited: waited, Err: err, Ctx: ctx}
	if err != nil {
		e.Kind = EventNotAcquired
	}
	r.Core.emit(e)
}

// EmitAcquired emits the event of an acquisition that did not go through Acquire.
func (r *Resource) EmitAcquired(ctx context.Context, hold *Hold, err error) {
	r.emitResult(ctx, EventAcquired, hold, 0, err)
}

// ReportNotAcquired emits the event of an acquisition that failed before it was registered as a call.
func (r *Resource) ReportNotAcquired(ctx context.Context, err error) {
	if r.Core != nil && r.Core.Observe != nil {
		r.Core.Report(Event{Kind: EventNotAcquired, Resource: r, Err: err, Ctx: ctx})
	}
}

// NewRequest returns a request with an owner of its own, or with the owner that terms name.
func (r *Resource) NewRequest(terms *Terms) *Request {
	q := &Request{Owner: r.Core.NewOwner(), Terms: terms, NonReentrant: terms.NonReentrant}
	q.TTL, q.Permits = terms.FirstTTL(), terms.Permits
	if terms.Owner != "" {
		q.Name(terms.Owner, true)
	}
	if r.Traits.NameOwner != nil {
		r.Traits.NameOwner(&q.Owner)
	}
	if r.Traits.Fenced && q.inCohort() {
		q.Tokens = cohortTokens
	}
	return q
}

// acquireOutermost acquires for q: it returns a hold, or sees to it that nothing is left of q. parent
// is the hold whose turn a nested acquisition has taken, if it has.
func (r *Resource) acquireOutermost(ctx context.Context, q *Request, parent *Hold) (*Hold, error) {
	c, began := r.Core, time.Now()
	trying, stop := q.wait.context(ctx)
	defer stop()
	res, err := r.obtain(trying, q)
	if err != nil {
		if trying.Err() != nil && !errors.Is(err, ErrNotAcquired) {
			err = GaveUp(trying, err)
		}
		if q.passed != nil {
			q.passed.giveBack(began)
		}
		r.rollback(trying, q, c.rollbackLimit(began))
		return nil, err
	}
	if q.passed != nil {
		return q.passed, nil
	}
	held := res.holding
	if held == nil {
		held = r.newOwnership(q, res)
	}
	// With the caller's context: the end of the wait does not end the hold.
	hold, err := r.newHold(ctx, held, q, res.Sent, parent)
	if err != nil { // the client began to close while the request was granted
		q.MustRollback = true
		r.rollback(ctx, q, rollbackTimeout)
	}
	return hold, err
}

// Await waits until the driver grants a request that takes nothing, such as one for an open latch. The
// caller is a call that Close waits for.
func (r *Resource) Await(ctx context.Context, terms *Terms) error {
	q := &Request{Owner: Owner{Permits: 1, TTL: terms.TTL}, Terms: terms}
	q.wait = newWait(ctx, time.Now(), -1)
	_, err := r.obtain(ctx, q)
	if q.wait.waited {
		r.Core.WaitEnded()
	}
	return err
}

// obtain tries, and waits, until q is granted. ctx ends with the wait.
func (r *Resource) obtain(ctx context.Context, q *Request) (Result, error) {
	c := r.Core
	q.MayQueue = q.wait.limit != 0
	var queue Queue
	if q.MayQueue && r.Traits.NewQueue != nil {
		var err error
		if queue, err = r.Traits.NewQueue(ctx, q); err != nil {
			return Result{}, err
		}
	}
	// Where local waiters go first, the request joins them without an attempt.
	refused := Result{RetryAfter: -1}
	if queue != nil || !q.MayQueue || !c.queues.mustWait(r, q) {
		res, err := r.Try(ctx, q)
		switch {
		case err == nil && res.Granted:
			return res, nil
		case q.MayQueue && c.failure(err).NotNow:
			refused = Result{RetryAfter: notNowPause, Met: err}
		case err != nil:
			return Result{}, err
		case !q.MayQueue:
			return Result{}, GaveUp(ctx, res.Met)
		default:
			refused = res
		}
	}
	q.wait.begin(r, q.ID)
	if queue == nil {
		queue = c.queues.of(r, q.Terms)
	}
	return r.waitIn(ctx, queue, q, refused)
}

// Try makes one attempt. What it grants may be kept: the lease lasts, and the caller still wants it.
func (r *Resource) Try(ctx context.Context, q *Request) (Result, error) {
	res, err := r.Driver.TryAcquire(ctx, q)
	return r.tried(ctx, q, res, err)
}

// tried decides what the reply to an attempt means for q: a result that the caller may keep, a refusal, or
// an error. After an attempt of unknown outcome q stays in doubt, whatever later attempts are answered,
// because a copy of it may still arrive.
func (r *Resource) tried(ctx context.Context, q *Request, res Result, err error) (Result, error) {
	if res.InDoubt || (err != nil && r.Core.Classify(err).InDoubt) {
		q.MustRollback, q.InDoubt = true, true
	}
	switch {
	case err != nil || !res.Granted:
		return res, err
	case ctx.Err() != nil:
		err = GaveUp(ctx, nil)
	case time.Since(res.Sent) >= q.TTL-r.Core.MarginOf(q.TTL):
		err = ErrLost // the reply took longer than the lease lasts
	default:
		return res, nil
	}
	if q.passed == nil { // else its hold is given back
		q.MustRollback = true
	}
	return Result{}, err
}

// rollback makes sure that nothing stays of a request that was not granted, or is not wanted any more.
// It works in the background, where it is repeated until it succeeds. It waits up to limit for the
// first attempt, and only for rollbackGrace once ctx has ended.
func (r *Resource) rollback(ctx context.Context, q *Request, limit time.Duration) {
	if !q.MustRollback {
		return
	}
	// A copy of an attempt may be executed until LateCopies have passed, and its lease begins then.
	repeat := q.TTL + r.Core.LateCopies
	if !r.Traits.Leased {
		repeat = r.Traits.Remembered
	}
	r.Core.inBackground(ctx, time.Now().Add(repeat), limit, func(ctx context.Context) error {
		return r.Driver.Rollback(ctx, q)
	})
}
