package contract

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// line is many clients that wait for one lock, each with one waiter.
type line struct {
	s     *redistest.Server
	rdb   *redis.Client
	name  string
	locks []*primitives.Lock
	wg    sync.WaitGroup

	mu        sync.Mutex
	acquired  []int // clients in the order in which they acquired
	last      time.Time
	longest   time.Duration // between a release and the next acquisition
	firstHold time.Time
}

func newLine(t *testing.T, s *redistest.Server, clients int) *line {
	x := &line{s: s, rdb: s.Client(t), name: redistest.Name(t)}
	for range clients {
		c := fixture.NewClient(t, s.Client(t, func(o *redis.Options) { o.PoolSize = 2 }))
		x.locks = append(x.locks, c.Lock(x.name))
	}
	return x
}

// key is the line in Redis.
func (x *line) key() string { return "redisson_unlock_latch:{" + x.name + "}:line" }

func (x *line) channel() string { return "redisson_lock__channel:{" + x.name + "}" }

// wait makes all clients wait, and waits until they stand in line.
func (x *line) wait(t *testing.T) {
	for i, l := range x.locks {
		x.wg.Go(func() {
			hold, err := l.Acquire(t.Context())
			if !assert.NoError(t, err) {
				return
			}
			now := time.Now()
			x.mu.Lock()
			if x.acquired = append(x.acquired, i); x.last.IsZero() {
				x.firstHold = now
			} else {
				x.longest = max(x.longest, now.Sub(x.last))
			}
			x.last = time.Now()
			x.mu.Unlock()
			assert.NoError(t, hold.Release(t.Context()))
		})
	}
	x.await(t, len(x.locks))
}

// await waits until that many clients stand in line, and no more than two hear the common channel.
func (x *line) await(t *testing.T, clients int) {
	t.Helper()
	redistest.WaitFor(t, fixture.Soon, func() bool {
		inLine := x.rdb.ZCount(context.Background(), x.key(), "1", "+inf").Val()
		return inLine == int64(clients) && x.listening() <= 2
	}, "all clients stand in line")
}

// listening returns how many clients hear the common channel.
func (x *line) listening() int64 {
	return x.rdb.PubSubNumSub(context.Background(), x.channel()).Val()[x.channel()]
}

// free frees the lock as Redisson does: it knows nothing of the line.
func (x *line) free(t *testing.T) {
	_, err := x.rdb.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		p.Del(t.Context(), x.name)
		p.Publish(t.Context(), x.channel(), "0")
		return nil
	})
	require.NoError(t, err)
}

// The line is ordered by the server's clock. Clients that joined it before the clock was set back
// wait no longer than others.
func TestLineAfterTheServersClockWasSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := redistest.Embedded(t)
		ctx, cancel := context.WithCancel(t.Context())
		var users sync.WaitGroup
		var ahead atomic.Int64
		ahead.Store(int64(5 * time.Minute))
		users.Go(func() {
			for ; ctx.Err() == nil; time.Sleep(time.Millisecond) {
				s.Mini().SetTime(time.Now().Add(time.Duration(ahead.Load())))
			}
		})
		var acquired [6]atomic.Int64
		for i := range acquired {
			l := fixture.NewClient(t, s.Client(t)).Lock("l")
			for range 2 {
				users.Go(func() {
					for ctx.Err() == nil {
						_ = l.Do(ctx, func(context.Context) error {
							time.Sleep(20 * time.Millisecond)
							acquired[i].Add(1)
							return nil
						})
					}
				})
			}
		}
		time.Sleep(time.Second)
		ahead.Store(0)
		time.Sleep(2 * time.Second) // all have polled
		for i := range acquired {
			acquired[i].Store(0)
		}
		time.Sleep(3 * time.Second)
		for i := range acquired {
			assert.Greater(t, acquired[i].Load(), int64(10), "client %d of %d", i, len(acquired))
		}
		cancel()
		users.Wait()
	})
}

// However many clients wait, a hand-off takes the release and about one attempt, and Redisson's
// waiters hear each release.
func TestHandOffBetweenManyClientsTakesFewCommands(t *testing.T) {
	t.Parallel()
	n := 200
	if !redistest.Full() {
		n = 50
	}
	s := redistest.Fresh(t)
	x := newLine(t, s, n)
	hold := fixture.Acquire(t, t.Context(), fixture.NewClient(t, s.Client(t)).Lock(x.name))
	x.wait(t)
	java := x.rdb.Subscribe(t.Context(), x.channel())
	defer java.Close()
	require.NoError(t, fixture.ErrOf(java.Receive(t.Context())))
	messages := java.Channel(redis.WithChannelSize(2 * n))

	before, stalls, began := redistest.Commands(t, s), redistest.WatchStalls(t), time.Now()
	fixture.Release(t, hold)
	x.wg.Wait()
	polls := time.Since(began).Seconds() // of each client at most, beside the hand-offs
	spent := redistest.Commands(t, s).Since(before)
	t.Logf("%v; the longest hand-off took %v", spent, x.longest)
	require.LessOrEqual(t, float64(spent["evalsha"])/float64(n), 4+polls)
	require.LessOrEqual(t, float64(spent["publish"])/float64(n), 4.0)
	require.Less(t, x.longest, fixture.SlowPoll/10+stalls.Since(began))
	for range n + 1 {
		select {
		case m := <-messages:
			require.Equal(t, "0", m.Payload)
		case <-time.After(fixture.Soon):
			require.FailNow(t, "a release was not published")
		}
	}
	require.NoError(t, java.Close())
	fixture.RequireClean(t, s, x.name)
}

