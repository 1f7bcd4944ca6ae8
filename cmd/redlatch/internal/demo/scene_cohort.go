package demo

import (
	"context"
	"sync"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

var cohortScene = Scene{
	Name:  "cohort",
	Shows: "one client's goroutines pass a fenced lock on without asking Redis; another client still gets its turn",
	run:   runCohort,
}

const (
	cohortLimit      = 100 * time.Millisecond
	cohortGoroutines = 8
	cohortGuests     = 3   // acquisitions by the other client
	cohortHolds      = 500 // holds before each of them
)

// cohortHoldsSeen counts the ids that held the lock: one for each cohort, and one for each
// acquisition of the guest. Each hold's token should be greater than all before it.
type cohortHoldsSeen struct {
	inside occupancy

	mu     sync.Mutex // guards the rest
	ids    map[string]bool
	newest int64 // token
	rose   int   // holds whose token was greater than newest
}

// acquire acquires l, counts the hold and releases it. It returns how long it waited.
func (c *cohortHoldsSeen) acquire(ctx context.Context, l *primitives.Lock) (waited time.Duration, err error) {
	began := time.Now()
	hold, err := l.Acquire(ctx)
	if err != nil {
		return 0, err
	}
	waited = time.Since(began)
	c.count(hold)
	return waited, hold.Release(ctx)
}

func (c *cohortHoldsSeen) count(hold *primitives.Hold) {
	c.inside.enter()
	defer c.inside.leave()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ids[hold.ID()] = true
	if hold.Token() > c.newest {
		c.rose++
	}
	c.newest = hold.Token()
}

// runCohort has one client that never leaves the lock free by itself, and a guest.
func runCohort(ctx context.Context, s *stage) error {
	procs, err := s.newProcesses("anna", "ben")
	if err != nil {
		return err
	}
	s.say(procs[0].name, "%d goroutines want the lock all the time, WithCohort(%v): within that time one gives it to the "+
		"next, without Redis", cohortGoroutines, cohortLimit)
	s.say(procs[1].name, "wants the same lock %d times: how long must it wait?", cohortGuests)
	busy := procs[0].FencedLock("article:4711", primitives.WithCohort(cohortLimit))
	guest := procs[1].FencedLock("article:4711")
	seen := &cohortHoldsSeen{inside: occupancy{limit: 1}, ids: map[string]bool{}}
	turns := int64(0) // of the guest
	tasks, working := newTasks(ctx)
	served := make(chan struct{}) // closed when the guest has had all its turns
	for range cohortGoroutines {
		tasks.run(func() error {
			for {
				if _, err := seen.acquire(working, busy); err != nil {
					return err
				}
				select {
				case <-served:
					return nil
				default:
				}
			}
		})
	}
	tasks.run(func() error {
		for ; turns < cohortGuests; turns++ {
			for seen.inside.entries.Load() < (turns+1)*cohortHolds && working.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			waited, err := seen.acquire(working, guest)
			if err != nil {
				return err
			}
			s.say(procs[1].name, "turn %d of %d: waited %s; %d holds so far", turns+1, cohortGuests,
				waited.Round(10*time.Microsecond), seen.inside.entries.Load())
		}
		close(served)
		return nil
	})
	if err := tasks.wait(); err != nil {
		return err
	}
	total := int(seen.inside.entries.Load())
	s.say("all", "%d holds in all, but Redis saw only %d holders: %d were passed on without it", total, len(seen.ids),
		total-len(seen.ids))
	s.equal("overlaps", seen.inside.violations.Load(), 0)
	s.equal("holds whose token did not rise", int64(total-seen.rose), 0)
	s.equal("turns of the other client", turns, cohortGuests)
	s.confirm("several holds for each holder that Redis saw", total >= 3*len(seen.ids))
	return nil
}
