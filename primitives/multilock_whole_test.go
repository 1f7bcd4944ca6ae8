package primitives_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/fixture"
	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// Multi locks whose members are acquired by one command. The tests of joint locks run with such ones, too; those
// in this file look at what is different.

// multiWays are multi locks of both kinds: acquired as a whole, and one member after another.
var multiWays = []struct {
	name    string
	members func(c *primitives.Client, name string) []*primitives.Lock
	whole   bool
}{
	{"plain locks", func(c *primitives.Client, name string) []*primitives.Lock { return members(c, name, 3) }, true},
	{"one plain lock", func(c *primitives.Client, name string) []*primitives.Lock { return members(c, name, 1) }, true},
	{"a fenced lock", func(c *primitives.Client, name string) []*primitives.Lock {
		return append(members(c, name, 2), c.FencedLock(name+"-fenced"))
	}, false},
	{"a lock with a lease of its own", func(c *primitives.Client, name string) []*primitives.Lock {
		return append(members(c, name, 2), c.Lock(name+"-lease", primitives.WithLease(time.Minute)))
	}, false},
	{"a lock that polls", func(c *primitives.Client, name string) []*primitives.Lock {
		return append(members(c, name, 2), c.Lock(name+"-polls", primitives.WithPolling(time.Millisecond, time.Second)))
	}, false},
	{"a name with a comma", func(c *primitives.Client, name string) []*primitives.Lock {
		return append(members(c, name, 2), c.Lock(name+"-,"))
	}, false},
}

