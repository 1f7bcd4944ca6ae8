package primitives_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/primitives"
	"github.com/redlatch/redlatch/scripts"
)

// TestRWLockLeases checks leases and renewal in fake time.
func TestRWLockLeases(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		run  func(t *testing.T, x *rwTest)
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
		t.Run(tt.name, func(t *testing.T) { inBubble(t, tt.run) })
	}
}

// ttl returns the TTL of the lock's hash.
func (x *rwTest) ttl(t *testing.T) time.Duration { return x.rdb.PTTL(t.Context(), x.name).Val() }

// testShortLeaseKeepsOthers: neither the acquisition nor the release of a short lease moves the TTL
// of the hash.
func testShortLeaseKeepsOthers(t *testing.T, x *rwTest) {
	long := acquire(t, t.Context(), x.rw.Reader(), primitives.WithLease(time.Minute))
	short := acquire(t, t.Context(), x.rw.Reader(), primitives.WithLease(time.Second))
	in := acquire(t, long.Context(), x.rw.Reader(), primitives.WithLease(time.Second))
	require.Equal(t, time.Minute, x.ttl(t))
	release(t, short)
	release(t, in)
	require.Equal(t, time.Minute, x.ttl(t))
	require.Equal(t, time.Minute, x.rdb.PTTL(t.Context(), x.timeoutKey(long.ID(), 1)).Val())
	time.Sleep(59 * time.Second)
	require.NoError(t, long.Check(t.Context()))
	time.Sleep(time.Second)
	require.Empty(t, fields(t, x.s, x.name))
}

// testExpiredReaderIsNotRenewed: Detach stops the renewal of one reader. The renewal of the other
// one does not keep its field, which a later command deletes.
func testExpiredReaderIsNotRenewed(t *testing.T, x *rwTest) {
	live := acquire(t, t.Context(), x.rw.Reader(), primitives.WithWatchdog(10*time.Second))
	expired := acquire(t, t.Context(), x.rw.Reader(), primitives.WithWatchdog(10*time.Second))
	expired.Detach()
	time.Sleep(time.Minute)
	synctest.Wait()
	info, err := x.rw.Reader().Info(t.Context())
	require.NoError(t, err)
	require.Len(t, info.Holders, 1)
	require.Equal(t, live.ID(), info.Holders[0].ID)
	require.Contains(t, fields(t, x.s, x.name), expired.ID())
	require.ErrorIs(t, x.rw.Reader().ReleaseID(t.Context(), expired.ID()), primitives.ErrNotHeld)
	require.NotContains(t, fields(t, x.s, x.name), expired.ID())
	acquire(t, t.Context(), x.rw.Reader(), primitives.WithLease(time.Second))
	time.Sleep(2 * time.Second)
	release(t, live)
	require.Empty(t, fields(t, x.s, x.name), "no reader with a lease is left")
}

// testExpiredOwnerStartsAtOne: the field of an expired hold still has its count, which must not add
// up.
func testExpiredOwnerStartsAtOne(t *testing.T, x *rwTest) {
	acquire(t, t.Context(), x.rw.Reader())
	owner := primitives.WithOwner("o")
	acquire(t, t.Context(), x.rw.Reader(), owner, primitives.WithLease(time.Second))
	time.Sleep(2 * time.Second)
	require.Equal(t, "1", fields(t, x.s, x.name)["o"])
	again := acquire(t, t.Context(), x.rw.Reader(), owner)
	require.Equal(t, "1", fields(t, x.s, x.name)["o"])
	require.Equal(t, "1", x.rdb.Get(t.Context(), x.timeoutKey("o", 1)).Val())
	release(t, again)
	require.NotContains(t, fields(t, x.s, x.name), "o")
}

func testEachReaderIsRenewed(t *testing.T, x *rwTest) {
	a := acquire(t, t.Context(), x.rw.Reader(), primitives.WithWatchdog(9*time.Second))
	in := acquire(t, a.Context(), x.rw.Reader(), primitives.WithWatchdog(9*time.Second))
	other := acquire(t, t.Context(), x.rw.Reader(), primitives.WithLease(2*time.Minute))
	time.Sleep(time.Minute)
	synctest.Wait()
	for n := range 2 {
		require.GreaterOrEqual(t, x.rdb.PTTL(t.Context(), x.timeoutKey(a.ID(), n+1)).Val(), 5*time.Second)
	}
	require.Equal(t, time.Minute, x.rdb.PTTL(t.Context(), x.timeoutKey(other.ID(), 1)).Val())
	require.Equal(t, time.Minute, x.ttl(t))
	time.Sleep(2 * time.Minute)
	synctest.Wait()
	require.GreaterOrEqual(t, x.ttl(t), 5*time.Second)
	requireEnds(t, other.Context(), primitives.ErrLost)
	release(t, in)
	release(t, a)
	require.Empty(t, fields(t, x.s, x.name))
}

