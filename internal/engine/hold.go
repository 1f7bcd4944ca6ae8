package engine

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/redlatch/redlatch/internal/list"
)

// One hold, from NewHold to its end. Two facts are kept apart, because a user's Release and a loss
// may come at the same time:
//
//   - taken: the user has called Release or Detach. Only one such call proceeds.
//   - cause: the hold has ended, for this reason. Only one end takes effect, and it cancels the
//     context.
//
// A lost hold has a cause, and is not taken until its first Release, which returns ErrLost. While a
// release is under way, the hold is taken and has no cause yet. No acquisition can nest under it
// then, but its context is live until the server has answered.

// Hold is one acquisition that was granted. It ends once: released, detached, lost, or abandoned
// when the client closes. The user's hold refers to it, not the other way round, so a forgotten one
// can be collected: see [Hold.ReportLeak].
//
// Any goroutine may use it. Fields above mu do not change after NewHold, unless they say so.
type Hold struct {
	r      *Resource
	held   Holding
	group  Group // of a hold of a member of a joint lock; nil for a user's own hold
	parent *Hold // the hold that this one nests in, and whose gate it occupies; nil if none
	// ctx is the context of Acquire, or Terms.HoldContext. A member gets that of its joint hold,
	// under mu.
	ctx     context.Context //nolint:containedctx // a hold has one
	since   Instant         // when the command that acquired it was sent, or when its turn began
	ttl     time.Duration   // of the lease, or of each renewal
	depth   uint16          // set before Acquire returns
	earlier uint16          // of a nested hold: how many turns came before its own; set before Acquire returns
	renew   bool
	listed  bool // counted by tag; guarded by holdList.mu
	taken   bool // a Release or a Detach has begun; guarded by mu
	// isLapsed is set while the hold is counted in Ownership.lapsed, whose mutex guards it.
	isLapsed bool

	mu       sync.Mutex    // guards the fields below; innermost
	cause    error         // why the hold ended; nil while it is live
	limit    Instant       // the hold lasts no longer, however often it is renewed; 0 if there is no limit
	extended Instant       // the latest end of a lease that an Extend got, or may still get
	inner    *innerContext // nil until the first call of Context
	wanted   chan struct{} // closed when its resource is waited for; nil if nobody listens or is known to wait
	gate     *siblingGate  // of nested acquisitions; nil until there is one
	lapse    *time.Timer   // ends the hold at limit; nil if there is none

	sibling          *Hold    // the next hold of its ownership; guarded by Ownership.mu
	list.Links[Hold]          // guarded by holdList
	sameName         sameName // guarded by holdList
}

// Holding is the object behind a hold: an [Ownership], a turn on one, or the ownership of a joint
// lock, with a hold of each member. Release, Abandon, Check and Extend send commands and may block.
// The other methods only compute, or take mutexes for a moment.
type Holding interface {
	OwnerID() string
	Ownership() *Ownership        // the ownership that nested holds join; nil for a joint lock, and for nothing
	TokenOf(h *Hold) int64        // the fencing token of h; 0 if there is none
	Member(r *Resource) *Hold     // the hold of a member of a joint lock, live or not; nil if there is none
	ValidUntil(h *Hold) time.Time // when h is lost unless the server answers before
	Join(h *Hold)                 // adds h, once, after h was registered with the client
	Forget(h *Hold)               // stops renewing and watching for h; sends nothing
	Listen(h *Hold)               // calls h.NotifyWanted when somebody waits for its resource; called once for each h
	Abandon(ctx context.Context)  // for the first Release of a lost hold: its critical section is over
	// Each of these sends a command. If the server answers that h is lost, it ends h, and returns
	// the loss. Release gives back the count of h, and reports whether a waiter of this client has
	// the lock now.
	Release(ctx context.Context, h *Hold) (handedOff bool, err error)
	Check(ctx context.Context, h *Hold) error
	Extend(ctx context.Context, h *Hold, d time.Duration) error
}

