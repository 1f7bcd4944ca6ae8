package wire

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
	"github.com/redlatch/redlatch/scripts"
)

// TestRWLockWireFormat checks the keys and messages in Redis after each step. The result must not
// depend on what the network repeats. The last reader publishes "0" when it releases the lock. A
// writer publishes "1", and so does one that withdraws its claim.
func TestRWLockWireFormat(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name string
		run  func(t *testing.T, x *fixture.RWTest)
	}{
		{"reader", testWireReader},
		{"many readers", testWireManyReaders},
		{"writer", testWireWriter},
		{"downgrade", testWireDowngrade},
		{"read released before the write", testWireReadReleasedBeforeWrite},
		{"caller-chosen owner", testWireOwners},
		{"adopt and release a reader by id", testWireReaderByID},
		{"adopt and release a writer by id", testWireWriterByID},
		{"force release", testWireForceRelease},
		{"claim of a waiting writer", testWireWriterClaim},
	}
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, network := range fixture.Networks {
			t.Run(network.Name, func(t *testing.T) {
				for _, tt := range cases {
					t.Run(tt.name, func(t *testing.T) {
						tt.run(t, fixture.OnRWNamed(t, s, network.Open(t, s), redistest.Name(t)))
					})
				}
			})
		}
	})
}

// testWireReader: each read hold has a timeout key, and the hash lives as long as the longest one.
func testWireReader(t *testing.T, x *fixture.RWTest) {
	ctx := t.Context()
	a := fixture.Acquire(t, ctx, x.RW.Reader(), primitives.WithLease(20*time.Second))
	x.RequireState(t, fixture.Reads(a.ID(), 1))
	x.RequireTTL(t, x.Name, 20*time.Second)
	x.RequireTTL(t, x.TimeoutKey(a.ID(), 1), 20*time.Second)
	// A renewal would set both keys.
	in := fixture.Acquire(t, a.Context(), x.RW.Reader(), primitives.WithLease(30*time.Second))
	require.Equal(t, a.ID(), in.ID())
	require.Equal(t, 2, in.Depth())
	x.RequireState(t, fixture.Reads(a.ID(), 2))
	x.RequireTTL(t, x.Name, 30*time.Second)
	x.RequireTTL(t, x.TimeoutKey(a.ID(), 1), 20*time.Second)
	x.RequireTTL(t, x.TimeoutKey(a.ID(), 2), 30*time.Second)
	fixture.Release(t, a)
	x.RequireState(t, fixture.Reads(a.ID(), 1))
	x.RequireTTL(t, x.TimeoutKey(a.ID(), 1), 30*time.Second)
	b := fixture.Acquire(t, ctx, x.RW.Reader(), primitives.WithLease(time.Minute))
	x.RequireState(t, fixture.MergeStates(fixture.Reads(a.ID(), 1), fixture.Reads(b.ID(), 1)))
	x.RequireTTL(t, x.Name, time.Minute)
	fixture.Release(t, b)
	x.RequireState(t, fixture.Reads(a.ID(), 1))
	x.RequireTTL(t, x.Name, 30*time.Second)
	require.NoError(t, in.Extend(ctx, time.Hour))
	x.RequireTTL(t, x.Name, time.Hour)
	x.RequireTTL(t, x.TimeoutKey(a.ID(), 1), time.Hour)
	require.NoError(t, in.Check(ctx))
	require.ErrorIs(t, fixture.ErrOf(x.RW.Writer().TryAcquire(ctx)), primitives.ErrNotAcquired)
	x.RequireState(t, fixture.Reads(a.ID(), 1)) // a refused attempt publishes nothing
	fixture.Release(t, in)
	x.RequireState(t, nil, "0")
}

