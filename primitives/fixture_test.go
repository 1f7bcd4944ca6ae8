package primitives_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// soon is the timeout for events that take milliseconds on an idle machine.
const soon = 15 * time.Second

// slowPoll bounds the delay that a lost message causes on a busy machine. Waiters poll once a second,
// which tests in fake time check exactly. Without the poll, a waiter would wait until the holder's
// lease ends, which takes 30 s or more.
const slowPoll = 10 * time.Second

// brief is a lease, or the TTL of a watchdog, that may end within a test. A busy machine can stop a
// goroutine for hundreds of milliseconds: with a shorter lease, the reply to an acquisition might
// arrive after the lease has ended. Use watched for holds that must stay renewed.
const brief = 1500 * time.Millisecond

// newClient returns a client that is closed when t ends, even if it still has holds.
func newClient(t testing.TB, rdb redis.UniversalClient, opts ...primitives.ClientOption) *primitives.Client {
	t.Helper()
	c, err := primitives.New(rdb, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { shut(c) })
	return c
}

// shut closes c without waiting for its holds.
func shut(c *primitives.Client) {
	done, cancel := context.WithCancel(context.Background())
	cancel()
	_ = c.Close(done)
}

// acquire acquires l and fails the test on an error.
func acquire(t testing.TB, ctx context.Context, l handle, opts ...primitives.Option) *primitives.Hold {
	t.Helper()
	hold, err := l.Acquire(ctx, opts...)
	require.NoError(t, err)
	return hold
}

// release releases hold and fails the test on an error.
func release(t testing.TB, hold *primitives.Hold) {
	t.Helper()
	require.NoError(t, hold.Release(context.Background()))
}

// requireEnds waits until ctx ends and checks its cause.
func requireEnds(t testing.TB, ctx context.Context, cause error) {
	t.Helper()
	select {
	case <-ctx.Done():
	case <-time.After(soon):
		require.FailNow(t, "timed out waiting for the context to end")
	}
	require.ErrorIs(t, context.Cause(ctx), cause)
}

// requireLive checks that ctx has not ended.
func requireLive(t testing.TB, ctx context.Context) {
	t.Helper()
	require.NoError(t, context.Cause(ctx))
}

// fields returns the hash stored at a lock's key.
func fields(t testing.TB, s *redistest.Server, name string) map[string]string {
	t.Helper()
	rdb := s.Client(t)
	m, err := rdb.HGetAll(context.Background(), name).Result()
	require.NoError(t, err)
	require.NoError(t, rdb.Close()) // some tests call this very often
	return m
}

// leftovers returns the keys and channels of a name. It leaves out remembered requests, which
// expire by themselves, and the keys and channels that belong to a client rather than to a name.
func leftovers(t testing.TB, s *redistest.Server, name string) []string {
	var left []string
	for _, key := range redistest.Keys(t, s, "*"+name+"*") {
		if !strings.HasPrefix(key, "redisson_unlock_latch:") && !strings.HasPrefix(key, "redlatch_client:") {
			left = append(left, key)
		}
	}
	for _, channel := range redistest.Channels(t, s) {
		if strings.Contains(channel, name) && !strings.HasPrefix(channel, "redlatch_holder:") {
			left = append(left, channel)
		}
	}
	return left
}

// requireClean waits until no key and no channel of a name is left, other than the keys in but. It
// polls because rollbacks and unsubscriptions may run in the background.
func requireClean(t testing.TB, s *redistest.Server, name string, but ...string) (after time.Duration) {
	t.Helper()
	remaining := func() []string {
		return slices.DeleteFunc(leftovers(t, s, name), func(key string) bool { return slices.Contains(but, key) })
	}
	began := time.Now()
	left := remaining()
	for ; len(left) > 0 && time.Since(began) < goneIn(s); left = remaining() {
		time.Sleep(5 * time.Millisecond)
	}
	require.Empty(t, left)
	return time.Since(began).Round(time.Millisecond)
}

