package primitives_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
	"github.com/redlatch/redlatch/scripts"
)

// TestRWLockLeases checks leases and renewal in fake time.
func TestRWLockLeases(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		run  func(t *testing.T, x *fixture.RWTest)
	}{
		{"a short lease does not shorten another", testShortLeaseKeepsOthers},
		{"an expired reader is not renewed", testExpiredReaderIsNotRenewed},
		{"an owner whose lease expired acquires with count 1", testExpiredOwnerStartsAtOne},
		{"each reader is renewed on its own", testEachReaderIsRenewed},
		{"a writer is renewed while it reads, and its read after the write", testDowngradeIsRenewed},
		{"a reader without its timeout key is lost", testReaderWithoutTimeoutKeyIsLost},
		{"a late copy of an adoption does not revive a reader", testLateCopyOfAnAdoption},
		{"a claim expires with its writer", testClaimExpiresWithItsWriter},
		{"a waiting writer renews its claim", testWaitingWriterRenewsItsClaim},
	} {
		t.Run(tt.name, func(t *testing.T) { fixture.RWBubble(t, tt.run) })
	}
}

// testShortLeaseKeepsOthers checks that neither the acquisition nor the release of a short lease
// moves the TTL of the hash.
func testShortLeaseKeepsOthers(t *testing.T, x *fixture.RWTest) {
	long := fixture.Acquire(t, t.Context(), x.RW.Reader(), primitives.WithLease(time.Minute))
	short := fixture.Acquire(t, t.Context(), x.RW.Reader(), primitives.WithLease(time.Second))
	in := fixture.Acquire(t, long.Context(), x.RW.Reader(), primitives.WithLease(time.Second))
	require.Equal(t, time.Minute, x.TTL(t))
	fixture.Release(t, short, in)
	require.Equal(t, time.Minute, x.TTL(t))
	require.Equal(t, time.Minute, x.Rdb.PTTL(t.Context(), x.TimeoutKey(long.ID(), 1)).Val())
	time.Sleep(59 * time.Second)
	require.NoError(t, long.Check(t.Context()))
	time.Sleep(time.Second)
	require.Empty(t, fixture.Fields(t, x.S, x.Name))
}

// testExpiredReaderIsNotRenewed detaches one reader, which stops its renewal. The renewal of the
// other one does not keep its field, which a later command deletes.
func testExpiredReaderIsNotRenewed(t *testing.T, x *fixture.RWTest) {
	live := fixture.Acquire(t, t.Context(), x.RW.Reader(), primitives.WithWatchdog(10*time.Second))
	expired := fixture.Acquire(t, t.Context(), x.RW.Reader(), primitives.WithWatchdog(10*time.Second))
	expired.Detach()
	time.Sleep(time.Minute)
	synctest.Wait()
	info := fixture.InfoOf(t, x.RW.Reader())
	require.Len(t, info.Holders, 1)
	require.Equal(t, live.ID(), info.Holders[0].ID)
	require.Contains(t, fixture.Fields(t, x.S, x.Name), expired.ID())
	require.ErrorIs(t, x.RW.Reader().ReleaseID(t.Context(), expired.ID()), primitives.ErrNotHeld)
	require.NotContains(t, fixture.Fields(t, x.S, x.Name), expired.ID())
	fixture.Acquire(t, t.Context(), x.RW.Reader(), primitives.WithLease(time.Second))
	time.Sleep(2 * time.Second)
	fixture.Release(t, live)
	require.Empty(t, fixture.Fields(t, x.S, x.Name), "no reader with a lease is left")
}

// testExpiredOwnerStartsAtOne checks that a new hold does not add to the count that an expired one
// has left in the field.
func testExpiredOwnerStartsAtOne(t *testing.T, x *fixture.RWTest) {
	fixture.Acquire(t, t.Context(), x.RW.Reader())
	owner := primitives.WithOwner("o")
	fixture.Acquire(t, t.Context(), x.RW.Reader(), owner, primitives.WithLease(time.Second))
	time.Sleep(2 * time.Second)
	require.Equal(t, "1", fixture.Fields(t, x.S, x.Name)["o"])
	again := fixture.Acquire(t, t.Context(), x.RW.Reader(), owner)
	require.Equal(t, "1", fixture.Fields(t, x.S, x.Name)["o"])
	require.Equal(t, "1", x.Rdb.Get(t.Context(), x.TimeoutKey("o", 1)).Val())
	fixture.Release(t, again)
	require.NotContains(t, fixture.Fields(t, x.S, x.Name), "o")
}

