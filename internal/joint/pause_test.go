package joint_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/joint"
	. "github.com/redlatch/redlatch/internal/test/enginetest"
)

// pausingContext is a context in whose n-th call of Err the process stands still for a while.
type pausingContext struct {
	context.Context

	calls, n int
	pause    time.Duration
}

func (c *pausingContext) Err() error {
	if c.calls++; c.calls == c.n {
		time.Sleep(c.pause)
	}
	return c.Context.Err()
}

// The process stands still at any moment of an acquisition, until the first member's lease, or
// every member's, is over. Nothing has ended a hold when the process goes on. The acquisition
// returns a valid hold, or none.
func TestAcquisitionDuringWhichTheProcessStoodStill(t *testing.T) {
	const ttl = 300 * ms
	lock := func(c *Client) *engine.Resource { return c.Lock("x") }
	multi := func(c *Client) *engine.Resource { return c.MultiOf("x", "y", "z") }
	red := func(c *Client) *engine.Resource {
		return c.Joint("red", joint.NewRed, c.Lock("x"), c.Lock("y"), c.Lock("z"))
	}
	for _, tt := range []struct {
		name    string
		open    func(c *Client) *engine.Resource
		outer   []func(*engine.Terms) // of the hold that it nests in; nil for none
		lingers bool                  // the lock lingers in the client when the acquisition begins
	}{
		{name: "plain", open: lock},
		{name: "nested", open: lock, outer: []func(*engine.Terms){FixedLease(time.Hour)}},
		{
			name: "nested, counted by the server", open: lock,
			outer: []func(*engine.Terms){FixedLease(time.Hour), OwnedBy("me")},
		},
		{name: "lingering", open: lock, lingers: true},
		{name: "multi", open: multi},
		{name: "nested multi", open: multi, outer: []func(*engine.Terms){FixedLease(time.Hour)}},
		{name: "nested, in a cohort", open: lock, outer: []func(*engine.Terms){TTL(time.Hour), InCohort(time.Hour)}},
		{name: "red", open: red},
	} {
		for _, pause := range []time.Duration{ttl / 2, ttl - 20*ms, ttl} {
			for _, limit := range []time.Duration{engine.NoWait, engine.Forever} {
				t.Run(fmt.Sprint(tt.name, ": ", pause, ", limit ", limit), func(t *testing.T) {
					for n, last := 1, false; !last; n++ {
						Bubble(t, func(t *testing.T, s *Server) {
							s.MayStayHeld()
							c := s.Client(t, "a", func(config *engine.Config) {
								lost := config.Errors.Lost
								config.Errors.Lost = func(l engine.Loss) error {
									time.Sleep(20 * ms) // before the hold ends
									return lost(l)
								}
							})
							s.OnEach(func(cmd Command) (f Fault) {
								f.Lost = cmd.Op == "renew"
								if cmd.Op == "acquire" {
									f.Reply = 15 * ms
								}
								return f
							})
							r := tt.open(c)
							ctx := &pausingContext{Context: t.Context(), n: n, pause: pause}
							terms := NewTerms(TTL(ttl))
							if tt.outer != nil {
								ctx.Context = Carry(Acquire(t, t.Context(), r, tt.outer...))
							}
							if tt.lingers {
								terms.Linger = time.Hour
								Release(t, Acquire(t, t.Context(), r, TTL(ttl), Lingering(time.Hour)))
								Sleep(ttl / 3)
							}
							hold, err := r.Acquire(ctx, terms, limit)
							last = ctx.calls < n
							if err != nil {
								require.ErrorIs(t, err, engine.ErrLost)
								require.NotErrorIs(t, err, engine.ErrNotAcquired)
								assert.Nil(t, hold)
							} else {
								require.Positive(t, time.Until(hold.ValidUntil()), "it stood still in call %d", n)
							}
						})
					}
				})
			}
		}
	}
}
