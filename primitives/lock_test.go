package primitives_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// ctxKey is the key of a test's own context values.
type ctxKey struct{}

var lockOwner = primitives.WithOwner(fixture.JavaThread)

// lockCases are the behaviour of a plain lock. Each case has a new client and lock, makes a
// situation, and returns the result of a call in it. Holds may be left.
var lockCases = []struct {
	name string
	want error // nil if the call succeeds
	call func(t *testing.T, x *fixture.LockTest) error
}{
	{"C3: nested holds add to one count and end in any order", nil, func(t *testing.T, x *fixture.LockTest) error {
		holds := x.Nest(t, 3)
		id := holds[0].ID()
		for i, hold := range holds {
			require.Equal(t, []any{id, i + 1}, []any{hold.ID(), hold.Depth()})
		}
		require.Equal(t, "3", x.Count(t, id))
		fixture.Release(t, holds[0])
		require.Equal(t, "2", x.Count(t, id))
		fixture.Release(t, holds[2])
		require.Equal(t, "1", x.Count(t, id))
		fixture.Release(t, holds[1])
		require.Len(t, x.Heard.All(primitives.EventNested), 2)
		require.Len(t, x.Heard.All(primitives.EventAcquired), 1)
		require.Len(t, x.Heard.All(primitives.EventReleased), 3)
		return nil
	}},
	{"C3: a nested hold shortens the lease only when left alone", nil, func(t *testing.T, x *fixture.LockTest) error {
		outer := fixture.Acquire(t, t.Context(), x.L)
		inner := fixture.Acquire(t, outer.Context(), x.C.Lock(x.Name), primitives.WithWatchdog(fixture.RenewedTTL))
		require.Equal(t, outer.ID(), inner.ID())
		ttl, err := x.Rdb.PTTL(t.Context(), x.Name).Result()
		require.NoError(t, err)
		require.Greater(t, ttl, 20*time.Second)
		fixture.Release(t, outer)
		require.LessOrEqual(t, time.Until(inner.ValidUntil()), fixture.RenewedTTL)
		return inner.Release(t.Context())
	}},
	{"C3: HoldFrom finds the innermost hold in a context", nil, func(t *testing.T, x *fixture.LockTest) error {
		inner := x.Nest(t, 2)[1]
		require.Same(t, inner, x.L.HoldFrom(inner.Context()))
		require.Same(t, inner, x.L.HoldFrom(context.WithValue(inner.Context(), ctxKey{}, 1)))
		require.Nil(t, x.L.HoldFrom(t.Context()))
		require.Nil(t, x.C.Lock("else").HoldFrom(inner.Context()))
		require.Nil(t, x.Other(t).HoldFrom(inner.Context()), "the lock of another client")
		return nil
	}},
	{"C3: TryAcquire beside a sibling", primitives.ErrNotAcquired, func(t *testing.T, x *fixture.LockTest) error {
		outer := x.Nest(t, 2)[0]
		return fixture.ErrOf(x.L.TryAcquire(outer.Context()))
	}},
	{"C3: a limited wait for a sibling", primitives.ErrNotAcquired, func(t *testing.T, x *fixture.LockTest) error {
		outer := x.Nest(t, 2)[0]
		return fixture.ErrOf(x.L.Acquire(outer.Context(), primitives.WithWait(20*time.Millisecond)))
	}},
	{"C3: the option of the inner call decides: a polling lock nests", nil, func(t *testing.T, x *fixture.LockTest) error {
		outer := fixture.Acquire(t, t.Context(), x.L, primitives.WithNonReentrant())
		polling := x.C.Lock(x.Name, primitives.WithPolling(time.Millisecond, time.Millisecond))
		inner := fixture.Acquire(t, outer.Context(), polling)
		require.Equal(t, 2, inner.Depth())
		return errors.Join(inner.Release(t.Context()), outer.Release(t.Context()))
	}},

	{"C4: holds of one owner id add to its count, on any client", nil, func(t *testing.T, x *fixture.LockTest) error {
		one := fixture.Acquire(t, t.Context(), x.L, lockOwner)
		two := fixture.Acquire(t, t.Context(), x.Other(t), lockOwner)
		require.Equal(t, map[string]string{fixture.JavaThread: "2"}, fixture.Fields(t, x.S, x.Name))
		inner := fixture.Acquire(t, one.Context(), x.L)
		require.Equal(t, "3", x.Count(t, fixture.JavaThread))
		require.Equal(t, []any{fixture.JavaThread, 1, fixture.JavaThread, 2},
			[]any{one.ID(), one.Depth(), inner.ID(), inner.Depth()})
		for i, hold := range []*primitives.Hold{one, inner, two} {
			fixture.Release(t, hold)
			require.Equal(t, []string{"2", "1", ""}[i], x.Count(t, fixture.JavaThread))
		}
		return nil
	}},
	{"C4: an owner id overrides the hold in ctx", primitives.ErrNotAcquired,
		func(t *testing.T, x *fixture.LockTest) error {
			hold := fixture.Acquire(t, t.Context(), x.L, lockOwner)
			return fixture.ErrOf(x.L.TryAcquire(hold.Context(), primitives.WithOwner("somebody")))
		}},
	{"C4: WithNonReentrant refuses an owner that holds", primitives.ErrDeadlock,
		func(t *testing.T, x *fixture.LockTest) error {
			fixture.Acquire(t, t.Context(), x.L, lockOwner)
			return fixture.ErrOf(x.L.TryAcquire(t.Context(), lockOwner, primitives.WithNonReentrant()))
		}},
	{"C4: no id, mode, and ids that end in :write are invalid", nil, func(t *testing.T, x *fixture.LockTest) error {
		for _, id := range []string{"", "mode", "a:write"} {
			for op, err := range map[string]error{
				"acquire": fixture.ErrOf(x.L.Acquire(t.Context(), primitives.WithOwner(id))),
				"adopt":   fixture.ErrOf(x.L.Adopt(t.Context(), id)),
				"release": x.L.ReleaseID(t.Context(), id),
			} {
				require.ErrorIs(t, err, primitives.ErrInvalid, "%s %q", op, id)
				require.EqualError(t, err, fmt.Sprintf(`redlatch: %s lock %q: invalid: owner id %q: `, op, x.Name, id)+
					`it must not be empty or "mode", or end with ":write"`)
			}
		}
		return nil
	}},

	{"C8: a hold has one context, with the values of Acquire's", nil, func(t *testing.T, x *fixture.LockTest) error {
		hold := fixture.Acquire(t, context.WithValue(t.Context(), ctxKey{}, "value"), x.L)
		require.Equal(t, "value", hold.Context().Value(ctxKey{}))
		require.Same(t, hold.Context(), hold.Context())
		return nil
	}},
	{"C8: cancelling Acquire's context ends the hold's", fixture.ErrTest, func(t *testing.T, x *fixture.LockTest) error {
		ctx, cancel := context.WithCancelCause(t.Context())
		hold := fixture.Acquire(t, ctx, x.L)
		cancel(fixture.ErrTest)
		<-hold.Context().Done()
		fixture.Release(t, hold)
		return context.Cause(hold.Context())
	}},

	{"C11: a loss ends all nested holds, with an event each", primitives.ErrLost,
		func(t *testing.T, x *fixture.LockTest) error {
			holds := x.Nest(t, 2)
			require.NoError(t, x.Rdb.Del(t.Context(), x.Name).Err())
			require.ErrorIs(t, holds[1].Release(t.Context()), primitives.ErrLost)
			fixture.RequireEnds(t, holds[0].Context(), primitives.ErrLost)
			err := holds[0].Release(t.Context())
			redistest.WaitFor(t, fixture.Soon, func() bool { return len(x.Heard.All(primitives.EventLost)) == 2 }, "two events")
			require.Empty(t, x.Heard.All(primitives.EventReleased))
			return err
		}},
	{"C11: a lost hold does not release the next one", nil, func(t *testing.T, x *fixture.LockTest) error {
		hold := fixture.Acquire(t, t.Context(), x.L)
		require.NoError(t, x.Rdb.Del(t.Context(), x.Name).Err())
		next := fixture.Acquire(t, t.Context(), x.Other(t))
		require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
		return errors.Join(next.Check(t.Context()), next.Release(t.Context()))
	}},

	{"C12: Do joins the error of its function with ErrLost", fixture.ErrTest,
		func(t *testing.T, x *fixture.LockTest) error {
			err := x.L.Do(t.Context(), func(ctx context.Context) error {
				require.NotNil(t, x.L.HoldFrom(ctx))
				require.NoError(t, x.Rdb.Del(ctx, x.Name).Err())
				return fixture.ErrTest
			})
			require.ErrorIs(t, err, primitives.ErrLost)
			return err
		}},
	{"C12: Do nests in Do", nil, func(t *testing.T, x *fixture.LockTest) error {
		return x.L.Do(t.Context(), func(ctx context.Context) error {
			return x.L.Do(ctx, func(ctx context.Context) error {
				require.Equal(t, 2, x.L.HoldFrom(ctx).Depth())
				return nil
			})
		})
	}},
	{"C12: Do reports that its lease ended", primitives.ErrLost, func(t *testing.T, x *fixture.LockTest) error {
		return x.L.Do(t.Context(), func(ctx context.Context) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}, primitives.WithLease(50*time.Millisecond))
	}},
	{"C12: Do releases when its function panics or exits", nil, func(t *testing.T, x *fixture.LockTest) error {
		require.Panics(t, func() { _ = x.L.Do(t.Context(), func(context.Context) error { panic("x") }) })
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = x.L.Do(t.Context(), func(context.Context) error { runtime.Goexit(); return nil })
		}()
		<-done
		return fixture.ErrOf(x.L.TryAcquire(t.Context()))
	}},

	{"C13: Extend never shortens the lease", nil, func(t *testing.T, x *fixture.LockTest) error {
		for _, opts := range [][]primitives.Option{
			{primitives.WithLease(fixture.ShortLease)}, {primitives.WithOwner("o")}, nil,
		} {
			hold := fixture.Acquire(t, t.Context(), x.L, opts...)
			for _, d := range []time.Duration{0, -1, time.Millisecond - 1, math.MaxInt64} {
				require.ErrorIs(t, hold.Extend(t.Context(), d), primitives.ErrInvalid)
			}
			require.NoError(t, hold.Extend(t.Context(), time.Hour))
			require.NoError(t, hold.Extend(t.Context(), time.Second), "a shorter extension succeeds")
			require.Greater(t, time.Until(hold.ValidUntil()), 59*time.Minute)
			require.Greater(t, x.Rdb.PTTL(t.Context(), x.Name).Val(), 59*time.Minute)
			fixture.Release(t, hold)
			require.ErrorIs(t, hold.Extend(t.Context(), time.Second), primitives.ErrReleased)
			require.ErrorIs(t, hold.Check(t.Context()), primitives.ErrReleased)
		}
		return nil
	}},
	{"C13: Detach stops the renewal and keeps the lock", nil, func(t *testing.T, x *fixture.LockTest) error {
		p := x.S.Proxy(t)
		c := fixture.NewClient(t, p.Client(t))
		l := c.Lock(x.Name)
		hold := fixture.Acquire(t, t.Context(), l, primitives.WithWatchdog(fixture.ShortLease))
		hold.Detach()
		require.Equal(t, "1", x.Count(t, hold.ID()), "the lock stays until the lease expires")
		redistest.WaitFor(t, fixture.Soon, func() bool { return len(fixture.Fields(t, x.S, x.Name)) == 0 },
			"the lease has expired")
		hold = fixture.Acquire(t, t.Context(), l)
		hold.Detach()
		p.Record()
		require.NoError(t, c.Close(t.Context()), "Close does not wait for a detached hold")
		require.Empty(t, fixture.ScriptsOf(p))
		require.Equal(t, "1", x.Count(t, hold.ID()))
		require.NoError(t, x.L.ReleaseID(t.Context(), hold.ID()))
		return nil
	}},

	{"C15: ReleaseID takes one count; the last is a loss", primitives.ErrLost,
		func(t *testing.T, x *fixture.LockTest) error {
			holds, other := x.Nest(t, 2), x.Other(t)
			id := holds[0].ID()
			require.NoError(t, other.ReleaseID(t.Context(), id))
			require.Equal(t, "1", x.Count(t, id))
			require.NoError(t, other.ReleaseID(t.Context(), id))
			require.ErrorIs(t, other.ReleaseID(t.Context(), id), primitives.ErrNotHeld)
			require.ErrorIs(t, holds[0].Check(t.Context()), primitives.ErrLost)
			fixture.RequireEnds(t, holds[1].Context(), primitives.ErrLost)
			return fixture.ErrOf(x.L.Acquire(holds[0].Context()))
		}},
	{"C15: ForceRelease tells whether it was held, and wakes a waiter", nil,
		func(t *testing.T, x *fixture.LockTest) error {
			held := fixture.ForceRelease(t, x.L)
			require.False(t, held)
			hold, other := fixture.Acquire(t, t.Context(), x.L), x.Other(t)
			waiting := fixture.StartAcquire(t.Context(), other)
			fixture.AwaitWaiter(t, x.S, x.Name)
			held = fixture.ForceRelease(t, x.L)
			require.True(t, held)
			require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
			return fixture.AwaitHold(t, waiting).Release(t.Context())
		}},
	{"C15: Adopt moves all counts to a new id", nil, func(t *testing.T, x *fixture.LockTest) error {
		former := x.Nest(t, 2)
		adopted := fixture.Adopt(t, x.Other(t), former[0].ID(), primitives.WithWatchdog(fixture.RenewedTTL))
		require.Equal(t, []any{1, int64(0)}, []any{adopted.Depth(), adopted.Token()})
		require.Equal(t, map[string]string{adopted.ID(): "2"}, fixture.Fields(t, x.S, x.Name))
		require.ErrorIs(t, former[1].Release(t.Context()), primitives.ErrLost)
		require.ErrorIs(t, former[0].Release(t.Context()), primitives.ErrLost)
		before := adopted.ValidUntil()
		redistest.WaitFor(t, fixture.Soon, func() bool { return adopted.ValidUntil().After(before) }, "the adopter renews it")
		fixture.Release(t, adopted)
		require.Empty(t, fixture.Fields(t, x.S, x.Name))
		return nil
	}},
	{"C15: a detached hold can be adopted", nil, func(t *testing.T, x *fixture.LockTest) error {
		hold := fixture.Acquire(t, t.Context(), x.L)
		id := hold.Detach()
		require.Equal(t, hold.ID(), id)
		adopted := fixture.Adopt(t, x.Other(t), id, primitives.WithLease(time.Minute))
		return adopted.Release(t.Context())
	}},

	{"C23: events have the times waited and held", nil, func(t *testing.T, x *fixture.LockTest) error {
		hold := fixture.Acquire(t, t.Context(), x.L)
		e := x.Heard.Await(t, primitives.EventAcquired)
		require.Equal(t, primitives.Event{Kind: "acquired", Lock: "lock", Name: x.Name, ID: hold.ID(), Ctx: t.Context()}, e)
		other := &fixture.Recorder{}
		l := fixture.NewClient(t, x.S.Client(t), other.Option()).Lock(x.Name)
		waiting := fixture.StartAcquire(t.Context(), l)
		other.Await(t, primitives.EventWait)
		began := time.Now()
		fixture.AwaitWaiter(t, x.S, x.Name)
		least := time.Since(began)
		fixture.Release(t, hold)
		e = x.Heard.Await(t, primitives.EventReleased)
		require.GreaterOrEqual(t, e.Held, least)
		require.Zero(t, e.Waited)
		next := fixture.AwaitHold(t, waiting)
		e = other.Await(t, primitives.EventAcquired)
		require.GreaterOrEqual(t, e.Waited, least)
		require.Zero(t, e.Held)
		fixture.Release(t, next)
		require.Equal(t, []primitives.EventKind{"acquired", "released"}, x.Heard.Kinds())
		require.Equal(t, []primitives.EventKind{"wait", "acquired", "released"}, other.Kinds())
		return nil
	}},

	{"Info of a free lock has no holder", nil, func(t *testing.T, x *fixture.LockTest) error {
		info, err := x.L.Info(t.Context())
		require.Equal(t, primitives.Info{Name: x.Name, Kind: "lock"}, info)
		return err
	}},
	{"Info has the holder with its count and TTL", nil, func(t *testing.T, x *fixture.LockTest) error {
		hold := x.Nest(t, 2)[0]
		info := fixture.InfoOf(t, x.Other(t))
		require.InDelta(t, 30, info.TTL.Seconds(), 2)
		require.Len(t, info.Holders, 1)
		info.Holders[0].Client, info.Holders[0].Held = "", 0 // the client tells these in the background
		require.Equal(t, []primitives.Holder{{ID: hold.ID(), Count: 2, TTL: info.TTL}}, info.Holders)
		return nil
	}},
	{"Info ends with its context", fixture.ErrTest, func(t *testing.T, x *fixture.LockTest) error {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(fixture.ErrTest)
		return fixture.ErrOf(x.L.Info(ctx))
	}},
}

