package primitives_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// Event.Held of a joint lock starts when all members that it needs are held.
func TestJointHeldDoesNotIncludeTheWait(t *testing.T) {
	t.Run("multi", func(t *testing.T) {
		redistest.Each(t, func(t *testing.T, s *redistest.Server) {
			x := onJoint(t, s, "multi")
			rival := acquire(t, t.Context(), x.other(t).Lock(x.names[0]))
			waiting := start(func() (*primitives.Hold, error) { return x.l.Acquire(t.Context()) })
			awaitWaiter(t, s, x.names[0])
			free := time.Now()
			release(t, rival)
			r := await(t, waiting)
			require.NoError(t, r.err)
			release(t, r.hold)
			require.LessOrEqual(t, x.heard.await(t, primitives.EventReleased).Held, time.Since(free))
		})
	})
	t.Run("red", func(t *testing.T) {
		q := newQuorum(t, 3)
		heard := &recorder{}
		l := q.lock(q.clients(t, heard.option()), ttl)
		q.proxies[2].BlackHole(true) // costs its budget
		release(t, acquire(t, t.Context(), l))
		require.Less(t, heard.await(t, primitives.EventReleased).Held, budget)
	})
}

// A user can release or detach the hold of one member. Another client can take that member then.
func TestJointHoldIsLostWithAPartThatTheUserEnds(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, part *primitives.Hold){
		"released": func(t *testing.T, part *primitives.Hold) { release(t, part) },
		"detached": func(t *testing.T, part *primitives.Hold) { require.NotEmpty(t, part.Detach()) },
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				for _, kind := range []string{"multi", "red"} {
					t.Run(kind, func(t *testing.T) {
						x := onJoint(t, s, kind)
						hold := acquire(t, t.Context(), x.l)
						ctx := hold.Context()
						part := func(i int) *primitives.Hold { return x.c.Lock(x.names[i]).HoldFrom(ctx) }
						end(t, part(0))
						if kind == "red" {
							requireLive(t, ctx)
							require.NoError(t, hold.Check(t.Context()))
							end(t, part(1))
						}
						require.ErrorIs(t, context.Cause(ctx), primitives.ErrLost, "by the time the part is free")
						require.ErrorIs(t, hold.Check(t.Context()), primitives.ErrLost)
						require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
						require.Empty(t, fields(t, s, x.names[2]), "the rest is given back")
						x.heard.await(t, primitives.EventLost)
						require.Len(t, x.heard.all(primitives.EventLost), 1)
						x.rdb.Del(t.Context(), x.names...)
					})
				}
			})
		})
	}
}

// The release of a joint hold ends its parts itself: that is no loss.
func TestJointReleaseAndDetachAreNoLoss(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, kind := range []string{"multi", "red"} {
			t.Run(kind, func(t *testing.T) {
				x := onJoint(t, s, kind)
				hold := acquire(t, t.Context(), x.l)
				release(t, hold)
				require.ErrorIs(t, context.Cause(hold.Context()), primitives.ErrReleased)
				hold = acquire(t, t.Context(), x.l)
				require.NotEmpty(t, hold.Detach())
				require.ErrorIs(t, context.Cause(hold.Context()), primitives.ErrReleased)
				require.NoError(t, x.c.Close(t.Context()))
				require.Empty(t, x.heard.all(primitives.EventLost))
				x.rdb.Del(t.Context(), x.names...)
			})
		}
	})
}

// slowToGiveUp has the client itself wait for answers for longer than the tests do.
func slowToGiveUp(o *redis.Options) { o.ReadTimeout, o.MaxRetries = 2*time.Second, -1 }

// awaitNoAsking returns once no red lock asks a member any more.
func awaitNoAsking(t *testing.T) {
	t.Helper()
	redistest.WaitFor(t, soon, func() bool {
		return !slices.ContainsFunc(running(), func(stack string) bool { return strings.Contains(stack, ").askAll") })
	}, "no member is asked")
}

