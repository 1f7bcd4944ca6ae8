package engine_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/engine"
	. "github.com/redlatch/redlatch/internal/test/enginetest"
)

const ms = time.Millisecond

func TestReleaseMessageWakesTheFirstWaiterOnly(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		holder := Acquire(t, t.Context(), s.Client(t, "b").Writer("x"))
		r := s.Client(t, "a").Writer("x") // its releases do not hand off
		var calls []*Call
		for range 4 {
			calls = append(calls, StartAcquire(t, t.Context(), r))
		}
		Sleep(1500 * ms)
		before := len(s.Sent("acquire", "a"))
		Release(t, holder)
		for i, call := range calls {
			hold := call.AwaitHold()
			assert.Equal(t, 1500*ms, s.Now(), "woken by the message")
			for _, later := range calls[i+1:] {
				assert.False(t, later.Returned(), "in the order of arrival")
			}
			assert.Len(t, s.Sent("acquire", "a"), before+i+1, "one attempt for each message")
			Release(t, hold)
		}
	})
}

func TestOneAttemptASecondHoweverManyWaiters(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		s.MayStayHeld()
		s.Seize("x", "other", 0)
		r := s.Client(t, "a").Lock("x")
		ctx, cancel := context.WithCancel(t.Context())
		var calls []*Call
		for range 20 {
			calls = append(calls, StartAcquire(t, ctx, r))
		}
		Sleep(5500 * ms)
		// The first attempt, the one after the subscription, and the slow poll.
		assert.Equal(t, []time.Duration{0, 0, 1 * time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second,
			5 * time.Second},
			s.Sent("acquire"))
		assert.Equal(t, int64(20), r.Driver.(*FakeDriver).Client.Waiting.Load())
		cancel()
		for _, call := range calls {
			_ = call.AwaitErr()
		}
		assert.Zero(t, r.Core.Usage())
	})
}

// The holder releases after 100 ms.
func TestSecondAttemptWaitsForTheSubscription(t *testing.T) {
	refused := errors.New("no permission")
	for _, tt := range []struct {
		name      string
		subscribe SubscribeFault
		silent    bool
		want      []time.Duration // attempts
		logged    string
	}{
		{name: "confirmed before the release", want: []time.Duration{0, 0, 100 * ms}},
		{
			name: "confirmed after the release", subscribe: SubscribeFault{Delay: 200 * ms},
			want: []time.Duration{0, 200 * ms},
		},
		{
			name: "refused after the release", subscribe: SubscribeFault{Delay: 200 * ms, Err: refused},
			want: []time.Duration{0, 200 * ms}, logged: "no permission",
		},
		{
			name: "refused before the release", subscribe: SubscribeFault{Delay: 50 * ms, Err: refused},
			want: []time.Duration{0, 50 * ms, 1050 * ms}, logged: "no permission",
		},
		{
			name: "never answered", subscribe: SubscribeFault{Delay: time.Hour},
			want: []time.Duration{0, time.Second},
		},
		{name: "the message is lost", silent: true, want: []time.Duration{0, 0, time.Second}},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			c := s.Client(t, "a")
			s.Subscribe, s.Silent = tt.subscribe, tt.silent
			s.Seize("x", "other", 0)
			call := StartAcquire(t, t.Context(), c.Lock("x"))
			Sleep(100 * ms)
			s.Free("x")
			Release(t, call.AwaitHold())
			assert.Equal(t, tt.want, s.Sent("acquire"))
			Settle() // logged in the background
			assert.Contains(t, c.Logged(), tt.logged)
			assert.Equal(t, tt.logged == "", c.Logged() == "")
			assert.Empty(t, s.Subs, "the last waiter ends the subscription")
		})
	}
}

func TestNextHeadWaitsForTheSubscription(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		r := s.Client(t, "a").Lock("x")
		s.Subscribe.Delay = 300 * ms
		s.Seize("x", "other", 0)
		ctx, cancel := context.WithCancel(t.Context())
		first, second := StartAcquire(t, ctx, r), StartAcquire(t, t.Context(), r)
		Sleep(100 * ms)
		cancel()
		_ = first.AwaitErr()
		Sleep(100 * ms)
		s.Free("x") // no client receives the message
		Release(t, second.AwaitHold())
		assert.Equal(t, 300*ms, s.Now())
	})
}

