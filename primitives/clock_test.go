package primitives_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// bubble runs f in a synctest bubble, whose time is fake, with an embedded server and two clients.
// The first client connects through a proxy.
func bubble(t *testing.T, f func(t *testing.T, b *bubbled)) {
	synctest.Test(t, func(t *testing.T) {
		s := redistest.Embedded(t)
		b := &bubbled{s: s, p: s.Proxy(t), heard: &recorder{}}
		b.c = newClient(t, b.p.Client(t), b.heard.option())
		b.l, b.other = b.c.Lock("l"), newClient(t, s.Client(t)).Lock("l")
		f(t, b)
	})
}

// bubbled is the fixture of bubble.
type bubbled struct {
	s        *redistest.Server
	p        *redistest.Proxy
	c        *primitives.Client
	l, other *primitives.Lock
	heard    *recorder
}

// tries counts the scripts that came through the proxy since Record.
func (b *bubbled) tries() (n int) {
	for _, c := range b.p.Commands() {
		if c.Args[0] == "evalsha" {
			n++
		}
	}
	return n
}

// The watchdog renews a lock every third of its TTL for an hour, and not after its release.
func TestClockWatchdogRenewsUntilRelease(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, b *bubbled) {
		hold := acquire(t, t.Context(), b.l)
		b.p.Record()
		// The extra second keeps the release away from the instant of a renewal, which might be
		// under way.
		time.Sleep(time.Hour + time.Second)
		requireLive(t, hold.Context())
		require.NoError(t, hold.Check(t.Context()))
		require.InDelta(t, 361, b.tries(), 25)
		require.InDelta(t, 30, b.s.Mini().TTL("l").Seconds(), 11)
		release(t, hold)
		b.p.Record()
		time.Sleep(time.Hour)
		require.Zero(t, b.tries())
		require.Empty(t, b.s.Mini().Keys())
	})
}

// Without answers, the loss is reported exactly when validity ends: at the start of the last
// confirmed command, plus the TTL, minus the safety margin. A waiter acquires after that, when the
// key expires.
func TestClockLossIsReportedAtTheDeadline(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		margin time.Duration // of WithSafetyMargin; negative: no option
		want   time.Duration
	}{
		{"default margin", -1, 302 * time.Millisecond},
		{"one second", time.Second, time.Second},
		{"at most half a TTL", time.Hour, 15 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bubbled) {
				var opts []primitives.ClientOption
				if tt.margin >= 0 {
					opts = append(opts, primitives.WithSafetyMargin(tt.margin))
				}
				l := newClient(t, b.p.Client(t), opts...).Lock("l")
				began := time.Now()
				hold := acquire(t, t.Context(), l)
				require.Equal(t, began.Add(30*time.Second-tt.want), hold.ValidUntil())
				b.p.BlackHole(true)
				waiting := start(func() (*primitives.Hold, error) { return b.other.Acquire(t.Context()) })
				<-hold.Context().Done()
				require.Equal(t, 30*time.Second-tt.want, time.Since(began))
				require.ErrorIs(t, context.Cause(hold.Context()), primitives.ErrLost)
				require.Empty(t, waiting)
				r := <-waiting
				require.NoError(t, r.err)
				require.GreaterOrEqual(t, r.at.Sub(began), 30*time.Second)
				require.Less(t, r.at.Sub(began), 30*time.Second+10*time.Millisecond)
				release(t, r.hold)
			})
		})
	}
}

// Outages that are shorter than the validity of a hold do not end it.
func TestClockShortOutagesLoseNothing(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, b *bubbled) {
		hold := acquire(t, t.Context(), b.l)
		for range 20 {
			time.Sleep(5 * time.Second)
			b.p.Refuse(true)
			b.p.Reset()
			time.Sleep(18 * time.Second)
			b.p.Heal()
			time.Sleep(3 * time.Second)
		}
		requireLive(t, hold.Context())
		require.NoError(t, hold.Check(t.Context()))
		require.NotEmpty(t, b.heard.all(primitives.EventRenewFailed))
		release(t, hold)
	})
}

