package engine

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var errCause = errors.New("the caller stopped")

func TestAcquireTakesAFreeLockWithOneCommand(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		hold := acquire(t, t.Context(), c.lock("x"))
		assert.Equal(t, "a:1", hold.ID())
		assert.Equal(t, []string{"a:1"}, s.ids("x"))
		assert.Len(t, s.log, 1)
		assert.Equal(t, 1, hold.Depth())
		assert.True(t, hold.Renewed())
		release(t, hold)
		s.requireFree(t)
		assert.Len(t, s.log, 2)
	})
}

// Each case acquires a lock that another client holds for 10.5 s.
func TestAcquireOfAHeldLockEnds(t *testing.T) {
	for _, tt := range []struct {
		name  string
		limit time.Duration
		act   func(s *server, c *client, cancel context.CancelCauseFunc) // runs after 3 s
		want  error                                                      // nil: acquired
		cause error                                                      // joined to want
		not   error                                                      // must not be joined
		at    time.Duration
	}{
		{name: "at once without a wait", limit: noWait, want: ErrNotAcquired, not: context.DeadlineExceeded},
		{name: "at the limit", limit: 2500 * time.Millisecond, want: ErrNotAcquired, not: errWaitOver,
			at: 2500 * time.Millisecond},
		{
			name: "with its context", limit: forever, want: ErrNotAcquired, cause: errCause, at: 3 * time.Second,
			act: func(_ *server, _ *client, cancel context.CancelCauseFunc) { cancel(errCause) },
		},
		{
			name: "when the client closes", limit: forever, want: ErrClosed, not: ErrNotAcquired, at: 3 * time.Second,
			act: func(_ *server, c *client, _ context.CancelCauseFunc) {
				go func() { _ = c.close(context.Background()) }()
			},
		},
		{
			name: "when the holder releases", limit: forever, at: 3 * time.Second,
			act: func(s *server, _ *client, _ context.CancelCauseFunc) { s.free("x") },
		},
		{name: "when the lease of the holder ends", limit: forever, at: 10501 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				c := s.client(t, "a")
				s.seize("x", "other", 10500*time.Millisecond)
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				call := start(t, func() (*Hold, error) { return c.lock("x").Acquire(ctx, terms(), tt.limit) })
				if tt.act != nil {
					sleep(3 * time.Second)
					tt.act(s, c, cancel)
				}
				call.end()
				assert.Equal(t, tt.at, call.at.Sub(s.start))
				if tt.want == nil {
					require.NoError(t, call.err)
					release(t, call.hold)
				} else {
					require.ErrorIs(t, call.err, tt.want)
					assert.Nil(t, call.hold)
				}
				if tt.cause != nil {
					require.ErrorIs(t, call.err, tt.cause)
				}
				if tt.not != nil {
					require.NotErrorIs(t, call.err, tt.not)
				}
				sleep(20 * time.Second)
				s.requireFree(t)
				assert.Empty(t, s.sent("rollback", ""), "a refused request leaves nothing")
			})
		})
	}
}

func TestAcquireSendsNothingIfItCannotSucceed(t *testing.T) {
	notReady := errors.New("not ready")
	for _, tt := range []struct {
		name  string
		setUp func(c *client, cancel context.CancelCauseFunc)
		want  []error
		not   error
	}{
		{
			"the context has ended", func(_ *client, cancel context.CancelCauseFunc) { cancel(errCause) },
			[]error{ErrNotAcquired, errCause}, nil,
		},
		{
			"the client is closed", func(c *client, _ context.CancelCauseFunc) { _ = c.close(context.Background()) },
			[]error{ErrClosed}, ErrNotAcquired,
		},
		{
			"the client is not ready", func(c *client, _ context.CancelCauseFunc) {
				c.Ready = func(context.Context) error { return notReady }
			},
			[]error{notReady}, ErrNotAcquired,
		},
		{
			"the context ended before the client was ready", func(c *client, cancel context.CancelCauseFunc) {
				c.Ready = func(context.Context) error { cancel(errCause); return notReady }
			},
			[]error{ErrNotAcquired, errCause, notReady}, nil,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				c := s.client(t, "a")
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				tt.setUp(c, cancel)
				hold, err := c.lock("x").Acquire(ctx, terms(), forever)
				for _, want := range tt.want {
					require.ErrorIs(t, err, want)
				}
				if tt.not != nil {
					require.NotErrorIs(t, err, tt.not)
				}
				assert.Nil(t, hold)
				assert.Empty(t, s.log)
			})
		})
	}
}

