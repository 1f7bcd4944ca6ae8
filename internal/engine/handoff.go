package engine

import (
	"context"
	"time"

	"github.com/redlatch/redlatch/internal/waitq"
)

// How a lock is handed off.
//
// A release usually frees the lock and publishes a message, and the clients that wait race for it.
// If the releasing client has waiters itself, one command makes the first of them the holder. It
// publishes nothing, and that waiter needs no attempt of its own.
//
// Two things can go wrong. Both are states of the waiter.
//
// The waiter gives up while the command is under way. The command may make it the holder all the
// same:
//
//	releasing goroutine                 waiter W
//	offer: W is marked as offered
//	sends "hand off to W"
//	                                    its context ends. Leave: in doubt, so MustRollback
//	                                    rolls back its request
//
// If the server executes the rollback last, it frees the lock. If it executes the rollback first,
// it remembers that W was rolled back, and the hand-off frees the lock instead.
//
// The command is not answered. The waiter then tries by itself (offered). If its id holds the lock
// by now, the server grants it again.
//
// Other clients must get their turn. A client hands off at most waitq.MaxStreakCount times, and for
// at most waitq.MaxStreak, in a row. Then it frees the lock, and the head of its
// queue lets others go first for a turn: see waitq.Turn.
//
// Requests that poll hear no message. They find the lock free only by chance, which is small if it
// is free for one round trip after each streak. Therefore each release that frees the lock asks the
// server whether somebody polls. As long as somebody does, the client hands nothing off, except
// within a cohort, which has a time of its own: each of its releases frees the lock.

// streak is a series of hand-offs within one client. Each ownership of the series carries it on.
type streak struct {
	since Instant // when the client acquired the lock
	count int32   // hand-offs since
}

// releasePlan is what the release of the last hold does with the lock. It is decided once, before
// the command, by releaseLast for the first row, and by planRelease for the others:
//
//	                                        the lock                     who may acquire next
//	the minimum hold is not over            stays taken for the rest     whoever comes first then
//	the kind hands nothing off, or
//	  the id is shared                      is freed                     whoever comes first
//	nobody here waits                       is freed                     whoever comes first; if another client has asked
//	                                                                     for it, requests that begin here let it go first
//	somebody here waits, and
//	  this client has had its turn          is freed                     other clients, and then the head of the queue;
//	                                                                     whoever comes first for a side of a read-write
//	                                                                     lock without a cohort
//	  the client closes, or
//	    replicas must confirm               is freed                     whoever comes first
//	  the head can take what is released    is handed off                the head
//	  the head cannot                       is freed                     whoever comes first
//
// A client has had its turn when its streak or its cohort is over, or when another client has asked
// for a lock that lingers (hasHadTurn), and as long as other clients poll (leavesToPollers).
//
// The release of a hold that is not the last one sends the remaining count, and a release that is
// repeated frees the lock for whoever comes first: see Release and writeCountUntil of Ownership.
type releasePlan struct {
	next Next
	// queue is the queue whose waiters must hear of the reply. It is nil if nobody here waits.
	queue *waitQueue
	// offered is what the queue has decided: to hand the lock off, to leave it to other clients, or
	// nothing.
	offered waitq.Action
}

// planRelease decides what the release of o does. It takes waitQueues.mu and does not block. The
// caller is the last release of o.
func (o *Ownership) planRelease() (plan releasePlan) {
	mayHandOff := o.r.Traits.HandsOff && !o.Shared
	if !mayHandOff {
		return plan
	}
	r := o.r
	qs := &o.r.Core.queues
	qs.mu.Lock()
	defer qs.mu.Unlock()
	now := time.Now()
	key := queueKey{r.Kind, r.Name}
	queue := qs.open[key]
	hasWaiters := queue != nil && queue.state.AnyStays()
	if !hasWaiters {
		if o.givesUpLinger() {
			qs.leaveToOthers(key, now.Add(waitq.MaxTurn))
		}
		return plan
	}
	plan.queue = queue
	actions := queue.on(&waitq.Event{
		Kind: waitq.Releasing, Permits: int(o.Permits), KeptFor: o.keptFor(),
		HasHadTurn: o.hasHadTurn(now) || o.leavesToPollers(queue),
		HandsOff:   !r.Core.NeedsReplicas && !r.Core.IsClosing(), // a closing client's waiters are leaving
	})
	if len(actions) > 0 {
		plan.offered = actions[0]
	}
	plan.next.Place = plan.offered.Place
	if plan.offered.Kind == waitq.Offer {
		plan.next.Successor = &waiterOf(plan.offered).Request.Owner
	}
	plan.next.AskPolls = plan.next.Successor == nil
	return plan
}

