package contract

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
	"github.com/redlatch/redlatch/scripts"
)

// contend calls each n times from three goroutines for each lock, with the number of the goroutine.
// The locks are one fair lock on several clients.
func contend(locks []*primitives.Lock, n int, each func(int, *primitives.Lock)) {
	fixture.Concurrently(3*len(locks), func(i int) {
		for range n {
			each(i, locks[i%len(locks)])
		}
	})
}

// A handoff takes two scripts: one queues, and one releases to the next waiter. The waiter that
// gets the lock neither asks again nor subscribes for it.
func TestFairLockHandoffTakesTwoCommands(t *testing.T) {
	s := redistest.Redis(t)
	name := redistest.Name(t)
	proxies := make([]*redistest.Proxy, 4)
	locks := make([]*primitives.Lock, len(proxies))
	for i := range locks {
		proxies[i] = s.Proxy(t)
		locks[i] = fixture.NewClient(t, proxies[i].Client(t)).FairLock(name)
		proxies[i].Record()
	}
	const n = 25
	inside, entered := 0, 0
	contend(locks, n, func(_ int, l *primitives.Lock) {
		err := l.Do(t.Context(), func(context.Context) error {
			inside++
			defer func() { inside-- }()
			entered++
			if inside != 1 {
				t.Errorf("%d hold the lock", inside)
			}
			return nil
		})
		assert.NoError(t, err)
	})
	counts := map[string]int{}
	refresh := scripts.Load("fairlock/refresh").SHA()
	for _, p := range proxies {
		for _, c := range p.Commands() {
			if len(c.Args) > 1 && c.Args[1] == refresh {
				continue // heartbeats, whose number depends on the time
			}
			counts[strings.ToLower(c.Args[0])]++
		}
	}
	require.Equal(t, 3*len(locks)*n, entered)
	require.Less(t, float64(counts["evalsha"])/float64(entered), 2.25, "%v", counts)
	t.Logf("%d acquisitions: %v", entered, counts)
	require.Less(t, counts["subscribe"], 4*len(locks), "%v", counts)
	fixture.RequireClean(t, s, name)
}

// A waiter that is cancelled at the moment when it gets the lock hands it off to the next one.
func TestFairLockCancelledWaiterHandsOff(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		locks := make([]*primitives.Lock, 4)
		for i := range locks {
			locks[i] = fixture.NewClient(t, s.Client(t)).FairLock(name)
		}
		inside, entered := 0, 0
		last, longest := time.Now(), time.Duration(0)
		section := func(context.Context) error {
			inside++
			defer func() { inside-- }()
			entered++
			longest, last = max(longest, time.Since(last)), time.Now()
			if inside != 1 {
				t.Errorf("%d hold the lock", inside)
			}
			return nil
		}
		n := redistest.Scaled(s, 25) // miniredis may need seconds for the commands of more
		contend(locks, n, func(i int, l *primitives.Lock) {
			if i%2 == 0 {
				assert.NoError(t, l.Do(t.Context(), section))
				return
			}
			ctx, cancel := context.WithTimeout(t.Context(), rand.N(3*time.Millisecond))
			defer cancel()
			_ = l.Do(ctx, section)
		})
		require.GreaterOrEqual(t, entered, 3*len(locks)*n/2)
		require.Less(t, longest, 5*time.Second, "a handoff that is lost blocks the lock for almost 10 s")
		fixture.RequireClean(t, s, name)
	})
}

