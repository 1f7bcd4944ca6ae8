// Command adopt acquires a lock in one process, and releases it in another one.
//
// Output:
//
//	the web server has locked video 5, and passes it on
//	the worker has video 5, and encodes it
//	video 5 is free: true
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

// receive is the web server: it locks the video, and puts the id of the hold into the job. Until
// the worker adopts it, the lock has a lease of the TTL.
func receive(ctx context.Context, client *primitives.Client, jobs chan<- string) error {
	hold, err := client.Lock("example:adopt:5").Acquire(ctx, primitives.WithWatchdog(time.Minute))
	if err != nil {
		return err
	}
	fmt.Println("the web server has locked video 5, and passes it on")
	jobs <- hold.Detach()
	return nil
}

// encode is the worker.
func encode(ctx context.Context, client *primitives.Client, jobs <-chan string) error {
	hold, err := client.Lock("example:adopt:5").Adopt(ctx, <-jobs)
	if err != nil {
		return err // ErrNotHeld: the job came too late
	}
	fmt.Println("the worker has video 5, and encodes it") // with hold.Context()
	return hold.Release(ctx)
}

func main() {
	err := run(context.Background())
	if err != nil {
		log.Fatal(err)
	}
}
func run(ctx context.Context) error {
	rdb := connect()
	web, err := primitives.New(rdb)
	if err != nil {
		return err
	}
	worker, err := primitives.New(rdb)
	if err != nil {
		return err
	}
	jobs := make(chan string, 1) // in truth, a queue of jobs
	err = errors.Join(receive(ctx, web, jobs), encode(ctx, worker, jobs), web.Close(ctx), worker.Close(ctx))
	fmt.Println("video 5 is free:", rdb.Exists(ctx, "example:adopt:5").Val() == 0)
	return err
}

// connect returns a client of the Redis at $REDIS_ADDR, or of one inside this process.
func connect() *redis.Client {
	addr := os.Getenv("REDIS_ADDR")
	if addr == "" {
		return redis.NewClient(locktest.Start().Options())
	}
	return redis.NewClient(&redis.Options{Addr: addr})
}
