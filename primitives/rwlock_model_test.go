package primitives_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// rwModel is what should stand in Redis: plain Go, on the clock of the bubble.
type rwModel struct {
	ends    time.Time              // of the hash; in the past when nothing is held
	writer  string                 // "" when nobody writes
	count   int                    // of the writer
	readers map[string][]time.Time // when each hold of a reader ends
}

func (m *rwModel) tick() {
	if !time.Now().Before(m.ends) {
		*m = rwModel{readers: map[string][]time.Time{}}
	}
}

func latest(ends []time.Time) (last time.Time) {
	for _, end := range ends {
		if end.After(last) {
			last = end
		}
	}
	return last
}

func (m *rwModel) life(id string) time.Time { return latest(m.readers[id]) }
func (m *rwModel) reads(id string) bool     { return time.Now().Before(m.life(id)) }
func (m *rwModel) held() bool               { return time.Now().Before(m.ends) }

func (m *rwModel) raise(end time.Time) {
	if end.After(m.ends) {
		m.ends = end
	}
}

// anyReader tells whether one is alive.
func (m *rwModel) anyReader() bool { return len(m.alive()) > 0 }

func (m *rwModel) alive() (ids []string) {
	for id := range m.readers {
		if m.reads(id) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// settle: the lock lasts as long as its readers, and the dead are buried.
func (m *rwModel) settle() {
	if m.writer != "" {
		return
	}
	maps.DeleteFunc(m.readers, func(id string, _ []time.Time) bool { return !m.reads(id) })
	m.last()
}

func (m *rwModel) last() {
	m.ends = time.Time{}
	for _, id := range m.alive() {
		m.raise(m.life(id))
	}
	m.tick()
}

func (m *rwModel) read(id string, end time.Time) error {
	if !m.reads(id) {
		if m.writer != "" && m.writer != id {
			return primitives.ErrNotAcquired
		}
		m.readers[id] = nil
	}
	m.readers[id] = append(m.readers[id], end)
	m.raise(end)
	return nil
}

func (m *rwModel) write(id string, end time.Time) error {
	switch {
	case m.writer == id:
	case m.reads(id):
		return primitives.ErrDeadlock
	case m.held():
		return primitives.ErrNotAcquired
	}
	m.writer = id
	m.count++
	m.raise(end)
	return nil
}

func (m *rwModel) take(id string, write bool, end time.Time) error {
	if write {
		return m.write(id, end)
	}
	return m.read(id, end)
}

// shrink takes holds off a reader; the longest lease stays.
func (m *rwModel) shrink(id string, count int) {
	life := m.life(id)
	if count == 0 {
		delete(m.readers, id)
		m.settle()
		return
	}
	m.readers[id] = m.readers[id][:count]
	if m.life(id).Before(life) {
		m.readers[id][count-1] = life
	}
}

// unwrite: the writer leaves, and what it reads stays.
func (m *rwModel) unwrite() {
	m.writer, m.count = "", 0
	m.settle()
}

// rwModelTenure is one acquisition on the wire, rwModelHold one hold of it.
type rwModelTenure struct {
	id     string
	write  bool
	shared bool
	holds  int
	lost   bool
	ends   time.Time
}

type rwModelHold struct {
	*primitives.Hold
	*rwModelTenure
	outer *rwModelHold // whose context it was acquired with
	turn  *rwModelHold // whose turn it has taken
	ends  time.Time    // its lease
	limit time.Time
	done  bool
}

// GoString is how rapid tells of it.
func (h *rwModelHold) GoString() string {
	return fmt.Sprintf("%s write=%t shared=%t holds=%d lost=%t done=%t", h.id[max(0, len(h.id)-4):], h.write, h.shared, h.holds, h.lost, h.done)
}

func (h *rwModelHold) live() bool {
	return !h.done && !h.lost && time.Now().Before(h.limit) && !h.told()
}

// told reports whether the library has ended h as lost, and h was not released since. A takeover by an
// action of the model is found in the background.
func (h *rwModelHold) told() bool {
	return !h.done && errors.Is(context.Cause(h.Context()), primitives.ErrLost)
}

// cut takes holds off a private reader: what stays lasts until need at the most.
func (m *rwModel) cut(id string, count int, need time.Time) {
	if life := m.life(id); life.Before(need) {
		need = life
	}
	ends := m.readers[id][:count]
	for i, end := range ends {
		if end.After(need) || i == count-1 {
			ends[i] = need
		}
	}
	m.readers[id] = ends
	m.settle()
}

// leave gives back what a hold has, and tells whether it was still there. need is when the leases of the tenure's other live holds end,
// zero if there are none.
func (m *rwModel) leave(t *rwModelTenure, need time.Time) bool {
	t.holds--
	switch {
	case t.write && (m.writer != t.id):
		return false
	case t.write && t.shared && m.count > 1:
		m.count--
	case t.write && t.holds > 0:
		m.count = t.holds
	case t.write:
		m.unwrite()
	case m.readers[t.id] == nil:
		return false
	case !m.reads(t.id):
		m.shrink(t.id, 0)
		return false
	case t.shared:
		m.shrink(t.id, len(m.readers[t.id])-1)
	case t.holds == 0 || need.IsZero():
		m.shrink(t.id, 0)
	case t.holds < len(m.readers[t.id]):
		m.cut(t.id, t.holds, need)
	}
	return true
}

// idOf is the id that an acquisition was given; one that failed would have had another than all.
func idOf(hold *primitives.Hold) string {
	if hold == nil {
		return "none"
	}
	return hold.ID()
}

// rwModelRun is one sequence of calls.
type rwModelRun struct {
	m     *rwModel
	holds []*rwModelHold
	rw    *primitives.RWLock
}

func (r *rwModelRun) side(write bool) *primitives.Lock {
	if write {
		return r.rw.Writer()
	}
	return r.rw.Reader()
}

func TestRWLockModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) { rapid.SyncTest(t, rwLockModel) })
}

