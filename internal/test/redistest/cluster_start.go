package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/redisutil"
)

// startCluster starts a cluster. Replicas are distributed evenly over the masters. args are
// additional arguments of each node.
func startCluster(binary, dir string, masters, replicas int, args ...string) (*ClusterServers, error) {
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
		return startNode(binary, home, timeout, args...)
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
func startNode(binary, dir string, timeout time.Duration, args ...string) (*Server, error) {
	return startOnFreePorts("cluster", 2, func(ports []string) *process {
		return &process{binary: binary, dir: dir, args: append(append(baseArgs(ports[0], dir),
			"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
			"--cluster-port", ports[1],
			"--cluster-node-timeout", strconv.FormatInt(timeout.Milliseconds(), 10),
			"--cluster-allow-replica-migration", "no", // roles change only by failovers
			"--repl-diskless-sync-delay", "0",
		), args...)}
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

// introduce makes all nodes meet each other, which is faster than the gossip of the first one, and
// waits until each node reports the cluster as complete. On a busy machine a handshake may fail, so
// the nodes meet again if that takes long.
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
