package engine

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/redlatch/redlatch/internal/failure"
	"github.com/redlatch/redlatch/internal/waitq"
)

// The local wait queue of a name. Package waitq decides which of its waiters tries, and when: this
// file tells it what happens, and does what it says. It has the mutex, the subscriptions, the alarm
// and the commands.

// MaxBatch is the largest number of requests in [Traits].AcquireBatch, besides the first.
const MaxBatch = waitq.MaxBatch

// waitQueues are a client's local wait queues, one for each kind and name with waiters. It is a
// part of Core. One mutex for all queues is enough: it is held for moments, and never around a
// command.
type waitQueues struct {
	mu   sync.Mutex // guards all queues, and the queue fields of their waiters
	open map[queueKey]*waitQueue
	// pending has, by id, the requests whose holds may linger and are not known yet. Another client
	// may ask for such a hold before the reply that grants it has come.
	pending map[string]*Request
	// wantedNext says, by name, until when the ask of another client counts for the next hold.
	wantedNext map[string]time.Time
	// leftTo says until when other clients go first, because one of them has asked for a lock that
	// nobody here waited for.
	leftTo map[queueKey]time.Time
	// polling counts the requests that poll. They are in none of the queues.
	polling map[queueKey]int
}

// queueKey is a resource of the client.
type queueKey struct{ kind, name string }

// waitQueue is the local queue for one name. The first request that waits opens it (join), and the
// last one that leaves closes it.
type waitQueue struct {
	queues *waitQueues
	key    queueKey
	r      *Resource

	// queues.mu guards the rest.
	state     waitq.Queue
	alarm     *time.Timer    // calls onAlarm
	alarmAt   time.Time      // when alarm comes, at or before state.TryAt; zero if it is not set
	contact   Contact        // of all waiters
	polled    bool           // somebody polls for the lock, as the latest release that asked has heard
	subs      []Subscription // to the common messages; empty if it need not listen
	atPlace   Subscription   // to the messages to its place in line; nil if it has none
	unsettled []Subscription // neither confirmed nor refused, as far as the head has seen
	// members are the contacts of a joint lock's members that the head left behind when it gave up:
	// the others still wait for these members. It is nil once another attempt was answered. See
	// WaitForMember.
	members map[*Resource]*Contact
	// For unlock: what must not be done with queues.mu held.
	leaving   []map[*Resource]*Contact
	needless  []Subscription
	acquired  bool   // the waiter that leaves has acquired, and must not be delayed
	leftPlace uint64 // the place to give up; 0 if there is none
}

// mustWait reports whether q must join the queue without an attempt, because of a local waiter that
// needs no more than q does. An attempt of q would be refused, or it would overtake that waiter. A
// shared id always tries, because it may hold the lock already. So does a request that polls.
func (qs *waitQueues) mustWait(r *Resource, q *Request) bool {
	if q.Shared || q.polls() {
		return false
	}
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if r.Traits.yieldsToOtherSide() && qs.open[queueKey{r.Traits.OtherSide, r.Name}] != nil {
		return true
	}
	key := queueKey{r.Kind, r.Name}
	queue := qs.open[key]
	if queue == nil {
		return !qs.othersTurn(key, time.Now()).IsZero() // it opens the queue, and lets others go first
	}
	return queue.state.MustWait(int(q.Permits))
}

// leaveToOthers begins a turn of other clients for a resource for which nobody here waits yet. mu
// is held.
func (qs *waitQueues) leaveToOthers(key queueKey, until time.Time) {
	if len(qs.leftTo) >= maxKept {
		now := time.Now()
		maps.DeleteFunc(qs.leftTo, func(_ queueKey, until time.Time) bool { return !now.Before(until) })
	}
	qs.leftTo[key] = until
}

// maxKept is how many names leftTo and wantedNext each keep before the entries whose time is over
// are removed.
const maxKept = 100

// othersTurn returns until when other clients go first, or zero if they do not. mu is held.
func (qs *waitQueues) othersTurn(key queueKey, now time.Time) time.Time {
	until, isLeft := qs.leftTo[key]
	hasExpired := isLeft && !now.Before(until)
	if hasExpired {
		delete(qs.leftTo, key)
		return time.Time{}
	}
	return until
}

// AnyWaits reports whether requests of this client wait for messages of r.
func (r *Resource) AnyWaits() bool {
	qs := &r.Core.queues
	qs.mu.Lock()
	defer qs.mu.Unlock()
	return qs.open[queueKey{r.Kind, r.Name}] != nil
}

// Usage is how much of a client is in use, for tests that look for leaks. WaitQueues counts the
// names for which requests wait, and Expecting the requests that others may ask for a lock.
type Usage struct{ WaitQueues, Expecting, Leases, Holds int }

