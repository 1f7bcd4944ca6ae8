package interop_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/interop/redisson"
	"github.com/redlatch/redlatch/primitives"
)

func fairSituations() []situation {
	const waiters = 20
	fair := []string{"fair"}
	even := func(i int) bool { return i%2 == 0 }
	odd := func(i int) bool { return i%2 == 1 }
	served := func(name string, core, goFirst bool, section time.Duration, isJava func(int) bool) situation {
		return situation{name: name, core: core, of: fair, run: func(c *cell) {
			var first side = c.inJava("first")
			if goFirst {
				first = c.inGo()
			}
			firstCome(c, first, waiters, section, isJava)
		}}
	}
	shuffled := rand.New(rand.NewPCG(1, 2))
	return []situation{
		served("20 waiters, Java and Go in turn, acquire in order of arrival: Java first, empty sections",
			true, false, 0, even),
		served("order of arrival: Go first, empty sections", false, true, 0, odd),
		served("order of arrival: Java first, slow sections", false, false, 150*time.Millisecond, even),
		served("order of arrival: Go first, slow sections", false, true, 150*time.Millisecond, odd),
		served("order of arrival: Java and Go mixed at random", false, true, 30*time.Millisecond,
			func(int) bool { return shuffled.IntN(2) == 0 }),
		{name: "waiters that time out do not change the order of the others", of: fair, run: givingUp},
		{name: "a dead waiter in Go is skipped", of: fair, run: deadGoWaiter},
		{name: "a dead waiter in Java is skipped", of: fair, start: deadJavaWaiter},
		{name: "an acquisition that does not wait cannot overtake the queue", of: fair, run: noOvertaking},
	}
}

// queue is a list of waiters for one fair lock. Each waiter enters, stays for section and leaves.
type queue struct {
	c       *cell
	section time.Duration
	wg      sync.WaitGroup

	mu    sync.Mutex
	order []string // names of the waiters in the order of entry
	errs  []error
}

// join starts a waiter and blocks until it is at the end of the queue.
func (q *queue) join(name string, s side) {
	q.c.Helper()
	before := q.c.queueLength()
	q.wg.Go(func() {
		err := s.enter(q.c.ctx)
		if err == nil {
			q.mu.Lock()
			q.order = append(q.order, name)
			q.mu.Unlock()
			time.Sleep(q.section)
			err = s.leave(q.c.ctx)
		}
		if err != nil {
			q.mu.Lock()
			q.errs = append(q.errs, err)
			q.mu.Unlock()
		}
	})
	q.c.eventually(name+" to be queued", func() bool { return q.c.queueLength() == before+1 })
}

// served waits until all waiters have left, and checks the order of entry.
func (q *queue) served(want []string) {
	q.c.Helper()
	q.wg.Wait()
	require.Empty(q.c, q.errs)
	require.Equal(q.c, want, q.order)
	q.c.awaitNoKeys()
}

// queueLength returns the length of a fair lock's queue in Redis.
func (c *cell) queueLength() int64 {
	c.Helper()
	n, err := c.rdb.LLen(c.ctx, "redisson_lock_queue:{"+c.name+"}").Result()
	require.NoError(c, err)
	return n
}

// firstCome queues n waiters behind first, and checks that they enter in that order.
func firstCome(c *cell, first side, n int, section time.Duration, isJava func(int) bool) {
	q := &queue{c: c, section: section}
	c.mustEnter(first)
	want := []string{}
	for i := range n {
		name := "g" + string(rune('a'+i))
		var s side = c.inGo()
		if isJava(i) {
			name = "j" + string(rune('a'+i))
			s = c.inJava(name)
		}
		q.join(name, s)
		want = append(want, name)
	}
	c.mustLeave(first)
	q.served(want)
}

// startTrying makes a side wait in the background until wait ends.
func (c *cell) startTrying(s side, wait time.Duration) <-chan entry {
	done := make(chan entry, 1)
	go func() {
		_, err := s.try(c.ctx, wait)
		done <- entry{err, time.Now()}
	}()
	return done
}

