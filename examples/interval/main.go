// Command interval runs a job at most once per interval in a whole fleet.
//
// The minimum hold of the lock is the interval: the lock stays taken for that long after its
// acquisition, however soon the job ends. The processes try as often as they like.
//
// What is promised: the starts of two runs are at least an interval apart, by the clock of Redis
// and as long as Redis keeps the lock. A run that takes longer than the interval keeps the lock
// until it ends.
//
// What is not promised: a run in every interval. A process that dies leaves the lock to its lease.
// An interval begins with a run, not at a full minute, and a failed run counts as one.
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
	lock := client.Lock("example:interval", primitives.WithMinHold(interval))
	for {
		tried := time.Now()
		_, err := lock.TryDo(ctx, func(context.Context) error { return prices.load(number, tried) })
		if err != nil && ctx.Err() == nil {
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
	until time.Time // the end of the interval of the latest run
}

// load is the job. It checks that the interval of the run before is over. The lock was tried at
// that time, so the interval begins no earlier.
func (p *prices) load(number int, tried time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if now.Before(p.until) {
		return errors.New("the job ran twice within an interval")
	}
	p.runs++
	p.until = tried.Add(interval)
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
