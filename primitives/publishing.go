package primitives

import (
	"context"
	"time"

	"github.com/redlatch/redlatch/internal/failure"
	"github.com/redlatch/redlatch/scripts"
)

// Scripts publish the messages of releases with PUBLISH, or with SPUBLISH on a cluster with sharded
// pub/sub. The command is an argument of the scripts, as in Redisson. A subscriber receives only
// the messages of one of the two commands, so all clients of a cluster, including Redisson's, must
// use the same one. On a cluster the hub asks the servers which one that is, as Redisson does.
// Elsewhere it is PUBLISH, and nothing is asked.

// ready implements [engine.Commands].Ready on a cluster. It finds out by which command to publish.
// No call waits longer than its context or the command timeout. The error says that nothing was
// executed, so a waiting acquisition retries, unless Redis has refused for good.
func (c *Client) ready(callerCtx context.Context) error {
	if c.knowsPublish.Load() {
		return nil
	}
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(callerCtx, c.timeout, failure.ErrNoAnswer)
	defer cancel()
	sharded, err := c.hub.Sharded(ctx)
	if err != nil {
		if refused, ok := scripts.Refused(err); ok {
			return refused
		}
		f := failure.Failure{Outcome: failure.NotExecuted, CallerEnded: callerCtx.Err() != nil, Waited: time.Since(began)}
		return &failure.Error{Failure: f, Err: err}
	}
	if sharded {
		c.run.PublishSharded()
	}
	c.knowsPublish.Store(true)
	return nil
}
