package interop_test

import (
	"context"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/interop/redisson"
	"github.com/redlatch/redlatch/primitives"
)

// Why a situation does not concern a primitive.
const (
	latchExcludesNobody = "A latch excludes nobody"
	nobodyHolds         = "A plain semaphore does not know who holds"
	permitsDoNotNest    = "Semaphores do not nest"
	noLease             = "A plain semaphore's permit has no lease: it stays out with the dead, on either side"
	javaNeverRenews     = "Redisson does not renew permits"
	readersCountNothing = "Readers do not exclude each other; see the mixed counter"
)

func except(reasons ...map[string]string) map[string]string {
	all := map[string]string{"latch": latchExcludesNobody}
	for _, more := range reasons {
		maps.Copy(all, more)
	}
	return all
}

func commonSituations() []situation {
	semaphores := map[string]string{"semaphore": permitsDoNotNest, "permits": permitsDoNotNest}
	plain := map[string]string{"semaphore": noLease}
	unknown := map[string]string{"semaphore": nobodyHolds}
	ids := map[string]string{"semaphore": nobodyHolds, "permits": "A permit's id is nobody's"}
	return []situation{
		{name: "Go holds, Java waits, a message wakes it", core: true, alone: true, na: except(), run: goThenJava},
		{name: "Java holds, Go waits, a message wakes it", core: true, alone: true, na: except(), run: javaThenGo},
		{name: "a counter under 4 goroutines and 4 Java threads", core: true, alone: true, na: except(map[string]string{"read": readersCountNothing}), run: counter},
		{name: "Java gives up after its wait, and leaves nothing", core: true, na: except(), run: func(c *cell) { timedWait(c, c.counterpart().inGo(), c.inJava("B")) }},
		{name: "Go gives up after its wait, and leaves nothing", core: true, na: except(), run: func(c *cell) { timedWait(c, c.counterpart().inJava("A"), c.inGo()) }},
		{name: "nested in Go: Java enters after the last release", core: true, na: except(semaphores), run: func(c *cell) { nested(c, c.inGo(), c.counterpart().inJava("B")) }},
		{name: "nested in Java: Go enters after the last unlock", core: true, na: except(semaphores), run: func(c *cell) { nested(c, c.inJava("A"), c.counterpart().inGo()) }},
		{name: "Go's watchdog keeps a hold for three TTLs", na: except(plain), run: func(c *cell) {
			outlive(c, c.inGo(primitives.WithWatchdog(shortTTL)), c.counterpart().inJava("B"), shortTTL)
		}},
		{name: "Java's watchdog keeps a hold for three TTLs", na: except(plain, map[string]string{"permits": javaNeverRenews}), run: func(c *cell) {
			outlive(c, c.brief().inJava("A"), c.counterpart().inGo(), javaTTL)
		}},
		{name: "Go is cut off: its hold is lost first, then Java enters by the TTL", na: except(plain), run: goCrashes},
		{name: "Java is killed: Go enters by the TTL", na: except(plain), start: javaCrashes},
		{name: "freed by Java: the holder in Go learns it", core: true, na: except(unknown), run: freedByJava},
		{name: "freed by Go: the holder in Java learns it", core: true, na: except(unknown), run: freedByGo},
		{name: "a release by one who does not hold is refused", core: true, na: except(unknown), run: strangers},
		{name: "Go releases what a Java thread holds, by its id", core: true, na: except(unknown), run: releasedByID},
		{name: "Go adopts what a Java thread holds", core: true, na: except(unknown), run: adopted},
		{name: "Go enters and leaves as a Java thread (WithOwner)", core: true, na: except(ids), run: asOwner},
	}
}

func goThenJava(c *cell) {
	wakes(c, func(c *cell) (holder, waiter side) { return c.counterpart().inGo(), c.inJava("B") })
}

func javaThenGo(c *cell) {
	wakes(c, func(c *cell) (holder, waiter side) { return c.counterpart().inJava("A"), c.inGo() })
}

