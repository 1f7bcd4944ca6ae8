package primitives_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// lockTest is the fixture of most tests of the plain lock: a server, a client with its events, and
// a lock.
type lockTest struct {
	s     *redistest.Server
	c     *primitives.Client
	l     *primitives.Lock
	name  string
	heard *recorder
	rdb   *redis.Client
}

// eachLock runs f on both servers, each time with a new client and lock. When f returns, no key and
// no channel of the lock may be left.
func eachLock(t *testing.T, f func(t *testing.T, x *lockTest)) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		x := onLock(t, s)
		f(t, x)
		requireClean(t, s, x.name)
	})
}

// onLock returns a fixture on s.
func onLock(t *testing.T, s *redistest.Server, opts ...primitives.ClientOption) *lockTest {
	// The suffix keeps one name from being a prefix of another, which requireClean relies on.
	x := &lockTest{s: s, name: redistest.Name(t) + ".", heard: &recorder{}, rdb: s.Client(t)}
	x.c = newClient(t, s.Client(t), append([]primitives.ClientOption{x.heard.option()}, opts...)...)
	x.l = x.c.Lock(x.name)
	return x
}

// other returns the same lock on another client.
func (x *lockTest) other(t *testing.T) *primitives.Lock {
	return newClient(t, x.s.Client(t)).Lock(x.name)
}

// count returns the hold count of an id in Redis, or "" if it has none.
func (x *lockTest) count(t *testing.T, id string) string { return fields(t, x.s, x.name)[id] }

// nest acquires the lock n times, each time with the context of the hold before.
func (x *lockTest) nest(t *testing.T, n int) (holds []*primitives.Hold) {
	ctx := t.Context()
	for range n {
		holds = append(holds, acquire(t, ctx, x.l))
		ctx = holds[len(holds)-1].Context()
	}
	t.Cleanup(func() { runtime.KeepAlive(holds) }) // a hold that is collected ends
	return holds
}

// ctxKey is the key of a test's own context values.
type ctxKey struct{}

// javaThread is an owner id as Redisson makes them.
const javaThread = "6f1ed002-ab5f-4a5c-9b3a-a0a9a9a9a9a9:7"

var lockOwner = primitives.WithOwner(javaThread)

