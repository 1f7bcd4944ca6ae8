package primitives

import (
	"context"
	"fmt"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/scripts"
)

// How exclusive locks stand in Redis.
//
// The lock is a hash with one field: the owner's id, and how often it is held. Its expiry is the lease. A
// missing hash is a free lock. Scripts that may be repeated remember their requests, so that a late copy of
// an acquisition does not take a lock that was released already, and a late copy of a release does not free
// somebody else's. An id of its own belongs to one acquisition, so its number in a set is memory enough
// (dedup). Where others may share the id (WithOwner), each request has a key (ownerKey).

// Lock is the plain lock, Redisson's RLock; with [WithPolling] its SpinLock, with [WithNonReentrant] its
// NonReentrantLock.
func (c *Client) Lock(name string, opts ...Option) *Lock {
	l := &Lock{}
	l.init(c, "lock", name, opts)
	newMutexDriver(l, lockScripts)
	return l
}

const tokenPrefix = "redisson_lock_token"

// FencedLock is Redisson's RFencedLock: a lock whose holds have a fencing token, greater than that of
// every earlier holder, Java's included. The resource that the holder writes to should refuse a smaller
// token than it has seen. That stops a holder that goes on after its loss, which no lock can do by
// itself. (Martin Kleppmann, "How to do distributed locking", 2016.)
//
// A nested hold has the outer one's token. An adopted hold has none (0). The counter never expires: it
// rises as long as Redis keeps it, and starts again at 1 on a Redis that has lost its data.
func (c *Client) FencedLock(name string, opts ...Option) *Lock {
	l := &Lock{}
	l.init(c, "fenced", name, opts)
	newMutexDriver(l, lockScripts, prefixed(tokenPrefix, l.raw))
	return l
}

// hashDriver is what drivers of exclusive locks share. The lock is a hash with one field, the owner's
// id, whose value is the owner's count: Redisson's RLock.
type hashDriver struct {
	h       *handle
	hash    string
	channel string // of release messages
	pair    []any  // hash and channel: keys
	extra   []any  // further keys of the scripts that take or free the lock
	lua     *lockScriptSet
}

// lockScriptSet are the scripts in which kinds of lock differ.
type lockScriptSet struct {
	acquire, acquireShared *scripts.Script // for an id of its own, and for one that others may share
	release, releaseShared *scripts.Script // likewise
	force, adopt           *scripts.Script
}

var lockScripts = &lockScriptSet{
	acquire:       scripts.Load("lock/acquire"),
	acquireShared: scripts.Load("lock/acquire_shared"),
	release:       scripts.Load("lock/release"),
	releaseShared: scripts.Load("lock/release_shared"),
	force:         scripts.Load("lock/force"),
	adopt:         scripts.Load("lock/adopt"),
}

// Scripts that all kinds share whose lock is one field of a hash.
var (
	lockNestedAcquire = scripts.Load("lock/nested_acquire")
	lockNestedRelease = scripts.Load("lock/nested_release")
	lockCheck         = scripts.Load("lock/check")
	lockInfo          = scripts.Load("lock/info")
	lockRenew         = scripts.Load("lock/renew")
)

func newHashDriver(h *handle, lua *lockScriptSet, extra ...any) hashDriver {
	channel := prefixed(lockChannel, h.raw)
	return hashDriver{
		h: h, hash: h.raw, channel: channel, pair: []any{h.raw, channel}, extra: extra, lua: lua,
	}
}

// keys are the keys of the scripts that take or free the lock. request is the key that remembers.
func (d *hashDriver) keys(request string) []any {
	keys := make([]any, 0, 8) // of fixed size, so that it need not escape
	return append(append(append(keys, d.pair...), request, d.h.sharedCounts), d.extra...)
}

// outer finds the hold to nest under.
func (d *hashDriver) outer(ctx context.Context) (*engine.Hold, error) {
	return engine.OuterFrom(ctx, d.h.res.Key), nil
}

func (d *hashDriver) Subscribe(_ *engine.Request, wake func(missed bool)) []engine.Subscription {
	return d.h.c.subscribe(d.channel, isUnlockMessage, wake)
}

// isUnlockMessage reports whether a payload announces that a lock is free.
func isUnlockMessage(payload string) bool { return payload == "0" || payload == "1" }

// acquireShared tries to acquire for an id that others may share.
func (d *hashDriver) acquireShared(ctx context.Context, q *engine.Request) (engine.Result, error) {
	reply, err := d.h.c.confirm(ctx, d.lua.acquireShared, d.keys(d.h.ownerKey(&q.Owner)),
		q.ID, millis(q.TTL), d.h.c.publish(), d.h.c.remembered, flag(q.NonReentrant), flag(q.Nested))
	if err != nil {
		return engine.Result{}, err
	}
	return readLockReply(reply)
}

