package engine

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// startClose closes a client in a goroutine.
func startClose(t *testing.T, ctx context.Context, c *client) *call {
	return start(t, func() (*Hold, error) { return nil, c.close(ctx) })
}

func TestCloseWaitsForHolds(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		hold := acquire(t, t.Context(), c.lock("x"))
		detached := acquire(t, t.Context(), c.lock("y"))
		closed := startClose(t, t.Context(), c)
		sleep(time.Minute)
		assert.False(t, closed.returned())
		assert.True(t, c.IsClosing())
		assert.NoError(t, carry(hold).Err(), "it is renewed meanwhile")
		_, err := c.lock("z").Acquire(t.Context(), terms(), forever)
		require.ErrorIs(t, err, ErrClosed)
		assert.Empty(t, s.sent("acquire", "z"))
		detached.Detach()
		require.NoError(t, hold.Extend(t.Context(), time.Minute, nil))
		release(t, hold)
		closed.wait()
		require.ErrorIs(t, hold.Release(t.Context()), ErrReleased)
		assert.Equal(t, []string{detached.ID()}, s.ids("y"))
		sleep(time.Minute)
		s.requireFree(t)
	})
}

func TestCloseAbandonsHoldsWhenItsContextEnds(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		hold := acquire(t, t.Context(), c.lock("x"))
		inner := acquire(t, carry(hold), c.lock("x"))
		nothing, err := c.semaphore("s").AcquireNothing(t.Context(), terms())
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		defer cancel()
		require.ErrorIs(t, c.close(ctx), context.DeadlineExceeded)
		assert.Equal(t, 15*time.Second, s.now())
		for _, h := range []*Hold{hold, inner, nothing} {
			require.ErrorIs(t, context.Cause(carry(h)), ErrClosed)
			assert.False(t, h.Detach())
			require.ErrorIs(t, h.Release(t.Context()), ErrClosed)
		}
		commands := len(s.log)
		assert.Equal(t, []string{hold.ID()}, s.ids("x"), "its critical section may still run")
		sleep(time.Minute)
		assert.Len(t, s.log, commands)
		s.requireFree(t)
		want := []EventKind{EventAbandoned, EventAbandoned, EventAbandoned}
		assert.Equal(t, want, c.kinds(EventAcquired, EventNested, EventRenewed))
	})
}

func TestCloseEndsWaiters(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		s.seize("x", "other", 0)
		turn := acquire(t, t.Context(), c.lock("y"))
		nested := acquire(t, carry(turn), c.lock("y"))
		s.subscribe.delay = time.Hour
		calls := []*call{
			startAcquire(t, t.Context(), c.lock("x")),
			startAcquire(t, t.Context(), c.lock("x")),
			startAcquire(t, t.Context(), c.lock("x"), polling(10*ms, 10*ms)),
			startAcquire(t, t.Context(), c.semaphore("x")),
			startAcquire(t, carry(turn), c.lock("y")),
		}
		sleep(5 * ms)
		closed := startClose(t, t.Context(), c)
		for _, call := range calls {
			require.ErrorIs(t, call.fail(), ErrClosed)
			require.NotErrorIs(t, call.err, ErrNotAcquired)
		}
		assert.Equal(t, 5*ms, s.now())
		release(t, nested)
		release(t, turn)
		closed.wait()
		assert.Empty(t, s.subs)
	})
}

// Acquisitions are under way when Close begins. What they are granted is given back.
func TestAcquisitionThatIsGrantedDuringCloseIsRolledBack(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault fault
	}{
		{"granted", fault{reply: time.Second}},
		{"executed late", fault{delay: time.Second}},
		{"not answered", fault{mute: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				s.keepLeases()
				c := s.client(t, "a")
				outer := acquire(t, t.Context(), c.lock("y"))
				s.script("acquire", tt.fault)
				s.script("nest", tt.fault)
				acquiring := startAcquire(t, t.Context(), c.lock("x"))
				nesting := startAcquire(t, carry(outer), c.lock("y"))
				closed := startClose(t, t.Context(), c)
				for _, call := range []*call{acquiring, nesting} {
					err := call.fail()
					assert.True(t, errors.Is(err, ErrClosed) || classify(err).InDoubt, "%v", err)
				}
				sleep(time.Second)
				assert.Equal(t, 1, s.holder("y", outer.ID()).count)
				release(t, outer)
				closed.wait()
				s.requireFree(t)
			})
		})
	}
}

// The context of Close ends while a command is not answered.
func TestCloseHurriesCalls(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a", func(config *Config) { config.CommandTimeout = time.Hour })
		hold := acquire(t, t.Context(), c.lock("x"))
		s.script("check", fault{lost: true})
		check := start(t, func() (*Hold, error) { return nil, hold.Check(t.Context()) })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, c.close(ctx), context.DeadlineExceeded)
		assert.Equal(t, time.Second, s.now())
		_ = check.fail()
	})
}

func TestCloseDoesNotHurryIfNothingIsUnderWay(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		ctx, cancel := context.WithCancel(t.Context())
		require.NoError(t, c.close(ctx))
		cancel()
		sleep(0)
		assert.False(t, isClosed(c.hurried))
	})
}

func TestCloseWaitsForCallsAndBackgroundWork(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		require.NoError(t, c.Enter())
		ran := make(chan struct{})
		c.Spawn(func() { <-c.Stopping(); time.Sleep(time.Second); close(ran) })
		closed := startClose(t, t.Context(), c)
		assert.True(t, isClosed(c.Closing()))
		sleep(time.Second)
		assert.False(t, isClosed(c.Stopping()), "a call is under way")
		c.Leave()
		closed.wait()
		assert.True(t, isClosed(ran))
		assert.Equal(t, 2*time.Second, s.now())

		require.ErrorIs(t, c.Enter(), ErrClosed)
		require.ErrorIs(t, c.Begin(t.Context()), ErrClosed)
		c.Spawn(func() { t.Error("a goroutine after Close") })
		c.Report(Event{Kind: EventLost})
		_, err := c.semaphore("s").AcquireNothing(t.Context(), terms())
		require.ErrorIs(t, err, ErrClosed)
		sleep(time.Second)
		assert.Empty(t, c.kinds())
	})
}

// The holder releases while its client closes: its own waiters have gone, so it frees the lock.
func TestReleaseDuringCloseDoesNotHandOff(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		hold := acquire(t, t.Context(), c.lock("x"))
		waiter := startAcquire(t, t.Context(), c.lock("x"))
		s.script("acquire", fault{lost: true})
		s.message("x") // the waiter tries, and does not notice the Close
		sleep(0)
		closed := startClose(t, t.Context(), c)
		release(t, hold)
		assert.Empty(t, s.sent("handoff", ""))
		_ = waiter.fail()
		closed.wait()
		s.requireFree(t)
	})
}
