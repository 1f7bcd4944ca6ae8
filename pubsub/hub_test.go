package pubsub

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

func TestListenersShareOneConnection(t *testing.T) {
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", protocol), func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				noLeaks(t)
				rdb := s.Client(t, func(o *redis.Options) { o.Protocol = protocol })
				publish(t, rdb, "warm", "up")
				before := redistest.Connections(t, s)
				h := open(t, rdb, Config{})
				name := redistest.Name(t)

				first := listen(h, name).awaitConfirmed(t)
				second := listen(h, name)
				require.True(t, isClosed(second.Confirmed()), "a confirmed channel confirms new listeners at once")
				other := listen(h, name+"-other").awaitConfirmed(t)
				require.Equal(t, before+1, redistest.Connections(t, s), "one connection for all")

				publish(t, rdb, name, "0")
				for _, e := range []*recorder{first, second} {
					require.Equal(t, Signal{Payload: "0"}, e.next(t))
				}

				first.Close()
				first.Close()
				publish(t, rdb, name, "1")
				require.Equal(t, Signal{Payload: "1"}, second.next(t))
				second.Close()
				redistest.WaitFor(t, soon, func() bool {
					return len(redistest.Channels(t, s)) == 1
				}, "the channel of the last listener is gone")
				require.Empty(t, first.signals)
				require.Empty(t, other.signals)

				other.Close()
				awaitIdle(t, h, s, before)
				listen(h, name).awaitConfirmed(t) // an idle hub starts again
			})
		})
	}
}

// The last listener closes and a new one subscribes before the server has answered, a hundred
// times. Once the last listener is confirmed, it must get every message, regardless of earlier
// answers.
func TestSubscribeRightAfterCloseGetsMessages(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		h := open(t, rdb, Config{})
		name := redistest.Name(t)
		for i := range 100 {
			for range rand.IntN(4) {
				e := listen(h, name)
				if rand.IntN(2) == 0 {
					time.Sleep(rand.N(200 * time.Microsecond))
				}
				e.Close()
			}
			e := listen(h, name).awaitConfirmed(t)
			publish(t, rdb, name, fmt.Sprint(i))
			require.Equal(t, Signal{Payload: fmt.Sprint(i)}, e.next(t))
			e.Close()
		}
		redistest.WaitFor(t, soon, func() bool { return len(redistest.Channels(t, s)) == 0 }, "channel gone")
	})
}

// A confirmation belongs to the SUBSCRIBE that it answers. The answer to an earlier SUBSCRIBE must
// not confirm a later listener.
func TestEarlierConfirmationDoesNotConfirmALaterListener(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	proxy := s.Proxy(t)
	h := open(t, proxy.Client(t), Config{})
	listen(h, redistest.Name(t)).awaitConfirmed(t)
	name := redistest.Name(t)

	onServer := func(name string, want bool) {
		redistest.WaitFor(t, soon, func() bool {
			return slices.Contains(redistest.Channels(t, s), name) == want
		}, "the server has executed the commands")
	}
	release := proxy.HoldReplies(redistest.Mentions(name))
	first := listen(h, name)
	onServer(name, true)
	publish(t, s.Client(t), name, "for the first")
	first.Close()
	onServer(name, false) // UNSUBSCRIBE does not wait for the confirmation
	second := listen(h, name)
	onServer(name, true)
	require.False(t, isClosed(second.Confirmed()))

	short := redistest.Name(t)
	fleeting := listen(h, short)
	onServer(short, true)
	fleeting.Close()
	onServer(short, false)

	h.mu.Lock()
	require.Equal(t, 2, h.channels[name].unanswered)
	require.Equal(t, 1, h.channels[short].unanswered)
	h.mu.Unlock()

	release()
	second.awaitConfirmed(t)
	require.False(t, isClosed(first.Confirmed()), "a closed subscription is not confirmed")
	publish(t, s.Client(t), name, "for the second")
	require.Equal(t, Signal{Payload: "for the second"}, second.next(t))
	h.mu.Lock()
	defer h.mu.Unlock()
	require.True(t, h.channels[name].confirmed())
	require.NotContains(t, h.channels, short, "the late answer removes a closed channel")
}

func TestConcurrentSubscribeAndCloseLeavesNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		noLeaks(t)
		rdb := s.Client(t)
		publish(t, rdb, "warm", "up")
		before := redistest.Connections(t, s)
		h := open(t, rdb, Config{})
		churn(t, h)
		redistest.WaitFor(t, soon, func() bool { return len(redistest.Channels(t, s)) == 0 }, "no channels")
		awaitIdle(t, h, s, before)
	})
}

// churn subscribes and closes ten channels at random, from many goroutines.
func churn(t *testing.T, h *Hub) {
	t.Helper()
	prefix := redistest.Name(t)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 150 {
				s := h.Subscribe(fmt.Sprint(prefix, rand.IntN(10)), func(Signal) {})
				if rand.IntN(2) == 0 {
					select {
					case <-s.Confirmed():
					case <-time.After(soon):
						t.Error("not confirmed")
					}
				}
				s.Close()
			}
		})
	}
	wg.Wait()
}

