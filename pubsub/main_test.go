package pubsub

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

// No goroutine is left when all tests have ended. Tests that run alone call noLeaks.
func TestMain(m *testing.M) {
	code := redistest.Main(m)
	// After failed dials the pool of a closed client sleeps for up to a second.
	sleeps := goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial")
	if err := goleak.Find(sleeps); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// soon bounds the wait for events that take milliseconds on an idle machine.
const soon = 10 * time.Second

// shortLimits are for tests that run in real time.
var shortLimits = limits{
	quiet:   100 * time.Millisecond,
	answer:  500 * time.Millisecond,
	connect: time.Second,
	idle:    50 * time.Millisecond,
	leave:   time.Millisecond,
	look:    50 * time.Millisecond,
}

// open returns a hub that is closed when the test ends.
func open(t testing.TB, rdb redis.UniversalClient, cfg Config) *Hub {
	t.Helper()
	h := New(rdb, cfg)
	t.Cleanup(h.Close)
	return h
}

// recorder is a subscription that records its signals.
type recorder struct {
	*Subscription
	signals chan Signal
}

func listen(h *Hub, channel string) *recorder {
	r := &recorder{signals: make(chan Signal, 1000)}
	r.Subscription = h.Subscribe(channel, r.record)
	return r
}

// record never blocks, because a listener must not block.
func (r *recorder) record(s Signal) {
	select {
	case r.signals <- s:
	default:
		panic("more signals than the test reads")
	}
}

// awaitConfirmed waits for the server's confirmation.
func (r *recorder) awaitConfirmed(t testing.TB) *recorder {
	t.Helper()
	require.NoError(t, r.awaitReply(t).Err())
	return r
}

// awaitReply waits until the server has confirmed or refused the subscription.
func (r *recorder) awaitReply(t testing.TB) *recorder {
	t.Helper()
	select {
	case <-r.Confirmed():
	case <-time.After(soon):
		require.FailNow(t, "not confirmed")
	}
	return r
}

// next waits for the next signal.
func (r *recorder) next(t testing.TB) Signal {
	t.Helper()
	select {
	case s := <-r.signals:
		return s
	case <-time.After(soon):
		require.FailNow(t, "no signal")
		return Signal{}
	}
}

// awaitPayload waits for a payload and skips the signals before it.
func (r *recorder) awaitPayload(t testing.TB, payload string) {
	t.Helper()
	for r.next(t).Payload != payload {
	}
}

// awaitResubscribed requires that the next signal is a re-subscription.
func (r *recorder) awaitResubscribed(t testing.TB) {
	t.Helper()
	require.Equal(t, Signal{Resubscribed: true}, r.next(t))
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// awaitIdle waits until the hub has no connections and no goroutines. before is the number of
// connections without the hub.
func awaitIdle(t testing.TB, h *Hub, s *redistest.Server, before int) {
	t.Helper()
	redistest.WaitFor(t, soon, func() bool { return redistest.Connections(t, s) <= before }, "connections closed")
	awaitStopped(t, h)
}

// awaitStopped waits until all goroutines of the hub have ended. No Subscribe may run meanwhile.
func awaitStopped(t testing.TB, h *Hub) {
	t.Helper()
	select {
	case <-stopped(h):
	case <-time.After(soon):
		require.FailNow(t, "the hub still has goroutines")
	}
	requireStopped(t, h)
}

// stopped returns a channel that is closed when all goroutines of the hub have ended.
func stopped(h *Hub) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		h.tasks.Wait()
		close(done)
	}()
	return done
}

// requireStopped requires that the hub has no links and no placer. A link unregisters
// before it ends.
func requireStopped(t testing.TB, h *Hub) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	require.Empty(t, h.links)
	require.False(t, h.placing)
}

// noLeaks requires that no goroutine started after this call is left when the test has ended.
func noLeaks(t *testing.T) {
	t.Helper()
	ignore := []goleak.Option{goleak.IgnoreCurrent(), goleak.IgnoreAnyFunction(redistest.WaitsForServer)}
	t.Cleanup(func() { goleak.VerifyNone(t, ignore...) })
}

func publish(t testing.TB, rdb redis.UniversalClient, channel, payload string) {
	t.Helper()
	require.NoError(t, rdb.Publish(context.WithoutCancel(t.Context()), channel, payload).Err())
}
