package primitives

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/failure"
	"github.com/redlatch/redlatch/scripts"
)

// Fair locks in Redis: Redisson's RFairLock.
//
//	<name>                            hash: the owner's id and count, as a plain lock's
//	redisson_lock_queue:{<name>}      list: the ids of the waiters, the next owner first
//	redisson_lock_timeout:{<name>}    sorted set: when Redisson takes each waiter for dead
//	redlatch_lock_waiters:{<name>}    hash: this library's waiters, and what can be granted to them
//	redlatch_lock_clients:{<name>}    hash: this library's clients, and their heartbeats
//	redisson_lock__channel:{<name>}:  channels: a waiter's id or a client's life follows
//
// A waiter of Redisson gets a message and tries again. A waiter of this library is granted the lock
// by the script that frees it. That saves an attempt, and the lock is never idle meanwhile. This
// file has the commands. fairqueue.go has the waiting, scripts/fairlock/queue.lua the rules.

// Prefixes of the keys beside the lock's hash. Redisson does not know of the last two.
const (
	fairQueueKey    = "redisson_lock_queue"
	fairTimeoutsKey = "redisson_lock_timeout"
	fairWaitersKey  = "redlatch_lock_waiters"
	fairClientsKey  = "redlatch_lock_clients"
)

// FairLock returns the fair lock of that name: Redisson's RFairLock. It is first come, first
// served, over all clients, Java's included. Waiters join a queue in Redis, in the order of their
// arrival there. TryAcquire never joins the queue, and succeeds only if nobody waits.
//
// A waiter whose process died delays the waiters behind it by at most its waiter timeout
// ([WithWaiterTimeout], 10 s). A dead waiter of Redisson delays them for as long as Redisson's
// configuration says (5 minutes by default).
func (c *Client) FairLock(name string, opts ...Option) *Lock {
	l := &Lock{}
	l.init(c, "fair", name, opts)
	l.keys.Channel = l.nextName(lockChannel, "")
	l.keys.KindKeys = &scripts.KindKeys{
		Queue: prefixed(fairQueueKey, l.raw()), Deadlines: prefixed(fairTimeoutsKey, l.raw()),
		Waiters: prefixed(fairWaitersKey, l.raw()), Clients: prefixed(fairClientsKey, l.raw()),
	}
	d := &fairDriver{}
	d.h = &l.handle
	d.scripts = &fairScripts
	l.useLock(d, &engine.Traits{
		Leased: true, Nests: true,
		NewQueue: func(_ context.Context, q *engine.Request) (engine.Queue, error) {
			return &fairWaiter{d: d, request: q}, nil
		},
	})
	return l
}

// fairScripts are the scripts of fair locks.
var fairScripts = kindScripts{
	force: scripts.FairLockForce,
	shorten: func(call scripts.LockShorten, ctx context.Context, by scripts.Sender) (scripts.Number, error) {
		return scripts.FairLockShorten(call).Do(ctx, by)
	},
	releaseShared: func(
		call scripts.LockReleaseShared, ctx context.Context, by scripts.Sender,
	) (scripts.Released, error) {
		return scripts.FairLockReleaseShared(call).Do(ctx, by)
	},
}

// fairDriver is the driver of RFairLock, which is the hash of a plain lock with a queue before it.
// It does not have [engine.Traits].HandsOff, because the release script itself hands the lock to
// the head of the queue.
type fairDriver struct{ hashDriver }

// What the script fairlock/acquire does with a request that it refuses.
const (
	doNotQueue    = iota
	queueNotified // the request joins the queue, and tries again when a message says that the lock is free
	queueGranted  // the request joins the queue, and is granted the lock
)

