// Command cron runs a job once a minute, even though every process has a timer for it.
//
// The lock keeps two processes from running the job at the same time. A key in Redis records that the
// job of this minute is done, so a process with a late timer does not run it again. The key is read
// and written under the lock.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"sync"
	"time"

	"github.com/redlatch/redlatch/examples/internal/process"
	"github.com/redlatch/redlatch/primitives"
)

func main() {
	url := flag.String("redis", "", "`URL` of the Redis server (default: a server inside this process)")
	flag.Parse()
	if err := run(context.Background(), os.Stdout, *url, time.Now()); err != nil {
		log.Fatal(err)
	}
}

// run starts three processes whose timers all fire at now.
func run(ctx context.Context, out io.Writer, url string, now time.Time) error {
	server, err := process.At(url)
	if err != nil {
		return err
	}
	defer server.Close()
	var processes sync.WaitGroup
	errs := make([]error, 3)
	for n := range errs {
		processes.Go(func() {
			p, err := server.Start()
			if err != nil {
				errs[n] = err
				return
			}
			defer p.End()
			errs[n] = tick(ctx, p, now, func(context.Context) error {
				_, err := fmt.Fprintf(out, "process %d sends the report\n", n+1)
				return err
			})
		})
	}
	processes.Wait()
	return errors.Join(errs...)
}

// tick runs the job of this minute, unless another process is running it or has run it. If the job
// fails or its process dies, the next process runs it again. So the job runs at least once and should
// be idempotent.
func tick(ctx context.Context, p *process.Process, now time.Time, job func(context.Context) error) error {
	done := "report:done:" + now.UTC().Format("2006-01-02T15:04")
	err := p.Lock("report").Do(ctx, func(ctx context.Context) error {
		if n, err := p.Redis.Exists(ctx, done).Result(); n > 0 || err != nil {
			return err
		}
		if err := job(ctx); err != nil {
			return err
		}
		return p.Redis.Set(ctx, done, "1", time.Hour).Err()
	}, primitives.WithWait(0))
	if errors.Is(err, primitives.ErrNotAcquired) {
		return nil // another process is running the job
	}
	return err
}