// A lease is not renewed, and its hold ends at the deadline. The client then deletes the key, so
// that others need not wait for the safety margin to pass.
func TestClockLease(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, b *bubbled) {
		began := time.Now()
		hold := acquire(t, t.Context(), b.l, primitives.WithLease(10*time.Second))
		b.p.Record()
		<-hold.Context().Done()
		require.Equal(t, 10*time.Second-102*time.Millisecond, time.Since(began))
		require.Zero(t, b.tries(), "a lease is not renewed")
		require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
		time.Sleep(50 * time.Millisecond)
		_, err := b.other.TryAcquire(t.Context(), primitives.WithLease(time.Second))
		require.NoError(t, err, "the lock is free before its TTL ends")
	})
}

// WithMaxHold ends a hold that is renewed. Renewals never set a TTL beyond that end, so a waiter
// acquires in time.
func TestClockMaxHoldEndsARenewedHold(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, b *bubbled) {
		began := time.Now()
		hold := acquire(t, t.Context(), b.l, primitives.WithMaxHold(time.Minute))
		time.Sleep(55 * time.Second)
		requireLive(t, hold.Context())
		<-hold.Context().Done()
		require.Equal(t, time.Minute-602*time.Millisecond, time.Since(began))
		next := acquire(t, t.Context(), b.other)
		require.LessOrEqual(t, time.Since(began), time.Minute, "no renewal extends the TTL beyond the maximum")
		require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
		require.NoError(t, next.Check(t.Context()))
		release(t, next)
	})
}

// A nested hold and its outer hold each keep their own lease or renewal.
func TestClockNestedHoldsKeepTheirOwnLeases(t *testing.T) {
	t.Parallel()
	t.Run("a renewed hold outlives the outer lease", func(t *testing.T) {
		bubble(t, func(t *testing.T, b *bubbled) {
			began := time.Now()
			outer := acquire(t, t.Context(), b.l, primitives.WithLease(20*time.Second))
			inner := acquire(t, context.WithoutCancel(outer.Context()), b.l)
			<-outer.Context().Done()
			require.Equal(t, 20*time.Second-202*time.Millisecond, time.Since(began))
			time.Sleep(10 * time.Minute)
			requireLive(t, inner.Context())
			require.NoError(t, inner.Check(t.Context()))
			require.ErrorIs(t, outer.Release(t.Context()), primitives.ErrLost)
			require.NoError(t, inner.Check(t.Context()))
			release(t, inner)
			require.Empty(t, b.s.Mini().HGet("l", inner.ID()))
		})
	})
	t.Run("the outer hold is renewed beyond nested leases", func(t *testing.T) {
		bubble(t, func(t *testing.T, b *bubbled) {
			outer := acquire(t, t.Context(), b.l)
			inner := acquire(t, outer.Context(), b.l, primitives.WithLease(time.Second))
			long := acquire(t, inner.Context(), b.l, primitives.WithLease(time.Hour))
			require.Equal(t, time.Hour, b.s.Mini().TTL("l"))
			<-inner.Context().Done()
			requireLive(t, outer.Context())
			time.Sleep(50 * time.Minute)
			require.NoError(t, outer.Check(t.Context()))
			require.NoError(t, long.Check(t.Context()))
			require.ErrorIs(t, inner.Release(t.Context()), primitives.ErrLost)
			release(t, long)
			time.Sleep(time.Hour)
			require.NoError(t, outer.Check(t.Context()), "the outer hold is still renewed")
			release(t, outer)
		})
	})
	t.Run("renewal ends with the release of the renewed hold", func(t *testing.T) {
		bubble(t, func(t *testing.T, b *bubbled) {
			began := time.Now()
			outer := acquire(t, t.Context(), b.l, primitives.WithLease(time.Minute))
			inner := acquire(t, outer.Context(), b.l)
			time.Sleep(15 * time.Second)
			release(t, inner)
			b.p.Record()
			<-outer.Context().Done()
			require.Equal(t, time.Minute-602*time.Millisecond, time.Since(began))
			require.Zero(t, b.tries())
			// The call also keeps outer reachable: the garbage collector would end it as a leaked
			// hold.
			require.ErrorIs(t, outer.Release(t.Context()), primitives.ErrLost)
		})
	})
}