// lockCases are the behaviour of a plain lock. Each case has a new client and lock, makes a situation,
// and returns the result of a call in it. Holds may be left.
var lockCases = []struct {
	name string
	want error // nil: the call succeeds
	call func(t *testing.T, x *lockTest) error
}{
	{"C1: an id is the client's id and a new number", nil, func(t *testing.T, x *lockTest) error {
		seen := map[string]bool{}
		for range 3 {
			hold := acquire(t, t.Context(), x.l)
			require.True(t, strings.HasPrefix(hold.ID(), x.c.ID()+":"))
			require.Equal(t, map[string]string{hold.ID(): "1"}, fields(t, x.s, x.name))
			other := acquire(t, t.Context(), x.c.Lock(x.name+"-2"))
			seen[hold.ID()], seen[other.ID()] = true, true
			release(t, hold)
			release(t, other)
		}
		require.Len(t, seen, 6)
		return nil
	}},

	{"C3: nested holds add to one count and end in any order", nil, func(t *testing.T, x *lockTest) error {
		holds := x.nest(t, 3)
		id := holds[0].ID()
		for i, hold := range holds {
			require.Equal(t, []any{id, i + 1}, []any{hold.ID(), hold.Depth()})
		}
		require.Equal(t, "3", x.count(t, id))
		release(t, holds[0])
		require.Equal(t, "2", x.count(t, id))
		release(t, holds[2])
		require.Equal(t, "1", x.count(t, id))
		release(t, holds[1])
		require.Len(t, x.heard.all(primitives.EventNested), 2)
		require.Len(t, x.heard.all(primitives.EventAcquired), 1)
		require.Len(t, x.heard.all(primitives.EventReleased), 3)
		return nil
	}},
	{"C3: a nested hold shortens the lease only when left alone", nil, func(t *testing.T, x *lockTest) error {
		outer := acquire(t, t.Context(), x.l)
		inner := acquire(t, outer.Context(), x.c.Lock(x.name), primitives.WithWatchdog(watched))
		require.Equal(t, outer.ID(), inner.ID())
		ttl, err := x.rdb.PTTL(t.Context(), x.name).Result()
		require.NoError(t, err)
		require.Greater(t, ttl, 20*time.Second)
		release(t, outer)
		require.LessOrEqual(t, time.Until(inner.ValidUntil()), watched)
		return inner.Release(t.Context())
	}},
	{"C3: HoldFrom finds the innermost hold in a context", nil, func(t *testing.T, x *lockTest) error {
		inner := x.nest(t, 2)[1]
		require.Same(t, inner, x.l.HoldFrom(inner.Context()))
		require.Same(t, inner, x.l.HoldFrom(context.WithValue(inner.Context(), ctxKey{}, 1)))
		require.Nil(t, x.l.HoldFrom(t.Context()))
		require.Nil(t, x.c.Lock("else").HoldFrom(inner.Context()))
		require.Nil(t, x.other(t).HoldFrom(inner.Context()), "the lock of another client")
		return nil
	}},
	{"C3: TryAcquire beside a sibling", primitives.ErrNotAcquired, func(t *testing.T, x *lockTest) error {
		outer := x.nest(t, 2)[0]
		return errOf(x.l.TryAcquire(outer.Context()))
	}},
	{"C3: a limited wait for a sibling", primitives.ErrNotAcquired, func(t *testing.T, x *lockTest) error {
		outer := x.nest(t, 2)[0]
		return errOf(x.l.Acquire(outer.Context(), primitives.WithWait(20*time.Millisecond)))
	}},
	{"C3: WithNonReentrant refuses to nest", primitives.ErrDeadlock, func(t *testing.T, x *lockTest) error {
		outer := acquire(t, t.Context(), x.l, primitives.WithNonReentrant())
		return errOf(x.c.Lock(x.name, primitives.WithNonReentrant()).Acquire(outer.Context()))
	}},
	{"C3: the option of the inner call decides: a polling lock nests", nil, func(t *testing.T, x *lockTest) error {
		outer := acquire(t, t.Context(), x.l, primitives.WithNonReentrant())
		polling := x.c.Lock(x.name, primitives.WithPolling(time.Millisecond, time.Millisecond))
		inner := acquire(t, outer.Context(), polling)
		require.Equal(t, 2, inner.Depth())
		return errors.Join(inner.Release(t.Context()), outer.Release(t.Context()))
	}},

	{"C4: holds of one owner id add to its count, on any client", nil, func(t *testing.T, x *lockTest) error {
		one := acquire(t, t.Context(), x.l, lockOwner)
		two := acquire(t, t.Context(), x.other(t), lockOwner)
		require.Equal(t, map[string]string{javaThread: "2"}, fields(t, x.s, x.name))
		inner := acquire(t, one.Context(), x.l)
		require.Equal(t, "3", x.count(t, javaThread))
		require.Equal(t, []any{javaThread, 1, javaThread, 2}, []any{one.ID(), one.Depth(), inner.ID(), inner.Depth()})
		for i, hold := range []*primitives.Hold{one, inner, two} {
			release(t, hold)
			require.Equal(t, []string{"2", "1", ""}[i], x.count(t, javaThread))
		}
		return nil
	}},
	{"C4: an owner id overrides the hold in ctx", primitives.ErrNotAcquired, func(t *testing.T, x *lockTest) error {
		hold := acquire(t, t.Context(), x.l, lockOwner)
		return errOf(x.l.TryAcquire(hold.Context(), primitives.WithOwner("somebody")))
	}},
	{"C4: WithNonReentrant refuses an owner that holds", primitives.ErrDeadlock, func(t *testing.T, x *lockTest) error {
		acquire(t, t.Context(), x.l, lockOwner)
		return errOf(x.l.TryAcquire(t.Context(), lockOwner, primitives.WithNonReentrant()))
	}},
	{"C4: no id, mode, and ids that end in :write are invalid", nil, func(t *testing.T, x *lockTest) error {
		for _, id := range []string{"", "mode", "a:write"} {
			require.ErrorIs(t, errOf(x.l.Acquire(t.Context(), primitives.WithOwner(id))), primitives.ErrInvalid, "%q", id)
			require.ErrorIs(t, errOf(x.l.Adopt(t.Context(), id)), primitives.ErrInvalid, "%q", id)
			require.ErrorIs(t, x.l.ReleaseID(t.Context(), id), primitives.ErrInvalid, "%q", id)
		}
		return nil
	}},

	{"C8: a hold has one context, with the values of Acquire's", nil, func(t *testing.T, x *lockTest) error {
		hold := acquire(t, context.WithValue(t.Context(), ctxKey{}, "value"), x.l)
		require.Equal(t, "value", hold.Context().Value(ctxKey{}))
		require.Same(t, hold.Context(), hold.Context())
		return nil
	}},
	{"C8: cancelling Acquire's context ends the hold's", errTest, func(t *testing.T, x *lockTest) error {
		ctx, cancel := context.WithCancelCause(t.Context())
		hold := acquire(t, ctx, x.l)
		cancel(errTest)
		<-hold.Context().Done()
		release(t, hold)
		return context.Cause(hold.Context())
	}},

	{"C11: a loss ends all nested holds, with an event each", primitives.ErrLost, func(t *testing.T, x *lockTest) error {
		holds := x.nest(t, 2)
		require.NoError(t, x.rdb.Del(t.Context(), x.name).Err())
		require.ErrorIs(t, holds[1].Release(t.Context()), primitives.ErrLost)
		requireEnds(t, holds[0].Context(), primitives.ErrLost)
		err := holds[0].Release(t.Context())
		redistest.WaitFor(t, soon, func() bool { return len(x.heard.all(primitives.EventLost)) == 2 }, "two events")
		require.Empty(t, x.heard.all(primitives.EventReleased))
		return err
	}},
	{"C11: a lost hold does not release the next one", nil, func(t *testing.T, x *lockTest) error {
		hold := acquire(t, t.Context(), x.l)
		require.NoError(t, x.rdb.Del(t.Context(), x.name).Err())
		next := acquire(t, t.Context(), x.other(t))
		require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
		return errors.Join(next.Check(t.Context()), next.Release(t.Context()))
	}},

	{"C12: Do joins the error of its function with ErrLost", errTest, func(t *testing.T, x *lockTest) error {
		err := x.l.Do(t.Context(), func(ctx context.Context) error {
			require.NotNil(t, x.l.HoldFrom(ctx))
			require.NoError(t, x.rdb.Del(ctx, x.name).Err())
			return errTest
		})
		require.ErrorIs(t, err, primitives.ErrLost)
		return err
	}},
	{"C12: Do nests in Do", nil, func(t *testing.T, x *lockTest) error {
		return x.l.Do(t.Context(), func(ctx context.Context) error {
			return x.l.Do(ctx, func(ctx context.Context) error {
				require.Equal(t, 2, x.l.HoldFrom(ctx).Depth())
				return nil
			})
		})
	}},
	{"C12: Do reports that its lease ended", primitives.ErrLost, func(t *testing.T, x *lockTest) error {
		return x.l.Do(t.Context(), func(ctx context.Context) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}, primitives.WithLease(50*time.Millisecond))
	}},
	{"C12: Do releases when its function panics or exits", nil, func(t *testing.T, x *lockTest) error {
		require.Panics(t, func() { _ = x.l.Do(t.Context(), func(context.Context) error { panic("x") }) })
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = x.l.Do(t.Context(), func(context.Context) error { runtime.Goexit(); return nil })
		}()
		<-done
		return errOf(x.l.TryAcquire(t.Context()))
	}},

	{"C15: ReleaseID of an id that does not hold", primitives.ErrNotHeld, func(t *testing.T, x *lockTest) error {
		acquire(t, t.Context(), x.l)
		return x.other(t).ReleaseID(t.Context(), "nobody")
	}},
	{"C15: ReleaseID takes one count; the last is a loss", primitives.ErrLost, func(t *testing.T, x *lockTest) error {
		holds, other := x.nest(t, 2), x.other(t)
		id := holds[0].ID()
		require.NoError(t, other.ReleaseID(t.Context(), id))
		require.Equal(t, "1", x.count(t, id))
		require.NoError(t, other.ReleaseID(t.Context(), id))
		require.ErrorIs(t, other.ReleaseID(t.Context(), id), primitives.ErrNotHeld)
		require.ErrorIs(t, holds[0].Check(t.Context()), primitives.ErrLost)
		requireEnds(t, holds[1].Context(), primitives.ErrLost)
		return errOf(x.l.Acquire(holds[0].Context()))
	}},
	{"C15: ForceRelease tells whether it was held, and wakes a waiter", nil, func(t *testing.T, x *lockTest) error {
		held, err := x.l.ForceRelease(t.Context())
		require.NoError(t, err)
		require.False(t, held)
		hold, other := acquire(t, t.Context(), x.l), x.other(t)
		waiting := start(func() (*primitives.Hold, error) { return other.Acquire(t.Context()) })
		awaitWaiter(t, x.s, x.name)
		held, err = x.l.ForceRelease(t.Context())
		require.NoError(t, err)
		require.True(t, held)
		require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
		return awaitHold(t, waiting).Release(t.Context())
	}},
	{"C15: Adopt of an id that does not hold", primitives.ErrNotHeld, func(t *testing.T, x *lockTest) error {
		return errOf(x.other(t).Adopt(t.Context(), x.c.ID()+":1"))
	}},
	{"C15: Adopt moves all counts to a new id", nil, func(t *testing.T, x *lockTest) error {
		former := x.nest(t, 2)
		adopted, err := x.other(t).Adopt(t.Context(), former[0].ID(), primitives.WithWatchdog(watched))
		require.NoError(t, err)
		require.Equal(t, []any{1, int64(0)}, []any{adopted.Depth(), adopted.Token()})
		require.Equal(t, map[string]string{adopted.ID(): "2"}, fields(t, x.s, x.name))
		require.ErrorIs(t, former[1].Release(t.Context()), primitives.ErrLost)
		require.ErrorIs(t, former[0].Release(t.Context()), primitives.ErrLost)
		before := adopted.ValidUntil()
		redistest.WaitFor(t, soon, func() bool { return adopted.ValidUntil().After(before) }, "the adopter renews it")
		release(t, adopted)
		require.Empty(t, fields(t, x.s, x.name))
		return nil
	}},
	{"C15: a detached hold can be adopted", nil, func(t *testing.T, x *lockTest) error {
		hold := acquire(t, t.Context(), x.l)
		id := hold.Detach()
		require.Equal(t, hold.ID(), id)
		adopted, err := x.other(t).Adopt(t.Context(), id, primitives.WithLease(time.Minute))
		require.NoError(t, err)
		return adopted.Release(t.Context())
	}},

	{"Info of a free lock has no holder", nil, func(t *testing.T, x *lockTest) error {
		info, err := x.l.Info(t.Context())
		require.Equal(t, primitives.Info{Name: x.name, Kind: "lock"}, info)
		return err
	}},
	{"Info has the holder with its count and TTL", nil, func(t *testing.T, x *lockTest) error {
		hold := x.nest(t, 2)[0]
		info, err := x.other(t).Info(t.Context())
		require.NoError(t, err)
		require.InDelta(t, 30, info.TTL.Seconds(), 2)
		require.Len(t, info.Holders, 1)
		info.Holders[0].Client = "" // the client writes its name in the background
		require.Equal(t, []primitives.Holder{{ID: hold.ID(), Count: 2, TTL: info.TTL}}, info.Holders)
		return nil
	}},
	{"Info ends with its context", errTest, func(t *testing.T, x *lockTest) error {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errTest)
		return errOf(x.l.Info(ctx))
	}},
}

