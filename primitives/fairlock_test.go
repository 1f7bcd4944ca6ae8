package primitives_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// Waiters of several clients acquire in the order in which they queued.
func TestFairLockServesInOrder(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx := t.Context()
		name := redistest.Name(t)
		const clients, waiters = 8, 200
		locks := make([]*primitives.Lock, clients)
		for i := range locks {
			c, err := primitives.New(s.Client(t))
			require.NoError(t, err)
			defer func() { require.NoError(t, c.Close(context.Background())) }()
			locks[i] = c.FairLock(name)
		}
		first, err := locks[0].Acquire(ctx)
		require.NoError(t, err)
		var order []int
		var wg sync.WaitGroup
		for i := range waiters {
			wg.Go(func() {
				err := locks[i%clients].Do(ctx, func(context.Context) error { order = append(order, i); return nil })
				if err != nil {
					t.Error(err)
				}
			})
			redistest.WaitFor(t, 5*time.Second, func() bool {
				info, err := locks[0].Info(ctx)
				return err == nil && len(info.Waiters) == i+1
			}, fmt.Sprintf("waiter %d is in the queue", i))
		}
		start := time.Now()
		require.NoError(t, first.Release(ctx))
		wg.Wait()
		t.Logf("%d handoffs in %v", waiters, time.Since(start))
		require.Len(t, order, waiters)
		require.IsIncreasing(t, order)
		require.Empty(t, redistest.Keys(t, s, "redisson_lock_*{"+name+"}*"))
		require.Empty(t, redistest.Keys(t, s, "redlatch_*{"+name+"}*"))
	})
}
