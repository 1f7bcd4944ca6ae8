package primitives_test

import (
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
	"github.com/redlatch/redlatch/scripts"
)

// The watchdog renews a lock every third of its TTL for an hour, and not after its release.
func TestClockWatchdogRenewsUntilRelease(t *testing.T) {
	t.Parallel()
	fixture.Bubble(t, func(t *testing.T, b *fixture.BubbleTest) {
		hold := fixture.Acquire(t, t.Context(), b.L)
		b.P.Record()
		// The extra second keeps the release away from the instant of a renewal, which might be
		// under way.
		time.Sleep(time.Hour + time.Second)
		fixture.RequireLive(t, hold.Context())
		require.NoError(t, hold.Check(t.Context()))
		require.InDelta(t, 361, b.Tries(), 25)
		require.InDelta(t, 30, b.S.Mini().TTL("l").Seconds(), 11)
		fixture.Release(t, hold)
		b.P.Record()
		time.Sleep(time.Hour)
		require.Zero(t, b.Tries())
		require.Empty(t, b.S.Mini().Keys())
	})
}

// Without answers, the loss is reported exactly when validity ends: at the start of the last
// confirmed command, plus the TTL, minus the safety margin. A waiter acquires after that, when the
// key expires.
func TestClockLossIsReportedAtTheDeadline(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		margin time.Duration // of WithSafetyMargin; negative for no option
		want   time.Duration
	}{
		{"default margin", -1, 302 * time.Millisecond},
		{"one second", time.Second, time.Second},
		{"at most half a TTL", time.Hour, 15 * time.Second},
	} {
		fixture.RunBubble(t, tt.name, func(t *testing.T, b *fixture.BubbleTest) {
			var opts []primitives.ClientOption
			if tt.margin >= 0 {
				opts = append(opts, primitives.WithSafetyMargin(tt.margin))
			}
			l := fixture.NewClient(t, b.P.Client(t), opts...).Lock("l")
			began := time.Now()
			hold := fixture.Acquire(t, t.Context(), l)
			require.Equal(t, began.Add(30*time.Second-tt.want), hold.ValidUntil())
			b.P.BlackHole(true)
			waiting := fixture.StartAcquire(t.Context(), b.Other)
			<-hold.Context().Done()
			require.Equal(t, 30*time.Second-tt.want, time.Since(began))
			require.ErrorIs(t, context.Cause(hold.Context()), primitives.ErrLost)
			require.Empty(t, waiting)
			r := <-waiting
			require.NoError(t, r.Err)
			require.GreaterOrEqual(t, r.At.Sub(began), 30*time.Second)
			require.Less(t, r.At.Sub(began), 30*time.Second+10*time.Millisecond)
			fixture.Release(t, r.Hold)
		})
	}
}

// Outages of any kind that are shorter than the validity of a hold do not end it.
func TestClockShortOutagesLoseNothing(t *testing.T) {
	t.Parallel()
	fixture.Bubble(t, func(t *testing.T, b *fixture.BubbleTest) {
		hold := fixture.Acquire(t, t.Context(), b.L)
		for range 7 {
			for _, begin := range []func(){
				func() { b.P.Refuse(true); b.P.Reset() },
				func() { b.P.BlackHole(true) },
				func() { b.P.DropReplies(math.MaxInt, fixture.Script) },
			} {
				failed := len(b.Heard.All(primitives.EventRenewFailed))
				time.Sleep(5 * time.Second)
				begin()
				time.Sleep(18 * time.Second)
				b.P.Heal()
				renewed := len(b.Heard.All(primitives.EventRenewed))
				time.Sleep(3 * time.Second)
				fixture.RequireLive(t, hold.Context())
				require.Greater(t, len(b.Heard.All(primitives.EventRenewFailed)), failed)
				require.Greater(t, len(b.Heard.All(primitives.EventRenewed)), renewed, "renewed again")
			}
		}
		require.NoError(t, hold.Check(t.Context()))
		require.Error(t, b.Heard.All(primitives.EventRenewFailed)[0].Err)
		fixture.Release(t, hold)
	})
}

