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

// late makes a server answer acquisitions after d, which it executes at once.
func late(d time.Duration) func(Command) Fault {
	return func(cmd Command) (f Fault) {
		if cmd.Op == "acquire" {
			f.Reply = d
		}
		return f
	}
}

// A member answers after the others. While the joint hold lasts, the member joins it.
func TestLateMemberJoinsTheJointHold(t *testing.T) {
	for _, d := range []time.Duration{ms, joint.Together + 10*ms, joint.Together + joint.Promptly + 10*ms, 2900 * ms} {
		runCluster(t, d.String(), 3, func(t *testing.T, k *cluster) {
			k.servers[2].OnEach(late(d))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			began := time.Now()
			hold := Acquire(t, ctx, redOf(k.clients))
			cancel() // of the acquisition: it must not end the attempts for late members
			assert.Equal(t, min(d, joint.Together), time.Since(began))
			Sleep(d)
			k.servers[2].ResetFaults()
			k.servers[0].Forget("x")
			k.servers[0].Seize("x", "other", 0)
			require.NoError(t, hold.Check(t.Context()))
			require.True(t, hold.IsLive(), "the late member and another one are a majority")
			Sleep(time.Hour)
			require.True(t, hold.IsLive(), "the late member is renewed")
			Release(t, hold)
			k.servers[0].Free("x")
		})
	}
}

// A member answers late. Meanwhile another one has forgotten the lock, so a rival may have had a
// majority. The late member does not restore ours.
func TestLateMemberDoesNotMendABrokenMajority(t *testing.T) {
	onCluster(t, 3, func(t *testing.T, k *cluster) {
		k.servers[2].OnEach(late(time.Second))
		hold := Acquire(t, t.Context(), redOf(k.clients))
		k.servers[0].Forget("x")
		Sleep(2 * time.Second)
		require.ErrorIs(t, context.Cause(Carry(hold)), engine.ErrLost)
		require.ErrorIs(t, hold.Release(t.Context()), engine.ErrLost)
		Sleep(time.Second)
	})
}

// The joint hold ends before a member has answered. If that member grants, it is released: before
// the joint Release returns, if the member's server answers as usual.
func TestReleaseGivesLateMembersBack(t *testing.T) {
	const usual = 30 * ms
	for _, tt := range []struct {
		name   string
		answer time.Duration
		at     time.Duration // when the release returns
	}{
		{"soon", joint.Together + 10*ms, joint.Together + 10*ms},
		{"later than usual", time.Second, engine.AnswerFactor * usual},
		{"never", time.Hour, engine.AnswerFactor * usual},
	} {
		runCluster(t, tt.name, 3, func(t *testing.T, k *cluster) {
			k.each(3, (*Server).KeepLeases)
			r := redOf(k.clients)
			k.servers[2].OnEach(late(usual))
			Release(t, Acquire(t, t.Context(), r))
			k.servers[2].OnEach(late(tt.answer))
			began := time.Now()
			Release(t, Acquire(t, t.Context(), r))
			assert.Equal(t, tt.at, time.Since(began))
			for _, s := range k.servers[:2] {
				s.RequireFree(t)
			}
			Sleep(time.Minute)
		})
	}
}

// Acquisitions come one after another, and one server does not answer. Only the first of them waits
// for it, for a moment. One attempt at a time is under way there. When the server answers again, it
// is a member again.
func TestSilentServerGetsOneAttemptAtATime(t *testing.T) {
	onCluster(t, 3, func(t *testing.T, k *cluster) {
		r := redOf(k.clients)
		Release(t, Acquire(t, t.Context(), r))
		k.servers[1].OnEach(silent)
		sent := func() int { return len(k.servers[1].Sent("acquire")) }
		before, began := sent(), time.Now()
		Release(t, Acquire(t, t.Context(), r))
		first := time.Since(began)
		assert.LessOrEqual(t, first, 2*engine.UsualAnswer)
		for range 1000 {
			Release(t, Acquire(t, t.Context(), r))
		}
		assert.Equal(t, first, time.Since(began), "the others wait for nothing")
		assert.Equal(t, before+1, sent())
		Sleep(CommandTimeout)
		Release(t, Acquire(t, t.Context(), r))
		assert.Equal(t, before+2, sent(), "the next one asks again")

		held := Acquire(t, t.Context(), r) // stands behind that attempt
		k.servers[1].ResetFaults()
		Sleep(CommandTimeout)
		Release(t, held)
		Release(t, Acquire(t, t.Context(), r))
		Settle()
		hold := Acquire(t, t.Context(), r)
		assert.Equal(t, 3, k.holders(hold.ID()))
		Release(t, hold)
		Sleep(time.Minute)
	})
}