// A member that answers after the red lock was granted is none of its parts, and does not count when it proves lost.
func TestRedLatePartDoesNotCountAgainstTheQuorum(t *testing.T) {
	q := newQuorum(t, 3)
	var clients []*primitives.Client
	for _, p := range q.proxies {
		clients = append(clients, newClient(t, p.Client(t, slowToGiveUp)))
	}
	l := q.lock(clients, ttl)
	release(t, acquire(t, t.Context(), l)) // the scripts are known
	answer := q.proxies[2].HoldReplies(script)
	hold := acquire(t, t.Context(), l)
	q.servers[2].Client(t).FlushAll(t.Context())
	answer()
	awaitNoAsking(t)
	requireLive(t, hold.Context())
	require.NoError(t, hold.Check(t.Context()))
	release(t, hold)
	q.requireFree(t, all(3)...)
}

// givesBack matches the scripts that give a lock back. They name the owner and then the publish command, those that take it the
// TTL between the two.
func givesBack(args []string) bool {
	at := slices.Index(args, "publish")
	if at < 0 || !script(args) {
		return false
	}
	_, err := strconv.Atoi(args[at-1])
	return err != nil
}

// A red lock gives back what a slow member granted too late. Meanwhile the lease of that grant is over, and a nested acquisition
// has taken the member under the same id. The late release must leave it the member.
func TestRedLateUndoLeavesANestedHoldItsMember(t *testing.T) {
	q := newQuorum(t, 3)
	l := q.on(t, ttl)
	release(t, acquire(t, t.Context(), l)) // the scripts are known
	q.proxies[2].DropCommands(1000, givesBack)
	answer := q.proxies[2].HoldReplies(script)
	outer := acquire(t, t.Context(), l)
	require.Equal(t, map[string]string{outer.ID(): "1"}, fields(t, q.servers[2], q.name), "taken, but the answer is late")
	awaitNoAsking(t)
	answer()
	require.NoError(t, q.servers[2].Client(t).Del(t.Context(), q.name).Err()) // as if its lease were over

	inner := acquire(t, outer.Context(), l)
	require.Equal(t, map[string]string{outer.ID(): "1"}, fields(t, q.servers[2], q.name), "the nested hold has it")
	q.proxies[2].Record()
	q.proxies[2].Heal()
	redistest.WaitFor(t, soon, func() bool {
		for _, c := range q.proxies[2].Commands() {
			if givesBack(c.Args) {
				return !slices.ContainsFunc(running(), func(stack string) bool { return strings.Contains(stack, ".retry(") })
			}
		}
		return false
	}, "the late grant is given back")
	require.Equal(t, map[string]string{outer.ID(): "1"}, fields(t, q.servers[2], q.name), "the nested hold still has it")
	release(t, inner)
	release(t, outer)
	q.requireFree(t, all(3)...)
}

// prompt is how long after the end of its ctx or its wait an acquisition may return.
func prompt() time.Duration {
	if raced {
		return 150 * time.Millisecond
	}
	return 50 * time.Millisecond
}

