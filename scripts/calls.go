// Code generated from the headers of the Lua files by go generate; DO NOT EDIT.

package scripts

import (
	"context"
	"time"
)

var (
	fairlockAcquire        = Load("fairlock/acquire")
	fairlockForce          = Load("fairlock/force")
	fairlockInfo           = Load("fairlock/info")
	fairlockLeaveQueue     = Load("fairlock/leave_queue")
	fairlockRefresh        = Load("fairlock/refresh")
	fairlockRelease        = Load("fairlock/release")
	fairlockReleaseShared  = Load("fairlock/release_shared")
	fairlockShorten        = Load("fairlock/shorten")
	latchCountDown         = Load("latch/count_down")
	latchDelete            = Load("latch/delete")
	latchInfo              = Load("latch/info")
	latchInit              = Load("latch/init")
	lockAcquire            = Load("lock/acquire")
	lockAcquireAll         = Load("lock/acquire_all")
	lockAcquireShared      = Load("lock/acquire_shared")
	lockAdopt              = Load("lock/adopt")
	lockCheck              = Load("lock/check")
	lockForce              = Load("lock/force")
	lockInfo               = Load("lock/info")
	lockLeave              = Load("lock/leave")
	lockList               = Load("lock/list")
	lockNestedAcquire      = Load("lock/nested_acquire")
	lockNestedRelease      = Load("lock/nested_release")
	lockRelease            = Load("lock/release")
	lockReleaseAll         = Load("lock/release_all")
	lockReleaseShared      = Load("lock/release_shared")
	lockRenew              = Load("lock/renew")
	lockRenewShared        = Load("lock/renew_shared")
	lockShorten            = Load("lock/shorten")
	permitsemaphoreAcquire = Load("permitsemaphore/acquire")
	permitsemaphoreAdd     = Load("permitsemaphore/add")
	permitsemaphoreAdopt   = Load("permitsemaphore/adopt")
	permitsemaphoreCheck   = Load("permitsemaphore/check")
	permitsemaphoreDelete  = Load("permitsemaphore/delete")
	permitsemaphoreInfo    = Load("permitsemaphore/info")
	permitsemaphoreInit    = Load("permitsemaphore/init")
	permitsemaphoreRelease = Load("permitsemaphore/release")
	permitsemaphoreRenew   = Load("permitsemaphore/renew")
	permitsemaphoreResize  = Load("permitsemaphore/resize")
	permitsemaphoreShorten = Load("permitsemaphore/shorten")
	rwlockReadAcquire      = Load("rwlock/read_acquire")
	rwlockReadAdopt        = Load("rwlock/read_adopt")
	rwlockReadCheck        = Load("rwlock/read_check")
	rwlockReadForce        = Load("rwlock/read_force")
	rwlockReadInfo         = Load("rwlock/read_info")
	rwlockReadRelease      = Load("rwlock/read_release")
	rwlockReadRenew        = Load("rwlock/read_renew")
	rwlockReadRenewShared  = Load("rwlock/read_renew_shared")
	rwlockReadSetCount     = Load("rwlock/read_set_count")
	rwlockReadShorten      = Load("rwlock/read_shorten")
	rwlockWriteAcquire     = Load("rwlock/write_acquire")
	rwlockWriteAdopt       = Load("rwlock/write_adopt")
	rwlockWriteForce       = Load("rwlock/write_force")
	rwlockWriteInfo        = Load("rwlock/write_info")
	rwlockWriteRelease     = Load("rwlock/write_release")
	rwlockWriteShorten     = Load("rwlock/write_shorten")
	semaphoreAcquire       = Load("semaphore/acquire")
	semaphoreAdd           = Load("semaphore/add")
	semaphoreDelete        = Load("semaphore/delete")
	semaphoreDrain         = Load("semaphore/drain")
	semaphoreInfo          = Load("semaphore/info")
	semaphoreInit          = Load("semaphore/init")
	semaphoreList          = Load("semaphore/list")
	semaphoreRelease       = Load("semaphore/release")
)

// Keys are the keys and the channel of a primitive. Each call says which of them it takes. The
// first one is a string: a cluster client finds the slot by it.
type Keys struct {
	Main         any
	Channel      any
	SharedCounts any
	Line         any
	*KindKeys    // nil: none
}

// KindKeys are the keys that only single kinds have.
type KindKeys struct {
	TokenKey  any
	Queue     any
	Deadlines any
	Waiters   any
	Clients   any
	ClaimKey  any
	Turns     any
	EpochKey  any
	Leases    any
}

// FairLockAcquire is a call of fairlock/acquire: acquire the lock if it is free and no waiter is
// before, or join the queue.
//
// See fair_lock in fairlock/queue. The memory is that of this acquisition's release: it exists if a
// late copy must not acquire.
type FairLockAcquire struct {
	// Main; Channel; SharedCounts; Queue; Deadlines; Waiters; Clients
	*Keys

	MemoryKey any
	// id
	Owner string
	TTL   time.Duration
	// others may share the id; else it belongs to this acquisition alone
	IsShared bool
	// refuse a second count
	RefuseSecond bool
	// 1 to join the queue when refused; 2 to be granted the lock there, too
	Joins int64
	// of this waiter
	Timeout time.Duration
	// an id that is new after each restart
	Client string
	// with which its owner ids begin
	ClientID string
	// in a hold with the same id, which must still have the lock
	IsNested bool
	// of 16 digits, so that nobody else can guess what a grant says
	Random int64
}

// FairLockAcquireReply is the reply to FairLockAcquire.
type FairLockAcquireReply struct {
	Acquired

	Since     string
	IsForeign bool
}

// Do runs the script. Redis returns 0 when acquired; "over" when this acquisition has ended;
// "again" when a second count is refused; "lost" when the outer hold is gone; when refused
// {holder's pttl, holder}, and, in the queue, the time at which it joined, and 1 if Redisson holds
// the lock, or may before it. In the queue the pttl is -2 if the client sent a heartbeat a moment
// ago: its refresh reads it.
func (c FairLockAcquire) Do(ctx context.Context, by Sender) (FairLockAcquireReply, error) {
	keys := []any{
		c.Main,
		c.Channel,
		c.MemoryKey,
		c.SharedCounts,
		c.own().Queue,
		c.own().Deadlines,
		c.own().Waiters,
		c.own().Clients,
	}
	args := []any{
		c.Owner,
		by.millis(c.TTL),
		by.runner.publish.Load(),
		c.IsShared,
		c.RefuseSecond,
		c.Joins,
		by.millis(c.Timeout),
		c.Client,
		c.ClientID,
		c.IsNested,
		c.Random,
	}
	got, rest, err := readAcquired(by.send(ctx, fairlockAcquire, keys, 8, args, 11))
	reply := FairLockAcquireReply{Acquired: got}
	if err != nil || len(rest.rest) == 0 {
		return reply, err
	}
	reply.Since = rest.text()
	reply.IsForeign = rest.flag()
	return reply, rest.err
}

// FairLockForce runs fairlock/force: free the lock, whoever holds it; the next waiter gets it.
// Redis returns {the holder's id}, 0 when there was none. A copy of this request gets the same
// answer.
func FairLockForce(ctx context.Context, by Sender, c Change) (IDs, error) {
	return readIDs(c.send(ctx, by, fairlockForce, c.SharedCounts,
		c.own().Queue,
		c.own().Deadlines,
		c.own().Waiters,
		c.own().Clients,
	))
}

// FairLockInfo is a call of fairlock/info: read who holds the lock, and its waiters.
type FairLockInfo struct {
	// Main; Queue
	*Keys
}

// FairLockInfoReply is the reply to FairLockInfo.
type FairLockInfoReply struct {
	Holders

	Waiters []string
}

// Do runs the script. Redis returns the holder, if there is one; the ids in the queue.
func (c FairLockInfo) Do(ctx context.Context, by Sender) (FairLockInfoReply, error) {
	keys := []any{c.Main, c.own().Queue}
	var args []any
	got, rest, err := readHolders(by.send(ctx, fairlockInfo, keys, 2, args, 0))
	reply := FairLockInfoReply{Holders: got}
	if err != nil || !rest.more() {
		return reply, err
	}
	waiters := rest.list()
	for waiters.more() {
		reply.Waiters = append(reply.Waiters, waiters.text())
	}
	if rest.err == nil {
		rest.err = waiters.err
	}
	return reply, rest.err
}

// FairLockLeaveQueue is a call of fairlock/leave_queue: leave the queue.
//
// See fair_lock in fairlock/queue.
type FairLockLeaveQueue struct {
	// Main; Channel; SharedCounts; Queue; Deadlines; Waiters; Clients
	*Keys

	// the waiter's
	ID string
	// that leaves; others may wait with the same id
	Client string
}

