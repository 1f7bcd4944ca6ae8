package joint_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/engine"
	. "github.com/redlatch/redlatch/internal/enginetest"
	"github.com/redlatch/redlatch/internal/joint"
)

const (
	ms = time.Millisecond
	// margin is the safety margin of a lease of DefaultTTL.
	margin = DefaultTTL/100 + 2*ms
	// answerGrace and rollbackGrace are how much longer than its wait an acquisition waits for an answer, and
	// for its rollback. A member has half of it.
	answerGrace   = 20 * ms
	rollbackGrace = 15 * ms
)

var errStopped = errors.New("the caller stopped")

// cluster is independent servers, each with a client of its own.
type cluster struct {
	servers []*Server
	clients []*Client
}

func newCluster(t testing.TB, n int) *cluster {
	k := &cluster{}
	for range n {
		k.servers = append(k.servers, NewServer())
	}
	k.clients = k.join(t, "a")
	return k
}

// join returns the clients of one more process, one for each server.
func (k *cluster) join(t testing.TB, id string) (clients []*Client) {
	for i, s := range k.servers {
		clients = append(clients, s.Client(t, fmt.Sprintf("%s%d", id, i)))
	}
	return clients
}

// redOf returns a red lock named "x" on all servers of the clients.
func redOf(clients []*Client) *Resource {
	var members []*Resource
	for _, c := range clients {
		members = append(members, c.Lock("x"))
	}
	return clients[0].Joint("red", joint.NewRed, members...)
}

// holders returns on how many servers id holds "x".
func (k *cluster) holders(id string) (n int) {
	for _, s := range k.servers {
		if s.Holder("x", id).Count > 0 {
			n++
		}
	}
	return n
}

func (k *cluster) requireFree(t testing.TB) {
	t.Helper()
	for _, s := range k.servers {
		s.RequireFree(t)
	}
}

// each runs f for the first n servers.
func (k *cluster) each(n int, f func(s *Server)) {
	for _, s := range k.servers[:n] {
		f(s)
	}
}

func silent(Command) Fault { return Fault{Mute: true} }

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
		assert.Equal(t, []EventKind{EventAcquired, EventReleased}, c.Kinds(EventRenewed), "members emit none")
	})
}

// Another holds the second of three members.
func TestMultiHoldsNothingWhileItWaits(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		s.Seize("y", "other", 0)
		call := StartAcquire(t, t.Context(), c.MultiOf("x", "y", "z"))
		assert.NotEmpty(t, s.IDs("x"), "for a moment")
		Sleep(joint.FirstPatience + joint.FirstPatience/2)
		assert.Empty(t, s.IDs("x"))
		Sleep(time.Minute)
		assert.Empty(t, s.IDs("x"))
		s.Free("y")
		Release(t, call.Wait())
		assert.Equal(t, time.Minute+joint.FirstPatience+joint.FirstPatience/2, s.Now())
		s.RequireFree(t)
		assert.Equal(t, []EventKind{EventWait, EventAcquired, EventReleased}, c.Kinds(EventRenewed))
	})
}

// These are faults of the command for the last member. No release is answered after them.
var (
	silence    = Fault{Mute: true, Delay: ms}
	outOfReach = Fault{Err: ErrDown, Delay: 2 * time.Second}
	wrongType  = Fault{Err: ErrFatal, Delay: ms}
)

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

