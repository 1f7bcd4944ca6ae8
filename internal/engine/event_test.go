package engine

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type traceKey struct{}

// Each case makes one acquisition. It emits one event of its result, whatever the result is.
func TestEachAcquisitionEmitsOneEventOfItsResult(t *testing.T) {
	for _, tt := range []struct {
		name   string
		act    func(t *testing.T, s *server, c *client) context.Context // returns the acquisition's context
		fault  fault
		limit  time.Duration
		kind   EventKind
		waited time.Duration // negative: it did not wait
		err    error
	}{
		{name: "free", kind: EventAcquired, limit: forever, waited: -1},
		{name: "held", act: seized(0), limit: noWait, kind: EventNotAcquired, waited: -1, err: ErrNotAcquired},
		{name: "waited, in vain", act: seized(0), limit: time.Second, kind: EventNotAcquired, waited: time.Second,
			err: ErrNotAcquired},
		{name: "waited", act: seized(1500 * ms), limit: forever, kind: EventAcquired, waited: 1501 * ms},
		{name: "an error", fault: fault{err: errFatal}, limit: forever, kind: EventNotAcquired, waited: -1, err: errFatal},
		{name: "in doubt", fault: fault{mute: true}, limit: forever, kind: EventNotAcquired, waited: -1},
		{name: "too late", fault: fault{reply: testTimeout - ms}, limit: forever, kind: EventNotAcquired, waited: -1,
			err: ErrLost},
		{
			name: "the context has ended", kind: EventNotAcquired, limit: forever, waited: -1, err: ErrNotAcquired,
			act: func(t *testing.T, _ *server, _ *client) context.Context {
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				return ctx
			},
		},
		{
			name: "the client closes", kind: EventNotAcquired, limit: forever, waited: -1, err: ErrClosed,
			act: func(t *testing.T, s *server, c *client) context.Context {
				hold := acquire(t, t.Context(), c.lock("other"))
				startClose(t, t.Context(), c)
				t.Cleanup(func() { _ = hold.Release(context.Background()) })
				return t.Context()
			},
		},
		{
			name: "nested", kind: EventNested, limit: forever, waited: -1,
			act: func(t *testing.T, _ *server, c *client) context.Context {
				hold := acquire(t, t.Context(), c.lock("x"))
				t.Cleanup(func() { _ = hold.Release(context.Background()) })
				return carry(hold)
			},
		},
		{
			name: "nested, waited for a turn", kind: EventNested, limit: forever, waited: time.Second,
			act: func(t *testing.T, _ *server, c *client) context.Context {
				outer := acquire(t, t.Context(), c.lock("x"))
				inner := acquire(t, carry(outer), c.lock("x"))
				time.AfterFunc(time.Second, func() { _ = inner.Release(context.Background()) })
				t.Cleanup(func() { _ = outer.Release(context.Background()) })
				return carry(outer)
			},
		},
		{
			name: "under a lost hold", kind: EventNotAcquired, limit: forever, waited: -1, err: ErrLost,
			act: func(t *testing.T, s *server, c *client) context.Context {
				hold := acquire(t, t.Context(), c.lock("x"))
				s.forget("x")
				return carryLost(hold)
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				c := s.client(t, "a")
				ctx := t.Context()
				if tt.act != nil {
					ctx = tt.act(t, s, c)
				}
				ctx = context.WithValue(ctx, traceKey{}, "trace")
				c.mu.Lock()
				c.events = nil
				c.mu.Unlock()
				began := s.now()
				s.script("acquire", tt.fault)
				r := c.lock("x")
				hold, err := r.Acquire(ctx, terms(ttl(testTimeout)), tt.limit)
				want := []EventKind{tt.kind}
				if tt.waited >= 0 {
					want = []EventKind{EventWait, tt.kind}
					assert.Equal(t, "trace", c.event(t, EventWait).Ctx.Value(traceKey{}))
				}
				assert.Equal(t, want, c.kinds(EventRenewed, EventReleased, EventLost))
				e := c.event(t, tt.kind)
				assert.Equal(t, max(tt.waited, 0), e.Waited)
				assert.Equal(t, "trace", e.Ctx.Value(traceKey{}))
				assert.Same(t, r, e.Resource)
				assert.Equal(t, hold.ID(), e.ID)
				assert.Equal(t, err, e.Err)
				if tt.err != nil {
					require.ErrorIs(t, err, tt.err)
				}
				assert.GreaterOrEqual(t, s.now(), began)
				if hold != nil {
					release(t, hold)
				}
			})
		})
	}
}

