package engine_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/engine"
	. "github.com/redlatch/redlatch/internal/test/enginetest"
)

// testMargin is the safety margin of a lease of DefaultTTL.
const testMargin = DefaultTTL/100 + 2*time.Millisecond

func TestHoldIsRenewedUntilItIsReleased(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		hold, other := Acquire(t, t.Context(), c.Lock("x")), Acquire(t, t.Context(), c.Lock("y"))
		Sleep(10 * time.Minute)
		assert.NoError(t, Carry(hold).Err())
		assert.Equal(t, []string{hold.ID()}, s.IDs("x"))
		assert.Len(t, s.Sent("renew"), 60, "one command for both, three in a TTL")
		assert.Equal(t, DefaultTTL-testMargin, time.Until(hold.ValidUntil()))
		Release(t, hold, other)
		renewals := len(s.Sent("renew"))
		Sleep(10 * time.Minute)
		assert.Len(t, s.Sent("renew"), renewals)
	})
}

// Each case is the life of one hold whose caller does nothing.
func TestHoldIsLost(t *testing.T) {
	for _, tt := range []struct {
		name   string
		terms  []func(*engine.Terms)
		act    func(s *Server) // runs after a second
		at     time.Duration   // when the context ends; 0 if not within an hour
		reason engine.LossReason
		silent time.Duration
		renews bool
		failed bool // a renewal failed
	}{
		{name: "renewed: never", renews: true},
		{name: "a fixed lease ends", terms: []func(*engine.Terms){FixedLease(DefaultTTL)}, at: DefaultTTL - testMargin,
			reason: engine.LossLimit},
		{
			name: "a short maximum hold time", terms: []func(*engine.Terms){MaxHold(DefaultTTL)},
			at: DefaultTTL - testMargin, reason: engine.LossLimit, renews: true,
		},
		{
			name: "a long maximum hold time", terms: []func(*engine.Terms){MaxHold(10 * time.Minute)},
			at: 10*time.Minute - (6*time.Second + 2*time.Millisecond), reason: engine.LossLimit, renews: true,
		},
		{
			name: "the server does not answer", at: DefaultTTL - testMargin, renews: true, failed: true,
			reason: engine.LossExpired, silent: DefaultTTL - testMargin,
			act: func(s *Server) { s.OnEach(func(Command) Fault { return Fault{Mute: true} }) },
		},
		{
			name: "the server is unreachable", at: DefaultTTL - testMargin, renews: true, failed: true,
			reason: engine.LossExpired, silent: DefaultTTL - testMargin,
			act: func(s *Server) { s.OnEach(func(Command) Fault { return Fault{Err: ErrDown} }) },
		},
		{
			name: "the server has forgotten it", at: 10 * time.Second, reason: engine.LossGone, renews: true,
			act: func(s *Server) { s.Forget("x") },
		},
		{
			name: "another has it", at: 10 * time.Second, reason: engine.LossGone, renews: true,
			act: func(s *Server) { s.Forget("x"); s.Seize("x", "other", 0) },
		},
		{
			name: "unreachable for a while: never", renews: true, failed: true,
			act: func(s *Server) {
				s.OnEach(func(Command) Fault { return Fault{Err: ErrDown} })
				time.AfterFunc(25*time.Second, s.ResetFaults)
			},
		},
		{
			name: "slow answers: never", renews: true,
			act: func(s *Server) { s.OnEach(func(Command) Fault { return Fault{Reply: 2 * time.Second} }) },
		},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			s.MayStayHeld()
			c := s.Client(t, "a")
			hold := Acquire(t, t.Context(), c.Lock("x"), tt.terms...)
			ctx := Carry(hold)
			Sleep(time.Second)
			if tt.act != nil {
				tt.act(s)
			}
			select {
			case <-ctx.Done():
				assert.Equal(t, tt.at, s.Now())
			case <-time.After(time.Hour):
				assert.Zero(t, tt.at, "it is not lost")
			}
			Settle()
			assert.Equal(t, tt.renews, len(s.Sent("renew")) > 0)
			want := []engine.EventKind{engine.EventAcquired}
			if tt.failed {
				assert.NotZero(t, c.Event(t, engine.EventRenewFailed))
			}
			s.ResetFaults()
			err := hold.Release(t.Context())
			if tt.at == 0 {
				require.NoError(t, err)
				want = append(want, engine.EventReleased)
			} else {
				require.ErrorIs(t, err, engine.ErrLost)
				loss := LossOf(t, context.Cause(ctx))
				assert.Equal(t, engine.Loss{Reason: tt.reason, Resource: hold.Resource(), ID: hold.ID(), Silent: tt.silent}, loss)
				assert.Equal(t, context.Cause(ctx), err)
				assert.Equal(t, err, c.Event(t, engine.EventLost).Err)
				require.ErrorIs(t, hold.Release(t.Context()), engine.ErrReleased)
				assert.Equal(t, tt.at, c.Event(t, engine.EventLost).Held)
				want = append(want, engine.EventLost)
			}
			assert.Equal(t, want, c.Kinds(engine.EventRenewed, engine.EventRenewFailed), "a loss is reported once")
		})
	}
}

