package contract

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// tryDoTest is what a test of TryDo finds: a handle whose commands go through a proxy, and a rival
// on another client.
type tryDoTest struct {
	p     *redistest.Proxy
	c     *primitives.Client
	h     kinds.Handle
	rival kinds.Handle
	kind  kinds.Kind
	name  string
	runs  int
}

// on returns a handle of the same name on another client.
func (x *tryDoTest) on(c *primitives.Client) kinds.Trier { return x.kind.Open(c, x.name).(kinds.Trier) }

// errAny stands for an error that matches nothing in particular.
var errAny = errors.New("any error")

// job is the work of TryDo.
func (x *tryDoTest) job(result error) func(context.Context) error {
	return func(context.Context) error {
		x.runs++
		return result
	}
}

// C12: TryDo skips only if Redis says that somebody else has the lock.
func TestC12TryDo(t *testing.T) {
	cases := []struct {
		name string
		try  func(t *testing.T, x *tryDoTest) (bool, error)
		ran  bool
		want error // nil: no error
	}{
		{"it is free", func(t *testing.T, x *tryDoTest) (bool, error) {
			return x.h.(kinds.Trier).TryDo(t.Context(), x.job(nil))
		}, true, nil},
		{"the work fails", func(t *testing.T, x *tryDoTest) (bool, error) {
			return x.h.(kinds.Trier).TryDo(t.Context(), x.job(fixture.ErrTest))
		}, true, fixture.ErrTest},
		{"the work says that something else was busy", func(t *testing.T, x *tryDoTest) (bool, error) {
			return x.h.(kinds.Trier).TryDo(t.Context(), x.job(primitives.ErrNotAcquired))
		}, true, primitives.ErrNotAcquired},
		{"somebody else has it", func(t *testing.T, x *tryDoTest) (bool, error) {
			fixture.Acquire(t, t.Context(), x.rival)
			return x.h.(kinds.Trier).TryDo(t.Context(), x.job(nil), primitives.WithWait(time.Hour))
		}, false, nil},
		{"this client has it", func(t *testing.T, x *tryDoTest) (bool, error) {
			fixture.Acquire(t, t.Context(), x.rival)
			return x.rival.(kinds.Trier).TryDo(t.Context(), x.job(nil))
		}, false, nil},
		{"the context has ended", func(t *testing.T, x *tryDoTest) (bool, error) {
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(fixture.ErrTest)
			return x.h.(kinds.Trier).TryDo(ctx, x.job(nil))
		}, false, fixture.ErrTest},
		{"the context ends before Redis answers", func(t *testing.T, x *tryDoTest) (bool, error) {
			x.p.BlackHole(true)
			defer x.p.Heal()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			return x.h.(kinds.Trier).TryDo(ctx, x.job(nil))
		}, false, context.DeadlineExceeded},
		{"an option is invalid", func(t *testing.T, x *tryDoTest) (bool, error) {
			return x.h.(kinds.Trier).TryDo(t.Context(), x.job(nil), primitives.WithLease(-1))
		}, false, primitives.ErrInvalid},
		{"the client is closed", func(t *testing.T, x *tryDoTest) (bool, error) {
			require.NoError(t, x.c.Close(t.Context()))
			return x.h.(kinds.Trier).TryDo(t.Context(), x.job(nil))
		}, false, primitives.ErrClosed},
		{"Redis is down", func(t *testing.T, x *tryDoTest) (bool, error) {
			x.p.Cut()
			defer x.p.Heal()
			return x.h.(kinds.Trier).TryDo(t.Context(), x.job(nil))
		}, false, primitives.ErrUnavailable},
		{"Redis is silent", func(t *testing.T, x *tryDoTest) (bool, error) {
			x.p.BlackHole(true)
			defer x.p.Heal()
			c := fixture.NewClient(t, x.p.Client(t), primitives.WithCommandTimeout(150*time.Millisecond))
			return x.on(c).TryDo(t.Context(), x.job(nil))
		}, false, primitives.ErrUnavailable},
		// Nobody can tell after such a short time whether anything is wrong. That is no skip
		// either.
		{"the command timeout is too short for an answer", func(t *testing.T, x *tryDoTest) (bool, error) {
			x.p.BlackHole(true)
			defer x.p.Heal()
			c := fixture.NewClient(t, x.p.Client(t), primitives.WithCommandTimeout(30*time.Millisecond))
			return x.on(c).TryDo(t.Context(), x.job(nil))
		}, false, errAny},
	}
	fixture.EachKind(t, kinds.All(), func(t *testing.T, s *redistest.Server, k kinds.Kind) {
		for _, tt := range cases {
			t.Run(tt.name, func(t *testing.T) {
				x := &tryDoTest{kind: k, p: s.Proxy(t), name: redistest.Name(t)}
				x.c = fixture.NewClient(t, x.p.Client(t, fixture.ShortTimeouts, fixture.NoRetries, fixture.DialsOnce))
				other := fixture.NewClient(t, s.Client(t))
				x.rival = k.Some(t, other, x.name, 1)
				if k.Shared && !k.Pool {
					x.rival = k.Rival(other, x.name)
				}
				x.h = k.Open(x.c, x.name)
				ran, err := tt.try(t, x)
				require.Equal(t, tt.ran, ran)
				require.Equal(t, tt.want == nil, err == nil, "%v", err)
				if tt.want != nil && tt.want != errAny { //nolint:errorlint // the very value
					require.ErrorIs(t, err, tt.want)
				}
				require.Equal(t, tt.ran, x.runs == 1)
			})
		}
	})
}

