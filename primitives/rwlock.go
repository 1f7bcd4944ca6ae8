package primitives

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/failure"
	"github.com/redlatch/redlatch/scripts"
)

// Read-write locks in Redis: Redisson's RReadWriteLock.
//
//	<name>                            hash for both sides: mode, readers and counts, the writer
//	{<name>}:<id>:rwlock_timeout:<k>  one key for the k-th count of a reader, with that count's lease
//	redisson_unlock_latch:{<name>}:polls  exists while clients of this library poll
//	redisson_rwlock:{<name>}          channel: "0" after the last reader, "1" after a writer
//	redlatch_rwlock_claim:{<name>}    reservation: a writer waits, or it is its turn
//	redisson_unlock_latch:{<name>}:turns  sorted set: the clients of this library that wait
//
// The field mode says which side holds the lock. A reader without any of its keys is dead, whatever
// the hash says. The writer's field ends in ":write".
//
// A waiting writer would starve while readers come and go, so each of its attempts leaves a
// reservation: a key that expires soon and keeps new readers out. Readers do not starve either.
// When a writer releases, the readers that wait behind it go first, all of them with one command
// for each client, and the reservation does not keep them out. Near clients and far ones come in
// turn: scripts/rwlock/turns.lua says how.

// Prefixes of the channel and of the reservation. Redisson does not know of the reservation.
const (
	rwChannel     = "redisson_rwlock"
	rwReservation = "redlatch_rwlock_claim"
)

// reservationTTL is how long one attempt of a waiting writer keeps new readers out: two polls, and
// room for a late one. A writer that dies while it waits delays the readers no longer than that.
const reservationTTL = 2500 * time.Millisecond

// reservedPause is the longest pause of a writer that polls while its reservation keeps readers
// out. With a longer pause the lock could be free for as long while everybody waits, and the
// reservation would not last until the next attempt.
const reservedPause = 500 * time.Millisecond

// RWLock is any number of readers, or one writer: Redisson's RReadWriteLock. It is a handle with
// two sides, each of them a [Lock].
//
// A writer may also read: it acquires the reader side with the context of its hold. To go on
// reading after the writer's release, it acquires with context.WithoutCancel of that context (a
// downgrade). A reader may not write: that returns [ErrDeadlock].
//
// While a writer waits for readers to leave, new readers wait behind it, as with sync.RWMutex. A
// goroutine that reads must therefore not wait for another goroutine to start reading. Nest with
// the hold's context instead. Redisson's readers do not wait for a writer, and may keep it out.
type RWLock struct {
	_ noCopy

	reader Lock
	writer Lock
}

// RWLock returns the read-write lock of that name. The options apply to both sides.
func (c *Client) RWLock(name string, opts ...Option) *RWLock {
	rw := &RWLock{}
	rw.reader.init(c, "reader", name, opts)
	rw.writer.init(c, "writer", name, opts)
	// Readers have no hand-off: when one may read, all may, so one command acquires for all waiting
	// readers of the client. Waiting writers of this client go first.
	setRWKeys(&rw.reader)
	setRWKeys(&rw.writer)
	r := &readerDriver{base{h: &rw.reader.handle}, &rw.writer.res}
	rw.reader.useLock(r, &engine.Traits{
		Leased: true, Nests: true, Outer: r.outer, ManyHolders: true, AcquireBatch: r.acquireBatch,
		OtherSide: rw.writer.res.Kind,
	})
	w := &writerDriver{
		fieldDriver{base: base{h: &rw.writer.handle}, writes: true, scripts: &writerScripts}, &rw.reader.res,
	}
	rw.writer.useLock(w, &engine.Traits{
		Leased: true, Nests: true, Outer: w.outer, HandsOff: true, OtherSide: rw.reader.res.Kind,
	})
	return rw
}

// Name returns the user's name, without the client's prefix.
func (rw *RWLock) Name() string { return rw.reader.Name() }

