package topology

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// A master with two replicas and three sentinels fails over twice: first the master hangs and comes
// back, then, after all sentinels were restarted, its successor dies. Both clients stay the same.
func TestSentinelFailovers(t *testing.T) {
	redistest.NeedFull(t, "several fail-overs")
	t.Parallel()
	servers := redistest.SentinelReplicas(t, 2)
	f := &sentinelFailover{
		servers: servers,
		one:     fixture.NewClient(t, servers.FailoverClient(t)),
		two:     fixture.NewClient(t, servers.FailoverClient(t)),
	}
	requireHandOff(t, f.one, f.two)

	f.run(t, 15*time.Second, (*redistest.Server).Pause)
	hung := servers.Master
	across := fixture.Acquire(t, t.Context(), f.one.Lock("across"))
	require.NoError(t, hung.Resume())
	servers.AwaitHealthy(t, servers.Current(t))
	requireHandOff(t, f.one, f.two)
	require.NoError(t, across.Check(t.Context()), "the resumed master changes nothing")

	for _, sentinel := range servers.Sentinels {
		require.NoError(t, sentinel.Restart())
		servers.AwaitHealthy(t, servers.Current(t))
	}
	f.run(t, 10*time.Second, (*redistest.Server).Kill)
	require.NoError(t, across.Check(t.Context()))
	fixture.Release(t, across)
}

type sentinelFailover struct {
	servers  *redistest.SentinelServers
	one, two *primitives.Client
}

// run breaks the master and checks what happens to holders and waiters. limit is the bar for a
// waiter.
func (f *sentinelFailover) run(t *testing.T, limit time.Duration, fail func(*redistest.Server) error) {
	stalls := redistest.WatchStalls(t)
	old := f.servers.Current(t)
	name := redistest.Name(t)
	held := fixture.Acquire(t, t.Context(), f.one.Lock(name))
	brief := fixture.Acquire(t, t.Context(), f.one.Lock(name+"-brief"), primitives.WithWatchdog(fixture.ShortLease))
	waiting := fixture.StartAcquire(t.Context(), f.two.Lock(name))
	free := fixture.Start(func() (*primitives.Hold, error) { // tries while the master is down
		<-brief.Context().Done()
		return f.two.Lock(name+"-free").Acquire(t.Context(), primitives.WithWait(time.Minute))
	})
	fixture.AwaitWaiter(t, old, name)
	token := f.token(t)
	awaitReplicas(t, old, "")

	began := time.Now()
	require.NoError(t, fail(old))
	// A TTL shorter than the failover: lost, and told in time.
	fixture.RequireEnds(t, brief.Context(), primitives.ErrLost)
	late := time.Since(brief.ValidUntil())
	require.Less(t, late, 200*time.Millisecond+stalls.Since(brief.ValidUntil()))

	current := f.servers.AwaitFailover(t, old)
	elected := time.Since(began)
	for held.Release(t.Context()) != nil { // a release that fails is also repeated in the background
		require.Less(t, time.Since(began), limit)
	}
	handedOver := fixture.AwaitAcquired(t, waiting)
	require.Less(t, handedOver.At.Sub(began), limit)
	fixture.Release(t, handedOver.Hold)
	acquired := fixture.AwaitAcquired(t, free)
	require.Less(t, acquired.At.Sub(began), limit)
	fixture.Release(t, acquired.Hold)
	require.Greater(t, f.token(t), token)

	// Subscriptions follow.
	waiting = fixture.StartAcquire(t.Context(), f.two.Lock("moved"))
	fixture.Release(t, fixture.AwaitHold(t, waiting))
	requireHandOff(t, f.one, f.two)
	t.Logf("new master after %v, hand-off after %v, new lock after %v, message after at most %v",
		elected, handedOver.At.Sub(began), acquired.At.Sub(began), time.Since(began))
	require.Less(t, time.Since(began), limit)
	require.NotSame(t, old, current)
}

// token acquires a fenced lock for a moment.
func (f *sentinelFailover) token(t *testing.T) int64 {
	hold := fixture.Acquire(t, t.Context(), f.one.FencedLock("fenced"))
	defer fixture.Release(t, hold)
	return hold.Token()
}

