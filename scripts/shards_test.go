package scripts

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/failure"
	"github.com/redlatch/redlatch/internal/redisutil"
	"github.com/redlatch/redlatch/internal/test/redistest"
)

// clusterEnv is a runner on a cluster, with a proxy in front of each node.
type clusterEnv struct {
	servers *redistest.ClusterServers
	proxies map[*redistest.Server]*redistest.Proxy
	rdb     *redis.ClusterClient
	r       *Runner
}

func newClusterEnv(
	t *testing.T, servers *redistest.ClusterServers, tweaks ...func(*redis.ClusterOptions),
) *clusterEnv {
	e := &clusterEnv{servers: servers, proxies: map[*redistest.Server]*redistest.Proxy{}}
	var proxies []*redistest.Proxy
	for _, s := range servers.Nodes() {
		e.proxies[s] = s.Proxy(t)
		proxies = append(proxies, e.proxies[s])
	}
	base := func(o *redis.ClusterOptions) {
		dial := redistest.Dialer(proxies...)
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			return dial(ctx, network, strings.Replace(addr, "localhost", "127.0.0.1", 1)) // for oneNode
		}
		o.MinRetryBackoff, o.MaxRetryBackoff = time.Microsecond, time.Millisecond
		o.DialerRetries = 1
	}
	e.rdb = servers.ClusterClient(t, append([]func(*redis.ClusterOptions){base}, tweaks...)...)
	e.r = NewRunner(e.rdb, 0)
	t.Cleanup(e.r.Close)
	return e
}

// warm runs a command of each key, so that its node knows the script and the runner the slot map.
func (e *clusterEnv) warm(t *testing.T, keys ...string) {
	for _, key := range keys {
		require.NoError(t, errOf(e.r.Do(t.Context(), counted, []any{key}, "warm")))
	}
}

// batcher returns the batcher of key's shard.
func (e *clusterEnv) batcher(t *testing.T, key string) *batcher {
	c := newCall(counted, []any{key}, nil)
	c.end, c.ctx = e.r.ends.after(t.Context(), e.r.timeout, new(joinedContext))
	b := e.r.shards.batcher(t.Context(), c)
	require.NotNil(t, b)
	return b
}

// proxy returns the proxy in front of the node that was assigned key at the start.
func (e *clusterEnv) proxy(t *testing.T, key string) *redistest.Proxy {
	return e.proxies[e.servers.Node(t, key)]
}

// count returns how often counted has counted requests of key.
func (e *clusterEnv) count(t *testing.T, key string) string {
	return e.servers.ClusterClient(t).HGet(t.Context(), key, "n").Val()
}

// keyPerNode returns a key for each node, in the order of the nodes.
func keyPerNode(t *testing.T, servers *redistest.ClusterServers) []string {
	keys := make([]string, len(servers.Nodes()))
	for found, i := 0, 0; found < len(keys); i++ {
		key := redistest.Name(t) + fmt.Sprint(i)
		for n, s := range servers.Nodes() {
			if keys[n] == "" && servers.Node(t, key) == s {
				keys[n] = key
				found++
			}
		}
	}
	return keys
}

// sentTo counts the commands with that name and argument that p has received since Record.
func sentTo(p *redistest.Proxy, name, arg string) (n int) {
	named, mentions := redistest.Named(name), redistest.Mentions(arg)
	for _, c := range p.Commands() {
		if named(c.Args) && (arg == "" || mentions(c.Args)) {
			n++
		}
	}
	return n
}

// A shard that does not answer delays no command of another one, alone or in a batch.
func TestSilentShardDelaysNoOther(t *testing.T) {
	t.Parallel()
	e := newClusterEnv(t, redistest.Cluster(t))
	keys := keyPerNode(t, e.servers)
	e.warm(t, keys...)
	answer := e.proxy(t, keys[0]).HoldReplies(evals)
	var silent, others sync.WaitGroup
	var answered atomic.Int32
	for _, call := range countedCalls(e.r, keys[0], 4*maxDirectShard+4*maxInFlight) {
		silent.Go(func() {
			require.NoError(t, errOf(call()))
			answered.Add(1)
		})
	}
	redistest.WaitFor(t, testTimeout, func() bool { return e.proxy(t, keys[0]).Held() > maxDirectShard }, "in flight")
	for _, key := range keys[1:] {
		for _, call := range countedCalls(e.r, key, 30) {
			others.Go(func() {
				require.NoError(t, errOf(call()))
			})
		}
	}
	others.Wait()
	require.Zero(t, answered.Load())
	answer()
	silent.Wait()
	requireIdle(t, e.r)
}

