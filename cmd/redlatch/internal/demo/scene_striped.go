package demo

import (
	"context"
	"fmt"
)

var stripedScene = Scene{
	Name:  "striped",
	Shows: "a hundred customers share four locks; a customer always uses the same lock",
	run:   runStriped,
}

const (
	stripes   = 4
	customers = 100
)

// runStriped holds one customer's stripe and checks which customers that blocks.
func runStriped(ctx context.Context, s *stage) error {
	procs, err := s.newProcesses("anna", "ben")
	if err != nil {
		return err
	}
	anna, ben := procs[0].Striped("customers", stripes), procs[1].Striped("customers", stripes)
	hold, err := anna.Lock("customer 1").Acquire(ctx)
	if err != nil {
		return err
	}
	s.say("anna", "holds customer 1 with lock %s", hold.Name())
	used, blocked, wrong := map[string]int{}, 0, 0
	for i := range customers {
		lock := ben.Lock(fmt.Sprintf("customer %d", i+1))
		used[lock.Name()]++
		free, err := isFree(ctx, lock)
		if err != nil {
			return err
		}
		if !free {
			blocked++
		}
		if free == (lock.Name() == hold.Name()) {
			wrong++
		}
	}
	sameCustomer, err := isFree(ctx, ben.Lock("customer 1"))
	if err != nil {
		return err
	}
	s.say("ben", "can acquire %d of %d customers; the others share that lock", customers-blocked, customers)
	s.equal("locks used by all customers", int64(len(used)), stripes)
	s.confirm("the same customer is blocked", !sameCustomer)
	s.equal("customers with the wrong result", int64(wrong), 0)
	return hold.Release(ctx)
}
