package primitives

import (
	"context"
	"encoding/hex"
	"strconv"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/scripts"
)

// Semaphores with leases in Redis: Redisson's RPermitExpirableSemaphore.
//
//	<name>                string: the number of free permits
//	{<name>}:timeout      sorted set: the ids of taken permits, by the ends of their leases, in ms since 1970
//	redisson_sc:{<name>}  channel: a number, whenever permits become free
//
// A permit's id is 16 bytes, raw in Redis and hexadecimal in the API. A permit whose lease has
// ended stays in the set until an acquisition collects it.

// PermitExpirableSemaphore is a number of permits that all clients of its name share. Each permit
// has an id and a lease of its own. It is Redisson's RPermitExpirableSemaphore
// ([Client.PermitExpirableSemaphore]), and a handle: immutable, shareable, and made without I/O.
//
// Permits are renewed while they are held ([WithWatchdog]), or have a fixed lease ([WithLease]).
// The permits of a process that died come back when their lease ends. The server's clock alone
// decides when that is.
//
// A hold of several permits has one id: the ids of its permits, comma-separated. They are released,
// renewed and lost together.
type PermitExpirableSemaphore struct {
	_ noCopy
	handle

	driver permitDriver
}

// PermitExpirableSemaphore returns the semaphore of that name whose permits have leases. It has no
// permits until Init, Add or Resize sets them; earlier acquisitions wait for that. If they give up,
// their error says that there is no count.
func (c *Client) PermitExpirableSemaphore(name string, opts ...Option) *PermitExpirableSemaphore {
	s := &PermitExpirableSemaphore{}
	s.init(c, permitsKind, name, opts)
	s.keys.Channel = s.nextName(semaphoreChannel, "")
	s.keys.KindKeys = &scripts.KindKeys{Leases: suffixed(s.raw(), "timeout")}
	s.driver.h = &s.handle
	s.maxPermits = maxPermitIDs
	s.useLeases(&s.driver, &engine.Traits{
		Leased: true, ManyHolders: true, HandsOff: true, NameOwner: s.driver.nameOwner,
	})
	return s
}

// Acquire acquires as many permits as [WithPermits] says (1 by default, at most 100,000), all or
// none, and waits until there are enough. It gives up when ctx is done ([ErrNotAcquired] and ctx's
// cause) or when the limit of [WithWait] is over ([ErrNotAcquired]). On failure it has none:
// permits that an attempt may have taken are released in the background.
//
// There is no queue among clients. A request for few permits does not wait behind a request for
// many, so the latter may wait for long. Semaphores do not nest.
func (s *PermitExpirableSemaphore) Acquire(ctx context.Context, opts ...Option) (*Hold, error) {
	return s.acquire(ctx, opts, waitAsOptionsSay)
}

// Adopt takes over the permits of these ids (comma-separated, all or none) under new ids. Use it to
// hand permits from one process to another. They are renewed, or have a lease, from now on. The
// former holder gets [ErrLost], as with [Lock.ForceRelease]. Adopt returns [ErrNotHeld] if one of
// the permits is not held, and [ErrInvalid] if id has another form than [Hold.ID] returns.
func (s *PermitExpirableSemaphore) Adopt(ctx context.Context, id string, opts ...Option) (*Hold, error) {
	return s.adopt(ctx, id, opts)
}

// ReleaseID releases the permits of these ids (comma-separated, all or none; an id that is named
// twice counts once). Use it to free permits that another process, or an earlier life of this one,
// has left behind. It returns [ErrNotHeld] if one of the permits is not held.
func (s *PermitExpirableSemaphore) ReleaseID(ctx context.Context, id string) error {
	return s.releaseID(ctx, id)
}

// Init sets the number of permits, 0 or more, unless the semaphore has been set before. It reports
// whether it did.
func (s *PermitExpirableSemaphore) Init(ctx context.Context, n int) (created bool, err error) {
	return isOne(s.driver.change(ctx, "init", outOfRange(0, n), scripts.PermitSemaphoreInit, n))
}

// Add adds delta permits. A negative delta takes permits away. The number that is free may then be
// below 0 until permits come back. A number of free and taken permits beyond Java's int is
// [ErrInvalid], and nothing changes. Add sets a semaphore that was not set.
func (s *PermitExpirableSemaphore) Add(ctx context.Context, delta int) error {
	_, err := s.driver.change(ctx, "add", outOfRange(-maxPermits, delta), scripts.PermitSemaphoreAdd, delta)
	return err
}

// Resize sets the number of permits, free and taken, to n: 0 or more. It takes no permit from its
// holder: with more than n taken, the number that is free is below 0 until enough have come back.
// It sets a semaphore that was not set.
func (s *PermitExpirableSemaphore) Resize(ctx context.Context, n int) error {
	_, err := s.driver.change(ctx, "resize", outOfRange(0, n), scripts.PermitSemaphoreResize, n)
	return err
}

