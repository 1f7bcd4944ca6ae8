package primitives_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// patient makes a client retry often, with short pauses.
func patient(o *redis.Options) {
	o.MaxRetries, o.MinRetryBackoff, o.MaxRetryBackoff = 12, time.Millisecond, 5*time.Millisecond
}

// networks are connections over which a script must have the same effect: a plain one, one that
// duplicates each command, and one that loses the first reply to each command.
var networks = []struct {
	name string
	open func(t testing.TB, s *redistest.Server) *redis.Client
}{
	{"plain", func(t testing.TB, s *redistest.Server) *redis.Client { return s.Client(t) }},
	{"duplicated", func(t testing.TB, s *redistest.Server) *redis.Client {
		p := s.Proxy(t)
		p.Duplicate(script)
		return p.Client(t)
	}},
	{"reply lost", func(t testing.TB, s *redistest.Server) *redis.Client {
		p := s.Proxy(t)
		seen := map[string]bool{}
		p.DropReplies(1<<30, func(args []string) bool {
			key := strings.Join(args, "\x00")
			first := script(args) && !seen[key]
			seen[key] = true
			return first
		})
		return p.Client(t, patient)
	}},
}

// eachNetwork runs f on each kind of server over each network.
func eachNetwork(t *testing.T, f func(t *testing.T, s *redistest.Server, c *primitives.Client)) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, network := range networks {
			t.Run(network.name, func(t *testing.T) { f(t, s, newClient(t, network.open(t, s))) })
		}
	})
}

// subscriber receives the messages of a channel.
type subscriber struct {
	rdb     *redis.Client
	channel string
	sub     *redis.PubSub
}

func subscribe(t testing.TB, s *redistest.Server, channel string) *subscriber {
	t.Helper()
	rdb := s.Client(t)
	sub := rdb.Subscribe(t.Context(), channel)
	t.Cleanup(func() { _ = sub.Close() })
	_, err := sub.Receive(t.Context())
	require.NoError(t, err)
	return &subscriber{rdb, channel, sub}
}

// received returns the messages since its last call. A marker message bounds them.
func (s *subscriber) received(t testing.TB) []string {
	t.Helper()
	require.NoError(t, s.rdb.Publish(t.Context(), s.channel, "mark").Err())
	messages := []string{}
	for {
		m, err := s.sub.ReceiveMessage(t.Context())
		require.NoError(t, err)
		if m.Payload == "mark" {
			return messages
		}
		messages = append(messages, m.Payload)
	}
}

// counterState is a number in Redis and the messages of its channel.
type counterState struct {
	rdb *redis.Client
	key string
	*subscriber
}

// requireStep compares the number ("" if there is none), and the messages since the last call.
func (w *counterState) requireStep(t testing.TB, value string, published ...string) {
	t.Helper()
	got, err := w.rdb.Get(t.Context(), w.key).Result()
	if !errors.Is(err, redis.Nil) {
		require.NoError(t, err)
	}
	require.Equal(t, value, got)
	require.Equal(t, append([]string{}, published...), w.received(t))
}

