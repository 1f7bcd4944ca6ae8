package engine_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/redlatch/redlatch/internal/engine"
	. "github.com/redlatch/redlatch/internal/test/enginetest"
	"github.com/redlatch/redlatch/internal/waitq"
)

// busy starts goroutines that acquire and release a lock until ctx ends. Each holds it for 1 ms, or
// for 5 ms and more as a reader. busy returns the time of each acquisition.
//
// Readers and clients that poll wait for 1 ms after a release. Otherwise they could acquire again
// at the same instant, before any client that hears of the release, because commands take no time
// here.
func busy(
	ctx context.Context, t *testing.T, wg *sync.WaitGroup, r *engine.Resource, goroutines int,
	options ...func(*engine.Terms),
) (at *[]time.Duration) {
	var mu sync.Mutex
	began := time.Now()
	at = new([]time.Duration)
	waitsAfterRelease := r.Kind == "reader" || NewTerms(options...).PollMin > 0
	for i := range goroutines {
		wg.Go(func() {
			for ctx.Err() == nil {
				hold, err := r.Acquire(ctx, NewTerms(options...), engine.Forever)
				if err != nil {
					continue
				}
				mu.Lock()
				*at = append(*at, time.Since(began))
				mu.Unlock()
				if r.Kind == "reader" {
					time.Sleep(time.Duration(4+i) * ms)
				}
				time.Sleep(ms)
				assert.NoError(t, hold.Release(context.WithoutCancel(ctx)))
				if waitsAfterRelease {
					time.Sleep(ms)
				}
			}
		})
	}
	return at
}

// Eight goroutines of a client pass a lock on within cohorts, while others wait. The lock has
// waiters all the time.
func TestOthersHaveTheirTurnAfterEachCohort(t *testing.T) {
	const (
		cohort = 300 * ms
		lasts  = 5 * time.Second
	)
	lock, line := (*Client).Lock, (*Client).LineLock
	poll := Polling(5*ms, 60*ms)
	for _, tt := range []struct {
		name    string
		mine    func(c *Client, name string) *engine.Resource
		others  func(c *Client, name string) *engine.Resource
		clients int
		away    time.Duration // the others
		options []func(*engine.Terms)
		own     bool // the others are on the same client
		hangs   bool // they never try, though they hear all messages
		cycle   time.Duration
		idle    time.Duration
	}{
		{name: "nobody", mine: lock, idle: 3 * ms},
		{name: "nobody, in line", mine: line, idle: 3 * ms},
		{name: "a writer, and nobody", mine: (*Client).CohortWriter, idle: 3 * ms},
		{name: "a client 12 ms away", mine: line, others: line, clients: 1, away: 12 * ms, cycle: 350 * ms, idle: 12 * ms},
		{name: "a client 40 ms away", mine: line, others: line, clients: 1, away: 40 * ms, cycle: 400 * ms, idle: 40 * ms},
		{
			name: "without a line, 40 ms away", mine: lock, others: lock, clients: 1, away: 40 * ms,
			cycle: 400 * ms, idle: 40 * ms,
		},
		{
			name: "three clients 40 ms away", mine: line, others: line, clients: 3, away: 40 * ms,
			cycle: 400 * ms, idle: waitq.MaxTurn,
		},
		{
			name: "a client that polls", mine: line, others: line, clients: 1, options: []func(*engine.Terms){poll},
			cycle: 400 * ms, idle: 80 * ms,
		},
		{
			name: "a writer, and a client that polls", mine: (*Client).CohortWriter, others: (*Client).CohortWriter,
			clients: 1, options: []func(*engine.Terms){poll}, cycle: 400 * ms, idle: 80 * ms,
		},
		{
			name: "a writer, and a reader that polls", mine: (*Client).CohortWriter, others: (*Client).Reader,
			clients: 1, options: []func(*engine.Terms){poll}, cycle: 400 * ms, idle: 80 * ms,
		},
		{
			name: "a writer, and two clients that read", mine: (*Client).CohortWriter, others: (*Client).Reader,
			clients: 2, cycle: 400 * ms, idle: waitq.MaxTurn,
		},
		{
			name: "a client that polls itself", mine: line, others: line, clients: 1, own: true,
			options: []func(*engine.Terms){poll}, cycle: 400 * ms, idle: 80 * ms,
		},
		{
			name: "a writer and its own readers", mine: (*Client).CohortWriter, others: (*Client).Reader,
			clients: 1, own: true, cycle: 400 * ms, idle: waitq.MaxTurn,
		},
		{
			name: "a writer and its own readers, 40 ms away", mine: (*Client).CohortWriter, others: (*Client).Reader,
			clients: 1, own: true, away: 40 * ms, cycle: 500 * ms, idle: waitq.MaxTurn,
		},
		{name: "a client that hangs", mine: line, clients: 1, hangs: true, idle: waitq.MaxTurn},
		{
			name: "a writer, and two clients that hang", mine: (*Client).CohortWriter, clients: 2, hangs: true,
			idle: waitq.MaxTurn,
		},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			me := s.Client(t, "mine")
			mine := busy(ctx, t, &wg, tt.mine(me, "x"), 8, InCohort(cohort))
			time.Sleep(50 * ms)
			var others []*[]time.Duration
			for i := range tt.clients {
				c, goroutines := me, 1 // two readers would keep writers out
				if !tt.own {
					c, goroutines = s.Client(t, fmt.Sprint("other", i)), 2
				}
				switch {
				case tt.hangs:
					defer s.NewSubscription(c, "x", func(engine.Message) {}).Close()
				default:
					s.SetAway(c, tt.away)
					others = append(others, busy(ctx, t, &wg, tt.others(c, "x"), goroutines, tt.options...))
				}
			}
			idle := s.LongestIdle("x", lasts)
			cancel()
			wg.Wait()
			s.ResetFaults()
			turns := 0
			for _, other := range others {
				turns += len(*other)
			}
			assert.LessOrEqual(t, idle, tt.idle+ms)
			if tt.cycle > 0 {
				assert.GreaterOrEqual(t, turns, int(lasts/tt.cycle)-1)
			}
			assert.Greater(t, len(*mine), int(lasts/(10*ms)), "cohorts go on")
			Sleep(time.Minute)
		})
	}
}

