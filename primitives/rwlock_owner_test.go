package primitives_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
	"github.com/redlatch/redlatch/scripts"
)

// sharedCounts returns the key of the hash that lists the acquisitions with WithOwner.
func (x *rwTest) sharedCounts() string { return sharedCountsKey(x.name) }

// rwSides returns both sides of the lock. suffix follows an id in its field of the lock's hash.
func (x *rwTest) rwSides() []rwSideTest {
	return []rwSideTest{{"reader", x.rw.Reader(), ""}, {"writer", x.rw.Writer(), ":write"}}
}

type rwSideTest struct {
	name   string
	lock   *primitives.Lock
	suffix string
}

// TestRWLockReleaseFreesItsOwnCountsOnly (C4) gives WithOwner the id of a private hold.
func TestRWLockReleaseFreesItsOwnCountsOnly(t *testing.T) {
	t.Parallel()
	eachRW(t, func(t *testing.T, x *rwTest) {
		for _, side := range x.rwSides() {
			for _, tt := range []struct {
				name string
				run  func(t *testing.T, x *rwTest, side rwSideTest)
			}{
				{"private hold first", func(t *testing.T, x *rwTest, side rwSideTest) {
					private, shared := side.acquireBoth(t, x)
					side.releaseInTurn(t, x, private, shared)
				}},
				{"shared hold first", func(t *testing.T, x *rwTest, side rwSideTest) {
					private, shared := side.acquireBoth(t, x)
					side.releaseInTurn(t, x, shared, private)
				}},
				{"two shared holds", func(t *testing.T, x *rwTest, side rwSideTest) {
					private, shared := side.acquireBoth(t, x)
					second := acquire(t, t.Context(), side.lock, primitives.WithOwner(private.ID()))
					side.releaseInTurn(t, x, shared, private, second)
				}},
				{"by id", testReleaseSharedByID},
				{"adopted", testAdoptShared},
				{"by force", testForceReleaseShared},
			} {
				t.Run(side.name+", "+tt.name, func(t *testing.T) { tt.run(t, x, side) })
			}
		}
		t.Run("nested reads", func(t *testing.T) { testReleaseNestedShared(t, x) })
	})
}

// acquireBoth acquires a private hold, and a shared one with its id.
func (side rwSideTest) acquireBoth(t *testing.T, x *rwTest) (private, shared *primitives.Hold) {
	private = acquire(t, t.Context(), side.lock)
	shared = acquire(t, t.Context(), side.lock, primitives.WithOwner(private.ID()))
	require.Equal(t, "2", side.count(t, x, private))
	return private, shared
}

// count returns the count of hold's id in Redis.
func (side rwSideTest) count(t *testing.T, x *rwTest, hold *primitives.Hold) string {
	return fields(t, x.s, x.name)[hold.ID()+side.suffix]
}

// requireHeld requires that hold keeps writers out.
func requireHeld(t *testing.T, x *rwTest, hold *primitives.Hold) {
	t.Helper()
	require.NoError(t, hold.Check(t.Context()))
	_, err := x.other(t).Writer().TryAcquire(t.Context())
	require.ErrorIs(t, err, primitives.ErrNotAcquired)
}

// releaseInTurn releases holds of one id. Each release takes one count, and the last one frees the
// lock.
func (side rwSideTest) releaseInTurn(t *testing.T, x *rwTest, holds ...*primitives.Hold) {
	last := len(holds) - 1
	for i, hold := range holds[:last] {
		release(t, hold)
		require.Equal(t, strconv.Itoa(last-i), side.count(t, x, hold))
		requireHeld(t, x, holds[last])
	}
	release(t, holds[last])
	requireNothingLeft(t, x)
}

func testReleaseSharedByID(t *testing.T, x *rwTest, side rwSideTest) {
	private, shared := side.acquireBoth(t, x)
	require.NoError(t, side.lock.ReleaseID(t.Context(), private.ID()))
	require.Equal(t, "1", side.count(t, x, private))
	release(t, private)
	requireNothingLeft(t, x)
	require.ErrorIs(t, shared.Release(t.Context()), primitives.ErrLost)
	requireNothingLeft(t, x)
}

func testAdoptShared(t *testing.T, x *rwTest, side rwSideTest) {
	private, _ := side.acquireBoth(t, x)
	adopted, err := side.lock.Adopt(t.Context(), private.ID())
	require.NoError(t, err)
	require.Equal(t, "2", side.count(t, x, adopted))
	require.Zero(t, x.rdb.Exists(t.Context(), x.sharedCounts()).Val())
	release(t, adopted)
	requireNothingLeft(t, x)
}

func testForceReleaseShared(t *testing.T, x *rwTest, side rwSideTest) {
	private, shared := side.acquireBoth(t, x)
	held, err := side.lock.ForceRelease(t.Context())
	require.NoError(t, err)
	require.True(t, held)
	requireNothingLeft(t, x)
	require.ErrorIs(t, private.Release(t.Context()), primitives.ErrLost)
	require.ErrorIs(t, shared.Release(t.Context()), primitives.ErrLost)
}

