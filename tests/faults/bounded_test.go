package faults

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
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
				p.Recover()
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
			redistest.WaitFor(t, fixture.Soon, func() bool {
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
	o.ReadTimeout, o.WriteTimeout, o.DialTimeout = 2*fixture.Soon, 2*fixture.Soon, 2*fixture.Soon
}

// boundedCall is a call of a public method, on a lock or semaphore of its own.
type boundedCall struct {
	name    string
	prepare func(t testing.TB, c *primitives.Client, name string) func(ctx context.Context) error
	waits   bool // takes WithWait
}

// methods are calls by their names. Those of a nil handle give the names alone.
type methods = map[string]func(ctx context.Context) error

// boundedCalls returns a call of each method.
func boundedCalls() (calls []boundedCall) {
	add := func(kind string, of methods, on func(t testing.TB, c *primitives.Client, name, method string) methods) {
		for _, method := range slices.Sorted(maps.Keys(of)) {
			prepare := func(t testing.TB, c *primitives.Client, name string) func(context.Context) error {
				return on(t, c, name, method)[method]
			}
			calls = append(calls, boundedCall{kind + "." + method, prepare, strings.HasSuffix(method, "(WithWait)")})
		}
	}
	for _, k := range append(kinds.Locks(), kinds.Joints()...) {
		of := boundedLockCalls(nil, nil)
		if k.Joint() {
			delete(of, "Info")
			delete(of, "ForceRelease")
		}
		add(k.Name, of, func(t testing.TB, c *primitives.Client, name, method string) methods {
			l := k.Lock(c, name)
			if strings.HasPrefix(method, "Acquire") || method == "TryAcquire" {
				return boundedLockCalls(l, nil)
			}
			return boundedLockCalls(l, fixture.Acquire(t, t.Context(), l))
		})
	}
	add("Semaphore", boundedSemaphoreCalls(nil), func(t testing.TB, c *primitives.Client, name, _ string) methods {
		s := c.Semaphore(name)
		fixture.InitPool(t, s, 2)
		return boundedSemaphoreCalls(s)
	})
	add("Permits", boundedPermitCalls(nil, nil), func(t testing.TB, c *primitives.Client, name, _ string) methods {
		s := c.PermitExpirableSemaphore(name)
		fixture.InitPool(t, s, 2)
		return boundedPermitCalls(s, fixture.Acquire(t, t.Context(), s))
	})
	add("Latch", boundedLatchCalls(nil), func(t testing.TB, c *primitives.Client, name, _ string) methods {
		l := c.CountDownLatch(name)
		require.NoError(t, fixture.ErrOf(l.Init(t.Context(), 2)))
		return boundedLatchCalls(l)
	})
	add("Keyed", boundedKeyedCalls(nil, nil, ""), func(t testing.TB, c *primitives.Client, name, method string) methods {
		k, waiting := c.Keyed(), c.Keyed(primitives.WithWait(boundedWait))
		if method == "Ensure" {
			require.NoError(t, k.Lock(t.Context(), name))
		}
		return boundedKeyedCalls(k, waiting, name)
	})
	locks := func(c *primitives.Client) methods {
		return methods{"Locks": func(ctx context.Context) error {
			for _, err := range c.Locks(ctx, "*") {
				return err
			}
			return nil
		}}
	}
	add("Client", locks(nil), func(_ testing.TB, c *primitives.Client, _, _ string) methods { return locks(c) })
	return calls
}

func boundedLockCalls(l *primitives.Lock, h *primitives.Hold) methods {
	wait := primitives.WithWait(boundedWait)
	return methods{
		"Acquire":           func(ctx context.Context) error { return fixture.ErrOf(l.Acquire(ctx)) },
		"Acquire(WithWait)": func(ctx context.Context) error { return fixture.ErrOf(l.Acquire(ctx, wait)) },
		"TryAcquire":        func(ctx context.Context) error { return fixture.ErrOf(l.TryAcquire(ctx)) },
		"nested Acquire": func(ctx context.Context) error {
			nested, cancel := context.WithCancelCause(h.Context())
			defer cancel(nil)
			defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
			return fixture.ErrOf(l.Acquire(nested))
		},
		"Check":        func(ctx context.Context) error { return h.Check(ctx) },
		"Extend":       func(ctx context.Context) error { return h.Extend(ctx, time.Minute) },
		"ReleaseID":    func(ctx context.Context) error { return l.ReleaseID(ctx, h.ID()) },
		"Adopt":        func(ctx context.Context) error { return fixture.ErrOf(l.Adopt(ctx, h.ID())) },
		"Info":         func(ctx context.Context) error { return fixture.ErrOf(l.Info(ctx)) },
		"ForceRelease": func(ctx context.Context) error { return fixture.ErrOf(l.ForceRelease(ctx)) },
	}
}

func boundedSemaphoreCalls(s *primitives.Semaphore) methods {
	wait := primitives.WithWait(boundedWait)
	return methods{
		"Acquire":           func(ctx context.Context) error { return fixture.ErrOf(s.Acquire(ctx)) },
		"Acquire(WithWait)": func(ctx context.Context) error { return fixture.ErrOf(s.Acquire(ctx, wait)) },
		"Init":              func(ctx context.Context) error { return fixture.ErrOf(s.Init(ctx, 1)) },
		"Add":               func(ctx context.Context) error { return s.Add(ctx, 1) },
		"Drain":             func(ctx context.Context) error { return fixture.ErrOf(s.Drain(ctx)) },
		"Delete":            func(ctx context.Context) error { return fixture.ErrOf(s.Delete(ctx)) },
		"Info":              func(ctx context.Context) error { return fixture.ErrOf(s.Info(ctx)) },
	}
}

func boundedPermitCalls(s *primitives.PermitExpirableSemaphore, h *primitives.Hold) methods {
	wait := primitives.WithWait(boundedWait)
	return methods{
		"Acquire":           func(ctx context.Context) error { return fixture.ErrOf(s.Acquire(ctx)) },
		"Acquire(WithWait)": func(ctx context.Context) error { return fixture.ErrOf(s.Acquire(ctx, wait)) },
		"Resize":            func(ctx context.Context) error { return s.Resize(ctx, 3) },
		"ReleaseID":         func(ctx context.Context) error { return s.ReleaseID(ctx, h.ID()) },
		"Adopt":             func(ctx context.Context) error { return fixture.ErrOf(s.Adopt(ctx, h.ID())) },
		"Info":              func(ctx context.Context) error { return fixture.ErrOf(s.Info(ctx)) },
	}
}

func boundedKeyedCalls(k, waiting *primitives.Keyed, name string) methods {
	return methods{
		"Lock":           func(ctx context.Context) error { return k.Lock(ctx, name) },
		"Lock(WithWait)": func(ctx context.Context) error { return waiting.Lock(ctx, name) },
		"TryLock":        func(ctx context.Context) error { return fixture.ErrOf(k.TryLock(ctx, name)) },
		"Ensure":         func(ctx context.Context) error { return k.Ensure(ctx, name) },
	}
}

func boundedLatchCalls(l *primitives.CountDownLatch) methods {
	return methods{
		"Wait":      func(ctx context.Context) error { return l.Wait(ctx) },
		"CountDown": func(ctx context.Context) error { return l.CountDown(ctx) },
		"Count":     func(ctx context.Context) error { return fixture.ErrOf(l.Count(ctx)) },
		"Init":      func(ctx context.Context) error { return fixture.ErrOf(l.Init(ctx, 1)) },
		"Delete":    func(ctx context.Context) error { return fixture.ErrOf(l.Delete(ctx)) },
	}
}

const (
	boundedWait    = 300 * time.Millisecond // the end of a call's context, or of its wait
	boundedTimeout = 700 * time.Millisecond // the command timeout of calls without either
	boundedGrace   = 50 * time.Millisecond  // C5
)

// TestCallsReturnInTimeWhenRedisIsSilent checks that every method returns within 50 ms of the end
// of its context or wait, and without either after the command timeout. On a machine that is busy
// with other tests, or under the race detector, the grace is longer, though far below the 30 s
// after which go-redis gives up. REDLATCH_BOUNDED=strict allows the 50 ms alone. The longest times
// are logged as a table.
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

// prepareAlone calls prepare while no other call is prepared: on a busy machine, the answers to 40
// calls at a time could take longer than the command timeout.
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
		timeout = fixture.Soon // or it could hide that the limit is not kept
	}
	c := fixture.NewClient(t, rdb, primitives.WithCommandTimeout(timeout))
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
