package turns

import (
	"context"
	"errors"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
)

// tenure is one tenure hold, from the request for it to its end. Turns.mu guards it. It implements
// [engine.Group].
type tenure struct {
	entry   *entry
	request engine.Request
	// cancel ends the request's wait, and answered is closed when the wait has ended. Both are nil
	// if the request does not wait.
	cancel   context.CancelFunc
	answered chan struct{}

	hold   *engine.Hold // the tenure hold; nil until the tenure begins
	since  time.Time    // when the client acquired the lock, or when the lock last began to linger
	token  int64        // the first turn's token; 0 if there are no tokens
	tokens int          // how many tokens were reserved
	used   int          // how many turns there have been
	user   *turn        // whose turn it is; nil if the lock lingers
	lost   bool         // the tenure hold was lost

	// isDisputed: the tenure began while the name had another one. One of the two has lost the
	// lock.
	isDisputed   bool
	lingersUntil time.Time
	timer        *time.Timer // calls onTimer; nil until the lock lingers for the first time
	timerIsSet   bool

	first turn // the turn of the user who acquired the tenure hold
}

// newTenure returns a tenure without its hold. Turns.mu is held.
func (e *entry) newTenure() *tenure {
	tn := e.unused
	e.unused = nil
	if tn == nil {
		tn = new(tenure)
	}
	tn.entry = e
	return tn
}

// begin makes tn its entry's tenure. tn has just acquired the lock, so earlier tenures of the same
// name have lost it, unless tn has. If the loss of tn was reported before, tn becomes nobody's
// tenure: its user's hold is lost from the start. Turns.mu is held.
func (tn *tenure) begin(hold *engine.Hold) {
	tn.hold = hold
	tn.since = hold.KeptSince()
	tn.token, tn.tokens = hold.Tokens()
	if tn.lost {
		return
	}
	var next *entry
	for e := tn.entry.turns.entries[tn.entry.r.Name]; e != nil; e = next {
		next = e.another // giveUp may remove e
		earlier := e.tenure
		switch {
		case earlier == nil:
			continue
		case earlier.user == nil:
			earlier.giveUp()
		default:
			earlier.drop()
		}
		tn.isDisputed = true
	}
	tn.entry.tenure = tn
	tn.entry.contact.HeldBy(hold.ID(), max(0, time.Until(hold.ValidUntil())), nil)
}

// give gives w the turn. Turns.mu is held.
func (tn *tenure) give(w *turn) {
	w.tenure = tn
	w.number = tn.used
	tn.user = w
	tn.used++
	w.wake()
}

// mayBeKept reports whether tn may have one more turn. Turns.mu is held.
func (tn *tenure) mayBeKept(now time.Time) bool {
	isCurrent := tn.entry.tenure == tn && !tn.entry.turns.core.IsClosing()
	hasToken := tn.tokens == 0 || tn.used < tn.tokens
	wasTakenAway := tn.entry.next != nil && tn.entry.next.request.HasHeardRelease()
	return isCurrent && hasToken && !wasTakenAway && tn.hold.IsSole(now)
}

// isValid reports whether a waiter may see its turn on tn. Otherwise the tenure hold was lost, or
// the process stood still and nobody has reported the loss yet. Turns.mu is held.
func (tn *tenure) isValid() bool { return !tn.lost && tn.hold.ValidUntil().After(time.Now()) }

// isWanted reports whether the lock should not stay with the users of its entry. Turns.mu is held.
func (tn *tenure) isWanted() bool {
	var own []*engine.Request
	for _, queued := range [...]*tenure{tn.entry.next, tn.entry.second} {
		if queued != nil {
			own = append(own, &queued.request)
		}
	}
	return tn.isDisputed || tn.hold.WasWanted() || tn.entry.r.OthersWait(own)
}

// isYoung reports whether the client has had the lock for less than its users may keep it from
// others. Turns.mu is held.
func (tn *tenure) isYoung(now time.Time) bool {
	limit := tn.entry.terms.Linger
	if tn.entry.terms.Cohort > 0 {
		limit = tn.entry.terms.Cohort
	}
	return now.Sub(tn.since) < limit
}

// turnEnd is what follows the end of a turn.
type turnEnd uint8

const (
	endRelease turnEnd = iota // release the tenure hold
	endPassOn                 // give the first waiter the next turn
	endLinger                 // keep the lock, although nobody uses it
)