// Do runs the script.
func (c FairLockLeaveQueue) Do(ctx context.Context, by Sender) (Reply, error) {
	keys := []any{
		c.Main,
		c.Channel,
		c.Main,
		c.SharedCounts,
		c.own().Queue,
		c.own().Deadlines,
		c.own().Waiters,
		c.own().Clients,
	}
	args := []any{c.ID, by.runner.publish.Load(), c.Client}
	return by.send(ctx, fairlockLeaveQueue, keys, 8, args, 3)
}

// FairLockRefresh is a call of fairlock/refresh: one heartbeat for all waiters of a client, and one
// look at the queue for them.
//
// See fair_lock in fairlock/queue.
type FairLockRefresh struct {
	// Main; Channel; SharedCounts; Queue; Deadlines; Waiters; Clients
	*Keys

	// an id that is new after each restart
	Client string
	// of its waiters
	LongestTimeout time.Duration
	// that should be in the queue
	IDs []string
}

// FairLockRefreshReply is the reply to FairLockRefresh.
type FairLockRefreshReply struct {
	Reply

	PTTL       int64
	Holder     string
	Next       string
	NextLeft   int64
	NextIsOurs bool
	Waiting    int64
	Missing    []string
}

// Do runs the script. Redis returns the holder or ""; the next owner or "", how many ms it has left
// to acquire the lock, and whether it belongs to this client; the length of the queue; which of the
// ids are missing from the queue, or count as Redisson's there.
func (c FairLockRefresh) Do(ctx context.Context, by Sender) (FairLockRefreshReply, error) {
	keys := []any{
		c.Main,
		c.Channel,
		c.Main,
		c.SharedCounts,
		c.own().Queue,
		c.own().Deadlines,
		c.own().Waiters,
		c.own().Clients,
	}
	args := append(make([]any, 0, 5), c.Client, by.runner.publish.Load(), by.millis(c.LongestTimeout))
	for _, element := range c.IDs {
		args = append(args, element)
	}
	got, rest, err := readList(by.send(ctx, fairlockRefresh, keys, 8, args, len(args)))
	reply := FairLockRefreshReply{Reply: got}
	if err != nil {
		return reply, err
	}
	reply.PTTL = rest.number()
	reply.Holder = rest.text()
	reply.Next = rest.text()
	reply.NextLeft = rest.number()
	reply.NextIsOurs = rest.flag()
	reply.Waiting = rest.number()
	for rest.more() {
		reply.Missing = append(reply.Missing, rest.text())
	}
	return reply, rest.err
}

// FairLockRelease is a call of fairlock/release: end a private acquisition: its hold, or its place
// in the queue.
//
// See fair_lock in fairlock/queue.
type FairLockRelease struct {
	// Main; Channel; SharedCounts; Queue; Deadlines; Waiters; Clients
	*Keys

	// optional: of this release, for late copies of the acquisition: 0 not held, 1 released, or the
	// answer that named the next holder
	MemoryKey any
	// id
	Owner string
	// 0 when no copy of the acquisition can come; KEYS[3] is not used then
	MemoryTTL time.Duration
	// an id that is new after each restart
	Client string
}

// Do runs the script. Redis returns 0 when it was not held; else 1, or, if a waiter of the same
// client holds the lock now, its id, the time at which it joined the queue, and the ttl.
func (c FairLockRelease) Do(ctx context.Context, by Sender) (FairReleased, error) {
	memoryKey := c.MemoryKey
	if memoryKey == nil {
		memoryKey = c.Main // any key of the slot
	}
	keys := []any{
		c.Main,
		c.Channel,
		memoryKey,
		c.SharedCounts,
		c.own().Queue,
		c.own().Deadlines,
		c.own().Waiters,
		c.own().Clients,
	}
	args := []any{c.Owner, by.runner.publish.Load(), by.millis(c.MemoryTTL), c.Client}
	return readFairReleased(by.send(ctx, fairlockRelease, keys, 8, args, 4))
}

// FairLockReleaseShared is a call of fairlock/release_shared: release one count of an owner id that
// may be shared.
//
// See fair_lock in fairlock/queue.
type FairLockReleaseShared struct {
	// Main; Channel; SharedCounts; Queue; Deadlines; Waiters; Clients
	*Keys

	// of this request: 2 released, 3 nothing to release
	MemoryKey any
	// id
	Owner     string
	MemoryTTL time.Duration
	// release the count of this acquisition; else any count of the id
	OnlyOwn bool
	// if the lock hash has none
	DefaultTTL time.Duration
}

// Do runs the script. Redis returns 1 when a count was released, 0 when there was none.
func (c FairLockReleaseShared) Do(ctx context.Context, by Sender) (Released, error) {
	keys := []any{
		c.Main,
		c.Channel,
		c.MemoryKey,
		c.SharedCounts,
		c.own().Queue,
		c.own().Deadlines,
		c.own().Waiters,
		c.own().Clients,
	}
	args := []any{
		c.Owner,
		by.runner.publish.Load(),
		by.millis(c.MemoryTTL),
		c.OnlyOwn,
		by.millis(c.DefaultTTL),
	}
	got, _, err := readReleased(by.send(ctx, fairlockReleaseShared, keys, 8, args, 5))
	return got, err
}

// FairLockShorten is a call of fairlock/shorten: shorten the lease of an owner, which needs it for
// ttl_ms only.
//
// See fair_lock in fairlock/queue.
type FairLockShorten struct {
	// Main; Channel; SharedCounts; Queue; Deadlines; Waiters; Clients
	*Keys

	// of the acquisition; of its release: see lock/shorten
	MemoryKey any
	// of the owner
	Field string
	// others may have counts of the id
	IsShared bool
	TTL      time.Duration
	// 0 when no copy of the acquisition can come, or with seen_at
	MemoryTTL time.Duration
	// optional: that belong to the owner
	Counts int64
	// optional: when a renewal found the longer TTL, by the server's clock, ms
	SeenAt int64
}

// Do runs the script. Redis returns 1 if the lease ends in time now, 2 if it was left as it is, 0
// if it was not held.
func (c FairLockShorten) Do(ctx context.Context, by Sender) (Number, error) {
	keys := []any{
		c.Main,
		c.Channel,
		c.MemoryKey,
		c.SharedCounts,
		c.own().Queue,
		c.own().Deadlines,
		c.own().Waiters,
		c.own().Clients,
	}
	args := []any{
		c.Field,
		by.runner.publish.Load(),
		c.IsShared,
		by.millis(c.TTL),
		by.millis(c.MemoryTTL),
		c.Counts,
		c.SeenAt,
	}
	return readNumber(by.send(ctx, fairlockShorten, keys, 8, args, 5))
}

// LatchCountDown runs latch/count_down: lower the count by one; the last one opens the latch and
// deletes it. Redis returns 1.
func LatchCountDown(ctx context.Context, by Sender, c Change) (Number, error) {
	return readNumber(c.send(ctx, by, latchCountDown))
}

// LatchDelete runs latch/delete: delete the latch; it will not open any more. Redis returns 1 when
// there was one, 0 when not.
func LatchDelete(ctx context.Context, by Sender, c Change) (Number, error) {
	return readNumber(c.send(ctx, by, latchDelete))
}

// LatchInfo is a call of latch/info: read the count.
type LatchInfo struct {
	// Main; Channel: no key has its name
	*Keys
}

// Do runs the script. Redis returns the count, 0 when there is no latch.
func (c LatchInfo) Do(ctx context.Context, by Sender) (Number, error) {
	keys := []any{c.Main, c.Channel}
	var args []any
	return readNumber(by.send(ctx, latchInfo, keys, 2, args, 0))
}

// LatchInit runs latch/init: set the count, unless there is one. Redis returns 1 when set, 0 when
// there was one.
func LatchInit(ctx context.Context, by Sender, c Change) (Number, error) {
	return readNumber(c.send(ctx, by, latchInit))
}

// LockAcquire is a call of lock/acquire: acquire the lock for an owner id that belongs to one
// acquisition alone.
type LockAcquire struct {
	// Main; Channel: on which the release will be published; Line: of waiting clients; TokenKey:
	// optional: fencing token, for a fenced lock only
	*Keys

	// of this acquisition's release; exists if a late copy must not acquire
	MemoryKey any
	// optional: of clients that poll, if this one does
	Mark any
	// id
	Owner string
	TTL   time.Duration
	// optional: how many to reserve; 0 for a lock that is not fenced
	Tokens int64
	// optional: the client's, in line; "" if it does not stand in line
	Place string
	// optional: when it took that place, as an earlier reply says; "0": not known
	Since string
	// optional: the client has no other waiter
	IsLast bool
	// optional
	MarkTTL time.Duration
}

