package primitives_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// handOvers is the number of times that each of some waiters has the lock.
const handOvers = 25

// byTurns has several clients take a fair lock by turns, each by several goroutines.
func byTurns(t *testing.T, locks []*primitives.Lock, each func(int, *primitives.Lock)) {
	var wg sync.WaitGroup
	for i := range 3 * len(locks) {
		wg.Go(func() {
			for range handOvers {
				each(i, locks[i%len(locks)])
			}
		})
	}
	wg.Wait()
}

// A hand-over is two scripts, one that stands in the queue and one that gives the lock on; nobody asks, and nobody subscribes for it.
func TestFairLockHandOverCommands(t *testing.T) {
	s := redistest.Redis(t)
	name := redistest.Name(t)
	proxies := make([]*redistest.Proxy, 4)
	locks := make([]*primitives.Lock, len(proxies))
	for i := range locks {
		proxies[i] = s.Proxy(t)
		locks[i] = newClient(t, proxies[i].Client(t)).FairLock(name)
		proxies[i].Record()
	}
	inside, entered := 0, 0
	byTurns(t, locks, func(_ int, l *primitives.Lock) {
		err := l.Do(t.Context(), func(context.Context) error {
			inside++
			defer func() { inside-- }()
			entered++
			if inside != 1 {
				t.Errorf("%d inside", inside)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	counts := map[string]int{}
	for _, p := range proxies {
		for _, c := range p.Commands() {
			counts[strings.ToLower(c.Args[0])]++
		}
	}
	require.Equal(t, 3*len(locks)*handOvers, entered)
	require.Less(t, float64(counts["evalsha"])/float64(entered), 2.25, "%v", counts)
	t.Logf("%d hand-overs: %v", entered, counts)
	require.Less(t, counts["subscribe"], 4*len(locks), "%v", counts)
	requireClean(t, s, name)
}

// Whoever gives up at the very moment at which it is given the lock gives it on.
func TestFairLockGivenUp(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		locks := make([]*primitives.Lock, 4)
		for i := range locks {
			locks[i] = newClient(t, s.Client(t)).FairLock(name)
		}
		inside, entered := 0, 0
		section := func(context.Context) error {
			inside++
			defer func() { inside-- }()
			entered++
			if inside != 1 {
				t.Errorf("%d inside", inside)
			}
			return nil
		}
		began := time.Now()
		byTurns(t, locks, func(i int, l *primitives.Lock) {
			if i%2 == 0 {
				if err := l.Do(t.Context(), section); err != nil {
					t.Error(err)
				}
				return
			}
			ctx, cancel := context.WithTimeout(t.Context(), rand.N(3*time.Millisecond))
			defer cancel()
			_ = l.Do(ctx, section)
		})
		require.GreaterOrEqual(t, entered, 3*len(locks)*handOvers/2)
		require.Less(t, time.Since(began), 10*time.Second, "a hand-over was lost")
		requireClean(t, s, name)
	})
}

// Whoever is given the lock has it for as long as it knows: what it was given counts from when it was last seen to wait, and lasts no longer than a dead
// one's place would have. It is renewed in time, and then for as long as was asked for.
func TestFairLockGivenLease(t *testing.T) {
	for _, after := range []time.Duration{0, 1500 * time.Millisecond, 8 * time.Second} {
		for what, opts := range map[string][]primitives.Option{
			"watchdog":             nil,
			"short watchdog":       {primitives.WithWatchdog(2 * time.Second)},
			"short waiter timeout": {primitives.WithWaiterTimeout(600 * time.Millisecond)},
			"lease":                {primitives.WithLease(5 * time.Second)},
			"long lease":           {primitives.WithLease(20 * time.Second)},
			"ceiling":              {primitives.WithMaxHold(15 * time.Second)},
		} {
			for _, others := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, after %v, others %v", what, after, others), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						s := redistest.Embedded(t)
						rdb := s.Client(t)
						l := newClient(t, s.Client(t)).FairLock("l")
						giver := l
						if others {
							giver = newClient(t, s.Client(t)).FairLock("l")
						}
						first := acquire(t, t.Context(), giver)
						waiting := start(func() (*primitives.Hold, error) { return l.Acquire(t.Context(), opts...) })
						awaitFair(t, l, 1)
						time.Sleep(after)
						release(t, first)
						r := <-waiting
						require.NoError(t, r.err)
						given := time.Now()
						for r.hold.Context().Err() == nil && time.Since(given) < 25*time.Second {
							believed := time.Until(r.hold.ValidUntil()) // before the look: a renewal may come in between
							left := rdb.PTTL(t.Context(), "l").Val()
							require.Greater(t, left, believed, "it is held in Redis for longer than is believed")
							if what == "watchdog" && time.Since(given) > 4*time.Second {
								require.Greater(t, left, 19*time.Second, "it is renewed for as long as was asked for")
							}
							time.Sleep(200 * time.Millisecond)
						}
						lasted := time.Since(given)
						switch what {
						case "lease":
							require.InDelta(t, 5, lasted.Seconds(), 0.7)
						case "long lease":
							require.InDelta(t, 20, lasted.Seconds(), 2.5)
						case "ceiling":
							require.InDelta(t, 15, lasted.Seconds(), 1.8)
						default:
							require.Greater(t, lasted, 24*time.Second, "it was renewed")
							release(t, r.hold)
						}
					})
				})
			}
		}
	}
}

