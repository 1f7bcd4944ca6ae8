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

// testMargin is the safety margin of a lease of testTTL.
const testMargin = testTTL/100 + 2*time.Millisecond

func TestHoldIsRenewedUntilItIsReleased(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		hold, other := acquire(t, t.Context(), c.lock("x")), acquire(t, t.Context(), c.lock("y"))
		sleep(10 * time.Minute)
		assert.NoError(t, carry(hold).Err())
		assert.Equal(t, []string{hold.ID()}, s.ids("x"))
		assert.Len(t, s.sent("renew", ""), 60, "one command for both, three in a TTL")
		assert.Equal(t, testTTL-testMargin, time.Until(hold.ValidUntil()))
		release(t, hold)
		release(t, other)
		renewals := len(s.sent("renew", ""))
		sleep(10 * time.Minute)
		assert.Len(t, s.sent("renew", ""), renewals)
	})
}

// Each case is the life of one hold whose caller does nothing.
func TestHoldIsLost(t *testing.T) {
	for _, tt := range []struct {
		name   string
		terms  []func(*Terms)
		act    func(s *server) // runs after a second
		at     time.Duration   // when the context ends; 0: not within an hour
		reason LossReason
		silent time.Duration
		renews bool
		failed bool // a renewal failed
	}{
		{name: "renewed: never", renews: true},
		{name: "a fixed lease ends", terms: []func(*Terms){fixedLease(testTTL)}, at: testTTL - testMargin, reason: LossLimit},
		{
			name: "a short maximum hold time", terms: []func(*Terms){maxHold(testTTL)},
			at: testTTL - testMargin, reason: LossLimit, renews: true,
		},
		{
			name: "a long maximum hold time", terms: []func(*Terms){maxHold(10 * time.Minute)},
			at: 10*time.Minute - (6*time.Second + 2*time.Millisecond), reason: LossLimit, renews: true,
		},
		{
			name: "the server does not answer", at: testTTL - testMargin, renews: true, failed: true,
			reason: LossExpired, silent: testTTL - testMargin,
			act: func(s *server) { s.onEach(func(command) fault { return fault{mute: true} }) },
		},
		{
			name: "the server is unreachable", at: testTTL - testMargin, renews: true, failed: true,
			reason: LossExpired, silent: testTTL - testMargin,
			act: func(s *server) { s.onEach(func(command) fault { return fault{err: errDown} }) },
		},
		{
			name: "the server has forgotten it", at: 10 * time.Second, reason: LossGone, renews: true,
			act: func(s *server) { s.forget("x") },
		},
		{
			name: "another has it", at: 10 * time.Second, reason: LossGone, renews: true,
			act: func(s *server) { s.forget("x"); s.seize("x", "other", 0) },
		},
		{
			name: "unreachable for a while: never", renews: true, failed: true,
			act: func(s *server) {
				s.onEach(func(command) fault { return fault{err: errDown} })
				time.AfterFunc(25*time.Second, s.resetFaults)
			},
		},
		{
			name: "slow answers: never", renews: true,
			act: func(s *server) { s.onEach(func(command) fault { return fault{reply: 2 * time.Second} }) },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				c := s.client(t, "a")
				hold := acquire(t, t.Context(), c.lock("x"), tt.terms...)
				ctx := carry(hold)
				sleep(time.Second)
				if tt.act != nil {
					tt.act(s)
				}
				select {
				case <-ctx.Done():
					assert.Equal(t, tt.at, s.now())
				case <-time.After(time.Hour):
					assert.Zero(t, tt.at, "it is not lost")
				}
				sleep(0)
				assert.Equal(t, tt.renews, len(s.sent("renew", "")) > 0)
				want := []EventKind{EventAcquired}
				if tt.failed {
					assert.NotZero(t, c.event(t, EventRenewFailed))
				}
				s.resetFaults()
				err := hold.Release(t.Context())
				if tt.at == 0 {
					require.NoError(t, err)
					want = append(want, EventReleased)
				} else {
					require.ErrorIs(t, err, ErrLost)
					loss := lossOf(t, context.Cause(ctx))
					assert.Equal(t, Loss{tt.reason, hold.r, hold.ID(), tt.silent, nil}, loss)
					assert.Equal(t, context.Cause(ctx), err)
					assert.Equal(t, err, c.event(t, EventLost).Err)
					require.ErrorIs(t, hold.Release(t.Context()), ErrReleased)
					assert.Equal(t, tt.at, c.event(t, EventLost).Held)
					want = append(want, EventLost)
				}
				assert.Equal(t, want, c.kinds(EventRenewed, EventRenewFailed), "a loss is told once")
			})
		})
	}
}

