package primitives

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/redlatch/redlatch/watchdog"
)

// Hold is one acquisition: what Acquire got, until Release gives it back. Its methods are safe for concurrent use.
//
// A hold ends once: released or detached ([ErrReleased]), lost ([ErrLost]), or left when its client closed ([ErrClosed]). A hold
// that nobody can reach any more and that was not released is not renewed any more, so that its lease runs out.
type Hold struct {
	_ noCopy

	g       *grip // does not point back: a forgotten Hold can be collected
	mu      sync.Mutex
	view    *holdContext // made when first asked for
	cleanup runtime.Cleanup
}

// grip is what the library itself keeps of a hold.
type grip struct {
	h      *handle
	t      grant           // nil for a hold of nothing (0 permits)
	of     *bundle         // that this is a member's share of; nil for a user's own hold
	parent *grip           // whose turn a nested hold has taken; nil if none
	ctx    context.Context // Acquire's
	since  instant
	ttl    time.Duration // of each renewal; 0 when not renewed
	depth  int32
	renew  bool
	aged   bool // counted by the client's holdList as old enough to listen; guarded by it

	taken bool // a Release or a Detach has begun: it is not live, and there will be no second; guarded by mu as all below
	mu    sync.Mutex
	cause error           // why it ended; nil while it has not
	limit instant         // the hold lasts no longer, however well it is renewed; 0: no such limit
	inner *inner          // made when first asked for
	nest  *nest           // likewise
	lapse *watchdog.Lease // watches limit, if there is one

	extended instant // when the longest lease ends that an Extend got, or may get; guarded by mu

	also       *grip // guarded by the tenure
	prev, next *grip // guarded by the client's holdList
}

// inner is the context that ends with the hold.
type inner struct {
	context.Context //nolint:containedctx // it is one
	cancel          context.CancelCauseFunc
}

// grant is what a hold holds: one tenure, or, of several locks at once, one of each.
type grant interface {
	publicID() string
	fence() int64
	leases() bool // false: it is held for ever, and cannot be lost
	valid(g *grip) time.Time
	limit(sent time.Time, d time.Duration) time.Time // when a hold that may last d ends; zero: others see to it
	join(g *grip)
	forget(g *grip) // renews and tells g no more, and leaves the wire as it is
	leave(ctx context.Context, g *grip) (lost bool, err error)
	abandon(ctx context.Context) // what is left of a lost one need not stay until the lease is over
	check(ctx context.Context) error
	extend(ctx context.Context, g *grip, d time.Duration) error
}

// ID is the hold's id on the wire: "<client uuid>:<n>", a permit's hex id (several comma-separated), "" for a plain semaphore.
func (h *Hold) ID() string {
	if h.g.t == nil {
		return ""
	}
	return h.g.t.publicID()
}

// Token is a FencedLock's fencing token: greater than that of every earlier holder. 0 for other kinds.
func (h *Hold) Token() int64 {
	if h.g.t == nil {
		return 0
	}
	return h.g.t.fence()
}

// Name is the user's name of what is held.
func (h *Hold) Name() string { return h.g.h.name }

// Depth is 1 for an outermost hold, one more for each it is nested in.
func (h *Hold) Depth() int { return int(h.g.depth) }

// ValidUntil is the instant at which loss would be told if nothing were heard of Redis until then: the start of the last confirmed
// command, plus the TTL, minus the margin, on the monotonic clock. Zero for a plain semaphore, which has no lease.
func (h *Hold) ValidUntil() time.Time { return h.g.validUntil() }

// Context has the values and the cancellation of the context given to Acquire, and ends with cause [ErrLost], [ErrReleased] or
// [ErrClosed] when the hold does. Acquiring the same lock with it nests. Cancelling it releases nothing.
func (h *Hold) Context() context.Context {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.view == nil {
		h.view = &holdContext{Context: h.g.context(), hold: h}
	}
	return h.view
}

// holdContext is a context that carries a hold.
type holdContext struct {
	context.Context //nolint:containedctx // it is one
	hold            *Hold
}

// Value finds the nearest hold of a kind and name: one that is live for a nestKey, live or lost for
// an outerKey. A hold of several locks carries a live hold of each.
func (c *holdContext) Value(key any) any {
	g := c.hold.g
	switch k := key.(type) {
	case *nestKey:
		if g.live() {
			if found := g.find(k, c.hold); found != nil {
				return found
			}
		}
	case outerKey:
		if g.live() || (g.lost() && !g.released()) {
			if found := g.find(k.nestKey, c.hold); found != nil {
				return found
			}
		}
	}
	return c.Context.Value(key)
}

// find returns hold, or its part, that key asks for.
func (g *grip) find(key *nestKey, hold *Hold) *Hold {
	if *key == *g.h.nests {
		return hold
	}
	if b, ok := g.t.(*bundle); ok {
		return b.part(key)
	}
	return nil
}

