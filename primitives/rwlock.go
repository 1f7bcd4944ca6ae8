package primitives

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/scripts"
)

// Read-write locks in Redis: Redisson's RReadWriteLock.
//
//	<name>                            hash for both sides: mode, readers and counts, the writer
//	{<name>}:<id>:rwlock_timeout:<k>  one key for the k-th count of a reader, with that count's lease
//	redisson_unlock_latch:{<name>}:polls  exists while clients of this library poll
//	redisson_rwlock:{<name>}          channel: "0" after the last reader, "1" after a writer
//	redlatch_rwlock_claim:{<name>}    reservation: a writer waits
//
// The field mode says which side holds the lock. A reader without any of its keys is dead, whatever the
// hash says. The writer's field ends in ":write".
//
// A waiting writer would starve while readers come and go. So each of its attempts leaves a
// reservation: a key that expires soon and keeps new readers out. Readers do not starve either. When a
// writer releases, the readers that wait behind it go first, all of them with one command for each
// client.

// Prefixes of the channel and of the reservation. Redisson does not know of the latter.
const (
	rwChannel     = "redisson_rwlock"
	rwReservation = "redlatch_rwlock_claim"
)

// reservationTTL is how long one attempt of a waiting writer keeps new readers out: two polls, and room
// for a late one. A writer that dies while it waits delays the readers for no longer.
const reservationTTL = 2500 * time.Millisecond

// RWLock is any number of readers, or one writer: Redisson's RReadWriteLock. It is a handle with two
// sides, each of them a [Lock].
//
// A writer may also read: it acquires the reader side with the context of its hold. To go on reading
// after the writer's release, it acquires with context.WithoutCancel of that context (a downgrade). A
// reader may not write: that returns [ErrDeadlock].
//
// While a writer waits for readers to leave, new readers wait behind it, as with sync.RWMutex. So a
// goroutine that reads must not wait for another goroutine to start reading. Nest with the hold's
// context instead. Redisson's readers do not wait for a writer, and may keep it out.
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

// rwDriver has the commands that both sides share. It never changes after its constructor, so it needs
// no mutex.
type rwDriver struct {
	h           *handle     // of this side
	other       *engine.Key // finds holds of the other side in a context
	hash        string
	channel     string   // of release messages
	reservation string   // exists while a writer waits
	polls       wireName // exists while clients poll
	lua         *rwScriptSet
}

// rwScriptSet lists scripts that each side has in its own version. Both versions have the same keys,
// arguments and replies.
type rwScriptSet struct{ release, renew, renewShared, adopt, force, info *scripts.Script }

// newRWDriver returns the driver of one side; each needs the key of the other to find its holds.
func newRWDriver(side, other *Lock, lua *rwScriptSet) rwDriver {
	return rwDriver{
		h: &side.handle, other: other.res.Key, hash: side.raw, lua: lua,
		polls:   side.requestName(pollsKey),
		channel: prefixed(rwChannel, side.raw), reservation: prefixed(rwReservation, side.raw),
	}
}

// Subscribe implements [engine.Driver]. Both sides listen to one channel.
func (d *rwDriver) Subscribe(_ *engine.Request, wake func(missed bool)) []engine.Subscription {
	return d.h.c.subscribe(d.channel, isUnlockMessage, wake)
}

// keys returns the keys of the scripts that take or free the lock. request is the key that remembers
// the request. The keys of a reader's counts are not among them: the scripts derive their names.
func (d *rwDriver) keys(request string) []any {
	return append(make([]any, 0, 6), d.hash, d.channel, request, d.reservation, &d.h.sharedCounts)
}

// free gives back what o has: its own count of an id that others may share, else all private counts. It
// runs read_release or write_release. Reply: 0 if o held nothing.
//
// o's key remembers the release: a copy gets the same answer, and a late copy of the acquisition takes
// nothing. The TTL is for a hash without one, and only write_release reads it. Both get it, so that they
// can share this function. If nothing else is left of o, it stays for the rest of its minimum hold.
func (d *rwDriver) free(ctx context.Context, o *engine.Owner, rest time.Duration) (engine.Released, error) {
	lost, err := readLost(d.h.c.run.Do(ctx, d.lua.release, d.keys(d.h.ownerKey(o)),
		o.ID, d.h.c.publish(), d.h.c.rememberFor(o), flag(o.Shared), 1, millis(o.TTL), millis(rest)))
	return releasedOf(lost, err)
}

