package primitives_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

// The server runs in a bubble with fake time. Another client holds the lock "taken".
func TestOutcomeOfAnAcquisition(t *testing.T) {
	t.Parallel()
	errStop := errors.New("stop")
	for _, tt := range []struct {
		name string
		act  func(ctx context.Context, s *locktest.Server, c *primitives.Client) error
		want primitives.Outcome
	}{
		{"acquired", func(ctx context.Context, _ *locktest.Server, c *primitives.Client) error {
			return c.Lock("free").Do(ctx, func(context.Context) error { return nil })
		}, primitives.OutcomeAcquired},
		{"nested", func(ctx context.Context, _ *locktest.Server, c *primitives.Client) error {
			return c.Lock("free").Do(ctx, func(ctx context.Context) error {
				return c.Lock("free").Do(ctx, func(context.Context) error { return nil })
			})
		}, primitives.OutcomeNested},
		{"held by another", func(ctx context.Context, _ *locktest.Server, c *primitives.Client) error {
			return tryFail(c.Lock("taken").TryAcquire(ctx))
		}, primitives.OutcomeBusy},
		{"held until the wait was over", func(ctx context.Context, _ *locktest.Server, c *primitives.Client) error {
			return tryFail(c.Lock("taken").Acquire(ctx, primitives.WithWait(1500*time.Millisecond)))
		}, primitives.OutcomeBusy},
		{"held until the deadline", func(ctx context.Context, _ *locktest.Server, c *primitives.Client) error {
			ctx, cancel := context.WithTimeout(ctx, 1500*time.Millisecond)
			defer cancel()
			return tryFail(c.Lock("taken").Acquire(ctx))
		}, primitives.OutcomeEnded},
		{"canceled while a command is in flight", func(ctx context.Context, s *locktest.Server, c *primitives.Client) error {
			s.Partition(true)
			ctx, cancel := context.WithCancelCause(ctx)
			time.AfterFunc(time.Second, func() { cancel(errStop) })
			return tryFail(c.Lock("free").Acquire(ctx))
		}, primitives.OutcomeUnavailable},
		{"closed", func(ctx context.Context, _ *locktest.Server, c *primitives.Client) error {
			time.AfterFunc(time.Second, func() { _ = c.Close(context.Background()) })
			return tryFail(c.Lock("taken").Acquire(ctx))
		}, primitives.OutcomeEnded},
		{"no answer until the deadline", func(ctx context.Context, s *locktest.Server, c *primitives.Client) error {
			s.Partition(true)
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			return tryFail(c.Lock("free").Acquire(ctx))
		}, primitives.OutcomeUnavailable},
		{"no answer until the wait was over", func(ctx context.Context, s *locktest.Server, c *primitives.Client) error {
			s.Partition(true)
			return tryFail(c.Lock("free").Acquire(ctx, primitives.WithWait(time.Second)))
		}, primitives.OutcomeUnavailable},
		{"an outage while it waits", func(ctx context.Context, s *locktest.Server, c *primitives.Client) error {
			time.AfterFunc(500*time.Millisecond, func() { s.Partition(true) })
			return tryFail(c.Lock("taken").Acquire(ctx, primitives.WithWait(20*time.Second)))
		}, primitives.OutcomeUnavailable},
		{"an adoption without an answer", func(ctx context.Context, s *locktest.Server, c *primitives.Client) error {
			s.Partition(true)
			return tryFail(c.Lock("taken").Adopt(ctx, "id"))
		}, primitives.OutcomeUnavailable},
		{"a context that has ended", func(ctx context.Context, _ *locktest.Server, c *primitives.Client) error {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			return tryFail(c.Lock("free").Acquire(ctx))
		}, primitives.OutcomeEnded},
		{"an adoption with a context that has ended", func(
			ctx context.Context, _ *locktest.Server, c *primitives.Client,
		) error {
			ctx, cancel := context.WithCancelCause(ctx)
			cancel(errStop)
			return tryFail(c.Lock("taken").Adopt(ctx, "id"))
		}, primitives.OutcomeEnded},
		{"would deadlock", func(ctx context.Context, _ *locktest.Server, c *primitives.Client) error {
			return c.Lock("free").Do(ctx, func(ctx context.Context) error {
				return tryFail(c.Lock("free").TryAcquire(ctx, primitives.WithNonReentrant()))
			})
		}, primitives.OutcomeError},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := locktest.NewServer(t)
				other, err := primitives.New(s.Client(t))
				require.NoError(t, err)
				taken, err := other.Lock("taken").Acquire(t.Context())
				require.NoError(t, err)
				var first, second lastOutcome
				c, err := primitives.New(s.Client(t), primitives.WithObserver(first.observe),
					primitives.WithObserver(nil), primitives.WithObserver(second.observe))
				require.NoError(t, err)
				err = tt.act(t.Context(), s, c)
				assert.Equal(t, tt.want, first.get())
				assert.Equal(t, tt.want, second.get(), "each observer gets every event")
				if tt.want == primitives.OutcomeAcquired || tt.want == primitives.OutcomeNested {
					require.NoError(t, err)
				} else {
					require.Error(t, err)
				}
				s.Partition(false)
				time.Sleep(time.Minute) // go-redis ends its dials
				_ = taken.Release(t.Context())
				require.NoError(t, c.Close(t.Context()))
				require.NoError(t, other.Close(t.Context()))
			})
		})
	}
}

// tryFail drops the hold of an acquisition that should fail.
func tryFail(_ *primitives.Hold, err error) error { return err }

// lastOutcome is an observer that keeps the latest outcome.
type lastOutcome struct {
	mu      sync.Mutex
	outcome primitives.Outcome
}

func (l *lastOutcome) observe(e primitives.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if o := e.Outcome(); o != "" {
		l.outcome = o
	}
}

func (l *lastOutcome) get() primitives.Outcome {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.outcome
}
