package faults

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// C7: which errors match ErrNotAcquired, and which are returned as they are.
func TestC7Errors(t *testing.T) {
	t.Parallel()
	t.Run("a waiter retries after transport errors", transportErrorsWhileWaiting)
	redistest.RunBubble(t, "a cancelled waiter joins the last transport error", transportErrorJoined)
	t.Run("the error has the operation, the kind and the name", func(t *testing.T) {
		c := fixture.NewClient(t, redistest.Miniredis(t).Client(t))
		_, err := c.Lock("").Acquire(t.Context())
		e, ok := errors.AsType[*primitives.Error](err)
		require.True(t, ok)
		require.Equal(t, []string{"acquire", "lock", ""}, []string{e.Op, e.Kind, e.Name})
		require.ErrorIs(t, primitives.ErrReleased, primitives.ErrNotHeld)
		require.NotErrorIs(t, primitives.ErrNotHeld, primitives.ErrReleased)
	})
}

// transportErrorsWhileWaiting makes Redis unreachable for two waiters. The bounded one times out,
// and the other acquires once Redis is back.
func transportErrorsWhileWaiting(t *testing.T) {
	x := fixture.OnLock(t, redistest.Redis(t))
	p := x.S.Proxy(t)
	hold := fixture.Acquire(t, t.Context(), x.L)
	c := fixture.NewClient(t, p.Client(t, fixture.ShortTimeouts))
	other := c.Lock(x.Name)
	waiting := fixture.StartAcquire(t.Context(), other)
	bounded := fixture.StartAcquire(t.Context(), other, primitives.WithWait(3*time.Second))
	fixture.AwaitWaiter(t, x.S, x.Name)
	fixture.AwaitWaiters(t, c, 2) // or the outage could meet the first attempt of one of them
	p.Cut()
	r := fixture.Await(t, bounded)
	require.ErrorIs(t, r.Err, primitives.ErrNotAcquired)
	require.Empty(t, waiting, "a waiter without a limit retries")
	p.Heal()
	fixture.Release(t, hold)
	fixture.Release(t, fixture.AwaitHold(t, waiting))
	fixture.RequireClean(t, x.S, x.Name)
}

// transportErrorJoined cancels a waiter while Redis is unreachable. Its error has all three causes.
// It runs in fake time.
func transportErrorJoined(t *testing.T) {
	x := fixture.OnLock(t, redistest.Embedded(t))
	p := x.S.Proxy(t)
	hold := fixture.Acquire(t, t.Context(), x.L)
	ctx, cancel := context.WithCancelCause(t.Context())
	other := fixture.NewClient(t, p.Client(t, fixture.ShortTimeouts)).Lock(x.Name)
	waiting := fixture.StartAcquire(ctx, other)
	fixture.AwaitWaiter(t, x.S, x.Name)
	p.Cut()
	time.Sleep(1500 * time.Millisecond) // at least one slow poll fails
	cancel(fixture.ErrTest)
	r := fixture.Await(t, waiting)
	require.ErrorIs(t, r.Err, primitives.ErrNotAcquired)
	require.ErrorIs(t, r.Err, fixture.ErrTest)
	require.ErrorIs(t, r.Err, primitives.ErrUnavailable)
	require.ErrorContains(t, r.Err, "connection refused")
	fixture.Release(t, hold)
}

// C11: Release ends in bounded time, and is retried in the background.
func TestC11ReleaseWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	t.Run("a release without an answer is retried in the background", releaseWithoutAnswer)
	redistest.RunBubble(t, "Release returns within 5 s, whatever the client's timeouts", releaseReturnsWithin5s)
	redistest.RunBubble(t, "a background retry does not restore a count", backgroundReleaseOutOfOrder)
}

func releaseWithoutAnswer(t *testing.T) {
	x := fixture.OnLock(t, redistest.Redis(t))
	p := x.S.Proxy(t)
	heard := &fixture.Recorder{}
	l := fixture.NewClient(t, p.Client(t, fixture.ShortTimeouts), heard.Option()).Lock(x.Name)
	hold := fixture.Acquire(t, t.Context(), l)
	p.BlackHole(true)
	began := time.Now()
	err := hold.Release(t.Context())
	require.Error(t, err)
	require.NotErrorIs(t, err, primitives.ErrLost)
	require.Less(t, time.Since(began), 10*time.Second, "it would be repeated for the lease, 30 s")
	require.Len(t, heard.All(primitives.EventReleaseFailed), 1)
	fixture.RequireEnds(t, hold.Context(), primitives.ErrReleased)
	require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrReleased)
	p.Heal()
	fixture.Release(t, fixture.Acquire(t, t.Context(), x.L)) // a retry in the background has freed it
	fixture.RequireClean(t, x.S, x.Name)
}

// releaseReturnsWithin5s runs in fake time.
func releaseReturnsWithin5s(t *testing.T) {
	x := fixture.OnLock(t, redistest.Embedded(t))
	p := x.S.Proxy(t)
	l := fixture.NewClient(t, p.Client(t, func(o *redis.Options) { o.ReadTimeout = 7 * time.Second })).Lock(x.Name)
	hold := fixture.Acquire(t, t.Context(), l)
	p.BlackHole(true)
	began := time.Now()
	require.Error(t, hold.Release(t.Context()))
	require.Equal(t, 5*time.Second, time.Since(began))
	p.Reset()
	p.Heal()
	fixture.Release(t, fixture.Acquire(t, t.Context(), x.L))
}