// One command acquires all members, and one releases them, with and without contention.
func TestCountsMultiLock(t *testing.T) {
	for _, way := range multiWays {
		t.Run(way.name, func(t *testing.T) {
			s := redistest.Fresh(t)
			c := NewClient(t, s.Client(t))
			locks := way.members(c, "l")
			l := primitives.NewMultiLock(locks)
			pair := func() { Release(t, Acquire(t, t.Context(), l)) }
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

// The exact costs of the usual case: three free names. Inside the scripts: EXISTS, and for each name HSET and PEXPIRE;
// then EXISTS, and for each name HDEL and PUBLISH.
func TestCountsMultiLockOfThree(t *testing.T) {
	s := redistest.Fresh(t)
	c := NewClient(t, s.Client(t))
	l := primitives.NewMultiLock(members(c, "l", 3))
	pair := func() { // without the fixture, which allocates, too
		hold, err := l.Acquire(t.Context())
		if err == nil {
			err = hold.Release(t.Context())
		}
		require.NoError(t, err)
	}
	pair()
	require.EqualValues(t, 1+6+1+6, insideScripts(t, s, pair))
	if !RaceEnabled {
		require.LessOrEqual(t, testing.AllocsPerRun(100, pair), 54.0)
	}
}

// A multi lock of many members costs as many renewals as one of a single member.
func TestClockMultiLockIsRenewedByOneCommand(t *testing.T) {
	t.Parallel()
	var renewals [2]int
	for i, n := range []int{1, 50} {
		synctest.Test(t, func(t *testing.T) {
			p := redistest.Embedded(t).Proxy(t)
			l := primitives.NewMultiLock(members(NewClient(t, p.Client(t), primitives.WithClientName("")), "l", n))
			hold := Acquire(t, t.Context(), l)
			time.Sleep(5 * time.Second) // in the middle between two renewals
			p.Record()
			time.Sleep(time.Minute)
			renewals[i] = len(ScriptsOf(p))
			require.NoError(t, hold.Check(t.Context()))
			Release(t, hold)
		})
	}
	require.Equal(t, renewals[0], renewals[1])
	require.InDelta(t, 6, renewals[0], 1)
}

// The release of another member than the busy one wakes no waiter.
func TestCountsMultiLockWaitsForTheBusyMember(t *testing.T) {
	s := redistest.Fresh(t)
	c, rival := NewClient(t, s.Client(t)), NewClient(t, s.Client(t))
	names := members(rival, "l", 3)
	busy := Acquire(t, t.Context(), names[1])
	waiting := Start(func() (*primitives.Hold, error) {
		return primitives.NewMultiLock(members(c, "l", 3)).Acquire(t.Context())
	})
	AwaitWaiters(t, c, 1)
	for i := range 3 {
		AwaitWaiter(t, s, names[i].Name())
	}
	time.Sleep(50 * time.Millisecond)
	Release(t, Acquire(t, t.Context(), names[0])) // loads the script
	const n = 50
	require.LessOrEqual(t, sent(t, s, func() {
		for range n {
			Release(t, Acquire(t, t.Context(), names[0]))
			Release(t, Acquire(t, t.Context(), names[2]))
		}
	}), float64(4*n+3), "the waiter polls once a second")
	Release(t, busy)
	Release(t, AwaitHold(t, waiting))
}

// A waiter holds nothing, whichever member is busy.
func TestMultiLockHoldsNothingWhileItWaits(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for i := range 3 {
			name := redistest.Name(t)
			c, rival := NewClient(t, s.Client(t)), NewClient(t, s.Client(t))
			busy := Acquire(t, t.Context(), members(rival, name, 3)[i])
			waiting := Start(func() (*primitives.Hold, error) {
				return primitives.NewMultiLock(members(c, name, 3)).Acquire(t.Context())
			})
			AwaitWaiters(t, c, 1)
			for range 20 {
				for j, m := range members(rival, name, 3) {
					if j != i {
						require.Empty(t, Fields(t, s, m.Name()))
					}
				}
				time.Sleep(time.Millisecond)
			}
			Release(t, busy)
			hold := AwaitHold(t, waiting)
			for _, m := range members(rival, name, 3) {
				require.Equal(t, map[string]string{hold.ID(): "1"}, Fields(t, s, m.Name()))
			}
			Release(t, hold)
			RequireClean(t, s, name)
		}
	})
}

// Waiters for one member, on the same client and on another one, are woken by the release of a multi lock; and so
// are multi locks by that of a member.
func TestMultiLockWakesWaitersForItsMembers(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		c, other := NewClient(t, s.Client(t)), NewClient(t, s.Client(t))
		for range redistest.Scaled(s, 30) {
			hold := Acquire(t, t.Context(), primitives.NewMultiLock(members(c, name, 3)))
			var waiting []<-chan Result
			for i := range 3 {
				for _, by := range []*primitives.Client{c, other} {
					waiting = append(waiting, Start(func() (*primitives.Hold, error) {
						return members(by, name, 3)[i].Acquire(t.Context())
					}))
				}
			}
			AwaitWaiters(t, c, 3)
			AwaitWaiters(t, other, 3)
			multi := Start(func() (*primitives.Hold, error) {
				return primitives.NewMultiLock(members(other, name, 3)).Acquire(t.Context())
			})
			AwaitWaiters(t, other, 4)
			began := time.Now()
			Release(t, hold)
			for _, w := range append(waiting, multi) {
				go func() {
					if r := <-w; r.Err == nil {
						_ = r.Hold.Release(context.Background())
					} else {
						t.Error(r.Err)
					}
				}()
			}
			AwaitWaiters(t, c, 0)
			AwaitWaiters(t, other, 0)
			require.Less(t, time.Since(began), SlowPoll)
		}
	})
}

