package prometheus_test

import (
	"context"
	"errors"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
	redlatchprom "github.com/redlatch/redlatch/prometheus"
)

// fixture is a server, a client with a collector, and another client without one.
type fixture struct {
	*testing.T
	server    *locktest.Server
	registry  *prometheus.Registry
	client    *primitives.Client
	other     *primitives.Client
	collector *redlatchprom.Collector
	held      []*primitives.Hold // keeps them from the garbage collector, which does not know of the bubble
}

func newFixture(t *testing.T, opts ...redlatchprom.Option) *fixture {
	f := &fixture{
		T: t, server: locktest.NewServer(t), registry: prometheus.NewRegistry(),
		collector: redlatchprom.NewCollector(opts...),
	}
	t.Cleanup(func() { runtime.KeepAlive(f.held) }) // the last cleanup
	f.registry.MustRegister(f.collector)
	open := func(opts ...primitives.ClientOption) *primitives.Client {
		client, err := primitives.New(f.server.Client(t), opts...)
		require.NoError(t, err)
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
			defer cancel()
			_ = client.Close(ctx)
		})
		return client
	}
	f.client, f.other = open(primitives.WithObserver(f.collector.Observe)), open()
	return f
}

// acquire acquires with the client that is measured, or with the other one.
func (f *fixture) acquire(c *primitives.Client, name string, opts ...primitives.Option) *primitives.Hold {
	f.Helper()
	hold, err := c.Lock(name).Acquire(f.Context(), opts...)
	require.NoError(f, err)
	f.held = append(f.held, hold)
	return hold
}

// startAcquire begins to wait for a lock.
func (f *fixture) startAcquire(name string) {
	go func() {
		if hold, err := f.client.Lock(name).Acquire(f.Context()); err == nil {
			f.held = append(f.held, hold)
		}
	}()
	synctest.Wait()
}

// samples returns all values that are not 0, such as `redlatch_holds{kind="lock"}`: 1. Of a
// histogram it returns the count and the sum.
func samples(t testing.TB, registry prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	all := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			labels := labelsOf(m)
			all[family.GetName()+labels] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
			all[family.GetName()+"_count"+labels] = float64(m.GetHistogram().GetSampleCount())
			all[family.GetName()+"_sum"+labels] = m.GetHistogram().GetSampleSum()
		}
	}
	maps.DeleteFunc(all, func(_ string, value float64) bool { return value == 0 })
	return all
}

func labelsOf(m *dto.Metric) string {
	var pairs []string
	for _, pair := range m.GetLabel() {
		pairs = append(pairs, pair.GetName()+`="`+pair.GetValue()+`"`)
	}
	if len(pairs) == 0 {
		return ""
	}
	return "{" + strings.Join(pairs, ",") + "}"
}

func acquisitions(outcome string) string {
	return `redlatch_acquisitions_total{kind="lock",outcome="` + outcome + `"}`
}

func losses(reason string) string {
	return `redlatch_hold_losses_total{kind="lock",reason="` + reason + `"}`
}

func ends(end string) string { return `redlatch_hold_ends_total{end="` + end + `",kind="lock"}` }

// Names of series of kind lock.
const (
	holds      = `redlatch_holds{kind="lock"}`
	waiters    = `redlatch_waiters{kind="lock"}`
	holdCount  = `redlatch_hold_duration_seconds_count{kind="lock"}`
	holdSum    = `redlatch_hold_duration_seconds_sum{kind="lock"}`
	waitCount  = `redlatch_wait_duration_seconds_count{kind="lock"}`
	waitSum    = `redlatch_wait_duration_seconds_sum{kind="lock"}`
	renewals   = `redlatch_renewal_lateness_seconds_count{kind="lock"}`
	lateness   = `redlatch_renewal_lateness_seconds_sum{kind="lock"}`
	failures   = `redlatch_renewal_failures_total{kind="lock"}`
	linkLosses = `redlatch_link_losses_total`
)

