// Command limit runs at most two jobs at a time, over all hosts. A host that dies gives its permits
// back.
//
// Output:
//
//	6 jobs have run, at most 2 at a time
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

const limit = 2

var running, most, done atomic.Int32 // the check of this program

// job waits for a permit. ctx ends if the permit is lost.
func job(ctx context.Context, permits *primitives.PermitExpirableSemaphore) error {
	return permits.Do(ctx, func(context.Context) error {
		most.Store(max(most.Load(), running.Add(1)))
		done.Add(1)
		running.Add(-1)
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
	client, err := primitives.New(connect())
	if err != nil {
		return err
	}
	permits := client.PermitExpirableSemaphore("example:limit")
	err = permits.Resize(ctx, limit) // every host sets the limit when it starts
	if err != nil {
		return err
	}
	var jobs sync.WaitGroup
	errs := make(chan error, 6)
	for range cap(errs) {
		jobs.Go(func() { errs <- job(ctx, permits) })
	}
	jobs.Wait()
	for range cap(errs) {
		err = errors.Join(err, <-errs)
	}
	if most.Load() > limit {
		return errors.New("too many jobs at a time")
	}
	fmt.Println(done.Load(), "jobs have run, at most", limit, "at a time")
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