// wakeMedian bounds the median of a number of wake-ups. It tells a message from what else wakes: Go's poll takes a second, and Java
// sleeps for the TTL that it was told, 30 s. It is no measure of speed, which depends on what else the machine does: a message takes
// 2 ms, and more than 10 ms on a busy machine. The report has the figures. A machine that is busy gets more than one chance.
const (
	wakeMedian  = 500 * time.Millisecond
	wakeChances = 4
	wakeRounds  = 9
)

// wakes sees one side excluded while the other holds, and entering when it is told. A spin lock is not told: it looks by itself, more
// often than the bound.
func wakes(c *cell, sides func(c *cell) (holder, waiter side)) {
	measure(c, func(r *cell) time.Duration {
		holder, waiter := sides(r)
		return r.wake(holder, waiter)
	})
}

// measure takes the time of a number of wake-ups, and sees that they were by message.
func measure(c *cell, wake func(r *cell) time.Duration) {
	for chance := range wakeChances {
		*c.woken = (*c.woken)[:0]
		for n := range wakeRounds {
			*c.woken = append(*c.woken, wake(c.round(chance*wakeRounds+n)))
		}
		if c.woken.median() < wakeMedian {
			return
		}
		c.Logf("chance %d: %v", chance+1, *c.woken)
	}
	require.Less(c, c.woken.median(), wakeMedian)
}

// wake is how long it takes from the holder's release to the waiter's entering.
func (c *cell) wake(holder, waiter side) time.Duration {
	c.in(holder)
	c.cannot(waiter)
	entering := c.begin(waiter)
	waiter.await(c)
	c.waits(entering, 0)
	freed := time.Now()
	c.leaves(holder)
	entered := c.enters(entering)
	c.leaves(waiter)
	return entered.Sub(freed)
}

// counter counts in one key by GET and SET, with nothing but the primitive between the workers.
func counter(c *cell) {
	c = c.brief()
	const workers = 4
	key, times := c.name+":count", c.times()
	ctx, cancel := context.WithTimeout(c.T.Context(), 2*time.Minute)
	defer cancel()
	began := time.Now()
	var wg sync.WaitGroup
	errs := make(chan error, workers+1)
	wg.Go(func() {
		_, err := c.workload().Counter(ctx, redisson.Workload{Iterations: times, Threads: workers, Key: key})
		errs <- err
	})
	for range workers {
		wg.Go(func() { errs <- c.count(ctx, key, times) })
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		require.NoError(c, err)
	}
	require.Equal(c, 2*workers*times, must(c.rdb.Get(ctx, key).Int())(c.T))
	c.Logf("%d sections in %v", 2*workers*times, time.Since(began))
}

// workload is the Java object to work with.
func (c *cell) workload() redisson.Object {
	switch c.primitive {
	case "semaphore", "permits":
		return c.java.Object(c.primitive, c.name)
	}
	return c.rlock().Object
}

func (c *cell) count(ctx context.Context, key string, times int) error {
	s := c.inGo()
	for range times {
		if err := s.enter(ctx); err != nil {
			return err
		}
		if err := increment(ctx, c.rdb, key); err != nil {
			return err
		}
		if err := s.leave(ctx); err != nil {
			return err
		}
	}
	return nil
}

// increment loses counts unless it is guarded.
func increment(ctx context.Context, rdb redis.UniversalClient, key string) error {
	n, err := rdb.Get(ctx, key).Int()
	if err != nil && err != redis.Nil { //nolint:errorlint // go-redis returns it bare
		return err
	}
	return rdb.Set(ctx, key, n+1, 0).Err()
}

// rounding is by how much Java may be early: it counts in whole milliseconds.
const rounding = 2 * time.Millisecond

func timedWait(c *cell, holder, waiter side) {
	const wait = shortWait
	c.in(holder)
	began := time.Now()
	ok, err := waiter.try(c.ctx, wait)
	require.NoError(c, err)
	require.False(c, ok)
	require.GreaterOrEqual(c, time.Since(began), wait-rounding)
	require.Less(c, time.Since(began), wait+late)
	c.leaves(holder)
	if c.primitive != "semaphore" && c.primitive != "permits" {
		c.clean()
	}
	c.can(waiter)
}