// The clients close while a member has not answered. Close does not wait for it longer than for a
// command.
func TestCloseWhileAMemberIsLate(t *testing.T) {
	for _, released := range []bool{true, false} {
		Bubble(t, func(t *testing.T, _ *Server) {
			k := newCluster(t, 3)
			k.servers[2].OnEach(silent)
			r := redOf(k.clients)
			hold := Acquire(t, t.Context(), r)
			behind := Acquire(t, Carry(hold), r)
			if released {
				Release(t, behind, hold)
			}
			began := time.Now()
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			for _, c := range k.clients {
				_ = c.Shut(ended)
			}
			assert.LessOrEqual(t, time.Since(began), 2*CommandTimeout)
			assert.Error(t, Carry(hold).Err())
		})
	}
}

// The minimum hold counts from when the redlock was acquired: of a member that joins late, and of
// one that is acquired again after it has forgotten the lock.
func TestMinimumHoldOfALateMemberBeganWithTheJointHold(t *testing.T) {
	const min = 20 * time.Second
	for _, name := range []string{"late", "acquired again"} {
		runCluster(t, name, 3, func(t *testing.T, k *cluster) {
			if name == "late" {
				k.servers[2].OnEach(late(2 * time.Second))
			}
			hold := Acquire(t, t.Context(), redOf(k.clients), func(terms *engine.Terms) { terms.MinHold = min })
			over := time.Now().Add(min)
			if name == "acquired again" {
				k.servers[2].Forget("x")
			}
			Sleep(found + time.Second)
			require.Equal(t, 3, k.holders(hold.ID()))
			Release(t, hold)
			require.Equal(t, 3, k.holders(hold.ID()), "the minimum hold is not over")
			Sleep(time.Until(over) - 100*ms)
			require.Equal(t, 3, k.holders(hold.ID()))
			Sleep(200 * ms)
		})
	}
}

