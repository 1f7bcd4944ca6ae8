package waitq

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

const ms = time.Millisecond

// Each case is a turn of others, and the events after it. An event is a message of a release
// ("hear"), the start of an attempt ("try"), its refusal ("refused") or its grant, or the next
// release that leaves the lock to others.
func TestTurnOfOthers(t *testing.T) {
	type event struct {
		at    time.Duration
		what  string
		tries bool          // hear: the head tries now
		due   time.Duration // when it tries by itself; 0: as if there were no turn
	}
	const lasts = 50 * ms
	for _, tt := range []struct {
		name         string
		others       int
		hearsRelease bool
		events       []event
	}{
		{"no message comes", 1, true, []event{{50 * ms, "hear", true, 0}}},
		{"another client releases", 1, true, []event{{0, "hear", false, 50 * ms}, {10 * ms, "hear", true, 0}}},
		{"our message is lost", 1, true, []event{{10 * ms, "hear", false, 50 * ms}, {50 * ms, "hear", true, 0}}},
		{"our message comes when the turn is over", 1, true, []event{{60 * ms, "hear", true, 0}}},
		{"quiet, so the first message is of another's release", 1, false, []event{{10 * ms, "hear", true, 0}}},
		{"two others: each has the whole time", 2, true, []event{
			{0, "hear", false, 50 * ms}, {40 * ms, "hear", false, 90 * ms}, {80 * ms, "hear", true, 0},
		}},
		{"two others, one of which does not come", 2, true, []event{
			{0, "hear", false, 50 * ms}, {40 * ms, "hear", false, 90 * ms}, {90 * ms, "hear", true, 0},
		}},
		{"one message for two releases, as of readers", 2, true, []event{
			{0, "hear", false, 50 * ms}, {10 * ms, "hear", false, 60 * ms}, {60 * ms, "hear", true, 0},
		}},
		{"a refusal within the turn, after all messages", 2, true, []event{
			{0, "hear", false, 50 * ms}, {ms, "try", false, 0}, {2 * ms, "refused", false, 0},
			{40 * ms, "hear", false, 90 * ms},
		}},
		{"a refusal that is older than the last message", 2, true, []event{
			{0, "hear", false, 50 * ms}, {ms, "try", false, 0}, {10 * ms, "hear", false, 60 * ms},
			{11 * ms, "refused", false, 60 * ms},
		}},
		{"a refusal that is older than our release", 1, true, []event{{ms, "refused", false, 50 * ms}}},
		{"granted, before the message that we were told of", 1, true, []event{
			{0, "granted", false, 0}, {ms, "hear", false, 50 * ms}, {2 * ms, "hear", true, 0},
		}},
		{"both our messages come late", 1, true, []event{
			{ms, "granted", false, 0}, {10 * ms, "release", false, 60 * ms}, {11 * ms, "hear", false, 60 * ms},
			{12 * ms, "hear", false, 60 * ms}, {13 * ms, "hear", true, 0},
		}},
		{"the message of an earlier release was lost", 1, true, []event{
			{60 * ms, "release", false, 110 * ms}, {61 * ms, "hear", false, 110 * ms}, {62 * ms, "hear", true, 0},
		}},
		{"granted, and the next message is heard", 2, false, []event{{0, "granted", false, 0}, {ms, "hear", true, 0}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			start := time.Now()
			var turn Turn
			turn.begin(start, lasts, tt.others, tt.hearsRelease)
			for _, e := range tt.events {
				now := start.Add(e.at)
				switch e.what {
				case "hear":
					assert.Equal(t, e.tries, planFor(&turn, Event{Kind: Heard, Now: now}, false).Now, "%v", e)
				case "try":
					turn.due = time.Time{} // as Queue.On does
				case "release": // after another turn of ours
					turn.begin(now, lasts, 1, true)
				case "granted":
					turn.acquired()
				}
				pause := time.Hour
				if e.due > 0 {
					pause = e.due - e.at
				}
				assert.Equal(t, pause, turn.Pause(now, time.Hour), "%v", e)
				assert.LessOrEqual(t, turn.Pause(now, ms), ms, "%v", e)
			}
		})
	}
}

func TestLengthOfATurn(t *testing.T) {
	assert.Less(t, MaxTurn, 100*ms, "a lock with waiters is not idle for longer")
	for _, tt := range []struct{ cohort, others, unknown time.Duration }{
		{0, MaxStreak, 0},
		{5 * ms, MaxStreak, 0},
		{50 * ms, 50 * ms, 0},
		{300 * ms, MaxTurn, 3 * ms},
		{time.Hour, MaxTurn, MaxTurn},
	} {
		assert.Equal(t, tt.others, OthersTurnFor(tt.cohort), "%v", tt.cohort)
		assert.Equal(t, tt.unknown, UnknownTurnFor(tt.cohort), "%v", tt.cohort)
	}
}

// plan is whether the head should try now, or the pause after which it should.
type plan struct {
	Now   bool
	Pause time.Duration
}

// planFor is the plan of a turn after an event. known: the client hears the message of each
// release, and of the others' releases one after another.
func planFor(turn *Turn, e Event, known bool) plan {
	p := plan{Now: turn.On(&e, known, known)}
	if !p.Now && !turn.due.IsZero() {
		p.Pause = turn.due.Sub(e.Now)
	}
	return p
}

