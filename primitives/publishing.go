package primitives

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/redlatch/redlatch/scripts"
)

// Scripts publish the messages of releases with PUBLISH, or with SPUBLISH on a cluster with sharded
// pub/sub. The command is an argument of the scripts, as in Redisson. A subscriber receives only the
// messages of one of the two, so all clients of a cluster, Redisson's included, must use the same one.

// publishing is what a client knows of the command by which scripts publish. On a cluster the hub asks for
// it, as Redisson does. Elsewhere it is PUBLISH, and nothing is asked.
type publishing struct {
	known   atomic.Bool // the cluster has answered
	sharded atomic.Bool // by SPUBLISH
}

// publish returns the command by which scripts publish. Every call that needs Redis has waited for ready
// before.
func (c *Client) publish() scripts.Command {
	if c.publishing.sharded.Load() {
		return scripts.SPublish
	}
	return scripts.Publish
}

// readiness returns [engine.Config].Ready: nil without a cluster.
func (c *Client) readiness() func(context.Context) error {
	if !c.cluster {
		return nil
	}
	return c.ready
}

// ready finds out by which command to publish on a cluster. No call waits longer than its context or the
// command timeout. The error says that nothing was executed, so a waiting acquisition retries.
func (c *Client) ready(caller context.Context) error {
	if c.publishing.known.Load() {
		return nil
	}
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(caller, c.timeout, scripts.ErrNoAnswer)
	defer cancel()
	sharded, err := c.hub.Sharded(ctx)
	if err != nil {
		return &scripts.Error{
			Script: "pubsub shardnumsub", Outcome: scripts.NotExecuted, Err: err,
			Ended: caller.Err() != nil, Silent: time.Since(began),
		}
	}
	c.publishing.sharded.Store(sharded)
	c.publishing.known.Store(true)
	return nil
}