func nested(c *cell, holder, rival side) {
	c.in(holder)
	c.in(holder)
	entering := c.begin(rival)
	rival.await(c)
	c.leaves(holder)
	c.waits(entering, 100*time.Millisecond)
	c.leaves(holder)
	c.enters(entering)
	c.leaves(rival)
	c.clean()
}

func outlive(c *cell, holder, rival side, ttl time.Duration) {
	c.in(holder)
	entering := c.begin(rival)
	c.waits(entering, 3*ttl+ttl/4)
	c.leaves(holder)
	c.enters(entering)
	c.leaves(rival)
}

// hasty gives a silent connection up soon.
func hasty(o *redis.Options) {
	o.ReadTimeout, o.WriteTimeout, o.DialTimeout = 200*time.Millisecond, 200*time.Millisecond, 200*time.Millisecond
}

func goCrashes(c *cell) {
	proxy := c.world.single.Proxy(c)
	apart := *c
	apart.gopher = apart.client(proxy.Client(c, hasty))
	holder, rival := apart.inGo(primitives.WithWatchdog(shortTTL)), c.counterpart().inJava("B")
	c.in(holder)
	entering := c.begin(rival)
	rival.await(c)
	cut := time.Now()
	proxy.BlackHole(true)
	valid := holder.hold().ValidUntil() // nothing confirms a renewal any more
	entered := c.enters(entering)
	require.True(c, valid.Before(entered), "Java entered while Go's hold was valid")
	c.lost(holder.hold(), late)
	require.Less(c, entered.Sub(cut), shortTTL+late)
	c.leaves(rival)
}

// javaCrashes kills one Java process that holds one of each.
func javaCrashes(t *testing.T, w *world) func(c *cell) {
	driver := redisson.Start(t, redisson.Options{})
	config := w.config
	config.Watchdog = javaTTL
	java := driver.Client(t, config)
	kinds := []string{"lock", "spin", "fair", "fenced", "read", "write", "multi", "red", "permits"}
	entering := map[string]<-chan entry{}
	rivals := map[string]side{}
	for _, kind := range kinds {
		c := newCell(t, w, kind)
		c.java = java
		holder := c.inJava("A")
		holder.lease = 2 * javaTTL
		c.in(holder)
		rivals[kind] = c.counterpart().inGo()
		entering[kind] = c.begin(rivals[kind])
	}
	time.Sleep(javaTTL) // what is held now has been renewed
	for _, kind := range kinds {
		require.Empty(t, entering[kind], "%s: Go entered beside Java", kind)
	}
	killed := time.Now()
	require.NoError(t, driver.Kill())
	return func(c *cell) {
		entered := c.enters(entering[c.primitive])
		require.Less(c, entered.Sub(killed), 2*javaTTL+late)
		c.leaves(rivals[c.primitive])
	}
}

// forcible are the Java locks whose forceUnlock frees what is held.
func (c *cell) forcible() []redisson.Lock {
	switch c.primitive {
	case "multi":
		return c.memberRLocks(1) // one member suffices
	case "red":
		return c.memberRLocks(2)
	}
	return []redisson.Lock{c.rlock()}
}

func freedByJava(c *cell) {
	holder := c.inGo(primitives.WithWatchdog(shortTTL))
	c.in(holder)
	hold := holder.hold()
	if c.primitive == "permits" {
		require.NoError(c, c.java.Permits(c.name).Release(c.ctx, hold.ID()))
	} else {
		for _, lock := range c.forcible() {
			require.NoError(c, is(true)(lock.ForceUnlock(c.ctx)))
		}
	}
	c.lost(hold, shortTTL/3+late)
	require.ErrorIs(c, hold.Release(c.ctx), primitives.ErrLost)
	c.can(c.counterpart().inJava("B"))
}

