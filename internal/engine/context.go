package engine

import "context"

// Context returns a context that carries the hold and ends with it. It has the values and the
// cancellation of the context that the hold was acquired with. handle is what [HoldFrom] returns for
// the hold itself.
func (h *Hold) Context(handle any) context.Context {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.inner == nil {
		ctx, cancel := context.WithCancelCause(h.ctx)
		h.inner = &innerContext{ctx, cancel}
		if h.cause != nil {
			cancel(h.explain())
		}
	}
	return &holdContext{Context: h.inner.Context, hold: h, handle: handle}
}

// innerContext ends with the hold.
type innerContext struct {
	context.Context //nolint:containedctx // it is one
	cancel          context.CancelCauseFunc
}

// holdContext carries a hold. It finds the nearest hold for a key. A hold of a joint lock carries a live
// hold of each member.
type holdContext struct {
	context.Context //nolint:containedctx // it is one
	hold            *Hold
	handle          any
}

// liveKey asks a context for a live hold, and outerKey for one whose release has not begun: it may be
// lost.
type (
	liveKey  struct{ *Key }
	outerKey struct{ *Key }
)

func (c *holdContext) Value(key any) any {
	h := c.hold
	switch k := key.(type) {
	case liveKey:
		if !h.isLive() {
			break
		}
		if found := h.find(k.Key); found == h {
			return carried{h, c.handle}
		} else if found != nil {
			return carried{found, nil}
		}
	case outerKey:
		if h.isLive() || (h.isLost() && !h.isReleased()) {
			if found := h.find(k.Key); found != nil {
				return found
			}
		}
	}
	return c.Context.Value(key)
}

// carried is a hold, and its handle if it is not a member's.
type carried struct {
	hold   *Hold
	handle any
}

// find returns h, or the hold of the member, that key names.
func (h *Hold) find(key *Key) *Hold {
	if *key == *h.r.Key {
		return h
	}
	if h.held == nil {
		return nil
	}
	return h.held.member(key)
}

// HoldFrom returns the nearest live hold of that key that ctx carries, and its handle. The handle is nil
// for a hold of a member of a joint lock.
func HoldFrom(ctx context.Context, key *Key) (hold *Hold, handle any) {
	found, _ := ctx.Value(liveKey{key}).(carried)
	return found.hold, found.handle
}

// OuterFrom returns the nearest hold of that key that ctx carries and whose release has not begun. It
// may be lost.
func OuterFrom(ctx context.Context, key *Key) *Hold {
	hold, _ := ctx.Value(outerKey{key}).(*Hold)
	return hold
}