// While somebody polls for a lock, a client hands it off among its goroutines no more: each of its
// releases frees it. So the lock is free as often as if the goroutines were on clients of their
// own.
func TestNothingIsHandedOffWhileSomebodyPolls(t *testing.T) {
	polls := Polling(50*ms, 200*ms)
	for _, tt := range []struct {
		name     string
		kind     func(c *Client, name string) *engine.Resource
		own      bool                  // the client itself polls
		polls    []func(*engine.Terms) // of the other request
		handsOff bool
	}{
		{name: "lock", kind: (*Client).Lock, polls: []func(*engine.Terms){polls}},
		{name: "lock, by the same client", kind: (*Client).Lock, polls: []func(*engine.Terms){polls}, own: true},
		{name: "lock, another client that listens", kind: (*Client).Lock, handsOff: true},
		{name: "writer", kind: (*Client).CohortWriter, polls: []func(*engine.Terms){polls}},
		{name: "semaphore", kind: (*Client).Semaphore, polls: []func(*engine.Terms){polls}},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			ctx, stop := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			me := s.Client(t, "mine")
			r := tt.kind(me, "x")
			busy(ctx, t, &wg, r, 8)
			other := s.Client(t, "other")
			if tt.own {
				other = me
			}
			Sleep(time.Second)
			assert.NotEmpty(t, s.Sent("handoff"))
			waiter := Start(t, func() (*engine.Hold, error) {
				// A single attempt leaves no mark, so it has to wait: the lock is held at most
				// times.
				return tt.kind(other, "x").Acquire(t.Context(), NewTerms(tt.polls...), 30*time.Second)
			})
			Sleep(100 * ms)
			if !waiter.Returned() && !tt.handsOff {
				before := len(s.Sent("handoff"))
				Sleep(40 * ms)
				assert.LessOrEqual(t, len(s.Sent("handoff")), before, "the lock is free after each release")
			}
			stop()
			wg.Wait()
			Release(t, waiter.AwaitHold())
			before := len(s.Sent("handoff"))
			ctx, stop = context.WithCancel(t.Context())
			Sleep(time.Minute) // nobody has polled for long
			busy(ctx, t, &wg, r, 8)
			Sleep(time.Second)
			stop()
			wg.Wait()
			assert.Greater(t, len(s.Sent("handoff")), before, "then it is handed off again")
			Sleep(time.Minute)
		})
	}
}
