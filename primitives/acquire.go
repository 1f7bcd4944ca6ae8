package primitives

import (
	"context"
	"errors"
	"time"

	"github.com/redlatch/redlatch/scripts"
)

// acquire is the way to every hold: under one that ctx carries, or by a request that is tried, and waits, until it is granted.
func (h *handle) acquire(ctx context.Context, s *settings, limit time.Duration) (*Hold, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, gaveUp(ctx, nil)
	}
	if h.c.isClosing() {
		return nil, ErrClosed
	}
	if err := h.c.begin(ctx); err != nil {
		return nil, err
	}
	defer h.c.calls.Done()
	began := time.Now()
	if s.owner == "" && h.nestsIn(ctx) {
		w := waiting(began, limit)
		defer h.c.presence.waited(&w)
		hold, err := h.acquireNested(ctx, s, &w)
		if hold != nil || err != nil {
			h.told(hold, EventNested, &w, began)
			return hold, err
		}
	}
	q := h.request(s)
	q.wait = waiting(began, limit)
	defer h.c.presence.waited(&q.wait)
	hold, err := h.acquireOutermost(ctx, q, s, &q.wait, nil)
	h.told(hold, EventAcquired, &q.wait, began)
	return hold, err
}

// wait is how long an acquisition may wait, and whether it has.
type wait struct {
	limit  time.Duration // negative: none; 0: do not wait
	until  time.Time     // zero: no limit
	waited bool
	quiet  bool   // nobody is told of it
	note   func() // told instead of the observer, if not nil
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

// timer fires when the wait is over; nil if it has no limit.
func (w *wait) timer() (<-chan time.Time, func() bool) {
	if w.until.IsZero() {
		return nil, func() bool { return true }
	}
	t := time.NewTimer(time.Until(w.until))
	return t.C, t.Stop
}

// waits notes, once, that the acquisition could not go at once.
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
		h.c.emit(Event{Kind: EventWait, Lock: h.kind, Name: h.name, ID: id})
	}
}

func (h *handle) told(hold *Hold, kind EventKind, w *wait, began time.Time) {
	if hold == nil || h.c.observe == nil {
		return
	}
	e := hold.g.event(kind, nil)
	e.Held = 0
	if w.waited {
		e.Waited = time.Since(began)
	}
	h.c.emit(e)
}

// request makes the request of an outermost acquisition: its id is its own, unless the caller manages identities.
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
	v, err := h.obtain(ctx, q, s, w)
	if err != nil {
		h.undo(ctx, q)
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
		h.undo(ctx, q)
	}
	return hold, err
}

// obtain tries, and waits its turn, until q is granted.
func (h *handle) obtain(ctx context.Context, q *request, s *settings, w *wait) (verdict, error) {
	q.queue = w.limit != 0
	if p, ok := h.proto.(queued); ok && q.queue {
		return p.stand(ctx, q, s, w)
	}
	if w.limit == 0 || !h.c.rooms.hopeless(h, q, s) {
		v, err := h.try(ctx, q)
		if err != nil || v.granted {
			return v, err
		}
		if w.limit == 0 {
			return v, gaveUp(ctx, v.met)
		}
		h.waits(w, q.id)
		return h.c.rooms.wait(ctx, h, q, s, w, v)
	}
	h.waits(w, q.id)
	return h.c.rooms.wait(ctx, h, q, s, w, verdict{wait: -1})
}

// queued is a protocol whose requests wait in a queue of Redis's, not in a room of ours.
type queued interface {
	stand(ctx context.Context, q *request, s *settings, w *wait) (verdict, error)
}

// try makes one attempt. What it grants is ours to keep: confirmed by replicas, in time, and wanted.
func (h *handle) try(ctx context.Context, q *request) (verdict, error) {
	v, err := h.proto.take(ctx, q)
	return h.tried(ctx, q, v, err)
}

// tried is what an attempt comes to that Redis answered so.
func (h *handle) tried(ctx context.Context, q *request, v verdict, err error) (verdict, error) {
	if err != nil {
		q.open = q.open || standing(err)
		return v, err
	}
	if !v.granted {
		return v, nil
	}
	return h.accept(ctx, q, v)
}

// accept is v, or why what it grants is not ours to keep.
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

// undo sees that nothing stays of a request that was not granted, or not wanted any more. It waits for that as long as it promises
// to when the caller gave up, and briefly when Redis did not answer.
func (h *handle) undo(ctx context.Context, q *request) {
	if !q.open {
		return
	}
	limit := briefly
	if ctx.Err() != nil {
		limit = patience
	}
	now, cancel := within(ctx, limit)
	defer cancel()
	if err := h.proto.undo(now, q); err != nil && !errors.Is(err, scripts.ErrClosed) {
		// A copy may yet be executed for as long as it is remembered, and its lease begins then.
		h.c.persist(ctx, time.Now().Add(q.ttl+h.c.run.Memory()), func(ctx context.Context) error { return h.proto.undo(ctx, q) })
	}
}

// do is what every Do does.
func (h *handle) do(ctx context.Context, acquire func() (*Hold, error), f func(context.Context) error) (err error) {
	hold, err := acquire()
	if err != nil {
		return err
	}
	defer func() {
		// A release that failed otherwise has been told to the observer: the work is done, and must not look undone.
		if released := hold.Release(ctx); errors.Is(released, ErrLost) {
			err = errors.Join(err, released)
		}
	}()
	return f(hold.Context())
}
