package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redlatch/redlatch/internal/list"
	"github.com/redlatch/redlatch/watchdog"
)

// Hold is what the engine keeps of one hold. It ends once: released or detached, lost, or left behind
// when the client closed. The handle that the user has refers to it, not the other way round, so a
// handle that the user has forgotten can be collected: see [Hold.Forget].
type Hold struct {
	r      *Resource
	held   holding         // nil for a hold of nothing (0 permits)
	group  holdGroup       // of a hold of a member of a joint lock; nil for a user's own hold
	parent *Hold           // whose turn a nested hold has taken; nil if none
	ctx    context.Context //nolint:containedctx // Acquire's
	since  Instant         // when the command was sent that acquired it, or when it was passed on
	ttl    time.Duration   // of the lease, or of each renewal
	depth  uint16
	member uint16 // of a cohort: how many held a fenced lock before it; guarded by the ownership
	renew  bool
	listed bool // guarded by holdList: counted by tag
	taken  bool // a Release or a Detach has begun; guarded by mu

	mu       sync.Mutex      // guards the fields below
	cause    error           // why it ended; nil while it has not
	limit    Instant         // the hold lasts no longer, however often it is renewed; 0: no limit
	extended Instant         // when the longest lease ends that an Extend got, or may get
	inner    *innerContext   // nil until it is asked for
	turns    *turnQueue      // of nested acquisitions; nil until there is one
	lapse    *watchdog.Lease // watches limit; nil if there is none

	sibling          *Hold // guarded by its ownership
	list.Links[Hold]       // guarded by holdList
}

// holding is what a hold holds: one ownership, or one of each member of a joint lock.
type holding interface {
	id() string
	leased() bool          // false: it lasts until it is released, and cannot be lost
	ownership() *Ownership // nil if it is not one
	member(key *Key) *Hold // the live hold of a member of a joint lock; nil if there is none
	validUntil(h *Hold) time.Time
	limit(sent time.Time, d time.Duration) time.Time
	join(h *Hold)
	forget(h *Hold) // stops renewing and watching for h; sends nothing
	release(ctx context.Context, h *Hold) (lost bool, err error)
	abandon(ctx context.Context) // h was lost, and its owner has left the critical section
	check(ctx context.Context) error
	extend(ctx context.Context, h *Hold, d time.Duration) error
}

// holdGroup is told of the ends of its holds: a joint lock's ownership.
type holdGroup interface {
	// memberEnded is called when a hold has ended, and when the caller of its Release is about to free it.
	memberEnded(h *Hold, cause error)
}

// newHold returns a hold of held and registers it with the client. It fails when the client is closing.
func (r *Resource) newHold(ctx context.Context, held holding, q *Request, sent time.Time, parent *Hold) (*Hold, error) {
	c, terms := r.Core, q.Terms
	h := &Hold{
		r: r, held: held, group: q.group, parent: parent, ctx: ctx, since: c.Instant(sent),
		ttl: terms.FirstTTL(), renew: terms.Renew, depth: 1,
	}
	if parent != nil {
		h.depth = parent.depth + 1
	}
	if d := terms.Limit(); d > 0 && held != nil {
		if limit := held.limit(sent, d); !limit.IsZero() {
			h.limit = c.Instant(limit)
		}
	}
	// Close seals the list first, so either it sees this hold or the hold is not made.
	if !c.holds.add(h) {
		return nil, ErrClosed
	}
	c.HoldAdded()
	if held != nil {
		held.join(h) // last: the watchdog may end h at once
	}
	return h, nil
}

// AcquireNothing returns a hold of nothing, which needs no server.
func (r *Resource) AcquireNothing(ctx context.Context, terms *Terms) (hold *Hold, err error) {
	c := r.Core
	if err = c.Enter(); err != nil {
		return nil, err
	}
	defer c.Leave()
	if ctx.Err() != nil {
		err = GaveUp(ctx, nil)
	} else {
		hold, err = r.newHold(ctx, nil, &Request{Terms: terms}, time.Now(), nil)
	}
	r.EmitAcquired(ctx, hold, err)
	return hold, err
}

// Adopted returns the hold of an owner that has replaced another one on the server, with one command
// sent at that time.
func (r *Resource) Adopted(ctx context.Context, q *Request, sent time.Time) (*Hold, error) {
	return r.newHold(ctx, r.newOwnership(q, Result{Sent: sent}), q, sent, nil)
}

