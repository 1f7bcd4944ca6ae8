package engine_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/failure"
	. "github.com/redlatch/redlatch/internal/test/enginetest"
)

func TestNestedHoldsShareTheIDAndCount(t *testing.T) {
	for _, tt := range []struct {
		name  string
		order []int // in which the three holds are released
	}{
		{"inner first", []int{2, 1, 0}},
		{"outer first", []int{0, 1, 2}},
		{"middle first", []int{1, 0, 2}},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			c := s.Client(t, "a")
			r := c.Reader("x") // its holds do not take turns
			holds := []*engine.Hold{Acquire(t, t.Context(), r)}
			for depth := 2; depth <= 3; depth++ {
				holds = append(holds, Acquire(t, Carry(holds[depth-2]), r))
				assert.Equal(t, depth, holds[depth-1].Depth())
				assert.Equal(t, holds[0].ID(), holds[depth-1].ID())
				assert.Same(t, holds[0].Ownership(), holds[depth-1].Ownership())
				assert.Equal(t, depth, s.Holder("x", "a:1").Count)
			}
			for i, at := range tt.order {
				Release(t, holds[at])
				require.ErrorIs(t, context.Cause(Carry(holds[at])), engine.ErrReleased)
				assert.Equal(t, 2-i, s.Holder("x", "a:1").Count)
			}
			s.RequireFree(t)
			assert.Equal(t, []engine.EventKind{
				engine.EventAcquired, engine.EventNested, engine.EventNested,
				engine.EventReleased, engine.EventReleased, engine.EventReleased,
			}, c.Kinds())
		})
	}
}

func TestDepthDoesNotOverflow(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		r := s.Client(t, "a").Lock("x")
		outer := Acquire(t, t.Context(), r)
		outer.SetDepth(math.MaxUint16)
		inner := Acquire(t, Carry(outer), r)
		assert.Equal(t, math.MaxUint16, inner.Depth())
		Release(t, inner, outer)
	})
}

func TestNestedAcquisitionFindsItsOuterHold(t *testing.T) {
	for _, tt := range []struct {
		name  string
		act   func(t *testing.T, s *Server, outer *engine.Hold)
		terms []func(*engine.Terms)
		want  error // nil if it is acquired
		depth int

		sendsNothing bool
	}{
		{name: "live", depth: 2},
		{
			name: "released: it is an outermost hold", depth: 1,
			act: func(t *testing.T, _ *Server, outer *engine.Hold) { Release(t, outer) },
		},
		{
			name: "detached: it waits for the lease of that", want: engine.ErrNotAcquired,
			act: func(t *testing.T, _ *Server, outer *engine.Hold) { assert.True(t, outer.Detach()) },
		},
		{
			name: "lost, and that is known", want: engine.ErrLost, sendsNothing: true,
			act: func(t *testing.T, s *Server, outer *engine.Hold) {
				s.Forget("x")
				require.ErrorIs(t, outer.Check(t.Context()), engine.ErrLost)
			},
		},
		{
			name: "lost, and that is not known", want: engine.ErrLost,
			act: func(_ *testing.T, s *Server, _ *engine.Hold) { s.Forget("x") },
		},
		{name: "not reentrant", terms: []func(*engine.Terms){NonReentrant}, want: engine.ErrDeadlock},
		{name: "another owner", terms: []func(*engine.Terms){OwnedBy("me")}, want: engine.ErrNotAcquired},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			r := s.Client(t, "a").Lock("x")
			outer := Acquire(t, t.Context(), r)
			if tt.act != nil {
				tt.act(t, s, outer)
			}
			hold, err := r.Acquire(carryLost(outer), NewTerms(tt.terms...), time.Second)
			if tt.sendsNothing {
				assert.Empty(t, s.Sent("nest"))
			}
			if tt.want != nil {
				require.ErrorIs(t, err, tt.want)
				assert.Equal(t, errors.Is(tt.want, engine.ErrLost), outer.IsLost(), "only a loss ends the outer hold")
			} else {
				require.NoError(t, err)
				assert.Equal(t, tt.depth, hold.Depth())
				Release(t, hold)
			}
			_ = outer.Release(t.Context())
			Sleep(time.Minute)
		})
	}
}

