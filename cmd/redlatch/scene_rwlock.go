package main

import (
	"context"

	"github.com/redlatch/redlatch/primitives"
)

var rwlockScene = scene{
	name:  "rwlock",
	shows: "readers read together, a writer writes alone and may go on as a reader",
	run:   runRWLock,
}

// runRWLock has some read, then one write and downgrade.
func runRWLock(ctx context.Context, s *stage) error {
	readers, err := s.cast("anna", "ben", "cleo")
	if err != nil {
		return err
	}
	dan, err := s.member("dan")
	if err != nil {
		return err
	}
	anna, ben := readers[0].RWLock("config"), readers[1].RWLock("config")
	var reading []*primitives.Hold
	for _, m := range readers {
		hold, err := m.RWLock("config").Reader().TryAcquire(ctx)
		if err != nil {
			return err
		}
		reading = append(reading, hold)
	}
	s.say("all", "%d readers read at once", len(reading))
	config := dan.RWLock("config")
	taken, err := waiting(dan, func() (*primitives.Hold, error) { return config.Writer().Acquire(ctx) })
	if err != nil {
		return err
	}
	s.say(dan.name, "wants to write, and waits")
	pushes, err := free(ctx, anna.Reader())
	if err != nil {
		return err
	}
	for _, hold := range reading {
		if err := hold.Release(ctx); err != nil {
			return err
		}
	}
	a := <-taken
	if a.err != nil {
		return a.err
	}
	alone, err := free(ctx, anna.Reader())
	if err != nil {
		return err
	}
	s.say(dan.name, "writes, when all have gone")
	// The reader's hold is to outlast the writer's: its context must not end with that.
	down, err := config.Reader().Acquire(context.WithoutCancel(a.hold.Context()))
	if err != nil {
		return err
	}
	if err := a.hold.Release(ctx); err != nil {
		return err
	}
	s.say(dan.name, "goes on as a reader")
	read, err := free(ctx, anna.Reader())
	if err != nil {
		return err
	}
	write, err := free(ctx, ben.Writer())
	if err != nil {
		return err
	}
	s.equal("readers at once", int64(len(reading)), int64(len(readers)))
	s.confirm("new readers wait behind a waiting writer", !pushes)
	s.confirm("nobody reads while it is written", !alone)
	s.confirm("after the downgrade others may read", read)
	s.confirm("and nobody may write", !write)
	return down.Release(ctx)
}
