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

func TestSmoke(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx := t.Context()
		name := redistest.Name(t)
		c, err := primitives.New(s.Client(t), primitives.WithObserver(func(e primitives.Event) { t.Logf("%+v", e) }))
		require.NoError(t, err)
		l := c.Lock(name)
		h, err := l.Acquire(ctx)
		require.NoError(t, err)
		in, err := l.Acquire(h.Context())
		require.NoError(t, err)
		require.Equal(t, 2, in.Depth())
		info, err := l.Info(ctx)
		require.NoError(t, err)
		t.Logf("%+v", info)
		_, err = l.TryAcquire(ctx)
		require.ErrorIs(t, err, primitives.ErrNotAcquired)
		_, err = l.Acquire(ctx, primitives.WithWait(30*time.Millisecond))
		require.ErrorIs(t, err, primitives.ErrNotAcquired)
		require.NoError(t, in.Release(ctx))
		require.NoError(t, h.Release(ctx))
		require.ErrorIs(t, h.Release(ctx), primitives.ErrReleased)
		n := 0
		var wg sync.WaitGroup
		for range 8 {
			c, err := primitives.New(s.Client(t))
			require.NoError(t, err)
			defer func() { require.NoError(t, c.Close(context.Background())) }()
			l := c.Lock(name)
			for range 4 {
				wg.Go(func() {
					for range 25 {
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
		require.Equal(t, 800, n)
		require.NoError(t, c.Close(ctx))
	})
}
