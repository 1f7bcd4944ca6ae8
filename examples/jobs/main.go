// Command jobs limits the number of jobs that run at the same time, over all processes. Typical
// reasons are a limited number of licenses, or a service that must not be overloaded.
//
// Each job holds a permit while it runs. When a process dies, its permits expire.
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
	if err := run(context.Background(), os.Stdout, *url, 3, 6); err != nil {
		log.Fatal(err)
	}
}

// run starts two processes that do the given number of jobs each, at most limit at a time.
func run(ctx context.Context, out io.Writer, url string, limit, jobs int) error {
	server, err := process.At(url)
	if err != nil {
		return err
	}
	defer server.Close()
	var processes sync.WaitGroup
	errs := make([]error, 2)
	for n := range errs {
		processes.Go(func() {
			p, err := server.Start()
			if err != nil {
				errs[n] = err
				return
			}
			defer p.End()
			errs[n] = work(ctx, out, p.Client, fmt.Sprintf("process %d", n+1), limit, jobs)
		})
	}
	processes.Wait()
	return errors.Join(errs...)
}

// work does the jobs of one process. Each job starts as soon as it has a permit.
func work(ctx context.Context, out io.Writer, client *primitives.Client, who string, limit, jobs int) error {
	permits := client.PermitExpirableSemaphore("renderers", primitives.WithWatchdog(10*time.Second))
	if _, err := permits.Init(ctx, limit); err != nil { // idempotent: only the first call sets the limit
		return err
	}
	var group sync.WaitGroup
	errs := make([]error, jobs)
	for job := range errs {
		group.Go(func() {
			errs[job] = permits.Do(ctx, func(ctx context.Context) error { return render(ctx, out, who, job+1) })
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// render is a job. It ends early if it loses its permit.
func render(ctx context.Context, out io.Writer, who string, job int) error {
	fmt.Fprintf(out, "%s starts job %d\n", who, job)
	select {
	case <-time.After(50 * time.Millisecond):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	fmt.Fprintf(out, "%s ends job %d\n", who, job)
	return nil
}
