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
	now, n := o.core().Instant(time.Now()), 0
	for h := o.holds; h != nil; h = h.sibling {
		n++
		if !h.renew {
			need = max(need, time.Duration(max(h.since+Instant(h.ttl), h.extendedUntil())-now))
		}
	}
	need = max(need, o.renewedFor(now))
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

// renewedFor returns the longest lease, from now, that a renewed hold was promised; 0 if no hold is
// renewed. A renewal may be on its way, so it is never less than what the next one asks for. mu is held.
func (o *Ownership) renewedFor(now Instant) time.Duration {
	var ttl time.Duration
	unlimited, last, extended := false, Instant(0), Instant(0)
	for h := o.holds; h != nil; h = h.sibling {
		if !h.renew {
			continue
		}
		ttl = max(ttl, h.ttl)
		extended = max(extended, h.extendedUntil())
		h.mu.Lock()
		limit := h.limit
		h.mu.Unlock()
		unlimited = unlimited || limit == 0
		last = max(last, limit)
	}
	if ttl == 0 {
		return 0
	}
	if !unlimited {
		ttl = min(ttl, time.Duration(last-now)+o.core().MarginOf(ttl))
	}
	return max(ttl, time.Duration(extended-now))
}

// trusted returns until when o is valid for its renewed holds after another hold has left: until, or
// earlier if they were promised less. The longer lease of the hold that left is not trusted, because its
// release gives that lease back. mu is held.
func (o *Ownership) trusted(until time.Time, margin time.Duration) time.Time {
	now := time.Now()
	if own := now.Add(o.renewedFor(o.core().Instant(now)) - margin); own.Before(until) {
		return own
	}
	return until
}

// promise notes that h is to have a lease of d, before that is sent: a release of another hold that
// begins now leaves it alone. A release that is on its way may not know of it, so promise waits for its
// reply, or repeats it.
func (o *Ownership) promise(ctx context.Context, h *Hold, d time.Duration) error {
	h.mu.Lock()
	h.extended = max(h.extended, o.core().Instant(time.Now().Add(d)))
	h.mu.Unlock()
	o.mu.Lock()
	shortening := o.shortening
	o.mu.Unlock()
	if !shortening {
		return nil
	}
	if !o.lockWire(ctx) { // whoever has it awaits the reply
		return context.Cause(ctx)
	}
	defer o.wire.Unlock()
	o.mu.Lock()
	shortening = o.shortening
	o.mu.Unlock()
	if !shortening {
		return nil
	}
	_, err := o.r.Driver.Release(ctx, o, o.addCount(0))
	return err
}
