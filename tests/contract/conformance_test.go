package contract

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/fixture"
	"github.com/redlatch/redlatch/internal/kinds"
	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// conformKind is one kind of lock that Redisson has.
type conformKind struct {
	kinds.Kind
	opts         []primitives.Option
	nonReentrant bool // a nested acquisition gives ErrDeadlock
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
	return append(rows, spin, once)
}

// conformCase is the input of one behaviour.
type conformCase struct {
	conformKind
	s         *redistest.Server
	key       string
	l, far    *primitives.Lock   // the same lock on two clients
	excludes  *primitives.Lock   // the lock that l excludes, on the client of far
	farClient *primitives.Client // the client of far
	heard     *Recorder          // the events of farClient
}

// onKind opens a lock of a kind on two new clients.
func onKind(t *testing.T, s *redistest.Server, kind conformKind) *conformCase {
	s = LeastRights(t, s)
	x := &conformCase{conformKind: kind, s: s, key: Permitted + redistest.Name(t) + ".", heard: &Recorder{}}
	x.farClient = NewClient(t, s.Client(t), x.heard.Option())
	x.l, x.far = kind.open(NewClient(t, s.Client(t)), x.key), kind.open(x.farClient, x.key)
	if x.excludes = x.far; kind.Shared {
		x.excludes = kind.Rival(x.farClient, x.key).(*primitives.Lock)
	}
	return x
}

// count returns the hold count of an id, as another client sees it.
func (x *conformCase) count(t *testing.T, id string) int {
	t.Helper()
	info, err := x.far.Info(t.Context())
	require.NoError(t, err)
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
		info, err := l.Info(t.Context())
		require.NoError(t, err)
		require.Len(t, info.Holders, n)
	}
}

// TestConformanceLocks tests each kind of lock for what Redisson's tests assert of every kind.
func TestConformanceLocks(t *testing.T) {
	t.Parallel()
	behaviours := []struct {
		name string
		test func(t *testing.T, x *conformCase)
	}{
		{"every client sees the holders", clientsSeeHolders},
		{"each acquisition counts", holdCount},
		{"HoldFrom finds the hold only in its own context", holdFromContext},
		{"Info reports the remaining TTL", remainingTTL},
		{"only the holder releases", othersCannotRelease},
		{"a handle can be locked again", lockAgain},
		{"ForceRelease frees the lock", forceReleaseFrees},
		{"the lock of a closed client expires", autoExpires},
		{"a waiter acquires when the lease expires", leaseExpiryWakes},
		{"a wait without cancellation goes on", uninterrupted},
		{"a failed try leaves nothing behind", failedTryLeavesNothing},
	}
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, kind := range conformKinds() {
			t.Run(kind.Name, func(t *testing.T) {
				t.Parallel()
				for _, b := range behaviours {
					t.Run(b.name, func(t *testing.T) {
						t.Parallel()
						x := onKind(t, s, kind)
						b.test(t, x)
						RequireClean(t, s, x.key, kind.Stays(x.key)...)
					})
				}
			})
		}
	})
}

func clientsSeeHolders(t *testing.T, x *conformCase) {
	x.requireHolders(t, 0)
	hold := Acquire(t, t.Context(), x.l)
	x.requireHolders(t, 1)
	Release(t, hold)
	x.requireHolders(t, 0)
}

func holdCount(t *testing.T, x *conformCase) {
	once := Acquire(t, t.Context(), x.l)
	require.Equal(t, 1, x.count(t, once.ID()))
	Release(t, once)
	require.Zero(t, x.count(t, once.ID()))
	outer := Acquire(t, t.Context(), x.l)
	if x.nonReentrant {
		_, err := x.l.Acquire(outer.Context())
		require.ErrorIs(t, err, primitives.ErrDeadlock)
		require.Equal(t, 1, x.count(t, outer.ID()))
		Release(t, outer)
		return
	}
	inner := Acquire(t, outer.Context(), x.l)
	require.Equal(t, 2, x.count(t, outer.ID()))
	Release(t, inner)
	require.Equal(t, 1, x.count(t, outer.ID()))
	_, err := x.excludes.TryAcquire(t.Context())
	require.ErrorIs(t, err, primitives.ErrNotAcquired, "the outer hold is left")
	Release(t, outer)
	require.Zero(t, x.count(t, outer.ID()))
}

