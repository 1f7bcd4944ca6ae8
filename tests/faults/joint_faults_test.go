package faults

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// TestJointHeldDoesNotIncludeTheWait checks that Event.Held starts when all members that are needed
// are held.
func TestJointHeldDoesNotIncludeTheWait(t *testing.T) {
	t.Parallel()
	t.Run("multi", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { // else an attempt may be under way when the lock becomes free
			s := redistest.Embedded(t)
			x := fixture.OnJoint(t, s, "multi")
			rival := fixture.Acquire(t, t.Context(), x.Other(t).Lock(x.Names[0]))
			waiting := fixture.StartAcquire(t.Context(), x.L)
			fixture.AwaitWaiter(t, s, x.Names[0])
			time.Sleep(10 * time.Second)
			released := time.Now()
			fixture.Release(t, rival)
			fixture.Release(t, fixture.AwaitHold(t, waiting))
			require.LessOrEqual(t, x.Events.Await(t, primitives.EventReleased).Held, time.Since(released))
		})
	})
	redistest.RunBubble(t, "red", func(t *testing.T) {
		q := fixture.EmbeddedQuorum(t, 3)
		events := &fixture.Recorder{}
		l := q.Lock(q.PatientClients(t, events.Option()), fixture.BudgetTTL)
		q.Proxies[1].BlackHole(true)
		q.Proxies[2].BlackHole(true)
		began := time.Now()
		time.AfterFunc(fixture.Budget/2, func() { q.Proxies[1].Heal(); q.Proxies[1].Reset() })
		hold := fixture.Acquire(t, t.Context(), l)
		acquired := time.Now()
		fixture.Release(t, hold)
		require.GreaterOrEqual(t, acquired.Sub(began), fixture.Budget/2, "the majority was waited for")
		require.Equal(t, time.Since(acquired), events.Await(t, primitives.EventReleased).Held)
	})
}

// TestJointHoldIsLostWithAPartThatTheUserEnds releases or detaches the hold of one member. Another
// client can acquire that member then.
func TestJointHoldIsLostWithAPartThatTheUserEnds(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, part *primitives.Hold){
		"released": func(t *testing.T, part *primitives.Hold) { fixture.Release(t, part) },
		"detached": func(t *testing.T, part *primitives.Hold) { require.NotEmpty(t, part.Detach()) },
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				for _, kind := range []string{"multi", "red"} {
					t.Run(kind, func(t *testing.T) {
						x := fixture.OnJoint(t, s, kind)
						hold := x.Acquire(t, t.Context())
						ctx := hold.Context()
						part := func(i int) *primitives.Hold { return x.C.Lock(x.Names[i]).HoldFrom(ctx) }
						end(t, part(0))
						if kind == "red" {
							fixture.RequireLive(t, ctx)
							require.NoError(t, hold.Check(t.Context()))
							end(t, part(1))
						}
						require.ErrorIs(t, context.Cause(ctx), primitives.ErrLost, "lost by the time the part is free")
						require.ErrorIs(t, hold.Check(t.Context()), primitives.ErrLost)
						require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
						require.Empty(t, fixture.Fields(t, s, x.Names[2]), "the other members are released")
						x.Events.Await(t, primitives.EventLost)
						require.Len(t, x.Events.All(primitives.EventLost), 1)
						x.Rdb.Del(t.Context(), x.Names...)
					})
				}
			})
		})
	}
}

// TestJointReleaseAndDetachReportNoLoss: they end the parts themselves.
func TestJointReleaseAndDetachReportNoLoss(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, kind := range []string{"multi", "red"} {
			t.Run(kind, func(t *testing.T) {
				x := fixture.OnJoint(t, s, kind)
				hold := x.Acquire(t, t.Context())
				fixture.Release(t, hold)
				require.ErrorIs(t, context.Cause(hold.Context()), primitives.ErrReleased)
				hold = x.Acquire(t, t.Context())
				require.NotEmpty(t, hold.Detach())
				require.ErrorIs(t, context.Cause(hold.Context()), primitives.ErrReleased)
				require.NoError(t, x.C.Close(t.Context()))
				require.Empty(t, x.Events.All(primitives.EventLost))
				x.Rdb.Del(t.Context(), x.Names...)
			})
		}
	})
}

