package primitives_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// A server that answers, however slowly, loses no hold, although its answers take longer than the read timeout of the
// client.
func TestSlowServerLosesNoHold(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	for name, tt := range map[string]struct{ delay, readTimeout, commandTimeout time.Duration }{
		"longer than the read timeout": {400 * time.Millisecond, 200 * time.Millisecond, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := redistest.Redis(t).Proxy(t)
			rdb := p.Client(t, func(o *redis.Options) { o.ReadTimeout = tt.readTimeout })
			var opts []primitives.ClientOption
			if tt.commandTimeout > 0 {
				opts = append(opts, primitives.WithCommandTimeout(tt.commandTimeout))
			}
			c, err := primitives.New(rdb, opts...)
			require.NoError(t, err)
			key := redistest.Name(t)
			renewed := primitives.WithWatchdog(ttl)
			permits := c.PermitExpirableSemaphore(key + "p")
			_, err = permits.Init(t.Context(), 1)
			require.NoError(t, err)
			var holds []*primitives.Hold
			for _, acquire := range []func(context.Context, ...primitives.Option) (*primitives.Hold, error){
				c.Lock(key + "l").Acquire, c.FairLock(key + "f").Acquire, c.FencedLock(key + "t").Acquire,
				c.RWLock(key + "r").Reader().Acquire, c.RWLock(key + "w").Writer().Acquire, permits.Acquire,
			} {
				hold, err := acquire(t.Context(), renewed)
				require.NoError(t, err)
				holds = append(holds, hold)
			}
			p.Delay(tt.delay)
			time.Sleep(2*ttl + ttl/2)
			for _, hold := range holds {
				require.NoError(t, hold.Context().Err(), hold.Name())
			}
			p.Delay(0)
			for _, hold := range holds {
				require.NoError(t, hold.Release(t.Context()))
			}
			closing, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			require.NoError(t, c.Close(closing))
		})
	}
}