// Another holds the last member. The acquisition ends without it, and nothing is left of the others.
func TestMultiThatGivesUpLeavesNothing(t *testing.T) {
	for _, tt := range []struct {
		name  string
		limit time.Duration
		act   func(s *Server, c *Client, cancel context.CancelCauseFunc) // after 3 s
		fault Fault                                                      // of the command for the last member
		want  error
		at    time.Duration
	}{
		{"a single try", NoWait, nil, Fault{}, ErrNotAcquired, 0},
		{"no member answers any longer", NoWait, nil, silence, Unanswered(nil), CommandTimeout + rollbackGrace},
		{"a member is unreachable, and no release is answered", NoWait, nil, outOfReach, ErrDown, CommandTimeout},
		{"an error of a member, and no release is answered", NoWait, nil, wrongType, ErrFatal, 3*time.Second + ms},
		{"the limit", time.Second, nil, Fault{}, ErrNotAcquired, time.Second},
		{
			"its context", Forever, func(_ *Server, _ *Client, cancel context.CancelCauseFunc) { cancel(errStopped) },
			Fault{}, errStopped, 3 * time.Second,
		},
		{
			"its client closes", Forever, func(_ *Server, c *Client, _ context.CancelCauseFunc) {
				go func() { _ = c.Shut(context.Background()) }()
			}, Fault{}, ErrClosed, 3 * time.Second,
		},
		{"an error of a member", Forever, nil, Fault{Err: ErrFatal}, ErrFatal, 0},
		{
			"the first member is unreachable after a wait", 5 * time.Second, failAfterAWait(ErrDown),
			Fault{}, ErrDown, 5 * time.Second,
		},
		{"an error of the first member after a wait", Forever, failAfterAWait(ErrFatal), Fault{}, ErrFatal, 3 * time.Second},
		{"a member is unreachable", Forever, nil, Fault{Err: ErrDown}, ErrDown, 0},
		{"a member does not answer", Forever, nil, Fault{Mute: true}, Unanswered(nil), CommandTimeout},
		{"a member does not answer before the limit", time.Second, nil, Fault{Mute: true}, ErrUnavailable,
			time.Second + answerGrace/2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			Bubble(t, func(t *testing.T, s *Server) {
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
				call := Start(t, func() (*Hold, error) { return c.MultiOf("x", "y", "z").Acquire(ctx, NewTerms(), tt.limit) })
				if tt.act != nil {
					Sleep(3 * time.Second)
					tt.act(s, c, cancel)
				}
				err := call.Fail()
				slack := time.Duration(0)
				if tt.at == CommandTimeout {
					slack = 2 * joint.FirstPatience // it gives way at a random time before
				}
				assert.InDelta(t, tt.at, call.At.Sub(s.Start), float64(slack))
				if Classify(tt.want).InDoubt {
					assert.True(t, Classify(err).InDoubt, "%v", err)
				} else {
					require.ErrorIs(t, err, tt.want)
				}
				if tt.at == 0 {
					assert.Len(t, s.Sent("acquire", "z"), 1)
				}
				s.ResetFaults()
				s.Free("z")
				Sleep(time.Minute)
				s.RequireFree(t)
			})
		})
	}
}

// Its context ends while the first member is being released, because the patience for the second one is over.
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
		_, err := s.Client(t, "a").MultiOf("x", "y").Acquire(ctx, NewTerms(), Forever)
		require.ErrorIs(t, err, ErrNotAcquired)
		require.ErrorIs(t, err, errStopped)
		s.ResetFaults()
		s.Free("y")
		Sleep(time.Minute)
		s.RequireFree(t)
	})
}

// The last member's answer counts within half of the grace: the other half is for the joint lock. After an answer of
// the first member that is as late, the second one is not asked.
func TestMemberOfAMultiAnswersInTheGrace(t *testing.T) {
	const limit = joint.FirstPatience / 4 // no patience ends before
	late, tooLate := Fault{Reply: limit + answerGrace/4}, Fault{Reply: limit + answerGrace*3/4}
	for _, tt := range []struct {
		name   string
		faults []Fault
		asked  int
		want   error // nil: acquired
	}{
		{"the last one", []Fault{{}, late}, 2, nil},
		{"the last one, too late", []Fault{{}, tooLate}, 2, ErrNotAcquired},
		{"the first one", []Fault{late}, 1, ErrNotAcquired},
		{"the first one, too late", []Fault{tooLate}, 1, ErrNotAcquired},
	} {
		t.Run(tt.name, func(t *testing.T) {
			Bubble(t, func(t *testing.T, s *Server) {
				s.KeepLeases()
				s.Script("acquire", tt.faults...)
				hold, err := s.Client(t, "a").MultiOf("x", "y").Acquire(t.Context(), NewTerms(), limit)
				require.ErrorIs(t, err, tt.want)
				assert.LessOrEqual(t, s.Now(), limit+answerGrace)
				assert.Len(t, s.Sent("acquire", ""), tt.asked)
				if err == nil {
					Release(t, hold)
				}
				Sleep(time.Second)
				s.RequireFree(t)
			})
		})
	}
}

// The servers fall silent when the first member is acquired. The second member's patience is over soon, and the rest of
// the time goes by while the first one is released.
func TestMultiWhoseReleasesAreNotAnsweredIsNotRefused(t *testing.T) {
	for name, tt := range map[string]struct{ wait, ctx time.Duration }{
		"wait": {time.Second, time.Hour}, "context": {Forever, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			Bubble(t, func(t *testing.T, s *Server) {
				silent := Fault{Reply: 2 * time.Second}
				s.Script("acquire", Fault{}, silent)
				s.Script("release", silent)
				ctx, cancel := context.WithTimeout(t.Context(), tt.ctx)
				defer cancel()
				_, err := s.Client(t, "a").MultiOf("x", "y").Acquire(ctx, NewTerms(), tt.wait)
				require.ErrorIs(t, err, ErrUnavailable)
				require.NotErrorIs(t, err, ErrNotAcquired)
				assert.LessOrEqual(t, s.Now(), time.Second+50*time.Millisecond)
			})
		})
	}
}

// The caller may recover from a panic of its own hook, and has no hold to release.
func TestHookThatPanicsLeavesNoMemberOfAMulti(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		s.KeepLeases()
		s.Script("acquire", Fault{}, Fault{Panic: true})
		require.PanicsWithValue(t, "hook", func() {
			_, _ = s.Client(t, "a").MultiOf("x", "y").Acquire(t.Context(), NewTerms(), Forever)
		})
		Sleep(time.Second)
		s.RequireFree(t)
	})
}

