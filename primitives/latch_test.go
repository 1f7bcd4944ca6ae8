package primitives_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// latchChannel returns the channel of a latch.
func latchChannel(key string) string { return "redisson_countdownlatch__channel__{" + key + "}" }

// TestLatchWireFormat checks the number in Redis and the published messages after each call.
func TestLatchWireFormat(t *testing.T) {
	eachNetwork(t, func(t *testing.T, s *redistest.Server, c *primitives.Client) {
		ctx, key := t.Context(), redistest.Name(t)
		latch := c.CountDownLatch(key)
		w := &counterState{s.Client(t), key, subscribe(t, s, latchChannel(key))}
		setCount := func(n int, created bool) {
			t.Helper()
			got, err := latch.Init(ctx, n)
			require.NoError(t, err)
			require.Equal(t, created, got)
		}
		requireCount := func(want int64) {
			t.Helper()
			got, err := latch.Count(ctx)
			require.NoError(t, err)
			require.Equal(t, want, got)
		}

		require.NoError(t, latch.CountDown(ctx)) // there is no latch
		w.requireStep(t, "")
		requireCount(0)
		require.NoError(t, latch.Wait(ctx))
		setCount(2, true)
		w.requireStep(t, "2", "1")
		setCount(3, false)
		w.requireStep(t, "2")
		requireCount(2)
		require.NoError(t, latch.CountDown(ctx))
		w.requireStep(t, "1")
		require.NoError(t, latch.CountDown(ctx))
		w.requireStep(t, "", "0")
		require.NoError(t, latch.Wait(ctx))

		setCount(1, true)
		w.requireStep(t, "1", "1")
		deleted, err := latch.Delete(ctx)
		require.NoError(t, err)
		require.True(t, deleted)
		w.requireStep(t, "", "1")
		deleted, err = latch.Delete(ctx)
		require.NoError(t, err)
		require.False(t, deleted)
		w.requireStep(t, "")

		for _, n := range []int{0, -3} { // Redisson stores these values too
			require.NoError(t, w.rdb.Set(ctx, key, n, 0).Err())
			requireCount(0)
			require.NoError(t, latch.Wait(ctx))
			require.NoError(t, latch.CountDown(ctx))
			w.requireStep(t, "") // no zero is published: a false `0` makes Redisson spin
		}
		_, err = latch.Init(ctx, 0)
		require.ErrorIs(t, err, primitives.ErrInvalid)
		w.requireStep(t, "")
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
		case <-time.After(soon):
			require.FailNow(t, "still waiting")
		}
	}
}

// TestLatchOpeningWakesAllWaiters opens a latch in several ways.
func TestLatchOpeningWakesAllWaiters(t *testing.T) {
	rows := []struct {
		name string
		mute bool // messages are lost
		open func(ctx context.Context, latch *primitives.CountDownLatch, rdb *redis.Client, key string) error
	}{
		{"count down", false,
			func(ctx context.Context, latch *primitives.CountDownLatch, _ *redis.Client, _ string) error {
				return latch.CountDown(ctx)
			}},
		{"delete", false, func(ctx context.Context, latch *primitives.CountDownLatch, _ *redis.Client, _ string) error {
			_, err := latch.Delete(ctx)
			return err
		}},
		{"count down by Redisson", false,
			func(ctx context.Context, _ *primitives.CountDownLatch, rdb *redis.Client, key string) error {
				return errors.Join(rdb.Del(ctx, key).Err(), rdb.Publish(ctx, latchChannel(key), "0").Err())
			}},
		{"message lost", true,
			func(ctx context.Context, latch *primitives.CountDownLatch, _ *redis.Client, _ string) error {
				return latch.CountDown(ctx)
			}},
	}
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, row := range rows {
			t.Run(row.name, func(t *testing.T) {
				ctx, key, rdb := t.Context(), redistest.Name(t), s.Client(t)
				p := s.Proxy(t)
				p.DropMessages(row.mute)
				latch := newClient(t, p.Client(t)).CountDownLatch(key)
				_, err := latch.Init(ctx, 1)
				require.NoError(t, err)
				const waiters = 10
				done := waitAll(ctx, latch, waiters)
				awaitWaiter(t, s, key)
				began := time.Now()
				require.NoError(t, row.open(ctx, latch, rdb, key))
				awaitAll(t, done, waiters)
				require.Less(t, time.Since(began), slowPoll)
				requireClean(t, s, key)
			})
		}
	})
}

