package engine

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOnlyTheFirstReleaseFreesTheLock(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		hold := acquire(t, t.Context(), c.lock("x"))
		ctx := carry(hold)
		s.script("release", fault{delay: time.Second})
		first := startRelease(t, hold)
		second := startRelease(t, hold)
		require.ErrorIs(t, second.fail(), ErrReleased)
		require.ErrorIs(t, second.err, ErrNotHeld)
		first.wait()
		require.ErrorIs(t, hold.Release(t.Context()), ErrReleased)
		require.ErrorIs(t, context.Cause(ctx), ErrReleased)
		assert.Len(t, s.sent("release", ""), 1)
		assert.Equal(t, []EventKind{EventAcquired, EventReleased}, c.kinds())
		s.requireFree(t)
	})
}

func TestReleaseWorksWithAnEndedContext(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		ctx, cancel := context.WithCancel(t.Context())
		hold := acquire(t, ctx, c.lock("x"))
		cancel()
		require.Error(t, carry(hold).Err(), "the hold's context ends with the caller's")
		require.NoError(t, hold.Release(ctx))
		s.requireFree(t)
	})
}

// Each case releases with faults. The server is free at some time, whatever they are.
func TestReleaseWithoutAnAnswerGoesOnInTheBackground(t *testing.T) {
	down, lost := fault{err: errDown}, fault{lost: true}
	for _, tt := range []struct {
		name    string
		timeout time.Duration // of commands
		faults  []fault       // of releases
		at      time.Duration // when Release returns
		free    time.Duration // when the server is free
	}{
		{"unreachable", testTimeout, []fault{down, down, down}, 0, 20 * ms},
		{"never executed", testTimeout, []fault{lost, lost}, testTimeout, 2*testTimeout + 20*ms},
		{"executed, not answered", testTimeout, []fault{{mute: true}, {mute: true}}, testTimeout, 0},
		{"executed when repeated already", testTimeout, []fault{{delay: 10 * time.Second}}, testTimeout, testTimeout},
		{"a long command timeout does not bind it", time.Minute, []fault{lost}, releaseTimeout, releaseTimeout},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				s.keepLeases()
				c := s.client(t, "a", func(config *Config) { config.CommandTimeout = tt.timeout })
				hold := acquire(t, t.Context(), c.lock("x"))
				s.script("release", tt.faults...)
				released := startRelease(t, hold)
				require.True(t, classify(released.fail()).Retry)
				assert.Equal(t, tt.at, released.at.Sub(s.start))
				require.ErrorIs(t, context.Cause(carry(hold)), ErrReleased)
				assert.Equal(t, []EventKind{EventAcquired, EventReleaseFailed}, c.kinds())
				next := start(t, func() (*Hold, error) {
					return s.client(t, "b").lock("x").Acquire(t.Context(), terms(), forever)
				})
				release(t, next.wait())
				assert.InDelta(t, max(tt.free, tt.at), next.at.Sub(s.start), float64(100*ms))
				sleep(time.Minute)
				s.requireFree(t)
				assert.Empty(t, s.sent("renew", ""))
			})
		})
	}
}

// The server does not answer. The release is repeated until it would be useless or harmful.
func TestRepeatedReleaseEnds(t *testing.T) {
	for _, tt := range []struct {
		name  string
		open  func(c *client) *Resource
		terms []func(*Terms)
		last  time.Duration // of the last repetition, about
	}{
		{"with the lease", func(c *client) *Resource { return c.lock("x") }, nil, testTTL},
		{"with a longer lease", func(c *client) *Resource { return c.lock("x") },
			[]func(*Terms){fixedLease(5 * time.Minute)}, 5 * time.Minute},
		{
			"a shared id: with the lease", func(c *client) *Resource { return c.lock("x") },
			[]func(*Terms){owner("me"), fixedLease(5 * time.Minute)}, 5 * time.Minute,
		},
		{
			"a shared id, late: with the time that others may keep its count", func(c *client) *Resource {
				return c.lock("x")
			}, []func(*Terms){owner("me"), fixedLease(5 * time.Second)}, 50*time.Second - testTimeout,
		},
		{
			"without a lease: with the memory of the acquisition", func(c *client) *Resource {
				r := c.semaphore("x")
				r.Traits.Remembered = time.Hour + 2*time.Minute
				return r
			}, nil, 2 * time.Minute,
		},
		{
			"without a lease, late: with the memory of the release", func(c *client) *Resource {
				r := c.semaphore("x")
				r.Traits.Remembered = time.Hour + time.Second
				return r
			}, nil, 50*time.Second - testTimeout,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				hold := acquire(t, t.Context(), tt.open(s.client(t, "a")), tt.terms...)
				s.onEach(func(command) fault { return fault{err: errDown} })
				require.ErrorIs(t, hold.Release(t.Context()), errDown)
				sleep(time.Hour)
				sent := s.sent("release", "")
				assert.InDelta(t, tt.last, sent[len(sent)-1], float64(1100*ms))
			})
		})
	}
}

