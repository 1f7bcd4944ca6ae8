package primitives_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/fixture"
	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// scriptCalls returns how often the scripts that f runs call each command, for each of n times.
// PUBLISH is among them; what the clients send themselves is not.
func scriptCalls(t *testing.T, s *redistest.Server, n int, f func()) map[string]float64 {
	t.Helper()
	before := redistest.Commands(t, s)
	f()
	each := map[string]float64{}
	for name, calls := range redistest.Commands(t, s).Since(before) {
		sent := strings.HasPrefix(name, "eval") || strings.HasPrefix(name, "script|") || name == "info"
		if calls > 0 && !sent {
			each[name] = float64(calls) / float64(n)
		}
	}
	return each
}

// A hand-off in a queue without Redisson's waiters takes 20 calls inside the scripts: 12 of the
// release that grants the lock, and 8 of the attempt that joins the queue. Their number does not
// depend on the number of waiters.
func TestFairCountsServerCallsOfAHandOff(t *testing.T) {
	t.Parallel()
	for _, waiters := range []int{2, 1000} {
		s := redistest.Fresh(t)
		q := NewRawQueue(t, s, waiters)
		const n = 50
		// The attempts below find a recent heartbeat, however slow the machine is.
		clients, later := "redlatch_lock_clients:{"+q.Name+"}", time.Now().Add(time.Hour).UnixMilli()
		require.NoError(t, q.Rdb.HSet(t.Context(), clients, q.Client, later).Err())
		release := scriptCalls(t, s, 1, func() { require.Equal(t, int64(1), q.End(q.First)) })
		q.First++
		require.Equal(t, map[string]float64{
			"hexists": 1, "hdel": 2, // no acquisition with WithOwner has the id; the hold and the entry end
			"lrange": 1, "hmget": 2, "time": 1, // the next owner, and that it is alive
			"zrem": 1, "lpop": 1, // it leaves Redisson's queue
			"hset": 1, "pexpire": 1, "publish": 1, // it holds, and its client learns it
		}, release, "%d waiters", waiters)
		join := scriptCalls(t, s, n, func() { q.Join(n) })
		require.Equal(t, map[string]float64{
			"get": 1, "hgetall": 1, // the acquisition has not ended, and another holds the lock
			"hmget": 1, "time": 1, "hlen": 2, // the heartbeat is recent, and no waiter of Redisson is there
			"zadd": 1, "rpush": 1, "hset": 1,
		}, join, "%d waiters", waiters)
	}
}

// An uncontended acquisition and its release take 9 calls inside the scripts.
func TestFairCountsServerCallsOfAnUncontendedPair(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	c := NewClient(t, s.Client(t), primitives.WithClientName("")) // a slow pair would write the name
	l := c.FairLock("l")
	pair := func() { Release(t, Acquire(t, t.Context(), l)) }
	pair() // loads the scripts
	require.Equal(t, map[string]float64{
		"get": 1, "hlen": 1, "exists": 2, "hset": 1, "pexpire": 1,
		"hexists": 1, "hdel": 1, "lrange": 1,
	}, scriptCalls(t, s, 1, pair))
}
