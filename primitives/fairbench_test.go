package primitives_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/scripts"
)

// crowd is a fair lock with many waiters, who are there by their scripts alone, and served by the ids that follow.
type crowd struct {
	t       testing.TB
	rdb     *redis.Client
	name    string
	client  string
	first   int // the next to be served
	last    int
	take    *scripts.Script
	give    *scripts.Script
	refresh *scripts.Script
}

func newCrowd(t testing.TB, s *redistest.Server, n int) *crowd {
	c := &crowd{
		t: t, rdb: s.Client(t, func(o *redis.Options) { o.ReadTimeout = time.Minute }), name: redistest.Name(t), client: "0a1b2c3d-0000-4000-8000-00000000000a",
		take: scripts.Load("fairlock/acquire"), give: scripts.Load("fairlock/release"), refresh: scripts.Load("fairlock/refresh"),
	}
	for _, script := range []*scripts.Script{c.take, c.give, c.refresh} {
		require.NoError(t, c.rdb.ScriptLoad(context.Background(), script.Text()).Err())
	}
	c.enter(n + 1) // the first holds
	return c
}

func (c *crowd) id(i int) string { return c.client + ":" + strconv.Itoa(i) }

func (c *crowd) command(script *scripts.Script, i int, args ...any) []any {
	tag := "{" + c.name + "}"
	command := []any{
		"evalsha", script.SHA(), 8, c.name, "redisson_lock__channel:" + tag, "redisson_unlock_latch:" + tag + ":" + c.id(i),
		"redlatch_shared_counts:" + tag, "redisson_lock_queue:" + tag, "redisson_lock_timeout:" + tag, "redlatch_lock_waiters:" + tag, "redlatch_lock_clients:" + tag,
	}
	return append(command, args...)
}

func (c *crowd) taking(i int) []any {
	return c.command(c.take, i, c.id(i), 60000, "PUBLISH", 0, 0, 2, 60000, c.client, c.client, 0)
}

func (c *crowd) enter(n int) {
	for ; n > 0; n -= min(n, 500) {
		_, err := c.rdb.Pipelined(context.Background(), func(p redis.Pipeliner) error {
			for range min(n, 500) {
				p.Do(context.Background(), c.taking(c.last)...)
				c.last++
			}
			return nil
		})
		require.NoError(c.t, err)
	}
}

// end releases what id i has.
func (c *crowd) end(i int) any {
	return c.rdb.Do(context.Background(), c.command(c.give, i, c.id(i), "PUBLISH", 15000, "another")...).Val()
}

// handOver serves the next, and has another enter, so that as many wait as before.
func (c *crowd) handOver() {
	require.Equal(c.t, int64(1), c.end(c.first))
	c.first++
	c.enter(1)
}

func (c *crowd) look() {
	args := []any{c.client, "PUBLISH", 10000}
	for i := range min(100, c.last-c.first-1) {
		args = append(args, c.id(c.first+1+i))
	}
	answer := c.rdb.Do(context.Background(), c.command(c.refresh, 0, args...)...).Val().([]any)
	require.Len(c.t, answer, 6, "nobody is missing")
}

// spent is the server's own time for scripts so far.
func (c *crowd) spent() time.Duration {
	stats := c.rdb.Info(context.Background(), "commandstats").Val()
	m := regexp.MustCompile(`cmdstat_evalsha:calls=\d+,usec=(\d+)`).FindStringSubmatch(stats)
	require.NotNil(c.t, m)
	usec, err := strconv.Atoi(m[1])
	require.NoError(c.t, err)
	return time.Duration(usec) * time.Microsecond
}

// each is the server's time for one f.
func (c *crowd) each(n int, f func()) time.Duration {
	before := c.spent()
	for range n {
		f()
	}
	return (c.spent() - before) / time.Duration(n)
}

// What a hand-over costs the server does not depend on how many wait: with 10,000 it is within one and a half times what it is with 10.
func TestFairLockHandOverCost(t *testing.T) {
	s := redistest.Fresh(t)
	few, many := newCrowd(t, s, 10), newCrowd(t, s, 10000)
	var ratios []float64
	for range 5 { // by turns, so that what else the machine does falls on both
		a, b := few.each(200, few.handOver), many.each(200, many.handOver)
		ratios = append(ratios, float64(b)/float64(a))
	}
	slices.Sort(ratios)
	t.Logf("a hand-over at 10,000 costs %.2f times one at 10; a look for all of them %v", ratios[2], many.each(50, many.look))
	require.Less(t, ratios[2], 1.5)
}

func BenchmarkFairLock(b *testing.B) {
	for _, n := range []int{10, 1000, 10000} {
		b.Run(fmt.Sprintf("hand-over, %d wait", n), func(b *testing.B) {
			c := newCrowd(b, redistest.Fresh(b), n)
			before := c.spent()
			for b.Loop() {
				c.handOver()
			}
			b.ReportMetric(float64((c.spent()-before).Nanoseconds())/float64(b.N), "server-ns/op")
		})
		b.Run(fmt.Sprintf("look, %d wait", n), func(b *testing.B) {
			c := newCrowd(b, redistest.Fresh(b), n)
			before := c.spent()
			for b.Loop() {
				c.look()
			}
			b.ReportMetric(float64((c.spent()-before).Nanoseconds())/float64(b.N), "server-ns/op")
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
