package wire

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
	"github.com/redlatch/redlatch/scripts"
)

// C4: the counts of a private hold and of WithOwner holds with the same id add up. In any order,
// each release takes its own count only. The last release hands off to the next waiter.
func TestFairLockReleaseTakesItsOwnCountOnly(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, order := range [][]int{{0, 1, 2}, {1, 0, 2}, {1, 2, 0}} { // 0 is the private hold
			t.Run(fmt.Sprint(order), func(t *testing.T) {
				t.Parallel()
				name := redistest.Name(t)
				p := s.Proxy(t)
				l := fixture.NewClient(t, p.Client(t)).FairLock(name)
				other := fixture.NewClient(t, s.Client(t)).FairLock(name)
				p.Record()
				private := fixture.Acquire(t, t.Context(), l)
				holds := []*primitives.Hold{private}
				for range 2 {
					holds = append(holds, fixture.Acquire(t, t.Context(), l, primitives.WithOwner(private.ID())))
				}
				require.Equal(t, map[string]string{private.ID(): "3"}, fixture.Fields(t, s, name))
				require.Equal(t, map[string]int{private.ID(): 2}, fixture.SharedCounts(t, s, name))
				sharedTTL := s.Client(t).PTTL(t.Context(), fixture.SharedCountsKey(name)).Val()
				require.Greater(t, sharedTTL, 20*time.Second)
				require.LessOrEqual(t, sharedTTL, 30*time.Second, "it lives as long as the lock")
				next := fixture.StartAcquire(t.Context(), other)
				fixture.AwaitFair(t, l, 1)
				for i, n := range order {
					require.Len(t, fixture.FairWaiters(t, l), 1, "the lock has not been handed off yet")
					fixture.Release(t, holds[n])
					if left := 2 - i; left > 0 {
						require.Equal(t, map[string]string{private.ID(): string(rune('0' + left))}, fixture.Fields(t, s, name))
					}
				}
				hold := fixture.Await(t, next).Hold
				require.Equal(t, map[string]string{hold.ID(): "1"}, fixture.Fields(t, s, name))
				require.Empty(t, fixture.SharedCounts(t, s, name))
				sent := fixture.ScriptsOf(p)
				for _, i := range rand.Perm(len(sent)) {
					_ = fixture.Resend(s.Client(t), sent[i]).Err()
					require.Equal(t, map[string]string{hold.ID(): "1"}, fixture.Fields(t, s, name), "a late copy: %v", sent[i].Args)
				}
				fixture.Release(t, hold)
				// A late copy of an acquisition may have joined the queue, and been granted the
				// lock. The grant ends after seconds: it is shortened, and what never ends is
				// found.
				for _, key := range fixture.Leftovers(t, s, name) {
					if ttl := s.Client(t).PTTL(t.Context(), key).Val(); ttl > 0 {
						require.LessOrEqual(t, ttl, fixture.Soon)
						require.NoError(t, s.Client(t).PExpire(t.Context(), key, time.Millisecond).Err())
					}
				}
				fixture.RequireClean(t, s, name)
			})
		}
	})
}

// A waiter that gets messages is refused several times, and leaves no subscription behind.
func TestFairLockRefusedWaiterSubscribesOnce(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	name, p, rdb := redistest.Name(t), s.Proxy(t), s.Client(t)
	l := fixture.NewClient(t, p.Client(t)).FairLock(name)
	fixture.Acquire(t, t.Context(), l)
	ctx, cancel := context.WithCancel(t.Context())
	waiting := fixture.StartAcquire(ctx, l, primitives.WithOwner(fixture.JavaThread))
	fixture.AwaitFair(t, l, 1)
	own := "redisson_lock__channel:{" + name + "}:" + fixture.JavaThread
	requireSubscribers := func(n int64) {
		t.Helper()
		redistest.WaitFor(t, fixture.Soon, func() bool {
			return rdb.PubSubNumSub(t.Context(), own).Val()[own] == n
		}, "subscriptions to the waiter's channel")
	}
	requireSubscribers(1)
	p.Record()
	for range 3 {
		before := len(fixture.ScriptsOf(p))
		require.NoError(t, rdb.Publish(t.Context(), own, "0").Err())
		redistest.WaitFor(t, fixture.Soon, func() bool { return len(fixture.ScriptsOf(p)) > before }, "it tries")
	}
	cancel()
	require.ErrorIs(t, fixture.Await(t, waiting).Err, primitives.ErrNotAcquired)
	requireSubscribers(0)
}

