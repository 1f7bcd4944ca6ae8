package waitq

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// A script is what happens to a queue, line by line, and what the queue says. Waiters are a, b and
// so on; they want one permit, or more as in "a2". "A" has the shared id "me", and "Z" another one.
type script struct {
	*testing.T
	q       Queue
	now     time.Time
	waiters map[string]*Waiter
}

// beginning is when each script begins.
var beginning = time.Unix(1000, 0)

func newScript(t *testing.T) *script {
	s := &script{T: t, now: beginning, waiters: map[string]*Waiter{}}
	s.q.TakeTurns = true
	return s
}

// on gives the queue an event about a waiter, if it has a name, and returns its actions.
func (s *script) on(name string, e Event) string {
	if s.q.NeedsTime(&e) {
		e.Now = s.now
	}
	if e.Kind == Alarm && s.q.TryAt.IsZero() {
		return "no alarm is due"
	}
	if name != "" {
		w := s.waiters[name]
		if w == nil {
			w = &Waiter{Of: name, Permits: 1}
			if len(name) > 1 {
				w.Permits = int(name[1] - '0')
			}
			if name == strings.ToUpper(name) {
				w.ID, w.Shared = "me", true
			}
			if name == "Z" {
				w.ID = "another"
			}
			s.waiters[name] = w
		}
		e.Who = w
	}
	var said []string
	for _, a := range s.q.On(&e) {
		text := [...]string{
			"wake", "try", "offer", "yield", "subscribe", "join line", "unsubscribe", "leave line",
		}[a.Kind]
		if a.Who != nil {
			text += " " + a.Who.Of.(string)
		}
		if a.Place != (Place{}) {
			text += placeText(a.Place)
		}
		if a.HearsRelease {
			text += ", will hear it"
		}
		said = append(said, text)
	}
	for _, a := range s.q.actions {
		switch {
		case a.Kind == Subscribe:
			s.q.Subscribed(1, 0)
		case a.Kind == JoinLine && s.q.ManyHolders: // no line
		case a.Kind == JoinLine:
			s.q.Subscribed(1, 7)
		}
	}
	return strings.Join(said, ", ")
}

// placeText says what an action says about the client's place.
func placeText(p Place) string {
	text := fmt.Sprint(" place ", p.Number)
	if p.Since != 0 {
		text += fmt.Sprint(" since ", p.Since)
	}
	if p.Last {
		text += " last"
	}
	return text
}

// join makes waiters join, and lets the first see that its subscriptions are confirmed.
func (s *script) join(names ...string) {
	for _, name := range names {
		s.on(name, joins(name).event)
	}
	for s.q.unsettled > 0 {
		s.on(names[0], Event{Kind: Confirmed})
	}
	s.refuse(names[0])
}

// refuse lets a waiter try, and be refused.
func (s *script) refuse(name string) string {
	s.on(name, Event{Kind: Begins, InLine: true})
	return s.on(name, Event{Kind: Tried, RetryAfter: -1, InLine: true, Since: 5})
}

// A step is what happens next in a case of TestWhatTheQueueSays.
type step struct {
	after time.Duration // since the step before
	who   string        // the waiter, if the event is about one
	event Event
}

func after(d time.Duration, s step) step {
	s.after = d
	return s
}

// What waiters do, and what their attempts find. The lease of another holder has no known end.
func joins(who string) step { return step{who: who, event: Event{Kind: Joined, RetryAfter: -1}} }

func tries(who string) step { return step{who: who, event: Event{Kind: Begins, InLine: true}} }

func triesOutOfLine(who string) step { return step{who: who, event: Event{Kind: Begins}} }

func isRefused(who string) step {
	return step{who: who, event: Event{Kind: Tried, RetryAfter: -1, InLine: true}}
}

func isRefusedWithoutPlace(who string) step {
	return step{who: who, event: Event{Kind: Tried, RetryAfter: -1}}
}

func isRefusedWith(who string, free int) step {
	return step{who: who, event: Event{Kind: Tried, RetryAfter: -1, Free: free}}
}

func isRefusedBy(who, holder string) step {
	return step{who: who, event: Event{Kind: Tried, RetryAfter: -1, InLine: true, Holder: holder}}
}

func isToldToBeQuiet(who string) step {
	return step{who: who, event: Event{Kind: Tried, RetryAfter: -1, InLine: true, NeedNotListen: true}}
}

