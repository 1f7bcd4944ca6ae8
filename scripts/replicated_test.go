package scripts

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/failure"
	"github.com/redlatch/redlatch/internal/test/redistest"
)

var acquire = Load("lock/acquire")

// acquireReplicated acquires a lock of its own for id, to be confirmed by n replicas.
func acquireReplicated(r *Runner, n int, timeout time.Duration, id string) (Reply, error) {
	keys := []any{"{k}" + id, "{k}:channel", "{k}:memory" + id}
	return r.RunReplicated(context.Background(), n, timeout, acquire, keys, id, 60000, "publish")
}

func TestRunReplicated(t *testing.T) {
	t.Parallel()
	servers := redistest.Replicated(t, 2)
	// WAIT blocks for longer than the read timeout of this client allows, which a busy machine must
	// not exceed.
	const readTimeout = 2 * time.Second
	w := newEnv(t, servers.Master, func(o *redis.Options) { o.ReadTimeout = readTimeout })
	run := func(n int, timeout time.Duration, id string) (Reply, error) {
		return acquireReplicated(w.r, n, timeout, id)
	}
	// A replica whose link is up counts only after its first ACK, up to a second later.
	reply, err := run(2, testTimeout, "a")
	require.NoError(t, err)
	require.NoError(t, reply.Unconfirmed)
	for _, s := range servers.Replicas {
		require.EqualValues(t, 1, s.Client(t).Exists(t.Context(), "{k}a").Val())
	}
	began := time.Now()
	reply, err = run(3, readTimeout+500*time.Millisecond, "b")
	require.NoError(t, err)
	require.False(t, reply.Doubt)
	require.ErrorIs(t, reply.Unconfirmed, failure.ErrNotReplicated)
	require.EqualError(t, reply.Unconfirmed, "not replicated: 2 of 3 replicas confirmed")
	require.GreaterOrEqual(t, time.Since(began), readTimeout)

	w.p.DropReplies(1, redistest.Named("wait"))
	reply, err = run(2, testTimeout, "c")
	require.NoError(t, err, "retried")
	require.True(t, reply.Doubt)
	require.NoError(t, reply.Unconfirmed)

	require.NoError(t, servers.Master.Client(t).ScriptFlush(t.Context()).Err())
	reply, err = run(2, testTimeout, "d")
	require.NoError(t, err)
	require.NoError(t, reply.Unconfirmed)

	require.NoError(t, servers.Master.Client(t).Do(t.Context(), "acl", "setuser", "default", "-wait").Err())
	reply, err = run(2, testTimeout, "e")
	require.NoError(t, err)
	require.ErrorIs(t, reply.Unconfirmed, failure.ErrNotReplicated)
	require.ErrorContains(t, reply.Unconfirmed, "NOPERM")
	require.NoError(t, servers.Master.Client(t).Do(t.Context(), "acl", "setuser", "default", "+wait").Err())

	require.NoError(t, servers.Replicas[0].Kill())
	reply, err = run(2, 300*time.Millisecond, "f")
	require.NoError(t, err)
	require.EqualError(t, reply.Unconfirmed, "not replicated: 1 of 2 replicas confirmed")
}

// A context that ends while the server waits for replicas says nothing about the server. It does if
// the server is silent, before it has executed the script or when its WAIT should be over.
func TestContextEndsDuringAWait(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		wait   time.Duration
		hold   string // the replies to this command do not come
		silent bool
		err    string
	}{
		"no replica":               {testTimeout, "", false, "exceeded: the replicas have not confirmed yet"},
		"silent from the start":    {testTimeout, "evalsha", true, "no answer for"},
		"silent when WAIT is over": {time.Millisecond, "wait", true, "no answer for"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newEnv(t, redistest.Redis(t), longTimeouts)
			require.NoError(t, errOf(w.r.RunReplicated(t.Context(), 1, time.Millisecond, check, []any{"k"}, "x")))
			if tt.hold != "" {
				w.p.HoldReplies(redistest.Named(tt.hold))
			}
			ctx, cancel := context.WithTimeout(t.Context(), 3*failure.SilentAfter)
			defer cancel()
			_, err := w.r.RunReplicated(ctx, 1, tt.wait, check, []any{"k"}, "x")
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorIs(t, err, failure.ErrOutcomeUnknown)
			require.ErrorContains(t, err, tt.err)
			f := failure.Of(err)
			require.True(t, f.CallerEnded)
			require.Equal(t, tt.silent, f.Waited >= failure.SilentAfter, "%v", f.Waited)
			w.p.Heal()
		})
	}
}

