package torture

import (
	"context"

	"github.com/redlatch/redlatch/primitives"
)

// defect is what a broken lock library does in place of ours. The tests of this package plant defects in
// client processes, to see that the checks find them.
type defect struct {
	acquire   func(attempt) (hold, error)
	countDown func(context.Context, *session, *primitives.CountDownLatch) error
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
func (a attempt) plainly() (hold, error) {
	h, err := a.lock.Acquire(a.ctx, a.opts...)
	if err != nil {
		return nil, err // not h: a nil *Hold is no nil hold
	}
	return h, nil
}

// with acquires with further options.
func (a attempt) with(opts ...primitives.Option) (hold, error) {
	a.opts = append(a.opts, opts...)
	return a.plainly()
}

func (s *session) countDown(ctx context.Context, latch *primitives.CountDownLatch) error {
	if f := s.defect().countDown; f != nil {
		return f(ctx, s, latch)
	}
	return latch.CountDown(ctx)
}