// C4: a copy of a private release does not take the count of a WithOwner hold with the same id.
func TestFairLockCopyOfAPrivateReleaseTakesNoSharedCount(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		p := s.Proxy(t)
		l := fixture.NewClient(t, p.Client(t)).FairLock(name)
		private := fixture.Acquire(t, t.Context(), l)
		shared := fixture.Acquire(t, t.Context(), l, primitives.WithOwner(private.ID()))
		p.Duplicate(fixture.Script)
		fixture.Release(t, private)
		p.Heal()
		require.Equal(t, map[string]string{private.ID(): "1"}, fixture.Fields(t, s, name))
		require.NoError(t, shared.Check(t.Context()))
		fixture.Release(t, shared)
		fixture.RequireClean(t, s, name)
	})
}

// C4: a private waiter and a WithOwner waiter with the same id acquire together, each with its own
// count.
func TestFairLockWaitersThatShareAnIDEachCount(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, privateFirst := range []bool{true, false} {
			name := redistest.Name(t)
			var seen fixture.Recorder
			l := fixture.NewClient(t, s.Client(t), seen.Option()).FairLock(name)
			other := fixture.NewClient(t, s.Client(t)).FairLock(name)
			hold := fixture.Acquire(t, t.Context(), other)
			waiting := fixture.StartAcquire(t.Context(), l)
			fixture.AwaitFair(t, l, 1)
			id := fixture.FairWaiters(t, l)[0]
			shared := fixture.StartAcquire(t.Context(), l, primitives.WithOwner(id))
			redistest.WaitFor(t, fixture.Soon, func() bool { return len(seen.All(primitives.EventWait)) == 2 },
				"both waiters wait")
			require.Equal(t, []string{id}, fixture.FairWaiters(t, l), "both waiters share one queue entry")
			fixture.Release(t, hold)
			private, with := fixture.Await(t, waiting), fixture.Await(t, shared)
			require.NoError(t, private.Err)
			require.NoError(t, with.Err)
			require.Equal(t, map[string]string{id: "2"}, fixture.Fields(t, s, name))
			require.Equal(t, map[string]int{id: 1}, fixture.SharedCounts(t, s, name))
			first, second := private.Hold, with.Hold
			if !privateFirst {
				first, second = second, first
			}
			fixture.Release(t, first)
			require.Equal(t, map[string]string{id: "1"}, fixture.Fields(t, s, name))
			fixture.Release(t, second)
			fixture.RequireClean(t, s, name)
		}
	})
}

// C4: a private acquisition adds a count if its id is already held with WithOwner.
func TestFairLockPrivateAcquisitionAddsToASharedID(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := fixture.NewRawQueue(t, s, 0) // id 0 holds
		require.Equal(t, int64(1), c.End(0))
		shared := c.Command(c.Acquire, 1000, c.ID(0), 60000, "PUBLISH", 15000, 0, 0, 60000, c.Client, c.Client, 0)
		require.Equal(t, int64(0), c.Rdb.Do(t.Context(), shared...).Val())
		// Redis remembers that request 0 was released. Request 2000 with the same id is a new one.
		private := c.Command(c.Acquire, 2000, c.ID(0), 60000, "PUBLISH", 0, 0, 2, 60000, c.Client, c.Client, 0)
		for range 2 { // the second is a copy
			require.Equal(t, int64(0), c.Rdb.Do(t.Context(), private...).Val())
			require.Equal(t, map[string]string{c.ID(0): "2"}, fixture.Fields(t, s, c.Name))
		}
		release := c.Command(c.Release, 2000, c.ID(0), "PUBLISH", 15000, "another")
		for range 2 {
			require.Equal(t, int64(1), c.Rdb.Do(t.Context(), release...).Val())
			require.Equal(t, map[string]string{c.ID(0): "1"}, fixture.Fields(t, s, c.Name))
		}
	})
}

// C3: an acquisition under a WithOwner hold that Redis no longer has is answered "lost". It takes
// nothing and does not queue.
func TestFairLockNestedUnderALostHoldIsLost(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := &fixture.RawQueue{
			T: t, Rdb: s.Client(t), Name: redistest.Name(t), Client: fixture.RawQueueClient,
			Acquire: scripts.Load("fairlock/acquire"),
		}
		require.NoError(t, c.Rdb.ScriptLoad(t.Context(), c.Acquire.Text()).Err())
		nested := func() any {
			command := c.Command(c.Acquire, 1000, "o", 60000, "PUBLISH", 15000, 0, 1, 60000, c.Client, c.Client, 1)
			return c.Rdb.Do(t.Context(), command...).Val()
		}
		require.Equal(t, "lost", nested())
		require.Empty(t, fixture.Leftovers(t, s, c.Name))
		c.Join(2) // a holder and a waiter
		before := redistest.Keys(t, s, "*"+c.Name+"*")
		require.Equal(t, "lost", nested())
		require.ElementsMatch(t, before, redistest.Keys(t, s, "*"+c.Name+"*"))
		require.Equal(t, []string{c.ID(1)}, c.Rdb.LRange(t.Context(), "redisson_lock_queue:{"+c.Name+"}", 0, -1).Val())
	})
}

