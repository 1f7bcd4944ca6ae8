package topology

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redisutil"
	. "github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// C7: while half of a slot's keys have moved to another node, Redis refuses most scripts with TRYAGAIN.
// Calls ride that out: with a wait as long as it lasts, without one for the command timeout.
func TestC7CallsRideOutAMovingSlot(t *testing.T) {
	t.Parallel()
	servers := redistest.FreshCluster(t, 3)
	const commandTimeout = 700 * time.Millisecond
	c := NewClient(t, servers.ClusterClient(t))
	hasty := NewClient(t, servers.ClusterClient(t), primitives.WithCommandTimeout(commandTimeout))
	ctx := t.Context()

	// Each kind has a hold that is released, one under which an acquisition nests, and a free name.
	released, outer := map[string]*primitives.Hold{}, map[string]*primitives.Hold{}
	for _, k := range kinds.Locks() {
		kind, open := k.Name, k.Lock
		released[kind] = Acquire(t, ctx, open(c, "{n}released"+kind))
		outer[kind] = Acquire(t, ctx, open(c, "{n}outer"+kind))
	}
	pools := map[string]kinds.Pool{
		"semaphore": c.Semaphore("{n}semaphore"),
		"permits":   c.PermitExpirableSemaphore("{n}permits"),
	}
	for kind, p := range pools {
		require.NoError(t, ErrOf(p.Init(ctx, 2)))
		released[kind] = Acquire(t, ctx, p)
	}
	waitedFor := Acquire(t, ctx, c.Lock("{n}waited"))
	waiting := Start(func() (*primitives.Hold, error) { return hasty.Lock("{n}waited").Acquire(ctx) })
	AwaitWaiters(t, hasty, 1)
	m := servers.Migrate(t, "{n}", servers.AnotherNode(t, "{n}"))
	for i, key := range m.Keys(t) {
		if i%2 == 0 {
			m.Move(t, key)
		}
	}

	type call struct {
		name string
		done <-chan Result
	}
	var calls []call
	begin := func(name string, f func() (*primitives.Hold, error)) { calls = append(calls, call{name, Start(f)}) }
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
			return open(hasty, "{n}awaited"+kind).Acquire(ctx, primitives.WithWait(Soon))
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
		r := Await(t, call.done)
		require.NoError(t, r.Err, call.name)
		if r.Hold != nil {
			Release(t, r.Hold)
		}
	}
	for _, hold := range outer {
		require.NoError(t, hold.Check(context.Background()))
		Release(t, hold)
	}
	for kind, p := range pools {
		require.Equal(t, 2, InfoOf(t, p).Available, kind)
	}
	require.Same(t, m.To, servers.Node(t, "{n}"))
}

// C7: a cluster of which a slot is not served refuses all commands with CLUSTERDOWN. Calls ride that out, too.
func TestC7CallsRideOutAClusterThatIsDown(t *testing.T) {
	t.Parallel()
	servers := redistest.FreshCluster(t, 3)
	const commandTimeout = 700 * time.Millisecond
	c := NewClient(t, servers.ClusterClient(t))
	hasty := NewClient(t, servers.ClusterClient(t), primitives.WithCommandTimeout(commandTimeout))
	ctx := t.Context()
	const name = "{n}"
	hold := Acquire(t, ctx, c.Lock(name))
	Release(t, Acquire(t, ctx, hasty.Lock(name+"first"))) // now it has its connections
	rdb := servers.Node(t, name).Client(t)
	slot := int(redisutil.Slot(name)) ^ 1
	owner, err := rdb.ClusterMyID(ctx).Result()
	require.NoError(t, err)
	require.NoError(t, rdb.ClusterDelSlots(ctx, slot).Err())
	require.Eventually(t, func() bool {
		return redis.HasErrorPrefix(rdb.Get(ctx, name).Err(), "CLUSTERDOWN")
	}, Soon, time.Millisecond)

	released := Start(func() (*primitives.Hold, error) { return nil, hold.Release(ctx) })
	acquired := StartAcquire(ctx, c.Lock(name+"free"))
	_, err = hasty.Semaphore(name+"semaphore").Init(ctx, 1)
	require.ErrorContains(t, err, "CLUSTERDOWN")
	require.NotErrorIs(t, err, primitives.ErrNotAcquired)
	_, err = hasty.Lock(name).Acquire(ctx, primitives.WithWait(commandTimeout/2))
	require.ErrorContains(t, err, "CLUSTERDOWN")
	require.ErrorIs(t, err, primitives.ErrUnavailable)

	require.NoError(t, rdb.Do(ctx, "cluster", "setslot", slot, "node", owner).Err())
	require.NoError(t, Await(t, released).Err)
	Release(t, AwaitHold(t, acquired))
}
