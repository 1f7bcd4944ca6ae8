package engine

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// joint returns a resource for a joint lock of c, and sets it up.
func (c *client) joint(kind string, setUp func(*Joint), members ...*Resource) *Resource {
	name := ""
	for _, m := range members {
		name += m.Name
	}
	r := c.resource(kind, name, nil)
	setUp(&Joint{Resource: r, Members: members})
	return r
}

// multiOf returns a multi lock of locks with these names.
func (c *client) multiOf(names ...string) *Resource {
	var members []*Resource
	for _, name := range names {
		members = append(members, c.lock(name))
	}
	return c.joint("multi", NewMulti, members...)
}

// cluster is independent servers, each with a client of its own.
type cluster struct {
	servers []*server
	clients []*client
}

func newCluster(t testing.TB, n int) *cluster {
	k := &cluster{}
	for range n {
		k.servers = append(k.servers, newServer())
	}
	k.clients = k.join(t, "a")
	return k
}

// join returns the clients of one more process, one for each server.
func (k *cluster) join(t testing.TB, id string) (clients []*client) {
	for i, s := range k.servers {
		clients = append(clients, s.client(t, fmt.Sprintf("%s%d", id, i)))
	}
	return clients
}

// redOf returns a red lock named "x" on all servers of the clients.
func redOf(clients []*client) *Resource {
	var members []*Resource
	for _, c := range clients {
		members = append(members, c.lock("x"))
	}
	return clients[0].joint("red", NewRed, members...)
}

// holders returns on how many servers id holds "x".
func (k *cluster) holders(id string) (n int) {
	for _, s := range k.servers {
		if s.holder("x", id).count > 0 {
			n++
		}
	}
	return n
}

func (k *cluster) requireFree(t testing.TB) {
	t.Helper()
	for _, s := range k.servers {
		s.requireFree(t)
	}
}

// each runs f for the first n servers.
func (k *cluster) each(n int, f func(s *server)) {
	for _, s := range k.servers[:n] {
		f(s)
	}
}

func silent(command) fault { return fault{mute: true} }

func TestMultiAcquiresItsMembersInOrderWithOneID(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		r := c.multiOf("x", "y", "z")
		hold := acquire(t, t.Context(), r)
		var names []string
		for _, e := range s.log {
			assert.Equal(t, "acquire", e.op)
			assert.Equal(t, hold.ID(), e.id)
			names = append(names, e.name)
		}
		assert.Equal(t, []string{"x", "y", "z"}, names)
		require.NoError(t, hold.Check(t.Context()))
		require.NoError(t, hold.Extend(t.Context(), time.Hour, nil))
		assert.Greater(t, time.Until(hold.ValidUntil()), 50*time.Minute)
		sleep(2 * time.Hour)
		assert.NoError(t, carry(hold).Err())
		release(t, hold)
		s.requireFree(t)
		assert.Equal(t, []EventKind{EventAcquired, EventReleased}, c.kinds(EventRenewed), "members emit none")
	})
}

// Another holds the second of three members.
func TestMultiHoldsNothingWhileItWaits(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		s.seize("y", "other", 0)
		call := startAcquire(t, t.Context(), c.multiOf("x", "y", "z"))
		assert.NotEmpty(t, s.ids("x"), "for a moment")
		sleep(firstPatience + firstPatience/2)
		assert.Empty(t, s.ids("x"))
		sleep(time.Minute)
		assert.Empty(t, s.ids("x"))
		s.free("y")
		release(t, call.wait())
		assert.Equal(t, time.Minute+firstPatience+firstPatience/2, s.now())
		s.requireFree(t)
		assert.Equal(t, []EventKind{EventWait, EventAcquired, EventReleased}, c.kinds(EventRenewed))
	})
}

