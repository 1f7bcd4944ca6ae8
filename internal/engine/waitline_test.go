package engine_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/engine"
	. "github.com/redlatch/redlatch/internal/test/enginetest"
	"github.com/redlatch/redlatch/internal/waitq"
)

// crowd makes n clients wait for a lock, each with one waiter, and lets them settle.
func crowd(t *testing.T, s *Server, name string, n int) (calls []*Call) {
	for i := range n {
		calls = append(calls, StartAcquire(t, t.Context(), s.Client(t, fmt.Sprintf("c%03d", i)).LineLock(name)))
	}
	Sleep(2500 * ms)
	return calls
}

// drain releases each hold as soon as it is acquired.
func drain(t *testing.T, calls ...*Call) {
	var wg sync.WaitGroup
	for _, call := range calls {
		wg.Go(func() { assert.NoError(t, call.AwaitHold().Release(t.Context())) })
	}
	wg.Wait()
}

func TestOnlyTwoClientsInLineListen(t *testing.T) {
	for _, tt := range []struct{ clients, listeners int }{{1, 1}, {2, 2}, {3, 2}, {20, 2}} {
		RunBubble(t, fmt.Sprint(tt.clients), func(t *testing.T, s *Server) {
			s.MayStayHeld()
			s.Seize("x", "other", 0)
			ctx, cancel := context.WithCancel(t.Context())
			for i := range tt.clients {
				StartAcquire(t, ctx, s.Client(t, fmt.Sprint(i)).LineLock("x"))
			}
			assert.Equal(t, tt.listeners, s.Listening("x"))
			assert.Len(t, s.Sent("acquire"), 2*tt.clients, "one attempt, and one after the subscriptions")
			Sleep(5500 * ms)
			clients, listeners := s.InLine("x")
			assert.Equal(t, tt.clients, clients)
			assert.Equal(t, tt.listeners, listeners)
			assert.Len(t, s.Sent("acquire"), 7*tt.clients, "the slow poll")
			cancel()
			Settle()
			clients, _ = s.InLine("x")
			assert.Zero(t, clients, "a waiter that gives up leaves nothing behind")
			assert.Empty(t, s.Subs)
		})
	}
}

// Each hand-off takes two commands: the release, and the attempt of the client whose turn it is.
func TestClientsInLineAcquireInOrder(t *testing.T) {
	for _, n := range []int{1, 2, 3, 50} {
		RunBubble(t, fmt.Sprint(n), func(t *testing.T, s *Server) {
			holder := Acquire(t, t.Context(), s.Client(t, "holder").LineLock("x"))
			calls := crowd(t, s, "x", n)
			before := len(s.Commands())
			Release(t, holder)
			drain(t, calls...)
			order := s.Granted[1:] // ids in the order of arrival; the first one is the holder's
			assert.Equal(t, 2500*ms, s.Now(), "nobody waits for a poll")
			// A client that becomes a listener makes an attempt. It may be early, and its release
			// wakes the next one in line before the one that was woken last has tried.
			early := 0
			for i := range order[1:] {
				if order[i] > order[i+1] {
					early++
				}
			}
			assert.LessOrEqual(t, early, n/2, "mostly in the order of arrival: %v", order)
			assert.LessOrEqual(t, len(s.Commands())-before, 3*n+1+4, "with the attempts of new listeners")
			Settle()
			clients, _ := s.InLine("x")
			assert.Zero(t, clients)
		})
	}
}

// A client that does not know the line frees the lock, as Redisson does.
func TestCommonMessageWakesAListener(t *testing.T) {
	for _, n := range []int{1, 2, 3, 50} {
		RunBubble(t, fmt.Sprint(n), func(t *testing.T, s *Server) {
			s.Seize("x", "other", 0)
			calls := crowd(t, s, "x", n)
			s.Free("x")
			drain(t, calls...)
			assert.Equal(t, 2500*ms, s.Now(), "at once")
		})
	}
}