func TestLock(t *testing.T) {
	t.Parallel()
	for _, tt := range lockCases {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			eachLock(t, func(t *testing.T, x *lockTest) {
				err := tt.call(t, x)
				require.ErrorIs(t, err, tt.want)
				if errors.Is(tt.want, primitives.ErrDeadlock) {
					require.NotErrorIs(t, err, primitives.ErrNotAcquired)
				}
				require.NoError(t, errOf(x.other(t).ForceRelease(t.Context())))
			})
		})
	}
}

// lockEnds are the ways in which a hold ends, other than by its time (TestC13Lease). err is the cause
// with which its context ends, and the error of its methods after that. left is its count in Redis.
var lockEnds = []struct {
	name string
	err  error
	left string
	end  func(t *testing.T, x *lockTest, hold *primitives.Hold) error
}{
	{"Release", primitives.ErrReleased, "", func(t *testing.T, _ *lockTest, hold *primitives.Hold) error {
		return hold.Release(t.Context())
	}},
	{"Detach", primitives.ErrReleased, "1", func(t *testing.T, _ *lockTest, hold *primitives.Hold) error {
		require.Equal(t, hold.ID(), hold.Detach())
		require.Empty(t, hold.Detach())
		return nil
	}},
	{"the key is deleted", primitives.ErrLost, "", func(t *testing.T, x *lockTest, _ *primitives.Hold) error {
		return x.rdb.Del(t.Context(), x.name).Err()
	}},
	{"ForceRelease", primitives.ErrLost, "", func(t *testing.T, x *lockTest, _ *primitives.Hold) error {
		return errOf(x.other(t).ForceRelease(t.Context()))
	}},
	{"ReleaseID", primitives.ErrLost, "", func(t *testing.T, x *lockTest, hold *primitives.Hold) error {
		return x.other(t).ReleaseID(t.Context(), hold.ID())
	}},
	{"Adopt", primitives.ErrLost, "", func(t *testing.T, x *lockTest, hold *primitives.Hold) error {
		return errOf(x.other(t).Adopt(t.Context(), hold.ID()))
	}},
	{"Close", primitives.ErrClosed, "1", func(_ *testing.T, x *lockTest, _ *primitives.Hold) error {
		shut(x.c)
		return nil
	}},
}