func TestServerNeverKeepsALockBeyondItsMaximumHoldTime(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		hold := acquire(t, t.Context(), s.client(t, "a").lock("x"), maxHold(2*time.Minute))
		for range 119 {
			assert.LessOrEqual(t, s.now()+s.lease("x", hold.ID()), 2*time.Minute)
			sleep(time.Second)
		}
		assert.True(t, hold.isLost())
		sleep(time.Second)
		s.requireFree(t)
	})
}

// A renewal is executed after the loss, and the server keeps the lock for another TTL.
func TestReleaseOfALostHoldDeletesWhatALateRenewalKept(t *testing.T) {
	for _, tt := range []struct {
		name  string
		terms []func(*Terms)
	}{
		{"an id of its own", nil},
		{"a shared id", []func(*Terms){owner("me")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				hold := acquire(t, t.Context(), s.client(t, "a").lock("x"), tt.terms...)
				s.onEach(func(cmd command) fault {
					if cmd.op == "renew" {
						return fault{delay: testTTL - 10*time.Second - ms} // just before the lease ends
					}
					return fault{}
				})
				<-carry(hold).Done()
				sleep(5 * time.Second)
				assert.Positive(t, s.lease("x", hold.ID()), "it was extended")
				require.ErrorIs(t, hold.Release(t.Context()), ErrLost)
				sleep(time.Second)
				assert.Zero(t, s.lease("x", hold.ID()))
				sleep(time.Minute)
				s.requireFree(t)
			})
		})
	}
}

func TestExtend(t *testing.T) {
	const long = 5 * time.Minute
	longMargin := long/100 + 2*time.Millisecond
	for _, tt := range []struct {
		name  string
		terms []func(*Terms)
		d     time.Duration
		valid time.Duration // ValidUntil, after the extension at 10 s
		lease time.Duration // on the server
		lost  time.Duration // when the hold is lost; 0: not within an hour
	}{
		{"a fixed lease", []func(*Terms){fixedLease(testTTL)}, long, 10*time.Second + long - longMargin, long,
			10*time.Second + long - longMargin},
		{"never shorter", []func(*Terms){fixedLease(testTTL)}, time.Second, testTTL - testMargin, 20 * time.Second,
			testTTL - testMargin},
		{"a renewed hold", nil, long, 10*time.Second + long - testMargin, long, 0},
		{"the limit moves", []func(*Terms){maxHold(time.Minute)}, long, 10*time.Second + long - longMargin, long,
			10*time.Second + long - longMargin},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				hold := acquire(t, t.Context(), s.client(t, "a").lock("x"), tt.terms...)
				sleep(10 * time.Second)
				require.NoError(t, hold.Extend(t.Context(), tt.d, nil))
				assert.InDelta(t, tt.valid, hold.ValidUntil().Sub(s.start), float64(3*time.Second))
				assert.Equal(t, max(tt.lease, s.lease("x", hold.ID())), s.lease("x", hold.ID()))
				if tt.lost > 0 {
					<-carry(hold).Done()
					assert.Equal(t, tt.lost, s.now())
					require.ErrorIs(t, hold.Extend(t.Context(), long, nil), ErrLost)
					_ = hold.Release(t.Context())
				} else {
					sleep(time.Hour)
					release(t, hold)
				}
				sleep(0)
				s.requireFree(t)
			})
		})
	}
}

