package engine

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const testCohort = time.Second

func TestCohortPassesTheLockOnWithoutACommand(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		added := 0
		c := s.client(t, "a", func(c *Config) { c.HoldAdded = func() { added++ } })
		r := c.lock("x")
		first := acquire(t, t.Context(), r, inCohort(testCohort))
		var waiters []*call
		for range 3 {
			waiters = append(waiters, startAcquire(t, t.Context(), r, inCohort(testCohort)))
		}
		commands := len(s.sent("", ""))

		last := first
		for _, w := range waiters {
			sleep(10 * ms)
			assert.False(t, w.returned())
			ctx, until := carry(last), last.ValidUntil()
			release(t, last)
			next := w.wait()
			assert.Equal(t, first.ID(), next.ID(), "the server sees one holder")
			assert.Equal(t, last.Token()+1, next.Token())
			assert.Equal(t, 1, next.Depth())
			assert.Equal(t, until, next.ValidUntil(), "passing on confirms nothing")
			assert.ErrorIs(t, context.Cause(ctx), ErrReleased)
			assert.NoError(t, carry(next).Err())
			assert.ErrorIs(t, last.Release(t.Context()), ErrReleased)
			last = next
		}
		assert.Len(t, s.sent("", ""), commands, "nothing was sent")
		assert.Equal(t, 4, added)
		assert.Equal(t, 30*ms, c.event(t, EventAcquired).Waited)
		assert.Equal(t, 10*ms, c.event(t, EventReleased).Held)

		release(t, last)
		s.requireFree(t)
		assert.Len(t, s.sent("release", ""), 1)
		assert.Equal(t, []EventKind{
			EventAcquired, EventReleased, EventAcquired, EventReleased,
			EventAcquired, EventReleased, EventAcquired, EventReleased,
		}, c.kinds(EventWait))
		again := acquire(t, t.Context(), r)
		assert.Greater(t, again.Token(), last.Token())
		release(t, again)
	})
}

// Each case releases a hold of a cohort for which this waiter waits. The waiter gets the lock by a command.
func TestCohortDoesNotPassTheLockOn(t *testing.T) {
	for _, tt := range []struct {
		name   string
		holder []func(*Terms) // beside its cohort
		waiter []func(*Terms) // in place of its cohort
		config func(*Config)
		act    func(t *testing.T, s *server, holder *Hold) (end func())
		cohort time.Duration // of both; 0: testCohort
	}{
		{name: "to a waiter without a cohort", waiter: []func(*Terms){inCohort(0)}},
		{name: "to a waiter with another limit", waiter: []func(*Terms){inCohort(2 * testCohort)}},
		{name: "to a waiter with another TTL", waiter: []func(*Terms){inCohort(testCohort), ttl(7 * time.Second)}},
		{name: "to a waiter with a fixed lease", waiter: []func(*Terms){inCohort(testCohort), fixedLease(testTTL)}},
		{name: "to a waiter with a limit of its hold", waiter: []func(*Terms){inCohort(testCohort), maxHold(testTTL)}},
		{name: "to a waiter with a shared id", waiter: []func(*Terms){inCohort(testCohort), owner("me")}},
		{name: "to a waiter that polls", waiter: []func(*Terms){inCohort(testCohort), polling(10*ms, 10*ms)}},
		{name: "of a holder without a cohort", holder: []func(*Terms){inCohort(0)}},
		{name: "of a holder with a fixed lease", holder: []func(*Terms){fixedLease(testTTL)}},
		{name: "of a holder with a limit of its hold", holder: []func(*Terms){maxHold(testTTL)}},
		{name: "of a holder with a shared id", holder: []func(*Terms){owner("me")}},
		{name: "where replicas must confirm", config: func(c *Config) { c.NeedsReplicas = true }},
		{name: "that was extended", act: func(t *testing.T, _ *server, holder *Hold) func() {
			require.NoError(t, holder.Extend(t.Context(), time.Hour, nil))
			return nil
		}},
		{name: "under a nested hold", act: func(t *testing.T, _ *server, holder *Hold) func() {
			nested := acquire(t, carry(holder), holder.Resource(), fixedLease(testTTL))
			return func() { release(t, nested) }
		}},
		{name: "of a nested hold with a limit", act: func(t *testing.T, _ *server, holder *Hold) func() {
			nested := acquire(t, carry(holder), holder.Resource(), maxHold(testTTL))
			return func() { release(t, nested) }
		}},
		{name: "when its time is over", act: func(*testing.T, *server, *Hold) func() {
			sleep(testCohort)
			return nil
		}},
		{name: "that the server has not confirmed for half a TTL", act: func(_ *testing.T, s *server, holder *Hold) func() {
			s.onEach(func(c command) fault { return fault{lost: c.op == "renew"} })
			sleep(testTTL/2 + ms)
			s.resetFaults()
			return nil
		}, cohort: time.Hour},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				if tt.config == nil {
					tt.config = func(*Config) {}
				}
				limit := inCohort(max(tt.cohort, testCohort))
				if tt.waiter == nil {
					tt.waiter = []func(*Terms){limit}
				}
				r := s.client(t, "a", tt.config).lock("x")
				holder := acquire(t, t.Context(), r, append([]func(*Terms){limit}, tt.holder...)...)
				waiter := startAcquire(t, t.Context(), r, tt.waiter...)
				end := func() {}
				if tt.act != nil {
					if f := tt.act(t, s, holder); f != nil {
						end = f
					}
				}
				commands := len(s.sent("", ""))
				release(t, holder)
				assert.Greater(t, len(s.sent("", "")), commands)
				end()
				hold := waiter.wait()
				assert.NotEqual(t, holder.ID(), hold.ID())
				release(t, hold)
				s.requireFree(t)
			})
		})
	}
}

