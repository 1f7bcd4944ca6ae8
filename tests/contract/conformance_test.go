package contract

import (
	"context"
	"math/rand/v2"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// conformKind is one kind of lock that Redisson has.
type conformKind struct {
	kinds.Kind
	opts         []primitives.Option
	nonReentrant bool // a nested acquisition gives ErrDeadlock
	joint        bool // several locks, so that Info and ReleaseID are not supported
}

func (k conformKind) open(c *primitives.Client, key string) *primitives.Lock {
	return k.Lock(c, key, k.opts...)
}

// conformKinds has a row for each kind of lock, and one for each other lock that Redisson has.
func conformKinds() (rows []conformKind) {
	for _, k := range kinds.Locks() {
		rows = append(rows, conformKind{Kind: k})
	}
	spin := conformKind{Kind: kinds.Of("lock")}
	spin.Name, spin.opts = "spin", []primitives.Option{primitives.WithPolling(2*time.Millisecond, 50*time.Millisecond)}
	once := conformKind{Kind: kinds.Of("lock"), nonReentrant: true}
	once.Name, once.opts = "non-reentrant", []primitives.Option{primitives.WithNonReentrant()}
	fairOnce := conformKind{Kind: kinds.Of("fair"), nonReentrant: true}
	fairOnce.Name, fairOnce.opts = "non-reentrant fair", once.opts
	multi := conformKind{Kind: kinds.Of("multi"), joint: true}
	return append(rows, spin, once, fairOnce, multi)
}

// conformCase is the input of one behaviour.
type conformCase struct {
	conformKind
	s         *redistest.Server
	key       string
	l, far    *primitives.Lock   // the same lock on two clients
	excludes  *primitives.Lock   // the lock that l excludes, on the client of far
	farClient *primitives.Client // the client of far
	heard     *fixture.Recorder  // the events of farClient
}

// onKind opens a lock of a kind on two new clients.
func onKind(t *testing.T, s *redistest.Server, kind conformKind) *conformCase {
	s = fixture.LeastRights(t, s)
	x := &conformCase{conformKind: kind, s: s, key: fixture.Permitted + redistest.Name(t) + ".",
		heard: &fixture.Recorder{}}
	x.farClient = fixture.NewClient(t, s.Client(t), x.heard.Option())
	x.l, x.far = kind.open(fixture.NewClient(t, s.Client(t)), x.key), kind.open(x.farClient, x.key)
	x.excludes = x.far
	if kind.Shared {
		x.excludes = kind.Rival(x.farClient, x.key).(*primitives.Lock)
	}
	return x
}

// count returns the hold count of an id, as another client sees it.
func (x *conformCase) count(t *testing.T, id string) int {
	t.Helper()
	info := fixture.InfoOf(t, x.far)
	for _, h := range info.Holders {
		if h.ID == id {
			return h.Count
		}
	}
	return 0
}

// requireHolders checks the number of holders on both clients. It corresponds to Redisson's
// isLocked.
func (x *conformCase) requireHolders(t *testing.T, n int) {
	t.Helper()
	for _, l := range []*primitives.Lock{x.l, x.far} {
		require.Len(t, fixture.InfoOf(t, l).Holders, n)
	}
}

// TestConformanceLocks tests each kind of lock for what Redisson's tests assert of every kind.
func TestConformanceLocks(t *testing.T) {
	t.Parallel()
	behaviours := []struct {
		name string
		test func(t *testing.T, x *conformCase)
		asks bool // asks Redis for the holders of one key
	}{
		{"every client sees the holders", clientsSeeHolders, true},
		{"each acquisition counts", holdCount, true},
		{"HoldFrom finds the hold only in its own context", holdFromContext, false},
		{"Info reports the remaining TTL", remainingTTL, true},
		{"only the holder releases", othersCannotRelease, true},
		{"a handle can be locked again", lockAgain, false},
		{"ForceRelease frees the lock", forceReleaseFrees, true},
		{"the lock of a closed client expires", autoExpires, false},
		{"a wait without cancellation goes on", uninterrupted, false},
		{"a failed try leaves nothing behind", failedTryLeavesNothing, false},
	}
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, kind := range conformKinds() {
			t.Run(kind.Name, func(t *testing.T) {
				t.Parallel()
				for _, b := range behaviours {
					if b.asks && kind.joint {
						continue
					}
					t.Run(b.name, func(t *testing.T) {
						t.Parallel()
						x := onKind(t, s, kind)
						b.test(t, x)
						fixture.RequireClean(t, s, x.key, kind.Stays(x.key)...)
					})
				}
			})
		}
	})
}

