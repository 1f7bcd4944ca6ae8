package primitives_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

var _ sync.Locker = (*primitives.Locker)(nil)

// One Locker, shared by goroutines as a sync.Mutex is.
func TestLockerShared(t *testing.T) {
	t.Parallel()
	eachLock(t, func(t *testing.T, x *lockTest) {
		mu, n := x.l.Locker(t.Context()), 0
		other := x.other(t).Locker(t.Context())
		var wg sync.WaitGroup
		goroutines := scaled(x.s, 100)
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

func TestLockerPanics(t *testing.T) {
	eachLock(t, func(t *testing.T, x *lockTest) {
		mu := x.l.Locker(t.Context())
		require.Panics(t, mu.Unlock, "not locked")
		mu.Lock()
		mu.Unlock() //nolint:staticcheck // nothing to do inside: it is the locking that counts
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
		require.True(t, mu.TryLock(), "the gate is open again")
		mu.Unlock()

		requirePanics(t, primitives.ErrInvalid, x.c.Lock("").Locker(t.Context()).Lock)
		require.NoError(t, x.c.Close(t.Context()))
		requirePanics(t, primitives.ErrClosed, mu.Lock)
		requirePanics(t, primitives.ErrClosed, func() { mu.TryLock() })
	})
}

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

// Lock rides out an outage and tells the observer; TryLock does not wait for its end.
func TestLockerRidesOutOutages(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	p := s.Proxy(t)
	heard := &recorder{}
	name := redistest.Name(t)
	mu := newClient(t, p.Client(t, hasty), heard.option()).Lock(name).Locker(t.Context())
	p.Refuse(true)
	require.False(t, mu.TryLock())
	require.Error(t, heard.await(t, primitives.EventWait).Err)
	locked := make(chan struct{})
	go func() {
		mu.Lock()
		close(locked)
	}()
	redistest.WaitFor(t, soon, func() bool { return len(heard.all(primitives.EventWait)) > 2 }, "told")
	select {
	case <-locked:
		require.FailNow(t, "locked without Redis")
	default:
	}
	p.Heal()
	<-locked
	require.Len(t, fields(t, s, name), 1)
	mu.Unlock()
	requireClean(t, s, name)
}

// A wait that the handle bounds does not bound Lock, and a loss goes to the observer.
func TestLockerWaitsAndLoses(t *testing.T) {
	t.Parallel()
	eachLock(t, func(t *testing.T, x *lockTest) {
		hold := acquire(t, t.Context(), x.l, primitives.WithLease(300*time.Millisecond))
		mu := x.c.Lock(x.name, primitives.WithWait(0)).Locker(t.Context())
		mu.Lock()
		require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
		_, err := x.l.ForceRelease(t.Context())
		require.NoError(t, err)
		lost := len(x.heard.all(primitives.EventLost))
		mu.Unlock()
		redistest.WaitFor(t, soon, func() bool { return len(x.heard.all(primitives.EventLost)) == lost+1 }, "the loss is told")
	})
}
