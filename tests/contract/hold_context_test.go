package contract

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// A hold whose context is that of WithHoldContext ends with it, and not with the context of its
// acquisition, whatever its kind is. It stays held.
func TestWithHoldContextReplacesAcquires(t *testing.T) {
	t.Parallel()
	type key struct{}
	fixture.EachKind(t, kinds.All(), func(t *testing.T, s *redistest.Server, k kinds.Kind) {
		c, name := fixture.NewClient(t, s.Client(t)), redistest.Name(t)
		request, endRequest := context.WithCancel(context.WithValue(t.Context(), key{}, "request"))
		reason := errors.New("over")
		term, endTerm := context.WithCancelCause(context.WithValue(t.Context(), key{}, "term"))
		handle := k.One(t, c, name)
		hold := fixture.Acquire(t, request, handle, primitives.WithHoldContext(term))
		require.Equal(t, "term", hold.Context().Value(key{}))
		if l, ok := handle.(*primitives.Lock); ok {
			require.Same(t, hold, l.HoldFrom(hold.Context()))
		}
		endRequest()
		fixture.RequireLive(t, hold.Context())
		endTerm(reason)
		fixture.RequireEnds(t, hold.Context(), reason)
		if k.Leased {
			require.NoError(t, hold.Check(t.Context()), "it is held all the same")
		}
		fixture.Release(t, hold)
	})
}

// However a hold comes about, it has the context that the call asked for.
func TestWithHoldContextOfAnyHold(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		type key struct{}
		own := context.WithValue(t.Context(), key{}, "own")
		with := primitives.WithHoldContext(own)
		for name, get := range map[string]func(c *primitives.Client, l *primitives.Lock) (*primitives.Hold, error){
			"an outermost one": func(_ *primitives.Client, l *primitives.Lock) (*primitives.Hold, error) {
				return l.TryAcquire(t.Context(), with)
			},
			"a nested one": func(_ *primitives.Client, l *primitives.Lock) (*primitives.Hold, error) {
				hold, err := l.Acquire(fixture.Acquire(t, t.Context(), l).Context(), with)
				if err == nil && hold.Depth() != 2 {
					err = errors.New("not nested: that goes by the context of Acquire")
				}
				return hold, err
			},
			"an adopted one": func(c *primitives.Client, l *primitives.Lock) (*primitives.Hold, error) {
				return l.Adopt(t.Context(), fixture.Acquire(t, t.Context(),
					fixture.NewClient(t, s.Client(t)).Lock(l.Name())).Detach(), with)
			},
			"one that was handed off": func(c *primitives.Client, l *primitives.Lock) (*primitives.Hold, error) {
				hold := fixture.Acquire(t, t.Context(), l)
				waiting := fixture.StartAcquire(t.Context(), l, with)
				fixture.AwaitWaiters(t, c, 1)
				fixture.Release(t, hold)
				return fixture.AwaitHold(t, waiting), nil
			},
			"one of a cohort": func(c *primitives.Client, l *primitives.Lock) (*primitives.Hold, error) {
				l = c.Lock(l.Name(), primitives.WithCohort(fixture.Soon))
				hold := fixture.Acquire(t, t.Context(), l)
				waiting := fixture.StartAcquire(t.Context(), l, with)
				fixture.AwaitWaiters(t, c, 1)
				fixture.Release(t, hold)
				return fixture.AwaitHold(t, waiting), nil
			},
			"one of a lock that lingers": func(c *primitives.Client, l *primitives.Lock) (*primitives.Hold, error) {
				l = c.Lock(l.Name(), primitives.WithLinger(fixture.Soon))
				fixture.Release(t, fixture.Acquire(t, t.Context(), l))
				return l.Acquire(t.Context(), with)
			},
		} {
			t.Run(name, func(t *testing.T) {
				c := fixture.NewClient(t, s.Client(t))
				hold, err := get(c, c.Lock(redistest.Name(t)))
				require.NoError(t, err)
				require.Equal(t, "own", hold.Context().Value(key{}))
				inner := fixture.Acquire(t, hold.Context(), c.Lock(hold.Name()))
				require.Equal(t, hold.Depth()+1, inner.Depth())
				fixture.Release(t, inner, hold)
				fixture.RequireEnds(t, hold.Context(), primitives.ErrReleased)
			})
		}
	})
}

// The given context has no part in the acquisition, and belongs to a single call.
func TestWithHoldContextCorners(t *testing.T) {
	t.Parallel()
	c, name := fixture.NewClient(t, redistest.Miniredis(t).Client(t)), redistest.Name(t)
	reason := errors.New("over")
	over, end := context.WithCancelCause(t.Context())
	end(reason)
	err := c.Lock(name).Do(t.Context(), func(ctx context.Context) error { return context.Cause(ctx) },
		primitives.WithHoldContext(over))
	require.Equal(t, reason, err, "the lock is acquired, and its context is done")
	ended, stop := context.WithCancel(t.Context())
	stop()
	require.ErrorIs(t, fixture.ErrOf(c.Lock(name).Acquire(ended, primitives.WithHoldContext(t.Context()))),
		context.Canceled)

	given := primitives.WithHoldContext(t.Context())
	member := c.Lock(name + "m")
	for what, err := range map[string]error{
		//nolint:staticcheck // it is refused
		"a nil context":   fixture.ErrOf(c.Lock(name).Acquire(t.Context(), primitives.WithHoldContext(nil))),
		"of a handle":     fixture.ErrOf(c.Lock(name, given).Acquire(t.Context())),
		"of a pool":       fixture.ErrOf(c.Semaphore(name, given).Acquire(t.Context())),
		"of a joint lock": fixture.ErrOf(primitives.NewMultiLock([]*primitives.Lock{member}, given).Acquire(t.Context())),
		"of a member": fixture.ErrOf(primitives.NewRedLock([]*primitives.Lock{c.Lock(name,
			given)}).Acquire(t.Context())),
		"of a striped lock": fixture.ErrOf(c.Striped(name, 3, given).Lock("k").Acquire(t.Context())),
		"of a client":       fixture.ErrOf(primitives.New(redistest.Miniredis(t).Client(t), primitives.WithDefaults(given))),
	} {
		require.ErrorIs(t, err, primitives.ErrInvalid, what)
	}
}
