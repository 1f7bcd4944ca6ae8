package topology

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// C10: servers that answer, however slowly, lose no hold, although each answer takes longer than
// the read timeout of the client, and than a command may take. Each case returns what acquires
// holds, and the proxies before its servers.
func TestSlowServersLoseNoHold(t *testing.T) {
	t.Parallel()
	redistest.NeedFull(t, "servers that are slow for two leases")
	const (
		readTimeout = 200 * time.Millisecond
		timeout     = 500 * time.Millisecond
		delay       = 700 * time.Millisecond
		ttl         = 8 * time.Second
	)
	client := func(t *testing.T, rdb redis.UniversalClient) *primitives.Client {
		return fixture.NewClient(t, rdb, primitives.WithCommandTimeout(timeout))
	}
	leased := func(t *testing.T, c *primitives.Client) (handles []kinds.Handle) {
		for _, k := range kinds.Select(func(k kinds.Kind) bool { return k.Leased }) {
			handles = append(handles, k.One(t, c, redistest.Name(t)+k.Name))
		}
		return handles
	}
	for _, tt := range []struct {
		name string
		open func(t *testing.T) ([]kinds.Handle, []*redistest.Proxy)
	}{
		{"sentinel", func(t *testing.T) ([]kinds.Handle, []*redistest.Proxy) {
			servers := redistest.Sentinel(t)
			p := servers.Current(t).Proxy(t)
			rdb := servers.FailoverClient(t, func(o *redis.FailoverOptions) {
				o.Dialer, o.ReadTimeout = redistest.Dialer(p), readTimeout
			})
			return leased(t, client(t, rdb)), []*redistest.Proxy{p}
		}},
		{"cluster", func(t *testing.T) ([]kinds.Handle, []*redistest.Proxy) {
			servers := redistest.Cluster(t)
			var proxies []*redistest.Proxy
			for _, s := range servers.Nodes() {
				proxies = append(proxies, s.Proxy(t))
			}
			rdb := servers.ClusterClient(t, func(o *redis.ClusterOptions) {
				o.Dialer, o.ReadTimeout = redistest.Dialer(proxies...), readTimeout
			})
			return leased(t, client(t, rdb)), proxies
		}},
		{"redlock", func(t *testing.T) ([]kinds.Handle, []*redistest.Proxy) {
			q := fixture.NewQuorum(t, 3)
			var clients []*primitives.Client
			for _, p := range q.Proxies {
				clients = append(clients, client(t, p.Client(t, func(o *redis.Options) { o.ReadTimeout = readTimeout })))
			}
			return []kinds.Handle{q.Lock(clients)}, q.Proxies
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			handles, proxies := tt.open(t)
			var holds []*primitives.Hold
			for _, handle := range handles {
				hold := fixture.Acquire(t, t.Context(), handle, primitives.WithWatchdog(ttl))
				holds = append(holds, hold)
			}
			for _, p := range proxies {
				p.Delay(delay)
			}
			time.Sleep(ttl + ttl/2)
			for _, hold := range holds {
				require.NoError(t, context.Cause(hold.Context()), hold.Name())
			}
			for _, p := range proxies {
				p.Delay(0)
			}
			fixture.Release(t, holds...)
		})
	}
}
