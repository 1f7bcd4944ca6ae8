package contract

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/fixture"
	"github.com/redlatch/redlatch/internal/redistest"
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
		former := NewClient(t, p.Client(t, Hasty, NoRetries), primitives.WithClientID(id)).FairLock("l")
		for i := range 2 {
			Start(func() (*primitives.Hold, error) { return former.Acquire(ctx) })
			AwaitFair(t, other, i+1)
		}
		p.Refuse(true)
		p.Reset()
		cancel()
		c := NewClient(t, s.Client(t), primitives.WithClientID(id))
		for range 10 {
			Release(t, Acquire(t, t.Context(), c.Lock("another")))
		}
		next := Start(func() (*primitives.Hold, error) { return c.FairLock("l").Acquire(t.Context()) })
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

// C26: clients with the same id, one after the other, subscribe to different channels. So neither
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
			waiting := Start(func() (*primitives.Hold, error) { return c.FairLock("l").Acquire(ctx) })
			AwaitFair(t, other, 1)
			synctest.Wait()
			for _, name := range redistest.Channels(t, s) {
				require.False(t, seen[name], name)
				seen[name] = true
			}
			cancel()
			require.ErrorIs(t, (<-waiting).Err, context.Canceled)
			Shut(c)
		}
		Release(t, hold)
	})
}
