package primitives_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/fixture"
	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// TestTTLBeyondADuration sets a TTL that overflows time.Duration. Info reports the longest
// duration, and waiters go on.
func TestTTLBeyondADuration(t *testing.T) {
	t.Parallel()
	x := OnRW(t, redistest.Redis(t))
	hold := Acquire(t, t.Context(), x.RW.Writer())
	require.NoError(t, x.Rdb.Do(t.Context(), "pexpire", x.Name, int64(1e14)).Err())
	info, err := x.RW.Writer().Info(t.Context())
	require.NoError(t, err)
	require.Greater(t, info.TTL, 290*365*24*time.Hour)
	for info, err := range x.C.Locks(t.Context(), x.Name) {
		require.NoError(t, err)
		require.Greater(t, info.TTL, 290*365*24*time.Hour)
	}
	waiting := Start(func() (*primitives.Hold, error) { return x.Other(t).Writer().Acquire(t.Context()) })
	x.AwaitWaiter(t)
	Release(t, hold)
	Release(t, AwaitHold(t, waiting))
}

// TestLocksReportsKindsAndLiveReaders lists locks of all kinds. Expired readers are not listed.
func TestLocksReportsKindsAndLiveReaders(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		rdb := s.Client(t)
		c := NewClient(t, s.Client(t), primitives.WithDefaults(primitives.WithLease(time.Minute)))
		lease := primitives.WithLease(20 * time.Second)
		Acquire(t, t.Context(), c.Lock(name+"plain"))
		Acquire(t, t.Context(), c.FencedLock(name+"fenced"))
		Acquire(t, t.Context(), c.FairLock(name+"fair"))
		waiting := Start(func() (*primitives.Hold, error) { return c.FairLock(name + "fair").Acquire(t.Context()) })
		redistest.WaitFor(t, Soon, func() bool {
			return rdb.LLen(t.Context(), "redisson_lock_queue:{"+name+"fair}").Val() == 1
		}, "the waiter is in the queue")
		long := Acquire(t, t.Context(), c.RWLock(name+"read").Reader())
		short := Acquire(t, t.Context(), c.RWLock(name+"read").Reader(), lease)
		expired := Acquire(t, t.Context(), c.RWLock(name+"read").Reader())
		allExpired := Acquire(t, t.Context(), c.RWLock(name+"expired").Reader())
		Acquire(t, t.Context(), c.RWLock(name+"write").Writer(), primitives.WithOwner("o"))
		require.NoError(t, rdb.Del(t.Context(), "{"+name+"read}:"+expired.ID()+":rwlock_timeout:1",
			"{"+name+"expired}:"+allExpired.ID()+":rwlock_timeout:1").Err())
		found := map[string]primitives.Info{}
		for info, err := range c.Locks(t.Context(), "*"+name+"*") { // shared counts are not listed
			require.NoError(t, err)
			found[info.Name] = info
		}
		kinds := map[string]string{}
		for key, info := range found {
			kinds[key] = info.Kind
		}
		require.Equal(t, map[string]string{
			name + "plain": "lock", name + "fenced": "fenced", name + "fair": "fair",
			name + "read": "reader", name + "write": "writer",
		}, kinds)
		ttls := map[string]time.Duration{}
		for _, holder := range found[name+"read"].Holders {
			ttls[holder.ID] = holder.TTL
		}
		require.Len(t, ttls, 2)
		require.Greater(t, ttls[long.ID()], 30*time.Second)
		require.LessOrEqual(t, ttls[short.ID()], 20*time.Second)
		hold, _, err := rdb.HScan(t.Context(), name+"fair", 0, "*", 10).Result()
		require.NoError(t, err)
		require.NoError(t, c.FairLock(name+"fair").ReleaseID(t.Context(), hold[0]))
		Release(t, AwaitHold(t, waiting))
	})
}

// TestLocksListsANameWhoseKeysAreInTwoSlots lists such a name by its hash alone.
func TestLocksListsANameWhoseKeysAreInTwoSlots(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t)
	name := redistest.Name(t) + "a}b"
	rdb := servers.ClusterClient(t)
	c := NewClient(t, servers.ClusterClient(t))
	require.NoError(t, rdb.HSet(t.Context(), name, c.ID()+":1", 1).Err())
	require.NoError(t, rdb.PExpire(t.Context(), name, time.Minute).Err())
	t.Cleanup(func() { rdb.Del(context.Background(), name) })
	listed := 0
	for info, err := range c.Locks(t.Context(), "*"+name) {
		require.NoError(t, err)
		require.Equal(t, "lock", info.Kind)
		listed++
	}
	require.Equal(t, 1, listed)
	// A plain client of a server that enforces slots lists it too.
	node := NewClient(t, servers.Node(t, name).Client(t))
	for info, err := range node.Locks(t.Context(), "*"+name) {
		require.NoError(t, err)
		require.Equal(t, "lock", info.Kind)
		listed++
	}
	require.Equal(t, 2, listed)
}
