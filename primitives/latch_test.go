package primitives_test

import (
	"context"
	"errors"
	"math"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// latchChannel returns the channel of a latch.
func latchChannel(key string) string { return "redisson_countdownlatch__channel__{" + key + "}" }

// Redisson's counts are Java longs. Lua cannot represent the largest ones exactly, but the latch is
// shut.
func TestLatchOfTheLargestCount(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name, rdb := redistest.Name(t), s.Client(t)
		latch := fixture.NewClient(t, rdb).CountDownLatch(name)
		require.NoError(t, rdb.Set(t.Context(), name, math.MaxInt64, 0).Err())
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, latch.Wait(ctx), context.DeadlineExceeded)
		require.NoError(t, latch.CountDown(t.Context()))
		require.Equal(t, strconv.FormatInt(math.MaxInt64-1, 10), rdb.Get(t.Context(), name).Val())
		count, err := latch.Count(t.Context())
		require.NoError(t, err)
		require.InDelta(t, math.MaxInt64, count, 1024)
	})
}

// TestLatchWireFormat checks the number in Redis and the published messages after each call.
func TestLatchWireFormat(t *testing.T) {
	t.Parallel()
	eachNetwork(t, func(t *testing.T, s *redistest.Server, c *primitives.Client) {
		ctx, key := t.Context(), redistest.Name(t)
		latch := c.CountDownLatch(key)
		w := &counterState{s.Client(t), key, fixture.Subscribe(t, s, latchChannel(key))}
		down := func() (any, error) { return nil, latch.CountDown(ctx) }
		count := func() (any, error) { return latch.Count(ctx) }
		wait := func() (any, error) { return nil, latch.Wait(ctx) }
		set := func(n int) func() (any, error) { // as Redisson does
			return func() (any, error) { return nil, w.rdb.Set(ctx, key, n, 0).Err() }
		}
		w.requireSteps(t, []wireStep{
			{"CountDown without a latch", down, nil, "", ""},
			{"Count without a latch", count, int64(0), "", ""},
			{"Wait without a latch", wait, nil, "", ""},
			{"Init", func() (any, error) { return latch.Init(ctx, 2) }, true, "2", "1"},
			{"the second Init changes nothing", func() (any, error) { return latch.Init(ctx, 3) }, false, "2", ""},
			{"Count", count, int64(2), "2", ""},
			{"CountDown", down, nil, "1", ""},
			{"the last CountDown", down, nil, "", "0"},
			{"Wait for an open latch", wait, nil, "", ""},
			{"Init after it was open", func() (any, error) { return latch.Init(ctx, 1) }, true, "1", "1"},
			{"Delete", func() (any, error) { return latch.Delete(ctx) }, true, "", "1"},
			{"Delete of nothing", func() (any, error) { return latch.Delete(ctx) }, false, "", ""},
			{"Redisson sets 0", set(0), nil, "0", ""},
			{"Count of 0", count, int64(0), "0", ""},
			{"Wait for 0", wait, nil, "0", ""},
			{"CountDown of 0 publishes none: a false 0 makes Redisson spin", down, nil, "", ""},
			{"Redisson sets -3", set(-3), nil, "-3", ""},
			{"Count of -3", count, int64(0), "-3", ""},
			{"Wait for -3", wait, nil, "-3", ""},
			{"CountDown of -3 publishes none either", down, nil, "", ""},
			{"Init of 0", func() (any, error) { return latch.Init(ctx, 0) }, primitives.ErrInvalid, "", ""},
		})
	})
}

// waitAll calls Wait in n goroutines, and sends their results.
func waitAll(ctx context.Context, latch *primitives.CountDownLatch, n int) <-chan error {
	done := make(chan error, n)
	for range n {
		go func() { done <- latch.Wait(ctx) }()
	}
	return done
}

// awaitAll requires that n waits succeed.
func awaitAll(t testing.TB, done <-chan error, n int) {
	t.Helper()
	for range n {
		select {
		case err := <-done:
			require.NoError(t, err)
		case <-time.After(fixture.Soon):
			require.FailNow(t, "still waiting")
		}
	}
}