func TestServerNeverKeepsALockBeyondItsMaximumHoldTime(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		hold := Acquire(t, t.Context(), s.Client(t, "a").Lock("x"), MaxHold(2*time.Minute))
		for range 119 {
			assert.LessOrEqual(t, s.Now()+s.Lease("x", hold.ID()), 2*time.Minute)
			Sleep(time.Second)
		}
		assert.True(t, hold.IsLost())
		Sleep(time.Second)
	})
}

// A renewal is executed after the loss, and the server keeps the lock for another TTL.
func TestReleaseOfALostHoldDeletesWhatALateRenewalKept(t *testing.T) {
	for _, tt := range []struct {
		name  string
		terms []func(*engine.Terms)
	}{
		{"an id of its own", nil},
		{"a shared id", []func(*engine.Terms){OwnedBy("me")}},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			hold := Acquire(t, t.Context(), s.Client(t, "a").Lock("x"), tt.terms...)
			s.OnEach(func(cmd Command) Fault {
				if cmd.Op == "renew" {
					return Fault{Delay: DefaultTTL - 10*time.Second - ms} // just before the lease ends
				}
				return Fault{}
			})
			<-Carry(hold).Done()
			Sleep(5 * time.Second)
			assert.Positive(t, s.Lease("x", hold.ID()), "it was extended")
			require.ErrorIs(t, hold.Release(t.Context()), engine.ErrLost)
			Sleep(time.Second)
			assert.Zero(t, s.Lease("x", hold.ID()))
			Sleep(time.Minute)
		})
	}
}

// A fixed lease ends while its extension is under way. The answer that comes later does not move
// the end of the lost hold's validity.
func TestExtendThatIsAnsweredAfterTheEndOfALease(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		s.MayStayHeld()
		hold := Acquire(t, t.Context(), s.Client(t, "a").Lock("x"), FixedLease(time.Second))
		until := hold.ValidUntil()
		s.Script("extend", Fault{Reply: 2 * time.Second})
		require.ErrorIs(t, hold.Extend(t.Context(), time.Minute, nil), engine.ErrLost)
		require.ErrorIs(t, context.Cause(Carry(hold)), engine.ErrLost)
		require.Equal(t, until, hold.ValidUntil())
	})
}

func TestExtend(t *testing.T) {
	const long = 5 * time.Minute
	longMargin := long/100 + 2*time.Millisecond
	for _, tt := range []struct {
		name  string
		terms []func(*engine.Terms)
		d     time.Duration
		valid time.Duration // ValidUntil, after the extension at 10 s
		lease time.Duration // on the server
		lost  time.Duration // when the hold is lost; 0 if not within an hour
	}{
		{
			name: "a fixed lease", terms: []func(*engine.Terms){FixedLease(DefaultTTL)}, d: long,
			valid: 10*time.Second + long - longMargin, lease: long, lost: 10*time.Second + long - longMargin,
		},
		{
			name: "never shorter", terms: []func(*engine.Terms){FixedLease(DefaultTTL)}, d: time.Second,
			valid: DefaultTTL - testMargin, lease: 20 * time.Second, lost: DefaultTTL - testMargin,
		},
		{name: "a renewed hold", d: long, valid: 10*time.Second + long - testMargin, lease: long},
		{
			name: "the limit moves", terms: []func(*engine.Terms){MaxHold(time.Minute)}, d: long,
			valid: 10*time.Second + long - longMargin, lease: long, lost: 10*time.Second + long - longMargin,
		},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			hold := Acquire(t, t.Context(), s.Client(t, "a").Lock("x"), tt.terms...)
			Sleep(10 * time.Second)
			require.NoError(t, hold.Extend(t.Context(), tt.d, nil))
			assert.InDelta(t, tt.valid, hold.ValidUntil().Sub(s.Start), float64(3*time.Second))
			assert.GreaterOrEqual(t, s.Lease("x", hold.ID()), tt.lease, "the lease on the server")
			if tt.lost > 0 {
				<-Carry(hold).Done()
				assert.Equal(t, tt.lost, s.Now())
				require.ErrorIs(t, hold.Extend(t.Context(), long, nil), engine.ErrLost)
				_ = hold.Release(t.Context())
			} else {
				Sleep(time.Hour)
				Release(t, hold)
			}
			Settle()
		})
	}
}