// Group is the ownership of a joint lock, for the holds of its members, or a tenure of package
// turns, for its tenure hold.
type Group interface {
	// MemberEnded reports that a hold has ended, or is about to be freed by its Release. It is
	// called with no mutex held, and may be called twice for one hold.
	MemberEnded(h *Hold, cause error)
	// MemberWanted reports that somebody waits for the resource of a hold. It is called like
	// MemberEnded.
	MemberWanted(h *Hold)
	// UserOf reports whether another hold than h is the user's, and returns it. h itself then emits
	// no events. user is nil if no user has a turn now. It is called with no mutex held.
	UserOf(h *Hold) (user *Hold, isAnother bool)
	// JointHold returns the user's hold of a joint lock, which may be of another client, or nil if
	// there is none yet. isJoint is false for a tenure. It is called with no mutex held.
	JointHold() (joint *Hold, isJoint bool)
}

// NewHold returns the hold that res has granted to q, and registers it with the client. It does not
// block. It fails when the client is closing; the caller then rolls back. The caller is a call that
// Close waits for.
func (r *Resource) NewHold(ctx context.Context, q *Request, res Result) (*Hold, error) {
	c := r.Core
	terms := q.Terms
	held := res.Holding
	if held == nil {
		held = r.newOwnership(q, res)
	}
	o := held.Ownership()
	h := q.memory
	switch {
	case h != nil: // the caller has allocated it
	case o != nil && o.first.r == nil:
		h = &o.first // most ownerships have one hold: one allocation for both
	default:
		h = new(Hold)
	}
	holdContext := terms.holdContext(ctx)
	if q.isTenure {
		holdContext = context.Background() // it may outlast the acquisition of any user
	}
	*h = Hold{
		r: r, held: held, group: q.Group, parent: q.parent, ctx: holdContext,
		since: c.Instant(res.Sent), ttl: terms.FirstTTL(), renew: terms.Renew, depth: 1,
	}
	limit := terms.Limit()
	hasLease := o != nil && r.Traits.Leased
	if hasLease && limit > 0 {
		h.limit = c.Instant(c.trustedUntil(res.Sent, limit))
	}
	// Close seals the list first. So either Close sees this hold, or the hold is not made.
	if !c.holds.add(h) {
		return nil, ErrClosed
	}
	r.checkToken(q, res)
	held.Join(h) // last: the watchdog may end h at once
	return h, nil
}

// AcquireNothing returns a hold of 0 permits. It sends no command, and so it does not block.
func (r *Resource) AcquireNothing(ctx context.Context, terms *Terms) (hold *Hold, err error) {
	c := r.Core
	err = c.Enter()
	if err != nil {
		return nil, err
	}
	defer c.Leave()
	if ctx.Err() != nil {
		err = GaveUp(ctx, nil)
	} else {
		hold, err = r.NewHold(ctx, &Request{Terms: terms}, Result{Holding: nothing{}, Sent: time.Now()})
	}
	r.EmitResult(ctx, EventAcquired, hold, 0, err)
	return hold, err
}

// nothing is the Holding of a hold of 0 permits, which has nothing to lose or release.
type nothing struct{}

func (nothing) OwnerID() string                                    { return "" }
func (nothing) Ownership() *Ownership                              { return nil }
func (nothing) TokenOf(*Hold) int64                                { return 0 }
func (nothing) Member(*Resource) *Hold                             { return nil }
func (nothing) ValidUntil(*Hold) time.Time                         { return time.Time{} }
func (nothing) Join(*Hold)                                         {}
func (nothing) Forget(*Hold)                                       {}
func (nothing) Listen(*Hold)                                       {}
func (nothing) Abandon(context.Context)                            {}
func (nothing) Release(context.Context, *Hold) (bool, error)       { return false, nil }
func (nothing) Check(context.Context, *Hold) error                 { return nil }
func (nothing) Extend(context.Context, *Hold, time.Duration) error { return nil }

// NewAdoptedHold returns a hold for an owner that the server already knows: one command, sent at
// sent, has replaced the former owner by it. The watchdog renews it from now on. It fails with
// ErrLost if the answer took longer than the lease lasts.
func (r *Resource) NewAdoptedHold(ctx context.Context, q *Request, sent time.Time) (*Hold, error) {
	if !r.Core.trustedUntil(sent, q.Terms.FirstTTL()).After(time.Now()) {
		return nil, ErrLost
	}
	return r.NewHold(ctx, q, Result{Granted: true, Sent: sent})
}

// ID returns the owner's id on the server, or "" if there is none. A nil hold has none.
func (h *Hold) ID() string {
	if h == nil {
		return ""
	}
	return h.held.OwnerID()
}

