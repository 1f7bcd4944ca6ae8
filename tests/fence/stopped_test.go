package fence

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/primitives"
)

// The environment of a process that writes.
const (
	writerStore = "REDLATCH_FENCE_STORE"
	writerDSN   = "REDLATCH_FENCE_DSN"
	writerRedis = "REDLATCH_FENCE_REDIS"
	writerQuota = "REDLATCH_FENCE_WRITES"
)

// The tests that write pages.
const (
	lateWriters      = "late writers"
	stoppedProcesses = "stopped processes"
)

func pageName(test string, i int) string { return fmt.Sprint(test, " ", i) }

// lockName is another name than the page's, because a page in Redis is a key.
func lockName(page string) string { return "lock of " + page }

const (
	numberOfProcesses = 4
	// writerLease is short, so that a process that is stopped for a moment has lost its locks.
	writerLease = 50 * time.Millisecond
	// untilStopped is how long a process runs at most before it is stopped again. Whoever is
	// stopped in a transaction makes the others wait.
	untilStopped = time.Second
	// writesOfHold is how many writes a hold makes at most.
	writesOfHold = 16
)

func TestMain(m *testing.M) {
	if name := os.Getenv(writerStore); name != "" {
		if err := writer(name); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// openBook opens a store for a process that writes.
func openBook(name string, rdb *redis.Client) (book, error) {
	for _, of := range databases {
		if of.name == name {
			db, err := sql.Open(of.driver, os.Getenv(writerDSN))
			if err != nil {
				return nil, err
			}
			db.SetMaxOpenConns(numberOfPages)
			db.SetMaxIdleConns(numberOfPages)
			return newSQLBook(of, db), nil
		}
	}
	return redisBook{rdb}, nil
}

// tally is what became of the writes of a process, or of all of them.
type tally struct{ written, refused, failed atomic.Int64 }

// tried is the number of writes that the store has decided on.
func (c *tally) tried() int64 { return c.written.Load() + c.refused.Load() }

// writer acquires fenced locks and writes pages, again and again, until it has made its share of
// the writes. It ends early if its standard input does. It prints its result.
func writer(store string) error {
	quota, err := strconv.ParseInt(os.Getenv(writerQuota), 10, 64)
	if err != nil {
		return err
	}
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv(writerRedis)})
	client, err := primitives.New(rdb)
	if err != nil {
		return err
	}
	pages, err := openBook(store, rdb)
	if err != nil {
		return err
	}
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadString(0)
		os.Exit(1) // the test has ended
	}()
	var counts tally
	var writers sync.WaitGroup
	for i := range numberOfPages {
		writers.Go(func() {
			page := pageName(stoppedProcesses, i)
			lock := client.FencedLock(lockName(page), primitives.WithLease(writerLease))
			for counts.tried() < quota {
				hold, err := lock.Acquire(context.Background())
				if err != nil {
					continue // the process was stopped meanwhile
				}
				writeMore(pages, page, hold, &counts)
				_ = hold.Release(context.Background())
			}
		})
	}
	writers.Wait()
	fmt.Println(counts.written.Load(), counts.refused.Load(), counts.failed.Load())
	return nil
}

// writeMore writes a page several times. It does not look at the context of the hold, and does not
// stop when the fence refuses it: the fence must refuse it again.
func writeMore(pages book, page string, hold *primitives.Hold, counts *tally) {
	for range 1 + rand.IntN(writesOfHold) {
		err := pages.write(context.Background(), page, hold.Token())
		if errors.Is(err, errLate) {
			fmt.Println(err)
			os.Exit(1)
		}
		counts.add(err)
	}
}

func (c *tally) add(err error) {
	switch {
	case err == nil:
		c.written.Add(1)
	case isStale(err):
		c.refused.Add(1)
	default:
		c.failed.Add(1)
	}
}

// testStoppedProcesses starts processes that write. Each is stopped by SIGSTOP for longer than its
// leases, at any instant, and goes on. The fence lets none of them write after a later holder.
func testStoppedProcesses(t *testing.T, store, dsn, addr string, pages book) {
	began := time.Now()
	var counts tally
	var stops atomic.Int64
	var processes sync.WaitGroup
	for range numberOfProcesses {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), writerStore+"="+store, writerDSN+"="+dsn, writerRedis+"="+addr,
			writerQuota+"="+strconv.Itoa((*writes+numberOfProcesses-1)/numberOfProcesses))
		var output strings.Builder
		cmd.Stdout, cmd.Stderr = &output, &output
		input, err := cmd.StdinPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		ended := make(chan struct{})
		processes.Go(func() {
			defer func() { _ = input.Close() }()
			for isOver := false; !isOver; {
				_ = cmd.Process.Signal(syscall.SIGSTOP)
				time.Sleep(writerLease + time.Duration(rand.IntN(100))*time.Millisecond)
				_ = cmd.Process.Signal(syscall.SIGCONT)
				stops.Add(1)
				select {
				case <-time.After(rand.N(untilStopped)):
				case <-ended:
					isOver = true
				}
			}
		})
		processes.Go(func() {
			defer close(ended)
			err := cmd.Wait()
			var w, r, f int64
			if err == nil {
				_, err = fmt.Sscan(output.String(), &w, &r, &f)
			}
			if err != nil {
				t.Errorf("%v: %s", err, output.String())
			}
			counts.written.Add(w)
			counts.refused.Add(r)
			counts.failed.Add(f)
		})
	}
	processes.Wait()
	if t.Failed() {
		return
	}
	t.Logf("%d writes were tried by processes that were stopped %d times: %d stale ones were refused, %d failed, and no "+
		"stale one was accepted, in %.0f s", counts.tried(), stops.Load(), counts.refused.Load(), counts.failed.Load(),
		time.Since(began).Seconds())
	require.GreaterOrEqual(t, counts.tried(), int64(*writes))
	if *writes >= 10_000 { // else the processes may have been done before one was stopped with a lock
		require.Positive(t, counts.refused.Load())
	}
	checkWritten(t, pages, stoppedProcesses, &counts)
}

// checkWritten compares what the store has counted with what the writers were told. A failed write
// may have been committed.
func checkWritten(t *testing.T, pages book, test string, counts *tally) {
	t.Helper()
	sum := 0
	for i := range numberOfPages {
		n, err := pages.written(t.Context(), pageName(test, i))
		require.NoError(t, err)
		if n < 0 {
			return
		}
		sum += n
	}
	require.GreaterOrEqual(t, int64(sum), counts.written.Load())
	require.LessOrEqual(t, int64(sum), counts.written.Load()+counts.failed.Load())
}
