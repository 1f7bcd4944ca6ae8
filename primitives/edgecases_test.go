package primitives_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/fixture"
	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// C20: the first call that uses an option out of range gives ErrInvalid and sends nothing.
func TestC20OptionsOutOfRangeAreInvalid(t *testing.T) {
	t.Parallel()
	s := redistest.Miniredis(t)
	p := s.Proxy(t)
	rdb := p.Client(t)
	p.Record()
	bad := map[string]primitives.Option{
		"negative wait": primitives.WithWait(-1), "permits": primitives.WithPermits(-1), "owner": primitives.WithOwner(""),
		"polling order": primitives.WithPolling(2*time.Second, time.Second),
	}
	for _, d := range []time.Duration{
		0, -1, math.MinInt64, 1, time.Millisecond - 1, LongestDuration + 1, math.MaxInt64,
	} {
		bad[fmt.Sprint("lease ", d)] = primitives.WithLease(d)
		bad[fmt.Sprint("watchdog ", d)] = primitives.WithWatchdog(d)
		bad[fmt.Sprint("max hold ", d)] = primitives.WithMaxHold(d)
		bad[fmt.Sprint("waiter timeout ", d)] = primitives.WithWaiterTimeout(d)
		if d != 0 {
			bad[fmt.Sprint("minimum hold ", d)] = primitives.WithMinHold(d)
		}
		bad[fmt.Sprint("polling min ", d)] = primitives.WithPolling(d, time.Second)
		bad[fmt.Sprint("polling max ", d)] = primitives.WithPolling(time.Millisecond, d)
	}
	c := NewClient(t, rdb)
	for name, o := range bad {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, ErrOf(primitives.New(rdb, primitives.WithDefaults(o))), primitives.ErrInvalid)
			// Valid options after an invalid one do not hide it.
			overridden := c.Lock("l", o, primitives.WithLease(time.Second), primitives.WithWait(0),
				primitives.WithOwner("x"), primitives.WithPermits(1))
			for _, l := range []*primitives.Lock{c.Lock("l", o), overridden} {
				require.ErrorIs(t, ErrOf(l.Acquire(t.Context())), primitives.ErrInvalid)
				require.ErrorIs(t, ErrOf(l.TryAcquire(t.Context())), primitives.ErrInvalid)
				require.ErrorIs(t, l.Do(t.Context(), nil), primitives.ErrInvalid)
				require.ErrorIs(t, ErrOf(l.Info(t.Context())), primitives.ErrInvalid)
			}
			_, err := c.Lock("l").Acquire(t.Context(), o)
			require.ErrorIs(t, err, primitives.ErrInvalid)
			require.NotErrorIs(t, err, primitives.ErrNotAcquired)
			require.ErrorIs(t, ErrOf(c.Lock("l").Adopt(t.Context(), "id", o)), primitives.ErrInvalid)
		})
	}
	require.ErrorIs(t, ErrOf(c.Lock("").Acquire(t.Context())), primitives.ErrInvalid)
	require.Empty(t, p.Commands())
}

// C20: the longest and the shortest valid durations work.
func TestC20ExtremeDurationsAreValid(t *testing.T) {
	t.Parallel()
	EachLock(t, func(t *testing.T, x *LockTest) {
		for _, opts := range [][]primitives.Option{
			{primitives.WithLease(LongestDuration)},
			{primitives.WithWatchdog(LongestDuration)},
			{primitives.WithWatchdog(LongestDuration), primitives.WithMaxHold(LongestDuration)},
			{primitives.WithWait(math.MaxInt64)},
			{{}},
		} {
			hold := Acquire(t, t.Context(), x.L, opts...)
			require.NoError(t, hold.Extend(t.Context(), LongestDuration))
			Release(t, hold)
		}
		hold, err := x.L.Acquire(t.Context(), primitives.WithLease(time.Millisecond))
		if err == nil {
			RequireEnds(t, hold.Context(), primitives.ErrLost)
		} else {
			require.ErrorIs(t, err, primitives.ErrLost, "the answer came after the lease")
		}
	})
}

