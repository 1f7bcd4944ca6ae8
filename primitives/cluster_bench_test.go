package primitives_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// The least that a lock in Redisson's format needs, with sharded pub/sub as in primitives.
var (
	minimalAcquire = redis.NewScript(`
if redis.call('exists', KEYS[1]) == 0 then
  redis.call('hincrby', KEYS[1], ARGV[2], 1)
  redis.call('pexpire', KEYS[1], ARGV[1])
  return nil
end
return redis.call('pttl', KEYS[1])`)
	minimalRelease = redis.NewScript(`
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
  return 0
end
redis.call('del', KEYS[1])
redis.call('spublish', KEYS[2], ARGV[2])
return 1`)
)

// The cost of locks on a cluster of three masters, compared with two EVALSHA by go-redis alone: 64
// goroutines, each with a free lock of its own. Each iteration runs both for a second. Medians are
// reported. Run it with -benchtime 5x.
func BenchmarkClusterLocks(b *testing.B) {
	const goroutines = 64
	servers := redistest.Cluster(b)
	floorClient, lockClient := servers.ClusterClient(b), servers.ClusterClient(b)
	for _, s := range []*redis.Script{minimalAcquire, minimalRelease} {
		require.NoError(b, floorClient.ForEachMaster(b.Context(), func(ctx context.Context, node *redis.Client) error {
			return s.Load(ctx, node).Err()
		}))
	}
	c, err := primitives.New(lockClient)
	require.NoError(b, err)
	defer func() { _ = c.Close(context.Background()) }()
	ctx := context.Background()
	floor := func(g int) func() error {
		name := fmt.Sprint("floor", g)
		key, keys := []string{name}, []string{name, "redisson_lock__channel:{" + name + "}"}
		return func() error {
			if err := minimalAcquire.EvalSha(ctx, floorClient, key, 30000, "owner").Err(); !errors.Is(err, redis.Nil) {
				return fmt.Errorf("acquire: %w", err)
			}
			return minimalRelease.EvalSha(ctx, floorClient, keys, "owner", "0").Err()
		}
	}
	locks := func(g int) func() error {
		lock := c.Lock(fmt.Sprint("lock", g))
		return func() error {
			hold, err := lock.Acquire(ctx)
			if err != nil {
				return err
			}
			return hold.Release(ctx)
		}
	}
	// perSecond runs what pair returns in all goroutines, and returns the pairs per second.
	perSecond := func(d time.Duration, pair func(g int) func() error) float64 {
		var done atomic.Int64
		var wg sync.WaitGroup
		start := time.Now()
		for g := range goroutines {
			run := pair(g)
			wg.Go(func() {
				for time.Since(start) < d {
					if err := run(); err != nil {
						b.Error(err)
						return
					}
					done.Add(1)
				}
			})
		}
		wg.Wait()
		return float64(done.Load()) / time.Since(start).Seconds()
	}
	perSecond(200*time.Millisecond, floor)
	perSecond(200*time.Millisecond, locks)
	var floors, ours, ratios []float64
	for b.Loop() {
		floors = append(floors, perSecond(time.Second, floor))
		ours = append(ours, perSecond(time.Second, locks))
		ratios = append(ratios, ours[len(ours)-1]/floors[len(floors)-1])
	}
	for unit, values := range map[string][]float64{"floor/s": floors, "locks/s": ours, "ratio": ratios} {
		slices.Sort(values)
		b.ReportMetric(values[len(values)/2], unit)
	}
}
