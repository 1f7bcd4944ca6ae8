package main

import (
	"context"
	"fmt"
)

var stripedScene = scene{
	name:  "striped",
	shows: "a hundred customers share four locks, each always the same one",
	run:   runStriped,
}

const (
	stripes   = 4
	customers = 100
)

// runStriped holds one customer's stripe, and looks what that means for the others.
func runStriped(ctx context.Context, s *stage) error {
	cast, err := s.cast("anna", "ben")
	if err != nil {
		return err
	}
	anna, ben := cast[0].Striped("customers", stripes), cast[1].Striped("customers", stripes)
	hold, err := anna.Lock("customer 1").Acquire(ctx)
	if err != nil {
		return err
	}
	s.say("anna", "holds customer 1, by the lock %s", hold.Name())
	shared, blocked, wrong := map[string]int{}, 0, 0
	for i := range customers {
		lock := ben.Lock(fmt.Sprintf("customer %d", i+1))
		shared[lock.Name()]++
		had, err := free(ctx, lock)
		if err != nil {
			return err
		}
		if !had {
			blocked++
		}
		if had == (lock.Name() == hold.Name()) {
			wrong++
		}
	}
	same, err := free(ctx, ben.Lock("customer 1"))
	if err != nil {
		return err
	}
	s.say("ben", "can have %d of %d customers; the others share that lock", customers-blocked, customers)
	s.equal("locks for all", int64(len(shared)), stripes)
	s.confirm("the same customer is refused", !same)
	s.equal("customers of other locks refused", int64(wrong), 0)
	return hold.Release(ctx)
}
