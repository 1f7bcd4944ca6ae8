package primitives

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/failure"
	"github.com/redlatch/redlatch/internal/list"
	"github.com/redlatch/redlatch/pubsub"
	"github.com/redlatch/redlatch/scripts"
)

// How the waiters of a fair lock wait.
//
// Each waiter has a place of its own in Redis's queue. A release grants the lock to the head of
// that queue, and publishes the grant on the channel of the head's client.
//
// Messages can be lost, and waiters can die. Each client therefore sends one script for each name
// (a refresh), once a second and when the holder's lease ends. It shows that the client's waiters
// are alive. Its reply says who holds the lock, who is next, and which waiters have lost their
// places. A waiter with a reason to try runs the acquiring script again, which is idempotent.
//
// Mutexes: fairQueues.mu guards the queues of all names and their waiters. It is held while waiters
// are woken, never while a command is sent or a subscription is closed.

const (
	// refreshInterval is the usual time between two refreshes.
	refreshInterval = time.Second
	// refreshTimeout bounds one refresh.
	refreshTimeout = 5 * time.Second
	// maxVerified is how many waiters one refresh asks about by id. A lost queue shows at once by
	// the number of its waiters. A waiter that has lost its place alone is found when it is its
	// turn.
	maxVerified = 100
	// maxEarlyGrants bounds the grants to waiters that are not known yet. If one is dropped, the
	// next refresh finds that its waiter holds the lock.
	maxEarlyGrants = 1000
	maxDigits      = 20 // the largest number of digits of a uint64
)

// fairQueues has a client's parts of the queues of fair locks, by name. The client owns it. It
// contains a queue as long as the queue has waiters.
type fairQueues struct {
	mu   sync.Mutex // guards all queues and their waiters
	open map[string]*fairQueue
	// early contains grants to ids that are not known yet, because the reply that they joined the
	// queue is on its way.
	early map[string]fairGrant
}

// fairQueue consists of the waiters of one client for one fair lock. The first waiter opens it and
// starts its goroutine (run). The last one removes it and ends the goroutine.
type fairQueue struct {
	queues *fairQueues
	d      *fairDriver          // the driver of the first waiter's handle; all handles of a name have equal ones
	grants *pubsub.Subscription // the subscription to grantChannel; the last waiter closes it
	// contact is what all waiters have heard. A waiter that has its place makes no attempts, so
	// refreshes show whether Redis still answers.
	contact engine.Contact

	// queues.mu guards the rest.
	waiters      list.List[fairWaiter, *fairWaiter] // in order of arrival
	byID         map[string][]*fairWaiter           // several may share an id of WithOwner
	nextVerified int                                // position of the next waiter to verify, after the first one
	timer        *time.Timer                        // wakes run
	due          time.Time                          // when the timer fires, for the next refresh
	// orphan is a queue head with our client id but without a local waiter, or "" if there is none.
	// Its request to leave never reached Redis, and the heartbeats of this client would keep it in
	// the queue for ever.
	orphan      string
	orphanSince time.Time // when it was first seen as the head of a free lock
}

// fairWaiter is one request for a fair lock. It implements [engine.Queue] for itself alone, so the
// engine's waiting loop runs it in the caller's goroutine. Fields that no mutex guards belong to
// that goroutine.
type fairWaiter struct {
	d        *fairDriver
	request  *engine.Request
	waiter   *engine.Waiter
	queue    *fairQueue
	position fairPosition // the position that the reply to the last attempt showed

	// own is the subscription to the waiter's own channel, or nil if it needs none. confirmed is
	// its confirmation, until that has come.
	own       *pubsub.Subscription
	confirmed <-chan struct{}

	// fairQueues.mu guards the rest.
	list.Links[fairWaiter]
	wasKnown bool // the waiter was there when the latest refresh began
	grant    fairGrant
	wantsTry bool // there is a grant, or another reason to try
}

// Join implements [engine.Queue]. The waiter has joined Redis's queue already, by the attempt that
// was refused. Here it becomes known to the client, so that grants and refreshes find it.
func (w *fairWaiter) Join(waiter *engine.Waiter, refused engine.Result) {
	qs := &w.d.h.c.queues
	w.waiter = waiter
	w.takePosition(refused)
	qs.mu.Lock()
	q := qs.open[w.d.h.res.Name]
	if q == nil {
		q = qs.begin(w.d)
	}
	w.queue = q
	w.request.ShareContact(&q.contact)
	q.waiters.Append(w)
	q.byID[w.request.ID] = append(q.byID[w.request.ID], w)
	q.refreshIn(w.heartbeat())
	q.expect(refused.RetryAfter)
	if g, ok := qs.early[w.request.ID]; ok {
		delete(qs.early, w.request.ID)
		w.grant = g
		w.wake()
	}
	qs.mu.Unlock()
	w.listen()
}

