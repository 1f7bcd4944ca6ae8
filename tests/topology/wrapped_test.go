package topology

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// instrumented is what many programs make of the result of redis.NewUniversalClient: a struct that
// embeds the interface. It has no Options method, and overrides the methods that send commands.
type instrumented struct {
	redis.UniversalClient
	sent atomic.Int64 // by the methods that it overrides
}

func (c *instrumented) Process(ctx context.Context, cmd redis.Cmder) error {
	c.sent.Add(1)
	return c.UniversalClient.Process(ctx, cmd)
}

func (c *instrumented) Pipeline() redis.Pipeliner {
	c.sent.Add(1)
	return c.UniversalClient.Pipeline()
}

// wrappers wrap a client in the ways that programs do.
var wrappers = map[string]func(redis.UniversalClient) redis.UniversalClient{
	"the interface": func(rdb redis.UniversalClient) redis.UniversalClient {
		return &instrumented{UniversalClient: rdb}
	},
	"a pointer": func(rdb redis.UniversalClient) redis.UniversalClient {
		if one, ok := rdb.(*redis.Client); ok {
			return wrappedClient{one}
		}
		return wrappedCluster{rdb.(*redis.ClusterClient)}
	},
	"a wrapper": func(rdb redis.UniversalClient) redis.UniversalClient {
		return &instrumented{UniversalClient: &instrumented{UniversalClient: rdb}}
	},
}

// wrappedClient is a client of a user, who has added methods to it.
type wrappedClient struct{ *redis.Client }

// eachWrapped runs f for each wrapper, around a client of a server and around one of a cluster.
// open returns a further client.
func eachWrapped(t *testing.T, f func(t *testing.T, open func() redis.UniversalClient)) {
	t.Parallel()
	for name, wrap := range wrappers {
		t.Run("a server, in a type that embeds "+name, func(t *testing.T) {
			s := redistest.Redis(t)
			f(t, func() redis.UniversalClient { return wrap(s.Client(t)) })
		})
		t.Run("a cluster, in a type that embeds "+name, func(t *testing.T) {
			servers := redistest.Cluster(t)
			f(t, func() redis.UniversalClient { return wrap(servers.ClusterClient(t)) })
		})
	}
}

// Waiters get the messages of releases, and holders those of takeovers. Without them a waiter would
// look once a second, and a holder when its lease ends.
func TestWrappedClientHearsMessages(t *testing.T) {
	eachWrapped(t, func(t *testing.T, open func() redis.UniversalClient) {
		var log fixture.LogBuffer
		one, two := fixture.NewClient(t, open(), log.Logger()), fixture.NewClient(t, open(), log.Logger())
		name := redistest.Name(t)

		var took []time.Duration
		for range 5 {
			hold := fixture.Acquire(t, t.Context(), one.Lock(name))
			waiting := fixture.StartAcquire(t.Context(), two.Lock(name))
			fixture.AwaitWaiters(t, two, 1)
			time.Sleep(50 * time.Millisecond) // far from the next look
			began := time.Now()
			fixture.Release(t, hold)
			next := fixture.AwaitAcquired(t, waiting)
			took = append(took, next.At.Sub(began))
			fixture.Release(t, next.Hold)
		}
		require.Empty(t, log.String(), "there is nothing to warn of")
		require.Less(t, slices.Min(took), 400*time.Millisecond, "hand-offs: %v", took)

		began := time.Now()
		hold := fixture.Acquire(t, t.Context(), one.Lock(name), primitives.WithLease(time.Minute))
		time.Sleep(time.Until(began.Add(1050 * time.Millisecond))) // younger holds are not told
		forced := fixture.ForceRelease(t, two.Lock(name))
		require.True(t, forced)
		fixture.RequireEnds(t, hold.Context(), primitives.ErrLost)
	})
}

// A type that overrides the methods that send sees the commands.
func TestWrappedClientSeesCommands(t *testing.T) {
	t.Parallel()
	for name, rdb := range map[string]redis.UniversalClient{
		"a server":  redistest.Redis(t).Client(t),
		"a cluster": redistest.Cluster(t).ClusterClient(t),
	} {
		wrapper := &instrumented{UniversalClient: rdb}
		c := fixture.NewClient(t, wrapper)
		for range 100 { // more than it takes for callers to send by themselves
			fixture.Release(t, fixture.Acquire(t, t.Context(), c.Lock(redistest.Name(t))))
		}
		require.GreaterOrEqual(t, wrapper.sent.Load(), int64(200), "%s: each acquisition and each release", name)
	}
}

