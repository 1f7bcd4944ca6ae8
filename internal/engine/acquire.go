package engine

import (
	"cmp"
	"context"
	"errors"
	"math"
	"time"

	"github.com/redlatch/redlatch/internal/failure"
)

// The path of an acquisition:
//
//	Acquire                registers the call, emits its event
//	  AcquireNested        under a hold that ctx carries (nest.go)
//	  Turns.Acquire        instead of the next one, if the client's users take turns (tenure.go)
//	  AcquireOutermost     makes the hold, or rolls the request back (rollback.go)
//	    obtain             first attempt (tryWithinTimeout), then waitIn (wait.go)
//	      Try, tried       one attempt, and whether its reply may be used
//	      Judge            what follows from the reply (verdict.go)
//
// The reply to an attempt may be lost or late, and a refused attempt may leave something on the
// server. Two flags of the request keep that in mind:
//
//   - MustRollback: there may be something to undo. If the acquisition fails, it rolls the request
//     back.
//   - InDoubt: the request may hold the lock, or a copy of an attempt may still acquire it, long
//     after its reply. The request must be rolled back too. While it waits, only its own attempts
//     can find out. The server remembers its rollback or its release longer, so that the copy takes
//     nothing.
//
// The reservation of a waiting writer must be undone, but causes no doubt.

// answerGrace is how much longer than its wait an acquisition waits for a reply. An attempt that
// began just before the end is then usually answered, and needs no rollback.
const answerGrace = 20 * time.Millisecond

// Acquire acquires r, under a hold that ctx carries or as an outermost request. It blocks until it
// has the lock, the limit is over, ctx ends or the client closes. limit may be NoWait or Forever.
// On failure nothing is held, and a rollback removes what the request may have taken. Acquire emits
// one event. Package primitives calls it for all kinds.
func (r *Resource) Acquire(ctx context.Context, terms *Terms, limit time.Duration) (hold *Hold, err error) {
	c := r.Core
	began := time.Now()
	err = r.admit(ctx, began, limit == NoWait)
	if err != nil {
		r.ReportNotAcquired(ctx, err)
		return nil, err
	}
	defer c.Leave()

	takesTurns := r.takesTurns(terms)
	var q *Request
	if takesTurns {
		q = newTurnRequest(terms)
	} else {
		q = r.NewRequest(terms)
	}
	q.Wait = Wait{limit: limit, caller: ctx}
	if limit != Forever {
		q.Wait.until = began.Add(limit)
	}
	defer q.Wait.end()
	kind := EventNested
	// If the caller names an id, the holds in ctx are ignored: only the server decides about that
	// id.
	if r.Traits.Nests && terms.Owner == "" {
		hold, err = r.AcquireNested(ctx, q)
	}
	if hold == nil && err == nil {
		kind = EventAcquired
		if takesTurns {
			hold, err = c.turns.Acquire(ctx, r, q)
		} else {
			hold, err = r.AcquireOutermost(ctx, q, began)
		}
	}
	r.complete(err, began, limit == NoWait)

	if c.Observe != nil {
		r.EmitResult(ctx, kind, hold, q.Wait.since(began), err)
	}
	return hold, err
}

// admit registers a call, which then must call Core.Leave. It fails, and registers nothing, if the
// time of the call is over, if the client is closing, or if the client cannot be prepared.
func (r *Resource) admit(ctx context.Context, began time.Time, isTry bool) error {
	if ctx.Err() != nil {
		return GaveUp(ctx, nil)
	}
	if r.Core.IsClosing() {
		return ErrClosed
	}
	err := r.Core.EnterReady(ctx)
	if err == nil {
		return nil
	}
	err = new(Request).explain(ctx, r.Core, err)
	r.complete(err, began, isTry)
	return err
}

// Guarded calls f, which may call a hook of go-redis, or an observer. If one of these panics,
// Guarded calls undo before the panic goes on: the outcome of the command that was under way is
// unknown then.
func Guarded(undo, f func()) {
	returned := false
	defer func() {
		if !returned {
			undo()
		}
	}()
	f()
	returned = true
}

