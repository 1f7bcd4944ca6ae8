package gocronlock

import (
	"context"
	"slices"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/redlatch/redlatch/primitives"
)

// Locker is a gocron.Locker. It is safe for concurrent use, and several schedulers may share it.
type Locker struct {
	client *primitives.Client
	opts   []primitives.Option
}

var _ gocron.Locker = (*Locker)(nil)

// NewLocker returns a Locker that takes locks of c, each under the name of its job.
//
// A lock is not free again before minHold, counted from its acquisition: see
// [primitives.WithMinHold]. 0 is no minimum. The lock is renewed while the job runs. opts are
// further options of the acquisition, such as [primitives.WithWatchdog]. A run is skipped at once
// if another scheduler has the lock, unless opts contain a [primitives.WithWait].
//
// A bad option makes each Lock fail with [primitives.ErrInvalid].
func NewLocker(c *primitives.Client, minHold time.Duration, opts ...primitives.Option) *Locker {
	first := []primitives.Option{primitives.WithWait(0), primitives.WithMinHold(minHold)}
	return &Locker{client: c, opts: withoutLinger(append(first, opts...))}
}

// withoutLinger makes locks not linger, whatever the client's defaults say. Schedulers only try
// once, so they cannot ask another scheduler for a lock that lingers there.
func withoutLinger(opts []primitives.Option) []primitives.Option {
	return append(slices.Clone(opts), primitives.WithLinger(0))
}

// Lock takes the lock of a job. An error makes gocron skip this run: it matches
// [primitives.ErrNotAcquired] if another scheduler has the lock, and [primitives.ErrUnavailable] if
// Redis does not answer. The result is a *[Lock].
func (l *Locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	hold, err := l.client.Lock(key).Acquire(ctx, l.opts...)
	if err != nil {
		return nil, err
	}
	return &Lock{hold}, nil
}

// Lock is the lock of one run of a job. It is renewed until Unlock.
type Lock struct{ hold *primitives.Hold }

// Unlock frees the lock, or leaves it for the rest of its minimum hold. It works even if ctx is
// done. [primitives.ErrLost] means that the lock was lost while the job ran.
func (l *Lock) Unlock(ctx context.Context) error { return l.hold.Release(ctx) }

// Context ends when the lock is lost or unlocked, or with the context of the job. [context.Cause]
// tells which: [primitives.ErrLost] after a loss.
func (l *Lock) Context() context.Context { return l.hold.Context() }
