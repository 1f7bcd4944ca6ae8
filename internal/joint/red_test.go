package joint_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/failure"
	"github.com/redlatch/redlatch/internal/joint"
	. "github.com/redlatch/redlatch/internal/test/enginetest"
)

// Each case acquires a redlock of five servers.
func TestRedAcquiresAMajority(t *testing.T) {
	seize := func(s *Server) { s.Seize("x", "other", 0) }
	down := func(s *Server) { s.OnEach(func(Command) Fault { return Fault{Err: ErrDown} }) }
	mute := func(s *Server) { s.OnEach(silent) }
	fading := 0 // servers that have fallen silent
	fade := func(s *Server) {
		if fading++; fading <= 3 {
			mute(s)
			return
		}
		s.OnEach(func(cmd Command) Fault {
			if cmd.Op == "release" {
				return silent(cmd)
			}
			return Fault{}
		})
	}
	for _, tt := range []struct {
		name  string
		n     int // servers with a fault
		fault func(*Server)
		limit time.Duration
		want  error // nil: acquired
		at    time.Duration
	}{
		{name: "all answer", limit: engine.Forever},
		{name: "two are held", n: 2, fault: seize, limit: engine.Forever},
		{name: "two are unreachable", n: 2, fault: down, limit: engine.Forever},
		{name: "two do not answer", n: 2, fault: mute, limit: engine.Forever, at: joint.Together},
		{name: "two do not answer before the limit", n: 2, fault: mute, limit: time.Second, at: joint.Together},
		{name: "two do not answer, and the limit is short", n: 2, fault: mute, limit: 2 * ms, at: ms},
		{name: "three are held: a single try", n: 3, fault: seize, limit: engine.NoWait, want: engine.ErrNotAcquired},
		{
			name: "three are held: the limit", n: 3, fault: seize, limit: time.Second, want: engine.ErrNotAcquired,
			at: time.Second,
		},
		{name: "three are unreachable", n: 3, fault: down, limit: engine.Forever, want: ErrDown},
		{
			name: "three do not answer", n: 3, fault: mute, limit: engine.Forever, want: engine.ErrUnavailable,
			at: 2 * time.Second, // the budget of a member
		},
		{
			name: "three do not answer, and then the others neither", n: 5, fault: fade, limit: engine.Forever,
			want: engine.ErrUnavailable, at: 2 * time.Second,
		},
		{
			name: "three do not answer before the limit", n: 3, fault: mute, limit: time.Second, want: engine.ErrUnavailable,
			at: time.Second + rollbackGrace/2,
		},
	} {
		runCluster(t, tt.name, 5, func(t *testing.T, k *cluster) {
			k.each(len(k.servers), (*Server).KeepLeases)
			began := time.Now()
			k.each(tt.n, tt.fault)
			hold, err := redOf(k.clients).Acquire(t.Context(), NewTerms(), tt.limit)
			switch {
			case tt.want == nil:
				require.NoError(t, err)
				assert.Equal(t, tt.at, time.Since(began))
				assert.GreaterOrEqual(t, k.holders(hold.ID()), 3)
				if tt.limit > 0 {
					assert.Less(t, time.Since(began), tt.limit, "a slow member must not use up the wait")
				}
			default:
				require.ErrorIs(t, err, tt.want)
				assert.False(t, failure.Of(err).InDoubt())
				assert.Equal(t, errors.Is(tt.want, engine.ErrNotAcquired), errors.Is(err, engine.ErrNotAcquired), "%v", err)
			}
			// A failed attempt waits for the releases of what it acquired, within the budget and
			// the command timeout.
			assert.GreaterOrEqual(t, time.Since(began), tt.at)
			assert.LessOrEqual(t, time.Since(began), min(2*tt.at, CommandTimeout))
			k.each(tt.n, func(s *Server) { s.ResetFaults(); s.Forget("x") })
			if hold != nil {
				Release(t, hold)
			}
			Sleep(time.Minute)
		})
	}
}

// Two of five are held, and one is unreachable. It waits, because the holders are to blame.
func TestRedWaitsForHoldersBesideAnUnreachableMember(t *testing.T) {
	onCluster(t, 5, func(t *testing.T, k *cluster) {
		k.each(2, func(s *Server) { s.Seize("x", "other", 0) })
		k.servers[2].OnEach(func(Command) Fault { return Fault{Err: ErrDown} })
		_, err := redOf(k.clients).Acquire(t.Context(), NewTerms(), time.Second)
		require.ErrorIs(t, err, engine.ErrNotAcquired)
		require.ErrorIs(t, err, ErrDown)
		k.each(2, func(s *Server) { s.Forget("x") })
		Sleep(time.Second)
	})
}

func TestRedWaitsForAMajorityOfMessages(t *testing.T) {
	onCluster(t, 3, func(t *testing.T, k *cluster) {
		k.each(2, func(s *Server) { s.Seize("x", "other", 0) })
		call := StartAcquire(t, t.Context(), redOf(k.clients))
		Sleep(500 * ms)
		attempts := len(k.servers[2].Sent("acquire"))
		k.servers[0].Forget("x")
		k.servers[2].Message("x")
		Settle()
		assert.Len(t, k.servers[2].Sent("acquire"), attempts, "one message is no majority")
		k.servers[0].Message("x")
		call.AwaitHold()
		assert.Less(t, k.servers[0].Now(), 800*ms)
		Release(t, call.Hold)
		k.servers[1].Forget("x")
	})
}