func freedByGo(c *cell) {
	holder := c.inJava("A")
	c.in(holder)
	switch c.primitive {
	case "permits":
		require.NoError(c, c.gopher.PermitExpirableSemaphore(c.name).ReleaseID(c.ctx, holder.id))
	case "multi", "red":
		// Redisson's multi lock stops unlocking at the first member that is not its own, and keeps those behind: so the last ones.
		members := c.memberLocks(map[string]int{"multi": 2, "red": 3}[c.primitive])
		for _, member := range members[len(members)-len(c.forcible()):] {
			require.NoError(c, is(true)(member.ForceRelease(c.ctx)))
		}
	default:
		require.NoError(c, is(true)(c.lock().ForceRelease(c.ctx)))
	}
	c.learns(holder)
	c.can(c.counterpart().inGo())
}

// learns sees that a Java thread whose hold was taken away finds out when it leaves. Redisson's red lock hides it, and its fair lock does when nobody
// holds the lock.
func (c *cell) learns(holder *javaSide) {
	err := holder.leave(c.ctx)
	switch c.primitive {
	case "permits":
		c.throws(err, "IllegalArgumentException")
	case "red":
		require.NoError(c, err)
	case "fair":
		if err != nil {
			c.throws(err, "IllegalMonitorStateException")
		}
	default:
		c.throws(err, "IllegalMonitorStateException")
	}
}

func strangers(c *cell) {
	stranger := foreign
	if c.primitive == "permits" {
		stranger = strings.Repeat("0a", 16)
	}
	for _, holder := range []side{c.inGo(), c.inJava("A")} {
		c.in(holder)
		switch c.primitive {
		case "permits":
			c.throws(c.java.Permits(c.name).Release(c.ctx, stranger), "IllegalArgumentException")
		case "red":
			require.NoError(c, c.inJava("B").leave(c.ctx)) // hidden
		default:
			c.throws(c.inJava("B").leave(c.ctx), "IllegalMonitorStateException")
		}
		require.ErrorIs(c, c.byID().ReleaseID(c.ctx, stranger), primitives.ErrNotHeld)
		c.cannot(c.counterpart().inGo())
		c.cannot(c.counterpart().inJava("B"))
		c.leaves(holder)
	}
}

// byID is the primitive in Go as seen by those who know ids.
func (c *cell) byID() interface {
	ReleaseID(ctx context.Context, id string) error
	Adopt(ctx context.Context, id string, opts ...primitives.Option) (*primitives.Hold, error)
} {
	if c.primitive == "permits" {
		return c.gopher.PermitExpirableSemaphore(c.name)
	}
	return c.lock()
}

// idOf is the id of what a Java thread holds.
func (c *cell) idOf(holder *javaSide) string {
	if c.primitive == "permits" {
		return holder.id
	}
	return holder.owner(c)
}

func releasedByID(c *cell) {
	holder, rival := c.inJava("A"), c.counterpart().inGo()
	c.in(holder)
	entering := c.begin(rival)
	require.NoError(c, c.byID().ReleaseID(c.ctx, c.idOf(holder)))
	c.enters(entering)
	c.learns(holder)
	c.leaves(rival)
}

func adopted(c *cell) {
	holder, rival := c.inJava("A"), c.counterpart().inJava("B")
	c.in(holder)
	hold, err := c.byID().Adopt(c.ctx, c.idOf(holder))
	require.NoError(c, err)
	c.learns(holder)
	c.cannot(rival)
	require.NoError(c, hold.Check(c.ctx))
	entering := c.begin(rival)
	rival.await(c)
	require.NoError(c, hold.Release(c.ctx))
	c.enters(entering)
	c.leaves(rival)
}

// asOwner has a goroutine and a Java thread be one holder.
func asOwner(c *cell) {
	java, rival := c.inJava("A"), c.counterpart().inJava("B")
	same := c.inGo(primitives.WithOwner(java.owner(c)))
	for _, order := range [][2]side{{java, same}, {same, java}} {
		for _, leaving := range [][2]side{{java, same}, {same, java}} {
			c.in(order[0])
			c.in(order[1])
			c.cannot(rival)
			c.leaves(leaving[0])
			c.cannot(rival)
			c.leaves(leaving[1])
			c.can(rival)
		}
	}
	c.clean()
}
