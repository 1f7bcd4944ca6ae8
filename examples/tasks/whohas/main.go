// Command whohas shows who holds a lock, and frees it by force.
//
// Output:
//
//	the lock is held by shop@host-1
//	freed: true
//	the former holder: lost: true
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

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
	rdb := connect()
	client, err := primitives.New(rdb, primitives.WithClientName("shop@host-1")) // the default is host:pid
	if err != nil {
		return err
	}
	hold, err := client.Lock("example:whohas").Acquire(ctx)
	if err != nil {
		return err
	}

	operator, err := primitives.New(rdb) // or the command: redlatch inspect, redlatch force-release
	if err != nil {
		return err
	}
	lock := operator.Lock("example:whohas")
	info, err := lock.Info(ctx)
	for err == nil && info.Holders[0].Client == "" { // a client writes its name when it has held for 100 ms
		info, err = lock.Info(ctx)
	}
	if err != nil {
		return err
	}
	fmt.Println("the lock is held by", info.Holders[0].Client)
	freed, err := lock.ForceRelease(ctx) // the holder stops when it notices: make sure that it does no harm
	if err != nil {
		return err
	}
	fmt.Println("freed:", freed)
	fmt.Println("the former holder: lost:", errors.Is(hold.Release(ctx), primitives.ErrLost))
	return errors.Join(client.Close(ctx), operator.Close(ctx))
}

// connect returns a client of the Redis at $REDIS_ADDR, or of one inside this process.
func connect() *redis.Client {
	addr := os.Getenv("REDIS_ADDR")
	if addr == "" {
		return redis.NewClient(locktest.Start().Options())
	}
	return redis.NewClient(&redis.Options{Addr: addr})
}
