package prometheus

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/primitives"
)

// A later version of primitives may have outcomes, reasons and events that the collector does not
// know. It does not count them, and goes on.
func TestCollectorToleratesALaterVersion(t *testing.T) {
	c := NewCollector()
	refused := primitives.Event{Kind: primitives.EventNotAcquired, Lock: "lock", Err: primitives.ErrNotAcquired}
	s := c.seriesOf(refused)
	delete(s.outcomes, primitives.OutcomeBusy) // as if this outcome came later
	for _, e := range []primitives.Event{
		refused,
		{Kind: primitives.EventLost, Lock: "lock", Err: &primitives.LossError{Reason: "later"}},
		{Kind: "later", Lock: "lock"},
	} {
		c.Observe(e)
	}
	require.InDelta(t, 1, testutil.ToFloat64(s.ends[primitives.EventLost]), 0)
	require.InDelta(t, -1, testutil.ToFloat64(s.holds.(prometheus.Collector)), 0, "the one that was lost")
	for _, loss := range s.losses {
		require.Zero(t, testutil.ToFloat64(loss))
	}
}
