package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

var cutoffScene = scene{
	name:  "cutoff",
	shows: "the holder is cut off from Redis; it learns in time that it must stop",
	run:   runCutoff,
}

const (
	cutoffTTL    = 1500 * time.Millisecond
	cutoffMargin = 200 * time.Millisecond // a program on a busy machine needs a moment to stop
)

// runCutoff has the network swallow all that a holder sends, and all that is sent to it.
func runCutoff(ctx context.Context, s *stage) error {
	anna, err := s.member("anna", primitives.WithSafetyMargin(cutoffMargin))
	if err != nil {
		return err
	}
	hold, err := anna.Lock("ledger").Acquire(ctx, primitives.WithWatchdog(cutoffTTL))
	if err != nil {
		return err
	}
	s.say(anna.name, "holds it for %v at a time, and wants to know %v before the end", cutoffTTL, cutoffMargin)
	ben, taken, err := s.rival(ctx, "ben", "ledger")
	if err != nil {
		return err
	}
	anna.link.Cut()
	s.say(anna.name, "is cut off: her connections stay open, but nothing passes")
	<-hold.Context().Done()
	told := time.Now()
	cause := context.Cause(hold.Context())
	s.say(anna.name, "is told: %v; her section stops", cause)
	a := <-taken
	if a.err != nil {
		return a.err
	}
	lead := a.at.Sub(told).Round(time.Millisecond)
	s.say(ben.name, "holds it, %v later", lead)
	anna.link.Mend()
	s.say(anna.name, "is back, and so are the renewals that were on their way")
	stands := a.hold.Check(ctx)
	released := hold.Release(ctx)
	s.say(anna.name, "releases, and hears: %v", released)
	s.check("the holder was told", cause, primitives.ErrLost, errors.Is(cause, primitives.ErrLost))
	s.check("before another could have it, by", lead, "more than 0s", lead > 0)
	s.confirm("what came late took nothing away", stands == nil)
	s.confirm("its release said so too", errors.Is(released, primitives.ErrLost))
	if err := a.hold.Release(ctx); err != nil {
		return fmt.Errorf("%s: %w", ben.name, err)
	}
	return nil
}
