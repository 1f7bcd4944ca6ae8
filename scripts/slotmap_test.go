package scripts

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
)

// A slot has moved, and its old master does not tell: it is dead, or hangs. An attempt that fails is a
// reason to read the slot map, so the next ones reach the new master. The client may be one that
// embeds a cluster client.
func TestAttemptsFollowTheSlotMap(t *testing.T) {
	redistest.NeedFull(t, "a cluster of its own")
	t.Parallel()
	servers := redistest.FreshCluster(t, 3)
	const key = "moved"
	old := servers.Node(t, key)
	type testCase struct {
		name  string
		fault func(*redistest.Proxy)
		run   func(t *testing.T, r *Runner)
		*clusterEnv
	}
	do := func(doubt bool) func(t *testing.T, r *Runner) {
		return func(t *testing.T, r *Runner) {
			reply, err := r.Do(t.Context(), counted, []any{key}, t.Name())
			require.NoError(t, err)
			require.Equal(t, doubt, reply.Doubt)
		}
	}
	once := func(t *testing.T, r *Runner) {
		redistest.WaitFor(t, testTimeout, func() bool {
			_, err := r.Once(t.Context(), counted, []any{key}, t.Name())
			return err == nil
		}, "a later attempt reaches the new master")
	}
	dead := func(p *redistest.Proxy) {
		p.Refuse(true)
		p.Reset()
	}
	hung := func(p *redistest.Proxy) { p.BlackHole(true) }
	cases := []*testCase{
		{name: "Do, dead", fault: dead, run: do(false)},
		{name: "Do, hung", fault: hung, run: do(true)},
		{name: "Once, dead", fault: dead, run: once},
		{name: "Once, hung", fault: hung, run: once},
		{name: "Once, hung for longer", fault: hung, run: func(t *testing.T, r *Runner) {
			stalls, began := redistest.WatchStalls(t), time.Now()
			_, err := r.Once(t.Context(), counted, []any{key}, t.Name())
			took := time.Since(began)
			require.ErrorIs(t, err, errReplaced)
			require.Equal(t, Unknown, OutcomeOf(err))
			require.Less(t, took, 3*slowAnswer+stalls.Since(began), "it does not wait for the read timeout")
			once(t, r)
		}},
	}
	for i, tt := range cases {
		tt.clusterEnv = newClusterEnv(t, servers, func(o *redis.ClusterOptions) {
			o.ReadTimeout = 300 * time.Millisecond
			if i == len(cases)-1 {
				o.ReadTimeout = 5 * slowAnswer
			}
		})
		if i%2 == 0 {
			tt.r = NewRunner(&embedded{ClusterClient: tt.rdb}, 0)
			t.Cleanup(tt.r.Close)
		}
		tt.warm(t, key)
	}
	servers.Migrate(t, key, servers.AnotherNode(t, key)).Finish(t)
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			tt.fault(tt.proxies[old])
			tt.run(t, tt.r)
			tt.proxies[old].Heal()
		})
	}
}

// A thousand calls that fail make few readings of the slot map.
func TestFailedCallsReadTheSlotMapSeldom(t *testing.T) {
	redistest.NeedFull(t, "a cluster of its own")
	e := newClusterEnv(t, redistest.Cluster(t), func(o *redis.ClusterOptions) { o.MaxRedirects = 1 })
	keys := keyPerNode(t, e.servers)
	e.warm(t, keys...)
	e.proxy(t, keys[0]).Refuse(true)
	e.proxy(t, keys[0]).Reset()
	for _, p := range e.proxies {
		p.Record()
	}
	var wg sync.WaitGroup
	for i := range 1000 {
		wg.Go(func() {
			_, err := e.r.Do(t.Context(), counted, []any{keys[0]}, fmt.Sprint("request", i))
			require.Error(t, err)
			_, err = e.r.Do(t.Context(), counted, []any{keys[1]}, fmt.Sprint("request", i))
			require.NoError(t, err)
		})
	}
	wg.Wait()
	require.NotZero(t, e.readings())
	require.LessOrEqual(t, e.readings(), 20)
}

// readings counts the readings of the slot map that have reached a node, since Record.
func (e *clusterEnv) readings() (n int) {
	for _, p := range e.proxies {
		n += sentTo(p, "cluster", "slots")
	}
	return n
}
