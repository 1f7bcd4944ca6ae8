package demo

import (
	"context"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

var semaphoreScene = Scene{
	Name:  "semaphore",
	Shows: "three clients with four goroutines each share three permits",
	run:   runSemaphore,
}

const (
	semaphorePermits    = 3
	semaphoreGoroutines = 4 // per client
	semaphoreRounds     = 4 // per goroutine
)

// runSemaphore holds all permits and checks that another try fails. Then many goroutines contend.
func runSemaphore(ctx context.Context, s *stage) error {
	procs, err := s.newProcesses("anna", "ben", "cleo")
	if err != nil {
		return err
	}
	slots := procs[0].Semaphore("slots")
	if _, err := slots.Init(ctx, semaphorePermits); err != nil {
		return err
	}
	all, err := slots.Acquire(ctx, primitives.WithPermits(semaphorePermits))
	if err != nil {
		return err
	}
	more, err := isFree(ctx, procs[1].Semaphore("slots"))
	if err != nil {
		return err
	}
	if err := all.Release(ctx); err != nil {
		return err
	}
	inside := occupancy{limit: semaphorePermits}
	tasks, working := newTasks(ctx)
	for _, p := range procs {
		slots := p.Semaphore("slots")
		for range semaphoreGoroutines {
			tasks.run(func() error { return work(working, slots, &inside) })
		}
	}
	if err := tasks.wait(); err != nil {
		return err
	}
	s.say("all", "held a permit %d times, at most %d at once", inside.entries.Load(), inside.peak.Load())
	info, err := slots.Info(ctx)
	if err != nil {
		return err
	}
	s.confirm("no permit beyond the limit", !more)
	s.equal("acquisitions", inside.entries.Load(), int64(len(procs)*semaphoreGoroutines*semaphoreRounds))
	s.equal("times more than 3 were held", inside.violations.Load(), 0)
	s.equal("permits available at the end", int64(info.Available), semaphorePermits)
	return nil
}

// work acquires a permit semaphoreRounds times and holds it for a moment each time.
func work(ctx context.Context, slots *primitives.Semaphore, inside *occupancy) error {
	for range semaphoreRounds {
		err := slots.Do(ctx, func(context.Context) error {
			inside.enter()
			defer inside.leave()
			time.Sleep(5 * time.Millisecond)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
