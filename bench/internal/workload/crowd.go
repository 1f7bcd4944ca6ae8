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
	settle     = time.Second      // in which the workers come to wait
	drainLimit = 60 * time.Second // for all of them to have had the lock
)

var errNotDrained = errors.New("some still wait a minute after the release")

// openCrowd has the lock held, and all workers wait for it.
func (s *session) openCrowd(ctx context.Context) error {
	if err := s.employ(ctx); err != nil {
		return err
	}
	if err := s.warm(ctx); err != nil {
		return err
	}
	if s.part.First == 0 {
		if err := s.hold(ctx); err != nil {
			return err
		}
	}
	grown := growth(len(s.workers))
	ctx, s.stop = context.WithCancel(ctx)
	s.waiting, ctx = errgroup.WithContext(ctx)
	for _, w := range s.workers {
		s.waiting.Go(func() error { return w.once(ctx, s.w) })
	}
	time.Sleep(settle)
	m := grown()
	m.Goroutines -= int64(len(s.workers))
	s.note(m)
	return nil
}

// warm has each client use as many keys of their own at once as it has workers, so that what it keeps for as long as it lives is there: not
// least its pool's connections.
func (s *session) warm(ctx context.Context) error {
	var g errgroup.Group
	for i, c := range s.clients {
		for j := range s.w.Goroutines {
			name := fmt.Sprintf("%s:warm:%d:%d", s.w.Name, s.part.First+i, j)
			l, err := c.Locker(ctx, name, false)
			if err != nil {
				return fmt.Errorf("workload: %s: %w", s.contender.Name, err)
			}
			g.Go(func() error { return use(ctx, l) })
		}
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("workload: %s: %w", s.contender.Name, err)
	}
	return nil
}

func use(ctx context.Context, l contend.Locker) error {
	held, err := l.Acquire(ctx)
	if err != nil {
		return err
	}
	return held.Release(ctx)
}

// hold takes the lock by a client of its own.
func (s *session) hold(ctx context.Context) error {
	if err := s.connect(ctx, s.w.Clients); err != nil {
		return err
	}
	l, err := s.clients[len(s.clients)-1].Locker(ctx, s.w.Name, false)
	if err != nil {
		return fmt.Errorf("workload: %s: %w", s.contender.Name, err)
	}
	held, err := l.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("workload: %s: %w", s.contender.Name, err)
	}
	s.held = append(s.held, held)
	s.holding = s.board.enter(passOf(s.w, false), s.w.Workers(), time.Now())
	return nil
}

// once waits for the lock, and gives it back.
func (w *worker) once(ctx context.Context, wl contend.Workload) error {
	held, err := w.lock.Acquire(ctx)
	if err != nil {
		return err
	}
	in := time.Now()
	v := w.board.enter(passOf(wl, false), w.number, in)
	w.board.leave(v)
	err = held.Release(ctx)
	w.count(v, false, w.board.sinceRelease(in), true)
	return err
}

// runCrowd leaves all as it is for Duration. Then the crowd drains.
func (s *session) runCrowd(ctx context.Context, w contend.Workload) (contend.Result, error) {
	time.Sleep(w.Duration)
	if s.part.First == 0 {
		s.board.leave(s.holding)
		s.board.released.Store(time.Now().UnixNano())
		if err := s.releaseAll(ctx); err != nil {
			return contend.Result{}, err
		}
	}
	if err := s.drain(); err != nil {
		return contend.Result{}, err
	}
	r := s.sum()
	r.Elapsed = w.Duration
	r.Drain = s.board.sinceRelease(time.Now())
	return r, nil
}

// drain waits for the workers; those who take too long are told to leave.
func (s *session) drain() error {
	var late atomic.Bool
	limit := time.AfterFunc(drainLimit, func() {
		late.Store(true)
		s.stop()
	})
	defer limit.Stop()
	err := s.waiting.Wait()
	if late.Load() {
		return errNotDrained
	}
	return err
}