// failoverCluster does what [redis.NewFailoverClusterClient] does, whose goroutines would outlive
// the test.
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

// A planned failover leaves the former master as it is until the sentinels make it a replica, about
// ten seconds later. The subscriptions of every kind of client that Sentinel guides move to its
// successor before.
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
	waiting := map[string]<-chan fixture.Result{}
	for name, rdb := range clients {
		c := fixture.NewClient(t, rdb)
		fixture.Acquire(t, t.Context(), fixture.NewClient(t, former.Client(t)).Lock(name))
		waiting[name] = fixture.StartAcquire(t.Context(), c.Lock(name))
		fixture.AwaitWaiter(t, former, name)
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
		require.NoError(t, fixture.ErrOf(fixture.NewClient(t, current.Client(t)).Lock(name).ForceRelease(t.Context())))
		fixture.Release(t, fixture.AwaitHold(t, waiting[name]))
	}
}

// serveSentinel is a sentinel that says who the master is. It tells nobody of a change, so a former
// master goes on as before.
func serveSentinel(t *testing.T, master *atomic.Pointer[redistest.Server]) (addr string) {
	bulk := func(s string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(s), s) }
	return redistest.Serve(t, func(conn net.Conn) {
		for r := bufio.NewReader(conn); ; {
			args, err := readCommand(r)
			if err != nil {
				return
			}
			reply := "+OK\r\n"
			switch command := strings.ToLower(args[0]); {
			case command == "hello":
				reply = "-ERR unknown command\r\n"
			case command == "subscribe":
				reply = "*3\r\n" + bulk(command) + bulk(args[1]) + ":1\r\n"
			case command == "sentinel" && strings.EqualFold(args[1], "get-master-addr-by-name"):
				host, port, _ := net.SplitHostPort(master.Load().Addr())
				reply = "*2\r\n" + bulk(host) + bulk(port)
			case command == "sentinel":
				reply = "*0\r\n"
			}
			if _, err := conn.Write([]byte(reply)); err != nil {
				return
			}
		}
	})
}

// readCommand reads a command: an array of bulk strings.
func readCommand(r *bufio.Reader) (args []string, err error) {
	var n, size int
	if _, err := fmt.Fscanf(r, "*%d\r\n", &n); err != nil {
		return nil, err
	}
	for range n {
		if _, err := fmt.Fscanf(r, "$%d\r\n", &size); err != nil {
			return nil, err
		}
		arg := make([]byte, size+len("\r\n"))
		if _, err := io.ReadFull(r, arg); err != nil {
			return nil, err
		}
		args = append(args, string(arg[:size]))
	}
	return args, nil
}

// A former master closes nothing until a sentinel has told it of its successor, which may take ten
// seconds. A waiter that stayed subscribed there would hear of no release until then, and wait for
// its next poll each time.
func TestWaitersLeaveAFormerMaster(t *testing.T) {
	t.Parallel()
	former, current := redistest.Fresh(t), redistest.Fresh(t)
	var master atomic.Pointer[redistest.Server]
	master.Store(former)
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: redistest.MasterName, SentinelAddrs: []string{serveSentinel(t, &master)},
	})
	t.Cleanup(func() { _ = rdb.Close() })
	c := fixture.NewClient(t, rdb)
	for _, s := range []*redistest.Server{former, current} { // as if it was replicated
		fixture.Acquire(t, t.Context(), fixture.NewClient(t, s.Client(t)).Lock("held"))
	}
	waiting := fixture.StartAcquire(t.Context(), c.Lock("held"))
	fixture.AwaitWaiter(t, former, "held")

	master.Store(current)
	require.NoError(t, former.Client(t).ClientKillByFilter(t.Context(), "type", "normal", "skipme", "yes").Err())
	began := time.Now()
	fixture.AwaitWaiter(t, current, "held")
	require.Less(t, time.Since(began), 5*time.Second)
	require.NotContains(t, strings.Join(redistest.Channels(t, former), " "), "{held}")
	require.NoError(t, fixture.ErrOf(fixture.NewClient(t, current.Client(t)).Lock("held").ForceRelease(t.Context())))
	fixture.Release(t, fixture.AwaitHold(t, waiting))
}
