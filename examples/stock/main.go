// Command stock sells one hot product with three kinds of locking, and compares their speed.
//
// An order reads the stock, decides, and writes the stock. If two orders did so at the same time,
// they would sell one piece twice, so each order holds a lock while it works. The three kinds are:
//
//   - A plain lock on the article. Each order needs at least a trip to Redis.
//   - Stripes: the stock is divided into parts with a lock each, and an order takes from one of
//     them. Orders of different parts work at the same time. If a part is empty, the order tries
//     the next.
//   - A cohort: the lock on the article stays in one process for up to 5 ms, and the orders of that
//     process pass it on without asking Redis. Orders still work one after another.
//
// Therefore stripes pay when the work takes long, and a cohort pays when the trips to Redis do.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

const (
	processes = 2
	buyers    = 16 // in each process
	orders    = 10 // of each buyer, one piece each
	pieces    = processes * buyers * orders
)

func main() {
	url := flag.String("redis", "", "`URL` of a Redis server (default: a server inside this process)")
	work := flag.Duration("work", 0, "how long an order works while it holds the lock")
	flag.Parse()
	if err := run(context.Background(), *url, *work); err != nil {
		log.Fatal(err)
	}
}

// run sells the stock once with each kind of locking.
func run(ctx context.Context, url string, work time.Duration) error {
	rdb, err := connect(url)
	if err != nil {
		return err
	}
	defer rdb.Close()
	for _, kind := range []struct {
		name    string
		parts   int
		options []primitives.Option
	}{
		{"A plain lock", 1, nil},
		{"8 stripes", 8, nil},
		{"A cohort", 1, []primitives.Option{primitives.WithCohort(5 * time.Millisecond)}},
	} {
		stock := make([]part, kind.parts)
		for i := range stock {
			stock[i].pieces.Store(int64(pieces / kind.parts))
			stock[i].work = work
		}
		began := time.Now()
		if err := sell(ctx, rdb, stock, kind.options); err != nil {
			return fmt.Errorf("%s: %w", kind.name, err)
		}
		rate := pieces / time.Since(began).Seconds()
		for i := range stock {
			if left := stock[i].pieces.Load(); left != 0 {
				return fmt.Errorf("%s: %d pieces were sold twice", kind.name, left)
			}
		}
		fmt.Printf("%s: %.0f orders per second. All %d pieces are sold, and none twice.\n", kind.name, rate, pieces)
	}
	return nil
}

// sell starts the processes, and waits until they have sold everything.
func sell(ctx context.Context, rdb *redis.Client, stock []part, options []primitives.Option) error {
	var group sync.WaitGroup
	errs := make([]error, processes)
	for i := range errs {
		group.Go(func() { errs[i] = process(ctx, rdb, stock, options) })
	}
	group.Wait()
	return errors.Join(errs...)
}

// process is one process of the shop. Its buyers order at the same time.
func process(ctx context.Context, rdb *redis.Client, stock []part, options []primitives.Option) (err error) {
	client, err := primitives.New(rdb)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, client.Close(closing)) // waits for holds
	}()
	locks := make([]*primitives.Lock, len(stock))
	for i := range locks {
		locks[i] = client.Lock(fmt.Sprintf("example:stock:article 4711:%d", i), options...)
	}
	var group sync.WaitGroup
	errs := make([]error, buyers)
	for buyer := range errs {
		group.Go(func() {
			for n := range orders {
				errs[buyer] = errors.Join(errs[buyer], order(ctx, locks, stock, buyer+n))
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

var errSoldOut = errors.New("sold out")

// order sells a piece of part n, or of the next part that has one.
func order(ctx context.Context, locks []*primitives.Lock, stock []part, n int) error {
	for i := range stock {
		i = (n + i) % len(stock)
		err := locks[i].Do(ctx, func(context.Context) error { return stock[i].take() })
		if !errors.Is(err, errSoldOut) {
			return err
		}
	}
	return errSoldOut
}

// part is a row of the database that all processes share. Its field can be read and written, but
// not read and written at once.
type part struct {
	pieces atomic.Int64
	work   time.Duration
}

// take is the work of an order. Without the lock, orders would sell pieces twice.
func (p *part) take() error {
	left := p.pieces.Load()
	if left == 0 {
		return errSoldOut
	}
	time.Sleep(p.work)
	p.pieces.Store(left - 1)
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
