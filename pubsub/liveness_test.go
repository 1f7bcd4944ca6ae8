package pubsub

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

// withFakeTime runs f in a synctest bubble, with a hub behind a proxy. The bubble ends only if no
// goroutine of the hub is left.
func withFakeTime(t *testing.T, f func(t *testing.T, s *redistest.Server, proxy *redistest.Proxy, h *Hub)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := redistest.Embedded(t)
		proxy := s.Proxy(t)
		f(t, s, proxy, open(t, proxy.Client(t), Config{}))
	})
}

// requireStoppedNow requires in a bubble that no goroutine of the hub runs at this instant.
func requireStoppedNow(t *testing.T, h *Hub) {
	t.Helper()
	done := stopped(h)
	synctest.Wait()
	require.True(t, isClosed(done), "the hub still has goroutines")
	requireStopped(t, h)
}

func TestIdleLinkIsClosed(t *testing.T) {
	t.Parallel()
	withFakeTime(t, func(t *testing.T, s *redistest.Server, _ *redistest.Proxy, h *Hub) {
		e := listen(h, "c").awaitConfirmed(t)
		time.Sleep(time.Hour) // a listener keeps the link open
		require.Equal(t, 1, redistest.Connections(t, s))
		require.Empty(t, e.signals)

		e.Close()
		synctest.Wait()
		require.Empty(t, redistest.Channels(t, s))
		time.Sleep(defaultLimits.idle - time.Millisecond)
		require.Equal(t, 1, redistest.Connections(t, s))
		again := listen(h, "c").awaitConfirmed(t)
		time.Sleep(time.Second)
		require.Equal(t, 1, redistest.Connections(t, s), "a listener in time keeps the link")
		again.Close()
		time.Sleep(defaultLimits.idle + time.Millisecond)
		synctest.Wait()
		require.Zero(t, redistest.Connections(t, s))
		requireStoppedNow(t, h)
	})
}

// A listener that comes soon after CloseSoon is confirmed without a command. Without one the
// channel is unsubscribed.
func TestListenerAfterAnotherNeedsNoCommand(t *testing.T) {
	t.Parallel()
	withFakeTime(t, func(t *testing.T, s *redistest.Server, _ *redistest.Proxy, h *Hub) {
		e := listen(h, "c").awaitConfirmed(t)
		before := redistest.Commands(t, s)
		for range 100 {
			e.CloseSoon()
			time.Sleep(defaultLimits.leave - time.Millisecond)
			e = listen(h, "c")
			require.True(t, isClosed(e.Confirmed()), "no answer to wait for")
			time.Sleep(defaultLimits.leave)
		}
		require.Equal(t, []string{"c"}, redistest.Channels(t, s))
		after := redistest.Commands(t, s)
		require.Equal(t, before["subscribe"], after["subscribe"])
		require.Equal(t, before["unsubscribe"], after["unsubscribe"])
		require.NoError(t, s.Client(t).Publish(t.Context(), "c", "x").Err())
		e.awaitPayload(t, "x")
		e.CloseSoon()
		time.Sleep(defaultLimits.leave + time.Millisecond)
		synctest.Wait()
		require.Empty(t, redistest.Channels(t, s))
	})
}

// Channels are left one after another, each before the previous one is unsubscribed. That postpones
// no UNSUBSCRIBE.
func TestChannelsThatAreLeftOneAfterAnother(t *testing.T) {
	t.Parallel()
	withFakeTime(t, func(t *testing.T, s *redistest.Server, _ *redistest.Proxy, h *Hub) {
		var left []*recorder
		for i := range 10 {
			left = append(left, listen(h, fmt.Sprint("c", i)).awaitConfirmed(t))
		}
		for i, e := range left {
			e.CloseSoon()
			time.Sleep(defaultLimits.leave / 2)
			synctest.Wait()
			if i > 0 {
				require.NotContains(t, redistest.Channels(t, s), "c0")
			}
		}
	})
}

// A link does not ask for maintenance notifications, whatever the client is configured to do: it
// would have to understand them, and go-redis would change its timeouts.
func TestLinksAskForNoMaintenanceNotifications(t *testing.T) {
	t.Parallel()
	for _, mode := range []maintnotifications.Mode{
		maintnotifications.ModeDisabled, maintnotifications.ModeAuto, maintnotifications.ModeEnabled,
	} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			p := redistest.Redis(t).Proxy(t)
			rdb := p.Client(t, func(o *redis.Options) {
				o.Protocol, o.MaintNotificationsConfig = 3, &maintnotifications.Config{Mode: mode}
			})
			p.Record()
			listen(open(t, rdb, Config{}), redistest.Name(t)).awaitConfirmed(t)
			for _, c := range p.Commands() {
				require.NotContains(t, strings.ToLower(strings.Join(c.Args, " ")), "maint_notifications")
			}
		})
	}
}