// begin opens the queue of a name: a subscription to its grants, and a goroutine that refreshes. mu
// is held; neither call blocks.
func (qs *fairQueues) begin(d *fairDriver) *fairQueue {
	q := &fairQueue{
		queues: qs, d: d, byID: map[string][]*fairWaiter{},
		timer: time.NewTimer(refreshInterval), due: time.Now().Add(refreshInterval),
	}
	qs.open[d.h.res.Name] = q
	q.grants = d.h.c.hub.Subscribe(d.grantChannel(), func(s pubsub.Signal) {
		if g, ok := readFairGrant(s.Payload); ok {
			qs.grant(d, g)
		} else if s.Resubscribed || isUnlockMessage(s.Payload) {
			qs.refresh(d)
		}
	})
	d.h.c.core.Spawn(q.run)
	return q
}

// NextStep implements [engine.Queue]. A usable grant ends the waiting. Any other reason to try
// leads to an attempt, and so does a grant that came too late: the script then answers that the
// waiter holds the lock.
func (w *fairWaiter) NextStep(*engine.Waiter) engine.Step {
	qs := w.queue.queues
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if w.confirmed != nil && engine.IsClosed(w.confirmed) {
		w.confirmed = nil
		w.queue.refreshIn(0) // messages before the confirmation did not arrive; the refresh makes up for them
	}
	if !w.wantsTry {
		return engine.Step{Confirmed: w.confirmed}
	}
	w.wantsTry = false
	if res := w.takeGrant(); res != nil {
		return engine.Step{Granted: res}
	}
	return engine.Step{Try: true}
}

// takeGrant returns the waiter's grant as a result, if the grant may be used. It returns nil if the
// waiter must ask Redis. fairQueues.mu is held. A grant may be used if:
//
//   - It is for the position that the waiter has now. An older grant is for a place that the waiter
//     has lost.
//   - Enough of the lease is left: at most a quarter of it has passed, and at most a tenth of the
//     time that the hold may last.
//   - The lease is as long as the request asks for, or it is no shorter than the minimum hold and
//     will be renewed. A release shortens the lease if the waiter's heartbeat is old.
//
// Only the server knows when the lease began, so the lease counts from an earlier instant: when the
// attempt was sent that last showed the waiter without the lock, or when this client sent the
// release.
func (w *fairWaiter) takeGrant() *engine.Result {
	g := w.grant
	w.grant = fairGrant{}
	if g.since == "" || g.since != w.position.since {
		return nil
	}
	res := &engine.Result{Granted: true, Sent: w.position.seen}
	if g.sent.After(res.Sent) {
		res.Sent = g.sent
	}
	usable := g.ttl / 4
	if limit := w.request.Terms.Limit(); limit > 0 {
		usable = min(usable, limit/10)
	}
	if g.ttl < w.request.TTL {
		res.Lease = g.ttl
	}
	if time.Since(res.Sent) > usable {
		return nil
	}
	endsTooSoon := !w.request.Terms.Renew || res.Lease < w.request.Terms.MinHold
	if res.Lease > 0 && endsTooSoon {
		return nil
	}
	return res
}

// Try implements [engine.Queue]. The attempt also puts a waiter that has lost its place back into
// the queue. A refusal shows the position. Without a reply, the next refresh finds it.
func (w *fairWaiter) Try(ctx context.Context, _ *engine.Waiter) (engine.Result, error) {
	res, err := w.d.h.res.Try(ctx, w.request)
	if engine.Judge(res, err) != engine.Refused {
		return res, err
	}
	w.takePosition(res)
	w.queue.queues.mu.Lock()
	w.queue.expect(res.RetryAfter)
	w.queue.queues.mu.Unlock()
	w.listen()
	return res, nil
}

// takePosition notes the position that a refusal has shown.
func (w *fairWaiter) takePosition(refused engine.Result) {
	if position, isShown := refused.Queued.(fairPosition); isShown {
		w.position = position
	}
}

