package primitives_test

import (
	"context"
	"fmt"
)

// Many readers share a price list. A writer can downgrade to a reader, so that no other writer
// comes in between.
func ExampleRWLock() {
	client, done := exampleClient()
	defer done()
	ctx := context.Background()

	prices := client.RWLock("prices")
	one, _ := prices.Reader().Acquire(ctx)
	two, _ := prices.Reader().Acquire(ctx)
	info, _ := prices.Reader().Info(ctx)
	fmt.Println("readers:", len(info.Holders))
	_, err := prices.Writer().TryAcquire(ctx)
	fmt.Println(err)
	_, err = prices.Writer().Acquire(one.Context())
	fmt.Println(err)
	_ = one.Release(ctx)
	_ = two.Release(ctx)

	writing, _ := prices.Writer().Acquire(ctx)
	// Change the prices, then downgrade. WithoutCancel: the reader's context must not end with the
	// writer's.
	reading, _ := prices.Reader().Acquire(context.WithoutCancel(writing.Context()))
	_ = writing.Release(ctx)
	err = prices.Reader().Do(ctx, func(context.Context) error { return nil }) // other readers enter
	fmt.Println("others read:", err == nil)
	fmt.Println("released:", reading.Release(ctx) == nil)
	// Output:
	// readers: 2
	// redlatch: acquire writer "prices": not acquired (also held by this client)
	// redlatch: acquire writer "prices": would deadlock: the context holds the reader: release it before you write
	// others read: true
	// released: true
}