// Usage returns how much of the client is in use. The counts are not of one moment.
func (c *Core) Usage() Usage {
	c.queues.mu.Lock()
	defer c.queues.mu.Unlock()
	return Usage{
		WaitQueues: len(c.queues.open) + len(c.queues.polling), Expecting: len(c.queues.pending),
		Leases: c.dog.Len(), Holds: c.holds.len(),
	}
}

// join adds a waiter to the queue of its name, and opens it if there is none.
func (qs *waitQueues) join(w *Waiter, refused Result) *waitQueue {
	r := w.resource
	key := queueKey{r.Kind, r.Name}
	qs.mu.Lock()
	wq := qs.open[key]
	if wq == nil {
		wq = r.newQueue()
		qs.open[key] = wq
	}
	wq.add(w, refused)
	wq.unlock()
	return wq
}

func (r *Resource) newQueue() *waitQueue {
	return &waitQueue{queues: &r.Core.queues, key: queueKey{r.Kind, r.Name}, r: r, state: waitq.Queue{
		ManyHolders: r.Traits.ManyHolders, TakeTurns: r.Traits.hasTurnsOfClients(),
		Batches: r.Traits.AcquireBatch != nil && !r.Core.NeedsReplicas, // replicas confirm each acquisition by itself
	}}
}

// on passes an event to state, and does what state says, except for what only the caller can do. It
// returns all actions. queues.mu is held, even while the caller reads them.
func (wq *waitQueue) on(e *waitq.Event) []waitq.Action {
	if wq.state.NeedsTime(e) {
		e.Now = time.Now()
	}
	actions := wq.state.On(e)
	for _, a := range actions {
		switch a.Kind {
		case waitq.Wake:
			waiterOf(a).Wake()
		case waitq.Subscribe:
			wq.listen()
		case waitq.JoinLine:
			wq.joinLine(waiterOf(a).Request.Number)
		case waitq.Unsubscribe:
			wq.needless = append(wq.needless, wq.subs...)
			wq.subs = nil
			wq.unsettled = nil
		case waitq.LeaveLine:
			wq.needless = append(wq.needless, wq.atPlace)
			wq.atPlace = nil
			wq.leftPlace = a.Place.Number
		default: // the caller's
		}
	}
	wq.setAlarm(e.Now)
	return actions
}

func waiterOf(a waitq.Action) *Waiter { return a.Who.Of.(*Waiter) }

// unlock frees queues.mu, ends subscriptions that nobody needs, and gives the place up. Close of a
// subscription waits for the listener, which takes the mutex.
func (wq *waitQueue) unlock() {
	place := wq.leftPlace
	left := wq.leaving
	needless := wq.needless
	acquired := wq.acquired
	wq.leftPlace = 0
	wq.leaving = nil
	wq.needless = nil
	wq.acquired = false
	wq.queues.mu.Unlock()
	for _, members := range left {
		leaveMembers(members)
	}
	if place != 0 {
		wq.r.giveUpPlace(place, acquired)
	}
	for _, sub := range needless {
		if acquired {
			sub.CloseSoon()
		} else {
			sub.Close() // nothing stays behind when a waiter gives up
		}
	}
}

// setAlarm sets the alarm for TryAt. It moves the alarm only to an earlier time: moving it for each
// attempt would cost more than an alarm that comes too early and is set again. queues.mu is held.
func (wq *waitQueue) setAlarm(now time.Time) {
	at := wq.state.TryAt
	switch {
	case at.IsZero() && wq.alarmAt.IsZero():
		return
	case at.IsZero():
		wq.alarm.Stop()
	case wq.alarm == nil:
		wq.alarm = time.AfterFunc(at.Sub(now), wq.onAlarm)
	case wq.alarmAt.IsZero() || at.Before(wq.alarmAt):
		wq.alarm.Reset(at.Sub(now))
	default:
		return
	}
	wq.alarmAt = at
}

// onAlarm is called when the alarm comes, in the timer's goroutine. It takes queues.mu and does not
// block. The alarm may come after the last waiter has left, or too early.
func (wq *waitQueue) onAlarm() {
	wq.queues.mu.Lock()
	defer wq.unlock()
	wq.alarmAt = time.Time{}
	wq.on(&waitq.Event{Kind: waitq.Alarm})
}

// add adds a waiter. The first one subscribes for the whole queue, with queues.mu held, so a
// message that comes at once waits until the waiter is in the queue. queues.mu is held.
func (wq *waitQueue) add(w *Waiter, refused Result) {
	q := w.Request
	q.ShareContact(&wq.contact)
	w.local = waitq.Waiter{Of: w, ID: q.ID, Shared: q.Shared, Permits: int(q.Permits)}
	w.local.Doubt = q.InDoubt
	joined := waitq.Event{Kind: waitq.Joined, Who: &w.local, RetryAfter: refused.RetryAfter}
	if len(wq.queues.leftTo) > 0 {
		joined.OthersTurnEnds = wq.queues.othersTurn(wq.key, time.Now())
		delete(wq.queues.leftTo, wq.key)
	}
	wq.on(&joined)
}