// listen subscribes to the waiter's own channel if the waiter needs that. It does if a client of
// Redisson may hold the lock before it, or if it gets messages instead of grants.
//
// One look is enough. The queue is first come, first served, so all holders before this waiter were
// in front of it when it looked. Only a forced release or a lost queue changes that, and the
// refresh covers both.
func (w *fairWaiter) listen() {
	getsGrants := w.position.since != ""
	needsChannel := w.position.foreign || !getsGrants
	if !needsChannel || w.own != nil {
		return
	}
	q := w.queue
	w.own = w.d.h.c.hub.Subscribe(w.d.waiterChannel(w.request.ID), func(s pubsub.Signal) {
		switch {
		case s.Resubscribed:
			q.queues.refresh(w.d)
		case isUnlockMessage(s.Payload):
			q.queues.mu.Lock()
			w.wake()
			q.queues.mu.Unlock()
		}
	})
	w.confirmed = w.own.Confirmed()
}

// Leave implements [engine.Queue]. It removes the waiter here. The rollback of its request removes
// it from the queue in Redis. If a shared id was granted the lock, other waiters with that id may
// hold it, too, so they make an attempt.
func (w *fairWaiter) Leave(_ *engine.Waiter, res engine.Result) {
	q := w.queue
	q.queues.mu.Lock()
	q.waiters.Remove(w)
	twins := slices.DeleteFunc(q.byID[w.request.ID], func(o *fairWaiter) bool { return o == w })
	q.byID[w.request.ID] = twins
	if len(twins) == 0 {
		delete(q.byID, w.request.ID)
	}
	if res.Granted && w.request.Shared {
		q.wakeID(w.request.ID)
	}
	empty := q.waiters.First == nil
	if empty {
		delete(q.queues.open, q.d.h.res.Name)
		q.refreshIn(0) // run finds no waiter, and ends
	}
	q.queues.mu.Unlock()
	// The mutex is not held, because Close waits for the listeners, which take it.
	if w.own != nil {
		w.own.Close()
	}
	switch {
	case !empty: // others of this client still wait
	case res.Granted:
		q.grants.CloseSoon() // a client whose goroutines take turns waits again at once
	default:
		q.grants.Close() // nothing stays behind when a waiter gives up
	}
}

// wake gives the waiter a reason to try. fairQueues.mu is held.
func (w *fairWaiter) wake() {
	w.wantsTry = true
	w.waiter.Wake()
}

// grant passes a grant to its waiter. If several waiters share the id, each of them makes an
// attempt instead, because the server counts them. A grant for an unknown id is kept, because the
// reply that its waiter has joined the queue may be on its way. grant is called by a release, or by
// a goroutine of the hub.
func (qs *fairQueues) grant(d *fairDriver, g fairGrant) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if q := qs.open[d.h.res.Name]; q != nil && q.byID[g.id] != nil {
		for _, w := range q.byID[g.id] {
			if !w.request.Shared {
				w.grant = g
			}
			w.wake()
		}
		return
	}
	if own := d.h.c.id + ":"; !strings.HasPrefix(g.id, own) || len(g.id) > len(own)+maxDigits {
		return // no waiter of this client gets such a grant; it may be of any size
	}
	if qs.early == nil || len(qs.early) >= maxEarlyGrants {
		qs.early = map[string]fairGrant{}
	}
	qs.early[g.id] = g
}

// refresh makes the waiters of this client for a lock, if there are any, ask soon who holds it. A
// reply that was lost may have granted the lock to one of them.
func (qs *fairQueues) refresh(d *fairDriver) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if q := qs.open[d.h.res.Name]; q != nil {
		q.refreshIn(0)
	}
}

// hasWaiter reports whether this client has a waiter with that id.
func (qs *fairQueues) hasWaiter(d *fairDriver, id string) bool {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q := qs.open[d.h.res.Name]
	return q != nil && q.byID[id] != nil
}

// heartbeat returns how often the waiter needs a refresh, so that it does not lose its place by one
// lost heartbeat.
func (w *fairWaiter) heartbeat() time.Duration {
	return max(min(w.request.Terms.WaiterTimeout/3, refreshInterval), time.Millisecond)
}

// expect makes the next refresh due in changesIn, when a lease or the time of a next owner ends.
// changesIn is negative if that time is unknown. An attempt does not know it if this client sent a
// heartbeat a moment ago. In that case a refresh follows anyway, at the latest when the
// subscription to the grants is confirmed. fairQueues.mu is held.
func (q *fairQueue) expect(changesIn time.Duration) {
	if changesIn >= 0 && changesIn < refreshInterval {
		q.refreshIn(changesIn + time.Millisecond) // Redis rounds down
	}
}

// refreshIn makes the next refresh due in d, if it is not due earlier. fairQueues.mu is held.
func (q *fairQueue) refreshIn(d time.Duration) {
	if at := time.Now().Add(d); at.Before(q.due) {
		q.due = at
		q.timer.Reset(d)
	}
}