// Multi locks that overlap, plain locks of their members and both ways to acquire exclude each other, without a
// deadlock.
func TestMultiLocksThatOverlapExcludeEachOther(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		inside := map[string]*int{}
		for _, m := range []string{"a", "b", "c", "d"} {
			inside[name+m] = new(int) // guarded by the locks
		}
		clients := []*primitives.Client{NewClient(t, s.Client(t)), NewClient(t, s.Client(t))}
		var wg sync.WaitGroup
		n := redistest.Scaled(s, 200)
		for i := range 8 {
			c := clients[i%2]
			wg.Go(func() {
				for j := range n {
					var names []string
					for k, m := range []string{"a", "b", "c", "d"} {
						if (i+j)%15+1>>k&1 == 1 || k == j%4 {
							names = append(names, name+m)
						}
					}
					var locks []*primitives.Lock
					for _, m := range names {
						locks = append(locks, c.Lock(m))
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
					hold, err := l.Acquire(t.Context(), opts...)
					if err != nil {
						t.Error(err)
						return
					}
					for _, m := range names {
						*inside[m]++
					}
					if j%5 == 0 { // nest in a member
						inner, err := c.Lock(names[0]).Acquire(hold.Context())
						if err != nil {
							t.Error(err)
							return
						}
						if j%10 == 0 {
							hold, inner = inner, hold
						}
						if err := inner.Release(t.Context()); err != nil {
							t.Error(err)
						}
					}
					if err := hold.Release(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		total := 0
		for _, k := range inside {
			total += *k
		}
		require.Greater(t, total, 8*n)
		RequireClean(t, s, name)
	})
}

// A hold that was acquired as a whole nests like others, and each member keeps its own counts.
func TestMultiLockAcquiredAsAWholeNests(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		x := OnJoint(t, s, "multi")
		hold := Acquire(t, t.Context(), x.L)
		member := Acquire(t, hold.Context(), x.C.Lock(x.Names[1]))
		x.RequireCounts(t, hold.ID(), "1", "2", "1")
		again := Acquire(t, member.Context(), x.L)
		x.RequireCounts(t, hold.ID(), "2", "3", "2")
		Release(t, hold)
		x.RequireCounts(t, hold.ID(), "1", "2", "1")
		Release(t, again)
		x.RequireCounts(t, hold.ID(), "", "1", "")
		require.NoError(t, member.Check(t.Context()))
		Release(t, member)
		x.RequireCounts(t, hold.ID(), "", "", "")
		// The other way round: the id is that of the hold of the member.
		member = Acquire(t, t.Context(), x.C.Lock(x.Names[1]))
		hold = Acquire(t, member.Context(), x.L)
		require.Equal(t, member.ID(), hold.ID())
		x.RequireCounts(t, hold.ID(), "1", "2", "1")
		Release(t, hold)
		Release(t, member)
		RequireClean(t, s, x.Base)
	})
}

// A member's key of another type, or with data of another program: an error, and nothing is taken or changed.
func TestMultiLockWithAForeignMember(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for i := range 3 {
			x := OnJoint(t, s, "multi")
			require.NoError(t, x.Rdb.Set(t.Context(), x.Names[i], "text", 0).Err())
			err := ErrOf(x.L.Acquire(t.Context(), primitives.WithWait(Soon)))
			require.ErrorContains(t, err, fmt.Sprintf("key %q holds a string", x.Names[i]))
			require.NotErrorIs(t, err, primitives.ErrNotAcquired)
			require.NoError(t, x.Rdb.Del(t.Context(), x.Names[i]).Err())
			require.NoError(t, x.Rdb.HSet(t.Context(), x.Names[i], "name", "Ann").Err())
			busy := Acquire(t, t.Context(), x.Other(t).Lock(x.Names[(i+1)%3]))
			err = ErrOf(x.L.Acquire(t.Context(), primitives.WithWait(Soon)))
			require.ErrorIs(t, err, primitives.ErrForeign, "even if another member is busy")
			Release(t, busy)
			require.Equal(t, map[string]string{"name": "Ann"}, Fields(t, s, x.Names[i]))
			require.NoError(t, x.Rdb.Del(t.Context(), x.Names[i]).Err())
			RequireClean(t, s, x.Base)
		}
	})
}

