package pubsub

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redisutil"
	"github.com/redlatch/redlatch/internal/test/redistest"
)

func TestShardedDetectsTheMode(t *testing.T) {
	t.Parallel()
	yes, no := new(bool), new(bool)
	*yes = true
	cluster := func(t *testing.T) redis.UniversalClient { return redistest.Cluster(t).ClusterClient(t) }
	single := func(t *testing.T) redis.UniversalClient { return redistest.Redis(t).Client(t) }
	for _, tt := range []struct {
		name    string
		open    func(t *testing.T) redis.UniversalClient
		sharded *bool
		want    bool
		err     error
	}{
		{"cluster, auto", cluster, nil, true, nil},
		{"cluster, on", cluster, yes, true, nil},
		{"cluster, off", cluster, no, false, nil},
		{"single, auto", single, nil, false, nil},
		{"single, on", single, yes, false, ErrUnsupported},
		{"single, off", single, no, false, nil},
		{"embedded in a struct", func(t *testing.T) redis.UniversalClient {
			return struct{ *redis.ClusterClient }{redistest.Cluster(t).ClusterClient(t)}
		}, nil, true, nil},
		{"cluster without support", func(t *testing.T) redis.UniversalClient {
			s := redistest.Miniredis(t) // supports neither SHARDNUMSUB nor SSUBSCRIBE
			return clusterClient(t, &redis.ClusterOptions{Addrs: []string{s.Addr()}})
		}, nil, false, nil},
		{"slots from a function", func(t *testing.T) redis.UniversalClient {
			s := redistest.Redis(t)
			slots := func(context.Context) ([]redis.ClusterSlot, error) {
				return []redis.ClusterSlot{{End: 16383, Nodes: []redis.ClusterNode{{Addr: s.Addr()}}}}, nil
			}
			return clusterClient(t, &redis.ClusterOptions{ClusterSlots: slots})
		}, nil, false, nil},
		{"ring", func(t *testing.T) redis.UniversalClient {
			rdb := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": redistest.Redis(t).Addr()}})
			t.Cleanup(func() { _ = rdb.Close() })
			return rdb
		}, nil, false, ErrUnsupported},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rdb := tt.open(t)
			h := open(t, rdb, Config{Sharded: tt.sharded})
			got, err := h.Sharded(t.Context())
			require.ErrorIs(t, err, tt.err)
			require.Equal(t, tt.want, got)

			e := listen(h, redistest.Name(t)).awaitReply(t)
			require.ErrorIs(t, e.Err(), tt.err)
			h.mu.Lock()
			defer h.mu.Unlock()
			if tt.err != nil {
				require.Empty(t, h.channels)
			}
		})
	}
}

func clusterClient(t *testing.T, o *redis.ClusterOptions) *redis.ClusterClient {
	rdb := redis.NewClusterClient(o)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// A failed lookup is repeated. A successful one is cached, even if the server goes down later.
func TestShardedCachesAnswersButNotErrors(t *testing.T) {
	t.Parallel()
	c := redistest.Cluster(t)
	var down atomic.Bool
	down.Store(true)
	rdb := c.ClusterClient(t, func(o *redis.ClusterOptions) {
		o.MaxRedirects, o.DialerRetries = -1, 1
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if down.Load() {
				return nil, errors.New("down")
			}
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}
	})
	h := open(t, rdb, Config{})
	_, err := h.Sharded(t.Context())
	require.Error(t, err)
	e := listen(h, redistest.Name(t))
	redistest.WaitFor(t, soon, func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return e.channel.attempts > 1
	}, "the channel is placed again and again")
	down.Store(false)
	e.awaitConfirmed(t)
	down.Store(true)
	on, err := h.Sharded(t.Context())
	require.NoError(t, err)
	require.True(t, on)
}

func TestSlotOfMatchesTheServer(t *testing.T) {
	t.Parallel()
	rdb := redistest.Cluster(t).ClusterClient(t)
	for _, name := range []string{
		"", "a", "redisson_lock__channel:{a}", "{a}b", "{}x", "a{b", "a}b", "redisson_lock__channel:{a}b}",
		"redisson_countdownlatch__channel__{{a}b}", "{a}{b}", "}{a}", "\x00\xff", "ключ",
	} {
		require.EqualValues(t, rdb.ClusterKeySlot(t.Context(), name).Val(), redisutil.Slot(name), "%q", name)
	}
}

// spublish publishes on a sharded channel.
func spublish(t *testing.T, rdb *redis.ClusterClient, channel, payload string) {
	t.Helper()
	require.NoError(t, rdb.SPublish(t.Context(), channel, payload).Err())
}

// shardChannels lists the sharded channels of all nodes.
func shardChannels(t *testing.T, c *redistest.ClusterServers) (all []string) {
	t.Helper()
	for _, s := range c.Nodes() {
		all = append(all, redistest.ShardChannels(t, s)...)
	}
	return all
}

// subscribers counts the connections of a server that have subscriptions.
func subscribers(t *testing.T, s *redistest.Server) int {
	t.Helper()
	list, err := s.Client(t).Do(t.Context(), "client", "list", "type", "pubsub").Text()
	require.NoError(t, err)
	return strings.Count(list, "\n")
}

// One node of a cluster delivers all plain messages.
func TestPlainPubSubOnAClusterUsesOneConnection(t *testing.T) {
	t.Parallel()
	c := redistest.FreshCluster(t, 3)
	rdb := c.ClusterClient(t)
	h := open(t, rdb, Config{Sharded: new(bool)})
	recorders := map[string]*recorder{}
	for i := range 10 {
		name := fmt.Sprint(redistest.Name(t), i)
		recorders[name] = listen(h, name).awaitConfirmed(t)
	}
	n := 0
	for _, s := range c.Nodes() {
		n += subscribers(t, s)
	}
	require.Equal(t, 1, n)
	for name, e := range recorders {
		publish(t, rdb, name, "0")
		require.Equal(t, Signal{Payload: "0"}, e.next(t))
		e.Close()
	}
	awaitStopped(t, h)
}