func attemptSaysNothing(who string) step {
	return step{who: who, event: Event{Kind: Tried, RetryAfter: -1, GivesUp: true}}
}

func isGranted(who string) step { return isGrantedWith(who, 0) }

func isGrantedWith(who string, free int) step {
	return step{who: who, event: Event{Kind: Left, Granted: true, Free: free, RetryAfter: time.Minute}}
}

func givesUp(who string) step { return step{who: who, event: Event{Kind: Left}} }

func givesUpDuringLease(who string) step {
	return step{who: who, event: Event{Kind: Left, RetryAfter: time.Minute}}
}

// What became of an offer to a waiter.
func offerWasGranted(who string) step {
	return step{who: who, event: Event{Kind: Answered, Granted: true}}
}

func offerWasRefused(who string) step { return step{who: who, event: Event{Kind: Answered}} }

func offerIsInDoubt(who string) step {
	return step{who: who, event: Event{Kind: Answered, Doubt: true}}
}

// What the client and other clients do.
var (
	alarm      = step{event: Event{Kind: Alarm}}
	heard      = step{event: Event{Kind: Heard}}
	listen     = step{event: Event{Kind: Listen}}
	ourTurn    = step{event: Event{Kind: OurTurn}}
	othersTurn = step{event: Event{Kind: OthersTurn}}

	release               = step{event: Event{Kind: Releasing, HandsOff: true, Permits: 1}}
	releaseAfterTurn      = step{event: Event{Kind: Releasing, HandsOff: true, Permits: 1, HasHadTurn: true}}
	releaseWithoutHandOff = step{event: Event{Kind: Releasing, Permits: 1}}
)

// othersWereTold is the reply to a release that was sent that long after the beginning.
func othersWereTold(sent time.Duration) step {
	return step{event: Event{Kind: Yielded, Sent: beginning.Add(sent), Others: 3}}
}

