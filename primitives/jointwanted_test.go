package primitives_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// Of two goroutines that wait for a joint lock, the first one acquires it. It hears within the promised time that the
// other one waits, which has made no attempt of its own since (C30).
func TestClockJointHoldHearsOfTheNextInLine(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"multi", "red"} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := OnJoint(t, redistest.Embedded(t), kind)
				before := x.Acquire(t, t.Context())
				var waiting []<-chan Result
				for range 2 {
					waiting = append(waiting, Start(func() (*primitives.Hold, error) { return x.L.Acquire(t.Context()) }))
					time.Sleep(20 * time.Millisecond)
				}
				Release(t, before)
				first := <-waiting[0]
				require.NoError(t, first.Err)
				began := time.Now()
				select {
				case <-first.Hold.Wanted():
				case <-time.After(time.Minute):
				}
				require.Less(t, time.Since(began), 300*time.Millisecond)
				Release(t, first.Hold)
				second := <-waiting[1]
				require.NoError(t, second.Err)
				Release(t, second.Hold)
			})
		})
	}
}