// panicking acquires the members of a multi lock as a whole. A hook panics when they are released together.
type panicking struct{ members []*Resource }

func (*panicking) Fits(*Terms, *Terms) bool               { return true }
func (*panicking) Subscribe(func(Message)) []Subscription { return nil }

func (w *panicking) TryAcquire(ctx context.Context, o *Owner) (res Result, err error) {
	for _, m := range w.members {
		if res, err = m.Driver.TryAcquire(ctx, &Request{Owner: *o, Terms: NewTerms()}); err != nil || !res.Granted {
			break
		}
	}
	return res, err
}

func (*panicking) Release(context.Context, *Owner) ([]bool, bool, error) { panic("hook") }

func TestHookThatPanicsInTheReleaseOfAMultiLeavesNoMember(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		s.KeepLeases()
		c := s.Client(t, "a")
		members := []*Resource{c.Lock("x"), c.Lock("y")}
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
		for _, r := range []*Resource{a, b} {
			calls = append(calls, Start(t, func() (*Hold, error) {
				hold := Acquire(t, t.Context(), r)
				time.Sleep(10 * ms)
				return hold, hold.Release(t.Context())
			}))
		}
		for _, call := range calls {
			call.Wait()
		}
		assert.Less(t, s.Now(), 10*time.Second)
		s.RequireFree(t)
	})
}

func TestMultiIsLostWithAnyMember(t *testing.T) {
	for _, tt := range []struct {
		name string
		lose func(t *testing.T, s *Server, h *Hold)
	}{
		{"at a renewal", func(*testing.T, *Server, *Hold) { Sleep(15 * time.Second) }},
		{"at a check", func(t *testing.T, _ *Server, h *Hold) { require.ErrorIs(t, h.Check(t.Context()), ErrLost) }},
		{"at an extension", func(t *testing.T, _ *Server, h *Hold) {
			require.ErrorIs(t, h.Extend(t.Context(), time.Hour, nil), ErrLost)
		}},
		{"at the release", func(*testing.T, *Server, *Hold) {}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			Bubble(t, func(t *testing.T, s *Server) {
				s.KeepLeases()
				c := s.Client(t, "a")
				hold := Acquire(t, t.Context(), c.MultiOf("x", "y", "z"))
				ctx := Carry(hold)
				s.Forget("y")
				tt.lose(t, s, hold)
				require.ErrorIs(t, hold.Release(t.Context()), ErrLost)
				require.ErrorIs(t, context.Cause(ctx), ErrLost)
				Sleep(time.Second)
				s.RequireFree(t)
				assert.Equal(t, []EventKind{EventAcquired, EventLost}, c.Kinds(EventRenewed))
			})
		})
	}
}

// A member does not answer a check, or an extension, and its lease ends meanwhile. The call returns then.
func TestJointHoldIsLostInTimeAlthoughACallIsNotAnswered(t *testing.T) {
	for _, tt := range []struct {
		name string
		ask  func(h *Hold) error
	}{
		{"check", func(h *Hold) error { return h.Check(context.Background()) }},
		{"extend", func(h *Hold) error { return h.Extend(context.Background(), time.Second, nil) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			Bubble(t, func(t *testing.T, s *Server) {
				c := s.Client(t, "a")
				hold := Acquire(t, t.Context(), c.MultiOf("x", "y"), FixedLease(5*time.Second))
				until := hold.ValidUntil()
				Sleep(3 * time.Second)
				s.Script(tt.name, Fault{Lost: true}, Fault{Lost: true})
				asking := Start(t, func() (*Hold, error) { return nil, tt.ask(hold) })
				<-Carry(hold).Done()
				assert.Equal(t, until, time.Now())
				assert.Equal(t, until, hold.ValidUntil())
				require.ErrorIs(t, asking.Fail(), ErrLost)
				assert.Equal(t, until, time.Now())
				require.ErrorIs(t, hold.Release(t.Context()), ErrLost)
				assert.Equal(t, []EventKind{EventAcquired, EventLost}, c.Kinds())
				Sleep(time.Second)
				s.RequireFree(t)
			})
		})
	}
}