// However a link fails, every listener gets one signal within seconds after the server is back.
func TestSilentLinkIsReplaced(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name          string
		begin, end    func(*redistest.Proxy)
		lasts, within time.Duration // within counts from end
	}{
		{
			"half-open link",
			func(p *redistest.Proxy) { p.BlackHole(true) }, func(p *redistest.Proxy) { p.BlackHole(false) },
			defaultLimits.quiet, 4 * time.Second, // one PING is lost, so the link is replaced
		},
		{
			"black hole", func(p *redistest.Proxy) { p.BlackHole(true) }, func(p *redistest.Proxy) { p.Heal() },
			time.Minute, 5 * time.Second,
		},
		{
			"only replies are lost",
			func(p *redistest.Proxy) { p.BlackHoleReplies(true) }, func(p *redistest.Proxy) { p.Heal() },
			time.Minute, 5 * time.Second,
		},
		{
			"connection reset", func(p *redistest.Proxy) { p.CutPubSub() }, func(*redistest.Proxy) {},
			0, 100 * time.Millisecond,
		},
		{
			"server refuses",
			func(p *redistest.Proxy) { p.Refuse(true); p.Reset() }, func(p *redistest.Proxy) { p.Refuse(false) },
			time.Minute, 2 * time.Second,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			withFakeTime(t, func(t *testing.T, s *redistest.Server, proxy *redistest.Proxy, h *Hub) {
				recorders := []*recorder{listen(h, "a"), listen(h, "a"), listen(h, "b")}
				for _, e := range recorders {
					e.awaitConfirmed(t)
				}
				time.Sleep(10*time.Second + 300*time.Millisecond)
				tt.begin(proxy)
				time.Sleep(tt.lasts)
				for _, e := range recorders {
					require.Empty(t, e.signals)
				}
				tt.end(proxy)
				start := time.Now()
				for _, e := range recorders {
					e.awaitResubscribed(t)
				}
				require.LessOrEqual(t, time.Since(start), tt.within)
				s.Mini().Publish("a", "0")
				for _, e := range recorders[:2] {
					require.Equal(t, Signal{Payload: "0"}, e.next(t))
				}
				require.Equal(t, []string{"a", "b"}, redistest.Channels(t, s))
			})
		})
	}
}

// Whenever the server goes silent, the link is replaced within 10.5 s.
func TestSilentLinkIsReplacedWithinTenSeconds(t *testing.T) {
	t.Parallel()
	for _, phase := range []time.Duration{
		0, time.Second, defaultLimits.quiet - time.Millisecond, defaultLimits.quiet, 3 * defaultLimits.quiet / 2,
	} {
		t.Run(phase.String(), func(t *testing.T) {
			withFakeTime(t, func(t *testing.T, _ *redistest.Server, proxy *redistest.Proxy, h *Hub) {
				e := listen(h, "c").awaitConfirmed(t)
				h.mu.Lock()
				l := h.links[plainServer]
				h.mu.Unlock()
				time.Sleep(phase)
				start := time.Now()
				proxy.BlackHole(true)
				<-l.ctx.Done()
				require.Greater(t, time.Since(start), defaultLimits.answer, "a short delay is no failure")
				proxy.BlackHole(false)
				e.awaitResubscribed(t)
				require.LessOrEqual(t, time.Since(start), 10500*time.Millisecond)
			})
		})
	}
}

// A link sends a PING only after nothing has arrived for a while: no message and no answer.
func TestPingIsSentOnlyAfterSilence(t *testing.T) {
	t.Parallel()
	withFakeTime(t, func(t *testing.T, s *redistest.Server, proxy *redistest.Proxy, h *Hub) {
		e := listen(h, "c").awaitConfirmed(t)
		time.Sleep(time.Minute)
		proxy.Record()
		pings := func() (times []time.Time) {
			for _, c := range proxy.Commands() {
				require.Equal(t, "ping", strings.ToLower(c.Args[0]))
				times = append(times, c.Time)
			}
			return times
		}
		time.Sleep(10 * defaultLimits.quiet)
		quiet := pings()
		require.Len(t, quiet, 10)
		for i, at := range quiet[1:] {
			require.Equal(t, defaultLimits.quiet, at.Sub(quiet[i]))
		}
		for range 100 { // each message comes just before a PING would be sent
			s.Mini().Publish("c", "0")
			e.awaitPayload(t, "0")
			time.Sleep(defaultLimits.quiet - time.Millisecond)
		}
		require.LessOrEqual(t, len(pings()), 11, "one may have been due before the first message")
		time.Sleep(defaultLimits.quiet)
		require.Greater(t, len(pings()), len(quiet), "silent again")
		require.Equal(t, 1, redistest.Connections(t, s), "the link was never replaced")
	})
}