// LockAcquireReply is the reply to LockAcquire.
type LockAcquireReply struct {
	Acquired

	Since      int64
	MustListen bool
}

// Do runs the script. Redis returns 0 when acquired, for a fenced lock the last token that was
// reserved, as text; {holder's pttl, holder} when somebody else holds the lock, "" for a read-write
// lock, and for a client in line also when it took its place, and 1 if it must listen on the common
// channel; "over" when this acquisition was released already.
func (c LockAcquire) Do(ctx context.Context, by Sender) (LockAcquireReply, error) {
	keys := []any{c.Main, c.Channel, c.MemoryKey, c.Line, c.own().TokenKey, c.Mark}
	args := []any{
		c.Owner,
		by.millis(c.TTL),
		by.runner.publish.Load(),
		c.Tokens,
		c.Place,
		c.Since,
		c.IsLast,
		by.millis(c.MarkTTL),
	}
	got, rest, err := readAcquired(by.send(ctx, lockAcquire, keys, 4, args, 3))
	reply := LockAcquireReply{Acquired: got}
	if err != nil || len(rest.rest) == 0 {
		return reply, err
	}
	reply.Since = rest.number()
	reply.MustListen = rest.flag()
	return reply, rest.err
}

// LockAcquireAll is a call of lock/acquire_all: acquire several locks, all or none, for an owner id
// of one acquisition alone.
//
// Its release will be published on the channel; the memory key is that of its release, and exists
// if a late copy must not acquire.
type LockAcquireAll struct {
	// id
	Owner   string
	TTL     time.Duration
	Members []LockAcquireAllMember
}

// LockAcquireAllMember is an element of LockAcquireAll.Members.
type LockAcquireAllMember struct {
	// Main; Channel
	*Keys

	MemoryKey any
}

// LockAcquireAllReply is the reply to LockAcquireAll.
type LockAcquireAllReply struct {
	Acquired

	Busy int64
}

// Do runs the script. Redis returns 0 when all were acquired; {holder's pttl, holder, index} of the
// first lock that somebody else holds, the holder is "" for a read-write lock; "over" when this
// acquisition was released already.
func (c LockAcquireAll) Do(ctx context.Context, by Sender) (LockAcquireAllReply, error) {
	keys := make([]any, 0, 3*len(c.Members))
	for _, element := range c.Members {
		keys = append(keys, element.Main, element.Channel, element.MemoryKey)
	}
	args := []any{c.Owner, by.millis(c.TTL), by.runner.publish.Load()}
	got, rest, err := readAcquired(by.send(ctx, lockAcquireAll, keys, len(keys), args, 3))
	reply := LockAcquireAllReply{Acquired: got}
	if err != nil || len(rest.rest) == 0 {
		return reply, err
	}
	reply.Busy = rest.number()
	return reply, rest.err
}

// LockAcquireShared is a call of lock/acquire_shared: acquire the lock, or one more count, for an
// owner id that may be shared.
type LockAcquireShared struct {
	// Main; Channel: on which the release will be published; SharedCounts; TokenKey: optional: fencing
	// token, for a fenced lock only
	*Keys

	// of this acquisition's release; exists if a late copy must not acquire
	MemoryKey any
	// id
	Owner string
	TTL   time.Duration
	// refuse a second count
	RefuseSecond bool
	// in a hold with the same id, which must still have the lock
	IsNested bool
}

// Do runs the script. Redis returns 0 when acquired, for a fenced lock the token, as text;
// {holder's pttl, holder} when somebody else holds the lock, "" for a read-write lock; "over" when
// this acquisition has ended; "again" when a second count is refused; "lost" when the outer hold is
// gone.
func (c LockAcquireShared) Do(ctx context.Context, by Sender) (Acquired, error) {
	keys := []any{c.Main, c.Channel, c.MemoryKey, c.SharedCounts, c.Main, c.own().TokenKey}
	args := []any{c.Owner, by.millis(c.TTL), by.runner.publish.Load(), c.RefuseSecond, c.IsNested}
	got, _, err := readAcquired(by.send(ctx, lockAcquireShared, keys, 5, args, 5))
	return got, err
}

// LockAdopt is a call of lock/adopt: replace a holder's owner id by a new one, which takes over all
// its counts.
type LockAdopt struct {
	// Main; Channel: on which the release will be published; SharedCounts; Queue: optional: of a fair
	// lock only; so are the next ones. They are not used here. The release needs them, so Redis refuses
	// an adopter that has no rights on them; Deadlines: optional; Waiters: optional; Clients: optional
	*Keys

	// of the new id's release; exists if a late copy must not adopt
	MemoryKey any
	// id
	NewOwner string
	TTL      time.Duration
	// the holder's id
	OldOwner string
}

// Do runs the script. Redis returns how many counts were taken over, or 0 when that holder has
// none.
func (c LockAdopt) Do(ctx context.Context, by Sender) (Number, error) {
	keys := []any{
		c.Main,
		c.Channel,
		c.MemoryKey,
		c.SharedCounts,
		c.own().Queue,
		c.own().Deadlines,
		c.own().Waiters,
		c.own().Clients,
	}
	args := []any{c.NewOwner, by.millis(c.TTL), by.runner.publish.Load(), c.OldOwner}
	return readNumber(by.send(ctx, lockAdopt, keys, 4, args, 4))
}

// LockCheck is a call of lock/check: ask whether the owner still holds the lock.
type LockCheck struct {
	// Main
	*Keys

	// id
	Owner string
}

// Do runs the script. Redis returns 1 or 0.
func (c LockCheck) Do(ctx context.Context, by Sender) (Number, error) {
	keys := []any{c.Main}
	args := []any{c.Owner}
	return readNumber(by.send(ctx, lockCheck, keys, 1, args, 1))
}

// LockForce runs lock/force: free the lock, whoever holds it. Redis returns {the holder's id}, 0
// when there was none. A copy of this request gets the same answer.
func LockForce(ctx context.Context, by Sender, c Change) (IDs, error) {
	return readIDs(c.send(ctx, by, lockForce, c.SharedCounts, c.Line))
}

// LockInfo is a call of lock/info: read who holds the lock.
type LockInfo struct {
	// Main; TokenKey: optional: fencing token, for a fenced lock only
	*Keys
}

// LockInfoReply is the reply to LockInfo.
type LockInfoReply struct {
	Holders

	Token string
}

// Do runs the script. Redis returns the holder, if there is one; the last token or "".
func (c LockInfo) Do(ctx context.Context, by Sender) (LockInfoReply, error) {
	keys := []any{c.Main, c.own().TokenKey}
	var args []any
	got, rest, err := readHolders(by.send(ctx, lockInfo, keys, 1, args, 0))
	reply := LockInfoReply{Holders: got}
	if err != nil || !rest.more() {
		return reply, err
	}
	reply.Token = rest.text()
	return reply, rest.err
}

// LockLeave is a call of lock/leave: give up a client's place in line.
type LockLeave struct {
	// Main; Channel; Line: of waiting clients
	*Keys

	// the client's
	Place string
}

// Do runs the script. Redis returns 1 if it passed the lock on, else 0.
func (c LockLeave) Do(ctx context.Context, by Sender) (Number, error) {
	keys := []any{c.Main, c.Channel, c.Main, c.Main, c.Line}
	args := []any{c.Place, by.runner.publish.Load()}
	return readNumber(by.send(ctx, lockLeave, keys, 5, args, 2))
}

// LockList is a call of lock/list: read the kind of a lock from its keys, and the fields of its
// hash.
type LockList struct {
	// Main; TokenKey: optional: fencing token; Queue: optional: of a fair lock; Clients: optional: with
	// waiters in the fair queue. KEYS[2] to KEYS[4] are missing if they are in another cluster slot
	*Keys
}

// LockListReply is the reply to LockList.
type LockListReply struct {
	Reply

	Kind    string
	PTTL    int64
	Token   string
	Waiters []string
	Fields  []LockListField
}

// LockListField is an element of LockListReply.Fields.
type LockListField struct {
	Field string
	Value string
	PTTL  int64
}

// Do runs the script. Redis returns the last fencing token or ""; the ids in the fair queue; the
// fields of the hash, with the pttl of the holder of each, without dead readers. The kind is "lock"
// if no other key exists.
func (c LockList) Do(ctx context.Context, by Sender) (LockListReply, error) {
	keys := []any{c.Main, c.own().TokenKey, c.own().Queue, c.own().Clients}
	var args []any
	got, rest, err := readList(by.send(ctx, lockList, keys, 1, args, 0))
	reply := LockListReply{Reply: got}
	if err != nil {
		return reply, err
	}
	reply.Kind = rest.text()
	reply.PTTL = rest.number()
	reply.Token = rest.text()
	waiters := rest.list()
	for waiters.more() {
		reply.Waiters = append(reply.Waiters, waiters.text())
	}
	if rest.err == nil {
		rest.err = waiters.err
	}
	for rest.more() {
		reply.Fields = append(reply.Fields, LockListField{rest.text(), rest.text(), rest.number()})
	}
	return reply, rest.err
}