// An operator deletes a member, or another program overwrites it: Release frees the others, wakes their waiters, and
// says that the lock was lost.
func TestMultiLockReleaseOfALostMember(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, lose := range map[string]func(x *JointTest, key string) error{
			"deleted":     func(x *JointTest, key string) error { return x.Rdb.Del(t.Context(), key).Err() },
			"overwritten": func(x *JointTest, key string) error { return x.Rdb.Set(t.Context(), key, "text", 0).Err() },
		} {
			for i := range 3 {
				x := OnJoint(t, s, "multi")
				hold := Acquire(t, t.Context(), x.L)
				require.NoError(t, lose(x, x.Names[i]))
				require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost, name)
				require.ErrorIs(t, context.Cause(hold.Context()), primitives.ErrLost)
				require.Len(t, x.Events.All(primitives.EventLost), 1)
				require.Equal(t, primitives.LossMembers, lossOf(t, context.Cause(hold.Context())).Reason)
				require.NoError(t, x.Rdb.Del(t.Context(), x.Names[i]).Err())
				RequireClean(t, s, x.Base)
			}
		}
	})
}

func lossOf(t *testing.T, err error) *primitives.LossError {
	t.Helper()
	var loss *primitives.LossError
	require.ErrorAs(t, err, &loss)
	return loss
}

// On a full Redis, acquisitions fail and take nothing, and a release works.
func TestMultiLockOnAFullRedis(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	x := OnJoint(t, s, "multi")
	hold := Acquire(t, t.Context(), x.L)
	nested := Acquire(t, hold.Context(), x.L)
	Release(t, nested)
	require.NoError(t, x.Rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	Release(t, hold)
	x.RequireCounts(t, "", "", "", "")
	require.ErrorContains(t, ErrOf(x.L.Acquire(t.Context())), "OOM")
	x.RequireCounts(t, "", "", "", "")
}

// The outcome of each command is the same if its reply is lost.
func TestMultiLockRepliesAreLost(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := s.Proxy(t)
		name, events := redistest.Name(t), &Recorder{}
		c := NewClient(t, p.Client(t, FastRetries), events.Option())
		l := primitives.NewMultiLock(members(c, name, 3))
		for range redistest.Scaled(s, 20) {
			p.DropReplies(1, Script)
			hold := Acquire(t, t.Context(), l)
			for _, m := range members(c, name, 3) {
				require.Equal(t, map[string]string{hold.ID(): "1"}, Fields(t, s, m.Name()))
			}
			p.DropReplies(1, Script)
			Release(t, hold)
			RequireClean(t, s, name)
			// Without doubt about the acquisition: one command releases all members.
			hold = Acquire(t, t.Context(), l)
			p.DropReplies(1, Script)
			Release(t, hold)
			RequireClean(t, s, name)
		}
		require.Empty(t, events.All(primitives.EventLost))
	})
}

// A shared id that equals a multi lock's keeps its count when the multi lock is released.
func TestMultiLockReleaseKeepsSharedCounts(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		x := OnJoint(t, s, "multi")
		hold := Acquire(t, t.Context(), x.L)
		shared := Acquire(t, t.Context(), x.Other(t).Lock(x.Names[1]), primitives.WithOwner(hold.ID()))
		x.RequireCounts(t, hold.ID(), "1", "2", "1")
		Release(t, hold)
		x.RequireCounts(t, hold.ID(), "", "1", "")
		Release(t, shared)
		RequireClean(t, s, x.Base)
	})
}

