package primitives_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
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
			inBubble(t, func(t *testing.T, x *rwTest) { testNestedRead(t, x, tt) })
		})
	}
	t.Run("a detached hold keeps its lease", func(t *testing.T) { inBubble(t, testNestedReadDetached) })
	t.Run("other readers keep their leases", func(t *testing.T) { inBubble(t, testNestedReadBesideOthers) })
}

func testNestedRead(t *testing.T, x *rwTest, tt nestedReadCase) {
	outer := acquire(t, t.Context(), x.rw.Reader(), tt.outer)
	inner := acquire(t, outer.Context(), x.rw.Reader(), tt.inner)
	time.Sleep(tt.pause)
	synctest.Wait()
	first, last := inner, outer
	if tt.outerFirst {
		first, last = outer, inner
	}
	if tt.extend > 0 {
		require.NoError(t, outer.Extend(t.Context(), tt.extend))
	}
	release(t, first)
	for _, key := range []string{x.name, x.timeoutKey(outer.ID(), 1)} {
		left := x.rdb.PTTL(t.Context(), key).Val()
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
	next := acquire(t, context.WithoutCancel(last.Context()), x.rw.Reader(), primitives.WithWatchdog(time.Second))
	require.LessOrEqual(t, time.Until(next.ValidUntil()), x.ttl(t), "nor a lease that was shortened")
	release(t, next)
	release(t, last)
	requireNothingLeft(t, x)
}

func testNestedReadDetached(t *testing.T, x *rwTest) {
	outer := acquire(t, t.Context(), x.rw.Reader(), primitives.WithLease(10*time.Second))
	middle := acquire(t, outer.Context(), x.rw.Reader(), primitives.WithLease(40*time.Second))
	inner := acquire(t, middle.Context(), x.rw.Reader(), primitives.WithLease(60*time.Second))
	middle.Detach()
	release(t, inner)
	require.GreaterOrEqual(t, x.rdb.PTTL(t.Context(), x.name).Val(), 40*time.Second)
}

func testNestedReadBesideOthers(t *testing.T, x *rwTest) {
	other := acquire(t, t.Context(), x.other(t).Reader(), primitives.WithLease(30*time.Second))
	outer := acquire(t, t.Context(), x.rw.Reader(), primitives.WithLease(10*time.Second))
	release(t, acquire(t, outer.Context(), x.rw.Reader(), primitives.WithLease(60*time.Second)))
	require.Equal(t, 30*time.Second, x.rdb.PTTL(t.Context(), x.name).Val())
	require.Equal(t, 10*time.Second, x.rdb.PTTL(t.Context(), x.timeoutKey(outer.ID(), 1)).Val())
	require.Equal(t, 30*time.Second, x.rdb.PTTL(t.Context(), x.timeoutKey(other.ID(), 1)).Val())
}

// TestRWLockLateCopyOfANestedReleaseFreesNothing (C16) executes a nested release again after the
// next nested acquisition.
func TestRWLockLateCopyOfANestedReleaseFreesNothing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := s.Proxy(t)
		x := onRWNamed(t, s, p.Client(t), redistest.Name(t))
		lease := primitives.WithLease
		outer := acquire(t, t.Context(), x.rw.Reader(), lease(10*time.Second))
		inner := acquire(t, outer.Context(), x.rw.Reader(), lease(time.Minute))
		p.Record()
		release(t, inner)
		var copied []any
		for _, command := range p.Commands() {
			if script(command.Args) {
				for _, arg := range command.Args {
					copied = append(copied, arg)
				}
			}
		}
		again := acquire(t, outer.Context(), x.rw.Reader(), lease(time.Minute))
		require.Equal(t, int64(1), x.rdb.Do(t.Context(), copied...).Val())
		require.Equal(t, "2", fields(t, s, x.name)[outer.ID()])
		require.Greater(t, x.rdb.PTTL(t.Context(), x.name).Val(), 50*time.Second)
		release(t, again)
		require.LessOrEqual(t, x.rdb.PTTL(t.Context(), x.name).Val(), 10*time.Second)
		release(t, outer)
		requireNothingLeft(t, x)
	})
}

// TestRWLockReleaseDoesNotUndoAConcurrentExtend checks that Redis keeps the lock at least as long
// as the client trusts the hold.
func TestRWLockReleaseDoesNotUndoAConcurrentExtend(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := s.Proxy(t)
		x := onRWNamed(t, s, p.Client(t), redistest.Name(t))
		outer := acquire(t, t.Context(), x.rw.Reader(), primitives.WithLease(10*time.Second))
		for range redistest.Scaled(s, 60) {
			inner := acquire(t, outer.Context(), x.rw.Reader(), primitives.WithLease(time.Minute))
			released := start(func() (*primitives.Hold, error) { return nil, inner.Release(context.Background()) })
			require.NoError(t, outer.Extend(t.Context(), 20*time.Second))
			require.NoError(t, await(t, released).err)
			left := x.rdb.PTTL(t.Context(), x.name).Val()
			require.GreaterOrEqual(t, left+time.Millisecond, time.Until(outer.ValidUntil()))
		}
		// Hold back the reply to the release while Extend runs.
		inner := acquire(t, outer.Context(), x.rw.Reader(), primitives.WithLease(time.Minute))
		deliver := p.HoldReplies(script)
		released := start(func() (*primitives.Hold, error) { return nil, inner.Release(context.Background()) })
		redistest.WaitFor(t, soon, func() bool { return p.Held() == 1 }, "the release is executed")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errTest)
		defer cancel()
		require.ErrorIs(t, outer.Extend(ctx, 30*time.Second), errTest)
		require.Equal(t, 1, p.Held(), "Extend sends nothing while the effect of the release is unknown")
		deliver()
		require.NoError(t, await(t, released).err)
		require.NoError(t, outer.Extend(t.Context(), 30*time.Second))
		require.Greater(t, x.rdb.PTTL(t.Context(), x.name).Val(), 25*time.Second)
		release(t, outer)
		requireNothingLeft(t, x)
	})
}

func TestRWLockInfoOfALockWithoutExpiry(t *testing.T) {
	t.Parallel()
	eachRW(t, func(t *testing.T, x *rwTest) {
		for _, side := range x.rwSides() {
			hold := acquire(t, t.Context(), side.lock, primitives.WithLease(time.Minute))
			require.NoError(t, x.rdb.Persist(t.Context(), x.name).Err())
			info, err := side.lock.Info(t.Context())
			require.NoError(t, err)
			require.Equal(t, time.Duration(-1), info.TTL)
			require.Len(t, info.Holders, 1)
			release(t, hold)
			info, err = side.lock.Info(t.Context())
			require.NoError(t, err)
			require.Zero(t, info.TTL)
		}
	})
}