// A check, or an extension, is executed after a release that has not been answered yet. It finds nothing, but that is
// no loss.
func TestReleaseBesideACallIsNoLoss(t *testing.T) {
	for _, call := range []struct {
		name string
		ask  func(h *Hold) error
	}{
		{"check", func(h *Hold) error { return h.Check(context.Background()) }},
		{"extend", func(h *Hold) error { return h.Extend(context.Background(), time.Hour, nil) }},
	} {
		for name, open := range map[string]func(c *Client) *Resource{
			"of a lock":    func(c *Client) *Resource { return c.Lock("x") },
			"of a multi":   func(c *Client) *Resource { return c.MultiOf("x", "y") },
			"of one of it": func(c *Client) *Resource { return c.MultiOf("x") },
		} {
			t.Run(call.name+" "+name, func(t *testing.T) {
				Bubble(t, func(t *testing.T, s *Server) {
					c := s.Client(t, "a")
					hold := Acquire(t, t.Context(), open(c))
					s.OnEach(func(cmd Command) Fault {
						if cmd.Op == call.name {
							return Fault{Delay: 200 * time.Millisecond}
						}
						return Fault{Reply: 300 * time.Millisecond}
					})
					asking := Start(t, func() (*Hold, error) { return nil, call.ask(hold) })
					Sleep(100 * time.Millisecond)
					Release(t, hold)
					require.ErrorIs(t, asking.Fail(), ErrReleased)
					require.ErrorIs(t, context.Cause(Carry(hold)), ErrReleased)
					assert.Equal(t, []EventKind{EventAcquired, EventReleased}, c.Kinds())
					s.RequireFree(t)
				})
			})
		}
	}
}

// The members' holds can be found and released by the user. The joint hold needs them all.
func TestMultiIsLostWhenAMemberIsReleased(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		r := c.MultiOf("x", "y")
		hold := Acquire(t, t.Context(), r)
		member, handle := HoldFrom(Carry(hold), c.Lock("y"))
		require.NotNil(t, member)
		assert.Nil(t, handle)
		nested := Acquire(t, Carry(hold), c.Lock("y"))
		assert.Equal(t, hold.ID(), nested.ID())
		Release(t, nested)
		s.Script("release", Fault{Delay: time.Second})
		released := StartRelease(t, member)
		require.ErrorIs(t, context.Cause(Carry(hold)), ErrLost, "before another client can have the member")
		released.Wait()
		require.ErrorIs(t, hold.Release(t.Context()), ErrLost)
		s.RequireFree(t)
	})
}

func TestJointHoldsNest(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		r := c.MultiOf("x", "y")
		outer := Acquire(t, t.Context(), r)
		inner := Acquire(t, Carry(outer), r)
		assert.Equal(t, 2, inner.Depth())
		assert.Equal(t, outer.ID(), inner.ID())
		assert.Equal(t, 2, s.Holder("y", outer.ID()).Count)
		other := StartAcquire(t, Carry(outer), r)
		assert.False(t, other.Returned(), "one at a time")
		Release(t, inner)
		Release(t, other.Wait())
		Release(t, outer)
		s.RequireFree(t)

		// Under a hold of one member, all members have its id.
		member := Acquire(t, t.Context(), c.Lock("y"))
		hold := Acquire(t, Carry(member), r)
		assert.Equal(t, member.ID(), hold.ID())
		assert.Equal(t, []string{member.ID()}, s.IDs("x"))
		Release(t, hold)
		assert.Equal(t, []string{member.ID()}, s.IDs("y"))
		assert.Empty(t, s.IDs("x"))
		Release(t, member)
		s.RequireFree(t)

		// Under holds of two members with different ids there is no such id.
		x := Acquire(t, t.Context(), c.Lock("x"))
		y := Acquire(t, Carry(x), c.Lock("y"))
		_, err := r.Acquire(Carry(y), NewTerms(), Forever)
		require.ErrorIs(t, err, ErrDeadlock)
		Release(t, y)
		Release(t, x)
		s.RequireFree(t)
	})
}

// Each case acquires a red lock of five servers.
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
		{"all answer", 0, nil, Forever, nil, 0},
		{"two are held", 2, seize, Forever, nil, 0},
		{"two are unreachable", 2, down, Forever, nil, 0},
		{"two do not answer", 2, mute, Forever, nil, 2 * time.Second}, // the budget of a member
		{"two do not answer before the limit", 2, mute, time.Second, nil, 750 * time.Millisecond},
		{"three are held: a single try", 3, seize, NoWait, ErrNotAcquired, 0},
		{"three are held: the limit", 3, seize, time.Second, ErrNotAcquired, time.Second},
		{"three are unreachable", 3, down, Forever, ErrDown, 0},
		{"three do not answer", 3, mute, Forever, Unanswered(nil), 2 * time.Second},
		{"three do not answer, and then the others neither", 5, fade, Forever, Unanswered(nil), 2 * time.Second},
		{"three do not answer before the limit", 3, mute, time.Second, ErrUnavailable, time.Second + rollbackGrace/2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			Bubble(t, func(t *testing.T, _ *Server) {
				k := newCluster(t, 5)
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
				case Classify(tt.want).InDoubt:
					assert.True(t, Classify(err).InDoubt, "%v", err)
				default:
					require.ErrorIs(t, err, tt.want)
				}
				// A failed attempt waits for the releases of what it acquired, within the budget and the command timeout.
				assert.GreaterOrEqual(t, time.Since(began), tt.at)
				assert.LessOrEqual(t, time.Since(began), min(2*tt.at, CommandTimeout))
				k.each(tt.n, func(s *Server) { s.ResetFaults(); s.Forget("x") })
				if hold != nil {
					Release(t, hold)
				}
				Sleep(time.Minute)
				k.requireFree(t)
			})
		})
	}
}

