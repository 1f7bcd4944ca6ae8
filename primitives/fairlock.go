package primitives

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/scripts"
)

const (
	fairQueueKey    = "redisson_lock_queue"
	fairTimeoutsKey = "redisson_lock_timeout"
	fairWaitersKey  = "redlatch_lock_waiters"
	fairClientsKey  = "redlatch_lock_clients"
)

// FairLock is Redisson's RFairLock: first come, first served, over all clients, Java's included. Waiters
// stand in a queue in Redis, in the order of their arrival there. A waiter whose process died costs those
// behind it at most its waiter timeout ([WithWaiterTimeout], 10 s). A dead waiter of Redisson's costs what
// Redisson's configuration says (5 minutes by default). TryAcquire never joins the queue, and succeeds
// only if the queue is empty.
func (c *Client) FairLock(name string, opts ...Option) *Lock {
	l := &Lock{}
	l.init(c, "fair", name, opts)
	d := &fairDriver{newHashDriver(&l.handle, fairScripts,
		prefixed(fairQueueKey, l.raw), prefixed(fairTimeoutsKey, l.raw),
		prefixed(fairWaitersKey, l.raw), prefixed(fairClientsKey, l.raw))}
	l.useLock(d, engine.Traits{
		Outer: d.outer, NestsInTurn: true,
		NewQueue: func(_ context.Context, q *engine.Request) (engine.Queue, error) {
			w := &fairWaiter{d: d, q: q}
			q.State = w
			return w, nil
		},
	}, d.keys(l.requestKey("")))
	return l
}

// fairDriver is the driver of RFairLock: the plain lock's hash, with a queue before it. The script that
// releases the lock grants it to the head of the queue.
type fairDriver struct{ hashDriver }

var (
	fairScripts = &lockScriptSet{
		acquire:       scripts.Load("fairlock/acquire"),
		release:       scripts.Load("fairlock/release"),
		releaseShared: scripts.Load("lock/release_shared", "fairlock"),
		force:         scripts.Load("lock/force", "fairlock"),
		adopt:         scripts.Load("lock/adopt", "fairlock"),
	}
	fairRefresh    = scripts.Load("fairlock/refresh")
	fairLeaveQueue = scripts.Load("fairlock/leave_queue")
	fairInfo       = scripts.Load("fairlock/info")
)

// What fairlock/acquire does with a request that it refuses.
const (
	doNotQueue    = iota
	queueNotified // it joins the queue, and tries again when it is told that the lock is free
	queueGranted  // it joins the queue, and is granted the lock
)

func (d *fairDriver) TryAcquire(ctx context.Context, q *engine.Request) (engine.Result, error) {
	c := d.h.c
	var remember any = 0
	if q.Shared {
		remember = c.remembered
	}
	queue := doNotQueue
	switch {
	case q.MayQueue && (q.Shared || c.replicas.n > 0):
		// Others that share the id hold too, and must try themselves. Nor could a replica confirm a grant.
		queue = queueNotified
	case q.MayQueue:
		queue = queueGranted
	}
	q.MustRollback = q.MustRollback || q.MayQueue // a request in the queue must leave it
	reply, err := c.confirm(ctx, d.lua.acquire, d.keys(d.h.ownerKey(&q.Owner)),
		q.ID, d.h.ttlArg(q.TTL), c.publish(), remember, flag(q.NonReentrant), queue,
		millis(q.Terms.WaiterTimeout), c.life, c.id, flag(q.Nested))
	if err != nil {
		return engine.Result{}, err
	}
	res, err := readLockReply(reply)
	if answer, ok := reply.Value.([]any); ok && len(answer) == 4 {
		if w, ok := q.State.(*fairWaiter); ok {
			since, _ := answer[2].(string)
			w.seen = fairPosition{since: since, seen: reply.Sent, foreign: answer[3] == int64(1)}
		}
	}
	return res, err
}

// fairPosition is what a waiter knows of its position in the queue.
type fairPosition struct {
	since   string    // when it joined the queue, by the server's clock; "": it is told, not granted
	seen    time.Time // it has had this position at least since then
	foreign bool      // a client of Redisson holds the lock, or may hold it before this waiter
}

// fairGrant is the lock, granted to a waiter by whoever released it.
type fairGrant struct {
	id    string
	since string        // the position that it is granted to
	ttl   time.Duration // for so long
	sent  time.Time     // before the granting command was sent; zero if another client sent it
}

// readFairGrant parses "<id> <since> <ttl>".
func readFairGrant(payload string) (g fairGrant, ok bool) {
	id, rest, _ := strings.Cut(payload, " ")
	since, ttl, _ := strings.Cut(rest, " ")
	ms, err := strconv.ParseInt(ttl, 10, 64)
	return fairGrant{id: id, since: since, ttl: fromMillis(ms)}, err == nil
}

