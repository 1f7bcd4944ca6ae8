package primitives_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// TestTTLBeyondADuration sets a TTL that overflows time.Duration. Info reports the longest
// duration, and waiters go on.
func TestTTLBeyondADuration(t *testing.T) {
	t.Parallel()
	x := fixture.OnRW(t, redistest.Redis(t))
	hold := fixture.Acquire(t, t.Context(), x.RW.Writer())
	require.NoError(t, x.Rdb.Do(t.Context(), "pexpire", x.Name, int64(1e14)).Err())
	require.Greater(t, fixture.InfoOf(t, x.RW.Writer()).TTL, 290*365*24*time.Hour)
	require.Greater(t, listLocks(t, x.C, x.Name)[x.Name].TTL, 290*365*24*time.Hour)
	waiting := fixture.StartAcquire(t.Context(), x.Other(t).Writer())
	x.AwaitWaiter(t)
	fixture.Release(t, hold)
	fixture.Release(t, fixture.AwaitHold(t, waiting))
}

// listLocks returns what Locks lists, by name.
func listLocks(t *testing.T, c *primitives.Client, match string) map[string]primitives.Info {
	t.Helper()
	found := map[string]primitives.Info{}
	for info, err := range c.Locks(t.Context(), match) {
		require.NoError(t, err)
		require.NotContains(t, found, info.Name)
		found[info.Name] = info
	}
	return found
}

// Locks lists names without the client's prefix. It skips keys that are not locks.
func TestLocksListsHeldLocksThatMatch(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"", "app*[x]:"} {
		t.Run("prefix "+prefix, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				name, rdb := redistest.Name(t)+".", s.Client(t)
				c := fixture.NewClient(t, s.Client(t), primitives.WithPrefix(prefix), primitives.WithClientName(""))
				var holds []*primitives.Hold
				for i := range 25 {
					holds = append(holds, fixture.Acquire(t, t.Context(), c.Lock(fmt.Sprint(name, i))))
				}
				for key, fields := range map[string][]any{
					"-read":  {"mode", "read", c.ID() + ":7", 1},
					"-write": {"mode", "write", c.ID() + ":7:write", 2},
					"-user":  {"visits", 3},
					"-text":  {c.ID() + ":7", "x"},
				} {
					require.NoError(t, rdb.HSet(t.Context(), prefix+name+key, fields...).Err())
				}
				readTimeout := "{" + prefix + name + "-read}:" + c.ID() + ":7:rwlock_timeout:1"
				require.NoError(t, rdb.Set(t.Context(), readTimeout, 1, time.Minute).Err())
				require.NoError(t, rdb.Set(t.Context(), prefix+name+"-string", 1, 0).Err())
				for match, want := range map[string]int{
					name + "*": 27, // 25 locks, a reader and a writer; neither another program's hashes nor a string
					name + "1": 1, name + "1?": 10, "app*" + name + "*": 0,
				} {
					require.Len(t, listLocks(t, c, match), want, match)
				}
				found := listLocks(t, c, name+"*")
				third := found[name+"3"]
				require.Equal(t, "lock", third.Kind)
				require.Len(t, third.Holders, 1)
				third.Holders[0].Client, third.Holders[0].Held = "", 0 // the client tells these in the background
				require.Equal(t, []primitives.Holder{{ID: holds[3].ID(), Count: 1, TTL: third.TTL}}, third.Holders)
				require.Equal(t, "reader", found[name+"-read"].Kind)
				require.Equal(t, primitives.Info{
					Name: name + "-write", Kind: "writer", TTL: -1,
					Holders: []primitives.Holder{{ID: c.ID() + ":7", Count: 2, TTL: -1}},
				}, found[name+"-write"])
				fixture.Release(t, holds...)
				require.Len(t, listLocks(t, c, name+"*"), 2)
			})
		})
	}
}

func TestLocksEndsWithTheLoopOrAnError(t *testing.T) {
	t.Parallel()
	fixture.EachLock(t, func(t *testing.T, x *fixture.LockTest) {
		hold := fixture.Acquire(t, t.Context(), x.L)
		for _, err := range x.C.Locks(t.Context(), "*") {
			require.NoError(t, err)
			break
		}
		done, cancel := context.WithCancel(t.Context())
		cancel()
		var errs []error
		for info, err := range x.C.Locks(done, x.Name) {
			require.Zero(t, info)
			errs = append(errs, err)
		}
		require.Len(t, errs, 1)
		require.ErrorIs(t, errs[0], context.Canceled)
		fixture.Release(t, hold)
	})
}