// A lease is not renewed, and its hold ends at the deadline. The client then deletes the key, so
// that others need not wait for the safety margin to pass.
func TestClockLease(t *testing.T) {
	t.Parallel()
	fixture.Bubble(t, func(t *testing.T, b *fixture.BubbleTest) {
		began := time.Now()
		hold := fixture.Acquire(t, t.Context(), b.L, primitives.WithLease(10*time.Second))
		b.P.Record()
		<-hold.Context().Done()
		require.Equal(t, 10*time.Second-102*time.Millisecond, time.Since(began))
		require.Zero(t, b.Tries(), "a lease is not renewed")
		require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
		time.Sleep(50 * time.Millisecond)
		_, err := b.Other.TryAcquire(t.Context(), primitives.WithLease(time.Second))
		require.NoError(t, err, "the lock is free before its TTL ends")
	})
}

// WithMaxHold ends a hold that is renewed. Renewals never set a TTL beyond that end, so a waiter
// acquires in time.
func TestClockMaxHoldEndsARenewedHold(t *testing.T) {
	t.Parallel()
	fixture.Bubble(t, func(t *testing.T, b *fixture.BubbleTest) {
		began := time.Now()
		hold := fixture.Acquire(t, t.Context(), b.L, primitives.WithMaxHold(time.Minute))
		time.Sleep(55 * time.Second)
		fixture.RequireLive(t, hold.Context())
		<-hold.Context().Done()
		require.Equal(t, time.Minute-602*time.Millisecond, time.Since(began))
		next := fixture.Acquire(t, t.Context(), b.Other)
		require.LessOrEqual(t, time.Since(began), time.Minute, "no renewal extends the TTL beyond the maximum")
		require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
		require.NoError(t, next.Check(t.Context()))
		fixture.Release(t, next)
	})
}

// A nested hold and its outer hold each keep their own lease or renewal.
func TestClockNestedHoldsKeepTheirOwnLeases(t *testing.T) {
	t.Parallel()
	fixture.RunBubble(t, "a renewed hold outlives the outer lease", func(t *testing.T, b *fixture.BubbleTest) {
		began := time.Now()
		outer := fixture.Acquire(t, t.Context(), b.L, primitives.WithLease(20*time.Second))
		inner := fixture.Acquire(t, context.WithoutCancel(outer.Context()), b.L)
		<-outer.Context().Done()
		require.Equal(t, 20*time.Second-202*time.Millisecond, time.Since(began))
		time.Sleep(10 * time.Minute)
		fixture.RequireLive(t, inner.Context())
		require.NoError(t, inner.Check(t.Context()))
		require.ErrorIs(t, outer.Release(t.Context()), primitives.ErrLost)
		require.NoError(t, inner.Check(t.Context()))
		fixture.Release(t, inner)
		require.Empty(t, b.S.Mini().HGet("l", inner.ID()))
	})
	fixture.RunBubble(t, "the outer hold is renewed beyond nested leases", func(t *testing.T, b *fixture.BubbleTest) {
		outer := fixture.Acquire(t, t.Context(), b.L)
		inner := fixture.Acquire(t, outer.Context(), b.L, primitives.WithLease(time.Second))
		long := fixture.Acquire(t, inner.Context(), b.L, primitives.WithLease(time.Hour))
		require.Equal(t, time.Hour, b.S.Mini().TTL("l"))
		<-inner.Context().Done()
		fixture.RequireLive(t, outer.Context())
		time.Sleep(50 * time.Minute)
		require.NoError(t, outer.Check(t.Context()))
		require.NoError(t, long.Check(t.Context()))
		require.ErrorIs(t, inner.Release(t.Context()), primitives.ErrLost)
		fixture.Release(t, long)
		time.Sleep(time.Hour)
		require.NoError(t, outer.Check(t.Context()), "the outer hold is still renewed")
		fixture.Release(t, outer)
	})
	fixture.RunBubble(t, "renewal ends with the release of the renewed hold", func(t *testing.T, b *fixture.BubbleTest) {
		began := time.Now()
		outer := fixture.Acquire(t, t.Context(), b.L, primitives.WithLease(time.Minute))
		inner := fixture.Acquire(t, outer.Context(), b.L)
		time.Sleep(15 * time.Second)
		fixture.Release(t, inner)
		b.P.Record()
		<-outer.Context().Done()
		require.Equal(t, time.Minute-602*time.Millisecond, time.Since(began))
		require.Zero(t, b.Tries())
		// The call also keeps outer reachable: the garbage collector would end it as a leaked
		// hold.
		require.ErrorIs(t, outer.Release(t.Context()), primitives.ErrLost)
	})
}

