package primitives

import (
	"context"
	"math"
	"strconv"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/pubsub"
	"github.com/redlatch/redlatch/scripts"
)

// Exclusive locks in Redis: Redisson's RLock and RFencedLock.
//
//	<name>                           hash: the owner's id, and how often it holds the lock
//	redisson_lock__channel:{<name>}  channel: "0" when the lock becomes free
//	redisson_lock_token:{<name>}     the latest fencing token, of fenced locks only
//	redisson_unlock_latch:{<name>}:line   sorted set: the clients of this library that wait, in line
//	redisson_unlock_latch:{<name>}:polls  exists while clients of this library poll
//
// The TTL of the hash is the lease. A missing hash is a free lock.
//
// A command may be executed twice, and a copy of it may arrive late. A copy of an acquisition must
// not take a lock that was released meanwhile. A copy of a release must not free the lock of the
// next owner. Two rules ensure this:
//
//   - A private id belongs to one acquisition. A copy of its release finds the id gone, and does
//     nothing. A copy of its acquisition can only come if an attempt was not answered. The client
//     knows that, and only then does the release leave a key that stops late copies.
//   - An id of WithOwner may be in use elsewhere, so the scripts count. Redis keeps a list of the
//     acquisitions that have a count (scripts/lib/shared_counts.lua). A copy of an acquisition
//     finds itself in the list, and a copy of its release does not. Copies that come after the
//     release find a key, too.
//
// Both use [handle.ownerKey].
//
// doc/wire.md lists all keys. The fair lock shares most of this file, and the writer side of a
// read-write lock its nested counts.

// Lock returns the plain lock of that name: Redisson's RLock. With [WithPolling] it equals
// Redisson's SpinLock, with [WithNonReentrant] its NonReentrantLock. It sends nothing. The first
// call of a method reports a bad name or option with [ErrInvalid].
func (c *Client) Lock(name string, opts ...Option) *Lock { return c.newMutex("lock", name, opts) }

// tokenPrefix begins the key of a fenced lock's counter. The key has no TTL: tokens must never
// repeat.
const tokenPrefix = "redisson_lock_token"

// FencedLock returns the fenced lock of that name: Redisson's RFencedLock. Each outermost hold has
// a fencing token ([Hold.Token]), greater than that of every earlier holder, Java's included. The
// resource that the holder writes to should refuse a smaller token than it has seen. That stops a
// holder that continues after its loss, which no lock can do by itself. (Martin Kleppmann, "How to
// do distributed locking", 2016.)
//
// A nested hold has the outer hold's token. An adopted hold has none (0). The counter never
// expires. It rises as long as Redis keeps it, and starts again at 1 on a Redis that has lost its
// data.
func (c *Client) FencedLock(name string, opts ...Option) *Lock {
	return c.newMutex(fencedKind, name, opts)
}

// fencedKind is the kind of a lock whose holds have tokens.
const fencedKind = "fenced"

// newMutex returns a plain or a fenced lock.
func (c *Client) newMutex(kind, name string, opts []Option) *Lock {
	m := new(struct { // one allocation
		Lock
		own mutexDriver
	})
	m.init(c, kind, name, opts)
	m.keys.Channel = m.nextName(lockChannel, "")
	m.keys.Line = m.nextName(requestPrefix, ":"+lineKey)
	m.own.h = &m.handle
	m.own.scripts = &lockScripts
	traits := &mutexTraits
	if kind == fencedKind {
		m.keys.KindKeys = &scripts.KindKeys{TokenKey: prefixed(tokenPrefix, m.raw())}
		traits = &fencedTraits
	}
	m.useLock(&m.own, traits)
	return &m.Lock
}

// mutexTraits are the traits of plain locks. Nested holds take turns: two goroutines that share an
// outer hold exclude each other. Clients take turns, too.
var mutexTraits = engine.Traits{Leased: true, Nests: true, HandsOff: true}

// fencedTraits are the traits of plain locks, with tokens.
var fencedTraits = engine.Traits{Leased: true, Nests: true, HandsOff: true, Fenced: true}

// lockScripts are the scripts of plain and fenced locks.
var lockScripts = kindScripts{
	force: scripts.LockForce, shorten: scripts.LockShorten.Do, releaseShared: scripts.LockReleaseShared.Do,
}

// hashDriver has the commands that all locks with one holder share: plain, fenced and fair locks.
type hashDriver struct{ fieldDriver }

