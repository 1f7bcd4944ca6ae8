package topology

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// A master with two replicas and three sentinels fails over twice: first the master hangs and comes back,
// then, after all sentinels were restarted, its successor dies. Both clients stay the same.
func TestSentinelFailovers(t *testing.T) {
	redistest.NeedFull(t, "several fail-overs")
	t.Parallel()
	servers := redistest.SentinelReplicas(t, 2)
	f := &sentinelFailover{
		servers: servers,
		one:     NewClient(t, servers.FailoverClient(t)),
		two:     NewClient(t, servers.FailoverClient(t)),
	}
	requireHandOff(t, f.one, f.two)

	f.run(t, 15*time.Second, (*redistest.Server).Pause)
	hung := servers.Master
	across := Acquire(t, t.Context(), f.one.Lock("across"))
	require.NoError(t, hung.Resume())
	servers.AwaitHealthy(t, servers.Current(t))
	requireHandOff(t, f.one, f.two)
	require.NoError(t, across.Check(t.Context()), "the resumed master changes nothing")

	for _, sentinel := range servers.Sentinels {
		require.NoError(t, sentinel.Restart())
		servers.AwaitHealthy(t, servers.Current(t))
	}
	f.run(t, 10*time.Second, (*redistest.Server).Kill)
	require.NoError(t, across.Check(t.Context()))
	Release(t, across)
}

type sentinelFailover struct {
	servers  *redistest.SentinelServers
	one, two *primitives.Client
}

// run breaks the master and checks what happens to holders and waiters. limit is the bar for a waiter.
func (f *sentinelFailover) run(t *testing.T, limit time.Duration, fail func(*redistest.Server) error) {
	stalls := redistest.WatchStalls(t)
	old := f.servers.Current(t)
	name := redistest.Name(t)
	held := Acquire(t, t.Context(), f.one.Lock(name))
	brief := Acquire(t, t.Context(), f.one.Lock(name+"-brief"), primitives.WithWatchdog(ShortLease))
	waiting := StartAcquire(t.Context(), f.two.Lock(name))
	free := Start(func() (*primitives.Hold, error) { // tries while the master is down
		<-brief.Context().Done()
		return f.two.Lock(name+"-free").Acquire(t.Context(), primitives.WithWait(time.Minute))
	})
	AwaitWaiter(t, old, name)
	token := f.token(t)
	awaitReplicas(t, old, "")

	began := time.Now()
	require.NoError(t, fail(old))
	// A TTL shorter than the failover: lost, and told in time.
	RequireEnds(t, brief.Context(), primitives.ErrLost)
	late := time.Since(brief.ValidUntil())
	require.Less(t, late, 200*time.Millisecond+stalls.Since(brief.ValidUntil()))

	current := f.servers.AwaitFailover(t, old)
	elected := time.Since(began)
	for held.Release(t.Context()) != nil { // a release that fails is also repeated in the background
		require.Less(t, time.Since(began), limit)
	}
	handedOver := AwaitAcquired(t, waiting)
	require.Less(t, handedOver.At.Sub(began), limit)
	Release(t, handedOver.Hold)
	acquired := AwaitAcquired(t, free)
	require.Less(t, acquired.At.Sub(began), limit)
	Release(t, acquired.Hold)
	require.Greater(t, f.token(t), token)

	// Subscriptions follow.
	waiting = StartAcquire(t.Context(), f.two.Lock("moved"))
	Release(t, AwaitHold(t, waiting))
	requireHandOff(t, f.one, f.two)
	t.Logf("new master after %v, hand-off after %v, new lock after %v, message after at most %v",
		elected, handedOver.At.Sub(began), acquired.At.Sub(began), time.Since(began))
	require.Less(t, time.Since(began), limit)
	require.NotSame(t, old, current)
}

// token acquires a fenced lock for a moment.
func (f *sentinelFailover) token(t *testing.T) int64 {
	hold := Acquire(t, t.Context(), f.one.FencedLock("fenced"))
	defer Release(t, hold)
	return hold.Token()
}
