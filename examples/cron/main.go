// Command cron runs a job once per tick in a whole fleet, although every process has a timer for it.
//
// The lock keeps two processes from running the job at the same time. A key in Redis records that the
// job of this tick is done, so the next process that gets the lock does not run it again. The key is
// read and written under the lock.
//
// If the job fails, or if its process dies, the next process runs it. Therefore the job runs at least once,
// and should be idempotent: a process may die after the job but before it has written the key.
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

func main() {
	url := flag.String("redis", "", "`URL` of a Redis server (default: a server inside this process)")
	flag.Parse()
	if err := run(context.Background(), *url); err != nil {
		log.Fatal(err)
	}
}

// run starts three processes. Their timers fire at two ticks, and one timer fires late.
func run(ctx context.Context, url string) error {
	rdb, err := connect(url)
	if err != nil {
		return err
	}
	defer rdb.Close()
	first := time.Now()
	second := first.Add(time.Minute)
	mail := &mailer{sent: map[time.Time]int{}}
	if err := fleet(ctx, rdb, first, mail); err != nil {
		return err
	}
	mail.down = true
	if err := fleet(ctx, rdb, second, mail); !errors.Is(err, errMailDown) {
		return fmt.Errorf("the failed job was not reported: %w", err)
	}
	fmt.Println("The timer of process 4 is late.")
	if err := process(ctx, rdb, 4, first, mail); err != nil {
		return err
	}
	if len(mail.sent) != 2 || mail.sent[first] != 1 || mail.sent[second] != 1 {
		return fmt.Errorf("want one report per tick, got %v", mail.sent)
	}
	fmt.Println("Each report was sent once.")
	return nil
}

// fleet starts three processes whose timers fire at the same time.
func fleet(ctx context.Context, rdb *redis.Client, tick time.Time, mail *mailer) error {
	var group sync.WaitGroup
	errs := make([]error, 3)
	for i := range errs {
		group.Go(func() { errs[i] = process(ctx, rdb, i+1, tick, mail) })
	}
	group.Wait()
	return errors.Join(errs...)
}

// process does what each process of the fleet does when its timer fires.
func process(ctx context.Context, rdb *redis.Client, number int, tick time.Time, mail *mailer) (err error) {
	client, err := primitives.New(rdb)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, client.Close(closing)) // waits for holds
	}()
	done := "example:cron:done:" + tick.UTC().Format(time.RFC3339Nano)
	return client.Lock("example:cron").Do(ctx, func(ctx context.Context) error {
		n, err := rdb.Exists(ctx, done).Result()
		if err != nil {
			return err
		}
		if n > 0 {
			fmt.Printf("Tick %s: process %d finds the job done.\n", tick.Format(time.TimeOnly), number)
			return nil
		}
		if err := mail.send(tick); err != nil {
			fmt.Printf("Tick %s: process %d fails: %v.\n", tick.Format(time.TimeOnly), number, err)
			return err
		}
		fmt.Printf("Tick %s: process %d sends the report.\n", tick.Format(time.TimeOnly), number)
		return rdb.Set(ctx, done, "1", time.Hour).Err() // keep it for longer than any timer can be late
	}, primitives.WithWait(time.Minute)) // longer than the job takes, and than a dead process keeps the lock: 30 s
}

var errMailDown = errors.New("the mail server is down")

// mailer is the job. It needs no mutex: only the holder of the lock uses it.
type mailer struct {
	down bool // the next send fails
	sent map[time.Time]int
}

func (m *mailer) send(tick time.Time) error {
	if m.down {
		m.down = false
		return errMailDown
	}
	m.sent[tick]++
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
