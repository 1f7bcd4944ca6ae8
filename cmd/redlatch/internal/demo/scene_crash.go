package demo

import (
	"context"
	"fmt"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

var crashScene = Scene{
	Name:  "crash",
	Shows: "the holder is killed; its lock expires and the waiter gets it",
	run:   runCrash,
}

const (
	crashTTL   = 2 * time.Second
	crashSlack = 2 * time.Second        // allowed beyond the TTL, for a busy machine
	rivalWork  = 200 * time.Millisecond // how long the next holder holds the lock
)

// runCrash kills a holder after its first renewal.
func runCrash(ctx context.Context, s *stage) error {
	anna, err := s.newProcess("anna")
	if err != nil {
		return err
	}
	hold, err := anna.Lock("report").Acquire(ctx, primitives.WithWatchdog(crashTTL))
	if err != nil {
		return err
	}
	s.say(anna.name, "holds it; the watchdog renews its TTL of %v", crashTTL)
	ben, acquired, err := s.rival(ctx, "ben", "report")
	if err != nil {
		return err
	}
	if err := anna.awaitRenewal(hold); err != nil {
		return err
	}
	s.say(anna.name, "is renewed")
	s.kill(anna, crashTTL)
	killed := time.Now()
	s.say(anna.name, "dies: it renews nothing and releases nothing")
	a := <-acquired
	if a.err != nil {
		return a.err
	}
	took := a.at.Sub(killed).Round(time.Millisecond)
	s.say(ben.name, "holds it, %v after the crash", took)
	wait(ctx, rivalWork)
	const limit = crashTTL + crashSlack
	s.check("time from the crash to the next holder", took, fmt.Sprintf("at most %v", limit), took > 0 && took <= limit)
	return a.hold.Release(ctx)
}

// awaitRenewal waits until p has renewed a hold. It returns an error if the given hold ends first.
func (p *process) awaitRenewal(hold *primitives.Hold) error {
	select {
	case <-p.renewed:
		return nil
	case <-hold.Context().Done():
		return fmt.Errorf("the hold ended: %w", context.Cause(hold.Context()))
	}
}

// rival makes a process that waits for a held lock, and returns once it waits.
func (s *stage) rival(ctx context.Context, name, lock string) (*process, <-chan acquisition, error) {
	p, err := s.newProcess(name)
	if err != nil {
		return nil, nil, err
	}
	acquired, err := startWaiting(p, func() (*primitives.Hold, error) { return p.Lock(lock).Acquire(ctx) })
	if err != nil {
		return nil, nil, err
	}
	s.say(name, "waits")
	return p, acquired, nil
}