// Each case begins after waiters have joined, and the first has been refused twice.
func TestWhatTheQueueSays(t *testing.T) {
	const (
		oneHolder   = false
		manyHolders = true
		nothing     = ""
	)
	type row struct {
		step step
		want string
	}
	for _, tt := range []struct {
		name        string
		waiters     string
		manyHolders bool
		rows        []row
	}{
		{"a message is for the head alone", "a b", oneHolder, []row{
			{heard, "wake a"},
			{heard, nothing},
			{tries("a"), "try a place 7 since 5"},
		}},
		{"a message during an attempt is a reason for the next one", "a b", oneHolder, []row{
			{heard, "wake a"},
			{tries("a"), "try a place 7 since 5"},
			{heard, nothing},
			{isRefused("a"), nothing},
			{tries("a"), "try a place 7 since 5"},
		}},
		{"a waiter that gives up passes its reason on", "a b", oneHolder, []row{
			{heard, "wake a"},
			{givesUp("a"), "wake b"},
		}},
		{"an attempt that says nothing has not used its reason", "a b", oneHolder, []row{
			{heard, "wake a"},
			{tries("a"), "try a place 7 since 5"},
			{attemptSaysNothing("a"), nothing},
			{givesUp("a"), "wake b"},
		}},
		{"a waiter that is granted the lock needs no reason", "a b", oneHolder, []row{
			{heard, "wake a"},
			{release, "offer a"},
			{offerWasGranted("a"), "wake a"},
		}},
		{"a waiter that is granted a permit leaves its reason to the next", "a b", manyHolders, []row{
			{heard, "wake a"},
			{release, "offer a"},
			{offerWasGranted("a"), "wake a, wake b"},
		}},
		{"a waiter without a reason leaves none", "a b", manyHolders, []row{
			{release, "offer a"},
			{offerWasGranted("a"), "wake a"},
		}},
		{"the poll is for the head", "a b", oneHolder, []row{
			{after(SlowPoll, alarm), "wake a"},
		}},
		{"the poll waits for the end of a turn of others", "a b", oneHolder, []row{
			{after(SlowPoll-ms, releaseAfterTurn), "yield place 7, will hear it"},
			{after(2*ms, alarm), nothing},
			{othersWereTold(SlowPoll - ms), nothing},
			{after(MaxStreak-3*ms, alarm), nothing},
			{after(ms, alarm), "wake a"},
		}},
		{"an alarm that comes too early", "a", oneHolder, []row{
			{after(SlowPoll-1, alarm), nothing},
		}},
		{"a waiter behind one that was granted, and gives up", "a b", oneHolder, []row{
			{heard, "wake a"},
			{tries("a"), "try a place 7 since 5"},
			{release, "offer a"},
			{offerWasGranted("a"), "wake a"},
			{givesUp("b"), nothing},
			{after(StuckAfter, alarm), nothing},
			{joins("c"), nothing},
			{givesUp("a"), nothing},
			{after(SlowPoll-1, alarm), nothing},
			{after(1, alarm), "wake c"},
		}},
		{"the head is stuck", "a b c", oneHolder, []row{
			{heard, "wake a"},
			{tries("a"), "try a place 7 since 5"},
			{after(StuckAfter, alarm), "wake b"},
			{tries("b"), "try b place 7 since 5"},
			{after(SlowPoll-1, alarm), nothing},
			{after(1, alarm), "wake c"},
		}},
		{"a waiter in doubt tries behind the head", "a b c", oneHolder, []row{
			{offerIsInDoubt("c"), "wake c"},
			{tries("c"), "try c place 7 since 5"},
			{isRefused("c"), nothing},
			{after(SlowPoll, alarm), "wake a, wake c"},
		}},
		{"a hand-off", "a b", oneHolder, []row{
			{release, "offer a"},
			{release, nothing},
			{offerWasGranted("a"), "wake a"},
			{heard, "wake b"},
			{isGranted("a"), nothing},
		}},
		{"a hand-off that fails", "a", oneHolder, []row{
			{release, "offer a place 7 last"},
			{offerWasRefused("a"), "wake a"},
			{tries("a"), "try a place 7 since 5 last"},
		}},
		{"a hand-off during an attempt", "a b", oneHolder, []row{
			{heard, "wake a"},
			{tries("a"), "try a place 7 since 5"},
			{release, "offer a"},
			{offerWasGranted("a"), "wake a"},
			{isRefused("a"), nothing},
			{isGranted("a"), nothing},
		}},
		{"no hand-off to a shared id", "A b", oneHolder, []row{
			{release, nothing},
		}},
		{"no hand-off to a waiter that wants more", "a2 b", manyHolders, []row{
			{release, nothing},
		}},
		{"a streak is over", "a b", oneHolder, []row{
			{releaseAfterTurn, "yield place 7, will hear it"},
			{heard, nothing},
			{after(ms, heard), "wake a"},
		}},
		{"a second message announces more room", "a b", manyHolders, []row{
			{heard, "wake a"},
			{tries("a"), "try a"},
			{heard, nothing},
			{isGranted("a"), "wake b"},
		}},
		{"an exclusive lock needs no second message", "a b", oneHolder, []row{
			{heard, "wake a"},
			{tries("a"), "try a place 7 since 5"},
			{heard, nothing},
			{isGranted("a"), nothing},
		}},
		{"an unused reason of a waiter that is handed permits", "a b", manyHolders, []row{
			{heard, "wake a"},
			{release, "offer a"},
			{offerWasGranted("a"), "wake a, wake b"},
		}},
		{"a message that comes when all were granted", "a", manyHolders, []row{
			{release, "offer a"},
			{offerWasGranted("a"), "wake a"},
			{heard, nothing},
			{joins("b"), "wake b"},
		}},
		{"a waiter that wants less tries if the head does not fit", "a3 b3 c2", manyHolders, []row{
			{heard, "wake a3"},
			{tries("a3"), "try a3"},
			{isRefusedWith("a3", 2), "wake c2"},
		}},
		{"a waiter with the id of the holder tries", "a b C", oneHolder, []row{
			{heard, "wake a"},
			{tries("a"), "try a place 7 since 5"},
			{isRefusedBy("a", "me"), "wake C"},
		}},
		{"a waiter that fits into the room of a grant", "a b2 c", manyHolders, []row{
			{isGrantedWith("a", 1), "wake c"},
		}},
		{"the next head waits for the confirmation too", "a b", oneHolder, []row{
			{isToldToBeQuiet("a"), "unsubscribe"},
			{listen, "subscribe, wake a"},
			{givesUp("a"), "wake b"},
		}},
		{"told to be quiet, and to listen", "a", oneHolder, []row{
			{isToldToBeQuiet("a"), "unsubscribe"},
			{othersTurn, nothing},
			{after(MaxTurn, alarm), nothing},
			{ourTurn, "wake a"},
			{isRefused("a"), "subscribe, wake a"},
			{listen, nothing},
		}},
		{"the turn of others, for a listener", "a", oneHolder, []row{
			{othersTurn, nothing},
			{heard, nothing},
			{after(MaxTurn, alarm), "wake a"},
		}},
		{"the last waiter leaves the line", "a", oneHolder, []row{
			{givesUp("a"), "unsubscribe, leave line place 7 since 5"},
		}},
		{"its grant has given up the place", "a", oneHolder, []row{
			{heard, "wake a"},
			{tries("a"), "try a place 7 since 5 last"},
			{isGranted("a"), "unsubscribe, leave line"},
		}},
		{"others came when the place was given up", "a", oneHolder, []row{
			{heard, "wake a"},
			{tries("a"), "try a place 7 since 5 last"},
			{joins("b"), nothing},
			{isGranted("a"), "wake b"},
			{tries("b"), "try b place 7 last"},
		}},
		{"a cohort passes the lock on without a command", "a", oneHolder, []row{
			{isGranted("a"), "unsubscribe, leave line place 7"},
		}},
		{"the next one is granted without the place", "a", oneHolder, []row{
			{heard, "wake a"},
			{tries("a"), "try a place 7 since 5 last"},
			{joins("b"), nothing},
			{isGranted("a"), "wake b"},
			{isGranted("b"), "unsubscribe, leave line"},
		}},
		{"a refused attempt has not given up the place", "a", oneHolder, []row{
			{heard, "wake a"},
			{tries("a"), "try a place 7 since 5 last"},
			{isRefused("a"), nothing},
			{joins("b"), nothing},
			{givesUp("a"), nothing},
		}},
		{"no place for a shared id", "A", oneHolder, []row{
			{heard, "wake A"},
			{tries("A"), "try A"},
		}},
		{"no place whose messages are not heard", "a", oneHolder, []row{
			{heard, "wake a"},
			{triesOutOfLine("a"), "try a"},
		}},
		{"nothing stays behind", "a", oneHolder, []row{
			{givesUp("a"), "unsubscribe, leave line place 7 since 5"},
			{listen, nothing},
			{heard, nothing},
			{after(SlowPoll, alarm), "no alarm is due"},
			{joins("b"), "subscribe, join line b"},
			{joins("c"), nothing},
			{givesUp("c"), nothing},
			{isGranted("b"), "unsubscribe, leave line"},
			{after(SlowPoll, alarm), "no alarm is due"},
		}},
		{"no line, no place", "a", manyHolders, []row{
			{givesUp("a"), "unsubscribe"},
		}},
		{"a reply that says nothing about the place", "a", oneHolder, []row{
			{isToldToBeQuiet("a"), "unsubscribe"},
			{isRefusedWithoutPlace("a"), nothing},
		}},
		{"told to be quiet before it listens", "a b", oneHolder, []row{
			{isToldToBeQuiet("a"), "unsubscribe"},
			{listen, "subscribe, wake a"},
			{isToldToBeQuiet("a"), nothing},
			{givesUp("b"), nothing},
		}},
		{"our turn, and then the message of the same release", "a", oneHolder, []row{
			{ourTurn, "wake a"},
			{tries("a"), "try a place 7 since 5 last"},
			{isRefused("a"), nothing},
			{heard, nothing},
			{heard, "wake a"},
		}},
		{"a grant in the turn of others, and then the message", "a b", oneHolder, []row{
			{othersTurn, nothing},
			{isGranted("a"), nothing},
			{heard, nothing},
			{heard, "wake b"},
		}},
		{"a grant ends the turn of others", "a b", oneHolder, []row{
			{othersTurn, nothing},
			{isGranted("a"), nothing},
			{after(MaxTurn, alarm), nothing},
			{after(SlowPoll, alarm), "wake b"},
		}},
		{"a refusal in the turn of others", "a", oneHolder, []row{
			{othersTurn, nothing},
			{tries("a"), "try a place 7 since 5 last"},
			{isRefused("a"), nothing},
			{after(MaxTurn, alarm), nothing},
		}},
		{"the turn of others begins just before the poll", "a", oneHolder, []row{
			{after(SlowPoll-ms, othersTurn), nothing},
			{after(ms, alarm), "wake a"},
		}},
		{"in line, the first release of another ends the turn", "a", oneHolder, []row{
			{releaseAfterTurn, "yield place 7, will hear it"},
			{othersWereTold(0), nothing},
			{after(ms, heard), nothing},
			{after(ms, heard), "wake a"},
		}},
		{"a streak is over, and no message comes", "a", oneHolder, []row{
			{releaseAfterTurn, "yield place 7, will hear it"},
			{after(ms, othersWereTold(0)), nothing},
			{after(MaxStreak-ms, alarm), "wake a"},
		}},
		{"the reply to the release comes after the attempt", "a", oneHolder, []row{
			{releaseAfterTurn, "yield place 7, will hear it"},
			{heard, nothing},
			{after(ms, heard), "wake a"},
			{tries("a"), "try a place 7 last"},
			{isRefused("a"), nothing},
			{othersWereTold(0), nothing},
			{alarm, nothing},
		}},
		{"the first gives up between two polls", "a b", oneHolder, []row{
			{after(SlowPoll/2, givesUpDuringLease("a")), nothing},
			{after(SlowPoll/2, alarm), "wake b"},
		}},
		{"another one is granted between two polls", "a b", oneHolder, []row{
			{after(SlowPoll/2, isGranted("b")), nothing},
			{after(SlowPoll/2, alarm), "wake a"},
		}},
		{"the lease of a grant is longer than the poll", "a b", oneHolder, []row{
			{isGranted("a"), nothing},
			{after(SlowPoll, alarm), "wake b"},
		}},
		{"the head is stuck, and the next was granted", "a b c", oneHolder, []row{
			{heard, "wake a"},
			{tries("a"), "try a place 7 since 5"},
			{offerWasGranted("b"), "wake b"},
			{after(StuckAfter, alarm), "wake c"},
		}},
		{"the head is stuck, and there was a message", "a b", oneHolder, []row{
			{heard, "wake a"},
			{tries("a"), "try a place 7 since 5"},
			{heard, nothing},
			{after(StuckAfter, alarm), "wake b"},
		}},
		{"a message is used once", "a", manyHolders, []row{
			{release, "offer a"},
			{offerWasGranted("a"), "wake a"},
			{heard, nothing},
			{joins("b"), "wake b"},
			{joins("c"), nothing},
		}},
		{"permits that are left long before a request comes", "a2 b2", manyHolders, []row{
			{isRefusedWith("a2", 1), nothing},
			{isGrantedWith("a2", 1), nothing},
			{joins("c"), nothing},
		}},
		{"two releases at the same time", "a b", manyHolders, []row{
			{release, "offer a"},
			{release, "offer b"},
			{releaseAfterTurn, "yield, will hear it"},
		}},
		{"a release that cannot hand off", "a", oneHolder, []row{
			{releaseWithoutHandOff, nothing},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newScript(t)
			s.q.ManyHolders = tt.manyHolders
			s.join(strings.Fields(tt.waiters)...)
			for i, row := range tt.rows {
				s.now = s.now.Add(row.step.after)
				assert.Equal(t, row.want, s.on(row.step.who, row.step.event), "row %d", i)
			}
		})
	}
}