func TestRunReplicatedWithoutWait(t *testing.T) {
	w := newEnv(t, redistest.Miniredis(t), func(o *redis.Options) { o.PoolSize, o.PipelinePoolSize = 1, -1 })
	w.p.Record()
	for range 2 { // the first one's connection is free again
		reply, err := w.r.RunReplicated(t.Context(), 1, 100*time.Millisecond, check, []any{"k"}, "x")
		require.NoError(t, err)
		require.ErrorIs(t, reply.Unconfirmed, failure.ErrNotReplicated)
	}
	require.Empty(t, w.r.watches)
	require.Zero(t, w.sent("eval"), "the script was loaded over the connection that the attempt holds")
}

// A redirection names the other node, or only its port.
func TestRedirection(t *testing.T) {
	from := redis.NewClient(&redis.Options{Addr: "10.0.0.1:6379"})
	defer func() { require.NoError(t, from.Close()) }()
	for _, tt := range []struct {
		err    error
		addr   string
		asking bool
	}{
		{nil, "", false},
		{io.EOF, "", false},
		{reply("TRYAGAIN later"), "", false},
		{reply("MOVED 7 10.0.0.2:6380"), "10.0.0.2:6380", false},
		{reply("ASK 7 10.0.0.2:6380"), "10.0.0.2:6380", true},
		{reply("MOVED 7 :6380"), "10.0.0.1:6380", false},
		{reply("ASK 7 ?:6380"), "10.0.0.1:6380", true},
	} {
		addr, asking := redirection(tt.err, from)
		require.Equal(t, []any{tt.addr, tt.asking}, []any{addr, asking}, "%v", tt.err)
	}
}

// autoNotifications is the default of go-redis: a client asks the server for maintenance
// notifications, and notes in its options that the server refuses them.
func autoNotifications() *maintnotifications.Config {
	return &maintnotifications.Config{Mode: maintnotifications.ModeAuto}
}

// WAIT needs a connection of its own. Under the race detector this fails if that connection shares
// options with others that are opened at the same time.
func TestRunReplicatedBesideMaintenanceNotifications(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	for range 5 { // each with new connections
		rdb := s.Client(t, func(o *redis.Options) { o.MaintNotificationsConfig = autoNotifications() })
		require.Equal(t, 3, rdb.Options().Protocol)
		r := NewRunner(rdb, 0)
		var calls sync.WaitGroup
		for range 4 {
			calls.Go(func() {
				require.NoError(t, errOf(r.RunReplicated(t.Context(), 1, time.Millisecond, check, []any{"k"}, "x")))
			})
			calls.Go(func() {
				require.NoError(t, errOf(r.Do(t.Context(), check, []any{"k"}, "x")))
			})
		}
		calls.Wait()
		r.Close()
	}
}

// opaque is a client that a user wraps with the methods of the interface only.
type opaque struct{ redis.UniversalClient }

