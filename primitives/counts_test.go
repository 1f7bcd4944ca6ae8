package primitives_test

import (
	"context"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// The tests in this file limit costs that are the same on any machine: commands, allocations,
// goroutines and bytes. The module bench/ measures times.

// sent returns the number of commands that s executes during f: scripts and subscriptions, which is
// all that the library sends.
func sent(t *testing.T, s *redistest.Server, f func()) float64 {
	t.Helper()
	before := redistest.Commands(t, s)
	f()
	calls := redistest.Commands(t, s).Since(before)
	return float64(calls["evalsha"] + calls["eval"] + calls["subscribe"] + calls["unsubscribe"])
}

// insideScripts returns how often the scripts that f runs call each command. PUBLISH is among them;
// the clients' own commands are not.
func insideScripts(t *testing.T, s *redistest.Server, f func()) map[string]int64 {
	t.Helper()
	before := redistest.Commands(t, s)
	f()
	calls := map[string]int64{}
	for name, n := range redistest.Commands(t, s).Since(before) {
		sent := strings.HasPrefix(name, "eval") || strings.HasPrefix(name, "script|") || name == "info"
		if n > 0 && !sent {
			calls[name] = n
		}
	}
	return calls
}

// total returns the sum of calls.
func total(calls map[string]int64) (n int64) {
	for _, c := range calls {
		n += c
	}
	return n
}

// A nested reader costs the same at any depth, although each of its holds has a key.
func TestCountsDeepReaders(t *testing.T) {
	s := redistest.Fresh(t)
	reader := fixture.NewClient(t, s.Client(t)).RWLock("rw").Reader()
	const n = 100
	calls := total(insideScripts(t, s, func() {
		ctx, holds := t.Context(), make([]*primitives.Hold, n)
		for i := range holds {
			holds[i] = fixture.Acquire(t, ctx, reader)
			ctx = holds[i].Context()
		}
		for _, hold := range slices.Backward(holds) {
			fixture.Release(t, hold)
		}
	}))
	require.Less(t, calls, int64(40*n)) // a look at each key would take n*n for the acquisitions alone
}

// A handle is made for each acquisition in most applications. Making one sends nothing.
func TestCountsHandle(t *testing.T) {
	if fixture.RaceEnabled {
		t.Skip("the race detector allocates, too")
	}
	s := redistest.Fresh(t)
	c := fixture.NewClient(t, s.Client(t))
	for _, kind := range []struct {
		name   string
		handle func() any
		allocs float64
	}{
		{"lock", func() any { return c.Lock("l") }, 3},
		{"fenced", func() any { return c.FencedLock("l") }, 8},
		{"semaphore", func() any { return c.Semaphore("l") }, 7},
	} {
		t.Run(kind.name, func(t *testing.T) {
			require.LessOrEqual(t, testing.AllocsPerRun(100, func() { kind.handle() }), kind.allocs)
		})
	}
}

// leastAllocs returns how many allocations n runs of f take, each on average: the least of five
// measurements. A machine that stalls makes the runner hand a command to another goroutine, which
// takes allocations, too.
func leastAllocs(n int, f func()) float64 {
	least := testing.AllocsPerRun(n, f)
	for range 4 {
		least = min(least, testing.AllocsPerRun(n, f))
	}
	return least
}

// An uncontended acquisition takes one command, and so does its release.
func TestCountsUncontendedAcquireAndRelease(t *testing.T) {
	s := redistest.Fresh(t)
	c := fixture.NewClient(t, s.Client(t))
	l, rw := c.Lock("l"), c.RWLock("rw")
	newHandle := func(ctx context.Context, opts ...primitives.Option) (*primitives.Hold, error) {
		return c.Lock("l").Acquire(ctx, opts...)
	}
	sem, permits := c.Semaphore("sem"), c.PermitExpirableSemaphore("permits")
	require.NoError(t, fixture.ErrOf(sem.Init(t.Context(), 1)))
	require.NoError(t, fixture.ErrOf(permits.Init(t.Context(), 1)))
	for _, kind := range []struct {
		name    string
		acquire func(context.Context, ...primitives.Option) (*primitives.Hold, error)
		calls   int64   // inside both scripts
		allocs  float64 // 14 of them are in go-redis
	}{
		{"lock", l.Acquire, 6, 29},
		{"lock with a new handle", newHandle, 6, 32},
		{"fenced", c.FencedLock("fenced").Acquire, 8, 31}, // GET after INCRBY: the exact token, as text,
		{"fair", c.FairLock("fair").Acquire, 9, 42},
		{"reader", rw.Reader().Acquire, 11, 50},
		{"writer", rw.Writer().Acquire, 8, 50},
		{"semaphore", sem.Acquire, 13, 50}, // with the epoch, which both scripts read and one keeps
		{"permits", permits.Acquire, 15, 60},
	} {
		t.Run(kind.name, func(t *testing.T) {
			pair := func() {
				hold, err := kind.acquire(t.Context())
				if err == nil {
					err = hold.Release(t.Context())
				}
				assert.NoError(t, err)
			}
			pair() // loads the scripts
			require.Equal(t, kind.calls, total(insideScripts(t, s, pair)))
			const n = 100
			before := redistest.Commands(t, s)
			for range n {
				pair()
			}
			calls := redistest.Commands(t, s).Since(before)
			// A command is sent again if the machine stalls for longer than a caller waits by
			// itself.
			require.InDelta(t, 2*n, calls["evalsha"]+calls["eval"], n/20)
			if !fixture.RaceEnabled { // the race detector allocates, too
				require.LessOrEqual(t, leastAllocs(n, pair), kind.allocs)
			}
		})
	}
}

// An uncontended acquisition and its release take 9 calls inside the scripts.
func TestCountsUncontendedPairOfAFairLock(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	c := fixture.NewClient(t, s.Client(t), primitives.WithClientName("")) // a slow pair would write the name
	l := c.FairLock("l")
	pair := func() { fixture.Release(t, fixture.Acquire(t, t.Context(), l)) }
	pair() // loads the scripts
	require.Equal(t, map[string]int64{
		"get": 1, "hlen": 1, "exists": 2, "hset": 1, "pexpire": 1,
		"hexists": 1, "hdel": 1, "lrange": 1,
	}, insideScripts(t, s, pair))
}

// A hand-off in a queue without Redisson's waiters takes 20 calls inside the scripts: 12 of the
// release that grants the lock, and 8 of the attempt that joins the queue. Their number does not
// depend on the number of waiters.
func TestCountsHandOffOfAFairLock(t *testing.T) {
	t.Parallel()
	for _, waiters := range []int{2, 1000} {
		s := redistest.Fresh(t)
		q := fixture.NewRawQueue(t, s, waiters)
		// The attempt below finds a recent heartbeat, however slow the machine is.
		clients, later := "redlatch_lock_clients:{"+q.Name+"}", time.Now().Add(time.Hour).UnixMilli()
		require.NoError(t, q.Rdb.HSet(t.Context(), clients, q.Client, later).Err())
		release := insideScripts(t, s, func() { require.Equal(t, int64(1), q.End(q.First)) })
		q.First++
		require.Equal(t, map[string]int64{
			"hexists": 1, "hdel": 2, // no acquisition with WithOwner has the id; the hold and the entry end
			"lrange": 1, "hmget": 2, "time": 1, // the next owner, and that it is alive
			"zrem": 1, "lpop": 1, // it leaves Redisson's queue
			"hset": 1, "pexpire": 1, "publish": 1, // it holds, and its client learns it
		}, release, "%d waiters", waiters)
		join := insideScripts(t, s, func() { q.Join(1) })
		require.Equal(t, map[string]int64{
			"get": 1, "hgetall": 1, // the acquisition has not ended, and another holds the lock
			"hmget": 1, "time": 1, "hlen": 2, // the heartbeat is recent, and no waiter of Redisson is there
			"zadd": 1, "rpush": 1, "hset": 1,
		}, join, "%d waiters", waiters)
	}
}

// contended has goroutines on several clients acquire one lock n times in all. It returns the
// number of commands for each acquisition, and the share of the acquisitions that each client made.
func contended(
	t *testing.T, clients, goroutines, n int, lock func(c *primitives.Client) *primitives.Lock,
) (commands float64, shares []float64) {
	t.Helper()
	s := redistest.Fresh(t)
	counts := make([]int64, clients)
	done, left := 0, n // guarded by the lock
	var wg sync.WaitGroup
	total := sent(t, s, func() {
		for i := range clients {
			l := lock(fixture.NewClient(t, s.Client(t, func(o *redis.Options) { o.PoolSize = goroutines + 10 })))
			for range goroutines {
				wg.Go(func() {
					for {
						hold, err := l.Acquire(t.Context())
						if !assert.NoError(t, err) {
							return
						}
						over := left == 0
						if !over {
							left--
							done++
							counts[i]++
						}
						assert.NoError(t, hold.Release(t.Context()))
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

// An acquisition of a contended lock takes few commands, and no client starves.
func TestCountsContendedAcquisition(t *testing.T) {
	redistest.NeedFull(t, "waiters for seconds")
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
			for _, share := range shares {
				// Not an equal share, since the clients start one after another.
				require.Greater(t, share, 0.4/float64(row.clients))
			}
		})
	}
}

// Waiters of a client together send one command a second and use two connections. Each takes one
// goroutine and little memory.
func TestCountsManyWaiters(t *testing.T) {
	redistest.NeedFull(t, "thousands of waiters, for seconds")
	s := redistest.Fresh(t)
	const clients, waiters = 8, 1000
	holder := fixture.NewClient(t, s.Client(t))
	hold := fixture.Acquire(t, t.Context(), holder.Lock("l"))
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
			assert.NoError(t, err)
		})
	}
	for i := range locks {
		locks[i] = fixture.NewClient(t, s.Client(t), observe).Lock("l")
		wait(locks[i])
	}
	redistest.WaitFor(t, fixture.Soon, func() bool { return waiting.Load() == clients }, "each client has a waiter")
	// The holder's client subscribes too, to learn of a takeover. Its connection must not count
	// below.
	fixture.AwaitWaiter(t, s, "redlatch_holder:")
	rdb := s.Client(t)
	redistest.WaitFor(t, fixture.Soon, func() bool {
		return rdb.ZCount(t.Context(), "redisson_unlock_latch:{l}:line", "1", "+inf").Val() == clients
	}, "each client stands in line")
	redistest.WaitFor(t, fixture.Soon, func() bool {
		return len(rdb.Keys(t.Context(), "redisson_unlock_latch:{*}:client").Val()) >= clients
	}, "each client has told what it waits for, which takes memory once")
	warmUp(waiters)
	connections, before := redistest.Connections(t, s), heap()
	goroutines := runtime.NumGoroutine()
	for i := range waiters - clients {
		wait(locks[i%clients])
	}
	redistest.WaitFor(t, fixture.Soon, func() bool { return waiting.Load() == waiters }, "all waiters wait")
	began := time.Now()
	polls := sent(t, s, func() { time.Sleep(3 * time.Second) })
	require.LessOrEqual(t, polls, clients*(time.Since(began).Seconds()+1))
	require.LessOrEqual(t, redistest.Connections(t, s), connections+clients)
	const more = 100 // work in the background; two goroutines for each waiter would be a thousand more
	require.LessOrEqual(t, runtime.NumGoroutine(), goroutines+waiters-clients+more)
	if !fixture.RaceEnabled {
		requireSettles(t, 900, func() float64 { return float64(heap()-before) / (waiters - clients) })
	}
	fixture.Release(t, hold)
	wg.Wait()
}

// warmUp makes n goroutines wait at once. When they end, the runtime keeps their records and reuses
// them, so the goroutines of the test allocate none.
func warmUp(n int) {
	var waiting, ended sync.WaitGroup
	waiting.Add(n)
	done, never := make(chan struct{}), make(chan struct{})
	for range n {
		ended.Go(func() {
			waiting.Done()
			select {
			case <-done:
			case <-never:
			}
		})
	}
	waiting.Wait()
	close(done)
	ended.Wait()
}

// heap returns the size of the live heap in bytes.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// requireSettles waits until a figure is below a limit. On a busy machine, the goroutines that made
// the holds or waiters may still be running, and count too.
func requireSettles(t *testing.T, limit float64, figure func() float64) {
	t.Helper()
	var last float64
	defer func() { t.Logf("%.0f bytes for each", last) }()
	redistest.WaitFor(t, fixture.Soon, func() bool { last = figure(); return last < limit }, "few bytes for each")
}

// A hold takes little memory together with its handle and its Context.
func TestCountsBytesOfAHold(t *testing.T) {
	redistest.NeedFull(t, "thousands of holds")
	if fixture.RaceEnabled {
		t.Skip("the race detector allocates, too")
	}
	c := fixture.NewClient(t, redistest.Fresh(t).Client(t))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	acquire := func(name string) (*primitives.Hold, context.Context) {
		hold, err := c.Lock(name).Acquire(ctx) // the fixture's Acquire takes memory, too
		require.NoError(t, err)
		return hold, hold.Context()
	}
	first, _ := acquire("first")
	fixture.Release(t, first)
	const n = 5000
	names, holds, contexts := make([]string, n), make([]*primitives.Hold, n), make([]context.Context, n)
	for i := range names {
		names[i] = "lock:" + strconv.Itoa(n+i)
	}
	before := heap()
	for i, name := range names {
		holds[i], contexts[i] = acquire(name)
	}
	requireSettles(t, 1400, func() float64 { return float64(heap()-before) / n })
	for i, hold := range holds {
		require.NoError(t, contexts[i].Err())
		fixture.Release(t, hold)
	}
}

// Many holds are renewed in batches, without a goroutine for each hold.
func TestCountsManyHolds(t *testing.T) {
	redistest.NeedFull(t, "thousands of holds, for seconds")
	s := redistest.Fresh(t)
	c := fixture.NewClient(t, s.Client(t), primitives.WithDefaults(primitives.WithWatchdog(3*time.Second)))
	n := 5000
	if fixture.RaceEnabled {
		n = 1000 // with the race detector, a busy machine would not renew more in time
	}
	locks := make([]*primitives.Lock, n)
	for i := range locks {
		locks[i] = c.Lock("l" + strconv.Itoa(i))
	}
	fixture.Release(t, fixture.Acquire(t, t.Context(), c.Lock("first")))
	holds := make([]*primitives.Hold, n)
	before, goroutines := heap(), runtime.NumGoroutine()
	for i, l := range locks {
		hold, err := l.Acquire(t.Context()) // the fixture's Acquire takes memory, too
		require.NoError(t, err)
		holds[i] = hold
	}
	if !fixture.RaceEnabled {
		requireSettles(t, 800, func() float64 { return float64(heap()-before) / float64(n) })
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), goroutines+20)
	began := time.Now()
	renewals := sent(t, s, func() { time.Sleep(4 * time.Second) })
	require.LessOrEqual(t, renewals, 60*time.Since(began).Seconds())
	fixture.Release(t, holds...)
}

// dials counts the connections of a client that are open at a time, for each address.
type dials struct {
	delay time.Duration // of each dial

	mu         sync.Mutex
	open, most map[string]int
}

func (d *dials) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	time.Sleep(d.delay) // whether or not the caller still waits
	d.add(addr, 1)
	return &countedConn{conn, sync.OnceFunc(func() { d.add(addr, -1) })}, nil
}

func (d *dials) add(addr string, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open == nil {
		d.open, d.most = map[string]int{}, map[string]int{}
	}
	d.open[addr] += n
	d.most[addr] = max(d.most[addr], d.open[addr])
}

// requireFew requires that at most limit connections to each address were open at a time.
func (d *dials) requireFew(t *testing.T, limit int) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	t.Log("most connections at a time:", d.most)
	require.NotEmpty(t, d.most)
	for _, most := range d.most {
		require.LessOrEqual(t, most, limit)
	}
}

