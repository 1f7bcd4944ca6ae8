package contract

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// leak acquires a hold and drops it, and returns its id.
func leak(t *testing.T, handle kinds.Handle, opts ...primitives.Option) string {
	hold, err := handle.Acquire(t.Context(), opts...)
	require.NoError(t, err)
	require.NoError(t, hold.Context().Err())
	return hold.ID()
}

// collectLeaks collects garbage until the observer has heard of a leaked hold.
func collectLeaks(t *testing.T, heard *fixture.Recorder) {
	t.Helper()
	for range 2000 { // in a bubble that is 2000 s, and takes seconds
		runtime.GC()
		time.Sleep(10 * time.Millisecond)
		if synctestTime() {
			time.Sleep(time.Second)
		}
		if len(heard.All(primitives.EventLeaked)) > 0 {
			return
		}
	}
	t.Fatal("no leaked event")
}

// synctestTime reports whether the caller is in a bubble: only the times there have no monotonic
// clock reading.
func synctestTime() bool { return time.Now() == time.Now().Round(0) }

// leakTest checks that a leaked hold is told once, and is renewed no longer.
func leakTest(t *testing.T, k kinds.Kind, s *redistest.Server) {
	var heard fixture.Recorder
	var log fixture.LogBuffer
	c := fixture.NewClient(t, s.Client(t), heard.Option(), log.Logger())
	handle := k.One(t, c, redistest.Name(t))
	id := leak(t, handle, primitives.WithWatchdog(3*time.Second))
	collectLeaks(t, &heard)

	leaked := heard.All(primitives.EventLeaked)[0]
	assert.Equal(t, []any{k.Name, id}, []any{leaked.Lock, leaked.ID})
	assert.Positive(t, leaked.Held)
	if k.Leased {
		next, err := handle.Acquire(t.Context()) // when the lease has ended
		require.NoError(t, err)
		fixture.Release(t, next)
	}
	runtime.GC()
	time.Sleep(20 * time.Millisecond)
	records := log.Records(t, "hold leaked")
	require.Len(t, records, 1, "logged once")
	assert.Equal(t, []any{"WARN", k.Name, id},
		[]any{records[0]["level"], records[0]["kind"], records[0]["id"]})
	assert.Len(t, heard.All(primitives.EventLeaked), 1)
	assert.Empty(t, heard.All(primitives.EventLost))
	closing, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	require.NoError(t, c.Close(closing), "it is no hold that is left")
}

// C17, C27: a leaked hold of any kind is logged once, as a warning.
func TestC17LeakedHoldIsLoggedOnce(t *testing.T) {
	t.Parallel()
	for _, k := range kinds.All() {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			leakTest(t, k, redistest.Redis(t))
		})
	}
}

// C17 in a bubble: the cleanups of the runtime run outside of it, and must not touch its channels
// and timers.
func TestC17LeakedHoldInABubble(t *testing.T) {
	t.Parallel()
	for _, k := range kinds.All() {
		redistest.RunBubble(t, k.Name, func(t *testing.T) { leakTest(t, k, redistest.Embedded(t)) })
	}
}

// C17: Close does not wait for a hold that is found to be leaked while it waits, and a hold may be
// found after its bubble has ended.
func TestC17LeakedHoldAndTheEndOfItsBubble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var heard fixture.Recorder
		c := fixture.NewClient(t, redistest.Embedded(t).Client(t), heard.Option())
		leak(t, c.Lock("x"), primitives.WithLease(time.Hour))
		closed := fixture.Go(func() error { return c.Close(context.Background()) })
		collectLeaks(t, &heard)
		require.NoError(t, <-closed)
	})
	for _, k := range kinds.All() {
		synctest.Test(t, func(t *testing.T) {
			leak(t, k.One(t, fixture.NewClient(t, redistest.Embedded(t).Client(t)), "x"), primitives.WithLease(time.Hour))
		})
	}
	for range 5 {
		runtime.GC()
		time.Sleep(5 * time.Millisecond) // the cleanups run
	}
}
