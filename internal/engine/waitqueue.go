package engine

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redlatch/redlatch/internal/list"
)

// How requests wait for a lock that has no queue on the server.
//
// All requests of one client for one name stand in one queue, in order of arrival. The server learns of
// none of them. Only the head watches the lock, so a thousand waiters cost one subscription and one attempt
// a second. The head has a reason to try when
//
//   - its subscription is confirmed: a release before that was not heard,
//   - a message announces a release, or messages may have been missed,
//   - the lease of the holder ends, as the last refusal told,
//   - a second has passed: a message may have been lost.
//
// A reason to try is used once. A waiter that leaves without using it passes it on (Leave), and so does a
// waiter whose attempt failed for a reason of its own (Tried with passOn). If the head's attempt hangs, for
// example on a dead connection, the next waiter tries after stuckAfter.
//
// Most grants come without an attempt: the client that releases hands the lock off to the head of its own
// queue (handoff.go).

const (
	// slowPoll is how often the head of a queue tries without any reason, in case a message was lost: one
	// attempt a second for each client and name, however many requests wait.
	slowPoll = time.Second
	// stuckAfter is how long the head's attempt may take before another waiter tries.
	stuckAfter = slowPoll / 4
	// maxBatch is the largest number of waiters for which one command acquires.
	maxBatch = 64
)

// waitQueues are a client's local wait queues, one for each kind and name with waiters.
type waitQueues struct {
	mu   sync.Mutex // guards all queues and the queues' part of their waiters
	open map[queueKey]*waitQueue
}

// queueKey: requests that poll and requests that listen do not wait for each other.
type queueKey struct {
	kind    string
	name    string
	polling bool
}

// waitQueue is the local queue in front of one name, in order of arrival. Only its head watches: it
// tries when a message comes, when the holder's lease ends, and once a second in any case. Another
// waiter tries only if it may succeed where the head does not: the head was granted and there is room
// for more, it asks for less than the head, or the holder has its own id.
type waitQueue struct {
	queues  *waitQueues
	key     queueKey
	private bool // not in queues.open: it has one waiter
	r       *Resource
	// backoff returns the pause before the n-th attempt of a queue that polls; nil: listen for messages.
	backoff func(n int) time.Duration

	// queues.mu guards the rest.
	joining   int                        // waiters that are about to join
	waiters   list.List[Waiter, *Waiter] // the first is the head
	lookAt    time.Time                  // when the head tries again by itself
	alarm     *time.Timer                // calls ring
	alarmAt   time.Time                  // when alarm is set for, at or before lookAt; zero: it is not set
	polls     int                        // attempts since the last grant, if it polls
	subs      []Subscription
	unsettled []<-chan struct{} // of subscriptions that are neither confirmed nor refused
	skip      int               // this many messages are left to other clients: see yield
}

// mustWait reports whether a waiter is here already that could go wherever q could: an attempt could
// only fail, or overtake it.
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

// of returns the queue for requests with those terms. The caller joins it.
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

// privateQueue returns a queue for one request, which polls.
func (c *Core) privateQueue(r *Resource, backoff func(n int) time.Duration) *waitQueue {
	return &waitQueue{queues: &c.queues, r: r, private: true, joining: 1, backoff: backoff}
}

// Join implements [Queue]. The first waiter subscribes and watches.
func (q *waitQueue) Join(w *Waiter, refused Result) {
	q.queues.mu.Lock()
	defer q.queues.mu.Unlock()
	q.joining--
	q.waiters.Append(w)
	if q.waiters.First != w {
		return
	}
	q.rest(refused)
	if q.backoff == nil {
		// The second attempt waits for the confirmation: a release between a refused attempt and the
		// subscription would never be heard.
		q.subs = q.r.Driver.Subscribe(w.Request, q.message)
		for _, sub := range q.subs {
			q.unsettled = append(q.unsettled, sub.Confirmed())
		}
	}
}

// NextStep implements [Queue].
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
		if q.waiters.First == w {
			q.lookIn(stuckAfter)
		}
	}
	return step
}

// Try implements [Queue]. Where one command can acquire for several, it takes the other waiters along.
func (q *waitQueue) Try(ctx context.Context, w *Waiter) (Result, error) {
	r := w.resource
	acquireBatch := r.batches()
	if acquireBatch == nil || w.Request.Shared {
		return r.Try(ctx, w.Request)
	}
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
	res, granted, err := acquireBatch(ctx, w.Request, requests)
	unknown := r.Core.failure(err).InDoubt
	q.queues.mu.Lock()
	for i, o := range others { // all are told before one of them goes on
		o.inDoubt = o.inDoubt || res.InDoubt // even if all were refused
		switch {
		case unknown:
			o.receive(Result{}, false)
		case granted == nil:
			o.offered = false // nobody tried for it, so it has no new reason to try
		default:
			res.Granted = granted[i]
			o.receive(res, true)
		}
	}
	q.queues.mu.Unlock()
	if granted != nil {
		res.Granted = true
	}
	return r.tried(ctx, w.Request, res, err)
}

// batches returns the driver's function that acquires for several requests at once, if it may be used.
func (r *Resource) batches() func(context.Context, *Request, []*Request) (Result, []bool, error) {
	if r.Core.NeedsReplicas {
		return nil
	}
	return r.Traits.AcquireBatch
}

