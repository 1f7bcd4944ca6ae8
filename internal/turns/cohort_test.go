package turns_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/engine"
	. "github.com/redlatch/redlatch/internal/test/enginetest"
)

const testCohort = time.Second

func TestCohortPassesTheLockOnWithoutACommand(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		added := 0
		c := s.Client(t, "a", func(c *engine.Config) { c.Presence.HoldAdded = func() { added++ } })
		r := c.Lock("x")
		first := Acquire(t, t.Context(), r, InCohort(testCohort))
		var waiters []*Call
		for range 3 {
			waiters = append(waiters, StartAcquire(t, t.Context(), r, InCohort(testCohort)))
		}
		commands := len(s.Commands())

		last := first
		for _, w := range waiters {
			Sleep(10 * ms)
			assert.False(t, w.Returned())
			ctx, until := Carry(last), last.ValidUntil()
			Release(t, last)
			next := w.AwaitHold()
			assert.Equal(t, first.ID(), next.ID(), "the server sees one holder")
			assert.Equal(t, last.Token()+1, next.Token())
			assert.Equal(t, 1, next.Depth())
			assert.Equal(t, until, next.ValidUntil(), "passing on confirms nothing")
			assert.ErrorIs(t, context.Cause(ctx), engine.ErrReleased)
			assert.NoError(t, Carry(next).Err())
			assert.ErrorIs(t, last.Release(t.Context()), engine.ErrReleased)
			last = next
		}
		assert.Len(t, s.Commands(), commands, "nothing was sent")
		assert.Equal(t, 1+4, added, "the tenure hold, and one for each turn")
		assert.Equal(t, 30*ms, c.Event(t, engine.EventAcquired).Waited)
		assert.Equal(t, 10*ms, c.Event(t, engine.EventReleased).Held)

		Release(t, last)
		s.RequireFree(t)
		assert.Len(t, s.Sent("release"), 1)
		assert.ElementsMatch(t, []engine.EventKind{ // the new holder may be quicker than the former one
			engine.EventAcquired, engine.EventReleased, engine.EventAcquired, engine.EventReleased,
			engine.EventAcquired, engine.EventReleased, engine.EventAcquired, engine.EventReleased,
		}, c.Kinds(engine.EventWait))
		again := Acquire(t, t.Context(), r)
		assert.Greater(t, again.Token(), last.Token())
		Release(t, again)
	})
}

