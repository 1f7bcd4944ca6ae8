package main

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/redlatch/redlatch/primitives"
)

var semaphoreScene = scene{
	name:  "semaphore",
	shows: "three clients with four goroutines each share three permits",
	run:   runSemaphore,
}

const (
	semaphorePermits    = 3
	semaphoreGoroutines = 4 // of each client
	semaphoreRounds     = 4
)

// runSemaphore takes all permits once, so that the next try must fail, and then has many contend for them.
func runSemaphore(ctx context.Context, s *stage) error {
	cast, err := s.cast("anna", "ben", "cleo")
	if err != nil {
		return err
	}
	slots := cast[0].Semaphore("slots")
	if _, err := slots.Init(ctx, semaphorePermits); err != nil {
		return err
	}
	all, err := slots.Acquire(ctx, primitives.WithPermits(semaphorePermits))
	if err != nil {
		return err
	}
	more, err := free(ctx, cast[1].Semaphore("slots"))
	if err != nil {
		return err
	}
	if err := all.Release(ctx); err != nil {
		return err
	}
	inside := crowd{limit: semaphorePermits}
	group, working := errgroup.WithContext(ctx)
	for _, m := range cast {
		slots := m.Semaphore("slots")
		for range semaphoreGoroutines {
			group.Go(func() error { return work(working, slots, &inside) })
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	s.say("all", "have worked %d times, at most %d at once", inside.entered.Load(), inside.most.Load())
	info, err := slots.Info(ctx)
	if err != nil {
		return err
	}
	s.confirm("one more than there are is refused", !more)
	s.equal("acquisitions", inside.entered.Load(), int64(len(cast)*semaphoreGoroutines*semaphoreRounds))
	s.equal("times that more than 3 were inside", inside.over.Load(), 0)
	s.equal("permits there in the end", int64(info.Available), semaphorePermits)
	return nil
}

func work(ctx context.Context, slots *primitives.Semaphore, inside *crowd) error {
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