// Each case calls Check and Extend.
func TestCheckAndExtendTellWhatEndedTheHold(t *testing.T) {
	invalid := errors.New("not positive")
	for _, tt := range []struct {
		name   string
		act    func(t *testing.T, s *server, c *client, h *Hold)
		check  error
		extend error // with an invalid duration
	}{
		{"live", func(*testing.T, *server, *client, *Hold) {}, nil, invalid},
		{"released", func(t *testing.T, _ *server, _ *client, h *Hold) { release(t, h) }, ErrReleased, ErrReleased},
		{"detached", func(_ *testing.T, _ *server, _ *client, h *Hold) { h.Detach() }, ErrReleased, ErrReleased},
		{"lost, not known yet", func(_ *testing.T, s *server, _ *client, _ *Hold) { s.forget("x") }, ErrLost, ErrLost},
		{"lost", func(_ *testing.T, s *server, _ *client, _ *Hold) { s.forget("x"); sleep(time.Minute) }, ErrLost, ErrLost},
		{"unreachable", func(_ *testing.T, s *server, _ *client, _ *Hold) { s.script("check", fault{err: errDown}) },
			errDown, invalid},
		{
			"its release is under way", func(t *testing.T, s *server, _ *client, h *Hold) {
				s.script("release", fault{reply: time.Second})
				startRelease(t, h)
			}, ErrReleased, ErrReleased,
		},
		{
			"the client closed", func(_ *testing.T, _ *server, c *client, _ *Hold) {
				ctx, cancel := context.WithCancel(context.Background())
				cancel()
				_ = c.close(ctx)
			}, ErrClosed, ErrClosed,
		},
		{
			"released, and the client closed", func(t *testing.T, _ *server, c *client, h *Hold) {
				release(t, h)
				require.NoError(t, c.close(t.Context()))
			}, ErrReleased, ErrReleased,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				c := s.client(t, "a")
				hold := acquire(t, t.Context(), c.lock("x"))
				tt.act(t, s, c, hold)
				require.ErrorIs(t, hold.Check(t.Context()), tt.check)
				require.ErrorIs(t, hold.Extend(t.Context(), 0, invalid), tt.extend)
				assert.Empty(t, s.sent("extend", ""))
				ctx, cancel := context.WithCancelCause(t.Context())
				cancel(errCause)
				if tt.check == nil {
					assert.Equal(t, errCause, hold.Check(ctx), "nothing is sent")
				}
				_ = hold.Release(t.Context())
			})
		})
	}
}

func TestHoldWithoutALeaseCannotBeCheckedOrLost(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		hold := acquire(t, t.Context(), s.client(t, "a").semaphore("x"))
		require.ErrorIs(t, hold.Check(t.Context()), ErrUnsupported)
		require.ErrorIs(t, hold.Extend(t.Context(), time.Second, nil), ErrUnsupported)
		assert.Zero(t, hold.ValidUntil())
		assert.True(t, hold.Ownership().IsRemembered())
		sleep(23 * time.Hour)
		assert.False(t, hold.Ownership().IsRemembered(), "an hour in reserve")
		assert.NoError(t, carry(hold).Err())
		assert.Empty(t, s.sent("renew", ""))
		release(t, hold)
		s.requireFree(t)
	})
}

// The server grants 5 s at first. The first renewal asks for the full TTL.
func TestShortFirstLeaseIsRenewedInTime(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		r := s.client(t, "a").lock("x")
		r.Driver.(*driver).lease = 5 * time.Second
		hold := acquire(t, t.Context(), r)
		assert.Equal(t, 5*time.Second-52*ms, hold.ValidUntil().Sub(s.start))
		sleep(5*time.Second/3 + 10*ms)
		assert.Len(t, s.sent("renew", ""), 2, "once for the short lease, and at once for the full one")
		assert.Greater(t, s.lease("x", hold.ID()), testTTL-time.Second)
		sleep(time.Hour)
		release(t, hold)
		s.requireFree(t)
	})
}