// LockNestedAcquire is a call of lock/nested_acquire: set the count of a private hold when another
// one nests in it.
type LockNestedAcquire struct {
	// Main; SharedCounts
	*Keys

	// optional: of this owner's release, for a wanted count of 1; exists if a late copy must not count
	MemoryKey any
	// of the owner
	Field string
	// count; 1 confirms an acquisition that was granted again
	Wanted int64
	// a longer one stays
	TTL time.Duration
}

// Do runs the script. Redis returns 1, or 0 when this owner has no private count any more.
func (c LockNestedAcquire) Do(ctx context.Context, by Sender) (Number, error) {
	keys := []any{c.Main, c.SharedCounts, c.MemoryKey}
	args := []any{c.Field, c.Wanted, by.millis(c.TTL)}
	return readNumber(by.send(ctx, lockNestedAcquire, keys, 2, args, 3))
}

// LockNestedRelease is a call of lock/nested_release: set the count of a private hold when a nested
// one is released.
type LockNestedRelease struct {
	// Main; SharedCounts
	*Keys

	// of the owner
	Field string
	// count, at least 1
	Wanted int64
	// if the lock hash has none
	DefaultTTL time.Duration
}

// Do runs the script. Redis returns 1, or 0 when this owner has no private count any more.
func (c LockNestedRelease) Do(ctx context.Context, by Sender) (Released, error) {
	keys := []any{c.Main, c.SharedCounts}
	args := []any{c.Field, c.Wanted, by.millis(c.DefaultTTL)}
	got, _, err := readReleased(by.send(ctx, lockNestedRelease, keys, 2, args, 3))
	return got, err
}

// LockRelease is a call of lock/release: release the lock of an owner id that is not shared, or
// hand it off.
type LockRelease struct {
	// Main; Channel; SharedCounts; Line: of waiting clients
	*Keys

	// optional: of this release, for late copies of the acquisition
	MemoryKey any
	// optional: memory of the successor's release, if there is a successor; without one, the mark of
	// clients that poll, if the client asks for it
	SuccessorMemory any
	// optional: fencing token, for a fenced lock with a successor only
	SuccessorToken any
	// id
	Owner string
	// 0 when no copy of the acquisition can come; KEYS[3] is not used then
	MemoryTTL time.Duration
	// the client's, in line, if it goes to the end of the line now, or if the successor is the client's
	// last waiter; else ""
	Place string
	// optional: its owner id, which belongs to one acquisition alone; missing: no successor
	Successor string
	// optional
	SuccessorTTL time.Duration
	// optional: how many to reserve for the successor, for a fenced lock only
	Tokens int64
}

// Do runs the script. Redis returns 0 when it was not held; {0} when the successor has the lock
// now, for a fenced lock {the last token that was reserved, as text}; else 1 and how many clients
// received a message, as {that number, "polled"} if clients poll.
func (c LockRelease) Do(ctx context.Context, by Sender) (Released, error) {
	memoryKey := c.MemoryKey
	if memoryKey == nil {
		memoryKey = c.Main // any key of the slot
	}
	keys := []any{
		c.Main,
		c.Channel,
		memoryKey,
		c.SharedCounts,
		c.Line,
		c.SuccessorMemory,
		c.SuccessorToken,
	}
	args := []any{
		c.Owner,
		by.runner.publish.Load(),
		by.millis(c.MemoryTTL),
		c.Place,
		c.Successor,
		by.millis(c.SuccessorTTL),
		c.Tokens,
	}
	got, _, err := readReleased(by.send(ctx, lockRelease, keys, 5, args, 4))
	return got, err
}

// LockReleaseAll is a call of lock/release_all: release several locks of an owner id that is not
// shared.
//
// The line lists waiting clients.
type LockReleaseAll struct {
	// id
	Owner   string
	Members []LockReleaseAllMember
}

// LockReleaseAllMember is an element of LockReleaseAll.Members.
type LockReleaseAllMember struct {
	// Main; Channel; SharedCounts; Line
	*Keys
}

// LockReleaseAllReply is the reply to LockReleaseAll.
type LockReleaseAllReply struct {
	Reply

	Held []bool
}

// Do runs the script. Redis returns 1 for each lock that was held, 0 for each other.
func (c LockReleaseAll) Do(ctx context.Context, by Sender) (LockReleaseAllReply, error) {
	keys := make([]any, 0, 4*len(c.Members))
	for _, element := range c.Members {
		keys = append(keys, element.Main, element.Channel, element.SharedCounts, element.Line)
	}
	args := []any{c.Owner, by.runner.publish.Load()}
	got, rest, err := readList(by.send(ctx, lockReleaseAll, keys, len(keys), args, 2))
	reply := LockReleaseAllReply{Reply: got}
	if err != nil {
		return reply, err
	}
	for rest.more() {
		reply.Held = append(reply.Held, rest.flag())
	}
	return reply, rest.err
}

// LockReleaseShared is a call of lock/release_shared: release one count of an owner id that may be
// shared.
type LockReleaseShared struct {
	// Main; Channel; SharedCounts; Line: of waiting clients, for notify_free
	*Keys

	// of this request: 2 released, 3 nothing to release
	MemoryKey any
	// id
	Owner     string
	MemoryTTL time.Duration
	// release the count of this acquisition; else any count of the id
	OnlyOwn bool
	// if the lock hash has none
	DefaultTTL time.Duration
}

// Do runs the script. Redis returns 1 when a count was released, 0 when there was none.
func (c LockReleaseShared) Do(ctx context.Context, by Sender) (Released, error) {
	keys := []any{c.Main, c.Channel, c.MemoryKey, c.SharedCounts, c.Line}
	args := []any{
		c.Owner,
		by.runner.publish.Load(),
		by.millis(c.MemoryTTL),
		c.OnlyOwn,
		by.millis(c.DefaultTTL),
	}
	got, _, err := readReleased(by.send(ctx, lockReleaseShared, keys, 5, args, 5))
	return got, err
}

// LockRenew is a call of lock/renew: extend many locks, each for its owner; a longer TTL stays.
type LockRenew struct {
	// Main
	*Keys

	Owner string
	TTL   time.Duration
}

// Script returns the script. Elements of one script may share a batch.
func (LockRenew) Script() *Script { return lockRenew }

// AddTo adds c to a batch. Redis returns 1 for each lock, its pttl if that is longer, or 0 when its
// owner does not hold it any more or the key has another type; the time if one is longer.
func (c LockRenew) AddTo(by *Batch) {
	by.begin(lockRenew)
	by.keys = append(by.keys, c.Main)
	by.args = append(by.args, c.Owner, by.millis(c.TTL))
}

// LockRenewShared is a call of lock/renew_shared: extend many locks, each for an acquisition with
// WithOwner; a longer TTL stays.
//
// The field is that of the owner, the memory key that of the acquisition. A ttl of 0 extends
// nothing.
type LockRenewShared struct {
	// Main; SharedCounts
	*Keys

	Field     string
	TTL       time.Duration
	MemoryKey string
}

// Script returns the script. Elements of one script may share a batch.
func (LockRenewShared) Script() *Script { return lockRenewShared }

// AddTo adds c to a batch. Redis returns 1 for each acquisition, the pttl of its lock if that is
// longer, or 0 when it has no count any more or the key has another type; the time if one is
// longer.
func (c LockRenewShared) AddTo(by *Batch) {
	by.begin(lockRenewShared)
	by.keys = append(by.keys, c.Main, c.SharedCounts)
	by.args = append(by.args, c.Field, by.millis(c.TTL), c.MemoryKey)
}

// LockShorten is a call of lock/shorten: shorten the lease of an owner, which needs it for ttl_ms
// only.
type LockShorten struct {
	// Main; Channel; SharedCounts; Line: of waiting clients, for notify_rest
	*Keys

	// of the acquisition; of its release: 2 released, "rests" released, but its private count stays
	MemoryKey any
	// of the owner
	Field string
	// others may have counts of the id
	IsShared bool
	TTL      time.Duration
	// 0 when no copy of the acquisition can come, or with seen_at
	MemoryTTL time.Duration
	// optional: that belong to the owner
	Counts int64
	// optional: when a renewal found the longer TTL, by the server's clock, ms
	SeenAt int64
}