// Many commands are sent in few pipelines, each to one node.
func TestShardsBatchCommands(t *testing.T) {
	t.Parallel()
	e := newClusterEnv(t, redistest.Cluster(t))
	keys := keyPerNode(t, e.servers)
	e.warm(t, keys...)
	nodes := &hook{}
	require.NoError(t, e.rdb.ForEachMaster(t.Context(), func(_ context.Context, node *redis.Client) error {
		node.AddHook(nodes)
		return nil
	}))
	for _, key := range keys {
		b, n := e.batcher(t, key), minShare
		before := nodes.pipelines
		for i, res := range runInOneBatch(t, b, countedCalls(e.r, key, n)) {
			require.NoError(t, res.err)
			require.EqualValues(t, i+2, res.reply.Value)
			require.False(t, res.reply.Doubt)
		}
		require.Equal(t, before+1, nodes.pipelines)
	}
	require.Zero(t, nodes.single)
	requireIdle(t, e.r)
}

// The runner's client has an old slot map. A command that is answered MOVED is executed once, on
// the other node. The other commands of its batch succeed without waiting for that.
func TestMovedCommandInABatch(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t)
	keys := keyPerNode(t, servers)
	here, moved := keys[0], keys[1]
	e := newClusterEnv(t, servers, oneNode(servers.Nodes()[0]))
	e.warm(t, here, moved)
	e.r.minDelay, e.r.maxDelay = time.Minute, time.Minute // following a redirection is no retry
	b := e.batcher(t, here)
	require.Same(t, b, e.batcher(t, moved))
	from, to := e.proxy(t, here), e.proxy(t, moved)
	from.Record()
	to.Record()
	answer := to.HoldReplies(evals)
	var answered atomic.Int32
	calls := append(countedCalls(e.r, here, 5), countedCalls(e.r, moved, 2)...)
	for i, call := range calls[:5] {
		calls[i] = func() (Reply, error) {
			defer answered.Add(1)
			return call()
		}
	}
	calls[0], calls[5] = calls[5], calls[0] // go-redis treats the first command of a pipeline specially
	done := make(chan []result, 1)
	go func() { done <- runInOneBatch(t, b, calls) }()
	redistest.WaitFor(t, testTimeout, func() bool { return answered.Load() == 5 }, "the others are answered")
	redistest.WaitFor(t, testTimeout, func() bool { return to.Held() == 2 }, "two commands have moved")
	answer()
	for i, res := range <-done {
		require.NoError(t, res.err, "command %d", i)
		require.False(t, res.reply.Doubt, "MOVED means: not executed")
	}
	require.Equal(t, "6", e.count(t, here))
	require.Equal(t, "3", e.count(t, moved))
	require.Equal(t, 2, sentTo(to, "evalsha", moved))
	require.Zero(t, sentTo(to, "evalsha", here))
	requireIdle(t, e.r)
}

// oneNode makes a client believe that s has all slots.
func oneNode(s *redistest.Server) func(*redis.ClusterOptions) {
	return func(o *redis.ClusterOptions) {
		o.ClusterSlots = func(context.Context) ([]redis.ClusterSlot, error) {
			// With a slot map that does not come from a node, go-redis would remove the address
			// 127.0.0.1.
			addr := strings.Replace(s.Addr(), "127.0.0.1", "localhost", 1)
			return []redis.ClusterSlot{{End: redisutil.Slots - 1, Nodes: []redis.ClusterNode{{Addr: addr}}}}, nil
		}
	}
}

// slotsAsNow makes a client believe for ever that each node has the slots that it has now.
func slotsAsNow(t *testing.T, c *redistest.ClusterServers) func(*redis.ClusterOptions) {
	//nolint:staticcheck // go-redis wants this form, and old servers have no other
	slots, err := c.Nodes()[0].Client(t).ClusterSlots(t.Context()).Result()
	require.NoError(t, err)
	for _, slot := range slots {
		for i := range slot.Nodes { // see oneNode
			slot.Nodes[i].Addr = strings.Replace(slot.Nodes[i].Addr, "127.0.0.1", "localhost", 1)
		}
	}
	return func(o *redis.ClusterOptions) {
		o.ClusterSlots = func(context.Context) ([]redis.ClusterSlot, error) { return slots, nil }
	}
}

