package engine

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestReleaseHandsOffToTheFirstWaiter(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		r := s.client(t, "a").lock("x")
		holder := acquire(t, t.Context(), r)
		first, second := startAcquire(t, t.Context(), r), startAcquire(t, t.Context(), r, fixedLease(7*time.Second))
		attempts := len(s.sent("acquire", ""))
		release(t, holder)
		assert.Equal(t, "a:2", first.wait().ID())
		assert.Equal(t, []string{"a:2"}, s.ids("x"))
		assert.False(t, second.returned())
		release(t, first.hold)
		assert.Equal(t, 7*time.Second, s.lease("x", second.wait().ID()), "the lease that the successor asks for")
		release(t, second.hold)
		assert.Len(t, s.sent("acquire", ""), attempts, "successors send nothing")
		assert.Len(t, s.sent("handoff", ""), 2)
		assert.Len(t, s.sent("release", ""), 1)
		s.requireFree(t)
	})
}

// Each case releases a lock for which this waiter of the same client waits.
func TestReleaseDoesNotHandOff(t *testing.T) {
	for _, tt := range []struct {
		name   string
		holder []func(*Terms)
		waiter []func(*Terms)
		config func(*Config)
		act    func(s *server, c *client)
	}{
		{name: "a holder with a shared id", holder: []func(*Terms){owner("me")}},
		{name: "to a waiter with a shared id", waiter: []func(*Terms){owner("me")}},
		{name: "to a waiter that polls", waiter: []func(*Terms){polling(10*ms, 10*ms)}},
		{name: "where replicas must confirm", config: func(c *Config) { c.NeedsReplicas = true }},
		{name: "after 10 ms", act: func(*server, *client) { sleep(maxStreak) }},
		{name: "what was lost", act: func(s *server, _ *client) { s.forget("x") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				config := tt.config
				if config == nil {
					config = func(*Config) {}
				}
				c := s.client(t, "a", config)
				holder := acquire(t, t.Context(), c.lock("x"), tt.holder...)
				waiter := startAcquire(t, t.Context(), c.lock("x"), tt.waiter...)
				attempts := len(s.sent("acquire", ""))
				if tt.act != nil {
					tt.act(s, c)
				}
				_ = holder.Release(t.Context())
				release(t, waiter.wait())
				assert.Greater(t, len(s.sent("acquire", "")), attempts, "it tries itself")
				s.requireFree(t)
			})
		})
	}
}

func TestSemaphoreHandsOffToAWaiterThatWantsNoMore(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		r := s.client(t, "a").semaphore("x")
		s.setPermits("x", 3)
		holder := acquire(t, t.Context(), r, permits(3))
		few := startAcquire(t, t.Context(), r, permits(2))
		one := startAcquire(t, t.Context(), r, permits(1))
		attempts := len(s.sent("acquire", ""))
		release(t, holder)
		few.wait()
		one.wait()
		assert.Len(t, s.sent("handoff", ""), 1)
		assert.Len(t, s.sent("acquire", ""), attempts+1, "the successor's room admits another")
		more := startAcquire(t, t.Context(), r, permits(3))
		release(t, one.hold)
		assert.False(t, more.returned())
		release(t, few.hold)
		assert.Len(t, s.sent("handoff", ""), 1, "it wants more than was released")
		release(t, more.wait())
		s.requireFree(t)
	})
}