// Each case makes the first attempt on a free lock with a fault.
func TestAcquireAnswersFailuresOfTheFirstAttempt(t *testing.T) {
	for _, tt := range []struct {
		name      string
		limit     time.Duration
		fault     fault
		ttl       time.Duration
		want      error // nil: acquired
		at        time.Duration
		rollbacks int
	}{
		{"an unreachable server fails it", forever, fault{err: errDown}, testTTL, errDown, 0, 0},
		{"an error of the server fails it", forever, fault{err: errFatal}, testTTL, errFatal, 0, 0},
		{"not now: it is tried again soon", time.Minute, fault{err: errBusy}, testTTL, nil, 0, 0},
		{"not now: a wait without an end fails", forever, fault{err: errBusy}, testTTL, ErrUnavailable, 0, 0},
		{"not now: a single try fails", noWait, fault{err: errBusy}, testTTL, errBusy, 0, 0},
		{"no answer: it fails, and is rolled back", forever, fault{mute: true}, testTTL, unanswered(nil), testTimeout, 1},
		{"lost command: it fails, and is rolled back", noWait, fault{lost: true}, testTTL, unanswered(nil), testTimeout, 1},
		{"a slow answer is used", forever, fault{reply: time.Second}, testTTL, nil, time.Second, 0},
		{"an answer that is too late for the lease", forever, fault{reply: time.Second}, time.Second, ErrLost,
			time.Second, 1},
		{"an answer just after the limit is used", 50 * time.Millisecond, fault{reply: 60 * time.Millisecond}, testTTL,
			nil, 60 * time.Millisecond, 0},
		{"an answer long after the limit", 50 * time.Millisecond, fault{reply: 80 * time.Millisecond}, testTTL,
			ErrNotAcquired, 70 * time.Millisecond, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				s.keepLeases()
				c := s.client(t, "a")
				s.script("acquire", tt.fault)
				hold, err := c.lock("x").Acquire(t.Context(), terms(ttl(tt.ttl)), tt.limit)
				assert.Equal(t, tt.at, s.now())
				if tt.want == nil {
					require.NoError(t, err)
					release(t, hold)
				} else if want := error(nil); errors.As(tt.want, new(*netError)) && tt.rollbacks > 0 {
					want = err
					assert.True(t, classify(want).InDoubt, "%v", want)
				} else {
					require.ErrorIs(t, err, tt.want)
				}
				sleep(time.Minute)
				assert.Len(t, s.sent("rollback", ""), tt.rollbacks)
				s.requireFree(t)
			})
		})
	}
}

func TestValidityCountsFromBeforeTheCommandWasSent(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		s.script("acquire", fault{delay: time.Second, reply: time.Second})
		hold := acquire(t, t.Context(), c.lock("x"))
		margin := testTTL/100 + 2*time.Millisecond
		assert.Equal(t, testTTL-margin, hold.ValidUntil().Sub(s.start))
		assert.Equal(t, testTTL-time.Second, s.lease("x", hold.ID()), "the server counts from later")
		release(t, hold)
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
		c := NewCore(Config{Margin: tt.margin})
		assert.Equal(t, tt.want, c.MarginOf(tt.ttl), "%v of %v", tt.margin, tt.ttl)
	}
}