// Token returns the fencing token, or 0 if there is none.
func (h *Hold) Token() int64 { return h.held.TokenOf(h) }

// Resource returns the resource that the hold was acquired from.
func (h *Hold) Resource() *Resource { return h.r }

// Depth returns 1 for an outermost hold, and one more for each hold that it is nested in.
func (h *Hold) Depth() int { return int(h.depth) }

// Renewed reports whether the hold is renewed, rather than having a fixed lease.
func (h *Hold) Renewed() bool { return h.renew }

// Ownership returns the ownership that h belongs to, or nil for a hold of 0 permits or of a joint
// lock.
func (h *Hold) Ownership() *Ownership { return h.held.Ownership() }

// ValidUntil returns when the hold is lost unless the server answers before. It is zero if the hold
// has no lease.
func (h *Hold) ValidUntil() time.Time { return h.held.ValidUntil(h) }

// holdState is a snapshot of fields of a hold.
type holdState struct {
	cause           error
	limit, extended Instant
	taken           bool
}

func (h *Hold) state() holdState {
	h.mu.Lock()
	defer h.mu.Unlock()
	return holdState{h.cause, h.limit, h.extended, h.taken}
}

// Limit returns the hold's own limit, or zero if there is none.
func (h *Hold) Limit() time.Time {
	if limit := h.state().limit; limit != 0 {
		return h.r.Core.Time(limit)
	}
	return time.Time{}
}

// IsLimitOver reports whether the hold has lasted as long as its limit, as far as a lease can tell.
func (h *Hold) IsLimitOver() bool {
	limit := h.Limit()
	return !limit.IsZero() && time.Until(limit) <= limitTolerance
}

// Ended returns why the hold has ended, or is about to. It is nil if the hold is live.
func (h *Hold) Ended() error {
	if s := h.state(); s.cause != nil || !s.taken {
		return s.cause
	}
	return ErrReleased
}

// IsLive reports whether h has not ended and its release has not begun. Only then may an
// acquisition nest under it.
func (h *Hold) IsLive() bool { return h.Ended() == nil }

// watchLimit makes h end when its limit has come. Ownership.Join calls it, and Extend after it has
// raised the limit. It is separate from the renewal of the ownership: a hold with a limit ends by
// itself, and the other holds of the ownership live on.
func (h *Hold) watchLimit() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.limit == 0 || h.cause != nil {
		return
	}
	left := time.Until(h.r.Core.Time(h.limit))
	if h.lapse == nil {
		h.lapse = time.AfterFunc(left, func() { h.r.Core.Spawn(h.lapsed) })
	} else {
		h.lapse.Reset(left)
	}
}

// lapsed ends h, because its limit has come. It does not if Extend has raised the limit meanwhile.
func (h *Hold) lapsed() {
	if time.Now().Before(h.Limit()) {
		return
	}
	h.held.Forget(h)
	h.LoseInBackground(Loss{Reason: LossLimit})
}

// Release ends the hold and gives back its count; the last count of an ownership frees the lock.
// Later calls return ErrReleased. It blocks until the server has answered, for releaseTimeout at
// most, even if ctx has ended. If the server does not answer, Release returns the error, and its
// command is repeated in the background.
func (h *Hold) Release(ctx context.Context) error {
	c := h.r.Core
	// Not EnterReady: the client was ready when the hold was acquired, unless it is a hold of 0
	// permits, which needs no server.
	if err := c.Enter(); err != nil {
		err = h.refused(err)
		_ = h.takeAndForget() // if a joint lock was lost before, other clients may renew its members
		return err
	}
	defer c.Leave()
	return h.release(ctx, h.take())
}

// release is Release after [Hold.take] has returned err. The caller is a call that Close waits for.
func (h *Hold) release(ctx context.Context, err error) error {
	if err != nil {
		if errors.Is(err, ErrLost) {
			// The first Release of a lost hold: its critical section is over. A renewal without a
			// reply may have kept the key alive, and it would block other clients for a whole TTL.
			h.held.Abandon(ctx)
		}
		return err
	}
	if h.group != nil {
		// Before the command: as soon as the server has freed a member, another client may acquire
		// it. The joint hold must not count it then.
		h.group.MemberEnded(h, ErrReleased)
	}
	defer h.end(ErrReleased) // does nothing, unless a hook of go-redis panics
	handedOff, err := h.held.Release(ctx, h)
	kind := EventReleased
	if err != nil {
		// For the user the hold is over, whatever came of the command: nothing renews it from now
		// on.
		kind = EventReleaseFailed
	}
	if h.end(ErrReleased) { // else it was lost
		h.emit(ctx, kind, err)
	}
	if handedOff {
		runtime.Gosched() // the new holder runs before the former one goes on
	}
	return err
}

