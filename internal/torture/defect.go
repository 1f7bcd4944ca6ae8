package torture

import (
	"context"

	"github.com/redlatch/redlatch/primitives"
)

// defect is what a broken lock library does in place of ours. The tests of this package plant defects in
// client processes, to see that the checks find them.
type defect struct {
	acquire   func(s *session, ctx context.Context, l acquirer, call *record, opts []primitives.Option) (hold, error)
	countDown func(s *session, ctx context.Context, latch *primitives.CountDownLatch) error
}

// planted returns a defect by name. Only tests set it.
var planted func(name string) defect

func (w *worker) defect() defect {
	if planted == nil || w.Defect == "" {
		return defect{}
	}
	return planted(w.Defect)
}

func (s *session) grab(ctx context.Context, l acquirer, call *record, opts []primitives.Option) (hold, error) {
	if f := s.defect().acquire; f != nil {
		return f(s, ctx, l, call, opts)
	}
	return plainly(ctx, l, opts)
}

// plainly acquires l without a defect.
func plainly(ctx context.Context, l acquirer, opts []primitives.Option) (hold, error) {
	h, err := l.Acquire(ctx, opts...)
	if err != nil {
		return nil, err // not h: a nil *Hold is no nil hold
	}
	return h, nil
}

func (s *session) countDown(ctx context.Context, latch *primitives.CountDownLatch) error {
	if f := s.defect().countDown; f != nil {
		return f(s, ctx, latch)
	}
	return latch.CountDown(ctx)
}
