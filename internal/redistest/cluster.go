package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	slots        = 16384
	setupTimeout = 30 * time.Second // for servers to discover each other
	nodeTimeout  = 5 * time.Second  // long enough for a busy machine
)

// ClusterServers is a Redis cluster of masters without replicas. The slots are
// distributed evenly, in the order of the nodes.
type ClusterServers struct {
	nodes []*Server
}

// Cluster returns the cluster of three masters that all tests of this test
// binary share. The first call starts it, Main stops it. The same rules apply as
// for Redis. Without a binary the test ends as described at Missing.
func Cluster(t testing.TB) *ClusterServers {
	t.Helper()
	binary := Require(t, NeedCluster)
	shared.Lock()
	defer shared.Unlock()
	if shared.cluster != nil {
		return shared.cluster
	}
	dir, err := sharedDir()
	if err != nil {
		t.Fatal(err)
	}
	c, err := startCluster(binary, dir, 3)
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
// ends. n is at least three.
func FreshCluster(t testing.TB, n int) *ClusterServers {
	t.Helper()
	c, err := startCluster(Require(t, NeedCluster), t.TempDir(), n)
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

// Nodes returns the masters.
func (c *ClusterServers) Nodes() []*Server { return c.nodes }

// Node returns the master that was assigned key's slot at the start.
func (c *ClusterServers) Node(t testing.TB, key string) *Server {
	t.Helper()
	slot, ok := ask(t, c.nodes[0], "cluster", "keyslot", key).(int64)
	if !ok {
		t.Fatalf("redistest: no slot for %q", key)
	}
	for i, s := range c.nodes {
		if _, last := slotRange(i, len(c.nodes)); int(slot) <= last {
			return s
		}
	}
	panic("redistest: a slot without a node")
}

// MigrateSlot begins to migrate key's slot to a master, and moves no keys. Until
// finish, the old master answers ASK for keys that it does not have. finish
// assigns the slot to the new master. Keys that the old one has are then lost.
// The cluster must be fresh.
func (c *ClusterServers) MigrateSlot(t testing.TB, key string, to *Server) (finish func()) {
	t.Helper()
	from, slot := c.Node(t, key), fmt.Sprint(ask(t, c.nodes[0], "cluster", "keyslot", key))
	fromID, toID := fmt.Sprint(ask(t, from, "cluster", "myid")), fmt.Sprint(ask(t, to, "cluster", "myid"))
	ask(t, to, "cluster", "setslot", slot, "importing", fromID)
	ask(t, from, "cluster", "setslot", slot, "migrating", toID)
	return func() {
		for _, s := range c.nodes {
			if s != from {
				ask(t, s, "cluster", "setslot", slot, "node", toID)
			}
		}
		ask(t, from, "cluster", "setslot", slot, "node", toID)
	}
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

func startCluster(binary, dir string, n int) (*ClusterServers, error) {
	c := &ClusterServers{}
	for i := range n {
		home := filepath.Join(dir, strconv.Itoa(i))
		if err := os.Mkdir(home, 0o700); err != nil {
			c.stop()
			return nil, err
		}
		s, err := startNode(binary, home)
		if err != nil {
			c.stop()
			return nil, err
		}
		c.nodes = append(c.nodes, s)
	}
	if err := c.form(); err != nil {
		c.stop()
		return nil, err
	}
	return c, nil
}

// startNode starts one node. Its bus uses a port of our range too. The default
// bus port, 10000 above the client port, may be taken.
func startNode(binary, dir string) (*Server, error) {
	return startOnFreePorts("cluster", 2, func(ports []string) *process {
		return &process{binary: binary, dir: dir, args: append(baseArgs(ports[0], dir),
			"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
			"--cluster-port", ports[1],
			"--cluster-node-timeout", strconv.FormatInt(nodeTimeout.Milliseconds(), 10),
		)}
	})
}

// form makes a cluster of the nodes and waits until every node reports it as
// complete.
func (c *ClusterServers) form() error {
	ctx, cancel := context.WithTimeout(context.Background(), setupTimeout)
	defer cancel()
	for i, s := range c.nodes {
		first, last := slotRange(i, len(c.nodes))
		err := errors.Join(
			// With equal epochs the nodes would first have to resolve the conflict, which takes time.
			s.run(ctx, "cluster", "set-config-epoch", strconv.Itoa(i+1)),
			s.run(ctx, "cluster", "addslotsrange", strconv.Itoa(first), strconv.Itoa(last)),
		)
		if err == nil && i > 0 {
			err = c.nodes[0].meet(ctx, s)
		}
		if err != nil {
			return err
		}
	}
	for _, s := range c.nodes {
		want := []string{
			"cluster_state:ok",
			fmt.Sprintf("cluster_known_nodes:%d", len(c.nodes)),
			fmt.Sprintf("cluster_size:%d", len(c.nodes)),
		}
		if err := s.waitForReply(ctx, want, "cluster", "info"); err != nil {
			return err
		}
	}
	return nil
}

// slotRange returns the first and the last slot of node i of n.
func slotRange(i, n int) (first, last int) { return i * slots / n, (i+1)*slots/n - 1 }

func (s *Server) meet(ctx context.Context, other *Server) error {
	host, port, err := net.SplitHostPort(other.addr)
	if err != nil {
		return err
	}
	bus, err := other.config(ctx, "cluster-port")
	if err != nil {
		return err
	}
	return s.run(ctx, "cluster", "meet", host, port, bus)
}

func (s *Server) config(ctx context.Context, name string) (string, error) {
	rdb := redis.NewClient(adminOptions(s.addr))
	defer func() { _ = rdb.Close() }()
	values, err := rdb.ConfigGet(ctx, name).Result()
	return values[name], err
}

func (s *Server) run(ctx context.Context, args ...string) error {
	if _, err := s.do(ctx, args...); err != nil {
		return fmt.Errorf("redistest: %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// waitForReply repeats a command until its reply contains all texts of want.
func (s *Server) waitForReply(ctx context.Context, want []string, args ...string) error {
	for {
		reply, err := s.do(ctx, args...)
		text, _ := reply.(string)
		if err == nil && containsAll(text, want) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("redistest: reply of %s to %s never contained %q: %w: %q",
				s.name, strings.Join(args, " "), want, errors.Join(ctx.Err(), err), text)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func containsAll(text string, want []string) bool {
	for _, w := range want {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return true
}
