package interop_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/interop/redisson"
	"github.com/redlatch/redlatch/primitives"
)

func rwSituations() []situation {
	read, write, both := []string{"read"}, []string{"write"}, []string{"read", "write"}
	return []situation{
		{name: "the last reader in Go wakes a writer in Java", core: true, alone: true, of: write, run: func(c *cell) {
			wakes(c, func(c *cell) (holder, waiter side) { return c.as("read").inGo(), c.inJava("B") })
		}},
		{name: "the last reader in Java wakes a writer in Go", core: true, alone: true, of: write, run: func(c *cell) {
			wakes(c, func(c *cell) (holder, waiter side) { return c.as("read").inJava("A"), c.inGo() })
		}},
		{
			name: "readers and writers on both sides: a writer is always alone, and all finish",
			core: true, alone: true, of: write,
			run: mixedCounter,
		},
		{name: "readers share, writers exclude: all pairs of Go and Java", core: true, of: both, run: allPairs},
		{
			name: "readers with different TTLs: the lock lasts until the last one ends",
			core: true, of: read,
			run: mixedTTLs,
		},
		{name: "a reader releases, and readers on the other side keep the lock", core: true, of: read, run: readersStay},
		{name: "a dead reader blocks writers only until its own TTL ends", of: read, run: deadReader},
		{name: "Go downgrades from writer to reader: readers in Java acquire", core: true, of: both, run: downgradeInGo},
		{name: "Java downgrades from writer to reader: readers in Go acquire", core: true, of: both, run: downgradeInJava},
		{name: "a reader cannot upgrade to writer", core: true, of: both, run: noUpgrade},
	}
}

// as returns the cell of another primitive with the same name.
func (c *cell) as(primitive string) *cell {
	other := *c
	other.primitive = primitive
	return &other
}

// allPairs checks each kind of rival against each kind of holder.
func allPairs(c *cell) {
	read, write := c.as("read"), c.as("write")
	kinds := []struct {
		name   string
		reads  bool
		holder func() side
		rival  func() side
	}{
		{"reader in Go", true, func() side { return read.inGo() }, func() side { return read.inGo() }},
		{"reader in Java", true, func() side { return read.inJava("A") }, func() side { return read.inJava("B") }},
		{"writer in Go", false, func() side { return write.inGo() }, func() side { return write.inGo() }},
		{"writer in Java", false, func() side { return write.inJava("A") }, func() side { return write.inJava("B") }},
	}
	for _, holder := range kinds {
		for _, rival := range kinds {
			if c.primitive == "read" != rival.reads {
				continue // tested in the other column
			}
			h := holder.holder()
			c.mustEnter(h)
			ok, err := rival.rival().try(c.ctx, 0)
			require.NoError(c, err)
			require.Equal(c, holder.reads && rival.reads, ok, "rival: %s, holder: %s", rival.name, holder.name)
			c.mustLeave(h)
			if ok {
				require.NoError(c, is(true)(c.as("read").lock().ForceRelease(c.ctx)))
			}
			c.awaitFree()
		}
	}
}

// awaitFree waits until nobody holds the lock.
func (c *cell) awaitFree() {
	c.Helper()
	c.eventually("the lock to be free", func() bool { return c.rdb.Exists(c.ctx, c.name).Val() == 0 })
}

// ttl returns the TTL of the key.
func (c *cell) ttl() time.Duration {
	c.Helper()
	ttl, err := c.rdb.PTTL(c.ctx, c.name).Result()
	require.NoError(c, err)
	return ttl
}

// lasts checks the remaining TTL of the lock.
func (c *cell) lasts(want time.Duration) {
	c.Helper()
	ttl := c.ttl()
	require.Greater(c, ttl, want-slice)
	require.LessOrEqual(c, ttl, want)
}

func mixedTTLs(c *cell) {
	const short, long = 20 * time.Second, 60 * time.Second
	for _, longest := range []string{"Go", "Java"} {
		c := c.renamed(len(longest))
		ttls := map[string]time.Duration{"Go": short, "Java": short}
		ttls[longest] = long
		inJava := c.rlock().On(c.name)
		for _, order := range []string{"Go leaves first", "Java leaves first"} {
			hold, err := c.lock().Acquire(c.ctx, primitives.WithLease(ttls["Go"]))
			require.NoError(c, err)
			require.NoError(c, inJava.LockFor(c.ctx, ttls["Java"]))
			c.lasts(long)
			if order == "Go leaves first" {
				require.NoError(c, hold.Release(c.ctx))
				c.lasts(ttls["Java"])
				c.cannotEnter(c.as("write").inGo())
				require.NoError(c, inJava.Unlock(c.ctx))
			} else {
				require.NoError(c, inJava.Unlock(c.ctx))
				c.lasts(ttls["Go"])
				c.cannotEnter(c.as("write").inJava("B"))
				require.NoError(c, hold.Release(c.ctx))
			}
			c.canEnter(c.as("write").inJava("B"))
		}
	}
	c.awaitNoKeys()
}

func readersStay(c *cell) {
	inGo, inJava := c.inGo(), c.inJava("A")
	again := [][]side{{inGo, inJava}, {inJava, inGo}}
	for _, leaving := range again {
		c.mustEnter(inGo)
		c.mustEnter(inGo) // nested
		c.mustEnter(inJava)
		c.mustEnter(inJava)
		for _, rival := range []side{c.as("write").inJava("B"), c.as("write").inGo()} {
			c.cannotEnter(rival)
		}
		c.mustLeave(leaving[0])
		c.mustLeave(leaving[1])
		c.mustLeave(leaving[0]) // its last hold
		c.cannotEnter(c.as("write").inGo())
		c.cannotEnter(c.as("write").inJava("B"))
		require.Len(c, must(c.lock().Info(c.ctx))(c.T).Holders, 1)
		entering := c.startEntering(c.as("write").inGo(primitives.WithLease(time.Second)))
		c.staysBlocked(entering, 50*time.Millisecond)
		c.mustLeave(leaving[1])
		c.awaitEntry(entering)
		require.NoError(c, is(true)(c.as("write").lock().ForceRelease(c.ctx)))
	}
	c.awaitNoKeys()
}

