package otel_test

import (
	"context"
	"errors"
	"maps"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/redlatch/redlatch/locktest"
	redlatchotel "github.com/redlatch/redlatch/otel"
	"github.com/redlatch/redlatch/primitives"
)

// telemetry is an SDK that keeps everything in memory.
type telemetry struct {
	reader  *sdkmetric.ManualReader
	spans   *tracetest.SpanRecorder
	tracers *sdktrace.TracerProvider
}

func newObserver(t testing.TB, opts ...redlatchotel.Option) (*redlatchotel.Observer, *telemetry) {
	x := &telemetry{reader: sdkmetric.NewManualReader(), spans: tracetest.NewSpanRecorder()}
	x.tracers = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(x.spans))
	observer, err := redlatchotel.NewObserver(append(opts,
		redlatchotel.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(x.reader))),
		redlatchotel.WithTracerProvider(x.tracers))...)
	require.NoError(t, err)
	return observer, x
}

// samples returns all values that are not 0, such as "redlatch.holds{redlatch.kind=lock}": 1. Of a
// histogram it returns the count and the sum.
func (x *telemetry) samples(t testing.TB) map[string]float64 {
	t.Helper()
	var collected metricdata.ResourceMetrics
	require.NoError(t, x.reader.Collect(context.Background(), &collected))
	all := map[string]float64{}
	for _, scope := range collected.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					all[m.Name+text(p.Attributes)] = float64(p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					all[m.Name+" count"+text(p.Attributes)] = float64(p.Count)
					all[m.Name+" sum"+text(p.Attributes)] = p.Sum
				}
			default:
				require.Failf(t, "unknown data", "%T", data)
			}
		}
	}
	maps.DeleteFunc(all, func(_ string, value float64) bool { return value == 0 })
	return all
}

// text shows attributes as {a=1,b=2}.
func text(set attribute.Set) string {
	if set.Len() == 0 {
		return ""
	}
	return "{" + set.Encoded(attribute.DefaultEncoder()) + "}"
}

// fixture is a server in a bubble, a client that is observed, and another client.
type fixture struct {
	*testing.T
	*telemetry
	server *locktest.Server
	client *primitives.Client
	other  *primitives.Client
	trace  context.Context //nolint:containedctx // the context of an open span
	held   []*primitives.Hold
}

func newFixture(t *testing.T) *fixture {
	observer, x := newObserver(t)
	f := &fixture{T: t, telemetry: x, server: locktest.NewServer(t)}
	t.Cleanup(func() { runtime.KeepAlive(f.held) }) // the last cleanup: it knows of no bubble
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
	f.client, f.other = open(primitives.WithObserver(observer.Observe)), open()
	f.trace, _ = x.tracers.Tracer("test").Start(t.Context(), "request")
	return f
}

func (f *fixture) acquire(ctx context.Context, c *primitives.Client, opts ...primitives.Option) *primitives.Hold {
	f.Helper()
	hold, err := c.Lock("orders:42").Acquire(ctx, opts...)
	require.NoError(f, err)
	f.held = append(f.held, hold)
	return hold
}

// nestedThenLost returns a case in which a nested hold, with a trace or without one, is released
// after a second. Then the outer hold, which has a trace, is lost.
func nestedThenLost(traced bool) func(f *fixture) {
	return func(f *fixture) {
		outer := f.acquire(f.trace, f.client)
		ctx := outer.Context()
		if !traced {
			ctx = trace.ContextWithSpanContext(ctx, trace.SpanContext{})
		}
		inner := f.acquire(ctx, f.client)
		time.Sleep(time.Second)
		require.NoError(f, inner.Release(f.Context()))
		f.server.LoseName(f, outer.Name())
		synctest.Wait()
	}
}

// nestedCounts are the metrics of nestedThenLost.
var nestedCounts = map[string]float64{
	"redlatch.acquisitions{redlatch.kind=lock,redlatch.outcome=acquired}": 1,
	"redlatch.acquisitions{redlatch.kind=lock,redlatch.outcome=nested}":   1,
	"redlatch.wait.duration count{redlatch.kind=lock}":                    2,
	"redlatch.hold.ends{redlatch.end=released,redlatch.kind=lock}":        1,
	"redlatch.hold.ends{redlatch.end=lost,redlatch.kind=lock}":            1,
	"redlatch.hold.losses{redlatch.kind=lock,redlatch.reason=forced}":     1,
	"redlatch.hold.duration count{redlatch.kind=lock}":                    2,
	"redlatch.hold.duration sum{redlatch.kind=lock}":                      2,
}

