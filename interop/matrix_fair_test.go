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
	alternating := func(t int) bool { return t%2 == 0 }
	served := func(name string, core bool, n int, goFirst bool, section time.Duration, isJava func(int) bool) situation {
		return situation{name: name, core: core, of: fair, run: func(c *cell) {
			var first side = c.inJava("first")
			if goFirst {
				first = c.inGo()
			}
			firstCome(c, first, n, section, isJava)
		}}
	}
	shuffled := rand.New(rand.NewPCG(1, 2))
	return []situation{
		served("20 waiters by turns, first come, first served: Java first, sections of no time", true, waiters, false, 0, alternating),
		served("the same, Go first", false, waiters, true, 0, func(i int) bool { return i%2 == 1 }),
		served("the same, Java first, slow sections", false, waiters, false, 150*time.Millisecond, alternating),
		served("the same, Go first, slow sections", false, waiters, true, 150*time.Millisecond, func(i int) bool { return i%2 == 1 }),
		served("the same, in any mixture", false, waiters, true, 30*time.Millisecond, func(int) bool { return shuffled.IntN(2) == 0 }),
		{name: "waiters that give up leave the others their turns", of: fair, run: givingUp},
		{name: "a waiter in Go that died is passed over", of: fair, run: deadGoWaiter},
		{name: "a waiter in Java that died is passed over", of: fair, start: deadJavaWaiter},
		{name: "who only tries does not overtake those that wait", of: fair, run: noOvertaking},
	}
}

// queue is a row of waiters on one fair lock that enter, stay for a section and leave.
type queue struct {
	c       *cell
	section time.Duration
	wg      sync.WaitGroup

	mu    sync.Mutex
	order []string // in which they entered
	errs  []error
}

// join has a side wait, behind those that do already.
func (q *queue) join(name string, s side) {
	q.c.Helper()
	before := q.c.queued()
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
	q.c.eventually(name+" to be queued", func() bool { return q.c.queued() == before+1 })
}

// served waits for all to have had their turn, and sees the order.
func (q *queue) served(want []string) {
	q.c.Helper()
	q.wg.Wait()
	require.Empty(q.c, q.errs)
	require.Equal(q.c, want, q.order)
	q.c.clean()
}

// queued is how many stand in a fair lock's queue.
func (c *cell) queued() int64 {
	c.Helper()
	n, err := c.rdb.LLen(c.ctx, "redisson_lock_queue:{"+c.name+"}").Result()
	require.NoError(c, err)
	return n
}

func firstCome(c *cell, first side, n int, section time.Duration, isJava func(int) bool) {
	q := &queue{c: c, section: section}
	c.in(first)
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
	c.leaves(first)
	q.served(want)
}

// giver waits only so long.
type giver struct{ side }

func (g giver) gone(c *cell, wait time.Duration) <-chan entry {
	done := make(chan entry, 1)
	go func() {
		_, err := g.try(c.ctx, wait)
		done <- entry{err, time.Now()}
	}()
	return done
}

func givingUp(c *cell) {
	first := c.inJava("first")
	c.in(first)
	q := &queue{c: c}
	q.join("j1", c.inJava("j1"))
	leavers := []<-chan entry{}
	for i, s := range []side{c.inGo(), c.inJava("leaver"), c.inGo()} {
		leavers = append(leavers, giver{s}.gone(c, 3*time.Second)) // they all queue up before the first gives up
		c.eventually("a leaver to be queued", func() bool { return c.queued() == int64(2+i) })
	}
	q.join("g1", c.inGo())
	q.join("j2", c.inJava("j2"))
	q.join("g2", c.inGo())
	for _, leaver := range leavers {
		c.enters(leaver) // it has left
	}
	require.Equal(c, int64(4), c.queued())
	c.leaves(first)
	q.served([]string{"j1", "g1", "j2", "g2"})
}

func deadGoWaiter(c *cell) {
	first := c.inJava("first")
	c.in(first)
	proxy := c.world.single.Proxy(c)
	apart := *c
	apart.gopher = apart.client(proxy.Client(c, hasty))
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	apart.ctx = ctx
	dying := apart.begin(apart.inGo(primitives.WithWaiterTimeout(shortTTL)))
	c.eventually("the first to be queued", func() bool { return c.queued() == 1 })
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
	c.leaves(first)
	q.served([]string{"j1", "g1", "j2"})
	require.Less(c, time.Since(freed), shortTTL+late)
	cancel()
	<-dying
}

func deadJavaWaiter(t *testing.T, w *world) func(c *cell) {
	config := w.config
	config.FairWait = shortTTL
	driver := redisson.Start(t, redisson.Options{})
	java := driver.Client(t, config)
	return func(c *cell) {
		first := c.inGo(primitives.WithWatchdog(shortTTL)) // Redisson gives a waiter the TTL that it meets, and its own wait
		c.in(first)
		apart := *c
		apart.java = java
		dying := apart.begin(apart.inJava("dying"))
		c.eventually("the first to be queued", func() bool { return c.queued() == 1 })
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
		c.leaves(first)
		q.served([]string{"g1", "j1", "g2"})
	}
}

func noOvertaking(c *cell) {
	first := c.inGo()
	c.in(first)
	q := &queue{c: c, section: 50 * time.Millisecond}
	names := []string{"j1", "g1", "j2", "g2"}
	for _, name := range names {
		var s side = c.inGo()
		if name[0] == 'j' {
			s = c.inJava(name)
		}
		q.join(name, s)
	}
	c.leaves(first)
	for _, hasty := range slices.Repeat([]side{c.inGo(), c.inJava("hasty")}, 20) {
		if c.queued() == 0 {
			break
		}
		if ok, err := hasty.try(c.ctx, 0); ok {
			require.NoError(c, err)
			require.Zero(c, c.queued(), "%v overtook those that wait", hasty)
			c.leaves(hasty)
		}
	}
	q.served(names)
}
