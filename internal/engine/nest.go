package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// How acquisitions nest.
//
// A context that a hold made carries it. An acquisition of the same resource with that context finds the
// hold (outer) and nests: it adds a count to the same ownership instead of waiting for it. In two
// cases the server counts by itself: for a shared id, and under the other side of a read-write lock. Then
// the acquisition is sent to the server with the outer hold's id (reacquire).
//
// Goroutines that acquire under the same outer hold are siblings. They take turns, so that they exclude
// each other as they would with the lock itself.
//
// Two races matter:
//
//   - The outer hold is released while the nested acquisition is under way. The wire lock of the
//     ownership decides which came first: see Ownership.nest. If the release did, the acquisition gets
//     errOuterEnded, and acquires as an outermost request.
//   - The lock was lost. Then the acquisition fails with ErrLost, and must take nothing, because another
//     client may hold the lock by now.

// AcquireNested acquires under a hold that ctx carries. It returns neither a hold nor an error if ctx
// carries none. Acquire and joint locks call it. It blocks for a turn, for the wire lock and for the
// reply.
func (r *Resource) AcquireNested(ctx context.Context, q *Request) (*Hold, error) {
	for {
		outer, err := r.Outer(ctx)
		if outer == nil || err != nil {
			return nil, err
		}
		if q.Terms.NonReentrant {
			return nil, fmt.Errorf("%w: the context has a hold of it, and WithNonReentrant forbids another one", ErrDeadlock)
		}
		hold, err := r.nestUnder(ctx, outer, q)
		if !errors.Is(err, errOuterEnded) {
			return hold, err
		}
		if ctx.Err() != nil {
			return nil, q.gaveUp(ctx, nil)
		}
		// The loop ends: Outer does not find a released hold again, and a context carries finitely many.
	}
}

// Outer finds the hold in ctx to nest under; nil if there is none.
func (r *Resource) Outer(ctx context.Context) (*Hold, error) {
	if r.Traits.Outer != nil {
		return r.Traits.Outer(ctx)
	}
	return OuterFrom(ctx, r), nil
}

// nestUnder waits for the turn under outer, unless many may hold at once, and then acquires. The new hold
// keeps the turn until it ends. If the acquisition fails, nestUnder passes the turn on.
func (r *Resource) nestUnder(ctx context.Context, outer *Hold, q *Request) (*Hold, error) {
	if loss := outer.lossCause(); loss != nil {
		return nil, loss // at once: do not wait for a sibling that still has the turn
	}
	if !r.Traits.ManyHolders {
		if turns := outer.turnsOf(); !turns.tryTake() {
			if q.Wait.limit == 0 {
				return nil, q.gaveUp(ctx, turns.Heard())
			}
			if _, err := r.waitIn(ctx, turns, q, outer.ID(), Result{RetryAfter: -1}); err != nil {
				return nil, err
			}
		}
		q.parent = outer
	}
	hold, err := r.nestNow(ctx, outer, q)
	if err == nil && q.parent != nil {
		q.parent.turnsOf().answered()
	} else if q.parent != nil {
		q.parent.turnsOf().pass()
		q.parent = nil
	}
	if hold != nil {
		hold.depth = max(outer.depth, outer.depth+1) // does not wrap around to 0
	}
	return hold, err
}

// nestNow adds a hold to the ownership of outer, and a count on the server. After a lost reply, Ownership.nest
// corrects the server's count in the background.
func (r *Resource) nestNow(ctx context.Context, outer *Hold, q *Request) (*Hold, error) {
	o := outer.Ownership()
	if o == nil {
		// A joint lock: each member nests under outer's hold of it.
		hold, err := r.AcquireOutermost(ctx, q, time.Now())
		if loss := outer.lossCause(); err != nil && loss != nil {
			err = loss // found by a member. It is no refusal, even if ctx has ended with outer
		}
		return hold, err
	}
	if q.parent != nil {
		q.parent.turnsOf().asking()
	}
	if o.Shared || o.r.Kind != r.Kind {
		return r.reacquire(ctx, outer, q)
	}
	ttl := q.Terms.FirstTTL()
	trying, stop := q.Wait.Bound(ctx, true)
	defer stop()
	sent, err := o.nest(trying, outer, ttl)
	if err != nil {
		q.learn(trying, r, Result{}, err)
		if r.Core.Classify(err).Retry {
			err = q.explain(trying, r.Core, err)
		}
		return nil, err
	}
	var hold *Hold
	switch {
	case ctx.Err() != nil: // a late reply: the caller has gone, so nobody would release the hold
		err = GaveUp(ctx, nil)
	case o.isOver(q.Terms, sent): // a very late one, as in Resource.tried
		err = ErrLost
	default:
		hold, err = r.NewHold(ctx, q, Result{Holding: o, Sent: sent})
	}
	if err != nil { // there is no hold for the count
		o.addCount(-1)
		o.writeCountLater(ctx, rollbackGrace)
	}
	return hold, err
}