// C20: a lock hash without a TTL, which another program may leave, counts as held. Waiters do not
// spin.
func TestC20KeyWithoutExpiryIsHeld(t *testing.T) {
	t.Parallel()
	EachLock(t, func(t *testing.T, x *LockTest) {
		require.NoError(t, x.Rdb.HSet(t.Context(), x.Name, "somebody", 1).Err())
		p := x.S.Proxy(t)
		p.Record()
		c := NewClient(t, p.Client(t))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		began := time.Now()
		waiting := Start(func() (*primitives.Hold, error) { return c.Lock(x.Name).Acquire(ctx) })
		AwaitWaiters(t, c, 1)
		time.Sleep(200 * time.Millisecond)
		cancel()
		require.ErrorIs(t, Await(t, waiting).Err, primitives.ErrNotAcquired)
		polls := int(time.Since(began) / time.Second)
		require.Less(t, len(ScriptsOf(p)), 10+polls, "an attempt, another one when subscribed, and slow polls")
		info, err := x.L.Info(t.Context())
		require.NoError(t, err)
		require.Equal(t, time.Duration(-1), info.TTL)
		require.NoError(t, x.L.ReleaseID(t.Context(), "somebody"))
	})
}

// Call options override handle options, which override the client's defaults. In one list the later
// option wins.
func TestNearestOptionScopeWins(t *testing.T) {
	t.Parallel()
	s := redistest.Miniredis(t)
	defaults := primitives.WithDefaults(primitives.WithLease(time.Hour), primitives.WithWait(time.Hour))
	c := NewClient(t, s.Client(t), defaults)
	ttl := func(l *primitives.Lock, opts ...primitives.Option) time.Duration {
		hold := Acquire(t, t.Context(), l, opts...)
		defer Release(t, hold)
		return time.Until(hold.ValidUntil()).Round(time.Minute)
	}
	lease, watchdog := primitives.WithLease, primitives.WithWatchdog
	require.Equal(t, 59*time.Minute, ttl(c.Lock("l")), "one hour minus the safety margin")
	require.Equal(t, 20*time.Minute, ttl(c.Lock("l", watchdog(20*time.Minute))))
	require.Equal(t, 10*time.Minute, ttl(c.Lock("l", watchdog(20*time.Minute)), lease(10*time.Minute)))
	require.Equal(t, 10*time.Minute, ttl(c.Lock("l"), lease(20*time.Minute), watchdog(10*time.Minute)), "later wins")
	maxHold := primitives.WithMaxHold(10 * time.Minute)
	require.Equal(t, 10*time.Minute, ttl(c.Lock("l", watchdog(20*time.Minute), maxHold)))

	hold := Acquire(t, t.Context(), c.Lock("l"))
	_, err := c.Lock("l").TryAcquire(t.Context(), primitives.WithWait(time.Hour))
	require.ErrorIs(t, err, primitives.ErrNotAcquired, "TryAcquire is WithWait(0) over all scopes")
	Release(t, hold)
}

