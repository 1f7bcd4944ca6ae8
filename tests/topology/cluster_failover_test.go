package topology

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

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

// awaitReplicas waits until a replica has what its master has executed. tag is of a slot of the master.
// WAIT is about what its own connection has written, so that comes first.
func awaitReplicas(t testing.TB, master *redistest.Server, tag string) {
	t.Helper()
	pipe := master.Client(t).Pipeline()
	pipe.Set(t.Context(), tag+"replicated", "", time.Minute)
	acked := pipe.Do(t.Context(), "wait", 1, Soon.Milliseconds())
	require.NoError(t, ErrOf(pipe.Exec(t.Context())))
	require.GreaterOrEqual(t, acked.Val(), any(int64(1)))
}

// TestClusterFailover hangs a master, and kills another one. A client that only holds keeps its holds
// of all kinds. Waiters, acquisitions and releases of other clients go on in time.
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
				var rdb redis.UniversalClient
				seed := servers.ClusterClient(t, func(o *redis.ClusterOptions) { o.Addrs = o.Addrs[i : i+1] })
				if rdb = seed; wrap {
					rdb = wrappedCluster{seed}
				}
				return NewClient(t, rdb, primitives.WithDefaults(primitives.WithWatchdog(failover)))
			}
			keeper, waiter, other := client(i == 0), client(false), client(i == 1)
			var holds []*primitives.Hold
			for _, kind := range kinds.Leased() {
				holds = append(holds, Acquire(t, t.Context(), kind.One(t, keeper, tag+kind.Name)))
			}
			short := Acquire(t, t.Context(), keeper.Lock(tag+"short"), primitives.WithWatchdog(ShortLease))
			told := make(chan time.Time, 1)
			context.AfterFunc(short.Context(), func() { told <- time.Now() })
			rival := StartAcquire(t.Context(), waiter.Lock(tag+"short"))
			handed := Acquire(t, t.Context(), other.Lock(tag+"handed"))
			waiting := StartAcquire(t.Context(), waiter.Lock(tag+"handed"))
			AwaitWaiters(t, waiter, 2)
			awaitReplicas(t, master, tag)

			require.NoError(t, fault.strike(master))
			struck := time.Now()
			acquired := Start(func() (hold *primitives.Hold, err error) {
				for time.Since(struck) < Soon {
					if hold, err = other.Lock(tag + "free").Acquire(t.Context()); err == nil {
						break
					}
				}
				return hold, err
			})
			go func() { _ = handed.Release(context.Background()) }() // without an answer, it is repeated
			servers.AwaitFailover(t, tag, master)
			promoted := time.Since(struck)
			free := AwaitAcquired(t, acquired)
			passed := AwaitAcquired(t, waiting)
			AwaitRenewal(t, 1, holds...)
			t.Logf("after the fault: promoted %v, acquired %v, waiter %v, all renewed %v",
				promoted, free.At.Sub(struck), passed.At.Sub(struck), time.Since(struck))
			require.Less(t, free.At.Sub(struck), fault.limit)
			require.Less(t, passed.At.Sub(struck), fault.limit)
			// A TTL shorter than the failover: lost, and told before another client has the lock.
			next := AwaitAcquired(t, rival)
			require.Less(t, <-told, next.At)
			require.ErrorIs(t, context.Cause(short.Context()), primitives.ErrLost)
			for _, hold := range append(holds, free.Hold, passed.Hold, next.Hold) {
				require.NoError(t, hold.Check(t.Context()))
				Release(t, hold)
			}
		})
	}
}
