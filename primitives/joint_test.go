package primitives_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
	"github.com/redlatch/redlatch/scripts"
)

// redissonLock acquires a lock as Redisson does.
func redissonLock(t *testing.T, s *redistest.Server, name string) {
	t.Helper()
	rdb := s.Client(t)
	require.NoError(t, rdb.HSet(t.Context(), name, "8a0a8ea4-7f4f-4b0e-8d2b-9d6c3a5f1e11:42", 1).Err())
	require.NoError(t, rdb.PExpire(t.Context(), name, 30*time.Second).Err())
}

// TestJointContract has one row for each rule of joint locks. Most rules apply to both kinds.
func TestJointContract(t *testing.T) {
	t.Parallel()
	rules := []struct {
		name string
		only string // "multi", "red", or "" for both
		rule func(t *testing.T, x *fixture.JointTest)
	}{
		{"one id in every member", "", jointOneID},
		{"identity does not depend on the order of members", "", jointIdentity},
		{"nests as a whole, and members nest in it", "", jointNests},
		{"nests under a hold of one member", "", jointUnderSingle},
		{"members held by different ids", "", jointMixedIDs},
		{"siblings exclude each other", "", jointSiblings},
		{"siblings under a reader exclude each other", "", jointReaderSiblings},
		{"its options replace those of members", "", jointOptions},
		{"a failed attempt releases what it acquired", "multi", multiAllOrNone},
		{"a waiter holds nothing", "multi", multiWaits},
		{"the error names the busy member", "multi", multiBusyMember},
		{"a member with data of another program", "multi", multiForeign},
		{"members keep their own counts", "multi", multiCounts},
		{"a member keeps the count of a shared id", "multi", multiSharedCount},
		{"members that linger are given up", "multi", multiLinger},
		{"a lost member ends the hold, and is reported once", "multi", multiLost},
		{"Release of a hold that lost a member", "multi", multiLostMember},
		{"a lost minority does not end the hold", "red", redMinorityLost},
		{"valid until the earliest lease of a member ends", "multi", multiValidity},
		{"Extend does not extend another owner's lease", "multi", multiExtend},
		{"Detach, Adopt and ReleaseID", "", jointByID},
		{"a lost hold that is never released is collected", "multi", multiLeakedLost},
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
						x := fixture.OnJoint(t, s, kind)
						rule.rule(t, x)
						fixture.RequireClean(t, s, x.Base)
					})
				}
			})
		}
	})
}

func jointOneID(t *testing.T, x *fixture.JointTest) {
	hold := x.Acquire(t, t.Context())
	require.True(t, strings.HasPrefix(hold.ID(), x.C.ID()+":"))
	require.Equal(t, strings.Join(x.Names, ","), hold.Name())
	require.Equal(t, 1, hold.Depth())
	require.Zero(t, hold.Token())
	x.RequireCounts(t, hold.ID(), "1", "1", "1")
	require.NoError(t, hold.Check(t.Context()))
	fixture.RequireLive(t, x.C.Lock(x.Names[0]).HoldFrom(hold.Context()).Context())
	fixture.Release(t, hold)
	x.RequireCounts(t, "", "", "", "")
	require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrReleased)
	require.Equal(t, []primitives.EventKind{primitives.EventAcquired, primitives.EventReleased}, x.Events.Kinds(),
		"members report no events")
	e := x.Events.All(primitives.EventAcquired)[0]
	require.Equal(t, []string{x.Kind, hold.Name(), hold.ID()}, []string{e.Lock, e.Name, e.ID})
}