// Release gives the hold back. The first call sends the command, even if ctx is done; later ones return [ErrReleased]. It returns within
// 5 s. [ErrLost]: the hold had ended before. Any other error: Redis did not answer; the release is then tried again in the background, at most a
// second apart, until the lease is over or the client is closed.
func (h *Hold) Release(ctx context.Context) error {
	h.cleanup.Stop()
	return h.g.h.failed("release", h.g.release(ctx))
}

// Detach ends the hold without freeing what it holds: it is renewed no more and stays until its lease ends, or until somebody who knows the id
// adopts or releases it. It returns that id; "" if the hold has ended, or has none.
func (h *Hold) Detach() string {
	h.cleanup.Stop()
	if !h.g.detach() {
		return ""
	}
	return h.ID()
}

// Check asks Redis whether the hold still stands: nil, or [ErrLost]. A plain semaphore cannot tell: [ErrUnsupported].
func (h *Hold) Check(ctx context.Context) error {
	return h.g.h.failed("check", h.g.ask(ctx, func() error { return h.g.t.check(ctx) }))
}

// Extend makes the hold valid for at least d from now, never shorter than it is. d is 1 ms to 100 years.
func (h *Hold) Extend(ctx context.Context, d time.Duration) error {
	return h.g.h.failed("extend", h.g.ask(ctx, func() error {
		if d < minDuration || d > maxDuration {
			return invalid("an extension of %v (from 1ms to 100 years)", d)
		}
		return h.g.t.extend(ctx, h.g, d)
	}))
}

// newHold makes the hold of t and registers it with the client. It fails when the client is closing.
func (h *handle) newHold(ctx context.Context, t grant, s *settings, sent time.Time, parent *grip) (*Hold, error) {
	g := &grip{h: h, t: t, of: s.of, parent: parent, depth: 1, ctx: ctx, since: h.c.instant(sent), renew: s.renew, ttl: s.firstTTL()}
	if parent != nil {
		g.depth = parent.depth + 1
	}
	if d := s.limit(); d > 0 && t != nil {
		if limit := t.limit(sent, d); !limit.IsZero() {
			g.limit = h.c.instant(limit)
		}
	}
	if !h.c.holds.add(g) {
		return nil, ErrClosed
	}
	h.c.presence.wake()
	if t != nil {
		t.join(g)
	}
	hold := &Hold{g: g}
	hold.cleanup = runtime.AddCleanup(hold, (*grip).leaked, g)
	return hold, nil
}

// live tells whether one may nest under g.
func (g *grip) live() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.cause == nil && !g.taken
}

// lost reports whether the hold ended by a loss.
func (g *grip) lost() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return errors.Is(g.cause, ErrLost)
}

// released tells whether a release has begun.
func (g *grip) released() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.taken
}

func (g *grip) validUntil() time.Time {
	if g.t == nil {
		return time.Time{}
	}
	return g.t.valid(g)
}

// until is the hold's own limit.
func (g *grip) until() time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.limit == 0 {
		return time.Time{}
	}
	return g.h.c.time(g.limit)
}

func (g *grip) context() context.Context {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inner == nil {
		ctx, cancel := context.WithCancelCause(g.ctx)
		g.inner = &inner{ctx, cancel}
		if g.cause != nil {
			cancel(g.explained())
		}
	}
	return g.inner.Context
}

// explained is the cause of the hold's context: a loss says what was lost. mu is held.
func (g *grip) explained() error {
	if errors.Is(g.cause, ErrLost) {
		return &Error{Op: "hold", Kind: g.h.kind, Name: g.h.name, Err: ErrLost}
	}
	return g.cause
}

// end ends the hold for cause, once, and reports whether this call did it. It does not tell the tenure.
func (g *grip) end(cause error) bool {
	g.mu.Lock()
	if g.cause != nil {
		g.mu.Unlock()
		return false
	}
	g.cause = cause
	if g.inner != nil {
		g.inner.cancel(g.explained())
	}
	if g.nest != nil {
		close(g.nest.ended)
	}
	lapse := g.lapse
	g.mu.Unlock()
	if lapse != nil {
		g.h.c.dog.Drop(lapse)
	}
	if g.parent != nil {
		g.parent.passTurn()
	}
	g.h.c.holds.remove(g)
	if g.of != nil {
		g.of.ended(g, cause)
	}
	return true
}

// claim makes the caller the one who ends the hold by a release or a detach, or says why there is nothing to end.
func (g *grip) claim() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case errors.Is(g.cause, ErrClosed):
		return ErrClosed
	case g.taken:
		return ErrReleased
	}
	g.taken = true
	return g.cause
}

func (g *grip) release(ctx context.Context) error {
	if err := g.h.c.begin(ctx); err != nil {
		return g.refused(err)
	}
	defer g.h.c.calls.Done()
	if err := g.claim(); err != nil {
		if errors.Is(err, ErrLost) && g.t != nil {
			g.t.abandon(ctx)
		}
		return err
	}
	if g.t == nil {
		g.end(ErrReleased)
		return nil
	}
	if g.of != nil {
		g.of.ended(g, ErrReleased) // before another can have it
	}
	lost, err := g.t.leave(ctx, g)
	switch {
	case err != nil:
		g.end(ErrReleased)
		g.tell(ctx, EventReleaseFailed, err)
		return err
	case lost:
		g.lose(ctx)
		return ErrLost
	}
	if g.end(ErrReleased) {
		g.tell(ctx, EventReleased, nil)
	}
	return nil
}

