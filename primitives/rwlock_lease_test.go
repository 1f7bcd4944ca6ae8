package primitives_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/primitives"
	"github.com/redlatch/redlatch/scripts"
)

// TestRWLockLeases checks leases and renewal in fake time.
func TestRWLockLeases(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		run  func(t *testing.T, x *RWTest)
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
		t.Run(tt.name, func(t *testing.T) { RWBubble(t, tt.run) })
	}
}

// testShortLeaseKeepsOthers: neither the acquisition nor the release of a short lease moves the TTL
// of the hash.
func testShortLeaseKeepsOthers(t *testing.T, x *RWTest) {
	long := Acquire(t, t.Context(), x.RW.Reader(), primitives.WithLease(time.Minute))
	short := Acquire(t, t.Context(), x.RW.Reader(), primitives.WithLease(time.Second))
	in := Acquire(t, long.Context(), x.RW.Reader(), primitives.WithLease(time.Second))
	require.Equal(t, time.Minute, x.TTL(t))
	Release(t, short, in)
	require.Equal(t, time.Minute, x.TTL(t))
	require.Equal(t, time.Minute, x.Rdb.PTTL(t.Context(), x.TimeoutKey(long.ID(), 1)).Val())
	time.Sleep(59 * time.Second)
	require.NoError(t, long.Check(t.Context()))
	time.Sleep(time.Second)
	require.Empty(t, Fields(t, x.S, x.Name))
}

// testExpiredReaderIsNotRenewed: Detach stops the renewal of one reader. The renewal of the other
// one does not keep its field, which a later command deletes.
func testExpiredReaderIsNotRenewed(t *testing.T, x *RWTest) {
	live := Acquire(t, t.Context(), x.RW.Reader(), primitives.WithWatchdog(10*time.Second))
	expired := Acquire(t, t.Context(), x.RW.Reader(), primitives.WithWatchdog(10*time.Second))
	expired.Detach()
	time.Sleep(time.Minute)
	synctest.Wait()
	info := InfoOf(t, x.RW.Reader())
	require.Len(t, info.Holders, 1)
	require.Equal(t, live.ID(), info.Holders[0].ID)
	require.Contains(t, Fields(t, x.S, x.Name), expired.ID())
	require.ErrorIs(t, x.RW.Reader().ReleaseID(t.Context(), expired.ID()), primitives.ErrNotHeld)
	require.NotContains(t, Fields(t, x.S, x.Name), expired.ID())
	Acquire(t, t.Context(), x.RW.Reader(), primitives.WithLease(time.Second))
	time.Sleep(2 * time.Second)
	Release(t, live)
	require.Empty(t, Fields(t, x.S, x.Name), "no reader with a lease is left")
}

// testExpiredOwnerStartsAtOne: the field of an expired hold still has its count, which must not add
// up.
func testExpiredOwnerStartsAtOne(t *testing.T, x *RWTest) {
	Acquire(t, t.Context(), x.RW.Reader())
	owner := primitives.WithOwner("o")
	Acquire(t, t.Context(), x.RW.Reader(), owner, primitives.WithLease(time.Second))
	time.Sleep(2 * time.Second)
	require.Equal(t, "1", Fields(t, x.S, x.Name)["o"])
	again := Acquire(t, t.Context(), x.RW.Reader(), owner)
	require.Equal(t, "1", Fields(t, x.S, x.Name)["o"])
	require.Equal(t, "1", x.Rdb.Get(t.Context(), x.TimeoutKey("o", 1)).Val())
	Release(t, again)
	require.NotContains(t, Fields(t, x.S, x.Name), "o")
}

func testEachReaderIsRenewed(t *testing.T, x *RWTest) {
	a := Acquire(t, t.Context(), x.RW.Reader(), primitives.WithWatchdog(9*time.Second))
	in := Acquire(t, a.Context(), x.RW.Reader(), primitives.WithWatchdog(9*time.Second))
	other := Acquire(t, t.Context(), x.RW.Reader(), primitives.WithLease(2*time.Minute))
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
	RequireEnds(t, other.Context(), primitives.ErrLost)
	Release(t, in, a)
	require.Empty(t, Fields(t, x.S, x.Name))
}

func testDowngradeIsRenewed(t *testing.T, x *RWTest) {
	w := Acquire(t, t.Context(), x.RW.Writer(), primitives.WithWatchdog(9*time.Second))
	r := Acquire(t, context.WithoutCancel(w.Context()), x.RW.Reader(), primitives.WithWatchdog(6*time.Second))
	time.Sleep(time.Minute)
	synctest.Wait()
	require.NoError(t, w.Check(t.Context()))
	require.NoError(t, r.Check(t.Context()))
	Release(t, w)
	require.LessOrEqual(t, x.TTL(t), 6*time.Second)
	time.Sleep(time.Minute)
	synctest.Wait()
	require.NoError(t, r.Check(t.Context()))
	Release(t, r)
	require.Empty(t, Fields(t, x.S, x.Name))
}

func testReaderWithoutTimeoutKeyIsLost(t *testing.T, x *RWTest) {
	r := Acquire(t, t.Context(), x.RW.Reader(), primitives.WithWatchdog(9*time.Second))
	require.NoError(t, x.Rdb.Del(t.Context(), x.TimeoutKey(r.ID(), 1)).Err())
	time.Sleep(4 * time.Second)
	synctest.Wait()
	require.ErrorIs(t, context.Cause(r.Context()), primitives.ErrLost)
	require.ErrorIs(t, r.Release(t.Context()), primitives.ErrLost)
	time.Sleep(time.Second)
	synctest.Wait()
	require.Empty(t, Fields(t, x.S, x.Name), "its field is deleted in the background")
}

// testLateCopyOfAnAdoption: the reader's lease has ended, and its field is still there. A hold for the answer of the
// copy would keep nobody out.
func testLateCopyOfAnAdoption(t *testing.T, x *RWTest) {
	Acquire(t, t.Context(), x.Other(t).Reader(), primitives.WithLease(time.Minute)) // keeps the hash
	id := Acquire(t, t.Context(), x.RW.Reader()).Detach()
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
	require.Contains(t, Fields(t, x.S, x.Name), "me")
	require.Equal(t, int64(0), adopt(), "it holds nothing")
}

func testClaimExpiresWithItsWriter(t *testing.T, x *RWTest) {
	Acquire(t, t.Context(), x.RW.Reader())
	require.NoError(t, x.Rdb.Set(t.Context(), "redlatch_rwlock_claim:{n}", "expired", 2500*time.Millisecond).Err())
	began := time.Now()
	Acquire(t, t.Context(), x.Other(t).Reader())
	require.LessOrEqual(t, time.Since(began), 2502*time.Millisecond)
}

// testWaitingWriterRenewsItsClaim: the writer waits for longer than its claim's TTL.
func testWaitingWriterRenewsItsClaim(t *testing.T, x *RWTest) {
	r := Acquire(t, t.Context(), x.RW.Reader())
	w := StartAcquire(t.Context(), x.Other(t).Writer())
	for range 100 {
		synctest.Wait()
		require.ErrorIs(t, ErrOf(x.RW.Reader().TryAcquire(t.Context())), primitives.ErrNotAcquired)
		time.Sleep(100 * time.Millisecond)
	}
	Release(t, r)
	got := <-w
	require.NoError(t, got.Err)
	Release(t, got.Hold)
}
