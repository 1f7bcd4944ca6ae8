package primitives_test

import (
	"context"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

type join func([]*primitives.Lock, ...primitives.Option) *primitives.Lock

// jointTest is what tests of several locks as one start from: three members on one server, and an observed client.
type jointTest struct {
	s     *redistest.Server
	kind  string
	join  join
	base  string
	names []string // sorted
	heard *recorder
	c     *primitives.Client
	l     *primitives.Lock
	rdb   *redis.Client
}

func onJoint(t *testing.T, s *redistest.Server, kind string) *jointTest {
	x := &jointTest{s: s, kind: kind, join: primitives.NewMultiLock, base: redistest.Name(t), heard: &recorder{}, rdb: s.Client(t)}
	if kind == "red" {
		x.join = primitives.NewRedLock
	}
	for _, end := range []string{"-a", "-b", "-c"} {
		x.names = append(x.names, x.base+end)
	}
	x.c = newClient(t, s.Client(t), x.heard.option())
	x.l = x.on(x.c)
	return x
}

// locks are the members on c, in another order than the one they are taken in.
func (x *jointTest) locks(c *primitives.Client) []*primitives.Lock {
	return []*primitives.Lock{c.Lock(x.names[1]), c.Lock(x.names[2]), c.Lock(x.names[0])}
}

func (x *jointTest) on(c *primitives.Client, opts ...primitives.Option) *primitives.Lock {
	return x.join(x.locks(c), opts...)
}

func (x *jointTest) other(t *testing.T) *primitives.Client { return newClient(t, x.s.Client(t)) }

// counts requires that id has that count in each member; "" for nobody holding it.
func (x *jointTest) counts(t *testing.T, id string, want ...string) {
	t.Helper()
	for i, name := range x.names {
		expected := map[string]string{}
		if want[i] != "" {
			expected[id] = want[i]
		}
		got, err := x.rdb.HGetAll(t.Context(), name).Result()
		require.NoError(t, err)
		require.Equal(t, expected, got, name)
	}
}

// javaTakes takes a lock as Redisson does.
func javaTakes(t *testing.T, s *redistest.Server, name string) {
	t.Helper()
	rdb := s.Client(t)
	require.NoError(t, rdb.HSet(t.Context(), name, "8a0a8ea4-7f4f-4b0e-8d2b-9d6c3a5f1e11:42", 1).Err())
	require.NoError(t, rdb.PExpire(t.Context(), name, 30*time.Second).Err())
}

func javaReleases(t *testing.T, s *redistest.Server, name string) {
	t.Helper()
	rdb := s.Client(t)
	require.NoError(t, rdb.Del(t.Context(), name).Err())
	require.NoError(t, rdb.Publish(t.Context(), "redisson_lock__channel:{"+name+"}", "0").Err())
}

// TestJoint holds what multi and red have in common, a row a rule.
func TestJoint(t *testing.T) {
	rules := []struct {
		name string
		only string // of one kind
		rule func(t *testing.T, x *jointTest)
	}{
		{"one id in every member", "", jointOneID},
		{"rivals exclude each other", "", jointExcludes},
		{"identity does not depend on order", "", jointIdentity},
		{"nests as a whole, and its members in it", "", jointNests},
		{"nests under a hold of one member", "", jointUnderSingle},
		{"members held by different ids", "", jointMixedIDs},
		{"forked siblings exclude each other", "", jointSiblings},
		{"siblings under a reader exclude each other", "", jointReaderSiblings},
		{"options given to it replace the members'", "", jointOptions},
		{"a failed try gives back what it took", "multi", multiAllOrNone},
		{"a lost member is a lost hold, once", "multi", multiLost},
		{"a lost minority is no loss", "red", redMinorityLost},
		{"the earliest member's validity counts", "multi", multiValidity},
		{"an extension never extends another's", "multi", multiExtend},
		{"detached, adopted, released by id", "", jointByID},
		{"forgotten after its loss", "multi", multiLeakedLost},
		{"forgotten", "", jointLeaked},
		{"the wait is told, once, and bounded", "", jointWait},
		{"an owner of the caller's", "", jointOwner},
		{"Redisson beside it", "", jointJava},
		{"Close ends its hold", "", jointClose},
		{"Close ends its wait", "", jointCloseWaiting},
		{"Close of another member's client", "multi", multiCloseOther},
		{"ForceRelease and Info", "", jointUnsupported},
		{"other kinds as members", "", jointKinds},
	}
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, kind := range []string{"multi", "red"} {
			t.Run(kind, func(t *testing.T) {
				for _, rule := range rules {
					if rule.only != "" && rule.only != kind {
						continue
					}
					t.Run(rule.name, func(t *testing.T) {
						t.Parallel()
						x := onJoint(t, s, kind)
						rule.rule(t, x)
						requireClean(t, s, x.base)
					})
				}
			})
		}
	})
}

