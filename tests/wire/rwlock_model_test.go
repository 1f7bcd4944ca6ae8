package wire

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
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

// rwModel is the expected state in Redis, on the clock of the bubble.
type rwModel struct {
	ends    time.Time              // when the hash expires; in the past if nothing is held
	writer  string                 // "" if there is no writer
	count   int                    // the writer's hold count
	readers map[string][]time.Time // when each hold of a reader expires

	owners     map[string][]*rwModelOwnership // by field of the hash: the shared ownerships with a count, oldest first
	ownersEnds time.Time                      // when all of them expire
}

// field is the field of an ownership in the hash.
func (o *rwModelOwnership) field() string {
	if o.write {
		return o.id + ":write"
	}
	return o.id
}

// acquireShared makes an acquisition that has a count of its own, although others may share its id.
func (m *rwModel) acquireShared(o *rwModelOwnership, end time.Time) error {
	first := m.writer != o.id
	if !o.write {
		first = !m.reading(o.id)
	}
	if err := m.acquire(o.id, o.write, end); err != nil {
		return err
	}
	m.expireOwners()
	if first {
		delete(m.owners, o.field())
	}
	if len(m.owners) == 0 {
		m.ownersEnds = time.Time{}
	}
	m.owners[o.field()] = append(m.owners[o.field()], o)
	if end.After(m.ownersEnds) {
		m.ownersEnds = end
	}
	return nil
}

func (m *rwModel) expireOwners() {
	if !time.Now().Before(m.ownersEnds) {
		m.owners = map[string][]*rwModelOwnership{}
	}
}

// hasCount reports whether a shared ownership has a count, if its id still holds.
func (m *rwModel) hasCount(o *rwModelOwnership) bool {
	m.expireOwners()
	return slices.Contains(m.owners[o.field()], o)
}

