package engine_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/failure"
	. "github.com/redlatch/redlatch/internal/test/enginetest"
)

var errCause = errors.New("the caller stopped")

func TestAcquireTakesAFreeLockWithOneCommand(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		hold := Acquire(t, t.Context(), c.Lock("x"))
		assert.Equal(t, "a:1", hold.ID())
		assert.Equal(t, []string{"a:1"}, s.IDs("x"))
		assert.Len(t, s.Log, 1)
		assert.Equal(t, 1, hold.Depth())
		assert.True(t, hold.Renewed())
		Release(t, hold)
		s.RequireFree(t)
		assert.Len(t, s.Log, 2)
	})
}

// Each case acquires a lock that another client holds for 10.5 s.
func TestAcquireOfAHeldLockEnds(t *testing.T) {
	for _, tt := range []struct {
		name  string
		limit time.Duration
		act   func(s *Server, c *Client, cancel context.CancelCauseFunc) // runs after 3 s
		want  error                                                      // nil if it is acquired
		cause error                                                      // joined to want
		not   error                                                      // must not be joined
		at    time.Duration
	}{
		{name: "at once without a wait", limit: engine.NoWait, want: engine.ErrNotAcquired, not: context.DeadlineExceeded},
		{name: "at the limit", limit: 2500 * time.Millisecond, want: engine.ErrNotAcquired, not: engine.ErrWaitOver,
			at: 2500 * time.Millisecond},
		{
			name: "with its context", limit: engine.Forever, want: engine.ErrNotAcquired, cause: errCause, at: 3 * time.Second,
			act: func(_ *Server, _ *Client, cancel context.CancelCauseFunc) { cancel(errCause) },
		},
		{
			name: "when the client closes", limit: engine.Forever, at: 3 * time.Second,
			want: engine.ErrClosed, not: engine.ErrNotAcquired,
			act: func(_ *Server, c *Client, _ context.CancelCauseFunc) {
				go func() { _ = c.Shut(context.Background()) }()
			},
		},
		{
			name: "when the holder releases", limit: engine.Forever, at: 3 * time.Second,
			act: func(s *Server, _ *Client, _ context.CancelCauseFunc) { s.Free("x") },
		},
		{name: "when the lease of the holder ends", limit: engine.Forever, at: 10501 * time.Millisecond},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			c := s.Client(t, "a")
			s.Seize("x", "other", 10500*time.Millisecond)
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			call := Start(t, func() (*engine.Hold, error) { return c.Lock("x").Acquire(ctx, NewTerms(), tt.limit) })
			if tt.act != nil {
				Sleep(3 * time.Second)
				tt.act(s, c, cancel)
			}
			call.Await()
			assert.Equal(t, tt.at, call.At.Sub(s.Start))
			if tt.want == nil {
				require.NoError(t, call.Err)
				Release(t, call.Hold)
			} else {
				require.ErrorIs(t, call.Err, tt.want)
				assert.Nil(t, call.Hold)
			}
			if tt.cause != nil {
				require.ErrorIs(t, call.Err, tt.cause)
			}
			if tt.not != nil {
				require.NotErrorIs(t, call.Err, tt.not)
			}
			Sleep(20 * time.Second)
			s.RequireFree(t)
			assert.Empty(t, s.Sent("rollback"), "a refused request leaves nothing")
		})
	}
}

func TestAcquireSendsNothingIfItCannotSucceed(t *testing.T) {
	notReady := errors.New("not ready")
	for _, tt := range []struct {
		name  string
		setUp func(c *Client, cancel context.CancelCauseFunc)
		want  []error
		not   error
	}{
		{
			name: "the context has ended", setUp: func(_ *Client, cancel context.CancelCauseFunc) { cancel(errCause) },
			want: []error{engine.ErrNotAcquired, errCause},
		},
		{
			name:  "the client is closed",
			setUp: func(c *Client, _ context.CancelCauseFunc) { _ = c.Shut(context.Background()) },
			want:  []error{engine.ErrClosed}, not: engine.ErrNotAcquired,
		},
		{
			name: "the client is not ready", want: []error{notReady}, not: engine.ErrNotAcquired,
			setUp: func(c *Client, _ context.CancelCauseFunc) {
				c.Commands.Ready = func(context.Context) error { return notReady }
			},
		},
		{
			name: "the context ended before the client was ready", want: []error{engine.ErrNotAcquired, errCause, notReady},
			setUp: func(c *Client, cancel context.CancelCauseFunc) {
				c.Commands.Ready = func(context.Context) error { cancel(errCause); return notReady }
			},
		},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			c := s.Client(t, "a")
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			tt.setUp(c, cancel)
			hold, err := c.Lock("x").Acquire(ctx, NewTerms(), engine.Forever)
			for _, want := range tt.want {
				require.ErrorIs(t, err, want)
			}
			if tt.not != nil {
				require.NotErrorIs(t, err, tt.not)
			}
			assert.Nil(t, hold)
			assert.Empty(t, s.Log)
		})
	}
}