func jointIdentity(t *testing.T, x *fixture.JointTest) {
	c := x.Other(t)
	mixed := []*primitives.Lock{x.C.Lock(x.Names[0]), c.Lock(x.Names[1]), x.C.Lock(x.Names[2])}
	one := x.Join(mixed)
	slices.Reverse(mixed)
	other := x.Join(append(mixed, mixed[1], mixed[0])) // duplicates count once
	require.Equal(t, one.Name(), other.Name())
	hold := fixture.Acquire(t, t.Context(), one)
	require.Same(t, hold, other.HoldFrom(hold.Context()))
	inner := fixture.Acquire(t, hold.Context(), other)
	require.Equal(t, 2, inner.Depth())
	x.RequireCounts(t, hold.ID(), "2", "2", "2")
	fixture.Release(t, inner, hold)

	// The same holds for members that differ by client, not by name.
	prefixed := fixture.NewClient(t, x.S.Client(t), primitives.WithPrefix("far-"))
	pair := []*primitives.Lock{x.C.Lock(x.Base), prefixed.Lock(x.Base)}
	hold = fixture.Acquire(t, t.Context(), x.Join(pair))
	slices.Reverse(pair)
	require.Same(t, hold, x.Join(pair).HoldFrom(hold.Context()))
	fixture.Release(t, hold)
}

func jointNests(t *testing.T, x *fixture.JointTest) {
	ctx := t.Context()
	outer := x.Acquire(t, ctx)
	inner := x.Acquire(t, outer.Context())
	require.Equal(t, outer.ID(), inner.ID())
	require.Equal(t, 2, inner.Depth())
	single := fixture.Acquire(t, inner.Context(), x.C.Lock(x.Names[1]))
	require.Equal(t, outer.ID(), single.ID())
	require.Equal(t, 3, single.Depth())
	x.RequireCounts(t, outer.ID(), "2", "3", "2")
	require.ErrorIs(t, fixture.ErrOf(x.L.Acquire(inner.Context(), primitives.WithNonReentrant())), primitives.ErrDeadlock)
	fixture.Release(t, outer) // the order of releases does not matter
	x.RequireCounts(t, outer.ID(), "1", "2", "1")
	fixture.Release(t, single, inner)
	require.Len(t, x.Events.All(primitives.EventNested), 2)
}

func jointUnderSingle(t *testing.T, x *fixture.JointTest) {
	single := fixture.Acquire(t, t.Context(), x.C.Lock(x.Names[1]))
	hold := fixture.TryAcquire(t, single.Context(), x.L)
	require.Equal(t, single.ID(), hold.ID(), "one id in all members")
	x.RequireCounts(t, hold.ID(), "1", "2", "1")
	again := fixture.Acquire(t, hold.Context(), x.C.Lock(x.Names[0]))
	require.Equal(t, 2, again.Depth())
	whole := x.Acquire(t, again.Context())
	x.RequireCounts(t, hold.ID(), "3", "3", "2")
	require.ErrorIs(t, fixture.ErrOf(x.On(x.Other(t)).TryAcquire(t.Context())), primitives.ErrNotAcquired)
	for _, h := range []*primitives.Hold{single, again, whole} {
		fixture.Release(t, h)
	}
	x.RequireCounts(t, hold.ID(), "1", "1", "1")
	fixture.Release(t, hold)
}

func jointMixedIDs(t *testing.T, x *fixture.JointTest) {
	a := fixture.Acquire(t, t.Context(), x.C.Lock(x.Names[0]))
	b := fixture.Acquire(t, a.Context(), x.C.Lock(x.Names[1]))
	require.ErrorIs(t, fixture.ErrOf(x.L.Acquire(b.Context())), primitives.ErrDeadlock)
	fixture.Release(t, b, a)
}

// Siblings under one hold exclude each other, whether they acquire the joint lock or one member.
func jointSiblings(t *testing.T, x *fixture.JointTest) {
	outer := x.Acquire(t, t.Context())
	n, each := 0, redistest.Scaled(x.S, 20)
	var wg sync.WaitGroup
	for i := range 6 {
		l := x.L
		if i%2 == 0 && x.Kind == "multi" { // a redlock does not need this member
			l = x.C.Lock(x.Names[1])
		}
		wg.Go(func() {
			for range each {
				assert.NoError(t, l.Do(outer.Context(), func(context.Context) error { n++; return nil }))
			}
		})
	}
	wg.Wait()
	require.Equal(t, 6*each, n)
	x.RequireCounts(t, outer.ID(), "1", "1", "1")
	fixture.Release(t, outer)
}

