package faults

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/fixture"
	"github.com/redlatch/redlatch/internal/kinds"
	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// TestSemaphoreWaitersPollWhenMessagesAreLost drops all messages. Waiters acquire by the slow poll.
func TestSemaphoreWaitersPollWhenMessagesAreLost(t *testing.T) {
	t.Parallel()
	EachSemaphore(t, func(t *testing.T, s *redistest.Server, open OpenSemaphore, key string) {
		t.Parallel()
		ctx := t.Context()
		p := s.Proxy(t)
		p.DropMessages(true)
		sem, other := open(NewClient(t, p.Client(t))), open(NewClient(t, s.Client(t)))
		InitPool(t, other, 1)
		hold := Acquire(t, ctx, other)
		waiting := Start(func() (*primitives.Hold, error) { return sem.Acquire(ctx) })
		AwaitWaiter(t, s, key)
		require.NoError(t, hold.Release(ctx))
		released := time.Now()
		got := Await(t, waiting)
		require.NoError(t, got.Err)
		require.Less(t, got.At.Sub(released), SlowPoll)
		require.NoError(t, got.Hold.Release(ctx))
	})
}

// TestSemaphoreCountsAreExactWhenRepliesAreLost drops replies at random.
func TestSemaphoreCountsAreExactWhenRepliesAreLost(t *testing.T) {
	t.Parallel()
	EachSemaphore(t, func(t *testing.T, s *redistest.Server, open OpenSemaphore, key string) {
		measured := redistest.Bar(t, s, 1)
		ctx := t.Context()
		rdb := s.Client(t)
		p := s.Proxy(t)
		p.DropRepliesRandomly(0.3, 1, Script)
		sem := open(NewClient(t, p.Client(t, Patient)))
		InitPool(t, sem, 10)
		want := 10
		rounds := redistest.Sized(s, redistest.Scaled(s, 900), 24_000)
		for i := range rounds { // 2,000 calls, or 10,000 lost replies for each
			n := 1 + i%3
			hold := Acquire(t, ctx, sem, primitives.WithPermits(n))
			require.Equal(t, want-n, Available(t, rdb, key))
			require.NoError(t, hold.Release(ctx))
			if i%5 == 0 {
				require.NoError(t, sem.Add(ctx, 1))
				want++
			}
			require.Equal(t, want, Available(t, rdb, key))
		}
		measured("%d acquisitions and as many releases, with 0.43 lost replies for each", rounds)
	})
}

// TestSemaphoresRollBackFailedAcquisitions uses a client without retries. Its calls fail when
// replies are lost, and their permits come back.
func TestSemaphoresRollBackFailedAcquisitions(t *testing.T) {
	t.Parallel()
	EachSemaphore(t, func(t *testing.T, s *redistest.Server, open OpenSemaphore, key string) {
		ctx := t.Context()
		rdb := s.Client(t)
		p := s.Proxy(t)
		c := NewClient(t, p.Client(t, NoRetries))
		sem := open(c)
		InitPool(t, sem, 4)
		p.DropRepliesRandomly(0.5, 2, Script)
		lost := 0
		for range redistest.Scaled(s, 400) {
			hold, err := sem.TryAcquire(ctx, primitives.WithPermits(2))
			if errors.Is(err, primitives.ErrNotAcquired) {
				time.Sleep(time.Millisecond) // rollbacks may be under way
				continue
			}
			if err == nil {
				err = hold.Release(ctx)
			}
			if err != nil {
				lost++
			}
		}
		require.Positive(t, lost)
		p.Heal()
		redistest.WaitFor(t, Soon, func() bool { return Available(t, rdb, key) == 4 }, "all permits are back")
		require.NoError(t, c.Close(t.Context())) // no rollback is under way any longer
		require.Equal(t, 4, Available(t, rdb, key), "no permit is returned twice")
	})
}

