// Command fencing shows what a lock alone cannot do: stop a writer that was paused for longer than its lease and does not know. The store does, by
// the token that comes with the hold.
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
	url := flag.String("redis", "", "`URL` of a Redis (default: one inside this process)")
	flag.Parse()
	if err := run(context.Background(), os.Stdout, *url); err != nil {
		log.Fatal(err)
	}
}

var errStale = errors.New("refused: a newer holder has written")

// page is what is written to. In SQL: UPDATE page SET text = $1, token = $2 WHERE id = 1 AND token <= $2, and look at the number of rows.
type page struct {
	mu    sync.Mutex
	token int64
	text  string
}

func (p *page) write(token int64, text string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if token < p.token {
		return errStale
	}
	p.token, p.text = token, text
	return nil
}

// run has one writer pause for longer than its lease, and another one write meanwhile.
func run(ctx context.Context, out io.Writer, url string) error {
	server, err := process.At(url)
	if err != nil {
		return err
	}
	defer server.Close()
	slowly, err := server.Start()
	if err != nil {
		return err
	}
	defer slowly.End()
	quickly, err := server.Start()
	if err != nil {
		return err
	}
	defer quickly.End()
	p := &page{}

	slow, err := slowly.FencedLock("page").Acquire(ctx, primitives.WithLease(time.Second))
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "the slow writer has the lock, and is paused")
	quick, err := quickly.FencedLock("page").Acquire(ctx) // when the lease is over
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "the quick writer has the lock, and writes:", p.write(quick.Token(), "quick"))
	fmt.Fprintln(out, "the slow writer goes on, and writes:", p.write(slow.Token(), "slow"))
	fmt.Fprintln(out, "the page says:", p.text)
	return quick.Release(ctx)
}
