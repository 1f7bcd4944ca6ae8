// Package measure takes the quick measurements of "redlatch bench". Each stands beside its floor:
// the least that any lock on Redis has to send, on the same connections, in the same seconds. The
// ratio says more than the numbers, which depend on the machine and the network.
package measure

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/primitives"
)

// Config is what Run needs.
type Config struct {
	Redis    redis.UniversalClient
	Prefix   string        // of all names, as WithPrefix
	Timeout  time.Duration // of a command
	Duration time.Duration // of all measurements together
}

// Result is one measurement and its floor. Times are in microseconds.
type Result struct {
	Name     string  `json:"name"`
	PerSec   float64 `json:"per_s"`
	P50      float64 `json:"p50_us"`
	P99      float64 `json:"p99_us"`
	FloorP50 float64 `json:"floor_p50_us"`
	FloorP99 float64 `json:"floor_p99_us"`
	Ratio    float64 `json:"ratio"` // of the medians
	Samples  int     `json:"samples"`
	Floor    string  `json:"floor"` // what the floor is
}

// Waiters is how many goroutines contend.
const Waiters = 8

// bench is one run.
type bench struct {
	Config
	name          string
	holder, other *primitives.Client
	waits         chan struct{} // the other client waits
}

// Scripts of the floors. A lock cannot do with less: it must be atomic, and tell waiters of its
// release.
var (
	take    = redis.NewScript(`return redis.call('set', KEYS[1], ARGV[1], 'nx', 'px', 30000)`)
	free    = redis.NewScript(`return redis.call('del', KEYS[1])`)
	publish = redis.NewScript(`redis.call('del', KEYS[1]) return redis.call('publish', ARGV[1], '0')`)
)

// round is how long a measurement and its floor take turns, so that both see the same load.
const round = 100 * time.Millisecond

// Run measures, and reports each result. It removes its keys. Its error is that of Redis, or of
// ctx.
func Run(ctx context.Context, cfg Config, report func(Result)) (err error) {
	b := &bench{Config: cfg, name: cfg.Prefix + "redlatch-bench-" + rand.Text()[:12], waits: make(chan struct{}, 1)}
	options := []primitives.ClientOption{primitives.WithClientName(""), primitives.WithCommandTimeout(cfg.Timeout)}
	if b.holder, err = primitives.New(cfg.Redis, options...); err != nil {
		return err
	}
	defer b.close(ctx, b.holder)
	if b.other, err = primitives.New(cfg.Redis, append(options, primitives.WithObserver(b.observe))...); err != nil {
		return err
	}
	defer b.close(ctx, b.other)
	for _, m := range []struct {
		name, floor string
		share       float64
		run         func(context.Context, time.Duration) (Result, error)
	}{
		{"free lock", "an EVALSHA of SET NX PX, and one of DEL and PUBLISH", 0.4, b.free},
		{fmt.Sprintf("contended lock, %d waiters", Waiters), "one EVALSHA", 0.3, b.contended},
		{"wake-up in another client", "an EVALSHA that publishes, the message, and an EVALSHA", 0.3, b.wakeUp},
	} {
		r, err := m.run(ctx, time.Duration(m.share*float64(cfg.Duration)))
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r.Name, r.Floor = m.name, m.floor
		report(r)
	}
	return nil
}

// close closes the client and deletes the keys that are left: the floor's key, and the keys that
// remember requests in doubt. The latter end with the client's id and a number, so the latest
// number tells all.
func (b *bench) close(ctx context.Context, c *primitives.Client) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.Timeout)
	defer cancel()
	latest := 0
	if hold, err := c.Lock(b.name + "-last").Acquire(ctx); err == nil {
		latest, _ = strconv.Atoi(strings.TrimPrefix(hold.ID(), c.ID()+":"))
		_ = hold.Release(ctx)
	}
	_ = c.Close(ctx)
	keys := []string{b.floorKey()}
	for n := 1; n <= latest; n++ {
		keys = append(keys, "redisson_unlock_latch:"+tagged(b.name)+":"+c.ID()+":"+strconv.Itoa(n))
	}
	for some := range slices.Chunk(keys, 1000) { // in one slot
		if b.Redis.Del(ctx, some...).Err() != nil {
			return // they expire within a minute
		}
	}
}

