package contract

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// Goroutines of two clients work on one lock. At most one is inside, tokens rise, most releases
// send nothing, and nothing is left.
func TestC24CohortsExcludeEachOther(t *testing.T) {
	fixture.EachKind(t, kinds.Cohorts(), func(t *testing.T, s *redistest.Server, kind kinds.Kind) {
		const clients, goroutines, sections = 2, 8, 50
		name := redistest.Name(t)
		var inside atomic.Int32
		var token int64 // of the last holder; guarded by the lock
		var wg sync.WaitGroup
		before := redistest.Commands(t, s)
		for range clients {
			l := kind.Lock(fixture.NewClient(t, s.Client(t)), name, primitives.WithCohort(20*time.Millisecond))
			for range goroutines {
				wg.Go(func() {
					for range sections {
						hold, err := l.Acquire(t.Context())
						if !assert.NoError(t, err) {
							return
						}
						assert.EqualValues(t, 1, inside.Add(1), "somebody else holds")
						if kind.Name == "fenced" {
							assert.Greater(t, hold.Token(), token)
						} else {
							assert.Zero(t, hold.Token())
						}
						token = hold.Token()
						inside.Add(-1)
						assert.NoError(t, hold.Release(t.Context()))
					}
				})
			}
		}
		wg.Wait()
		scripts := redistest.Commands(t, s).Since(before)["evalsha"]
		t.Logf("%d scripts for %d acquisitions", scripts, clients*goroutines*sections)
		require.Less(t, scripts, int64(clients*goroutines*sections), "a hand-off by a command takes one each")
		fixture.RequireClean(t, s, name, "redisson_lock_token:{"+name+"}")
	})
}

// One client's goroutines would keep the lock for ever. Another client gets it when the cohort's
// time is over.
func TestC24OtherClientsGoFirstWhenTheTimeIsOver(t *testing.T) {
	t.Parallel()
	fixture.EachKind(t, kinds.Cohorts(), func(t *testing.T, s *redistest.Server, kind kinds.Kind) {
		name := redistest.Name(t)
		busy := kind.Lock(fixture.NewClient(t, s.Client(t)), name, primitives.WithCohort(100*time.Millisecond))
		other := kind.Lock(fixture.NewClient(t, s.Client(t)), name)
		keepBusy(t, busy)
		for range 3 {
			began := time.Now()
			hold, err := other.Acquire(t.Context(), primitives.WithWait(fixture.Soon))
			require.NoError(t, err, "cohorts follow each other without a break")
			t.Logf("the other client waited for %v", time.Since(began))
			fixture.Release(t, hold)
		}
	})
}

// passOn returns a hold that was passed on within a cohort, and a waiter behind it.
func passOn(t *testing.T, c *primitives.Client, l *primitives.Lock) (*primitives.Hold, <-chan fixture.Result) {
	t.Helper()
	acquireOne := func() (*primitives.Hold, error) { return l.Acquire(t.Context()) }
	for range 100 {
		first := fixture.Acquire(t, t.Context(), l)
		second := fixture.Start(acquireOne)
		fixture.AwaitWaiters(t, c, 1)
		third := fixture.Start(acquireOne)
		fixture.AwaitWaiters(t, c, 2)
		fixture.Release(t, first)
		member := fixture.AwaitHold(t, second)
		if member.ID() == first.ID() {
			return member, third
		}
		// An attempt of the waiter was under way, so the lock was handed off by a command.
		fixture.Release(t, member)
		fixture.Release(t, fixture.AwaitHold(t, third))
	}
	require.FailNow(t, "no hold was passed on")
	return nil, nil
}

// The lock is taken by force while a cohort has it. The member that holds it learns of the loss,
// and the next waiters begin anew.
func TestC24LossEndsTheCohort(t *testing.T) {
	t.Parallel()
	fixture.EachKind(t, kinds.Cohorts(), func(t *testing.T, s *redistest.Server, kind kinds.Kind) {
		name := redistest.Name(t)
		c := fixture.NewClient(t, s.Client(t))
		l := kind.Lock(c, name, primitives.WithCohort(time.Minute))
		member, waiter := passOn(t, c, l)

		forced := fixture.ForceRelease(t, kind.Lock(fixture.NewClient(t, s.Client(t)), name))
		require.True(t, forced)
		require.ErrorIs(t, member.Check(t.Context()), primitives.ErrLost)
		require.ErrorIs(t, member.Release(t.Context()), primitives.ErrLost)
		last := fixture.AwaitHold(t, waiter)
		require.NotEqual(t, member.ID(), last.ID())
		fixture.Release(t, last)
		fixture.RequireClean(t, s, name, "redisson_lock_token:{"+name+"}")
	})
}

