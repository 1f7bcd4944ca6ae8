package primitives_test

import (
	"context"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/fixture"
	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

func multiAllOrNone(t *testing.T, x *JointTest) {
	for i, name := range x.Names {
		single := Acquire(t, t.Context(), x.Other(t).Lock(name))
		require.ErrorIs(t, ErrOf(x.L.TryAcquire(t.Context())), primitives.ErrNotAcquired)
		want := []string{"", "", ""}
		want[i] = "1"
		x.RequireCounts(t, single.ID(), want...)
		Release(t, single)
	}
}

func multiLost(t *testing.T, x *JointTest) {
	for _, find := range []func(hold *primitives.Hold) error{
		func(hold *primitives.Hold) error { return hold.Check(t.Context()) },
		func(hold *primitives.Hold) error { return hold.Extend(t.Context(), time.Minute) },
		func(hold *primitives.Hold) error { <-hold.Context().Done(); return context.Cause(hold.Context()) },
		nil,
	} {
		before := len(x.Events.All(primitives.EventLost))
		hold := Acquire(t, t.Context(), x.L, primitives.WithWatchdog(ShortLease))
		require.NoError(t, ErrOf(x.C.Lock(x.Names[1]).ForceRelease(t.Context())))
		if find != nil {
			require.ErrorIs(t, find(hold), primitives.ErrLost)
			require.ErrorIs(t, context.Cause(hold.Context()), primitives.ErrLost)
			require.False(t, hold.ValidUntil().IsZero(), "a lost hold keeps the end of its validity")
			require.Nil(t, x.L.HoldFrom(hold.Context()))
		}
		require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
		x.RequireCounts(t, "", "", "", "") // Release has freed the other members
		require.ErrorIs(t, context.Cause(hold.Context()), primitives.ErrLost)
		require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrReleased)
		redistest.WaitFor(t, Soon, func() bool {
			return len(x.Events.All(primitives.EventLost)) > before
		}, "the loss is reported")
		lost := x.Events.All(primitives.EventLost)
		require.Len(t, lost, before+1, "reported once")
		require.Equal(t, "multi", lost[before].Lock)
	}
}

func multiValidity(t *testing.T, x *JointTest) {
	locks := x.Locks(x.C)
	locks[2] = x.C.Lock(x.Names[0], primitives.WithLease(3*time.Second))
	hold := Acquire(t, t.Context(), x.Join(locks))
	require.LessOrEqual(t, time.Until(hold.ValidUntil()), 3*time.Second)
	require.NoError(t, hold.Extend(t.Context(), time.Minute))
	require.Greater(t, time.Until(hold.ValidUntil()), 30*time.Second)
	Release(t, hold)
}

// The lease of the first member nearly expires while the second is awaited. The attempt starts again.
func TestClockMultiLockStartsAgainBeforeALeaseEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := OnJoint(t, redistest.Embedded(t), "multi")
		blocked := Acquire(t, t.Context(), x.Other(t).Lock(x.Names[1]))
		waiting := Start(func() (*primitives.Hold, error) {
			return x.L.Acquire(t.Context(), primitives.WithLease(600*time.Millisecond))
		})
		time.Sleep(time.Second)
		Release(t, blocked)
		r := <-waiting
		require.NoError(t, r.Err)
		require.Greater(t, r.Hold.ValidUntil().Sub(r.At), 500*time.Millisecond)
		Release(t, r.Hold)
	})
}

func multiExtend(t *testing.T, x *JointTest) {
	hold := Acquire(t, t.Context(), x.L)
	require.NoError(t, ErrOf(x.C.Lock(x.Names[2]).ForceRelease(t.Context())))
	other := Acquire(t, t.Context(), x.Other(t).Lock(x.Names[2]), primitives.WithLease(5*time.Second))
	require.ErrorIs(t, hold.Extend(t.Context(), time.Hour), primitives.ErrLost)
	require.Less(t, x.S.Client(t).PTTL(t.Context(), x.Names[2]).Val(), 6*time.Second)
	require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
	require.NoError(t, other.Check(t.Context()))
	Release(t, other)
}

func multiLeakedLost(t *testing.T, x *JointTest) {
	c := x.Other(t)
	func() {
		hold, err := x.On(c).Acquire(t.Context())
		require.NoError(t, err)
		require.NoError(t, ErrOf(c.Lock(x.Names[0]).ForceRelease(t.Context())))
		require.ErrorIs(t, hold.Check(t.Context()), primitives.ErrLost)
	}()
	closed := make(chan error, 1)
	go func() { closed <- c.Close(context.Background()) }() // Close waits for holds that are still referenced
	redistest.WaitFor(t, Soon, func() bool {
		runtime.GC()
		return len(closed) > 0
	}, "Close returns once the hold is collected")
	require.NoError(t, <-closed)
	x.S.Client(t).Del(t.Context(), x.Names...)
}

func multiCloseOther(t *testing.T, x *JointTest) {
	other := x.Other(t)
	l := x.Join([]*primitives.Lock{x.C.Lock(x.Names[0]), other.Lock(x.Names[1])})
	hold := Acquire(t, t.Context(), l)
	CloseNow(other)
	RequireEnds(t, hold.Context(), primitives.ErrLost)
	require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
	require.Empty(t, Fields(t, x.S, x.Names[0]))
	require.NotEmpty(t, Fields(t, x.S, x.Names[1]), "the critical section may still run")
	require.ErrorIs(t, ErrOf(l.Acquire(t.Context())), primitives.ErrClosed)
	require.NoError(t, x.C.Lock(x.Names[1]).ReleaseID(t.Context(), hold.ID()))
}

// TestMultiLockMakesProgressInAnyOrder has clients acquire 2 to 10 of 10 locks in random order. One
// client acquires two of them one by one, against the order of multilocks. All of them finish.
func TestMultiLockMakesProgressInAnyOrder(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	base, clients, each := redistest.Name(t), 10, redistest.Scaled(s, 100)
	name := func(i int) string { return base + "-" + strconv.Itoa(i) }
	counters := make([]int, 10)
	want := make([]int, 10)
	var mu sync.Mutex // guards want
	var wg sync.WaitGroup
	began := time.Now()
	for range clients {
		c := NewClient(t, s.Client(t))
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
	rival := NewClient(t, s.Client(t))
	wg.Go(func() { // may deadlock with a multilock until that one backs off
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
	RequireClean(t, s, base)
}
