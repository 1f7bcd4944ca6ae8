package locktest_test

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

// client returns a new client of rdb and closes it when t ends.
func client(t testing.TB, rdb redis.UniversalClient, opts ...primitives.ClientOption) *primitives.Client {
	t.Helper()
	c, err := primitives.New(rdb, opts...)
	require.NoError(t, err)
	t.Cleanup(func() {
		// With a cancelled context Close does not wait for the holds that a test has not released.
		cancelled, cancel := context.WithCancel(context.Background())
		cancel()
		_ = c.Close(cancelled)
	})
	return c
}

func acquire(t testing.TB, l *primitives.Lock, opts ...primitives.Option) *primitives.Hold {
	t.Helper()
	hold, err := l.Acquire(t.Context(), opts...)
	require.NoError(t, err)
	return hold
}

// endCause waits for the end of the hold's context and returns its cause. It fails t after limit.
func endCause(t testing.TB, hold *primitives.Hold, limit time.Duration) error {
	t.Helper()
	select {
	case <-hold.Context().Done():
		return context.Cause(hold.Context())
	case <-time.After(limit):
		t.Fatalf("the hold's context has not ended after %v", limit)
		return nil
	}
}

// realAndFakeTime runs a test in real time, and in a bubble with a fake clock.
func realAndFakeTime(t *testing.T, test func(t *testing.T)) {
	t.Run("real time", test)
	t.Run("fake time", func(t *testing.T) { synctest.Test(t, test) })
}

func TestLoseEndsTheHoldAndItsNestedHold(t *testing.T) {
	realAndFakeTime(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		owner, rival := client(t, s.Client(t)), client(t, s.Client(t))
		hold := acquire(t, owner.Lock("orders"))
		inner, err := owner.Lock("orders").Acquire(hold.Context())
		require.NoError(t, err)
		other := acquire(t, owner.Lock("more orders")) // its name ends with the name of the lost lock
		waiter := make(chan error, 1)
		go func() {
			next, err := rival.Lock("orders").Acquire(t.Context())
			if err == nil {
				err = next.Release(t.Context())
			}
			waiter <- err
		}()
		s.Lose(t, hold)
		for _, h := range []*primitives.Hold{hold, inner} {
			require.ErrorIs(t, context.Cause(h.Context()), primitives.ErrLost)
			require.ErrorIs(t, h.Release(t.Context()), primitives.ErrLost)
		}
		require.NoError(t, <-waiter)
		require.NoError(t, other.Check(t.Context()))
		require.NoError(t, other.Release(t.Context()))
	})
}

func TestLoseWithPrefixAndOwner(t *testing.T) {
	s := locktest.NewServer(t)
	c := client(t, s.Client(t), primitives.WithPrefix("app:"))
	owner := primitives.WithOwner("me")
	hold, other := acquire(t, c.Lock("a"), owner), acquire(t, c.Lock("b"), owner)
	s.Lose(t, hold)
	require.ErrorIs(t, endCause(t, hold, time.Second), primitives.ErrLost)
	require.NoError(t, other.Check(t.Context()))
	require.NoError(t, other.Release(t.Context()))
}

// recorder is a testing.TB that records the message of Fatalf and does not fail.
type recorder struct {
	testing.TB
	message string
}

// Fatalf must not return, so it panics. run recovers.
func (r *recorder) Fatalf(format string, args ...any) {
	r.message = fmt.Sprintf(format, args...)
	panic(r)
}

// run runs f until it returns or calls Fatalf.
func (r *recorder) run(f func()) {
	defer func() {
		if p := recover(); p != nil && p != r {
			panic(p)
		}
	}()
	f()
}

func TestLoseOfAReleasedHoldFails(t *testing.T) {
	s := locktest.NewServer(t)
	hold := acquire(t, client(t, s.Client(t)).Lock("a"))
	require.NoError(t, hold.Release(t.Context()))
	r := &recorder{TB: t}
	r.run(func() { s.Lose(r, hold) })
	require.Contains(t, r.message, "holds nothing")
}