// A joint hold that was lost still has members. Detach leaves them to their leases: a Release after
// it does nothing, and they must not be renewed for ever.
func TestDetachOfALostJointHoldLeavesItsMembers(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, kind := range []string{"multi", "red"} {
			t.Run(kind, func(t *testing.T) {
				x := fixture.OnJoint(t, s, kind)
				hold := x.Acquire(t, t.Context())
				left := x.C.Lock(x.Names[2]).HoldFrom(hold.Context())
				x.Rdb.Del(t.Context(), x.Names[:2]...)
				require.ErrorIs(t, hold.Check(t.Context()), primitives.ErrLost)
				fixture.RequireLive(t, left.Context())
				require.Empty(t, hold.Detach())
				fixture.RequireEnds(t, left.Context(), primitives.ErrReleased)
				require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrReleased)
				x.Rdb.Del(t.Context(), x.Names...)
			})
		}
	})
}

// longTimeouts makes go-redis wait for replies for longer than the tests do.
func longTimeouts(o *redis.Options) { o.ReadTimeout, o.MaxRetries = 2*time.Second, -1 }

// awaitRelease returns when p has recorded a release, and sends no further one. p must record.
func awaitRelease(t *testing.T, p *redistest.Proxy) {
	t.Helper()
	redistest.WaitFor(t, fixture.Soon, func() bool {
		return slices.ContainsFunc(p.Commands(), func(c redistest.Command) bool { return fixture.Releases(c.Args) })
	}, "a release is sent")
	fixture.AwaitQuiet(t, p, fixture.Releases)
}

// TestRedLatePartDoesNotCountAgainstTheQuorum delays a member's reply until the redlock is
// acquired, and deletes that member. The hold does not depend on it. This is in fake time, because
// a busy machine would make the other members late, too.
func TestRedLatePartDoesNotCountAgainstTheQuorum(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := fixture.EmbeddedQuorum(t, 3)
		var clients []*primitives.Client
		for _, p := range q.Proxies {
			clients = append(clients, fixture.NewClient(t, p.Client(t, longTimeouts)))
		}
		l := q.Lock(clients, fixture.BudgetTTL)
		fixture.Release(t, fixture.Acquire(t, t.Context(), l)) // loads the scripts
		q.Proxies[2].Record()
		deliver := q.Proxies[2].HoldReplies(fixture.Script)
		hold := fixture.Acquire(t, t.Context(), l)
		q.Servers[2].Client(t).FlushAll(t.Context())
		deliver()
		redistest.WaitFor(t, fixture.Soon, func() bool {
			return clients[2].Lock(q.Name).HoldFrom(hold.Context()) != nil
		}, "the late member joins")
		fixture.RequireLive(t, hold.Context())
		require.NoError(t, hold.Check(t.Context()))
		fixture.RequireLive(t, hold.Context())
		fixture.Release(t, hold)
		q.RequireFree(t, fixture.All(3)...)
	})
}

// TestRedLateRollbackLeavesANestedHoldItsMember delays the rollback of a member that replied too
// late. In the meantime its lease ends, and a nested acquisition takes the member with the same id.
// The rollback must not free it. This is in fake time, because a busy machine would make the other
// members late, too, and the next renewal takes the member again.
func TestRedLateRollbackLeavesANestedHoldItsMember(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := fixture.EmbeddedQuorum(t, 3)
		l := q.On(t, fixture.BudgetTTL)
		fixture.Release(t, fixture.Acquire(t, t.Context(), l)) // loads the scripts
		q.Proxies[2].DropCommands(1000, fixture.Releases)
		q.Proxies[2].Record()
		deliver := q.Proxies[2].HoldReplies(fixture.Script)
		outer := fixture.Acquire(t, t.Context(), l)
		require.Equal(t, map[string]string{outer.ID(): "1"}, fixture.Fields(t, q.Servers[2], q.Name),
			"acquired, but the reply is late")
		awaitRelease(t, q.Proxies[2]) // which is dropped: the redlock has given up the member
		deliver()
		require.NoError(t, q.Servers[2].Client(t).Del(t.Context(), q.Name).Err()) // as if its lease were over

		inner := fixture.Acquire(t, outer.Context(), l)
		redistest.WaitFor(t, fixture.Soon, func() bool { return q.Has(t, 2, outer.ID(), "1") },
			"the nested hold has the member")
		q.Proxies[2].Record()
		q.Proxies[2].Heal()
		awaitRelease(t, q.Proxies[2])
		require.Equal(t, map[string]string{outer.ID(): "1"}, fixture.Fields(t, q.Servers[2], q.Name),
			"the nested hold still has the member")
		fixture.Release(t, inner, outer)
		q.RequireFree(t, fixture.All(3)...)
	})
}

// returnGrace is how long after the end of its context or wait a call may return (C5).
const returnGrace = 50 * time.Millisecond