// On a cluster, the script and its WAIT reach the same node: the one that has the key, whatever the
// client is and wherever the slot is going. The script has one key: a node that receives a slot
// refuses scripts with several, which C7 rides out, until it has all of them.
func TestRunReplicatedOnCluster(t *testing.T) {
	redistest.NeedFull(t, "a cluster of its own")
	t.Parallel()
	servers := redistest.FreshCluster(t, 3)
	from, to := servers.Node(t, "{k}"), servers.AnotherNode(t, "{k}")
	clients := map[string]func() redis.UniversalClient{
		"cluster client": func() redis.UniversalClient { return newClusterEnv(t, servers, auto).rdb },
		"embedded": func() redis.UniversalClient {
			return &embedded{ClusterClient: newClusterEnv(t, servers, auto).rdb}
		},
		"opaque": func() redis.UniversalClient { return opaque{newClusterEnv(t, servers, auto).rdb} },
	}
	runners := map[string]*Runner{}
	for name, open := range clients {
		runners[name] = NewRunner(open(), 0)
		defer runners[name].Close()
	}
	ids := 0
	each := func(what string, on *redistest.Server, names ...string) {
		for _, name := range names {
			var calls sync.WaitGroup
			for range 3 {
				ids++
				id := fmt.Sprint("id", ids)
				calls.Go(func() {
					reply, err := runners[name].RunReplicated(t.Context(), 1, time.Millisecond, counted, []any{"{k}" + id}, id)
					require.NoError(t, err, "%s: %s", name, what)
					require.EqualError(t, reply.Unconfirmed, "not replicated: 0 of 1 replicas confirmed")
				})
			}
			calls.Wait()
			require.Contains(t, redistest.Keys(t, on, "*"), fmt.Sprint("{k}id", ids), "%s: %s", name, what)
		}
	}
	for _, s := range servers.Nodes() {
		require.NoError(t, s.Client(t).ScriptFlush(t.Context()).Err())
	}
	each("at rest", from, "cluster client", "embedded", "opaque")
	// Another runner, because this one's clients must not learn the map before the slot has moved.
	stale := NewRunner(&embedded{ClusterClient: newClusterEnv(t, servers, auto).rdb}, 0)
	defer stale.Close()
	require.NoError(t, errOf(stale.RunReplicated(t.Context(), 1, time.Millisecond, check, []any{"{k}"}, "x")))
	runners["stale"] = stale
	migration := servers.Migrate(t, "{k}", to)
	each("new keys of a moving slot", to, "cluster client", "embedded", "opaque")
	migration.Finish(t)
	each("of a slot that has moved", to, "stale", "cluster client", "embedded", "opaque")
}

func auto(o *redis.ClusterOptions) { o.MaintNotificationsConfig = autoNotifications() }

// A copy of an acquisition finds that a sibling with the same id has a longer lease. It writes
// nevertheless: WAIT would not wait for the acquisition after a script without a write.
func TestCopyOfAnAcquisitionWritesBesideALongerLease(t *testing.T) {
	server := redistest.Fresh(t)
	w := newEnv(t, server)
	rdb := server.Client(t)
	writes := func() string {
		info := rdb.InfoMap(t.Context(), "persistence").Val()
		return info["Persistence"]["rdb_changes_since_last_save"]
	}
	const lease, longer = 20_000, 60_000
	for script, args := range map[string]struct{ keys, flags []any }{
		"lock/acquire_shared":  {[]any{"unused"}, []any{0, 0}},
		"fairlock/acquire":     {[]any{"queue", "deadlines", "waiters", "clients"}, []any{1, 0, 0, 1000, "c", "i", 0}},
		"rwlock/read_acquire":  {[]any{"turns"}, []any{1, 0, 0, "client", 0}},
		"rwlock/write_acquire": {[]any{"turns"}, []any{1, 0, 0, 0, "client", 0}},
	} {
		t.Run(script, func(t *testing.T) {
			require.NoError(t, rdb.FlushDB(t.Context()).Err())
			acquire := func(memory string, ttl int) {
				keys := []any{"{k}lock", "channel", memory}
				if strings.HasPrefix(script, "rwlock/") {
					keys = append(keys, "claim")
				}
				keys = append(append(keys, "shared"), args.keys...)
				arguments := append([]any{"owner", ttl, Publish}, args.flags...)
				reply, err := w.r.Do(t.Context(), Load(script), keys, arguments...)
				require.NoError(t, err)
				require.Equal(t, int64(0), reply.Value)
			}
			acquire("memory", lease)
			acquire("memory of the sibling", longer)
			before := writes()
			acquire("memory", lease)
			require.NotEqual(t, before, writes())
			require.Greater(t, rdb.PTTL(t.Context(), "{k}lock").Val(), lease*time.Millisecond, "no lease is shortened")
		})
	}
}
