package fence

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/fence"
	"github.com/redlatch/redlatch/primitives"
)

// stopped is how long processes write to each database, and are stopped. The default is 3 s, with REDLATCH_FULL 30 s.
// For many more writes: -stopped 20m.
var stopped = flag.Duration("stopped", 0,
	"how long processes that are stopped past their leases write to each database")

// The rows of the table page. Each has the token of its last write.
const (
	lateWriters      = 1
	stoppedProcesses = 2
)

func createPages(t *testing.T, db *sql.DB) {
	for _, statement := range []string{
		"CREATE TABLE page (id INTEGER PRIMARY KEY, token BIGINT NOT NULL)",
		"INSERT INTO page VALUES (1, 0)", "INSERT INTO page VALUES (2, 0)",
	} {
		_, err := db.ExecContext(t.Context(), statement)
		require.NoError(t, err)
	}
}

// errLate is the error of a write that the fence has let pass although a later holder has written before.
var errLate = errors.New("a stale write was accepted")

// writePage writes a token to a row of the table page, if the fence lets it pass.
func writePage(ctx context.Context, of database, db *sql.DB, page int, token int64) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	err = fence.SQL(of.dialect).Check(ctx, tx, fmt.Sprint("page ", page), token)
	if err != nil {
		return err
	}
	var before int64
	err = tx.QueryRowContext(ctx, fmt.Sprint("SELECT token FROM page WHERE id = ", page)).Scan(&before)
	if err != nil {
		return err
	}
	if before > token {
		return fmt.Errorf("%w: token %d came after token %d", errLate, token, before)
	}
	_, err = tx.ExecContext(ctx, fmt.Sprintf("UPDATE page SET token = %d WHERE id = %d", token, page))
	if err != nil {
		return err
	}
	return tx.Commit()
}

// The environment of a process that writes.
const (
	writerDatabase = "REDLATCH_FENCE_DATABASE"
	writerDSN      = "REDLATCH_FENCE_DSN"
	writerRedis    = "REDLATCH_FENCE_REDIS"
)

// writerLease is short, so that a process that is stopped for a moment has lost its lock.
const writerLease = 50 * time.Millisecond

func TestMain(m *testing.M) {
	if name := os.Getenv(writerDatabase); name != "" {
		os.Exit(writer(name))
	}
	os.Exit(m.Run())
}

// writer acquires a fenced lock and writes, again and again, until its standard input ends. It does not look at the
// context of its holds: that is what fences are for. It prints its result.
func writer(name string) (code int) {
	var of database
	for _, d := range databases {
		if d.name == name {
			of = d
		}
	}
	db, err := sql.Open(of.driver, os.Getenv(writerDSN))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	db.SetMaxOpenConns(1)
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv(writerRedis)})
	client, err := primitives.New(rdb)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadString(0)
		cancel()
	}()
	var written, refused int
	lock := client.FencedLock("page", primitives.WithLease(writerLease))
	for ctx.Err() == nil {
		hold, err := lock.Acquire(ctx)
		if err != nil {
			continue // it ends, or was stopped meanwhile
		}
		err = writePage(context.Background(), of, db, stoppedProcesses, hold.Token())
		_ = hold.Release(context.Background())
		switch {
		case err == nil:
			written++
		case errors.Is(err, fence.ErrStale):
			refused++
		case errors.Is(err, errLate):
			fmt.Println(err)
			return 1
		}
	}
	fmt.Println(written, refused)
	return 0
}

// Processes that write are stopped by SIGSTOP for longer than their leases, at any instant, and go on. The fence lets
// none of them write after a later holder.
func testStoppedProcesses(t *testing.T, of database, dsn string) {
	d := *stopped
	switch {
	case d == 0 && os.Getenv("REDLATCH_FULL") != "":
		d = 30 * time.Second
	case d == 0:
		d = 3 * time.Second
	}
	port := freePort(t)
	server := exec.Command(program(t, "redis-server"), "--port", port, "--bind", "127.0.0.1", "--save", "")
	require.NoError(t, server.Start())
	defer func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	}()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port})
	defer func() { _ = rdb.Close() }()
	for rdb.Ping(t.Context()).Err() != nil {
		time.Sleep(10 * time.Millisecond)
	}
	over := time.Now().Add(d)
	var processes sync.WaitGroup
	var mu sync.Mutex
	var written, refused int
	for range 4 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), writerDatabase+"="+of.name, writerDSN+"="+dsn, writerRedis+"=127.0.0.1:"+port)
		var output strings.Builder
		cmd.Stdout, cmd.Stderr = &output, &output
		input, err := cmd.StdinPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		processes.Go(func() {
			for time.Now().Before(over) {
				time.Sleep(time.Duration(rand.IntN(30)) * time.Millisecond)
				_ = cmd.Process.Signal(syscall.SIGSTOP)
				time.Sleep(writerLease + time.Duration(rand.IntN(100))*time.Millisecond)
				_ = cmd.Process.Signal(syscall.SIGCONT)
			}
			_ = input.Close()
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v: %s", err, output.String())
				return
			}
			var w, r int
			_, err := fmt.Sscan(output.String(), &w, &r)
			if err != nil {
				t.Errorf("%v: %s", err, output.String())
			}
			mu.Lock()
			defer mu.Unlock()
			written, refused = written+w, refused+r
		})
	}
	processes.Wait()
	require.Positive(t, written)
	t.Logf("%d writes, %d stale ones refused, in %v", written, refused, d)
	if d >= 10*time.Second {
		require.Positive(t, refused)
	}
}
