package engine

import "time"

// When it is the turn of other clients.
//
// A client that has had a lock for long enough frees it for the others, and its head stands back. A turn
// says for how long: until the others have released, or until a time, whichever comes first. The time
// bounds how long the lock can be idle, whatever the messages say. They may be lost, one message may speak
// for several releases, and a client that was counted may have stopped waiting.
//
//	a release leaves the lock to others -> their turn -> they have released:    the head tries
//	a message gives another its turn    ->            -> the time is over:      the head tries
//	                                                  -> messages were missed:  the head tries
//
// While it lasts, the head tries when it is due, and not because of messages.

const (
	// maxTurn is how long a turn lasts at most. A client with a round trip of 80 ms is in time, and a lock
	// with waiters is idle for less than 100 ms.
	maxTurn = 85 * time.Millisecond
	// firstLook is when a client without a place in line tries after a streak, in case the others have
	// stopped waiting.
	firstLook = time.Millisecond
)

// turn is a turn of other clients. The zero value: it is nobody's turn, so each message makes the head try.
// It has no clock, no mutex and no timer: the time comes in with each event.
type turn struct {
	until time.Time     // it ends then
	lasts time.Duration // for each of the others
	left  int           // releases of others after which it ends
	// told: that many of the next messages are of releases that this client knows of. They were its own, or a
	// message at its place came first.
	told int
	due  time.Time // when the head must try; zero: it has tried since the last release
}

// begin begins a turn of others. told: the message of the release with which it begins is still to come. Messages
// that the last turn has waited for may still come, too.
func (t *turn) begin(now time.Time, lasts time.Duration, others int, told bool) {
	if !now.Before(t.until) {
		t.told = 0
	}
	if told {
		t.told++
	}
	t.until, t.lasts, t.left = now.Add(lasts), lasts, others
	t.due = t.until
}

// hear receives a message of a release, and reports whether the head tries now. If not, it tries when it is due.
func (t *turn) hear(now time.Time) bool {
	switch {
	case !now.Before(t.until): // it is over, or there is none
	case t.told > 0:
		t.told--
		t.due = t.until
		return false
	case t.left > 1:
		t.left--
		t.until = now.Add(t.lasts)
		t.due = t.until
		return false
	}
	*t = turn{}
	return true
}

// tries notes that an attempt of the head begins.
func (t *turn) tries() { t.due = time.Time{} }

// granted notes that the head has the lock: the turn of others is over. The message of the release that made it
// try may still come.
func (t *turn) granted() { t.left, t.due = 0, time.Time{} }

// pause returns how long the head may pause after a refusal: d, or less if a release was left to others since
// its attempt began.
func (t *turn) pause(now time.Time, d time.Duration) time.Duration {
	if t.due.IsZero() {
		return d
	}
	return min(d, t.due.Sub(now))
}

// othersTurn is how long a turn lasts after a client had the lock for up to cohort; 0: for a streak. It is as
// long as the cohort, but at most maxTurn. So a client that is far away is in time, and one that never comes
// costs at most half of the time.
func othersTurn(cohort time.Duration) time.Duration { return min(max(cohort, maxStreak), maxTurn) }

// unknownTurn is how long a lock stays free after a cohort if no other client is known to wait. Redisson's
// SpinLock polls without a trace, and then finds the lock free about as often as without cohorts. 0: a turn that
// is too short for a timer.
func unknownTurn(cohort time.Duration) time.Duration {
	d := min(cohort/100, maxTurn)
	if d < time.Millisecond {
		return 0
	}
	return d
}
