package locktest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

// loss is a kind of hold that Lose supports, and what waits for it meanwhile.
type loss struct {
	name           string
	holder, waiter func(c *primitives.Client, name string, opts ...primitives.Option) kinds.Handle
	pool           bool
}

func losses() (rows []loss) {
	for _, k := range append(kinds.Leased(), kinds.Joints()...) {
		rows = append(rows, loss{k.Name, k.Open, k.Rival, k.Pool})
	}
	plain := kinds.Of("lock").Open
	return append(rows,
		loss{name: "polling lock", holder: plain, waiter: func(
			c *primitives.Client, name string, _ ...primitives.Option,
		) kinds.Handle {
			return c.Lock(name, primitives.WithPolling(time.Millisecond, 10*time.Millisecond))
		}},
		loss{name: "writer, reader waits", holder: kinds.Of("writer").Open, waiter: kinds.Of("reader").Open},
		loss{name: "multi, a member waits", holder: kinds.Of("multi").Open, waiter: func(
			c *primitives.Client, name string, _ ...primitives.Option,
		) kinds.Handle {
			return plain(c, kinds.Member(name, 0))
		}},
		loss{name: "multi of several kinds", holder: mixed, waiter: mixed},
	)
}

func mixed(c *primitives.Client, name string, _ ...primitives.Option) kinds.Handle {
	return primitives.NewMultiLock([]*primitives.Lock{
		c.Lock(name), c.FairLock(name + " 2"), c.RWLock(name + " 3").Reader(), c.RWLock(name + " 4").Writer(),
	})
}

// The owner learns of the loss and a message wakes up a waiter, for every kind and name. Fake time
// distinguishes a message from a poll: a message takes no time.
func TestLoseOfEveryKindWakesWaiters(t *testing.T) {
	for _, kind := range losses() {
		t.Run(kind.name, func(t *testing.T) {
			for _, name := range []string{"a", "a,b", "{a},{b}", "a{b", "größe, 日本"} {
				t.Run(name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						s := locktest.NewServer(t)
						prefix := primitives.WithPrefix("app,{x}:")
						owner, rival := client(t, s.Client(t), prefix), client(t, s.Client(t), prefix)
						both := primitives.WithPermits(2)
						_, err := owner.PermitExpirableSemaphore(name+" pool").Init(t.Context(), 2)
						require.NoError(t, err)
						object := name
						if kind.pool {
							object = name + " pool"
						}
						hold, err := kind.holder(owner, object).Acquire(t.Context(), both)
						require.NoError(t, err)
						var next *primitives.Hold
						var entered time.Time
						ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
						defer cancel()
						done := make(chan struct{})
						go func() {
							defer close(done)
							next, err = kind.waiter(rival, object).Acquire(ctx, both)
							entered = time.Now()
						}()
						time.Sleep(3333 * time.Millisecond) // between two polls
						synctest.Wait()
						lost := time.Now()
						s.Lose(t, hold)
						<-done
						require.ErrorIs(t, context.Cause(hold.Context()), primitives.ErrLost)
						require.NoError(t, err)
						require.Less(t, entered.Sub(lost), 50*time.Millisecond)
						require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
						require.NoError(t, next.Check(t.Context()), "the release of the lost hold freed the next one")
						require.NoError(t, next.Release(t.Context()))
					})
				})
			}
		})
	}
}

// Waiters of a fair lock get it in queue order.
func TestLoseHandsAFairLockToTheFirstWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		hold, err := client(t, s.Client(t)).FairLock("a,b").Acquire(t.Context())
		require.NoError(t, err)
		entered := make(chan int, 3)
		for i := range 3 {
			waiter := client(t, s.Client(t)).FairLock("a,b")
			go func() {
				_ = waiter.Do(t.Context(), func(context.Context) error { entered <- i; return nil })
			}()
			synctest.Wait() // the waiter is in the queue
		}
		time.Sleep(1500 * time.Millisecond)
		lost := time.Now()
		s.Lose(t, hold)
		for want := range 3 {
			require.Equal(t, want, <-entered)
		}
		require.Less(t, time.Since(lost), 50*time.Millisecond)
	})
}

// The id of an owner may look like the id of a permit.
func TestLoseWithAnyOwnerID(t *testing.T) {
	s := locktest.NewServer(t)
	for _, id := range []string{"dead", "00112233445566778899aabbccddeeff", "a,b"} {
		hold := acquire(t, client(t, s.Client(t)).Lock("a"), primitives.WithOwner(id))
		s.Lose(t, hold)
		require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
	}
}