// deadReader has a dead reader on one side and a renewed reader on the other. The writer must wait
// for the live reader only.
func deadReader(c *cell) {
	hold, err := c.lock().Acquire(c.ctx, primitives.WithLease(shortTTL))
	require.NoError(c, err)
	hold.Detach() // simulates a dead reader: neither renewed nor released
	inJava := c.inJava("A")
	c.mustEnter(inJava)
	entering := c.startEntering(c.as("write").inGo(primitives.WithLease(lease)))
	c.staysBlocked(entering, 2*shortTTL)
	c.mustLeave(inJava)
	c.awaitEntry(entering)
	require.NoError(c, is(true)(c.as("write").lock().ForceRelease(c.ctx)))

	require.NoError(c, c.rlock().On(c.name).LockFor(c.ctx, shortTTL)) // never unlocked
	inGo := c.inGo(primitives.WithWatchdog(shortTTL))
	c.mustEnter(inGo)
	last := c.as("write").inJava("B")
	entering = c.startEntering(last)
	c.staysBlocked(entering, 2*shortTTL)
	c.mustLeave(inGo)
	c.awaitEntry(entering)
	c.mustLeave(last)
}

func downgradeInGo(c *cell) {
	rw := c.goClient.RWLock(c.name)
	writer, err := rw.Writer().Acquire(c.ctx)
	require.NoError(c, err)
	reader, err := rw.Reader().Acquire(context.WithoutCancel(writer.Context()))
	require.NoError(c, err)
	waiting := c.as("read").inJava("B")
	entering := c.startEntering(waiting)
	waiting.awaitWaiting(c)
	require.NoError(c, writer.Release(c.ctx))
	c.awaitEntry(entering)
	c.cannotEnter(c.as("write").inJava("C"))
	c.mustLeave(waiting)
	c.cannotEnter(c.as("write").inJava("C"))
	require.NoError(c, reader.Check(c.ctx))
	require.NoError(c, reader.Release(c.ctx))
	c.canEnter(c.as("write").inJava("C"))
	c.awaitNoKeys()
}

// downgradeInJava downgrades in Java. Redisson publishes no message then, so Go finds out by its
// poll.
func downgradeInJava(c *cell) {
	writer, reader := c.as("write").inJava("A"), c.as("read").inJava("A")
	c.mustEnter(writer)
	c.mustEnter(reader)
	waiting := c.as("read").inGo()
	entering := c.startEntering(waiting)
	waiting.awaitWaiting(c)
	c.staysBlocked(entering, 50*time.Millisecond)
	c.mustLeave(writer)
	c.awaitEntry(entering)
	c.cannotEnter(c.as("write").inGo())
	c.mustLeave(waiting)
	c.cannotEnter(c.as("write").inGo())
	c.mustLeave(reader)
	c.canEnter(c.as("write").inGo())
	c.awaitNoKeys()
}

func noUpgrade(c *cell) {
	rw := c.goClient.RWLock(c.name)
	hold, err := rw.Reader().Acquire(c.ctx)
	require.NoError(c, err)
	_, err = rw.Writer().Acquire(hold.Context())
	require.ErrorIs(c, err, primitives.ErrDeadlock)
	require.NoError(c, hold.Release(c.ctx))

	java := c.as("read").inJava("A")
	c.mustEnter(java)
	c.cannotEnter(c.as("write").inJava("A"))
	_, err = rw.Writer().TryAcquire(c.ctx, primitives.WithOwner(java.owner(c)))
	require.ErrorIs(c, err, primitives.ErrDeadlock)
	c.mustLeave(java)
	c.awaitNoKeys()
}

// mixedCounter runs two writers that count and two readers that check, on each side.
func mixedCounter(c *cell) {
	c = c.withShortJavaTTL()
	ctx, cancel := context.WithTimeout(c.T.Context(), 2*time.Minute)
	defer cancel()
	key, times := c.name+":count", c.iterations()
	work := redisson.Workload{Iterations: times, Threads: 2, Key: key}
	var wg sync.WaitGroup
	errs := make(chan error, 6)
	wg.Go(func() {
		_, err := c.java.Object("write", c.name).Counter(ctx, work)
		errs <- err
	})
	wg.Go(func() {
		_, err := c.java.Object("read", c.name).Bench(ctx, work)
		errs <- err
	})
	for range 2 {
		wg.Go(func() { errs <- c.as("write").count(ctx, key, times) })
		wg.Go(func() { errs <- c.as("read").watch(ctx, key, times) })
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		require.NoError(c, err)
	}
	require.Equal(c, 4*times, must(c.rdb.Get(ctx, key).Int())(c.T))
}

// watch checks that nobody writes while a reader holds the lock.
func (c *cell) watch(ctx context.Context, key string, times int) error {
	s := c.inGo()
	for range times {
		if err := s.enter(ctx); err != nil {
			return err
		}
		first := c.rdb.Get(ctx, key).Val()
		if second := c.rdb.Get(ctx, key).Val(); first != second {
			return fmt.Errorf("a writer entered while a reader held the lock: %s, then %s", first, second)
		}
		if err := s.leave(ctx); err != nil {
			return err
		}
	}
	return nil
}
