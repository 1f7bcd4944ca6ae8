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

// Reasons why a situation does not apply to a primitive. The documentation contains them.
const (
	latchHasNoHolder    = "A latch has no holder"
	holdersUnknown      = "A plain semaphore does not record its holders"
	permitsDoNotNest    = "Semaphores do not nest"
	noLease             = "A plain semaphore's permit has no lease, so a dead holder's permit stays acquired"
	javaNeverRenews     = "Redisson does not renew permits"
	readersCountNothing = "Readers do not exclude each other; see the row on readers and writers"
)

// except returns the given reasons, and the reason that excludes the latch.
func except(reasons ...map[string]string) map[string]string {
	all := map[string]string{"latch": latchHasNoHolder}
	for _, more := range reasons {
		maps.Copy(all, more)
	}
	return all
}

func commonSituations() []situation {
	semaphores := map[string]string{"semaphore": permitsDoNotNest, "permits": permitsDoNotNest}
	plain := map[string]string{"semaphore": noLease}
	unknown := map[string]string{"semaphore": holdersUnknown}
	ids := map[string]string{"semaphore": holdersUnknown, "permits": "A permit's id does not name an owner"}
	return []situation{
		{name: "Go releases, and a message wakes a waiter in Java", core: true, alone: true, na: except(), run: goThenJava},
		{name: "Java releases, and a message wakes a waiter in Go", core: true, alone: true, na: except(), run: javaThenGo},
		{
			name: "4 goroutines and 4 Java threads increment a counter and lose no update",
			core: true, alone: true, na: except(map[string]string{"read": readersCountNothing}),
			run: counter,
		},
		{
			name: "a waiter in Java times out and leaves nothing in Redis",
			core: true, na: except(),
			run: func(c *cell) { timedWait(c, c.counterpart().inGo(), c.inJava("B")) },
		},
		{
			name: "a waiter in Go times out and leaves nothing in Redis",
			core: true, na: except(),
			run: func(c *cell) { timedWait(c, c.counterpart().inJava("A"), c.inGo()) },
		},
		{
			name: "nested holds in Go: Java acquires only after the last release",
			core: true, na: except(semaphores),
			run: func(c *cell) { nested(c, c.inGo(), c.counterpart().inJava("B")) },
		},
		{
			name: "nested holds in Java: Go acquires only after the last unlock",
			core: true, na: except(semaphores),
			run: func(c *cell) { nested(c, c.inJava("A"), c.counterpart().inGo()) },
		},
		{name: "Go's watchdog renews a hold for three TTLs", na: except(plain), run: func(c *cell) {
			outlive(c, c.inGo(primitives.WithWatchdog(shortTTL)), c.counterpart().inJava("B"), shortTTL)
		}},
		{
			name: "Java's watchdog renews a hold for three TTLs",
			na:   except(plain, map[string]string{"permits": javaNeverRenews}),
			run: func(c *cell) {
				outlive(c, c.withShortJavaTTL().inJava("A"), c.counterpart().inGo(), javaTTL)
			},
		},
		{name: "Go is cut off: its hold is lost before the TTL ends and Java acquires", na: except(plain), run: goCrashes},
		{name: "Java is killed: Go acquires when the TTL ends", na: except(plain), start: javaCrashes},
		{
			name: "Go hands off to a waiter with a short lease, and Java acquires when it ends",
			of:   []string{"lock", "fenced", "write"}, run: shorterLease,
		},
		{name: "Java frees a hold of Go: Go reports the loss", core: true, na: except(unknown), run: freedByJava},
		{name: "Go frees a hold of Java: Java's unlock fails", core: true, na: except(unknown), run: freedByGo},
		{name: "a release with an id that does not hold is refused", core: true, na: except(unknown), run: strangers},
		{name: "Go releases a Java thread's hold by its id", core: true, na: except(unknown), run: releasedByID},
		{name: "Go adopts a Java thread's hold", core: true, na: except(unknown), run: adopted},
		{name: "Go acquires and releases with a Java thread's id (WithOwner)", core: true, na: except(ids), run: asOwner},
	}
}

