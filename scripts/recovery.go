package scripts

import (
	"context"
	"errors"
	"maps"
	"net"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/failure"
	"github.com/redlatch/redlatch/internal/redisutil"
)

// recovery notices that Redis has come back. It does so at the first answer after a broken
// connection, a failed dial, or a refusal that a restart or a failover causes. Redis may have
// forgotten its data in between.
//
// A reply that is merely late says nothing. Acting on it would also make a slow Redis slower,
// because returned makes the client ask about many keys.
type recovery struct {
	cluster  bool
	server   func(key string) any // the server that has a key, or nil if it is not known; for a cluster
	returned func()               // called for each return; must not block; nil if nobody needs it
	broken   atomic.Int32         // the same as len(slots), so that an answer costs only a load while all is well
	// demotions counts the returns after a former primary has answered.
	demotions atomic.Int64

	mu sync.Mutex
	// slots are the slots that had such a failure, each with a key, and whose server has not answered
	// since; only 0 without a cluster.
	slots map[uint16]string
	// former means that one of these failures was the answer of a former primary.
	former bool
}

// OnReturn sets a func that is called when Redis answers again after a broken connection or a
// failover. The goroutines of commands call f, so it must not block. Call OnReturn before the first
// command.
func (r *Runner) OnReturn(f func()) { r.recovery.returned = f }

// note notes how an attempt ended. On a cluster, it counts for the slot of key.
func (rec *recovery) note(key any, err error) {
	if rec.returned == nil {
		return
	}
	if err == nil || isAnswer(err) {
		if rec.broken.Load() > 0 && rec.heal(key) {
			rec.returned()
		}
		return
	}
	if isBreak(err) {
		rec.mu.Lock()
		defer rec.mu.Unlock()
		if rec.slots == nil {
			rec.slots = map[uint16]string{}
		}
		name, _ := key.(string)
		rec.slots[rec.slot(key)] = name
		rec.broken.Store(int32(len(rec.slots)))
		rec.former = rec.former || isFormer(err)
	}
}

// heal notes an answer, and reports whether it is the first one after a failure. It counts for all
// slots of its server: their names need not be asked about once more.
func (rec *recovery) heal(key any) bool {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	slot := rec.slot(key)
	name, was := rec.slots[slot]
	if !was {
		return false
	}
	delete(rec.slots, slot)
	if server := rec.serverOf(name); server != nil {
		maps.DeleteFunc(rec.slots, func(_ uint16, other string) bool { return rec.serverOf(other) == server })
	}
	rec.broken.Store(int32(len(rec.slots)))
	if rec.former {
		rec.former = false
		rec.demotions.Add(1)
	}
	return true
}

// serverOf returns the server of a cluster that has a key, or nil if it is not known.
func (rec *recovery) serverOf(key string) any {
	if !rec.cluster || key == "" {
		return nil
	}
	return rec.server(key)
}

func (rec *recovery) slot(key any) uint16 {
	if name, ok := key.(string); ok && rec.cluster {
		return redisutil.Slot(name)
	}
	return 0
}

// restarting lists the prefixes of refusals that a restart or a failover causes.
var restarting = []string{"LOADING ", "READONLY ", "MASTERDOWN ", "CLUSTERDOWN "}

// isAnswer reports whether Redis answered with err, and is ready to serve.
func isAnswer(err error) bool {
	_, ok := errors.AsType[redis.Error](err)
	return ok && !repliedWith(err, temporaryRefusals...)
}

// isBreak reports whether err may mean that Redis is restarting, or that another server takes its
// place.
func isBreak(err error) bool {
	if _, ok := errors.AsType[redis.Error](err); ok {
		return repliedWith(err, restarting...)
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return !errors.Is(err, context.Canceled)
	}
	if _, isInterrupted := errors.AsType[*failure.Interrupted](err); isInterrupted {
		return false
	}
	if broken, ok := errors.AsType[net.Error](err); ok && broken.Timeout() {
		return false
	}
	for _, other := range []error{
		context.Canceled, context.DeadlineExceeded, redis.ErrClosed, redis.ErrPoolTimeout, redis.ErrPoolExhausted,
	} {
		if errors.Is(err, other) {
			return false
		}
	}
	return true // EOF, a reset, a connection that go-redis has closed
}