// readLockReply reads the reply of scripts that acquire a lock.
func readLockReply(reply scripts.Reply) (engine.Result, error) {
	res := engine.Result{InDoubt: reply.Doubt}
	switch answer := reply.Value.(type) {
	case int64: // the fencing token, or 0
		res.Granted, res.Sent, res.Token = true, reply.Sent, answer
		return res, nil
	case string:
		switch answer {
		case "again":
			return res, ErrDeadlock
		case "lost":
			return res, ErrLost
		}
		return res, fmt.Errorf("this acquisition was given back already: %w", ErrReleased)
	case []any: // {pttl of the holder, holder}
		res.RetryAfter = -1
		if ms, ok := answer[0].(int64); ok && ms >= 0 {
			res.RetryAfter = fromMillis(ms)
		}
		if len(answer) > 1 {
			res.Holder, _ = answer[1].(string)
		}
		return res, nil
	}
	return res, fmt.Errorf("unexpected answer %v", reply.Value)
}

// releaseCounts gives back a count of o where that need not free the lock: counts are left, or others
// may share the id.
func (d *hashDriver) releaseCounts(ctx context.Context, o *engine.Ownership, left int) (lost bool, err error) {
	if left == 0 {
		return d.releaseShared(ctx, &o.Owner, false)
	}
	reply, err := d.h.c.run.Do(ctx, lockNestedRelease, []any{d.hash, d.h.sharedCounts}, o.ID, left, millis(o.TTL))
	return reply.Value == int64(0), err
}

// releaseShared gives back one count of an id that others may share. A rollback gives back only what is
// known to have been acquired.
func (d *hashDriver) releaseShared(ctx context.Context, o *engine.Owner, rollback bool) (lost bool, err error) {
	reply, err := d.h.c.run.Do(ctx, d.lua.releaseShared, d.keys(d.h.ownerKey(o)),
		o.ID, d.h.c.publish(), d.h.c.rememberFor(o), flag(rollback), millis(o.TTL))
	return reply.Value == int64(0), err
}

func (d *hashDriver) SetCount(
	ctx context.Context, o *engine.Ownership, n int, ttl time.Duration,
) (time.Time, bool, error) {
	reply, err := d.h.c.confirm(ctx, lockNestedAcquire, []any{d.hash, d.h.sharedCounts}, o.ID, n, millis(ttl))
	return reply.Sent, reply.Value == int64(0), err
}

func (d *hashDriver) Extend(
	ctx context.Context, o *engine.Ownership, ttl time.Duration,
) (time.Time, bool, error) {
	return readRenewal(d.h.c.run.Do(ctx, lockRenew, []any{d.hash}, o.ID, millis(ttl)))
}

// readRenewal reads the reply of a script that renewed one lease.
func readRenewal(reply scripts.Reply, err error) (sent time.Time, lost bool, _ error) {
	kept, _ := reply.Value.([]any)
	return reply.Sent, len(kept) == 1 && kept[0] == int64(0), err
}

func (d *hashDriver) Check(ctx context.Context, o *engine.Ownership) (lost bool, err error) {
	reply, err := d.h.c.run.Do(ctx, lockCheck, []any{d.hash}, o.ID)
	return reply.Value == int64(0), err
}

func (d *hashDriver) renewScript() *scripts.Script { return lockRenew }

func (d *hashDriver) renewal(
	keys, args []any, o *engine.Ownership, ttl time.Duration,
) ([]any, []any) {
	return append(keys, d.h.key), append(args, o.ID, d.h.ttlArg(ttl))
}

// adoptInto replaces a holder's id by that of q. memory is the key that remembers the release of q; if it
// is a set, it does so by number.
func (d *hashDriver) adoptInto(
	ctx context.Context, memory string, number int, id string, q *engine.Request,
) (sent time.Time, counts int, err error) {
	reply, err := d.h.c.run.Do(ctx, d.lua.adopt, d.keys(memory)[:4],
		q.ID, millis(q.TTL), d.h.c.publish(), id, number)
	n, _ := reply.Value.(int64)
	return reply.Sent, int(n), err
}

func (d *hashDriver) releaseID(ctx context.Context, id string, q *engine.Request) (held bool, err error) {
	reply, err := d.h.c.run.Do(ctx, d.lua.releaseShared, d.keys(d.h.ownerKey(&q.Owner)),
		id, d.h.c.publish(), d.h.c.remembered, 0, millis(q.TTL))
	return reply.Value == int64(1), err
}

