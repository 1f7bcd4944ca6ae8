package primitives_test

import (
	"fmt"
	"math"
	"runtime"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// TestStripedMapsKeysAsDocumented checks that the stripe of a key is the same in all processes and
// versions. It is FNV-1a 64 of the key, modulo the number of stripes.
func TestStripedMapsKeysAsDocumented(t *testing.T) {
	t.Parallel()
	c := fixture.NewClient(t, redistest.Miniredis(t).Client(t))
	for _, tt := range []struct {
		key  string
		hash uint64 // published FNV-1a 64 values
	}{
		{"", 0xcbf29ce484222325},
		{"a", 0xaf63dc4c8601ec8c},
		{"b", 0xaf63df4c8601f1a5},
		{"foobar", 0x85944171f73967e8},
		{"\xff\x00", 0x0a99a607b6f60bea},
	} {
		for _, n := range []int{1, 2, 7, 16, 1000} {
			require.Equal(t, fmt.Sprintf("s:%d", tt.hash%uint64(n)), c.Striped("s", n).Lock(tt.key).Name(), "%q of %d",
				tt.key, n)
		}
	}
}

func TestStripedSpreadsKeysEvenly(t *testing.T) {
	t.Parallel()
	c := fixture.NewClient(t, redistest.Miniredis(t).Client(t))
	const n, keys = 16, 16000
	s := c.Striped("s", n)
	counts := map[string]int{}
	for i := range keys {
		l := s.Lock(fmt.Sprintf("order:%d", i))
		require.Same(t, l, s.Lock(fmt.Sprintf("order:%d", i)))
		counts[l.Name()]++
	}
	require.Len(t, counts, n)
	for name, count := range counts {
		require.InDelta(t, keys/n, count, keys/n/4, name)
	}
}

func TestStripedRejectsInvalidArguments(t *testing.T) {
	t.Parallel()
	c := fixture.NewClient(t, redistest.Miniredis(t).Client(t))
	for name, s := range map[string]*primitives.Striped{
		"no stripes":      c.Striped("s", 0),
		"negative number": c.Striped("s", -3),
		"empty name":      c.Striped("", 3),
		"invalid option":  c.Striped("s", 3, primitives.WithLease(-1)),
	} {
		t.Run(name, func(t *testing.T) {
			l := s.Lock("key")
			require.ErrorIs(t, fixture.ErrOf(l.Acquire(t.Context())), primitives.ErrInvalid)
			require.ErrorIs(t, fixture.ErrOf(l.TryAcquire(t.Context())), primitives.ErrInvalid)
			require.ErrorIs(t, fixture.ErrOf(primitives.NewMultiLock([]*primitives.Lock{l}).Acquire(t.Context())),
				primitives.ErrInvalid)
			require.Panics(t, func() { l.Locker(t.Context()).Lock() })
		})
	}
	require.Equal(t, "s", c.Striped("s", 0).Name())
}

// TestStripedKeysOfOneStripeExclude checks that keys of one stripe exclude each other on all
// clients, and keys of different stripes do not.
func TestStripedKeysOfOneStripeExclude(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		const n = 4
		one, other := fixture.NewClient(t, s.Client(t)).Striped(name, n), fixture.NewClient(t, s.Client(t)).Striped(name, n)
		hold := fixture.Acquire(t, t.Context(), one.Lock("key"))
		for i := range 20 {
			key := fmt.Sprint(i)
			got, err := other.Lock(key).TryAcquire(t.Context())
			if other.Lock(key).Name() == hold.Name() {
				require.ErrorIs(t, err, primitives.ErrNotAcquired)
				continue
			}
			require.NoError(t, err)
			fixture.Release(t, got)
		}
		inner := fixture.Acquire(t, hold.Context(), one.Lock("key"))
		require.Equal(t, 2, inner.Depth())
		fixture.Release(t, inner, hold)
		fixture.RequireClean(t, s, name)
	})
}

// A Striped makes handles as they are asked for: it is cheap however many stripes it has, and keeps
// few of them.
func TestStripedCostsNothingForUnusedStripes(t *testing.T) {
	c := fixture.NewClient(t, redistest.Miniredis(t).Client(t))
	const huge = math.MaxInt
	var s *primitives.Striped
	made := testing.AllocsPerRun(10, func() { s = c.Striped("s", huge, primitives.WithWait(0)) })
	require.Less(t, made, 10.0)

	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range 50_000 {
		s.Lock(strconv.Itoa(i))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	require.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(10<<20), "50,000 handles would take more")
	l := s.Lock("foobar")
	require.Equal(t, fmt.Sprintf("s:%d", uint64(0x85944171f73967e8)%huge), l.Name())
	fixture.Release(t, fixture.Acquire(t, t.Context(), l))
}

// Goroutines that ask for the same stripe at once get the same handle, or at least handles of that
// stripe.
func TestStripedIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	c := fixture.NewClient(t, redistest.Miniredis(t).Client(t))
	for _, n := range []int{7, 1 << 40} {
		s := c.Striped("s", n)
		first := make([]*primitives.Lock, 50)
		fixture.Concurrently(8, func(i int) {
			for k := range first {
				l := s.Lock(strconv.Itoa(k))
				if i == 0 {
					first[k] = l
				}
			}
		})
		for k, l := range first {
			again := s.Lock(strconv.Itoa(k))
			require.Equal(t, again.Name(), l.Name())
			if n == 7 {
				require.Same(t, again, l)
			}
		}
	}
}