// TestSemaphoreCancelledAcquireLeavesNothing cancels acquisitions at random times.
func TestSemaphoreCancelledAcquireLeavesNothing(t *testing.T) {
	t.Parallel()
	EachSemaphore(t, func(t *testing.T, s *redistest.Server, open OpenSemaphore, key string) {
		measured := redistest.Bar(t, s, 4)
		c := NewClient(t, s.Client(t))
		rdb := s.Client(t)
		sem := open(c)
		InitPool(t, sem, 3)
		rounds := redistest.Sized(s, redistest.Scaled(s, 250), 100_000/8)
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				random := rand.New(rand.NewPCG(uint64(i), 0))
				for range rounds {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.IntN(3000))*time.Microsecond)
					hold, err := sem.Acquire(ctx, primitives.WithPermits(1+random.IntN(3)))
					if err == nil {
						err = hold.Release(ctx)
					} else if errors.Is(err, primitives.ErrNotAcquired) && errors.Is(err, context.DeadlineExceeded) {
						err = nil
					}
					if err != nil {
						t.Error(err)
					}
					cancel()
				}
			})
		}
		wg.Wait()
		over := time.Now()
		redistest.WaitFor(t, GoneIn(s), func() bool { return Available(t, rdb, key) == 3 }, "all permits are back")
		redistest.WaitFor(t, GoneIn(s), func() bool {
			return slices.Equal([]string{key}, Leftovers(t, s, key))
		}, "nothing is left but the pool")
		measured("%d cancelled acquisitions, nothing left after %v", 8*rounds, time.Since(over).Round(time.Millisecond))
		require.NoError(t, c.Close(t.Context()))
	})
}

// TestSemaphoresReleaseWhenRedisIsFull checks that a full server refuses acquisitions, and accepts
// releases and extensions.
func TestSemaphoresReleaseWhenRedisIsFull(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	rdb := s.Client(t)
	for _, kind := range kinds.Pools() {
		t.Run(kind.Name, func(t *testing.T) {
			ctx := t.Context()
			sem := kind.OpenPool(NewClient(t, rdb), redistest.Name(t))
			latch := NewClient(t, rdb).CountDownLatch(redistest.Name(t))
			InitPool(t, sem, 3)
			require.NoError(t, ErrOf(latch.Init(ctx, 2)))
			hold := Acquire(t, ctx, sem)
			require.NoError(t, rdb.ConfigSet(ctx, "maxmemory", "1").Err())
			defer rdb.ConfigSet(context.Background(), "maxmemory", "0")
			_, err := sem.Acquire(ctx)
			require.ErrorContains(t, err, "OOM")
			require.NotErrorIs(t, err, primitives.ErrNotAcquired)
			if kind.Name == "permits" {
				require.NoError(t, hold.Extend(ctx, time.Hour))
				require.Greater(t, time.Until(hold.ValidUntil()), 50*time.Minute)
			}
			require.NoError(t, hold.Release(ctx))
			info, err := sem.Info(ctx)
			require.NoError(t, err)
			require.Equal(t, 3, info.Available)
			require.NoError(t, latch.CountDown(ctx))
			require.NoError(t, latch.CountDown(ctx))
			require.NoError(t, latch.Wait(ctx))
		})
	}
}

// TestSemaphoresCheckPermissionsBeforeAcquiring uses a client that may not publish on the channel.
// It acquires nothing, since it could not release.
func TestSemaphoresCheckPermissionsBeforeAcquiring(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	rdb := s.Client(t)
	require.NoError(t,
		rdb.Do(t.Context(), "acl", "setuser", "mute", "on", "nopass", "+@all", "~*", "resetchannels").Err())
	for _, kind := range kinds.Pools() {
		t.Run(kind.Name, func(t *testing.T) {
			key := redistest.Name(t)
			InitPool(t, kind.OpenPool(NewClient(t, rdb), key), 1)
			mute := NewClient(t, s.Client(t, func(o *redis.Options) { o.Username, o.Password = "mute", "any" }))
			require.ErrorContains(t, ErrOf(kind.OpenPool(mute, key).Acquire(t.Context())), "NOPERM")
			require.Equal(t, 1, Available(t, rdb, key))
		})
	}
}

