package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
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

// FreshReplicatedCluster starts a cluster of three masters with a replica each,
// for t only, and waits until the replicas are in sync. It stops all nodes when t
// ends. A replica takes over two to four seconds after its master died or hung.
func FreshReplicatedCluster(t testing.TB) *ClusterServers {
	t.Helper()
	return freshCluster(t, 3, 3)
}

func freshCluster(t testing.TB, masters, replicas int) *ClusterServers {
	t.Helper()
	c, err := startCluster(Require(t, NeedCluster), testDir(t), masters, replicas)
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

// Migration is a slot that is migrated from one master to another.
type Migration struct {
	From, To *Server
	cluster  *ClusterServers
	slot     string
}

// Migrate begins to migrate key's slot to a master, and moves no keys. Until
// Finish, the old master answers ASK for keys that it does not have, and both
// answer TRYAGAIN to a command of which they have some keys only. The cluster must
// be fresh.
func (c *ClusterServers) Migrate(t testing.TB, key string, to *Server) *Migration {
	t.Helper()
	m := &Migration{c.Node(t, key), to, c, strconv.Itoa(int(redisutil.Slot(key)))}
	ask(t, m.To, "cluster", "setslot", m.slot, "importing", nodeID(t, m.From))
	ask(t, m.From, "cluster", "setslot", m.slot, "migrating", nodeID(t, m.To))
	return m
}

// Move moves keys of the slot, which must exist.
func (m *Migration) Move(t testing.TB, keys ...string) {
	t.Helper()
	if reply := m.move(t, keys...); reply != "OK" {
		t.Fatalf("redistest: migrate %q: %v", keys, reply)
	}
}

func (m *Migration) move(t testing.TB, keys ...string) any {
	t.Helper()
	host, port, _ := net.SplitHostPort(m.To.addr)
	return ask(t, m.From, append([]string{"migrate", host, port, "", "0", "5000", "keys"}, keys...)...)
}

// Keys returns the keys of the slot that the old master has.
func (m *Migration) Keys(t testing.TB) (keys []string) {
	t.Helper()
	reply, _ := ask(t, m.From, "cluster", "getkeysinslot", m.slot, "1000").([]any)
	for _, key := range reply {
		keys = append(keys, fmt.Sprint(key))
	}
	return keys
}

// Finish moves the keys that are left, and assigns the slot to the new master.
func (m *Migration) Finish(t testing.TB) {
	t.Helper()
	for keys := m.Keys(t); len(keys) > 0; keys = m.Keys(t) {
		m.move(t, keys...) // a key may have expired meanwhile
	}
	id := nodeID(t, m.To)
	// First the new master: the old one then has somebody to redirect to.
	for _, s := range []*Server{m.To, m.From} {
		ask(t, s, "cluster", "setslot", m.slot, "node", id)
	}
	for _, s := range m.cluster.running() {
		if s == m.To || s == m.From {
			continue
		}
		// A replica refuses, and learns it from its master.
		ctx, cancel := context.WithTimeout(t.Context(), setupTimeout)
		_, _ = s.do(ctx, "cluster", "setslot", m.slot, "node", id)
		cancel()
	}
}

// MoveSlots moves all slots of a master with their keys to another one. The
// cluster must be fresh.
func (c *ClusterServers) MoveSlots(t testing.TB, from, to *Server) {
	t.Helper()
	source := from.Client(t, func(o *redis.Options) { *o = *adminOptions(from.addr) })
	for _, r := range c.views(t.Context())[from].slots {
		var counts []*redis.IntCmd
		pipe := source.Pipeline()
		for slot := r[0]; slot <= r[1]; slot++ {
			counts = append(counts, pipe.ClusterCountKeysInSlot(t.Context(), slot))
		}
		if _, err := pipe.Exec(t.Context()); err != nil {
			t.Fatal(err)
		}
		var empty []string
		for i, count := range counts {
			if slot := strconv.Itoa(r[0] + i); count.Val() == 0 {
				empty = append(empty, slot)
			} else {
				m := &Migration{from, to, c, slot}
				ask(t, to, "cluster", "setslot", slot, "importing", nodeID(t, from))
				ask(t, from, "cluster", "setslot", slot, "migrating", nodeID(t, to))
				m.Finish(t)
			}
		}
		c.assign(t, to, from, empty)
	}
}

// assign assigns slots without keys to a master.
func (c *ClusterServers) assign(t testing.TB, to, from *Server, slots []string) {
	t.Helper()
	id := nodeID(t, to)
	servers := append([]*Server{to, from}, slices.DeleteFunc(c.running(), func(s *Server) bool {
		return s == to || s == from
	})...)
	for i, s := range servers {
		pipe := s.Client(t, func(o *redis.Options) { *o = *adminOptions(s.addr) }).Pipeline()
		for _, slot := range slots {
			pipe.Do(t.Context(), "cluster", "setslot", slot, "node", id)
		}
		if _, err := pipe.Exec(t.Context()); err != nil && i < 2 { // a replica refuses
			t.Fatal(err)
		}
	}
}

// AddNode starts a master without slots, adds it to the cluster, and waits until
// all nodes that run know it, and it accepts writes. The cluster must be fresh.
func (c *ClusterServers) AddNode(t testing.TB) *Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), setupTimeout)
	defer cancel()
	s, err := c.spawn()
	if err != nil {
		t.Fatal(err)
	}
	known := len(c.views(ctx)) + 1
	first := c.running()[0]
	c.nodes = append(c.nodes, s)
	if err := first.meet(ctx, s); err != nil {
		t.Fatal(err)
	}
	for _, node := range c.running() {
		want := []string{"cluster_state:ok", fmt.Sprintf("cluster_known_nodes:%d", known)}
		if err := node.waitForReply(ctx, want, "cluster", "info"); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// RemoveNode removes a master without slots from the cluster, as redis-cli's
// del-node does. Its replicas go to another master. The process goes on without
// the others.
func (c *ClusterServers) RemoveNode(t testing.TB, s *Server) {
	t.Helper()
	views := c.views(t.Context())
	removed := views[s]
	var other string
	for _, v := range views {
		if v.master && v.id != removed.id {
			other = v.id
		}
	}
	for node, v := range views {
		if v.of == removed.id {
			ask(t, node, "cluster", "replicate", other)
		}
	}
	for node := range views {
		if node != s {
			ask(t, node, "cluster", "forget", removed.id)
		}
	}
	ask(t, s, "cluster", "reset", "soft")
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

// startCluster starts a cluster. Replicas are distributed evenly over the masters.
func startCluster(binary, dir string, masters, replicas int) (*ClusterServers, error) {
	c := &ClusterServers{}
	timeout := nodeTimeout
	if replicas > 0 {
		timeout = promptTimeout
	}
	c.spawn = func() (*Server, error) {
		home, err := os.MkdirTemp(dir, "node")
		if err != nil {
			return nil, err
		}
		return startNode(binary, home, timeout)
	}
	for range masters + replicas {
		s, err := c.spawn()
		if err != nil {
			c.stop()
			return nil, err
		}
		c.nodes = append(c.nodes, s)
	}
	if err := c.form(masters); err != nil {
		c.stop()
		return nil, err
	}
	return c, nil
}

// startNode starts one node. Its bus uses a port of our range too. The default
// bus port, 10000 above the client port, may be taken.
func startNode(binary, dir string, timeout time.Duration) (*Server, error) {
	return startOnFreePorts("cluster", 2, func(ports []string) *process {
		return &process{binary: binary, dir: dir, args: append(baseArgs(ports[0], dir),
			"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
			"--cluster-port", ports[1],
			"--cluster-node-timeout", strconv.FormatInt(timeout.Milliseconds(), 10),
			"--cluster-allow-replica-migration", "no", // roles change only by failovers
			"--repl-diskless-sync-delay", "0",
		)}
	})
}

// form makes a cluster of the nodes, the first of which are masters. It waits
// until every node reports it as complete, and all replicas are in sync.
func (c *ClusterServers) form(masters int) error {
	ctx, cancel := context.WithTimeout(context.Background(), setupTimeout)
	defer cancel()
	for i, s := range c.nodes {
		// With equal epochs the nodes would first have to resolve the conflict, which takes time.
		err := s.run(ctx, "cluster", "set-config-epoch", strconv.Itoa(i+1))
		if err == nil && i < masters {
			first, last := i*redisutil.Slots/masters, (i+1)*redisutil.Slots/masters-1
			err = s.run(ctx, "cluster", "addslotsrange", strconv.Itoa(first), strconv.Itoa(last))
		}
		if err != nil {
			return err
		}
	}
	if err := c.introduce(ctx, masters); err != nil {
		return err
	}
	if err := c.awaitLinks(ctx); err != nil {
		return err
	}
	if len(c.nodes) == masters {
		return nil
	}
	// Every node must know which replica has which master, so that clients and voters do.
	var roles []string
	for i, s := range c.nodes[masters:] {
		reply, err := c.nodes[i%masters].do(ctx, "cluster", "myid")
		if err == nil {
			err = s.run(ctx, "cluster", "replicate", fmt.Sprint(reply))
		}
		if err == nil {
			err = s.waitForReply(ctx, []string{"master_link_status:up"}, "info", "replication")
		}
		if err != nil {
			return err
		}
		roles = append(roles, fmt.Sprintf("slave %s ", reply))
	}
	return c.await(ctx, roles, "cluster", "nodes")
}

// introduce makes all nodes meet each other, which is faster than the gossip of the first one, and waits until each
// node reports the cluster as complete. On a busy machine a handshake may fail, so the nodes meet again if that
// takes long.
func (c *ClusterServers) introduce(ctx context.Context, masters int) error {
	complete := []string{
		"cluster_state:ok",
		fmt.Sprintf("cluster_known_nodes:%d", len(c.nodes)),
		fmt.Sprintf("cluster_size:%d", masters),
	}
	for {
		for i, s := range c.nodes {
			for _, other := range c.nodes[i+1:] {
				if err := s.meet(ctx, other); err != nil {
					return err
				}
			}
		}
		bounded, cancel := context.WithTimeout(ctx, setupTimeout/4)
		err := c.await(bounded, complete, "cluster", "info")
		cancel()
		if err == nil || ctx.Err() != nil {
			return err
		}
	}
}

// await waits until the reply of each node to a command contains all texts of want.
func (c *ClusterServers) await(ctx context.Context, want []string, args ...string) error {
	for _, s := range c.nodes {
		if err := s.waitForReply(ctx, want, args...); err != nil {
			return err
		}
	}
	return nil
}

// awaitLinks waits until each node knows a link to and one from every other node. A message that is
// published before may not reach all of them.
func (c *ClusterServers) awaitLinks(ctx context.Context) error {
	want := 2 * (len(c.nodes) - 1)
	linked := func(reply any) bool {
		links, _ := reply.([]any)
		return len(links) == want
	}
	for _, s := range c.nodes {
		if err := s.waitUntil(ctx, linked, fmt.Sprint(want, " links"), "cluster", "links"); err != nil {
			return err
		}
	}
	return nil
}

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
	found := func(reply any) bool {
		text, _ := reply.(string)
		return containsAll(text, want)
	}
	return s.waitUntil(ctx, found, fmt.Sprintf("%q", want), args...)
}

// waitUntil repeats a command until its reply is good. want describes such a reply.
func (s *Server) waitUntil(ctx context.Context, good func(reply any) bool, want string, args ...string) error {
	for {
		reply, err := s.do(ctx, args...)
		if err == nil && good(reply) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("redistest: reply of %s to %s never contained %s: %w: %q",
				s.name, strings.Join(args, " "), want, errors.Join(ctx.Err(), err), reply)
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