func TestSemaphoreOnTheWire(t *testing.T) {
	eachNetwork(t, func(t *testing.T, s *redistest.Server, c *primitives.Client) {
		ctx, key := t.Context(), redistest.Name(t)
		sem := c.Semaphore(key)
		w := &counterState{s.Client(t), key, subscribe(t, s, "redisson_sc:{"+key+"}")}
		two := primitives.WithPermits(2)

		created, err := sem.Init(ctx, 3)
		require.NoError(t, err)
		require.True(t, created)
		w.requireStep(t, "3", "3")
		created, err = sem.Init(ctx, 5)
		require.NoError(t, err)
		require.False(t, created)
		w.requireStep(t, "3")

		hold, err := sem.Acquire(ctx, two)
		require.NoError(t, err)
		w.requireStep(t, "1")
		_, err = sem.TryAcquire(ctx, two)
		require.ErrorIs(t, err, primitives.ErrNotAcquired)
		w.requireStep(t, "1")
		require.NoError(t, hold.Release(ctx))
		w.requireStep(t, "3", "3")
		require.ErrorIs(t, hold.Release(ctx), primitives.ErrReleased)
		w.requireStep(t, "3")

		require.NoError(t, sem.Add(ctx, 2))
		w.requireStep(t, "5", "5")
		require.NoError(t, sem.Add(ctx, -7))
		w.requireStep(t, "-2") // a number below 0 is not published
		info, err := sem.Info(ctx)
		require.NoError(t, err)
		require.Equal(t, primitives.Info{Name: key, Kind: "semaphore", Permits: -2, Available: -2}, info)
		drained, err := sem.Drain(ctx)
		require.NoError(t, err)
		require.Equal(t, -2, drained)
		w.requireStep(t, "0")

		require.NoError(t, w.rdb.IncrBy(ctx, key, 4).Err()) // Redisson's release
		require.NoError(t, w.rdb.PExpire(ctx, key, time.Hour).Err())
		hold, err = sem.TryAcquire(ctx)
		require.NoError(t, err)
		require.NoError(t, sem.Add(ctx, 1))
		w.requireStep(t, "4", "4")
		require.NoError(t, hold.Release(ctx))
		w.requireStep(t, "5", "5")
		drained, err = sem.Drain(ctx)
		require.NoError(t, err)
		require.Equal(t, 5, drained)
		w.requireStep(t, "0")
		require.Greater(t, w.rdb.PTTL(ctx, key).Val(), 50*time.Minute, "the TTL stays")

		deleted, err := sem.Delete(ctx)
		require.NoError(t, err)
		require.True(t, deleted)
		w.requireStep(t, "")
		deleted, err = sem.Delete(ctx)
		require.NoError(t, err)
		require.False(t, deleted)
		drained, err = sem.Drain(ctx)
		require.NoError(t, err)
		require.Zero(t, drained)
		_, err = sem.TryAcquire(ctx)
		require.ErrorIs(t, err, primitives.ErrNotAcquired)
		w.requireStep(t, "")

		require.NoError(t, sem.Add(ctx, 2)) // sets it
		w.requireStep(t, "2", "2")
		hold, err = sem.Acquire(ctx, two)
		require.NoError(t, err)
		require.NoError(t, w.rdb.Del(ctx, key).Err())
		require.ErrorIs(t, hold.Release(ctx), primitives.ErrLost)
		w.requireStep(t, "")
	})
}

// countable is what both semaphores can do.
type countable interface {
	handle
	Init(ctx context.Context, n int) (bool, error)
	Add(ctx context.Context, delta int) error
	Delete(ctx context.Context) (bool, error)
	Info(ctx context.Context) (primitives.Info, error)
}

// bothSemaphores are the rows for what both do alike.
var bothSemaphores = []struct {
	name string
	open func(c *primitives.Client, key string, opts ...primitives.Option) countable
}{
	{"semaphore", func(c *primitives.Client, key string, opts ...primitives.Option) countable {
		return c.Semaphore(key, opts...)
	}},
	{"permits", func(c *primitives.Client, key string, opts ...primitives.Option) countable {
		return c.PermitExpirableSemaphore(key, opts...)
	}},
}

// eachSemaphore runs f for both on each server, with a client of its own.
func eachSemaphore(t *testing.T, f func(t *testing.T, s *redistest.Server, open func(*primitives.Client, ...primitives.Option) countable, key string)) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, row := range bothSemaphores {
			t.Run(row.name, func(t *testing.T) {
				key := redistest.Name(t)
				f(t, s, func(c *primitives.Client, opts ...primitives.Option) countable { return row.open(c, key, opts...) }, key)
			})
		}
	})
}

func initPool(t testing.TB, sem countable, n int) {
	t.Helper()
	_, err := sem.Init(t.Context(), n)
	require.NoError(t, err)
}

// ofOne sets a semaphore that can act as a mutex.
func ofOne(t testing.TB, sem countable) countable {
	initPool(t, sem, 1)
	return sem
}

// available is the number in Redis.
func available(t testing.TB, rdb *redis.Client, key string) int {
	t.Helper()
	n, err := rdb.Get(t.Context(), key).Int()
	require.NoError(t, err)
	return n
}

