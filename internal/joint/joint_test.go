package joint_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/failure"
	"github.com/redlatch/redlatch/internal/joint"
	. "github.com/redlatch/redlatch/internal/test/enginetest"
)

const (
	ms = time.Millisecond
	// margin is the safety margin of a lease of DefaultTTL.
	margin = DefaultTTL/100 + 2*ms
	// answerGrace and rollbackGrace are how much longer than its wait an acquisition waits for an
	// answer, and for its rollback. A member has half of it.
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

// onCluster runs f in a bubble with n servers, which are free at its end.
func onCluster(t *testing.T, n int, f func(t *testing.T, k *cluster)) {
	t.Helper()
	Bubble(t, func(t *testing.T, _ *Server) {
		k := newCluster(t, n)
		f(t, k)
		k.requireFree(t)
	})
}

// runCluster runs f as onCluster does, in a subtest of that name.
func runCluster(t *testing.T, name string, n int, f func(t *testing.T, k *cluster)) {
	t.Run(name, func(t *testing.T) { onCluster(t, n, f) })
}

// join returns the clients of one more process, one for each server.
func (k *cluster) join(t testing.TB, id string) (clients []*Client) {
	for i, s := range k.servers {
		clients = append(clients, s.Client(t, fmt.Sprintf("%s%d", id, i)))
	}
	return clients
}

// redOf returns a redlock named "x" on all servers of the clients.
func redOf(clients []*Client) *engine.Resource {
	var members []*engine.Resource
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

// These are faults of the command for the last member. No release is answered after them.
var (
	silence    = Fault{Mute: true, Delay: ms}
	outOfReach = Fault{Err: ErrDown, Delay: 2 * time.Second}
	wrongType  = Fault{Err: ErrFatal, Delay: ms}
)

// gradual is a context that tells its children of its end one after the other, 1 ms apart. A
// context of the standard library does so, too, although faster.
type gradual struct {
	context.Context

	done     chan struct{}
	children atomic.Int64
}

func newGradual(ctx context.Context) *gradual {
	g := &gradual{Context: ctx, done: make(chan struct{})}
	context.AfterFunc(ctx, func() { close(g.done) })
	return g
}

func (g *gradual) Done() <-chan struct{} { return g.done }

// AfterFunc is what package context asks a parent of another package for.
func (g *gradual) AfterFunc(f func()) (stop func() bool) {
	delay := time.Duration(g.children.Add(1)) * ms
	return context.AfterFunc(g.Context, func() {
		time.Sleep(delay)
		f()
	})
}

// If the caller's context ends a call, its end stays the call's error, whichever part of the call
// learns of it first.
func TestCallThatTheContextEndsSaysSo(t *testing.T) {
	for _, call := range []struct {
		name string
		ask  func(ctx context.Context, h *engine.Hold) error
	}{
		{"check", func(ctx context.Context, h *engine.Hold) error { return h.Check(ctx) }},
		{"extend", func(ctx context.Context, h *engine.Hold) error { return h.Extend(ctx, time.Hour, nil) }},
	} {
		for name, open := range map[string]func(k *cluster) *engine.Resource{
			"of a multi":   func(k *cluster) *engine.Resource { return k.clients[0].MultiOf("x", "y") },
			"of a redlock": func(k *cluster) *engine.Resource { return redOf(k.clients) },
		} {
			t.Run(call.name+" "+name, func(t *testing.T) {
				Bubble(t, func(t *testing.T, _ *Server) {
					k := newCluster(t, 3)
					hold := Acquire(t, t.Context(), open(k))
					defer Release(t, hold)
					k.each(3, func(s *Server) {
						s.OnEach(func(cmd Command) Fault { return Fault{Mute: cmd.Op == call.name} })
					})
					ctx, cancel := context.WithTimeout(t.Context(), 300*ms)
					defer cancel()
					defer Sleep(time.Second) // until all children know of the end
					err := call.ask(newGradual(ctx), hold)
					require.ErrorIs(t, err, context.DeadlineExceeded)
					assert.True(t, failure.Of(err).IsOutage(0))
				})
			})
		}
	}
}

// A member does not answer a check, or an extension, and its lease ends meanwhile. The call returns
// then.
func TestJointHoldIsLostInTimeDuringASilentCall(t *testing.T) {
	for _, tt := range []struct {
		name string
		ask  func(h *engine.Hold) error
	}{
		{"check", func(h *engine.Hold) error { return h.Check(context.Background()) }},
		{"extend", func(h *engine.Hold) error { return h.Extend(context.Background(), time.Second, nil) }},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			c := s.Client(t, "a")
			hold := Acquire(t, t.Context(), c.MultiOf("x", "y"), FixedLease(5*time.Second))
			until := hold.ValidUntil()
			Sleep(3 * time.Second)
			s.Script(tt.name, Fault{Lost: true}, Fault{Lost: true})
			asking := Start(t, func() (*engine.Hold, error) { return nil, tt.ask(hold) })
			<-Carry(hold).Done()
			assert.Equal(t, until, time.Now())
			assert.Equal(t, until, hold.ValidUntil())
			require.ErrorIs(t, asking.AwaitErr(), engine.ErrLost)
			assert.Equal(t, until, time.Now())
			require.ErrorIs(t, hold.Release(t.Context()), engine.ErrLost)
			assert.Equal(t, []engine.EventKind{engine.EventAcquired, engine.EventLost}, c.Kinds())
			Sleep(time.Second)
		})
	}
}

