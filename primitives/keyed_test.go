package primitives_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// A name is locked until it is unlocked, by any goroutine, for this Keyed and for others.
func TestKeyedLocksAndUnlocks(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var events fixture.Recorder
		name := redistest.Name(t)
		c := fixture.NewClient(t, s.Client(t), events.Option())
		keyed, other := c.Keyed(), fixture.NewClient(t, s.Client(t)).Keyed()
		try := func(k *primitives.Keyed) bool {
			t.Helper()
			locked, err := k.TryLock(t.Context(), name)
			require.NoError(t, err)
			return locked
		}
		request, done := context.WithCancel(t.Context())
		require.NoError(t, keyed.Lock(request, name))
		done() // the lock outlasts it
		require.False(t, try(keyed))
		require.False(t, try(other))
		require.NoError(t, keyed.Lock(t.Context(), name+"2"), "another name")
		require.ErrorIs(t, other.Unlock(t.Context(), name), primitives.ErrNotHeld)
		require.NoError(t, keyed.Unlock(request, name), "although ctx is done")
		require.ErrorIs(t, keyed.Unlock(t.Context(), name), primitives.ErrNotHeld)
		require.NoError(t, keyed.Unlock(t.Context(), name+"2"))
		require.True(t, try(other))
		require.NoError(t, other.Unlock(t.Context(), name))
		require.Equal(t, []primitives.EventKind{"acquired", "acquired", "released", "released"}, events.Kinds())
		fixture.RequireClean(t, s, name)
	})
}

// Goroutines exclude each other, in one process and in several.
func TestKeyedExcludes(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name, n := redistest.Name(t), 0
		var working sync.WaitGroup
		for range 2 {
			keyed := fixture.NewClient(t, s.Client(t)).Keyed()
			for range 4 {
				working.Go(func() {
					for range 20 {
						if !assert.NoError(t, keyed.Lock(t.Context(), name)) {
							return
						}
						n++
						assert.NoError(t, keyed.Unlock(t.Context(), name))
					}
				})
			}
		}
		working.Wait()
		require.Equal(t, 2*4*20, n)
		fixture.RequireClean(t, s, name)
	})
}

// Of many calls of Unlock at once, one unlocks.
func TestKeyedUnlocksOnce(t *testing.T) {
	t.Parallel()
	keyed, name := fixture.NewClient(t, redistest.Miniredis(t).Client(t)).Keyed(), redistest.Name(t)
	require.NoError(t, keyed.Lock(t.Context(), name))
	var unlocked, notHeld atomic.Int32
	fixture.Concurrently(8, func(int) {
		err := keyed.Unlock(t.Context(), name)
		if err == nil {
			unlocked.Add(1)
		} else if errors.Is(err, primitives.ErrNotHeld) {
			notHeld.Add(1)
		}
	})
	require.EqualValues(t, 1, unlocked.Load())
	require.EqualValues(t, 7, notHeld.Load())
}

// After a loss, Unlock says so, and does not free the lock of a later caller, who locks after the
// Unlock.
func TestKeyedAfterALoss(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		keyed, admin := fixture.NewClient(t, s.Client(t)).Keyed(), fixture.NewClient(t, s.Client(t))
		for what, lose := range map[string]func(){
			"known to the client": func() {
				require.ErrorIs(t, keyed.Ensure(t.Context(), name), primitives.ErrLost)
			},
			"known to Redis only": func() {},
		} {
			require.NoError(t, keyed.Lock(t.Context(), name))
			require.NoError(t, keyed.Ensure(t.Context(), name))
			require.NoError(t, s.Client(t).Del(t.Context(), name).Err())
			taken := fixture.Acquire(t, t.Context(), admin.Lock(name))
			lose()
			locked, err := keyed.TryLock(t.Context(), name)
			require.NoError(t, err, what)
			require.False(t, locked, what)
			next := fixture.Go(func() error { return keyed.Lock(t.Context(), name) })
			short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			require.ErrorIs(t, keyed.Lock(short, name), context.DeadlineExceeded, what)
			cancel()
			fixture.Release(t, taken)

			require.ErrorIs(t, keyed.Unlock(t.Context(), name), primitives.ErrLost, what)
			require.NoError(t, <-next, what)
			require.Len(t, fixture.InfoOf(t, admin.Lock(name)).Holders, 1, "the Unlock of the former caller has left it")
			require.NoError(t, keyed.Unlock(t.Context(), name), what)
		}
		require.ErrorIs(t, keyed.Ensure(t.Context(), name), primitives.ErrNotHeld)

		require.NoError(t, keyed.Lock(t.Context(), name))
		require.NoError(t, s.Client(t).Del(t.Context(), name).Err())
		require.NoError(t, keyed.Ensure(t.Context(), name), "it is locked again")
		require.Error(t, fixture.ErrOf(admin.Lock(name).TryAcquire(t.Context())))
		require.NoError(t, keyed.Unlock(t.Context(), name))
		fixture.RequireClean(t, s, name)
	})
}

