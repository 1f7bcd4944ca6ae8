package primitives_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// nestedReadCase nests one read hold in another, and releases one of them after a pause.
type nestedReadCase struct {
	name         string
	outer, inner primitives.Option
	pause        time.Duration
	extend       time.Duration // of the outer hold
	outerFirst   bool
	low, high    time.Duration // bounds of the TTL that is left
}

// TestRWLockNestedReadTakesItsLeaseWithIt checks that the TTL after the release is that of the hold
// that is left.
func TestRWLockNestedReadTakesItsLeaseWithIt(t *testing.T) {
	t.Parallel()
	lease, renewed := primitives.WithLease, primitives.WithWatchdog
	const s = time.Second
	for _, tt := range []nestedReadCase{
		{"leases", lease(10 * s), lease(60 * s), 2 * s, 0, false, 8 * s, 8 * s},
		{"leases, outer released first", lease(60 * s), lease(10 * s), 2 * s, 0, true, 8 * s, 8 * s},
		{"outer lease longer", lease(60 * s), lease(10 * s), 2 * s, 0, false, 58 * s, 58 * s},
		{"inner lease longer, outer released first", lease(10 * s), lease(60 * s), 2 * s, 0, true, 58 * s, 58 * s},
		{"renewed under a lease", lease(50 * s), renewed(60 * s), 22 * s, 0, false, 28 * s, 28 * s},
		{"renewed under a longer lease", lease(70 * s), renewed(60 * s), 22 * s, 0, false, 48 * s, 48 * s},
		{"lease under a renewed hold", renewed(9 * s), lease(60 * s), 20 * s, 0, false, 6 * s, 9 * s},
		{"renewed under a hold that is renewed more often", renewed(9 * s), renewed(60 * s), 20 * s, 0, false, 6 * s,
			9 * s},
		{"extended lease", lease(10 * s), lease(60 * s), 2 * s, 30 * s, false, 30 * s, 30 * s},
		{"extended renewed hold", renewed(9 * s), lease(60 * s), 2 * s, 30 * s, false, 30 * s, 30 * s},
		{"outer lease expired", lease(10 * s), lease(60 * s), 20 * s, 0, false, -2, -2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			RWBubble(t, func(t *testing.T, x *RWTest) { testNestedRead(t, x, tt) })
		})
	}
	t.Run("a detached hold keeps its lease", func(t *testing.T) { RWBubble(t, testNestedReadDetached) })
	t.Run("a hold after one that expired", func(t *testing.T) { RWBubble(t, testNestedReadAfterAnExpiredOne) })
	t.Run("other readers keep their leases", func(t *testing.T) { RWBubble(t, testNestedReadBesideOthers) })
}

func testNestedRead(t *testing.T, x *RWTest, tt nestedReadCase) {
	outer := Acquire(t, t.Context(), x.RW.Reader(), tt.outer)
	inner := Acquire(t, outer.Context(), x.RW.Reader(), tt.inner)
	time.Sleep(tt.pause)
	synctest.Wait()
	first, last := inner, outer
	if tt.outerFirst {
		first, last = outer, inner
	}
	if tt.extend > 0 {
		require.NoError(t, outer.Extend(t.Context(), tt.extend))
	}
	Release(t, first)
	for _, key := range []string{x.Name, x.TimeoutKey(outer.ID(), 1)} {
		left := x.Rdb.PTTL(t.Context(), key).Val()
		require.GreaterOrEqual(t, left, tt.low)
		require.LessOrEqual(t, left, tt.high)
		if left > 0 {
			require.GreaterOrEqual(t, left, time.Until(last.ValidUntil()),
				"the client trusts the lease no longer than Redis keeps it")
			require.Greater(t, time.Until(last.ValidUntil()), left*9/10)
		}
	}
	if tt.low < 0 {
		require.ErrorIs(t, last.Release(t.Context()), primitives.ErrLost)
		return
	}
	require.NoError(t, last.Check(t.Context()))
	synctest.Wait()
	next := Acquire(t, context.WithoutCancel(last.Context()), x.RW.Reader(), primitives.WithWatchdog(time.Second))
	require.LessOrEqual(t, time.Until(next.ValidUntil()), x.TTL(t), "nor a lease that was shortened")
	Release(t, next, last)
	RequireNothingLeft(t, x)
}

