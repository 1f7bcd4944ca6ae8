package primitives

import (
	"context"
	"fmt"
	"math"
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
// A command may be executed twice, and a copy of it may arrive late. A copy of an acquisition must not
// take a lock that was released meanwhile. A copy of a release must not free the lock of the next
// owner. Two rules see to that:
//
//   - A private id belongs to one acquisition. A copy of its release finds the id gone, and does nothing.
//     A copy of its acquisition can only come if an attempt was not answered. The client knows that, and
//     only then does the release leave a key that stops late copies.
//   - An id of WithOwner may be in use elsewhere, so the scripts count. Redis keeps a list of the
//     acquisitions that have a count (scripts/lib/shared_counts.lua). A copy of an acquisition finds itself
//     in the list, and a copy of its release does not. Copies that come after the release find a key, too.
//
// Both use [handle.ownerKey].
//
// doc/wire.md lists all keys. The fair lock shares most of this file, and the writer side of a
// read-write lock its nested counts.

// Lock returns the plain lock of that name: Redisson's RLock. With [WithPolling] it equals Redisson's
// SpinLock, with [WithNonReentrant] its NonReentrantLock. It sends nothing. The first call of a method
// reports a bad name or option with [ErrInvalid].
func (c *Client) Lock(name string, opts ...Option) *Lock { return c.newMutex("lock", name, opts) }

// tokenPrefix begins the key of a fenced lock's counter. The key has no TTL: tokens must never repeat.
const tokenPrefix = "redisson_lock_token"

// FencedLock returns the fenced lock of that name: Redisson's RFencedLock. Each outermost hold has a
// fencing token ([Hold.Token]), greater than that of every earlier holder, Java's included. The
// resource that the holder writes to should refuse a smaller token than it has seen. That stops a
// holder that goes on after its loss, which no lock can do by itself. (Martin Kleppmann, "How to do
// distributed locking", 2016.)
//
// A nested hold has the outer hold's token. An adopted hold has none (0). The counter never expires. It
// rises as long as Redis keeps it, and starts again at 1 on a Redis that has lost its data.
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
	m.own.hashDriver = newHashDriver(&m.handle, lockScripts)
	m.own.line = m.requestName(lineKey)
	m.own.more[0] = &m.own.line
	traits, more := &mutexTraits, 1
	if kind == fencedKind {
		m.own.more[1] = prefixed(tokenPrefix, m.raw)
		traits, more = &fencedTraits, 2
	}
	m.own.extra = m.own.more[:more]
	m.useLock(&m.own, traits)
	return &m.Lock
}

// mutexTraits are those of plain locks. Nested holds take turns: two goroutines that share an outer hold
// exclude each other. Clients take turns too.
var mutexTraits = engine.Traits{
	Leased: true, Nests: true, NestsInTurn: true, HandsOff: true, ClientsTakeTurns: true, Cohorts: true,
}

// fencedTraits are those of plain locks, with tokens.
var fencedTraits = func(t engine.Traits) engine.Traits { t.Fenced = true; return t }(mutexTraits)

// hashDriver has the commands that all locks with one holder share: plain, fenced and fair ones. Each
// handle has one. It never changes after its constructor, so it needs no mutex.
type hashDriver struct {
	h       *handle  // its name is the key of the hash
	channel wireName // of release messages
	extra   []any    // the last keys: the line and a fenced lock's token, or a fair lock's queue
	lua     *lockScriptSet
}

// lockScriptSet lists the scripts in which kinds of lock differ. Scripts of the same field have the
// same arguments and replies, so one Go method serves all kinds.
type lockScriptSet struct {
	acquire, acquireShared *scripts.Script // for a private id, and for one that others may share
	release, releaseShared *scripts.Script // likewise
	force                  *scripts.Script
}

// lockScripts are the scripts of plain and fenced locks. They mint a token if KEYS names the counter.
var lockScripts = &lockScriptSet{
	acquire:       scripts.Load("lock/acquire"),
	acquireShared: scripts.Load("lock/acquire_shared"),
	release:       scripts.Load("lock/release"),
	releaseShared: scripts.Load("lock/release_shared"),
	force:         scripts.Load("lock/force"),
}

