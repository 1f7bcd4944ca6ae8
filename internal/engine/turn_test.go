package engine

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

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

// busy starts goroutines that acquire and release a lock until ctx ends. Each holds it for 1 ms, or for 5 ms as a
// reader. busy returns the time of each acquisition.
func busy(
	ctx context.Context, t *testing.T, wg *sync.WaitGroup, r *Resource, goroutines int, options ...func(*Terms),
) (at *[]time.Duration) {
	var mu sync.Mutex
	began := time.Now()
	at = new([]time.Duration)
	for i := range goroutines {
		wg.Go(func() {
			for ctx.Err() == nil {
				hold, err := r.Acquire(ctx, terms(options...), forever)
				if err != nil {
					continue
				}
				mu.Lock()
				*at = append(*at, time.Since(began))
				mu.Unlock()
				if r.Kind == "reader" {
					time.Sleep(time.Duration(4+i) * ms)
				}
				time.Sleep(ms)
				assert.NoError(t, hold.Release(context.WithoutCancel(ctx)))
			}
		})
	}
	return at
}

// Eight goroutines of a client pass a lock on within cohorts, while others wait. The lock has waiters all the time.
func TestOthersHaveTheirTurnAfterEachCohortAndTheLockIsNotIdle(t *testing.T) {
	const (
		cohort = 300 * ms
		lasts  = 5 * time.Second
	)
	lock, line := (*client).lock, (*client).lineLock
	poll := polling(5*ms, 60*ms)
	for _, tt := range []struct {
		name    string
		mine    func(c *client, name string) *Resource
		others  func(c *client, name string) *Resource
		clients int
		away    time.Duration // the others
		options []func(*Terms)
		own     bool // they are not other clients, but the same one
		hangs   bool // they never try, though they hear all messages
		cycle   time.Duration
		idle    time.Duration
	}{
		{name: "nobody", mine: lock, idle: 3 * ms},
		{name: "nobody, in line", mine: line, idle: 3 * ms},
		{name: "a writer, and nobody", mine: (*client).cohortWriter, idle: 3 * ms},
		{name: "a client 12 ms away", mine: line, others: line, clients: 1, away: 12 * ms, cycle: 350 * ms, idle: 12 * ms},
		{name: "a client 40 ms away", mine: line, others: line, clients: 1, away: 40 * ms, cycle: 400 * ms, idle: 40 * ms},
		{
			name: "without a line, 40 ms away", mine: lock, others: lock, clients: 1, away: 40 * ms,
			cycle: 400 * ms, idle: 40 * ms,
		},
		{
			name: "three clients 40 ms away", mine: line, others: line, clients: 3, away: 40 * ms,
			cycle: 400 * ms, idle: maxTurn,
		},
		{
			name: "a client that polls", mine: line, others: line, clients: 1, options: []func(*Terms){poll},
			cycle: 400 * ms, idle: 80 * ms,
		},
		{
			name: "a writer, and a client that polls", mine: (*client).cohortWriter, others: (*client).cohortWriter,
			clients: 1, options: []func(*Terms){poll}, cycle: 400 * ms, idle: 80 * ms,
		},
		{
			name: "a writer, and a reader that polls", mine: (*client).cohortWriter, others: (*client).reader,
			clients: 1, options: []func(*Terms){poll}, cycle: 400 * ms, idle: 80 * ms,
		},
		{
			name: "a writer, and two clients that read", mine: (*client).cohortWriter, others: (*client).reader,
			clients: 2, cycle: 400 * ms, idle: maxTurn,
		},
		{
			name: "a client that polls itself", mine: line, others: line, clients: 1, own: true,
			options: []func(*Terms){poll}, cycle: 400 * ms, idle: 80 * ms,
		},
		{
			name: "a writer and its own readers", mine: (*client).cohortWriter, others: (*client).reader,
			clients: 1, own: true, cycle: 400 * ms, idle: maxTurn,
		},
		{
			name: "a writer and its own readers, 40 ms away", mine: (*client).cohortWriter, others: (*client).reader,
			clients: 1, own: true, away: 40 * ms, cycle: 500 * ms, idle: maxTurn,
		},
		{name: "a client that hangs", mine: line, clients: 1, hangs: true, idle: maxTurn},
		{name: "a writer, and two clients that hang", mine: (*client).cohortWriter, clients: 2, hangs: true, idle: maxTurn},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				ctx, cancel := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				me := s.client(t, "mine")
				mine := busy(ctx, t, &wg, tt.mine(me, "x"), 8, inCohort(cohort))
				time.Sleep(50 * ms)
				var others []*[]time.Duration
				for i := range tt.clients {
					c, goroutines := me, 1 // two readers would keep writers out: nobody reserves here
					if !tt.own {
						c, goroutines = s.client(t, fmt.Sprint("other", i)), 2
					}
					switch {
					case tt.hangs:
						defer s.newSubscription(c, "x", func(bool) {}).Close()
					default:
						s.setAway(c, tt.away)
						others = append(others, busy(ctx, t, &wg, tt.others(c, "x"), goroutines, tt.options...))
					}
				}
				idle := s.longestIdle("x", lasts)
				cancel()
				wg.Wait()
				s.resetFaults()
				turns := 0
				for _, other := range others {
					turns += len(*other)
				}
				assert.LessOrEqual(t, idle, tt.idle+ms)
				if tt.cycle > 0 {
					assert.GreaterOrEqual(t, turns, int(lasts/tt.cycle)-1)
				}
				assert.Greater(t, len(*mine), int(lasts/(10*ms)), "cohorts go on")
				sleep(time.Minute)
				s.requireFree(t)
			})
		})
	}
}

// setAway makes replies and messages reach a client that much later.
func (s *server) setAway(c *client, away time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lag[c] = away
	before := s.intercept
	s.intercept = func(cmd command) fault {
		if cmd.client == c.id {
			return fault{reply: away}
		}
		if before != nil {
			return before(cmd)
		}
		return fault{}
	}
}

// longestIdle watches a name for d, and returns the longest time for which nobody held it.
func (s *server) longestIdle(name string, d time.Duration) (longest time.Duration) {
	held := time.Now()
	for end := time.Now().Add(d); time.Now().Before(end); sleep(ms) {
		if len(s.ids(name)) > 0 {
			held = time.Now()
		}
		longest = max(longest, time.Since(held))
	}
	return longest
}