// While the server is down, dials neither stop nor flood it, even if new channels keep coming.
func TestDialsBackOff(t *testing.T) {
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
		require.False(t, isClosed(first.Confirmed()))
		first.Close()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		requireStoppedNow(t, h) // without listeners the hub gives up
	})
}

// Close returns at once while the server is silent, in every phase of a link.
func TestHubCloseDoesNotWaitForASilentServer(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		wait time.Duration // in the black hole
	}{
		{"established", 0},
		{"waiting for the answer to PING", defaultLimits.quiet + time.Second},
		{"handshake", defaultLimits.silence() + time.Second},
		{"later retries", defaultLimits.silence() + 14*time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			withFakeTime(t, func(t *testing.T, s *redistest.Server, proxy *redistest.Proxy, h *Hub) {
				e := listen(h, "c").awaitConfirmed(t)
				proxy.BlackHole(true)
				time.Sleep(tt.wait)
				start := time.Now()
				h.Close()
				require.Zero(t, time.Since(start))
				require.ErrorIs(t, e.Err(), ErrClosed)
				requireStopped(t, h)
			})
		})
	}
	redistest.RunBubble(t, "dialing", func(t *testing.T) {
		rdb := redistest.Embedded(t).Client(t, func(o *redis.Options) {
			o.Dialer = func(ctx context.Context, _, _ string) (net.Conn, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
		})
		h := open(t, rdb, Config{})
		listen(h, "c")
		synctest.Wait()
		start := time.Now()
		h.Close()
		require.Zero(t, time.Since(start))
	})
}

// Closing the last subscription of a silent link returns at once, and nothing is left behind.
func TestSubscriptionCloseDoesNotWaitForASilentServer(t *testing.T) {
	t.Parallel()
	withFakeTime(t, func(t *testing.T, s *redistest.Server, proxy *redistest.Proxy, h *Hub) {
		e := listen(h, "c").awaitConfirmed(t)
		proxy.BlackHole(true)
		unanswered := listen(h, "d")
		time.Sleep(time.Second)
		unanswered.Close()
		e.Close()
		time.Sleep(defaultLimits.silence() + time.Second)
		synctest.Wait()
		requireStoppedNow(t, h)
		h.mu.Lock()
		defer h.mu.Unlock()
		require.Empty(t, h.channels)
		require.Empty(t, h.links)
	})
}

func TestHungServerIsResubscribed(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	h := open(t, s.Client(t), Config{limits: shortLimits})
	e := listen(h, "c").awaitConfirmed(t)
	require.NoError(t, s.Pause())
	time.Sleep(2 * shortLimits.silence()) // the hang must outlast the silence limit
	require.NoError(t, s.Resume())
	e.awaitResubscribed(t)
	publish(t, s.Client(t), "c", "0")
	e.awaitPayload(t, "0")
	e.Close()
	awaitIdle(t, h, s, redistest.Connections(t, s)) // includes connections of the hung links
}

func TestRestartedServerIsResubscribed(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	rdb := s.Client(t)
	h := open(t, rdb, Config{})
	e := listen(h, "c").awaitConfirmed(t)
	require.NoError(t, s.Kill())
	fresh := listen(h, "d")
	require.NoError(t, s.Restart())
	e.awaitResubscribed(t)
	fresh.awaitConfirmed(t)
	require.Empty(t, fresh.signals, "a first confirmation is not a re-subscription")
	require.Equal(t, []string{"c", "d"}, redistest.Channels(t, s))
}

// A link asks for the credentials on every dial, and retries until they are right. Servers refuse
// in two ways: a wrong password fails the handshake, a missing one fails the first SUBSCRIBE.
func TestReconnectUsesTheCurrentCredentials(t *testing.T) {
	t.Parallel()
	for _, wrong := range []string{"", "wrong"} {
		t.Run(fmt.Sprintf("%q", wrong), func(t *testing.T) {
			s := redistest.Fresh(t)
			ctx := t.Context()
			var password atomic.Value
			password.Store(wrong)
			usedPasswords := make(chan string, 1000)
			rdb := s.Client(t, func(o *redis.Options) {
				o.CredentialsProvider = func() (string, string) {
					now := password.Load().(string)
					usedPasswords <- now
					if now == "" {
						return "", ""
					}
					return "default", now
				}
			})
			require.NoError(t, s.Client(t).ConfigSet(ctx, "requirepass", "old").Err())
			limits := defaultLimits
			limits.idle = time.Hour // so that only the error ends a link
			h := open(t, rdb, Config{limits: limits})
			e := listen(h, "c")
			for range 3 {
				require.Equal(t, wrong, <-usedPasswords)
			}
			require.False(t, isClosed(e.Confirmed()))
			password.Store("old")
			e.awaitConfirmed(t)
			require.NoError(t, rdb.ConfigSet(ctx, "requirepass", "new").Err())
			password.Store("new")
			require.NoError(t, rdb.Do(ctx, "client", "kill", "type", "pubsub").Err())
			e.awaitResubscribed(t)
		})
	}
}

