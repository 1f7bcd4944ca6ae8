package engine

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				c := s.client(t, "a")
				r := c.reader("x") // its holds do not take turns
				holds := []*Hold{acquire(t, t.Context(), r)}
				for depth := 2; depth <= 3; depth++ {
					holds = append(holds, acquire(t, carry(holds[depth-2]), r))
					assert.Equal(t, depth, holds[depth-1].Depth())
					assert.Equal(t, holds[0].ID(), holds[depth-1].ID())
					assert.Same(t, holds[0].Ownership(), holds[depth-1].Ownership())
					assert.Equal(t, depth, s.holder("x", "a:1").count)
				}
				for i, at := range tt.order {
					release(t, holds[at])
					require.ErrorIs(t, context.Cause(carry(holds[at])), ErrReleased)
					assert.Equal(t, 2-i, s.holder("x", "a:1").count)
				}
				s.requireFree(t)
				assert.Equal(t, []EventKind{
					EventAcquired, EventNested, EventNested, EventReleased, EventReleased, EventReleased,
				}, c.kinds())
			})
		})
	}
}

func TestNestedAcquisitionFindsItsOuterHold(t *testing.T) {
	for _, tt := range []struct {
		name  string
		act   func(t *testing.T, s *server, outer *Hold)
		terms []func(*Terms)
		want  error // nil: acquired
		depth int
	}{
		{name: "live", depth: 2},
		{
			name: "released: it is an outermost hold", depth: 1,
			act: func(t *testing.T, _ *server, outer *Hold) { release(t, outer) },
		},
		{
			name: "detached: it waits for the lease of that", want: ErrNotAcquired,
			act: func(t *testing.T, _ *server, outer *Hold) { assert.True(t, outer.Detach()) },
		},
		{
			name: "lost, and that is known", want: ErrLost,
			act: func(t *testing.T, s *server, outer *Hold) {
				s.forget("x")
				require.ErrorIs(t, outer.Check(t.Context()), ErrLost)
			},
		},
		{
			name: "lost, and that is not known", want: ErrLost,
			act: func(_ *testing.T, s *server, _ *Hold) { s.forget("x") },
		},
		{name: "not reentrant", terms: []func(*Terms){nonReentrant}, want: ErrDeadlock},
		{name: "another owner", terms: []func(*Terms){owner("me")}, want: ErrNotAcquired},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				r := s.client(t, "a").lock("x")
				outer := acquire(t, t.Context(), r)
				if tt.act != nil {
					tt.act(t, s, outer)
				}
				hold, err := r.Acquire(carryLost(outer), terms(tt.terms...), time.Second)
				if tt.name == "lost, and that is known" {
					assert.Empty(t, s.sent("nest", ""))
				}
				if tt.want != nil {
					require.ErrorIs(t, err, tt.want)
					assert.Equal(t, errors.Is(tt.want, ErrLost), outer.isLost(), "a loss is told to the outer hold too")
				} else {
					require.NoError(t, err)
					assert.Equal(t, tt.depth, hold.Depth())
					release(t, hold)
				}
				_ = outer.Release(t.Context())
				sleep(time.Minute)
				s.requireFree(t)
			})
		})
	}
}

// carryLost returns a context that carries a hold, and does not end with it.
func carryLost(h *Hold) context.Context { return context.WithoutCancel(carry(h)) }

func TestNestedAcquisitionsTakeTurns(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		r := c.lock("x")
		outer := acquire(t, t.Context(), r)
		ctx, cancel := context.WithCancelCause(carry(outer))
		first := acquire(t, carry(outer), r)
		_, err := r.Acquire(carry(outer), terms(), noWait)
		require.ErrorIs(t, err, ErrNotAcquired)
		assert.NotContains(t, c.kinds(), EventWait)
		_, err = r.Acquire(carry(outer), terms(), time.Second)
		require.ErrorIs(t, err, ErrNotAcquired)
		assert.Equal(t, time.Second, s.now())

		leaver := startAcquire(t, ctx, r)
		second := startAcquire(t, carry(outer), r)
		third := startAcquire(t, carry(outer), r)
		cancel(errCause)
		require.ErrorIs(t, leaver.fail(), errCause)
		assert.False(t, second.returned())
		release(t, first)
		second.wait()
		assert.False(t, third.returned(), "one at a time, in order")
		assert.Equal(t, 2, s.holder("x", "a:1").count)

		// Another hold may nest under the hold that has the turn.
		inner := acquire(t, carry(second.hold), r)
		assert.Equal(t, 3, inner.Depth())
		release(t, inner)
		release(t, second.hold)
		release(t, third.wait())
		release(t, outer)
		s.requireFree(t)
	})
}

func TestWaiterThatLeavesWithItsTurnPassesItOn(t *testing.T) {
	turns := &turnQueue{}
	first, second := &Waiter{wakeup: NewSignal()}, &Waiter{wakeup: NewSignal()}
	turns.Join(first, Result{})
	turns.Join(second, Result{})
	assert.NotNil(t, turns.NextStep(first).Granted)
	assert.Equal(t, Step{}, turns.NextStep(second))
	turns.Leave(first, Result{})
	assert.Len(t, second.wakeup, 1)
	assert.NotNil(t, turns.NextStep(second).Granted)
}