// C12: TryDo releases as Do does.
func TestC12TryDoReleases(t *testing.T) {
	fixture.EachKind(t, kinds.All(), func(t *testing.T, s *redistest.Server, k kinds.Kind) {
		h := k.One(t, fixture.NewClient(t, s.Client(t)), redistest.Name(t))
		require.Panics(t, func() {
			_, _ = h.(kinds.Trier).TryDo(t.Context(), func(context.Context) error { panic("x") })
		})
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = h.(kinds.Trier).TryDo(t.Context(), func(context.Context) error { runtime.Goexit(); return nil })
		}()
		<-done
		fixture.Release(t, fixture.Acquire(t, t.Context(), h))
		if !k.Leased {
			return
		}
		ran, err := h.(kinds.Trier).TryDo(t.Context(), func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		}, primitives.WithLease(300*time.Millisecond))
		require.True(t, ran)
		require.ErrorIs(t, err, primitives.ErrLost, "the work may have gone on beyond its lease")
	})
}

// C12: a majority of refusals is a skip, although another member fails. A majority of failures is
// none.
func TestC12TryDoOfARedLock(t *testing.T) {
	for name, tt := range map[string]struct {
		held, down []int
		isSkip     bool
	}{
		"two are held, one is down": {[]int{0, 1}, []int{2}, true},
		"one is held, two are down": {[]int{0}, []int{1, 2}, false},
		"all are held":              {[]int{0, 1, 2}, nil, true},
		"all are down":              {nil, []int{0, 1, 2}, false},
	} {
		t.Run(name, func(t *testing.T) {
			q := fixture.NewQuorum(t, 3)
			q.Hold(t, tt.held...)
			l := q.On(t)
			for _, i := range tt.down {
				q.Proxies[i].Cut()
			}
			ran, err := l.TryDo(t.Context(), func(context.Context) error { return nil })
			require.False(t, ran)
			require.Equal(t, tt.isSkip, err == nil, "%v", err)
		})
	}
}

// C12: nobody does the work while a semaphore has no count, so that is an error.
func TestC12TryDoWithoutACount(t *testing.T) {
	fixture.EachKind(t, kinds.Pools(), func(t *testing.T, s *redistest.Server, k kinds.Kind) {
		h := k.Open(fixture.NewClient(t, s.Client(t)), redistest.Name(t))
		ran, err := h.(kinds.Trier).TryDo(t.Context(), func(context.Context) error { return nil })
		require.False(t, ran)
		require.ErrorIs(t, err, primitives.ErrNotAcquired)
		require.ErrorContains(t, err, "no count")
	})
}

// C12: HoldFrom finds the nearest live hold, whatever it is of.
func TestC12HoldFrom(t *testing.T) {
	fixture.EachKind(t, kinds.All(), func(t *testing.T, s *redistest.Server, k kinds.Kind) {
		c, name := fixture.NewClient(t, s.Client(t)), redistest.Name(t)
		fenced := fixture.NewClient(t, s.Client(t)).FencedLock(name + ":fenced")
		h := k.One(t, c, name)
		require.Nil(t, primitives.HoldFrom(t.Context()))
		outer := fixture.Acquire(t, t.Context(), fenced)
		hold := fixture.Acquire(t, outer.Context(), h)
		derived, cancel := context.WithCancel(hold.Context())
		cancel()
		require.Same(t, hold, primitives.HoldFrom(derived), "the nearest one")
		require.Positive(t, primitives.HoldFrom(outer.Context()).Token())
		fixture.Release(t, hold)
		require.Same(t, outer, primitives.HoldFrom(derived), "a hold that has ended is passed over")
		fixture.Release(t, outer)
		require.Nil(t, primitives.HoldFrom(derived))
	})
}

