// Command leader elects a leader among processes. The leader is the process that holds the lock.
//
// The context of a leader that is cut off from Redis ends before another process can acquire the
// lock, so the leader stops in time. The program cuts off its first leader to show this.
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
	"sync/atomic"
	"time"

	"github.com/redlatch/redlatch/examples/internal/process"
	"github.com/redlatch/redlatch/primitives"
)

// ttl is the time after which a dead leader is replaced. A live leader renews its lock every ttl/3.
const ttl = 1500 * time.Millisecond

func main() {
	url := flag.String("redis", "", "`URL` of the Redis server (default: a server inside this process)")
	flag.Parse()
	if err := run(context.Background(), os.Stdout, *url); err != nil {
		log.Fatal(err)
	}
}

// run starts three candidates. It ends when a leader has finished its work.
func run(ctx context.Context, out io.Writer, url string) error {
	server, err := process.At(url)
	if err != nil {
		return err
	}
	defer server.Close()
	ctx, finish := context.WithCancel(ctx)
	defer finish()
	var led atomic.Bool
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
			errs[n] = campaign(ctx, out, p.Client, fmt.Sprintf("process %d", n+1), func(ctx context.Context) error {
				if led.Swap(true) {
					finish() // the second leader finishes its work
					return nil
				}
				p.Network.Cut() // the first leader is cut off
				defer p.Network.Mend()
				<-ctx.Done() // the work of a leader ends with its context
				return context.Cause(ctx)
			})
		})
	}
	processes.Wait()
	return errors.Join(errs...)
}

// campaign waits for the leadership and calls lead. It tries again if the leadership is lost. It ends
// when lead returns another result, or when ctx is done.
func campaign(
	ctx context.Context, out io.Writer, client *primitives.Client, who string, lead func(context.Context) error,
) error {
	for {
		err := client.Lock("leader", primitives.WithWatchdog(ttl)).Do(ctx, func(ctx context.Context) error {
			fmt.Fprintln(out, who, "leads")
			err := lead(ctx)
			fmt.Fprintln(out, who, "stops leading:", err)
			return err
		})
		switch {
		case err == nil, errors.Is(err, primitives.ErrNotAcquired) && ctx.Err() != nil:
			return nil
		case !errors.Is(err, primitives.ErrLost):
			return err
		}
	}
}