// Another holds the last member. The acquisition ends without it, and nothing is left of the others.
func TestMultiThatGivesUpLeavesNothing(t *testing.T) {
	for _, tt := range []struct {
		name  string
		limit time.Duration
		act   func(s *server, c *client, cancel context.CancelCauseFunc) // after 3 s
		fault fault                                                      // of the command for the last member
		want  error
		at    time.Duration
	}{
		{"a single try", noWait, nil, fault{}, ErrNotAcquired, 0},
		{"the limit", time.Second, nil, fault{}, ErrNotAcquired, time.Second},
		{
			"its context", forever, func(_ *server, _ *client, cancel context.CancelCauseFunc) { cancel(errCause) },
			fault{}, errCause, 3 * time.Second,
		},
		{
			"its client closes", forever, func(_ *server, c *client, _ context.CancelCauseFunc) {
				go func() { _ = c.close(context.Background()) }()
			}, fault{}, ErrClosed, 3 * time.Second,
		},
		{"an error of a member", forever, nil, fault{err: errFatal}, errFatal, 0},
		{"a member is unreachable", forever, nil, fault{err: errDown}, errDown, 0},
		{"a member does not answer", forever, nil, fault{mute: true}, unanswered(nil), testTimeout},
		{"a member does not answer before the limit", time.Second, nil, fault{mute: true}, ErrUnavailable,
			time.Second + answerGrace/2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				s.keepLeases()
				c := s.client(t, "a")
				s.seize("z", "other", 0)
				s.onEach(func(cmd command) fault {
					if cmd.op == "acquire" && cmd.name == "z" {
						return tt.fault
					}
					return fault{}
				})
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				call := start(t, func() (*Hold, error) { return c.multiOf("x", "y", "z").Acquire(ctx, terms(), tt.limit) })
				if tt.act != nil {
					sleep(3 * time.Second)
					tt.act(s, c, cancel)
				}
				err := call.fail()
				slack := time.Duration(0)
				if tt.at == testTimeout {
					slack = 2 * firstPatience // it gives way at a random time before
				}
				assert.InDelta(t, tt.at, call.at.Sub(s.start), float64(slack))
				if classify(tt.want).InDoubt {
					assert.True(t, classify(err).InDoubt, "%v", err)
				} else {
					require.ErrorIs(t, err, tt.want)
				}
				s.free("z")
				sleep(time.Minute)
				s.requireFree(t)
			})
		})
	}
}

func TestMemberThatIsAcquiredTooLateIsReleased(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		s.keepLeases()
		s.script("acquire", fault{reply: time.Second + answerGrace/4})
		_, err := s.client(t, "a").multiOf("x", "y").Acquire(t.Context(), terms(), time.Second)
		require.ErrorIs(t, err, ErrNotAcquired)
		sleep(time.Second)
		s.requireFree(t)
	})
}

func TestMultisInOppositeOrdersBothAcquireInTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		a, b := s.client(t, "a").multiOf("x", "y"), s.client(t, "b").multiOf("y", "x")
		s.onEach(func(command) fault { return fault{delay: 5 * ms} }) // both have the first member
		var calls []*call
		for _, r := range []*Resource{a, b} {
			calls = append(calls, start(t, func() (*Hold, error) {
				hold := acquire(t, t.Context(), r)
				time.Sleep(10 * ms)
				return hold, hold.Release(t.Context())
			}))
		}
		for _, call := range calls {
			call.wait()
		}
		assert.Less(t, s.now(), 10*time.Second)
		s.requireFree(t)
	})
}

func TestMultiIsLostWithAnyMember(t *testing.T) {
	for _, tt := range []struct {
		name string
		lose func(t *testing.T, s *server, h *Hold)
	}{
		{"at a renewal", func(*testing.T, *server, *Hold) { sleep(15 * time.Second) }},
		{"at a check", func(t *testing.T, _ *server, h *Hold) { require.ErrorIs(t, h.Check(t.Context()), ErrLost) }},
		{"at an extension", func(t *testing.T, _ *server, h *Hold) {
			require.ErrorIs(t, h.Extend(t.Context(), time.Hour, nil), ErrLost)
		}},
		{"at the release", func(*testing.T, *server, *Hold) {}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				s.keepLeases()
				c := s.client(t, "a")
				hold := acquire(t, t.Context(), c.multiOf("x", "y", "z"))
				ctx := carry(hold)
				s.forget("y")
				tt.lose(t, s, hold)
				require.ErrorIs(t, hold.Release(t.Context()), ErrLost)
				require.ErrorIs(t, context.Cause(ctx), ErrLost)
				sleep(time.Second)
				s.requireFree(t)
				assert.Equal(t, []EventKind{EventAcquired, EventLost}, c.kinds(EventRenewed))
			})
		})
	}
}

