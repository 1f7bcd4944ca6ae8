// Command jobs limits the number of jobs that run at the same time, over all processes. Typical
// reasons are a limited number of licenses, or a service that must not be overloaded.
//
// Each job holds a permit while it runs. The permit is renewed as long as the job runs. If a
// process dies, its permits return when their leases end.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

// limit is the number of jobs that may run at the same time.
const limit = 3

func main() {
	url := flag.String("redis", "", "`URL` of a Redis server (default: a server inside this process)")
	flag.Parse()
	if err := run(context.Background(), *url); err != nil {
		log.Fatal(err)
	}
}

// run starts two processes with six jobs each.
func run(ctx context.Context, url string) error {
	rdb, err := connect(url)
	if err != nil {
		return err
	}
	defer rdb.Close()
	renderer := &renderer{}
	var group sync.WaitGroup
	errs := make([]error, 2)
	for i := range errs {
		group.Go(func() { errs[i] = process(ctx, rdb, i+1, renderer) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	fmt.Printf("%d jobs are done. There were never more than %d at a time.\n", renderer.done.Load(), limit)
	return nil
}

// process is one process of the fleet. It starts all its jobs at once, and each waits for a permit.
func process(ctx context.Context, rdb *redis.Client, number int, renderer *renderer) (err error) {
	client, err := primitives.New(rdb)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, client.Close(closing)) // waits for holds
	}()
	permits := client.PermitExpirableSemaphore("example:jobs", primitives.WithWatchdog(10*time.Second))
	if err := permits.Resize(ctx, limit); err != nil { // every process sets the limit that it was configured with
		return err
	}
	var group sync.WaitGroup
	errs := make([]error, 6)
	for i := range errs {
		group.Go(func() {
			errs[i] = permits.Do(ctx, func(ctx context.Context) error {
				fmt.Printf("Process %d runs job %d.\n", number, i+1)
				return renderer.render(ctx)
			})
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// renderer does the jobs. It checks that there are not too many at a time.
type renderer struct{ running, done atomic.Int32 }

// render is a job. It ends early if it loses its permit.
func (r *renderer) render(ctx context.Context) error {
	if n := r.running.Add(1); n > limit {
		return fmt.Errorf("%d jobs run at the same time", n)
	}
	defer r.running.Add(-1)
	select {
	case <-time.After(50 * time.Millisecond):
		r.done.Add(1)
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
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
