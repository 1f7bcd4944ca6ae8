package primitives_test

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
	"github.com/redlatch/redlatch/scripts"
)

// sharedCounts returns, by field of the lock's hash, how many of its counts belong to WithOwner holds.
func sharedCounts(t testing.TB, s *redistest.Server, name string) map[string]int {
	counts := map[string]int{}
	for field, list := range s.Client(t).HGetAll(context.Background(), sharedCountsKey(name)).Val() {
		counts[field] = len(strings.Fields(list))
	}
	return counts
}

// sharedCountsKey is the key of the hash that lists the acquisitions with WithOwner.
func sharedCountsKey(name string) string { return "redisson_unlock_latch:{" + name + "}:owners" }

// C4: the counts of a private hold and of WithOwner holds with the same id add up. In any order,
// each release takes its own count only. The last release hands off to the next waiter.
func TestFairLockReleaseTakesItsOwnCountOnly(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, order := range [][]int{{0, 1, 2}, {1, 0, 2}, {1, 2, 0}} { // 0 is the private hold
			name := redistest.Name(t)
			p := s.Proxy(t)
			l := newClient(t, p.Client(t)).FairLock(name)
			other := newClient(t, s.Client(t)).FairLock(name)
			p.Record()
			private := acquire(t, t.Context(), l)
			holds := []*primitives.Hold{private}
			for range 2 {
				holds = append(holds, acquire(t, t.Context(), l, primitives.WithOwner(private.ID())))
			}
			require.Equal(t, map[string]string{private.ID(): "3"}, fields(t, s, name))
			require.Equal(t, map[string]int{private.ID(): 2}, sharedCounts(t, s, name))
			sharedTTL := s.Client(t).PTTL(t.Context(), sharedCountsKey(name)).Val()
			require.Greater(t, sharedTTL, 20*time.Second)
			require.LessOrEqual(t, sharedTTL, 30*time.Second, "it lives as long as the lock")
			next := start(func() (*primitives.Hold, error) { return other.Acquire(t.Context()) })
			awaitFair(t, l, 1)
			for i, n := range order {
				require.Len(t, fairWaiters(t, l), 1, "the lock has not been handed off yet")
				release(t, holds[n])
				if left := 2 - i; left > 0 {
					require.Equal(t, map[string]string{private.ID(): string(rune('0' + left))}, fields(t, s, name))
				}
			}
			hold := await(t, next).hold
			require.Equal(t, map[string]string{hold.ID(): "1"}, fields(t, s, name))
			require.Empty(t, sharedCounts(t, s, name))
			sent := scriptsOf(p)
			for _, i := range rand.Perm(len(sent)) {
				_ = again(s.Client(t), sent[i]).Err()
				require.Equal(t, map[string]string{hold.ID(): "1"}, fields(t, s, name), "a late copy: %v", sent[i].Args)
			}
			release(t, hold)
			requireClean(t, s, name)
		}
	})
}

// C4: a copy of a private release does not take the count of a WithOwner hold with the same id.
func TestFairLockCopyOfAPrivateReleaseTakesNoSharedCount(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		p := s.Proxy(t)
		l := newClient(t, p.Client(t)).FairLock(name)
		private := acquire(t, t.Context(), l)
		shared := acquire(t, t.Context(), l, primitives.WithOwner(private.ID()))
		p.Duplicate(script)
		require.NoError(t, private.Release(t.Context()))
		p.Heal()
		require.Equal(t, map[string]string{private.ID(): "1"}, fields(t, s, name))
		require.NoError(t, shared.Check(t.Context()))
		release(t, shared)
		requireClean(t, s, name)
	})
}

// C4: a private waiter and a WithOwner waiter with the same id acquire together, each with its own
// count.
func TestFairLockWaitersThatShareAnIDEachCount(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, privateFirst := range []bool{true, false} {
			name := redistest.Name(t)
			var seen recorder
			l := newClient(t, s.Client(t), seen.option()).FairLock(name)
			other := newClient(t, s.Client(t)).FairLock(name)
			hold := acquire(t, t.Context(), other)
			waiting := start(func() (*primitives.Hold, error) { return l.Acquire(t.Context()) })
			awaitFair(t, l, 1)
			id := fairWaiters(t, l)[0]
			shared := start(func() (*primitives.Hold, error) { return l.Acquire(t.Context(), primitives.WithOwner(id)) })
			redistest.WaitFor(t, soon, func() bool { return len(seen.all(primitives.EventWait)) == 2 }, "both waiters wait")
			require.Equal(t, []string{id}, fairWaiters(t, l), "both waiters share one queue entry")
			release(t, hold)
			private, with := await(t, waiting), await(t, shared)
			require.NoError(t, private.err)
			require.NoError(t, with.err)
			require.Equal(t, map[string]string{id: "2"}, fields(t, s, name))
			require.Equal(t, map[string]int{id: 1}, sharedCounts(t, s, name))
			first, second := private.hold, with.hold
			if !privateFirst {
				first, second = second, first
			}
			release(t, first)
			require.Equal(t, map[string]string{id: "1"}, fields(t, s, name))
			release(t, second)
			requireClean(t, s, name)
		}
	})
}

// C4: a private acquisition adds a count if its id is already held with WithOwner.
func TestFairLockPrivateAcquisitionAddsToASharedID(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := newRawQueue(t, s, 0) // id 0 holds
		require.Equal(t, int64(1), c.end(0))
		shared := c.command(c.acquire, 1000, c.id(0), 60000, "PUBLISH", 15000, 0, 0, 60000, c.client, c.client, 0)
		require.Equal(t, int64(0), c.rdb.Do(t.Context(), shared...).Val())
		// Redis remembers that request 0 was released. Request 2000 with the same id is a new one.
		private := c.command(c.acquire, 2000, c.id(0), 60000, "PUBLISH", 0, 0, 2, 60000, c.client, c.client, 0)
		for range 2 { // the second is a copy
			require.Equal(t, int64(0), c.rdb.Do(t.Context(), private...).Val())
			require.Equal(t, map[string]string{c.id(0): "2"}, fields(t, s, c.name))
		}
		release := c.command(c.release, 2000, c.id(0), "PUBLISH", 15000, "another")
		for range 2 {
			require.Equal(t, int64(1), c.rdb.Do(t.Context(), release...).Val())
			require.Equal(t, map[string]string{c.id(0): "1"}, fields(t, s, c.name))
		}
	})
}

// C3: an acquisition under a WithOwner hold that Redis no longer has is answered "lost". It takes
// nothing and does not queue.
func TestFairLockNestedUnderALostHoldIsLost(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := &rawQueue{
			t: t, rdb: s.Client(t), name: redistest.Name(t), client: rawQueueClient,
			acquire: scripts.Load("fairlock/acquire"),
		}
		require.NoError(t, c.rdb.ScriptLoad(t.Context(), c.acquire.Text()).Err())
		nested := func() any {
			command := c.command(c.acquire, 1000, "o", 60000, "PUBLISH", 15000, 0, 1, 60000, c.client, c.client, 1)
			return c.rdb.Do(t.Context(), command...).Val()
		}
		require.Equal(t, "lost", nested())
		require.Empty(t, leftovers(t, s, c.name))
		c.join(2) // a holder and a waiter
		before := redistest.Keys(t, s, "*"+c.name+"*")
		require.Equal(t, "lost", nested())
		require.ElementsMatch(t, before, redistest.Keys(t, s, "*"+c.name+"*"))
		require.Equal(t, []string{c.id(1)}, c.rdb.LRange(t.Context(), "redisson_lock_queue:{"+c.name+"}", 0, -1).Val())
	})
}
