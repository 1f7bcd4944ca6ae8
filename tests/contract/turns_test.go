package contract

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// turnsFor is how long each part of TestC24OtherClientsGetTheirTurns lasts.
func turnsFor() time.Duration {
	if redistest.Nightly() {
		return 20 * time.Second
	}
	return 1500 * time.Millisecond
}

// turnsCase has eight goroutines of one client want a lock all the time, and others too.
type turnsCase struct {
	name    string
	kind    string
	away    time.Duration // how far the others are
	others  int           // their clients
	readers bool          // they read
	options []primitives.Option
}

// turnsSeen is what the locks of a turnsCase were used for.
type turnsSeen struct {
	mine, theirs float64       // turns a second, of the eight goroutines and of the others
	idle         time.Duration // the longest time for which nobody held
}

// run has all of them work. A short time has few turns, and fewer if the machine is busy for a
// moment, so it looks again until there are enough.
func (tt turnsCase) run(
	t *testing.T, s *redistest.Server, enough func(turnsSeen) bool, opts ...primitives.Option,
) (seen turnsSeen) {
	name := redistest.Name(t)
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var mine, theirs atomic.Int64
	work(t, ctx, &wg, kinds.Of(tt.kind).Lock(fixture.NewClient(t, s.Client(t)), name, opts...), 8, time.Millisecond, &mine)
	for range tt.others {
		p := s.Proxy(t)
		p.Delay(tt.away)
		c := fixture.NewClient(t, p.Client(t))
		if tt.readers {
			work(t, ctx, &wg, c.RWLock(name, tt.options...).Reader(), 4, time.Millisecond, &theirs)
		} else {
			work(t, ctx, &wg, kinds.Of(tt.kind).Lock(c, name, tt.options...), 1, time.Millisecond, &theirs)
		}
	}
	time.Sleep(300 * time.Millisecond) // all have begun
	mineBefore, theirsBefore, began := mine.Load(), theirs.Load(), time.Now()
	for looks := 0; looks == 0 || looks < 10 && !enough(seen); looks++ {
		idle := longestIdle(t, s, name, turnsFor())
		took := time.Since(began).Seconds()
		seen = turnsSeen{
			float64(mine.Load()-mineBefore) / took, float64(theirs.Load()-theirsBefore) / took,
			max(seen.idle, idle),
		}
	}
	stop()
	wg.Wait()
	return seen
}

// least returns the number of turns a second that the others must get beside cohorts of that
// length. That is half of what they get without cohorts, but no more than one turn after each
// cohort allows.
func (tt turnsCase) least(without turnsSeen, cohort, idle time.Duration) float64 {
	// One turn after each cohort is all that they can have. The lock is idle before that turn and
	// after it.
	possible := 1 / (cohort + 2*tt.away + 2*idle).Seconds()
	if redistest.Nightly() && tt.away == 40*time.Millisecond && tt.others == 1 {
		possible = without.theirs
	}
	return min(without.theirs, possible) / 2
}

// The others get at least half of the turns that they get without cohorts. The engine has a test in
// fake time of how long the lock is idle meanwhile: TestOthersHaveTheirTurnAfterEachCohort. A
// machine may stop for longer than that.
func TestC24OtherClientsGetTheirTurns(t *testing.T) {
	const cohort = 300 * time.Millisecond
	for _, tt := range []turnsCase{
		{name: "12 ms away", kind: "lock", away: 12 * time.Millisecond, others: 1},
		{name: "40 ms away", kind: "lock", away: 40 * time.Millisecond, others: 1},
		{name: "40 ms away, fenced", kind: "fenced", away: 40 * time.Millisecond, others: 1},
		{name: "40 ms away, a writer", kind: "writer", away: 40 * time.Millisecond, others: 1},
		{name: "three, 40 ms away", kind: "lock", away: 40 * time.Millisecond, others: 3},
		{name: "polls", kind: "lock", others: 1, options: polls},
		{name: "polls, a writer", kind: "writer", others: 1, options: polls},
		{name: "polls, a reader", kind: "writer", others: 1, readers: true, options: polls},
		{name: "two reader clients", kind: "writer", others: 2, readers: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Redis(t)
			without := tt.run(t, s, func(turnsSeen) bool { return true })
			enough := func(seen turnsSeen) bool { return seen.theirs >= tt.least(without, cohort, seen.idle) }
			with := tt.run(t, s, enough, primitives.WithCohort(cohort))
			t.Logf("without cohorts %+v, with them %+v", without, with)
			assert.True(t, enough(with), "at least %.1f turns a second", tt.least(without, cohort, with.idle))
		})
	}
}

var polls = []primitives.Option{primitives.WithPolling(5*time.Millisecond, 40*time.Millisecond)}

// longestIdle returns the longest time within d for which the key of a lock was missing.
func longestIdle(t *testing.T, s *redistest.Server, name string, d time.Duration) (longest time.Duration) {
	rdb := s.Client(t)
	end := time.Now().Add(d)
	held := time.Now()
	for time.Now().Before(end) {
		before := time.Now()
		n, err := rdb.Exists(t.Context(), name).Result()
		if !assert.NoError(t, err) {
			return longest
		}
		if n == 1 {
			longest = max(longest, before.Sub(held))
			held = time.Now()
		}
		time.Sleep(time.Millisecond)
	}
	return max(longest, time.Since(held))
}
