package wire

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// TestRWLockReleaseCostWithManyReaders bounds the Redis commands of a reader's release among ten
// thousand readers. The cost depends on whether other readers have longer leases.
func TestRWLockReleaseCostWithManyReaders(t *testing.T) {
	s := redistest.Fresh(t)
	rdb := s.Client(t)
	n := 10000
	if !redistest.Full() {
		n = 2000
	}
	type cost struct {
		time     time.Duration
		commands int64
	}
	perRelease := func(readers int, others, lease time.Duration, releases int) cost {
		x := OnRW(t, s)
		holds := make([]*primitives.Hold, releases)
		for i := range holds {
			holds[i] = Acquire(t, t.Context(), x.RW.Reader(), primitives.WithLease(time.Hour))
		}
		// Write the other readers as Redisson does. PExpireAt makes equal leases end in the same
		// millisecond.
		now := time.Now()
		pipe := rdb.Pipeline()
		for i := range readers {
			id := x.Redisson(i).ID
			pipe.HSet(t.Context(), x.Name, id, 1)
			pipe.Set(t.Context(), x.TimeoutKey(id, 1), "1", 0)
			pipe.PExpireAt(t.Context(), x.TimeoutKey(id, 1), now.Add(others))
		}
		for _, hold := range holds {
			pipe.PExpireAt(t.Context(), x.TimeoutKey(hold.ID(), 1), now.Add(lease))
		}
		pipe.PExpireAt(t.Context(), x.Name, now.Add(max(others, lease)))
		require.NoError(t, ErrOf(pipe.Exec(t.Context())))
		require.NoError(t, rdb.ConfigResetStat(t.Context()).Err())
		Release(t, holds...)
		n := time.Duration(len(holds))
		return cost{usec(t, rdb, "evalsha") / n, redistest.Commands(t, s).Total() / int64(n)}
	}
	few := perRelease(10, 2*time.Minute, time.Minute, 50)
	for _, tt := range []struct {
		name          string
		others, lease time.Duration
		releases      int
		limit         int64 // commands per release
	}{
		{"lease ends before the others", 2 * time.Minute, time.Minute, 50, 15},
		{"lease ends with the others", 2 * time.Minute, 2 * time.Minute, 50, 50},
		{"lease ends after the others", time.Minute, 2 * time.Minute, 1, int64(n) + 200},
	} {
		many := perRelease(n, tt.others, tt.lease, tt.releases)
		t.Logf("%s: %v and %d commands per release among 10 readers, %v and %d among %d", tt.name, few.time,
			few.commands, many.time, many.commands, n)
		require.Less(t, many.commands, tt.limit, tt.name)
	}
}

// usec returns how long the server has spent in a command since its statistics were reset.
func usec(t testing.TB, rdb *redis.Client, command string) time.Duration {
	t.Helper()
	stats, err := rdb.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	_, line, ok := strings.Cut(stats, "cmdstat_"+command+":")
	require.True(t, ok)
	_, figure, _ := strings.Cut(line, "usec=")
	figure, _, _ = strings.Cut(figure, ",")
	n, err := strconv.Atoi(figure)
	require.NoError(t, err)
	return time.Duration(n) * time.Microsecond
}
