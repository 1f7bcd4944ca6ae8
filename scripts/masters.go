package scripts

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"github.com/redis/go-redis/v9"
)

// toMasters is a [processor] for a cluster client. It sends each command through the client of its
// key's master, as batches are sent. The cluster client itself would be worse in two ways:
//
//   - Its attempts end with the timeouts of go-redis, not with their context, and Close would wait
//     for them.
//   - If it may read from replicas (ReadOnly, RouteByLatency, RouteRandomly), commands that only
//     read go to replicas. A replica may be stale, and it answers as before when its master has
//     died. To tell these commands apart, the client asks a random node (COMMAND). The commands of
//     all shards wait for that, even if the node hangs.
//
// Commands that were misrouted are sent again by the cluster client.
type toMasters struct{ r *Runner }

// Process implements [processor].
func (m toMasters) Process(ctx context.Context, cmd redis.Cmder) error {
	return m.batch(ctx, []redis.Cmder{cmd})
}

// batch sends commands, each a [singleCmd], in one pipeline for each master.
func (m toMasters) batch(ctx context.Context, cmds []redis.Cmder) error {
	parts := map[*redis.Client][]redis.Cmder{}
	for _, cmd := range cmds {
		node, err := m.r.slots.client.MasterForKey(ctx, keyOf(cmd))
		if err != nil {
			return err
		}
		parts[node] = append(parts[node], cmd)
	}
	var sending sync.WaitGroup
	var mu sync.Mutex // guards first
	var first error
	for node, part := range parts {
		sending.Go(func() {
			err := m.pipes(node).batch(ctx, part)
			for _, cmd := range part {
				if isMisrouted(cmd.Err()) && !isAbandoned(ctx) {
					err = m.r.rdb.Process(ctx, cmd)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			first = cmp.Or(first, err)
		})
	}
	sending.Wait()
	return first
}

// pipes returns the pipelines of a node.
func (m toMasters) pipes(node *redis.Client) *pipelines {
	return m.r.shards.of(node, m.r.ends.in(m.r.timeout)).timed
}

// keyOf returns the first key of a script, or of a plain command.
func keyOf(cmd redis.Cmder) string {
	args := cmd.Args()
	at := int(keyPosition(args))
	if cmd.Name() == "evalsha" || cmd.Name() == "eval" {
		at = 3
	}
	key, _ := args[min(at, len(args)-1)].(string)
	return key
}

// isMisrouted reports whether a node has not executed a command because it does not serve the slot.
// The client of a node that has left the cluster is closed.
func isMisrouted(err error) bool {
	return repliedWith(err, "MOVED ", "ASK ") || errors.Is(err, redis.ErrClosed)
}
