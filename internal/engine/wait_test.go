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

const ms = time.Millisecond

func TestReleaseMessageWakesTheFirstWaiterOnly(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		holder := acquire(t, t.Context(), s.client(t, "b").writer("x"))
		r := s.client(t, "a").writer("x") // its releases do not hand off
		var calls []*call
		for range 4 {
			calls = append(calls, startAcquire(t, t.Context(), r))
		}
		sleep(1500 * ms)
		before := len(s.sent("acquire", "a"))
		release(t, holder)
		for i, call := range calls {
			hold := call.wait()
			assert.Equal(t, 1500*ms, s.now(), "woken by the message")
			for _, later := range calls[i+1:] {
				assert.False(t, later.returned(), "in the order of arrival")
			}
			assert.Len(t, s.sent("acquire", "a"), before+i+1, "one attempt for each message")
			release(t, hold)
		}
		s.requireFree(t)
	})
}

func TestOneAttemptASecondHoweverManyWaiters(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		s.seize("x", "other", 0)
		r := s.client(t, "a").lock("x")
		ctx, cancel := context.WithCancel(t.Context())
		var calls []*call
		for range 20 {
			calls = append(calls, startAcquire(t, ctx, r))
		}
		sleep(5500 * ms)
		// The first attempt, the one after the subscription, and the slow poll.
		assert.Equal(t, []time.Duration{0, 0, 1 * time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second,
			5 * time.Second},
			s.sent("acquire", ""))
		assert.Equal(t, 20, r.Core.Waiters())
		assert.Equal(t, int64(20), r.Driver.(*driver).c.waiting.Load())
		cancel()
		for _, call := range calls {
			_ = call.fail()
		}
		assert.Zero(t, r.Core.Waiters())
	})
}

// The holder releases after 100 ms.
func TestSecondAttemptWaitsForTheSubscription(t *testing.T) {
	refused := errors.New("no permission")
	for _, tt := range []struct {
		name      string
		subscribe subscribeFault
		silent    bool
		want      []time.Duration // attempts
		logged    string
	}{
		{"confirmed before the release", subscribeFault{}, false, []time.Duration{0, 0, 100 * ms}, ""},
		{"confirmed after the release", subscribeFault{delay: 200 * ms}, false, []time.Duration{0, 200 * ms}, ""},
		{"refused after the release", subscribeFault{200 * ms, refused}, false, []time.Duration{0, 200 * ms},
			"no permission"},
		{"refused before the release", subscribeFault{50 * ms, refused}, false, []time.Duration{0, 50 * ms, 1050 * ms},
			"no permission"},
		{"never answered", subscribeFault{delay: time.Hour}, false, []time.Duration{0, time.Second}, ""},
		{"the message is lost", subscribeFault{}, true, []time.Duration{0, 0, time.Second}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				c := s.client(t, "a")
				s.subscribe, s.silent = tt.subscribe, tt.silent
				s.seize("x", "other", 0)
				call := startAcquire(t, t.Context(), c.lock("x"))
				sleep(100 * ms)
				s.free("x")
				release(t, call.wait())
				assert.Equal(t, tt.want, s.sent("acquire", ""))
				assert.Contains(t, c.logged(), tt.logged)
				assert.Equal(t, tt.logged == "", c.logged() == "")
				assert.Empty(t, s.subs, "the last waiter ends the subscription")
			})
		})
	}
}

func TestNextHeadWaitsForTheSubscription(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		r := s.client(t, "a").lock("x")
		s.subscribe.delay = 300 * ms
		s.seize("x", "other", 0)
		ctx, cancel := context.WithCancel(t.Context())
		first, second := startAcquire(t, ctx, r), startAcquire(t, t.Context(), r)
		sleep(100 * ms)
		cancel()
		_ = first.fail()
		sleep(100 * ms)
		s.free("x") // no client receives the message
		release(t, second.wait())
		assert.Equal(t, 300*ms, s.now())
	})
}

func TestReconnectionIsAReasonToTry(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		s.silent = true
		s.seize("x", "other", 0)
		call := startAcquire(t, t.Context(), s.client(t, "a").lock("x"))
		sleep(300 * ms)
		s.free("x")
		sleep(100 * ms)
		assert.False(t, call.returned())
		s.reconnected()
		release(t, call.wait())
		assert.Equal(t, 400*ms, s.now())
	})
}

