// Command locker makes code that takes a sync.Locker work in a whole fleet, without changing it.
//
// A sync.Locker cannot report that the lock was lost, so only the client's observer learns it.
// Where that matters, use Lock.Do: it ends the context of the critical section.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

// Invoices is the existing code. It hands out invoice numbers without gaps, and keeps the last one
// in a file. It knows package sync only.
type Invoices struct {
	mu   sync.Locker
	path string
}

// Next returns the next number.
func (i *Invoices) Next() (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	text, err := os.ReadFile(i.path)
	if err != nil {
		return 0, err
	}
	last, err := strconv.Atoi(string(text))
	if err != nil {
		return 0, err
	}
	return last + 1, os.WriteFile(i.path, []byte(strconv.Itoa(last+1)), 0o600)
}

func main() {
	url := flag.String("redis", "", "`URL` of a Redis server (default: a server inside this process)")
	flag.Parse()
	if err := run(context.Background(), *url); err != nil {
		log.Fatal(err)
	}
}

// run uses the existing code in one process, as before, and then in three processes.
func run(ctx context.Context, url string) (err error) {
	dir, err := os.MkdirTemp("", "invoices-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path := filepath.Join(dir, "last")

	if err := check(path, &Invoices{&sync.Mutex{}, path}); err != nil {
		return fmt.Errorf("with a sync.Mutex: %w", err)
	}
	fmt.Println("In one process, with a sync.Mutex: no number is missing, and none comes twice.")

	rdb, err := connect(url)
	if err != nil {
		return err
	}
	defer rdb.Close()
	var fleet []*Invoices
	for range 3 {
		client, err := primitives.New(rdb) // each process has a client
		if err != nil {
			return err
		}
		defer func() {
			closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			err = errors.Join(err, client.Close(closing)) // waits for holds
		}()
		fleet = append(fleet, &Invoices{client.Lock("example:locker").Locker(ctx), path})
	}
	if err := check(path, fleet...); err != nil {
		return fmt.Errorf("with a Locker: %w", err)
	}
	fmt.Println("In three processes, with a Locker: no number is missing, and none comes twice.")
	return nil
}

// check draws 24 numbers from each of the fleet, by four goroutines, and compares them with 1, 2,
// 3...
func check(path string, fleet ...*Invoices) error {
	if err := os.WriteFile(path, []byte("0"), 0o600); err != nil {
		return err
	}
	drawn := make(chan int, 24*len(fleet))
	var group sync.WaitGroup
	errs := make([]error, 4*len(fleet))
	for worker := range errs {
		group.Go(func() {
			for range 6 {
				number, err := fleet[worker%len(fleet)].Next()
				if err != nil {
					errs[worker] = err
					return
				}
				drawn <- number
			}
		})
	}
	group.Wait()
	close(drawn)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	seen := map[int]bool{}
	for number := range drawn {
		seen[number] = true
	}
	for number := 1; number <= cap(drawn); number++ {
		if !seen[number] {
			return fmt.Errorf("number %d is missing, so another one came twice", number)
		}
	}
	return nil
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
