package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

var cutoffScene = Scene{
	Name:  "cutoff",
	Shows: "the holder is cut off from Redis; its context ends before another client gets the lock",
	run:   runCutoff,
}

const (
	cutoffTTL    = 1500 * time.Millisecond
	cutoffMargin = 200 * time.Millisecond // time to stop, on a busy machine
)

// runCutoff drops all packets between a holder and Redis.
func runCutoff(ctx context.Context, s *stage) error {
	anna, err := s.newProcess("anna", primitives.WithSafetyMargin(cutoffMargin))
	if err != nil {
		return err
	}
	hold, err := anna.Lock("ledger").Acquire(ctx, primitives.WithWatchdog(cutoffTTL))
	if err != nil {
		return err
	}
	s.say(anna.name, "holds it; TTL %v, of which the last %v are to stop in", cutoffTTL, cutoffMargin)
	ben, acquired, err := s.rival(ctx, "ben", "ledger")
	if err != nil {
		return err
	}
	anna.link.Cut()
	s.say(anna.name, "is cut off: its connections stay open, but no data passes")
	<-hold.Context().Done()
	lost := time.Now()
	cause := context.Cause(hold.Context())
	s.say(anna.name, "is told in time; its context ends: %v", cause)
	a := <-acquired
	if a.err != nil {
		return a.err
	}
	lead := a.at.Sub(lost).Round(time.Millisecond)
	s.say(ben.name, "holds it, %v after anna's context ended", lead)
	anna.link.Mend()
	s.say(anna.name, "is connected again; its late renewals arrive, in vain")
	wait(ctx, rivalWork) // for the renewals
	checked := a.hold.Check(ctx)
	released := hold.Release(ctx)
	s.say(anna.name, "releases what it has lost; the error is: %v", released)
	loss, ok := errors.AsType[*primitives.LossError](cause)
	if !ok {
		return fmt.Errorf("want a lost hold, got %w", cause)
	}
	s.check("why the hold was lost", loss.Reason, primitives.LossExpired, loss.Reason == primitives.LossExpired)
	s.check("from the end of anna's context to ben's hold", lead, "more than 0s", lead > 0)
	s.confirm("late renewals did not affect the next holder", checked == nil)
	s.confirm("Release of the lost hold returned ErrLost", errors.Is(released, primitives.ErrLost))
	if err := a.hold.Release(ctx); err != nil {
		return fmt.Errorf("%s: %w", ben.name, err)
	}
	return nil
}