// backgroundReleaseOutOfOrder checks that the background retry of the inner release, which writes
// the count that it wants, does not undo the release of the middle hold that came after it. It runs
// in fake time.
func backgroundReleaseOutOfOrder(t *testing.T) {
	x := fixture.OnLock(t, redistest.Embedded(t))
	p := x.S.Proxy(t)
	l := fixture.NewClient(t, p.Client(t, fixture.ShortTimeouts, fixture.NoRetries)).Lock(x.Name)
	outer := fixture.Acquire(t, t.Context(), l)
	middle := fixture.Acquire(t, outer.Context(), l)
	inner := fixture.Acquire(t, middle.Context(), l)
	p.DropCommands(1, fixture.Script)
	require.Error(t, inner.Release(t.Context()))
	fixture.Release(t, middle)
	require.Equal(t, "1", x.Count(t, outer.ID()))
	time.Sleep(20 * time.Second) // time for retries in the background
	require.Equal(t, "1", x.Count(t, outer.ID()))
	fixture.Release(t, outer)
	fixture.RequireClean(t, x.S, x.Name)
}

// C12: a release without an answer is not an error of Do.
func TestC12DoSucceedsIfOnlyTheReleaseFails(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	p := s.Proxy(t)
	heard := &fixture.Recorder{}
	name := redistest.Name(t)
	l := fixture.NewClient(t, p.Client(t, fixture.ShortTimeouts), heard.Option()).Lock(name)
	require.NoError(t, l.Do(t.Context(), func(context.Context) error { p.BlackHole(true); return nil }))
	require.Len(t, heard.All(primitives.EventReleaseFailed), 1)
	p.Heal()
	fixture.RequireClean(t, s, name)
}

// isAcquisition matches scripts that acquire a lock. It does not match scripts that only add a
// count to a private hold.
func isAcquisition(args []string) bool {
	return fixture.Script(args) && slices.Contains(args, "publish") && !fixture.Releases(args)
}

// Each command has an attempt without a reply, and copies of all of them come late. Each
// acquisition still issues exactly one token.
func TestC14TokenExactlyOnce(t *testing.T) {
	t.Parallel()
	fixture.EachFenced(t, func(t *testing.T, x *fixture.FencedTest) {
		measured, cuts := redistest.Bar(t, x.S, 1), 0
		p := x.S.Proxy(t)
		l := fixture.NewClient(t, p.Client(t, fixture.FastRetries)).FencedLock(x.Name)
		want, recorded := int64(0), time.Now()
		var calls sync.Map // the call that has first sent a command, as a number
		p.Record()
		copies := func() {
			p.Heal()
			require.Equal(t, want, x.Last(t))
			for _, late := range fixture.ScriptsOf(p) {
				_ = fixture.Resend(x.Rdb, late).Err()
				require.Equal(t, want, x.Last(t), "a late copy issues no token: %q", late.Args)
			}
			recorded = time.Now()
			p.Record()
		}
		n := redistest.Sized(x.S, redistest.Scaled(x.S, 250), 10_000)
		for i := range n {
			if i > 0 && i%500 == 0 || time.Since(recorded) > time.Minute { // requests are remembered for 3 minutes
				copies()
			}
			var opts []primitives.Option
			if i%3 == 0 {
				opts = []primitives.Option{primitives.WithOwner("me")}
			}
			// On a busy machine, commands of former calls may still arrive. It must not be their
			// replies that are lost: without a doubt, Redis remembers a release for seconds only. So
			// an acquisition loses replies to acquisitions only.
			disturb := func(match redistest.Match) {
				lost := 1 + rand.IntN(2)
				cuts += lost
				p.Heal()
				call := cuts
				p.DropReplies(lost, func(args []string) bool {
					if !match(args) {
						return false
					}
					first, _ := calls.LoadOrStore(strings.Join(args, " "), call)
					return first == call
				})
			}
			want++
			disturb(isAcquisition)
			hold := fixture.Acquire(t, t.Context(), l, opts...)
			require.Equal(t, want, hold.Token())
			disturb(fixture.Script)
			inner := fixture.Acquire(t, hold.Context(), l, opts...)
			require.Equal(t, want, inner.Token())
			disturb(fixture.Script)
			fixture.Release(t, inner)
			disturb(fixture.Script)
			fixture.Release(t, hold)
		}
		copies()
		measured("%d replies lost in %d times four calls: acquire and release, and both nested", cuts, n)
	})
}

// TestLockerRetriesDuringAnOutage checks that Lock waits for the end of an outage and reports it to
// the observer. TryLock returns.
func TestLockerRetriesDuringAnOutage(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	p := s.Proxy(t)
	events := &fixture.Recorder{}
	name := redistest.Name(t)
	mu := fixture.NewClient(t, p.Client(t, fixture.ShortTimeouts), events.Option()).Lock(name).Locker(t.Context())
	p.Refuse(true)
	require.False(t, mu.TryLock())
	require.Error(t, events.Await(t, primitives.EventWait).Err)
	locked := make(chan struct{})
	go func() {
		mu.Lock()
		close(locked)
	}()
	redistest.WaitFor(t, fixture.Soon, func() bool {
		return len(events.All(primitives.EventWait)) > 2
	}, "the outage is reported")
	select {
	case <-locked:
		require.FailNow(t, "locked without Redis")
	default:
	}
	p.Heal()
	<-locked
	require.Len(t, fixture.Fields(t, s, name), 1)
	mu.Unlock()
	fixture.RequireClean(t, s, name)
}
