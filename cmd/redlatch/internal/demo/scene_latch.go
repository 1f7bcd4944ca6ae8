package demo

import (
	"context"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

var latchScene = Scene{
	Name:  "latch",
	Shows: "two waiters continue when three others have counted down",
	run:   runLatch,
}

// runLatch counts down three times and checks that no waiter continues before the last count.
func runLatch(ctx context.Context, s *stage) error {
	waiters, err := s.newProcesses("anna", "ben")
	if err != nil {
		return err
	}
	loaders, err := s.newProcesses("cleo", "dan", "eve")
	if err != nil {
		return err
	}
	if _, err := waiters[0].CountDownLatch("loaded").Init(ctx, len(loaders)); err != nil {
		return err
	}
	var waits []<-chan acquisition
	for _, p := range waiters {
		wait, err := startWaiting(p, func() (*primitives.Hold, error) { return nil, p.CountDownLatch("loaded").Wait(ctx) })
		if err != nil {
			return err
		}
		s.say(p.name, "waits")
		waits = append(waits, wait)
	}
	early := 0
	var last time.Time
	for _, p := range loaders {
		time.Sleep(50 * time.Millisecond) // time in which a waiter that was woken too early would show
		for _, wait := range waits {
			early += len(wait)
		}
		last = time.Now()
		if err := p.CountDownLatch("loaded").CountDown(ctx); err != nil {
			return err
		}
		s.say(p.name, "counts down")
	}
	var slowest time.Duration
	for _, wait := range waits {
		a := <-wait
		if a.err != nil {
			return a.err
		}
		slowest = max(slowest, a.at.Sub(last))
	}
	s.say("all", "waiters continue, %v after the last count", slowest.Round(time.Millisecond/10))
	left, err := waiters[0].CountDownLatch("loaded").Count(ctx)
	if err != nil {
		return err
	}
	s.equal("waiters that continued too early", int64(early), 0)
	s.equal("waiters that continued", int64(len(waits)), int64(len(waiters)))
	s.equal("remaining count", left, 0)
	return nil
}