// A member does not answer a check, or an extension, and its lease ends meanwhile.
func TestJointHoldIsLostInTimeAlthoughACallIsNotAnswered(t *testing.T) {
	for _, tt := range []struct {
		name string
		ask  func(h *Hold) error
	}{
		{"check", func(h *Hold) error { return h.Check(context.Background()) }},
		{"extend", func(h *Hold) error { return h.Extend(context.Background(), time.Second, nil) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				c := s.client(t, "a")
				hold := acquire(t, t.Context(), c.multiOf("x", "y"), fixedLease(5*time.Second))
				until := hold.ValidUntil()
				sleep(3 * time.Second)
				s.script(tt.name, fault{lost: true}, fault{lost: true})
				asking := start(t, func() (*Hold, error) { return nil, tt.ask(hold) })
				<-carry(hold).Done()
				assert.Equal(t, until, time.Now())
				assert.Equal(t, until, hold.ValidUntil())
				require.ErrorIs(t, asking.fail(), ErrLost)
				assert.Equal(t, 3*time.Second+testTimeout, s.now())
				require.ErrorIs(t, hold.Release(t.Context()), ErrLost)
				assert.Equal(t, []EventKind{EventAcquired, EventLost}, c.kinds())
				sleep(time.Second)
				s.requireFree(t)
			})
		})
	}
}

// The members' holds can be found and released by the user. The joint hold needs them all.
func TestMultiIsLostWhenAMemberIsReleased(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		r := c.multiOf("x", "y")
		hold := acquire(t, t.Context(), r)
		member, handle := HoldFrom(carry(hold), c.lock("y").Key)
		require.NotNil(t, member)
		assert.Nil(t, handle)
		nested := acquire(t, carry(hold), c.lock("y"))
		assert.Equal(t, hold.ID(), nested.ID())
		release(t, nested)
		s.script("release", fault{delay: time.Second})
		released := startRelease(t, member)
		require.ErrorIs(t, context.Cause(carry(hold)), ErrLost, "before another client can have the member")
		released.wait()
		require.ErrorIs(t, hold.Release(t.Context()), ErrLost)
		s.requireFree(t)
	})
}

func TestJointHoldsNest(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		r := c.multiOf("x", "y")
		outer := acquire(t, t.Context(), r)
		inner := acquire(t, carry(outer), r)
		assert.Equal(t, 2, inner.Depth())
		assert.Equal(t, outer.ID(), inner.ID())
		assert.Equal(t, 2, s.holder("y", outer.ID()).count)
		other := startAcquire(t, carry(outer), r)
		assert.False(t, other.returned(), "one at a time")
		release(t, inner)
		release(t, other.wait())
		release(t, outer)
		s.requireFree(t)

		// Under a hold of one member, all members have its id.
		member := acquire(t, t.Context(), c.lock("y"))
		hold := acquire(t, carry(member), r)
		assert.Equal(t, member.ID(), hold.ID())
		assert.Equal(t, []string{member.ID()}, s.ids("x"))
		release(t, hold)
		assert.Equal(t, []string{member.ID()}, s.ids("y"))
		assert.Empty(t, s.ids("x"))
		release(t, member)
		s.requireFree(t)

		// Under holds of two members with different ids there is no such id.
		x := acquire(t, t.Context(), c.lock("x"))
		y := acquire(t, carry(x), c.lock("y"))
		_, err := r.Acquire(carry(y), terms(), forever)
		require.ErrorIs(t, err, ErrDeadlock)
		release(t, y)
		release(t, x)
		s.requireFree(t)
	})
}

