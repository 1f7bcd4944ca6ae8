package primitives_test

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// fairWaiters returns the ids in the queue of l, as Info reports them.
func fairWaiters(t testing.TB, l *primitives.Lock) []string {
	info, err := l.Info(context.Background())
	require.NoError(t, err)
	return info.Waiters
}

// awaitFair waits until n waiters are in the queue of l.
func awaitFair(t testing.TB, l *primitives.Lock, n int) {
	t.Helper()
	redistest.WaitFor(t, soon, func() bool { return len(fairWaiters(t, l)) == n }, "the waiters are in the queue")
}

// requireSameMembers checks that the queue of a name and its set of deadlines have the same
// members.
func requireSameMembers(t testing.TB, rdb *redis.Client, name string) {
	t.Helper()
	list := rdb.LRange(context.Background(), "redisson_lock_queue:{"+name+"}", 0, -1).Val()
	set := rdb.ZRange(context.Background(), "redisson_lock_timeout:{"+name+"}", 0, -1).Val()
	require.ElementsMatch(t, list, set)
}

// A waiter that is cancelled at any moment leaves no queue entry, no subscription and no goroutine.
func TestFairLockCancelledWaiterLeavesNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		checkLeaks(t)
		measured := redistest.Bar(t, s, 4)
		name := redistest.Name(t)
		l := newClient(t, s.Client(t)).FairLock(name)
		hold := acquire(t, t.Context(), l)
		n := redistest.Sized(s, 20*redistest.Scaled(s, 100), 100_000)
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				for range n / 20 {
					ctx, cancel := context.WithTimeout(context.Background(), rand.N(4*time.Millisecond))
					if _, err := l.Acquire(ctx); err == nil {
						t.Error("acquired a held lock")
					}
					cancel()
				}
			})
		}
		wg.Wait()
		// A rollback that takes longer than the call may goes on in the background.
		over := time.Now()
		redistest.WaitFor(t, goneIn(s), func() bool { return len(fairWaiters(t, l)) == 0 }, "the queue is empty")
		release(t, hold)
		requireClean(t, s, name)
		measured("%d cancelled waiters, nothing left after %v", n, time.Since(over).Round(time.Millisecond))
	})
}

// Late copies of any command neither take the lock nor join the queue.
func TestFairLockLateCopiesTakeNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, opts := range [][]primitives.Option{nil, {primitives.WithOwner("o")}} {
			name := redistest.Name(t)
			p, rdb := s.Proxy(t), s.Client(t)
			c := newClient(t, p.Client(t))
			l := c.FairLock(name)
			p.Record()
			hold := acquire(t, t.Context(), l)
			ctx, cancel := context.WithCancel(t.Context())
			cancelled := start(func() (*primitives.Hold, error) { return l.Acquire(ctx, opts...) })
			awaitFair(t, l, 1)
			served := start(func() (*primitives.Hold, error) {
				return l.Acquire(t.Context(), append(slices.Clone(opts), primitives.WithOwner("p"))...)
			})
			awaitFair(t, l, 2)
			cancel()
			require.ErrorIs(t, await(t, cancelled).err, context.Canceled)
			release(t, hold)
			release(t, await(t, served).hold)
			requireClean(t, s, name)
			sent := scriptsOf(p)
			for range redistest.Scaled(s, 30) {
				for _, i := range rand.Perm(len(sent)) {
					_ = again(rdb, sent[i]).Err()
					require.Empty(t, leftovers(t, s, name), "%v", sent[i].Args)
				}
			}
		}
	})
}

