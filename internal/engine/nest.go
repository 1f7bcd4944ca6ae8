package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redlatch/redlatch/internal/failure"
)

// How acquisitions nest.
//
// A context that a hold made carries it. An acquisition of the same resource with that context
// finds the hold (outer) and nests: it adds a count to the same ownership instead of waiting for
// the lock. In two cases the server counts by itself, and the acquisition is sent to it with the
// outer hold's id (reacquire): for a shared id, and under the other side of a read-write lock.
//
// Goroutines that acquire under the same outer hold are siblings. They take turns, so that they
// exclude each other as they would with the lock itself.
//
// Two races matter:
//
//   - The outer hold is released while the nested acquisition is under way. The wire lock of the
//     ownership decides which came first: see Ownership.nest. If the release did, the acquisition
//     gets errOuterEnded, and acquires as an outermost request.
//   - The lock was lost. Then the acquisition fails with ErrLost, and must take nothing, because
//     another client may hold the lock by now.

// AcquireNested acquires under a hold that ctx carries. It returns neither a hold nor an error if
// ctx carries none. Acquire and joint locks call it. It blocks for a turn, for the wire lock and
// for the reply.
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
		q.contact = nil // it was about the siblings
		// The loop ends: Outer does not find a released hold again, and a context carries finitely
		// many.
	}
}

// Outer returns the hold in ctx to nest under, or nil if there is none.
func (r *Resource) Outer(ctx context.Context) (*Hold, error) {
	if r.Traits.Outer != nil {
		return r.Traits.Outer(ctx)
	}
	return OuterFrom(ctx, r), nil
}

// nestUnder acquires under outer. Unless many may hold at once, it waits until no other acquisition
// nests there.
func (r *Resource) nestUnder(ctx context.Context, outer *Hold, q *Request) (hold *Hold, err error) {
	if loss := outer.lossCause(); loss != nil {
		return nil, loss // at once: do not wait for a sibling
	}
	if r.Traits.ManyHolders {
		hold, err = r.nestNow(ctx, outer, q)
	} else {
		hold, err = r.nestAlone(ctx, outer, q)
	}
	if hold != nil {
		hold.depth = max(outer.depth, outer.depth+1) // does not wrap around to 0
	}
	return hold, err
}

// nestAlone passes the gate of outer, and acquires. The new hold occupies the gate until it ends.
// If the acquisition fails, nestAlone leaves the gate.
func (r *Resource) nestAlone(ctx context.Context, outer *Hold, q *Request) (hold *Hold, err error) {
	err = r.passSiblings(ctx, outer, q)
	if err != nil {
		return nil, err
	}
	q.parent = outer
	gate := outer.siblingGate()
	defer func() {
		if hold != nil {
			gate.contact.HeldBy(outer.ID(), -1, errSibling)
			return
		}
		// It failed, or a hook of go-redis has panicked. The contact is another one if a joint lock
		// has waited.
		gate.contact.takeOver(q.contact)
		gate.leave()
		q.parent = nil
	}()
	return r.nestNow(ctx, outer, q)
}

// nestNow adds a hold to the ownership of outer, and a count on the server. After a lost reply,
// Ownership.nest corrects the server's count in the background.
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
	if o.Shared || o.r.Kind != r.Kind {
		return r.reacquire(ctx, outer, q)
	}
	ttl := q.Terms.FirstTTL()
	attemptCtx, stop := q.AttemptContext(ctx, r)
	defer stop()
	q.attemptBegins()
	sent, err := o.nest(attemptCtx, outer, ttl)
	if err != nil && q.OfMajority {
		err = failure.WithoutDoubt(err)
	}
	if err != nil {
		q.learn(attemptCtx, Result{}, err)
		if failure.Of(err).Retry() {
			err = q.explain(attemptCtx, r.Core, err)
		}
		return nil, err
	}
	var hold *Hold
	switch {
	case ctx.Err() != nil: // a late reply: the caller has gone, so nobody would release the hold
		err = GaveUp(ctx, nil)
	case o.wouldBeExpired(q.Terms, sent): // a very late one, as in Resource.tried
		err = ErrLost
	default:
		hold, err = r.NewHold(ctx, q, Result{Holding: o, Sent: sent})
	}
	if hold != nil && r.Traits.Fenced {
		hold.earlier = uint16(outer.Token() - o.Token)
	}
	if err != nil { // there is no hold for the count
		o.addCount(-1)
		o.writeCountLater(ctx, rollbackGrace)
	}
	return hold, err
}