// TestLateCopiesChangeNothing executes every recorded command of semaphores and latches again, in
// other states than before.
func TestLateCopiesChangeNothing(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("ab", 16)
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, key, rdb := t.Context(), redistest.Name(t), s.Client(t)
		p := s.Proxy(t)
		c := NewClient(t, p.Client(t))
		sem, permits, latch := c.Semaphore(key+"s"), c.PermitExpirableSemaphore(key+"p"), c.CountDownLatch(key+"l")
		everything := func() {
			for _, pool := range []Countable{sem, permits} {
				_, _ = pool.Init(ctx, 3)
				_ = pool.Add(ctx, 1)
				if hold, err := pool.TryAcquire(ctx); err == nil {
					_ = hold.Release(ctx)
				}
				_, _ = pool.Info(ctx)
				_, _ = pool.Delete(ctx)
			}
			_, _ = sem.Drain(ctx)
			_ = permits.Resize(ctx, 2)
			_ = permits.ReleaseID(ctx, id)
			if hold, err := permits.TryAcquire(ctx); err == nil {
				if adopted, err := permits.Adopt(ctx, hold.ID()); err == nil {
					_ = adopted.Release(ctx)
				}
				_ = hold.Release(ctx)
			}
			_, _ = latch.Init(ctx, 1)
			_ = latch.CountDown(ctx)
			_, _ = latch.Delete(ctx)
		}
		deleteAll := func() {
			require.NoError(t, rdb.Del(ctx, key+"s", key+"p", key+"l", "{"+key+"p}:timeout").Err())
		}
		set := func() {
			deleteAll()
			require.NoError(t, rdb.MSet(ctx, key+"s", 7, key+"p", 7, key+"l", 7).Err())
			require.NoError(t, rdb.ZAdd(ctx, "{"+key+"p}:timeout", redis.Z{Score: Never, Member: Unhex(t, id)}).Err())
		}
		state := func() (state []any) {
			numbers, err := rdb.MGet(ctx, key+"s", key+"p", key+"l").Result()
			require.NoError(t, err)
			return append(numbers, rdb.ZCard(ctx, "{"+key+"p}:timeout").Val())
		}
		states := []func(){deleteAll, set}
		for i, during := range states { // the state that the commands find
			during()
			p.Record()
			everything()
			copies := p.Commands()
			for j, after := range states { // the state that their copies find
				after()
				before := state()
				for _, command := range copies {
					if Script(command.Args) {
						args := make([]any, len(command.Args))
						for k, arg := range command.Args {
							args[k] = arg
						}
						require.NoError(t, ignoreNil(rdb.Do(ctx, args...).Err()))
						require.Equal(t, before, state(), "%d, %d: %q", i, j, command.Args)
					}
				}
			}
		}
	})
}

// ignoreNil returns err unless it is redis.Nil.
func ignoreNil(err error) error {
	if errors.Is(err, redis.Nil) {
		return nil
	}
	return err
}

// TestPermitsOfACrashedHolderComeBack cuts off one holder. Its permits come back within their TTL. The
// permits of another holder are renewed.
func TestPermitsOfACrashedHolderComeBack(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, key := t.Context(), redistest.Name(t)
		const ttl = Watched
		p := s.Proxy(t)
		crashed := NewClient(t, p.Client(t, Hasty), Busy,
			primitives.WithDefaults(primitives.WithWatchdog(ttl))).PermitExpirableSemaphore(key)
		sem := NewClient(t, s.Client(t),
			primitives.WithDefaults(primitives.WithWatchdog(ttl))).PermitExpirableSemaphore(key)
		InitPool(t, sem, 3)
		renewed := Acquire(t, ctx, sem)
		lost := Acquire(t, ctx, crashed, primitives.WithPermits(2))
		began := time.Now()
		p.BlackHole(true)
		hold := Acquire(t, ctx, sem, primitives.WithPermits(2))
		require.Less(t, time.Since(began), ttl+SlowPoll)
		require.Error(t, context.Cause(lost.Context()), "the lease ended before the next holder acquired")
		RequireEnds(t, lost.Context(), primitives.ErrLost)
		RequireLive(t, renewed.Context())
		require.NoError(t, renewed.Check(ctx))
		require.NoError(t, hold.Release(ctx))
		require.NoError(t, renewed.Release(ctx))
	})
}

// TestLatchCountIsExactWhenRepliesAreLost drops replies at random. Each CountDown counts once.
func TestLatchCountIsExactWhenRepliesAreLost(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, key, rdb := t.Context(), redistest.Name(t), s.Client(t)
		measured := redistest.Bar(t, s, 1)
		n := redistest.Sized(s, redistest.Scaled(s, 1000), 24_000)
		p := s.Proxy(t)
		p.DropRepliesRandomly(0.3, 3, Script)
		latch := NewClient(t, p.Client(t, Patient)).CountDownLatch(key)
		created, err := latch.Init(ctx, n)
		require.NoError(t, err)
		require.True(t, created)
		for left := n - 1; left > 0; left-- {
			require.NoError(t, latch.CountDown(ctx))
			require.Equal(t, left, Available(t, rdb, key))
		}
		require.NoError(t, latch.CountDown(ctx))
		require.Zero(t, rdb.Exists(ctx, key).Val())
		measured("%d count-downs, with 0.43 lost replies for each", n)
	})
}
