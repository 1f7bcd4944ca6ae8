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

// pollers are the kinds whose waiters poll with WithPolling. A fair lock has a queue in Redis.
func pollers() []kinds.Kind {
	return kinds.Select(func(k kinds.Kind) bool { return k.Name != "fair" })
}

// TestPollerHasItsOwnPauses has a request poll in short pauses beside another one of its client,
// with long pauses. The other one may have given up meanwhile. A request that comes later acquires
// a free lock by its first attempt.
func TestPollerHasItsOwnPauses(t *testing.T) {
	t.Parallel()
	short := primitives.WithPolling(5*time.Millisecond, 10*time.Millisecond)
	long := primitives.WithPolling(time.Minute, time.Minute)
	fixture.EachKind(t, pollers(), func(t *testing.T, s *redistest.Server, k kinds.Kind) {
		for _, givesUp := range []bool{false, true} {
			name := redistest.Name(t)
			rival, c := fixture.NewClient(t, s.Client(t)), fixture.NewClient(t, s.Client(t))
			k.One(t, rival, name) // makes a pool
			hold := fixture.Acquire(t, t.Context(), k.Rival(rival, name))
			ctx, giveUp := context.WithCancel(t.Context())
			slow := fixture.StartAcquire(ctx, k.Open(c, name, long))
			fixture.AwaitWaiters(t, c, 1)
			quick := fixture.StartAcquire(t.Context(), k.Open(c, name, short))
			fixture.AwaitWaiters(t, c, 2)
			if givesUp {
				giveUp()
				require.ErrorIs(t, fixture.Await(t, slow).Err, context.Canceled)
			}
			fixture.Release(t, hold)
			released := time.Now()
			r := fixture.AwaitAcquired(t, quick)
			require.Less(t, r.At.Sub(released), 3*time.Second)
			fixture.Release(t, r.Hold)
			again, err := k.Open(c, name, long).Acquire(t.Context(), primitives.WithWait(10*time.Second))
			require.NoError(t, err, "it is free")
			fixture.Release(t, again)
			giveUp()
			if !givesUp {
				require.ErrorIs(t, fixture.Await(t, slow).Err, context.Canceled)
			}
		}
	})
}

// TestPollingWriterBesideReaders has a writer poll, with pauses that are longer than its
// reservation lasts, beside readers that come and go. It has its turn, and the readers do not wait
// for long for a lock that nobody has.
func TestPollingWriterBesideReaders(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	name := redistest.Name(t)
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var inside, reads atomic.Int64
	for i := range 3 {
		reader := fixture.NewClient(t, s.Client(t)).RWLock(name).Reader()
		wg.Go(func() {
			time.Sleep(time.Duration(i) * 40 * time.Millisecond)
			for ctx.Err() == nil {
				hold, err := reader.Acquire(context.Background())
				if !assert.NoError(t, err) {
					return
				}
				inside.Add(1)
				time.Sleep(100 * time.Millisecond)
				inside.Add(-1)
				reads.Add(1)
				assert.NoError(t, hold.Release(context.Background()))
			}
		})
	}
	redistest.WaitFor(t, fixture.Soon, func() bool { return reads.Load() > 3 }, "they read")
	polls := primitives.WithPolling(3*time.Second, 3*time.Second)
	writer := fixture.NewClient(t, s.Client(t)).RWLock(name, polls).Writer()
	write := fixture.StartAcquire(t.Context(), writer, primitives.WithWait(10*time.Second))
	var idle time.Duration
	since := time.Now()
	var r fixture.Result
	for waiting := true; waiting; {
		select {
		case r = <-write:
			waiting = false
		case <-time.After(5 * time.Millisecond):
			if inside.Load() > 0 {
				since = time.Now()
			}
			idle = max(idle, time.Since(since))
		}
	}
	stop()
	require.NoError(t, r.Err)
	require.Less(t, idle, 1200*time.Millisecond)
	fixture.Release(t, r.Hold)
	wg.Wait()
}

// TestPollerBesideGoroutinesThatHandOff has eight goroutines of a client use a lock all the time,
// and a request of another client poll for it. It finds the lock free about as often as if nobody
// handed off.
func TestPollerBesideGoroutinesThatHandOff(t *testing.T) {
	t.Parallel()
	of := kinds.Select(func(k kinds.Kind) bool { return k.Name != "fair" && k.Name != "reader" && !k.Joint() })
	fixture.EachKind(t, of, func(t *testing.T, s *redistest.Server, k kinds.Kind) {
		name := redistest.Name(t)
		l := k.One(t, fixture.NewClient(t, s.Client(t)), name)
		poller := k.Open(fixture.NewClient(t, s.Client(t)), name,
			primitives.WithPolling(100*time.Millisecond, 100*time.Millisecond))
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var turns atomic.Int64
		work(t, ctx, &wg, l, 8, 200*time.Microsecond, &turns)
		redistest.WaitFor(t, fixture.Soon, func() bool { return turns.Load() > 50 }, "they hand off")
		const tries = 5
		began := time.Now()
		for range tries {
			fixture.Release(t, fixture.Acquire(t, t.Context(), poller, primitives.WithWait(20*time.Second)))
		}
		mean := time.Since(began) / tries
		t.Logf("mean wait %v", mean)
		assert.Less(t, mean, 3*time.Second) // on an idle machine it is a fraction of a second
		stop()
		wg.Wait()
	})
}
