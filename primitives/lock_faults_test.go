package primitives_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// C7: which errors match ErrNotAcquired, and which are returned as they are.
func TestC7Errors(t *testing.T) {
	t.Parallel()
	t.Run("a transport error of the first try is returned", transportErrorOfFirstTry)
	t.Run("a waiter retries after transport errors", transportErrorsWhileWaiting)
	t.Run("a cancelled waiter joins the last transport error", func(t *testing.T) {
		synctest.Test(t, transportErrorJoined)
	})
	t.Run("an error reply of Redis is returned", func(t *testing.T) {
		eachLock(t, func(t *testing.T, x *lockTest) {
			require.NoError(t, x.rdb.Set(t.Context(), x.name, "not a lock", 0).Err())
			err := errOf(x.l.Acquire(t.Context()))
			require.ErrorContains(t, err, "WRONGTYPE")
			require.NotErrorIs(t, err, primitives.ErrNotAcquired)
			require.ErrorContains(t, errOf(x.l.ForceRelease(t.Context())), "WRONGTYPE")
			require.ErrorContains(t, errOf(x.l.Info(t.Context())), "WRONGTYPE")
			require.Equal(t, "not a lock", x.rdb.Get(t.Context(), x.name).Val())
			require.NoError(t, x.rdb.Del(t.Context(), x.name).Err())
		})
	})
	t.Run("the error has the operation, the kind and the name", func(t *testing.T) {
		c := newClient(t, redistest.Miniredis(t).Client(t))
		_, err := c.Lock("").Acquire(t.Context())
		e, ok := errors.AsType[*primitives.Error](err)
		require.True(t, ok)
		require.Equal(t, []string{"acquire", "lock", ""}, []string{e.Op, e.Kind, e.Name})
		require.ErrorIs(t, primitives.ErrReleased, primitives.ErrNotHeld)
		require.NotErrorIs(t, primitives.ErrNotHeld, primitives.ErrReleased)
	})
}

// transportErrorOfFirstTry makes Redis unreachable, once by refused connections and once by
// silence.
func transportErrorOfFirstTry(t *testing.T) {
	for _, fault := range []func(p *redistest.Proxy){
		func(p *redistest.Proxy) { p.Refuse(true); p.Reset() },
		func(p *redistest.Proxy) { p.BlackHole(true) },
	} {
		s := redistest.Miniredis(t)
		p := s.Proxy(t)
		l := newClient(t, p.Client(t, hasty)).Lock("l")
		fault(p)
		_, err := l.Acquire(t.Context())
		require.Error(t, err)
		require.NotErrorIs(t, err, primitives.ErrNotAcquired)
		p.Heal()
		release(t, acquire(t, t.Context(), l))
	}
}

// transportErrorsWhileWaiting makes Redis unreachable for two waiters. The bounded one times out,
// and the other acquires once Redis is back.
func transportErrorsWhileWaiting(t *testing.T) {
	x := onLock(t, redistest.Redis(t))
	p := x.s.Proxy(t)
	hold := acquire(t, t.Context(), x.l)
	c := newClient(t, p.Client(t, hasty))
	other := c.Lock(x.name)
	waiting := start(func() (*primitives.Hold, error) { return other.Acquire(t.Context()) })
	bounded := start(func() (*primitives.Hold, error) {
		return other.Acquire(t.Context(), primitives.WithWait(3*time.Second))
	})
	awaitWaiter(t, x.s, x.name)
	awaitLocalWaiters(t, c, 2) // or the outage could meet the first attempt of one of them
	p.Refuse(true)
	p.Reset()
	r := await(t, bounded)
	require.ErrorIs(t, r.err, primitives.ErrNotAcquired)
	require.Empty(t, waiting, "a waiter without a limit retries")
	p.Heal()
	release(t, hold)
	release(t, awaitHold(t, waiting))
	requireClean(t, x.s, x.name)
}

// transportErrorJoined cancels a waiter while Redis is unreachable. Its error has all three causes.
// It runs in fake time.
func transportErrorJoined(t *testing.T) {
	x := onLock(t, redistest.Embedded(t))
	p := x.s.Proxy(t)
	hold := acquire(t, t.Context(), x.l)
	ctx, cancel := context.WithCancelCause(t.Context())
	other := newClient(t, p.Client(t, hasty)).Lock(x.name)
	waiting := start(func() (*primitives.Hold, error) { return other.Acquire(ctx) })
	awaitWaiter(t, x.s, x.name)
	p.Refuse(true)
	p.Reset()
	time.Sleep(1500 * time.Millisecond) // at least one slow poll fails
	cancel(errTest)
	r := await(t, waiting)
	require.ErrorIs(t, r.err, primitives.ErrNotAcquired)
	require.ErrorIs(t, r.err, errTest)
	require.ErrorIs(t, r.err, primitives.ErrUnavailable)
	require.ErrorContains(t, r.err, "connection refused")
	release(t, hold)
}

// C11: Release ends in bounded time, and is retried in the background.
func TestC11ReleaseWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	t.Run("a release without an answer is retried in the background", releaseWithoutAnswer)
	t.Run("Release returns within 5 s, whatever the client's timeouts", func(t *testing.T) {
		synctest.Test(t, releaseReturnsWithin5s)
	})
	t.Run("a background retry does not restore a count", func(t *testing.T) {
		synctest.Test(t, backgroundReleaseOutOfOrder)
	})
}