// TestConformanceTimes checks in fake time, for each kind of lock, that a wait lasts as long as it
// was asked to, and that a waiter acquires as soon as the lease ends.
func TestConformanceTimes(t *testing.T) {
	t.Parallel()
	const late = 60 * time.Millisecond // a polling lock looks every 50 ms
	for _, kind := range conformKinds() {
		fixture.RunEmbedded(t, kind.Name, func(t *testing.T, s *redistest.Server) {
			near, far := fixture.NewClient(t, s.Client(t)), fixture.NewClient(t, s.Client(t))
			rival := func(opts ...primitives.Option) (*primitives.Hold, error) {
				if kind.Shared {
					return kind.Rival(far, "l").Acquire(t.Context(), opts...)
				}
				return kind.open(far, "l").Acquire(t.Context(), opts...)
			}
			requireTook := func(want time.Duration, began time.Time) {
				t.Helper()
				took := time.Since(began)
				require.GreaterOrEqual(t, took, want)
				require.LessOrEqual(t, took, want+late)
			}

			hold := fixture.Acquire(t, t.Context(), kind.open(near, "l"))
			began := time.Now()
			require.ErrorIs(t, fixture.ErrOf(rival(primitives.WithWait(3*time.Second))), primitives.ErrNotAcquired)
			requireTook(3*time.Second, began)
			fixture.Release(t, hold)

			began = time.Now()
			hold = fixture.Acquire(t, t.Context(), kind.open(near, "l"), primitives.WithLease(2500*time.Millisecond))
			next, err := rival()
			require.NoError(t, err)
			requireTook(2500*time.Millisecond, began) // between two slow polls
			require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
			require.NoError(t, next.Check(t.Context()), "a late release does not end the next hold")
			fixture.Release(t, next)
		})
	}
}

// TestConformanceRenewalAfterARestart checks that a hold that a restarted server has forgotten is
// lost, and that the next holds under that name are renewed: also after a nested hold of the first.
func TestConformanceRenewalAfterARestart(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	c := fixture.NewClient(t, s.Client(t), primitives.WithDefaults(primitives.WithWatchdog(fixture.RenewedTTL)))
	var lost []*primitives.Hold
	for _, kind := range kinds.Locks() {
		outer := fixture.Acquire(t, t.Context(), kind.Lock(c, kind.Name))
		fixture.Release(t, fixture.Acquire(t, outer.Context(), kind.Lock(c, kind.Name)))
		fixture.Release(t, outer)
		lost = append(lost, fixture.Acquire(t, t.Context(), kind.Lock(c, kind.Name)))
	}
	fixture.AwaitRenewal(t, 1, lost...)
	require.NoError(t, s.Kill())
	require.NoError(t, s.Restart())
	for _, hold := range lost {
		fixture.RequireEnds(t, hold.Context(), primitives.ErrLost)
		require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
	}
	for range 2 {
		var holds []*primitives.Hold
		for _, kind := range kinds.Locks() {
			holds = append(holds, fixture.Acquire(t, t.Context(), kind.Lock(c, kind.Name)))
		}
		fixture.AwaitRenewal(t, 2, holds...)
		fixture.Release(t, holds...)
	}
}

func clientsSeeHolders(t *testing.T, x *conformCase) {
	x.requireHolders(t, 0)
	hold := fixture.Acquire(t, t.Context(), x.l)
	x.requireHolders(t, 1)
	fixture.Release(t, hold)
	x.requireHolders(t, 0)
}