// Each case releases a hold of a cohort for which this waiter waits. The waiter gets the lock by a
// command.
func TestCohortDoesNotPassTheLockOn(t *testing.T) {
	for _, tt := range []struct {
		name   string
		holder []func(*engine.Terms) // in addition to its cohort
		waiter []func(*engine.Terms) // instead of its cohort
		config func(*engine.Config)
		act    func(t *testing.T, s *Server, holder *engine.Hold) (end func())
		cohort time.Duration // of both; 0: testCohort
	}{
		{name: "to a waiter without a cohort", waiter: []func(*engine.Terms){InCohort(0)}},
		{name: "to a waiter with another limit", waiter: []func(*engine.Terms){InCohort(2 * testCohort)}},
		{name: "to a waiter with another TTL", waiter: []func(*engine.Terms){InCohort(testCohort), TTL(7 * time.Second)}},
		{name: "to a waiter with a fixed lease", waiter: []func(*engine.Terms){InCohort(testCohort), FixedLease(DefaultTTL)}},
		{name: "to a waiter with a limit of its hold",
			waiter: []func(*engine.Terms){InCohort(testCohort), MaxHold(DefaultTTL)}},
		{name: "to a waiter with a shared id", waiter: []func(*engine.Terms){InCohort(testCohort), OwnedBy("me")}},
		{name: "to a waiter that polls", waiter: []func(*engine.Terms){InCohort(testCohort), Polling(10*ms, 10*ms)}},
		{name: "of a holder without a cohort", holder: []func(*engine.Terms){InCohort(0)}},
		{name: "of a holder with a fixed lease", holder: []func(*engine.Terms){FixedLease(DefaultTTL)}},
		{name: "of a holder with a limit of its hold", holder: []func(*engine.Terms){MaxHold(DefaultTTL)}},
		{name: "of a holder with a shared id", holder: []func(*engine.Terms){OwnedBy("me")}},
		{name: "where replicas must confirm", config: func(c *engine.Config) { c.NeedsReplicas = true }},
		{name: "that was extended", act: func(t *testing.T, _ *Server, holder *engine.Hold) func() {
			require.NoError(t, holder.Extend(t.Context(), time.Hour, nil))
			return nil
		}},
		{name: "under a nested hold", act: func(t *testing.T, _ *Server, holder *engine.Hold) func() {
			nested := Acquire(t, Carry(holder), holder.Resource(), FixedLease(DefaultTTL))
			return func() { Release(t, nested) }
		}},
		{name: "of a nested hold with a limit", act: func(t *testing.T, _ *Server, holder *engine.Hold) func() {
			nested := Acquire(t, Carry(holder), holder.Resource(), MaxHold(DefaultTTL))
			return func() { Release(t, nested) }
		}},
		{name: "that somebody has released, while nobody knows yet who has it", act: func(
			_ *testing.T, s *Server, _ *engine.Hold,
		) func() {
			s.OnEach(func(Command) Fault { return Fault{Reply: 10 * ms} })
			s.Message("x")
			Sleep(ms)
			s.ResetFaults()
			return nil
		}},
		{name: "when its time is over", act: func(*testing.T, *Server, *engine.Hold) func() {
			Sleep(testCohort)
			return nil
		}},
		{name: "that the server has not confirmed for half a TTL",
			act: func(_ *testing.T, s *Server, holder *engine.Hold) func() {
				s.OnEach(func(c Command) Fault { return Fault{Lost: c.Op == "renew"} })
				Sleep(DefaultTTL/2 + ms)
				s.ResetFaults()
				return nil
			}, cohort: time.Hour},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			if tt.config == nil {
				tt.config = func(*engine.Config) {}
			}
			limit := InCohort(max(tt.cohort, testCohort))
			if tt.waiter == nil {
				tt.waiter = []func(*engine.Terms){limit}
			}
			r := s.Client(t, "a", tt.config).Lock("x")
			holder := Acquire(t, t.Context(), r, append([]func(*engine.Terms){limit}, tt.holder...)...)
			waiter := StartAcquire(t, t.Context(), r, tt.waiter...)
			end := func() {}
			if tt.act != nil {
				if f := tt.act(t, s, holder); f != nil {
					end = f
				}
			}
			commands := len(s.Commands())
			Release(t, holder)
			assert.Greater(t, len(s.Commands()), commands)
			end()
			hold := waiter.AwaitHold()
			assert.NotEqual(t, holder.ID(), hold.ID())
			Release(t, hold)
		})
	}
}

func TestOtherClientsGoFirstWhenACohortIsOver(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		r, other := s.Client(t, "a").Lock("x"), s.Client(t, "b").Lock("x")
		first := Acquire(t, t.Context(), r, InCohort(testCohort))
		foreign := StartAcquire(t, t.Context(), other)
		var waiters []*Call
		for range 3 {
			waiters = append(waiters, StartAcquire(t, t.Context(), r, InCohort(testCohort)))
		}
		Sleep(testCohort - ms)
		Release(t, first)
		second := waiters[0].AwaitHold()
		assert.Equal(t, first.ID(), second.ID())
		assert.False(t, foreign.Returned())
		Sleep(ms)
		Release(t, second)
		Release(t, foreign.AwaitHold())
		third := waiters[1].AwaitHold()
		assert.NotEqual(t, first.ID(), third.ID(), "a new cohort")
		Release(t, third)
		assert.Equal(t, third.ID(), waiters[2].AwaitHold().ID())
		Release(t, waiters[2].Hold)
	})
}

func TestCohortThatHasUsedItsTokensReservesMore(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		r := s.Client(t, "a").Lock("x")
		hold := Acquire(t, t.Context(), r, InCohort(time.Hour))
		id := hold.ID()
		for n := int64(1); n <= 2*engine.TenureTokens; n++ {
			require.Equal(t, n, hold.Token())
			waiter := StartAcquire(t, t.Context(), r, InCohort(time.Hour))
			Release(t, hold)
			hold = waiter.AwaitHold()
		}
		assert.NotEqual(t, id, hold.ID())
		assert.Len(t, s.Sent("handoff"), 2)
		Release(t, hold)
	})
}

func TestNestedHoldOfACohortHasTheTokenOfItsOuterHold(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		r := s.Client(t, "a").Lock("x")
		first := Acquire(t, t.Context(), r, InCohort(testCohort))
		waiter := StartAcquire(t, t.Context(), r, InCohort(testCohort))
		Release(t, first)
		second := waiter.AwaitHold()
		nested := Acquire(t, Carry(second), r)
		assert.Equal(t, second.Token(), nested.Token())
		assert.Equal(t, 2, s.Holder("x", second.ID()).Count)
		Release(t, nested, second)
	})
}

