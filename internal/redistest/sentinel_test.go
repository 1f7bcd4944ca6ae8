package redistest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestReplicasReceiveWrites(t *testing.T) {
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
	s := Sentinel(t)
	require.Same(t, s.Master, s.Current(t))
	rdb := s.FailoverClient(t)
	require.NoError(t, rdb.Set(t.Context(), "k", "v", 0).Err())
	require.NoError(t, rdb.Wait(t.Context(), 1, 5*time.Second).Err())
	require.NoError(t, s.Master.Kill())
	WaitFor(t, 20*time.Second, func() bool { return s.Current(t) == s.Replicas[0] }, "the sentinels have a new master")
	canWrite := func() bool { return rdb.Set(t.Context(), "k", "w", 0).Err() == nil }
	WaitFor(t, 20*time.Second, canWrite, "the client uses the new master")
	require.Equal(t, "w", s.Replicas[0].Client(t).Get(t.Context(), "k").Val())
}
