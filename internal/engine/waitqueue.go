package engine

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redlatch/redlatch/internal/list"
	"github.com/redlatch/redlatch/internal/waitq"
)

// How requests wait for a lock that has no queue on the server.
//
// All requests of one client for one name are in one queue, in order of arrival. The server does not know
// them. Only the head watches the lock, so a thousand waiters cost one subscription and one attempt a
// second. The head has a reason to try when
//
//   - its subscription is confirmed: a release before that was not heard,
//   - a message announces a release, or messages may have been missed,
//   - the lease of the holder ends, according to the last refusal,
//   - a second has passed: a message may have been lost.
//
// The confirmation matters because of this order of events:
//
//	waiter                          holder
//	tries: refused
//	                                releases, publishes a message
//	subscribes                      (the message was not for the waiter)
//	confirmed: tries, is granted
//
// A reason to try is used once. A waiter that leaves without using it passes it on (Leave). So does a
// waiter whose attempt failed and said nothing about the lock (Try). Otherwise the lock
// could be free with waiters in the queue, until the next slow poll. If the head's attempt hangs, for
// example on a dead connection, the next waiter tries after stuckAfter.
//
// Most grants come without an attempt: the client that releases hands the lock off to the head of its own
// queue (handoff.go).

const (
	// slowPoll is the pause after which the head of a queue tries in case a message was lost. That is one
	// attempt a second for each client and name, however many requests wait.
	slowPoll = time.Second
	// stuckAfter is how long the head's attempt may take before another waiter tries.
	stuckAfter = slowPoll / 4
	// maxBatch is the largest number of waiters for which one command acquires.
	maxBatch = 64
)

// waitQueues are a client's local wait queues, one for each kind and name with waiters. It is a part of
// Core. One mutex for all queues is enough: it is held for moments, and never around a command.
type waitQueues struct {
	mu   sync.Mutex // guards all queues, and the queue fields of their waiters
	open map[queueKey]*waitQueue
	// lingering are the keepers of locks that linger. The key's polling is false.
	lingering map[queueKey]keeper
}

// queueKey: requests that poll and requests that listen do not wait for each other.
type queueKey struct {
	kind    string
	name    string
	polling bool
}

// waitQueue is the local queue for one name. Only its head watches the lock. Another waiter tries only
// if it may succeed where the head does not:
//
//   - the head was granted, and there is room for more,
//   - it asks for less than the head,
//   - it has the shared id that holds the lock,
//   - the head's attempt is stuck.
//
// The first request that waits opens the queue (of), and the last one that leaves closes it.
type waitQueue struct {
	queues  *waitQueues
	key     queueKey
	private bool // not in queues.open: it has one waiter
	r       *Resource
	// backoff returns the pause before the n-th attempt of a queue that polls; nil: listen for messages.
	backoff func(n int) time.Duration

	// queues.mu guards the rest.
	joining   int                        // requests between of and Join: the queue must stay open for them
	waiters   list.List[Waiter, *Waiter] // the first is the head
	tryAt     time.Time                  // when the head tries again by itself
	alarm     *time.Timer                // calls onAlarm
	alarmAt   time.Time                  // when alarm is set for, at or before tryAt; zero: it is not set
	polls     int                        // attempts since the last grant, if it polls
	heard     Contact                    // the answers to the attempts of all waiters
	subs      []Subscription             // empty: it polls, or the client stands in line and need not listen
	unsettled []<-chan struct{}          // of subscriptions that are neither confirmed nor refused
	turn      waitq.Turn                 // of other clients
	linePart                             // of kinds whose clients stand in line
}

// mustWait reports whether q must join the queue without an attempt, because of a local waiter that
// needs no more than q does. An attempt of q would be refused, or it would overtake that waiter. A
// shared id always tries, because it may hold the lock already.
func (qs *waitQueues) mustWait(r *Resource, q *Request) bool {
	if q.Shared {
		return false
	}
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if r.Traits.YieldsTo != "" && qs.open[queueKey{r.Traits.YieldsTo, r.Name, false}] != nil {
		return true
	}
	queue := qs.open[queueKey{r.Kind, r.Name, q.Terms.PollMin > 0}]
	if queue == nil {
		return false
	}
	for w := queue.waiters.First; w != nil; w = w.Next {
		if !w.Request.Shared && w.Request.Permits <= q.Permits {
			return true
		}
	}
	return false
}

