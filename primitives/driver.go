package primitives

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/failure"
	"github.com/redlatch/redlatch/pubsub"
	"github.com/redlatch/redlatch/scripts"
)

// What the drivers of several kinds share.

// base is embedded in all drivers. It never changes after the constructor of its handle, so it
// needs no mutex.
type base struct{ h *handle }

// Subscribe implements [engine.Driver]. All waiters of a client share one subscription to the
// channel. A new connection counts as a message, because messages may have been lost with the old
// one.
func (d *base) Subscribe(hear func(engine.Message)) []engine.Subscription {
	return []engine.Subscription{d.h.c.hub.Subscribe(d.h.channel(), func(s pubsub.Signal) {
		switch {
		case s.Resubscribed:
			hear(engine.Missed)
		case d.isWakeup(s.Payload):
			hear(engine.Heard)
		}
	})}
}

// isWakeup reports whether a message is a reason to try. The messages of semaphores are numbers of
// permits.
func (d *base) isWakeup(payload string) bool {
	if d.h.maxPermits > 0 {
		_, err := strconv.ParseInt(payload, 10, 64)
		return err == nil
	}
	return isUnlockMessage(payload)
}

// isUnlockMessage reports whether a payload announces that a lock is free. In Redisson "0" wakes
// one waiter and "1" wakes all. Here both are a reason to try, and the queue decides who tries.
// Other payloads are ignored.
func isUnlockMessage(payload string) bool { return payload == "0" || payload == "1" }

// Overwritten implements [engine.HoldDriver]. A WRONGTYPE may also concern another key, such as the
// queue of a fair lock.
func (d *base) Overwritten(ctx context.Context, err error) bool {
	return scripts.IsForeign(err) || scripts.IsWrongType(err) && d.h.otherType(ctx) != ""
}

// change runs a script that changes a number without acquiring anything, for a method such as Init
// or CountDown. wrong is the error of bad arguments, or nil.
//
// Each call gets a new number and so a new request key, which remembers the answer. Repetitions
// after a lost reply, and late copies, then change nothing and give the same answer.
func (d *base) change(
	ctx context.Context, op string, wrong error,
	run func(context.Context, scripts.Sender, scripts.Change) (scripts.Number, error), amount int,
) (answer scripts.Number, err error) {
	if wrong != nil {
		return answer, d.h.failed(op, wrong)
	}
	err = d.h.call(ctx, op, func() error {
		answer, err = run(ctx, d.h.c.calls, scripts.Change{
			Keys: &d.h.keys, MemoryKey: d.h.requestKey(d.h.c.newOwner().ID), MemoryTTL: d.h.c.run.Memory(),
			Amount: int64(amount),
		})
		return limitError(err)
	})
	return answer, err
}

// limitError returns [ErrInvalid] for the answer of a script that a number would be too large or
// too small.
func limitError(err error) error {
	reply, ok := errors.AsType[redis.Error](err)
	if !ok {
		return err
	}
	text, beyond := strings.CutPrefix(reply.Error(), "LIMIT ")
	if !beyond {
		return err
	}
	return invalid("%s", text)
}

// fieldDriver has the commands of locks whose owner is a field of the hash, and whose lease is the
// TTL of the hash. These are all locks except the reader side of a read-write lock.
type fieldDriver struct {
	base

	writes  bool // the owner is a writer of a read-write lock
	scripts *kindScripts
}

// kindScripts are scripts with equal arguments of which each kind has its own.
type kindScripts struct {
	force   forceScript
	shorten func(scripts.LockShorten, context.Context, scripts.Sender) (scripts.Number, error)
	// releaseShared is nil for writers, which have another release.
	releaseShared func(scripts.LockReleaseShared, context.Context, scripts.Sender) (scripts.Released, error)
}

// forceScript runs the script that takes a lock of some kind from its holders.
type forceScript func(context.Context, scripts.Sender, scripts.Change) (scripts.IDs, error)

// field returns the owner's field in the hash.
func (d *fieldDriver) field(o *engine.Ownership) string {
	if d.writes {
		return o.ID + ":write"
	}
	return o.ID
}