// Each case acquires a red lock of five servers.
func TestRedAcquiresAMajority(t *testing.T) {
	seize := func(s *server) { s.seize("x", "other", 0) }
	down := func(s *server) { s.onEach(func(command) fault { return fault{err: errDown} }) }
	mute := func(s *server) { s.onEach(silent) }
	for _, tt := range []struct {
		name  string
		n     int // servers with a fault
		fault func(*server)
		limit time.Duration
		want  error // nil: acquired
		at    time.Duration
	}{
		{"all answer", 0, nil, forever, nil, 0},
		{"two are held", 2, seize, forever, nil, 0},
		{"two are unreachable", 2, down, forever, nil, 0},
		{"two do not answer", 2, mute, forever, nil, 2 * time.Second}, // the budget of a member
		{"two do not answer before the limit", 2, mute, time.Second, nil, 750 * time.Millisecond},
		{"three are held: a single try", 3, seize, noWait, ErrNotAcquired, 0},
		{"three are held: the limit", 3, seize, time.Second, ErrNotAcquired, time.Second},
		{"three are unreachable", 3, down, forever, errDown, 0},
		{"three do not answer", 3, mute, forever, unanswered(nil), 2 * time.Second},
		{"three do not answer before the limit", 3, mute, time.Second, ErrUnavailable, time.Second + rollbackGrace/2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, _ *server) {
				k := newCluster(t, 5)
				k.each(len(k.servers), (*server).keepLeases)
				began := time.Now()
				k.each(tt.n, tt.fault)
				hold, err := redOf(k.clients).Acquire(t.Context(), terms(), tt.limit)
				switch {
				case tt.want == nil:
					require.NoError(t, err)
					assert.Equal(t, tt.at, time.Since(began))
					assert.GreaterOrEqual(t, k.holders(hold.ID()), 3)
					if tt.limit > 0 {
						assert.Less(t, time.Since(began), tt.limit, "a slow member must not use up the wait")
					}
				case classify(tt.want).InDoubt:
					assert.True(t, classify(err).InDoubt, "%v", err)
				default:
					require.ErrorIs(t, err, tt.want)
				}
				// A failed attempt waits for the releases of what it acquired, within the budget.
				assert.GreaterOrEqual(t, time.Since(began), tt.at)
				assert.LessOrEqual(t, time.Since(began), 2*tt.at)
				k.each(tt.n, func(s *server) { s.resetFaults(); s.forget("x") })
				if hold != nil {
					release(t, hold)
				}
				sleep(time.Minute)
				k.requireFree(t)
			})
		})
	}
}

// Two of five are held, and one is unreachable. It waits, because the holders are to blame.
func TestRedWaitsForHoldersAlthoughAMemberIsUnreachable(t *testing.T) {
	bubble(t, func(t *testing.T, _ *server) {
		k := newCluster(t, 5)
		k.each(2, func(s *server) { s.seize("x", "other", 0) })
		k.servers[2].onEach(func(command) fault { return fault{err: errDown} })
		_, err := redOf(k.clients).Acquire(t.Context(), terms(), time.Second)
		require.ErrorIs(t, err, ErrNotAcquired)
		require.ErrorIs(t, err, errDown)
		k.each(2, func(s *server) { s.forget("x") })
		sleep(time.Second)
		k.requireFree(t)
	})
}

// The client of the joint lock closes. From then on, members on other clients are not renewed.
func TestCloseAbandonsMembersOnOtherClients(t *testing.T) {
	bubble(t, func(t *testing.T, _ *server) {
		k := newCluster(t, 3)
		hold := acquire(t, t.Context(), redOf(k.clients))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, k.clients[0].close(ctx), context.DeadlineExceeded)
		require.ErrorIs(t, context.Cause(carry(hold)), ErrClosed)
		assert.Equal(t, 3, k.holders(hold.ID()))
		sleep(testTTL)
		k.requireFree(t)
	})
}

func TestRedWaitsForAMajorityOfMessages(t *testing.T) {
	bubble(t, func(t *testing.T, _ *server) {
		k := newCluster(t, 3)
		k.each(2, func(s *server) { s.seize("x", "other", 0) })
		call := startAcquire(t, t.Context(), redOf(k.clients))
		sleep(500 * ms)
		attempts := len(k.servers[2].sent("acquire", ""))
		k.servers[0].forget("x")
		k.servers[2].message("x")
		sleep(0)
		assert.Len(t, k.servers[2].sent("acquire", ""), attempts, "one message is no majority")
		k.servers[0].message("x")
		call.wait()
		assert.Less(t, k.servers[0].now(), 800*ms)
		release(t, call.hold)
		k.servers[1].forget("x")
		k.requireFree(t)
	})
}

