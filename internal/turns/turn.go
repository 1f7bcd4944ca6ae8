package turns

import (
	"context"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/list"
)

// turn is one acquisition: a waiter, and then the [engine.Holding] of its user's hold. Turns.mu
// guards it. While it waits, the entry is its [engine.Queue].
type turn struct {
	list.Links[turn]
	entry  *entry
	since  time.Time      // when it began to wait
	waiter *engine.Waiter // nil until it waits, and after it has left with its turn
	err    error          // why it no longer waits

	tenure    *tenure // nil until it has the turn
	number    int     // how many turns the tenure had before this one
	seen      bool    // the waiting user has seen that it has the turn
	hold      *engine.Hold
	memory    engine.Hold     // where hold is stored
	following <-chan struct{} // closed when the command that follows giving up is answered; nil if there is none
}

// wake lets a waiter look. Turns.mu is held.
func (w *turn) wake() {
	if w.waiter != nil {
		w.waiter.Wake()
	}
}

// mayTakeBack reports whether w is a waiter that has not seen its turn. Turns.mu is held.
func (w *turn) mayTakeBack() bool { return w.waiter != nil && !w.seen }

// wait blocks until w, which is among the waiters, has its turn, or until attemptCtx ends.
func (e *entry) wait(ctx, attemptCtx context.Context, q *engine.Request, w *turn) (*engine.Hold, error) {
	q.State = w
	began := time.Now()
	err := e.r.WaitIn(attemptCtx, e, q)
	if err == nil {
		return w.begin(ctx, q)
	}
	if w.following != nil {
		engine.AwaitReleased(attemptCtx, w.following, e.turns.core.RollbackLimit(began))
	}
	return nil, err
}

// Join implements [engine.Queue].
func (e *entry) Join(waiter *engine.Waiter, _ engine.Result) {
	w := waiter.Request.State.(*turn)
	waiter.Request.ShareContact(&e.contact)
	e.turns.mu.Lock()
	defer e.turns.mu.Unlock()
	w.waiter = waiter
}

// NextStep implements [engine.Queue].
func (e *entry) NextStep(waiter *engine.Waiter) (step engine.Step) {
	w := waiter.Request.State.(*turn)
	e.turns.mu.Lock()
	defer e.turns.mu.Unlock()
	switch {
	case w.err != nil:
		step.Try = true // Try returns the error
	case w.tenure == nil: // its turn has not come
	case !w.tenure.isValid():
		tn := w.tenure
		tn.takeBack()
		tn.hold.ReleaseLater()
	default:
		w.seen = true
		step.HasTurn = true
	}
	return step
}

// Try implements [engine.Queue].
func (e *entry) Try(_ context.Context, waiter *engine.Waiter) (engine.Result, error) {
	return engine.Result{}, waiter.Request.State.(*turn).err
}

// Leave implements [engine.Queue].
func (e *entry) Leave(waiter *engine.Waiter, res engine.Result) {
	w := waiter.Request.State.(*turn)
	if res.Granted {
		return
	}
	t := e.turns
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case w.tenure != nil: // the waiter was given the turn just now
		w.waiter = nil // a loss that is reported later does not make it wait again
		if w.end(false) == endRelease {
			w.following = w.tenure.hold.ReleaseLater()
		}
		return
	case w.err == nil:
		e.waiters.Remove(w)
	}
	if e.waiters.First == nil {
		w.following = e.withdrawNext()
	}
	e.removeIfUnused()
}

// begin makes the user's hold.
func (w *turn) begin(ctx context.Context, q *engine.Request) (*engine.Hold, error) {
	hold, err := w.entry.r.NewTurnHold(ctx, q, &w.memory, w, time.Now())
	if err != nil {
		_, _ = w.Release(ctx, nil)
	}
	return hold, err
}