func rwLockModel(t *rapid.T) {
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
	x := &rwTest{s: s, rdb: rdb, c: c, name: "n", rw: c.RWLock("n"), channel: "redisson_rwlock:{n}"}
	r := &rwModelRun{m: &rwModel{readers: map[string][]time.Time{}}, rw: x.rw}
	m := r.m
	drawHold := func(t *rapid.T) *rwModelHold {
		if len(r.holds) == 0 {
			t.Skip("nothing is held")
		}
		return rapid.SampledFrom(r.holds).Draw(t, "hold")
	}
	drawLease := func(t *rapid.T) time.Duration {
		return time.Duration(rapid.IntRange(1, 6).Draw(t, "lease")) * 10 * time.Second
	}
	drawSide := func(t *rapid.T) bool { return rapid.IntRange(0, 2).Draw(t, "side") == 0 }
	// got notes a hold that was acquired for lease.
	got := func(hold *primitives.Hold, tenure *rwModelTenure, lease time.Duration) *rwModelHold {
		end := time.Now().Add(lease)
		h := &rwModelHold{Hold: hold, rwModelTenure: tenure, ends: end, limit: end.Add(-lease/100 - 2*time.Millisecond)}
		tenure.holds++
		if end.After(tenure.ends) {
			tenure.ends = end
		}
		r.holds = append(r.holds, h)
		return h
	}
	outermost := func(t *rapid.T, owner string, write bool) {
		lease := drawLease(t)
		opts := []primitives.Option{primitives.WithLease(lease)}
		if owner != "" {
			opts = append(opts, primitives.WithOwner(owner))
		}
		hold, err := r.side(write).TryAcquire(ctx, opts...)
		id := owner
		if owner == "" {
			id = idOf(hold)
		}
		want := m.take(id, write, time.Now().Add(lease))
		require.ErrorIs(t, err, want)
		if want == nil {
			require.Equal(t, id, hold.ID())
			require.Equal(t, 1, hold.Depth())
			got(hold, &rwModelTenure{id: id, write: write, shared: owner != ""}, lease)
		}
	}
	java := func(t *rapid.T) *foreign { return x.foreign(rapid.IntRange(1, 2).Draw(t, "thread")) }
	actions := map[string]func(*rapid.T){
		"acquire": func(t *rapid.T) { outermost(t, "", drawSide(t)) },
		"acquire as owner": func(t *rapid.T) {
			outermost(t, rapid.SampledFrom([]string{"o", "p"}).Draw(t, "owner"), drawSide(t))
		},
		"nest": func(t *rapid.T) {
			h, write, lease := drawHold(t), drawSide(t), drawLease(t)
			hold, err := r.side(write).TryAcquire(context.WithoutCancel(h.Context()), primitives.WithLease(lease))
			outer, deadlock := r.parent(h, write)
			if outer == nil && !deadlock { // all have ended: it is an outermost one
				id := idOf(hold)
				want := m.take(id, write, time.Now().Add(lease))
				require.ErrorIs(t, err, want)
				if want == nil {
					got(hold, &rwModelTenure{id: id, write: write}, lease).outer = h
				}
				return
			}
			if deadlock {
				require.ErrorIs(t, err, primitives.ErrDeadlock)
				return
			}
			if outer.told() { // nothing nests under a hold that is known to be lost
				require.ErrorIs(t, err, primitives.ErrLost)
				return
			}
			tenure, want := r.nest(outer, write, lease)
			require.ErrorIs(t, err, want)
			if want == nil {
				in := got(hold, tenure, lease)
				in.outer = h
				if write {
					in.turn = outer
				}
				require.Equal(t, outer.ID(), hold.ID())
				require.Equal(t, outer.Depth()+1, hold.Depth())
			}
		},
		"release": func(t *rapid.T) {
			h := drawHold(t)
			err := h.Release(ctx)
			switch {
			case h.done:
				require.ErrorIs(t, err, primitives.ErrReleased)
			case !h.live():
				require.ErrorIs(t, err, primitives.ErrLost)
				if h.holds--; h.holds == 0 && !h.shared && time.Now().Before(h.rwModelTenure.ends) { // in the background
					h.holds++
					time.Sleep(30 * time.Millisecond)
					synctest.Wait()
					m.tick()
					m.leave(h.rwModelTenure, time.Time{})
				}
			case m.leave(h.rwModelTenure, r.need(h)):
				require.NoError(t, err)
			default:
				require.ErrorIs(t, err, primitives.ErrLost)
				h.lost = true
			}
			h.done = true
		},
		"release id": func(t *rapid.T) {
			h := drawHold(t)
			err := r.side(h.write).ReleaseID(ctx, h.id)
			if m.leave(&rwModelTenure{id: h.id, write: h.write, shared: true, holds: 1}, time.Time{}) {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, primitives.ErrNotHeld)
			}
		},
		"adopt": func(t *rapid.T) {
			h, lease := drawHold(t), drawLease(t)
			hold, err := r.side(h.write).Adopt(ctx, h.id, primitives.WithLease(lease))
			end := time.Now().Add(lease)
			switch {
			case h.write && m.writer == h.id:
				require.NoError(t, err)
				m.writer = hold.ID()
				delete(m.readers, h.id)
				m.ends = end
			case !h.write && m.reads(h.id) && m.writer != "":
				require.ErrorIs(t, err, primitives.ErrUnsupported)
				return
			case !h.write && m.reads(h.id):
				require.NoError(t, err)
				m.readers[hold.ID()] = slices.Repeat([]time.Time{end}, len(m.readers[h.id]))
				delete(m.readers, h.id)
				m.settle()
			default:
				require.ErrorIs(t, err, primitives.ErrNotHeld)
				return
			}
			got(hold, &rwModelTenure{id: hold.ID(), write: h.write}, lease)
		},
		"force": func(t *rapid.T) {
			write := drawSide(t)
			if rapid.IntRange(0, 3).Draw(t, "rarely") > 0 {
				return
			}
			held, err := r.side(write).ForceRelease(ctx)
			require.NoError(t, err)
			if write {
				require.Equal(t, m.writer != "", held)
				if held {
					m.unwrite()
				}
				return
			}
			require.Equal(t, m.anyReader(), held)
			m.readers = map[string][]time.Time{}
			m.settle()
		},
		"check": func(t *rapid.T) {
			h := drawHold(t)
			err := h.Check(ctx)
			switch {
			case h.done:
				require.Error(t, err)
			case !h.live():
				require.ErrorIs(t, err, primitives.ErrLost)
			case h.write == (m.writer == h.id) && (h.write || m.reads(h.id)), !h.write && m.reads(h.id):
				require.NoError(t, err)
			default:
				require.ErrorIs(t, err, primitives.ErrLost)
				h.lost = true
			}
		},
		"Java reads": func(t *rapid.T) {
			f, lease := java(t), drawLease(t)
			// Among many readers a script may leave a dead one's field for the next to bury.
			dead := !m.reads(f.id) && rdb.HExists(ctx, "n", f.id).Val()
			if dead {
				t.Skip("it would count the dead hold in")
			}
			in := f.readLock(t, lease)
			require.Equal(t, in, m.read(f.id, time.Now().Add(lease)) == nil)
		},
		"Java stops reading": func(t *rapid.T) {
			f := java(t)
			if !m.reads(f.id) {
				t.Skip("it does not read")
			}
			f.readUnlock(t)
			keys := m.readers[f.id]
			m.readers[f.id] = keys[:len(keys)-1]
			if len(keys) == 1 {
				delete(m.readers, f.id)
			}
			if m.writer == "" || m.anyReader() { // Redisson goes by the readers even while it writes
				m.last()
			}
		},
		"Java writes": func(t *rapid.T) {
			f, lease := java(t), drawLease(t)
			end := time.Now().Add(lease)
			if m.writer == f.id { // Redisson adds up
				end = m.ends.Add(lease)
			}
			require.Equal(t, m.write(f.id, end) == nil, f.writeLock(t, lease))
		},
		"Java stops writing": func(t *rapid.T) {
			f := java(t)
			if m.writer != f.id {
				t.Skip("it does not write")
			}
			f.writeUnlock(t)
			if m.count--; m.count == 0 {
				m.writer = ""
				if len(m.readers) == 0 { // of those that are dead too; and it leaves the time as it is
					m.ends = time.Time{}
				}
			}
		},
		"time passes": func(t *rapid.T) {
			time.Sleep(time.Duration(rapid.IntRange(1, 200).Draw(t, "ds")) * 100 * time.Millisecond)
			synctest.Wait()
			m.tick()
		},
		"": func(t *rapid.T) {
			m.tick()
			r.requireSame(t, rdb)
		},
	}
	t.Repeat(actions)
}

