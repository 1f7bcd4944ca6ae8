package faults

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// lastsForMinutes is a lease whose end no test waits for.
var lastsForMinutes = primitives.WithWatchdog(5 * time.Minute)

// requireFree requires that another client can acquire name, and that c, which has no holds, can be
// closed.
func requireFree(t *testing.T, s *redistest.Server, k kinds.Kind, c *primitives.Client, name string) {
	t.Helper()
	fixture.Release(t, fixture.Acquire(t, t.Context(), k.Open(fixture.NewClient(t, s.Client(t)), name),
		primitives.WithWait(fixture.Soon)))
	ctx, cancel := context.WithTimeout(t.Context(), fixture.Soon)
	defer cancel()
	require.NoError(t, c.Close(ctx))
}

// Observers run in the caller's goroutine. A server such as net/http recovers a panic there, and
// lives on, so nothing may stay locked that nobody has a hold to release.
func TestAnObserverThatPanics(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	for _, k := range kinds.All() {
		for _, at := range []primitives.EventKind{
			primitives.EventWait, primitives.EventAcquired, primitives.EventNested, primitives.EventReleased,
		} {
			if k.Pool && at == primitives.EventNested {
				continue
			}
			name := k.Name + " " + string(at)
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				c := fixture.NewClient(t, s.Client(t), primitives.WithDefaults(lastsForMinutes),
					primitives.WithObserver(func(e primitives.Event) {
						if e.Kind == at {
							panic("observer")
						}
					}))
				h := k.One(t, c, name)
				var rival *primitives.Hold
				if at == primitives.EventWait {
					rival = fixture.Acquire(t, t.Context(), k.Rival(fixture.NewClient(t, s.Client(t)), name))
				}
				require.PanicsWithValue(t, "observer", func() {
					_ = h.Do(t.Context(), func(ctx context.Context) error {
						return h.Do(ctx, func(context.Context) error { return nil }, primitives.WithPermits(0))
					})
				})
				if rival != nil {
					fixture.Release(t, rival)
				}
				requireFree(t, s, k, c, name)
			})
		}
	}
}
