package prometheus

import (
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redlatch/redlatch/primitives"
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

// kindLabel is the label of every metric but those of the links and of elections, and electionLabel
// that of the latter.
const (
	kindLabel     = "kind"
	electionLabel = "election"
)

// outcomes, ends and reasons are the values of the labels outcome, end and reason.
var (
	outcomes = []primitives.Outcome{
		primitives.OutcomeAcquired, primitives.OutcomeNested, primitives.OutcomeBusy, primitives.OutcomeEnded,
		primitives.OutcomeUnavailable, primitives.OutcomeError,
	}
	ends = []primitives.EventKind{
		primitives.EventReleased, primitives.EventReleaseFailed, primitives.EventLost, primitives.EventLeaked,
		primitives.EventDetached, primitives.EventAbandoned,
	}
	reasons = []primitives.LossReason{
		primitives.LossExpired, primitives.LossPaused, primitives.LossGone, primitives.LossForced, primitives.LossLimit,
		primitives.LossMembers,
	}
)

// Collector is a [prometheus.Collector] of the events of clients. Several clients may share it:
// then it shows their sums. It is safe for concurrent use.
type Collector struct {
	labelOf func(name string) string // nil: no label from names

	acquisitions, holdEnds, losses, renewalFailures *prometheus.CounterVec
	waitDuration, holdDuration, lateness            *prometheus.HistogramVec
	waiters, holds                                  *prometheus.GaugeVec
	linkLosses                                      prometheus.Counter
	leading                                         *prometheus.GaugeVec
	terms, termEnds                                 *prometheus.CounterVec

	mu        sync.RWMutex
	series    map[seriesKey]*series // grows only
	elections map[string]*election  // by name; grows only
}

// Option configures a [Collector]. The zero value does nothing.
type Option struct{ apply func(*config) }

// config is what options set.
type config struct {
	label   string
	labelOf func(name string) string
}

// WithLabel adds a label to all metrics that have the label kind. Its values are computed from the
// names of locks. The label is a valid name of Prometheus other than kind, outcome, end, reason and
// le.
//
// Each value adds about 80 series for each kind, and none is ever removed, so valueOf should return
// one of a few dozen values, such as "orders" for "orders:42". Never return the name itself if
// names contain ids: memory would grow without limit here and in Prometheus. By default nothing of
// a name is a label.
//
// valueOf is called for each event, from many goroutines at once, and must not block.
func WithLabel(label string, valueOf func(name string) string) Option {
	return Option{func(c *config) { c.label, c.labelOf = label, valueOf }}
}

// NewCollector returns a collector. Register it, and pass [Collector.Observe] to clients.
func NewCollector(opts ...Option) *Collector {
	var cfg config
	for _, o := range opts {
		if o.apply != nil {
			o.apply(&cfg)
		}
	}
	labels := []string{kindLabel}
	if cfg.labelOf != nil {
		labels = append(labels, cfg.label)
	}
	with := func(last string) []string { return append(slices.Clip(labels), last) }
	counter := func(name, help string, labels []string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	}
	return &Collector{
		labelOf: cfg.labelOf,
		acquisitions: counter("redlatch_acquisitions_total",
			"Acquisitions by outcome: acquired, nested, busy (the wait was over), "+
				"ended (context or client), unavailable (Redis did not answer), error.", with("outcome")),
		waitDuration: histogram("redlatch_wait_duration_seconds",
			"How long successful acquisitions waited. 0 if they did not wait.", durationBuckets),
		waiters: gauge("redlatch_waiters", "Acquisitions that wait now, and waiters for latches. Not candidates."),
		holds:   gauge("redlatch_holds", "Holds that have not ended, nested ones included."),
		holdDuration: histogram("redlatch_hold_duration_seconds",
			"How long holds lasted, whatever their end was.", durationBuckets),
		holdEnds: counter("redlatch_hold_ends_total",
			"Ends of holds: released, release-failed, lost, leaked, detached, abandoned.", with("end")),
		losses: counter("redlatch_hold_losses_total",
			"Lost holds by reason: expired (not confirmed), paused, gone, forced, limit (of lease or hold time), members.",
			with("reason")),
		lateness: histogram("redlatch_renewal_lateness_seconds",
			"How long after they were due renewals were confirmed. They are due every third of the TTL.", latenessBuckets),
		renewalFailures: counter("redlatch_renewal_failures_total",
			"Renewals without an answer. Each is repeated until the lease is over.", labels),
		linkLosses: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "redlatch_link_losses_total",
			Help: "Connections for wake-ups that failed or could not be made. Each is followed by a re-subscription.",
		}),
		leading: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "redlatch_election_leading", Help: "1 while this process leads in the election of that name, else 0.",
		}, []string{electionLabel}),
		terms: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "redlatch_election_terms_total", Help: "Terms in which this process has led.",
		}, []string{electionLabel}),
		termEnds: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "redlatch_election_term_ends_total",
			Help: "Ends of terms: released (the leadership was handed over), release-failed, lost, abandoned and others.",
		}, []string{electionLabel, "end"}),
		series: make(map[seriesKey]*series), elections: make(map[string]*election),
	}
}

// parts lists the collectors that c consists of.
func (c *Collector) parts() []prometheus.Collector {
	return []prometheus.Collector{
		c.acquisitions, c.waitDuration, c.waiters, c.holds, c.holdDuration, c.holdEnds, c.losses, c.lateness,
		c.renewalFailures, c.linkLosses, c.leading, c.terms, c.termEnds,
	}
}

// Describe implements [prometheus.Collector].
func (c *Collector) Describe(descs chan<- *prometheus.Desc) {
	for _, part := range c.parts() {
		part.Describe(descs)
	}
}

