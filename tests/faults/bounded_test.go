package faults

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/fixture"
	"github.com/redlatch/redlatch/internal/kinds"
	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// silence is a way in which Redis does not answer a client.
type silence struct {
	name string
	// client makes a client. begin makes Redis silent for it, until the test cleans up.
	client func(t testing.TB, s *redistest.Server) (rdb *redis.Client, begin func())
}

var silences = []silence{
	{"black hole", func(t testing.TB, s *redistest.Server) (*redis.Client, func()) {
		p := s.Proxy(t)
		return p.Client(t, longReads), func() {
			t.Cleanup(func() { // before the client is closed, which would wait for replies
				p.Heal()
				p.Reset()
			})
			p.BlackHole(true)
		}
	}},
	{"hanging dials", func(t testing.TB, s *redistest.Server) (*redis.Client, func()) {
		p := s.Proxy(t)
		hang, end := make(chan struct{}), make(chan struct{})
		rdb := p.Client(t, longReads, func(o *redis.Options) {
			dial := o.Dialer
			if dial == nil {
				dial = redis.NewDialer(o)
			}
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				select {
				case <-hang:
					select {
					case <-ctx.Done():
						return nil, ctx.Err()
					case <-end:
						return nil, net.ErrClosed
					}
				default:
					return dial(ctx, network, addr)
				}
			}
		})
		return rdb, func() {
			t.Cleanup(func() { close(end) })
			close(hang)
			p.Reset()
		}
	}},
	{"pool in use", func(t testing.TB, s *redistest.Server) (*redis.Client, func()) {
		rdb := s.Client(t, func(o *redis.Options) {
			o.PoolSize, o.PipelinePoolSize, o.PoolTimeout = 1, -1, time.Minute
		})
		return rdb, func() {
			key := redistest.Name(t)
			// Other calls block connections of the same server: look for this one.
			id, err := rdb.ClientID(context.Background()).Result()
			require.NoError(t, err)
			connection := fmt.Sprintf("id=%d ", id)
			blocked := make(chan struct{})
			go func() {
				defer close(blocked)
				_ = rdb.BLPop(context.Background(), time.Minute, key).Err()
			}()
			admin := s.Client(t)
			redistest.WaitFor(t, Soon, func() bool {
				info, _ := admin.ClientList(context.Background()).Result()
				for line := range strings.Lines(info) {
					if strings.HasPrefix(line, connection) {
						return strings.Contains(line, "cmd=blpop")
					}
				}
				return false
			}, "the only connection is in use")
			t.Cleanup(func() {
				_ = admin.RPush(context.Background(), key, 1).Err()
				<-blocked
			})
		}
	}},
}

// longReads makes go-redis wait for a reply, or a connection, for longer than any call may last.
func longReads(o *redis.Options) {
	o.ReadTimeout, o.WriteTimeout, o.DialTimeout = 2*Soon, 2*Soon, 2*Soon
}

// boundedCall is a call of a public method, on a lock or semaphore of its own.
type boundedCall struct {
	name    string
	prepare func(t testing.TB, c *primitives.Client, name string) func(ctx context.Context) error
	waits   bool // takes WithWait
}

// boundedCalls returns a call of each method.
func boundedCalls() (calls []boundedCall) {
	for _, l := range boundedLocks() {
		calls = append(calls, l.acquireCalls()...)
		calls = append(calls, l.holdCalls()...)
	}
	calls = append(calls, boundedSemaphoreCalls()...)
	calls = append(calls, boundedPermitCalls()...)
	calls = append(calls, boundedLatchCalls()...)
	calls = append(calls,
		boundedCall{"Client.Locks", func(_ testing.TB, c *primitives.Client, _ string) func(context.Context) error {
			return func(ctx context.Context) error {
				for _, err := range c.Locks(ctx, "*") {
					return err
				}
				return nil
			}
		}, false})
	return calls
}

// boundedLock is a kind of lock.
type boundedLock struct{ kinds.Kind }

