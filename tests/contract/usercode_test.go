package contract

import (
	"context"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// Code of the user that the library calls: observers, log handlers, and hooks of the redis client.
// It may be slow, block for ever, or call Close. All tests run in fake time.

const (
	// closeTimeout is the command timeout of these clients.
	closeTimeout = 2 * time.Second
	// closeWait is the time that a test gives to Close.
	closeWait = 500 * time.Millisecond
	// closeGrace is how much longer than promised Close may take: the engine's reserve for a busy
	// machine.
	closeGrace = 510 * time.Millisecond
)

// userCode is code of the user that the library calls. Its first call does something, once that is
// set.
type userCode struct {
	first  atomic.Pointer[func()]
	called atomic.Bool
}

func (u *userCode) run() {
	first := u.first.Load()
	if first != nil && u.called.CompareAndSwap(false, true) {
		(*first)()
	}
}

// does sets what the first call does.
func (u *userCode) does(f func()) { u.first.Store(&f) }

// cause makes the library call user code, while c is in use. It returns when the call that does so
// has returned.
type cause struct {
	name string
	// prepare runs first, with the client that will be closed, and returns what makes the library
	// call the code.
	prepare func(t *testing.T, s *redistest.Server, c *primitives.Client) (act func())
	options func(u *userCode) []primitives.ClientOption
	hook    func(u *userCode) redis.Hook
}

func onEvent(kind primitives.EventKind) func(u *userCode) []primitives.ClientOption {
	return func(u *userCode) []primitives.ClientOption {
		return []primitives.ClientOption{primitives.WithObserver(func(e primitives.Event) {
			if e.Kind == kind {
				u.run()
			}
		})}
	}
}

// held prepares a hold of c, and releases it a while after act, whatever becomes of that.
func held(act func(t *testing.T, s *redistest.Server, hold *primitives.Hold)) func(
	t *testing.T, s *redistest.Server, c *primitives.Client) func() {
	return func(t *testing.T, s *redistest.Server, c *primitives.Client) func() {
		hold := fixture.Acquire(t, t.Context(), c.Lock("x"))
		return func() {
			time.AfterFunc(15*time.Second, func() { _ = hold.Release(context.Background()) })
			act(t, s, hold)
		}
	}
}

// seize holds the lock with a client that sends nothing any longer.
func seize(t *testing.T, s *redistest.Server) {
	rival := fixture.NewClient(t, s.Client(t))
	fixture.Acquire(t, t.Context(), rival.Lock("x"), primitives.WithLease(time.Hour))
	fixture.CloseNow(rival)
}

// refuses makes the server refuse all commands.
func refuses(s *redistest.Server) { s.Mini().SetError("LOADING the test") }

// causes lists the kinds of events, and other code of the user.
func causes() []cause {
	list := []cause{
		{name: "wait", prepare: func(t *testing.T, s *redistest.Server, c *primitives.Client) func() {
			seize(t, s)
			return func() { _, _ = c.Lock("x").Acquire(context.Background()) }
		}},
		{name: "acquired", prepare: func(_ *testing.T, _ *redistest.Server, c *primitives.Client) func() {
			return func() { _, _ = c.Lock("x").Acquire(context.Background()) }
		}},
		{name: "nested", prepare: func(t *testing.T, _ *redistest.Server, c *primitives.Client) func() {
			hold := fixture.Acquire(t, t.Context(), c.Lock("x"))
			return func() {
				time.AfterFunc(time.Second, func() { _ = hold.Release(context.Background()) })
				_, _ = c.Lock("x").Acquire(hold.Context())
			}
		}},
		{name: "not-acquired", prepare: func(t *testing.T, s *redistest.Server, c *primitives.Client) func() {
			seize(t, s)
			return func() { _, _ = c.Lock("x").TryAcquire(context.Background()) }
		}},
		{name: "waited", prepare: func(t *testing.T, _ *redistest.Server, c *primitives.Client) func() {
			require.NoError(t, fixture.ErrOf(c.CountDownLatch("l").Init(t.Context(), 1)))
			return func() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				_ = c.CountDownLatch("l").Wait(ctx)
			}
		}},
		{name: "renewed", prepare: held(func(*testing.T, *redistest.Server, *primitives.Hold) {})},
		{name: "renew-failed", prepare: held(func(_ *testing.T, s *redistest.Server, _ *primitives.Hold) { refuses(s) })},
		{name: "lost", prepare: held(func(t *testing.T, s *redistest.Server, hold *primitives.Hold) {
			s.Mini().FlushAll()
			assert.ErrorIs(t, hold.Check(context.Background()), primitives.ErrLost)
		})},
		{name: "released", prepare: held(func(_ *testing.T, _ *redistest.Server, hold *primitives.Hold) {
			_ = hold.Release(context.Background())
		})},
		{name: "release-failed", prepare: held(func(_ *testing.T, s *redistest.Server, hold *primitives.Hold) {
			refuses(s)
			_ = hold.Release(context.Background())
		})},
		{name: "detached", prepare: held(func(_ *testing.T, _ *redistest.Server, hold *primitives.Hold) { hold.Detach() })},
	}
	for i := range list {
		list[i].options = onEvent(primitives.EventKind(list[i].name))
	}
	return append(list,
		cause{
			name: "lost in the background", options: onEvent(primitives.EventLost),
			prepare: held(func(_ *testing.T, s *redistest.Server, _ *primitives.Hold) { s.Mini().FlushAll() }),
		},
		cause{
			name: "log handler",
			options: func(u *userCode) []primitives.ClientOption {
				return []primitives.ClientOption{primitives.WithLogger(slog.New(&handler{handle: func(slog.Record) { u.run() }}))}
			},
			prepare: held(func(_ *testing.T, s *redistest.Server, _ *primitives.Hold) { s.Mini().FlushAll() }),
		},
		cause{
			name: "hook of a command", hook: func(u *userCode) redis.Hook { return hook{u.run} },
			prepare: held(func(_ *testing.T, _ *redistest.Server, hold *primitives.Hold) {
				_ = hold.Check(context.Background())
			}),
		},
	)
}