// A member that does not answer must not keep an acquisition beyond the end of its ctx or its wait.
func TestJointAcquireReturnsInTimeWhenAMemberIsSilent(t *testing.T) {
	const limit = 300 * time.Millisecond
	silent := func(o *redis.Options) { // the client itself waits for long
		o.ReadTimeout, o.WriteTimeout, o.DialTimeout, o.PoolTimeout, o.MaxRetries = 2*time.Second, 2*time.Second, 2*time.Second, 2*time.Second, 1
	}
	for _, kind := range []string{"multi", "red"} {
		for _, tt := range []struct {
			name  string
			out   []int // members that are silent
			ready bool  // they were not when the connections were made
		}{
			{"the first", []int{0}, true},
			{"the last", []int{2}, true},
			{"the last, from the first dial on", []int{2}, false},
			{"a majority", []int{1, 2}, true},
		} {
			for _, by := range []string{"ctx", "cancel", "wait"} {
				once := func(t *testing.T) (late time.Duration) {
					q := newQuorum(t, 3)
					var locks []*primitives.Lock
					for i, p := range q.proxies {
						locks = append(locks, newClient(t, p.Client(t, silent)).Lock(q.name+strconv.Itoa(i)))
					}
					join := primitives.NewMultiLock
					if kind == "red" {
						join = primitives.NewRedLock
					}
					l := join(locks)
					if tt.ready {
						release(t, acquire(t, t.Context(), l))
					}
					for _, i := range tt.out {
						q.proxies[i].BlackHole(true)
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
					answering := 3 - len(tt.out)
					if kind == "red" && by == "wait" && answering >= 2 {
						require.NoError(t, err, "a majority was had within the wait")
						require.NoError(t, hold.Release(t.Context()))
					} else {
						require.ErrorIs(t, err, primitives.ErrNotAcquired)
						switch by {
						case "ctx":
							require.ErrorIs(t, err, context.DeadlineExceeded)
						case "cancel":
							require.ErrorIs(t, err, context.Canceled)
						default:
							require.NotErrorIs(t, err, context.DeadlineExceeded)
						}
					}
					for i := range q.servers {
						if !slices.Contains(tt.out, i) {
							require.Empty(t, fields(t, q.servers[i], q.name+strconv.Itoa(i)), "given back by then")
						}
					}
					for _, i := range tt.out {
						q.proxies[i].Heal()
						q.proxies[i].Reset() // or the client would wait for an answer
					}
					for i := range q.servers {
						requireClean(t, q.servers[i], q.name)
					}
					return took - limit
				}
				t.Run(kind+", "+tt.name+", by "+by, func(t *testing.T) {
					// A busy machine may be late by itself, but not always.
					for range 3 {
						if once(t) < prompt() {
							return
						}
					}
					require.FailNow(t, "too late each time")
				})
			}
		}
	}
}

// Calls on a joint hold, and calls by id, return when their ctx ends, although a member is silent.
func TestJointCallsReturnWithTheirContextWhenAMemberIsSilent(t *testing.T) {
	const limit = 300 * time.Millisecond
	s := redistest.Redis(t)
	for _, kind := range []string{"multi", "red"} {
		t.Run(kind, func(t *testing.T) {
			x := onJoint(t, s, kind)
			p := s.Proxy(t)
			far := newClient(t, p.Client(t, slowToGiveUp))
			locks := x.locks(x.c)
			locks[0], locks[1] = far.Lock(locks[0].Name()), far.Lock(locks[1].Name())
			l := x.join(locks)
			hold := acquire(t, t.Context(), l)
			require.NoError(t, hold.Check(t.Context()))
			for name, call := range map[string]func(ctx context.Context) error{
				"check":      hold.Check,
				"extend":     func(ctx context.Context) error { return hold.Extend(ctx, time.Minute) },
				"release id": func(ctx context.Context) error { return l.ReleaseID(ctx, "nobody") },
				"adopt":      func(ctx context.Context) error { _, err := l.Adopt(ctx, "nobody"); return err },
			} {
				t.Run(name, func(t *testing.T) {
					p.BlackHole(true)
					defer func() { p.Heal(); p.Reset() }()
					ctx, cancel := context.WithTimeout(t.Context(), limit)
					defer cancel()
					began := time.Now()
					err := call(ctx)
					took := time.Since(began)
					t.Logf("returned %v after its end: %v", took-limit, err)
					if !errors.Is(err, primitives.ErrNotHeld) { // one answer is enough for a multilock to know
						require.ErrorIs(t, err, context.DeadlineExceeded)
					}
					require.Less(t, took, limit+prompt())
					requireLive(t, hold.Context())
				})
			}
			release(t, hold)
			requireClean(t, s, x.base)
		})
	}
}

// The context of a lost hold ends with cause ErrLost. A call with that context learns nothing about another hold.
func TestJointCallWithTheContextOfALostHoldIsNoLoss(t *testing.T) {
	s := redistest.Redis(t)
	for _, kind := range []string{"multi", "red"} {
		t.Run(kind, func(t *testing.T) {
			x := onJoint(t, s, kind)
			p := s.Proxy(t)
			far := newClient(t, p.Client(t, slowToGiveUp))
			hold := acquire(t, t.Context(), x.on(far))
			lost := acquire(t, t.Context(), x.c.Lock(x.base))
			ctx := lost.Context()
			p.BlackHole(true)
			checked := make(chan error, 1)
			go func() { checked <- hold.Check(ctx) }()
			_, err := x.other(t).Lock(x.base).ForceRelease(t.Context())
			require.NoError(t, err)
			require.ErrorIs(t, lost.Check(t.Context()), primitives.ErrLost)
			require.ErrorIs(t, <-checked, primitives.ErrLost, "the cause of ctx")
			requireLive(t, hold.Context())
			p.Heal()
			p.Reset()
			require.NoError(t, hold.Check(t.Context()))
			release(t, hold)
			requireClean(t, s, x.base)
		})
	}
}
