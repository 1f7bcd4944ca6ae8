package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// The first attempt of a try gets no answer, and a later attempt is refused. A copy of the first
// attempt that Redis executes later must not take the lock, since nobody would release it.
func TestLateCopyOfARefusedAttemptTakesNothing(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds.Mutexes() {
		for _, owner := range [][]primitives.Option{nil, {primitives.WithOwner("o")}} {
			if owner != nil && kind.Pool {
				continue
			}
			t.Run(fmt.Sprint(kind.Name, " shared: ", owner != nil), func(t *testing.T) {
				redistest.Each(t, func(t *testing.T, s *redistest.Server) {
					name, p := redistest.Name(t), s.Proxy(t)
					direct, doubtful := fixture.NewClient(t, s.Client(t)), fixture.NewClient(t, p.Client(t, fixture.FastRetries))
					mine, theirs := kind.One(t, direct, name), kind.One(t, doubtful, name)
					hold := fixture.Acquire(t, t.Context(), mine)
					_, err := theirs.TryAcquire(t.Context(), owner...) // loads the scripts
					require.ErrorIs(t, err, primitives.ErrNotAcquired)
					p.Record()
					p.DropCommands(1, fixture.Script)
					require.ErrorIs(t, fixture.ErrOf(theirs.TryAcquire(t.Context(), owner...)), primitives.ErrNotAcquired)
					lost := fixture.ScriptsOf(p)[:1]
					p.Heal()
					redistest.WaitFor(t, fixture.Soon, func() bool { return len(fixture.ScriptsOf(p)) >= 3 },
						"the attempts are rolled back")
					fixture.Release(t, hold)
					fixture.Replay(t, s.Client(t), lost)
					hold, err = mine.TryAcquire(t.Context())
					require.NoError(t, err, "the late copy took the lock")
					fixture.Release(t, hold)
				})
			})
		}
	}
}

// A client acquires for all its waiting readers in one command. If its outcome is unknown, it is
// rolled back for each of them, and a late copy acquires for none.
func TestLateCopyAdmitsNoReaders(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name, p := redistest.Name(t), s.Proxy(t)
		direct, doubtful := fixture.NewClient(t, s.Client(t)), fixture.NewClient(t, p.Client(t, fixture.FastRetries))
		writer := fixture.Acquire(t, t.Context(), direct.RWLock(name).Writer())
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		const readers = 3
		memoriesIn := func(args []string) (memories []string) { // of the requests in a batch
			for _, key := range args {
				if strings.HasPrefix(key, "redisson_unlock_latch:") && !strings.HasSuffix(key, ":owners") &&
					!strings.HasSuffix(key, ":turns") {
					memories = append(memories, key)
				}
			}
			return memories
		}
		isBatch := func(args []string) bool { return fixture.Script(args) && len(memoriesIn(args)) == readers }
		var waiting []<-chan fixture.Result
		reader := doubtful.RWLock(name).Reader()
		for range readers {
			waiting = append(waiting, fixture.StartAcquire(ctx, reader))
		}
		fixture.AwaitWaiters(t, doubtful, readers)
		p.Record()
		p.DropCommands(1, isBatch) // that the next slow poll sends
		redistest.WaitFor(t, fixture.Soon, func() bool { return len(fixture.Recorded(p, isBatch)) >= 2 },
			"the batch is repeated")
		lost := fixture.Recorded(p, isBatch)[:1]
		p.Heal()
		cancel()
		for _, w := range waiting {
			require.ErrorIs(t, fixture.Await(t, w).Err, primitives.ErrNotAcquired)
		}
		memories := memoriesIn(lost[0].Args)
		redistest.WaitFor(t, fixture.Soon, func() bool {
			values, err := s.Client(t).MGet(t.Context(), memories...).Result()
			require.NoError(t, err)
			return !slices.ContainsFunc(values, func(value any) bool { return value != "3" })
		}, "the attempts are rolled back")
		fixture.Release(t, writer)
		fixture.Replay(t, s.Client(t), lost)
		require.Empty(t, fixture.Fields(t, s, name), "the late copy acquired for readers")
	})
}

