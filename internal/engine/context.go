package engine

import "context"

// Contexts that carry holds. Hold.Context makes one. HoldFrom and OuterFrom search the chain of
// contexts from the inside out, as context.Value does.

// Context returns a context that carries the hold and ends with it. It has the values and the
// cancellation of the context with which the hold was acquired. [HoldFrom] returns userHold along
// with the hold. Context does not block.
//
// All contexts of a hold share one cancellable context, which the hold keeps. It is made on the
// first call, because many holds never need one. It does not refer to the user's hold, so a
// forgotten one can be collected: see [Hold.ReportLeak].
func (h *Hold) Context(userHold any) *HoldContext {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.inner == nil {
		ctx, cancel := context.WithCancelCause(h.ctx)
		h.inner = &innerContext{ctx, cancel, h}
		if h.cause != nil { // the hold has ended already
			cancel(h.cause)
		}
	}
	return &HoldContext{h.inner, userHold}
}

// innerContext ends with the hold: Hold.end cancels it.
type innerContext struct {
	context.Context //nolint:containedctx // it is one
	cancel          context.CancelCauseFunc
	hold            *Hold
}

// HoldContext carries a hold, and through a joint lock's hold the live holds of its members. It is
// immutable.
type HoldContext struct {
	*innerContext
	userHold any
}

// liveKey asks a context for a live hold of a resource, and anyLiveKey for one of any resource.
// outerKey asks for a hold whose release has not begun, even a lost one: an acquisition under a
// lost hold must fail with ErrLost. If it skipped the lost hold, it would acquire the lock again
// inside a critical section that is no longer protected.
type (
	liveKey    struct{ *Resource }
	anyLiveKey struct{}
	outerKey   struct{ *Resource }
)

// Value returns the nearest hold for a liveKey, an anyLiveKey or an outerKey. It passes other keys
// on to the outer context. It takes the mutex of each hold on the way, one after another.
func (c *HoldContext) Value(key any) any {
	h := c.hold
	switch k := key.(type) {
	case liveKey:
		if live := h.findLive(k.Resource); live == h {
			return carried{h, c.userHold}
		} else if live != nil {
			return carried{live, nil}
		}
	case anyLiveKey:
		if h.IsLive() {
			return carried{h, c.userHold}
		}
	case outerKey:
		if live := h.findLive(k.Resource); live != nil {
			return live
		}
		if h.IsLostUnreleased() && h.find(k.Resource) != nil { // asked second: it may have been lost just now
			return h
		}
	}
	return c.Context.Value(key)
}

// carried is a hold and its user's hold, which is nil for the hold of a member.
type carried struct {
	hold     *Hold
	userHold any
}

// find returns h if it is a hold of r, or else the hold of h's member r, live or not. It returns
// nil if there is none.
func (h *Hold) find(r *Resource) *Hold {
	if r.Is(h.r) {
		return h
	}
	return h.held.Member(r)
}

// findLive is find, but returns nil if h or the hold that it finds has ended.
func (h *Hold) findLive(r *Resource) *Hold {
	found := h.find(r)
	if found == nil || !h.IsLive() || !found.IsLive() {
		return nil
	}
	return found
}

// HoldFrom returns the nearest live hold of r that ctx carries, and its user's hold, which is nil
// for the hold of a member of a joint lock.
func HoldFrom(ctx context.Context, r *Resource) (hold *Hold, userHold any) {
	found, _ := ctx.Value(liveKey{r}).(carried)
	return found.hold, found.userHold
}

// AnyHoldFrom returns the nearest live hold that ctx carries, and its user's hold. For a joint lock
// it returns the joint hold, not the hold of a member.
func AnyHoldFrom(ctx context.Context) (hold *Hold, userHold any) {
	found, _ := ctx.Value(anyLiveKey{}).(carried)
	return found.hold, found.userHold
}

// OuterFrom returns the nearest hold of r that ctx carries and whose release has not begun. It may
// be lost.
func OuterFrom(ctx context.Context, r *Resource) *Hold {
	hold, _ := ctx.Value(outerKey{r}).(*Hold)
	return hold
}
