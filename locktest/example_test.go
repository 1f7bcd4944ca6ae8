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

// What an Example has instead of a test's t.
var t = &testing.T{}

// ship is the code under test: it works as long as it has the lock.
func ship(ctx context.Context, orders *primitives.Lock, begun chan<- *primitives.Hold) error {
	return orders.Do(ctx, func(ctx context.Context) error {
		begun <- orders.HoldFrom(ctx)
		<-ctx.Done() // a long piece of work, which minds its context
		return context.Cause(ctx)
	})
}

// Does the code stop when the lock is lost? In a test: s := locktest.NewServer(t), s.Client(t).
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

// Does the code stop in time when Redis is out of reach? A lease of 30 s passes in a moment in a bubble:
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
	err = <-result // while nobody reaches Redis
	s.Partition(false)
	fmt.Println("lost:", errors.Is(err, primitives.ErrLost))
	// Output:
	// lost: true
}