// Rollback implements [engine.Driver]. A writer's also removes its reservation.
func (d *rwDriver) Rollback(ctx context.Context, q *engine.Request) error {
	_, err := d.free(ctx, &q.Owner, 0)
	return err
}

// renewScript implements [renewer].
func (d *rwDriver) renewScript(shared bool) *scripts.Script {
	if shared {
		return d.lua.renewShared
	}
	return d.lua.renew
}

// adopt implements [lockDriver] by read_adopt or write_adopt. The reply is the number of counts, 0 if id
// holds nothing, or -1 for a reader that also writes. Adopting its reads alone would leave a writer
// behind that has lost them. A writer's read holds are removed with its old id.
//
// A copy finds the new id in place and gets the same answer; after the release of the new id it finds
// that id's key, and takes nothing.
func (d *rwDriver) adopt(
	ctx context.Context, id string, q *engine.Request,
) (sent time.Time, counts int, err error) {
	reply, err := d.h.c.confirm(ctx, d.lua.adopt, d.keys(d.h.ownerKey(&q.Owner)),
		q.ID, millis(q.TTL), d.h.c.publish(), id)
	q.InDoubt = q.InDoubt || reply.Doubt // a shared id may come back, and a copy must not take it
	n, err := readNumber(reply, err)
	if n < 0 {
		return reply.Sent, 0, fmt.Errorf("%w: %s writes too; adopt the writer", ErrUnsupported, id)
	}
	if err == nil && n > 0 {
		err = reply.Unconfirmed
	}
	return reply.Sent, int(n), err
}

// releaseID implements [lockDriver]. It is the release of one count, under a request key of its own
// number, which remembers the answer for copies. The reply of write_release counts receivers, so
// anything but 0 means that id has held.
func (d *rwDriver) releaseID(ctx context.Context, id string, q *engine.Request) (held bool, err error) {
	lost, err := readLost(d.h.c.run.Do(ctx, d.lua.release, d.keys(d.h.ownerKey(&q.Owner)),
		id, d.h.c.publish(), d.h.c.remembered, 1, 0, millis(q.TTL), 0))
	return err == nil && !lost, err
}

// forceRelease implements [lockDriver] by read_force or write_force, which leave the other side alone.
// Redis remembers the ids, so a copy gets them too.
func (d *rwDriver) forceRelease(ctx context.Context, q *engine.Request) (ids []string, held bool, err error) {
	return readForced(
		d.h.c.run.Do(ctx, d.lua.force, d.keys(d.h.ownerKey(&q.Owner)), d.h.c.publish(), d.h.c.remembered))
}

// info implements [lockDriver] by read_info or write_info. Reply: {pttl of the hash, id, count, pttl, id,
// count, pttl, ...}, without dead readers. The TTL of the lock is that of its longest-lived holder.
func (d *rwDriver) info(ctx context.Context) (info Info, err error) {
	reply, err := d.h.c.run.Do(ctx, d.lua.info, []any{d.hash})
	answer := elementsOf(reply.Value, err)
	ttl := ttlOf(answer.number())
	for answer.more() {
		holder := Holder{ID: answer.text(), Count: int(answer.number()), TTL: ttlOf(answer.number())}
		info.Holders = append(info.Holders, holder)
		info.TTL = max(info.TTL, holder.TTL)
	}
	if len(info.Holders) > 0 && ttl < 0 {
		info.TTL = -1 // the lock stays when its holders are dead
	}
	return info, answer.err
}

// readerDriver is the driver of RReadLock. Each count of a reader has a lease of its own. So nested
// readers need no turns, but a change of the count needs an order: see SetCount.
type readerDriver struct{ rwDriver }

// The scripts of the reader side.
var (
	readAcquire  = scripts.Load("rwlock/read_acquire")
	readSetCount = scripts.Load("rwlock/read_set_count")
	readCheck    = scripts.Load("rwlock/read_check")
	readScripts  = &rwScriptSet{
		release:     scripts.Load("rwlock/read_release"),
		renew:       scripts.Load("rwlock/read_renew"),
		renewShared: scripts.Load("rwlock/read_renew_shared"),
		adopt:       scripts.Load("rwlock/read_adopt"),
		force:       scripts.Load("rwlock/read_force"),
		info:        scripts.Load("rwlock/read_info"),
	}
)