// A hold whose release has been sent is no longer an outer hold, even if its context was kept and
// the outcome of the release is unknown. The acquisition becomes an outermost one.
func TestNestingUnderAReleaseOfUnknownOutcomeWaits(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name, p := redistest.Name(t), s.Proxy(t)
		c := fixture.NewClient(t, p.Client(t, fixture.FastRetries))
		l := c.Lock(name)
		outer := fixture.Acquire(t, t.Context(), l)
		inner := fixture.Acquire(t, outer.Context(), l) // the next sibling waits for its release
		nested := fixture.StartAcquire(context.WithoutCancel(outer.Context()), l, primitives.WithWait(10*time.Second))
		fixture.Release(t, inner)
		fixture.Release(t, fixture.AwaitHold(t, nested))

		p.DropCommands(1000, fixture.Script)
		require.ErrorIs(t, outer.Release(t.Context()), primitives.ErrOutcomeUnknown)
		late := fixture.StartAcquire(context.WithoutCancel(outer.Context()), l, primitives.WithWait(10*time.Second))
		p.Heal()
		hold := fixture.AwaitHold(t, late)
		require.NotEqual(t, outer.ID(), hold.ID(), "an outermost acquisition has its own id")
		require.Equal(t, map[string]string{hold.ID(): "1"}, fixture.Fields(t, s, name))
		require.NoError(t, hold.Check(t.Context()))
		fixture.Release(t, hold)
	})
}

// A private hold and a WithOwner hold may have the same id. Each release takes its own count only.
func TestPrivateAndSharedReleasesGiveBackTheirOwn(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds.Locks() {
		for _, order := range []string{"private first", "shared first"} {
			t.Run(kind.Name+", "+order, func(t *testing.T) {
				redistest.Each(t, func(t *testing.T, s *redistest.Server) {
					name := redistest.Name(t)
					l := kind.Lock(fixture.NewClient(t, s.Client(t)), name)
					other := kind.Lock(fixture.NewClient(t, s.Client(t)), name)
					private := fixture.Acquire(t, t.Context(), l)
					shared := fixture.Acquire(t, t.Context(), other, primitives.WithOwner(private.ID()))
					nested := fixture.Acquire(t, private.Context(), l)
					require.Equal(t, 3, fixture.InfoOf(t, l).Holders[0].Count)
					fixture.Release(t, nested)
					first, last := private, shared
					if order == "shared first" {
						first, last = shared, private
					}
					fixture.Release(t, first)
					require.NoError(t, last.Check(t.Context()), "the first release took the other count too")
					require.NotEmpty(t, fixture.Fields(t, s, name))
					fixture.Release(t, last)
					require.Empty(t, fixture.Fields(t, s, name))
					require.Empty(t, fixture.SharedCounts(t, s, name))
					fixture.RequireClean(t, s, name, "redisson_lock_token:{"+name+"}")
				})
			})
		}
	}
}

// Each kind: WithOwner acquires with the id of a private hold whose lock was deleted. Nothing in
// Redis belongs to the private hold then.
func TestReleaseOfALostHoldWhoseIDHoldsAgain(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds.Locks() {
		t.Run(kind.Name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				name := redistest.Name(t)
				l := kind.Lock(fixture.NewClient(t, s.Client(t)), name)
				private := fixture.Acquire(t, t.Context(), l)
				require.NoError(t, s.Client(t).Del(t.Context(), name, "{"+name+"}:"+private.ID()+":rwlock_timeout:1").Err())
				shared := fixture.Acquire(t, t.Context(), l, primitives.WithOwner(private.ID()))
				require.ErrorIs(t, private.Release(t.Context()), primitives.ErrLost)
				require.NoError(t, shared.Check(t.Context()))
				fixture.Release(t, shared)
				fixture.RequireClean(t, s, name, "redisson_lock_token:{"+name+"}")
			})
		})
	}
}

// openLock returns a lock of a client.
type openLock func(c *primitives.Client, name string) *primitives.Lock

