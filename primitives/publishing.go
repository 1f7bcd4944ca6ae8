package primitives

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlatch/redlatch/scripts"
)

// Scripts publish messages of releases by PUBLISH, or on a cluster with sharded pub/sub by SPUBLISH. A
// subscriber hears only one of the two, so all clients must use the same.

// publishing is what a client knows of the command by which scripts publish. On a cluster all clients
// must agree on it, so the client asks the cluster once.
type publishing struct {
	known   atomic.Bool // the cluster has answered
	sharded atomic.Bool // by SPUBLISH

	mu     sync.Mutex
	asking *publishQuestion // nil: nobody asks; guarded by mu
}

// publishQuestion is one question to the cluster, for all calls that ask at the same time.
type publishQuestion struct {
	answered chan struct{} // closed when err is set
	err      error
}

// publish is the command by which scripts publish. A call that needs Redis has waited for ready.
func (c *Client) publish() any {
	if c.publishing.sharded.Load() {
		return "spublish"
	}
	return "publish"
}

// ready finds out by which command to publish. Calls that come meanwhile wait for the same answer, but
// none for longer than its context or the command timeout.
func (c *Client) ready(ctx context.Context) error {
	if !c.cluster || c.publishing.known.Load() {
		return nil
	}
	q := c.askPublish()
	timer := time.NewTimer(c.timeout)
	defer timer.Stop()
	err := scripts.ErrNoAnswer
	select {
	case <-q.answered:
		if q.err == nil {
			return nil
		}
		err = q.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-timer.C:
	}
	return &scripts.Error{Script: "pubsub shardnumsub", Outcome: scripts.NotExecuted, Err: err}
}

func (c *Client) askPublish() *publishQuestion {
	p := &c.publishing
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asking != nil {
		return p.asking
	}
	q := &publishQuestion{answered: make(chan struct{})}
	p.asking = q
	c.core.Spawn(func() {
		sharded, err := c.hub.Sharded(context.Background())
		if err == nil {
			p.sharded.Store(sharded)
			p.known.Store(true)
		}
		p.mu.Lock()
		p.asking = nil
		p.mu.Unlock()
		q.err = err
		close(q.answered)
	})
	return q
}
