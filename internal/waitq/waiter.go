package waitq

import "github.com/redlatch/redlatch/internal/list"

// State is what a waiter does.
type State uint8

// The states of a waiter. A reason to try is used by the attempt that begins after it, and by no
// other.
//
//	Idle --a reason--> Due --its attempt begins--> Trying --a reason--> Again
//	  ^                 ^                            |                   |
//	  |                 +----------------------------|----refused--------+
//	  +---------------------refused------------------+
//
//	any of these --a command of another request has acquired for it--> Granted
const (
	Idle    State = iota // it waits for a reason to try
	Due                  // it has a reason to try
	Trying               // its attempt is under way
	Again                // its attempt is under way, and there was a reason to try since it began
	Granted              // a command of another request has acquired for it; it leaves as soon as it runs
)

// Progress is how far a waiter has come. Two commands may acquire for it at the same time: its own
// attempt, and an offer, which is a hand-off or another waiter's batch. So Offered is no State. It
// is the same with Doubt, which lasts until the waiter leaves.
type Progress struct {
	State   State
	Offered bool // a command of another request is under way, and may acquire for it
	// Doubt: the outcome of a command that may have acquired for it is unknown, or a copy may still
	// arrive. Only its own attempts can find out. If it gives up, it must be rolled back.
	Doubt bool
}

// Wake takes in a reason to try, and reports whether a sleeping waiter must be told.
func (p *Progress) Wake() bool {
	switch p.State {
	case Idle:
		p.State = Due
		return true
	case Trying:
		p.State = Again
	default: // it is about to look anyway
	}
	return false
}

// Tried takes in that its attempt has not acquired. givesUp: the reply says nothing about the lock,
// and the waiter is about to leave. The attempt has then not used its reason.
func (p *Progress) Tried(doubt, givesUp bool) {
	p.Doubt = p.Doubt || doubt
	switch {
	case p.State == Granted: // meanwhile, by another request
	case p.State == Again, givesUp:
		p.State = Due
	default:
		p.State = Idle
	}
}

// MayOffer reports whether another request's command may try for it.
func (p *Progress) MayOffer() bool { return !p.Offered && p.State != Granted }

// Answered takes in the outcome of that command, and reports whether a reason to try is left over.
func (p *Progress) Answered(granted, doubt bool) (unused bool) {
	p.Offered = false
	p.Doubt = p.Doubt || doubt
	if granted {
		unused = p.isDue()
		p.State = Granted
	}
	return unused
}

// InDoubt reports whether a command may acquire for it after it has left.
func (p *Progress) InDoubt() bool { return p.Offered || p.Doubt }

// isTrying reports whether its attempt is under way.
func (p *Progress) isTrying() bool { return p.State == Trying || p.State == Again }

// isDue reports whether it has an unused reason to try.
func (p *Progress) isDue() bool { return p.State == Due || p.State == Again }

// Waiter is one request in a queue. The caller makes it, and sets the fields above Progress.
type Waiter struct {
	Of      any // the caller's
	ID      string
	Permits int
	Shared  bool // others may use the same id
	// Leaves: it is about to leave. No release of this client is for it, and no request waits
	// behind it.
	Leaves bool
	Progress
	last bool // the command that tries for it gives up the client's place in line if it succeeds

	list.Links[Waiter]
}

// canTake reports whether a release may pass so many permits on to w. A shared id is left out,
// because the server counts its holds.
func (w *Waiter) canTake(permits int) bool {
	return w.isWilling() && w.MayOffer() && w.Permits <= permits
}

// isWilling reports whether w takes what others leave to it: it waits on, and its id is its own.
func (w *Waiter) isWilling() bool { return !w.Shared && !w.Leaves }
