package joint_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/failure"
	"github.com/redlatch/redlatch/internal/joint"
	. "github.com/redlatch/redlatch/internal/test/enginetest"
)

func TestMultiAcquiresItsMembersInOrderWithOneID(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		r := c.MultiOf("x", "y", "z")
		hold := Acquire(t, t.Context(), r)
		var names []string
		for _, e := range s.Log {
			assert.Equal(t, "acquire", e.Op)
			assert.Equal(t, hold.ID(), e.ID)
			names = append(names, e.Name)
		}
		assert.Equal(t, []string{"x", "y", "z"}, names)
		require.NoError(t, hold.Check(t.Context()))
		require.NoError(t, hold.Extend(t.Context(), time.Hour, nil))
		assert.Greater(t, time.Until(hold.ValidUntil()), 50*time.Minute)
		Sleep(2 * time.Hour)
		assert.NoError(t, Carry(hold).Err())
		Release(t, hold)
		s.RequireFree(t)
		assert.Equal(t, []engine.EventKind{engine.EventAcquired, engine.EventReleased}, c.Kinds(engine.EventRenewed),
			"members emit none")
	})
}

// Another holds the second of three members.
func TestMultiHoldsNothingWhileItWaits(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		s.Seize("y", "other", 0)
		call := StartAcquire(t, t.Context(), c.MultiOf("x", "y", "z"))
		assert.NotEmpty(t, s.IDs("x"), "for a moment")
		Sleep(joint.FirstMemberWait + joint.FirstMemberWait/2)
		assert.Empty(t, s.IDs("x"))
		Sleep(time.Minute)
		assert.Empty(t, s.IDs("x"))
		s.Free("y")
		Release(t, call.AwaitHold())
		assert.Equal(t, time.Minute+joint.FirstMemberWait+joint.FirstMemberWait/2, s.Now())
		s.RequireFree(t)
		assert.Equal(t, []engine.EventKind{engine.EventWait, engine.EventAcquired, engine.EventReleased},
			c.Kinds(engine.EventRenewed))
	})
}

// failAfterAWait frees the last member. The first one fails from then on.
func failAfterAWait(err error) func(*Server, *Client, context.CancelCauseFunc) {
	return func(s *Server, _ *Client, _ context.CancelCauseFunc) {
		s.OnEach(func(cmd Command) Fault {
			if cmd.Op == "acquire" && cmd.Name == "x" {
				return Fault{Err: err}
			}
			return Fault{}
		})
		s.Free("z")
	}
}