// Siblings under a reader get its id. They must not enter through a lock that another sibling
// acquired with it.
func jointReaderSiblings(t *testing.T, x *fixture.JointTest) {
	reader := x.C.RWLock(x.Base + "-rw").Reader()
	shared := fixture.Acquire(t, t.Context(), reader)
	n, each := 0, redistest.Scaled(x.S, 5)
	var inside atomic.Int32
	var wg sync.WaitGroup
	for range 3 {
		l := x.Join(append(x.Locks(x.C), reader))
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
	fixture.Release(t, shared)
}

func jointOptions(t *testing.T, x *fixture.JointTest) {
	ttl := func(name string) time.Duration {
		return x.S.Client(t).PTTL(t.Context(), name).Val().Round(10 * time.Second)
	}
	c := fixture.NewClient(t, x.S.Client(t), primitives.WithDefaults(primitives.WithLease(20*time.Second)))
	locks := []*primitives.Lock{c.Lock(x.Names[0]), c.Lock(x.Names[1], primitives.WithLease(40*time.Second))}
	require.Equal(t, x.Join(locks).Name(), x.Names[0]+","+x.Names[1])
	hold := fixture.Acquire(t, t.Context(), x.Join(locks))
	require.Equal(t, []time.Duration{20 * time.Second, 40 * time.Second},
		[]time.Duration{ttl(x.Names[0]), ttl(x.Names[1])}, "options of the members")
	fixture.Release(t, hold)
	hold = fixture.Acquire(t, t.Context(), x.Join(locks, primitives.WithLease(60*time.Second)))
	require.Equal(t, []time.Duration{60 * time.Second, 60 * time.Second},
		[]time.Duration{ttl(x.Names[0]), ttl(x.Names[1])}, "options of the joint lock")
	fixture.Release(t, hold)
	hold = fixture.Acquire(t, t.Context(), x.Join(locks, primitives.WithLease(60*time.Second)),
		primitives.WithLease(80*time.Second))
	require.Equal(t, []time.Duration{80 * time.Second, 80 * time.Second},
		[]time.Duration{ttl(x.Names[0]), ttl(x.Names[1])}, "options of the call")
	fixture.Release(t, hold)
	hold = fixture.Acquire(t, t.Context(), x.Join(locks), primitives.WithWatchdog(time.Minute),
		primitives.WithMaxHold(10*time.Second))
	require.Less(t, time.Until(hold.ValidUntil()), 10*time.Second)
	fixture.Release(t, hold)
	for _, opt := range []primitives.Option{primitives.WithLease(0), primitives.WithPermits(-1),
		primitives.WithOwner("mode")} {
		require.ErrorIs(t, fixture.ErrOf(x.Join(locks, opt).Acquire(t.Context())), primitives.ErrInvalid)
		require.ErrorIs(t, fixture.ErrOf(x.Join(locks).Acquire(t.Context(), opt)), primitives.ErrInvalid)
	}
}

func jointByID(t *testing.T, x *fixture.JointTest) {
	ctx := t.Context()
	hold := x.Acquire(t, ctx)
	inner := x.Acquire(t, hold.Context())
	other := x.On(x.Other(t))
	adopted := fixture.Adopt(t, other, hold.ID())
	require.NotEqual(t, hold.ID(), adopted.ID())
	require.Equal(t, 1, adopted.Depth())
	x.RequireCounts(t, adopted.ID(), "2", "2", "2")
	require.ErrorIs(t, inner.Check(ctx), primitives.ErrLost)
	require.ErrorIs(t, hold.Release(ctx), primitives.ErrLost)
	require.NoError(t, adopted.Check(ctx))
	require.ErrorIs(t, fixture.ErrOf(other.Adopt(ctx, hold.ID())), primitives.ErrNotHeld)
	require.NoError(t, adopted.Extend(ctx, time.Minute))
	fixture.Release(t, adopted)
	x.RequireCounts(t, "", "", "", "")

	hold = x.Acquire(t, ctx)
	id := hold.Detach()
	require.Equal(t, hold.ID(), id)
	require.Empty(t, hold.Detach())
	x.RequireCounts(t, id, "1", "1", "1")
	require.ErrorIs(t, context.Cause(hold.Context()), primitives.ErrReleased)
	require.NoError(t, other.ReleaseID(ctx, id))
	x.RequireCounts(t, "", "", "", "")
	require.ErrorIs(t, other.ReleaseID(ctx, id), primitives.ErrNotHeld)
}

func jointWait(t *testing.T, x *fixture.JointTest) {
	rival := fixture.Acquire(t, t.Context(), x.On(x.Other(t)))
	began := time.Now()
	// the first attempt may use up a part of it
	_, err := x.L.Acquire(t.Context(), primitives.WithWait(500*time.Millisecond))
	require.ErrorIs(t, err, primitives.ErrNotAcquired)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	require.GreaterOrEqual(t, time.Since(began), 500*time.Millisecond)
	require.Len(t, x.Events.All(primitives.EventWait), 1)
	waiting := fixture.StartAcquire(t.Context(), x.L)
	redistest.WaitFor(t, fixture.Soon, func() bool {
		return len(x.Events.All(primitives.EventWait)) == 2
	}, "the wait is reported")
	fixture.AwaitWaiter(t, x.S, x.Base)
	fixture.Release(t, rival)
	released := time.Now()
	r := fixture.AwaitAcquired(t, waiting)
	require.Less(t, r.At.Sub(released), fixture.SlowPoll)
	fixture.Release(t, r.Hold)
	require.Len(t, x.Events.All(primitives.EventWait), 2)
	require.Equal(t, x.Kind, x.Events.All(primitives.EventWait)[0].Lock)
	require.Positive(t, x.Events.All(primitives.EventAcquired)[0].Waited)
}

func jointOwner(t *testing.T, x *fixture.JointTest) {
	ctx := t.Context()
	hold := fixture.Acquire(t, ctx, x.L, primitives.WithOwner("me"))
	require.Equal(t, "me", hold.ID())
	same := fixture.Acquire(t, ctx, x.On(x.Other(t), primitives.WithOwner("me")))
	x.RequireCounts(t, "me", "2", "2", "2")
	single := fixture.Acquire(t, hold.Context(), x.C.Lock(x.Names[0]))
	x.RequireCounts(t, "me", "3", "2", "2")
	fixture.Release(t, single, hold)
	x.RequireCounts(t, "me", "1", "1", "1")
	fixture.Release(t, same)
}

func jointJava(t *testing.T, x *fixture.JointTest) {
	redissonLock(t, x.S, x.Names[2])
	redissonLock(t, x.S, x.Names[1])
	require.ErrorIs(t, fixture.ErrOf(x.L.TryAcquire(t.Context())), primitives.ErrNotAcquired)
	require.Empty(t, fixture.Fields(t, x.S, x.Names[0]))
	waiting := fixture.StartAcquire(t.Context(), x.L)
	fixture.AwaitWaiter(t, x.S, x.Base)
	fixture.RedissonUnlock(t, x.S, x.Names[1])
	fixture.RedissonUnlock(t, x.S, x.Names[2])
	fixture.Release(t, fixture.AwaitHold(t, waiting))
}

func jointClose(t *testing.T, x *fixture.JointTest) {
	hold := x.Acquire(t, t.Context())
	fixture.CloseNow(x.C)
	require.ErrorIs(t, context.Cause(hold.Context()), primitives.ErrClosed)
	require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrClosed)
	x.RequireCounts(t, hold.ID(), "1", "1", "1") // the critical section may still run
	require.ErrorIs(t, fixture.ErrOf(x.L.Acquire(t.Context())), primitives.ErrClosed)
	require.NoError(t, x.On(x.Other(t)).ReleaseID(t.Context(), hold.ID()))
}