func TestTurnIsPassedOnIfNestingFails(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		r := s.client(t, "a").lock("x")
		outer := acquire(t, t.Context(), r)
		s.script("nest", fault{err: errFatal}, fault{delay: 100 * ms, err: errDown})
		_, err := r.Acquire(carry(outer), terms(), forever)
		require.ErrorIs(t, err, errFatal)
		failing, next := startAcquire(t, carry(outer), r), startAcquire(t, carry(outer), r)
		require.ErrorIs(t, failing.fail(), errDown)
		release(t, next.wait())
		assert.Equal(t, 100*ms, s.now())
		release(t, outer)
		s.requireFree(t)
	})
}

// The outer hold ends while an acquisition waits for its turn under it.
func TestOuterHoldEndsWhileANestedAcquisitionWaits(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(t *testing.T, s *server, outer *Hold)
		want error // nil: it becomes an outermost hold
	}{
		{"released", func(t *testing.T, _ *server, outer *Hold) { release(t, outer) }, nil},
		{"lost", func(t *testing.T, s *server, outer *Hold) {
			s.forget("x")
			require.ErrorIs(t, outer.Check(t.Context()), ErrLost)
		}, ErrLost},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				r := s.client(t, "a").lock("x")
				outer := acquire(t, t.Context(), r)
				first := acquire(t, carry(outer), r)
				waiter := startAcquire(t, carryLost(outer), r)
				attempts := len(s.sent("acquire", ""))
				tt.end(t, s, outer)
				if tt.want != nil {
					require.ErrorIs(t, waiter.fail(), tt.want)
					assert.Zero(t, s.now())
				} else {
					assert.False(t, waiter.returned(), "the id still holds the lock")
					assert.Greater(t, len(s.sent("acquire", "")), attempts, "it does not wait for the turn any more")
				}
				_ = first.Release(t.Context())
				if tt.want == nil {
					assert.Equal(t, 1, waiter.wait().Depth())
					assert.NotEqual(t, outer.ID(), waiter.hold.ID())
					release(t, waiter.hold)
				}
				s.requireFree(t)
			})
		})
	}
}

// A nested hold must not be made by a command that the release of the outer hold overtakes.
func TestNestingWaitsForAReleaseOnItsWay(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		r := s.client(t, "a").reader("x")
		outer := acquire(t, t.Context(), r)
		s.script("release", fault{delay: time.Second})
		released := startRelease(t, outer)
		nested := startAcquire(t, carryLost(outer), r)
		hold := nested.wait()
		released.wait()
		assert.Equal(t, 1, hold.Depth())
		assert.NotEqual(t, outer.ID(), hold.ID())
		release(t, hold)
		s.requireFree(t)
	})
}

// The release begins while the nested acquisition waits for the wire lock.
func TestNestingSeesAReleaseThatBeganMeanwhile(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		r := s.client(t, "a").reader("x")
		outer := acquire(t, t.Context(), r)
		s.script("nest", fault{delay: time.Second})
		first := startAcquire(t, carry(outer), r)
		second := startAcquire(t, carryLost(outer), r)
		released := startRelease(t, outer)
		release(t, first.wait())
		released.wait()
		assert.Equal(t, 1, second.wait().Depth())
		release(t, second.hold)
		s.requireFree(t)
	})
}

// Each case nests with a fault, and releases all holds.
func TestNestingThatFailsLeavesNoCount(t *testing.T) {
	for _, tt := range []struct {
		name  string
		limit time.Duration
		fault fault
		want  error // nil: acquired
		at    time.Duration
		count int // on the server, after a minute
	}{
		{"refused for good", forever, fault{err: errFatal}, errFatal, 0, 1},
		{"unreachable", forever, fault{err: errDown}, errDown, 0, 1},
		{"executed, not answered", forever, fault{mute: true}, unanswered(nil), testTimeout, 1},
		{"never executed", forever, fault{lost: true}, unanswered(nil), testTimeout, 1},
		{"a copy comes later", forever, fault{mute: true, copy: 20 * time.Second}, unanswered(nil), testTimeout, 1},
		{"the limit is over", 100 * ms, fault{mute: true}, ErrUnavailable, 120 * ms, 1},
		{"the limit is over too soon to tell", 90 * ms, fault{mute: true}, ErrNotAcquired, 110 * ms, 1},
		{"answered after the limit", 100 * ms, fault{reply: 110 * ms}, nil, 110 * ms, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				s.keepLeases()
				r := s.client(t, "a").lock("x")
				outer := acquire(t, t.Context(), r)
				s.script("nest", tt.fault)
				hold, err := r.Acquire(carry(outer), terms(), tt.limit)
				assert.Equal(t, tt.at, s.now())
				switch {
				case tt.want == nil:
					require.NoError(t, err)
				case stopped(tt.want) || errors.Is(tt.want, errFatal) || errors.Is(tt.want, errDown):
					require.ErrorIs(t, err, tt.want)
				default:
					assert.True(t, classify(err).InDoubt, "%v", err)
				}
				sleep(time.Minute)
				assert.Equal(t, tt.count, s.holder("x", outer.ID()).count)
				if hold != nil {
					release(t, hold)
				}
				release(t, outer)
				s.requireFree(t)
			})
		})
	}
}

