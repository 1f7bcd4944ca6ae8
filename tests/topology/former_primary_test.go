package topology

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// onFormer is how long a client may go on believing a former primary. Without a write in every
// script it took 7 s and more, or until the lease ended.
const onFormer = 5 * time.Second

// formers are what becomes of a former primary.
var formers = []struct {
	name   string
	linked bool
	stale  string // replica-serve-stale-data
}{
	{"replica of the new primary", true, "yes"},
	{"replica without a link", false, "yes"},
	{"replica without a link that serves no old data", false, "no"}, // it answers MASTERDOWN
}

// warm makes a client open several connections.
func warm(t testing.TB, c *primitives.Client) {
	fixture.Concurrently(8, func(i int) {
		_, err := c.Lock(fmt.Sprintf("warm-%d", i)).Info(t.Context())
		assert.NoError(t, err)
	})
}

// The name of the primary moves while clients wait: for each kind one that hears messages, one that
// polls, and one without a name, which has no reason to write by itself. The lock is released over
// the new primary.
func TestWaitersFollowTheNameOfThePrimary(t *testing.T) {
	for _, former := range formers {
		t.Run(former.name, func(t *testing.T) {
			t.Parallel()
			n := redistest.ReplicatedName(t)
			require.NoError(t, n.Former().Client(t).ConfigSet(t.Context(), "replica-serve-stale-data", former.stale).Err())
			holder := fixture.NewClient(t, n.Client(t))
			type waiter struct {
				name string
				held *primitives.Hold
				got  <-chan error
			}
			var waiters []waiter
			wait := func(of kinds.Kind, how string, c *primitives.Client, opts ...primitives.Option) {
				name := of.Name + " " + how
				warm(t, c)
				held := fixture.Acquire(t, t.Context(), of.One(t, holder, name))
				got := make(chan error, 1)
				go func() {
					h, err := of.Rival(c, name, opts...).Acquire(t.Context())
					if err == nil {
						err = h.Release(context.WithoutCancel(t.Context()))
					}
					got <- err
				}()
				fixture.AwaitWaiters(t, c, 1)
				waiters = append(waiters, waiter{name, held, got})
			}
			for _, k := range kinds.All() {
				wait(k, "hears", fixture.NewClient(t, n.Client(t)))
				wait(k, "polls", fixture.NewClient(t, n.Client(t)),
					primitives.WithPolling(50*time.Millisecond, 500*time.Millisecond))
				wait(k, "has no name", fixture.NewClient(t, n.Client(t), primitives.WithClientName("")))
			}
			locking := fixture.NewClient(t, n.Client(t))
			held := fixture.Acquire(t, t.Context(), holder.Lock("locker"))
			locked := make(chan error, 1)
			go func() {
				l := locking.Lock("locker").Locker(context.WithoutCancel(t.Context()))
				l.Lock()
				l.Unlock() //nolint:staticcheck // it was waited for
				locked <- nil
			}()
			fixture.AwaitWaiters(t, locking, 1)
			waiters = append(waiters, waiter{"Locker", held, locked})
			latch := fixture.NewClient(t, n.Client(t)).CountDownLatch("latch")
			require.NoError(t, fixture.ErrOf(latch.Init(t.Context(), 1)))
			opened := fixture.Go(func() error {
				return fixture.NewClient(t,
					n.Client(t)).CountDownLatch("latch").Wait(t.Context())
			})
			redistest.WaitFor(t, fixture.Soon, func() bool {
				return n.Former().Client(t).PubSubNumSub(t.Context(), "redisson_countdownlatch__channel__{latch}").
					Val()["redisson_countdownlatch__channel__{latch}"] == 1
			}, "the latch is waited for")

			n.Move(t, former.linked)
			require.NoError(t, latch.CountDown(t.Context()))
			for _, w := range waiters {
				require.NoError(t, w.held.Release(t.Context()), w.name)
			}
			released := time.Now()
			over := time.After(onFormer)
			for _, w := range append(waiters, waiter{name: "latch", got: opened}) {
				select {
				case err := <-w.got:
					require.NoError(t, err, w.name)
				case <-over:
					require.FailNow(t, "still waits", w.name)
				}
			}
			t.Logf("all went on within %v", time.Since(released).Round(time.Millisecond))
		})
	}
}

// Messages arrive on the new primary: a hand-off between clients takes no poll.
func TestMessagesFollowTheNameOfThePrimary(t *testing.T) {
	for _, former := range formers {
		t.Run(former.name, func(t *testing.T) {
			t.Parallel()
			n := redistest.ReplicatedName(t)
			require.NoError(t, n.Former().Client(t).ConfigSet(t.Context(), "replica-serve-stale-data", former.stale).Err())
			a, b := fixture.NewClient(t, n.Client(t)), fixture.NewClient(t, n.Client(t))
			kept := fixture.Acquire(t, t.Context(), b.Lock("kept")) // keeps b's subscription to notices
			pass := func() time.Duration {
				held := fixture.Acquire(t, t.Context(), a.Lock("passed"))
				waiting := fixture.StartAcquire(t.Context(), b.Lock("passed"))
				fixture.AwaitWaiters(t, b, 1)
				time.Sleep(50 * time.Millisecond) // the subscription is confirmed
				began := time.Now()
				fixture.Release(t, held)
				fixture.Release(t, fixture.AwaitHold(t, waiting))
				return time.Since(began)
			}
			pass()
			n.Move(t, former.linked)
			require.NoError(t, kept.Check(t.Context())) // meets the former primary
			require.Eventually(t, func() bool { return pass() < 250*time.Millisecond }, fixture.Soon, time.Millisecond,
				"messages arrive again")
			require.Zero(t, n.Former().Client(t).PubSubNumPat(t.Context()).Val())
			redistest.WaitFor(t, fixture.Soon, func() bool {
				return len(n.Former().Client(t).PubSubChannels(t.Context(), "*").Val()) == 0
			}, "nobody listens to the former primary")
			fixture.Release(t, kept)
		})
	}
}