func TestSemaphoresRefuse(t *testing.T) {
	p := primitives.WithPermits
	rows := []struct {
		name string
		do   func(ctx context.Context, sem countable) error
	}{
		{"init below 0", func(ctx context.Context, sem countable) error { _, err := sem.Init(ctx, -1); return err }},
		{"init beyond an int of Java's", func(ctx context.Context, sem countable) error { _, err := sem.Init(ctx, 1<<31); return err }},
		{"add beyond an int of Java's", func(ctx context.Context, sem countable) error { return sem.Add(ctx, -1<<31) }},
		{"permits below 0", func(ctx context.Context, sem countable) error { _, err := sem.Acquire(ctx, p(-1)); return err }},
		{"try permits below 0", func(ctx context.Context, sem countable) error { _, err := sem.TryAcquire(ctx, p(-1)); return err }},
		{"too many permits", func(ctx context.Context, sem countable) error { _, err := sem.Acquire(ctx, p(1<<31)); return err }},
		{"lease of 0", func(ctx context.Context, sem countable) error {
			_, err := sem.Acquire(ctx, primitives.WithLease(0))
			return err
		}},
		{"wait below 0", func(ctx context.Context, sem countable) error {
			_, err := sem.Acquire(ctx, primitives.WithWait(-1))
			return err
		}},
	}
	for _, kind := range bothSemaphores {
		s := redistest.Miniredis(t)
		sem := kind.open(newClient(t, s.Client(t)), "n")
		for _, row := range rows {
			t.Run(kind.name+"/"+row.name, func(t *testing.T) {
				require.ErrorIs(t, row.do(t.Context(), sem), primitives.ErrInvalid)
			})
		}
		_, err := kind.open(newClient(t, s.Client(t)), "").Acquire(t.Context())
		require.ErrorIs(t, err, primitives.ErrInvalid)
		require.Zero(t, redistest.Commands(t, s).Total(), "Redis was touched")
	}
}

// What stands at the key, if it is no number, is left as it is by every call, and the error says what is wrong.
func TestSemaphoresLeaveOthersKeys(t *testing.T) {
	s := redistest.Redis(t)
	rdb := s.Client(t)
	key := redistest.Name(t)
	sem, permits, latch := func(c *primitives.Client) (*primitives.Semaphore, *primitives.PermitExpirableSemaphore, *primitives.CountDownLatch) {
		return c.Semaphore(key), c.PermitExpirableSemaphore(key), c.CountDownLatch(key)
	}(newClient(t, rdb))
	discard := func(_ any, err error) error { return err }
	id := strings.Repeat("ab", 16)
	calls := map[string]func(ctx context.Context) error{
		"init":           func(ctx context.Context) error { return discard(sem.Init(ctx, 1)) },
		"add":            func(ctx context.Context) error { return sem.Add(ctx, 1) },
		"drain":          func(ctx context.Context) error { return discard(sem.Drain(ctx)) },
		"delete":         func(ctx context.Context) error { return discard(sem.Delete(ctx)) },
		"info":           func(ctx context.Context) error { return discard(sem.Info(ctx)) },
		"acquire":        func(ctx context.Context) error { return discard(sem.Acquire(ctx)) },
		"permits init":   func(ctx context.Context) error { return discard(permits.Init(ctx, 1)) },
		"permits add":    func(ctx context.Context) error { return permits.Add(ctx, 1) },
		"permits resize": func(ctx context.Context) error { return permits.Resize(ctx, 1) },
		"permits delete": func(ctx context.Context) error { return discard(permits.Delete(ctx)) },
		"permits info":   func(ctx context.Context) error { return discard(permits.Info(ctx)) },
		"permits take":   func(ctx context.Context) error { return discard(permits.Acquire(ctx)) },
		"permits adopt":  func(ctx context.Context) error { return discard(permits.Adopt(ctx, id)) },
		"permits id":     func(ctx context.Context) error { return permits.ReleaseID(ctx, id) },
		"latch init":     func(ctx context.Context) error { return discard(latch.Init(ctx, 1)) },
		"latch count":    func(ctx context.Context) error { return discard(latch.Count(ctx)) },
		"latch down":     func(ctx context.Context) error { return latch.CountDown(ctx) },
		"latch delete":   func(ctx context.Context) error { return discard(latch.Delete(ctx)) },
		"latch wait":     func(ctx context.Context) error { return latch.Wait(ctx) },
	}
	foreign := []struct {
		name, says string
		put        func(ctx context.Context) error
		only       string // calls of that prefix
	}{
		{"hash", "WRONGTYPE", func(ctx context.Context) error { return rdb.HSet(ctx, key, "a", "b").Err() }, ""},
		{"text", "not an integer", func(ctx context.Context) error { return rdb.Set(ctx, key, "text", 0).Err() }, ""},
		{"leases of another type", "WRONGTYPE", func(ctx context.Context) error { return rdb.HSet(ctx, "{"+key+"}:timeout", "a", "b").Err() }, "permits"},
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
				require.ErrorContains(t, err, f.says)
				require.NotErrorIs(t, err, primitives.ErrNotAcquired)
				left := redistest.Keys(t, s, "*"+key+"*")
				left = slices.DeleteFunc(left, func(k string) bool { return strings.HasPrefix(k, "redisson_unlock_latch") })
				require.Len(t, left, 1)
			})
		}
	}
}

