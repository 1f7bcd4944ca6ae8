package primitives_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

// openExample starts a server inside the process. A program calls redis.NewClient instead.
func openExample() (rdb *redis.Client, done func()) {
	s := locktest.Start()
	rdb = redis.NewClient(s.Options())
	return rdb, func() {
		_ = rdb.Close()
		s.Close()
	}
}

// exampleClient returns a client as ExampleNew makes it.
func exampleClient(opts ...primitives.ClientOption) (client *primitives.Client, done func()) {
	rdb, closeRedis := openExample()
	client, err := primitives.New(rdb, opts...)
	if err != nil {
		panic(err)
	}
	return client, func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = client.Close(ctx)
		closeRedis()
	}
}

// A process that ends gives its holds 10 s to be released. Holds that are left then are no longer
// renewed, and their locks become free when their leases end.
func ExampleClient_Close() {
	client, done := exampleClient()
	defer done()
	ctx := context.Background()
	hold, err := client.Lock("orders:42").Acquire(ctx)
	if err != nil {
		panic(err)
	}
	go func() {
		<-time.After(10 * time.Millisecond) // the work
		_ = hold.Release(ctx)
	}()

	atMost, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	fmt.Println("all released:", client.Close(atMost) == nil)
	// Output:
	// all released: true
}

// A process makes one client, with the defaults for all its locks, and shares it. This example uses
// a server inside the process. A program passes its own go-redis client.
func ExampleNew() {
	server := locktest.Start()
	defer server.Close()
	rdb := redis.NewClient(server.Options()) // elsewhere &redis.Options{Addr: "localhost:6379"}
	defer rdb.Close()

	client, err := primitives.New(rdb,
		primitives.WithPrefix("shop:"),
		primitives.WithClientName("checkout-7"),
		primitives.WithLogger(slog.New(slog.NewTextHandler(os.Stderr, nil))),
		primitives.WithDefaults(primitives.WithWait(5*time.Second)),
	)
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	defer client.Close(ctx) // waits for the holds, until ctx ends

	err = client.Lock("orders:42").Do(ctx, func(ctx context.Context) error {
		held, err := rdb.Exists(ctx, "shop:orders:42").Result()
		fmt.Println("keys:", held)
		return err
	})
	fmt.Println("error:", err)
	// Output:
	// keys: 1
	// error: <nil>
}

// Options have three scopes. The call's are nearest and win over the handle's, and these win over
// the client's defaults.
func ExampleOption() {
	client, done := exampleClient(primitives.WithDefaults(primitives.WithWait(time.Minute)))
	defer done()
	ctx := context.Background()

	lock := client.Lock("report", primitives.WithWatchdog(10*time.Second))
	hold, err := lock.Acquire(ctx, primitives.WithLease(time.Hour)) // not renewed
	if err != nil {
		panic(err)
	}
	defer hold.Release(ctx)
	fmt.Println("valid for more than 50 minutes:", time.Until(hold.ValidUntil()) > 50*time.Minute)

	_, err = lock.Acquire(ctx, primitives.WithWait(10*time.Millisecond)) // not a minute
	fmt.Println("busy:", errors.Is(err, primitives.ErrNotAcquired))
	// Output:
	// valid for more than 50 minutes: true
	// busy: true
}

// An acquisition that too few replicas have confirmed is rolled back. The server of this example
// has no replica.
func ExampleWithReplicas() {
	client, done := exampleClient(primitives.WithReplicas(1, 100*time.Millisecond))
	defer done()
	ctx := context.Background()

	payments := client.Lock("payments")
	_, err := payments.Acquire(ctx)
	fmt.Println(err)
	info, _ := payments.Info(ctx)
	fmt.Println("holders:", len(info.Holders))
	// Output:
	// redlatch: acquire lock "payments": not replicated: 0 of 1 replicas confirmed
	// holders: 0
}

// An operator asks which locks of orders are held, and by whom.
func ExampleClient_Locks() {
	client, done := exampleClient()
	defer done()
	ctx := context.Background()
	for _, lock := range []*primitives.Lock{
		client.Lock("orders:42"), client.RWLock("orders:43").Reader(), client.Lock("invoices"),
	} {
		hold, err := lock.Acquire(ctx)
		if err != nil {
			panic(err)
		}
		defer hold.Release(ctx)
	}

	var held []string
	for info, err := range client.Locks(ctx, "orders:*") {
		if err != nil {
			panic(err)
		}
		held = append(held, fmt.Sprintf("%s is a %s with %d holder", info.Name, info.Kind, len(info.Holders)))
	}
	slices.Sort(held) // Locks has no order
	for _, line := range held {
		fmt.Println(line)
	}
	// Output:
	// orders:42 is a lock with 1 holder
	// orders:43 is a reader with 1 holder
}