// parent is what an acquisition with h's context nests in.
func (r *rwModelRun) parent(h *rwModelHold, write bool) (outer *rwModelHold, deadlock bool) {
	find := func(write, lost bool) *rwModelHold {
		for o := h; o != nil; o = o.outer {
			if o.write == write && (o.live() || lost && o.told()) {
				return o
			}
		}
		return nil
	}
	if outer = find(write, true); outer != nil {
		return outer, false
	}
	outer = find(!write, !write) // only a live reader keeps itself from writing
	return outer, outer != nil && write
}

// need is when the leases of those end that share h's tenure and are live.
func (r *rwModelRun) need(h *rwModelHold) (need time.Time) {
	for _, o := range r.holds {
		if o != h && o.rwModelTenure == h.rwModelTenure && o.live() && o.ends.After(need) {
			need = o.ends
		}
	}
	return need
}

// nest is what acquiring one side under outer comes to.
func (r *rwModelRun) nest(outer *rwModelHold, write bool, lease time.Duration) (*rwModelTenure, error) {
	m, end := r.m, time.Now().Add(lease)
	if outer.write && write {
		for _, h := range r.holds {
			if h.turn == outer && h.live() {
				return nil, primitives.ErrNotAcquired
			}
		}
	}
	switch {
	case (write || outer.write || outer.shared) && m.writer != outer.id && (write || !m.reads(outer.id)):
		outer.lost = outer.lost || !outer.shared && write
		return nil, primitives.ErrLost
	case !write && (outer.write || outer.shared):
		return &rwModelTenure{id: outer.id, shared: true}, m.read(outer.id, end)
	case outer.shared:
		return &rwModelTenure{id: outer.id, shared: true, write: true}, m.write(outer.id, end)
	case write && m.writer == outer.id:
		m.count = outer.holds + 1
	case !write && m.reads(outer.id):
		for len(m.readers[outer.id]) <= outer.holds {
			m.readers[outer.id] = append(m.readers[outer.id], time.Time{})
		}
		if last := &m.readers[outer.id][outer.holds]; end.After(*last) {
			*last = end
		}
	default:
		outer.lost = true
		return nil, primitives.ErrLost
	}
	m.raise(end)
	return outer.rwModelTenure, nil
}

