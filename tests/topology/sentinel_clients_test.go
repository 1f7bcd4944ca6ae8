package topology

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
)

// failoverCluster does what [redis.NewFailoverClusterClient] does, whose goroutines would outlive the test.
func failoverCluster(t *testing.T, servers *redistest.SentinelServers) *redis.ClusterClient {
	sentinel := redis.NewSentinelClient(servers.Sentinels[0].Client(t).Options())
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		ClusterSlots: func(ctx context.Context) ([]redis.ClusterSlot, error) {
			addr, err := sentinel.GetMasterAddrByName(ctx, redistest.MasterName).Result()
			if err != nil {
				return nil, err
			}
			return []redis.ClusterSlot{{End: 16383, Nodes: []redis.ClusterNode{{Addr: net.JoinHostPort(addr[0], addr[1])}}}}, nil
		},
	})
	switched := sentinel.Subscribe(t.Context(), "+switch-master")
	var listening sync.WaitGroup
	listening.Go(func() {
		for range switched.Channel() {
			rdb.ReloadState(context.Background())
		}
	})
	t.Cleanup(func() {
		_ = switched.Close()
		listening.Wait()
		_ = rdb.Close()
		_ = sentinel.Close()
	})
	return rdb
}

// A planned failover leaves the former master as it is until the sentinels make it a replica, about ten seconds later.
// The subscriptions of every kind of client that Sentinel guides move to its successor before.
func TestSubscriptionsLeaveAFormerMasterAtOnce(t *testing.T) {
	redistest.NeedFull(t, "a fail-over")
	t.Parallel()
	servers := redistest.SentinelReplicas(t, 1)
	former := servers.Master
	clients := map[string]redis.UniversalClient{
		"client":           servers.FailoverClient(t),
		"embedded-client":  struct{ *redis.Client }{servers.FailoverClient(t)},
		"cluster":          failoverCluster(t, servers),
		"embedded-cluster": wrappedCluster{failoverCluster(t, servers)},
	}
	waiting := map[string]<-chan Result{}
	for name, rdb := range clients {
		c := NewClient(t, rdb)
		Acquire(t, t.Context(), NewClient(t, former.Client(t)).Lock(name))
		waiting[name] = StartAcquire(t.Context(), c.Lock(name))
		AwaitWaiter(t, former, name)
	}
	awaitReplicas(t, former, "")

	began := time.Now()
	sentinel := redis.NewSentinelClient(servers.Sentinels[0].Client(t).Options())
	t.Cleanup(func() { _ = sentinel.Close() })
	require.NoError(t, sentinel.Failover(t.Context(), redistest.MasterName).Err())
	current := servers.AwaitFailover(t, former)
	elected := time.Since(began)
	moved := map[string]time.Duration{}
	redistest.WaitFor(t, time.Minute, func() bool {
		channels := strings.Join(redistest.Channels(t, current), " ")
		for name := range clients {
			if moved[name] == 0 && strings.Contains(channels, "{"+name+"}") {
				moved[name] = time.Since(began) - elected
			}
		}
		return len(moved) == len(clients)
	}, "subscribed on the new master")
	t.Logf("new master after %v, then subscribed after %v", elected, moved)
	for name, took := range moved {
		require.Less(t, took, 5*time.Second, name)
		require.NoError(t, ErrOf(NewClient(t, current.Client(t)).Lock(name).ForceRelease(t.Context())))
		Release(t, AwaitHold(t, waiting[name]))
	}
}
