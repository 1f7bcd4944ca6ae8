package primitives_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	. "github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// A connection that falls silent, such as one that a firewall has forgotten, loses no hold: renewals wait for its
// answers until validity ends, but they leave connections for further ones.
func TestSilentConnectionsLoseNoHold(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	for _, tt := range []struct{ pool, pipelines int }{{1, -1}, {2, -1}, {4, -1}, {10, 1}, {10, 2}} {
		t.Run(fmt.Sprintf("%d connections, %d for pipelines", tt.pool, tt.pipelines), func(t *testing.T) {
			t.Parallel()
			p := redistest.Redis(t).Proxy(t)
			c := NewClient(t, p.Client(t, func(o *redis.Options) {
				o.PoolSize, o.PipelinePoolSize, o.ReadTimeout = tt.pool, tt.pipelines, 300*time.Millisecond
			}), primitives.WithCommandTimeout(500*time.Millisecond))
			name := redistest.Name(t)
			var holds []*primitives.Hold
			for _, l := range []*primitives.Lock{
				c.Lock(name + "l"), c.FairLock(name + "f"), c.FencedLock(name + "t"), c.RWLock(name + "r").Writer(),
			} {
				holds = append(holds, Acquire(t, t.Context(), l, primitives.WithWatchdog(ttl)))
			}
			p.BlackHole(true)
			time.Sleep(ttl/3 + 500*time.Millisecond) // a renewal of each is under way
			p.BlackHole(false)                       // these connections stay silent
			time.Sleep(ttl)
			for _, hold := range holds {
				RequireLive(t, hold.Context())
				Release(t, hold)
			}
		})
	}
}