// take lets one call of Release, ReleaseLater or takeAndForget proceed. It returns nil to that
// call, and to the others the reason why they must not go on. The first call after a loss gets
// ErrLost, the first one after a Close gets ErrClosed, and later ones get ErrReleased.
func (h *Hold) take() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.taken {
		return ErrReleased
	}
	h.taken = true
	return h.cause
}

// refused returns the error of a call that came after the client was closed.
func (h *Hold) refused(closed error) error {
	if h.state().taken {
		return ErrReleased
	}
	return closed
}

// Detach ends the hold without freeing the lock, and reports whether it did. The lock stays taken
// until its lease ends, or until another process adopts or frees it. Detach sends nothing and does
// not block.
func (h *Hold) Detach() bool {
	c := h.r.Core
	if c.Enter() != nil {
		return false // Close has ended all holds
	}
	defer c.Leave()
	if h.takeAndForget() != nil || !h.end(ErrReleased) {
		return false
	}
	h.emit(noContext, EventDetached, nil)
	return true
}

// takeAndForget takes the hold, and lets nothing renew it any longer. Some members of a lost joint
// lock may be left, and would be renewed for ever.
func (h *Hold) takeAndForget() error {
	err := h.take()
	if err == nil || errors.Is(err, ErrLost) {
		h.held.Forget(h)
	}
	return err
}

// Check asks the server whether the hold still exists. It returns ErrLost if it does not. It blocks
// until the reply. An error of the transport changes nothing: the hold stays live until validUntil.
func (h *Hold) Check(ctx context.Context) error {
	return h.whileLive(ctx, func() error { return h.held.Check(ctx, h) })
}

// Extend makes the hold valid for at least d from now. It blocks until the reply. invalid, if not
// nil, is the reason why d is not allowed.
func (h *Hold) Extend(ctx context.Context, d time.Duration, invalid error) error {
	return h.whileLive(ctx, func() error {
		if invalid != nil {
			return invalid // after the other errors: a lost hold is lost, whatever d is
		}
		return h.held.Extend(ctx, h, d)
	})
}