// A handoff gives the next waiter a first lease that counts from its last heartbeat, and that ends
// when the queue entry of a dead waiter would. The waiter never believes to hold longer than Redis
// says. It renews the first lease in time, to the TTL that it asked for.
func TestFairLockHandoffLease(t *testing.T) {
	t.Parallel()
	for _, after := range []time.Duration{0, 1500 * time.Millisecond, 8 * time.Second} {
		for what, opts := range map[string][]primitives.Option{
			"watchdog":             nil,
			"short watchdog":       {primitives.WithWatchdog(2 * time.Second)},
			"short waiter timeout": {primitives.WithWaiterTimeout(600 * time.Millisecond)},
			"lease":                {primitives.WithLease(5 * time.Second)},
			"long lease":           {primitives.WithLease(20 * time.Second)},
			"max hold":             {primitives.WithMaxHold(15 * time.Second)},
		} {
			for _, fromOther := range []bool{false, true} { // another client releases the lock
				name := fmt.Sprintf("%s, after %v, from another client: %v", what, after, fromOther)
				redistest.RunBubble(t, name, func(t *testing.T) {
					s := redistest.Embedded(t)
					rdb := s.Client(t)
					l := fixture.NewClient(t, s.Client(t)).FairLock("l")
					former := l
					if fromOther {
						former = fixture.NewClient(t, s.Client(t)).FairLock("l")
					}
					first := fixture.Acquire(t, t.Context(), former)
					waiting := fixture.StartAcquire(t.Context(), l, opts...)
					fixture.AwaitFair(t, l, 1)
					time.Sleep(after)
					fixture.Release(t, first)
					r := <-waiting
					require.NoError(t, r.Err)
					acquired := time.Now()
					for r.Hold.Context().Err() == nil && time.Since(acquired) < 25*time.Second {
						// Read ValidUntil before the TTL, since a renewal may come in between.
						believed := time.Until(r.Hold.ValidUntil())
						left := rdb.PTTL(t.Context(), "l").Val()
						require.Greater(t, left, believed, "the lock expires before the hold ends")
						if what == "watchdog" && time.Since(acquired) > 4*time.Second {
							require.Greater(t, left, 19*time.Second, "the lock is renewed to its full TTL")
						}
						time.Sleep(200 * time.Millisecond)
					}
					lasted := time.Since(acquired)
					switch what {
					case "lease":
						require.InDelta(t, 5, lasted.Seconds(), 0.7)
					case "long lease":
						require.InDelta(t, 20, lasted.Seconds(), 2.5)
					case "max hold":
						require.InDelta(t, 15, lasted.Seconds(), 1.8)
					default:
						require.Greater(t, lasted, 24*time.Second, "the hold is renewed")
						fixture.Release(t, r.Hold)
					}
				})
			}
		}
	}
}

// A waiter ignores a grant message that is malformed, or that belongs to an earlier queue entry.
func TestFairLockIgnoresStaleGrants(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := redistest.Embedded(t)
		rdb := s.Client(t)
		c := fixture.NewClient(t, s.Client(t))
		l := c.FairLock("l")
		hold := fixture.Acquire(t, t.Context(), fixture.NewClient(t, s.Client(t)).FairLock("l"))
		waiting := fixture.StartAcquire(t.Context(), l)
		fixture.AwaitFair(t, l, 1)
		time.Sleep(100 * time.Millisecond)
		id := fixture.FairWaiters(t, l)[0]
		// One channel ends with the waiter's id. The other is the client's, named by a private id.
		channels := slices.DeleteFunc(redistest.Channels(t, s), func(name string) bool {
			return strings.HasSuffix(name, id)
		})
		require.Len(t, channels, 1)
		for _, message := range []string{id + " 1 10000", id + "  10000", id, "0", "", id + " 1 ", "other 1 10000"} {
			require.Equal(t, int64(1), rdb.Publish(t.Context(), channels[0], message).Val())
			time.Sleep(10 * time.Millisecond)
			require.Empty(t, waiting, message)
		}
		require.Equal(t, []string{id}, fixture.FairWaiters(t, l))
		fixture.Release(t, hold)
		fixture.Release(t, (<-waiting).Hold)
	})
}

// A waiter may get the lock before the answer arrives that it is queued.
func TestFairLockGrantBeforeTheAnswerToTheAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := redistest.Embedded(t)
		p := s.Proxy(t)
		other := fixture.NewClient(t, s.Client(t)).FairLock("l")
		c := fixture.NewClient(t, p.Client(t))
		l := c.FairLock("l")
		hold := fixture.Acquire(t, t.Context(), other)
		first := fixture.StartAcquire(t.Context(), l)
		fixture.AwaitFair(t, other, 1)
		time.Sleep(100 * time.Millisecond)
		answer := p.HoldReplies(func(cmd []string) bool { return fixture.Script(cmd) && slices.Contains(cmd, c.ID()+":2") })
		second := fixture.StartAcquire(t.Context(), l)
		fixture.AwaitFair(t, other, 2)
		third := fixture.StartAcquire(t.Context(), l)
		fixture.AwaitFair(t, other, 3)
		fixture.Release(t, hold)
		lost := (<-first).Hold
		require.NoError(t, other.ReleaseID(t.Context(), lost.ID()))
		time.Sleep(50 * time.Millisecond)
		p.Record()
		began := time.Now()
		answer()
		r := <-second
		require.NoError(t, r.Err)
		require.Less(t, time.Since(began), 10*time.Millisecond)
		for _, c := range p.Commands() {
			require.False(t, fixture.Script(c.Args), "the waiter sends no command: %v", c.Args)
		}
		fixture.Release(t, r.Hold)
		fixture.Release(t, (<-third).Hold)
		require.ErrorIs(t, lost.Release(t.Context()), primitives.ErrLost)
	})
}

