package primitives_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
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
)

func multiAllOrNone(t *testing.T, x *fixture.JointTest) {
	for i, name := range x.Names {
		single := fixture.Acquire(t, t.Context(), x.Other(t).Lock(name))
		require.ErrorIs(t, fixture.ErrOf(x.L.TryAcquire(t.Context())), primitives.ErrNotAcquired)
		want := []string{"", "", ""}
		want[i] = "1"
		x.RequireCounts(t, single.ID(), want...)
		fixture.Release(t, single)
	}
}

func multiLost(t *testing.T, x *fixture.JointTest) {
	for _, find := range []func(hold *primitives.Hold) error{
		func(hold *primitives.Hold) error { return hold.Check(t.Context()) },
		func(hold *primitives.Hold) error { return hold.Extend(t.Context(), time.Minute) },
		func(hold *primitives.Hold) error { <-hold.Context().Done(); return context.Cause(hold.Context()) },
		nil,
	} {
		before := len(x.Events.All(primitives.EventLost))
		hold := fixture.Acquire(t, t.Context(), x.L, primitives.WithWatchdog(fixture.ShortLease))
		require.NoError(t, fixture.ErrOf(x.C.Lock(x.Names[1]).ForceRelease(t.Context())))
		if find != nil {
			require.ErrorIs(t, find(hold), primitives.ErrLost)
			require.ErrorIs(t, context.Cause(hold.Context()), primitives.ErrLost)
			require.False(t, hold.ValidUntil().IsZero(), "a lost hold keeps the end of its validity")
			require.Nil(t, x.L.HoldFrom(hold.Context()))
		}
		require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
		x.RequireCounts(t, "", "", "", "") // Release has freed the other members
		require.ErrorIs(t, context.Cause(hold.Context()), primitives.ErrLost)
		require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrReleased)
		redistest.WaitFor(t, fixture.Soon, func() bool {
			return len(x.Events.All(primitives.EventLost)) > before
		}, "the loss is reported")
		lost := x.Events.All(primitives.EventLost)
		require.Len(t, lost, before+1, "reported once")
		require.Equal(t, "multi", lost[before].Lock)
	}
}

func multiValidity(t *testing.T, x *fixture.JointTest) {
	locks := x.Locks(x.C)
	locks[2] = x.C.Lock(x.Names[0], primitives.WithLease(3*time.Second))
	hold := fixture.Acquire(t, t.Context(), x.Join(locks))
	require.LessOrEqual(t, time.Until(hold.ValidUntil()), 3*time.Second)
	require.NoError(t, hold.Extend(t.Context(), time.Minute))
	require.Greater(t, time.Until(hold.ValidUntil()), 30*time.Second)
	fixture.Release(t, hold)
}

func multiExtend(t *testing.T, x *fixture.JointTest) {
	hold := x.Acquire(t, t.Context())
	require.NoError(t, fixture.ErrOf(x.C.Lock(x.Names[2]).ForceRelease(t.Context())))
	other := fixture.Acquire(t, t.Context(), x.Other(t).Lock(x.Names[2]), primitives.WithLease(5*time.Second))
	require.ErrorIs(t, hold.Extend(t.Context(), time.Hour), primitives.ErrLost)
	require.Less(t, x.S.Client(t).PTTL(t.Context(), x.Names[2]).Val(), 6*time.Second)
	require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
	require.NoError(t, other.Check(t.Context()))
	fixture.Release(t, other)
}

func multiLeakedLost(t *testing.T, x *fixture.JointTest) {
	c := x.Other(t)
	func() {
		hold, err := x.On(c).Acquire(t.Context()) // the fixture's Acquire keeps a reference
		require.NoError(t, err)
		require.NoError(t, fixture.ErrOf(c.Lock(x.Names[0]).ForceRelease(t.Context())))
		require.ErrorIs(t, hold.Check(t.Context()), primitives.ErrLost)
	}()
	// Close waits for holds that are still referenced.
	closed := fixture.Go(func() error { return c.Close(context.Background()) })
	redistest.WaitFor(t, fixture.Soon, func() bool {
		runtime.GC()
		return len(closed) > 0
	}, "Close returns once the hold is collected")
	require.NoError(t, <-closed)
	x.S.Client(t).Del(t.Context(), x.Names...)
}

