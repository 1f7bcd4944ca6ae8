package primitives_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// poolModel is what a pool should be like, and who holds what of it.
type poolModel struct {
	set   bool
	free  int
	holds []*modelHold
}

type modelHold struct {
	*primitives.Hold
	permits int
	ends    time.Time // zero: not by itself
	gone    bool      // with its pool, or to another
	tried   bool      // to release it, too late
}

// max is the number of permits, free and taken.
func (m *poolModel) max() int {
	n := m.free
	for _, h := range m.holds {
		if !h.gone {
			n += h.permits
		}
	}
	return n
}

// forget is called when the pool is gone: its permits are too.
func (m *poolModel) forget() {
	m.set, m.free = false, 0
	for _, h := range m.holds {
		h.gone = true
	}
}

func (m *poolModel) create() {
	if !m.set {
		m.set, m.free = true, 0
	}
}

// draw picks a hold, which is then the caller's; nil if there is none.
func (m *poolModel) draw(t *rapid.T) *modelHold {
	if len(m.holds) == 0 {
		return nil
	}
	i := rapid.IntRange(0, len(m.holds)-1).Draw(t, "hold")
	h := m.holds[i]
	m.holds = append(m.holds[:i:i], m.holds[i+1:]...)
	return h
}

// common are the actions of both semaphores. The model's acquire tells how many permits it then has free.
func (m *poolModel) common(ctx context.Context, t *rapid.T, sem countable) map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"init": func(t *rapid.T) {
			n := rapid.IntRange(0, 5).Draw(t, "n")
			created, err := sem.Init(ctx, n)
			require.NoError(t, err)
			require.Equal(t, !m.set, created)
			if created {
				m.set, m.free = true, n
			}
		},
		"add": func(t *rapid.T) {
			n := rapid.IntRange(-3, 3).Draw(t, "n")
			require.NoError(t, sem.Add(ctx, n))
			m.create()
			m.free += n
		},
		"delete": func(t *rapid.T) {
			if rapid.IntRange(0, 3).Draw(t, "rarely") > 0 {
				return
			}
			deleted, err := sem.Delete(ctx)
			require.NoError(t, err)
			require.Equal(t, m.set, deleted)
			m.forget()
		},
	}
}

func TestSemaphoreModel(t *testing.T) {
	s := redistest.Redis(t)
	c, rdb, key := newClient(t, s.Client(t)), s.Client(t), redistest.Name(t)
	rapid.Check(t, func(t *rapid.T) {
		ctx := context.Background()
		require.NoError(t, rdb.Del(ctx, key).Err())
		sem, m := c.Semaphore(key), &poolModel{}
		actions := m.common(ctx, t, sem)
		actions["acquire"] = func(t *rapid.T) {
			n := rapid.IntRange(0, 4).Draw(t, "permits")
			hold, err := sem.TryAcquire(ctx, primitives.WithPermits(n))
			if n > 0 && (!m.set || m.free < n) {
				require.ErrorIs(t, err, primitives.ErrNotAcquired)
				return
			}
			require.NoError(t, err)
			m.free -= n
			m.holds = append(m.holds, &modelHold{Hold: hold, permits: n})
		}
		actions["release"] = func(t *rapid.T) {
			h := m.draw(t)
			if h == nil {
				return
			}
			err := h.Release(ctx)
			switch {
			case h.permits == 0:
				require.NoError(t, err)
			case !m.set:
				require.ErrorIs(t, err, primitives.ErrLost)
			default: // of an earlier semaphore too: nobody can tell
				require.NoError(t, err)
				m.free += h.permits
			}
			require.ErrorIs(t, h.Release(ctx), primitives.ErrReleased)
		}
		actions["drain"] = func(t *rapid.T) {
			n, err := sem.Drain(ctx)
			require.NoError(t, err)
			require.Equal(t, m.free, n)
			m.free = 0
		}
		actions[""] = func(t *rapid.T) {
			got, err := rdb.Get(ctx, key).Int()
			require.Equal(t, m.set, err == nil)
			require.Equal(t, m.free, got)
		}
		t.Repeat(actions)
		for _, h := range m.holds {
			h.Detach()
		}
	})
}

func TestPermitsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { rapid.SyncTest(t, permitsModel) })
}

