package primitives

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redlatch/redlatch/scripts"
)

// replication is what WithReplicas asks for.
type replication struct {
	n       int
	timeout time.Duration
}

// standing tells whether what failed with err may have been executed all the same, or may yet be, and must be undone.
func standing(err error) bool {
	return errors.Is(err, ErrNotReplicated) || scripts.OutcomeOf(err) == scripts.Unknown
}

// confirm runs a script that acquires, and has its writes confirmed by as many replicas as the client wants.
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