// shorterLease checks that a hand-off which shortens the TTL tells Java. Nobody releases when it
// ends.
func shorterLease(c *cell) {
	const short = 2 * time.Second
	holder, java := c.inGo(primitives.WithCohort(cellTimeout)), c.inJava("B")
	c.mustEnter(holder)
	handed := make(chan error, 1)
	go func() {
		hold, err := holder.handle.Acquire(c.ctx, primitives.WithLease(short))
		if err == nil {
			hold.Detach()
		}
		handed <- err
	}()
	c.awaitSubscription()
	c.allowSecondTry()
	entered := c.startEntering(java)
	c.awaitTimedWait(java.thread)
	c.mustLeave(holder)
	left := time.Now()
	require.NoError(c, <-handed)
	require.Less(c, c.awaitEntry(entered).Sub(left), short+slack)
	c.mustLeave(java)
}

func goThenJava(c *cell) {
	wakes(c, func(c *cell) (holder, waiter side) { return c.counterpart().inGo(), c.inJava("B") })
}

func javaThenGo(c *cell) {
	wakes(c, func(c *cell) (holder, waiter side) { return c.counterpart().inJava("A"), c.inGo() })
}

// maxMedian bounds the median of several wake-ups. It distinguishes a message from the other ways
// to wake up: Go polls once a second, and Java sleeps for the TTL, 30 s. It does not measure speed:
// a message takes 2 ms, and more than 10 ms on a busy machine. The report contains the times. A
// busy machine gets several attempts.
const (
	maxMedian       = 500 * time.Millisecond
	measureAttempts = 4
	measureRounds   = 9
)

// wakes checks that the waiter is excluded while the holder holds, and that a message wakes it up.
// A waiter for a spin lock gets no message. It polls more often than the bound requires.
func wakes(c *cell, sides func(c *cell) (holder, waiter side)) {
	measure(c, func(r *cell) time.Duration {
		holder, waiter := sides(r)
		return r.wake(holder, waiter)
	})
}

// measure measures several wake-ups and checks that messages caused them.
func measure(c *cell, wake func(r *cell) time.Duration) {
	for attempt := range measureAttempts {
		*c.wakeUps = (*c.wakeUps)[:0]
		for n := range measureRounds {
			*c.wakeUps = append(*c.wakeUps, wake(c.renamed(attempt*measureRounds+n)))
		}
		if c.wakeUps.median() < maxMedian {
			return
		}
		c.Logf("attempt %d: %v", attempt+1, *c.wakeUps)
	}
	require.Less(c, c.wakeUps.median(), maxMedian)
}

// wake returns the time from the holder's release to the waiter's entry.
func (c *cell) wake(holder, waiter side) time.Duration {
	c.mustEnter(holder)
	c.cannotEnter(waiter)
	entering := c.startEntering(waiter)
	waiter.awaitWaiting(c)
	c.staysBlocked(entering, 0)
	freed := time.Now()
	c.mustLeave(holder)
	entered := c.awaitEntry(entering)
	c.mustLeave(waiter)
	return entered.Sub(freed)
}

// counter increments one key by GET and SET. Only the primitive prevents lost updates.
func counter(c *cell) {
	c = c.withShortJavaTTL()
	const workers = 4
	key, times := c.name+":count", c.iterations()
	ctx, cancel := context.WithTimeout(c.T.Context(), 2*time.Minute)
	defer cancel()
	start := time.Now()
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
	c.Logf("%d sections in %v", 2*workers*times, time.Since(start))
}

// workload returns the Java object of the primitive, for counters.
func (c *cell) workload() redisson.Object {
	switch c.primitive {
	case "semaphore", "permits":
		return c.java.Object(c.primitive, c.name)
	}
	return c.rlock().Object
}

// count increments the key under the primitive, in Go.
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

// increment loses updates unless its calls exclude each other.
func increment(ctx context.Context, rdb redis.UniversalClient, key string) error {
	n, err := rdb.Get(ctx, key).Int()
	if err != nil && err != redis.Nil { //nolint:errorlint // go-redis returns it bare
		return err
	}
	return rdb.Set(ctx, key, n+1, 0).Err()
}

// rounding is the time by which Java may be early, because it counts whole milliseconds.
const rounding = 2 * time.Millisecond

func timedWait(c *cell, holder, waiter side) {
	const wait = shortWait
	c.mustEnter(holder)
	start := time.Now()
	ok, err := waiter.try(c.ctx, wait)
	require.NoError(c, err)
	require.False(c, ok)
	require.GreaterOrEqual(c, time.Since(start), wait-rounding)
	require.Less(c, time.Since(start), wait+slack)
	c.mustLeave(holder)
	if c.primitive != "semaphore" && c.primitive != "permits" {
		c.awaitNoKeys()
	}
	c.canEnter(waiter)
}

