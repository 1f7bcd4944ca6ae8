package primitives_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/primitives"
)

// redissonThread acts on Redis as a thread of a Redisson client does, with plain commands instead
// of scripts.
type redissonThread struct {
	x  *rwTest
	id string
}

// redisson returns the nth thread of one Redisson client.
func (x *rwTest) redisson(thread int) *redissonThread {
	return &redissonThread{x, "6f0ee5b5-0000-4000-8000-000000000000:" + strconv.Itoa(thread)}
}

// readLock reports whether it acquired the read lock.
func (r *redissonThread) readLock(t require.TestingT, lease time.Duration) bool {
	ctx, rdb, key := context.Background(), r.x.rdb, r.x.name
	switch rdb.HGet(ctx, key, "mode").Val() {
	case "write":
		if !rdb.HExists(ctx, key, r.id+":write").Val() {
			return false
		}
	case "":
		require.NoError(t, rdb.HSet(ctx, key, "mode", "read").Err())
	}
	n := rdb.HIncrBy(ctx, key, r.id, 1).Val()
	require.NoError(t, rdb.Set(ctx, r.x.timeoutKey(r.id, int(n)), "1", lease).Err())
	require.NoError(t, rdb.PExpire(ctx, key, max(rdb.PTTL(ctx, key).Val(), lease)).Err())
	return true
}

// readUnlock releases one read hold. Redisson then sets the TTL of the hash to that of the longest
// read hold that is left.
func (r *redissonThread) readUnlock(t require.TestingT) {
	ctx, rdb, key := context.Background(), r.x.rdb, r.x.name
	require.True(t, rdb.HExists(ctx, key, r.id).Val())
	n := rdb.HIncrBy(ctx, key, r.id, -1).Val()
	if n == 0 {
		rdb.HDel(ctx, key, r.id)
	}
	rdb.Del(ctx, r.x.timeoutKey(r.id, int(n)+1))
	longest := time.Duration(-1)
	if rdb.HLen(ctx, key).Val() > 1 {
		for field, value := range rdb.HGetAll(ctx, key).Val() {
			count, _ := strconv.Atoi(value)
			for i := count; i > 0; i-- {
				longest = max(longest, rdb.PTTL(ctx, r.x.timeoutKey(field, i)).Val())
			}
		}
		if longest > 0 {
			rdb.PExpire(ctx, key, longest)
			return
		}
		if rdb.HGet(ctx, key, "mode").Val() == "write" {
			return
		}
	}
	rdb.Del(ctx, key)
	rdb.Publish(ctx, r.x.channel, "0")
}

// writeLock reports whether it acquired the write lock. Redisson adds the lease to the TTL that is
// left.
func (r *redissonThread) writeLock(t require.TestingT, lease time.Duration) bool {
	ctx, rdb, key := context.Background(), r.x.rdb, r.x.name
	mode := rdb.HGet(ctx, key, "mode").Val()
	if mode != "" && (mode != "write" || !rdb.HExists(ctx, key, r.id+":write").Val()) {
		return false
	}
	require.NoError(t, rdb.HSet(ctx, key, "mode", "write").Err())
	require.NoError(t, rdb.HIncrBy(ctx, key, r.id+":write", 1).Err())
	require.NoError(t, rdb.PExpire(ctx, key, max(rdb.PTTL(ctx, key).Val(), 0)+lease).Err())
	return true
}

// writeUnlock releases one write hold. Readers that are left keep the TTL of the hash as it is.
func (r *redissonThread) writeUnlock(t require.TestingT) {
	ctx, rdb, key := context.Background(), r.x.rdb, r.x.name
	require.True(t, rdb.HExists(ctx, key, r.id+":write").Val())
	if rdb.HIncrBy(ctx, key, r.id+":write", -1).Val() > 0 {
		return
	}
	rdb.HDel(ctx, key, r.id+":write")
	if rdb.HLen(ctx, key).Val() == 1 {
		rdb.Del(ctx, key)
		rdb.Publish(ctx, r.x.channel, "1")
		return
	}
	rdb.HSet(ctx, key, "mode", "read")
}

// TestRWLockInteroperatesWithRedisson runs both clients on one lock. redissonThread plays Redisson.
func TestRWLockInteroperatesWithRedisson(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		run  func(t *testing.T, x *rwTest, redisson *redissonThread)
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
			eachRW(t, func(t *testing.T, x *rwTest) {
				x.requireState(t, nil) // subscribes
				tt.run(t, x, x.redisson(1))
			})
		})
	}
}