// refused is what a hold answers when its client is closed.
func (g *grip) refused(closed error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.taken {
		return ErrReleased
	}
	return closed
}

func (g *grip) detach() bool {
	if g.claim() != nil {
		return false
	}
	if g.t != nil {
		g.t.forget(g)
	}
	return g.end(ErrReleased)
}

// ask runs f, which asks Redis about a live hold that has a lease.
func (g *grip) ask(ctx context.Context, f func() error) error {
	if err := g.h.c.begin(ctx); err != nil {
		return g.refused(err)
	}
	defer g.h.c.calls.Done()
	g.mu.Lock()
	cause := g.cause
	if cause == nil && g.taken {
		cause = ErrReleased
	}
	g.mu.Unlock()
	if cause != nil {
		return cause
	}
	if g.t == nil {
		return nil
	}
	if !g.t.leases() {
		return ErrUnsupported
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return f()
}

// lose ends the hold with ErrLost, found by the call that has ctx: the observer hears of it before
// that call returns.
func (g *grip) lose(ctx context.Context) {
	if g.end(ErrLost) {
		g.tell(ctx, EventLost, ErrLost)
	}
}

// loseInBackground ends the hold with ErrLost, found by no call of the user's.
func (g *grip) loseInBackground() {
	if g.end(ErrLost) && g.of == nil {
		g.h.c.emitLater(g.event(EventLost, ErrLost))
	}
}

// leaked is called when nobody can reach the Hold any more.
func (g *grip) leaked() {
	if err := g.claim(); err != nil {
		if errors.Is(err, ErrLost) && g.t != nil {
			g.t.forget(g) // what is left of several locks
		}
		return
	}
	if g.t != nil {
		g.t.forget(g)
	}
	if g.end(ErrReleased) {
		g.h.c.emitLater(g.event(EventLeaked, nil))
	}
}

// tell emits an event in the goroutine of the call that has ctx.
func (g *grip) tell(ctx context.Context, kind EventKind, err error) {
	if g.h.c.observe != nil && g.of == nil {
		e := g.event(kind, err)
		e.Ctx = ctx
		g.h.c.emit(e)
	}
}

func (g *grip) event(kind EventKind, err error) Event {
	id := ""
	if g.t != nil {
		id = g.t.publicID()
	}
	return Event{Kind: kind, Lock: g.h.kind, Name: g.h.name, ID: id, Held: time.Since(g.h.c.time(g.since)), Err: err}
}

// LeaseLost is the watchdog's word that the hold's limit has come.
func (g *grip) LeaseLost(*watchdog.Lease, bool) {
	g.t.forget(g)
	g.loseInBackground()
}

// LeaseRenewed and LeaseUnknown do not happen: a limit is watched, not renewed.
func (g *grip) LeaseRenewed(*watchdog.Lease)        {}
func (g *grip) LeaseUnknown(*watchdog.Lease, error) {}

// holdList is the client's live holds.
type holdList struct {
	mu      sync.Mutex
	head    *grip          // the newest
	tail    *grip          // the oldest
	aged    *grip          // the newest of those that holdList.age has counted
	tags    map[string]int // how many it has counted, by tag
	sealed  bool
	drained chan struct{} // closed when sealed and empty
}

// add refuses when the list is sealed.
func (l *holdList) add(g *grip) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sealed {
		return false
	}
	g.next = l.head
	if l.head != nil {
		l.head.prev = g
	} else {
		l.tail = g
	}
	l.head = g
	return true
}

func (l *holdList) remove(g *grip) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget(g)
	if g.next != nil {
		g.next.prev = g.prev
	} else {
		l.tail = g.prev
	}
	if g.prev != nil {
		g.prev.next = g.next
	} else {
		l.head = g.next
	}
	g.prev, g.next = nil, nil
	l.drain()
}

func (l *holdList) drain() {
	if l.sealed && l.head == nil {
		select {
		case <-l.drained:
		default:
			close(l.drained)
		}
	}
}

// seal lets no hold in any more.
func (l *holdList) seal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sealed = true
	l.drain()
}

// abandon ends the holds that nobody is releasing with ErrClosed, and tells whether there were any.
func (l *holdList) abandon() bool {
	l.mu.Lock()
	var left []*grip
	for g := l.head; g != nil; g = g.next {
		left = append(left, g)
	}
	l.mu.Unlock()
	abandoned := false
	for _, g := range left {
		if g.live() {
			if g.t != nil {
				g.t.forget(g)
			}
			abandoned = g.end(ErrClosed) || abandoned
		}
	}
	return abandoned
}
