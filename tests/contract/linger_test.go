package contract

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// long is longer than any test waits for a lock that lingers.
var long = primitives.WithLinger(time.Minute)

// lingers acquires and releases a lock once, and checks that it lingers.
func lingers(t *testing.T, s *redistest.Server, l *primitives.Lock, opts ...primitives.Option) (id string) {
	t.Helper()
	hold := fixture.Acquire(t, t.Context(), l, opts...)
	// A client that does not listen yet frees the lock. Its first release waits for 50 ms only.
	fixture.AwaitWaiter(t, s, "redlatch_holder:{"+strings.ReplaceAll(hold.ID(), "-", "")[:16]+"}")
	fixture.Release(t, hold)
	require.NotEmpty(t, redistest.Keys(t, s, l.Name()), "it was freed")
	return hold.ID()
}

func TestC24LingeringLockSendsNothing(t *testing.T) {
	fixture.EachKind(t, kinds.Cohorts(), func(t *testing.T, s *redistest.Server, kind kinds.Kind) {
		c := fixture.NewClient(t, s.Client(t))
		l := kind.Lock(c, redistest.Name(t), long)
		id := lingers(t, s, l)
		before := redistest.Commands(t, s)
		var last *primitives.Hold
		for range 100 {
			hold := fixture.Acquire(t, t.Context(), l)
			require.Equal(t, id, hold.ID())
			if last != nil {
				require.ErrorIs(t, context.Cause(last.Context()), primitives.ErrReleased)
				if kind.Name == "fenced" {
					require.Equal(t, last.Token()+1, hold.Token())
				}
			}
			require.NoError(t, hold.Context().Err())
			require.False(t, hold.ValidUntil().Before(time.Now()))
			fixture.Release(t, hold)
			last = hold
		}
		sent := redistest.Commands(t, s).Since(before)
		assert.Zero(t, sent["evalsha"]+sent["eval"], "%v", sent)
		_, err := kind.Lock(fixture.NewClient(t, s.Client(t)), l.Name()).TryAcquire(t.Context())
		require.ErrorIs(t, err, primitives.ErrNotAcquired)

		require.NoError(t, c.Close(t.Context()))
		fixture.RequireClean(t, s, l.Name(), "redisson_lock_token:{"+l.Name()+"}")
	})
}

// The key of a lock is deleted while it is held, and its client acquires it again. After both
// releases nothing keeps it from others.
func TestC24LockThatWasLostDoesNotLinger(t *testing.T) {
	fixture.EachKind(t, kinds.Cohorts(), func(t *testing.T, s *redistest.Server, kind kinds.Kind) {
		l := kind.Lock(fixture.NewClient(t, s.Client(t)), redistest.Name(t), long)
		lost := fixture.Acquire(t, t.Context(), l)
		require.NoError(t, s.Client(t).Del(t.Context(), l.Name()).Err())
		fixture.Release(t, fixture.Acquire(t, t.Context(), l))
		_ = lost.Release(t.Context()) // it may say that it was lost
		redistest.WaitFor(t, fixture.Soon, func() bool { return len(fixture.Fields(t, s, l.Name())) == 0 },
			"the lock is free")
	})
}

// Another client that waits asks for the lock, or somebody of the same client who needs it in
// another way.
func TestC24LingeringLockIsGivenUpWhenSomebodyAsks(t *testing.T) {
	for _, tt := range []struct {
		name  string
		own   bool // the rival is of the same client
		rival func(kind kinds.Kind, c *primitives.Client, name string) *primitives.Lock
		opts  []primitives.Option
		only  string
	}{
		{name: "another client", rival: rivalOf},
		{name: "another client that polls", rival: rivalOf, opts: polls},
		{name: "another client with WithOwner", rival: rivalOf, opts: []primitives.Option{primitives.WithOwner("me")}},
		{name: "the same client, without linger", own: true, rival: rivalOf},
		{name: "a reader", only: "writer", rival: func(_ kinds.Kind, c *primitives.Client, name string) *primitives.Lock {
			return c.RWLock(name).Reader()
		}},
		{name: "a reader of the same client", own: true, only: "writer", rival: func(
			_ kinds.Kind, c *primitives.Client, name string,
		) *primitives.Lock {
			return c.RWLock(name).Reader()
		}},
		{name: "a joint lock", rival: func(kind kinds.Kind, c *primitives.Client, name string) *primitives.Lock {
			return primitives.NewMultiLock([]*primitives.Lock{rivalOf(kind, c, name), c.Lock(name + "-2")})
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fixture.EachKind(t, kinds.Cohorts(), func(t *testing.T, s *redistest.Server, kind kinds.Kind) {
				if tt.only != "" && tt.only != kind.Name {
					return
				}
				c := fixture.NewClient(t, s.Client(t))
				l := kind.Lock(c, redistest.Name(t), long)
				lingers(t, s, l)
				other := c
				if !tt.own {
					other = fixture.NewClient(t, s.Client(t))
				}
				stalls, began := redistest.WatchStalls(t), time.Now()
				hold := fixture.Acquire(t, t.Context(), tt.rival(kind, other, l.Name()),
					append(tt.opts, primitives.WithWait(fixture.Soon))...)
				took := time.Since(began)
				assert.Less(t, took, 900*time.Millisecond+stalls.Since(began), "the next poll asks again")
				fixture.Release(t, hold)
				lingers(t, s, l)
			})
		})
	}
}