// In each case the first waiter gives up 50 ms after the release began. The hand-off to it is executed
// at some time, or never, and is answered or not. A second waiter acquires in the end.
func TestSuccessorThatGivesUpRollsTheHandOffBack(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault fault
	}{
		{"executed before, answered after", fault{reply: 100 * ms}},
		{"executed after", fault{delay: 100 * ms}},
		{"executed long after", fault{delay: 10 * time.Second}},
		{"executed before, not answered", fault{mute: true}},
		{"never executed", fault{lost: true}},
		{"executed twice", fault{reply: 100 * ms, copy: 200 * ms}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				s.keepLeases()
				r := s.client(t, "a").lock("x")
				holder := acquire(t, t.Context(), r)
				ctx, cancel := context.WithCancelCause(t.Context())
				successor := startAcquire(t, ctx, r)
				s.script("handoff", tt.fault)
				released := startRelease(t, holder)
				sleep(50 * ms)
				cancel(errCause)
				require.ErrorIs(t, successor.fail(), ErrNotAcquired)
				second := startAcquire(t, t.Context(), r)
				released.end()
				assert.NotEmpty(t, s.sent("rollback", "a:2"))
				release(t, second.wait())
				sleep(time.Minute)
				s.requireFree(t)
			})
		})
	}
}

func TestSuccessorThatWasGrantedButHasGoneRollsBack(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		r := s.client(t, "a").lock("x")
		holder := acquire(t, t.Context(), r)
		ctx, cancel := context.WithCancel(t.Context())
		successor := startAcquire(t, ctx, r)
		s.onEach(func(cmd command) fault {
			if cmd.op == "handoff" {
				cancel() // the waiter wakes up only when this command has been answered
			}
			return fault{}
		})
		release(t, holder)
		require.ErrorIs(t, successor.fail(), ErrNotAcquired)
		sleep(time.Second)
		assert.Len(t, s.sent("rollback", "a:2"), 1)
		s.requireFree(t)
	})
}

// The successor has tried itself since, and was refused. The hand-off may still be executed.
func TestSuccessorOfAnUnknownHandOffRollsBackAlthoughItWasRefusedSince(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		s.keepLeases()
		r := s.client(t, "a").lock("x")
		holder := acquire(t, t.Context(), r)
		successor := start(t, func() (*Hold, error) { return r.Acquire(t.Context(), terms(), 5*time.Second) })
		s.script("handoff", fault{delay: 10 * time.Second})
		down := s.start.Add(20 * time.Second)
		s.onEach(func(cmd command) fault {
			if cmd.op == "release" && time.Now().Before(down) {
				return fault{err: errDown}
			}
			return fault{}
		})
		_ = startRelease(t, holder).fail()
		require.ErrorIs(t, successor.fail(), ErrNotAcquired)
		sleep(time.Minute)
		s.requireFree(t)
	})
}

func TestHandOffThatIsAnsweredTooLateForTheLeaseIsRolledBack(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		s.keepLeases()
		r := s.client(t, "a").lock("x")
		holder := acquire(t, t.Context(), r)
		successor := startAcquire(t, t.Context(), r, ttl(time.Second))
		s.script("handoff", fault{reply: 2 * time.Second})
		s.script("acquire", fault{lost: true}, fault{lost: true})
		startRelease(t, holder).wait()
		assert.Equal(t, 2*time.Second, s.now())
		require.ErrorIs(t, successor.fail(), ErrLost)
		sleep(time.Second)
		s.requireFree(t)
	})
}

// The outcome of a hand-off is unknown. The successor asks the server itself.
func TestHandOffOfUnknownOutcome(t *testing.T) {
	for _, tt := range []struct {
		name    string
		fault   fault
		timeout time.Duration // of commands
		at      time.Duration // when the successor has it
	}{
		{"executed: its poll finds out", fault{mute: true}, testTimeout, time.Second},
		{"executed: it asks at once", fault{mute: true}, 200 * ms, 200 * ms},
		{
			"executed when the release was repeated already", fault{delay: testTimeout + 100*ms},
			testTimeout, testTimeout + 20*ms,
		},
		{"never executed", fault{lost: true}, testTimeout, testTimeout + 20*ms},
		{"the server refused", fault{err: errDown}, testTimeout, 20 * ms},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				s.keepLeases()
				r := s.client(t, "a", func(config *Config) { config.CommandTimeout = tt.timeout }).lock("x")
				holder := acquire(t, t.Context(), r)
				successor := startAcquire(t, t.Context(), r)
				s.script("handoff", tt.fault)
				s.script("release", fault{err: errDown}) // the first repetition
				require.Error(t, startRelease(t, holder).fail())
				hold := successor.wait()
				assert.Equal(t, []string{hold.ID()}, s.ids("x"))
				assert.Equal(t, tt.at, successor.at.Sub(s.start))
				sleep(10 * time.Second)
				assert.NoError(t, carry(hold).Err())
				assert.Equal(t, []string{hold.ID()}, s.ids("x"), "the repeated release frees only the old holder")
				release(t, hold)
				sleep(time.Minute)
				s.requireFree(t)
			})
		})
	}
}