// In each case all other values are 0 in the end.
func TestCollectorCountsWhatHappensToLocks(t *testing.T) {
	for _, tt := range []struct {
		name string
		act  func(f *fixture)
		want map[string]float64
	}{
		{"nothing", func(*fixture) {}, map[string]float64{}},
		{"a hold", func(f *fixture) {
			f.acquire(f.client, "x")
		}, map[string]float64{acquisitions("acquired"): 1, holds: 1, waitCount: 1}},
		{"a released hold", func(f *fixture) {
			hold := f.acquire(f.client, "x")
			time.Sleep(2 * time.Second)
			require.NoError(f, hold.Release(f.Context()))
		}, map[string]float64{acquisitions("acquired"): 1, ends("released"): 1, waitCount: 1, holdCount: 1, holdSum: 2}},
		{"a nested hold", func(f *fixture) {
			outer := f.acquire(f.client, "x")
			inner, err := f.client.Lock("x").Acquire(outer.Context())
			require.NoError(f, err)
			time.Sleep(time.Second)
			require.NoError(f, inner.Release(f.Context()))
		}, map[string]float64{
			acquisitions("acquired"): 1, acquisitions("nested"): 1, ends("released"): 1, waitCount: 2, holdCount: 1,
			holdSum: 1, holds: 1,
		}},
		{"a try in vain", func(f *fixture) {
			f.acquire(f.other, "x")
			_, err := f.client.Lock("x").TryAcquire(f.Context())
			require.ErrorIs(f, err, primitives.ErrNotAcquired)
		}, map[string]float64{acquisitions("busy"): 1}},
		{"a wait in vain", func(f *fixture) {
			f.acquire(f.other, "x")
			_, err := f.client.Lock("x").Acquire(f.Context(), primitives.WithWait(time.Second))
			require.ErrorIs(f, err, primitives.ErrNotAcquired)
		}, map[string]float64{acquisitions("busy"): 1}},
		{"a canceled wait", func(f *fixture) {
			f.acquire(f.other, "x")
			ctx, cancel := context.WithTimeout(f.Context(), 1500*time.Millisecond)
			defer cancel()
			_, err := f.client.Lock("x").Acquire(ctx)
			require.ErrorIs(f, err, context.DeadlineExceeded)
		}, map[string]float64{acquisitions("ended"): 1}},
		{"a waiter", func(f *fixture) {
			f.acquire(f.other, "x")
			f.startAcquire("x")
		}, map[string]float64{waiters: 1}},
		{"a waiter that gets it", func(f *fixture) {
			hold := f.acquire(f.other, "x")
			time.AfterFunc(3*time.Second, func() { _ = hold.Release(context.Background()) })
			f.acquire(f.client, "x")
		}, map[string]float64{acquisitions("acquired"): 1, holds: 1, waitCount: 1, waitSum: 3}},
		{"a waiter for a latch", func(f *fixture) {
			_, err := f.client.CountDownLatch("x").Init(f.Context(), 1)
			require.NoError(f, err)
			time.AfterFunc(3*time.Second, func() { _ = f.other.CountDownLatch("x").CountDown(context.Background()) })
			require.NoError(f, f.client.CountDownLatch("x").Wait(f.Context()))
		}, map[string]float64{
			`redlatch_wait_duration_seconds_count{kind="latch"}`: 1, `redlatch_wait_duration_seconds_sum{kind="latch"}`: 3,
		}},
		{"an acquisition of nothing", func(f *fixture) {
			hold, err := f.client.Semaphore("x").Acquire(f.Context(), primitives.WithPermits(0))
			require.NoError(f, err)
			time.Sleep(time.Second)
			require.NoError(f, hold.Release(f.Context()))
		}, map[string]float64{
			`redlatch_acquisitions_total{kind="semaphore",outcome="acquired"}`: 1,
			`redlatch_wait_duration_seconds_count{kind="semaphore"}`:           1,
			`redlatch_hold_ends_total{end="released",kind="semaphore"}`:        1,
			`redlatch_hold_duration_seconds_count{kind="semaphore"}`:           1,
			`redlatch_hold_duration_seconds_sum{kind="semaphore"}`:             1,
		}},
		{"renewals", func(f *fixture) {
			f.acquire(f.client, "x")
			time.Sleep(25 * time.Second)
		}, map[string]float64{acquisitions("acquired"): 1, holds: 1, waitCount: 1, renewals: 2}},
		{"a loss by force", func(f *fixture) {
			hold := f.acquire(f.client, "x")
			time.Sleep(2 * time.Second)
			f.server.LoseName(f, hold.Name()) // Lose asks for the hold, too, and may find it gone first
			synctest.Wait()
			require.ErrorIs(f, hold.Release(f.Context()), primitives.ErrLost)
		}, map[string]float64{
			acquisitions("acquired"): 1, ends("lost"): 1, losses("forced"): 1, waitCount: 1, holdCount: 1, holdSum: 2,
		}},
		{"a limited hold", func(f *fixture) {
			f.acquire(f.client, "x", primitives.WithMaxHold(time.Second))
			time.Sleep(2 * time.Second)
		}, map[string]float64{ // it ends before the limit, by the safety margin
			acquisitions("acquired"): 1, ends("lost"): 1, losses("limit"): 1, waitCount: 1, holdCount: 1, holdSum: .988,
			renewals: 2,
		}},
		{"a detached hold", func(f *fixture) {
			hold := f.acquire(f.client, "x")
			time.Sleep(time.Second)
			hold.Detach()
			hold.Detach()
		}, map[string]float64{acquisitions("acquired"): 1, ends("detached"): 1, waitCount: 1, holdCount: 1, holdSum: 1}},
		{"a hold that Close leaves behind", func(f *fixture) {
			f.acquire(f.client, "x")
			ctx, cancel := context.WithTimeout(f.Context(), time.Second)
			defer cancel()
			require.Error(f, f.client.Close(ctx))
			_, err := f.client.Lock("x").Acquire(f.Context())
			require.ErrorIs(f, err, primitives.ErrClosed)
		}, map[string]float64{acquisitions("acquired"): 1, ends("abandoned"): 1, waitCount: 1, holdCount: 1, holdSum: 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				tt.act(f)
				assert.Equal(t, tt.want, samples(t, f.registry))
			})
		})
	}
}