// Each case makes the first attempt on a free lock with a fault.
func TestAcquireAnswersFailuresOfTheFirstAttempt(t *testing.T) {
	for _, tt := range []struct {
		name      string
		limit     time.Duration
		fault     Fault
		ttl       time.Duration
		want      error // nil if it is acquired
		at        time.Duration
		rollbacks int
	}{
		{
			name: "an unreachable server fails it", limit: engine.Forever, fault: Fault{Err: ErrDown}, ttl: DefaultTTL,
			want: ErrDown,
		},
		{
			name: "an error of the server fails it", limit: engine.Forever, fault: Fault{Err: ErrFatal}, ttl: DefaultTTL,
			want: ErrFatal,
		},
		{name: "not now: it is tried again soon", limit: time.Minute, fault: Fault{Err: ErrBusy}, ttl: DefaultTTL},
		{
			name: "not now: a wait without an end fails", limit: engine.Forever, fault: Fault{Err: ErrBusy}, ttl: DefaultTTL,
			want: engine.ErrUnavailable,
		},
		{
			name: "not now: a single try fails", limit: engine.NoWait, fault: Fault{Err: ErrBusy}, ttl: DefaultTTL,
			want: ErrBusy,
		},
		{
			name: "no answer: it fails, and is rolled back", limit: engine.Forever, fault: Fault{Mute: true}, ttl: DefaultTTL,
			want: ErrNoAnswer, at: CommandTimeout, rollbacks: 1,
		},
		{
			name: "lost command: it fails, and is rolled back", limit: engine.NoWait, fault: Fault{Lost: true},
			ttl: DefaultTTL, want: ErrNoAnswer, at: CommandTimeout, rollbacks: 1,
		},
		{
			name: "a slow answer is used", limit: engine.Forever, fault: Fault{Reply: time.Second}, ttl: DefaultTTL,
			at: time.Second,
		},
		{
			name: "an answer that is too late for the lease", limit: engine.Forever, fault: Fault{Reply: time.Second},
			ttl: time.Second, want: engine.ErrLost, at: time.Second, rollbacks: 1,
		},
		{
			name: "an answer just after the limit is used", limit: 50 * time.Millisecond,
			fault: Fault{Reply: 60 * time.Millisecond}, ttl: DefaultTTL, at: 60 * time.Millisecond,
		},
		{
			name: "an answer long after the limit", limit: 50 * time.Millisecond,
			fault: Fault{Reply: 80 * time.Millisecond}, ttl: DefaultTTL, want: engine.ErrNotAcquired,
			at: 70 * time.Millisecond, rollbacks: 1,
		},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			s.KeepLeases()
			c := s.Client(t, "a")
			s.Script("acquire", tt.fault)
			hold, err := c.Lock("x").Acquire(t.Context(), NewTerms(TTL(tt.ttl)), tt.limit)
			assert.Equal(t, tt.at, s.Now())
			if tt.want == nil {
				require.NoError(t, err)
				Release(t, hold)
			} else {
				require.ErrorIs(t, err, tt.want)
			}
			mayHoldIt := tt.rollbacks > 0 && !errors.Is(err, engine.ErrLost) // a lease that is over holds nothing
			assert.Equal(t, mayHoldIt, failure.Of(err).InDoubt(), "%v", err)
			Sleep(time.Minute)
			assert.Len(t, s.Sent("rollback"), tt.rollbacks)
		})
	}
}

func TestValidityCountsFromBeforeTheCommandWasSent(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		s.Script("acquire", Fault{Delay: time.Second, Reply: time.Second})
		hold := Acquire(t, t.Context(), c.Lock("x"))
		margin := DefaultTTL/100 + 2*time.Millisecond
		assert.Equal(t, DefaultTTL-margin, hold.ValidUntil().Sub(s.Start))
		assert.Equal(t, DefaultTTL-time.Second, s.Lease("x", hold.ID()), "the server counts from later")
		Release(t, hold)
	})
}

