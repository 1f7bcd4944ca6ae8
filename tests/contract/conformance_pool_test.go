package contract

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// poolCase is the input of one behaviour of a semaphore.
type poolCase struct {
	fixture.Countable
	s   *redistest.Server
	key string
}

// take acquires n permits at once, without waiting.
func (p *poolCase) take(t *testing.T, n int, opts ...primitives.Option) *primitives.Hold {
	t.Helper()
	opts = append([]primitives.Option{primitives.WithPermits(n), primitives.WithWait(0)}, opts...)
	hold := fixture.Acquire(t, t.Context(), p, opts...)
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
	require.Equal(t, n, fixture.InfoOf(t, p).Available)
}

// requireAll checks the number of permits in all, held and available. It is for permits with
// leases.
func (p *poolCase) requireAll(t *testing.T, all, held, free int) {
	t.Helper()
	info := fixture.InfoOf(t, p)
	require.Equal(t, []int{all, held, free}, []int{info.Permits, len(info.Holders), info.Available})
}

// TestConformanceSemaphores tests both semaphores for the arithmetic that Redisson's tests expect.
func TestConformanceSemaphores(t *testing.T) {
	t.Parallel()
	type opener = func(*primitives.Client, ...primitives.Option) fixture.Countable
	fixture.EachSemaphore(t, func(t *testing.T, s *redistest.Server, open opener, key string) {
		for _, b := range slices.Concat(semaphoreBehaviours, semaphoreWaitBehaviours) {
			t.Run(b.name, func(t *testing.T) {
				p := &poolCase{open(fixture.NewClient(t, s.Client(t))), s, key}
				b.test(t, p)
				require.NoError(t, fixture.ErrOf(p.Delete(t.Context())))
				fixture.RequireClean(t, s, key)
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
			fixture.Release(t, p.take(t, 0))
			p.add(t, 0)
			p.requireFree(t, 0)
		}},
		{"permits are added one by one", func(t *testing.T, p *poolCase) {
			p.add(t, 1)
			p.requireFree(t, 1)
			p.add(t, 1)
			fixture.Release(t, p.take(t, 2))
		}},
		{"the second Init changes nothing", func(t *testing.T, p *poolCase) {
			fixture.InitPool(t, p, 10)
			fixture.InitPool(t, p, 15)
			p.requireFree(t, 10)
		}},
		{"released permits are available again", func(t *testing.T, p *poolCase) {
			fixture.InitPool(t, p, 10)
			one := p.take(t, 1)
			p.requireFree(t, 9)
			fixture.Release(t, one)
			p.requireFree(t, 10)
			five := p.take(t, 5)
			p.requireFree(t, 5)
			fixture.Release(t, five)
			p.requireFree(t, 10)
		}},
		{"permits are added while all are held", func(t *testing.T, p *poolCase) {
			fixture.InitPool(t, p, 10)
			all := p.take(t, 10)
			p.requireFree(t, 0)
			p.add(t, 4)
			p.requireFree(t, 4)
			fixture.Release(t, all)
			p.requireFree(t, 14)
			p.take(t, 5)
			p.requireFree(t, 9)
		}},
		{"permits are removed while all are held", func(t *testing.T, p *poolCase) {
			fixture.InitPool(t, p, 10)
			all := p.take(t, 10)
			p.add(t, -5)
			p.requireFree(t, -5)
			fixture.Release(t, all)
			p.requireFree(t, 5)
			p.take(t, 5)
			p.requireFree(t, 0)
		}},
		{"available permits fall below 0", func(t *testing.T, p *poolCase) {
			fixture.InitPool(t, p, 10)
			for _, step := range []struct{ add, free int }{{5, 15}, {-10, 5}, {-10, -5}} {
				p.add(t, step.add)
				p.requireFree(t, step.free)
			}
		}},
	}
	semaphoreWaitBehaviours = []poolBehaviour{
		{"a waiter for several acquires after single releases", func(t *testing.T, p *poolCase) {
			fixture.InitPool(t, p, 5)
			a, b := p.take(t, 1), p.take(t, 1)
			p.take(t, 1)
			require.ErrorIs(t, fixture.ErrOf(p.TryAcquire(t.Context(), primitives.WithPermits(4))), primitives.ErrNotAcquired)
			waiting := fixture.StartAcquire(t.Context(), p, primitives.WithPermits(4), primitives.WithWait(fixture.Soon))
			fixture.AwaitWaiter(t, p.s, p.key)
			fixture.Release(t, a)
			p.requireFree(t, 3)
			fixture.Release(t, b)
			fixture.AwaitHold(t, waiting)
			p.requireFree(t, 0)
		}},
		{"a waiter acquires when enough permits are added", func(t *testing.T, p *poolCase) {
			p.add(t, 1)
			waiting := fixture.StartAcquire(t.Context(), p, primitives.WithPermits(2))
			fixture.AwaitWaiter(t, p.s, p.key)
			fixture.Release(t, p.take(t, 1))
			p.requireFree(t, 1)
			require.Empty(t, waiting)
			p.add(t, 1)
			require.NoError(t, fixture.Await(t, waiting).Err)
			p.requireFree(t, 0)
		}},
		// A release hands permits on to a waiter of its own client, but not permits that were
		// removed meanwhile.
		{"a pool that became smaller hands nothing on until enough is released", func(t *testing.T, p *poolCase) {
			fixture.InitPool(t, p, 4)
			a, b, c := p.take(t, 2), p.take(t, 1), p.take(t, 1)
			waiting := fixture.StartAcquire(t.Context(), p, primitives.WithPermits(2), primitives.WithWait(fixture.Soon))
			fixture.AwaitWaiter(t, p.s, p.key)
			p.add(t, -2)
			fixture.Release(t, a)
			p.requireFree(t, 0)
			fixture.Release(t, b)
			p.requireFree(t, 1)
			require.Empty(t, waiting)
			fixture.Release(t, c)
			fixture.AwaitHold(t, waiting)
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
		fixture.InitPool(t, fixture.NewClient(t, s.Client(t)).Semaphore(key), most)
		var wg sync.WaitGroup
		for i := range 4 {
			sem := fixture.NewClient(t, s.Client(t)).Semaphore(key)
			wg.Go(func() {
				for j := range redistest.Scaled(s, 10) {
					n := []int{1, most}[(i+j)%2]
					nothing := func(context.Context) error { return nil }
					assert.NoError(t, sem.Do(context.Background(), nothing, primitives.WithPermits(n)))
				}
			})
		}
		wg.Wait()
		require.Equal(t, most, fixture.Available(t, s.Client(t), key))
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
					p := &poolCase{fixture.NewClient(t, s.Client(t)).PermitExpirableSemaphore(key), s, key}
					b.test(t, p)
					require.NoError(t, fixture.ErrOf(p.Delete(t.Context())))
					fixture.RequireClean(t, s, key)
				})
			}
		})
	})
}