func boundedLocks() (list []boundedLock) {
	for _, k := range append(kinds.Locks(), kinds.Joints()...) {
		list = append(list, boundedLock{k})
	}
	return list
}

// call is a call of one method. All methods but the acquisitions get a hold.
func (l boundedLock) call(
	method string, waits bool, f func(ctx context.Context, l *primitives.Lock, hold *primitives.Hold) error,
) boundedCall {
	prepare := func(t testing.TB, c *primitives.Client, name string) func(context.Context) error {
		lock := l.Lock(c, name)
		var hold *primitives.Hold
		if !strings.HasPrefix(method, "Acquire") && method != "TryAcquire" {
			hold = Acquire(t, t.Context(), lock)
		}
		return func(ctx context.Context) error { return f(ctx, lock, hold) }
	}
	return boundedCall{l.Name + "." + method, prepare, waits}
}

func (l boundedLock) acquireCalls() (calls []boundedCall) {
	on := func(method string, waits bool, f func(context.Context, *primitives.Lock, *primitives.Hold) error) {
		calls = append(calls, l.call(method, waits, f))
	}
	on("Acquire", false, func(ctx context.Context, l *primitives.Lock, _ *primitives.Hold) error {
		_, err := l.Acquire(ctx)
		return err
	})
	on("Acquire(WithWait)", true, func(ctx context.Context, l *primitives.Lock, _ *primitives.Hold) error {
		_, err := l.Acquire(ctx, primitives.WithWait(boundedWait))
		return err
	})
	on("TryAcquire", false, func(ctx context.Context, l *primitives.Lock, _ *primitives.Hold) error {
		_, err := l.TryAcquire(ctx)
		return err
	})
	on("nested Acquire", false, func(ctx context.Context, l *primitives.Lock, h *primitives.Hold) error {
		nested, cancel := context.WithCancelCause(h.Context())
		defer cancel(nil)
		defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
		_, err := l.Acquire(nested)
		return err
	})
	return calls
}

func (l boundedLock) holdCalls() (calls []boundedCall) {
	on := func(method string, waits bool, f func(context.Context, *primitives.Lock, *primitives.Hold) error) {
		calls = append(calls, l.call(method, waits, f))
	}
	on("Check", false, func(ctx context.Context, _ *primitives.Lock, h *primitives.Hold) error { return h.Check(ctx) })
	on("Extend", false, func(ctx context.Context, _ *primitives.Lock, h *primitives.Hold) error {
		return h.Extend(ctx, time.Minute)
	})
	on("ReleaseID", false, func(ctx context.Context, l *primitives.Lock, h *primitives.Hold) error {
		return l.ReleaseID(ctx, h.ID())
	})
	on("Adopt", false, func(ctx context.Context, l *primitives.Lock, h *primitives.Hold) error {
		_, err := l.Adopt(ctx, h.ID())
		return err
	})
	if !l.Joint() {
		on("Info", false, func(ctx context.Context, l *primitives.Lock, _ *primitives.Hold) error {
			_, err := l.Info(ctx)
			return err
		})
		on("ForceRelease", false, func(ctx context.Context, l *primitives.Lock, _ *primitives.Hold) error {
			_, err := l.ForceRelease(ctx)
			return err
		})
	}
	return calls
}

