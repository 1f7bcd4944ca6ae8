package primitives_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
	"github.com/redlatch/redlatch/scripts"
)

// join is NewMultiLock or NewRedLock.
type join func([]*primitives.Lock, ...primitives.Option) *primitives.Lock

// jointTest is a joint lock: a multilock or a redlock of three members on one server.
type jointTest struct {
	s      *redistest.Server
	kind   string
	join   join
	base   string
	names  []string // of the members, sorted
	events *recorder
	c      *primitives.Client // reports its events
	l      *primitives.Lock
	rdb    *redis.Client
}

// onJoint makes a joint lock of that kind: "multi" or "red".
func onJoint(t *testing.T, s *redistest.Server, kind string) *jointTest {
	x := &jointTest{s: s, kind: kind, join: primitives.NewMultiLock, base: redistest.Name(t), events: &recorder{},
		rdb: s.Client(t)}
	if kind == "red" {
		x.join = primitives.NewRedLock
	}
	for _, end := range []string{"-a", "-b", "-c"} {
		x.names = append(x.names, x.base+end)
	}
	x.c = newClient(t, s.Client(t), x.events.option())
	x.l = x.on(x.c)
	return x
}

// locks returns the members on c, in another order than that of acquisition.
func (x *jointTest) locks(c *primitives.Client) []*primitives.Lock {
	return []*primitives.Lock{c.Lock(x.names[1]), c.Lock(x.names[2]), c.Lock(x.names[0])}
}

// on returns the joint lock on another client.
func (x *jointTest) on(c *primitives.Client, opts ...primitives.Option) *primitives.Lock {
	return x.join(x.locks(c), opts...)
}

func (x *jointTest) other(t *testing.T) *primitives.Client { return newClient(t, x.s.Client(t)) }