// In each case all other values are 0 in the end, and there are no other spans.
func TestObserverReportsWhatHappensToLocks(t *testing.T) {
	const second = time.Second
	type span struct {
		name, result string
		length       time.Duration
		status       codes.Code
	}
	for _, tt := range []struct {
		name  string
		act   func(f *fixture)
		want  map[string]float64
		spans []span
	}{
		{"a released hold", func(f *fixture) {
			hold := f.acquire(f.trace, f.client)
			time.Sleep(2 * second)
			require.NoError(f, hold.Release(f.trace))
		}, map[string]float64{
			"redlatch.acquisitions{redlatch.kind=lock,redlatch.outcome=acquired}": 1,
			"redlatch.wait.duration count{redlatch.kind=lock}":                    1,
			"redlatch.hold.ends{redlatch.end=released,redlatch.kind=lock}":        1,
			"redlatch.hold.duration count{redlatch.kind=lock}":                    1,
			"redlatch.hold.duration sum{redlatch.kind=lock}":                      2,
		}, []span{{"redlatch.hold", "released", 2 * second, codes.Unset}}},
		{"a hold outside of a trace", func(f *fixture) {
			require.NoError(f, f.acquire(f.Context(), f.client).Release(f.Context()))
		}, map[string]float64{
			"redlatch.acquisitions{redlatch.kind=lock,redlatch.outcome=acquired}": 1,
			"redlatch.wait.duration count{redlatch.kind=lock}":                    1,
			"redlatch.hold.ends{redlatch.end=released,redlatch.kind=lock}":        1,
			"redlatch.hold.duration count{redlatch.kind=lock}":                    1,
		}, nil},
		{"a waiter that gets it", func(f *fixture) {
			hold := f.acquire(f.Context(), f.other)
			time.AfterFunc(3*second, func() { _ = hold.Release(context.Background()) })
			f.acquire(f.trace, f.client)
		}, map[string]float64{
			"redlatch.acquisitions{redlatch.kind=lock,redlatch.outcome=acquired}": 1,
			"redlatch.wait.duration count{redlatch.kind=lock}":                    1,
			"redlatch.wait.duration sum{redlatch.kind=lock}":                      3,
			"redlatch.holds{redlatch.kind=lock}":                                  1,
		}, []span{{"redlatch.wait", "acquired", 3 * second, codes.Unset}}},
		{"a waiter", func(f *fixture) {
			f.acquire(f.Context(), f.other)
			go func() { _, _ = f.client.Lock("orders:42").Acquire(f.trace) }()
			synctest.Wait()
		}, map[string]float64{"redlatch.waiters{redlatch.kind=lock}": 1}, nil},
		{"a try in vain", func(f *fixture) {
			f.acquire(f.Context(), f.other)
			_, err := f.client.Lock("orders:42").TryAcquire(f.trace)
			require.ErrorIs(f, err, primitives.ErrNotAcquired)
		}, map[string]float64{"redlatch.acquisitions{redlatch.kind=lock,redlatch.outcome=busy}": 1}, nil},
		{"a wait in vain", func(f *fixture) {
			f.acquire(f.Context(), f.other)
			_, err := f.client.Lock("orders:42").Acquire(f.trace, primitives.WithWait(second))
			require.ErrorIs(f, err, primitives.ErrNotAcquired)
		}, map[string]float64{
			"redlatch.acquisitions{redlatch.kind=lock,redlatch.outcome=busy}": 1,
		}, []span{{"redlatch.wait", "busy", second, codes.Unset}}},
		{"an error", func(f *fixture) {
			hold := f.acquire(f.trace, f.client)
			_, err := f.client.Lock("orders:42").Acquire(hold.Context(), primitives.WithNonReentrant())
			require.ErrorIs(f, err, primitives.ErrDeadlock)
		}, map[string]float64{
			"redlatch.acquisitions{redlatch.kind=lock,redlatch.outcome=acquired}": 1,
			"redlatch.acquisitions{redlatch.kind=lock,redlatch.outcome=error}":    1,
			"redlatch.wait.duration count{redlatch.kind=lock}":                    1,
			"redlatch.holds{redlatch.kind=lock}":                                  1,
		}, []span{{"redlatch.wait", "error", 0, codes.Error}}},
		{"renewals, and a loss that the background finds", func(f *fixture) {
			hold := f.acquire(f.trace, f.client)
			time.Sleep(25 * second)
			f.server.LoseName(f, hold.Name()) // Lose asks for the hold, too, and may find it gone first
			synctest.Wait()
		}, map[string]float64{
			"redlatch.acquisitions{redlatch.kind=lock,redlatch.outcome=acquired}": 1,
			"redlatch.wait.duration count{redlatch.kind=lock}":                    1,
			"redlatch.renewal.lateness count{redlatch.kind=lock}":                 2,
			"redlatch.hold.ends{redlatch.end=lost,redlatch.kind=lock}":            1,
			"redlatch.hold.losses{redlatch.kind=lock,redlatch.reason=forced}":     1,
			"redlatch.hold.duration count{redlatch.kind=lock}":                    1,
			"redlatch.hold.duration sum{redlatch.kind=lock}":                      25,
		}, []span{{"redlatch.hold", "lost", 25 * second, codes.Error}}},
		{
			"a nested hold that is released, then a loss", nestedThenLost(true), nestedCounts,
			[]span{{"redlatch.hold", "released", second, codes.Unset}, {"redlatch.hold", "lost", second, codes.Error}},
		},
		{
			"a nested hold without a trace, then a loss", nestedThenLost(false), nestedCounts,
			[]span{{"redlatch.hold", "lost", second, codes.Error}},
		},
		{"a wait for a latch in vain", func(f *fixture) {
			_, err := f.other.CountDownLatch("orders:42").Init(f.Context(), 1)
			require.NoError(f, err)
			ctx, cancel := context.WithTimeout(f.trace, second)
			defer cancel()
			require.Error(f, f.client.CountDownLatch("orders:42").Wait(ctx))
		}, map[string]float64{}, []span{{"redlatch.wait", "", second, codes.Unset}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				tt.act(f)
				assert.Equal(t, tt.want, f.samples(t))
				var got []span
				for _, s := range f.spans.Ended() {
					attributes := attribute.NewSet(s.Attributes()...)
					name, _ := attributes.Value("redlatch.name")
					assert.Equal(t, "orders:42", name.AsString())
					result, ok := attributes.Value("redlatch.outcome")
					if !ok {
						result, _ = attributes.Value("redlatch.end")
					}
					assert.Equal(t, trace.SpanContextFromContext(f.trace).SpanID(), s.Parent().SpanID())
					assert.Equal(t, s.Status().Code == codes.Error, len(s.Events()) == 1, "the error is recorded")
					got = append(got, span{s.Name(), result.AsString(), s.EndTime().Sub(s.StartTime()), s.Status().Code})
				}
				assert.Equal(t, tt.spans, got)
			})
		})
	}
}

func TestObserverShowsAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.acquire(f.trace, f.client, primitives.WithLease(time.Hour))
		go func() { _, _ = f.client.Lock("orders:42").Acquire(t.Context()) }() // it needs the connection for wake-ups
		renewed, err := f.client.Lock("other").Acquire(t.Context())
		require.NoError(t, err)
		f.held = append(f.held, renewed)
		synctest.Wait()
		f.server.Partition(true)
		time.Sleep(time.Minute)
		got := f.samples(t)
		assert.Positive(t, got["redlatch.renewal.failures{redlatch.kind=lock}"])
		assert.Positive(t, got["redlatch.link.losses"])
		assert.InDelta(t, 1, got["redlatch.hold.ends{redlatch.end=lost,redlatch.kind=lock}"], 0)
		assert.InDelta(t, 1, got["redlatch.hold.losses{redlatch.kind=lock,redlatch.reason=expired}"], 0)
		f.server.Partition(false)
		time.Sleep(time.Minute) // go-redis ends its dials
	})
}

func TestMetricsFollowTheSemanticConventions(t *testing.T) {
	observer, x := newObserver(t)
	for _, kind := range []primitives.EventKind{
		primitives.EventWait, primitives.EventAcquired, primitives.EventReleased, primitives.EventRenewed,
		primitives.EventRenewFailed, primitives.EventLinkLost,
	} {
		observer.Observe(primitives.Event{Kind: kind, Lock: "lock"})
	}
	var collected metricdata.ResourceMetrics
	require.NoError(t, x.reader.Collect(t.Context(), &collected))
	require.Len(t, collected.ScopeMetrics, 1)
	assert.Len(t, collected.ScopeMetrics[0].Metrics, 9)
	for _, m := range collected.ScopeMetrics[0].Metrics {
		assert.Regexp(t, `^redlatch\.[a-z]+(\.[a-z]+)?$`, m.Name)
		assert.NotEmpty(t, m.Description)
		if _, isHistogram := m.Data.(metricdata.Histogram[float64]); isHistogram {
			assert.Equal(t, "s", m.Unit)
		} else {
			assert.Regexp(t, `^\{[a-z]+\}$`, m.Unit)
		}
	}
}