// newReaderDriver gives the reader side its driver. There is no hand-off: when one may read, all may, so
// one command acquires for all waiting readers of the client. Waiting writers of this client go first.
func newReaderDriver(reader, writer *Lock) {
	d := &readerDriver{newRWDriver(reader, writer, readScripts)}
	reader.useLock(d, &engine.Traits{
		Leased: true, Nests: true, Outer: d.outer, ManyHolders: true, AcquireBatch: d.acquireBatch, YieldsTo: writer.res.Kind,
	})
}

// firstCountKey is the key of the first count of o. Scripts derive this name themselves; it is in KEYS
// for one case. While a cluster moves the lock's slot, the hash may have moved and this key not. Redis
// then answers TRYAGAIN. Without the key in KEYS the script would run, and the reader look dead.
func (d *readerDriver) firstCountKey(o *engine.Ownership) any {
	return suffixed(d.h.raw, o.ID) + ":rwlock_timeout:1"
}

// outer implements [engine.Traits].Outer: a reader nests in a reader, or in a writer, which still writes.
func (d *readerDriver) outer(ctx context.Context) (*engine.Hold, error) {
	if outer := engine.OuterFrom(ctx, d.h.res.Key); outer != nil {
		return outer, nil
	}
	return engine.OuterFrom(ctx, d.other), nil
}

// TryAcquire implements [engine.Driver].
func (d *readerDriver) TryAcquire(ctx context.Context, q *engine.Request) (engine.Result, error) {
	res, _, err := d.acquireBatch(ctx, q, nil)
	return res, err
}

// acquireBatch implements [engine.Traits].AcquireBatch by rwlock/read_acquire. The others are private
// requests that wait on this client. Reply, if q is granted and there are others: {"in", 1 or 0 for each
// of the others}; else as [readLockReply] says. A refusal may also name the reservation of a writer: its
// TTL, and no holder.
//
// A copy finds q as a live reader. It then takes nothing more, and reports which of the others read. A
// request that has rolled back is remembered by its own key, and gets nothing from any copy.
func (d *readerDriver) acquireBatch(
	ctx context.Context, q *engine.Request, others []*engine.Request,
) (engine.Result, []bool, error) {
	keys := d.keys(d.h.ownerKey(&q.Owner))
	args := append(make([]any, 0, 7+2*len(others)),
		q.ID, millis(q.TTL), d.h.c.publish(), flag(q.Shared), flag(q.NonReentrant), flag(q.Nested))
	for _, other := range others {
		keys = append(keys, d.h.ownerKey(&other.Owner))
		args = append(args, other.ID, millis(other.TTL))
	}
	if ttl := pollMarkTTL(q); ttl > 0 {
		keys, args = append(keys, &d.polls), append(args, ttl)
	}
	reply, err := d.h.c.confirm(ctx, readAcquire, keys, args...)
	if err != nil {
		return engine.Result{}, nil, err
	}
	if answer, ok := reply.Value.([]any); ok && len(answer) > 0 && answer[0] == "in" {
		list := elementsOf(answer[1:], nil)
		granted := make([]bool, len(others))
		for i := range granted {
			granted[i] = list.number() == 1
		}
		if list.err != nil {
			return engine.Result{}, nil, list.err
		}
		res := engine.Result{Granted: true, Sent: reply.Sent, Free: math.MaxInt, InDoubt: reply.Doubt}
		return res, granted, reply.Unconfirmed
	}
	res, err := readLockReply(reply)
	if res.Granted {
		res.Free = math.MaxInt
	}
	return res, nil, err
}

// Release implements [engine.Driver]. With holds left it runs rwlock/read_set_count, which also shortens
// the lease to what those holds were promised: the released hold may have had the longest one. The
// engine computes that time (internal/engine/lease.go), and EndShortening reports the outcome to it.
func (d *readerDriver) Release(
	ctx context.Context, o *engine.Ownership, left int, next engine.Next,
) (engine.Released, error) {
	if left == 0 {
		return d.free(ctx, &o.Owner, next.Rest)
	}
	need, known := o.BeginShortening(left)
	ttl := millis(need)
	switch {
	case !known:
		ttl = -1 // leave the lease as it is
	case ttl == 0: // the leases of the holds that are left have ended
		return d.free(ctx, &o.Owner, next.Rest)
	}
	_, lost, err := d.recount(o, func(memoryTTL any) (scripts.Reply, error) {
		return d.h.c.run.Do(ctx, readSetCount, d.recountKeys(o), o.ID, left, 0, ttl, o.NextChange(), memoryTTL)
	})
	o.EndShortening(err)
	return engine.Released{Lost: lost}, err
}