// countedConn is a connection that reports its end.
type countedConn struct {
	net.Conn

	closed func()
}

func (c *countedConn) Close() error {
	c.closed()
	return c.Conn.Close()
}

// bursts are loads of many goroutines that begin at once, each with locks of that name.
var bursts = []struct {
	name       string
	goroutines int
	times      int // that each goroutine acquires and releases
	lock       func(c *primitives.Client, name string, i int) *primitives.Lock
}{
	{"64 free locks", 64, 20, freeLock},
	{"1,000 free locks", 1000, 1, freeLock},
	{"one lock", 1000, 1, func(c *primitives.Client, name string, _ int) *primitives.Lock { return c.Lock(name) }},
	{"one fair lock", 1000, 1, func(c *primitives.Client, name string, _ int) *primitives.Lock {
		return c.FairLock(name)
	}},
}

func freeLock(c *primitives.Client, name string, i int) *primitives.Lock {
	return c.Lock(name + strconv.Itoa(i))
}

// runBursts runs f for each burst, with a func that runs it.
func runBursts(t *testing.T, f func(t *testing.T, run func(*primitives.Client))) {
	for _, b := range bursts {
		t.Run(b.name, func(t *testing.T) {
			name := redistest.Name(t)
			f(t, func(c *primitives.Client) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				fixture.Concurrently(b.goroutines, func(i int) {
					for range b.times {
						hold, err := b.lock(c, name, i).Acquire(ctx)
						if assert.NoError(t, err) {
							assert.NoError(t, hold.Release(ctx))
						}
					}
				})
			})
		})
	}
}

