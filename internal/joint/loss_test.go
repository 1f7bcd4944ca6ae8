package joint_test

import (
	"context"
	"errors"
	"fmt"
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

// intercept is a driver that runs a function after each attempt that was granted.
type intercept struct {
	engine.Driver
	granted func()
}

func (d *intercept) TryAcquire(ctx context.Context, q *engine.Request) (engine.Result, error) {
	res, err := d.Driver.TryAcquire(ctx, q)
	if err == nil && res.Granted {
		d.granted()
	}
	return res, err
}

// A member is lost after the attempt has succeeded, and before there is a joint hold that its end
// could be reported to.
func TestMemberLossBeforeTheJointHoldIsNoticed(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		r := c.MultiOf("x", "y")
		r.Driver = &intercept{r.Driver, func() { s.Forget("x"); Sleep(DefaultTTL/3 + ms) }}
		hold := Acquire(t, t.Context(), r)
		Settle()
		assert.False(t, hold.IsLive())
		require.ErrorIs(t, context.Cause(Carry(hold)), engine.ErrLost)
		require.ErrorIs(t, hold.Release(t.Context()), engine.ErrLost)
		// The loss has a goroutine of its own, which may call the observer first.
		kinds := []engine.EventKind{engine.EventAcquired, engine.EventLost}
		assert.ElementsMatch(t, kinds, c.Kinds(engine.EventRenewed))
		Settle() // the other member is released in the background
	})
	runCluster(t, "red", 3, func(t *testing.T, k *cluster) {
		r := redOf(k.clients)
		r.Driver = &intercept{r.Driver, func() { k.servers[0].Forget("x"); Sleep(DefaultTTL/3 + ms) }}
		hold := Acquire(t, t.Context(), r)
		Sleep(time.Second)
		require.NoError(t, Carry(hold).Err())
		assert.Equal(t, 3, k.holders(hold.ID()), "it was acquired again")
		Release(t, hold)
	})
}

// A member is lost while the attempt waits for the answer of another one. A request that may wait
// begins anew.
func TestMultiThatLosesAMemberBeginsAnew(t *testing.T) {
	for _, limit := range []time.Duration{engine.NoWait, engine.Forever} {
		RunBubble(t, fmt.Sprint(limit), func(t *testing.T, s *Server) {
			c, asked := s.Client(t, "a"), false
			s.OnEach(func(cmd Command) Fault {
				if asked || cmd.Op != "acquire" || cmd.Name != "y" {
					return Fault{}
				}
				asked = true
				go s.Forget("x")
				return Fault{Reply: 20 * ms}
			})
			hold, err := c.MultiOf("x", "y").Acquire(t.Context(), NewTerms(TTL(30*ms)), limit)
			if limit == engine.NoWait {
				require.ErrorIs(t, err, engine.ErrLost)
			} else {
				require.NoError(t, err)
				Sleep(time.Second)
				assert.True(t, hold.IsLive())
				Release(t, hold)
			}
		})
	}
}

// The joint lock's client closes, or the client of a member. Only the second is a loss.
func TestCloseOfAMembersClientIsALoss(t *testing.T) {
	onCluster(t, 2, func(t *testing.T, k *cluster) {
		r := k.clients[0].Joint("multi", joint.NewMulti, k.clients[0].Lock("x"), k.clients[1].Lock("x"))
		hold := Acquire(t, t.Context(), r)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		require.Error(t, k.clients[1].Shut(ended))
		cause := context.Cause(Carry(hold))
		require.ErrorIs(t, cause, engine.ErrLost)
		require.NotErrorIs(t, cause, engine.ErrClosed, "the lock itself was not closed")
		require.ErrorIs(t, hold.Release(t.Context()), engine.ErrLost)
		Settle() // the loss is reported in the background
		assert.Equal(t, []engine.EventKind{engine.EventAcquired, engine.EventLost}, k.clients[0].Kinds())
		Sleep(DefaultTTL)
	})
	Bubble(t, func(t *testing.T, s *Server) {
		s.MayStayHeld()
		c := s.Client(t, "a")
		hold := Acquire(t, t.Context(), c.MultiOf("x", "y"))
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		require.Error(t, c.Shut(ended))
		cause := context.Cause(Carry(hold))
		require.ErrorIs(t, cause, engine.ErrClosed)
		require.NotErrorIs(t, cause, engine.ErrLost)
		assert.NotContains(t, c.Kinds(), engine.EventLost)
	})
}