// A hold is asked about every third of its TTL, whatever lease it was promised beyond that.
func TestRenewalsGoOnWhateverIsPromised(t *testing.T) {
	const short = 6 * time.Second
	extend := func(t *testing.T, _ *client, hold *Hold) {
		require.NoError(t, hold.Extend(t.Context(), time.Hour, nil))
	}
	for _, tt := range []struct {
		name  string
		terms []func(*Terms)
		grant time.Duration // of the first lease; 0: as asked for
		act   func(t *testing.T, c *client, hold *Hold)
		every time.Duration
	}{
		{name: "extended", act: extend, every: testTTL / 3},
		{
			name: "extended beyond its maximum hold time", terms: []func(*Terms){maxHold(time.Minute)},
			act: extend, every: testTTL / 3,
		},
		{name: "a short first lease, extended", grant: short, act: extend, every: short / 3},
		{
			name: "a nested hold with a long lease", every: testTTL / 3,
			act: func(t *testing.T, c *client, hold *Hold) {
				_ = acquire(t, carry(hold), c.lock("x"), fixedLease(time.Hour))
			},
		},
		{
			name: "a nested hold with a long TTL", every: time.Hour / 3 / 128, // the largest of these below testTTL/3
			act: func(t *testing.T, c *client, hold *Hold) {
				_ = acquire(t, carry(hold), c.lock("x"), ttl(time.Hour))
			},
		},
		{
			name: "an extended nested hold that was released", every: testTTL / 3,
			act: func(t *testing.T, c *client, hold *Hold) {
				inner := acquire(t, carry(hold), c.lock("x"))
				require.NoError(t, inner.Extend(t.Context(), time.Hour, nil))
				release(t, inner)
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				c := s.client(t, "a")
				r := c.lock("x")
				r.Driver.(*driver).lease = tt.grant
				hold := acquire(t, t.Context(), r, tt.terms...)
				tt.act(t, c, hold)
				s.forget("x")
				select {
				case <-carry(hold).Done():
				case <-time.After(2 * time.Hour):
				}
				assert.Equal(t, tt.every, s.now())
				assert.Equal(t, LossGone, lossOf(t, context.Cause(carry(hold))).Reason)
			})
		})
	}
}

func TestLossIsToldToAllNestedHolds(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		r := c.reader("x")
		outer := acquire(t, t.Context(), r)
		inner := acquire(t, carry(outer), r)
		released := acquire(t, carry(outer), r)
		release(t, released)
		s.forget("x")
		require.ErrorIs(t, inner.Release(t.Context()), ErrLost)
		require.ErrorIs(t, context.Cause(carry(outer)), ErrLost)
		require.ErrorIs(t, outer.Release(t.Context()), ErrLost)
		assert.Equal(t, []EventKind{
			EventAcquired, EventNested, EventNested, EventReleased, EventLost, EventLost,
		}, c.kinds())
	})
}

func TestHoldThatJoinsALostOwnershipIsLost(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		r := s.client(t, "a").reader("x")
		outer := acquire(t, t.Context(), r)
		s.script("nest", fault{reply: time.Second})
		s.script("check", fault{delay: 500 * ms})
		nested := startAcquire(t, carryLost(outer), r)
		s.forget("x")
		require.ErrorIs(t, outer.Check(t.Context()), ErrLost)
		hold := nested.wait()
		sleep(0)
		require.ErrorIs(t, context.Cause(carry(hold)), ErrLost)
		_ = hold.Release(t.Context())
		_ = outer.Release(t.Context())
	})
}

// Nested holds share a lease. Each has its own limit.
func TestNestedHoldsHaveLimitsOfTheirOwn(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		r := s.client(t, "a").reader("x")
		outer := acquire(t, t.Context(), r)
		inner := acquire(t, carry(outer), r, fixedLease(12*time.Second))
		sleep(12 * time.Second)
		require.ErrorIs(t, context.Cause(carry(inner)), ErrLost)
		assert.NoError(t, carry(outer).Err())
		require.ErrorIs(t, inner.Release(t.Context()), ErrLost)
		sleep(time.Minute)
		assert.NoError(t, carry(outer).Err())
		release(t, outer)
		s.requireFree(t)

		outer = acquire(t, t.Context(), r, fixedLease(12*time.Second))
		inner = acquire(t, carryLost(outer), r)
		sleep(time.Minute)
		require.ErrorIs(t, context.Cause(carry(outer)), ErrLost)
		assert.NoError(t, inner.Context(nil).Err())
		require.ErrorIs(t, outer.Release(t.Context()), ErrLost)
		sleep(time.Minute)
		assert.Equal(t, []string{inner.ID()}, s.ids("x"), "the release of a lapsed hold does not free the others")
		release(t, inner)
		s.requireFree(t)
	})
}

