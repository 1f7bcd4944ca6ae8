package faults

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
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
	"github.com/redlatch/redlatch/scripts"
)

// requireSameMembers checks that the queue of a name and its set of deadlines have the same
// members.
func requireSameMembers(t testing.TB, rdb *redis.Client, name string) {
	t.Helper()
	list := rdb.LRange(context.Background(), "redisson_lock_queue:{"+name+"}", 0, -1).Val()
	set := rdb.ZRange(context.Background(), "redisson_lock_timeout:{"+name+"}", 0, -1).Val()
	require.ElementsMatch(t, list, set)
}

// Callers do not notice lost replies, whatever the command.
func TestFairLockSurvivesLostReplies(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		p, rdb := s.Proxy(t), s.Client(t)
		l := fixture.NewClient(t, p.Client(t, fixture.ManyRetries)).FairLock(name)
		measured := redistest.Bar(t, s, 1)
		n, inside := 0, 0
		each := redistest.Sized(s, redistest.Scaled(s, 40), 10_000)
		p.DropRepliesRandomly(0.4, 7, fixture.Script)
		fixture.Concurrently(6, func(int) {
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
				assert.NoError(t, err)
			}
		})
		p.Heal()
		require.Equal(t, 6*each, n)
		requireSameMembers(t, rdb, name)
		measured("%d acquisitions in turn and a quarter as many nested ones, with 0.67 lost replies for each command", n)
		fixture.RequireClean(t, s, name)
	})
}

// A release grants the lock to a waiter of the same client, and its reply, which says so, is lost.
// The client looks for the grant as soon as the repeated release finds nothing.
func TestFairLockFindsTheGrantInALostReply(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := redistest.Embedded(t)
		p := s.Proxy(t)
		l := fixture.NewClient(t, p.Client(t, fixture.ManyRetries)).FairLock("l")
		fixture.Release(t, fixture.Acquire(t, t.Context(), l)) // Redis knows the scripts
		hold := fixture.Acquire(t, t.Context(), l)
		waiter := fixture.StartAcquire(t.Context(), l)
		fixture.AwaitFair(t, l, 1)
		synctest.Wait()
		p.DropReplies(1, fixture.Script)
		began := time.Now()
		fixture.Release(t, hold)
		got := fixture.AwaitHold(t, waiter)
		require.Less(t, time.Since(began), 100*time.Millisecond)
		fixture.Release(t, got)
		fixture.RequireClean(t, s, "l")
	})
}

// Without messages, a waiter acquires within the slow poll.
func TestFairLockPollingCoversLostMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := redistest.Embedded(t)
		p := s.Proxy(t)
		p.DropMessages(true)
		l := fixture.NewClient(t, p.Client(t)).FairLock("l")
		hold := fixture.Acquire(t, t.Context(), l)
		var got []time.Time
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() {
				err := l.Do(context.Background(), func(context.Context) error { got = append(got, time.Now()); return nil })
				assert.NoError(t, err)
			})
			fixture.AwaitFair(t, l, i+1)
		}
		last := time.Now()
		fixture.Release(t, hold)
		wg.Wait()
		for _, at := range got {
			require.LessOrEqual(t, at.Sub(last), time.Second+10*time.Millisecond)
			last = at
		}
		fixture.RequireClean(t, s, "l")
	})
}

// All waiters of a client together send one script a second. Live waiters keep their place in the
// queue, even if their waiter timeout is shorter than that.
func TestFairLockWaitingIsCheap(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := redistest.Embedded(t)
		p := s.Proxy(t)
		c := fixture.NewClient(t, p.Client(t))
		l := c.FairLock("l")
		hold := fixture.Acquire(t, t.Context(), fixture.NewClient(t, s.Client(t)).FairLock("l"))
		var wg sync.WaitGroup
		var order []int
		join := func(l *primitives.Lock, i int) {
			wg.Go(func() {
				assert.NoError(t, l.Do(context.Background(), func(context.Context) error { order = append(order, i); return nil }))
			})
			fixture.AwaitFair(t, l, i+1)
		}
		for i := range 20 {
			join(l, i)
		}
		p.Record()
		time.Sleep(30 * time.Second)
		scriptCommands := slices.DeleteFunc(p.Commands(), func(c redistest.Command) bool { return c.Args[0] != "evalsha" })
		require.InDelta(t, 30, len(scriptCommands), 8)
		join(fixture.NewClient(t, s.Client(t)).FairLock("l", primitives.WithWaiterTimeout(90*time.Millisecond)), 20)
		join(l, 21)
		time.Sleep(15500 * time.Millisecond) // half way between two heartbeats of the others
		fixture.Release(t, hold)
		wg.Wait()
		require.Len(t, order, 22)
		require.IsIncreasing(t, order)
		fixture.RequireClean(t, s, "l")
	})
}

