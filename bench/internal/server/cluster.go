package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redlatch/redlatch/bench/internal/contend"
)

const slots = 16384

// Cluster is a cluster of masters without replicas.
type Cluster struct {
	Target contend.Target
	Nodes  []*Server
}

// StartCluster starts a cluster of n masters and waits until each of them reports it as complete.
// Cancelling ctx does not stop it; Close does.
func StartCluster(ctx context.Context, n int) (*Cluster, error) {
	c := &Cluster{}
	if err := c.start(ctx, n); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context, n int) error {
	var addrs []string
	for range n {
		var bus int
		node, err := startOnFreePort(ctx, func() (args []string, err error) {
			bus, err = freePort(ctx)
			return []string{"--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(bus)}, err
		})
		if err != nil {
			return err
		}
		c.Nodes = append(c.Nodes, node)
		addrs = append(addrs, node.TCP.Addr)
		if err := c.join(ctx, bus, n); err != nil {
			return fmt.Errorf("server: form cluster: %w", err)
		}
	}
	c.Target = contend.Target{Network: contend.Cluster, Addr: strings.Join(addrs, ",")}
	return c.waitComplete(ctx)
}

// join adds the last node to the cluster and gives it its share of the slots of n nodes.
func (c *Cluster) join(ctx context.Context, bus, n int) error {
	i := len(c.Nodes) - 1
	node := c.Nodes[i]
	// With equal epochs the nodes would first have to resolve the conflict, which takes time.
	if err := node.Admin.Do(ctx, "cluster", "set-config-epoch", i+1).Err(); err != nil {
		return err
	}
	if err := node.Admin.ClusterAddSlotsRange(ctx, i*slots/n, (i+1)*slots/n-1).Err(); err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(node.TCP.Addr)
	if i == 0 || err != nil {
		return err
	}
	return c.Nodes[0].Admin.Do(ctx, "cluster", "meet", host, port, bus).Err()
}

// waitComplete waits until each node knows all nodes and all slots.
func (c *Cluster) waitComplete(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	size := fmt.Sprintf("cluster_size:%d\r\n", len(c.Nodes))
	for _, node := range c.Nodes {
		for {
			info, err := node.Admin.ClusterInfo(ctx).Result()
			if err == nil && strings.Contains(info, "cluster_state:ok") && strings.Contains(info, size) {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("server: cluster is not complete: %w: %s", errors.Join(context.Cause(ctx), err), info)
			case <-time.After(pollInterval):
			}
		}
	}
	return nil
}

// Close kills all nodes and removes their directories.
func (c *Cluster) Close() {
	for _, node := range c.Nodes {
		node.Close()
	}
}