// testWireManyReaders: the hash lives as long as the longest remaining reader, however many there
// are.
func testWireManyReaders(t *testing.T, x *fixture.RWTest) {
	ctx := t.Context()
	long := fixture.Acquire(t, ctx, x.RW.Reader(), primitives.WithLease(time.Hour))
	want := fixture.Reads(long.ID(), 1)
	var others []*primitives.Hold
	for range 7 {
		other := fixture.Acquire(t, ctx, x.RW.Reader(), primitives.WithLease(time.Minute))
		others, want = append(others, other), fixture.MergeStates(want, fixture.Reads(other.ID(), 1))
	}
	x.RequireState(t, want)
	x.RequireTTL(t, x.Name, time.Hour)
	release := func(hold *primitives.Hold) {
		t.Helper()
		fixture.Release(t, hold)
		delete(want, hold.ID())
		delete(want, hold.ID()+"#1")
		x.RequireState(t, want)
	}
	release(others[0])
	x.RequireTTL(t, x.Name, time.Hour)
	release(long)
	for _, other := range others[1:6] {
		x.RequireTTL(t, x.Name, time.Minute)
		release(other)
	}
	fixture.Release(t, others[6])
	x.RequireState(t, nil, "0")
}

// testWireWriter: the hash carries the writer's TTL, and nested holds are counted in its field.
func testWireWriter(t *testing.T, x *fixture.RWTest) {
	ctx := t.Context()
	a := fixture.Acquire(t, ctx, x.RW.Writer())
	x.RequireState(t, fixture.Writes(a.ID(), 1))
	x.RequireTTL(t, x.Name, 30*time.Second)
	in := fixture.Acquire(t, a.Context(), x.RW.Writer(), primitives.WithLease(time.Minute))
	x.RequireState(t, fixture.Writes(a.ID(), 2))
	x.RequireTTL(t, x.Name, time.Minute)
	require.NoError(t, in.Extend(ctx, time.Hour))
	x.RequireTTL(t, x.Name, time.Hour)
	require.NoError(t, in.Check(ctx))
	fixture.Release(t, in)
	x.RequireState(t, fixture.Writes(a.ID(), 1))
	fixture.Release(t, a)
	x.RequireState(t, nil, "1")
}

// testWireDowngrade: the writer's id also counts as a reader, which stays when the writer leaves.
func testWireDowngrade(t *testing.T, x *fixture.RWTest) {
	ctx := t.Context()
	w := fixture.Acquire(t, ctx, x.RW.Writer(), primitives.WithLease(time.Minute))
	r := fixture.Acquire(t, context.WithoutCancel(w.Context()), x.RW.Reader())
	require.Equal(t, w.ID(), r.ID())
	require.Equal(t, 2, r.Depth())
	x.RequireState(t, fixture.MergeStates(fixture.Writes(w.ID(), 1), fixture.Reads(w.ID(), 1)))
	sibling := fixture.Acquire(t, w.Context(), x.RW.Reader())
	x.RequireState(t, fixture.MergeStates(fixture.Writes(w.ID(), 1), fixture.Reads(w.ID(), 2)))
	fixture.Release(t, sibling)
	x.RequireState(t, fixture.MergeStates(fixture.Writes(w.ID(), 1), fixture.Reads(w.ID(), 1)))
	x.RequireTTL(t, x.Name, time.Minute)
	fixture.Release(t, w)
	x.RequireState(t, fixture.Reads(w.ID(), 1), "1")
	x.RequireTTL(t, x.Name, 30*time.Second)
	fixture.RequireLive(t, r.Context())
	in := fixture.Acquire(t, r.Context(), x.RW.Reader())
	require.Equal(t, 3, in.Depth())
	x.RequireState(t, fixture.Reads(w.ID(), 2))
	fixture.Release(t, r, in)
	x.RequireState(t, nil, "0")
}

func testWireReadReleasedBeforeWrite(t *testing.T, x *fixture.RWTest) {
	ctx := t.Context()
	w := fixture.Acquire(t, ctx, x.RW.Writer())
	fixture.Release(t, fixture.Acquire(t, w.Context(), x.RW.Reader()))
	x.RequireState(t, fixture.Writes(w.ID(), 1))
	fixture.Release(t, w)
	x.RequireState(t, nil, "1")
}

