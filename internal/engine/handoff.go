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
//	offer: W is marked as offered
//	sends "hand off to W"
//	                                    its context ends. Leave: in doubt, so MustRollback
//	                                    rolls back its request
//
// If the server executes the rollback last, it frees the lock. If it executes the rollback first, it
// remembers that W was rolled back, and the hand-off frees the lock instead.
//
// The command is not answered. The waiter then tries by itself (answer). If its id
// holds the lock by now, the server grants it again.
//
// Other clients must get their turn. A client hands off at most waitq.MaxStreakCount times, and for at
// most waitq.MaxStreak, in a row. Then it frees the lock, and its head stands back for a turn of the others: see
// waitq.Turn.
//
// Requests that poll hear no message. They find the lock free only by chance, which is small if it is free for one
// round trip after each streak. So each release that frees the lock asks the server whether somebody polls. As long as
// somebody does, the client hands nothing off: each of its releases frees the lock.

// streak is a series of hand-offs within one client. Each ownership of the series carries it on.
type streak struct {
	since Instant // when the client acquired the lock
	count int32   // hand-offs since
}

// releaseOrHandOff frees the lock, or hands it off to the first local waiter, unless the minimum hold is not
// over. It blocks for the reply. The caller is the last release of o, and holds o.wire. It takes waitQueues.mu
// before and after the command, but not around it.
func (o *Ownership) releaseOrHandOff(ctx context.Context) (lost, handedOff bool, err error) {
	r := o.r
	next := Next{Rest: o.rest()}
	var q *waitQueue
	var offered waitq.Action
	mayHandOff := r.Traits.HandsOff && !o.Shared
	if mayHandOff && next.Rest == 0 {
		q, offered = r.Core.queues.offer(o)
		next.Place = offered.Place
		if offered.Do == waitq.Offer {
			next.Successor = &waiterOf(offered).Request.Owner
		}
		next.AskPolls = q != nil && next.Successor == nil
	}
	sent := time.Now()
	got, err := r.Driver.Release(ctx, o, 0, next)
	if q != nil {
		got.Granted.streak = streak{o.streak.since, o.streak.count + 1}
		q.released(offered, o, sent, got, err)
	}
	return o.freed(got, sent, err), got.Granted.Granted, err
}

// offer asks the local queue who gets what o releases: a waiter, or other clients. q is nil if nobody waits, and
// offered zero if whoever tries first gets it. It takes waitQueues.mu and does not block.
func (qs *waitQueues) offer(o *Ownership) (q *waitQueue, offered waitq.Action) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	r := o.r
	q = qs.open[queueKey{r.Kind, r.Name}]
	now, wasAskedFor := time.Now(), o.wanted && o.turns.Linger > 0
	hasWaiters := q != nil && q.state.AnyStays()
	if !hasWaiters {
		if wasAskedFor {
			qs.leaveToOthers(queueKey{r.Kind, r.Name}, now.Add(waitq.MaxTurn))
		}
		return nil, offered
	}
	leavesToPollers := q.polled && o.turns.Cohort == 0
	actions := q.on(&waitq.Event{
		What: waitq.Releasing, Permits: int(o.Permits), Cohort: o.keptFor(),
		Over:     leavesToPollers || wasAskedFor || o.streakIsOver(now),
		HandsOff: !r.Core.NeedsReplicas && !r.Core.IsClosing(), // a closing client's waiters are leaving
	})
	if len(actions) == 0 {
		return q, offered
	}
	return q, actions[0]
}

// announceOthersTurn makes the first request that joins the queue stand back, if the release of o, which is about to
// begin, will leave the lock to other clients. It takes waitQueues.mu and does not block.
func (o *Ownership) announceOthersTurn() {
	qs, now := &o.r.Core.queues, time.Now()
	qs.mu.Lock()
	defer qs.mu.Unlock()
	wasAskedFor := o.wanted && o.turns.Linger > 0
	if wasAskedFor || o.streakIsOver(now) {
		qs.leaveToOthers(queueKey{o.r.Kind, o.r.Name}, now.Add(waitq.OthersTurnFor(o.keptFor())))
	}
}

// keptFor is how long the client may have kept the lock without a command, and how long a turn of others lasts then; 0:
// it has not kept it. Lingering counts only if another client has asked: otherwise nobody is known to wait.
// waitQueues.mu is held.
func (o *Ownership) keptFor() time.Duration {
	if o.turns.Cohort == 0 && o.wanted {
		return o.turns.Linger
	}
	return o.turns.Cohort
}

// streakIsOver reports whether the client has kept the lock for long enough, so that other clients go first.
func (o *Ownership) streakIsOver(now time.Time) bool {
	age := o.r.Core.Instant(now) - o.streak.since
	if o.turns.Cohort > 0 {
		return age >= Instant(o.turns.Cohort)
	}
	return o.streak.count >= waitq.MaxStreakCount || age >= Instant(waitq.MaxStreak)
}

// released tells the queue what the server has answered to the release of o that was sent at that time. It takes
// waitQueues.mu, and does not block.
func (q *waitQueue) released(offered waitq.Action, o *Ownership, sent time.Time, got Released, err error) {
	q.queues.mu.Lock()
	defer q.unlock()
	if offered.Do == waitq.Offer {
		q.answer(waiterOf(offered), got.Granted, err == nil && !(got.Lost && got.InDoubt), false)
		return
	}
	if err == nil {
		q.polled = got.Polled
	}
	switch {
	case offered.Do != waitq.Yield:
	case err != nil:
		q.on(&waitq.Event{What: waitq.Missed})
	default:
		others, keptFor := got.Heard, o.keptFor()
		if offered.Told {
			others--
		}
		if keptFor > 0 && got.Polled {
			others++
		}
		if keptFor > 0 && q.queues.open[queueKey{o.r.Traits.SharesWith, o.r.Name}] != nil {
			others++ // readers of this client, which share its subscription
		}
		q.on(&waitq.Event{What: waitq.Yielded, Cohort: keptFor, Sent: sent, Others: others})
	}
}
