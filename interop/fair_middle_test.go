package interop_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/interop/redisson"
	"github.com/redlatch/redlatch/primitives"
)

// A waiter of this library that gives up takes its time in the scores with it. Otherwise a dead
// Redisson waiter behind it would block the queue for minutes, however short its
// fairLockWaitTimeout is.
func TestFairWaiterThatLeavesShortensTheScoresBehindIt(t *testing.T) {
	for _, version := range []redisson.Version{redisson.Redisson3, redisson.Redisson4} {
		t.Run(string(version), func(t *testing.T) {
			t.Parallel()
			const name, deadlines = "fair", "redisson_lock_timeout:{fair}"
			server := redistest.Fresh(t)
			rdb := server.Client(t)
			java := redisson.Start(t, redisson.Options{Version: version}).
				Client(t, redisson.Config{Addr: server.Addr(), FairWait: 3 * time.Second})
			client, err := primitives.New(rdb)
			require.NoError(t, err)
			hold, err := client.FairLock(name).Acquire(t.Context(), primitives.WithLease(20*time.Second))
			require.NoError(t, err)
			joins := func(n int64) {
				require.Eventually(t, func() bool { return rdb.ZCard(t.Context(), deadlines).Val() == n },
					10*time.Second, 5*time.Millisecond)
			}
			first := java.FairLock(name).On("first").Go("lock")
			joins(1)
			ctx, cancel := context.WithCancel(t.Context())
			gone := make(chan error, 1)
			go func() { _, err := client.FairLock(name).Acquire(ctx); gone <- err }()
			joins(2)
			last := java.FairLock(name).On("last").Go("lock")
			joins(3)
			cancel()
			require.ErrorIs(t, <-gone, primitives.ErrNotAcquired)
			joins(2)
			scores := rdb.ZRangeWithScores(t.Context(), deadlines, 0, -1).Val()
			require.Len(t, scores, 2)
			require.InDelta(t, 3000, scores[1].Score-scores[0].Score, 3000)
			require.NoError(t, hold.Release(t.Context()))
			_, err = first.Wait(t.Context())
			require.NoError(t, err)
			require.NoError(t, java.FairLock(name).On("first").Unlock(t.Context()))
			_, err = last.Wait(t.Context())
			require.NoError(t, err)
		})
	}
}