// A check, or an extension, is executed after a release that has not been answered yet. It finds
// nothing, but that is no loss.
func TestReleaseBesideACallIsNoLoss(t *testing.T) {
	for _, call := range []struct {
		name string
		ask  func(h *engine.Hold) error
	}{
		{"check", func(h *engine.Hold) error { return h.Check(context.Background()) }},
		{"extend", func(h *engine.Hold) error { return h.Extend(context.Background(), time.Hour, nil) }},
	} {
		for name, open := range map[string]func(c *Client) *engine.Resource{
			"of a lock":    func(c *Client) *engine.Resource { return c.Lock("x") },
			"of a multi":   func(c *Client) *engine.Resource { return c.MultiOf("x", "y") },
			"of one of it": func(c *Client) *engine.Resource { return c.MultiOf("x") },
		} {
			RunBubble(t, call.name+" "+name, func(t *testing.T, s *Server) {
				c := s.Client(t, "a")
				hold := Acquire(t, t.Context(), open(c))
				s.OnEach(func(cmd Command) Fault {
					if cmd.Op == call.name {
						return Fault{Delay: 200 * time.Millisecond}
					}
					return Fault{Reply: 300 * time.Millisecond}
				})
				asking := Start(t, func() (*engine.Hold, error) { return nil, call.ask(hold) })
				Sleep(100 * time.Millisecond)
				Release(t, hold)
				require.ErrorIs(t, asking.AwaitErr(), engine.ErrReleased)
				require.ErrorIs(t, context.Cause(Carry(hold)), engine.ErrReleased)
				assert.Equal(t, []engine.EventKind{engine.EventAcquired, engine.EventReleased}, c.Kinds())
			})
		}
	}
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
		Release(t, other.AwaitHold())
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
		require.ErrorIs(t, ErrOf(r.Acquire(Carry(y), NewTerms(), engine.Forever)), engine.ErrDeadlock)
		Release(t, y, x)
	})
}

