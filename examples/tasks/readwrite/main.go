// Command readwrite lets many readers in at a time, or one writer.
//
// Output:
//
//	two readers read at the same time
//	a writer must wait
//	the writer writes, alone
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"sync"

	"github.com/redis/go-redis/v9"

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
	client, err := primitives.New(connect())
	if err != nil {
		return err
	}
	lock := client.RWLock("example:readwrite")
	var both, readers sync.WaitGroup
	both.Add(2)
	errs := make(chan error, 3)
	for range 2 {
		readers.Go(func() {
			errs <- lock.Reader().Do(ctx, func(context.Context) error {
				both.Done()
				both.Wait() // until the other one reads, too
				return nil
			})
		})
	}
	readers.Wait()
	fmt.Println("two readers read at the same time")

	reading, err := lock.Reader().Acquire(ctx)
	if err != nil {
		return err
	}
	_, err = lock.Writer().TryAcquire(ctx)
	if !errors.Is(err, primitives.ErrNotAcquired) {
		return fmt.Errorf("want a refusal, got %w", err)
	}
	fmt.Println("a writer must wait")
	err = errors.Join(<-errs, <-errs, reading.Release(ctx))
	if err != nil {
		return err
	}
	err = lock.Writer().Do(ctx, func(context.Context) error {
		fmt.Println("the writer writes, alone")
		return nil
	})
	return errors.Join(err, client.Close(ctx))
}

// connect returns a client of the Redis at $REDIS_ADDR, or of one inside this process.
func connect() *redis.Client {
	addr := os.Getenv("REDIS_ADDR")
	if addr == "" {
		return redis.NewClient(locktest.Start().Options())
	}
	return redis.NewClient(&redis.Options{Addr: addr})
}
