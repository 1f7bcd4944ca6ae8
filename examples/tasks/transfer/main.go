// Command transfer locks two accounts at once. Transfers in both directions cannot deadlock.
//
// Output:
//
//	10 transfers each way: 100 and 100
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

// balances is a database. Whoever changes an account holds its lock.
var balances = map[string]*int{"7": new(100), "8": new(100)}

// transfer takes both locks or none, in whatever order they are given.
func transfer(ctx context.Context, client *primitives.Client, from, to string, amount int) error {
	both := primitives.NewMultiLock([]*primitives.Lock{
		client.Lock("example:transfer:" + from),
		client.Lock("example:transfer:" + to),
	})
	return both.Do(ctx, func(context.Context) error {
		*balances[from] -= amount
		*balances[to] += amount
		return nil
	}, primitives.WithWait(5*time.Second))
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
	errs := make(chan error, 20)
	for range 10 {
		go func() { errs <- transfer(ctx, client, "7", "8", 10) }()
		go func() { errs <- transfer(ctx, client, "8", "7", 10) }()
	}
	for range cap(errs) {
		err = errors.Join(err, <-errs)
	}
	fmt.Println("10 transfers each way:", *balances["7"], "and", *balances["8"])
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