// Another holds the last member. The acquisition ends without it, and nothing is left of the
// others.
func TestMultiThatGivesUpLeavesNothing(t *testing.T) {
	for _, tt := range []struct {
		name  string
		limit time.Duration
		act   func(s *Server, c *Client, cancel context.CancelCauseFunc) // after 3 s
		fault Fault                                                      // of the command for the last member
		want  error
		at    time.Duration
	}{
		{name: "a single try", limit: engine.NoWait, want: engine.ErrNotAcquired},
		{
			name: "no member answers any longer", limit: engine.NoWait, fault: silence, want: ErrNoAnswer,
			at: CommandTimeout + rollbackGrace,
		},
		{
			name: "a member is unreachable, and no release is answered", limit: engine.NoWait, fault: outOfReach,
			want: ErrDown, at: CommandTimeout,
		},
		{
			name: "an error of a member, and no release is answered", limit: engine.NoWait, fault: wrongType, want: ErrFatal,
			at: 3*time.Second + ms,
		},
		{name: "the limit", limit: time.Second, want: engine.ErrNotAcquired, at: time.Second},
		{
			name: "its context", limit: engine.Forever, want: errStopped, at: 3 * time.Second,
			act: func(_ *Server, _ *Client, cancel context.CancelCauseFunc) { cancel(errStopped) },
		},
		{
			name: "its client closes", limit: engine.Forever, want: engine.ErrClosed, at: 3 * time.Second,
			act: func(_ *Server, c *Client, _ context.CancelCauseFunc) {
				go func() { _ = c.Shut(context.Background()) }()
			},
		},
		{name: "an error of a member", limit: engine.Forever, fault: Fault{Err: ErrFatal}, want: ErrFatal},
		{
			name: "the first member is unreachable after a wait", limit: 5 * time.Second, act: failAfterAWait(ErrDown),
			want: ErrDown, at: 5 * time.Second,
		},
		{
			name: "an error of the first member after a wait", limit: engine.Forever, act: failAfterAWait(ErrFatal),
			want: ErrFatal, at: 3 * time.Second,
		},
		{name: "a member is unreachable", limit: engine.Forever, fault: Fault{Err: ErrDown}, want: ErrDown},
		{
			name: "a member does not answer", limit: engine.Forever, fault: Fault{Mute: true}, want: ErrNoAnswer,
			at: CommandTimeout,
		},
		{
			name: "a member does not answer before the limit", limit: time.Second, fault: Fault{Mute: true},
			want: engine.ErrUnavailable, at: time.Second + answerGrace/2,
		},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			s.KeepLeases()
			c := s.Client(t, "a")
			s.Seize("z", "other", 0)
			s.OnEach(func(cmd Command) Fault {
				switch {
				case cmd.Op == "acquire" && cmd.Name == "z":
					return tt.fault
				case cmd.Op == "release" && slices.Contains([]Fault{silence, outOfReach, wrongType}, tt.fault):
					return silence
				}
				return Fault{}
			})
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			call := Start(t, func() (*engine.Hold, error) { return c.MultiOf("x", "y", "z").Acquire(ctx, NewTerms(), tt.limit) })
			if tt.act != nil {
				Sleep(3 * time.Second)
				tt.act(s, c, cancel)
			}
			err := call.AwaitErr()
			slack := time.Duration(0)
			if tt.at == CommandTimeout {
				slack = 2 * joint.FirstMemberWait // it gives way at a random time before
			}
			assert.InDelta(t, tt.at, call.At.Sub(s.Start), float64(slack))
			if failure.Of(tt.want).InDoubt() {
				assert.True(t, failure.Of(err).InDoubt(), "%v", err)
			} else {
				require.ErrorIs(t, err, tt.want)
			}
			if tt.at == 0 {
				assert.Len(t, s.Sent("acquire", "z"), 1)
			}
			s.ResetFaults()
			s.Free("z")
			Sleep(time.Minute)
		})
	}
}

// Its context ends while the first member is being released, because the wait for the second one is
// over.
func TestMultiWhoseContextEndsWhileItGivesWay(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		s.Seize("y", "other", 0)
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		s.OnEach(func(cmd Command) Fault {
			if cmd.Op != "release" {
				return Fault{}
			}
			cancel(errStopped)
			return Fault{Delay: ms}
		})
		_, err := s.Client(t, "a").MultiOf("x", "y").Acquire(ctx, NewTerms(), engine.Forever)
		require.ErrorIs(t, err, engine.ErrNotAcquired)
		require.ErrorIs(t, err, errStopped)
		s.ResetFaults()
		s.Free("y")
		Sleep(time.Minute)
	})
}