func TestNamesAreNoAttributeUnlessTheUserMakesOne(t *testing.T) {
	e := primitives.Event{Kind: primitives.EventAcquired, Lock: "lock", Name: "orders:42"}
	plain, x := newObserver(t)
	plain.Observe(e)
	for name := range x.samples(t) {
		assert.NotContains(t, name, "orders")
	}
	grouped, x := newObserver(t, redlatchotel.WithAttribute(func(name string) attribute.KeyValue {
		return attribute.String("group", name[:strings.IndexByte(name, ':')])
	}))
	grouped.Observe(e)
	assert.InDelta(t, 1, x.samples(t)["redlatch.holds{group=orders,redlatch.kind=lock}"], 0)
}

// Names and ids may be any bytes, attributes must be text: a collector that gets others refuses the
// whole batch.
func TestAttributesOfANameThatIsNoText(t *testing.T) {
	observer, x := newObserver(t, redlatchotel.WithAttribute(func(name string) attribute.KeyValue {
		return attribute.String("group", name)
	}))
	ctx, parent := x.tracers.Tracer("test").Start(t.Context(), "request")
	observer.Observe(primitives.Event{
		Kind: primitives.EventReleased, Lock: "lock", Name: "or\xffders", ID: "a\xff", Ctx: ctx,
	})
	parent.End()
	assert.InDelta(t, -1, x.samples(t)["redlatch.holds{group=or�ders,redlatch.kind=lock}"], 0)
	attributes := attribute.NewSet(x.spans.Ended()[0].Attributes()...)
	name, _ := attributes.Value("redlatch.name")
	id, _ := attributes.Value("redlatch.id")
	assert.Equal(t, []string{"or�ders", "a�"}, []string{name.AsString(), id.AsString()})
}

// A Locker reports failed attempts as waits with an error. They are no waiters.
func TestObserverDoesNotCountRetriesOfALockerAsWaiters(t *testing.T) {
	observer, x := newObserver(t)
	observer.Observe(primitives.Event{Kind: primitives.EventWait, Lock: "lock", Err: errors.New("down")})
	assert.Empty(t, x.samples(t))
}

// The holds of a cohort share an id, and the next one may be acquired before the release of the
// last one is observed.
func TestHoldsWithOneIDBelongToTheirOwnTraces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		observer, x := newObserver(t)
		var parents []trace.SpanID
		for range 3 {
			ctx, span := x.tracers.Tracer("test").Start(t.Context(), "request")
			parents = append(parents, span.SpanContext().SpanID())
			observer.Observe(primitives.Event{Kind: primitives.EventAcquired, Lock: "lock", ID: "a", Ctx: ctx})
			time.Sleep(time.Second)
		}
		for i := range 3 {
			held := time.Duration(3-i)*time.Second + time.Millisecond // the event of the acquisition came a bit later
			observer.Observe(primitives.Event{Kind: primitives.EventReleased, Lock: "lock", ID: "a", Held: held})
		}
		ended := x.spans.Ended()
		require.Len(t, ended, 3)
		for i, s := range ended {
			assert.Equal(t, parents[i], s.Parent().SpanID())
		}
	})
}

