package main

import (
	"context"
	"fmt"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

var crashScene = scene{
	name:  "crash",
	shows: "the holder dies without a word; its lock frees itself",
	run:   runCrash,
}

const (
	crashTTL  = time.Second
	crashLate = 2 * time.Second // beyond the TTL, for a slow machine
)

// runCrash lets a holder be renewed once, and die.
func runCrash(ctx context.Context, s *stage) error {
	renewed := make(chan struct{}, 1)
	anna, err := s.member("anna", primitives.WithObserver(func(e primitives.Event) {
		if e.Kind == primitives.EventRenewed {
			select {
			case renewed <- struct{}{}:
			default:
			}
		}
	}))
	if err != nil {
		return err
	}
	hold, err := anna.Lock("report").Acquire(ctx, primitives.WithWatchdog(crashTTL))
	if err != nil {
		return err
	}
	s.say(anna.name, "holds it; a watchdog renews it for %v at a time", crashTTL)
	ben, taken, err := s.rival(ctx, "ben", "report")
	if err != nil {
		return err
	}
	select {
	case <-renewed:
		s.say(anna.name, "was renewed")
	case <-hold.Context().Done():
		return fmt.Errorf("the hold ended: %w", context.Cause(hold.Context()))
	}
	anna.die()
	died := time.Now()
	s.say(anna.name, "dies: nothing is renewed, nothing is released")
	a := <-taken
	if a.err != nil {
		return a.err
	}
	took := a.at.Sub(died).Round(time.Millisecond)
	s.say(ben.name, "holds it, %v after the crash", took)
	s.check("time to take over after the crash", took, fmt.Sprintf("at most %v", crashTTL+crashLate), took > 0 && took <= crashTTL+crashLate)
	return a.hold.Release(ctx)
}

// acquisition is how somebody's waiting ended, and when.
type acquisition struct {
	hold *primitives.Hold
	at   time.Time
	err  error
}

// rival makes a participant that waits for a lock which is held. When rival returns it does wait.
func (s *stage) rival(ctx context.Context, name, lock string) (*member, <-chan acquisition, error) {
	waits := make(chan struct{})
	m, err := s.member(name, primitives.WithObserver(func(e primitives.Event) {
		if e.Kind == primitives.EventWait {
			close(waits)
		}
	}))
	if err != nil {
		return nil, nil, err
	}
	done := make(chan acquisition, 1)
	go func() {
		hold, err := m.Lock(lock).Acquire(ctx)
		done <- acquisition{hold, time.Now(), err}
	}()
	select {
	case <-waits:
		s.say(name, "waits")
		return m, done, nil
	case a := <-done:
		if a.err == nil {
			a.err = fmt.Errorf("%s got %q though it is held", name, lock)
		}
		return nil, nil, a.err
	}
}