// Do runs the script. Redis returns 1 if the lease ends in time now, 2 if it was left as it is, 0
// if it was not held.
func (c LockShorten) Do(ctx context.Context, by Sender) (Number, error) {
	keys := []any{c.Main, c.Channel, c.MemoryKey, c.SharedCounts, c.Line}
	args := []any{
		c.Field,
		by.runner.publish.Load(),
		c.IsShared,
		by.millis(c.TTL),
		by.millis(c.MemoryTTL),
		c.Counts,
		c.SeenAt,
	}
	return readNumber(by.send(ctx, lockShorten, keys, 5, args, 5))
}

// PermitSemaphoreAcquire is a call of permitsemaphore/acquire: acquire permits, all or none, for
// ids of one acquisition alone.
type PermitSemaphoreAcquire struct {
	// Main: free permits; Channel: on which the release will be published; Leases
	*Keys

	// of this acquisition's release
	MemoryKey any
	// optional: of clients that poll, if this one does
	Mark any
	// how many expired leases to collect at most
	MaxCollected int64
	// of 16 bytes each
	IDs string
	TTL time.Duration
	// optional
	MarkTTL time.Duration
}

// Do runs the script. Redis returns {1, free permits} when acquired; {0, free permits, ms until a
// lease ends} when there are too few: -1 when none will ever end, -2 when nobody has one, 0 when
// more are to be collected; {0} when no number is set; "over" when this acquisition was released
// already.
func (c PermitSemaphoreAcquire) Do(ctx context.Context, by Sender) (Acquired, error) {
	keys := []any{c.Main, c.Channel, c.MemoryKey, c.own().Leases, c.Mark}
	args := []any{
		by.runner.publish.Load(),
		c.MaxCollected,
		c.IDs,
		by.millis(c.TTL),
		by.millis(c.MarkTTL),
	}
	return readPermits(by.send(ctx, permitsemaphoreAcquire, keys, 4, args, 4))
}

// PermitSemaphoreAdd runs permitsemaphore/add: add permits, or take some away; a TTL stays. Redis
// returns 1.
func PermitSemaphoreAdd(ctx context.Context, by Sender, c Change) (Number, error) {
	return readNumber(c.send(ctx, by, permitsemaphoreAdd, c.own().Leases))
}

// PermitSemaphoreAdopt is a call of permitsemaphore/adopt: replace the ids of acquired permits by
// new ones, all or none.
type PermitSemaphoreAdopt struct {
	// Main: free permits; Channel: on which the release will be published; Leases
	*Keys

	// of the new ids' release
	MemoryKey any
	// of 16 bytes each
	OldIDs string
	// as many
	NewIDs string
	TTL    time.Duration
}

// Do runs the script. Redis returns 1, or 0 when not all of the old ids are held.
func (c PermitSemaphoreAdopt) Do(ctx context.Context, by Sender) (Number, error) {
	keys := []any{c.Main, c.Channel, c.MemoryKey, c.own().Leases}
	args := []any{by.runner.publish.Load(), c.OldIDs, c.NewIDs, by.millis(c.TTL)}
	return readNumber(by.send(ctx, permitsemaphoreAdopt, keys, 4, args, 4))
}

// PermitSemaphoreCheck is a call of permitsemaphore/check: ask whether permits are still held.
type PermitSemaphoreCheck struct {
	// Main: free permits; Channel: no key has its name; Leases
	*Keys

	// of 16 bytes each
	IDs string
}

// Do runs the script. Redis returns 1 when all are, 0 when not.
func (c PermitSemaphoreCheck) Do(ctx context.Context, by Sender) (Number, error) {
	keys := []any{c.Main, c.Channel, c.Main, c.own().Leases}
	args := []any{c.IDs}
	return readNumber(by.send(ctx, permitsemaphoreCheck, keys, 4, args, 1))
}

// PermitSemaphoreDelete runs permitsemaphore/delete: delete the semaphore; its acquired permits are
// lost. Redis returns 1 when there was one, 0 when not.
func PermitSemaphoreDelete(ctx context.Context, by Sender, c Change) (Number, error) {
	return readNumber(c.send(ctx, by, permitsemaphoreDelete, c.own().Leases))
}

// PermitSemaphoreInfo is a call of permitsemaphore/info: read how many permits are free, and who
// holds the others.
type PermitSemaphoreInfo struct {
	// Main: free permits; Channel: no key has its name; Leases
	*Keys
}

// PermitSemaphoreInfoReply is the reply to PermitSemaphoreInfo.
type PermitSemaphoreInfoReply struct {
	Reply

	Now  int64
	Free int64
	Held []PermitSemaphoreInfoHeld
}

// PermitSemaphoreInfoHeld is an element of PermitSemaphoreInfoReply.Held.
type PermitSemaphoreInfoHeld struct {
	ID     string
	EndsAt string
}

// Do runs the script. Redis returns now, ms; free permits, including those whose leases have
// expired; each held permit, and the time at which its lease ends, ms.
func (c PermitSemaphoreInfo) Do(ctx context.Context, by Sender) (PermitSemaphoreInfoReply, error) {
	keys := []any{c.Main, c.Channel, c.Main, c.own().Leases}
	var args []any
	got, rest, err := readList(by.send(ctx, permitsemaphoreInfo, keys, 4, args, 0))
	reply := PermitSemaphoreInfoReply{Reply: got}
	if err != nil {
		return reply, err
	}
	reply.Now = rest.number()
	reply.Free = rest.number()
	for rest.more() {
		reply.Held = append(reply.Held, PermitSemaphoreInfoHeld{rest.text(), rest.text()})
	}
	return reply, rest.err
}

// PermitSemaphoreInit runs permitsemaphore/init: set the number of permits, unless it is set. Redis
// returns 1 when set, 0 when it was set before.
func PermitSemaphoreInit(ctx context.Context, by Sender, c Change) (Number, error) {
	return readNumber(c.send(ctx, by, permitsemaphoreInit, c.own().Leases))
}

// PermitSemaphoreRelease is a call of permitsemaphore/release: release permits, or hand them off.
type PermitSemaphoreRelease struct {
	// Main: free permits; Channel; Leases
	*Keys

	// of this request
	MemoryKey any
	// optional: memory of the successor's release, if there is a successor; without one, the mark of
	// clients that poll, if the client asks for it
	SuccessorMemory any
	// 0 when no copy of the acquisition can come; KEYS[3] is not set then
	MemoryTTL time.Duration
	// of 16 bytes each
	IDs string
	// release all of them or none; without it, release those that are still taken
	AllOrNone bool
	// optional: missing: no successor
	SuccessorIDs string
	// optional
	SuccessorTTL time.Duration
}

// Do runs the script. Redis returns 0 when not all were held, -1 when the semaphore is gone; {free
// permits} when the successor has its permits now; else 1 and how many received the release
// message, as {that number, "polled"} if clients poll.
func (c PermitSemaphoreRelease) Do(ctx context.Context, by Sender) (Released, error) {
	keys := []any{c.Main, c.Channel, c.MemoryKey, c.own().Leases, c.SuccessorMemory}
	args := []any{
		by.runner.publish.Load(),
		by.millis(c.MemoryTTL),
		c.IDs,
		c.AllOrNone,
		c.SuccessorIDs,
		by.millis(c.SuccessorTTL),
	}
	got, _, err := readReleased(by.send(ctx, permitsemaphoreRelease, keys, 4, args, 4))
	return got, err
}

// PermitSemaphoreRenew is a call of permitsemaphore/renew: extend the permits of many acquisitions;
// a longer lease stays.
//
// Each id has 16 bytes.
type PermitSemaphoreRenew struct {
	// Main; Leases
	*Keys

	IDs string
	TTL time.Duration
}

// Script returns the script. Elements of one script may share a batch.
func (PermitSemaphoreRenew) Script() *Script { return permitsemaphoreRenew }

// AddTo adds c to a batch. Redis returns 1 for each acquisition, the ms left of its longest lease
// if they are more, or 0 when not all of its permits are held any more or a key has another type;
// the time if one is longer.
func (c PermitSemaphoreRenew) AddTo(by *Batch) {
	by.begin(permitsemaphoreRenew)
	by.keys = append(by.keys, c.Main, c.own().Leases)
	by.args = append(by.args, c.IDs, by.millis(c.TTL))
}

// PermitSemaphoreResize runs permitsemaphore/resize: set the number of free and acquired permits
// together. Redis returns 1.
func PermitSemaphoreResize(ctx context.Context, by Sender, c Change) (Number, error) {
	return readNumber(c.send(ctx, by, permitsemaphoreResize, c.own().Leases))
}