// seized has another client hold the lock.
func seized(d time.Duration) func(*testing.T, *server, *client) context.Context {
	return func(t *testing.T, s *server, _ *client) context.Context {
		s.seize("x", "other", d)
		return t.Context()
	}
}

func TestRenewalsAndLossAreEventsOfEachHold(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		r := c.reader("x")
		outer := acquire(t, t.Context(), r)
		inner := acquire(t, carry(outer), r)
		sleep(10 * time.Second)
		assert.Equal(t, []EventKind{EventAcquired, EventNested, EventRenewed, EventRenewed}, c.kinds())
		assert.Equal(t, 10*time.Second, c.event(t, EventRenewed).Held)
		s.script("renew", fault{err: errDown})
		c.mu.Lock()
		c.events = slices.DeleteFunc(c.events, func(e Event) bool { return e.Kind == EventRenewed })
		c.mu.Unlock()
		sleep(10*time.Second + 500*ms)
		require.ErrorIs(t, c.event(t, EventRenewFailed).Err, errDown)
		e := c.event(t, EventRenewed)
		assert.InDelta(t, 45*ms, e.Late, float64(10*ms), "the pause after a failure")
		s.forget("x")
		sleep(10 * time.Second)
		e = c.event(t, EventLost)
		require.ErrorIs(t, e.Err, ErrLost)
		assert.Equal(t, outer.ID(), e.ID)
		kinds := c.kinds(EventRenewed, EventRenewFailed)
		assert.Equal(t, []EventKind{EventAcquired, EventNested, EventLost, EventLost}, kinds)
		_ = inner.Release(t.Context())
		_ = outer.Release(t.Context())
	})
}

func TestACoreWithoutAnObserverWorks(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a", func(config *Config) { config.Observe = nil })
		hold := acquire(t, t.Context(), c.lock("x"))
		sleep(time.Minute)
		waiter := startAcquire(t, t.Context(), c.lock("x"))
		s.free("x")
		require.ErrorIs(t, hold.Release(t.Context()), ErrLost)
		release(t, waiter.wait())
		_, err := c.lock("x").Acquire(t.Context(), terms(owner("me")), noWait)
		require.NoError(t, err)
	})
}

// A wait may be over at the instant at which it began. An observer that counts waiters must see that it was one.
func TestAWaitIsNeverReportedAsZero(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		s.seize("x", "other", 0)
		waiter := startAcquire(t, t.Context(), c.lock("x"))
		synctest.Wait()
		s.free("x")
		hold := waiter.wait()
		assert.Equal(t, []EventKind{EventWait, EventAcquired}, c.kinds())
		assert.Positive(t, c.event(t, EventAcquired).Waited)
		release(t, hold)
	})
}

// A limit ends the hold while its release is under way, and then the release is not answered.
func TestAHoldHasOneEventOfItsEnd(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		limited := terms()
		limited.MaxHold = time.Second
		hold, err := c.lock("x").Acquire(t.Context(), limited, forever)
		require.NoError(t, err)
		s.script("release", fault{mute: true})
		require.Error(t, hold.Release(t.Context()))
		sleep(time.Minute)
		assert.Equal(t, []EventKind{EventAcquired, EventLost}, c.kinds())
		s.requireFree(t)
	})
}
