package primitives

import (
	"context"
	"errors"
	"time"

	"github.com/redlatch/redlatch/scripts"
)

const (
	// answerGrace is how much longer than its wait an acquisition waits for an answer that is on its way.
	answerGrace = 20 * time.Millisecond
	// rollbackGrace is how long a call whose time is over waits for its rollback.
	rollbackGrace = 15 * time.Millisecond
	// rollbackTimeout is the same for a call that still has time.
	rollbackTimeout = time.Second
)

// acquire is the way to every hold: under one that ctx carries, or by a request that is tried, and
// waits, until it is granted. It emits the one event of the acquisition.
func (h *handle) acquire(ctx context.Context, s *settings, limit time.Duration) (*Hold, error) {
	began := time.Now()
	w := waiting(began, limit)
	w.caller = ctx
	if err := h.mayAcquire(ctx); err != nil {
		h.notAcquired(ctx, &w, began, err)
		return nil, err
	}
	defer h.c.calls.Done()
	hold, kind, err := h.nestOrAcquire(ctx, s, &w)
	if err != nil {
		if ctx.Err() != nil && unanswered(err) && !errors.Is(err, ErrNotAcquired) {
			err = gaveUp(ctx, err)
		}
		h.c.emit(h.failure(ctx, &w, began, err))
		return nil, err
	}
	h.acquired(ctx, hold, kind, &w, began)
	return hold, nil
}

// mayAcquire registers a call that acquires; the caller ends it with c.calls.Done.
func (h *handle) mayAcquire(ctx context.Context) error {
	if ctx.Err() != nil {
		return gaveUp(ctx, nil)
	}
	if h.c.isClosing() {
		return ErrClosed
	}
	err := h.c.begin(ctx)
	if err != nil && ctx.Err() != nil {
		return gaveUp(ctx, err)
	}
	return err
}

func (h *handle) nestOrAcquire(ctx context.Context, s *settings, w *wait) (*Hold, EventKind, error) {
	if s.owner == "" && h.nestsIn(ctx) {
		defer h.c.presence.waited(w)
		hold, err := h.acquireNested(ctx, s, w)
		if hold != nil || err != nil {
			return hold, EventNested, err
		}
	}
	q := h.request(s)
	q.wait = *w
	defer h.c.presence.waited(&q.wait)
	hold, err := h.acquireOutermost(ctx, q, s, &q.wait, nil)
	w.waited = q.wait.waited
	return hold, EventAcquired, err
}

// wait is how long an acquisition may wait, and whether it has.
type wait struct {
	limit  time.Duration   // negative: none; 0: do not wait
	until  time.Time       // zero: no limit
	caller context.Context //nolint:containedctx // for events
	waited bool
	quiet  bool   // the observer does not hear of it
	note   func() // called instead of the observer, if not nil
}

func waiting(began time.Time, limit time.Duration) wait {
	w := wait{limit: limit}
	if limit >= 0 {
		w.until = began.Add(limit)
	}
	return w
}

// within is w, but for no longer than d from now.
func (w *wait) within(d time.Duration) *wait {
	shorter := *w
	if until := time.Now().Add(d); w.until.IsZero() || until.Before(w.until) {
		shorter.until, shorter.limit = until, d
	}
	return &shorter
}

// errWaitOver is the cause of a context that ended with the wait, not with the caller's context.
var errWaitOver = errors.New("the wait is over")

// context bounds ctx by the end of the wait. A single try (limit 0) is bounded by the command timeout alone.
func (w *wait) context(ctx context.Context) (context.Context, context.CancelFunc) {
	if w.limit <= 0 || w.until.IsZero() {
		return ctx, func() {}
	}
	return context.WithDeadlineCause(ctx, w.until.Add(answerGrace), errWaitOver)
}

