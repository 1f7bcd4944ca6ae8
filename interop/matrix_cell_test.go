package interop_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/interop/redisson"
	"github.com/redlatch/redlatch/primitives"
)

// patience bounds all waiting of one cell but that for a counter.
const patience = 30 * time.Second

// late is far above what anything takes that is not waited for, and far below the TTLs that are slept out if it fails: 30 s.
const late = 10 * time.Second

// shortTTL is the TTL of Go's holds in situations about expiry: short enough to be waited for several times over, and long enough for a
// busy machine. A hold is renewed after a third of it.
const shortTTL = 2 * time.Second

// javaTTL is the same for Java. Its counters have it too: now and then a Java thread misses a message, and sleeps on for the TTL that
// it was told. All else has Redisson's own watchdog, 30 s: a Java process that gets no processor for a while must not lose its locks.
const javaTTL = 4 * time.Second

// primitiveNames are the columns of the matrix.
func primitiveNames() []string {
	return []string{"lock", "spin", "fair", "fenced", "read", "write", "multi", "red", "semaphore", "permits", "latch"}
}

// world is a set-up of servers with one Java client on it. Each cell has a Go client of its own.
type world struct {
	title   string
	core    bool
	driver  *redisson.Driver
	config  redisson.Config
	java    *redisson.Client
	brief   *redisson.Client // renews for javaTTL
	client  func(t testing.TB) redis.UniversalClient
	servers func(t testing.TB) []*redistest.Server // on which somebody may listen
	single  *redistest.Server                      // the only server; nil if there are several
}

// setups are the tables of the matrix.
var setups = []struct {
	title string
	java  *redisson.Shared
	core  bool // the core of the situations only
	open  func(t *testing.T, w *world)
}{
	{"Redisson 4.7.0, one server", &redisson4, false, onServer},
	{"Redisson 3.52.0, one server", &redisson3, true, onServer},
	{"Redisson 4.7.0, cluster of three masters, sharded messages", &redisson4, true, onCluster},
	{"Redisson 4.7.0, behind sentinels", &redisson4, true, onSentinel},
}

func onServer(t *testing.T, w *world) {
	w.single = redistest.Redis(t)
	w.config.Addr = w.single.Addr()
	w.client = func(t testing.TB) redis.UniversalClient { return w.single.Client(t) }
	w.servers = func(testing.TB) []*redistest.Server { return []*redistest.Server{w.single} }
}

func onCluster(t *testing.T, w *world) {
	cluster := redistest.Cluster(t)
	for _, node := range cluster.Nodes() {
		w.config.Cluster = append(w.config.Cluster, node.Addr())
	}
	w.client = func(t testing.TB) redis.UniversalClient { return cluster.ClusterClient(t) }
	w.servers = func(testing.TB) []*redistest.Server { return cluster.Nodes() }
}

func onSentinel(t *testing.T, w *world) {
	sentinel := redistest.Sentinel(t)
	options := sentinel.Options()
	w.config.Sentinels, w.config.Master = options.SentinelAddrs, options.MasterName
	w.client = func(t testing.TB) redis.UniversalClient { return sentinel.FailoverClient(t) }
	w.servers = func(t testing.TB) []*redistest.Server { return []*redistest.Server{sentinel.Current(t)} }
}

// cell is the test of one primitive in one situation: a name, and both libraries on it.
type cell struct {
	*testing.T
	ctx       context.Context
	world     *world
	rdb       redis.UniversalClient
	gopher    *primitives.Client
	java      *redisson.Client
	primitive string
	name      string
	opts      []primitives.Option // of the Go side
	woken     *woken
}

func newCell(t *testing.T, w *world, primitive string, opts ...primitives.ClientOption) *cell {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	c := &cell{T: t, ctx: ctx, world: w, rdb: w.client(t), java: w.java, primitive: primitive, name: redistest.Name(t), woken: &woken{}}
	c.gopher = c.client(c.rdb, opts...)
	c.stock()
	return c
}