func TestRedRivalsDoNotBlockEachOther(t *testing.T) {
	onCluster(t, 3, func(t *testing.T, k *cluster) {
		sets := [][]*Client{k.clients, k.join(t, "b"), k.join(t, "c")}
		for i, s := range k.servers { // each server gets another rival's command first
			s.OnEach(func(cmd Command) Fault {
				if cmd.Op == "acquire" && cmd.Client[0] != "abc"[i] {
					return Fault{Delay: 2 * ms}
				}
				return Fault{Delay: ms}
			})
		}
		var calls []*Call
		for _, clients := range sets {
			calls = append(calls, Start(t, func() (*engine.Hold, error) {
				hold := Acquire(t, t.Context(), redOf(clients))
				return hold, hold.Release(t.Context())
			}))
		}
		for _, call := range calls {
			call.AwaitHold()
		}
		assert.Less(t, k.servers[0].Now(), 5*time.Second)
		Sleep(time.Second)
	})
}

func TestRedHoldLivesWithAMajority(t *testing.T) {
	for _, tt := range []struct {
		name string
		n    int // servers that stop answering
		lost bool
	}{
		{"two of five", 2, false},
		{"three of five", 3, true},
	} {
		runCluster(t, tt.name, 5, func(t *testing.T, k *cluster) {
			hold := Acquire(t, t.Context(), redOf(k.clients))
			k.each(tt.n, func(s *Server) { s.OnEach(silent) })
			ctx := Carry(hold)
			Sleep(DefaultTTL - margin - ms)
			assert.NoError(t, ctx.Err())
			if !tt.lost {
				require.NoError(t, hold.Check(t.Context()))
				require.NoError(t, hold.Extend(t.Context(), time.Minute, nil))
			} else {
				assert.Equal(t, ms, time.Until(hold.ValidUntil()))
			}
			Sleep(5 * time.Minute)
			assert.Equal(t, tt.lost, errors.Is(context.Cause(ctx), engine.ErrLost))
			err := hold.Release(t.Context())
			assert.Equal(t, tt.lost, errors.Is(err, engine.ErrLost), "%v", err)
			k.each(tt.n, (*Server).ResetFaults)
			Sleep(5 * time.Minute)
		})
	}
}

func TestRedReleaseWithoutAMajorityContinues(t *testing.T) {
	onCluster(t, 3, func(t *testing.T, k *cluster) {
		k.each(len(k.servers), (*Server).KeepLeases)
		hold := Acquire(t, t.Context(), redOf(k.clients))
		k.each(2, func(s *Server) { s.Script("release", Fault{Lost: true}, Fault{Err: ErrDown}) })
		began := time.Now()
		err := hold.Release(t.Context())
		assert.True(t, failure.Of(err).InDoubt(), "%v", err)
		assert.Equal(t, 2*time.Second, time.Since(began), "the budget of a member")
		assert.Equal(t, 2, k.holders(hold.ID()))
		Sleep(5 * time.Second)
	})
}

// On a busy machine, several members miss their budget in the first attempt. An acquisition whose
// wait has an end tries again, until a command would have timed out. Other errors end it at once.
func TestRedWhoseMembersMissTheirBudgetTriesAgain(t *testing.T) {
	const budget = 2 * time.Second
	down := Fault{Err: ErrDown}
	for _, tt := range []struct {
		name   string
		faults []Fault // of the first acquisitions on the first two servers
		wait   time.Duration
		err    error // nil: it is acquired
		least  time.Duration
		most   time.Duration
	}{
		{name: "once", faults: []Fault{{Mute: true}}, wait: 10 * time.Second, least: budget, most: budget + time.Second},
		{
			name: "always", faults: []Fault{{Mute: true}, {Mute: true}, {Mute: true}, {Mute: true}, {Mute: true}},
			wait: time.Minute, err: engine.ErrUnavailable, least: CommandTimeout - budget, most: CommandTimeout + budget,
		},
		{
			name: "until the wait ends", faults: []Fault{{Mute: true}, {Mute: true}, {Mute: true}, {Mute: true}},
			wait: 3 * time.Second, err: engine.ErrUnavailable, least: 3 * time.Second, most: 3*time.Second + 50*ms,
		},
		{name: "without an end", faults: []Fault{{Mute: true}}, wait: engine.Forever, err: engine.ErrUnavailable,
			most: 3 * time.Second},
		{name: "a try", faults: []Fault{{Mute: true}}, wait: engine.NoWait, err: engine.ErrUnavailable,
			most: 3 * time.Second},
		{name: "another error", faults: []Fault{down}, wait: 10 * time.Second, err: ErrDown, most: time.Second},
	} {
		runCluster(t, tt.name, 3, func(t *testing.T, k *cluster) {
			k.each(2, func(s *Server) { s.Script("acquire", tt.faults...) })
			began := time.Now()
			hold, err := redOf(k.clients).Acquire(t.Context(), NewTerms(), tt.wait)
			assert.GreaterOrEqual(t, time.Since(began), tt.least)
			assert.LessOrEqual(t, time.Since(began), tt.most)
			if tt.err != nil {
				require.ErrorIs(t, err, tt.err)
				require.NotErrorIs(t, err, engine.ErrNotAcquired)
			} else {
				require.NoError(t, err)
				Release(t, hold)
			}
			Sleep(time.Hour)
		})
	}
}