// rest pauses for d, or until ctx or the wait is over.
func (w *wait) rest(ctx context.Context, d time.Duration) {
	if !w.until.IsZero() {
		d = min(d, time.Until(w.until))
	}
	timer := time.NewTimer(max(d, 0))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (w *wait) over() bool { return !w.until.IsZero() && !time.Now().Before(w.until) }

// timer fires when the wait is over; it is nil if the wait has no limit.
func (w *wait) timer() (<-chan time.Time, func() bool) {
	if w.until.IsZero() {
		return nil, func() bool { return true }
	}
	t := time.NewTimer(time.Until(w.until))
	return t.C, t.Stop
}

// waits notes, once, that the acquisition could not be granted at once.
func (h *handle) waits(w *wait, id string) {
	if w.waited {
		return
	}
	w.waited = true
	switch {
	case w.note != nil:
		w.note()
	case !w.quiet:
		h.c.presence.waits()
		h.c.emit(Event{Kind: EventWait, Lock: h.kind, Name: h.name, ID: id, Ctx: w.caller})
	}
}

// acquired emits the event of an acquisition that succeeded.
func (h *handle) acquired(ctx context.Context, hold *Hold, kind EventKind, w *wait, began time.Time) {
	if h.c.observe == nil {
		return
	}
	e := hold.g.event(kind, nil)
	e.Held, e.Ctx = 0, ctx
	if w.waited {
		e.Waited = time.Since(began)
	}
	h.c.emit(e)
}

// notAcquired emits the event of an acquisition that failed before it was registered as a call.
func (h *handle) notAcquired(ctx context.Context, w *wait, began time.Time, err error) {
	if h.c != nil {
		h.c.report(h.failure(ctx, w, began, err))
	}
}

// failure is the event of an acquisition that failed.
func (h *handle) failure(ctx context.Context, w *wait, began time.Time, err error) Event {
	e := Event{Kind: EventNotAcquired, Lock: h.kind, Name: h.name, Err: err, Ctx: ctx}
	if w.waited {
		e.Waited = time.Since(began)
	}
	return e
}

// request makes the request of an outermost acquisition: its id is its own, unless the caller manages
// identities.
func (h *handle) request(s *settings) *request {
	number := h.c.next()
	q := &request{claim: claim{number: number, ttl: s.firstTTL(), permits: s.permits}, once: s.nonReentrant, settings: s}
	if s.owner != "" {
		q.named(s.owner, true)
	} else {
		q.id = h.c.minted(number)
	}
	if p, ok := h.proto.(namer); ok {
		p.name(&q.claim)
	}
	return q
}

// namer is a protocol whose claims have other ids than an owner's.
type namer interface {
	name(c *claim)
}

// acquireOutermost brings q to an end: a hold, or nothing left of it anywhere.
func (h *handle) acquireOutermost(ctx context.Context, q *request, s *settings, w *wait, parent *grip) (*Hold, error) {
	began := time.Now()
	trying, stop := w.context(ctx)
	defer stop()
	v, err := h.obtain(trying, q, s, w)
	if err != nil {
		if trying.Err() != nil && !errors.Is(err, ErrNotAcquired) {
			err = gaveUp(trying, err)
		}
		h.rollback(trying, q, h.c.rollbackLimit(began))
		return nil, err
	}
	var held grant
	if q.parts != nil {
		held = q.parts
	} else {
		held = h.newTenure(q, v, 1)
	}
	hold, err := h.newHold(ctx, held, s, v.sent, parent)
	if err != nil {
		q.open = true
		h.rollback(ctx, q, rollbackTimeout)
	}
	return hold, err
}

// obtain tries, and waits its turn, until q is granted. ctx ends with the wait.
func (h *handle) obtain(ctx context.Context, q *request, s *settings, w *wait) (verdict, error) {
	q.queue = w.limit != 0
	if p, ok := h.proto.(queued); ok && q.queue {
		return p.stand(ctx, q, s, w)
	}
	refused := verdict{wait: -1}
	if w.limit == 0 || !h.c.rooms.hopeless(h, q, s) {
		v, err := h.try(ctx, q)
		switch {
		case notNow(err) && w.limit != 0:
			v = verdict{wait: notNowPause, met: err}
		case err != nil || v.granted:
			return v, err
		case w.limit == 0:
			return v, gaveUp(ctx, v.met)
		}
		refused = v
	}
	h.waits(w, q.id)
	return h.c.rooms.wait(ctx, h, q, s, w, refused)
}

// notNowPause is how soon a request is tried again that Redis refused for a reason that will pass.
const notNowPause = 100 * time.Millisecond

// notNow reports whether Redis refused for a reason that will pass, such as LOADING.
func notNow(err error) bool {
	failure, ok := errors.AsType[*scripts.Error](err)
	return ok && failure.NotNow
}

// queued is a protocol whose requests wait in a queue of Redis's, not in a local one.
type queued interface {
	stand(ctx context.Context, q *request, s *settings, w *wait) (verdict, error)
}

// try makes one attempt. What it grants is ours to keep: confirmed by replicas, in time, and wanted.
func (h *handle) try(ctx context.Context, q *request) (verdict, error) {
	v, err := h.proto.take(ctx, q)
	return h.tried(ctx, q, v, err)
}

// tried judges what an attempt came to. An attempt of unknown outcome stays in doubt whatever later
// ones are answered: a copy of it may still arrive.
func (h *handle) tried(ctx context.Context, q *request, v verdict, err error) (verdict, error) {
	if v.doubt || standing(err) {
		q.open, q.doubt = true, true
	}
	if err != nil || !v.granted {
		return v, err
	}
	return h.accept(ctx, q, v)
}

// accept returns v, or why what it grants is not ours to keep.
func (h *handle) accept(ctx context.Context, q *request, v verdict) (verdict, error) {
	var err error
	switch {
	case ctx.Err() != nil:
		err = gaveUp(ctx, nil)
	case time.Since(v.sent) >= q.ttl-h.c.marginOf(q.ttl):
		err = ErrLost // the answer took longer than the lease lasts
	default:
		return v, nil
	}
	q.open = true
	return verdict{}, err
}

// rollback makes sure that nothing stays of a request that was not granted, or not wanted any more.
// It does so in the background, where it is repeated until it succeeds. It waits up to limit for the
// first attempt, and only a moment once ctx has ended.
func (h *handle) rollback(ctx context.Context, q *request, limit time.Duration) {
	if !q.open {
		return
	}
	// A copy may still be executed for as long as it is remembered, and its lease begins then.
	until := time.Now().Add(q.ttl + h.c.run.MaxMemory())
	if q.ttl == maxDuration { // a plain semaphore's permit has no lease
		until = time.Now().Add(rememberedTaken)
	}
	h.c.inBackground(ctx, until, limit, func(ctx context.Context) error { return h.proto.undo(ctx, q) })
}

// do is what every Do does.
func (h *handle) do(ctx context.Context, acquire func() (*Hold, error), f func(context.Context) error) (err error) {
	hold, err := acquire()
	if err != nil {
		return err
	}
	defer func() {
		// The observer hears of a release that failed otherwise: the work is done, and must not look undone.
		if released := hold.Release(ctx); errors.Is(released, ErrLost) && !errors.Is(err, ErrLost) {
			err = errors.Join(err, released)
		}
	}()
	return f(hold.Context())
}
