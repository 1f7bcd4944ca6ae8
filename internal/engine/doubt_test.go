package engine

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// In each case an attempt of a waiter has an unknown outcome, while another client holds the lock. The
// waiter gives up after 5 s, and has tried several times again until then.
func TestAttemptInDoubtIsRolledBackWhateverLaterAttemptsAreAnswered(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault fault
		want  int // rollbacks
	}{
		{"no doubt", fault{}, 0},
		{"executed, reply lost", fault{mute: true}, 1},
		{"never executed", fault{lost: true}, 1},
		{"a copy comes when the waiter has gone", fault{lost: true, copy: 10 * time.Second}, 1},
		{"refused by a reply that tells of an earlier copy", fault{copy: 10 * time.Second}, 1},
		{"executed when the waiter has gone", fault{delay: 10 * time.Second}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				s.keepLeases()
				c := s.client(t, "a")
				s.seize("x", "other", 0)
				s.script("acquire", fault{}, tt.fault)
				_, err := c.lock("x").Acquire(t.Context(), terms(), 5*time.Second)
				require.ErrorIs(t, err, ErrNotAcquired)
				assert.Greater(t, len(s.sent("acquire", "")), 2, "later attempts were answered")
				s.free("x")
				sleep(time.Minute)
				assert.Len(t, s.sent("rollback", "a:1"), tt.want)
				s.requireFree(t)
			})
		})
	}
}

// The server forgets a release after a minute, but the release of an owner in doubt only after five.
func TestReleaseOfAnOwnerInDoubtIsRememberedForLong(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault fault // of the first attempt while waiting
	}{
		{"no answer", fault{lost: true, copy: 3 * time.Minute}},
		{"the reply tells of an earlier copy", fault{copy: 3 * time.Minute}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				r := s.client(t, "a").lock("x")
				s.seize("x", "other", 10*time.Second)
				s.script("acquire", fault{}, tt.fault)
				hold := acquire(t, t.Context(), r)
				assert.True(t, hold.Ownership().InDoubt)
				s.keepLeases()
				release(t, hold)
				sleep(4 * time.Minute)
				s.requireFree(t)
			})
		})
	}
}

func TestGrantIsRolledBackIfTheCallerHasGone(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		ctx, cancel := context.WithCancelCause(t.Context())
		s.onEach(func(cmd command) fault {
			if cmd.op == "acquire" {
				cancel(errCause) // between sending and the reply
			}
			return fault{}
		})
		_, err := c.lock("x").Acquire(ctx, terms(), noWait)
		require.ErrorIs(t, err, ErrNotAcquired)
		require.ErrorIs(t, err, errCause)
		assert.Len(t, s.sent("rollback", ""), 1)
		s.requireFree(t)
	})
}

func TestRollbackIsRepeatedUntilTheServerHasAnswered(t *testing.T) {
	const ms = time.Millisecond
	for _, tt := range []struct {
		name   string
		faults []fault
		want   []time.Duration // when rollbacks are sent, after the first one
	}{
		{"answered", nil, []time.Duration{0}},
		{"refused four times", []fault{{err: errDown}, {err: errBusy}, {err: errFatal}, {err: errDown}},
			[]time.Duration{0, 20 * ms, 60 * ms, 140 * ms, 300 * ms}},
		{"no answer twice", []fault{{lost: true}, {mute: true}}, []time.Duration{0, 3020 * ms, 6060 * ms}},
		{"the transport is closed", []fault{{err: errStopped}}, []time.Duration{0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				s.keepLeases()
				s.script("acquire", fault{mute: true})
				s.script("rollback", tt.faults...)
				_, err := s.client(t, "a").lock("x").Acquire(t.Context(), terms(), forever)
				require.Error(t, err)
				sleep(time.Minute)
				sent := s.sent("rollback", "a:1")
				for i := range sent {
					sent[i] -= testTimeout
				}
				assert.Equal(t, tt.want, sent)
				if tt.name != "the transport is closed" {
					s.requireFree(t)
				}
			})
		})
	}
}

