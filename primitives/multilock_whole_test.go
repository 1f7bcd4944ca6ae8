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

// multiOfKinds is a multi lock whose members are acquired one after another.
func multiOfKinds(c *primitives.Client, name string) *primitives.Lock {
	return primitives.NewMultiLock(append(members(c, name, 1), c.FairLock(name+"-fair")))
}

// One command acquires all members, and one releases them, with and without contention.
func TestCountsMultiLock(t *testing.T) {
	for _, way := range multiWays {
		t.Run(way.name, func(t *testing.T) {
			s := redistest.Fresh(t)
			c := newClient(t, s.Client(t))
			locks := way.members(c, "l")
			l := primitives.NewMultiLock(locks)
			pair := func() { release(t, acquire(t, t.Context(), l)) }
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

// The exact costs of the usual case: three free names. Inside the scripts: 1 EXISTS, and for each name HSET, PEXPIRE;
// then EXISTS, HDEL and PUBLISH for each.
func TestCountsMultiLockOfThree(t *testing.T) {
	s := redistest.Fresh(t)
	c := newClient(t, s.Client(t))
	l := primitives.NewMultiLock(members(c, "l", 3))
	pair := func() { release(t, acquire(t, t.Context(), l)) }
	pair()
	require.EqualValues(t, 1+6+9, insideScripts(t, s, pair))
	if !raced {
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
			l := primitives.NewMultiLock(members(newClient(t, p.Client(t), primitives.WithClientName("")), "l", n))
			hold := acquire(t, t.Context(), l)
			time.Sleep(5 * time.Second) // in the middle between two renewals
			p.Record()
			time.Sleep(time.Minute)
			renewals[i] = len(scriptsOf(p))
			require.NoError(t, hold.Check(t.Context()))
			release(t, hold)
		})
	}
	require.Equal(t, renewals[0], renewals[1])
	require.InDelta(t, 6, renewals[0], 1)
}

// The release of another member than the busy one wakes no waiter.
func TestCountsMultiLockWaitsForTheBusyMember(t *testing.T) {
	s := redistest.Fresh(t)
	c, rival := newClient(t, s.Client(t)), newClient(t, s.Client(t))
	names := members(rival, "l", 3)
	busy := acquire(t, t.Context(), names[1])
	waiting := start(func() (*primitives.Hold, error) {
		return primitives.NewMultiLock(members(c, "l", 3)).Acquire(t.Context())
	})
	awaitLocalWaiters(t, c, 1)
	for i := range 3 {
		awaitWaiter(t, s, names[i].Name())
	}
	time.Sleep(50 * time.Millisecond)
	release(t, acquire(t, t.Context(), names[0])) // loads the script
	const n = 50
	require.LessOrEqual(t, sent(t, s, func() {
		for range n {
			release(t, acquire(t, t.Context(), names[0]))
			release(t, acquire(t, t.Context(), names[2]))
		}
	}), float64(4*n+3), "the waiter polls once a second")
	release(t, busy)
	release(t, awaitHold(t, waiting))
}

// A waiter holds nothing, whichever member is busy.
func TestMultiLockHoldsNothingWhileItWaits(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for i := range 3 {
			name := redistest.Name(t)
			c, rival := newClient(t, s.Client(t)), newClient(t, s.Client(t))
			busy := acquire(t, t.Context(), members(rival, name, 3)[i])
			waiting := start(func() (*primitives.Hold, error) {
				return primitives.NewMultiLock(members(c, name, 3)).Acquire(t.Context())
			})
			awaitLocalWaiters(t, c, 1)
			for range 20 {
				for j, m := range members(rival, name, 3) {
					if j != i {
						require.Empty(t, fields(t, s, m.Name()))
					}
				}
				time.Sleep(time.Millisecond)
			}
			release(t, busy)
			hold := awaitHold(t, waiting)
			for _, m := range members(rival, name, 3) {
				require.Equal(t, map[string]string{hold.ID(): "1"}, fields(t, s, m.Name()))
			}
			release(t, hold)
			requireClean(t, s, name)
		}
	})
}