// floorKey is in the slot of the lock: the floor runs on the same server.
func (b *bench) floorKey() string { return tagged(b.name) + ":floor" }

func (b *bench) floorChannel() string { return "redisson_lock__channel:" + tagged(b.name) + ":floor" }

// tagged puts a name into braces, unless it has some of its own: keys derive from it like that.
func tagged(name string) string {
	if strings.Contains(name, "{") {
		return name
	}
	return "{" + name + "}"
}

func (b *bench) observe(e primitives.Event) {
	if e.Kind == primitives.EventWait {
		select {
		case b.waits <- struct{}{}:
		default:
		}
	}
}

// result makes a result of samples that took elapsed together.
func result(samples, floor []time.Duration, elapsed time.Duration) (Result, error) {
	if len(samples) == 0 || len(floor) == 0 {
		return Result{}, errors.New("too slow for a single measurement in this time: give more --seconds")
	}
	r := Result{
		PerSec: float64(len(samples)) / elapsed.Seconds(), Samples: len(samples),
		P50: percentile(samples, 50), P99: percentile(samples, 99),
		FloorP50: percentile(floor, 50), FloorP99: percentile(floor, 99),
	}
	r.Ratio = r.P50 / r.FloorP50
	return r, nil
}

// percentile returns a percentile in microseconds. It sorts.
func percentile(samples []time.Duration, p int) float64 {
	slices.Sort(samples)
	return float64(samples[min(len(samples)*p/100, len(samples)-1)].Nanoseconds()) / 1000
}

// repeat runs f again and again for d, and returns how long each run took.
func repeat(ctx context.Context, d time.Duration, f func() error) ([]time.Duration, error) {
	var took []time.Duration
	for end := time.Now().Add(d); ; {
		start := time.Now()
		if !start.Before(end) || ctx.Err() != nil {
			return took, context.Cause(ctx)
		}
		if err := f(); err != nil {
			return took, err
		}
		took = append(took, time.Since(start))
	}
}

// alternate runs a measurement and its floor by turns for d.
func alternate(
	ctx context.Context, d time.Duration, measure, floor func(d time.Duration) ([]time.Duration, error),
) (Result, error) {
	var samples, floors []time.Duration
	var elapsed time.Duration
	for end := time.Now().Add(d); time.Now().Before(end) || len(samples) == 0; {
		start := time.Now()
		some, err := measure(min(round, d/2))
		if err != nil {
			return Result{}, err
		}
		elapsed += time.Since(start)
		least, err := floor(min(round, d/2))
		if err != nil {
			return Result{}, err
		}
		samples, floors = append(samples, some...), append(floors, least...)
		if ctx.Err() != nil {
			return Result{}, context.Cause(ctx)
		}
	}
	return result(samples, floors, elapsed)
}

// free acquires and releases a lock that nobody else wants.
func (b *bench) free(ctx context.Context, d time.Duration) (Result, error) {
	lock, key, channel := b.holder.Lock(b.name), []string{b.floorKey()}, b.floorChannel()
	for _, script := range []*redis.Script{take, free, publish} {
		if err := script.Load(ctx, b.Redis).Err(); err != nil {
			return Result{}, err
		}
	}
	return alternate(ctx, d,
		func(d time.Duration) ([]time.Duration, error) {
			return repeat(ctx, d, func() error { return acquireAndRelease(ctx, lock) })
		},
		func(d time.Duration) ([]time.Duration, error) {
			return repeat(ctx, d, func() error {
				if err := take.EvalSha(ctx, b.Redis, key, "1").Err(); err != nil {
					return err
				}
				return publish.EvalSha(ctx, b.Redis, key, channel).Err()
			})
		})
}