func testEachReaderIsRenewed(t *testing.T, x *fixture.RWTest) {
	a := fixture.Acquire(t, t.Context(), x.RW.Reader(), primitives.WithWatchdog(9*time.Second))
	in := fixture.Acquire(t, a.Context(), x.RW.Reader(), primitives.WithWatchdog(9*time.Second))
	other := fixture.Acquire(t, t.Context(), x.RW.Reader(), primitives.WithLease(2*time.Minute))
	time.Sleep(time.Minute)
	synctest.Wait()
	for n := range 2 {
		require.GreaterOrEqual(t, x.Rdb.PTTL(t.Context(), x.TimeoutKey(a.ID(), n+1)).Val(), 5*time.Second)
	}
	require.Equal(t, time.Minute, x.Rdb.PTTL(t.Context(), x.TimeoutKey(other.ID(), 1)).Val())
	require.Equal(t, time.Minute, x.TTL(t))
	time.Sleep(2 * time.Minute)
	synctest.Wait()
	require.GreaterOrEqual(t, x.TTL(t), 5*time.Second)
	fixture.RequireEnds(t, other.Context(), primitives.ErrLost)
	fixture.Release(t, in, a)
	require.Empty(t, fixture.Fields(t, x.S, x.Name))
}

func testDowngradeIsRenewed(t *testing.T, x *fixture.RWTest) {
	w := fixture.Acquire(t, t.Context(), x.RW.Writer(), primitives.WithWatchdog(9*time.Second))
	r := fixture.Acquire(t, context.WithoutCancel(w.Context()), x.RW.Reader(), primitives.WithWatchdog(6*time.Second))
	time.Sleep(time.Minute)
	synctest.Wait()
	require.NoError(t, w.Check(t.Context()))
	require.NoError(t, r.Check(t.Context()))
	fixture.Release(t, w)
	require.LessOrEqual(t, x.TTL(t), 6*time.Second)
	time.Sleep(time.Minute)
	synctest.Wait()
	require.NoError(t, r.Check(t.Context()))
	fixture.Release(t, r)
	require.Empty(t, fixture.Fields(t, x.S, x.Name))
}

func testReaderWithoutTimeoutKeyIsLost(t *testing.T, x *fixture.RWTest) {
	r := fixture.Acquire(t, t.Context(), x.RW.Reader(), primitives.WithWatchdog(9*time.Second))
	require.NoError(t, x.Rdb.Del(t.Context(), x.TimeoutKey(r.ID(), 1)).Err())
	time.Sleep(4 * time.Second)
	synctest.Wait()
	require.ErrorIs(t, context.Cause(r.Context()), primitives.ErrLost)
	require.ErrorIs(t, r.Release(t.Context()), primitives.ErrLost)
	time.Sleep(time.Second)
	synctest.Wait()
	require.Empty(t, fixture.Fields(t, x.S, x.Name), "its field is deleted in the background")
}

// testLateCopyOfAnAdoption sends a copy when the reader's lease has ended and its field is still
// there. A hold for the answer of the copy would keep nobody out.
func testLateCopyOfAnAdoption(t *testing.T, x *fixture.RWTest) {
	fixture.Acquire(t, t.Context(), x.Other(t).Reader(), primitives.WithLease(time.Minute)) // keeps the hash
	id := fixture.Acquire(t, t.Context(), x.RW.Reader()).Detach()
	adopt := func() any {
		keys := []string{x.Name, x.Channel, "memory", "claim", x.SharedCounts()}
		text := scripts.Load("rwlock/read_adopt").Text()
		answer, err := x.Rdb.Eval(t.Context(), text, keys, "me", 1000, "publish", id).Result()
		require.NoError(t, err)
		return answer
	}
	require.Equal(t, int64(1), adopt())
	require.Equal(t, int64(1), adopt(), "a copy")
	time.Sleep(2 * time.Second)
	require.Contains(t, fixture.Fields(t, x.S, x.Name), "me")
	require.Equal(t, int64(0), adopt(), "it holds nothing")
}

func testClaimExpiresWithItsWriter(t *testing.T, x *fixture.RWTest) {
	fixture.Acquire(t, t.Context(), x.RW.Reader())
	require.NoError(t, x.Rdb.Set(t.Context(), "redlatch_rwlock_claim:{n}", "expired", 2500*time.Millisecond).Err())
	began := time.Now()
	fixture.Acquire(t, t.Context(), x.Other(t).Reader())
	require.LessOrEqual(t, time.Since(began), 2502*time.Millisecond)
}