func TestRedRivalsDoNotBlockEachOther(t *testing.T) {
	bubble(t, func(t *testing.T, _ *server) {
		k := newCluster(t, 3)
		sets := [][]*client{k.clients, k.join(t, "b"), k.join(t, "c")}
		for i, s := range k.servers { // each server gets another rival's command first
			s.onEach(func(cmd command) fault {
				if cmd.op == "acquire" && cmd.client[0] != "abc"[i] {
					return fault{delay: 2 * ms}
				}
				return fault{delay: ms}
			})
		}
		var calls []*call
		for _, clients := range sets {
			calls = append(calls, start(t, func() (*Hold, error) {
				hold := acquire(t, t.Context(), redOf(clients))
				return hold, hold.Release(t.Context())
			}))
		}
		for _, call := range calls {
			call.wait()
		}
		assert.Less(t, k.servers[0].now(), 5*time.Second)
		sleep(time.Second)
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
			bubble(t, func(t *testing.T, _ *server) {
				k := newCluster(t, 5)
				hold := acquire(t, t.Context(), redOf(k.clients))
				k.each(tt.n, func(s *server) { s.onEach(silent) })
				ctx := carry(hold)
				sleep(testTTL - testMargin - ms)
				assert.NoError(t, ctx.Err())
				if !tt.lost {
					require.NoError(t, hold.Check(t.Context()))
					require.NoError(t, hold.Extend(t.Context(), time.Minute, nil))
				} else {
					assert.Equal(t, ms, time.Until(hold.ValidUntil()))
				}
				sleep(5 * time.Minute)
				assert.Equal(t, tt.lost, errors.Is(context.Cause(ctx), ErrLost))
				err := hold.Release(t.Context())
				assert.Equal(t, tt.lost, errors.Is(err, ErrLost), "%v", err)
				k.each(tt.n, (*server).resetFaults)
				sleep(5 * time.Minute)
				k.requireFree(t)
			})
		})
	}
}

func TestRedReleaseWithoutAMajorityOfAnswersGoesOnInTheBackground(t *testing.T) {
	bubble(t, func(t *testing.T, _ *server) {
		k := newCluster(t, 3)
		k.each(len(k.servers), (*server).keepLeases)
		hold := acquire(t, t.Context(), redOf(k.clients))
		k.each(2, func(s *server) { s.script("release", fault{lost: true}, fault{err: errDown}) })
		began := time.Now()
		err := hold.Release(t.Context())
		assert.True(t, classify(err).InDoubt, "%v", err)
		assert.Equal(t, 2*time.Second, time.Since(began), "the budget of a member")
		assert.Equal(t, 2, k.holders(hold.ID()))
		sleep(5 * time.Second)
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
			k.servers[0].seize("x", "other", 10*time.Second+50*ms) // the loss is found after 10 s
		}, 11 * time.Second, 3},
		{"held by another for a while", func(k *cluster) { k.servers[0].seize("x", "other", 20*time.Second) },
			35 * time.Second, 3},
		{"held by another", func(k *cluster) { k.servers[0].seize("x", "other", 0) }, 35 * time.Second, 2},
		{
			"an attempt is not answered", func(k *cluster) { k.servers[0].script("acquire", fault{mute: true}) },
			35 * time.Second, 3,
		},
		{
			"not while too few others confirm", func(k *cluster) {
				k.servers[1].onEach(func(cmd command) fault { return fault{mute: cmd.op == "check"} })
			}, 35 * time.Second, 2,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, _ *server) {
				k := newCluster(t, 3)
				hold := acquire(t, t.Context(), redOf(k.clients))
				k.servers[0].forget("x")
				tt.act(k)
				sleep(tt.sleep)
				assert.NoError(t, carry(hold).Err())
				assert.Equal(t, tt.want, k.holders(hold.ID()))
				if tt.name == "not while too few others confirm" {
					assert.Len(t, k.servers[0].sent("acquire", ""), 1)
				}
				for _, s := range k.servers {
					s.resetFaults()
				}
				if tt.want == 3 { // one more may fail now
					k.servers[1].forget("x")
					sleep(time.Hour)
					assert.NoError(t, carry(hold).Err())
					assert.Equal(t, 3, k.holders(hold.ID()))
				}
				release(t, hold)
				k.servers[0].free("x")
				sleep(time.Minute)
				k.requireFree(t)
			})
		})
	}
}