// Two clients want the lock. Each hands it off 16 times, then lets the other one go first.
func TestClientsTakeTurnsAfterAStreakOfHandOffs(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		a, b := s.client(t, "a").lock("x"), s.client(t, "b").lock("x")
		holder := acquire(t, t.Context(), a)
		order := make(chan *Hold, 100)
		for _, r := range []*Resource{a, b} {
			for range 40 {
				start(t, func() (*Hold, error) {
					hold := acquire(t, t.Context(), r)
					order <- hold
					return hold, hold.Release(t.Context())
				})
			}
		}
		release(t, holder)
		var runs []int
		last := ""
		for range 80 {
			if id := (<-order).Resource().Driver.(*driver).c.id; id == last {
				runs[len(runs)-1]++
			} else {
				runs, last = append(runs, 1), id
			}
		}
		assert.Equal(t, []int{maxStreakCount, maxStreakCount + 1, maxStreakCount + 1, maxStreakCount + 1}, runs[:4])
		assert.Zero(t, s.now(), "nobody waits for a poll")
		sleep(time.Second)
		s.requireFree(t)
	})
}

func TestStreakEndsAfterTenMilliseconds(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		r := s.client(t, "a").lock("x")
		holder := acquire(t, t.Context(), r)
		first, second := startAcquire(t, t.Context(), r), startAcquire(t, t.Context(), r)
		sleep(maxStreak - ms)
		release(t, holder)
		first.wait()
		sleep(ms) // the series began with the first holder
		release(t, first.hold)
		second.wait()
		assert.Equal(t, maxStreak, s.now(), "no other client was told, so it tries at once")
		assert.Len(t, s.sent("handoff", ""), 1)
		release(t, second.hold)
		sleep(0)
		s.requireFree(t)
	})
}

// A client whose streak is over leaves the free lock to the other clients that received the message.
func TestYieldingClientLeavesMessagesToOthers(t *testing.T) {
	for _, tt := range []struct {
		name   string
		others int
		fault  fault         // of the release
		least  time.Duration // after the release, until the waiter acquires, though no other client does
		most   time.Duration
		silent bool // the message of the release is lost
	}{
		{"no other client", 0, fault{}, 0, 0, false},
		{"no other client, and the message is lost", 0, fault{}, 0, 0, true},
		{"another client that does not acquire", 1, fault{}, firstLook, maxStreak, false},
		{"three others that do not acquire", 3, fault{}, firstLook, maxStreak, false},
		{"the release is not answered", 1, fault{mute: true}, maxStreak, maxStreak, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				s.silent = tt.silent
				r := s.client(t, "a").lock("x")
				for i := range tt.others {
					other := s.client(t, string(rune('b'+i)))
					sub := s.newSubscription(other, "x", func(bool) {})
					defer sub.Close()
				}
				holder := acquire(t, t.Context(), r)
				waiter := startAcquire(t, t.Context(), r)
				sleep(100 * ms)
				s.script("release", tt.fault)
				released := startRelease(t, holder)
				waiter.wait()
				assert.GreaterOrEqual(t, s.now(), 100*ms+tt.least)
				assert.LessOrEqual(t, s.now(), 100*ms+tt.most)
				released.end()
				release(t, waiter.hold)
				sleep(time.Minute)
				s.requireFree(t)
			})
		})
	}
}
