package pubsub

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
)

// empty requires that nothing lingers and no channel is known.
func empty(t *testing.T, h *Hub) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	require.Zero(t, h.lingering.list.Len())
	require.Empty(t, h.channels)
}

// Who comes back in time is confirmed at once, with no command, and hears what is published then; later nothing is left. So on real
// servers, of either kind of pub/sub.
func TestLinger(t *testing.T) {
	for _, tt := range []struct {
		name     string
		open     func(t *testing.T) (client redis.UniversalClient, nodes []*redistest.Server)
		channels func(t testing.TB, s *redistest.Server) []string
		word     string
		publish  func(t *testing.T, rdb redis.UniversalClient, channel, payload string)
	}{
		{
			"plain", func(t *testing.T) (redis.UniversalClient, []*redistest.Server) {
				s := redistest.Fresh(t)
				return s.Client(t), []*redistest.Server{s}
			}, redistest.Channels, "subscribe",
			func(t *testing.T, rdb redis.UniversalClient, channel, payload string) {
				publish(t, rdb, channel, payload)
			},
		},
		{
			"sharded", func(t *testing.T) (redis.UniversalClient, []*redistest.Server) {
				c := redistest.Cluster(t)
				return c.ClusterClient(t), c.Nodes()
			}, redistest.ShardChannels, "ssubscribe",
			func(t *testing.T, rdb redis.UniversalClient, channel, payload string) {
				spublish(t, rdb.(*redis.ClusterClient), channel, payload)
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			noLeaks(t)
			rdb, nodes := tt.open(t)
			name := redistest.Name(t)
			onServers := func() (all []string) {
				for _, s := range nodes {
					all = append(all, tt.channels(t, s)...)
				}
				return all
			}
			commands := func() (n int64) {
				for _, s := range nodes {
					n += redistest.Commands(t, s)[tt.word]
				}
				return n
			}

			h := open(t, rdb, Config{})
			e := listenHot(h, name).confirmed(t)
			left := time.Now()
			e.Close()
			redistest.WaitFor(t, soon, func() bool { return len(onServers()) == 0 }, "gone")
			require.GreaterOrEqual(t, time.Since(left), defaultLinger)
			redistest.WaitFor(t, soon, func() bool { return workers() == 0 }, "goroutines ended")
			empty(t, h)

			h = open(t, rdb, Config{Linger: time.Hour})
			listenHot(h, name).confirmed(t).Close()
			before := commands()
			for i := range 3 {
				e := listenHot(h, name)
				require.True(t, closed(e.Confirmed()), "confirmed at once")
				tt.publish(t, rdb, name, fmt.Sprint(i))
				e.hears(t, fmt.Sprint(i)) // perhaps behind what was for nobody, and came late
				e.Close()
				heard := len(e.heard)
				tt.publish(t, rdb, name, "to nobody")
				require.Len(t, e.heard, heard)
			}
			require.Equal(t, before, commands(), "no command")
		})
	}
}

// How long channels stay, to the millisecond.
func TestLingerTime(t *testing.T) {
	const ms = time.Millisecond
	type hub struct {
		*testing.T
		*Hub
	}
	hot := func(name string) func(hub) { return func(h hub) { listenHot(h.Hub, name).confirmed(h).Close() } }
	for _, tt := range []struct {
		name  string
		limit time.Duration
		steps []any // what is done; then durations that pass, and the channels there must be then
	}{
		{"half a second", 0, []any{hot("a"), 499 * ms, []string{"a"}, 2 * ms, []string{}}},
		{"as configured", time.Minute, []any{hot("a"), time.Minute - ms, []string{"a"}, 2 * ms, []string{}}},
		{"not at all", -1, []any{hot("a"), ms, []string{}}},
		{
			"each its own time", 0,
			[]any{hot("a"), 300 * ms, hot("b"), 199 * ms, []string{"a", "b"}, 2 * ms, []string{"b"}, 298 * ms, []string{"b"}, 2 * ms, []string{}},
		},
		{
			"from the latest end", 0, // the timer was set for the first
			[]any{hot("a"), 300 * ms, hot("a"), 499 * ms, []string{"a"}, 2 * ms, []string{}},
		},
		{
			"the last to leave decides: plain", 0, []any{func(h hub) {
				e := listen(h.Hub, "a").confirmed(h)
				hot("a")(h)
				e.Close()
			}, ms, []string{}},
		},
		{
			"the last to leave decides: hot", 0, []any{func(h hub) {
				e := listenHot(h.Hub, "a").confirmed(h)
				listen(h.Hub, "a").confirmed(h).Close()
				e.Close()
			}, 499 * ms, []string{"a"}, 2 * ms, []string{}},
		},
		{
			"a plain one comes back and leaves", 0,
			[]any{hot("a"), 100 * ms, func(h hub) { listen(h.Hub, "a").confirmed(h).Close() }, ms, []string{}},
		},
		{
			"somebody comes back and stays", 0,
			[]any{hot("a"), 100 * ms, func(h hub) { listenHot(h.Hub, "a") }, time.Hour, []string{"a"}},
		},
		{
			"left before the answer", 0,
			[]any{hot("b"), func(h hub) { listenHot(h.Hub, "a"); time.Sleep(ms) }, func(h hub) {
				h.mu.Lock()
				s := h.channels["a"].listeners[0]
				h.mu.Unlock()
				s.Close()
			}, 400 * ms, []string{"a", "b"}, 200 * ms, []string{}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := redistest.Embedded(t)
				h := open(t, s.Client(t), Config{Linger: tt.limit})
				for _, step := range tt.steps {
					switch step := step.(type) {
					case func(hub):
						step(hub{t, h})
					case time.Duration:
						time.Sleep(step)
						synctest.Wait()
					case []string:
						require.Equal(t, step, append([]string{}, redistest.Channels(t, s)...))
						h.mu.Lock()
						require.Len(t, h.channels, len(step))
						h.mu.Unlock()
					}
				}
			})
		})
	}
}