func acquireAndRelease(ctx context.Context, lock *primitives.Lock) error {
	hold, err := lock.Acquire(ctx)
	if err != nil {
		return err
	}
	return hold.Release(ctx)
}

// contended lets goroutines of one client contend for a lock. A sample is the time between two
// acquisitions.
func (b *bench) contended(ctx context.Context, d time.Duration) (Result, error) {
	lock, key := b.holder.Lock(b.name), []string{b.floorKey()}
	return alternate(ctx, d,
		func(d time.Duration) ([]time.Duration, error) {
			var all []time.Duration // guarded by the lock
			var last time.Time
			errs := make([]error, Waiters)
			end := time.Now().Add(d)
			var workers sync.WaitGroup
			for i := range Waiters {
				workers.Go(func() {
					for time.Now().Before(end) && errs[i] == nil {
						errs[i] = lock.Do(ctx, func(context.Context) error {
							now := time.Now()
							if !last.IsZero() {
								all = append(all, now.Sub(last))
							}
							last = now
							return nil
						})
					}
				})
			}
			workers.Wait()
			return all, errors.Join(errs...)
		},
		func(d time.Duration) ([]time.Duration, error) {
			return repeat(ctx, d, func() error { return free.EvalSha(ctx, b.Redis, key).Err() })
		})
}

// settle is how long a waiter has to subscribe after it began to wait, beyond some round trips.
const settle = 5 * time.Millisecond

// wakeUp measures from the release in one client to the acquisition by another one that waits.
func (b *bench) wakeUp(ctx context.Context, d time.Duration) (Result, error) {
	start := time.Now()
	if err := b.Redis.Ping(ctx).Err(); err != nil {
		return Result{}, err
	}
	pause := settle + 3*time.Since(start)
	key, channel := b.floorKey(), b.floorChannel()
	sub := b.Redis.Subscribe(ctx, channel)
	defer func() { _ = sub.Close() }()
	if _, err := sub.ReceiveTimeout(ctx, b.Timeout); err != nil {
		return Result{}, fmt.Errorf("subscribe: %w", err)
	}
	several := func(one func() (time.Duration, error)) func(time.Duration) ([]time.Duration, error) {
		return func(d time.Duration) ([]time.Duration, error) {
			var took []time.Duration
			for end := time.Now().Add(d); time.Now().Before(end) || len(took) == 0; {
				sample, err := one()
				if err != nil {
					return nil, err
				}
				took = append(took, sample)
			}
			return took, nil
		}
	}
	return alternate(ctx, d,
		several(func() (time.Duration, error) { return b.handOff(ctx, pause) }),
		several(func() (time.Duration, error) {
			time.Sleep(pause) // so that both start with idle connections
			start := time.Now()
			if err := publish.EvalSha(ctx, b.Redis, []string{key}, channel).Err(); err != nil {
				return 0, err
			}
			if _, err := sub.ReceiveTimeout(ctx, b.Timeout); err != nil {
				return 0, fmt.Errorf("receive: %w", err)
			}
			err := take.EvalSha(ctx, b.Redis, []string{key}, "1").Err()
			return time.Since(start), err
		}))
}

// handOff releases a lock in one client and returns when the other client has it.
func (b *bench) handOff(ctx context.Context, pause time.Duration) (time.Duration, error) {
	hold, err := b.holder.Lock(b.name).Acquire(ctx)
	if err != nil {
		return 0, err
	}
	type acquired struct {
		at  time.Time
		err error
	}
	done := make(chan acquired, 1)
	go func() {
		hold, err := b.other.Lock(b.name).Acquire(ctx)
		at := time.Now()
		if err == nil {
			err = hold.Release(ctx)
		}
		done <- acquired{at, err}
	}()
	select {
	case <-b.waits:
		time.Sleep(pause)
	case got := <-done:
		return 0, errors.Join(errors.New("the other client did not wait"), got.err, hold.Release(ctx))
	case <-ctx.Done(): // both end by themselves
	}
	start := time.Now()
	released := hold.Release(ctx)
	got := <-done
	return got.at.Sub(start), errors.Join(released, got.err)
}
