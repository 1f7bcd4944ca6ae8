package primitives

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlatch/redlatch/scripts"
)

// Scripts publish the messages of releases with PUBLISH, or with SPUBLISH on a cluster with sharded
// pub/sub. The command is an argument of the scripts, as in Redisson. A subscriber receives only the
// messages of one of the two, so all clients of a cluster, Redisson's included, must use the same one.

// publishing is what a client knows of the command by which scripts publish. On a cluster the client asks
// once, as Redisson does. It repeats the question only until it has an answer. Elsewhere it is PUBLISH,
// and nothing is asked.
type publishing struct {
	known   atomic.Bool // the cluster has answered
	sharded atomic.Bool // by SPUBLISH

	mu     sync.Mutex
	asking *publishQuestion // nil: no question is under way; guarded by mu
}

// publishQuestion is one question to the cluster, shared by all calls that ask at the same time. Its
// goroutine writes err before it closes answered; calls read err only after that.
type publishQuestion struct {
	answered chan struct{} // closed when err is set
	err      error
}

// publish returns the command by which scripts publish. Every call that needs Redis has waited for ready
// before.
func (c *Client) publish() any {
	if c.publishing.sharded.Load() {
		return "spublish"
	}
	return "publish"
}

// ready implements [engine.Config].Ready: it finds out by which command to publish. Calls at the same time
// wait for the same answer, but none for longer than its context or the command timeout. Its error says
// that nothing was executed, so a waiting acquisition retries.
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

// askPublish returns the question that is asked now, or asks a new one. The goroutine of the question
// belongs to the core, and ends with the hub's answer or error.
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