// PermitSemaphoreShorten is a call of permitsemaphore/shorten: shorten the leases of permits, which
// are needed for ttl_ms only.
type PermitSemaphoreShorten struct {
	// Main: free permits; Channel; Leases
	*Keys

	// of the acquisition; of its release: "rests"
	MemoryKey any
	// of 16 bytes each
	IDs string
	TTL time.Duration
	// 0 when no copy of the acquisition can come, or with seen_at
	MemoryTTL time.Duration
	// optional: when a renewal found the longer leases, by the server's clock, ms
	SeenAt int64
}

// Do runs the script. Redis returns 1 if the leases end in time now, 2 if they were left as they
// are, 0 if not all permits were held.
func (c PermitSemaphoreShorten) Do(ctx context.Context, by Sender) (Number, error) {
	keys := []any{c.Main, c.Channel, c.MemoryKey, c.own().Leases}
	args := []any{c.IDs, by.runner.publish.Load(), by.millis(c.TTL), by.millis(c.MemoryTTL), c.SeenAt}
	return readNumber(by.send(ctx, permitsemaphoreShorten, keys, 4, args, 4))
}

// RWLockReadAcquire is a call of rwlock/read_acquire: acquire the lock for reading; if granted,
// also for companions.
//
// The owner is an id that belongs to one acquisition alone.
type RWLockReadAcquire struct {
	// Main; Channel: of releases; ClaimKey: of a waiting writer; SharedCounts; Turns: of clients that
	// wait, see rwlock/turns
	*Keys

	// of this request; exists if a late copy must not acquire
	MemoryKey any
	// optional: of clients that poll, if this one does
	Mark any
	// id
	Owner string
	TTL   time.Duration
	// others may share the id; else it belongs to this acquisition alone
	IsShared bool
	// refuse a second count
	RefuseSecond bool
	// in a hold with the same id, which must still have the lock
	IsNested bool
	// an id that is new after each restart
	Client string
	// 1 if the client waits for messages; 2 if it was noted, and has no other readers that wait
	Waits int64
	// optional
	MarkTTL    time.Duration
	Companions []RWLockReadAcquireCompanion
}

// RWLockReadAcquireCompanion is an element of RWLockReadAcquire.Companions.
type RWLockReadAcquireCompanion struct {
	// of each companion's request
	MemoryKey any
	Owner     string
	TTL       time.Duration
}

// RWLockReadAcquireReply is the reply to RWLockReadAcquire.
type RWLockReadAcquireReply struct {
	Acquired

	Companions []bool
}

// Do runs the script. Redis returns 0 when acquired, with companions {"in", and for each 1 when it
// acquired, or 0}; {pttl of the obstacle, writer} when refused; "over" when this acquisition has
// ended; "again" when a second count is refused; "lost" when the outer hold is gone.
func (c RWLockReadAcquire) Do(ctx context.Context, by Sender) (RWLockReadAcquireReply, error) {
	keys := append(make([]any, 0, 8), c.Main, c.Channel, c.MemoryKey, c.own().ClaimKey, c.SharedCounts, c.own().Turns)
	for _, element := range c.Companions {
		keys = append(keys, element.MemoryKey)
	}
	if c.Mark != nil {
		keys = append(keys, c.Mark)
	}
	args := append(make([]any, 0, 10),
		c.Owner,
		by.millis(c.TTL),
		by.runner.publish.Load(),
		c.IsShared,
		c.RefuseSecond,
		c.IsNested,
		c.Client,
		c.Waits,
	)
	for _, element := range c.Companions {
		args = append(args, element.Owner, by.millis(element.TTL))
	}
	if c.MarkTTL != 0 {
		args = append(args, by.millis(c.MarkTTL))
	}
	got, rest, err := readAcquired(by.send(ctx, rwlockReadAcquire, keys, len(keys), args, len(args)))
	reply := RWLockReadAcquireReply{Acquired: got}
	if err != nil || len(rest.rest) == 0 {
		return reply, err
	}
	for rest.more() {
		reply.Companions = append(reply.Companions, rest.flag())
	}
	return reply, rest.err
}

// RWLockReadAdopt is a call of rwlock/read_adopt: replace a reader's owner id by a new one, which
// takes over all its holds.
type RWLockReadAdopt struct {
	// Main; Channel: of releases; ClaimKey: of a waiting writer; SharedCounts
	*Keys

	// of this request: 1 acquired, 2 released, 3 must not acquire
	MemoryKey any
	// id
	NewOwner string
	TTL      time.Duration
	// the reader's id
	OldOwner string
}

// Do runs the script. Redis returns how many counts were taken over, 0 when that reader has none,
// -1 when it is also the writer.
func (c RWLockReadAdopt) Do(ctx context.Context, by Sender) (Number, error) {
	keys := []any{c.Main, c.Channel, c.MemoryKey, c.own().ClaimKey, c.SharedCounts}
	args := []any{c.NewOwner, by.millis(c.TTL), by.runner.publish.Load(), c.OldOwner}
	return readNumber(by.send(ctx, rwlockReadAdopt, keys, 5, args, 4))
}

// RWLockReadCheck is a call of rwlock/read_check: ask whether a reader is alive.
type RWLockReadCheck struct {
	// Main
	*Keys

	// of the reader's first hold. The script derives this name itself; it is in KEYS so that Redis
	// answers TRYAGAIN while the slot moves, and the reader does not look dead
	HoldKey any
	// id
	Owner string
}

// Do runs the script. Redis returns 1 or 0.
func (c RWLockReadCheck) Do(ctx context.Context, by Sender) (Number, error) {
	keys := []any{c.Main, c.HoldKey}
	args := []any{c.Owner}
	return readNumber(by.send(ctx, rwlockReadCheck, keys, 2, args, 1))
}

// RWLockReadForce runs rwlock/read_force: free the lock of all its readers. Redis returns the ids
// of the readers, 0 when there were none. A copy of this request gets the same answer.
func RWLockReadForce(ctx context.Context, by Sender, c Change) (IDs, error) {
	return readIDs(c.send(ctx, by, rwlockReadForce, c.own().ClaimKey, c.SharedCounts))
}

// RWLockReadInfo is a call of rwlock/read_info: list the live readers.
type RWLockReadInfo struct {
	// Main
	*Keys
}

// Do runs the script. Redis returns the readers, each with the pttl of its longest hold.
func (c RWLockReadInfo) Do(ctx context.Context, by Sender) (Holders, error) {
	keys := []any{c.Main}
	var args []any
	got, _, err := readHolders(by.send(ctx, rwlockReadInfo, keys, 1, args, 0))
	return got, err
}

// RWLockReadRelease is a call of rwlock/read_release: release a reader's counts; the last reader
// frees the lock.
type RWLockReadRelease struct {
	// Main; Channel: of releases; ClaimKey: of a waiting writer; SharedCounts; Turns: of clients that
	// wait, see rwlock/turns
	*Keys

	// of this request: 2 released, 3 nothing to release
	MemoryKey any
	// id
	Owner string
	// 0 for a private id when no copy of its acquisition can come
	MemoryTTL time.Duration
	// release one count; else all that are not shared
	IsShared bool
	// with is_shared: release the count of this acquisition; else any count, a shared one if there is
	// one
	OnlyOwn bool
	// whose note is removed; "": none
	Client string
}

// Do runs the script. Redis returns 1 when it was held, 0 when not.
func (c RWLockReadRelease) Do(ctx context.Context, by Sender) (Released, error) {
	keys := []any{c.Main, c.Channel, c.MemoryKey, c.own().ClaimKey, c.SharedCounts, c.own().Turns}
	args := []any{
		c.Owner,
		by.runner.publish.Load(),
		by.millis(c.MemoryTTL),
		c.IsShared,
		c.OnlyOwn,
		c.Client,
	}
	got, _, err := readReleased(by.send(ctx, rwlockReadRelease, keys, 6, args, 6))
	return got, err
}

// RWLockReadRenew is a call of rwlock/read_renew: extend the leases of many readers, with all
// holds; a longer TTL stays.
//
// The hold key is that of its first hold. The script derives that name itself; it is in KEYS so
// that Redis answers TRYAGAIN while the slot moves, and the reader does not look dead.
type RWLockReadRenew struct {
	// Main
	*Keys

	HoldKey any
	Owner   string
	TTL     time.Duration
}

// Script returns the script. Elements of one script may share a batch.
func (RWLockReadRenew) Script() *Script { return rwlockReadRenew }

// AddTo adds c to a batch. Redis returns 1 for each reader, the pttl of its longest hold if that is
// longer, or 0 when it is dead or the lock's key has another type; the time if one is longer.
func (c RWLockReadRenew) AddTo(by *Batch) {
	by.begin(rwlockReadRenew)
	by.keys = append(by.keys, c.Main, c.HoldKey)
	by.args = append(by.args, c.Owner, by.millis(c.TTL))
}