// A listener may be called until Close returns, and never after.
func TestNoSignalAfterSubscriptionClose(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	rdb := s.Client(t)
	h := open(t, rdb, Config{})
	name := redistest.Name(t)
	<-h.Subscribe(name, func(Signal) {}).Confirmed() // keeps the channel subscribed

	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			rdb.Publish(context.WithoutCancel(ctx), name, "x")
		}
	})
	calls := 0
	for calls < 50 {
		var done atomic.Bool
		called := make(chan struct{})
		once := sync.OnceFunc(func() { close(called) })
		sub := h.Subscribe(name, func(Signal) {
			once()
			time.Sleep(time.Duration(rand.IntN(50)) * time.Microsecond)
			if done.Load() {
				t.Error("called after Close")
			}
		})
		select {
		case <-called:
			calls++
		case <-time.After(soon):
			require.FailNow(t, "no signal")
		}
		sub.Close()
		done.Store(true)
	}
	stop()
	wg.Wait()
}

// A listener may subscribe. The new subscription gets the messages published after its
// confirmation.
func TestListenerMaySubscribe(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		h := open(t, rdb, Config{})
		name, other := redistest.Name(t), redistest.Name(t)
		made := make(chan *recorder, 1)
		sub := h.Subscribe(name, func(Signal) { made <- listen(h, other) })
		<-sub.Confirmed()
		publish(t, rdb, name, "0")
		e := (<-made).awaitConfirmed(t)
		publish(t, rdb, other, "1")
		require.Equal(t, Signal{Payload: "1"}, e.next(t))
	})
}

// Any client may publish megabytes on a subscribed channel. The hub does not store such a message
// and signals no listener. The link stays open, and the next message arrives.
func TestOversizedMessagesAreDiscarded(t *testing.T) {
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", protocol), func(t *testing.T) {
			const size, times = 8 << 20, 10
			s := redistest.Fresh(t)
			rdb := s.Client(t, func(o *redis.Options) { o.Protocol = protocol })
			// Otherwise the server disconnects a subscriber that reads so much data slowly.
			require.NoError(t, rdb.ConfigSet(t.Context(), "client-output-buffer-limit", "pubsub 0 0 0").Err())
			h := open(t, rdb, Config{Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
			name := redistest.Name(t)
			e := listen(h, name).awaitConfirmed(t)
			huge := strings.Repeat("0", size)

			before := allocated()
			for range times {
				require.EqualValues(t, 1, rdb.Publish(t.Context(), name, huge).Val())
				require.NoError(t, rdb.Publish(t.Context(), name, "1").Err())
				require.Equal(t, Signal{Payload: "1"}, e.next(t))
			}
			grown := allocated() - before
			t.Logf("%d bytes allocated for %d messages of %d bytes", grown, times, size)
			require.Less(t, grown, uint64(size))
		})
	}
}

func TestHubCloseEndsAllSubscriptions(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		noLeaks(t)
		rdb := s.Client(t)
		h := New(rdb, Config{})
		early := listen(h, redistest.Name(t)).awaitConfirmed(t)
		unconfirmed := listen(h, redistest.Name(t))
		h.Close()
		require.ErrorIs(t, early.Err(), ErrClosed)
		require.ErrorIs(t, unconfirmed.awaitReply(t).Err(), ErrClosed)
		late := listen(h, redistest.Name(t))
		require.ErrorIs(t, late.awaitReply(t).Err(), ErrClosed)
		requireStopped(t, h)
		redistest.WaitFor(t, soon, func() bool { return len(redistest.Channels(t, s)) == 0 }, "no channels")
		early.Close()
		late.Close()
		h.Close()
	})
}

// 10,000 channels take one connection and a few commands, as does the
// replacement of a broken link.
func TestTenThousandChannelsTakeFewCommands(t *testing.T) {
	t.Parallel()
	const n = 10_000
	s := redistest.Fresh(t)
	rdb := s.Client(t)
	publish(t, rdb, "warm", "up")
	before := redistest.Connections(t, s)
	h := open(t, rdb, Config{})

	recorders := make([]*recorder, n)
	start := time.Now()
	for i := range recorders {
		recorders[i] = &recorder{signals: make(chan Signal, 4)}
		recorders[i].Subscription = h.Subscribe(fmt.Sprintf("channel-%d", i), recorders[i].record)
	}
	for _, e := range recorders {
		e.awaitConfirmed(t)
	}
	t.Logf("subscribed in %v, %d commands", time.Since(start), redistest.Commands(t, s)["subscribe"])
	require.Equal(t, before+1, redistest.Connections(t, s))

	calls := redistest.Commands(t, s)
	start = time.Now()
	require.EqualValues(t, 1, rdb.Do(t.Context(), "client", "kill", "type", "pubsub").Val())
	for _, e := range recorders {
		e.awaitResubscribed(t)
	}
	t.Logf("re-subscribed in %v", time.Since(start))
	again := redistest.Commands(t, s).Since(calls)["subscribe"]
	require.LessOrEqual(t, again, int64(n/perCommand+1))

	for _, e := range recorders {
		e.Close()
		require.Empty(t, e.signals)
	}
	awaitIdle(t, h, s, before)
}