func permitsModel(t *rapid.T) {
	s := redistest.NewEmbedded()
	rdb := redis.NewClient(s.Options())
	c, err := primitives.New(rdb)
	require.NoError(t, err)
	ctx := context.Background()
	defer func() {
		shut(c)
		require.NoError(t, rdb.Close())
		s.Close()
	}()
	sem, m := c.PermitExpirableSemaphore("n"), &poolModel{}
	live := func(h *modelHold) bool {
		return !h.gone && (h.ends.IsZero() || time.Now().Before(h.ends))
	}
	// collect is what an acquisition does first.
	collect := func() {
		for _, h := range m.holds {
			if !h.gone && !live(h) {
				h.gone = true
				m.free += h.permits
			}
		}
	}
	actions := m.common(ctx, t, sem)
	actions["acquire"] = func(t *rapid.T) {
		n := rapid.IntRange(1, 4).Draw(t, "permits")
		lease := time.Duration(rapid.IntRange(0, 3).Draw(t, "lease")) * 10 * time.Second
		opts := []primitives.Option{primitives.WithPermits(n)}
		ends := time.Time{}
		if lease > 0 {
			opts = append(opts, primitives.WithLease(lease))
			ends = time.Now().Add(lease)
		}
		hold, err := sem.TryAcquire(ctx, opts...)
		if !m.set {
			require.ErrorIs(t, err, primitives.ErrNotAcquired)
			return
		}
		collect()
		if m.free < n {
			require.ErrorIs(t, err, primitives.ErrNotAcquired)
			return
		}
		require.NoError(t, err)
		m.free -= n
		m.holds = append(m.holds, &modelHold{Hold: hold, permits: n, ends: ends})
	}
	actions["release"] = func(t *rapid.T) {
		h := m.draw(t)
		if h == nil {
			return
		}
		err := h.Release(ctx)
		switch {
		case h.tried:
			require.ErrorIs(t, err, primitives.ErrReleased)
		case live(h):
			require.NoError(t, err)
			m.free += h.permits
			return
		default:
			require.ErrorIs(t, err, primitives.ErrLost)
		}
		h.tried = true
		m.holds = append(m.holds, h) // its permits wait for an acquisition to collect them
	}
	actions["release id"] = func(t *rapid.T) {
		h := m.draw(t)
		if h == nil {
			return
		}
		id := h.ID()
		err := sem.ReleaseID(ctx, id+","+strings.Split(id, ",")[0])
		if !live(h) {
			require.ErrorIs(t, err, primitives.ErrNotHeld)
			m.holds = append(m.holds, h)
			return
		}
		require.NoError(t, err)
		m.free += h.permits
		require.ErrorIs(t, h.Check(ctx), primitives.ErrLost)
	}
	actions["adopt"] = func(t *rapid.T) {
		h := m.draw(t)
		if h == nil {
			return
		}
		heir, err := sem.Adopt(ctx, h.ID())
		if !live(h) {
			require.ErrorIs(t, err, primitives.ErrNotHeld)
			m.holds = append(m.holds, h)
			return
		}
		require.NoError(t, err)
		require.ErrorIs(t, h.Release(ctx), primitives.ErrLost)
		m.holds = append(m.holds, &modelHold{Hold: heir, permits: h.permits})
	}
	actions["resize"] = func(t *rapid.T) {
		n := rapid.IntRange(0, 5).Draw(t, "n")
		require.NoError(t, sem.Resize(ctx, n))
		m.create()
		m.free += n - m.max()
	}
	actions["info"] = func(t *rapid.T) {
		info, err := sem.Info(ctx)
		require.NoError(t, err)
		held := 0
		for _, h := range m.holds {
			if live(h) {
				held += h.permits
			}
		}
		require.Len(t, info.Holders, held)
		require.Equal(t, m.max(), info.Permits)
		require.Equal(t, m.max()-held, info.Available)
	}
	actions["time passes"] = func(t *rapid.T) {
		time.Sleep(time.Duration(rapid.IntRange(1, 20).Draw(t, "seconds"))*time.Second + 5*time.Millisecond)
		synctest.Wait()
	}
	actions[""] = func(t *rapid.T) {
		free, err := rdb.Get(ctx, "n").Int()
		require.Equal(t, m.set, err == nil)
		require.Equal(t, m.free, free)
		if m.set { // available + live permits = maximum
			require.Equal(t, int64(m.max()-m.free), rdb.ZCard(ctx, "{n}:timeout").Val())
		}
	}
	t.Repeat(actions)
}