// The majority is acquired while a rival holds a member, or while its server fails. The member is
// acquired later, once the rival has released it, or the server answers again.
func TestMissingMemberIsAcquiredLater(t *testing.T) {
	refused := func(k *cluster) { k.servers[2].OnEach(func(Command) Fault { return Fault{Err: ErrDown} }) }
	for _, tt := range []struct {
		name  string
		fail  func(k *cluster)
		heal  func(k *cluster)
		terms func(*engine.Terms)
		after time.Duration // of the failure
		want  time.Duration // within which the member is acquired
		count int           // how many are held then
	}{
		{
			name: "a rival holds it for a moment", fail: func(k *cluster) { k.servers[2].Seize("x", "other", 50*ms) },
			want: 300 * ms, count: 3,
		},
		{
			name: "a rival holds it for long", fail: func(k *cluster) { k.servers[2].Seize("x", "other", time.Hour) },
			after: time.Hour, want: 10 * time.Second, count: 3,
		},
		{
			name: "a rival's lock is released", fail: func(k *cluster) { k.servers[2].Seize("x", "other", 0) },
			heal: func(k *cluster) { k.servers[2].Free("x") }, after: 20 * time.Second, want: 10 * time.Second, count: 3,
		},
		{name: "its server refuses", fail: refused, after: 20 * time.Second, want: 10 * time.Second, count: 3},
		{
			name:  "its server is silent",
			fail:  func(k *cluster) { k.servers[2].OnEach(silent) },
			after: time.Minute, want: 20 * time.Minute, count: 3,
		},
		{
			name: "the others do not confirm", fail: func(k *cluster) {
				k.servers[2].Seize("x", "other", 50*ms)
				k.servers[1].OnEach(func(cmd Command) Fault { return Fault{Mute: cmd.Op == "check"} })
			}, want: 10 * time.Second, count: 2,
		},
		{
			name: "a fixed lease", fail: refused, terms: FixedLease(time.Hour),
			after: time.Second, want: 10 * time.Second, count: 2,
		},
		{
			name: "a shared id", fail: refused, terms: OwnedBy("me"),
			after: time.Second, want: 10 * time.Second, count: 2,
		},
	} {
		for _, waits := range []bool{true, false} {
			runCluster(t, fmt.Sprint(tt.name, ", waits: ", waits), 3, func(t *testing.T, k *cluster) {
				tt.fail(k)
				terms, limit := NewTerms(), engine.NoWait
				if tt.terms != nil {
					terms = NewTerms(tt.terms)
				}
				if waits {
					limit = engine.Forever
				}
				hold, err := redOf(k.clients).Acquire(t.Context(), terms, limit)
				require.NoError(t, err)
				Sleep(tt.after)
				assert.Equal(t, 2, k.holders(hold.ID()))
				if tt.heal != nil {
					tt.heal(k)
				}
				k.servers[2].ResetFaults()
				Sleep(tt.want)
				assert.Equal(t, tt.count, k.holders(hold.ID()))
				k.each(3, (*Server).ResetFaults)
				if tt.count == 3 { // one more may fail now
					Sleep(time.Hour)
					k.servers[1].Forget("x")
					k.servers[1].Seize("x", "other", 0)
					require.NoError(t, hold.Check(t.Context()))
					require.NoError(t, Carry(hold).Err())
					k.servers[1].Free("x")
				}
				Release(t, hold)
				Sleep(time.Hour)
			})
		}
	}
}

// The joint hold is released before the member is free, or while it is acquired later. Nothing of
// it is left, and the rival keeps the member.
func TestReleaseBeforeAMissingMemberIsAcquired(t *testing.T) {
	for after := time.Duration(0); after < 400*ms; after += 10 * ms {
		Bubble(t, func(t *testing.T, _ *Server) {
			k := newCluster(t, 3)
			k.servers[2].Seize("x", "other", 150*ms)
			k.servers[2].OnEach(late(30 * ms))
			hold := Acquire(t, t.Context(), redOf(k.clients))
			Sleep(after)
			Release(t, hold)
			Sleep(time.Minute)
			k.requireFree(t)
			k.servers[2].Seize("x", "other", 0)
			Sleep(time.Hour)
			assert.Equal(t, 1, k.servers[2].Holder("x", "other").Count, "no late command about it")
			k.servers[2].Free("x")
		})
	}
}

// A late member is given back, because the others do not confirm in time that they hold the lock.
// It is acquired again when they do.
func TestLateMemberThatIsNotConfirmedIsAcquiredAgain(t *testing.T) {
	onCluster(t, 3, func(t *testing.T, k *cluster) {
		k.servers[2].OnEach(late(time.Second))
		hold := Acquire(t, t.Context(), redOf(k.clients))
		k.servers[0].OnEach(func(cmd Command) (f Fault) {
			if cmd.Op == "check" {
				f.Reply = 10 * time.Second
			}
			return f
		})
		Sleep(5 * time.Second)
		require.Empty(t, k.servers[2].IDs("x"), "it was given back")
		k.servers[0].ResetFaults()
		Sleep(time.Minute)
		require.Equal(t, []string{hold.ID()}, k.servers[2].IDs("x"))
		k.servers[0].Forget("x")
		require.NoError(t, hold.Check(t.Context()))
		Sleep(time.Hour)
		require.True(t, hold.IsLive())
		Release(t, hold)
	})
}
