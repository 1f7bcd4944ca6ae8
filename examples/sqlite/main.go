// Command sqlite protects a database against a writer that was paused for longer than its lease.
//
// The lock alone cannot stop such a writer: when it runs again, it may write before it looks at its
// context. Therefore each write carries the fencing token of its hold, and the database refuses a
// token that is smaller than one it has seen.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite" // the driver "sqlite", in pure Go

	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

var errStale = errors.New("refused: a later holder of the lock has written")

// write changes the page, unless a later holder has written. The comparison and the write are one
// statement, so nothing can come in between.
func write(ctx context.Context, db *sql.DB, token int64, text string) error {
	result, err := db.ExecContext(ctx,
		"UPDATE pages SET text = ?1, token = ?2 WHERE name = 'home' AND token <= ?2", text, token)
	if err != nil {
		return err
	}
	switch n, err := result.RowsAffected(); {
	case err != nil:
		return err
	case n == 0:
		return errStale
	default:
		return nil
	}
}

func main() {
	url := flag.String("redis", "", "`URL` of a Redis server (default: a server inside this process)")
	flag.Parse()
	if err := run(context.Background(), *url); err != nil {
		log.Fatal(err)
	}
}

// run pauses one writer for longer than its lease, while another one writes.
func run(ctx context.Context, url string) (err error) {
	dir, err := os.MkdirTemp("", "pages-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	db, err := sql.Open("sqlite", filepath.Join(dir, "pages.db"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	_, err = db.ExecContext(ctx, `
		CREATE TABLE pages (name TEXT PRIMARY KEY, text TEXT NOT NULL, token INTEGER NOT NULL);
		INSERT INTO pages VALUES ('home', '', 0)`)
	if err != nil {
		return err
	}

	rdb, err := connect(url)
	if err != nil {
		return err
	}
	defer rdb.Close()
	client, err := primitives.New(rdb)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, client.Close(closing)) // waits for holds
	}()
	lock := client.FencedLock("example:sqlite:home")

	slow, err := lock.Acquire(ctx, primitives.WithLease(300*time.Millisecond))
	if err != nil {
		return err
	}
	fmt.Printf("The slow writer has the lock, with token %d, and is paused.\n", slow.Token())

	quick, err := lock.Acquire(ctx) // waits until the lease of the slow writer ends
	if err != nil {
		return err
	}
	if err := write(ctx, db, quick.Token(), "quick"); err != nil {
		return err
	}
	fmt.Printf("The quick writer has the lock, with token %d, and writes.\n", quick.Token())

	err = write(ctx, db, slow.Token(), "slow")
	if !errors.Is(err, errStale) {
		return fmt.Errorf("the write of the slow writer: want a refusal, got %w", err)
	}
	fmt.Printf("The slow writer goes on, and its write is %v.\n", err)

	var text string
	if err := db.QueryRowContext(ctx, "SELECT text FROM pages WHERE name = 'home'").Scan(&text); err != nil {
		return err
	}
	if text != "quick" {
		return fmt.Errorf("the page contains %q", text)
	}
	fmt.Printf("The page contains %q.\n", text)
	return quick.Release(ctx)
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
