package contract

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// C26: a client crashes while two of its acquisitions wait. Another client gets the same id, and
// its heartbeats do not keep those waiters alive. Together they delay the next waiter by one waiter
// timeout.
func TestFairLockC26WaitersOfAFormerLifeTimeOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const id = "0a1b2c3d-0000-4000-8000-0123456789ab"
		s := redistest.Embedded(t)
		p := s.Proxy(t)
		other := NewClient(t, s.Client(t)).FairLock("l")
		hold := Acquire(t, t.Context(), other)
		ctx, cancel := context.WithCancel(t.Context())
		former := NewClient(t, p.Client(t, ShortTimeouts, NoRetries), primitives.WithClientID(id)).FairLock("l")
		for i := range 2 {
			StartAcquire(ctx, former)
			AwaitFair(t, other, i+1)
		}
		p.Cut()
		cancel()
		c := NewClient(t, s.Client(t), primitives.WithClientID(id))
		for range 10 {
			Release(t, Acquire(t, t.Context(), c.Lock("another")))
		}
		next := StartAcquire(t.Context(), c.FairLock("l"))
		AwaitFair(t, other, 3)
		time.Sleep(3 * time.Second) // the second client sends heartbeats
		Release(t, hold)
		began := time.Now()
		r := <-next
		require.NoError(t, r.Err)
		require.Less(t, time.Since(began), 11*time.Second)
		require.Empty(t, FairWaiters(t, other))
		Release(t, r.Hold)
		RequireClean(t, s, "l")
	})
}

// C26: clients with the same id, one after the other, subscribe to different channels, so neither
// gets messages for the other.
func TestFairLockC26ClientsOfOneIDUseDifferentChannels(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const id = "0a1b2c3d-0000-4000-8000-0123456789ab"
		s := redistest.Embedded(t)
		other := NewClient(t, s.Client(t)).FairLock("l")
		hold := Acquire(t, t.Context(), other)
		seen := map[string]bool{}
		for i := range 2 {
			c := NewClient(t, s.Client(t), primitives.WithClientID(id))
			for range 10 * i {
				Release(t, Acquire(t, t.Context(), c.Lock("another")))
			}
			ctx, cancel := context.WithCancel(t.Context())
			waiting := StartAcquire(ctx, c.FairLock("l"))
			AwaitFair(t, other, 1)
			synctest.Wait()
			for _, name := range redistest.Channels(t, s) {
				require.False(t, seen[name], name)
				seen[name] = true
			}
			cancel()
			require.ErrorIs(t, (<-waiting).Err, context.Canceled)
			CloseNow(c)
		}
		Release(t, hold)
	})
}

// Two clients wait, and the server's clock jumps. The first one may crash at that moment. Nobody waits longer than
// without the jump.
func TestFairLockAfterAJumpOfTheServersClock(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		jump    time.Duration
		crashes bool
	}{
		{"back", -5 * time.Minute, false},
		{"back, and the first waiter crashes", -5 * time.Minute, true},
		{"ahead", 5 * time.Minute, false},
		{"ahead, and the first waiter crashes", 5 * time.Minute, true},
	} {
		RunEmbedded(t, tt.name, func(t *testing.T, s *redistest.Server) {
			p := s.Proxy(t)
			ctx, cancel := context.WithCancel(t.Context())
			var ahead atomic.Int64
			var clock, waiters sync.WaitGroup
			clock.Go(func() {
				for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
					s.Mini().SetTime(time.Now().Add(time.Duration(ahead.Load())))
				}
			})
			other := NewClient(t, s.Client(t)).FairLock("l")
			hold := Acquire(t, t.Context(), other)
			waiting, crash := context.WithCancel(ctx)
			pass := func(context.Context) error { return nil }
			first := NewClient(t, p.Client(t, ShortTimeouts, NoRetries)).FairLock("l")
			waiters.Go(func() { assert.Equal(t, tt.crashes, first.Do(waiting, pass) != nil) })
			AwaitFair(t, other, 1)
			second := NewClient(t, s.Client(t)).FairLock("l")
			waiters.Go(func() { assert.NoError(t, second.Do(ctx, pass)) })
			AwaitFair(t, other, 2)
			time.Sleep(3 * time.Second)
			ahead.Store(int64(tt.jump))
			if tt.crashes {
				p.Cut()
				crash()
			}
			time.Sleep(12 * time.Second)  // a waiter that has crashed counts as dead
			_ = hold.Release(t.Context()) // if the clock is ahead, its lease is over
			began := time.Now()
			waiters.Wait()
			assert.Less(t, time.Since(began), time.Second)
			crash()
			cancel()
			clock.Wait()
		})
	}
}
