package primitives_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
	"github.com/redlatch/redlatch/scripts"
)

// sharedCounts is the key at which stands how many counts callers of WithOwner have.
func (x *rwTest) sharedCounts() string { return "redisson_unlock_latch:{" + x.name + "}:shared" }

// rwSides are both sides of the lock, and the field of an id.
func (x *rwTest) rwSides() []rwSideTest {
	return []rwSideTest{{"reader", x.rw.Reader(), ""}, {"writer", x.rw.Writer(), ":write"}}
}

type rwSideTest struct {
	name   string
	lock   *primitives.Lock
	suffix string
}

// C4: the id of somebody's private hold may be given too.
func TestRWLockReleaseGivesBackItsOwnCountsOnly(t *testing.T) {
	t.Parallel()
	eachRW(t, func(t *testing.T, x *rwTest) {
		other := x.other(t).Writer()
		for _, side := range x.rwSides() {
			begin := func(t *testing.T) (private, shared *primitives.Hold, count func() string) {
				private = acquire(t, t.Context(), side.lock)
				shared = acquire(t, t.Context(), side.lock, primitives.WithOwner(private.ID()))
				count = func() string { return fields(t, x.s, x.name)[private.ID()+side.suffix] }
				require.Equal(t, "2", count())
				return private, shared, count
			}
			requireHeld := func(t *testing.T, hold *primitives.Hold) {
				require.NoError(t, hold.Check(t.Context()))
				_, err := other.TryAcquire(t.Context())
				require.ErrorIs(t, err, primitives.ErrNotAcquired)
			}
			requireFree := func(t *testing.T) { requireGone(t, x) }
			t.Run(side.name+", the private hold first", func(t *testing.T) {
				private, shared, count := begin(t)
				release(t, private)
				require.Equal(t, "1", count())
				requireHeld(t, shared)
				release(t, shared)
				requireFree(t)
			})
			t.Run(side.name+", the shared one first", func(t *testing.T) {
				private, shared, count := begin(t)
				release(t, shared)
				require.Equal(t, "1", count())
				requireHeld(t, private)
				release(t, private)
				requireFree(t)
			})
			t.Run(side.name+", two shared ones", func(t *testing.T) {
				private, shared, count := begin(t)
				more := acquire(t, t.Context(), side.lock, primitives.WithOwner(private.ID()))
				release(t, shared)
				release(t, private)
				require.Equal(t, "1", count())
				requireHeld(t, more)
				release(t, more)
				requireFree(t)
			})
			t.Run(side.name+", by id", func(t *testing.T) {
				private, shared, count := begin(t)
				require.NoError(t, side.lock.ReleaseID(t.Context(), private.ID()))
				require.Equal(t, "1", count())
				release(t, private)
				requireFree(t)
				require.ErrorIs(t, shared.Release(t.Context()), primitives.ErrLost)
				requireFree(t)
			})
			t.Run(side.name+", adopted", func(t *testing.T) {
				private, _, _ := begin(t)
				adopted, err := side.lock.Adopt(t.Context(), private.ID())
				require.NoError(t, err)
				require.Equal(t, "2", fields(t, x.s, x.name)[adopted.ID()+side.suffix])
				require.Zero(t, x.rdb.Exists(t.Context(), x.sharedCounts()).Val())
				release(t, adopted)
				requireFree(t)
			})
			t.Run(side.name+", by force", func(t *testing.T) {
				private, shared, _ := begin(t)
				held, err := side.lock.ForceRelease(t.Context())
				require.NoError(t, err)
				require.True(t, held)
				requireFree(t)
				require.ErrorIs(t, private.Release(t.Context()), primitives.ErrLost)
				require.ErrorIs(t, shared.Release(t.Context()), primitives.ErrLost)
			})
		}
		t.Run("nested reads", func(t *testing.T) {
			private := acquire(t, t.Context(), x.rw.Reader())
			shared := acquire(t, t.Context(), x.rw.Reader(), primitives.WithOwner(private.ID()))
			in := acquire(t, private.Context(), x.rw.Reader())
			count := func() string { return fields(t, x.s, x.name)[private.ID()] }
			require.Equal(t, "3", count())
			release(t, in)
			require.Equal(t, "2", count())
			release(t, private)
			require.Equal(t, "1", count())
			require.NoError(t, shared.Check(t.Context()))
			release(t, shared)
			requireGone(t, x)
		})
	})
}