// Extend moves the deadline of a lease, which then ends exactly there.
func TestClockExtend(t *testing.T) {
	t.Parallel()
	fixture.Bubble(t, func(t *testing.T, b *fixture.BubbleTest) {
		began := time.Now()
		hold := fixture.Acquire(t, t.Context(), b.L, primitives.WithLease(10*time.Second))
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
	fixture.Bubble(t, func(t *testing.T, b *fixture.BubbleTest) {
		hold := fixture.Acquire(t, t.Context(), b.Other)
		b.P.Record()
		l := b.C.Lock("l", primitives.WithPolling(100*time.Millisecond, 10*time.Second))
		began := time.Now()
		waiting := fixture.StartAcquire(t.Context(), l)
		time.Sleep(5 * time.Minute)
		var at []time.Duration
		for _, c := range b.P.Commands() {
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
		fixture.Release(t, hold)
		r := <-waiting
		require.NoError(t, r.Err)
		fixture.Release(t, r.Hold)
	})
}

// All waiters of a client for one name together send one command a second, the slow poll. It covers
// for a lost message.
func TestClockSlowPollIsSharedByWaiters(t *testing.T) {
	t.Parallel()
	fixture.Bubble(t, func(t *testing.T, b *fixture.BubbleTest) {
		hold := fixture.Acquire(t, t.Context(), b.Other)
		ctx, cancel := context.WithCancel(t.Context())
		var waiting []<-chan fixture.Result
		for range 50 {
			waiting = append(waiting, fixture.StartAcquire(ctx, b.L))
		}
		time.Sleep(5 * time.Second)
		b.P.Record()
		time.Sleep(time.Minute)
		require.InDelta(t, 60, b.Tries(), 2)
		b.P.DropMessages(true)
		released := time.Now()
		fixture.Release(t, hold)
		synctest.Wait()
		time.Sleep(time.Second)
		synctest.Wait()
		var got *primitives.Hold
		for _, w := range waiting {
			select {
			case r := <-w:
				require.NoError(t, r.Err)
				got = r.Hold
			default:
			}
		}
		require.NotNil(t, got, "no waiter has acquired after %v", time.Since(released))
		fixture.Release(t, got)
		cancel()
	})
}

// A wait ends exactly at its limit, or with its context.
func TestClockWaitEndsAtItsLimit(t *testing.T) {
	t.Parallel()
	fixture.Bubble(t, func(t *testing.T, b *fixture.BubbleTest) {
		hold := fixture.Acquire(t, t.Context(), b.Other)
		began := time.Now()
		_, err := b.L.Acquire(t.Context(), primitives.WithWait(1500*time.Millisecond))
		require.ErrorIs(t, err, primitives.ErrNotAcquired)
		require.Equal(t, 1500*time.Millisecond, time.Since(began))
		ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
		defer cancel()
		_, err = b.L.Acquire(ctx)
		require.ErrorIs(t, err, primitives.ErrNotAcquired)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 2200*time.Millisecond, time.Since(began))
		fixture.Release(t, hold)
	})
}

// No command carries a client's time. The server's clock stands still in another year, so its times
// cannot be confused with a client's.
func TestC22CommandsCarryNoClientTime(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds.Leased() {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Miniredis(t)
			s.Mini().SetTime(time.Date(2001, time.February, 3, 4, 5, 6, 0, time.UTC))
			p := s.Proxy(t)
			c := fixture.NewClient(t, p.Client(t))
			p.Record()
			l := kind.One(t, c, "l")
			hold := fixture.Acquire(t, t.Context(), l)
			waiting := fixture.StartAcquire(t.Context(), l)
			if kind.Name == "fair" {
				redistest.WaitFor(t, fixture.Soon, func() bool {
					return slices.ContainsFunc(p.Commands(), func(c redistest.Command) bool {
						return len(c.Args) > 1 && c.Args[1] == scripts.Load("fairlock/refresh").SHA()
					})
				}, "a heartbeat is sent")
			}
			require.NoError(t, hold.Check(t.Context()))
			require.NoError(t, hold.Extend(t.Context(), time.Minute))
			fixture.Release(t, hold)
			fixture.Release(t, fixture.AwaitHold(t, waiting))
			today := strconv.FormatInt(time.Now().UnixMilli(), 10)[:5]
			for _, c := range p.Commands() {
				for _, arg := range c.Args {
					require.False(t, len(arg) >= 10 && len(arg) <= 20 && strings.HasPrefix(arg, today), "%q in %q", arg, c.Args)
				}
			}
		})
	}
}
