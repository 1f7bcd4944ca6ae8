package engine_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/engine"
	. "github.com/redlatch/redlatch/internal/test/enginetest"
)

type traceKey struct{}

// Each case makes one acquisition. It emits one event of its result, whatever the result is.
func TestEachAcquisitionEmitsOneEventOfItsResult(t *testing.T) {
	for _, tt := range []struct {
		name   string
		act    func(t *testing.T, s *Server, c *Client) context.Context // returns the acquisition's context
		fault  Fault
		limit  time.Duration
		kind   engine.EventKind
		waited time.Duration // negative if it did not wait
		err    error
	}{
		{name: "free", kind: engine.EventAcquired, limit: engine.Forever, waited: -1},
		{name: "held", act: seized(0), limit: engine.NoWait, kind: engine.EventNotAcquired, waited: -1,
			err: engine.ErrNotAcquired},
		{name: "waited, in vain", act: seized(0), limit: time.Second, kind: engine.EventNotAcquired, waited: time.Second,
			err: engine.ErrNotAcquired},
		{name: "waited", act: seized(1500 * ms), limit: engine.Forever, kind: engine.EventAcquired, waited: 1501 * ms},
		{name: "an error", fault: Fault{Err: ErrFatal}, limit: engine.Forever, kind: engine.EventNotAcquired,
			waited: -1, err: ErrFatal},
		{name: "in doubt", fault: Fault{Mute: true}, limit: engine.Forever, kind: engine.EventNotAcquired, waited: -1},
		{name: "too late", fault: Fault{Reply: CommandTimeout - ms}, limit: engine.Forever,
			kind: engine.EventNotAcquired, waited: -1,
			err: engine.ErrLost},
		{
			name: "the context has ended", limit: engine.Forever,
			kind: engine.EventNotAcquired, waited: -1, err: engine.ErrNotAcquired,
			act: func(t *testing.T, _ *Server, _ *Client) context.Context {
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				return ctx
			},
		},
		{
			name: "the client closes", kind: engine.EventNotAcquired, limit: engine.Forever, waited: -1, err: engine.ErrClosed,
			act: func(t *testing.T, s *Server, c *Client) context.Context {
				hold := Acquire(t, t.Context(), c.Lock("other"))
				startClose(t, t.Context(), c)
				t.Cleanup(func() { _ = hold.Release(context.Background()) })
				return t.Context()
			},
		},
		{
			name: "nested", kind: engine.EventNested, limit: engine.Forever, waited: -1,
			act: func(t *testing.T, _ *Server, c *Client) context.Context {
				hold := Acquire(t, t.Context(), c.Lock("x"))
				t.Cleanup(func() { _ = hold.Release(context.Background()) })
				return Carry(hold)
			},
		},
		{
			name: "nested, waited for a turn", kind: engine.EventNested, limit: engine.Forever, waited: time.Second,
			act: func(t *testing.T, _ *Server, c *Client) context.Context {
				outer := Acquire(t, t.Context(), c.Lock("x"))
				inner := Acquire(t, Carry(outer), c.Lock("x"))
				time.AfterFunc(time.Second, func() { _ = inner.Release(context.Background()) })
				t.Cleanup(func() { _ = outer.Release(context.Background()) })
				return Carry(outer)
			},
		},
		{
			name: "under a lost hold", kind: engine.EventNotAcquired, limit: engine.Forever, waited: -1, err: engine.ErrLost,
			act: func(t *testing.T, s *Server, c *Client) context.Context {
				hold := Acquire(t, t.Context(), c.Lock("x"))
				s.Forget("x")
				return carryLost(hold)
			},
		},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			s.MayStayHeld()
			c := s.Client(t, "a")
			ctx := t.Context()
			if tt.act != nil {
				ctx = tt.act(t, s, c)
			}
			ctx = context.WithValue(ctx, traceKey{}, "trace")
			c.Mu.Lock()
			c.Events = nil
			c.Mu.Unlock()
			began := s.Now()
			s.Script("acquire", tt.fault)
			r := c.Lock("x")
			hold, err := r.Acquire(ctx, NewTerms(TTL(CommandTimeout)), tt.limit)
			want := []engine.EventKind{tt.kind}
			if tt.waited >= 0 {
				want = []engine.EventKind{engine.EventWait, tt.kind}
				assert.Equal(t, "trace", c.Event(t, engine.EventWait).Ctx.Value(traceKey{}))
			}
			assert.Equal(t, want, c.Kinds(engine.EventRenewed, engine.EventReleased, engine.EventLost))
			e := c.Event(t, tt.kind)
			assert.Equal(t, max(tt.waited, 0), e.Waited)
			assert.Equal(t, "trace", e.Ctx.Value(traceKey{}))
			assert.Same(t, r, e.Resource)
			assert.Equal(t, hold.ID(), e.ID)
			assert.Equal(t, err, e.Err)
			if tt.err != nil {
				require.ErrorIs(t, err, tt.err)
			}
			assert.GreaterOrEqual(t, s.Now(), began)
			if hold != nil {
				Release(t, hold)
			}
		})
	}
}