// Waiters for one member, on the same client and on another one, are woken by the release of a multi lock; and so
// are multi locks by that of a member.
func TestMultiLockWakesWaitersForItsMembers(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		c, other := newClient(t, s.Client(t)), newClient(t, s.Client(t))
		for range redistest.Scaled(s, 30) {
			hold := acquire(t, t.Context(), primitives.NewMultiLock(members(c, name, 3)))
			var waiting []<-chan result
			for i := range 3 {
				for _, by := range []*primitives.Client{c, other} {
					waiting = append(waiting, start(func() (*primitives.Hold, error) {
						return members(by, name, 3)[i].Acquire(t.Context())
					}))
				}
			}
			awaitLocalWaiters(t, c, 3)
			awaitLocalWaiters(t, other, 3)
			multi := start(func() (*primitives.Hold, error) {
				return primitives.NewMultiLock(members(other, name, 3)).Acquire(t.Context())
			})
			awaitLocalWaiters(t, other, 4)
			began := time.Now()
			release(t, hold)
			for _, w := range append(waiting, multi) {
				go func() {
					if r := <-w; r.err == nil {
						_ = r.hold.Release(context.Background())
					} else {
						t.Error(r.err)
					}
				}()
			}
			awaitLocalWaiters(t, c, 0)
			awaitLocalWaiters(t, other, 0)
			require.Less(t, time.Since(began), slowPoll)
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
		clients := []*primitives.Client{newClient(t, s.Client(t)), newClient(t, s.Client(t))}
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
		requireClean(t, s, name)
	})
}

// A hold that was acquired as a whole nests like others, and each member keeps its own counts.
func TestMultiLockAcquiredAsAWholeNests(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		x := onJoint(t, s, "multi")
		hold := acquire(t, t.Context(), x.l)
		member := acquire(t, hold.Context(), x.c.Lock(x.names[1]))
		x.requireCounts(t, hold.ID(), "1", "2", "1")
		again := acquire(t, member.Context(), x.l)
		x.requireCounts(t, hold.ID(), "2", "3", "2")
		release(t, hold)
		x.requireCounts(t, hold.ID(), "1", "2", "1")
		release(t, again)
		x.requireCounts(t, hold.ID(), "", "1", "")
		require.NoError(t, member.Check(t.Context()))
		release(t, member)
		x.requireCounts(t, hold.ID(), "", "", "")
		// The other way round: the id is that of the hold of the member.
		member = acquire(t, t.Context(), x.c.Lock(x.names[1]))
		hold = acquire(t, member.Context(), x.l)
		require.Equal(t, member.ID(), hold.ID())
		x.requireCounts(t, hold.ID(), "1", "2", "1")
		release(t, hold)
		release(t, member)
		requireClean(t, s, x.base)
	})
}

// A member's key of another type, or with data of another program: an error, and nothing is taken or changed.
func TestMultiLockWithAForeignMember(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for i := range 3 {
			x := onJoint(t, s, "multi")
			require.NoError(t, x.rdb.Set(t.Context(), x.names[i], "text", 0).Err())
			err := errOf(x.l.Acquire(t.Context(), primitives.WithWait(soon)))
			require.ErrorContains(t, err, fmt.Sprintf("key %q holds a string", x.names[i]))
			require.NotErrorIs(t, err, primitives.ErrNotAcquired)
			require.NoError(t, x.rdb.Del(t.Context(), x.names[i]).Err())
			require.NoError(t, x.rdb.HSet(t.Context(), x.names[i], "name", "Ann").Err())
			busy := acquire(t, t.Context(), x.other(t).Lock(x.names[(i+1)%3]))
			require.ErrorIs(t, errOf(x.l.Acquire(t.Context(), primitives.WithWait(soon))), primitives.ErrForeign, "even if another member is busy")
			release(t, busy)
			require.Equal(t, map[string]string{"name": "Ann"}, fields(t, s, x.names[i]))
			require.NoError(t, x.rdb.Del(t.Context(), x.names[i]).Err())
			requireClean(t, s, x.base)
		}
	})
}