// A waiter is cancelled, and its command to leave the queue never reaches Redis. The heartbeats of
// its client do not keep its queue entry alive.
func TestFairLockStaleQueueEntryTimesOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := redistest.Embedded(t)
		p := s.Proxy(t)
		other := fixture.NewClient(t, s.Client(t)).FairLock("l")
		hold := fixture.Acquire(t, t.Context(), other)
		l := fixture.NewClient(t, p.Client(t, fixture.ShortTimeouts, fixture.NoRetries)).FairLock("l")
		ctx, cancel := context.WithCancel(t.Context())
		old := fixture.StartAcquire(ctx, l, primitives.WithOwner("gone"), primitives.WithLease(time.Second))
		fixture.AwaitFair(t, other, 1)
		p.DropCommands(math.MaxInt, func(cmd []string) bool { return fixture.Script(cmd) && slices.Contains(cmd, "gone") })
		cancel()
		require.ErrorIs(t, (<-old).Err, context.Canceled)
		next := fixture.StartAcquire(t.Context(), l)
		fixture.AwaitFair(t, other, 2)
		time.Sleep(2 * time.Minute) // the client has stopped repeating the command
		p.Heal()
		require.Equal(t, "gone", fixture.FairWaiters(t, other)[0])
		fixture.Release(t, hold)
		began := time.Now()
		r := <-next
		require.NoError(t, r.Err)
		require.Less(t, time.Since(began), 12*time.Second)
		require.Empty(t, fixture.FairWaiters(t, other))
		fixture.Release(t, r.Hold)
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
			c := fixture.NewClient(t, s.Client(t))
			l := c.FairLock(name)
			fixture.Acquire(t, t.Context(), l)
			served := 0
			var wg sync.WaitGroup
			for range 30 {
				wg.Go(func() {
					assert.NoError(t, l.Do(context.Background(), func(context.Context) error { served++; return nil }))
				})
			}
			fixture.AwaitFair(t, l, 30)
			require.NoError(t, lose())
			wg.Wait()
			require.Equal(t, 30, served)
			fixture.RequireClean(t, s, name)
		})
	}
}

// The server's clock jumps ahead, or the server is down for minutes. The queue has no TTL, so it
// outlasts the hashes beside it. The waiters become waiters of this library again while the lock is
// held. Otherwise, nobody would tell them when it is their turn.
func TestFairLockWaitersSurviveTheHashesOfTheQueue(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const n = 10
		rdb, name := s.Client(t), redistest.Name(t)
		other := fixture.NewClient(t, s.Client(t)).FairLock(name)
		hold := fixture.Acquire(t, t.Context(), other)
		var all sync.WaitGroup
		for range 2 {
			l := fixture.NewClient(t, s.Client(t)).FairLock(name)
			for range n / 2 {
				all.Go(func() { assert.NoError(t, l.Do(t.Context(), func(context.Context) error { return nil })) })
			}
		}
		fixture.AwaitFair(t, other, n)
		waiters, clients := "redlatch_lock_waiters:{"+name+"}", "redlatch_lock_clients:{"+name+"}"
		require.EqualValues(t, 2, rdb.Del(t.Context(), waiters, clients).Val())
		redistest.WaitFor(t, fixture.Soon, func() bool {
			return rdb.HLen(t.Context(), waiters).Val() == n && len(fixture.FairWaiters(t, other)) == n
		}, "all waiters are in both again")
		fixture.Release(t, hold)
		all.Wait()
		fixture.RequireClean(t, s, name)
	})
}

