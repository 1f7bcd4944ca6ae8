package demo

import (
	"context"
	"fmt"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

var permitsScene = Scene{
	Name:  "permits",
	Shows: "one of two permit holders is killed; its permit expires, the other's does not",
	run:   runPermits,
}

const permitsTTL = 1500 * time.Millisecond

// runPermits acquires all permits and kills one holder.
func runPermits(ctx context.Context, s *stage) error {
	procs, err := s.newProcesses("anna", "ben", "cleo")
	if err != nil {
		return err
	}
	pool := func(p *process) *primitives.PermitExpirableSemaphore {
		return p.PermitExpirableSemaphore("licenses", primitives.WithWatchdog(permitsTTL))
	}
	anna, ben, cleo := procs[0], procs[1], procs[2]
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
	s.say("all", "anna and ben hold a permit each; the watchdog renews their TTL of %v", permitsTTL)
	acquired, err := startWaiting(cleo, func() (*primitives.Hold, error) { return pool(cleo).Acquire(ctx) })
	if err != nil {
		return err
	}
	s.say(cleo.name, "waits")
	if err := anna.awaitRenewal(lost); err != nil {
		return err
	}
	s.kill(anna, permitsTTL)
	killed := time.Now()
	s.say(anna.name, "is renewed and then dies")
	a := <-acquired
	if a.err != nil {
		return a.err
	}
	took := a.at.Sub(killed).Round(time.Millisecond)
	s.say(cleo.name, "holds a permit, %v after the crash", took)
	wait(ctx, rivalWork)
	checked := kept.Check(ctx)
	for _, hold := range []*primitives.Hold{kept, a.hold} {
		if err := hold.Release(ctx); err != nil {
			return err
		}
	}
	info, err := pool(ben).Info(ctx)
	if err != nil {
		return err
	}
	const limit = permitsTTL + crashSlack
	s.check("time from the crash to the next holder", took, fmt.Sprintf("at most %v", limit), took > 0 && took <= limit)
	s.confirm("the other permit was still held", checked == nil)
	s.equal("permits available at the end", int64(info.Available), 2)
	return nil
}
