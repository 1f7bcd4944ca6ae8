package primitives_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/redlatch/redlatch/primitives"
)

// A section runs while the lock is held, and what it calls may acquire the lock again by the context it was given.
func ExampleClient_Lock() {
	rdb, done := openExample()
	defer done()
	client, err := primitives.New(rdb)
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)

	orders := client.Lock("orders:42")
	err = orders.Do(ctx, func(ctx context.Context) error {
		fmt.Println("shipping, depth", orders.HoldFrom(ctx).Depth())

		inner, err := orders.Acquire(ctx) // nests
		if err != nil {
			return err
		}
		fmt.Println("billing, depth", inner.Depth())
		if err := inner.Release(ctx); err != nil {
			return err
		}

		_, err = orders.TryAcquire(context.Background()) // a stranger, though in the same process
		fmt.Println("another:", errors.Is(err, primitives.ErrNotAcquired))
		return nil
	})
	fmt.Println("shipped:", err == nil)
	// Output:
	// shipping, depth 1
	// billing, depth 2
	// another: true
	// shipped: true
}