// testWireOwners: holds of one owner share its id and are counted.
func testWireOwners(t *testing.T, x *fixture.RWTest) {
	ctx := t.Context()
	opt := primitives.WithOwner("o")
	a, b := fixture.Acquire(t, ctx, x.RW.Reader(), opt), fixture.Acquire(t, ctx, x.RW.Reader(), opt)
	x.RequireState(t, fixture.Reads("o", 2))
	fixture.Release(t, a)
	x.RequireState(t, fixture.Reads("o", 1))
	fixture.Release(t, b)
	x.RequireState(t, nil, "0")
	w, v := fixture.Acquire(t, ctx, x.RW.Writer(), opt), fixture.Acquire(t, ctx, x.RW.Writer(), opt)
	x.RequireState(t, fixture.Writes("o", 2))
	a = fixture.Acquire(t, ctx, x.RW.Reader(), opt)
	x.RequireState(t, fixture.MergeStates(fixture.Writes("o", 2), fixture.Reads("o", 1)))
	fixture.Release(t, w)
	x.RequireState(t, fixture.MergeStates(fixture.Writes("o", 1), fixture.Reads("o", 1)))
	fixture.Release(t, v)
	x.RequireState(t, fixture.Reads("o", 1), "1")
	fixture.Release(t, a)
	x.RequireState(t, nil, "0")
}

// testWireReaderByID: Adopt replaces the id and ends the former hold.
func testWireReaderByID(t *testing.T, x *fixture.RWTest) {
	ctx := t.Context()
	a := fixture.Acquire(t, ctx, x.RW.Reader())
	fixture.Acquire(t, a.Context(), x.RW.Reader())
	b := fixture.Adopt(t, x.RW.Reader(), a.ID(), primitives.WithLease(time.Minute))
	require.NotEqual(t, a.ID(), b.ID())
	x.RequireState(t, fixture.Reads(b.ID(), 2))
	x.RequireTTL(t, x.Name, time.Minute)
	require.ErrorIs(t, a.Check(ctx), primitives.ErrLost)
	c := fixture.Adopt(t, x.RW.Reader(), b.ID(), primitives.WithLease(20*time.Second))
	x.RequireState(t, fixture.Reads(c.ID(), 2))
	x.RequireTTL(t, x.Name, 20*time.Second)
	require.NoError(t, x.RW.Reader().ReleaseID(ctx, c.ID()))
	x.RequireState(t, fixture.Reads(c.ID(), 1))
	require.ErrorIs(t, x.RW.Writer().ReleaseID(ctx, c.ID()), primitives.ErrNotHeld)
	fixture.Release(t, c)
	x.RequireState(t, nil, "0")
	require.ErrorIs(t, x.RW.Reader().ReleaseID(ctx, c.ID()), primitives.ErrNotHeld)
	require.ErrorIs(t, fixture.ErrOf(x.RW.Reader().Adopt(ctx, c.ID())), primitives.ErrNotHeld)
}

func testWireWriterByID(t *testing.T, x *fixture.RWTest) {
	ctx := t.Context()
	w := fixture.Acquire(t, ctx, x.RW.Writer())
	fixture.Acquire(t, w.Context(), x.RW.Writer())
	r := fixture.Acquire(t, w.Context(), x.RW.Reader())
	require.ErrorIs(t, fixture.ErrOf(x.RW.Reader().Adopt(ctx, w.ID())), primitives.ErrUnsupported)
	v := fixture.Adopt(t, x.RW.Writer(), w.ID())
	x.RequireState(t, fixture.Writes(v.ID(), 2))
	require.ErrorIs(t, r.Check(ctx), primitives.ErrLost)
	require.ErrorIs(t, w.Check(ctx), primitives.ErrLost)
	require.NoError(t, x.RW.Writer().ReleaseID(ctx, v.ID()))
	x.RequireState(t, fixture.Writes(v.ID(), 1))
	require.NoError(t, x.RW.Writer().ReleaseID(ctx, v.ID()))
	x.RequireState(t, nil, "1")
	require.ErrorIs(t, v.Release(ctx), primitives.ErrLost)
}