// silentMember is a case of a joint lock with members that do not answer.
type silentMember struct {
	name      string
	silent    []int // the members
	connected bool  // the connections are made before the silence
}

// TestJointAcquireReturnsInTimeWhenAMemberIsSilent checks in fake time that a silent member does
// not delay an acquisition beyond the end of its context or its wait, and a redlock not at all.
func TestJointAcquireReturnsInTimeWhenAMemberIsSilent(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"multi", "red"} {
		for _, tt := range []silentMember{
			{"the first", []int{0}, true},
			{"the last", []int{2}, true},
			{"the last, from the first dial on", []int{2}, false},
			{"a majority", []int{1, 2}, true},
		} {
			for _, by := range []string{"ctx", "cancel", "wait"} {
				redistest.RunBubble(t, kind+", "+tt.name+", by "+by, func(t *testing.T) { tt.acquire(t, kind, by) })
			}
		}
	}
}

// acquire makes an acquisition. by says what ends it: the deadline of its context, a cancellation
// or its wait.
func (tt silentMember) acquire(t *testing.T, kind, by string) {
	const limit = 300 * time.Millisecond
	q := fixture.QuorumOf(t, redistest.Embedded(t), redistest.Embedded(t), redistest.Embedded(t))
	var locks []*primitives.Lock
	for i, p := range q.Proxies {
		client := fixture.NewClient(t, p.Client(t, longTimeouts, func(o *redis.Options) {
			o.WriteTimeout, o.DialTimeout, o.PoolTimeout, o.MaxRetries = 2*time.Second, 2*time.Second, 2*time.Second, 1
		}))
		locks = append(locks, client.Lock(q.Name+strconv.Itoa(i)))
	}
	l := primitives.NewMultiLock(locks)
	if kind == "red" {
		l = primitives.NewRedLock(locks)
	}
	if tt.connected {
		fixture.Release(t, fixture.Acquire(t, t.Context(), l))
	}
	for _, i := range tt.silent {
		q.Proxies[i].BlackHole(true)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var opts []primitives.Option
	switch by {
	case "ctx":
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	case "cancel":
		time.AfterFunc(limit, cancel)
	case "wait":
		opts = append(opts, primitives.WithWait(limit))
	}
	began := time.Now()
	hold, err := l.Acquire(ctx, opts...)
	took := time.Since(began)
	t.Logf("returned %v after its end: %v", took-limit, err)
	require.LessOrEqual(t, took, limit+returnGrace)
	if kind == "red" && len(tt.silent) <= 1 {
		require.NoError(t, err, "a majority has answered")
		require.Less(t, took, limit/2)
		fixture.Release(t, hold)
	} else {
		require.ErrorIs(t, err, primitives.ErrUnavailable)
		require.NotErrorIs(t, err, primitives.ErrNotAcquired)
		requireEndedBy(t, err, by)
	}
	for i := range q.Servers {
		if !slices.Contains(tt.silent, i) {
			require.Empty(t, fixture.Fields(t, q.Servers[i], q.Name+strconv.Itoa(i)), "released by the time it returns")
		}
	}
	for _, i := range tt.silent {
		q.Proxies[i].Recover() // or the client would wait for a reply
	}
	for i := range q.Servers {
		fixture.RequireClean(t, q.Servers[i], q.Name)
	}
}

// requireEndedBy requires the error of an acquisition that was ended in that way.
func requireEndedBy(t *testing.T, err error, by string) {
	t.Helper()
	switch by {
	case "ctx":
		require.ErrorIs(t, err, context.DeadlineExceeded)
	case "cancel":
		require.ErrorIs(t, err, context.Canceled)
	default:
		require.NotErrorIs(t, err, context.DeadlineExceeded)
	}
}

// TestJointCallsEndWithTheirContextIfAMemberIsSilent makes calls on a joint hold, and calls by id,
// in fake time.
func TestJointCallsEndWithTheirContextIfAMemberIsSilent(t *testing.T) {
	t.Parallel()
	type call = func(ctx context.Context, l *primitives.Lock, hold *primitives.Hold) error
	for name, call := range map[string]call{
		"check": func(ctx context.Context, _ *primitives.Lock, hold *primitives.Hold) error { return hold.Check(ctx) },
		"extend": func(ctx context.Context, _ *primitives.Lock, hold *primitives.Hold) error {
			return hold.Extend(ctx, time.Minute)
		},
		"release id": func(ctx context.Context, l *primitives.Lock, _ *primitives.Hold) error {
			return l.ReleaseID(ctx, "nobody")
		},
		"adopt": func(ctx context.Context, l *primitives.Lock, _ *primitives.Hold) error {
			_, err := l.Adopt(ctx, "nobody")
			return err
		},
	} {
		for _, kind := range []string{"multi", "red"} {
			redistest.RunBubble(t, kind+"/"+name, func(t *testing.T) { jointCallWhenAMemberIsSilent(t, kind, call) })
		}
	}
}

func jointCallWhenAMemberIsSilent(
	t *testing.T, kind string, call func(ctx context.Context, l *primitives.Lock, hold *primitives.Hold) error,
) {
	const limit = 300 * time.Millisecond
	x := fixture.OnJoint(t, redistest.Embedded(t), kind)
	p := x.S.Proxy(t)
	slow := fixture.NewClient(t, p.Client(t, longTimeouts))
	locks := x.Locks(x.C)
	locks[0], locks[1] = slow.Lock(locks[0].Name()), slow.Lock(locks[1].Name())
	l := x.Join(locks)
	hold := fixture.Acquire(t, t.Context(), l)
	require.NoError(t, hold.Check(t.Context()))
	p.BlackHole(true)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	began := time.Now()
	err := call(ctx, l, hold)
	took := time.Since(began)
	t.Logf("returned %v after the end of its context: %v", took-limit, err)
	if !errors.Is(err, primitives.ErrNotHeld) { // a multilock needs one reply only
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	require.LessOrEqual(t, took, limit+returnGrace)
	fixture.RequireLive(t, hold.Context())
	p.Recover()
	fixture.Release(t, hold)
	fixture.RequireClean(t, x.S, x.Base)
}

// TestJointCallWithTheContextOfALostHoldIsNoLoss calls Check with a context whose cause is ErrLost.
// That says nothing about the checked hold.
func TestJointCallWithTheContextOfALostHoldIsNoLoss(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	for _, kind := range []string{"multi", "red"} {
		t.Run(kind, func(t *testing.T) {
			x := fixture.OnJoint(t, s, kind)
			p := s.Proxy(t)
			slow := fixture.NewClient(t, p.Client(t, longTimeouts))
			hold := fixture.Acquire(t, t.Context(), x.On(slow))
			lost := fixture.Acquire(t, t.Context(), x.C.Lock(x.Base))
			ctx := lost.Context()
			p.BlackHole(true)
			checked := fixture.Go(func() error { return hold.Check(ctx) })
			require.NoError(t, fixture.ErrOf(x.Other(t).Lock(x.Base).ForceRelease(t.Context())))
			require.ErrorIs(t, lost.Check(t.Context()), primitives.ErrLost)
			require.ErrorIs(t, <-checked, primitives.ErrLost, "the cause of the context")
			fixture.RequireLive(t, hold.Context())
			p.Recover()
			require.NoError(t, hold.Check(t.Context()))
			fixture.Release(t, hold)
			fixture.RequireClean(t, s, x.Base)
		})
	}
}

// A redlock whose wait has no limit has servers that refuse for the moment. It repeats its
// attempts on them for the budget of a member, and not for the command timeout. (A try repeats them
// once: TestC7TryEndsWithTheAnswer.)
func TestRedLockRidesOutRefusalsForTheBudgetOfAMember(t *testing.T) {
	t.Parallel()
	q := fixture.QuorumOf(t, redistest.Miniredis(t), redistest.Miniredis(t), redistest.Miniredis(t))
	var attempts atomic.Int32
	for _, s := range q.Servers[:2] {
		s.Mini().Server().SetPreHook(func(peer *server.Peer, command string, _ ...string) bool {
			isScript := strings.HasPrefix(strings.ToLower(command), "eval")
			if isScript {
				attempts.Add(1)
				peer.WriteError("TRYAGAIN later")
			}
			return isScript
		})
	}
	began := time.Now()
	_, err := q.Lock(q.PatientClients(t)).Acquire(t.Context())
	require.ErrorIs(t, err, primitives.ErrUnavailable)
	require.NotErrorIs(t, err, primitives.ErrNotAcquired)
	took := time.Since(began)
	require.GreaterOrEqual(t, took, 2*time.Second, "the budget")
	require.Less(t, took, 40*time.Second)
	require.Greater(t, attempts.Load(), int32(2*3), "more than the usual repetitions")
	for _, s := range q.Servers {
		s.Mini().Server().SetPreHook(nil)
	}
	q.RequireFree(t, fixture.All(3)...)
}

// Nothing is sent while all servers refuse connections. So the outcome of each call is known when
// its context ends, and the error names the servers and says what each of them met.
func TestJointCallsWithoutAConnectionHaveAKnownOutcome(t *testing.T) {
	t.Parallel()
	for _, k := range kinds.Joints() {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			q := fixture.QuorumOf(t, redistest.Redis(t), redistest.Redis(t), redistest.Redis(t))
			var clients []*primitives.Client
			for _, p := range q.Proxies {
				clients = append(clients, fixture.NewClient(t, p.Client(t))) // they repeat for longer than the calls last
			}
			l := k.Over(clients, q.Name).(*primitives.Lock)
			hold := fixture.Acquire(t, t.Context(), l, primitives.WithWatchdog(15*time.Second)) // a budget of 1.5 s
			for _, p := range q.Proxies {
				p.Cut()
			}
			calls := map[string]func(ctx context.Context) error{
				"Check":     hold.Check,
				"Extend":    func(ctx context.Context) error { return hold.Extend(ctx, time.Minute) },
				"ReleaseID": func(ctx context.Context) error { return l.ReleaseID(ctx, hold.ID()) },
				"Adopt":     func(ctx context.Context) error { return fixture.ErrOf(l.Adopt(ctx, hold.ID())) },
			}
			known := func(err error) bool {
				says := errors.Is(err, primitives.ErrUnavailable) && errors.Is(err, syscall.ECONNREFUSED) &&
					!errors.Is(err, primitives.ErrOutcomeUnknown)
				for _, p := range q.Proxies[:2] {
					says = says && strings.Contains(err.Error(), p.Addr())
				}
				return says
			}
			for name, call := range calls {
				// A busy machine may run the members' goroutines too late for one call, but not for
				// all.
				redistest.WaitFor(t, fixture.Soon, func() bool {
					ctx, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
					defer cancel()
					err := call(ctx)
					require.ErrorIs(t, err, context.DeadlineExceeded, name)
					return known(err)
				}, name+" has a known outcome")
			}
			err := calls["Check"](t.Context())
			require.True(t, known(err), "Check without a limit: %v", err)
		})
	}
}

