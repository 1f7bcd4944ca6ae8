package engine

import (
	"context"
	"time"
)

// Nested holds share one lease on the server. When one of them is released, the lease may be shortened
// to what the others were promised. The functions below compute that promise. A driver uses them whose
// server keeps a lease for each count, as a reader's does.

// BeginShortening returns how long, from now, the server must keep o so that each of the left holds has
// the lease that it was promised; 0 if all of them have lapsed. known is false if that cannot be told: a
// hold has not joined yet, or was detached and is to last. EndShortening must follow. The caller holds
// the wire lock, so that no hold is added meanwhile.
func (o *Ownership) BeginShortening(left int) (need time.Duration, known bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now, n := o.r.Core.Instant(time.Now()), 0
	for h := o.holds; h != nil; h = h.sibling {
		n++
		if !h.renew {
			need = max(need, time.Duration(max(h.since+Instant(h.ttl), h.extendedUntil())-now))
		}
	}
	need = max(need, o.renewed().lease(o.r.Core, now))
	if n > 0 {
		need = max(need, time.Millisecond)
	}
	if n+int(o.lapsed) != left || o.lost {
		return 0, false
	}
	o.shortening = o.shortening || need > 0
	return need, true
}

// EndShortening is told how the release ended that BeginShortening prepared.
func (o *Ownership) EndShortening(err error) {
	if err != nil {
		return // it may still be executed
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.shortening = false
}

// NextChange numbers a change of the count, so that a late copy of an earlier one has no effect. The
// caller holds the wire lock.
func (o *Ownership) NextChange() uint32 {
	o.change++
	return o.change
}

// renewedHolds is what the renewed holds of an ownership were promised together.
type renewedHolds struct {
	ttl      time.Duration // the longest; 0: no hold is renewed
	limited  bool          // each of them has a limit
	limit    Instant       // the last of these
	extended Instant       // when the longest lease ends that an Extend got, or may get
}

// renewed looks at the renewed holds. mu is held.
func (o *Ownership) renewed() renewedHolds {
	all := renewedHolds{limited: true}
	for h := o.holds; h != nil; h = h.sibling {
		if !h.renew {
			continue
		}
		h.mu.Lock()
		limit, extended := h.limit, h.extended
		h.mu.Unlock()
		all.ttl = max(all.ttl, h.ttl)
		all.limited = all.limited && limit != 0
		all.limit = max(all.limit, limit)
		all.extended = max(all.extended, extended)
	}
	return all
}

// lease is the longest lease, from now, that one of them was promised; 0 if there is none. A renewal may
// be on its way, so it is never less than what the next one asks for.
func (all renewedHolds) lease(c *Core, now Instant) time.Duration {
	if all.ttl == 0 {
		return 0
	}
	ttl := all.ttl
	if all.limited {
		ttl = min(ttl, time.Duration(all.limit-now)+c.MarginOf(ttl))
	}
	return max(ttl, time.Duration(all.extended-now))
}

// promise notes that h is to have a lease of d, before that is sent: a release of another hold that
// begins now leaves it alone. A release that is on its way may not know of it, so promise waits for its
// reply, or repeats it.
func (o *Ownership) promise(ctx context.Context, h *Hold, d time.Duration) error {
	h.mu.Lock()
	h.extended = max(h.extended, o.r.Core.Instant(time.Now().Add(d)))
	h.mu.Unlock()
	if !o.isShortening() {
		return nil
	}
	if !o.wire.LockContext(ctx) { // the caller that holds wire waits for the reply
		return context.Cause(ctx)
	}
	defer o.wire.Unlock()
	if !o.isShortening() {
		return nil
	}
	_, err := o.r.Driver.Release(ctx, o, o.addCount(0))
	return err
}

// isShortening reports whether a release that shortens the lease was sent and not answered yet.
func (o *Ownership) isShortening() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.shortening
}
