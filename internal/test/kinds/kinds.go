// Package kinds is a registry of the kinds of primitives that have holds. Tests that concern
// several kinds take their tables from it, so a new kind is one entry here. A latch has no holds,
// and is not among them.
package kinds

import (
	"context"
	"fmt"
	"testing"

	"github.com/redlatch/redlatch/primitives"
)

// Handle has the methods that the handles of all kinds have in common.
type Handle interface {
	Acquire(ctx context.Context, opts ...primitives.Option) (*primitives.Hold, error)
	TryAcquire(ctx context.Context, opts ...primitives.Option) (*primitives.Hold, error)
	Do(ctx context.Context, f func(context.Context) error, opts ...primitives.Option) error
}

// Trier is a handle that can try to run something: those of all kinds can.
type Trier interface {
	TryDo(ctx context.Context, f func(context.Context) error, opts ...primitives.Option) (ran bool, err error)
}

// Takeable is a handle whose holds another client can take over. All kinds with leases have it.
type Takeable interface {
	Handle
	Adopt(ctx context.Context, id string, opts ...primitives.Option) (*primitives.Hold, error)
	ReleaseID(ctx context.Context, id string) error
}

// Pool is a handle whose permits must be set before they can be acquired: both semaphores.
type Pool interface {
	Handle
	Init(ctx context.Context, n int) (bool, error)
	Add(ctx context.Context, delta int) error
	Delete(ctx context.Context) (bool, error)
	Info(ctx context.Context) (primitives.Info, error)
}

// Kind is one kind of primitive, and what tests must know of it.
type Kind struct {
	// Name is the name that events and [primitives.Info] give the kind.
	Name string
	// open makes a handle. A name may be opened many times; all handles of a name exclude each
	// other.
	open func(c *primitives.Client, name string, opts ...primitives.Option) Handle
	// rival is what the kind excludes; nil: itself.
	rival func(c *primitives.Client, name string, opts ...primitives.Option) Handle
	// members is the number of members, each a lock with a name of its own. 0: it is not a joint
	// lock.
	members int
	// join makes a joint lock.
	join func(members []*primitives.Lock, opts ...primitives.Option) *primitives.Lock

	Pool    bool // it has permits: see [Pool]
	Shared  bool // several may hold it at once, also without a pool
	Leased  bool // a hold ends unless it is renewed
	Cohorts bool // WithCohort and WithLinger have an effect

	// The keys and the channel of a name on the wire. Those of joint locks are their members'.
	stays   string // the key that stays when it is free; %s is the name, "": none
	renewed string // the key that the renewal reads; "": the name
	channel string // what the channel of its wake-ups begins with
}

var all = []Kind{
	{
		Name: "lock", Leased: true, Cohorts: true, channel: "redisson_lock__channel",
		open: func(c *primitives.Client, name string, opts ...primitives.Option) Handle {
			return c.Lock(name, opts...)
		},
	},
	{
		Name: "fair", Leased: true, channel: "redisson_lock__channel",
		open: func(c *primitives.Client, name string, opts ...primitives.Option) Handle {
			return c.FairLock(name, opts...)
		},
	},
	{
		Name: "fenced", Leased: true, Cohorts: true, channel: "redisson_lock__channel",
		stays: "redisson_lock_token:{%s}",
		open: func(c *primitives.Client, name string, opts ...primitives.Option) Handle {
			return c.FencedLock(name, opts...)
		},
	},
	{Name: "reader", Leased: true, Shared: true, channel: "redisson_rwlock", open: reader, rival: writer},
	{Name: "writer", Leased: true, Cohorts: true, channel: "redisson_rwlock", open: writer},
	{
		Name: "semaphore", Pool: true, channel: "redisson_sc", stays: "%s",
		open: func(c *primitives.Client, name string, opts ...primitives.Option) Handle {
			return c.Semaphore(name, opts...)
		},
	},
	{
		Name: "permits", Pool: true, Leased: true, channel: "redisson_sc", stays: "%s", renewed: "{%s}:timeout",
		open: func(c *primitives.Client, name string, opts ...primitives.Option) Handle {
			return c.PermitExpirableSemaphore(name, opts...)
		},
	},
	{Name: "multi", Leased: true, members: 2, join: primitives.NewMultiLock},
	{Name: "red", Leased: true, members: 3, join: primitives.NewRedLock},
}

func reader(c *primitives.Client, name string, opts ...primitives.Option) Handle {
	return c.RWLock(name, opts...).Reader()
}

func writer(c *primitives.Client, name string, opts ...primitives.Option) Handle {
	return c.RWLock(name, opts...).Writer()
}

// Select returns the kinds for which all conditions are true, in the same order each time.
func Select(conditions ...func(Kind) bool) (list []Kind) {
	for _, k := range all {
		selected := true
		for _, is := range conditions {
			selected = selected && is(k)
		}
		if selected {
			list = append(list, k)
		}
	}
	return list
}

