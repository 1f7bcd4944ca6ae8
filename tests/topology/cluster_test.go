package topology

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redisutil"
	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
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
			one, two := fixture.NewClient(t, servers.ClusterClient(t), opts...), fixture.NewClient(t,
				servers.ClusterClient(t), opts...)
			var wg sync.WaitGroup
			for i := range 9 { // enough names for every shard
				wg.Go(func() {
					key := base + strconv.Itoa(i)
					hold := fixture.Acquire(t, t.Context(), one.Lock(key), primitives.WithWatchdog(fixture.RenewedTTL))
					inner := fixture.Acquire(t, hold.Context(), one.Lock(key), primitives.WithWatchdog(fixture.RenewedTTL))
					waiting := fixture.StartAcquire(t.Context(), two.Lock(key), primitives.WithOwner("o"))
					before := hold.ValidUntil()
					redistest.WaitFor(t, fixture.Soon, func() bool { return hold.ValidUntil().After(before) }, "the hold is renewed")
					fixture.Release(t, inner)
					released := time.Now()
					fixture.Release(t, hold)
					r := fixture.Await(t, waiting)
					if r.Err != nil {
						t.Error(r.Err)
						return
					}
					// The tests of pubsub check that messages are delivered in a cluster.
					if took := r.At.Sub(released); took > fixture.SlowPoll {
						t.Errorf("%s: the waiter acquired %v after the release", key, took)
					}
					fixture.Release(t, r.Hold)
				})
			}
			wg.Wait()
			hold := fixture.Acquire(t, t.Context(), one.Lock(base))
			other := fixture.Acquire(t, t.Context(), one.Lock(base+"1"))
			found := 0
			for info, err := range two.Locks(t.Context(), base+"*") {
				require.NoError(t, err)
				require.Len(t, info.Holders, 1)
				found++
			}
			require.Equal(t, 2, found)
			fixture.Release(t, hold, other)
			for _, s := range servers.Nodes() {
				fixture.RequireClean(t, s, base)
				// A client that has held for a second listens for takeovers, too.
				redistest.WaitFor(t, fixture.Soon, func() bool {
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
		c := fixture.NewClient(t, servers.ClusterClient(t), primitives.WithShardedPubSub(sharded))
		for _, name := range []string{"a{b", "a}b", "{}x", "x{}", "{a"} {
			require.ErrorIs(t, fixture.ErrOf(c.Lock(name).Acquire(t.Context())), primitives.ErrInvalid, "%q", name)
			require.ErrorIs(t, fixture.ErrOf(c.Lock(name).Info(t.Context())), primitives.ErrInvalid, "%q", name)
		}
		for _, name := range []string{"a", "{a}b", "x{a}", "{a}{b}", "{a{b}"} {
			fixture.Release(t, fixture.Acquire(t, t.Context(), c.Lock(name)))
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
	c := fixture.NewClient(t, servers.ClusterClient(t))
	alive := fixture.Acquire(t, t.Context(), c.Lock("b"), primitives.WithWatchdog(fixture.RenewedTTL))
	lost := fixture.Acquire(t, t.Context(), c.Lock("a"), primitives.WithWatchdog(fixture.RenewedTTL))
	require.NotSame(t, servers.Node(t, "a"), servers.Node(t, "b"))
	require.NoError(t, servers.Node(t, "a").Kill())
	fixture.RequireEnds(t, lost.Context(), primitives.ErrLost)
	before := alive.ValidUntil()
	redistest.WaitFor(t, fixture.Soon, func() bool { return alive.ValidUntil().After(before) }, "the hold is renewed")
	fixture.Release(t, fixture.Acquire(t, t.Context(), c.Lock("{b}2")))
	fixture.Release(t, alive)
}

// After a failover by Sentinel, the hold and the waiter continue on the promoted replica.
func TestSentinelFailoverKeepsHoldsAndWaiters(t *testing.T) {
	t.Parallel()
	servers := redistest.Sentinel(t)
	name := redistest.Name(t)
	tweak := func(o *redis.FailoverOptions) { o.ReadTimeout = time.Second }
	one, two := fixture.NewClient(t, servers.FailoverClient(t, tweak)), fixture.NewClient(t,
		servers.FailoverClient(t, tweak))
	hold := fixture.Acquire(t, t.Context(), one.Lock(name))
	awaitReplicas(t, servers.Current(t), "")
	waiting := fixture.StartAcquire(t.Context(), two.Lock(name))
	fixture.AwaitWaiter(t, servers.Master, name)
	require.NoError(t, servers.Master.Kill())
	redistest.WaitFor(t, 20*time.Second, func() bool {
		return hold.Check(t.Context()) == nil
	}, "the hold is valid on the new master")
	fixture.Release(t, hold)
	fixture.Release(t, fixture.AwaitHold(t, waiting))
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
		c := fixture.NewClient(t, servers.Master.Client(t), primitives.WithReplicas(n, time.Duration(3-n)*2*time.Second))
		plain := fixture.NewClient(t, servers.Master.Client(t))
		for _, opts := range [][]primitives.Option{nil, {primitives.WithOwner("o")}} {
			hold, err := c.Lock("l").Acquire(t.Context(), opts...)
			if n == 1 {
				require.NoError(t, err)
				require.NotEmpty(t, fixture.Fields(t, servers.Replicas[0], "l"))
				fixture.Release(t, fixture.Acquire(t, hold.Context(), c.Lock("l")))
				fixture.Release(t, hold)
				continue
			}
			require.ErrorIs(t, err, primitives.ErrNotReplicated)
			require.NotErrorIs(t, err, primitives.ErrNotAcquired)
			require.Empty(t, fixture.Fields(t, servers.Master, "l"), "the lock is released")
			fixture.Release(t, fixture.Acquire(t, t.Context(), plain.Lock("l")))
		}
	}
}

// A nested acquisition that no replica confirms leaves the count of the outer hold unchanged.
func TestUnconfirmedNestedAcquisitionChangesNoCount(t *testing.T) {
	t.Parallel()
	servers := redistest.Replicated(t, 1)
	c := fixture.NewClient(t, servers.Master.Client(t), primitives.WithReplicas(1, 2*time.Second))
	outer := fixture.Acquire(t, t.Context(), c.Lock("l"))
	require.NoError(t, servers.Replicas[0].Kill())
	require.ErrorIs(t, fixture.ErrOf(c.Lock("l").Acquire(outer.Context())), primitives.ErrNotReplicated)
	require.Equal(t, map[string]string{outer.ID(): "1"}, fixture.Fields(t, servers.Master, "l"))
	fixture.Release(t, outer)
}

// C7: while half of a slot's keys have moved to another node, Redis refuses most scripts with
// TRYAGAIN. Calls ride that out: with a wait as long as it lasts, without one for the command
// timeout.
func TestC7CallsRideOutAMovingSlot(t *testing.T) {
	t.Parallel()
	servers := redistest.FreshCluster(t, 3)
	const commandTimeout = 700 * time.Millisecond
	c := fixture.NewClient(t, servers.ClusterClient(t))
	hasty := fixture.NewClient(t, servers.ClusterClient(t), primitives.WithCommandTimeout(commandTimeout))
	ctx := t.Context()

	// Each kind has a hold that is released, one under which an acquisition nests, and a free name.
	released, outer := map[string]*primitives.Hold{}, map[string]*primitives.Hold{}
	for _, k := range kinds.Locks() {
		kind, open := k.Name, k.Lock
		released[kind] = fixture.Acquire(t, ctx, open(c, "{n}released"+kind))
		outer[kind] = fixture.Acquire(t, ctx, open(c, "{n}outer"+kind))
	}
	pools := map[string]kinds.Pool{
		"semaphore": c.Semaphore("{n}semaphore"),
		"permits":   c.PermitExpirableSemaphore("{n}permits"),
	}
	for kind, p := range pools {
		require.NoError(t, fixture.ErrOf(p.Init(ctx, 2)))
		released[kind] = fixture.Acquire(t, ctx, p)
	}
	waitedFor := fixture.Acquire(t, ctx, c.Lock("{n}waited"))
	waiting := fixture.Start(func() (*primitives.Hold, error) { return hasty.Lock("{n}waited").Acquire(ctx) })
	fixture.AwaitWaiters(t, hasty, 1)
	m := servers.Migrate(t, "{n}", servers.AnotherNode(t, "{n}"))
	for i, key := range m.Keys(t) {
		if i%2 == 0 {
			m.Move(t, key)
		}
	}

	type call struct {
		name string
		done <-chan fixture.Result
	}
	var calls []call
	begin := func(name string, f func() (*primitives.Hold, error)) {
		calls = append(calls, call{name, fixture.Start(f)})
	}
	for kind, hold := range released {
		begin("release "+kind, func() (*primitives.Hold, error) { return nil, hold.Release(ctx) })
	}
	for kind, p := range pools {
		begin("acquire "+kind, func() (*primitives.Hold, error) { return p.Acquire(ctx) })
	}
	for _, k := range kinds.Locks() {
		kind, open := k.Name, k.Lock
		begin("acquire "+kind, func() (*primitives.Hold, error) { return open(c, "{n}free"+kind).Acquire(ctx) })
		begin("acquire with wait "+kind, func() (*primitives.Hold, error) {
			return open(hasty, "{n}awaited"+kind).Acquire(ctx, primitives.WithWait(fixture.Soon))
		})
		begin("nest "+kind, func() (*primitives.Hold, error) {
			return open(c, "{n}outer"+kind).Acquire(outer[kind].Context())
		})
	}
	begin("hand on", func() (*primitives.Hold, error) { return nil, waitedFor.Release(ctx) })

	began := time.Now()
	_, err := hasty.Semaphore("{n}other").Init(ctx, 1)
	require.ErrorContains(t, err, "TRYAGAIN", "the request and the count are two keys that do not exist")
	require.NotErrorIs(t, err, primitives.ErrNotAcquired)
	require.GreaterOrEqual(t, time.Since(began), commandTimeout/2)
	_, err = hasty.Lock("{n}tried").Acquire(ctx, primitives.WithWait(commandTimeout/2))
	require.ErrorIs(t, err, primitives.ErrUnavailable)
	require.ErrorContains(t, err, "TRYAGAIN")
	m.Finish(t)
	calls = append(calls, call{"waiter", waiting})
	for _, call := range calls {
		r := fixture.Await(t, call.done)
		require.NoError(t, r.Err, call.name)
		if r.Hold != nil {
			fixture.Release(t, r.Hold)
		}
	}
	for _, hold := range outer {
		require.NoError(t, hold.Check(context.Background()))
		fixture.Release(t, hold)
	}
	for kind, p := range pools {
		require.Equal(t, 2, fixture.InfoOf(t, p).Available, kind)
	}
	require.Same(t, m.To, servers.Node(t, "{n}"))
}

// C7: a cluster of which a slot is not served refuses all commands with CLUSTERDOWN. Calls ride
// that out, too.
func TestC7CallsRideOutAClusterThatIsDown(t *testing.T) {
	t.Parallel()
	servers := redistest.FreshCluster(t, 3)
	const commandTimeout = 700 * time.Millisecond
	c := fixture.NewClient(t, servers.ClusterClient(t))
	hasty := fixture.NewClient(t, servers.ClusterClient(t), primitives.WithCommandTimeout(commandTimeout))
	ctx := t.Context()
	const name = "{n}"
	hold := fixture.Acquire(t, ctx, c.Lock(name))
	fixture.Release(t, fixture.Acquire(t, ctx, hasty.Lock(name+"first"))) // now it has its connections
	rdb := servers.Node(t, name).Client(t)
	slot := int(redisutil.Slot(name)) ^ 1
	owner, err := rdb.ClusterMyID(ctx).Result()
	require.NoError(t, err)
	require.NoError(t, rdb.ClusterDelSlots(ctx, slot).Err())
	require.Eventually(t, func() bool {
		return redis.HasErrorPrefix(rdb.Get(ctx, name).Err(), "CLUSTERDOWN")
	}, fixture.Soon, time.Millisecond)

	released := fixture.Start(func() (*primitives.Hold, error) { return nil, hold.Release(ctx) })
	acquired := fixture.StartAcquire(ctx, c.Lock(name+"free"))
	_, err = hasty.Semaphore(name+"semaphore").Init(ctx, 1)
	require.ErrorContains(t, err, "CLUSTERDOWN")
	require.NotErrorIs(t, err, primitives.ErrNotAcquired)
	_, err = hasty.Lock(name).Acquire(ctx, primitives.WithWait(commandTimeout/2))
	require.ErrorContains(t, err, "CLUSTERDOWN")
	require.ErrorIs(t, err, primitives.ErrUnavailable)

	require.NoError(t, rdb.Do(ctx, "cluster", "setslot", slot, "node", owner).Err())
	require.NoError(t, fixture.Await(t, released).Err)
	fixture.Release(t, fixture.AwaitHold(t, acquired))
}

// wrappedCluster is a cluster client of a user, who has added methods to it.
type wrappedCluster struct{ *redis.ClusterClient }

// failover is a TTL that outlasts the failover of a cluster, if renewals follow it.
const failover = 12 * time.Second

// tagOn returns a hash tag whose slot a master serves.
func tagOn(t testing.TB, servers *redistest.ClusterServers, master *redistest.Server) string {
	t.Helper()
	for i := range 1000 {
		if tag := "{" + strconv.Itoa(i) + "}"; servers.Node(t, tag) == master {
			return tag
		}
	}
	require.FailNow(t, "no tag")
	return ""
}

// awaitReplicas waits until a replica has what its master has executed. tag is of a slot of the
// master. WAIT is about what its own connection has written, so that comes first.
func awaitReplicas(t testing.TB, master *redistest.Server, tag string) {
	t.Helper()
	pipe := master.Client(t).Pipeline()
	pipe.Set(t.Context(), tag+"replicated", "", time.Minute)
	acked := pipe.Do(t.Context(), "wait", 1, fixture.Soon.Milliseconds())
	require.NoError(t, fixture.ErrOf(pipe.Exec(t.Context())))
	require.GreaterOrEqual(t, acked.Val(), any(int64(1)))
}

// TestClusterFailover hangs a master, and kills another one. A client that only holds keeps its
// holds of all kinds. Waiters, acquisitions and releases of other clients go on in time.
func TestClusterFailover(t *testing.T) {
	redistest.NeedFull(t, "several fail-overs")
	t.Parallel()
	servers := redistest.FreshReplicatedCluster(t)
	for i, fault := range []struct {
		name   string
		strike func(*redistest.Server) error
		limit  time.Duration // from the fault until waiters go on
	}{
		{"hung", (*redistest.Server).Pause, 15 * time.Second},
		{"killed", (*redistest.Server).Kill, 10 * time.Second},
	} {
		t.Run(fault.name, func(t *testing.T) {
			master := servers.Nodes()[i]
			tag := tagOn(t, servers, master)
			client := func(wrap bool) *primitives.Client { // knows only the master that will fail
				seed := servers.ClusterClient(t, func(o *redis.ClusterOptions) { o.Addrs = o.Addrs[i : i+1] })
				var rdb redis.UniversalClient = seed
				if wrap {
					rdb = wrappedCluster{seed}
				}
				return fixture.NewClient(t, rdb, primitives.WithDefaults(primitives.WithWatchdog(failover)))
			}
			keeper, waiter, other := client(i == 0), client(false), client(i == 1)
			var holds []*primitives.Hold
			for _, kind := range kinds.Leased() {
				holds = append(holds, fixture.Acquire(t, t.Context(), kind.One(t, keeper, tag+kind.Name)))
			}
			short := fixture.Acquire(t, t.Context(), keeper.Lock(tag+"short"), primitives.WithWatchdog(fixture.ShortLease))
			told := make(chan time.Time, 1)
			context.AfterFunc(short.Context(), func() { told <- time.Now() })
			rival := fixture.StartAcquire(t.Context(), waiter.Lock(tag+"short"))
			handed := fixture.Acquire(t, t.Context(), other.Lock(tag+"handed"))
			waiting := fixture.StartAcquire(t.Context(), waiter.Lock(tag+"handed"))
			fixture.AwaitWaiters(t, waiter, 2)
			awaitReplicas(t, master, tag)

			require.NoError(t, fault.strike(master))
			struck := time.Now()
			acquired := fixture.Start(func() (hold *primitives.Hold, err error) {
				for time.Since(struck) < fixture.Soon {
					hold, err = other.Lock(tag + "free").Acquire(t.Context())
					if err == nil {
						break
					}
				}
				return hold, err
			})
			go func() { _ = handed.Release(context.Background()) }() // without an answer, it is repeated
			servers.AwaitFailover(t, tag, master)
			promoted := time.Since(struck)
			free := fixture.AwaitAcquired(t, acquired)
			passed := fixture.AwaitAcquired(t, waiting)
			fixture.AwaitRenewal(t, 1, holds...)
			t.Logf("after the fault: promoted %v, acquired %v, waiter %v, all renewed %v",
				promoted, free.At.Sub(struck), passed.At.Sub(struck), time.Since(struck))
			require.Less(t, free.At.Sub(struck), fault.limit)
			require.Less(t, passed.At.Sub(struck), fault.limit)
			// A TTL shorter than the failover: lost, and told before another client has the lock.
			next := fixture.AwaitAcquired(t, rival)
			require.Less(t, <-told, next.At)
			require.ErrorIs(t, context.Cause(short.Context()), primitives.ErrLost)
			for _, hold := range append(holds, free.Hold, passed.Hold, next.Hold) {
				require.NoError(t, hold.Check(t.Context()))
				fixture.Release(t, hold)
			}
		})
	}
}
