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
					waiting = append(waiting, StartAcquire(t.Context(), x.L))
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

// Of two goroutines that wait for a joint lock of another client, the first one gives up. The holder hears within the
// promised time that the other one waits, which has made no attempt of its own (C30).
func TestClockJointHoldHearsOfTheNextInLineOfAnotherClient(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"multi", "red"} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := OnJoint(t, redistest.Embedded(t), kind)
				other := x.Other(t)
				holder := AcquireAll(t, t.Context(), x.On(other), x.Locks(other)...)
				wanted := holder.Wanted()
				time.Sleep(2300 * time.Millisecond) // the holder's client listens, and has just looked for waiters
				first := StartAcquire(t.Context(), x.L, primitives.WithWait(50*time.Millisecond))
				time.Sleep(20 * time.Millisecond)
				began := time.Now()
				second := StartAcquire(t.Context(), x.L)
				require.ErrorIs(t, (<-first).Err, primitives.ErrNotAcquired)
				select {
				case <-wanted:
				case <-time.After(time.Minute):
				}
				require.Less(t, time.Since(began), 300*time.Millisecond)
				Release(t, holder)
				got := <-second
				require.NoError(t, got.Err)
				Release(t, got.Hold)
			})
		})
	}
}
