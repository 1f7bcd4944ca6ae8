package primitives_test

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// soon bounds the waiting for what happens within milliseconds on a machine that is not busy.
const soon = 15 * time.Second

// slowPoll is the longest that a lost message costs, and room for a busy machine.
const slowPoll = time.Second + 1500*time.Millisecond

// newClient makes a client that is closed when t ends, whatever it still holds.
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

// acquire must succeed.
func acquire(t testing.TB, ctx context.Context, l *primitives.Lock, opts ...primitives.Option) *primitives.Hold {
	t.Helper()
	hold, err := l.Acquire(ctx, opts...)
	require.NoError(t, err)
	return hold
}

// release must succeed.
func release(t testing.TB, hold *primitives.Hold) {
	t.Helper()
	require.NoError(t, hold.Release(context.Background()))
}

// requireEnds awaits the end of ctx, and that it is for that cause.
func requireEnds(t testing.TB, ctx context.Context, cause error) {
	t.Helper()
	select {
	case <-ctx.Done():
	case <-time.After(soon):
		require.FailNow(t, "the context has not ended")
	}
	require.ErrorIs(t, context.Cause(ctx), cause)
}

func requireLive(t testing.TB, ctx context.Context) {
	t.Helper()
	require.NoError(t, context.Cause(ctx))
}

// fields is the hash at a lock's key.
func fields(t testing.TB, s *redistest.Server, name string) map[string]string {
	t.Helper()
	m, err := s.Client(t).HGetAll(context.Background(), name).Result()
	require.NoError(t, err)
	return m
}

// leftovers are the keys and channels of a name, without remembered requests and what belongs to clients.
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

// requireClean awaits that nothing is left of a name, but for those keys.
func requireClean(t testing.TB, s *redistest.Server, name string, but ...string) {
	t.Helper()
	leftovers := func(t testing.TB, s *redistest.Server, name string) []string {
		return slices.DeleteFunc(leftovers(t, s, name), func(key string) bool { return slices.Contains(but, key) })
	}
	limit := time.Now().Add(soon)
	for len(leftovers(t, s, name)) > 0 && time.Now().Before(limit) {
		time.Sleep(5 * time.Millisecond)
	}
	require.Empty(t, leftovers(t, s, name))
}

// workers counts the goroutines that run the library's code, those of tests not.
func workers() int { return len(running()) }

// goroutines are the stacks of all.
func goroutines() iter.Seq[[]byte] {
	buf := make([]byte, 1<<20)
	for {
		if n := runtime.Stack(buf, true); n < len(buf) {
			return bytes.SplitSeq(buf[:n], []byte("\n\n"))
		}
		buf = make([]byte, 2*len(buf))
	}
}

// awaitRoom returns once n acquisitions stand in the queues of their clients, whoever's. [primitives.EventWait] comes a moment before. The test
// must not be parallel.
func awaitRoom(t testing.TB, n int) {
	t.Helper()
	redistest.WaitFor(t, soon, func() bool {
		standing := 0
		for stack := range goroutines() {
			if bytes.Contains(stack, []byte("engine.(*Resource).waitIn(")) {
				standing++
			}
		}
		return standing == n
	}, "they stand in line")
}

// running are their stacks.
func running() (stacks []string) {
	for stack := range goroutines() {
		own := bytes.Contains(stack, []byte("redlatch/primitives.")) || bytes.Contains(stack, []byte("redlatch/internal/engine.")) || bytes.Contains(stack, []byte("redlatch/pubsub.")) ||
			bytes.Contains(stack, []byte("redlatch/watchdog.")) || bytes.Contains(stack, []byte("redlatch/scripts."))
		if own && !bytes.Contains(stack, []byte("primitives_test.")) {
			stacks = append(stacks, string(stack))
		}
	}
	return stacks
}

// requireIdle awaits that no goroutine of the library runs.
func requireIdle(t testing.TB) {
	t.Helper()
	redistest.WaitFor(t, soon, func() bool { return workers() == 0 }, "the library's goroutines ended")
}

// recorder is an observer that remembers.
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

// all are the events of that kind so far.
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

func (r *recorder) kinds() (list []primitives.EventKind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		list = append(list, e.Kind)
	}
	return list
}

// await returns the first event of that kind.
func (r *recorder) await(t testing.TB, kind primitives.EventKind) primitives.Event {
	t.Helper()
	redistest.WaitFor(t, soon, func() bool { return len(r.all(kind)) > 0 }, "event "+string(kind))
	return r.all(kind)[0]
}

// start runs acquire in a goroutine and gives what it comes to.
func start(f func() (*primitives.Hold, error)) <-chan result {
	c := make(chan result, 1)
	go func() {
		hold, err := f()
		c <- result{hold, err, time.Now()}
	}()
	return c
}

type result struct {
	hold *primitives.Hold
	err  error
	at   time.Time
}

func await(t testing.TB, c <-chan result) result {
	t.Helper()
	select {
	case r := <-c:
		return r
	case <-time.After(soon):
		require.FailNow(t, "no result")
		return result{}
	}
}

// awaitWaiter returns once somebody listens for releases of name.
func awaitWaiter(t testing.TB, s *redistest.Server, name string) {
	t.Helper()
	redistest.WaitFor(t, soon, func() bool {
		for _, channel := range redistest.Channels(t, s) {
			if strings.Contains(channel, name) {
				return true
			}
		}
		return false
	}, "somebody waits")
}

// hasty makes a client give up a connection soon, so that tests of silence are short.
func hasty(o *redis.Options) {
	o.ReadTimeout, o.WriteTimeout, o.DialTimeout, o.PoolTimeout = 200*time.Millisecond, 200*time.Millisecond, 200*time.Millisecond, 200*time.Millisecond
	o.MinRetryBackoff, o.MaxRetryBackoff = time.Millisecond, 20*time.Millisecond
}

// noRetries has each command sent once.
func noRetries(o *redis.Options) { o.MaxRetries = -1 }

// script matches the commands by which scripts run.
var script = redistest.Named("evalsha", "eval")

var errTest = errors.New("test")

// scaled is n, or a fraction of it for a short run and on miniredis, which takes a hundred times as long for a script.
func scaled(s *redistest.Server, n int) int {
	if testing.Short() {
		n /= 10
	}
	if s.Mini() != nil {
		n /= 20
	}
	return max(n, 3)
}
