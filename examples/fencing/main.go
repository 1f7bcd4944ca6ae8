// Command fencing shows how a store rejects a writer that was paused for longer than its lease. The
// lock alone cannot stop such a writer: it does not know that its lease has expired. The store
// therefore compares fencing tokens.
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
	if err := run(context.Background(), os.Stdout, *url); err != nil {
		log.Fatal(err)
	}
}

var errStale = errors.New("rejected: a newer holder has written")

// page is the store. The same check in SQL looks at the number of updated rows:
//
//	UPDATE page SET text = $1, token = $2 WHERE id = 1 AND token <= $2
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

// run pauses one writer for longer than its lease, while another one writes.
func run(ctx context.Context, out io.Writer, url string) error {
	server, err := process.At(url)
	if err != nil {
		return err
	}
	defer server.Close()
	slowProcess, err := server.Start()
	if err != nil {
		return err
	}
	defer slowProcess.End()
	quickProcess, err := server.Start()
	if err != nil {
		return err
	}
	defer quickProcess.End()
	p := &page{}

	slow, err := slowProcess.FencedLock("page").Acquire(ctx, primitives.WithLease(time.Second))
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "the slow writer holds the lock and is paused")
	quick, err := quickProcess.FencedLock("page").Acquire(ctx) // waits until the lease expires
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "the quick writer holds the lock and writes:", p.write(quick.Token(), "quick"))
	fmt.Fprintln(out, "the slow writer resumes and writes:", p.write(slow.Token(), "slow"))
	fmt.Fprintln(out, "the page contains:", p.text)
	return quick.Release(ctx)
}
