package main

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/redlatch/redlatch/primitives"
)

var multiScene = scene{
	name:  "multi",
	shows: "two accounts at once, named in opposite orders; both or none",
	run:   runMulti,
}

const multiRounds = 15 // of each client

// runMulti has two clients book between two accounts, in both directions, and a third one stand in the way.
func runMulti(ctx context.Context, s *stage) error {
	cast, err := s.cast("anna", "ben", "cleo")
	if err != nil {
		return err
	}
	anna, ben, cleo := cast[0], cast[1], cast[2]
	both := func(m *member, from, to string) *primitives.Lock {
		return primitives.NewMultiLock([]*primitives.Lock{m.Lock(from), m.Lock(to)})
	}
	books := crowd{limit: 1}
	group, working := errgroup.WithContext(ctx)
	for _, transfer := range []*primitives.Lock{both(anna, "alice", "bob"), both(ben, "bob", "alice")} {
		group.Go(func() error {
			for range multiRounds {
				err := transfer.Do(working, func(context.Context) error {
					books.enter()
					defer books.leave()
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
	if err := group.Wait(); err != nil {
		return err
	}
	s.say("all", "have booked %d times: anna from alice to bob, ben from bob to alice", books.entered.Load())
	hold, err := cleo.Lock("bob").Acquire(ctx)
	if err != nil {
		return err
	}
	s.say(cleo.name, "holds bob's account alone")
	had, err := free(ctx, both(anna, "alice", "bob"))
	if err != nil {
		return err
	}
	s.say(anna.name, "tries both: %s", map[bool]string{true: "she has them", false: "not acquired"}[had])
	left, err := free(ctx, ben.Lock("alice"))
	if err != nil {
		return err
	}
	s.equal("acquisitions of both", books.entered.Load(), 2*multiRounds)
	s.equal("overlaps", books.over.Load(), 0)
	s.confirm("one missing, both refused", !had)
	s.confirm("and none kept", left)
	return hold.Release(ctx)
}