// Extend moves the deadline of a lease, which then ends exactly there.
func TestClockExtend(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, b *bubbled) {
		began := time.Now()
		hold := acquire(t, t.Context(), b.l, primitives.WithLease(10*time.Second))
		time.Sleep(5 * time.Second)
		require.NoError(t, hold.Extend(t.Context(), 20*time.Second))
		require.Equal(t, began.Add(25*time.Second-202*time.Millisecond), hold.ValidUntil())
		<-hold.Context().Done()
		require.Equal(t, 25*time.Second-202*time.Millisecond, time.Since(began))
		require.ErrorIs(t, hold.Extend(t.Context(), time.Second), primitives.ErrLost)
	})
}

// A polling lock retries with a delay that doubles up to its maximum, plus a jitter of a quarter.
// It subscribes to nothing.
func TestClockPollingBacksOff(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, b *bubbled) {
		hold := acquire(t, t.Context(), b.other)
		b.p.Record()
		l := b.c.Lock("l", primitives.WithPolling(100*time.Millisecond, 10*time.Second))
		began := time.Now()
		waiting := start(func() (*primitives.Hold, error) { return l.Acquire(t.Context()) })
		time.Sleep(5 * time.Minute)
		var at []time.Duration
		for _, c := range b.p.Commands() {
			require.NotEqual(t, "subscribe", c.Args[0])
			if c.Args[0] == "evalsha" {
				at = append(at, c.Time.Sub(began))
			}
		}
		require.Zero(t, at[0])
		for i, want := 1, 100*time.Millisecond; i < len(at); i, want = i+1, min(2*want, 10*time.Second) {
			pause := at[i] - at[i-1]
			require.GreaterOrEqual(t, pause, want, "pause %d", i)
			require.LessOrEqual(t, pause, want*5/4+time.Millisecond, "pause %d", i)
		}
		require.Greater(t, len(at), 20)
		release(t, hold)
		r := <-waiting
		require.NoError(t, r.err)
		release(t, r.hold)
	})
}

// All waiters of a client for one name together send one command a second, the slow poll. It covers
// for a lost message.
func TestClockSlowPollIsSharedByWaiters(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, b *bubbled) {
		hold := acquire(t, t.Context(), b.other)
		ctx, cancel := context.WithCancel(t.Context())
		var waiting []<-chan result
		for range 50 {
			waiting = append(waiting, start(func() (*primitives.Hold, error) { return b.l.Acquire(ctx) }))
		}
		time.Sleep(5 * time.Second)
		b.p.Record()
		time.Sleep(time.Minute)
		require.InDelta(t, 60, b.tries(), 2)
		b.p.DropMessages(true)
		released := time.Now()
		release(t, hold)
		synctest.Wait()
		time.Sleep(time.Second)
		synctest.Wait()
		var got *primitives.Hold
		for _, w := range waiting {
			select {
			case r := <-w:
				require.NoError(t, r.err)
				got = r.hold
			default:
			}
		}
		require.NotNil(t, got, "no waiter has acquired after %v", time.Since(released))
		release(t, got)
		cancel()
	})
}

// A wait ends exactly at its limit, or with its context.
func TestClockWaitEndsAtItsLimit(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, b *bubbled) {
		hold := acquire(t, t.Context(), b.other)
		began := time.Now()
		_, err := b.l.Acquire(t.Context(), primitives.WithWait(1500*time.Millisecond))
		require.ErrorIs(t, err, primitives.ErrNotAcquired)
		require.Equal(t, 1500*time.Millisecond, time.Since(began))
		ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
		defer cancel()
		_, err = b.l.Acquire(ctx)
		require.ErrorIs(t, err, primitives.ErrNotAcquired)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 2200*time.Millisecond, time.Since(began))
		release(t, hold)
	})
}
