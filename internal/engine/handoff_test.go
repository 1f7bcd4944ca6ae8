package engine_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/engine"
	. "github.com/redlatch/redlatch/internal/test/enginetest"
	"github.com/redlatch/redlatch/internal/waitq"
)

func TestReleaseHandsOffToTheFirstWaiter(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		r := s.Client(t, "a").Lock("x")
		holder := Acquire(t, t.Context(), r)
		first, second := StartAcquire(t, t.Context(), r), StartAcquire(t, t.Context(), r, FixedLease(7*time.Second))
		attempts := len(s.Sent("acquire"))
		Release(t, holder)
		assert.Equal(t, "a:2", first.AwaitHold().ID())
		assert.Equal(t, []string{"a:2"}, s.IDs("x"))
		assert.False(t, second.Returned())
		Release(t, first.Hold)
		assert.Equal(t, 7*time.Second, s.Lease("x", second.AwaitHold().ID()), "the lease that the successor asks for")
		Release(t, second.Hold)
		assert.Len(t, s.Sent("acquire"), attempts, "successors send nothing")
		assert.Len(t, s.Sent("handoff"), 2)
		assert.Len(t, s.Sent("release"), 1)
	})
}

// Each case releases a lock for which this waiter of the same client waits.
func TestReleaseDoesNotHandOff(t *testing.T) {
	for _, tt := range []struct {
		name   string
		holder []func(*engine.Terms)
		waiter []func(*engine.Terms)
		config func(*engine.Config)
		act    func(s *Server, c *Client)
	}{
		{name: "a holder with a shared id", holder: []func(*engine.Terms){OwnedBy("me")}},
		{name: "to a waiter with a shared id", waiter: []func(*engine.Terms){OwnedBy("me")}},
		{name: "to a waiter that polls", waiter: []func(*engine.Terms){Polling(10*ms, 10*ms)}},
		{name: "where replicas must confirm", config: func(c *engine.Config) { c.NeedsReplicas = true }},
		{name: "after 10 ms", act: func(*Server, *Client) { Sleep(waitq.MaxStreak) }},
		{name: "a lost lock", act: func(s *Server, _ *Client) { s.Forget("x") }},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			config := tt.config
			if config == nil {
				config = func(*engine.Config) {}
			}
			c := s.Client(t, "a", config)
			holder := Acquire(t, t.Context(), c.Lock("x"), tt.holder...)
			waiter := StartAcquire(t, t.Context(), c.Lock("x"), tt.waiter...)
			attempts := len(s.Sent("acquire"))
			if tt.act != nil {
				tt.act(s, c)
			}
			_ = holder.Release(t.Context())
			Release(t, waiter.AwaitHold())
			assert.Greater(t, len(s.Sent("acquire")), attempts, "the waiter makes its own attempt")
		})
	}
}

func TestSemaphoreHandsOffToAWaiterThatWantsNoMore(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		r := s.Client(t, "a").Semaphore("x")
		s.SetPermits("x", 3)
		holder := Acquire(t, t.Context(), r, PermitsOf(3))
		few := StartAcquire(t, t.Context(), r, PermitsOf(2))
		one := StartAcquire(t, t.Context(), r, PermitsOf(1))
		attempts := len(s.Sent("acquire"))
		Release(t, holder)
		few.AwaitHold()
		one.AwaitHold()
		assert.Len(t, s.Sent("handoff"), 1)
		assert.Len(t, s.Sent("acquire"), attempts+1, "the successor's room admits another")
		more := StartAcquire(t, t.Context(), r, PermitsOf(3))
		Release(t, one.Hold)
		assert.False(t, more.Returned())
		Release(t, few.Hold)
		assert.Len(t, s.Sent("handoff"), 1, "it wants more than was released")
		Release(t, more.AwaitHold())
	})
}

