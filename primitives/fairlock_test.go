package primitives_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
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
		first := fixture.Acquire(t, ctx, locks[0])
		var order []int
		var wg sync.WaitGroup
		for i := range waiters {
			wg.Go(func() {
				assert.NoError(t, locks[i%clients].Do(ctx, func(context.Context) error { order = append(order, i); return nil }))
			})
			redistest.WaitFor(t, 5*time.Second, func() bool {
				info, err := locks[0].Info(ctx)
				return err == nil && len(info.Waiters) == i+1
			}, fmt.Sprintf("waiter %d is in the queue", i))
		}
		start := time.Now()
		fixture.Release(t, first)
		wg.Wait()
		t.Logf("%d handoffs in %v", waiters, time.Since(start))
		require.Len(t, order, waiters)
		require.IsIncreasing(t, order)
		require.Empty(t, redistest.Keys(t, s, "redisson_lock_*{"+name+"}*"))
		require.Empty(t, redistest.Keys(t, s, "redlatch_*{"+name+"}*"))
	})
}

// Whoever may publish on a client's channel can send grants to ids without a waiter, of any size.
// They are not kept.
func TestFairLockKeepsNoGrantsOfOthers(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	rdb, name := s.Client(t), redistest.Name(t)
	near, far := fixture.NewClient(t, s.Client(t)), fixture.NewClient(t, s.Client(t))
	hold := fixture.Acquire(t, t.Context(), near.FairLock(name))
	waiting := fixture.StartAcquire(t.Context(), far.FairLock(name))
	fixture.AwaitFair(t, far.FairLock(name), 1)
	channel := fixture.GrantChannel(t, s, name)
	for i := range 100 {
		own := far.ID() + ":"
		for _, id := range []string{"nobody:", own + strings.Repeat("0", 30), own + strings.Repeat("0", 100_000)} {
			require.NoError(t, rdb.Publish(t.Context(), channel, fmt.Sprint(id, i, " 1 30000")).Err())
		}
	}
	fixture.Release(t, hold) // its grant comes after them
	fixture.Release(t, fixture.AwaitHold(t, waiting))
	fixture.CloseNow(far)
	require.Zero(t, earlyGrants(t, far))
}

// The server's time for a handoff does not depend on the number of waiters: with 10,000 it is less
// than twice that with 10, even where other tests use the processor's caches.
func TestFairLockHandoffCostIsIndependentOfTheQueue(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	few, many := fixture.NewRawQueue(t, s, 10), fixture.NewRawQueue(t, s, 10000)
	const rounds, calls = 40, 25
	a, b := few.Each(calls, few.HandOff), many.Each(calls, many.HandOff)
	for range rounds { // the fastest round of each is one that the machine did not interrupt
		a, b = min(a, few.Each(calls, few.HandOff)), min(b, many.Each(calls, many.HandOff))
	}
	ratio := float64(b) / float64(a)
	t.Logf("a handoff with 10,000 waiters costs %.2f times one with 10; a heartbeat takes %v",
		ratio, many.Each(50, many.Heartbeat))
	require.Less(t, ratio, 2.0)
}

func BenchmarkFairLock(b *testing.B) {
	for _, n := range []int{10, 1000, 10000} {
		b.Run(fmt.Sprintf("handoff, %d waiters", n), func(b *testing.B) {
			c := fixture.NewRawQueue(b, redistest.Fresh(b), n)
			before := c.ScriptTime()
			for b.Loop() {
				c.HandOff()
			}
			b.ReportMetric(float64((c.ScriptTime()-before).Nanoseconds())/float64(b.N), "server-ns/op")
		})
		b.Run(fmt.Sprintf("heartbeat, %d waiters", n), func(b *testing.B) {
			c := fixture.NewRawQueue(b, redistest.Fresh(b), n)
			before := c.ScriptTime()
			for b.Loop() {
				c.Heartbeat()
			}
			b.ReportMetric(float64((c.ScriptTime()-before).Nanoseconds())/float64(b.N), "server-ns/op")
		})
	}
	b.Run("uncontended", func(b *testing.B) {
		l := fixture.NewClient(b, redistest.Redis(b).Client(b)).FairLock(redistest.Name(b))
		for b.Loop() {
			fixture.Release(b, fixture.Acquire(b, b.Context(), l))
		}
	})
	b.Run("floor: plain lock, uncontended", func(b *testing.B) {
		l := fixture.NewClient(b, redistest.Redis(b).Client(b)).Lock(redistest.Name(b))
		for b.Loop() {
			fixture.Release(b, fixture.Acquire(b, b.Context(), l))
		}
	})
}
