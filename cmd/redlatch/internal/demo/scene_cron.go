package demo

import (
	"context"
	"fmt"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

var cronScene = Scene{
	Name:  "cron",
	Shows: "two hosts start the same cron job; it runs once, whichever clock is first",
	run:   runCron,
}

const (
	cronCount   = 2                      // nights
	cronLate    = 200 * time.Millisecond // how far the clock of the second host is behind
	cronJob     = 50 * time.Millisecond
	cronMinHold = 600 * time.Millisecond // longer than clocks differ
)

// cronTries bounds how often a night is tried on a machine that stands still again and again.
const cronTries = 3

// runCron starts a job on two hosts, whose clocks differ by more than the job takes.
func runCron(ctx context.Context, s *stage) error {
	return runNights(ctx, s, func(ctx context.Context, _ *process, first time.Time) error {
		wait(ctx, time.Until(first.Add(cronLate)))
		return nil
	})
}

// awaitLate waits until a host that is late starts the job, after the first one has started it.
type awaitLate func(ctx context.Context, host *process, first time.Time) error

// runNights runs the nights, each again if this machine is too slow.
func runNights(ctx context.Context, s *stage, late awaitLate) error {
	hosts, err := s.newProcesses("host-1", "host-2")
	if err != nil {
		return err
	}
	s.say("both", "run nightly for %v, and keep its lock for %v: WithMinHold", cronJob, cronMinHold)
	all := &cronNights{stage: s}
	tries := 0
	for night := 1; night <= cronCount; {
		tries++
		if tries > cronTries {
			return fmt.Errorf("this machine is too slow: it stood still for longer than %v in each of %d tries of night %d",
				cronMinHold, cronTries, night)
		}
		counts, err := all.run(ctx, hosts, night, late)
		if err != nil {
			return err
		}
		if counts {
			night++
			tries = 0
		}
	}
	s.equal("runs of the job, in two nights", all.ran, cronCount)
	s.equal("hosts that skipped it", all.skipped, cronCount)
	return nil
}

// cronNights counts what the hosts did in the nights that count.
type cronNights struct {
	*stage

	ran, skipped int64
}

// run runs a night. It does not count if this machine stood still until the minimum hold was over:
// then the second host may run the job as well.
func (c *cronNights) run(
	ctx context.Context, hosts []*process, night int, late awaitLate,
) (counts bool, err error) {
	first := time.Now()
	start := func(host *process) (at time.Time, did bool, err error) {
		did, err = host.Lock("nightly").TryDo(ctx, func(ctx context.Context) error {
			at = time.Now()
			c.say(host.name, "night %d: runs the job", night)
			wait(ctx, cronJob)
			return nil
		}, primitives.WithMinHold(cronMinHold))
		if did && err == nil {
			c.kept(host.name, "nightly", at.Add(cronMinHold), "kept by WithMinHold")
		}
		return at, did, err
	}
	_, did, err := start(hosts[0])
	if err != nil {
		return false, err
	}
	err = late(ctx, hosts[1], first)
	if err != nil {
		return false, err
	}
	again, didAgain, err := start(hosts[1])
	if err != nil {
		return false, err
	}
	stoodStill := didAgain && again.Sub(first) >= cronMinHold
	switch {
	case stoodStill:
		c.say(hosts[1].name, "night %d: this machine stood still, and it came %v late; the night does not count", night,
			again.Sub(first).Round(time.Millisecond))
	case !didAgain:
		c.say(hosts[1].name, "night %d: its clock is %v late; it skips the job", night, cronLate)
	}
	if !stoodStill {
		for _, ran := range []bool{did, didAgain} {
			if ran {
				c.ran++
			} else {
				c.skipped++
			}
		}
	}
	wait(ctx, time.Until(first.Add(2*cronMinHold))) // until the next night
	return !stoodStill, awaitFree(ctx, hosts[0])
}

// awaitFree waits until the minimum hold is over. That may be later than planned, on a machine that
// stood still.
func awaitFree(ctx context.Context, host *process) error {
	for {
		info, err := host.Lock("nightly").Info(ctx)
		if err != nil || len(info.Holders) == 0 {
			return err
		}
		wait(ctx, max(info.TTL, time.Millisecond))
	}
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