// TestLatchWaitersShareOnePoll checks that a client polls once a second for all its waiters.
func TestLatchWaitersShareOnePoll(t *testing.T) {
	bubble(t, func(t *testing.T, b *bubbled) {
		latch := b.c.CountDownLatch("latch")
		_, err := latch.Init(t.Context(), 1)
		require.NoError(t, err)
		done := waitAll(t.Context(), latch, 100)
		time.Sleep(2500 * time.Millisecond) // all wait, and the client has subscribed
		b.p.Record()
		time.Sleep(10 * time.Second)
		require.Equal(t, 10, b.tries())
		require.NoError(t, latch.CountDown(t.Context()))
		awaitAll(t, done, 100)
	})
}

// TestLatchWaitEndsWithItsContextOrItsClient cancels waiters, and then closes their client.
func TestLatchWaitEndsWithItsContextOrItsClient(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		key := redistest.Name(t)
		c := newClient(t, s.Client(t))
		latch := c.CountDownLatch(key)
		_, err := latch.Init(t.Context(), 1)
		require.NoError(t, err)

		ctx, cancel := context.WithCancelCause(t.Context())
		done := waitAll(ctx, latch, 2)
		awaitWaiter(t, s, key)
		cancel(errTest)
		for range 2 {
			err := <-done
			require.ErrorIs(t, err, errTest)
			require.NotErrorIs(t, err, primitives.ErrNotAcquired)
		}
		require.ErrorIs(t, latch.Wait(ctx), errTest, "the context is already done")

		done = waitAll(t.Context(), latch, 2)
		awaitWaiter(t, s, key)
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
	s := redistest.Miniredis(t)
	c := newClient(t, s.Client(t))
	hold := acquire(t, t.Context(), c.Lock("held"))
	latch := c.CountDownLatch("latch")
	closed := make(chan error)
	go func() { closed <- c.Close(context.Background()) }()
	redistest.WaitFor(t, soon, func() bool {
		return errors.Is(latch.Wait(t.Context()), primitives.ErrClosed)
	}, "Wait is refused")
	release(t, hold)
	require.NoError(t, <-closed)
}

// TestLatchCountIsExactWhenRepliesAreLost drops replies at random. Each CountDown counts once.
func TestLatchCountIsExactWhenRepliesAreLost(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, key, rdb := t.Context(), redistest.Name(t), s.Client(t)
		n := scaled(s, 1000)
		p := s.Proxy(t)
		p.DropRepliesRandomly(0.3, 3, script)
		latch := newClient(t, p.Client(t, patient)).CountDownLatch(key)
		created, err := latch.Init(ctx, n)
		require.NoError(t, err)
		require.True(t, created)
		for left := n - 1; left > 0; left-- {
			require.NoError(t, latch.CountDown(ctx))
			require.Equal(t, left, available(t, rdb, key))
		}
		require.NoError(t, latch.CountDown(ctx))
		require.Zero(t, rdb.Exists(ctx, key).Val())
	})
}

// TestLatchConcurrentCountDownsOpenItOnce counts down on many clients at once.
func TestLatchConcurrentCountDownsOpenItOnce(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, key := t.Context(), redistest.Name(t)
		messages := subscribe(t, s, latchChannel(key))
		const clients, each = 8, 10
		latch := newClient(t, s.Client(t)).CountDownLatch(key)
		_, err := latch.Init(ctx, clients*each)
		require.NoError(t, err)
		done := waitAll(ctx, latch, 5)
		var wg sync.WaitGroup
		for range clients {
			latch := newClient(t, s.Client(t)).CountDownLatch(key)
			wg.Go(func() {
				for range each {
					if err := latch.CountDown(ctx); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		awaitAll(t, done, 5)
		require.Equal(t, []string{"1", "0"}, messages.received(t))
	})
}

func TestLatchInACluster(t *testing.T) {
	cluster := redistest.Cluster(t)
	ctx := t.Context()
	c := newClient(t, cluster.ClusterClient(t))
	for _, name := range []string{"{a}b", "{}x", "a}b", "a{b"} {
		_, err := c.CountDownLatch(name).Init(ctx, 1)
		require.ErrorIs(t, err, primitives.ErrInvalid, name)
		require.ErrorIs(t, c.CountDownLatch(name).Wait(ctx), primitives.ErrInvalid, name)
	}
	latch := c.CountDownLatch(redistest.Name(t))
	_, err := latch.Init(ctx, 1)
	require.NoError(t, err)
	done := waitAll(ctx, latch, 3)
	require.NoError(t, latch.CountDown(ctx))
	awaitAll(t, done, 3)
}