func TestWaitersGoOnAfterPassingFailures(t *testing.T) {
	for _, tt := range []struct {
		name   string
		faults []fault // of attempts while waiting
		want   []time.Duration
	}{
		{"unreachable", []fault{{err: errDown}, {err: errDown}}, []time.Duration{0, 0, 1 * time.Second, 2 * time.Second}},
		{"no answer", []fault{{mute: true}}, []time.Duration{0, 0, testTimeout + time.Second}},
		{"not now", []fault{{err: errBusy}, {err: errBusy}}, []time.Duration{0, 0, 101 * ms, 202 * ms}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				c := s.client(t, "a")
				s.seize("x", "other", ms)
				s.script("acquire", append([]fault{{}}, tt.faults...)...)
				hold := acquire(t, t.Context(), c.writer("x"))
				sent := s.sent("acquire", "")
				assert.Equal(t, tt.want[:3], sent[:3])
				assert.Equal(t, tt.want[len(tt.want)-1], sent[len(sent)-1])
				release(t, hold)
				s.requireFree(t)
			})
		})
	}
}

func TestGivingUpTellsTheLastFailure(t *testing.T) {
	for _, err := range []error{errDown, errBusy} {
		bubble(t, func(t *testing.T, s *server) {
			c := s.client(t, "a")
			s.seize("x", "other", 0)
			s.script("acquire", fault{}, fault{err: err})
			_, got := c.lock("x").Acquire(t.Context(), terms(), 50*ms)
			require.ErrorIs(t, got, ErrNotAcquired)
			require.ErrorIs(t, got, err)
		})
	}
}

// A head whose attempt fails for good, or whose caller has gone, leaves its reason to try to the next
// waiter. The lock is free by then.
func TestLeavingHeadPassesItsReasonToTryOn(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault fault // of the head's attempt after the message
		limit time.Duration
		want  error
		at    time.Duration // when the next waiter acquires
	}{
		{"failed for good", fault{err: errFatal}, forever, errFatal, 300 * ms},
		{"its context ended while its attempt was unanswered", fault{lost: true}, forever, errCause, 450 * ms},
		{"gave up while its attempt was unanswered", fault{lost: true}, 400 * ms, ErrNotAcquired, 420 * ms},
		{"gave up while its attempt failed", fault{delay: 110 * ms, err: errDown}, 400 * ms, ErrNotAcquired, 410 * ms},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				s.keepLeases()
				r := s.client(t, "a").writer("x")
				s.seize("x", "other", 0)
				ctx, cancel := context.WithCancelCause(t.Context())
				head := start(t, func() (*Hold, error) { return r.Acquire(ctx, terms(), tt.limit) })
				next := startAcquire(t, t.Context(), r)
				sleep(300 * ms)
				s.script("acquire", tt.fault)
				s.free("x")
				sleep(150 * ms)
				cancel(errCause)
				require.ErrorIs(t, head.fail(), tt.want)
				hold := next.wait()
				assert.Equal(t, tt.at, next.at.Sub(s.start))
				release(t, hold)
				sleep(time.Minute)
				s.requireFree(t)
			})
		})
	}
}

func TestWaiterThatLeavesUnwokenPassesItsReasonToTryOn(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		r := c.lock("x")
		q := c.queues.of(r, terms())
		first := &Waiter{Request: r.NewRequest(terms()), resource: r, wakeup: NewSignal()}
		second := &Waiter{Request: r.NewRequest(terms()), resource: r, wakeup: NewSignal()}
		q.Join(first, Result{RetryAfter: -1})
		q.joining++
		q.Join(second, Result{RetryAfter: -1})
		q.Confirmed(first)
		assert.True(t, q.NextStep(first).Try)
		assert.False(t, q.NextStep(first).Try, "used")
		q.message(false)
		assert.False(t, q.NextStep(second).Try)
		q.Leave(first, Result{})
		assert.True(t, q.NextStep(second).Try)
		q.Leave(second, Result{})
	})
}

func TestNextWaiterTriesWhileTheHeadIsStuck(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		r := s.client(t, "a").writer("x")
		s.seize("x", "other", 0)
		head, second := startAcquire(t, t.Context(), r), startAcquire(t, t.Context(), r)
		third := startAcquire(t, t.Context(), r)
		sleep(500 * ms)
		s.script("acquire", fault{lost: true}, fault{lost: true}) // on a connection that is stuck
		s.free("x")
		third.wait()
		assert.Equal(t, 500*ms+stuckAfter+slowPoll, s.now())
		assert.False(t, head.returned())
		assert.False(t, second.returned())
		release(t, third.hold)
		release(t, head.wait())
		release(t, second.wait())
		s.requireFree(t)
	})
}

// The second waiter has acquired while the head was stuck, and its reply was lost. Only it can find out.
func TestWaiterWhoseAttemptIsInDoubtAsksAgainAlthoughItIsNotTheHead(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		s.keepLeases()
		r := s.client(t, "a").writer("x")
		s.seize("x", "other", 0)
		head, second := startAcquire(t, t.Context(), r), startAcquire(t, t.Context(), r)
		sleep(500 * ms)
		s.script("acquire", fault{lost: true}, fault{mute: true})
		s.free("x")
		release(t, second.wait())
		assert.LessOrEqual(t, s.now(), 500*ms+stuckAfter+testTimeout+slowPoll)
		release(t, head.wait())
		s.requireFree(t)
	})
}

