package torture

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

// The faults that need servers of the harness.

// wipe deletes the data of a server that is not running.
func (d *deployment) wipe(s *redistest.Server) error {
	return os.RemoveAll(filepath.Join(d.homes[s], "appendonlydir"))
}

// on runs f with a client of one server.
func on[T any](s *redistest.Server, f func(ctx context.Context, rdb *redis.Client) (T, error)) (T, error) {
	ctx, cancel := soon()
	defer cancel()
	rdb := redis.NewClient(s.Options())
	defer func() { _ = rdb.Close() }()
	return f(ctx, rdb)
}

func command(s *redistest.Server, args ...any) (any, error) {
	return on(s, func(ctx context.Context, rdb *redis.Client) (any, error) { return rdb.Do(ctx, args...).Result() })
}

// master returns the server that the Sentinels call the master.
func (d *deployment) master() (*redistest.Server, error) {
	reply, err := command(d.sentinels[0], "SENTINEL", "get-master-addr-by-name", d.Master)
	if err != nil {
		return nil, err
	}
	at, _ := reply.([]any)
	if len(at) != 2 {
		return nil, fmt.Errorf("torture: the Sentinel knows no master: %v", reply)
	}
	return d.server(net.JoinHostPort(fmt.Sprint(at[0]), fmt.Sprint(at[1])))
}

func (d *deployment) server(addr string) (*redistest.Server, error) {
	i := slices.IndexFunc(d.servers, func(s *redistest.Server) bool { return s.Addr() == addr })
	if i < 0 {
		return nil, fmt.Errorf("torture: no server at %s", addr)
	}
	return d.servers[i], nil
}

// clusterNode is a line of CLUSTER NODES.
type clusterNode struct {
	id, addr, of string // of: the id of its master; "-" for a master
	master       bool
	failed       bool
}

// nodes returns the nodes as one that answers sees them. except is not asked.
func (d *deployment) nodes(except *redistest.Server) ([]clusterNode, error) {
	var failures error
	for _, s := range d.servers {
		if s == except {
			continue
		}
		text, err := on(s, func(ctx context.Context, rdb *redis.Client) (string, error) {
			return rdb.ClusterNodes(ctx).Result()
		})
		if err != nil {
			failures = errors.Join(failures, err)
			continue
		}
		var out []clusterNode
		for line := range strings.Lines(text) {
			fields := strings.Fields(line)
			addr, _, _ := strings.Cut(fields[1], "@")
			out = append(out, clusterNode{
				id: fields[0], addr: addr, of: fields[3],
				master: strings.Contains(fields[2], "master"), failed: strings.Contains(fields[2], "fail"),
			})
		}
		return out, nil
	}
	return nil, failures
}

// aMaster returns a random master of the cluster and its replica.
func (d *deployment) aMaster(rng *rand.Rand) (master, replica *redistest.Server, err error) {
	nodes, err := d.nodes(nil)
	if err != nil {
		return nil, nil, err
	}
	for _, i := range rng.Perm(len(nodes)) {
		m := nodes[i]
		r := slices.IndexFunc(nodes, func(n clusterNode) bool { return n.of == m.id && !n.failed })
		if !m.master || m.failed || r < 0 {
			continue
		}
		if master, err = d.server(m.addr); err != nil {
			return nil, nil, err
		}
		replica, err = d.server(nodes[r].addr)
		return master, replica, err
	}
	return nil, nil, errors.New("torture: no master with a replica")
}

// masters returns the addresses of the masters, or "" if nobody says so now.
func (d *deployment) masters() string {
	if !d.Cluster {
		s, err := d.master()
		if err != nil {
			return ""
		}
		return s.Addr()
	}
	nodes, err := d.nodes(nil)
	if err != nil {
		return ""
	}
	var addrs []string
	for _, n := range nodes {
		if n.master && !n.failed {
			addrs = append(addrs, n.addr)
		}
	}
	slices.Sort(addrs)
	return strings.Join(addrs, " ")
}

// noticeAfter is how long a server can have been silent before others take over for it.
const noticeAfter = 6 * time.Second

// faultUnplanned is no injected fault: servers were so slow that others took over.
const faultUnplanned = "unplanned failover"

