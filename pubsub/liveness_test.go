package pubsub

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
)

// bubble runs f on fake time with a hub behind a proxy. The bubble ends only if no goroutine of the hub is left.
func bubble(t *testing.T, f func(t *testing.T, s *redistest.Server, proxy *redistest.Proxy, h *Hub)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := redistest.Embedded(t)
		proxy := s.Proxy(t)
		f(t, s, proxy, open(t, proxy.Client(t), Config{}))
	})
}

func TestIdleLinkIsClosed(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server, _ *redistest.Proxy, h *Hub) {
		e := listen(h, "c").confirmed(t)
		time.Sleep(time.Hour) // a listener keeps it open
		require.Equal(t, 1, redistest.Connections(t, s))
		require.Empty(t, e.heard)

		e.Close()
		synctest.Wait()
		require.Empty(t, redistest.Channels(t, s))
		time.Sleep(defaultLimits.idle - time.Millisecond)
		require.Equal(t, 1, redistest.Connections(t, s))
		again := listen(h, "c").confirmed(t)
		time.Sleep(time.Second)
		require.Equal(t, 1, redistest.Connections(t, s), "a listener in time keeps it")
		again.Close()
		time.Sleep(defaultLimits.idle + time.Millisecond)
		synctest.Wait()
		require.Zero(t, redistest.Connections(t, s))
		require.Zero(t, workers())
	})
}

// Whatever silences the link, every listener is told within seconds of the server's return, once.
func TestSilence(t *testing.T) {
	for _, tt := range []struct {
		name          string
		begin, end    func(*redistest.Proxy)
		lasts, within time.Duration // within: from the begin, or the end if that is later
	}{
		{
			"half-open link", func(p *redistest.Proxy) { p.BlackHole(true) }, func(p *redistest.Proxy) { p.BlackHole(false) },
			time.Second, 3 * time.Second, // one PING was lost, and with it the link
		},
		{
			"black hole", func(p *redistest.Proxy) { p.BlackHole(true) }, func(p *redistest.Proxy) { p.Heal() },
			time.Minute, 5 * time.Second,
		},
		{
			"only replies are lost", func(p *redistest.Proxy) { p.BlackHoleReplies(true) }, func(p *redistest.Proxy) { p.Heal() },
			time.Minute, 5 * time.Second,
		},
		{
			"connection reset", func(p *redistest.Proxy) { p.CutPubSub() }, func(*redistest.Proxy) {},
			0, 100 * time.Millisecond,
		},
		{
			"server refuses", func(p *redistest.Proxy) { p.Refuse(true); p.Reset() }, func(p *redistest.Proxy) { p.Refuse(false) },
			time.Minute, 2 * time.Second,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *redistest.Server, proxy *redistest.Proxy, h *Hub) {
				ears := []*ear{listen(h, "a"), listen(h, "a"), listen(h, "b")}
				for _, e := range ears {
					e.confirmed(t)
				}
				time.Sleep(10*time.Second + 300*time.Millisecond)
				tt.begin(proxy)
				time.Sleep(tt.lasts)
				for _, e := range ears {
					require.Empty(t, e.heard)
				}
				tt.end(proxy)
				start := time.Now()
				for _, e := range ears {
					e.resubscribed(t)
				}
				require.LessOrEqual(t, time.Since(start), tt.within)
				s.Mini().Publish("a", "0")
				for _, e := range ears[:2] {
					require.Equal(t, Signal{Payload: "0"}, e.next(t))
				}
				require.Equal(t, []string{"a", "b"}, redistest.Channels(t, s))
			})
		})
	}
}

// While the server is away nobody waits long and nobody hammers it, though new channels keep coming.
func TestDialsAreRare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := redistest.Embedded(t)
		var dials atomic.Int32
		rdb := s.Client(t, func(o *redis.Options) {
			o.Dialer = func(context.Context, string, string) (net.Conn, error) {
				dials.Add(1)
				return nil, errors.New("refused")
			}
		})
		h := open(t, rdb, Config{})
		first := listen(h, "c")
		for range 1000 {
			time.Sleep(30 * time.Millisecond)
			listen(h, "c2").Close()
		}
		require.GreaterOrEqual(t, dials.Load(), int32(30))
		require.LessOrEqual(t, dials.Load(), int32(75))
		require.False(t, closed(first.Confirmed()))
		first.Close()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Zero(t, workers(), "without listeners it gives up")
	})
}