// RWLockReadRenewShared is a call of rwlock/read_renew_shared: extend the leases of many readers,
// each for an owner's acquisition.
//
// The hold key is that of its first hold (see rwlock/read_renew).
//
// The memory key is that of the acquisition. A ttl of 0 extends nothing.
type RWLockReadRenewShared struct {
	// Main; SharedCounts
	*Keys

	HoldKey   any
	Owner     string
	TTL       time.Duration
	MemoryKey string
}

// Script returns the script. Elements of one script may share a batch.
func (RWLockReadRenewShared) Script() *Script { return rwlockReadRenewShared }

// AddTo adds c to a batch. Redis returns 1 for each acquisition, the pttl of its reader's longest
// hold if that is longer, or 0 when its reader is dead, it has no count any more or the lock's key
// has another type; the time if one is longer.
func (c RWLockReadRenewShared) AddTo(by *Batch) {
	by.begin(rwlockReadRenewShared)
	by.keys = append(by.keys, c.Main, c.HoldKey, c.SharedCounts)
	by.args = append(by.args, c.Owner, by.millis(c.TTL), c.MemoryKey)
}

// RWLockReadSetCount is a call of rwlock/read_set_count: set the count of a reader's private holds,
// which nest.
type RWLockReadSetCount struct {
	// Main; SharedCounts
	*Keys

	// of this count that was executed: a late copy of an earlier one does nothing
	LatestChange any
	// optional: of this owner's release, for a wanted count of 1; exists if a late copy must not count
	MemoryKey any
	// id
	Owner string
	// count, at least 1
	WantedPrivate int64
	// of an additional hold; 0 after a release
	TTL time.Duration
	// after a release: what the other holds need; -1 to keep the longest lease
	NeededMs int64
	// of this change
	Change    int64
	MemoryTTL time.Duration
}

// Do runs the script. Redis returns 1, or 0 when the reader is dead, or has no private count.
func (c RWLockReadSetCount) Do(ctx context.Context, by Sender) (Number, error) {
	keys := []any{c.Main, c.SharedCounts, c.LatestChange, c.MemoryKey}
	args := []any{
		c.Owner,
		c.WantedPrivate,
		by.millis(c.TTL),
		c.NeededMs,
		c.Change,
		by.millis(c.MemoryTTL),
	}
	return readNumber(by.send(ctx, rwlockReadSetCount, keys, 3, args, 6))
}

// RWLockReadShorten is a call of rwlock/read_shorten: shorten the leases of a reader, which needs
// them for ttl_ms only.
type RWLockReadShorten struct {
	// Main; Channel: of releases; SharedCounts
	*Keys

	// of the acquisition; of its release: see lock/shorten
	MemoryKey any
	// of the reader's first hold, see rwlock/read_check
	HoldKey any
	// id
	Owner string
	// others may have counts of the id
	IsShared bool
	TTL      time.Duration
	// 0 when no copy of the acquisition can come, or with seen_at
	MemoryTTL time.Duration
	// optional: that belong to the owner
	Counts int64
	// optional: when a renewal found the longer leases, by the server's clock, ms
	SeenAt int64
}

// Do runs the script. Redis returns 1 if the leases end in time now, 2 if they were left as they
// are, 0 if it does not read.
func (c RWLockReadShorten) Do(ctx context.Context, by Sender) (Number, error) {
	keys := []any{c.Main, c.Channel, c.MemoryKey, c.HoldKey, c.SharedCounts}
	args := []any{
		c.Owner,
		by.runner.publish.Load(),
		c.IsShared,
		by.millis(c.TTL),
		by.millis(c.MemoryTTL),
		c.Counts,
		c.SeenAt,
	}
	return readNumber(by.send(ctx, rwlockReadShorten, keys, 5, args, 5))
}

// RWLockWriteAcquire is a call of rwlock/write_acquire: acquire the lock for writing, or claim it
// while there are readers.
type RWLockWriteAcquire struct {
	// Main; Channel: of releases; ClaimKey: of a waiting writer; its value is the memory key of the
	// writer's request, or see rwlock/turns; SharedCounts; Turns: of clients that wait, see
	// rwlock/turns
	*Keys

	// of this request; exists if a late copy must not acquire
	MemoryKey any
	// optional: of clients that poll, if this one does
	Mark any
	// id
	Owner string
	TTL   time.Duration
	// others may share the id; else it belongs to this acquisition alone
	IsShared bool
	// refuse a second count
	RefuseSecond bool
	// 0 to claim nothing
	ClaimTTL time.Duration
	// in a hold with the same id, which must still be the writer
	IsNested bool
	// an id that is new after each restart
	Client string
	// the client waits for messages
	Waits bool
	// optional
	MarkTTL time.Duration
}

// RWLockWriteAcquireReply is the reply to RWLockWriteAcquire.
type RWLockWriteAcquireReply struct {
	Acquired

	Claimed bool
}

// Do runs the script. Redis returns 0 when acquired; {pttl, holder} when somebody else holds the
// lock, with a third element when claimed; "over" when this acquisition has ended; "again" when a
// second count is refused, or its own id is a reader; "lost" when the outer hold is gone.
func (c RWLockWriteAcquire) Do(ctx context.Context, by Sender) (RWLockWriteAcquireReply, error) {
	keys := []any{
		c.Main,
		c.Channel,
		c.MemoryKey,
		c.own().ClaimKey,
		c.SharedCounts,
		c.own().Turns,
		c.Mark,
	}
	args := []any{
		c.Owner,
		by.millis(c.TTL),
		by.runner.publish.Load(),
		c.IsShared,
		c.RefuseSecond,
		by.millis(c.ClaimTTL),
		c.IsNested,
		c.Client,
		c.Waits,
		by.millis(c.MarkTTL),
	}
	got, rest, err := readAcquired(by.send(ctx, rwlockWriteAcquire, keys, 6, args, 9))
	reply := RWLockWriteAcquireReply{Acquired: got}
	if err != nil || len(rest.rest) == 0 {
		return reply, err
	}
	reply.Claimed = rest.flag()
	return reply, rest.err
}

// RWLockWriteAdopt is a call of rwlock/write_adopt: replace a writer's owner id by a new one, which
// takes over all its counts.
type RWLockWriteAdopt struct {
	// Main; Channel: of releases; ClaimKey: of a waiting writer; SharedCounts
	*Keys

	// of this request: 1 acquired, 2 released, 3 must not acquire
	MemoryKey any
	// id
	NewOwner string
	TTL      time.Duration
	// the writer's id
	OldOwner string
}

// Do runs the script. Redis returns how many counts were taken over, or 0 when that writer has
// none.
func (c RWLockWriteAdopt) Do(ctx context.Context, by Sender) (Number, error) {
	keys := []any{c.Main, c.Channel, c.MemoryKey, c.own().ClaimKey, c.SharedCounts}
	args := []any{c.NewOwner, by.millis(c.TTL), by.runner.publish.Load(), c.OldOwner}
	return readNumber(by.send(ctx, rwlockWriteAdopt, keys, 5, args, 4))
}

// RWLockWriteForce runs rwlock/write_force: free the lock of its writer. The writer's read holds
// stay. Redis returns {the writer's id}, 0 when there was none. A copy of this request gets the
// same answer.
func RWLockWriteForce(ctx context.Context, by Sender, c Change) (IDs, error) {
	return readIDs(c.send(ctx, by, rwlockWriteForce, c.own().ClaimKey, c.SharedCounts))
}

// RWLockWriteInfo is a call of rwlock/write_info: read who is the writer.
type RWLockWriteInfo struct {
	// Main
	*Keys
}

// Do runs the script. Redis returns the writer, if there is one.
func (c RWLockWriteInfo) Do(ctx context.Context, by Sender) (Holders, error) {
	keys := []any{c.Main}
	var args []any
	got, _, err := readHolders(by.send(ctx, rwlockWriteInfo, keys, 1, args, 0))
	return got, err
}

// RWLockWriteRelease is a call of rwlock/write_release: release a writer's counts and its claim, or
// hand the lock off.
type RWLockWriteRelease struct {
	// Main; Channel: of releases; ClaimKey: of a waiting writer; its value is the memory key of the
	// writer's request, or see rwlock/turns; SharedCounts; Turns: of clients that wait, see
	// rwlock/turns
	*Keys

	// of this request: 2 released, 3 nothing to release
	MemoryKey any
	// optional: memory of the successor's request, if there is a successor; without one, the mark of
	// clients that poll, if the client asks for it
	SuccessorMemory any
	// id
	Owner string
	// 0 for a private id when no copy of its acquisition can come
	MemoryTTL time.Duration
	// release one count; else all that are not shared
	IsShared bool
	// with is_shared: release the count of this acquisition; else any count, a shared one if there is
	// one
	OnlyOwn bool
	// if the hash has none
	DefaultTTL time.Duration
	// whose note and turn end; "": none
	Client string
	// optional: its owner id, which belongs to one acquisition alone; missing: no successor
	Successor string
	// optional
	SuccessorTTL time.Duration
}