// Acquiring with the context of a hold that Redis no longer has gives ErrLost and takes nothing.
func TestNestingUnderALostHoldTakesNothing(t *testing.T) {
	t.Parallel()
	lock := func(c *primitives.Client, name string) *primitives.Lock { return c.Lock(name) }
	fair := func(c *primitives.Client, name string) *primitives.Lock { return c.FairLock(name) }
	reader := func(c *primitives.Client, name string) *primitives.Lock { return c.RWLock(name).Reader() }
	writer := func(c *primitives.Client, name string) *primitives.Lock { return c.RWLock(name).Writer() }
	multi := func(c *primitives.Client, name string) *primitives.Lock {
		return primitives.NewMultiLock([]*primitives.Lock{c.Lock(name)})
	}
	red := func(c *primitives.Client, name string) *primitives.Lock {
		return primitives.NewRedLock([]*primitives.Lock{c.Lock(name)})
	}
	owned := []primitives.Option{primitives.WithOwner("o")}
	for _, tt := range []struct {
		name    string
		outer   openLock
		options []primitives.Option // of the outer acquisition
		inner   openLock            // nil for the same as outer
		// The call finds the loss of the member, and the loss of the joint lock is reported later.
		awaitsEvent bool
	}{
		{name: "lock", outer: lock},
		{name: "lock with an owner", outer: lock, options: owned},
		{name: "fair with an owner", outer: fair, options: owned},
		{name: "writer with an owner", outer: writer, options: owned},
		{name: "reader with an owner", outer: reader, options: owned},
		{name: "multi", outer: multi, awaitsEvent: true},
		{name: "member of a multi", outer: multi, inner: lock, awaitsEvent: true},
		{name: "red", outer: red, awaitsEvent: true},
		{name: "reader under a writer", outer: writer, inner: reader},
	} {
		t.Run(tt.name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				name := redistest.Name(t)
				var seen fixture.Recorder
				c := fixture.NewClient(t, s.Client(t), seen.Option())
				l := tt.outer(c, name)
				inner := l
				if tt.inner != nil {
					inner = tt.inner(c, name)
				}
				outer := fixture.Acquire(t, t.Context(), l, tt.options...)
				require.NoError(t, s.Client(t).Del(t.Context(), name).Err()) // as an operator might do
				kept := context.WithoutCancel(outer.Context())
				require.ErrorIs(t, fixture.ErrOf(inner.Acquire(kept)), primitives.ErrLost)
				require.Empty(t, fixture.Fields(t, s, name), "the nested acquisition took the lock")
				if tt.awaitsEvent {
					seen.Await(t, primitives.EventLost)
				}
				require.Len(t, seen.All(primitives.EventLost), 1, "the loss is reported before Acquire returns")
				fixture.RequireEnds(t, outer.Context(), primitives.ErrLost)
				require.ErrorIs(t, fixture.ErrOf(inner.Acquire(kept)), primitives.ErrLost, "the hold is already known to be lost")
				require.Empty(t, fixture.Fields(t, s, name))
				require.ErrorIs(t, outer.Release(t.Context()), primitives.ErrLost)
				fixture.Release(t, fixture.Acquire(t, kept, inner)) // the outer hold is released, so this one is outermost
			})
		})
	}
}

// lifeCalls is how many calls of a kind each life of a client makes.
const lifeCalls = 10

