package primitives_test

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// The floor is the lower bound of the benchmarks: the least that two scripts must do for Redisson's
// format, sent by go-redis without the library.
const (
	floorAcquire = `if redis.call('exists', KEYS[1]) == 0 then
redis.call('hincrby', KEYS[1], ARGV[1], 1) redis.call('pexpire', KEYS[1], ARGV[2]) return nil end
return redis.call('pttl', KEYS[1])`
	floorRelease = `if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then return nil end
redis.call('del', KEYS[1]) redis.call('publish', KEYS[2], '0') return 1`
)

// floor is a lock that consists of the two scripts.
type floor struct {
	rdb              *redis.Client
	acquire, release *redis.Script
	keys             []string
}

func newFloor(b *testing.B, rdb *redis.Client, name string) *floor {
	b.Helper()
	keys := []string{name, "redisson_lock__channel:{" + name + "}"}
	f := &floor{rdb, redis.NewScript(floorAcquire), redis.NewScript(floorRelease), keys}
	require.NoError(b, f.acquire.Load(b.Context(), rdb).Err())
	require.NoError(b, f.release.Load(b.Context(), rdb).Err())
	return f
}

// pair acquires and releases.
func (f *floor) pair(ctx context.Context) {
	f.rdb.EvalSha(ctx, f.acquire.Hash(), f.keys, "5b7a0e3e-8f3b-4d3a-9a2f-0c7a6f1d2e3b:1", 30000)
	f.rdb.EvalSha(ctx, f.release.Hash(), f.keys, "5b7a0e3e-8f3b-4d3a-9a2f-0c7a6f1d2e3b:1")
}

// pair acquires and releases l.
func pair(ctx context.Context, b *testing.B, l *primitives.Lock) {
	hold, err := l.Acquire(ctx)
	if err == nil {
		err = hold.Release(ctx)
	}
	if err != nil {
		b.Error(err)
	}
}

// BenchmarkSameLockAgain measures the use of one free lock again and again by one client: W15 of
// bench.
func BenchmarkSameLockAgain(b *testing.B) {
	s := redistest.Redis(b)
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	b.Run("floor", func(b *testing.B) {
		f := newFloor(b, s.Client(b), redistest.Name(b))
		b.ReportAllocs()
		for b.Loop() {
			f.pair(ctx)
		}
	})
	for _, d := range []time.Duration{0, 5 * time.Millisecond} {
		b.Run("linger "+d.String(), func(b *testing.B) {
			c, name := fixture.NewClient(b, s.Client(b)), redistest.Name(b)
			pair(ctx, b, c.Lock(name, primitives.WithLinger(d))) // it also subscribes
			b.ReportAllocs()
			for b.Loop() {
				pair(ctx, b, c.Lock(name, primitives.WithLinger(d)))
			}
		})
	}
}

// BenchmarkPair measures an uncontended acquisition and its release, also with a context that never
// ends.
func BenchmarkPair(b *testing.B) {
	s := redistest.Fresh(b)
	rdb := s.Client(b)
	f, l := newFloor(b, rdb, "floor"), fixture.NewClient(b, rdb).Lock("l")
	b.Run("floor", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			f.pair(b.Context())
		}
	})
	b.Run("lock", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			pair(b.Context(), b, l)
		}
	})
	b.Run("lock, context without end", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			pair(context.Background(), b, l)
		}
	})
}

// BenchmarkReaders measures a reader beside others, and how long the server takes for each of its
// two scripts. If all others have shorter leases, the release looks at each of them.
func BenchmarkReaders(b *testing.B) {
	for _, tt := range []struct {
		name   string
		others int
		lease  time.Duration
	}{
		{"alone", 0, 0},
		{"beside 25", 25, time.Hour},
		{"beside 25 with shorter leases", 25, time.Minute},
		{"beside 10000 with shorter leases", 10_000, time.Minute},
	} {
		b.Run(tt.name, func(b *testing.B) {
			s := redistest.Fresh(b)
			rdb := s.Client(b)
			c := fixture.NewClient(b, rdb)
			for range tt.others {
				_, err := c.RWLock("rw").Reader().Acquire(b.Context(), primitives.WithLease(tt.lease))
				require.NoError(b, err)
			}
			l := c.RWLock("rw", primitives.WithLease(time.Hour)).Reader()
			pair(b.Context(), b, l)
			require.NoError(b, rdb.ConfigResetStat(b.Context()).Err())
			for b.Loop() {
				pair(b.Context(), b, l)
			}
			stats := rdb.Info(b.Context(), "commandstats").Val()
			_, stats, _ = strings.Cut(stats, "cmdstat_evalsha:")
			_, stats, _ = strings.Cut(stats, "usec_per_call=")
			stats, _, _ = strings.Cut(stats, ",")
			each, err := strconv.ParseFloat(stats, 64)
			require.NoError(b, err)
			b.ReportMetric(each, "server-µs/script")
		})
	}
}

// BenchmarkPairs measures concurrent pairs on different names, which do not wait for each other.
func BenchmarkPairs(b *testing.B) {
	const n = 64
	s := redistest.Fresh(b)
	rdb := s.Client(b, func(o *redis.Options) { o.PoolSize = n })
	c := fixture.NewClient(b, rdb)
	b.Run("floor", func(b *testing.B) {
		concurrently(b, n, func(i int) func() {
			f := newFloor(b, rdb, "floor"+string(rune('a'+i)))
			return func() { f.pair(b.Context()) }
		})
	})
	b.Run("lock", func(b *testing.B) {
		concurrently(b, n, func(i int) func() {
			l := c.Lock("l" + string(rune('a'+i)))
			return func() { pair(b.Context(), b, l) }
		})
	})
}

// BenchmarkContended measures many goroutines that share one lock. The floor queues them in the
// process and runs the two scripts for each.
func BenchmarkContended(b *testing.B) {
	const n = 100
	s := redistest.Fresh(b)
	rdb := s.Client(b, func(o *redis.Options) { o.PoolSize = n })
	f, l := newFloor(b, rdb, "floor"), fixture.NewClient(b, rdb).Lock("l")
	queue := make(chan struct{}, 1)
	b.Run("floor", func(b *testing.B) {
		concurrently(b, n, func(int) func() {
			return func() {
				queue <- struct{}{}
				f.pair(b.Context())
				<-queue
			}
		})
	})
	b.Run("lock", func(b *testing.B) {
		concurrently(b, n, func(int) func() { return func() { pair(b.Context(), b, l) } })
	})
}

// concurrently runs b.N operations on n goroutines. of returns the operation of goroutine i.
func concurrently(b *testing.B, n int, of func(i int) func()) {
	b.Helper()
	turns := make(chan struct{}, b.N)
	for range b.N {
		turns <- struct{}{}
	}
	close(turns)
	todo := make([]func(), n)
	for i := range todo {
		todo[i] = of(i)
	}
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for _, do := range todo {
		wg.Go(func() {
			for range turns {
				do()
			}
		})
	}
	wg.Wait()
}