func holdCount(t *testing.T, x *conformCase) {
	once := fixture.Acquire(t, t.Context(), x.l)
	require.Equal(t, 1, x.count(t, once.ID()))
	fixture.Release(t, once)
	require.Zero(t, x.count(t, once.ID()))
	outer := fixture.Acquire(t, t.Context(), x.l)
	if x.nonReentrant {
		before := fixture.Leftovers(t, x.s, x.key)
		for _, opts := range [][]primitives.Option{nil, {primitives.WithWait(0)}, {primitives.WithWait(fixture.Soon)}} {
			require.ErrorIs(t, fixture.ErrOf(x.l.Acquire(outer.Context(), opts...)), primitives.ErrDeadlock)
		}
		require.Equal(t, before, fixture.Leftovers(t, x.s, x.key), "the refused calls stand in no queue")
		require.Equal(t, 1, x.count(t, outer.ID()))
		require.NoError(t, outer.Check(t.Context()))
		fixture.Release(t, outer)
		require.Zero(t, x.count(t, outer.ID()))
		return
	}
	inner := fixture.Acquire(t, outer.Context(), x.l)
	require.Equal(t, 2, x.count(t, outer.ID()))
	fixture.Release(t, inner)
	require.Equal(t, 1, x.count(t, outer.ID()))
	require.ErrorIs(t, fixture.ErrOf(x.excludes.TryAcquire(t.Context())), primitives.ErrNotAcquired,
		"the outer hold is left")
	fixture.Release(t, outer)
	require.Zero(t, x.count(t, outer.ID()))
}

func holdFromContext(t *testing.T, x *conformCase) {
	require.Nil(t, x.l.HoldFrom(t.Context()))
	hold := fixture.Acquire(t, t.Context(), x.l)
	require.Same(t, hold, x.l.HoldFrom(hold.Context()))
	require.Nil(t, x.l.HoldFrom(t.Context()), "another goroutine's context")
	require.Nil(t, x.far.HoldFrom(hold.Context()), "another client's lock")
	fixture.Release(t, hold)
	require.Nil(t, x.l.HoldFrom(hold.Context()), "the hold was released")
}

func remainingTTL(t *testing.T, x *conformCase) {
	left := func() time.Duration {
		info := fixture.InfoOf(t, x.far)
		return info.TTL
	}
	began := time.Now()
	hold := fixture.Acquire(t, t.Context(), x.l, primitives.WithLease(time.Hour))
	fixture.RequireLeft(t, left(), time.Hour, began)
	fixture.Release(t, hold)
	require.Zero(t, left())
	began = time.Now()
	hold = fixture.Acquire(t, t.Context(), x.l)
	fixture.RequireLeft(t, left(), 30*time.Second, began) // the default TTL of the watchdog
	fixture.Release(t, hold)
}

func othersCannotRelease(t *testing.T, x *conformCase) {
	hold := fixture.Acquire(t, t.Context(), x.l)
	require.ErrorIs(t, x.far.ReleaseID(t.Context(), x.farClient.ID()+":1"), primitives.ErrNotHeld)
	require.NoError(t, hold.Check(t.Context()))
	require.Equal(t, 1, x.count(t, hold.ID()))
	fixture.Release(t, hold)
}

func lockAgain(t *testing.T, x *conformCase) {
	for range 3 {
		fixture.Release(t, fixture.Acquire(t, t.Context(), x.l))
		require.NoError(t, x.l.Do(t.Context(), func(context.Context) error { return nil }))
	}
}

func forceReleaseFrees(t *testing.T, x *conformCase) {
	hold := fixture.Acquire(t, t.Context(), x.l)
	for _, held := range []bool{true, false} {
		was := fixture.ForceRelease(t, x.far)
		require.Equal(t, held, was)
		x.requireHolders(t, 0)
	}
	require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
}

// autoExpires checks that a lock whose client was closed with the hold is free when its TTL ends.
func autoExpires(t *testing.T, x *conformCase) {
	const ttl = fixture.ShortLease
	gone := fixture.NewClient(t, x.s.Client(t))
	began := time.Now()
	hold := fixture.Acquire(t, t.Context(), x.open(gone, x.key), primitives.WithWatchdog(ttl))
	fixture.CloseNow(gone)
	fixture.RequireEnds(t, hold.Context(), primitives.ErrClosed)
	next := fixture.Acquire(t, t.Context(), x.excludes)
	require.GreaterOrEqual(t, time.Since(began), ttl-50*time.Millisecond)
	require.Less(t, time.Since(began), ttl+fixture.SlowPoll)
	fixture.Release(t, next)
}

