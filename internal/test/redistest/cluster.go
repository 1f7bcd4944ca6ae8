package redistest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/redlatch/redlatch/internal/redisutil"
)

const (
	setupTimeout = 30 * time.Second // for servers to discover each other
	viewTimeout  = time.Second      // for a node to tell its view of the cluster

	nodeTimeout   = 5 * time.Second // long enough for a busy machine
	promptTimeout = 2 * time.Second // nodeTimeout of a cluster with replicas
)

// ClusterServers is a Redis cluster. At the start the slots are distributed
// evenly over the masters, in their order.
type ClusterServers struct {
	nodes []*Server // the masters at the start, then the replicas, then those that were added
	spawn func() (*Server, error)
}

// Cluster returns the cluster of three masters that all tests of this test
// binary share. The first call starts it, Main stops it. The same rules apply as
// for Redis. Without a binary the test ends as described at Missing.
func Cluster(t testing.TB) *ClusterServers {
	t.Helper()
	binary := Require(t, NeedCluster)
	shared.clusterLock.Lock()
	defer shared.clusterLock.Unlock()
	if shared.cluster != nil {
		return shared.cluster
	}
	dir, err := sharedDir()
	if err != nil {
		t.Fatal(err)
	}
	c, err := startCluster(binary, dir, 3, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range c.nodes {
		s.shared = true
	}
	shared.cluster = c
	return c
}

// FreshCluster starts a cluster of n masters for t only and stops it when t
// ends.
func FreshCluster(t testing.TB, n int) *ClusterServers {
	t.Helper()
	return freshCluster(t, n, 0)
}

// FreshClusterOfDatabases is FreshCluster with two databases. It skips t if the server has no such
// clusters: Valkey has them since 9.0.
func FreshClusterOfDatabases(t testing.TB, n int) *ClusterServers {
	t.Helper()
	const setting = "cluster-databases"
	if known := Redis(t).Client(t).ConfigGet(t.Context(), setting).Val(); len(known) == 0 {
		t.Skip("the server's clusters have one database only")
	}
	return freshCluster(t, n, 0, "--"+setting, "2")
}

// FreshReplicatedCluster starts a cluster of three masters with a replica each,
// for t only, and waits until the replicas are in sync. It stops all nodes when t
// ends. A replica takes over two to four seconds after its master died or hung.
func FreshReplicatedCluster(t testing.TB) *ClusterServers {
	t.Helper()
	return freshCluster(t, 3, 3)
}

func freshCluster(t testing.TB, masters, replicas int, args ...string) *ClusterServers {
	t.Helper()
	c, err := startCluster(Require(t, NeedCluster), testDir(t), masters, replicas, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.stop)
	return c
}

func (c *ClusterServers) stop() {
	for _, s := range c.nodes {
		_ = s.proc.stop()
	}
}

// Nodes returns all nodes: the masters at the start, then their replicas in the
// same order, then nodes that were added. The test must not change the slice.
func (c *ClusterServers) Nodes() []*Server { return c.nodes }

// Node returns the master that serves key's slot now. It does not ask nodes that
// are paused or not running. It waits until a master claims the slot.
func (c *ClusterServers) Node(t testing.TB, key string) *Server {
	t.Helper()
	return c.owner(t, key, nil)
}

// AnotherNode returns a master that does not serve key's slot. The cluster must have
// no replicas.
func (c *ClusterServers) AnotherNode(t testing.TB, key string) *Server {
	t.Helper()
	serving := c.Node(t, key)
	return c.nodes[slices.IndexFunc(c.nodes, func(s *Server) bool { return s != serving })]
}

// AwaitFailover waits until another master than old serves key's slot, and
// returns it. It may be used for a slot that is migrated, too.
func (c *ClusterServers) AwaitFailover(t testing.TB, key string, old *Server) *Server {
	t.Helper()
	return c.owner(t, key, old)
}

// owner waits until a master other than old claims key's slot. If several do, for
// instance a resumed one that was replaced, the one of the latest epoch counts.
func (c *ClusterServers) owner(t testing.TB, key string, old *Server) *Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), setupTimeout)
	defer cancel()
	slot := int(redisutil.Slot(key))
	for {
		var owner *Server
		epoch := -1
		for s, v := range c.views(ctx) {
			if v.master && v.epoch > epoch && v.has(slot) {
				owner, epoch = s, v.epoch
			}
		}
		if owner != nil && owner != old {
			return owner
		}
		select {
		case <-ctx.Done():
			t.Fatalf("redistest: no master serves %q", key)
		case <-time.After(pollInterval):
		}
	}
}

// view is what a node tells of itself.
type view struct {
	id     string
	master bool
	of     string // the id of its master
	epoch  int
	slots  [][2]int // first and last of each range
}

func (v view) has(slot int) bool {
	return slices.ContainsFunc(v.slots, func(r [2]int) bool { return r[0] <= slot && slot <= r[1] })
}

// views asks all nodes that run.
func (c *ClusterServers) views(ctx context.Context) map[*Server]view {
	ctx, cancel := context.WithTimeout(ctx, viewTimeout)
	defer cancel()
	var mu sync.Mutex
	views := map[*Server]view{}
	var wg sync.WaitGroup
	for _, s := range c.running() {
		wg.Go(func() {
			reply, err := s.do(ctx, "cluster", "nodes")
			text, _ := reply.(string)
			for line := range strings.Lines(text) {
				if v, ok := parseSelf(line); ok && err == nil {
					mu.Lock()
					views[s] = v
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return views
}

// running returns the nodes that run and are not paused.
func (c *ClusterServers) running() []*Server {
	return slices.DeleteFunc(slices.Clone(c.nodes), func(s *Server) bool { return s.Pid() == 0 || s.paused.Load() })
}

// parseSelf reads the line of the reply to CLUSTER NODES that is about the node
// itself. It reports false for other lines. The fields are the id, the address,
// flags, the id of the master, two times, the epoch, the state of the link, and
// slots.
func parseSelf(line string) (v view, ok bool) {
	fields := strings.Fields(line)
	if len(fields) < 8 || !strings.Contains(fields[2], "myself") {
		return view{}, false
	}
	v.id, v.of, v.master = fields[0], fields[3], strings.Contains(fields[2], "master")
	v.epoch, _ = strconv.Atoi(fields[6])
	for _, field := range fields[8:] {
		first, last, isRange := strings.Cut(field, "-")
		if !isRange {
			last = first
		}
		from, errFrom := strconv.Atoi(first)
		to, errTo := strconv.Atoi(last)
		if errFrom == nil && errTo == nil { // else a migration, such as [93-<-id]
			v.slots = append(v.slots, [2]int{from, to})
		}
	}
	return v, true
}

func nodeID(t testing.TB, s *Server) string {
	t.Helper()
	return fmt.Sprint(ask(t, s, "cluster", "myid"))
}

// Options returns new client options for the cluster, which the caller may
// change.
func (c *ClusterServers) Options() *redis.ClusterOptions {
	o := &redis.ClusterOptions{
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	for _, s := range c.nodes {
		o.Addrs = append(o.Addrs, s.addr)
	}
	return o
}

// ClusterClient returns a client of the cluster and closes it when t ends. The
// tweaks change its options before it is made.
func (c *ClusterServers) ClusterClient(t testing.TB, tweaks ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	o := c.Options()
	for _, tweak := range tweaks {
		tweak(o)
	}
	rdb := redis.NewClusterClient(o)
	t.Cleanup(func() { _ = rdb.Close() }) // the test may have closed it
	return rdb
}