// TestLockHoldEnds ends holds in each way. Whichever method is called first reports the end, and
// reports a loss to the observer once. After another end it sends no command.
func TestLockHoldEnds(t *testing.T) {
	t.Parallel()
	methods := []func(hold *primitives.Hold) error{
		func(hold *primitives.Hold) error { return hold.Check(t.Context()) },
		func(hold *primitives.Hold) error { return hold.Extend(t.Context(), time.Second) },
		func(hold *primitives.Hold) error { return hold.Release(t.Context()) },
	}
	for _, tt := range lockEnds {
		for i, first := range []string{"Check", "Extend", "Release"} {
			t.Run(tt.name+"/"+first+" is first", func(t *testing.T) {
				eachLock(t, func(t *testing.T, x *lockTest) {
					p := x.s.Proxy(t)
					x.c = newClient(t, p.Client(t), x.heard.option())
					hold := acquire(t, t.Context(), x.c.Lock(x.name))
					if i > 0 { // else Context is called for the first time after the end
						requireLive(t, hold.Context())
					}
					require.NoError(t, tt.end(t, x, hold))
					p.Record()
					for _, method := range methods[i:] {
						require.ErrorIs(t, method(hold), tt.err)
						requireEnds(t, hold.Context(), tt.err)
					}
					if errors.Is(tt.err, primitives.ErrLost) {
						x.heard.await(t, primitives.EventLost)
						require.Len(t, x.heard.all(primitives.EventLost), 1)
						require.Empty(t, x.heard.all(primitives.EventReleased))
					} else {
						require.Empty(t, scriptsOf(p))
						require.Empty(t, x.heard.all(primitives.EventLost))
					}
					require.Equal(t, tt.left, x.count(t, hold.ID()))
					require.NoError(t, errOf(x.other(t).ForceRelease(t.Context())))
				})
			})
		}
	}
}

