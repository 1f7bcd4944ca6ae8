package torture

import (
	"context"

	"github.com/redlatch/redlatch/primitives"
)

// defect is what a broken lock library does in place of ours. The tests of this package plant
// defects in client processes, to see that the checks find them.
type defect struct {
	acquire   func(attempt) (hold, error)
	adopt     func(ctx context.Context, s *session, l target, id string, opts []primitives.Option) (hold, error)
	releaseID func(ctx context.Context, s *session, l target, id string) error
	force     func(ctx context.Context, l forcible) (bool, error)
	add       func(ctx context.Context, sem *primitives.Semaphore, delta int) error
	drain     func(ctx context.Context, sem *primitives.Semaphore) (int, error)
	resize    func(ctx context.Context, sem *primitives.PermitExpirableSemaphore, n int) error
	countDown func(ctx context.Context, s *session, latch *primitives.CountDownLatch) error
}

// planted returns a defect by name. Only tests set it.
var planted func(name string) defect

func (w *worker) defect() defect {
	if planted == nil || w.Defect == "" {
		return defect{}
	}
	return planted(w.Defect)
}

// attempt is an acquisition that is about to be made.
type attempt struct {
	*session

	ctx  context.Context //nolint:containedctx // it is the argument of one call
	lock acquirer
	call *record
	opts []primitives.Option
}

// run acquires, as the library or as the planted defect does.
func (a attempt) run() (hold, error) {
	if f := a.session.defect().acquire; f != nil {
		return f(a)
	}
	return a.plainly()
}

// plainly acquires without a defect.
func (a attempt) plainly() (hold, error) { return asHold(a.lock.Acquire(a.ctx, a.opts...)) }

// asHold returns no hold for a nil one.
func asHold(h *primitives.Hold, err error) (hold, error) {
	if err != nil {
		return nil, err
	}
	return h, nil
}

// with acquires with further options.
func (a attempt) with(opts ...primitives.Option) (hold, error) {
	a.opts = append(a.opts, opts...)
	return a.plainly()
}

func (s *session) adoptID(ctx context.Context, l target, id string, opts []primitives.Option) (hold, error) {
	if f := s.defect().adopt; f != nil {
		return f(ctx, s, l, id, opts)
	}
	return asHold(l.Adopt(ctx, id, opts...))
}

func (s *session) freeID(ctx context.Context, l target, id string) error {
	if f := s.defect().releaseID; f != nil {
		return f(ctx, s, l, id)
	}
	return l.ReleaseID(ctx, id)
}

func (s *session) free(ctx context.Context, l forcible) (bool, error) {
	if f := s.defect().force; f != nil {
		return f(ctx, l)
	}
	return l.ForceRelease(ctx)
}

func (s *session) addPermits(ctx context.Context, sem *primitives.Semaphore, delta int) error {
	if f := s.defect().add; f != nil {
		return f(ctx, sem, delta)
	}
	return sem.Add(ctx, delta)
}

func (s *session) drainPermits(ctx context.Context, sem *primitives.Semaphore) (int, error) {
	if f := s.defect().drain; f != nil {
		return f(ctx, sem)
	}
	return sem.Drain(ctx)
}

func (s *session) resizePermits(ctx context.Context, sem *primitives.PermitExpirableSemaphore, n int) error {
	if f := s.defect().resize; f != nil {
		return f(ctx, sem, n)
	}
	return sem.Resize(ctx, n)
}

func (s *session) countDown(ctx context.Context, latch *primitives.CountDownLatch) error {
	if f := s.defect().countDown; f != nil {
		return f(ctx, s, latch)
	}
	return latch.CountDown(ctx)
}