// testWaitingWriterRenewsItsClaim has a writer wait for longer than its claim's TTL.
func testWaitingWriterRenewsItsClaim(t *testing.T, x *fixture.RWTest) {
	r := fixture.Acquire(t, t.Context(), x.RW.Reader())
	w := fixture.StartAcquire(t.Context(), x.Other(t).Writer())
	for range 100 {
		synctest.Wait()
		require.ErrorIs(t, fixture.ErrOf(x.RW.Reader().TryAcquire(t.Context())), primitives.ErrNotAcquired)
		time.Sleep(100 * time.Millisecond)
	}
	fixture.Release(t, r)
	got := <-w
	require.NoError(t, got.Err)
	fixture.Release(t, got.Hold)
}

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
			fixture.RWBubble(t, func(t *testing.T, x *fixture.RWTest) { testNestedRead(t, x, tt) })
		})
	}
	t.Run("a detached hold keeps its lease", func(t *testing.T) { fixture.RWBubble(t, testNestedReadDetached) })
	t.Run("a hold after one that expired", func(t *testing.T) { fixture.RWBubble(t, testNestedReadAfterAnExpiredOne) })
	t.Run("other readers keep their leases", func(t *testing.T) { fixture.RWBubble(t, testNestedReadBesideOthers) })
}

func testNestedRead(t *testing.T, x *fixture.RWTest, tt nestedReadCase) {
	outer := fixture.Acquire(t, t.Context(), x.RW.Reader(), tt.outer)
	inner := fixture.Acquire(t, outer.Context(), x.RW.Reader(), tt.inner)
	time.Sleep(tt.pause)
	synctest.Wait()
	first, last := inner, outer
	if tt.outerFirst {
		first, last = outer, inner
	}
	if tt.extend > 0 {
		require.NoError(t, outer.Extend(t.Context(), tt.extend))
	}
	fixture.Release(t, first)
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
	next := fixture.Acquire(t, context.WithoutCancel(last.Context()), x.RW.Reader(), primitives.WithWatchdog(time.Second))
	require.LessOrEqual(t, time.Until(next.ValidUntil()), x.TTL(t), "nor a lease that was shortened")
	fixture.Release(t, next, last)
	fixture.RequireNothingLeft(t, x)
}

func testNestedReadDetached(t *testing.T, x *fixture.RWTest) {
	outer := fixture.Acquire(t, t.Context(), x.RW.Reader(), primitives.WithLease(10*time.Second))
	middle := fixture.Acquire(t, outer.Context(), x.RW.Reader(), primitives.WithLease(40*time.Second))
	inner := fixture.Acquire(t, middle.Context(), x.RW.Reader(), primitives.WithLease(60*time.Second))
	middle.Detach()
	fixture.Release(t, inner)
	require.GreaterOrEqual(t, x.Rdb.PTTL(t.Context(), x.Name).Val(), 40*time.Second)
}

// The count of a hold that expired stays in Redis. The next hold with that count needs a key with
// its own lease.
func testNestedReadAfterAnExpiredOne(t *testing.T, x *fixture.RWTest) {
	outer := fixture.Acquire(t, t.Context(), x.RW.Reader(), primitives.WithLease(40*time.Second))
	expired := fixture.Acquire(t, outer.Context(), x.RW.Reader(), primitives.WithLease(10*time.Second))
	time.Sleep(14 * time.Second)
	require.ErrorIs(t, expired.Release(t.Context()), primitives.ErrLost)
	synctest.Wait()
	next := fixture.Acquire(t, outer.Context(), x.RW.Reader(), primitives.WithLease(40*time.Second))
	require.Equal(t, 40*time.Second, x.Rdb.PTTL(t.Context(), x.TimeoutKey(outer.ID(), 2)).Val())
	time.Sleep(30 * time.Second)
	require.NoError(t, next.Check(t.Context()), "it outlives the outer hold")
	require.ErrorIs(t, fixture.ErrOf(x.Other(t).Writer().TryAcquire(t.Context())), primitives.ErrNotAcquired)
}

func testNestedReadBesideOthers(t *testing.T, x *fixture.RWTest) {
	other := fixture.Acquire(t, t.Context(), x.Other(t).Reader(), primitives.WithLease(30*time.Second))
	outer := fixture.Acquire(t, t.Context(), x.RW.Reader(), primitives.WithLease(10*time.Second))
	fixture.Release(t, fixture.Acquire(t, outer.Context(), x.RW.Reader(), primitives.WithLease(60*time.Second)))
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
		x := fixture.OnRWNamed(t, s, p.Client(t), redistest.Name(t))
		lease := primitives.WithLease
		outer := fixture.Acquire(t, t.Context(), x.RW.Reader(), lease(10*time.Second))
		inner := fixture.Acquire(t, outer.Context(), x.RW.Reader(), lease(time.Minute))
		p.Record()
		fixture.Release(t, inner)
		var copied []any
		for _, command := range p.Commands() {
			if fixture.Script(command.Args) {
				for _, arg := range command.Args {
					copied = append(copied, arg)
				}
			}
		}
		again := fixture.Acquire(t, outer.Context(), x.RW.Reader(), lease(time.Minute))
		require.Equal(t, int64(1), x.Rdb.Do(t.Context(), copied...).Val())
		require.Equal(t, "2", fixture.Fields(t, s, x.Name)[outer.ID()])
		require.Greater(t, x.Rdb.PTTL(t.Context(), x.Name).Val(), 50*time.Second)
		fixture.Release(t, again)
		require.LessOrEqual(t, x.Rdb.PTTL(t.Context(), x.Name).Val(), 10*time.Second)
		fixture.Release(t, outer)
		fixture.RequireNothingLeft(t, x)
	})
}