func TestReconnectionIsAReasonToTry(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		s.Silent = true
		s.Seize("x", "other", 0)
		call := StartAcquire(t, t.Context(), s.Client(t, "a").Lock("x"))
		Sleep(300 * ms)
		s.Free("x")
		Sleep(100 * ms)
		assert.False(t, call.Returned())
		s.Reconnected()
		Release(t, call.AwaitHold())
		assert.Equal(t, 400*ms, s.Now())
	})
}

func TestWaitersRetryAfterTemporaryFailures(t *testing.T) {
	for _, tt := range []struct {
		name   string
		faults []Fault // of attempts while waiting
		want   []time.Duration
	}{
		{"unreachable", []Fault{{Err: ErrDown}, {Err: ErrDown}}, []time.Duration{0, 0, 1 * time.Second, 2 * time.Second}},
		{"no answer", []Fault{{Mute: true}}, []time.Duration{0, 0, CommandTimeout + time.Second}},
		{"not now", []Fault{{Err: ErrBusy}, {Err: ErrBusy}}, []time.Duration{0, 0, 101 * ms, 202 * ms}},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			c := s.Client(t, "a")
			s.Seize("x", "other", ms)
			s.Script("acquire", append([]Fault{{}}, tt.faults...)...)
			hold := Acquire(t, t.Context(), c.Writer("x"))
			sent := s.Sent("acquire")
			require.GreaterOrEqual(t, len(sent), 3)
			assert.Equal(t, tt.want[:3], sent[:3], "the first attempts")
			assert.Equal(t, tt.want[len(tt.want)-1], sent[len(sent)-1], "the attempt that was granted")
			Release(t, hold)
		})
	}
}

func TestGiveUpErrorWrapsTheLastFailure(t *testing.T) {
	for _, err := range []error{ErrDown, ErrBusy} {
		Bubble(t, func(t *testing.T, s *Server) {
			s.MayStayHeld()
			c := s.Client(t, "a")
			s.Seize("x", "other", 0)
			s.Script("acquire", Fault{}, Fault{Err: err})
			_, got := c.Lock("x").Acquire(t.Context(), NewTerms(), 50*ms)
			require.ErrorIs(t, got, engine.ErrNotAcquired)
			require.ErrorIs(t, got, err)
		})
	}
}

// A head whose attempt fails for good, or whose caller has gone, leaves its reason to try to the
// next waiter. The lock is free by then.
func TestLeavingHeadPassesItsReasonToTryOn(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault Fault // of the head's attempt after the message
		limit time.Duration
		want  error
		at    time.Duration // when the next waiter acquires
	}{
		{name: "failed for good", fault: Fault{Err: ErrFatal}, limit: engine.Forever, want: ErrFatal, at: 300 * ms},
		{
			name: "its context ended while its attempt was unanswered", fault: Fault{Lost: true}, limit: engine.Forever,
			want: errCause, at: 450 * ms,
		},
		{
			name: "gave up while its attempt was unanswered", fault: Fault{Lost: true}, limit: 400 * ms,
			want: engine.ErrNotAcquired, at: 420 * ms,
		},
		{
			name: "gave up while its attempt failed", fault: Fault{Delay: 110 * ms, Err: ErrDown}, limit: 400 * ms,
			want: engine.ErrNotAcquired, at: 410 * ms,
		},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			s.KeepLeases()
			r := s.Client(t, "a").Writer("x")
			s.Seize("x", "other", 0)
			ctx, cancel := context.WithCancelCause(t.Context())
			head := Start(t, func() (*engine.Hold, error) { return r.Acquire(ctx, NewTerms(), tt.limit) })
			next := StartAcquire(t, t.Context(), r)
			Sleep(300 * ms)
			s.Script("acquire", tt.fault)
			s.Free("x")
			Sleep(150 * ms)
			cancel(errCause)
			require.ErrorIs(t, head.AwaitErr(), tt.want)
			hold := next.AwaitHold()
			assert.Equal(t, tt.at, next.At.Sub(s.Start))
			Release(t, hold)
			Sleep(time.Minute)
		})
	}
}

func TestWaiterThatLeavesUnwokenPassesItsReasonToTryOn(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		r := c.Lock("x")
		first := engine.NewWaiter(r, r.NewRequest(NewTerms()))
		second := engine.NewWaiter(r, r.NewRequest(NewTerms()))
		q := c.JoinLocal(first)
		require.Same(t, q, c.JoinLocal(second))
		assert.True(t, q.NextStep(first).Try)
		assert.False(t, q.NextStep(first).Try, "used")
		q.Message(engine.Heard)
		assert.False(t, q.NextStep(second).Try)
		q.Leave(first, engine.Result{})
		assert.True(t, q.NextStep(second).Try)
		q.Leave(second, engine.Result{})
	})
}

