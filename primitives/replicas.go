package primitives

import (
	"context"
	"fmt"
	"time"

	"github.com/redlatch/redlatch/scripts"
)

// replication is what WithReplicas asks for.
type replication struct {
	n       int
	timeout time.Duration
}

// confirm runs a script that acquires. It fails with [ErrNotReplicated] if fewer replicas confirm its
// writes than the client asks for.
func (c *Client) confirm(ctx context.Context, s *scripts.Script, keys []any, args ...any) (scripts.Reply, error) {
	if c.replicas.n == 0 {
		return c.run.Do(ctx, s, keys, args...)
	}
	reply, acked, err := c.run.RunReplicated(ctx, c.replicas.n, c.replicas.timeout, s, keys, args...)
	if err == nil && acked < c.replicas.n {
		err = fmt.Errorf("%w: %d of %d replicas confirmed", ErrNotReplicated, acked, c.replicas.n)
	}
	return reply, err
}
