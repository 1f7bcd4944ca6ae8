package primitives_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

// Waiters acquire the lock in the order of their requests, across all processes.
func ExampleClient_FairLock() {
	client, done := exampleClient()
	defer done()
	ctx := context.Background()

	counter := client.FairLock("counter", primitives.WithWaiterTimeout(5*time.Second))
	first, err := counter.Acquire(ctx)
	if err != nil {
		panic(err)
	}
	var wg sync.WaitGroup
	for ticket := range 3 {
		wg.Go(func() {
			err := counter.Do(ctx, func(context.Context) error {
				fmt.Println("served: ticket", ticket)
				return nil
			})
			if err != nil {
				fmt.Println(err)
			}
		})
		for waiting := 0; waiting <= ticket; { // until the waiter is in the queue
			info, err := counter.Info(ctx)
			if err != nil {
				panic(err)
			}
			waiting = len(info.Waiters)
		}
	}
	_, err = counter.TryAcquire(ctx)
	fmt.Println("busy:", errors.Is(err, primitives.ErrNotAcquired))
	_ = first.Release(ctx)
	wg.Wait()
	// Output:
	// busy: true
	// served: ticket 0
	// served: ticket 1
	// served: ticket 2
}