func TestNestedAcquisitionIsTakenBackIfItsCallerHasGone(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		r := s.client(t, "a").lock("x")
		outer := acquire(t, t.Context(), r)
		ctx, cancel := context.WithCancelCause(carry(outer))
		s.onEach(func(cmd command) fault {
			if cmd.op == "nest" {
				cancel(errCause)
			}
			return fault{}
		})
		_, err := r.Acquire(ctx, terms(), forever)
		require.ErrorIs(t, err, ErrNotAcquired)
		require.ErrorIs(t, err, errCause)
		sleep(0)
		assert.Equal(t, 1, s.holder("x", outer.ID()).count)
		release(t, acquire(t, carry(outer), r)) // its turn was passed on
		release(t, outer)
		s.requireFree(t)
	})
}

// Holds of a shared id are counted by the server. So are nested ones.
func TestNestingUnderASharedIDAcquiresAgain(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		r := s.client(t, "a").lock("x")
		outer := acquire(t, t.Context(), r, owner("me"))
		inner := acquire(t, carry(outer), r)
		assert.Equal(t, 2, inner.Depth())
		assert.Equal(t, "me", inner.ID())
		assert.Equal(t, 2, s.holder("x", "me").count)
		assert.Empty(t, s.sent("nest", ""))
		release(t, outer)
		assert.Equal(t, 1, s.holder("x", "me").count)
		release(t, inner)
		s.requireFree(t)

		outer = acquire(t, t.Context(), r, owner("me"))
		s.forget("x")
		_, err := r.Acquire(carryLost(outer), terms(), forever)
		require.ErrorIs(t, err, ErrLost)
		assert.True(t, outer.isLost())
		s.requireFree(t)
	})
}

// An outer hold of another kind with the same name: the server counts the kinds apart.
func TestNestingUnderAHoldOfAnotherKindAcquiresWithItsID(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		s.setPermits("x", 100)
		writer, reader := c.writer("x"), c.reader("x")
		reader.Traits.Outer = func(ctx context.Context) (*Hold, error) { return OuterFrom(ctx, writer.Key), nil }
		outer := acquire(t, t.Context(), writer)
		inner := acquire(t, carry(outer), reader)
		assert.Equal(t, outer.ID(), inner.ID())
		assert.NotSame(t, outer.Ownership(), inner.Ownership())
		release(t, inner)
		release(t, outer)
		s.requireFree(t)
	})
}

func TestHoldsAreFoundInContexts(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		x, y := c.lock("x"), c.lock("y")
		outer := acquire(t, t.Context(), x)
		ctx := outer.Context("handle of x")
		other := acquire(t, ctx, y)
		ctx = other.Context("handle of y")
		hold, handle := HoldFrom(ctx, &Key{Core: c.Core, Kind: "lock", Name: "x"})
		assert.Same(t, outer, hold)
		assert.Equal(t, "handle of x", handle)
		hold, handle = HoldFrom(ctx, &Key{Core: c.Core, Kind: "lock", Name: "z"})
		assert.Nil(t, hold)
		assert.Nil(t, handle)

		inner := acquire(t, ctx, x)
		ctx = inner.Context("inner")
		hold, _ = HoldFrom(ctx, x.Key)
		assert.Same(t, inner, hold, "the nearest")
		release(t, inner)
		hold, _ = HoldFrom(ctx, x.Key)
		assert.Same(t, outer, hold, "the nearest that is live")
		s.forget("x")
		require.ErrorIs(t, outer.Check(t.Context()), ErrLost)
		hold, _ = HoldFrom(ctx, x.Key)
		assert.Nil(t, hold)
		assert.Same(t, outer, OuterFrom(ctx, x.Key), "lost, not released")
		_ = outer.Release(t.Context())
		assert.Nil(t, OuterFrom(ctx, x.Key))
		release(t, other)
	})
}

// Nothing nests under a lost hold, even while a nested hold with a longer lease has the turn under it.
func TestLostHoldIsToldBeforeTheTurnUnderIt(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		r := s.client(t, "a").lock("x")
		outer := acquire(t, t.Context(), r, fixedLease(5*time.Second))
		inner := acquire(t, carry(outer), r, fixedLease(time.Minute))
		ctx := context.WithoutCancel(carry(outer))
		sleep(6 * time.Second)
		require.True(t, outer.isLost())
		require.True(t, inner.isLive())
		_, err := r.Acquire(ctx, terms(), noWait)
		require.ErrorIs(t, err, ErrLost)
		release(t, inner)
	})
}
