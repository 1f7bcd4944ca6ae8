package wire

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
)

// A newcomer's score is not below that of a waiter with a longer timeout, nor below a score that a
// client wrote that does not know of the field "reach", before the next refresh and after it. A
// newcomer with a longer timeout than all others has all its time.
func TestFairLockNewcomerHasTheHighestScore(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	q := NewRawQueue(t, s, 1) // its timeout is 60 s
	for _, timeout := range []int{3000, 120000, 500, 60000} {
		q.JoinWith(timeout)
		q.RequireTailHighest()
		q.Heartbeat()
		q.RequireTailHighest()
	}
	now := float64(s.Client(t).Time(t.Context()).Val().UnixMilli())
	require.Greater(t, q.Rdb.ZScore(t.Context(), q.Deadlines(), q.ID(3)).Val(), now+100000)

	const beyond = 500000
	foreign := redis.Z{Score: now + beyond, Member: q.ID(q.Last - 1)}
	require.NoError(t, q.Rdb.ZAdd(t.Context(), q.Deadlines(), foreign).Err())
	q.Heartbeat()
	q.JoinWith(10000)
	q.RequireTailHighest()
}
