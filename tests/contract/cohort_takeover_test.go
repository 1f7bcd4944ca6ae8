package contract

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// TestC24TakeoverDuringACohort has goroutines of one client pass a lock on, while another client takes it by force
// again and again. A loss is told to holders, and to nobody who waits. Nor does the lock stay free while somebody
// waits: a message that was not used costs a second, the time until the slow poll. The test counts its looks, a
// millisecond apart, because on a busy machine it stands still as the waiters do.
func TestC24TakeoverDuringACohort(t *testing.T) {
	t.Parallel()
	cohort := primitives.WithCohort(20 * time.Millisecond)
	for _, tt := range []struct {
		name    string
		options []primitives.Option
		times   int
		settles int64 // acquisitions between two takeovers; 0: a millisecond
	}{
		{name: "no cohort", times: 30, settles: 16},
		{name: "cohort", options: []primitives.Option{cohort}, times: 60, settles: 16},
		{
			name: "cohort that lingers", options: []primitives.Option{cohort, primitives.WithLinger(time.Second)},
			times: 60, settles: 16,
		},
		{name: "takeovers without a pause", options: []primitives.Option{cohort}, times: 1000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Redis(t)
			name := redistest.Name(t)
			c, admin := NewClient(t, s.Client(t)), NewClient(t, s.Client(t))
			ctx, stop := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			var acquired atomic.Int64
			for range 8 {
				wg.Go(func() {
					l := c.Lock(name, tt.options...)
					for ctx.Err() == nil {
						hold, err := l.Acquire(context.Background())
						if !assert.NoError(t, err, "a waiter has nothing to lose") {
							return
						}
						acquired.Add(1)
						time.Sleep(200 * time.Microsecond)
						_ = hold.Release(context.Background()) // it may be lost
					}
				})
			}
			longest := 0 // looks
			for range tt.times {
				require.NoError(t, ErrOf(admin.Lock(name).ForceRelease(t.Context())))
				n, looks := acquired.Load(), 0
				const look = time.Millisecond
				time.Sleep(look)
				for enough := n + tt.settles; acquired.Load() < enough; time.Sleep(look) {
					looks++
					now := acquired.Load()
					if now != n {
						n, looks = now, 0
					}
					longest = max(longest, looks)
				}
			}
			stop()
			wg.Wait()
			t.Logf("%d acquisitions; nobody acquired for %d looks at most", acquired.Load(), longest)
			require.Less(t, longest, 500)
		})
	}
}
