package primitives_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/redlatch/redlatch/primitives"
)

// Do runs a function while the lock is held. Functions that it calls can acquire the lock again
// with its context.
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

		_, err = orders.TryAcquire(context.Background()) // another owner, although in the same process
		fmt.Println("refused:", errors.Is(err, primitives.ErrNotAcquired))
		return nil
	})
	fmt.Println("shipped:", err == nil)
	// Output:
	// shipping, depth 1
	// billing, depth 2
	// refused: true
	// shipped: true
}