// listen subscribes to the messages of releases. The head's next attempt waits for the
// confirmation: a release between a refused attempt and the subscription would never be heard.
// queues.mu is held.
func (wq *waitQueue) listen() {
	wq.subs = wq.r.Driver.Subscribe(wq.message)
	wq.unsettled = append(wq.unsettled, wq.subs...)
	wq.state.Subscribed(len(wq.subs), 0)
}

// NextStep implements [Queue]. It uses up the waiter's reason to try. The head also waits for the
// subscriptions that are not confirmed yet, one after another.
func (wq *waitQueue) NextStep(w *Waiter) (step Step) {
	wq.queues.mu.Lock()
	defer wq.unlock()
	isHead := wq.state.Head() == &w.local
	for isHead && len(wq.unsettled) > 0 && IsClosed(wq.unsettled[0].Confirmed()) {
		wq.subscriptionSettled(w)
	}
	switch {
	case w.granted != nil:
		step.Granted = w.granted
	case w.local.State == waitq.Due:
		isHeard := wq.atPlace != nil && IsClosed(wq.atPlace.Confirmed()) && wq.atPlace.Err() == nil
		begun := wq.on(&waitq.Event{Kind: waitq.Begins, Who: &w.local, InLine: isHeard})
		step.Try = true
		w.Request.Place = begun[0].Place
	case isHead && len(wq.unsettled) > 0:
		step.Confirmed = wq.unsettled[0].Confirmed()
	}
	return step
}

// subscriptionSettled notes that one more subscription is confirmed, or was refused. After the last
// one, the head makes its second attempt. From then on each release causes a message. If a
// subscription was refused, the slow poll alone remains. queues.mu is held.
func (wq *waitQueue) subscriptionSettled(head *Waiter) {
	wq.unsettled = wq.unsettled[1:]
	if len(wq.unsettled) == 0 {
		var refused error
		for _, sub := range wq.subs {
			refused = errors.Join(refused, sub.Err())
		}
		if refused != nil {
			wq.r.Core.log(newRecord(slog.LevelWarn, "no notifications of releases, polling instead", wq.r,
				slog.Any("error", refused)))
		}
	}
	wq.on(&waitq.Event{Kind: waitq.Confirmed, Who: &head.local})
}

// Try implements [Queue]. If w is about to give up, its attempt has not used its reason to try,
// such as a message that announced a release.
func (wq *waitQueue) Try(ctx context.Context, w *Waiter) (res Result, err error) {
	if w.Request.Shared || !wq.state.Batches {
		res, err = w.resource.Try(ctx, w.Request)
	} else {
		res, err = wq.tryBatch(ctx, w)
	}
	verdict := Judge(res, err)
	e := waitq.Event{
		Kind: waitq.Tried, Who: &w.local, RetryAfter: verdict.retryAfter(res), Doubt: w.Request.InDoubt,
	}
	switch verdict {
	case Acquired:
		return res, nil
	case Refused:
		e.Free = res.Free
		e.Holder = res.Holder
		e.InLine = true
		e.Since = res.Since
		e.NeedNotListen = res.NeedNotListen
	case Unanswered:
		e.GivesUp = ctx.Err() != nil || w.Request.Wait.Over()
	case Failed:
		e.GivesUp = true
	case RefusedForNow: // it tries again
	}
	wq.queues.mu.Lock()
	defer wq.unlock()
	if verdict != Unanswered {
		wq.waitForMembersOf(nil) // w knows more than the head before it
	}
	wq.on(&e)
	return res, err
}

// waitForMembersOf makes the queue wait for the members that q, which leaves the queue, has waited
// for. If q is nil, the queue need not wait for any. queues.mu is held.
func (wq *waitQueue) waitForMembersOf(q *Request) {
	if wq.members != nil {
		wq.leaving = append(wq.leaving, wq.members)
		wq.members = nil
	}
	if q != nil {
		wq.members = q.members
		q.members = nil
	}
}

