package contract

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// TestConformanceRWLock tests how the leases of concurrent readers and of a writer end.
func TestConformanceRWLock(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		redistest.Together(t, func(run redistest.Run) {
			for _, b := range rwLockBehaviours {
				run(b.name, func(t *testing.T) {
					key := redistest.Name(t) + "."
					b.test(t, NewClient(t, s.Client(t)).RWLock(key), NewClient(t, s.Client(t)).RWLock(key))
					RequireClean(t, s, key)
				})
			}
		})
	})
}

var rwLockBehaviours = []struct {
	name string
	test func(t *testing.T, near, far *primitives.RWLock) // the same lock on two clients
}{
	{"a writer waits for the reader with the longest lease", func(t *testing.T, near, far *primitives.RWLock) {
		began := time.Now()
		Acquire(t, t.Context(), near.Reader(), primitives.WithLease(2*ShortLease))
		Acquire(t, t.Context(), far.Reader(), primitives.WithLease(ShortLease))
		w := Acquire(t, t.Context(), far.Writer())
		require.GreaterOrEqual(t, time.Since(began), 2*ShortLease-10*time.Millisecond)
		Release(t, w)
	}},
	{"a released reader does not extend the lease of another", func(t *testing.T, near, far *primitives.RWLock) {
		began := time.Now()
		Acquire(t, t.Context(), near.Reader(), primitives.WithLease(ShortLease))
		Release(t, Acquire(t, t.Context(), far.Reader(), primitives.WithLease(time.Minute)))
		writesAfterABriefLease(t, far, began)
	}},
	// In Redisson, releasing the nested reader removes its timeout key. Here, too, the TTL becomes
	// that of the longest remaining lease, and no longer.
	{"releasing a nested reader ends its lease", func(t *testing.T, near, far *primitives.RWLock) {
		began := time.Now()
		outer := Acquire(t, t.Context(), near.Reader(), primitives.WithLease(ShortLease))
		Release(t, Acquire(t, outer.Context(), near.Reader(), primitives.WithLease(time.Minute)))
		writesAfterABriefLease(t, far, began)
	}},
	{"all waiting readers acquire when a writer's lease expires", func(t *testing.T, near, far *primitives.RWLock) {
		Acquire(t, t.Context(), near.Writer(), primitives.WithLease(ShortLease))
		var readers []<-chan Result
		for _, rw := range []*primitives.RWLock{near, far, far} {
			readers = append(readers, StartAcquire(t.Context(), rw.Reader()))
		}
		var holds []*primitives.Hold
		for _, reader := range readers {
			hold := AwaitHold(t, reader)
			holds = append(holds, hold)
		}
		Release(t, holds...)
	}},
	{"a nested writer does not shorten the outer lease", func(t *testing.T, near, far *primitives.RWLock) {
		outer := Acquire(t, t.Context(), near.Writer(), primitives.WithLease(time.Minute))
		inner := Acquire(t, outer.Context(), near.Writer(), primitives.WithLease(ShortLease))
		RequireEnds(t, inner.Context(), primitives.ErrLost)
		require.NoError(t, outer.Check(t.Context()))
		for _, l := range []*primitives.Lock{far.Writer(), far.Reader()} {
			require.ErrorIs(t, ErrOf(l.TryAcquire(t.Context())), primitives.ErrNotAcquired)
		}
		require.NoError(t, ErrOf(near.Writer().ForceRelease(t.Context())))
	}},
}

// writesAfterABriefLease checks that a writer acquires when a brief lease that began then has ended.
func writesAfterABriefLease(t *testing.T, rw *primitives.RWLock, began time.Time) {
	t.Helper()
	w := Acquire(t, t.Context(), rw.Writer(), primitives.WithWait(Soon))
	require.GreaterOrEqual(t, time.Since(began), ShortLease-10*time.Millisecond)
	require.Less(t, time.Since(began), ShortLease+SlowPoll)
	Release(t, w)
}