// uninterrupted checks that a waiter with context.WithoutCancel waits on after its parent is
// cancelled.
func uninterrupted(t *testing.T, x *conformCase) {
	hold := fixture.Acquire(t, t.Context(), x.l)
	ctx, cancel := context.WithCancel(t.Context())
	waiting := fixture.StartAcquire(context.WithoutCancel(ctx), x.excludes)
	x.heard.Await(t, primitives.EventWait)
	cancel()
	fixture.Release(t, hold)
	acquired := fixture.AwaitHold(t, waiting)
	fixture.RequireLive(t, acquired.Context())
	fixture.Release(t, acquired)
}

// failedTryLeavesNothing checks that a failed acquisition does not block later ones, in particular
// as a queue entry of a fair lock.
func failedTryLeavesNothing(t *testing.T, x *conformCase) {
	hold := fixture.Acquire(t, t.Context(), x.l)
	before := fixture.Leftovers(t, x.s, x.key)
	for _, wait := range []time.Duration{0, 30 * time.Millisecond} {
		began := time.Now()
		require.ErrorIs(t, fixture.ErrOf(x.excludes.Acquire(t.Context(), primitives.WithWait(wait))),
			primitives.ErrNotAcquired)
		require.GreaterOrEqual(t, time.Since(began), wait)
	}
	// The rollback may go on in the background for a moment.
	fixture.RequireClean(t, x.s, x.key, before...)
	fixture.Release(t, hold)
	for _, l := range []*primitives.Lock{x.l, x.excludes} {
		fixture.Release(t, fixture.TryAcquire(t, t.Context(), l))
	}
}

// TestConformanceSubscriptions has many goroutines use a few locks of one client. All acquire, and
// no subscription is left.
func TestConformanceSubscriptions(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name, c := redistest.Name(t), fixture.NewClient(t, s.Client(t))
		fixture.Concurrently(32, func(int) {
			for range redistest.Scaled(s, 60) {
				l := c.Lock(name + strconv.Itoa(rand.IntN(5)))
				assert.NoError(t, l.Do(context.Background(), func(context.Context) error { return nil }))
			}
		})
		fixture.RequireClean(t, s, name)
	})
}

// TestConformanceFairLeases has eight waiters of a fair lock acquire and never release. Each
// acquires in its order when the lease before it expires, within its wait of ten seconds.
func TestConformanceFairLeases(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := fixture.NewClient(t, redistest.Embedded(t).Client(t)).FairLock("l")
		began := time.Now()
		var waiting []<-chan fixture.Result
		for range 8 {
			waiting = append(waiting, fixture.Start(func() (*primitives.Hold, error) {
				return l.Acquire(t.Context(), primitives.WithWait(10*time.Second), primitives.WithLease(time.Second))
			}))
			time.Sleep(100 * time.Millisecond)
		}
		last := began.Add(-time.Second)
		for _, w := range waiting {
			r := fixture.AwaitAcquired(t, w)
			require.GreaterOrEqual(t, r.At.Sub(last), time.Second)
			last = r.At
		}
		t.Logf("the last waiter acquired after %v", last.Sub(began))
		time.Sleep(2 * time.Second) // the last lease expires before the bubble ends
	})
}

// TestConformanceFairPrefix checks that the keys of a fair lock's queue have the prefix in their
// name.
func TestConformanceFairPrefix(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		key := redistest.Name(t)
		l := fixture.NewClient(t, s.Client(t), primitives.WithPrefix("test::")).FairLock(key)
		hold := fixture.Acquire(t, t.Context(), l)
		waiting := fixture.StartAcquire(t.Context(), l)
		fixture.AwaitFair(t, l, 1)
		require.EqualValues(t, 1, s.Client(t).LLen(t.Context(), "redisson_lock_queue:{test::"+key+"}").Val())
		require.Equal(t, key, fixture.InfoOf(t, l).Name)
		fixture.Release(t, hold)
		fixture.Release(t, fixture.AwaitHold(t, waiting))
		fixture.RequireClean(t, s, key)
	})
}

