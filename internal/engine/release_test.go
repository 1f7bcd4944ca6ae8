package engine_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/failure"
	. "github.com/redlatch/redlatch/internal/test/enginetest"
)

func TestOnlyTheFirstReleaseFreesTheLock(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		hold := Acquire(t, t.Context(), c.Lock("x"))
		ctx := Carry(hold)
		s.Script("release", Fault{Delay: time.Second})
		first := StartRelease(t, hold)
		second := StartRelease(t, hold)
		require.ErrorIs(t, second.AwaitErr(), engine.ErrReleased)
		require.ErrorIs(t, second.Err, engine.ErrNotHeld)
		first.AwaitHold()
		require.ErrorIs(t, hold.Release(t.Context()), engine.ErrReleased)
		require.ErrorIs(t, context.Cause(ctx), engine.ErrReleased)
		assert.Len(t, s.Sent("release"), 1)
		assert.Equal(t, []engine.EventKind{engine.EventAcquired, engine.EventReleased}, c.Kinds())
	})
}

func TestReleaseWorksWithAnEndedContext(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		ctx, cancel := context.WithCancel(t.Context())
		hold := Acquire(t, ctx, c.Lock("x"))
		cancel()
		require.Error(t, Carry(hold).Err(), "the hold's context ends with the caller's")
		require.NoError(t, hold.Release(ctx))
	})
}

// Each case releases with faults. The server is free in the end, whatever the faults are.
func TestReleaseWithoutAnAnswerGoesOnInTheBackground(t *testing.T) {
	down, lost := Fault{Err: ErrDown}, Fault{Lost: true}
	for _, tt := range []struct {
		name    string
		timeout time.Duration // of commands
		faults  []Fault       // of releases
		at      time.Duration // when Release returns
		free    time.Duration // when the server is free
	}{
		{name: "unreachable", timeout: CommandTimeout, faults: []Fault{down, down, down}, free: 20 * ms},
		{
			name: "never executed", timeout: CommandTimeout, faults: []Fault{lost, lost}, at: CommandTimeout,
			free: 2*CommandTimeout + 20*ms,
		},
		{
			name: "executed, not answered", timeout: CommandTimeout, faults: []Fault{{Mute: true}, {Mute: true}},
			at: CommandTimeout,
		},
		{
			name: "executed when repeated already", timeout: CommandTimeout, faults: []Fault{{Delay: 10 * time.Second}},
			at: CommandTimeout, free: CommandTimeout,
		},
		{
			name: "a long command timeout does not bind it", timeout: time.Minute, faults: []Fault{lost},
			at: engine.ReleaseTimeout, free: engine.ReleaseTimeout,
		},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			s.KeepLeases()
			c := s.Client(t, "a", func(config *engine.Config) { config.CommandTimeout = tt.timeout })
			hold := Acquire(t, t.Context(), c.Lock("x"))
			s.Script("release", tt.faults...)
			released := StartRelease(t, hold)
			require.True(t, failure.Of(released.AwaitErr()).Retry())
			assert.Equal(t, tt.at, released.At.Sub(s.Start))
			require.ErrorIs(t, context.Cause(Carry(hold)), engine.ErrReleased)
			assert.Equal(t, []engine.EventKind{engine.EventAcquired, engine.EventReleaseFailed}, c.Kinds())
			next := Start(t, func() (*engine.Hold, error) {
				return s.Client(t, "b").Lock("x").Acquire(t.Context(), NewTerms(), engine.Forever)
			})
			Release(t, next.AwaitHold())
			assert.InDelta(t, max(tt.free, tt.at), next.At.Sub(s.Start), float64(100*ms))
			Sleep(time.Minute)
			s.RequireFree(t)
			assert.Empty(t, s.Sent("renew"))
		})
	}
}

