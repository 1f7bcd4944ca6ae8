package primitives_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/internal/redisutil"
	"github.com/redlatch/redlatch/primitives"
)

var _ sync.Locker = (*primitives.Locker)(nil)

// TestLockerIsSharedByGoroutines uses two Lockers of one name as mutexes.
func TestLockerIsSharedByGoroutines(t *testing.T) {
	t.Parallel()
	eachLock(t, func(t *testing.T, x *lockTest) {
		mu, n := x.l.Locker(t.Context()), 0
		other := x.other(t).Locker(t.Context())
		var wg sync.WaitGroup
		goroutines := redistest.Scaled(x.s, 100)
		for i := range goroutines {
			wg.Go(func() {
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
		}
		wg.Wait()
		require.Equal(t, 3*goroutines, n)
	})
}

func TestLockerTryLock(t *testing.T) {
	t.Parallel()
	eachLock(t, func(t *testing.T, x *lockTest) {
		mu, other := x.l.Locker(t.Context()), x.other(t).Locker(t.Context())
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
	eachLock(t, func(t *testing.T, x *lockTest) {
		mu := x.l.Locker(t.Context())
		require.Panics(t, mu.Unlock, "not locked")
		mu.Lock()
		mu.Unlock() //nolint:staticcheck // the critical section is empty: the test is about locking
		require.Panics(t, mu.Unlock)

		ctx, cancel := context.WithCancelCause(t.Context())
		bounded := x.l.Locker(ctx)
		bounded.Lock()
		waiting := make(chan any, 1)
		go func() {
			defer func() { waiting <- recover() }()
			bounded.Lock()
		}()
		cancel(errTest)
		require.ErrorIs(t, (<-waiting).(error), errTest)
		requirePanics(t, errTest, func() { bounded.TryLock() })
		bounded.Unlock() // a done context still releases
		requirePanics(t, errTest, bounded.Lock)
		requirePanics(t, errTest, func() { bounded.TryLock() })

		require.NoError(t, x.rdb.Set(t.Context(), x.name, "not a lock", 0).Err())
		require.Panics(t, mu.Lock)
		require.Panics(t, func() { mu.TryLock() })
		require.NoError(t, x.rdb.Del(t.Context(), x.name).Err())
		require.True(t, mu.TryLock(), "the Locker works again")
		mu.Unlock()

		requirePanics(t, primitives.ErrInvalid, x.c.Lock("").Locker(t.Context()).Lock)
		require.NoError(t, x.c.Close(t.Context()))
		requirePanics(t, primitives.ErrClosed, mu.Lock)
		requirePanics(t, primitives.ErrClosed, func() { mu.TryLock() })
	})
}

// Rights that are missing do not come by waiting, so Lock does not wait for them.
func TestLockerPanicsIfRightsAreMissing(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	s.SetUser(t, "bob", "on", ">"+redistest.Password, "~*", "&*", "+@all", "-@hash")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	mu := newClient(t, s.As("bob").Client(t)).Lock(redistest.Name(t)).Locker(ctx)
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
	eachLock(t, func(t *testing.T, x *lockTest) {
		hold := acquire(t, t.Context(), x.l, primitives.WithLease(brief))
		mu := x.c.Lock(x.name, primitives.WithWait(0)).Locker(t.Context())
		mu.Lock()
		require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
		require.NoError(t, errOf(x.l.ForceRelease(t.Context())))
		mu.Unlock()
		redistest.WaitFor(t, soon, func() bool {
			return slices.ContainsFunc(x.heard.all(primitives.EventLost), func(e primitives.Event) bool {
				return e.ID != hold.ID()
			})
		}, "the loss of the locker's hold is reported")
	})
}
