package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

// Where Redis is out of reach, or refuses, each command exits with 3 and says why, as JSON if
// asked.
func TestUnreachableRedis(t *testing.T) {
	t.Parallel()
	locked := redistest.Miniredis(t)
	locked.Mini().RequireAuth("secret")
	limited := redistest.Fresh(t)
	require.NoError(t, limited.Client(t).Do(t.Context(), "acl", "setuser", "nobody", "on", ">hush", "+ping").Err())
	for name, tt := range map[string]struct{ url, want string }{
		"refused":        {"redis://127.0.0.1:1", "refused"},
		"no password":    {"redis://" + locked.Addr(), "NOAUTH"},
		"wrong password": {"redis://:hush@" + locked.Addr(), "WRONGPASS"},
		"no permission":  {"redis://nobody:hush@" + limited.Addr(), "NOPERM"},
		"no such socket": {"unix:///no/such/socket", "no such file"},
		"TLS":            {"rediss://" + locked.Addr(), "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, args := range [][]string{
				{"ls"}, {"ls", "--all"}, {"inspect", "name"},
				{"release", "name", "id"}, {"release", "--kind", "lock", "name", "id"},
				{"force-release", "--yes", "name"}, {"semaphore", "init", "name", "1"}, {"permits", "info", "name"},
				{"latch", "wait", "name"}, {"latch", "count", "name"},
				{"run", "name", "--", "true"}, {"run", "-n", "name", "--", "true"}, {"acquire", "name"},
			} {
				verbs := 1
				if args[0] == "semaphore" || args[0] == "permits" || args[0] == "latch" {
					verbs = 2
				}
				all := append(append([]string{}, args[:verbs]...), "--json", "--redis", tt.url, "--timeout", "3s")
				stdout, stderr := exits(t, exitUnreachable, append(all, args[verbs:]...)...)
				require.Empty(t, stdout)
				require.NotContains(t, stderr, "hush")
				var e struct {
					Error string
					Code  int
				}
				require.NoError(t, json.Unmarshal([]byte(stderr), &e), stderr)
				require.Equal(t, exitUnreachable, e.Code)
				require.Contains(t, e.Error, tt.want)
			}
		})
	}
}

// The connection is what the flags say: the URL from the environment, several URLs, Sentinel, a
// cluster.
func TestConnections(t *testing.T) {
	type options struct {
		*redis.Options
		cluster *redis.ClusterOptions
	}
	for name, tt := range map[string]struct {
		env  string
		args []string
		want func(t *testing.T, o options)
	}{
		"default": {"", nil, func(t *testing.T, o options) { require.Equal(t, "localhost:6379", o.Addr) }},
		"environment": {"redis://u:p@host:1/2", nil, func(t *testing.T, o options) {
			require.Equal(t, []any{"host:1", "u", "p", 2}, []any{o.Addr, o.Username, o.Password, o.DB})
		}},
		"flag before environment": {"redis://host:1", []string{"--redis", "redis://other:2"}, func(t *testing.T, o options) {
			require.Equal(t, "other:2", o.Addr)
		}},
		"password with a comma": {"", []string{"--redis", "redis://:a,b@host:1"}, func(t *testing.T, o options) {
			require.Equal(t, "a,b", o.Password)
		}},
		"socket": {"", []string{"--redis", "unix:///tmp/s?db=3"}, func(t *testing.T, o options) {
			require.Equal(t, []any{"unix", "/tmp/s", 3}, []any{o.Network, o.Addr, o.DB})
		}},
		"TLS": {"", []string{"--redis", "rediss://host:1"}, func(t *testing.T, o options) {
			require.Equal(t, "host", o.TLSConfig.ServerName)
		}},
		"timeout": {"", []string{"--timeout", "1s"}, func(t *testing.T, o options) {
			require.Equal(t, time.Second, o.ReadTimeout)
		}},
		"cluster": {"", []string{"--cluster", "--redis", "redis://u:p@host:1"}, func(t *testing.T, o options) {
			require.Equal(t, []any{[]string{"host:1"}, "u", "p"}, []any{o.cluster.Addrs, o.cluster.Username, o.cluster.Password})
		}},
		"seeds": {"", []string{"--redis", "redis://a:1", "--redis", "redis://b:2"}, func(t *testing.T, o options) {
			require.Equal(t, []string{"a:1", "b:2"}, o.cluster.Addrs)
		}},
		"sentinel": {"", []string{"--sentinel-master", "m", "--redis", "redis://:p@a:1", "--redis", "redis://b:2"},
			func(t *testing.T, o options) {
				require.Equal(t, []any{"FailoverClient", "p"}, []any{o.Addr, o.Password})
			}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(urlVariable, tt.env)
			var got options
			var out bytes.Buffer
			root := app(nil, &out, &out)
			test := testCommand(func(rdb redis.UniversalClient) {
				switch c := rdb.(type) {
				case *redis.Client:
					got.Options = c.Options()
				case *redis.ClusterClient:
					got.cluster = c.Options()
				}
			})
			test.DisableSliceFlagSeparator = true // as app sets it
			root.Commands = append(root.Commands, test)
			require.NoError(t, root.Run(t.Context(), append([]string{"redlatch", "test"}, tt.args...)))
			tt.want(t, got)
		})
	}
}

