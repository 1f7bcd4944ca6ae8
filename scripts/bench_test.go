package scripts

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

// The cost of the runner, compared with go-redis alone, which promises less: one command after the
// other, and 64 goroutines with a key each.
func BenchmarkRunner(b *testing.B) {
	rdb := redistest.Redis(b).Client(b, func(o *redis.Options) { o.PoolSize = 100 })
	auto, err := rdb.AutoPipeline()
	require.NoError(b, err)
	defer func() { _ = auto.Close() }()
	r := NewRunner(rdb, 0)
	defer r.Close()
	script := newScript("touch", `return redis.call('hincrby', KEYS[1], ARGV[1], ARGV[2])`)
	ctx, cancel := context.WithTimeout(b.Context(), time.Hour)
	defer cancel()
	plain := func(rdb redis.Scripter) func(key any) error {
		return func(key any) error {
			return rdb.EvalSha(ctx, script.SHA(), []string{key.(string)}, "id", 30000).Err()
		}
	}
	for _, bb := range []struct {
		name string
		run  func(key any) error
	}{
		{"floor: EvalSha", plain(rdb)},
		{"floor: EvalSha, autopipelined", plain(auto)},
		{"Do", func(key any) error { _, err := r.Do(ctx, script, []any{key}, "id", 30000); return err }},
	} {
		_, err := r.Do(ctx, script, []any{"k"}, "id", 30000) // loads the script
		require.NoError(b, err)
		b.Run(bb.name+"/1 goroutine", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, bb.run("k"))
			}
		})
		b.Run(bb.name+"/64 goroutines", func(b *testing.B) {
			b.ReportAllocs()
			b.SetParallelism(max(1, 64/runtime.GOMAXPROCS(0)))
			var n atomic.Int64
			b.RunParallel(func(pb *testing.PB) {
				for key := any(fmt.Sprint("k", n.Add(1))); pb.Next(); {
					if err := bb.run(key); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}