// The server does not answer. The release is repeated until it would be useless or harmful.
func TestRepeatedReleaseEnds(t *testing.T) {
	for _, tt := range []struct {
		name  string
		open  func(c *Client) *engine.Resource
		terms []func(*engine.Terms)
		last  time.Duration // of the last repetition, about
	}{
		{name: "with the lease", open: func(c *Client) *engine.Resource { return c.Lock("x") }, last: DefaultTTL},
		{
			name: "with a longer lease", open: func(c *Client) *engine.Resource { return c.Lock("x") },
			terms: []func(*engine.Terms){FixedLease(5 * time.Minute)}, last: 5 * time.Minute,
		},
		{
			name: "a shared id: with the lease", open: func(c *Client) *engine.Resource { return c.Lock("x") },
			terms: []func(*engine.Terms){OwnedBy("me"), FixedLease(5 * time.Minute)}, last: 5 * time.Minute,
		},
		{
			name:  "a shared id, late: with the time that others may keep its count",
			terms: []func(*engine.Terms){OwnedBy("me"), FixedLease(5 * time.Second)}, last: 50*time.Second - CommandTimeout,
			open: func(c *Client) *engine.Resource {
				return c.Lock("x")
			},
		},
		{
			name: "without a lease: with the memory of the acquisition", last: 2 * time.Minute,
			open: func(c *Client) *engine.Resource {
				r := c.Semaphore("x")
				r.Traits.Remembered = time.Hour + 2*time.Minute
				return r
			},
		},
		{
			name: "without a lease, late: with the memory of the release", last: 50*time.Second - CommandTimeout,
			open: func(c *Client) *engine.Resource {
				r := c.Semaphore("x")
				r.Traits.Remembered = time.Hour + time.Second
				return r
			},
		},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			s.MayStayHeld()
			hold := Acquire(t, t.Context(), tt.open(s.Client(t, "a")), tt.terms...)
			s.OnEach(func(Command) Fault { return Fault{Err: ErrDown} })
			require.ErrorIs(t, hold.Release(t.Context()), ErrDown)
			Sleep(time.Hour)
			sent := s.Sent("release")
			assert.InDelta(t, tt.last, sent[len(sent)-1], float64(1100*ms))
		})
	}
}

func TestReleaseReturnsErrLost(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		hold := Acquire(t, t.Context(), c.Lock("x"))
		s.Forget("x")
		require.ErrorIs(t, hold.Release(t.Context()), engine.ErrLost)
		require.ErrorIs(t, hold.Release(t.Context()), engine.ErrReleased)
		require.ErrorIs(t, context.Cause(Carry(hold)), engine.ErrLost)
		assert.Equal(t, []engine.EventKind{engine.EventAcquired, engine.EventLost}, c.Kinds())
	})
}

// A command of one hold is stuck. The release of another hold of the same lock waits for it, but
// not for ever.
func TestReleaseWhileACommandOfASiblingIsStuck(t *testing.T) {
	for _, tt := range []struct {
		name    string
		timeout time.Duration // of commands
		fault   Fault         // of the command of the inner hold
		at      time.Duration // when the release of the outer hold returns
		failed  bool
	}{
		{name: "answered soon", timeout: CommandTimeout, fault: Fault{Delay: time.Second}, at: time.Second},
		{name: "given up soon", timeout: CommandTimeout, fault: Fault{Lost: true}, at: CommandTimeout},
		{
			name: "stuck for long", timeout: time.Minute, fault: Fault{Delay: 20 * time.Second}, at: engine.ReleaseTimeout,
			failed: true,
		},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			s.KeepLeases()
			r := s.Client(t, "a", func(config *engine.Config) { config.CommandTimeout = tt.timeout }).Reader("x")
			outer := Acquire(t, t.Context(), r)
			inner := Acquire(t, Carry(outer), r)
			s.Script("nest", tt.fault)
			nested := StartAcquire(t, carryLost(inner), r) // has the wire lock
			released := StartRelease(t, outer)
			released.Await()
			assert.Equal(t, tt.at, released.At.Sub(s.Start))
			assert.Equal(t, tt.failed, released.Err != nil)
			if tt.failed {
				require.ErrorIs(t, released.Err, engine.ErrSiblingStuck)
			}
			nested.Await()
			Sleep(5 * time.Second)
			if nested.Err == nil {
				assert.Equal(t, 2, s.Holder("x", inner.ID()).Count, "the background has written the count")
				Release(t, nested.Hold)
			}
			assert.Equal(t, 1, s.Holder("x", inner.ID()).Count)
			Release(t, inner)
		})
	}
}

