// Command migrate migrates a database once, although all pods start at the same time. All wait
// until it is done.
//
// Output:
//
//	the database goes from version 0 to 1
//	3 pods are ready
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

const version = 1 // that this program needs

var database int // the version of the database; tools such as goose keep it in a table

// migrate is called by each pod when it starts. Who comes later finds the work done.
func migrate(ctx context.Context, client *primitives.Client) error {
	return client.Lock("example:migrate").Do(ctx, func(context.Context) error { // a lost lock ends this context
		if database == version {
			return nil
		}
		fmt.Println("the database goes from version", database, "to", version)
		database = version // and in a transaction that uses the context
		return nil
	}, primitives.WithWait(5*time.Minute)) // for as long as a migration may take
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
	pods := make(chan error, 3)
	for range cap(pods) {
		go func() { pods <- migrate(ctx, client) }()
	}
	for range cap(pods) {
		err = errors.Join(err, <-pods)
	}
	if err != nil {
		return err
	}
	fmt.Println(cap(pods), "pods are ready")
	return client.Close(ctx)
}

// connect returns a client of the Redis at $REDIS_ADDR, or of one inside this process.
func connect() *redis.Client {
	addr := os.Getenv("REDIS_ADDR")
	if addr == "" {
		return redis.NewClient(locktest.Start().Options())
	}
	return redis.NewClient(&redis.Options{Addr: addr})
}
