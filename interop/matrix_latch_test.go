package interop_test

import (
	"fmt"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/primitives"
)

func latchSituations() []situation {
	latch := []string{"latch"}
	return []situation{
		{
			name: "Go counts down, and a message wakes a waiter in Java",
			core: true, alone: true, of: latch,
			run: func(c *cell) { wakeLatch(c, true) },
		},
		{
			name: "Java counts down, and a message wakes a waiter in Go",
			core: true, alone: true, of: latch,
			run: func(c *cell) { wakeLatch(c, false) },
		},
		{name: "both sides count down, with several waiters on each side", core: true, of: latch, run: latchMany},
		{
			name: "a latch cannot be set again before it has opened, on either side",
			core: true, of: latch,
			run: latchSet,
		},
		{name: "Java deletes a latch: waiters in Go continue", core: true, of: latch, run: latchDeletedByJava},
		{
			name: "Go deletes a latch: a waiter in Java waits on until the next one opens, as in Redisson",
			of:   latch,
			run:  latchDeletedByGo,
		},
	}
}

func (c *cell) latch() *primitives.CountDownLatch { return c.goClient.CountDownLatch(c.name) }

func wakeLatch(c *cell, goCounts bool) {
	measure(c, func(r *cell) time.Duration { return r.openLatch(goCounts) })
}

func (c *cell) openLatch(goCounts bool) time.Duration {
	inGo, inJava := c.latch(), c.java.Latch(c.name).On(c.name)
	require.NoError(c, is(true)(inGo.Init(c.ctx, 2)))
	wait, count := inGo.Wait, c.java.Latch(c.name).On(c.name+"/counts").CountDown
	if goCounts {
		wait, count = inJava.Await, inGo.CountDown
	}
	opened := make(chan entry, 1)
	go func() {
		err := wait(c.ctx)
		opened <- entry{err, time.Now()}
	}()
	c.awaitSubscription()
	c.allowSecondTry()
	require.NoError(c, count(c.ctx))
	c.staysBlocked(opened, 0)
	last := time.Now()
	require.NoError(c, count(c.ctx))
	return c.awaitEntry(opened).Sub(last)
}

func latchMany(c *cell) {
	const n = 5
	inGo := c.latch()
	require.NoError(c, is(true)(c.java.Latch(c.name).On(c.name).TrySetCount(c.ctx, 2*n)))
	opened := make(chan entry, 2*n)
	for i := range n {
		inJava := c.java.Latch(c.name).On(fmt.Sprintf("%s/%d", c.name, i))
		go func() { opened <- entry{err: inJava.Await(c.ctx)} }()
		go func() { opened <- entry{err: inGo.Wait(c.ctx)} }()
	}
	c.awaitSubscription()
	for i := range n {
		require.NoError(c, inGo.CountDown(c.ctx))
		require.NoError(c, is(int64(2*(n-i)-1))(c.java.Latch(c.name).On(c.name).Count(c.ctx)))
		c.staysBlocked(opened, 0)
		require.NoError(c, c.java.Latch(c.name).On(c.name).CountDown(c.ctx))
		require.NoError(c, is(int64(2*(n-i)-2))(inGo.Count(c.ctx)))
	}
	for range 2 * n {
		c.awaitEntry(opened)
	}
	c.awaitNoKeys()
}

func latchSet(c *cell) {
	inGo, inJava := c.latch(), c.java.Latch(c.name).On(c.name)
	require.NoError(c, inGo.Wait(c.ctx)) // no latch exists yet
	require.NoError(c, inJava.Await(c.ctx))
	require.NoError(c, is(true)(inGo.Init(c.ctx, 1)))
	require.NoError(c, is(false)(inJava.TrySetCount(c.ctx, 5)))
	require.NoError(c, is(false)(inJava.AwaitFor(c.ctx, shortWait)))
	require.NoError(c, inJava.CountDown(c.ctx))
	require.NoError(c, inGo.CountDown(c.ctx)) // the latch is gone, so this does nothing
	require.NoError(c, is(true)(inJava.TrySetCount(c.ctx, 1)))
	require.NoError(c, is(false)(inGo.Init(c.ctx, 5)))
	require.NoError(c, is(int64(1))(inGo.Count(c.ctx)))
	require.NoError(c, inGo.CountDown(c.ctx))
	require.NoError(c, inJava.Await(c.ctx))
	c.awaitNoKeys()
}

func latchDeletedByJava(c *cell) {
	inGo := c.latch()
	require.NoError(c, is(true)(inGo.Init(c.ctx, 3)))
	opened := make(chan entry, 1)
	go func() {
		err := inGo.Wait(c.ctx)
		opened <- entry{err, time.Now()}
	}()
	c.awaitSubscription()
	c.allowSecondTry()
	deleted := time.Now()
	require.NoError(c, is(true)(c.java.Latch(c.name).On(c.name).Delete(c.ctx)))
	require.Less(c, c.awaitEntry(opened).Sub(deleted), soon)
}

// count returns how often the given command was seen, ignoring case.
func (m *monitor) count(words ...string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for _, args := range m.lines {
		if strings.EqualFold(strings.Join(args, " "), strings.Join(words, " ")) {
			n++
		}
	}
	return n
}

func latchDeletedByGo(c *cell) {
	inGo, inJava := c.latch(), c.java.Latch(c.name).On(c.name)
	require.NoError(c, is(true)(inGo.Init(c.ctx, 3)))
	commands := startMonitor(c.T, c.environment.single.Addr())
	opened := make(chan entry, 1)
	go func() {
		err := inJava.Await(c.ctx)
		opened <- entry{err, time.Now()}
	}()
	c.awaitSubscription()
	// Java reads the count before and after it subscribes. After the second read it waits for a
	// message.
	c.eventually("Java to read the count again", func() bool { return commands.count("get", c.name) == 2 })
	require.NoError(c, is(true)(inGo.Delete(c.ctx)))
	c.staysBlocked(opened, 300*time.Millisecond)
	require.NoError(c, is(true)(inGo.Init(c.ctx, 1)))
	c.staysBlocked(opened, 50*time.Millisecond)
	require.NoError(c, inGo.CountDown(c.ctx))
	c.awaitEntry(opened)
}