func TestLossNamesTheMembersThatHaveEnded(t *testing.T) {
	Bubble(t, func(t *testing.T, _ *Server) {
		k := newCluster(t, 3)
		hold := Acquire(t, t.Context(), redOf(k.clients))
		k.servers[0].Forget("x")
		k.servers[0].Seize("x", "other", 0)
		require.NoError(t, hold.Check(t.Context()))
		member, _ := engine.HoldFrom(Carry(hold), k.clients[1].Lock("x"))
		Release(t, member)
		loss := LossOf(t, context.Cause(Carry(hold)))
		assert.Equal(t, engine.LossMembers, loss.Reason)
		require.Len(t, loss.Members, 2)
		lost, released := loss.Members[0], loss.Members[1]
		if !errors.Is(lost, engine.ErrLost) { // in the order in which they were acquired, at the same time
			lost, released = released, lost
		}
		require.ErrorIs(t, lost, engine.ErrLost)
		require.NotErrorIs(t, released, engine.ErrReleased, "the joint hold was not released")
		assert.ErrorContains(t, released, engine.ErrReleased.Error())
		require.ErrorIs(t, hold.Release(t.Context()), engine.ErrLost)
	})
}

// The observer takes a while. A call that finds the loss returns after it, and a loss that nobody
// asked for is reported even after calls that found nothing.
func TestLossIsReportedOnceAndInTime(t *testing.T) {
	for _, asked := range []bool{false, true} {
		RunBubble(t, fmt.Sprint("by a check: ", asked), func(t *testing.T, s *Server) {
			c := s.Client(t, "a", func(config *engine.Config) {
				observe := config.Observe
				config.Observe = func(e engine.Event) {
					if e.Kind == engine.EventLost {
						time.Sleep(10 * ms)
					}
					observe(e)
				}
			})
			hold := Acquire(t, t.Context(), c.MultiOf("x", "y"))
			require.NoError(t, hold.Check(t.Context()))
			s.Forget("y")
			if asked {
				require.ErrorIs(t, hold.Check(t.Context()), engine.ErrLost)
				assert.Equal(t, 10*ms, s.Now())
			} else {
				Sleep(DefaultTTL)
			}
			assert.Equal(t, []engine.EventKind{engine.EventAcquired, engine.EventLost}, c.Kinds(engine.EventRenewed))
			require.ErrorIs(t, hold.Release(t.Context()), engine.ErrLost)
		})
	}
}

// Two of three members end while a check waits for their answers. It returns then, before its
// budget is over.
func TestLossDuringACheckThatIsNotAnsweredIsReported(t *testing.T) {
	Bubble(t, func(t *testing.T, _ *Server) {
		k := newCluster(t, 3)
		hold := Acquire(t, t.Context(), redOf(k.clients), FixedLease(DefaultTTL))
		Sleep(DefaultTTL - margin - time.Second)
		k.each(2, func(s *Server) { s.OnEach(silent) })
		began := time.Now()
		require.ErrorIs(t, hold.Check(t.Context()), engine.ErrLost)
		assert.Equal(t, time.Second, time.Since(began))
		assert.Equal(t, []engine.EventKind{engine.EventAcquired, engine.EventLost}, k.clients[0].Kinds())
		require.ErrorIs(t, hold.Release(t.Context()), engine.ErrLost)
	})
}

