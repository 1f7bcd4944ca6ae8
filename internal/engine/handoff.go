package engine

import (
	"context"
	"time"
)

// How a lock is handed off.
//
// A release usually frees the lock and publishes a message, and the clients that wait race for it. If the
// releasing client has waiters itself, one command makes the first of them the holder. It publishes
// nothing, and that waiter needs no attempt of its own.
//
// Two things can go wrong. Both are states of the waiter.
//
// The waiter gives up while the command is under way. The command may make it the holder all the same:
//
//	releasing goroutine                 waiter W
//	offer: W.offered = true
//	sends "hand off to W"
//	                                    its context ends. Leave: offered, so MustRollback
//	                                    rolls back its request
//
// If the server executes the rollback last, it frees the lock. If it executes the rollback first, it
// remembers that W was rolled back, and the hand-off frees the lock instead.
//
// The command is not answered. The waiter then tries by itself (receive with known false). If its id
// holds the lock by now, the server grants it again.
//
// Other clients must get their turn. A client hands off at most maxStreakCount times, and for at most
// maxStreak, in a row. Then it frees the lock, and lets each client that received the message try first
// (yield).

// The limits of a streak: how often, and for how long, the waiters of one client may hand a lock off to
// each other while other clients wait. The idea is lock cohorting (Dice, Marathe and Shavit, 2012).
const (
	maxStreakCount = 16
	maxStreak      = 10 * time.Millisecond
)

// yieldPause is how long a client whose streak is over leaves a free lock to the other clients that
// received the release message.
const yieldPause = time.Millisecond

// streak is a series of hand-offs within one client. Each ownership of the series carries it on.
type streak struct {
	since Instant // when the client acquired the lock
	count int32   // hand-offs since
}

// releaseOrHandOff frees the lock, or hands it off to the first local waiter, unless the minimum hold is not
// over. It blocks for the reply.
// The caller is the last release of o, and holds o.wire. It takes waitQueues.mu before and after the
// command, but not around it.
func (o *Ownership) releaseOrHandOff(ctx context.Context) (lost bool, err error) {
	r := o.r
	qs := &r.Core.queues
	var offered offer
	rest := o.rest()
	if r.Traits.HandsOff && !o.Shared && rest == 0 {
		offered = qs.offer(o)
	}
	next := Next{Place: offered.place, Rest: rest}
	if offered.successor != nil {
		next.Successor = &offered.successor.Request.Owner
	}
	sent := time.Now()
	got, err := r.Driver.Release(ctx, o, 0, next)
	others := got.Heard - offered.self
	switch yielding := offered.yielding; {
	case offered.successor != nil:
		got.Granted.streak = streak{o.streak.since, o.streak.count + 1}
		qs.mu.Lock()
		offered.successor.receive(got.Granted, err == nil && !(got.Lost && got.InDoubt))
		qs.mu.Unlock()
	case yielding != nil && err != nil:
		qs.yield(yielding, -1)
	case yielding != nil && !r.Traits.ClientsTakeTurns:
		qs.yield(yielding, max(others, 1)) // readers of this client go first, too
	case yielding != nil:
		qs.yield(yielding, others)
	}
	return o.isLoss(got, sent), err
}

// offer is what a release does for the local waiters. The zero value: nothing.
type offer struct {
	successor *Waiter    // gets the lock
	yielding  *waitQueue // leaves the lock to other clients
	self      int        // 1 if the queue that yields hears the message of the release, else 0
	place     Place      // for Next
}

// offer picks the successor of o, the first local waiter, and marks it as offered. There is none if the
// client's streak is over: then the queue leaves the lock to other clients. It takes waitQueues.mu and does
// not block.
func (qs *waitQueues) offer(o *Ownership) (next offer) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	r := o.r
	q := qs.successorQueue(r)
	if q == nil {
		return next
	}
	if o.streakIsOver() {
		if !r.Traits.ClientsTakeTurns && o.cohort == 0 {
			return next
		}
		next.yielding, next.place = q, q.toTheEnd()
		if len(q.subs) > 0 {
			// Before the command is sent: the message of this release may come before its reply, and would
			// make our head try at once.
			q.skip++
			next.self = 1
		}
		return next
	}
	w := q.waiters.First
	// Not to a shared id, because the server counts it; not to a waiter for which another command tries
	// already. A closing client frees the lock: its waiters are leaving.
	if w.Request.Shared || w.offered || w.Request.Permits > o.Permits || r.Core.NeedsReplicas || r.Core.IsClosing() {
		return next
	}
	w.offered = true
	next.successor = w
	if w.givesUpPlace = q.inLine && q.isLast(w); w.givesUpPlace {
		next.place = Place{Number: q.place.Number, Last: true}
	}
	return next
}

// streakIsOver reports whether the client has kept the lock for long enough, so that other clients go first.
func (o *Ownership) streakIsOver() bool {
	age := o.r.Core.Instant(time.Now()) - o.streak.since
	if o.cohort > 0 {
		return age >= Instant(o.cohort)
	}
	return o.streak.count >= maxStreakCount || age >= Instant(maxStreak)
}

// receive gives a waiter the result of a command that tried to acquire for it: a hand-off or a batch. If
// it was refused, or if the result is not known, it tries by itself at once. In the second case it stays
// offered: its id may hold the lock, and then the server grants the attempt. If it did not try, the lock
// could stay taken, with no hold, until the lease ends. waitQueues.mu is held.
func (w *Waiter) receive(res Result, known bool) {
	w.offered = !known
	w.inDoubt = w.inDoubt || res.InDoubt
	if known && res.Granted {
		w.granted = &res
		w.Wake()
		return
	}
	w.wakeToTry()
}

// yield leaves the free lock to the other clients that received the release message, once each. If
// there are none, or if the release was not answered (others < 0), the head tries at once.
//
// The queue ignores as many messages as there are others. With two others, X and Y:
//
//  1. our release: ignored. X acquires.
//  2. X releases:  ignored. Y acquires.
//  3. Y releases:  the head tries.
//
// The head also tries yieldPause after our release, in case the others have stopped waiting. A client that
// stands in line waits for its turn instead, and tries maxStreak after the release. A kind whose clients do
// not take turns comes here at the end of a cohort, with at least one other: the readers of its own client.
// yield takes waitQueues.mu, and does not block.
func (qs *waitQueues) yield(q *waitQueue, others int) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	switch {
	case q.waiters.First == nil:
	case others > 0 && q.inLine:
		q.tryWithin(maxStreak)
	case others > 0:
		// offer has counted the message of this release, and it may have come already.
		q.skip = min(q.skip+others-1, others)
		q.tryIn(yieldPause)
	default:
		q.skip = 0
		q.waiters.First.wakeToTry()
	}
}