// ID is the id on the wire; "" if there is none.
func (h *Hold) ID() string {
	if h == nil || h.held == nil {
		return ""
	}
	return h.held.id()
}

// Token is the fencing token; 0 if there is none.
func (h *Hold) Token() int64 {
	o := h.Ownership()
	if o == nil || o.Token == 0 {
		return 0
	}
	return o.Token + int64(h.member)
}

// Resource is what is held.
func (h *Hold) Resource() *Resource { return h.r }

// Depth is 1 for an outermost hold, and one more for each hold that it is nested in.
func (h *Hold) Depth() int { return int(h.depth) }

// Renewed reports whether the hold is renewed, rather than having a fixed lease.
func (h *Hold) Renewed() bool { return h.renew }

// Ownership is the one ownership that h shares in; nil if it holds nothing, or several locks.
func (h *Hold) Ownership() *Ownership {
	if h.held == nil {
		return nil
	}
	return h.held.ownership()
}

// ValidUntil is when the hold is lost unless the server answers before; zero if it has no lease.
func (h *Hold) ValidUntil() time.Time {
	if h.held == nil {
		return time.Time{}
	}
	return h.held.validUntil(h)
}

// until is the hold's own limit; zero if there is none.
func (h *Hold) until() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.limit == 0 {
		return time.Time{}
	}
	return h.r.Core.Time(h.limit)
}

func (h *Hold) extendedUntil() Instant {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.extended
}

// isLive reports whether an acquisition may nest under h.
func (h *Hold) isLive() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cause == nil && !h.taken
}

// isLost reports whether the hold ended by a loss.
func (h *Hold) isLost() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return errors.Is(h.cause, ErrLost)
}

// isReleased reports whether a Release or a Detach has begun.
func (h *Hold) isReleased() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.taken
}

// watchLimit has the watchdog end h when its limit has come.
func (h *Hold) watchLimit() {
	h.mu.Lock()
	limit := h.limit
	if limit == 0 || h.cause != nil {
		h.mu.Unlock()
		return
	}
	if h.lapse == nil {
		h.lapse = new(watchdog.Lease)
	}
	lapse := h.lapse
	h.mu.Unlock()
	_ = h.r.Core.dog.Keep(lapse, h, watchdog.Terms{}, h.r.Core.Time(limit)) // fails after Close, which ends h
}

// LeaseLost implements [watchdog.Keeper]: the hold's limit has come.
func (h *Hold) LeaseLost(*watchdog.Lease, bool) {
	h.held.forget(h)
	h.loseInBackground()
}

// LeaseRenewed is not called: a limit is watched, not renewed.
func (h *Hold) LeaseRenewed(*watchdog.Lease) {}

// LeaseUnknown is not called, for the same reason.
func (h *Hold) LeaseUnknown(*watchdog.Lease, error) {}

// Release gives the hold back. Only the first call does; later ones return ErrReleased. If the server
// does not answer, Release returns the error and goes on in the background.
func (h *Hold) Release(ctx context.Context) error {
	c := h.r.Core
	if err := c.Begin(ctx); err != nil {
		return h.refused(err)
	}
	defer c.Leave()
	if err := h.take(); err != nil {
		if errors.Is(err, ErrLost) && h.held != nil {
			h.held.abandon(ctx) // the first Release of a lost hold: its critical section is over
		}
		return err
	}
	if h.held == nil {
		h.end(ErrReleased)
		return nil
	}
	if h.group != nil {
		h.group.memberEnded(h, ErrReleased) // before another client can have it
	}
	lost, err := h.held.release(ctx, h)
	switch {
	case err != nil:
		h.end(ErrReleased) // for the user it is over: the release goes on in the background
		h.emit(ctx, EventReleaseFailed, err)
		return err
	case lost:
		h.lose(ctx)
		return ErrLost
	}
	if h.end(ErrReleased) {
		h.emit(ctx, EventReleased, nil)
	}
	return nil
}

// take makes the caller the one that ends the hold by a release or a detach, or returns the reason why
// there is nothing to end.
func (h *Hold) take() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case errors.Is(h.cause, ErrClosed):
		return ErrClosed
	case h.taken:
		return ErrReleased
	}
	h.taken = true
	return h.cause
}

