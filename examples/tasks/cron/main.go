// Command cron runs a job once, although a timer starts it on every host, and the clocks of the
// hosts differ.
//
// Output:
//
//	host-1 sends the report
//	host-2 skips it
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

// nightly is what each host runs when its timer fires.
func nightly(ctx context.Context, client *primitives.Client, host string) error {
	// The minimum hold is longer than the starts of two hosts can be apart, and shorter than the
	// time to the next run.
	lock := client.Lock("example:cron", primitives.WithMinHold(10*time.Minute))
	ran, err := lock.TryDo(ctx, func(context.Context) error { // a long job stops when this context ends
		fmt.Println(host, "sends the report")
		return nil
	})
	if err != nil {
		return err // the job has failed, or Redis does not answer: perhaps no host has run it
	}
	if !ran {
		fmt.Println(host, "skips it")
	}
	return nil
}

func main() {
	err := run(context.Background())
	if err != nil {
		log.Fatal(err)
	}
}
func run(ctx context.Context) error {
	rdb := connect()
	for _, host := range []string{"host-1", "host-2"} { // each is a process of its own
		client, err := primitives.New(rdb)
		if err != nil {
			return err
		}
		err = nightly(ctx, client, host)
		if err != nil {
			return err
		}
		closing, cancel := context.WithTimeout(ctx, 10*time.Second)
		client.Close(closing)
		cancel()
	}
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