// On a cluster, members of one slot are acquired by one command, and others by one each.
func TestMultiLockOnACluster(t *testing.T) {
	t.Parallel()
	k := redistest.Cluster(t)
	name := redistest.Name(t)
	for _, tt := range []struct {
		name  string
		names [3]string
		want  int
	}{
		{"one slot", [3]string{"{" + name + "}a", "{" + name + "}b", "{" + name + "}c"}, 2},
		{"several slots", [3]string{name + "a", name + "b", name + "c"}, 6},
	} {
		t.Run(tt.name, func(t *testing.T) {
			seen := 0
			c := NewClient(t, k.ClusterClient(t, func(o *redis.ClusterOptions) {
				o.NewClient = func(opt *redis.Options) *redis.Client {
					rdb := redis.NewClient(opt)
					rdb.AddHook(counting{&seen})
					return rdb
				}
			}))
			locks := func(c *primitives.Client) (list []*primitives.Lock) {
				for _, n := range tt.names {
					list = append(list, c.Lock(n))
				}
				return list
			}
			l := primitives.NewMultiLock(locks(c))
			Release(t, Acquire(t, t.Context(), l))
			countingMu.Lock()
			seen = 0
			countingMu.Unlock()
			hold := Acquire(t, t.Context(), l)
			require.ErrorIs(t, ErrOf(locks(NewClient(t, k.ClusterClient(t)))[2].TryAcquire(t.Context())),
				primitives.ErrNotAcquired)
			Release(t, hold)
			countingMu.Lock()
			defer countingMu.Unlock()
			require.Equal(t, tt.want, seen)
		})
	}
}

var countingMu sync.Mutex

// counting counts scripts.
type counting struct{ n *int }

func (counting) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c counting) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.count(cmd)
		return next(ctx, cmd)
	}
}

func (c counting) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			c.count(cmd)
		}
		return next(ctx, cmds)
	}
}

func (c counting) count(cmd redis.Cmder) {
	if name := cmd.Name(); name == "evalsha" || name == "eval" {
		countingMu.Lock()
		defer countingMu.Unlock()
		*c.n++
	}
}

// A member that lingers on the same client, or on another one, is given up for a multi lock.
func TestMultiLockGetsMembersThatLinger(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		x := OnJoint(t, s, "multi")
		use := func(c *primitives.Client) {
			redistest.WaitFor(t, Soon, func() bool { // a busy machine may subscribe late
				Release(t, Acquire(t, t.Context(), c.Lock(x.Names[1], primitives.WithLinger(time.Hour))))
				return len(Fields(t, s, x.Names[1])) > 0
			}, "it lingers")
		}
		use(x.C)
		hold, err := x.L.TryAcquire(t.Context())
		require.NoError(t, err)
		Release(t, hold)
		use(x.Other(t))
		require.ErrorIs(t, ErrOf(x.L.TryAcquire(t.Context())), primitives.ErrNotAcquired)
		Release(t, Acquire(t, t.Context(), x.L, primitives.WithWait(Soon)))
		// It is in use when the multi lock asks.
		busy := Acquire(t, t.Context(), x.C.Lock(x.Names[1], primitives.WithLinger(time.Hour)))
		waiting := Start(func() (*primitives.Hold, error) { return x.L.Acquire(t.Context()) })
		AwaitWaiters(t, x.C, 1)
		time.Sleep(20 * time.Millisecond)
		Release(t, busy)
		Release(t, AwaitHold(t, waiting))
		RequireClean(t, s, x.Base)
	})
}

// The error of an acquisition that gives up names the member that was busy, and its holder.
func TestMultiLockSaysWhichMemberIsBusy(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		x := OnJoint(t, s, "multi")
		busy := Acquire(t, t.Context(), x.Other(t).Lock(x.Names[1]))
		for _, wait := range []time.Duration{0, 300 * time.Millisecond} {
			err := ErrOf(x.L.Acquire(t.Context(), primitives.WithWait(wait)))
			require.ErrorIs(t, err, primitives.ErrNotAcquired)
			require.ErrorContains(t, err, fmt.Sprintf("lock %q", x.Names[1]))
			require.ErrorContains(t, err, busy.ID())
		}
		Release(t, busy)
	})
}

// members returns n plain locks with different names.
func members(c *primitives.Client, name string, n int) (list []*primitives.Lock) {
	for i := range n {
		list = append(list, c.Lock(fmt.Sprintf("%s-%d", name, i)))
	}
	return list
}