func TestObserverMayBeSharedByManyGoroutines(t *testing.T) {
	const goroutines, events = 8, 200
	observer, x := newObserver(t)
	ctx, span := x.tracers.Tracer("test").Start(t.Context(), "request")
	defer span.End()
	done := make(chan struct{})
	for i := range goroutines {
		go func() {
			for range events {
				e := primitives.Event{Kind: primitives.EventAcquired, Lock: "lock", ID: string(rune('a' + i%4)), Ctx: ctx}
				observer.Observe(e)
				e.Kind = primitives.EventReleased
				observer.Observe(e)
			}
			done <- struct{}{}
		}()
	}
	for range goroutines {
		<-done
	}
	got := x.samples(t)
	assert.InDelta(t, goroutines*events, got["redlatch.hold.ends{redlatch.end=released,redlatch.kind=lock}"], 0)
	assert.Zero(t, got["redlatch.holds{redlatch.kind=lock}"])
	assert.Len(t, x.spans.Ended(), goroutines*events)
}

func TestANilProviderIsTheDefault(t *testing.T) {
	observer, err := redlatchotel.NewObserver(redlatchotel.WithMeterProvider(nil), redlatchotel.WithTracerProvider(nil))
	require.NoError(t, err)
	observer.Observe(primitives.Event{Kind: primitives.EventAcquired, Lock: "lock"})
}

func BenchmarkObserve(b *testing.B) {
	provider := sdktrace.NewTracerProvider() // records, and exports nothing
	ctx, span := provider.Tracer("test").Start(b.Context(), "request")
	defer span.End()
	for _, bb := range []struct {
		name string
		e    primitives.Event
	}{
		{"acquired", primitives.Event{Kind: primitives.EventAcquired, Lock: "lock", Ctx: b.Context()}},
		{"released", primitives.Event{Kind: primitives.EventReleased, Lock: "lock", Held: time.Second, Ctx: b.Context()}},
		{"released, with a span", primitives.Event{
			Kind: primitives.EventReleased, Lock: "lock", Name: "orders:42", ID: "1:1", Held: time.Second, Ctx: ctx,
		}},
	} {
		observer, err := redlatchotel.NewObserver(redlatchotel.WithTracerProvider(provider), redlatchotel.WithMeterProvider(
			sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))))
		require.NoError(b, err)
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				observer.Observe(bb.e)
			}
		})
		b.Run(bb.name+", in parallel", func(b *testing.B) {
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					observer.Observe(bb.e)
				}
			})
		})
	}
}

// Who leads, the terms, and how they end: by a hand-over, or by a loss. Other fenced locks are no
// elections.
func TestObserverShowsElections(t *testing.T) {
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
				isWait := strings.HasPrefix(name, "redlatch.waiters") || strings.HasPrefix(name, "redlatch.wait.duration")
				return value == 0 || !isWait || !strings.Contains(name, "fenced")
			})
			return got
		}
		noElection := waits(f.samples(t))
		wait := func(want map[string]float64) {
			t.Helper()
			time.Sleep(5 * time.Second)
			got := f.samples(t)
			maps.DeleteFunc(got, func(name string, _ float64) bool { return !strings.HasPrefix(name, "redlatch.election.") })
			assert.Equal(t, want, got)
		}
		const of = "redlatch.election=leader�}"
		const leading, terms = "redlatch.election.leading{" + of, "redlatch.election.terms{" + of
		ends := func(end string) string {
			return "redlatch.election.term_ends{redlatch.election=leader�,redlatch.end=" + end + "}"
		}
		wait(map[string]float64{})
		assert.Equal(t, noElection, waits(f.samples(t)), "candidates are no waiters")
		require.NoError(t, before.Release(t.Context()))
		wait(map[string]float64{leading: 1, terms: 1})
		assert.Equal(t, noElection, waits(f.samples(t)), "not even when they are elected")
		f.server.LoseName(t, "leader\xff")
		wait(map[string]float64{leading: 1, terms: 2, ends("lost"): 1})
		stop()
		require.NoError(t, <-ended)
		wait(map[string]float64{terms: 2, ends("lost"): 1, ends("released"): 1})
	})
}