func TestWhenTheHeadTriesByItself(t *testing.T) {
	s := newScript(t)
	s.join("a", "b")
	since := func() time.Duration { return s.q.TryAt.Sub(s.now) }
	assert.Equal(t, SlowPoll, since())
	s.on("a", Event{Kind: Tried, RetryAfter: 300 * ms})
	assert.Equal(t, 301*ms, since(), "when the lease ends")
	s.on("b", Event{Kind: Tried, RetryAfter: 100 * ms})
	assert.Equal(t, 301*ms, since(), "another waiter's refusal changes nothing")
	s.on("a", Event{Kind: Tried, RetryAfter: math.MaxInt64})
	assert.Equal(t, SlowPoll, since(), "the lease has no end")
	s.on("a", Event{Kind: Tried, RetryAfter: 300 * ms})
	s.now = s.q.TryAt
	s.on("", Event{Kind: Alarm})
	assert.Zero(t, s.q.TryAt, "it is about to")
	s.on("a", Event{Kind: Begins})
	assert.Equal(t, StuckAfter, since())
	s.on("a", Event{Kind: Left, Granted: true, RetryAfter: 10 * ms})
	assert.Equal(t, 11*ms, since(), "when the lease of the waiter that was granted ends")
	s.on("b", Event{Kind: Left})
	assert.Zero(t, s.q.TryAt)
	assert.True(t, s.q.IsIdle())
}