// The joint lock's client closes. From then on, members on other clients are not renewed. If the
// hold was lost before, its release, which sends nothing, ends their renewal.
func TestCloseAbandonsMembersOnOtherClients(t *testing.T) {
	for _, isLost := range []bool{false, true} {
		runCluster(t, fmt.Sprint("lost=", isLost), 3, func(t *testing.T, k *cluster) {
			hold := Acquire(t, t.Context(), redOf(k.clients))
			want, left := engine.ErrClosed, 3
			if isLost {
				want, left = engine.ErrLost, 1
				k.each(2, func(s *Server) { s.Forget("x") })
				require.ErrorIs(t, hold.Check(t.Context()), engine.ErrLost)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := k.clients[0].Shut(ctx); !isLost {
				require.ErrorIs(t, err, context.DeadlineExceeded)
			}
			require.ErrorIs(t, context.Cause(Carry(hold)), want)
			assert.Equal(t, left, k.holders(hold.ID()))
			require.ErrorIs(t, hold.Release(t.Context()), engine.ErrClosed)
			Sleep(DefaultTTL)
		})
	}
}

// The user has the joint hold, so the Close of a member's client waits for its release, however
// long that takes.
func TestCloseOfAMembersClientWaitsForTheJointHold(t *testing.T) {
	onCluster(t, 3, func(t *testing.T, k *cluster) {
		hold := Acquire(t, t.Context(), redOf(k.clients))
		closing := Start(t, func() (*engine.Hold, error) { return nil, k.clients[1].Shut(t.Context()) })
		Sleep(time.Minute)
		require.False(t, closing.Returned(), closing.Err)
		require.Equal(t, 3, k.holders(hold.ID()))
		Release(t, hold)
		closing.Await()
		require.NoError(t, closing.Err)
	})
}

// Each attempt for a joint lock has an id of its own. The client forgets the request nevertheless.
func TestJointLockThatMayLingerLeavesNoRequest(t *testing.T) {
	onCluster(t, 3, func(t *testing.T, k *cluster) {
		r := redOf(k.clients)
		for range 100 {
			Release(t, Acquire(t, t.Context(), r, Lingering(time.Second)))
		}
		assert.Empty(t, k.clients[0].Leftovers())
	})
}

// jointOf is a joint lock of n members, without a driver.
func jointOf(c *Client, n, need int) *joint.Lock {
	members := slices.Repeat([]*engine.Resource{c.Lock("x")}, n)
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
		{name: "all", answers: []error{nil, nil, nil}, need: 3},
		{name: "enough", answers: []error{nil, engine.ErrNotHeld, nil}, need: 2},
		{name: "too few: not held", answers: []error{nil, engine.ErrNotHeld, engine.ErrNotHeld}, need: 2,
			want: engine.ErrNotHeld},
		{name: "too few: not held, lost", answers: []error{nil, engine.ErrNotHeld, engine.ErrLost}, need: 2,
			want: engine.ErrLost},
		{
			name: "too few: not acquired", answers: []error{engine.ErrNotAcquired, engine.ErrNotAcquired, fail}, need: 2,
			want: engine.ErrNotHeld,
		},
		{name: "errors", answers: []error{nil, fail, engine.ErrNotHeld}, need: 2, want: fail},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			c := s.Client(t, "a")
			l := jointOf(c, len(tt.answers), tt.need)
			err := l.ForAllMembers(t.Context(), NewTerms(), func(i int) error { return tt.answers[i] })
			require.ErrorIs(t, err, tt.want)
		})
	}
	RunBubble(t, "no answer within the limit", func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		l := jointOf(c, 3, 3)
		l.Budgeted = true
		err := l.ForAllMembers(t.Context(), NewTerms(TTL(10*time.Second)),
			func(i int) error { time.Sleep(time.Duration(i) * time.Minute); return nil })
		require.ErrorIs(t, err, joint.ErrBudget)
		assert.Equal(t, time.Second, s.Now())
	})
	RunBubble(t, "its context ends", func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, engine.ErrLost)
		defer cancel()
		err := jointOf(c, 3, 2).ForAllMembers(ctx, NewTerms(),
			func(i int) error { time.Sleep(time.Duration(i) * time.Hour); return nil })
		require.ErrorIs(t, err, engine.ErrLost)
		require.NotErrorIs(t, err, engine.ErrNotHeld, "the loss of another hold is no answer")
	})
}

// An answer for one member takes longer than the lease of another one lasts.
func TestAdoptionThatLosesAMemberFails(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		r := c.MultiOf("x", "y")
		terms := NewTerms(FixedLease(time.Second))
		q := r.NewRequest(terms)
		require.NoError(t, c.EnterReady(t.Context()))
		defer c.Leave()
		o := (&joint.Lock{Resource: r, Members: []*engine.Resource{c.Lock("x"), c.Lock("y")}, Need: 2}).NewOwnership(q)
		for _, name := range []string{"x", "y"} {
			m := c.Lock(name)
			mine := m.NewRequest(terms)
			mine.SetID(q.ID, false)
			require.NoError(t, o.ReplaceMember(t.Context(), m, mine, time.Now()))
			Sleep(600 * ms)
		}
		hold, err := o.NewAdoptedHold(t.Context(), q)
		require.ErrorIs(t, err, engine.ErrLost)
		assert.Nil(t, hold)
	})
}

// spy notes what the attempts of a joint lock have been granted.
type spy struct {
	engine.Driver
	granted *joint.Holding
}

func (d *spy) TryAcquire(ctx context.Context, q *engine.Request) (engine.Result, error) {
	res, err := d.Driver.TryAcquire(ctx, q)
	d.granted, _ = res.Holding.(*joint.Holding)
	return res, err
}