// Reader returns the side that many may hold, the same Lock each time. Its Info and ForceRelease
// concern readers only.
func (rw *RWLock) Reader() *Lock { return &rw.reader }

// Writer returns the side that one may hold while nobody reads, the same Lock each time. Its Info
// and ForceRelease concern the writer only.
func (rw *RWLock) Writer() *Lock { return &rw.writer }

// setRWKeys sets the keys of a side: the key of the reservation, which exists while a writer waits,
// and the key of the clients that wait (see scripts/rwlock/turns.lua).
func setRWKeys(side *Lock) {
	side.keys.Channel = side.nextName(rwChannel, "")
	side.keys.KindKeys = &scripts.KindKeys{
		ClaimKey: prefixed(rwReservation, side.raw()), Turns: side.nextName(requestPrefix, ":turns"),
	}
}

// clientToForget returns the client's life if none of its requests waits, and "" otherwise. Other
// clients then no longer wait for its turn.
func (h *handle) clientToForget() string {
	if h.res.AnyWaits() {
		return ""
	}
	return h.c.life
}

// readerDriver is the driver of RReadLock. Each count of a reader has a lease of its own, so
// readers have commands of their own. Nested readers need no turns, but a change of the count needs
// an order: see SetCount.
type readerDriver struct {
	base

	writer *engine.Resource // the other side, whose holds it nests in
}

// firstCountKey returns the key of the first count of o. The scripts derive this name themselves.
// It is in KEYS for one case only. While a cluster moves the slot of the lock, the hash may have
// moved when this key has not. Redis then answers TRYAGAIN. Without the key in KEYS the script
// would run, and the reader would look dead.
func (d *readerDriver) firstCountKey(o *engine.Ownership) any {
	return suffixed(d.h.raw(), o.ID) + ":rwlock_timeout:1"
}

// outer implements [engine.Traits].Outer. A reader nests in a reader, or in a writer, which still
// writes.
func (d *readerDriver) outer(ctx context.Context) (*engine.Hold, error) {
	return cmp.Or(engine.OuterFrom(ctx, &d.h.res), engine.OuterFrom(ctx, d.writer)), nil
}

// TryAcquire implements [engine.Driver].
func (d *readerDriver) TryAcquire(ctx context.Context, q *engine.Request) (engine.Result, error) {
	res, _, err := d.acquireBatch(ctx, q, nil)
	return res, err
}

// acquireBatch implements [engine.Traits].AcquireBatch by rwlock/read_acquire. The others are
// private requests that wait on this client. If q is granted and there are others, the reply is
// {"in", 1 or 0 for each of the others}. Otherwise it is as [scripts.Acquired] says. A refusal may
// also tell of the reservation of a writer. It then has the TTL of the reservation, and no holder.
//
// A copy finds q as a live reader. It then takes nothing more, and reports which of the others
// read. A request that has rolled back is remembered by its own key, and gets nothing from any
// copy.
func (d *readerDriver) acquireBatch(
	ctx context.Context, q *engine.Request, others []*engine.Request,
) (engine.Result, []bool, error) {
	call := scripts.RWLockReadAcquire{
		Keys: &d.h.keys, MemoryKey: d.h.ownerKey(&q.Owner), Owner: q.ID, TTL: q.TTL,
		IsShared: q.Shared, RefuseSecond: q.NonReentrant, IsNested: q.UnderSameID, Client: d.h.c.life,
	}
	if q.LeavesTraces() && q.Terms.PollMin == 0 {
		call.Waits = 1
		wasNoted := q.Wait.Waited() || q.Reserves && q.WaitRecorded
		if wasNoted && len(others) < engine.MaxBatch { // otherwise more requests may wait
			call.Waits = 2
		}
	}
	call.Companions = make([]scripts.RWLockReadAcquireCompanion, len(others))
	for i, other := range others {
		call.Companions[i] = scripts.RWLockReadAcquireCompanion{
			MemoryKey: d.h.ownerKey(&other.Owner), Owner: other.ID, TTL: other.TTL,
		}
	}
	if q.MayQueue {
		call.Mark, call.MarkTTL = d.pollMark(q)
	}
	reply, err := call.Do(ctx, d.h.c.confirmed)
	isGranted := err == nil && reply.Granted
	if isGranted && len(reply.Companions) < len(others) {
		err = scripts.Unreadable(reply.Value)
	}
	res, err := acquiredResult(reply.Acquired, err)
	if !res.Granted {
		q.WaitRecorded = q.WaitRecorded || call.Waits != 0
		return res, nil, err
	}
	res.Free = math.MaxInt
	return res, reply.Companions, err
}