func testNestedReadDetached(t *testing.T, x *RWTest) {
	outer := Acquire(t, t.Context(), x.RW.Reader(), primitives.WithLease(10*time.Second))
	middle := Acquire(t, outer.Context(), x.RW.Reader(), primitives.WithLease(40*time.Second))
	inner := Acquire(t, middle.Context(), x.RW.Reader(), primitives.WithLease(60*time.Second))
	middle.Detach()
	Release(t, inner)
	require.GreaterOrEqual(t, x.Rdb.PTTL(t.Context(), x.Name).Val(), 40*time.Second)
}

// The count of a hold that expired stays in Redis. The next hold with that count needs a key with its own lease.
func testNestedReadAfterAnExpiredOne(t *testing.T, x *RWTest) {
	outer := Acquire(t, t.Context(), x.RW.Reader(), primitives.WithLease(40*time.Second))
	expired := Acquire(t, outer.Context(), x.RW.Reader(), primitives.WithLease(10*time.Second))
	time.Sleep(14 * time.Second)
	require.ErrorIs(t, expired.Release(t.Context()), primitives.ErrLost)
	synctest.Wait()
	next := Acquire(t, outer.Context(), x.RW.Reader(), primitives.WithLease(40*time.Second))
	require.Equal(t, 40*time.Second, x.Rdb.PTTL(t.Context(), x.TimeoutKey(outer.ID(), 2)).Val())
	time.Sleep(30 * time.Second)
	require.NoError(t, next.Check(t.Context()), "it outlives the outer hold")
	require.ErrorIs(t, ErrOf(x.Other(t).Writer().TryAcquire(t.Context())), primitives.ErrNotAcquired)
}

func testNestedReadBesideOthers(t *testing.T, x *RWTest) {
	other := Acquire(t, t.Context(), x.Other(t).Reader(), primitives.WithLease(30*time.Second))
	outer := Acquire(t, t.Context(), x.RW.Reader(), primitives.WithLease(10*time.Second))
	Release(t, Acquire(t, outer.Context(), x.RW.Reader(), primitives.WithLease(60*time.Second)))
	require.Equal(t, 30*time.Second, x.Rdb.PTTL(t.Context(), x.Name).Val())
	require.Equal(t, 10*time.Second, x.Rdb.PTTL(t.Context(), x.TimeoutKey(outer.ID(), 1)).Val())
	require.Equal(t, 30*time.Second, x.Rdb.PTTL(t.Context(), x.TimeoutKey(other.ID(), 1)).Val())
}

// TestRWLockLateCopyOfANestedReleaseFreesNothing (C16) executes a nested release again after the
// next nested acquisition.
func TestRWLockLateCopyOfANestedReleaseFreesNothing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := s.Proxy(t)
		x := OnRWNamed(t, s, p.Client(t), redistest.Name(t))
		lease := primitives.WithLease
		outer := Acquire(t, t.Context(), x.RW.Reader(), lease(10*time.Second))
		inner := Acquire(t, outer.Context(), x.RW.Reader(), lease(time.Minute))
		p.Record()
		Release(t, inner)
		var copied []any
		for _, command := range p.Commands() {
			if Script(command.Args) {
				for _, arg := range command.Args {
					copied = append(copied, arg)
				}
			}
		}
		again := Acquire(t, outer.Context(), x.RW.Reader(), lease(time.Minute))
		require.Equal(t, int64(1), x.Rdb.Do(t.Context(), copied...).Val())
		require.Equal(t, "2", Fields(t, s, x.Name)[outer.ID()])
		require.Greater(t, x.Rdb.PTTL(t.Context(), x.Name).Val(), 50*time.Second)
		Release(t, again)
		require.LessOrEqual(t, x.Rdb.PTTL(t.Context(), x.Name).Val(), 10*time.Second)
		Release(t, outer)
		RequireNothingLeft(t, x)
	})
}