// Collect implements [prometheus.Collector].
func (c *Collector) Collect(metrics chan<- prometheus.Metric) {
	for _, part := range c.parts() {
		part.Collect(metrics)
	}
}

// Observe counts an event. Pass it to [primitives.WithObserver].
func (c *Collector) Observe(e primitives.Event) {
	if e.Kind == primitives.EventLinkLost {
		c.linkLosses.Inc()
		return
	}
	if e.Election {
		c.electionOf(e.Name).observe(e)
	}
	s := c.seriesOf(e)
	switch e.Kind {
	case primitives.EventWait:
		if e.Err == nil && !e.Election { // with an error, a Locker repeats an attempt
			s.waiters.Inc()
		}
	case primitives.EventAcquired, primitives.EventNested, primitives.EventNotAcquired:
		count(s.outcomes[e.Outcome()])
		s.waited(e)
		if e.Kind != primitives.EventNotAcquired {
			s.holds.Inc()
		}
	case primitives.EventWaited:
		s.waited(e)
	case primitives.EventRenewed:
		s.lateness.Observe(e.Late.Seconds())
	case primitives.EventRenewFailed:
		s.renewalFailures.Inc()
	default:
		if end := s.ends[e.Kind]; end != nil {
			end.Inc()
			s.holds.Dec()
			s.holdDuration.Observe(e.Held.Seconds())
		}
		if loss, ok := errors.AsType[*primitives.LossError](e.Err); ok && e.Kind == primitives.EventLost {
			count(s.losses[loss.Reason])
		}
	}
}

// count counts one, unless the value of the label is one that only a later version of primitives
// knows.
func count(c prometheus.Counter) {
	if c != nil {
		c.Inc()
	}
}

// election are the time series of one election.
type election struct {
	leading prometheus.Gauge
	terms   prometheus.Counter
	ends    map[primitives.EventKind]prometheus.Counter
}

// observe counts an event of a candidate.
func (l *election) observe(e primitives.Event) {
	if e.Kind == primitives.EventAcquired {
		l.leading.Inc()
		l.terms.Inc()
	} else if end := l.ends[e.Kind]; end != nil {
		l.leading.Dec()
		end.Inc()
	}
}

// electionOf returns the series of an election, and makes them for its first event.
func (c *Collector) electionOf(name string) *election {
	c.mu.RLock()
	l := c.elections[name]
	c.mu.RUnlock()
	if l != nil {
		return l
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	l = c.elections[name]
	if l == nil {
		value := strings.ToValidUTF8(name, "�") // Prometheus panics otherwise
		l = &election{
			c.leading.WithLabelValues(value), c.terms.WithLabelValues(value), map[primitives.EventKind]prometheus.Counter{},
		}
		for _, end := range ends {
			l.ends[end] = c.termEnds.WithLabelValues(value, string(end))
		}
		c.elections[name] = l
	}
	return l
}

// seriesKey identifies the series of a primitive's kind, and of a label's value.
type seriesKey struct{ kind, label string }

// series are the time series with the same kind and label.
type series struct {
	outcomes                             map[primitives.Outcome]prometheus.Counter
	ends                                 map[primitives.EventKind]prometheus.Counter
	losses                               map[primitives.LossReason]prometheus.Counter
	waitDuration, holdDuration, lateness prometheus.Observer
	waiters, holds                       prometheus.Gauge
	renewalFailures                      prometheus.Counter
}

// waited counts a wait that is over, if the acquisition has waited, and its duration if it
// succeeded. Candidates of an election wait for as long as another one lives, so they are no
// waiters.
func (s *series) waited(e primitives.Event) {
	if e.Election {
		return
	}
	if e.Waited > 0 {
		s.waiters.Dec()
	}
	if e.Err == nil {
		s.waitDuration.Observe(e.Waited.Seconds())
	}
}

// seriesOf returns the series of an event, and makes them for the first one.
func (c *Collector) seriesOf(e primitives.Event) *series {
	key := seriesKey{kind: e.Lock}
	if c.labelOf != nil {
		key.label = strings.ToValidUTF8(c.labelOf(e.Name), "�") // Prometheus panics otherwise
	}
	c.mu.RLock()
	s := c.series[key]
	c.mu.RUnlock()
	if s != nil {
		return s
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s = c.series[key]; s == nil {
		s = c.newSeries(key)
		c.series[key] = s
	}
	return s
}

// newSeries makes the series of a key. From then on Prometheus sees them, with 0.
func (c *Collector) newSeries(key seriesKey) *series {
	values := []string{key.kind}
	if c.labelOf != nil {
		values = append(values, key.label)
	}
	with := func(last string) []string { return append(slices.Clip(values), last) }
	s := &series{
		outcomes:        make(map[primitives.Outcome]prometheus.Counter, len(outcomes)),
		ends:            make(map[primitives.EventKind]prometheus.Counter, len(ends)),
		losses:          make(map[primitives.LossReason]prometheus.Counter, len(reasons)),
		waitDuration:    c.waitDuration.WithLabelValues(values...),
		holdDuration:    c.holdDuration.WithLabelValues(values...),
		lateness:        c.lateness.WithLabelValues(values...),
		waiters:         c.waiters.WithLabelValues(values...),
		holds:           c.holds.WithLabelValues(values...),
		renewalFailures: c.renewalFailures.WithLabelValues(values...),
	}
	for _, outcome := range outcomes {
		s.outcomes[outcome] = c.acquisitions.WithLabelValues(with(string(outcome))...)
	}
	for _, end := range ends {
		s.ends[end] = c.holdEnds.WithLabelValues(with(string(end))...)
	}
	for _, reason := range reasons {
		s.losses[reason] = c.losses.WithLabelValues(with(string(reason))...)
	}
	return s
}