// The caller of a moved command gives up before the answer. The command is not sent again: it could
// be executed after the caller's rollback.
func TestAbandonedMovedCommandIsNotSentAgain(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t)
	keys := keyPerNode(t, servers)
	e := newClusterEnv(t, servers, oneNode(servers.Nodes()[0]))
	e.warm(t, keys[0])
	b := e.batcher(t, keys[1])
	vacate := occupyBatcher(t, b, b.maxDirect, 0)
	from, to := e.proxy(t, keys[0]), e.proxy(t, keys[1])
	to.Record()
	answer := from.HoldReplies(evals)
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := e.r.Do(ctx, counted, []any{keys[1]}, "late")
		failed <- err
	}()
	redistest.WaitFor(t, testTimeout, func() bool { return from.Held() == 1 }, "the command is on its way")
	cancel()
	require.ErrorIs(t, <-failed, context.Canceled)
	answer()
	vacate()
	requireIdle(t, e.r)
	require.Zero(t, sentTo(to, "evalsha", ""))
}

// While a slot migrates, commands whose key has left are sent to the other node with ASKING, and
// executed once. The other commands of the slot are executed where their key still is.
func TestAskedCommandInABatch(t *testing.T) {
	redistest.NeedFull(t, "a cluster of its own")
	t.Parallel()
	servers := redistest.FreshCluster(t, 3)
	// After a slow answer the client would read the slot map again, and the commands below would go
	// to another node's batcher.
	e := newClusterEnv(t, servers, slotsAsNow(t, servers))
	keys := keyPerNode(t, servers)
	here, left := keys[0], "{"+keys[0]+"}left"
	e.warm(t, keys...)
	e.r.minDelay, e.r.maxDelay = time.Minute, time.Minute // following a redirection is no retry
	moving := servers.Migrate(t, here, servers.Nodes()[1])
	from, to := e.proxy(t, here), e.proxies[servers.Nodes()[1]]
	from.Record()
	to.Record()
	calls := append(countedCalls(e.r, left, 2), countedCalls(e.r, here, 3)...)
	for i, res := range runInOneBatch(t, e.batcher(t, here), calls) {
		require.NoError(t, res.err, "command %d", i)
		require.False(t, res.reply.Doubt, "ASK means: not executed")
	}
	require.Equal(t, 2, sentTo(to, "asking", ""))
	require.Zero(t, sentTo(to, "evalsha", here))
	require.Equal(t, "4", e.count(t, here))
	require.Zero(t, servers.Nodes()[0].Client(t).Exists(t.Context(), here+"x").Val())
	moving.Finish(t)
	for i, res := range runInOneBatch(t, e.batcher(t, here), countedCalls(e.r, left, 3)) {
		require.NoError(t, res.err, "command %d", i)
	}
	require.Equal(t, "3", e.count(t, left), "copies of two requests, and a new one")
	requireIdle(t, e.r)
}

// When a node breaks the connection of a batch, the outcome of the commands that it has not
// answered is unknown. With retries, each is counted once, and marked as in doubt.
func TestBrokenBatchOfAShard(t *testing.T) {
	t.Parallel()
	for _, redirects := range []int{-1, 3} {
		t.Run(fmt.Sprint("redirects ", redirects), func(t *testing.T) {
			const n, lost = 12, 5
			e := newClusterEnv(t, redistest.Cluster(t), func(o *redis.ClusterOptions) {
				o.MaxRedirects, o.MaxRetries = redirects, 3 // go-redis must not retry, though it is told to
			})
			key := keyPerNode(t, e.servers)[0]
			e.warm(t, key)
			e.proxy(t, key).DropReplies(1, redistest.Mentions(fmt.Sprint("request", lost)))
			for i, res := range runInOneBatch(t, e.batcher(t, key), countedCalls(e.r, key, n)) {
				if i >= lost && redirects < 0 {
					require.Equal(t, failure.Unknown, failure.Of(res.err).Outcome, "request %d", i)
					continue
				}
				require.NoError(t, res.err, "request %d", i)
				require.Equal(t, i >= lost, res.reply.Doubt, "request %d", i)
			}
			if redirects > 0 {
				require.Equal(t, fmt.Sprint(n+1), e.count(t, key))
			}
			requireIdle(t, e.r)
		})
	}
}

// A node dies with a batch. The outcome of its commands is unknown, although the node refuses the
// connections of their retries.
func TestNodeDiesWithABatch(t *testing.T) {
	redistest.NeedFull(t, "a cluster of its own")
	t.Parallel()
	servers := redistest.FreshCluster(t, 3)
	e := newClusterEnv(t, servers, func(o *redis.ClusterOptions) { o.MaxRedirects = 1 })
	keys := keyPerNode(t, servers)
	e.warm(t, keys...)
	p, b := e.proxy(t, keys[0]), e.batcher(t, keys[0])
	_ = p.HoldReplies(evals)
	done := make(chan []result, 1)
	go func() { done <- runInOneBatch(t, b, countedCalls(e.r, keys[0], 5)) }()
	redistest.WaitFor(t, testTimeout, func() bool { return p.Held() == 5 }, "in flight")
	p.Refuse(true)
	require.NoError(t, servers.Nodes()[0].Kill())
	p.Reset()
	for i, res := range <-done {
		require.Equal(t, failure.Unknown, failure.Of(res.err).Outcome, "request %d: %v", i, res.err)
	}
}