// A waiter leaves from between two waiters of Redisson, and takes its time out of the score behind
// it. Otherwise a dead waiter of Redisson there would block the queue for minutes, however short
// its timeout is. A full Redis lets it leave, too.
func TestFairLockLeavesTheMiddleOfAMixedQueue(t *testing.T) {
	t.Parallel()
	for _, full := range []string{"0", "1"} {
		t.Run("maxmemory "+full, func(t *testing.T) {
			t.Parallel()
			const timeout = 8000 // ms, of a waiter of Redisson
			s := redistest.Fresh(t, "--maxmemory-policy", "noeviction")
			rdb, name := s.Client(t), redistest.Name(t)
			queue, deadlines := "redisson_lock_queue:{"+name+"}", "redisson_lock_timeout:{"+name+"}"
			join := func(id string, score float64) {
				require.NoError(t, rdb.RPush(t.Context(), queue, id).Err())
				require.NoError(t, rdb.ZAdd(t.Context(), deadlines, redis.Z{Score: score, Member: id}).Err())
			}
			l := fixture.NewClient(t, rdb).FairLock(name)
			hold := fixture.Acquire(t, t.Context(), l)
			join("java:1", float64(time.Now().Add(time.Minute).UnixMilli()))
			ctx, cancel := context.WithCancel(t.Context())
			leaving := fixture.StartAcquire(ctx, l)
			fixture.AwaitFair(t, l, 2)
			tail := rdb.ZRangeWithScores(t.Context(), deadlines, -1, -1).Val()[0]
			join("java:2", tail.Score+timeout)
			require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", full).Err())
			cancel()
			require.ErrorIs(t, fixture.Await(t, leaving).Err, context.Canceled)
			fixture.AwaitFair(t, l, 2)
			left := rdb.ZRangeWithScores(t.Context(), deadlines, 0, -1).Val()
			require.Len(t, left, 2)
			require.InDelta(t, timeout, left[1].Score-left[0].Score, 3000, "and not as much as the Go waiter had")
			require.Equal(t, []string{"java:1", "java:2"}, rdb.LRange(t.Context(), queue, 0, -1).Val())
			fixture.Release(t, hold)
		})
	}
}

// A Redis that is out of memory refuses new waiters at once. Earlier waiters stay queued, acquire,
// and can leave.
func TestFairLockFullMemoryRefusesNewWaiters(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t, "--maxmemory-policy", "noeviction")
	name := redistest.Name(t)
	l := fixture.NewClient(t, s.Client(t)).FairLock(name)
	hold := fixture.Acquire(t, t.Context(), l)
	ctx, cancel := context.WithCancel(t.Context())
	leaving := fixture.StartAcquire(ctx, l)
	fixture.AwaitFair(t, l, 1)
	waiting := fixture.StartAcquire(t.Context(), l, primitives.WithWaiterTimeout(2*time.Second))
	fixture.AwaitFair(t, l, 2)
	rdb := s.Client(t)
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	require.ErrorContains(t, fixture.ErrOf(l.Acquire(t.Context())), "OOM")
	cancel()
	require.ErrorIs(t, fixture.Await(t, leaving).Err, context.Canceled)
	fixture.AwaitFair(t, l, 1)
	time.Sleep(2500 * time.Millisecond) // longer than the waiter timeout, so it needs heartbeats
	require.Len(t, fixture.FairWaiters(t, l), 1)
	requireSameMembers(t, rdb, name)
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "0").Err())
	fixture.Release(t, hold)
	fixture.Release(t, fixture.Await(t, waiting).Hold)
	fixture.RequireClean(t, s, name)
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
		l := fixture.NewClient(t, s.Client(t, func(o *redis.Options) { o.Username, o.Password = user, "pw" })).FairLock(name)
		hold := fixture.Acquire(t, t.Context(), fixture.NewClient(t, admin).FairLock(name))
		waiting := fixture.StartAcquire(t.Context(), l)
		if user == "mute" {
			require.ErrorContains(t, fixture.Await(t, waiting).Err, "NOPERM")
			require.Empty(t, fixture.FairWaiters(t, fixture.NewClient(t, admin).FairLock(name)))
			fixture.Release(t, hold)
			continue
		}
		fixture.AwaitFair(t, l, 1)
		fixture.Release(t, hold)
		fixture.Release(t, fixture.Await(t, waiting).Hold)
	}
	fixture.RequireClean(t, s, name)
}

