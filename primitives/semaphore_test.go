package primitives_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// TestSemaphoreWireFormat checks the number in Redis and the published messages after each call.
func TestSemaphoreWireFormat(t *testing.T) {
	t.Parallel()
	eachNetwork(t, func(t *testing.T, s *redistest.Server, c *primitives.Client) {
		ctx, key := t.Context(), redistest.Name(t)
		sem := c.Semaphore(key)
		w := &counterState{s.Client(t), key, fixture.Subscribe(t, s, "redisson_sc:{"+key+"}")}
		var hold *primitives.Hold
		take := func(n int) (any, error) {
			hold = fixture.Acquire(t, ctx, sem, primitives.WithPermits(n))
			return nil, nil
		}
		try := func(n int) (any, error) { return nil, fixture.ErrOf(sem.TryAcquire(ctx, primitives.WithPermits(n))) }
		negative := primitives.Info{Name: key, Kind: "semaphore", Permits: -2, Available: -2}
		w.requireSteps(t, []wireStep{
			{"Init", func() (any, error) { return sem.Init(ctx, 3) }, true, "3", "3"},
			{"the second Init changes nothing", func() (any, error) { return sem.Init(ctx, 5) }, false, "3", ""},
			{"take 2", func() (any, error) { return take(2) }, nil, "1", ""},
			{"2 of 1 are refused", func() (any, error) { return try(2) }, primitives.ErrNotAcquired, "1", ""},
			{"Release", func() (any, error) { return nil, hold.Release(ctx) }, nil, "3", "3"},
			{"the second Release", func() (any, error) { return nil, hold.Release(ctx) }, primitives.ErrReleased, "3", ""},

			{"Add", func() (any, error) { return nil, sem.Add(ctx, 2) }, nil, "5", "5"},
			{"a number below 0 is not published", func() (any, error) { return nil, sem.Add(ctx, -7) }, nil, "-2", ""},
			{"Info", func() (any, error) { return sem.Info(ctx) }, negative, "-2", ""},
			{"Drain of a number below 0", func() (any, error) { return sem.Drain(ctx) }, -2, "0", ""},

			{"Redisson releases", func() (any, error) { return w.rdb.IncrBy(ctx, key, 4).Result() }, int64(4), "4", ""},
			{"Redisson sets a TTL", func() (any, error) { return w.rdb.PExpire(ctx, key, time.Hour).Result() }, true, "4", ""},
			{"take 1", func() (any, error) { return take(1) }, nil, "3", ""},
			{"Add with a TTL", func() (any, error) { return nil, sem.Add(ctx, 1) }, nil, "4", "4"},
			{"Release with a TTL", func() (any, error) { return nil, hold.Release(ctx) }, nil, "5", "5"},
			{"Drain", func() (any, error) { return sem.Drain(ctx) }, 5, "0", ""},
			{"the TTL stays", func() (any, error) { return w.rdb.PTTL(ctx, key).Val() > 50*time.Minute, nil }, true, "0", ""},

			{"Delete", func() (any, error) { return sem.Delete(ctx) }, true, "", ""},
			{"Delete of nothing", func() (any, error) { return sem.Delete(ctx) }, false, "", ""},
			{"Drain of nothing", func() (any, error) { return sem.Drain(ctx) }, 0, "", ""},
			{"1 of nothing is refused", func() (any, error) { return try(1) }, primitives.ErrNotAcquired, "", ""},
			{"Add creates the semaphore", func() (any, error) { return nil, sem.Add(ctx, 2) }, nil, "2", "2"},
			{"take all", func() (any, error) { return take(2) }, nil, "0", ""},
			{"another deletes it", func() (any, error) { return w.rdb.Del(ctx, key).Result() }, int64(1), "", ""},
			{"Release of nothing", func() (any, error) { return nil, hold.Release(ctx) }, primitives.ErrLost, "", ""},
		})
	})
}