// reacquire acquires once more with the id of outer, by the same command as an outermost acquisition.
// That is needed where the ownership of outer does not know the server's count: for a shared id, and for
// the other side of a read-write lock. The id may enter at once, as long as the server still knows it.
//
// ErrLost means that the server does not know the id. If outer is being released, that is the reason,
// and the caller acquires as an outermost request. Otherwise outer may have been lost without our
// knowledge, for example by an operator's delete. Then outer is checked.
func (r *Resource) reacquire(ctx context.Context, outer *Hold, q *Request) (*Hold, error) {
	o := outer.Ownership()
	if o.r.Kind != r.Kind && !o.endCohort(outer) {
		return nil, errOuterEnded
	}
	inner := r.NewRequest(q.Terms)
	inner.Name(o.ID, true)
	inner.Nested, inner.Group, inner.parent = true, q.Group, q.parent
	inner.TTL = q.Terms.FirstTTL()
	if o.r.Kind == r.Kind { // else the other side has it
		inner.min = o.min
	}
	inner.Wait = q.Wait // bounds the attempt; it does not queue
	inner.heard = q.heard
	hold, err := r.AcquireOutermost(ctx, inner, time.Now())
	if errors.Is(err, ErrLost) || err != nil && o.r.Driver.Overwritten(ctx, err) {
		if outer.state().taken {
			return nil, errOuterEnded
		}
		err = ErrLost
		_ = o.Check(ctx, outer) // ends outer, if the server confirms the loss
	}
	return hold, err
}

// turnQueue gives the turn under a hold to one nested acquisition at a time, in order of arrival. It
// belongs to the hold. Its methods do not block.
type turnQueue struct {
	mu      sync.Mutex // guards the rest, and the queue fields of its waiters; innermost
	id      string     // of the hold, and of those nested in it
	taken   bool       // a nested hold, or its acquisition, has the turn
	granted bool       // the turn has been that of a nested hold since it was last taken without waiting
	asked   time.Time  // since when no nested acquisition was answered; zero: the latest was, or is a joint lock's
	ended   bool       // the hold has ended
	waiters []*Waiter
}

// turnsOf returns the turns under h. If h has ended, waiters get errOuterEnded at once: Hold.end ends
// only the turns that exist by then.
func (h *Hold) turnsOf() *turnQueue {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.turns == nil {
		h.turns = &turnQueue{id: h.ID(), ended: h.cause != nil}
	}
	return h.turns
}

// tryTake takes the turn if it is free and there is no waiter. Otherwise it could overtake a waiter that
// was woken up and has not run yet.
func (t *turnQueue) tryTake() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.taken || len(t.waiters) > 0 {
		return false
	}
	t.taken, t.granted, t.asked = true, false, time.Time{}
	return true
}

// asking notes that the acquisition with the turn sends its command, and answered that it has its hold: see Heard.
func (t *turnQueue) asking() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.asked.IsZero() {
		t.asked = time.Now()
	}
}

func (t *turnQueue) answered() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.granted, t.asked = true, time.Time{}
}

// pass gives the turn back and wakes the first waiter. The end of a nested hold calls it, and a nested
// acquisition that failed.
func (t *turnQueue) pass() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.taken = false
	if len(t.waiters) > 0 {
		t.waiters[0].Wake()
	}
}

// end wakes all waiters, because the hold has ended. They get errOuterEnded. Hold.end calls it.
func (t *turnQueue) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	for _, w := range t.waiters {
		w.Wake()
	}
}

// Join implements [Queue]. The turn may have been given back since tryTake: NextStep, which comes next,
// sees that.
func (t *turnQueue) Join(w *Waiter, _ Result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiters = append(t.waiters, w)
}

// NextStep implements [Queue]. The first waiter takes the turn if it is free.
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

// Leave implements [Queue]. A waiter that leaves may have the turn without using it, or may have used up
// the only wake-up. Either way the next waiter is woken up if the turn is free.
func (t *turnQueue) Leave(w *Waiter, res Result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiters = slices.DeleteFunc(t.waiters, func(o *Waiter) bool { return o == w })
	if w.granted != nil && !res.Granted {
		t.taken = false // it was given the turn, and then its context ended
	}
	if !t.taken && len(t.waiters) > 0 {
		t.waiters[0].Wake()
	}
}

// Heard implements [Queue]. A turn is refused because it is taken, by a hold or by an acquisition without an answer.
func (t *turnQueue) Heard() *Contact {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.granted && !t.asked.IsZero() {
		return &Contact{asked: t.asked}
	}
	return &Contact{refused: true, holder: t.id, reason: errSibling, asked: t.asked}
}

// errSibling says why the caller's own id holds the lock.
var errSibling = errors.New("another acquisition nests in the same hold")