// Redis is unreachable for a while. At first only renewals fail; then the lock is lost.
func TestCollectorShowsAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.acquire(f.other, "taken")
		f.startAcquire("taken") // it needs the connection for wake-ups
		f.acquire(f.client, "x")
		f.acquire(f.client, "y", primitives.WithLease(10*time.Minute))
		f.server.Partition(true)
		time.Sleep(19 * time.Second)
		got := samples(t, f.registry)
		assert.Positive(t, got[failures])
		assert.Positive(t, got[linkLosses])
		assert.Zero(t, got[renewals])

		f.server.Partition(false)
		time.Sleep(5 * time.Second)
		got = samples(t, f.registry)
		assert.Positive(t, got[renewals])
		assert.InDelta(t, 9.0, got[lateness], 2, "due after 10 s, confirmed after 19 s or a little later")

		f.server.Partition(true)
		_, err := f.client.Lock("z").Acquire(t.Context(), primitives.WithWait(time.Second))
		require.Error(t, err)
		_, err = f.client.Lock("z").TryAcquire(t.Context())
		require.Error(t, err)
		time.Sleep(time.Minute)
		got = samples(t, f.registry)
		assert.InDelta(t, 1, got[ends("lost")], 0)
		assert.InDelta(t, 1, got[losses("expired")], 0)
		assert.InDelta(t, 1, got[holds], 0, "y has a long lease")
		assert.InDelta(t, 1, got[waiters], 0, "a waiter rides out an outage")
		assert.InDelta(t, 2, got[acquisitions("unavailable")], 0)
		assert.Zero(t, got[acquisitions("busy")])
		f.server.Partition(false)
		time.Sleep(time.Minute) // go-redis ends its dials
	})
}

func TestCollectorCountsReleasesThatRedisDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		hold := f.acquire(f.client, "x")
		f.server.Partition(true)
		require.Error(t, hold.Release(t.Context()))
		f.server.Partition(false)
		time.Sleep(time.Minute) // go-redis ends its dials
		got := samples(t, f.registry)
		assert.InDelta(t, 1, got[ends("release-failed")], 0)
		assert.Zero(t, got[holds])
	})
}

// The garbage collector finds a hold that nobody can release.
func TestCollectorCountsLeaks(t *testing.T) {
	f := newFixture(t)
	_, err := f.client.Lock("x").Acquire(t.Context())
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		runtime.GC()
		return samples(t, f.registry)[ends("leaked")] == 1
	}, 10*time.Second, 10*time.Millisecond)
	assert.Zero(t, samples(t, f.registry)[holds])
}

// A Locker reports failed attempts as waits with an error. They are no waiters.
func TestCollectorDoesNotCountRetriesOfALockerAsWaiters(t *testing.T) {
	c := redlatchprom.NewCollector()
	c.Observe(primitives.Event{Kind: primitives.EventWait, Lock: "lock", Err: errors.New("down")})
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	assert.Empty(t, samples(t, registry))
}

// An alert on an increase sees the first failure of a kind only if its series existed before, with
// 0.
func TestSeriesExistFromTheFirstEventOfTheirKind(t *testing.T) {
	c := redlatchprom.NewCollector()
	assert.Equal(t, 1, testutil.CollectAndCount(c), "only the losses of links have no kind")
	c.Observe(primitives.Event{Kind: primitives.EventAcquired, Lock: "fair"})
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	require.NoError(t, err)
	var lost bool
	for _, family := range families {
		for _, m := range family.GetMetric() {
			lost = lost || family.GetName()+labelsOf(m) == `redlatch_hold_ends_total{end="lost",kind="fair"}`
			for _, label := range m.GetLabel() {
				if label.GetName() != "kind" {
					assert.Contains(t, family.GetHelp(), label.GetValue(), "the help names all values of a label")
				}
			}
		}
	}
	assert.True(t, lost)
}

func TestNamesAreNoLabelUnlessTheUserMakesOne(t *testing.T) {
	e := primitives.Event{Kind: primitives.EventAcquired, Lock: "lock", Name: "orders:42"}
	plain := redlatchprom.NewCollector()
	group := redlatchprom.NewCollector(redlatchprom.WithLabel("group", func(name string) string {
		return name[:strings.IndexByte(name, ':')]
	}))
	for c, want := range map[*redlatchprom.Collector]string{
		plain: `redlatch_holds{kind="lock"}`, group: `redlatch_holds{group="orders",kind="lock"}`,
	} {
		c.Observe(e)
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(c)
		got := samples(t, registry)
		assert.InDelta(t, 1, got[want], 0)
		for name := range got {
			assert.NotContains(t, name, "orders:42")
		}
	}
}

// Names may be any bytes, labels of Prometheus may not: it would panic in the goroutine that
// acquires.
func TestLabelOfANameThatIsNoText(t *testing.T) {
	c := redlatchprom.NewCollector(redlatchprom.WithLabel("group", func(name string) string { return name }))
	c.Observe(primitives.Event{Kind: primitives.EventAcquired, Lock: "lock", Name: "or\xffders"})
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	assert.InDelta(t, 1, samples(t, registry)[`redlatch_holds{group="or�ders",kind="lock"}`], 0)
}

func TestMetricsFollowTheConventionsOfPrometheus(t *testing.T) {
	c := redlatchprom.NewCollector()
	c.Observe(primitives.Event{Kind: primitives.EventAcquired, Lock: "lock"})
	problems, err := testutil.CollectAndLint(c)
	require.NoError(t, err)
	assert.Equal(t, []promlint.Problem(nil), slices.Clip(problems))
}