// releaseShared gives back the count of an acquisition whose id others may share, by
// lock/release_shared. It is the release and the rollback. If the acquisition has no count, nothing
// is released, because the other counts of the id belong to other callers. The key of the request
// remembers the release, so a copy gets the same answer, and a late copy of the acquisition takes
// nothing. The TTL is used only if the hash has none.
func (d *hashDriver) releaseShared(ctx context.Context, o *engine.Owner) (engine.Released, error) {
	return releasedResult(d.releaseOne(ctx, o, scripts.LockReleaseShared{
		Owner: o.ID, MemoryTTL: d.h.c.rememberFor(o), OnlyOwn: true,
	}))
}

// releaseOne runs lock/release_shared, or the script of fair locks, which has the same arguments.
// The key of o remembers it.
func (d *hashDriver) releaseOne(
	ctx context.Context, o *engine.Owner, call scripts.LockReleaseShared,
) (scripts.Released, error) {
	call.Keys = &d.h.keys
	call.MemoryKey = d.h.ownerKey(o)
	call.DefaultTTL = o.TTL
	return d.scripts.releaseShared(call, ctx, d.h.c.calls)
}

// adopt implements [lockDriver] by lock/adopt. A copy of the command finds q's id in place, and
// gets the same answer. After q's release it finds the key that the release has left, and takes
// nothing. An adoption mints no token and leaves the queue of a fair lock alone.
func (d *hashDriver) adopt(ctx context.Context, id string, q *engine.Request) (time.Time, int, error) {
	reply, err := scripts.LockAdopt{
		Keys: &d.h.keys, MemoryKey: d.h.ownerKey(&q.Owner), NewOwner: q.ID, TTL: q.TTL, OldOwner: id,
	}.Do(ctx, d.h.c.confirmed)
	return adopted(q, reply, err)
}

// releaseID implements [lockDriver] by lock/release_shared. It releases one count, whoever acquired
// it. Counts of WithOwner go first, the oldest of them before the others. The release of that
// acquisition then finds that it was lost. q has a new number, and the key of that number remembers
// the answer for copies.
func (d *hashDriver) releaseID(ctx context.Context, id string, q *engine.Request) (held bool, err error) {
	reply, err := d.releaseOne(ctx, &q.Owner, scripts.LockReleaseShared{Owner: id, MemoryTTL: d.h.c.run.Memory()})
	return reply.Held, err
}

// mutexDriver is the driver of plain and fenced locks. Clients that wait stand in line, but whoever
// tries first gets a free lock, so a release may hand the lock off to a waiter of the same client.
// It implements [engine.LineDriver].
type mutexDriver struct{ hashDriver }

// lineKey ends the key of the line, in which clients of this library wait. Users that may use
// Redisson's keys may use it, too.
const lineKey = "line"

// placeName returns the name of a client's place in the line. The channel of the place ends with
// it. It contains the client's life, so that clients that were given the same id have different
// places.
func (d *mutexDriver) placeName(number uint64) string { return numbered(nil, d.h.c.life, number) }

// placeMessages are the payloads on the channel of a place.
var placeMessages = map[string]engine.Message{"0": engine.OurTurn, "1": engine.OthersTurn, "2": engine.Listen}

// SubscribePlace implements [engine.LineDriver]. With plain pub/sub on a cluster a script does not
// learn who receives its messages: subscribers may be connected to other masters.
func (d *mutexDriver) SubscribePlace(number uint64, hear func(engine.Message)) engine.Subscription {
	c := d.h.c
	if c.cluster && c.run.Publish() == scripts.Publish {
		return nil
	}
	return c.hub.Subscribe(d.h.channel()+":"+d.placeName(number), func(s pubsub.Signal) {
		if s.Resubscribed {
			hear(engine.Missed)
		} else if m, ok := placeMessages[s.Payload]; ok {
			hear(m)
		}
	})
}

// GiveUpPlace implements [engine.LineDriver] by lock/leave. A copy finds the place gone. If the
// lock is free, it wakes the next client once more, which is harmless.
func (d *mutexDriver) GiveUpPlace(ctx context.Context, number uint64) error {
	_, err := scripts.LockLeave{Keys: &d.h.keys, Place: d.placeName(number)}.Do(ctx, d.h.c.calls)
	return err
}

// info implements [lockDriver] by lock/info, which reads the holder and a fenced lock's token in
// one step.
func (d *mutexDriver) info(ctx context.Context) (Info, error) {
	reply, err := scripts.LockInfo{Keys: &d.h.keys}.Do(ctx, d.h.c.calls)
	info := heldBy(reply.Holders)
	info.Token = scripts.TokenOf(reply.Token)
	return info, err
}