// watchMasters notes when a replica takes over although no fault asked for it.
func (r *round) watchMasters(ctx context.Context) {
	known, since := r.d.masters(), monotonic()
	for ctx.Err() == nil {
		now := r.d.masters()
		switch {
		case r.changing.Load() > 0 || now == known:
			known, since = now, monotonic()
		case now != "" && known != "":
			r.losses.Add(1)
			w := r.begin(window{fault: faultUnplanned, process: -1, lossy: true})
			r.mu.Lock()
			w.begin = since - int64(noticeAfter)
			r.counts[faultUnplanned]++
			r.mu.Unlock()
			err := r.d.settle()
			r.nextGeneration()
			r.finish(w)
			if err != nil {
				r.fail(err)
			}
			known, since = r.d.masters(), monotonic()
		}
		select {
		case <-ctx.Done():
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// settle waits until all servers have their roles.
func (d *deployment) settle() error {
	if d.Cluster {
		return d.awaitCluster()
	}
	return d.awaitReplicas()
}

// failover kills a master, waits until a replica has taken over, and starts the old one again.
func (r *round) failover(rng *rand.Rand) error {
	r.changing.Add(1)
	defer r.changing.Add(-1)
	w := r.lose(faultFailover)
	defer r.finish(w)
	defer r.nextGeneration()
	if r.d.Cluster {
		return r.d.failoverCluster(rng)
	}
	return r.d.failoverSentinel()
}

func (d *deployment) failoverSentinel() error {
	old, err := d.master()
	if err != nil {
		return err
	}
	if err := old.Kill(); err != nil {
		return err
	}
	if err := d.awaitOther(old); err != nil {
		return err
	}
	if err := old.Restart(); err != nil {
		return err
	}
	return d.awaitReplicas()
}

// awaitOther waits until the Sentinels agree on another master.
func (d *deployment) awaitOther(old *redistest.Server) error {
	return eventually(startTimeout, func(context.Context) error {
		var now *redistest.Server
		for _, sentinel := range d.sentinels {
			reply, err := command(sentinel, "SENTINEL", "get-master-addr-by-name", d.Master)
			if err != nil {
				return err
			}
			at, _ := reply.([]any)
			if len(at) != 2 {
				return errors.New("no master")
			}
			s, err := d.server(net.JoinHostPort(fmt.Sprint(at[0]), fmt.Sprint(at[1])))
			if err != nil {
				return err
			}
			if s == old || now != nil && s != now {
				return errors.New("the Sentinels do not agree on a new master")
			}
			now = s
		}
		return nil
	})
}

// awaitReplicas waits until all servers but the master replicate it.
func (d *deployment) awaitReplicas() error {
	return eventually(startTimeout, func(context.Context) error {
		master, err := d.master()
		if err != nil {
			return err
		}
		_, port, _ := net.SplitHostPort(master.Addr())
		for _, s := range d.servers {
			if s == master {
				continue
			}
			info, err := on(s, func(ctx context.Context, rdb *redis.Client) (string, error) {
				return rdb.Info(ctx, "replication").Result()
			})
			if err != nil {
				return err
			}
			if !strings.Contains(info, "master_link_status:up") || !strings.Contains(info, "master_port:"+port) {
				return fmt.Errorf("%s does not replicate %s", s.Addr(), master.Addr())
			}
		}
		return d.awaitSentinels()
	})
}

func (d *deployment) failoverCluster(rng *rand.Rand) error {
	master, replica, err := d.aMaster(rng)
	if err != nil {
		return err
	}
	if err := master.Kill(); err != nil {
		return err
	}
	if err := d.awaitMaster(replica, master); err != nil {
		return err
	}
	if err := master.Restart(); err != nil {
		return err
	}
	return d.awaitCluster()
}

// awaitMaster waits until all other nodes know that s is a master.
func (d *deployment) awaitMaster(s, except *redistest.Server) error {
	return eventually(startTimeout, func(context.Context) error {
		nodes, err := d.nodes(except)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(nodes, func(n clusterNode) bool { return n.addr == s.Addr() && n.master }) {
			return errors.New("the replica has not taken over")
		}
		return nil
	})
}

// switchover makes a replica the master while the master lives. A cluster loses nothing by it.
// Sentinels do not wait until the replica has all data.
func (r *round) switchover(rng *rand.Rand) error {
	r.changing.Add(1)
	defer r.changing.Add(-1)
	if r.d.Cluster {
		w := r.begin(window{fault: faultSwitch, process: -1})
		defer r.finish(w)
		master, replica, err := r.d.aMaster(rng)
		if err != nil {
			return err
		}
		if _, err := command(replica, "CLUSTER", "FAILOVER"); err != nil {
			return err
		}
		if err := r.d.awaitMaster(replica, master); err != nil {
			return err
		}
		return r.d.awaitCluster()
	}
	w := r.lose(faultSwitch)
	defer r.finish(w)
	defer r.nextGeneration()
	old, err := r.d.master()
	if err != nil {
		return err
	}
	if _, err := command(r.d.sentinels[0], "SENTINEL", "FAILOVER", r.d.Master); err != nil {
		return err
	}
	if err := r.d.awaitOther(old); err != nil {
		return err
	}
	return r.d.awaitReplicas()
}

// migrate moves the slot of a name, with its keys, to another master.
func (r *round) migrate(rng *rand.Rand) error {
	name := lockName(r.tag, r.cfg.Primitives[rng.IntN(len(r.cfg.Primitives))], rng.IntN(namesOf))
	w := r.begin(window{fault: faultMigration, process: -1})
	defer r.finish(w)
	return r.d.migrate(name, rng)
}

func (d *deployment) migrate(name string, rng *rand.Rand) error {
	nodes, err := d.nodes(nil)
	if err != nil {
		return err
	}
	reply, err := command(d.servers[0], "CLUSTER", "KEYSLOT", name)
	if err != nil {
		return err
	}
	slot, _ := reply.(int64)
	owner, err := d.owner(slot)
	if err != nil {
		return err
	}
	var from, to clusterNode
	for _, i := range rng.Perm(len(nodes)) {
		switch {
		case nodes[i].addr == owner.Addr():
			from = nodes[i]
		case nodes[i].master && !nodes[i].failed:
			to = nodes[i]
		}
	}
	if to.id == "" || from.id == "" {
		return errors.New("torture: no other master")
	}
	target, err := d.server(to.addr)
	if err != nil {
		return err
	}
	if _, err := command(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", from.id); err != nil {
		return err
	}
	if _, err := command(owner, "CLUSTER", "SETSLOT", slot, "MIGRATING", to.id); err != nil {
		return err
	}
	host, port, _ := net.SplitHostPort(to.addr)
	for {
		reply, err := command(owner, "CLUSTER", "GETKEYSINSLOT", slot, 10)
		if err != nil {
			return err
		}
		keys, _ := reply.([]any)
		if len(keys) == 0 {
			break
		}
		for _, key := range keys { // one by one, with a pause: commands meet a slot that has only some keys
			if _, err := command(owner, "MIGRATE", host, port, key, 0, 1000); err != nil {
				return err
			}
			time.Sleep(between(rng, 0, 30*time.Millisecond))
		}
	}
	for _, s := range []*redistest.Server{target, owner} {
		if _, err := command(s, "CLUSTER", "SETSLOT", slot, "NODE", to.id); err != nil {
			return err
		}
	}
	for _, n := range nodes {
		if s, err := d.server(n.addr); err == nil && n.master && s != target && s != owner {
			_, _ = command(s, "CLUSTER", "SETSLOT", slot, "NODE", to.id) // gossip tells it too
		}
	}
	return nil
}

// owner returns the master of a slot.
func (d *deployment) owner(slot int64) (*redistest.Server, error) {
	shards, err := on(d.servers[0], func(ctx context.Context, rdb *redis.Client) ([]redis.ClusterShard, error) {
		return rdb.ClusterShards(ctx).Result()
	})
	if err != nil {
		return nil, err
	}
	for _, shard := range shards {
		if !slices.ContainsFunc(shard.Slots, func(r redis.SlotRange) bool { return r.Start <= slot && slot <= r.End }) {
			continue
		}
		for _, n := range shard.Nodes {
			if n.Role == "master" {
				return d.server(net.JoinHostPort(n.IP, strconv.FormatInt(n.Port, 10)))
			}
		}
	}
	return nil, errors.New("torture: slot " + strconv.FormatInt(slot, 10) + " has no master")
}