// Two clients with the same WithClientID, one after the other, use different numbers, so the second
// never meets remembered requests or holds of the first.
func TestLivesOfOneClientIDDoNotMeet(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		const uuid = "0f0e0d0c-0b0a-4908-8706-050403020100"
		open := func() *primitives.Client { return fixture.NewClient(t, s.Client(t), primitives.WithClientID(uuid)) }
		first := open()
		latch := first.CountDownLatch(name + "-latch")
		require.NoError(t, fixture.ErrOf(latch.Init(t.Context(), 2*lifeCalls)))
		countDowns := func(c *primitives.Client) {
			for range lifeCalls {
				require.NoError(t, c.CountDownLatch(name+"-latch").CountDown(t.Context()))
			}
		}
		countDowns(first)
		for range lifeCalls {
			fixture.Release(t, fixture.Acquire(t, t.Context(), first.Lock(name+"-released")))
		}
		held := fixture.Acquire(t, t.Context(), first.Lock(name))
		second := open()
		require.NotEqual(t, first.Lock(name+"-x"), second.Lock(name+"-x"))
		countDowns(second)
		count, err := latch.Count(t.Context())
		require.NoError(t, err)
		require.Zero(t, count, "Redis took a count-down of the second client for a copy")
		for range lifeCalls {
			fixture.Release(t, fixture.Acquire(t, t.Context(), second.Lock(name+"-released")))
		}
		for range 4 * lifeCalls { // more than the first client has made
			_, err = second.Lock(name).TryAcquire(t.Context())
			require.ErrorIs(t, err, primitives.ErrNotAcquired, "the first client still holds it")
		}
		fixture.Release(t, held)
		one, two := fixture.Acquire(t, t.Context(), first.Lock(name)), fixture.Acquire(t, t.Context(), second.Lock(name+"-2"))
		require.NotEqual(t, one.ID(), two.ID())
	})
}

// A permit without a lease leaks if its release is lost, so the release is repeated until it is
// answered, and the permit's own memory keeps it idempotent.
func TestSemaphorePermitDoesNotLeak(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name, p := redistest.Name(t), s.Proxy(t)
		direct := fixture.NewClient(t, s.Client(t)).Semaphore(name)
		require.NoError(t, fixture.ErrOf(direct.Init(t.Context(), 2)))
		sem := fixture.NewClient(t, p.Client(t, fixture.FastRetries)).Semaphore(name)
		hold := fixture.Acquire(t, t.Context(), sem)
		fixture.Release(t, hold) // loads the scripts
		hold = fixture.Acquire(t, t.Context(), sem)
		memories := redistest.Keys(t, s, "redisson_unlock_latch:{"+name+"}:*")
		require.NotEmpty(t, memories)
		longest := time.Duration(0)
		for _, key := range memories {
			longest = max(longest, s.Client(t).PTTL(t.Context(), key).Val())
		}
		require.Greater(t, longest, 23*time.Hour, "Redis remembers the permit for as long as it may be released")
		p.DropReplies(1000, fixture.Script)
		require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrOutcomeUnknown)
		// Redis forgets the release before the next copy arrives.
		for _, key := range redistest.Keys(t, s, "redisson_unlock_latch:{"+name+"}:*") {
			require.NoError(t, s.Client(t).Del(t.Context(), key).Err())
		}
		p.Heal()
		p.Record()
		redistest.WaitFor(t, fixture.Soon, func() bool { return len(fixture.ScriptsOf(p)) > 0 },
			"it is repeated in the background")
		require.Equal(t, 2, fixture.InfoOf(t, direct).Available, "the permit is released once")
	})
}