func TestSemaphoreHoldsNothing(t *testing.T) {
	for _, kind := range bothSemaphores {
		t.Run(kind.name, func(t *testing.T) {
			s := redistest.Miniredis(t)
			c := newClient(t, s.Client(t))
			sem := kind.open(c, "n")
			hold, err := sem.Acquire(t.Context(), primitives.WithPermits(0))
			require.NoError(t, err)
			require.Empty(t, hold.ID())
			requireLive(t, hold.Context())
			require.NoError(t, hold.Release(t.Context()))
			require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrReleased)
			requireEnds(t, hold.Context(), primitives.ErrReleased)
			done, cancel := context.WithCancel(t.Context())
			cancel()
			_, err = sem.Acquire(done, primitives.WithPermits(0))
			require.ErrorIs(t, err, primitives.ErrNotAcquired)
			require.NoError(t, c.Close(t.Context()))
			_, err = sem.Acquire(t.Context(), primitives.WithPermits(0))
			require.ErrorIs(t, err, primitives.ErrClosed)
			require.Zero(t, redistest.Commands(t, s).Total(), "Redis was touched")
		})
	}
}

func TestSemaphoreHold(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, key := t.Context(), redistest.Name(t)
		rdb := s.Client(t)
		c := newClient(t, s.Client(t), primitives.WithDefaults(primitives.WithLease(time.Millisecond), primitives.WithOwner("x")))
		sem := c.Semaphore(key)
		initPool(t, sem, 3)
		hold, err := sem.Acquire(ctx)
		require.NoError(t, err)
		require.Empty(t, hold.ID())
		require.Zero(t, hold.Token())
		require.Equal(t, 1, hold.Depth())
		require.True(t, hold.ValidUntil().IsZero())
		require.ErrorIs(t, hold.Check(ctx), primitives.ErrUnsupported)
		require.ErrorIs(t, hold.Extend(ctx, time.Second), primitives.ErrUnsupported)
		second, err := sem.Acquire(hold.Context())
		require.NoError(t, err)
		require.Equal(t, 1, second.Depth(), "semaphores do not nest")
		require.Equal(t, 1, available(t, rdb, key))
		require.Empty(t, second.Detach())
		requireEnds(t, second.Context(), primitives.ErrReleased)
		require.ErrorIs(t, second.Release(ctx), primitives.ErrReleased)
		require.Equal(t, 1, available(t, rdb, key), "a detached permit stays out")
		require.NoError(t, rdb.Del(ctx, key).Err())
		time.Sleep(20 * time.Millisecond) // longer than the lease, which is no option of a plain semaphore
		requireLive(t, hold.Context())
		shut(c)
		requireEnds(t, hold.Context(), primitives.ErrClosed)
	})
}

