package topology

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// The old master answers waiters that give up their places in the queue of a fair lock after the
// replica was promoted. On the new master nobody is behind these places, but the heartbeats of the
// client's other waiters keep each of them alive. When it is its turn, such a place costs a waiter
// timeout, as that of a waiter that has crashed.
func TestRestoredPlacesCostAWaiterTimeoutEach(t *testing.T) {
	t.Parallel()
	servers := redistest.Sentinel(t)
	const name = "queued"
	brief := primitives.WithWaiterTimeout(time.Second)
	one, other := fixture.NewClient(t, servers.FailoverClient(t)), fixture.NewClient(t, servers.FailoverClient(t))
	holder := fixture.Acquire(t, t.Context(), other.FairLock(name))
	ctx, giveUp := context.WithCancel(t.Context())
	var left []<-chan fixture.Result
	for range 3 {
		left = append(left, fixture.StartAcquire(ctx, one.FairLock(name), brief))
	}
	fixture.AwaitFair(t, one.FairLock(name), len(left))
	awaitReplicas(t, servers.Master, "")

	promoted := servers.Replicas[0].Client(t)
	require.NoError(t, promoted.Do(t.Context(), "replicaof", "no", "one").Err())
	giveUp()
	for _, waiter := range left {
		require.ErrorIs(t, fixture.Await(t, waiter).Err, context.Canceled)
	}
	require.NoError(t, servers.Sentinels[0].Client(t).Do(t.Context(), "sentinel", "failover", "main").Err())
	servers.AwaitFailover(t, servers.Master)
	var next []<-chan fixture.Result
	for _, c := range []*primitives.Client{one, other} {
		redistest.WaitFor(t, fixture.Soon, func() bool { // the old master may still answer
			hold := fixture.Acquire(t, t.Context(), c.Lock("moved"))
			defer hold.Release(t.Context()) //nolint:errcheck // lost, if the old master has it
			return promoted.Exists(t.Context(), "moved").Val() == 1
		}, "the client uses the new master")
	}
	fixture.Release(t, holder)
	for _, c := range []*primitives.Client{one, other} {
		next = append(next, fixture.Start(func() (*primitives.Hold, error) {
			nothing := func(context.Context) error { return nil }
			return nil, c.FairLock(name).Do(t.Context(), nothing, brief, primitives.WithWait(8*time.Second))
		}))
	}
	for _, waiter := range next {
		require.NoError(t, fixture.Await(t, waiter).Err)
	}
}