func holdFromContext(t *testing.T, x *conformCase) {
	require.Nil(t, x.l.HoldFrom(t.Context()))
	hold := Acquire(t, t.Context(), x.l)
	require.Same(t, hold, x.l.HoldFrom(hold.Context()))
	require.Nil(t, x.l.HoldFrom(t.Context()), "another goroutine's context")
	require.Nil(t, x.far.HoldFrom(hold.Context()), "another client's lock")
	Release(t, hold)
	require.Nil(t, x.l.HoldFrom(hold.Context()), "the hold was released")
}

func remainingTTL(t *testing.T, x *conformCase) {
	left := func() time.Duration {
		info, err := x.far.Info(t.Context())
		require.NoError(t, err)
		return info.TTL
	}
	began := time.Now()
	hold := Acquire(t, t.Context(), x.l, primitives.WithLease(time.Hour))
	RequireLeft(t, left(), time.Hour, began)
	Release(t, hold)
	require.Zero(t, left())
	began = time.Now()
	hold = Acquire(t, t.Context(), x.l)
	RequireLeft(t, left(), 30*time.Second, began) // the default TTL of the watchdog
	Release(t, hold)
}

func othersCannotRelease(t *testing.T, x *conformCase) {
	hold := Acquire(t, t.Context(), x.l)
	require.ErrorIs(t, x.far.ReleaseID(t.Context(), x.farClient.ID()+":1"), primitives.ErrNotHeld)
	require.NoError(t, hold.Check(t.Context()))
	require.Equal(t, 1, x.count(t, hold.ID()))
	Release(t, hold)
}

func lockAgain(t *testing.T, x *conformCase) {
	for range 3 {
		Release(t, Acquire(t, t.Context(), x.l))
		require.NoError(t, x.l.Do(t.Context(), func(context.Context) error { return nil }))
	}
}

func forceReleaseFrees(t *testing.T, x *conformCase) {
	hold := Acquire(t, t.Context(), x.l)
	for _, held := range []bool{true, false} {
		was, err := x.far.ForceRelease(t.Context())
		require.NoError(t, err)
		require.Equal(t, held, was)
		x.requireHolders(t, 0)
	}
	require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
}

// autoExpires checks that a lock whose client was closed with the hold is free when its TTL ends.
func autoExpires(t *testing.T, x *conformCase) {
	const ttl = ShortLease
	gone := NewClient(t, x.s.Client(t))
	began := time.Now()
	hold := Acquire(t, t.Context(), x.open(gone, x.key), primitives.WithWatchdog(ttl))
	CloseNow(gone)
	RequireEnds(t, hold.Context(), primitives.ErrClosed)
	next := Acquire(t, t.Context(), x.excludes)
	require.GreaterOrEqual(t, time.Since(began), ttl-50*time.Millisecond)
	require.Less(t, time.Since(began), ttl+SlowPoll)
	Release(t, next)
}

// leaseExpiryWakes checks that a waiter acquires when the lease ends, and that the late release of
// the former hold does not affect it.
func leaseExpiryWakes(t *testing.T, x *conformCase) {
	const lease = ShortLease
	began := time.Now()
	hold := Acquire(t, t.Context(), x.l, primitives.WithLease(lease))
	next := Acquire(t, t.Context(), x.excludes)
	require.GreaterOrEqual(t, time.Since(began), lease-10*time.Millisecond)
	require.Less(t, time.Since(began), lease+SlowPoll)
	RequireEnds(t, hold.Context(), primitives.ErrLost)
	require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
	require.NoError(t, next.Check(t.Context()), "a late release does not end the next hold")
	Release(t, next)
}

// uninterrupted checks that a waiter with context.WithoutCancel waits on after its parent is
// cancelled.
func uninterrupted(t *testing.T, x *conformCase) {
	hold := Acquire(t, t.Context(), x.l)
	ctx, cancel := context.WithCancel(t.Context())
	waiting := Start(func() (*primitives.Hold, error) { return x.excludes.Acquire(context.WithoutCancel(ctx)) })
	x.heard.Await(t, primitives.EventWait)
	cancel()
	Release(t, hold)
	r := Await(t, waiting)
	require.NoError(t, r.Err)
	RequireLive(t, r.Hold.Context())
	Release(t, r.Hold)
}

// failedTryLeavesNothing checks that a failed acquisition does not block later ones, in particular
// as a queue entry of a fair lock.
func failedTryLeavesNothing(t *testing.T, x *conformCase) {
	hold := Acquire(t, t.Context(), x.l)
	before := Leftovers(t, x.s, x.key)
	for _, wait := range []time.Duration{0, 30 * time.Millisecond} {
		began := time.Now()
		_, err := x.excludes.Acquire(t.Context(), primitives.WithWait(wait))
		require.ErrorIs(t, err, primitives.ErrNotAcquired)
		require.GreaterOrEqual(t, time.Since(began), wait)
	}
	// The rollback may go on in the background for a moment.
	RequireClean(t, x.s, x.key, before...)
	Release(t, hold)
	for _, l := range []*primitives.Lock{x.l, x.excludes} {
		next, err := l.TryAcquire(t.Context())
		require.NoError(t, err)
		Release(t, next)
	}
}

