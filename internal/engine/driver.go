package engine

import (
	"context"
	"math"
	"sync/atomic"
	"time"
)

// The contract between the engine and a kind of primitive: what its drivers must do, what they may
// do beyond that (Traits), and the values that pass between them. Package primitives has the
// drivers. A kind implements as many of the interfaces as its holds need, and usually by one type:
//
//	Driver       all kinds
//	HoldDriver   kinds whose holds are Ownerships: all but latches, which have none, and joint locks
//	LeaseDriver  kinds whose ownerships have leases: all but plain semaphores
//	LineDriver   kinds whose waiting clients stand in line on the server
//
// The methods of all of them are called from many goroutines, and wait for the server until ctx
// ends.
//
// A command may be executed more than once with equal arguments, and a copy may arrive after its
// caller has returned. The driver must make all copies together have the effect of one. An error
// that package failure reports as in doubt means that the command may have been executed, or may
// still be.

// Driver is one kind of primitive: its keys, its scripts, and the meaning of their replies. A
// handle has one driver.
type Driver interface {
	// TryAcquire tries once to acquire for q. The reply to an earlier attempt may have been lost:
	// if q has been granted before, it is granted again.
	TryAcquire(ctx context.Context, q *Request) (Result, error)
	// Rollback removes everything that TryAcquire took for q. After it, a late copy of an attempt
	// takes nothing.
	Rollback(ctx context.Context, q *Request) error
	// Subscribe listens for messages that give waiters a reason to try again. It calls hear with
	// Heard for each, and with Missed when some may have been lost, from another goroutine; hear
	// does not block. The engine calls Subscribe with waitQueues.mu held, and hear takes that
	// mutex.
	Subscribe(hear func(Message)) []Subscription
}

// HoldDriver is what a driver does with the ownership that a grant to a request has made.
type HoldDriver interface {
	// Release lowers the count of o to remaining. With 0 it frees the lock. If next has a
	// successor, which only kinds with Traits.HandsOff get, Release makes it the holder in the same
	// step, so that no other client can take the lock in between. The engine calls it with o's wire
	// lock held.
	Release(ctx context.Context, o *Ownership, remaining int, next Next) (Released, error)
	// Overwritten reports whether the error of a command means that the main key holds other data
	// by now, and that the owner has lost the lock. Overwritten may ask the server.
	Overwritten(ctx context.Context, err error) bool
}

// LeaseDriver is what a driver does with the lease of an ownership.
type LeaseDriver interface {
	// SetCount, which only kinds with Traits.Nests need, sets the count of o to n > 0, and keeps o
	// for at least ttl after sent. The engine calls it with o's wire lock held.
	SetCount(ctx context.Context, o *Ownership, n int, ttl time.Duration) (sent time.Time, lost bool, err error)
	// Extend keeps o for at least d after sent. It never shortens the lease.
	Extend(ctx context.Context, o *Ownership, d time.Duration) (sent time.Time, lost bool, err error)
	// Check asks the server whether o still holds the lock. It changes nothing.
	Check(ctx context.Context, o *Ownership) (lost bool, err error)
	// ReleaseAfter ends o, which stays taken for the rest of its minimum hold: see minhold.go. It
	// shortens the lease to rest, unless others need it too, and tells the waiters. The engine
	// calls it with o's wire lock held.
	ReleaseAfter(ctx context.Context, o *Ownership, rest time.Duration) (Released, error)
}

// LineDriver is a driver whose clients stand in line on the server while they wait: see line.go of
// package waitq. A Driver that does not implement it has no line.
type LineDriver interface {
	// SubscribePlace listens for the messages to one place. It returns nil if the server cannot
	// tell who listens: then this client does not stand in line. The engine calls it with
	// waitQueues.mu held, and hear takes that mutex.
	SubscribePlace(number uint64, hear func(Message)) Subscription
	// GiveUpPlace removes a place from the line. If the lock is free, it wakes the next client in
	// line.
	GiveUpPlace(ctx context.Context, number uint64) error
}

