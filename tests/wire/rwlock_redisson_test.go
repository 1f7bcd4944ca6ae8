package wire

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/primitives"
)

// TestRWLockInteroperatesWithRedisson runs both clients on one lock. redissonThread plays Redisson.
func TestRWLockInteroperatesWithRedisson(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		run  func(t *testing.T, x *RWTest, redisson *RedissonThread)
	}{
		{"readers release in either order", testRedissonReaders},
		{"each nested reader has a timeout key", testRedissonNestedReader},
		{"both share a thread id", testRedissonSharedID},
		{"a release corrects the TTL after Redisson's downgrade", testRedissonDowngrade},
		{"an expired Redisson reader blocks nobody", testRedissonExpiredReader},
		{"waiters on both sides", testRedissonWaiters},
		{"a reader whose timeout key is gone is lost", testRedissonTakesFromExpiredReader},
	} {
		t.Run(tt.name, func(t *testing.T) {
			EachRW(t, func(t *testing.T, x *RWTest) {
				x.RequireState(t, nil) // subscribes
				tt.run(t, x, x.Redisson(1))
			})
		})
	}
}

func testRedissonReaders(t *testing.T, x *RWTest, redisson *RedissonThread) {
	ctx, reader := t.Context(), x.RW.Reader()
	require.True(t, redisson.ReadLock(t, 20*time.Second))
	a := Acquire(t, ctx, reader, primitives.WithLease(time.Minute))
	x.RequireState(t, MergeStates(Reads(redisson.ID, 1), Reads(a.ID(), 1)))
	redisson.ReadUnlock(t)
	x.RequireState(t, Reads(a.ID(), 1))
	x.RequireTTL(t, x.Name, time.Minute)
	require.True(t, redisson.ReadLock(t, 20*time.Second))
	require.True(t, redisson.ReadLock(t, 15*time.Second))
	Release(t, a)
	x.RequireState(t, Reads(redisson.ID, 2))
	x.RequireTTL(t, x.Name, 20*time.Second)
	redisson.ReadUnlock(t)
	redisson.ReadUnlock(t)
	x.RequireState(t, nil, "0")
}

// Redisson's readUnlock looks for a timeout key of each hold.
func testRedissonNestedReader(t *testing.T, x *RWTest, redisson *RedissonThread) {
	ctx, reader := t.Context(), x.RW.Reader()
	a := Acquire(t, ctx, reader)
	in := Acquire(t, a.Context(), reader)
	require.True(t, redisson.ReadLock(t, 20*time.Second))
	Release(t, a)
	redisson.ReadUnlock(t)
	x.RequireState(t, Reads(a.ID(), 1))
	Release(t, in)
	x.RequireState(t, nil, "0")
}

func testRedissonSharedID(t *testing.T, x *RWTest, redisson *RedissonThread) {
	ctx, reader := t.Context(), x.RW.Reader()
	require.True(t, redisson.ReadLock(t, 20*time.Second))
	shared := Acquire(t, ctx, reader, primitives.WithOwner(redisson.ID))
	x.RequireState(t, Reads(redisson.ID, 2))
	redisson.ReadUnlock(t)
	x.RequireState(t, Reads(redisson.ID, 1))
	require.NoError(t, shared.Check(ctx))
	Release(t, shared)
	x.RequireState(t, nil, "0")
}

// Redisson leaves the writer's TTL on the hash after a downgrade.
func testRedissonDowngrade(t *testing.T, x *RWTest, redisson *RedissonThread) {
	ctx, reader := t.Context(), x.RW.Reader()
	require.True(t, redisson.WriteLock(t, time.Hour))
	require.True(t, redisson.ReadLock(t, 20*time.Second))
	redisson.WriteUnlock(t)
	x.RequireTTL(t, x.Name, time.Hour)
	Release(t, Acquire(t, ctx, reader))
	x.RequireState(t, Reads(redisson.ID, 1))
	x.RequireTTL(t, x.Name, 20*time.Second)
	redisson.ReadUnlock(t)
	x.RequireState(t, nil, "0")
}

func testRedissonExpiredReader(t *testing.T, x *RWTest, redisson *RedissonThread) {
	ctx, reader := t.Context(), x.RW.Reader()
	require.True(t, redisson.ReadLock(t, 20*time.Second))
	a := Acquire(t, ctx, reader)
	require.NoError(t, x.Rdb.Del(ctx, x.TimeoutKey(redisson.ID, 1)).Err())
	Release(t, a)
	x.RequireState(t, nil, "0")
}

func testRedissonWaiters(t *testing.T, x *RWTest, redisson *RedissonThread) {
	ctx, reader := t.Context(), x.RW.Reader()
	require.True(t, redisson.WriteLock(t, time.Minute))
	waiting := []<-chan Result{StartAcquire(ctx, reader)}
	for range 3 {
		waiting = append(waiting, StartAcquire(ctx, reader))
	}
	x.AwaitWaiter(t)
	redisson.WriteUnlock(t)
	for _, w := range waiting {
		got := AwaitHold(t, w)
		defer Release(t, got)
	}
	require.False(t, redisson.WriteLock(t, time.Minute))
	w := StartAcquire(ctx, x.RW.Writer(), primitives.WithWait(50*time.Millisecond))
	require.ErrorIs(t, Await(t, w).Err, primitives.ErrNotAcquired)
}

// A readUnlock by Redisson deletes the lock although a reader without a timeout key is in it.
func testRedissonTakesFromExpiredReader(t *testing.T, x *RWTest, redisson *RedissonThread) {
	ctx := t.Context()
	b := Acquire(t, ctx, x.RW.Reader())
	require.NoError(t, x.Rdb.Del(ctx, x.TimeoutKey(b.ID(), 1)).Err())
	require.ErrorIs(t, b.Check(ctx), primitives.ErrLost)
	RequireEnds(t, b.Context(), primitives.ErrLost)
}