// expiringLease expires within a test, and lasts for a few commands even on a busy machine.
var expiringLease = primitives.WithLease(fixture.ShortLease)

// permitIDs returns the ids of the permits of a hold.
func permitIDs(hold *primitives.Hold) []string { return strings.Split(hold.ID(), ",") }

// releaseIDs releases permits by id.
func (p *poolCase) releaseIDs(t *testing.T, ids ...string) error {
	return p.Countable.(*primitives.PermitExpirableSemaphore).ReleaseID(t.Context(), strings.Join(ids, ","))
}

var (
	permitIDBehaviours = []poolBehaviour{
		{"each permit of a hold has an id", func(t *testing.T, p *poolCase) {
			fixture.InitPool(t, p, 10)
			require.Len(t, permitIDs(p.take(t, 4)), 4)
			require.Len(t, permitIDs(p.take(t, 5)), 5)
			p.requireAll(t, 10, 9, 1)
		}},
		{"permits are released in parts, once", func(t *testing.T, p *poolCase) {
			fixture.InitPool(t, p, 10)
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
			fixture.InitPool(t, p, 10)
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
			fixture.InitPool(t, p, 2)
			p.requireAll(t, 2, 0, 2)
			p.take(t, 1, expiringLease)
			p.requireAll(t, 2, 1, 1)
			p.take(t, 1, expiringLease)
			require.ErrorIs(t, fixture.ErrOf(p.TryAcquire(t.Context())), primitives.ErrNotAcquired)
			p.requireAll(t, 2, 2, 0)
			third := fixture.Acquire(t, t.Context(), p, expiringLease, primitives.WithWait(fixture.SlowPoll))
			fixture.RequireEnds(t, third.Context(), primitives.ErrLost)
			redistest.WaitFor(t, fixture.Soon, func() bool {
				info, err := p.Info(t.Context())
				return err == nil && info.Available == 2
			}, "the leases have expired in Redis")
			p.requireAll(t, 2, 0, 2)
		}},
		{"an expired permit cannot be released", func(t *testing.T, p *poolCase) {
			fixture.InitPool(t, p, 10)
			timed, lasting := p.take(t, 3, expiringLease), p.take(t, 3)
			p.requireFree(t, 4)
			fixture.RequireEnds(t, timed.Context(), primitives.ErrLost)
			redistest.WaitFor(t, fixture.Soon, func() bool { return len(p.leases(t)) == 3 }, "three permits have expired")
			fixture.Release(t, lasting)
			p.requireFree(t, 10)
			require.ErrorIs(t, p.releaseIDs(t, permitIDs(timed)...), primitives.ErrNotHeld)
			require.ErrorIs(t, timed.Release(t.Context()), primitives.ErrLost)
			p.requireFree(t, 10)
		}},
		{"the next acquisition collects expired permits", func(t *testing.T, p *poolCase) {
			fixture.InitPool(t, p, 10)
			timed := p.take(t, 6, expiringLease)
			fixture.RequireEnds(t, timed.Context(), primitives.ErrLost)
			redistest.WaitFor(t, fixture.Soon, func() bool { return len(p.leases(t)) == 0 }, "all permits have expired")
			next := p.take(t, 1, expiringLease)
			p.requireFree(t, 9)
			fixture.RequireEnds(t, next.Context(), primitives.ErrLost)
			redistest.WaitFor(t, fixture.Soon, func() bool { return len(p.leases(t)) == 0 }, "all permits have expired")
			p.requireFree(t, 10)
		}},
		{"Extend extends a live lease and fails after expiry", func(t *testing.T, p *poolCase) {
			fixture.InitPool(t, p, 1)
			hold := p.take(t, 1, expiringLease)
			require.NoError(t, hold.Extend(t.Context(), time.Minute))
			require.Greater(t, p.leases(t)[hold.ID()], 50*time.Second)
			fixture.Release(t, hold)
			hold = p.take(t, 1, expiringLease)
			fixture.RequireEnds(t, hold.Context(), primitives.ErrLost)
			require.ErrorIs(t, hold.Extend(t.Context(), time.Minute), primitives.ErrLost)
			redistest.WaitFor(t, fixture.Soon, func() bool { return len(p.leases(t)) == 0 }, "all permits have expired")
			p.requireFree(t, 1)
		}},
		{"Info reports the remaining lease", func(t *testing.T, p *poolCase) {
			fixture.InitPool(t, p, 1)
			require.Empty(t, p.leases(t))
			began := time.Now()
			hold := p.take(t, 1, primitives.WithLease(time.Minute))
			left := p.leases(t)[hold.ID()] - 2*time.Millisecond // its end is rounded up
			fixture.RequireLeft(t, left, time.Minute, began)
			fixture.Release(t, hold)
			require.Empty(t, p.leases(t))
		}},
		{"leases that are handed off end with the pool", func(t *testing.T, p *poolCase) {
			fixture.InitPool(t, p, 1)
			require.NoError(t, p.s.Client(t).PExpire(t.Context(), p.key, time.Hour).Err())
			hold := p.take(t, 1)
			waiting := fixture.StartAcquire(t.Context(), p)
			fixture.AwaitWaiter(t, p.s, p.key)
			fixture.Release(t, hold)
			require.NoError(t, fixture.Await(t, waiting).Err)
			require.Positive(t, p.s.Client(t).PTTL(t.Context(), "{"+p.key+"}:timeout").Val())
		}},
		{"an expired pool leaves no keys", func(t *testing.T, p *poolCase) {
			fixture.InitPool(t, p, 1)
			require.NoError(t, p.s.Client(t).PExpire(t.Context(), p.key, 2*fixture.ShortLease).Err())
			p.take(t, 1, expiringLease)
			fixture.RequireClean(t, p.s, p.key)
		}},
	}
)

// leases returns the remaining lease of each held permit, by id.
func (p *poolCase) leases(t *testing.T) map[string]time.Duration {
	t.Helper()
	info := fixture.InfoOf(t, p)
	left := map[string]time.Duration{}
	for _, h := range info.Holders {
		left[h.ID] = h.TTL
	}
	return left
}
