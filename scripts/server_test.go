package scripts

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

// The dialer finds another server under the same address, as a Sentinel client's does after a
// failover. The connections to the old server were closed while nothing was under way, so no
// command fails.
func TestServerIsAnotherOneAfterAFailover(t *testing.T) {
	for name, wrap := range map[string]func(*redis.Client) redis.UniversalClient{
		"client":   func(rdb *redis.Client) redis.UniversalClient { return rdb },
		"embedded": func(rdb *redis.Client) redis.UniversalClient { return struct{ *redis.Client }{rdb} },
	} {
		t.Run(name, func(t *testing.T) {
			var master atomic.Pointer[redistest.Proxy]
			server := redistest.Redis(t)
			one, two := server.Proxy(t), server.Proxy(t)
			master.Store(one)
			rdb := redis.NewClient(&redis.Options{
				Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
					return new(net.Dialer).DialContext(ctx, network, master.Load().Addr())
				},
				ConnMaxIdleTime: 10 * time.Millisecond,
			})
			t.Cleanup(func() { _ = rdb.Close() })
			r := NewRunner(wrap(rdb), time.Second)
			defer r.Close()
			other := NewRunner(wrap(rdb), time.Second)
			defer other.Close()
			require.Same(t, r.dialed, other.dialed, "one hook for each client")
			require.Empty(t, r.Address())
			send := func() any {
				require.NoError(t, errOf(r.Commands(t.Context(), []any{"exists", "x"})))
				return r.Server("x")
			}
			was := send()
			require.NotNil(t, was)
			require.Equal(t, one.Addr(), r.Address())
			time.Sleep(20 * time.Millisecond)
			require.Same(t, was, send(), "another connection to the same server")
			master.Store(two)
			time.Sleep(20 * time.Millisecond)
			require.NotSame(t, was, send())
			require.Equal(t, two.Addr(), r.Address())
		})
	}
}
