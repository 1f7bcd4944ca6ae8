package engine_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/engine"
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
		kind   EventKind
		waited time.Duration // negative if it did not wait
		err    error
	}{
		{name: "free", kind: EventAcquired, limit: Forever, waited: -1},
		{name: "held", act: seized(0), limit: NoWait, kind: EventNotAcquired, waited: -1, err: ErrNotAcquired},
		{name: "waited, in vain", act: seized(0), limit: time.Second, kind: EventNotAcquired, waited: time.Second,
			err: ErrNotAcquired},
		{name: "waited", act: seized(1500 * ms), limit: Forever, kind: EventAcquired, waited: 1501 * ms},
		{name: "an error", fault: Fault{Err: ErrFatal}, limit: Forever, kind: EventNotAcquired, waited: -1, err: ErrFatal},
		{name: "in doubt", fault: Fault{Mute: true}, limit: Forever, kind: EventNotAcquired, waited: -1},
		{name: "too late", fault: Fault{Reply: CommandTimeout - ms}, limit: Forever, kind: EventNotAcquired, waited: -1,
			err: ErrLost},
		{
			name: "the context has ended", kind: EventNotAcquired, limit: Forever, waited: -1, err: ErrNotAcquired,
			act: func(t *testing.T, _ *Server, _ *Client) context.Context {
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				return ctx
			},
		},
		{
			name: "the client closes", kind: EventNotAcquired, limit: Forever, waited: -1, err: ErrClosed,
			act: func(t *testing.T, s *Server, c *Client) context.Context {
				hold := Acquire(t, t.Context(), c.Lock("other"))
				startClose(t, t.Context(), c)
				t.Cleanup(func() { _ = hold.Release(context.Background()) })
				return t.Context()
			},
		},
		{
			name: "nested", kind: EventNested, limit: Forever, waited: -1,
			act: func(t *testing.T, _ *Server, c *Client) context.Context {
				hold := Acquire(t, t.Context(), c.Lock("x"))
				t.Cleanup(func() { _ = hold.Release(context.Background()) })
				return Carry(hold)
			},
		},
		{
			name: "nested, waited for a turn", kind: EventNested, limit: Forever, waited: time.Second,
			act: func(t *testing.T, _ *Server, c *Client) context.Context {
				outer := Acquire(t, t.Context(), c.Lock("x"))
				inner := Acquire(t, Carry(outer), c.Lock("x"))
				time.AfterFunc(time.Second, func() { _ = inner.Release(context.Background()) })
				t.Cleanup(func() { _ = outer.Release(context.Background()) })
				return Carry(outer)
			},
		},
		{
			name: "under a lost hold", kind: EventNotAcquired, limit: Forever, waited: -1, err: ErrLost,
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
			want := []EventKind{tt.kind}
			if tt.waited >= 0 {
				want = []EventKind{EventWait, tt.kind}
				assert.Equal(t, "trace", c.Event(t, EventWait).Ctx.Value(traceKey{}))
			}
			assert.Equal(t, want, c.Kinds(EventRenewed, EventReleased, EventLost))
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
		assert.Equal(t, []EventKind{EventAcquired, EventNested, EventRenewed, EventRenewed}, c.Kinds())
		assert.Equal(t, 10*time.Second, c.Event(t, EventRenewed).Held)
		s.Script("renew", Fault{Err: ErrDown})
		c.Mu.Lock()
		c.Events = slices.DeleteFunc(c.Events, func(e Event) bool { return e.Kind == EventRenewed })
		c.Mu.Unlock()
		Sleep(10*time.Second + 500*ms)
		require.ErrorIs(t, c.Event(t, EventRenewFailed).Err, ErrDown)
		e := c.Event(t, EventRenewed)
		assert.InDelta(t, 45*ms, e.Late, float64(10*ms), "the pause after a failure")
		s.Forget("x")
		Sleep(10 * time.Second)
		e = c.Event(t, EventLost)
		require.ErrorIs(t, e.Err, ErrLost)
		assert.Equal(t, outer.ID(), e.ID)
		kinds := c.Kinds(EventRenewed, EventRenewFailed)
		assert.Equal(t, []EventKind{EventAcquired, EventNested, EventLost, EventLost}, kinds)
		_ = inner.Release(t.Context())
		_ = outer.Release(t.Context())
	})
}

func TestACoreWithoutAnObserverWorks(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		s.MayStayHeld()
		c := s.Client(t, "a", func(config *Config) { config.Observe = nil })
		hold := Acquire(t, t.Context(), c.Lock("x"))
		Sleep(time.Minute)
		waiter := StartAcquire(t, t.Context(), c.Lock("x"))
		s.Free("x")
		require.ErrorIs(t, hold.Release(t.Context()), ErrLost)
		Release(t, waiter.Wait())
		require.NoError(t, ErrOf(c.Lock("x").Acquire(t.Context(), NewTerms(OwnedBy("me")), NoWait)))
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
		hold := waiter.Wait()
		assert.Equal(t, []EventKind{EventWait, EventAcquired}, c.Kinds())
		assert.Positive(t, c.Event(t, EventAcquired).Waited)
		Release(t, hold)
	})
}

// A limit ends the hold while its release is under way, and then the release is not answered.
func TestAHoldHasOneEventOfItsEnd(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		limited := NewTerms()
		limited.MaxHold = time.Second
		hold, err := c.Lock("x").Acquire(t.Context(), limited, Forever)
		require.NoError(t, err)
		s.Script("release", Fault{Mute: true})
		require.Error(t, hold.Release(t.Context()))
		Sleep(time.Minute)
		assert.Equal(t, []EventKind{EventAcquired, EventLost}, c.Kinds())
	})
}