func testDowngradeIsRenewed(t *testing.T, x *rwTest) {
	w := acquire(t, t.Context(), x.rw.Writer(), primitives.WithWatchdog(9*time.Second))
	r := acquire(t, context.WithoutCancel(w.Context()), x.rw.Reader(), primitives.WithWatchdog(6*time.Second))
	time.Sleep(time.Minute)
	synctest.Wait()
	require.NoError(t, w.Check(t.Context()))
	require.NoError(t, r.Check(t.Context()))
	release(t, w)
	require.LessOrEqual(t, x.ttl(t), 6*time.Second)
	time.Sleep(time.Minute)
	synctest.Wait()
	require.NoError(t, r.Check(t.Context()))
	release(t, r)
	require.Empty(t, fields(t, x.s, x.name))
}

func testReaderWithoutTimeoutKeyIsLost(t *testing.T, x *rwTest) {
	r := acquire(t, t.Context(), x.rw.Reader(), primitives.WithWatchdog(9*time.Second))
	require.NoError(t, x.rdb.Del(t.Context(), x.timeoutKey(r.ID(), 1)).Err())
	time.Sleep(4 * time.Second)
	synctest.Wait()
	require.ErrorIs(t, context.Cause(r.Context()), primitives.ErrLost)
	require.ErrorIs(t, r.Release(t.Context()), primitives.ErrLost)
	time.Sleep(time.Second)
	synctest.Wait()
	require.Empty(t, fields(t, x.s, x.name), "its field is deleted in the background")
}

// testLateCopyOfAnAdoption: the reader's lease has ended, and its field is still there. A hold for the answer of the
// copy would keep nobody out.
func testLateCopyOfAnAdoption(t *testing.T, x *rwTest) {
	acquire(t, t.Context(), x.other(t).Reader(), primitives.WithLease(time.Minute)) // keeps the hash
	id := acquire(t, t.Context(), x.rw.Reader()).Detach()
	adopt := func() any {
		keys := []string{x.name, x.channel, "memory", "claim", x.sharedCounts()}
		text := scripts.Load("rwlock/read_adopt").Text()
		answer, err := x.rdb.Eval(t.Context(), text, keys, "me", 1000, "publish", id).Result()
		require.NoError(t, err)
		return answer
	}
	require.Equal(t, int64(1), adopt())
	require.Equal(t, int64(1), adopt(), "a copy")
	time.Sleep(2 * time.Second)
	require.Contains(t, fields(t, x.s, x.name), "me")
	require.Equal(t, int64(0), adopt(), "it holds nothing")
}

func testClaimExpiresWithItsWriter(t *testing.T, x *rwTest) {
	acquire(t, t.Context(), x.rw.Reader())
	require.NoError(t, x.rdb.Set(t.Context(), "redlatch_rwlock_claim:{n}", "expired", 2500*time.Millisecond).Err())
	began := time.Now()
	acquire(t, t.Context(), x.other(t).Reader())
	require.LessOrEqual(t, time.Since(began), 2502*time.Millisecond)
}

// testWaitingWriterRenewsItsClaim: the writer waits for longer than its claim's TTL.
func testWaitingWriterRenewsItsClaim(t *testing.T, x *rwTest) {
	r := acquire(t, t.Context(), x.rw.Reader())
	w := start(func() (*primitives.Hold, error) { return x.other(t).Writer().Acquire(t.Context()) })
	for range 100 {
		synctest.Wait()
		_, err := x.rw.Reader().TryAcquire(t.Context())
		require.ErrorIs(t, err, primitives.ErrNotAcquired)
		time.Sleep(100 * time.Millisecond)
	}
	release(t, r)
	got := <-w
	require.NoError(t, got.err)
	release(t, got.hold)
}