func multiCloseOther(t *testing.T, x *fixture.JointTest) {
	other := x.Other(t)
	l := x.Join([]*primitives.Lock{x.C.Lock(x.Names[0]), other.Lock(x.Names[1])})
	hold := fixture.Acquire(t, t.Context(), l)
	fixture.CloseNow(other)
	fixture.RequireEnds(t, hold.Context(), primitives.ErrLost)
	require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
	require.Empty(t, fixture.Fields(t, x.S, x.Names[0]))
	require.NotEmpty(t, fixture.Fields(t, x.S, x.Names[1]), "the critical section may still run")
	require.ErrorIs(t, fixture.ErrOf(l.Acquire(t.Context())), primitives.ErrClosed)
	require.NoError(t, x.C.Lock(x.Names[1]).ReleaseID(t.Context(), hold.ID()))
}

// Whoever nests in a member gets the id of the joint hold, and each member keeps its own count.
func multiCounts(t *testing.T, x *fixture.JointTest) {
	hold := x.Acquire(t, t.Context())
	member := fixture.Acquire(t, hold.Context(), x.C.Lock(x.Names[1]))
	x.RequireCounts(t, hold.ID(), "1", "2", "1")
	again := x.Acquire(t, member.Context())
	x.RequireCounts(t, hold.ID(), "2", "3", "2")
	fixture.Release(t, hold)
	x.RequireCounts(t, hold.ID(), "1", "2", "1")
	fixture.Release(t, again)
	x.RequireCounts(t, hold.ID(), "", "1", "")
	require.NoError(t, member.Check(t.Context()))
	fixture.Release(t, member)
	x.RequireCounts(t, hold.ID(), "", "", "")
}

// A shared id that equals a multilock's keeps its count when the multilock is released.
func multiSharedCount(t *testing.T, x *fixture.JointTest) {
	hold := x.Acquire(t, t.Context())
	shared := fixture.Acquire(t, t.Context(), x.Other(t).Lock(x.Names[1]), primitives.WithOwner(hold.ID()))
	x.RequireCounts(t, hold.ID(), "1", "2", "1")
	fixture.Release(t, hold)
	x.RequireCounts(t, hold.ID(), "", "1", "")
	fixture.Release(t, shared)
}

// A member's key has another type, or data of another program. The error says so, even if another
// member is busy. Nothing is taken or changed.
func multiForeign(t *testing.T, x *fixture.JointTest) {
	for i, name := range x.Names {
		require.NoError(t, x.Rdb.Set(t.Context(), name, "text", 0).Err())
		err := fixture.ErrOf(x.L.Acquire(t.Context(), primitives.WithWait(fixture.Soon)))
		require.ErrorContains(t, err, fmt.Sprintf("key %q holds a string", name))
		require.NotErrorIs(t, err, primitives.ErrNotAcquired)
		require.NoError(t, x.Rdb.Del(t.Context(), name).Err())
		require.NoError(t, x.Rdb.HSet(t.Context(), name, "name", "Ann").Err())
		busy := fixture.Acquire(t, t.Context(), x.Other(t).Lock(x.Names[(i+1)%3]))
		require.ErrorIs(t, fixture.ErrOf(x.L.Acquire(t.Context(), primitives.WithWait(fixture.Soon))), primitives.ErrForeign)
		fixture.Release(t, busy)
		require.Equal(t, map[string]string{"name": "Ann"}, fixture.Fields(t, x.S, name))
		require.NoError(t, x.Rdb.Del(t.Context(), name).Err())
		x.RequireCounts(t, "", "", "", "")
	}
}