// EmitResult emits the event of an acquisition: kind, or EventNotAcquired if err is not nil. The
// caller is a call that Close waits for, and holds no mutex.
func (r *Resource) EmitResult(ctx context.Context, kind EventKind, hold *Hold, waited time.Duration, err error) {
	e := Event{Kind: kind, Resource: r, ID: hold.ID(), Waited: waited, Err: err, Ctx: ctx}
	if err != nil {
		e.Kind = EventNotAcquired
	}
	if hold == nil || r.Core.Observe == nil {
		r.Core.emit(e)
		return
	}
	r.Core.holds.delivering(hold)
	defer r.Core.holds.delivered(hold)
	nobodyGetsIt := func() { _ = hold.Release(ctx) }
	Guarded(nobodyGetsIt, func() { r.Core.emit(e) })
}

// ReportNotAcquired emits the event of an acquisition that failed before it was registered as a
// call.
func (r *Resource) ReportNotAcquired(ctx context.Context, err error) {
	if r.Core != nil && r.Core.Observe != nil {
		r.Core.Report(Event{Kind: EventNotAcquired, Resource: r, Err: err, Ctx: ctx})
	}
}

// NewRequest returns a request with an owner of its own, or with the owner that terms name. The
// result serves one acquisition: a second one with the same number would pass for a copy of the
// first.
func (r *Resource) NewRequest(terms *Terms) *Request {
	q := new(Request)
	r.initRequest(q, terms)
	return q
}

// initRequest initializes q, which is new, as the request that NewRequest returns.
func (r *Resource) initRequest(q *Request, terms *Terms) {
	q.Owner = r.Core.Owners.New()
	q.Terms = terms
	q.NonReentrant = terms.NonReentrant
	q.TTL = terms.WireTTL()
	q.Permits = int32(min(terms.Permits, math.MaxInt32)) // semaphores refuse more
	if terms.Owner != "" {
		q.SetID(terms.Owner, true)
	}
	if r.Traits.NameOwner != nil {
		r.Traits.NameOwner(&q.Owner)
	}
}

// AcquireOutermost acquires for q without nesting under a hold in ctx. It returns a hold, or makes
// sure that nothing is left of q. Two things may stay: the reservation of a member (q.Reserved),
// and the place of a tenure's request in its queue (errQueued). began is when the call began:
// see RollbackLimit.
//
// Acquire and AcquireTenure call it, and so do joint locks for their members and nested
// acquisitions that the server counts. It blocks as long as q may wait, and then for the first
// attempt of a rollback.
func (r *Resource) AcquireOutermost(ctx context.Context, q *Request, began time.Time) (*Hold, error) {
	for {
		hold, err := r.acquireOnce(ctx, q, began)
		mustRepeat := errors.Is(err, ErrObserverSlow) && q.Group == nil
		if !mustRepeat {
			return hold, err
		}
		q = q.anew(r)
	}
}

// acquireOnce is AcquireOutermost, but fails with ErrObserverSlow if q has left its queue because
// the observer is slow.
func (r *Resource) acquireOnce(ctx context.Context, q *Request, began time.Time) (hold *Hold, err error) {
	c := r.Core
	settleAsks := c.queues.expectAsks(r, q)
	defer func() {
		leaveMembers(q.members)
		q.members = nil
		settleAsks(hold)
	}()
	attemptCtx, stop := q.AttemptContext(ctx, r)
	defer stop()
	undo := func() {
		q.MustRollback = true
		r.rollback(attemptCtx, q, 0)
	}
	var res Result
	Guarded(undo, func() { res, err = r.obtain(attemptCtx, q) })
	wasRolledBack := errors.Is(err, ErrObserverSlow) && q.Group == nil
	if errors.Is(err, errQueued) || wasRolledBack {
		return nil, err
	}
	if err != nil {
		return nil, r.giveUp(attemptCtx, q, began, err)
	}
	hold, err = r.NewHold(ctx, q, res) // with the caller's context: the end of the wait does not end the hold
	if err != nil {
		// The client began to close while the request was granted. Close does not know this hold,
		// so nobody but this call would free the lock.
		q.MustRollback = true
		r.rollback(attemptCtx, q, c.RollbackLimit(time.Now()))
	}
	return hold, err
}