// testWireForceRelease: each side releases its own holders only.
func testWireForceRelease(t *testing.T, x *fixture.RWTest) {
	ctx := t.Context()
	force := func(l *primitives.Lock, want bool) {
		t.Helper()
		held := fixture.ForceRelease(t, l)
		require.Equal(t, want, held)
	}
	force(x.RW.Reader(), false)
	force(x.RW.Writer(), false)
	x.RequireState(t, nil)
	a := fixture.Acquire(t, ctx, x.RW.Reader())
	fixture.Acquire(t, ctx, x.RW.Reader())
	force(x.RW.Writer(), false)
	force(x.RW.Reader(), true)
	x.RequireState(t, nil, "0")
	require.ErrorIs(t, a.Release(ctx), primitives.ErrLost)
	w := fixture.Acquire(t, ctx, x.RW.Writer())
	fixture.Acquire(t, w.Context(), x.RW.Reader())
	force(x.RW.Reader(), true)
	x.RequireState(t, fixture.Writes(w.ID(), 1))
	force(x.RW.Reader(), false)
	fixture.Acquire(t, w.Context(), x.RW.Reader())
	force(x.RW.Writer(), true)
	x.RequireState(t, fixture.Reads(w.ID(), 1), "1")
	require.ErrorIs(t, w.Release(ctx), primitives.ErrLost)
	force(x.RW.Reader(), true)
	x.RequireState(t, nil, "0")
}

// testWireWriterClaim: the claim of a waiting writer keeps new readers out, but not nested ones.
func testWireWriterClaim(t *testing.T, x *fixture.RWTest) {
	ctx := t.Context()
	claim := "redlatch_rwlock_claim:{" + x.Name + "}"
	r := fixture.Acquire(t, ctx, x.RW.Reader())
	cancelled, cancel := context.WithCancel(ctx)
	w := fixture.StartAcquire(cancelled, x.RW.Writer())
	redistest.WaitFor(t, fixture.Soon, func() bool { return x.Rdb.Exists(ctx, claim).Val() == 1 }, "the writer claims")
	x.RequireTTL(t, claim, 2500*time.Millisecond)
	_, err := x.Other(t).Reader().TryAcquire(ctx)
	require.ErrorIs(t, err, primitives.ErrNotAcquired, "a reader waits behind a waiting writer")
	require.ErrorIs(t, fixture.ErrOf(x.Other(t).Reader().TryAcquire(ctx, primitives.WithOwner("o"))),
		primitives.ErrNotAcquired)
	in := fixture.Acquire(t, r.Context(), x.RW.Reader())
	x.RequireState(t, fixture.Reads(r.ID(), 2))
	fixture.Release(t, in)
	require.True(t, x.Redisson(1).ReadLock(t, time.Minute), "Redisson does not know claims")
	x.Redisson(1).ReadUnlock(t)
	cancel()
	require.ErrorIs(t, fixture.Await(t, w).Err, primitives.ErrNotAcquired)
	// The call waits for the withdrawal for a moment only. The message below shows that the claim
	// has not just expired.
	redistest.WaitFor(t, fixture.Soon, func() bool { return x.Rdb.Exists(ctx, claim).Val() == 0 },
		"the claim is withdrawn")
	x.RequireState(t, fixture.Reads(r.ID(), 1), "1")
	w = fixture.StartAcquire(ctx, x.RW.Writer())
	redistest.WaitFor(t, fixture.Soon, func() bool { return x.Rdb.Exists(ctx, claim).Val() == 1 },
		"the writer claims again")
	fixture.Release(t, r)
	got := fixture.AwaitHold(t, w)
	x.RequireState(t, fixture.Writes(got.ID(), 1), "0")
	require.Zero(t, x.Rdb.Exists(ctx, claim).Val())
	fixture.Release(t, got)
	x.RequireState(t, nil, "1")
}

