package primitives_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// TestC5CancelledAcquireLeavesNothing cancels acquisitions at random times, from before the first
// command to long after the acquisition.
func TestC5CancelledAcquireLeavesNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		checkLeaks(t)
		measured := redistest.Bar(t, s, 4)
		c := newClient(t, s.Client(t))
		name := redistest.Name(t)
		names := make([]string, 20)
		for i := range names {
			names[i] = name + "-" + strconv.Itoa(i)
		}
		n := redistest.Sized(s, redistest.Scaled(s, 5000), 100_000)
		var got atomic.Int64
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				for range n/50 + 1 {
					l := c.Lock(names[rand.IntN(len(names))])
					ctx, cancel := context.WithCancelCause(context.Background())
					timer := time.AfterFunc(time.Duration(rand.ExpFloat64()*float64(5*time.Millisecond)), func() {
						cancel(errTest)
					})
					var opts []primitives.Option
					if rand.IntN(4) == 0 {
						opts = append(opts, primitives.WithOwner("o"+strconv.FormatUint(rand.Uint64(), 16)))
					}
					hold, err := l.Acquire(ctx, opts...)
					switch {
					case err == nil:
						got.Add(1)
						if err := hold.Release(ctx); err != nil {
							t.Error(err)
						}
					case !errors.Is(err, primitives.ErrNotAcquired) || !errors.Is(err, errTest):
						t.Error(err)
					}
					timer.Stop()
					cancel(nil)
				}
			})
		}
		wg.Wait()
		clean := requireClean(t, s, name)        // a lock that is left would expire after 30 s
		require.NoError(t, c.Close(t.Context())) // it waits for holds, so none is left
		measured("%d acquisitions, %d of them cancelled in time; nothing left after %v", n, n-int(got.Load()), clean)
	})
}

// TestC5CancelledInFlightIsRolledBack cancels an acquisition while its command is in flight. The
// outcome is rolled back, by the call or in the background.
func TestC5CancelledInFlightIsRolledBack(t *testing.T) {
	for _, opts := range [][]primitives.Option{nil, {primitives.WithOwner("o")}} {
		eachLock(t, func(t *testing.T, x *lockTest) {
			p := x.s.Proxy(t)
			l := newClient(t, p.Client(t)).Lock(x.name)
			acquireCancelled := func(ctx context.Context) error { // returns while the reply is held back
				t.Helper()
				deliver := p.HoldReplies(script)
				defer deliver()
				ctx, cancel := context.WithCancelCause(ctx)
				inFlight := start(func() (*primitives.Hold, error) { return l.Acquire(ctx, opts...) })
				redistest.WaitFor(t, soon, func() bool { return p.Held() == 1 }, "the command is in flight")
				cancel(errTest)
				return await(t, inFlight).err
			}
			release(t, acquire(t, t.Context(), l, opts...))
			err := acquireCancelled(t.Context())
			require.ErrorIs(t, err, primitives.ErrNotAcquired)
			require.ErrorIs(t, err, errTest)
			rolledBack := "rolled back, after the call's return if that takes longer than a moment"
			redistest.WaitFor(t, soon, func() bool { return len(fields(t, x.s, x.name)) == 0 }, rolledBack)

			// Replies to the rollback above may still be under way, so the nested acquisition needs a client
			// and a proxy of its own.
			p = x.s.Proxy(t)
			l = newClient(t, p.Client(t)).Lock(x.name)
			outer := acquire(t, t.Context(), l, opts...)
			err = acquireCancelled(outer.Context())
			require.ErrorIs(t, err, primitives.ErrNotAcquired)
			redistest.WaitFor(t, soon, func() bool { return x.count(t, outer.ID()) == "1" }, rolledBack)
			release(t, outer)
		})
	}
}

// TestC21WaitingIsCheap has a thousand waiters for one lock. They share a connection and a slow
// poll.
func TestC21WaitingIsCheap(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	measured := redistest.Bar(t, s, 6)
	holder := newClient(t, s.Client(t)).Lock("l")
	hold := acquire(t, t.Context(), holder)
	c := newClient(t, s.Client(t))
	l := c.Lock("l")
	n := redistest.Sized(s, redistest.Scaled(s, 1000), 10_000)
	_, err := l.TryAcquire(t.Context()) // opens the connections that a client without waiters needs
	require.ErrorIs(t, err, primitives.ErrNotAcquired)
	connections := redistest.Connections(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan result, n)
	for i := range n {
		go func() {
			hold, err := l.Acquire(ctx)
			waiting <- result{hold, err, time.Now()}
		}()
		if i == 0 { // later ones queue behind the first without an attempt
			awaitWaiter(t, s, "l")
		}
	}
	awaitLocalWaiters(t, c, n)
	more := redistest.Connections(t, s) - connections
	require.LessOrEqual(t, more, 2)
	before, began := redistest.Commands(t, s), time.Now()
	const span = 3 * time.Second
	time.Sleep(span)
	spent := redistest.Commands(t, s).Since(before)
	t.Logf("commands in %v: %v", span, spent)
	require.LessOrEqual(t, float64(spent["evalsha"]), time.Since(began).Seconds()+1)
	require.LessOrEqual(t, spent.Total(), int64(60), "including the commands of this test")
	const releases = 20
	for range releases {
		release(t, hold)
		hold = awaitHold(t, waiting)
		require.Empty(t, waiting, "one waiter wins")
	}
	cancel()
	for range n - releases {
		require.ErrorIs(t, (<-waiting).err, context.Canceled)
	}
	release(t, hold)
	redistest.WaitFor(t, soon, func() bool { return len(redistest.Channels(t, s)) == 0 }, "the client unsubscribes")
	measured("%d waiters: %d more connections, %d scripts in %v; %d releases, one winner each",
		n, more, spent["evalsha"], span, releases)
}