// TryAcquire implements [engine.Driver] by fairlock/acquire, which also joins the queue when it
// refuses. For a request in the queue, the pttl is unknown if this client sent a heartbeat less
// than half a second ago, because the client refreshes the queue, and the reply to that tells the
// pttl, too.
//
// A copy finds the owner in the hash or in the queue, and changes nothing. After a rollback it
// finds the request's key, and answers "over". With c.life the script distinguishes this client
// from an earlier one of the same id, whose heartbeats must not keep these waiters alive.
func (d *fairDriver) TryAcquire(ctx context.Context, q *engine.Request) (engine.Result, error) {
	c := d.h.c
	queue := int64(doNotQueue)
	// Others that share the id may hold too, and must try themselves. A replica could not confirm a
	// grant either.
	mustTryItself := q.Shared || c.replicas > 0
	switch {
	case q.MayQueue && mustTryItself:
		queue = queueNotified
	case q.MayQueue:
		queue = queueGranted
	}
	q.MustRollback = q.MustRollback || q.MayQueue // a request in the queue must leave it
	reply, err := scripts.FairLockAcquire{
		Keys: &d.h.keys, MemoryKey: d.h.ownerKey(&q.Owner), Owner: q.ID, TTL: q.TTL, IsShared: q.Shared,
		RefuseSecond: q.NonReentrant, Joins: queue, Timeout: q.Terms.WaiterTimeout,
		Client: c.life, ClientID: c.id, IsNested: q.UnderSameID, Random: newStay(),
	}.Do(ctx, c.confirmed)
	res, err := acquiredResult(reply.Acquired, err)
	hasQueued := q.MayQueue && engine.Judge(res, err) == engine.Refused
	if hasQueued {
		res.Queued = fairPosition{since: reply.Since, seen: reply.Sent, foreign: reply.IsForeign}
	}
	return res, err
}

// newStay returns a number of 16 random digits for a waiter that joins the queue. A grant repeats
// it, so that somebody who may publish, but not read the keys of the queue, cannot forge a grant.
func newStay() int64 { return 1e15 + rand.Int64N(9e15) } //nolint:gosec // it is ChaCha8 with a random seed

// fairPosition is what a waiter knows of its position in the queue, from the reply to an attempt. A
// waiter that Redis removed and that joined again has another position.
type fairPosition struct {
	since   string    // when it joined, by the server's clock, and newStay; "" if it gets messages, and no grants
	seen    time.Time // an instant before the attempt that showed this position was sent
	foreign bool      // a client of Redisson holds the lock, or may hold it before this waiter
}

// fairGrant is the lock, granted to a waiter by a release. It comes in the reply to a release of
// this client, or in a message. See [fairWaiter.takeGrant] for when it is valid.
type fairGrant struct {
	id    string        // the id of the owner, which is the holder in Redis already
	since string        // the position that the grant is for
	ttl   time.Duration // the length of the lease
	sent  time.Time     // an instant before the granting command was sent; zero if another client sent it
}

// maxGrant bounds a grant, in bytes: "<uuid>:<number> <since> <ttl>". Only private waiters get
// grants.
const maxGrant = 256

// readFairGrant parses "<id> <since> <ttl>", where ttl is in ms. ok is false for other payloads.
func readFairGrant(payload string) (g fairGrant, ok bool) {
	if len(payload) > maxGrant {
		return fairGrant{}, false
	}
	id, rest, _ := strings.Cut(payload, " ")
	since, ttl, _ := strings.Cut(rest, " ")
	ms, err := strconv.ParseInt(ttl, 10, 64)
	return fairGrant{id: id, since: since, ttl: fromMillis(ms)}, err == nil
}

// Rollback implements [engine.Driver]. For a private request, one script ends whatever the request
// has, a hold or a place in the queue. A shared id needs two scripts: one for its count, and one
// for its place in the queue, which it may share with other waiters.
func (d *fairDriver) Rollback(ctx context.Context, q *engine.Request) error {
	if !q.Shared {
		_, err := d.free(ctx, &q.Owner, d.h.c.rememberFor(&q.Owner))
		return err
	}
	// The order matters: after the first command, a late copy of the acquisition cannot join the
	// queue again. An error of Redis itself, such as for a key of another type, must not prevent
	// the second command.
	_, err := d.releaseShared(ctx, &q.Owner)
	if err != nil && failure.Of(err).Outcome != failure.Executed {
		return err
	}
	if !q.MayQueue || d.h.c.queues.hasWaiter(d, q.ID) { // waiters that share an id share its position
		return err
	}
	return errors.Join(err, d.leaveQueue(ctx, q.ID))
}

// Release implements [engine.HoldDriver].
func (d *fairDriver) Release(
	ctx context.Context, o *engine.Ownership, remaining int, _ engine.Next,
) (engine.Released, error) {
	switch {
	case remaining > 0:
		return d.unnest(ctx, o, remaining)
	case o.Shared:
		return d.releaseShared(ctx, &o.Owner)
	}
	return d.free(ctx, &o.Owner, d.h.c.rememberDoubt(&o.Owner))
}

