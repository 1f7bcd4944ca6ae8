package wire

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// Redisson's unlock publishes on the common channel, which only two of the clients in line hear.
// When these two no longer wait, another one hears it.
func TestRedissonsUnlockWakesAClientInLine(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(t *testing.T, l *primitives.Lock, free, seize func()) (stop func()){
		"two others have given up": func(t *testing.T, l *primitives.Lock, _, _ func()) func() {
			ctx, cancel := context.WithCancel(t.Context())
			go func() { _, _ = l.Acquire(ctx) }()
			return cancel
		},
		"two others have passed the lock on in a cohort": func(t *testing.T, l *primitives.Lock, free, seize func()) func() {
			free()
			hold := fixture.Acquire(t, t.Context(), l)
			passed := make(chan *primitives.Hold)
			go func() {
				hold, err := l.Acquire(t.Context())
				assert.NoError(t, err)
				passed <- hold
			}()
			synctest.Wait()
			id := hold.ID()
			fixture.Release(t, hold)
			hold = <-passed
			require.Equal(t, id, hold.ID())
			seize()
			t.Cleanup(func() { require.ErrorIs(t, hold.Release(context.Background()), primitives.ErrLost) })
			return func() {}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := redistest.Embedded(t)
				rdb := s.Client(t)
				free := func() { require.NoError(t, rdb.Del(t.Context(), "l").Err()) }
				seize := func() {
					free()
					require.NoError(t, rdb.HSet(t.Context(), "l", "java:1", 1).Err())
					require.NoError(t, rdb.PExpire(t.Context(), "l", time.Minute).Err())
				}
				lock := func() *primitives.Lock {
					return fixture.NewClient(t, s.Client(t)).Lock("l", primitives.WithCohort(time.Minute))
				}
				seize()
				var stops []func()
				for range 2 {
					stops = append(stops, leave(t, lock(), free, seize))
					synctest.Wait()
				}
				waiting := make(chan *primitives.Hold)
				go func() {
					hold, err := lock().Acquire(t.Context())
					assert.NoError(t, err)
					waiting <- hold
				}()
				time.Sleep(100 * time.Millisecond)
				for _, stop := range stops {
					stop()
					synctest.Wait()
				}
				time.Sleep(50 * time.Millisecond) // longer than subscriptions take to end
				free()
				began := time.Now()
				require.NoError(t, rdb.Publish(t.Context(), "redisson_lock__channel:{l}", "0").Err())
				hold := <-waiting
				require.Less(t, time.Since(began), 100*time.Millisecond)
				fixture.Release(t, hold)
			})
		})
	}
}
