// Command latch waits until three workers are done, in whichever processes they run.
//
// Output:
//
//	waiting for 3 workers
//	all workers are done
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

// worker counts down once. A process that may be started again needs a note of what it has done.
func worker(ctx context.Context, client *primitives.Client) error {
	return client.CountDownLatch("example:latch").CountDown(ctx)
}

func main() {
	err := run(context.Background())
	if err != nil {
		log.Fatal(err)
	}
}
func run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // limits Wait: a worker may have died
	defer cancel()
	client, err := primitives.New(connect())
	if err != nil {
		return err
	}
	latch := client.CountDownLatch("example:latch")
	_, err = latch.Init(ctx, 3) // before the workers begin
	if err != nil {
		return err
	}
	left, err := latch.Count(ctx)
	if err != nil {
		return err
	}
	fmt.Println("waiting for", left, "workers")
	errs := make(chan error, 3)
	for range cap(errs) {
		go func() { errs <- worker(ctx, client) }()
	}
	err = latch.Wait(ctx)
	if err != nil {
		return err
	}
	fmt.Println("all workers are done")
	return errors.Join(<-errs, <-errs, <-errs, client.Close(ctx))
}

// connect returns a client of the Redis at $REDIS_ADDR, or of one inside this process.
func connect() *redis.Client {
	addr := os.Getenv("REDIS_ADDR")
	if addr == "" {
		return redis.NewClient(locktest.Start().Options())
	}
	return redis.NewClient(&redis.Options{Addr: addr})
}