// handler is a log handler.
type handler struct {
	slog.Handler
	handle func(slog.Record)
}

func (*handler) Enabled(context.Context, slog.Level) bool { return true }
func (h *handler) Handle(_ context.Context, r slog.Record) error {
	h.handle(r)
	return nil
}

// hook is a hook of go-redis that runs before each command, from the second pipeline on.
type hook struct{ before func() }

func (hook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}
func (h hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.before()
		return next(ctx, cmd)
	}
}
func (h hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.before()
		return next(ctx, cmds)
	}
}

// sentBy counts the commands that the server gets. Each caller of it gets those since the last
// call.
func sentBy(s *redistest.Server) func() int64 {
	var n atomic.Int64
	s.Mini().Server().SetPreHook(func(*server.Peer, string, ...string) bool {
		n.Add(1)
		return false
	})
	return func() int64 { return n.Swap(0) }
}

// withCause runs f for each cause, with a client of it. u does nothing before begin is called. act
// is what makes the library call u.
func withCause(t *testing.T, f func(
	t *testing.T, s *redistest.Server, c *primitives.Client, u *userCode, act func())) {
	t.Helper()
	for _, tt := range causes() {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, u := redistest.Embedded(t), &userCode{}
				rdb := s.Client(t, fixture.NoRetries)
				var ready atomic.Bool
				if tt.hook != nil {
					rdb.AddHook(hook{func() {
						if ready.Load() {
							u.run()
						}
					}})
				}
				options := []primitives.ClientOption{
					primitives.WithCommandTimeout(closeTimeout), primitives.WithClientName(""),
					primitives.WithDefaults(primitives.WithWatchdog(20 * time.Second)),
				}
				if tt.options != nil {
					options = append(options, tt.options(u)...)
				}
				c := fixture.NewClient(t, rdb, options...)
				act := tt.prepare(t, s, c)
				ready.Store(true)
				f(t, s, c, u, act)
			})
		})
	}
}