// Tried implements [Queue]. Waiters that may be granted although w was refused try now.
func (q *waitQueue) Tried(w *Waiter, res Result, err error, passOn bool) {
	q.queues.mu.Lock()
	defer q.queues.mu.Unlock()
	w.trying = false
	w.unanswered = w.unanswered || q.r.Core.failure(err).InDoubt
	if q.waiters.First == w {
		q.rest(res)
	}
	for o := w.Next; o != nil; o = o.Next {
		if o.Request.Permits <= res.Free || (o.Request.Shared && o.Request.ID == res.Holder) {
			o.prod()
			break
		}
	}
	if passOn {
		w.wantsTry = true // Leave passes it on
	}
}

// Confirmed implements [Queue]: one more subscription stands, or was refused. When all do, the head makes
// its second attempt, because no release can be missed any more. Without messages it polls.
func (q *waitQueue) Confirmed(w *Waiter) {
	q.queues.mu.Lock()
	var settled []Subscription
	if q.waiters.First == w { // else the next head notes it
		if q.unsettled = q.unsettled[1:]; len(q.unsettled) == 0 {
			w.wantsTry, settled = true, q.subs
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

// Leave implements [Queue]. The next head takes over the watch, and the reason to try that w has not
// used. If w was granted, waiters for which there is room too try now. The last waiter closes the queue.
func (q *waitQueue) Leave(w *Waiter, res Result) {
	q.queues.mu.Lock()
	wasHead, unused := q.waiters.First == w, w.wantsTry
	if w.offered || w.inDoubt {
		w.Request.MustRollback, w.Request.InDoubt = true, true
	}
	if w.granted != nil && !res.Granted && w.Request.passed == nil {
		w.Request.MustRollback = true // it left without taking what another has acquired for it
	}
	q.waiters.Remove(w)
	switch {
	case q.waiters.First == nil && q.joining == 0:
		if !q.private {
			delete(q.queues.open, q.key)
		}
	case q.waiters.First == nil:
	case res.Granted:
		if wasHead {
			q.polls = 0
			q.rest(Result{RetryAfter: w.Request.TTL})
		}
		q.admit(w, res.Free)
		if unused && q.r.Traits.ManyHolders {
			q.waiters.First.prod() // the message may have come after the attempt was decided
		}
	case unused:
		q.waiters.First.prod()
	}
	if wasHead && q.waiters.First != nil && len(q.unsettled) > 0 {
		q.waiters.First.Wake() // it waits for the confirmations now
	}
	var subs []Subscription
	if q.waiters.First == nil {
		q.alarm.Stop()
		q.alarmAt = time.Time{}
		subs, q.subs, q.unsettled, q.skip = q.subs, nil, nil, 0
	}
	q.queues.mu.Unlock()
	for _, sub := range subs {
		sub.Close() // not under the mutex: it waits for the listener, which takes it
	}
}

// admit has the waiters try for which there is room beside w, and those that share its id. Where one
// command acquires for several, one waiter tries for all. mu is held.
func (q *waitQueue) admit(w *Waiter, free int) {
	batches, led := q.r.batches() != nil, false
	for o := q.waiters.First; o != nil; o = o.Next {
		switch {
		case o.Request.Shared && w.Request.Shared && o.Request.ID == w.Request.ID:
			o.prod()
		case o.Request.Permits > free, batches && led && !o.Request.Shared:
		default:
			free -= o.Request.Permits
			led = led || !o.Request.Shared
			o.prod()
		}
	}
}

// message receives a message of a release, or that messages may have been missed.
func (q *waitQueue) message(missed bool) {
	q.queues.mu.Lock()
	defer q.queues.mu.Unlock()
	if q.skip > 0 && !missed { // our own release: other clients go first
		q.skip--
		q.lookIn(maxStreak) // in case no other client acquires
		return
	}
	if q.waiters.First != nil {
		q.waiters.First.prod()
	}
}

// rest sets when the head tries next: when the holder's lease ends, and soon in any case. mu is held.
func (q *waitQueue) rest(refused Result) {
	pause := slowPoll
	if q.backoff != nil {
		pause = q.backoff(q.polls)
		q.polls++
	}
	if refused.RetryAfter >= 0 {
		pause = min(pause, refused.RetryAfter+time.Millisecond) // Redis rounds down
	}
	q.lookIn(pause)
}

// lookIn sets when the head tries next. It moves the alarm only to an earlier time: an alarm that comes
// too early is set again. mu is held.
func (q *waitQueue) lookIn(pause time.Duration) {
	q.lookAt = time.Now().Add(pause)
	switch {
	case q.alarm == nil:
		q.alarm = time.AfterFunc(pause, q.ring)
	case q.alarmAt.IsZero() || q.lookAt.Before(q.alarmAt):
		q.alarm.Reset(pause)
	default:
		return
	}
	q.alarmAt = q.lookAt
}

// ring has the head try. If its attempt is stuck on a connection, the first waiter tries that is not
// trying already. Waiters in doubt try too: one of them may be the holder that the head is refused for.
func (q *waitQueue) ring() {
	q.queues.mu.Lock()
	defer q.queues.mu.Unlock()
	if q.waiters.First == nil {
		return
	}
	if left := time.Until(q.lookAt); left > 0 {
		q.alarm.Reset(left)
		q.alarmAt = q.lookAt
		return
	}
	q.alarmAt = time.Time{}
	if q.waiters.First.trying {
		q.lookIn(slowPoll)
	}
	first := true
	for w := q.waiters.First; w != nil; w = w.Next {
		if !w.trying && (first || w.unanswered) {
			first = false
			w.prod()
		}
	}
}

// prod gives the waiter a reason to try. The mutex of its queue is held.
func (w *Waiter) prod() {
	w.wantsTry = true
	w.Wake()
}
