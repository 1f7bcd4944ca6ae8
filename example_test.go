package redlatch_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

// A whole program. It uses a server inside its own process; with a real one, the options are
// &redis.Options{Addr: "localhost:6379"}.
func Example() {
	server := locktest.Start()
	defer server.Close()
	rdb := redis.NewClient(server.Options())
	defer rdb.Close()
	client, err := primitives.New(rdb)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	defer client.Close(ctx) // waits for holds until ctx ends

	orders := client.Lock("orders:42")
	err = orders.Do(ctx, func(ctx context.Context) error {
		fmt.Println("shipping order 42")
		return nil // long work watches ctx: it ends if the lock is lost
	}, primitives.WithWait(2*time.Second))
	switch {
	case errors.Is(err, primitives.ErrNotAcquired):
		fmt.Println("somebody else ships it:", err)
	case errors.Is(err, primitives.ErrLost):
		fmt.Println("the lock was lost while we shipped:", err)
	case err != nil:
		fmt.Println("shipping failed:", err)
	}
	// Output: shipping order 42
}
