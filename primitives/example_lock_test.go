package primitives_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

// Do runs a function while the lock is held. Functions that it calls can acquire the lock again
// with its context.
func ExampleClient_Lock() {
	client, done := exampleClient()
	defer done()
	ctx := context.Background()

	orders := client.Lock("orders:42")
	err := orders.Do(ctx, func(ctx context.Context) error {
		fmt.Println("shipping, depth", orders.HoldFrom(ctx).Depth())

		inner, err := orders.Acquire(ctx) // nests
		if err != nil {
			return err
		}
		fmt.Println("billing, depth", inner.Depth())
		if err := inner.Release(ctx); err != nil {
			return err
		}

		_, err = orders.TryAcquire(context.Background()) // another owner, although in the same process
		fmt.Println("refused:", errors.Is(err, primitives.ErrNotAcquired))
		return nil
	})
	fmt.Println("shipped:", err == nil)
	// Output:
	// shipping, depth 1
	// billing, depth 2
	// refused: true
	// shipped: true
}

// Acquire is the open form of Do. It distinguishes a busy lock from a failure.
func ExampleLock() {
	client, done := exampleClient()
	defer done()
	ctx := context.Background()

	ship := func(lock *primitives.Lock) error {
		hold, err := lock.Acquire(ctx, primitives.WithWait(500*time.Millisecond))
		switch {
		case errors.Is(err, primitives.ErrNotAcquired):
			fmt.Println("somebody else ships it")
			return nil
		case err != nil:
			return err // such as: Redis is unreachable
		}
		defer hold.Release(ctx)    // works even if ctx is done
		work := hold.Context()     // ends if the lock is lost
		fmt.Println("shipping it") // with this context
		return work.Err()
	}
	order := client.Lock("orders:42")
	fmt.Println(ship(order))

	other, _ := order.Acquire(ctx)
	fmt.Println(ship(order))
	fmt.Println(other.Release(ctx))
	// Output:
	// shipping it
	// <nil>
	// somebody else ships it
	// <nil>
	// <nil>
}

// One process detaches its hold and sends the id to another process, which adopts the lock. Nobody
// else can acquire the lock in between.
func ExampleLock_Adopt() {
	rdb, done := openExample()
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	web, _ := primitives.New(rdb) // two processes
	defer web.Close(ctx)
	worker, _ := primitives.New(rdb)
	defer worker.Close(ctx)

	hold, err := web.Lock("video:7").Acquire(ctx)
	if err != nil {
		panic(err)
	}
	id := hold.Detach() // nothing renews the lock now: it is taken until its lease ends
	_, err = web.Lock("video:7").TryAcquire(ctx)
	fmt.Println("busy:", errors.Is(err, primitives.ErrNotAcquired))

	adopted, err := worker.Lock("video:7").Adopt(ctx, id) // renewed again
	if err != nil {
		panic(err)
	}
	fmt.Println("released:", adopted.Release(ctx) == nil)
	// Output:
	// busy: true
	// released: true
}

// Equal owner ids are one holder, in whichever process they are used, so a job that continues after
// a crash gets its lock again at once, without waiting for the old lease.
func ExampleWithOwner() {
	rdb, done := openExample()
	defer done()
	ctx := context.Background()
	before, _ := primitives.New(rdb)
	after, _ := primitives.New(rdb)
	defer after.Close(ctx)

	owner := primitives.WithOwner("job-2024-05")
	if _, err := before.Lock("import").Acquire(ctx, owner, primitives.WithLease(time.Minute)); err != nil {
		panic(err)
	}
	// The process crashes here, and is started again.
	crashed, cancel := context.WithCancel(ctx)
	cancel()
	_ = before.Close(crashed) // leaves its holds to their leases
	hold, err := after.Lock("import").TryAcquire(ctx, owner)
	fmt.Println("acquired again:", err == nil)
	_, err = after.Lock("import").TryAcquire(ctx) // any other owner
	fmt.Println("busy:", errors.Is(err, primitives.ErrNotAcquired))

	// Both holds are counted: ReleaseID gives back the one that the crash left behind.
	fmt.Println(after.Lock("import").ReleaseID(ctx, hold.ID()), hold.Release(ctx))
	// Output:
	// acquired again: true
	// busy: true
	// <nil> <nil>
}