func TestReleaseTellsALoss(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		hold := acquire(t, t.Context(), c.lock("x"))
		s.forget("x")
		require.ErrorIs(t, hold.Release(t.Context()), ErrLost)
		require.ErrorIs(t, hold.Release(t.Context()), ErrReleased)
		require.ErrorIs(t, context.Cause(carry(hold)), ErrLost)
		assert.Equal(t, []EventKind{EventAcquired, EventLost}, c.kinds())
	})
}

// A command of one hold is stuck. The release of another hold of the same lock waits for it, but not for
// ever.
func TestReleaseWhileACommandOfASiblingIsStuck(t *testing.T) {
	for _, tt := range []struct {
		name    string
		timeout time.Duration // of commands
		fault   fault         // of the command of the inner hold
		at      time.Duration // when the release of the outer hold returns
		failed  bool
	}{
		{"answered soon", testTimeout, fault{delay: time.Second}, time.Second, false},
		{"given up soon", testTimeout, fault{lost: true}, testTimeout, false},
		{"stuck for long", time.Minute, fault{delay: 20 * time.Second}, releaseTimeout, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				s.keepLeases()
				r := s.client(t, "a", func(config *Config) { config.CommandTimeout = tt.timeout }).reader("x")
				outer := acquire(t, t.Context(), r)
				inner := acquire(t, carry(outer), r)
				s.script("nest", tt.fault)
				nested := startAcquire(t, carryLost(inner), r) // has the wire lock
				released := startRelease(t, outer)
				released.end()
				assert.Equal(t, tt.at, released.at.Sub(s.start))
				assert.Equal(t, tt.failed, released.err != nil)
				if tt.failed {
					require.ErrorIs(t, released.err, errSiblingStuck)
				}
				nested.end()
				sleep(5 * time.Second)
				if nested.err == nil {
					assert.Equal(t, 2, s.holder("x", inner.ID()).count, "the background has written the count")
					release(t, nested.hold)
				}
				assert.Equal(t, 1, s.holder("x", inner.ID()).count)
				release(t, inner)
				s.requireFree(t)
			})
		})
	}
}

// The wire comes free at the instant at which the time of a release is over. Whether the release still gets
// it is left to chance. Either way its command goes out later, so its outcome is unknown.
func TestReleaseWhoseTurnComesWhenItsTimeIsOver(t *testing.T) {
	for range 20 {
		bubble(t, func(t *testing.T, s *server) {
			c := s.client(t, "a", func(config *Config) { config.CommandTimeout = releaseTimeout })
			outer := acquire(t, t.Context(), c.reader("x"))
			holds := []*Hold{outer}
			for range 3 {
				holds = append(holds, acquire(t, carry(outer), c.reader("x")))
			}
			s.onEach(func(command) fault { return fault{lost: true} })
			var releases []*call
			for _, h := range holds {
				releases = append(releases, startRelease(t, h))
			}
			for _, r := range releases {
				assert.True(t, classify(r.fail()).InDoubt, "%v", r.err)
				assert.Equal(t, releaseTimeout, r.at.Sub(s.start))
			}
			s.resetFaults()
			sleep(time.Minute)
			s.requireFree(t)
		})
	}
}

// Both holds are released at the same time. The first command sends the count that both have left.
func TestReleasesOfSiblingsAtTheSameTime(t *testing.T) {
	for _, tt := range []struct {
		name  string
		act   func(s *server)
		want  error
		fault fault
	}{
		{"freed", func(*server) {}, nil, fault{delay: time.Second}},
		{"lost", func(s *server) { s.forget("x") }, ErrLost, fault{delay: time.Second}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				r := s.client(t, "a").reader("x")
				outer := acquire(t, t.Context(), r)
				inner := acquire(t, carry(outer), r)
				third := acquire(t, carry(outer), r)
				tt.act(s)
				s.script("count", tt.fault)
				first, second, last := startRelease(t, inner), startRelease(t, outer), startRelease(t, third)
				for _, call := range []*call{first, second, last} {
					call.end()
					require.ErrorIs(t, call.err, tt.want)
				}
				assert.Len(t, s.sent("release", ""), 1)
				s.requireFree(t)
			})
		})
	}
}

