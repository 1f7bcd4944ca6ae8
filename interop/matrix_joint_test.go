package interop_test

import (
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/interop/redisson"
	"github.com/redlatch/redlatch/primitives"
)

func jointSituations() []situation {
	multi, red := []string{"multi"}, []string{"red"}
	return []situation{
		{
			name: "Java holds a member: Go waits for it",
			core: true, of: multi,
			run: func(c *cell) { memberHeld(c, c.member(2).inJava("A"), c.inGo()) },
		},
		{
			name: "Go holds a member: Java waits for it",
			core: true, of: multi,
			run: func(c *cell) { memberHeld(c, c.member(2).inGo(), c.inJava("B")) },
		},
		{name: "members of several kinds", of: multi, run: severalKinds},
		{name: "rivals that acquire members in opposite orders do not deadlock", of: multi, run: oppositeOrders},
		{name: "the other side holds one member: a majority is still possible", core: true, of: red, run: majority},
		{name: "the other side holds two members: no majority", core: true, of: red, run: minority},
	}
}

// member returns the cell of one member, a plain lock.
func (c *cell) member(n int) *cell {
	one := c.as("lock")
	one.name = c.members(n)[n-1]
	return one
}

func memberHeld(c *cell, holder, waiter side) {
	c.mustEnter(holder)
	c.cannotEnter(waiter)
	entering := c.startEntering(waiter)
	c.staysBlocked(entering, 200*time.Millisecond)
	c.mustLeave(holder)
	c.awaitEntry(entering)
	for _, rival := range []side{c.inGo(), c.inJava("C"), c.member(1).inGo(), c.member(2).inJava("C")} {
		c.cannotEnter(rival)
	}
	c.mustLeave(waiter)
	c.awaitNoKeys()
}

func severalKinds(c *cell) {
	names := c.members(3)
	inGo := &goSide{primitive: "multi", handle: primitives.NewMultiLock([]*primitives.Lock{
		c.goClient.Lock(names[0]), c.goClient.FairLock(names[1]), c.goClient.RWLock(names[2]).Writer(),
	})}
	inJava := &javaSide{primitive: "multi", java: c.java, thread: c.name, lock: c.java.MultiLock(
		c.java.Lock(names[0]), c.java.FairLock(names[1]), c.java.WriteLock(names[2]),
	).On(c.name)}
	for _, order := range [][2]side{{inGo, inJava}, {inJava, inGo}} {
		c.mustEnter(order[0])
		c.cannotEnter(order[1])
		entering := c.startEntering(order[1])
		c.staysBlocked(entering, 50*time.Millisecond)
		c.mustLeave(order[0])
		c.awaitEntry(entering)
		c.mustLeave(order[1])
	}
	c.awaitNoKeys()
}

// oppositeOrders contends for the members in opposite orders. Go acquires them sorted by name. Java
// acquires them in reverse order, and releases its part after a time.
func oppositeOrders(c *cell) {
	const times = 5
	members := c.memberRLocks(2)
	backwards := c.java.MultiLock(members[1], members[0])
	key := c.name + "-count"
	var wg sync.WaitGroup
	errs := make(chan error, 2)
	wg.Go(func() {
		_, err := backwards.Counter(c.ctx, redisson.Workload{Iterations: times, Threads: 1, Key: key})
		errs <- err
	})
	wg.Go(func() { errs <- c.count(c.ctx, key, times) })
	wg.Wait()
	require.NoError(c, <-errs)
	require.NoError(c, <-errs)
	require.Equal(c, 2*times, must(c.rdb.Get(c.ctx, key).Int())(c.T))
}

func majority(c *cell) {
	for _, sides := range []struct{ minor, major, rival side }{
		{c.member(2).inJava("A"), c.inGo(), c.inJava("B")},
		{c.member(2).inGo(), c.inJava("A"), c.inGo()},
	} {
		c.mustEnter(sides.minor)
		c.mustEnter(sides.major)
		c.cannotEnter(sides.rival)
		c.mustLeave(sides.minor)
		c.cannotEnter(sides.rival)
		c.mustLeave(sides.major)
		c.canEnter(sides.rival)
	}
	c.awaitNoKeys()
}

func minority(c *cell) {
	for _, sides := range []struct{ one, two, red side }{
		{c.member(1).inJava("A"), c.member(3).inJava("A"), c.inGo()},
		{c.member(1).inGo(), c.member(3).inGo(), c.inJava("A")},
		{c.member(1).inGo(), c.member(3).inJava("B"), c.inGo()},
	} {
		c.mustEnter(sides.one)
		c.mustEnter(sides.two)
		c.cannotEnter(sides.red)
		entering := c.startEntering(sides.red)
		c.staysBlocked(entering, 100*time.Millisecond)
		c.mustLeave(sides.two)
		c.awaitEntry(entering)
		c.mustLeave(sides.red)
		c.mustLeave(sides.one)
	}
	c.awaitNoKeys()
}
