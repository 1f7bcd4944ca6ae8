package redisutil_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redisutil"
	"github.com/redlatch/redlatch/internal/test/redistest"
)

// A cluster counts as answering while one of its masters answers.
func TestPingOfACluster(t *testing.T) {
	t.Parallel()
	silent, answering, refusing := redistest.ServeSilence(t), redistest.Miniredis(t).Addr(), "127.0.0.1:1"
	for name, tt := range map[string]struct {
		masters []string
		answers bool
	}{
		"one hangs":          {[]string{silent, silent, silent, answering}, true},
		"one refuses":        {[]string{refusing, refusing, refusing, answering}, true},
		"all hang or refuse": {[]string{refusing, silent}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			slots := func(context.Context) (slots []redis.ClusterSlot, _ error) {
				for i, addr := range tt.masters {
					n := redisutil.Slots / len(tt.masters)
					nodes := []redis.ClusterNode{{Addr: addr}}
					slots = append(slots, redis.ClusterSlot{Start: i * n, End: (i+1)*n - 1, Nodes: nodes})
				}
				return slots, nil
			}
			rdb := redis.NewClusterClient(&redis.ClusterOptions{ClusterSlots: slots, ContextTimeoutEnabled: true})
			t.Cleanup(func() { require.NoError(t, rdb.Close()) })
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if !tt.answers {
				ctx, cancel = context.WithTimeout(ctx, 100*time.Millisecond)
				defer cancel()
			}
			require.Equal(t, tt.answers, redisutil.Ping(ctx, rdb) == nil)
		})
	}
}
