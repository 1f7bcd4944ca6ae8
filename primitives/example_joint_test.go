package primitives_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

// The storage refuses a token smaller than one it has seen. A holder that writes after the loss of
// its lock does no harm.
func ExampleClient_FencedLock() {
	client, done := exampleClient()
	defer done()
	ctx := context.Background()

	seen := int64(0)
	write := func(token int64, what string) {
		if token < seen {
			fmt.Println(what, "refused")
			return
		}
		seen = token
		fmt.Println(what, "written")
	}

	report := client.FencedLock("report")
	slow, _ := report.Acquire(ctx, primitives.WithLease(20*time.Millisecond)) // its process is then paused
	next, err := report.Acquire(ctx)
	if err != nil {
		panic(err)
	}
	fmt.Println("a later token is greater:", next.Token() > slow.Token())
	write(next.Token(), "the next holder's report")
	write(slow.Token(), "the slow holder's report")
	fmt.Println("lost:", errors.Is(slow.Release(ctx), primitives.ErrLost))
	_ = next.Release(ctx)
	// Output:
	// a later token is greater: true
	// the next holder's report written
	// the slow holder's report refused
	// lost: true
}

// A transfer needs both accounts. Opposite transfers acquire them in the same order, so they cannot
// deadlock.
func ExampleNewMultiLock() {
	client, done := exampleClient()
	defer done()
	ctx := context.Background()

	transfer := func(from, to string) error {
		both := primitives.NewMultiLock([]*primitives.Lock{client.Lock(from), client.Lock(to)})
		return both.Do(ctx, func(ctx context.Context) error {
			// With this ctx each account can be locked again: the lock is reentrant.
			return client.Lock(from).Do(ctx, func(context.Context) error {
				fmt.Println(from, "->", to, "under", both.Name())
				return nil
			})
		}, primitives.WithWait(time.Second))
	}
	fmt.Println(transfer("account:b", "account:a"))
	fmt.Println(transfer("account:a", "account:b"))
	// Output:
	// account:b -> account:a under account:a,account:b
	// <nil>
	// account:a -> account:b under account:a,account:b
	// <nil>
}

// A leader is elected on three independent servers, although one of them is down.
func ExampleNewRedLock() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var locks []*primitives.Lock
	for i := range 3 {
		server := locktest.Start()
		defer server.Close()
		rdb := redis.NewClient(server.Options())
		defer rdb.Close()
		client, err := primitives.New(rdb)
		if err != nil {
			panic(err)
		}
		defer client.Close(ctx)
		locks = append(locks, client.Lock("leader"))
		if i == 2 {
			_ = client.Close(ctx) // simulates a server that is down
		}
	}

	leader := primitives.NewRedLock(locks, primitives.WithWatchdog(10*time.Second))
	hold, err := leader.Acquire(ctx)
	if err != nil {
		panic(err)
	}
	fmt.Println("elected by two of three")
	fmt.Println("valid for more than 9 s:", time.Until(hold.ValidUntil()) > 9*time.Second)
	fmt.Println("released:", hold.Release(ctx) == nil)
	// Output:
	// elected by two of three
	// valid for more than 9 s: true
	// released: true
}

// A fixed number of locks protects any number of customers.
func ExampleStriped() {
	client, done := exampleClient()
	defer done()
	ctx := context.Background()

	customers := client.Striped("customers", 16)
	err := customers.Lock("customer 4711").Do(ctx, func(context.Context) error {
		fmt.Println("held:", customers.Lock("customer 4711").Name())
		return nil
	})
	fmt.Println(err)
	// Output:
	// held: customers:4
	// <nil>
}
