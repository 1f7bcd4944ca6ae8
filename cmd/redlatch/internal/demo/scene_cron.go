package demo

import (
	"context"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

var cronScene = Scene{
	Name:  "cron",
	Shows: "two hosts start the same cron job; it runs once, whichever clock is first",
	run:   runCron,
}

const (
	cronNights  = 2
	cronLate    = 200 * time.Millisecond // how far the clock of the second host is behind
	cronJob     = 50 * time.Millisecond
	cronMinHold = 600 * time.Millisecond // longer than clocks differ
)

// runCron starts a job on two hosts, whose clocks differ by more than the job takes.
func runCron(ctx context.Context, s *stage) error {
	hosts, err := s.newProcesses("host-1", "host-2")
	if err != nil {
		return err
	}
	s.say("both", "run nightly for %v, and keep its lock for %v: WithMinHold", cronJob, cronMinHold)
	var ran, skipped int64
	for night := range cronNights {
		first := time.Now()
		for i, host := range hosts {
			wait(ctx, time.Until(first.Add(time.Duration(i)*cronLate)))
			var acquired time.Time
			did, err := host.Lock("nightly").TryDo(ctx, func(ctx context.Context) error {
				acquired = time.Now()
				s.say(host.name, "night %d: runs the job", night+1)
				wait(ctx, cronJob)
				return nil
			}, primitives.WithMinHold(cronMinHold))
			switch {
			case err != nil:
				return err
			case did:
				ran++
				s.kept(host.name, "nightly", acquired.Add(cronMinHold), "kept by WithMinHold")
			default:
				skipped++
				s.say(host.name, "night %d: its clock is %v late; it skips the job", night+1, cronLate)
			}
		}
		wait(ctx, time.Until(first.Add(2*cronMinHold))) // until the next night
	}
	s.equal("runs of the job, in two nights", ran, cronNights)
	s.equal("hosts that skipped it", skipped, cronNights)
	return nil
}

// wait waits, or until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