// Each case calls Check and Extend.
func TestCheckAndExtendReportHowTheHoldEnded(t *testing.T) {
	invalid := errors.New("not positive")
	for _, tt := range []struct {
		name   string
		act    func(t *testing.T, s *Server, c *Client, h *engine.Hold)
		check  error
		extend error // with an invalid duration
	}{
		{name: "live", act: func(*testing.T, *Server, *Client, *engine.Hold) {}, extend: invalid},
		{
			name: "released", act: func(t *testing.T, _ *Server, _ *Client, h *engine.Hold) { Release(t, h) },
			check: engine.ErrReleased, extend: engine.ErrReleased,
		},
		{
			name: "detached", act: func(_ *testing.T, _ *Server, _ *Client,
				h *engine.Hold) {
				h.Detach()
			}, check: engine.ErrReleased,
			extend: engine.ErrReleased,
		},
		{
			name: "lost, not known yet", act: func(_ *testing.T, s *Server, _ *Client, _ *engine.Hold) { s.Forget("x") },
			check: engine.ErrLost, extend: engine.ErrLost,
		},
		{
			name: "lost", act: func(_ *testing.T, s *Server, _ *Client, _ *engine.Hold) { s.Forget("x"); Sleep(time.Minute) },
			check: engine.ErrLost, extend: engine.ErrLost,
		},
		{
			name:  "unreachable",
			act:   func(_ *testing.T, s *Server, _ *Client, _ *engine.Hold) { s.Script("check", Fault{Err: ErrDown}) },
			check: ErrDown, extend: invalid,
		},
		{
			name: "its release is under way", check: engine.ErrReleased, extend: engine.ErrReleased,
			act: func(t *testing.T, s *Server, _ *Client, h *engine.Hold) {
				s.Script("release", Fault{Reply: time.Second})
				StartRelease(t, h)
			},
		},
		{
			name: "the client closed", check: engine.ErrClosed, extend: engine.ErrClosed,
			act: func(_ *testing.T, _ *Server, c *Client, _ *engine.Hold) {
				ctx, cancel := context.WithCancel(context.Background())
				cancel()
				_ = c.Shut(ctx)
			},
		},
		{
			name: "released, and the client closed", check: engine.ErrReleased, extend: engine.ErrReleased,
			act: func(t *testing.T, _ *Server, c *Client, h *engine.Hold) {
				Release(t, h)
				require.NoError(t, c.Shut(t.Context()))
			},
		},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			s.MayStayHeld()
			c := s.Client(t, "a")
			hold := Acquire(t, t.Context(), c.Lock("x"))
			tt.act(t, s, c, hold)
			require.ErrorIs(t, hold.Check(t.Context()), tt.check)
			require.ErrorIs(t, hold.Extend(t.Context(), 0, invalid), tt.extend)
			assert.Empty(t, s.Sent("extend"))
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(errCause)
			if tt.check == nil {
				assert.Equal(t, errCause, hold.Check(ctx), "nothing is sent")
			}
			_ = hold.Release(t.Context())
		})
	}
}

// The first attempt of a release says whether the server remembers the permits. A repetition that
// said something else would release them twice.
func TestReleaseAsksOnceWhetherItsPermitsAreRemembered(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		hold := Acquire(t, t.Context(), s.Client(t, "a").Semaphore("x"))
		assert.True(t, hold.Ownership().IsRemembered())
		Sleep(23 * time.Hour)
		assert.True(t, hold.Ownership().IsRemembered())
		Release(t, hold)
	})
}