// The member that has the lock learns of the loss. Earlier members have released it successfully.
func TestLossEndsTheCohort(t *testing.T) {
	for _, tt := range []struct {
		name string
		find func(t *testing.T, member *engine.Hold)
	}{
		{"found by a renewal", func(t *testing.T, member *engine.Hold) {
			Sleep(DefaultTTL / 3)
			assert.ErrorIs(t, context.Cause(Carry(member)), engine.ErrLost)
			assert.ErrorIs(t, member.Release(t.Context()), engine.ErrLost)
		}},
		{"found after a takeover notice", func(t *testing.T, member *engine.Hold) {
			assert.ErrorIs(t, member.Ownership().Verify(t.Context()), engine.ErrLost)
			assert.ErrorIs(t, member.Release(t.Context()), engine.ErrLost)
		}},
		{"found by a check", func(t *testing.T, member *engine.Hold) {
			assert.ErrorIs(t, member.Check(t.Context()), engine.ErrLost)
			assert.ErrorIs(t, member.Release(t.Context()), engine.ErrLost)
		}},
		{"found by the last release", func(t *testing.T, member *engine.Hold) {
			Sleep(5 * time.Second) // the time of the cohort is over
			assert.ErrorIs(t, member.Release(t.Context()), engine.ErrLost)
		}},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			r := s.Client(t, "a").Lock("x")
			limit := InCohort(5 * time.Second)
			first := Acquire(t, t.Context(), r, limit)
			second, third := StartAcquire(t, t.Context(), r, limit), StartAcquire(t, t.Context(), r, limit)
			s.Forget("x")
			Release(t, first)
			hold := second.AwaitHold()
			Sleep(500 * ms)
			tt.find(t, hold)
			found := s.Now()
			hold = third.AwaitHold()
			assert.Equal(t, found, s.Now(), "a waiter of the client tries at once")
			assert.NotEqual(t, first.ID(), hold.ID())
			Release(t, hold)
		})
	}
}

// lateContext is a context that can end without closing its Done channel: Err reports the end, but
// no waiter wakes up.
type lateContext struct {
	context.Context
	ended atomic.Bool
}

func (c *lateContext) Err() error {
	if c.ended.Load() {
		return context.Canceled
	}
	return c.Context.Err()
}

// A waiter gives up at the instant at which the lock was passed on to it.
func TestWaiterThatGivesUpPassesTheLockOn(t *testing.T) {
	for _, next := range []string{"to the next waiter", "to the server", "to the server, which is silent"} {
		RunBubble(t, next, func(t *testing.T, s *Server) {
			c := s.Client(t, "a")
			r := c.Lock("x")
			first := Acquire(t, t.Context(), r, InCohort(testCohort))
			ctx := &lateContext{Context: t.Context()}
			waiter := StartAcquire(t, ctx, r, InCohort(testCohort))
			var second *Call
			if next == "to the next waiter" {
				second = StartAcquire(t, t.Context(), r, InCohort(testCohort))
			}
			if next == "to the server, which is silent" {
				s.Script("release", Fault{Lost: true}, Fault{Mute: true})
			}
			ctx.ended.Store(true)
			Release(t, first)
			assert.ErrorIs(t, waiter.AwaitErr(), context.Canceled)
			if second != nil {
				assert.Equal(t, first.ID(), second.AwaitHold().ID())
				Release(t, second.Hold)
			}
			Sleep(20 * time.Second)
			s.RequireFree(t)
			assert.Empty(t, s.Sent("rollback"), "the waiter has sent nothing that may be executed late")
			assert.Len(t, c.Kinds(engine.EventWait), map[bool]int{true: 5, false: 3}[second != nil])
		})
	}
}

// slowContext is a context whose Err takes a while, as after a pause of the process.
type slowContext struct {
	context.Context
	pause atomic.Int64
}

func (c *slowContext) Err() error {
	time.Sleep(time.Duration(c.pause.Swap(0)))
	return c.Context.Err()
}