// seized makes another client hold the lock.
func seized(d time.Duration) func(*testing.T, *Server, *Client) context.Context {
	return func(t *testing.T, s *Server, _ *Client) context.Context {
		s.Seize("x", "other", d)
		return t.Context()
	}
}

func TestRenewalsAndLossAreEventsOfEachHold(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		r := c.Reader("x")
		outer := Acquire(t, t.Context(), r)
		inner := Acquire(t, Carry(outer), r)
		Sleep(10 * time.Second)
		assert.Equal(t, []engine.EventKind{engine.EventAcquired, engine.EventNested, engine.EventRenewed,
			engine.EventRenewed}, c.Kinds())
		assert.Equal(t, 10*time.Second, c.Event(t, engine.EventRenewed).Held)
		s.Script("renew", Fault{Err: ErrDown})
		c.Mu.Lock()
		c.Events = slices.DeleteFunc(c.Events, func(e engine.Event) bool { return e.Kind == engine.EventRenewed })
		c.Mu.Unlock()
		Sleep(10*time.Second + 500*ms)
		require.ErrorIs(t, c.Event(t, engine.EventRenewFailed).Err, ErrDown)
		e := c.Event(t, engine.EventRenewed)
		assert.InDelta(t, 45*ms, e.Late, float64(10*ms), "the pause after a failure")
		s.Forget("x")
		Sleep(10 * time.Second)
		e = c.Event(t, engine.EventLost)
		require.ErrorIs(t, e.Err, engine.ErrLost)
		assert.Equal(t, outer.ID(), e.ID)
		kinds := c.Kinds(engine.EventRenewed, engine.EventRenewFailed)
		assert.Equal(t, []engine.EventKind{engine.EventAcquired, engine.EventNested, engine.EventLost,
			engine.EventLost}, kinds)
		_ = inner.Release(t.Context())
		_ = outer.Release(t.Context())
	})
}

func TestACoreWithoutAnObserverWorks(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		s.MayStayHeld()
		c := s.Client(t, "a", func(config *engine.Config) { config.Observe = nil })
		hold := Acquire(t, t.Context(), c.Lock("x"))
		Sleep(time.Minute)
		waiter := StartAcquire(t, t.Context(), c.Lock("x"))
		s.Free("x")
		require.ErrorIs(t, hold.Release(t.Context()), engine.ErrLost)
		Release(t, waiter.AwaitHold())
		require.NoError(t, ErrOf(c.Lock("x").Acquire(t.Context(), NewTerms(OwnedBy("me")), engine.NoWait)))
	})
}

// A wait may be over at the instant at which it began. An observer that counts waiters must still
// see it.
func TestAWaitIsNeverReportedAsZero(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		s.Seize("x", "other", 0)
		waiter := StartAcquire(t, t.Context(), c.Lock("x"))
		synctest.Wait()
		s.Free("x")
		hold := waiter.AwaitHold()
		assert.Equal(t, []engine.EventKind{engine.EventWait, engine.EventAcquired}, c.Kinds())
		assert.Positive(t, c.Event(t, engine.EventAcquired).Waited)
		Release(t, hold)
	})
}

// A limit ends the hold while its release is under way, and then the release is not answered.
func TestAHoldHasOneEventOfItsEnd(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		limited := NewTerms()
		limited.MaxHold = time.Second
		hold, err := c.Lock("x").Acquire(t.Context(), limited, engine.Forever)
		require.NoError(t, err)
		s.Script("release", Fault{Mute: true})
		require.Error(t, hold.Release(t.Context()))
		Sleep(time.Minute)
		assert.Equal(t, []engine.EventKind{engine.EventAcquired, engine.EventLost}, c.Kinds())
	})
}