// Next says what follows a release. With the zero value, the lock is free for whoever comes first.
type Next struct {
	Successor *Owner // the next holder; nil if the lock is freed
	// Place is given up if there is a successor, which is then the client's last waiter. Otherwise
	// it goes to the end of the line.
	Place Place
	// AskPolls asks for Released.Polled.
	AskPolls bool
}

// Traits is what a kind can do beyond its driver's methods. The zero value is a kind whose holds
// have no lease, do not nest, and wait in a local queue.
type Traits struct {
	// Leased is set if holds last as long as a lease, which may be renewed and lost. It is their
	// own lease, or the leases of the members of a joint lock.
	Leased bool
	// Remembered is how long the server remembers the permits of an acquisition without a lease. A
	// release or a rollback may be repeated that long.
	Remembered time.Duration

	// Nests is set if an acquisition nests under a hold of the same resource that its context
	// carries. Only one does so at a time, unless ManyHolders is set.
	Nests bool
	// Outer returns the hold in ctx to nest under, or nil, for a kind that may nest under other
	// holds too. An error forbids the acquisition. The hold may be a lost one: then the acquisition
	// fails with ErrLost. If Outer is nil, only holds of the same resource are found.
	Outer func(ctx context.Context) (*Hold, error)

	// ManyHolders is set if several requests may hold at once. A message that comes during a
	// successful try may then announce room for another.
	ManyHolders bool
	// AcquireBatch is TryAcquire for q and, if that is granted, for others too. granted[i] reports
	// whether others[i] was granted. granted is nil if q was refused, and the others were not
	// tried.
	AcquireBatch func(ctx context.Context, q *Request, others []*Request) (res Result, granted []bool, err error)

	// HandsOff is set if Release can make a local waiter the next holder.
	HandsOff bool
	// Fenced is set if each outermost hold has a fencing token, and each turn one of its own.
	Fenced bool
	// OtherSide is the kind of the other side of a read-write lock, or "" for other kinds. Requests
	// for both wait for the same lock, and local waiters for the side with one holder go first.
	OtherSide string

	// NewQueue returns the queue in which q waits. If the func or the queue is nil, q waits in the
	// local wait queue of its name.
	NewQueue func(ctx context.Context, q *Request) (Queue, error)
	// NameOwner gives the owner of a new acquisition another id than the usual one. It may be nil.
	NameOwner func(o *Owner)
}

// hasTurnsOfClients reports whether only one of the clients that receive a release message can
// acquire. So a client that has handed off often lets the others go first. The release of a side of
// a read-write lock may be for all waiting readers, and the server decides whose turn it is.
func (t *Traits) hasTurnsOfClients() bool { return t.HandsOff && t.OtherSide == "" }

// HasTurnsOfUsers reports whether local users may take turns on one hold, without commands: see
// tenure.go.
func (t *Traits) HasTurnsOfUsers() bool { return t.HandsOff && !t.ManyHolders }

// isPool reports whether several holders share the resource that requests wait for. A release by
// one of them says nothing about the others.
func (t *Traits) isPool() bool { return t.ManyHolders && t.OtherSide == "" }

// yieldsToOtherSide reports whether local waiters for the other side go first.
func (t *Traits) yieldsToOtherSide() bool { return t.OtherSide != "" && t.ManyHolders }

// Released is the result of [HoldDriver].Release and [LeaseDriver].ReleaseAfter.
type Released struct {
	Successor Result // to the successor
	Receivers int    // without a successor: how many clients received a message of the release
	Polled    bool   // without a successor: other requests poll for the lock
	Lost      bool   // the server did not know the owner: nothing was released
	Stays     bool   // of ReleaseAfter: others need the lease too, so it was not shortened
	// InDoubt is set if an earlier attempt of the same call has an unknown outcome that the server
	// does not remember. If Lost is set too, that attempt may have freed the lock or handed it off.
	InDoubt bool
}

// Subscription is a driver's subscription to messages. The wait queue that made it owns it.
type Subscription interface {
	Confirmed() <-chan struct{} // closed when no later message can be missed, or when it was refused
	Err() error                 // why it was refused; nil if it was not
	Close()                     // waits until a call of the listener under way has returned
	CloseSoon()                 // the same, but the server may go on sending messages for a moment
}