// All returns all kinds.
func All() []Kind { return Select() }

// Named returns the kinds that have one name, with keys of their own: all but joint locks.
func Named() []Kind { return Select(Kind.named) }

// Locks returns the kinds of locks that have one name.
func Locks() []Kind { return Select(Kind.named, Kind.lock) }

// Mutexes returns the kinds with one name that one caller may hold at a time: pools have one permit
// for that.
func Mutexes() []Kind { return Select(Kind.named, func(k Kind) bool { return !k.Shared }) }

// Joints returns the kinds of locks that have members.
func Joints() []Kind { return Select(Kind.Joint) }

// Pools returns both semaphores.
func Pools() []Kind { return Select(func(k Kind) bool { return k.Pool }) }

// Leased returns the kinds with one name whose holds end unless they are renewed.
func Leased() []Kind { return Select(Kind.named, func(k Kind) bool { return k.Leased }) }

// Cohorts returns the kinds of locks that WithCohort and WithLinger concern.
func Cohorts() []Kind { return Select(func(k Kind) bool { return k.Cohorts }) }

// Of returns the kind of that name.
func Of(name string) Kind {
	for _, k := range all {
		if k.Name == name {
			return k
		}
	}
	panic("no kind " + name)
}

// Joint reports whether it has members.
func (k Kind) Joint() bool { return k.members > 0 }

func (k Kind) named() bool { return !k.Joint() }
func (k Kind) lock() bool  { return !k.Pool }

// Open makes a handle. The permits of a pool must be set: see [Kind.One].
func (k Kind) Open(c *primitives.Client, name string, opts ...primitives.Option) Handle {
	if k.Joint() {
		return k.Over([]*primitives.Client{c}, name, opts...)
	}
	return k.open(c, name, opts...)
}

// Over makes a handle of a joint lock with a member on each client, or all members on one. Of any
// other kind it uses the first client.
func (k Kind) Over(clients []*primitives.Client, name string, opts ...primitives.Option) Handle {
	if !k.Joint() {
		return k.Open(clients[0], name, opts...)
	}
	if len(clients) == 1 {
		return k.join(Members(clients[0], name, k.members), opts...)
	}
	var members []*primitives.Lock
	for i, c := range clients {
		members = append(members, c.Lock(Member(name, i)))
	}
	return k.join(members, opts...)
}

// Lock makes a handle of a kind of lock.
func (k Kind) Lock(c *primitives.Client, name string, opts ...primitives.Option) *primitives.Lock {
	return k.Open(c, name, opts...).(*primitives.Lock)
}

// OpenPool makes a handle of a semaphore.
func (k Kind) OpenPool(c *primitives.Client, name string, opts ...primitives.Option) Pool {
	return k.Open(c, name, opts...).(Pool)
}

// Takeable makes a handle of a kind with leases.
func (k Kind) Takeable(c *primitives.Client, name string, opts ...primitives.Option) Takeable {
	return k.Open(c, name, opts...).(Takeable)
}

// Rival makes a handle of what the kind excludes. For a reader that is the writer, for any other
// kind itself.
func (k Kind) Rival(c *primitives.Client, name string, opts ...primitives.Option) Handle {
	if k.rival != nil {
		return k.rival(c, name, opts...)
	}
	return k.Open(c, name, opts...)
}

// One makes a handle, and gives a pool that has no permits one.
func (k Kind) One(t testing.TB, c *primitives.Client, name string, opts ...primitives.Option) Handle {
	t.Helper()
	return k.Some(t, c, name, 1, opts...)
}

// Some makes a handle, and gives a pool that has no permits n.
func (k Kind) Some(t testing.TB, c *primitives.Client, name string, n int, opts ...primitives.Option) Handle {
	t.Helper()
	h := k.Open(c, name, opts...)
	if pool, ok := h.(Pool); ok {
		if _, err := pool.Init(context.Background(), n); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// Members returns n locks, the members of a joint lock.
func Members(c *primitives.Client, name string, n int) (list []*primitives.Lock) {
	for i := range n {
		list = append(list, c.Lock(Member(name, i)))
	}
	return list
}

// Member returns the name of a member of a joint lock.
func Member(name string, i int) string { return fmt.Sprintf("%s-%d", name, i) }

// MemberNames returns the names of the members of a joint lock that is on one client.
func (k Kind) MemberNames(name string) (list []string) {
	for i := range k.members {
		list = append(list, Member(name, i))
	}
	return list
}

// Stays returns the keys that stay when nobody holds it.
func (k Kind) Stays(name string) []string {
	if k.stays == "" {
		return nil
	}
	return []string{fmt.Sprintf(k.stays, name)}
}

// Renewed returns the key that the renewal reads.
func (k Kind) Renewed(name string) string {
	if k.renewed == "" {
		return name
	}
	return fmt.Sprintf(k.renewed, name)
}

// Channel returns the channel of its wake-ups.
func (k Kind) Channel(name string) string { return k.channel + ":{" + name + "}" }