// end ends the turn, and returns what the caller must do: release the tenure hold, or nothing. mu
// is held.
func (w *turn) end(canLinger bool) turnEnd {
	e := w.entry
	tn := w.tenure
	now := time.Now()
	if canLinger {
		e.turns.idle.Add(1) // before it is decided: see Turns.idle
	}
	then := tn.afterTurn(now, canLinger)
	if canLinger && then != endLinger {
		e.turns.idle.Add(-1)
	}
	switch then {
	case endPassOn:
		next := e.waiters.First
		e.waiters.Remove(next)
		tn.give(next)
		isNextNeedless := e.waiters.First == nil && e.terms.Cohort == 0
		if isNextNeedless {
			e.withdrawNext()
		}
	case endLinger:
		tn.keepIdle(now)
		e.withdrawNext()
	default:
		tn.drop()
		e.enqueueNext(tn.hold) // before the release, which leaves the lock to others first
		if e.waiters.First == nil {
			e.withdrawNext()
		}
		e.removeIfUnused()
	}
	return then
}

// Release implements [engine.Holding]: the end of a turn.
func (w *turn) Release(ctx context.Context, _ *engine.Hold) (handedOff bool, err error) {
	t := w.entry.turns
	canLinger := w.entry.terms.Linger > 0 && t.core.Presence.CanLinger(ctx)
	t.mu.Lock()
	then := w.end(canLinger)
	t.mu.Unlock()
	if then == endRelease {
		err = w.tenure.hold.Release(ctx)
	}
	return false, err
}

// Forget implements [engine.Holding]: the user has detached or forgotten the hold, so the lock ends
// with its lease.
func (w *turn) Forget(*engine.Hold) {
	w.leaveTenure()
	w.tenure.hold.Detach()
}

// leaveTenure ends the tenure of w for its entry, without a command.
func (w *turn) leaveTenure() {
	t := w.entry.turns
	t.mu.Lock()
	defer t.mu.Unlock()
	w.tenure.leave()
}

// Join implements [engine.Holding]. The tenure hold may have been lost since the turn was given.
func (w *turn) Join(h *engine.Hold) {
	t := w.entry.turns
	t.mu.Lock()
	w.hold = h
	lost := w.tenure.lost
	t.mu.Unlock()
	if lost {
		h.LoseInBackground(engine.Loss{Reason: engine.LossGone})
	}
}

// Abandon implements [engine.Holding]. The user's hold was lost. The tenure hold may not have been
// found to be lost yet, or was before the turn began.
func (w *turn) Abandon(context.Context) {
	w.leaveTenure()
	w.tenure.hold.ReleaseLater()
}

// OwnerID implements [engine.Holding].
func (w *turn) OwnerID() string { return w.tenure.hold.ID() }

// Ownership implements [engine.Holding]: what nests in the turn joins the ownership of the
// tenure hold.
func (w *turn) Ownership() *engine.Ownership { return w.tenure.hold.Ownership() }

// TokenOf implements [engine.Holding]. Each turn has a token of its own.
func (w *turn) TokenOf(*engine.Hold) int64 {
	if w.tenure.tokens == 0 {
		return 0
	}
	return w.tenure.token + int64(w.number)
}

// Member implements [engine.Holding]: there are no members.
func (w *turn) Member(*engine.Resource) *engine.Hold { return nil }

// ValidUntil implements [engine.Holding].
func (w *turn) ValidUntil(*engine.Hold) time.Time { return w.tenure.hold.ValidUntil() }

// Listen implements [engine.Holding]. Clients that ask for the tenure hold find h, because it has
// the same id.
func (w *turn) Listen(h *engine.Hold) { w.Ownership().Listen(h) }

// Check implements [engine.Holding].
func (w *turn) Check(ctx context.Context, _ *engine.Hold) error {
	return w.Ownership().Check(ctx, w.tenure.hold)
}

// Extend implements [engine.Holding].
func (w *turn) Extend(ctx context.Context, _ *engine.Hold, d time.Duration) error {
	return w.Ownership().Extend(ctx, w.tenure.hold, d)
}