// The commands work on a cluster, and behind Sentinels.
func TestClusterAndSentinel(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t)
	name := redistest.Name(t)
	seed := "redis://" + cluster.Nodes()[0].Addr()
	for _, tt := range []struct {
		args []string
		code int
	}{
		{[]string{"semaphore", "init", "--cluster", "--redis", seed, name, "2"}, 0},
		{[]string{"ls", "--all", "--cluster", "--redis", seed, name}, 0},
		{[]string{"inspect", "--cluster", "--redis", seed, name}, 0},
		{[]string{"semaphore", "delete", "--yes", "--cluster", "--redis", seed, name}, 0},
		{[]string{"run", "--cluster", "--redis", seed, name, "--", "true"}, 0},
		{[]string{"inspect", "--cluster", "--redis", seed, "a{b"}, 1},
		{[]string{"run", "--cluster", "--redis", seed, "a{b", "--", "true"}, exitUsage},
	} {
		code, _, stderr := redlatch(t.Context(), tt.args...)
		require.Equal(t, tt.code, code, "%q: %s", tt.args, stderr)
	}
	// The slot of this name is 8620, which the second of the three masters serves.
	_, stderr := exits(t, exitUnreachable, "acquire", "-n", "--timeout", "300ms", "--redis", seed, "bb")
	require.Contains(t, stderr, "this is a server of a cluster: use --cluster")
	sentinel := redistest.Sentinel(t).Options()
	code, _, stderr := redlatch(t.Context(), "run", "--redis", "redis://"+sentinel.SentinelAddrs[0],
		"--sentinel-master", sentinel.MasterName, name, "--", "true")
	require.Zero(t, code, stderr)
}

// A client leaves a Sentinel that hangs after it has told the master, so that it finds the next
// one.
func TestClientsLeaveAHungSentinel(t *testing.T) {
	t.Parallel()
	redistest.NeedFull(t, "timeouts of hung Sentinels")
	servers := redistest.Sentinel(t)
	o := servers.Options()
	o.DialTimeout, o.ReadTimeout = soon, soon
	o.Dialer = hurrySentinels(nil, o.SentinelAddrs, soon, time.Second, func(string) {})
	var clients []func() error
	for range 6 { // each has chosen one of the three Sentinels
		rdb := servers.FailoverClient(t, func(own *redis.FailoverOptions) { *own = *o })
		clients = append(clients, func() error { return rdb.Ping(t.Context()).Err() })
	}
	for _, ping := range clients {
		require.NoError(t, ping())
	}
	require.NoError(t, servers.Sentinels[0].Pause())
	require.NoError(t, servers.Sentinels[1].Pause())
	require.NoError(t, servers.Master.Client(t).ClientKillByFilter(t.Context(), "TYPE", "normal").Err())
	for _, ping := range clients {
		redistest.WaitFor(t, soon, func() bool { return ping() == nil }, "an answer of the master")
	}
}

// A server of a cluster may have a certificate for its own address, or one for a host of the URLs.
func TestCertificatesOfSeveralServers(t *testing.T) {
	t.Parallel()
	urls := []string{"seed-1.example", "seed-2.example"}
	for name, tt := range map[string]struct {
		hosts         []string // of the certificate
		trustsNothing bool
		skipsVerify   bool
		problem       string
	}{
		"for its address":                      {hosts: []string{"127.0.0.1"}},
		"for the second URL":                   {hosts: []string{"seed-2.example"}},
		"for all of a domain":                  {hosts: []string{"*.example"}},
		"for another host":                     {hosts: []string{"other.example"}, problem: "127.0.0.1"},
		"for another address":                  {hosts: []string{"127.0.0.2"}, problem: "not 127.0.0.1"},
		"of an unknown authority":              {hosts: urls, trustsNothing: true, problem: "unknown authority"},
		"of an unknown authority, skip_verify": {hosts: urls, trustsNothing: true, skipsVerify: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			certificate, trusted := redistest.Certificate(t, tt.hosts...)
			if tt.trustsNothing {
				trusted = x509.NewCertPool()
			}
			listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{certificate}})
			require.NoError(t, err)
			defer func() { require.NoError(t, listener.Close()) }()
			go serveHandshake(listener)
			dial := dialerFor(&tls.Config{RootCAs: trusted, InsecureSkipVerify: tt.skipsVerify}, urls, soon)
			conn, err := dial(t.Context(), "tcp", listener.Addr().String())
			if tt.problem != "" {
				require.ErrorContains(t, err, tt.problem)
				return
			}
			require.NoError(t, err)
			require.NoError(t, conn.Close())
		})
	}
}

func serveHandshake(listener net.Listener) {
	conn, err := listener.Accept()
	if err != nil {
		return
	}
	defer conn.Close()
	_ = conn.(*tls.Conn).Handshake()
}
