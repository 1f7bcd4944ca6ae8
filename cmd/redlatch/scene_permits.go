package main

import (
	"context"
	"fmt"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

var permitsScene = scene{
	name:  "permits",
	shows: "one of two who have a permit dies; its permit comes back, the other's stays",
	run:   runPermits,
}

const permitsTTL = 700 * time.Millisecond

// runPermits gives out all permits and lets one holder die.
func runPermits(ctx context.Context, s *stage) error {
	cast, err := s.cast("anna", "ben", "cleo")
	if err != nil {
		return err
	}
	pool := func(m *member) *primitives.PermitExpirableSemaphore {
		return m.PermitExpirableSemaphore("licenses", primitives.WithWatchdog(permitsTTL))
	}
	anna, ben, cleo := cast[0], cast[1], cast[2]
	if _, err := pool(anna).Init(ctx, 2); err != nil {
		return err
	}
	lost, err := pool(anna).Acquire(ctx)
	if err != nil {
		return err
	}
	kept, err := pool(ben).Acquire(ctx)
	if err != nil {
		return err
	}
	s.say("all", "anna and ben have a permit each, renewed for %v at a time", permitsTTL)
	taken, err := waiting(cleo, func() (*primitives.Hold, error) { return pool(cleo).Acquire(ctx) })
	if err != nil {
		return err
	}
	s.say(cleo.name, "waits")
	if err := anna.renewal(lost); err != nil {
		return err
	}
	anna.die()
	died := time.Now()
	s.say(anna.name, "was renewed, and dies")
	a := <-taken
	if a.err != nil {
		return a.err
	}
	took := a.at.Sub(died).Round(time.Millisecond)
	s.say(cleo.name, "has it, %v after the crash", took)
	stands := kept.Check(ctx)
	for _, hold := range []*primitives.Hold{kept, a.hold} {
		if err := hold.Release(ctx); err != nil {
			return err
		}
	}
	info, err := pool(ben).Info(ctx)
	if err != nil {
		return err
	}
	s.check("time until its permit was back", took, fmt.Sprintf("at most %v", permitsTTL+crashLate), took > 0 && took <= permitsTTL+crashLate)
	s.confirm("the other's stayed", stands == nil)
	s.equal("permits there in the end", int64(info.Available), 2)
	return nil
}