// expire empties the model if the hash has expired.
func (m *rwModel) expire() {
	if !time.Now().Before(m.ends) {
		*m = rwModel{readers: map[string][]time.Time{}, owners: m.owners, ownersEnds: m.ownersEnds}
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

func (m *rwModel) readerEnds(id string) time.Time { return latest(m.readers[id]) }
func (m *rwModel) reading(id string) bool         { return time.Now().Before(m.readerEnds(id)) }
func (m *rwModel) held() bool                     { return time.Now().Before(m.ends) }

// prolong moves the end of the hash, never back.
func (m *rwModel) prolong(end time.Time) {
	if end.After(m.ends) {
		m.ends = end
	}
}

func (m *rwModel) anyReader() bool { return len(m.liveReaders()) > 0 }

// liveReaders returns the sorted ids of the readers that have not expired.
func (m *rwModel) liveReaders() (ids []string) {
	for id := range m.readers {
		if m.reading(id) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// removeExpired deletes expired readers and sets the end of the hash. It does nothing while there
// is a writer.
func (m *rwModel) removeExpired() {
	if m.writer != "" {
		return
	}
	maps.DeleteFunc(m.readers, func(id string, _ []time.Time) bool { return !m.reading(id) })
	m.endWithReaders()
}

// endWithReaders makes the hash expire with its longest reader.
func (m *rwModel) endWithReaders() {
	m.ends = time.Time{}
	for _, id := range m.liveReaders() {
		m.prolong(m.readerEnds(id))
	}
	m.expire()
}

func (m *rwModel) acquireRead(id string, end time.Time) error {
	if !m.reading(id) {
		if m.writer != "" && m.writer != id {
			return primitives.ErrNotAcquired
		}
		m.readers[id] = nil
	}
	m.readers[id] = append(m.readers[id], end)
	m.prolong(end)
	return nil
}

func (m *rwModel) acquireWrite(id string, end time.Time) error {
	switch {
	case m.writer == id:
	case m.reading(id):
		return primitives.ErrDeadlock
	case m.held():
		return primitives.ErrNotAcquired
	}
	m.writer = id
	m.count++
	m.prolong(end)
	return nil
}

func (m *rwModel) acquire(id string, write bool, end time.Time) error {
	if write {
		return m.acquireWrite(id, end)
	}
	return m.acquireRead(id, end)
}

// truncate leaves a reader count holds. The longest lease stays.
func (m *rwModel) truncate(id string, count int) {
	end := m.readerEnds(id)
	if count == 0 {
		delete(m.readers, id)
		m.removeExpired()
		return
	}
	m.readers[id] = m.readers[id][:count]
	if m.readerEnds(id).Before(end) {
		m.readers[id][count-1] = end
	}
}

// releaseWriter removes the writer. Its read holds stay.
func (m *rwModel) releaseWriter() {
	m.writer, m.count = "", 0
	m.removeExpired()
}

// rwModelOwnership is one id in Redis, which nested holds share.
type rwModelOwnership struct {
	id     string
	write  bool
	shared bool
	holds  int
	lost   bool
	reads  bool // a writer with a reader nested under it
	ends   time.Time
}

// rwModelHold is one acquisition.
type rwModelHold struct {
	*primitives.Hold
	*rwModelOwnership
	outer      *rwModelHold // the hold whose context it was acquired with
	excludes   *rwModelHold // the hold under which it keeps sibling writers out; nil: none
	ends       time.Time    // when its lease ends in Redis
	validUntil time.Time    // when the client stops trusting the lease
	done       bool         // released
}

// GoString is how rapid prints h.
func (h *rwModelHold) GoString() string {
	return fmt.Sprintf("%s write=%t shared=%t holds=%d lost=%t done=%t", h.id[max(0, len(h.id)-4):], h.write, h.shared,
		h.holds, h.lost, h.done)
}

func (h *rwModelHold) live() bool {
	return !h.done && !h.lost && time.Now().Before(h.validUntil) && !h.lossReported()
}

// lossReported reports whether the library has ended h as lost, and h was not released since. The
// client detects a takeover by an action of the model in the background.
func (h *rwModelHold) lossReported() bool {
	return !h.done && errors.Is(context.Cause(h.Context()), primitives.ErrLost)
}

// shorten leaves a private reader count holds. They expire at limit or earlier.
func (m *rwModel) shorten(id string, count int, limit time.Time) {
	if end := m.readerEnds(id); end.Before(limit) {
		limit = end
	}
	ends := m.readers[id][:count]
	for i, end := range ends {
		if end.After(limit) || i == count-1 {
			ends[i] = limit
		}
	}
	m.readers[id] = ends
	m.removeExpired()
}

// releaseShared removes the count of a shared ownership, and reports whether Redis still had it. A
// nil ownership: the oldest of that field, or a count that is not shared.
func (m *rwModel) releaseShared(id string, write bool, o *rwModelOwnership) bool {
	of := &rwModelOwnership{id: id, write: write, shared: true, holds: 1}
	m.expireOwners()
	list := m.owners[of.field()]
	held := m.writer == id
	if !write {
		held = m.readers[id] != nil
	}
	switch {
	case o != nil && held && !slices.Contains(list, o):
		return false
	case o == nil && len(list) > 0:
		o = list[0]
	}
	held = m.release(of, time.Time{})
	m.owners[of.field()] = slices.DeleteFunc(slices.Clone(list), func(other *rwModelOwnership) bool { return other == o })
	if len(m.owners[of.field()]) == 0 || !write && m.readers[id] == nil || write && m.writer != id {
		delete(m.owners, of.field())
	}
	return held
}

// release removes one hold of o, and reports whether Redis still had it. others is when the longest
// lease of o's other live holds ends, zero if there are none.
func (m *rwModel) release(o *rwModelOwnership, others time.Time) bool {
	o.holds--
	switch {
	case o.write && (m.writer != o.id):
		return false
	case o.write && o.shared && m.count > 1:
		m.count--
	case o.write && o.holds > 0:
		m.count = o.holds
	case o.write:
		m.releaseWriter()
	case m.readers[o.id] == nil:
		return false
	case !m.reading(o.id):
		m.truncate(o.id, 0)
		return false
	case o.shared:
		m.truncate(o.id, len(m.readers[o.id])-1)
	case o.holds == 0 || others.IsZero():
		m.truncate(o.id, 0)
	case o.holds < len(m.readers[o.id]):
		m.shorten(o.id, o.holds, others)
	}
	return true
}

// idOf returns the id of hold, or one that no hold has if hold is nil.
func idOf(hold *primitives.Hold) string {
	if hold == nil {
		return "none"
	}
	return hold.ID()
}

// rwModelRun is one sequence of calls.
type rwModelRun struct {
	m      *rwModel
	x      *fixture.RWTest
	holds  []*rwModelHold
	rw     *primitives.RWLock
	fields int // in the hash, before the last action
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

// rwLockModel runs a random sequence of actions against the model and an embedded server in fake
// time.
func rwLockModel(t *rapid.T) {
	s := redistest.NewEmbedded()
	rdb := redis.NewClient(s.Options())
	c, err := primitives.New(rdb)
	require.NoError(t, err)
	defer func() {
		fixture.CloseNow(c)
		require.NoError(t, rdb.Close())
		s.Close()
	}()
	x := &fixture.RWTest{S: s, Rdb: rdb, C: c, Name: "n", RW: c.RWLock("n"), Channel: "redisson_rwlock:{n}"}
	model := &rwModel{readers: map[string][]time.Time{}, owners: map[string][]*rwModelOwnership{}}
	r := &rwModelRun{m: model, x: x, rw: x.RW}
	t.Repeat(map[string]func(*rapid.T){
		"acquire":              func(t *rapid.T) { r.acquire(t, "", drawSide(t)) },
		"acquire as owner":     r.acquireAsOwner,
		"acquire nested":       r.acquireNested,
		"release":              r.release,
		"release id":           r.releaseID,
		"adopt":                r.adopt,
		"force release":        r.forceRelease,
		"check":                r.check,
		"Redisson readLock":    r.redissonReadLock,
		"Redisson readUnlock":  r.redissonReadUnlock,
		"Redisson writeLock":   r.redissonWriteLock,
		"Redisson writeUnlock": r.redissonWriteUnlock,
		"time passes": func(t *rapid.T) {
			time.Sleep(time.Duration(rapid.IntRange(1, 200).Draw(t, "ds")) * 100 * time.Millisecond)
			synctest.Wait()
			r.m.expire()
		},
		"": func(t *rapid.T) {
			r.m.expire()
			r.requireSame(t, rdb)
		},
	})
}

func (r *rwModelRun) drawHold(t *rapid.T) *rwModelHold {
	if len(r.holds) == 0 {
		t.Skip("nothing is held")
	}
	return rapid.SampledFrom(r.holds).Draw(t, "hold")
}

func drawLease(t *rapid.T) time.Duration {
	return time.Duration(rapid.IntRange(1, 6).Draw(t, "lease")) * 10 * time.Second
}

// drawSide reports whether to use the writer's side.
func drawSide(t *rapid.T) bool { return rapid.IntRange(0, 2).Draw(t, "side") == 0 }

// add records a hold that was acquired for lease.
func (r *rwModelRun) add(hold *primitives.Hold, o *rwModelOwnership, lease time.Duration) *rwModelHold {
	end := time.Now().Add(lease)
	h := &rwModelHold{
		Hold: hold, rwModelOwnership: o, ends: end,
		validUntil: end.Add(-lease/100 - 2*time.Millisecond), // the client trusts the lease for 1 % and 2 ms less
	}
	o.holds++
	if end.After(o.ends) {
		o.ends = end
	}
	r.holds = append(r.holds, h)
	return h
}

// acquire makes an outermost acquisition. owner is "" for an id of the client's own.
func (r *rwModelRun) acquire(t *rapid.T, owner string, write bool) {
	lease := drawLease(t)
	opts := []primitives.Option{primitives.WithLease(lease)}
	if owner != "" {
		opts = append(opts, primitives.WithOwner(owner))
	}
	hold, err := r.side(write).TryAcquire(context.Background(), opts...)
	id := owner
	if owner == "" {
		id = idOf(hold)
	}
	o, end := &rwModelOwnership{id: id, write: write, shared: owner != ""}, time.Now().Add(lease)
	var want error
	if o.shared {
		want = r.m.acquireShared(o, end)
	} else {
		want = r.m.acquire(id, write, end)
	}
	require.ErrorIs(t, err, want)
	if want == nil {
		require.Equal(t, id, hold.ID())
		require.Equal(t, 1, hold.Depth())
		r.add(hold, o, lease)
	}
}

func (r *rwModelRun) acquireAsOwner(t *rapid.T) {
	r.acquire(t, rapid.SampledFrom([]string{"o", "p"}).Draw(t, "owner"), drawSide(t))
}

func (r *rwModelRun) acquireNested(t *rapid.T) {
	h, write, lease := r.drawHold(t), drawSide(t), drawLease(t)
	hold, err := r.side(write).TryAcquire(context.WithoutCancel(h.Context()), primitives.WithLease(lease))
	outer, deadlock := r.parent(h, write)
	if outer == nil && !deadlock { // all enclosing holds have ended: the acquisition is an outermost one
		id := idOf(hold)
		want := r.m.acquire(id, write, time.Now().Add(lease))
		require.ErrorIs(t, err, want)
		if want == nil {
			r.add(hold, &rwModelOwnership{id: id, write: write}, lease).outer = h
		}
		return
	}
	if deadlock {
		require.ErrorIs(t, err, primitives.ErrDeadlock)
		return
	}
	if outer.lossReported() { // nothing nests under a hold that is known to be lost
		require.ErrorIs(t, err, primitives.ErrLost)
		return
	}
	o, want := r.nest(outer, write, lease)
	require.ErrorIs(t, err, want)
	if want == nil {
		inner := r.add(hold, o, lease)
		inner.outer = h
		if write {
			inner.excludes = outer
		}
		require.Equal(t, outer.ID(), hold.ID())
		require.Equal(t, outer.Depth()+1, hold.Depth())
	}
}

func (r *rwModelRun) release(t *rapid.T) {
	h := r.drawHold(t)
	err := h.Release(context.Background())
	o := h.rwModelOwnership
	release := func() bool {
		if o.shared {
			o.holds--
			return r.m.releaseShared(o.id, o.write, o)
		}
		return r.m.release(o, r.longestOther(h))
	}
	switch {
	case h.done:
		require.ErrorIs(t, err, primitives.ErrReleased)
	case !h.live():
		require.ErrorIs(t, err, primitives.ErrLost)
		if o.holds--; o.holds == 0 && (o.shared || o.reads || time.Now().Before(o.ends)) {
			// The client releases in the background what a lost ownership may still have in Redis.
			o.holds++
			time.Sleep(30 * time.Millisecond)
			synctest.Wait()
			r.m.expire()
			release()
		}
	case release():
		require.NoError(t, err)
	default:
		require.ErrorIs(t, err, primitives.ErrLost)
		o.lost = true
	}
	h.done = true
}

func (r *rwModelRun) releaseID(t *rapid.T) {
	h := r.drawHold(t)
	err := r.side(h.write).ReleaseID(context.Background(), h.id)
	if r.m.releaseShared(h.id, h.write, nil) {
		require.NoError(t, err)
	} else {
		require.ErrorIs(t, err, primitives.ErrNotHeld)
	}
}

func (r *rwModelRun) adopt(t *rapid.T) {
	m := r.m
	h, lease := r.drawHold(t), drawLease(t)
	hold, err := r.side(h.write).Adopt(context.Background(), h.id, primitives.WithLease(lease))
	end := time.Now().Add(lease)
	switch {
	case h.write && m.writer == h.id:
		require.NoError(t, err)
		m.writer = hold.ID()
		delete(m.readers, h.id)
		delete(m.owners, h.id)
		delete(m.owners, h.id+":write")
		m.ends = end
	case !h.write && m.reading(h.id) && m.writer != "":
		require.ErrorIs(t, err, primitives.ErrUnsupported)
		return
	case !h.write && m.reading(h.id):
		require.NoError(t, err)
		m.readers[hold.ID()] = slices.Repeat([]time.Time{end}, len(m.readers[h.id]))
		delete(m.readers, h.id)
		delete(m.owners, h.id)
		m.removeExpired()
	default:
		require.ErrorIs(t, err, primitives.ErrNotHeld)
		return
	}
	r.add(hold, &rwModelOwnership{id: hold.ID(), write: h.write}, lease)
}

func (r *rwModelRun) forceRelease(t *rapid.T) {
	m, write := r.m, drawSide(t)
	if rapid.IntRange(0, 3).Draw(t, "rarely") > 0 {
		return
	}
	held, err := r.side(write).ForceRelease(context.Background())
	require.NoError(t, err)
	if write {
		require.Equal(t, m.writer != "", held)
		if held {
			delete(m.owners, m.writer+":write")
			m.releaseWriter()
		}
		return
	}
	require.Equal(t, m.anyReader(), held)
	m.readers = map[string][]time.Time{}
	maps.DeleteFunc(m.owners, func(field string, _ []*rwModelOwnership) bool {
		return !strings.HasSuffix(field, ":write")
	})
	m.removeExpired()
}

func (r *rwModelRun) check(t *rapid.T) {
	m, h := r.m, r.drawHold(t)
	err := h.Check(context.Background())
	switch {
	case h.done:
		require.Error(t, err)
	case !h.live():
		require.ErrorIs(t, err, primitives.ErrLost)
	case h.shared && !m.hasCount(h.rwModelOwnership):
		require.ErrorIs(t, err, primitives.ErrLost)
		h.lost = true
	case h.write == (m.writer == h.id) && (h.write || m.reading(h.id)), !h.write && m.reading(h.id):
		require.NoError(t, err)
	default:
		require.ErrorIs(t, err, primitives.ErrLost)
		h.lost = true
	}
}

func (r *rwModelRun) drawRedisson(t *rapid.T) *fixture.RedissonThread {
	return r.x.Redisson(rapid.IntRange(1, 2).Draw(t, "thread"))
}

func (r *rwModelRun) redissonReadLock(t *rapid.T) {
	thread, lease := r.drawRedisson(t), drawLease(t)
	// Among many readers a script may leave an expired reader's field for a later one to delete.
	expired := !r.m.reading(thread.ID) && r.x.Rdb.HExists(context.Background(), "n", thread.ID).Val()
	if expired {
		t.Skip("Redisson would count the expired hold")
	}
	acquired := thread.ReadLock(t, lease)
	require.Equal(t, acquired, r.m.acquireRead(thread.ID, time.Now().Add(lease)) == nil)
}

func (r *rwModelRun) redissonReadUnlock(t *rapid.T) {
	m, thread := r.m, r.drawRedisson(t)
	if !m.reading(thread.ID) {
		t.Skip("the thread does not read")
	}
	thread.ReadUnlock(t)
	holds := m.readers[thread.ID]
	m.readers[thread.ID] = holds[:len(holds)-1]
	if len(holds) == 1 {
		delete(m.readers, thread.ID)
	}
	if m.writer == "" || m.anyReader() { // Redisson sets the readers' TTL even while there is a writer
		m.endWithReaders()
	}
}

func (r *rwModelRun) redissonWriteLock(t *rapid.T) {
	thread, lease := r.drawRedisson(t), drawLease(t)
	end := time.Now().Add(lease)
	if r.m.writer == thread.ID { // Redisson adds the lease to the TTL that is left
		end = r.m.ends.Add(lease)
	}
	require.Equal(t, r.m.acquireWrite(thread.ID, end) == nil, thread.WriteLock(t, lease))
}

func (r *rwModelRun) redissonWriteUnlock(t *rapid.T) {
	m, thread := r.m, r.drawRedisson(t)
	if m.writer != thread.ID {
		t.Skip("the thread does not write")
	}
	thread.WriteUnlock(t)
	if m.count--; m.count == 0 {
		m.writer = ""
		if len(m.readers) == 0 { // expired readers count too; with readers the TTL stays as it is
			m.ends = time.Time{}
		}
	}
}

// parent returns the hold in which an acquisition with h's context nests, nil if there is none.
// deadlock reports that the acquisition would wait for h itself.
func (r *rwModelRun) parent(h *rwModelHold, write bool) (outer *rwModelHold, deadlock bool) {
	find := func(write, lost bool) *rwModelHold {
		for o := h; o != nil; o = o.outer {
			if o.write == write && (o.live() || lost && o.lossReported()) {
				return o
			}
		}
		return nil
	}
	if outer = find(write, true); outer != nil {
		return outer, false
	}
	outer = find(!write, !write) // only a live reader blocks its own write
	return outer, outer != nil && write
}

// longestOther returns when the longest lease of the other live holds of h's ownership ends, zero
// if there are none.
func (r *rwModelRun) longestOther(h *rwModelHold) (end time.Time) {
	for _, o := range r.holds {
		if o != h && o.rwModelOwnership == h.rwModelOwnership && o.live() && o.ends.After(end) {
			end = o.ends
		}
	}
	return end
}

// nest applies an acquisition of one side under outer to the model, and returns its ownership and
// error.
func (r *rwModelRun) nest(outer *rwModelHold, write bool, lease time.Duration) (*rwModelOwnership, error) {
	m, end := r.m, time.Now().Add(lease)
	if outer.write && write {
		for _, h := range r.holds {
			if h.excludes == outer && h.live() {
				return nil, primitives.ErrNotAcquired
			}
		}
	}
	switch {
	case (write || outer.write || outer.shared) && m.writer != outer.id && (write || !m.reading(outer.id)):
		outer.lost = outer.lost || !outer.shared && write
		return nil, primitives.ErrLost
	case !write && (outer.write || outer.shared):
		outer.reads = outer.write
		o := &rwModelOwnership{id: outer.id, shared: true}
		return o, m.acquireShared(o, end)
	case outer.shared:
		o := &rwModelOwnership{id: outer.id, shared: true, write: true}
		return o, m.acquireShared(o, end)
	case write && m.writer == outer.id:
		m.count = outer.holds + 1
	case !write && m.reading(outer.id):
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
	m.prolong(end)
	return outer.rwModelOwnership, nil
}

// requireSame compares the model with Redis and with Info.
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
		require.Equal(t, time.Until(m.readerEnds(h.ID)), h.TTL)
		require.Equal(t, strconv.Itoa(h.Count), hash[h.ID])
	}
	slices.Sort(ids)
	require.Equal(t, m.liveReaders(), ids)
	writer, err := r.rw.Writer().Info(ctx)
	require.NoError(t, err)
	if m.writer == "" {
		require.Empty(t, writer.Holders)
	} else {
		ttl := time.Until(m.ends)
		for i := range writer.Holders {
			writer.Holders[i].Client, writer.Holders[i].Held = "", 0 // told in the background
		}
		holders := []primitives.Holder{{ID: m.writer, Count: m.count, TTL: ttl}}
		require.Equal(t, primitives.Info{Name: "n", Kind: "writer", TTL: ttl, Holders: holders}, writer)
	}
	if m.held() {
		ttl := rdb.PTTL(ctx, "n").Val()
		if m.writer == "" && max(r.fields, len(hash)) > 5 && ttl > time.Until(m.ends) {
			// Among more than four readers, dead ones included, a script does not look for the
			// longest lease: see readers.lua. The script may have removed the dead ones.
			m.ends = time.Now().Add(ttl)
		}
		require.Equal(t, time.Until(m.ends), ttl)
		require.Equal(t, map[bool]string{true: "read", false: "write"}[m.writer == ""], hash["mode"])
	}
	r.fields = len(hash)
}
