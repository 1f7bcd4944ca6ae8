// Command giveway holds a lock for a long batch, but gives way when somebody waits for the lock.
//
// Output:
//
//	the batch begins
//	the batch gives way
//	the user saves the page
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

// batch works in small steps. It returns between two of them when somebody waits; the caller goes
// on with it later.
func batch(ctx context.Context) error {
	fmt.Println("the batch begins")
	wanted := primitives.HoldFrom(ctx).Wanted()
	for {
		select {
		case <-wanted: // a waiter has waited for 100 ms
			fmt.Println("the batch gives way")
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(5 * time.Millisecond): // the time that a step takes
		}
	}
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
	lock := client.Lock("example:giveway")
	saved := make(chan error)
	err = lock.Do(ctx, func(section context.Context) error {
		go func() { // in another process
			saved <- lock.Do(ctx, func(context.Context) error {
				fmt.Println("the user saves the page")
				return nil
			})
		}()
		return batch(section)
	})
	return errors.Join(err, <-saved, client.Close(ctx))
}

// connect returns a client of the Redis at $REDIS_ADDR, or of one inside this process.
func connect() *redis.Client {
	addr := os.Getenv("REDIS_ADDR")
	if addr == "" {
		return redis.NewClient(locktest.Start().Options())
	}
	return redis.NewClient(&redis.Options{Addr: addr})
}
