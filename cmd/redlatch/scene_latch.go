package main

import (
	"context"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

var latchScene = scene{
	name:  "latch",
	shows: "two wait until three are done",
	run:   runLatch,
}

// runLatch has three count down, one after another, and looks whether somebody goes on too early.
func runLatch(ctx context.Context, s *stage) error {
	waiters, err := s.cast("anna", "ben")
	if err != nil {
		return err
	}
	loaders, err := s.cast("cleo", "dan", "eve")
	if err != nil {
		return err
	}
	if _, err := waiters[0].CountDownLatch("loaded").Init(ctx, len(loaders)); err != nil {
		return err
	}
	var ends []<-chan acquisition
	for _, m := range waiters {
		end, err := waiting(m, func() (*primitives.Hold, error) { return nil, m.CountDownLatch("loaded").Wait(ctx) })
		if err != nil {
			return err
		}
		s.say(m.name, "waits")
		ends = append(ends, end)
	}
	early := 0
	var last time.Time
	for _, m := range loaders {
		time.Sleep(50 * time.Millisecond)
		for _, end := range ends {
			early += len(end)
		}
		last = time.Now()
		if err := m.CountDownLatch("loaded").CountDown(ctx); err != nil {
			return err
		}
		s.say(m.name, "is done")
	}
	var slowest time.Duration
	for _, end := range ends {
		a := <-end
		if a.err != nil {
			return a.err
		}
		slowest = max(slowest, a.at.Sub(last))
	}
	s.say("all", "go on, %v after the last one", slowest.Round(time.Millisecond/10))
	left, err := waiters[0].CountDownLatch("loaded").Count(ctx)
	if err != nil {
		return err
	}
	s.equal("went on before all were done", int64(early), 0)
	s.equal("went on then", int64(len(ends)), int64(len(waiters)))
	s.equal("left to count", left, 0)
	return nil
}