// termsWithTTLs returns terms in which each member has a TTL of its own.
func termsWithTTLs(ttls ...time.Duration) *engine.Terms {
	terms := NewTerms()
	terms.ForMember = func(i int) *engine.Terms { return NewTerms(TTL(ttls[i])) }
	return terms
}

// Members of a redlock are renewed for different times, and the first is lost.
func TestRedIsValidUntilTooFewLiveMembersAre(t *testing.T) {
	onCluster(t, 4, func(t *testing.T, k *cluster) {
		terms := termsWithTTLs(time.Minute, 30*time.Second, 40*time.Second, 20*time.Second)
		hold, err := redOf(k.clients).Acquire(t.Context(), terms, engine.NoWait)
		require.NoError(t, err)
		valid := func() time.Duration { return time.Until(hold.ValidUntil()).Round(time.Second) }
		assert.Equal(t, 30*time.Second, valid())
		k.servers[0].Forget("x")
		k.servers[0].Seize("x", "other", 0)
		require.NoError(t, hold.Check(t.Context()))
		assert.Equal(t, 20*time.Second, valid(), "all others are needed")
		Release(t, hold)
		k.servers[0].Free("x")
		Sleep(time.Second)
	})
}

func TestBudgetOfAMember(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		for _, tt := range []struct {
			ttl  time.Duration // the second member's TTL; the others have an hour
			want time.Duration
		}{
			{500 * ms, 100 * ms},
			{5 * time.Second, 500 * ms},
			{time.Minute, 2 * time.Second},
		} {
			terms := termsWithTTLs(time.Hour, tt.ttl, time.Hour)
			l := jointOf(c, 3, 3)
			took := func() time.Duration {
				began := s.Now()
				_ = l.ForAllMembers(t.Context(), terms, func(int) error { time.Sleep(time.Minute); return nil })
				return s.Now() - began
			}
			assert.Equal(t, time.Minute, took(), "as long as it takes")
			l.Budgeted = true
			assert.Equal(t, tt.want, took())
		}
	})
}

// When the time of an attempt is over, it waits for rollbacks once, however often it settles.
func TestAttemptWaitsForRollbacksOnce(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		require.NoError(t, c.EnterReady(t.Context()))
		defer c.Leave()
		assert.InDelta(t, joint.RollbackWait, joint.SettleSilent(c.Core, 3, time.Minute), float64(time.Microsecond))
		assert.InDelta(t, 0, joint.SettleSilent(c.Core, 3, 0), float64(time.Microsecond))
	})
}

// actingContext is a context in whose n-th call of Err something happens.
type actingContext struct {
	context.Context

	calls atomic.Int64
	n     int64
	act   func()
}

func (c *actingContext) Err() error {
	if c.calls.Add(1) == c.n {
		c.act()
	}
	return c.Context.Err()
}

// The caller's context ends, or the client closes, at any moment of an acquisition. If that fails,
// nothing is left.
func TestAcquisitionThatFailsAtAnyMomentLeavesNothing(t *testing.T) {
	for name, open := range map[string]func(c *Client) *engine.Resource{
		"multi": func(c *Client) *engine.Resource { return c.MultiOf("x", "y") },
		"red": func(c *Client) *engine.Resource {
			return c.Joint("red", joint.NewRed, c.Lock("x"), c.Lock("y"), c.Lock("z"))
		},
	} {
		for _, closing := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", close: ", closing), func(t *testing.T) {
				failures := 0
				for n, last := int64(1), false; !last; n++ {
					Bubble(t, func(t *testing.T, s *Server) {
						s.KeepLeases()
						c := s.Client(t, "a")
						base, cancel := context.WithCancelCause(t.Context())
						defer cancel(nil)
						ctx := &actingContext{Context: base, n: n, act: func() {
							if !closing {
								cancel(errStopped)
								return
							}
							go func() { _ = c.Shut(context.Background()) }()
							time.Sleep(ms)
						}}
						hold, err := open(c).Acquire(ctx, NewTerms(), engine.NoWait)
						last = ctx.calls.Load() < n
						if err == nil {
							Release(t, hold)
						} else {
							failures++
							assert.True(t, errors.Is(err, errStopped) || errors.Is(err, engine.ErrClosed), "%v", err)
						}
						Sleep(time.Second)
					})
				}
				assert.Positive(t, failures)
			})
		}
	}
}

