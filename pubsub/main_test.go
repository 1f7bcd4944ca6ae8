package pubsub

import (
	"context"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/redlatch/redlatch/internal/redistest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

// soon bounds the waiting for what happens within milliseconds on a machine that is not busy.
const soon = 10 * time.Second

// hasty are limits for tests in which real time passes.
var hasty = limits{ping: 100 * time.Millisecond, dead: 600 * time.Millisecond, connect: time.Second, idle: 50 * time.Millisecond}

// open makes a hub that is closed when t ends; then none of its goroutines may be left.
func open(t testing.TB, rdb redis.UniversalClient, cfg Config) *Hub {
	t.Helper()
	h := New(rdb, cfg)
	t.Cleanup(h.Close)
	return h
}

// ear is a listener that remembers.
type ear struct {
	*Subscription
	heard chan Signal
}

func listen(h *Hub, channel string) *ear {
	e := &ear{heard: make(chan Signal, 1000)}
	e.Subscription = h.Subscribe(channel, e.hear)
	return e
}

// hear never blocks, as a listener must not.
func (e *ear) hear(s Signal) {
	select {
	case e.heard <- s:
	default:
		panic("an ear that nobody listens to is full")
	}
}

func (e *ear) confirmed(t testing.TB) *ear {
	t.Helper()
	require.NoError(t, e.decided(t).Err())
	return e
}

func (e *ear) decided(t testing.TB) *ear {
	t.Helper()
	select {
	case <-e.Confirmed():
	case <-time.After(soon):
		require.FailNow(t, "not confirmed")
	}
	return e
}

func (e *ear) next(t testing.TB) Signal {
	t.Helper()
	select {
	case s := <-e.heard:
		return s
	case <-time.After(soon):
		require.FailNow(t, "no signal")
		return Signal{}
	}
}

// hears awaits a payload and lets pass what was heard before.
func (e *ear) hears(t testing.TB, payload string) {
	t.Helper()
	for e.next(t).Payload != payload {
	}
}

func (e *ear) resubscribed(t testing.TB) {
	t.Helper()
	require.Equal(t, Signal{Resubscribed: true}, e.next(t))
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// idle awaits that the hub has neither connections nor goroutines; before is the number of connections without it.
func idle(t testing.TB, s *redistest.Server, before int) {
	t.Helper()
	redistest.WaitFor(t, soon, func() bool { return redistest.Connections(t, s) <= before }, "connections closed")
	redistest.WaitFor(t, soon, func() bool { return workers() == 0 }, "goroutines ended")
}

// workers counts the goroutines of hubs in this process.
func workers() int {
	buf := make([]byte, 4<<20)
	stacks := string(buf[:runtime.Stack(buf, true)])
	return strings.Count(stacks, "pubsub.(*link).run(") + strings.Count(stacks, "pubsub.(*link).read(") + strings.Count(stacks, "pubsub.(*Hub).settle(")
}

func noLeaks(t *testing.T) {
	t.Helper()
	ignore := []goleak.Option{goleak.IgnoreCurrent(), redistest.IgnoreServers()}
	t.Cleanup(func() { goleak.VerifyNone(t, ignore...) })
}

func publish(t testing.TB, rdb redis.UniversalClient, channel, payload string) {
	t.Helper()
	require.NoError(t, rdb.Publish(context.WithoutCancel(t.Context()), channel, payload).Err())
}
