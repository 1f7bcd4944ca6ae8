package primitives_test

import (
	"context"
	"fmt"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

// At most two reports are rendered at a time, across all processes.
func ExampleSemaphore() {
	client, done := exampleClient()
	defer done()
	ctx := context.Background()

	slots := client.Semaphore("report-slots")
	created, _ := slots.Init(ctx, 2) // every process calls Init: the first call counts
	fmt.Println("set:", created)

	err := slots.Do(ctx, func(ctx context.Context) error {
		info, err := slots.Info(ctx)
		fmt.Println("slots left while one report is rendered:", info.Available)
		return err
	}, primitives.WithWait(time.Minute))
	fmt.Println("error:", err)

	all, _ := slots.Acquire(ctx, primitives.WithPermits(2))
	_, err = slots.TryAcquire(ctx)
	fmt.Println(err)
	fmt.Println("released:", all.Release(ctx) == nil)
	// Output:
	// set: true
	// slots left while one report is rendered: 1
	// error: <nil>
	// redlatch: acquire semaphore "report-slots": not acquired (also held by this client)
	// released: true
}

// Processes share three licenses. The license of a process that crashes comes back when its lease
// ends. A license can be handed to another process.
func ExamplePermitExpirableSemaphore() {
	client, done := exampleClient()
	defer done()
	ctx := context.Background()

	licenses := client.PermitExpirableSemaphore("licenses", primitives.WithWatchdog(10*time.Second))
	_, _ = licenses.Init(ctx, 3)

	hold, err := licenses.Acquire(ctx) // renewed until it is released; a loss ends hold.Context()
	if err != nil {
		panic(err)
	}
	info, _ := licenses.Info(ctx)
	fmt.Printf("%d of %d left, held by us: %t\n", info.Available, info.Permits, info.Holders[0].ID == hold.ID())

	id := hold.Detach() // send the id to another process, which adopts the permit
	adopted, err := licenses.Adopt(ctx, id)
	fmt.Println("adopted:", err == nil, "under the same id:", adopted.ID() == id)
	fmt.Println("released:", adopted.Release(ctx) == nil)
	// Output:
	// 2 of 3 left, held by us: true
	// adopted: true under the same id: false
	// released: true
}

// The importer waits until both loaders are done.
func ExampleCountDownLatch() {
	client, done := exampleClient()
	defer done()
	ctx := context.Background()

	loaded := client.CountDownLatch("import:2024-05:loaded")
	_, _ = loaded.Init(ctx, 2)

	for range 2 { // in other processes
		go func() {
			if err := loaded.CountDown(ctx); err != nil {
				fmt.Println(err) // Count shows whether it was counted
			}
		}()
	}
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	fmt.Println("waited:", loaded.Wait(limited))
	left, _ := loaded.Count(ctx)
	fmt.Println("left:", left)
	// Output:
	// waited: <nil>
	// left: 0
}