// TestRWLockReleaseDoesNotUndoAConcurrentExtend checks that Redis keeps the lock at least as long
// as the client trusts the hold.
func TestRWLockReleaseDoesNotUndoAConcurrentExtend(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := s.Proxy(t)
		x := fixture.OnRWNamed(t, s, p.Client(t), redistest.Name(t))
		outer := fixture.Acquire(t, t.Context(), x.RW.Reader(), primitives.WithLease(10*time.Second))
		for range redistest.Scaled(s, 60) {
			inner := fixture.Acquire(t, outer.Context(), x.RW.Reader(), primitives.WithLease(time.Minute))
			released := fixture.Start(func() (*primitives.Hold, error) { return nil, inner.Release(context.Background()) })
			require.NoError(t, outer.Extend(t.Context(), 20*time.Second))
			require.NoError(t, fixture.Await(t, released).Err)
			left := x.Rdb.PTTL(t.Context(), x.Name).Val()
			require.GreaterOrEqual(t, left+time.Millisecond, time.Until(outer.ValidUntil()))
		}
		// Hold back the reply to the release while Extend runs.
		inner := fixture.Acquire(t, outer.Context(), x.RW.Reader(), primitives.WithLease(time.Minute))
		deliver := p.HoldReplies(fixture.Script)
		released := fixture.Start(func() (*primitives.Hold, error) { return nil, inner.Release(context.Background()) })
		redistest.WaitFor(t, fixture.Soon, func() bool { return p.Held() == 1 }, "the release is executed")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, fixture.ErrTest)
		defer cancel()
		require.ErrorIs(t, outer.Extend(ctx, 30*time.Second), fixture.ErrTest)
		require.Equal(t, 1, p.Held(), "Extend sends nothing while the effect of the release is unknown")
		deliver()
		require.NoError(t, fixture.Await(t, released).Err)
		require.NoError(t, outer.Extend(t.Context(), 30*time.Second))
		require.Greater(t, x.Rdb.PTTL(t.Context(), x.Name).Val(), 25*time.Second)
		fixture.Release(t, outer)
		fixture.RequireNothingLeft(t, x)
	})
}

func TestRWLockInfoOfALockWithoutExpiry(t *testing.T) {
	t.Parallel()
	fixture.EachRW(t, func(t *testing.T, x *fixture.RWTest) {
		for _, side := range x.Sides() {
			hold := fixture.Acquire(t, t.Context(), side.Lock, primitives.WithLease(time.Minute))
			require.NoError(t, x.Rdb.Persist(t.Context(), x.Name).Err())
			info := fixture.InfoOf(t, side.Lock)
			require.Equal(t, time.Duration(-1), info.TTL)
			require.Len(t, info.Holders, 1)
			fixture.Release(t, hold)
			info = fixture.InfoOf(t, side.Lock)
			require.Zero(t, info.TTL)
		}
	})
}

// A writer with a fixed lease also reads, with a longer lease. Once the writer's lease is over and
// it was released, others may read. Once the reader has gone, others may write.
func TestRWLockLeaseOfAWriterThatReads(t *testing.T) {
	t.Parallel()
	fixture.EachRW(t, func(t *testing.T, x *fixture.RWTest) {
		writer := fixture.Acquire(t, t.Context(), x.RW.Writer(), primitives.WithLease(fixture.ShortLease))
		reader := fixture.Acquire(t, context.WithoutCancel(writer.Context()), x.RW.Reader())
		fixture.RequireEnds(t, writer.Context(), primitives.ErrLost)
		time.Sleep(100 * time.Millisecond) // the lease ends a little later than the hold
		require.ErrorIs(t, writer.Release(t.Context()), primitives.ErrLost)
		other := x.Other(t)
		fixture.Release(t, fixture.Acquire(t, t.Context(), other.Reader(), primitives.WithWait(fixture.Soon)))
		fixture.Release(t, reader)
		fixture.Release(t, fixture.Acquire(t, t.Context(), other.Writer(), primitives.WithWait(0)))
	})
}