// A semaphore waits for whatever brings permits, and for nothing but that.
func TestSemaphoreWakes(t *testing.T) {
	rows := []struct {
		name string
		n    int // permits at first, below 0: not set
		want int
		do   func(ctx context.Context, sem countable, rdb *redis.Client, key string) error
	}{
		{"init", -1, 2, func(ctx context.Context, sem countable, _ *redis.Client, _ string) error {
			_, err := sem.Init(ctx, 2)
			return err
		}},
		{"add", 1, 3, func(ctx context.Context, sem countable, _ *redis.Client, _ string) error { return sem.Add(ctx, 2) }},
		{"foreign release", 0, 1, func(ctx context.Context, _ countable, rdb *redis.Client, key string) error {
			return errors.Join(rdb.Incr(ctx, key).Err(), rdb.Publish(ctx, "redisson_sc:{"+key+"}", "1").Err())
		}},
		{"foreign set, unheard", -1, 1, func(ctx context.Context, _ countable, rdb *redis.Client, key string) error {
			return rdb.Set(ctx, key, 1, 0).Err()
		}},
	}
	eachSemaphore(t, func(t *testing.T, s *redistest.Server, open func(*primitives.Client, ...primitives.Option) countable, key string) {
		t.Parallel()
		rdb := s.Client(t)
		for _, row := range rows {
			t.Run(row.name, func(t *testing.T) {
				ctx := t.Context()
				sem := open(newClient(t, rdb))
				if row.n >= 0 {
					initPool(t, sem, row.n)
				}
				waiting := start(func() (*primitives.Hold, error) { return sem.Acquire(ctx, primitives.WithPermits(row.want)) })
				awaitWaiter(t, s, key)
				told := time.Now()
				require.NoError(t, row.do(ctx, sem, rdb, key))
				got := await(t, waiting)
				require.NoError(t, got.err)
				require.Less(t, got.at.Sub(told), slowPoll)
				require.NoError(t, got.hold.Release(ctx))
				_, err := sem.Delete(ctx)
				require.NoError(t, err)
			})
		}
		requireClean(t, s, key)
	})
}

// Without a single message, every waiter is served within the slow poll.
func TestSemaphoresNeedNoMessages(t *testing.T) {
	eachSemaphore(t, func(t *testing.T, s *redistest.Server, open func(*primitives.Client, ...primitives.Option) countable, key string) {
		t.Parallel()
		ctx := t.Context()
		p := s.Proxy(t)
		p.DropMessages(true)
		sem, other := open(newClient(t, p.Client(t))), open(newClient(t, s.Client(t)))
		initPool(t, other, 1)
		hold, err := other.Acquire(ctx)
		require.NoError(t, err)
		waiting := start(func() (*primitives.Hold, error) { return sem.Acquire(ctx) })
		awaitWaiter(t, s, key)
		require.NoError(t, hold.Release(ctx))
		released := time.Now()
		got := await(t, waiting)
		require.NoError(t, got.err)
		require.Less(t, got.at.Sub(released), slowPoll)
		require.NoError(t, got.hold.Release(ctx))
	})
}

// Who waits for more permits than there are holds up nobody who wants fewer, in this process or elsewhere.
func TestSemaphoresManyAndFew(t *testing.T) {
	eachSemaphore(t, func(t *testing.T, s *redistest.Server, open func(*primitives.Client, ...primitives.Option) countable, key string) {
		ctx := t.Context()
		rdb := s.Client(t)
		c := newClient(t, s.Client(t))
		sem, other := open(c), open(newClient(t, s.Client(t)))
		initPool(t, sem, 3)
		all, err := sem.Acquire(ctx, primitives.WithPermits(3))
		require.NoError(t, err)
		many := start(func() (*primitives.Hold, error) { return sem.Acquire(ctx, primitives.WithPermits(5)) })
		awaitWaiter(t, s, key)
		few := make([]<-chan result, 3)
		for i := range few {
			few[i] = start(func() (*primitives.Hold, error) {
				if i == 2 {
					return other.Acquire(ctx)
				}
				return sem.Acquire(ctx)
			})
		}
		time.Sleep(50 * time.Millisecond) // so that they wait already, mostly; right either way
		freed := time.Now()
		require.NoError(t, all.Release(ctx))
		holds := make([]*primitives.Hold, len(few))
		for i := range few {
			got := await(t, few[i])
			require.NoError(t, got.err)
			require.Less(t, got.at.Sub(freed), slowPoll)
			holds[i] = got.hold
		}
		require.Empty(t, many)
		require.NoError(t, sem.Add(ctx, 2))
		for _, hold := range holds {
			require.NoError(t, hold.Release(ctx))
		}
		got := await(t, many)
		require.NoError(t, got.err)
		require.NoError(t, got.hold.Release(ctx))
		require.Equal(t, 5, available(t, rdb, key))
	})
}