func TestPartitionEndsHolds(t *testing.T) {
	realAndFakeTime(t, func(t *testing.T) {
		const ttl = 500 * time.Millisecond
		s := locktest.NewServer(t)
		c := client(t, s.Client(t))
		hold := acquire(t, c.Lock("a"), primitives.WithWatchdog(ttl))
		until := hold.ValidUntil()
		s.Partition(true)
		s.Partition(true)
		require.ErrorIs(t, endCause(t, hold, 10*ttl), primitives.ErrLost)
		require.False(t, time.Now().Before(until), "the loss was reported while the hold was valid")
		s.Partition(false)
		s.Partition(false)
		require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
		next := acquire(t, c.Lock("a"))
		require.NoError(t, next.Release(t.Context()))
	})
}

// A hold survives an outage shorter than its TTL: the delayed renewals arrive, and renewal
// continues.
func TestHoldSurvivesAShortPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		hold := acquire(t, client(t, s.Client(t)).Lock("a"))
		time.Sleep(9 * time.Second)
		s.Partition(true)
		time.Sleep(20 * time.Second) // two renewals are delayed
		s.Partition(false)
		time.Sleep(time.Minute)
		require.NoError(t, hold.Check(t.Context()))
		require.NoError(t, hold.Release(t.Context()))
	})
}

func TestKeysExpireByThemselves(t *testing.T) {
	realAndFakeTime(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		rdb := s.Client(t)
		require.NoError(t, rdb.Set(t.Context(), "k", "v", 50*time.Millisecond).Err())
		require.Equal(t, int64(1), rdb.Exists(t.Context(), "k").Val())
		time.Sleep(60 * time.Millisecond)
		require.Zero(t, rdb.Exists(t.Context(), "k").Val())
	})
}

func TestLinkCutsOffOneClientOnly(t *testing.T) {
	realAndFakeTime(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		var link *locktest.Link
		rdb := s.Client(t, func(o *redis.Options) {
			link = locktest.NewLink(o.Dialer)
			o.Dialer = link.Dial
			o.MaxRetries, o.ReadTimeout, o.DialTimeout, o.DialerRetries = -1, 100*time.Millisecond, 100*time.Millisecond, 1
		})
		other := s.Client(t)
		require.NoError(t, rdb.Incr(t.Context(), "n").Err())
		link.Cut()
		require.Error(t, rdb.Incr(t.Context(), "n").Err(), "on an open connection")
		require.Error(t, rdb.Incr(t.Context(), "n").Err(), "on a new connection")
		require.Equal(t, "1", other.Get(t.Context(), "n").Val())
		link.Mend()
		require.Equal(t, int64(2), rdb.Incr(t.Context(), "n").Val(), "commands on closed connections must not arrive")
	})
}

func TestAddrAcceptsOtherClients(t *testing.T) {
	s := locktest.NewServer(t)
	addr := s.Addr()
	require.Equal(t, addr, s.Addr())
	rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, ReadTimeout: 100 * time.Millisecond})
	defer func() { _ = rdb.Close() }()
	require.NoError(t, rdb.Set(t.Context(), "k", "v", 0).Err())
	require.Equal(t, "v", s.Client(t).Get(t.Context(), "k").Val())
	s.Partition(true)
	require.ErrorContains(t, rdb.Get(t.Context(), "k").Err(), "timeout")
	s.Partition(false)
	require.Equal(t, "v", rdb.Get(t.Context(), "k").Val())
}

func TestCloseEndsAllConnections(t *testing.T) {
	s := locktest.Start()
	addr := s.Addr()
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", addr)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	rdb := s.Client(t, func(o *redis.Options) { o.MaxRetries, o.DialerRetries = -1, 1 })
	require.NoError(t, rdb.Ping(t.Context()).Err())
	s.Close()
	s.Close()
	require.Error(t, rdb.Ping(t.Context()).Err())
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
	_, err = d.DialContext(t.Context(), "tcp", addr)
	require.Error(t, err)
}

