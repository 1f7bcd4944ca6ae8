package engine_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/engine"
	. "github.com/redlatch/redlatch/internal/test/enginetest"
)

// waitingReaders starts n readers of one client that wait for a writer of another client.
func waitingReaders(
	ctx context.Context, t *testing.T, s *Server, c *Client, n int,
) (writer *engine.Hold, calls []*Call) {
	s.SetPermits("x", 1000)
	writer = Acquire(t, t.Context(), s.Client(t, "w").Writer("x"))
	for range n {
		calls = append(calls, StartAcquire(t, ctx, c.Reader("x")))
	}
	return writer, calls
}

func TestOneCommandAcquiresForAllWaitingReaders(t *testing.T) {
	for _, tt := range []struct {
		name     string
		waiters  int
		config   func(*engine.Config)
		commands int
	}{
		{name: "one", waiters: 1, commands: 1},
		{name: "five", waiters: 5, commands: 1},
		{name: "as many as fit", waiters: engine.MaxBatch + 1, commands: 1},
		{name: "more than fit", waiters: engine.MaxBatch + 6, commands: 2},
		{
			name: "where replicas must confirm: each for itself", waiters: 5,
			config: func(c *engine.Config) { c.NeedsReplicas = true }, commands: 5,
		},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			config := tt.config
			if config == nil {
				config = func(*engine.Config) {}
			}
			writer, calls := waitingReaders(t.Context(), t, s, s.Client(t, "a", config), tt.waiters)
			Sleep(100 * ms)
			before := len(s.Sent("acquire", "a"))
			Release(t, writer)
			for _, call := range calls {
				call.AwaitHold()
			}
			assert.Equal(t, 100*ms, s.Now())
			assert.Equal(t, tt.commands, len(s.Sent("acquire", "a"))-before)
			assert.Len(t, s.IDs("x"), tt.waiters)
			for _, call := range calls {
				Release(t, call.Hold)
			}
		})
	}
}

// In each case a head and two others wait. The head's next command has a fault.
func TestBatchOfUnknownOutcome(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault Fault
		leave time.Duration // when the others give up; 0 if they do not
	}{
		{"executed, not answered", Fault{Mute: true}, 0},
		{"executed, answered late", Fault{Reply: 2 * time.Second}, 0},
		{"never executed", Fault{Lost: true}, 0},
		{"a copy comes later", Fault{Lost: true, Copy: 30 * time.Second}, 0},
		{"executed, not answered; the others have gone", Fault{Mute: true}, 100 * ms},
		{"executed, not answered; the others go when that is known", Fault{Mute: true}, CommandTimeout + ms},
		{"executed, answered late; the others have gone", Fault{Reply: 2 * time.Second}, 100 * ms},
		{"executed when the others have gone", Fault{Delay: 10 * time.Second}, 100 * ms},
		{"refused", Fault{Err: ErrBusy}, 50 * ms},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			c := s.Client(t, "a")
			ctx, cancel := context.WithCancelCause(t.Context())
			writer, head := waitingReaders(t.Context(), t, s, c, 1)
			others := []*Call{StartAcquire(t, ctx, c.Reader("x")), StartAcquire(t, ctx, c.Reader("x"))}
			s.KeepLeases()
			// The others are on the same connection, which does not answer either.
			s.Script("acquire", tt.fault, tt.fault, tt.fault)
			Release(t, writer)
			if tt.leave > 0 {
				Sleep(tt.leave)
				cancel(errCause)
			}
			for _, other := range others {
				if tt.leave > 0 {
					require.ErrorIs(t, other.AwaitErr(), errCause)
				} else {
					other.AwaitHold()
					Release(t, other.Hold)
				}
			}
			Release(t, head[0].AwaitHold())
			Sleep(time.Minute)
			s.RequireFree(t)
			cancel(nil)
		})
	}
}

// When the outcome of a batch is unknown, the other waiters try at once. They do not wait for a
// poll.
func TestWaitersOfABatchOfUnknownOutcomeAskTheServer(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a", func(config *engine.Config) { config.CommandTimeout = 200 * ms })
		writer, calls := waitingReaders(t.Context(), t, s, c, 3)
		s.Script("acquire", Fault{Mute: true})
		Release(t, writer)
		for _, call := range calls[1:] {
			Release(t, call.AwaitHold())
			assert.Equal(t, 200*ms, call.At.Sub(s.Start))
		}
		Release(t, calls[0].AwaitHold())
	})
}

// The reply to the first batch says that an earlier copy is under way, which may acquire for both.
func TestDoubtAboutABatchPutsAllInDoubt(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		r := s.Client(t, "a").Reader("x")
		writer, _ := waitingReaders(t.Context(), t, s, r.Driver.(*FakeDriver).Client, 0)
		batches := 0
		r.Traits.AcquireBatch = func(ctx context.Context, q *engine.Request, others []*engine.Request) (engine.Result,
			[]bool, error) {
			res, err := r.Driver.TryAcquire(ctx, q)
			if err != nil || !res.Granted {
				return res, nil, err
			}
			batches++
			res.InDoubt = batches == 1
			return res, make([]bool, len(others)), nil // granted to the first one only
		}
		calls := []*Call{StartAcquire(t, t.Context(), r), StartAcquire(t, t.Context(), r)}
		Release(t, writer)
		for _, call := range calls {
			assert.True(t, call.AwaitHold().Ownership().InDoubt)
			Release(t, call.Hold)
		}
	})
}

// The batch is refused, and its reply says that an earlier copy is under way. The copy is executed
// when all waiters have gone.
func TestRefusedBatchInDoubtIsRolledBackForAll(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		ctx, cancel := context.WithCancel(t.Context())
		writer, calls := waitingReaders(ctx, t, s, c, 3)
		s.KeepLeases()
		s.Script("acquire", Fault{Copy: 20 * time.Second})
		Sleep(time.Second) // the poll
		cancel()
		for _, call := range calls {
			_ = call.AwaitErr()
		}
		Release(t, writer)
		Sleep(time.Minute)
		assert.Len(t, s.Sent("rollback"), 3)
	})
}

// A reader that shares its id is acquired by a command of its own: the server counts it.
func TestSharedIDsAreNotBatched(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		writer, _ := waitingReaders(t.Context(), t, s, c, 0)
		shared := StartAcquire(t, t.Context(), c.Reader("x"), OwnedBy("me"))
		calls := []*Call{StartAcquire(t, t.Context(), c.Reader("x")), StartAcquire(t, t.Context(), c.Reader("x"))}
		before := len(s.Sent("acquire", "a"))
		Release(t, writer)
		for _, call := range append(calls, shared) {
			call.AwaitHold()
		}
		assert.Equal(t, 2, len(s.Sent("acquire", "a"))-before)
		for _, call := range append(calls, shared) {
			Release(t, call.Hold)
		}
	})
}