func jointOneID(t *testing.T, x *jointTest) {
	hold := acquire(t, t.Context(), x.l)
	require.True(t, strings.HasPrefix(hold.ID(), x.c.ID()+":"))
	require.Equal(t, strings.Join(x.names, ","), hold.Name())
	require.Equal(t, 1, hold.Depth())
	require.Zero(t, hold.Token())
	x.counts(t, hold.ID(), "1", "1", "1")
	require.NoError(t, hold.Check(t.Context()))
	requireLive(t, x.c.Lock(x.names[0]).HoldFrom(hold.Context()).Context())
	release(t, hold)
	x.counts(t, "", "", "", "")
	require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrReleased)
	require.Equal(t, []primitives.EventKind{primitives.EventAcquired, primitives.EventReleased}, x.heard.kinds(), "nothing is told of members")
	e := x.heard.all(primitives.EventAcquired)[0]
	require.Equal(t, []string{x.kind, hold.Name(), hold.ID()}, []string{e.Lock, e.Name, e.ID})
}

func jointExcludes(t *testing.T, x *jointTest) {
	if x.s.Mini() != nil {
		t.Skip("as the mutex contract has it")
	}
	n, each := 0, scaled(x.s, 20)
	var wg sync.WaitGroup
	for i := range 6 {
		locks := x.locks(x.other(t))
		if i%2 == 0 {
			slices.Reverse(locks)
		}
		wg.Go(func() { increment(t, acts(x.join(locks)), &n, each) })
	}
	wg.Wait()
	require.Equal(t, 6*each, n)
}

func jointIdentity(t *testing.T, x *jointTest) {
	c := x.other(t)
	mixed := []*primitives.Lock{x.c.Lock(x.names[0]), c.Lock(x.names[1]), x.c.Lock(x.names[2])}
	one := x.join(mixed)
	slices.Reverse(mixed)
	other := x.join(append(mixed, mixed[1], mixed[0])) // twice is once
	require.Equal(t, one.Name(), other.Name())
	hold := acquire(t, t.Context(), one)
	require.Same(t, hold, other.HoldFrom(hold.Context()))
	inner := acquire(t, hold.Context(), other)
	require.Equal(t, 2, inner.Depth())
	x.counts(t, hold.ID(), "2", "2", "2")
	release(t, inner)
	release(t, hold)

	// Also when it is clients that differ, not names.
	far := newClient(t, x.s.Client(t), primitives.WithPrefix("far-"))
	pair := []*primitives.Lock{x.c.Lock(x.base), far.Lock(x.base)}
	hold = acquire(t, t.Context(), x.join(pair))
	slices.Reverse(pair)
	require.Same(t, hold, x.join(pair).HoldFrom(hold.Context()))
	release(t, hold)
}

func jointNests(t *testing.T, x *jointTest) {
	ctx := t.Context()
	outer := acquire(t, ctx, x.l)
	inner := acquire(t, outer.Context(), x.l)
	require.Equal(t, outer.ID(), inner.ID())
	require.Equal(t, 2, inner.Depth())
	single := acquire(t, inner.Context(), x.c.Lock(x.names[1]))
	require.Equal(t, outer.ID(), single.ID())
	require.Equal(t, 3, single.Depth())
	x.counts(t, outer.ID(), "2", "3", "2")
	_, err := x.l.Acquire(inner.Context(), primitives.WithNonReentrant())
	require.ErrorIs(t, err, primitives.ErrDeadlock)
	release(t, outer) // in whatever order
	x.counts(t, outer.ID(), "1", "2", "1")
	release(t, single)
	release(t, inner)
	require.Len(t, x.heard.all(primitives.EventNested), 2)
}

