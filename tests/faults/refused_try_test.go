package faults

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// C7: an acquisition rides out refusals that will pass while its wait lasts. A try has no wait: it repeats its command
// once, and says what Redis has answered.
func TestC7TryEndsWithTheAnswer(t *testing.T) {
	t.Parallel()
	for _, refusal := range []string{
		"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
		"NOREPLICAS Not enough good replicas to write.",
		"READONLY You can't write against a read only replica.",
		"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
		"LOADING Redis is loading the dataset in memory",
		"CLUSTERDOWN The cluster is down",
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
		"TRYAGAIN Multiple keys request during rehashing of slot",
		"ERR max number of clients reached",
	} {
		t.Run(refusal, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const timeout = 5 * time.Second
				rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", Dialer: refusing(refusal)})
				t.Cleanup(func() { _ = rdb.Close() })
				c := NewClient(t, rdb, primitives.WithCommandTimeout(timeout))
				for kind, call := range acquisitions(c, "name") {
					if kind == "latch" {
						continue
					}
					began := time.Now()
					err := call(context.Background(), primitives.WithWait(0))
					requireRefusedForNow(t, err, refusal, kind)
					assert.Less(t, time.Since(began), 200*time.Millisecond, kind)
				}
				began := time.Now()
				require.False(t, c.Lock("name").Locker(t.Context()).TryLock())
				assert.Less(t, time.Since(began), 200*time.Millisecond, "TryLock")

				began = time.Now()
				_, err := c.Lock("name").Acquire(context.Background())
				requireRefusedForNow(t, err, refusal, "Acquire")
				assert.GreaterOrEqual(t, time.Since(began), timeout*9/10, "a call without a wait rides it out")
			})
		})
	}
}

func requireRefusedForNow(t *testing.T, err error, refusal, what string) {
	t.Helper()
	require.ErrorIs(t, err, primitives.ErrUnavailable, what)
	require.NotErrorIs(t, err, primitives.ErrNotAcquired, what)
	require.NotErrorIs(t, err, primitives.ErrOutcomeUnknown, what)
	require.ErrorContains(t, err, refusal, what)
}

// The same on a real server, for tries that nest in a hold, too.
func TestC7TryEndsWithTheAnswerOfARealServer(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	c, admin := NewClient(t, s.Client(t)), s.Client(t)
	type tried struct {
		kind string
		h    kinds.Handle
		ctx  context.Context
	}
	var tries []tried
	for _, k := range kinds.All() {
		tries = append(tries, tried{k.Name, k.One(t, c, redistest.Name(t)+k.Name), t.Context()})
		if k.Leased && !k.Pool {
			outer := Acquire(t, t.Context(), k.Open(c, redistest.Name(t)+"outer"+k.Name))
			tries = append(tries, tried{"nested " + k.Name, k.Open(c, redistest.Name(t)+"outer"+k.Name), outer.Context()})
		}
	}
	require.NoError(t, admin.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
	for _, try := range tries {
		began := time.Now()
		_, err := try.h.TryAcquire(try.ctx)
		requireRefusedForNow(t, err, "NOREPLICAS", try.kind)
		assert.Less(t, time.Since(began), time.Second, try.kind)
	}
	require.NoError(t, admin.ConfigSet(t.Context(), "min-replicas-to-write", "0").Err())
	for _, try := range tries {
		hold, err := try.h.TryAcquire(try.ctx)
		require.NoError(t, err, try.kind)
		Release(t, hold)
	}
}