// Scripts for one field of a hash. Every kind of lock uses them; a writer passes its own field.
var (
	lockNestedAcquire = scripts.Load("lock/nested_acquire")
	lockNestedRelease = scripts.Load("lock/nested_release")
	lockAdopt         = scripts.Load("lock/adopt")
	lockCheck         = scripts.Load("lock/check")
	lockInfo          = scripts.Load("lock/info")
	lockRenew         = scripts.Load("lock/renew")
	lockRenewShared   = scripts.Load("lock/renew_shared")
)

// newHashDriver returns the driver of a handle that has a name. extra are the keys that its kind adds.
func newHashDriver(h *handle, lua *lockScriptSet, extra ...any) hashDriver {
	return hashDriver{h: h, channel: h.wireName(lockChannel), extra: extra, lua: lua}
}

// keys returns the keys of the scripts that take or free the lock. request is the key that remembers
// the request. Its place is fixed, KEYS[3], as is that of the shared counts, KEYS[4].
func (d *hashDriver) keys(request string) []any {
	keys := make([]any, 0, 8) // of fixed size, so that it need not escape
	return append(append(keys, d.h.name, &d.channel, request, &d.h.sharedCounts), d.extra...)
}

// Subscribe implements [engine.Driver]. All waiters of a client share one subscription to the channel.
func (d *hashDriver) Subscribe(_ *engine.Request, wake func(missed bool)) []engine.Subscription {
	return d.h.c.subscribe(d.channel.String(), isUnlockMessage, wake)
}

// isUnlockMessage reports whether a payload announces that a lock is free. In Redisson "0" wakes one
// waiter and "1" wakes all. Here both are a reason to try, and the queue decides who tries. Other
// payloads are ignored.
func isUnlockMessage(payload string) bool { return payload == "0" || payload == "1" }

// acquireShared tries to acquire for an id that others may share. It runs lock/acquire_shared, which
// adds a count. A copy finds the acquisition's count and adds none; after the release it is answered
// "over".
func (d *hashDriver) acquireShared(ctx context.Context, q *engine.Request) (engine.Result, error) {
	reply, err := d.h.c.confirm(ctx, d.lua.acquireShared, d.keys(d.h.ownerKey(&q.Owner)),
		q.ID, millis(q.TTL), d.h.c.publish(), flag(q.NonReentrant), flag(q.Nested))
	if err != nil {
		return engine.Result{}, err
	}
	return readLockReply(reply)
}

// readLockReply reads the reply of the scripts that acquire a lock:
//
//	0               granted
//	digits          granted: the last fencing token that was reserved
//	{pttl, holder}  refused: somebody else holds it, for pttl ms. More elements are for the caller
//	"again"         refused: WithNonReentrant forbids a second count
//	"lost"          refused: the hold to nest under is gone, so its holds must end
//	"over"          this acquisition was rolled back or released before: a late copy asked
//
// A negative pttl means that the hash has no TTL. When to retry is then unknown.
func readLockReply(reply scripts.Reply) (engine.Result, error) {
	res := engine.Result{InDoubt: reply.Doubt}
	switch answer := reply.Value.(type) {
	case int64:
		if answer == 0 {
			res.Granted, res.Sent = true, reply.Sent
			return res, reply.Unconfirmed
		}
	case string:
		switch answer {
		case "again":
			return res, ErrDeadlock
		case "lost":
			return res, ErrLost
		case "over":
			return res, fmt.Errorf("this acquisition was given back already: %w", ErrReleased)
		}
		if res.Token = tokenOf(answer); res.Token > 0 {
			res.Granted, res.Sent, res.Tokens = true, reply.Sent, 1
			return res, reply.Unconfirmed
		}
	case []any: // {pttl of the holder, holder}
		refused := elementsOf(answer, nil)
		res.RetryAfter = -1
		if ms := refused.number(); ms >= 0 {
			res.RetryAfter = fromMillis(ms)
		}
		if refused.more() {
			res.Holder = refused.text()
		}
		return res, refused.err
	}
	return res, unreadable(reply.Value)
}

