package turns

import (
	"context"
	"errors"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
)

// tenure is one outer hold, from the request for it to its end. Turns.mu guards it. It implements
// [engine.Group].
type tenure struct {
	e       *entry
	request engine.Request
	// cancel ends the request's wait, and answered is closed when the wait has ended. Both are nil
	// if the request does not wait.
	cancel   context.CancelFunc
	answered chan struct{}

	hold   *engine.Hold // the outer hold; nil until the tenure begins
	since  time.Time    // when the client acquired the lock, or when the lock last began to linger
	token  int64        // the first turn's token; 0 if there are no tokens
	tokens int          // how many tokens were reserved
	used   int          // how many turns there have been
	user   *turn        // whose turn it is; nil if the lock lingers
	lost   bool         // the outer hold was lost

	// isDisputed: the tenure began while the name had another one. One of the two has lost the
	// lock.
	isDisputed   bool
	lingersUntil time.Time
	timer        *time.Timer // calls onTimer; nil until the lock lingers for the first time
	timerIsSet   bool

	first turn // the turn of the user who acquired the outer hold
}

// newTenure returns a tenure without an outer hold. mu is held.
func (e *entry) newTenure() *tenure {
	s := e.unused
	e.unused = nil
	if s == nil {
		s = new(tenure)
	}
	s.e = e
	return s
}

// begin makes s its entry's tenure. s has just acquired the lock, so earlier tenures of the same
// name have lost it, unless s has. mu is held.
func (s *tenure) begin(hold *engine.Hold) {
	s.hold, s.since = hold, hold.KeptSince()
	s.token, s.tokens = hold.Tokens()
	var next *entry
	for e := s.e.turns.entries[s.e.r.Name]; e != nil; e = next {
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
		s.isDisputed = true
	}
	s.e.tenure = s
	s.e.contact.HeldBy(hold.ID(), max(0, time.Until(hold.ValidUntil())), nil)
}

// give gives w the turn. mu is held.
func (s *tenure) give(w *turn) {
	w.s, w.number = s, s.used
	s.user = w
	s.used++
	w.wake()
}

// mayBeKept reports whether s may have one more turn. mu is held.
func (s *tenure) mayBeKept(now time.Time) bool {
	isCurrent := s.e.tenure == s && !s.e.turns.core.IsClosing()
	hasToken := s.tokens == 0 || s.used < s.tokens
	wasTakenAway := s.e.next != nil && s.e.next.request.HasHeardRelease()
	return isCurrent && hasToken && !wasTakenAway && s.hold.IsSole(now)
}

// isWanted reports whether the lock should not stay with the users of its entry. mu is held.
func (s *tenure) isWanted() bool {
	var own []*engine.Request
	for _, standing := range [...]*tenure{s.e.next, s.e.second} {
		if standing != nil {
			own = append(own, &standing.request)
		}
	}
	return s.isDisputed || s.hold.WasWanted() || s.e.r.OthersWait(own)
}

// isYoung reports whether the client has had the lock for less than its users may keep it from
// others. mu is held.
func (s *tenure) isYoung(now time.Time) bool {
	limit := s.e.terms.Linger
	if s.e.terms.Cohort > 0 {
		limit = s.e.terms.Cohort
	}
	return now.Sub(s.since) < limit
}

// turnEnd is what follows the end of a turn.
type turnEnd uint8

const (
	release turnEnd = iota // release the outer hold
	passOn                 // give the first waiter the next turn
	linger                 // keep the lock, although nobody uses it
)

// afterTurn decides what follows the end of a turn, as the table in the package comment says.
// canLinger: the client hears when others ask for the lock. mu is held.
func (s *tenure) afterTurn(now time.Time, canLinger bool) turnEnd {
	terms := s.e.terms
	waits := s.e.waiters.First != nil
	isYoung := s.isYoung(now)
	mayLinger := canLinger && !waits && (isYoung || terms.Cohort == 0)
	switch {
	case !s.mayBeKept(now):
		return release
	case terms.Cohort > 0 && waits && isYoung:
		return passOn
	case terms.Linger == 0 || s.isWanted():
		return release
	case waits && isYoung:
		return passOn
	case mayLinger:
		return linger
	}
	return release
}

