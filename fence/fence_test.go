package fence_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/fence"
	"github.com/redlatch/redlatch/internal/redisutil"
	"github.com/redlatch/redlatch/internal/test/redistest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

func TestRedisRefusesStaleTokens(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		for _, tt := range []struct {
			name        string
			first, then int64
			isStale     bool
		}{
			{"a greater one", 1, 2, false},
			{"the same one", 7, 7, false},
			{"a smaller one", 8, 7, true},
			{"one with fewer digits", 10, 9, true},
			{"one with more digits", 9, 10, false},
			{"the greatest one", math.MaxInt64 - 1, math.MaxInt64, false},
			{"one less than the greatest one", math.MaxInt64, math.MaxInt64 - 1, true},
		} {
			t.Run(tt.name, func(t *testing.T) {
				key := redistest.Name(t)
				require.NoError(t, fence.Redis(rdb, key, tt.first).Set(t.Context(), "first", 0))
				err := fence.Redis(rdb, key, tt.then).Set(t.Context(), []byte("then"), time.Hour)
				want, ttl := "then", time.Hour
				if tt.isStale {
					require.ErrorIs(t, err, fence.ErrStale)
					want, ttl = "first", -1
				} else {
					require.NoError(t, err)
				}
				require.Equal(t, want, rdb.Get(t.Context(), key).Val())
				require.InDelta(t, ttl, rdb.PTTL(t.Context(), key).Val(), float64(time.Minute))
				require.EqualValues(t, -1, rdb.TTL(t.Context(), "redlatch_fence:{"+key+"}").Val(), "a fence never expires")
			})
		}
	})
}

func TestRedisRefusesWhatIsNoToken(t *testing.T) {
	rdb := redistest.Redis(t).Client(t)
	name := redistest.Name(t)
	for _, err := range []error{
		fence.Redis(rdb, name, 0).Set(t.Context(), "x", 0), // the hold of a lock that is not fenced
		fence.Redis(rdb, name, -1).Set(t.Context(), "x", 0),
		fence.Redis(rdb, "", 1).Set(t.Context(), "x", 0),
		fence.Redis(rdb, name, 1).Set(t.Context(), "x", -1),
	} {
		require.Error(t, err)
		require.NotErrorIs(t, err, fence.ErrStale)
	}
	require.NoError(t, rdb.Set(t.Context(), "redlatch_fence:{"+name+"}", "somebody's", 0).Err())
	err := fence.Redis(rdb, name, 1).Set(t.Context(), "x", 0)
	require.ErrorContains(t, err, "is no token")
	require.Zero(t, rdb.Exists(t.Context(), name).Val())
}

// The fence is in its key's slot.
func TestSlots(t *testing.T) {
	rdb := redistest.Embedded(t).Client(t)
	for _, key := range []string{"a", "a{b}c", "{a", "a{", "{}"} {
		require.NoError(t, rdb.FlushAll(t.Context()).Err())
		require.NoError(t, fence.Redis(rdb, key, 1).Set(t.Context(), "x", 0))
		keys := rdb.Keys(t.Context(), "*").Val()
		require.Len(t, keys, 2)
		if key != "{}" { // no other key can have its slot by a tag
			require.Equal(t, redisutil.Slot(keys[0]), redisutil.Slot(keys[1]), keys)
		}
	}
}

// Many writers, each with its own token, in any order: the latest token wins.
func TestTheLatestTokenWins(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, key := s.Client(t), redistest.Name(t)
		var writers sync.WaitGroup
		for token := int64(1); token <= 200; token++ {
			writers.Go(func() {
				_ = fence.Redis(rdb, key, token).Set(context.Background(), token, 0)
			})
		}
		writers.Wait()
		require.Equal(t, fmt.Sprint(200), rdb.Get(t.Context(), key).Val())
	})
}