// releaseCounts gives back a count of o where that need not free the lock: counts are left, or others
// may share the id.
//
// With counts left it runs lock/nested_release. That script sets the wanted count instead of
// subtracting one, so a copy changes nothing and no memory is needed. Reply: 0 if o had lost the lock.
func (d *hashDriver) releaseCounts(
	ctx context.Context, o *engine.Ownership, left int, rest time.Duration,
) (engine.Released, error) {
	if left == 0 {
		return d.releaseShared(ctx, &o.Owner, rest)
	}
	lost, err := readLost(
		d.h.c.run.Do(ctx, lockNestedRelease, []any{d.h.name, &d.h.sharedCounts}, o.ID, left, millis(o.TTL)))
	return engine.Released{Lost: lost}, err
}

// releaseShared gives back the count of an acquisition whose id others may share, by lock/release_shared.
// It is the release and the rollback. If the acquisition has no count, nothing is released: the other counts
// of the id belong to other callers. The request's key remembers the release, so a copy gets the same answer,
// and a late copy of the acquisition takes nothing. The TTL is used only if the hash has none. If it was the
// last count, the lock stays taken for the rest of the minimum hold.
func (d *hashDriver) releaseShared(
	ctx context.Context, o *engine.Owner, rest time.Duration,
) (engine.Released, error) {
	lost, err := readLost(d.h.c.run.Do(ctx, d.lua.releaseShared, d.keys(d.h.ownerKey(o)),
		o.ID, d.h.c.publish(), d.h.c.rememberFor(o), 1, millis(o.TTL), millis(rest)))
	return releasedOf(lost, err)
}

// releasedOf returns the result of a release. If the key holds data of another program by now, the lock is lost.
func releasedOf(lost bool, err error) (engine.Released, error) {
	if isForeign(err) {
		return engine.Released{Lost: true}, nil
	}
	return engine.Released{Lost: lost}, err
}

// SetCount implements [engine.Driver] by lock/nested_acquire. The script sets the wanted count, and only
// while o holds the lock, so a copy changes nothing. A late copy of an earlier change may restore an
// older count. That is harmless: the last release of a private id frees the lock, whatever its count.
// Like every acquisition it is confirmed by replicas, if the client asks for that.
func (d *hashDriver) SetCount(
	ctx context.Context, o *engine.Ownership, n int, ttl time.Duration,
) (time.Time, bool, error) {
	reply, err := d.h.c.confirmChange(ctx, lockNestedAcquire, []any{d.h.name, &d.h.sharedCounts}, o.ID, n, millis(ttl))
	lost, err := readLost(reply, err)
	return reply.Sent, lost, err
}

// Extend implements [engine.Driver] by lock/renew or lock/renew_shared, with a batch of one. The script
// raises the TTL and never shortens it, so copies in any order are harmless.
func (d *hashDriver) Extend(
	ctx context.Context, o *engine.Ownership, ttl time.Duration,
) (time.Time, bool, error) {
	keys, args := d.renewal(nil, nil, o, ttl)
	return readRenewal(d.h.c.confirmChange(ctx, d.renewScript(o.Shared), keys, args...))
}

// readRenewal reads the reply of a script that renewed one lease: {1} if it was kept, {0} if it is
// lost. With an error the lease is not lost: the command may not have been executed.
func readRenewal(reply scripts.Reply, err error) (sent time.Time, lost bool, _ error) {
	kept := elementsOf(reply.Value, err)
	lost = kept.number() == 0
	return reply.Sent, lost && kept.err == nil, kept.err
}