// The wait ends although the awaited member belongs to another client.
func jointCloseWaiting(t *testing.T, x *fixture.JointTest) {
	other := x.Other(t)
	locks := []*primitives.Lock{x.C.Lock(x.Names[0]), other.Lock(x.Names[1]), other.Lock(x.Names[2])}
	var singles []*primitives.Hold
	for _, name := range x.Names[1:] {
		singles = append(singles, fixture.Acquire(t, t.Context(), other.Lock(name)))
	}
	waiting := fixture.StartAcquire(t.Context(), x.Join(locks))
	fixture.AwaitWaiter(t, x.S, x.Base)
	inTime, cancel := context.WithTimeout(t.Context(), fixture.Soon)
	defer cancel()
	require.NoError(t, x.C.Close(inTime))
	require.NoError(t, inTime.Err(), "Close does not wait for the holders of the other members")
	err := fixture.Await(t, waiting).Err
	require.ErrorIs(t, err, primitives.ErrClosed)
	require.NotErrorIs(t, err, primitives.ErrNotAcquired)
	fixture.Release(t, singles...)
}

func jointUnsupported(t *testing.T, x *fixture.JointTest) {
	err := fixture.ErrOf(x.L.ForceRelease(t.Context()))
	require.ErrorIs(t, err, primitives.ErrUnsupported)
	require.ErrorContains(t, err, "redlatch: force release "+x.Kind+" ")
	require.ErrorContains(t, err, ": unsupported: free each of its locks")
	err = fixture.ErrOf(x.L.Info(t.Context()))
	require.ErrorIs(t, err, primitives.ErrUnsupported)
	require.ErrorContains(t, err, ": unsupported: ask each of its locks")
}

