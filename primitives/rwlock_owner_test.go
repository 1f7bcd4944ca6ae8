package primitives_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
	"github.com/redlatch/redlatch/scripts"
)

// TestRWLockReleaseFreesItsOwnCountsOnly (C4) gives WithOwner the id of a private hold.
func TestRWLockReleaseFreesItsOwnCountsOnly(t *testing.T) {
	t.Parallel()
	fixture.EachRW(t, func(t *testing.T, x *fixture.RWTest) {
		for _, side := range x.Sides() {
			for _, tt := range []struct {
				name string
				run  func(t *testing.T, x *fixture.RWTest, side fixture.RWSide)
			}{
				{"two shared holds", func(t *testing.T, x *fixture.RWTest, side fixture.RWSide) {
					private, shared := side.AcquireBoth(t, x)
					second := fixture.Acquire(t, t.Context(), side.Lock, primitives.WithOwner(private.ID()))
					side.ReleaseInTurn(t, x, shared, private, second)
				}},
				{"by id", testReleaseSharedByID},
				{"adopted", testAdoptShared},
				{"by force", testForceReleaseShared},
			} {
				t.Run(side.Name+", "+tt.name, func(t *testing.T) { tt.run(t, x, side) })
			}
		}
	})
}

func testReleaseSharedByID(t *testing.T, x *fixture.RWTest, side fixture.RWSide) {
	private, shared := side.AcquireBoth(t, x)
	require.NoError(t, side.Lock.ReleaseID(t.Context(), private.ID()))
	require.Equal(t, "1", side.Count(t, x, private))
	fixture.Release(t, private)
	fixture.RequireNothingLeft(t, x)
	require.ErrorIs(t, shared.Release(t.Context()), primitives.ErrLost)
	fixture.RequireNothingLeft(t, x)
}

func testAdoptShared(t *testing.T, x *fixture.RWTest, side fixture.RWSide) {
	private, _ := side.AcquireBoth(t, x)
	adopted := fixture.Adopt(t, side.Lock, private.ID())
	require.Equal(t, "2", side.Count(t, x, adopted))
	require.Zero(t, x.Rdb.Exists(t.Context(), x.SharedCounts()).Val())
	fixture.Release(t, adopted)
	fixture.RequireNothingLeft(t, x)
}

func testForceReleaseShared(t *testing.T, x *fixture.RWTest, side fixture.RWSide) {
	private, shared := side.AcquireBoth(t, x)
	held := fixture.ForceRelease(t, side.Lock)
	require.True(t, held)
	fixture.RequireNothingLeft(t, x)
	require.ErrorIs(t, private.Release(t.Context()), primitives.ErrLost)
	require.ErrorIs(t, shared.Release(t.Context()), primitives.ErrLost)
}

// TestRWLockSharedCountsExpireWithTheLock lets a lock expire that two acquisitions with the same id
// hold.
func TestRWLockSharedCountsExpireWithTheLock(t *testing.T) {
	t.Parallel()
	fixture.RWBubble(t, func(t *testing.T, x *fixture.RWTest) {
		for _, side := range x.Sides() {
			owner, lease := primitives.WithOwner("o"), primitives.WithLease(time.Second)
			fixture.Acquire(t, t.Context(), side.Lock, owner, lease)
			fixture.Acquire(t, t.Context(), side.Lock, owner, lease)
			time.Sleep(2 * time.Second)
			require.Empty(t, fixture.Fields(t, x.S, x.Name))
			require.Zero(t, x.Rdb.Exists(t.Context(), x.SharedCounts()).Val())
			again := fixture.Acquire(t, t.Context(), side.Lock, owner)
			require.Equal(t, map[string]int{"o" + side.Suffix: 1}, fixture.SharedCounts(t, x.S, x.Name))
			fixture.Release(t, again)
			fixture.RequireNothingLeft(t, x)
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
					x := fixture.OnRW(t, s)
					outer := fixture.Acquire(t, t.Context(), tt.outer(x.RW), tt.opts...)
					require.NoError(t, x.Rdb.Del(t.Context(), x.Name, x.TimeoutKey(outer.ID(), 1)).Err())
					var third *primitives.Hold
					switch other {
					case "a writer":
						third = fixture.Acquire(t, t.Context(), x.Other(t).Writer())
					case "a reader":
						third = fixture.Acquire(t, t.Context(), x.Other(t).Reader())
					}
					before := x.State(t)
					// A slow machine may make the client notice the loss first: the context must
					// not end with it.
					_, err := tt.inner(x.RW).TryAcquire(context.WithoutCancel(outer.Context()))
					require.ErrorIs(t, err, primitives.ErrLost)
					require.NotErrorIs(t, err, primitives.ErrNotAcquired)
					require.Equal(t, before, x.State(t), "nothing is acquired")
					require.ErrorIs(t, outer.Release(t.Context()), primitives.ErrLost)
					if third != nil {
						fixture.Release(t, third)
					}
					require.Empty(t, x.State(t))
					if tt.opts == nil { // a lost shared hold leaves its count, which is ignored without the field
						fixture.RequireNothingLeft(t, x)
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
	fixture.EachRW(t, func(t *testing.T, x *fixture.RWTest) {
		shared := fixture.Acquire(t, t.Context(), x.RW.Reader(), primitives.WithOwner("companion"))
		for _, mark := range []string{"2", "3"} { // the request is being rolled back, or was
			memory := "redisson_unlock_latch:{" + x.Name + "}:companion"
			require.NoError(t, x.Rdb.Set(t.Context(), memory, mark, time.Minute).Err())
			keys := []string{
				x.Name, x.Channel, memory + "-leader" + mark, "redlatch_rwlock_claim:{" + x.Name + "}",
				x.SharedCounts(), "redisson_unlock_latch:{" + x.Name + "}:turns", memory,
			}
			answer, err := x.Rdb.Eval(t.Context(), scripts.Load("rwlock/read_acquire").Text(), keys,
				"leader"+mark, 30000, "publish", 0, 0, 0, "client", 0, "companion", 60000).Slice()
			require.NoError(t, err)
			require.Equal(t, []any{"in", int64(0)}, answer)
			require.LessOrEqual(t, x.Rdb.PTTL(t.Context(), x.TimeoutKey("companion", 1)).Val(), 30*time.Second)
		}
		fixture.Release(t, shared)
	})
}
