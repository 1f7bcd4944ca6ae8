package primitives_test

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/scripts"
)

// rawQueue is a fair lock whose holder and waiters exist in Redis only. The test runs the scripts
// of each directly, so that it can have more waiters than a client could.
type rawQueue struct {
	t       testing.TB
	rdb     *redis.Client
	name    string
	client  string
	first   int // the number of the holder
	last    int // one more than the number of the last waiter
	acquire *scripts.Script
	release *scripts.Script
	refresh *scripts.Script
}

// newRawQueue returns a queue with a holder and n waiters.
func newRawQueue(t testing.TB, s *redistest.Server, n int) *rawQueue {
	c := &rawQueue{
		t: t, rdb: s.Client(t, func(o *redis.Options) { o.ReadTimeout = time.Minute }),
		name: redistest.Name(t), client: rawQueueClient,
		acquire: scripts.Load("fairlock/acquire"), release: scripts.Load("fairlock/release"),
		refresh: scripts.Load("fairlock/refresh"),
	}
	for _, script := range []*scripts.Script{c.acquire, c.release, c.refresh} {
		require.NoError(t, c.rdb.ScriptLoad(context.Background(), script.Text()).Err())
	}
	c.join(n + 1)
	return c
}

// rawQueueClient is the client id of all ids in a rawQueue.
const rawQueueClient = "0a1b2c3d-0000-4000-8000-00000000000a"

func (c *rawQueue) id(i int) string { return c.client + ":" + strconv.Itoa(i) }

// command returns the command that runs a script for request i.
func (c *rawQueue) command(script *scripts.Script, i int, args ...any) []any {
	tag := "{" + c.name + "}"
	command := []any{
		"evalsha", script.SHA(), 8, c.name, "redisson_lock__channel:" + tag,
		"redisson_unlock_latch:" + tag + ":" + c.id(i), "redlatch_shared_counts:" + tag,
		"redisson_lock_queue:" + tag, "redisson_lock_timeout:" + tag,
		"redlatch_lock_waiters:" + tag, "redlatch_lock_clients:" + tag,
	}
	return append(command, args...)
}

// acquireCommand returns the command by which id i acquires or queues.
func (c *rawQueue) acquireCommand(i int) []any {
	return c.command(c.acquire, i, c.id(i), 60000, "PUBLISH", 0, 0, 2, 60000, c.client, c.client, 0)
}

// join has n more ids acquire or queue.
func (c *rawQueue) join(n int) {
	const batch = 500
	for ; n > 0; n -= min(n, batch) {
		_, err := c.rdb.Pipelined(context.Background(), func(p redis.Pipeliner) error {
			for range min(n, batch) {
				p.Do(context.Background(), c.acquireCommand(c.last)...)
				c.last++
			}
			return nil
		})
		require.NoError(c.t, err)
	}
}

// end releases the hold of id i.
func (c *rawQueue) end(i int) any {
	return c.rdb.Do(context.Background(), c.command(c.release, i, c.id(i), "PUBLISH", 15000, "another")...).Val()
}

// handOff releases the lock to the first waiter. Another joins, so that the number of waiters stays
// the same.
func (c *rawQueue) handOff() {
	require.Equal(c.t, int64(1), c.end(c.first))
	c.first++
	c.join(1)
}

// heartbeat sends a heartbeat of the client for up to 100 of its waiters.
func (c *rawQueue) heartbeat() {
	args := []any{c.client, "PUBLISH", 10000}
	for i := range min(100, c.last-c.first-1) {
		args = append(args, c.id(c.first+1+i))
	}
	answer := c.rdb.Do(context.Background(), c.command(c.refresh, 0, args...)...).Val().([]any)
	require.Len(c.t, answer, 6, "all waiters are in the queue")
}

// scriptTime returns the time that the server has spent in scripts so far.
func (c *rawQueue) scriptTime() time.Duration {
	stats := c.rdb.Info(context.Background(), "commandstats").Val()
	m := regexp.MustCompile(`cmdstat_evalsha:calls=\d+,usec=(\d+)`).FindStringSubmatch(stats)
	require.NotNil(c.t, m)
	usec, err := strconv.Atoi(m[1])
	require.NoError(c.t, err)
	return time.Duration(usec) * time.Microsecond
}

// each returns the server's time for one call of f, as the mean of n calls.
func (c *rawQueue) each(n int, f func()) time.Duration {
	before := c.scriptTime()
	for range n {
		f()
	}
	return (c.scriptTime() - before) / time.Duration(n)
}

// The server's time for a handoff does not depend on the number of waiters: with 10,000 it is less
// than 1.5 times that with 10.
func TestFairLockHandoffCostIsIndependentOfTheQueue(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	few, many := newRawQueue(t, s, 10), newRawQueue(t, s, 10000)
	const rounds, calls = 40, 25
	a, b := few.each(calls, few.handOff), many.each(calls, many.handOff)
	for range rounds { // the fastest round of each is one that the machine did not interrupt
		a, b = min(a, few.each(calls, few.handOff)), min(b, many.each(calls, many.handOff))
	}
	ratio := float64(b) / float64(a)
	t.Logf("a handoff with 10,000 waiters costs %.2f times one with 10; a heartbeat takes %v",
		ratio, many.each(50, many.heartbeat))
	require.Less(t, ratio, 1.5)
}

func BenchmarkFairLock(b *testing.B) {
	for _, n := range []int{10, 1000, 10000} {
		b.Run(fmt.Sprintf("handoff, %d waiters", n), func(b *testing.B) {
			c := newRawQueue(b, redistest.Fresh(b), n)
			before := c.scriptTime()
			for b.Loop() {
				c.handOff()
			}
			b.ReportMetric(float64((c.scriptTime()-before).Nanoseconds())/float64(b.N), "server-ns/op")
		})
		b.Run(fmt.Sprintf("heartbeat, %d waiters", n), func(b *testing.B) {
			c := newRawQueue(b, redistest.Fresh(b), n)
			before := c.scriptTime()
			for b.Loop() {
				c.heartbeat()
			}
			b.ReportMetric(float64((c.scriptTime()-before).Nanoseconds())/float64(b.N), "server-ns/op")
		})
	}
	b.Run("uncontended", func(b *testing.B) {
		l := newClient(b, redistest.Redis(b).Client(b)).FairLock(redistest.Name(b))
		for b.Loop() {
			release(b, acquire(b, b.Context(), l))
		}
	})
	b.Run("floor: plain lock, uncontended", func(b *testing.B) {
		l := newClient(b, redistest.Redis(b).Client(b)).Lock(redistest.Name(b))
		for b.Loop() {
			release(b, acquire(b, b.Context(), l))
		}
	})
}
