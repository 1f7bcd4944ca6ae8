package demo

import (
	"context"

	"github.com/redlatch/redlatch/primitives"
)

var rwlockScene = Scene{
	Name:  "rwlock",
	Shows: "readers share the lock, a writer excludes all others and can downgrade",
	run:   runRWLock,
}

// runRWLock has three readers, then a writer that downgrades to a reader.
func runRWLock(ctx context.Context, s *stage) error {
	readers, err := s.newProcesses("anna", "ben", "cleo")
	if err != nil {
		return err
	}
	dan, err := s.newProcess("dan")
	if err != nil {
		return err
	}
	anna, ben := readers[0].RWLock("config"), readers[1].RWLock("config")
	var reading []*primitives.Hold
	for _, p := range readers {
		hold, err := p.RWLock("config").Reader().TryAcquire(ctx)
		if err != nil {
			return err
		}
		reading = append(reading, hold)
	}
	s.say("all", "%d readers hold it", len(reading))
	config := dan.RWLock("config")
	acquired, err := startWaiting(dan, func() (*primitives.Hold, error) { return config.Writer().Acquire(ctx) })
	if err != nil {
		return err
	}
	s.say(dan.name, "waits for the write lock")
	overtaken, err := isFree(ctx, anna.Reader())
	if err != nil {
		return err
	}
	for _, hold := range reading {
		if err := hold.Release(ctx); err != nil {
			return err
		}
	}
	a := <-acquired
	if a.err != nil {
		return a.err
	}
	readDuringWrite, err := isFree(ctx, anna.Reader())
	if err != nil {
		return err
	}
	s.say(dan.name, "holds the write lock after all readers released")
	// The reader's hold outlives the writer's, so its context must not end with the writer's.
	downgraded, err := config.Reader().Acquire(context.WithoutCancel(a.hold.Context()))
	if err != nil {
		return err
	}
	if err := a.hold.Release(ctx); err != nil {
		return err
	}
	s.say(dan.name, "continues as a reader")
	read, err := isFree(ctx, anna.Reader())
	if err != nil {
		return err
	}
	write, err := isFree(ctx, ben.Writer())
	if err != nil {
		return err
	}
	s.equal("readers at once", int64(len(reading)), int64(len(readers)))
	s.confirm("new readers wait behind a waiting writer", !overtaken)
	s.confirm("no reader alongside the writer", !readDuringWrite)
	s.confirm("others can read after the downgrade", read)
	s.confirm("nobody can write after the downgrade", !write)
	return downgraded.Release(ctx)
}