// Goroutines of one process pass a contended lock on among themselves, for up to 5 ms, without
// asking Redis.
func ExampleWithCohort() {
	client, done := exampleClient()
	defer done()
	ctx := context.Background()

	article := client.Lock("article:4711", primitives.WithCohort(5*time.Millisecond))
	stock := 100 // guarded by the lock
	var group sync.WaitGroup
	for range 100 {
		group.Go(func() {
			err := article.Do(ctx, func(context.Context) error {
				stock--
				return nil
			})
			if err != nil {
				fmt.Println(err)
			}
		})
	}
	group.Wait()
	fmt.Println("left:", stock)
	// Output:
	// left: 0
}

// Cron starts a nightly job on two hosts, whose clocks differ by some seconds. The job takes a
// moment, but its lock stays taken for ten minutes, so it runs once.
func ExampleWithMinHold() {
	client, done := exampleClient()
	defer done()
	ctx := context.Background()

	nightly := client.Lock("nightly", primitives.WithMinHold(10*time.Minute), primitives.WithWait(0))
	for _, host := range []string{"host 1", "host 2"} {
		err := nightly.Do(ctx, func(context.Context) error {
			fmt.Println(host, "sends the report")
			return nil
		})
		if errors.Is(err, primitives.ErrNotAcquired) {
			fmt.Println(host, "has nothing to do")
		}
	}
	// Output:
	// host 1 sends the report
	// host 2 has nothing to do
}

// The context of a hold ends when the lock is lost, here because an operator has freed it by force.
func ExampleHold() {
	client, done := exampleClient()
	defer done()
	ctx := context.Background()
	lock := client.Lock("backup")
	hold, err := lock.Acquire(ctx)
	if err != nil {
		panic(err)
	}
	fmt.Println("depth", hold.Depth(), "valid", time.Now().Before(hold.ValidUntil()))
	fmt.Println("still held:", hold.Check(ctx) == nil) // asks Redis

	_, _ = lock.ForceRelease(ctx)
	fmt.Println("still held:", hold.Check(ctx) == nil)
	<-hold.Context().Done()
	fmt.Println("lost:", errors.Is(context.Cause(hold.Context()), primitives.ErrLost))
	fmt.Println(hold.Release(ctx))
	// Output:
	// depth 1 valid true
	// still held: true
	// still held: false
	// lost: true
	// redlatch: release lock "backup": lost: gone: Redis does not have this hold any longer
}

// A job that should run at most once a minute in a whole fleet: the lease is the minute, and nobody
// ends it early.
func ExampleHold_Detach() {
	client, done := exampleClient()
	defer done()
	ctx := context.Background()

	for range 3 { // in several processes
		hold, err := client.Lock("prices").TryAcquire(ctx, primitives.WithLease(time.Minute))
		if errors.Is(err, primitives.ErrNotAcquired) {
			fmt.Println("loaded within the last minute")
			continue
		}
		if err != nil {
			panic(err)
		}
		fmt.Println("loading the prices")
		hold.Detach() // not Release
	}
	// Output:
	// loading the prices
	// loaded within the last minute
	// loaded within the last minute
}

// Code that takes a sync.Locker can lock a whole fleet.
func ExampleLocker() {
	client, done := exampleClient()
	defer done()

	mu := client.Lock("cache").Locker(context.Background()) // share it among goroutines
	full := false
	filled := sync.NewCond(mu)
	mu.Lock()
	go func() {
		mu.Lock()
		full = true
		mu.Unlock()
		filled.Signal()
	}()
	for !full {
		filled.Wait() // unlocks, waits and locks again
	}
	mu.Unlock()
	fmt.Println("full:", full)
	// Output:
	// full: true
}
