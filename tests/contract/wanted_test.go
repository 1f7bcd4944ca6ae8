package contract

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// isWanted reports whether somebody is known to wait for what hold has.
func isWanted(hold *primitives.Hold) bool {
	select {
	case <-hold.Wanted():
		return true
	default:
		return false
	}
}

// waitFor makes a rival wait until the test ends. It may be granted the lock before that.
func waitFor(t *testing.T, h kinds.Handle, opts ...primitives.Option) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var waiter sync.WaitGroup
	waiter.Go(func() {
		hold, err := h.Acquire(ctx, opts...)
		if err != nil {
			assert.ErrorIs(t, err, context.Canceled)
			return
		}
		assert.NoError(t, hold.Release(context.WithoutCancel(ctx)))
	})
	t.Cleanup(func() { cancel(); waiter.Wait() })
}

// Whoever waits for a hold is heard, wherever he waits, and whether the hold has listened before or
// not.
func TestC30WantedIsClosedWhenSomebodyWaits(t *testing.T) {
	const (
		// The tests of package presence measure the promised 300 ms in fake time. Whoever misses
		// the first ask hears the next one a second later.
		soon  = 900 * time.Millisecond
		later = 2 * time.Second // of waiters that are found by a look
	)
	for _, tt := range []struct {
		name   string
		local  bool // the waiter is of the same client
		opts   []primitives.Option
		within func(kind kinds.Kind) time.Duration
	}{
		{name: "another client", within: func(kind kinds.Kind) time.Duration {
			if kind.Name == "semaphore" {
				return later // nobody knows its holders
			}
			return soon
		}},
		{name: "another client that polls", opts: polls, within: func(kind kinds.Kind) time.Duration {
			if kind.Name == "semaphore" {
				return 0 // it listens to nothing
			}
			return soon
		}},
		{name: "another goroutine", local: true, within: func(kinds.Kind) time.Duration { return soon }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fixture.EachKind(t, append(kinds.All(), kinds.Joints()...),
				func(t *testing.T, s *redistest.Server, kind kinds.Kind) {
					t.Parallel()
					if tt.within(kind) == 0 {
						t.Skip("nothing is promised")
					}
					c, other := fixture.NewClient(t, s.Client(t)), fixture.NewClient(t, s.Client(t))
					if tt.local {
						other = c
					}
					name := redistest.Name(t)
					listening := fixture.Acquire(t, t.Context(), kind.One(t, c, name))
					require.False(t, isWanted(listening))
					if listening.ID() != "" { // the client listens for asks
						fixture.AwaitWaiter(t, s, "redlatch_holder:{"+strings.ReplaceAll(c.ID(), "-", "")[:16]+"}")
					}
					stalls, began := redistest.WatchStalls(t), time.Now()
					waitFor(t, kind.Rival(other, name), tt.opts...)
					select {
					case <-listening.Wanted():
					case <-time.After(time.Minute):
					}
					took := time.Since(began)
					assert.Greater(t, took, 90*time.Millisecond)
					assert.Less(t, took, tt.within(kind)+stalls.Since(began))
					require.NoError(t, listening.Context().Err(), "it is advice")
					fixture.Release(t, listening)
					require.True(t, isWanted(listening))
				})
		})
	}
}

// A reader hears of a writer, and a writer of a reader.
func TestC30WantedOfAReadWriteLock(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, local := range []bool{true, false} {
			c, other := fixture.NewClient(t, s.Client(t)), fixture.NewClient(t, s.Client(t))
			if local {
				other = c
			}
			name := redistest.Name(t) + fmt.Sprint(local)
			reads := fixture.Acquire(t, t.Context(), c.RWLock(name).Reader())
			reads2 := fixture.Acquire(t, t.Context(), c.RWLock(name).Reader())
			isWanted(reads)
			isWanted(reads2)
			waitFor(t, other.RWLock(name).Writer())
			redistest.WaitFor(t, fixture.Soon, func() bool { return isWanted(reads) && isWanted(reads2) }, "both readers hear")
			writes := fixture.Acquire(t, t.Context(), c.RWLock(name+"w").Writer())
			isWanted(writes)
			waitFor(t, other.RWLock(name+"w").Reader())
			redistest.WaitFor(t, fixture.Soon, func() bool { return isWanted(writes) }, "the writer hears")
			fixture.Release(t, reads, reads2, writes)
		}
	})
}

// A waiter of Redisson listens for the message of a release, and sends none. It is found while the
// hold listens.
func TestC30WantedSeesWaitersThatDoNotAsk(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	for _, kind := range []kinds.Kind{kinds.Of("lock"), kinds.Of("reader"), kinds.Of("writer"), kinds.Of("permits")} {
		c := fixture.NewClient(t, s.Client(t))
		hold := fixture.Acquire(t, t.Context(), kind.One(t, c, redistest.Name(t)+kind.Name))
		require.False(t, isWanted(hold))
		time.Sleep(1500 * time.Millisecond)
		require.False(t, isWanted(hold))
		sub := s.Client(t).Subscribe(t.Context(), kind.Channel(hold.Name()))
		require.NoError(t, fixture.ErrOf(sub.Receive(t.Context())))
		stalls, began := redistest.WatchStalls(t), time.Now()
		<-hold.Wanted()
		assert.Less(t, time.Since(began), 2*time.Second+stalls.Since(began), kind.Name)
		require.NoError(t, sub.Close())
		fixture.Release(t, hold)
	}
}