// requireSame compares the model with Redis and with what the lock tells.
func (r *rwModelRun) requireSame(t *rapid.T, rdb *redis.Client) {
	ctx, m := context.Background(), r.m
	hash := rdb.HGetAll(ctx, "n").Val()
	require.Equal(t, m.held(), len(hash) > 0)
	reader, err := r.rw.Reader().Info(ctx)
	require.NoError(t, err)
	var ids []string
	for _, h := range reader.Holders {
		ids = append(ids, h.ID)
		require.Equal(t, len(m.readers[h.ID]), h.Count)
		require.Equal(t, time.Until(m.life(h.ID)), h.TTL)
		require.Equal(t, strconv.Itoa(h.Count), hash[h.ID])
	}
	slices.Sort(ids)
	require.Equal(t, m.alive(), ids)
	writer, err := r.rw.Writer().Info(ctx)
	require.NoError(t, err)
	if m.writer == "" {
		require.Empty(t, writer.Holders)
	} else {
		ttl := time.Until(m.ends)
		for i := range writer.Holders {
			writer.Holders[i].Client = "" // written in the background
		}
		require.Equal(t, primitives.Info{Name: "n", Kind: "writer", TTL: ttl, Holders: []primitives.Holder{{ID: m.writer, Count: m.count, TTL: ttl}}}, writer)
	}
	if m.held() {
		ttl := rdb.PTTL(ctx, "n").Val()
		if m.writer == "" && len(hash) > 5 && ttl > time.Until(m.ends) {
			// Among more than four readers a script looks no further than it must: see rwlock/readers.
			m.ends = time.Now().Add(ttl)
		}
		require.Equal(t, time.Until(m.ends), ttl)
		require.Equal(t, map[bool]string{true: "read", false: "write"}[m.writer == ""], hash["mode"])
	}
}