func jointKinds(t *testing.T, x *fixture.JointTest) {
	reader, writer := (*primitives.RWLock).Reader, (*primitives.RWLock).Writer
	locks := func(c *primitives.Client, side func(*primitives.RWLock) *primitives.Lock) []*primitives.Lock {
		return []*primitives.Lock{c.FairLock(x.Base + "-fair"), side(c.RWLock(x.Base + "-rw"))}
	}
	one, other := x.Join(locks(x.C, reader)), x.Join(locks(x.Other(t), reader))
	hold := fixture.Acquire(t, t.Context(), one)
	fixture.Release(t, fixture.Acquire(t, hold.Context(), one))
	require.NoError(t, hold.Check(t.Context()))
	waiting := fixture.StartAcquire(t.Context(), other)
	fixture.AwaitWaiter(t, x.S, x.Base)
	fixture.Release(t, hold)
	next := fixture.AwaitHold(t, waiting)
	require.ErrorIs(t, fixture.ErrOf(x.Join(locks(x.C, writer)).TryAcquire(t.Context())), primitives.ErrNotAcquired)
	fixture.Release(t, next)
	hold = fixture.Acquire(t, t.Context(), x.Join(locks(x.C, writer)))
	fixture.Release(t, hold)

	fenced := x.C.FencedLock(x.Base + "-fenced")
	hold = fixture.Acquire(t, t.Context(), x.Join([]*primitives.Lock{fenced, x.C.Lock(x.Names[0])}))
	require.Positive(t, fenced.HoldFrom(hold.Context()).Token())
	fixture.Release(t, hold)
	require.NoError(t, x.S.Client(t).Del(t.Context(), "redisson_lock_token:{"+x.Base+"-fenced}").Err())
}

func TestJointRejectsInvalidMembers(t *testing.T) {
	t.Parallel()
	c := fixture.NewClient(t, redistest.Miniredis(t).Client(t))
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
			for _, join := range []fixture.Join{primitives.NewMultiLock, primitives.NewRedLock} {
				l := join(locks)
				hold := fixture.Acquire(t, t.Context(), b)
				require.Nil(t, l.HoldFrom(hold.Context()))
				fixture.Release(t, hold)
				require.ErrorIs(t, fixture.ErrOf(l.Acquire(t.Context())), primitives.ErrInvalid)
				require.ErrorIs(t, fixture.ErrOf(l.TryAcquire(t.Context())), primitives.ErrInvalid)
				require.ErrorIs(t, fixture.ErrOf(l.Adopt(t.Context(), "id")), primitives.ErrInvalid)
				require.ErrorIs(t, l.ReleaseID(t.Context(), "id"), primitives.ErrInvalid)
				require.ErrorIs(t, l.Do(t.Context(), nil), primitives.ErrInvalid)
				require.Panics(t, func() { l.Locker(t.Context()).Lock() })
			}
		})
	}
}