// A takeover has replaced the owner of both members. The new hold is lost with any of them, as one
// that was acquired.
func TestAdoptedHoldIsLostWithAMember(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		r := c.MultiOf("x", "y")
		q := r.NewRequest(NewTerms())
		require.NoError(t, c.EnterReady(t.Context()))
		defer c.Leave()
		o := (&joint.Lock{Resource: r, Members: []*engine.Resource{c.Lock("x"), c.Lock("y")}, Need: 2}).NewOwnership(q)
		for _, name := range []string{"x", "y"} {
			s.Seize(name, q.ID, DefaultTTL)
			mine := c.Lock(name).NewRequest(NewTerms())
			mine.SetID(q.ID, false)
			require.NoError(t, o.ReplaceMember(t.Context(), c.Lock(name), mine, time.Now()))
		}
		hold, err := o.NewAdoptedHold(t.Context(), q)
		require.NoError(t, err)
		Sleep(time.Hour)
		require.NoError(t, Carry(hold).Err())
		s.Forget("y")
		Sleep(DefaultTTL/3 + ms)
		require.ErrorIs(t, context.Cause(Carry(hold)), engine.ErrLost)
		require.ErrorIs(t, hold.Release(t.Context()), engine.ErrLost)
		s.RequireFree(t)

		// A member that is added to a closed ownership is not renewed.
		s.Seize("x", q.ID, DefaultTTL)
		mine := c.Lock("x").NewRequest(NewTerms())
		mine.SetID(q.ID, false)
		require.NoError(t, o.ReplaceMember(t.Context(), c.Lock("x"), mine, time.Now()))
		Sleep(DefaultTTL)
	})
}

// A joint hold ends by its limit if enough members would be left without their limits.
func TestJointHoldEndsByItsLimit(t *testing.T) {
	red := func(k *cluster) *engine.Resource { return redOf(k.clients) }
	forget := func(_ *testing.T, k *cluster, _ *engine.Hold) { k.servers[1].Forget("x") }
	for _, tt := range []struct {
		name   string
		open   func(k *cluster) *engine.Resource
		option func(*engine.Terms)
		lose   func(t *testing.T, k *cluster, hold *engine.Hold) // before the limit
		want   engine.LossReason
	}{
		{name: "multi, lease", open: multiOf, option: FixedLease(time.Minute), want: engine.LossLimit},
		{name: "multi, maximum hold", open: multiOf, option: MaxHold(time.Minute), want: engine.LossLimit},
		{name: "red, lease", open: red, option: FixedLease(time.Minute), want: engine.LossLimit},
		{name: "red without a member", open: red, option: FixedLease(time.Minute), lose: forget, want: engine.LossLimit},
		{name: "multi without a member", open: multiOf, option: MaxHold(time.Minute), lose: forget, want: engine.LossMembers},
		{
			name: "red, of which one member was lost, and another one was not extended", open: red,
			option: MaxHold(time.Minute), want: engine.LossMembers,
			lose: func(t *testing.T, k *cluster, hold *engine.Hold) {
				k.servers[0].OnEach(func(cmd Command) Fault { return Fault{Lost: cmd.Op == "extend"} })
				require.NoError(t, hold.Extend(t.Context(), time.Hour, nil))
				k.servers[1].Forget("x")
				k.servers[1].Seize("x", "other", 0) // so that the member is not acquired again
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			Bubble(t, func(t *testing.T, _ *Server) {
				k := newCluster(t, 3)
				hold := Acquire(t, t.Context(), tt.open(k), tt.option)
				if tt.lose != nil {
					Sleep(time.Second)
					tt.lose(t, k, hold)
					_ = hold.Check(t.Context())
				}
				Sleep(2 * time.Minute)
				loss := LossOf(t, context.Cause(Carry(hold)))
				assert.Equal(t, tt.want, loss.Reason)
				assert.Equal(t, tt.want == engine.LossMembers, len(loss.Members) > 0)
				require.ErrorIs(t, hold.Release(t.Context()), engine.ErrLost)
			})
		})
	}
}

