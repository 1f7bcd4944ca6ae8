package scale

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlatch/redlatch/bench/internal/measure"
	"github.com/redlatch/redlatch/primitives"
)

// workers is how many goroutines acquire and release at once.
const workers = 64

// held is the result of holding n locks with one client.
type held struct {
	n           int
	ttl         time.Duration
	serverBytes int64
	clientBytes int64
	renewing    usage // while nothing but renewals happened
	lost        int
}

// renewals is how many leases were renewed while nothing else happened.
func (h *held) renewals() int64 {
	return int64(float64(h.n) * 3 * h.renewing.took.Seconds() / h.ttl.Seconds())
}

// hold acquires n locks, whose names begin with prefix, and holds them for a while. The
// acquisitions are spread evenly over a third of the TTL, which is the time between two renewals of
// a lock. The renewals are then spread evenly too, as they would be with many independent callers.
// It fails if a lock cannot be acquired or released.
func (s *system) hold(ctx context.Context, prefix string, n int, ttl, length time.Duration) (held, error) {
	result := held{n: n, ttl: ttl}
	c, err := s.open(primitives.WithDefaults(primitives.WithWatchdog(ttl)))
	if err != nil {
		return result, err
	}
	defer c.close()
	if err := c.warmUp(ctx); err != nil {
		return result, err
	}
	holds := make([]*primitives.Hold, n)
	memory := measure.MemoryNow()
	grown, err := s.run(ctx, func() error {
		began := time.Now()
		err := c.each(n, func(i int) (err error) {
			due := began.Add(ttl / 3 * time.Duration(i) / time.Duration(n))
			if err := sleep(ctx, time.Until(due)); err != nil {
				return err
			}
			holds[i], err = c.Lock(prefix + strconv.Itoa(i)).Acquire(ctx)
			return err
		})
		return errors.Join(err, sleep(ctx, s.settle))
	})
	if err != nil {
		return result, err
	}
	result.serverBytes = grown.memory
	result.clientBytes = measure.MemoryNow().Since(memory).Bytes()
	result.renewing, err = s.run(ctx, func() error { return sleep(ctx, length) })
	if err != nil {
		return result, err
	}
	for _, h := range holds {
		if h.Context().Err() != nil {
			result.lost++
		}
	}
	return result, c.each(n, func(i int) error {
		if err := holds[i].Release(ctx); err != nil && !errors.Is(err, primitives.ErrLost) {
			return err
		}
		return nil
	})
}

// client is a client of the library with its connections.
type client struct {
	*primitives.Client
	rdb    interface{ Close() error }
	settle time.Duration
}

func (s *system) open(opts ...primitives.ClientOption) (*client, error) {
	return s.openWith(workers, opts...)
}

func (s *system) openWith(pool int, opts ...primitives.ClientOption) (*client, error) {
	rdb := s.dial(pool)
	c, err := primitives.New(rdb, opts...)
	if err != nil {
		return nil, errors.Join(err, rdb.Close())
	}
	return &client{c, rdb, s.settle}, nil
}

func (c *client) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = c.Close(ctx) // an error means that holds are left, which the caller has reported
	_ = c.rdb.Close()
}

// pair acquires and releases a lock.
func (c *client) pair(ctx context.Context, name string) error {
	hold, err := c.Lock(name).Acquire(ctx)
	if err != nil {
		return err
	}
	return hold.Release(ctx)
}

// warmUp makes the client's connections, and waits until Redis has freed the buffers that it no
// longer needs. So neither counts as memory of what follows.
func (c *client) warmUp(ctx context.Context) error {
	const pairs = 5000
	err := c.each(pairs, func(i int) error { return c.pair(ctx, "warm"+strconv.Itoa(i)) })
	return errors.Join(err, sleep(ctx, c.settle))
}

// each calls f for 0 to n-1 in some goroutines, and returns the first error.
func (*client) each(n int, f func(i int) error) error {
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make(chan error, workers)
	for range workers {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := f(i); err != nil {
					errs <- fmt.Errorf("scale: %w", err)
					return
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return context.Cause(ctx)
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
