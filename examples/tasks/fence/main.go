// Command fence refuses the write of a holder that was paused for longer than its lease.
//
// No lock can stop such a holder: the store must compare the tokens. Package fence does so for
// Redis, PostgreSQL, MySQL and SQLite.
//
// Output:
//
//	the later holder writes
//	the earlier holder goes on: a later holder of the lock has written
//	the page is "later"
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/fence"
	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

func main() {
	err := run(context.Background())
	if err != nil {
		log.Fatal(err)
	}
}
func run(ctx context.Context) error {
	rdb := connect()
	client, err := primitives.New(rdb)
	if err != nil {
		return err
	}
	lock := client.FencedLock("example:fence")
	earlier, err := lock.Acquire(ctx, primitives.WithLease(200*time.Millisecond))
	if err != nil {
		return err
	}
	later, err := lock.Acquire(ctx) // waits until the lease of the earlier holder, which is paused, ends
	if err != nil {
		return err
	}
	defer later.Release(ctx)

	const page = "example:fence:page" // the string that both write
	err = fence.Redis(rdb, page, later.Token()).Set(ctx, "later", time.Hour)
	if err != nil {
		return err
	}
	fmt.Println("the later holder writes")
	err = fence.Redis(rdb, page, earlier.Token()).Set(ctx, "earlier", time.Hour)
	if !errors.Is(err, fence.ErrStale) {
		return fmt.Errorf("want a refusal, got %w", err)
	}
	fmt.Println("the earlier holder goes on:", fence.ErrStale)
	fmt.Printf("the page is %q\n", rdb.Get(ctx, page).Val())
	return nil
}

// connect returns a client of the Redis at $REDIS_ADDR, or of one inside this process.
func connect() *redis.Client {
	addr := os.Getenv("REDIS_ADDR")
	if addr == "" {
		return redis.NewClient(locktest.Start().Options())
	}
	return redis.NewClient(&redis.Options{Addr: addr})
}
