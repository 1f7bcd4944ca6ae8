package engine

import (
	"context"
	"time"
)

// Nested holds share one lease on the server: the longest that one of them needs. When that hold is
// released, the lease should shrink to the longest that a remaining hold needs:
//
//	 0 s  A is acquired with a TTL of 30 s, and renewed: the lease ends at 30 s
//	 1 s  B nests with a fixed lease of 60 s:            the lease ends at 61 s
//	 2 s  B is released. A needs 30 s from now:          the lease ends at 32 s
//
// Otherwise, if this process crashed now, other clients would wait until 61 s. The functions below
// compute what the remaining holds need. The driver of readers uses them, because its server keeps
// a lease for each count.

// LeaseFor returns how long, from now, the server must keep o so that each remaining hold has its
// lease. It is 0 if all of them have lapsed. left is the number of remaining holds. known is false
// if o has another number of holds: one has been counted and has not joined yet, or was detached
// and must last. Then the lease must stay as it is.
//
// HoldDriver.Release calls it, with the wire lock held, so that no count is added meanwhile. It
// must call NoteChangeDoubt if the outcome is unknown: see promise.
func (o *Ownership) LeaseFor(left int) (need time.Duration, known bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.r.Core.Instant(time.Now())
	for h := o.holds; h != nil; h = h.sibling {
		if !h.renew {
			need = max(need, time.Duration(max(h.since+Instant(h.ttl), h.state().extended)-now))
		}
	}
	need = max(need, o.renewed().lease(o.r.Core, now), o.min.remaining(now))
	if o.holds != nil {
		need = max(need, time.Millisecond) // 0 would free the lock under a hold that is about to lapse
	}
	if !o.hasOnlyItsHolds(left) || o.lost {
		return 0, false
	}
	return need, true
}

// hasOnlyItsHolds reports whether each of the counts on the server belongs to a hold of o, or to
// one that has lapsed. Otherwise a hold has been counted and has not joined yet, or was detached
// and must last. mu is held.
func (o *Ownership) hasOnlyItsHolds(counts int) bool {
	n := int(o.lapsed)
	for h := o.holds; h != nil; h = h.sibling {
		n++
	}
	return n == counts
}

// NextChange numbers a change of the count. The server ignores a change whose number is lower than
// the last one, so a late copy of an earlier change has no effect. The wire lock is held.
func (o *Ownership) NextChange() uint32 {
	o.wire.change++
	return o.wire.change
}

// ChangeInDoubt reports whether a change of the count has had an attempt of unknown outcome. A copy
// of that attempt may still arrive, and the server must remember the number of the next change
// until then. The wire lock is held.
func (o *Ownership) ChangeInDoubt() bool { return o.wire.changeInDoubt }

// NoteChangeDoubt is called after a command that changes the count. inDoubt says whether an attempt
// has an unknown outcome. The wire lock is held.
func (o *Ownership) NoteChangeDoubt(inDoubt bool) {
	o.wire.changeInDoubt = o.wire.changeInDoubt || inDoubt
}

// renewedHolds is the lease that the renewed holds of an ownership need together. Holds with a
// fixed lease are not part of it.
type renewedHolds struct {
	ttl      time.Duration // the longest TTL; 0 if no hold is renewed
	shortest time.Duration // the shortest TTL
	limited  bool          // each of them has a limit
	limit    Instant       // the last of these limits
	extended Instant       // the latest end of a lease that an Extend got, or may still get
}

// renewed sums up the renewed holds. mu is held; it takes the mutex of each hold.
func (o *Ownership) renewed() renewedHolds {
	all := renewedHolds{limited: true}
	for h := o.holds; h != nil; h = h.sibling {
		if !h.renew {
			continue
		}
		s := h.state()
		if all.ttl == 0 || h.ttl < all.shortest {
			all.shortest = h.ttl
		}
		all.ttl = max(all.ttl, h.ttl)
		all.limited = all.limited && s.limit != 0
		all.limit = max(all.limit, s.limit)
		all.extended = max(all.extended, s.extended)
	}
	return all
}

// lease returns the longest lease, from now, that one of the holds needs. It is 0 or less if there
// is none. A renewal may be under way, so it is never shorter than a renewal that is sent now.
func (all renewedHolds) lease(c *Core, now Instant) time.Duration {
	ttl := all.ttl
	if all.limited {
		ttl = min(ttl, time.Duration(all.limit-now)+c.MarginOf(ttl))
	}
	return max(ttl, time.Duration(all.extended-now))
}

// promise notes, before Extend is sent, that h needs a lease of d. A release of a sibling that
// begins after that leaves h this lease. A release that was sent before could undo the extension:
//
//	release of a sibling             Extend of h by 60 s
//	sends "lease 30 s", no reply
//	                                 sends "lease 60 s", is answered: h is valid for 60 s
//	(a late copy is executed:
//	the lease ends after 30 s)
//
// So promise waits for a release that is under way. If one was not answered, promise sends it again
// with a new change number and the new lease, so that the late copy has no effect. It blocks for
// that, and takes the wire lock. Where a release never shortens the lease, it does neither.
func (o *Ownership) promise(ctx context.Context, h *Hold, d time.Duration) error {
	h.mu.Lock()
	h.extended = max(h.extended, o.r.Core.Instant(time.Now().Add(d)))
	h.mu.Unlock()
	if !o.r.Traits.ManyHolders {
		return nil
	}
	if !o.wire.LockContext(ctx) { // the release holds wire until its reply, or its end
		return context.Cause(ctx)
	}
	defer o.wire.Unlock()
	if !o.wire.changeInDoubt {
		return nil
	}
	left := o.addCount(0)
	if left == 0 {
		return nil // the release of h has begun, and frees the lock
	}
	_, err := o.r.Holds.Release(ctx, o, left, Next{})
	return err
}