func TestHoldWithoutALeaseCannotBeCheckedOrLost(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		hold := Acquire(t, t.Context(), s.Client(t, "a").Semaphore("x"))
		require.ErrorIs(t, hold.Check(t.Context()), engine.ErrUnsupported)
		require.ErrorIs(t, hold.Extend(t.Context(), time.Second, nil), engine.ErrUnsupported)
		assert.Zero(t, hold.ValidUntil())
		Sleep(23 * time.Hour)
		assert.False(t, hold.Ownership().IsRemembered(), "an hour in reserve")
		assert.NoError(t, Carry(hold).Err())
		assert.Empty(t, s.Sent("renew"))
		Release(t, hold)
	})
}

// An answer may come when validity is over, but before the watchdog has reported that.
func TestAnswerThatComesTooLateIsALoss(t *testing.T) {
	for _, tt := range []struct {
		name   string
		term   func(*engine.Terms)
		reason engine.LossReason
	}{
		{"fixed lease", FixedLease(time.Second), engine.LossLimit},
		{"renewed lease", TTL(time.Second), engine.LossExpired},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			c := s.Client(t, "a")
			reported := c.Errors.Lost
			c.Errors.Lost = func(loss engine.Loss) error {
				Sleep(100 * ms)
				return reported(loss)
			}
			s.OnEach(func(cmd Command) Fault { return Fault{Lost: cmd.Op == "renew"} })
			hold := Acquire(t, t.Context(), c.Lock("x"), tt.term)
			Sleep(950 * ms)
			s.Script("check", Fault{Reply: 45 * ms})
			require.Equal(t, tt.reason, LossOf(t, hold.Check(t.Context())).Reason)
			require.ErrorIs(t, hold.Release(t.Context()), engine.ErrLost)
		})
	}
}

// The server grants 5 s at first. The first renewal asks for the full TTL.
func TestShortFirstLeaseIsRenewedInTime(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		r := s.Client(t, "a").Lock("x")
		r.Driver.(*FakeDriver).Lease = 5 * time.Second
		hold := Acquire(t, t.Context(), r)
		assert.Equal(t, 5*time.Second-52*ms, hold.ValidUntil().Sub(s.Start))
		Sleep(5*time.Second/3 + 10*ms)
		assert.Len(t, s.Sent("renew"), 2, "once for the short lease, and at once for the full one")
		assert.Greater(t, s.Lease("x", hold.ID()), DefaultTTL-time.Second)
		Sleep(time.Hour)
		Release(t, hold)
	})
}

// A hold is asked about every third of its TTL, even if it was promised a longer lease.
func TestRenewalsContinueUnderALongLease(t *testing.T) {
	const short = 6 * time.Second
	extend := func(t *testing.T, _ *Client, hold *engine.Hold) {
		require.NoError(t, hold.Extend(t.Context(), time.Hour, nil))
	}
	for _, tt := range []struct {
		name  string
		terms []func(*engine.Terms)
		grant time.Duration // of the first lease; 0 for the requested one
		act   func(t *testing.T, c *Client, hold *engine.Hold)
		every time.Duration
	}{
		{name: "extended", act: extend, every: DefaultTTL / 3},
		{
			name: "extended beyond its maximum hold time", terms: []func(*engine.Terms){MaxHold(time.Minute)},
			act: extend, every: DefaultTTL / 3,
		},
		{name: "a short first lease, extended", grant: short, act: extend, every: short / 3},
		{
			name: "a nested hold with a long lease", every: DefaultTTL / 3,
			act: func(t *testing.T, c *Client, hold *engine.Hold) {
				_ = Acquire(t, Carry(hold), c.Lock("x"), FixedLease(time.Hour))
			},
		},
		{
			name: "a nested hold with a long TTL", every: time.Hour / 3 / 128, // the longest such period below DefaultTTL/3
			act: func(t *testing.T, c *Client, hold *engine.Hold) {
				_ = Acquire(t, Carry(hold), c.Lock("x"), TTL(time.Hour))
			},
		},
		{
			name: "an extended nested hold that was released", every: DefaultTTL / 3,
			act: func(t *testing.T, c *Client, hold *engine.Hold) {
				inner := Acquire(t, Carry(hold), c.Lock("x"))
				require.NoError(t, inner.Extend(t.Context(), time.Hour, nil))
				Release(t, inner)
			},
		},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			c := s.Client(t, "a")
			r := c.Lock("x")
			r.Driver.(*FakeDriver).Lease = tt.grant
			hold := Acquire(t, t.Context(), r, tt.terms...)
			tt.act(t, c, hold)
			s.Forget("x")
			select {
			case <-Carry(hold).Done():
			case <-time.After(2 * time.Hour):
			}
			assert.Equal(t, tt.every, s.Now())
			assert.Equal(t, engine.LossGone, LossOf(t, context.Cause(Carry(hold))).Reason)
		})
	}
}

