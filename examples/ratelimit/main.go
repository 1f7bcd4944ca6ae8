// Command ratelimit limits the calls of a whole fleet to an API: at most 5 in any 500 ms.
//
// A call takes a permit whose lease is the window, and does not give it back: it detaches the hold.
// The permit returns when its lease ends, so the number of permits is the number of calls per
// window, and the window slides: there is no burst at the turn of a second. Callers wait until a
// permit returns.
//
// What is limited is the acquisition of permits, by the clock of Redis. A process that is paused
// between the acquisition and its call makes that call later.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

const (
	limit  = 5
	window = 500 * time.Millisecond
)

func main() {
	url := flag.String("redis", "", "`URL` of a Redis server (default: a server inside this process)")
	flag.Parse()
	if err := run(context.Background(), *url); err != nil {
		log.Fatal(err)
	}
}

// run starts three processes that make four calls each.
func run(ctx context.Context, url string) error {
	rdb, err := connect(url)
	if err != nil {
		return err
	}
	defer rdb.Close()
	api := &api{began: time.Now()}
	var group sync.WaitGroup
	errs := make([]error, 3)
	for i := range errs {
		group.Go(func() { errs[i] = process(ctx, rdb, i+1, api) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	took := time.Since(api.began).Milliseconds()
	fmt.Printf("%d calls took %d ms. There were never more than %d in %v.\n", len(api.calls), took, limit, window)
	return nil
}

// process is one process of the fleet. Each of its calls waits for a permit.
func process(ctx context.Context, rdb *redis.Client, number int, api *api) (err error) {
	client, err := primitives.New(rdb)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, client.Close(closing)) // waits for holds
	}()
	permits := client.PermitExpirableSemaphore("example:ratelimit", primitives.WithLease(window))
	if err := permits.Resize(ctx, limit); err != nil { // every process sets the limit that it was configured with
		return err
	}
	for range 4 {
		hold, err := permits.Acquire(ctx)
		if err != nil {
			return err
		}
		until := hold.ValidUntil()
		hold.Detach() // not Release: the permit returns when its lease ends, not when the call does
		if err := api.call(number, until); err != nil {
			return err
		}
	}
	return nil
}

// api is the service that must not get too many calls.
type api struct {
	began time.Time

	mu    sync.Mutex
	calls []time.Time // until when the permit of each call is out
}

// call checks that fewer than limit calls before this one still have their permits.
func (a *api) call(number int, until time.Time) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, out := time.Now(), 0
	for _, until := range a.calls {
		if now.Before(until) {
			out++
		}
	}
	if out >= limit {
		return fmt.Errorf("%d calls in one window", out+1)
	}
	a.calls = append(a.calls, until)
	fmt.Printf("After %d ms: process %d calls the API.\n", now.Sub(a.began).Milliseconds(), number)
	return nil
}

// connect returns a client of the Redis server at url, or of a new server inside this process.
func connect(url string) (*redis.Client, error) {
	if url == "" {
		return redis.NewClient(locktest.Start().Options()), nil
	}
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	return redis.NewClient(options), nil
}