// SetCount implements [engine.LeaseDriver] by lock/nested_acquire. The script sets the count only
// while the owner holds the lock, so a copy changes nothing. A late copy of an earlier change may
// restore an older count. That is harmless: the last release of a private id frees the lock,
// whatever its count. But after that release a late copy with a count of 1 would count under a
// shared id, so the release is remembered then: see [engine.Ownership.ConfirmCount]. Like every
// acquisition it is confirmed by replicas, if the client asks for that.
func (d *fieldDriver) SetCount(
	ctx context.Context, o *engine.Ownership, n int, ttl time.Duration,
) (time.Time, bool, error) {
	call := scripts.LockNestedAcquire{Keys: &d.h.keys, Field: d.field(o), Wanted: int64(n), TTL: ttl}
	if n == 1 {
		call.MemoryKey = d.h.ownerKey(&o.Owner)
	}
	reply, err := call.Do(ctx, d.h.c.confirmed)
	lost, err := isLost(reply, err)
	o.NoteChangeDoubt(n == 1 && (reply.Doubt || failure.Of(err).Outcome == failure.Unknown))
	return reply.Sent, lost, err
}

// unnest sets the count of a private hold to n when a nested one is released, by
// lock/nested_release. The script sets the count instead of subtracting one, so a copy changes
// nothing and no memory is needed.
func (d *fieldDriver) unnest(ctx context.Context, o *engine.Ownership, n int) (engine.Released, error) {
	return releasedResult(scripts.LockNestedRelease{
		Keys: &d.h.keys, Field: d.field(o), Wanted: int64(n), DefaultTTL: o.TTL,
	}.Do(ctx, d.h.c.calls))
}

// Extend implements [engine.LeaseDriver].
func (d *fieldDriver) Extend(ctx context.Context, o *engine.Ownership, ttl time.Duration) (time.Time, bool, error) {
	return d.h.extend(ctx, d, o, ttl)
}

// ReleaseAfter implements [engine.LeaseDriver].
func (d *fieldDriver) ReleaseAfter(
	ctx context.Context, o *engine.Ownership, rest time.Duration,
) (engine.Released, error) {
	return d.h.releaseAfter(ctx, d, o, rest)
}

// Check implements [engine.LeaseDriver] by lock/check, which only reads. It asks whether the hash
// has the field of o.
func (d *fieldDriver) Check(ctx context.Context, o *engine.Ownership) (lost bool, err error) {
	if o.Shared {
		return d.h.checkCount(ctx, d, o)
	}
	return isLost(scripts.LockCheck{Keys: &d.h.keys, Owner: d.field(o)}.Do(ctx, d.h.c.calls))
}

// forceRelease implements [lockDriver] by lock/force, or by the script of another kind.
func (d *fieldDriver) forceRelease(ctx context.Context, q *engine.Request) (scripts.IDs, error) {
	return d.h.forceRelease(ctx, q, d.scripts.force)
}

// forceRelease runs the script of a kind, which deletes the hash, or one side of it, and publishes
// the release. Redis remembers the ids, so a copy gets them, too, and the former holders can be
// notified.
func (h *handle) forceRelease(ctx context.Context, q *engine.Request, by forceScript) (scripts.IDs, error) {
	return by(ctx, h.c.calls, scripts.Change{
		Keys: &h.keys, MemoryKey: h.ownerKey(&q.Owner), MemoryTTL: h.c.run.Memory(),
	})
}

// renewScript implements [renewer].
func (d *fieldDriver) renewScript() *scripts.Script { return scripts.LockRenew{}.Script() }

// renewal implements [renewer].
func (d *fieldDriver) renewal(batch *scripts.Batch, o *engine.Ownership, ttl time.Duration) {
	if !o.Shared {
		scripts.LockRenew{Keys: &d.h.keys, Owner: d.field(o), TTL: ttl}.AddTo(batch)
		return
	}
	scripts.LockRenewShared{
		Keys: &d.h.keys, Field: d.field(o), TTL: ttl, MemoryKey: d.h.ownerKey(&o.Owner),
	}.AddTo(batch)
}

// shorten implements [renewer].
func (d *fieldDriver) shorten(ctx context.Context, o *engine.Ownership, to lease) (scripts.Number, error) {
	call := scripts.LockShorten{
		Keys: &d.h.keys, MemoryKey: d.h.ownerKey(&o.Owner), Field: d.field(o), IsShared: o.Shared,
		TTL: to.ttl, MemoryTTL: to.memory, Counts: to.counts, SeenAt: to.seenAt,
	}
	return d.scripts.shorten(call, ctx, d.h.c.calls)
}