// free gives back the counts of o, by rwlock/read_release: its own count of an id that others may
// share, or all private counts.
func (d *readerDriver) free(ctx context.Context, o *engine.Owner) (engine.Released, error) {
	memory := d.h.c.rememberDoubt(o)
	reply, err := scripts.RWLockReadRelease{
		Keys: &d.h.keys, MemoryKey: d.h.ownerKey(o), Owner: o.ID, MemoryTTL: memory, IsShared: o.Shared, OnlyOwn: true,
		Client: d.h.clientToForget(),
	}.Do(ctx, d.h.c.calls)
	got, err := releasedResult(reply, err)
	got.InDoubt = reply.Doubt && memory == 0 // otherwise Redis has the first answer
	return got, err
}

// Rollback implements [engine.Driver].
func (d *readerDriver) Rollback(ctx context.Context, q *engine.Request) error {
	_, err := d.free(ctx, &q.Owner)
	return err
}

// Release implements [engine.HoldDriver]. With holds left it runs rwlock/read_set_count, which also
// shortens the lease to what those holds were promised: the released hold may have had the longest
// one. The engine computes that time (internal/engine/lease.go), and recount tells it whether the
// outcome is unknown.
func (d *readerDriver) Release(
	ctx context.Context, o *engine.Ownership, remaining int, _ engine.Next,
) (engine.Released, error) {
	if remaining == 0 {
		return d.free(ctx, &o.Owner)
	}
	need, known := o.LeaseFor(remaining)
	ttl := scripts.CeilMillis(need)
	switch {
	case !known:
		ttl = -1 // leave the lease as it is
	case ttl == 0: // the leases of the holds that are left have ended
		return d.free(ctx, &o.Owner)
	}
	count := scripts.RWLockReadSetCount{WantedPrivate: int64(remaining), NeededMs: ttl}
	_, lost, err := d.recount(ctx, o, count, d.h.c.calls)
	return engine.Released{Lost: lost}, err
}

// SetCount implements [engine.LeaseDriver] by rwlock/read_set_count. The new count gets a key with
// its own lease. No lease is shortened. For a count of 1 see [fieldDriver.SetCount].
func (d *readerDriver) SetCount(
	ctx context.Context, o *engine.Ownership, n int, ttl time.Duration,
) (time.Time, bool, error) {
	call := scripts.RWLockReadSetCount{WantedPrivate: int64(n), TTL: ttl, NeededMs: -1}
	if n == 1 {
		call.MemoryKey = d.h.ownerKey(&o.Owner)
	}
	return d.recount(ctx, o, call, d.h.c.confirmed)
}

