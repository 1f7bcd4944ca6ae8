package primitives_test

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
)

// joinWith has one more id queue, with that waiter timeout in ms.
func (c *rawQueue) joinWith(timeout int) {
	command := c.command(c.acquire, c.last, c.id(c.last), 60000, "PUBLISH", 0, 0, 2, timeout, c.client, c.client, 0)
	require.Len(c.t, c.rdb.Do(c.t.Context(), command...).Val(), 4, "the id is in the queue")
	c.last++
}

// requireTailHighest requires that the last waiter's score is the highest. Redisson computes the
// wait of its newcomer from that score.
func (c *rawQueue) requireTailHighest() {
	scores := c.rdb.ZRangeWithScores(c.t.Context(), c.deadlines(), 0, -1).Val()
	tail := c.rdb.ZScore(c.t.Context(), c.deadlines(), c.id(c.last-1)).Val()
	require.LessOrEqual(c.t, scores[len(scores)-1].Score, tail)
}

func (c *rawQueue) deadlines() string { return "redisson_lock_timeout:{" + c.name + "}" }

// A newcomer's score is not below that of a waiter with a longer timeout, nor below a score that a
// client wrote that does not know of the field "reach". A newcomer with a longer timeout than all
// others has all its time.
func TestFairLockNewcomerHasTheHighestScore(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	q := newRawQueue(t, s, 1) // its timeout is 60 s
	for _, timeout := range []int{3000, 120000, 500, 60000} {
		q.joinWith(timeout)
		q.requireTailHighest()
	}
	now := float64(s.Client(t).Time(t.Context()).Val().UnixMilli())
	require.Greater(t, q.rdb.ZScore(t.Context(), q.deadlines(), q.id(3)).Val(), now+100000)

	const beyond = 500000
	foreign := redis.Z{Score: now + beyond, Member: q.id(q.last - 1)}
	require.NoError(t, q.rdb.ZAdd(t.Context(), q.deadlines(), foreign).Err())
	q.heartbeat()
	q.joinWith(10000)
	q.requireTailHighest()
}
