package waitq

import "github.com/redlatch/redlatch/internal/list"

// State is what a waiter is doing.
type State uint8

// The states of a waiter. A reason to try is used by the attempt that begins after it, and by no
// other.
//
//	Idle --a reason--> Due --its attempt begins--> Trying --a reason--> Again
//	  ^                 ^                            |                   |
//	  |                 +----------------------------|----refused--------+
//	  +---------------------refused------------------+
//
//	any of these --another request's command has acquired for it--> Granted
const (
	Idle    State = iota // it waits for a reason to try
	Due                  // it has a reason to try
	Trying               // its attempt is under way
	Again                // its attempt is under way, and a new reason to try has come since it began
	Granted              // another request's command has acquired for it; it leaves as soon as it runs
)

// Progress is how far a waiter has come. Two commands may acquire for it at the same time: its own
// attempt, and an offer, which is a hand-off or another waiter's batch. So Offered is not a State.
// Neither is Doubt, which lasts until the waiter leaves.
type Progress struct {
	State   State
	Offered bool // another request's command is under way, and may acquire for the waiter
	// Doubt: the outcome of a command that may have acquired for the waiter is unknown, or a copy
	// of the command may still arrive. Only the waiter's own attempts can find out. If the waiter
	// gives up, the command must be rolled back.
	Doubt bool
}

// Wake records a reason to try, and reports whether the waiter sleeps and must be told.
func (p *Progress) Wake() bool {
	switch p.State {
	case Idle:
		p.State = Due
		return true
	case Trying:
		p.State = Again
	default: // the waiter is about to look anyway
	}
	return false
}

// Tried records that the waiter's attempt has not acquired. givesUp: the reply says nothing about
// the lock, and the waiter is about to leave. Its reason to try is then still unused.
func (p *Progress) Tried(doubt, givesUp bool) {
	p.Doubt = p.Doubt || doubt
	switch {
	case p.State == Granted: // meanwhile, by another request's command
	case p.State == Again, givesUp:
		p.State = Due
	default:
		p.State = Idle
	}
}

// MayOffer reports whether another request's command may try for the waiter.
func (p *Progress) MayOffer() bool { return !p.Offered && p.State != Granted }

// Answered records the outcome of an offer, and reports whether a reason to try is left over.
func (p *Progress) Answered(granted, doubt bool) (unused bool) {
	p.Offered = false
	p.Doubt = p.Doubt || doubt
	if granted {
		unused = p.isDue()
		p.State = Granted
	}
	return unused
}

// InDoubt reports whether a command may acquire for the waiter after it has left.
func (p *Progress) InDoubt() bool { return p.Offered || p.Doubt }

// isTrying reports whether the waiter's attempt is under way.
func (p *Progress) isTrying() bool { return p.State == Trying || p.State == Again }

// isDue reports whether the waiter has an unused reason to try.
func (p *Progress) isDue() bool { return p.State == Due || p.State == Again }

// Waiter is one request in a queue. The caller makes it, and sets the fields above Progress.
type Waiter struct {
	Of      any // the caller's
	ID      string
	Permits int
	Shared  bool // others may use the same id
	// Leaves: the waiter is about to leave. This client's releases pass it over, and no request
	// waits behind it.
	Leaves bool
	Progress
	last bool // the command that tries for the waiter gives up the client's place if it succeeds

	list.Links[Waiter]
}

// canTake reports whether a release may pass that many permits on to w. A shared id is left out,
// because the server counts its holds.
func (w *Waiter) canTake(permits int) bool {
	return w.isWilling() && w.MayOffer() && w.Permits <= permits
}

// isWilling reports whether w takes what others leave to it: it goes on waiting, and its id is not
// shared.
func (w *Waiter) isWilling() bool { return !w.Shared && !w.Leaves }