// client makes a Go client that is closed when the test ends, whatever it still holds.
func (c *cell) client(rdb redis.UniversalClient, opts ...primitives.ClientOption) *primitives.Client {
	c.Helper()
	gopher, err := primitives.New(rdb, opts...)
	require.NoError(c, err)
	c.Cleanup(func() {
		done, cancel := context.WithCancel(context.Background())
		cancel()
		_ = gopher.Close(done)
	})
	return gopher
}

// stock gives a semaphore its one permit.
func (c *cell) stock() {
	c.Helper()
	if c.primitive == "semaphore" || c.primitive == "permits" {
		require.NoError(c, c.rdb.Set(c.ctx, c.name, 1, 0).Err())
	}
}

// brief is the cell with the Java client that renews for javaTTL.
func (c *cell) brief() *cell {
	other := *c
	other.java = c.world.brief
	return &other
}

// round is the cell again under a name of its own.
func (c *cell) round(n int) *cell {
	c.Helper()
	fresh := *c
	fresh.name = fmt.Sprintf("%s-%d", c.name, n)
	fresh.stock()
	return &fresh
}

// with is the cell whose Go side has these options.
func (c *cell) with(opts ...primitives.Option) *cell {
	changed := *c
	changed.opts = opts
	return &changed
}

// counterpart is what excludes a holder of the primitive: readers only know writers.
func (c *cell) counterpart() *cell {
	other := *c
	if c.primitive == "read" {
		other.primitive = "write"
	}
	return &other
}

// times is how often each worker of a counter counts.
func (c *cell) times() int {
	if c.world.core {
		return max(*fullCount/10, 5)
	}
	return *fullCount
}

func (c *cell) members(n int) []string {
	names := make([]string, n)
	for i := range n {
		names[i] = fmt.Sprintf("%s:%d", c.name, i+1)
	}
	return names
}

// acquirer is what all primitives but the latch have in common in Go.
type acquirer interface {
	Acquire(ctx context.Context, opts ...primitives.Option) (*primitives.Hold, error)
}

// acquirer is the primitive in Go.
func (c *cell) acquirer() acquirer {
	switch c.primitive {
	case "semaphore":
		return c.gopher.Semaphore(c.name, c.opts...)
	case "permits":
		return c.gopher.PermitExpirableSemaphore(c.name, c.opts...)
	}
	return c.lock()
}

// lock is the lock in Go.
func (c *cell) lock() *primitives.Lock {
	switch c.primitive {
	case "spin":
		polling := primitives.WithPolling(time.Millisecond, 64*time.Millisecond)
		return c.gopher.Lock(c.name, append(slices.Clip(c.opts), polling)...)
	case "fair":
		return c.gopher.FairLock(c.name, c.opts...)
	case "fenced":
		return c.gopher.FencedLock(c.name, c.opts...)
	case "read":
		return c.gopher.RWLock(c.name, c.opts...).Reader()
	case "write":
		return c.gopher.RWLock(c.name, c.opts...).Writer()
	case "multi":
		return primitives.NewMultiLock(c.memberLocks(2), c.opts...)
	case "red":
		return primitives.NewRedLock(c.memberLocks(3), c.opts...)
	}
	return c.gopher.Lock(c.name, c.opts...)
}

func (c *cell) memberLocks(n int) (locks []*primitives.Lock) {
	for _, name := range c.members(n) {
		locks = append(locks, c.gopher.Lock(name, c.opts...))
	}
	return locks
}

// rlock is the lock in Java.
func (c *cell) rlock() redisson.Lock {
	switch c.primitive {
	case "multi":
		return c.java.MultiLock(c.memberRLocks(2)...)
	case "red":
		return c.java.RedLock(c.memberRLocks(3)...)
	}
	return c.java.LockOf(c.primitive, c.name)
}

func (c *cell) memberRLocks(n int) (locks []redisson.Lock) {
	for _, name := range c.members(n) {
		locks = append(locks, c.java.Lock(name))
	}
	return locks
}

// side is one who enters and leaves: a goroutine, or a Java thread. Entering again nests.
type side interface {
	enter(ctx context.Context) error
	try(ctx context.Context, wait time.Duration) (bool, error) // enters if it may within that time
	leave(ctx context.Context) error
	await(c *cell) // until it waits, having begun to enter
	String() string
}