// New refuses clients that cannot work and options out of range, and accepts the zero ClientOption.
func TestNewChecksItsArguments(t *testing.T) {
	t.Parallel()
	s := redistest.Miniredis(t)
	rdb := s.Client(t)
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": s.Addr()}})
	t.Cleanup(func() { _ = ring.Close() })
	for name, rdb := range map[string]redis.UniversalClient{
		"nil": nil, "a nil pointer": (*redis.Client)(nil),
		"a ring": ring, "a type that embeds a ring": struct{ *redis.Ring }{ring},
	} {
		require.ErrorIs(t, ErrOf(primitives.New(rdb)), primitives.ErrInvalid, name)
	}
	for name, o := range map[string]primitives.ClientOption{
		"upper case":        primitives.WithClientID("6F1ED002-AB5F-4A5C-9B3A-A0A9A9A9A9A9"),
		"not a uuid":        primitives.WithClientID("me"),
		"negative margin":   primitives.WithSafetyMargin(-1),
		"negative replicas": primitives.WithReplicas(-1, time.Second),
		"no replica wait":   primitives.WithReplicas(1, 0),
		"long replica wait": primitives.WithReplicas(1, math.MaxInt64),
		"no logger":         primitives.WithLogger(nil),
		"sharded":           primitives.WithShardedPubSub(true),
	} {
		require.ErrorIs(t, ErrOf(primitives.New(rdb, o)), primitives.ErrInvalid, name)
	}
	c := NewClient(t, rdb, primitives.ClientOption{}, primitives.WithClientID("6f1ed002-ab5f-4a5c-9b3a-a0a9a9a9a9a9"),
		primitives.WithLogger(slog.New(slog.DiscardHandler)), primitives.WithSafetyMargin(0),
		primitives.WithReplicas(0, 0), primitives.WithShardedPubSub(false))
	require.Equal(t, "6f1ed002-ab5f-4a5c-9b3a-a0a9a9a9a9a9", c.ID())
	hold := Acquire(t, t.Context(), c.Lock("l"))
	require.Regexp(t, "^"+c.ID()+":[0-9]+$", hold.ID())
	Release(t, hold)
	require.NotEqual(t, NewClient(t, rdb).ID(), NewClient(t, rdb).ID())
}

func TestExtendNeverShortensTheLease(t *testing.T) {
	t.Parallel()
	EachLock(t, func(t *testing.T, x *LockTest) {
		for _, opts := range [][]primitives.Option{
			{primitives.WithLease(ShortLease)}, {primitives.WithOwner("o")}, nil,
		} {
			hold := Acquire(t, t.Context(), x.L, opts...)
			for _, d := range []time.Duration{0, -1, time.Millisecond - 1, math.MaxInt64} {
				require.ErrorIs(t, hold.Extend(t.Context(), d), primitives.ErrInvalid)
			}
			require.NoError(t, hold.Extend(t.Context(), time.Hour))
			require.NoError(t, hold.Extend(t.Context(), time.Second), "a shorter extension succeeds")
			require.Greater(t, time.Until(hold.ValidUntil()), 59*time.Minute)
			require.Greater(t, x.Rdb.PTTL(t.Context(), x.Name).Val(), 59*time.Minute)
			if len(opts) > 0 {
				time.Sleep(ShortLease) // the original lease passes
				RequireLive(t, hold.Context())
			}
			Release(t, hold)
			require.ErrorIs(t, hold.Extend(t.Context(), time.Second), primitives.ErrReleased)
			require.ErrorIs(t, hold.Check(t.Context()), primitives.ErrReleased)
		}
	})
}

func TestDetachStopsTheRenewalAndKeepsTheLock(t *testing.T) {
	t.Parallel()
	EachLock(t, func(t *testing.T, x *LockTest) {
		p := x.S.Proxy(t)
		c := NewClient(t, p.Client(t))
		hold := Acquire(t, t.Context(), c.Lock(x.Name), primitives.WithWatchdog(ShortLease))
		hold.Detach()
		p.Record()
		require.NoError(t, c.Close(t.Context()), "Close does not wait for a detached hold")
		require.Empty(t, ScriptsOf(p))
		require.Equal(t, "1", x.Count(t, hold.ID()), "the lock stays until the lease expires")
		redistest.WaitFor(t, Soon, func() bool { return len(Fields(t, x.S, x.Name)) == 0 }, "the lease has expired")
	})
}