// Each case is the reply to a release that was sent 2 ms ago and left the lock to other clients.
func TestHowLongTheHeadWaitsForOthersAfterARelease(t *testing.T) {
	const cohort = 50 * ms
	for _, tt := range []struct {
		name     string
		cohort   time.Duration
		others   int
		oneByOne bool
		want     plan
		hear     []bool // whether the next messages make the head try
	}{
		{"nobody else waits", 0, 0, true, plan{Now: true}, []bool{true}},
		{"nobody is known to wait, after a short cohort", cohort, 0, true, plan{Now: true}, []bool{true}},
		{"nobody is known to wait, after a long cohort", time.Second, 0, true, plan{Pause: 8 * ms}, []bool{true}},
		{"after a streak: a look, in case they have gone", 0, 2, true, plan{Now: true}, []bool{true}},
		{"one other", cohort, 1, true, plan{Pause: 48 * ms}, []bool{true}},
		{"three others, one by one", cohort, 3, true, plan{Pause: 48 * ms}, []bool{false, false, true}},
		{"three others, all at once", cohort, 3, false, plan{Pause: 48 * ms}, []bool{true}},
		{"no turn is longer than the longest", time.Hour, 1, false, plan{Pause: MaxTurn - 2*ms}, []bool{true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sent := time.Now()
			now := sent.Add(2 * ms)
			var turn Turn
			turn.begin(sent, OthersTurnFor(tt.cohort), 1, false)
			e := Event{Kind: Yielded, Now: now, Sent: sent, KeptFor: tt.cohort, Others: tt.others}
			got := planFor(&turn, e, tt.oneByOne)
			assert.Equal(t, tt.want, got)
			for _, want := range tt.hear {
				assert.Equal(t, want, planFor(&turn, Event{Kind: Heard, Now: now}, false).Now)
			}
		})
	}
}

// Without a turn each message makes the head try, and so does the news that messages may have been
// lost, and the reply to a release after which the head has tried already.
func TestWithoutATurnTheHeadTries(t *testing.T) {
	now := time.Now()
	var turn Turn
	assert.Equal(t, plan{Now: true}, planFor(&turn, Event{Kind: Heard, Now: now}, false))
	assert.Equal(t, plan{Now: true}, planFor(&turn, Event{Kind: OurTurn, Now: now}, true))
	assert.Equal(t, plan{Pause: MaxTurn}, planFor(&turn, Event{Kind: OthersTurn, Now: now}, false))
	assert.Equal(t, plan{Now: true}, planFor(&turn, Event{Kind: Missed}, false))
	assert.Zero(t, turn)
	turn.begin(now, MaxStreak, 1, false)
	planFor(&turn, Event{Kind: Heard, Now: now}, false)
	assert.Zero(t, planFor(&turn, Event{Kind: Yielded, Now: now, Sent: now, Others: 1}, false))
}

// Whatever comes in whatever order: after each event that may have freed the lock, the head tries
// at once or within MaxTurn, so the lock is never idle for 100 ms with waiters. No message is
// eaten: the head tries because of it, or when the others have had their turn. And it stands back
// for as many messages as there were releases of others.
func TestTheLockIsNeverIdleForLong(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		start := time.Now()
		now := start
		var turn Turn
		var tryAt time.Time // when the head tries by itself; zero: at the next slow poll only
		var pending bool    // a release was sent, and is not answered
		patience := 0       // messages for which the head may stand back
		for range rapid.IntRange(1, 40).Draw(t, "events") {
			now = now.Add(rapid.SampledFrom([]time.Duration{0, time.Microsecond, ms, 9 * ms, 40 * ms, 90 * ms}).Draw(t, "pause"))
			if !tryAt.IsZero() && !now.Before(tryAt) { // the alarm was first
				now, tryAt = tryAt, time.Time{}
				turn.due = time.Time{} // its attempt begins
			}
			e := Event{Now: now, Kind: rapid.SampledFrom([]EventKind{
				Missed, Releasing, Yielded, Heard, Heard, Heard, OurTurn, OthersTurn, Begins, Left,
			}).Draw(t, "what")}
			e.KeptFor = rapid.SampledFrom([]time.Duration{0, 5 * ms, 60 * ms, time.Hour}).Draw(t, "cohort")
			known := rapid.Bool().Draw(t, "known")
			before := turn
			var action plan
			switch e.Kind {
			case Releasing:
				if pending {
					continue
				}
				pending = true
				turn.begin(now, OthersTurnFor(e.KeptFor), 1, known)
				tryAt = time.Time{}
			case Begins:
				turn.due = time.Time{}
			case Left:
				turn.acquired()
			case Yielded:
				if !pending {
					continue
				}
				pending, e.Sent = false, now.Add(-rapid.SampledFrom([]time.Duration{0, ms, 80 * ms}).Draw(t, "took"))
				e.Others = rapid.IntRange(-1, 4).Draw(t, "others")
				action = planFor(&turn, e, known)
			default:
				action = planFor(&turn, e, known)
			}
			switch {
			case action.Now:
				tryAt = time.Time{}
			case action.Pause != 0:
				if action.Pause < 0 || action.Pause > MaxTurn {
					t.Fatalf("%v: it pauses for %v", e, action.Pause)
				}
				if at := now.Add(action.Pause); tryAt.IsZero() || at.Before(tryAt) {
					tryAt = at
				}
			case e.Kind == Heard, e.Kind == Missed, e.Kind == OthersTurn, e.Kind == OurTurn:
				t.Fatalf("%v was eaten", e)
			case e.Kind == Yielded && before != (Turn{}):
				t.Fatalf("%v: nobody knows when the head tries", e)
			}
			if pause := turn.Pause(now, time.Second); pause > time.Second {
				t.Fatalf("a refusal makes it pause for %v", pause)
			}
			switch e.Kind {
			case Releasing, OurTurn, OthersTurn:
				patience += 2
			case Yielded:
				patience += max(e.Others, 0)
			case Heard:
				if patience--; !action.Now && patience < 0 {
					t.Fatalf("it stands back for more messages than there were releases")
				}
			default:
			}
			patience = max(patience, 0)
		}
	})
}