// successorQueue returns the queue whose head may get what a release of r frees, nil if nobody waits. Waiters
// that poll are not in it. mu is held.
func (qs *waitQueues) successorQueue(r *Resource) *waitQueue {
	q := qs.open[queueKey{r.Kind, r.Name, false}]
	if q == nil || q.waiters.First == nil {
		return nil
	}
	return q
}

// Waiters returns how many requests wait in local queues, for tests.
func (c *Core) Waiters() (n int) {
	c.queues.mu.Lock()
	defer c.queues.mu.Unlock()
	for _, q := range c.queues.open {
		for w := q.waiters.First; w != nil; w = w.Next {
			n++
		}
	}
	return n
}

// Usage is how much of a client is in use, for tests that look for leaks.
type Usage struct{ Waiters, WaitQueues, Leases, Holds int }

// Usage counts. The counts are not of one moment.
func (c *Core) Usage() Usage {
	u := Usage{Waiters: c.Waiters(), Leases: c.dog.Len(), Holds: c.holds.len()}
	c.queues.mu.Lock()
	defer c.queues.mu.Unlock()
	u.WaitQueues = len(c.queues.open)
	return u
}

// of returns the queue for requests with these terms, and opens it if there is none. The caller must
// call Join.
func (qs *waitQueues) of(r *Resource, terms *Terms) *waitQueue {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	key := queueKey{r.Kind, r.Name, terms.PollMin > 0}
	q := qs.open[key]
	if q == nil {
		q = &waitQueue{queues: qs, key: key, r: r}
		if key.polling {
			first, longest := terms.PollMin, terms.PollMax
			q.backoff = func(n int) time.Duration {
				pause := first
				for ; n > 0 && pause < longest; n-- {
					pause *= 2 // a shift could overflow
				}
				pause = min(pause, longest)
				return pause + rand.N(pause/4+1) //nolint:gosec // jitter
			}
		}
		if qs.open == nil {
			qs.open = map[queueKey]*waitQueue{}
		}
		qs.open[key] = q
	}
	q.joining++
	return q
}

// PrivateQueue returns a queue for one request, which polls. Other requests do not find it, so it delays
// none of them. The caller must call Join.
func (c *Core) PrivateQueue(r *Resource, backoff func(n int) time.Duration) *waitQueue {
	return &waitQueue{queues: &c.queues, r: r, private: true, joining: 1, backoff: backoff}
}

// Join implements [Queue]. The first waiter subscribes for the whole queue, with queues.mu held. So a
// message that comes at once waits until the waiter is in the queue.
func (q *waitQueue) Join(w *Waiter, refused Result) {
	q.queues.mu.Lock()
	defer q.queues.mu.Unlock()
	q.joining--
	if w.Request.heard != nil { // else it has made no attempt
		q.heard.merge(w.Request.heard)
	}
	q.waiters.Append(w)
	if kept := q.queues.keeperOf(queueKey{q.r.Kind, q.r.Name, false}); kept != nil {
		kept.giveBack(0) // it was released during the attempt of w
	}
	if q.waiters.First != w {
		return
	}
	q.scheduleTry(refused)
	if q.backoff == nil {
		q.listen(w.Request)
		q.subscribePlace(w.Request.Number)
	}
}

// listen subscribes to the messages of releases. The head's next attempt waits for the confirmation: a
// release between a refused attempt and the subscription would never be heard. mu is held.
func (q *waitQueue) listen(r *Request) {
	q.subs = q.r.Driver.Subscribe(r, q.message)
	for _, sub := range q.subs {
		q.unsettled = append(q.unsettled, sub.Confirmed())
	}
}

// isLast reports whether no other request waits in the queue, or is about to. mu is held.
func (q *waitQueue) isLast(w *Waiter) bool {
	return q.joining == 0 && q.waiters.First == w && w.Next == nil
}