// Callers do not notice lost replies, whatever the command.
func TestFairLockSurvivesLostReplies(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		p, rdb := s.Proxy(t), s.Client(t)
		l := newClient(t, p.Client(t, patient)).FairLock(name)
		measured := redistest.Bar(t, s, 1)
		n, inside := 0, 0
		each := redistest.Sized(s, redistest.Scaled(s, 40), 10_000)
		p.DropRepliesRandomly(0.4, 7, script)
		var wg sync.WaitGroup
		for range 6 {
			wg.Go(func() {
				for range each {
					err := l.Do(context.Background(), func(ctx context.Context) error {
						inside++
						defer func() { inside-- }()
						n++
						if inside != 1 {
							t.Errorf("%d hold the lock", inside)
						}
						if rand.IntN(4) > 0 {
							return nil
						}
						return l.Do(ctx, func(context.Context) error { return nil })
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		p.Heal()
		require.Equal(t, 6*each, n)
		requireSameMembers(t, rdb, name)
		measured("%d acquisitions in turn and a quarter as many nested ones, with 0.67 lost replies for each command", n)
		requireClean(t, s, name)
	})
}

// Without messages, a waiter acquires within the slow poll.
func TestFairLockPollingCoversLostMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := redistest.Embedded(t)
		p := s.Proxy(t)
		p.DropMessages(true)
		l := newClient(t, p.Client(t)).FairLock("l")
		hold := acquire(t, t.Context(), l)
		var got []time.Time
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() {
				err := l.Do(context.Background(), func(context.Context) error { got = append(got, time.Now()); return nil })
				if err != nil {
					t.Error(err)
				}
			})
			awaitFair(t, l, i+1)
		}
		last := time.Now()
		release(t, hold)
		wg.Wait()
		for _, at := range got {
			require.LessOrEqual(t, at.Sub(last), time.Second+10*time.Millisecond)
			last = at
		}
		requireClean(t, s, "l")
	})
}

// All waiters of a client together send one script a second. Live waiters keep their place in the
// queue, even if their waiter timeout is shorter than that.
func TestFairLockWaitingIsCheap(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := redistest.Embedded(t)
		p := s.Proxy(t)
		c := newClient(t, p.Client(t))
		l := c.FairLock("l")
		hold := acquire(t, t.Context(), newClient(t, s.Client(t)).FairLock("l"))
		var wg sync.WaitGroup
		var order []int
		join := func(l *primitives.Lock, i int) {
			wg.Go(func() {
				err := l.Do(context.Background(), func(context.Context) error { order = append(order, i); return nil })
				if err != nil {
					t.Error(err)
				}
			})
			awaitFair(t, l, i+1)
		}
		for i := range 20 {
			join(l, i)
		}
		p.Record()
		time.Sleep(30 * time.Second)
		scriptCommands := slices.DeleteFunc(p.Commands(), func(c redistest.Command) bool { return c.Args[0] != "evalsha" })
		require.InDelta(t, 30, len(scriptCommands), 8)
		join(newClient(t, s.Client(t)).FairLock("l", primitives.WithWaiterTimeout(90*time.Millisecond)), 20)
		join(l, 21)
		time.Sleep(15500 * time.Millisecond) // half way between two heartbeats of the others
		release(t, hold)
		wg.Wait()
		require.Len(t, order, 22)
		require.IsIncreasing(t, order)
		requireClean(t, s, "l")
	})
}

// A dead waiter delays the next one by its waiter timeout, and no longer.
func TestFairLockWaiterTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMixed(t, redistest.Embedded(t), "l")
		p := m.s.Proxy(t)
		release := m.hold(false)
		ctx, cancel := context.WithCancel(t.Context())
		dying := newClient(t, p.Client(t, hasty, noRetries)).FairLock("l", primitives.WithWaiterTimeout(4*time.Second))
		m.join(func() { _, _ = dying.Acquire(ctx) })
		m.joinGo(m.l, 0, 0)
		time.Sleep(10500 * time.Millisecond)
		p.Refuse(true)
		p.Reset()
		cancel()
		began := time.Now()
		release()
		m.finish()
		require.Less(t, time.Since(began), 4*time.Second+20*time.Millisecond)
		require.Greater(t, time.Since(began), 2*time.Second)
	})
}