// recount runs rwlock/read_set_count. Unlike the count of a plain lock, this count must be exact,
// because it says which keys belong to the reader. Each change therefore has a number, and Redis
// remembers the latest one. A copy of an earlier change then does nothing. Redis remembers it
// longer if an earlier change was in doubt. The key that remembers cannot be the owner's key
// itself, which says that a private owner was released.
func (d *readerDriver) recount(
	ctx context.Context, o *engine.Ownership, call scripts.RWLockReadSetCount, by scripts.Sender,
) (sent time.Time, lost bool, _ error) {
	call.Keys = &d.h.keys
	call.LatestChange = d.h.ownerKey(&o.Owner) + ":count"
	call.Owner = o.ID
	call.Change = int64(o.NextChange())
	call.MemoryTTL = d.h.c.run.AnswerMemory()
	if o.ChangeInDoubt() {
		call.MemoryTTL = d.h.c.run.Memory()
	}
	reply, err := call.Do(ctx, by)
	lost, err = isLost(reply, err)
	o.NoteChangeDoubt(reply.Doubt || failure.Of(err).Outcome == failure.Unknown)
	return reply.Sent, lost, err
}

// Extend implements [engine.LeaseDriver].
func (d *readerDriver) Extend(ctx context.Context, o *engine.Ownership, ttl time.Duration) (time.Time, bool, error) {
	return d.h.extend(ctx, d, o, ttl)
}

// ReleaseAfter implements [engine.LeaseDriver].
func (d *readerDriver) ReleaseAfter(
	ctx context.Context, o *engine.Ownership, rest time.Duration,
) (engine.Released, error) {
	return d.h.releaseAfter(ctx, d, o, rest)
}

// Check implements [engine.LeaseDriver] by rwlock/read_check, which asks whether one of the
// reader's keys is left. For a shared id, see [handle.checkCount].
func (d *readerDriver) Check(ctx context.Context, o *engine.Ownership) (lost bool, err error) {
	if o.Shared {
		return d.h.checkCount(ctx, d, o)
	}
	call := scripts.RWLockReadCheck{Keys: &d.h.keys, HoldKey: d.firstCountKey(o), Owner: o.ID}
	return isLost(call.Do(ctx, d.h.c.calls))
}

// renewScript implements [renewer].
func (d *readerDriver) renewScript() *scripts.Script { return scripts.RWLockReadRenew{}.Script() }

// renewal implements [renewer].
func (d *readerDriver) renewal(batch *scripts.Batch, o *engine.Ownership, ttl time.Duration) {
	if o.Shared {
		scripts.RWLockReadRenewShared{
			Keys: &d.h.keys, HoldKey: d.firstCountKey(o), Owner: o.ID, TTL: ttl, MemoryKey: d.h.ownerKey(&o.Owner),
		}.AddTo(batch)
		return
	}
	scripts.RWLockReadRenew{Keys: &d.h.keys, HoldKey: d.firstCountKey(o), Owner: o.ID, TTL: ttl}.AddTo(batch)
}

// releaseID implements [lockDriver]. It releases one count. The request key of its own number
// remembers the answer for copies.
func (d *readerDriver) releaseID(ctx context.Context, id string, q *engine.Request) (held bool, err error) {
	reply, err := scripts.RWLockReadRelease{
		Keys: &d.h.keys, MemoryKey: d.h.ownerKey(&q.Owner), Owner: id, MemoryTTL: d.h.c.run.Memory(), IsShared: true,
	}.Do(ctx, d.h.c.calls)
	return reply.Held, err
}

// adopt implements [lockDriver] by rwlock/read_adopt. The script refuses a reader that also writes,
// because adopting its reads alone would leave a writer behind that has lost them.
//
// A copy finds the new id in place, and gets the same answer. After the release of the new id it
// finds the key of that id, and takes nothing.
func (d *readerDriver) adopt(ctx context.Context, id string, q *engine.Request) (time.Time, int, error) {
	reply, err := scripts.RWLockReadAdopt{
		Keys: &d.h.keys, MemoryKey: d.h.ownerKey(&q.Owner), NewOwner: q.ID, TTL: q.TTL, OldOwner: id,
	}.Do(ctx, d.h.c.confirmed)
	sent, counts, err := adopted(q, reply, err)
	if counts < 0 {
		return sent, 0, fmt.Errorf("%w: %s writes too; adopt the writer", ErrUnsupported, id)
	}
	return sent, counts, err
}

