package engine

import (
	"context"
	"time"
)

// Driver is one kind of primitive: its keys, its scripts, and the meaning of their replies. A handle
// has one driver. Methods are called from many goroutines.
//
// A command may be executed more than once with equal arguments, and a copy may arrive after its
// caller has gone. Drivers see to it that all copies together have the effect of one. An error that
// [Config.Classify] reports as in doubt means that the command may have been executed, or may still be.
type Driver interface {
	// TryAcquire tries once to acquire r. The reply of an earlier attempt may have been lost: if r has
	// been granted before, it is granted again.
	TryAcquire(ctx context.Context, r *Request) (Result, error)
	// Rollback makes sure that nothing stays of r, whatever TryAcquire did or may still do for it.
	Rollback(ctx context.Context, r *Request) error
	// Release gives back o until left counts remain; with 0 it frees the lock. lost: o held nothing.
	// The engine calls it with o's wire lock held.
	Release(ctx context.Context, o *Ownership, left int) (lost bool, err error)
	// Subscribe listens for messages that give r a reason to try again. It calls wake for each, from a
	// goroutine that must not block; missed tells that messages may have been lost before.
	Subscribe(r *Request, wake func(missed bool)) []Subscription

	// The engine calls these only if Traits.Leased.

	// SetCount sets how often o is held to n > 0, and keeps it for at least ttl after sent.
	SetCount(ctx context.Context, o *Ownership, n int, ttl time.Duration) (sent time.Time, lost bool, err error)
	// Extend keeps o for at least d after sent. It never shortens the lease.
	Extend(ctx context.Context, o *Ownership, d time.Duration) (sent time.Time, lost bool, err error)
	// Check asks whether o still holds.
	Check(ctx context.Context, o *Ownership) (lost bool, err error)
}

// NoLease is embedded in drivers whose holds have no lease.
type NoLease struct{}

// SetCount implements [Driver].
func (NoLease) SetCount(context.Context, *Ownership, int, time.Duration) (time.Time, bool, error) {
	return time.Time{}, false, ErrUnsupported
}

// Extend implements [Driver].
func (NoLease) Extend(context.Context, *Ownership, time.Duration) (time.Time, bool, error) {
	return time.Time{}, false, ErrUnsupported
}

// Check implements [Driver].
func (NoLease) Check(context.Context, *Ownership) (bool, error) { return false, ErrUnsupported }

// Traits is what a kind can do beyond its driver's methods. The zero value is a kind whose holds have
// no lease, do not nest, and wait in a local queue.
type Traits struct {
	// Leased: holds last as long as a lease, which may be renewed and lost.
	Leased bool
	// RenewGroup: leases of equal groups are renewed by one command. See [watchdog.Terms].
	RenewGroup any
	// Remembered is how long the server remembers what an acquisition without a lease took. A release or
	// a rollback may be repeated that long.
	Remembered time.Duration

	// Outer finds the hold in ctx to nest under; nil if there is none. An error forbids the acquisition.
	// The hold may be a lost one: then the acquisition fails with ErrLost. A nil func: holds do not nest.
	Outer func(ctx context.Context) (*Hold, error)
	// NestsInTurn: at most one hold at a time is nested under a hold.
	NestsInTurn bool

	// ManyHolders: several requests may hold at once. A message that comes during a successful try may
	// announce room for another.
	ManyHolders bool
	// AcquireBatch is TryAcquire for r and, if that is granted, for others too. granted tells which of
	// them have it; nil: none was tried.
	AcquireBatch func(ctx context.Context, r *Request, others []*Request) (res Result, granted []bool, err error)

	// HandOff frees what o holds, or makes successor its holder without freeing it in between.
	// A nil func, or a nil successor: Release frees it.
	HandOff func(ctx context.Context, o *Ownership, successor *Owner) (HandOff, error)
	// ClientsTakeTurns: a release is for one of the clients that were told of it, so a client that has
	// handed off often lets the others go first.
	ClientsTakeTurns bool
	// Cohorts: a hold may be passed on to a local waiter without a command. See cohort.go.
	Cohorts bool
	// Fenced: each outermost hold has a fencing token, and each hold of a cohort one of its own.
	Fenced bool
	// YieldsTo is the kind whose local waiters for the same name go first; "": none.
	YieldsTo string

	// NewQueue returns where r waits. A nil func, or a nil queue: the local wait queue of its name.
	NewQueue func(ctx context.Context, r *Request) (Queue, error)
	// NameOwner gives the owner of a new acquisition another id than the usual one. It may be nil.
	NameOwner func(o *Owner)
}