// refused is the error of a call that came after the client was closed.
func (h *Hold) refused(closed error) error {
	if h.isReleased() {
		return ErrReleased
	}
	return closed
}

// Detach ends the hold without freeing what it holds, and reports whether it did.
func (h *Hold) Detach() bool {
	if h.take() != nil {
		return false
	}
	if h.held != nil {
		h.held.forget(h)
	}
	return h.end(ErrReleased)
}

// Forget is called when the user has lost the last reference to the hold's handle without releasing it.
// Nothing renews it from now on.
func (h *Hold) Forget() {
	err := h.take()
	if err != nil && !errors.Is(err, ErrLost) {
		return
	}
	if h.held != nil {
		h.held.forget(h) // of a joint lock that was lost, some members may be left
	}
	if err == nil && h.end(ErrReleased) {
		h.r.Core.emitLater(h.event(EventLeaked, nil))
	}
}

// Check asks the server whether the hold still stands: nil, or ErrLost.
func (h *Hold) Check(ctx context.Context) error {
	return h.ask(ctx, func() error { return h.held.check(ctx) })
}

// Extend makes the hold valid for at least d from now. invalid, if not nil, is what is wrong with d.
func (h *Hold) Extend(ctx context.Context, d time.Duration, invalid error) error {
	return h.ask(ctx, func() error {
		if invalid != nil {
			return invalid // after the other errors: a lost hold is lost, whatever d is
		}
		return h.held.extend(ctx, h, d)
	})
}

// ask runs f, which asks the server about a live hold that has a lease.
func (h *Hold) ask(ctx context.Context, f func() error) error {
	if err := h.r.Core.Begin(ctx); err != nil {
		return h.refused(err)
	}
	defer h.r.Core.Leave()
	h.mu.Lock()
	cause := h.cause
	if cause == nil && h.taken {
		cause = ErrReleased
	}
	h.mu.Unlock()
	switch {
	case cause != nil:
		return cause
	case h.held == nil:
		return nil
	case !h.held.leased():
		return ErrUnsupported
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return f()
}

// lose ends the hold because the call with ctx found it lost. The observer hears of it before that call
// returns.
func (h *Hold) lose(ctx context.Context) {
	if h.end(ErrLost) {
		h.emit(ctx, EventLost, ErrLost)
	}
}

// loseInBackground ends the hold because it was found lost by no call of the user's.
func (h *Hold) loseInBackground() {
	if h.end(ErrLost) && h.group == nil {
		h.r.Core.emitLater(h.event(EventLost, ErrLost))
	}
}

// end ends the hold for cause, once, and reports whether this call did. It does not tell the ownership.
func (h *Hold) end(cause error) bool {
	h.mu.Lock()
	if h.cause != nil {
		h.mu.Unlock()
		return false
	}
	h.cause = cause
	if h.inner != nil {
		h.inner.cancel(h.explain())
	}
	turns, lapse := h.turns, h.lapse
	h.mu.Unlock()
	// The rest without the mutex: each of these takes one of its own, and cause lets nobody else get here.
	if turns != nil {
		turns.end() // waiters that want to nest acquire as outermost requests
	}
	if lapse != nil {
		h.r.Core.dog.Drop(lapse)
	}
	if h.parent != nil {
		h.parent.turnsOf().pass()
	}
	h.r.Core.holds.remove(h)
	if h.group != nil {
		h.group.memberEnded(h, cause)
	}
	return true
}

// explain is the cause of the hold's context: a loss says what was lost. mu is held.
func (h *Hold) explain() error {
	if errors.Is(h.cause, ErrLost) {
		return h.r.Core.Describe(h.r, "hold", ErrLost)
	}
	return h.cause
}

// emit emits an event in the goroutine of the call that has ctx. Holds of members emit none.
func (h *Hold) emit(ctx context.Context, kind EventKind, err error) {
	if h.r.Core.Observe != nil && h.group == nil {
		e := h.event(kind, err)
		e.Ctx = ctx
		h.r.Core.emit(e)
	}
}

func (h *Hold) event(kind EventKind, err error) Event {
	return Event{Kind: kind, Resource: h.r, ID: h.ID(), Held: time.Since(h.r.Core.Time(h.since)), Err: err}
}