func TestMarginIsNeverMoreThanHalfTheTTL(t *testing.T) {
	for _, tt := range []struct{ margin, ttl, want time.Duration }{
		{-1, 30 * time.Second, 302 * time.Millisecond},
		{-1, 2 * time.Millisecond, time.Millisecond},
		{0, time.Second, 0},
		{100 * time.Millisecond, time.Second, 100 * time.Millisecond},
		{time.Minute, time.Second, 500 * time.Millisecond},
	} {
		c := engine.NewCore(engine.Config{Margin: tt.margin})
		assert.Equal(t, tt.want, c.MarginOf(tt.ttl), "%v of %v", tt.margin, tt.ttl)
	}
}

func TestAcquireAsksForTheLeaseOfItsTerms(t *testing.T) {
	for _, tt := range []struct {
		name  string
		terms []func(*engine.Terms)
		lease time.Duration
	}{
		{"renewed", nil, DefaultTTL},
		{"fixed", []func(*engine.Terms){FixedLease(5 * time.Second)}, 5 * time.Second},
		{"a longer limit", []func(*engine.Terms){MaxHold(time.Hour)}, DefaultTTL},
		{"a shorter limit", []func(*engine.Terms){MaxHold(7 * time.Second)}, 7 * time.Second},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			hold := Acquire(t, t.Context(), s.Client(t, "a").Lock("x"), tt.terms...)
			assert.Equal(t, tt.lease, s.Lease("x", hold.ID()))
			Release(t, hold)
		})
	}
}

func TestAcquireNothingNeedsNoServer(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		r := c.Semaphore("x")
		hold, err := r.AcquireNothing(t.Context(), NewTerms(PermitsOf(0)))
		require.NoError(t, err)
		assert.Empty(t, hold.ID())
		assert.Zero(t, hold.Token())
		assert.Nil(t, hold.Ownership())
		assert.Zero(t, hold.ValidUntil())
		require.NoError(t, hold.Check(t.Context()))
		require.NoError(t, hold.Release(t.Context()))
		require.ErrorIs(t, hold.Release(t.Context()), engine.ErrReleased)

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, ErrOf(r.AcquireNothing(ctx, NewTerms(PermitsOf(0)))), engine.ErrNotAcquired)
		assert.Equal(t, []engine.EventKind{engine.EventAcquired, engine.EventReleased, engine.EventNotAcquired}, c.Kinds())
		assert.Empty(t, s.Log)
	})
}

func TestReleaseOfNothingNeedsNoReadyClient(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		c.Commands.Ready = func(context.Context) error { return errors.New("not ready") }
		hold, err := c.Semaphore("x").AcquireNothing(t.Context(), NewTerms(PermitsOf(0)))
		require.NoError(t, err)
		require.NoError(t, hold.Release(t.Context()))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.NoError(t, c.Shut(ctx))
	})
}

// gate is a driver whose requests take nothing, like a latch's.
type gate struct {
	*FakeDriver

	open bool // guarded by server.mu
}

func (g *gate) TryAcquire(ctx context.Context, q *engine.Request) (engine.Result, error) {
	res, trip, err := Do(ctx, g.Client, g.Command("await", &q.Owner), func() (engine.Result, error) {
		return engine.Result{Granted: g.open, RetryAfter: -1, Free: 1000}, nil
	})
	res.Sent = trip.Sent
	return res, err
}

func TestAwaitWaitsUntilTheDriverGrants(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		g := &gate{FakeDriver: &FakeDriver{Client: c, Name: "x", NoLease: true}}
		r := c.Resource("latch", "x", g)
		r.Traits = &engine.Traits{ManyHolders: true}
		await := func(ctx context.Context) *Call {
			return Start(t, func() (*engine.Hold, error) {
				require.NoError(t, c.EnterReady(ctx))
				defer c.Leave()
				return nil, r.Await(ctx, NewTerms())
			})
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		first, second, leaver := await(t.Context()), await(t.Context()), await(ctx)
		Sleep(3500 * time.Millisecond)
		cancel(errCause)
		require.ErrorIs(t, leaver.AwaitErr(), errCause)
		s.Mu.Lock()
		g.open = true
		s.Mu.Unlock()
		s.Message("x")
		first.AwaitHold()
		second.AwaitHold()
		assert.Equal(t, 3500*time.Millisecond, s.Now())
		assert.ElementsMatch(t, []engine.EventKind{
			engine.EventWait, engine.EventWait, engine.EventWait, engine.EventWaited, engine.EventWaited, engine.EventWaited,
		}, c.Kinds())
		var errs []error
		for _, e := range c.Events[3:] {
			assert.Equal(t, 3500*time.Millisecond, e.Waited)
			errs = append(errs, e.Err)
		}
		require.ErrorIs(t, errors.Join(errs...), errCause)
		assert.Len(t, slices.DeleteFunc(errs, func(err error) bool { return err != nil }), 2)
		assert.Empty(t, s.Sent("rollback"))
	})
}