func nested(c *cell, holder, rival side) {
	c.mustEnter(holder)
	c.mustEnter(holder)
	entering := c.startEntering(rival)
	rival.awaitWaiting(c)
	c.mustLeave(holder)
	c.staysBlocked(entering, 100*time.Millisecond)
	c.mustLeave(holder)
	c.awaitEntry(entering)
	c.mustLeave(rival)
	c.awaitNoKeys()
}

func outlive(c *cell, holder, rival side, ttl time.Duration) {
	c.mustEnter(holder)
	entering := c.startEntering(rival)
	c.staysBlocked(entering, 3*ttl+ttl/4)
	c.mustLeave(holder)
	c.awaitEntry(entering)
	c.mustLeave(rival)
}

// shortTimeouts makes a client soon close a connection without replies.
func shortTimeouts(o *redis.Options) {
	o.ReadTimeout, o.WriteTimeout, o.DialTimeout = 200*time.Millisecond, 200*time.Millisecond, 200*time.Millisecond
}

func goCrashes(c *cell) {
	proxy := c.environment.single.Proxy(c)
	isolated := *c
	isolated.goClient = isolated.client(proxy.Client(c, shortTimeouts))
	holder, rival := isolated.inGo(primitives.WithWatchdog(shortTTL)), c.counterpart().inJava("B")
	c.mustEnter(holder)
	entering := c.startEntering(rival)
	rival.awaitWaiting(c)
	cut := time.Now()
	proxy.BlackHole(true)
	valid := holder.hold().ValidUntil() // final: no further reply can confirm a renewal
	entered := c.awaitEntry(entering)
	require.True(c, valid.Before(entered), "Java entered while Go's hold was valid")
	c.awaitLost(holder.hold(), slack)
	require.Less(c, entered.Sub(cut), shortTTL+slack)
	c.mustLeave(rival)
}

// javaCrashes kills a Java process that holds one object of each kind.
func javaCrashes(t *testing.T, e *environment) func(c *cell) {
	driver := redisson.Start(t, redisson.Options{})
	config := e.config
	config.Watchdog = javaTTL
	java := driver.Client(t, config)
	kinds := []string{"lock", "spin", "fair", "fenced", "read", "write", "multi", "red", "permits"}
	entering := map[string]<-chan entry{}
	rivals := map[string]side{}
	for _, kind := range kinds {
		c := newCell(t, e, kind)
		c.java = java
		holder := c.inJava("A")
		holder.lease = 2 * javaTTL
		c.mustEnter(holder)
		rivals[kind] = c.counterpart().inGo()
		entering[kind] = c.startEntering(rivals[kind])
	}
	time.Sleep(javaTTL) // locks that are still held afterwards were renewed
	for _, kind := range kinds {
		require.Empty(t, entering[kind], "%s: Go entered while Java held it", kind)
	}
	killed := time.Now()
	require.NoError(t, driver.Kill())
	return func(c *cell) {
		entered := c.awaitEntry(entering[c.primitive])
		require.Less(c, entered.Sub(killed), 2*javaTTL+slack)
		c.mustLeave(rivals[c.primitive])
	}
}

// forcible returns the Java locks whose forceUnlock ends the hold of the primitive.
func (c *cell) forcible() []redisson.Lock {
	switch c.primitive {
	case "multi":
		return c.memberRLocks(1) // the loss of one member ends the hold
	case "red":
		return c.memberRLocks(2)
	}
	return []redisson.Lock{c.rlock()}
}

func freedByJava(c *cell) {
	holder := c.inGo(primitives.WithWatchdog(shortTTL))
	c.mustEnter(holder)
	hold := holder.hold()
	if c.primitive == "permits" {
		require.NoError(c, c.java.Permits(c.name).Release(c.ctx, hold.ID()))
	} else {
		for _, lock := range c.forcible() {
			require.NoError(c, is(true)(lock.ForceUnlock(c.ctx)))
		}
	}
	c.awaitLost(hold, shortTTL/3+slack)
	require.ErrorIs(c, hold.Release(c.ctx), primitives.ErrLost)
	c.canEnter(c.counterpart().inJava("B"))
}