// The last member's answer counts within half of the grace: the other half is for the joint lock.
// After an answer of the first member that is as late, the second one is not asked.
func TestMemberOfAMultiAnswersInTheGrace(t *testing.T) {
	const limit = joint.FirstMemberWait / 4 // no wait for a member ends before
	late, tooLate := Fault{Reply: limit + answerGrace/4}, Fault{Reply: limit + answerGrace*3/4}
	for _, tt := range []struct {
		name   string
		faults []Fault
		asked  int
		want   error // nil: acquired
	}{
		{name: "the last one", faults: []Fault{{}, late}, asked: 2},
		{name: "the last one, too late", faults: []Fault{{}, tooLate}, asked: 2, want: engine.ErrNotAcquired},
		{name: "the first one", faults: []Fault{late}, asked: 1, want: engine.ErrNotAcquired},
		{name: "the first one, too late", faults: []Fault{tooLate}, asked: 1, want: engine.ErrNotAcquired},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			s.KeepLeases()
			s.Script("acquire", tt.faults...)
			hold, err := s.Client(t, "a").MultiOf("x", "y").Acquire(t.Context(), NewTerms(), limit)
			require.ErrorIs(t, err, tt.want)
			assert.LessOrEqual(t, s.Now(), limit+answerGrace)
			assert.Len(t, s.Sent("acquire"), tt.asked)
			if err == nil {
				Release(t, hold)
			}
			Sleep(time.Second)
		})
	}
}

// The servers fall silent when the first member is acquired. The second member's wait is over
// soon, and the rest of the time goes by while the first one is released.
func TestMultiWhoseReleasesAreNotAnsweredIsNotRefused(t *testing.T) {
	for name, tt := range map[string]struct{ wait, ctx time.Duration }{
		"wait": {time.Second, time.Hour}, "context": {engine.Forever, time.Second},
	} {
		RunBubble(t, name, func(t *testing.T, s *Server) {
			silent := Fault{Reply: 2 * time.Second}
			s.Script("acquire", Fault{}, silent)
			s.Script("release", silent)
			ctx, cancel := context.WithTimeout(t.Context(), tt.ctx)
			defer cancel()
			_, err := s.Client(t, "a").MultiOf("x", "y").Acquire(ctx, NewTerms(), tt.wait)
			require.ErrorIs(t, err, engine.ErrUnavailable)
			require.NotErrorIs(t, err, engine.ErrNotAcquired)
			assert.LessOrEqual(t, s.Now(), time.Second+50*time.Millisecond)
		})
	}
}

// The caller may recover from a panic of its own hook, and has no hold to release.
func TestHookThatPanicsLeavesNoMemberOfAMulti(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		s.KeepLeases()
		s.Script("acquire", Fault{}, Fault{Panic: true})
		require.PanicsWithValue(t, "hook", func() {
			_, _ = s.Client(t, "a").MultiOf("x", "y").Acquire(t.Context(), NewTerms(), engine.Forever)
		})
		Sleep(time.Second)
	})
}

// panicking acquires the members of a multilock as a whole. A hook panics when they are released
// together.
type panicking struct{ members []*engine.Resource }

func (*panicking) Fits(*engine.Terms, *engine.Terms) bool               { return true }
func (*panicking) Subscribe(func(engine.Message)) []engine.Subscription { return nil }

func (w *panicking) TryAcquire(ctx context.Context, o *engine.Owner) (res engine.Result, err error) {
	for _, m := range w.members {
		if res, err = m.Driver.TryAcquire(ctx, &engine.Request{Owner: *o, Terms: NewTerms()}); err != nil || !res.Granted {
			break
		}
	}
	return res, err
}

func (*panicking) Release(context.Context, *engine.Owner) ([]bool, bool, error) { panic("hook") }

func TestPanicInTheReleaseOfAMultiLeavesNoMember(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		s.KeepLeases()
		c := s.Client(t, "a")
		members := []*engine.Resource{c.Lock("x"), c.Lock("y")}
		r := c.Joint("multi", func(l *joint.Lock) { l.Whole = &panicking{members}; joint.NewMulti(l) }, members...)
		hold := Acquire(t, t.Context(), r)
		require.PanicsWithValue(t, "hook", func() { _ = hold.Release(t.Context()) })
		Sleep(time.Second)
		s.RequireFree(t)
		require.NoError(t, c.Shut(t.Context()), "no hold is left")
	})
}