// A member answers after the attempt has succeeded without it. While the joint hold lasts, the
// member joins it, and is retaken if it was lost before it joined. After that the member is
// refused, and the end of its hold does not affect the joint hold.
func TestLateMemberCountsWhileTheJointHoldLasts(t *testing.T) {
	for _, name := range []string{"in time", "the joint hold has ended", "it was lost already"} {
		runCluster(t, name, 3, func(t *testing.T, k *cluster) {
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
			q.SetID(hold.ID(), false)
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
				require.ErrorIs(t, late.Check(t.Context()), engine.ErrLost)
				require.Equal(t, 2, k.holders(hold.ID()))
				require.True(t, attempts.granted.Add(late))
				Sleep(time.Second)
				require.Equal(t, 3, k.holders(hold.ID()))
				require.Len(t, k.servers[2].Sent("acquire"), 3, "one failed, one was late, one is the retake")
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
		assert.Equal(t, holder.ID(), waiter.AwaitHold().ID(), "it takes turns")
		assert.False(t, call.Returned())
		Release(t, waiter.Hold)
		hold := call.AwaitHold()
		assert.Equal(t, []string{hold.ID()}, s.IDs("x"), "all members have one id")
		assert.Equal(t, []string{hold.ID()}, s.IDs("y"))
		Release(t, hold)
	})
}

// The process stands still until the leases of the members that have answered are over. Nothing has
// ended their holds when it goes on with the answer of the last member.
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
		{name: "multi", kind: joint.NewMulti, op: "acquire", by: "z", want: engine.ErrLost},
		{name: "multi", kind: joint.NewMulti, op: "check", by: "z", want: engine.ErrLost},
		{name: "multi", kind: joint.NewMulti, op: "extend", by: "z", want: engine.ErrLost},
		{name: "red", kind: joint.NewRed, op: "acquire", by: "xy", want: engine.ErrLost},
		{name: "red", kind: joint.NewRed, op: "acquire", by: "z", held: "x", want: engine.ErrLost},
		{name: "red", kind: joint.NewRed, op: "check", by: "z", want: engine.ErrLost},
		{name: "red", kind: joint.NewRed, op: "extend", by: "z", want: engine.ErrLost},
	} {
		RunBubble(t, fmt.Sprintf("%s: %s by %s, %q held", tt.name, tt.op, tt.by, tt.held), func(t *testing.T, s *Server) {
			s.MayStayHeld()
			c := s.Client(t, "a", func(config *engine.Config) {
				lost := config.Errors.Lost
				config.Errors.Lost = func(l engine.Loss) error {
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
			tm.ForMember = func(i int) *engine.Terms {
				if i == 2 {
					return NewTerms(TTL(time.Second))
				}
				return tm
			}
			hold, err := r.Acquire(t.Context(), tm, engine.NoWait)
			switch tt.op {
			case "check":
				err = hold.Check(t.Context())
			case "extend":
				err = hold.Extend(t.Context(), ms, nil)
			}
			require.ErrorIs(t, err, tt.want)
			assert.NotErrorIs(t, err, engine.ErrNotAcquired, "nobody else has them")
			assert.False(t, hold != nil && hold.IsLive())
		})
	}
}

// A member that the budget has ended counts as silent, however late in the budget it was asked.
func TestMemberThatTheBudgetHasEndedIsSilent(t *testing.T) {
	ctx, end := context.WithCancelCause(t.Context())
	end(joint.Overdue)
	early := failure.CutShort(ctx, time.Now()) // it was asked only now
	require.False(t, failure.Of(early).IsOutage(0), "the caller's own time may be over so early")
	for _, tt := range []struct {
		name            string
		err             error
		want            error
		silent, inDoubt bool
	}{
		{name: "the command has no answer", err: early, want: joint.ErrBudget, silent: true, inDoubt: true},
		{name: "the command was not sent", err: failure.WithoutDoubt(early), want: joint.ErrBudget, silent: true},
		{
			name: "it waited for another call", err: context.Cause(ctx), want: joint.ErrBudget, silent: true,
			inDoubt: true,
		},
		{name: "the hold is lost", err: engine.ErrLost, want: engine.ErrLost},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := joint.OverBudget(tt.err)
			require.ErrorIs(t, err, tt.want)
			assert.LessOrEqual(t, strings.Count(err.Error(), "outcome unknown"), 1)
			assert.Equal(t, tt.silent, failure.Of(err).IsOutage(0))
			assert.Equal(t, tt.inDoubt, failure.Of(err).InDoubt())
		})
	}
}

// The observer is slow when a nested redlock has to wait, so its request leaves the queue, and
// another one is made. When its hold ends, the next acquisition may nest.
func TestNestedJointLockWithASlowObserverLetsTheNextOneNest(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a", func(config *engine.Config) {
			observe := config.Observe
			config.Observe = func(e engine.Event) {
				if e.Kind == engine.EventWait {
					time.Sleep(200 * ms)
				}
				observe(e)
			}
		})
		x := c.Lock("x")
		y := c.Lock("y")
		red := c.Joint("red", joint.NewRed, x, y, c.Lock("z"))
		outer := Acquire(t, t.Context(), red)
		ofX := Acquire(t, Carry(outer), x)
		ofY := Acquire(t, Carry(outer), y)
		inner := StartAcquire(t, Carry(outer), red)
		Sleep(time.Second)
		require.False(t, inner.Returned())
		Release(t, ofX, ofY)
		Release(t, inner.AwaitHold())
		next := StartAcquire(t, Carry(outer), red)
		Sleep(time.Second)
		require.True(t, next.Returned(), "nobody else nests")
		Release(t, next.AwaitHold(), outer)
	})
}