// An operator deletes a member, or another program overwrites it. Release frees the others, and
// says that the lock was lost.
func multiLostMember(t *testing.T, x *fixture.JointTest) {
	lose := []func(name string) error{
		func(name string) error { return x.Rdb.Del(t.Context(), name).Err() },
		func(name string) error { return x.Rdb.Set(t.Context(), name, "text", 0).Err() },
	}
	lost := 0
	for _, lose := range lose {
		for _, name := range x.Names {
			hold := x.Acquire(t, t.Context())
			require.NoError(t, lose(name))
			require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
			loss, ok := errors.AsType[*primitives.LossError](context.Cause(hold.Context()))
			require.True(t, ok)
			require.Equal(t, primitives.LossMembers, loss.Reason)
			lost++
			require.Len(t, x.Events.All(primitives.EventLost), lost)
			require.NoError(t, x.Rdb.Del(t.Context(), name).Err())
			x.RequireCounts(t, "", "", "", "")
		}
	}
}

// A waiter holds nothing, whichever member is busy.
func multiWaits(t *testing.T, x *fixture.JointTest) {
	for i, name := range x.Names {
		busy := fixture.Acquire(t, t.Context(), x.Other(t).Lock(name))
		want := []string{"", "", ""}
		want[i] = "1"
		waiting := fixture.StartAcquire(t.Context(), x.L)
		fixture.AwaitWaiters(t, x.C, 1)
		for range 20 {
			x.RequireCounts(t, busy.ID(), want...)
		}
		fixture.Release(t, busy)
		hold := fixture.AwaitHold(t, waiting)
		x.RequireCounts(t, hold.ID(), "1", "1", "1")
		fixture.Release(t, hold)
	}
}

// A member that lingers on the same client, or on another one, is given up for a multilock.
func multiLinger(t *testing.T, x *fixture.JointTest) {
	use := func(c *primitives.Client) {
		redistest.WaitFor(t, fixture.Soon, func() bool { // a busy machine may subscribe late
			fixture.Release(t, fixture.Acquire(t, t.Context(), c.Lock(x.Names[1], primitives.WithLinger(time.Hour))))
			return len(fixture.Fields(t, x.S, x.Names[1])) > 0
		}, "it lingers")
	}
	use(x.C)
	fixture.Release(t, fixture.TryAcquire(t, t.Context(), x.L))
	use(x.Other(t))
	require.ErrorIs(t, fixture.ErrOf(x.L.TryAcquire(t.Context())), primitives.ErrNotAcquired)
	fixture.Release(t, fixture.Acquire(t, t.Context(), x.L, primitives.WithWait(fixture.Soon)))
	// It is in use when the multilock asks.
	busy := fixture.Acquire(t, t.Context(), x.C.Lock(x.Names[1], primitives.WithLinger(time.Hour)))
	waiting := fixture.StartAcquire(t.Context(), x.L)
	fixture.AwaitWaiters(t, x.C, 1)
	fixture.Release(t, busy)
	fixture.Release(t, fixture.AwaitHold(t, waiting))
}

// The error of an acquisition that gives up names the member that was busy, and its holder.
func multiBusyMember(t *testing.T, x *fixture.JointTest) {
	busy := fixture.Acquire(t, t.Context(), x.Other(t).Lock(x.Names[1]))
	for _, wait := range []time.Duration{0, 300 * time.Millisecond} {
		err := fixture.ErrOf(x.L.Acquire(t.Context(), primitives.WithWait(wait)))
		require.ErrorIs(t, err, primitives.ErrNotAcquired)
		require.NotErrorIs(t, err, primitives.ErrUnavailable)
		require.ErrorContains(t, err, fmt.Sprintf("(lock %q)", x.Names[1]))
		require.Regexp(t, "not acquired: held by "+busy.ID()+`( of \S+)? for another `, err.Error())
	}
	fixture.Release(t, busy)
}

// The lease of the first member nearly expires while the second is awaited. The attempt starts
// again.
func TestClockMultiLockStartsAgainBeforeALeaseEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := fixture.OnJoint(t, redistest.Embedded(t), "multi")
		blocked := fixture.Acquire(t, t.Context(), x.Other(t).Lock(x.Names[1]))
		waiting := fixture.StartAcquire(t.Context(), x.L, primitives.WithLease(600*time.Millisecond))
		time.Sleep(time.Second)
		fixture.Release(t, blocked)
		r := <-waiting
		require.NoError(t, r.Err)
		require.Greater(t, r.Hold.ValidUntil().Sub(r.At), 500*time.Millisecond)
		fixture.Release(t, r.Hold)
	})
}