func TestSemaphoresRejectInvalidArguments(t *testing.T) {
	acquire := func(opt primitives.Option) func(ctx context.Context, sem fixture.Countable) error {
		return func(ctx context.Context, sem fixture.Countable) error { return fixture.ErrOf(sem.Acquire(ctx, opt)) }
	}
	tooMany := math.MaxInt32
	tooMany++ // below 0 where an int has 32 bits
	rows := []struct {
		name string
		do   func(ctx context.Context, sem fixture.Countable) error
	}{
		{"init below 0", func(ctx context.Context, sem fixture.Countable) error { return fixture.ErrOf(sem.Init(ctx, -1)) }},
		{"init beyond 32 bits", func(ctx context.Context,
			sem fixture.Countable) error {
			return fixture.ErrOf(sem.Init(ctx, tooMany))
		}},
		{"add beyond 32 bits", func(ctx context.Context, sem fixture.Countable) error { return sem.Add(ctx, -1<<31) }},
		{"try permits below 0", func(ctx context.Context, sem fixture.Countable) error {
			return fixture.ErrOf(sem.TryAcquire(ctx, primitives.WithPermits(-1)))
		}},
		{"permits below 0", acquire(primitives.WithPermits(-1))},
		{"too many permits", acquire(primitives.WithPermits(tooMany))},
		{"lease of 0", acquire(primitives.WithLease(0))},
		{"wait below 0", acquire(primitives.WithWait(-1))},
	}
	for _, kind := range kinds.Pools() {
		s := redistest.Miniredis(t)
		sem := kind.OpenPool(fixture.NewClient(t, s.Client(t)), "n")
		for _, row := range rows {
			t.Run(kind.Name+"/"+row.name, func(t *testing.T) {
				require.ErrorIs(t, row.do(t.Context(), sem), primitives.ErrInvalid)
			})
		}
		require.ErrorIs(t, fixture.ErrOf(kind.OpenPool(fixture.NewClient(t, s.Client(t)), "").Acquire(t.Context())),
			primitives.ErrInvalid)
		require.Zero(t, redistest.Commands(t, s).Total(), "no command is sent")
	}
}

// TestSemaphoresLeaveKeysOfOtherTypes calls each method on a key that holds something else. The key
// stays as it is, and the error says why.
func TestSemaphoresLeaveKeysOfOtherTypes(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	rdb := s.Client(t)
	key := redistest.Name(t)
	c := fixture.NewClient(t, rdb)
	sem, permits, latch := c.Semaphore(key), c.PermitExpirableSemaphore(key), c.CountDownLatch(key)
	id := strings.Repeat("ab", 16)
	calls := map[string]func(ctx context.Context) error{
		"init":           func(ctx context.Context) error { return fixture.ErrOf(sem.Init(ctx, 1)) },
		"add":            func(ctx context.Context) error { return sem.Add(ctx, 1) },
		"drain":          func(ctx context.Context) error { return fixture.ErrOf(sem.Drain(ctx)) },
		"delete":         func(ctx context.Context) error { return fixture.ErrOf(sem.Delete(ctx)) },
		"info":           func(ctx context.Context) error { return fixture.ErrOf(sem.Info(ctx)) },
		"acquire":        func(ctx context.Context) error { return fixture.ErrOf(sem.Acquire(ctx)) },
		"permits init":   func(ctx context.Context) error { return fixture.ErrOf(permits.Init(ctx, 1)) },
		"permits add":    func(ctx context.Context) error { return permits.Add(ctx, 1) },
		"permits resize": func(ctx context.Context) error { return permits.Resize(ctx, 1) },
		"permits delete": func(ctx context.Context) error { return fixture.ErrOf(permits.Delete(ctx)) },
		"permits info":   func(ctx context.Context) error { return fixture.ErrOf(permits.Info(ctx)) },
		"permits take":   func(ctx context.Context) error { return fixture.ErrOf(permits.Acquire(ctx)) },
		"permits adopt":  func(ctx context.Context) error { return fixture.ErrOf(permits.Adopt(ctx, id)) },
		"permits id":     func(ctx context.Context) error { return permits.ReleaseID(ctx, id) },
		"latch init":     func(ctx context.Context) error { return fixture.ErrOf(latch.Init(ctx, 1)) },
		"latch count":    func(ctx context.Context) error { return fixture.ErrOf(latch.Count(ctx)) },
		"latch down":     func(ctx context.Context) error { return latch.CountDown(ctx) },
		"latch delete":   func(ctx context.Context) error { return fixture.ErrOf(latch.Delete(ctx)) },
		"latch wait":     func(ctx context.Context) error { return latch.Wait(ctx) },
	}
	foreign := []struct {
		name, message string
		put           func(ctx context.Context) error
		only          string // the calls with that prefix
	}{
		{"hash", "WRONGTYPE", func(ctx context.Context) error { return rdb.HSet(ctx, key, "a", "b").Err() }, ""},
		{"text", "not an integer", func(ctx context.Context) error { return rdb.Set(ctx, key, "text", 0).Err() }, ""},
		{"leases of another type", "WRONGTYPE", func(ctx context.Context) error {
			return rdb.HSet(ctx, "{"+key+"}:timeout", "a", "b").Err()
		}, "permits"},
	}
	for _, f := range foreign {
		for name, call := range calls {
			if !strings.HasPrefix(name, f.only) {
				continue
			}
			t.Run(f.name+"/"+name, func(t *testing.T) {
				ctx := t.Context()
				require.NoError(t, rdb.Del(ctx, key, "{"+key+"}:timeout").Err())
				require.NoError(t, f.put(ctx))
				err := call(ctx)
				require.ErrorContains(t, err, f.message)
				require.NotErrorIs(t, err, primitives.ErrNotAcquired)
				left := redistest.Keys(t, s, "*"+key+"*")
				left = slices.DeleteFunc(left, func(k string) bool {
					return strings.HasPrefix(k, "redisson_unlock_latch")
				})
				require.Len(t, left, 1)
			})
		}
	}
}

