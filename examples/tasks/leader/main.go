// Command leader runs a loop in one process at a time, and hands over at once when that process
// gets SIGTERM.
//
// Output:
//
//	replica 1 leads
//	replica 1 gets SIGTERM, and stops
//	replica 2 leads
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

// stand is the main loop of a replica. It returns when ctx ends.
func stand(ctx context.Context, client *primitives.Client, lead func(ctx context.Context) error) error {
	err := client.Election("example:leader").Run(ctx, func(ctx context.Context, _ primitives.Term) error {
		return lead(ctx) // ctx ends if the leadership is lost, too
	})
	if errors.Is(err, context.Canceled) {
		return nil // ctx has ended while another replica was leading
	}
	return err
}

func main() {
	err := run(context.Background())
	if err != nil {
		log.Fatal(err)
	}
}
func run(ctx context.Context) error {
	client, err := primitives.New(connect()) // each replica is a process with a client of its own
	if err != nil {
		return err
	}
	term, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	err = stand(term, client, func(ctx context.Context) error {
		fmt.Println("replica 1 leads")
		self, err := os.FindProcess(os.Getpid())
		if err != nil {
			return err
		}
		err = self.Signal(syscall.SIGTERM) // as Kubernetes does
		<-ctx.Done()                       // a leader works until then
		fmt.Println("replica 1 gets SIGTERM, and stops")
		return err
	})
	if err != nil {
		return err
	}
	next, end := context.WithCancel(ctx)
	err = stand(next, client, func(context.Context) error {
		fmt.Println("replica 2 leads")
		end()
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
