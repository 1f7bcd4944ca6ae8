// Command interval runs a job at most once per interval in a whole fleet.
//
// The lease of the lock is the interval. The process that acquires the lock runs the job and detaches
// the hold. The lock then stays in Redis until the lease ends, and nobody else can run the job.
//
// What is promised: the starts of two successful runs are at least an interval apart, by the clock of
// Redis and as long as Redis keeps the lock. A run that takes longer than the interval learns it: its
// context ends before another process can begin.
//
// What is not promised: a run in every interval. A process that dies after the acquisition leaves the
// interval without a run. An interval begins with a run, not at a full minute. After a failed run the
// lock is released, so another process tries again at once. See example cron for a job that must run.
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

const interval = 300 * time.Millisecond

func main() {
	url := flag.String("redis", "", "`URL` of a Redis server (default: a server inside this process)")
	flag.Parse()
	if err := run(context.Background(), *url); err != nil {
		log.Fatal(err)
	}
}

// oncePerInterval runs the job, unless a process of the fleet has run it within the last interval.
func oncePerInterval(ctx context.Context, lock *primitives.Lock, job func(*primitives.Hold) error) error {
	hold, err := lock.TryAcquire(ctx, primitives.WithLease(interval))
	if errors.Is(err, primitives.ErrNotAcquired) {
		return nil
	}
	if errors.Is(err, primitives.ErrLost) {
		return nil // the answer came after the lease: this interval is without a run
	}
	if err != nil {
		return err // Redis did not answer: nobody may have run the job, and the lock may be taken
	}
	if err := job(hold); err != nil {
		return errors.Join(err, hold.Release(ctx)) // another process may try now
	}
	hold.Detach() // not Release: the lock stays taken until the lease ends
	return nil
}

// run starts three processes that try all the time. It ends after four runs of the job.
func run(ctx context.Context, url string) error {
	rdb, err := connect(url)
	if err != nil {
		return err
	}
	defer rdb.Close()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	prices := &prices{began: time.Now(), enough: stop}
	var group sync.WaitGroup
	errs := make([]error, 3)
	for i := range errs {
		group.Go(func() { errs[i] = process(ctx, rdb, i+1, prices) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	fmt.Printf("%d processes ran the job %d times, never twice within %v.\n", len(errs), prices.runs, interval)
	return nil
}

// process is one process of the fleet. Its timer fires far more often than the job should run.
func process(ctx context.Context, rdb *redis.Client, number int, prices *prices) (err error) {
	client, err := primitives.New(rdb)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, client.Close(closing)) // waits for holds
	}()
	timer := time.NewTicker(10 * time.Millisecond)
	defer timer.Stop()
	for {
		err := oncePerInterval(ctx, client.Lock("example:interval"), func(hold *primitives.Hold) error {
			return prices.load(number, hold)
		})
		if err != nil {
			return err
		}
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// prices is what the job loads. Its mutex is for the end only: two runs never overlap.
type prices struct {
	began  time.Time
	enough func()

	mu    sync.Mutex
	runs  int
	until time.Time // the lease of the latest run
}

// load is the job. It checks that the interval of the run before is over.
func (p *prices) load(number int, hold *primitives.Hold) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if now.Before(p.until) {
		return errors.New("the job ran twice within an interval")
	}
	p.runs++
	p.until = hold.ValidUntil()
	fmt.Printf("After %d ms: process %d loads the prices.\n", now.Sub(p.began).Milliseconds(), number)
	if p.runs == 4 {
		p.enough()
	}
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