// Check implements [engine.Driver] by lock/check, which only reads: does the hash have o's field? For a
// shared id see [handle.checkCount].
func (d *hashDriver) Check(ctx context.Context, o *engine.Ownership) (lost bool, err error) {
	if o.Shared {
		return d.h.checkCount(ctx, d, o)
	}
	return readLost(d.h.c.run.Do(ctx, lockCheck, []any{d.h.name}, o.ID))
}

// renewScript implements [renewer].
func (d *hashDriver) renewScript(shared bool) *scripts.Script {
	if shared {
		return lockRenewShared
	}
	return lockRenew
}

// renewal implements [renewer]: one key and two arguments for each lock, and one more of both for a shared
// id. The usual name and TTL are prebuilt values, so a renewal does not allocate them.
func (d *hashDriver) renewal(
	keys, args []any, o *engine.Ownership, ttl time.Duration,
) ([]any, []any) {
	keys, args = append(keys, d.h.name), append(args, o.ID, d.h.ttlArg(ttl))
	return d.h.withCount(keys, args, o)
}

// probe implements [renewer].
func (d *hashDriver) probe(o *engine.Ownership) []any { return []any{"hexists", d.h.name, o.ID} }

// adopt implements [lockDriver] by lock/adopt. A copy of the command finds q's id in place, and gets the
// same answer. After q's release it finds the key that the release has left, and takes nothing. Only the
// first four keys are passed: an adoption mints no token and leaves the queue of a fair lock alone.
func (d *hashDriver) adopt(ctx context.Context, id string, q *engine.Request) (time.Time, int, error) {
	reply, err := d.h.c.confirm(ctx, lockAdopt, d.keys(d.h.ownerKey(&q.Owner))[:4],
		q.ID, millis(q.TTL), d.h.c.publish(), id)
	q.InDoubt = q.InDoubt || reply.Doubt // a shared id may come back, and a copy must not take it
	counts, err := readNumber(reply, err)
	if err == nil && counts > 0 {
		err = reply.Unconfirmed
	}
	return reply.Sent, int(counts), err
}

// releaseID implements [lockDriver] by lock/release_shared: one count, whoever acquired it. Counts of
// WithOwner go first, the oldest of them before the others; the release of that acquisition then finds that
// it was lost. q has a new number, and the key of that number remembers the answer for copies.
func (d *hashDriver) releaseID(ctx context.Context, id string, q *engine.Request) (held bool, err error) {
	lost, err := readLost(d.h.c.run.Do(ctx, d.lua.releaseShared, d.keys(d.h.ownerKey(&q.Owner)),
		id, d.h.c.publish(), d.h.c.remembered, 0, millis(q.TTL), 0))
	return err == nil && !lost, err
}

// forceRelease implements [lockDriver] by lock/force. It deletes the hash and publishes the release. Redis
// remembers the ids, so a copy gets them too, and the former holders can be notified.
func (d *hashDriver) forceRelease(ctx context.Context, q *engine.Request) (ids []string, held bool, err error) {
	return readForced(
		d.h.c.run.Do(ctx, d.lua.force, d.keys(d.h.ownerKey(&q.Owner)), d.h.c.publish(), d.h.c.remembered))
}

// mutexDriver is the driver of plain and fenced locks. Clients that wait stand in line, but whoever tries
// first gets a free lock. So a release may hand the lock off to a waiter of the same client. It implements
// [engine.LineDriver].
type mutexDriver struct {
	hashDriver
	line wireName // key of the line
	more [2]any   // what extra refers to, so that it takes no allocation
}

// lineKey ends the key of the line, in which clients of this library wait. Users that may use Redisson's keys
// may use it, too.
const lineKey = "line"

var lockLeave = scripts.Load("lock/leave")

// placeName is a client's place as a member of the line. Its channel ends with it. It contains the client's
// life, so that clients that were given the same id have different places.
func (d *mutexDriver) placeName(number uint64) string { return numbered(nil, d.h.c.life, number) }