// requireGone: the lock is free, and no shared count is left.
func requireGone(t *testing.T, x *rwTest) {
	t.Helper()
	require.Empty(t, x.state(t))
	require.Zero(t, x.rdb.Exists(t.Context(), x.sharedCounts()).Val())
}

// What shared ids left behind when their lock ran out counts for nothing.
func TestRWLockSharedCountsOfAnEarlierLife(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, x *rwTest) {
		for _, side := range x.rwSides() {
			owner, lease := primitives.WithOwner("o"), primitives.WithLease(time.Second)
			acquire(t, t.Context(), side.lock, owner, lease)
			acquire(t, t.Context(), side.lock, owner, lease)
			time.Sleep(2 * time.Second)
			require.Empty(t, fields(t, x.s, x.name))
			require.Greater(t, x.rdb.PTTL(t.Context(), x.sharedCounts()).Val(), 23*time.Hour)
			again := acquire(t, t.Context(), side.lock, owner)
			require.Equal(t, "1", x.rdb.HGet(t.Context(), x.sharedCounts(), "o"+side.suffix).Val())
			release(t, again)
			requireGone(t, x)
		}
	})
}

// C3: a hold that Redis no longer has is not nested in.
func TestRWLockNoNestingUnderALostHold(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		owner := []primitives.Option{primitives.WithOwner("o")}
		for _, tt := range []struct {
			name         string
			outer, inner func(*primitives.RWLock) *primitives.Lock
			opts         []primitives.Option
		}{
			{"reader", (*primitives.RWLock).Reader, (*primitives.RWLock).Reader, nil},
			{"reader, shared id", (*primitives.RWLock).Reader, (*primitives.RWLock).Reader, owner},
			{"writer", (*primitives.RWLock).Writer, (*primitives.RWLock).Writer, nil},
			{"writer, shared id", (*primitives.RWLock).Writer, (*primitives.RWLock).Writer, owner},
			{"reader under a writer", (*primitives.RWLock).Writer, (*primitives.RWLock).Reader, nil},
			{"reader under a writer, shared id", (*primitives.RWLock).Writer, (*primitives.RWLock).Reader, owner},
		} {
			for _, other := range []string{"nobody", "a writer", "a reader"} {
				t.Run(tt.name+", then "+other, func(t *testing.T) {
					x := onRW(t, s)
					outer := acquire(t, t.Context(), tt.outer(x.rw), tt.opts...)
					require.NoError(t, x.rdb.Del(t.Context(), x.name, x.timeoutKey(outer.ID(), 1)).Err())
					var third *primitives.Hold
					switch other {
					case "a writer":
						third = acquire(t, t.Context(), x.other(t).Writer())
					case "a reader":
						third = acquire(t, t.Context(), x.other(t).Reader())
					}
					before := x.state(t)
					_, err := tt.inner(x.rw).TryAcquire(outer.Context())
					require.ErrorIs(t, err, primitives.ErrLost)
					require.NotErrorIs(t, err, primitives.ErrNotAcquired)
					require.Equal(t, before, x.state(t), "nothing was taken")
					require.ErrorIs(t, outer.Release(t.Context()), primitives.ErrLost)
					if third != nil {
						release(t, third)
					}
					require.Empty(t, x.state(t))
					if tt.opts == nil { // a lost hold of a shared id leaves its count, which means nothing without the field
						requireGone(t, x)
					}
				})
			}
		}
	})
}

// A companion that has given up is not in, though others share its id.
func TestRWLockCompanionThatGaveUpIsNotIn(t *testing.T) {
	t.Parallel()
	eachRW(t, func(t *testing.T, x *rwTest) {
		shared := acquire(t, t.Context(), x.rw.Reader(), primitives.WithOwner("companion"))
		for _, word := range []string{"2", "3"} {
			memory := "redisson_unlock_latch:{" + x.name + "}:companion"
			require.NoError(t, x.rdb.Set(t.Context(), memory, word, time.Minute).Err())
			keys := []string{x.name, x.channel, memory + "-leader" + word, "redlatch_rwlock_claim:{" + x.name + "}", x.sharedCounts(), memory}
			answer, err := x.rdb.Eval(t.Context(), scripts.Load("rwlock/read_acquire").Text(), keys,
				"leader"+word, 30000, "publish", 0, 0, 0, "companion", 60000).Slice()
			require.NoError(t, err)
			require.Equal(t, []any{"in", int64(0)}, answer)
			require.LessOrEqual(t, x.rdb.PTTL(t.Context(), x.timeoutKey("companion", 1)).Val(), 30*time.Second)
		}
		release(t, shared)
	})
}