// An operator deletes a member, or another program overwrites it: Release frees the others, wakes their waiters, and
// says that the lock was lost.
func TestMultiLockReleaseOfALostMember(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, lose := range map[string]func(x *jointTest, key string) error{
			"deleted":     func(x *jointTest, key string) error { return x.rdb.Del(t.Context(), key).Err() },
			"overwritten": func(x *jointTest, key string) error { return x.rdb.Set(t.Context(), key, "text", 0).Err() },
		} {
			for i := range 3 {
				x := onJoint(t, s, "multi")
				hold := acquire(t, t.Context(), x.l)
				require.NoError(t, lose(x, x.names[i]))
				require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost, name)
				require.ErrorIs(t, context.Cause(hold.Context()), primitives.ErrLost)
				require.Len(t, x.events.all(primitives.EventLost), 1)
				require.Equal(t, primitives.LossMembers, lossOf(t, context.Cause(hold.Context())).Reason)
				require.NoError(t, x.rdb.Del(t.Context(), x.names[i]).Err())
				requireClean(t, s, x.base)
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
	x := onJoint(t, s, "multi")
	hold := acquire(t, t.Context(), x.l)
	nested := acquire(t, hold.Context(), x.l)
	release(t, nested)
	require.NoError(t, x.rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	release(t, hold)
	x.requireCounts(t, "", "", "", "")
	require.ErrorContains(t, errOf(x.l.Acquire(t.Context())), "OOM")
	x.requireCounts(t, "", "", "", "")
}

// The outcome of each command is the same if its reply is lost.
func TestMultiLockRepliesAreLost(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := s.Proxy(t)
		name, events := redistest.Name(t), &recorder{}
		c := newClient(t, p.Client(t, quick), events.option())
		l := primitives.NewMultiLock(members(c, name, 3))
		for range redistest.Scaled(s, 20) {
			p.DropReplies(1, script)
			hold := acquire(t, t.Context(), l)
			for _, m := range members(c, name, 3) {
				require.Equal(t, map[string]string{hold.ID(): "1"}, fields(t, s, m.Name()))
			}
			p.DropReplies(1, script)
			release(t, hold)
			requireClean(t, s, name)
			// Without doubt about the acquisition: one command releases all members.
			hold = acquire(t, t.Context(), l)
			p.DropReplies(1, script)
			release(t, hold)
			requireClean(t, s, name)
		}
		require.Empty(t, events.all(primitives.EventLost))
	})
}

// A shared id that equals a multi lock's keeps its count when the multi lock is released.
func TestMultiLockReleaseKeepsSharedCounts(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		x := onJoint(t, s, "multi")
		hold := acquire(t, t.Context(), x.l)
		shared := acquire(t, t.Context(), x.other(t).Lock(x.names[1]), primitives.WithOwner(hold.ID()))
		x.requireCounts(t, hold.ID(), "1", "2", "1")
		release(t, hold)
		x.requireCounts(t, hold.ID(), "", "1", "")
		release(t, shared)
		requireClean(t, s, x.base)
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
			c := newClient(t, k.ClusterClient(t, func(o *redis.ClusterOptions) {
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
			release(t, acquire(t, t.Context(), l))
			countingMu.Lock()
			seen = 0
			countingMu.Unlock()
			hold := acquire(t, t.Context(), l)
			require.ErrorIs(t, errOf(locks(newClient(t, k.ClusterClient(t)))[2].TryAcquire(t.Context())),
				primitives.ErrNotAcquired)
			release(t, hold)
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
		x := onJoint(t, s, "multi")
		use := func(c *primitives.Client) {
			redistest.WaitFor(t, soon, func() bool { // a busy machine may subscribe late
				release(t, acquire(t, t.Context(), c.Lock(x.names[1], primitives.WithLinger(time.Hour))))
				return len(fields(t, s, x.names[1])) > 0
			}, "it lingers")
		}
		use(x.c)
		hold, err := x.l.TryAcquire(t.Context())
		require.NoError(t, err)
		release(t, hold)
		use(x.other(t))
		require.ErrorIs(t, errOf(x.l.TryAcquire(t.Context())), primitives.ErrNotAcquired)
		release(t, acquire(t, t.Context(), x.l, primitives.WithWait(soon)))
		// It is in use when the multi lock asks.
		busy := acquire(t, t.Context(), x.c.Lock(x.names[1], primitives.WithLinger(time.Hour)))
		waiting := start(func() (*primitives.Hold, error) { return x.l.Acquire(t.Context()) })
		awaitLocalWaiters(t, x.c, 1)
		time.Sleep(20 * time.Millisecond)
		release(t, busy)
		release(t, awaitHold(t, waiting))
		requireClean(t, s, x.base)
	})
}

// The error of an acquisition that gives up names the member that was busy, and its holder.
func TestMultiLockSaysWhichMemberIsBusy(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		x := onJoint(t, s, "multi")
		busy := acquire(t, t.Context(), x.other(t).Lock(x.names[1]))
		for _, wait := range []time.Duration{0, 20 * time.Millisecond} {
			err := errOf(x.l.Acquire(t.Context(), primitives.WithWait(wait)))
			require.ErrorIs(t, err, primitives.ErrNotAcquired)
			require.ErrorContains(t, err, fmt.Sprintf("lock %q", x.names[1]))
			require.ErrorContains(t, err, busy.ID())
		}
		release(t, busy)
	})
}