func TestLossIsToldToAllNestedHolds(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		r := c.Reader("x")
		outer := Acquire(t, t.Context(), r)
		inner := Acquire(t, Carry(outer), r)
		released := Acquire(t, Carry(outer), r)
		Release(t, released)
		s.Forget("x")
		require.ErrorIs(t, inner.Release(t.Context()), engine.ErrLost)
		require.ErrorIs(t, context.Cause(Carry(outer)), engine.ErrLost)
		require.ErrorIs(t, outer.Release(t.Context()), engine.ErrLost)
		assert.Equal(t, []engine.EventKind{
			engine.EventAcquired, engine.EventNested, engine.EventNested,
			engine.EventReleased, engine.EventLost, engine.EventLost,
		}, c.Kinds())
	})
}

func TestNestedAcquisitionFailsIfTheOwnershipIsLost(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		r := s.Client(t, "a").Reader("x")
		outer := Acquire(t, t.Context(), r)
		s.Script("nest", Fault{Reply: time.Second})
		s.Script("check", Fault{Delay: 500 * ms})
		nested := StartAcquire(t, carryLost(outer), r)
		s.Forget("x")
		require.ErrorIs(t, outer.Check(t.Context()), engine.ErrLost)
		require.ErrorIs(t, nested.AwaitErr(), engine.ErrLost)
		_ = outer.Release(t.Context())
	})
}

// Nested holds share a lease. Each has its own limit.
func TestNestedHoldsHaveLimitsOfTheirOwn(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		r := s.Client(t, "a").Reader("x")
		outer := Acquire(t, t.Context(), r)
		inner := Acquire(t, Carry(outer), r, FixedLease(12*time.Second))
		Sleep(12 * time.Second)
		require.ErrorIs(t, context.Cause(Carry(inner)), engine.ErrLost)
		assert.NoError(t, Carry(outer).Err())
		require.ErrorIs(t, inner.Release(t.Context()), engine.ErrLost)
		Sleep(time.Minute)
		assert.NoError(t, Carry(outer).Err())
		Release(t, outer)
		s.RequireFree(t)

		outer = Acquire(t, t.Context(), r, FixedLease(12*time.Second))
		inner = Acquire(t, carryLost(outer), r)
		Sleep(time.Minute)
		require.ErrorIs(t, context.Cause(Carry(outer)), engine.ErrLost)
		assert.NoError(t, inner.Context(nil).Err())
		require.ErrorIs(t, outer.Release(t.Context()), engine.ErrLost)
		Sleep(time.Minute)
		assert.Equal(t, []string{inner.ID()}, s.IDs("x"), "the release of a lapsed hold does not free the others")
		Release(t, inner)
	})
}

// A release shortens the lease to what the remaining holds were promised.
func TestReleaseShortensTheLease(t *testing.T) {
	for _, tt := range []struct {
		name         string
		outer, inner []func(*engine.Terms)
		act          func(t *testing.T, outer, inner *engine.Hold)
		want         time.Duration // the lease after the inner hold's release, at 1 s
	}{
		{
			name: "to the rest of a fixed lease", outer: []func(*engine.Terms){FixedLease(20 * time.Second)},
			want: 19 * time.Second,
		},
		{name: "to the TTL of a renewed hold", outer: []func(*engine.Terms){TTL(10 * time.Second)}, want: 10 * time.Second},
		{
			name: "to a maximum hold time", outer: []func(*engine.Terms){TTL(10 * time.Second), MaxHold(5 * time.Second)},
			want: 4 * time.Second,
		},
		{
			name: "to what an extension got", outer: []func(*engine.Terms){FixedLease(5 * time.Second)},
			act: func(t *testing.T, outer, _ *engine.Hold) {
				require.NoError(t, outer.Extend(t.Context(), time.Minute, nil))
			},
			want: time.Minute,
		},
		{
			name: "not below a detached hold's", outer: []func(*engine.Terms){FixedLease(5 * time.Second)},
			act: func(_ *testing.T, outer, _ *engine.Hold) { outer.Detach() }, want: DefaultTTL - time.Second,
		},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			r := s.Client(t, "a").Reader("x")
			outer := Acquire(t, t.Context(), r, tt.outer...)
			inner := Acquire(t, carryLost(outer), r, tt.inner...)
			Sleep(time.Second)
			if tt.act != nil {
				tt.act(t, outer, inner)
			}
			Release(t, inner)
			assert.InDelta(t, tt.want, s.Lease("x", outer.ID()), float64(60*ms))
			_ = outer.Release(t.Context())
			Sleep(time.Minute)
		})
	}
}

