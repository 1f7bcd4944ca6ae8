package primitives_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/redlatch/redlatch/primitives"
)

// uploads is the interface of a library that stores files: it has no place for a hold.
type uploads interface {
	Lock(ctx context.Context, key string) error
	Unlock(ctx context.Context, key string) error
}

// A Keyed serves an interface that locks and unlocks by name.
func ExampleKeyed() {
	client, done := exampleClient()
	defer done()
	ctx := context.Background()

	var locks uploads = client.Keyed()
	fmt.Println(locks.Lock(ctx, "upload 7"))

	// On another host, or in another goroutine:
	locked, err := client.Keyed().TryLock(ctx, "upload 7")
	fmt.Println(locked, err)

	fmt.Println(locks.Unlock(ctx, "upload 7"))
	fmt.Println(errors.Is(locks.Unlock(ctx, "upload 7"), primitives.ErrNotHeld))
	// Output:
	// <nil>
	// false <nil>
	// <nil>
	// true
}

// A hold may outlast the request that acquires it: the request's context then bounds the wait only.
func ExampleWithHoldContext() {
	client, done := exampleClient()
	defer done()
	service, shutDown := context.WithCancel(context.Background())

	request, end := context.WithCancel(context.Background())
	hold, err := client.Lock("shard 3").Acquire(request, primitives.WithHoldContext(service))
	if err != nil {
		panic(err)
	}
	end()
	fmt.Println("after the request:", hold.Context().Err())
	shutDown()
	fmt.Println("after the service:", hold.Context().Err())
	fmt.Println(hold.Release(context.Background()))
	// Output:
	// after the request: <nil>
	// after the service: context canceled
	// <nil>
}