func TestOtherClientsGoFirstWhenACohortIsOver(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		r, other := s.client(t, "a").lock("x"), s.client(t, "b").lock("x")
		first := acquire(t, t.Context(), r, inCohort(testCohort))
		foreign := startAcquire(t, t.Context(), other)
		var waiters []*call
		for range 3 {
			waiters = append(waiters, startAcquire(t, t.Context(), r, inCohort(testCohort)))
		}
		sleep(testCohort - ms)
		release(t, first)
		second := waiters[0].wait()
		assert.Equal(t, first.ID(), second.ID())
		assert.False(t, foreign.returned())
		sleep(ms)
		release(t, second)
		release(t, foreign.wait())
		third := waiters[1].wait()
		assert.NotEqual(t, first.ID(), third.ID(), "a new cohort")
		release(t, third)
		assert.Equal(t, third.ID(), waiters[2].wait().ID())
		release(t, waiters[2].hold)
		s.requireFree(t)
	})
}

func TestCohortThatHasUsedItsTokensReservesMore(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		r := s.client(t, "a").lock("x")
		hold := acquire(t, t.Context(), r, inCohort(time.Hour))
		id := hold.ID()
		for n := int64(1); n <= 2*cohortTokens; n++ {
			require.Equal(t, n, hold.Token())
			waiter := startAcquire(t, t.Context(), r, inCohort(time.Hour))
			release(t, hold)
			hold = waiter.wait()
		}
		assert.NotEqual(t, id, hold.ID())
		assert.Len(t, s.sent("handoff", ""), 2)
		release(t, hold)
		s.requireFree(t)
	})
}

func TestNestedHoldOfACohortHasTheTokenOfItsOuterHold(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		r := s.client(t, "a").lock("x")
		first := acquire(t, t.Context(), r, inCohort(testCohort))
		waiter := startAcquire(t, t.Context(), r, inCohort(testCohort))
		release(t, first)
		second := waiter.wait()
		nested := acquire(t, carry(second), r)
		assert.Equal(t, second.Token(), nested.Token())
		assert.Equal(t, 2, s.holder("x", second.ID()).count)
		release(t, nested)
		release(t, second)
		s.requireFree(t)
	})
}

// The member that has the lock learns of the loss. Those that had it before have released it with success.
func TestLossEndsTheCohort(t *testing.T) {
	for _, tt := range []struct {
		name string
		find func(t *testing.T, member *Hold)
	}{
		{"found by a renewal", func(t *testing.T, member *Hold) {
			sleep(testTTL / 3)
			assert.ErrorIs(t, context.Cause(carry(member)), ErrLost)
			assert.ErrorIs(t, member.Release(t.Context()), ErrLost)
		}},
		{"found by a check", func(t *testing.T, member *Hold) {
			assert.ErrorIs(t, member.Check(t.Context()), ErrLost)
			assert.ErrorIs(t, member.Release(t.Context()), ErrLost)
		}},
		{"found by the last release", func(t *testing.T, member *Hold) {
			sleep(5 * time.Second) // the time of the cohort is over
			assert.ErrorIs(t, member.Release(t.Context()), ErrLost)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				r := s.client(t, "a").lock("x")
				limit := inCohort(5 * time.Second)
				first := acquire(t, t.Context(), r, limit)
				second, third := startAcquire(t, t.Context(), r, limit), startAcquire(t, t.Context(), r, limit)
				s.forget("x")
				release(t, first)
				tt.find(t, second.wait())
				hold := third.wait()
				assert.NotEqual(t, first.ID(), hold.ID())
				release(t, hold)
				s.requireFree(t)
			})
		})
	}
}

