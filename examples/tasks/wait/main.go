// Command wait waits for a lock for a limited time, and tells a busy lock from a Redis that does
// not answer.
//
// Output:
//
//	order 42 is busy: try again later
//	Redis does not answer: call the operator
//	order 42 is shipped
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

// ship waits for 300 ms at most. The limit is for the wait, not for the work.
func ship(ctx context.Context, client *primitives.Client) error {
	err := client.Lock("example:wait:42").Do(ctx, func(context.Context) error {
		fmt.Println("order 42 is shipped")
		return nil
	}, primitives.WithWait(300*time.Millisecond))
	switch {
	case errors.Is(err, primitives.ErrUnavailable):
		fmt.Println("Redis does not answer: call the operator")
		return nil
	case errors.Is(err, primitives.ErrNotAcquired):
		fmt.Println("order 42 is busy: try again later")
		return nil
	}
	return err
}

func main() {
	err := run(context.Background())
	if err != nil {
		log.Fatal(err)
	}
}
func run(ctx context.Context) error {
	client, err := primitives.New(connect())
	if err != nil {
		return err
	}
	cut, err := primitives.New(redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})) // where no Redis is
	if err != nil {
		return err
	}
	hold, err := client.Lock("example:wait:42").Acquire(ctx)
	if err != nil {
		return err
	}
	return errors.Join(ship(ctx, client), ship(ctx, cut), hold.Release(ctx), ship(ctx, client), client.Close(ctx))
}

// connect returns a client of the Redis at $REDIS_ADDR, or of one inside this process.
func connect() *redis.Client {
	addr := os.Getenv("REDIS_ADDR")
	if addr == "" {
		return redis.NewClient(locktest.Start().Options())
	}
	return redis.NewClient(&redis.Options{Addr: addr})
}