// NextStep implements [Queue]. It uses up the waiter's reason to try. The head also waits for the
// subscriptions that are not confirmed yet, one after another.
func (q *waitQueue) NextStep(w *Waiter) Step {
	q.queues.mu.Lock()
	defer q.queues.mu.Unlock()
	step := Step{Granted: w.granted, Try: w.wantsTry}
	if q.waiters.First == w && len(q.unsettled) > 0 {
		step.Confirmed = q.unsettled[0]
	}
	w.wantsTry = false
	if step.Granted == nil && step.Try {
		w.trying = true
		w.Request.Place = q.placeFor(w)
		if q.waiters.First == w {
			q.turn.On(waitq.Event{What: waitq.Trying})
			q.tryIn(stuckAfter) // if its attempt hangs, onAlarm wakes another waiter
			q.heard.asking()
		}
	}
	return step
}

// Try implements [Queue]. A waiter that may be granted although w was refused tries now: it needs no more than
// the free permits, or its shared id holds the lock. If w is about to give up, it keeps the reason for its
// attempt, and Leave passes it on: the attempt did not use a message that announced a release.
//
// After an attempt without a reply, w counts as unanswered: its id may hold the lock, and the head may
// be refused because of it. So onAlarm lets w try too, not only the head.
func (q *waitQueue) Try(ctx context.Context, w *Waiter) (res Result, err error) {
	if w.Request.Shared || q.r.batches() == nil {
		res, err = w.resource.Try(ctx, w.Request)
	} else {
		res, err = q.tryBatch(ctx, w)
	}
	if err == nil && res.Granted {
		return res, nil
	}
	refused, failure := res, q.r.Core.FailureOf(err)
	switch {
	case failure.NotNow:
		refused = Result{RetryAfter: notNowPause}
	case err != nil:
		refused = Result{RetryAfter: -1}
	}
	givesUp := err != nil && !failure.NotNow && (!failure.Retry || ctx.Err() != nil || w.Request.Wait.Over())
	q.queues.mu.Lock()
	w.trying = false
	w.unanswered = w.unanswered || failure.InDoubt
	if q.waiters.First == w {
		q.scheduleTry(refused)
	}
	for o := w.Next; o != nil; o = o.Next {
		if o.Request.Permits <= refused.Free || (o.Request.Shared && o.Request.ID == refused.Holder) {
			o.wakeToTry()
			break
		}
	}
	w.wantsTry = w.wantsTry || givesUp
	q.heard.merge(w.Request.heard)
	var needless []Subscription
	if err == nil {
		needless = q.learnPlace(w, res)
	}
	q.queues.mu.Unlock()
	closeAll(needless)
	return res, err
}

// tryBatch makes an attempt for w and for other waiters at once, such as readers. It blocks for the reply, with
// queues.mu free.
//
// The others are marked as offered meanwhile. If the reply is lost, each of them may hold the lock
// without knowing. So each tries with its own id, which is granted again, or rolls back if it gives up.
// Without that, their counts on the server would keep writers out until the leases end.
func (q *waitQueue) tryBatch(ctx context.Context, w *Waiter) (Result, error) {
	r := w.resource
	q.queues.mu.Lock()
	var others []*Waiter
	var requests []*Request
	for o := q.waiters.First; o != nil && len(others) < maxBatch; o = o.Next {
		if o != w && !o.Request.Shared && !o.offered {
			o.offered = true
			others, requests = append(others, o), append(requests, o.Request)
		}
	}
	q.queues.mu.Unlock()
	// An offered waiter that gives up meanwhile rolls back its own request: see Leave.
	res, granted, err := r.Traits.AcquireBatch(ctx, w.Request, requests)
	unknown := r.Core.FailureOf(err).InDoubt
	q.queues.mu.Lock()
	for i, o := range others { // with mu held throughout: all have their result before one of them goes on
		// An earlier copy of this command may still arrive, and acquire for all, even if this copy was
		// refused.
		o.inDoubt = o.inDoubt || res.InDoubt
		switch {
		case unknown:
			o.receive(Result{}, false)
		case granted == nil:
			o.offered = false // the command did not try for it, so it has no new reason to try
		default:
			res.Granted = granted[i]
			o.receive(res, true)
		}
	}
	q.queues.mu.Unlock()
	if granted != nil {
		res.Granted = true // of w: the loop has used res for the others
	}
	return r.tried(ctx, w.Request, res, err)
}