// TestJointLateReleaseFreesNothing delays the release of a failed attempt until a later attempt has
// acquired the same member. The late release must not free it.
func TestJointLateReleaseFreesNothing(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	x := fixture.OnJoint(t, s, "multi")
	p := s.Proxy(t)
	c := fixture.NewClient(t, p.Client(t, fixture.NoRetries))
	blocked := fixture.Acquire(t, t.Context(), x.Other(t).Lock(x.Names[1]))
	acquireSHA, releaseSHA := scripts.Load("lock/acquire").SHA(), scripts.Load("lock/release").SHA()
	released, again := false, false
	var once sync.Once
	dropped := make(chan struct{})                  // closed when the first release has been dropped
	p.DropCommands(1000, func(args []string) bool { // the releases of the first member, until it is acquired again
		if !fixture.Script(args) || !slices.Contains(args, x.Names[0]) || (args[1] != acquireSHA && args[1] != releaseSHA) {
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
	l := x.Join([]*primitives.Lock{c.Lock(x.Names[0]), x.Other(t).Lock(x.Names[1])})
	waiting := fixture.StartAcquire(t.Context(), l)
	<-dropped
	fixture.Release(t, blocked)
	next := fixture.AwaitHold(t, waiting)
	redistest.WaitFor(t, fixture.Soon, func() bool {
		return next.Check(t.Context()) == nil && c.Lock(x.Names[0]).HoldFrom(next.Context()) != nil
	}, "the first member is held")
	time.Sleep(1500 * time.Millisecond) // retries of the release come within a second
	require.NoError(t, next.Check(t.Context()))
	fixture.Release(t, next)
	fixture.RequireClean(t, s, x.Base)
}

// Of two goroutines that wait for a joint lock, the first one acquires it. It hears within the
// promised time that the other one waits, which has made no attempt of its own since (C30).
func TestClockJointHoldHearsOfTheNextInLine(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"multi", "red"} {
		redistest.RunBubble(t, kind, func(t *testing.T) {
			x := fixture.OnJoint(t, redistest.Embedded(t), kind)
			before := x.Acquire(t, t.Context())
			var waiting []<-chan fixture.Result
			for range 2 {
				waiting = append(waiting, fixture.StartAcquire(t.Context(), x.L))
				time.Sleep(20 * time.Millisecond)
			}
			fixture.Release(t, before)
			first := <-waiting[0]
			require.NoError(t, first.Err)
			began := time.Now()
			select {
			case <-first.Hold.Wanted():
			case <-time.After(time.Minute):
			}
			require.Less(t, time.Since(began), 300*time.Millisecond)
			fixture.Release(t, first.Hold)
			second := <-waiting[1]
			require.NoError(t, second.Err)
			fixture.Release(t, second.Hold)
		})
	}
}

// Of two goroutines that wait for a joint lock of another client, the first one gives up. The
// holder hears within the promised time that the other one waits, which has made no attempt of its
// own (C30).
func TestClockJointHoldHearsOfTheNextRemoteWaiter(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"multi", "red"} {
		redistest.RunBubble(t, kind, func(t *testing.T) {
			x := fixture.OnJoint(t, redistest.Embedded(t), kind)
			other := x.Other(t)
			holder := fixture.AcquireAll(t, t.Context(), x.On(other), x.Locks(other)...)
			wanted := holder.Wanted()
			time.Sleep(2300 * time.Millisecond) // the holder's client listens, and has just looked for waiters
			first := fixture.StartAcquire(t.Context(), x.L, primitives.WithWait(50*time.Millisecond))
			time.Sleep(20 * time.Millisecond)
			began := time.Now()
			second := fixture.StartAcquire(t.Context(), x.L)
			require.ErrorIs(t, (<-first).Err, primitives.ErrNotAcquired)
			select {
			case <-wanted:
			case <-time.After(time.Minute):
			}
			require.Less(t, time.Since(began), 300*time.Millisecond)
			fixture.Release(t, holder)
			got := <-second
			require.NoError(t, got.Err)
			fixture.Release(t, got.Hold)
		})
	}
}