// TestMultiLockMakesProgressInAnyOrder has clients acquire 2 to 10 of 10 locks in random order. One
// client acquires two of them one by one, against the order of multilocks. All of them finish.
func TestMultiLockMakesProgressInAnyOrder(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	base, clients, each := redistest.Name(t), 10, redistest.Scaled(s, 100)
	name := func(i int) string { return base + "-" + strconv.Itoa(i) }
	counters := make([]int, 10)
	want := make([]int, 10)
	var mu sync.Mutex // guards want
	var wg sync.WaitGroup
	began := time.Now()
	for range clients {
		c := fixture.NewClient(t, s.Client(t))
		wg.Go(func() {
			for range each {
				chosen := rand.Perm(10)[:2+rand.IntN(9)]
				locks := make([]*primitives.Lock, len(chosen))
				for i, m := range chosen {
					locks[i] = c.Lock(name(m))
				}
				if err := primitives.NewMultiLock(locks).Do(context.Background(), func(context.Context) error {
					for _, m := range chosen {
						counters[m]++
					}
					return nil
				}); err != nil {
					t.Error(err)
				}
				mu.Lock()
				for _, m := range chosen {
					want[m]++
				}
				mu.Unlock()
			}
		})
	}
	rival := fixture.NewClient(t, s.Client(t))
	wg.Go(func() { // may deadlock with a multilock until that one backs off
		for range each / 50 {
			err := rival.Lock(name(9)).Do(context.Background(), func(context.Context) error {
				return rival.Lock(name(0)).Do(context.Background(), func(context.Context) error { return nil })
			})
			assert.NoError(t, err)
		}
	})
	wg.Wait()
	t.Logf("%d clients, %d acquisitions each: %v", clients, each, time.Since(began))
	require.Equal(t, want, counters)
	fixture.RequireClean(t, s, base)
}

// Waiters for one member, on the same client and on another one, are woken by the release of a
// multilock; and so are multilocks by that of a member.
func TestMultiLockWakesWaitersForItsMembers(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		c, other := fixture.NewClient(t, s.Client(t)), fixture.NewClient(t, s.Client(t))
		for range redistest.Scaled(s, 30) {
			hold := fixture.Acquire(t, t.Context(), primitives.NewMultiLock(kinds.Members(c, name, 3)))
			var waiting []<-chan fixture.Result
			for i := range 3 {
				for _, by := range []*primitives.Client{c, other} {
					waiting = append(waiting, fixture.StartAcquire(t.Context(), kinds.Members(by, name, 3)[i]))
				}
			}
			fixture.AwaitWaiters(t, c, 3)
			fixture.AwaitWaiters(t, other, 3)
			multi := fixture.StartAcquire(t.Context(), primitives.NewMultiLock(kinds.Members(other, name, 3)))
			fixture.AwaitWaiters(t, other, 4)
			began := time.Now()
			fixture.Release(t, hold)
			for _, w := range append(waiting, multi) {
				go func() {
					if r := <-w; r.Err == nil {
						_ = r.Hold.Release(context.Background())
					} else {
						t.Error(r.Err)
					}
				}()
			}
			fixture.AwaitWaiters(t, c, 0)
			fixture.AwaitWaiters(t, other, 0)
			require.Less(t, time.Since(began), fixture.SlowPoll)
		}
	})
}

// Multilocks that overlap, plain locks of their members and both ways to acquire exclude each
// other, without a deadlock.
func TestMultiLocksThatOverlapExcludeEachOther(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		held := map[string]*int{} // how often each lock was held
		for _, m := range "abcd" {
			held[name+string(m)] = new(int) // guarded by that lock
		}
		clients := []*primitives.Client{fixture.NewClient(t, s.Client(t)), fixture.NewClient(t, s.Client(t))}
		n := redistest.Scaled(s, 200)
		fixture.Concurrently(8, func(i int) {
			for j := range n {
				if !assert.NoError(t, holdSubset(t.Context(), clients[i%2], name, i, j, held)) {
					return
				}
			}
		})
		total := 0
		for _, k := range held {
			total += *k
		}
		require.Greater(t, total, 8*n)
		fixture.RequireClean(t, s, name)
	})
}

