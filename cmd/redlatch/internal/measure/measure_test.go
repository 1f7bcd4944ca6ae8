package measure

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

func measureAll(t *testing.T, rdb redis.UniversalClient, prefix string) []Result {
	t.Helper()
	var results []Result
	cfg := Config{Redis: rdb, Prefix: prefix, Timeout: 5 * time.Second, Duration: time.Second}
	require.NoError(t, Run(t.Context(), cfg, func(r Result) { results = append(results, r) }))
	require.Len(t, results, 3)
	for _, r := range results {
		require.Positive(t, r.Samples, r)
		require.Positive(t, r.PerSec, r)
		require.LessOrEqual(t, r.P50, r.P99, r)
		require.LessOrEqual(t, r.FloorP50, r.FloorP99, r)
		require.InDelta(t, r.P50/r.FloorP50, r.Ratio, 1e-9)
		require.NotEmpty(t, r.Floor)
	}
	require.Less(t, results[2].P50, 500_000.0, "waiters are woken, they do not poll")
	return results
}

func TestMeasurementsLeaveNothing(t *testing.T) {
	t.Parallel()
	t.Run("one server", func(t *testing.T) {
		t.Parallel()
		server := redistest.Fresh(t)
		measureAll(t, server.Client(t), "bench:")
		require.Empty(t, redistest.Keys(t, server, "*"))
		require.Empty(t, redistest.Channels(t, server))
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		cluster := redistest.Cluster(t)
		measureAll(t, cluster.ClusterClient(t), redistest.Name(t))
		for _, node := range cluster.Nodes() {
			require.Empty(t, redistest.Keys(t, node, "*redlatch-bench*"))
		}
	})
}

func TestInterruptedMeasurementLeavesNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Fresh(t)
	ctx, cancel := context.WithCancel(t.Context())
	cfg := Config{Redis: server.Client(t), Timeout: 5 * time.Second, Duration: time.Minute}
	time.AfterFunc(300*time.Millisecond, cancel)
	start := time.Now()
	require.ErrorIs(t, Run(ctx, cfg, func(Result) {}), context.Canceled)
	require.Less(t, time.Since(start), 5*time.Second)
	require.Empty(t, redistest.Keys(t, server, "*"))
}

func TestPercentiles(t *testing.T) {
	samples := make([]time.Duration, 100)
	for i := range samples {
		samples[99-i] = time.Duration(i+1) * time.Microsecond
	}
	require.InDelta(t, 51, percentile(samples, 50), 0.001)
	require.InDelta(t, 100, percentile(samples, 99), 0.001)
	require.InDelta(t, 1, percentile(samples[:1], 99), 0.001)
}
