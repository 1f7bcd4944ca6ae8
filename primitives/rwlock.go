package primitives

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/scripts"
)

// How a read-write lock stands in Redis.
//
// One hash serves both sides. The field mode says which side holds. Every reader has a field with its count,
// and a key for each count that expires with that count's lease: Redisson, and this library, tell live
// readers from dead ones by these keys. The writer's field ends in ":write".
//
// A writer that waits would starve while readers come and go, so each of its attempts leaves a reservation:
// a key that expires soon, and that keeps new readers out. Readers that waited behind a writer go first when
// it leaves, all of them with one command.

const (
	rwChannel     = "redisson_rwlock"
	rwReservation = "redlatch_rwlock_claim"
)

// reservationTTL is how long one attempt of a waiting writer keeps new readers out: two polls, and room
// for a late one. It is the most that a writer which died while it waited costs the readers.
const reservationTTL = 2500 * time.Millisecond

// RWLock is Redisson's RReadWriteLock: any number of readers, or one writer. It is a handle with two
// sides, each of them a [Lock].
//
// A writer may also read: it acquires the reader side with the context of its hold. To go on reading when
// the writer has been released, it acquires with context.WithoutCancel of that context (a downgrade). A
// reader may not write ([ErrDeadlock]).
//
// While a writer waits for readers to leave, new readers wait behind it, as with sync.RWMutex. So a
// goroutine that reads must not wait for another's new read lock; nest with the hold's context instead.
// Redisson's readers do not wait for a writer, and may keep it out.
type RWLock struct {
	_ noCopy

	name   string
	reader Lock
	writer Lock
}

// RWLock returns the read-write lock of that name. The options are those of both sides.
func (c *Client) RWLock(name string, opts ...Option) *RWLock {
	rw := &RWLock{name: name}
	rw.reader.init(c, "reader", name, opts)
	rw.writer.init(c, "writer", name, opts)
	newReaderDriver(&rw.reader, &rw.writer)
	newWriterDriver(&rw.writer, &rw.reader)
	return rw
}

// Name is the user's name, without the client's prefix.
func (rw *RWLock) Name() string { return rw.name }

// Reader is the side that many may hold, the same Lock each time. Its Info and ForceRelease concern
// readers only.
func (rw *RWLock) Reader() *Lock { return &rw.reader }

// Writer is the side that one may hold while nobody reads, the same Lock each time. Its Info and
// ForceRelease concern the writer only.
func (rw *RWLock) Writer() *Lock { return &rw.writer }

// rwDriver is what the drivers of both sides share. The lock is a hash. Its field mode is "read" or
// "write". Each reader has a field, its id, with its count; the writer has one, its id and ":write".
type rwDriver struct {
	h           *handle
	other       *engine.Key // finds holds of the other side in a context
	hash        string
	channel     string // of release messages
	reservation string // exists while a writer waits
	lua         *rwScriptSet
}

// rwScriptSet are the scripts in which the two sides differ, but not in keys, arguments and reply.
type rwScriptSet struct{ release, renew, adopt, force, info *scripts.Script }

func newRWDriver(side, other *Lock, lua *rwScriptSet) rwDriver {
	return rwDriver{
		h: &side.handle, other: other.res.Key, hash: side.raw, lua: lua,
		channel: prefixed(rwChannel, side.raw), reservation: prefixed(rwReservation, side.raw),
	}
}

func (d *rwDriver) Subscribe(_ *engine.Request, wake func(missed bool)) []engine.Subscription {
	return d.h.c.subscribe(d.channel, isUnlockMessage, wake)
}

func (d *rwDriver) keys(request string) []any {
	return []any{d.hash, d.channel, request, d.reservation, d.h.sharedCounts}
}

// rememberAcquire is how long Redis must remember an acquisition: only where it counts for the id.
func (d *rwDriver) rememberAcquire(q *engine.Request) any {
	if q.Shared {
		return d.h.c.remembered
	}
	return 0
}

// free gives back what o has: one count of an id that others may share, else all counts. A rollback gives
// back only what is known to have been acquired.
func (d *rwDriver) free(ctx context.Context, o *engine.Owner, rollback bool) (lost bool, err error) {
	reply, err := d.h.c.run.Do(ctx, d.lua.release, d.keys(d.h.ownerKey(o)),
		o.ID, d.h.c.publish(), d.h.c.rememberFor(o), flag(o.Shared), flag(rollback), millis(o.TTL))
	return reply.Value == int64(0), err
}