// keepIdle makes the lock linger. mu is held.
func (s *tenure) keepIdle(now time.Time) {
	limit := s.e.terms.Linger
	s.user = nil
	s.lingersUntil = now.Add(limit)
	s.e.turns.idle.Add(1)
	if s.e.terms.Cohort == 0 {
		s.since = now // nobody has waited meanwhile
	}
	switch {
	case s.timer == nil:
		s.timer = time.AfterFunc(limit, s.onTimer)
	case !s.timerIsSet:
		s.timer.Reset(limit)
	}
	s.timerIsSet = true
}

// onTimer gives the lock up when its linger time is over. Turns do not stop the timer, so it may
// fire too early.
func (s *tenure) onTimer() {
	s.e.turns.mu.Lock()
	defer s.e.turns.mu.Unlock()
	s.timerIsSet = false
	lingers := s.e.tenure == s && s.user == nil
	if !lingers {
		return
	}
	left := time.Until(s.lingersUntil)
	if left > 0 {
		s.timer.Reset(left)
		s.timerIsSet = true
		return
	}
	s.giveUp()
}

// drop ends s for its entry. The caller releases the outer hold, unless it is lost. mu is held.
func (s *tenure) drop() {
	if s.e.tenure == s {
		s.e.tenure = nil
	}
	if s.timer != nil {
		s.timer.Stop()
	}
}

// giveUp releases a lingering lock's outer hold in the background. released is closed when the
// release was answered. mu is held.
func (s *tenure) giveUp() (released <-chan struct{}) {
	s.e.turns.idle.Add(-1)
	s.drop()
	s.e.prepareNext()
	s.e.removeIfUnused()
	return s.hold.ReleaseLater()
}

// MemberWanted implements [engine.Group]: somebody waits for the outer hold's lock. The user hears
// that too, because the user's hold has the same id. If another client has asked, a lingering lock
// is given up now, and a lock in use at the end of the turn.
func (s *tenure) MemberWanted(h *engine.Hold) {
	s.e.turns.mu.Lock()
	defer s.e.turns.mu.Unlock()
	lingers := s.hold != nil && s.e.tenure == s && s.user == nil
	if lingers && h.WasWanted() {
		s.giveUp()
	}
}

// MemberEnded implements [engine.Group]: the outer hold was lost. If it was released instead, the
// tenure has ended already.
func (s *tenure) MemberEnded(h *engine.Hold, cause error) {
	if errors.Is(cause, engine.ErrReleased) {
		return
	}
	t := s.e.turns
	t.mu.Lock()
	defer t.mu.Unlock()
	w := s.user
	s.lost = true
	switch {
	case s.hold == nil: // the tenure has not begun
	case w == nil:
		if s.e.tenure == s {
			s.giveUp()
		}
	case w.mayTakeBack():
		s.takeBack()
		h.ReleaseLater()
	default:
		s.drop()
		s.e.prepareNext()
		s.e.removeIfUnused()
	}
}

// takeBack takes the turn back from a waiter that has not seen it yet, and ends the tenure. The
// caller releases the outer hold. mu is held.
func (s *tenure) takeBack() {
	w := s.user
	s.user, w.s = nil, nil
	s.drop()
	s.e.waiters.Prepend(w)
	s.e.prepareNext()
}

// UserOf implements [engine.Group].
func (s *tenure) UserOf(*engine.Hold) (user *engine.Hold, isAnother bool) {
	s.e.turns.mu.Lock()
	defer s.e.turns.mu.Unlock()
	if s.user == nil {
		return nil, true
	}
	return s.user.hold, true
}