// A client that writes without reading must block neither itself nor the server.
func TestLongPipelineDoesNotBlock(t *testing.T) {
	realAndFakeTime(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		rdb := s.Client(t)
		pipe := rdb.Pipeline()
		const n = 20000
		for range n {
			pipe.Incr(t.Context(), "n")
		}
		_, err := pipe.Exec(t.Context())
		require.NoError(t, err)
		require.Equal(t, strconv.Itoa(n), rdb.Get(t.Context(), "n").Val())
	})
}

func TestHoldIsRenewedInFakeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		rival := client(t, s.Client(t))
		var renewed atomic.Int64
		owner := client(t, s.Client(t), primitives.WithObserver(func(e primitives.Event) {
			if e.Kind == primitives.EventRenewed {
				renewed.Add(1)
			}
		}))
		hold := acquire(t, owner.Lock("a"))
		time.Sleep(time.Hour)
		_, err := rival.Lock("a").TryAcquire(t.Context())
		require.ErrorIs(t, err, primitives.ErrNotAcquired)
		require.NoError(t, hold.Release(t.Context()))
		require.InDelta(t, 360, renewed.Load(), 2) // every 10 s
	})
}

// LoseName ends what code holds that calls Do, however young the hold is: long before the next
// renewal, after 10 s.
func TestLoseNameEndsEveryHold(t *testing.T) {
	type doer interface {
		Do(ctx context.Context, f func(context.Context) error, opts ...primitives.Option) error
	}
	for kind, open := range map[string]func(c *primitives.Client) doer{
		"lock":    func(c *primitives.Client) doer { return c.Lock("a") },
		"fair":    func(c *primitives.Client) doer { return c.FairLock("a") },
		"fenced":  func(c *primitives.Client) doer { return c.FencedLock("a") },
		"reader":  func(c *primitives.Client) doer { return c.RWLock("a").Reader() },
		"writer":  func(c *primitives.Client) doer { return c.RWLock("a").Writer() },
		"permits": func(c *primitives.Client) doer { return c.PermitExpirableSemaphore("a") },
		"multi": func(c *primitives.Client) doer {
			return primitives.NewMultiLock([]*primitives.Lock{c.Lock("a"), c.Lock("b")})
		},
	} {
		for _, age := range []time.Duration{0, 5 * time.Second} {
			t.Run(fmt.Sprintf("%s, held for %v", kind, age), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := locktest.NewServer(t)
					c := client(t, s.Client(t), primitives.WithPrefix("app:"))
					other := acquire(t, c.Lock("other"))
					if kind == "permits" {
						_, err := c.PermitExpirableSemaphore("a").Init(t.Context(), 2)
						require.NoError(t, err)
					}
					result := make(chan error)
					go func() {
						result <- open(c).Do(t.Context(), func(ctx context.Context) error {
							<-ctx.Done()
							return context.Cause(ctx)
						})
					}()
					synctest.Wait()
					time.Sleep(age)
					began := time.Now()
					s.LoseName(t, "app:a")
					require.ErrorIs(t, <-result, primitives.ErrLost)
					require.Less(t, time.Since(began), 1500*time.Millisecond)
					require.NoError(t, other.Check(t.Context()))
					require.NoError(t, other.Release(t.Context()))
				})
			})
		}
	}
}

func TestLoseNameOfNothingFails(t *testing.T) {
	s := locktest.NewServer(t)
	c := client(t, s.Client(t))
	_, err := c.Semaphore("pool").Init(t.Context(), 1)
	require.NoError(t, err)
	for _, name := range []string{"a", "pool"} {
		r := &recorder{TB: t}
		r.run(func() { s.LoseName(r, name) })
		require.Contains(t, r.message, "nothing is held")
	}
}