// SetCount implements [engine.Driver] by rwlock/read_set_count. The new count gets a key with its own
// lease. The arguments after the TTL are: -1, no shortening; the number; how long to remember it.
func (d *readerDriver) SetCount(
	ctx context.Context, o *engine.Ownership, n int, ttl time.Duration,
) (time.Time, bool, error) {
	return d.recount(o, func(memoryTTL any) (scripts.Reply, error) {
		return d.h.c.confirmChange(ctx, readSetCount, d.recountKeys(o),
			o.ID, n, millis(ttl), -1, o.NextChange(), memoryTTL)
	})
}

// recount runs rwlock/read_set_count by do. Unlike a plain lock's, the count must be exact: it says which
// keys belong to the reader. So each change has a number, and Redis remembers the latest one: a copy of an
// earlier change then does nothing. It remembers longer if an earlier change was in doubt.
func (d *readerDriver) recount(
	o *engine.Ownership, do func(memoryTTL any) (scripts.Reply, error),
) (sent time.Time, lost bool, _ error) {
	memoryTTL := d.h.c.answered
	if o.ChangeInDoubt() {
		memoryTTL = d.h.c.remembered
	}
	reply, err := do(memoryTTL)
	lost, err = readLost(reply, err)
	o.Changed(reply.Doubt || scripts.OutcomeOf(err) == scripts.Unknown)
	return reply.Sent, lost, err
}

// recountKeys returns the keys of rwlock/read_set_count. The last one remembers the latest change. It
// cannot be the owner's key itself, which says that a private owner was released.
func (d *readerDriver) recountKeys(o *engine.Ownership) []any {
	return []any{d.hash, &d.h.sharedCounts, d.h.ownerKey(&o.Owner) + ":count"}
}

// Extend implements [engine.Driver] by the script of renewals, with a batch of one. It raises the TTL of all
// of the reader's counts, and never shortens one.
func (d *readerDriver) Extend(
	ctx context.Context, o *engine.Ownership, ttl time.Duration,
) (time.Time, bool, error) {
	keys, args := d.renewal(nil, nil, o, ttl)
	return readRenewal(d.h.c.confirmChange(ctx, d.renewScript(o.Shared), keys, args...))
}

// Check implements [engine.Driver] by rwlock/read_check: is one of the reader's keys left? For a shared id
// see [handle.checkCount].
func (d *readerDriver) Check(ctx context.Context, o *engine.Ownership) (lost bool, err error) {
	if o.Shared {
		return d.h.checkCount(ctx, d, o)
	}
	return readLost(d.h.c.run.Do(ctx, readCheck, []any{d.hash, d.firstCountKey(o)}, o.ID))
}

// renewal implements [renewer]: two keys and two arguments for each reader.
func (d *readerDriver) renewal(
	keys, args []any, o *engine.Ownership, ttl time.Duration,
) ([]any, []any) {
	keys, args = append(keys, d.h.name, d.firstCountKey(o)), append(args, o.ID, d.h.ttlArg(ttl))
	return d.h.withCount(keys, args, o)
}

// probe implements [renewer].
func (d *readerDriver) probe(o *engine.Ownership) []any { return []any{"exists", d.firstCountKey(o)} }

// writerDriver is the driver of RWriteLock. Its field in the hash is like a plain lock's. So it uses the
// plain lock's scripts for renewals, checks and nested counts.
type writerDriver struct{ rwDriver }

// The scripts of the writer side.
var (
	writeAcquire = scripts.Load("rwlock/write_acquire")
	writeScripts = &rwScriptSet{
		release:     scripts.Load("rwlock/write_release"),
		renew:       lockRenew,
		renewShared: lockRenewShared,
		adopt:       scripts.Load("rwlock/write_adopt"),
		force:       scripts.Load("rwlock/write_force"),
		info:        scripts.Load("rwlock/write_info"),
	}
)

// newWriterDriver gives the writer side its driver.
func newWriterDriver(writer, reader *Lock) {
	d := &writerDriver{newRWDriver(writer, reader, writeScripts)}
	// A writer's release is for all waiting readers, so the clients do not take turns.
	writer.useLock(d, &engine.Traits{
		Leased: true, Nests: true, Outer: d.outer, NestsInTurn: true, HandsOff: true, Cohorts: true,
		SharesWith: reader.res.Kind,
	})
}

// field is the writer's field in the hash.
func (d *writerDriver) field(o *engine.Ownership) string { return o.ID + ":write" }

// outer implements [engine.Traits].Outer: a writer nests in a writer. In a reader it would wait for
// itself.
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