// Delete removes the semaphore, and reports whether there was one. Taken permits are lost. Waiters
// wait for the next Init.
func (s *PermitExpirableSemaphore) Delete(ctx context.Context) (bool, error) {
	return isOne(s.driver.change(ctx, "delete", nil, scripts.PermitSemaphoreDelete, 0))
}

// Info asks Redis how many permits there are, how many are free, and who holds the others. Its TTL
// is the longest of the holders'.
func (s *PermitExpirableSemaphore) Info(ctx context.Context) (Info, error) {
	return s.inspect(ctx, func() (Info, error) {
		return s.driver.info(ctx)
	})
}

func (d *permitDriver) info(ctx context.Context) (Info, error) {
	reply, err := scripts.PermitSemaphoreInfo{Keys: &d.h.keys}.Do(ctx, d.h.c.calls)
	return permitInfo(reply), err
}

// never is Redisson's score of a permit whose lease does not end. This library makes no such
// permits.
const never = 922337203685477

// permitInfo returns what a reply says. All its times come from the server, in ms since 1970, so
// the TTLs do not depend on the client's clock.
func permitInfo(reply scripts.PermitSemaphoreInfoReply) Info {
	info := Info{
		Permits: int(reply.Free) + len(reply.Held), Available: int(reply.Free),
		Holders: make([]Holder, 0, len(reply.Held)),
	}
	for _, held := range reply.Held {
		holder := Holder{ID: hex.EncodeToString([]byte(held.ID)), Count: 1, TTL: -1}
		// The score is a float, because a score of another program may be beyond any integer.
		if ends, _ := strconv.ParseFloat(held.EndsAt, 64); ends != never {
			ms := min(ends-float64(reply.Now), float64(maxDuration.Milliseconds()))
			holder.TTL = fromMillis(int64(ms))
		}
		info.Holders = append(info.Holders, holder)
		if holder.TTL < 0 || info.TTL < 0 {
			info.TTL = -1
		} else {
			info.TTL = max(info.TTL, holder.TTL)
		}
	}
	return info
}

// permitDriver is the driver of RPermitExpirableSemaphore. An id belongs to one permit, so a copy
// of a release cannot free another permit: it finds the ids gone. A release leaves a memory only if
// a copy of the acquisition may still arrive. The memory stops that copy.
type permitDriver struct{ base }

// Ended leases are collected in slices, so that no script blocks Redis for long.
const (
	maxCollected   = 1000   // how many leases one script collects
	maxCollections = 10_000 // how many scripts one attempt sends for that; the next attempt goes on
)

// nameOwner implements [engine.Traits].NameOwner. Each permit of an acquisition gets a new random
// id.
func (d *permitDriver) nameOwner(o *engine.Owner) {
	o.SetID(newPermits(d.h.c.tag, int(o.Permits)), false)
}

// TryAcquire implements [engine.Driver] by permitsemaphore/acquire, which also collects ended
// leases. A RetryAfter of 0 means that there are more leases to collect, so the client asks again
// at once.
//
// A copy finds the ids among the leases, and is granted again. After a release or a rollback it
// finds the request's key, and takes nothing. InDoubt covers all rounds: a copy of any of them may
// arrive.
func (d *permitDriver) TryAcquire(ctx context.Context, q *engine.Request) (engine.Result, error) {
	call := scripts.PermitSemaphoreAcquire{
		Keys: &d.h.keys, MemoryKey: d.h.ownerKey(&q.Owner), MaxCollected: maxCollected, IDs: rawOf(q.ID), TTL: q.TTL,
	}
	if q.MayQueue {
		call.Mark, call.MarkTTL = d.pollMark(q)
	}
	for round, inDoubt := 1, false; ; round++ {
		res, err := acquiredResult(call.Do(ctx, d.h.c.confirmed))
		inDoubt = inDoubt || res.InDoubt
		res.InDoubt = inDoubt
		isRefused := err == nil && !res.Granted
		leavesMore := isRefused && res.RetryAfter == 0 // more leases have ended than one script collects
		isOver := round == maxCollections || ctx.Err() != nil
		if !leavesMore || isOver {
			return res, err
		}
	}
}

// Rollback implements [engine.Driver]. It releases the ids that are there. Its memory stops late
// copies of the attempt.
func (d *permitDriver) Rollback(ctx context.Context, q *engine.Request) error {
	_, err := d.release(ctx, &q.Owner, engine.Next{})
	return err
}

// Release implements [engine.HoldDriver]. Lost means that not all of o's permits were held. The
// others are given back.
func (d *permitDriver) Release(
	ctx context.Context, o *engine.Ownership, _ int, next engine.Next,
) (engine.Released, error) {
	return d.release(ctx, &o.Owner, next)
}

