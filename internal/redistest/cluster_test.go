package redistest

import (
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestClusterIsSharedAndSpreadsKeys(t *testing.T) {
	c := Cluster(t)
	require.Same(t, c, Cluster(t))
	require.Len(t, c.Nodes(), 3)
	rdb := c.ClusterClient(t)
	used := map[*Server]bool{}
	for i := range 20 {
		key := Name(t) + strconv.Itoa(i)
		require.NoError(t, rdb.Set(t.Context(), key, "v", time.Minute).Err())
		node := c.Node(t, key)
		require.Equal(t, []string{key}, Keys(t, node, key))
		used[node] = true
	}
	require.Len(t, used, 3, "20 keys must reach all nodes")
	require.ErrorContains(t, c.Nodes()[0].Kill(), "shared")
}

func TestClusterThroughProxies(t *testing.T) {
	c := Cluster(t)
	var proxies []*Proxy
	for _, s := range c.Nodes() {
		p := s.Proxy(t)
		p.Record()
		p.DropReplies(1, Named("INCR"))
		proxies = append(proxies, p)
	}
	rdb := c.ClusterClient(t, func(o *redis.ClusterOptions) {
		o.Dialer, o.MaxRedirects = Dialer(proxies...), -1
	})
	key := Name(t)
	require.Error(t, rdb.Incr(t.Context(), key).Err())
	require.Equal(t, "1", rdb.Get(t.Context(), key).Val())
}

func TestFreshClusterNodesCanBeKilled(t *testing.T) {
	c := FreshCluster(t, 3)
	require.NoError(t, c.Nodes()[2].Kill())
}
