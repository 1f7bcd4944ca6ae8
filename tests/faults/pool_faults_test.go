package faults

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// TestSemaphoresRollBackFailedAcquisitions uses a client without retries. Its calls fail when
// replies are lost, and their permits come back.
func TestSemaphoresRollBackFailedAcquisitions(t *testing.T) {
	t.Parallel()
	fixture.EachSemaphore(t, func(t *testing.T, s *redistest.Server, open fixture.OpenSemaphore, key string) {
		ctx := t.Context()
		rdb := s.Client(t)
		p := s.Proxy(t)
		c := fixture.NewClient(t, p.Client(t, fixture.NoRetries))
		sem := open(c)
		fixture.InitPool(t, sem, 4)
		p.DropRepliesRandomly(0.5, 2, fixture.Script)
		lost := 0
		for range redistest.Scaled(s, 400) {
			hold, err := sem.TryAcquire(ctx, primitives.WithPermits(2))
			if errors.Is(err, primitives.ErrNotAcquired) {
				time.Sleep(time.Millisecond) // rollbacks may be under way
				continue
			}
			if err == nil {
				err = hold.Release(ctx)
			}
			if err != nil {
				lost++
			}
		}
		require.Positive(t, lost)
		p.Heal()
		redistest.WaitFor(t, fixture.Soon, func() bool { return fixture.Available(t, rdb, key) == 4 }, "all permits are back")
		require.NoError(t, c.Close(t.Context())) // no rollback is under way any longer
		require.Equal(t, 4, fixture.Available(t, rdb, key), "no permit is returned twice")
	})
}

// TestPermitsOfACrashedHolderComeBack cuts off one holder. Its permits come back within their TTL.
// The permits of another holder are renewed.
func TestPermitsOfACrashedHolderComeBack(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, key := t.Context(), redistest.Name(t)
		const ttl = fixture.RenewedTTL
		p := s.Proxy(t)
		crashed := fixture.NewClient(t, p.Client(t, fixture.ShortTimeouts), fixture.WideMargin,
			primitives.WithDefaults(primitives.WithWatchdog(ttl))).PermitExpirableSemaphore(key)
		sem := fixture.NewClient(t, s.Client(t),
			primitives.WithDefaults(primitives.WithWatchdog(ttl))).PermitExpirableSemaphore(key)
		fixture.InitPool(t, sem, 3)
		renewed := fixture.Acquire(t, ctx, sem)
		lost := fixture.Acquire(t, ctx, crashed, primitives.WithPermits(2))
		began := time.Now()
		p.BlackHole(true)
		hold := fixture.Acquire(t, ctx, sem, primitives.WithPermits(2))
		require.Less(t, time.Since(began), ttl+fixture.SlowPoll)
		require.Error(t, context.Cause(lost.Context()), "the lease ended before the next holder acquired")
		fixture.RequireEnds(t, lost.Context(), primitives.ErrLost)
		fixture.RequireLive(t, renewed.Context())
		require.NoError(t, renewed.Check(ctx))
		fixture.Release(t, hold)
		require.NoError(t, renewed.Release(ctx))
	})
}

// TestLatchCountIsExactWhenRepliesAreLost drops replies at random. Each CountDown counts once.
func TestLatchCountIsExactWhenRepliesAreLost(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, key, rdb := t.Context(), redistest.Name(t), s.Client(t)
		measured := redistest.Bar(t, s, 1)
		n := redistest.Sized(s, redistest.Scaled(s, 1000), 24_000)
		p := s.Proxy(t)
		p.DropRepliesRandomly(0.3, 3, fixture.Script)
		latch := fixture.NewClient(t, p.Client(t, fixture.ManyRetries)).CountDownLatch(key)
		created, err := latch.Init(ctx, n)
		require.NoError(t, err)
		require.True(t, created)
		for left := n - 1; left > 0; left-- {
			require.NoError(t, latch.CountDown(ctx))
			require.Equal(t, left, fixture.Available(t, rdb, key))
		}
		require.NoError(t, latch.CountDown(ctx))
		require.Zero(t, rdb.Exists(ctx, key).Val())
		measured("%d count-downs, with 0.43 lost replies for each", n)
	})
}