// giveUp explains err, with which the acquisition of q has failed, and rolls q back, unless its
// reservation stays. attemptCtx was the context of the attempts.
func (r *Resource) giveUp(attemptCtx context.Context, q *Request, began time.Time, err error) error {
	err = q.explain(attemptCtx, r.Core, err)
	q.Reserved = q.keepsReservation(attemptCtx, err)
	if q.Reserved {
		return err
	}
	limit := r.Core.RollbackLimit(began)
	isMember := q.Group != nil && !q.isTenure
	if isMember && attemptCtx.Err() != nil {
		limit = min(limit, rollbackGrace/2) // the joint lock waits for the reason, but not for long
	}
	r.rollback(attemptCtx, q, limit)
	return err
}

// AttemptContext returns a context for the attempts of q. It ends when the wait of q is over, if
// that has a limit. A member of a joint lock keeps the context of the joint lock's attempt, which
// knows whether the joint lock waits.
func (q *Request) AttemptContext(ctx context.Context, r *Resource) (context.Context, context.CancelFunc) {
	if q.Wait.IsSingleTry() && q.Group == nil {
		ctx = r.Core.Commands.Try(ctx)
	}
	return q.Wait.boundWithGrace(ctx)
}

// Await blocks until the driver grants a request that acquires nothing, such as one that waits for
// an open latch. There is no hold, and nothing to roll back. The caller is a call that Close waits
// for.
func (r *Resource) Await(ctx context.Context, terms *Terms) error {
	began := time.Now()
	q := &Request{Owner: Owner{Permits: 1, TTL: terms.TTL}, Terms: terms, Wait: Wait{limit: Forever, caller: ctx}}
	defer q.Wait.end()
	_, err := r.obtain(ctx, q)
	for errors.Is(err, ErrObserverSlow) {
		q = q.anew(r)
		_, err = r.obtain(ctx, q)
	}
	err = q.explain(ctx, r.Core, err)
	if g, ok := err.(*gaveUpError); ok { //nolint:errorlint // as gaveUp returns it
		// No holder has refused q, so besides ctx's cause only a silence is worth mentioning.
		g.refused = false
		if g.failed == nil {
			err = context.Cause(ctx)
		}
	}
	r.complete(err, began, false)
	if q.Wait.waited {
		r.Core.emit(Event{Kind: EventWaited, Resource: r, Waited: q.Wait.since(began), Err: err, Ctx: ctx})
	}
	return err
}

// obtain makes the first attempt, and waits in a queue if it was refused. ctx ends with the wait.
// The caller rolls q back if obtain fails.
func (r *Resource) obtain(ctx context.Context, q *Request) (Result, error) {
	if q.waiter != nil {
		return r.waitOn(ctx, q.waiter)
	}
	if !q.UnderSameID {
		r.Core.giveUpLingering(ctx, r.Name)
	}
	q.MayQueue = q.Wait.limit != NoWait && !q.UnderSameID // a nested request may enter at once, or never
	queue, err := r.ownQueue(ctx, q)
	if err != nil {
		return Result{}, err
	}
	// If a local waiter needs no more than q does, q joins the queue without an attempt. The
	// attempt would be refused and cost a command, or q would overtake the waiter.
	isBehindOthers := q.MayQueue && queue == nil && r.Core.queues.mustWait(r, q)
	if isBehindOthers {
		return r.waitIn(ctx, nil, q, Result{RetryAfter: -1})
	}
	res, err := r.tryWithinTimeout(ctx, q)
	verdict := Judge(res, err)
	_, waitEnds := ctx.Deadline()
	switch {
	case verdict == Acquired:
		return res, nil
	case verdict == Refused && q.MayQueue:
		return r.waitIn(ctx, queue, q, res)
	case verdict == Refused:
		return Result{}, q.gaveUp(ctx, nil)
	case verdict == RefusedForNow && q.MayQueue && waitEnds: // an endless wait could last as long as Redis refuses
		return r.waitIn(ctx, queue, q, Result{RetryAfter: verdict.retryAfter(res), Why: err})
	}
	return Result{}, err
}