func TestJavaReleaseWakesClientsInLine(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	for _, n := range []int{1, 2, 50} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			x := newLine(t, s, n)
			require.NoError(t, x.rdb.HSet(t.Context(), x.name, "java:1", 1).Err())
			require.NoError(t, x.rdb.PExpire(t.Context(), x.name, time.Minute).Err())
			x.wait(t)
			stalls, freed := redistest.WatchStalls(t), time.Now()
			x.free(t)
			x.wg.Wait()
			t.Logf("%d clients: the first acquired after %v", n, x.firstHold.Sub(freed))
			limit := 500*time.Millisecond + stalls.Since(freed)
			require.Less(t, x.firstHold.Sub(freed), limit) // the engine's test is exact
			fixture.RequireClean(t, s, x.name)
		})
	}
}

// In each case the client whose turn it is does not take the lock.
func TestClientInLineThatMissesItsTurn(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	for _, tt := range []struct {
		name string
		miss func(p *redistest.Proxy, cancel func())
		heal func(p *redistest.Proxy) // when the next client has acquired; nil for nothing to do
	}{
		{name: "killed", miss: func(p *redistest.Proxy, _ func()) { p.Close() }},
		{
			name: "hangs",
			miss: func(p *redistest.Proxy, _ func()) { p.BlackHole(true) },
			heal: func(p *redistest.Proxy) { p.BlackHole(false) },
		},
		{name: "gives up", miss: func(_ *redistest.Proxy, cancel func()) { cancel() }},
		{name: "its link breaks", miss: func(p *redistest.Proxy, _ func()) { p.CutPubSub() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x := newLine(t, s, 1)
			hold := fixture.Acquire(t, t.Context(), fixture.NewClient(t, s.Client(t)).Lock(x.name))
			p := s.Proxy(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			first := fixture.StartAcquire(ctx, fixture.NewClient(t, p.Client(t, fixture.ShortTimeouts)).Lock(x.name))
			x.await(t, 1)
			second := fixture.StartAcquire(t.Context(), x.locks[0])
			x.await(t, 2)
			tt.miss(p, cancel)
			stalls, released := redistest.WatchStalls(t), time.Now()
			fixture.Release(t, hold)
			next := fixture.AwaitAcquired(t, second)
			require.Less(t, next.At.Sub(released), 500*time.Millisecond+stalls.Since(released))
			fixture.Release(t, next.Hold)
			cancel()
			if tt.heal != nil {
				tt.heal(p)
			}
			if r := fixture.Await(t, first); r.Err == nil {
				fixture.Release(t, r.Hold)
			}
			fixture.RequireClean(t, s, x.name)
		})
	}
}

// The line is a help only: an operator deletes it, another program has taken its key, Redis is
// full.
func TestLineThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t, "--maxmemory-policy", "noeviction")
	for _, tt := range []struct {
		name  string
		spoil func(x *line) error
	}{
		{"deleted", func(x *line) error { return x.rdb.Del(context.Background(), x.key()).Err() }},
		{"another type", func(x *line) error { return x.rdb.Set(context.Background(), x.key(), "x", time.Minute).Err() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x := newLine(t, s, 5)
			hold := fixture.Acquire(t, t.Context(), fixture.NewClient(t, s.Client(t)).Lock(x.name))
			x.wait(t)
			require.NoError(t, tt.spoil(x))
			fixture.Release(t, hold)
			x.wg.Wait()
			require.Less(t, x.longest, fixture.SlowPoll)
			require.NoError(t, x.rdb.Del(t.Context(), x.key()).Err())
			fixture.RequireClean(t, s, x.name)
		})
	}
	t.Run("full memory", func(t *testing.T) {
		hold := fixture.Acquire(t, t.Context(), fixture.NewClient(t, s.Client(t)).Lock("full"))
		waiting := fixture.StartAcquire(t.Context(), fixture.NewClient(t, s.Client(t)).Lock("full"))
		rdb := s.Client(t)
		fixture.AwaitWaiter(t, s, "full")
		require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
		time.Sleep(1500 * time.Millisecond) // the waiter polls, and is refused as ever
		require.Empty(t, waiting)
		fixture.Release(t, hold)
		require.ErrorContains(t, fixture.Await(t, waiting).Err, "OOM")
		require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "0").Err())
	})
}
