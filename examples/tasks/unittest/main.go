// Command unittest has a function that stops when its lock is lost. Its test, in main_test.go,
// takes the lock away.
//
// Output:
//
//	order 42 is shipped
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

// ship calls step until it reports true.
func ship(ctx context.Context, client *primitives.Client, step func() bool) error {
	return client.Lock("example:unittest:42").Do(ctx, func(ctx context.Context) error {
		for !step() {
			if ctx.Err() != nil {
				return context.Cause(ctx) // the lock is lost, or the caller has given up
			}
		}
		return nil
	}, primitives.WithWait(2*time.Second))
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
	err = ship(ctx, client, func() bool { return true })
	if err != nil {
		return err
	}
	fmt.Println("order 42 is shipped")
	return client.Close(ctx)
}

// connect returns a client of the Redis at $REDIS_ADDR, or of one inside this process.
func connect() *redis.Client {
	addr := os.Getenv("REDIS_ADDR")
	if addr == "" {
		return redis.NewClient(locktest.Start().Options())
	}
	return redis.NewClient(&redis.Options{Addr: addr})
}