// The joint hold ends while a member is being retaken: nothing is left.
func TestReleaseDuringARetakeLeavesNothing(t *testing.T) {
	for _, f := range []fault{{reply: 5 * time.Second}, {mute: true}, {delay: 5 * time.Second}, {lost: true,
		copy: 20 * time.Second}} {
		t.Run(fmt.Sprintf("%+v", f), func(t *testing.T) {
			bubble(t, func(t *testing.T, _ *server) {
				k := newCluster(t, 3)
				k.each(len(k.servers), (*server).keepLeases)
				hold := acquire(t, t.Context(), redOf(k.clients))
				k.servers[0].forget("x")
				k.servers[0].script("acquire", f)
				sleep(10*time.Second + 500*ms)
				assert.Len(t, k.servers[0].sent("acquire", ""), 2, "the retake is under way")
				release(t, hold)
				sleep(2 * time.Minute)
				k.requireFree(t)
			})
		})
	}
}

func TestEndOfTheContextIsNoAnswer(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	var v votes
	v.add(ctx, ErrLost)
	assert.Equal(t, 1, v.no)
	cancel(ErrLost) // it was another hold's context
	v.add(ctx, context.Cause(ctx))
	assert.Equal(t, 1, v.no)
	assert.Len(t, v.failed, 1)
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
		{"too few: not held", []error{nil, ErrNotHeld, ErrLost}, 2, ErrNotHeld},
		{"too few: not acquired", []error{ErrNotAcquired, ErrNotAcquired, fail}, 2, ErrNotHeld},
		{"errors", []error{nil, fail, ErrNotHeld}, 2, fail},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				c := s.client(t, "a")
				err := c.AskAll(t.Context(), len(tt.answers), tt.need, 0, func(i int) error { return tt.answers[i] })
				require.ErrorIs(t, err, tt.want)
			})
		})
	}
	t.Run("no answer within the limit", func(t *testing.T) {
		bubble(t, func(t *testing.T, s *server) {
			c := s.client(t, "a")
			err := c.AskAll(t.Context(), 3, 3, time.Second,
				func(i int) error { time.Sleep(time.Duration(i) * time.Minute); return nil })
			require.ErrorIs(t, err, errBudget)
			assert.Equal(t, time.Second, s.now())
		})
	})
	t.Run("its context ends", func(t *testing.T) {
		bubble(t, func(t *testing.T, s *server) {
			c := s.client(t, "a")
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, ErrLost)
			defer cancel()
			err := c.AskAll(ctx, 3, 2, time.Minute, func(i int) error { time.Sleep(time.Duration(i) * time.Hour); return nil })
			require.ErrorIs(t, err, ErrLost)
			require.NotErrorIs(t, err, ErrNotHeld, "the loss of another hold is no answer")
		})
	})
}

// A member that was acquired after the attempt was decided is released. How its hold ends says nothing
// about the joint hold.
func TestMemberThatNeverJoinedDoesNotCountAgainstTheJointHold(t *testing.T) {
	bubble(t, func(t *testing.T, s *server) {
		c := s.client(t, "a")
		hold := acquire(t, t.Context(), c.multiOf("x", "y"))
		o := hold.held.(*JointOwnership)
		m := c.lock("late")
		q := m.NewRequest(terms())
		q.group = o
		late, err := m.acquireOutermost(t.Context(), q, nil)
		require.NoError(t, err)
		require.False(t, o.add(late), "the attempt is decided")
		release(t, late)
		require.NoError(t, carry(hold).Err())
		require.NoError(t, hold.Check(t.Context()))
		release(t, hold)
		s.requireFree(t)
	})
}