// Close does not wait for a silent peer, in whatever phase the link is.
func TestCloseInABlackHole(t *testing.T) {
	for _, tt := range []struct {
		name string
		wait time.Duration // in the black hole
	}{
		{"established", 0},
		{"established, late", 2500 * time.Millisecond},
		{"greeting", 4 * time.Second},
		{"any", 17 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *redistest.Server, proxy *redistest.Proxy, h *Hub) {
				e := listen(h, "c").confirmed(t)
				proxy.BlackHole(true)
				time.Sleep(tt.wait)
				start := time.Now()
				h.Close()
				require.Zero(t, time.Since(start))
				require.ErrorIs(t, e.Err(), ErrClosed)
				require.Zero(t, workers())
			})
		})
	}
	t.Run("dialing", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			rdb := redistest.Embedded(t).Client(t, func(o *redis.Options) {
				o.Dialer = func(ctx context.Context, _, _ string) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }
			})
			h := open(t, rdb, Config{})
			listen(h, "c")
			synctest.Wait()
			start := time.Now()
			h.Close()
			require.Zero(t, time.Since(start))
		})
	})
}

// The last listener that leaves a silent link need not wait for it either, and nothing stays behind.
func TestLeavingABlackHole(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server, proxy *redistest.Proxy, h *Hub) {
		e := listen(h, "c").confirmed(t)
		proxy.BlackHole(true)
		unanswered := listen(h, "d")
		time.Sleep(time.Second)
		unanswered.Close()
		e.Close()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.Zero(t, workers())
		h.mu.Lock()
		defer h.mu.Unlock()
		require.Empty(t, h.channels)
		require.Empty(t, h.links)
	})
}

func TestHungServer(t *testing.T) {
	noLeaks(t)
	s := redistest.Fresh(t)
	h := open(t, s.Client(t), Config{limits: hasty})
	e := listen(h, "c").confirmed(t)
	require.NoError(t, s.Pause())
	time.Sleep(2 * hasty.dead) // the time a hang lasts
	require.NoError(t, s.Resume())
	e.resubscribed(t)
	publish(t, s.Client(t), "c", "0")
	e.hears(t, "0")
	e.Close()
	idle(t, s, redistest.Connections(t, s)) // of the hung links too
}

func TestRestartedServer(t *testing.T) {
	s := redistest.Fresh(t)
	rdb := s.Client(t)
	h := open(t, rdb, Config{})
	e := listen(h, "c").confirmed(t)
	require.NoError(t, s.Kill())
	fresh := listen(h, "d")
	require.NoError(t, s.Restart())
	e.resubscribed(t)
	fresh.confirmed(t)
	require.Empty(t, fresh.heard, "a first confirmation is no re-subscription")
	require.Equal(t, []string{"c", "d"}, redistest.Channels(t, s))
}

// What was right before need not be now: the link greets with the credentials of the day, and keeps trying until they are right. A server
// says so in different ways: a wrong password fails the greeting, none at all the first SUBSCRIBE.
func TestRotatedPassword(t *testing.T) {
	for _, wrong := range []string{"", "wrong"} {
		t.Run(fmt.Sprintf("%q", wrong), func(t *testing.T) {
			s := redistest.Fresh(t)
			ctx := t.Context()
			var password atomic.Value
			password.Store(wrong)
			greeted := make(chan string, 1000)
			rdb := s.Client(t, func(o *redis.Options) {
				o.CredentialsProvider = func() (string, string) {
					now := password.Load().(string)
					greeted <- now
					if now == "" {
						return "", ""
					}
					return "default", now
				}
			})
			require.NoError(t, s.Client(t).ConfigSet(ctx, "requirepass", "old").Err())
			limits := defaultLimits
			limits.idle = time.Hour // so that nothing but the error ends a link
			h := open(t, rdb, Config{limits: limits})
			e := listen(h, "c")
			for range 3 {
				require.Equal(t, wrong, <-greeted)
			}
			require.False(t, closed(e.Confirmed()))
			password.Store("old")
			e.confirmed(t)
			require.NoError(t, rdb.ConfigSet(ctx, "requirepass", "new").Err())
			password.Store("new")
			require.NoError(t, rdb.Do(ctx, "client", "kill", "type", "pubsub").Err())
			e.resubscribed(t)
		})
	}
}

// A master that hangs keeps its connections open: the link must find the new one by itself.
func TestSentinelFailover(t *testing.T) {
	s := redistest.Sentinel(t)
	h := open(t, s.FailoverClient(t), Config{limits: hasty})
	e := listen(h, "c").confirmed(t)
	require.NoError(t, s.Master.Pause())
	redistest.WaitFor(t, soon, func() bool { return s.Current(t) != s.Master }, "failover")
	current := s.Current(t)
	redistest.WaitFor(t, soon, func() bool { return slices.Contains(redistest.Channels(t, current), "c") }, "followed") // the sentinels have a channel there, too
	e.resubscribed(t)
	publish(t, current.Client(t), "c", "0")
	e.hears(t, "0")
}