func TestUnansweredReleaseOfAnInnerHoldWritesTheCountLater(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		r := s.client(t, "a").lock("x")
		outer := acquire(t, t.Context(), r)
		inner := acquire(t, carry(outer), r)
		s.script("count", fault{lost: true}, fault{err: errDown})
		require.Error(t, inner.Release(t.Context()))
		assert.Equal(t, 2, s.holder("x", outer.ID()).count)
		again := acquire(t, carry(outer), r)
		sleep(time.Second)
		assert.Equal(t, 2, s.holder("x", outer.ID()).count, "the count of now, not of then")
		release(t, again)
		assert.Equal(t, 1, s.holder("x", outer.ID()).count)
		release(t, outer)
		s.requireFree(t)
	})
}

func TestHoldsWithoutALeaseAreReleased(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		r := s.client(t, "a").semaphore("x")
		s.setPermits("x", 3)
		hold := acquire(t, t.Context(), r, permits(2))
		assert.Empty(t, hold.ID())
		s.script("release", fault{mute: true, copy: 30 * time.Second})
		require.Error(t, hold.Release(t.Context()))
		sleep(time.Minute)
		s.requireFree(t)
	})
}

// A release is sent again because its reply was lost. The server does not remember the first execution, so
// the second one finds nothing.
func TestRepeatedReleaseThatFindsNothing(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault fault
		taken bool // by force, before the release
		want  error
	}{
		{"the first one was executed", fault{twice: true}, false, nil},
		{"taken by force, sent once", fault{}, true, ErrLost},
		{"taken by force and sent twice: it looks released", fault{twice: true}, true, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				r := s.client(t, "a").lock("x")
				hold := acquire(t, t.Context(), r)
				if tt.taken {
					s.free("x")
				}
				s.script("release", tt.fault)
				if err := hold.Release(t.Context()); tt.want == nil {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, tt.want)
				}
				s.requireFree(t)
			})
		})
	}
}

// A process that was stopped finds out only when it goes on that its lease is over. Then a release that
// finds nothing has lost the lock, even if it was sent twice.
func TestRepeatedReleaseAfterTheLeaseIsALoss(t *testing.T) {
	repeated := Released{Lost: true, InDoubt: true}
	bubble(t, func(t *testing.T, s *server) {
		hold := acquire(t, t.Context(), s.client(t, "a").lock("x"), func(terms *Terms) { terms.Renew = false })
		o := hold.Ownership()
		sleep(testTTL - ms)
		assert.False(t, o.isLoss(repeated, time.Now()))
		sleep(2 * ms)
		assert.True(t, o.isLoss(repeated, time.Now()))
	})
}

// The successor of a hand-off that was sent twice is not in the second reply, so it asks by itself.
func TestRepeatedHandOffReachesTheSuccessor(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		r := s.client(t, "a").lock("x")
		holder := acquire(t, t.Context(), r)
		successor := startAcquire(t, t.Context(), r)
		s.script("handoff", fault{twice: true})
		release(t, holder)
		hold := successor.wait()
		assert.Equal(t, []string{hold.ID()}, s.ids("x"))
		assert.Equal(t, s.start, successor.at)
		assert.True(t, hold.Ownership().InDoubt, "its release is remembered: a copy may still arrive")
		release(t, hold)
		s.requireFree(t)
	})
}

// The count of a nested acquisition that was not answered is still to be written when the outer hold is
// released. Whichever of the two commands frees the lock, it is no loss.
func TestReleaseBesideARepetitionThatFrees(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault fault // of the first of the two commands
	}{
		{"answered", fault{}},
		{"executed, reply lost", fault{mute: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for i := range 20 { // either command may be the first
				bubble(t, func(t *testing.T, s *server) {
					hold := acquire(t, t.Context(), s.client(t, "a").lock("x"))
					o := hold.Ownership()
					require.True(t, o.wire.TryLock()) // by a command under way
					repeat := func() (*Hold, error) { o.writeCountLater(t.Context(), testTimeout); return nil, nil }
					if i%2 == 0 {
						start(t, repeat)
					}
					released := startRelease(t, hold)
					if i%2 == 1 {
						start(t, repeat)
					}
					s.script("release", tt.fault)
					o.wire.Unlock()
					released.end()
					require.NotErrorIs(t, released.err, ErrLost)
					sleep(time.Minute)
					s.requireFree(t)
				})
			}
		})
	}
}
