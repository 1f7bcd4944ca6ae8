package interop_test

import (
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/primitives"
)

func poolSituations() []situation {
	semaphore, permits, both := []string{"semaphore"}, []string{"permits"}, []string{"semaphore", "permits"}
	return []situation{
		{
			name: "each side sees permits that the other adds, removes, drains, sets or deletes",
			core: true, of: semaphore,
			run: semaphoreArithmetic,
		},
		{name: "a release of several permits wakes several waiters", core: true, of: both, run: severalPermits},
		{name: "a waiter for many permits does not block waiters for few", of: semaphore, run: manyAndFew},
		{name: "both sides report the same permits, ids and leases", core: true, of: permits, run: permitArithmetic},
		{name: "several permits are released by id, all or none", core: true, of: permits, run: permitLists},
		{name: "a lease of Java expires and Go acquires the permit", of: permits, run: func(c *cell) {
			holder := c.inJava("A")
			holder.lease = shortTTL
			expires(c, holder, c.inGo())
		}},
		{
			name: "a lease of Go expires and Java acquires the permit",
			of:   permits,
			run:  func(c *cell) { expires(c, c.inGo(primitives.WithLease(shortTTL)), c.inJava("B")) },
		},
		{name: "Java shortens the lease of a hold of Go: Go reports the loss", of: permits, run: shortenedByJava},
	}
}

func semaphoreArithmetic(c *cell) {
	inGo, inJava := c.goClient.Semaphore(c.name), c.java.Semaphore(c.name).On(c.name)
	left := func(want int) {
		c.Helper()
		require.NoError(c, is(int64(want))(inJava.Available(c.ctx)))
		require.Equal(c, want, must(inGo.Info(c.ctx))(c.T).Available)
	}
	require.NoError(c, is(true)(inGo.Delete(c.ctx)))
	left(0)
	require.NoError(c, is(true)(inGo.Init(c.ctx, 3)))
	require.NoError(c, is(false)(inJava.TrySetPermits(c.ctx, 9)))
	left(3)
	require.NoError(c, inJava.Acquire(c.ctx, 2))
	left(1)
	require.NoError(c, inGo.Add(c.ctx, 5))
	left(6)
	hold, err := inGo.Acquire(c.ctx, primitives.WithPermits(4))
	require.NoError(c, err)
	left(2)
	require.NoError(c, is(false)(inJava.TryAcquire(c.ctx, 3)))
	_, err = inGo.TryAcquire(c.ctx, primitives.WithPermits(3))
	require.ErrorIs(c, err, primitives.ErrNotAcquired)
	require.NoError(c, hold.Release(c.ctx))
	left(6)
	require.NoError(c, inJava.AddPermits(c.ctx, -8))
	left(-2)
	require.NoError(c, inJava.Release(c.ctx, 3))
	left(1)
	require.NoError(c, inGo.Add(c.ctx, -3))
	left(-2)
	require.NoError(c, inJava.AddPermits(c.ctx, 7))
	left(5)
	require.NoError(c, is(5)(inGo.Drain(c.ctx)))
	left(0)
	require.NoError(c, inGo.Add(c.ctx, 4))
	require.NoError(c, is(int64(4))(inJava.DrainPermits(c.ctx)))
	left(0)
	_, err = inJava.Call(c.ctx, "delete")
	require.NoError(c, err)
	require.NoError(c, is(false)(inGo.Delete(c.ctx)))
	require.NoError(c, is(true)(inJava.TrySetPermits(c.ctx, 1)))
	require.NoError(c, is(false)(inGo.Init(c.ctx, 9)))
	left(1)
	hold, err = inGo.Acquire(c.ctx)
	require.NoError(c, err)
	_, err = inJava.Call(c.ctx, "delete")
	require.NoError(c, err)
	require.ErrorIs(c, hold.Release(c.ctx), primitives.ErrLost) // a release does not recreate a deleted pool
	left(0)
}

func severalPermits(c *cell) {
	const n = 3
	for _, from := range []string{"Go", "Java"} {
		c := c.renamed(len(from))
		require.NoError(c, c.rdb.Set(c.ctx, c.name, 0, 0).Err())
		var entering []<-chan entry
		for i := range n {
			var s side = c.inGo()
			if from == "Go" {
				s = c.inJava(strings.Repeat("B", i+1))
			}
			entering = append(entering, c.startEntering(s))
		}
		c.awaitSubscription()
		c.allowSecondTry()
		switch {
		case from == "Go" && c.primitive == "semaphore":
			require.NoError(c, c.goClient.Semaphore(c.name).Add(c.ctx, n))
		case from == "Go":
			require.NoError(c, c.goClient.PermitExpirableSemaphore(c.name).Add(c.ctx, n))
		case c.primitive == "semaphore":
			require.NoError(c, c.java.Semaphore(c.name).Release(c.ctx, n))
		default:
			require.NoError(c, c.java.Permits(c.name).AddPermits(c.ctx, n))
		}
		for _, e := range entering {
			c.awaitEntry(e) // Java does not poll: without the message it would wait forever
		}
	}
}

func manyAndFew(c *cell) {
	inGo, inJava := c.goClient.Semaphore(c.name), c.java.Semaphore(c.name)
	taken, err := inGo.Acquire(c.ctx)
	require.NoError(c, err)
	many := c.startEntering(c.inGo(primitives.WithPermits(3)))
	c.awaitSubscription()
	c.allowSecondTry()
	few := c.startEntering(c.inJava("B"))
	c.allowSecondTry()
	require.NoError(c, taken.Release(c.ctx))
	c.awaitEntry(few)
	c.staysBlocked(many, 50*time.Millisecond)
	require.NoError(c, inJava.Release(c.ctx, 1))
	require.NoError(c, inJava.AddPermits(c.ctx, 2))
	c.awaitEntry(many)
	require.NoError(c, is(int64(0))(inJava.Available(c.ctx)))
}

