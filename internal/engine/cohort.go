package engine

import (
	"context"
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
// Nothing can be in doubt in between, because nothing is sent. The goroutine that releases makes the
// successor's hold itself, with waitQueues.mu held. So the waiter has either left the queue before, or it has
// the hold. If it gives up at that instant, it releases the hold again (giveBack). If the lock is lost at that instant,
// it goes on waiting (accepts): nobody loses a hold that he never had.
//
// Passing on confirms nothing, so the successor's hold is valid for as long as its predecessor's was. The
// watchdog goes on renewing the lease of the ownership. When the lock is lost, the ownership ends the hold
// of the member that has it.

// cohortTokens is how many fencing tokens a request reserves that may begin a cohort: its own, and one for
// each hold after it. When they are used up, the next release hands the lock off by a command, which reserves
// more. The number fits Hold.earlier.
const cohortTokens = 1000

// isFor reports whether the hold of q would be kept as h is, the hold of o.
func (o *Ownership) isFor(q *Request, h *Hold) bool {
	return q.mayPass() && q.Terms.Cohort == o.passes.Cohort && q.Terms.Linger == o.passes.Linger && q.TTL == h.ttl
}

// passOn makes the first local waiter the holder in the place of h, and reports whether it did. If not, the
// caller releases h by a command. It never blocks.
func (o *Ownership) passOn(h *Hold) bool {
	if !o.wire.TryLock() {
		return false
	}
	qs := &o.r.Core.queues
	qs.mu.Lock()
	defer qs.mu.Unlock()
	defer o.wire.Unlock() // before mu: the waiter may give up at once, and pass the lock on
	q := qs.open[queueKey{o.r.Kind, o.r.Name}]
	now := time.Now()
	if q == nil || o.streakIsOver(now) {
		return false
	}
	isReplaced := q.latest != "" && q.latest != o.ID
	if isReplaced {
		return false // the server has granted the lock to another waiter meanwhile: h is lost
	}
	head := q.state.Head()
	if head == nil || !head.MayPass() || !o.isFor(head.Of.(*Waiter).Request, h) {
		return false
	}
	w := head.Of.(*Waiter)
	next := o.succeed(w.Request.Terms.holdContext(w.Request.Wait.caller), h, now, true)
	if next == nil {
		return false
	}
	w.Request.passed = next
	q.answer(w, Result{Granted: true, Sent: now}, true, false)
	return true
}

// succeed replaces h, the only hold of o, by a new hold. ctx is the context of the new hold's caller. used: the
// new hold gets a fencing token of its own. succeed returns nil if the lock may not be passed on. The caller
// holds o.wire and waitQueues.mu.
func (o *Ownership) succeed(ctx context.Context, h *Hold, now time.Time, used bool) *Hold {
	c := o.r.Core
	o.mu.Lock()
	defer o.mu.Unlock()
	state := h.state()
	switch {
	case o.holds != h || h.sibling != nil || o.count != 1 || o.otherKind:
		return nil // it is lost, or h is not the only hold
	case state.limit != 0 || state.extended != 0:
		return nil // h has a lease that the next hold was not promised
	case o.lease.ValidUntil().Sub(now) < h.ttl/2:
		return nil // renewals are overdue: let the server decide
	case o.r.Traits.Fenced && (o.Token == 0 || o.passed+1 >= o.Tokens):
		return nil // no token is left, or an adopted hold has none
	}
	next := &Hold{
		r: o.r, held: o, ctx: ctx, since: c.Instant(now), ttl: h.ttl, renew: true, depth: 1, unaccepted: true,
	}
	if !c.holds.add(next) {
		return nil // the client is closing
	}
	if o.r.Traits.Fenced && used {
		o.passed++
	}
	next.earlier = uint16(o.passed)
	o.holds = next
	return next
}

// endCohort keeps o from being passed on, because an acquisition of another kind is about to nest under outer: a
// writer's, to read. For the server the next hold of the cohort would be the same writer, which may read. It
// reports false if the release of outer has begun, and o may have been passed on.
func (o *Ownership) endCohort(outer *Hold) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if outer.state().taken {
		return false
	}
	o.otherKind = true
	return true
}

// accepts makes the hold that was passed on to w the hold of its acquisition, and reports whether it did. If not, the
// hold is lost, and w waits on as if it had not been passed on. mu is held.
func (q *waitQueue) accepts(w *Waiter) bool {
	passed := w.Request.passed
	if passed.accept() {
		return true
	}
	w.granted, w.Request.passed = nil, nil
	passed.giveBack(context.Background(), 0)
	return false
}

// accept makes a hold that was passed on the hold of the waiter's acquisition, and reports whether it did. It does not
// if the hold has ended meanwhile, or is over: after a pause of the process its end may not have been reported yet.
func (h *Hold) accept() bool {
	over := !h.ValidUntil().After(time.Now())
	h.mu.Lock()
	defer h.mu.Unlock()
	h.unaccepted = h.cause != nil || over
	return !h.unaccepted
}

// giveBack releases a hold without a user: one that was passed on to a waiter that had given up, or that kept a
// lingering lock. It waits for the release for limit at most, and not for long once the caller's ctx has ended. The
// observer does not hear of the hold. The goroutine ends within releaseTimeout. It is no duty, which could wait
// behind others: the hold is renewed until it ends. A nil hold is none.
func (h *Hold) giveBack(caller context.Context, limit time.Duration) {
	if h == nil {
		return
	}
	c, ctx := h.r.Core, context.WithoutCancel(h.ctx)
	err := c.Enter()
	if err != nil {
		_ = h.takeAndForget()
		return
	}
	// The release begins now, and not when the goroutine runs: Close abandons no hold whose release has begun.
	taken, released := h.take(), make(chan struct{})
	c.Spawn(func() {
		defer close(released)
		defer c.Leave()
		_ = h.release(ctx, taken) // if it is not answered, it goes on in the background
	})
	awaitFirst(caller, released, limit)
}
