package engine

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const testLinger = 500 * ms

func TestLingeringLockIsAcquiredWithoutACommand(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		r := c.lock("x")
		first := acquire(t, t.Context(), r, lingering(testLinger))
		last, ctx := first, carry(first)
		release(t, first)
		commands := len(s.sent("", ""))
		for range 20 {
			sleep(testLinger - ms)
			assert.ErrorIs(t, context.Cause(ctx), ErrReleased)
			assert.Equal(t, []string{first.ID()}, s.ids("x"))
			hold := acquire(t, t.Context(), r, lingering(testLinger))
			assert.Equal(t, first.ID(), hold.ID())
			assert.Equal(t, last.Token()+1, hold.Token())
			assert.Equal(t, 1, hold.Depth())
			assert.False(t, hold.ValidUntil().After(time.Now().Add(testTTL)))
			assert.NoError(t, carry(hold).Err())
			assert.ErrorIs(t, last.Release(t.Context()), ErrReleased)
			nested := acquire(t, carry(hold), r, lingering(testLinger))
			assert.Equal(t, hold.Token(), nested.Token())
			release(t, nested)
			last, ctx = hold, carry(hold)
			release(t, hold)
		}
		assert.Len(t, s.sent("acquire", ""), 1)
		assert.Empty(t, s.sent("release", ""))
		assert.Equal(t, commands+2*20, len(s.sent("", ""))-len(s.sent("renew", "")), "two for each nested hold")
		sleep(testLinger - ms)
		assert.NotEmpty(t, s.ids("x"))
		sleep(ms)
		s.requireFree(t)
		assert.Len(t, s.sent("release", ""), 1)
		began, ended := 0, 0
		for _, kind := range c.kinds(EventRenewed) {
			switch kind {
			case EventAcquired, EventNested:
				began++
			case EventReleased:
				ended++
			default:
				assert.Fail(t, "an event of a lock that lingers", "%v", kind)
			}
		}
		assert.Equal(t, 41, began)
		assert.Equal(t, began, ended)
		again := acquire(t, t.Context(), r)
		assert.Greater(t, again.Token(), last.Token())
		release(t, again)
	})
}

func TestLingeringLockIsRenewed(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		r := c.lock("x")
		release(t, acquire(t, t.Context(), r, lingering(time.Hour)))
		sleep(10 * testTTL)
		hold := acquire(t, t.Context(), r, lingering(time.Hour))
		assert.Len(t, s.sent("acquire", ""), 1)
		assert.Greater(t, time.Until(hold.ValidUntil()), testTTL/2)
		assert.Empty(t, c.kinds(EventAcquired, EventReleased), "nobody holds, so there is no event")
		release(t, hold)
	})
}

// Each case releases a hold, or acquires the lock that lingers.
func TestLockDoesNotLinger(t *testing.T) {
	limit := lingering(testLinger)
	for _, tt := range []struct {
		name   string
		holder []func(*Terms) // beside its linger
		config func(*Config)
		act    func(t *testing.T, s *server, holder *Hold)
	}{
		{name: "with a fixed lease", holder: []func(*Terms){fixedLease(testTTL)}},
		{name: "with a limit of the hold", holder: []func(*Terms){maxHold(testTTL)}},
		{name: "with a shared id", holder: []func(*Terms){owner("me")}},
		{name: "where replicas must confirm", config: func(c *Config) { c.NeedsReplicas = true }},
		{name: "where the client does not listen", config: func(c *Config) {
			c.CanLinger = func(context.Context) bool { return false }
		}},
		{name: "that was extended", act: func(t *testing.T, _ *server, h *Hold) {
			require.NoError(t, h.Extend(t.Context(), time.Hour, nil))
		}},
		{name: "that another client has asked for", act: func(t *testing.T, s *server, h *Hold) {
			other := start(t, func() (*Hold, error) {
				return s.client(t, "b").lock("x").Acquire(t.Context(), terms(), 100*ms)
			})
			_ = other.fail()
		}},
		{name: "that the server has not confirmed for half a TTL", act: func(_ *testing.T, s *server, _ *Hold) {
			s.onEach(func(c command) fault { return fault{lost: c.op == "renew"} })
			sleep(testTTL/2 + ms)
			s.resetFaults()
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				if tt.config == nil {
					tt.config = func(*Config) {}
				}
				r := s.client(t, "a", tt.config).lock("x")
				hold := acquire(t, t.Context(), r, append([]func(*Terms){limit}, tt.holder...)...)
				if tt.act != nil {
					tt.act(t, s, hold)
				}
				release(t, hold)
				s.requireFree(t)
			})
		})
	}
}

// While a lock lingers, its own client acquires it in another way.
func TestLocalRequestsEndLingering(t *testing.T) {
	for _, tt := range []struct {
		name    string
		options []func(*Terms)
	}{
		{"without linger", nil},
		{"with another time", []func(*Terms){lingering(time.Second)}},
		{"with another TTL", []func(*Terms){lingering(testLinger), ttl(7 * time.Second)}},
		{"with a fixed lease", []func(*Terms){lingering(testLinger), fixedLease(testTTL)}},
		{"with a shared id", []func(*Terms){lingering(testLinger), owner("me")}},
		{"as a part of a cohort", []func(*Terms){lingering(testLinger), inCohort(testCohort)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				r := s.client(t, "a").lock("x")
				first := acquire(t, t.Context(), r, lingering(testLinger))
				release(t, first)
				hold, err := r.Acquire(t.Context(), terms(tt.options...), noWait)
				require.NoError(t, err, "a single try too")
				assert.NotEqual(t, first.ID(), hold.ID())
				assert.Zero(t, s.now())
				release(t, hold)
				sleep(2 * time.Second)
				s.requireFree(t)
			})
		})
	}
}

