package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

const ms = time.Millisecond

// Each case is a turn of others, and the events after it. An event is a message of a release ("hear"), the start of
// an attempt ("try"), its refusal ("refused") or its grant, or the next release that leaves the lock to others.
func TestTurnOfOthers(t *testing.T) {
	type event struct {
		at    time.Duration
		what  string
		tries bool          // hear: the head tries now
		due   time.Duration // when it tries by itself; 0: as if there were no turn
	}
	const lasts = 50 * ms
	for _, tt := range []struct {
		name   string
		others int
		told   bool
		events []event
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
			var turn turn
			turn.begin(start, lasts, tt.others, tt.told)
			for _, e := range tt.events {
				now := start.Add(e.at)
				switch e.what {
				case "hear":
					assert.Equal(t, e.tries, turn.hear(now), "%v", e)
				case "try":
					turn.tries()
				case "release": // after another turn of ours
					turn.begin(now, lasts, 1, true)
				case "granted":
					turn.granted()
				}
				pause := time.Hour
				if e.due > 0 {
					pause = e.due - e.at
				}
				assert.Equal(t, pause, turn.pause(now, time.Hour), "%v", e)
			}
		})
	}
}

func TestLengthOfATurn(t *testing.T) {
	for _, tt := range []struct{ cohort, others, unknown time.Duration }{
		{0, maxStreak, 0},
		{5 * ms, maxStreak, 0},
		{50 * ms, 50 * ms, 0},
		{300 * ms, maxTurn, 3 * ms},
		{time.Hour, maxTurn, maxTurn},
	} {
		assert.Equal(t, tt.others, othersTurn(tt.cohort), "%v", tt.cohort)
		assert.Equal(t, tt.unknown, unknownTurn(tt.cohort), "%v", tt.cohort)
	}
}