// TestLocksReportsKindsAndLiveReaders lists locks of all kinds. Expired readers are not listed.
func TestLocksReportsKindsAndLiveReaders(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		rdb := s.Client(t)
		c := fixture.NewClient(t, s.Client(t), primitives.WithDefaults(primitives.WithLease(time.Minute)))
		lease := primitives.WithLease(20 * time.Second)
		fixture.Acquire(t, t.Context(), c.Lock(name+"plain"))
		fixture.Acquire(t, t.Context(), c.FencedLock(name+"fenced"))
		fixture.Acquire(t, t.Context(), c.FairLock(name+"fair"))
		waiting := fixture.StartAcquire(t.Context(), c.FairLock(name+"fair"))
		redistest.WaitFor(t, fixture.Soon, func() bool {
			return rdb.LLen(t.Context(), "redisson_lock_queue:{"+name+"fair}").Val() == 1
		}, "the waiter is in the queue")
		long := fixture.Acquire(t, t.Context(), c.RWLock(name+"read").Reader())
		short := fixture.Acquire(t, t.Context(), c.RWLock(name+"read").Reader(), lease)
		expired := fixture.Acquire(t, t.Context(), c.RWLock(name+"read").Reader())
		allExpired := fixture.Acquire(t, t.Context(), c.RWLock(name+"expired").Reader())
		fixture.Acquire(t, t.Context(), c.RWLock(name+"write").Writer(), primitives.WithOwner("o"))
		require.NoError(t, rdb.Del(t.Context(), "{"+name+"read}:"+expired.ID()+":rwlock_timeout:1",
			"{"+name+"expired}:"+allExpired.ID()+":rwlock_timeout:1").Err())
		found := listLocks(t, c, "*"+name+"*") // shared counts are not listed
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
		fixture.Release(t, fixture.AwaitHold(t, waiting))
	})
}

// TestLocksListsANameWhoseKeysAreInTwoSlots lists such a name by its hash alone.
func TestLocksListsANameWhoseKeysAreInTwoSlots(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t)
	name := redistest.Name(t) + "a}b"
	rdb := servers.ClusterClient(t)
	c := fixture.NewClient(t, servers.ClusterClient(t))
	require.NoError(t, rdb.HSet(t.Context(), name, c.ID()+":1", 1).Err())
	require.NoError(t, rdb.PExpire(t.Context(), name, time.Minute).Err())
	t.Cleanup(func() { rdb.Del(context.Background(), name) })
	// A plain client of a server that enforces slots lists it, too.
	for _, c := range []*primitives.Client{c, fixture.NewClient(t, servers.Node(t, name).Client(t))} {
		found := listLocks(t, c, "*"+name)
		require.Len(t, found, 1)
		require.Equal(t, "lock", found[name].Kind)
	}
}

// Locks are read many at a time, so that a list takes a few round trips.
func TestListTakesFewRoundTrips(t *testing.T) {
	t.Parallel()
	s, name := redistest.Redis(t), redistest.Name(t)
	c := fixture.NewClient(t, s.Client(t), primitives.WithPrefix(name))
	for i := range 300 {
		fixture.Acquire(t, t.Context(), c.Lock(fmt.Sprint(i)))
	}
	rdb := s.Client(t)
	var trips roundTrips
	rdb.AddHook(&trips)
	lister := fixture.NewClient(t, rdb, primitives.WithPrefix(name), primitives.WithClientName(""))
	require.Len(t, listLocks(t, lister, "*"), 300)
	require.Less(t, trips.n.Load(), int64(100), "one after another they would take 300 round trips")
}

// roundTrips counts the commands and pipelines of a go-redis client.
type roundTrips struct{ n atomic.Int64 }

func (r *roundTrips) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *roundTrips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		r.n.Add(1)
		return next(ctx, cmd)
	}
}

func (r *roundTrips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		r.n.Add(1)
		return next(ctx, cmds)
	}
}
