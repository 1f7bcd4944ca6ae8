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

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// poolModel is the expected state of a pool, and its holds.
type poolModel struct {
	set   bool // the number of permits is set
	free  int
	holds []*poolModelHold
}

type poolModelHold struct {
	*primitives.Hold
	permits int
	ends    time.Time // when its lease ends; zero for never
	gone    bool      // deleted with its pool, or collected
	tried   bool      // Release was called too late
}

// total returns the number of permits, free and taken.
func (m *poolModel) total() int {
	n := m.free
	for _, h := range m.holds {
		if !h.gone {
			n += h.permits
		}
	}
	return n
}

// deletePool deletes the pool and its permits.
func (m *poolModel) deletePool() {
	m.set, m.free = false, 0
	for _, h := range m.holds {
		h.gone = true
	}
}

// create makes the pool, with no permit, unless it exists.
func (m *poolModel) create() {
	if !m.set {
		m.set, m.free = true, 0
	}
}

// draw removes a random hold from the model and returns it; nil if there is none.
func (m *poolModel) draw(t *rapid.T) *poolModelHold {
	if len(m.holds) == 0 {
		return nil
	}
	i := rapid.IntRange(0, len(m.holds)-1).Draw(t, "hold")
	h := m.holds[i]
	m.holds = append(m.holds[:i:i], m.holds[i+1:]...)
	return h
}

// common returns the actions that both kinds of semaphores share.
func (m *poolModel) common(ctx context.Context, t *rapid.T, sem fixture.Countable) map[string]func(*rapid.T) {
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
			m.deletePool()
		},
	}
}

func TestSemaphoreModel(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	c, rdb, key := fixture.NewClient(t, s.Client(t)), s.Client(t), redistest.Name(t)
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
			m.holds = append(m.holds, &poolModelHold{Hold: hold, permits: n})
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
			case h.gone: // a permit of an earlier semaphore is lost
				require.ErrorIs(t, err, primitives.ErrLost)
			default:
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
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) { rapid.SyncTest(t, runPermitsModel) })
}

// permitsModel is a pool of permits in fake time, and its model.
type permitsModel struct {
	*poolModel
	sem *primitives.PermitExpirableSemaphore
	ctx context.Context
}

func runPermitsModel(t *rapid.T) {
	s := redistest.NewEmbedded()
	rdb := redis.NewClient(s.Options())
	c, err := primitives.New(rdb)
	require.NoError(t, err)
	ctx := context.Background()
	defer func() {
		fixture.CloseNow(c)
		require.NoError(t, rdb.Close())
		s.Close()
	}()
	m := &permitsModel{&poolModel{}, c.PermitExpirableSemaphore("n"), ctx}
	actions := m.common(ctx, t, m.sem)
	actions["acquire"] = m.acquire
	actions["release"] = m.release
	actions["release id"] = m.releaseID
	actions["adopt"] = m.adopt
	actions["resize"] = m.resize
	actions["info"] = m.info
	actions["time passes"] = func(t *rapid.T) {
		time.Sleep(time.Duration(rapid.IntRange(1, 20).Draw(t, "seconds"))*time.Second + 5*time.Millisecond)
		synctest.Wait()
	}
	actions[""] = func(t *rapid.T) {
		free, err := rdb.Get(ctx, "n").Int()
		require.Equal(t, m.set, err == nil)
		require.Equal(t, m.free, free)
		if m.set { // free and taken permits add up to the total
			require.Equal(t, int64(m.total()-m.free), rdb.ZCard(ctx, "{n}:timeout").Val())
		}
	}
	t.Repeat(actions)
}

// live reports whether the lease of h lasts.
func (h *poolModelHold) live() bool {
	return !h.gone && (h.ends.IsZero() || time.Now().Before(h.ends))
}

// collect frees expired permits, as each acquisition does first.
func (m *permitsModel) collect() {
	for _, h := range m.holds {
		if !h.gone && !h.live() {
			h.gone = true
			m.free += h.permits
		}
	}
}

func (m *permitsModel) acquire(t *rapid.T) {
	n := rapid.IntRange(1, 4).Draw(t, "permits")
	lease := time.Duration(rapid.IntRange(0, 3).Draw(t, "lease")) * 10 * time.Second
	opts := []primitives.Option{primitives.WithPermits(n)}
	ends := time.Time{}
	if lease > 0 {
		opts = append(opts, primitives.WithLease(lease))
		ends = time.Now().Add(lease)
	}
	hold, err := m.sem.TryAcquire(m.ctx, opts...)
	if !m.set {
		require.ErrorIs(t, err, primitives.ErrNotAcquired)
		return
	}
	m.collect()
	if m.free < n {
		require.ErrorIs(t, err, primitives.ErrNotAcquired)
		return
	}
	require.NoError(t, err)
	m.free -= n
	m.holds = append(m.holds, &poolModelHold{Hold: hold, permits: n, ends: ends})
}

func (m *permitsModel) release(t *rapid.T) {
	h := m.draw(t)
	if h == nil {
		return
	}
	err := h.Release(m.ctx)
	switch {
	case h.tried:
		require.ErrorIs(t, err, primitives.ErrReleased)
	case h.live():
		require.NoError(t, err)
		m.free += h.permits
		return
	default:
		require.ErrorIs(t, err, primitives.ErrLost)
	}
	h.tried = true
	m.holds = append(m.holds, h) // the next acquisition collects its permits
}

func (m *permitsModel) releaseID(t *rapid.T) {
	h := m.draw(t)
	if h == nil {
		return
	}
	id := h.ID()
	err := m.sem.ReleaseID(m.ctx, id+","+strings.Split(id, ",")[0])
	if !h.live() {
		require.ErrorIs(t, err, primitives.ErrNotHeld)
		m.holds = append(m.holds, h)
		return
	}
	require.NoError(t, err)
	m.free += h.permits
	require.ErrorIs(t, h.Check(m.ctx), primitives.ErrLost)
}

func (m *permitsModel) adopt(t *rapid.T) {
	h := m.draw(t)
	if h == nil {
		return
	}
	adopted, err := m.sem.Adopt(m.ctx, h.ID())
	if !h.live() {
		require.ErrorIs(t, err, primitives.ErrNotHeld)
		m.holds = append(m.holds, h)
		return
	}
	require.NoError(t, err)
	require.ErrorIs(t, h.Release(m.ctx), primitives.ErrLost)
	m.holds = append(m.holds, &poolModelHold{Hold: adopted, permits: h.permits})
}

func (m *permitsModel) resize(t *rapid.T) {
	n := rapid.IntRange(0, 5).Draw(t, "n")
	require.NoError(t, m.sem.Resize(m.ctx, n))
	m.create()
	m.free += n - m.total()
}

func (m *permitsModel) info(t *rapid.T) {
	info, err := m.sem.Info(m.ctx)
	require.NoError(t, err)
	held := 0
	for _, h := range m.holds {
		if h.live() {
			held += h.permits
		}
	}
	require.Len(t, info.Holders, held)
	require.Equal(t, m.total(), info.Permits)
	require.Equal(t, m.total()-held, info.Available)
}