// One command acquires for the waiters that no other command tries for.
func TestBatch(t *testing.T) {
	s := newScript(t)
	s.q.Batches, s.q.ManyHolders = true, true
	s.join("a", "b", "C", "d", "e")
	s.on("d", Event{Kind: Answered, Granted: true})
	assert.Equal(t, "offer b, offer e", s.on("a", Event{Kind: Batching}))
	assert.Equal(t, "offer a", s.on("b", Event{Kind: Batching}), "the others have an offer")
	for range MaxBatch + 2 {
		s.q.On(&Event{Kind: Joined, Who: &Waiter{Of: "another"}, RetryAfter: -1})
	}
	assert.Equal(t, MaxBatch, strings.Count(s.on("a", Event{Kind: Batching}), "offer"))
}

func TestWhoMustWait(t *testing.T) {
	s := newScript(t)
	s.join("A", "b2")
	assert.False(t, s.q.MustWait(1))
	assert.True(t, s.q.MustWait(2))
}

// The whole table of a waiter: every state, with everything that can happen to it.
func TestProgress(t *testing.T) {
	for _, tt := range []struct {
		name                         string
		from, reason, tried, givesUp State
	}{
		{"sleeps", Idle, Due, Idle, Due},
		{"is about to try", Due, Due, Idle, Due},
		{"tries", Trying, Again, Idle, Due},
		{"tries, and has a reason to try again", Again, Again, Due, Due},
		{"is granted", Granted, Granted, Granted, Granted},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := Progress{State: tt.from}
			assert.Equal(t, tt.from == Idle, p.Wake(), "only a sleeping waiter is woken")
			assert.Equal(t, tt.reason, p.State, "after a reason to try")

			p = Progress{State: tt.from}
			p.Tried(false, false)
			assert.Equal(t, Progress{State: tt.tried}, p, "after a refusal")

			p = Progress{State: tt.from}
			p.Tried(true, true)
			assert.Equal(t, Progress{State: tt.givesUp, Doubt: true}, p, "after an attempt without an answer")

			p = Progress{State: tt.from, Offered: true}
			assert.True(t, p.InDoubt(), "an offer under way")
			assert.False(t, p.MayOffer(), "a second offer")
			assert.Equal(t, tt.from == Due || tt.from == Again, p.Answered(true, false), "a reason to try is left over")
			assert.Equal(t, Progress{State: Granted}, p, "after a hand-off")
			assert.False(t, p.MayOffer(), "an offer to a holder")

			p = Progress{State: tt.from, Offered: true, Doubt: true}
			assert.False(t, p.Answered(false, false))
			assert.Equal(t, Progress{State: tt.from, Doubt: true}, p, "no later answer settles a doubt")

			p = Progress{State: tt.from}
			assert.Equal(t, tt.from != Granted, p.MayOffer(), "the first offer")
		})
	}
}