// A single try by the same client ends the lingering, too. Nobody uses the lock, so it must not be
// refused.
func TestC24LingeringLockRefusesNoTryOfItsClient(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c, name := fixture.NewClient(t, s.Client(t)), redistest.Name(t)
		rw := c.RWLock(name+"rw", long)
		lock := c.Lock(name, long)
		for _, tt := range []struct{ lingers, rival *primitives.Lock }{
			{rw.Writer(), rw.Reader()},
			{lock, c.FencedLock(name)},
			{lock, c.FairLock(name)},
			{lock, primitives.NewMultiLock([]*primitives.Lock{c.FairLock(name), c.Lock(name + "-2")})},
		} {
			for _, opts := range [][]primitives.Option{nil, {primitives.WithOwner("me")}} {
				lingers(t, s, tt.lingers)
				fixture.Release(t, fixture.TryAcquire(t, t.Context(), tt.rival, opts...))
			}
			held := fixture.Acquire(t, t.Context(), tt.lingers)
			require.ErrorIs(t, fixture.ErrOf(tt.rival.TryAcquire(t.Context())), primitives.ErrNotAcquired)
			fixture.Release(t, held)
		}
	})
}

// A client takes its own lingering lock by force or by its id. The lock then lingers no longer, and
// the next acquisition asks Redis.
func TestC24LingeringLockIsTakenByItsOwnClient(t *testing.T) {
	fixture.EachKind(t, kinds.Cohorts(), func(t *testing.T, s *redistest.Server, kind kinds.Kind) {
		l := kind.Lock(fixture.NewClient(t, s.Client(t)), redistest.Name(t), long)
		for name, take := range map[string]func(id string) error{
			"by force": func(string) error { return fixture.ErrOf(l.ForceRelease(t.Context())) },
			"as a member": func(id string) error {
				return primitives.NewMultiLock([]*primitives.Lock{l}).ReleaseID(t.Context(), id)
			},
			"by id": func(id string) error { return l.ReleaseID(t.Context(), id) },
		} {
			require.NoError(t, take(lingers(t, s, l)), name)
			other := fixture.Acquire(t, t.Context(), kind.Lock(fixture.NewClient(t, s.Client(t)), l.Name()),
				primitives.WithWait(0))
			require.ErrorIs(t, fixture.ErrOf(l.TryAcquire(t.Context())), primitives.ErrNotAcquired, name)
			fixture.Release(t, other)
		}
	})
}

func rivalOf(kind kinds.Kind, c *primitives.Client, name string) *primitives.Lock {
	return kind.Lock(c, name)
}

// Redisson cannot ask. It hears the message when the time is over.
func TestC24LingeringLockIsFreedWhenItsTimeIsOver(t *testing.T) {
	const d = time.Second
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := fixture.NewClient(t, s.Client(t)).Lock(redistest.Name(t), primitives.WithLinger(d))
		sub := s.Client(t).Subscribe(t.Context(), "redisson_lock__channel:{"+l.Name()+"}")
		require.NoError(t, fixture.ErrOf(sub.Receive(t.Context())))
		stalls, began := redistest.WatchStalls(t), time.Now()
		lingers(t, s, l)
		released := time.Now()
		require.NoError(t, fixture.ErrOf(sub.ReceiveMessage(t.Context())))
		freed := time.Now()
		assert.GreaterOrEqual(t, freed.Sub(began), d)
		assert.Less(t, freed.Sub(released), d+150*time.Millisecond+stalls.Since(released))
		require.NoError(t, sub.Close())
		fixture.RequireClean(t, s, l.Name())
	})
}

// A process that dies leaves a lock that lingers to its lease.
func TestC24LingeringLockOfADeadClient(t *testing.T) {
	fixture.Bubble(t, func(t *testing.T, b *fixture.BubbleTest) {
		const lease = time.Second
		began := time.Now()
		lingers(t, b.S, b.C.Lock("l", long, primitives.WithWatchdog(lease)))
		b.P.BlackHole(true)
		fixture.Release(t, fixture.Acquire(t, t.Context(), b.Other))
		assert.InDelta(t, lease, time.Since(began), float64(10*time.Millisecond))
		b.P.Heal()
	})
}

func TestC24NegativeLingerIsInvalid(t *testing.T) {
	t.Parallel()
	c := fixture.NewClient(t, redistest.Miniredis(t).Client(t))
	require.ErrorIs(t, fixture.ErrOf(c.Lock("x").Acquire(t.Context(), primitives.WithLinger(-1))), primitives.ErrInvalid)
}
