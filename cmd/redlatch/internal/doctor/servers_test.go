package doctor

import (
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

// Servers that answer, but not as the library needs it: slow ones, ones that refuse writes, ones
// without a command, and what stands in front of a dead one.

// A server that answers each command late is slow, not silent: every probe is answered.
func TestSlowServerIsAWarning(t *testing.T) {
	redistest.NeedFull(t, "sixty answers of 0.6 s")
	t.Parallel()
	proxy := redistest.Fresh(t, "--appendonly", "yes").Proxy(t)
	const delay = 600 * time.Millisecond
	proxy.Delay(delay)
	rdb := proxy.Client(t, once, func(o *redis.Options) { o.ReadTimeout = 3 * time.Second })
	results, failed, err := examine(t, rdb, func(c *Config) { c.Timeout = 1500 * time.Millisecond })
	require.NoError(t, err, "%+v", results)
	require.False(t, failed, "%+v", results)
	require.Equal(t, Warn, results["latency"].Status)
	require.Regexp(t, `a round trip takes (\d{3}ms|\d(\.\d+)?s).*the server is slow`, results["latency"].Detail)
	require.Equal(t, OK, results["primitives"].Status, "%+v", results["primitives"])
}

// A connection that is accepted and closed: doctor says what it has seen, and asks about TLS only
// if TLS works there.
func TestConnectionThatIsClosed(t *testing.T) {
	t.Parallel()
	behind, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = behind.Close() })
	go func() {
		for {
			conn, err := behind.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	dead := redis.NewClient(&redis.Options{Addr: behind.Addr().String(), MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { _ = dead.Close() })
	server, secure := redistest.FreshTLS(t)
	plain := server.Client(t, once, secure, func(o *redis.Options) { o.TLSConfig = nil })
	for name, tt := range map[string]struct {
		rdb      *redis.Client
		fix, not string
	}{
		"a proxy whose server is down":   {dead, "proxy", "TLS"},
		"a server with TLS, without TLS": {plain, "rediss://", "proxy"},
	} {
		results, failed, err := examine(t, tt.rdb)
		require.ErrorIs(t, err, ErrUnreachable, name)
		require.True(t, failed, name)
		require.Contains(t, results["connection"].Detail, "closes them without an answer", name)
		require.Contains(t, results["connection"].Fix, tt.fix, name)
		require.NotContains(t, results["connection"].Fix, tt.not, name)
	}
}

func TestServersThatDoNotFit(t *testing.T) {
	t.Parallel()
	without := func(commands ...string) (args []string) {
		for _, command := range commands {
			args = append(args, "--rename-command", command, "")
		}
		return args
	}
	for _, tt := range []struct {
		name                       string
		args                       []string
		before                     []any
		check, status, detail, fix string
	}{
		{"flushed", nil, []any{"flushall"}, "flushes", Warn, "FLUSHALL 1 times", "-flushall"},
		{
			"too few replicas", []string{"--min-replicas-to-write", "1"}, nil, "replicas", Fail, "NOREPLICAS",
			"min-replicas-to-write",
		},
		{
			"no EVALSHA", without("EVALSHA"), nil, "commands", Fail, "no EVALSHA command: nothing can be acquired",
			"rename-command",
		},
		{"no PUBLISH", without("PUBLISH"), nil, "commands", Fail, "no PUBLISH command", "rename-command"},
		{"no HSET", without("HSET"), nil, "commands", Fail, "no HSET command", "rename-command"},
		{"no HSET, kinds", without("HSET"), nil, "primitives", Fail, "this server has no HSET command", "see commands"},
		{"no SUBSCRIBE", without("SUBSCRIBE"), nil, "commands", Warn, "SUBSCRIBE command: waiters", "rename-command"},
		{"no SCRIPT", without("SCRIPT"), nil, "scripts", Warn, "SCRIPT LOAD does not work", "+script"},
		{"no COMMAND", without("COMMAND", "EVALSHA"), nil, "scripts", Fail, "evalsha", "+evalsha"},
		{"no CONFIG", without("CONFIG"), nil, "timeouts", Warn, "the server has no CONFIG command", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Fresh(t, tt.args...).Client(t)
			if tt.before != nil {
				require.NoError(t, rdb.Do(t.Context(), tt.before...).Err())
			}
			results, failed, err := examine(t, rdb)
			require.NoError(t, err)
			require.Equal(t, tt.status, results[tt.check].Status, "%+v", results)
			require.Contains(t, results[tt.check].Detail, tt.detail)
			require.Contains(t, results[tt.check].Fix, tt.fix)
			if tt.status == Fail {
				require.True(t, failed)
			}
			for _, r := range results {
				require.NotContains(t, r.Detail, "scripts run by EVAL only")
			}
		})
	}
}
