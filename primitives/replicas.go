package primitives

import (
	"context"
	"fmt"
	"time"

	"github.com/redlatch/redlatch/scripts"
)

// Acquisitions that replicas confirm ([WithReplicas]).

// replication is what WithReplicas asks for.
type replication struct {
	n       int           // replicas; 0: no confirmation
	timeout time.Duration // of WAIT
}

// confirm runs a script that acquires, followed by WAIT if the client asks for replicas. It fails with
// [ErrNotReplicated] if too few confirm. The script has run then, so [classify] says that the outcome is
// in doubt, and the engine rolls the acquisition back.
//
// Releases need no confirmation: if a fail-over forgets one, the lock stays held until its lease ends.
// Renewals are not confirmed either. A fail-over that forgets one may free the lock before its holder
// learns of the loss, which is part of the window that WithReplicas does not close.
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
