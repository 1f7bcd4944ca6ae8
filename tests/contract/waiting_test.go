package contract

import (
	"context"
	"fmt"
	"math/rand/v2"
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

// TestC5CancelledInFlightIsRolledBack cancels an acquisition while its command is in flight. The
// outcome is rolled back, by the call or in the background.
func TestC5CancelledInFlightIsRolledBack(t *testing.T) {
	for _, opts := range [][]primitives.Option{nil, {primitives.WithOwner("o")}} {
		fixture.EachLock(t, func(t *testing.T, x *fixture.LockTest) {
			p := x.S.Proxy(t)
			l := fixture.NewClient(t, p.Client(t)).Lock(x.Name)
			acquireCancelled := func(ctx context.Context) error { // returns while the reply is held back
				t.Helper()
				deliver := p.HoldReplies(fixture.Script)
				defer deliver()
				ctx, cancel := context.WithCancelCause(ctx)
				inFlight := fixture.StartAcquire(ctx, l, opts...)
				redistest.WaitFor(t, fixture.Soon, func() bool { return p.Held() == 1 }, "the command is in flight")
				cancel(fixture.ErrTest)
				return fixture.Await(t, inFlight).Err
			}
			fixture.Release(t, fixture.Acquire(t, t.Context(), l, opts...))
			err := acquireCancelled(t.Context())
			require.ErrorIs(t, err, primitives.ErrNotAcquired)
			require.ErrorIs(t, err, fixture.ErrTest)
			rolledBack := "rolled back, after the call's return if that takes longer than a moment"
			redistest.WaitFor(t, fixture.Soon, func() bool { return len(fixture.Fields(t, x.S, x.Name)) == 0 }, rolledBack)

			// Replies to the rollback above may still be under way, so the nested acquisition needs
			// a client and a proxy of its own.
			p = x.S.Proxy(t)
			l = fixture.NewClient(t, p.Client(t)).Lock(x.Name)
			outer := fixture.Acquire(t, t.Context(), l, opts...)
			err = acquireCancelled(outer.Context())
			require.ErrorIs(t, err, primitives.ErrNotAcquired)
			redistest.WaitFor(t, fixture.Soon, func() bool { return x.Count(t, outer.ID()) == "1" }, rolledBack)
			fixture.Release(t, outer)
		})
	}
}

// TestC21WaitingIsCheap has a thousand waiters for one lock. They share a connection and a slow
// poll.
func TestC21WaitingIsCheap(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	measured := redistest.Bar(t, s, 6)
	holder := fixture.NewClient(t, s.Client(t)).Lock("l")
	hold := fixture.Acquire(t, t.Context(), holder)
	c := fixture.NewClient(t, s.Client(t))
	l := c.Lock("l")
	n := redistest.Sized(s, redistest.Scaled(s, 1000), 10_000)
	_, err := l.TryAcquire(t.Context()) // opens the connections that a client without waiters needs
	require.ErrorIs(t, err, primitives.ErrNotAcquired)
	connections := redistest.Connections(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan fixture.Result, n)
	for i := range n {
		go func() {
			hold, err := l.Acquire(ctx)
			waiting <- fixture.Result{Hold: hold, Err: err, At: time.Now()}
		}()
		if i == 0 { // later ones queue behind the first without an attempt
			fixture.AwaitWaiter(t, s, "l")
		}
	}
	fixture.AwaitWaiters(t, c, n)
	more := redistest.Connections(t, s) - connections
	// A command that begins while a slow one is in flight dials another connection: for up to six
	// at a time.
	const slow = 6
	require.LessOrEqual(t, more, 2+slow)
	before, began := redistest.Commands(t, s), time.Now()
	const span = 3 * time.Second
	time.Sleep(span)
	spent := redistest.Commands(t, s).Since(before)
	t.Logf("commands in %v: %v", span, spent)
	require.LessOrEqual(t, float64(spent["evalsha"]), time.Since(began).Seconds()+1)
	require.LessOrEqual(t, spent.Total(), int64(60), "including the commands of this test")
	const releases = 20
	for range releases {
		fixture.Release(t, hold)
		hold = fixture.AwaitHold(t, waiting)
		require.Empty(t, waiting, "one waiter wins")
	}
	cancel()
	for range n - releases {
		require.ErrorIs(t, (<-waiting).Err, context.Canceled)
	}
	fixture.Release(t, hold)
	redistest.WaitFor(t, fixture.Soon, func() bool { return len(redistest.Channels(t, s)) == 0 },
		"the client unsubscribes")
	measured("%d waiters: %d more connections, %d scripts in %v; %d releases, one winner each",
		n, more, spent["evalsha"], span, releases)
}

// TestC21CancelledWaiterPassesItsWakeUpOn cancels the first waiter while it is woken up. The second
// waiter must not wait for the slow poll.
func TestC21CancelledWaiterPassesItsWakeUpOn(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	name := redistest.Name(t)
	holder := fixture.NewClient(t, s.Client(t)).Lock(name)
	c := fixture.NewClient(t, s.Client(t))
	l := c.Lock(name)
	late, rounds := 0, redistest.Scaled(s, 300)
	for range rounds {
		hold := fixture.Acquire(t, t.Context(), holder)
		ctx, cancel := context.WithCancel(t.Context())
		first := fixture.StartAcquire(ctx, l)
		fixture.AwaitWaiter(t, s, name)
		second := fixture.StartAcquire(t.Context(), l)
		time.Sleep(time.Duration(rand.IntN(300)) * time.Microsecond)
		go cancel()
		released := time.Now()
		fixture.Release(t, hold)
		if r := fixture.Await(t, first); r.Err == nil {
			fixture.Release(t, r.Hold)
		}
		r := fixture.AwaitAcquired(t, second)
		if r.At.Sub(released) > 500*time.Millisecond {
			late++
		}
		fixture.Release(t, r.Hold)
	}
	// The engine's tests check in fake time that no wake-up is lost. A busy machine delays some.
	require.LessOrEqual(t, late, rounds/20, "no waiter waits for the slow poll")
	fixture.RequireClean(t, s, name)
}

// TestC21WaitersSurviveCutSubscriptions cuts the connection for messages while a waiter waits.
func TestC21WaitersSurviveCutSubscriptions(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	p := s.Proxy(t)
	name := redistest.Name(t)
	holder, l := fixture.NewClient(t, s.Client(t)).Lock(name), fixture.NewClient(t, p.Client(t)).Lock(name)
	for range 5 {
		hold := fixture.Acquire(t, t.Context(), holder)
		waiting := fixture.StartAcquire(t.Context(), l)
		fixture.AwaitWaiter(t, s, name)
		p.CutPubSub()
		released := time.Now()
		fixture.Release(t, hold)
		r := fixture.AwaitAcquired(t, waiting)
		require.Less(t, r.At.Sub(released), fixture.SlowPoll)
		fixture.Release(t, r.Hold)
	}
	fixture.RequireClean(t, s, name)
}

// TestForeignMessagesWakeNobody publishes payloads of other programs on a lock's channel.
func TestForeignMessagesWakeNobody(t *testing.T) {
	t.Parallel()
	fixture.EachLock(t, func(t *testing.T, x *fixture.LockTest) {
		hold := fixture.Acquire(t, t.Context(), x.L)
		p := x.S.Proxy(t)
		other := fixture.NewClient(t, p.Client(t)).Lock(x.Name)
		waiting := fixture.StartAcquire(t.Context(), other)
		fixture.AwaitWaiter(t, x.S, x.Name)
		p.Record()
		began := time.Now()
		for range 50 {
			for _, payload := range []string{"", "2", "-1", "null", "\x00\xff", "00"} {
				require.NoError(t, x.Rdb.Publish(t.Context(), "redisson_lock__channel:{"+x.Name+"}", payload).Err())
			}
		}
		attempts := 0
		for _, c := range p.Commands() {
			if fixture.Script(c.Args) {
				attempts++
			}
		}
		require.LessOrEqual(t, float64(attempts), time.Since(began).Seconds()+2,
			"slow polls, and one attempt when the client has subscribed")
		for _, payload := range []string{"1", "0"} { // valid payloads, but the lock is still held
			require.NoError(t, x.Rdb.Publish(t.Context(), "redisson_lock__channel:{"+x.Name+"}", payload).Err())
		}
		require.Empty(t, waiting)
		fixture.Release(t, hold)
		fixture.Release(t, fixture.AwaitHold(t, waiting))
	})
}

// TestC21WaitersThatComeAtOnceShareAPoll has many goroutines of one client ask for a name at the
// same moment, so that each of them makes a first attempt. From then on one of them polls once a
// second, whatever the attempts have left on the server. A fair lock's waiters are refreshed
// together.
func TestC21WaitersThatComeAtOnceShareAPoll(t *testing.T) {
	t.Parallel()
	const n = 20
	type row struct {
		name         string
		holds, waits kinds.Kind
		options      []primitives.Option // of the waiters
	}
	var rows []row
	for _, k := range kinds.Mutexes() { // readers do not keep readers out
		rows = append(rows, row{name: k.Name, holds: k, waits: k})
	}
	reader, writer := kinds.Of("reader"), kinds.Of("writer")
	rows = append(rows,
		row{name: "writers behind a reader", holds: reader, waits: writer},
		row{name: "readers behind a writer", holds: writer, waits: reader},
		row{name: "multi", holds: kinds.Of("multi"), waits: kinds.Of("multi")},
		row{
			name: "writers with cohorts behind a reader", holds: reader, waits: writer,
			options: []primitives.Option{primitives.WithCohort(time.Second), primitives.WithLinger(time.Second)},
		},
	)
	s := redistest.Fresh(t)
	holder, waiting := fixture.NewClient(t, s.Client(t)), fixture.NewClient(t, s.Client(t))
	ctx, giveUp := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var holds []*primitives.Hold
	names := len(rows)
	for i, tt := range rows {
		name := fmt.Sprint("n", i)
		holds = append(holds, fixture.Acquire(t, ctx, tt.holds.One(t, holder, name)))
		l := tt.waits.Open(waiting, name, tt.options...)
		for range n {
			wg.Go(func() {
				_, err := l.Acquire(ctx)
				assert.ErrorIs(t, err, context.Canceled)
			})
		}
	}
	fixture.AwaitWaiters(t, waiting, n*names)
	time.Sleep(200 * time.Millisecond) // second attempts, once subscriptions are confirmed
	before, began := redistest.Commands(t, s), time.Now()
	time.Sleep(3 * time.Second)
	spent := redistest.Commands(t, s).Since(before)
	polls := float64(spent["evalsha"]) / (float64(names) * time.Since(began).Seconds())
	t.Logf("%.2f scripts a second for each of %d names", polls, names)
	require.LessOrEqual(t, polls, 1.4, "one poll a second for each name, and a heartbeat")
	giveUp()
	wg.Wait()
	fixture.Release(t, holds...)
}

// A nested acquisition ends with its wait too, though Redis is silent and the outer hold lasts
// (C5).
func TestNestedAcquisitionEndsWithItsWait(t *testing.T) {
	t.Parallel()
	for name, locks := range map[string]func(*primitives.Client, string) (outer, inner *primitives.Lock){
		"plain": func(c *primitives.Client, name string) (outer, inner *primitives.Lock) {
			return c.Lock(name), c.Lock(name)
		},
		"fair": func(c *primitives.Client, name string) (outer, inner *primitives.Lock) {
			return c.FairLock(name), c.FairLock(name)
		},
		"readers": func(c *primitives.Client, name string) (outer, inner *primitives.Lock) {
			return c.RWLock(name).Reader(), c.RWLock(name).Reader()
		},
		"reader under a writer": func(c *primitives.Client, name string) (outer, inner *primitives.Lock) {
			return c.RWLock(name).Writer(), c.RWLock(name).Reader()
		},
	} {
		redistest.RunBubble(t, name, func(t *testing.T) {
			p := redistest.Embedded(t).Proxy(t)
			c, err := primitives.New(p.Client(t))
			require.NoError(t, err)
			outer, inner := locks(c, "l")
			hold, err := outer.Acquire(t.Context(), primitives.WithWatchdog(5*time.Second))
			require.NoError(t, err)
			p.BlackHole(true)
			began := time.Now()
			_, err = inner.Acquire(hold.Context(), primitives.WithWait(150*time.Millisecond))
			require.ErrorIs(t, err, primitives.ErrUnavailable)
			assert.Less(t, time.Since(began), 200*time.Millisecond, "the wait is 150 ms, the TTL 5 s")
			p.Recover()
			require.NoError(t, hold.Release(t.Context()))
			require.NoError(t, c.Close(t.Context()))
		})
	}
}
