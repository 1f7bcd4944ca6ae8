package redistest

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/redisutil"
)

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

// MoveAtomically moves key's slot to a master by atomic slot migration, and waits until that master
// serves it: CLUSTER MIGRATESLOTS of Valkey 9, or CLUSTER MIGRATION of Redis 8.4. It skips t if the
// server has neither. The cluster must be fresh.
func (c *ClusterServers) MoveAtomically(t testing.TB, key string, to *Server) {
	t.Helper()
	from, slot := c.Node(t, key), strconv.Itoa(int(redisutil.Slot(key)))
	ctx, cancel := context.WithTimeout(t.Context(), setupTimeout)
	defer cancel()
	_, err := from.do(ctx, "cluster", "migrateslots", "slotsrange", slot, slot, "node", nodeID(t, to))
	if isUnknownCommand(err) {
		_, err = to.do(ctx, "cluster", "migration", "import", slot, slot)
	}
	if isUnknownCommand(err) {
		t.Skipf("the server has no atomic slot migration: %v", err)
	}
	if err != nil {
		t.Fatalf("redistest: migrate slot %s: %v", slot, err)
	}
	if got := c.AwaitFailover(t, key, from); got != to {
		t.Fatalf("redistest: slot %s has moved to %s", slot, got.name)
	}
}

func isUnknownCommand(err error) bool {
	return err != nil && strings.Contains(strings.ToLower(err.Error()), "unknown")
}