// Channels of all slots share one connection per shard. A killed connection affects only its shard.
func TestShardedPubSubUsesOneConnectionPerShard(t *testing.T) {
	t.Parallel()
	c := redistest.FreshCluster(t, 3)
	rdb := c.ClusterClient(t)
	h := open(t, rdb, Config{})
	prefix := redistest.Name(t)
	const n = 300
	recorders := make([]*recorder, n)
	name := func(i int) string { return fmt.Sprint(prefix, i) }
	for i := range recorders {
		recorders[i] = listen(h, name(i))
	}
	for i, e := range recorders {
		e.awaitConfirmed(t)
		spublish(t, rdb, name(i), "0")
		require.Equal(t, Signal{Payload: "0"}, e.next(t))
	}
	for _, s := range c.Nodes() {
		require.Equal(t, 1, subscribers(t, s))
	}
	require.Len(t, shardChannels(t, c), n)

	victim := c.Nodes()[0]
	require.NoError(t, victim.Client(t).Do(t.Context(), "client", "kill", "type", "pubsub").Err())
	for i, e := range recorders {
		if c.Node(t, name(i)) == victim {
			e.awaitResubscribed(t)
			spublish(t, rdb, name(i), "1")
			require.Equal(t, Signal{Payload: "1"}, e.next(t))
		}
		require.Empty(t, e.signals)
		e.Close()
	}
	redistest.WaitFor(t, soon, func() bool { return len(shardChannels(t, c)) == 0 }, "no channels")
	awaitStopped(t, h)

	churn(t, h)
	redistest.WaitFor(t, soon, func() bool { return len(shardChannels(t, c)) == 0 }, "no channels")
	awaitStopped(t, h)
}

// A slot moves to another shard and back. Its channels follow, other channels get no signal.
func TestSubscriptionsFollowAMovedSlot(t *testing.T) {
	t.Parallel()
	c := redistest.FreshCluster(t, 3)
	rdb := c.ClusterClient(t)
	h := open(t, rdb, Config{})
	moving := []*recorder{listen(h, "{a}1"), listen(h, "{a}1"), listen(h, "{a}2")}
	staying := listen(h, "{b}1").awaitConfirmed(t)
	for _, e := range moving {
		e.awaitConfirmed(t)
	}
	from, to := c.Node(t, "a"), c.AnotherNode(t, "a")
	moves := 1
	if redistest.Full() {
		moves = 3 // back and forth
	}
	for range moves {
		c.Migrate(t, "a", to).Finish(t)
		for _, e := range moving {
			e.awaitResubscribed(t)
		}
		require.Subset(t, redistest.ShardChannels(t, to), []string{"{a}1", "{a}2"})
		spublish(t, rdb, "{a}1", "0")
		spublish(t, rdb, "{a}2", "0")
		for _, e := range moving {
			require.Equal(t, Signal{Payload: "0"}, e.next(t))
		}
		fresh := listen(h, "{a}3").awaitConfirmed(t)
		fresh.Close()
		from, to = to, from
	}
	require.Empty(t, staying.signals)
	for _, e := range append(moving, staying) {
		e.Close()
	}
	redistest.WaitFor(t, soon, func() bool { return len(shardChannels(t, c)) == 0 }, "no channels")
	awaitStopped(t, h)
}

// assign makes server s believe that owner serves the slot.
func assign(t *testing.T, s *redistest.Server, slot uint16, owner *redistest.Server) {
	t.Helper()
	id, err := owner.Client(t).Do(t.Context(), "cluster", "myid").Text()
	require.NoError(t, err)
	require.NoError(t, s.Client(t).Do(t.Context(), "cluster", "setslot", strconv.Itoa(int(slot)), "node", id).Err())
}

// While one shard is down the others work. When another shard takes over its slots, its channels
// follow.
func TestDeadShardDoesNotAffectOtherShards(t *testing.T) {
	redistest.NeedFull(t, "a cluster of its own")
	t.Parallel()
	c := redistest.FreshCluster(t, 3)
	for _, s := range c.Nodes() {
		require.NoError(t, s.Client(t).ConfigSet(t.Context(), "cluster-require-full-coverage", "no").Err())
	}
	rdb := c.ClusterClient(t)
	h := open(t, rdb, Config{limits: shortLimits})
	on, err := h.Sharded(t.Context())
	require.NoError(t, err)
	require.True(t, on)
	dead := c.Node(t, "a")
	lost, alive := listen(h, "a").awaitConfirmed(t), listen(h, "b").awaitConfirmed(t)
	require.NotSame(t, dead, c.Node(t, "b"))
	require.NoError(t, dead.Kill())
	pending := listen(h, "{a}1")
	for i := range 20 {
		e := listen(h, fmt.Sprint("{b}", i)).awaitConfirmed(t)
		spublish(t, rdb, "b", "0")
		alive.awaitPayload(t, "0")
		e.Close()
	}
	successor := c.Node(t, "b")
	for _, s := range c.Nodes() {
		if s != dead {
			assign(t, s, redisutil.Slot("a"), successor)
		}
	}
	lost.awaitResubscribed(t)
	pending.awaitConfirmed(t)
	require.Subset(t, redistest.ShardChannels(t, successor), []string{"a", "{a}1"})
}