// Lock may get a lock that is of no use, because the name is locked and the client does not know
// yet that this lock was lost. Then Lock does not wait until Redis has freed it, which may take
// long.
func TestKeyedDoesNotWaitForTheReleaseOfALockOfNoUse(t *testing.T) {
	t.Parallel()
	const patience = 200 * time.Millisecond
	s, name, acquired := redistest.Miniredis(t), redistest.Name(t), 0
	p := s.Proxy(t)
	keyed := fixture.NewClient(t, p.Client(t), primitives.WithObserver(func(e primitives.Event) {
		if e.Kind != primitives.EventAcquired {
			return
		}
		acquired++
		p.BlackHole(acquired == 2)
	})).Keyed()
	require.NoError(t, keyed.Lock(t.Context(), name))
	require.NoError(t, s.Client(t).Del(t.Context(), name).Err())
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	began := time.Now()
	require.ErrorIs(t, keyed.Lock(ctx, name), context.DeadlineExceeded)
	require.Less(t, time.Since(began), 2*patience)
	require.Equal(t, 2, acquired)
	p.BlackHole(false)
	p.Reset()
}

// A dead Redis is not reported as a busy lock, and bad options are reported.
func TestKeyedErrors(t *testing.T) {
	t.Parallel()
	p := redistest.Redis(t).Proxy(t)
	c := fixture.NewClient(t, p.Client(t), primitives.WithCommandTimeout(2*time.Second))
	name := redistest.Name(t)
	for _, bad := range []primitives.Option{primitives.WithLease(-1), primitives.WithHoldContext(t.Context())} {
		require.ErrorIs(t, c.Keyed(bad).Lock(t.Context(), name), primitives.ErrInvalid)
		require.ErrorIs(t, fixture.ErrOf(c.Keyed(bad).TryLock(t.Context(), name)), primitives.ErrInvalid)
	}
	require.ErrorIs(t, c.Keyed().Lock(t.Context(), ""), primitives.ErrInvalid)
	keyed := c.Keyed(primitives.WithWait(time.Second))
	require.NoError(t, keyed.Lock(t.Context(), name+"kept"))
	require.ErrorIs(t, keyed.Lock(t.Context(), name+"kept"), primitives.ErrNotAcquired, "the wait is over")

	p.BlackHole(true)
	failed := fixture.Go(func() error { return keyed.Lock(t.Context(), name) })
	require.ErrorIs(t, fixture.ErrOf(keyed.TryLock(t.Context(), name)), primitives.ErrUnavailable)
	require.ErrorIs(t, <-failed, primitives.ErrUnavailable)
	p.BlackHole(false)

	closing, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	require.Error(t, c.Close(closing), "Close counts the lock")
	require.ErrorIs(t, keyed.Lock(t.Context(), name), primitives.ErrClosed)
	require.ErrorIs(t, keyed.Unlock(t.Context(), name+"kept"), primitives.ErrClosed)
	require.ErrorIs(t, keyed.Unlock(t.Context(), name+"kept"), primitives.ErrNotHeld)
}