// The wire comes free at the instant at which the time of a release is over. Whether the release
// still gets it is left to chance. Either way its command goes out later, so its outcome is
// unknown.
func TestReleaseWhoseTurnComesWhenItsTimeIsOver(t *testing.T) {
	for range 20 {
		Bubble(t, func(t *testing.T, s *Server) {
			c := s.Client(t, "a", func(config *engine.Config) { config.CommandTimeout = engine.ReleaseTimeout })
			outer := Acquire(t, t.Context(), c.Reader("x"))
			holds := []*engine.Hold{outer}
			for range 3 {
				holds = append(holds, Acquire(t, Carry(outer), c.Reader("x")))
			}
			s.OnEach(func(Command) Fault { return Fault{Lost: true} })
			var releases []*Call
			for _, h := range holds {
				releases = append(releases, StartRelease(t, h))
			}
			for _, r := range releases {
				assert.True(t, failure.Of(r.AwaitErr()).InDoubt(), "%v", r.Err)
				assert.Equal(t, engine.ReleaseTimeout, r.At.Sub(s.Start))
			}
			s.ResetFaults()
			Sleep(time.Minute)
		})
	}
}

// Both holds are released at the same time. The first command sends the count after both releases.
func TestReleasesOfSiblingsAtTheSameTime(t *testing.T) {
	for _, tt := range []struct {
		name  string
		act   func(s *Server)
		want  error
		fault Fault
	}{
		{name: "freed", act: func(*Server) {}, fault: Fault{Delay: time.Second}},
		{name: "lost", act: func(s *Server) { s.Forget("x") }, want: engine.ErrLost, fault: Fault{Delay: time.Second}},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			r := s.Client(t, "a").Reader("x")
			outer := Acquire(t, t.Context(), r)
			inner := Acquire(t, Carry(outer), r)
			third := Acquire(t, Carry(outer), r)
			tt.act(s)
			s.Script("count", tt.fault)
			first, second, last := StartRelease(t, inner), StartRelease(t, outer), StartRelease(t, third)
			for _, call := range []*Call{first, second, last} {
				call.Await()
				require.ErrorIs(t, call.Err, tt.want)
			}
			assert.Len(t, s.Sent("release"), 1)
		})
	}
}

func TestInnerReleaseInDoubtWritesTheCountLater(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		r := s.Client(t, "a").Lock("x")
		outer := Acquire(t, t.Context(), r)
		inner := Acquire(t, Carry(outer), r)
		s.Script("count", Fault{Lost: true}, Fault{Err: ErrDown})
		require.Error(t, inner.Release(t.Context()))
		assert.Equal(t, 2, s.Holder("x", outer.ID()).Count)
		again := Acquire(t, Carry(outer), r)
		Sleep(time.Second)
		assert.Equal(t, 2, s.Holder("x", outer.ID()).Count, "sends the current count")
		Release(t, again)
		assert.Equal(t, 1, s.Holder("x", outer.ID()).Count)
		Release(t, outer)
	})
}

func TestHoldsWithoutALeaseAreReleased(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		r := s.Client(t, "a").Semaphore("x")
		s.SetPermits("x", 3)
		hold := Acquire(t, t.Context(), r, PermitsOf(2))
		assert.Empty(t, hold.ID())
		s.Script("release", Fault{Mute: true, Copy: 30 * time.Second})
		require.Error(t, hold.Release(t.Context()))
		Sleep(time.Minute)
	})
}

// A release is sent again because its reply was lost. The server does not remember the first
// execution, so the second one finds nothing.
func TestRepeatedReleaseSucceedsIfTheFirstCopyDid(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault Fault
		taken bool // by force, before the release
		want  error
	}{
		{name: "the first one was executed", fault: Fault{Twice: true}},
		{name: "taken by force, sent once", taken: true, want: engine.ErrLost},
		{name: "taken by force and sent twice: it looks released", fault: Fault{Twice: true}, taken: true},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			r := s.Client(t, "a").Lock("x")
			hold := Acquire(t, t.Context(), r)
			if tt.taken {
				s.Free("x")
			}
			s.Script("release", tt.fault)
			if err := hold.Release(t.Context()); tt.want == nil {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, tt.want)
			}
		})
	}
}

// A stopped process finds out that its lease is over only when it resumes. Then a release that
// finds nothing has lost the lock, even if it was sent twice.
func TestRepeatedReleaseAfterTheLeaseIsALoss(t *testing.T) {
	repeated := engine.Released{Lost: true, InDoubt: true}
	Bubble(t, func(t *testing.T, s *Server) {
		hold := Acquire(t, t.Context(), s.Client(t, "a").Lock("x"), func(terms *engine.Terms) { terms.Renew = false })
		o := hold.Ownership()
		Sleep(DefaultTTL - ms)
		assert.False(t, o.IsLoss(repeated, time.Now()))
		Sleep(2 * ms)
		assert.True(t, o.IsLoss(repeated, time.Now()))
	})
}