// An attempt ends when too many members have failed. Its error does not say that another member has
// used up its time.
func TestRedLockDoesNotBlameAMemberThatItDoesNotAwait(t *testing.T) {
	t.Parallel()
	q := fixture.NewQuorum(t, 3)
	l := q.Lock(q.PatientClients(t))
	fixture.Release(t, fixture.Acquire(t, t.Context(), l))
	for _, s := range q.Servers[:2] {
		require.NoError(t, s.Client(t).ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
	}
	release := q.Proxies[2].HoldReplies(fixture.Script)
	defer release()
	_, err := l.TryAcquire(t.Context())
	require.ErrorContains(t, err, "NOREPLICAS")
	require.NotContains(t, err.Error(), "budget")
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
}

// C7: a takeover of a joint lock at a silent server takes no longer than a command. Nobody is told
// of it, because nothing was taken over.
func TestTakeoverOfAJointLockAtASilentServerEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = time.Second
		p := redistest.Embedded(t).Proxy(t)
		c := fixture.NewClient(t, p.Client(t), primitives.WithCommandTimeout(limit))
		l := primitives.NewMultiLock([]*primitives.Lock{c.Lock("a"), c.Lock("b")})
		hold := fixture.Acquire(t, t.Context(), l)
		p.BlackHole(true)
		for name, call := range map[string]func() error{
			"Adopt":     func() error { return fixture.ErrOf(l.Adopt(t.Context(), hold.ID())) },
			"ReleaseID": func() error { return l.ReleaseID(t.Context(), hold.ID()) },
		} {
			began := time.Now()
			require.ErrorIs(t, call(), primitives.ErrUnavailable, name)
			require.LessOrEqual(t, time.Since(began), limit+limit/50, name)
		}
		p.Recover()
		fixture.Release(t, hold)
	})
}

// A redlock is adopted beside a silent member within the budget of a member: only the replacement
// of the id waits for it.
func TestAdoptionOfARedLockWaitsForASilentMemberOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 10 * time.Second
		const budget = ttl / 10
		var locks []*primitives.Lock
		var proxies []*redistest.Proxy
		for range 3 {
			p := redistest.Embedded(t).Proxy(t)
			proxies = append(proxies, p)
			locks = append(locks, fixture.NewClient(t, p.Client(t)).Lock("red"))
		}
		l := primitives.NewRedLock(locks, primitives.WithWatchdog(ttl))
		id := fixture.Acquire(t, t.Context(), l).Detach()
		proxies[2].BlackHole(true)
		began := time.Now()
		adopted := fixture.Adopt(t, l, id)
		require.LessOrEqual(t, time.Since(began), budget+budget/20)
		proxies[2].Recover()
		fixture.Release(t, adopted)
	})
}