// goneIn is how soon nothing may be left of calls that have ended. The bar is a second; other tests only need an
// end.
func goneIn(s *redistest.Server) time.Duration {
	if redistest.Nightly() && s.Mini() == nil {
		return time.Second
	}
	return soon
}

// awaitLocalWaiters waits until n acquisitions are in the local wait queues of c.
func awaitLocalWaiters(t testing.TB, c *primitives.Client, n int) {
	t.Helper()
	redistest.WaitFor(t, soon, func() bool { return primitives.LocalWaiters(c) == n }, "all waiters are queued")
}

// checkLeaks checks, after the other cleanups of t, that no goroutine is left of what was started since
// this call. By then the clients and the proxies of t are closed. The test must not be parallel.
func checkLeaks(t testing.TB) {
	t.Helper()
	ignore := []goleak.Option{goleak.IgnoreCurrent(), redistest.IgnoreServers()}
	t.Cleanup(func() {
		t.Helper()
		var err error
		for limit := time.Now().Add(soon); time.Now().Before(limit); {
			if err = goleak.Find(ignore...); err == nil { // tries for half a second
				return
			}
		}
		require.NoError(t, err)
	})
}

// recorder is an observer that records all events.
type recorder struct {
	mu     sync.Mutex
	events []primitives.Event
}

func (r *recorder) observe(e primitives.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

func (r *recorder) option() primitives.ClientOption { return primitives.WithObserver(r.observe) }

// all returns the events of a kind so far.
func (r *recorder) all(kind primitives.EventKind) (list []primitives.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		if e.Kind == kind {
			list = append(list, e)
		}
	}
	return list
}

// kinds returns the kinds of all events so far, in order.
func (r *recorder) kinds() (list []primitives.EventKind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		list = append(list, e.Kind)
	}
	return list
}

// await waits for an event of a kind and returns the first one.
func (r *recorder) await(t testing.TB, kind primitives.EventKind) primitives.Event {
	t.Helper()
	redistest.WaitFor(t, soon, func() bool { return len(r.all(kind)) > 0 }, "event "+string(kind))
	return r.all(kind)[0]
}

// start runs an acquisition in a goroutine and returns a channel that receives its result.
func start(f func() (*primitives.Hold, error)) <-chan result {
	c := make(chan result, 1)
	go func() {
		hold, err := f()
		c <- result{hold, err, time.Now()}
	}()
	return c
}

// result is the outcome of an acquisition, and when it returned.
type result struct {
	hold *primitives.Hold
	err  error
	at   time.Time
}

// await waits for the result of an acquisition that start runs.
func await(t testing.TB, c <-chan result) result {
	t.Helper()
	select {
	case r := <-c:
		return r
	case <-time.After(soon):
		require.FailNow(t, "timed out waiting for an acquisition to return")
		return result{}
	}
}

// awaitHold waits for an acquisition that start runs, and fails the test on an error.
func awaitHold(t testing.TB, c <-chan result) *primitives.Hold {
	t.Helper()
	r := await(t, c)
	require.NoError(t, r.err)
	return r.hold
}

// awaitWaiter waits until a client subscribes to a channel of name.
func awaitWaiter(t testing.TB, s *redistest.Server, name string) {
	t.Helper()
	redistest.WaitFor(t, soon, func() bool {
		for _, channel := range redistest.Channels(t, s) {
			if strings.Contains(channel, name) {
				return true
			}
		}
		return false
	}, "a client has subscribed")
}

// hasty gives a client short timeouts, so that tests of a silent Redis are short.
func hasty(o *redis.Options) {
	const timeout = 200 * time.Millisecond
	o.ReadTimeout, o.WriteTimeout, o.DialTimeout, o.PoolTimeout = timeout, timeout, timeout, timeout
	o.MinRetryBackoff, o.MaxRetryBackoff = time.Millisecond, 20*time.Millisecond
}

// noRetries makes a client send each command once.
func noRetries(o *redis.Options) { o.MaxRetries = -1 }

// script matches the commands that run scripts.
var script = redistest.Named("evalsha", "eval")

var errTest = errors.New("test")

// errOf returns only the error of a call that returns two values.
func errOf[T any](_ T, err error) error { return err }
