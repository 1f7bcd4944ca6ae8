package locktest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

// t replaces the *testing.T of a test: an Example has none.
var t = &testing.T{}

// ship is the code under test: it works until the lock is lost.
func ship(ctx context.Context, orders *primitives.Lock, begun chan<- *primitives.Hold) error {
	return orders.Do(ctx, func(ctx context.Context) error {
		begun <- orders.HoldFrom(ctx)
		<-ctx.Done() // long work that watches its context
		return context.Cause(ctx)
	})
}

// This example checks that code stops when it loses its lock. A test would use
// locktest.NewServer(t) and s.Client(t).
func ExampleServer_Lose() {
	s := locktest.Start()
	defer s.Close()
	rdb := redis.NewClient(s.Options())
	defer rdb.Close()
	client, err := primitives.New(rdb)
	if err != nil {
		panic(err)
	}
	defer client.Close(context.Background())

	begun, result := make(chan *primitives.Hold), make(chan error)
	go func() { result <- ship(context.Background(), client.Lock("orders:42"), begun) }()
	s.Lose(t, <-begun)
	fmt.Println("lost:", errors.Is(<-result, primitives.ErrLost))
	// Output:
	// lost: true
}

// This example checks that code stops in time when Redis is unreachable. In a synctest bubble a
// lease of 30 s passes at once:
//
//	synctest.Test(t, func(t *testing.T) {
//		s := locktest.NewServer(t)
//		...
//	})
func ExampleServer_Partition() {
	s := locktest.Start()
	defer s.Close()
	rdb := redis.NewClient(s.Options())
	defer rdb.Close()
	client, err := primitives.New(rdb, primitives.WithDefaults(primitives.WithWatchdog(300*time.Millisecond)))
	if err != nil {
		panic(err)
	}
	defer client.Close(context.Background())

	begun, result := make(chan *primitives.Hold), make(chan error)
	go func() { result <- ship(context.Background(), client.Lock("orders:42"), begun) }()
	<-begun
	s.Partition(true)
	err = <-result // the link is still cut
	s.Partition(false)
	fmt.Println("lost:", errors.Is(err, primitives.ErrLost))
	// Output:
	// lost: true
}