// carryLost returns a context that carries a hold, and does not end with it.
func carryLost(h *engine.Hold) context.Context { return context.WithoutCancel(Carry(h)) }

func TestNestedAcquisitionsTakeTurns(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		r := c.Lock("x")
		outer := Acquire(t, t.Context(), r)
		ctx, cancel := context.WithCancelCause(Carry(outer))
		first := Acquire(t, Carry(outer), r)
		require.ErrorIs(t, ErrOf(r.Acquire(Carry(outer), NewTerms(), engine.NoWait)), engine.ErrNotAcquired)
		assert.NotContains(t, c.Kinds(), engine.EventWait)
		require.ErrorIs(t, ErrOf(r.Acquire(Carry(outer), NewTerms(), time.Second)), engine.ErrNotAcquired)
		assert.Equal(t, time.Second, s.Now())

		leaver := StartAcquire(t, ctx, r)
		second := StartAcquire(t, Carry(outer), r)
		third := StartAcquire(t, Carry(outer), r)
		cancel(errCause)
		require.ErrorIs(t, leaver.AwaitErr(), errCause)
		assert.False(t, second.Returned())
		Release(t, first)
		second.AwaitHold()
		assert.False(t, third.Returned(), "one at a time, in order")
		assert.Equal(t, 2, s.Holder("x", "a:1").Count)

		// Another hold may nest under the hold that has the turn.
		inner := Acquire(t, Carry(second.Hold), r)
		assert.Equal(t, 3, inner.Depth())
		Release(t, inner, second.Hold)
		Release(t, third.AwaitHold())
		Release(t, outer)
	})
}

func TestTurnIsPassedOnIfNestingFails(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		r := s.Client(t, "a").Lock("x")
		outer := Acquire(t, t.Context(), r)
		s.Script("nest", Fault{Err: ErrFatal}, Fault{Delay: 100 * ms, Err: ErrDown})
		require.ErrorIs(t, ErrOf(r.Acquire(Carry(outer), NewTerms(), engine.Forever)), ErrFatal)
		failing, next := StartAcquire(t, Carry(outer), r), StartAcquire(t, Carry(outer), r)
		require.ErrorIs(t, failing.AwaitErr(), ErrDown)
		Release(t, next.AwaitHold())
		assert.Equal(t, 100*ms, s.Now())
		Release(t, outer)
	})
}

// The outer hold ends while an acquisition waits for its turn under it.
func TestOuterHoldEndsWhileANestedAcquisitionWaits(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(t *testing.T, s *Server, outer *engine.Hold)
		want error // nil if it becomes an outermost hold
	}{
		{"released", func(t *testing.T, _ *Server, outer *engine.Hold) { Release(t, outer) }, nil},
		{"lost", func(t *testing.T, s *Server, outer *engine.Hold) {
			s.Forget("x")
			require.ErrorIs(t, outer.Check(t.Context()), engine.ErrLost)
		}, engine.ErrLost},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			r := s.Client(t, "a").Lock("x")
			outer := Acquire(t, t.Context(), r)
			first := Acquire(t, Carry(outer), r)
			waiter := StartAcquire(t, carryLost(outer), r)
			attempts := len(s.Sent("acquire"))
			tt.end(t, s, outer)
			if tt.want != nil {
				require.ErrorIs(t, waiter.AwaitErr(), tt.want)
				assert.Zero(t, s.Now())
			} else {
				assert.False(t, waiter.Returned(), "the id still holds the lock")
				assert.Greater(t, len(s.Sent("acquire")), attempts, "it does not wait for the turn any more")
			}
			_ = first.Release(t.Context())
			if tt.want == nil {
				assert.Equal(t, 1, waiter.AwaitHold().Depth())
				assert.NotEqual(t, outer.ID(), waiter.Hold.ID())
				Release(t, waiter.Hold)
			}
		})
	}
}

