package primitives_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/fixture"
	"github.com/redlatch/redlatch/internal/redistest"
)

// The server's time for a handoff does not depend on the number of waiters: with 10,000 it is less than twice that
// with 10, also where other tests use the processor's caches.
func TestFairLockHandoffCostIsIndependentOfTheQueue(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	few, many := NewRawQueue(t, s, 10), NewRawQueue(t, s, 10000)
	const rounds, calls = 40, 25
	a, b := few.Each(calls, few.HandOff), many.Each(calls, many.HandOff)
	for range rounds { // the fastest round of each is one that the machine did not interrupt
		a, b = min(a, few.Each(calls, few.HandOff)), min(b, many.Each(calls, many.HandOff))
	}
	ratio := float64(b) / float64(a)
	t.Logf("a handoff with 10,000 waiters costs %.2f times one with 10; a heartbeat takes %v",
		ratio, many.Each(50, many.Heartbeat))
	require.Less(t, ratio, 2.0)
}

func BenchmarkFairLock(b *testing.B) {
	for _, n := range []int{10, 1000, 10000} {
		b.Run(fmt.Sprintf("handoff, %d waiters", n), func(b *testing.B) {
			c := NewRawQueue(b, redistest.Fresh(b), n)
			before := c.ScriptTime()
			for b.Loop() {
				c.HandOff()
			}
			b.ReportMetric(float64((c.ScriptTime()-before).Nanoseconds())/float64(b.N), "server-ns/op")
		})
		b.Run(fmt.Sprintf("heartbeat, %d waiters", n), func(b *testing.B) {
			c := NewRawQueue(b, redistest.Fresh(b), n)
			before := c.ScriptTime()
			for b.Loop() {
				c.Heartbeat()
			}
			b.ReportMetric(float64((c.ScriptTime()-before).Nanoseconds())/float64(b.N), "server-ns/op")
		})
	}
	b.Run("uncontended", func(b *testing.B) {
		l := NewClient(b, redistest.Redis(b).Client(b)).FairLock(redistest.Name(b))
		for b.Loop() {
			Release(b, Acquire(b, b.Context(), l))
		}
	})
	b.Run("floor: plain lock, uncontended", func(b *testing.B) {
		l := NewClient(b, redistest.Redis(b).Client(b)).Lock(redistest.Name(b))
		for b.Loop() {
			Release(b, Acquire(b, b.Context(), l))
		}
	})
}