func (d *rwDriver) Rollback(ctx context.Context, q *engine.Request) error {
	_, err := d.free(ctx, &q.Owner, true)
	return err
}

func (d *rwDriver) renewScript() *scripts.Script { return d.lua.renew }

func (d *rwDriver) adopt(
	ctx context.Context, id string, q *engine.Request,
) (sent time.Time, counts int, err error) {
	reply, err := d.h.c.run.Do(ctx, d.lua.adopt, d.keys(d.h.ownerKey(&q.Owner)),
		q.ID, millis(q.TTL), d.h.c.publish(), id)
	n, _ := reply.Value.(int64)
	if n < 0 {
		return reply.Sent, 0, fmt.Errorf("%w: %s writes too; adopt the writer", ErrUnsupported, id)
	}
	return reply.Sent, int(n), err
}

func (d *rwDriver) releaseID(ctx context.Context, id string, q *engine.Request) (held bool, err error) {
	reply, err := d.h.c.run.Do(ctx, d.lua.release, d.keys(d.h.ownerKey(&q.Owner)),
		id, d.h.c.publish(), d.h.c.remembered, 1, 0, millis(q.TTL))
	return err == nil && reply.Value != int64(0), err
}

func (d *rwDriver) forceRelease(ctx context.Context, q *engine.Request) (ids []string, held bool, err error) {
	reply, err := d.h.c.run.Do(ctx, d.lua.force, d.keys(d.h.ownerKey(&q.Owner)), d.h.c.publish(), d.h.c.remembered)
	ids, held = readForced(reply.Value)
	return ids, held, err
}

// info reads {pttl of the hash, id, count, pttl, id, ...}.
func (d *rwDriver) info(ctx context.Context) (info Info, err error) {
	reply, err := d.h.c.run.Do(ctx, d.lua.info, []any{d.hash})
	if err != nil {
		return Info{}, err
	}
	answer := reply.Value.([]any)
	ttl := ttlOf(answer[0].(int64))
	for answer = answer[1:]; len(answer) >= 3; answer = answer[3:] {
		id, _ := answer[0].(string)
		holder := Holder{ID: id, Count: int(answer[1].(int64)), TTL: ttlOf(answer[2].(int64))}
		info.Holders = append(info.Holders, holder)
		info.TTL = max(info.TTL, holder.TTL)
	}
	if len(info.Holders) > 0 && ttl < 0 {
		info.TTL = -1 // the lock stays when its holders are dead
	}
	return info, nil
}

// readerDriver is the driver of RReadLock. Beside its field in the hash a reader has a key for each of its
// counts, which lives as long as that count's lease. These keys tell which readers are alive.
type readerDriver struct{ rwDriver }

var (
	readAcquire  = scripts.Load("rwlock/read_acquire")
	readSetCount = scripts.Load("rwlock/read_set_count")
	readCheck    = scripts.Load("rwlock/read_check")
	readScripts  = &rwScriptSet{
		release: scripts.Load("rwlock/read_release"),
		renew:   scripts.Load("rwlock/read_renew"),
		adopt:   scripts.Load("rwlock/read_adopt"),
		force:   scripts.Load("rwlock/read_force"),
		info:    scripts.Load("rwlock/read_info"),
	}
)

func newReaderDriver(reader, writer *Lock) {
	d := &readerDriver{newRWDriver(reader, writer, readScripts)}
	reader.useLock(d, engine.Traits{
		Outer: d.outer, ManyHolders: true, AcquireBatch: d.acquireBatch, YieldsTo: writer.res.Kind,
	}, d.keys(reader.requestKey("")))
}

// firstCountKey is the key of the first count of o. While a cluster moves the lock's slot, Redis must find
// it where the hash is: if it were not among the keys, a reader of which only the hash has moved would look
// dead.
func (d *readerDriver) firstCountKey(o *engine.Ownership) any {
	return suffixed(d.h.raw, o.ID) + ":rwlock_timeout:1"
}

// outer: a reader nests in a reader, and in a writer, which goes on writing.
func (d *readerDriver) outer(ctx context.Context) (*engine.Hold, error) {
	if outer := engine.OuterFrom(ctx, d.h.res.Key); outer != nil {
		return outer, nil
	}
	return engine.OuterFrom(ctx, d.other), nil
}

