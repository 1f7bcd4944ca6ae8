package redistest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestReplicasReceiveWrites(t *testing.T) {
	t.Parallel()
	r := Replicated(t, 2)
	rdb := r.Master.Client(t)
	require.NoError(t, rdb.Set(t.Context(), "k", "v", 0).Err())
	acked, err := rdb.Wait(t.Context(), 2, 5*time.Second).Result()
	require.NoError(t, err)
	require.EqualValues(t, 2, acked)
	for _, s := range r.Replicas {
		require.Equal(t, "v", s.Client(t).Get(t.Context(), "k").Val())
	}
	require.Equal(t, 1, Connections(t, r.Master), "replicas must not count as clients")
}

func TestSentinelFailsOver(t *testing.T) {
	NeedFull(t, "a fail-over")
	t.Parallel()
	s := Sentinel(t)
	require.Same(t, s.Master, s.Current(t))
	rdb := s.FailoverClient(t)
	require.NoError(t, rdb.Set(t.Context(), "k", "v", 0).Err())
	require.NoError(t, rdb.Wait(t.Context(), 1, 5*time.Second).Err())
	require.NoError(t, s.Master.Kill())
	require.Same(t, s.Replicas[0], s.AwaitFailover(t, s.Master))
	canWrite := func() bool { return rdb.Set(t.Context(), "k", "w", 0).Err() == nil }
	WaitFor(t, 20*time.Second, canWrite, "the client uses the new master")
	require.Equal(t, "w", s.Replicas[0].Client(t).Get(t.Context(), "k").Val())
}

// Sentinels that are restarted find each other again, and still elect a new master.
func TestRestartedSentinelsFailOver(t *testing.T) {
	NeedFull(t, "a fail-over")
	t.Parallel()
	s := SentinelReplicas(t, 2)
	for _, sentinel := range s.Sentinels {
		require.NoError(t, sentinel.Restart())
	}
	s.AwaitHealthy(t, s.Master)
	require.NoError(t, s.Master.Pause())
	current := s.AwaitFailover(t, s.Master)
	require.Contains(t, s.Replicas, current)
	require.NoError(t, s.Master.Resume())
	s.AwaitHealthy(t, current)
	require.Same(t, current, s.Current(t))
}
