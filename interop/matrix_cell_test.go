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

	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/interop/redisson"
	"github.com/redlatch/redlatch/primitives"
)

// cellTimeout bounds each cell, except for counters.
const cellTimeout = 30 * time.Second

// slack is the tolerance for measured times. It is far above the duration of a command, and far
// below the default TTL of 30 s, which a waiter that missed its message would wait for.
const slack = 10 * time.Second

// shortTTL is the TTL of Go's holds in situations about expiry. It is short enough for a test that
// waits for several TTLs, and long enough for a busy machine. A hold is renewed every shortTTL/3.
const shortTTL = 2 * time.Second

// javaTTL is the same for Java. Java's counters use it too: a Java thread sometimes misses a
// message and then sleeps for the TTL. All other cells use Redisson's default of 30 s, so that a
// Java process without CPU time does not lose its locks.
const javaTTL = 4 * time.Second

// primitiveNames returns the columns of the matrix.
func primitiveNames() []string {
	return []string{"lock", "spin", "fair", "fenced", "read", "write", "multi", "red", "semaphore", "permits", "latch"}
}

// environment is a set of servers with Java clients that all cells share. Each cell has its own Go
// client.
type environment struct {
	title        string
	core         bool
	driver       *redisson.Driver
	config       redisson.Config
	java         *redisson.Client
	javaShortTTL *redisson.Client // its watchdog TTL is javaTTL
	client       func(t testing.TB) redis.UniversalClient
	servers      func(t testing.TB) []*redistest.Server // all servers that may have subscribers
	single       *redistest.Server                      // nil if there are several servers
}

// setups lists the tables of the matrix. The documentation contains their titles.
var setups = []struct {
	title string
	java  *redisson.Shared
	core  bool // run only core situations
	open  func(t *testing.T, e *environment)
}{
	{titled(&redisson4, "one server"), &redisson4, false, onServer},
	{titled(&redisson3, "one server"), &redisson3, true, onServer},
	{titled(&redisson4, "cluster of three masters, sharded pub/sub"), &redisson4, true, onCluster},
	{titled(&redisson4, "behind sentinels"), &redisson4, true, onSentinel},
}

func titled(java *redisson.Shared, servers string) string {
	return fmt.Sprintf("Redisson %s, %s", java.Options.Version, servers)
}

func onServer(t *testing.T, e *environment) {
	e.single = redistest.Redis(t)
	e.config.Addr = e.single.Addr()
	e.client = func(t testing.TB) redis.UniversalClient { return e.single.Client(t) }
	e.servers = func(testing.TB) []*redistest.Server { return []*redistest.Server{e.single} }
}

func onCluster(t *testing.T, e *environment) {
	cluster := redistest.Cluster(t)
	for _, node := range cluster.Nodes() {
		e.config.Cluster = append(e.config.Cluster, node.Addr())
	}
	e.client = func(t testing.TB) redis.UniversalClient { return cluster.ClusterClient(t) }
	e.servers = func(testing.TB) []*redistest.Server { return cluster.Nodes() }
}

func onSentinel(t *testing.T, e *environment) {
	sentinel := redistest.Sentinel(t)
	options := sentinel.Options()
	e.config.Sentinels, e.config.Master = options.SentinelAddrs, options.MasterName
	e.client = func(t testing.TB) redis.UniversalClient { return sentinel.FailoverClient(t) }
	e.servers = func(t testing.TB) []*redistest.Server { return []*redistest.Server{sentinel.Current(t)} }
}

// cell tests one primitive in one situation: both libraries use the same name.
type cell struct {
	*testing.T
	ctx         context.Context
	environment *environment
	rdb         redis.UniversalClient
	goClient    *primitives.Client
	java        *redisson.Client
	primitive   string
	name        string
	opts        []primitives.Option // for Go handles
	wakeUps     *wakeUps
}

func newCell(t *testing.T, e *environment, primitive string, opts ...primitives.ClientOption) *cell {
	ctx, cancel := context.WithTimeout(t.Context(), cellTimeout)
	t.Cleanup(cancel)
	c := &cell{
		T: t, ctx: ctx, environment: e, rdb: e.client(t), java: e.java,
		primitive: primitive, name: redistest.Name(t), wakeUps: &wakeUps{},
	}
	c.goClient = c.client(c.rdb, opts...)
	c.initPermits()
	return c
}