// releaseLast frees the lock, or hands it off, as planRelease decides, or leaves it taken for the
// rest of the minimum hold. It blocks for the reply. The caller is the last release of o, and holds
// o.wire. It takes waitQueues.mu before and after the command, but not around it.
func (o *Ownership) releaseLast(ctx context.Context) (freeing, error) {
	if o.minHoldLeft() > 0 {
		sent := time.Now()
		got, err := o.free(ctx)
		return o.recordAnswer(got, sent, err), err
	}
	plan := o.planRelease()
	sent := time.Now()
	got, err := o.r.Holds.Release(ctx, o, 0, plan.next)
	if plan.queue != nil {
		got.Successor.streak = streak{o.streak.since, o.streak.count + 1}
		plan.queue.released(plan.offered, o, sent, got, err)
	}
	return o.recordAnswer(got, sent, err), err
}

// announceOthersTurn makes the first request that joins the queue let others go first if the
// release of o, which is about to begin, will leave the lock to other clients. It takes
// waitQueues.mu and does not block.
func (o *Ownership) announceOthersTurn() {
	qs := &o.r.Core.queues
	now := time.Now()
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if o.hasHadTurn(now) {
		qs.leaveToOthers(queueKey{o.r.Kind, o.r.Name}, now.Add(waitq.OthersTurnFor(o.keptFor())))
	}
}

// hasHadTurn reports whether other clients go first after the release of o. waitQueues.mu is held.
func (o *Ownership) hasHadTurn(now time.Time) bool { return o.givesUpLinger() || o.streakIsOver(now) }

// givesUpLinger reports whether another client has asked for a lock that lingers. waitQueues.mu is
// held.
func (o *Ownership) givesUpLinger() bool { return o.wanted && o.turnTerms.Linger > 0 }

// leavesToPollers reports whether clients that poll go first, because they find a free lock only by
// chance. A cohort has a time of its own. waitQueues.mu is held.
func (o *Ownership) leavesToPollers(queue *waitQueue) bool {
	return queue.polled && o.turnTerms.Cohort == 0
}

// keptFor returns how long the client may have kept the lock without a command, and how long a turn
// of others lasts then. It is 0 if the client has not kept the lock. Lingering counts only if
// another client has asked: otherwise nobody is known to wait. waitQueues.mu is held.
func (o *Ownership) keptFor() time.Duration {
	if o.turnTerms.Cohort == 0 && o.wanted {
		return o.turnTerms.Linger
	}
	return o.turnTerms.Cohort
}

// streakIsOver reports whether the client has kept the lock for long enough, so that other clients
// go first.
func (o *Ownership) streakIsOver(now time.Time) bool {
	age := o.r.Core.Instant(now) - o.streak.since
	if o.turnTerms.Cohort > 0 {
		return age >= Instant(o.turnTerms.Cohort)
	}
	return o.streak.count >= waitq.MaxStreakCount || age >= Instant(waitq.MaxStreak)
}

// released tells the queue the server's answer to the release of o, which was sent at sent. It
// takes waitQueues.mu, and does not block.
func (wq *waitQueue) released(offered waitq.Action, o *Ownership, sent time.Time, got Released, err error) {
	wq.queues.mu.Lock()
	defer wq.unlock()
	if offered.Kind == waitq.Offer {
		isUnknown := err != nil || got.Lost && got.InDoubt
		outcome := offerRefused
		switch {
		case isUnknown:
			outcome = offerUnknown
		case got.Successor.Granted:
			outcome = offerGranted
		}
		wq.offered(waiterOf(offered), outcome, got.Successor)
		return
	}
	if err == nil {
		wq.polled = got.Polled
	}
	switch {
	case offered.Kind != waitq.Yield: // no turn of other clients begins
	case err != nil:
		wq.on(&waitq.Event{Kind: waitq.Missed})
	default:
		others := got.Receivers
		keptFor := o.keptFor()
		if offered.HearsRelease {
			others--
		}
		if keptFor > 0 && got.Polled {
			others++
		}
		if keptFor > 0 && wq.queues.open[queueKey{o.r.Traits.OtherSide, o.r.Name}] != nil {
			others++ // readers of this client, which share its subscription
		}
		wq.on(&waitq.Event{Kind: waitq.Yielded, KeptFor: keptFor, Sent: sent, Others: others})
	}
}