// multiOf returns a multilock of "x" on all servers of k.
func multiOf(k *cluster) *engine.Resource {
	var members []*engine.Resource
	for _, c := range k.clients {
		members = append(members, c.Lock("x"))
	}
	return k.clients[0].Joint("multi", joint.NewMulti, members...)
}

// The context carries a hold of a member that was lost. The acquisition fails with the loss, and
// takes no member: neither the lost one again, nor any of the others.
func TestJointUnderALostHoldOfAMember(t *testing.T) {
	for _, limit := range []time.Duration{engine.NoWait, time.Second, engine.Forever} {
		for _, known := range []bool{true, false} {
			for _, open := range []func(k *cluster) *engine.Resource{multiOf,
				func(k *cluster) *engine.Resource { return redOf(k.clients) }} {
				onCluster(t, 1, func(t *testing.T, k *cluster) {
					member := Acquire(t, t.Context(), k.clients[0].Lock("x"))
					k.servers[0].Forget("x")
					if known {
						require.ErrorIs(t, member.Check(t.Context()), engine.ErrLost)
					}
					r := open(k)
					// The loss ends the context of the hold, too. Then the acquisition may also say
					// that it gave up.
					_, err := r.Acquire(context.WithoutCancel(Carry(member)), NewTerms(), limit)
					require.ErrorIs(t, err, engine.ErrLost, "%s, %v, known: %v", r.Kind, limit, known)
					require.NotErrorIs(t, err, engine.ErrNotAcquired, "%s, %v, known: %v", r.Kind, limit, known)
					require.ErrorIs(t, member.Release(t.Context()), engine.ErrLost)
				})
			}
		}
	}
}

// A nested acquisition finds that the joint hold in its context is lost.
func TestJointUnderALostJointHold(t *testing.T) {
	for _, limit := range []time.Duration{engine.NoWait, time.Second, engine.Forever} {
		for _, open := range []func(k *cluster) *engine.Resource{multiOf,
			func(k *cluster) *engine.Resource { return redOf(k.clients) }} {
			for _, forgotten := range []int{2, 3} {
				for _, taken := range []bool{true, false} {
					Bubble(t, func(t *testing.T, _ *Server) {
						k := newCluster(t, 3)
						r := open(k)
						outer := Acquire(t, t.Context(), r)
						k.each(forgotten, func(s *Server) {
							s.Forget("x")
							if taken {
								s.Seize("x", "other", 0)
							}
						})
						_, err := r.Acquire(Carry(outer), NewTerms(), limit)
						require.ErrorIs(t, err, engine.ErrLost, "%s, %v, %d", r.Kind, limit, forgotten)
						require.NotErrorIs(t, err, engine.ErrNotAcquired, "%s, %v, %d, %v", r.Kind, limit, forgotten, taken)
						require.ErrorIs(t, outer.Release(t.Context()), engine.ErrLost)
					})
				}
			}
		}
	}
}

// redThatHasLostAMember returns a red hold of three members whose first one was lost, and may be
// held by another client now.
func redThatHasLostAMember(t *testing.T, taken bool) (k *cluster, r *engine.Resource, outer *engine.Hold) {
	t.Helper()
	k = newCluster(t, 3)
	r = redOf(k.clients)
	outer = Acquire(t, t.Context(), r)
	k.servers[0].Forget("x")
	if taken {
		k.servers[0].Seize("x", "other", 0)
	}
	return k, r, outer
}