// probe implements [renewer].
func (d *fieldDriver) probe(o *engine.Ownership) []any {
	return []any{"hexists", d.h.keys.Main, d.field(o)}
}

// acquiredResult returns the result of an acquisition. "again" means that WithNonReentrant forbids
// a second count, "lost" that the hold to nest under is gone, so its holds must end. A PTTL of -1
// means that the hash has no TTL. Any other negative PTTL means that it is not known when a lease
// ends.
func acquiredResult(reply scripts.Acquired, err error) (engine.Result, error) {
	res := engine.Result{InDoubt: reply.Doubt, Free: int(reply.Left)}
	switch {
	case err != nil:
		return res, err
	case reply.Granted:
		res.Granted = true
		res.Sent = reply.Sent
		res.Token = reply.Token
		return res, reply.Unconfirmed
	}
	switch reply.Refusal {
	case scripts.Again:
		return res, fmt.Errorf("%w: its owner holds it already, and would wait for itself", ErrDeadlock)
	case scripts.Lost:
		return res, ErrLost
	case scripts.Over:
		return res, errOver
	case scripts.Unset:
		res.Why = errNoCount
	}
	res.RetryAfter = -1
	res.Holder = reply.Holder
	switch {
	case reply.PTTL >= 0:
		res.RetryAfter = fromMillis(min(reply.PTTL, maxDuration.Milliseconds()))
	case reply.PTTL == -1:
		res.RetryAfter = engine.Endless
	}
	return res, nil
}

var (
	// errOver is the error of a late copy of an acquisition.
	errOver = fmt.Errorf("this acquisition was given back already: %w", ErrReleased)
	// errNoCount says why an acquisition waits although nobody has a permit.
	errNoCount = errors.New("the semaphore has no count: Init sets it")
)

// releasedResult returns the result of a release. The successor's lease counts from when the
// release was sent. If the key holds data of another program by now, the lock is lost.
func releasedResult(reply scripts.Released, err error) (engine.Released, error) {
	switch {
	case scripts.IsForeign(err):
		return engine.Released{Lost: true}, nil
	case err != nil:
		return engine.Released{}, err
	case reply.HandedOff:
		return engine.Released{Successor: engine.Result{
			Granted: true, Sent: reply.Sent, InDoubt: reply.Doubt, Token: reply.Token, Free: int(reply.Left),
		}}, nil
	}
	return engine.Released{Receivers: int(reply.Heard), Polled: reply.Polled, Lost: !reply.Held}, nil
}

// adopted returns the result of an adoption by q. The reply is the number of counts.
func adopted(q *engine.Request, reply scripts.Number, err error) (sent time.Time, counts int, _ error) {
	q.InDoubt = q.InDoubt || reply.Doubt // a shared id may come back, and a copy must not take it
	if err == nil && reply.Number > 0 {
		err = reply.Unconfirmed
	}
	return reply.Sent, int(reply.Number), err
}

// isLost reads a reply that is 0 if the hold is lost. It is an error if replicas have not confirmed
// the command.
func isLost(reply scripts.Number, err error) (bool, error) {
	err = cmp.Or(err, reply.Unconfirmed)
	return err == nil && reply.Number == 0, err
}

// isOne reads a reply that is 1 if the script did something, and 0 if there was nothing to do.
func isOne(reply scripts.Number, err error) (bool, error) { return reply.Number == 1, err }

// successorKey returns the key by which a release knows whom it is for: the memory of the successor
// or, without one, the mark of clients that poll, if next asks for that. It is nil if neither is
// needed.
func (d *base) successorKey(next engine.Next) any {
	switch {
	case next.Successor != nil:
		return d.h.ownerKey(next.Successor)
	case next.AskPolls:
		return d.h.requestKey(pollsKey)
	}
	return nil
}

// pollMark returns the key that exists while clients poll, and how long q, which waits, keeps it.
// The key is nil if q does not poll.
func (d *base) pollMark(q *engine.Request) (key any, ttl time.Duration) {
	if q.Terms.PollMin == 0 {
		return nil, 0
	}
	return d.h.requestKey(pollsKey), pollMarkTTL(q.Terms)
}

// pollMarkTTL returns how long the mark of a refused attempt lasts: until the next one, with a
// reserve.
func pollMarkTTL(terms *engine.Terms) time.Duration {
	return 2*min(terms.PollMax, 5*time.Second) + 100*time.Millisecond
}
