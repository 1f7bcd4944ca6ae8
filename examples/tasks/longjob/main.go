// Command longjob holds a lock for longer than its lease: the lease is renewed while the job runs.
//
// Output:
//
//	the lease of 300ms was renewed 4 times
//	the lock is still held: true
//	the job is done
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

// ttl is how long others wait if this process dies. The default of 30 s suits most jobs.
const ttl = 300 * time.Millisecond

func main() {
	err := run(context.Background())
	if err != nil {
		log.Fatal(err)
	}
}
func run(ctx context.Context) error {
	renewals := make(chan struct{}, 1)
	client, err := primitives.New(connect(), primitives.WithObserver(func(e primitives.Event) {
		if e.Kind == primitives.EventRenewed { // three times per ttl
			renewals <- struct{}{}
		}
	}))
	if err != nil {
		return err
	}
	lock := client.Lock("example:longjob", primitives.WithWatchdog(ttl), primitives.WithMaxHold(time.Hour))
	err = lock.Do(ctx, func(ctx context.Context) error { // ctx ends if the lock is lost, or after the hour
		for range 4 { // so this job takes longer than ttl
			select {
			case <-renewals:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		fmt.Println("the lease of", ttl, "was renewed 4 times")
		fmt.Println("the lock is still held:", primitives.HoldFrom(ctx).Check(ctx) == nil)
		return nil
	})
	if err != nil {
		return err
	}
	fmt.Println("the job is done")
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