// release runs permitsemaphore/release for all permits of o. It releases the remaining permits if
// some are lost, whereas ReleaseID asks for all or none. If there is a successor, the script also
// gives the ids of the successor as many permits as it asks for.
func (d *permitDriver) release(ctx context.Context, o *engine.Owner, next engine.Next) (engine.Released, error) {
	c := d.h.c
	call := scripts.PermitSemaphoreRelease{
		Keys: &d.h.keys, MemoryKey: d.h.ownerKey(o), MemoryTTL: c.rememberDoubt(o),
		IDs: rawOf(o.ID),
	}
	call.SuccessorMemory = d.successorKey(next)
	if successor := next.Successor; successor != nil {
		call.SuccessorIDs = rawOf(successor.ID)
		call.SuccessorTTL = successor.TTL
	}
	reply, err := call.Do(ctx, c.calls)
	got, err := releasedResult(reply, err)
	got.InDoubt = reply.Doubt && !reply.Gone && !o.InDoubt // otherwise the memory has the first answer
	return got, err
}

// SetCount is never called, because permits do not nest: each acquisition has ids of its own.
func (d *permitDriver) SetCount(
	context.Context, *engine.Ownership, int, time.Duration,
) (sent time.Time, lost bool, err error) {
	return time.Time{}, false, ErrUnsupported
}

// Extend implements [engine.LeaseDriver].
func (d *permitDriver) Extend(ctx context.Context, o *engine.Ownership, ttl time.Duration) (time.Time, bool, error) {
	return d.h.extend(ctx, d, o, ttl)
}

// ReleaseAfter implements [engine.LeaseDriver].
func (d *permitDriver) ReleaseAfter(
	ctx context.Context, o *engine.Ownership, rest time.Duration,
) (engine.Released, error) {
	return d.h.releaseAfter(ctx, d, o, rest)
}

// Check implements [engine.LeaseDriver] by permitsemaphore/check, which asks whether all of o's
// permits are held.
func (d *permitDriver) Check(ctx context.Context, o *engine.Ownership) (lost bool, err error) {
	return isLost(scripts.PermitSemaphoreCheck{Keys: &d.h.keys, IDs: rawOf(o.ID)}.Do(ctx, d.h.c.calls))
}

// adopt implements [takeableDriver] by permitsemaphore/adopt. The reply is 1, or 0 if not all old
// ids are held. A copy finds the new ids in place, and gets the same answer. After their release it
// finds the key of the request, and takes nothing.
func (d *permitDriver) adopt(ctx context.Context, id string, q *engine.Request) (time.Time, int, error) {
	reply, err := scripts.PermitSemaphoreAdopt{
		Keys: &d.h.keys, MemoryKey: d.h.ownerKey(&q.Owner), OldIDs: rawOf(id), NewIDs: rawOf(q.ID), TTL: q.TTL,
	}.Do(ctx, d.h.c.confirmed)
	return adopted(q, reply, err)
}

// releaseID implements [takeableDriver] by permitsemaphore/release, for all permits or none.
func (d *permitDriver) releaseID(ctx context.Context, id string, q *engine.Request) (held bool, err error) {
	reply, err := scripts.PermitSemaphoreRelease{
		Keys: &d.h.keys, MemoryKey: d.h.ownerKey(&q.Owner), MemoryTTL: d.h.c.run.Memory(), IDs: rawOf(id), AllOrNone: true,
	}.Do(ctx, d.h.c.calls)
	return reply.Held, err
}

// renewScript implements [renewer].
func (d *permitDriver) renewScript() *scripts.Script { return scripts.PermitSemaphoreRenew{}.Script() }

// renewal implements [renewer], however many permits o has.
func (d *permitDriver) renewal(batch *scripts.Batch, o *engine.Ownership, ttl time.Duration) {
	scripts.PermitSemaphoreRenew{Keys: &d.h.keys, IDs: rawOf(o.ID), TTL: ttl}.AddTo(batch)
}

// shorten implements [renewer]. The ids belong to o alone.
func (d *permitDriver) shorten(ctx context.Context, o *engine.Ownership, to lease) (scripts.Number, error) {
	return scripts.PermitSemaphoreShorten{
		Keys: &d.h.keys, MemoryKey: d.h.ownerKey(&o.Owner), IDs: rawOf(o.ID), TTL: to.ttl, MemoryTTL: to.memory,
		SeenAt: to.seenAt,
	}.Do(ctx, d.h.c.calls)
}

// probe implements [renewer]. It looks for the first permit only, because Redis forgets all of them
// or none.
func (d *permitDriver) probe(o *engine.Ownership) []any {
	raw := rawOf(o.ID)
	return []any{"zscore", d.h.keys.Leases, raw[:min(len(raw), 16)]}
}