// Do runs the script. Redis returns 0 when it was not held; {0} when the successor has the lock
// now; else 1 and how many received the release message, as {that number, "polled"} if clients
// poll.
func (c RWLockWriteRelease) Do(ctx context.Context, by Sender) (Released, error) {
	keys := []any{
		c.Main,
		c.Channel,
		c.MemoryKey,
		c.own().ClaimKey,
		c.SharedCounts,
		c.own().Turns,
		c.SuccessorMemory,
	}
	args := []any{
		c.Owner,
		by.runner.publish.Load(),
		by.millis(c.MemoryTTL),
		c.IsShared,
		c.OnlyOwn,
		by.millis(c.DefaultTTL),
		c.Client,
		c.Successor,
		by.millis(c.SuccessorTTL),
	}
	got, _, err := readReleased(by.send(ctx, rwlockWriteRelease, keys, 6, args, 7))
	return got, err
}

// RWLockWriteShorten is a call of rwlock/write_shorten: shorten the lease of a writer, which needs
// it for ttl_ms only.
type RWLockWriteShorten struct {
	// Main; Channel: of releases; SharedCounts
	*Keys

	// of the acquisition; of its release: see lock/shorten
	MemoryKey any
	// of the owner
	Field string
	// others may have counts of the id
	IsShared bool
	TTL      time.Duration
	// 0 when no copy of the acquisition can come, or with seen_at
	MemoryTTL time.Duration
	// optional: that belong to the owner
	Counts int64
	// optional: when a renewal found the longer TTL, by the server's clock, ms
	SeenAt int64
}

// Do runs the script. Redis returns 1 if the lease ends in time now, 2 if it was left as it is, 0
// if it was not held.
func (c RWLockWriteShorten) Do(ctx context.Context, by Sender) (Number, error) {
	keys := []any{c.Main, c.Channel, c.MemoryKey, c.SharedCounts}
	args := []any{
		c.Field,
		by.runner.publish.Load(),
		c.IsShared,
		by.millis(c.TTL),
		by.millis(c.MemoryTTL),
		c.Counts,
		c.SeenAt,
	}
	return readNumber(by.send(ctx, rwlockWriteShorten, keys, 4, args, 5))
}

// SemaphoreAcquire is a call of semaphore/acquire: acquire permits, all or none.
type SemaphoreAcquire struct {
	// Main: permits left; Channel: on which the release will be published; EpochKey: of the semaphore
	*Keys

	// of this acquisition: 1 and the epoch acquired, 2 released, 3 must not acquire
	MemoryKey any
	// optional: of clients that poll, if this one does
	Mark      any
	MemoryTTL time.Duration
	// permits, at least 1
	Wanted int64
	// optional
	MarkTTL time.Duration
}

// Do runs the script. Redis returns {1, permits left, epoch} when acquired; {0, permits left} when
// there are too few; {0} when no number is set; "over" when this acquisition has ended.
func (c SemaphoreAcquire) Do(ctx context.Context, by Sender) (Acquired, error) {
	keys := []any{c.Main, c.Channel, c.MemoryKey, c.own().EpochKey, c.Mark}
	args := []any{by.runner.publish.Load(), by.millis(c.MemoryTTL), c.Wanted, by.millis(c.MarkTTL)}
	return readPermits(by.send(ctx, semaphoreAcquire, keys, 4, args, 3))
}

// SemaphoreAdd runs semaphore/add: add permits, or take some away; a TTL stays. Redis returns 1.
func SemaphoreAdd(ctx context.Context, by Sender, c Change) (Number, error) {
	return readNumber(c.send(ctx, by, semaphoreAdd, c.own().EpochKey))
}

// SemaphoreDelete runs semaphore/delete: delete the semaphore. Redis returns 1 when there was one,
// 0 when not.
func SemaphoreDelete(ctx context.Context, by Sender, c Change) (Number, error) {
	return readNumber(c.send(ctx, by, semaphoreDelete, c.own().EpochKey))
}

// SemaphoreDrain runs semaphore/drain: take all permits that are left; a TTL stays. Redis returns
// how many permits were taken; below 0 when so many were missing.
func SemaphoreDrain(ctx context.Context, by Sender, c Change) (Number, error) {
	return readNumber(c.send(ctx, by, semaphoreDrain))
}

// SemaphoreInfo is a call of semaphore/info: read how many permits are left.
type SemaphoreInfo struct {
	// Main: permits left; Channel: no key has its name
	*Keys
}

// Do runs the script. Redis returns how many permits are left, 0 when there is no semaphore.
func (c SemaphoreInfo) Do(ctx context.Context, by Sender) (Number, error) {
	keys := []any{c.Main, c.Channel}
	var args []any
	return readNumber(by.send(ctx, semaphoreInfo, keys, 2, args, 0))
}

// SemaphoreInit runs semaphore/init: set the number of permits, unless it is set. Redis returns 1
// when set, 0 when it was set before.
func SemaphoreInit(ctx context.Context, by Sender, c Change) (Number, error) {
	return readNumber(c.send(ctx, by, semaphoreInit, c.own().EpochKey))
}

// SemaphoreList is a call of semaphore/list: read a number, and whether it counts permits with
// leases.
type SemaphoreList struct {
	// Main; Leases: optional: missing if they are in another cluster slot
	*Keys
}

// SemaphoreListReply is the reply to SemaphoreList.
type SemaphoreListReply struct {
	Reply

	Kind   string
	PTTL   int64
	Number string
}

// Do runs the script. Redis returns the number as text; an empty list if there is no whole number.
// The kind is "permits" if there are leases, else "integer": the key of a semaphore or a latch
// looks like any other number.
func (c SemaphoreList) Do(ctx context.Context, by Sender) (SemaphoreListReply, error) {
	keys := []any{c.Main, c.own().Leases}
	var args []any
	got, rest, err := readList(by.send(ctx, semaphoreList, keys, 1, args, 0))
	reply := SemaphoreListReply{Reply: got}
	if err != nil || !rest.more() {
		return reply, err
	}
	reply.Kind = rest.text()
	reply.PTTL = rest.number()
	reply.Number = rest.text()
	return reply, rest.err
}

// SemaphoreRelease is a call of semaphore/release: release the permits of one acquisition, once, or
// hand them off.
type SemaphoreRelease struct {
	// Main: permits left; Channel; EpochKey: of the semaphore
	*Keys

	// of the acquisition: 1 and the epoch acquired, 2 released, 3 must not acquire
	MemoryKey any
	// optional: memory of the successor's acquisition, if there is one; without one, the mark of
	// clients that poll, if the client asks for it
	SuccessorMemory any
	MemoryTTL       time.Duration
	Permits         int64
	// release only if the memory says that the acquisition acquired
	OnlyIfAcquired bool
	// in which it acquired, where the memory does not say that
	KnownEpoch int64
	// a copy of the acquisition may come, or the memory has ended. Else a copy of this request finds no
	// memory, and its answer is 0
	RemembersRelease bool
	// optional: missing: no successor
	SuccessorPermits int64
	// optional
	SuccessorMemoryTTL time.Duration
}

// SemaphoreReleaseReply is the reply to SemaphoreRelease.
type SemaphoreReleaseReply struct {
	Released

	Epoch int64
}

// Do runs the script. Redis returns 0 when there was nothing to release; -1 when the semaphore is
// gone; {permits left, epoch} when the successor has its permits now; else 1 and how many received
// the release message, as {that number, "polled"} if clients poll.
func (c SemaphoreRelease) Do(ctx context.Context, by Sender) (SemaphoreReleaseReply, error) {
	keys := []any{c.Main, c.Channel, c.MemoryKey, c.own().EpochKey, c.SuccessorMemory}
	args := []any{
		by.runner.publish.Load(),
		by.millis(c.MemoryTTL),
		c.Permits,
		c.OnlyIfAcquired,
		c.KnownEpoch,
		c.RemembersRelease,
		c.SuccessorPermits,
		by.millis(c.SuccessorMemoryTTL),
	}
	got, rest, err := readReleased(by.send(ctx, semaphoreRelease, keys, 4, args, 6))
	reply := SemaphoreReleaseReply{Released: got}
	if err != nil || !got.HandedOff {
		return reply, err
	}
	reply.Epoch = rest.number()
	return reply, rest.err
}