// In each case the first waiter gives up 50 ms after the release began. The hand-off to it is
// executed at some time or never, and is answered or not. A second waiter acquires in the end.
func TestSuccessorThatGivesUpRollsTheHandOffBack(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault Fault
	}{
		{"executed before, answered after", Fault{Reply: 100 * ms}},
		{"executed after", Fault{Delay: 100 * ms}},
		{"executed long after", Fault{Delay: 10 * time.Second}},
		{"executed before, not answered", Fault{Mute: true}},
		{"never executed", Fault{Lost: true}},
		{"executed twice", Fault{Reply: 100 * ms, Copy: 200 * ms}},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			s.KeepLeases()
			r := s.Client(t, "a").Lock("x")
			holder := Acquire(t, t.Context(), r)
			ctx, cancel := context.WithCancelCause(t.Context())
			successor := StartAcquire(t, ctx, r)
			s.Script("handoff", tt.fault)
			released := StartRelease(t, holder)
			Sleep(50 * ms)
			cancel(errCause)
			require.ErrorIs(t, successor.AwaitErr(), engine.ErrNotAcquired)
			second := StartAcquire(t, t.Context(), r)
			released.Await()
			assert.NotEmpty(t, s.Sent("rollback", "a:2"))
			Release(t, second.AwaitHold())
			Sleep(time.Minute)
		})
	}
}

func TestSuccessorThatWasGrantedButHasGoneRollsBack(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		r := s.Client(t, "a").Lock("x")
		holder := Acquire(t, t.Context(), r)
		ctx, cancel := context.WithCancel(t.Context())
		successor := StartAcquire(t, ctx, r)
		s.OnEach(func(cmd Command) Fault {
			if cmd.Op == "handoff" {
				cancel() // the waiter wakes up only when this command has been answered
			}
			return Fault{}
		})
		Release(t, holder)
		require.ErrorIs(t, successor.AwaitErr(), engine.ErrNotAcquired)
		Sleep(time.Second)
		assert.Len(t, s.Sent("rollback", "a:2"), 1)
	})
}

// The successor has tried by itself since, and was refused. The hand-off may still be executed.
func TestUnknownHandOffIsRolledBackAfterARefusal(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		s.KeepLeases()
		r := s.Client(t, "a").Lock("x")
		holder := Acquire(t, t.Context(), r)
		successor := Start(t, func() (*engine.Hold, error) { return r.Acquire(t.Context(), NewTerms(), 5*time.Second) })
		s.Script("handoff", Fault{Delay: 10 * time.Second})
		down := s.Start.Add(20 * time.Second)
		s.OnEach(func(cmd Command) Fault {
			if cmd.Op == "release" && time.Now().Before(down) {
				return Fault{Err: ErrDown}
			}
			return Fault{}
		})
		_ = StartRelease(t, holder).AwaitErr()
		require.ErrorIs(t, successor.AwaitErr(), engine.ErrNotAcquired)
		Sleep(time.Minute)
	})
}

func TestHandOffAnsweredAfterTheLeaseIsRolledBack(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		s.KeepLeases()
		r := s.Client(t, "a").Lock("x")
		holder := Acquire(t, t.Context(), r)
		successor := StartAcquire(t, t.Context(), r, TTL(time.Second))
		s.Script("handoff", Fault{Reply: 2 * time.Second})
		s.Script("acquire", Fault{Lost: true}, Fault{Lost: true})
		StartRelease(t, holder).AwaitHold()
		assert.Equal(t, 2*time.Second, s.Now())
		require.ErrorIs(t, successor.AwaitErr(), engine.ErrLost)
		Sleep(time.Second)
	})
}

// The outcome of a hand-off is unknown. The successor asks the server itself.
func TestHandOffOfUnknownOutcome(t *testing.T) {
	for _, tt := range []struct {
		name    string
		fault   Fault
		timeout time.Duration // of commands
		at      time.Duration // when the successor has it
	}{
		{name: "executed: its poll finds out", fault: Fault{Mute: true}, timeout: CommandTimeout, at: time.Second},
		{name: "executed: it asks at once", fault: Fault{Mute: true}, timeout: 200 * ms, at: 200 * ms},
		{
			name: "executed when the release was repeated already", fault: Fault{Delay: CommandTimeout + 100*ms},
			timeout: CommandTimeout, at: CommandTimeout + 20*ms,
		},
		{name: "never executed", fault: Fault{Lost: true}, timeout: CommandTimeout, at: CommandTimeout + 20*ms},
		{name: "the server refused", fault: Fault{Err: ErrDown}, timeout: CommandTimeout, at: 20 * ms},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			s.KeepLeases()
			r := s.Client(t, "a", func(config *engine.Config) { config.CommandTimeout = tt.timeout }).Lock("x")
			holder := Acquire(t, t.Context(), r)
			successor := StartAcquire(t, t.Context(), r)
			s.Script("handoff", tt.fault)
			s.Script("release", Fault{Err: ErrDown}) // the first repetition
			require.Error(t, StartRelease(t, holder).AwaitErr())
			hold := successor.AwaitHold()
			assert.Equal(t, []string{hold.ID()}, s.IDs("x"))
			assert.Equal(t, tt.at, successor.At.Sub(s.Start))
			Sleep(10 * time.Second)
			assert.NoError(t, Carry(hold).Err())
			assert.Equal(t, []string{hold.ID()}, s.IDs("x"), "the repeated release frees only the old holder")
			Release(t, hold)
			Sleep(time.Minute)
		})
	}
}