// TestConformanceFairPausedWrites checks that waiters of a fair lock survive CLIENT PAUSE and leave
// nothing in the queue.
func TestConformanceFairPausedWrites(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	rdb, key := s.Client(t), redistest.Name(t)
	l := fixture.NewClient(t, s.Client(t)).FairLock(key)
	fixture.Acquire(t, t.Context(), l, primitives.WithLease(fixture.ShortLease))
	first := fixture.StartAcquire(t.Context(), l, primitives.WithLease(2*fixture.ShortLease))
	fixture.AwaitFair(t, l, 1)
	second := fixture.StartAcquire(t.Context(), l, primitives.WithWait(fixture.Soon))
	fixture.AwaitFair(t, l, 2)
	require.NoError(t, rdb.Do(t.Context(), "client", "pause", 2000, "write").Err())
	require.NoError(t, fixture.Await(t, first).Err)
	fixture.Release(t, fixture.AwaitHold(t, second))
	fixture.RequireClean(t, s, key)
}

// TestConformanceMulti checks that one of many concurrent tries of a multilock succeeds, and that a
// multilock may have members on several servers.
func TestConformanceMulti(t *testing.T) {
	t.Parallel()
	t.Run("one of many tries succeeds", func(t *testing.T) {
		redistest.Each(t, func(t *testing.T, s *redistest.Server) {
			key := redistest.Name(t)
			l := primitives.NewMultiLock(kinds.Members(fixture.NewClient(t, s.Client(t)), key, 3))
			var tries []<-chan fixture.Result
			for range 10 {
				tries = append(tries, fixture.Start(func() (*primitives.Hold, error) { return l.TryAcquire(t.Context()) }))
			}
			var holds []*primitives.Hold
			for _, try := range tries {
				if r := fixture.Await(t, try); r.Err == nil {
					holds = append(holds, r.Hold)
				} else {
					require.ErrorIs(t, r.Err, primitives.ErrNotAcquired)
				}
			}
			require.Len(t, holds, 1)
			require.Same(t, holds[0], l.HoldFrom(holds[0].Context()))
			require.Nil(t, l.HoldFrom(t.Context()))
			fixture.Release(t, holds[0])
			require.Nil(t, l.HoldFrom(holds[0].Context()))
			fixture.RequireClean(t, s, key)
		})
	})
	t.Run("members on three servers", func(t *testing.T) {
		servers := []*redistest.Server{redistest.Miniredis(t), redistest.Miniredis(t), redistest.Miniredis(t)}
		spread := func() *primitives.Lock {
			var locks []*primitives.Lock
			for i, s := range servers {
				locks = append(locks, fixture.NewClient(t, s.Client(t)).Lock("lock"+strconv.Itoa(i)))
			}
			return primitives.NewMultiLock(locks)
		}
		one, rival := spread(), spread()
		hold := fixture.Acquire(t, t.Context(), one)
		for range 2 {
			require.ErrorIs(t, fixture.ErrOf(rival.TryAcquire(t.Context())), primitives.ErrNotAcquired)
		}
		fixture.Release(t, hold)
		fixture.Release(t, fixture.Acquire(t, t.Context(), rival))
		for _, s := range servers {
			fixture.RequireClean(t, s, "lock")
		}
	})
}

// TestConformanceRedOfSeven checks that a redlock with a fixed lease and seven members on two
// servers excludes concurrent holders.
func TestConformanceRedOfSeven(t *testing.T) {
	t.Parallel()
	servers := []*redistest.Server{redistest.Miniredis(t), redistest.Miniredis(t)}
	var locks []*primitives.Lock
	for i, c := range []*primitives.Client{fixture.NewClient(t, servers[0].Client(t)),
		fixture.NewClient(t, servers[1].Client(t))} {
		locks = append(locks, kinds.Members(c, "r"+strconv.Itoa(i), 2+3*i)...)
	}
	l, n := primitives.NewRedLock(locks, primitives.WithLease(10*time.Second)), 0
	fixture.Concurrently(4, func(int) { fixture.Increment(t, fixture.AsAcquirer(l), &n, 3) })
	require.Equal(t, 12, n)
}