// TestC2Memory has goroutines share a map that only the lock guards, so that the race detector
// checks the memory order. TestMutexContract does the same for the other kinds.
func TestC2Memory(t *testing.T) {
	t.Parallel()
	eachLock(t, func(t *testing.T, x *lockTest) {
		m := map[int]int{}
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				for range 5 {
					if err := x.l.Do(t.Context(), func(context.Context) error { m[g]++; return nil }); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		require.Equal(t, map[int]int{0: 5, 1: 5, 2: 5, 3: 5}, m)
	})
}

// C3: acquisitions with the same outer context are siblings. They exclude each other.
func TestC3SiblingsTakeTurns(t *testing.T) {
	t.Parallel()
	eachLock(t, func(t *testing.T, x *lockTest) {
		outer := acquire(t, t.Context(), x.l)
		first := acquire(t, outer.Context(), x.l)
		second := start(func() (*primitives.Hold, error) { return x.l.Acquire(outer.Context()) })
		x.heard.await(t, primitives.EventWait)
		release(t, first)
		next := awaitHold(t, second)
		require.Equal(t, 2, next.Depth())
		release(t, next)

		n := 0
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() { increment(t, acts(nested{x.l, outer.Context()}), &n, 3) })
		}
		wg.Wait()
		require.Equal(t, 24, n)
		require.Equal(t, "1", x.count(t, outer.ID()))
		release(t, outer)
	})
}

