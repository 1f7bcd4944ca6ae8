package primitives_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redisutil"
	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

var _ sync.Locker = (*primitives.Locker)(nil)

// TestLockerIsSharedByGoroutines uses two Lockers of one name as mutexes.
func TestLockerIsSharedByGoroutines(t *testing.T) {
	t.Parallel()
	fixture.EachLock(t, func(t *testing.T, x *fixture.LockTest) {
		mu, n := x.L.Locker(t.Context()), 0
		other := x.Other(t).Locker(t.Context())
		goroutines := redistest.Scaled(x.S, 100)
		fixture.Concurrently(goroutines, func(i int) {
			m := mu
			if i%4 == 0 {
				m = other
			}
			for range 3 {
				m.Lock()
				n++
				m.Unlock()
			}
		})
		require.Equal(t, 3*goroutines, n)
	})
}

func TestLockerTryLock(t *testing.T) {
	t.Parallel()
	fixture.EachLock(t, func(t *testing.T, x *fixture.LockTest) {
		mu, other := x.L.Locker(t.Context()), x.Other(t).Locker(t.Context())
		require.True(t, mu.TryLock())
		require.False(t, mu.TryLock())
		require.False(t, other.TryLock())
		mu.Unlock()
		require.True(t, other.TryLock())
		require.False(t, mu.TryLock())
		other.Unlock()
	})
}

// TestLockerPanicsWhereAMethodCannotReturnAnError covers misuse, a done context, a key of another
// type, an invalid name and a closed client.
func TestLockerPanicsWhereAMethodCannotReturnAnError(t *testing.T) {
	t.Parallel()
	fixture.EachLock(t, func(t *testing.T, x *fixture.LockTest) {
		mu := x.L.Locker(t.Context())
		require.Panics(t, mu.Unlock, "not locked")
		mu.Lock()
		mu.Unlock() //nolint:staticcheck // the critical section is empty: the test is about locking
		require.Panics(t, mu.Unlock)

		ctx, cancel := context.WithCancelCause(t.Context())
		bounded := x.L.Locker(ctx)
		bounded.Lock()
		waiting := make(chan any, 1)
		go func() {
			defer func() { waiting <- recover() }()
			bounded.Lock()
		}()
		cancel(fixture.ErrTest)
		require.ErrorIs(t, (<-waiting).(error), fixture.ErrTest)
		requirePanics(t, fixture.ErrTest, func() { bounded.TryLock() })
		bounded.Unlock() // a done context still releases
		requirePanics(t, fixture.ErrTest, bounded.Lock)
		requirePanics(t, fixture.ErrTest, func() { bounded.TryLock() })

		require.NoError(t, x.Rdb.Set(t.Context(), x.Name, "not a lock", 0).Err())
		require.Panics(t, mu.Lock)
		require.Panics(t, func() { mu.TryLock() })
		require.NoError(t, x.Rdb.Del(t.Context(), x.Name).Err())
		require.True(t, mu.TryLock(), "the Locker works again")
		mu.Unlock()

		requirePanics(t, primitives.ErrInvalid, x.C.Lock("").Locker(t.Context()).Lock)
		require.NoError(t, x.C.Close(t.Context()))
		requirePanics(t, primitives.ErrClosed, mu.Lock)
		requirePanics(t, primitives.ErrClosed, func() { mu.TryLock() })
	})
}

// A context that does not end may carry a hold that was lost. Nothing can nest under it any more,
// so Lock does not wait.
func TestLockerPanicsIfTheOuterHoldIsLost(t *testing.T) {
	t.Parallel()
	fixture.EachLock(t, func(t *testing.T, x *fixture.LockTest) {
		hold := fixture.Acquire(t, t.Context(), x.L)
		mu := x.L.Locker(context.WithoutCancel(hold.Context()))
		mu.Lock()   // nested
		mu.Unlock() //nolint:staticcheck // the critical section is empty: the test is about locking
		require.NoError(t, x.Rdb.Del(t.Context(), x.Name).Err())
		require.ErrorIs(t, hold.Check(t.Context()), primitives.ErrLost)
		requirePanics(t, primitives.ErrLost, mu.Lock)
		requirePanics(t, primitives.ErrLost, func() { mu.TryLock() })
		require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
		mu.Lock()
		mu.Unlock() //nolint:staticcheck // the critical section is empty: the test is about locking
	})
}

// Rights that are missing do not come by waiting, so Lock does not wait for them.
func TestLockerPanicsIfRightsAreMissing(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	s.SetUser(t, "bob", "on", ">"+redistest.Password, "~*", "&*", "+@all", "-@hash")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	mu := fixture.NewClient(t, s.As("bob").Client(t)).Lock(redistest.Name(t)).Locker(ctx)
	defer func() {
		err, ok := recover().(error)
		require.True(t, ok, "a panic with an error")
		require.True(t, redisutil.LacksRights(err), err)
	}()
	mu.Lock()
}

// requirePanics requires that f panics with an error that wraps want.
func requirePanics(t *testing.T, want error, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		err, ok := recover().(error)
		require.True(t, ok, "a panic with an error")
		require.ErrorIs(t, err, want)
	}()
	f()
}

// TestLockerIgnoresTheWaitOfItsHandle checks that WithWait does not bound Lock, and that Unlock
// reports a loss to the observer.
func TestLockerIgnoresTheWaitOfItsHandle(t *testing.T) {
	t.Parallel()
	fixture.EachLock(t, func(t *testing.T, x *fixture.LockTest) {
		hold := fixture.Acquire(t, t.Context(), x.L, primitives.WithLease(fixture.ShortLease))
		mu := x.C.Lock(x.Name, primitives.WithWait(0)).Locker(t.Context())
		mu.Lock()
		require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
		require.NoError(t, fixture.ErrOf(x.L.ForceRelease(t.Context())))
		mu.Unlock()
		redistest.WaitFor(t, fixture.Soon, func() bool {
			return slices.ContainsFunc(x.Heard.All(primitives.EventLost), func(e primitives.Event) bool {
				return e.ID != hold.ID()
			})
		}, "the loss of the locker's hold is reported")
	})
}

// A panic of the observer leaves the Locker unlocked, whether it hears of the acquisition or of the
// release.
func TestLockerWhoseObserverPanicsIsUnlocked(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var panics atomic.Value
		panics.Store(primitives.EventKind(""))
		x := fixture.OnLock(t, s, primitives.WithObserver(func(e primitives.Event) {
			if panics.CompareAndSwap(e.Kind, primitives.EventKind("")) {
				panic(fixture.ErrTest)
			}
		}))
		mu := x.L.Locker(t.Context())
		for range 2 {
			panics.Store(primitives.EventAcquired)
			requirePanics(t, fixture.ErrTest, func() { mu.TryLock() })
			require.True(t, mu.TryLock())
			panics.Store(primitives.EventReleased)
			requirePanics(t, fixture.ErrTest, mu.Unlock)
		}
		require.True(t, mu.TryLock())
		mu.Unlock()
		fixture.RequireClean(t, s, x.Name)
	})
}