func TestRollbackIsRepeatedOnceASecondAndNotForEver(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		s.script("acquire", fault{lost: true})
		s.onEach(func(cmd command) fault {
			if cmd.op == "rollback" {
				return fault{err: errDown}
			}
			return fault{}
		})
		_, err := c.lock("x").Acquire(t.Context(), terms(), forever)
		require.Error(t, err)
		sleep(time.Hour)
		sent := s.sent("rollback", "")
		for i := 8; i < len(sent); i++ {
			assert.Equal(t, time.Second, sent[i]-sent[i-1])
		}
		// A late copy may be executed LateCopies after the attempt, and its lease begins then.
		last := testTimeout + c.LateCopies + testTTL
		assert.InDelta(t, last, sent[len(sent)-1], float64(time.Second))
	})
}

// In each case an attempt has an unknown outcome, and its rollback is not answered.
func TestCallWaitsForItsRollbackForABoundedTime(t *testing.T) {
	reset := &netError{text: "connection reset", failure: Failure{InDoubt: true, Retry: true}}
	for _, tt := range []struct {
		name    string
		timeout time.Duration // of commands
		fault   fault
		ctx     time.Duration // timeout of the caller's context
		want    time.Duration
	}{
		{"a second", 10 * time.Second, fault{err: reset}, time.Hour, rollbackTimeout},
		{"what is left of the time for a command", 500 * time.Millisecond, fault{err: reset}, time.Hour,
			500 * time.Millisecond},
		{"the command has used up its time", time.Second, fault{lost: true}, time.Hour, time.Second + rollbackGrace},
		{"its context has ended", time.Hour, fault{lost: true}, time.Second, time.Second + rollbackGrace},
		{"its context ends meanwhile", time.Hour, fault{err: reset}, 500 * time.Millisecond,
			500*time.Millisecond + rollbackGrace},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				c := s.client(t, "a", func(config *Config) { config.CommandTimeout = tt.timeout })
				s.script("acquire", tt.fault)
				s.script("rollback", fault{lost: true})
				ctx, cancel := context.WithTimeout(t.Context(), tt.ctx)
				defer cancel()
				_, err := c.lock("x").Acquire(ctx, terms(), forever)
				require.Error(t, err)
				assert.Equal(t, tt.want, s.now())
			})
		})
	}
}

func TestCloseEndsRollbacks(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		s.script("acquire", fault{lost: true})
		s.onEach(func(command) fault { return fault{err: errDown} })
		_, err := c.lock("x").Acquire(t.Context(), terms(), forever)
		require.Error(t, err)
		sleep(10 * time.Second)
		require.NoError(t, c.close(t.Context()))
		n := len(s.sent("rollback", ""))
		sleep(time.Minute)
		assert.Len(t, s.sent("rollback", ""), n)
	})
}

// A copy of an acquisition that is executed after the release must not take the lock again.
func TestLateCopiesOfCommandsHaveNoEffect(t *testing.T) {
	for _, op := range []string{"acquire", "release", "rollback", "nest", "count"} {
		t.Run(op, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				c := s.client(t, "a")
				r := c.lock("x")
				s.script(op, fault{copy: 10 * time.Second})
				if op == "rollback" {
					s.script("acquire", fault{mute: true})
					_, err := r.Acquire(t.Context(), terms(), forever)
					require.Error(t, err)
				}
				outer := acquire(t, t.Context(), r)
				inner := acquire(t, carry(outer), r)
				release(t, inner)
				release(t, outer)
				s.requireFree(t)
				next := acquire(t, t.Context(), r)
				sleep(20 * time.Second)
				assert.Equal(t, []string{next.ID()}, s.ids("x"))
				assert.Equal(t, 1, s.holder("x", next.ID()).count)
				release(t, next)
				s.requireFree(t)
			})
		})
	}
}

// Rolling back a request without a lease is repeated for as long as the server remembers what it took.
func TestRollbackWithoutALeaseIsRepeatedAsLongAsTheServerRemembers(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		r := s.client(t, "a").semaphore("x")
		r.Traits.Remembered = 20 * time.Minute
		s.script("acquire", fault{mute: true})
		s.onEach(func(command) fault { return fault{err: errDown} })
		_, err := r.Acquire(t.Context(), terms(), forever)
		require.Error(t, err)
		sleep(time.Hour)
		sent := s.sent("rollback", "")
		assert.InDelta(t, testTimeout+20*time.Minute, sent[len(sent)-1], float64(time.Second))
	})
}
