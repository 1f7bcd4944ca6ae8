package otel

import (
	"context"
	"errors"
	"strings"
	"sync"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/redlatch/redlatch/primitives"
)

// scope is the name of the meter and of the tracer.
const scope = "github.com/redlatch/redlatch/otel"

// Attributes of metrics and spans. Name and id are attributes of spans only.
const (
	kindKey    = attribute.Key("redlatch.kind")
	outcomeKey = attribute.Key("redlatch.outcome")
	endKey     = attribute.Key("redlatch.end")
	reasonKey  = attribute.Key("redlatch.reason")
	nameKey    = attribute.Key("redlatch.name")
	idKey      = attribute.Key("redlatch.id")

	electionKey = attribute.Key("redlatch.election") // the name, of the metrics of elections only
)

// Upper bounds of the buckets, in seconds.
var (
	// durationBuckets are for waits and holds: from one command to a long job.
	durationBuckets = []float64{
		.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800,
	}
	// latenessBuckets are for renewals. With the default TTL of 30 s, one that is late by 20 s is
	// too late.
	latenessBuckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 60}
)

// Observer turns the events of clients into metrics and spans. Several clients may share it: then
// it reports their sums. It is safe for concurrent use.
type Observer struct {
	tracer      trace.Tracer
	attributeOf func(name string) attribute.KeyValue // nil: no attribute from names
	traces      traces

	acquisitions, holdEnds, losses, renewalFailures, linkLosses metric.Int64Counter
	waitDuration, holdDuration, lateness                        metric.Float64Histogram
	waiters, holds                                              metric.Int64UpDownCounter
	terms, termEnds                                             metric.Int64Counter
	leading                                                     metric.Int64UpDownCounter

	mu   sync.RWMutex
	sets map[setKey]metric.MeasurementOption // grows only
}

// setKey identifies a set of attributes.
type setKey struct {
	kind  string
	extra attribute.KeyValue // what an outcome, an end or nothing adds
	group attribute.KeyValue // from attributeOf
}

// Option configures an [Observer]. The zero value does nothing.
type Option struct{ apply func(*config) }

// config is what options set.
type config struct {
	meters      metric.MeterProvider
	tracers     trace.TracerProvider
	attributeOf func(name string) attribute.KeyValue
}

// WithMeterProvider sets where metrics go. Default, also for nil: otel.GetMeterProvider. For none,
// give the no-op provider of go.opentelemetry.io/otel/metric/noop.
func WithMeterProvider(p metric.MeterProvider) Option {
	return Option{func(c *config) { c.meters = p }}
}

// WithTracerProvider sets where spans go. Default, also for nil: otel.GetTracerProvider. For none,
// give the no-op provider of go.opentelemetry.io/otel/trace/noop.
func WithTracerProvider(p trace.TracerProvider) Option {
	return Option{func(c *config) { c.tracers = p }}
}

// WithAttribute adds an attribute to all metrics that have the attribute redlatch.kind. It is
// computed from the names of locks.
//
// Each value adds a time series for each metric and kind, and none is ever removed, so attributeOf
// should return one of a few dozen values, such as "orders" for "orders:42". Never return the name
// itself if names contain ids: memory would grow without limit here and in the backend. By default
// nothing of a name is an attribute of a metric.
//
// attributeOf is called for each event, from many goroutines at once, and must not block.
func WithAttribute(attributeOf func(name string) attribute.KeyValue) Option {
	return Option{func(c *config) { c.attributeOf = attributeOf }}
}

// NewObserver returns an observer. Pass [Observer.Observe] to clients. It fails if the meter
// provider refuses an instrument.
func NewObserver(opts ...Option) (*Observer, error) {
	var cfg config
	for _, o := range opts {
		if o.apply != nil {
			o.apply(&cfg)
		}
	}
	if cfg.meters == nil {
		cfg.meters = otel.GetMeterProvider()
	}
	if cfg.tracers == nil {
		cfg.tracers = otel.GetTracerProvider()
	}
	meter := cfg.meters.Meter(scope)
	var errs []error
	counter := func(name, unit, description string) metric.Int64Counter {
		c, err := meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(description))
		errs = append(errs, err)
		return c
	}
	upDownCounter := func(name, unit, description string) metric.Int64UpDownCounter {
		c, err := meter.Int64UpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
		errs = append(errs, err)
		return c
	}
	histogram := func(name, description string, buckets []float64) metric.Float64Histogram {
		h, err := meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description),
			metric.WithExplicitBucketBoundaries(buckets...))
		errs = append(errs, err)
		return h
	}
	o := &Observer{
		tracer:      cfg.tracers.Tracer(scope),
		attributeOf: cfg.attributeOf,
		acquisitions: counter("redlatch.acquisitions", "{acquisition}",
			"Acquisitions by outcome: acquired, nested, busy (the wait was over), ended (context or client), "+
				"unavailable (Redis did not answer), error."),
		waitDuration: histogram("redlatch.wait.duration",
			"How long successful acquisitions waited. 0 if they did not wait.", durationBuckets),
		waiters: upDownCounter("redlatch.waiters", "{waiter}",
			"Acquisitions that wait now, and waiters for latches. Not candidates of elections."),
		holds: upDownCounter("redlatch.holds", "{hold}", "Holds that have not ended, nested ones included."),
		holdDuration: histogram("redlatch.hold.duration",
			"How long holds lasted, whatever their end was.", durationBuckets),
		holdEnds: counter("redlatch.hold.ends", "{hold}",
			"Ends of holds: released, release-failed, lost, leaked, detached, abandoned."),
		losses: counter("redlatch.hold.losses", "{hold}",
			"Lost holds by reason: expired (not confirmed), paused, gone, forced, limit (of lease or hold time), members."),
		lateness: histogram("redlatch.renewal.lateness",
			"How long after they were due renewals were confirmed. They are due every third of the TTL.", latenessBuckets),
		renewalFailures: counter("redlatch.renewal.failures", "{renewal}",
			"Renewals without an answer. Each is repeated until the lease is over."),
		linkLosses: counter("redlatch.link.losses", "{connection}",
			"Connections for wake-ups that failed or could not be made. Each is followed by a re-subscription."),
		leading: upDownCounter("redlatch.election.leading", "{leader}",
			"1 while this process leads in the election of that name, else 0."),
		terms: counter("redlatch.election.terms", "{term}", "Terms in which this process has led."),
		termEnds: counter("redlatch.election.term_ends", "{term}",
			"Ends of terms: released (the leadership was handed over), release-failed, lost, abandoned and others."),
		sets: make(map[setKey]metric.MeasurementOption),
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return o, nil
}

