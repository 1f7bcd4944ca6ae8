// Command skip does not wait for a lock: it skips work that another process is doing.
//
// Output:
//
//	process 1 ships order 42
//	process 2 skips order 42
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

// process is one of several that get the same message, perhaps at the same time.
type process struct {
	name   string
	client *primitives.Client
}

func (p process) handle(ctx context.Context, order string, ship func(context.Context) error) error {
	ran, err := p.client.Lock("example:skip:"+order).TryDo(ctx, func(ctx context.Context) error {
		fmt.Println(p.name, "ships order", order)
		return ship(ctx)
	})
	if err != nil {
		return err // not shipped, or Redis does not answer: deliver the message again
	}
	if !ran {
		fmt.Println(p.name, "skips order", order) // another process is shipping it now
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
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	rdb := connect()
	one, err := primitives.New(rdb)
	if err != nil {
		return err
	}
	defer one.Close(ctx)
	two, err := primitives.New(rdb)
	if err != nil {
		return err
	}
	defer two.Close(ctx)
	return process{"process 1", one}.handle(ctx, "42", func(ctx context.Context) error {
		return process{"process 2", two}.handle(ctx, "42", func(context.Context) error { return nil })
	})
}

// connect returns a client of the Redis at $REDIS_ADDR, or of one inside this process.
func connect() *redis.Client {
	addr := os.Getenv("REDIS_ADDR")
	if addr == "" {
		return redis.NewClient(locktest.Start().Options())
	}
	return redis.NewClient(&redis.Options{Addr: addr})
}