// Owner is one acquisition as the server knows it. All copies of all its commands carry the same id
// and number. That is how the server recognizes a copy.
type Owner struct {
	ID      string // on the wire, without the suffixes of a kind
	Number  uint64 // the server remembers a private acquisition by it
	Shared  bool   // others may use the same id, so the server counts
	InDoubt bool   // an attempt to acquire has an unknown outcome: a copy may still arrive
	Tokens  int16  // how many fencing tokens to reserve; 0 means one
	Permits int32
	TTL     time.Duration
}

// SetID gives the owner another id.
func (o *Owner) SetID(id string, shared bool) { o.ID, o.Shared = id, shared }

// Terms are the options of an acquisition and of its hold. They are read-only.
type Terms struct {
	Wait          time.Duration // how long it may wait, or NoWait, or Forever
	TTL           time.Duration // of the lease, or of each renewal
	MaxHold       time.Duration // of a renewed hold; 0 if there is no limit
	Renew         bool
	NonReentrant  bool
	Permits       int
	Owner         string        // the owner id; "" for a new one
	PollMin       time.Duration // 0 to wait for messages instead
	PollMax       time.Duration
	WaiterTimeout time.Duration // of a fair waiter
	Cohort        time.Duration // how long local waiters pass the lock on without a command; 0 if they do not
	Linger        time.Duration // how long the lock stays with the client after its last release; 0 if it does not
	MinHold       time.Duration // how long the lock stays taken, however soon it is released

	// HoldContext is the context of the hold. If it is nil, the hold has that of the acquisition.
	HoldContext context.Context //nolint:containedctx // it is an option
	// ForMember returns the terms for acquiring the i-th member of a joint lock.
	ForMember func(i int) *Terms
}

// holdContext returns the context for the hold of an acquisition whose own context is callerCtx.
func (t *Terms) holdContext(callerCtx context.Context) context.Context {
	if t.HoldContext != nil {
		return t.HoldContext
	}
	return callerCtx
}

// FirstTTL returns the lease that an acquisition needs: at most the maximum hold time.
func (t *Terms) FirstTTL() time.Duration {
	if t.Renew && t.MaxHold > 0 {
		return min(t.TTL, t.MaxHold)
	}
	return t.TTL
}

// WireTTL returns the lease that an acquisition asks the server for. A crash must not end the
// minimum hold, so the lease is no shorter than that. FirstTTL and Limit still decide how long the
// hold is trusted, renewed and valid.
func (t *Terms) WireTTL() time.Duration { return max(t.FirstTTL(), t.MinHold) }

// Limit returns how long the hold may last, however often it is renewed. 0 means that there is no
// limit.
func (t *Terms) Limit() time.Duration {
	if !t.Renew {
		return t.TTL
	}
	return t.MaxHold
}