func TestRWLockNestedReadTakesItsLeaseWithIt(t *testing.T) {
	t.Parallel()
	lease, renewed := primitives.WithLease, primitives.WithWatchdog
	const s = time.Second
	for _, tt := range []struct {
		name         string
		outer, inner primitives.Option
		pause        time.Duration
		extend       time.Duration // of the outer one
		outerFirst   bool
		low, high    time.Duration // of the TTL that is left
	}{
		{"a lease", lease(10 * s), lease(60 * s), 2 * s, 0, false, 8 * s, 8 * s},
		{"a lease, out of order", lease(60 * s), lease(10 * s), 2 * s, 0, true, 8 * s, 8 * s},
		{"the longer one stays", lease(60 * s), lease(10 * s), 2 * s, 0, false, 58 * s, 58 * s},
		{"the longer one stays, out of order", lease(10 * s), lease(60 * s), 2 * s, 0, true, 58 * s, 58 * s},
		{"a renewed one under a lease", lease(50 * s), renewed(60 * s), 22 * s, 0, false, 28 * s, 28 * s},
		{"a renewed one under a longer lease", lease(70 * s), renewed(60 * s), 22 * s, 0, false, 48 * s, 48 * s},
		{"a lease under a renewed one", renewed(9 * s), lease(60 * s), 20 * s, 0, false, 6 * s, 9 * s},
		{"a renewed one under one that is renewed more often", renewed(9 * s), renewed(60 * s), 20 * s, 0, false, 6 * s, 9 * s},
		{"an extended lease", lease(10 * s), lease(60 * s), 2 * s, 30 * s, false, 30 * s, 30 * s},
		{"an extended renewed one", renewed(9 * s), lease(60 * s), 2 * s, 30 * s, false, 30 * s, 30 * s},
		{"the outer one has lapsed", lease(10 * s), lease(60 * s), 20 * s, 0, false, -2, -2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, x *rwTest) {
				outer := acquire(t, t.Context(), x.rw.Reader(), tt.outer)
				inner := acquire(t, outer.Context(), x.rw.Reader(), tt.inner)
				time.Sleep(tt.pause)
				synctest.Wait()
				first, last := inner, outer
				if tt.outerFirst {
					first, last = outer, inner
				}
				if tt.extend > 0 {
					require.NoError(t, outer.Extend(t.Context(), tt.extend))
				}
				release(t, first)
				for _, key := range []string{x.name, x.timeoutKey(outer.ID(), 1)} {
					left := x.rdb.PTTL(t.Context(), key).Val()
					require.GreaterOrEqual(t, left, tt.low)
					require.LessOrEqual(t, left, tt.high)
					if left > 0 {
						require.GreaterOrEqual(t, left, time.Until(last.ValidUntil()), "no longer trusted than Redis keeps it")
						require.Greater(t, time.Until(last.ValidUntil()), left*9/10)
					}
				}
				if tt.low < 0 {
					require.ErrorIs(t, last.Release(t.Context()), primitives.ErrLost)
					return
				}
				require.NoError(t, last.Check(t.Context()))
				synctest.Wait()
				release(t, last)
				requireGone(t, x)
			})
		})
	}
	t.Run("one that is detached lasts", func(t *testing.T) {
		inBubble(t, func(t *testing.T, x *rwTest) {
			outer := acquire(t, t.Context(), x.rw.Reader(), lease(10*s))
			middle := acquire(t, outer.Context(), x.rw.Reader(), lease(40*s))
			inner := acquire(t, middle.Context(), x.rw.Reader(), lease(60*s))
			middle.Detach()
			release(t, inner)
			require.GreaterOrEqual(t, x.rdb.PTTL(t.Context(), x.name).Val(), 40*s)
		})
	})
	t.Run("other readers keep theirs", func(t *testing.T) {
		inBubble(t, func(t *testing.T, x *rwTest) {
			other := acquire(t, t.Context(), x.other(t).Reader(), lease(30*s))
			outer := acquire(t, t.Context(), x.rw.Reader(), lease(10*s))
			release(t, acquire(t, outer.Context(), x.rw.Reader(), lease(60*s)))
			require.Equal(t, 30*s, x.rdb.PTTL(t.Context(), x.name).Val())
			require.Equal(t, 10*s, x.rdb.PTTL(t.Context(), x.timeoutKey(outer.ID(), 1)).Val())
			require.Equal(t, 30*s, x.rdb.PTTL(t.Context(), x.timeoutKey(other.ID(), 1)).Val())
		})
	})
}

