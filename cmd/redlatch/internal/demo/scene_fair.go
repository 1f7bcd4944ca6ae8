package demo

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/redlatch/redlatch/primitives"
)

var fairScene = Scene{
	Name:  "fair",
	Shows: "waiters of several clients get the lock in the order of their arrival",
	run:   runFair,
}

// runFair queues six waiters behind a holder, which queues again as soon as it has released.
func runFair(ctx context.Context, s *stage) error {
	procs, err := s.newProcesses("anna", "ben", "cleo")
	if err != nil {
		return err
	}
	anna := procs[0]
	hold, err := anna.FairLock("till").Acquire(ctx)
	if err != nil {
		return err
	}
	s.say(anna.name, "holds it")
	var arrived, served []string // served is guarded by the lock
	var waiters []<-chan acquisition
	serve := func(p *process, who string) (*primitives.Hold, error) {
		hold, err := p.FairLock("till").Acquire(ctx)
		if err != nil {
			return nil, err
		}
		served = append(served, who)
		return nil, hold.Release(ctx)
	}
	for i := range 2 * len(procs) {
		p := procs[len(procs)-1-i%len(procs)]
		who := fmt.Sprintf("%s/%d", p.name, i/len(procs)+1)
		waiter, err := startWaiting(p, func() (*primitives.Hold, error) { return serve(p, who) })
		if err != nil {
			return err
		}
		arrived, waiters = append(arrived, who), append(waiters, waiter)
	}
	s.say("all", "arrived: %s", strings.Join(arrived, " "))
	info, err := anna.FairLock("till").Info(ctx)
	if err != nil {
		return err
	}
	if err := hold.Release(ctx); err != nil {
		return err
	}
	s.say(anna.name, "releases and queues again at once")
	if _, err := serve(anna, "anna"); err != nil {
		return err
	}
	for _, waiter := range waiters {
		if a := <-waiter; a.err != nil {
			return a.err
		}
	}
	s.say("all", "served:  %s", strings.Join(served, " "))
	s.equal("waiters in the queue", int64(len(info.Waiters)), int64(len(arrived)))
	s.confirm("served in the order of arrival", slices.Equal(served, append(arrived, "anna")))
	return nil
}