// A client that may no longer publish cannot tell its waiter that the lock is free. The waiter
// looks by itself, and does not acquire what it could not release.
func TestFairWaiterThatMayNoLongerPublishDoesNotAcquire(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	name := redistest.Name(t)
	s.SetUser(t, "user", "on", ">"+redistest.Password, "+@all", "~*", "&*")
	l := fixture.NewClient(t, s.As("user").Client(t)).FairLock(name)
	hold := fixture.Acquire(t, t.Context(), l)
	waiting := fixture.StartAcquire(t.Context(), l, primitives.WithOwner("o"))
	fixture.AwaitFair(t, l, 1)
	s.SetUser(t, "user", "resetchannels")
	for _, err := range []error{hold.Release(t.Context()), fixture.Await(t, waiting).Err} {
		require.Error(t, err)
		require.Regexp(t, deniedError, err.Error())
	}
	s.SetUser(t, "user", "allchannels")
	fixture.RequireClean(t, s, name)
}

// The lease of a holder ends in 292 years, the longest duration there is. Waiters look once a
// second all the same.
func TestEndlessLeaseOfAHolderCostsNoMoreLooks(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds.Locks() {
		fixture.RunBubble(t, kind.Name, func(t *testing.T, b *fixture.BubbleTest) {
			hold := fixture.Acquire(t, t.Context(), kind.Rival(fixture.NewClient(t, b.S.Client(t)), "l"))
			longest := int64(math.MaxInt64 / time.Millisecond)
			require.NoError(t, b.S.Client(t).Do(t.Context(), "pexpire", "l", longest).Err())
			b.P.Record()
			waiting := fixture.StartAcquire(t.Context(), kind.Open(b.C, "l"))
			time.Sleep(10 * time.Second)
			require.Less(t, b.Tries(), 15)
			require.Greater(t, b.Tries(), 5)
			fixture.Release(t, hold)
			fixture.Release(t, fixture.AwaitHold(t, waiting))
		})
	}
}

// ReleaseID, ForceRelease and the release of an adopted hold hand off to the next waiter.
// Acquisitions with the same WithOwner id wait in one queue entry and acquire together.
func TestFairLockIDs(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		var seen fixture.Recorder
		l := fixture.NewClient(t, s.Client(t), seen.Option()).FairLock(name)
		startWaiter := func() <-chan fixture.Result {
			w := fixture.StartAcquire(t.Context(), l)
			fixture.AwaitFair(t, l, 1)
			return w
		}
		hold := fixture.Acquire(t, t.Context(), l)
		w := startWaiter()
		require.NoError(t, l.ReleaseID(t.Context(), hold.ID()))
		hold = fixture.Await(t, w).Hold
		w = startWaiter()
		adopted := fixture.Adopt(t, l, hold.ID())
		inner := fixture.Acquire(t, adopted.Context(), l)
		require.Equal(t, 2, inner.Depth())
		fixture.Release(t, inner, adopted)
		fixture.Await(t, w)
		w = startWaiter()
		held := fixture.ForceRelease(t, l)
		require.True(t, held)
		hold = fixture.Await(t, w).Hold
		require.ErrorIs(t, fixture.ErrOf(l.TryAcquire(t.Context())), primitives.ErrNotAcquired)
		require.Empty(t, fixture.FairWaiters(t, l), "TryAcquire does not queue")

		own := func() (*primitives.Hold, error) { return l.Acquire(t.Context(), primitives.WithOwner("o")) }
		before := len(seen.All(primitives.EventWait))
		first := fixture.Start(own)
		fixture.AwaitFair(t, l, 1)
		ctx, cancel := context.WithCancel(t.Context())
		cancelled := fixture.StartAcquire(ctx, l, primitives.WithOwner("o"))
		second := fixture.Start(own)
		redistest.WaitFor(t, fixture.Soon, func() bool {
			return len(seen.All(primitives.EventWait)) == before+3
		}, "all three wait")
		cancel()
		require.Error(t, fixture.Await(t, cancelled).Err)
		require.Equal(t, []string{"o"}, fixture.FairWaiters(t, l), "the others still share the queue entry")
		began := time.Now()
		fixture.Release(t, hold)
		one, two := fixture.Await(t, first).Hold, fixture.Await(t, second).Hold
		require.Less(t, time.Since(began), fixture.SlowPoll)
		require.Equal(t, map[string]string{"o": "2"}, fixture.Fields(t, s, name))
		fixture.Release(t, one, two)
		fixture.RequireClean(t, s, name)
	})
}