// batches returns the driver's function that acquires for several requests at once; nil if there is
// none, or if replicas must confirm each acquisition.
func (r *Resource) batches() func(context.Context, *Request, []*Request) (Result, []bool, error) {
	if r.Core.NeedsReplicas {
		return nil
	}
	return r.Traits.AcquireBatch
}

// Heard implements [Queue]. The contact has a mutex of its own.
func (q *waitQueue) Heard() *Contact { return &q.heard }

// closeAll ends subscriptions. waitQueues.mu must be free: Close waits for the listener, and the listener
// takes the mutex.
func closeAll(subs []Subscription) {
	for _, sub := range subs {
		sub.Close()
	}
}

// Confirmed implements [Queue]: one more subscription is confirmed, or was refused. After the last one,
// the head makes its second attempt. From then on each release causes a message. If a subscription was
// refused, the slow poll alone remains.
func (q *waitQueue) Confirmed(w *Waiter) {
	q.queues.mu.Lock()
	var settled []Subscription
	if q.waiters.First == w { // else the head will see the closed channel itself
		if q.unsettled = q.unsettled[1:]; len(q.unsettled) == 0 {
			w.wantsTry, settled = true, q.subs
			q.turn = waitq.Turn{} // it was about a release before the confirmation
		}
	}
	q.queues.mu.Unlock()
	var refused error
	for _, sub := range settled {
		refused = errors.Join(refused, sub.Err())
	}
	if refused != nil { // logged without the mutex: a handler may call back
		q.r.Core.Logger.Warn("no notifications of releases, polling instead",
			slog.String("kind", q.r.Kind), slog.String("name", q.r.Name), slog.Any("error", refused))
	}
}

// Leave implements [Queue]. It passes on what w does not need any longer:
//
//   - w was the head: the next waiter is the head from now on, and waits for the confirmations.
//   - w has an unused reason to try, and gives up: the head tries. A message is not lost with w.
//   - w was granted: waiters for which there is room too try now.
//   - w is the last waiter: the queue closes, and its subscriptions end.
//
// If another request's command may have acquired for w, w's request is in doubt. If w gives up, it is
// rolled back: otherwise the lock would stay taken for an id without a hold. If w was granted, the
// server remembers its release longer, so that a late copy of that command takes nothing.
func (q *waitQueue) Leave(w *Waiter, res Result) {
	q.queues.mu.Lock()
	wasHead, unused := q.waiters.First == w, w.wantsTry
	if w.offered || w.inDoubt {
		w.Request.MustRollback, w.Request.InDoubt = true, true
	}
	if w.granted != nil && !res.Granted && w.Request.passed == nil {
		w.Request.MustRollback = true // it was granted the lock by a hand-off or a batch, and gave up
	}
	q.waiters.Remove(w)
	if res.Granted {
		q.heard.granted(w.Request.ID)
		q.turn.On(waitq.Event{What: waitq.Granted})
	}
	switch {
	case q.waiters.First == nil && q.joining == 0:
		if !q.private {
			delete(q.queues.open, q.key)
		}
	case q.waiters.First == nil:
	case res.Granted:
		if wasHead {
			q.polls = 0
			q.scheduleTry(Result{RetryAfter: w.Request.TTL})
		}
		q.admit(w, res.Free)
		if unused && q.r.Traits.ManyHolders {
			q.waiters.First.wakeToTry() // the message may announce room that the attempt did not see
		}
	case unused:
		q.waiters.First.wakeToTry()
	}
	if wasHead && q.waiters.First != nil && len(q.unsettled) > 0 {
		q.waiters.First.Wake() // so that its next step includes the confirmations
	}
	place, subs := q.leavePlace(w, res)
	if q.waiters.First == nil {
		q.alarm.Stop()
		q.alarmAt = time.Time{}
		subs = append(subs, q.subs...)
		q.subs, q.unsettled, q.turn = nil, nil, waitq.Turn{}
	}
	q.queues.mu.Unlock()
	if place != 0 {
		q.r.giveUpPlace(place)
	}
	closeAll(subs)
}