// TestC21CancelledWaiterPassesItsWakeUpOn cancels the first waiter while it is woken up. The second
// waiter must not wait for the slow poll.
func TestC21CancelledWaiterPassesItsWakeUpOn(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	name := redistest.Name(t)
	holder := newClient(t, s.Client(t)).Lock(name)
	c := newClient(t, s.Client(t))
	l := c.Lock(name)
	late, rounds := 0, redistest.Scaled(s, 300)
	for range rounds {
		hold := acquire(t, t.Context(), holder)
		ctx, cancel := context.WithCancel(t.Context())
		first := start(func() (*primitives.Hold, error) { return l.Acquire(ctx) })
		awaitWaiter(t, s, name)
		second := start(func() (*primitives.Hold, error) { return l.Acquire(t.Context()) })
		time.Sleep(time.Duration(rand.IntN(300)) * time.Microsecond)
		go cancel()
		released := time.Now()
		release(t, hold)
		if r := await(t, first); r.err == nil {
			release(t, r.hold)
		}
		r := await(t, second)
		require.NoError(t, r.err)
		if r.at.Sub(released) > 500*time.Millisecond {
			late++
		}
		release(t, r.hold)
	}
	// The engine's tests check in fake time that no wake-up is lost. A busy machine delays some.
	require.LessOrEqual(t, late, rounds/20, "no waiter waits for the slow poll")
	requireClean(t, s, name)
}

// TestC21WaitersSurviveCutSubscriptions cuts the connection for messages while a waiter waits.
func TestC21WaitersSurviveCutSubscriptions(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	p := s.Proxy(t)
	name := redistest.Name(t)
	holder, l := newClient(t, s.Client(t)).Lock(name), newClient(t, p.Client(t)).Lock(name)
	for range 5 {
		hold := acquire(t, t.Context(), holder)
		waiting := start(func() (*primitives.Hold, error) { return l.Acquire(t.Context()) })
		awaitWaiter(t, s, name)
		p.CutPubSub()
		released := time.Now()
		release(t, hold)
		r := await(t, waiting)
		require.NoError(t, r.err)
		require.Less(t, r.at.Sub(released), slowPoll)
		release(t, r.hold)
	}
	requireClean(t, s, name)
}

// TestC21WaiterTriesWhenTheLeaseEnds: nobody publishes the end of a lease. In fake time,
// TestClockLossIsReportedAtTheDeadline checks that the waiter tries at once.
func TestC21WaiterTriesWhenTheLeaseEnds(t *testing.T) {
	t.Parallel()
	eachLock(t, func(t *testing.T, x *lockTest) {
		other := x.other(t)
		began := time.Now()
		hold := acquire(t, t.Context(), x.l, primitives.WithLease(brief))
		require.NotEmpty(t, hold.Detach())
		next := acquire(t, t.Context(), other)
		require.Less(t, time.Since(began), brief+slowPoll)
		release(t, next)
	})
}

// TestForeignMessagesWakeNobody publishes payloads of other programs on a lock's channel.
func TestForeignMessagesWakeNobody(t *testing.T) {
	t.Parallel()
	eachLock(t, func(t *testing.T, x *lockTest) {
		hold := acquire(t, t.Context(), x.l)
		p := x.s.Proxy(t)
		other := newClient(t, p.Client(t)).Lock(x.name)
		waiting := start(func() (*primitives.Hold, error) { return other.Acquire(t.Context()) })
		awaitWaiter(t, x.s, x.name)
		p.Record()
		began := time.Now()
		for range 50 {
			for _, payload := range []string{"", "2", "-1", "null", "\x00\xff", "00"} {
				require.NoError(t, x.rdb.Publish(t.Context(), "redisson_lock__channel:{"+x.name+"}", payload).Err())
			}
		}
		attempts := 0
		for _, c := range p.Commands() {
			if script(c.Args) {
				attempts++
			}
		}
		require.LessOrEqual(t, float64(attempts), time.Since(began).Seconds()+2,
			"slow polls, and one attempt when the client has subscribed")
		for _, payload := range []string{"1", "0"} { // valid payloads, but the lock is still held
			require.NoError(t, x.rdb.Publish(t.Context(), "redisson_lock__channel:{"+x.name+"}", payload).Err())
		}
		require.Empty(t, waiting)
		release(t, hold)
		r := await(t, waiting)
		require.NoError(t, r.err)
		release(t, r.hold)
	})
}