// TestSemaphoreAcquiresNoPermits acquires 0 permits.
func TestSemaphoreAcquiresNoPermits(t *testing.T) {
	for _, kind := range kinds.Pools() {
		t.Run(kind.Name, func(t *testing.T) {
			s := redistest.Miniredis(t)
			c := fixture.NewClient(t, s.Client(t))
			sem := kind.OpenPool(c, "n")
			hold := fixture.Acquire(t, t.Context(), sem, primitives.WithPermits(0))
			require.Empty(t, hold.ID())
			fixture.RequireLive(t, hold.Context())
			fixture.Release(t, hold)
			require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrReleased)
			fixture.RequireEnds(t, hold.Context(), primitives.ErrReleased)
			done, cancel := context.WithCancel(t.Context())
			cancel()
			require.ErrorIs(t, fixture.ErrOf(sem.Acquire(done, primitives.WithPermits(0))), primitives.ErrNotAcquired)
			require.NoError(t, c.Close(t.Context()))
			require.ErrorIs(t, fixture.ErrOf(sem.Acquire(t.Context(), primitives.WithPermits(0))), primitives.ErrClosed)
			require.Zero(t, redistest.Commands(t, s).Total(), "no command is sent")
		})
	}
}

// TestSemaphoreHold checks the methods of a hold that has neither an id nor a lease.
func TestSemaphoreHold(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, key := t.Context(), redistest.Name(t)
		rdb := s.Client(t)
		c := fixture.NewClient(t, s.Client(t),
			primitives.WithDefaults(primitives.WithLease(time.Millisecond), primitives.WithOwner("x")))
		sem := c.Semaphore(key)
		fixture.InitPool(t, sem, 3)
		hold := fixture.Acquire(t, ctx, sem)
		require.Empty(t, hold.ID())
		require.Zero(t, hold.Token())
		require.Equal(t, 1, hold.Depth())
		require.True(t, hold.ValidUntil().IsZero())
		require.ErrorIs(t, hold.Check(ctx), primitives.ErrUnsupported)
		require.ErrorIs(t, hold.Extend(ctx, time.Second), primitives.ErrUnsupported)
		second := fixture.Acquire(t, hold.Context(), sem)
		require.Equal(t, 1, second.Depth(), "semaphores do not nest")
		require.Equal(t, 1, fixture.Available(t, rdb, key))
		require.Empty(t, second.Detach())
		fixture.RequireEnds(t, second.Context(), primitives.ErrReleased)
		require.ErrorIs(t, second.Release(ctx), primitives.ErrReleased)
		require.Equal(t, 1, fixture.Available(t, rdb, key), "a detached permit stays taken")
		require.NoError(t, rdb.Del(ctx, key).Err())
		time.Sleep(20 * time.Millisecond) // longer than the lease, which a plain semaphore ignores
		fixture.RequireLive(t, hold.Context())
		fixture.CloseNow(c)
		fixture.RequireEnds(t, hold.Context(), primitives.ErrClosed)
	})
}

