// Command record locks one record of many by its id: updates of one record take turns, and others
// do not wait.
//
// Output:
//
//	account 7: 100
//	account 8: 100
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

// accounts is a database whose updates consist of a read and a write.
var accounts = map[string]*int{"7": new(int), "8": new(int)}

// deposit may run in any process. A lock needs no preparation, and leaves nothing behind.
func deposit(ctx context.Context, client *primitives.Client, id string, amount int) error {
	return client.Lock("example:record:"+id).Do(ctx, func(context.Context) error {
		balance := *accounts[id]
		*accounts[id] = balance + amount
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
	var deposits sync.WaitGroup
	errs := make(chan error, 20)
	for range 10 {
		deposits.Go(func() { errs <- deposit(ctx, client, "7", 10) })
		deposits.Go(func() { errs <- deposit(ctx, client, "8", 10) })
	}
	deposits.Wait()
	for range 20 {
		err = errors.Join(err, <-errs)
	}
	fmt.Println("account 7:", *accounts["7"])
	fmt.Println("account 8:", *accounts["8"])
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