func boundedSemaphoreCalls() (calls []boundedCall) {
	pool := func(method string, waits bool, f func(ctx context.Context, s *primitives.Semaphore) error) {
		calls = append(calls,
			boundedCall{"Semaphore." + method,
				func(t testing.TB, c *primitives.Client, name string) func(context.Context) error {
					s := c.Semaphore(name)
					_, err := s.Init(t.Context(), 2)
					require.NoError(t, err)
					return func(ctx context.Context) error { return f(ctx, s) }
				}, waits})
	}
	pool("Acquire", false, func(ctx context.Context, s *primitives.Semaphore) error {
		_, err := s.Acquire(ctx)
		return err
	})
	pool("Acquire(WithWait)", true, func(ctx context.Context, s *primitives.Semaphore) error {
		_, err := s.Acquire(ctx, primitives.WithWait(boundedWait))
		return err
	})
	pool("Init", false, func(ctx context.Context, s *primitives.Semaphore) error {
		_, err := s.Init(ctx, 1)
		return err
	})
	pool("Add", false, func(ctx context.Context, s *primitives.Semaphore) error { return s.Add(ctx, 1) })
	pool("Drain", false, func(ctx context.Context, s *primitives.Semaphore) error {
		_, err := s.Drain(ctx)
		return err
	})
	pool("Delete", false, func(ctx context.Context, s *primitives.Semaphore) error {
		_, err := s.Delete(ctx)
		return err
	})
	pool("Info", false, func(ctx context.Context, s *primitives.Semaphore) error { _, err := s.Info(ctx); return err })
	return calls
}

func boundedPermitCalls() (calls []boundedCall) {
	permits := func(
		method string, waits bool,
		f func(ctx context.Context, s *primitives.PermitExpirableSemaphore, id string) error,
	) {
		calls = append(calls,
			boundedCall{"Permits." + method,
				func(t testing.TB, c *primitives.Client, name string) func(context.Context) error {
					s := c.PermitExpirableSemaphore(name)
					_, err := s.Init(t.Context(), 2)
					require.NoError(t, err)
					hold, err := s.Acquire(t.Context())
					require.NoError(t, err)
					return func(ctx context.Context) error { return f(ctx, s, hold.ID()) }
				}, waits})
	}
	permits("Acquire", false, func(ctx context.Context, s *primitives.PermitExpirableSemaphore, _ string) error {
		_, err := s.Acquire(ctx)
		return err
	})
	permits("Acquire(WithWait)", true,
		func(ctx context.Context, s *primitives.PermitExpirableSemaphore, _ string) error {
			_, err := s.Acquire(ctx, primitives.WithWait(boundedWait))
			return err
		})
	permits("Resize", false, func(ctx context.Context, s *primitives.PermitExpirableSemaphore, _ string) error {
		return s.Resize(ctx, 3)
	})
	permits("ReleaseID", false, func(ctx context.Context, s *primitives.PermitExpirableSemaphore, id string) error {
		return s.ReleaseID(ctx, id)
	})
	permits("Adopt", false, func(ctx context.Context, s *primitives.PermitExpirableSemaphore, id string) error {
		_, err := s.Adopt(ctx, id)
		return err
	})
	permits("Info", false, func(ctx context.Context, s *primitives.PermitExpirableSemaphore, _ string) error {
		_, err := s.Info(ctx)
		return err
	})
	return calls
}

func boundedLatchCalls() (calls []boundedCall) {
	latch := func(method string, f func(ctx context.Context, l *primitives.CountDownLatch) error) {
		calls = append(calls,
			boundedCall{"Latch." + method,
				func(t testing.TB, c *primitives.Client, name string) func(context.Context) error {
					l := c.CountDownLatch(name)
					_, err := l.Init(t.Context(), 2)
					require.NoError(t, err)
					return func(ctx context.Context) error { return f(ctx, l) }
				}, false})
	}
	latch("Wait", func(ctx context.Context, l *primitives.CountDownLatch) error { return l.Wait(ctx) })
	latch("CountDown", func(ctx context.Context, l *primitives.CountDownLatch) error { return l.CountDown(ctx) })
	latch("Count", func(ctx context.Context, l *primitives.CountDownLatch) error { _, err := l.Count(ctx); return err })
	latch("Init", func(ctx context.Context, l *primitives.CountDownLatch) error {
		_, err := l.Init(ctx, 1)
		return err
	})
	latch("Delete", func(ctx context.Context, l *primitives.CountDownLatch) error {
		_, err := l.Delete(ctx)
		return err
	})
	return calls
}

const (
	boundedWait    = 300 * time.Millisecond // the end of a call's context, or of its wait
	boundedTimeout = 700 * time.Millisecond // the command timeout of calls without either
	boundedGrace   = 50 * time.Millisecond  // C5
)

