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

// client is a participant of its own, closed when t ends.
func client(t testing.TB, rdb redis.UniversalClient, opts ...primitives.ClientOption) *primitives.Client {
	t.Helper()
	c, err := primitives.New(rdb, opts...)
	require.NoError(t, err)
	t.Cleanup(func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = c.Close(ended) // holds that a test left are not its business
	})
	return c
}

func acquire(t testing.TB, l *primitives.Lock, opts ...primitives.Option) *primitives.Hold {
	t.Helper()
	hold, err := l.Acquire(t.Context(), opts...)
	require.NoError(t, err)
	return hold
}

// ended returns why a hold's context ended, within limit.
func ended(t testing.TB, hold *primitives.Hold, limit time.Duration) error {
	t.Helper()
	select {
	case <-hold.Context().Done():
		return context.Cause(hold.Context())
	case <-time.After(limit):
		t.Fatalf("the hold has not ended after %v", limit)
		return nil
	}
}

// both runs a test as it is, and in a bubble.
func both(t *testing.T, test func(t *testing.T)) {
	t.Run("real time", test)
	t.Run("bubble", func(t *testing.T) { synctest.Test(t, test) })
}

func TestLose(t *testing.T) {
	both(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		mine, theirs := client(t, s.Client(t)), client(t, s.Client(t))
		hold := acquire(t, mine.Lock("orders"))
		inner, err := mine.Lock("orders").Acquire(hold.Context())
		require.NoError(t, err)
		other := acquire(t, mine.Lock("more orders")) // its key ends in the other's name
		waiting := make(chan error, 1)
		go func() {
			next, err := theirs.Lock("orders").Acquire(t.Context())
			if err == nil {
				err = next.Release(t.Context())
			}
			waiting <- err
		}()
		s.Lose(t, hold)
		for _, h := range []*primitives.Hold{hold, inner} {
			require.ErrorIs(t, context.Cause(h.Context()), primitives.ErrLost)
			require.ErrorIs(t, h.Release(t.Context()), primitives.ErrLost)
		}
		require.NoError(t, <-waiting)
		require.NoError(t, other.Check(t.Context()))
		require.NoError(t, other.Release(t.Context()))
	})
}

func TestLoseUnderPrefixAndOwner(t *testing.T) {
	s := locktest.NewServer(t)
	c := client(t, s.Client(t), primitives.WithPrefix("app:"))
	owner := primitives.WithOwner("me")
	hold, other := acquire(t, c.Lock("a"), owner), acquire(t, c.Lock("b"), owner)
	s.Lose(t, hold)
	require.ErrorIs(t, ended(t, hold, time.Second), primitives.ErrLost)
	require.NoError(t, other.Check(t.Context()))
	require.NoError(t, other.Release(t.Context()))
}

// recorder is a testing.TB that notes a fatal failure instead of failing.
type recorder struct {
	testing.TB
	said string
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.said = fmt.Sprintf(format, args...)
	panic(r)
}

func (r *recorder) run(f func()) {
	defer func() {
		if p := recover(); p != nil && p != r {
			panic(p)
		}
	}()
	f()
}

func TestLoseWhatIsNotHeldFails(t *testing.T) {
	s := locktest.NewServer(t)
	hold := acquire(t, client(t, s.Client(t)).Lock("a"))
	require.NoError(t, hold.Release(t.Context()))
	r := &recorder{TB: t}
	r.run(func() { s.Lose(r, hold) })
	require.Contains(t, r.said, "holds nothing")
}

func TestPartition(t *testing.T) {
	both(t, func(t *testing.T) {
		const ttl = 500 * time.Millisecond
		s := locktest.NewServer(t)
		c := client(t, s.Client(t))
		hold := acquire(t, c.Lock("a"), primitives.WithWatchdog(ttl))
		until := hold.ValidUntil()
		s.Partition(true)
		s.Partition(true)
		require.ErrorIs(t, ended(t, hold, 10*ttl), primitives.ErrLost)
		require.False(t, time.Now().Before(until), "told of the loss while it was valid")
		s.Partition(false)
		s.Partition(false)
		require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
		next := acquire(t, c.Lock("a"))
		require.NoError(t, next.Release(t.Context()))
	})
}

// A short outage is ridden out: what was sent meanwhile arrives, and the hold is renewed.
func TestPartitionThatHeals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		hold := acquire(t, client(t, s.Client(t)).Lock("a"))
		time.Sleep(9 * time.Second)
		s.Partition(true)
		time.Sleep(20 * time.Second) // two renewals are on their way
		s.Partition(false)
		time.Sleep(time.Minute)
		require.NoError(t, hold.Check(t.Context()))
		require.NoError(t, hold.Release(t.Context()))
	})
}

func TestKeysExpireByThemselves(t *testing.T) {
	both(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		rdb := s.Client(t)
		require.NoError(t, rdb.Set(t.Context(), "k", "v", 50*time.Millisecond).Err())
		require.Equal(t, int64(1), rdb.Exists(t.Context(), "k").Val())
		time.Sleep(60 * time.Millisecond)
		require.Zero(t, rdb.Exists(t.Context(), "k").Val())
	})
}

// One client is cut off, the others are not.
func TestLinkOfOneClient(t *testing.T) {
	both(t, func(t *testing.T) {
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
		require.Error(t, rdb.Incr(t.Context(), "n").Err(), "on a connection that was open")
		require.Error(t, rdb.Incr(t.Context(), "n").Err(), "on a new one")
		require.Equal(t, "1", other.Get(t.Context(), "n").Val())
		link.Mend()
		require.Equal(t, int64(2), rdb.Incr(t.Context(), "n").Val(), "what a client has given up never arrives")
	})
}

func TestAddr(t *testing.T) {
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

func TestClose(t *testing.T) {
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

// A client that writes on without reading blocks neither itself nor the server.
func TestLongPipeline(t *testing.T) {
	both(t, func(t *testing.T) {
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

func TestFakeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		c := client(t, s.Client(t))
		var renewed atomic.Int64
		c2 := client(t, s.Client(t), primitives.WithObserver(func(e primitives.Event) {
			if e.Kind == primitives.EventRenewed {
				renewed.Add(1)
			}
		}))
		hold := acquire(t, c2.Lock("a"))
		time.Sleep(time.Hour)
		_, err := c.Lock("a").TryAcquire(t.Context())
		require.ErrorIs(t, err, primitives.ErrNotAcquired)
		require.NoError(t, hold.Release(t.Context()))
		require.InDelta(t, 360, renewed.Load(), 2)
	})
}