// A release shortens the lease to what the holds that are left were promised.
func TestReleaseShortensTheLease(t *testing.T) {
	for _, tt := range []struct {
		name         string
		outer, inner []func(*Terms)
		act          func(t *testing.T, outer, inner *Hold)
		want         time.Duration // the lease after the inner hold's release, at 1 s
	}{
		{"to the rest of a fixed lease", []func(*Terms){fixedLease(20 * time.Second)}, nil, nil, 19 * time.Second},
		{"to the TTL of a renewed hold", []func(*Terms){ttl(10 * time.Second)}, nil, nil, 10 * time.Second},
		{"to a maximum hold time", []func(*Terms){ttl(10 * time.Second), maxHold(5 * time.Second)}, nil, nil,
			4 * time.Second},
		{
			"to what an extension got", []func(*Terms){fixedLease(5 * time.Second)}, nil,
			func(t *testing.T, outer, _ *Hold) { require.NoError(t, outer.Extend(t.Context(), time.Minute, nil)) },
			time.Minute,
		},
		{
			"not below a detached hold's", []func(*Terms){fixedLease(5 * time.Second)}, nil,
			func(_ *testing.T, outer, _ *Hold) { outer.Detach() }, testTTL - time.Second,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				r := s.client(t, "a").reader("x")
				outer := acquire(t, t.Context(), r, tt.outer...)
				inner := acquire(t, carryLost(outer), r, tt.inner...)
				sleep(time.Second)
				if tt.act != nil {
					tt.act(t, outer, inner)
				}
				release(t, inner)
				assert.InDelta(t, tt.want, s.lease("x", outer.ID()), float64(60*ms))
				_ = outer.Release(t.Context())
				sleep(time.Minute)
				s.requireFree(t)
			})
		})
	}
}

// All that is left is a hold whose limit has come: the release frees the lock.
func TestReleaseFreesWhatOnlyLapsedHoldsAreLeftOf(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		r := s.client(t, "a").reader("x")
		outer := acquire(t, t.Context(), r, fixedLease(5*time.Second))
		inner := acquire(t, carryLost(outer), r)
		sleep(10 * time.Second)
		release(t, inner)
		s.requireFree(t)
		require.ErrorIs(t, outer.Release(t.Context()), ErrLost)
	})
}

// A release that shortens the lease was not answered. A copy of it must not undo a later extension.
func TestExtendWaitsForAShorteningRelease(t *testing.T) {
	for _, tt := range []struct {
		name   string
		faults []fault       // of the release, and of its repetitions
		at     time.Duration // when Extend returns
		failed bool
	}{
		{"answered late", []fault{{delay: time.Second}}, time.Second, false},
		{"not answered; executed later", []fault{{delay: 10 * time.Second}}, testTimeout, false},
		{"unreachable", []fault{{err: errDown}}, 0, false},
		{
			"not answered; unreachable since",
			append([]fault{{delay: 10 * time.Second}}, slices.Repeat([]fault{{err: errDown}}, 20)...), testTimeout, true,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				r := s.client(t, "a").reader("x")
				outer := acquire(t, t.Context(), r, fixedLease(20*time.Second))
				inner := acquire(t, carry(outer), r)
				s.script("count", tt.faults...)
				released := startRelease(t, inner)
				extended := start(t, func() (*Hold, error) { return nil, outer.Extend(t.Context(), time.Minute, nil) })
				extended.end()
				if tt.failed {
					require.ErrorIs(t, extended.err, errDown, "the old release may still shorten the lease")
				} else {
					require.NoError(t, extended.err)
				}
				assert.Equal(t, tt.at, extended.at.Sub(s.start))
				released.end()
				sleep(15 * time.Second)
				if !tt.failed {
					assert.Greater(t, s.lease("x", outer.ID()), 30*time.Second)
				}
				_ = outer.Release(t.Context())
				sleep(time.Minute)
				s.requireFree(t)
			})
		})
	}
}

