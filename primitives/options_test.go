package primitives_test

import (
	"fmt"
	"log/slog"
	"math"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
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
		0, -1, math.MinInt64, 1, time.Millisecond - 1, fixture.LongestDuration + 1, math.MaxInt64,
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
	c := fixture.NewClient(t, rdb)
	for name, o := range bad {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, fixture.ErrOf(primitives.New(rdb, primitives.WithDefaults(o))), primitives.ErrInvalid)
			// Valid options after an invalid one do not hide it.
			overridden := c.Lock("l", o, primitives.WithLease(time.Second), primitives.WithWait(0),
				primitives.WithOwner("x"), primitives.WithPermits(1))
			for _, l := range []*primitives.Lock{c.Lock("l", o), overridden} {
				require.ErrorIs(t, fixture.ErrOf(l.Acquire(t.Context())), primitives.ErrInvalid)
				require.ErrorIs(t, fixture.ErrOf(l.TryAcquire(t.Context())), primitives.ErrInvalid)
				require.ErrorIs(t, l.Do(t.Context(), nil), primitives.ErrInvalid)
				require.ErrorIs(t, fixture.ErrOf(l.Info(t.Context())), primitives.ErrInvalid)
			}
			_, err := c.Lock("l").Acquire(t.Context(), o)
			require.ErrorIs(t, err, primitives.ErrInvalid)
			require.NotErrorIs(t, err, primitives.ErrNotAcquired)
			require.ErrorIs(t, fixture.ErrOf(c.Lock("l").Adopt(t.Context(), "id", o)), primitives.ErrInvalid)
		})
	}
	require.ErrorIs(t, fixture.ErrOf(c.Lock("").Acquire(t.Context())), primitives.ErrInvalid)
	require.Empty(t, p.Commands())
}

// C20: the longest and the shortest valid durations work.
func TestC20ExtremeDurationsAreValid(t *testing.T) {
	t.Parallel()
	fixture.EachLock(t, func(t *testing.T, x *fixture.LockTest) {
		for _, opts := range [][]primitives.Option{
			{primitives.WithLease(fixture.LongestDuration)},
			{primitives.WithWatchdog(fixture.LongestDuration)},
			{primitives.WithWatchdog(fixture.LongestDuration), primitives.WithMaxHold(fixture.LongestDuration)},
			{primitives.WithWait(math.MaxInt64)},
			{{}},
		} {
			hold := fixture.Acquire(t, t.Context(), x.L, opts...)
			require.NoError(t, hold.Extend(t.Context(), fixture.LongestDuration))
			fixture.Release(t, hold)
		}
		hold, err := x.L.Acquire(t.Context(), primitives.WithLease(time.Millisecond))
		if err == nil {
			fixture.RequireEnds(t, hold.Context(), primitives.ErrLost)
		} else {
			require.ErrorIs(t, err, primitives.ErrLost, "the answer came after the lease")
		}
	})
}

// Call options override handle options, which override the client's defaults. In one list the later
// option wins.
func TestNearestOptionScopeWins(t *testing.T) {
	t.Parallel()
	s := redistest.Miniredis(t)
	defaults := primitives.WithDefaults(primitives.WithLease(time.Hour), primitives.WithWait(time.Hour))
	c := fixture.NewClient(t, s.Client(t), defaults)
	ttl := func(l *primitives.Lock, opts ...primitives.Option) time.Duration {
		hold := fixture.Acquire(t, t.Context(), l, opts...)
		defer fixture.Release(t, hold)
		return time.Until(hold.ValidUntil()).Round(time.Minute)
	}
	lease, watchdog := primitives.WithLease, primitives.WithWatchdog
	require.Equal(t, 59*time.Minute, ttl(c.Lock("l")), "one hour minus the safety margin")
	require.Equal(t, 20*time.Minute, ttl(c.Lock("l", watchdog(20*time.Minute))))
	require.Equal(t, 10*time.Minute, ttl(c.Lock("l", watchdog(20*time.Minute)), lease(10*time.Minute)))
	require.Equal(t, 10*time.Minute, ttl(c.Lock("l"), lease(20*time.Minute), watchdog(10*time.Minute)), "later wins")
	maxHold := primitives.WithMaxHold(10 * time.Minute)
	require.Equal(t, 10*time.Minute, ttl(c.Lock("l", watchdog(20*time.Minute), maxHold)))

	hold := fixture.Acquire(t, t.Context(), c.Lock("l"))
	_, err := c.Lock("l").TryAcquire(t.Context(), primitives.WithWait(time.Hour))
	require.ErrorIs(t, err, primitives.ErrNotAcquired, "TryAcquire is WithWait(0) over all scopes")
	fixture.Release(t, hold)
}

// hiding is a user's type that has the methods of the interface only.
type hiding struct{ redis.UniversalClient }

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
		"a type that hides a ring":              hiding{ring},
		"a type that hides one that does":       &hiding{&hiding{ring}},
		"a type that embeds no client":          hiding{},
		"a nil pointer to a type":               (*hiding)(nil),
		"a type that embeds a nil pointer":      hiding{(*redis.Client)(nil)},
		"a type that embeds a type without one": hiding{&hiding{}},
	} {
		require.ErrorIs(t, fixture.ErrOf(primitives.New(rdb)), primitives.ErrInvalid, name)
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
		require.ErrorIs(t, fixture.ErrOf(primitives.New(rdb, o)), primitives.ErrInvalid, name)
	}
	c := fixture.NewClient(t, rdb, primitives.ClientOption{},
		primitives.WithClientID("6f1ed002-ab5f-4a5c-9b3a-a0a9a9a9a9a9"),
		primitives.WithLogger(slog.New(slog.DiscardHandler)), primitives.WithSafetyMargin(0),
		primitives.WithReplicas(0, 0), primitives.WithShardedPubSub(false))
	require.Equal(t, "6f1ed002-ab5f-4a5c-9b3a-a0a9a9a9a9a9", c.ID())
	hold := fixture.Acquire(t, t.Context(), c.Lock("l"))
	require.Regexp(t, "^"+c.ID()+":[0-9]+$", hold.ID())
	fixture.Release(t, hold)
	require.NotEqual(t, fixture.NewClient(t, rdb).ID(), fixture.NewClient(t, rdb).ID())
}