func TestNextWaiterTriesWhileTheHeadIsStuck(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		r := s.Client(t, "a").Writer("x")
		s.Seize("x", "other", 0)
		head, second := StartAcquire(t, t.Context(), r), StartAcquire(t, t.Context(), r)
		third := StartAcquire(t, t.Context(), r)
		Sleep(500 * ms)
		s.Script("acquire", Fault{Lost: true}, Fault{Lost: true}) // on a connection that is stuck
		s.Free("x")
		third.AwaitHold()
		assert.Equal(t, 500*ms+engine.StuckAfter+engine.SlowPoll, s.Now())
		assert.False(t, head.Returned())
		assert.False(t, second.Returned())
		Release(t, third.Hold)
		Release(t, head.AwaitHold())
		Release(t, second.AwaitHold())
	})
}

// The second waiter has acquired while the head was stuck, and its reply was lost. Only this waiter
// can find out.
func TestWaiterInDoubtRetriesBehindTheHead(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		s.KeepLeases()
		r := s.Client(t, "a").Writer("x")
		s.Seize("x", "other", 0)
		head, second := StartAcquire(t, t.Context(), r), StartAcquire(t, t.Context(), r)
		Sleep(500 * ms)
		s.Script("acquire", Fault{Lost: true}, Fault{Mute: true})
		s.Free("x")
		Release(t, second.AwaitHold())
		assert.LessOrEqual(t, s.Now(), 500*ms+engine.StuckAfter+CommandTimeout+engine.SlowPoll)
		Release(t, head.AwaitHold())
	})
}

func TestPollingBacksOffAndDoesNotSubscribe(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		r := s.Client(t, "a").Lock("x")
		s.Seize("x", "other", 0)
		call := StartAcquire(t, t.Context(), r, Polling(10*ms, 300*ms))
		assert.Empty(t, s.Subs)
		Sleep(3 * time.Second)
		sent := s.Sent("acquire")
		pause := 10 * ms
		for i := 1; i < len(sent); i++ {
			got := sent[i] - sent[i-1]
			assert.GreaterOrEqual(t, got, pause, "pause %d", i)
			assert.LessOrEqual(t, got, pause+pause/4, "pause %d", i)
			pause = min(2*pause, 300*ms)
		}
		assert.Greater(t, len(sent), 10)
		s.Free("x")
		Release(t, call.AwaitHold())
	})
}

// Each request that polls tries by itself, whoever else of its client waits for the name. So it has
// its own pauses, and a first attempt.
func TestEachRequestThatPollsHasItsOwnPauses(t *testing.T) {
	slow := Polling(30*time.Minute, 30*time.Minute)
	for _, tt := range []struct {
		name    string
		kind    func(c *Client, name string) *engine.Resource
		others  []func(*engine.Terms) // of the request that already waits
		givesUp bool                  // the request that already waits
	}{
		{name: "lock, beside a slow one", kind: (*Client).Lock, others: []func(*engine.Terms){slow}},
		{name: "lock, after a slow one", kind: (*Client).Lock, others: []func(*engine.Terms){slow}, givesUp: true},
		{name: "lock, beside one that listens", kind: (*Client).Lock},
		{name: "writer, beside a slow one", kind: (*Client).Writer, others: []func(*engine.Terms){slow}},
		{name: "writer, beside one that listens", kind: (*Client).Writer},
		{name: "reader, beside a slow one", kind: (*Client).Reader, others: []func(*engine.Terms){slow}},
		{name: "semaphore, beside a slow one", kind: (*Client).Semaphore, others: []func(*engine.Terms){slow}},
		{name: "semaphore, beside one that listens", kind: (*Client).Semaphore},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			r := tt.kind(s.Client(t, "a"), "x")
			s.Seize("x", "other", 0)
			ctx, giveUp := context.WithCancel(t.Context())
			other := StartAcquire(t, ctx, r, tt.others...)
			polls := StartAcquire(t, t.Context(), r, Polling(10*ms, 20*ms))
			if tt.givesUp {
				giveUp()
				require.ErrorIs(t, other.AwaitErr(), context.Canceled)
			}
			Sleep(100 * ms)
			s.Forget("x") // without a message
			hold := polls.AwaitHold()
			assert.Less(t, s.Now(), 130*ms)
			Release(t, hold)
			if other.Returned() && !tt.givesUp { // a release woke it
				Release(t, other.AwaitHold())
			}
			again, err := r.Acquire(t.Context(), NewTerms(Polling(time.Minute, time.Minute)), time.Second)
			require.NoError(t, err, "a free lock is acquired by the first attempt")
			Release(t, again)
			giveUp()
			other.Await()
		})
	}
}

