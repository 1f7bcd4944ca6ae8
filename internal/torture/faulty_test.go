package torture

import (
	"context"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

// faultyHold is a hold that lies. Its zero fields stand for the truth; without a hold there is
// none.
type faultyHold struct {
	hold    *primitives.Hold
	call    *record
	ctx     context.Context
	until   func() time.Time
	token   int64
	release func(context.Context) error
	extend  func(context.Context, time.Duration) error
	detach  func() string
}

func (h *faultyHold) Context() context.Context {
	if h.ctx != nil {
		return h.ctx
	}
	return h.hold.Context()
}

func (h *faultyHold) Release(ctx context.Context) error {
	switch {
	case h.hold == nil:
		return nil
	case h.release != nil:
		return h.release(ctx)
	}
	return h.hold.Release(ctx)
}

func (h *faultyHold) Check(ctx context.Context) error {
	if h.hold == nil {
		return nil
	}
	return h.hold.Check(ctx)
}

func (h *faultyHold) Extend(ctx context.Context, d time.Duration) error {
	switch {
	case h.hold == nil:
		return nil
	case h.extend != nil:
		return h.extend(ctx, d)
	}
	return h.hold.Extend(ctx, d)
}

func (h *faultyHold) Detach() string {
	switch {
	case h.hold == nil:
		return ""
	case h.detach != nil:
		return h.detach()
	}
	return h.hold.Detach()
}

func (h *faultyHold) ID() string {
	if h.hold == nil {
		return ""
	}
	return h.hold.ID()
}

func (h *faultyHold) Token() int64 {
	if h.token != 0 || h.hold == nil {
		return h.token
	}
	return h.hold.Token()
}

func (h *faultyHold) ValidUntil() time.Time {
	switch {
	case h.until != nil:
		return h.until()
	case h.hold == nil:
		return time.Now().Add(time.Hour)
	}
	return h.hold.ValidUntil()
}

// wrapped acquires truly, and then spoils the hold.
func wrapped(spoil func(*session, *faultyHold)) func(attempt) (hold, error) {
	return func(a attempt) (hold, error) {
		h, err := a.lock.Acquire(a.ctx, a.opts...)
		if err != nil {
			return nil, err
		}
		f := &faultyHold{hold: h, call: a.call}
		spoil(a.session, f)
		return f, nil
	}
}

// neverRenewed believes in a hold whose lease is not renewed.
func neverRenewed(a attempt) (hold, error) {
	a.opts[0] = primitives.WithLease(a.TTL / 3)
	return wrapped(func(_ *session, h *faultyHold) {
		h.ctx = a.ctx
		h.until = func() time.Time { return time.Now().Add(time.Hour) }
	})(a)
}

// orphan leaves a lock held that nobody knows of.
func orphan(l acquirer) {
	h, err := l.Acquire(context.Background(), primitives.WithWait(0), primitives.WithLease(20*time.Second))
	if err == nil {
		h.Detach()
	}
}