// goSide is a goroutine's side.
type goSide struct {
	primitive string
	handle    acquirer
	holds     []*primitives.Hold // the innermost last
}

// inGo is the primitive's side of a goroutine.
func (c *cell) inGo(opts ...primitives.Option) *goSide {
	return &goSide{primitive: c.primitive, handle: c.with(append(slices.Clip(c.opts), opts...)...).acquirer()}
}

func (g *goSide) String() string { return "Go" }

func (g *goSide) enter(ctx context.Context) error { return g.acquire(ctx) }

func (g *goSide) try(ctx context.Context, wait time.Duration) (bool, error) {
	err := g.acquire(ctx, primitives.WithWait(wait))
	if errors.Is(err, primitives.ErrNotAcquired) && ctx.Err() == nil {
		return false, nil
	}
	return err == nil, err
}

func (g *goSide) acquire(ctx context.Context, opts ...primitives.Option) error {
	if len(g.holds) > 0 {
		ctx = g.hold().Context()
	}
	hold, err := g.handle.Acquire(ctx, opts...)
	if err == nil {
		g.holds = append(g.holds, hold)
	}
	return err
}

func (g *goSide) hold() *primitives.Hold { return g.holds[len(g.holds)-1] }

func (g *goSide) leave(ctx context.Context) error {
	hold := g.hold()
	g.holds = g.holds[:len(g.holds)-1]
	return hold.Release(ctx)
}

func (g *goSide) await(c *cell) {
	if g.primitive != "spin" {
		c.listened()
	}
	c.settle()
}

// javaSide is a Java thread's side.
type javaSide struct {
	primitive string
	java      *redisson.Client
	thread    string
	lock      redisson.Lock
	semaphore redisson.Semaphore
	permits   redisson.Permits
	lease     time.Duration // of permits; below 0: none
	id        string        // of the permit that is held
}

// inJava is the primitive's side of a Java thread, one of the cell's own.
func (c *cell) inJava(thread string) *javaSide {
	j := &javaSide{primitive: c.primitive, java: c.java, thread: c.name + "/" + thread, lease: -1}
	switch c.primitive {
	case "semaphore":
		j.semaphore = c.java.Semaphore(c.name).On(j.thread)
	case "permits":
		j.permits = redisson.Permits{Object: c.java.Object("permits", c.name).On(j.thread)}
	default:
		j.lock = c.rlock().On(j.thread)
	}
	return j
}

func (j *javaSide) String() string { return "Java" }

func (j *javaSide) enter(ctx context.Context) (err error) {
	switch j.primitive {
	case "semaphore":
		return j.semaphore.Acquire(ctx, 1)
	case "permits":
		j.id, err = j.permits.Acquire(ctx, j.lease)
		return err
	}
	return j.lock.Lock(ctx)
}

func (j *javaSide) try(ctx context.Context, wait time.Duration) (ok bool, err error) {
	switch j.primitive {
	case "semaphore":
		return j.semaphore.TryAcquireFor(ctx, 1, wait)
	case "permits":
		j.id, err = j.permits.TryAcquire(ctx, wait, j.lease)
		return j.id != "", err
	}
	return j.lock.TryLockFor(ctx, wait, -1)
}

func (j *javaSide) leave(ctx context.Context) error {
	switch j.primitive {
	case "semaphore":
		return j.semaphore.Release(ctx, 1)
	case "permits":
		return j.permits.Release(ctx, j.id)
	}
	return j.lock.Unlock(ctx)
}

// await: a thread that sleeps for a limited time has been told how long the lock is taken; while it reads an answer it has no limit.
func (j *javaSide) await(c *cell) {
	switch j.primitive {
	case "semaphore", "permits":
		c.listened()
		c.settle()
	default:
		if j.primitive != "spin" {
			c.listened()
			c.settle()
		}
		c.asleep(j.thread) // a writer's message, "1", wakes only the threads that wait already
	}
}