// The pauses grow only with the attempts of the same request.
func TestPollingBeginsAnewForEachRequest(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		r := s.Client(t, "a").Lock("x")
		s.Seize("x", "other", 0)
		first := StartAcquire(t, t.Context(), r, Polling(10*ms, time.Second))
		Sleep(10 * time.Second)
		next := StartAcquire(t, t.Context(), r, Polling(10*ms, time.Second))
		Sleep(50 * ms)
		assert.GreaterOrEqual(t, len(s.Sent("acquire", "a:2")), 3, "short pauses again")
		s.Free("x")
		Release(t, next.AwaitHold())
		assert.Less(t, s.Now(), 10*time.Second+200*ms)
		Release(t, first.AwaitHold())
	})
}

// Requests that poll and requests that listen do not wait for each other.
func TestPollingDelaysNoRequestThatListens(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		r := s.Client(t, "a").Lock("x")
		s.Seize("x", "other", 0)
		polls := StartAcquire(t, t.Context(), r, Polling(time.Minute, time.Minute))
		listening := StartAcquire(t, t.Context(), r)
		s.Free("x")
		Release(t, listening.AwaitHold())
		assert.Zero(t, s.Now())
		Release(t, polls.AwaitHold())
	})
}

func TestPollingWithALongPauseDoesNotOverflow(t *testing.T) {
	longest := 100 * 365 * 24 * time.Hour
	first := time.Duration(1<<34 + 1) // shifted by 30 it is 2^30, without the overflow
	terms := NewTerms(Polling(first, longest))
	for n := range 100 {
		got := terms.PollPause(n)
		assert.Positive(t, got)
		assert.GreaterOrEqual(t, got, first)
		assert.LessOrEqual(t, got, longest+longest/4+1)
	}
}

func TestRequestDoesNotOvertakeAWaiterThatCouldGoFirst(t *testing.T) {
	for _, tt := range []struct {
		name    string
		waits   int // permits of the waiter
		comes   int // permits of the request that comes later
		mayTry  bool
		granted bool // one of three permits is free
	}{
		{name: "equal requests wait in order", waits: 2, comes: 2},
		{name: "a larger request waits behind a smaller one", waits: 2, comes: 3},
		{name: "a smaller request may fit", waits: 2, comes: 1, mayTry: true, granted: true},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			r := s.Client(t, "a").Semaphore("x")
			s.SetPermits("x", 3)
			holder := Acquire(t, t.Context(), s.Client(t, "b").Semaphore("x"), PermitsOf(2))
			ctx, cancel := context.WithCancel(t.Context())
			waits := StartAcquire(t, ctx, r, PermitsOf(tt.waits))
			comes := StartAcquire(t, ctx, r, PermitsOf(tt.comes))
			assert.Equal(t, tt.mayTry, len(s.Sent("acquire", "a#2")) > 0)
			assert.Equal(t, tt.granted, comes.Returned())
			cancel()
			_ = waits.AwaitErr()
			comes.Await()
			if tt.granted {
				Release(t, comes.Hold)
			}
			Release(t, holder)
		})
	}
}

func TestSharedIDIsAcquiredAheadOfWaiters(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		r := s.Client(t, "a").Lock("x")
		outer := Acquire(t, t.Context(), r, OwnedBy("me"))
		waiter := StartAcquire(t, t.Context(), r)
		again := Acquire(t, t.Context(), r, OwnedBy("me"))
		assert.Zero(t, s.Now())
		assert.Equal(t, 2, s.Holder("x", "me").Count)
		Release(t, again, outer)
		Release(t, waiter.AwaitHold())
	})
}

// The head is refused, and the reply names the holder. A waiter with the holder's id then tries.
func TestWaiterWithTheIDOfTheHolderTries(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		r := s.Client(t, "a").Lock("x")
		s.Seize("x", "other", 0)
		head := StartAcquire(t, t.Context(), r)
		shared := StartAcquire(t, t.Context(), r, OwnedBy("me"))
		Sleep(500 * ms)
		s.Forget("x")
		s.Seize("x", "me", 0) // elsewhere
		Release(t, shared.AwaitHold())
		assert.Equal(t, time.Second, s.Now(), "the head's poll")
		assert.False(t, head.Returned())
		s.Free("x")
		Release(t, head.AwaitHold())
	})
}