// The first waiter leaves with a grant that leaves that many permits free.
func TestWhoTriesAfterAGrant(t *testing.T) {
	for _, tt := range []struct {
		name    string
		wait    string
		batches bool
		free    int
		want    string
	}{
		{"no room", "a b", false, 0, ""},
		{"room for one", "a b c", false, 1, "wake b"},
		{"room for two", "a b c d", false, 2, "wake b, wake c"},
		{"a large request holds up no smaller one", "a b3 c d", false, 2, "wake c, wake d"},
		{"the first brings the others", "a b c", true, 9, "wake b"},
		{"a shared id tries by itself", "a b C", true, 9, "wake b, wake C"},
		{"a shared id beside those that the first brings", "a b C d", true, 9, "wake b, wake C"},
		{"its id needs no room", "A b Z C", false, 0, "wake C"},
		{"another id needs room", "a C", false, 0, ""},
		{"a private waiter needs room", "A b", false, 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newScript(t)
			s.q.ManyHolders, s.q.Batches = true, tt.batches
			names := strings.Fields(tt.wait)
			s.join(names...)
			s.on(names[0], Event{Kind: Begins})
			left := Event{Kind: Left, Granted: true, Free: tt.free, RetryAfter: time.Minute}
			assert.Equal(t, tt.want, s.on(names[0], left))
		})
	}
}