// Whatever replies are lost, permits move by what the calls say, exactly.
func TestSemaphoresExactUnderLostReplies(t *testing.T) {
	eachSemaphore(t, func(t *testing.T, s *redistest.Server, open func(*primitives.Client, ...primitives.Option) countable, key string) {
		ctx := t.Context()
		rdb := s.Client(t)
		p := s.Proxy(t)
		p.DropRepliesRandomly(0.3, 1, script)
		sem := open(newClient(t, p.Client(t, patient)))
		initPool(t, sem, 10)
		want := 10
		for i := range scaled(s, 900) { // 2,000 calls
			n := 1 + i%3
			hold, err := sem.Acquire(ctx, primitives.WithPermits(n))
			require.NoError(t, err)
			require.Equal(t, want-n, available(t, rdb, key))
			require.NoError(t, hold.Release(ctx))
			if i%5 == 0 {
				require.NoError(t, sem.Add(ctx, 1))
				want++
			}
			require.Equal(t, want, available(t, rdb, key))
		}
	})
}

// A client that does not repeat is told of lost replies; what it was not given is given back all the same.
func TestSemaphoresUndo(t *testing.T) {
	eachSemaphore(t, func(t *testing.T, s *redistest.Server, open func(*primitives.Client, ...primitives.Option) countable, key string) {
		ctx := t.Context()
		rdb := s.Client(t)
		p := s.Proxy(t)
		sem := open(newClient(t, p.Client(t, noRetries)))
		initPool(t, sem, 4)
		p.DropRepliesRandomly(0.5, 2, script)
		lost := 0
		for range scaled(s, 400) {
			hold, err := sem.TryAcquire(ctx, primitives.WithPermits(2))
			if errors.Is(err, primitives.ErrNotAcquired) {
				time.Sleep(time.Millisecond) // what is to be given back is on its way
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
		redistest.WaitFor(t, soon, func() bool { return available(t, rdb, key) == 4 }, "all permits are back")
		time.Sleep(50 * time.Millisecond)
		require.Equal(t, 4, available(t, rdb, key), "given back twice")
	})
}

// Acquisitions that are cancelled at any instant leave nothing.
func TestSemaphoresCancelled(t *testing.T) {
	eachSemaphore(t, func(t *testing.T, s *redistest.Server, open func(*primitives.Client, ...primitives.Option) countable, key string) {
		c := newClient(t, s.Client(t))
		rdb := s.Client(t)
		sem := open(c)
		initPool(t, sem, 3)
		rounds := scaled(s, 2000) / 8
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
		redistest.WaitFor(t, soon, func() bool { return available(t, rdb, key) == 3 }, "all permits are back")
		redistest.WaitFor(t, soon, func() bool { return slices.Equal([]string{key}, leftovers(t, s, key)) }, "nothing is left but the pool")
		require.NoError(t, c.Close(t.Context()))
	})
}

// 16 clients, 100 times each, never meet in a semaphore of 1.
func TestSemaphoresExclude(t *testing.T) {
	eachSemaphore(t, func(t *testing.T, s *redistest.Server, open func(*primitives.Client, ...primitives.Option) countable, key string) {
		rdb := s.Client(t)
		times := scaled(s, 100)
		var wg sync.WaitGroup
		for i := range 16 {
			sem := open(newClient(t, s.Client(t)))
			if i == 0 {
				initPool(t, sem, 1)
			}
			wg.Go(func() {
				for range times {
					err := sem.Do(t.Context(), func(ctx context.Context) error {
						n, err := rdb.Get(ctx, key+"-sum").Int()
						if err != nil && !errors.Is(err, redis.Nil) {
							return err
						}
						return rdb.Set(ctx, key+"-sum", n+1, 0).Err()
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		require.Equal(t, strconv.Itoa(16*times), rdb.Get(t.Context(), key+"-sum").Val())
		require.Equal(t, 1, available(t, rdb, key))
	})
}

// A full Redis refuses what takes, and lets go what gives back.
func TestSemaphoresWhenRedisIsFull(t *testing.T) {
	s := redistest.Fresh(t)
	rdb := s.Client(t)
	for _, kind := range bothSemaphores {
		t.Run(kind.name, func(t *testing.T) {
			ctx := t.Context()
			sem := kind.open(newClient(t, rdb), redistest.Name(t))
			latch := newClient(t, rdb).CountDownLatch(redistest.Name(t))
			initPool(t, sem, 3)
			_, err := latch.Init(ctx, 2)
			require.NoError(t, err)
			hold, err := sem.Acquire(ctx)
			require.NoError(t, err)
			require.NoError(t, rdb.ConfigSet(ctx, "maxmemory", "1").Err())
			defer rdb.ConfigSet(context.Background(), "maxmemory", "0")
			_, err = sem.Acquire(ctx)
			require.ErrorContains(t, err, "OOM")
			require.NotErrorIs(t, err, primitives.ErrNotAcquired)
			if kind.name == "permits" {
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

// Who may not publish on the channel does not get what he could not give back.
func TestSemaphoresWithoutTheChannel(t *testing.T) {
	s := redistest.Fresh(t)
	rdb := s.Client(t)
	require.NoError(t, rdb.Do(t.Context(), "acl", "setuser", "mute", "on", "nopass", "+@all", "~*", "resetchannels").Err())
	for _, kind := range bothSemaphores {
		t.Run(kind.name, func(t *testing.T) {
			key := redistest.Name(t)
			initPool(t, kind.open(newClient(t, rdb), key), 1)
			mute := newClient(t, s.Client(t, func(o *redis.Options) { o.Username, o.Password = "mute", "any" }))
			_, err := kind.open(mute, key).Acquire(t.Context())
			require.ErrorContains(t, err, "NOPERM")
			require.Equal(t, 1, available(t, rdb, key))
		})
	}
}

func TestSemaphoresInACluster(t *testing.T) {
	cluster := redistest.Cluster(t)
	c := newClient(t, cluster.ClusterClient(t))
	for _, kind := range bothSemaphores {
		t.Run(kind.name, func(t *testing.T) {
			ctx := t.Context()
			for _, name := range []string{"{}x", "a{b", "a}b"} {
				_, err := kind.open(c, name).Init(ctx, 1)
				require.ErrorIs(t, err, primitives.ErrInvalid, name)
			}
			for _, name := range []string{redistest.Name(t), "{" + redistest.Name(t) + "}b"} {
				sem := kind.open(c, name)
				initPool(t, sem, 2)
				hold, err := sem.Acquire(ctx, primitives.WithPermits(2))
				require.NoError(t, err)
				waiting := start(func() (*primitives.Hold, error) { return sem.Acquire(ctx) })
				require.NoError(t, hold.Release(ctx))
				got := await(t, waiting)
				require.NoError(t, got.err)
				require.NoError(t, got.hold.Release(ctx))
				_, err = sem.Delete(ctx)
				require.NoError(t, err)
			}
		})
	}
}

// A copy of a command that comes late, when much has happened since, changes nothing.
func TestLateCopiesDoNothing(t *testing.T) {
	id := strings.Repeat("ab", 16)
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, key, rdb := t.Context(), redistest.Name(t), s.Client(t)
		p := s.Proxy(t)
		c := newClient(t, p.Client(t))
		sem, permits, latch := c.Semaphore(key+"s"), c.PermitExpirableSemaphore(key+"p"), c.CountDownLatch(key+"l")
		everything := func() {
			for _, pool := range []countable{sem, permits} {
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
				if heir, err := permits.Adopt(ctx, hold.ID()); err == nil {
					_ = heir.Release(ctx)
				}
				_ = hold.Release(ctx)
			}
			_, _ = latch.Init(ctx, 1)
			_ = latch.CountDown(ctx)
			_, _ = latch.Delete(ctx)
		}
		clear := func() {
			require.NoError(t, rdb.Del(ctx, key+"s", key+"p", key+"l", "{"+key+"p}:timeout").Err())
		}
		set := func() {
			clear()
			require.NoError(t, rdb.MSet(ctx, key+"s", 7, key+"p", 7, key+"l", 7).Err())
			require.NoError(t, rdb.ZAdd(ctx, "{"+key+"p}:timeout", redis.Z{Score: never, Member: unhex(t, id)}).Err())
		}
		state := func() (state []any) {
			numbers, err := rdb.MGet(ctx, key+"s", key+"p", key+"l").Result()
			require.NoError(t, err)
			return append(numbers, rdb.ZCard(ctx, "{"+key+"p}:timeout").Val())
		}
		states := []func(){clear, set}
		for i, during := range states { // as the commands find it
			during()
			p.Record()
			everything()
			copies := p.Commands()
			for j, after := range states { // as their copies find it
				after()
				before := state()
				for _, command := range copies {
					if script(command.Args) {
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

func ignoreNil(err error) error {
	if errors.Is(err, redis.Nil) {
		return nil
	}
	return err
}
