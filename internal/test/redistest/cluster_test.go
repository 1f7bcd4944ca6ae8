package redistest

import (
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestClusterIsSharedAndSpreadsKeys(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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

// A cluster with replicas fails over when a master hangs and when it dies. Its slots
// can be migrated key by key, and nodes come and go.
func TestReplicatedCluster(t *testing.T) {
	NeedFull(t, "a fail-over")
	t.Parallel()
	c := FreshReplicatedCluster(t)
	require.Len(t, c.Nodes(), 6)
	rdb := c.ClusterClient(t)
	const a, b = "{k}a", "{k}b"
	for _, key := range []string{a, b} {
		require.NoError(t, rdb.Set(t.Context(), key, key, time.Minute).Err())
	}
	requireServed := func(on *Server) {
		t.Helper()
		require.Same(t, on, c.Node(t, a))
		for _, key := range []string{a, b} { // a node that has just become a replica may be loading
			WaitFor(t, setupTimeout, func() bool { return rdb.Get(t.Context(), key).Val() == key }, "served")
		}
	}
	first := c.Node(t, a)
	require.NoError(t, first.Client(t).Wait(t.Context(), 1, time.Second).Err())

	added := c.AddNode(t)
	m := c.Migrate(t, a, added)
	m.Move(t, a)
	require.Same(t, first, m.From)
	require.Equal(t, []string{b}, m.Keys(t))
	require.Equal(t, []string{a}, Keys(t, added, a))
	requireServed(first)
	m.Finish(t)
	requireServed(added)
	c.MoveSlots(t, added, first)
	requireServed(first)
	c.RemoveNode(t, added)
	require.ErrorContains(t, added.Client(t).Get(t.Context(), a).Err(), "CLUSTERDOWN")
	require.NoError(t, first.Client(t).Wait(t.Context(), 1, time.Second).Err())

	require.NoError(t, first.Pause())
	second := c.AwaitFailover(t, a, first)
	require.NoError(t, first.Resume())
	WaitFor(t, setupTimeout, func() bool {
		return !c.views(t.Context())[first].master
	}, "the old master is a replica")
	requireServed(second)
	require.NoError(t, first.waitForReply(t.Context(), []string{"master_link_status:up"}, "info", "replication"))

	require.NoError(t, second.Kill())
	require.Same(t, first, c.AwaitFailover(t, a, second))
	again := first.Client(t)
	WaitFor(t, setupTimeout, func() bool { return again.Get(t.Context(), a).Val() == a }, "served")
}
