package contract

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// A nested acquisition ends with its wait too, though Redis is silent and the outer hold lasts (C5).
func TestNestedAcquisitionEndsWithItsWait(t *testing.T) {
	t.Parallel()
	for name, locks := range map[string]func(*primitives.Client, string) (outer, inner *primitives.Lock){
		"plain": func(c *primitives.Client, name string) (outer, inner *primitives.Lock) {
			return c.Lock(name), c.Lock(name)
		},
		"fair": func(c *primitives.Client, name string) (outer, inner *primitives.Lock) {
			return c.FairLock(name), c.FairLock(name)
		},
		"readers": func(c *primitives.Client, name string) (outer, inner *primitives.Lock) {
			return c.RWLock(name).Reader(), c.RWLock(name).Reader()
		},
		"reader under a writer": func(c *primitives.Client, name string) (outer, inner *primitives.Lock) {
			return c.RWLock(name).Writer(), c.RWLock(name).Reader()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := redistest.Embedded(t).Proxy(t)
				c, err := primitives.New(p.Client(t))
				require.NoError(t, err)
				outer, inner := locks(c, "l")
				hold, err := outer.Acquire(t.Context(), primitives.WithWatchdog(5*time.Second))
				require.NoError(t, err)
				p.BlackHole(true)
				began := time.Now()
				_, err = inner.Acquire(hold.Context(), primitives.WithWait(150*time.Millisecond))
				require.ErrorIs(t, err, primitives.ErrUnavailable)
				assert.Less(t, time.Since(began), 200*time.Millisecond, "the wait is 150 ms, the TTL 5 s")
				p.Heal()
				p.Reset()
				require.NoError(t, hold.Release(t.Context()))
				require.NoError(t, c.Close(t.Context()))
			})
		})
	}
}
