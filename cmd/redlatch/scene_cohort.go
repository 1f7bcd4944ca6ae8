package main

import (
	"context"
	"sync"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

var cohortScene = scene{
	name:  "cohort",
	shows: "one client's goroutines pass a fenced lock on without asking Redis; another client still gets its turn",
	run:   runCohort,
}

const (
	cohortLimit      = 100 * time.Millisecond
	cohortGoroutines = 8
	cohortGuests     = 3   // acquisitions by the other client
	cohortHolds      = 500 // holds before each of them
)

// runCohort has one client that never leaves the lock free by itself, and a guest. It counts the ids that
// held the lock: one for each cohort, and one for each acquisition of the guest.
func runCohort(ctx context.Context, s *stage) error {
	procs, err := s.newProcesses("anna", "ben")
	if err != nil {
		return err
	}
	busy := procs[0].FencedLock("article:4711", primitives.WithCohort(cohortLimit))
	guest := procs[1].FencedLock("article:4711")
	inside := occupancy{limit: 1}
	var mu sync.Mutex // guards the rest
	ids, tokens, newest, guests := map[string]int{}, 0, int64(0), int64(0)
	section := func(hold *primitives.Hold) {
		inside.enter()
		defer inside.leave()
		mu.Lock()
		defer mu.Unlock()
		ids[hold.ID()]++
		if hold.Token() > newest {
			tokens++
		}
		newest = hold.Token()
	}
	acquire := func(ctx context.Context, l *primitives.Lock) (time.Duration, error) {
		began := time.Now()
		hold, err := l.Acquire(ctx)
		if err != nil {
			return 0, err
		}
		waited := time.Since(began)
		section(hold)
		return waited, hold.Release(ctx)
	}
	tasks, working := newTasks(ctx)
	served := make(chan struct{}) // closed when the guest has had all its turns
	for range cohortGoroutines {
		tasks.run(func() error {
			for {
				if _, err := acquire(working, busy); err != nil {
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
		for turn := range cohortGuests {
			for inside.entries.Load() < int64((turn+1)*cohortHolds) && working.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			waited, err := acquire(working, guest)
			if err != nil {
				return err
			}
			guests++
			s.say(procs[1].name, "acquired it after %s", waited.Round(time.Millisecond))
		}
		close(served)
		return nil
	})
	if err := tasks.wait(); err != nil {
		return err
	}
	total := int(inside.entries.Load())
	s.say("all", "%d holds, but Redis saw %d holders", total, len(ids))
	s.equal("overlaps", inside.violations.Load(), 0)
	s.equal("holds whose token did not rise", int64(total-tokens), 0)
	s.equal("turns of the other client", guests, cohortGuests)
	s.confirm("several holds for each holder", total >= 3*len(ids))
	return nil
}
