package faults

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// An outage, however long, collects neither goroutines nor connections. When Redis answers again,
// all that attempts have taken is given back within 5 s.
func TestOutageCollectsNothing(t *testing.T) {
	alone := redistest.Alone(t)
	type outage struct {
		name  string
		begin func(*redistest.Proxy)
	}
	outages := []outage{{"replies lost", func(p *redistest.Proxy) { p.BlackHoleReplies(true) }}}
	length, timeout := 1500*time.Millisecond, time.Second
	if redistest.Nightly() {
		outages = append(outages,
			outage{"commands lost", func(p *redistest.Proxy) { p.BlackHole(true) }},
			outage{"refused", func(p *redistest.Proxy) { p.Refuse(true); p.Reset() }},
		)
		length, timeout = time.Minute, 5*time.Second
	}
	for _, outage := range outages {
		t.Run(outage.name, func(t *testing.T) {
			const rate = 200 // attempts a second
			s := redistest.Fresh(t)
			p := s.Proxy(t)
			c := fixture.NewClient(t, p.Client(t), primitives.WithCommandTimeout(timeout))
			name := redistest.Name(t)
			var warm sync.WaitGroup
			for i := range 20 { // opens connections
				warm.Go(func() {
					hold, err := c.Lock(fmt.Sprint(name, "-warm", i)).TryAcquire(t.Context())
					if assert.NoError(t, err) {
						assert.NoError(t, hold.Release(t.Context()))
					}
				})
			}
			warm.Wait()
			held := fixture.Acquire(t, t.Context(), c.Lock(name+"-held"), primitives.WithLease(5*time.Minute))

			before, most := runtime.NumGoroutine(), 0
			outage.begin(p)
			var calls sync.WaitGroup
			for began, i := time.Now(), 0; time.Since(began) < length; i++ {
				calls.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
					defer cancel()
					_, err := c.Lock(fmt.Sprint(name, i)).Acquire(ctx)
					assert.Error(t, err)
				})
				most = max(most, runtime.NumGoroutine())
				time.Sleep(time.Until(began.Add(time.Duration(i+1) * time.Second / rate)))
			}
			short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			require.Error(t, held.Release(short))
			calls.Wait()
			taken := len(redistest.Keys(t, s, name+"*"))
			p.Heal()
			healed := time.Now()
			left := func() int { return len(redistest.Keys(t, s, name+"*")) }
			for left() > 0 && time.Since(healed) < 2*fixture.Soon {
				time.Sleep(20 * time.Millisecond)
			}
			t.Logf("goroutines: %d before, %d at most; %d locks taken, rolled back after %v",
				before, most, taken, time.Since(healed).Round(time.Millisecond))
			require.Zero(t, left())
			require.Less(t, time.Since(healed), 5*time.Second)
			if alone {
				require.LessOrEqual(t, most-before, 200)
			}
		})
	}
}

// A client of go-redis that its user has closed cannot answer any more: every call returns its
// error at once, and so do waiters, without limit though they are.
func TestClosedRedisClientEndsCalls(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	for _, kind := range append(kinds.Locks(), kinds.Joints()...) {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			name := redistest.Name(t)
			rdb := s.Client(t)
			other := fixture.Acquire(t, t.Context(), kind.Lock(fixture.NewClient(t, s.Client(t)), name))
			if kind.Shared { // readers do not wait for each other
				fixture.Release(t, other)
				other = fixture.Acquire(t, t.Context(), kind.Rival(fixture.NewClient(t, s.Client(t)), name))
			}
			defer fixture.Release(t, other)
			var waiting fixture.Recorder
			c := fixture.NewClient(t, rdb, waiting.Option())
			waiters := []<-chan fixture.Result{}
			for range 3 {
				waiters = append(waiters, fixture.StartAcquire(context.Background(), kind.Lock(c, name)))
			}
			redistest.WaitFor(t, fixture.Soon, func() bool { return len(waiting.All(primitives.EventWait)) == 3 }, "they wait")
			require.NoError(t, rdb.Close())
			closed := time.Now()
			for _, w := range waiters {
				err := fixture.Await(t, w).Err
				require.ErrorIs(t, err, redis.ErrClosed)
				require.NotErrorIs(t, err, primitives.ErrNotAcquired)
			}
			require.ErrorIs(t, fixture.ErrOf(kind.Lock(c, name).Acquire(context.Background())), redis.ErrClosed)
			require.Less(t, time.Since(closed), 5*time.Second)
		})
	}
}