// TestSemaphoreWakesWaitersWhenPermitsAppear makes permits available in several ways.
func TestSemaphoreWakesWaitersWhenPermitsAppear(t *testing.T) {
	t.Parallel()
	rows := []struct {
		name string
		n    int // initial permits; below 0 if none are set
		want int
		do   func(ctx context.Context, sem fixture.Countable, rdb *redis.Client, key string) error
	}{
		{"init", -1, 2, func(ctx context.Context, sem fixture.Countable, _ *redis.Client, _ string) error {
			return fixture.ErrOf(sem.Init(ctx, 2))
		}},
		{"add", 1, 3, func(ctx context.Context, sem fixture.Countable, _ *redis.Client, _ string) error {
			return sem.Add(ctx, 2)
		}},
		{"release by Redisson", 0, 1, func(ctx context.Context, _ fixture.Countable, rdb *redis.Client, key string) error {
			return errors.Join(rdb.Incr(ctx, key).Err(), rdb.Publish(ctx, "redisson_sc:{"+key+"}", "1").Err())
		}},
		{"set without a message", -1, 1, func(ctx context.Context, _ fixture.Countable, rdb *redis.Client, key string) error {
			return rdb.Set(ctx, key, 1, 0).Err()
		}},
	}
	fixture.EachSemaphore(t, func(t *testing.T, s *redistest.Server, open fixture.OpenSemaphore, key string) {
		t.Parallel()
		rdb := s.Client(t)
		for _, row := range rows {
			t.Run(row.name, func(t *testing.T) {
				ctx := t.Context()
				sem := open(fixture.NewClient(t, rdb))
				if row.n >= 0 {
					fixture.InitPool(t, sem, row.n)
				}
				waiting := fixture.StartAcquire(ctx, sem, primitives.WithPermits(row.want))
				fixture.AwaitWaiter(t, s, key)
				changed := time.Now()
				require.NoError(t, row.do(ctx, sem, rdb, key))
				got := fixture.AwaitAcquired(t, waiting)
				require.Less(t, got.At.Sub(changed), fixture.SlowPoll)
				require.NoError(t, got.Hold.Release(ctx))
				require.NoError(t, fixture.ErrOf(sem.Delete(ctx)))
			})
		}
		fixture.RequireClean(t, s, key)
	})
}

