package primitives

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
)

// Hold is one acquisition: from Acquire until Release. Its methods are safe for concurrent use.
//
// A hold ends once: released or detached ([ErrReleased]), lost ([ErrLost]), or abandoned when its client
// closed ([ErrClosed]). A hold that becomes unreachable without a release is no longer renewed, so its
// lease runs out.
type Hold struct {
	_ noCopy

	hold    *engine.Hold // does not refer back, so that an unreachable Hold is collected
	cleanup runtime.Cleanup

	mu  sync.Mutex
	ctx context.Context //nolint:containedctx // made when first asked for
}

func newHold(hold *engine.Hold) *Hold {
	h := &Hold{hold: hold}
	h.cleanup = runtime.AddCleanup(h, (*engine.Hold).Forget, hold)
	return h
}

// ID is the hold's id on the wire: "<client uuid>:<n>"; a permit's id in hex, several comma-separated; ""
// for a plain semaphore.
func (h *Hold) ID() string { return h.hold.ID() }

// Token is a FencedLock's fencing token: greater than that of every earlier holder. 0 for other kinds.
func (h *Hold) Token() int64 { return h.hold.Token() }

// Name is the user's name of what is held.
func (h *Hold) Name() string { return h.hold.Resource().Name }

// Depth is 1 for an outermost hold, and one more for each hold that it is nested in.
func (h *Hold) Depth() int { return h.hold.Depth() }

// ValidUntil is when the hold is lost unless Redis answers before. It is counted from when the last
// confirmed command was sent: its TTL minus the safety margin, on the monotonic clock. It is zero for a
// plain semaphore, which has no lease.
func (h *Hold) ValidUntil() time.Time { return h.hold.ValidUntil() }

// Context returns a context that ends with the hold, with cause [ErrLost], [ErrReleased] or [ErrClosed].
// It has the values and the cancellation of the context that was given to Acquire. Acquiring the same
// lock with it nests. Cancelling it releases nothing.
func (h *Hold) Context() context.Context {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx == nil {
		h.ctx = h.hold.Context(h)
	}
	return h.ctx
}

// Release gives the hold back. The first call sends the command, even if ctx is done; later calls return
// [ErrReleased]. It returns within 5 s. [ErrLost] means that the hold had ended before. Any other error
// means that Redis did not answer: the release is then repeated in the background, at least once a
// second, until the lease is over or the client is closed.
func (h *Hold) Release(ctx context.Context) error {
	h.cleanup.Stop()
	return failed(h.hold.Resource(), "release", h.hold.Release(ctx))
}

// Detach ends the hold without freeing what it holds. It is no longer renewed, and stays until its lease
// ends, or until somebody adopts or releases its id. Detach returns that id; "" if the hold has ended, or
// has no id.
func (h *Hold) Detach() string {
	h.cleanup.Stop()
	if !h.hold.Detach() {
		return ""
	}
	return h.ID()
}

// Check asks Redis whether the hold still stands: nil, or [ErrLost]. For a plain semaphore, which cannot
// tell, it returns [ErrUnsupported].
func (h *Hold) Check(ctx context.Context) error {
	return failed(h.hold.Resource(), "check", h.hold.Check(ctx))
}

// Extend makes the hold valid for at least d from now. It never shortens it. d is 1 ms to 100 years.
func (h *Hold) Extend(ctx context.Context, d time.Duration) error {
	var wrong error
	if d < minDuration || d > maxDuration {
		wrong = invalid("an extension of %v (from 1ms to 100 years)", d)
	}
	return failed(h.hold.Resource(), "extend", h.hold.Extend(ctx, d, wrong))
}

// do runs f with the hold's context, and releases the hold.
func (h *Hold) do(ctx context.Context, f func(context.Context) error) (err error) {
	defer func() {
		// A release that failed otherwise goes to the observer: the work is done, and must not look undone.
		if released := h.Release(ctx); errors.Is(released, ErrLost) && !errors.Is(err, ErrLost) {
			err = errors.Join(err, released)
		}
	}()
	return f(h.Context())
}