// The cause of a caller's own context says nothing about the client.
func TestClosedAsACauseIsNoClosedRedisClient(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	name := redistest.Name(t)
	l := fixture.NewClient(t, s.Client(t)).Lock(name)
	other := fixture.Acquire(t, t.Context(), l)
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(20*time.Millisecond, func() { cancel(redis.ErrClosed) })
	_, err := l.Acquire(ctx)
	require.ErrorIs(t, err, redis.ErrClosed)
	require.ErrorIs(t, err, primitives.ErrNotAcquired)
	fixture.Release(t, other)
}

// A call whose context has no end ends with the command timeout on a new connection too, whose
// handshake alone has several slow replies.
func TestSlowHandshakeDoesNotOutlastTheCommandTimeout(t *testing.T) {
	t.Parallel()
	const timeout = 400 * time.Millisecond
	for _, tt := range []struct {
		name string
		warm bool
	}{{"first connection", false}, {"after a restart", true}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := redistest.Embedded(t).Proxy(t)
				rdb := p.Client(t, func(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = timeout, timeout })
				c := fixture.NewClient(t, rdb, primitives.WithCommandTimeout(timeout))
				if tt.warm {
					fixture.Release(t, fixture.Acquire(t, context.Background(), c.Lock("warm")))
					p.Reset()
				}
				p.Delay(timeout / 2)
				began := time.Now()
				require.ErrorIs(t, fixture.ErrOf(c.Lock("name").Acquire(context.Background())), primitives.ErrUnavailable)
				require.LessOrEqual(t, time.Since(began), timeout+50*time.Millisecond, "and not the sum of all replies")
				p.Heal()
			})
		})
	}
}

// Close returns within one command timeout of the end of its context, whatever Redis does and
// whatever the client does, and so does a second Close.
func TestCloseEndsWhenRedisIsSilent(t *testing.T) {
	t.Parallel()
	const (
		timeout = 500 * time.Millisecond
		grace   = 400 * time.Millisecond
		patient = 100 * time.Millisecond
	)
	s := redistest.Redis(t)
	for _, tt := range []struct {
		name  string
		tweak func(*redis.Options)
		begin func(p *redistest.Proxy)
		first func() context.Context // the context of an earlier Close; nil: there is none
	}{
		{"black hole", func(*redis.Options) {}, func(p *redistest.Proxy) { p.BlackHole(true) }, nil},
		{"long reads", longReads, func(p *redistest.Proxy) { p.BlackHole(true) }, nil},
		{"slow replies", longReads, func(p *redistest.Proxy) { p.Delay(timeout * 4 / 5); p.Reset() }, nil},
		{"second call", longReads, func(p *redistest.Proxy) { p.BlackHole(true) }, context.Background},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := s.Proxy(t)
			c := fixture.NewClient(t, p.Client(t, tt.tweak), primitives.WithCommandTimeout(timeout))
			name := redistest.Name(t)
			held := fixture.Acquire(t, t.Context(), c.Lock(name), primitives.WithLease(time.Minute))
			checked := fixture.Acquire(t, t.Context(), c.Lock(name+"-checked"))
			tt.begin(p)
			var calls sync.WaitGroup
			calls.Go(func() { _ = checked.Check(context.Background()) })
			for i := range 20 {
				calls.Go(func() { _, _ = c.Lock(fmt.Sprint(name, i)).Acquire(context.Background()) })
				calls.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
					defer cancel()
					_, _ = c.Lock(fmt.Sprint(name, "-short", i)).Acquire(ctx)
				})
			}
			time.Sleep(timeout / 2) // attempts and rollbacks are under way
			firstLeft := make(chan error, 1)
			if tt.first != nil {
				go func() { firstLeft <- c.Close(tt.first()) }()
			}
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), patient)
			defer cancel()
			require.ErrorIs(t, c.Close(ctx), context.DeadlineExceeded)
			require.Less(t, time.Since(began), patient+timeout+grace)
			if tt.first != nil {
				require.ErrorIs(t, <-firstLeft, context.DeadlineExceeded)
			}
			calls.Wait()
			require.ErrorIs(t, held.Release(t.Context()), primitives.ErrClosed)
			require.ErrorIs(t, c.Close(t.Context()), context.DeadlineExceeded, "the same each time")
			p.Record()
			p.Heal()
			time.Sleep(50 * time.Millisecond)
			sent := slices.DeleteFunc(p.Commands(), func(cmd redistest.Command) bool {
				return !strings.HasPrefix(cmd.Args[0], "eval")
			})
			require.Empty(t, sent, "nothing is sent any more")
		})
	}
}