// Each case first meets the former primary, which has old data, over a connection of its own. The
// new primary has forgotten everything.
func TestAnswersComeFromTheNewPrimary(t *testing.T) {
	t.Parallel()
	for _, stale := range []string{"yes", "no"} {
		t.Run("serves old data: "+stale, func(t *testing.T) {
			t.Parallel()
			answersComeFromTheNewPrimary(t, stale)
		})
	}
}

func answersComeFromTheNewPrimary(t *testing.T, stale string) {
	n := redistest.ReplicatedName(t)
	require.NoError(t, n.Former().Client(t).ConfigSet(t.Context(), "replica-serve-stale-data", stale).Err())
	type question struct {
		name string
		ask  func(ctx context.Context) error
	}
	var questions []question
	add := func(name string, ask func(context.Context) error) { questions = append(questions, question{name, ask}) }
	fixed := primitives.WithLease(10 * time.Minute)
	for _, k := range kinds.All() {
		lose := func(how string, opts ...primitives.Option) *primitives.Hold {
			h := fixture.Acquire(t, t.Context(), k.One(t, fixture.NewClient(t, n.Client(t)), k.Name+" "+how, opts...))
			return h
		}
		if k.Leased {
			lost := lose("check", fixed)
			add(k.Name+" Check", func(ctx context.Context) error { return wantLost(lost.Check(ctx)) })
			lost = lose("check of an owner", fixed, primitives.WithOwner("somebody:1"))
			add(k.Name+" Check of an owner", func(ctx context.Context) error { return wantLost(lost.Check(ctx)) })
			lost = lose("extend", fixed)
			add(k.Name+" Extend", func(ctx context.Context) error { return wantLost(lost.Extend(ctx, time.Second)) })
		}
		holder := fixture.NewClient(t, n.Client(t))
		require.NoError(t, fixture.ErrOf(k.One(t, holder, k.Name+" try").Acquire(t.Context(), fixed)))
		other := fixture.NewClient(t, n.Client(t))
		warm(t, other)
		add(k.Name+" TryAcquire", func(ctx context.Context) error {
			handle := k.Rival(other, k.Name+" try")
			if pool, ok := handle.(kinds.Pool); ok {
				if _, err := pool.Init(ctx, 1); err != nil {
					return err
				}
			}
			_, err := handle.TryAcquire(ctx)
			return err
		})
		if k.Joint() {
			continue
		}
		require.NoError(t, fixture.ErrOf(k.One(t, holder, k.Name+" view").Acquire(t.Context(), fixed)))
		viewer := fixture.NewClient(t, n.Client(t))
		warm(t, viewer)
		add(k.Name+" Info", func(ctx context.Context) error {
			info, err := k.Open(viewer, k.Name+" view").(interface {
				Info(ctx context.Context) (primitives.Info, error)
			}).Info(ctx)
			if err == nil && (len(info.Holders) > 1 || k.Name == "semaphore" && info.Available > 0) {
				err = fmt.Errorf("old data: %+v", info)
			}
			return err
		})
	}
	latches := fixture.NewClient(t, n.Client(t))
	for _, name := range []string{"count", "wait"} {
		require.NoError(t, fixture.ErrOf(latches.CountDownLatch(name).Init(t.Context(), 1)))
	}
	counting, waiting := fixture.NewClient(t, n.Client(t)), fixture.NewClient(t, n.Client(t))
	warm(t, counting)
	warm(t, waiting)
	add("latch Count", func(ctx context.Context) error {
		count, err := counting.CountDownLatch("count").Count(ctx)
		if err == nil && count != 0 {
			err = fmt.Errorf("old data: %d", count)
		}
		return err
	})
	add("latch Wait", waiting.CountDownLatch("wait").Wait)
	listing := fixture.NewClient(t, n.Client(t))
	warm(t, listing)
	add("Locks", func(ctx context.Context) error {
		for info, err := range listing.Locks(ctx, "*check*") {
			if err != nil {
				return err
			}
			return fmt.Errorf("old data: %+v", info)
		}
		return nil
	})

	n.Move(t, false)
	require.NoError(t, n.Current().Client(t).FlushAll(t.Context()).Err())
	var asked sync.WaitGroup
	for _, q := range questions {
		asked.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), onFormer)
			defer cancel()
			if err := q.ask(ctx); err != nil {
				t.Errorf("%s: %v", q.name, err)
			}
		})
	}
	asked.Wait()
}

// wantLost returns an error unless err is that of a lost hold.
func wantLost(err error) error {
	if !errors.Is(err, primitives.ErrLost) {
		return fmt.Errorf("want ErrLost, got %w", err)
	}
	return nil
}