// The other readers keep the lock, so a writer does not get it.
func TestLoseLeavesOtherReaders(t *testing.T) {
	s := locktest.NewServer(t)
	rw := client(t, s.Client(t)).RWLock("a,b")
	first, second := acquire(t, rw.Reader()), acquire(t, client(t, s.Client(t)).RWLock("a,b").Reader())
	s.Lose(t, first)
	require.NoError(t, second.Check(t.Context()))
	_, err := rw.Writer().TryAcquire(t.Context())
	require.ErrorIs(t, err, primitives.ErrNotAcquired)
	s.Lose(t, second)
	require.NoError(t, acquire(t, rw.Writer()).Release(t.Context()))
}

func TestLoseLeavesOtherPermits(t *testing.T) {
	s := locktest.NewServer(t)
	pool := client(t, s.Client(t)).PermitExpirableSemaphore("a,b")
	_, err := pool.Init(t.Context(), 3)
	require.NoError(t, err)
	var holds []*primitives.Hold
	for range 2 {
		hold, err := pool.Acquire(t.Context())
		require.NoError(t, err)
		holds = append(holds, hold)
	}
	s.Lose(t, holds[0])
	require.NoError(t, holds[1].Check(t.Context()))
	info, err := pool.Info(t.Context())
	require.NoError(t, err)
	require.Equal(t, []int{3, 2}, []int{info.Permits, info.Available})
}

// A reader nested in a writer has the writer's id, but is a hold of its own.
func TestLoseOfANestedReaderLeavesTheWriter(t *testing.T) {
	s := locktest.NewServer(t)
	rw := client(t, s.Client(t)).RWLock("a")
	outer := acquire(t, rw.Writer())
	nested := func() *primitives.Hold {
		inner, err := rw.Reader().Acquire(outer.Context())
		require.NoError(t, err)
		require.Equal(t, outer.ID(), inner.ID())
		return inner
	}
	s.Lose(t, nested())
	require.NoError(t, outer.Check(t.Context()))
	inner := nested()
	s.Lose(t, outer)
	require.ErrorIs(t, inner.Check(t.Context()), primitives.ErrLost)
}

// Lose ends only the given hold, although the owner has other holds with similar names. The name of
// a joint hold is the comma-joined list of its members, which may also be the name of a plain lock.
func TestLoseDistinguishesSimilarNames(t *testing.T) {
	s := locktest.NewServer(t)
	c := client(t, s.Client(t))
	prefixed := func() *primitives.Client { return client(t, s.Client(t), primitives.WithPrefix("p:")) }
	names := map[string]*primitives.Lock{
		"a": c.Lock("a"), "b,a": c.Lock("b,a"), "x,y": c.Lock("x,y"), "y": c.Lock("y"), "z,y": c.Lock("z,y"),
	}
	names["multi"] = primitives.NewMultiLock([]*primitives.Lock{c.Lock("u"), c.Lock("v,a")}) // named "u,v,a"
	names["v,a"] = c.Lock("w,v,a")
	names["joint"] = primitives.NewRedLock([]*primitives.Lock{prefixed().Lock("x"), prefixed().Lock("y")}) // "x,y" too
	for lose := range names {
		owner := primitives.WithOwner("owner of " + lose)
		holds := map[string]*primitives.Hold{}
		for name, lock := range names {
			holds[name] = acquire(t, lock, owner)
		}
		require.Equal(t, holds["x,y"].Name(), holds["joint"].Name())
		s.Lose(t, holds[lose])
		for name, hold := range holds {
			if name == lose {
				require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost, name)
				continue
			}
			require.NoError(t, hold.Check(t.Context()), "%q was lost with %q", name, lose)
			require.NoError(t, hold.Release(t.Context()), name)
		}
	}
}

// Lose fails for a hold on another server, and for a hold whose key no longer exists.
func TestLoseOfAHoldWithoutAKeyFails(t *testing.T) {
	s, another := locktest.NewServer(t), locktest.NewServer(t)
	onAnother := acquire(t, client(t, another.Client(t)).Lock("a"))
	deleted := acquire(t, client(t, s.Client(t)).Lock("b"))
	require.NoError(t, s.Client(t).Del(t.Context(), "b").Err())
	for _, hold := range []*primitives.Hold{onAnother, deleted} {
		r := &recorder{TB: t}
		r.run(func() { s.Lose(r, hold) })
		require.Contains(t, r.message, "holds nothing")
	}
	require.NoError(t, onAnother.Release(t.Context()))
}
