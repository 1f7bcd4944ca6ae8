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
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	defer client.Close(ctx)

	begun, result := make(chan *primitives.Hold), make(chan error)
	go func() { result <- ship(context.Background(), client.Lock("orders:42"), begun) }()
	s.Lose(t, <-begun)
	fmt.Println("lost:", errors.Is(<-result, primitives.ErrLost))
	// Output:
	// lost: true
}

// This example checks what a leader does when somebody else takes its election, without its hold at
// hand.
func ExampleServer_LoseName() {
	s := locktest.Start()
	defer s.Close()
	rdb := redis.NewClient(s.Options())
	defer rdb.Close()
	client, err := primitives.New(rdb)
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	defer client.Close(ctx)

	leads, ended := make(chan struct{}), make(chan error)
	standing, quit := context.WithCancel(ctx)
	go func() {
		_ = client.Election("scheduler").Run(standing, func(ctx context.Context, _ primitives.Term) error {
			close(leads)
			<-ctx.Done() // it schedules until its term ends
			quit()
			ended <- context.Cause(ctx)
			return nil
		})
	}()
	<-leads
	s.LoseName(t, "scheduler")
	fmt.Println("deposed:", errors.Is(<-ended, primitives.ErrLost))
	// Output:
	// deposed: true
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
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	defer client.Close(ctx)

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

// This example cuts one of two clients off. The other one acquires the lock when it has expired,
// and by then the first one knows of its loss.
func ExampleLink() {
	s := locktest.Start()
	defer s.Close()
	ctx := context.Background()
	connect := func(dial locktest.Dial) (*primitives.Client, func()) {
		o := s.Options()
		o.Dialer = dial
		rdb := redis.NewClient(o)
		client, err := primitives.New(rdb, primitives.WithDefaults(primitives.WithWatchdog(300*time.Millisecond)))
		if err != nil {
			panic(err)
		}
		return client, func() {
			_ = client.Close(ctx)
			_ = rdb.Close()
		}
	}
	link := locktest.NewLink(s.Options().Dialer)
	first, closeFirst := connect(link.Dial)
	defer closeFirst()
	second, closeSecond := connect(s.Options().Dialer)
	defer closeSecond()

	theirs, err := first.Lock("orders:42").Acquire(ctx)
	if err != nil {
		panic(err)
	}
	link.Cut()
	defer link.Mend()
	ours, err := second.Lock("orders:42").Acquire(ctx)
	if err != nil {
		panic(err)
	}
	defer ours.Release(ctx)
	fmt.Println("the first one knows:", errors.Is(context.Cause(theirs.Context()), primitives.ErrLost))
	// Output:
	// the first one knows: true
}

// A link works in front of any server that go-redis can dial, such as a real Redis.
func ExampleDial() {
	s := locktest.Start()
	defer s.Close()
	// Addr may be that of a real Redis. Commands end with their context rather than after
	// ReadTimeout.
	o := &redis.Options{Addr: s.Addr(), ContextTimeoutEnabled: true}

	var dial locktest.Dial = redis.NewDialer(o)
	link := locktest.NewLink(dial)
	o.Dialer = link.Dial
	rdb := redis.NewClient(o)
	defer rdb.Close()
	fmt.Println(rdb.Ping(context.Background()).Val())

	link.Cut()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	fmt.Println(rdb.Get(ctx, "key").Err())
	// Output:
	// PONG
	// context deadline exceeded
}