// nested makes every acquisition with one hold's context, instead of the one that is passed.
type nested struct {
	l   *primitives.Lock
	ctx context.Context
}

func (n nested) Acquire(_ context.Context, opts ...primitives.Option) (*primitives.Hold, error) {
	return n.l.Acquire(n.ctx, opts...)
}

func (n nested) TryAcquire(_ context.Context, opts ...primitives.Option) (*primitives.Hold, error) {
	return n.l.TryAcquire(n.ctx, opts...)
}

func (n nested) Do(_ context.Context, f func(context.Context) error, opts ...primitives.Option) error {
	return n.l.Do(n.ctx, f, opts...)
}

// A sibling waits for its turn while the outer hold is released. Its acquisition becomes an
// outermost one.
func TestC3SiblingOfAReleasedOuterHoldDoesNotNest(t *testing.T) {
	t.Parallel()
	eachLock(t, func(t *testing.T, x *lockTest) {
		outer := acquire(t, t.Context(), x.l)
		first := acquire(t, outer.Context(), x.l)
		afterRelease := context.WithoutCancel(outer.Context())
		waiting := start(func() (*primitives.Hold, error) { return x.l.Acquire(afterRelease) })
		x.heard.await(t, primitives.EventWait)
		release(t, outer)
		release(t, first)
		next := awaitHold(t, waiting)
		require.Equal(t, 1, next.Depth())
		require.NotEqual(t, outer.ID(), next.ID())
		release(t, next)
	})
}

// An acquisition that races with the release of its outer hold nests or does not. In both cases it
// succeeds, and no hold is lost.
func TestC3NestingRacesWithRelease(t *testing.T) {
	t.Parallel()
	eachLock(t, func(t *testing.T, x *lockTest) {
		for range redistest.Scaled(x.s, 200) {
			outer := acquire(t, t.Context(), x.l)
			afterRelease := context.WithoutCancel(outer.Context())
			racing := start(func() (*primitives.Hold, error) { return x.l.Acquire(afterRelease) })
			release(t, outer)
			release(t, awaitHold(t, racing))
		}
		require.Empty(t, x.heard.all(primitives.EventLost))
	})
}

// C3: the context carries a hold, and not an owner. Goroutines that share the context of a hold on
// one lock still exclude each other on another lock.
func TestC3ForkedSiblingsExcludeEachOtherOnAnotherLock(t *testing.T) {
	t.Parallel()
	eachLock(t, func(t *testing.T, x *lockTest) {
		outer := acquire(t, t.Context(), x.l)
		b := x.c.Lock(x.name + "-b")
		n := 0
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() { increment(t, acts(nested{b, outer.Context()}), &n, 3) })
		}
		wg.Wait()
		require.Equal(t, 24, n)
		release(t, outer)
	})
}

// Several waiters with the same WithOwner id acquire together, as soon as the id has the lock.
func TestC4WaitersOfOneOwnerAcquireTogether(t *testing.T) {
	t.Parallel()
	eachLock(t, func(t *testing.T, x *lockTest) {
		hold := acquire(t, t.Context(), x.l)
		var acquired []<-chan result
		for range 3 {
			acquired = append(acquired, start(func() (*primitives.Hold, error) {
				return x.l.Acquire(t.Context(), primitives.WithOwner("o"))
			}))
		}
		redistest.WaitFor(t, soon, func() bool { return len(x.heard.all(primitives.EventWait)) == 3 }, "three wait")
		release(t, hold)
		var holds []*primitives.Hold
		for _, e := range acquired {
			holds = append(holds, awaitHold(t, e))
		}
		require.Equal(t, "3", x.count(t, "o"))
		for _, hold := range holds {
			release(t, hold)
		}
	})
}

