package contract

import (
	"context"
	"log/slog"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// TestC10HoldersLearnOfTheirLossBeforeTheNextAcquires cuts off holders silently, at any time of
// their renewal. A competitor waits for each lock.
func TestC10HoldersLearnOfTheirLossBeforeTheNextAcquires(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	measured := redistest.Bar(t, s, 2)
	p := s.Proxy(t)
	slow := func(o *redis.Options) { o.ReadTimeout = 700 * time.Millisecond }
	const ttl = 8 * time.Second
	// Half of the TTL is the margin: for so long the machine may keep the holders from running. The
	// figure of the bar is that of the default margin, which is a hundredth of the TTL and 2 ms.
	rounds, n, margin := 1, 200, []primitives.ClientOption{primitives.WithSafetyMargin(ttl / 2)}
	switch {
	case redistest.Nightly():
		rounds, n, margin = 10, 100, nil
	case !redistest.Full():
		n = 20
	}
	holders := fixture.NewClient(t, p.Client(t, slow), margin...)
	competitors := fixture.NewClient(t, s.Client(t))
	smallest, latest := ttl, -ttl
	for round := range rounds {
		name := redistest.Name(t) + "-" + strconv.Itoa(round)
		lock := func(c *primitives.Client, i int) *primitives.Lock { return c.Lock(name + "-" + strconv.Itoa(i) + ".") }
		holds := make([]*primitives.Hold, n)
		for i := range holds {
			holds[i] = fixture.Acquire(t, t.Context(), lock(holders, i), primitives.WithWatchdog(ttl))
		}
		time.Sleep(time.Duration(round) * ttl / time.Duration(rounds))
		p.BlackHole(true)
		ended := make([]time.Time, n)    // when the holder learned of its loss
		acquired := make([]time.Time, n) // when the competitor acquired
		var wg sync.WaitGroup
		for i, hold := range holds {
			ctx := hold.Context()
			wg.Go(func() {
				<-ctx.Done()
				ended[i] = time.Now()
			})
			wg.Go(func() {
				got, err := lock(competitors, i).Acquire(t.Context())
				lost := context.Cause(ctx) != nil // read first: the competitor holds the lock now
				acquired[i] = time.Now()
				if !lost {
					t.Errorf("lock %d has two holders", i)
				}
				if !assert.NoError(t, err) {
					return
				}
				_ = got.Release(t.Context())
			})
		}
		wg.Wait()
		for i, hold := range holds {
			require.ErrorIs(t, context.Cause(hold.Context()), primitives.ErrLost)
			smallest = min(smallest, acquired[i].Sub(ended[i]))
			latest = max(latest, ended[i].Sub(hold.ValidUntil()))
		}
		p.Recover() // what was sent meanwhile is lost
	}
	require.Positive(t, smallest)
	measured("%d holders cut off in %d partitions; told %v after their validity at the latest, "+
		"and %v before a competitor acquired at least", rounds*n, rounds, latest.Round(time.Millisecond),
		smallest.Round(time.Millisecond))
}

// TestC10HoldSurvivesARestartWithPersistence restarts a server within the validity of the lease.
func TestC10HoldSurvivesARestartWithPersistence(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t, "--appendonly", "yes", "--appendfsync", "always")
	x := fixture.OnLock(t, s)
	hold := fixture.Acquire(t, t.Context(), x.L, primitives.WithWatchdog(10*time.Second))
	waiting := fixture.StartAcquire(t.Context(), x.Other(t))
	fixture.AwaitWaiter(t, s, x.Name)
	require.NoError(t, s.Restart())
	redistest.WaitFor(t, fixture.Soon, func() bool { return hold.Check(t.Context()) == nil }, "still held")
	fixture.Release(t, hold)
	fixture.Release(t, fixture.AwaitHold(t, waiting))
}