// A nested hold must not be made by a command that the release of the outer hold overtakes.
func TestNestingWaitsForAReleaseOnItsWay(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		r := s.Client(t, "a").Reader("x")
		outer := Acquire(t, t.Context(), r)
		s.Script("release", Fault{Delay: time.Second})
		released := StartRelease(t, outer)
		nested := StartAcquire(t, carryLost(outer), r)
		hold := nested.AwaitHold()
		released.AwaitHold()
		assert.Equal(t, 1, hold.Depth())
		assert.NotEqual(t, outer.ID(), hold.ID())
		Release(t, hold)
	})
}

// The release begins while the nested acquisition waits for the wire lock.
func TestNestingSeesAReleaseThatHasBegun(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		r := s.Client(t, "a").Reader("x")
		outer := Acquire(t, t.Context(), r)
		s.Script("nest", Fault{Delay: time.Second})
		first := StartAcquire(t, carryLost(outer), r) // its context must not end before it returns
		synctest.Wait()                               // it has the wire lock
		second := StartAcquire(t, carryLost(outer), r)
		synctest.Wait()
		released := StartRelease(t, outer)
		Release(t, first.AwaitHold())
		released.AwaitHold()
		assert.Equal(t, 1, second.AwaitHold().Depth())
		Release(t, second.Hold)
	})
}

// Each case nests with a fault, and releases all holds.
func TestNestingThatFailsLeavesNoCount(t *testing.T) {
	for _, tt := range []struct {
		name  string
		limit time.Duration
		fault Fault
		want  error // nil if it is acquired
		at    time.Duration
		count int // on the server, after a minute
	}{
		{name: "refused for good", limit: engine.Forever, fault: Fault{Err: ErrFatal}, want: ErrFatal, count: 1},
		{name: "unreachable", limit: engine.Forever, fault: Fault{Err: ErrDown}, want: ErrDown, count: 1},
		{
			name: "executed, not answered", limit: engine.Forever, fault: Fault{Mute: true}, want: ErrNoAnswer,
			at: CommandTimeout, count: 1,
		},
		{
			name: "never executed", limit: engine.Forever, fault: Fault{Lost: true}, want: ErrNoAnswer, at: CommandTimeout,
			count: 1,
		},
		{
			name: "a copy comes later", limit: engine.Forever, fault: Fault{Mute: true, Copy: 20 * time.Second},
			want: ErrNoAnswer, at: CommandTimeout, count: 1,
		},
		{
			name: "the limit is over", limit: 100 * ms, fault: Fault{Mute: true}, want: engine.ErrUnavailable, at: 120 * ms,
			count: 1,
		},
		{
			name: "the limit ends before the answer is late", limit: 90 * ms, fault: Fault{Mute: true},
			want: engine.ErrNotAcquired, at: 110 * ms, count: 1,
		},
		{name: "answered after the limit", limit: 100 * ms, fault: Fault{Reply: 110 * ms}, at: 110 * ms, count: 2},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			s.KeepLeases()
			r := s.Client(t, "a").Lock("x")
			outer := Acquire(t, t.Context(), r)
			s.Script("nest", tt.fault)
			hold, err := r.Acquire(Carry(outer), NewTerms(), tt.limit)
			assert.Equal(t, tt.at, s.Now())
			switch {
			case tt.want == nil:
				require.NoError(t, err)
			case engine.IsGiveUp(tt.want) || errors.Is(tt.want, ErrFatal) || errors.Is(tt.want, ErrDown):
				require.ErrorIs(t, err, tt.want)
			default:
				assert.True(t, failure.Of(err).InDoubt(), "%v", err)
			}
			Sleep(time.Minute)
			assert.Equal(t, tt.count, s.Holder("x", outer.ID()).Count)
			if hold != nil {
				Release(t, hold)
			}
			Release(t, outer)
		})
	}
}