// A word that is not of the place that a waiter has now, or is no such word, gives it nothing.
func TestFairLockStaleGift(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := redistest.Embedded(t)
		rdb := s.Client(t)
		c := newClient(t, s.Client(t))
		l := c.FairLock("l")
		hold := acquire(t, t.Context(), newClient(t, s.Client(t)).FairLock("l"))
		waiting := start(func() (*primitives.Hold, error) { return l.Acquire(t.Context()) })
		awaitFair(t, l, 1)
		time.Sleep(100 * time.Millisecond)
		id := fairWaiters(t, l)[0]
		// The client's channel is named by an id that only it knows; the other channel is the waiter's.
		channels := slices.DeleteFunc(redistest.Channels(t, s), func(name string) bool { return strings.HasSuffix(name, id) })
		require.Len(t, channels, 1)
		for _, word := range []string{id + " 1 10000", id + "  10000", id, "0", "", id + " 1 ", "other 1 10000"} {
			require.Equal(t, int64(1), rdb.Publish(t.Context(), channels[0], word).Val())
			time.Sleep(10 * time.Millisecond)
			require.Empty(t, waiting, word)
		}
		require.Equal(t, []string{id}, fairWaiters(t, l))
		release(t, hold)
		release(t, (<-waiting).hold)
	})
}

// A waiter may be given the lock before it has heard that it stands in the queue.
func TestFairLockGivenEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := redistest.Embedded(t)
		p := s.Proxy(t)
		other := newClient(t, s.Client(t)).FairLock("l")
		c := newClient(t, p.Client(t))
		l := c.FairLock("l")
		hold := acquire(t, t.Context(), other)
		first := start(func() (*primitives.Hold, error) { return l.Acquire(t.Context()) })
		awaitFair(t, other, 1)
		time.Sleep(100 * time.Millisecond)
		let := p.HoldReplies(func(cmd []string) bool { return script(cmd) && slices.Contains(cmd, c.ID()+":2") })
		second := start(func() (*primitives.Hold, error) { return l.Acquire(t.Context()) })
		awaitFair(t, other, 2)
		third := start(func() (*primitives.Hold, error) { return l.Acquire(t.Context()) })
		awaitFair(t, other, 3)
		release(t, hold)
		lost := (<-first).hold
		require.NoError(t, other.ReleaseID(t.Context(), lost.ID()))
		time.Sleep(50 * time.Millisecond)
		p.Record()
		began := time.Now()
		let()
		r := <-second
		require.NoError(t, r.err)
		require.Less(t, time.Since(began), 10*time.Millisecond)
		for _, c := range p.Commands() {
			require.False(t, script(c.Args), "it need not ask: %v", c.Args)
		}
		release(t, r.hold)
		release(t, (<-third).hold)
	})
}
