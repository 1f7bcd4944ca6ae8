package scale

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlatch/redlatch/bench/internal/measure"
	"github.com/redlatch/redlatch/primitives"
)

// waited is the result of waiters on many names, all of one client.
type waited struct {
	names, waiters int   // waiters: in all
	serverBytes    int64 // of the waiters
	clientBytes    int64
	idle           usage         // while all wait
	drained        time.Duration // from the first release until the last waiter has had its lock
}

// wait holds names, lets waiters wait for each of them, and then releases them.
func (s *system) wait(ctx context.Context, names, each int, length time.Duration) (waited, error) {
	result := waited{names: names, waiters: names * each}
	holder, err := s.open()
	if err != nil {
		return result, err
	}
	defer holder.close()
	c, err := s.open()
	if err != nil {
		return result, err
	}
	defer c.close()
	holds := make([]*primitives.Hold, names)
	if err := holder.each(names, func(i int) (err error) {
		holds[i], err = holder.Lock("waited" + strconv.Itoa(i)).Acquire(ctx)
		return err
	}); err != nil {
		return result, err
	}
	if err := c.warmUp(ctx); err != nil {
		return result, err
	}
	memory := measure.MemoryNow()
	before, err := s.sample(ctx)
	if err != nil {
		return result, err
	}
	var wg sync.WaitGroup
	var failed atomic.Int64
	for i := range names {
		lock := c.Lock("waited" + strconv.Itoa(i))
		for range each {
			wg.Go(func() {
				hold, err := lock.Acquire(ctx)
				if err == nil {
					err = hold.Release(ctx)
				}
				if err != nil {
					failed.Add(1)
				}
			})
		}
	}
	if err := sleep(ctx, s.settle); err != nil {
		return result, err
	}
	after, err := s.sample(ctx)
	if err != nil {
		return result, err
	}
	result.clientBytes = measure.MemoryNow().Since(memory).Bytes()
	result.serverBytes = after.memory - before.memory
	if result.idle, err = s.run(ctx, func() error { return sleep(ctx, length) }); err != nil {
		return result, err
	}
	began := time.Now()
	if err := holder.each(names, func(i int) error { return holds[i].Release(ctx) }); err != nil {
		return result, err
	}
	wg.Wait()
	result.drained = time.Since(began)
	if failed.Load() > 0 {
		return result, errors.New("scale: some waiters failed")
	}
	return result, nil
}

// crowd is the result of clients that contend for one name, with one goroutine each.
type crowd struct {
	clients  int
	handOffs int64 // sections, each by another client than the one before, or by the same
	usage    usage
}

// contendFor lets n clients acquire and release one lock as fast as they can.
func (s *system) contendFor(ctx context.Context, n int, length time.Duration) (crowd, error) {
	result := crowd{clients: n}
	clients := make([]*client, n)
	for i := range clients {
		c, err := s.openWith(2)
		if err != nil {
			return result, err
		}
		defer c.close()
		clients[i] = c
	}
	gate, err := s.open()
	if err != nil {
		return result, err
	}
	defer gate.close()
	name := "crowd" + strconv.Itoa(n)
	hold, err := gate.Lock(name).Acquire(ctx)
	if err != nil {
		return result, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	var sections atomic.Int64
	var stopped atomic.Bool
	for _, c := range clients {
		lock := c.Lock(name)
		wg.Go(func() {
			for !stopped.Load() {
				hold, err := lock.Acquire(ctx)
				if err != nil {
					return // canceled
				}
				sections.Add(1)
				_ = hold.Release(context.WithoutCancel(ctx))
			}
		})
	}
	if err := sleep(ctx, s.settle); err != nil {
		return result, err
	}
	if err := hold.Release(ctx); err != nil {
		return result, err
	}
	if err := sleep(ctx, length/4); err != nil { // the first hand-offs also make connections
		return result, err
	}
	before := sections.Load()
	result.usage, err = s.run(ctx, func() error { return sleep(ctx, length) })
	result.handOffs = sections.Load() - before
	stopped.Store(true)
	cancel()
	wg.Wait()
	return result, err
}