func TestNestedAcquisitionIsTakenBackIfItsCallerHasGone(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		r := s.Client(t, "a").Lock("x")
		outer := Acquire(t, t.Context(), r)
		ctx, cancel := context.WithCancelCause(Carry(outer))
		s.OnEach(func(cmd Command) Fault {
			if cmd.Op == "nest" {
				cancel(errCause)
			}
			return Fault{}
		})
		_, err := r.Acquire(ctx, NewTerms(), engine.Forever)
		require.ErrorIs(t, err, engine.ErrNotAcquired)
		require.ErrorIs(t, err, errCause)
		Settle()
		assert.Equal(t, 1, s.Holder("x", outer.ID()).Count)
		Release(t, Acquire(t, Carry(outer), r)) // its turn was passed on
		Release(t, outer)
	})
}

// The reply comes when the lease that it grants is over, as after a pause of the process.
func TestNestedGrantAfterItsLeaseIsRolledBack(t *testing.T) {
	for _, tt := range []struct {
		name  string
		terms func(*engine.Terms)
		want  error // nil if it is acquired
	}{
		{"a fixed lease", FixedLease(time.Second), engine.ErrLost},
		{"a limit", MaxHold(time.Second), engine.ErrLost},
		{"a renewed lease: that of the outer hold is longer", TTL(time.Second), nil},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			c := s.Client(t, "a")
			r := c.Lock("x")
			outer := Acquire(t, t.Context(), r)
			s.Script("nest", Fault{Reply: time.Second})
			hold, err := r.Acquire(Carry(outer), NewTerms(tt.terms), engine.Forever)
			if tt.want == nil {
				require.NoError(t, err)
				assert.True(t, hold.ValidUntil().After(time.Now()))
				Release(t, hold)
			} else {
				require.ErrorIs(t, err, tt.want)
				Settle()
				assert.Equal(t, []engine.EventKind{engine.EventAcquired, engine.EventNotAcquired}, c.Kinds())
			}
			assert.True(t, outer.IsLive())
			assert.Equal(t, 1, s.Holder("x", outer.ID()).Count)
			Release(t, Acquire(t, Carry(outer), r)) // its turn was passed on
			Release(t, outer)
		})
	}
}

// The outer hold is lost and released while the command of a nested acquisition is under way. The
// context lives on, like the context of a redlock. Even so, a late copy of the command that
// acquired the lock acquires nothing: the server is told of the release.
func TestLostHoldIsReleasedDuringANestedAcquisition(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer Fault
		want   error
	}{
		{"lost", Fault{Delay: time.Second}, engine.ErrLost},
		{"an error", Fault{Delay: time.Second, Err: ErrFatal}, ErrFatal},
		{"none", Fault{Lost: true}, engine.ErrUnavailable},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			s.KeepLeases()
			r := s.Client(t, "a").Lock("x")
			s.Script("acquire", Fault{Copy: 20 * time.Second})
			outer := Acquire(t, t.Context(), r)
			s.Script("nest", tt.answer)
			nested := StartAcquire(t, context.WithoutCancel(Carry(outer)), r)
			s.Forget("x")
			outer.Ownership().EndAll(engine.Loss{Reason: engine.LossGone})
			require.ErrorIs(t, outer.Release(t.Context()), engine.ErrLost)
			require.ErrorIs(t, nested.AwaitErr(), tt.want)
			Sleep(time.Minute)
		})
	}
}

// A renewed hold nests in one with a longer, fixed lease, and the server is silent. The outer hold
// is valid until its own limit.
func TestOuterHoldOutlivesANestedHoldThatExpires(t *testing.T) {
	for _, found := range []string{"by the watchdog", "by a check"} {
		RunBubble(t, found, func(t *testing.T, s *Server) {
			r := s.Client(t, "a").Lock("x")
			outer := Acquire(t, t.Context(), r, FixedLease(time.Hour))
			inner := Acquire(t, Carry(outer), r)
			s.OnEach(func(Command) Fault { return Fault{Lost: true} })
			if found == "by the watchdog" {
				Sleep(DefaultTTL)
			} else {
				Sleep(time.Until(inner.ValidUntil()) - time.Second)
				require.Error(t, inner.Check(t.Context()))
			}
			require.Equal(t, engine.LossExpired, LossOf(t, context.Cause(Carry(inner))).Reason)
			require.NoError(t, Carry(outer).Err())
			s.ResetFaults()
			require.NoError(t, outer.Check(t.Context()))
			require.ErrorIs(t, inner.Release(t.Context()), engine.ErrLost)
			again := Acquire(t, Carry(outer), r)
			Sleep(time.Minute)
			Release(t, again, outer)
		})
	}
}