// C6: WithWait does not limit the hold. The context given to Acquire does.
func TestC6WaitBoundsOnlyTheWaiting(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, b *bubbled) { // a busy machine needs more than a millisecond
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		hold := acquire(t, ctx, b.l, primitives.WithWait(time.Millisecond))
		time.Sleep(time.Second) // the wait limit passes
		requireLive(t, hold.Context())
		cancel()
		requireEnds(t, hold.Context(), context.Canceled)
		require.NoError(t, hold.Check(t.Context()))
		release(t, hold)
	})
}

// C9: a cancelled context neither releases the hold nor stops its renewal.
func TestC9CancellingReleasesNothing(t *testing.T) {
	t.Parallel()
	eachLock(t, func(t *testing.T, x *lockTest) {
		ctx, cancel := context.WithCancel(t.Context())
		hold := acquire(t, ctx, x.l, primitives.WithWatchdog(watched))
		cancel()
		before := hold.ValidUntil()
		redistest.WaitFor(t, soon, func() bool {
			return hold.ValidUntil().Sub(before) > 300*time.Millisecond
		}, "the hold is renewed")
		require.NoError(t, hold.Check(t.Context()))
		require.NotEmpty(t, x.heard.all(primitives.EventRenewed))
		release(t, hold)
	})
}

