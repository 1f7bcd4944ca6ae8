package demo

import (
	"context"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

var multiScene = Scene{
	Name:  "multi",
	Shows: "a joint lock takes both accounts or none; opposite orders do not deadlock",
	run:   runMulti,
}

const multiRounds = 15 // per client

// runMulti has two clients lock the same two accounts in opposite orders. A third client then holds
// one account, so nobody can lock both.
func runMulti(ctx context.Context, s *stage) error {
	procs, err := s.newProcesses("anna", "ben", "cleo")
	if err != nil {
		return err
	}
	anna, ben, cleo := procs[0], procs[1], procs[2]
	both := func(p *process, from, to string) *primitives.Lock {
		return primitives.NewMultiLock([]*primitives.Lock{p.Lock(from), p.Lock(to)})
	}
	transfers := occupancy{limit: 1}
	tasks, working := newTasks(ctx)
	for _, transfer := range []*primitives.Lock{both(anna, "alice", "bob"), both(ben, "bob", "alice")} {
		tasks.run(func() error {
			for range multiRounds {
				err := transfer.Do(working, func(context.Context) error {
					transfers.enter()
					defer transfers.leave()
					time.Sleep(time.Millisecond)
					return nil
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := tasks.wait(); err != nil {
		return err
	}
	s.say("all", "made %d transfers: anna from alice to bob, ben from bob to alice", transfers.entries.Load())
	hold, err := cleo.Lock("bob").Acquire(ctx)
	if err != nil {
		return err
	}
	s.say(cleo.name, "holds bob's account")
	acquired, err := isFree(ctx, both(anna, "alice", "bob"))
	if err != nil {
		return err
	}
	s.say(anna.name, "tries both: %s", map[bool]string{true: "acquired", false: "not acquired"}[acquired])
	alice, err := isFree(ctx, ben.Lock("alice"))
	if err != nil {
		return err
	}
	s.equal("acquisitions of both", transfers.entries.Load(), 2*multiRounds)
	s.equal("overlaps", transfers.violations.Load(), 0)
	s.confirm("one member held: both refused", !acquired)
	s.confirm("a refused attempt keeps no member", alice)
	return hold.Release(ctx)
}
