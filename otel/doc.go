// Package otel reports locks to OpenTelemetry: metrics and spans. An [Observer] is fed by the
// events of clients:
//
//	observer, err := redlatchotel.NewObserver()
//	client, err := primitives.New(rdb, primitives.WithObserver(observer.Observe))
//
// Import it under another name, because it has the name of OpenTelemetry's own package:
//
//	import redlatchotel "github.com/redlatch/redlatch/otel"
//
// # Metrics
//
// The attribute redlatch.kind is the primitive's kind, such as lock, fair or semaphore. Durations
// are in seconds.
//
//	redlatch.acquisitions       counter          acquisitions, by redlatch.outcome: acquired, nested, busy, ended,
//	                                             unavailable, error
//	redlatch.wait.duration      histogram, s     how long successful acquisitions waited
//	redlatch.waiters            up-down counter  acquisitions that wait now, and waiters for latches
//	redlatch.holds              up-down counter  holds that have not ended
//	redlatch.hold.duration      histogram, s     how long holds lasted
//	redlatch.hold.ends          counter          ends of holds, by redlatch.end: released, lost, leaked and others
//	redlatch.hold.losses        counter          lost holds, by redlatch.reason: expired, paused, gone, forced,
//	                                             limit, members
//	redlatch.renewal.lateness   histogram, s     how late renewals were confirmed; its count is the renewals
//	redlatch.renewal.failures   counter          renewals without an answer
//	redlatch.link.losses        counter          lost connections for wake-ups
//
// # Spans
//
// Spans belong to the trace of the context that an acquisition or a release was called with.
// Without a trace there is no span. Names of locks are attributes of spans, not of metrics.
//
//	redlatch.wait   an acquisition or a wait for a latch that waited, or that failed with an error
//	redlatch.hold   a hold, from the acquisition to its end
//
// A span is made when it is over, with the time at which it began. A hold that was neither released
// nor detached is an error. If there is no trace where it ended, as for a loss that was found in
// the background, the span belongs to the trace of the acquisition.
package otel