func TestAcquireAsksForTheLeaseOfItsTerms(t *testing.T) {
	for _, tt := range []struct {
		name  string
		terms []func(*Terms)
		lease time.Duration
	}{
		{"renewed", nil, testTTL},
		{"fixed", []func(*Terms){fixedLease(5 * time.Second)}, 5 * time.Second},
		{"a longer limit", []func(*Terms){maxHold(time.Hour)}, testTTL},
		{"a shorter limit", []func(*Terms){maxHold(7 * time.Second)}, 7 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				hold := acquire(t, t.Context(), s.client(t, "a").lock("x"), tt.terms...)
				assert.Equal(t, tt.lease, s.lease("x", hold.ID()))
				release(t, hold)
			})
		})
	}
}

func TestAcquireNothingNeedsNoServer(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		r := c.semaphore("x")
		hold, err := r.AcquireNothing(t.Context(), terms(permits(0)))
		require.NoError(t, err)
		assert.Empty(t, hold.ID())
		assert.Zero(t, hold.Token())
		assert.Nil(t, hold.Ownership())
		assert.Zero(t, hold.ValidUntil())
		require.NoError(t, hold.Check(t.Context()))
		require.NoError(t, hold.Release(t.Context()))
		require.ErrorIs(t, hold.Release(t.Context()), ErrReleased)

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = r.AcquireNothing(ctx, terms(permits(0)))
		require.ErrorIs(t, err, ErrNotAcquired)
		assert.Equal(t, []EventKind{EventAcquired, EventReleased, EventNotAcquired}, c.kinds())
		assert.Empty(t, s.log)
	})
}

// gate is a driver whose requests take nothing, as one for a latch.
type gate struct {
	NoLease

	*driver
	open bool // guarded by server.mu
}

func (g *gate) TryAcquire(ctx context.Context, q *Request) (Result, error) {
	res, trip, err := do(ctx, g.c, g.command("await", &q.Owner), func() (Result, error) {
		return Result{Granted: g.open, RetryAfter: -1, Free: 1000}, nil
	})
	res.Sent = trip.sent
	return res, err
}

func (g *gate) SetCount(ctx context.Context, o *Ownership, n int, d time.Duration) (time.Time, bool, error) {
	return g.NoLease.SetCount(ctx, o, n, d)
}

func (g *gate) Extend(ctx context.Context, o *Ownership, d time.Duration) (time.Time, bool, error) {
	return g.NoLease.Extend(ctx, o, d)
}

func (g *gate) Check(ctx context.Context, o *Ownership) (bool, error) { return g.NoLease.Check(ctx, o) }

func TestAwaitWaitsUntilTheDriverGrants(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		g := &gate{driver: &driver{c: c, name: "x", noLease: true}}
		r := c.resource("latch", "x", g)
		r.Traits = &Traits{ManyHolders: true}
		await := func(ctx context.Context) *call {
			return start(t, func() (*Hold, error) {
				require.NoError(t, c.Begin(ctx))
				defer c.Leave()
				return nil, r.Await(ctx, terms())
			})
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		first, second, leaver := await(t.Context()), await(t.Context()), await(ctx)
		sleep(3500 * time.Millisecond)
		cancel(errCause)
		require.ErrorIs(t, leaver.fail(), errCause)
		s.mu.Lock()
		g.open = true
		s.mu.Unlock()
		s.message("x")
		first.wait()
		second.wait()
		assert.Equal(t, 3500*time.Millisecond, s.now())
		assert.ElementsMatch(t, []EventKind{
			EventWait, EventWait, EventWait, EventWaited, EventWaited, EventWaited,
		}, c.kinds())
		var errs []error
		for _, e := range c.events[3:] {
			assert.Equal(t, 3500*time.Millisecond, e.Waited)
			errs = append(errs, e.Err)
		}
		require.ErrorIs(t, errors.Join(errs...), errCause)
		assert.Len(t, slices.DeleteFunc(errs, func(err error) bool { return err != nil }), 2)
		assert.Empty(t, s.sent("rollback", ""))
	})
}
