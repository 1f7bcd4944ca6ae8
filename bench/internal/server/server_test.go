package server

import (
	"context"
	"os"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/bench/internal/contend"
	"github.com/redlatch/redlatch/internal/test/redistest"
)

func TestClusterServesAllSlotsAndSpreadsKeys(t *testing.T) {
	redistest.Require(t, redistest.NeedRedis)
	c, err := StartCluster(t.Context(), 3)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	require.Equal(t, contend.Cluster, c.Target.Network)
	rdb := contend.ClientConfig{Target: c.Target}.Dial()
	t.Cleanup(func() { _ = rdb.Close() })
	require.IsType(t, &redis.ClusterClient{}, rdb)
	const keys = 300
	for i := range keys {
		require.NoError(t, rdb.Set(t.Context(), strconv.Itoa(i), "", 0).Err())
	}
	var sum int64
	for _, node := range c.Nodes {
		n, err := node.Admin.DBSize(t.Context()).Result()
		require.NoError(t, err)
		require.Greater(t, n, int64(keys/6), "about a third of the keys")
		sum += n
	}
	require.Equal(t, int64(keys), sum)
}

func TestCloseRemovesTheFilesOfACluster(t *testing.T) {
	redistest.Require(t, redistest.NeedRedis)
	c, err := StartCluster(t.Context(), 2)
	require.NoError(t, err)
	c.Close()
	for _, node := range c.Nodes {
		require.NoDirExists(t, node.dir)
	}
}

func TestCancelledStartLeavesNoServer(t *testing.T) {
	redistest.Require(t, redistest.NeedRedis)
	t.Setenv("TMPDIR", t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := StartCluster(ctx, 3)
	require.ErrorIs(t, err, context.Canceled)
	left, err := os.ReadDir(os.TempDir())
	require.NoError(t, err)
	require.Empty(t, left)
}
