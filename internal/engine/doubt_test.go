package engine_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/failure"
	. "github.com/redlatch/redlatch/internal/test/enginetest"
)

// In each case an attempt of a waiter has an unknown outcome, while another client holds the lock.
// The waiter gives up after 5 s, after several further attempts.
func TestAttemptInDoubtIsRolledBackAfterRefusals(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault Fault
		want  int // rollbacks
	}{
		{"no doubt", Fault{}, 0},
		{"executed, reply lost", Fault{Mute: true}, 1},
		{"never executed", Fault{Lost: true}, 1},
		{"a copy comes when the waiter has gone", Fault{Lost: true, Copy: 10 * time.Second}, 1},
		{"refused by a reply that reports an earlier copy", Fault{Copy: 10 * time.Second}, 1},
		{"executed when the waiter has gone", Fault{Delay: 10 * time.Second}, 1},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			s.KeepLeases()
			c := s.Client(t, "a")
			s.Seize("x", "other", 0)
			s.Script("acquire", Fault{}, tt.fault)
			require.ErrorIs(t, ErrOf(c.Lock("x").Acquire(t.Context(), NewTerms(), 5*time.Second)), engine.ErrNotAcquired)
			assert.Greater(t, len(s.Sent("acquire")), 2, "later attempts were answered")
			s.Free("x")
			Sleep(time.Minute)
			assert.Len(t, s.Sent("rollback", "a:1"), tt.want)
		})
	}
}

// The server forgets a release after a minute, but the release of an owner in doubt only after
// five.
func TestReleaseOfAnOwnerInDoubtIsRememberedForLong(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault Fault // of the first attempt while waiting
	}{
		{"no answer", Fault{Lost: true, Copy: 3 * time.Minute}},
		{"the reply reports an earlier copy", Fault{Copy: 3 * time.Minute}},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			r := s.Client(t, "a").Lock("x")
			s.Seize("x", "other", 10*time.Second)
			s.Script("acquire", Fault{}, tt.fault)
			hold := Acquire(t, t.Context(), r)
			assert.True(t, hold.Ownership().InDoubt)
			s.KeepLeases()
			Release(t, hold)
			Sleep(4 * time.Minute)
		})
	}
}

func TestGrantIsRolledBackIfTheCallerHasGone(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		ctx, cancel := context.WithCancelCause(t.Context())
		s.OnEach(func(cmd Command) Fault {
			if cmd.Op == "acquire" {
				cancel(errCause) // between sending and the reply
			}
			return Fault{}
		})
		_, err := c.Lock("x").Acquire(ctx, NewTerms(), engine.NoWait)
		require.ErrorIs(t, err, engine.ErrNotAcquired)
		require.ErrorIs(t, err, errCause)
		assert.Len(t, s.Sent("rollback"), 1)
	})
}

func TestRollbackIsRepeatedUntilTheServerHasAnswered(t *testing.T) {
	for _, tt := range []struct {
		name      string
		faults    []Fault
		want      []time.Duration // when rollbacks are sent, after the first one
		staysHeld bool
	}{
		{name: "answered", want: []time.Duration{0}},
		{
			name: "refused four times", faults: []Fault{{Err: ErrDown}, {Err: ErrBusy}, {Err: ErrFatal}, {Err: ErrDown}},
			want: []time.Duration{0, 20 * ms, 60 * ms, 140 * ms, 300 * ms},
		},
		{
			name: "no answer twice", faults: []Fault{{Lost: true}, {Mute: true}},
			want: []time.Duration{0, 3020 * ms, 6060 * ms},
		},
		{
			name: "the transport is closed", faults: []Fault{{Err: ErrStopped}},
			want: []time.Duration{0}, staysHeld: true,
		},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			s.MayStayHeld()
			s.KeepLeases()
			s.Script("acquire", Fault{Mute: true})
			s.Script("rollback", tt.faults...)
			require.Error(t, ErrOf(s.Client(t, "a").Lock("x").Acquire(t.Context(), NewTerms(), engine.Forever)))
			Sleep(time.Minute)
			sent := s.Sent("rollback", "a:1")
			for i := range sent {
				sent[i] -= CommandTimeout
			}
			assert.Equal(t, tt.want, sent)
			if !tt.staysHeld {
				s.RequireFree(t)
			}
		})
	}
}