// Siblings that release at the same time each return within the time limit of one release, even if
// Redis is silent.
func TestSiblingsReleaseWithinFiveSeconds(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	name, p := redistest.Name(t), s.Proxy(t)
	l := fixture.NewClient(t, p.Client(t)).RWLock(name).Reader()
	outer := fixture.Acquire(t, t.Context(), l)
	holds := []*primitives.Hold{outer}
	for range 3 {
		holds = append(holds, fixture.Acquire(t, outer.Context(), l))
	}
	p.BlackHole(true)
	began := time.Now()
	var wg sync.WaitGroup
	for _, h := range holds {
		wg.Go(func() {
			if err := h.Release(t.Context()); !errors.Is(err, primitives.ErrOutcomeUnknown) {
				t.Errorf("Release returned %v", err)
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	t.Logf("four siblings returned from Release after %v", took)
	require.Less(t, took, 9*time.Second, "two releases, one after the other, would take 10 s")
	p.Recover() // or each repetition could wait for a reply on another silent connection
	redistest.WaitFor(t, 2*fixture.Soon, func() bool { return len(fixture.Fields(t, s, name)) == 0 }, "the releases go on")
}

// A waiter acquires a free lock although the try of the waiter before it hangs in a stuck
// connection.
func TestStuckConnectionHoldsUpNoOtherWaiter(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	name, p := redistest.Name(t), s.Proxy(t)
	holder := fixture.Acquire(t, t.Context(), fixture.NewClient(t, s.Client(t)).Lock(name))
	c := fixture.NewClient(t, p.Client(t, func(o *redis.Options) { o.ReadTimeout = 2 * fixture.Soon }),
		primitives.WithCommandTimeout(2*fixture.Soon))
	l := c.Lock(name)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	acquireOne := func() (*primitives.Hold, error) { return l.Acquire(ctx) }
	first := fixture.Start(acquireOne)
	fixture.AwaitWaiters(t, c, 1)
	second := fixture.Start(acquireOne)
	fixture.AwaitWaiters(t, c, 2)
	var tries atomic.Int32
	free := p.HoldReplies(func(args []string) bool { return fixture.Script(args) && tries.Add(1) == 1 })
	defer free()
	redistest.WaitFor(t, fixture.Soon, func() bool { return p.Held() > 0 }, "the first waiter's try is stuck")
	released := time.Now()
	fixture.Release(t, holder)
	r := fixture.AwaitAcquired(t, second)
	took := r.At.Sub(released)
	t.Logf("the second waiter acquired after %v", took)
	require.Less(t, took, fixture.SlowPoll, "the stuck command ends after 30 s")
	fixture.Release(t, r.Hold)
	free()
	r = fixture.AwaitAcquired(t, first)
	fixture.Release(t, r.Hold)
}

// Locker.Lock ignores a default WithWait: it waits in the queue, and does not time out and start
// over.
func TestLockerIgnoresADefaultWait(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		hold := fixture.Acquire(t, t.Context(), fixture.NewClient(t, s.Client(t)).Lock(name))
		seen := &fixture.Recorder{}
		defaults := primitives.WithDefaults(primitives.WithWait(5 * time.Millisecond))
		c := fixture.NewClient(t, s.Client(t), defaults, seen.Option())
		locker := c.Lock(name).Locker(t.Context())
		locked := make(chan time.Time, 1)
		go func() {
			locker.Lock()
			locked <- time.Now()
		}()
		fixture.AwaitWaiter(t, s, name)
		fixture.AwaitWaiters(t, c, 1) // it is in the queue, and not asleep between two attempts
		released := time.Now()
		fixture.Release(t, hold)
		require.Less(t, (<-locked).Sub(released), fixture.SlowPoll)
		require.Empty(t, seen.All(primitives.EventNotAcquired), "one acquisition waits all the time")
		locker.Unlock()
	})
}

// Check, Extend or Release finds a loss. The observer gets the event, with the caller's context,
// before the call returns. The cause of the hold's context names the lock.
func TestLossIsReportedBeforeTheCallReturns(t *testing.T) {
	t.Parallel()
	type key struct{}
	for _, tt := range []struct {
		name string
		find func(ctx context.Context, h *primitives.Hold) error
	}{
		{"Check", func(ctx context.Context, h *primitives.Hold) error { return h.Check(ctx) }},
		{"Extend", func(ctx context.Context, h *primitives.Hold) error { return h.Extend(ctx, time.Minute) }},
		{"Release", func(ctx context.Context, h *primitives.Hold) error { return h.Release(ctx) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				var seen fixture.Recorder
				name := redistest.Name(t)
				hold := fixture.Acquire(t, t.Context(), fixture.NewClient(t, s.Client(t), seen.Option()).Lock(name))
				section := hold.Context()
				require.NoError(t, s.Client(t).Del(t.Context(), name).Err())
				ctx := context.WithValue(t.Context(), key{}, "mine")
				require.ErrorIs(t, tt.find(ctx, hold), primitives.ErrLost)
				lost := seen.All(primitives.EventLost)
				require.Len(t, lost, 1)
				require.Equal(t, "mine", lost[0].Ctx.Value(key{}))
				cause := context.Cause(section)
				require.ErrorIs(t, cause, primitives.ErrLost)
				require.ErrorContains(t, cause, `redlatch: lock "`+name+`" lost: gone: `)
			})
		})
	}
}

