package engine

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// crowd makes n clients wait for a lock, each with one waiter, and lets them settle.
func crowd(t *testing.T, s *server, name string, n int) (calls []*call) {
	for i := range n {
		calls = append(calls, startAcquire(t, t.Context(), s.client(t, fmt.Sprintf("c%03d", i)).lineLock(name)))
	}
	sleep(2500 * ms)
	return calls
}

// drain releases each hold as soon as it is acquired.
func drain(t *testing.T, calls ...*call) {
	var wg sync.WaitGroup
	for _, call := range calls {
		wg.Go(func() { assert.NoError(t, call.wait().Release(t.Context())) })
	}
	wg.Wait()
}

func TestOnlyTwoClientsInLineListen(t *testing.T) {
	for _, tt := range []struct{ clients, listeners int }{{1, 1}, {2, 2}, {3, 2}, {20, 2}} {
		t.Run(fmt.Sprint(tt.clients), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				s.seize("x", "other", 0)
				ctx, cancel := context.WithCancel(t.Context())
				for i := range tt.clients {
					startAcquire(t, ctx, s.client(t, fmt.Sprint(i)).lineLock("x"))
				}
				assert.Equal(t, tt.listeners, s.listening("x"))
				assert.Len(t, s.sent("acquire", ""), 2*tt.clients, "one attempt, and one after the subscriptions")
				sleep(5500 * ms)
				clients, listeners := s.inLine("x")
				assert.Equal(t, tt.clients, clients)
				assert.Equal(t, tt.listeners, listeners)
				assert.Len(t, s.sent("acquire", ""), 7*tt.clients, "the slow poll")
				cancel()
				sleep(0)
				clients, _ = s.inLine("x")
				assert.Zero(t, clients, "a waiter that gives up leaves nothing behind")
				assert.Empty(t, s.subs)
			})
		})
	}
}

// Each hand-over takes two commands: the release, and the attempt of the client whose turn it is.
func TestClientsInLineAcquireInOrder(t *testing.T) {
	for _, n := range []int{1, 2, 3, 50} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				holder := acquire(t, t.Context(), s.client(t, "holder").lineLock("x"))
				calls := crowd(t, s, "x", n)
				before := len(s.sent("", ""))
				release(t, holder)
				drain(t, calls...)
				order := s.granted[1:] // ids in the order of arrival; the first one is the holder's
				assert.Equal(t, 2500*ms, s.now(), "nobody waits for a poll")
				// A client that becomes a listener makes an attempt. It may be early, and its release wakes the
				// next one in line before the one that was woken last has tried.
				early := 0
				for i := range order[1:] {
					if order[i] > order[i+1] {
						early++
					}
				}
				assert.LessOrEqual(t, early, n/2, "mostly in the order of arrival: %v", order)
				assert.LessOrEqual(t, len(s.sent("", ""))-before, 3*n+1+4, "with the attempts of new listeners")
				sleep(0)
				clients, _ := s.inLine("x")
				assert.Zero(t, clients)
				s.requireFree(t)
			})
		})
	}
}

// A client that does not know the line frees the lock, as Redisson does.
func TestCommonMessageWakesAListener(t *testing.T) {
	for _, n := range []int{1, 2, 3, 50} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				s.seize("x", "other", 0)
				calls := crowd(t, s, "x", n)
				s.free("x")
				drain(t, calls...)
				assert.Equal(t, 2500*ms, s.now(), "at once")
				s.requireFree(t)
			})
		})
	}
}

// The line is a help only. In each case the first client in line does not take its turn, and others must go on.
func TestLineWithFaults(t *testing.T) {
	const n = 5
	for _, tt := range []struct {
		name string
		act  func(s *server, first *client, cancel func())
		most time.Duration // until another client acquires
		all  bool          // the first one acquires, too
	}{
		{"it hears nothing", func(s *server, first *client, _ func()) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.deaf = first
		}, maxTurn, true},
		{"it gives up at that moment", func(s *server, _ *client, cancel func()) {
			s.onEach(func(cmd command) fault {
				if cmd.op == "release" {
					cancel()
				}
				return fault{}
			})
		}, 0, false},
		{"it hangs", func(s *server, first *client, _ func()) {
			s.onEach(func(cmd command) fault { return fault{lost: cmd.client == first.id} })
		}, maxTurn, false},
		{"its attempt is executed, the reply is lost", func(s *server, first *client, _ func()) {
			s.script("acquire", fault{mute: true})
		}, testTimeout + time.Second, true},
		{"an operator has deleted the line", func(s *server, _ *client, _ func()) { s.dropLine() }, 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				holder := acquire(t, t.Context(), s.client(t, "holder").lineLock("x"))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				c := s.client(t, "first")
				first := startAcquire(t, ctx, c.lineLock("x"))
				calls := crowd(t, s, "x", n)
				tt.act(s, c, cancel)
				release(t, holder)
				released := s.now()
				if tt.all {
					go drain(t, first)
				}
				drain(t, calls...)
				soonest := calls[0].at
				for _, call := range calls {
					if call.at.Before(soonest) {
						soonest = call.at
					}
				}
				assert.LessOrEqual(t, soonest.Sub(s.start)-released, tt.most)
				if tt.all {
					sleep(5 * time.Second)
				}
				s.resetFaults()
				cancel()
				sleep(10 * time.Second)
				assert.True(t, first.returned())
				assert.Equal(t, tt.all, first.err == nil)
				clients, _ := s.inLine("x")
				assert.Zero(t, clients)
				s.requireFree(t)
			})
		})
	}
}