func testRedissonReaders(t *testing.T, x *rwTest, redisson *redissonThread) {
	ctx, reader := t.Context(), x.rw.Reader()
	require.True(t, redisson.readLock(t, 20*time.Second))
	a := acquire(t, ctx, reader, primitives.WithLease(time.Minute))
	x.requireState(t, mergeStates(reads(redisson.id, 1), reads(a.ID(), 1)))
	redisson.readUnlock(t)
	x.requireState(t, reads(a.ID(), 1))
	x.requireTTL(t, x.name, time.Minute)
	require.True(t, redisson.readLock(t, 20*time.Second))
	require.True(t, redisson.readLock(t, 15*time.Second))
	release(t, a)
	x.requireState(t, reads(redisson.id, 2))
	x.requireTTL(t, x.name, 20*time.Second)
	redisson.readUnlock(t)
	redisson.readUnlock(t)
	x.requireState(t, nil, "0")
}

// Redisson's readUnlock looks for a timeout key of each hold.
func testRedissonNestedReader(t *testing.T, x *rwTest, redisson *redissonThread) {
	ctx, reader := t.Context(), x.rw.Reader()
	a := acquire(t, ctx, reader)
	in := acquire(t, a.Context(), reader)
	require.True(t, redisson.readLock(t, 20*time.Second))
	release(t, a)
	redisson.readUnlock(t)
	x.requireState(t, reads(a.ID(), 1))
	release(t, in)
	x.requireState(t, nil, "0")
}

func testRedissonSharedID(t *testing.T, x *rwTest, redisson *redissonThread) {
	ctx, reader := t.Context(), x.rw.Reader()
	require.True(t, redisson.readLock(t, 20*time.Second))
	shared := acquire(t, ctx, reader, primitives.WithOwner(redisson.id))
	x.requireState(t, reads(redisson.id, 2))
	redisson.readUnlock(t)
	x.requireState(t, reads(redisson.id, 1))
	require.NoError(t, shared.Check(ctx))
	release(t, shared)
	x.requireState(t, nil, "0")
}

// Redisson leaves the writer's TTL on the hash after a downgrade.
func testRedissonDowngrade(t *testing.T, x *rwTest, redisson *redissonThread) {
	ctx, reader := t.Context(), x.rw.Reader()
	require.True(t, redisson.writeLock(t, time.Hour))
	require.True(t, redisson.readLock(t, 20*time.Second))
	redisson.writeUnlock(t)
	x.requireTTL(t, x.name, time.Hour)
	a := acquire(t, ctx, reader)
	release(t, a)
	x.requireState(t, reads(redisson.id, 1))
	x.requireTTL(t, x.name, 20*time.Second)
	redisson.readUnlock(t)
	x.requireState(t, nil, "0")
}

func testRedissonExpiredReader(t *testing.T, x *rwTest, redisson *redissonThread) {
	ctx, reader := t.Context(), x.rw.Reader()
	require.True(t, redisson.readLock(t, 20*time.Second))
	a := acquire(t, ctx, reader)
	require.NoError(t, x.rdb.Del(ctx, x.timeoutKey(redisson.id, 1)).Err())
	release(t, a)
	x.requireState(t, nil, "0")
}

func testRedissonWaiters(t *testing.T, x *rwTest, redisson *redissonThread) {
	ctx, reader := t.Context(), x.rw.Reader()
	require.True(t, redisson.writeLock(t, time.Minute))
	waiting := []<-chan result{start(func() (*primitives.Hold, error) { return reader.Acquire(ctx) })}
	for range 3 {
		waiting = append(waiting, start(func() (*primitives.Hold, error) { return reader.Acquire(ctx) }))
	}
	x.awaitWaiter(t)
	redisson.writeUnlock(t)
	for _, w := range waiting {
		got := await(t, w)
		require.NoError(t, got.err)
		defer release(t, got.hold)
	}
	require.False(t, redisson.writeLock(t, time.Minute))
	w := start(func() (*primitives.Hold, error) {
		return x.rw.Writer().Acquire(ctx, primitives.WithWait(50*time.Millisecond))
	})
	require.ErrorIs(t, await(t, w).err, primitives.ErrNotAcquired)
}

// A readUnlock by Redisson deletes the lock although a reader without a timeout key is in it.
func testRedissonTakesFromExpiredReader(t *testing.T, x *rwTest, redisson *redissonThread) {
	ctx := t.Context()
	b := acquire(t, ctx, x.rw.Reader())
	require.NoError(t, x.rdb.Del(ctx, x.timeoutKey(b.ID(), 1)).Err())
	require.ErrorIs(t, b.Check(ctx), primitives.ErrLost)
	requireEnds(t, b.Context(), primitives.ErrLost)
}