// C16: a copy of a nested release that comes late takes nothing from a later nested hold.
func TestRWLockLateCopyOfANestedReleaseTakesNothing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := s.Proxy(t)
		x := onRWNamed(t, s, p.Client(t), redistest.Name(t))
		lease := primitives.WithLease
		outer := acquire(t, t.Context(), x.rw.Reader(), lease(10*time.Second))
		inner := acquire(t, outer.Context(), x.rw.Reader(), lease(time.Minute))
		p.Record()
		release(t, inner)
		var copied []any
		for _, command := range p.Commands() {
			if script(command.Args) {
				for _, arg := range command.Args {
					copied = append(copied, arg)
				}
			}
		}
		again := acquire(t, outer.Context(), x.rw.Reader(), lease(time.Minute))
		require.Equal(t, int64(1), x.rdb.Do(t.Context(), copied...).Val())
		require.Equal(t, "2", fields(t, s, x.name)[outer.ID()])
		require.Greater(t, x.rdb.PTTL(t.Context(), x.name).Val(), 50*time.Second)
		release(t, again)
		require.LessOrEqual(t, x.rdb.PTTL(t.Context(), x.name).Val(), 10*time.Second)
		release(t, outer)
		requireGone(t, x)
	})
}

// A renewal, or an Extend, that runs beside a release is not undone by it: Redis keeps the lock as long as the holds are trusted.
func TestRWLockReleaseBesideExtend(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := s.Proxy(t)
		x := onRWNamed(t, s, p.Client(t), redistest.Name(t))
		outer := acquire(t, t.Context(), x.rw.Reader(), primitives.WithLease(10*time.Second))
		for range scaled(s, 60) {
			inner := acquire(t, outer.Context(), x.rw.Reader(), primitives.WithLease(time.Minute))
			released := start(func() (*primitives.Hold, error) { return nil, inner.Release(context.Background()) })
			require.NoError(t, outer.Extend(t.Context(), 20*time.Second))
			require.NoError(t, await(t, released).err)
			left := x.rdb.PTTL(t.Context(), x.name).Val()
			require.GreaterOrEqual(t, left+time.Millisecond, time.Until(outer.ValidUntil()))
		}
		// The release's answer is held back while Extend is called.
		inner := acquire(t, outer.Context(), x.rw.Reader(), primitives.WithLease(time.Minute))
		free := p.HoldReplies(script)
		released := start(func() (*primitives.Hold, error) { return nil, inner.Release(context.Background()) })
		redistest.WaitFor(t, soon, func() bool { return p.Held() == 1 }, "released")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errTest)
		defer cancel()
		require.ErrorIs(t, outer.Extend(ctx, 30*time.Second), errTest)
		free()
		require.NoError(t, await(t, released).err)
		require.NoError(t, outer.Extend(t.Context(), 30*time.Second))
		require.Greater(t, x.rdb.PTTL(t.Context(), x.name).Val(), 25*time.Second)
		release(t, outer)
		requireGone(t, x)
	})
}

func TestRWLockInfoOfALockWithoutExpiry(t *testing.T) {
	t.Parallel()
	eachRW(t, func(t *testing.T, x *rwTest) {
		for _, side := range x.rwSides() {
			hold := acquire(t, t.Context(), side.lock, primitives.WithLease(time.Minute))
			require.NoError(t, x.rdb.Persist(t.Context(), x.name).Err())
			info, err := side.lock.Info(t.Context())
			require.NoError(t, err)
			require.Equal(t, time.Duration(-1), info.TTL)
			require.Len(t, info.Holders, 1)
			release(t, hold)
			info, err = side.lock.Info(t.Context())
			require.NoError(t, err)
			require.Zero(t, info.TTL)
		}
	})
}