// On a cluster with sharded pub/sub, waiters of two clients acquire in order.
func TestFairLockOnACluster(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t)
	name := redistest.Name(t)
	one := fixture.NewClient(t, servers.ClusterClient(t), primitives.WithShardedPubSub(true)).FairLock(name)
	two := fixture.NewClient(t, servers.ClusterClient(t), primitives.WithShardedPubSub(true)).FairLock(name)
	hold := fixture.Acquire(t, t.Context(), one)
	var order []int
	var wg sync.WaitGroup
	for i := range 20 {
		l := one
		if i%3 == 0 {
			l = two
		}
		wg.Go(func() {
			assert.NoError(t, l.Do(context.Background(), func(context.Context) error { order = append(order, i); return nil }))
		})
		fixture.AwaitFair(t, one, i+1)
	}
	began := time.Now()
	fixture.Release(t, hold)
	wg.Wait()
	require.IsIncreasing(t, order)
	require.Less(t, time.Since(began), 10*time.Second, "without messages, twenty slow polls take 20 s")
	for _, s := range servers.Nodes() {
		fixture.RequireClean(t, s, name)
	}
}

// rolledBack reports whether Redis remembers that the acquisition has ended. acquisition is one of
// its recorded commands.
func rolledBack(t testing.TB, rdb *redis.Client, acquisition redistest.Command) bool {
	memory := acquisition.Args[5]
	return rdb.Exists(t.Context(), memory).Val() == 1
}

// The first attempt of an acquisition gets no answer and reaches Redis after the acquisition has
// ended. It neither takes the lock nor joins the queue, whether or not a later attempt was
// answered.
func TestFairLockLateAttemptTakesNothing(t *testing.T) {
	t.Parallel()
	acquireScript := scripts.Load("fairlock/acquire")
	owner := primitives.WithOwner("o")
	for _, tt := range []struct {
		name  string
		opts  []primitives.Option
		held  bool // another client holds the lock
		waits bool // a later attempt is answered, and the waiter is cancelled
	}{
		{name: "no attempt was answered", opts: nil},
		{name: "no attempt was answered, shared id", opts: []primitives.Option{owner}},
		{name: "no attempt was answered, lock held", held: true},
		{name: "no attempt was answered, lock held, shared id", held: true, opts: []primitives.Option{owner}},
		{name: "cancelled in the queue", held: true, waits: true},
		{name: "cancelled in the queue, shared id", held: true, waits: true, opts: []primitives.Option{owner}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				name := redistest.Name(t)
				p, rdb := s.Proxy(t), s.Client(t)
				require.NoError(t, rdb.ScriptLoad(t.Context(), acquireScript.Text()).Err())
				retries := fixture.NoRetries
				if tt.waits {
					retries = fixture.FastRetries
				}
				l := fixture.NewClient(t, p.Client(t, retries)).FairLock(name)
				other := fixture.NewClient(t, s.Client(t)).FairLock(name)
				var hold *primitives.Hold
				if tt.held {
					hold = fixture.Acquire(t, t.Context(), other)
				}
				p.Record()
				p.DropCommands(1, fixture.Script)
				ctx, cancel := context.WithCancel(t.Context())
				ended := fixture.StartAcquire(ctx, l, tt.opts...)
				if tt.waits {
					fixture.AwaitFair(t, other, 1)
					cancel()
				}
				require.Error(t, fixture.Await(t, ended).Err)
				cancel()
				late := fixture.ScriptsOf(p)[0]
				require.True(t, slices.Contains(late.Args, acquireScript.SHA()), "%v", late.Args)
				if tt.held {
					redistest.WaitFor(t, fixture.Soon, func() bool {
						return rolledBack(t, rdb, late) && len(fixture.FairWaiters(t, other)) == 0
					}, "the acquisition is rolled back")
					_ = fixture.Resend(rdb, late).Err()
					require.Empty(t, fixture.FairWaiters(t, other), "the late attempt does not queue")
					fixture.Release(t, hold)
				}
				redistest.WaitFor(t, fixture.Soon, func() bool { return rolledBack(t, rdb, late) },
					"the acquisition is rolled back")
				_ = fixture.Resend(rdb, late).Err()
				require.Empty(t, fixture.Leftovers(t, s, name), "the late attempt does not take the lock")
			})
		})
	}
}