func permitArithmetic(c *cell) {
	inGo, inJava := c.goClient.PermitExpirableSemaphore(c.name), c.java.Permits(c.name)
	counts := func(free, taken int) {
		c.Helper()
		require.NoError(c, is(int64(free))(inJava.Available(c.ctx)))
		require.NoError(c, is(int64(taken))(inJava.Acquired(c.ctx)))
		require.NoError(c, is(int64(free+taken))(inJava.Total(c.ctx)))
		info := must(inGo.Info(c.ctx))(c.T)
		require.Equal(c, []int{free, free + taken}, []int{info.Available, info.Permits})
		require.Len(c, info.Holders, taken)
	}
	require.NoError(c, is(true)(inGo.Delete(c.ctx)))
	require.NoError(c, is(true)(inJava.TrySetPermits(c.ctx, 2)))
	require.NoError(c, is(false)(inGo.Init(c.ctx, 9)))
	counts(2, 0)
	hold, err := inGo.Acquire(c.ctx, primitives.WithLease(lease))
	require.NoError(c, err)
	require.Regexp(c, "^[0-9a-f]{32}$", hold.ID())
	counts(1, 1)
	left, err := inJava.Lease(c.ctx, hold.ID())
	require.NoError(c, err)
	require.InDelta(c, lease.Milliseconds(), left, float64(slice.Milliseconds()))
	id, err := inJava.Acquire(c.ctx, -1)
	require.NoError(c, err)
	counts(0, 2)
	holders := map[string]time.Duration{}
	for _, holder := range must(inGo.Info(c.ctx))(c.T).Holders {
		holders[holder.ID] = holder.TTL
	}
	require.Equal(c, time.Duration(-1), holders[id])
	require.InDelta(c, lease, holders[hold.ID()], float64(slice))
	require.NoError(c, is(true)(inJava.UpdateLease(c.ctx, id, 2*lease)))
	require.NoError(c, inGo.Resize(c.ctx, 5))
	counts(3, 2)
	require.NoError(c, inJava.SetPermits(c.ctx, 1))
	counts(-1, 2)
	require.NoError(c, inJava.AddPermits(c.ctx, 2))
	require.NoError(c, inGo.Add(c.ctx, 1))
	counts(2, 2)
	require.NoError(c, hold.Extend(c.ctx, 3*lease))
	left, err = inJava.Lease(c.ctx, hold.ID())
	require.NoError(c, err)
	require.InDelta(c, 3*lease.Milliseconds(), left, float64(slice.Milliseconds()))
	require.NoError(c, hold.Release(c.ctx))
	counts(3, 1)
	c.throws(inJava.Release(c.ctx, hold.ID()), "IllegalArgumentException")
	require.NoError(c, inJava.Release(c.ctx, id))
	require.ErrorIs(c, inGo.ReleaseID(c.ctx, id), primitives.ErrNotHeld)
	counts(4, 0)
}

func permitLists(c *cell) {
	inGo, inJava := c.goClient.PermitExpirableSemaphore(c.name), c.java.Permits(c.name)
	require.NoError(c, inGo.Resize(c.ctx, 5))
	ids, err := inJava.AcquireN(c.ctx, 2, lease)
	require.NoError(c, err)
	hold, err := inGo.Acquire(c.ctx, primitives.WithPermits(3))
	require.NoError(c, err)
	own := strings.Split(hold.ID(), ",")
	require.Len(c, own, 3)
	stranger := strings.Repeat("0b", 16)

	require.ErrorIs(c, inGo.ReleaseID(c.ctx, strings.Join([]string{ids[0], stranger}, ",")), primitives.ErrNotHeld)
	c.throws(inJava.ReleaseAll(c.ctx, own[0], stranger), "IllegalArgumentException")
	require.NoError(c, is(int64(0))(inJava.Available(c.ctx)))

	require.NoError(c, inGo.ReleaseID(c.ctx, strings.Join(ids, ",")))
	require.NoError(c, is(int64(2))(inJava.Available(c.ctx)))
	require.NoError(c, inJava.ReleaseAll(c.ctx, own[0], own[1]))
	require.NoError(c, is(int64(4))(inJava.Available(c.ctx)))
	require.ErrorIs(c, hold.Check(c.ctx), primitives.ErrLost) // a hold that has lost one permit is lost
	info := must(inGo.Info(c.ctx))(c.T)
	require.Equal(c, 5, info.Permits)
	require.False(c, slices.ContainsFunc(info.Holders, func(h primitives.Holder) bool { return h.ID != own[2] }))
}

func expires(c *cell, holder, waiter side) {
	c.mustEnter(holder)
	start := time.Now()
	entering := c.startEntering(waiter)
	c.staysBlocked(entering, shortTTL/2)
	require.Less(c, c.awaitEntry(entering).Sub(start), shortTTL+slack)
	c.mustLeave(waiter)
}

func shortenedByJava(c *cell) {
	holder := c.inGo(primitives.WithLease(lease))
	c.mustEnter(holder)
	require.NoError(c, is(true)(c.java.Permits(c.name).UpdateLease(c.ctx, holder.hold().ID(), 50*time.Millisecond)))
	entering := c.startEntering(c.inJava("B"))
	c.awaitEntry(entering)
	require.ErrorIs(c, holder.hold().Check(c.ctx), primitives.ErrLost)
}