func releaseWithoutAnswer(t *testing.T) {
	x := onLock(t, redistest.Redis(t))
	p := x.s.Proxy(t)
	heard := &recorder{}
	l := newClient(t, p.Client(t, hasty), heard.option()).Lock(x.name)
	hold := acquire(t, t.Context(), l)
	p.BlackHole(true)
	began := time.Now()
	err := hold.Release(t.Context())
	require.Error(t, err)
	require.NotErrorIs(t, err, primitives.ErrLost)
	require.Less(t, time.Since(began), 10*time.Second, "it would be repeated for the lease, 30 s")
	require.Len(t, heard.all(primitives.EventReleaseFailed), 1)
	requireEnds(t, hold.Context(), primitives.ErrReleased)
	require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrReleased)
	p.Heal()
	release(t, acquire(t, t.Context(), x.l)) // a retry in the background has freed it
	requireClean(t, x.s, x.name)
}

// releaseReturnsWithin5s runs in fake time.
func releaseReturnsWithin5s(t *testing.T) {
	x := onLock(t, redistest.Embedded(t))
	p := x.s.Proxy(t)
	l := newClient(t, p.Client(t, func(o *redis.Options) { o.ReadTimeout = 7 * time.Second })).Lock(x.name)
	hold := acquire(t, t.Context(), l)
	p.BlackHole(true)
	began := time.Now()
	require.Error(t, hold.Release(t.Context()))
	require.Equal(t, 5*time.Second, time.Since(began))
	p.Reset()
	p.Heal()
	release(t, acquire(t, t.Context(), x.l))
}

// backgroundReleaseOutOfOrder checks that the background retry of the inner release, which writes
// the count that it wants, does not undo the release of the middle hold that came after it. It runs in
// fake time.
func backgroundReleaseOutOfOrder(t *testing.T) {
	x := onLock(t, redistest.Embedded(t))
	p := x.s.Proxy(t)
	l := newClient(t, p.Client(t, hasty, noRetries)).Lock(x.name)
	outer := acquire(t, t.Context(), l)
	middle := acquire(t, outer.Context(), l)
	inner := acquire(t, middle.Context(), l)
	p.DropCommands(1, script)
	require.Error(t, inner.Release(t.Context()))
	release(t, middle)
	require.Equal(t, "1", x.count(t, outer.ID()))
	time.Sleep(20 * time.Second) // time for retries in the background
	require.Equal(t, "1", x.count(t, outer.ID()))
	release(t, outer)
	requireClean(t, x.s, x.name)
}

// C12: a release without an answer is not an error of Do.
func TestC12DoSucceedsIfOnlyTheReleaseFails(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	p := s.Proxy(t)
	heard := &recorder{}
	name := redistest.Name(t)
	l := newClient(t, p.Client(t, hasty), heard.option()).Lock(name)
	require.NoError(t, l.Do(t.Context(), func(context.Context) error { p.BlackHole(true); return nil }))
	require.Len(t, heard.all(primitives.EventReleaseFailed), 1)
	p.Heal()
	requireClean(t, s, name)
}

// Each command has an attempt without a reply, and copies of all of them come late. Each acquisition
// still issues exactly one token.
func TestC14TokenExactlyOnce(t *testing.T) {
	t.Parallel()
	eachFenced(t, func(t *testing.T, x *fencedTest) {
		measured, cuts := redistest.Bar(t, x.s, 1), 0
		p := x.s.Proxy(t)
		l := newClient(t, p.Client(t, quick)).FencedLock(x.name)
		want := int64(0)
		p.Record()
		copies := func() {
			p.Heal()
			require.Equal(t, want, x.last(t))
			replay(t, x.rdb, scriptsOf(p))
			require.Equal(t, want, x.last(t), "late copies issue no token")
			p.Record()
		}
		n := redistest.Sized(x.s, redistest.Scaled(x.s, 250), 10_000)
		for i := range n {
			if i > 0 && i%500 == 0 { // requests are remembered for some time only
				copies()
			}
			var opts []primitives.Option
			if i%3 == 0 {
				opts = []primitives.Option{primitives.WithOwner("me")}
			}
			disturb := func() {
				lost := 1 + rand.IntN(2)
				cuts += lost
				p.Heal()
				p.DropReplies(lost, script)
			}
			want++
			disturb()
			hold := acquire(t, t.Context(), l, opts...)
			require.Equal(t, want, hold.Token())
			disturb()
			inner := acquire(t, hold.Context(), l, opts...)
			require.Equal(t, want, inner.Token())
			disturb()
			release(t, inner)
			disturb()
			release(t, hold)
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
	events := &recorder{}
	name := redistest.Name(t)
	mu := newClient(t, p.Client(t, hasty), events.option()).Lock(name).Locker(t.Context())
	p.Refuse(true)
	require.False(t, mu.TryLock())
	require.Error(t, events.await(t, primitives.EventWait).Err)
	locked := make(chan struct{})
	go func() {
		mu.Lock()
		close(locked)
	}()
	redistest.WaitFor(t, soon, func() bool {
		return len(events.all(primitives.EventWait)) > 2
	}, "the outage is reported")
	select {
	case <-locked:
		require.FailNow(t, "locked without Redis")
	default:
	}
	p.Heal()
	<-locked
	require.Len(t, fields(t, s, name), 1)
	mu.Unlock()
	requireClean(t, s, name)
}
