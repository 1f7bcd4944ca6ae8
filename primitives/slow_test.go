package primitives_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// slowTest has renewed holds of all kinds, on a server that answers late.
type slowTest struct {
	ttl, delay  time.Duration
	readTimeout time.Duration // of the redis client
	timeout     time.Duration // of commands; 0 for the default
	more        int           // locks
	notified    bool          // a new connection takes one more answer, for notices of maintenance
}

// run checks that no hold is lost for some periods of renewals.
func (tt slowTest) run(t *testing.T, s *redistest.Server) {
	p := s.Proxy(t)
	rdb := p.Client(t, func(o *redis.Options) {
		o.ReadTimeout = tt.readTimeout
		if tt.notified {
			o.MaintNotificationsConfig = &maintnotifications.Config{
				Mode: maintnotifications.ModeAuto, EndpointType: maintnotifications.EndpointTypeNone,
			}
		}
	})
	var opts []primitives.ClientOption
	if tt.timeout > 0 {
		opts = append(opts, primitives.WithCommandTimeout(tt.timeout))
	}
	c := fixture.NewClient(t, rdb, opts...)
	var holds []*primitives.Hold
	for _, k := range kinds.Select(func(k kinds.Kind) bool { return k.Leased }) {
		hold := fixture.Acquire(t, t.Context(), k.One(t, c, redistest.Name(t)+k.Name), primitives.WithWatchdog(tt.ttl))
		holds = append(holds, hold)
	}
	for range tt.more {
		holds = append(holds, fixture.Acquire(t, t.Context(), c.Lock(redistest.Name(t)), primitives.WithWatchdog(tt.ttl)))
	}
	p.Delay(tt.delay)
	time.Sleep(tt.ttl + tt.ttl/2)
	for _, hold := range holds {
		require.NoError(t, context.Cause(hold.Context()), hold.Name())
	}
	p.Delay(0)
	fixture.Release(t, holds...)
	closing, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	require.NoError(t, c.Close(closing))
}

// C10: a server that answers, however slowly, loses no hold, although its answers take longer than
// the read timeout of the client, and than a command may take.
func TestSlowServerLosesNoHold(t *testing.T) {
	t.Parallel()
	redistest.NeedFull(t, "the next test is the same in fake time")
	const ms = time.Millisecond
	for name, tt := range map[string]slowTest{
		"longer than the read timeout":    {ttl: 4 * time.Second, delay: 400 * ms, readTimeout: 200 * ms},
		"longer than the command timeout": {ttl: 8 * time.Second, delay: 700 * ms, readTimeout: 200 * ms, timeout: 500 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tt.run(t, redistest.Redis(t))
		})
	}
}

// The same in fake time, with longer times.
func TestVerySlowServerLosesNoHold(t *testing.T) {
	t.Parallel()
	const (
		half = time.Second / 2
		ttl  = 30 * time.Second
	)
	for name, tt := range map[string]slowTest{
		"the default timeout":    {ttl: ttl, delay: 4 * half, readTimeout: 2 * half},
		"a timeout of a second":  {ttl: ttl, delay: 4 * half, readTimeout: half, timeout: 2 * half},
		"notices of maintenance": {ttl: ttl, delay: 4 * half, readTimeout: half, timeout: 2 * half, notified: true},
		"many locks":             {ttl: ttl, delay: 4 * half, readTimeout: half, timeout: 2 * half, more: 1500},
		"four seconds":           {ttl: ttl, delay: 8 * half, readTimeout: 2 * half, timeout: 4 * half},
	} {
		redistest.RunBubble(t, name, func(t *testing.T) { tt.run(t, redistest.Embedded(t)) })
	}
}

// A connection that falls silent, such as one that a firewall has forgotten, loses no hold:
// renewals wait for its answers until validity ends, but they leave connections for further ones.
func TestSilentConnectionsLoseNoHold(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	for _, tt := range []struct{ pool, pipelines int }{{1, -1}, {2, -1}, {4, -1}, {10, 1}, {10, 2}} {
		t.Run(fmt.Sprintf("%d connections, %d for pipelines", tt.pool, tt.pipelines), func(t *testing.T) {
			t.Parallel()
			p := redistest.Redis(t).Proxy(t)
			c := fixture.NewClient(t, p.Client(t, func(o *redis.Options) {
				o.PoolSize, o.PipelinePoolSize, o.ReadTimeout = tt.pool, tt.pipelines, 300*time.Millisecond
			}), primitives.WithCommandTimeout(500*time.Millisecond))
			name := redistest.Name(t)
			var holds []*primitives.Hold
			for _, l := range []*primitives.Lock{
				c.Lock(name + "l"), c.FairLock(name + "f"), c.FencedLock(name + "t"), c.RWLock(name + "r").Writer(),
			} {
				holds = append(holds, fixture.Acquire(t, t.Context(), l, primitives.WithWatchdog(ttl)))
			}
			p.BlackHole(true)
			time.Sleep(ttl/3 + 500*time.Millisecond) // a renewal of each is under way
			p.BlackHole(false)                       // these connections stay silent
			time.Sleep(ttl)
			for _, hold := range holds {
				fixture.RequireLive(t, hold.Context())
				fixture.Release(t, hold)
			}
		})
	}
}
