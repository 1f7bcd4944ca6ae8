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

// C5: acquisitions are cancelled at random instants, from before the first command to long after the grant. A second later nothing is left.
func TestC5CancelledAtRandom(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := s.Proxy(t)
		c := newClient(t, p.Client(t))
		name := redistest.Name(t)
		names := make([]string, 20)
		for i := range names {
			names[i] = name + "-" + strconv.Itoa(i)
		}
		n := scaled(s, 5000)
		var got atomic.Int64
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				for range n/50 + 1 {
					l := c.Lock(names[rand.IntN(len(names))])
					ctx, cancel := context.WithCancelCause(context.Background())
					timer := time.AfterFunc(time.Duration(rand.ExpFloat64()*float64(5*time.Millisecond)), func() { cancel(errTest) })
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
		redistest.WaitFor(t, 2*time.Second, func() bool { return len(leftovers(t, s, name)) == 0 }, "no key and no channel is left")
		requireIdle(t)
		p.Record()
		time.Sleep(200 * time.Millisecond)
		for _, c := range p.Commands() {
			require.NotContains(t, []string{"eval", "evalsha"}, c.Args[0], "no renewal is left")
		}
		t.Logf("%d of %d were granted", got.Load(), n)
	})
}

// C5: the context ends while the command is in flight. Its outcome is awaited and undone.
func TestC5CancelledInFlight(t *testing.T) {
	for _, opts := range [][]primitives.Option{nil, {primitives.WithOwner("o")}} {
		eachLock(t, func(t *testing.T, x *lockTest) {
			p := x.s.Proxy(t)
			l := newClient(t, p.Client(t)).Lock(x.name)
			acquireHeld := func(ctx context.Context) error {
				t.Helper()
				free := p.HoldReplies(script)
				defer free()
				ctx, cancel := context.WithCancelCause(ctx)
				inFlight := start(func() (*primitives.Hold, error) { return l.Acquire(ctx, opts...) })
				redistest.WaitFor(t, soon, func() bool { return p.Held() == 1 }, "in flight")
				cancel(errTest)
				require.Empty(t, inFlight)
				free()
				return await(t, inFlight).err
			}
			release(t, acquire(t, t.Context(), l, opts...))
			err := acquireHeld(t.Context())
			require.ErrorIs(t, err, primitives.ErrNotAcquired)
			require.ErrorIs(t, err, errTest)
			require.Empty(t, fields(t, x.s, x.name))

			outer := acquire(t, t.Context(), l, opts...)
			err = acquireHeld(outer.Context())
			require.ErrorIs(t, err, primitives.ErrNotAcquired)
			require.Equal(t, "1", x.count(t, outer.ID()))
			release(t, outer)
		})
	}
}

// C21: a thousand wait for one lock. They cost a connection, and next to no commands.
func TestC21WaitingIsCheap(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	holder := newClient(t, s.Client(t)).Lock("l")
	hold := acquire(t, t.Context(), holder)
	c := newClient(t, s.Client(t))
	l := c.Lock("l")
	n := 1000
	if testing.Short() {
		n = 100
	}
	_, err := l.TryAcquire(t.Context()) // opens what an unwaiting client needs
	require.ErrorIs(t, err, primitives.ErrNotAcquired)
	connections := redistest.Connections(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan error, n)
	for i := range n {
		go func() {
			_, err := l.Acquire(ctx)
			waiting <- err
		}()
		if i == 0 { // who comes while somebody waits does not even try
			awaitWaiter(t, s, "l")
		}
	}
	time.Sleep(500 * time.Millisecond)
	require.LessOrEqual(t, redistest.Connections(t, s)-connections, 2)
	before := redistest.Commands(t, s)
	const span = 3 * time.Second
	time.Sleep(span)
	spent := redistest.Commands(t, s).Since(before)
	t.Logf("%d waiters: %d extra connections, in %v %v", n, redistest.Connections(t, s)-connections, span, spent)
	require.LessOrEqual(t, spent["evalsha"], int64(4))
	require.LessOrEqual(t, spent.Total(), int64(60), "the helpers of this test included")
	cancel()
	for range n {
		require.ErrorIs(t, <-waiting, context.Canceled)
	}
	release(t, hold)
	redistest.WaitFor(t, soon, func() bool { return len(redistest.Channels(t, s)) == 0 }, "unsubscribed")
}

// C21: a wake-up that a waiter takes with it when it leaves is passed on.
func TestC21WakeUpsArePassedOn(t *testing.T) {
	s := redistest.Redis(t)
	name := redistest.Name(t)
	holder := newClient(t, s.Client(t)).Lock(name)
	c := newClient(t, s.Client(t))
	l := c.Lock(name)
	late := 0
	for range scaled(s, 300) {
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
	require.Zero(t, late, "waited for the slow poll")
	requireClean(t, s, name)
}

// C21: the link for notifications is cut again and again; waiters go on.
func TestC21CutSubscriptions(t *testing.T) {
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

// C21: a waiter looks when the lock's TTL ends: nobody publishes that.
func TestC21LooksWhenTheLeaseEnds(t *testing.T) {
	t.Parallel()
	eachLock(t, func(t *testing.T, x *lockTest) {
		other := x.other(t)
		began := time.Now()
		hold := acquire(t, t.Context(), x.l, primitives.WithLease(200*time.Millisecond))
		require.NotEmpty(t, hold.Detach())
		next := acquire(t, t.Context(), other)
		require.Less(t, time.Since(began), 700*time.Millisecond)
		release(t, next)
	})
}

// Section 4: what others publish on a lock's channel wakes nobody, and harms nothing.
func TestCornerForeignPayloads(t *testing.T) {
	t.Parallel()
	eachLock(t, func(t *testing.T, x *lockTest) {
		hold := acquire(t, t.Context(), x.l)
		p := x.s.Proxy(t)
		other := newClient(t, p.Client(t)).Lock(x.name)
		waiting := start(func() (*primitives.Hold, error) { return other.Acquire(t.Context()) })
		awaitWaiter(t, x.s, x.name)
		time.Sleep(100 * time.Millisecond) // the second try
		p.Record()
		for range 50 {
			for _, payload := range []string{"", "2", "-1", "null", "\x00\xff", "00"} {
				require.NoError(t, x.rdb.Publish(t.Context(), "redisson_lock__channel:{"+x.name+"}", payload).Err())
			}
		}
		tries := 0
		for _, c := range p.Commands() {
			if script(c.Args) {
				tries++
			}
		}
		require.LessOrEqual(t, tries, 2, "slow polls")
		for _, payload := range []string{"1", "0"} { // news that are not true
			require.NoError(t, x.rdb.Publish(t.Context(), "redisson_lock__channel:{"+x.name+"}", payload).Err())
		}
		require.Empty(t, waiting)
		release(t, hold)
		r := await(t, waiting)
		require.NoError(t, r.err)
		release(t, r.hold)
	})
}
