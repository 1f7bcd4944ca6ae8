package scripts

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/redisutil"
)

// contact notices that Redis has come back. It does so at the first answer after a broken connection, a failed dial, or
// a refusal that a restart or a failover causes. Redis may have forgotten its data in between.
//
// A reply that is merely late says nothing. To act on it would also make a slow Redis slower, because whoever is told
// asks about many keys.
type contact struct {
	cluster  bool
	returned func()       // it is called for each return, and must not block; nil if nobody asks
	broken   atomic.Int32 // the same as len(slots), so that an answer costs only a load while all is well
	// demotions counts the returns after a former primary has answered.
	demotions atomic.Int64

	mu    sync.Mutex
	slots map[uint16]bool // the slots that had such a failure, and no answer since; without a cluster only 0
	// former means that one of these failures was the answer of a former primary.
	former bool
}

// OnReturn sets a func that is called when Redis answers again after a broken connection or a failover. It is
// called from the goroutines of commands, so it must not block. OnReturn is called before the first command.
func (r *Runner) OnReturn(f func()) { r.contact.returned = f }

// note notes how an attempt ended. On a cluster, key decides whose failure or answer it is.
func (c *contact) note(key any, err error) {
	if c.returned == nil {
		return
	}
	if err == nil || isAnswer(err) {
		if c.broken.Load() > 0 && c.heal(c.slot(key)) {
			c.returned()
		}
		return
	}
	if isBreak(err) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.slots == nil {
			c.slots = map[uint16]bool{}
		}
		c.slots[c.slot(key)] = true
		c.broken.Store(int32(len(c.slots)))
		c.former = c.former || isFormer(err)
	}
}

// heal notes an answer, and reports whether it is the first one after a failure.
func (c *contact) heal(slot uint16) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.slots[slot]
	delete(c.slots, slot)
	c.broken.Store(int32(len(c.slots)))
	if was && c.former {
		c.former = false
		c.demotions.Add(1)
	}
	return was
}

func (c *contact) slot(key any) uint16 {
	if name, ok := key.(string); ok && c.cluster {
		return redisutil.Slot(name)
	}
	return 0
}

// restarting lists the prefixes of refusals that a restart or a failover causes.
var restarting = []string{"LOADING ", "READONLY ", "MASTERDOWN ", "CLUSTERDOWN "}

// isAnswer reports whether Redis answered err, and is ready to serve.
func isAnswer(err error) bool {
	_, ok := errors.AsType[redis.Error](err)
	return ok && !repliedWith(err, temporaryRefusals...)
}

// isBreak reports whether err may mean that Redis restarts, or that another server takes its place.
func isBreak(err error) bool {
	if _, ok := errors.AsType[redis.Error](err); ok {
		return repliedWith(err, restarting...)
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return !errors.Is(err, context.Canceled)
	}
	_, interrupted := errors.AsType[*interrupted](err)
	switch failure, ok := errors.AsType[net.Error](err); {
	case interrupted, ok && failure.Timeout(),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, redis.ErrClosed), errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted):
		return false
	}
	return true // EOF, a reset, a connection that go-redis has closed
}