// Of more channels than may linger those go that have lingered longest.
func TestLingeringIsBounded(t *testing.T) {
	const more = 7
	s := redistest.Fresh(t)
	h := open(t, s.Client(t), Config{Linger: time.Hour})
	ears := make([]*ear, maxLingering+more)
	name := func(i int) string { return fmt.Sprintf("c%04d", i) }
	for i := range ears {
		ears[i] = listenHot(h, name(i))
	}
	for _, e := range ears {
		e.confirmed(t)
		e.Close()
	}
	redistest.WaitFor(t, soon, func() bool { return len(redistest.Channels(t, s)) <= maxLingering }, "the first are gone")
	left := redistest.Channels(t, s)
	require.Len(t, left, maxLingering)
	require.Equal(t, name(more), slices.Min(left))
	for i := more; i < len(ears); i++ {
		require.True(t, closed(listenHot(h, name(i)).Confirmed()), name(i))
	}
}

// What lingers goes with its link: it is not subscribed anew, and who comes back is confirmed by a new answer.
func TestLingeringEndsWithTheLink(t *testing.T) {
	for _, tt := range []struct {
		name    string
		lonely  bool // only lingering channels are on the link
		channel []string
	}{{"beside one in use", false, []string{"used"}}, {"alone", true, []string{}}} {
		t.Run(tt.name, func(t *testing.T) {
			noLeaks(t)
			s := redistest.Fresh(t)
			proxy := s.Proxy(t)
			h := open(t, proxy.Client(t), Config{Linger: time.Hour})
			used := listen(h, "used").confirmed(t)
			listenHot(h, "a").confirmed(t).Close()
			if tt.lonely {
				used.Close()
				redistest.WaitFor(t, soon, func() bool { return len(redistest.Channels(t, s)) == 1 }, "unsubscribed")
			}
			require.Equal(t, 1, proxy.CutPubSub())
			if tt.lonely {
				redistest.WaitFor(t, soon, func() bool { return workers() == 0 }, "goroutines ended")
				empty(t, h)
			} else {
				used.resubscribed(t)
			}
			require.Equal(t, tt.channel, redistest.Channels(t, s))

			before := redistest.Commands(t, s)
			back := listenHot(h, "a").confirmed(t)
			require.Equal(t, int64(1), redistest.Commands(t, s).Since(before)["subscribe"])
			publish(t, s.Client(t), "a", "0")
			require.Equal(t, Signal{Payload: "0"}, back.next(t))
			require.Empty(t, used.heard)
		})
	}
}

func TestHubCloseEndsLingering(t *testing.T) {
	for _, linger := range []time.Duration{0, time.Hour} {
		t.Run(fmt.Sprint(linger), func(t *testing.T) {
			noLeaks(t)
			s := redistest.Fresh(t)
			h := New(s.Client(t), Config{Linger: linger})
			e := listenHot(h, "a").confirmed(t)
			listenHot(h, "b").confirmed(t).Close()
			listenHot(h, "c").confirmed(t).Close()
			h.Close()
			require.ErrorIs(t, e.Err(), ErrClosed)
			require.False(t, h.lingering.timer.Stop(), "the timer was stopped")
			empty(t, h)
			redistest.WaitFor(t, soon, func() bool { return len(redistest.Channels(t, s)) == 0 }, "no channels")
			e.Close()
			listenHot(h, "b").decided(t).Close()
			empty(t, h)
		})
	}
}