// Two clients want the lock. Each hands it off as often as a streak allows, and then lets the other
// one go first.
func TestClientsTakeTurnsAfterAStreakOfHandOffs(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		a, b := s.Client(t, "a").Lock("x"), s.Client(t, "b").Lock("x")
		holder := Acquire(t, t.Context(), a)
		const n = waitq.MaxStreakCount
		const waiters = 5 * n / 2
		order := make(chan *engine.Hold, 2*waiters)
		for _, r := range []*engine.Resource{a, b} {
			for range waiters {
				Start(t, func() (*engine.Hold, error) {
					hold := Acquire(t, t.Context(), r)
					order <- hold
					return hold, hold.Release(t.Context())
				})
			}
		}
		Release(t, holder)
		var runs []int
		last := ""
		for range 2 * waiters {
			if id := (<-order).Resource().Driver.(*FakeDriver).Client.ID; id == last {
				runs[len(runs)-1]++
			} else {
				runs, last = append(runs, 1), id
			}
		}
		require.GreaterOrEqual(t, len(runs), 4)
		assert.Equal(t, []int{n, n + 1, n + 1, n + 1}, runs[:4])
		assert.Zero(t, s.Now(), "nobody waits for a poll")
		Sleep(time.Second)
	})
}

func TestStreakEndsAfterTenMilliseconds(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		r := s.Client(t, "a").Lock("x")
		holder := Acquire(t, t.Context(), r)
		first, second := StartAcquire(t, t.Context(), r), StartAcquire(t, t.Context(), r)
		Sleep(waitq.MaxStreak - ms)
		Release(t, holder)
		first.AwaitHold()
		Sleep(ms) // the series began with the first holder
		Release(t, first.Hold)
		second.AwaitHold()
		assert.Equal(t, waitq.MaxStreak, s.Now(), "no other client was told, so it tries at once")
		assert.Len(t, s.Sent("handoff"), 1)
		Release(t, second.Hold)
		Settle()
	})
}

// A client whose streak is over leaves the free lock to the other clients that received the
// message.
func TestYieldingClientLeavesMessagesToOthers(t *testing.T) {
	for _, tt := range []struct {
		name   string
		others int
		fault  Fault         // of the release
		least  time.Duration // after the release, until the waiter acquires, though no other client does
		most   time.Duration
		silent bool // the message of the release is lost
	}{
		{name: "no other client"},
		{name: "no other client, and the message is lost", silent: true},
		{name: "another client that does not acquire", others: 1, least: waitq.FirstTry, most: waitq.MaxStreak},
		{name: "three others that do not acquire", others: 3, least: waitq.FirstTry, most: waitq.MaxStreak},
		{
			name: "the release is not answered", others: 1, fault: Fault{Mute: true}, least: waitq.MaxStreak,
			most: waitq.MaxStreak,
		},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			s.Silent = tt.silent
			r := s.Client(t, "a").Lock("x")
			for i := range tt.others {
				other := s.Client(t, string(rune('b'+i)))
				sub := s.NewSubscription(other, "x", func(engine.Message) {})
				defer sub.Close()
			}
			holder := Acquire(t, t.Context(), r)
			waiter := StartAcquire(t, t.Context(), r)
			Sleep(100 * ms)
			s.Script("release", tt.fault)
			released := StartRelease(t, holder)
			waiter.AwaitHold()
			assert.GreaterOrEqual(t, s.Now(), 100*ms+tt.least)
			assert.LessOrEqual(t, s.Now(), 100*ms+tt.most)
			released.Await()
			Release(t, waiter.Hold)
			Sleep(time.Minute)
		})
	}
}