// Every failed acquisition emits one event with its error, the caller's context and the time
// waited.
func TestEveryFailedAcquisitionIsReported(t *testing.T) {
	type key struct{}
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, kind := range kinds.Mutexes() {
			t.Run(kind.Name, func(t *testing.T) {
				name := redistest.Name(t)
				var seen fixture.Recorder
				c := fixture.NewClient(t, s.Client(t), seen.Option())
				a := kind.One(t, c, name)
				hold := fixture.Acquire(t, t.Context(), a)
				ctx := context.WithValue(t.Context(), key{}, "mine")
				done, cancel := context.WithCancel(ctx)
				cancel()
				for i, acquire := range []func() error{
					func() error { _, err := a.TryAcquire(ctx); return err },
					func() error { _, err := a.Acquire(ctx, primitives.WithWait(200*time.Millisecond)); return err },
					func() error { _, err := a.Acquire(done); return err },
					func() error { _, err := a.Acquire(ctx, primitives.WithLease(-1)); return err },
				} {
					err := acquire()
					require.Error(t, err)
					events := seen.All(primitives.EventNotAcquired)
					require.Len(t, events, i+1)
					e := events[i]
					require.ErrorIs(t, err, e.Err)
					require.Equal(t, "mine", e.Ctx.Value(key{}))
					require.Equal(t, name, e.Name)
					require.Equal(t, i == 1, e.Waited > 0, "waited %v", e.Waited)
				}
				fixture.Release(t, hold)
				require.Len(t, seen.All(primitives.EventAcquired), 1)
				require.Equal(t, t.Context(), seen.All(primitives.EventAcquired)[0].Ctx)
			})
		}
	})
}

// Extend beyond WithMaxHold moves ValidUntil before it returns.
func TestExtendBeyondMaxHoldCountsAtOnce(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := fixture.NewClient(t, s.Client(t)).Lock(redistest.Name(t))
		hold := fixture.Acquire(t, t.Context(), l, primitives.WithMaxHold(5*time.Second))
		require.NoError(t, hold.Extend(t.Context(), time.Hour))
		require.Greater(t, time.Until(hold.ValidUntil()), 50*time.Minute)
		fixture.Release(t, hold)
	})
}

// A second wake-up arrives while the first waiter's try is under way, and that try succeeds. The
// wake-up must not be dropped: it lets the second waiter try.
func TestSemaphoreWakeUpDuringATryIsKept(t *testing.T) {
	t.Parallel()
	fixture.Bubble(t, func(t *testing.T, b *fixture.BubbleTest) {
		direct := fixture.NewClient(t, b.S.Client(t)).Semaphore("n")
		fixture.InitPool(t, direct, 2)
		one := fixture.Acquire(t, t.Context(), direct)
		two := fixture.Acquire(t, t.Context(), direct)
		sem := b.C.Semaphore("n")
		acquireOne := func() (*primitives.Hold, error) { return sem.Acquire(t.Context()) }
		waiting := []<-chan fixture.Result{fixture.Start(acquireOne)}
		fixture.AwaitWaiters(t, b.C, 1)
		waiting = append(waiting, fixture.Start(acquireOne))
		time.Sleep(2500 * time.Millisecond) // half way between two slow polls
		answer := b.P.HoldReplies(fixture.Script)
		fixture.Release(t, one) // the first waiter's try succeeds; the proxy holds its answer back
		synctest.Wait()
		require.Equal(t, 1, b.P.Held())
		fixture.Release(t, two) // the second waiter needs this wake-up
		synctest.Wait()
		released := time.Now()
		answer()
		var holds []*primitives.Hold
		for _, w := range waiting { // both, before one of them is released and wakes the other
			r := <-w
			require.NoError(t, r.Err)
			require.Less(t, r.At.Sub(released), 10*time.Millisecond, "a permit was free, but the waiter slept")
			holds = append(holds, r.Hold)
		}
		fixture.Release(t, holds...)
	})
}