// asleep waits until a Java thread sleeps for a limited time. It looks several times, as a thread that
// subscribes also sleeps so for a moment. A spin lock's thread always sleeps for moments.
func (c *cell) asleep(thread string) {
	c.Helper()
	seen := 0
	c.eventually("Java to wait", func() bool {
		got, err := c.java.Thread(c.ctx, thread)
		if err == nil && got.State == "TIMED_WAITING" {
			seen++
		} else {
			seen = 0
		}
		return seen == 3 || c.primitive == "spin" && seen > 0
	})
}

// owner is the id under which the thread holds locks.
func (j *javaSide) owner(c *cell) string {
	c.Helper()
	id, err := j.java.Owner(c.ctx, j.thread)
	require.NoError(c, err)
	return id
}

// listened waits until somebody is subscribed to a channel of the name.
func (c *cell) listened() {
	c.Helper()
	servers := c.world.servers(c)
	c.eventually("a subscription", func() bool {
		for _, server := range servers {
			for _, channels := range [][]string{redistest.Channels(c, server), redistest.ShardChannels(c, server)} {
				for _, channel := range channels {
					if strings.Contains(channel, c.name) {
						return true
					}
				}
			}
		}
		return false
	})
}

// settle lets a waiter make its second try, the one after the subscription. Nothing fails if that comes later: what is
// measured then is a try, not a message.
func (c *cell) settle() { time.Sleep(15 * time.Millisecond) }

func (c *cell) eventually(what string, ready func() bool) {
	c.Helper()
	redistest.WaitFor(c, patience, ready, what)
}

// entry is how an attempt to enter ended, and when.
type entry struct {
	err error
	at  time.Time
}

// begin has a side enter in the background.
func (c *cell) begin(s side) <-chan entry {
	done := make(chan entry, 1)
	go func() {
		err := s.enter(c.ctx)
		done <- entry{err, time.Now()}
	}()
	return done
}

// enters waits until what was begun has entered.
func (c *cell) enters(begun <-chan entry) time.Time {
	c.Helper()
	select {
	case e := <-begun:
		require.NoError(c, e.err)
		return e.at
	case <-c.ctx.Done():
		require.FailNow(c, "nobody entered")
		return time.Time{}
	}
}

// waits sees that what was begun has not entered yet, for so long.
func (c *cell) waits(begun <-chan entry, d time.Duration) {
	c.Helper()
	select {
	case e := <-begun:
		require.FailNow(c, "it did not wait", "%v", e.err)
	case <-time.After(d):
	}
}

// can and cannot: whether a side can enter now; it leaves again.
func (c *cell) can(s side) {
	c.Helper()
	ok, err := s.try(c.ctx, 0)
	require.NoError(c, err)
	require.True(c, ok, "%v cannot enter", s)
	c.leaves(s)
}

func (c *cell) cannot(s side) {
	c.Helper()
	ok, err := s.try(c.ctx, 0)
	require.NoError(c, err)
	require.False(c, ok, "%v can enter", s)
}

func (c *cell) in(s side) {
	c.Helper()
	require.NoError(c, s.enter(c.ctx))
}

func (c *cell) leaves(s side) {
	c.Helper()
	require.NoError(c, s.leave(c.ctx))
}

// lost waits until a hold in Go is told that it is lost.
func (c *cell) lost(hold *primitives.Hold, within time.Duration) {
	c.Helper()
	select {
	case <-hold.Context().Done():
		require.ErrorIs(c, context.Cause(hold.Context()), primitives.ErrLost)
	case <-time.After(within):
		require.FailNow(c, "the loss was not told")
	}
}

// throws sees a Java exception.
func (c *cell) throws(err error, class string) {
	c.Helper()
	require.NoError(c, throws(class)(err))
}

// clean waits until nothing is left of the name but what remembers releases and counts tokens.
func (c *cell) clean() {
	c.Helper()
	left := []string{}
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		left = left[:0]
		for _, server := range c.world.servers(c) {
			for _, key := range redistest.Keys(c, server, "*"+c.name+"*") {
				if !strings.HasPrefix(key, "redisson_unlock_latch:") && !strings.HasPrefix(key, "redisson_lock_token:") {
					left = append(left, key)
				}
			}
		}
		if len(left) == 0 || time.Now().After(end) {
			break
		}
	}
	require.Empty(c, left)
}