func TestDeletedLineComesBackWithinAPoll(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		s.seize("x", "other", 0)
		calls := crowd(t, s, "x", 10)
		s.dropLine()
		sleep(time.Second)
		clients, listeners := s.inLine("x")
		assert.Equal(t, 10, clients)
		assert.Equal(t, 2, listeners)
		assert.Equal(t, 2, s.listening("x"))
		s.free("x")
		drain(t, calls...)
		assert.Equal(t, 3500*ms, s.now())
		s.requireFree(t)
	})
}

// The server remembers the rollback of a waiter that gave up in doubt, so a late copy of its attempt takes no
// place in line.
func TestLateCopyTakesNoPlace(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		holder := acquire(t, t.Context(), s.client(t, "holder").lineLock("x"))
		ctx, cancel := context.WithCancel(t.Context())
		gone := startAcquire(t, ctx, s.client(t, "gone").lineLock("x"))
		calls := crowd(t, s, "x", 3)
		s.onEach(func(cmd command) fault {
			if cmd.op == "acquire" && cmd.client == "gone" { // the poll at 3 s
				return fault{copy: 700 * ms}
			}
			return fault{}
		})
		sleep(600 * ms)
		cancel()
		require.Error(t, gone.fail())
		sleep(700 * ms)
		clients, _ := s.inLine("x")
		assert.Equal(t, 3, clients)
		release(t, holder)
		drain(t, calls...)
		assert.Equal(t, 3800*ms, s.now())
		clients, _ = s.inLine("x")
		assert.Zero(t, clients)
	})
}

// When the listeners have gone, a release makes another client listen.
func TestReleaseMakesAnotherClientListen(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		holder := acquire(t, t.Context(), s.client(t, "holder").lineLock("x"))
		calls := crowd(t, s, "x", 6)
		release(t, holder)
		s.mu.Lock()
		s.subscribe.delay = 10 * ms
		s.mu.Unlock()
		for _, call := range calls[:2] { // the listeners
			release(t, call.wait())
		}
		hold := calls[2].wait()
		sleep(20 * ms)
		assert.Equal(t, 1, s.listening("x"))
		s.forget("x") // hold is lost
		s.seize("x", "other", 0)
		s.free("x")
		drain(t, calls[3:]...)
		assert.Equal(t, 2520*ms, s.now(), "a listener heard it at once")
		_ = hold.Release(t.Context())
	})
}

// A shared id takes no place, so its client listens.
func TestWaiterWithASharedIDListens(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		s.seize("x", "other", 0)
		calls := crowd(t, s, "x", 3)
		c := s.client(t, "shared")
		shared := startAcquire(t, t.Context(), c.lineLock("x"), owner("me"))
		private := startAcquire(t, t.Context(), c.lineLock("x"))
		sleep(time.Second)
		assert.Equal(t, 3, s.listening("x"))
		s.free("x")
		drain(t, append(calls, shared, private)...)
		assert.LessOrEqual(t, s.now(), 3500*ms+maxTurn)
		s.requireFree(t)
	})
}

// Clients with many waiters take turns in the order of the line, however long each streak is.
func TestClientsInLineTakeTurns(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		const clients, waiters = 4, 40
		holder := acquire(t, t.Context(), s.client(t, "holder").lineLock("x"))
		order := make(chan string, clients*waiters)
		for i := range clients {
			r := s.client(t, fmt.Sprint(i)).lineLock("x")
			for range waiters {
				start(t, func() (*Hold, error) {
					hold := acquire(t, t.Context(), r)
					order <- r.Driver.(*driver).c.id
					return hold, hold.Release(t.Context())
				})
			}
		}
		sleep(2500 * ms)
		attempts := len(s.sent("acquire", ""))
		release(t, holder)
		var runs []string
		last := ""
		for range clients * waiters {
			if id := <-order; id != last {
				runs, last = append(runs, id), id
			}
		}
		assert.Equal(t, []string{"0", "1", "2", "3", "0", "1", "2", "3"}, runs[:2*clients])
		assert.LessOrEqual(t, s.now(), 2500*ms+maxStreak, "nobody waits for a poll")
		assert.LessOrEqual(t, len(s.sent("acquire", ""))-attempts, len(runs)+5)
		sleep(time.Second)
		clientsLeft, _ := s.inLine("x")
		assert.Zero(t, clientsLeft)
		s.requireFree(t)
	})
}