// holdSubset holds some of the locks a to d, with options and a nested hold that depend on i and j.
func holdSubset(ctx context.Context, c *primitives.Client, name string, i, j int, held map[string]*int) error {
	var locks []*primitives.Lock
	for k, m := range "abcd" {
		if ((i+j)%15+1)>>k&1 == 1 || k == j%4 {
			locks = append(locks, c.Lock(name+string(m)))
		}
	}
	l := primitives.NewMultiLock(locks)
	var opts []primitives.Option
	switch {
	case len(locks) == 1:
		l = locks[0]
	case j%7 == 0:
		opts = append(opts, primitives.WithPolling(time.Millisecond, 5*time.Millisecond)) // one after another
	case j%7 == 1:
		opts = append(opts, primitives.WithOwner(fmt.Sprint("owner", i, ".", j)))
	}
	hold, err := l.Acquire(ctx, opts...)
	if err != nil {
		return err
	}
	for _, l := range locks {
		*held[l.Name()]++
	}
	if j%5 > 0 {
		return hold.Release(ctx)
	}
	inner, err := locks[0].Acquire(hold.Context())
	if err != nil {
		return err
	}
	if j%10 == 0 {
		hold, inner = inner, hold
	}
	return errors.Join(inner.Release(ctx), hold.Release(ctx))
}

// The tests in this file limit the commands of multilocks, whose members one command may acquire.

// multiWays are multilocks of both kinds: acquired as a whole, and one member after another.
var multiWays = []struct {
	name    string
	members func(c *primitives.Client, name string) []*primitives.Lock
	whole   bool
}{
	{"plain locks", func(c *primitives.Client, name string) []*primitives.Lock { return kinds.Members(c, name, 3) }, true},
	{"one plain lock", func(c *primitives.Client, name string) []*primitives.Lock {
		return kinds.Members(c, name, 1)
	}, true},
	{"a fenced lock", func(c *primitives.Client, name string) []*primitives.Lock {
		return append(kinds.Members(c, name, 2), c.FencedLock(name+"-fenced"))
	}, false},
	{"a lock with a lease of its own", func(c *primitives.Client, name string) []*primitives.Lock {
		return append(kinds.Members(c, name, 2), c.Lock(name+"-lease", primitives.WithLease(time.Minute)))
	}, false},
	{"a lock that polls", func(c *primitives.Client, name string) []*primitives.Lock {
		return append(kinds.Members(c, name, 2), c.Lock(name+"-polls", primitives.WithPolling(time.Millisecond, time.Second)))
	}, false},
	{"a name with a comma", func(c *primitives.Client, name string) []*primitives.Lock {
		return append(kinds.Members(c, name, 2), c.Lock(name+"-,"))
	}, false},
}

// One command acquires all members, and one releases them, with and without contention.
func TestCountsMultiLock(t *testing.T) {
	for _, way := range multiWays {
		t.Run(way.name, func(t *testing.T) {
			s := redistest.Fresh(t)
			c := fixture.NewClient(t, s.Client(t))
			locks := way.members(c, "l")
			l := primitives.NewMultiLock(locks)
			pair := func() { fixture.Release(t, fixture.Acquire(t, t.Context(), l)) }
			pair() // loads the scripts
			want := 2 * len(locks)
			if way.whole {
				want = 2
			}
			require.InDelta(t, 10*want, sent(t, s, func() {
				for range 10 {
					pair()
				}
			}), 0)
		})
	}
}

// The exact costs of the usual case: three free names. Inside the scripts: EXISTS, and for each
// name HSET and PEXPIRE; then EXISTS, and for each name HDEL and PUBLISH.
func TestCountsMultiLockOfThree(t *testing.T) {
	s := redistest.Fresh(t)
	c := fixture.NewClient(t, s.Client(t))
	l := primitives.NewMultiLock(kinds.Members(c, "l", 3))
	pair := func() { // without the fixture, which allocates, too
		hold, err := l.Acquire(t.Context())
		if err == nil {
			err = hold.Release(t.Context())
		}
		require.NoError(t, err)
	}
	pair()
	require.EqualValues(t, 1+6+1+6, total(insideScripts(t, s, pair)))
	if !fixture.RaceEnabled {
		require.LessOrEqual(t, leastAllocs(100, pair), 54.0)
	}
}