// TestCallsReturnInTimeWhenRedisIsSilent checks that every method returns within 50 ms of the end
// of its context or wait, and without either after the command timeout. On a machine that is busy
// with other tests, or under the race detector, the grace is longer, though far below the 30 s after
// which go-redis gives up. REDLATCH_BOUNDED=strict allows the 50 ms alone. The longest times are
// logged as a table.
func TestCallsReturnInTimeWhenRedisIsSilent(t *testing.T) {
	grace := 5 * time.Second
	timeout := boundedTimeout
	switch {
	case os.Getenv("REDLATCH_BOUNDED") == "strict":
		grace = boundedGrace
	case !redistest.Alone(t):
		timeout *= 2 // the other tests delay the commands that prepare a call
	}
	s := redistest.Redis(t)
	type cell struct{ method, silence string }
	var mu sync.Mutex
	excess := map[cell]time.Duration{} // time beyond the bound
	for _, silence := range silences {
		t.Run(silence.name, func(t *testing.T) {
			var calls sync.WaitGroup
			slots := make(chan struct{}, 40) // limits the concurrent calls
			for _, call := range boundedCalls() {
				calls.Go(func() {
					slots <- struct{}{}
					defer func() { <-slots }()
					t.Run(call.name, func(t *testing.T) {
						late := max(call.measure(t, s, silence, timeout, grace, true),
							call.measure(t, s, silence, timeout, grace, false))
						mu.Lock()
						defer mu.Unlock()
						excess[cell{call.name, silence.name}] = late
					})
				})
			}
			calls.Wait()
		})
	}
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprint(w, "method")
	for _, silence := range silences {
		_, _ = fmt.Fprint(w, "\t", silence.name)
	}
	_, _ = fmt.Fprintln(w)
	for _, call := range boundedCalls() {
		_, _ = fmt.Fprint(w, call.name)
		for _, silence := range silences {
			_, _ = fmt.Fprint(w, "\t", excess[cell{call.name, silence.name}].Round(time.Millisecond))
		}
		_, _ = fmt.Fprintln(w)
	}
	_ = w.Flush()
	t.Logf("longest time beyond the end of the context, the wait or the command timeout:\n%s", table.String())
}

var preparing sync.Mutex

// prepareAlone calls prepare while no other call is prepared: on a busy machine, the answers to 40 calls at a time
// could take longer than the command timeout.
func (call boundedCall) prepareAlone(t *testing.T, c *primitives.Client) func(context.Context) error {
	preparing.Lock()
	defer preparing.Unlock()
	return call.prepare(t, c, redistest.Name(t))
}

// measure returns how long after its bound the call ended: that of its context or its wait if
// limited, else the command timeout.
func (call boundedCall) measure(
	t *testing.T, s *redistest.Server, silence silence, commandTimeout, grace time.Duration, limited bool,
) time.Duration {
	if !limited && (call.waits || call.name == "Latch.Wait") {
		return 0 // it has a wait of its own; a latch's Wait ends only with its context
	}
	rdb, begin := silence.client(t, s)
	timeout := commandTimeout
	if limited {
		timeout = Soon // or it could hide that the limit is not kept
	}
	c := NewClient(t, rdb, primitives.WithCommandTimeout(timeout))
	run := call.prepareAlone(t, c)
	begin()
	ctx, bound := t.Context(), commandTimeout
	if limited {
		bound = boundedWait
	}
	if limited && !call.waits {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, boundedWait)
		defer cancel()
	}
	began := time.Now()
	err := run(ctx)
	late := time.Since(began) - bound
	require.Error(t, err)
	require.Less(t, late, grace, "the call returned %v", err)
	switch {
	case !limited:
		require.NotErrorIs(t, err, primitives.ErrNotAcquired)
	case call.waits:
		require.ErrorIs(t, err, primitives.ErrUnavailable)
		require.NotErrorIs(t, err, primitives.ErrNotAcquired)
	default:
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	return late
}