// An operator looks at a name of unknown kind.
func ExampleClient_Inspect() {
	client, done := exampleClient()
	defer done()
	ctx := context.Background()
	if _, err := client.CountDownLatch("import").Init(ctx, 3); err != nil {
		panic(err)
	}
	hold, err := client.FencedLock("report").Acquire(ctx)
	if err != nil {
		panic(err)
	}
	defer hold.Release(ctx)

	for _, name := range []string{"import", "report", "nothing"} {
		info, err := client.Inspect(ctx, name)
		if err != nil {
			panic(err)
		}
		switch info.Kind {
		case "":
			fmt.Printf("%s: nothing\n", name)
		case "integer":
			fmt.Printf("%s: %d\n", name, info.Permits)
		default:
			fmt.Printf("%s: %s, %d holder, token %d\n", name, info.Kind, len(info.Holders), info.Token)
		}
	}
	// Output:
	// import: 3
	// report: fenced, 1 holder, token 1
	// nothing: nothing
}

// A monitor lists the semaphores and latches.
func ExampleClient_Numbers() {
	client, done := exampleClient()
	defer done()
	ctx := context.Background()
	_, _ = client.Semaphore("slots:reports").Init(ctx, 4)
	_, _ = client.CountDownLatch("import").Init(ctx, 3)

	for info, err := range client.Numbers(ctx, "slots:*") {
		if err != nil {
			panic(err)
		}
		fmt.Println(info.Name, info.Available)
	}
	// Output:
	// slots:reports 4
}

// Info says how busy a semaphore is.
func ExampleInfo() {
	client, done := exampleClient()
	defer done()
	ctx := context.Background()
	licenses := client.PermitExpirableSemaphore("licenses")
	_, _ = licenses.Init(ctx, 5)
	hold, err := licenses.Acquire(ctx, primitives.WithPermits(2))
	if err != nil {
		panic(err)
	}
	defer hold.Release(ctx)

	info, err := licenses.Info(ctx)
	if err != nil {
		panic(err)
	}
	fmt.Printf("%d of %d licenses are free, %d are out\n", info.Available, info.Permits, len(info.Holders))
	// Output:
	// 3 of 5 licenses are free, 2 are out
}

// A Waiter is a client that waits. It writes that once it has waited for about 100 ms.
func ExampleWaiter() {
	client, done := exampleClient(primitives.WithClientName("worker-3"))
	defer done()
	ctx := context.Background()
	lock := client.Lock("migration")
	hold, err := lock.Acquire(ctx)
	if err != nil {
		panic(err)
	}
	waited := make(chan error)
	go func() { waited <- lock.Do(ctx, func(context.Context) error { return nil }) }()

	var waiters []primitives.Waiter
	for len(waiters) == 0 {
		waiting, err := client.Waiting(ctx)
		if err != nil {
			panic(err)
		}
		waiters = waiting["migration"]
	}
	fmt.Printf("%s waits, and its id is the client's: %t\n", waiters[0].Client, waiters[0].ID == client.ID())
	_ = hold.Release(ctx)
	if err := <-waited; err != nil {
		panic(err)
	}
	// Output:
	// worker-3 waits, and its id is the client's: true
}

// A Holder says which process holds a lock. A client writes its name once it has held for about 100
// ms.
func ExampleHolder() {
	client, done := exampleClient(primitives.WithClientName("worker-3"))
	defer done()
	ctx := context.Background()
	lock := client.Lock("migration")
	hold, err := lock.Acquire(ctx)
	if err != nil {
		panic(err)
	}
	defer hold.Release(ctx)

	var holder primitives.Holder
	for holder.Client == "" {
		info, err := lock.Info(ctx)
		if err != nil {
			panic(err)
		}
		holder = info.Holders[0]
	}
	fmt.Printf("%s holds it %d time, and its id is the hold's: %t\n", holder.Client, holder.Count, holder.ID == hold.ID())
	// Output:
	// worker-3 holds it 1 time, and its id is the hold's: true
}