func (d *readerDriver) TryAcquire(ctx context.Context, q *engine.Request) (engine.Result, error) {
	res, _, err := d.acquireBatch(ctx, q, nil)
	return res, err
}

// acquireBatch acquires for all waiting readers: where one may read, all may.
func (d *readerDriver) acquireBatch(
	ctx context.Context, q *engine.Request, others []*engine.Request,
) (engine.Result, []bool, error) {
	keys := d.keys(d.h.ownerKey(&q.Owner))
	args := append(make([]any, 0, 6+2*len(others)),
		q.ID, millis(q.TTL), d.h.c.publish(), d.rememberAcquire(q), flag(q.NonReentrant), flag(q.Nested))
	for _, other := range others {
		keys = append(keys, d.h.ownerKey(&other.Owner))
		args = append(args, other.ID, millis(other.TTL))
	}
	reply, err := d.h.c.confirm(ctx, readAcquire, keys, args...)
	if err != nil {
		return engine.Result{}, nil, err
	}
	if answer, ok := reply.Value.([]any); ok && answer[0] == "in" {
		granted := make([]bool, len(others))
		for i, one := range answer[1:] {
			granted[i] = one == int64(1)
		}
		return engine.Result{Granted: true, Sent: reply.Sent, Free: math.MaxInt, InDoubt: reply.Doubt}, granted, nil
	}
	res, err := readLockReply(reply)
	if res.Granted {
		res.Free = math.MaxInt
	}
	return res, nil, err
}

func (d *readerDriver) Release(ctx context.Context, o *engine.Ownership, left int) (lost bool, err error) {
	if left == 0 {
		return d.free(ctx, &o.Owner, false)
	}
	need, known := o.BeginShortening(left)
	ttl := millis(need)
	switch {
	case !known:
		ttl = -1 // leave the lease as it is
	case ttl == 0: // the leases of the holds that are left have ended
		return d.free(ctx, &o.Owner, false)
	}
	reply, err := d.h.c.run.Do(ctx, readSetCount, d.recountKeys(o), o.ID, left, 0, ttl, o.NextChange(), d.h.c.remembered)
	o.EndShortening(err)
	return reply.Value == int64(0), err
}

func (d *readerDriver) SetCount(
	ctx context.Context, o *engine.Ownership, n int, ttl time.Duration,
) (time.Time, bool, error) {
	reply, err := d.h.c.confirm(ctx, readSetCount, d.recountKeys(o),
		o.ID, n, millis(ttl), -1, o.NextChange(), d.h.c.remembered)
	return reply.Sent, reply.Value == int64(0), err
}

func (d *readerDriver) recountKeys(o *engine.Ownership) []any {
	return []any{d.hash, d.h.sharedCounts, d.h.ownerKey(&o.Owner) + ":count"}
}

func (d *readerDriver) Extend(
	ctx context.Context, o *engine.Ownership, ttl time.Duration,
) (time.Time, bool, error) {
	return readRenewal(d.h.c.run.Do(ctx, d.lua.renew, []any{d.hash, d.firstCountKey(o)}, o.ID, millis(ttl)))
}

func (d *readerDriver) Check(ctx context.Context, o *engine.Ownership) (lost bool, err error) {
	reply, err := d.h.c.run.Do(ctx, readCheck, []any{d.hash, d.firstCountKey(o)}, o.ID)
	return reply.Value == int64(0), err
}

func (d *readerDriver) renewal(
	keys, args []any, o *engine.Ownership, ttl time.Duration,
) ([]any, []any) {
	return append(keys, d.h.key, d.firstCountKey(o)), append(args, o.ID, d.h.ttlArg(ttl))
}

// writerDriver is the driver of RWriteLock.
type writerDriver struct{ rwDriver }

var (
	writeAcquire = scripts.Load("rwlock/write_acquire")
	writeScripts = &rwScriptSet{
		release: scripts.Load("rwlock/write_release"),
		renew:   lockRenew,
		adopt:   scripts.Load("rwlock/write_adopt"),
		force:   scripts.Load("rwlock/write_force"),
		info:    scripts.Load("rwlock/write_info"),
	}
)