// Only the shard that does not know a script loads it.
func TestShardLoadsUnknownScripts(t *testing.T) {
	redistest.NeedFull(t, "a cluster of its own")
	t.Parallel()
	e := newClusterEnv(t, redistest.FreshCluster(t, 3))
	keys := keyPerNode(t, e.servers)
	e.warm(t, keys...)
	require.NoError(t, e.servers.Nodes()[0].Client(t).ScriptFlush(t.Context()).Err())
	for _, p := range e.proxies {
		p.Record()
	}
	for i, key := range keys[:2] {
		for _, res := range runInOneBatch(t, e.batcher(t, key), countedCalls(e.r, key, 3)) {
			require.NoError(t, res.err)
		}
		require.Equal(t, 1-i, sentTo(e.proxy(t, key), "script", ""))
	}
	requireIdle(t, e.r)
}

// Until a command was answered, the runner does not ask the client for a node: the client would
// read the slot map from the cluster, and ignore the context.
func TestFirstCommandReturnsInTime(t *testing.T) {
	t.Parallel()
	e := newClusterEnv(t, redistest.Cluster(t))
	for _, p := range e.proxies {
		p.BlackHole(true)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	stalls, start := redistest.WatchStalls(t), time.Now()
	_, err := e.r.Do(ctx, counted, []any{"k"}, "x")
	took := time.Since(start)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Less(t, took, time.Second+stalls.Since(start))
	for _, p := range e.proxies {
		p.Recover()
	}
}

// Batchers of nodes without commands are removed when a node gets its first one.
func TestBatchersOfFormerNodesAreRemoved(t *testing.T) {
	s := shards{r: &Runner{}}
	s.batches.Store(&map[*redis.Client]*batcher{})
	newEnd := func() *deadline {
		end, _ := (&deadlines{}).after(t.Context(), testTimeout, new(joinedContext))
		return end
	}
	newNode := func() *redis.Client {
		c := redis.NewClient(&redis.Options{})
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	one, two, three := newNode(), newNode(), newNode()
	first, second := newEnd(), newEnd()
	b := s.add(one, first)
	require.Same(t, b, s.add(one, first))
	require.NotSame(t, b, s.add(two, second))
	require.Len(t, *s.batches.Load(), 2)
	first.stop()
	third := s.add(three, second)
	require.Equal(t, map[*redis.Client]*batcher{two: s.add(two, second), three: third}, *s.batches.Load())
	second.stop()
}

// embedded is a user's own type, which embeds a cluster client and overrides one of its methods.
// All tests share it, because the compiler generates about 1,400 methods for each such type.
type embedded struct {
	*redis.ClusterClient
	processed atomic.Int32
}

func (c *embedded) Process(ctx context.Context, cmd redis.Cmder) error {
	c.processed.Add(1)
	return c.ClusterClient.Process(ctx, cmd)
}

// Commands of a type that embeds a cluster client are sent alone, by its own method.
func TestEmbeddedClusterClient(t *testing.T) {
	t.Parallel()
	const n = 30
	rdb := &embedded{ClusterClient: redistest.Cluster(t).ClusterClient(t)}
	r := NewRunner(rdb, 0)
	key := redistest.Name(t)
	require.NoError(t, errOf(r.Do(t.Context(), counted, []any{key}, "warm")))
	rdb.processed.Store(0)
	var wg sync.WaitGroup
	for _, call := range countedCalls(r, key, n) {
		wg.Go(func() {
			require.NoError(t, errOf(call()))
		})
	}
	wg.Wait()
	require.EqualValues(t, n, rdb.processed.Load())
	node, err := rdb.MasterForKey(t.Context(), key)
	require.NoError(t, err)
	require.Same(t, node, r.Server(key))
	requireIdle(t, r)
}

// When many dials of a node have failed, go-redis dials it once a second only. A call that comes
// when the node is back finds that out.
func TestFirstCallAfterRefusedDialsOfANode(t *testing.T) {
	t.Parallel()
	e := newClusterEnv(t, redistest.Cluster(t), func(o *redis.ClusterOptions) { o.PoolSize, o.PipelinePoolSize = 2, 2 })
	key := redistest.Name(t)
	e.warm(t, key)
	e.proxy(t, key).Refuse(true)
	e.proxy(t, key).Reset()
	var before error
	redistest.WaitFor(t, testTimeout, func() bool {
		_, err := e.r.Do(t.Context(), counted, []any{key}, "refused")
		require.Error(t, err)
		defer func() { before = err }()
		return dialedNothing(err, before)
	}, "go-redis returns the error of an earlier dial")
	e.proxy(t, key).Refuse(false)
	time.Sleep(probePause)
	require.NoError(t, errOf(e.r.Do(t.Context(), counted, []any{key}, "first")))
}

// A client that may read from replicas sends everything to masters, and asks no node which commands
// only read: COMMAND may meet a node that hangs, and all shards would wait for it.
func TestClientsThatMayReadFromReplicas(t *testing.T) {
	t.Parallel()
	for name, tweak := range map[string]func(*redis.ClusterOptions){
		"ReadOnly":       func(o *redis.ClusterOptions) { o.ReadOnly = true },
		"RouteByLatency": func(o *redis.ClusterOptions) { o.RouteByLatency = true },
		"RouteRandomly":  func(o *redis.ClusterOptions) { o.RouteRandomly = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newClusterEnv(t, redistest.Cluster(t), tweak)
			keys := keyPerNode(t, e.servers)
			for _, p := range e.proxies {
				p.Record()
				p.HoldReplies(redistest.Named("command"))
			}
			e.warm(t, keys...)
			var reads [][]any
			var present []any
			for _, key := range keys {
				require.NoError(t, errOf(e.r.Once(t.Context(), counted, []any{key}, "once")))
				require.Equal(t, "2", e.count(t, key))
				reads, present = append(reads, []any{"exists", key}), append(present, int64(1))
			}
			values, err := e.r.Commands(t.Context(), reads...)
			require.NoError(t, err)
			require.Equal(t, present, values)
			for _, p := range e.proxies {
				require.Zero(t, sentTo(p, "command", ""))
				p.Heal()
			}

			outdated := newClusterEnv(t, e.servers, tweak, oneNode(e.servers.Nodes()[0]))
			require.NoError(t, errOf(outdated.r.Once(t.Context(), counted, []any{keys[1]}, "moved")))
			outdated.warm(t, keys[2])
			require.Equal(t, "3", e.count(t, keys[1]))
		})
	}
}

// The node that has a sharded channel is asked for its listeners, because the others know of none.
func TestListenersAreCountedByTheNodeOfTheirChannel(t *testing.T) {
	t.Parallel()
	e := newClusterEnv(t, redistest.Cluster(t))
	e.r.PublishSharded()
	listener := e.servers.ClusterClient(t)
	for _, key := range keyPerNode(t, e.servers) {
		channel := "c:{" + key + "}"
		sub := listener.SSubscribe(t.Context(), channel)
		_, err := sub.Receive(t.Context())
		require.NoError(t, err)
		values, err := e.r.Reads(t.Context(), e.r.CountListeners(channel))
		require.NoError(t, err)
		require.Equal(t, []any{[]any{channel, int64(1)}}, values)
		require.NoError(t, sub.Close())
	}
}

// A node of a cluster does not answer. Close waits for the attempts until their calls end, not
// until go-redis gives up.
func TestCloseWithASilentNode(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t)
	const readTimeout = time.Minute
	e := newClusterEnv(t, servers, slotsAsNow(t, servers), func(o *redis.ClusterOptions) { o.ReadTimeout = readTimeout })
	key := redistest.Name(t)
	r := NewRunner(e.rdb, time.Second)
	require.NoError(t, errOf(r.Do(t.Context(), counted, []any{key}, "warm")))
	answer := e.proxy(t, key).HoldReplies(func(args []string) bool { return evals(args) || args[0] == "exists" })
	defer answer()
	var calls sync.WaitGroup
	for name, call := range map[string]func() error{
		"Do":   func() error { _, err := r.Do(t.Context(), counted, []any{key}, "do"); return err },
		"Once": func() error { _, err := r.Once(t.Context(), counted, []any{key}, "once"); return err },
		"Commands": func() error {
			_, err := r.Commands(t.Context(), []any{"exists", key})
			return err
		},
	} {
		calls.Go(func() { assert.Error(t, call(), name) })
	}
	began := time.Now()
	redistest.WaitFor(t, testTimeout, func() bool { return e.proxy(t, key).Held() == 3 }, "all are sent")
	r.Close()
	calls.Wait()
	require.Less(t, time.Since(began), readTimeout/2)
}