// forceRelease implements [lockDriver] by rwlock/read_force.
func (d *readerDriver) forceRelease(ctx context.Context, q *engine.Request) (scripts.IDs, error) {
	return d.h.forceRelease(ctx, q, scripts.RWLockReadForce)
}

// info implements [lockDriver] by rwlock/read_info.
func (d *readerDriver) info(ctx context.Context) (Info, error) {
	reply, err := scripts.RWLockReadInfo{Keys: &d.h.keys}.Do(ctx, d.h.c.calls)
	return heldBy(reply), err
}

// shorten implements [renewer].
func (d *readerDriver) shorten(ctx context.Context, o *engine.Ownership, to lease) (scripts.Number, error) {
	return scripts.RWLockReadShorten{
		Keys: &d.h.keys, MemoryKey: d.h.ownerKey(&o.Owner), HoldKey: d.firstCountKey(o), Owner: o.ID, IsShared: o.Shared,
		TTL: to.ttl, MemoryTTL: to.memory, Counts: to.counts, SeenAt: to.seenAt,
	}.Do(ctx, d.h.c.calls)
}

// probe implements [renewer].
func (d *readerDriver) probe(o *engine.Ownership) []any { return []any{"exists", d.firstCountKey(o)} }

// writerScripts are the scripts of writers.
var writerScripts = kindScripts{
	force: scripts.RWLockWriteForce,
	shorten: func(call scripts.LockShorten, ctx context.Context, by scripts.Sender) (scripts.Number, error) {
		return scripts.RWLockWriteShorten(call).Do(ctx, by)
	},
}

// writerDriver is the driver of RWriteLock. Its field in the hash is like a plain lock's, so it
// uses the plain lock's scripts for renewals, checks and nested counts.
type writerDriver struct {
	fieldDriver

	reader *engine.Resource // the other side; under a hold of it the writer would wait for itself
}

// outer implements [engine.Traits].Outer. A writer nests in a writer. In a reader it would wait for
// itself.
func (d *writerDriver) outer(ctx context.Context) (*engine.Hold, error) {
	if outer := engine.OuterFrom(ctx, &d.h.res); outer != nil {
		return outer, nil
	}
	if reader, _ := engine.HoldFrom(ctx, d.reader); reader != nil {
		return nil, fmt.Errorf("%w: the context holds the reader: release it before you write", ErrDeadlock)
	}
	return nil, nil
}

// TryAcquire implements [engine.Driver] by rwlock/write_acquire. The reply also says whether the
// attempt has left a reservation, because readers hold the lock.
//
// A copy finds q's own field and is granted again, or renews the reservation. The rollback removes
// the reservation, and its memory makes late copies take nothing and leave none.
func (d *writerDriver) TryAcquire(ctx context.Context, q *engine.Request) (engine.Result, error) {
	call := scripts.RWLockWriteAcquire{
		Keys: &d.h.keys, MemoryKey: d.h.ownerKey(&q.Owner), Owner: q.ID, TTL: q.TTL,
		IsShared: q.Shared, RefuseSecond: q.NonReentrant, IsNested: q.UnderSameID,
		Client: d.h.c.life, Waits: q.LeavesTraces() && q.Terms.PollMin == 0,
	}
	waitedForWriter, _ := q.State.(bool) // whether another writer refused the attempt before
	if q.LeavesTraces() && !waitedForWriter {
		call.ClaimTTL = reservationTTL
	}
	if q.LeavesTraces() {
		call.Mark, call.MarkTTL = d.pollMark(q)
	}
	reply, err := call.Do(ctx, d.h.c.confirmed)
	q.MustRollback = q.MustRollback || reply.Claimed // the reservation must go if q gives up
	res, err := acquiredResult(reply.Acquired, err)
	if err != nil || res.Granted {
		return res, err
	}
	q.WaitRecorded = q.WaitRecorded || call.Waits
	// After a writer's release readers have a moment in which they may come as often as they like:
	// the next writer makes one attempt without a reservation.
	if waitedForWriter && res.Holder == "" {
		res.RetryAfter = 0
	}
	if reply.Claimed && q.Terms.PollMin > 0 {
		res.RetryAfter = reservedPause
	}
	q.State = res.Holder != ""
	return res, nil
}