// A late copy of a command that confirms the count of a reader comes after the reader's release.
// Another acquisition still reads with that id.
func TestRWLockLateCopyOfAConfirmedCount(t *testing.T) {
	t.Parallel()
	fixture.EachRW(t, func(t *testing.T, x *fixture.RWTest) {
		ctx := t.Context()
		shared := fixture.Acquire(t, ctx, x.RW.Reader(), primitives.WithOwner("o"))
		run := scripts.NewRunner(x.Rdb, 0)
		defer run.Close()
		memory := "redisson_unlock_latch:{" + x.Name + "}:released"
		confirm := func() int64 {
			got, err := scripts.RWLockReadSetCount{
				Keys:         &scripts.Keys{Main: x.Name, SharedCounts: x.SharedCounts()},
				LatestChange: memory + ":count", MemoryKey: memory,
				Owner: "o", WantedPrivate: 1, TTL: time.Minute, NeededMs: -1, Change: 1,
				MemoryTTL: time.Minute,
			}.Do(ctx, run.Sender())
			require.NoError(t, err)
			return got.Number
		}
		require.NoError(t, x.Rdb.Set(ctx, memory, "2", time.Minute).Err())
		require.Zero(t, confirm())
		x.RequireState(t, fixture.Reads("o", 1))
		require.NoError(t, x.Rdb.Del(ctx, memory).Err())
		require.EqualValues(t, 1, confirm(), "without the release it counts")
		x.RequireState(t, fixture.Reads("o", 2))
		fixture.Release(t, shared)
	})
}

// A reader whose field is no count is data of another program.
func TestRWLockForeignCountOfAReader(t *testing.T) {
	t.Parallel()
	fixture.EachRW(t, func(t *testing.T, x *fixture.RWTest) {
		ctx := t.Context()
		fixture.Acquire(t, ctx, x.RW.Reader(), primitives.WithOwner("o"))
		require.NoError(t, x.Rdb.HSet(ctx, x.Name, "o", "1.5").Err())
		require.ErrorIs(t, fixture.ErrOf(x.RW.Reader().TryAcquire(ctx, primitives.WithOwner("o"))), primitives.ErrForeign)
		require.Equal(t, "1.5", x.Rdb.HGet(ctx, x.Name, "o").Val())
	})
}

// TestRWLockReleaseCostWithManyReaders bounds the Redis commands of a reader's release among ten
// thousand readers. The cost depends on whether other readers have longer leases.
func TestRWLockReleaseCostWithManyReaders(t *testing.T) {
	s := redistest.Fresh(t)
	rdb := s.Client(t)
	n := 10000
	if !redistest.Full() {
		n = 2000
	}
	type cost struct {
		time     time.Duration
		commands int64
	}
	perRelease := func(readers int, others, lease time.Duration, releases int) cost {
		x := fixture.OnRW(t, s)
		holds := make([]*primitives.Hold, releases)
		for i := range holds {
			holds[i] = fixture.Acquire(t, t.Context(), x.RW.Reader(), primitives.WithLease(time.Hour))
		}
		// Write the other readers as Redisson does. PExpireAt makes equal leases end in the same
		// millisecond.
		now := time.Now()
		pipe := rdb.Pipeline()
		for i := range readers {
			id := x.Redisson(i).ID
			pipe.HSet(t.Context(), x.Name, id, 1)
			pipe.Set(t.Context(), x.TimeoutKey(id, 1), "1", 0)
			pipe.PExpireAt(t.Context(), x.TimeoutKey(id, 1), now.Add(others))
		}
		for _, hold := range holds {
			pipe.PExpireAt(t.Context(), x.TimeoutKey(hold.ID(), 1), now.Add(lease))
		}
		pipe.PExpireAt(t.Context(), x.Name, now.Add(max(others, lease)))
		require.NoError(t, fixture.ErrOf(pipe.Exec(t.Context())))
		require.NoError(t, rdb.ConfigResetStat(t.Context()).Err())
		fixture.Release(t, holds...)
		n := time.Duration(len(holds))
		return cost{usec(t, rdb, "evalsha") / n, redistest.Commands(t, s).Total() / int64(n)}
	}
	few := perRelease(10, 2*time.Minute, time.Minute, 50)
	for _, tt := range []struct {
		name          string
		others, lease time.Duration
		releases      int
		limit         int64 // commands per release
	}{
		{"lease ends before the others", 2 * time.Minute, time.Minute, 50, 15},
		{"lease ends with the others", 2 * time.Minute, 2 * time.Minute, 50, 50},
		{"lease ends after the others", time.Minute, 2 * time.Minute, 1, int64(n) + 200},
	} {
		many := perRelease(n, tt.others, tt.lease, tt.releases)
		t.Logf("%s: %v and %d commands per release among 10 readers, %v and %d among %d", tt.name, few.time,
			few.commands, many.time, many.commands, n)
		require.Less(t, many.commands, tt.limit, tt.name)
	}
}

