package topology

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// The old master answers releases after the replica was promoted. The client, which sends nothing more, repeats
// them, so the locks and permits are free on the new master long before their leases end.
func TestReleasesThatAFailoverForgetsAreRepeated(t *testing.T) {
	t.Parallel()
	servers := redistest.Sentinel(t)
	one, other := NewClient(t, servers.FailoverClient(t)), NewClient(t, servers.FailoverClient(t))
	var holds []*primitives.Hold
	rivals := map[string]kinds.Handle{}
	hold := func(kind kinds.Kind, name string, opts ...primitives.Option) *primitives.Hold {
		h := Acquire(t, t.Context(), kind.One(t, one, name), opts...)
		holds, rivals[name] = append(holds, h), kind.Rival(other, name)
		return h
	}
	for _, kind := range kinds.All() {
		hold(kind, kind.Name)
		if kind.Leased && !kind.Joint() {
			hold(kind, kind.Name+"-owner", primitives.WithOwner("job"))
		}
	}
	outer := hold(kinds.Of("lock"), "nested")
	holds = append(holds, Acquire(t, outer.Context(), one.Lock("nested")))
	handed := hold(kinds.Of("lock"), "handed")
	waiting := Start(func() (*primitives.Hold, error) { return one.Lock("handed").Acquire(t.Context()) })
	AwaitWaiters(t, one, 1)
	awaitReplicas(t, servers.Master, "")

	promoted := servers.Replicas[0].Client(t)
	require.NoError(t, promoted.Do(t.Context(), "replicaof", "no", "one").Err())
	for _, h := range holds {
		Release(t, h)
	}
	successor := AwaitHold(t, waiting)
	require.ErrorIs(t, handed.Release(t.Context()), primitives.ErrReleased)
	forgotten := time.Now()
	require.NoError(t, servers.Sentinels[0].Client(t).Do(t.Context(), "sentinel", "failover", "main").Err())
	servers.AwaitFailover(t, servers.Master)
	for name, rival := range rivals {
		requireFree(t, name, rival)
	}
	t.Logf("all free %v after the releases", time.Since(forgotten))
	RequireEnds(t, successor.Context(), primitives.ErrLost)
}

// requireFree acquires a lock, and releases it. What the former master has granted, before the client learned of the
// fail-over, is lost: then the new one is asked.
func requireFree(t *testing.T, name string, l kinds.Handle) {
	t.Helper()
	for {
		hold, err := l.Acquire(t.Context(), primitives.WithWait(8*time.Second))
		require.NoError(t, err, name)
		err = hold.Release(t.Context())
		if !errors.Is(err, primitives.ErrLost) {
			require.NoError(t, err, name)
			return
		}
	}
}

// A master of a cluster answers releases, and dies before its replica has received them. A client that reads from
// replicas notices the fail-over, too: it asks the master, and not the replica, which answers as before.
func TestReleasesThatAClusterForgetsAreRepeated(t *testing.T) {
	redistest.NeedFull(t, "a fail-over")
	t.Parallel()
	servers := redistest.FreshReplicatedCluster(t)
	master, replica := servers.Nodes()[0], servers.Nodes()[3]
	tag := tagOn(t, servers, master)
	other := NewClient(t, servers.ClusterClient(t))
	var holds []*primitives.Hold
	rivals := map[string]kinds.Handle{}
	for name, tweak := range map[string]func(*redis.ClusterOptions){
		"default":        func(*redis.ClusterOptions) {},
		"reads replicas": func(o *redis.ClusterOptions) { o.ReadOnly = true },
		"reads any":      func(o *redis.ClusterOptions) { o.RouteRandomly = true },
	} {
		c := NewClient(t, servers.ClusterClient(t, tweak), primitives.WithClientName("")) // else it writes its name
		for _, kind := range kinds.All() {
			name := tag + name + kind.Name
			holds = append(holds, Acquire(t, t.Context(), kind.One(t, c, name)))
			rivals[name] = kind.Rival(other, name)
		}
	}
	awaitReplicas(t, master, tag)

	require.NoError(t, replica.Pause())
	require.NoError(t, master.Client(t).Do(t.Context(), "client", "kill", "type", "replica").Err())
	for _, h := range holds {
		Release(t, h)
	}
	require.NoError(t, master.Kill())
	require.NoError(t, replica.Resume())
	servers.AwaitFailover(t, tag, master)
	promoted := time.Now()
	for name, rival := range rivals { // their leases end 30 s after the releases, if ever
		h, err := rival.Acquire(t.Context(), primitives.WithWait(Soon))
		require.NoError(t, err, name)
		Release(t, h)
	}
	t.Logf("all free %v after the fail-over", time.Since(promoted))
}

// The old master also answers waiters that give up their places in the queue of a fair lock. On the new master
// nobody is behind these places, but the heartbeats of the client's other waiters would keep each of them alive, one
// after the other. The client gives them up again, so the waiters behind them are next.
func TestPlacesThatAFailoverRestoresAreGivenUpAgain(t *testing.T) {
	t.Parallel()
	servers := redistest.Sentinel(t)
	const name = "queued"
	one, other := NewClient(t, servers.FailoverClient(t)), NewClient(t, servers.FailoverClient(t))
	holder := Acquire(t, t.Context(), other.FairLock(name))
	ctx, giveUp := context.WithCancel(t.Context())
	var left []<-chan Result
	for range 3 {
		left = append(left, Start(func() (*primitives.Hold, error) { return one.FairLock(name).Acquire(ctx) }))
	}
	AwaitFair(t, one.FairLock(name), len(left))
	awaitReplicas(t, servers.Master, "")

	promoted := servers.Replicas[0].Client(t)
	require.NoError(t, promoted.Do(t.Context(), "replicaof", "no", "one").Err())
	giveUp()
	for _, waiter := range left {
		require.ErrorIs(t, Await(t, waiter).Err, context.Canceled)
	}
	Release(t, holder)
	require.NoError(t, servers.Sentinels[0].Client(t).Do(t.Context(), "sentinel", "failover", "main").Err())
	servers.AwaitFailover(t, servers.Master)
	var next []<-chan Result
	for _, c := range []*primitives.Client{one, other} {
		redistest.WaitFor(t, Soon, func() bool { // the old master may still answer
			hold, err := c.Lock("moved").Acquire(t.Context())
			require.NoError(t, err)
			defer hold.Release(t.Context()) //nolint:errcheck // lost, if the old master has it
			return promoted.Exists(t.Context(), "moved").Val() == 1
		}, "the client uses the new master")
	}
	for _, c := range []*primitives.Client{one, other} {
		next = append(next, Start(func() (*primitives.Hold, error) {
			nothing := func(context.Context) error { return nil }
			return nil, c.FairLock(name).Do(t.Context(), nothing, primitives.WithWait(8*time.Second))
		}))
	}
	for _, waiter := range next {
		require.NoError(t, Await(t, waiter).Err)
	}
}