func (d *hashDriver) forceRelease(ctx context.Context, q *engine.Request) (ids []string, held bool, err error) {
	reply, err := d.h.c.run.Do(ctx, d.lua.force, d.keys(d.h.ownerKey(&q.Owner)), d.h.c.publish(), d.h.c.remembered)
	ids, held = readForced(reply.Value)
	return ids, held, err
}

func (d *hashDriver) info(ctx context.Context) (Info, error) {
	reply, err := d.h.c.run.Do(ctx, lockInfo, []any{d.hash})
	if err != nil {
		return Info{}, err
	}
	answer := reply.Value.([]any)
	info := Info{TTL: ttlOf(answer[0].(int64))}
	info.Holders = holders(answer[1:], info.TTL)
	return info, nil
}

// mutexDriver is the driver of plain and fenced locks. A free lock is for whoever comes first, so the
// waiters of one client may hand it off to each other.
type mutexDriver struct{ hashDriver }

func newMutexDriver(l *Lock, lua *lockScriptSet, extra ...any) {
	d := &mutexDriver{newHashDriver(&l.handle, lua, extra...)}
	l.useLock(d, engine.Traits{
		Outer: d.outer, NestsInTurn: true, HandOff: d.handOff, ClientsTakeTurns: true,
		Cohorts: true, Fenced: l.res.Kind == "fenced",
	}, d.keys(l.requestKey("")))
}

func (d *mutexDriver) TryAcquire(ctx context.Context, q *engine.Request) (engine.Result, error) {
	if q.Shared {
		return d.acquireShared(ctx, q)
	}
	released, number := d.h.dedup(&q.Owner)
	keys := append(append(append(make([]any, 0, 4), d.pair...), released), d.extra...)
	args := append(make([]any, 0, 5), q.ID, d.h.ttlArg(q.TTL), d.h.c.publish(), number)
	if d.h.res.Traits.Fenced {
		args = append(args, max(q.Tokens, 1))
	}
	reply, err := d.h.c.confirm(ctx, d.lua.acquire, keys, args...)
	if err != nil {
		return engine.Result{}, err
	}
	return readLockReply(reply)
}

func (d *mutexDriver) Rollback(ctx context.Context, q *engine.Request) (err error) {
	if q.Shared {
		_, err = d.releaseShared(ctx, &q.Owner, true)
	} else {
		_, err = d.free(ctx, &q.Owner, nil)
	}
	return err
}

func (d *mutexDriver) Release(ctx context.Context, o *engine.Ownership, left int) (lost bool, err error) {
	if left > 0 || o.Shared {
		return d.releaseCounts(ctx, o, left)
	}
	got, err := d.free(ctx, &o.Owner, nil)
	return got.Lost, err
}

func (d *mutexDriver) handOff(
	ctx context.Context, o *engine.Ownership, successor *engine.Owner,
) (engine.HandOff, error) {
	return d.free(ctx, &o.Owner, successor)
}

// free frees the lock, or makes successor its holder if that is not nil.
func (d *mutexDriver) free(ctx context.Context, o, successor *engine.Owner) (engine.HandOff, error) {
	released, number := d.h.dedup(o)
	keys := append(append(make([]any, 0, 6), d.pair...), released, d.h.sharedCounts)
	args := append(make([]any, 0, 8), o.ID, d.h.c.publish(), d.h.c.rememberedLong, number)
	if successor != nil {
		released, number = d.h.dedup(successor)
		keys = append(append(keys, released), d.extra...)
		args = append(args, successor.ID, d.h.ttlArg(successor.TTL), number)
		if d.h.res.Traits.Fenced {
			args = append(args, max(successor.Tokens, 1))
		}
	}
	return readHandOff(d.h.c.run.Do(ctx, d.lua.release, keys, args...))
}

// readHandOff reads the reply of scripts that free something or hand it off: {the successor's token}, or
// 1 and how many clients received the release message, or 0 if there was nothing to give back.
func readHandOff(reply scripts.Reply, err error) (engine.HandOff, error) {
	switch answer := reply.Value.(type) {
	case []any:
		token, _ := answer[0].(int64)
		granted := engine.Result{Granted: true, Sent: reply.Sent, Token: token, InDoubt: reply.Doubt}
		return engine.HandOff{Granted: granted}, err
	case int64:
		return engine.HandOff{Heard: int(answer) - 1, Lost: answer == 0}, err
	}
	return engine.HandOff{}, err
}

func (d *mutexDriver) adopt(ctx context.Context, id string, q *engine.Request) (time.Time, int, error) {
	released, number := d.h.dedup(&q.Owner)
	return d.adoptInto(ctx, released, number, id, q)
}