// afterTurn decides what follows the end of a turn, as the table in the package comment says.
// canLinger: the client hears when others ask for the lock. Turns.mu is held.
func (tn *tenure) afterTurn(now time.Time, canLinger bool) turnEnd {
	terms := tn.entry.terms
	waits := tn.entry.waiters.First != nil
	isYoung := tn.isYoung(now)
	mayLinger := canLinger && !waits && (isYoung || terms.Cohort == 0)
	switch {
	case !tn.mayBeKept(now):
		return endRelease
	case terms.Cohort > 0 && waits && isYoung:
		return endPassOn
	case terms.Linger == 0 || tn.isWanted():
		return endRelease
	case waits && isYoung:
		return endPassOn
	case mayLinger:
		return endLinger
	}
	return endRelease
}

// keepIdle makes the lock linger. The caller has counted it in Turns.idle. Turns.mu is held.
func (tn *tenure) keepIdle(now time.Time) {
	limit := tn.entry.terms.Linger
	tn.user = nil
	tn.lingersUntil = now.Add(limit)
	if tn.entry.terms.Cohort == 0 {
		tn.since = now // nobody has waited meanwhile
	}
	switch {
	case tn.timer == nil:
		tn.timer = time.AfterFunc(limit, tn.onTimer)
	case !tn.timerIsSet:
		tn.timer.Reset(limit)
	}
	tn.timerIsSet = true
}

// onTimer gives the lock up when its linger time is over. Turns do not stop the timer, so it may
// fire too early.
func (tn *tenure) onTimer() {
	tn.entry.turns.mu.Lock()
	defer tn.entry.turns.mu.Unlock()
	tn.timerIsSet = false
	lingers := tn.entry.tenure == tn && tn.user == nil
	if !lingers {
		return
	}
	left := time.Until(tn.lingersUntil)
	if left > 0 {
		tn.timer.Reset(left)
		tn.timerIsSet = true
		return
	}
	tn.giveUp()
}

// drop ends tn for its entry. The caller releases the tenure hold, unless it is lost. Turns.mu is
// held.
func (tn *tenure) drop() {
	if tn.entry.tenure == tn {
		tn.entry.tenure = nil
	}
	if tn.timer != nil {
		tn.timer.Stop()
	}
}

// leave drops tn, on which nobody has a turn any longer. Users who wait need another tenure. If
// nobody waits, the entry needs none, unless it has another one by now. Turns.mu is held.
func (tn *tenure) leave() {
	e := tn.entry
	tn.drop()
	e.prepareNext()
	isNextNeedless := e.waiters.First == nil && e.tenure == nil
	if isNextNeedless {
		e.withdrawNext()
	}
	e.removeIfUnused()
}

// giveUp releases a lingering lock's tenure hold in the background. released is closed when the
// release was answered. Turns.mu is held.
func (tn *tenure) giveUp() (released <-chan struct{}) {
	tn.entry.turns.idle.Add(-1)
	tn.leave()
	return tn.hold.ReleaseLater()
}

// MemberWanted implements [engine.Group]: somebody waits for the tenure hold's lock. The user hears
// that too, because the user's hold has the same id. If another client has asked, a lingering lock
// is given up now, and a lock in use at the end of the turn.
func (tn *tenure) MemberWanted(h *engine.Hold) {
	tn.entry.turns.mu.Lock()
	defer tn.entry.turns.mu.Unlock()
	lingers := tn.hold != nil && tn.entry.tenure == tn && tn.user == nil
	if lingers && h.WasWanted() {
		tn.giveUp()
	}
}

// MemberEnded implements [engine.Group]: the tenure hold was lost. If it was released instead, the
// tenure has ended already.
func (tn *tenure) MemberEnded(h *engine.Hold, cause error) {
	if errors.Is(cause, engine.ErrReleased) {
		return
	}
	t := tn.entry.turns
	t.mu.Lock()
	defer t.mu.Unlock()
	w := tn.user
	tn.lost = true
	switch {
	case tn.hold == nil: // the tenure has not begun
	case w == nil:
		if tn.entry.tenure == tn {
			tn.giveUp()
		}
	case w.mayTakeBack():
		tn.takeBack()
		h.ReleaseLater()
	default:
		tn.leave()
	}
}

// takeBack takes the turn back from a waiter that has not seen it yet, and ends the tenure. The
// caller releases the tenure hold. Turns.mu is held.
func (tn *tenure) takeBack() {
	w := tn.user
	tn.user = nil
	w.tenure = nil
	tn.drop()
	tn.entry.register() // without a tenure, it may have been removed
	tn.entry.waiters.Prepend(w)
	tn.entry.prepareNext()
}

// JointHold implements [engine.Group].
func (tn *tenure) JointHold() (joint *engine.Hold, isJoint bool) { return nil, false }

// UserOf implements [engine.Group].
func (tn *tenure) UserOf(*engine.Hold) (user *engine.Hold, isAnother bool) {
	tn.entry.turns.mu.Lock()
	defer tn.entry.turns.mu.Unlock()
	if tn.user == nil {
		return nil, true
	}
	return tn.user.hold, true
}
