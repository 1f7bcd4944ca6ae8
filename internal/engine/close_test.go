package engine_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/failure"
	. "github.com/redlatch/redlatch/internal/test/enginetest"
)

// startClose closes a client in a goroutine.
func startClose(t *testing.T, ctx context.Context, c *Client) *Call {
	return Start(t, func() (*engine.Hold, error) { return nil, c.Shut(ctx) })
}

func TestCloseWaitsForHolds(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		hold := Acquire(t, t.Context(), c.Lock("x"))
		detached := Acquire(t, t.Context(), c.Lock("y"))
		closed := startClose(t, t.Context(), c)
		Sleep(time.Minute)
		assert.False(t, closed.Returned())
		assert.True(t, c.IsClosing())
		assert.NoError(t, Carry(hold).Err(), "it is renewed meanwhile")
		require.ErrorIs(t, ErrOf(c.Lock("z").Acquire(t.Context(), NewTerms(), engine.Forever)), engine.ErrClosed)
		assert.Empty(t, s.Sent("acquire", "z"))
		detached.Detach()
		require.NoError(t, hold.Extend(t.Context(), time.Minute, nil))
		Release(t, hold)
		closed.AwaitHold()
		require.ErrorIs(t, hold.Release(t.Context()), engine.ErrReleased)
		assert.Equal(t, []string{detached.ID()}, s.IDs("y"))
		Sleep(time.Minute)
	})
}

func TestCloseAbandonsHoldsWhenItsContextEnds(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		hold := Acquire(t, t.Context(), c.Lock("x"))
		inner := Acquire(t, Carry(hold), c.Lock("x"))
		nothing, err := c.Semaphore("s").AcquireNothing(t.Context(), NewTerms())
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		defer cancel()
		require.ErrorIs(t, c.Shut(ctx), context.DeadlineExceeded)
		assert.Equal(t, 15*time.Second, s.Now())
		for _, h := range []*engine.Hold{hold, inner, nothing} {
			require.ErrorIs(t, context.Cause(Carry(h)), engine.ErrClosed)
			assert.False(t, h.Detach())
			require.ErrorIs(t, h.Release(t.Context()), engine.ErrClosed)
		}
		commands := len(s.Log)
		assert.Equal(t, []string{hold.ID()}, s.IDs("x"), "its critical section may still run")
		Sleep(time.Minute)
		assert.Len(t, s.Log, commands)
		s.RequireFree(t)
		want := []engine.EventKind{engine.EventAbandoned, engine.EventAbandoned, engine.EventAbandoned}
		assert.Equal(t, want, c.Kinds(engine.EventAcquired, engine.EventNested, engine.EventRenewed))
	})
}

// The observer panics when it hears of a hold that Close has ended. Close still ends all of them,
// and returns.
func TestAnObserverThatPanicsDoesNotInterruptClose(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a", func(config *engine.Config) {
			config.Observe = func(e engine.Event) {
				if e.Kind == engine.EventAbandoned {
					panic("observer")
				}
			}
		})
		holds := []*engine.Hold{Acquire(t, t.Context(), c.Lock("x")), Acquire(t, t.Context(), c.Lock("y"))}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.PanicsWithValue(t, "observer", func() { _ = c.Shut(ctx) })
		for _, h := range holds {
			require.ErrorIs(t, context.Cause(Carry(h)), engine.ErrClosed)
		}
		require.True(t, c.IsStopping())
		commands := len(s.Log)
		Sleep(time.Hour)
		require.Len(t, s.Log, commands, "nothing renews them")
	})
}

func TestCloseEndsWaiters(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		s.MayStayHeld()
		c := s.Client(t, "a")
		s.Seize("x", "other", 0)
		turn := Acquire(t, t.Context(), c.Lock("y"))
		nested := Acquire(t, Carry(turn), c.Lock("y"))
		s.Subscribe.Delay = time.Hour
		calls := []*Call{
			StartAcquire(t, t.Context(), c.Lock("x")),
			StartAcquire(t, t.Context(), c.Lock("x")),
			StartAcquire(t, t.Context(), c.Lock("x"), Polling(10*ms, 10*ms)),
			StartAcquire(t, t.Context(), c.Semaphore("x")),
			StartAcquire(t, Carry(turn), c.Lock("y")),
		}
		Sleep(5 * ms)
		closed := startClose(t, t.Context(), c)
		for _, call := range calls {
			require.ErrorIs(t, call.AwaitErr(), engine.ErrClosed)
			require.NotErrorIs(t, call.Err, engine.ErrNotAcquired)
		}
		assert.Equal(t, 5*ms, s.Now())
		Release(t, nested, turn)
		closed.AwaitHold()
		assert.Empty(t, s.Subs)
	})
}