// C4: clients that wait with one owner id share a place. It stays while one of them waits, whoever
// came first, and also if the first one's process dies.
func TestFairPlaceStaysWhileSomebodyWaitsWithItsID(t *testing.T) {
	for _, tt := range []struct {
		name  string
		twins int // that wait with the id
		leave []int
		died  bool // the client of the first that leaves cannot reach Redis any longer
	}{
		{"the first leaves", 2, []int{0}, false},
		{"the second leaves", 2, []int{1}, false},
		{"two of three leave", 3, []int{0, 1}, false},
		{"the last ones leave", 3, []int{2, 1}, false},
		{"the first dies", 2, []int{0}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				name, id := redistest.Name(t), primitives.WithOwner("somebody:1")
				held := fixture.Acquire(t, t.Context(), fixture.NewClient(t, s.Client(t)).FairLock(name))
				viewer := fixture.NewClient(t, s.Client(t)).FairLock(name)
				short := primitives.WithWaiterTimeout(4 * time.Second)
				first := make(chan string, 4)
				wait := func(ctx context.Context, c *primitives.Client, who string, opts ...primitives.Option) {
					go func() {
						h, err := c.FairLock(name).Acquire(ctx, append(opts, short)...)
						if err == nil {
							first <- who
							_ = h.Release(context.WithoutCancel(ctx))
						}
					}()
					fixture.AwaitWaiters(t, c, 1)
				}
				var stops []context.CancelFunc
				var proxies []*redistest.Proxy
				for range tt.twins {
					p := s.Proxy(t)
					c := fixture.NewClient(t, p.Client(t))
					ctx, stop := context.WithCancel(t.Context())
					defer stop()
					wait(ctx, c, "twin", id)
					fixture.AwaitFair(t, viewer, 1)
					stops, proxies = append(stops, stop), append(proxies, p)
				}
				// Each twin has made an attempt, which notes it.
				redistest.WaitFor(t, fixture.Soon, func() bool {
					twins := s.Client(t).HGet(t.Context(), "redlatch_lock_clients:{"+name+"}", "twins somebody:1").Val()
					return len(twins) > 0
				}, "the twins are noted")
				time.Sleep(200 * time.Millisecond)
				wait(t.Context(), fixture.NewClient(t, s.Client(t)), "behind")
				fixture.AwaitFair(t, viewer, 2)
				for _, i := range tt.leave {
					if tt.died {
						proxies[i].BlackHole(true)
					}
					stops[i]()
					time.Sleep(200 * time.Millisecond)
				}
				if tt.died {
					time.Sleep(5 * time.Second) // its heartbeat is old
				}
				require.Equal(t, "somebody:1", fixture.FairWaiters(t, viewer)[0], "the place stays")
				fixture.Release(t, held)
				require.Equal(t, "twin", next(t, first))
				require.Equal(t, "behind", nextOther(t, first))
			})
		})
	}
}

// next returns who has acquired next.
func next(t *testing.T, order <-chan string) string {
	select {
	case who := <-order:
		return who
	case <-time.After(fixture.Soon):
		require.FailNow(t, "nobody acquires")
		return ""
	}
}

// nextOther returns the first that is no twin.
func nextOther(t *testing.T, order <-chan string) string {
	for {
		if who := next(t, order); who != "twin" {
			return who
		}
	}
}

// The last one that leaves takes the place with it.
func TestFairPlaceGoesWithTheLastWaiterOfItsID(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name, id := redistest.Name(t), primitives.WithOwner("somebody:1")
		held := fixture.Acquire(t, t.Context(), fixture.NewClient(t, s.Client(t)).FairLock(name))
		viewer := fixture.NewClient(t, s.Client(t)).FairLock(name)
		var waiting []<-chan fixture.Result
		var stops []context.CancelFunc
		for range 2 {
			c := fixture.NewClient(t, s.Client(t))
			ctx, stop := context.WithCancel(t.Context())
			waiting = append(waiting, fixture.StartAcquire(ctx, c.FairLock(name), id))
			fixture.AwaitWaiters(t, c, 1)
			fixture.AwaitFair(t, viewer, 1)
			stops = append(stops, stop)
		}
		time.Sleep(100 * time.Millisecond)
		for i, stop := range stops {
			stop()
			require.ErrorIs(t, fixture.Await(t, waiting[i]).Err, context.Canceled)
		}
		fixture.AwaitFair(t, viewer, 0)
		fixture.Release(t, held)
		fixture.RequireClean(t, s, name)
	})
}