// A red hold has lost a member, and its majority stands: an acquisition nests under it.
func TestRedUnderARedHoldThatHasLostAMember(t *testing.T) {
	for _, limit := range []time.Duration{engine.NoWait, time.Second, engine.Forever} {
		for _, known := range []bool{true, false} {
			for _, taken := range []bool{true, false} {
				t.Run(fmt.Sprintf("%v, known: %v, taken: %v", limit, known, taken), func(t *testing.T) {
					Bubble(t, func(t *testing.T, _ *Server) {
						k, r, outer := redThatHasLostAMember(t, taken)
						if known {
							require.NoError(t, outer.Check(t.Context()))
						}
						for range 2 {
							inner, err := r.Acquire(Carry(outer), NewTerms(), limit)
							require.NoError(t, err)
							require.Equal(t, outer.ID(), inner.ID())
							deeper, err := r.Acquire(Carry(inner), NewTerms(), limit)
							require.NoError(t, err)
							Release(t, deeper, inner)
						}
						Release(t, outer)
						k.servers[0].Free("x")
						Sleep(time.Minute)
						k.requireFree(t)
					})
				})
			}
		}
	}
}

// A red hold has lost a member, and another one does not answer: its majority may stand, so an
// acquisition under it fails neither with ErrLost nor with ErrNotAcquired. One that waits succeeds
// as soon as that member answers.
func TestRedUnderARedHoldWithASilentMember(t *testing.T) {
	for _, limit := range []time.Duration{engine.NoWait, 10 * time.Second, engine.Forever} {
		for name, fault := range map[string]Fault{"silent": silence, "out of reach": outOfReach} {
			for _, taken := range []bool{true, false} { // the lost member
				t.Run(fmt.Sprintf("%s, %v, taken: %v", name, limit, taken), func(t *testing.T) {
					Bubble(t, func(t *testing.T, _ *Server) {
						k, r, outer := redThatHasLostAMember(t, taken)
						k.servers[1].OnEach(func(Command) Fault { return fault })
						time.AfterFunc(3*time.Second, k.servers[1].ResetFaults)
						inner, err := r.Acquire(Carry(outer), NewTerms(), limit)
						switch limit {
						case engine.NoWait:
							require.NotErrorIs(t, err, engine.ErrLost)
							require.NotErrorIs(t, err, engine.ErrNotAcquired, "nobody else has a majority")
							require.ErrorIs(t, err, engine.ErrUnavailable)
						default:
							require.NoError(t, err)
							Release(t, inner)
						}
						Sleep(4 * time.Second)
						require.NoError(t, outer.Check(t.Context()), "the majority stands")
						Release(t, outer)
						k.servers[0].Free("x")
						Sleep(time.Minute)
						k.requireFree(t)
					})
				})
			}
		}
	}
}

// A member's attempt may have acquired it, and will not be repeated. The release of the other
// member is silent. The acquisition waits for that no longer than for a rollback.
func TestMultiDoesNotWaitLongAfterAFailureInDoubt(t *testing.T) {
	inDoubt := NewError("too few replicas", failure.Failure{Unconfirmed: true})
	for _, limit := range []time.Duration{engine.NoWait, engine.Forever} {
		Bubble(t, func(t *testing.T, s *Server) {
			s.OnEach(func(cmd Command) Fault {
				switch {
				case cmd.Op == "acquire" && cmd.Name == "y":
					return Fault{Err: inDoubt}
				case cmd.Op == "release" && s.Now() < time.Minute:
					return Fault{Lost: true}
				}
				return Fault{}
			})
			require.ErrorIs(t, ErrOf(s.Client(t, "a").MultiOf("x", "y").Acquire(t.Context(), NewTerms(), limit)), inDoubt)
			assert.Equal(t, time.Second, s.Now())
			Sleep(2 * time.Minute)
		})
	}
}
