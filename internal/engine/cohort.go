package engine

import (
	"context"
	"errors"
	"time"
)

// How a lock is passed on within a cohort.
//
// A hand-off costs one command. A cohort saves that too: the release of a hold makes the first local waiter
// the holder, and the server is not asked. All holds of a cohort share one ownership, one after the other.
// For the server one id holds the lock all the time, with a count of 1.
//
//	Acquire by a -> command                 the server: id 7 holds
//	Release by a -> passed on to b          the server: id 7 holds
//	Release by b -> passed on to c          the server: id 7 holds
//	Release by c -> command                 the server: free; other clients go first
//
// Nothing is in doubt in between, because nothing is sent. The successor's hold is made here, by the
// goroutine that releases, with the mutex of the wait queues held. So a waiter either has left before, or
// has the hold: if it does not want it any more, it gives it back as a release does (giveBack).
//
// A successor trusts the lock for as long as its predecessor did: passing on confirms nothing. The lease
// stays registered with the watchdog, which goes on renewing it. A loss ends the ownership, and with it the
// hold of the member that has the lock then.

// cohortTokens is how many fencing tokens the first member of a cohort reserves, its own among them. A cohort
// that has used them all goes on with a hand-off, which reserves more.
const cohortTokens = 1000 // fits Hold.member

// inCohort reports whether the hold of q may be part of a cohort.
func (q *Request) inCohort() bool {
	t := q.Terms
	return t.Cohort > 0 && t.Renew && t.MaxHold == 0 && !q.Shared && q.group == nil
}

// passOn makes the first local waiter the holder in the place of h, and reports whether it did. If not, the
// caller releases h by a command.
func (o *Ownership) passOn(h *Hold) bool {
	if o.cohort == 0 || !o.wire.TryLock() {
		return false
	}
	defer o.wire.Unlock()
	qs := &o.r.Core.queues
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q := qs.open[queueKey{o.r.Kind, o.r.Name, false}]
	if q == nil || q.waiters.First == nil || o.streakIsOver() {
		return false
	}
	w := q.waiters.First
	// A waiter with an attempt under way or in doubt may hold the lock by an id of its own later on: such an
	// attempt must be rolled back, or be the one that holds.
	if w.trying || w.offered || w.inDoubt || w.Request.MustRollback {
		return false
	}
	if !w.Request.inCohort() || w.Request.Terms.Cohort != o.cohort || w.Request.TTL != h.ttl {
		return false // its hold is kept in another way
	}
	next := o.succeed(h, w.Request)
	if next == nil {
		return false
	}
	w.Request.passed = next
	w.granted = &Result{Granted: true, Sent: time.Now()}
	w.Wake()
	return true
}

// succeed replaces h, the only hold of o, by a new one for q. It returns nil if the lock may not be passed
// on. The caller holds wire and the mutex of the wait queues.
func (o *Ownership) succeed(h *Hold, q *Request) *Hold {
	c, now := o.r.Core, time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.holds != h || h.sibling != nil || o.count != 1:
		return nil // it is lost, or h is not the only hold
	case !h.until().IsZero() || h.extendedUntil() != 0:
		return nil // h has a lease that the next hold was not promised
	case o.lease.ValidUntil().Sub(now) < h.ttl/2:
		return nil // renewals are overdue: let the server decide
	case o.r.Traits.Fenced && (o.Token == 0 || o.passed+1 >= o.Tokens):
		return nil // no token is left, or an adopted hold has none
	}
	next := &Hold{
		r: o.r, held: o, ctx: q.wait.caller, since: c.Instant(now), ttl: h.ttl, renew: true, depth: 1,
	}
	if !c.holds.add(next) {
		return nil // the client is closing
	}
	if o.r.Traits.Fenced {
		o.passed++
	}
	next.member = uint16(o.passed)
	o.holds = next
	c.HoldAdded()
	return next
}

// giveBack releases a hold that was passed on to a waiter which does not want it any more.
func (h *Hold) giveBack(began time.Time) {
	c := h.r.Core
	c.inBackground(h.ctx, time.Now().Add(releaseTimeout), c.rollbackLimit(began), func(ctx context.Context) error {
		if err := h.take(); err != nil {
			if errors.Is(err, ErrLost) {
				h.held.abandon(ctx)
			}
			return nil
		}
		_, _ = h.held.release(ctx, h) // if it is not answered, it goes on in the background
		h.end(ErrReleased)
		return nil
	})
}
