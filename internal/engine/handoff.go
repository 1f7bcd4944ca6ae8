package engine

import (
	"context"
	"time"

	"github.com/redlatch/redlatch/internal/waitq"
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
// Other clients must get their turn. A client hands off at most waitq.MaxStreakCount times, and for at
// most waitq.MaxStreak, in a row. Then it frees the lock, and its head stands back for a turn of the others: see
// waitq.Turn.

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
	next := Next{Rest: rest, Place: offered.place, CountPolls: offered.yielding != nil && o.cohort() > 0}
	if offered.successor != nil {
		next.Successor = &offered.successor.Request.Owner
	}
	sent := time.Now()
	got, err := r.Driver.Release(ctx, o, 0, next)
	switch {
	case offered.successor != nil:
		got.Granted.streak = streak{o.streak.since, o.streak.count + 1}
		qs.mu.Lock()
		offered.successor.receive(got.Granted, err == nil && !(got.Lost && got.InDoubt))
		qs.mu.Unlock()
	case offered.yielding != nil && err != nil:
		qs.tryNow(offered.yielding)
	case offered.yielding != nil:
		qs.yield(offered, o, sent, got.Heard)
	}
	return o.freed(got, sent, err), err
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
		if !r.Traits.ClientsTakeTurns && o.cohort() == 0 {
			return next
		}
		next.yielding, next.place = q, q.toTheEnd()
		if len(q.subs) > 0 {
			next.self = 1
		}
		q.turn.On(waitq.Event{What: waitq.Left, Now: time.Now(), Cohort: o.cohort(), Told: next.self == 1})
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
	if o.cohort() > 0 {
		return age >= Instant(o.cohort())
	}
	return o.streak.count >= waitq.MaxStreakCount || age >= Instant(waitq.MaxStreak)
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

// yield is called when a release has left the lock to other clients. heard is how many clients were told of it.
// It takes waitQueues.mu, and does not block.
func (qs *waitQueues) yield(next offer, o *Ownership, sent time.Time, heard int) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q := next.yielding
	if q.waiters.First == nil {
		return // all have left
	}
	others := heard - next.self
	if o.cohort() > 0 && qs.open[queueKey{o.r.Traits.SharesWith, o.r.Name, false}] != nil {
		others++ // readers of this client, which share its subscription
	}
	q.onTurn(waitq.Event{
		What: waitq.Answered, Now: time.Now(), Cohort: o.cohort(), Sent: sent, Others: others,
		OneByOne: o.r.Traits.ClientsTakeTurns && !q.inLine,
	})
}

// tryNow makes the head of a queue try. It takes waitQueues.mu, and does not block.
func (qs *waitQueues) tryNow(q *waitQueue) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q.onTurn(waitq.Event{What: waitq.Missed})
}