func givingUp(c *cell) {
	first := c.inJava("first")
	c.mustEnter(first)
	q := &queue{c: c}
	q.join("j1", c.inJava("j1"))
	leavers := []<-chan entry{}
	for i, s := range []side{c.inGo(), c.inJava("leaver"), c.inGo()} {
		leavers = append(leavers, c.startTrying(s, 3*time.Second)) // all are queued before the first one times out
		c.eventually("a leaver to be queued", func() bool { return c.queueLength() == int64(2+i) })
	}
	q.join("g1", c.inGo())
	q.join("j2", c.inJava("j2"))
	q.join("g2", c.inGo())
	for _, leaver := range leavers {
		c.awaitEntry(leaver) // its wait has ended
	}
	require.Equal(c, int64(4), c.queueLength())
	c.mustLeave(first)
	q.served([]string{"j1", "g1", "j2", "g2"})
}

func deadGoWaiter(c *cell) {
	first := c.inJava("first")
	c.mustEnter(first)
	proxy := c.environment.single.Proxy(c)
	isolated := *c
	isolated.goClient = isolated.client(proxy.Client(c, shortTimeouts))
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	isolated.ctx = ctx
	dying := isolated.startEntering(isolated.inGo(primitives.WithWaiterTimeout(shortTTL)))
	c.eventually("the first to be queued", func() bool { return c.queueLength() == 1 })
	q := &queue{c: c}
	for _, name := range []string{"j1", "g1", "j2"} {
		var s side = c.inGo()
		if name[0] == 'j' {
			s = c.inJava(name)
		}
		q.join(name, s)
	}
	proxy.BlackHole(true)
	time.Sleep(shortTTL)
	freed := time.Now()
	c.mustLeave(first)
	q.served([]string{"j1", "g1", "j2"})
	require.Less(c, time.Since(freed), shortTTL+slack)
	cancel()
	<-dying
}

func deadJavaWaiter(t *testing.T, e *environment) func(c *cell) {
	config := e.config
	config.FairWait = shortTTL
	driver := redisson.Start(t, redisson.Options{})
	java := driver.Client(t, config)
	return func(c *cell) {
		// A Redisson waiter times out after the TTL of the lock plus its own waiter timeout.
		first := c.inGo(primitives.WithWatchdog(shortTTL))
		c.mustEnter(first)
		isolated := *c
		isolated.java = java
		dying := isolated.startEntering(isolated.inJava("dying"))
		c.eventually("the first to be queued", func() bool { return c.queueLength() == 1 })
		q := &queue{c: c}
		for _, name := range []string{"g1", "j1", "g2"} {
			var s side = c.inGo()
			if name[0] == 'j' {
				s = c.inJava(name)
			}
			q.join(name, s)
		}
		require.NoError(c, driver.Kill())
		require.ErrorIs(c, (<-dying).err, redisson.ErrEnded)
		c.mustLeave(first)
		q.served([]string{"g1", "j1", "g2"})
	}
}

func noOvertaking(c *cell) {
	first := c.inGo()
	c.mustEnter(first)
	q := &queue{c: c, section: 50 * time.Millisecond}
	names := []string{"j1", "g1", "j2", "g2"}
	for _, name := range names {
		var s side = c.inGo()
		if name[0] == 'j' {
			s = c.inJava(name)
		}
		q.join(name, s)
	}
	c.mustLeave(first)
	for _, rival := range slices.Repeat([]side{c.inGo(), c.inJava("rival")}, 20) {
		if c.queueLength() == 0 {
			break
		}
		if ok, err := rival.try(c.ctx, 0); ok {
			require.NoError(c, err)
			require.Zero(c, c.queueLength(), "%v overtook the queue", rival)
			c.mustLeave(rival)
		}
	}
	q.served(names)
}
