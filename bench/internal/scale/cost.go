package scale

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

// pairs acquires and releases free locks as fast as it can. It returns how many pairs it made.
func (s *system) pairs(ctx context.Context, length time.Duration) (n int64, u usage, err error) {
	return s.repeat(ctx, length, func(c *client, i int) error {
		return c.pair(ctx, "pair"+strconv.Itoa(i))
	})
}

// refusals tries locks that another client holds.
func (s *system) refusals(ctx context.Context, length time.Duration) (n int64, u usage, err error) {
	holder, err := s.open()
	if err != nil {
		return 0, usage{}, err
	}
	defer holder.close()
	holds := make([]*primitives.Hold, workers)
	for i := range holds {
		if holds[i], err = holder.Lock("refused" + strconv.Itoa(i)).Acquire(ctx); err != nil {
			return 0, usage{}, err
		}
	}
	n, u, err = s.repeat(ctx, length, func(c *client, i int) error {
		_, err := c.Lock("refused" + strconv.Itoa(i%workers)).TryAcquire(ctx)
		if errors.Is(err, primitives.ErrNotAcquired) {
			return nil
		}
		return errors.Join(err, errors.New("a held lock was acquired"))
	})
	for _, hold := range holds {
		err = errors.Join(err, hold.Release(ctx))
	}
	return n, u, err
}

// requests makes n requests that the server remembers: pairs of a semaphore.
func (s *system) requests(ctx context.Context, n int) (u usage, err error) {
	c, err := s.open()
	if err != nil {
		return u, err
	}
	defer c.close()
	if _, err := c.Semaphore("requests").Init(ctx, workers); err != nil {
		return u, err
	}
	pair := func(int) error {
		hold, err := c.Semaphore("requests").Acquire(ctx)
		if err != nil {
			return err
		}
		return hold.Release(ctx)
	}
	if err := c.warmUp(ctx); err != nil {
		return u, err
	}
	return s.run(ctx, func() error { return errors.Join(c.each(n, pair), sleep(ctx, s.settle)) })
}

// repeat calls f with rising numbers, in some goroutines, and counts the calls.
func (s *system) repeat(
	ctx context.Context, length time.Duration, f func(c *client, i int) error,
) (n int64, u usage, err error) {
	c, err := s.open()
	if err != nil {
		return 0, u, err
	}
	defer c.close()
	if err := c.each(workers, func(i int) error { return f(c, i) }); err != nil { // connects, loads the scripts
		return 0, u, err
	}
	var calls atomic.Int64
	u, err = s.run(ctx, func() error {
		until := time.Now().Add(length)
		return c.each(workers, func(worker int) error {
			for i := worker; time.Now().Before(until); i += workers {
				if err := f(c, i); err != nil {
					return err
				}
				calls.Add(1)
			}
			return nil
		})
	})
	return calls.Load(), u, err
}