// A client opens few connections, however many goroutines call it at once: while its first
// connections are being dialed, and while the server stalls.
func TestCountsConnectionsOfABurst(t *testing.T) {
	s := redistest.Fresh(t)
	const slow = 50 * time.Millisecond
	for _, tt := range []struct {
		name  string
		delay time.Duration
		warm  bool // the client was used by one goroutine before
		stall bool
		pool  int // the size of both pools of go-redis; 0: the defaults
		limit int
		more  bool // the other rows have each of its conditions
	}{
		{"cold", 0, false, false, 0, 16, false},
		{"slow dials", slow, false, false, 0, 16, true},
		{"slow dials later", slow, true, false, 0, 16, true},
		{"stall", 0, true, true, 0, 16, true},
		// These dials outlast the pause after attempts of callers: see scripts/inline.go.
		{"stall and slow dials", 5 * slow, true, true, 0, 16, false},
		// With a subscription, and a dial that asks why Redis is silent.
		{"stall and small pools", 0, true, true, 1, 4, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.more {
				redistest.NeedFull(t, "thousands of goroutines")
			}
			runBursts(t, func(t *testing.T, run func(*primitives.Client)) {
				d := dials{delay: tt.delay}
				c := fixture.NewClient(t, s.Client(t, func(o *redis.Options) {
					o.Dialer, o.PoolSize, o.PipelinePoolSize = d.dial, tt.pool, tt.pool
				}))
				if tt.warm { // with so many quick answers that callers send by themselves
					for range 50 {
						fixture.Release(t, fixture.Acquire(t, t.Context(), c.Lock(redistest.Name(t)+"warm")))
					}
				}
				if tt.stall {
					paused := make(chan error, 1)
					time.AfterFunc(5*time.Millisecond, func() { paused <- s.Pause() })
					defer func() { require.NoError(t, <-paused) }()
					time.AfterFunc(205*time.Millisecond, func() { _ = s.Resume() })
				}
				run(c)
				d.requireFew(t, tt.limit)
			})
		})
	}
}

// On a cluster that holds for each node.
func TestCountsConnectionsOfABurstOnACluster(t *testing.T) {
	redistest.NeedFull(t, "a cluster")
	cluster := redistest.Cluster(t)
	runBursts(t, func(t *testing.T, run func(*primitives.Client)) {
		d := dials{delay: 50 * time.Millisecond}
		c := fixture.NewClient(t, cluster.ClusterClient(t, func(o *redis.ClusterOptions) { o.Dialer = d.dial }))
		run(c)
		d.requireFew(t, 12)
	})
}