// C12: within a joint lock, HoldFrom of a member finds the member's hold, with the token of a
// fenced one. The nearest hold of any primitive is the joint one.
func TestC12HoldFromOfAMember(t *testing.T) {
	for name, join := range map[string]func([]*primitives.Lock, ...primitives.Option) *primitives.Lock{
		"multi": primitives.NewMultiLock, "red": primitives.NewRedLock,
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				name, c := redistest.Name(t), fixture.NewClient(t, s.Client(t))
				plain, fenced, fair := c.Lock(name+":plain"), c.FencedLock(name+":fenced"), c.FairLock(name+":fair")
				joint := join([]*primitives.Lock{plain, fenced, fair})
				check := func(ctx context.Context) {
					hold := primitives.HoldFrom(ctx)
					require.Equal(t, joint.Name(), hold.Name())
					require.Same(t, hold, joint.HoldFrom(ctx))
					for _, member := range []*primitives.Lock{plain, fenced, fair} {
						of := member.HoldFrom(ctx)
						require.NotNil(t, of, member.Name())
						require.Equal(t, []any{member.Name(), hold.ID()}, []any{of.Name(), of.ID()})
						if name == "multi" { // of a redlock, one may be acquired later
							require.NoError(t, of.Check(t.Context()))
						}
						require.Equal(t, member == fenced, of.Token() > 0, member.Name())
					}
					require.Nil(t, c.Lock(name+":other").HoldFrom(ctx))
					require.Nil(t, c.FairLock(name+":plain").HoldFrom(ctx), "of another kind")
					require.Nil(t, fixture.NewClient(t, s.Client(t)).Lock(name+":plain").HoldFrom(ctx), "of another client")
				}
				require.NoError(t, joint.Do(t.Context(), func(ctx context.Context) error {
					redistest.WaitFor(t, fixture.Soon, func() bool { // a redlock may still wait for a member
						return plain.HoldFrom(ctx) != nil && fenced.HoldFrom(ctx) != nil && fair.HoldFrom(ctx) != nil
					}, "all members are held")
					check(ctx)
					return nil
				}))

				hold := fixture.Acquire(t, t.Context(), joint)
				inner := fixture.Acquire(t, hold.Context(), c.Lock(name+":inner"))
				require.Same(t, inner, primitives.HoldFrom(inner.Context()))
				redistest.WaitFor(t, fixture.Soon, func() bool { return fenced.HoldFrom(inner.Context()) != nil },
					"through another hold")
				fixture.Release(t, inner, hold)
				require.Nil(t, plain.HoldFrom(hold.Context()))
				require.Nil(t, primitives.HoldFrom(hold.Context()))
			})
		})
	}
}

// C12: HoldFrom finds no member that was lost, and none of a joint hold that was lost with it.
func TestC12HoldFromOfALostMember(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name, c := redistest.Name(t), fixture.NewClient(t, s.Client(t))
		first, second := c.Lock(name+":1"), c.Lock(name+":2")
		hold := fixture.Acquire(t, t.Context(), primitives.NewMultiLock([]*primitives.Lock{first, second}))
		ctx := hold.Context()
		require.NoError(t, fixture.ErrOf(fixture.NewClient(t, s.Client(t)).Lock(first.Name()).ForceRelease(t.Context())))
		require.ErrorIs(t, hold.Check(t.Context()), primitives.ErrLost)
		require.Nil(t, first.HoldFrom(ctx))
		require.Nil(t, second.HoldFrom(ctx))
		require.Nil(t, primitives.HoldFrom(ctx))
		require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
	})
}

// C12: a redlock stays held without one of its members, and HoldFrom does not find that one.
func TestC12HoldFromOfAMemberThatSomebodyElseHas(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name, c, other := redistest.Name(t), fixture.NewClient(t, s.Client(t)), fixture.NewClient(t, s.Client(t))
		members := []*primitives.Lock{c.Lock(name + ":1"), c.Lock(name + ":2"), c.Lock(name + ":3")}
		joint := primitives.NewRedLock(members)
		hold := fixture.Acquire(t, t.Context(), joint)
		ctx := hold.Context()
		redistest.WaitFor(t, fixture.Soon, func() bool { return members[2].HoldFrom(ctx) != nil }, "it is held")
		require.NoError(t, fixture.ErrOf(other.Lock(name+":3").ForceRelease(t.Context())))
		rival := fixture.Acquire(t, t.Context(), other.Lock(name+":3"))
		require.NoError(t, hold.Check(t.Context()))
		require.Nil(t, members[2].HoldFrom(ctx))
		require.NotNil(t, members[1].HoldFrom(ctx))
		require.Same(t, hold, primitives.HoldFrom(ctx))
		fixture.Release(t, hold, rival)
	})
}
