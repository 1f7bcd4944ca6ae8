package primitives

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
)

// Hold is the public face of engine.Hold, which does the work. The two are separate so that the
// garbage collector can find a Hold that its user has forgotten: the engine refers to engine.Hold
// only.

// Hold is one acquisition, from Acquire until Release. Its methods are safe for concurrent use.
//
// A hold ends once: released or detached ([ErrReleased]), lost ([ErrLost]), or abandoned when its
// client closed ([ErrClosed]). After that it does not come back: acquire again for a new hold.
//
// A hold that becomes unreachable without a release is no longer renewed, so its lease runs out.
// The observer gets [EventLeaked]. Do not rely on that: call Release.
type Hold struct {
	_ noCopy

	hold    *engine.Hold // it does not refer back, so that an unreachable Hold is collected
	cleanup runtime.Cleanup
	ctx     atomic.Pointer[engine.HoldContext] // made by the first call of Context
}

// newHold returns the Hold that the user gets for a hold of the engine. The cleanup runs once the
// Hold is unreachable, unless Release or Detach stops it. The cleanup must not refer to the Hold,
// which would then never become unreachable.
func newHold(hold *engine.Hold) *Hold {
	h := &Hold{hold: hold}
	h.cleanup = runtime.AddCleanup(h, (*engine.Hold).ReportLeak, hold)
	return h
}

// HoldFrom returns the nearest live hold, of any primitive and any client, that ctx carries, or nil
// if there is none. Code inside [Lock.Do] finds its token with it, without naming the lock again.
// For a hold of one lock see [Lock.HoldFrom].
func HoldFrom(ctx context.Context) *Hold {
	return carriedHold(engine.AnyHoldFrom(ctx))
}

// carriedHold returns the user's Hold for a hold of the engine that a context carries, or nil if the
// context carries none.
func carriedHold(hold *engine.Hold, userHold any) *Hold {
	if hold == nil {
		return nil
	}
	if h, ok := userHold.(*Hold); ok {
		return h
	}
	return &Hold{hold: hold} // it is the hold of a member of a joint lock
}

// ID returns the hold's id on the wire. For locks that is "<client uuid>:<n>", or the id given to
// [WithOwner]. For permits with leases it is each permit's id in hexadecimal, comma-separated. For
// a plain semaphore it is "".
func (h *Hold) ID() string { return h.hold.ID() }

// Token returns a FencedLock's fencing token: greater than that of every earlier holder of the
// name. It is 0 for other kinds, and for adopted holds.
func (h *Hold) Token() int64 { return h.hold.Token() }

// Name returns the user's name of the primitive.
func (h *Hold) Name() string { return h.hold.Resource().Name }

// Depth returns 1 for an outermost hold, and one more for each hold that it is nested in.
func (h *Hold) Depth() int { return h.hold.Depth() }

// ValidUntil returns when the hold is lost unless Redis confirms it before. That is the time at
// which the last confirmed command was sent, plus its TTL, minus the safety margin, on the
// monotonic clock. It is zero for a plain semaphore, which has no lease.
func (h *Hold) ValidUntil() time.Time { return h.hold.ValidUntil() }

// Context returns a context that ends with the hold. [context.Cause] is then [ErrReleased],
// [ErrClosed], or a [*LossError], which matches [ErrLost] and says why. Pass the context to the
// critical section. A loss is reported no later than when Redis may free the lock.
//
// It has the values and the cancellation of the context that was given to Acquire, or to
// [WithHoldContext]. Acquiring the same lock with it nests. Cancelling a context neither releases
// the hold nor stops its renewal.
func (h *Hold) Context() context.Context {
	if h.ctx.Load() == nil {
		h.ctx.CompareAndSwap(nil, h.hold.Context(h)) // another goroutine may be faster
	}
	return h.ctx.Load()
}

// Wanted returns a channel that is closed when somebody waits for the lock or the permits of the
// hold, such as another goroutine, another client, or a program that uses Redisson. It is advice,
// and nothing is taken away: a holder that works in small steps may release between two of them.
// Once closed, the channel stays closed.
//
// A waiter of this library counts when the same holder has kept it waiting for 100 ms. The channel
// is closed within 200 ms more. Readers hear of writers, holders of permits of requests for
// permits, and a joint hold hears of waiters for any member. Waiters for plain permits on other
// clients, and waiters of Redisson, send no message. They are found within 2 s: from the first call
// of Wanted on, the client asks Redis once a second whether somebody else listens for the release.
// On a cluster without sharded pub/sub Redis cannot say that. Without a call of Wanted a hold costs
// nothing.
func (h *Hold) Wanted() <-chan struct{} {
	defer runtime.KeepAlive(h)
	return h.hold.Wanted()
}

// Release ends the hold and frees the lock or permits, once no other hold shares them. The first
// call sends the command, even if ctx is done. Later calls send nothing and return [ErrReleased].
// Release returns within 5 s.
//
// [ErrLost] means that the hold had ended before. [ErrClosed] means that the client was closed. If
// Redis does not answer, Release returns the transport error. The release is then repeated in the
// background, at least once a second, until the lease is over or the client is closed.
func (h *Hold) Release(ctx context.Context) error {
	h.cleanup.Stop()
	return failed(h.hold.Resource(), "release", h.hold.Release(ctx))
}

// Detach ends the hold here, and leaves the lock or permits taken in Redis. Nothing renews them, so
// they stay until the lease ends, or until somebody adopts or releases the id. Detach returns that
// id. It returns "" if the hold has ended, or has no id. A plain semaphore's permit stays taken for
// ever.
func (h *Hold) Detach() string {
	h.cleanup.Stop()
	if !h.hold.Detach() {
		return ""
	}
	return h.ID()
}

// Check asks Redis whether the hold is still there. It returns nil or [ErrLost], or another error
// if Redis does not answer. A hold that is lost while Check waits gives ErrLost too. A loss ends
// the hold's context before Check returns. A plain semaphore has no holders in Redis, so Check
// returns [ErrUnsupported]. The answer is true for one instant: a check before a write does not
// replace a fencing token.
func (h *Hold) Check(ctx context.Context) error {
	defer runtime.KeepAlive(h) // h is in use until the answer comes
	return failed(h.hold.Resource(), "check", h.hold.Check(ctx))
}

// Extend makes the hold valid for at least d from now. It never shortens the lease. A renewed hold
// goes on asking Redis every third of its TTL, so a loss is found as soon as without the extension.
// d is 1 ms to 100 years, or Extend returns [ErrInvalid]. It returns [ErrLost] if the hold is gone,
// or is lost while Extend waits, and [ErrUnsupported] for a plain semaphore.
func (h *Hold) Extend(ctx context.Context, d time.Duration) error {
	var wrong error
	if d < minDuration || d > maxDuration {
		wrong = invalid("an extension of %v (from 1ms to 100 years)", d)
	}
	defer runtime.KeepAlive(h) // as in Check
	return failed(h.hold.Resource(), "extend", h.hold.Extend(ctx, d, wrong))
}