// The lock is released while an attempt of the same client is under way, which Redis has refused already.
func TestWaiterThatWasRefusedEndsLingering(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		r := s.client(t, "a").lock("x")
		first := acquire(t, t.Context(), r, lingering(time.Hour))
		s.script("acquire", fault{reply: 10 * ms})
		waiter := startAcquire(t, t.Context(), r, lingering(time.Hour))
		release(t, first)
		release(t, waiter.wait())
		assert.Equal(t, 10*ms, s.now())
		assert.Len(t, s.ids("x"), 1, "it lingers again")
	})
}

func TestOtherClientAsksForALingeringLock(t *testing.T) {
	for _, tt := range []struct {
		name string
		act  func(s *server, a *client)
		at   time.Duration
	}{
		{"at once", func(*server, *client) {}, 0},
		{"12 ms away", func(s *server, a *client) { s.setAway(a, 12*ms) }, 12 * ms},
		{"the message is lost: its time ends", func(s *server, a *client) { s.deaf = a }, testLinger},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				a := s.client(t, "a")
				first := acquire(t, t.Context(), a.lock("x"), lingering(testLinger))
				release(t, first)
				tt.act(s, a)
				b := s.client(t, "b").lock("x")
				_, err := b.Acquire(t.Context(), terms(), noWait)
				require.ErrorIs(t, err, ErrNotAcquired)
				assert.Empty(t, s.sent("ask", ""), "a single try does not ask")
				hold := startAcquire(t, t.Context(), b).wait()
				assert.Equal(t, tt.at, s.now())
				release(t, hold)
				sleep(time.Second)
				s.requireFree(t)
				assert.Empty(t, a.kinds(EventAcquired, EventReleased))
			})
		})
	}
}

// The holder's client was asked while the lock was in use.
func TestReleaseOfALockThatWasAskedForFreesIt(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		first := acquire(t, t.Context(), s.client(t, "a").lock("x"), lingering(testLinger))
		other := startAcquire(t, t.Context(), s.client(t, "b").lock("x"))
		release(t, first)
		release(t, other.wait())
		assert.Zero(t, s.now())
		s.requireFree(t)
	})
}

// A loss ends lingering, and nobody is told.
func TestLossEndsLingering(t *testing.T) {
	for _, foundBy := range []string{"a renewal", "the end of its time", "the next holder"} {
		t.Run(foundBy, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				c := s.client(t, "a")
				r := c.lock("x")
				d := map[string]time.Duration{"the end of its time": time.Second}[foundBy]
				limit := lingering(max(d, testTTL))
				if d > 0 {
					limit = lingering(d)
				}
				first := acquire(t, t.Context(), r, limit)
				release(t, first)
				s.forget("x")
				switch foundBy {
				case "a renewal":
					sleep(testTTL / 2)
				case "the end of its time":
					sleep(2 * time.Second)
				case "the next holder":
					hold := acquire(t, t.Context(), r, limit)
					assert.ErrorIs(t, hold.Check(t.Context()), ErrLost)
					_ = hold.Release(t.Context())
					assert.Equal(t, []EventKind{EventAcquired, EventLost}, c.kinds()[2:])
					return
				}
				assert.Equal(t, []EventKind{EventAcquired, EventReleased}, c.kinds())
				hold := acquire(t, t.Context(), r, limit)
				assert.NotEqual(t, first.ID(), hold.ID())
				release(t, hold)
			})
		})
	}
}

func TestCloseFreesLingeringLocks(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault fault
		took  time.Duration
		free  bool
	}{
		{"at once", fault{}, 0, true},
		{"it waits for the release", fault{reply: 100 * ms}, 100 * ms, true},
		{"the server is silent", fault{lost: true}, testTimeout, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				c := s.client(t, "a")
				release(t, acquire(t, t.Context(), c.lock("x"), lingering(time.Hour)))
				release(t, acquire(t, t.Context(), c.lock("y"), lingering(ms)))
				sleep(2 * ms)
				began := time.Now()
				s.onEach(func(command) fault { return tt.fault })
				ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
				defer cancel()
				require.NoError(t, c.close(ctx))
				assert.LessOrEqual(t, time.Since(began), tt.took)
				if tt.free {
					s.requireFree(t)
				}
				synctest.Wait()
			})
		})
	}
}

// A process that dies while a lock lingers leaves it to its lease.
func TestLingeringLockOfADeadClientEndsWithItsLease(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		a := s.client(t, "a")
		release(t, acquire(t, t.Context(), a.lock("x"), lingering(time.Hour), ttl(2*time.Second)))
		s.onEach(func(cmd command) fault { return fault{lost: cmd.client == "a"} })
		s.deaf = a
		other := startAcquire(t, t.Context(), s.client(t, "b").lock("x"))
		release(t, other.wait())
		assert.LessOrEqual(t, s.now(), 2*time.Second+ms)
		s.resetFaults()
	})
}

// Cohort and linger together: local waiters pass the lock on, and the last release keeps it.
func TestCohortThatLingers(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		r := s.client(t, "a").lock("x")
		both := func(t *Terms) { t.Cohort, t.Linger = testCohort, testLinger }
		first := acquire(t, t.Context(), r, both)
		waiter := startAcquire(t, t.Context(), r, both)
		commands := len(s.sent("", ""))
		release(t, first)
		release(t, waiter.wait())
		sleep(100 * ms)
		hold := acquire(t, t.Context(), r, both)
		assert.Equal(t, first.ID(), hold.ID())
		assert.Len(t, s.sent("", ""), commands)
		release(t, hold)
		sleep(time.Second)
		s.requireFree(t)
	})
}