// Two of five are held, and one is unreachable. It waits, because the holders are to blame.
func TestRedWaitsForHoldersAlthoughAMemberIsUnreachable(t *testing.T) {
	Bubble(t, func(t *testing.T, _ *Server) {
		k := newCluster(t, 5)
		k.each(2, func(s *Server) { s.Seize("x", "other", 0) })
		k.servers[2].OnEach(func(Command) Fault { return Fault{Err: ErrDown} })
		_, err := redOf(k.clients).Acquire(t.Context(), NewTerms(), time.Second)
		require.ErrorIs(t, err, ErrNotAcquired)
		require.ErrorIs(t, err, ErrDown)
		k.each(2, func(s *Server) { s.Forget("x") })
		Sleep(time.Second)
		k.requireFree(t)
	})
}

// The client of the joint lock closes. From then on, members on other clients are not renewed. If the hold was lost
// before, they are not after its release, which sends nothing.
func TestCloseAbandonsMembersOnOtherClients(t *testing.T) {
	for _, isLost := range []bool{false, true} {
		t.Run(fmt.Sprint("lost=", isLost), func(t *testing.T) {
			Bubble(t, func(t *testing.T, _ *Server) {
				k := newCluster(t, 3)
				hold := Acquire(t, t.Context(), redOf(k.clients))
				want, left := ErrClosed, 3
				if isLost {
					want, left = ErrLost, 1
					k.each(2, func(s *Server) { s.Forget("x") })
					require.ErrorIs(t, hold.Check(t.Context()), ErrLost)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := k.clients[0].Shut(ctx); !isLost {
					require.ErrorIs(t, err, context.DeadlineExceeded)
				}
				require.ErrorIs(t, context.Cause(Carry(hold)), want)
				assert.Equal(t, left, k.holders(hold.ID()))
				require.ErrorIs(t, hold.Release(t.Context()), ErrClosed)
				Sleep(DefaultTTL)
				k.requireFree(t)
			})
		})
	}
}

func TestRedWaitsForAMajorityOfMessages(t *testing.T) {
	Bubble(t, func(t *testing.T, _ *Server) {
		k := newCluster(t, 3)
		k.each(2, func(s *Server) { s.Seize("x", "other", 0) })
		call := StartAcquire(t, t.Context(), redOf(k.clients))
		Sleep(500 * ms)
		attempts := len(k.servers[2].Sent("acquire", ""))
		k.servers[0].Forget("x")
		k.servers[2].Message("x")
		Sleep(0)
		assert.Len(t, k.servers[2].Sent("acquire", ""), attempts, "one message is no majority")
		k.servers[0].Message("x")
		call.Wait()
		assert.Less(t, k.servers[0].Now(), 800*ms)
		Release(t, call.Hold)
		k.servers[1].Forget("x")
		k.requireFree(t)
	})
}

func TestRedRivalsDoNotBlockEachOther(t *testing.T) {
	Bubble(t, func(t *testing.T, _ *Server) {
		k := newCluster(t, 3)
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
			calls = append(calls, Start(t, func() (*Hold, error) {
				hold := Acquire(t, t.Context(), redOf(clients))
				return hold, hold.Release(t.Context())
			}))
		}
		for _, call := range calls {
			call.Wait()
		}
		assert.Less(t, k.servers[0].Now(), 5*time.Second)
		Sleep(time.Second)
		k.requireFree(t)
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
		t.Run(tt.name, func(t *testing.T) {
			Bubble(t, func(t *testing.T, _ *Server) {
				k := newCluster(t, 5)
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
				assert.Equal(t, tt.lost, errors.Is(context.Cause(ctx), ErrLost))
				err := hold.Release(t.Context())
				assert.Equal(t, tt.lost, errors.Is(err, ErrLost), "%v", err)
				k.each(tt.n, (*Server).ResetFaults)
				Sleep(5 * time.Minute)
				k.requireFree(t)
			})
		})
	}
}

func TestRedReleaseWithoutAMajorityOfAnswersGoesOnInTheBackground(t *testing.T) {
	Bubble(t, func(t *testing.T, _ *Server) {
		k := newCluster(t, 3)
		k.each(len(k.servers), (*Server).KeepLeases)
		hold := Acquire(t, t.Context(), redOf(k.clients))
		k.each(2, func(s *Server) { s.Script("release", Fault{Lost: true}, Fault{Err: ErrDown}) })
		began := time.Now()
		err := hold.Release(t.Context())
		assert.True(t, Classify(err).InDoubt, "%v", err)
		assert.Equal(t, 2*time.Second, time.Since(began), "the budget of a member")
		assert.Equal(t, 2, k.holders(hold.ID()))
		Sleep(5 * time.Second)
		k.requireFree(t)
	})
}

// A server restarts without its data. The member is acquired again, under the same id.
func TestRedRetakesAMemberThatForgotTheLock(t *testing.T) {
	for _, tt := range []struct {
		name  string
		act   func(k *cluster) // when the lock was forgotten
		sleep time.Duration
		want  int // servers that have the id then
	}{
		{"at once", func(*cluster) {}, 11 * time.Second, 3},
		{"a rival's attempt holds it for a moment", func(k *cluster) {
			k.servers[0].Seize("x", "other", 10*time.Second+50*ms) // the loss is found after 10 s
		}, 11 * time.Second, 3},
		{"held by another for a while", func(k *cluster) { k.servers[0].Seize("x", "other", 20*time.Second) },
			35 * time.Second, 3},
		{"held by another for long", func(k *cluster) { k.servers[0].Seize("x", "other", time.Hour) },
			time.Hour + 10*time.Second, 3}, // five budgets of a member
		{"held by another", func(k *cluster) { k.servers[0].Seize("x", "other", 0) }, 35 * time.Second, 2},
		{
			"an attempt is not answered", func(k *cluster) { k.servers[0].Script("acquire", Fault{Mute: true}) },
			35 * time.Second, 3,
		},
		{
			"not while too few others confirm", func(k *cluster) {
				k.servers[1].OnEach(func(cmd Command) Fault { return Fault{Mute: cmd.Op == "check"} })
			}, 35 * time.Second, 2,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			Bubble(t, func(t *testing.T, _ *Server) {
				k := newCluster(t, 3)
				hold := Acquire(t, t.Context(), redOf(k.clients))
				k.servers[0].Forget("x")
				tt.act(k)
				Sleep(tt.sleep)
				assert.NoError(t, Carry(hold).Err())
				assert.Equal(t, tt.want, k.holders(hold.ID()))
				if tt.name == "not while too few others confirm" {
					assert.Len(t, k.servers[0].Sent("acquire", ""), 1)
				}
				for _, s := range k.servers {
					s.ResetFaults()
				}
				if tt.want == 3 { // one more may fail now
					k.servers[1].Forget("x")
					Sleep(time.Hour)
					assert.NoError(t, Carry(hold).Err())
					assert.Equal(t, 3, k.holders(hold.ID()))
				}
				Release(t, hold)
				k.servers[0].Free("x")
				Sleep(time.Minute)
				k.requireFree(t)
			})
		})
	}
}