// The only remaining hold has reached its limit, so the release frees the lock.
func TestReleaseFreesWhatOnlyLapsedHoldsAreLeftOf(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		r := s.Client(t, "a").Reader("x")
		outer := Acquire(t, t.Context(), r, FixedLease(5*time.Second))
		inner := Acquire(t, carryLost(outer), r)
		Sleep(10 * time.Second)
		Release(t, inner)
		s.RequireFree(t)
		require.ErrorIs(t, outer.Release(t.Context()), engine.ErrLost)
	})
}

// A release that shortens the lease was not answered. A copy of it must not undo a later extension.
func TestExtendWaitsForAShorteningRelease(t *testing.T) {
	for _, tt := range []struct {
		name   string
		faults []Fault       // of the release, and of its repetitions
		at     time.Duration // when Extend returns
		failed bool
	}{
		{name: "answered late", faults: []Fault{{Delay: time.Second}}, at: time.Second},
		{name: "not answered; executed later", faults: []Fault{{Delay: 10 * time.Second}}, at: CommandTimeout},
		{name: "unreachable", faults: []Fault{{Err: ErrDown}}},
		{
			name:   "not answered; unreachable since",
			faults: append([]Fault{{Delay: 10 * time.Second}}, slices.Repeat([]Fault{{Err: ErrDown}}, 20)...),
			at:     CommandTimeout, failed: true,
		},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			r := s.Client(t, "a").Reader("x")
			outer := Acquire(t, t.Context(), r, FixedLease(20*time.Second))
			inner := Acquire(t, Carry(outer), r)
			s.Script("count", tt.faults...)
			released := StartRelease(t, inner)
			extended := Start(t, func() (*engine.Hold, error) { return nil, outer.Extend(t.Context(), time.Minute, nil) })
			extended.Await()
			if tt.failed {
				require.ErrorIs(t, extended.Err, ErrDown, "the old release may still shorten the lease")
			} else {
				require.NoError(t, extended.Err)
			}
			assert.Equal(t, tt.at, extended.At.Sub(s.Start))
			released.Await()
			Sleep(15 * time.Second)
			if !tt.failed {
				assert.Greater(t, s.Lease("x", outer.ID()), 30*time.Second)
			}
			_ = outer.Release(t.Context())
			Sleep(time.Minute)
		})
	}
}

func TestVerifyEndsAHoldThatTheServerDoesNotKnow(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		hold := Acquire(t, t.Context(), c.Lock("x"))
		require.NoError(t, hold.Ownership().Verify(t.Context()))
		s.Script("check", Fault{Err: ErrDown})
		require.ErrorIs(t, hold.Ownership().Verify(t.Context()), ErrDown)
		s.Forget("x")
		require.ErrorIs(t, hold.Ownership().Verify(t.Context()), engine.ErrLost)
		Settle()
		assert.Equal(t, []engine.EventKind{engine.EventAcquired, engine.EventLost}, c.Kinds())
		_ = hold.Release(t.Context())
	})
}

func TestDetachLeavesTheLockToItsLease(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		hold := Acquire(t, t.Context(), c.Lock("x"))
		assert.True(t, hold.Detach())
		assert.False(t, hold.Detach())
		require.ErrorIs(t, hold.Release(t.Context()), engine.ErrReleased)
		require.ErrorIs(t, context.Cause(Carry(hold)), engine.ErrReleased)
		assert.Len(t, s.Log, 1)
		assert.Equal(t, []string{hold.ID()}, s.IDs("x"))
		Sleep(DefaultTTL)
		s.RequireFree(t)
		assert.Equal(t, []engine.EventKind{engine.EventAcquired, engine.EventDetached}, c.Kinds())
	})
}