// A waiter is cancelled, and its command to leave the queue never reaches Redis. The heartbeats of
// its client do not keep its queue entry alive.
func TestFairLockStaleQueueEntryTimesOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := redistest.Embedded(t)
		p := s.Proxy(t)
		other := newClient(t, s.Client(t)).FairLock("l")
		hold := acquire(t, t.Context(), other)
		l := newClient(t, p.Client(t, hasty, noRetries)).FairLock("l")
		ctx, cancel := context.WithCancel(t.Context())
		old := start(func() (*primitives.Hold, error) {
			return l.Acquire(ctx, primitives.WithOwner("gone"), primitives.WithLease(time.Second))
		})
		awaitFair(t, other, 1)
		p.DropCommands(math.MaxInt, func(cmd []string) bool { return script(cmd) && slices.Contains(cmd, "gone") })
		cancel()
		require.ErrorIs(t, (<-old).err, context.Canceled)
		next := start(func() (*primitives.Hold, error) { return l.Acquire(t.Context()) })
		awaitFair(t, other, 2)
		time.Sleep(2 * time.Minute) // the client has stopped repeating the command
		p.Heal()
		require.Equal(t, "gone", fairWaiters(t, other)[0])
		release(t, hold)
		began := time.Now()
		r := <-next
		require.NoError(t, r.err)
		require.Less(t, time.Since(began), 12*time.Second)
		require.Empty(t, fairWaiters(t, other))
		release(t, r.hold)
	})
}

// Redis loses its data or restarts while many wait. They queue again, and all acquire.
func TestFairLockWaitersSurviveLostData(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	name := redistest.Name(t)
	for what, lose := range map[string]func() error{
		"flush":   func() error { return s.Client(t).FlushAll(context.Background()).Err() },
		"restart": s.Restart,
	} {
		t.Run(what, func(t *testing.T) {
			c := newClient(t, s.Client(t))
			l := c.FairLock(name)
			acquire(t, t.Context(), l)
			served := 0
			var wg sync.WaitGroup
			for range 30 {
				wg.Go(func() {
					if err := l.Do(context.Background(), func(context.Context) error { served++; return nil }); err != nil {
						t.Error(err)
					}
				})
			}
			awaitFair(t, l, 30)
			require.NoError(t, lose())
			wg.Wait()
			require.Equal(t, 30, served)
			requireClean(t, s, name)
		})
	}
}

// A Redis that is out of memory refuses new waiters at once. Earlier waiters stay queued, acquire,
// and can leave.
func TestFairLockFullMemoryRefusesNewWaiters(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t, "--maxmemory-policy", "noeviction")
	name := redistest.Name(t)
	l := newClient(t, s.Client(t)).FairLock(name)
	hold := acquire(t, t.Context(), l)
	ctx, cancel := context.WithCancel(t.Context())
	leaving := start(func() (*primitives.Hold, error) { return l.Acquire(ctx) })
	awaitFair(t, l, 1)
	waiting := start(func() (*primitives.Hold, error) {
		return l.Acquire(t.Context(), primitives.WithWaiterTimeout(2*time.Second))
	})
	awaitFair(t, l, 2)
	rdb := s.Client(t)
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	_, err := l.Acquire(t.Context())
	require.ErrorContains(t, err, "OOM")
	cancel()
	require.ErrorIs(t, await(t, leaving).err, context.Canceled)
	require.Len(t, fairWaiters(t, l), 1)
	time.Sleep(2500 * time.Millisecond) // longer than the waiter timeout, so it needs heartbeats
	require.Len(t, fairWaiters(t, l), 1)
	requireSameMembers(t, rdb, name)
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "0").Err())
	release(t, hold)
	release(t, await(t, waiting).hold)
	requireClean(t, s, name)
}

// A client that may not publish gets the error before it queues.
func TestFairLockACLIsCheckedBeforeQueuing(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	name := redistest.Name(t)
	admin := s.Client(t)
	for user, channels := range map[string]string{"mute": "&none", "fine": "&redisson_lock__channel:{" + name + "}:*"} {
		rules := []any{"acl", "setuser", user, "on", ">pw", "+@all", "resetchannels", "~*", channels}
		require.NoError(t, admin.Do(t.Context(), rules...).Err())
		l := newClient(t, s.Client(t, func(o *redis.Options) { o.Username, o.Password = user, "pw" })).FairLock(name)
		hold := acquire(t, t.Context(), newClient(t, admin).FairLock(name))
		waiting := start(func() (*primitives.Hold, error) { return l.Acquire(t.Context()) })
		if user == "mute" {
			require.ErrorContains(t, await(t, waiting).err, "NOPERM")
			require.Empty(t, fairWaiters(t, newClient(t, admin).FairLock(name)))
			release(t, hold)
			continue
		}
		awaitFair(t, l, 1)
		release(t, hold)
		release(t, await(t, waiting).hold)
	}
	requireClean(t, s, name)
}

