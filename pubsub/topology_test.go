package pubsub

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

// plainOn returns a hub with plain pub/sub that is connected to s. A hub chooses a random master.
func plainOn(t *testing.T, rdb redis.UniversalClient, s *redistest.Server, cfg Config) (*Hub, *recorder) {
	t.Helper()
	cfg.Sharded = new(bool)
	for range 100 {
		h := open(t, rdb, cfg)
		e := listen(h, "c").awaitConfirmed(t)
		if slices.Contains(redistest.Channels(t, s), "c") {
			return h, e
		}
		h.Close()
	}
	require.FailNow(t, "no hub is connected to the server")
	return nil, nil
}

// A node leaves the cluster, as with redis-cli's del-node. It still answers, but gets no messages.
func TestPlainPubSubLeavesARemovedNode(t *testing.T) {
	redistest.NeedFull(t, "a cluster of its own")
	t.Parallel()
	c := redistest.FreshCluster(t, 3)
	removed, other := c.Nodes()[0], c.Nodes()[1]
	log := &logged{}
	_, e := plainOn(t, c.ClusterClient(t), removed, Config{limits: shortLimits, Logger: log.logger()})
	c.MoveSlots(t, removed, other)
	c.RemoveNode(t, removed)
	began := time.Now()
	// The link may move more than once: to a slot of the node that has not moved yet.
	redistest.WaitFor(t, soon, func() bool {
		return !slices.Contains(redistest.Channels(t, removed), "c")
	}, "no subscription on the removed node")
	e.awaitResubscribed(t)
	t.Logf("moved after %v; the client checks every %v, in production every %v",
		time.Since(began), shortLimits.quiet, defaultLimits.quiet)
	require.Contains(t, log.all(), "link lost")
	repeatUntilDelivered(t, e, func(text string) error { return other.Client(t).Publish(t.Context(), "c", text).Err() })
}

// A master fails over twice: it hangs for a short time and becomes a replica, then its successor
// dies. Links with the limits of production get what is published later. Redis passes messages on
// to replicas, so a link to a replica may stay.
func TestSubscriptionsFollowAClusterFailover(t *testing.T) {
	redistest.NeedFull(t, "a fail-over")
	t.Parallel()
	c := redistest.FreshReplicatedCluster(t)
	old := c.Node(t, "a")
	require.NotSame(t, old, c.Node(t, "b"))
	rdb := c.ClusterClient(t, func(o *redis.ClusterOptions) {
		o.Addrs = []string{c.Node(t, "b").Addr()} // one seed
		o.ReadTimeout = time.Second
	})
	sharded := listen(open(t, rdb, Config{}), "a").awaitConfirmed(t)
	_, plain := plainOn(t, rdb, old, Config{})
	requireDelivered := func(when string) {
		t.Helper()
		began := time.Now()
		repeatUntilDelivered(t, sharded, func(text string) error {
			return c.Node(t, "a").Client(t).SPublish(t.Context(), "a", text).Err()
		})
		repeatUntilDelivered(t, plain, func(text string) error {
			return c.Node(t, "b").Client(t).Publish(t.Context(), "c", text).Err()
		})
		t.Logf("%s: messages arrive after %v", when, time.Since(began))
	}
	requireDelivered("before")

	require.NoError(t, old.Pause())
	successor := c.AwaitFailover(t, "a", old)
	require.NoError(t, old.Resume())
	requireDelivered("after a short hang")

	redistest.WaitFor(t, soon, func() bool {
		info, err := old.Client(t).InfoMap(t.Context(), "replication").Result()
		return err == nil && info["Replication"]["master_link_status"] == "up"
	}, "the old master is a replica in sync")
	requireDelivered("as a replica")

	require.NoError(t, old.Kill())
	requireDelivered("after the death of the replica")
	require.NoError(t, old.Restart())
	redistest.WaitFor(t, soon, func() bool {
		info, err := old.Client(t).InfoMap(t.Context(), "replication").Result()
		return err == nil && info["Replication"]["master_link_status"] == "up"
	}, "the old master is a replica in sync")

	require.NoError(t, successor.Kill())
	require.Same(t, old, c.AwaitFailover(t, "a", successor))
	requireDelivered("after the death of the master")
}

// repeatUntilDelivered publishes messages until one arrives.
func repeatUntilDelivered(t *testing.T, e *recorder, publish func(text string) error) {
	t.Helper()
	limit := time.Now().Add(12 * time.Second)
	for i := 0; time.Now().Before(limit); i++ {
		text := fmt.Sprint("message ", i)
		require.NoError(t, publish(text))
		timeout := time.After(50 * time.Millisecond)
	arrivals:
		for {
			select {
			case s := <-e.signals:
				if s.Payload == text {
					return
				}
			case <-timeout:
				break arrivals
			}
		}
	}
	require.FailNow(t, "no message arrives")
}

// A slot moves to and fro while waiters for names of that slot come and go. Whatever crosses, no
// link is lost.
func TestSlotMovesDoNotEndLinks(t *testing.T) {
	redistest.NeedFull(t, "a cluster of its own")
	t.Parallel()
	c := redistest.FreshCluster(t, 3)
	rdb := c.ClusterClient(t)
	log := &logged{}
	h := open(t, rdb, Config{Logger: log.logger()})
	steady := listen(h, "{a}").awaitConfirmed(t)
	churning, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := 0; churning.Err() == nil; n++ {
				e := listen(h, fmt.Sprint("{a}", i, n%3))
				select {
				case <-e.Confirmed():
				case <-time.After(rand.N(2 * time.Millisecond)):
				}
				e.Close()
			}
		})
	}
	from, to := c.Node(t, "a"), c.AnotherNode(t, "a")
	var slowest time.Duration
	for range 20 {
		began := time.Now()
		c.Migrate(t, "a", to).Finish(t)
		steady.awaitResubscribed(t)
		slowest = max(slowest, time.Since(began))
		from, to = to, from
	}
	stop()
	wg.Wait()
	t.Logf("subscribed at the new owner at most %v after the move began", slowest)
	require.Empty(t, log.all())
}
