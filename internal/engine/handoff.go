package engine

import (
	"context"
	"time"
)

// How a lock is handed off.
//
// A release usually frees the lock, tells all clients, and lets them race for it. If the releasing client
// has waiters itself, one command does better: it makes the first of them the holder, and nobody else is
// told. That waiter needs no attempt of its own.
//
// Two things can go wrong, and both are states of the waiter. It may give up while the command is on its
// way: then it leaves with offered set, and its request is rolled back. Or the command's outcome may be
// unknown: then the waiter tries by itself, and the server tells whether its id holds.
//
// Other clients must get their turn. A client hands off at most maxStreakCount times, and for at most
// maxStreak, in a row. Then it frees the lock, and lets every client that heard of it try first (yield).

// The waiters of one client may hand a lock off to each other, with one command each, while other
// clients wait: so often and for so long (lock cohorting: Dice, Marathe and Shavit, 2012).
const (
	maxStreakCount = 16
	maxStreak      = 10 * time.Millisecond
)

// yieldPause is how long a client whose streak is over leaves a free lock to the clients that were told
// of it.
const yieldPause = time.Millisecond

// streak is a series of hand-offs within one client.
type streak struct {
	since Instant // when the client acquired the lock
	count int32   // hand-offs since
}

// releaseOrHandOff frees what o holds, or hands it off to the first local waiter. The caller holds o.wire.
func (o *Ownership) releaseOrHandOff(ctx context.Context) (lost bool, err error) {
	r := o.r
	handOff := r.Traits.HandOff
	if handOff == nil || o.Shared {
		return r.Driver.Release(ctx, o, 0)
	}
	qs := &r.Core.queues
	successor, yielding := qs.offer(o)
	var next *Owner
	if successor != nil {
		next = &successor.Request.Owner
	}
	got, err := handOff(ctx, o, next)
	switch {
	case successor != nil:
		got.Granted.streak = streak{o.streak.since, o.streak.count + 1}
		qs.mu.Lock()
		successor.receive(got.Granted, err == nil)
		qs.mu.Unlock()
	case yielding != nil && err == nil:
		qs.yield(yielding, got.Heard-1)
	case yielding != nil:
		qs.yield(yielding, -1)
	}
	return got.Lost, err
}

// offer picks the successor of o: the first local waiter. There is none if the client's streak is over:
// then its queue leaves the lock to other clients.
func (qs *waitQueues) offer(o *Ownership) (successor *Waiter, yielding *waitQueue) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	r := o.r
	q := qs.open[queueKey{r.Kind, r.Name, false}]
	if q == nil || q.waiters.First == nil {
		return nil, nil
	}
	if o.streakIsOver() {
		if !r.Traits.ClientsTakeTurns && o.cohort == 0 {
			return nil, nil
		}
		q.skip++ // before the message of the release can come
		return nil, q
	}
	w := q.waiters.First
	if w.Request.Shared || w.offered || w.Request.Permits > o.Permits || r.Core.NeedsReplicas || r.Core.IsClosing() {
		return nil, nil
	}
	w.offered = true
	return w, nil
}

// streakIsOver reports whether the client has kept the lock for long enough, so that other clients go first.
func (o *Ownership) streakIsOver() bool {
	age := o.r.Core.Instant(time.Now()) - o.streak.since
	if o.cohort > 0 {
		return age >= Instant(o.cohort)
	}
	return o.streak.count >= maxStreakCount || age >= Instant(maxStreak)
}

// receive tells a waiter what another has acquired for it. If that is unknown it has to ask: the server
// knows what its id holds. The mutex of the wait queues is held.
func (w *Waiter) receive(res Result, known bool) {
	w.offered = !known
	w.inDoubt = w.inDoubt || res.InDoubt
	if known && res.Granted {
		w.granted = &res
		w.Wake()
		return
	}
	w.prod()
}

// yield leaves the free lock to the other clients that were told of it, once each. If there are none,
// the head tries at once.
func (qs *waitQueues) yield(q *waitQueue, others int) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	switch {
	case q.waiters.First == nil:
	case others > 0:
		q.skip = min(q.skip+others-1, others)
		q.lookIn(yieldPause)
	default:
		q.skip = 0
		q.waiters.First.prod()
	}
}