func jointUnderSingle(t *testing.T, x *jointTest) {
	single := acquire(t, t.Context(), x.c.Lock(x.names[1]))
	hold, err := x.l.TryAcquire(single.Context())
	require.NoError(t, err)
	require.Equal(t, single.ID(), hold.ID(), "one id in all members")
	x.counts(t, hold.ID(), "1", "2", "1")
	again := acquire(t, hold.Context(), x.c.Lock(x.names[0]))
	require.Equal(t, 2, again.Depth())
	whole := acquire(t, again.Context(), x.l)
	x.counts(t, hold.ID(), "3", "3", "2")
	_, err = x.on(x.other(t)).TryAcquire(t.Context())
	require.ErrorIs(t, err, primitives.ErrNotAcquired)
	for _, h := range []*primitives.Hold{single, again, whole} {
		release(t, h)
	}
	x.counts(t, hold.ID(), "1", "1", "1")
	release(t, hold)
}

func jointMixedIDs(t *testing.T, x *jointTest) {
	a := acquire(t, t.Context(), x.c.Lock(x.names[0]))
	b := acquire(t, a.Context(), x.c.Lock(x.names[1]))
	_, err := x.l.Acquire(b.Context())
	require.ErrorIs(t, err, primitives.ErrDeadlock)
	release(t, b)
	release(t, a)
}