// SubscribePlace implements [engine.LineDriver]. With plain pub/sub on a cluster a script does not learn who
// receives its messages: subscribers may be connected to other masters.
func (d *mutexDriver) SubscribePlace(number uint64, hear func(engine.LineMessage)) engine.Subscription {
	c := d.h.c
	if c.cluster && !c.publishing.sharded.Load() {
		return nil
	}
	return c.hub.Subscribe(d.channel.String()+":"+d.placeName(number), func(s pubsub.Signal) {
		switch {
		case s.Resubscribed:
			hear(engine.LineMissed)
		case s.Payload == "0":
			hear(engine.LineTurn)
		case s.Payload == "1":
			hear(engine.LineOthersTurn)
		case s.Payload == "2":
			hear(engine.LineListen)
		}
	})
}

// GiveUpPlace implements [engine.LineDriver] by lock/leave. A copy finds the place gone. If the lock is free,
// it wakes the next client once more, which is harmless.
func (d *mutexDriver) GiveUpPlace(ctx context.Context, number uint64) error {
	_, err := d.h.c.run.Do(ctx, lockLeave, d.keys(d.h.requestKey("")), d.placeName(number), d.h.c.publish())
	return err
}

// info implements [lockDriver] by lock/info, which reads the hash, its TTL and a fenced lock's token in one step.
func (d *mutexDriver) info(ctx context.Context) (Info, error) {
	reply, err := d.h.c.run.Do(ctx, lockInfo, append([]any{d.h.name}, d.extra[1:]...)) // without the line
	answer := elementsOf(reply.Value, err)
	info := Info{TTL: ttlOf(answer.number()), Token: tokenOf(answer.next())}
	info.Holders = readHolders(&answer, info.TTL)
	return info, answer.err
}

// TryAcquire implements [engine.Driver] by lock/acquire. [readLockReply] lists the replies.
//
// If a reply was lost, the next attempt finds q's own id in the hash and is granted the lock again,
// with the same token. A copy that arrives after the release finds the key that the release has left, and
// takes nothing.
func (d *mutexDriver) TryAcquire(ctx context.Context, q *engine.Request) (engine.Result, error) {
	if q.Shared {
		return d.acquireShared(ctx, q)
	}
	keys := append(append(make([]any, 0, 5), d.h.name, &d.channel, d.h.ownerKey(&q.Owner)), d.extra...)
	markTTL := pollMarkTTL(q)
	if markTTL > 0 {
		keys[3] = d.h.requestKey(pollsKey)
	}
	args := append(make([]any, 0, 7), q.ID, d.h.ttlArg(q.TTL), d.h.c.publish())
	place := q.Place
	switch {
	case d.h.res.Traits.Fenced:
		args = append(args, max(q.Tokens, 1))
	case place.Number != 0 || markTTL > 0:
		args = append(args, 0)
	}
	switch {
	case place.Number != 0:
		args = append(args, d.placeName(place.Number), place.Since, flag(place.Last))
	case markTTL > 0:
		args = append(args, "", markTTL)
	}
	reply, err := d.h.c.confirm(ctx, d.lua.acquire, keys, args...)
	if err != nil {
		return engine.Result{}, err
	}
	res, err := readLockReply(reply)
	countTokens(&res, q.Tokens)
	if answer, ok := reply.Value.([]any); ok && len(answer) == 4 {
		res.Since, _ = answer[2].(int64)
		res.Quiet = answer[3] == int64(0)
	}
	return res, err
}

// pollMarkTTL is how long the mark of a refused attempt lasts, ms: until the next one, with a reserve. 0: the
// request does not poll.
func pollMarkTTL(q *engine.Request) int64 {
	if !q.MayQueue || q.Terms.PollMin == 0 {
		return 0
	}
	return millis(2*min(q.Terms.PollMax, 5*time.Second) + 100*time.Millisecond)
}

// Rollback implements [engine.Driver]. It is a release, whether or not q holds the lock. If a copy of an
// attempt may still come, the script leaves a key that stops it.
func (d *mutexDriver) Rollback(ctx context.Context, q *engine.Request) (err error) {
	if q.Shared {
		_, err = d.releaseShared(ctx, &q.Owner, 0)
	} else {
		_, err = d.free(ctx, &q.Owner, engine.Next{})
	}
	return err
}

