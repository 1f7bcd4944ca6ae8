package topology

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// TestCluster tests the life of a lock on every shard of a cluster, with plain and with sharded
// pub/sub: acquiring, nesting, renewal, a waiter's wake-up, release, and Locks.
func TestCluster(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t)
	for name, opts := range map[string][]primitives.ClientOption{
		"auto":    nil,
		"plain":   {primitives.WithShardedPubSub(false)},
		"sharded": {primitives.WithShardedPubSub(true)},
		"polling": {primitives.WithDefaults(primitives.WithPolling(2*time.Millisecond, 50*time.Millisecond))},
	} {
		t.Run(name, func(t *testing.T) {
			base := redistest.Name(t)
			one, two := NewClient(t, servers.ClusterClient(t), opts...), NewClient(t, servers.ClusterClient(t), opts...)
			var wg sync.WaitGroup
			for i := range 9 { // enough names for every shard
				wg.Go(func() {
					key := base + strconv.Itoa(i)
					hold := Acquire(t, t.Context(), one.Lock(key), primitives.WithWatchdog(RenewedTTL))
					inner := Acquire(t, hold.Context(), one.Lock(key), primitives.WithWatchdog(RenewedTTL))
					waiting := StartAcquire(t.Context(), two.Lock(key), primitives.WithOwner("o"))
					before := hold.ValidUntil()
					redistest.WaitFor(t, Soon, func() bool { return hold.ValidUntil().After(before) }, "the hold is renewed")
					Release(t, inner)
					released := time.Now()
					Release(t, hold)
					r := Await(t, waiting)
					if r.Err != nil {
						t.Error(r.Err)
						return
					}
					// The tests of pubsub check that messages are delivered in a cluster.
					if took := r.At.Sub(released); took > SlowPoll {
						t.Errorf("%s: the waiter acquired %v after the release", key, took)
					}
					Release(t, r.Hold)
				})
			}
			wg.Wait()
			hold := Acquire(t, t.Context(), one.Lock(base))
			other := Acquire(t, t.Context(), one.Lock(base+"1"))
			found := 0
			for info, err := range two.Locks(t.Context(), base+"*") {
				require.NoError(t, err)
				require.Len(t, info.Holders, 1)
				found++
			}
			require.Equal(t, 2, found)
			Release(t, hold, other)
			for _, s := range servers.Nodes() {
				RequireClean(t, s, base)
				// A client that has held for a second listens for takeovers, too.
				redistest.WaitFor(t, Soon, func() bool {
					return !slices.ContainsFunc(redistest.ShardChannels(t, s), func(channel string) bool {
						return !strings.HasPrefix(channel, "redlatch_holder:")
					})
				}, "the channels of waiters are unsubscribed")
			}
		})
	}
}

// C20: a name whose keys or channels would be in two slots is refused.
func TestC20NamesInTwoSlotsAreInvalid(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t)
	for _, sharded := range []bool{false, true} {
		c := NewClient(t, servers.ClusterClient(t), primitives.WithShardedPubSub(sharded))
		for _, name := range []string{"a{b", "a}b", "{}x", "x{}", "{a"} {
			require.ErrorIs(t, ErrOf(c.Lock(name).Acquire(t.Context())), primitives.ErrInvalid, "%q", name)
			require.ErrorIs(t, ErrOf(c.Lock(name).Info(t.Context())), primitives.ErrInvalid, "%q", name)
		}
		for _, name := range []string{"a", "{a}b", "x{a}", "{a}{b}", "{a{b}"} {
			Release(t, Acquire(t, t.Context(), c.Lock(name)))
		}
	}
}