// TestConformanceSubscriptions has many goroutines use a few locks of one client. All acquire, and
// no subscription is left.
func TestConformanceSubscriptions(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name, c := redistest.Name(t), NewClient(t, s.Client(t))
		var wg sync.WaitGroup
		for range 32 {
			wg.Go(func() {
				for range redistest.Scaled(s, 60) {
					l := c.Lock(name + strconv.Itoa(rand.IntN(5)))
					if err := l.Do(context.Background(), func(context.Context) error { return nil }); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		RequireClean(t, s, name)
	})
}

// TestConformanceRWLock tests how the leases of concurrent readers and of a writer end.
func TestConformanceRWLock(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		redistest.Together(t, func(run redistest.Run) {
			for _, b := range rwLockBehaviours {
				run(b.name, func(t *testing.T) {
					key := redistest.Name(t) + "."
					b.test(t, NewClient(t, s.Client(t)).RWLock(key), NewClient(t, s.Client(t)).RWLock(key))
					RequireClean(t, s, key)
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
		Acquire(t, t.Context(), near.Reader(), primitives.WithLease(2*ShortLease))
		Acquire(t, t.Context(), far.Reader(), primitives.WithLease(ShortLease))
		w := Acquire(t, t.Context(), far.Writer())
		require.GreaterOrEqual(t, time.Since(began), 2*ShortLease-10*time.Millisecond)
		Release(t, w)
	}},
	{"a released reader does not extend the lease of another", func(t *testing.T, near, far *primitives.RWLock) {
		began := time.Now()
		Acquire(t, t.Context(), near.Reader(), primitives.WithLease(ShortLease))
		Release(t, Acquire(t, t.Context(), far.Reader(), primitives.WithLease(time.Minute)))
		writesAfterABriefLease(t, far, began)
	}},
	// In Redisson, releasing the nested reader removes its timeout key. Here, too, the TTL becomes
	// that of the longest remaining lease, and no longer.
	{"releasing a nested reader ends its lease", func(t *testing.T, near, far *primitives.RWLock) {
		began := time.Now()
		outer := Acquire(t, t.Context(), near.Reader(), primitives.WithLease(ShortLease))
		Release(t, Acquire(t, outer.Context(), near.Reader(), primitives.WithLease(time.Minute)))
		writesAfterABriefLease(t, far, began)
	}},
	{"all waiting readers acquire when a writer's lease expires", func(t *testing.T, near, far *primitives.RWLock) {
		Acquire(t, t.Context(), near.Writer(), primitives.WithLease(ShortLease))
		var readers []<-chan Result
		for _, rw := range []*primitives.RWLock{near, far, far} {
			readers = append(readers, Start(func() (*primitives.Hold, error) { return rw.Reader().Acquire(t.Context()) }))
		}
		var holds []*primitives.Hold
		for _, reader := range readers {
			r := Await(t, reader)
			require.NoError(t, r.Err)
			holds = append(holds, r.Hold)
		}
		for _, hold := range holds {
			Release(t, hold)
		}
	}},
	{"a nested writer does not shorten the outer lease", func(t *testing.T, near, far *primitives.RWLock) {
		outer := Acquire(t, t.Context(), near.Writer(), primitives.WithLease(time.Minute))
		inner := Acquire(t, outer.Context(), near.Writer(), primitives.WithLease(ShortLease))
		RequireEnds(t, inner.Context(), primitives.ErrLost)
		require.NoError(t, outer.Check(t.Context()))
		for _, l := range []*primitives.Lock{far.Writer(), far.Reader()} {
			_, err := l.TryAcquire(t.Context())
			require.ErrorIs(t, err, primitives.ErrNotAcquired)
		}
		_, err := near.Writer().ForceRelease(t.Context())
		require.NoError(t, err)
	}},
}

// writesAfterABriefLease checks that a writer acquires when a brief lease that began then has ended.
func writesAfterABriefLease(t *testing.T, rw *primitives.RWLock, began time.Time) {
	t.Helper()
	w := Acquire(t, t.Context(), rw.Writer(), primitives.WithWait(Soon))
	require.GreaterOrEqual(t, time.Since(began), ShortLease-10*time.Millisecond)
	require.Less(t, time.Since(began), ShortLease+SlowPoll)
	Release(t, w)
}

// poolCase is the input of one behaviour of a semaphore.
type poolCase struct {
	Countable
	s   *redistest.Server
	key string
}

// take acquires n permits at once, without waiting.
func (p *poolCase) take(t *testing.T, n int, opts ...primitives.Option) *primitives.Hold {
	t.Helper()
	opts = append([]primitives.Option{primitives.WithPermits(n), primitives.WithWait(0)}, opts...)
	hold, err := p.Acquire(t.Context(), opts...)
	require.NoError(t, err)
	return hold
}

// add adds n permits to the pool, or removes -n.
func (p *poolCase) add(t *testing.T, n int) {
	t.Helper()
	require.NoError(t, p.Add(t.Context(), n))
}

// requireFree checks the number of available permits.
func (p *poolCase) requireFree(t *testing.T, n int) {
	t.Helper()
	info, err := p.Info(t.Context())
	require.NoError(t, err)
	require.Equal(t, n, info.Available)
}

// requireAll checks the number of permits in all, held and available. It is for permits with
// leases.
func (p *poolCase) requireAll(t *testing.T, all, held, free int) {
	t.Helper()
	info, err := p.Info(t.Context())
	require.NoError(t, err)
	require.Equal(t, []int{all, held, free}, []int{info.Permits, len(info.Holders), info.Available})
}

// TestConformanceSemaphores tests both semaphores for the arithmetic that Redisson's tests expect.
func TestConformanceSemaphores(t *testing.T) {
	t.Parallel()
	type opener = func(*primitives.Client, ...primitives.Option) Countable
	EachSemaphore(t, func(t *testing.T, s *redistest.Server, open opener, key string) {
		for _, b := range slices.Concat(semaphoreBehaviours, semaphoreWaitBehaviours) {
			t.Run(b.name, func(t *testing.T) {
				p := &poolCase{open(NewClient(t, s.Client(t))), s, key}
				b.test(t, p)
				_, err := p.Delete(t.Context())
				require.NoError(t, err)
				RequireClean(t, s, key)
			})
		}
	})
}

// poolBehaviour is one row of the semaphore tests.
type poolBehaviour struct {
	name string
	test func(t *testing.T, p *poolCase)
}

var (
	// semaphoreBehaviours never wait.
	semaphoreBehaviours = []poolBehaviour{
		{"a new semaphore has no permits", func(t *testing.T, p *poolCase) { p.requireFree(t, 0) }},
		{"acquiring and adding zero permits succeeds", func(t *testing.T, p *poolCase) {
			Release(t, p.take(t, 0))
			p.add(t, 0)
			p.requireFree(t, 0)
		}},
		{"permits are added one by one", func(t *testing.T, p *poolCase) {
			p.add(t, 1)
			p.requireFree(t, 1)
			p.add(t, 1)
			Release(t, p.take(t, 2))
		}},
		{"the second Init changes nothing", func(t *testing.T, p *poolCase) {
			InitPool(t, p, 10)
			InitPool(t, p, 15)
			p.requireFree(t, 10)
		}},
		{"released permits are available again", func(t *testing.T, p *poolCase) {
			InitPool(t, p, 10)
			one := p.take(t, 1)
			p.requireFree(t, 9)
			Release(t, one)
			p.requireFree(t, 10)
			five := p.take(t, 5)
			p.requireFree(t, 5)
			Release(t, five)
			p.requireFree(t, 10)
		}},
		{"permits are added while all are held", func(t *testing.T, p *poolCase) {
			InitPool(t, p, 10)
			all := p.take(t, 10)
			p.requireFree(t, 0)
			p.add(t, 4)
			p.requireFree(t, 4)
			Release(t, all)
			p.requireFree(t, 14)
			p.take(t, 5)
			p.requireFree(t, 9)
		}},
		{"permits are removed while all are held", func(t *testing.T, p *poolCase) {
			InitPool(t, p, 10)
			all := p.take(t, 10)
			p.add(t, -5)
			p.requireFree(t, -5)
			Release(t, all)
			p.requireFree(t, 5)
			p.take(t, 5)
			p.requireFree(t, 0)
		}},
		{"available permits fall below 0", func(t *testing.T, p *poolCase) {
			InitPool(t, p, 10)
			for _, step := range []struct{ add, free int }{{5, 15}, {-10, 5}, {-10, -5}} {
				p.add(t, step.add)
				p.requireFree(t, step.free)
			}
		}},
	}
	semaphoreWaitBehaviours = []poolBehaviour{
		{"a waiter for several acquires after single releases", func(t *testing.T, p *poolCase) {
			InitPool(t, p, 5)
			a, b := p.take(t, 1), p.take(t, 1)
			p.take(t, 1)
			_, err := p.TryAcquire(t.Context(), primitives.WithPermits(4))
			require.ErrorIs(t, err, primitives.ErrNotAcquired)
			waiting := Start(func() (*primitives.Hold, error) {
				return p.Acquire(t.Context(), primitives.WithPermits(4), primitives.WithWait(Soon))
			})
			AwaitWaiter(t, p.s, p.key)
			Release(t, a)
			p.requireFree(t, 3)
			Release(t, b)
			r := Await(t, waiting)
			require.NoError(t, r.Err)
			p.requireFree(t, 0)
		}},
		{"a waiter acquires when enough permits are added", func(t *testing.T, p *poolCase) {
			p.add(t, 1)
			waiting := Start(func() (*primitives.Hold, error) {
				return p.Acquire(t.Context(), primitives.WithPermits(2))
			})
			AwaitWaiter(t, p.s, p.key)
			Release(t, p.take(t, 1))
			p.requireFree(t, 1)
			require.Empty(t, waiting)
			p.add(t, 1)
			require.NoError(t, Await(t, waiting).Err)
			p.requireFree(t, 0)
		}},
		// A release hands permits on to a waiter of its own client, but not permits that were removed meanwhile.
		{"a pool that became smaller hands nothing on until enough is released", func(t *testing.T, p *poolCase) {
			InitPool(t, p, 4)
			a, b, c := p.take(t, 2), p.take(t, 1), p.take(t, 1)
			waiting := Start(func() (*primitives.Hold, error) {
				return p.Acquire(t.Context(), primitives.WithPermits(2), primitives.WithWait(Soon))
			})
			AwaitWaiter(t, p.s, p.key)
			p.add(t, -2)
			Release(t, a)
			p.requireFree(t, 0)
			Release(t, b)
			p.requireFree(t, 1)
			require.Empty(t, waiting)
			Release(t, c)
			r := Await(t, waiting)
			require.NoError(t, r.Err)
			p.requireFree(t, 0)
		}},
	}
)

// TestConformanceSemaphoreOfMaxInt acquires all permits of the largest Java semaphore at once, and
// one by one.
func TestConformanceSemaphoreOfMaxInt(t *testing.T) {
	t.Parallel()
	const most = 1<<31 - 1
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		key := redistest.Name(t)
		InitPool(t, NewClient(t, s.Client(t)).Semaphore(key), most)
		var wg sync.WaitGroup
		for i := range 4 {
			sem := NewClient(t, s.Client(t)).Semaphore(key)
			wg.Go(func() {
				for j := range redistest.Scaled(s, 10) {
					n := []int{1, most}[(i+j)%2]
					nothing := func(context.Context) error { return nil }
					if err := sem.Do(context.Background(), nothing, primitives.WithPermits(n)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		require.Equal(t, most, Available(t, s.Client(t), key))
	})
}

// TestConformancePermits tests the ids and the leases of permits.
func TestConformancePermits(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		redistest.Together(t, func(run redistest.Run) {
			for _, b := range slices.Concat(permitIDBehaviours, permitLeaseBehaviours) {
				run(b.name, func(t *testing.T) {
					key := redistest.Name(t) + "."
					p := &poolCase{NewClient(t, s.Client(t)).PermitExpirableSemaphore(key), s, key}
					b.test(t, p)
					_, err := p.Delete(t.Context())
					require.NoError(t, err)
					RequireClean(t, s, key)
				})
			}
		})
	})
}

// shortLease expires within a test, and lasts for a few commands even on a busy machine.
var shortLease = primitives.WithLease(ShortLease)

// permitIDs returns the ids of the permits of a hold.
func permitIDs(hold *primitives.Hold) []string { return strings.Split(hold.ID(), ",") }

// releaseIDs releases permits by id.
func (p *poolCase) releaseIDs(t *testing.T, ids ...string) error {
	return p.Countable.(*primitives.PermitExpirableSemaphore).ReleaseID(t.Context(), strings.Join(ids, ","))
}

var (
	permitIDBehaviours = []poolBehaviour{
		{"each permit of a hold has an id", func(t *testing.T, p *poolCase) {
			InitPool(t, p, 10)
			require.Len(t, permitIDs(p.take(t, 4)), 4)
			require.Len(t, permitIDs(p.take(t, 5)), 5)
			p.requireAll(t, 10, 9, 1)
		}},
		{"permits are released in parts, once", func(t *testing.T, p *poolCase) {
			InitPool(t, p, 10)
			six := permitIDs(p.take(t, 6))
			p.requireFree(t, 4)
			require.NoError(t, p.releaseIDs(t, six[:4]...))
			p.requireFree(t, 8)
			require.NoError(t, p.releaseIDs(t, six[4:]...))
			p.requireFree(t, 10)
			require.ErrorIs(t, p.releaseIDs(t, six...), primitives.ErrNotHeld)
			p.requireFree(t, 10)
		}},
		{"one unknown id keeps the others from being released", func(t *testing.T, p *poolCase) {
			InitPool(t, p, 10)
			four := permitIDs(p.take(t, 4))
			require.NoError(t, p.releaseIDs(t, four[0]))
			p.requireFree(t, 7)
			require.ErrorIs(t, p.releaseIDs(t, four...), primitives.ErrNotHeld)
			p.requireFree(t, 7)
		}},
		{"Resize works while permits are held", func(t *testing.T, p *poolCase) {
			sem := p.Countable.(*primitives.PermitExpirableSemaphore)
			for _, n := range []int{10, 15, 15, 5} {
				require.NoError(t, sem.Resize(t.Context(), n))
				created, err := sem.Init(t.Context(), 20)
				require.NoError(t, err)
				require.False(t, created)
				p.requireAll(t, n, 0, n)
			}
			for range 3 {
				p.take(t, 1)
			}
			p.requireAll(t, 5, 3, 2)
			for _, n := range []int{3, 2} {
				require.NoError(t, sem.Resize(t.Context(), n))
				p.requireAll(t, n, 3, n-3)
			}
		}},
	}
	permitLeaseBehaviours = []poolBehaviour{
		{"Info counts expired permits as available", func(t *testing.T, p *poolCase) {
			InitPool(t, p, 2)
			p.requireAll(t, 2, 0, 2)
			p.take(t, 1, shortLease)
			p.requireAll(t, 2, 1, 1)
			p.take(t, 1, shortLease)
			_, err := p.TryAcquire(t.Context())
			require.ErrorIs(t, err, primitives.ErrNotAcquired)
			p.requireAll(t, 2, 2, 0)
			third, err := p.Acquire(t.Context(), shortLease, primitives.WithWait(SlowPoll))
			require.NoError(t, err)
			RequireEnds(t, third.Context(), primitives.ErrLost)
			redistest.WaitFor(t, Soon, func() bool {
				info, err := p.Info(t.Context())
				return err == nil && info.Available == 2
			}, "the leases have expired in Redis")
			p.requireAll(t, 2, 0, 2)
		}},
		{"an expired permit cannot be released", func(t *testing.T, p *poolCase) {
			InitPool(t, p, 10)
			timed, lasting := p.take(t, 3, shortLease), p.take(t, 3)
			p.requireFree(t, 4)
			RequireEnds(t, timed.Context(), primitives.ErrLost)
			redistest.WaitFor(t, Soon, func() bool { return len(p.leases(t)) == 3 }, "three permits have expired")
			Release(t, lasting)
			p.requireFree(t, 10)
			require.ErrorIs(t, p.releaseIDs(t, permitIDs(timed)...), primitives.ErrNotHeld)
			require.ErrorIs(t, timed.Release(t.Context()), primitives.ErrLost)
			p.requireFree(t, 10)
		}},
		{"the next acquisition collects expired permits", func(t *testing.T, p *poolCase) {
			InitPool(t, p, 10)
			timed := p.take(t, 6, shortLease)
			RequireEnds(t, timed.Context(), primitives.ErrLost)
			redistest.WaitFor(t, Soon, func() bool { return len(p.leases(t)) == 0 }, "all permits have expired")
			next := p.take(t, 1, shortLease)
			p.requireFree(t, 9)
			RequireEnds(t, next.Context(), primitives.ErrLost)
			redistest.WaitFor(t, Soon, func() bool { return len(p.leases(t)) == 0 }, "all permits have expired")
			p.requireFree(t, 10)
		}},
		{"Extend extends a live lease and fails after expiry", func(t *testing.T, p *poolCase) {
			InitPool(t, p, 1)
			hold := p.take(t, 1, shortLease)
			require.NoError(t, hold.Extend(t.Context(), time.Minute))
			require.Greater(t, p.leases(t)[hold.ID()], 50*time.Second)
			Release(t, hold)
			hold = p.take(t, 1, shortLease)
			RequireEnds(t, hold.Context(), primitives.ErrLost)
			require.ErrorIs(t, hold.Extend(t.Context(), time.Minute), primitives.ErrLost)
			redistest.WaitFor(t, Soon, func() bool { return len(p.leases(t)) == 0 }, "all permits have expired")
			p.requireFree(t, 1)
		}},
		{"Info reports the remaining lease", func(t *testing.T, p *poolCase) {
			InitPool(t, p, 1)
			require.Empty(t, p.leases(t))
			began := time.Now()
			hold := p.take(t, 1, primitives.WithLease(time.Minute))
			left := p.leases(t)[hold.ID()] - 2*time.Millisecond // its end is rounded up
			RequireLeft(t, left, time.Minute, began)
			Release(t, hold)
			require.Empty(t, p.leases(t))
		}},
		{"leases that are handed off end with the pool", func(t *testing.T, p *poolCase) {
			InitPool(t, p, 1)
			require.NoError(t, p.s.Client(t).PExpire(t.Context(), p.key, time.Hour).Err())
			hold := p.take(t, 1)
			waiting := Start(func() (*primitives.Hold, error) { return p.Acquire(t.Context()) })
			AwaitWaiter(t, p.s, p.key)
			Release(t, hold)
			require.NoError(t, Await(t, waiting).Err)
			require.Positive(t, p.s.Client(t).PTTL(t.Context(), "{"+p.key+"}:timeout").Val())
		}},
		{"an expired pool leaves no keys", func(t *testing.T, p *poolCase) {
			InitPool(t, p, 1)
			require.NoError(t, p.s.Client(t).PExpire(t.Context(), p.key, 2*ShortLease).Err())
			p.take(t, 1, shortLease)
			RequireClean(t, p.s, p.key)
		}},
	}
)

// leases returns the remaining lease of each held permit, by id.
func (p *poolCase) leases(t *testing.T) map[string]time.Duration {
	t.Helper()
	info, err := p.Info(t.Context())
	require.NoError(t, err)
	left := map[string]time.Duration{}
	for _, h := range info.Holders {
		left[h.ID] = h.TTL
	}
	return left
}

// TestConformanceFairLeases has eight waiters of a fair lock acquire and never release. Each
// acquires in its order when the lease before it expires, within its wait of ten seconds.
func TestConformanceFairLeases(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewClient(t, redistest.Embedded(t).Client(t)).FairLock("l")
		began := time.Now()
		var waiting []<-chan Result
		for range 8 {
			waiting = append(waiting, Start(func() (*primitives.Hold, error) {
				return l.Acquire(t.Context(), primitives.WithWait(10*time.Second), primitives.WithLease(time.Second))
			}))
			time.Sleep(100 * time.Millisecond)
		}
		last := began.Add(-time.Second)
		for _, w := range waiting {
			r := Await(t, w)
			require.NoError(t, r.Err)
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
		l := NewClient(t, s.Client(t), primitives.WithPrefix("test::")).FairLock(key)
		hold := Acquire(t, t.Context(), l)
		waiting := Start(func() (*primitives.Hold, error) { return l.Acquire(t.Context()) })
		AwaitFair(t, l, 1)
		require.EqualValues(t, 1, s.Client(t).LLen(t.Context(), "redisson_lock_queue:{test::"+key+"}").Val())
		info, err := l.Info(t.Context())
		require.NoError(t, err)
		require.Equal(t, key, info.Name)
		Release(t, hold)
		r := Await(t, waiting)
		require.NoError(t, r.Err)
		Release(t, r.Hold)
		RequireClean(t, s, key)
	})
}

// TestConformanceFairPausedWrites checks that waiters of a fair lock survive CLIENT PAUSE and leave
// nothing in the queue.
func TestConformanceFairPausedWrites(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	rdb, key := s.Client(t), redistest.Name(t)
	l := NewClient(t, s.Client(t)).FairLock(key)
	Acquire(t, t.Context(), l, primitives.WithLease(ShortLease))
	first := Start(func() (*primitives.Hold, error) {
		return l.Acquire(t.Context(), primitives.WithLease(2*ShortLease))
	})
	AwaitFair(t, l, 1)
	second := Start(func() (*primitives.Hold, error) { return l.Acquire(t.Context(), primitives.WithWait(Soon)) })
	AwaitFair(t, l, 2)
	require.NoError(t, rdb.Do(t.Context(), "client", "pause", 2000, "write").Err())
	require.NoError(t, Await(t, first).Err)
	r := Await(t, second)
	require.NoError(t, r.Err)
	Release(t, r.Hold)
	RequireClean(t, s, key)
}

// TestConformanceMulti checks that one of many concurrent tries of a multilock succeeds, and that a
// multilock may have members on several servers.
func TestConformanceMulti(t *testing.T) {
	t.Parallel()
	t.Run("one of many tries succeeds", func(t *testing.T) {
		redistest.Each(t, func(t *testing.T, s *redistest.Server) {
			key := redistest.Name(t)
			l := primitives.NewMultiLock(kinds.Members(NewClient(t, s.Client(t)), key, 3))
			var tries []<-chan Result
			for range 10 {
				tries = append(tries, Start(func() (*primitives.Hold, error) { return l.TryAcquire(t.Context()) }))
			}
			var holds []*primitives.Hold
			for _, try := range tries {
				if r := Await(t, try); r.Err == nil {
					holds = append(holds, r.Hold)
				} else {
					require.ErrorIs(t, r.Err, primitives.ErrNotAcquired)
				}
			}
			require.Len(t, holds, 1)
			require.Same(t, holds[0], l.HoldFrom(holds[0].Context()))
			require.Nil(t, l.HoldFrom(t.Context()))
			Release(t, holds[0])
			require.Nil(t, l.HoldFrom(holds[0].Context()))
			RequireClean(t, s, key)
		})
	})
	t.Run("members on three servers", func(t *testing.T) {
		servers := []*redistest.Server{redistest.Miniredis(t), redistest.Miniredis(t), redistest.Miniredis(t)}
		spread := func() *primitives.Lock {
			var locks []*primitives.Lock
			for i, s := range servers {
				locks = append(locks, NewClient(t, s.Client(t)).Lock("lock"+strconv.Itoa(i)))
			}
			return primitives.NewMultiLock(locks)
		}
		one, rival := spread(), spread()
		hold := Acquire(t, t.Context(), one)
		for range 2 {
			_, err := rival.TryAcquire(t.Context())
			require.ErrorIs(t, err, primitives.ErrNotAcquired)
		}
		Release(t, hold)
		Release(t, Acquire(t, t.Context(), rival))
		for _, s := range servers {
			RequireClean(t, s, "lock")
		}
	})
}

// TestConformanceRedOfSeven checks that a redlock with a fixed lease and seven members on two
// servers excludes concurrent holders.
func TestConformanceRedOfSeven(t *testing.T) {
	t.Parallel()
	servers := []*redistest.Server{redistest.Miniredis(t), redistest.Miniredis(t)}
	var locks []*primitives.Lock
	for i, c := range []*primitives.Client{NewClient(t, servers[0].Client(t)), NewClient(t, servers[1].Client(t))} {
		locks = append(locks, kinds.Members(c, "r"+strconv.Itoa(i), 2+3*i)...)
	}
	l, n := primitives.NewRedLock(locks, primitives.WithLease(10*time.Second)), 0
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { Increment(t, AsAcquirer(l), &n, 3) })
	}
	wg.Wait()
	require.Equal(t, 12, n)
}

// TestConformanceTokens checks that the tokens of a name start at 1 and rise by one with each
// acquisition.
func TestConformanceTokens(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		key := redistest.Name(t)
		l := NewClient(t, s.Client(t)).FencedLock(key)
		for i, get := range []func() (*primitives.Hold, error){
			func() (*primitives.Hold, error) { return l.Acquire(t.Context()) },
			func() (*primitives.Hold, error) { return l.Acquire(t.Context()) },
			func() (*primitives.Hold, error) { return l.Acquire(t.Context(), primitives.WithLease(time.Minute)) },
			func() (*primitives.Hold, error) { return l.TryAcquire(t.Context()) },
		} {
			hold, err := get()
			require.NoError(t, err)
			require.EqualValues(t, i+1, hold.Token())
			Release(t, hold)
			require.EqualValues(t, i+1, hold.Token(), "a released hold keeps its token")
		}
	})
}

// TestConformanceLatchDeadline checks that Wait returns the context's error if the count does not
// reach 0 in time, and nil if it does.
func TestConformanceLatchDeadline(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		latch := NewClient(t, s.Client(t)).CountDownLatch(redistest.Name(t))
		_, err := latch.Init(t.Context(), 1)
		require.NoError(t, err)
		wait := func(d time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			return latch.Wait(ctx)
		}
		require.ErrorIs(t, wait(50*time.Millisecond), context.DeadlineExceeded)
		n, err := latch.Count(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 1, n)
		done := make(chan error, 1)
		go func() { done <- wait(Soon) }()
		AwaitWaiter(t, s, latch.Name())
		for range 2 { // once more than needed
			require.NoError(t, latch.CountDown(t.Context()))
		}
		require.NoError(t, <-done)
		require.NoError(t, wait(Soon))
	})
}