// A writer goes on reading after its release: a downgrade. The next writer waits for the reader,
// which has the same id on the wire.
func TestC24WriterThatStillReadsIsNotPassedOn(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := fixture.NewClient(t, s.Client(t))
		rw := c.RWLock(redistest.Name(t), primitives.WithCohort(time.Minute))
		first := fixture.Acquire(t, t.Context(), rw.Writer())
		waiter := fixture.StartAcquire(t.Context(), rw.Writer())
		fixture.AwaitWaiters(t, c, 1)
		reader := fixture.Acquire(t, context.WithoutCancel(first.Context()), rw.Reader())
		fixture.Release(t, first)
		require.NoError(t, reader.Check(t.Context()))
		read := time.Now()
		fixture.Release(t, reader)
		next := fixture.AwaitAcquired(t, waiter)
		require.True(t, next.At.After(read), "a writer and a reader at once")
		fixture.Release(t, next.Hold)
	})
}

// The reply to the acquisition that begins a cohort is lost, or comes twice. Its tokens are
// reserved once. A hand-off by a command takes the next token after the block.
func TestC24TokensAreReservedOnce(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name, p := redistest.Name(t), s.Proxy(t)
		c := fixture.NewClient(t, p.Client(t, fixture.FastRetries))
		l := c.FencedLock(name, primitives.WithCohort(time.Minute))
		fixture.Release(t, fixture.Acquire(t, t.Context(), l)) // loads the scripts
		tokens := func() int64 {
			n, err := s.Client(t).Get(t.Context(), "redisson_lock_token:{"+name+"}").Int64()
			require.NoError(t, err)
			return n
		}
		reserved := tokens()
		p.DropReplies(1, fixture.Script)
		hold := fixture.Acquire(t, t.Context(), l)
		require.Equal(t, reserved+1, hold.Token())
		require.Equal(t, 2*reserved, tokens(), "a second block")

		waiter := fixture.StartAcquire(t.Context(), l, primitives.WithCohort(0))
		fixture.AwaitWaiters(t, c, 1)
		p.DropReplies(1, fixture.Script)
		fixture.Release(t, hold)
		next := fixture.AwaitHold(t, waiter)
		require.Equal(t, 2*reserved+1, next.Token(), "handed off by a command")
		require.Equal(t, 2*reserved+1, tokens(), "a waiter without a cohort needs one token")
		fixture.Release(t, next)
	})
}

// Other kinds ignore the option: each hold has an id of its own, or none.
func TestC24OtherKindsIgnoreCohorts(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := fixture.NewClient(t, s.Client(t), primitives.WithDefaults(primitives.WithCohort(time.Minute)))
		name := redistest.Name(t)
		sem := c.Semaphore(name + "s")
		permits := c.PermitExpirableSemaphore(name + "p")
		for _, init := range []func(context.Context, int) (bool, error){sem.Init, permits.Init} {
			require.NoError(t, fixture.ErrOf(init(t.Context(), 1)))
		}
		for kind, acquire := range map[string]func(context.Context, ...primitives.Option) (*primitives.Hold, error){
			"fair": c.FairLock(name + "f").Acquire, "reader": c.RWLock(name + "r").Reader().Acquire,
			"semaphore": sem.Acquire, "permits": permits.Acquire,
		} {
			t.Run(kind, func(t *testing.T) {
				first, err := acquire(t.Context())
				require.NoError(t, err)
				second := fixture.Start(func() (*primitives.Hold, error) { return acquire(t.Context()) })
				if kind != "reader" {
					redistest.WaitFor(t, fixture.Soon, func() bool { return fixture.Waiters(c) == 1 || kind == "fair" }, "it waits")
				}
				fixture.Release(t, first)
				got := fixture.AwaitHold(t, second)
				if kind != "semaphore" {
					require.NotEqual(t, first.ID(), got.ID())
				}
				fixture.Release(t, got)
			})
		}
	})
}