// whileLive runs f, which sends a command about h. It does not run f, and fails, if h has ended or
// has no lease, or if ctx has ended. If h is lost when f returns, whileLive returns the loss,
// whatever f returned. Check and Extend share it.
func (h *Hold) whileLive(ctx context.Context, f func() error) error {
	if err := h.r.Core.EnterReady(ctx); err != nil {
		return h.refused(err)
	}
	defer h.r.Core.Leave()
	if cause := h.Ended(); cause != nil {
		return cause
	}
	if o := h.Ownership(); o != nil && !h.r.Traits.Leased {
		return errNoLease
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	// Otherwise an Extend could keep a lock for long that nobody holds any more.
	if err := h.loseIfOver(ctx); err != nil {
		return err
	}
	err := f()
	if loss := h.lossCause(); loss != nil {
		return loss
	}
	if err != nil {
		return err
	}
	return h.loseIfOver(ctx) // the answer may have come too late
}

// loseIfOver ends h, and returns the loss, if its validity has passed. The watchdog is about to
// report that: it may be late, because the process stood still. For a joint hold its members do the
// same.
func (h *Hold) loseIfOver(ctx context.Context) error {
	o := h.Ownership()
	isJoint := o == nil
	if isJoint || !h.IsLive() {
		return nil
	}
	if h.ValidUntil().After(time.Now()) {
		return nil
	}
	o.Forget(h)
	return h.Lose(ctx, o.expiredLoss())
}

// lossCause returns why h was lost, or nil if it was not.
func (h *Hold) lossCause() error {
	if cause := h.state().cause; errors.Is(cause, ErrLost) {
		return cause
	}
	return nil
}

// Lose ends the hold because the call with ctx found that it is lost, and returns the error for
// that call. It calls the observer, so the event comes before that call returns.
func (h *Hold) Lose(ctx context.Context, loss Loss) error {
	emit, err := h.lose(ctx, loss)
	emit()
	return err
}

// lose is Lose, but leaves it to the caller to call the observer, by emit.
func (h *Hold) lose(ctx context.Context, loss Loss) (emit func(), err error) {
	loss, err = h.completeLoss(loss)
	if !h.end(err) {
		return func() {}, cmp.Or(h.lossCause(), err)
	}
	user, isAnother := h.user()
	switch {
	case isAnother && user == nil:
		return func() {}, err
	case isAnother:
		return user.lose(ctx, loss)
	}
	h.r.Core.log(h.lossRecord(loss, err))
	return func() { h.emit(ctx, EventLost, err) }, err
}

// LoseInBackground ends the hold when no call of the user found the loss: the watchdog did, or a
// check after a takeover notice. It does not wait for the observer.
func (h *Hold) LoseInBackground(loss Loss) {
	loss, err := h.completeLoss(loss)
	if !h.end(err) {
		return
	}
	user, isAnother := h.user()
	if isAnother {
		if user != nil {
			user.LoseInBackground(loss)
		}
		return
	}
	h.r.Core.log(h.lossRecord(loss, err))
	if h.emitsEvents() {
		h.r.Core.emitLater(h.event(EventLost, err))
	}
}

// limitTolerance is how much earlier than the limit of a hold its lease may end: renewals ask for
// whole milliseconds.
const limitTolerance = 2 * time.Millisecond

// completeLoss completes a loss of h, and returns its error too.
func (h *Hold) completeLoss(loss Loss) (Loss, error) {
	isForced := loss.Reason == LossForced || loss.Reason == LossMembers
	if !isForced && h.IsLimitOver() {
		loss = Loss{Reason: LossLimit} // renewals stop there, and the server ends the lease
	}
	loss.Resource = h.r
	loss.ID = h.ID()
	return loss, h.r.Core.Errors.Lost(loss)
}

// end ends the hold for cause, once, and reports whether this call did. It does not block. The
// caller has removed the hold from its ownership before (Forget, Ownership.end), so that nothing
// renews it.
//
// The caller must hold no mutex that end takes, and not Ownership.wire: a member's end may end a
// joint hold, whose end takes further mutexes.
func (h *Hold) end(cause error) bool {
	h.mu.Lock()
	if h.cause != nil {
		h.mu.Unlock()
		return false
	}
	h.cause = cause
	if h.inner != nil {
		h.inner.cancel(cause)
	}
	if h.gate != nil {
		close(h.gate.ended) // waiters that want to nest acquire as outermost requests
	}
	lapse := h.lapse
	listened := h.wanted != nil
	h.mu.Unlock()
	// Without mu from here on: each of these takes a mutex of its own. No other call gets here,
	// because cause is set.
	if lapse != nil {
		lapse.Stop()
	}
	if h.parent != nil {
		h.parent.siblingGate().leave()
	}
	h.r.Core.holds.remove(h)
	if listened {
		h.r.Core.listening.remove(h)
	}
	if h.group != nil {
		h.group.MemberEnded(h, cause)
	}
	return true
}

// user is [Group].UserOf for a hold that may have no group.
func (h *Hold) user() (user *Hold, isAnother bool) {
	if h.group == nil {
		return nil, false
	}
	return h.group.UserOf(h)
}

// emitsEvents reports whether h emits events. Holds of members emit none, because the joint hold
// does.
func (h *Hold) emitsEvents() bool { return h.group == nil }

// emit emits an event in the goroutine of the call with ctx.
func (h *Hold) emit(ctx context.Context, kind EventKind, err error) {
	if h.r.Core.Observe != nil && h.emitsEvents() {
		e := h.event(kind, err)
		e.Ctx = ctx
		h.r.Core.emit(e)
	}
}

// noContext is nil, for an event that no call with a context has caused.
var noContext context.Context

func (h *Hold) event(kind EventKind, err error) Event {
	return Event{Kind: kind, Resource: h.r, ID: h.ID(), Held: h.heldFor(), Err: err}
}

// heldFor returns how long the hold has lasted.
func (h *Hold) heldFor() time.Duration { return time.Since(h.r.Core.Time(h.since)) }

// IsLostUnreleased reports whether h was lost, and its Release has not begun.
func (h *Hold) IsLostUnreleased() bool {
	s := h.state()
	return errors.Is(s.cause, ErrLost) && !s.taken
}
