package workload

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/redlatch/redlatch/bench/internal/contend"
)

const (
	settleTime   = time.Second      // until all workers of a crowd wait
	drainTimeout = 60 * time.Second // until all workers have acquired the lock
)

var errNotDrained = errors.New("some workers still wait a minute after the release")

// openCrowd acquires the lock and lets all workers wait for it.
func (s *session) openCrowd(ctx context.Context) error {
	if err := s.newWorkers(ctx); err != nil {
		return err
	}
	if err := s.warmUp(ctx); err != nil {
		return err
	}
	if s.part.First == 0 {
		if err := s.acquireAsHolder(ctx); err != nil {
			return err
		}
	}
	memoryGrowth := startMemoryGrowth(len(s.workers))
	ctx, s.cancel = context.WithCancel(ctx)
	// ctx lasts until Close or drain cancels it, or until a worker fails. Close waits for the
	// workers.
	s.waiting, ctx = errgroup.WithContext(ctx)
	for _, w := range s.workers {
		s.waiting.Go(func() error { return w.acquireOnce(ctx, s.w) })
	}
	time.Sleep(settleTime) // no contender reports that a worker waits
	s.memory = memoryGrowth()
	s.memory.Goroutines -= int64(len(s.workers))
	return nil
}

// warmUp makes each client use as many other keys at once as it has workers. So the client
// allocates its lasting resources, such as connections, before the memory of the waiters is
// measured.
func (s *session) warmUp(ctx context.Context) error {
	var g errgroup.Group
	for i, c := range s.clients {
		for j := range s.w.Goroutines {
			name := fmt.Sprintf("%s:warm:%d:%d", s.w.Name, s.part.First+i, j)
			l, err := c.Locker(ctx, name, false)
			if err != nil {
				return fmt.Errorf("workload: %s: %w", s.contender.Name, err)
			}
			g.Go(func() error {
				hold, err := l.Acquire(ctx)
				if err != nil {
					return err
				}
				return hold.Release(ctx)
			})
		}
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("workload: %s: %w", s.contender.Name, err)
	}
	return nil
}

// acquireAsHolder acquires the lock with an extra client. Its worker number follows those of the
// crowd.
func (s *session) acquireAsHolder(ctx context.Context) error {
	if err := s.connect(ctx, s.w.Clients); err != nil {
		return err
	}
	l, err := s.clients[len(s.clients)-1].Locker(ctx, s.w.Name, false)
	if err != nil {
		return fmt.Errorf("workload: %s: %w", s.contender.Name, err)
	}
	hold, err := l.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("workload: %s: %w", s.contender.Name, err)
	}
	s.holds = append(s.holds, hold)
	// The guard then reports an overlap if a worker acquires the lock before the release.
	s.holder = s.guard.enter(accessOf(s.w, false), s.w.Workers(), time.Now())
	return nil
}

// acquireOnce is the whole work of a worker in a crowd: it acquires the lock and releases it.
func (w *worker) acquireOnce(ctx context.Context, wl contend.Workload) error {
	hold, err := w.lock.Acquire(ctx)
	if err != nil {
		return err
	}
	acquired := time.Now()
	e := w.guard.enter(accessOf(wl, false), w.number, acquired)
	w.guard.leave(e)
	err = hold.Release(ctx)
	w.count(e, false, w.guard.sinceRelease(acquired), true)
	return err
}

// runCrowd lets the crowd wait for Duration, then releases the lock and waits until every worker
// has acquired and released it.
func (s *session) runCrowd(ctx context.Context, w contend.Workload) (contend.Result, error) {
	time.Sleep(w.Duration)
	if s.part.First == 0 {
		// Both come before the release: workers enter the guard before releaseAll returns.
		s.guard.leave(s.holder)
		s.guard.released.Store(time.Now().UnixNano())
		if err := s.releaseAll(ctx); err != nil {
			return contend.Result{}, err
		}
	}
	if err := s.drain(); err != nil {
		return contend.Result{}, err
	}
	r := s.sum()
	r.Elapsed = w.Duration
	r.Drain = s.guard.sinceRelease(time.Now())
	return r, nil
}

// drain waits for the workers. It cancels their waits after drainTimeout.
func (s *session) drain() error {
	var timedOut atomic.Bool
	timer := time.AfterFunc(drainTimeout, func() {
		timedOut.Store(true)
		s.cancel()
	})
	defer timer.Stop()
	err := s.waiting.Wait()
	if timedOut.Load() {
		return errNotDrained
	}
	return err
}
