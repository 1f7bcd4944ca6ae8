package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/redlatch/redlatch/primitives"
)

var fairScene = scene{
	name:  "fair",
	shows: "first come, first served, whichever client one comes from",
	run:   runFair,
}

// runFair has six line up while a lock is held. The holder wants it again as soon as it has let go.
func runFair(ctx context.Context, s *stage) error {
	cast, err := s.cast("anna", "ben", "cleo")
	if err != nil {
		return err
	}
	anna := cast[0]
	hold, err := anna.FairLock("till").Acquire(ctx)
	if err != nil {
		return err
	}
	s.say(anna.name, "holds it")
	var came, served []string // whoever holds the lock may change served
	var ends []<-chan acquisition
	serve := func(m *member, who string) (*primitives.Hold, error) {
		hold, err := m.FairLock("till").Acquire(ctx)
		if err != nil {
			return nil, err
		}
		served = append(served, who)
		return nil, hold.Release(ctx)
	}
	for i := range 2 * len(cast) {
		m := cast[len(cast)-1-i%len(cast)]
		who := fmt.Sprintf("%s/%d", m.name, i/len(cast)+1)
		end, err := waiting(m, func() (*primitives.Hold, error) { return serve(m, who) })
		if err != nil {
			return err
		}
		came, ends = append(came, who), append(ends, end)
	}
	s.say("all", "came:   %s", strings.Join(came, " "))
	info, err := anna.FairLock("till").Info(ctx)
	if err != nil {
		return err
	}
	if err := hold.Release(ctx); err != nil {
		return err
	}
	s.say(anna.name, "lets go, and wants it again at once")
	if _, err := serve(anna, "anna"); err != nil {
		return err
	}
	for _, end := range ends {
		if a := <-end; a.err != nil {
			return a.err
		}
	}
	s.say("all", "served: %s", strings.Join(served, " "))
	s.equal("waiters in the queue", int64(len(info.Waiters)), int64(len(came)))
	s.confirm("served in the order in which they came", slices.Equal(served, append(came, "anna")))
	return nil
}
