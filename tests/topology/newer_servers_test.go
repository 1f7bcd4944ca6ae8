package topology

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// What newer servers can do: a slot moves with all its keys at once, and a cluster has several
// databases. Older servers skip these tests.

// Holds of all kinds are renewed while their slot moves atomically, waiters hear of releases on the
// new master, and scripts of several keys find all of them on one master.
func TestAtomicSlotMigrationKeepsHoldsAndWaiters(t *testing.T) {
	t.Parallel()
	servers := redistest.FreshCluster(t, 3)
	ttl := primitives.WithDefaults(primitives.WithWatchdog(fixture.RenewedTTL))
	for name, sharded := range map[string]bool{"plain": false, "sharded": true} {
		t.Run(name, func(t *testing.T) {
			tag := "{" + name + "}"
			one := fixture.NewClient(t, servers.ClusterClient(t), ttl, primitives.WithShardedPubSub(sharded))
			two := fixture.NewClient(t, servers.ClusterClient(t), ttl, primitives.WithShardedPubSub(sharded))
			var holds []*primitives.Hold
			var waiting []<-chan fixture.Result
			for _, k := range kinds.Locks() {
				holds = append(holds, fixture.Acquire(t, t.Context(), k.Lock(one, tag+k.Name)))
				if k.Shared {
					continue // a second reader does not wait
				}
				waiting = append(waiting, fixture.StartAcquire(t.Context(), k.Lock(two, tag+k.Name)))
			}
			pool := one.PermitExpirableSemaphore(tag + "permits")
			require.NoError(t, fixture.ErrOf(pool.Init(t.Context(), 1)))
			holds = append(holds, fixture.Acquire(t, t.Context(), pool))
			fixture.AwaitWaiters(t, two, len(waiting))
			for range 2 {
				to := servers.AnotherNode(t, tag)
				servers.MoveAtomically(t, tag, to)
				fixture.AwaitRenewal(t, 1, holds...)
				if sharded {
					redistest.WaitFor(t, fixture.Soon, func() bool {
						return slices.ContainsFunc(redistest.ShardChannels(t, to), func(channel string) bool {
							return strings.Contains(channel, tag)
						})
					}, "the waiters listen on the new master")
				}
			}
			for _, hold := range holds {
				require.NoError(t, hold.Check(t.Context()))
				fixture.Release(t, hold)
			}
			for _, w := range waiting {
				acquired := fixture.AwaitHold(t, w)
				require.NoError(t, acquired.Check(t.Context()))
				fixture.Release(t, acquired)
			}
			require.Equal(t, 1, fixture.InfoOf(t, pool).Available)
		})
	}
}

// Clients exclude each other, and no call fails, while slots move atomically.
func TestAtomicSlotMigrationUnderContention(t *testing.T) {
	t.Parallel()
	servers := redistest.FreshCluster(t, 3)
	const tag = "{n}"
	servers.MoveAtomically(t, tag, servers.AnotherNode(t, tag)) // skips the test if the server cannot
	var stop atomic.Bool
	var wg sync.WaitGroup
	for _, k := range kinds.Locks() {
		if k.Shared {
			continue
		}
		var inside, turns atomic.Int32
		for range 2 {
			l := k.Lock(fixture.NewClient(t, servers.ClusterClient(t)), tag+k.Name)
			wg.Go(func() {
				for !stop.Load() || turns.Load() < 10 {
					err := l.Do(t.Context(), func(context.Context) error {
						if inside.Add(1) > 1 {
							t.Errorf("%s: two inside", k.Name)
						}
						turns.Add(1)
						inside.Add(-1)
						return nil
					})
					if err != nil {
						t.Errorf("%s: %v", k.Name, err)
						return
					}
				}
			})
		}
	}
	for range 3 {
		servers.MoveAtomically(t, tag, servers.AnotherNode(t, tag))
	}
	stop.Store(true)
	wg.Wait()
	stays := []string{"redisson_lock_token:" + tag + "fenced"}
	fixture.RequireClean(t, servers.Node(t, tag), tag, stays...)
}

// In a cluster with several databases, names of different databases are separate, but channels know
// no database. A release in one database wakes waiters in the other, which do not acquire by it.
func TestClientsInDatabasesOfACluster(t *testing.T) {
	t.Parallel()
	servers := redistest.FreshClusterOfDatabases(t, 3)
	inSecond := func(o *redis.ClusterOptions) {
		o.OnConnect = func(ctx context.Context, cn *redis.Conn) error { return cn.Select(ctx, 1).Err() }
	}
	for name, sharded := range map[string]bool{"plain": false, "sharded": true} {
		t.Run(name, func(t *testing.T) {
			key := redistest.Name(t)
			opt := primitives.WithShardedPubSub(sharded)
			first := fixture.NewClient(t, servers.ClusterClient(t), opt)
			second := fixture.NewClient(t, servers.ClusterClient(t, inSecond), opt)
			for _, k := range kinds.Locks() {
				key := key + k.Name
				zero := fixture.Acquire(t, t.Context(), k.Lock(first, key))
				one := fixture.Acquire(t, t.Context(), k.Lock(second, key)) // although the name is held in the first database
				rival := fixture.NewClient(t, servers.ClusterClient(t, inSecond), opt)
				waiting := fixture.StartAcquire(t.Context(), k.Rival(rival, key))
				fixture.AwaitWaiters(t, rival, 1)
				fixture.Release(t, zero)
				select {
				case <-waiting:
					require.FailNow(t, "acquired by a release in another database", k.Name)
				case <-time.After(100 * time.Millisecond):
				}
				require.NoError(t, one.Check(t.Context()))
				fixture.Release(t, one)
				fixture.Release(t, fixture.AwaitHold(t, waiting))
			}
		})
	}
}

// Without EVAL, scripts are loaded with SCRIPT LOAD: also again after SCRIPT FLUSH, which forgets
// them.
func TestServerWithoutEval(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t, "--rename-command", "EVAL", "")
	require.ErrorContains(t, s.Client(t).Eval(t.Context(), "return 1", nil).Err(), "unknown command")
	c := fixture.NewClient(t, s.Client(t))
	for round := range 2 {
		for _, k := range kinds.Locks() {
			hold := fixture.Acquire(t, t.Context(), k.Lock(c, k.Name))
			inner := fixture.Acquire(t, hold.Context(), k.Lock(c, k.Name))
			if round > 0 {
				require.NoError(t, s.Client(t).ScriptFlush(t.Context()).Err())
			}
			fixture.Release(t, inner)
			require.NoError(t, hold.Check(t.Context()))
			fixture.Release(t, hold)
		}
	}
}
