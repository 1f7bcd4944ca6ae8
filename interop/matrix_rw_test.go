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
		{name: "the last reader in Go wakes the writer in Java", core: true, alone: true, of: write, run: func(c *cell) {
			wakes(c, func(c *cell) (holder, waiter side) { return c.as("read").inGo(), c.inJava("B") })
		}},
		{name: "the last reader in Java wakes the writer in Go", core: true, alone: true, of: write, run: func(c *cell) {
			wakes(c, func(c *cell) (holder, waiter side) { return c.as("read").inJava("A"), c.inGo() })
		}},
		{name: "readers and writers of both: nobody beside a writer, all come through", core: true, alone: true, of: write, run: mixedCounter},
		{name: "who may enter beside whom", core: true, of: both, run: besides},
		{name: "readers with other TTLs: the lock lasts as long as the last of them", core: true, of: read, run: mixedTTLs},
		{name: "a reader leaves, those of the other side stay", core: true, of: read, run: readersStay},
		{name: "a reader that dies frees the lock when its own TTL ends", of: read, run: deadReader},
		{name: "Go goes from writing to reading: readers in Java enter", core: true, of: both, run: downgradeInGo},
		{name: "Java goes from writing to reading: readers in Go enter", core: true, of: both, run: downgradeInJava},
		{name: "a reader cannot become a writer", core: true, of: both, run: noUpgrade},
	}
}

// as is the cell for another primitive of the same name.
func (c *cell) as(primitive string) *cell {
	other := *c
	other.primitive = primitive
	return &other
}

// besides is the full table: each kind of holder, each kind of comer.
func besides(c *cell) {
	read, write := c.as("read"), c.as("write")
	kinds := []struct {
		name   string
		reads  bool
		holder func() side
		comer  func() side
	}{
		{"reader in Go", true, func() side { return read.inGo() }, func() side { return read.inGo() }},
		{"reader in Java", true, func() side { return read.inJava("A") }, func() side { return read.inJava("B") }},
		{"writer in Go", false, func() side { return write.inGo() }, func() side { return write.inGo() }},
		{"writer in Java", false, func() side { return write.inJava("A") }, func() side { return write.inJava("B") }},
	}
	for _, holder := range kinds {
		for _, comer := range kinds {
			if c.primitive == "read" != comer.reads {
				continue // the other column's
			}
			h := holder.holder()
			c.in(h)
			ok, err := comer.comer().try(c.ctx, 0)
			require.NoError(c, err)
			require.Equal(c, holder.reads && comer.reads, ok, "%s beside %s", comer.name, holder.name)
			c.leaves(h)
			if ok {
				require.NoError(c, is(true)(c.as("read").lock().ForceRelease(c.ctx)))
			}
			c.gone()
		}
	}
}

// gone waits until nobody holds.
func (c *cell) gone() {
	c.Helper()
	c.eventually("the lock to be free", func() bool { return c.rdb.Exists(c.ctx, c.name).Val() == 0 })
}

// ttl is that of the key.
func (c *cell) ttl() time.Duration {
	c.Helper()
	ttl, err := c.rdb.PTTL(c.ctx, c.name).Result()
	require.NoError(c, err)
	return ttl
}

// lasts sees how long the lock lasts if nobody renews it.
func (c *cell) lasts(want time.Duration) {
	c.Helper()
	ttl := c.ttl()
	require.Greater(c, ttl, want-slice)
	require.LessOrEqual(c, ttl, want)
}

func mixedTTLs(c *cell) {
	const short, long = 20 * time.Second, 60 * time.Second
	for _, longest := range []string{"Go", "Java"} {
		c := c.round(len(longest))
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
				c.cannot(c.as("write").inGo())
				require.NoError(c, inJava.Unlock(c.ctx))
			} else {
				require.NoError(c, inJava.Unlock(c.ctx))
				c.lasts(ttls["Go"])
				c.cannot(c.as("write").inJava("B"))
				require.NoError(c, hold.Release(c.ctx))
			}
			c.can(c.as("write").inJava("B"))
		}
	}
	c.clean()
}