func newWriterDriver(writer, reader *Lock) {
	d := &writerDriver{newRWDriver(writer, reader, writeScripts)}
	// A writer's release is for all waiting readers, so the clients do not take turns.
	writer.useLock(d, engine.Traits{
		Outer: d.outer, NestsInTurn: true, HandOff: d.handOff, Cohorts: true,
	}, d.keys(writer.requestKey("")))
}

// field is the writer's field in the hash. Its count is renewed and checked as a plain lock's is.
func (d *writerDriver) field(o *engine.Ownership) string { return o.ID + ":write" }

// outer: a writer nests in a writer. In a reader it would wait for itself.
func (d *writerDriver) outer(ctx context.Context) (*engine.Hold, error) {
	if outer := engine.OuterFrom(ctx, d.h.res.Key); outer != nil {
		return outer, nil
	}
	if reader, _ := engine.HoldFrom(ctx, d.other); reader != nil {
		return nil, ErrDeadlock
	}
	return nil, nil
}

// behindWriter is the state of a writer's request that was refused because another writer holds.
type behindWriter struct{}

func (d *writerDriver) TryAcquire(ctx context.Context, q *engine.Request) (engine.Result, error) {
	_, waitedForWriter := q.State.(behindWriter)
	reservation := int64(0)
	if q.MayQueue && !waitedForWriter {
		reservation = millis(reservationTTL)
	}
	reply, err := d.h.c.confirm(ctx, writeAcquire, d.keys(d.h.ownerKey(&q.Owner)),
		q.ID, millis(q.TTL), d.h.c.publish(), d.rememberAcquire(q), flag(q.NonReentrant), reservation, flag(q.Nested))
	if err != nil {
		return engine.Result{}, err
	}
	if answer, ok := reply.Value.([]any); ok && len(answer) > 2 {
		q.MustRollback = true // the reservation must go if q gives up
	}
	res, err := readLockReply(reply)
	if err != nil || res.Granted {
		return res, err
	}
	// Readers that waited behind a writer go first, all of them: after that writer's release the next
	// writer makes one attempt without a reservation.
	if waitedForWriter && res.Holder == "" {
		res.RetryAfter = 0
	}
	q.State = nil
	if res.Holder != "" {
		q.State = behindWriter{}
	}
	return res, nil
}

func (d *writerDriver) Release(ctx context.Context, o *engine.Ownership, left int) (lost bool, err error) {
	if left == 0 {
		got, err := d.handOff(ctx, o, nil)
		return got.Lost, err
	}
	reply, err := d.h.c.run.Do(ctx, lockNestedRelease, []any{d.hash, d.h.sharedCounts}, d.field(o), left, millis(o.TTL))
	return reply.Value == int64(0), err
}

// handOff frees the lock, or hands it off to another writer.
func (d *writerDriver) handOff(
	ctx context.Context, o *engine.Ownership, successor *engine.Owner,
) (engine.HandOff, error) {
	keys := d.keys(d.h.ownerKey(&o.Owner))
	args := []any{o.ID, d.h.c.publish(), d.h.c.rememberFor(&o.Owner), flag(o.Shared), 0, millis(o.TTL)}
	if successor != nil {
		keys, args = append(keys, d.h.ownerKey(successor)), append(args, successor.ID, millis(successor.TTL))
	}
	return readHandOff(d.h.c.run.Do(ctx, d.lua.release, keys, args...))
}

func (d *writerDriver) SetCount(
	ctx context.Context, o *engine.Ownership, n int, ttl time.Duration,
) (time.Time, bool, error) {
	reply, err := d.h.c.confirm(ctx, lockNestedAcquire, []any{d.hash, d.h.sharedCounts}, d.field(o), n, millis(ttl))
	return reply.Sent, reply.Value == int64(0), err
}

func (d *writerDriver) Extend(
	ctx context.Context, o *engine.Ownership, ttl time.Duration,
) (time.Time, bool, error) {
	return readRenewal(d.h.c.run.Do(ctx, lockRenew, []any{d.hash}, d.field(o), millis(ttl)))
}

func (d *writerDriver) Check(ctx context.Context, o *engine.Ownership) (lost bool, err error) {
	reply, err := d.h.c.run.Do(ctx, lockCheck, []any{d.hash}, d.field(o))
	return reply.Value == int64(0), err
}

func (d *writerDriver) renewal(
	keys, args []any, o *engine.Ownership, ttl time.Duration,
) ([]any, []any) {
	return append(keys, d.h.key), append(args, d.field(o), d.h.ttlArg(ttl))
}