// Waiters with the id of a waiter that was granted may enter too.
func TestGrantAdmitsWaitersWithTheSameID(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		r := s.Client(t, "a").Lock("x")
		s.Seize("x", "other", 0)
		first := StartAcquire(t, t.Context(), r, OwnedBy("me"))
		private := StartAcquire(t, t.Context(), r)
		second := StartAcquire(t, t.Context(), r, OwnedBy("me"))
		Sleep(500 * ms)
		s.Free("x")
		first.AwaitHold()
		second.AwaitHold()
		assert.Equal(t, 500*ms, s.Now())
		assert.Equal(t, 2, s.Holder("x", "me").Count)
		assert.False(t, private.Returned())
		Release(t, first.Hold, second.Hold)
		Release(t, private.AwaitHold())
	})
}

func TestGrantAdmitsWaitersForWhichThereIsRoom(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		r := s.Client(t, "a").Semaphore("x")
		s.SetPermits("x", 4)
		holder := Acquire(t, t.Context(), s.Client(t, "b").Semaphore("x"), PermitsOf(4))
		var calls []*Call
		for _, n := range []int{1, 2, 3, 1} {
			calls = append(calls, StartAcquire(t, t.Context(), r, PermitsOf(n)))
		}
		Sleep(300 * ms)
		Release(t, holder)
		Settle()
		assert.Equal(t, []bool{true, true, false, true}, returned(calls))
		for _, i := range []int{0, 1, 3, 2} {
			Release(t, calls[i].AwaitHold())
		}
		assert.Equal(t, 300*ms, s.Now())
	})
}

func returned(calls []*Call) (done []bool) {
	for _, call := range calls {
		done = append(done, call.Returned())
	}
	return done
}

// The head asks for more permits than are free. The refusal says how many are left. Another waiter
// fits.
func TestRefusedHeadLetsASmallerRequestTry(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		r := s.Client(t, "a").Semaphore("x")
		b := s.Client(t, "b").Semaphore("x")
		s.SetPermits("x", 3)
		one, two := Acquire(t, t.Context(), b, PermitsOf(1)), Acquire(t, t.Context(), b, PermitsOf(2))
		big, small := StartAcquire(t, t.Context(), r, PermitsOf(3)), StartAcquire(t, t.Context(), r, PermitsOf(1))
		Sleep(300 * ms)
		Release(t, one)
		small.AwaitHold()
		assert.Equal(t, 300*ms, s.Now())
		assert.False(t, big.Returned())
		Release(t, small.Hold, two)
		Release(t, big.AwaitHold())
	})
}

func TestReadersDoNotTryAheadOfTheirClientsWriter(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		s.SetPermits("x", 100)
		holder := Acquire(t, t.Context(), s.Client(t, "b").Reader("x"))
		writer := StartAcquire(t, t.Context(), c.Writer("x"))
		s.Subscribe.Delay = 200 * ms
		reader := StartAcquire(t, t.Context(), c.Reader("x"))
		Sleep(100 * ms)
		assert.Empty(t, s.Sent("acquire", "a:2"), "it could enter, but waits")
		Release(t, holder)
		Release(t, writer.AwaitHold())
		assert.Equal(t, 100*ms, s.Now())
		Release(t, reader.AwaitHold())
	})
}

func TestNewQueueDecidesWhereARequestWaits(t *testing.T) {
	refused := errors.New("no place to wait")
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		r := c.Lock("x")
		var queue engine.Queue
		var err error
		r.Traits.NewQueue = func(context.Context, *engine.Request) (engine.Queue, error) { return queue, err }
		err = refused
		_, got := r.Acquire(t.Context(), NewTerms(), engine.Forever)
		require.ErrorIs(t, got, refused)
		assert.Empty(t, s.Log)
		hold, got := r.Acquire(t.Context(), NewTerms(), engine.NoWait)
		require.NoError(t, got, "a single try needs no queue")

		private := r.PrivateQueue(func(int) time.Duration { return 100 * ms })
		queue, err = private, nil
		waiter := StartAcquire(t, t.Context(), r)
		assert.Empty(t, s.Subs, "it polls")
		Release(t, hold)
		Release(t, waiter.AwaitHold())
		assert.Equal(t, 100*ms, s.Now())
		queue = nil // the local queue of the name
		s.Seize("x", "other", 300*ms)
		Release(t, Acquire(t, t.Context(), r))
		assert.True(t, slices.Contains(s.Sent("acquire"), 401*ms))
	})
}