// The line is only a hint. In each case the first client in line does not take its turn, and others
// must go on.
func TestLineWithFaults(t *testing.T) {
	const n = 5
	for _, tt := range []struct {
		name string
		act  func(s *Server, first *Client, cancel func())
		most time.Duration // until another client acquires
		all  bool          // the first one acquires, too
	}{
		{
			name: "it hears nothing", most: waitq.MaxTurn, all: true,
			act: func(s *Server, first *Client, _ func()) {
				s.Mu.Lock()
				defer s.Mu.Unlock()
				s.Deaf = first
			},
		},
		{
			name: "it gives up at that moment",
			act: func(s *Server, _ *Client, cancel func()) {
				s.OnEach(func(cmd Command) Fault {
					if cmd.Op == "release" {
						cancel()
					}
					return Fault{}
				})
			},
		},
		{
			name: "it hangs", most: waitq.MaxTurn,
			act: func(s *Server, first *Client, _ func()) {
				s.OnEach(func(cmd Command) Fault { return Fault{Lost: cmd.Client == first.ID} })
			},
		},
		{
			name: "its attempt is executed, the reply is lost", most: CommandTimeout + time.Second, all: true,
			act: func(s *Server, first *Client, _ func()) {
				s.Script("acquire", Fault{Mute: true})
			},
		},
		{
			name: "an operator has deleted the line", act: func(s *Server, _ *Client, _ func()) { s.DropLine() },
			all: true,
		},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			holder := Acquire(t, t.Context(), s.Client(t, "holder").LineLock("x"))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			c := s.Client(t, "first")
			first := StartAcquire(t, ctx, c.LineLock("x"))
			calls := crowd(t, s, "x", n)
			tt.act(s, c, cancel)
			Release(t, holder)
			released := s.Now()
			if tt.all {
				go drain(t, first)
			}
			drain(t, calls...)
			soonest := calls[0].At
			for _, call := range calls {
				if call.At.Before(soonest) {
					soonest = call.At
				}
			}
			assert.LessOrEqual(t, soonest.Sub(s.Start)-released, tt.most)
			if tt.all {
				Sleep(5 * time.Second)
			}
			s.ResetFaults()
			cancel()
			Sleep(10 * time.Second)
			assert.True(t, first.Returned())
			assert.Equal(t, tt.all, first.Err == nil)
			clients, _ := s.InLine("x")
			assert.Zero(t, clients)
		})
	}
}

func TestDeletedLineComesBackWithinAPoll(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		s.Seize("x", "other", 0)
		calls := crowd(t, s, "x", 10)
		s.DropLine()
		Sleep(time.Second)
		clients, listeners := s.InLine("x")
		assert.Equal(t, 10, clients)
		assert.Equal(t, 2, listeners)
		assert.Equal(t, 2, s.Listening("x"))
		s.Free("x")
		drain(t, calls...)
		assert.Equal(t, 3500*ms, s.Now())
	})
}

// The server remembers the rollback of a waiter that gave up in doubt, so a late copy of its
// attempt takes no place in line.
func TestLateCopyTakesNoPlace(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		holder := Acquire(t, t.Context(), s.Client(t, "holder").LineLock("x"))
		ctx, cancel := context.WithCancel(t.Context())
		gone := StartAcquire(t, ctx, s.Client(t, "gone").LineLock("x"))
		calls := crowd(t, s, "x", 3)
		s.OnEach(func(cmd Command) Fault {
			if cmd.Op == "acquire" && cmd.Client == "gone" { // the poll at 3 s
				return Fault{Copy: 700 * ms}
			}
			return Fault{}
		})
		Sleep(600 * ms)
		cancel()
		require.Error(t, gone.AwaitErr())
		Sleep(700 * ms)
		clients, _ := s.InLine("x")
		assert.Equal(t, 3, clients)
		Release(t, holder)
		drain(t, calls...)
		assert.Equal(t, 3800*ms, s.Now())
		clients, _ = s.InLine("x")
		assert.Zero(t, clients)
	})
}