// reacquire acquires once more with the id of outer, by the same command as an outermost
// acquisition. That is needed where the ownership of outer does not know the server's count: for a
// shared id, and for the other side of a read-write lock. The id may enter at once, as long as the
// server still knows it.
//
// ErrLost means that the server does not know the id. If outer is being released, that is the
// reason, and the caller acquires as an outermost request. Otherwise outer may have been lost
// without our knowledge, for example by an operator's delete, so it is checked.
func (r *Resource) reacquire(ctx context.Context, outer *Hold, q *Request) (*Hold, error) {
	o := outer.Ownership()
	if o.r.Kind != r.Kind && !o.addOtherKind(outer) {
		return nil, errOuterEnded
	}
	inner := r.NewRequest(q.Terms)
	inner.SetID(o.ID, true)
	inner.UnderSameID = true
	inner.Group = q.Group
	inner.parent = q.parent
	inner.OfMajority = q.OfMajority
	inner.TTL = q.Terms.FirstTTL()
	if o.r.Kind == r.Kind { // else the other side has it
		inner.min = o.min
	}
	inner.Wait = q.Wait // bounds the attempt; it does not queue
	inner.contact = q.contact
	hold, err := r.AcquireOutermost(ctx, inner, time.Now())
	q.contact = inner.contact
	isLost := errors.Is(err, ErrLost)
	if err != nil && !isLost {
		isLost = o.r.Holds.Overwritten(ctx, err)
	}
	if isLost {
		if outer.state().taken {
			return nil, errOuterEnded
		}
		err = ErrLost
		_ = o.Check(ctx, outer) // ends outer, if the server confirms the loss
	}
	return hold, err
}

// addOtherKind notes that an acquisition of another kind is about to nest under outer: a writer
// wants to read. From now on nobody may have the next turn on o: for the server the next user would
// be the same writer, which may read. It reports false if the release of outer has begun, and
// another user may have the turn already.
func (o *Ownership) addOtherKind(outer *Hold) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if outer.state().taken {
		return false
	}
	o.otherKind = true
	return true
}

// siblingGate lets one nested acquisition at a time pass, whose hold occupies the gate until it
// ends. It belongs to the outer hold.
type siblingGate struct {
	occupied chan struct{} // of capacity 1: full while somebody has passed; the others send in order of arrival
	ended    chan struct{} // closed when the outer hold has ended
	contact  Contact       // of the acquisitions that have passed, or wait
}

// siblingGate returns the gate of the acquisitions that nest under h, and makes it if needed. A
// gate that is made after the end of h has ended from the start.
func (h *Hold) siblingGate() *siblingGate {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gate == nil {
		h.gate = &siblingGate{occupied: make(chan struct{}, 1), ended: make(chan struct{})}
		if h.cause != nil {
			close(h.gate.ended)
		}
	}
	return h.gate
}

// leave lets the acquisition that has waited the longest pass. It is called when a nested hold
// ends, and when a nested acquisition fails. It does not block.
func (g *siblingGate) leave() {
	select {
	case <-g.occupied:
	default: // left already, when a hook of go-redis or an observer panicked
	}
}

// passSiblings waits until no other acquisition nests under outer. It fails with errOuterEnded if
// outer ends before.
func (r *Resource) passSiblings(ctx context.Context, outer *Hold, q *Request) error {
	gate := outer.siblingGate()
	q.ShareContact(&gate.contact)
	select {
	case gate.occupied <- struct{}{}:
		gate.contact.forget() // no acquisition waited behind the former ones
		return nil
	default:
	}
	if q.Wait.IsSingleTry() {
		return q.gaveUp(ctx, nil)
	}
	q.Wait.Begin(r, outer.ID())
	waitCtx, stop := q.Wait.Bound(ctx)
	defer stop()
	select {
	case gate.occupied <- struct{}{}:
		return nil
	case <-waitCtx.Done():
		return q.gaveUp(waitCtx, nil)
	case <-r.Core.Closing():
		return ErrClosed
	case <-gate.ended:
		return errOuterEnded
	}
}

// errSibling says why the caller's own id holds the lock.
var errSibling = errors.New("another acquisition nests in the same hold")