// A wrapped cluster client is one of a cluster in every respect.
func TestWrappedClusterIsACluster(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t)
	for name, wrap := range wrappers {
		t.Run(name, func(t *testing.T) {
			c := fixture.NewClient(t, wrap(servers.ClusterClient(t)),
				primitives.WithDefaults(primitives.WithWatchdog(fixture.RenewedTTL)))
			prefix := redistest.Name(t)
			var holds []*primitives.Hold
			want := map[string]bool{}
			for i := range 12 { // on all masters
				name := fmt.Sprint(prefix, i)
				want[name] = true
				holds = append(holds, fixture.Acquire(t, t.Context(), c.Lock(name)))
			}
			fixture.AwaitRenewal(t, 2, holds...)
			got := map[string]bool{}
			for info, err := range c.Locks(t.Context(), prefix+"*") {
				require.NoError(t, err)
				got[info.Name] = true
			}
			require.Equal(t, want, got)

			joint := primitives.NewMultiLock([]*primitives.Lock{
				c.Lock(prefix + "a"), c.Lock(prefix + "b"), c.Lock(prefix + "c"),
			})
			fixture.Release(t, fixture.Acquire(t, t.Context(), joint))
			require.ErrorIs(t, fixture.ErrOf(c.Lock("a{b").Acquire(t.Context())), primitives.ErrInvalid,
				"its keys are in two slots")
			replicated := fixture.NewClient(t, wrap(servers.ClusterClient(t)), primitives.WithReplicas(1, time.Millisecond))
			require.ErrorIs(t, fixture.ErrOf(replicated.Lock(prefix+"d").Acquire(t.Context())), primitives.ErrNotReplicated)
			fixture.Release(t, holds...)
		})
	}
}

// Calls, losses and Close come in time while the server is silent, although the client itself would
// wait for much longer.
func TestWrappedClientOnASilentServer(t *testing.T) {
	t.Parallel()
	const readTimeout, limit = 40 * time.Second, 15 * time.Second
	slow := func(o *redis.Options) {
		o.ReadTimeout, o.WriteTimeout, o.DialTimeout = readTimeout, readTimeout, readTimeout
	}
	for kind, open := range map[string]func(p *redistest.Proxy) redis.UniversalClient{
		"a server": func(p *redistest.Proxy) redis.UniversalClient { return p.Client(t, slow) },
		"a cluster": func(p *redistest.Proxy) redis.UniversalClient {
			rdb := redis.NewClusterClient(&redis.ClusterOptions{
				ReadTimeout: readTimeout, WriteTimeout: readTimeout, DialTimeout: readTimeout,
				ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
					return []redis.ClusterSlot{{End: 16383, Nodes: []redis.ClusterNode{{Addr: p.Addr()}}}}, nil
				},
			})
			t.Cleanup(func() { _ = rdb.Close() })
			return rdb
		},
	} {
		for name, wrap := range wrappers {
			t.Run(kind+", in a type that embeds "+name, func(t *testing.T) {
				t.Parallel()
				p := redistest.Redis(t).Proxy(t)
				c, err := primitives.New(wrap(open(p)), primitives.WithCommandTimeout(500*time.Millisecond))
				require.NoError(t, err)
				name := redistest.Name(t)
				for range 100 {
					fixture.Release(t, fixture.Acquire(t, t.Context(), c.Lock(name)))
				}
				kept := fixture.Acquire(t, t.Context(), c.Lock(name+"kept", primitives.WithWatchdog(3*time.Second)))

				p.BlackHole(true)
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				require.ErrorIs(t, fixture.ErrOf(c.Lock(name).Acquire(ctx)), primitives.ErrUnavailable)
				require.ErrorIs(t, fixture.ErrOf(c.Lock(name).Info(t.Context())), primitives.ErrUnavailable)
				fixture.RequireEnds(t, kept.Context(), primitives.ErrLost)
				go func() { _ = kept.Release(context.Background()) }() // it may be under way when the client closes
				closing, stop := context.WithTimeout(context.Background(), 100*time.Millisecond)
				defer stop()
				_ = c.Close(closing)
				require.Less(t, time.Since(began), limit)
			})
		}
	}
}
