package primitives_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// While no replica confirms, what is held stays held: others are refused as usual, and an Extend fails
// without effect on the validity of its hold.
func TestHoldsWithoutReplicasToConfirm(t *testing.T) {
	t.Parallel()
	servers := redistest.Replicated(t, 1)
	holder := newClient(t, servers.Master.Client(t), primitives.WithReplicas(1, 5*time.Second))
	other := newClient(t, servers.Master.Client(t), primitives.WithReplicas(1, 20*time.Millisecond))
	require.NoError(t, errOf(holder.PermitExpirableSemaphore("permits").Init(t.Context(), 1)))
	handles := func(c *primitives.Client) map[string]handle {
		return map[string]handle{
			"lock": c.Lock("lock"), "fenced": c.FencedLock("fenced"), "fair": c.FairLock("fair"),
			"reader": c.RWLock("reader").Reader(), "writer": c.RWLock("writer").Writer(),
			"permits": c.PermitExpirableSemaphore("permits"),
		}
	}
	rivals := handles(other)
	rivals["reader"] = other.RWLock("reader").Writer()
	holds := map[string]*primitives.Hold{}
	for kind, l := range handles(holder) {
		holds[kind] = acquire(t, t.Context(), l, primitives.WithLease(time.Minute))
		require.NoError(t, holds[kind].Extend(t.Context(), 2*time.Minute))
	}
	require.NoError(t, servers.Replicas[0].Kill())
	for kind, rival := range rivals {
		_, err := rival.TryAcquire(t.Context())
		require.ErrorIs(t, err, primitives.ErrNotAcquired, kind)
		require.NotErrorIs(t, err, primitives.ErrNotReplicated, kind)
	}
	for kind, l := range handles(other) {
		adopted, err := l.(byID).Adopt(t.Context(), holds[kind].ID(), primitives.WithLease(time.Minute))
		require.NoError(t, err, kind)
		before := adopted.ValidUntil()
		err = adopted.Extend(t.Context(), time.Hour)
		require.ErrorIs(t, err, primitives.ErrNotReplicated, kind)
		requireLive(t, adopted.Context())
		require.Equal(t, before, adopted.ValidUntil(), kind)
		release(t, adopted)
	}
}