// A copy of the command that acquired the member comes after the member has forgotten the lock.
func TestRedRetakesNoMemberWhileACopyOfItsAcquisitionMayCome(t *testing.T) {
	Bubble(t, func(t *testing.T, _ *Server) {
		k := newCluster(t, 3)
		k.servers[0].Script("acquire", Fault{Copy: 2 * time.Minute}, Fault{Copy: 4 * time.Minute})
		hold := Acquire(t, t.Context(), redOf(k.clients))
		k.servers[0].Forget("x")
		Sleep(time.Minute)
		assert.NoError(t, Carry(hold).Err())
		Release(t, hold)
		Sleep(time.Minute)
		k.requireFree(t)

		hold = Acquire(t, t.Context(), redOf(k.clients))
		k.servers[0].Forget("x")
		Sleep(k.clients[0].LateCopies - time.Minute)
		assert.Equal(t, 3, k.holders(hold.ID()), "the copy has come")
		k.servers[0].Forget("x")
		Sleep(2 * time.Minute)
		assert.Equal(t, 3, k.holders(hold.ID()), "no further one can come")
		Release(t, hold)
		k.requireFree(t)
	})
}

// The joint hold ends while a member is being retaken: nothing is left.
func TestReleaseDuringARetakeLeavesNothing(t *testing.T) {
	for _, f := range []Fault{{Reply: 5 * time.Second}, {Mute: true}, {Delay: 5 * time.Second}, {Lost: true,
		Copy: 20 * time.Second}} {
		t.Run(fmt.Sprintf("%+v", f), func(t *testing.T) {
			Bubble(t, func(t *testing.T, _ *Server) {
				k := newCluster(t, 3)
				k.each(len(k.servers), (*Server).KeepLeases)
				hold := Acquire(t, t.Context(), redOf(k.clients))
				k.servers[0].Forget("x")
				k.servers[0].Script("acquire", f)
				Sleep(10*time.Second + 500*ms)
				assert.Len(t, k.servers[0].Sent("acquire", ""), 2, "the retake is under way")
				Release(t, hold)
				Sleep(2 * time.Minute)
				k.requireFree(t)
			})
		})
	}
}