// tryBatch makes an attempt for w and for other waiters at once, such as readers. It blocks for the
// reply, with queues.mu free.
//
// The others are marked as offered meanwhile. If the reply is lost, each of them may hold the lock
// without knowing. Each therefore tries with its own id, which is granted again, or rolls back if
// it gives up. Without that, their counts on the server would keep writers out until the leases
// end.
func (wq *waitQueue) tryBatch(ctx context.Context, w *Waiter) (Result, error) {
	r := w.resource
	wq.queues.mu.Lock()
	var others []*Waiter
	var requests []*Request
	for _, a := range wq.on(&waitq.Event{Kind: waitq.Batching, Who: &w.local}) {
		others = append(others, waiterOf(a))
		requests = append(requests, waiterOf(a).Request)
	}
	wq.queues.mu.Unlock()
	// An offered waiter that gives up meanwhile rolls back its own request: see Leave.
	w.Request.attemptBegins()
	res, granted, err := r.Traits.AcquireBatch(ctx, w.Request, requests)
	outcome := func(i int) offerOutcome {
		switch {
		case failure.Of(err).InDoubt():
			return offerUnknown
		case granted == nil:
			return offerNotTried
		case granted[i]:
			return offerGranted
		}
		return offerRefused
	}
	wq.queues.mu.Lock()
	for i, o := range others { // with mu held throughout: all have their result before one of them goes on
		wq.offered(o, outcome(i), res) // with its doubt: an earlier copy may still arrive, and acquire for all
	}
	wq.queues.mu.Unlock()
	return r.tried(ctx, w.Request, res, err)
}

// offerOutcome is what a command of another request has done for a waiter: a hand-off or a batch.
type offerOutcome uint8

const (
	offerGranted  offerOutcome = iota
	offerRefused               // the waiter tries by itself at once
	offerUnknown               // the same: its id may hold the lock
	offerNotTried              // the command was refused before it tried for the waiter
)

// offered tells a waiter the outcome of a command that may have acquired for it. If that is not
// known, the server grants the waiter's own attempt if its id holds the lock. If the waiter did not
// try, the lock could stay taken, with no hold, until the lease ends. queues.mu is held.
func (wq *waitQueue) offered(w *Waiter, outcome offerOutcome, res Result) {
	if outcome == offerGranted {
		res.Granted = true
		w.granted = &res
	}
	isDoubtful := res.InDoubt || outcome == offerUnknown
	wq.on(&waitq.Event{
		Kind: waitq.Answered, Who: &w.local, Granted: outcome == offerGranted, Doubt: isDoubtful,
		Untried: outcome == offerNotTried,
	})
}

// Leave implements [Queue].
//
// If another request's command may have acquired for w, w's request is in doubt. If w gives up, it
// is rolled back: otherwise the lock would stay taken for an id without a hold. If w was granted,
// the server remembers its release longer, so that a late copy of that command takes nothing.
func (wq *waitQueue) Leave(w *Waiter, res Result) {
	wq.queues.mu.Lock()
	defer wq.unlock()
	q := w.Request
	if w.local.InDoubt() {
		q.MustRollback = true
		q.InDoubt = true
	}
	if w.granted != nil && !res.Granted {
		q.MustRollback = true // it was granted the lock by a hand-off or a batch, and gave up
	}
	wq.acquired = res.Granted
	if res.Granted {
		wq.othersWaitOn(w)
	}
	wasHead := wq.state.Head() == &w.local
	wq.on(&waitq.Event{Kind: waitq.Left, Who: &w.local, Granted: res.Granted, Free: res.Free, RetryAfter: q.TTL})
	isIdle := wq.state.IsIdle()
	if isIdle {
		delete(wq.queues.open, wq.key)
	}
	switch {
	case res.Granted, isIdle:
		wq.waitForMembersOf(nil)
	case wasHead && q.members != nil:
		wq.waitForMembersOf(q)
	}
}

// othersWaitOn notes which holders the others wait for, now that w was granted. In a pool they wait
// for the former holders, too. If w has overtaken the waiter in front, that one waits for the same
// holders as before. queues.mu is held.
func (wq *waitQueue) othersWaitOn(w *Waiter) {
	traits := wq.r.Traits
	hasOvertaken := wq.state.First() != &w.local
	if traits.isPool() && hasOvertaken {
		return
	}
	if !traits.ManyHolders {
		wq.contact.HeldBy(w.Request.ID, -1, nil)
		return
	}
	wq.contact.released() // the next waiter has not waited for them yet
	wq.contact.HeldBy("", -1, nil)
}

// holdLost makes the local waiters for the lock of r try, because a hold of this client was lost.
// No message may have announced that, or a waiter that was given the lost hold has not used it. It
// does not block.
func (qs *waitQueues) holdLost(r *Resource) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	for _, kind := range [...]string{r.Kind, r.Traits.OtherSide} {
		if wq := qs.open[queueKey{kind, r.Name}]; wq != nil {
			wq.on(&waitq.Event{Kind: waitq.Missed})
		}
	}
}

// message receives a message. The subscription calls it, in a goroutine of package pubsub. It takes
// queues.mu and does not block. A message that comes when the last waiter has left has no effect.
// If it was to the client's place, lock/leave passes the turn on.
func (wq *waitQueue) message(m Message) {
	if !wq.r.Traits.isPool() {
		wq.contact.released()
	}
	wq.queues.mu.Lock()
	defer wq.unlock()
	wq.on(&waitq.Event{Kind: m})
}
