package engine

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// How acquisitions nest.
//
// A context that a hold made carries it. An acquisition of the same resource with that context finds the
// hold (Traits.Outer) and nests: it adds a count to the same ownership instead of waiting for it. Where the
// server counts by itself, because the id is shared or because the outer hold is the other side of a
// read-write lock, the acquisition goes to the server with the outer hold's id.
//
// Goroutines that were forked inside the outer hold are siblings. They take turns, so that they exclude
// each other as they would with the lock itself.
//
// Two races matter. The outer hold may be released while the nested acquisition is on its way: the wire
// lock of the ownership decides which came first, and the loser gets errOuterEnded and acquires as an
// outermost request. Or the lock may have been lost: then the acquisition fails with ErrLost, and must take
// nothing, because somebody else may hold the lock by now.

// acquireNested acquires under a hold that ctx carries. It returns neither a hold nor an error if ctx
// carries none.
func (r *Resource) acquireNested(ctx context.Context, q *Request) (*Hold, error) {
	for {
		outer, err := r.Traits.Outer(ctx)
		if outer == nil || err != nil {
			return nil, err
		}
		if q.Terms.NonReentrant {
			return nil, ErrDeadlock
		}
		hold, err := r.nestUnder(ctx, outer, q)
		if !errors.Is(err, errOuterEnded) {
			return hold, err
		}
		if ctx.Err() != nil {
			return nil, GaveUp(ctx, nil)
		}
		// Outer does not find that hold again.
	}
}

// nestUnder acquires under outer, having taken the turn among its siblings where they take turns.
func (r *Resource) nestUnder(ctx context.Context, outer *Hold, q *Request) (*Hold, error) {
	if outer.isLost() {
		return nil, ErrLost // whoever has the turn under it
	}
	parent := (*Hold)(nil)
	if r.Traits.NestsInTurn {
		if turns := outer.turnsOf(); !turns.tryTake() {
			if q.wait.limit == 0 {
				return nil, ErrNotAcquired
			}
			q.wait.begin(r, outer.ID())
			if _, err := r.waitIn(ctx, turns, q, Result{RetryAfter: -1}); err != nil {
				return nil, err
			}
		}
		parent = outer
	}
	hold, err := r.nestNow(ctx, outer, q, parent)
	if err != nil && parent != nil {
		parent.turnsOf().pass()
	}
	if hold != nil {
		hold.depth = outer.depth + 1
	}
	return hold, err
}

// nestNow adds a hold to what outer holds. parent is outer if it has taken a turn.
func (r *Resource) nestNow(ctx context.Context, outer *Hold, q *Request, parent *Hold) (*Hold, error) {
	o := outer.held.ownership()
	if o == nil {
		// A joint lock: each member nests under outer's hold of it.
		return r.acquireOutermost(ctx, q, parent)
	}
	if o.Shared || o.r.Kind != r.Kind {
		return r.reacquire(ctx, outer, q, parent)
	}
	ttl := q.Terms.FirstTTL()
	trying, stop := q.wait.context(ctx)
	defer stop()
	sent, err := o.nest(trying, outer, ttl)
	if err != nil {
		if trying.Err() != nil && r.Core.failure(err).Retry {
			err = GaveUp(trying, err)
		}
		return nil, err
	}
	if ctx.Err() != nil { // the reply came after the caller had gone
		o.unnest(ctx)
		return nil, GaveUp(ctx, nil)
	}
	hold, err := r.newHold(ctx, o, q, sent, parent)
	if err != nil {
		o.unnest(ctx)
	}
	return hold, err
}

// reacquire acquires once more with the id of outer. The server counts for a shared id, and the other
// side of a read-write lock counts by itself. Either way the id may enter at once, as long as the server
// still knows it.
func (r *Resource) reacquire(ctx context.Context, outer *Hold, q *Request, parent *Hold) (*Hold, error) {
	o := outer.held.ownership()
	inner := r.NewRequest(q.Terms)
	inner.Name(o.ID, true)
	inner.Nested, inner.group = true, q.group
	hold, err := r.acquireOutermost(ctx, inner, parent)
	if errors.Is(err, ErrLost) {
		if outer.isReleased() {
			return nil, errOuterEnded
		}
		_ = o.check(ctx) // ends outer, if the server confirms the loss
	}
	return hold, err
}

// turnQueue has at most one acquisition at a time nested under a hold. Waiters take turns in order.
type turnQueue struct {
	mu      sync.Mutex
	taken   bool
	ended   bool // the hold has ended
	waiters []*Waiter
}

// turnsOf returns the turns under h.
func (h *Hold) turnsOf() *turnQueue {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.turns == nil {
		h.turns = &turnQueue{ended: h.cause != nil}
	}
	return h.turns
}

// tryTake takes the turn if it is free and nobody waits for it.
func (t *turnQueue) tryTake() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.taken || len(t.waiters) > 0 {
		return false
	}
	t.taken = true
	return true
}

// pass gives the turn back.
func (t *turnQueue) pass() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.taken = false
	if len(t.waiters) > 0 {
		t.waiters[0].Wake()
	}
}

// end wakes all waiters, because the hold has ended.
func (t *turnQueue) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	for _, w := range t.waiters {
		w.Wake()
	}
}

// Join implements [Queue].
func (t *turnQueue) Join(w *Waiter, _ Result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiters = append(t.waiters, w)
}

// NextStep implements [Queue].
func (t *turnQueue) NextStep(w *Waiter) Step {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.ended:
		return Step{Err: errOuterEnded}
	case t.taken || t.waiters[0] != w:
		return Step{}
	}
	t.taken = true
	w.granted = &Result{Granted: true, Sent: time.Now()}
	return Step{Granted: w.granted}
}

// Leave implements [Queue].
func (t *turnQueue) Leave(w *Waiter, res Result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiters = slices.DeleteFunc(t.waiters, func(o *Waiter) bool { return o == w })
	if w.granted != nil && !res.Granted {
		t.taken = false // it left with its turn
	}
	if !t.taken && len(t.waiters) > 0 {
		t.waiters[0].Wake()
	}
}

// Try, Tried and Confirmed implement [Queue]. They are not called: NextStep grants turns.
func (t *turnQueue) Try(context.Context, *Waiter) (Result, error) { return Result{}, ErrUnsupported }
func (t *turnQueue) Tried(*Waiter, Result, error, bool)           {}
func (t *turnQueue) Confirmed(*Waiter)                            {}