// C18: code of the user calls Close. It returns within the end of its context and one command
// timeout.
func TestC18CloseInCodeOfTheUser(t *testing.T) {
	t.Parallel()
	withCause(t, func(t *testing.T, _ *redistest.Server, c *primitives.Client, u *userCode, act func()) {
		took := make(chan time.Duration, 1)
		u.does(func() {
			ctx, cancel := context.WithTimeout(context.Background(), closeWait)
			defer cancel()
			began := time.Now()
			_ = c.Close(ctx)
			took <- time.Since(began)
		})
		go act()
		require.LessOrEqual(t, <-took, closeWait+closeTimeout+closeGrace)
		time.Sleep(time.Minute)
	})
}

// The same with a context that never ends: Close does not wait for itself.
func TestC18CloseWithoutAnEndInCodeOfTheUser(t *testing.T) {
	t.Parallel()
	withCause(t, func(t *testing.T, _ *redistest.Server, c *primitives.Client, u *userCode, act func()) {
		closed := make(chan struct{})
		u.does(func() {
			_ = c.Close(context.Background())
			close(closed)
		})
		began := time.Now()
		go act()
		<-closed
		require.LessOrEqual(t, time.Since(began), 30*time.Second, "the test releases its hold after 15 s")
		time.Sleep(time.Minute)
	})
}

// C18: code of the user never returns. Close ends in time, and nothing is sent after that, even if
// the code returns later.
func TestC18CloseWhileCodeOfTheUserBlocks(t *testing.T) {
	t.Parallel()
	withCause(t, func(t *testing.T, s *redistest.Server, c *primitives.Client, u *userCode, act func()) {
		begun, stuck := make(chan struct{}), make(chan struct{})
		u.does(func() {
			close(begun)
			<-stuck
		})
		go act()
		<-begun
		ctx, cancel := context.WithTimeout(t.Context(), closeWait)
		defer cancel()
		began := time.Now()
		err := c.Close(ctx)
		require.LessOrEqual(t, time.Since(began), closeWait+closeTimeout+closeGrace)
		if err != nil {
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		sent := sentBy(s)
		require.ErrorIs(t, fixture.ErrOf(c.Lock("y").TryAcquire(t.Context())), primitives.ErrClosed)
		time.Sleep(time.Minute)
		close(stuck)
		time.Sleep(time.Minute)
		require.Zero(t, sent(), "commands after Close")
	})
}

// An observer that is slow with the event of one waiter delays no other waiter.
func TestSlowObserverDelaysItsOwnCallOnly(t *testing.T) {
	t.Parallel()
	for _, k := range kinds.All() {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const slow = 20 * time.Second
				s := redistest.Embedded(t)
				var first atomic.Bool
				c := fixture.NewClient(t, s.Client(t), primitives.WithObserver(func(e primitives.Event) {
					if e.Kind == primitives.EventWait && first.CompareAndSwap(false, true) {
						time.Sleep(slow)
					}
				}))
				h := k.One(t, c, "x")
				rival := fixture.Acquire(t, t.Context(), k.Rival(fixture.NewClient(t, s.Client(t)), "x"))
				began := time.Now()
				acquire := func() <-chan time.Duration {
					took := make(chan time.Duration, 1)
					go func() {
						hold, err := h.Acquire(context.Background())
						if assert.NoError(t, err) {
							acquired := time.Since(began)
							assert.NoError(t, hold.Release(context.Background()))
							took <- acquired // last: the test ends after it
						}
					}()
					return took
				}
				delayed := acquire()
				time.Sleep(200 * time.Millisecond)
				quick := acquire()
				time.Sleep(800 * time.Millisecond)
				fixture.Release(t, rival)
				require.Less(t, <-quick, 2500*time.Millisecond)
				require.Less(t, <-delayed, slow+time.Second)
				require.Zero(t, fixture.Waiters(c))
			})
		})
	}
}