func TestMultisInOppositeOrdersBothAcquireInTheEnd(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		a, b := s.Client(t, "a").MultiOf("x", "y"), s.Client(t, "b").MultiOf("y", "x")
		s.OnEach(func(Command) Fault { return Fault{Delay: 5 * ms} }) // both have the first member
		var calls []*Call
		for _, r := range []*engine.Resource{a, b} {
			calls = append(calls, Start(t, func() (*engine.Hold, error) {
				hold := Acquire(t, t.Context(), r)
				time.Sleep(10 * ms)
				return hold, hold.Release(t.Context())
			}))
		}
		for _, call := range calls {
			call.AwaitHold()
		}
		assert.Less(t, s.Now(), 10*time.Second)
	})
}

func TestMultiIsLostWithAnyMember(t *testing.T) {
	for _, tt := range []struct {
		name string
		lose func(t *testing.T, s *Server, h *engine.Hold)
	}{
		{"at a renewal", func(*testing.T, *Server, *engine.Hold) { Sleep(15 * time.Second) }},
		{"at a check", func(t *testing.T, _ *Server, h *engine.Hold) {
			require.ErrorIs(t, h.Check(t.Context()), engine.ErrLost)
		}},
		{"at an extension", func(t *testing.T, _ *Server, h *engine.Hold) {
			require.ErrorIs(t, h.Extend(t.Context(), time.Hour, nil), engine.ErrLost)
		}},
		{"at the release", func(*testing.T, *Server, *engine.Hold) {}},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			s.KeepLeases()
			c := s.Client(t, "a")
			hold := Acquire(t, t.Context(), c.MultiOf("x", "y", "z"))
			ctx := Carry(hold)
			s.Forget("y")
			tt.lose(t, s, hold)
			require.ErrorIs(t, hold.Release(t.Context()), engine.ErrLost)
			require.ErrorIs(t, context.Cause(ctx), engine.ErrLost)
			Sleep(time.Second)
			s.RequireFree(t)
			assert.Equal(t, []engine.EventKind{engine.EventAcquired, engine.EventLost}, c.Kinds(engine.EventRenewed))
		})
	}
}

// The members' holds can be found and released by the user. The joint hold needs them all.
func TestMultiIsLostWhenAMemberIsReleased(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		r := c.MultiOf("x", "y")
		hold := Acquire(t, t.Context(), r)
		member, handle := engine.HoldFrom(Carry(hold), c.Lock("y"))
		require.NotNil(t, member)
		assert.Nil(t, handle)
		nested := Acquire(t, Carry(hold), c.Lock("y"))
		assert.Equal(t, hold.ID(), nested.ID())
		Release(t, nested)
		s.Script("release", Fault{Delay: time.Second})
		released := StartRelease(t, member)
		require.ErrorIs(t, context.Cause(Carry(hold)), engine.ErrLost, "before another client can have the member")
		released.AwaitHold()
		require.ErrorIs(t, hold.Release(t.Context()), engine.ErrLost)
	})
}

// Joint locks under one hold have its id in all of their members. Two of them exclude each other in
// a member that the hold does not have.
func TestJointLocksUnderOneHoldExcludeEachOther(t *testing.T) {
	for name, servers := range map[string][3]int{"one server": {0, 0, 0}, "a server each": {0, 1, 2}} {
		runCluster(t, name, 3, func(t *testing.T, k *cluster) {
			x, y := k.clients[servers[0]].Lock("x"), k.clients[servers[1]].Lock("y")
			z := k.clients[servers[2]].Lock("z")
			multi := func(members ...*engine.Resource) *engine.Resource {
				return k.clients[0].Joint("multi", joint.NewMulti, members...)
			}
			outer := Acquire(t, t.Context(), multi(x, z))
			first := Acquire(t, Carry(outer), multi(x, y))
			require.ErrorIs(t, ErrOf(multi(y, z).Acquire(Carry(outer), NewTerms(), engine.NoWait)), engine.ErrNotAcquired)
			Release(t, first)
			Release(t, Acquire(t, Carry(outer), multi(y, z)))
			Release(t, outer)
		})
	}
}