// Many goroutines report events while others scrape.
func TestCollectorMayBeSharedByManyGoroutines(t *testing.T) {
	const goroutines, events = 8, 200
	c := redlatchprom.NewCollector(redlatchprom.WithLabel("name", func(name string) string { return name }))
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	done := make(chan struct{})
	for i := range goroutines {
		go func() {
			for range events {
				name := string(rune('a' + i%4))
				c.Observe(primitives.Event{Kind: primitives.EventAcquired, Lock: "lock", Name: name})
				c.Observe(primitives.Event{Kind: primitives.EventReleased, Lock: "lock", Name: name})
			}
			done <- struct{}{}
		}()
	}
	for range goroutines {
		_, err := registry.Gather()
		require.NoError(t, err)
		<-done
	}
	got := samples(t, registry)
	assert.InDelta(t, goroutines*events/4, got[`redlatch_hold_ends_total{end="released",kind="lock",name="a"}`], 0)
	assert.Zero(t, got[`redlatch_holds{kind="lock",name="a"}`])
}

func BenchmarkObserve(b *testing.B) {
	acquired := primitives.Event{Kind: primitives.EventAcquired, Lock: "lock", Name: "orders:42"}
	released := primitives.Event{Kind: primitives.EventReleased, Lock: "lock", Name: "orders:42", Held: time.Second}
	group := redlatchprom.WithLabel("group", func(name string) string { return name[:6] })
	for _, bb := range []struct {
		name string
		opts []redlatchprom.Option
		e    primitives.Event
	}{
		{"acquired", nil, acquired},
		{"released", nil, released},
		{"acquired, with a label", []redlatchprom.Option{group}, acquired},
	} {
		c := redlatchprom.NewCollector(bb.opts...)
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.Observe(bb.e)
			}
		})
		b.Run(bb.name+", in parallel", func(b *testing.B) {
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					c.Observe(bb.e)
				}
			})
		})
	}
}

// Who leads, the terms, and how they end: by a hand-over, or by a loss. Other fenced locks are no
// elections.
func TestCollectorShowsElections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		_, err := f.client.FencedLock("no election").Acquire(t.Context())
		require.NoError(t, err)
		before, err := f.client.FencedLock("leader\xff").Acquire(t.Context())
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			ended <- f.client.Election("leader\xff").Run(ctx, func(ctx context.Context, _ primitives.Term) error {
				<-ctx.Done()
				return nil
			})
		}()
		waits := func(got map[string]float64) map[string]float64 { // of fenced locks
			maps.DeleteFunc(got, func(name string, value float64) bool {
				isWait := strings.HasPrefix(name, "redlatch_waiters") || strings.HasPrefix(name, "redlatch_wait_duration_seconds")
				return value == 0 || !isWait || !strings.Contains(name, "fenced")
			})
			return got
		}
		noElection := waits(samples(t, f.registry))
		wait := func(want map[string]float64) {
			t.Helper()
			time.Sleep(5 * time.Second)
			got := samples(t, f.registry)
			maps.DeleteFunc(got, func(name string, value float64) bool {
				return value == 0 || !strings.HasPrefix(name, "redlatch_election_")
			})
			assert.Equal(t, want, got)
		}
		const leading = `redlatch_election_leading{election="leader�"}`
		const terms = `redlatch_election_terms_total{election="leader�"}`
		const ends = `redlatch_election_term_ends_total{election="leader�",end="`
		wait(map[string]float64{})
		assert.Equal(t, noElection, waits(samples(t, f.registry)), "candidates are no waiters")
		require.NoError(t, before.Release(t.Context()))
		wait(map[string]float64{leading: 1, terms: 1})
		assert.Equal(t, noElection, waits(samples(t, f.registry)), "not even when they are elected")
		f.server.LoseName(t, "leader\xff")
		wait(map[string]float64{leading: 1, terms: 2, ends + `lost"}`: 1})
		stop()
		require.NoError(t, <-ended)
		wait(map[string]float64{terms: 2, ends + `lost"}`: 1, ends + `released"}`: 1})
	})
}
