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
		{name: "Java holds a member: Go waits for it", core: true, of: multi, run: func(c *cell) { memberHeld(c, c.member(2).inJava("A"), c.inGo()) }},
		{name: "Go holds a member: Java waits for it", core: true, of: multi, run: func(c *cell) { memberHeld(c, c.member(2).inGo(), c.inJava("B")) }},
		{name: "members of several kinds", of: multi, run: severalKinds},
		{name: "rivals that take members in opposite orders all come through", of: multi, run: oppositeOrders},
		{name: "a member that the other side holds does not stop a majority", core: true, of: red, run: majority},
		{name: "two members that the other side holds do", core: true, of: red, run: minority},
	}
}

// member is the cell of one member alone, a plain lock.
func (c *cell) member(n int) *cell {
	one := c.as("lock")
	one.name = c.members(n)[n-1]
	return one
}

func memberHeld(c *cell, holder, waiter side) {
	c.in(holder)
	c.cannot(waiter)
	entering := c.begin(waiter)
	c.waits(entering, 200*time.Millisecond)
	c.leaves(holder)
	c.enters(entering)
	for _, rival := range []side{c.inGo(), c.inJava("C"), c.member(1).inGo(), c.member(2).inJava("C")} {
		c.cannot(rival)
	}
	c.leaves(waiter)
	c.clean()
}

func severalKinds(c *cell) {
	names := c.members(3)
	inGo := &goSide{primitive: "multi", handle: primitives.NewMultiLock([]*primitives.Lock{
		c.gopher.Lock(names[0]), c.gopher.FairLock(names[1]), c.gopher.RWLock(names[2]).Writer(),
	})}
	inJava := &javaSide{primitive: "multi", java: c.java, thread: c.name, lock: c.java.MultiLock(
		c.java.Lock(names[0]), c.java.FairLock(names[1]), c.java.WriteLock(names[2]),
	).On(c.name)}
	for _, order := range [][2]side{{inGo, inJava}, {inJava, inGo}} {
		c.in(order[0])
		c.cannot(order[1])
		entering := c.begin(order[1])
		c.waits(entering, 50*time.Millisecond)
		c.leaves(order[0])
		c.enters(entering)
		c.leaves(order[1])
	}
	c.clean()
}

// oppositeOrders: Go takes members by name; Java is given them the other way round, and lets go of what it has after a while.
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
		c.in(sides.minor)
		c.in(sides.major)
		c.cannot(sides.rival)
		c.leaves(sides.minor)
		c.cannot(sides.rival)
		c.leaves(sides.major)
		c.can(sides.rival)
	}
	c.clean()
}

func minority(c *cell) {
	for _, sides := range []struct{ one, two, red side }{
		{c.member(1).inJava("A"), c.member(3).inJava("A"), c.inGo()},
		{c.member(1).inGo(), c.member(3).inGo(), c.inJava("A")},
		{c.member(1).inGo(), c.member(3).inJava("B"), c.inGo()},
	} {
		c.in(sides.one)
		c.in(sides.two)
		c.cannot(sides.red)
		entering := c.begin(sides.red)
		c.waits(entering, 100*time.Millisecond)
		c.leaves(sides.two)
		c.enters(entering)
		c.leaves(sides.red)
		c.leaves(sides.one)
	}
	c.clean()
}