// requireCounts requires the count of id in each member. "" means that nobody holds the member.
func (x *jointTest) requireCounts(t *testing.T, id string, want ...string) {
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

// redissonLock acquires a lock as Redisson does.
func redissonLock(t *testing.T, s *redistest.Server, name string) {
	t.Helper()
	rdb := s.Client(t)
	require.NoError(t, rdb.HSet(t.Context(), name, "8a0a8ea4-7f4f-4b0e-8d2b-9d6c3a5f1e11:42", 1).Err())
	require.NoError(t, rdb.PExpire(t.Context(), name, 30*time.Second).Err())
}

// redissonUnlock releases a lock as Redisson does.
func redissonUnlock(t *testing.T, s *redistest.Server, name string) {
	t.Helper()
	rdb := s.Client(t)
	require.NoError(t, rdb.Del(t.Context(), name).Err())
	require.NoError(t, rdb.Publish(t.Context(), "redisson_lock__channel:{"+name+"}", "0").Err())
}

// TestJointContract has one row for each rule of joint locks. Most rules apply to both kinds.
func TestJointContract(t *testing.T) {
	t.Parallel()
	rules := []struct {
		name string
		only string // "multi" or "red"; "": both
		rule func(t *testing.T, x *jointTest)
	}{
		{"one id in every member", "", jointOneID},
		{"rivals exclude each other", "", jointExcludes},
		{"identity does not depend on the order of members", "", jointIdentity},
		{"nests as a whole, and members nest in it", "", jointNests},
		{"nests under a hold of one member", "", jointUnderSingle},
		{"members held by different ids", "", jointMixedIDs},
		{"siblings exclude each other", "", jointSiblings},
		{"siblings under a reader exclude each other", "", jointReaderSiblings},
		{"its options replace those of members", "", jointOptions},
		{"a failed attempt releases what it acquired", "multi", multiAllOrNone},
		{"a lost member ends the hold, and is reported once", "multi", multiLost},
		{"a lost minority does not end the hold", "red", redMinorityLost},
		{"valid until the earliest lease of a member ends", "multi", multiValidity},
		{"Extend does not extend another owner's lease", "multi", multiExtend},
		{"Detach, Adopt and ReleaseID", "", jointByID},
		{"a lost hold that is never released is collected", "multi", multiLeakedLost},
		{"a leaked hold is reported", "", jointLeaked},
		{"a wait is bounded, and reported once", "", jointWait},
		{"caller-chosen owner", "", jointOwner},
		{"Redisson holds members", "", jointJava},
		{"Close ends a hold", "", jointClose},
		{"Close ends a wait", "", jointCloseWaiting},
		{"Close of a member's client", "multi", multiCloseOther},
		{"ForceRelease and Info are unsupported", "", jointUnsupported},
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
	x.requireCounts(t, hold.ID(), "1", "1", "1")
	require.NoError(t, hold.Check(t.Context()))
	requireLive(t, x.c.Lock(x.names[0]).HoldFrom(hold.Context()).Context())
	release(t, hold)
	x.requireCounts(t, "", "", "", "")
	require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrReleased)
	require.Equal(t, []primitives.EventKind{primitives.EventAcquired, primitives.EventReleased}, x.events.kinds(),
		"members report no events")
	e := x.events.all(primitives.EventAcquired)[0]
	require.Equal(t, []string{x.kind, hold.Name(), hold.ID()}, []string{e.Lock, e.Name, e.ID})
}

func jointExcludes(t *testing.T, x *jointTest) {
	if x.s.Mini() != nil {
		t.Skip("too slow on miniredis, as in the mutex contract")
	}
	n, each := 0, redistest.Scaled(x.s, 20)
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
	other := x.join(append(mixed, mixed[1], mixed[0])) // duplicates count once
	require.Equal(t, one.Name(), other.Name())
	hold := acquire(t, t.Context(), one)
	require.Same(t, hold, other.HoldFrom(hold.Context()))
	inner := acquire(t, hold.Context(), other)
	require.Equal(t, 2, inner.Depth())
	x.requireCounts(t, hold.ID(), "2", "2", "2")
	release(t, inner)
	release(t, hold)

	// The same holds for members that differ by client, not by name.
	prefixed := newClient(t, x.s.Client(t), primitives.WithPrefix("far-"))
	pair := []*primitives.Lock{x.c.Lock(x.base), prefixed.Lock(x.base)}
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
	x.requireCounts(t, outer.ID(), "2", "3", "2")
	require.ErrorIs(t, errOf(x.l.Acquire(inner.Context(), primitives.WithNonReentrant())), primitives.ErrDeadlock)
	release(t, outer) // the order of releases does not matter
	x.requireCounts(t, outer.ID(), "1", "2", "1")
	release(t, single)
	release(t, inner)
	require.Len(t, x.events.all(primitives.EventNested), 2)
}

func jointUnderSingle(t *testing.T, x *jointTest) {
	single := acquire(t, t.Context(), x.c.Lock(x.names[1]))
	hold, err := x.l.TryAcquire(single.Context())
	require.NoError(t, err)
	require.Equal(t, single.ID(), hold.ID(), "one id in all members")
	x.requireCounts(t, hold.ID(), "1", "2", "1")
	again := acquire(t, hold.Context(), x.c.Lock(x.names[0]))
	require.Equal(t, 2, again.Depth())
	whole := acquire(t, again.Context(), x.l)
	x.requireCounts(t, hold.ID(), "3", "3", "2")
	require.ErrorIs(t, errOf(x.on(x.other(t)).TryAcquire(t.Context())), primitives.ErrNotAcquired)
	for _, h := range []*primitives.Hold{single, again, whole} {
		release(t, h)
	}
	x.requireCounts(t, hold.ID(), "1", "1", "1")
	release(t, hold)
}

func jointMixedIDs(t *testing.T, x *jointTest) {
	a := acquire(t, t.Context(), x.c.Lock(x.names[0]))
	b := acquire(t, a.Context(), x.c.Lock(x.names[1]))
	require.ErrorIs(t, errOf(x.l.Acquire(b.Context())), primitives.ErrDeadlock)
	release(t, b)
	release(t, a)
}

// Siblings under one hold exclude each other, whether they acquire the joint lock or one member.
func jointSiblings(t *testing.T, x *jointTest) {
	outer := acquire(t, t.Context(), x.l)
	n, each := 0, redistest.Scaled(x.s, 20)
	var wg sync.WaitGroup
	for i := range 6 {
		l := x.l
		if i%2 == 0 && x.kind == "multi" { // a redlock does not need this member
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
	x.requireCounts(t, outer.ID(), "1", "1", "1")
	release(t, outer)
}

// Siblings under a reader get its id. They must not enter through what another sibling acquired
// with it.
func jointReaderSiblings(t *testing.T, x *jointTest) {
	reader := x.c.RWLock(x.base + "-rw").Reader()
	shared := acquire(t, t.Context(), reader)
	n, each := 0, redistest.Scaled(x.s, 5)
	var inside atomic.Int32
	var wg sync.WaitGroup
	for range 3 {
		l := x.join(append(x.locks(x.c), reader))
		wg.Go(func() {
			for range each {
				if err := l.Do(shared.Context(), func(context.Context) error {
					if inside.Add(1) > 1 {
						t.Error("two siblings run concurrently")
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
	require.Equal(t, []time.Duration{20 * time.Second, 40 * time.Second},
		[]time.Duration{ttl(x.names[0]), ttl(x.names[1])}, "options of the members")
	release(t, hold)
	hold = acquire(t, t.Context(), x.join(locks, primitives.WithLease(60*time.Second)))
	require.Equal(t, []time.Duration{60 * time.Second, 60 * time.Second},
		[]time.Duration{ttl(x.names[0]), ttl(x.names[1])}, "options of the joint lock")
	release(t, hold)
	hold = acquire(t, t.Context(), x.join(locks, primitives.WithLease(60*time.Second)),
		primitives.WithLease(80*time.Second))
	require.Equal(t, []time.Duration{80 * time.Second, 80 * time.Second},
		[]time.Duration{ttl(x.names[0]), ttl(x.names[1])}, "options of the call")
	release(t, hold)
	hold = acquire(t, t.Context(), x.join(locks), primitives.WithWatchdog(time.Minute),
		primitives.WithMaxHold(10*time.Second))
	require.Less(t, time.Until(hold.ValidUntil()), 10*time.Second)
	release(t, hold)
	for _, opt := range []primitives.Option{primitives.WithLease(0), primitives.WithPermits(-1),
		primitives.WithOwner("mode")} {
		require.ErrorIs(t, errOf(x.join(locks, opt).Acquire(t.Context())), primitives.ErrInvalid)
		require.ErrorIs(t, errOf(x.join(locks).Acquire(t.Context(), opt)), primitives.ErrInvalid)
	}
}

func jointByID(t *testing.T, x *jointTest) {
	ctx := t.Context()
	hold := acquire(t, ctx, x.l)
	inner := acquire(t, hold.Context(), x.l)
	other := x.on(x.other(t))
	adopted, err := other.Adopt(ctx, hold.ID())
	require.NoError(t, err)
	require.NotEqual(t, hold.ID(), adopted.ID())
	require.Equal(t, 1, adopted.Depth())
	x.requireCounts(t, adopted.ID(), "2", "2", "2")
	require.ErrorIs(t, inner.Check(ctx), primitives.ErrLost)
	require.ErrorIs(t, hold.Release(ctx), primitives.ErrLost)
	require.NoError(t, adopted.Check(ctx))
	require.ErrorIs(t, errOf(other.Adopt(ctx, hold.ID())), primitives.ErrNotHeld)
	require.NoError(t, adopted.Extend(ctx, time.Minute))
	release(t, adopted)
	x.requireCounts(t, "", "", "", "")

	hold = acquire(t, ctx, x.l)
	id := hold.Detach()
	require.Equal(t, hold.ID(), id)
	require.Empty(t, hold.Detach())
	x.requireCounts(t, id, "1", "1", "1")
	require.ErrorIs(t, context.Cause(hold.Context()), primitives.ErrReleased)
	require.NoError(t, other.ReleaseID(ctx, id))
	x.requireCounts(t, "", "", "", "")
	require.ErrorIs(t, other.ReleaseID(ctx, id), primitives.ErrNotHeld)
}

func jointLeaked(t *testing.T, x *jointTest) {
	func() { acquire(t, t.Context(), x.l) }()
	redistest.WaitFor(t, soon, func() bool {
		runtime.GC()
		return len(x.events.all(primitives.EventLeaked)) > 0
	}, "the leak is reported")
	require.Equal(t, x.kind, x.events.all(primitives.EventLeaked)[0].Lock)
	require.NoError(t, x.c.Close(t.Context()), "no part is held")
	x.s.Client(t).Del(t.Context(), x.names...)
}

func jointWait(t *testing.T, x *jointTest) {
	rival := acquire(t, t.Context(), x.on(x.other(t)))
	began := time.Now()
	// the first attempt may use up a part of it
	_, err := x.l.Acquire(t.Context(), primitives.WithWait(500*time.Millisecond))
	require.ErrorIs(t, err, primitives.ErrNotAcquired)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	require.GreaterOrEqual(t, time.Since(began), 500*time.Millisecond)
	require.Len(t, x.events.all(primitives.EventWait), 1)
	waiting := start(func() (*primitives.Hold, error) { return x.l.Acquire(t.Context()) })
	redistest.WaitFor(t, soon, func() bool {
		return len(x.events.all(primitives.EventWait)) == 2
	}, "the wait is reported")
	awaitWaiter(t, x.s, x.base)
	release(t, rival)
	released := time.Now()
	r := await(t, waiting)
	require.NoError(t, r.err)
	require.Less(t, r.at.Sub(released), slowPoll)
	release(t, r.hold)
	require.Len(t, x.events.all(primitives.EventWait), 2)
	require.Equal(t, x.kind, x.events.all(primitives.EventWait)[0].Lock)
	require.Positive(t, x.events.all(primitives.EventAcquired)[0].Waited)
}

func jointOwner(t *testing.T, x *jointTest) {
	ctx := t.Context()
	hold := acquire(t, ctx, x.l, primitives.WithOwner("me"))
	require.Equal(t, "me", hold.ID())
	same := acquire(t, ctx, x.on(x.other(t), primitives.WithOwner("me")))
	x.requireCounts(t, "me", "2", "2", "2")
	single := acquire(t, hold.Context(), x.c.Lock(x.names[0]))
	x.requireCounts(t, "me", "3", "2", "2")
	release(t, single)
	release(t, hold)
	x.requireCounts(t, "me", "1", "1", "1")
	release(t, same)
}

func jointJava(t *testing.T, x *jointTest) {
	redissonLock(t, x.s, x.names[2])
	redissonLock(t, x.s, x.names[1])
	_, err := x.l.TryAcquire(t.Context())
	require.ErrorIs(t, err, primitives.ErrNotAcquired)
	require.Empty(t, fields(t, x.s, x.names[0]))
	waiting := start(func() (*primitives.Hold, error) { return x.l.Acquire(t.Context()) })
	awaitWaiter(t, x.s, x.base)
	redissonUnlock(t, x.s, x.names[1])
	redissonUnlock(t, x.s, x.names[2])
	release(t, awaitHold(t, waiting))
}

func jointClose(t *testing.T, x *jointTest) {
	hold := acquire(t, t.Context(), x.l)
	shut(x.c)
	require.ErrorIs(t, context.Cause(hold.Context()), primitives.ErrClosed)
	require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrClosed)
	x.requireCounts(t, hold.ID(), "1", "1", "1") // the critical section may still run
	require.ErrorIs(t, errOf(x.l.Acquire(t.Context())), primitives.ErrClosed)
	require.NoError(t, x.on(x.other(t)).ReleaseID(t.Context(), hold.ID()))
}

// The wait ends although the awaited member belongs to another client.
func jointCloseWaiting(t *testing.T, x *jointTest) {
	other := x.other(t)
	locks := []*primitives.Lock{x.c.Lock(x.names[0]), other.Lock(x.names[1]), other.Lock(x.names[2])}
	var singles []*primitives.Hold
	for _, name := range x.names[1:] {
		singles = append(singles, acquire(t, t.Context(), other.Lock(name)))
	}
	waiting := start(func() (*primitives.Hold, error) { return x.join(locks).Acquire(t.Context()) })
	awaitWaiter(t, x.s, x.base)
	inTime, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	require.NoError(t, x.c.Close(inTime))
	require.NoError(t, inTime.Err(), "Close does not wait for the holders of the other members")
	err := await(t, waiting).err
	require.ErrorIs(t, err, primitives.ErrClosed)
	require.NotErrorIs(t, err, primitives.ErrNotAcquired)
	for _, single := range singles {
		release(t, single)
	}
}

func jointUnsupported(t *testing.T, x *jointTest) {
	require.ErrorIs(t, errOf(x.l.ForceRelease(t.Context())), primitives.ErrUnsupported)
	require.ErrorIs(t, errOf(x.l.Info(t.Context())), primitives.ErrUnsupported)
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
	next := awaitHold(t, waiting)
	require.ErrorIs(t, errOf(x.join(locks(x.c, true)).TryAcquire(t.Context())), primitives.ErrNotAcquired)
	release(t, next)
	hold = acquire(t, t.Context(), x.join(locks(x.c, true)))
	release(t, hold)

	fenced := x.c.FencedLock(x.base + "-fenced")
	hold = acquire(t, t.Context(), x.join([]*primitives.Lock{fenced, x.c.Lock(x.names[0])}))
	require.Positive(t, fenced.HoldFrom(hold.Context()).Token())
	release(t, hold)
	require.NoError(t, x.s.Client(t).Del(t.Context(), "redisson_lock_token:{"+x.base+"-fenced}").Err())
}

func TestJointRejectsInvalidMembers(t *testing.T) {
	t.Parallel()
	c := newClient(t, redistest.Miniredis(t).Client(t))
	a, b := c.Lock("a"), c.Lock("b")
	for name, locks := range map[string][]*primitives.Lock{
		"no member":             {},
		"nil member":            {a, nil},
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
				require.ErrorIs(t, errOf(l.Acquire(t.Context())), primitives.ErrInvalid)
				require.ErrorIs(t, errOf(l.TryAcquire(t.Context())), primitives.ErrInvalid)
				require.ErrorIs(t, errOf(l.Adopt(t.Context(), "id")), primitives.ErrInvalid)
				require.ErrorIs(t, l.ReleaseID(t.Context(), "id"), primitives.ErrInvalid)
				require.ErrorIs(t, l.Do(t.Context(), nil), primitives.ErrInvalid)
				require.Panics(t, func() { l.Locker(t.Context()).Lock() })
			}
		})
	}
}

// TestJointCancelledAcquireLeavesNothing cancels acquisitions at random times.
func TestJointCancelledAcquireLeavesNothing(t *testing.T) {
	checkLeaks(t)
	s := redistest.Redis(t)
	for _, kind := range []string{"multi", "red"} {
		t.Run(kind, func(t *testing.T) {
			measured := redistest.Bar(t, s, 4)
			x := onJoint(t, s, kind)
			each, acquired := redistest.Sized(s, redistest.Scaled(s, 100), 10_000), 0
			if kind == "multi" && !redistest.Nightly() {
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
							acquired++
							mu.Unlock()
						} else if errors.Is(err, primitives.ErrNotAcquired) && errors.Is(err, context.DeadlineExceeded) {
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
			clean := requireClean(t, s, x.base)
			measured("%d cancelled acquisitions, %d others; nothing left after %v", 10*each-acquired, acquired, clean)
			hold, err := x.l.TryAcquire(t.Context())
			require.NoError(t, err)
			release(t, hold)
		})
	}
}

// TestJointCountsAreExactWhenRepliesAreLost drops replies at random.
func TestJointCountsAreExactWhenRepliesAreLost(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, kind := range []string{"multi", "red"} {
			for name, opts := range map[string][]primitives.Option{"private id": nil,
				"owner": {primitives.WithOwner("owner")}} {
				t.Run(kind+", "+name, func(t *testing.T) {
					x := onJoint(t, s, kind)
					p := s.Proxy(t)
					l := x.on(newClient(t, p.Client(t, quick)))
					measured, cuts := redistest.Bar(t, s, 1), 0
					ctx := t.Context()
					step := func(f func() error) {
						t.Helper()
						lost := rand.IntN(3)
						cuts += lost
						p.DropReplies(lost, script)
						require.NoError(t, f())
						p.Heal()
					}
					n := redistest.Sized(s, redistest.Scaled(s, 125), fullCuts/2)
					for range n {
						var outer, inner *primitives.Hold
						step(func() (err error) { outer, err = l.Acquire(ctx, opts...); return err })
						x.requireCounts(t, outer.ID(), "1", "1", "1")
						step(func() (err error) { inner, err = l.Acquire(outer.Context()); return err })
						x.requireCounts(t, outer.ID(), "2", "2", "2")
						step(func() error { return inner.Release(ctx) })
						x.requireCounts(t, outer.ID(), "1", "1", "1")
						step(func() error { return outer.Release(ctx) })
						x.requireCounts(t, "", "", "", "")
					}
					measured("%d replies lost in %d times four calls: acquire and release, and both nested", cuts, n)
				})
			}
		}
	})
}

// TestJointLateReleaseFreesNothing delays the release of a failed attempt until a later attempt has
// acquired the same member. The late release must not free it.
func TestJointLateReleaseFreesNothing(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	x := onJoint(t, s, "multi")
	p := s.Proxy(t)
	c := newClient(t, p.Client(t, noRetries))
	blocked := acquire(t, t.Context(), x.other(t).Lock(x.names[1]))
	acquireSHA, releaseSHA := scripts.Load("lock/acquire").SHA(), scripts.Load("lock/release").SHA()
	released, again := false, false
	var once sync.Once
	dropped := make(chan struct{})                  // closed when the first release has been dropped
	p.DropCommands(1000, func(args []string) bool { // the releases of the first member, until it is acquired again
		if !script(args) || !slices.Contains(args, x.names[0]) || (args[1] != acquireSHA && args[1] != releaseSHA) {
			return false
		}
		if args[1] == releaseSHA {
			released = true
			once.Do(func() { close(dropped) })
		} else {
			again = again || released
		}
		return released && !again
	})
	l := x.join([]*primitives.Lock{c.Lock(x.names[0]), x.other(t).Lock(x.names[1])})
	waiting := start(func() (*primitives.Hold, error) { return l.Acquire(t.Context()) })
	<-dropped
	release(t, blocked)
	next := awaitHold(t, waiting)
	redistest.WaitFor(t, soon, func() bool {
		return next.Check(t.Context()) == nil && c.Lock(x.names[0]).HoldFrom(next.Context()) != nil
	}, "the first member is held")
	time.Sleep(1500 * time.Millisecond) // retries of the release come within a second
	require.NoError(t, next.Check(t.Context()))
	release(t, next)
	requireClean(t, s, x.base)
}
