// Command loss stops its work when its lock is lost, before anybody else can acquire the lock.
//
// Output:
//
//	the job begins
//	the network is cut
//	the job stops: the lock was lost: expired
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

func main() {
	err := run(context.Background())
	if err != nil {
		log.Fatal(err)
	}
}
func run(ctx context.Context) error {
	options := server()
	network := locktest.NewLink(redis.NewDialer(options)) // a network that this program can cut
	options.Dialer = network.Dial
	client, err := primitives.New(redis.NewClient(options))
	if err != nil {
		return err
	}
	lock := client.Lock("example:loss", primitives.WithWatchdog(time.Second))
	err = lock.Do(ctx, func(ctx context.Context) error {
		fmt.Println("the job begins")
		network.Cut()
		fmt.Println("the network is cut")
		<-ctx.Done() // pass ctx to queries and requests, and look at ctx.Err() in loops
		return context.Cause(ctx)
	})
	network.Mend()
	loss, isLoss := errors.AsType[*primitives.LossError](err)
	if !isLoss {
		return err
	}
	fmt.Println("the job stops: the lock was lost:", loss.Reason)
	return client.Close(ctx)
}

// server returns the options for the Redis at $REDIS_ADDR, or for one inside this process.
func server() *redis.Options {
	addr := os.Getenv("REDIS_ADDR")
	if addr == "" {
		addr = locktest.Start().Addr()
	}
	return &redis.Options{Addr: addr}
}