func (d *fairDriver) Rollback(ctx context.Context, q *engine.Request) error {
	if !q.Shared {
		_, err := d.free(ctx, &q.Owner)
		return err
	}
	// In this order: after the first command, a late copy of the acquisition cannot join the queue again.
	// An error of Redis itself, as for a key of another type, must not keep the second from leaving it.
	_, err := d.releaseShared(ctx, &q.Owner, true)
	if err != nil && scripts.OutcomeOf(err) != scripts.Executed {
		return err
	}
	if !q.MayQueue || d.h.c.queues.hasWaiter(d, q.ID) { // waiters that share an id share its position
		return err
	}
	return errors.Join(err, d.leaveQueue(ctx, q.ID))
}

func (d *fairDriver) Release(ctx context.Context, o *engine.Ownership, left int) (lost bool, err error) {
	if left > 0 || o.Shared {
		return d.releaseCounts(ctx, o, left)
	}
	return d.free(ctx, &o.Owner)
}

// free takes from a private owner what it has: the lock, or a position in the queue. If that grants the
// lock to a waiter of this client, the waiter is told.
func (d *fairDriver) free(ctx context.Context, o *engine.Owner) (lost bool, err error) {
	c := d.h.c
	reply, err := c.run.Do(ctx, d.lua.release, d.keys(d.h.ownerKey(o)), o.ID, c.publish(), c.rememberFor(o), c.life)
	if payload, ok := reply.Value.(string); ok {
		if g, ok := readFairGrant(payload); ok {
			g.sent = reply.Sent
			c.queues.grant(d, g)
		}
	}
	return reply.Value == int64(0), err
}

// leaveQueue removes an id from the queue.
func (d *fairDriver) leaveQueue(ctx context.Context, id string) error {
	_, err := d.h.c.run.Do(ctx, fairLeaveQueue, d.keys(d.h.requestKey("")), id, d.h.c.publish())
	return err
}

// Subscribe is used by red locks, whose members do not queue: they hear of no release, and poll.
func (d *fairDriver) Subscribe(q *engine.Request, wake func(missed bool)) []engine.Subscription {
	return d.h.c.subscribe(d.waiterChannel(q.ID), isUnlockMessage, wake)
}

// waiterChannel is the channel on which Redisson tells one waiter that the lock is free, and so does
// everybody who frees it without a grant.
func (d *fairDriver) waiterChannel(id string) string { return d.channel + ":" + id }

// grantChannel is the channel on which this client hears of grants to its waiters. A former life of the
// client had another channel.
func (d *fairDriver) grantChannel() string { return d.channel + ":" + d.h.c.life }

func (d *fairDriver) adopt(ctx context.Context, id string, q *engine.Request) (time.Time, int, error) {
	return d.adoptInto(ctx, d.h.ownerKey(&q.Owner), 0, id, q)
}

func (d *fairDriver) info(ctx context.Context) (Info, error) {
	reply, err := d.h.c.run.Do(ctx, fairInfo, []any{d.hash, d.extra[0]})
	if err != nil {
		return Info{}, err
	}
	answer := reply.Value.([]any)
	info := Info{TTL: ttlOf(answer[0].(int64))}
	info.Holders = holders(answer[1].([]any), info.TTL)
	for _, id := range answer[2].([]any) {
		info.Waiters = append(info.Waiters, id.(string))
	}
	return info, nil
}

// fairStatus is the reply to a refresh.
type fairStatus struct {
	// changesIn is the time until the lease of the holder ends, or the time that the next owner of a free
	// lock is given. Negative: unknown.
	changesIn time.Duration
	free      bool
	holder    string
	next      string   // the next owner
	nextOurs  bool     // it is one of this client's
	waiting   int      // how many waiters of this client are in the queue
	missing   []string // of the ids that were sent: those that are not in the queue
}

// refresh tells Redis that this client's waiters are alive, and asks about those with the given ids.
// longest is the longest waiter timeout among them.
func (d *fairDriver) refresh(ctx context.Context, longest time.Duration, ids []string) (fairStatus, error) {
	args := make([]any, 0, 3+len(ids))
	args = append(args, d.h.c.life, d.h.c.publish(), millis(longest))
	for _, id := range ids {
		args = append(args, id)
	}
	status := fairStatus{changesIn: -1}
	reply, err := d.h.c.run.Do(ctx, fairRefresh, d.keys(d.h.requestKey("")), args...)
	if err != nil {
		return status, err
	}
	answer := reply.Value.([]any)
	ms := answer[0].(int64)
	status.free = ms == -2
	status.holder, _ = answer[1].(string)
	status.next, _ = answer[2].(string)
	if status.free && status.next != "" {
		ms = answer[3].(int64)
	}
	if ms >= 0 {
		status.changesIn = fromMillis(ms)
	}
	status.nextOurs = answer[4] == int64(1)
	status.waiting = int(answer[5].(int64))
	for _, id := range answer[6:] {
		status.missing = append(status.missing, id.(string))
	}
	return status, nil
}