// Observe reports an event. Pass it to [primitives.WithObserver].
func (o *Observer) Observe(e primitives.Event) {
	ctx := e.Ctx // metrics take exemplars from it
	if ctx == nil {
		ctx = context.Background()
	}
	if e.Kind == primitives.EventLinkLost {
		o.linkLosses.Add(ctx, 1)
		return
	}
	key := setKey{kind: e.Lock}
	if o.attributeOf != nil {
		key.group = asText(o.attributeOf(e.Name))
	}
	set := o.set(key)
	if e.Election {
		o.election(ctx, e)
	}
	switch e.Kind {
	case primitives.EventWait:
		if e.Err == nil && !e.Election { // with an error, a Locker repeats an attempt
			o.waiters.Add(ctx, 1, set)
		}
	case primitives.EventAcquired, primitives.EventNested, primitives.EventNotAcquired:
		o.waited(ctx, set, e)
		key.extra = outcomeKey.String(string(e.Outcome()))
		o.acquisitions.Add(ctx, 1, o.set(key))
		if e.Kind != primitives.EventNotAcquired {
			o.holds.Add(ctx, 1, set)
			o.traces.begin(ctx, e.ID)
		}
	case primitives.EventWaited:
		o.waited(ctx, set, e)
	case primitives.EventRenewed:
		o.lateness.Record(ctx, e.Late.Seconds(), set)
	case primitives.EventRenewFailed:
		o.renewalFailures.Add(ctx, 1, set)
	case primitives.EventReleased, primitives.EventReleaseFailed, primitives.EventLost, primitives.EventLeaked,
		primitives.EventDetached, primitives.EventAbandoned:
		o.holds.Add(ctx, -1, set)
		o.holdDuration.Record(ctx, e.Held.Seconds(), set)
		o.holdSpan(ctx, e)
		key.extra = endKey.String(string(e.Kind))
		o.holdEnds.Add(ctx, 1, o.set(key))
		if loss, ok := errors.AsType[*primitives.LossError](e.Err); ok && e.Kind == primitives.EventLost {
			key.extra = reasonKey.String(string(loss.Reason))
			o.losses.Add(ctx, 1, o.set(key))
		}
	default: // a kind of a later version
	}
}

// election reports an event of a candidate.
func (o *Observer) election(ctx context.Context, e primitives.Event) {
	name := electionKey.String(strings.ToValidUTF8(e.Name, "�"))
	of := metric.WithAttributes(name)
	switch e.Kind {
	case primitives.EventAcquired:
		o.leading.Add(ctx, 1, of)
		o.terms.Add(ctx, 1, of)
	case primitives.EventReleased, primitives.EventReleaseFailed, primitives.EventLost, primitives.EventLeaked,
		primitives.EventDetached, primitives.EventAbandoned:
		o.leading.Add(ctx, -1, of)
		o.termEnds.Add(ctx, 1, metric.WithAttributes(name, endKey.String(string(e.Kind))))
	default: // the term goes on
	}
}

// waited reports a wait that is over, if the acquisition has waited, and its duration if it
// succeeded. Candidates of an election wait for as long as another one lives, so they are no
// waiters.
func (o *Observer) waited(ctx context.Context, set metric.MeasurementOption, e primitives.Event) {
	if e.Waited > 0 && !e.Election {
		o.waiters.Add(ctx, -1, set)
	}
	if e.Err == nil && !e.Election {
		o.waitDuration.Record(ctx, e.Waited.Seconds(), set)
	}
	o.waitSpan(ctx, e)
}

// set returns the attributes of a measurement. Making them costs more than the measurement, so they
// are kept.
func (o *Observer) set(key setKey) metric.MeasurementOption {
	o.mu.RLock()
	s := o.sets[key]
	o.mu.RUnlock()
	if s != nil {
		return s
	}
	attributes := []attribute.KeyValue{kindKey.String(key.kind)}
	for _, kv := range []attribute.KeyValue{key.extra, key.group} {
		if kv.Valid() {
			attributes = append(attributes, kv)
		}
	}
	s = metric.WithAttributeSet(attribute.NewSet(attributes...))
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sets[key] = s
	return s
}