// A hanging master keeps its connections open. The link must find the new master by itself.
func TestSubscriptionFollowsASentinelFailover(t *testing.T) {
	redistest.NeedFull(t, "a fail-over")
	t.Parallel()
	s := redistest.Sentinel(t)
	h := open(t, s.FailoverClient(t), Config{limits: shortLimits})
	e := listen(h, "c").awaitConfirmed(t)
	require.NoError(t, s.Master.Pause())
	redistest.WaitFor(t, soon, func() bool { return s.Current(t) != s.Master }, "failover")
	current := s.Current(t)
	// The sentinels subscribe to a channel of their own, so look for this one.
	subscribed := func() bool { return slices.Contains(redistest.Channels(t, current), "c") }
	redistest.WaitFor(t, soon, subscribed, "subscribed on the new master")
	e.awaitResubscribed(t)
	publish(t, current.Client(t), "c", "0")
	e.awaitPayload(t, "0")
}

// A former master that does not know of its successor keeps its connections. When commands go
// elsewhere, the link follows, once: the address that it dials may be another one of the same
// server.
func TestSubscriptionGoesWhereCommandsGo(t *testing.T) {
	t.Parallel()
	former, current := redistest.Fresh(t), redistest.Fresh(t)
	var dials atomic.Int32
	var commands, master atomic.Value // the addresses to which commands go and dials lead
	commands.Store("")
	master.Store(former.Addr())
	rdb := former.Client(t, func(o *redis.Options) {
		o.Dialer = func(ctx context.Context, network, _ string) (net.Conn, error) {
			dials.Add(1)
			return new(net.Dialer).DialContext(ctx, network, master.Load().(string))
		}
	})
	server := func() (string, int64) { return commands.Load().(string), 0 }
	e := listen(open(t, rdb, Config{limits: shortLimits, Server: server}), "c").awaitConfirmed(t)
	requireDials := func(n int, why string) {
		t.Helper()
		time.Sleep(5 * shortLimits.look)
		require.EqualValues(t, n, dials.Load(), why)
	}
	requireDials(1, "it is not known where commands go")
	commands.Store(former.Addr())
	requireDials(1, "the link is where commands go")
	commands.Store("")
	requireDials(1, "it is not known any longer")

	for n, to := range []*redistest.Server{current, former} {
		master.Store(to.Addr())
		commands.Store(to.Addr())
		e.awaitResubscribed(t)
		require.Contains(t, redistest.Channels(t, to), "c")
		requireDials(n+2, "the link has arrived")
	}
	commands.Store("127.0.0.1:1")
	e.awaitResubscribed(t)
	requireDials(4, "the link is at another address than commands")

	// The link is at the new master before the commands.
	master.Store(current.Addr())
	require.NoError(t, former.Client(t).ClientKillByFilter(t.Context(), "type", "pubsub").Err())
	e.awaitResubscribed(t)
	requireDials(5, "commands are still elsewhere")
	commands.Store(current.Addr())
	requireDials(5, "commands have arrived, too")
	master.Store(former.Addr())
	commands.Store("127.0.0.1:1") // where they were when the link was dialed
	e.awaitResubscribed(t)
	requireDials(6, "commands have left again")
}

// A dialer's connections may have no address. Then nothing is known about their server.
func TestLinkWithoutAnAddressStays(t *testing.T) {
	r := singleRouter{where: func() (string, int64) { return "now", 0 }}
	require.NoError(t, r.follow("before", 0)(t.Context(), nil))
	require.Error(t, r.follow("before", 0)(t.Context(), &net.TCPAddr{}))
}

// After commands have met a former primary, the link is made again unless it is where they go now.
func TestLinkIsMadeAgainAfterAFormerPrimary(t *testing.T) {
	former := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}
	for _, tt := range []struct {
		now  string
		want bool
	}{{former.String(), false}, {"127.0.0.1:2", true}, {"", true}} {
		r := singleRouter{where: func() (string, int64) { return tt.now, 1 }}
		check := r.follow(former.String(), 0)
		require.Equal(t, tt.want, check(t.Context(), former) != nil, "commands go to %q", tt.now)
		require.NoError(t, check(t.Context(), former), "once")
	}
}