// A TTL that a time.Duration cannot hold is told as the longest that it can, and waiting goes on.
func TestTTLBeyondADuration(t *testing.T) {
	t.Parallel()
	x := onRW(t, redistest.Redis(t))
	hold := acquire(t, t.Context(), x.rw.Writer())
	require.NoError(t, x.rdb.Do(t.Context(), "pexpire", x.name, int64(1e14)).Err())
	info, err := x.rw.Writer().Info(t.Context())
	require.NoError(t, err)
	require.Greater(t, info.TTL, 290*365*24*time.Hour)
	for info, err := range x.c.Locks(t.Context(), x.name) {
		require.NoError(t, err)
		require.Greater(t, info.TTL, 290*365*24*time.Hour)
	}
	waiting := start(func() (*primitives.Hold, error) { return x.other(t).Writer().Acquire(t.Context()) })
	x.awaitWaiter(t)
	release(t, hold)
	r := await(t, waiting)
	require.NoError(t, r.err)
	release(t, r.hold)
}

func TestLocksTellsKindsAndLiveReaders(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		rdb := s.Client(t)
		c := newClient(t, s.Client(t), primitives.WithDefaults(primitives.WithLease(time.Minute)))
		lease := primitives.WithLease(20 * time.Second)
		acquire(t, t.Context(), c.Lock(name+"plain"))
		acquire(t, t.Context(), c.FencedLock(name+"fenced"))
		acquire(t, t.Context(), c.FairLock(name+"fair"))
		waiting := start(func() (*primitives.Hold, error) { return c.FairLock(name + "fair").Acquire(t.Context()) })
		redistest.WaitFor(t, soon, func() bool { return rdb.LLen(t.Context(), "redisson_lock_queue:{"+name+"fair}").Val() == 1 }, "queued")
		long := acquire(t, t.Context(), c.RWLock(name+"read").Reader())
		short := acquire(t, t.Context(), c.RWLock(name+"read").Reader(), lease)
		dead := acquire(t, t.Context(), c.RWLock(name+"read").Reader())
		gone := acquire(t, t.Context(), c.RWLock(name+"dead").Reader())
		acquire(t, t.Context(), c.RWLock(name+"write").Writer(), primitives.WithOwner("o"))
		require.NoError(t, rdb.Del(t.Context(), "{"+name+"read}:"+dead.ID()+":rwlock_timeout:1", "{"+name+"dead}:"+gone.ID()+":rwlock_timeout:1").Err())
		found := map[string]primitives.Info{}
		for info, err := range c.Locks(t.Context(), "*"+name+"*") { // the shared counts are no lock
			require.NoError(t, err)
			found[info.Name] = info
		}
		kinds := map[string]string{}
		for key, info := range found {
			kinds[key] = info.Kind
		}
		require.Equal(t, map[string]string{name + "plain": "lock", name + "fenced": "fenced", name + "fair": "fair", name + "read": "reader", name + "write": "writer"}, kinds)
		ttls := map[string]time.Duration{}
		for _, holder := range found[name+"read"].Holders {
			ttls[holder.ID] = holder.TTL
		}
		require.Len(t, ttls, 2)
		require.Greater(t, ttls[long.ID()], 30*time.Second)
		require.LessOrEqual(t, ttls[short.ID()], 20*time.Second)
		hold, _, err := rdb.HScan(t.Context(), name+"fair", 0, "*", 10).Result()
		require.NoError(t, err)
		require.NoError(t, c.FairLock(name+"fair").ReleaseID(t.Context(), hold[0]))
		r := await(t, waiting)
		require.NoError(t, r.err)
		release(t, r.hold)
	})
}

// A name whose keys fall into two slots of a cluster is listed by its hash alone.
func TestLocksOfNamesOfTwoSlots(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t)
	name := redistest.Name(t) + "a}b"
	rdb := servers.ClusterClient(t)
	c := newClient(t, servers.ClusterClient(t))
	require.NoError(t, rdb.HSet(t.Context(), name, c.ID()+":1", 1).Err())
	require.NoError(t, rdb.PExpire(t.Context(), name, time.Minute).Err())
	t.Cleanup(func() { rdb.Del(context.Background(), name) })
	listed := 0
	for info, err := range c.Locks(t.Context(), "*"+name) {
		require.NoError(t, err)
		require.Equal(t, "lock", info.Kind)
		listed++
	}
	require.Equal(t, 1, listed)
	// As does a plain client to a server that enforces slots.
	node := newClient(t, redis.NewClient(servers.Node(t, name).Options()))
	for info, err := range node.Locks(t.Context(), "*"+name) {
		require.NoError(t, err)
		require.Equal(t, "lock", info.Kind)
		listed++
	}
	require.Equal(t, 2, listed)
}
