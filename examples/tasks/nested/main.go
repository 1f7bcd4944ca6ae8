// Command nested holds a lock, and calls a function that takes the same lock: pass on the context
// of the section.
//
// Output:
//
//	order 42 is saved, at depth 2
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

// save acquires the lock, whether its caller has acquired it already or not.
func save(ctx context.Context, order *primitives.Lock) error {
	return order.Do(ctx, func(ctx context.Context) error {
		fmt.Println("order 42 is saved, at depth", order.HoldFrom(ctx).Depth())
		return nil
	})
}

func ship(ctx context.Context, order *primitives.Lock) error {
	return order.Do(ctx, func(ctx context.Context) error { // save must get this ctx: with the outer one it would wait
		err := save(ctx, order)
		if err != nil {
			return err
		}
		fmt.Println("order 42 is shipped")
		return nil
	})
}

func main() {
	err := run(context.Background())
	if err != nil {
		log.Fatal(err)
	}
}
func run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	client, err := primitives.New(connect())
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	return ship(ctx, client.Lock("example:nested"))
}

// connect returns a client of the Redis at $REDIS_ADDR, or of one inside this process.
func connect() *redis.Client {
	addr := os.Getenv("REDIS_ADDR")
	if addr == "" {
		return redis.NewClient(locktest.Start().Options())
	}
	return redis.NewClient(&redis.Options{Addr: addr})
}