// An acquisition emits acquired and released. A waiter emits wait before them. Waited and Held have
// the times.
func TestEventsOfAnAcquisitionAndAWaiter(t *testing.T) {
	t.Parallel()
	EachLock(t, func(t *testing.T, x *LockTest) {
		hold := Acquire(t, t.Context(), x.L)
		e := x.Heard.Await(t, primitives.EventAcquired)
		require.Equal(t, primitives.Event{Kind: "acquired", Lock: "lock", Name: x.Name, ID: hold.ID(), Ctx: t.Context()}, e)
		other := &Recorder{}
		l := NewClient(t, x.S.Client(t), other.Option()).Lock(x.Name)
		waiting := Start(func() (*primitives.Hold, error) { return l.Acquire(t.Context()) })
		other.Await(t, primitives.EventWait)
		time.Sleep(20 * time.Millisecond) // the least time waited and held that the events must have
		Release(t, hold)
		e = x.Heard.Await(t, primitives.EventReleased)
		require.GreaterOrEqual(t, e.Held, 20*time.Millisecond)
		require.Zero(t, e.Waited)
		next := AwaitHold(t, waiting)
		e = other.Await(t, primitives.EventAcquired)
		require.GreaterOrEqual(t, e.Waited, 20*time.Millisecond)
		require.Zero(t, e.Held)
		Release(t, next)
		require.Equal(t, []primitives.EventKind{"acquired", "released"}, x.Heard.Kinds())
		require.Equal(t, []primitives.EventKind{"wait", "acquired", "released"}, other.Kinds())
	})
}

// Locks finds the held locks that match the pattern, without the client's prefix. It skips keys
// that are not locks, and an error ends it.
func TestLocksListsHeldLocks(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		rdb := s.Client(t)
		for _, prefix := range []string{"", "app*[x]:"} {
			c := NewClient(t, s.Client(t), primitives.WithPrefix(prefix), primitives.WithClientName(""))
			list := func(match string) map[string]primitives.Info {
				found := map[string]primitives.Info{}
				for info, err := range c.Locks(t.Context(), match) {
					require.NoError(t, err)
					require.NotContains(t, found, info.Name)
					found[info.Name] = info
				}
				return found
			}
			var holds []*primitives.Hold
			for i := range 25 {
				holds = append(holds, Acquire(t, t.Context(), c.Lock(fmt.Sprint(name, i))))
			}
			for key, fields := range map[string][]any{
				"-read":  {"mode", "read", c.ID() + ":7", 1},
				"-write": {"mode", "write", c.ID() + ":7:write", 2},
				"-user":  {"visits", 3},
				"-text":  {c.ID() + ":7", "x"},
			} {
				require.NoError(t, rdb.HSet(t.Context(), prefix+name+key, fields...).Err())
			}
			readTimeout := "{" + prefix + name + "-read}:" + c.ID() + ":7:rwlock_timeout:1"
			require.NoError(t, rdb.Set(t.Context(), readTimeout, 1, time.Minute).Err())
			require.NoError(t, rdb.Set(t.Context(), prefix+name+"-string", 1, 0).Err())
			found := list(name + "*")
			require.Len(t, found, 27, "25 locks, a reader and a writer; neither another program's hashes nor a string")
			third := found[name+"3"]
			require.Equal(t, []primitives.Holder{{ID: holds[3].ID(), Count: 1, TTL: third.TTL}}, third.Holders)
			require.Equal(t, "lock", third.Kind)
			require.Equal(t, "reader", found[name+"-read"].Kind)
			require.Equal(t, primitives.Info{
				Name: name + "-write", Kind: "writer", TTL: -1,
				Holders: []primitives.Holder{{ID: c.ID() + ":7", Count: 2, TTL: -1}},
			}, found[name+"-write"])
			require.Len(t, list(name+"1"), 1)
			require.Len(t, list(name+"1?"), 10)
			require.Empty(t, list("app*"+name+"*"))
			for _, hold := range holds {
				Release(t, hold)
			}
			require.Len(t, list(name+"*"), 2)
			for _, err := range c.Locks(t.Context(), "*") { // the iteration may stop early
				require.NoError(t, err)
				break
			}
			done, cancel := context.WithCancelCause(t.Context())
			cancel(ErrTest)
			var got []error
			for info, err := range c.Locks(done, name+"*") {
				require.Zero(t, info)
				got = append(got, err)
			}
			require.Len(t, got, 1)
			for _, key := range redistest.Keys(t, s, "*"+name+"-*") {
				require.NoError(t, rdb.Del(t.Context(), key).Err())
			}
		}
	})
}
