// Command timeline writes what happens to locks to a file, from which "redlatch timeline" draws
// what several processes did.
//
// Output:
//
//	order 42 is shipped
//	go run ./cmd/redlatch timeline --text /tmp/locks-123/shop.jsonl
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/eventlog"
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
	dir, err := os.MkdirTemp("", "locks-") // a service uses a folder that stays, such as /var/log/shop
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "shop.jsonl") // each process needs a file of its own
	events, err := eventlog.Open(file, eventlog.WithProcess("shop@host-1"))
	if err != nil {
		return err
	}
	client, err := primitives.New(connect(), primitives.WithObserver(events.Observe))
	if err != nil {
		return err
	}
	err = client.Lock("example:timeline:42").Do(ctx, func(context.Context) error {
		fmt.Println("order 42 is shipped")
		return nil
	})
	err = errors.Join(err, client.Close(ctx), events.Close()) // the file last
	if err != nil {
		return err
	}
	fmt.Println("go run ./cmd/redlatch timeline --text", file)
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
