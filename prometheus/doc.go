// Package prometheus measures locks for Prometheus. A [Collector] counts the events of clients:
//
//	collector := redlatchprom.NewCollector()
//	prometheus.MustRegister(collector)
//	client, err := primitives.New(rdb, primitives.WithObserver(collector.Observe))
//
// Import it under another name, because it has the name of the client library of Prometheus:
//
//	import redlatchprom "github.com/redlatch/redlatch/prometheus"
//
// # Metrics
//
// The label kind is the primitive's kind, such as lock, fair or semaphore. All series of a kind
// exist from its first event on, so that the first failure is an increase, too.
//
//	redlatch_acquisitions_total{kind,outcome}  acquisitions: acquired, nested, busy, ended, unavailable, error
//	redlatch_wait_duration_seconds{kind}       how long successful acquisitions waited
//	redlatch_waiters{kind}                     acquisitions that wait now, and waiters for latches
//	redlatch_holds{kind}                       holds that have not ended
//	redlatch_hold_duration_seconds{kind}       how long holds lasted
//	redlatch_hold_ends_total{kind,end}         ends of holds: released, lost, leaked and others
//	redlatch_hold_losses_total{kind,reason}    lost holds: expired, gone, forced, limit, members
//	redlatch_renewal_lateness_seconds{kind}    how late renewals were confirmed; its count is the renewals
//	redlatch_renewal_failures_total{kind}      renewals without an answer
//	redlatch_link_losses_total                 lost connections for wake-ups
//
// For a prefix or constant labels, such as the Redis deployment, register the collector with
// prometheus.WrapRegistererWithPrefix or prometheus.WrapRegistererWith.
//
// The folder grafana has a dashboard, and alerts.yml has alert rules. doc/observability.md explains
// both.
package prometheus