func TestPollingBacksOffAndDoesNotSubscribe(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		r := s.client(t, "a").lock("x")
		s.seize("x", "other", 0)
		call := startAcquire(t, t.Context(), r, polling(10*ms, 300*ms))
		assert.Empty(t, s.subs)
		sleep(3 * time.Second)
		sent := s.sent("acquire", "")
		pause := 10 * ms
		for i := 1; i < len(sent); i++ {
			got := sent[i] - sent[i-1]
			assert.GreaterOrEqual(t, got, pause, "pause %d", i)
			assert.LessOrEqual(t, got, pause+pause/4, "pause %d", i)
			pause = min(2*pause, 300*ms)
		}
		assert.Greater(t, len(sent), 10)
		s.free("x")
		release(t, call.wait())
	})
}

func TestPollingBeginsAnewAfterAGrant(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		r := s.client(t, "a").lock("x")
		s.seize("x", "other", 0)
		head := startAcquire(t, t.Context(), r, polling(10*ms, time.Second))
		next := startAcquire(t, t.Context(), r, polling(10*ms, time.Second))
		sleep(10 * time.Second)
		s.forget("x")
		hold := head.wait()
		granted := s.now()
		sleep(50 * ms)
		assert.GreaterOrEqual(t, len(s.sent("acquire", "a:2")), 2, "short pauses again")
		release(t, hold)
		release(t, next.wait())
		assert.Less(t, s.now()-granted, 200*ms)
	})
}

func TestPollingWithALargeBackoffDoesNotOverflow(t *testing.T) {
	c := NewCore(Config{})
	r := &Resource{Core: c, Kind: "lock", Name: "x"}
	longest := 100 * 365 * 24 * time.Hour
	first := time.Duration(1<<34 + 1) // shifted by 30 it is 2^30, without the overflow
	q := c.queues.of(r, terms(polling(first, longest)))
	for n := range 100 {
		got := q.backoff(n)
		assert.Positive(t, got)
		assert.GreaterOrEqual(t, got, first)
		assert.LessOrEqual(t, got, longest+longest/4+1)
	}
}

// Requests that poll and requests that listen do not wait for each other.
func TestPollingRequestsHaveAQueueOfTheirOwn(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		r := s.client(t, "a").writer("x")
		s.seize("x", "other", 0)
		listening := startAcquire(t, t.Context(), r)
		polls := startAcquire(t, t.Context(), r, polling(10*ms, 20*ms))
		sleep(100 * ms)
		s.forget("x") // without a message
		hold := polls.wait()
		assert.Less(t, s.now(), 130*ms)
		assert.False(t, listening.returned())
		release(t, hold)
		release(t, listening.wait())
	})
}

func TestRequestDoesNotOvertakeAWaiterThatCouldGoFirst(t *testing.T) {
	for _, tt := range []struct {
		name    string
		waits   []func(*Terms) // of the waiter
		comes   []func(*Terms) // of the request that comes later
		mayTry  bool
		granted bool // one of three permits is free
	}{
		{"equal requests wait in order", []func(*Terms){permits(2)}, []func(*Terms){permits(2)}, false, false},
		{"a larger request waits behind a smaller one", []func(*Terms){permits(2)}, []func(*Terms){permits(3)}, false, false},
		{"a smaller request may fit", []func(*Terms){permits(2)}, []func(*Terms){permits(1)}, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				r := s.client(t, "a").semaphore("x")
				s.setPermits("x", 3)
				holder := acquire(t, t.Context(), s.client(t, "b").semaphore("x"), permits(2))
				ctx, cancel := context.WithCancel(t.Context())
				waits, comes := startAcquire(t, ctx, r, tt.waits...), startAcquire(t, ctx, r, tt.comes...)
				assert.Equal(t, tt.mayTry, len(s.sent("acquire", "a#2")) > 0)
				assert.Equal(t, tt.granted, comes.returned())
				cancel()
				_ = waits.fail()
				comes.end()
				if tt.granted {
					release(t, comes.hold)
				}
				release(t, holder)
				s.requireFree(t)
			})
		})
	}
}

func TestSharedIDTriesAlthoughOthersWait(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		r := s.client(t, "a").lock("x")
		outer := acquire(t, t.Context(), r, owner("me"))
		waiter := startAcquire(t, t.Context(), r)
		again := acquire(t, t.Context(), r, owner("me"))
		assert.Zero(t, s.now())
		assert.Equal(t, 2, s.holder("x", "me").count)
		release(t, again)
		release(t, outer)
		release(t, waiter.wait())
		s.requireFree(t)
	})
}