// admit makes waiters try after w was granted: as many as fit into the free permits, and all with w's
// shared id. Where one command acquires for several requests, only the first of them tries, for all. mu
// is held.
func (q *waitQueue) admit(w *Waiter, free int) {
	batches, led := q.r.batches() != nil, false
	for o := q.waiters.First; o != nil; o = o.Next {
		switch {
		case o.Request.Shared && w.Request.Shared && o.Request.ID == w.Request.ID:
			o.wakeToTry()
		case o.Request.Permits > free, batches && led && !o.Request.Shared:
		default:
			free -= o.Request.Permits
			led = led || !o.Request.Shared
			o.wakeToTry()
		}
	}
}

// message receives a message of a release, or that messages may have been missed. The subscription calls
// it, in a goroutine of package pubsub. It takes queues.mu and does not block. A message that comes when
// the last waiter has left has no effect.
func (q *waitQueue) message(missed bool) {
	q.queues.mu.Lock()
	defer q.queues.mu.Unlock()
	if q.waiters.First == nil {
		return
	}
	what := waitq.Heard
	if missed {
		what = waitq.Missed
	}
	q.onTurn(waitq.Event{What: what, Now: time.Now()})
}

// onTurn does what an event means for the turn of other clients. mu is held.
func (q *waitQueue) onTurn(e waitq.Event) {
	switch action := q.turn.On(e); {
	case q.waiters.First == nil:
	case action.Do == waitq.TryNow:
		q.waiters.First.wakeToTry()
	case action.Do == waitq.TryAfter, action.Do == waitq.TryWithin && time.Until(q.tryAt) > action.Pause:
		q.tryIn(action.Pause)
	}
}

// scheduleTry sets when the head tries next after a refusal: when the holder's lease ends, or at the
// next slow poll if that is sooner. It covers a holder that crashed, and a lost message. A release that was
// left to others during the attempt may make it sooner. mu is held.
func (q *waitQueue) scheduleTry(refused Result) {
	pause := slowPoll
	if q.backoff != nil {
		pause = q.backoff(q.polls)
		q.polls++
	}
	if refused.RetryAfter >= 0 {
		pause = min(pause, refused.RetryAfter+time.Millisecond) // Redis rounds a TTL down
	}
	q.tryIn(q.turn.Pause(time.Now(), pause))
}

// tryIn sets when the head tries next by itself. It moves the alarm only to an earlier time: moving it
// for each attempt would cost more than an alarm that comes too early and is set again. mu is held.
func (q *waitQueue) tryIn(pause time.Duration) {
	q.tryAt = time.Now().Add(pause)
	switch {
	case q.alarm == nil:
		q.alarm = time.AfterFunc(pause, q.onAlarm)
	case q.alarmAt.IsZero() || q.tryAt.Before(q.alarmAt):
		q.alarm.Reset(pause)
	default:
		return
	}
	q.alarmAt = q.tryAt
}

// onAlarm is the alarm: it makes the head try. It runs in the timer's goroutine, takes queues.mu and does
// not block. The alarm may come after the last waiter has left, or too early: then it only looks.
//
// Two cases of silence need more than the head:
//
//   - The head's attempt hangs on its connection. The first waiter that is not trying tries instead.
//   - A waiter's own attempt was not answered. Its id may hold the lock, and the head would be refused
//     until that lease ends. So unanswered waiters try too: only they can find out.
func (q *waitQueue) onAlarm() {
	q.queues.mu.Lock()
	defer q.queues.mu.Unlock()
	if q.waiters.First == nil {
		return
	}
	if left := time.Until(q.tryAt); left > 0 {
		q.alarm.Reset(left)
		q.alarmAt = q.tryAt
		return
	}
	q.alarmAt = time.Time{}
	if q.waiters.First.trying {
		q.tryIn(slowPoll)
	}
	first := true
	for w := q.waiters.First; w != nil; w = w.Next {
		if !w.trying && (first || w.unanswered) {
			first = false
			w.wakeToTry()
		}
	}
}

// wakeToTry gives the waiter a reason to try, and wakes it. queues.mu is held.
func (w *Waiter) wakeToTry() {
	w.wantsTry = true
	w.Wake()
}