// Release implements [engine.HoldDriver]. If counts are left, it runs lock/nested_release on the
// writer's field. Otherwise it frees the lock, or hands it off to another writer.
//
// If the owner also reads, its read holds stay. The script then frees the lock for readers, and
// hands nothing off. o's key remembers the release, and the successor's key whether it has given
// up.
func (d *writerDriver) Release(
	ctx context.Context, o *engine.Ownership, remaining int, next engine.Next,
) (engine.Released, error) {
	if remaining > 0 {
		return d.unnest(ctx, o, remaining)
	}
	return d.free(ctx, &o.Owner, next, d.h.c.life)
}

// free gives back the counts of o, by rwlock/write_release: its own count of an id that others may
// share, or all private counts. It also removes the reservation of o, and the note that the client
// forget waits. If forget is "", there is no such client. A client that has had the lock is noted
// again, because it is the turn of the others.
func (d *writerDriver) free(
	ctx context.Context, o *engine.Owner, next engine.Next, forget string,
) (engine.Released, error) {
	call := scripts.RWLockWriteRelease{
		Keys: &d.h.keys, MemoryKey: d.h.ownerKey(o), Owner: o.ID, MemoryTTL: d.h.c.rememberDoubt(o),
		IsShared: o.Shared, OnlyOwn: o.Shared, DefaultTTL: o.TTL, Client: forget,
	}
	call.SuccessorMemory = d.successorKey(next)
	if s := next.Successor; s != nil {
		call.Successor = s.ID
		call.SuccessorTTL = s.TTL
	}
	reply, err := call.Do(ctx, d.h.c.calls)
	got, err := releasedResult(reply, err)
	got.InDoubt = reply.Doubt && call.MemoryTTL == 0 // otherwise Redis has the first answer
	return got, err
}

// Rollback implements [engine.Driver].
func (d *writerDriver) Rollback(ctx context.Context, q *engine.Request) error {
	owner := q.Owner
	owner.InDoubt = owner.InDoubt || q.MustRollback // a late copy must not reserve again
	_, err := d.free(ctx, &owner, engine.Next{}, d.h.clientToForget())
	return err
}

// releaseID implements [lockDriver], as the reader's does.
func (d *writerDriver) releaseID(ctx context.Context, id string, q *engine.Request) (held bool, err error) {
	reply, err := scripts.RWLockWriteRelease{
		Keys: &d.h.keys, MemoryKey: d.h.ownerKey(&q.Owner), Owner: id, MemoryTTL: d.h.c.run.Memory(), IsShared: true,
		DefaultTTL: q.TTL,
	}.Do(ctx, d.h.c.calls)
	return reply.Held, err
}

// adopt implements [lockDriver] by rwlock/write_adopt, which removes the read holds of the old id.
// Copies are as harmless as those of a reader's adoption.
func (d *writerDriver) adopt(ctx context.Context, id string, q *engine.Request) (time.Time, int, error) {
	reply, err := scripts.RWLockWriteAdopt{
		Keys: &d.h.keys, MemoryKey: d.h.ownerKey(&q.Owner), NewOwner: q.ID, TTL: q.TTL, OldOwner: id,
	}.Do(ctx, d.h.c.confirmed)
	return adopted(q, reply, err)
}

// info implements [lockDriver] by rwlock/write_info.
func (d *writerDriver) info(ctx context.Context) (Info, error) {
	reply, err := scripts.RWLockWriteInfo{Keys: &d.h.keys}.Do(ctx, d.h.c.calls)
	return heldBy(reply), err
}