func readersStay(c *cell) {
	inGo, inJava := c.inGo(), c.inJava("A")
	again := [][]side{{inGo, inJava}, {inJava, inGo}}
	for _, leaving := range again {
		c.in(inGo)
		c.in(inGo) // nested
		c.in(inJava)
		c.in(inJava)
		for _, rival := range []side{c.as("write").inJava("B"), c.as("write").inGo()} {
			c.cannot(rival)
		}
		c.leaves(leaving[0])
		c.leaves(leaving[1])
		c.leaves(leaving[0]) // is out
		c.cannot(c.as("write").inGo())
		c.cannot(c.as("write").inJava("B"))
		require.Len(c, must(c.lock().Info(c.ctx))(c.T).Holders, 1)
		entering := c.begin(c.as("write").inGo(primitives.WithLease(time.Second)))
		c.waits(entering, 50*time.Millisecond)
		c.leaves(leaving[1])
		c.enters(entering)
		require.NoError(c, is(true)(c.as("write").lock().ForceRelease(c.ctx)))
	}
	c.clean()
}

// deadReader leaves a reader of each side behind, the other one renewed meanwhile: the writer waits for the live one alone.
func deadReader(c *cell) {
	hold, err := c.lock().Acquire(c.ctx, primitives.WithLease(shortTTL))
	require.NoError(c, err)
	hold.Detach() // as good as dead
	inJava := c.inJava("A")
	c.in(inJava)
	entering := c.begin(c.as("write").inGo(primitives.WithLease(lease)))
	c.waits(entering, 2*shortTTL)
	c.leaves(inJava)
	c.enters(entering)
	require.NoError(c, is(true)(c.as("write").lock().ForceRelease(c.ctx)))

	require.NoError(c, c.rlock().On(c.name).LockFor(c.ctx, shortTTL)) // and never unlocks
	inGo := c.inGo(primitives.WithWatchdog(shortTTL))
	c.in(inGo)
	last := c.as("write").inJava("B")
	entering = c.begin(last)
	c.waits(entering, 2*shortTTL)
	c.leaves(inGo)
	c.enters(entering)
	c.leaves(last)
}

func downgradeInGo(c *cell) {
	rw := c.gopher.RWLock(c.name)
	writer, err := rw.Writer().Acquire(c.ctx)
	require.NoError(c, err)
	reader, err := rw.Reader().Acquire(context.WithoutCancel(writer.Context()))
	require.NoError(c, err)
	waiting := c.as("read").inJava("B")
	entering := c.begin(waiting)
	waiting.await(c)
	require.NoError(c, writer.Release(c.ctx))
	c.enters(entering)
	c.cannot(c.as("write").inJava("C"))
	c.leaves(waiting)
	c.cannot(c.as("write").inJava("C"))
	require.NoError(c, reader.Check(c.ctx))
	require.NoError(c, reader.Release(c.ctx))
	c.can(c.as("write").inJava("C"))
	c.clean()
}

// downgradeInJava: Redisson tells nobody, so Go finds out by its poll.
func downgradeInJava(c *cell) {
	writer, reader := c.as("write").inJava("A"), c.as("read").inJava("A")
	c.in(writer)
	c.in(reader)
	waiting := c.as("read").inGo()
	entering := c.begin(waiting)
	waiting.await(c)
	c.waits(entering, 50*time.Millisecond)
	c.leaves(writer)
	c.enters(entering)
	c.cannot(c.as("write").inGo())
	c.leaves(waiting)
	c.cannot(c.as("write").inGo())
	c.leaves(reader)
	c.can(c.as("write").inGo())
	c.clean()
}

func noUpgrade(c *cell) {
	rw := c.gopher.RWLock(c.name)
	hold, err := rw.Reader().Acquire(c.ctx)
	require.NoError(c, err)
	_, err = rw.Writer().Acquire(hold.Context())
	require.ErrorIs(c, err, primitives.ErrDeadlock)
	require.NoError(c, hold.Release(c.ctx))

	java := c.as("read").inJava("A")
	c.in(java)
	c.cannot(c.as("write").inJava("A"))
	_, err = rw.Writer().TryAcquire(c.ctx, primitives.WithOwner(java.owner(c)))
	require.ErrorIs(c, err, primitives.ErrDeadlock)
	c.leaves(java)
	c.clean()
}

// mixedCounter has writers count and readers watch, 2 of each on each side.
func mixedCounter(c *cell) {
	c = c.brief()
	ctx, cancel := context.WithTimeout(c.T.Context(), 2*time.Minute)
	defer cancel()
	key, times := c.name+":count", c.times()
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

// watch sees that nobody writes while a reader is inside.
func (c *cell) watch(ctx context.Context, key string, times int) error {
	s := c.inGo()
	for range times {
		if err := s.enter(ctx); err != nil {
			return err
		}
		first := c.rdb.Get(ctx, key).Val()
		if second := c.rdb.Get(ctx, key).Val(); first != second {
			return fmt.Errorf("a writer was beside a reader: %s, then %s", first, second)
		}
		if err := s.leave(ctx); err != nil {
			return err
		}
	}
	return nil
}
