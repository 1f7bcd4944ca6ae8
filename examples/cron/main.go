// Command cron runs a job once per tick in a whole fleet, although every process has a timer for
// it.
//
// Each process tries to run the job under the lock, and skips the tick if another process has it.
// The minimum hold keeps the lock taken after the job has ended, so a process whose timer is late
// skips the tick, too.
//
// A job that fails is not repeated before the next tick. If that matters, keep a record of what is
// done, and read it under the lock.
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

func main() {
	url := flag.String("redis", "", "`URL` of a Redis server (default: a server inside this process)")
	flag.Parse()
	if err := run(context.Background(), *url); err != nil {
		log.Fatal(err)
	}
}

// minHold is longer than the clocks of the processes differ, and shorter than the time between two
// ticks.
const minHold = 2 * time.Second

// run starts three processes. Their timers fire at one tick, and the timer of a fourth process
// fires late.
func run(ctx context.Context, url string) error {
	rdb, err := connect(url)
	if err != nil {
		return err
	}
	defer rdb.Close()
	mail := &mailer{}
	var group sync.WaitGroup
	var errs [4]error
	for i := range 3 {
		group.Go(func() { errs[i] = process(ctx, rdb, i+1, mail) })
	}
	group.Wait()
	fmt.Println("The timer of process 4 is late.")
	errs[3] = process(ctx, rdb, 4, mail)
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	if mail.sent != 1 || mail.skipped.Load() != 3 {
		return fmt.Errorf("want one report and 3 that skip it, got %d and %d", mail.sent, mail.skipped.Load())
	}
	fmt.Println("The report was sent once. 3 processes have skipped it.")
	return nil
}

// process does what each process of the fleet does when its timer fires.
func process(ctx context.Context, rdb *redis.Client, number int, mail *mailer) (err error) {
	client, err := primitives.New(rdb)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, client.Close(closing)) // waits for holds
	}()
	nightly := client.Lock("example:cron", primitives.WithMinHold(minHold))
	ran, err := nightly.TryDo(ctx, func(context.Context) error { return mail.send(number) })
	if err != nil {
		return err // the job has failed, or Redis did not answer: then perhaps nobody has run the job
	}
	if !ran {
		mail.skipped.Add(1)
	}
	return nil
}

// mailer is the job.
type mailer struct {
	sent    int // needs no mutex: only the holder of the lock uses it
	skipped atomic.Int32
}

func (m *mailer) send(number int) error {
	fmt.Printf("Process %d sends the report.\n", number)
	m.sent++
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