// C26: a client crashes while two of its acquisitions wait. Another client gets the same id, and
// its heartbeats do not keep those waiters alive. Together they delay the next waiter by one waiter
// timeout.
func TestFairLockC26WaitersOfAFormerLifeTimeOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const id = "0a1b2c3d-0000-4000-8000-0123456789ab"
		s := redistest.Embedded(t)
		p := s.Proxy(t)
		other := fixture.NewClient(t, s.Client(t)).FairLock("l")
		hold := fixture.Acquire(t, t.Context(), other)
		ctx, cancel := context.WithCancel(t.Context())
		former := fixture.NewClient(t, p.Client(t, fixture.ShortTimeouts, fixture.NoRetries),
			primitives.WithClientID(id)).FairLock("l")
		for i := range 2 {
			fixture.StartAcquire(ctx, former)
			fixture.AwaitFair(t, other, i+1)
		}
		p.Cut()
		cancel()
		c := fixture.NewClient(t, s.Client(t), primitives.WithClientID(id))
		for range 10 {
			fixture.Release(t, fixture.Acquire(t, t.Context(), c.Lock("another")))
		}
		next := fixture.StartAcquire(t.Context(), c.FairLock("l"))
		fixture.AwaitFair(t, other, 3)
		time.Sleep(3 * time.Second) // the second client sends heartbeats
		fixture.Release(t, hold)
		began := time.Now()
		r := <-next
		require.NoError(t, r.Err)
		require.Less(t, time.Since(began), 11*time.Second)
		require.Empty(t, fixture.FairWaiters(t, other))
		fixture.Release(t, r.Hold)
		fixture.RequireClean(t, s, "l")
	})
}

// C26: clients with the same id, one after the other, subscribe to different channels, so neither
// gets messages for the other.
func TestFairLockC26ClientsOfOneIDUseDifferentChannels(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const id = "0a1b2c3d-0000-4000-8000-0123456789ab"
		s := redistest.Embedded(t)
		other := fixture.NewClient(t, s.Client(t)).FairLock("l")
		hold := fixture.Acquire(t, t.Context(), other)
		seen := map[string]bool{}
		for i := range 2 {
			c := fixture.NewClient(t, s.Client(t), primitives.WithClientID(id))
			for range 10 * i {
				fixture.Release(t, fixture.Acquire(t, t.Context(), c.Lock("another")))
			}
			ctx, cancel := context.WithCancel(t.Context())
			waiting := fixture.StartAcquire(ctx, c.FairLock("l"))
			fixture.AwaitFair(t, other, 1)
			synctest.Wait()
			for _, name := range redistest.Channels(t, s) {
				require.False(t, seen[name], name)
				seen[name] = true
			}
			cancel()
			require.ErrorIs(t, (<-waiting).Err, context.Canceled)
			fixture.CloseNow(c)
		}
		fixture.Release(t, hold)
	})
}

// Two clients wait, and the server's clock jumps. The first one may crash at that moment. Nobody
// waits longer than without the jump.
func TestFairLockAfterAJumpOfTheServersClock(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		jump    time.Duration
		crashes bool
	}{
		{"back", -5 * time.Minute, false},
		{"back, and the first waiter crashes", -5 * time.Minute, true},
		{"ahead", 5 * time.Minute, false},
		{"ahead, and the first waiter crashes", 5 * time.Minute, true},
	} {
		fixture.RunEmbedded(t, tt.name, func(t *testing.T, s *redistest.Server) {
			p := s.Proxy(t)
			ctx, cancel := context.WithCancel(t.Context())
			var ahead atomic.Int64
			var clock, waiters sync.WaitGroup
			clock.Go(func() {
				for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
					s.Mini().SetTime(time.Now().Add(time.Duration(ahead.Load())))
				}
			})
			other := fixture.NewClient(t, s.Client(t)).FairLock("l")
			hold := fixture.Acquire(t, t.Context(), other)
			waiting, crash := context.WithCancel(ctx)
			pass := func(context.Context) error { return nil }
			first := fixture.NewClient(t, p.Client(t, fixture.ShortTimeouts, fixture.NoRetries)).FairLock("l")
			waiters.Go(func() { assert.Equal(t, tt.crashes, first.Do(waiting, pass) != nil) })
			fixture.AwaitFair(t, other, 1)
			second := fixture.NewClient(t, s.Client(t)).FairLock("l")
			waiters.Go(func() { assert.NoError(t, second.Do(ctx, pass)) })
			fixture.AwaitFair(t, other, 2)
			time.Sleep(3 * time.Second)
			ahead.Store(int64(tt.jump))
			if tt.crashes {
				p.Cut()
				crash()
			}
			time.Sleep(12 * time.Second)  // a waiter that has crashed counts as dead
			_ = hold.Release(t.Context()) // if the clock is ahead, its lease is over
			began := time.Now()
			waiters.Wait()
			assert.Less(t, time.Since(began), time.Second)
			crash()
			cancel()
			clock.Wait()
		})
	}
}