// usec returns how long the server has spent in a command since its statistics were reset.
func usec(t testing.TB, rdb *redis.Client, command string) time.Duration {
	t.Helper()
	stats, err := rdb.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	_, line, ok := strings.Cut(stats, "cmdstat_"+command+":")
	require.True(t, ok)
	_, figure, _ := strings.Cut(line, "usec=")
	figure, _, _ = strings.Cut(figure, ",")
	n, err := strconv.Atoi(figure)
	require.NoError(t, err)
	return time.Duration(n) * time.Microsecond
}

// TestRWLockInteroperatesWithRedisson runs both clients on one lock. redissonThread plays Redisson.
func TestRWLockInteroperatesWithRedisson(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		run  func(t *testing.T, x *fixture.RWTest, redisson *fixture.RedissonThread)
	}{
		{"readers release in either order", testRedissonReaders},
		{"each nested reader has a timeout key", testRedissonNestedReader},
		{"both share a thread id", testRedissonSharedID},
		{"a release corrects the TTL after Redisson's downgrade", testRedissonDowngrade},
		{"an expired Redisson reader blocks nobody", testRedissonExpiredReader},
		{"waiters on both sides", testRedissonWaiters},
		{"a reader whose timeout key is gone is lost", testRedissonTakesFromExpiredReader},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fixture.EachRW(t, func(t *testing.T, x *fixture.RWTest) {
				x.RequireState(t, nil) // subscribes
				tt.run(t, x, x.Redisson(1))
			})
		})
	}
}

func testRedissonReaders(t *testing.T, x *fixture.RWTest, redisson *fixture.RedissonThread) {
	ctx, reader := t.Context(), x.RW.Reader()
	require.True(t, redisson.ReadLock(t, 20*time.Second))
	a := fixture.Acquire(t, ctx, reader, primitives.WithLease(time.Minute))
	x.RequireState(t, fixture.MergeStates(fixture.Reads(redisson.ID, 1), fixture.Reads(a.ID(), 1)))
	redisson.ReadUnlock(t)
	x.RequireState(t, fixture.Reads(a.ID(), 1))
	x.RequireTTL(t, x.Name, time.Minute)
	require.True(t, redisson.ReadLock(t, 20*time.Second))
	require.True(t, redisson.ReadLock(t, 15*time.Second))
	fixture.Release(t, a)
	x.RequireState(t, fixture.Reads(redisson.ID, 2))
	x.RequireTTL(t, x.Name, 20*time.Second)
	redisson.ReadUnlock(t)
	redisson.ReadUnlock(t)
	x.RequireState(t, nil, "0")
}

