package contract

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// TestC21WaitersThatComeAtOnceShareAPoll has many goroutines of one client ask for a name at the same moment, so that
// each of them makes a first attempt. From then on one of them polls once a second, whatever the attempts have left on
// the server. A fair lock's waiters are refreshed together.
func TestC21WaitersThatComeAtOnceShareAPoll(t *testing.T) {
	t.Parallel()
	const n = 20
	type row struct {
		name         string
		holds, waits kinds.Kind
		options      []primitives.Option // of the waiters
	}
	var rows []row
	for _, k := range kinds.Named() {
		rows = append(rows, row{name: k.Name, holds: k, waits: k})
	}
	reader, writer := kinds.Of("reader"), kinds.Of("writer")
	rows = append(rows,
		row{name: "writers behind a reader", holds: reader, waits: writer},
		row{name: "readers behind a writer", holds: writer, waits: reader},
		row{name: "multi", holds: kinds.Of("multi"), waits: kinds.Of("multi")},
		row{
			name: "writers with cohorts behind a reader", holds: reader, waits: writer,
			options: []primitives.Option{primitives.WithCohort(time.Second), primitives.WithLinger(time.Second)},
		},
	)
	s := redistest.Fresh(t)
	holder, waiting := NewClient(t, s.Client(t)), NewClient(t, s.Client(t))
	ctx, giveUp := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var holds []*primitives.Hold
	names := 0
	for i, tt := range rows {
		if tt.name == "reader" {
			continue // readers do not keep readers out
		}
		name := fmt.Sprint("n", i)
		holds = append(holds, Acquire(t, ctx, tt.holds.One(t, holder, name)))
		l := tt.waits.Open(waiting, name, tt.options...)
		for range n {
			wg.Go(func() {
				_, err := l.Acquire(ctx)
				assert.ErrorIs(t, err, context.Canceled)
			})
		}
		names++
	}
	AwaitWaiters(t, waiting, n*names)
	time.Sleep(200 * time.Millisecond) // second attempts, once subscriptions are confirmed
	before, began := redistest.Commands(t, s), time.Now()
	time.Sleep(3 * time.Second)
	spent := redistest.Commands(t, s).Since(before)
	polls := float64(spent["evalsha"]) / (float64(names) * time.Since(began).Seconds())
	t.Logf("%.2f scripts a second for each of %d names", polls, names)
	require.LessOrEqual(t, polls, 1.4, "one poll a second for each name, and a heartbeat")
	giveUp()
	wg.Wait()
	Release(t, holds...)
}