// While one shard is down, locks on the others are still acquired, renewed and released.
func TestClusterDeadShardDoesNotAffectOthers(t *testing.T) {
	t.Parallel()
	servers := redistest.FreshCluster(t, 3)
	for _, s := range servers.Nodes() {
		require.NoError(t, s.Client(t).ConfigSet(t.Context(), "cluster-require-full-coverage", "no").Err())
	}
	c := NewClient(t, servers.ClusterClient(t))
	alive := Acquire(t, t.Context(), c.Lock("b"), primitives.WithWatchdog(RenewedTTL))
	lost := Acquire(t, t.Context(), c.Lock("a"), primitives.WithWatchdog(RenewedTTL))
	require.NotSame(t, servers.Node(t, "a"), servers.Node(t, "b"))
	require.NoError(t, servers.Node(t, "a").Kill())
	RequireEnds(t, lost.Context(), primitives.ErrLost)
	before := alive.ValidUntil()
	redistest.WaitFor(t, Soon, func() bool { return alive.ValidUntil().After(before) }, "the hold is renewed")
	Release(t, Acquire(t, t.Context(), c.Lock("{b}2")))
	Release(t, alive)
}

// After a failover by Sentinel, the hold and the waiter continue on the promoted replica.
func TestSentinelFailoverKeepsHoldsAndWaiters(t *testing.T) {
	t.Parallel()
	servers := redistest.Sentinel(t)
	name := redistest.Name(t)
	tweak := func(o *redis.FailoverOptions) { o.ReadTimeout = time.Second }
	one, two := NewClient(t, servers.FailoverClient(t, tweak)), NewClient(t, servers.FailoverClient(t, tweak))
	hold := Acquire(t, t.Context(), one.Lock(name))
	awaitReplicas(t, servers.Current(t), "")
	waiting := StartAcquire(t.Context(), two.Lock(name))
	AwaitWaiter(t, servers.Master, name)
	require.NoError(t, servers.Master.Kill())
	redistest.WaitFor(t, 20*time.Second, func() bool {
		return hold.Check(t.Context()) == nil
	}, "the hold is valid on the new master")
	Release(t, hold)
	Release(t, AwaitHold(t, waiting))
	rdb := servers.FailoverClient(t, tweak) // a Sentinel may still name the old master
	redistest.WaitFor(t, 20*time.Second, func() bool {
		n, err := rdb.Exists(t.Context(), name).Result()
		return err == nil && n == 0
	}, "nothing is left on the new master")
}

// WithReplicas releases the lock and gives ErrNotReplicated if too few replicas confirm.
func TestTooFewReplicasReleaseTheLock(t *testing.T) {
	t.Parallel()
	servers := redistest.Replicated(t, 1)
	for n := 1; n <= 2; n++ {
		c := NewClient(t, servers.Master.Client(t), primitives.WithReplicas(n, time.Duration(3-n)*2*time.Second))
		plain := NewClient(t, servers.Master.Client(t))
		for _, opts := range [][]primitives.Option{nil, {primitives.WithOwner("o")}} {
			hold, err := c.Lock("l").Acquire(t.Context(), opts...)
			if n == 1 {
				require.NoError(t, err)
				require.NotEmpty(t, Fields(t, servers.Replicas[0], "l"))
				Release(t, Acquire(t, hold.Context(), c.Lock("l")))
				Release(t, hold)
				continue
			}
			require.ErrorIs(t, err, primitives.ErrNotReplicated)
			require.NotErrorIs(t, err, primitives.ErrNotAcquired)
			require.Empty(t, Fields(t, servers.Master, "l"), "the lock is released")
			Release(t, Acquire(t, t.Context(), plain.Lock("l")))
		}
	}
}

// A nested acquisition that no replica confirms leaves the count of the outer hold unchanged.
func TestUnconfirmedNestedAcquisitionChangesNoCount(t *testing.T) {
	t.Parallel()
	servers := redistest.Replicated(t, 1)
	c := NewClient(t, servers.Master.Client(t), primitives.WithReplicas(1, 2*time.Second))
	outer := Acquire(t, t.Context(), c.Lock("l"))
	require.NoError(t, servers.Replicas[0].Kill())
	require.ErrorIs(t, ErrOf(c.Lock("l").Acquire(outer.Context())), primitives.ErrNotReplicated)
	require.Equal(t, map[string]string{outer.ID(): "1"}, Fields(t, servers.Master, "l"))
	Release(t, outer)
}