// run refreshes the queue, in a goroutine that begin starts. It ends when the last waiter has left,
// or when the client begins to close, which also ends all waiting.
func (q *fairQueue) run() {
	confirmed := q.grants.Confirmed()
	for {
		select {
		case <-q.timer.C:
		case <-confirmed: // a grant that came before the confirmation did not arrive
			confirmed = nil
		case <-q.d.h.c.core.Closing():
			return
		}
		if !q.refresh() {
			return
		}
	}
}

// refresh runs one refresh for all waiters, and wakes every waiter that has a reason to try. It
// returns false if there is no waiter.
func (q *fairQueue) refresh() bool {
	ids, longest := q.sample()
	if len(ids) == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), refreshTimeout)
	defer cancel()
	q.contact.AttemptBegins()
	reply, err := q.d.refresh(ctx, longest, ids)
	if err != nil {
		q.contact.Failed(err)
	} else {
		q.contact.HeldBy(reply.Holder, changesIn(reply), nil)
	}
	if q.update(reply, err, longest) {
		_ = q.d.leaveQueue(ctx, reply.Next) // if it fails, the next refresh finds the orphan again
	}
	return true
}

// sample begins a refresh. It picks the waiters whose places are verified this time. The first one
// always is, and the others are in turn. It returns their ids, and the longest timeout of all
// waiters. It makes the next refresh due in a second, or earlier if a waiter needs that.
func (q *fairQueue) sample() (ids []string, longest time.Duration) {
	q.queues.mu.Lock()
	defer q.queues.mu.Unlock()
	n := 0
	next := 0
	pause := refreshInterval
	for w := q.waiters.First; w != nil; w = w.Next {
		switch {
		case n > 0 && n < q.nextVerified: // it was verified by an earlier refresh
		case len(ids) < maxVerified:
			ids = append(ids, w.request.ID)
		case next == 0:
			next = n
		}
		n++
		w.wasKnown = true
		longest = max(longest, w.request.Terms.WaiterTimeout)
		pause = min(pause, w.heartbeat())
	}
	q.nextVerified = next
	q.due = time.Now().Add(pause)
	q.timer.Reset(pause)
	return ids, longest
}

// update handles the reply to a refresh. It wakes these waiters, because they have a reason to try:
//
//   - The waiter that holds the lock, by a grant that did not arrive.
//   - The next owner of a free lock.
//   - Waiters without a place in the queue. If Redis has fewer ids than this client has settled
//     waiters, each of which must have a place, the queue was lost, and all waiters wake up.
//
// It reports whether the next owner is an orphan that must leave the queue.
func (q *fairQueue) update(
	reply scripts.FairLockRefreshReply, err error, longest time.Duration,
) (orphaned bool) {
	q.queues.mu.Lock()
	defer q.queues.mu.Unlock()
	if err != nil {
		if !failure.Of(err).Retry() {
			// Redis itself refused, such as for a key of another type, or the redis client is
			// closed. The attempt of each waiter returns that error.
			q.wakeAll()
		}
		return false
	}
	q.expect(changesIn(reply))
	present := int(reply.Waiting)
	if q.wakeID(reply.Holder) {
		present++
	}
	settled := 0 // the waiters with an id of their own that were there when the refresh began
	for w := q.waiters.First; w != nil; w = w.Next {
		if !w.request.Shared && w.wasKnown {
			settled++
		}
	}
	if present < settled {
		q.wakeAll()
	} else {
		if isFree(reply) {
			q.wakeID(reply.Next)
		}
		for _, id := range reply.Missing {
			q.wakeID(id)
		}
	}
	// A waiter makes its first attempt before it is known here, so an orphan must be the head for
	// as long as a waiter may be silent.
	orphan := ""
	isKnown := q.byID[reply.Next] != nil
	if isFree(reply) && reply.NextIsOurs && !isKnown {
		orphan = reply.Next
	}
	if q.orphan != orphan {
		q.orphan = orphan
		q.orphanSince = time.Now()
	}
	return orphan != "" && time.Since(q.orphanSince) >= longest
}

// wakeAll wakes all waiters. fairQueues.mu is held.
func (q *fairQueue) wakeAll() {
	for w := q.waiters.First; w != nil; w = w.Next {
		w.wake()
	}
}

// wakeID wakes the waiters with that id, and reports whether there are any. fairQueues.mu is held.
func (q *fairQueue) wakeID(id string) bool {
	for _, w := range q.byID[id] {
		w.wake()
	}
	return q.byID[id] != nil
}