// The process stands still between the passing on and the acceptance, until the lease is over.
// Nothing has ended the hold when it goes on.
func TestWaiterDoesNotAcceptALockThatIsOver(t *testing.T) {
	for _, tt := range []struct {
		name  string
		pause time.Duration // since half a TTL was left
		over  bool
	}{{"in time", DefaultTTL/2 - time.Second, false}, {"too late", DefaultTTL / 2, true}} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			c := s.Client(t, "a", func(config *engine.Config) {
				lost := config.Errors.Lost
				config.Errors.Lost = func(l engine.Loss) error {
					time.Sleep(time.Second) // before the hold ends
					return lost(l)
				}
			})
			r := c.Lock("x")
			first := Acquire(t, t.Context(), r, InCohort(time.Hour))
			ctx := &slowContext{Context: t.Context()}
			waiter := StartAcquire(t, ctx, r, InCohort(time.Hour))
			s.OnEach(func(c Command) Fault { return Fault{Lost: c.Op == "renew"} })
			Sleep(time.Until(first.ValidUntil()) - DefaultTTL/2)
			ctx.pause.Store(int64(tt.pause))
			Release(t, first)
			assert.Equal(t, tt.over, waiter.AwaitHold().ID() != first.ID(), "then it acquires by itself")
			assert.True(t, waiter.Hold.ValidUntil().After(time.Now()))
			Release(t, waiter.Hold)
			Sleep(time.Minute)
		})
	}
}

// The lock is taken by force while a cohort has it. A waiter of the client acquires the lock at
// once, whatever it knows of the takeover, and whether or not the lost hold was passed on to it.
func TestTakeoverDuringACohortDelaysNoWaiter(t *testing.T) {
	for _, tt := range []struct {
		name   string
		lost   int                                               // events
		happen func(t *testing.T, s *Server, first *engine.Hold) // while the waiter is awake, and has not looked yet
	}{
		{"a message has come", 1, func(t *testing.T, s *Server, first *engine.Hold) {
			s.Message("x")
			synctest.Wait()
			assert.ErrorIs(t, first.Release(t.Context()), engine.ErrLost,
				"the waiter has a reason to try: the lost hold is not passed on")
		}},
		{"the loss is found before the hold is accepted", 0, func(t *testing.T, _ *Server, first *engine.Hold) {
			require.NoError(t, first.Release(t.Context()))
			first.Ownership().LoseAsGone()
		}},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			c := s.Client(t, "a")
			r := c.Lock("x")
			first := Acquire(t, t.Context(), r, InCohort(testCohort))
			ctx := &slowContext{Context: t.Context()}
			waiter := StartAcquire(t, ctx, r, InCohort(testCohort))
			ctx.pause.Store(int64(10 * ms))
			s.Forget("x")
			tt.happen(t, s, first)
			hold := waiter.AwaitHold()
			assert.Equal(t, 10*ms, s.Now())
			assert.NotEqual(t, first.ID(), hold.ID(), "the lost hold is nobody's")
			assert.NoError(t, hold.Check(t.Context()))
			Release(t, hold)
			assert.Len(t, c.Kinds(engine.EventWait, engine.EventAcquired, engine.EventReleased), tt.lost)
		})
	}
}

// A waiter has acquired the lock by itself after a takeover. The cohort's former hold is not passed
// on.
func TestCohortEndsWhenTheServerGrantsTheLockToAWaiter(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		r := s.Client(t, "a").Lock("x")
		first := Acquire(t, t.Context(), r, InCohort(testCohort))
		second := StartAcquire(t, t.Context(), r, InCohort(testCohort))
		third := StartAcquire(t, t.Context(), r, InCohort(testCohort))
		s.Free("x")
		hold := second.AwaitHold()
		assert.ErrorIs(t, first.Release(t.Context()), engine.ErrLost)
		assert.False(t, third.Returned(), "the second one has the lock")
		Release(t, hold)
		assert.Equal(t, hold.ID(), third.AwaitHold().ID(), "its cohort goes on")
		Release(t, third.Hold)
	})
}

// The lock is lost just after it was passed on, when the waiter has given up, or has not looked
// yet. Its hold emits no end without a beginning.
func TestEventsAreBalancedIfAPassedOnLockIsLost(t *testing.T) {
	for _, givesUp := range []bool{true, false} {
		RunBubble(t, fmt.Sprint("gives up ", givesUp), func(t *testing.T, s *Server) {
			c := s.Client(t, "a")
			r := c.Lock("x")
			first := Acquire(t, t.Context(), r, InCohort(testCohort))
			ctx, cancel := context.WithCancel(t.Context())
			waiter := StartAcquire(t, ctx, r, InCohort(testCohort))
			if givesUp {
				cancel() // its goroutine does not run before all three have happened
			}
			Release(t, first)
			s.Forget("x")
			first.Ownership().LoseAsGone()
			waiter.Await()
			cancel()
			if hold := waiter.Hold; hold != nil && hold.ID() == first.ID() { // its goroutine was faster
				assert.ErrorIs(t, hold.Release(t.Context()), engine.ErrLost)
			} else if hold != nil { // it has acquired by itself
				Release(t, hold)
			}
			synctest.Wait()
			began, ended := 0, 0
			for _, kind := range c.Kinds(engine.EventWait, engine.EventNotAcquired) {
				if kind == engine.EventAcquired {
					began++
				} else {
					ended++
				}
			}
			assert.Equal(t, began, ended, "%v", c.Kinds())
		})
	}
}