func TestRollbackIsRepeatedOnceASecondAndNotForEver(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		s.Script("acquire", Fault{Lost: true})
		s.OnEach(func(cmd Command) Fault {
			if cmd.Op == "rollback" {
				return Fault{Err: ErrDown}
			}
			return Fault{}
		})
		require.Error(t, ErrOf(c.Lock("x").Acquire(t.Context(), NewTerms(), engine.Forever)))
		Sleep(time.Hour)
		sent := s.Sent("rollback")
		for i := 8; i < len(sent); i++ {
			assert.Equal(t, time.Second, sent[i]-sent[i-1])
		}
		// A late copy may be executed LateCopies after the attempt, and its lease begins then.
		last := CommandTimeout + c.LateCopies + DefaultTTL
		assert.InDelta(t, last, sent[len(sent)-1], float64(time.Second))
	})
}

// In each case an attempt has an unknown outcome, and its rollback is not answered.
func TestCallWaitsForItsRollbackForABoundedTime(t *testing.T) {
	reset := NewError("connection reset", failure.Failure{Outcome: failure.Unknown})
	for _, tt := range []struct {
		name    string
		timeout time.Duration // of commands
		fault   Fault
		ctx     time.Duration // timeout of the caller's context
		want    time.Duration
	}{
		{name: "a second", timeout: 10 * time.Second, fault: Fault{Err: reset}, ctx: time.Hour, want: engine.RollbackTimeout},
		{
			name: "the rest of the time for a command", timeout: 500 * time.Millisecond, fault: Fault{Err: reset},
			ctx: time.Hour, want: 500 * time.Millisecond,
		},
		{
			name: "the command has used up its time", timeout: time.Second, fault: Fault{Lost: true}, ctx: time.Hour,
			want: time.Second + engine.RollbackGrace,
		},
		{
			name: "its context has ended", timeout: time.Hour, fault: Fault{Lost: true}, ctx: time.Second,
			want: time.Second + engine.RollbackGrace,
		},
		{
			name: "its context ends during the rollback", timeout: time.Hour, fault: Fault{Err: reset},
			ctx: 500 * time.Millisecond, want: 500*time.Millisecond + engine.RollbackGrace,
		},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			c := s.Client(t, "a", func(config *engine.Config) { config.CommandTimeout = tt.timeout })
			s.Script("acquire", tt.fault)
			s.Script("rollback", Fault{Lost: true})
			ctx, cancel := context.WithTimeout(t.Context(), tt.ctx)
			defer cancel()
			require.Error(t, ErrOf(c.Lock("x").Acquire(ctx, NewTerms(), engine.Forever)))
			assert.Equal(t, tt.want, s.Now())
		})
	}
}

func TestCloseEndsRollbacks(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		s.Script("acquire", Fault{Lost: true})
		s.OnEach(func(Command) Fault { return Fault{Err: ErrDown} })
		require.Error(t, ErrOf(c.Lock("x").Acquire(t.Context(), NewTerms(), engine.Forever)))
		Sleep(10 * time.Second)
		require.NoError(t, c.Shut(t.Context()))
		n := len(s.Sent("rollback"))
		Sleep(time.Minute)
		assert.Len(t, s.Sent("rollback"), n)
	})
}

// A copy of an acquisition that is executed after the release must not take the lock again.
func TestLateCopiesOfCommandsHaveNoEffect(t *testing.T) {
	for _, op := range []string{"acquire", "release", "rollback", "nest", "count"} {
		RunBubble(t, op, func(t *testing.T, s *Server) {
			c := s.Client(t, "a")
			r := c.Lock("x")
			s.Script(op, Fault{Copy: 10 * time.Second})
			if op == "rollback" {
				s.Script("acquire", Fault{Mute: true})
				require.Error(t, ErrOf(r.Acquire(t.Context(), NewTerms(), engine.Forever)))
			}
			outer := Acquire(t, t.Context(), r)
			inner := Acquire(t, Carry(outer), r)
			Release(t, inner, outer)
			s.RequireFree(t)
			next := Acquire(t, t.Context(), r)
			Sleep(20 * time.Second)
			assert.Equal(t, []string{next.ID()}, s.IDs("x"))
			assert.Equal(t, 1, s.Holder("x", next.ID()).Count)
			Release(t, next)
		})
	}
}

// Rolling back a request without a lease is repeated for as long as the server remembers what it
// took.
func TestRollbackWithoutALeaseIsRepeated(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		s.MayStayHeld()
		r := s.Client(t, "a").Semaphore("x")
		r.Traits.Remembered = 20 * time.Minute
		s.Script("acquire", Fault{Mute: true})
		s.OnEach(func(Command) Fault { return Fault{Err: ErrDown} })
		require.Error(t, ErrOf(r.Acquire(t.Context(), NewTerms(), engine.Forever)))
		Sleep(time.Hour)
		sent := s.Sent("rollback")
		assert.InDelta(t, CommandTimeout+20*time.Minute, sent[len(sent)-1], float64(time.Second))
	})
}
