package certmagiclock_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/certmagiclock"
	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

func client(t testing.TB, s *locktest.Server, opts ...primitives.ClientOption) *primitives.Client {
	t.Helper()
	c, err := primitives.New(s.Client(t), opts...)
	require.NoError(t, err)
	t.Cleanup(func() {
		done, cancel := context.WithCancel(context.Background())
		cancel()
		_ = c.Close(done) // does not wait for holds
	})
	return c
}

// Goroutines of two hosts that lock the same names exclude each other.
func TestLockerExcludes(t *testing.T) {
	s := locktest.NewServer(t)
	hosts := []*certmagiclock.Locker{certmagiclock.NewLocker(client(t, s)), certmagiclock.NewLocker(client(t, s))}
	inside := map[string]*int{"a": new(int), "b": new(int)} // the race detector finds two goroutines inside
	var all sync.WaitGroup
	for _, locker := range hosts {
		for i := range 8 {
			all.Go(func() {
				name := [...]string{"a", "b"}[i%2]
				for range 10 {
					if err := locker.Lock(t.Context(), name); err != nil {
						t.Error(err)
						return
					}
					*inside[name]++
					if err := locker.Unlock(t.Context(), name); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	all.Wait()
	require.Equal(t, 80, *inside["a"])
	require.Equal(t, 80, *inside["b"])
}

func TestTryLock(t *testing.T) {
	s := locktest.NewServer(t)
	here, there := certmagiclock.NewLocker(client(t, s)), certmagiclock.NewLocker(client(t, s))
	locked, err := here.TryLock(t.Context(), "a")
	require.NoError(t, err)
	require.True(t, locked)
	for name, other := range map[string]*certmagiclock.Locker{"this host": here, "another host": there} {
		locked, err = other.TryLock(t.Context(), "a")
		require.NoError(t, err, name)
		require.False(t, locked, name)
	}
	require.NoError(t, here.Unlock(t.Context(), "a"))
	done, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = here.TryLock(done, "a")
	require.ErrorIs(t, err, context.Canceled, "it is not known whether somebody has it")
	locked, err = there.TryLock(t.Context(), "a")
	require.NoError(t, err)
	require.True(t, locked)
	require.NoError(t, there.Unlock(t.Context(), "a"))
}

func TestLockEndsWithItsContext(t *testing.T) {
	s := locktest.NewServer(t)
	here, there := certmagiclock.NewLocker(client(t, s)), certmagiclock.NewLocker(client(t, s))
	require.NoError(t, here.Lock(t.Context(), "a"))
	for name, other := range map[string]*certmagiclock.Locker{"this host": here, "another host": there} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		require.ErrorIs(t, other.Lock(ctx, "a"), context.DeadlineExceeded, name)
		cancel()
	}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, here.Unlock(done, "a"), "certmagic unlocks with a context that may have ended")
	require.NoError(t, there.Lock(t.Context(), "a"))
	require.NoError(t, there.Unlock(t.Context(), "a"))
}

// The lock outlasts its TTL, and a host that has lost it does not unlock the next one's.
func TestLocksAreRenewedAndLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		here, there := certmagiclock.NewLocker(client(t, s)), certmagiclock.NewLocker(client(t, s))
		require.NoError(t, here.Lock(t.Context(), "a"))
		time.Sleep(time.Hour)
		locked, err := there.TryLock(t.Context(), "a")
		require.NoError(t, err)
		require.False(t, locked, "renewed for an hour")
		require.NoError(t, here.RenewLockLease(t.Context(), "a", 30*24*time.Hour), "what certmagic asks for at most")
		info, err := client(t, s).Inspect(t.Context(), "a")
		require.NoError(t, err)
		require.LessOrEqual(t, info.TTL, 30*time.Second, "if this host dies, others need not wait for longer")

		s.LoseName(t, "a")
		synctest.Wait()
		require.NoError(t, there.Lock(t.Context(), "a"))
		require.ErrorIs(t, here.RenewLockLease(t.Context(), "a", time.Minute), primitives.ErrLost)
		locked, err = here.TryLock(t.Context(), "a")
		require.NoError(t, err)
		require.False(t, locked, "the loser has not unlocked yet")
		require.ErrorIs(t, here.Unlock(t.Context(), "a"), primitives.ErrLost)
		require.NoError(t, there.Unlock(t.Context(), "a"))
	})
}

// Several goroutines renew a lock that was lost. One of them acquires it again, and all are told
// that it is held.
func TestRenewalsAtTheSameTimeAfterALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		locker := certmagiclock.NewLocker(client(t, s))
		require.NoError(t, locker.Lock(t.Context(), "a"))
		s.LoseName(t, "a")
		synctest.Wait()
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() { assert.NoError(t, locker.RenewLockLease(t.Context(), "a", time.Minute)) })
		}
		all.Wait()
		require.NoError(t, locker.Unlock(t.Context(), "a"))
	})
}

// A panic of an observer does not leave a name locked.
func TestPanicsLeaveNoNameLocked(t *testing.T) {
	for _, at := range []primitives.EventKind{primitives.EventAcquired, primitives.EventReleased} {
		t.Run(string(at), func(t *testing.T) {
			var panicked atomic.Bool
			c := client(t, locktest.NewServer(t), primitives.WithObserver(func(e primitives.Event) {
				if e.Kind == at && panicked.CompareAndSwap(false, true) {
					panic("an observer")
				}
			}))
			locker := certmagiclock.NewLocker(c)
			require.Panics(t, func() {
				_ = locker.Lock(t.Context(), "a")
				_ = locker.Unlock(t.Context(), "a")
			})
			locked, err := locker.TryLock(t.Context(), "a")
			require.NoError(t, err)
			require.True(t, locked)
			require.NoError(t, locker.Unlock(t.Context(), "a"))
		})
	}
}

func TestWithoutALock(t *testing.T) {
	locker := certmagiclock.NewLocker(client(t, locktest.NewServer(t)), primitives.WithWatchdog(-1))
	require.ErrorIs(t, locker.Unlock(t.Context(), "a"), primitives.ErrNotHeld)
	require.ErrorIs(t, locker.RenewLockLease(t.Context(), "a", time.Minute), primitives.ErrNotHeld)
	require.ErrorIs(t, locker.Lock(t.Context(), "a"), primitives.ErrInvalid)
	_, err := locker.TryLock(t.Context(), "a")
	require.ErrorIs(t, err, primitives.ErrInvalid)
}