// Acquisitions are under way when Close begins. Their grants are given back.
func TestGrantDuringCloseIsRolledBack(t *testing.T) {
	const limit = 1100 * time.Millisecond
	for _, tt := range []struct {
		name     string
		fault    Fault
		rollback Fault
		limit    time.Duration
	}{
		{name: "granted", fault: Fault{Reply: time.Second}, limit: engine.Forever},
		{name: "executed late", fault: Fault{Delay: time.Second}, limit: engine.Forever},
		{name: "not answered", fault: Fault{Mute: true}, limit: engine.Forever},
		{
			name: "granted, and rolled back after the end of its wait", fault: Fault{Reply: time.Second},
			rollback: Fault{Delay: time.Second}, limit: limit,
		},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			s.KeepLeases()
			c := s.Client(t, "a")
			outer := Acquire(t, t.Context(), c.Lock("y"))
			s.Script("acquire", tt.fault)
			s.Script("nest", tt.fault)
			s.Script("rollback", tt.rollback)
			acquiring := Start(t, func() (*engine.Hold, error) { return c.Lock("x").Acquire(t.Context(), NewTerms(), tt.limit) })
			nesting := StartAcquire(t, Carry(outer), c.Lock("y"))
			closed := startClose(t, t.Context(), c)
			for _, call := range []*Call{acquiring, nesting} {
				err := call.AwaitErr()
				assert.True(t, errors.Is(err, engine.ErrClosed) || failure.Of(err).InDoubt(), "%v", err)
			}
			if tt.limit > 0 {
				assert.LessOrEqual(t, acquiring.At.Sub(s.Start), tt.limit+50*ms)
			}
			Sleep(time.Second)
			assert.Equal(t, 1, s.Holder("y", outer.ID()).Count)
			Release(t, outer)
			closed.AwaitHold()
		})
	}
}

// The context of Close ends while a command is not answered.
func TestCloseHurriesCalls(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		s.MayStayHeld()
		c := s.Client(t, "a", func(config *engine.Config) { config.CommandTimeout = time.Hour })
		hold := Acquire(t, t.Context(), c.Lock("x"))
		s.Script("check", Fault{Lost: true})
		check := Start(t, func() (*engine.Hold, error) { return nil, hold.Check(t.Context()) })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, c.Shut(ctx), context.DeadlineExceeded)
		assert.Equal(t, time.Second, s.Now())
		_ = check.AwaitErr()
	})
}

func TestCloseDoesNotHurryIfNothingIsUnderWay(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		ctx, cancel := context.WithCancel(t.Context())
		require.NoError(t, c.Shut(ctx))
		cancel()
		Settle()
		assert.False(t, engine.IsClosed(c.Hurried))
	})
}

func TestCloseWaitsForCallsAndBackgroundWork(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		require.NoError(t, c.Enter())
		ran := make(chan struct{})
		c.Spawn(func() { <-c.Stopping(); time.Sleep(time.Second); close(ran) })
		closed := startClose(t, t.Context(), c)
		assert.True(t, engine.IsClosed(c.Closing()))
		Sleep(time.Second)
		assert.False(t, engine.IsClosed(c.Stopping()), "a call is under way")
		c.Leave()
		closed.AwaitHold()
		assert.True(t, engine.IsClosed(ran))
		assert.Equal(t, 2*time.Second, s.Now())

		require.ErrorIs(t, c.Enter(), engine.ErrClosed)
		require.ErrorIs(t, c.EnterReady(t.Context()), engine.ErrClosed)
		c.Spawn(func() { t.Error("a goroutine after Close") })
		c.Report(engine.Event{Kind: engine.EventLost})
		require.ErrorIs(t, ErrOf(c.Semaphore("s").AcquireNothing(t.Context(), NewTerms())), engine.ErrClosed)
		Sleep(time.Second)
		assert.Empty(t, c.Kinds())
	})
}

// The holder releases while its client closes: its own waiters have gone, so it frees the lock.
func TestReleaseDuringCloseDoesNotHandOff(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		hold := Acquire(t, t.Context(), c.Lock("x"))
		waiter := StartAcquire(t, t.Context(), c.Lock("x"))
		s.Script("acquire", Fault{Lost: true})
		s.Message("x") // the waiter tries, and does not notice the Close
		Settle()
		closed := startClose(t, t.Context(), c)
		Release(t, hold)
		assert.Empty(t, s.Sent("handoff"))
		_ = waiter.AwaitErr()
		closed.AwaitHold()
	})
}
