package engine_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	. "github.com/redlatch/redlatch/internal/engine"
	. "github.com/redlatch/redlatch/internal/test/enginetest"
)

// While somebody polls for a lock, a client hands it off among its goroutines no more: each of its releases frees it.
// So the lock is free as often as if the goroutines were on clients of their own.
func TestNothingIsHandedOffWhileSomebodyPolls(t *testing.T) {
	polls := Polling(50*ms, 200*ms)
	for _, tt := range []struct {
		name     string
		kind     func(c *Client, name string) *Resource
		own      bool           // the client itself polls
		polls    []func(*Terms) // of the other request
		handsOff bool
	}{
		{name: "lock", kind: (*Client).Lock, polls: []func(*Terms){polls}},
		{name: "lock, by the same client", kind: (*Client).Lock, polls: []func(*Terms){polls}, own: true},
		{name: "lock, another client that listens", kind: (*Client).Lock, handsOff: true},
		{name: "writer", kind: (*Client).CohortWriter, polls: []func(*Terms){polls}},
		{name: "semaphore", kind: (*Client).Semaphore, polls: []func(*Terms){polls}},
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
			assert.NotEmpty(t, s.Sent("handoff", ""))
			waiter := Start(t, func() (*Hold, error) {
				// A single attempt leaves no mark, so it has to wait: the lock is held at most times.
				return tt.kind(other, "x").Acquire(t.Context(), NewTerms(tt.polls...), 30*time.Second)
			})
			Sleep(100 * ms)
			if !waiter.Returned() && !tt.handsOff {
				before := len(s.Sent("handoff", ""))
				Sleep(40 * ms)
				assert.LessOrEqual(t, len(s.Sent("handoff", "")), before, "the lock is free after each release")
			}
			stop()
			wg.Wait()
			Release(t, waiter.Wait())
			before := len(s.Sent("handoff", ""))
			ctx, stop = context.WithCancel(t.Context())
			Sleep(time.Minute) // nobody has polled for long
			busy(ctx, t, &wg, r, 8)
			Sleep(time.Second)
			stop()
			wg.Wait()
			assert.Greater(t, len(s.Sent("handoff", "")), before, "then it is handed off again")
			Sleep(time.Minute)
		})
	}
}