func TestForgottenHoldIsNotRenewed(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		hold := Acquire(t, t.Context(), c.Lock("x"))
		hold.ReportLeak()
		hold.ReportLeak()
		Sleep(DefaultTTL)
		s.RequireFree(t)
		assert.Equal(t, []engine.EventKind{engine.EventAcquired, engine.EventLeaked}, c.Kinds())
		assert.Empty(t, s.Sent("renew"))

		released := Acquire(t, t.Context(), c.Lock("x"))
		Release(t, released)
		released.ReportLeak()
		assert.Equal(t, []engine.EventKind{engine.EventAcquired, engine.EventReleased}, c.Kinds()[2:])
	})
}

func TestAdoptedHoldIsRenewedAndReleased(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		r := c.Lock("x")
		q := r.NewRequest(NewTerms())
		s.Seize("x", q.ID, DefaultTTL) // as the driver has done
		hold, err := r.NewAdoptedHold(t.Context(), q, time.Now())
		require.NoError(t, err)
		Sleep(time.Hour)
		assert.Equal(t, []string{hold.ID()}, s.IDs("x"))
		Release(t, hold)
		s.RequireFree(t)
		require.NoError(t, c.Shut(t.Context()))
		_, err = r.NewAdoptedHold(t.Context(), q, time.Now().Add(-DefaultTTL))
		require.ErrorIs(t, err, engine.ErrLost, "the answer took longer than the lease lasts")
		require.ErrorIs(t, ErrOf(r.NewAdoptedHold(t.Context(), q, time.Now())), engine.ErrClosed)
	})
}

func TestHoldTagsCountsHoldsThatAreOldEnough(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		c.SetTags(func(id string) string { return id })
		tags := func() ([]string, time.Duration, time.Duration) {
			tags, oldest, next := c.HoldTags(c.Instant(time.Now()), time.Minute)
			return tags, time.Duration(oldest), time.Duration(next)
		}
		got, oldest, next := tags()
		assert.Empty(t, got)
		assert.Equal(t, time.Duration(engine.Never), oldest)
		assert.Equal(t, time.Duration(engine.Never), next)

		first := Acquire(t, t.Context(), c.Lock("x"))
		semaphore := Acquire(t, t.Context(), c.Semaphore("s"))
		Sleep(30 * time.Second)
		second := Acquire(t, t.Context(), c.Lock("y"))
		got, oldest, next = tags()
		assert.Empty(t, got)
		assert.Zero(t, oldest)
		assert.Equal(t, time.Minute, next)
		Sleep(30 * time.Second)
		got, _, next = tags()
		assert.Equal(t, []string{first.ID()}, got)
		assert.Equal(t, 90*time.Second, next)
		Sleep(30 * time.Second)
		got, _, next = tags()
		assert.ElementsMatch(t, []string{first.ID(), second.ID()}, got)
		assert.Equal(t, time.Duration(engine.Never), next)
		owned := c.LeasedOwnerships(func(h *engine.Hold) bool { return h != first })
		assert.Equal(t, []*engine.Ownership{second.Ownership()}, owned)
		Release(t, first, semaphore)
		got, oldest, _ = tags()
		assert.Equal(t, []string{second.ID()}, got)
		assert.Equal(t, 30*time.Second, oldest)
		Release(t, second)
		got, _, _ = tags()
		assert.Empty(t, got)
	})
}

// The release of a nested hold begins at the moment when its limit ends it. Its count is given back
// once, so the lease of the next nested hold is shortened when that is released.
func TestReleaseAtTheLimitIsCountedOnce(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		var inner atomic.Pointer[engine.Hold]
		c := s.Client(t, "a", func(config *engine.Config) {
			lost := config.Errors.Lost
			config.Errors.Lost = func(loss engine.Loss) error { // the hold has not ended yet
				hold := inner.Swap(nil)
				if hold != nil {
					Release(t, hold)
				}
				return lost(loss)
			}
		})
		r := c.Reader("x")
		outer := Acquire(t, t.Context(), r)
		inner.Store(Acquire(t, Carry(outer), r, MaxHold(time.Second)))
		Sleep(2 * time.Second)
		require.Nil(t, inner.Load())
		Release(t, Acquire(t, Carry(outer), r, FixedLease(time.Minute)))
		assert.LessOrEqual(t, s.Lease("x", outer.ID()), DefaultTTL)
		Release(t, outer)
	})
}