// TryAcquire implements [engine.Driver] by lock/acquire.
//
// If a reply was lost, the next attempt finds q's own id in the hash and is granted the lock again,
// with the same token. A copy that arrives after the release finds the key that the release has
// left, and takes nothing.
func (d *mutexDriver) TryAcquire(ctx context.Context, q *engine.Request) (engine.Result, error) {
	if q.Shared {
		return d.acquireShared(ctx, q)
	}
	call := scripts.LockAcquire{Keys: &d.h.keys, MemoryKey: d.h.ownerKey(&q.Owner), Owner: q.ID, TTL: q.TTL}
	if d.h.res.Traits.Fenced {
		call.Tokens = int64(max(q.Tokens, 1))
	}
	if q.Place.Number != 0 {
		call.Place = d.placeName(q.Place.Number)
		call.IsLast = q.Place.Last
		call.Since = strconv.FormatInt(q.Place.Since, 10)
	}
	if q.MayQueue {
		call.Mark, call.MarkTTL = d.pollMark(q)
	}
	reply, err := call.Do(ctx, d.h.c.confirmed)
	res, err := acquiredResult(reply.Acquired, err)
	countTokens(&res, q.Tokens)
	isInLine := reply.Since != 0
	res.Since = reply.Since
	res.NeedNotListen = isInLine && !reply.MustListen
	return res, err
}

// acquireShared tries to acquire for an id that others may share. It runs lock/acquire_shared,
// which adds a count. A copy finds the acquisition's count and adds none; after the release it gets
// the answer "over".
func (d *mutexDriver) acquireShared(ctx context.Context, q *engine.Request) (engine.Result, error) {
	res, err := acquiredResult(scripts.LockAcquireShared{
		Keys: &d.h.keys, MemoryKey: d.h.ownerKey(&q.Owner), Owner: q.ID, TTL: q.TTL,
		RefuseSecond: q.NonReentrant, IsNested: q.UnderSameID,
	}.Do(ctx, d.h.c.confirmed))
	countTokens(&res, 1)
	return res, err
}

// Rollback implements [engine.Driver]. It is a release, whether or not q holds the lock. If a copy
// of an attempt may still come, the script leaves a key that stops it.
func (d *mutexDriver) Rollback(ctx context.Context, q *engine.Request) error {
	_, err := d.free(ctx, &q.Owner, engine.Next{})
	return err
}

// Release implements [engine.HoldDriver].
func (d *mutexDriver) Release(
	ctx context.Context, o *engine.Ownership, remaining int, next engine.Next,
) (engine.Released, error) {
	if remaining > 0 {
		return d.unnest(ctx, o, remaining)
	}
	return d.free(ctx, &o.Owner, next)
}

// free gives back the count of a shared id. For a private owner it runs lock/release, which frees
// the lock, or makes the successor in next its holder.
//
// A copy of the release finds the id gone and replies 0, like the release of a lost lock. The
// engine tells the two apart: see [engine.Released].InDoubt. If the successor has rolled back
// before, its key says so: then the script frees the lock. The token is passed only with a
// successor: a release alone mints none.
func (d *mutexDriver) free(ctx context.Context, o *engine.Owner, next engine.Next) (engine.Released, error) {
	if o.Shared {
		return d.releaseShared(ctx, o)
	}
	call := scripts.LockRelease{Keys: &d.h.keys, Owner: o.ID}
	if o.InDoubt {
		call.MemoryKey = d.h.ownerKey(o)
		call.MemoryTTL = d.h.c.run.Memory()
	}
	if next.Place.Number != 0 {
		call.Place = d.placeName(next.Place.Number)
	}
	call.SuccessorMemory = d.successorKey(next)
	if successor := next.Successor; successor != nil {
		call.Successor = successor.ID
		call.SuccessorTTL = successor.TTL
		if d.h.res.Traits.Fenced {
			call.SuccessorToken = d.h.keys.TokenKey
			call.Tokens = int64(max(successor.Tokens, 1))
		}
	}
	reply, err := call.Do(ctx, d.h.c.calls)
	got, err := releasedResult(reply, err)
	got.InDoubt = reply.Doubt
	if next.Successor != nil {
		countTokens(&got.Successor, next.Successor.Tokens)
	}
	return got, err
}

// countTokens turns the last token of a block of n, which the script has reserved, into the first
// one. Near the end of the counter the script reserves one instead of a block, so only the last
// token of a block that ends there is used.
func countTokens(res *engine.Result, n int16) {
	block := int64(n)
	isNearEnd := res.Token > math.MaxInt64-block
	hasBlock := block > 1 && res.Token >= block
	switch {
	case hasBlock && !isNearEnd:
		res.Token = res.Token - block + 1
		res.Tokens = n
	case res.Token > 0:
		res.Tokens = 1
	}
}