// TestC10ManyHoldsAreRenewedInBatches holds many locks through many renewals, and through an outage
// that is shorter than their validity. None is lost, and none has a goroutine of its own.
func TestC10ManyHoldsAreRenewedInBatches(t *testing.T) {
	alone := redistest.Alone(t)
	s := redistest.Fresh(t)
	measured := redistest.Bar(t, s, 5)
	p := s.Proxy(t)
	c := fixture.NewClient(t, p.Client(t))
	name := redistest.Name(t)
	n, ttl := redistest.Sized(s, redistest.Scaled(s, 5000), 100_000), 9*time.Second
	outage := ttl / 3 // a hold is valid for two thirds of its TTL at least; a busy machine is late to renew it
	if redistest.Nightly() {
		ttl, outage = 30*time.Second, 15*time.Second
	}
	span := 2*ttl - 4*time.Second
	goroutines := runtime.NumGoroutine()
	holds := make([]*primitives.Hold, n)
	var wg sync.WaitGroup
	for g := range 50 {
		wg.Go(func() {
			for i := g; i < n; i += 50 {
				holds[i] = fixture.Acquire(t, t.Context(), c.Lock(name+time.Duration(i).String()), primitives.WithWatchdog(ttl))
			}
		})
	}
	wg.Wait()
	before, began := redistest.Commands(t, s), time.Now()
	time.Sleep((span - outage) / 2)
	p.Cut()
	time.Sleep(outage)
	p.Heal()
	time.Sleep((span - outage) / 2)
	spent := redistest.Commands(t, s).Since(before)
	rate := float64(spent["evalsha"]) / time.Since(began).Seconds()
	more := 0
	// Renewals that a busy machine has delayed have goroutines for a while.
	redistest.WaitFor(t, fixture.Soon, func() bool {
		more = runtime.NumGoroutine() - goroutines
		return !alone || more < 200
	}, "no hold has a goroutine of its own")
	for _, hold := range holds {
		fixture.RequireLive(t, hold.Context())
	}
	for _, i := range []int{0, n / 2, n - 1} {
		require.NoError(t, holds[i].Check(t.Context()))
	}
	require.LessOrEqual(t, rate, float64(n)*60/5000+10)
	for g := range 50 {
		wg.Go(func() {
			for i := g; i < n; i += 50 {
				fixture.Release(t, holds[i])
			}
		})
	}
	wg.Wait()
	measured("%d locks with a TTL of %v, an outage of %v: none lost; %.1f EVALSHA per second, %d goroutines",
		n, ttl, outage, rate, more)
}

// slowLog is a log handler that takes a second for each record.
type slowLog struct {
	slog.Handler
	records atomic.Int64
}

func (l *slowLog) Enabled(context.Context, slog.Level) bool { return true }

func (l *slowLog) Handle(context.Context, slog.Record) error {
	time.Sleep(time.Second)
	l.records.Add(1)
	return nil
}

// C18: after an outage, many records wait for a slow log handler. They delay no renewal, and Close
// not beyond the end of its context and one command timeout.
func TestC18CloseDoesNotWaitForASlowLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, log := redistest.Embedded(t), &slowLog{}
		c := fixture.NewClient(t, s.Client(t), primitives.WithLogger(slog.New(log)),
			primitives.WithCommandTimeout(2*time.Second))
		var lost []*primitives.Hold
		for i := range 50 {
			lost = append(lost, fixture.Acquire(t, t.Context(), c.Lock(strconv.Itoa(i))))
		}
		s.Mini().FlushAll()
		kept := fixture.Acquire(t, t.Context(), c.Lock("kept"))
		for _, hold := range lost {
			<-hold.Context().Done()
		}
		fixture.AwaitRenewal(t, 1, kept)
		fixture.Release(t, kept)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		require.NoError(t, c.Close(ctx))
		require.Less(t, time.Since(began), (1+2+1)*time.Second+time.Millisecond)
		require.NotZero(t, log.records.Load())
	})
}
