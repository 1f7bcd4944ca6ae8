package engine

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// waitingReaders starts n readers of one client that wait for a writer of another.
func waitingReaders(
	ctx context.Context, t *testing.T, s *server, c *client, n int,
) (writer *Hold, calls []*call) {
	s.setPermits("x", 1000)
	writer = acquire(t, t.Context(), s.client(t, "w").writer("x"))
	for range n {
		calls = append(calls, startAcquire(t, ctx, c.reader("x")))
	}
	return writer, calls
}

func TestOneCommandAcquiresForAllWaitingReaders(t *testing.T) {
	for _, tt := range []struct {
		name     string
		waiters  int
		config   func(*Config)
		commands int
	}{
		{"one", 1, nil, 1},
		{"five", 5, nil, 1},
		{"as many as fit", maxBatch + 1, nil, 1},
		{"more than fit", maxBatch + 6, nil, 2},
		{"where replicas must confirm: each for itself", 5, func(c *Config) { c.NeedsReplicas = true }, 5},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				config := tt.config
				if config == nil {
					config = func(*Config) {}
				}
				writer, calls := waitingReaders(t.Context(), t, s, s.client(t, "a", config), tt.waiters)
				sleep(100 * ms)
				before := len(s.sent("acquire", "a"))
				release(t, writer)
				for _, call := range calls {
					call.wait()
				}
				assert.Equal(t, 100*ms, s.now())
				assert.Equal(t, tt.commands, len(s.sent("acquire", "a"))-before)
				assert.Len(t, s.ids("x"), tt.waiters)
				for _, call := range calls {
					release(t, call.hold)
				}
				s.requireFree(t)
			})
		})
	}
}

// Each case has a head and two others wait. The head's next command has a fault.
func TestBatchOfUnknownOutcome(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault fault
		leave time.Duration // when the others give up; 0: they do not
	}{
		{"executed, not answered", fault{mute: true}, 0},
		{"executed, answered late", fault{reply: 2 * time.Second}, 0},
		{"never executed", fault{lost: true}, 0},
		{"a copy comes later", fault{lost: true, copy: 30 * time.Second}, 0},
		{"executed, not answered; the others have gone", fault{mute: true}, 100 * ms},
		{"executed, not answered; the others go when that is known", fault{mute: true}, testTimeout + ms},
		{"executed, answered late; the others have gone", fault{reply: 2 * time.Second}, 100 * ms},
		{"executed when the others have gone", fault{delay: 10 * time.Second}, 100 * ms},
		{"refused", fault{err: errBusy}, 50 * ms},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				c := s.client(t, "a")
				ctx, cancel := context.WithCancelCause(t.Context())
				writer, head := waitingReaders(t.Context(), t, s, c, 1)
				others := []*call{startAcquire(t, ctx, c.reader("x")), startAcquire(t, ctx, c.reader("x"))}
				s.keepLeases()
				// The others are on the same connection, which does not answer either.
				s.script("acquire", tt.fault, tt.fault, tt.fault)
				release(t, writer)
				if tt.leave > 0 {
					sleep(tt.leave)
					cancel(errCause)
				}
				for _, other := range others {
					if tt.leave > 0 {
						require.ErrorIs(t, other.fail(), errCause)
					} else {
						other.wait()
						release(t, other.hold)
					}
				}
				release(t, head[0].wait())
				sleep(time.Minute)
				s.requireFree(t)
				cancel(nil)
			})
		})
	}
}

// When the outcome of a batch is unknown, the other waiters try at once. They do not wait for a poll.
func TestWaitersOfABatchOfUnknownOutcomeAskTheServer(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a", func(config *Config) { config.CommandTimeout = 200 * ms })
		writer, calls := waitingReaders(t.Context(), t, s, c, 3)
		s.script("acquire", fault{mute: true})
		release(t, writer)
		for _, call := range calls[1:] {
			release(t, call.wait())
			assert.Equal(t, 200*ms, call.at.Sub(s.start))
		}
		release(t, calls[0].wait())
		s.requireFree(t)
	})
}

// The reply to the first batch says that an earlier copy is under way, which may acquire for both.
func TestBatchThatTellsOfDoubtPutsAllInDoubt(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		r := s.client(t, "a").reader("x")
		writer, _ := waitingReaders(t.Context(), t, s, r.Driver.(*driver).c, 0)
		batches := 0
		r.Traits.AcquireBatch = func(ctx context.Context, q *Request, others []*Request) (Result, []bool, error) {
			res, err := r.Driver.TryAcquire(ctx, q)
			if err != nil || !res.Granted {
				return res, nil, err
			}
			batches++
			res.InDoubt = batches == 1
			return res, make([]bool, len(others)), nil // granted to the first alone
		}
		calls := []*call{startAcquire(t, t.Context(), r), startAcquire(t, t.Context(), r)}
		release(t, writer)
		for _, call := range calls {
			assert.True(t, call.wait().Ownership().InDoubt)
			release(t, call.hold)
		}
		s.requireFree(t)
	})
}

// The batch is refused, and its reply says that an earlier copy is under way. The copy is executed when
// all waiters have gone.
func TestRefusedBatchThatTellsOfDoubtIsRolledBackForAll(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		ctx, cancel := context.WithCancel(t.Context())
		writer, calls := waitingReaders(ctx, t, s, c, 3)
		s.keepLeases()
		s.script("acquire", fault{copy: 20 * time.Second})
		sleep(time.Second) // the poll
		cancel()
		for _, call := range calls {
			_ = call.fail()
		}
		release(t, writer)
		sleep(time.Minute)
		assert.Len(t, s.sent("rollback", ""), 3)
		s.requireFree(t)
	})
}

// A reader that shares its id is acquired by a command of its own: the server counts it.
func TestSharedIDsAreNotBatched(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		writer, _ := waitingReaders(t.Context(), t, s, c, 0)
		shared := startAcquire(t, t.Context(), c.reader("x"), owner("me"))
		calls := []*call{startAcquire(t, t.Context(), c.reader("x")), startAcquire(t, t.Context(), c.reader("x"))}
		before := len(s.sent("acquire", "a"))
		release(t, writer)
		for _, call := range append(calls, shared) {
			call.wait()
		}
		assert.Equal(t, 2, len(s.sent("acquire", "a"))-before)
		for _, call := range append(calls, shared) {
			release(t, call.hold)
		}
		s.requireFree(t)
	})
}