// HandOff is the result of [Traits.HandOff].
type HandOff struct {
	Granted Result // to the successor
	Heard   int    // without a successor: how many clients received the release message
	Lost    bool   // there was nothing to give back
}

// Subscription is a driver's subscription to messages.
type Subscription interface {
	Confirmed() <-chan struct{} // closed when no later message can be missed, or when it was refused
	Err() error                 // why it was refused; nil if it was not
	Close()                     // returns when the listener is not called any more
}

// Owner is one acquisition as the server knows it.
type Owner struct {
	ID      string // on the wire, without the suffixes of a kind
	Number  uint64 // the server remembers a private acquisition by it
	Shared  bool   // others may use the same id, so the server counts
	InDoubt bool   // an attempt to acquire has an unknown outcome: a copy may still arrive
	Tokens  int32  // how many fencing tokens to reserve; 0 and 1: one
	TTL     time.Duration
	Permits int
}

// Name gives the owner another id.
func (o *Owner) Name(id string, shared bool) { o.ID, o.Shared = id, shared }

// Terms say how an acquisition is made, and how its hold is kept.
type Terms struct {
	Wait          time.Duration // limit of waiting; negative: none
	TTL           time.Duration // of the lease, or of each renewal
	Renew         bool
	MaxHold       time.Duration // of a renewed hold; 0: no limit
	Permits       int
	Owner         string // "": an id of its own
	NonReentrant  bool
	PollMin       time.Duration // 0: wait for messages
	PollMax       time.Duration
	WaiterTimeout time.Duration // of a fair waiter
	Cohort        time.Duration // how long local waiters pass the lock on without a command; 0: they do not

	// ForMember returns the terms for acquiring the i-th member of a joint lock.
	ForMember func(i int) *Terms
}

// FirstTTL is the lease that an acquisition asks for: never beyond the maximum hold time.
func (t *Terms) FirstTTL() time.Duration {
	if t.Renew && t.MaxHold > 0 {
		return min(t.TTL, t.MaxHold)
	}
	return t.TTL
}

// Limit is how long the hold may last however often it is renewed; 0: no limit.
func (t *Terms) Limit() time.Duration {
	if !t.Renew {
		return t.TTL
	}
	return t.MaxHold
}

// Request is an acquisition on its way, the same through all its attempts and its rollback. One
// goroutine uses it at a time; the owner may be read by others while it waits.
type Request struct {
	Owner
	Terms        *Terms
	NonReentrant bool // a second count of the same id is a deadlock
	MayQueue     bool // it waits if it is refused
	Nested       bool // made under a hold of the same id: if the server does not know that id, the hold is lost
	// MustRollback: an attempt may have been executed, or may still be, and nobody holds what it takes.
	MustRollback bool
	State        any // the driver's own

	wait   wait
	passed *Hold     // within a cohort: what another local hold was passed on as; guarded by waitQueues.mu
	group  holdGroup // that this acquires a member for; nil for a user's acquisition
}

// Result is the reply to an attempt.
type Result struct {
	Granted bool
	Sent    time.Time // before the answered attempt was sent: the lease counts from here
	InDoubt bool      // an earlier attempt of the same call has an unknown outcome
	Token   int64     // granted: the fencing token of a fenced lock, the first of those reserved
	// Lease, if not 0, is how long the lease is: less than was asked for.
	Lease time.Duration
	Free  int // how many permits are left for others

	// RetryAfter, when refused, is how soon the holder's lease ends. Negative: unknown.
	RetryAfter time.Duration
	Holder     string // refused: the id that holds, if one does
	Met        error  // refused: what else failed, for the error of an acquisition that gives up

	streak  streak  // granted by a hand-off: the series of hand-offs that it continues
	holding holding // granted: what is held, if it is not one ownership
}

// Resource is one name of one kind on one client. Handles of package primitives are built on it. It is
// immutable.
type Resource struct {
	Core   *Core
	Kind   string
	Name   string // the user's
	Key    *Key   // finds holds of this name in a context
	Driver Driver
	Traits Traits
}

// Key finds a hold in a context.
type Key struct {
	Core *Core
	Kind string
	Name string
}