// ReleaseID, ForceRelease and the release of an adopted hold hand off to the next waiter.
// Acquisitions with the same WithOwner id wait in one queue entry and acquire together.
func TestFairLockIDs(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		var seen recorder
		l := newClient(t, s.Client(t), seen.option()).FairLock(name)
		startWaiter := func() <-chan result {
			w := start(func() (*primitives.Hold, error) { return l.Acquire(t.Context()) })
			awaitFair(t, l, 1)
			return w
		}
		hold := acquire(t, t.Context(), l)
		w := startWaiter()
		require.NoError(t, l.ReleaseID(t.Context(), hold.ID()))
		hold = await(t, w).hold
		w = startWaiter()
		adopted, err := l.Adopt(t.Context(), hold.ID())
		require.NoError(t, err)
		inner := acquire(t, adopted.Context(), l)
		require.Equal(t, 2, inner.Depth())
		release(t, inner)
		release(t, adopted)
		await(t, w)
		w = startWaiter()
		held, err := l.ForceRelease(t.Context())
		require.NoError(t, err)
		require.True(t, held)
		hold = await(t, w).hold
		_, err = l.TryAcquire(t.Context())
		require.ErrorIs(t, err, primitives.ErrNotAcquired)
		require.Empty(t, fairWaiters(t, l), "TryAcquire does not queue")

		own := func() (*primitives.Hold, error) { return l.Acquire(t.Context(), primitives.WithOwner("o")) }
		before := len(seen.all(primitives.EventWait))
		first := start(own)
		awaitFair(t, l, 1)
		ctx, cancel := context.WithCancel(t.Context())
		cancelled := start(func() (*primitives.Hold, error) { return l.Acquire(ctx, primitives.WithOwner("o")) })
		second := start(own)
		redistest.WaitFor(t, soon, func() bool {
			return len(seen.all(primitives.EventWait)) == before+3
		}, "all three wait")
		cancel()
		require.Error(t, await(t, cancelled).err)
		require.Equal(t, []string{"o"}, fairWaiters(t, l), "the others still share the queue entry")
		began := time.Now()
		release(t, hold)
		one, two := await(t, first).hold, await(t, second).hold
		require.Less(t, time.Since(began), slowPoll)
		require.Equal(t, map[string]string{"o": "2"}, fields(t, s, name))
		release(t, one)
		release(t, two)
		requireClean(t, s, name)
	})
}

// On a cluster with sharded pub/sub, waiters of two clients acquire in order.
func TestFairLockOnACluster(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t)
	name := redistest.Name(t)
	one := newClient(t, servers.ClusterClient(t), primitives.WithShardedPubSub(true)).FairLock(name)
	two := newClient(t, servers.ClusterClient(t), primitives.WithShardedPubSub(true)).FairLock(name)
	hold := acquire(t, t.Context(), one)
	var order []int
	var wg sync.WaitGroup
	for i := range 20 {
		l := one
		if i%3 == 0 {
			l = two
		}
		wg.Go(func() {
			err := l.Do(context.Background(), func(context.Context) error { order = append(order, i); return nil })
			if err != nil {
				t.Error(err)
			}
		})
		awaitFair(t, one, i+1)
	}
	began := time.Now()
	release(t, hold)
	wg.Wait()
	require.IsIncreasing(t, order)
	require.Less(t, time.Since(began), 10*time.Second, "without messages, twenty slow polls take 20 s")
	for _, s := range servers.Nodes() {
		requireClean(t, s, name)
	}
}