// A waiter gives up at the instant at which the lock was passed on to it.
func TestWaiterThatGivesUpPassesTheLockOn(t *testing.T) {
	for _, next := range []string{"to the next waiter", "to the server", "to the server, which is silent"} {
		t.Run(next, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				c := s.client(t, "a")
				r := c.lock("x")
				first := acquire(t, t.Context(), r, inCohort(testCohort))
				ctx, cancel := context.WithCancel(t.Context())
				waiter := startAcquire(t, ctx, r, inCohort(testCohort))
				var second *call
				if next == "to the next waiter" {
					second = startAcquire(t, t.Context(), r, inCohort(testCohort))
				}
				if next == "to the server, which is silent" {
					s.script("release", fault{lost: true}, fault{mute: true})
				}
				cancel() // its goroutine does not run before both have happened
				release(t, first)
				assert.ErrorIs(t, waiter.fail(), context.Canceled)
				if second != nil {
					assert.Equal(t, first.ID(), second.wait().ID())
					release(t, second.hold)
				}
				sleep(20 * time.Second)
				s.requireFree(t)
				assert.Empty(t, s.sent("rollback", ""), "the waiter has sent nothing that may be executed late")
				assert.Len(t, c.kinds(EventWait), map[bool]int{true: 5, false: 3}[second != nil])
			})
		})
	}
}

// The lock is lost just after it was passed on, when the waiter has given up, or has not looked yet. Its hold emits
// no end without a beginning.
func TestEventsAreBalancedIfACohortIsLostWhenItIsPassedOn(t *testing.T) {
	for _, givesUp := range []bool{true, false} {
		t.Run(fmt.Sprint("gives up ", givesUp), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				c := s.client(t, "a")
				r := c.lock("x")
				first := acquire(t, t.Context(), r, inCohort(testCohort))
				ctx, cancel := context.WithCancel(t.Context())
				waiter := startAcquire(t, ctx, r, inCohort(testCohort))
				if givesUp {
					cancel() // its goroutine does not run before all three have happened
				}
				release(t, first)
				s.forget("x")
				first.Ownership().loseInBackground(Loss{Reason: LossGone})
				waiter.end()
				cancel()
				if waiter.hold != nil { // its goroutine was faster
					assert.ErrorIs(t, waiter.hold.Release(t.Context()), ErrLost)
				}
				synctest.Wait()
				began, ended := 0, 0
				for _, kind := range c.kinds(EventWait, EventNotAcquired) {
					if kind == EventAcquired {
						began++
					} else {
						ended++
					}
				}
				assert.Equal(t, began, ended, "%v", c.kinds())
			})
		})
	}
}

// An attempt in doubt may be executed late. The waiter must hold by its own id then, or roll it back.
func TestCohortDoesNotPassTheLockOnToAWaiterInDoubt(t *testing.T) {
	for _, tt := range []struct {
		name  string
		after time.Duration // the attempt of the slow poll is made after 1 s, and ends after 4 s
	}{{"while its attempt is under way", 2 * time.Second}, {"after an attempt without an answer", 5 * time.Second}} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				s.keepLeases()
				r := s.client(t, "a").lock("x")
				first := acquire(t, t.Context(), r, inCohort(time.Hour))
				waiter := startAcquire(t, t.Context(), r, inCohort(time.Hour))
				s.script("acquire", fault{lost: true, copy: 10 * time.Second})
				sleep(tt.after)
				release(t, first)
				hold := waiter.wait()
				assert.NotEqual(t, first.ID(), hold.ID())
				release(t, hold)
				sleep(2 * time.Minute)
				s.requireFree(t)
			})
		})
	}
}

func TestMembersOfAJointLockAreInNoCohort(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		holder := acquire(t, t.Context(), c.lock("x"), inCohort(testCohort))
		joint := startAcquire(t, t.Context(), c.multiOf("x", "y"), inCohort(testCohort))
		waiter := startAcquire(t, t.Context(), c.lock("x"), inCohort(testCohort))
		release(t, holder)
		hold := joint.wait()
		assert.Equal(t, []string{hold.ID()}, s.ids("x"), "all members have one id")
		assert.Equal(t, []string{hold.ID()}, s.ids("y"))
		release(t, hold)
		assert.NotEqual(t, hold.ID(), waiter.wait().ID())
		release(t, waiter.hold)
		s.requireFree(t)
	})
}

func TestCloseEndsACohort(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		r := c.lock("x")
		first := acquire(t, t.Context(), r, inCohort(testCohort))
		waiter := startAcquire(t, t.Context(), r, inCohort(testCohort))
		go func() { _ = c.close(t.Context()) }()
		synctest.Wait()
		release(t, first)
		assert.ErrorIs(t, waiter.fail(), ErrClosed)
		<-c.closed
		s.requireFree(t)
	})
}
