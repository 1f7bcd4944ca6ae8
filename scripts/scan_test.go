package scripts

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

func TestHashes(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) redis.UniversalClient{
		"miniredis": func(t *testing.T) redis.UniversalClient { return redistest.Miniredis(t).Client(t) },
		"redis":     func(t *testing.T) redis.UniversalClient { return redistest.Redis(t).Client(t) },
		"cluster":   func(t *testing.T) redis.UniversalClient { return redistest.Cluster(t).ClusterClient(t) },
	} {
		t.Run(name, func(t *testing.T) {
			rdb := open(t)
			r := NewRunner(rdb, 0)
			defer r.Close()
			prefix := redistest.Name(t)
			var want []string
			var wg sync.WaitGroup
			for i := range 30 {
				want = append(want, fmt.Sprint(prefix, i))
				wg.Go(func() {
					_ = rdb.HSet(t.Context(), fmt.Sprint(prefix, i), "f", 1).Err()
					_ = rdb.Set(t.Context(), fmt.Sprint(prefix, i, "s"), 1, time.Minute).Err()
				})
			}
			wg.Wait()
			var got []string
			for key, err := range r.Hashes(t.Context(), prefix+"*") {
				require.NoError(t, err)
				got = append(got, key)
			}
			slices.Sort(got)
			slices.Sort(want)
			require.Equal(t, want, slices.Compact(got))
			for _, err := range r.Hashes(t.Context(), prefix+"*") {
				require.NoError(t, err)
				break
			}
			done, cancel := context.WithCancel(t.Context())
			cancel()
			for key, err := range r.Hashes(done, prefix+"*") {
				require.Empty(t, key)
				require.ErrorIs(t, err, context.Canceled)
			}
			for _, key := range want {
				require.NoError(t, rdb.Del(t.Context(), key).Err())
			}
		})
	}
}