// client makes a Go client and closes it when the test ends. It does not wait for remaining holds.
func (c *cell) client(rdb redis.UniversalClient, opts ...primitives.ClientOption) *primitives.Client {
	c.Helper()
	goClient, err := primitives.New(rdb, opts...)
	require.NoError(c, err)
	c.Cleanup(func() {
		cancelled, cancel := context.WithCancel(context.Background())
		cancel()
		_ = goClient.Close(cancelled)
	})
	return goClient
}

// initPermits sets up a semaphore with one permit.
func (c *cell) initPermits() {
	c.Helper()
	if c.primitive == "semaphore" || c.primitive == "permits" {
		require.NoError(c, c.rdb.Set(c.ctx, c.name, 1, 0).Err())
	}
}

// withShortJavaTTL returns a copy of the cell with the Java client whose watchdog TTL is javaTTL.
func (c *cell) withShortJavaTTL() *cell {
	other := *c
	other.java = c.environment.javaShortTTL
	return &other
}

// renamed returns a copy of the cell with another name.
func (c *cell) renamed(n int) *cell {
	c.Helper()
	other := *c
	other.name = fmt.Sprintf("%s-%d", c.name, n)
	other.initPermits()
	return &other
}

// with returns a copy of the cell with options for its Go handles.
func (c *cell) with(opts ...primitives.Option) *cell {
	changed := *c
	changed.opts = opts
	return &changed
}

// counterpart returns the cell of the primitive that excludes a holder: for read it is write.
func (c *cell) counterpart() *cell {
	other := *c
	if c.primitive == "read" {
		other.primitive = "write"
	}
	return &other
}

// iterations returns the number of iterations of each worker of a counter.
func (c *cell) iterations() int {
	if c.environment.core {
		return max(*iterationCount/10, 5)
	}
	return *iterationCount
}

func (c *cell) members(n int) []string {
	names := make([]string, n)
	for i := range n {
		names[i] = fmt.Sprintf("%s:%d", c.name, i+1)
	}
	return names
}

// acquirer is the part of the Go API common to all primitives except the latch.
type acquirer interface {
	Acquire(ctx context.Context, opts ...primitives.Option) (*primitives.Hold, error)
}

// acquirer returns the Go handle of the primitive.
func (c *cell) acquirer() acquirer {
	switch c.primitive {
	case "semaphore":
		return c.goClient.Semaphore(c.name, c.opts...)
	case "permits":
		return c.goClient.PermitExpirableSemaphore(c.name, c.opts...)
	}
	return c.lock()
}

// lock returns the Go handle of a lock.
func (c *cell) lock() *primitives.Lock {
	switch c.primitive {
	case "spin":
		polling := primitives.WithPolling(time.Millisecond, 64*time.Millisecond)
		return c.goClient.Lock(c.name, append(slices.Clip(c.opts), polling)...)
	case "fair":
		return c.goClient.FairLock(c.name, c.opts...)
	case "fenced":
		return c.goClient.FencedLock(c.name, c.opts...)
	case "read":
		return c.goClient.RWLock(c.name, c.opts...).Reader()
	case "write":
		return c.goClient.RWLock(c.name, c.opts...).Writer()
	case "multi":
		return primitives.NewMultiLock(c.memberLocks(2), c.opts...)
	case "red":
		return primitives.NewRedLock(c.memberLocks(3), c.opts...)
	}
	return c.goClient.Lock(c.name, c.opts...)
}

func (c *cell) memberLocks(n int) (locks []*primitives.Lock) {
	for _, name := range c.members(n) {
		locks = append(locks, c.goClient.Lock(name, c.opts...))
	}
	return locks
}

// rlock returns the Java object of a lock.
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

// side is a goroutine or a Java thread that acquires (enters) and releases (leaves) the primitive.
// A second enter nests.
type side interface {
	enter(ctx context.Context) error
	try(ctx context.Context, wait time.Duration) (bool, error) // enters if possible within wait
	leave(ctx context.Context) error
	awaitWaiting(c *cell) // blocks until the side waits; startEntering must have been called
	String() string
}

// goSide is a side in Go.
type goSide struct {
	primitive string
	handle    acquirer
	holds     []*primitives.Hold // innermost last
}

// inGo returns a new Go side for the primitive.
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

func (g *goSide) awaitWaiting(c *cell) {
	if g.primitive != "spin" {
		c.awaitSubscription()
	}
	c.allowSecondTry()
}

// javaSide is a side in Java, with its own thread.
type javaSide struct {
	primitive string
	java      *redisson.Client
	thread    string
	lock      redisson.Lock
	semaphore redisson.Semaphore
	permits   redisson.Permits
	lease     time.Duration // of permits; negative: none
	id        string        // of the held permit
}

