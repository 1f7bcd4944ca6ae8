package topology

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// While no replica confirms, what is held stays held: others are refused as usual. An Adopt fails;
// then the former holder has lost the lock, and nobody has it.
func TestHoldsWithoutReplicasToConfirm(t *testing.T) {
	t.Parallel()
	servers := redistest.Replicated(t, 1)
	holder := fixture.NewClient(t, servers.Master.Client(t), primitives.WithReplicas(1, 5*time.Second))
	other := fixture.NewClient(t, servers.Master.Client(t), primitives.WithReplicas(1, 20*time.Millisecond))
	require.NoError(t, fixture.ErrOf(holder.PermitExpirableSemaphore("permits").Init(t.Context(), 1)))
	handles := func(c *primitives.Client) map[string]fixture.Handle {
		list := map[string]fixture.Handle{}
		for _, k := range kinds.Leased() {
			list[k.Name] = k.Open(c, k.Name)
		}
		return list
	}
	holds := map[string]*primitives.Hold{}
	for kind, l := range handles(holder) {
		holds[kind] = fixture.Acquire(t, t.Context(), l, primitives.WithLease(time.Minute))
		require.NoError(t, holds[kind].Extend(t.Context(), 2*time.Minute))
	}
	require.NoError(t, servers.Replicas[0].Kill())
	for _, k := range kinds.Leased() {
		_, err := k.Rival(other, k.Name).TryAcquire(t.Context())
		require.ErrorIs(t, err, primitives.ErrNotAcquired, k.Name)
		require.NotErrorIs(t, err, primitives.ErrNotReplicated, k.Name)
	}
	easy := handles(fixture.NewClient(t, servers.Master.Client(t))) // asks for no replicas
	for kind, l := range handles(other) {
		adopted, err := easy[kind].(kinds.Takeable).Adopt(t.Context(), holds[kind].ID(), primitives.WithLease(time.Minute))
		require.NoError(t, err, kind)
		_, err = l.(kinds.Takeable).Adopt(t.Context(), adopted.ID(), primitives.WithLease(time.Minute))
		require.ErrorIs(t, err, primitives.ErrNotReplicated, kind)
		require.ErrorIs(t, adopted.Check(t.Context()), primitives.ErrLost, kind)
		_, err = l.(kinds.Takeable).Adopt(t.Context(), "nobody", primitives.WithLease(time.Minute))
		require.NotErrorIs(t, err, primitives.ErrNotReplicated, kind)
	}
}

// While no replica confirms, an Extend and a nested acquisition fail without effect on their hold.
func TestChangesWithoutReplicasToConfirm(t *testing.T) {
	t.Parallel()
	servers := redistest.Replicated(t, 1)
	c := fixture.NewClient(t, servers.Master.Client(t), primitives.WithReplicas(1, time.Second))
	require.NoError(t, fixture.ErrOf(c.PermitExpirableSemaphore("permits").Init(t.Context(), 1)))
	locks := map[string]fixture.Handle{}
	for _, k := range kinds.Leased() {
		locks[k.Name] = k.Open(c, k.Name)
	}
	holds := map[string]*primitives.Hold{}
	for kind, l := range locks {
		holds[kind] = fixture.Acquire(t, t.Context(), l, primitives.WithLease(time.Minute))
	}
	require.NoError(t, servers.Replicas[0].Kill())
	var calls sync.WaitGroup
	for kind, hold := range holds {
		calls.Go(func() {
			before := hold.ValidUntil()
			assert.ErrorIs(t, hold.Extend(t.Context(), time.Hour), primitives.ErrNotReplicated, kind)
			assert.Equal(t, before, hold.ValidUntil(), kind)
			if kind != "permits" {
				_, err := locks[kind].Acquire(hold.Context())
				assert.ErrorIs(t, err, primitives.ErrNotReplicated, kind)
			}
			assert.NoError(t, hold.Context().Err(), kind)
			assert.NoError(t, hold.Release(t.Context()), kind)
		})
	}
	calls.Wait()
	for kind, l := range locks {
		if l, ok := l.(*primitives.Lock); ok {
			require.Empty(t, fixture.InfoOf(t, l).Holders, kind)
		}
	}
}

// All attempts of a client may hold a connection each. None may need a second one to load its
// script.
func TestReplicasNeedOneConnectionEach(t *testing.T) {
	t.Parallel()
	servers := redistest.Replicated(t, 1)
	for _, tt := range []struct{ connections, goroutines int }{{1, 4}, {3, 60}} {
		t.Run(fmt.Sprint(tt), func(t *testing.T) {
			rdb := servers.Master.Client(t, func(o *redis.Options) { o.PoolSize = tt.connections })
			c := fixture.NewClient(t, rdb, primitives.WithReplicas(1, 5*time.Second))
			for _, occasion := range []string{"first use", "after SCRIPT FLUSH"} {
				require.NoError(t, servers.Master.Client(t).ScriptFlush(t.Context()).Err())
				fixture.Concurrently(tt.goroutines, func(i int) {
					hold, err := c.Lock(fmt.Sprint(redistest.Name(t), i)).TryAcquire(t.Context())
					if assert.NoError(t, err, occasion) {
						assert.NoError(t, hold.Release(t.Context()))
					}
				})
			}
		})
	}
}

// The context or the wait ends while Redis waits for replicas. Redis is there, so nothing says that
// it is unavailable.
func TestAcquisitionEndsWhileRedisWaitsForReplicas(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	c := fixture.NewClient(t, s.Client(t), primitives.WithReplicas(1, time.Minute))
	for name, end := range map[string]func(l *primitives.Lock) error{
		"context": func(l *primitives.Lock) error {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			err := fixture.ErrOf(l.Acquire(ctx))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			return err
		},
		"wait": func(l *primitives.Lock) error {
			return fixture.ErrOf(l.Acquire(t.Context(), primitives.WithWait(300*time.Millisecond)))
		},
	} {
		name := redistest.Name(t) + name
		err := end(c.Lock(name))
		require.ErrorIs(t, err, primitives.ErrNotAcquired)
		require.NotErrorIs(t, err, primitives.ErrUnavailable)
		require.NotContains(t, err.Error(), "no answer")
		redistest.WaitFor(t, fixture.Soon, func() bool { return s.Client(t).Exists(t.Context(), name).Val() == 0 },
			"rolled back")
	}
}