func testReleaseNestedShared(t *testing.T, x *rwTest) {
	private := acquire(t, t.Context(), x.rw.Reader())
	shared := acquire(t, t.Context(), x.rw.Reader(), primitives.WithOwner(private.ID()))
	in := acquire(t, private.Context(), x.rw.Reader())
	count := func() string { return fields(t, x.s, x.name)[private.ID()] }
	require.Equal(t, "3", count())
	release(t, in)
	require.Equal(t, "2", count())
	release(t, private)
	require.Equal(t, "1", count())
	require.NoError(t, shared.Check(t.Context()))
	release(t, shared)
	requireNothingLeft(t, x)
}

// requireNothingLeft requires that the lock is free and no shared count is left.
func requireNothingLeft(t *testing.T, x *rwTest) {
	t.Helper()
	require.Empty(t, x.state(t))
	require.Zero(t, x.rdb.Exists(t.Context(), x.sharedCounts()).Val())
}

// TestRWLockSharedCountsExpireWithTheLock lets a lock expire that two acquisitions with the same id hold.
func TestRWLockSharedCountsExpireWithTheLock(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, x *rwTest) {
		for _, side := range x.rwSides() {
			owner, lease := primitives.WithOwner("o"), primitives.WithLease(time.Second)
			acquire(t, t.Context(), side.lock, owner, lease)
			acquire(t, t.Context(), side.lock, owner, lease)
			time.Sleep(2 * time.Second)
			require.Empty(t, fields(t, x.s, x.name))
			require.Zero(t, x.rdb.Exists(t.Context(), x.sharedCounts()).Val())
			again := acquire(t, t.Context(), side.lock, owner)
			require.Equal(t, map[string]int{"o" + side.suffix: 1}, sharedCounts(t, x.s, x.name))
			release(t, again)
			requireNothingLeft(t, x)
		}
	})
}

// TestRWLockNestingUnderALostHoldTakesNothing (C3) deletes the outer hold in Redis, and may then
// have another client acquire the lock.
func TestRWLockNestingUnderALostHoldTakesNothing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		owner := []primitives.Option{primitives.WithOwner("o")}
		for _, tt := range []struct {
			name         string
			outer, inner func(*primitives.RWLock) *primitives.Lock
			opts         []primitives.Option
		}{
			{"reader", (*primitives.RWLock).Reader, (*primitives.RWLock).Reader, nil},
			{"reader, shared id", (*primitives.RWLock).Reader, (*primitives.RWLock).Reader, owner},
			{"writer", (*primitives.RWLock).Writer, (*primitives.RWLock).Writer, nil},
			{"writer, shared id", (*primitives.RWLock).Writer, (*primitives.RWLock).Writer, owner},
			{"reader under a writer", (*primitives.RWLock).Writer, (*primitives.RWLock).Reader, nil},
			{"reader under a writer, shared id", (*primitives.RWLock).Writer, (*primitives.RWLock).Reader, owner},
		} {
			for _, other := range []string{"nobody", "a writer", "a reader"} {
				t.Run(tt.name+", then "+other, func(t *testing.T) {
					x := onRW(t, s)
					outer := acquire(t, t.Context(), tt.outer(x.rw), tt.opts...)
					require.NoError(t, x.rdb.Del(t.Context(), x.name, x.timeoutKey(outer.ID(), 1)).Err())
					var third *primitives.Hold
					switch other {
					case "a writer":
						third = acquire(t, t.Context(), x.other(t).Writer())
					case "a reader":
						third = acquire(t, t.Context(), x.other(t).Reader())
					}
					before := x.state(t)
					_, err := tt.inner(x.rw).TryAcquire(outer.Context())
					require.ErrorIs(t, err, primitives.ErrLost)
					require.NotErrorIs(t, err, primitives.ErrNotAcquired)
					require.Equal(t, before, x.state(t), "nothing is acquired")
					require.ErrorIs(t, outer.Release(t.Context()), primitives.ErrLost)
					if third != nil {
						release(t, third)
					}
					require.Empty(t, x.state(t))
					if tt.opts == nil { // a lost shared hold leaves its count, which is ignored without the field
						requireNothingLeft(t, x)
					}
				})
			}
		}
	})
}

// TestRWLockBatchSkipsARolledBackReader admits a batch of readers. A reader in it that has given up
// is not admitted, although another hold has its id.
func TestRWLockBatchSkipsARolledBackReader(t *testing.T) {
	t.Parallel()
	eachRW(t, func(t *testing.T, x *rwTest) {
		shared := acquire(t, t.Context(), x.rw.Reader(), primitives.WithOwner("companion"))
		for _, mark := range []string{"2", "3"} { // the request is being rolled back, or was
			memory := "redisson_unlock_latch:{" + x.name + "}:companion"
			require.NoError(t, x.rdb.Set(t.Context(), memory, mark, time.Minute).Err())
			keys := []string{
				x.name, x.channel, memory + "-leader" + mark, "redlatch_rwlock_claim:{" + x.name + "}",
				x.sharedCounts(), memory,
			}
			answer, err := x.rdb.Eval(t.Context(), scripts.Load("rwlock/read_acquire").Text(), keys,
				"leader"+mark, 30000, "publish", 0, 0, 0, "companion", 60000).Slice()
			require.NoError(t, err)
			require.Equal(t, []any{"in", int64(0)}, answer)
			require.LessOrEqual(t, x.rdb.PTTL(t.Context(), x.timeoutKey("companion", 1)).Val(), 30*time.Second)
		}
		release(t, shared)
	})
}