// jointOf is a joint lock of n members, without a driver.
func jointOf(c *Client, n, need int) *joint.Lock {
	members := slices.Repeat([]*Resource{c.Lock("x")}, n)
	return &joint.Lock{Resource: c.Resource("joint", "x", nil), Members: members, Need: need}
}

func TestAskAllNeedsEnoughAnswers(t *testing.T) {
	fail := errors.New("failed")
	for _, tt := range []struct {
		name    string
		answers []error
		need    int
		want    error
	}{
		{"all", []error{nil, nil, nil}, 3, nil},
		{"enough", []error{nil, ErrNotHeld, nil}, 2, nil},
		{"too few: not held", []error{nil, ErrNotHeld, ErrNotHeld}, 2, ErrNotHeld},
		{"too few: not held, lost", []error{nil, ErrNotHeld, ErrLost}, 2, ErrLost},
		{"too few: not acquired", []error{ErrNotAcquired, ErrNotAcquired, fail}, 2, ErrNotHeld},
		{"errors", []error{nil, fail, ErrNotHeld}, 2, fail},
	} {
		t.Run(tt.name, func(t *testing.T) {
			Bubble(t, func(t *testing.T, s *Server) {
				c := s.Client(t, "a")
				l := jointOf(c, len(tt.answers), tt.need)
				err := l.AskAll(t.Context(), NewTerms(), func(i int) error { return tt.answers[i] })
				require.ErrorIs(t, err, tt.want)
			})
		})
	}
	t.Run("no answer within the limit", func(t *testing.T) {
		Bubble(t, func(t *testing.T, s *Server) {
			c := s.Client(t, "a")
			l := jointOf(c, 3, 3)
			l.Budgeted = true
			err := l.AskAll(t.Context(), NewTerms(TTL(10*time.Second)),
				func(i int) error { time.Sleep(time.Duration(i) * time.Minute); return nil })
			require.ErrorIs(t, err, joint.ErrBudget)
			assert.Equal(t, time.Second, s.Now())
		})
	})
	t.Run("its context ends", func(t *testing.T) {
		Bubble(t, func(t *testing.T, s *Server) {
			c := s.Client(t, "a")
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, ErrLost)
			defer cancel()
			err := jointOf(c, 3, 2).AskAll(ctx, NewTerms(),
				func(i int) error { time.Sleep(time.Duration(i) * time.Hour); return nil })
			require.ErrorIs(t, err, ErrLost)
			require.NotErrorIs(t, err, ErrNotHeld, "the loss of another hold is no answer")
		})
	})
}

// An answer for one member takes longer than the lease of another one lasts.
func TestAdoptionThatLosesAMemberMeanwhileFails(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		r := c.MultiOf("x", "y")
		terms := NewTerms(FixedLease(time.Second))
		q := r.NewRequest(terms)
		require.NoError(t, c.Begin(t.Context()))
		defer c.Leave()
		o := (&joint.Lock{Resource: r, Members: []*Resource{c.Lock("x"), c.Lock("y")}, Need: 2}).NewOwnership(q)
		for _, name := range []string{"x", "y"} {
			m := c.Lock(name)
			mine := m.NewRequest(terms)
			mine.Name(q.ID, false)
			require.NoError(t, o.ReplaceMember(t.Context(), m, mine, time.Now()))
			Sleep(600 * ms)
		}
		hold, err := o.Adopted(t.Context(), q)
		require.ErrorIs(t, err, ErrLost)
		assert.Nil(t, hold)
	})
}

// spy notes what the attempts of a joint lock have been granted.
type spy struct {
	Driver
	granted *joint.Ownership
}

func (d *spy) TryAcquire(ctx context.Context, q *Request) (Result, error) {
	res, err := d.Driver.TryAcquire(ctx, q)
	d.granted, _ = res.Holding.(*joint.Ownership)
	return res, err
}