// Release implements [engine.Driver].
func (d *mutexDriver) Release(
	ctx context.Context, o *engine.Ownership, left int, next engine.Next,
) (engine.Released, error) {
	if left > 0 || o.Shared {
		return d.releaseCounts(ctx, o, left, next.Rest)
	}
	return d.free(ctx, &o.Owner, next)
}

// free frees the lock of a private owner, makes the successor in next its holder, or leaves it taken for the
// rest in next. It runs lock/release; [readReleased] reads the reply.
//
// A copy of the release finds the id gone and replies 0, like the release of a lost lock. The engine tells
// the two apart: see [engine.Released].InDoubt. If the successor has rolled back before, its key says so:
// then the script frees the lock. KEYS[7], the token, is passed only with a successor: a release alone
// mints no token.
func (d *mutexDriver) free(ctx context.Context, o *engine.Owner, next engine.Next) (engine.Released, error) {
	memory, memoryTTL := any(&d.h.sharedCounts), any(0) // a key of the slot that the script does not use
	if o.InDoubt {
		memory, memoryTTL = d.h.ownerKey(o), d.h.c.remembered
	}
	place := ""
	if next.Place.Number != 0 {
		place = d.placeName(next.Place.Number)
	}
	keys := append(make([]any, 0, 7), d.h.name, &d.channel, memory, &d.h.sharedCounts, &d.line)
	args := append(make([]any, 0, 8), o.ID, d.h.c.publish(), memoryTTL, place)
	if next.Rest > 0 || next.Successor != nil {
		args = append(args, millis(next.Rest))
	}
	if successor := next.Successor; successor != nil {
		keys = append(append(keys, d.h.ownerKey(successor)), d.extra[1:]...)
		args = append(args, successor.ID, d.h.ttlArg(successor.TTL))
		if d.h.res.Traits.Fenced {
			args = append(args, max(successor.Tokens, 1))
		}
	} else if next.CountPolls {
		keys = append(keys, d.h.requestKey(pollsKey))
	}
	reply, err := d.h.c.run.Do(ctx, d.lua.release, keys, args...)
	got, err := readReleased(reply, err)
	got.InDoubt = reply.Doubt
	if next.Successor != nil {
		countTokens(&got.Granted, next.Successor.Tokens)
	}
	return got, err
}

// countTokens turns the last token of a block of n, which the script has reserved, into the first one. Near the
// end of the counter the script reserves one instead of a block, so only the last token of a block that
// ends there is used.
func countTokens(res *engine.Result, n int32) {
	if block := int64(n); block > 1 && res.Token >= block && res.Token <= math.MaxInt64-block {
		res.Token, res.Tokens = res.Token-block+1, n
	} else if res.Token > 0 {
		res.Tokens = 1
	}
}

// readReleased reads the reply of the scripts that free something or hand it off:
//
//	{n}      the successor holds it; n is 0, or the number of permits that are left
//	{digits} the successor holds it; the last fencing token that was reserved
//	1 + n    it is free, or stays taken for the rest of the minimum hold; n clients have received the message
//	0        there was nothing to give back: the hold was lost
//
// The successor's lease counts from when the release was sent.
func readReleased(reply scripts.Reply, err error) (engine.Released, error) {
	switch answer := reply.Value.(type) {
	case []any:
		list := elementsOf(answer, err)
		granted := engine.Result{Granted: true, Sent: reply.Sent, InDoubt: reply.Doubt}
		if len(answer) > 0 {
			granted.Token = tokenOf(answer[0])
		}
		if granted.Token == 0 {
			granted.Token = list.number()
		}
		return engine.Released{Granted: granted}, list.err
	case int64:
		return engine.Released{Heard: int(answer) - 1, Lost: answer == 0}, err
	}
	if err == nil {
		err = unreadable(reply.Value)
	}
	return engine.Released{}, err
}