// Goroutines forked under one hold exclude each other in whatever they take: the whole, or a member.
func jointSiblings(t *testing.T, x *jointTest) {
	outer := acquire(t, t.Context(), x.l)
	n, each := 0, scaled(x.s, 20)
	var wg sync.WaitGroup
	for i := range 6 {
		l := x.l
		if i%2 == 0 && x.kind == "multi" { // a red lock can do without one member
			l = x.c.Lock(x.names[1])
		}
		wg.Go(func() {
			for range each {
				if err := l.Do(outer.Context(), func(context.Context) error { n++; return nil }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.Equal(t, 6*each, n)
	x.counts(t, outer.ID(), "1", "1", "1")
	release(t, outer)
}

// Holds that ctx carries give their id, but no right to what siblings took by the same id.
func jointReaderSiblings(t *testing.T, x *jointTest) {
	reader := x.c.RWLock(x.base + "-rw").Reader()
	shared := acquire(t, t.Context(), reader)
	n, each := 0, scaled(x.s, 5)
	var inside atomic.Int32
	var wg sync.WaitGroup
	for range 3 {
		l := x.join(append(x.locks(x.c), reader))
		wg.Go(func() {
			for range each {
				if err := l.Do(shared.Context(), func(context.Context) error {
					if inside.Add(1) > 1 {
						t.Error("two inside")
					}
					n++
					time.Sleep(time.Millisecond)
					inside.Add(-1)
					return nil
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.Equal(t, 3*each, n)
	release(t, shared)
}

func jointOptions(t *testing.T, x *jointTest) {
	ttl := func(name string) time.Duration {
		return x.s.Client(t).PTTL(t.Context(), name).Val().Round(10 * time.Second)
	}
	c := newClient(t, x.s.Client(t), primitives.WithDefaults(primitives.WithLease(20*time.Second)))
	locks := []*primitives.Lock{c.Lock(x.names[0]), c.Lock(x.names[1], primitives.WithLease(40*time.Second))}
	require.Equal(t, x.join(locks).Name(), x.names[0]+","+x.names[1])
	hold := acquire(t, t.Context(), x.join(locks))
	require.Equal(t, []time.Duration{20 * time.Second, 40 * time.Second}, []time.Duration{ttl(x.names[0]), ttl(x.names[1])}, "the members' own")
	release(t, hold)
	hold = acquire(t, t.Context(), x.join(locks, primitives.WithLease(60*time.Second)))
	require.Equal(t, []time.Duration{60 * time.Second, 60 * time.Second}, []time.Duration{ttl(x.names[0]), ttl(x.names[1])}, "the joint lock's")
	release(t, hold)
	hold = acquire(t, t.Context(), x.join(locks, primitives.WithLease(60*time.Second)), primitives.WithLease(80*time.Second))
	require.Equal(t, []time.Duration{80 * time.Second, 80 * time.Second}, []time.Duration{ttl(x.names[0]), ttl(x.names[1])}, "the call's")
	release(t, hold)
	hold = acquire(t, t.Context(), x.join(locks), primitives.WithWatchdog(time.Minute), primitives.WithMaxHold(10*time.Second))
	require.Less(t, time.Until(hold.ValidUntil()), 10*time.Second)
	release(t, hold)
	for _, opt := range []primitives.Option{primitives.WithLease(0), primitives.WithPermits(-1), primitives.WithOwner("mode")} {
		_, err := x.join(locks, opt).Acquire(t.Context())
		require.ErrorIs(t, err, primitives.ErrInvalid)
		_, err = x.join(locks).Acquire(t.Context(), opt)
		require.ErrorIs(t, err, primitives.ErrInvalid)
	}
}

func multiAllOrNone(t *testing.T, x *jointTest) {
	for i, name := range x.names {
		single := acquire(t, t.Context(), x.other(t).Lock(name))
		_, err := x.l.TryAcquire(t.Context())
		require.ErrorIs(t, err, primitives.ErrNotAcquired)
		want := []string{"", "", ""}
		want[i] = "1"
		x.counts(t, single.ID(), want...)
		release(t, single)
	}
}

func multiLost(t *testing.T, x *jointTest) {
	for _, find := range []func(hold *primitives.Hold) error{
		func(hold *primitives.Hold) error { return hold.Check(t.Context()) },
		func(hold *primitives.Hold) error { return hold.Extend(t.Context(), time.Minute) },
		func(hold *primitives.Hold) error { <-hold.Context().Done(); return context.Cause(hold.Context()) },
		nil,
	} {
		before := len(x.heard.all(primitives.EventLost))
		hold := acquire(t, t.Context(), x.l, primitives.WithWatchdog(300*time.Millisecond))
		_, err := x.c.Lock(x.names[1]).ForceRelease(t.Context())
		require.NoError(t, err)
		if find != nil {
			require.ErrorIs(t, find(hold), primitives.ErrLost)
			require.ErrorIs(t, context.Cause(hold.Context()), primitives.ErrLost)
			require.True(t, hold.ValidUntil().IsZero())
			require.Nil(t, x.l.HoldFrom(hold.Context()))
		}
		require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
		x.counts(t, "", "", "", "") // what was left is given back by now
		require.ErrorIs(t, context.Cause(hold.Context()), primitives.ErrLost)
		require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrReleased)
		redistest.WaitFor(t, soon, func() bool { return len(x.heard.all(primitives.EventLost)) > before }, "told")
		lost := x.heard.all(primitives.EventLost)
		require.Len(t, lost, before+1, "once")
		require.Equal(t, "multi", lost[before].Lock)
	}
}

func redMinorityLost(t *testing.T, x *jointTest) {
	hold := acquire(t, t.Context(), x.l)
	_, err := x.c.Lock(x.names[0]).ForceRelease(t.Context())
	require.NoError(t, err)
	javaTakes(t, x.s, x.names[0])
	require.NoError(t, hold.Check(t.Context()))
	require.NoError(t, hold.Extend(t.Context(), time.Minute))
	requireLive(t, hold.Context())
	require.Greater(t, time.Until(hold.ValidUntil()), 55*time.Second)
	inner := acquire(t, hold.Context(), x.l)
	require.Equal(t, hold.ID(), inner.ID())
	release(t, inner)
	_, err = x.on(x.other(t)).TryAcquire(t.Context())
	require.ErrorIs(t, err, primitives.ErrNotAcquired)
	_, err = x.c.Lock(x.names[1]).ForceRelease(t.Context())
	require.NoError(t, err)
	require.ErrorIs(t, hold.Check(t.Context()), primitives.ErrLost)
	requireEnds(t, hold.Context(), primitives.ErrLost)
	require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
	redistest.WaitFor(t, soon, func() bool { return len(x.heard.all(primitives.EventLost)) == 1 }, "told once")
	javaReleases(t, x.s, x.names[0])
}

func multiValidity(t *testing.T, x *jointTest) {
	locks := x.locks(x.c)
	locks[2] = x.c.Lock(x.names[0], primitives.WithLease(3*time.Second))
	began := time.Now()
	hold := acquire(t, t.Context(), x.join(locks))
	require.LessOrEqual(t, hold.ValidUntil().Sub(began), 3*time.Second)
	require.NoError(t, hold.Extend(t.Context(), 10*time.Second))
	require.Greater(t, hold.ValidUntil().Sub(began), 9*time.Second)
	release(t, hold)

	// A lease that ran while another member was waited for is not handed out when it is nearly over: the attempt begins again.
	blocked := acquire(t, t.Context(), x.other(t).Lock(x.names[1]))
	waiting := start(func() (*primitives.Hold, error) {
		return x.join(locks).Acquire(t.Context(), primitives.WithLease(600*time.Millisecond))
	})
	time.Sleep(time.Second)
	release(t, blocked)
	r := await(t, waiting)
	require.NoError(t, r.err)
	require.Greater(t, r.hold.ValidUntil().Sub(r.at), 150*time.Millisecond)
	release(t, r.hold)
}

func multiExtend(t *testing.T, x *jointTest) {
	hold := acquire(t, t.Context(), x.l)
	_, err := x.c.Lock(x.names[2]).ForceRelease(t.Context())
	require.NoError(t, err)
	thief := acquire(t, t.Context(), x.other(t).Lock(x.names[2]), primitives.WithLease(5*time.Second))
	require.ErrorIs(t, hold.Extend(t.Context(), time.Hour), primitives.ErrLost)
	require.Less(t, x.s.Client(t).PTTL(t.Context(), x.names[2]).Val(), 6*time.Second)
	require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
	require.NoError(t, thief.Check(t.Context()))
	release(t, thief)
}

func jointByID(t *testing.T, x *jointTest) {
	ctx := t.Context()
	hold := acquire(t, ctx, x.l)
	inner := acquire(t, hold.Context(), x.l)
	heir := x.on(x.other(t))
	adopted, err := heir.Adopt(ctx, hold.ID())
	require.NoError(t, err)
	require.NotEqual(t, hold.ID(), adopted.ID())
	require.Equal(t, 1, adopted.Depth())
	x.counts(t, adopted.ID(), "2", "2", "2")
	require.ErrorIs(t, inner.Check(ctx), primitives.ErrLost)
	require.ErrorIs(t, hold.Release(ctx), primitives.ErrLost)
	require.NoError(t, adopted.Check(ctx))
	_, err = heir.Adopt(ctx, hold.ID())
	require.ErrorIs(t, err, primitives.ErrNotHeld)
	require.NoError(t, adopted.Extend(ctx, time.Minute))
	release(t, adopted)
	x.counts(t, "", "", "", "")

	hold = acquire(t, ctx, x.l)
	id := hold.Detach()
	require.Equal(t, hold.ID(), id)
	require.Empty(t, hold.Detach())
	x.counts(t, id, "1", "1", "1")
	require.ErrorIs(t, context.Cause(hold.Context()), primitives.ErrReleased)
	require.NoError(t, heir.ReleaseID(ctx, id))
	x.counts(t, "", "", "", "")
	require.ErrorIs(t, heir.ReleaseID(ctx, id), primitives.ErrNotHeld)
}

func multiLeakedLost(t *testing.T, x *jointTest) {
	c := x.other(t)
	func() {
		hold := acquire(t, t.Context(), x.on(c))
		_, err := c.Lock(x.names[0]).ForceRelease(t.Context())
		require.NoError(t, err)
		require.ErrorIs(t, hold.Check(t.Context()), primitives.ErrLost)
	}()
	closed := make(chan error, 1)
	go func() { closed <- c.Close(context.Background()) }() // waits for holds
	redistest.WaitFor(t, soon, func() bool { runtime.GC(); return len(closed) > 0 }, "nothing is kept of what was forgotten")
	require.NoError(t, <-closed)
	x.s.Client(t).Del(t.Context(), x.names...)
}

func jointLeaked(t *testing.T, x *jointTest) {
	func() { acquire(t, t.Context(), x.l) }()
	redistest.WaitFor(t, soon, func() bool { runtime.GC(); return len(x.heard.all(primitives.EventLeaked)) > 0 }, "leaked")
	require.Equal(t, x.kind, x.heard.all(primitives.EventLeaked)[0].Lock)
	require.NoError(t, x.c.Close(t.Context()), "no part is left")
	x.s.Client(t).Del(t.Context(), x.names...)
}

func jointWait(t *testing.T, x *jointTest) {
	rival := acquire(t, t.Context(), x.on(x.other(t)))
	began := time.Now()
	_, err := x.l.Acquire(t.Context(), primitives.WithWait(500*time.Millisecond)) // the first try may take a part of it
	require.ErrorIs(t, err, primitives.ErrNotAcquired)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	require.GreaterOrEqual(t, time.Since(began), 500*time.Millisecond)
	require.Len(t, x.heard.all(primitives.EventWait), 1)
	waiting := start(func() (*primitives.Hold, error) { return x.l.Acquire(t.Context()) })
	redistest.WaitFor(t, soon, func() bool { return len(x.heard.all(primitives.EventWait)) == 2 }, "told")
	awaitWaiter(t, x.s, x.base)
	release(t, rival)
	released := time.Now()
	r := await(t, waiting)
	require.NoError(t, r.err)
	if x.s.Mini() == nil {
		require.Less(t, r.at.Sub(released), 900*time.Millisecond, "by message")
	}
	release(t, r.hold)
	require.Len(t, x.heard.all(primitives.EventWait), 2)
	require.Equal(t, x.kind, x.heard.all(primitives.EventWait)[0].Lock)
	require.Positive(t, x.heard.all(primitives.EventAcquired)[0].Waited)
}

func jointOwner(t *testing.T, x *jointTest) {
	ctx := t.Context()
	hold := acquire(t, ctx, x.l, primitives.WithOwner("me"))
	require.Equal(t, "me", hold.ID())
	same := acquire(t, ctx, x.on(x.other(t), primitives.WithOwner("me")))
	x.counts(t, "me", "2", "2", "2")
	single := acquire(t, hold.Context(), x.c.Lock(x.names[0]))
	x.counts(t, "me", "3", "2", "2")
	release(t, single)
	release(t, hold)
	x.counts(t, "me", "1", "1", "1")
	release(t, same)
}

func jointJava(t *testing.T, x *jointTest) {
	javaTakes(t, x.s, x.names[2])
	javaTakes(t, x.s, x.names[1])
	_, err := x.l.TryAcquire(t.Context())
	require.ErrorIs(t, err, primitives.ErrNotAcquired)
	require.Empty(t, fields(t, x.s, x.names[0]))
	waiting := start(func() (*primitives.Hold, error) { return x.l.Acquire(t.Context()) })
	awaitWaiter(t, x.s, x.base)
	javaReleases(t, x.s, x.names[1])
	javaReleases(t, x.s, x.names[2])
	r := await(t, waiting)
	require.NoError(t, r.err)
	release(t, r.hold)
}

func jointClose(t *testing.T, x *jointTest) {
	hold := acquire(t, t.Context(), x.l)
	shut(x.c)
	require.ErrorIs(t, context.Cause(hold.Context()), primitives.ErrClosed)
	require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrClosed)
	x.counts(t, hold.ID(), "1", "1", "1") // its section may still run
	_, err := x.l.Acquire(t.Context())
	require.ErrorIs(t, err, primitives.ErrClosed)
	require.NoError(t, x.on(x.other(t)).ReleaseID(t.Context(), hold.ID()))
}

// The wait ends though it is another client's member that is waited for.
func jointCloseWaiting(t *testing.T, x *jointTest) {
	other := x.other(t)
	locks := []*primitives.Lock{x.c.Lock(x.names[0]), other.Lock(x.names[1]), other.Lock(x.names[2])}
	var singles []*primitives.Hold
	for _, name := range x.names[1:] {
		singles = append(singles, acquire(t, t.Context(), other.Lock(name)))
	}
	waiting := start(func() (*primitives.Hold, error) { return x.join(locks).Acquire(t.Context()) })
	awaitWaiter(t, x.s, x.base)
	began := time.Now()
	require.NoError(t, x.c.Close(t.Context()))
	require.Less(t, time.Since(began), 1500*time.Millisecond)
	err := await(t, waiting).err
	require.ErrorIs(t, err, primitives.ErrClosed)
	require.NotErrorIs(t, err, primitives.ErrNotAcquired)
	for _, single := range singles {
		release(t, single)
	}
}

func multiCloseOther(t *testing.T, x *jointTest) {
	other := x.other(t)
	l := x.join([]*primitives.Lock{x.c.Lock(x.names[0]), other.Lock(x.names[1])})
	hold := acquire(t, t.Context(), l)
	shut(other)
	requireEnds(t, hold.Context(), primitives.ErrLost)
	require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
	require.Empty(t, fields(t, x.s, x.names[0]))
	require.NotEmpty(t, fields(t, x.s, x.names[1]), "its section may still run")
	_, err := l.Acquire(t.Context())
	require.ErrorIs(t, err, primitives.ErrClosed)
	require.NoError(t, x.c.Lock(x.names[1]).ReleaseID(t.Context(), hold.ID()))
}

func jointUnsupported(t *testing.T, x *jointTest) {
	_, err := x.l.ForceRelease(t.Context())
	require.ErrorIs(t, err, primitives.ErrUnsupported)
	_, err = x.l.Info(t.Context())
	require.ErrorIs(t, err, primitives.ErrUnsupported)
}

func jointKinds(t *testing.T, x *jointTest) {
	locks := func(c *primitives.Client, write bool) []*primitives.Lock {
		rw := c.RWLock(x.base + "-rw")
		side := rw.Reader()
		if write {
			side = rw.Writer()
		}
		return []*primitives.Lock{c.FairLock(x.base + "-fair"), side}
	}
	one, other := x.join(locks(x.c, false)), x.join(locks(x.other(t), false))
	hold := acquire(t, t.Context(), one)
	inner := acquire(t, hold.Context(), one)
	release(t, inner)
	require.NoError(t, hold.Check(t.Context()))
	waiting := start(func() (*primitives.Hold, error) { return other.Acquire(t.Context()) })
	awaitWaiter(t, x.s, x.base)
	release(t, hold)
	r := await(t, waiting)
	require.NoError(t, r.err)
	_, err := x.join(locks(x.c, true)).TryAcquire(t.Context())
	require.ErrorIs(t, err, primitives.ErrNotAcquired)
	release(t, r.hold)
	hold = acquire(t, t.Context(), x.join(locks(x.c, true)))
	release(t, hold)

	fenced := x.c.FencedLock(x.base + "-fenced")
	hold = acquire(t, t.Context(), x.join([]*primitives.Lock{fenced, x.c.Lock(x.names[0])}))
	require.Positive(t, fenced.HoldFrom(hold.Context()).Token())
	release(t, hold)
	require.NoError(t, x.s.Client(t).Del(t.Context(), "redisson_lock_token:{"+x.base+"-fenced}").Err())
}

func TestJointInvalid(t *testing.T) {
	c := newClient(t, redistest.Miniredis(t).Client(t))
	a, b := c.Lock("a"), c.Lock("b")
	for name, locks := range map[string][]*primitives.Lock{
		"none":                  {},
		"nil":                   {a, nil},
		"a multilock":           {a, primitives.NewMultiLock([]*primitives.Lock{b})},
		"a redlock":             {a, primitives.NewRedLock([]*primitives.Lock{b})},
		"an invalid member":     {a, c.Lock("")},
		"two kinds on one name": {a, c.FencedLock("a")},
	} {
		t.Run(name, func(t *testing.T) {
			for _, join := range []join{primitives.NewMultiLock, primitives.NewRedLock} {
				l := join(locks)
				hold := acquire(t, t.Context(), b)
				require.Nil(t, l.HoldFrom(hold.Context()))
				release(t, hold)
				_, err := l.Acquire(t.Context())
				require.ErrorIs(t, err, primitives.ErrInvalid)
				_, err = l.TryAcquire(t.Context())
				require.ErrorIs(t, err, primitives.ErrInvalid)
				_, err = l.Adopt(t.Context(), "id")
				require.ErrorIs(t, err, primitives.ErrInvalid)
				require.ErrorIs(t, l.ReleaseID(t.Context(), "id"), primitives.ErrInvalid)
				require.ErrorIs(t, l.Do(t.Context(), nil), primitives.ErrInvalid)
				require.Panics(t, func() { l.Locker(t.Context()).Lock() })
			}
		})
	}
}

// Whoever takes 2 to 10 of 10 locks, in whatever order they were given, and whoever takes two of them singly in the wrong order, makes
// progress.
func TestMultiProgress(t *testing.T) {
	s := redistest.Redis(t)
	base, clients, each := redistest.Name(t), 10, scaled(s, 100)
	name := func(i int) string { return base + "-" + strconv.Itoa(i) }
	counters := make([]int, 10)
	want := make([]int, 10)
	var mu sync.Mutex // of want
	var wg sync.WaitGroup
	began := time.Now()
	for range clients {
		c := newClient(t, s.Client(t))
		wg.Go(func() {
			for range each {
				chosen := rand.Perm(10)[:2+rand.IntN(9)]
				locks := make([]*primitives.Lock, len(chosen))
				for i, m := range chosen {
					locks[i] = c.Lock(name(m))
				}
				if err := primitives.NewMultiLock(locks).Do(context.Background(), func(context.Context) error {
					for _, m := range chosen {
						counters[m]++
					}
					return nil
				}); err != nil {
					t.Error(err)
				}
				mu.Lock()
				for _, m := range chosen {
					want[m]++
				}
				mu.Unlock()
			}
		})
	}
	rival := newClient(t, s.Client(t))
	wg.Go(func() { // each pair may meet a multilock that has what it wants, and wants what it has
		for range each / 50 {
			err := rival.Lock(name(9)).Do(context.Background(), func(context.Context) error {
				return rival.Lock(name(0)).Do(context.Background(), func(context.Context) error { return nil })
			})
			if err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	t.Logf("%d clients, %d acquisitions each: %v", clients, each, time.Since(began))
	require.Equal(t, want, counters)
	requireClean(t, s, base)
}

// Given up at whatever instant, nothing stays.
func TestJointCancel(t *testing.T) {
	s := redistest.Redis(t)
	for _, kind := range []string{"multi", "red"} {
		t.Run(kind, func(t *testing.T) {
			x := onJoint(t, s, kind)
			each, had := scaled(s, 1000)/10, 0
			if kind == "multi" {
				each *= 2
			}
			var mu sync.Mutex
			var wg sync.WaitGroup
			for range 10 {
				c := x.other(t)
				wg.Go(func() {
					l := x.on(c)
					for range each {
						ctx, cancel := context.WithTimeout(context.Background(), rand.N(12*time.Millisecond))
						hold, err := l.Acquire(ctx)
						if err == nil {
							err = hold.Release(context.Background())
							mu.Lock()
							had++
							mu.Unlock()
						} else {
							require.ErrorIs(t, err, primitives.ErrNotAcquired)
							require.ErrorIs(t, err, context.DeadlineExceeded)
							err = nil
						}
						cancel()
						if err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			t.Logf("%d of %d were in time", had, 10*each)
			requireClean(t, s, x.base)
			hold, err := x.l.TryAcquire(t.Context())
			require.NoError(t, err)
			release(t, hold)
		})
	}
	requireIdle(t)
}

// Replies are lost at random: each member's count is what was asked for, always.
func TestJointLostReplies(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, kind := range []string{"multi", "red"} {
			for name, opts := range map[string][]primitives.Option{"ids of our own": nil, "owner": {primitives.WithOwner("owner")}} {
				t.Run(kind+", "+name, func(t *testing.T) {
					x := onJoint(t, s, kind)
					p := s.Proxy(t)
					l := x.on(newClient(t, p.Client(t, quick)))
					ctx := t.Context()
					step := func(f func() error) {
						t.Helper()
						p.DropReplies(rand.IntN(3), script)
						require.NoError(t, f())
						p.Heal()
					}
					for range scaled(s, 500) / 4 {
						var outer, inner *primitives.Hold
						step(func() (err error) { outer, err = l.Acquire(ctx, opts...); return err })
						x.counts(t, outer.ID(), "1", "1", "1")
						step(func() (err error) { inner, err = l.Acquire(outer.Context()); return err })
						x.counts(t, outer.ID(), "2", "2", "2")
						step(func() error { return inner.Release(ctx) })
						x.counts(t, outer.ID(), "1", "1", "1")
						step(func() error { return outer.Release(ctx) })
						x.counts(t, "", "", "", "")
					}
				})
			}
		}
	})
}

// What gives back a failed attempt may come late: it must not free what a later attempt took.
func TestJointLateRelease(t *testing.T) {
	s := redistest.Redis(t)
	x := onJoint(t, s, "multi")
	p := s.Proxy(t)
	c := newClient(t, p.Client(t, hasty, noRetries))
	blocked := acquire(t, t.Context(), x.other(t).Lock(x.names[1]))
	released, again := false, false
	var once sync.Once
	free := make(chan struct{})
	p.DropCommands(1000, func(args []string) bool { // the releases of the first member, until it has been asked for again
		if !script(args) || !slices.Contains(args, x.names[0]) || (len(args) != 10 && len(args) != 11) {
			return false
		}
		if release := len(args) == 11; release {
			released = true
			once.Do(func() { close(free) })
		} else {
			again = again || released
		}
		return released && !again
	})
	l := x.join([]*primitives.Lock{c.Lock(x.names[0]), x.other(t).Lock(x.names[1])})
	waiting := start(func() (*primitives.Hold, error) { return l.Acquire(t.Context()) })
	<-free
	release(t, blocked)
	r := await(t, waiting)
	require.NoError(t, r.err)
	redistest.WaitFor(t, soon, func() bool {
		return r.hold.Check(t.Context()) == nil && c.Lock(x.names[0]).HoldFrom(r.hold.Context()) != nil
	}, "held")
	time.Sleep(1500 * time.Millisecond) // what is tried again is tried within a second
	require.NoError(t, r.hold.Check(t.Context()))
	release(t, r.hold)
	requireClean(t, s, x.base)
}