// When the listeners have gone, a release makes another client listen.
func TestReleaseMakesAnotherClientListen(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		holder := Acquire(t, t.Context(), s.Client(t, "holder").LineLock("x"))
		calls := crowd(t, s, "x", 6)
		Release(t, holder)
		s.Mu.Lock()
		s.Subscribe.Delay = 10 * ms
		s.Mu.Unlock()
		for _, call := range calls[:2] { // the listeners
			Release(t, call.AwaitHold())
		}
		hold := calls[2].AwaitHold()
		Sleep(20 * ms)
		assert.Equal(t, 1, s.Listening("x"))
		s.Forget("x") // hold is lost
		s.Seize("x", "other", 0)
		s.Free("x")
		drain(t, calls[3:]...)
		assert.Equal(t, 2520*ms, s.Now(), "a listener heard it at once")
		_ = hold.Release(t.Context())
	})
}

// A shared id takes no place, so its client listens.
func TestWaiterWithASharedIDListens(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		s.Seize("x", "other", 0)
		calls := crowd(t, s, "x", 3)
		c := s.Client(t, "shared")
		shared := StartAcquire(t, t.Context(), c.LineLock("x"), OwnedBy("me"))
		private := StartAcquire(t, t.Context(), c.LineLock("x"))
		Sleep(time.Second)
		assert.Equal(t, 3, s.Listening("x"))
		s.Free("x")
		drain(t, append(calls, shared, private)...)
		assert.LessOrEqual(t, s.Now(), 3500*ms+waitq.MaxTurn)
	})
}

// Clients with many waiters take turns in the order of the line, however long each streak is.
func TestClientsInLineTakeTurns(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		const clients, waiters = 4, 5 * waitq.MaxStreakCount / 2
		holder := Acquire(t, t.Context(), s.Client(t, "holder").LineLock("x"))
		order := make(chan string, clients*waiters)
		for i := range clients {
			r := s.Client(t, fmt.Sprint(i)).LineLock("x")
			for range waiters {
				Start(t, func() (*engine.Hold, error) {
					hold := Acquire(t, t.Context(), r)
					order <- r.Driver.(*FakeDriver).Client.ID
					return hold, hold.Release(t.Context())
				})
			}
		}
		Sleep(2500 * ms)
		attempts := len(s.Sent("acquire"))
		Release(t, holder)
		var runs []string
		last := ""
		for range clients * waiters {
			if id := <-order; id != last {
				runs, last = append(runs, id), id
			}
		}
		assert.Equal(t, []string{"0", "1", "2", "3", "0", "1", "2", "3"}, runs[:2*clients])
		assert.LessOrEqual(t, s.Now(), 2500*ms+waitq.MaxStreak, "nobody waits for a poll")
		assert.LessOrEqual(t, len(s.Sent("acquire"))-attempts, len(runs)+5)
		Sleep(time.Second)
		clientsLeft, _ := s.InLine("x")
		assert.Zero(t, clientsLeft)
	})
}

// Turns are passed on without a command, so their client leaves the line by one of its own when
// nobody waits at the end. Otherwise the server would count it among the listeners, and no waiter
// would hear a release by a client that does not know the line.
func TestClientWhoseUsersTakeTurnsLeavesTheLine(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		for _, id := range []string{"a", "b"} {
			r := s.Client(t, id).LineLock("x")
			first := Acquire(t, t.Context(), r, InCohort(time.Minute))
			second := StartAcquire(t, t.Context(), r, InCohort(time.Minute))
			Release(t, first)
			hold := second.AwaitHold()
			assert.Equal(t, first.ID(), hold.ID(), "passed on")
			Release(t, hold)
			Settle()
			clients, listeners := s.InLine("x")
			assert.Zero(t, clients)
			assert.Zero(t, listeners)
		}
		s.Seize("x", "other", 0)
		waiter := StartAcquire(t, t.Context(), s.Client(t, "c").LineLock("x"))
		before := s.Now()
		s.Free("x")
		Release(t, waiter.AwaitHold())
		assert.Equal(t, before, s.Now(), "at once")
	})
}