// ownQueue returns the queue that the kind has for q. It is nil if q does not wait, or waits in the
// local queue of its name.
func (r *Resource) ownQueue(ctx context.Context, q *Request) (Queue, error) {
	if !q.MayQueue || r.Traits.NewQueue == nil {
		return nil, nil
	}
	return r.Traits.NewQueue(ctx, q)
}

// Try makes one attempt. If it is granted, the caller may keep the result: the lease is still
// valid, and ctx has not ended. It blocks until the reply, or until ctx ends. Queues call it with
// no mutex held.
func (r *Resource) Try(ctx context.Context, q *Request) (Result, error) {
	q.attemptBegins()
	res, err := r.Driver.TryAcquire(ctx, q)
	return r.tried(ctx, q, res, err)
}

// tried decides what the reply to an attempt means for q: a result that the caller may keep, a
// refusal, or an error.
//
//   - No reply, or a reply that an earlier copy is still under way: q is in doubt from now on,
//     whatever the answers to later attempts. A later refusal does not clear it: the copy may be
//     executed after it.
//   - A command that was denied halfway, for lack of permissions: it may have left a lock without a
//     TTL. It is rolled back.
//   - A grant that comes after the caller's context has ended: nobody would use the hold. It is
//     rolled back.
//   - A grant whose lease is over, counted from when the attempt was sent: the server may have
//     given the lock to another client since. It is rolled back, and the error is ErrLost.
//
// The error of a member of a redlock does not mention a doubt: the redlock is not acquired, and
// the member's request is rolled back.
func (r *Resource) tried(ctx context.Context, q *Request, res Result, err error) (Result, error) {
	f := failure.Of(err)
	if res.InDoubt || f.InDoubt() {
		q.MustRollback = true
		q.InDoubt = true
	}
	if q.OfMajority {
		err = failure.WithoutDoubt(err)
	}
	q.learn(ctx, res, err)
	q.MustRollback = q.MustRollback || f.Denied
	lease := min(q.TTL, q.Terms.FirstTTL())
	switch {
	case err == nil && !res.Granted:
		of := cmp.Or(res.BusyMember, r)
		of.askFor(q, res.Holder, of != r)
		return res, nil
	case err != nil:
		return res, err
	case ctx.Err() != nil:
		err = GaveUp(ctx, nil)
	case r.leaseExpired(res, lease):
		err = ErrLost // the reply took longer than the lease lasts
	default:
		return res, nil
	}
	q.MustRollback = true
	return Result{}, err
}

// leaseExpired reports whether a grant is no longer valid, because the reply took longer than the
// lease lasts.
func (r *Resource) leaseExpired(res Result, lease time.Duration) bool {
	now := time.Now()
	isExpired := r.Traits.Leased && !r.Core.trustedUntil(res.Sent, lease).After(now)
	membersExpired := res.Holding != nil && !res.Holding.ValidUntil(nil).After(now) // their leases began before
	return isExpired || membersExpired
}

// tryWithinTimeout is Try for the first attempt of q. If the wait of q has an end, and members of a
// joint lock only miss their budgets, it makes further attempts, until a command would have timed
// out.
func (r *Resource) tryWithinTimeout(ctx context.Context, q *Request) (Result, error) {
	began := time.Now()
	_, ends := ctx.Deadline()
	for {
		res, err := r.Try(ctx, q)
		_, missed := errors.AsType[*missedBudget](err)
		mayRepeat := missed && ends && q.MayQueue && time.Since(began)+notNowPause < r.Core.CommandTimeout
		if !mayRepeat {
			return res, err
		}
		Pause(ctx, notNowPause, r.Core.Closing())
		if ctx.Err() != nil || r.Core.IsClosing() {
			return res, err
		}
	}
}

// missedBudget is the error of an attempt for a joint lock: see MissedBudget.
type missedBudget struct{ error }

func (e *missedBudget) Unwrap() error { return e.error }

// MissedBudget marks err as the error of an attempt for a joint lock that failed only because
// members did not answer within their budget. They may be slow rather than silent, so an
// acquisition that waits makes another attempt.
func MissedBudget(err error) error { return &missedBudget{err} }