func TestLock(t *testing.T) {
	t.Parallel()
	for _, tt := range lockCases {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			fixture.EachLock(t, func(t *testing.T, x *fixture.LockTest) {
				err := tt.call(t, x)
				require.ErrorIs(t, err, tt.want)
				if errors.Is(tt.want, primitives.ErrDeadlock) {
					require.NotErrorIs(t, err, primitives.ErrNotAcquired)
					require.ErrorContains(t, err, "would deadlock: ") // and the reason
				}
				require.NoError(t, fixture.ErrOf(x.Other(t).ForceRelease(t.Context())))
			})
		})
	}
}

// lockEnds are the ways in which a hold ends, other than by its time (TestClockLease). err is the
// cause with which its context ends, and the error of its methods after that. left is its count in
// Redis.
var lockEnds = []struct {
	name string
	err  error
	left string
	end  func(t *testing.T, x *fixture.LockTest, hold *primitives.Hold) error
}{
	{"Release", primitives.ErrReleased, "", func(t *testing.T, _ *fixture.LockTest, hold *primitives.Hold) error {
		return hold.Release(t.Context())
	}},
	{"Detach", primitives.ErrReleased, "1", func(t *testing.T, _ *fixture.LockTest, hold *primitives.Hold) error {
		require.Equal(t, hold.ID(), hold.Detach())
		require.Empty(t, hold.Detach())
		return nil
	}},
	{"the key is deleted", primitives.ErrLost, "", func(t *testing.T, x *fixture.LockTest, _ *primitives.Hold) error {
		return x.Rdb.Del(t.Context(), x.Name).Err()
	}},
	{"ForceRelease", primitives.ErrLost, "", func(t *testing.T, x *fixture.LockTest, _ *primitives.Hold) error {
		return fixture.ErrOf(x.Other(t).ForceRelease(t.Context()))
	}},
	{"ReleaseID", primitives.ErrLost, "", func(t *testing.T, x *fixture.LockTest, hold *primitives.Hold) error {
		return x.Other(t).ReleaseID(t.Context(), hold.ID())
	}},
	{"Adopt", primitives.ErrLost, "", func(t *testing.T, x *fixture.LockTest, hold *primitives.Hold) error {
		return fixture.ErrOf(x.Other(t).Adopt(t.Context(), hold.ID()))
	}},
	{"Close", primitives.ErrClosed, "1", func(_ *testing.T, x *fixture.LockTest, _ *primitives.Hold) error {
		fixture.CloseNow(x.C)
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
				fixture.EachLock(t, func(t *testing.T, x *fixture.LockTest) {
					p := x.S.Proxy(t)
					x.C = fixture.NewClient(t, p.Client(t), x.Heard.Option())
					hold := fixture.Acquire(t, t.Context(), x.C.Lock(x.Name))
					if i > 0 { // else Context is called for the first time after the end
						fixture.RequireLive(t, hold.Context())
					}
					require.NoError(t, tt.end(t, x, hold))
					p.Record()
					for _, method := range methods[i:] {
						require.ErrorIs(t, method(hold), tt.err)
						fixture.RequireEnds(t, hold.Context(), tt.err)
					}
					if errors.Is(tt.err, primitives.ErrLost) {
						x.Heard.Await(t, primitives.EventLost)
						require.Len(t, x.Heard.All(primitives.EventLost), 1)
						require.Empty(t, x.Heard.All(primitives.EventReleased))
					} else {
						require.Empty(t, fixture.ScriptsOf(p))
						require.Empty(t, x.Heard.All(primitives.EventLost))
					}
					require.Equal(t, tt.left, x.Count(t, hold.ID()))
					require.NoError(t, fixture.ErrOf(x.Other(t).ForceRelease(t.Context())))
				})
			})
		}
	}
}