// Ask tells the holders at once, and counts the clients that were told.
func TestC30Ask(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c, other := fixture.NewClient(t, s.Client(t)), fixture.NewClient(t, s.Client(t))
		name := redistest.Name(t)
		require.ErrorIs(t, fixture.ErrOf(other.Lock(name).Ask(t.Context())), primitives.ErrNotHeld)
		hold := fixture.Acquire(t, t.Context(), c.Lock(name))
		isWanted(hold)
		redistest.WaitFor(t, fixture.Soon, func() bool {
			told, err := other.Lock(name).Ask(t.Context())
			require.NoError(t, err)
			return told == 1
		}, "the client listens")
		<-hold.Wanted()
		fixture.Release(t, hold)
	})
}

// Ask counts clients, not holds, and asks all that keep somebody from what he wants: readers and
// the writer, holders of permits, and the holders of each member of a joint lock.
func TestC30AskCountsClients(t *testing.T) {
	type open func(c *primitives.Client, name string) []*primitives.Hold
	hold := func(h fixture.Handle, opts ...primitives.Option) *primitives.Hold {
		return fixture.Acquire(t, t.Context(), h, opts...)
	}
	for name, tt := range map[string]struct {
		hold open // by each of two clients
		ask  func(c *primitives.Client, name string) (int, error)
		want int
	}{
		"readers": {
			func(c *primitives.Client, name string) []*primitives.Hold {
				return []*primitives.Hold{hold(c.RWLock(name).Reader()), hold(c.RWLock(name).Reader())}
			},
			func(c *primitives.Client, name string) (int, error) { return c.RWLock(name).Reader().Ask(t.Context()) }, 2,
		},
		"readers, for a writer": {
			func(c *primitives.Client, name string) []*primitives.Hold {
				return []*primitives.Hold{hold(c.RWLock(name).Reader())}
			},
			func(c *primitives.Client, name string) (int, error) { return c.RWLock(name).Writer().Ask(t.Context()) }, 2,
		},
		"a writer, for a reader": {
			func(c *primitives.Client, name string) []*primitives.Hold {
				h, err := c.RWLock(name).Writer().TryAcquire(t.Context())
				if err != nil {
					return nil // the other one has it
				}
				return []*primitives.Hold{h}
			},
			func(c *primitives.Client, name string) (int, error) { return c.RWLock(name).Reader().Ask(t.Context()) }, 1,
		},
		"permits": {
			func(c *primitives.Client, name string) []*primitives.Hold {
				pool := c.PermitExpirableSemaphore(name)
				require.NoError(t, fixture.ErrOf(pool.Init(t.Context(), 10)))
				return []*primitives.Hold{hold(pool), hold(pool, primitives.WithPermits(3))}
			},
			func(c *primitives.Client, name string) (int, error) {
				return c.PermitExpirableSemaphore(name).Ask(t.Context())
			}, 2,
		},
		"members of a joint lock": {
			func(c *primitives.Client, name string) []*primitives.Hold {
				first, err := c.Lock(name).TryAcquire(t.Context())
				if err == nil {
					return []*primitives.Hold{first}
				}
				return []*primitives.Hold{hold(c.Lock(name + ":second"))} // each client has another one
			},
			func(c *primitives.Client, name string) (int, error) {
				return primitives.NewMultiLock([]*primitives.Lock{c.Lock(name), c.Lock(name + ":second")}).Ask(t.Context())
			}, 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				name := redistest.Name(t)
				var holds []*primitives.Hold
				for range 2 {
					holds = append(holds, tt.hold(fixture.NewClient(t, s.Client(t)), name)...)
				}
				for _, h := range holds {
					isWanted(h) // it listens
				}
				asker := fixture.NewClient(t, s.Client(t))
				redistest.WaitFor(t, fixture.Soon, func() bool {
					told, err := tt.ask(asker, name)
					require.NoError(t, err)
					require.LessOrEqual(t, told, tt.want, "clients are counted once")
					return told == tt.want
				}, "all listen")
				for _, h := range holds {
					<-h.Wanted()
				}
			})
		})
	}
}

// Nothing is sent for Wanted where nobody waits for long: clients contend for a lock with short
// sections, and each hold listens.
func TestC30WantedCostsNothingForShortSections(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var wg sync.WaitGroup
		name := redistest.Name(t)
		asks := &fixture.CountingHook{Only: []string{"publish", "pubsub"}}
		stalls, began := redistest.WatchStalls(t), time.Now()
		var mu sync.Mutex // guards the next two
		latest := began
		longest := time.Duration(0) // from one acquisition to the next, of whichever client
		acquired := func() {
			mu.Lock()
			defer mu.Unlock()
			longest = max(longest, time.Since(latest))
			latest = time.Now()
		}
		for range 3 {
			rdb := s.Client(t)
			rdb.AddHook(asks)
			l := fixture.NewClient(t, rdb).Lock(name)
			for range 3 {
				wg.Go(func() {
					for range 100 {
						hold, err := l.Acquire(t.Context())
						if assert.NoError(t, err) {
							acquired()
							hold.Wanted()
							assert.NoError(t, hold.Release(t.Context()))
						}
					}
				})
			}
		}
		wg.Wait()
		wereShort := longest < 50*time.Millisecond // the server may have stood still, too
		if wereShort && stalls.Since(began) < 50*time.Millisecond {
			assert.Zero(t, asks.N.Load())
		}
	})
}
