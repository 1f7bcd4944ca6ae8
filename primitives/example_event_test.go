package primitives_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

// The observer sees what happens to every hold. Here nobody else uses the lock.
func ExampleWithObserver() {
	client, done := exampleClient(primitives.WithObserver(func(e primitives.Event) {
		fmt.Println(e.Lock, e.Name, e.Kind)
	}))
	defer done()

	_ = client.Lock("orders:42").Do(context.Background(), func(context.Context) error {
		fmt.Println("shipping")
		return nil
	})
	// Output:
	// lock orders:42 acquired
	// shipping
	// lock orders:42 released
}

// An Event has what a log line or a trace needs: which lock, how long the caller waited, and why it
// gave up.
func ExampleEvent() {
	var events []primitives.Event // an observer may keep events
	client, done := exampleClient(primitives.WithObserver(func(e primitives.Event) { events = append(events, e) }))
	defer done()
	ctx := context.Background()
	lock := client.Lock("orders:42")
	hold, err := lock.Acquire(ctx)
	if err != nil {
		panic(err)
	}
	_, _ = lock.Acquire(ctx, primitives.WithWait(100*time.Millisecond))
	_ = hold.Release(ctx)

	for _, e := range events {
		if e.Kind == primitives.EventNotAcquired {
			fmt.Printf("%s: %s, waited for 100 ms: %t\n", e.Name, e.Outcome(), e.Waited >= 100*time.Millisecond)
		}
	}
	// Output:
	// orders:42: busy, waited for 100 ms: true
}

// A LossError says why a hold was lost. It is the cause of the hold's context.
func ExampleLossError() {
	client, done := exampleClient()
	defer done()
	ctx := context.Background()
	lock := client.Lock("orders:42")
	hold, err := lock.Acquire(ctx, primitives.WithLease(50*time.Millisecond))
	if err != nil {
		panic(err)
	}
	<-hold.Context().Done() // the section took too long
	if loss, ok := errors.AsType[*primitives.LossError](context.Cause(hold.Context())); ok {
		fmt.Println(loss.Kind, loss.Name, loss.Reason)
	}
	_ = hold.Release(ctx)
	// Output:
	// lock orders:42 limit
}

// A LossReason tells a lock that somebody has freed by force from one that Redis has forgotten.
func ExampleLossReason() {
	for _, reason := range []primitives.LossReason{
		primitives.LossExpired, primitives.LossPaused, primitives.LossGone, primitives.LossForced, primitives.LossLimit,
		primitives.LossMembers,
	} {
		fmt.Print(reason, " ")
	}
	// Output:
	// expired paused gone forced limit members
}

// An Outcome tells who ended an acquisition: another holder, the caller, or a failure. Other events
// have none.
func ExampleOutcome() {
	outcomes := map[primitives.Outcome]int{}
	client, done := exampleClient(primitives.WithObserver(func(e primitives.Event) { outcomes[e.Outcome()]++ }))
	defer done()
	ctx := context.Background()
	lock := client.Lock("orders:42")
	hold, err := lock.Acquire(ctx)
	if err != nil {
		panic(err)
	}
	_, _ = lock.TryAcquire(ctx)
	hasty, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	_, _ = lock.Acquire(hasty)
	_ = hold.Release(ctx)

	for _, outcome := range []primitives.Outcome{
		primitives.OutcomeAcquired, primitives.OutcomeBusy, primitives.OutcomeEnded, primitives.OutcomeError,
	} {
		fmt.Println(outcome, outcomes[outcome])
	}
	// Output:
	// acquired 1
	// busy 1
	// ended 1
	// error 0
}

// A counter for each kind of event is all that most dashboards need. Alert on EventLost.
func ExampleEventKind() {
	var mu sync.Mutex // events come from many goroutines at once
	counts := map[primitives.EventKind]int{}
	client, done := exampleClient(primitives.WithObserver(func(e primitives.Event) {
		mu.Lock()
		defer mu.Unlock()
		counts[e.Kind]++
	}))
	defer done()
	ctx := context.Background()
	lock := client.Lock("orders:42")
	err := lock.Do(ctx, func(ctx context.Context) error {
		_, err := lock.ForceRelease(ctx) // an operator thinks that the lock is stuck
		return errors.Join(err, lock.HoldFrom(ctx).Check(ctx))
	})
	fmt.Println("lost:", errors.Is(err, primitives.ErrLost))
	mu.Lock()
	defer mu.Unlock()
	for _, kind := range []primitives.EventKind{
		primitives.EventAcquired, primitives.EventReleased, primitives.EventLost,
	} {
		fmt.Println(kind, counts[kind])
	}
	// Output:
	// lost: true
	// acquired 1
	// released 0
	// lost 1
}

// An Error names the operation and the lock, for a log with fields.
func ExampleError() {
	client, done := exampleClient()
	defer done()
	ctx := context.Background()
	hold, err := client.FairLock("orders:42").Acquire(ctx)
	if err != nil {
		panic(err)
	}
	defer hold.Release(ctx)

	_, err = client.FairLock("orders:42").TryAcquire(ctx)
	if failed, ok := errors.AsType[*primitives.Error](err); ok {
		fmt.Printf("op=%s kind=%s name=%s busy=%t\n",
			failed.Op, failed.Kind, failed.Name, errors.Is(err, primitives.ErrNotAcquired))
	}
	// Output:
	// op=acquire kind=fair name=orders:42 busy=true
}