// Redisson's readUnlock looks for a timeout key of each hold.
func testRedissonNestedReader(t *testing.T, x *fixture.RWTest, redisson *fixture.RedissonThread) {
	ctx, reader := t.Context(), x.RW.Reader()
	a := fixture.Acquire(t, ctx, reader)
	in := fixture.Acquire(t, a.Context(), reader)
	require.True(t, redisson.ReadLock(t, 20*time.Second))
	fixture.Release(t, a)
	redisson.ReadUnlock(t)
	x.RequireState(t, fixture.Reads(a.ID(), 1))
	fixture.Release(t, in)
	x.RequireState(t, nil, "0")
}

func testRedissonSharedID(t *testing.T, x *fixture.RWTest, redisson *fixture.RedissonThread) {
	ctx, reader := t.Context(), x.RW.Reader()
	require.True(t, redisson.ReadLock(t, 20*time.Second))
	shared := fixture.Acquire(t, ctx, reader, primitives.WithOwner(redisson.ID))
	x.RequireState(t, fixture.Reads(redisson.ID, 2))
	redisson.ReadUnlock(t)
	x.RequireState(t, fixture.Reads(redisson.ID, 1))
	require.NoError(t, shared.Check(ctx))
	fixture.Release(t, shared)
	x.RequireState(t, nil, "0")
}

// Redisson leaves the writer's TTL on the hash after a downgrade.
func testRedissonDowngrade(t *testing.T, x *fixture.RWTest, redisson *fixture.RedissonThread) {
	ctx, reader := t.Context(), x.RW.Reader()
	require.True(t, redisson.WriteLock(t, time.Hour))
	require.True(t, redisson.ReadLock(t, 20*time.Second))
	redisson.WriteUnlock(t)
	x.RequireTTL(t, x.Name, time.Hour)
	fixture.Release(t, fixture.Acquire(t, ctx, reader))
	x.RequireState(t, fixture.Reads(redisson.ID, 1))
	x.RequireTTL(t, x.Name, 20*time.Second)
	redisson.ReadUnlock(t)
	x.RequireState(t, nil, "0")
}

func testRedissonExpiredReader(t *testing.T, x *fixture.RWTest, redisson *fixture.RedissonThread) {
	ctx, reader := t.Context(), x.RW.Reader()
	require.True(t, redisson.ReadLock(t, 20*time.Second))
	a := fixture.Acquire(t, ctx, reader)
	require.NoError(t, x.Rdb.Del(ctx, x.TimeoutKey(redisson.ID, 1)).Err())
	fixture.Release(t, a)
	x.RequireState(t, nil, "0")
}

func testRedissonWaiters(t *testing.T, x *fixture.RWTest, redisson *fixture.RedissonThread) {
	ctx, reader := t.Context(), x.RW.Reader()
	require.True(t, redisson.WriteLock(t, time.Minute))
	waiting := []<-chan fixture.Result{fixture.StartAcquire(ctx, reader)}
	for range 3 {
		waiting = append(waiting, fixture.StartAcquire(ctx, reader))
	}
	x.AwaitWaiter(t)
	redisson.WriteUnlock(t)
	for _, w := range waiting {
		got := fixture.AwaitHold(t, w)
		defer fixture.Release(t, got)
	}
	require.False(t, redisson.WriteLock(t, time.Minute))
	w := fixture.StartAcquire(ctx, x.RW.Writer(), primitives.WithWait(50*time.Millisecond))
	require.ErrorIs(t, fixture.Await(t, w).Err, primitives.ErrNotAcquired)
}

// A readUnlock by Redisson deletes the lock although a reader without a timeout key is in it.
func testRedissonTakesFromExpiredReader(t *testing.T, x *fixture.RWTest, redisson *fixture.RedissonThread) {
	ctx := t.Context()
	b := fixture.Acquire(t, ctx, x.RW.Reader())
	require.NoError(t, x.Rdb.Del(ctx, x.TimeoutKey(b.ID(), 1)).Err())
	require.ErrorIs(t, b.Check(ctx), primitives.ErrLost)
	fixture.RequireEnds(t, b.Context(), primitives.ErrLost)
}