func freedByGo(c *cell) {
	holder := c.inJava("A")
	c.mustEnter(holder)
	switch c.primitive {
	case "permits":
		require.NoError(c, c.goClient.PermitExpirableSemaphore(c.name).ReleaseID(c.ctx, holder.id))
	case "multi", "red":
		// Redisson's multilock stops unlocking at the first member that it no longer holds, and
		// keeps the members after it, so take the last members away.
		members := c.memberLocks(map[string]int{"multi": 2, "red": 3}[c.primitive])
		for _, member := range members[len(members)-len(c.forcible()):] {
			require.NoError(c, is(true)(member.ForceRelease(c.ctx)))
		}
	default:
		require.NoError(c, is(true)(c.lock().ForceRelease(c.ctx)))
	}
	c.leavesLost(holder)
	c.canEnter(c.counterpart().inGo())
}

// leavesLost releases a Java hold that was taken away and checks that Java throws an exception.
// Redisson's redlock ignores the loss. Its fair lock ignores it if nobody holds the lock.
func (c *cell) leavesLost(holder *javaSide) {
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

// strangers tries to release a held primitive with ids that do not hold it.
func strangers(c *cell) {
	stranger := foreignOwner
	if c.primitive == "permits" {
		stranger = strings.Repeat("0a", 16)
	}
	for _, holder := range []side{c.inGo(), c.inJava("A")} {
		c.mustEnter(holder)
		switch c.primitive {
		case "permits":
			c.throws(c.java.Permits(c.name).Release(c.ctx, stranger), "IllegalArgumentException")
		case "red":
			require.NoError(c, c.inJava("B").leave(c.ctx)) // Redisson ignores it
		default:
			c.throws(c.inJava("B").leave(c.ctx), "IllegalMonitorStateException")
		}
		require.ErrorIs(c, c.byID().ReleaseID(c.ctx, stranger), primitives.ErrNotHeld)
		c.cannotEnter(c.counterpart().inGo())
		c.cannotEnter(c.counterpart().inJava("B"))
		c.mustLeave(holder)
	}
}

// byID returns the Go handle with the methods that take an id.
func (c *cell) byID() interface {
	ReleaseID(ctx context.Context, id string) error
	Adopt(ctx context.Context, id string, opts ...primitives.Option) (*primitives.Hold, error)
} {
	if c.primitive == "permits" {
		return c.goClient.PermitExpirableSemaphore(c.name)
	}
	return c.lock()
}

// idOf returns the id of the hold of a Java thread.
func (c *cell) idOf(holder *javaSide) string {
	if c.primitive == "permits" {
		return holder.id
	}
	return holder.owner(c)
}

func releasedByID(c *cell) {
	holder, rival := c.inJava("A"), c.counterpart().inGo()
	c.mustEnter(holder)
	entering := c.startEntering(rival)
	require.NoError(c, c.byID().ReleaseID(c.ctx, c.idOf(holder)))
	c.awaitEntry(entering)
	c.leavesLost(holder)
	c.mustLeave(rival)
}

func adopted(c *cell) {
	holder, rival := c.inJava("A"), c.counterpart().inJava("B")
	c.mustEnter(holder)
	hold, err := c.byID().Adopt(c.ctx, c.idOf(holder))
	require.NoError(c, err)
	c.leavesLost(holder)
	c.cannotEnter(rival)
	require.NoError(c, hold.Check(c.ctx))
	entering := c.startEntering(rival)
	rival.awaitWaiting(c)
	require.NoError(c, hold.Release(c.ctx))
	c.awaitEntry(entering)
	c.mustLeave(rival)
}

// asOwner uses the same owner id in a goroutine and in a Java thread.
func asOwner(c *cell) {
	java, rival := c.inJava("A"), c.counterpart().inJava("B")
	same := c.inGo(primitives.WithOwner(java.owner(c)))
	for _, order := range [][2]side{{java, same}, {same, java}} {
		for _, leaving := range [][2]side{{java, same}, {same, java}} {
			c.mustEnter(order[0])
			c.mustEnter(order[1])
			c.cannotEnter(rival)
			c.mustLeave(leaving[0])
			c.cannotEnter(rival)
			c.mustLeave(leaving[1])
			c.canEnter(rival)
		}
	}
	c.awaitNoKeys()
}
