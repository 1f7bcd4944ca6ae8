package primitives_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

func newTestClient(t *testing.T, s *redistest.Server, opts ...primitives.ClientOption) *primitives.Client {
	t.Helper()
	c, err := primitives.New(s.Client(t), opts...)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = c.Close(ctx)
	})
	return c
}

func TestJointLocks(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for kind, join := range map[string]func([]*primitives.Lock, ...primitives.Option) *primitives.Lock{"multi": primitives.NewMultiLock, "red": primitives.NewRedLock} {
			t.Run(kind, func(t *testing.T) {
				ctx := t.Context()
				c, other := newTestClient(t, s), newTestClient(t, s)
				a, b, d := redistest.Name(t), redistest.Name(t), redistest.Name(t)
				members := func(c *primitives.Client) []*primitives.Lock {
					return []*primitives.Lock{c.Lock(b), c.Lock(a), c.Lock(d)}
				}
				l := join(members(c))
				hold, err := l.Acquire(ctx)
				require.NoError(t, err)
				for _, name := range []string{a, b, d} {
					info, err := c.Lock(name).Info(ctx)
					require.NoError(t, err)
					require.Equal(t, hold.ID(), info.Holders[0].ID)
				}
				_, err = join(members(other)).TryAcquire(ctx)
				require.ErrorIs(t, err, primitives.ErrNotAcquired)
				inner, err := l.Acquire(hold.Context())
				require.NoError(t, err)
				require.Equal(t, 2, inner.Depth())
				require.Same(t, hold, l.HoldFrom(hold.Context()))
				single, err := c.Lock(a).Acquire(inner.Context())
				require.NoError(t, err)
				require.Equal(t, 3, single.Depth())
				require.NoError(t, single.Release(ctx))
				require.NoError(t, inner.Release(ctx))
				require.NoError(t, hold.Check(ctx))
				_, err = c.Lock(a).ForceRelease(ctx)
				require.NoError(t, err)
				if kind == "multi" {
					require.ErrorIs(t, hold.Check(ctx), primitives.ErrLost)
					require.ErrorIs(t, context.Cause(hold.Context()), primitives.ErrLost)
					require.ErrorIs(t, hold.Release(ctx), primitives.ErrLost)
				} else {
					require.NoError(t, hold.Check(ctx))
					require.NoError(t, hold.Release(ctx))
				}
				for _, name := range []string{a, b, d} {
					info, err := c.Lock(name).Info(ctx)
					require.NoError(t, err)
					require.Empty(t, info.Holders)
				}

				n := 0
				var wg sync.WaitGroup
				for i := range 4 {
					mine := members(newTestClient(t, s))
					if i%2 == 1 {
						mine[0], mine[2] = mine[2], mine[0]
					}
					l := join(mine)
					for range 2 {
						wg.Go(func() {
							for range 15 {
								if err := l.Do(ctx, func(context.Context) error { n++; return nil }); err != nil {
									t.Error(err)
								}
							}
						})
					}
				}
				start := time.Now()
				wg.Wait()
				t.Log(time.Since(start))
				require.Equal(t, 120, n)
			})
		}
	})
}

func TestFencedTokensRise(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx := t.Context()
		name := redistest.Name(t)
		var last int64
		for range 5 {
			l := newTestClient(t, s).FencedLock(name)
			hold, err := l.Acquire(ctx)
			require.NoError(t, err)
			require.Greater(t, hold.Token(), last)
			last = hold.Token()
			inner, err := l.Acquire(hold.Context())
			require.NoError(t, err)
			require.Equal(t, last, inner.Token())
			require.NoError(t, inner.Release(ctx))
			require.NoError(t, hold.Release(ctx))
		}
		require.EqualValues(t, 5, last)
	})
}
