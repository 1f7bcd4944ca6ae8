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

const (
	slots          = 16384
	introduceAgain = 2 * time.Second
)

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
	buses := make([]int, n)
	for i := range n {
		node, err := startOnFreePort(ctx, func() (args []string, err error) {
			buses[i], err = freePort(ctx)
			return []string{"--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(buses[i])}, err
		})
		if err != nil {
			return err
		}
		c.Nodes = append(c.Nodes, node)
		addrs = append(addrs, node.TCP.Addr)
		if err := c.share(ctx, n); err != nil {
			return fmt.Errorf("server: form cluster: %w", err)
		}
	}
	c.Target = contend.Target{Network: contend.Cluster, Addr: strings.Join(addrs, ",")}
	return c.waitComplete(ctx, buses)
}

// share gives the last node its share of the slots of n nodes.
func (c *Cluster) share(ctx context.Context, n int) error {
	i := len(c.Nodes) - 1
	node := c.Nodes[i]
	// With equal epochs the nodes would first have to resolve the conflict, which takes time.
	if err := node.Admin.Do(ctx, "cluster", "set-config-epoch", i+1).Err(); err != nil {
		return err
	}
	return node.Admin.ClusterAddSlotsRange(ctx, i*slots/n, (i+1)*slots/n-1).Err()
}

// introduce makes the first node meet the others. It may be repeated: on a busy machine a handshake
// may fail.
func (c *Cluster) introduce(ctx context.Context, buses []int) error {
	for i, node := range c.Nodes[1:] {
		host, port, err := net.SplitHostPort(node.TCP.Addr)
		if err == nil {
			err = c.Nodes[0].Admin.Do(ctx, "cluster", "meet", host, port, buses[i+1]).Err()
		}
		if err != nil {
			return fmt.Errorf("server: form cluster: %w", err)
		}
	}
	return nil
}

// waitComplete waits until each node knows all nodes and all slots.
func (c *Cluster) waitComplete(ctx context.Context, buses []int) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	size := fmt.Sprintf("cluster_size:%d\r\n", len(c.Nodes))
	introduced := time.Time{}
	for _, node := range c.Nodes {
		for {
			if time.Since(introduced) > introduceAgain {
				if err := c.introduce(ctx, buses); err != nil {
					return err
				}
				introduced = time.Now()
			}
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