// TestSemaphoreWithoutACountSaysSo lets acquisitions give up on a semaphore that was never set, or
// that was deleted while they waited. All of them are told, even those that made no attempt of
// their own. With a count they are not.
func TestSemaphoreWithoutACountSaysSo(t *testing.T) {
	t.Parallel()
	const hint = "(the semaphore has no count: Init sets it)"
	fixture.EachSemaphore(t, func(t *testing.T, s *redistest.Server, open fixture.OpenSemaphore, key string) {
		t.Parallel()
		ctx := t.Context()
		proxy, rdb := s.Proxy(t), s.Client(t)
		c := fixture.NewClient(t, proxy.Client(t))
		sem := open(c)
		_, err := sem.TryAcquire(ctx)
		require.ErrorIs(t, err, primitives.ErrNotAcquired)
		require.ErrorContains(t, err, hint)
		// On a busy machine, the answer to the first attempt takes a while.
		_, err = sem.Acquire(ctx, primitives.WithWait(500*time.Millisecond))
		require.ErrorIs(t, err, primitives.ErrNotAcquired)
		require.ErrorContains(t, err, hint)

		fixture.InitPool(t, sem, 0)
		_, err = sem.Acquire(ctx, primitives.WithWait(50*time.Millisecond))
		require.ErrorIs(t, err, primitives.ErrNotAcquired)
		require.NotContains(t, err.Error(), hint)

		waiting, cancel := context.WithCancel(ctx)
		var waiters []<-chan fixture.Result
		for i := range 3 {
			waiters = append(waiters, fixture.StartAcquire(waiting, sem))
			fixture.AwaitWaiters(t, c, i+1)
		}
		require.NoError(t, rdb.Del(ctx, key).Err()) // announces nothing: a poll would find it within a second
		proxy.Record()
		for attempts := 1; attempts <= 2; attempts++ { // when the second one is sent, the first was answered
			require.NoError(t, rdb.Publish(ctx, "redisson_sc:{"+key+"}", "1").Err())
			redistest.WaitFor(t, fixture.Soon, func() bool {
				return len(fixture.Recorded(proxy, redistest.Mentions(key))) >= attempts
			}, "a waiter tries")
		}
		fixture.AwaitQuiet(t, proxy, redistest.Mentions(key)) // no attempt is under way, whose error would say that
		cancel()
		for _, waiter := range waiters {
			err := fixture.Await(t, waiter).Err
			require.ErrorIs(t, err, primitives.ErrNotAcquired)
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorContains(t, err, hint)
		}
	})
}

// TestSemaphoreWaiterForManyDoesNotBlockOthers has a waiter for more permits than there are.
// Waiters for one permit acquire, on the same client and on another.
func TestSemaphoreWaiterForManyDoesNotBlockOthers(t *testing.T) {
	t.Parallel()
	fixture.EachSemaphore(t, func(t *testing.T, s *redistest.Server, open fixture.OpenSemaphore, key string) {
		ctx := t.Context()
		rdb := s.Client(t)
		c := fixture.NewClient(t, s.Client(t))
		sem, other := open(c), open(fixture.NewClient(t, s.Client(t)))
		fixture.InitPool(t, sem, 3)
		all := fixture.Acquire(t, ctx, sem, primitives.WithPermits(3))
		many := fixture.StartAcquire(ctx, sem, primitives.WithPermits(5))
		fixture.AwaitWaiter(t, s, key)
		few := make([]<-chan fixture.Result, 3)
		for i := range few {
			few[i] = fixture.Start(func() (*primitives.Hold, error) {
				if i == 2 {
					return other.Acquire(ctx)
				}
				return sem.Acquire(ctx)
			})
		}
		fixture.AwaitWaiters(t, c, 3)
		released := time.Now()
		fixture.Release(t, all)
		holds := make([]*primitives.Hold, len(few))
		for i := range few {
			got := fixture.AwaitAcquired(t, few[i])
			require.Less(t, got.At.Sub(released), fixture.SlowPoll)
			holds[i] = got.Hold
		}
		require.Empty(t, many)
		require.NoError(t, sem.Add(ctx, 2))
		fixture.Release(t, holds...)
		fixture.Release(t, fixture.AwaitHold(t, many))
		require.Equal(t, 5, fixture.Available(t, rdb, key))
	})
}

func TestSemaphoresInACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t)
	c := fixture.NewClient(t, cluster.ClusterClient(t))
	for _, kind := range kinds.Pools() {
		t.Run(kind.Name, func(t *testing.T) {
			ctx := t.Context()
			for _, name := range []string{"{}x", "a{b", "a}b"} {
				require.ErrorIs(t, fixture.ErrOf(kind.OpenPool(c, name).Init(ctx, 1)), primitives.ErrInvalid, name)
			}
			for _, name := range []string{redistest.Name(t), "{" + redistest.Name(t) + "}b"} {
				sem := kind.OpenPool(c, name)
				fixture.InitPool(t, sem, 2)
				hold := fixture.Acquire(t, ctx, sem, primitives.WithPermits(2))
				waiting := fixture.StartAcquire(ctx, sem)
				fixture.Release(t, hold)
				fixture.Release(t, fixture.AwaitHold(t, waiting))
				require.NoError(t, fixture.ErrOf(sem.Delete(ctx)))
			}
		})
	}
}