// The answer of a member comes when the attempt has succeeded without it. While the joint hold lasts, the member
// belongs to it, and is retaken if it was lost before it came. After that it is refused, and how its hold ends says
// nothing about the joint hold.
func TestMemberThatComesLateCountsWhileTheJointHoldLasts(t *testing.T) {
	for _, name := range []string{"in time", "the joint hold has ended", "it was lost already"} {
		t.Run(name, func(t *testing.T) {
			Bubble(t, func(t *testing.T, _ *Server) {
				k := newCluster(t, 3)
				k.each(2, (*Server).KeepLeases)
				k.servers[2].OnEach(func(Command) Fault { return Fault{Err: ErrDown} })
				r := redOf(k.clients)
				attempts := &spy{Driver: r.Driver}
				r.Driver = attempts
				hold := Acquire(t, t.Context(), r)
				k.servers[2].ResetFaults()
				m := k.clients[2].Lock("x")
				terms := NewTerms()
				terms.MinHold = time.Minute
				q := m.NewRequest(terms)
				q.Name(hold.ID(), false)
				q.Group = attempts.granted
				late, err := m.AcquireOutermost(t.Context(), q, time.Now())
				require.NoError(t, err)
				switch name {
				case "the joint hold has ended":
					Release(t, hold)
					require.False(t, attempts.granted.Add(late))
					Release(t, late)
					k.requireFree(t)
					return
				case "it was lost already":
					k.servers[2].Forget("x")
					require.ErrorIs(t, late.Check(t.Context()), ErrLost)
					require.Equal(t, 2, k.holders(hold.ID()))
					require.True(t, attempts.granted.Add(late))
					Sleep(time.Second)
					require.Equal(t, 3, k.holders(hold.ID()))
					require.Len(t, k.servers[2].Sent("acquire", ""), 3, "one failed, one was late, one is the retake")
					Release(t, hold)
					Sleep(time.Minute) // its minimum hold
					k.requireFree(t)
					return
				}
				require.True(t, attempts.granted.Add(late))
				k.servers[0].Forget("x")
				k.servers[0].Seize("x", "other", 0)
				require.NoError(t, hold.Check(t.Context()))
				require.NoError(t, Carry(hold).Err(), "the late member and another one are a majority")
				Release(t, hold)
				assert.Equal(t, 1, k.holders(hold.ID()), "its minimum hold has begun")
				Sleep(time.Minute)
				k.servers[0].Free("x")
				k.requireFree(t)
			})
		})
	}
}

func TestMembersOfAJointLockAreInNoCohort(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		holder := Acquire(t, t.Context(), c.Lock("x"), InCohort(time.Second))
		call := StartAcquire(t, t.Context(), c.MultiOf("x", "y"), InCohort(time.Second))
		waiter := StartAcquire(t, t.Context(), c.Lock("x"), InCohort(time.Second))
		Release(t, holder)
		hold := call.Wait()
		assert.Equal(t, []string{hold.ID()}, s.IDs("x"), "all members have one id")
		assert.Equal(t, []string{hold.ID()}, s.IDs("y"))
		Release(t, hold)
		assert.NotEqual(t, hold.ID(), waiter.Wait().ID())
		Release(t, waiter.Hold)
		s.RequireFree(t)
	})
}

// The process stands still until the leases of the members that have answered are over. Nothing has ended their holds
// when it goes on with the answer of the last member.
func TestJointHoldIsNotTrustedWhenItsMembersAreOver(t *testing.T) {
	const ttl = 90 * ms // shorter than the budget of a member
	for _, tt := range []struct {
		name string
		kind func(*joint.Lock)
		op   string // whose answer is late
		by   string // the members whose answer is late
		held string // a member that another has; "": none
		want error
	}{
		{"multi", joint.NewMulti, "acquire", "z", "", ErrLost},
		{"multi", joint.NewMulti, "check", "z", "", ErrLost},
		{"multi", joint.NewMulti, "extend", "z", "", ErrLost},
		{"red", joint.NewRed, "acquire", "z", "", ErrLost},
		{"red", joint.NewRed, "acquire", "xy", "", ErrLost},
		{"red", joint.NewRed, "acquire", "z", "x", ErrLost},
		{"red", joint.NewRed, "check", "z", "", ErrLost},
		{"red", joint.NewRed, "extend", "z", "", ErrLost},
	} {
		t.Run(fmt.Sprintf("%s: %s by %s, %q held", tt.name, tt.op, tt.by, tt.held), func(t *testing.T) {
			Bubble(t, func(t *testing.T, s *Server) {
				c := s.Client(t, "a", func(config *Config) {
					lost := config.Lost
					config.Lost = func(l Loss) error {
						if l.Resource.Name == "x" || l.Resource.Name == "y" {
							time.Sleep(20 * ms) // before the hold ends
						}
						return lost(l)
					}
				})
				s.OnEach(func(cmd Command) (f Fault) {
					if cmd.Op == "renew" {
						f.Lost = true
					} else if cmd.Op == tt.op && strings.Contains(tt.by, cmd.Name) {
						f.Reply = ttl
					}
					return f
				})
				if tt.held != "" {
					s.Seize(tt.held, "other", 0)
				}
				r := c.Joint(tt.name, tt.kind, c.Lock("x"), c.Lock("y"), c.Lock("z"))
				tm := NewTerms(TTL(ttl))
				tm.ForMember = func(i int) *Terms {
					if i == 2 {
						return NewTerms(TTL(time.Second))
					}
					return tm
				}
				hold, err := r.Acquire(t.Context(), tm, NoWait)
				switch tt.op {
				case "check":
					err = hold.Check(t.Context())
				case "extend":
					err = hold.Extend(t.Context(), ms, nil)
				}
				require.ErrorIs(t, err, tt.want)
				assert.NotErrorIs(t, err, ErrNotAcquired, "nobody else has them")
				assert.False(t, hold != nil && hold.IsLive())
			})
		})
	}
}
