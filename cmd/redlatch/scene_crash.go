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
	anna, err := s.member("anna")
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
	if err := anna.renewal(hold); err != nil {
		return err
	}
	s.say(anna.name, "was renewed")
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

// renewal waits until m has renewed something, while hold stands.
func (m *member) renewal(hold *primitives.Hold) error {
	select {
	case <-m.renewed:
		return nil
	case <-hold.Context().Done():
		return fmt.Errorf("the hold ended: %w", context.Cause(hold.Context()))
	}
}

// rival makes a participant that waits for a lock which is held. When rival returns it does wait.
func (s *stage) rival(ctx context.Context, name, lock string) (*member, <-chan acquisition, error) {
	m, err := s.member(name)
	if err != nil {
		return nil, nil, err
	}
	taken, err := waiting(m, func() (*primitives.Hold, error) { return m.Lock(lock).Acquire(ctx) })
	if err != nil {
		return nil, nil, err
	}
	s.say(name, "waits")
	return m, taken, nil
}
