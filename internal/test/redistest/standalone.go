package redistest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"
)

// This file has the servers and the proxy for programs that are no tests. Their callers stop them.

// Binary returns the path of the redis-server binary: $REDIS_SERVER, or else redis-server from the
// PATH.
func Binary() (string, error) {
	name := os.Getenv(envServer)
	if name == "" {
		name = "redis-server"
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("no %s (set %s): %w", name, envServer, err)
	}
	return path, nil
}

// StartServer starts a redis-server in dir. args are additional arguments, such as "--appendonly",
// "yes".
func StartServer(dir string, args ...string) (*Server, error) {
	binary, err := Binary()
	if err != nil {
		return nil, err
	}
	return startServer("redis", binary, dir, args)
}

// StartSentinel starts a sentinel in dir that monitors the master at addr. The master's name is
// MasterName.
func StartSentinel(dir, addr string) (*Server, error) {
	binary, err := Binary()
	if err != nil {
		return nil, err
	}
	return startSentinel(binary, dir, addr)
}

// MasterName is the name by which sentinels know the master.
const MasterName = masterName

// StartCluster starts a cluster of n masters in dir.
func StartCluster(dir string, n int) (*ClusterServers, error) {
	binary, err := Binary()
	if err != nil {
		return nil, err
	}
	return startCluster(binary, dir, n, 0)
}

// Stop stops all nodes.
func (c *ClusterServers) Stop() { c.stop() }

// AddReplica starts a node in dir that replicates a master of the cluster.
func (c *ClusterServers) AddReplica(dir string, of *Server) (*Server, error) {
	binary, err := Binary()
	if err != nil {
		return nil, err
	}
	s, err := startNode(binary, dir, nodeTimeout)
	if err != nil {
		return nil, err
	}
	if err := c.join(s, of); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// join makes s, a new node, a replica of a master.
func (c *ClusterServers) join(s, master *Server) error {
	ctx, cancel := context.WithTimeout(context.Background(), setupTimeout)
	defer cancel()
	id, err := master.do(ctx, "cluster", "myid")
	if err != nil {
		return err
	}
	if err := master.meet(ctx, s); err != nil {
		return err
	}
	known := fmt.Sprint(id)
	if err := s.waitForReply(ctx, []string{known}, "cluster", "nodes"); err != nil {
		return err
	}
	if err := s.run(ctx, "cluster", "replicate", known); err != nil {
		return err
	}
	return s.waitForReply(ctx, []string{"master_link_status:up"}, "info", "replication")
}

// StartProxy starts a proxy in front of the server to which connect opens connections. Dialer finds
// it by target, the address of that server.
func StartProxy(target string, connect func() (net.Conn, error)) (*Proxy, error) {
	p := &Proxy{upstream: connect, target: target, open: map[*link]struct{}{}}
	p.changed = sync.NewCond(&p.mu)
	return p, p.listen()
}