// A client may free the lock for others before its waiter's subscriptions are confirmed. The
// confirmation does not end the others' turn, which would come too late. Nor does the next message,
// which may be the release's own.
func TestConfirmationDoesNotEndATurnOfOurRelease(t *testing.T) {
	for _, tt := range []struct {
		name  string
		heard int // messages before
		ends  Event
		after time.Duration
	}{
		{"another client releases", 1, Event{Kind: Heard}, ms},
		{"its time is over", 0, Event{Kind: Alarm}, MaxStreak},
		{"its time is over, and a message was heard", 1, Event{Kind: Alarm}, MaxStreak},
		{"messages were missed", 0, Event{Kind: Missed}, ms},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newScript(t)
			s.on("a", joins("a").event)
			assert.Equal(t, "yield, will hear it", s.on("", releaseAfterTurn.event))
			s.on("", Event{Kind: Yielded, Sent: s.now, Others: 1})
			s.on("a", Event{Kind: Confirmed})
			assert.Empty(t, s.on("a", Event{Kind: Confirmed}))
			for range tt.heard {
				assert.Empty(t, s.on("", Event{Kind: Heard}))
			}
			s.now = s.now.Add(tt.after)
			assert.Equal(t, "wake a", s.on("", tt.ends))
		})
	}
}

// A turn that a message has begun ends with the confirmation, because the message that ends it may
// have been missed.
func TestConfirmationEndsATurnThatAMessageHasBegun(t *testing.T) {
	s := newScript(t)
	s.on("a", joins("a").event)
	s.on("a", Event{Kind: Confirmed})
	assert.Empty(t, s.on("", Event{Kind: OthersTurn}))
	assert.Equal(t, "wake a", s.on("a", Event{Kind: Confirmed}))
}

// The first waiter joins after a release that has left the lock to others. It waits until
// they have had it, or until the time is over. Later waiters wait behind it.
func TestQueueThatWasJustOpenedLetsOthersGoFirst(t *testing.T) {
	for _, tt := range []struct {
		name  string
		ends  Event
		after time.Duration
	}{
		{"another client releases", Event{Kind: Heard}, ms},
		{"the time is over", Event{Kind: Alarm}, MaxTurn},
		{"messages were missed", Event{Kind: Missed}, ms},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newScript(t)
			s.on("a", Event{Kind: Joined, RetryAfter: -1, OthersTurnEnds: s.now.Add(MaxTurn)})
			s.on("a", Event{Kind: Confirmed})
			assert.Empty(t, s.on("a", Event{Kind: Confirmed}))
			assert.Empty(t, s.on("b", Event{Kind: Joined, RetryAfter: -1, OthersTurnEnds: s.now.Add(2 * MaxTurn)}))
			assert.Equal(t, s.now.Add(MaxTurn), s.q.TryAt)
			s.now = s.now.Add(tt.after)
			assert.Equal(t, "wake a", s.on("", tt.ends))
		})
	}
}

// Clients that do not take turns leave the lock to others after a cohort. Otherwise they free it
// for all.
func TestWhenAStreakOfClientsThatCompeteIsOver(t *testing.T) {
	s := newScript(t)
	s.q.ManyHolders, s.q.TakeTurns = true, false
	s.join("a")
	release := releaseAfterTurn.event
	assert.Empty(t, s.on("", release))
	release.KeptFor = 50 * ms
	assert.Equal(t, "yield, will hear it", s.on("", release))
	assert.Empty(t, s.on("", Event{Kind: Yielded, Sent: s.now, Others: 3, KeptFor: release.KeptFor}))
	assert.Empty(t, s.on("", Event{Kind: Heard}), "its own message")
	assert.Equal(t, "wake a", s.on("", Event{Kind: Heard}))
}

// The usual events allocate nothing.
func TestEventsAllocateNothing(t *testing.T) {
	s := newScript(t)
	s.join("a", "b")
	a := s.waiters["a"]
	assert.False(t, s.q.NeedsTime(&Event{Kind: Joined}), "it does not become the head")
	assert.False(t, s.q.NeedsTime(&Event{Kind: Answered}))
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		s.q.On(&Event{Kind: Heard, Now: s.now})
		s.q.On(&Event{Kind: Begins, Now: s.now, Who: a})
		s.q.On(&Event{Kind: Tried, Now: s.now, Who: a})
		s.q.On(&Event{Kind: Releasing, Now: s.now, HandsOff: true, Permits: 1})
		s.q.On(&Event{Kind: Answered, Now: s.now, Who: a})
	}))
}
