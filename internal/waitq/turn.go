package waitq

import "time"

// When it is the turn of other clients.
//
// A client that has had a lock for long enough frees it for the others, and its head stands back. A
// turn says for how long: until the others have released, or until a deadline, whichever comes
// first. The deadline bounds how long the lock can be idle, because messages are not reliable: they
// may be lost, one may stand for several releases, and a counted client may have stopped waiting.
//
//	a release leaves the lock to others -> their turn -> they have released:    the head tries
//	a message gives another its turn    ->            -> the deadline passes:   the head tries
//	                                                  -> messages were missed:  the head tries
//
// During a turn, the head tries when it is due, and not because of messages.

const (
	// MaxTurn is how long a turn lasts at most. A client with a round trip of 80 ms is in time, and
	// a lock with waiters is idle for less than 100 ms.
	MaxTurn = 85 * time.Millisecond
	// FirstTry is when a client without a place in line tries after a streak, in case the others
	// have stopped waiting.
	FirstTry = time.Millisecond
	// MaxStreakCount and MaxStreak are the limits of a streak: how often, and for how long, the
	// waiters of one client may hand a lock off to each other while other clients wait. The idea is
	// lock cohorting (Dice, Marathe and Shavit, 2012).
	MaxStreakCount = 16
	MaxStreak      = 10 * time.Millisecond
)

// Turn is a turn of other clients. The zero value means that it is nobody's turn, so each message
// makes the head try.
type Turn struct {
	until time.Time     // when the turn ends
	lasts time.Duration // the time for each of the others
	left  int           // how many more releases of others end it
	// expected is how many of the next messages announce releases that this client knows of: its
	// own, or one that a message at its place has announced.
	expected int
	due      time.Time // when the head must try, at the latest; zero if it has tried since the last release
	own      bool      // this client's own release has begun it
}

// On handles a message, or the reply to the release that began a turn, and reports whether the head
// should try now. If not, the head tries when it is due. listens: the client hears the common
// messages. oneByOne: the others acquire one after another, and the client hears each of their
// releases.
//
// Where the others acquire one after another, each of them has a turn. With two others, X and Y:
//
//  1. our release: not for us. X acquires.
//  2. X releases:  not for us. Y acquires.
//  3. Y releases:  the head tries.
//
// A client in line is told when its turn comes again, and writers are told by the last reader. For
// both, another client's first release ends the turn.
func (t *Turn) On(e *Event, listens, oneByOne bool) (tryNow bool) {
	switch e.Kind {
	case Yielded:
		return t.yielded(e, oneByOne)
	case Heard:
		return t.hear(e.Now)
	case OthersTurn: // a listener also hears the same release's common message
		t.begin(e.Now, MaxTurn, 1, true)
		return false
	case OurTurn:
		t.begin(e.Now, MaxTurn, 0, listens)
	default: // Missed
		*t = Turn{}
	}
	return true
}

// begin begins a turn of others. hearsRelease: the message of the release that begins the turn is
// still to come. Messages that the last turn expected may still come, too.
func (t *Turn) begin(now time.Time, lasts time.Duration, others int, hearsRelease bool) {
	if !now.Before(t.until) {
		t.expected = 0
	}
	if hearsRelease {
		t.expected++
	}
	t.until = now.Add(lasts)
	t.lasts = lasts
	t.left = others
	t.own = false
	t.due = t.until
}

// beginOwn begins a turn that this client's own release leaves to the others. hearsRelease: see
// begin.
func (t *Turn) beginOwn(now time.Time, lasts time.Duration, hearsRelease bool) {
	t.begin(now, lasts, 1, hearsRelease)
	t.own = true
}

// isOwn reports whether this client's own release began the turn, and the turn goes on.
func (t *Turn) isOwn(now time.Time) bool { return t.own && now.Before(t.due) }

// acquired ends the turn, because a waiter has the lock. until and expected stay: the message of
// the release that made the waiter try may still come.
func (t *Turn) acquired() {
	t.left = 0
	t.due = time.Time{}
}

// yielded decides how long the head lets others go first, counted from when the release was sent:
// the lock has been free since then. The turn may be over when the reply comes.
func (t *Turn) yielded(e *Event, oneByOne bool) (tryNow bool) {
	if t.until.IsZero() {
		return false // the turn was over before the reply, and the head has tried
	}
	lasts := OthersTurnFor(e.KeptFor)
	look := lasts
	switch {
	case e.Others > 0 && oneByOne:
		t.left = e.Others
		if e.KeptFor == 0 {
			look = FirstTry
		}
	case e.Others <= 0:
		lasts = UnknownTurnFor(e.KeptFor)
		look = lasts
	}
	t.until = e.Sent.Add(lasts)
	t.due = e.Sent.Add(look)
	if !e.Now.Before(t.due) {
		*t = Turn{}
		return true
	}
	return false
}

// hear handles a release message. Without a turn, each one makes the head try.
func (t *Turn) hear(now time.Time) (tryNow bool) {
	switch {
	case now.Before(t.until) && t.expected > 0:
		t.expected--
	case now.Before(t.until) && t.left > 1:
		t.left--
		t.until = now.Add(t.lasts)
	default:
		*t = Turn{}
		return true
	}
	t.due = t.until
	return false
}

// Pause returns how long the head may pause after a refusal: d, or less if a release was left to
// others since its attempt began.
func (t *Turn) Pause(now time.Time, d time.Duration) time.Duration {
	if t.due.IsZero() {
		return d
	}
	return min(d, t.due.Sub(now))
}

// OthersTurnFor is how long a turn lasts after a client may have had the lock for that long, or for
// a streak if keptFor is 0. It is as long as keptFor, but at most MaxTurn. So a client that is far
// away is in time, and one that never comes costs at most half of the time.
func OthersTurnFor(keptFor time.Duration) time.Duration {
	return min(max(keptFor, MaxStreak), MaxTurn)
}

// UnknownTurnFor is how long a lock stays free after a client may have had it for keptFor, if no
// other client is known to wait. Redisson's SpinLock polls without a trace, and finds the lock free
// about as often as if the client had not kept it. The result is 0 if the turn is too short for a
// timer.
func UnknownTurnFor(keptFor time.Duration) time.Duration {
	d := min(keptFor/100, MaxTurn)
	if d < time.Millisecond {
		return 0
	}
	return d
}