// The successor of a hand-off that was sent twice is not in the second reply, so it asks by itself.
func TestRepeatedHandOffReachesTheSuccessor(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		r := s.Client(t, "a").Lock("x")
		holder := Acquire(t, t.Context(), r)
		successor := StartAcquire(t, t.Context(), r)
		s.Script("handoff", Fault{Twice: true})
		Release(t, holder)
		hold := successor.AwaitHold()
		assert.Equal(t, []string{hold.ID()}, s.IDs("x"))
		assert.Equal(t, s.Start, successor.At)
		assert.True(t, hold.Ownership().InDoubt, "its release is remembered: a copy may still arrive")
		Release(t, hold)
	})
}

// The count of a nested acquisition that was not answered has yet to be written when the outer hold
// is released. Whichever of the two commands frees the lock, it is no loss.
func TestReleaseBesideARepetitionThatFrees(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault Fault // of the first of the two commands
	}{
		{"answered", Fault{}},
		{"executed, reply lost", Fault{Mute: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for i := range 20 { // either command may be the first
				Bubble(t, func(t *testing.T, s *Server) {
					hold := Acquire(t, t.Context(), s.Client(t, "a").Lock("x"))
					o := hold.Ownership()
					require.True(t, o.LockWire()) // by a command under way
					repeat := func() (*engine.Hold, error) { o.WriteCountLater(t.Context(), CommandTimeout); return nil, nil }
					if i%2 == 0 {
						Start(t, repeat)
					}
					released := StartRelease(t, hold)
					if i%2 == 1 {
						Start(t, repeat)
					}
					s.Script("release", tt.fault)
					o.UnlockWire()
					released.Await()
					require.NotErrorIs(t, released.Err, engine.ErrLost)
					Sleep(time.Minute)
				})
			}
		})
	}
}

// Hooks of go-redis may run in the caller's goroutine, and panic there. The caller may recover, and
// has no hold to release, so the lock is freed without it. The lease does not end by itself here.
func TestAHookThatPanicsLeavesNothingLocked(t *testing.T) {
	for _, op := range []string{"acquire", "release"} {
		for _, executed := range []bool{false, true} {
			RunBubble(t, fmt.Sprintf("%s, executed: %v", op, executed), func(t *testing.T, s *Server) {
				s.KeepLeases()
				c := s.Client(t, "a")
				for _, r := range []*engine.Resource{c.Lock("x"), c.Semaphore("y"), c.Writer("z")} {
					s.Script(op, Fault{Panic: true, Twice: executed})
					require.PanicsWithValue(t, "hook", func() {
						h := Acquire(t, t.Context(), r)
						ctx := Carry(h)
						defer func() { require.ErrorIs(t, context.Cause(ctx), engine.ErrReleased) }()
						Release(t, h)
					})
					Sleep(time.Second) // the background frees it
				}
				s.RequireFree(t)
				require.NoError(t, c.Shut(t.Context()), "no hold is left")
			})
		}
	}
}

// A hook panics in a nested acquisition. The outer hold has its count to itself again, and others
// may nest.
func TestAHookThatPanicsInANestedAcquisition(t *testing.T) {
	for op, owner := range map[string]string{"nest": "", "acquire": "shared"} {
		for _, executed := range []bool{false, true} {
			RunBubble(t, fmt.Sprintf("%s, executed: %v", op, executed), func(t *testing.T, s *Server) {
				s.KeepLeases()
				r := s.Client(t, "a").Lock("x")
				outer := Acquire(t, t.Context(), r, OwnedBy(owner))
				s.Script(op, Fault{Panic: true, Twice: executed})
				require.PanicsWithValue(t, "hook", func() { Acquire(t, Carry(outer), r) })
				Sleep(time.Second)
				require.Equal(t, 1, s.Holder("x", outer.ID()).Count)
				began := s.Now()
				Release(t, Acquire(t, Carry(outer), r))
				Release(t, outer)
				require.Equal(t, began, s.Now(), "nothing delays them")
			})
		}
	}
}