// A multilock of many members costs as many renewals as one of a single member.
func TestClockMultiLockIsRenewedByOneCommand(t *testing.T) {
	t.Parallel()
	var renewals [2]int
	for i, n := range []int{1, 50} {
		synctest.Test(t, func(t *testing.T) {
			p := redistest.Embedded(t).Proxy(t)
			l := primitives.NewMultiLock(kinds.Members(fixture.NewClient(t, p.Client(t), primitives.WithClientName("")), "l", n))
			hold := fixture.Acquire(t, t.Context(), l)
			time.Sleep(5 * time.Second) // in the middle between two renewals
			p.Record()
			time.Sleep(time.Minute)
			renewals[i] = len(fixture.ScriptsOf(p))
			require.NoError(t, hold.Check(t.Context()))
			fixture.Release(t, hold)
		})
	}
	require.Equal(t, renewals[0], renewals[1])
	require.InDelta(t, 6, renewals[0], 1)
}

// The release of another member than the busy one wakes no waiter.
func TestCountsMultiLockWaitsForTheBusyMember(t *testing.T) {
	s := redistest.Fresh(t)
	c, rival := fixture.NewClient(t, s.Client(t)), fixture.NewClient(t, s.Client(t))
	names := kinds.Members(rival, "l", 3)
	busy := fixture.Acquire(t, t.Context(), names[1])
	waiting := fixture.StartAcquire(t.Context(), primitives.NewMultiLock(kinds.Members(c, "l", 3)))
	fixture.AwaitWaiters(t, c, 1)
	for i := range 3 {
		fixture.AwaitWaiter(t, s, names[i].Name())
	}
	time.Sleep(50 * time.Millisecond)
	fixture.Release(t, fixture.Acquire(t, t.Context(), names[0])) // loads the script
	const n = 50
	require.LessOrEqual(t, sent(t, s, func() {
		for range n {
			fixture.Release(t, fixture.Acquire(t, t.Context(), names[0]))
			fixture.Release(t, fixture.Acquire(t, t.Context(), names[2]))
		}
	}), float64(4*n+3), "the waiter polls once a second")
	fixture.Release(t, busy)
	fixture.Release(t, fixture.AwaitHold(t, waiting))
}

// On a cluster, members of one slot are acquired by one command, and others by one each.
func TestMultiLockOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t)
	name := redistest.Name(t)
	for _, tt := range []struct {
		name  string
		names []string
		want  int64
	}{
		{"one slot", []string{"{" + name + "}a", "{" + name + "}b", "{" + name + "}c"}, 2},
		{"several slots", []string{name + "a", name + "b", name + "c"}, 6},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sent := fixture.CountingHook{Only: []string{"eval", "evalsha"}}
			c := fixture.NewClient(t, cluster.ClusterClient(t, func(o *redis.ClusterOptions) {
				o.NewClient = func(opt *redis.Options) *redis.Client {
					rdb := redis.NewClient(opt)
					rdb.AddHook(&sent)
					return rdb
				}
			}))
			var locks []*primitives.Lock
			for _, n := range tt.names {
				locks = append(locks, c.Lock(n))
			}
			l := primitives.NewMultiLock(locks)
			fixture.Release(t, fixture.Acquire(t, t.Context(), l)) // loads the scripts
			sent.N.Store(0)
			hold := fixture.Acquire(t, t.Context(), l)
			rival := fixture.NewClient(t, cluster.ClusterClient(t)).Lock(tt.names[2])
			require.ErrorIs(t, fixture.ErrOf(rival.TryAcquire(t.Context())), primitives.ErrNotAcquired)
			fixture.Release(t, hold)
			require.Equal(t, tt.want, sent.N.Load())
		})
	}
}