// TestLatchOpeningWakesAllWaiters opens a latch in several ways.
func TestLatchOpeningWakesAllWaiters(t *testing.T) {
	t.Parallel()
	type opener = func(ctx context.Context, latch *primitives.CountDownLatch, rdb *redis.Client, key string) error
	countDown := func(ctx context.Context, latch *primitives.CountDownLatch, _ *redis.Client, _ string) error {
		return latch.CountDown(ctx)
	}
	rows := []struct {
		name string
		mute bool // messages are lost
		open opener
	}{
		{"count down", false, countDown},
		{"delete", false, func(ctx context.Context, latch *primitives.CountDownLatch, _ *redis.Client, _ string) error {
			return fixture.ErrOf(latch.Delete(ctx))
		}},
		{"count down by Redisson", false,
			func(ctx context.Context, _ *primitives.CountDownLatch, rdb *redis.Client, key string) error {
				return errors.Join(rdb.Del(ctx, key).Err(), rdb.Publish(ctx, latchChannel(key), "0").Err())
			}},
		{"message lost", true, countDown},
	}
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, row := range rows {
			t.Run(row.name, func(t *testing.T) {
				ctx, key, rdb := t.Context(), redistest.Name(t), s.Client(t)
				p := s.Proxy(t)
				p.DropMessages(row.mute)
				latch := fixture.NewClient(t, p.Client(t)).CountDownLatch(key)
				require.NoError(t, fixture.ErrOf(latch.Init(ctx, 1)))
				const waiters = 10
				done := waitAll(ctx, latch, waiters)
				fixture.AwaitWaiter(t, s, key)
				began := time.Now()
				require.NoError(t, row.open(ctx, latch, rdb, key))
				awaitAll(t, done, waiters)
				require.Less(t, time.Since(began), fixture.SlowPoll)
				fixture.RequireClean(t, s, key)
			})
		}
	})
}

// TestLatchWaitEndsWithItsContextOrItsClient cancels waiters, and then closes their client.
func TestLatchWaitEndsWithItsContextOrItsClient(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		key := redistest.Name(t)
		c := fixture.NewClient(t, s.Client(t))
		latch := c.CountDownLatch(key)
		require.NoError(t, fixture.ErrOf(latch.Init(t.Context(), 1)))

		ctx, cancel := context.WithCancelCause(t.Context())
		done := waitAll(ctx, latch, 2)
		fixture.AwaitWaiter(t, s, key)
		cancel(fixture.ErrTest)
		for range 2 {
			err := <-done
			require.ErrorIs(t, err, fixture.ErrTest)
			require.NotErrorIs(t, err, primitives.ErrNotAcquired)
		}
		require.ErrorIs(t, latch.Wait(ctx), fixture.ErrTest, "the context is already done")

		done = waitAll(t.Context(), latch, 2)
		fixture.AwaitWaiter(t, s, key)
		require.NoError(t, c.Close(t.Context()))
		for range 2 {
			require.ErrorIs(t, <-done, primitives.ErrClosed)
		}
		require.ErrorIs(t, latch.Wait(t.Context()), primitives.ErrClosed)
		require.ErrorIs(t, latch.CountDown(t.Context()), primitives.ErrClosed)
	})
}

// TestLatchWaitEndsWhileCloseAwaitsAHold checks that Close refuses new waits before it returns.
func TestLatchWaitEndsWhileCloseAwaitsAHold(t *testing.T) {
	t.Parallel()
	s := redistest.Miniredis(t)
	c := fixture.NewClient(t, s.Client(t))
	hold := fixture.Acquire(t, t.Context(), c.Lock("held"))
	latch := c.CountDownLatch("latch")
	closed := fixture.Go(func() error { return c.Close(context.Background()) })
	redistest.WaitFor(t, fixture.Soon, func() bool {
		return errors.Is(latch.Wait(t.Context()), primitives.ErrClosed)
	}, "Wait is refused")
	fixture.Release(t, hold)
	require.NoError(t, <-closed)
}

// TestLatchConcurrentCountDownsOpenItOnce counts down on many clients at once.
func TestLatchConcurrentCountDownsOpenItOnce(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, key := t.Context(), redistest.Name(t)
		messages := fixture.Subscribe(t, s, latchChannel(key))
		const clients, each = 8, 10
		latch := fixture.NewClient(t, s.Client(t)).CountDownLatch(key)
		require.NoError(t, fixture.ErrOf(latch.Init(ctx, clients*each)))
		done := waitAll(ctx, latch, 5)
		var wg sync.WaitGroup
		for range clients {
			latch := fixture.NewClient(t, s.Client(t)).CountDownLatch(key)
			wg.Go(func() {
				for range each {
					assert.NoError(t, latch.CountDown(ctx))
				}
			})
		}
		wg.Wait()
		awaitAll(t, done, 5)
		require.Equal(t, []string{"1", "0"}, messages.Received(t))
	})
}

func TestLatchInACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t)
	ctx := t.Context()
	c := fixture.NewClient(t, cluster.ClusterClient(t))
	for _, name := range []string{"{a}b", "{}x", "a}b", "a{b"} {
		require.ErrorIs(t, fixture.ErrOf(c.CountDownLatch(name).Init(ctx, 1)), primitives.ErrInvalid, name)
		require.ErrorIs(t, c.CountDownLatch(name).Wait(ctx), primitives.ErrInvalid, name)
	}
	latch := c.CountDownLatch(redistest.Name(t))
	require.NoError(t, fixture.ErrOf(latch.Init(ctx, 1)))
	done := waitAll(ctx, latch, 3)
	require.NoError(t, latch.CountDown(ctx))
	awaitAll(t, done, 3)
}