// A waiter gives up just when it was given the turn, so its client releases the lock. The loss of
// the lock, which was noticed meanwhile, is reported after that. Nobody waits any longer, so nobody
// is given the next turn.
func TestLossIsReportedAfterAWaiterHasLeftWithItsTurn(t *testing.T) {
	for i := range 50 { // in some of them, the waiter is given the turn before it gives up
		RunBubble(t, fmt.Sprint(i), func(t *testing.T, s *Server) {
			c := s.Client(t, "a")
			r := c.Lock("x")
			first := Acquire(t, t.Context(), r, InCohort(testCohort))
			tenure, hold := c.Turns().Tenure("x")
			ctx, cancel := context.WithCancel(t.Context())
			waiter := StartAcquire(t, ctx, r, InCohort(testCohort))
			cancel()
			Release(t, first)
			waiter.Await()
			if waiter.Hold != nil {
				Release(t, waiter.Hold)
			}
			tenure.MemberEnded(hold, engine.ErrLost)
			Sleep(time.Minute)
		})
	}
}

// The attempt for the next tenure may be executed late. It gives nobody a turn, and is rolled back.
func TestAttemptInDoubtLeavesNothingBehind(t *testing.T) {
	for _, tt := range []struct {
		name  string
		after time.Duration // the attempt of the slow poll is made after 1 s, and ends after 4 s
	}{{"while its attempt is under way", 2 * time.Second}, {"after an attempt without an answer", 5 * time.Second}} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			s.KeepLeases()
			r := s.Client(t, "a").Lock("x")
			first := Acquire(t, t.Context(), r, InCohort(time.Hour))
			waiter := StartAcquire(t, t.Context(), r, InCohort(time.Hour))
			s.Script("acquire", Fault{Lost: true, Copy: 10 * time.Second})
			Sleep(tt.after)
			Release(t, first)
			hold := waiter.AwaitHold()
			assert.Equal(t, first.ID(), hold.ID())
			Release(t, hold)
			Sleep(2 * time.Minute)
		})
	}
}

func TestCloseEndsACohort(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		r := c.Lock("x")
		first := Acquire(t, t.Context(), r, InCohort(testCohort))
		waiter := StartAcquire(t, t.Context(), r, InCohort(testCohort))
		go func() { _ = c.Shut(t.Context()) }()
		synctest.Wait()
		Release(t, first)
		assert.ErrorIs(t, waiter.AwaitErr(), engine.ErrClosed)
		<-c.Closed
	})
}

// A user comes while another user's attempt is under way, and waits behind it. Whatever becomes of
// that attempt, the second user waits no longer than necessary.
func TestUserWhoWaitsBehindAnAttempt(t *testing.T) {
	for _, tt := range []struct {
		name    string
		attempt Fault
		ends    time.Duration // of the first user's context; 0: it does not end
		holds   bool          // the first user gets the lock
		within  time.Duration
	}{
		{"is granted", Fault{Reply: 10 * ms}, 0, true, 10 * ms},
		{"is given up", Fault{Reply: 10 * ms}, 5 * ms, false, 10 * ms},
		{"fails", Fault{Delay: 10 * ms, Err: errPermission}, 0, false, 10 * ms},
		{"hangs", Fault{Lost: true}, 0, false, 110 * ms},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			r := s.Client(t, "a").Lock("x")
			ctx := t.Context()
			if tt.ends > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, tt.ends)
				defer cancel()
			}
			s.Script("acquire", tt.attempt)
			first := StartAcquire(t, ctx, r, InCohort(time.Minute))
			second := StartAcquire(t, t.Context(), r, InCohort(time.Minute))
			if tt.holds {
				Release(t, first.AwaitHold())
			}
			hold := second.AwaitHold()
			assert.LessOrEqual(t, s.Now(), tt.within)
			Release(t, hold)
			if !tt.holds {
				_ = first.AwaitErr()
			}
			Sleep(time.Minute)
		})
	}
}

// errPermission is an answer after which no further attempt is made.
var errPermission = errors.New("NOPERM")