// Request is an acquisition under way, the same through all its attempts and its rollback. One
// goroutine uses it at a time: its caller's, and then the goroutine that rolls it back. While it
// waits, a hand-off or a batch of another request may read its owner.
type Request struct {
	Owner
	Terms        *Terms
	NonReentrant bool // a second count of the same id is a deadlock
	MayQueue     bool // it waits if it is refused
	UnderSameID  bool // made under a hold of the same id: if the server does not know that id, the hold is lost
	// MustRollback is set if an attempt has left something on the server, or may have, and there is
	// no hold for it. That may be the lock itself, which would stay taken until its lease ends:
	// then InDoubt is set too, unless the acquisition is about to fail.
	MustRollback bool
	// WaitRecorded is set if the server has noted that its client waits. If the request gives up,
	// it must be rolled back too: otherwise others would wait for it for a moment.
	WaitRecorded bool
	// OfMajority is set for a member of a lock that needs only a majority of its members.
	OfMajority bool
	// Reserves is set if such a lock waits, and tries the member again. A refused attempt then
	// leaves in Redis what the attempt of a waiting request leaves. Reserved is set once it has:
	// whoever made the request must roll it back in the end.
	Reserves, Reserved bool
	Place              Place // the place in line, during an attempt of a waiter
	State              any   // the driver's own
	Wait               Wait
	Group              Group // whose member this acquires; nil for a user's acquisition

	// The next four share a word: there may be thousands of waiters.

	rollbackState atomic.Int32 // a RollbackState
	// membersNote is set for a joint lock whose members note their answers in contact.
	membersNote bool
	// isTenure is set if users take turns on its hold. Group is not a joint lock then: see tenure.go.
	isTenure bool
	wanted   bool // another client has asked for the lock that it may have acquired; guarded by waitQueues.mu

	parent  *Hold    // the hold that it nests in, and whose gate it occupies; nil if none
	contact *Contact // nil if the server has granted the first attempt, or was not asked
	// members are the contacts of the members that a joint lock waits for: see WaitForMember.
	members map[*Resource]*Contact
	waiter  *Waiter // of a tenure's request, from when it joins its queue; else nil
	// memory is where its hold is made; nil to allocate it.
	memory *Hold
	min    *minHold // the minimum hold of a nested request's outer hold; nil if there is none
}

// polls reports whether q waits by trying again, without messages.
func (q *Request) polls() bool { return q.Terms.PollMin > 0 }

// Result is the reply to an attempt.
type Result struct {
	Granted       bool
	InDoubt       bool  // an earlier attempt of the same call has an unknown outcome
	NeedNotListen bool  // when refused: the client will be woken at its place, so it need not listen otherwise
	Tokens        int16 // when granted: how many are reserved; there may be fewer than it asked for
	// Token, when granted, is the fencing token of a fenced lock, the first one reserved. Of
	// another kind it is the driver's own, which the ownership keeps for its release.
	Token int64
	Sent  time.Time // before the answered attempt was sent: the lease counts from here
	// Lease, if not 0, is the length of the lease: shorter than the request asked for.
	Lease time.Duration
	Free  int // how many permits are left for others

	// RetryAfter, when refused, is how soon the holder's lease ends. It is [Endless] if the lease
	// never ends, and another negative time if that is unknown.
	RetryAfter time.Duration
	Holder     string // when refused: the id of the holder, if there is one
	// BusyMember, when refused, is the member of a requested joint lock that the holder has.
	BusyMember *Resource
	Why        error // when refused: a failure on the way, or the reason, for the acquisition's error
	Since      int64 // when refused: the server's time when the client took its place in line; 0 if unknown
	// Queued, when refused, is what the reply says of the request's place in a queue on the server.
	// Only the kind's own [Queue] reads it. It is nil for kinds without such a queue.
	Queued any

	Holding Holding // when granted: the Holding, if it is no new [Ownership] of the request; else nil

	streak streak // granted by a hand-off: the series of hand-offs that it continues
}

// Endless is the rest of a lease that never ends, such as that of a lock without a TTL.
const Endless = time.Duration(math.MinInt64)

// Resource is one name of one kind on one client. A handle of package primitives has one. It is
// immutable, so many goroutines may use it.
type Resource struct {
	Core *Core
	Kind string
	Name string // the user's
	// Identity, if not nil, tells joint locks apart. Their names do not: members of equal names may
	// be on different clients.
	Identity *string
	Driver   Driver
	Holds    HoldDriver  // nil if no hold is an Ownership
	Leases   LeaseDriver // nil if no Ownership has a lease
	Traits   *Traits     // usually shared by all resources of a kind
	// RenewGroup groups leases: one command renews the leases of equal groups. See
	// [watchdog.Schedule].
	RenewGroup any
}

// Is reports whether r and other are the same name of the same kind on the same client, or joint
// locks of the same members. Two handles may have equal resources, and find each other's holds in a
// context.
func (r *Resource) Is(other *Resource) bool {
	if r.Kind != other.Kind {
		return false
	}
	if r.Identity != nil { // a joint lock; so is other, which has the same kind
		return *r.Identity == *other.Identity
	}
	return r.Core == other.Core && r.Name == other.Name
}