// TestRWLockReleaseDoesNotUndoAConcurrentExtend checks that Redis keeps the lock at least as long
// as the client trusts the hold.
func TestRWLockReleaseDoesNotUndoAConcurrentExtend(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := s.Proxy(t)
		x := OnRWNamed(t, s, p.Client(t), redistest.Name(t))
		outer := Acquire(t, t.Context(), x.RW.Reader(), primitives.WithLease(10*time.Second))
		for range redistest.Scaled(s, 60) {
			inner := Acquire(t, outer.Context(), x.RW.Reader(), primitives.WithLease(time.Minute))
			released := Start(func() (*primitives.Hold, error) { return nil, inner.Release(context.Background()) })
			require.NoError(t, outer.Extend(t.Context(), 20*time.Second))
			require.NoError(t, Await(t, released).Err)
			left := x.Rdb.PTTL(t.Context(), x.Name).Val()
			require.GreaterOrEqual(t, left+time.Millisecond, time.Until(outer.ValidUntil()))
		}
		// Hold back the reply to the release while Extend runs.
		inner := Acquire(t, outer.Context(), x.RW.Reader(), primitives.WithLease(time.Minute))
		deliver := p.HoldReplies(Script)
		released := Start(func() (*primitives.Hold, error) { return nil, inner.Release(context.Background()) })
		redistest.WaitFor(t, Soon, func() bool { return p.Held() == 1 }, "the release is executed")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, ErrTest)
		defer cancel()
		require.ErrorIs(t, outer.Extend(ctx, 30*time.Second), ErrTest)
		require.Equal(t, 1, p.Held(), "Extend sends nothing while the effect of the release is unknown")
		deliver()
		require.NoError(t, Await(t, released).Err)
		require.NoError(t, outer.Extend(t.Context(), 30*time.Second))
		require.Greater(t, x.Rdb.PTTL(t.Context(), x.Name).Val(), 25*time.Second)
		Release(t, outer)
		RequireNothingLeft(t, x)
	})
}

func TestRWLockInfoOfALockWithoutExpiry(t *testing.T) {
	t.Parallel()
	EachRW(t, func(t *testing.T, x *RWTest) {
		for _, side := range x.Sides() {
			hold := Acquire(t, t.Context(), side.Lock, primitives.WithLease(time.Minute))
			require.NoError(t, x.Rdb.Persist(t.Context(), x.Name).Err())
			info := InfoOf(t, side.Lock)
			require.Equal(t, time.Duration(-1), info.TTL)
			require.Len(t, info.Holders, 1)
			Release(t, hold)
			info = InfoOf(t, side.Lock)
			require.Zero(t, info.TTL)
		}
	})
}

// A writer with a fixed lease also reads, with a longer lease. Once the writer's lease is over and it was released,
// others may read. Once the reader has gone, others may write.
func TestRWLockLeaseOfAWriterThatReads(t *testing.T) {
	t.Parallel()
	EachRW(t, func(t *testing.T, x *RWTest) {
		writer := Acquire(t, t.Context(), x.RW.Writer(), primitives.WithLease(ShortLease))
		reader := Acquire(t, context.WithoutCancel(writer.Context()), x.RW.Reader())
		RequireEnds(t, writer.Context(), primitives.ErrLost)
		time.Sleep(100 * time.Millisecond) // the lease ends a little later than the hold
		require.ErrorIs(t, writer.Release(t.Context()), primitives.ErrLost)
		other := x.Other(t)
		Release(t, Acquire(t, t.Context(), other.Reader(), primitives.WithWait(Soon)))
		Release(t, reader)
		Release(t, Acquire(t, t.Context(), other.Writer(), primitives.WithWait(0)))
	})
}
