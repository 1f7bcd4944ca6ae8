package primitives_test

import (
	"context"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// The tests of this file hold what things cost in what can be counted on any machine: commands, allocations, goroutines, bytes. Times
// are the business of bench/.

// sent counts the scripts that f has s run. Its commands and its pub/sub are all that the library sends.
func sent(t *testing.T, s *redistest.Server, f func()) float64 {
	t.Helper()
	before := redistest.Commands(t, s)
	f()
	calls := redistest.Commands(t, s).Since(before)
	return float64(calls["evalsha"] + calls["eval"] + calls["subscribe"] + calls["unsubscribe"])
}

// TestCountsOfAPair: an uncontended acquisition and its release are a command each.
func TestCountsOfAPair(t *testing.T) {
	s := redistest.Fresh(t)
	c := newClient(t, s.Client(t))
	l, rw := c.Lock("l"), c.RWLock("rw")
	sem, permits := c.Semaphore("sem"), c.PermitExpirableSemaphore("permits")
	_, err := sem.Init(t.Context(), 1)
	require.NoError(t, err)
	_, err = permits.Init(t.Context(), 1)
	require.NoError(t, err)
	for _, kind := range []struct {
		name    string
		acquire func(context.Context, ...primitives.Option) (*primitives.Hold, error)
		allocs  float64 // go-redis's own are 12 of them
	}{
		{"lock", l.Acquire, 37},
		{"fenced", c.FencedLock("fenced").Acquire, 37},
		{"fair", c.FairLock("fair").Acquire, 42},
		{"reader", rw.Reader().Acquire, 50},
		{"writer", rw.Writer().Acquire, 50},
		{"semaphore", sem.Acquire, 50},
		{"permits", permits.Acquire, 60},
	} {
		t.Run(kind.name, func(t *testing.T) {
			pair := func() {
				hold, err := kind.acquire(t.Context())
				if err == nil {
					err = hold.Release(t.Context())
				}
				if err != nil {
					t.Error(err)
				}
			}
			pair() // loads the scripts
			const n = 100
			require.InDelta(t, 2*n, sent(t, s, func() {
				for range n {
					pair()
				}
			}), 0)
			if !raced { // the race detector allocates too
				require.LessOrEqual(t, testing.AllocsPerRun(n, pair), kind.allocs)
			}
		})
	}
}

// contended has goroutines of several clients pass one lock on, n times in all, and tells how many commands each time took, and how the clients
// shared.
func contended(t *testing.T, clients, goroutines, n int, lock func(c *primitives.Client) *primitives.Lock) (commands float64, shares []float64) {
	t.Helper()
	s := redistest.Fresh(t)
	counts := make([]int64, clients)
	done, left := 0, n // guarded by the lock
	var wg sync.WaitGroup
	total := sent(t, s, func() {
		for i := range clients {
			l := lock(newClient(t, s.Client(t, func(o *redis.Options) { o.PoolSize = goroutines + 10 })))
			for range goroutines {
				wg.Go(func() {
					for {
						hold, err := l.Acquire(t.Context())
						if err != nil {
							t.Error(err)
							return
						}
						over := left == 0
						if !over {
							left--
							done++
							counts[i]++
						}
						if err := hold.Release(t.Context()); err != nil {
							t.Error(err)
						}
						if over {
							return
						}
					}
				})
			}
		}
		wg.Wait()
	})
	require.Equal(t, n, done)
	for _, count := range counts {
		shares = append(shares, float64(count)/float64(n))
	}
	return total / float64(n+clients*goroutines), shares
}

// TestCountsOfHandingOver: what a contended lock costs for each time it changes hands.
func TestCountsOfHandingOver(t *testing.T) {
	plain := func(c *primitives.Client) *primitives.Lock { return c.Lock("l") }
	fair := func(c *primitives.Client) *primitives.Lock { return c.FairLock("l") }
	for _, row := range []struct {
		name                string
		clients, goroutines int
		n                   int
		lock                func(c *primitives.Client) *primitives.Lock
		commands            float64
	}{
		{"one client", 1, 100, 5000, plain, 1.2},
		{"8 clients", 8, 8, 5000, plain, 2},
		{"fair, 8 clients", 8, 8, 2000, fair, 4},
	} {
		t.Run(row.name, func(t *testing.T) {
			commands, shares := contended(t, row.clients, row.goroutines, row.n, row.lock)
			require.LessOrEqual(t, commands, row.commands)
			for _, share := range shares { // which the clients have not all been there for
				require.Greater(t, share, 0.4/float64(row.clients))
			}
		})
	}
}

// TestCountsOfWaiting: many waiters cost a command a second for each client, two connections, and their memory.
func TestCountsOfWaiting(t *testing.T) {
	s := redistest.Fresh(t)
	const clients, waiters = 8, 1000
	holder := newClient(t, s.Client(t))
	hold := acquire(t, t.Context(), holder.Lock("l"))
	locks := make([]*primitives.Lock, clients)
	var waiting atomic.Int64
	observe := primitives.WithObserver(func(e primitives.Event) {
		if e.Kind == primitives.EventWait {
			waiting.Add(1)
		}
	})
	var wg sync.WaitGroup
	wait := func(l *primitives.Lock) {
		wg.Go(func() {
			hold, err := l.Acquire(t.Context())
			if err == nil {
				err = hold.Release(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	for i := range locks {
		locks[i] = newClient(t, s.Client(t), observe).Lock("l")
		wait(locks[i])
	}
	redistest.WaitFor(t, soon, func() bool { return waiting.Load() == clients }, "one of each client waits")
	awaitWaiter(t, s, "redlatch_holder:") // which costs the holder's client its connection for messages
	time.Sleep(100 * time.Millisecond)    // they have listened, and looked again
	connections, before := redistest.Connections(t, s), heap()
	goroutines := runtime.NumGoroutine()
	for i := range waiters - clients {
		wait(locks[i%clients])
	}
	redistest.WaitFor(t, soon, func() bool { return waiting.Load() == waiters }, "all wait")
	const quiet = 3 * time.Second
	require.LessOrEqual(t, sent(t, s, func() { time.Sleep(quiet) }), clients*(quiet.Seconds()+1))
	require.LessOrEqual(t, redistest.Connections(t, s), connections+clients)
	require.LessOrEqual(t, runtime.NumGoroutine(), goroutines+waiters-clients)
	if !raced {
		const goroutine = 480 // what the runtime keeps of one, beside its stack
		require.Less(t, float64(heap()-before)/(waiters-clients), 700.0+goroutine)
	}
	release(t, hold)
	wg.Wait()
}

// heap is what is in use of it, in bytes.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestCountsOfHolding: many holds are renewed in batches by nobody of their own.
func TestCountsOfHolding(t *testing.T) {
	s := redistest.Fresh(t)
	c := newClient(t, s.Client(t), primitives.WithDefaults(primitives.WithWatchdog(3*time.Second)))
	const n = 5000
	locks := make([]*primitives.Lock, n)
	for i := range locks {
		locks[i] = c.Lock("l" + strconv.Itoa(i))
	}
	release(t, acquire(t, t.Context(), c.Lock("first")))
	holds := make([]*primitives.Hold, n)
	before, goroutines := heap(), runtime.NumGoroutine()
	for i, l := range locks {
		holds[i] = acquire(t, t.Context(), l)
	}
	if !raced {
		require.Less(t, float64(heap()-before)/n, 700.0)
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), goroutines+20)
	const watched = 4 * time.Second
	require.LessOrEqual(t, sent(t, s, func() { time.Sleep(watched) }), 60*watched.Seconds())
	for _, hold := range holds {
		release(t, hold)
	}
}