// C11: of several concurrent calls of Release, one succeeds.
func TestC11ReleaseActsOnce(t *testing.T) {
	t.Parallel()
	eachLock(t, func(t *testing.T, x *lockTest) {
		hold := acquire(t, t.Context(), x.l)
		var mu sync.Mutex
		freed, wg := 0, sync.WaitGroup{}
		for range 8 {
			wg.Go(func() {
				err := hold.Release(t.Context())
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					freed++
				} else if !errors.Is(err, primitives.ErrReleased) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		require.Equal(t, 1, freed)
	})
}

// C13: a hold with WithLease or WithMaxHold ends with ErrLost when its time is over.
func TestC13Lease(t *testing.T) {
	t.Parallel()
	eachLock(t, func(t *testing.T, x *lockTest) {
		for _, opts := range [][]primitives.Option{
			{primitives.WithLease(brief)},
			{primitives.WithWatchdog(brief), primitives.WithMaxHold(2 * brief)},
		} {
			began := time.Now()
			hold := acquire(t, t.Context(), x.l, opts...)
			require.WithinRange(t, hold.ValidUntil(), began, time.Now().Add(brief))
			requireEnds(t, hold.Context(), primitives.ErrLost)
			require.GreaterOrEqual(t, time.Since(began), brief*9/10)
			require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
		}
	})
}

// C17: the garbage collector finds a hold that is unreachable and not released. Its renewal stops.
func TestC17UnreachableHoldIsNotRenewed(t *testing.T) {
	t.Parallel()
	eachLock(t, func(t *testing.T, x *lockTest) {
		id := func() string {
			hold := acquire(t, t.Context(), x.l, primitives.WithWatchdog(watched))
			requireLive(t, hold.Context())
			return hold.ID()
		}()
		redistest.WaitFor(t, soon, func() bool {
			runtime.GC()
			return len(x.heard.all(primitives.EventLeaked)) == 1
		}, "a leaked event")
		require.Equal(t, id, x.heard.all(primitives.EventLeaked)[0].ID)
		release(t, acquire(t, t.Context(), x.l)) // waits until the lease expires

		_ = x.l.Do(t.Context(), func(context.Context) error {
			runtime.GC()
			time.Sleep(10 * time.Millisecond) // a cleanup would run
			runtime.GC()
			return nil
		})
		require.Len(t, x.heard.all(primitives.EventLeaked), 1, "a hold in use does not leak")
	})
}

// C18: Close refuses new acquisitions and waits for holds.
func TestC18Close(t *testing.T) {
	eachLock(t, func(t *testing.T, x *lockTest) {
		c := newClient(t, x.s.Client(t))
		l := c.Lock(x.name)
		require.NoError(t, newClient(t, x.s.Client(t)).Close(t.Context()), "a client without work")

		hold := acquire(t, t.Context(), l)
		closed := make(chan error, 1)
		go func() { closed <- c.Close(context.Background()) }()
		redistest.WaitFor(t, soon, func() bool {
			_, err := l.TryAcquire(t.Context())
			return errors.Is(err, primitives.ErrClosed)
		}, "new acquisitions are refused")
		requireLive(t, hold.Context())
		require.NoError(t, hold.Check(t.Context()))
		release(t, hold)
		require.NoError(t, <-closed)
		require.NoError(t, c.Close(t.Context()))
	})
	t.Run("remaining holds end and send nothing", func(t *testing.T) {
		eachLock(t, closeWithHolds)
	})
	t.Run("no goroutine is left, and no event follows", closeLeavesNothing)
}

// closeWithHolds checks that Close ends the remaining holds when its context is done, and that no
// method sends a command after that.
func closeWithHolds(t *testing.T, x *lockTest) {
	p := x.s.Proxy(t)
	c := newClient(t, p.Client(t))
	l := c.Lock(x.name)
	outer := acquire(t, t.Context(), l)
	inner := acquire(t, outer.Context(), l)
	done, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, c.Close(done), context.DeadlineExceeded)
	require.ErrorIs(t, c.Close(t.Context()), context.DeadlineExceeded, "each call returns the same error")
	requireEnds(t, inner.Context(), primitives.ErrClosed)
	requireEnds(t, outer.Context(), primitives.ErrClosed)
	require.NotEmpty(t, fields(t, x.s, x.name), "Close frees no lock whose section may still run")
	p.Record()
	for name, f := range map[string]func() error{
		"release": func() error { return outer.Release(t.Context()) },
		"check":   func() error { return inner.Check(t.Context()) },
		"extend":  func() error { return inner.Extend(t.Context(), time.Second) },
		"info":    func() error { return errOf(l.Info(t.Context())) },
		"adopt":   func() error { return errOf(l.Adopt(t.Context(), "x")) },
		"id":      func() error { return l.ReleaseID(t.Context(), "x") },
		"force":   func() error { return errOf(l.ForceRelease(t.Context())) },
		"acquire": func() error { return errOf(l.Acquire(t.Context())) },
		"locks": func() (last error) {
			for _, err := range c.Locks(t.Context(), "*") {
				last = err
			}
			return last
		},
	} {
		require.ErrorIs(t, f(), primitives.ErrClosed, name)
	}
	require.Empty(t, inner.Detach())
	require.Empty(t, p.Commands())
	require.NoError(t, errOf(x.l.ForceRelease(t.Context())))
}

// closeLeavesNothing closes a client at different moments of its work.
func closeLeavesNothing(t *testing.T) {
	for i := range 30 {
		t.Run(strconv.Itoa(i), func(t *testing.T) { closeAfter(t, time.Duration(i)*time.Millisecond) })
	}
}

// closeAfter closes a client that has worked for d.
func closeAfter(t *testing.T, d time.Duration) {
	checkLeaks(t)
	s := redistest.Miniredis(t)
	var mu sync.Mutex
	closed := false
	c := newClient(t, s.Client(t), primitives.WithObserver(func(e primitives.Event) {
		mu.Lock()
		defer mu.Unlock()
		if closed {
			t.Errorf("event %v after Close", e.Kind)
		}
	}))
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for j := 0; ; j++ {
				l := c.Lock(fmt.Sprint("l", (g+j)%3))
				if err := l.Do(context.Background(), func(context.Context) error { return nil }); err != nil {
					if !errors.Is(err, primitives.ErrClosed) {
						t.Error(err)
					}
					return
				}
			}
		})
	}
	time.Sleep(d)
	require.NoError(t, c.Close(context.Background()))
	mu.Lock()
	closed = true
	mu.Unlock()
	wg.Wait()
}