// free ends what a private owner has: the lock, or a position in the queue. It runs
// fairlock/release, which may grant the lock to a waiter. It tells a waiter of this client by its
// reply, and a waiter of another client by a message.
//
// A copy finds the id gone. If a reply was lost, the grant in it was lost, too. A refresh then
// finds the waiter that holds the lock. memory is how long Redis remembers the call, so that a late
// copy of the acquisition takes nothing. With zero, Redis does not remember it.
func (d *fairDriver) free(ctx context.Context, o *engine.Owner, memory time.Duration) (engine.Released, error) {
	c := d.h.c
	call := scripts.FairLockRelease{Keys: &d.h.keys, Owner: o.ID, Client: c.life}
	if memory != 0 {
		call.MemoryKey = d.h.ownerKey(o)
		call.MemoryTTL = memory
	}
	reply, err := call.Do(ctx, c.calls)
	if err != nil || reply.Doubt {
		c.queues.refresh(d)
	}
	if err != nil {
		return engine.Released{}, err
	}
	if g, ok := readFairGrant(reply.Grant); ok { // otherwise the lock was not granted to a waiter
		g.sent = reply.Sent
		c.queues.grant(d, g)
	}
	return engine.Released{Lost: !reply.Held, InDoubt: reply.Doubt}, nil
}

// leaveQueue removes an id from the queue. If it was the next owner of a free lock, the script
// hands the lock on. The place stays if another client waits with the same id. A copy finds the id
// gone and does nothing, so nothing is remembered.
func (d *fairDriver) leaveQueue(ctx context.Context, id string) error {
	_, err := scripts.FairLockLeaveQueue{Keys: &d.h.keys, ID: id, Client: d.h.c.life}.Do(ctx, d.h.c.calls)
	return err
}

// waiterChannel returns the name of the channel of one waiter. Redisson publishes there that the
// lock is free, and so do the scripts of this library if they cannot grant it.
func (d *fairDriver) waiterChannel(id string) string { return d.h.channel() + ":" + id }

// grantChannel returns the name of the channel on which this client receives the grants to its
// waiters. It also receives "0" there if the lease of the holder ends sooner than its waiters know.
// The name contains the client's life, so that no grant for an earlier client of the same id
// arrives here.
func (d *fairDriver) grantChannel() string { return d.h.channel() + ":" + d.h.c.life }

// info implements [lockDriver] by fairlock/info, which reads the holder and the queue in one step.
// The queue includes waiters of Redisson, and may include dead ones.
func (d *fairDriver) info(ctx context.Context) (Info, error) {
	reply, err := scripts.FairLockInfo{Keys: &d.h.keys}.Do(ctx, d.h.c.calls)
	info := heldBy(reply.Holders)
	info.Waiters = reply.Waiters
	return info, err
}

// refresh sends one heartbeat for all waiters of this client, and asks about the given ids. The
// redlatch keys must live longer than the longest waiter timeout among them, which is why the
// script needs that.
//
// It runs fairlock/refresh, which also hands on a lock whose lease ended without a release. A copy
// renews the heartbeat and looks again, so nothing is remembered. A lost reply costs one round: the
// next refresh finds the same.
func (d *fairDriver) refresh(
	ctx context.Context, longest time.Duration, ids []string,
) (scripts.FairLockRefreshReply, error) {
	return scripts.FairLockRefresh{
		Keys: &d.h.keys, Client: d.h.c.life, LongestTimeout: longest, IDs: ids,
	}.Do(ctx, d.h.c.calls)
}

// isFree reports whether nobody held the lock.
func isFree(reply scripts.FairLockRefreshReply) bool { return reply.PTTL == -2 }

// changesIn returns the time until the lease of the holder ends, or the time that the next owner of
// a free lock has left. It returns [engine.Endless] if there is no end, and another negative time
// if the time is unknown.
func changesIn(reply scripts.FairLockRefreshReply) time.Duration {
	switch {
	case isFree(reply) && reply.Next != "":
		return fromMillis(reply.NextLeft)
	case reply.PTTL == -1:
		return engine.Endless
	}
	return fromMillis(reply.PTTL)
}
