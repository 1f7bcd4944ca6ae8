// Command cron runs a job once, though every process has the timer for it.
//
// The lock sees to it that no two run the job at once. That it is not run again by one whose timer is a little late takes a note that it is done,
// which is read and written under the lock.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/redlatch/redlatch/examples/internal/process"
	"github.com/redlatch/redlatch/primitives"
)

func main() {
	url := flag.String("redis", "", "`URL` of a Redis (default: one inside this process)")
	flag.Parse()
	if err := run(context.Background(), os.Stdout, *url, time.Now()); err != nil {
		log.Fatal(err)
	}
}

// run has three processes whose timers go off at now.
func run(ctx context.Context, out io.Writer, url string, now time.Time) error {
	server, err := process.At(url)
	if err != nil {
		return err
	}
	defer server.Close()
	var processes errgroup.Group
	for n := range 3 {
		processes.Go(func() error {
			p, err := server.Start()
			if err != nil {
				return err
			}
			defer p.End()
			return tick(ctx, p, now, func(context.Context) error {
				_, err := fmt.Fprintf(out, "process %d sends the report\n", n+1)
				return err
			})
		})
	}
	return processes.Wait()
}

// tick runs the job of this minute, unless another process does or has done so. A job that fails, or whose process dies, is run by the next
// process that comes: at least once, so it should bear repetition.
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
		return nil // another process is at it
	}
	return err
}