func TestVerifyEndsAHoldThatTheServerDoesNotKnow(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		hold := acquire(t, t.Context(), c.lock("x"))
		require.NoError(t, hold.Ownership().Verify(t.Context()))
		s.script("check", fault{err: errDown})
		require.ErrorIs(t, hold.Ownership().Verify(t.Context()), errDown)
		s.forget("x")
		require.ErrorIs(t, hold.Ownership().Verify(t.Context()), ErrLost)
		sleep(0)
		assert.Equal(t, []EventKind{EventAcquired, EventLost}, c.kinds())
		_ = hold.Release(t.Context())
	})
}

func TestDetachLeavesTheLockToItsLease(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		hold := acquire(t, t.Context(), c.lock("x"))
		assert.True(t, hold.Detach())
		assert.False(t, hold.Detach())
		require.ErrorIs(t, hold.Release(t.Context()), ErrReleased)
		require.ErrorIs(t, context.Cause(carry(hold)), ErrReleased)
		assert.Len(t, s.log, 1)
		assert.Equal(t, []string{hold.ID()}, s.ids("x"))
		sleep(testTTL)
		s.requireFree(t)
		assert.Equal(t, []EventKind{EventAcquired, EventDetached}, c.kinds())
	})
}

func TestForgottenHoldIsNotRenewed(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		hold := acquire(t, t.Context(), c.lock("x"))
		hold.Forget()
		hold.Forget()
		sleep(testTTL)
		s.requireFree(t)
		assert.Equal(t, []EventKind{EventAcquired, EventLeaked}, c.kinds())
		assert.Empty(t, s.sent("renew", ""))

		released := acquire(t, t.Context(), c.lock("x"))
		release(t, released)
		released.Forget()
		assert.Equal(t, []EventKind{EventAcquired, EventReleased}, c.kinds()[2:])
	})
}

func TestAdoptedHoldIsRenewedAndReleased(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		r := c.lock("x")
		q := r.NewRequest(terms())
		s.seize("x", q.ID, testTTL) // as the driver has put it there
		hold, err := r.Adopted(t.Context(), q, time.Now())
		require.NoError(t, err)
		sleep(time.Hour)
		assert.Equal(t, []string{hold.ID()}, s.ids("x"))
		release(t, hold)
		s.requireFree(t)
		require.NoError(t, c.close(t.Context()))
		_, err = r.Adopted(t.Context(), q, time.Now())
		require.ErrorIs(t, err, ErrClosed)
	})
}

func TestHoldTagsCountsHoldsThatAreOldEnough(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		c.holds.tagOf = func(id string) string { return id }
		tags := func() ([]string, time.Duration, time.Duration) {
			tags, oldest, next := c.HoldTags(c.Instant(time.Now()), time.Minute)
			return tags, time.Duration(oldest), time.Duration(next)
		}
		got, oldest, next := tags()
		assert.Empty(t, got)
		assert.Equal(t, time.Duration(Never), oldest)
		assert.Equal(t, time.Duration(Never), next)

		first := acquire(t, t.Context(), c.lock("x"))
		semaphore := acquire(t, t.Context(), c.semaphore("s"))
		sleep(30 * time.Second)
		second := acquire(t, t.Context(), c.lock("y"))
		got, oldest, next = tags()
		assert.Empty(t, got)
		assert.Zero(t, oldest)
		assert.Equal(t, time.Minute, next)
		sleep(30 * time.Second)
		got, _, next = tags()
		assert.Equal(t, []string{first.ID()}, got)
		assert.Equal(t, 90*time.Second, next)
		sleep(30 * time.Second)
		got, _, next = tags()
		assert.ElementsMatch(t, []string{first.ID(), second.ID()}, got)
		assert.Equal(t, time.Duration(Never), next)
		owned := c.LeasedOwnerships(func(h *Hold) bool { return h != first })
		assert.Equal(t, []*Ownership{second.Ownership()}, owned)
		release(t, first)
		release(t, semaphore)
		got, oldest, _ = tags()
		assert.Equal(t, []string{second.ID()}, got)
		assert.Equal(t, 30*time.Second, oldest)
		release(t, second)
		got, _, _ = tags()
		assert.Empty(t, got)
	})
}
