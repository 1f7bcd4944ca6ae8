package primitives_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// busy is a margin for a machine so busy that the holders' side is late; the default's instant is proved in fake time.
var busy = primitives.WithSafetyMargin(100 * time.Millisecond)

// C10: holders are cut off, silently. Each is told of the loss before the competitor on the server can have the lock.
func TestC10Partition(t *testing.T) {
	s := redistest.Redis(t)
	p := s.Proxy(t)
	holders, competitors := newClient(t, p.Client(t, func(o *redis.Options) { o.ReadTimeout = 700 * time.Millisecond }), busy), newClient(t, s.Client(t))
	name := redistest.Name(t)
	n := 200
	if testing.Short() {
		n = 20
	}
	const ttl = 2 * time.Second
	lock := func(c *primitives.Client, i int) *primitives.Lock {
		return c.Lock(name + "-" + string(rune('a'+i%26)) + "-" + time.Duration(i).String())
	}
	ctxs := make([]context.Context, n)
	for i := range ctxs {
		ctxs[i] = acquire(t, t.Context(), lock(holders, i), primitives.WithWatchdog(ttl)).Context()
	}
	p.BlackHole(true)
	cut := time.Now()
	told := make([]time.Time, n)
	taken := make([]time.Time, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-ctxs[i].Done()
			told[i] = time.Now()
		})
		wg.Go(func() {
			hold, err := lock(competitors, i).Acquire(t.Context())
			lost := context.Cause(ctxs[i]) != nil // looked at first: the other holds it now
			taken[i] = time.Now()
			if !lost {
				t.Errorf("%d: two hold it", i)
			}
			if err != nil {
				t.Error(err)
				return
			}
			_ = hold.Release(t.Context())
		})
	}
	wg.Wait()
	smallest := ttl
	for i := range n {
		require.ErrorIs(t, context.Cause(ctxs[i]), primitives.ErrLost)
		smallest = min(smallest, taken[i].Sub(told[i]))
	}
	t.Logf("%d holders cut off, all told; the last of them %v before the competitor had it; %v after the cut", n, smallest, told[0].Sub(cut))
}

// C10: a refused renewal is a loss at once, and nothing takes the lock back.
func TestC10RefusedRenewal(t *testing.T) {
	t.Parallel()
	eachLock(t, func(t *testing.T, x *lockTest) {
		hold := acquire(t, t.Context(), x.l, primitives.WithWatchdog(600*time.Millisecond))
		ctx := hold.Context()
		require.NoError(t, x.rdb.Del(t.Context(), x.name).Err())
		began := time.Now()
		requireEnds(t, ctx, primitives.ErrLost)
		require.Less(t, time.Since(began), 500*time.Millisecond, "by the next renewal")
		e := x.heard.await(t, primitives.EventLost)
		require.Equal(t, []any{"lock", x.name, hold.ID()}, []any{e.Lock, e.Name, e.ID})
		require.ErrorIs(t, e.Err, primitives.ErrLost)
		require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
		require.Empty(t, fields(t, x.s, x.name))
		require.Len(t, x.heard.all(primitives.EventLost), 1)
	})
}

// C10: errors never end renewal while validity lasts.
func TestC10TransientErrors(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	p := s.Proxy(t)
	heard := &recorder{}
	l := newClient(t, p.Client(t, hasty), heard.option()).Lock(redistest.Name(t))
	hold := acquire(t, t.Context(), l, primitives.WithWatchdog(3*time.Second))
	for _, fault := range []func(){
		func() { p.Refuse(true); p.Reset() },
		func() { p.BlackHole(true) },
		func() { p.DropReplies(3, script) },
	} {
		before := len(heard.all(primitives.EventRenewFailed))
		fault()
		redistest.WaitFor(t, soon, func() bool { return len(heard.all(primitives.EventRenewFailed)) > before }, "a renewal fails")
		p.Heal()
		renewed := len(heard.all(primitives.EventRenewed))
		redistest.WaitFor(t, soon, func() bool { return len(heard.all(primitives.EventRenewed)) > renewed }, "renewed again")
		require.NoError(t, hold.Check(t.Context()))
	}
	require.Error(t, heard.all(primitives.EventRenewFailed)[0].Err)
	release(t, hold)
}

// A server that comes back empty has forgotten the lock: the holder is told, and nothing is made anew.
func TestC10RestartWithoutMemory(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	x := onLock(t, s)
	hold := acquire(t, t.Context(), x.l, primitives.WithWatchdog(2*time.Second))
	require.NoError(t, s.Restart())
	requireEnds(t, hold.Context(), primitives.ErrLost)
	require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
	require.Empty(t, fields(t, s, x.name))
	release(t, acquire(t, t.Context(), x.l))
}

// A hold survives an outage that is shorter than its validity, and a restart that remembers.
func TestC10RestartWithMemory(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t, "--appendonly", "yes", "--appendfsync", "always")
	x := onLock(t, s)
	hold := acquire(t, t.Context(), x.l, primitives.WithWatchdog(10*time.Second))
	waiting := start(func() (*primitives.Hold, error) { return x.other(t).Acquire(t.Context()) })
	awaitWaiter(t, s, x.name)
	require.NoError(t, s.Restart())
	redistest.WaitFor(t, soon, func() bool { return hold.Check(t.Context()) == nil }, "still held")
	release(t, hold)
	r := await(t, waiting)
	require.NoError(t, r.err)
	release(t, r.hold)
}

// 5 000 locks are held through many renewals: none is lost, none has a goroutine of its own, and they are renewed in batches.
func TestC10ManyHolds(t *testing.T) {
	s := redistest.Fresh(t)
	c := newClient(t, s.Client(t))
	name := redistest.Name(t)
	n := 5000
	if testing.Short() {
		n = 500
	}
	const ttl, span = 3 * time.Second, 6 * time.Second
	holds := make([]*primitives.Hold, n)
	var wg sync.WaitGroup
	for g := range 50 {
		wg.Go(func() {
			for i := g; i < n; i += 50 {
				holds[i] = acquire(t, t.Context(), c.Lock(name+time.Duration(i).String()), primitives.WithWatchdog(ttl))
			}
		})
	}
	wg.Wait()
	before := redistest.Commands(t, s)
	time.Sleep(span)
	spent := redistest.Commands(t, s).Since(before)
	require.Less(t, workers(), 200)
	rate := float64(spent["evalsha"]) / span.Seconds()
	for _, hold := range holds {
		requireLive(t, hold.Context())
	}
	for _, i := range []int{0, n / 2, n - 1} {
		require.NoError(t, holds[i].Check(t.Context()))
	}
	t.Logf("%d locks with a TTL of %v: %.1f EVALSHA a second, %d goroutines", n, ttl, rate, workers())
	require.LessOrEqual(t, rate, float64(n)*60/5000+10)
	for g := range 50 {
		wg.Go(func() {
			for i := g; i < n; i += 50 {
				release(t, holds[i])
			}
		})
	}
	wg.Wait()
}