// The head is refused, and the reply names the holder. A waiter with the holder's id then tries.
func TestWaiterWithTheIDOfTheHolderTries(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		r := s.client(t, "a").lock("x")
		s.seize("x", "other", 0)
		head := startAcquire(t, t.Context(), r)
		shared := startAcquire(t, t.Context(), r, owner("me"))
		sleep(500 * ms)
		s.forget("x")
		s.seize("x", "me", 0) // elsewhere
		release(t, shared.wait())
		assert.Equal(t, time.Second, s.now(), "the head's poll")
		assert.False(t, head.returned())
		s.free("x")
		release(t, head.wait())
	})
}

// Waiters with the id of the waiter that was granted may go too.
func TestGrantAdmitsWaitersWithTheSameID(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		r := s.client(t, "a").lock("x")
		s.seize("x", "other", 0)
		first := startAcquire(t, t.Context(), r, owner("me"))
		private := startAcquire(t, t.Context(), r)
		second := startAcquire(t, t.Context(), r, owner("me"))
		sleep(500 * ms)
		s.free("x")
		first.wait()
		second.wait()
		assert.Equal(t, 500*ms, s.now())
		assert.Equal(t, 2, s.holder("x", "me").count)
		assert.False(t, private.returned())
		release(t, first.hold)
		release(t, second.hold)
		release(t, private.wait())
		s.requireFree(t)
	})
}

func TestGrantAdmitsWaitersForWhichThereIsRoom(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		r := s.client(t, "a").semaphore("x")
		s.setPermits("x", 4)
		holder := acquire(t, t.Context(), s.client(t, "b").semaphore("x"), permits(4))
		var calls []*call
		for _, n := range []int{1, 2, 3, 1} {
			calls = append(calls, startAcquire(t, t.Context(), r, permits(n)))
		}
		sleep(300 * ms)
		release(t, holder)
		sleep(0)
		assert.Equal(t, []bool{true, true, false, true}, returned(calls))
		for _, i := range []int{0, 1, 3, 2} {
			release(t, calls[i].wait())
		}
		assert.Equal(t, 300*ms, s.now())
		s.requireFree(t)
	})
}

func returned(calls []*call) (done []bool) {
	for _, call := range calls {
		done = append(done, call.returned())
	}
	return done
}

// The head asks for more permits than are free. The refusal says how many are left. Another waiter fits.
func TestRefusedHeadLetsASmallerRequestTry(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		r := s.client(t, "a").semaphore("x")
		b := s.client(t, "b").semaphore("x")
		s.setPermits("x", 3)
		one, two := acquire(t, t.Context(), b, permits(1)), acquire(t, t.Context(), b, permits(2))
		big, small := startAcquire(t, t.Context(), r, permits(3)), startAcquire(t, t.Context(), r, permits(1))
		sleep(300 * ms)
		release(t, one)
		small.wait()
		assert.Equal(t, 300*ms, s.now())
		assert.False(t, big.returned())
		release(t, small.hold)
		release(t, two)
		release(t, big.wait())
		s.requireFree(t)
	})
}

func TestReadersDoNotTryAtFirstWhileAWriterOfTheirClientWaits(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		s.setPermits("x", 100)
		holder := acquire(t, t.Context(), s.client(t, "b").reader("x"))
		writer := startAcquire(t, t.Context(), c.writer("x"))
		s.subscribe.delay = 200 * ms
		reader := startAcquire(t, t.Context(), c.reader("x"))
		sleep(100 * ms)
		assert.Empty(t, s.sent("acquire", "a:2"), "it could enter, but waits")
		release(t, holder)
		release(t, writer.wait())
		assert.Equal(t, 100*ms, s.now())
		release(t, reader.wait())
		s.requireFree(t)
	})
}

func TestNewQueueDecidesWhereARequestWaits(t *testing.T) {
	refused := errors.New("no place to wait")
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		r := c.lock("x")
		var queue Queue
		var err error
		r.Traits.NewQueue = func(context.Context, *Request) (Queue, error) { return queue, err }
		err = refused
		_, got := r.Acquire(t.Context(), terms(), forever)
		require.ErrorIs(t, got, refused)
		assert.Empty(t, s.log)
		hold, got := r.Acquire(t.Context(), terms(), noWait)
		require.NoError(t, got, "a single try needs no queue")

		private := c.privateQueue(r, func(int) time.Duration { return 100 * ms })
		queue, err = private, nil
		waiter := startAcquire(t, t.Context(), r)
		assert.Empty(t, c.queues.open)
		assert.Empty(t, s.subs)
		release(t, hold)
		release(t, waiter.wait())
		assert.Equal(t, 100*ms, s.now())
		queue = nil // the local queue of the name
		s.seize("x", "other", 300*ms)
		release(t, acquire(t, t.Context(), r))
		assert.True(t, slices.Contains(s.sent("acquire", ""), 401*ms))
	})
}