// Writers of one client would pass the lock on for ever. Readers, on the same client or on another,
// get it when the cohort's time is over.
func TestC24ReadersGoFirstWhenTheTimeOfTheWritersIsOver(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, readers := range []string{"of the same client", "of another client"} {
			t.Run(readers, func(t *testing.T) {
				name, busy := redistest.Name(t), fixture.NewClient(t, s.Client(t))
				writer := busy.RWLock(name, primitives.WithCohort(50*time.Millisecond)).Writer()
				reader := busy.RWLock(name).Reader()
				if readers == "of another client" {
					reader = fixture.NewClient(t, s.Client(t)).RWLock(name).Reader()
				}
				sections := keepBusy(t, writer)
				for range 10 {
					began, before := time.Now(), sections.Load()
					hold := fixture.Acquire(t, t.Context(), reader, primitives.WithWait(fixture.Soon))
					t.Logf("the reader waited for %v and %d sections", time.Since(began), sections.Load()-before)
					fixture.Release(t, hold)
				}
			})
		}
	})
}

// keepBusy has 8 goroutines acquire and release a lock until the test ends, and counts their
// sections.
func keepBusy(t *testing.T, l *primitives.Lock) *atomic.Int64 {
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	t.Cleanup(func() { stop(); wg.Wait() })
	var sections atomic.Int64
	work(t, ctx, &wg, l, 8, 0, &sections)
	redistest.WaitFor(t, fixture.Soon, func() bool { return sections.Load() > 20 }, "the busy client is at work")
	return &sections
}

// TestC24TakeoverDuringACohort has goroutines of one client pass a lock on, while another client
// takes it by force again and again. A loss is told to holders, and to nobody who waits. Nor does
// the lock stay free while somebody waits: a message that was not used costs a second, the time
// until the slow poll. The test counts its looks, a millisecond apart, because on a busy machine it
// stands still as the waiters do.
func TestC24TakeoverDuringACohort(t *testing.T) {
	t.Parallel()
	cohort := primitives.WithCohort(20 * time.Millisecond)
	for _, tt := range []struct {
		name    string
		options []primitives.Option
		times   int
		settles int64 // acquisitions between two takeovers; 0: a millisecond
	}{
		{name: "no cohort", times: 30, settles: 16},
		{name: "cohort", options: []primitives.Option{cohort}, times: 60, settles: 16},
		{
			name: "cohort that lingers", options: []primitives.Option{cohort, primitives.WithLinger(time.Second)},
			times: 60, settles: 16,
		},
		{name: "takeovers without a pause", options: []primitives.Option{cohort}, times: 1000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Redis(t)
			name := redistest.Name(t)
			c, admin := fixture.NewClient(t, s.Client(t)), fixture.NewClient(t, s.Client(t))
			ctx, stop := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			var acquired atomic.Int64
			for range 8 {
				wg.Go(func() {
					l := c.Lock(name, tt.options...)
					for ctx.Err() == nil {
						hold, err := l.Acquire(context.Background())
						if !assert.NoError(t, err, "a waiter has nothing to lose") {
							return
						}
						acquired.Add(1)
						time.Sleep(200 * time.Microsecond)
						_ = hold.Release(context.Background()) // it may be lost
					}
				})
			}
			longest := 0 // looks
			for range tt.times {
				require.NoError(t, fixture.ErrOf(admin.Lock(name).ForceRelease(t.Context())))
				n, looks := acquired.Load(), 0
				const look = time.Millisecond
				time.Sleep(look)
				for enough := n + tt.settles; acquired.Load() < enough; time.Sleep(look) {
					looks++
					now := acquired.Load()
					if now != n {
						n, looks = now, 0
					}
					longest = max(longest, looks)
				}
			}
			stop()
			wg.Wait()
			t.Logf("%d acquisitions; nobody acquired for %d looks at most", acquired.Load(), longest)
			require.Less(t, longest, 500)
		})
	}
}

// work has goroutines use l until ctx ends, for the length of a section each time, and counts the
// sections.
func work(
	t *testing.T, ctx context.Context, wg *sync.WaitGroup, l fixture.Handle, goroutines int, section time.Duration,
	sections *atomic.Int64,
) {
	for range goroutines {
		wg.Go(func() {
			for {
				hold, err := l.Acquire(ctx)
				if ctx.Err() != nil {
					if err == nil {
						assert.NoError(t, hold.Release(context.Background()))
					}
					return
				}
				if !assert.NoError(t, err) {
					return
				}
				sections.Add(1)
				time.Sleep(section)
				assert.NoError(t, hold.Release(context.Background()))
			}
		})
	}
}