// TestConformanceRWLock tests how the leases of concurrent readers and of a writer end.
func TestConformanceRWLock(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		redistest.Together(t, func(run redistest.Run) {
			for _, b := range rwLockBehaviours {
				run(b.name, func(t *testing.T) {
					key := redistest.Name(t) + "."
					b.test(t, fixture.NewClient(t, s.Client(t)).RWLock(key), fixture.NewClient(t, s.Client(t)).RWLock(key))
					fixture.RequireClean(t, s, key)
				})
			}
		})
	})
}

var rwLockBehaviours = []struct {
	name string
	test func(t *testing.T, near, far *primitives.RWLock) // the same lock on two clients
}{
	{"a writer waits for the reader with the longest lease", func(t *testing.T, near, far *primitives.RWLock) {
		began := time.Now()
		fixture.Acquire(t, t.Context(), near.Reader(), primitives.WithLease(2*fixture.ShortLease))
		fixture.Acquire(t, t.Context(), far.Reader(), primitives.WithLease(fixture.ShortLease))
		w := fixture.Acquire(t, t.Context(), far.Writer())
		require.GreaterOrEqual(t, time.Since(began), 2*fixture.ShortLease-10*time.Millisecond)
		fixture.Release(t, w)
	}},
	{"a released reader does not extend the lease of another", func(t *testing.T, near, far *primitives.RWLock) {
		began := time.Now()
		fixture.Acquire(t, t.Context(), near.Reader(), primitives.WithLease(fixture.ShortLease))
		fixture.Release(t, fixture.Acquire(t, t.Context(), far.Reader(), primitives.WithLease(time.Minute)))
		writesAfterABriefLease(t, far, began)
	}},
	// In Redisson, releasing the nested reader removes its timeout key. Here, too, the TTL becomes
	// that of the longest remaining lease, and no longer.
	{"releasing a nested reader ends its lease", func(t *testing.T, near, far *primitives.RWLock) {
		began := time.Now()
		outer := fixture.Acquire(t, t.Context(), near.Reader(), primitives.WithLease(fixture.ShortLease))
		fixture.Release(t, fixture.Acquire(t, outer.Context(), near.Reader(), primitives.WithLease(time.Minute)))
		writesAfterABriefLease(t, far, began)
	}},
	{"all waiting readers acquire when a writer's lease expires", func(t *testing.T, near, far *primitives.RWLock) {
		fixture.Acquire(t, t.Context(), near.Writer(), primitives.WithLease(fixture.ShortLease))
		var readers []<-chan fixture.Result
		for _, rw := range []*primitives.RWLock{near, far, far} {
			readers = append(readers, fixture.StartAcquire(t.Context(), rw.Reader()))
		}
		var holds []*primitives.Hold
		for _, reader := range readers {
			hold := fixture.AwaitHold(t, reader)
			holds = append(holds, hold)
		}
		fixture.Release(t, holds...)
	}},
	{"a nested writer does not shorten the outer lease", func(t *testing.T, near, far *primitives.RWLock) {
		outer := fixture.Acquire(t, t.Context(), near.Writer(), primitives.WithLease(time.Minute))
		inner := fixture.Acquire(t, outer.Context(), near.Writer(), primitives.WithLease(fixture.ShortLease))
		fixture.RequireEnds(t, inner.Context(), primitives.ErrLost)
		require.NoError(t, outer.Check(t.Context()))
		for _, l := range []*primitives.Lock{far.Writer(), far.Reader()} {
			require.ErrorIs(t, fixture.ErrOf(l.TryAcquire(t.Context())), primitives.ErrNotAcquired)
		}
		require.NoError(t, fixture.ErrOf(near.Writer().ForceRelease(t.Context())))
	}},
}

// writesAfterABriefLease checks that a writer acquires when a brief lease that began then has
// ended.
func writesAfterABriefLease(t *testing.T, rw *primitives.RWLock, began time.Time) {
	t.Helper()
	w := fixture.Acquire(t, t.Context(), rw.Writer(), primitives.WithWait(fixture.Soon))
	require.GreaterOrEqual(t, time.Since(began), fixture.ShortLease-10*time.Millisecond)
	require.Less(t, time.Since(began), fixture.ShortLease+fixture.SlowPoll)
	fixture.Release(t, w)
}