// C3: acquisitions with the same outer context are siblings. They exclude each other.
func TestC3SiblingsTakeTurns(t *testing.T) {
	t.Parallel()
	fixture.EachLock(t, func(t *testing.T, x *fixture.LockTest) {
		outer := fixture.Acquire(t, t.Context(), x.L)
		first := fixture.Acquire(t, outer.Context(), x.L)
		second := fixture.StartAcquire(outer.Context(), x.L)
		x.Heard.Await(t, primitives.EventWait)
		fixture.Release(t, first)
		next := fixture.AwaitHold(t, second)
		require.Equal(t, 2, next.Depth())
		fixture.Release(t, next)

		n := 0
		fixture.Concurrently(8, func(int) { fixture.Increment(t, fixture.AsAcquirer(nested{x.L, outer.Context()}), &n, 3) })
		require.Equal(t, 24, n)
		require.Equal(t, "1", x.Count(t, outer.ID()))
		fixture.Release(t, outer)
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
	fixture.EachLock(t, func(t *testing.T, x *fixture.LockTest) {
		outer := fixture.Acquire(t, t.Context(), x.L)
		first := fixture.Acquire(t, outer.Context(), x.L)
		afterRelease := context.WithoutCancel(outer.Context())
		waiting := fixture.StartAcquire(afterRelease, x.L)
		x.Heard.Await(t, primitives.EventWait)
		fixture.Release(t, outer, first)
		next := fixture.AwaitHold(t, waiting)
		require.Equal(t, 1, next.Depth())
		require.NotEqual(t, outer.ID(), next.ID())
		fixture.Release(t, next)
	})
}

// An acquisition that races with the release of its outer hold nests or does not. In both cases it
// succeeds, and no hold is lost.
func TestC3NestingRacesWithRelease(t *testing.T) {
	t.Parallel()
	fixture.EachLock(t, func(t *testing.T, x *fixture.LockTest) {
		for range redistest.Scaled(x.S, 200) {
			outer := fixture.Acquire(t, t.Context(), x.L)
			afterRelease := context.WithoutCancel(outer.Context())
			racing := fixture.StartAcquire(afterRelease, x.L)
			fixture.Release(t, outer)
			fixture.Release(t, fixture.AwaitHold(t, racing))
		}
		require.Empty(t, x.Heard.All(primitives.EventLost))
	})
}

// C3: the context carries a hold, and not an owner. Goroutines that share the context of a hold on
// one lock still exclude each other on another lock.
func TestC3ForkedSiblingsExcludeEachOtherOnAnotherLock(t *testing.T) {
	t.Parallel()
	fixture.EachLock(t, func(t *testing.T, x *fixture.LockTest) {
		outer := fixture.Acquire(t, t.Context(), x.L)
		b := x.C.Lock(x.Name + "-b")
		n := 0
		fixture.Concurrently(8, func(int) { fixture.Increment(t, fixture.AsAcquirer(nested{b, outer.Context()}), &n, 3) })
		require.Equal(t, 24, n)
		fixture.Release(t, outer)
	})
}

// Several waiters with the same WithOwner id acquire together, as soon as the id has the lock.
func TestC4WaitersOfOneOwnerAcquireTogether(t *testing.T) {
	t.Parallel()
	fixture.EachLock(t, func(t *testing.T, x *fixture.LockTest) {
		hold := fixture.Acquire(t, t.Context(), x.L)
		var acquired []<-chan fixture.Result
		for range 3 {
			acquired = append(acquired, fixture.StartAcquire(t.Context(), x.L, primitives.WithOwner("o")))
		}
		redistest.WaitFor(t, fixture.Soon, func() bool { return len(x.Heard.All(primitives.EventWait)) == 3 }, "three wait")
		fixture.Release(t, hold)
		var holds []*primitives.Hold
		for _, e := range acquired {
			holds = append(holds, fixture.AwaitHold(t, e))
		}
		require.Equal(t, "3", x.Count(t, "o"))
		fixture.Release(t, holds...)
	})
}

// C20: a lock hash without a TTL, which another program may leave, counts as held. Waiters do not
// spin.
func TestC20KeyWithoutExpiryIsHeld(t *testing.T) {
	t.Parallel()
	fixture.EachLock(t, func(t *testing.T, x *fixture.LockTest) {
		require.NoError(t, x.Rdb.HSet(t.Context(), x.Name, "somebody", 1).Err())
		p := x.S.Proxy(t)
		p.Record()
		c := fixture.NewClient(t, p.Client(t))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		began := time.Now()
		waiting := fixture.StartAcquire(ctx, c.Lock(x.Name))
		fixture.AwaitWaiters(t, c, 1)
		time.Sleep(200 * time.Millisecond)
		cancel()
		require.ErrorIs(t, fixture.Await(t, waiting).Err, primitives.ErrNotAcquired)
		polls := int(time.Since(began) / time.Second)
		require.Less(t, len(fixture.ScriptsOf(p)), 10+polls, "an attempt, another one when subscribed, and slow polls")
		require.Equal(t, time.Duration(-1), fixture.InfoOf(t, x.L).TTL)
		require.NoError(t, x.L.ReleaseID(t.Context(), "somebody"))
	})
}

// C6: WithWait does not limit the hold. The context given to Acquire does.
func TestC6WaitBoundsOnlyTheWaiting(t *testing.T) {
	t.Parallel()
	fixture.Bubble(t, func(t *testing.T, b *fixture.BubbleTest) { // a busy machine needs more than a millisecond
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		hold := fixture.Acquire(t, ctx, b.L, primitives.WithWait(time.Millisecond))
		time.Sleep(time.Second) // the wait limit passes
		fixture.RequireLive(t, hold.Context())
		cancel()
		fixture.RequireEnds(t, hold.Context(), context.Canceled)
		require.NoError(t, hold.Check(t.Context()))
		fixture.Release(t, hold)
	})
}

// C9: a cancelled context neither releases the hold nor stops its renewal.
func TestC9CancellingReleasesNothing(t *testing.T) {
	t.Parallel()
	fixture.EachLock(t, func(t *testing.T, x *fixture.LockTest) {
		ctx, cancel := context.WithCancel(t.Context())
		hold := fixture.Acquire(t, ctx, x.L, primitives.WithWatchdog(fixture.RenewedTTL))
		cancel()
		before := hold.ValidUntil()
		redistest.WaitFor(t, fixture.Soon, func() bool {
			return hold.ValidUntil().Sub(before) > 300*time.Millisecond && len(x.Heard.All(primitives.EventRenewed)) > 0
		}, "the hold is renewed")
		require.NoError(t, hold.Check(t.Context()))
		fixture.Release(t, hold)
	})
}

// C17: a hold is in use for as long as a call of it waits for Redis, even if that is the last use.
func TestC17HoldIsInUseWhileACallWaits(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(*primitives.Hold) error{
		"check":  func(h *primitives.Hold) error { return h.Check(context.Background()) },
		"extend": func(h *primitives.Hold) error { return h.Extend(context.Background(), time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			var heard fixture.Recorder
			proxy := redistest.Redis(t).Proxy(t)
			c := fixture.NewClient(t, proxy.Client(t), heard.Option())
			hold, err := c.Lock(redistest.Name(t)).Acquire(t.Context()) // the fixture's Acquire keeps a reference
			require.NoError(t, err)
			deliver := proxy.HoldReplies(fixture.Script)
			answer := fixture.Go(func() error { return call(hold) })
			for range 5 {
				runtime.GC()
				time.Sleep(2 * time.Millisecond) // a cleanup would run
			}
			require.Empty(t, heard.All(primitives.EventLeaked))
			deliver()
			require.NoError(t, <-answer)
		})
	}
}

// C17: a hold is in use while Do runs its function, which may not use the hold.
func TestC17HoldIsInUseWhileDoRuns(t *testing.T) {
	t.Parallel()
	fixture.EachLock(t, func(t *testing.T, x *fixture.LockTest) {
		_ = x.L.Do(t.Context(), func(context.Context) error {
			runtime.GC()
			time.Sleep(10 * time.Millisecond) // a cleanup would run
			runtime.GC()
			return nil
		})
		require.Empty(t, x.Heard.All(primitives.EventLeaked))
	})
}

// C18: Close refuses new acquisitions and waits for holds.
func TestC18Close(t *testing.T) {
	fixture.EachLock(t, func(t *testing.T, x *fixture.LockTest) {
		c := fixture.NewClient(t, x.S.Client(t))
		l := c.Lock(x.Name)
		require.NoError(t, fixture.NewClient(t, x.S.Client(t)).Close(t.Context()), "a client without work")

		hold := fixture.Acquire(t, t.Context(), l)
		closed := fixture.Go(func() error { return c.Close(context.Background()) })
		redistest.WaitFor(t, fixture.Soon, func() bool {
			_, err := l.TryAcquire(t.Context())
			return errors.Is(err, primitives.ErrClosed)
		}, "new acquisitions are refused")
		fixture.RequireLive(t, hold.Context())
		require.NoError(t, hold.Check(t.Context()))
		fixture.Release(t, hold)
		require.NoError(t, <-closed)
		require.NoError(t, c.Close(t.Context()))
	})
	t.Run("remaining holds end and send nothing", func(t *testing.T) {
		fixture.EachLock(t, closeWithHolds)
	})
	t.Run("no goroutine is left, and no event follows", closeLeavesNothing)
}

// closeWithHolds checks that Close ends the remaining holds when its context is done, and that no
// method sends a command after that.
func closeWithHolds(t *testing.T, x *fixture.LockTest) {
	p := x.S.Proxy(t)
	c := fixture.NewClient(t, p.Client(t))
	l := c.Lock(x.Name)
	outer := fixture.Acquire(t, t.Context(), l)
	inner := fixture.Acquire(t, outer.Context(), l)
	done, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, c.Close(done), context.DeadlineExceeded)
	require.ErrorIs(t, c.Close(t.Context()), context.DeadlineExceeded, "each call returns the same error")
	fixture.RequireEnds(t, inner.Context(), primitives.ErrClosed)
	fixture.RequireEnds(t, outer.Context(), primitives.ErrClosed)
	require.NotEmpty(t, fixture.Fields(t, x.S, x.Name), "Close frees no lock whose section may still run")
	p.Record()
	for name, f := range map[string]func() error{
		"release": func() error { return outer.Release(t.Context()) },
		"check":   func() error { return inner.Check(t.Context()) },
		"extend":  func() error { return inner.Extend(t.Context(), time.Second) },
		"info":    func() error { return fixture.ErrOf(l.Info(t.Context())) },
		"adopt":   func() error { return fixture.ErrOf(l.Adopt(t.Context(), "x")) },
		"id":      func() error { return l.ReleaseID(t.Context(), "x") },
		"force":   func() error { return fixture.ErrOf(l.ForceRelease(t.Context())) },
		"acquire": func() error { return fixture.ErrOf(l.Acquire(t.Context())) },
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
	require.NoError(t, fixture.ErrOf(x.L.ForceRelease(t.Context())))
}

// closeLeavesNothing closes a client at different moments of its work.
func closeLeavesNothing(t *testing.T) {
	for i := range 30 {
		t.Run(strconv.Itoa(i), func(t *testing.T) { closeAfter(t, time.Duration(i)*time.Millisecond) })
	}
}

// closeAfter closes a client that has worked for d.
func closeAfter(t *testing.T, d time.Duration) {
	fixture.CheckLeaks(t)
	s := redistest.Miniredis(t)
	var mu sync.Mutex
	closed := false
	c := fixture.NewClient(t, s.Client(t), primitives.WithObserver(func(e primitives.Event) {
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