// Holds of a shared id are counted by the server, and so are nested ones.
func TestNestingUnderASharedIDAcquiresAgain(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		r := s.Client(t, "a").Lock("x")
		outer := Acquire(t, t.Context(), r, OwnedBy("me"))
		inner := Acquire(t, Carry(outer), r)
		assert.Equal(t, 2, inner.Depth())
		assert.Equal(t, "me", inner.ID())
		assert.Equal(t, 2, s.Holder("x", "me").Count)
		assert.Empty(t, s.Sent("nest"))
		Release(t, outer)
		assert.Equal(t, 1, s.Holder("x", "me").Count)
		Release(t, inner)
		s.RequireFree(t)

		outer = Acquire(t, t.Context(), r, OwnedBy("me"))
		s.Forget("x")
		require.ErrorIs(t, ErrOf(r.Acquire(carryLost(outer), NewTerms(), engine.Forever)), engine.ErrLost)
		assert.True(t, outer.IsLost())
	})
}

// The outer hold is of another kind with the same name, and the server counts the kinds apart.
func TestNestingUnderAnotherKindAcquiresWithItsID(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		s.SetPermits("x", 100)
		writer, reader := c.Writer("x"), c.Reader("x")
		reader.Traits.Outer = func(ctx context.Context) (*engine.Hold, error) { return engine.OuterFrom(ctx, writer), nil }
		outer := Acquire(t, t.Context(), writer)
		inner := Acquire(t, Carry(outer), reader)
		assert.Equal(t, outer.ID(), inner.ID())
		assert.NotSame(t, outer.Ownership(), inner.Ownership())
		Release(t, inner, outer)
	})
}

func TestHoldsAreFoundInContexts(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		x, y := c.Lock("x"), c.Lock("y")
		outer := Acquire(t, t.Context(), x)
		ctx := outer.Context("handle of x")
		other := Acquire(t, ctx, y)
		ctx = other.Context("handle of y")
		hold, handle := engine.HoldFrom(ctx, &engine.Resource{Core: c.Core, Kind: "lock", Name: "x"})
		assert.Same(t, outer, hold)
		assert.Equal(t, "handle of x", handle)
		hold, handle = engine.HoldFrom(ctx, &engine.Resource{Core: c.Core, Kind: "lock", Name: "z"})
		assert.Nil(t, hold)
		assert.Nil(t, handle)

		inner := Acquire(t, ctx, x)
		ctx = inner.Context("inner")
		hold, _ = engine.HoldFrom(ctx, x)
		assert.Same(t, inner, hold, "the nearest")
		Release(t, inner)
		hold, _ = engine.HoldFrom(ctx, x)
		assert.Same(t, outer, hold, "the nearest that is live")
		s.Forget("x")
		require.ErrorIs(t, outer.Check(t.Context()), engine.ErrLost)
		hold, _ = engine.HoldFrom(ctx, x)
		assert.Nil(t, hold)
		assert.Same(t, outer, engine.OuterFrom(ctx, x), "lost, not released")
		_ = outer.Release(t.Context())
		assert.Nil(t, engine.OuterFrom(ctx, x))
		Release(t, other)
	})
}

// Nothing nests under a lost hold, even while a nested hold with a longer lease has the turn under
// it.
func TestLostHoldIsToldBeforeTheTurnUnderIt(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		s.MayStayHeld()
		r := s.Client(t, "a").Lock("x")
		outer := Acquire(t, t.Context(), r, FixedLease(5*time.Second))
		inner := Acquire(t, Carry(outer), r, FixedLease(time.Minute))
		ctx := context.WithoutCancel(Carry(outer))
		Sleep(6 * time.Second)
		require.True(t, outer.IsLost())
		require.True(t, inner.IsLive())
		require.ErrorIs(t, ErrOf(r.Acquire(ctx, NewTerms(), engine.NoWait)), engine.ErrLost)
		Release(t, inner)
	})
}