// TryAcquire implements [engine.Driver] by rwlock/write_acquire. The reply is as [readLockReply] says. A
// third element says that the attempt has left a reservation, because readers hold the lock.
//
// A copy finds q's own field and is granted again, or renews the reservation. The rollback removes the
// reservation, and its memory makes late copies take nothing and leave none.
func (d *writerDriver) TryAcquire(ctx context.Context, q *engine.Request) (engine.Result, error) {
	_, waitedForWriter := q.State.(behindWriter)
	reservation := int64(0)
	if q.MayQueue && !waitedForWriter {
		reservation = millis(reservationTTL)
	}
	keys := d.keys(d.h.ownerKey(&q.Owner))
	args := append(make([]any, 0, 8), q.ID, millis(q.TTL), d.h.c.publish(), flag(q.Shared), flag(q.NonReentrant),
		reservation, flag(q.Nested))
	if ttl := pollMarkTTL(q); ttl > 0 {
		keys, args = append(keys, &d.polls), append(args, ttl)
	}
	reply, err := d.h.c.confirm(ctx, writeAcquire, keys, args...)
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

// Release implements [engine.Driver]. With counts left it runs lock/nested_release on the writer's field.
// Else it runs rwlock/write_release, which frees the lock, hands it off to another writer, or leaves it taken
// for the rest of the minimum hold; [readReleased] reads the reply.
//
// If the owner also reads, its read holds stay. The script then frees the lock for readers, and hands
// nothing off. o's key remembers the release, and the successor's key whether it has given up.
func (d *writerDriver) Release(
	ctx context.Context, o *engine.Ownership, left int, next engine.Next,
) (engine.Released, error) {
	if left > 0 {
		keys := []any{d.hash, &d.h.sharedCounts}
		lost, err := readLost(d.h.c.run.Do(ctx, lockNestedRelease, keys, d.field(o), left, millis(o.TTL)))
		return engine.Released{Lost: lost}, err
	}
	keys := d.keys(d.h.ownerKey(&o.Owner))
	args := []any{
		o.ID, d.h.c.publish(), d.h.c.rememberFor(&o.Owner), flag(o.Shared), flag(o.Shared), millis(o.TTL), millis(next.Rest),
	}
	if s := next.Successor; s != nil {
		keys, args = append(keys, d.h.ownerKey(s)), append(args, s.ID, millis(s.TTL))
	} else if next.CountPolls {
		keys = append(keys, &d.polls)
	}
	got, err := readReleased(d.h.c.run.Do(ctx, d.lua.release, keys, args...))
	if isForeign(err) {
		return releasedOf(true, err)
	}
	return got, err
}

// SetCount implements [engine.Driver] as a plain lock does: see [hashDriver].SetCount.
func (d *writerDriver) SetCount(
	ctx context.Context, o *engine.Ownership, n int, ttl time.Duration,
) (time.Time, bool, error) {
	reply, err := d.h.c.confirmChange(ctx, lockNestedAcquire, []any{d.hash, &d.h.sharedCounts}, d.field(o), n, millis(ttl))
	lost, err := readLost(reply, err)
	return reply.Sent, lost, err
}

// Extend implements [engine.Driver] by the script of renewals, with a batch of one.
func (d *writerDriver) Extend(
	ctx context.Context, o *engine.Ownership, ttl time.Duration,
) (time.Time, bool, error) {
	keys, args := d.renewal(nil, nil, o, ttl)
	return readRenewal(d.h.c.confirmChange(ctx, d.renewScript(o.Shared), keys, args...))
}

// Check implements [engine.Driver] by lock/check. For a shared id see [handle.checkCount].
func (d *writerDriver) Check(ctx context.Context, o *engine.Ownership) (lost bool, err error) {
	if o.Shared {
		return d.h.checkCount(ctx, d, o)
	}
	return readLost(d.h.c.run.Do(ctx, lockCheck, []any{d.hash}, d.field(o)))
}

// renewal implements [renewer]: one key and two arguments for each writer.
func (d *writerDriver) renewal(
	keys, args []any, o *engine.Ownership, ttl time.Duration,
) ([]any, []any) {
	keys, args = append(keys, d.h.name), append(args, d.field(o), d.h.ttlArg(ttl))
	return d.h.withCount(keys, args, o)
}

// probe implements [renewer].
func (d *writerDriver) probe(o *engine.Ownership) []any {
	return []any{"hexists", d.h.name, d.field(o)}
}