// inJava returns a new Java side for the primitive. Thread names belong to the cell.
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

// awaitWaiting waits until the thread is in a timed wait. Such a thread knows the TTL of the lock
// and waits for a message. While it reads a reply of Redis its wait has no time limit.
func (j *javaSide) awaitWaiting(c *cell) {
	switch j.primitive {
	case "semaphore", "permits":
		c.awaitSubscription()
		c.allowSecondTry()
	default:
		if j.primitive != "spin" {
			c.awaitSubscription()
			c.allowSecondTry()
		}
		c.awaitTimedWait(j.thread) // the message "1" of a writer wakes up only threads that already wait
	}
}

// awaitTimedWait waits until a Java thread is in a timed wait. It requires several observations,
// because a thread that subscribes is also in a timed wait for a moment. A thread of a spin lock is
// never in one for long, so one observation is enough.
func (c *cell) awaitTimedWait(thread string) {
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

// owner returns the owner id of the thread.
func (j *javaSide) owner(c *cell) string {
	c.Helper()
	id, err := j.java.Owner(c.ctx, j.thread)
	require.NoError(c, err)
	return id
}

// awaitSubscription waits until a channel of the name has a subscriber.
func (c *cell) awaitSubscription() {
	c.Helper()
	servers := c.environment.servers(c)
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

// allowSecondTry gives a waiter time for its second try, which follows the subscription. A later
// try does not fail the test. The test then measures the try and not the message.
func (c *cell) allowSecondTry() { time.Sleep(15 * time.Millisecond) }

func (c *cell) eventually(what string, ready func() bool) {
	c.Helper()
	redistest.WaitFor(c, cellTimeout, ready, what)
}

// entry is the result of an attempt to enter, and the time at which it ended.
type entry struct {
	err error
	at  time.Time
}

// startEntering makes a side enter in the background.
func (c *cell) startEntering(s side) <-chan entry {
	done := make(chan entry, 1)
	go func() {
		err := s.enter(c.ctx)
		done <- entry{err, time.Now()}
	}()
	return done
}

// awaitEntry waits until a started entry has succeeded.
func (c *cell) awaitEntry(started <-chan entry) time.Time {
	c.Helper()
	select {
	case e := <-started:
		require.NoError(c, e.err)
		return e.at
	case <-c.ctx.Done():
		require.FailNow(c, "the side has not entered")
		return time.Time{}
	}
}

// staysBlocked checks that a started entry does not end within d.
func (c *cell) staysBlocked(started <-chan entry, d time.Duration) {
	c.Helper()
	select {
	case e := <-started:
		require.FailNow(c, "the side did not wait", "%v", e.err)
	case <-time.After(d):
	}
}

// canEnter checks that a side can enter at once. The side leaves again.
func (c *cell) canEnter(s side) {
	c.Helper()
	ok, err := s.try(c.ctx, 0)
	require.NoError(c, err)
	require.True(c, ok, "%v cannot enter", s)
	c.mustLeave(s)
}

// cannotEnter checks that a side cannot enter at once.
func (c *cell) cannotEnter(s side) {
	c.Helper()
	ok, err := s.try(c.ctx, 0)
	require.NoError(c, err)
	require.False(c, ok, "%v can enter", s)
}

func (c *cell) mustEnter(s side) {
	c.Helper()
	require.NoError(c, s.enter(c.ctx))
}

func (c *cell) mustLeave(s side) {
	c.Helper()
	require.NoError(c, s.leave(c.ctx))
}

// awaitLost waits until the context of a Go hold ends with ErrLost.
func (c *cell) awaitLost(hold *primitives.Hold, within time.Duration) {
	c.Helper()
	select {
	case <-hold.Context().Done():
		require.ErrorIs(c, context.Cause(hold.Context()), primitives.ErrLost)
	case <-time.After(within):
		require.FailNow(c, "the loss was not reported")
	}
}

// throws checks that err is a Java exception of the given class.
func (c *cell) throws(err error, class string) {
	c.Helper()
	require.NoError(c, throws(class)(err))
}

// awaitNoKeys waits until the name has no keys, except for keys that remember releases or count
// tokens.
func (c *cell) awaitNoKeys() {
	c.Helper()
	left := []string{}
	for end := time.Now().Add(cellTimeout); ; time.Sleep(5 * time.Millisecond) {
		left = left[:0]
		for _, server := range c.environment.servers(c) {
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
