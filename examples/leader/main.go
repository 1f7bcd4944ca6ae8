// Command leader elects a leader among processes: whoever has the lock leads, for as long as it is renewed.
//
// A leader that is cut off from Redis is told before another one can lead, by the end of its context, and stops. Here that happens to the first one.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/redlatch/redlatch/examples/internal/process"
	"github.com/redlatch/redlatch/primitives"
)

// ttl is how long a dead leader is missed. One that lives is renewed every third of it.
const ttl = 1500 * time.Millisecond

func main() {
	url := flag.String("redis", "", "`URL` of a Redis (default: one inside this process)")
	flag.Parse()
	if err := run(context.Background(), os.Stdout, *url); err != nil {
		log.Fatal(err)
	}
}

// run has three processes stand for election until one of them has led to the end.
func run(ctx context.Context, out io.Writer, url string) error {
	server, err := process.At(url)
	if err != nil {
		return err
	}
	defer server.Close()
	ctx, finish := context.WithCancel(ctx)
	defer finish()
	var led atomic.Bool
	var processes errgroup.Group
	for n := range 3 {
		processes.Go(func() error {
			p, err := server.Start()
			if err != nil {
				return err
			}
			defer p.End()
			return campaign(ctx, out, p.Client, fmt.Sprintf("process %d", n+1), func(ctx context.Context) error {
				if led.Swap(true) {
					finish() // a leader that nothing happens to
					return nil
				}
				p.Network.Cut()
				defer p.Network.Mend()
				<-ctx.Done() // a leader's work ends with its context
				return context.Cause(ctx)
			})
		})
	}
	return processes.Wait()
}

// campaign stands for election again and again, until it has led to the end or ctx is done.
func campaign(ctx context.Context, out io.Writer, client *primitives.Client, who string, lead func(context.Context) error) error {
	for {
		err := client.Lock("leader", primitives.WithWatchdog(ttl)).Do(ctx, func(ctx context.Context) error {
			fmt.Fprintln(out, who, "leads")
			err := lead(ctx)
			fmt.Fprintln(out, who, "leads no more:", err)
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
