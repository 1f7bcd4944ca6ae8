package contract

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	. "github.com/redlatch/redlatch/internal/fixture"
	"github.com/redlatch/redlatch/internal/kinds"
	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// turnsFor is how long each part of TestC24OtherClientsGetTheirTurns lasts.
func turnsFor() time.Duration {
	if redistest.Nightly() {
		return 20 * time.Second
	}
	return 1500 * time.Millisecond
}

// Eight goroutines of one client want a lock all the time, and so does somebody else. The others get at least
// half of the turns that they get without cohorts, as far as there are cohorts enough, and the lock is never
// idle for longer than 100 ms.
func TestC24OtherClientsGetTheirTurns(t *testing.T) {
	const cohort = 300 * time.Millisecond
	for _, tt := range []struct {
		name    string
		kind    string
		away    time.Duration // how far the others are
		others  int           // their clients
		readers bool          // they read
		options []primitives.Option
	}{
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
			// turns returns how many turns a second the others get, and the longest time for which nobody held. A short
			// time has few turns, and fewer if the machine is busy for a moment: it looks again until there are enough.
			turns := func(t *testing.T, enough func(theirs float64, idle time.Duration) bool, opts ...primitives.Option) (
				mine, theirs float64, idle, late time.Duration,
			) {
				name := redistest.Name(t)
				ctx, stop := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				var sections, others atomic.Int64
				work := func(l *primitives.Lock, n *atomic.Int64, section time.Duration, goroutines int) {
					for range goroutines {
						wg.Go(func() {
							for ctx.Err() == nil {
								if hold, err := l.Acquire(ctx); err == nil {
									n.Add(1)
									time.Sleep(section)
									assert.NoError(t, hold.Release(context.Background()))
								}
							}
						})
					}
				}
				work(kinds.Of(tt.kind).Lock(NewClient(t, s.Client(t)), name, opts...), &sections, time.Millisecond, 8)
				for range tt.others {
					p := s.Proxy(t)
					p.Delay(tt.away)
					c := NewClient(t, p.Client(t))
					l, goroutines := kinds.Of(tt.kind).Lock(c, name, tt.options...), 1
					if tt.readers {
						l, goroutines = c.RWLock(name, tt.options...).Reader(), 4
					}
					work(l, &others, time.Millisecond, goroutines)
				}
				time.Sleep(300 * time.Millisecond)
				mineBefore, before, began := sections.Load(), others.Load(), time.Now()
				for looks := 1; ; looks++ {
					nobody, overslept := longestIdle(t, s, name, turnsFor())
					idle, late = max(idle, nobody), max(late, overslept)
					took := time.Since(began).Seconds()
					mine, theirs = float64(sections.Load()-mineBefore)/took, float64(others.Load()-before)/took
					if looks == 10 || enough(theirs, idle) {
						break
					}
				}
				stop()
				wg.Wait()
				return mine, theirs, idle, late
			}
			mine, without, _, _ := turns(t, func(float64, time.Duration) bool { return true })
			least := func(idle time.Duration) float64 {
				// One turn after each cohort is all that they can have. The lock is idle before that turn and after it.
				possible := 1 / (cohort + 2*tt.away + 2*idle).Seconds()
				if redistest.Nightly() && tt.away == 40*time.Millisecond && tt.others == 1 {
					possible = without
				}
				return min(without, possible) / 2
			}
			enough := func(theirs float64, idle time.Duration) bool { return theirs >= least(idle) }
			mineWith, with, idle, late := turns(t, enough, primitives.WithCohort(cohort))
			t.Logf("a second: %.1f of %.1f turns without cohorts, %.1f of %.1f with, idle for up to %v, looked at up to %v late",
				without, without+mine, with, with+mineWith, idle, late)
			assert.GreaterOrEqual(t, with, least(idle))
			assert.LessOrEqual(t, idle, 2*100*time.Millisecond+late, "with as much for a busy machine")
		})
	}
}

var polls = []primitives.Option{primitives.WithPolling(5*time.Millisecond, 40*time.Millisecond)}

// longestIdle returns the longest time within d for which the key of a lock was missing, and how late the machine was
// at most to look at it.
func longestIdle(t *testing.T, s *redistest.Server, name string, d time.Duration) (longest, late time.Duration) {
	rdb := s.Client(t)
	end := time.Now().Add(d)
	held := time.Now()
	for time.Now().Before(end) {
		before := time.Now()
		n, err := rdb.Exists(t.Context(), name).Result()
		if !assert.NoError(t, err) {
			return longest, late
		}
		if n == 1 {
			longest = max(longest, before.Sub(held))
			held = time.Now()
		}
		time.Sleep(time.Millisecond)
		late = max(late, time.Since(before)-time.Millisecond)
	}
	return max(longest, time.Since(held)), late
}
