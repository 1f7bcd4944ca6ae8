package doctor

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	miniserver "github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/cmd/redlatch/internal/acl"
	"github.com/redlatch/redlatch/internal/test/redistest"
)

func TestMain(m *testing.M) {
	redis.SetLogger(discard{}) // as the command does
	os.Exit(redistest.Main(m))
}

type discard struct{}

func (discard) Printf(context.Context, string, ...any) {}

// examine runs all checks and returns their results by check, the worst one of each, and the exit.
func examine(t *testing.T, rdb redis.UniversalClient, tweaks ...func(*Config)) (map[string]Result, bool, error) {
	t.Helper()
	worst := map[string]Result{}
	rank := map[string]int{OK: 1, Warn: 2, Fail: 3}
	cfg := Config{Redis: rdb, Where: func() string { return "the server" }, Timeout: 2 * time.Second}
	cfg.Report = func(r Result) {
		require.NotZero(t, rank[r.Status], "%+v", r)
		require.NotEmpty(t, r.Detail, "%+v", r)
		if rank[r.Status] > rank[worst[r.Check].Status] {
			worst[r.Check] = r
		}
	}
	for _, tweak := range tweaks {
		tweak(&cfg)
	}
	failed, err := Run(t.Context(), cfg)
	for _, r := range worst {
		if r.Status == Fail {
			require.NotEmpty(t, r.Fix, "%+v", r)
			require.True(t, failed)
		}
	}
	return worst, failed, err
}

func allOf(results map[string]Result, status string) []string {
	var names []string
	for _, c := range checks() {
		if results[c.name].Status == status {
			names = append(names, c.name)
		}
	}
	return names
}

func TestFitServerPassesAndIsLeftAsItWas(t *testing.T) {
	t.Parallel()
	server := redistest.Fresh(t, "--appendonly", "yes")
	rdb := server.Client(t)
	results, failed, err := examine(t, rdb)
	require.NoError(t, err)
	require.False(t, failed, "%+v", results)
	require.Equal(t, []string{"uptime"}, allOf(results, Warn), "%+v", results)
	require.Len(t, results, len(checks())+1)
	require.Empty(t, redistest.Keys(t, server, "*"))
	require.Empty(t, redistest.Channels(t, server))
}

func TestClusterPassesAndIsLeftAsItWas(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t)
	results, failed, err := examine(t, cluster.ClusterClient(t))
	require.NoError(t, err)
	require.False(t, failed, "%+v", results)
	require.Contains(t, results["pubsub"].Detail+results["cluster"].Detail, "3 masters")
	for _, node := range cluster.Nodes() {
		require.Empty(t, redistest.Keys(t, node, "*redlatch-doctor*"))
	}
}

// A client for single servers on a cluster is found, and nothing waits for what cannot work.
func TestPlainClientOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t)
	start := time.Now()
	results, failed, err := examine(t, cluster.Nodes()[0].Client(t))
	require.NoError(t, err)
	require.True(t, failed)
	require.Equal(t, Fail, results["cluster"].Status)
	require.Contains(t, results["cluster"].Fix, "--cluster")
	require.Equal(t, Warn, results["primitives"].Status, "not tried")
	require.Less(t, time.Since(start), 2*time.Second)
}

func TestReplicaIsFound(t *testing.T) {
	t.Parallel()
	servers := redistest.Replicated(t, 1)
	results, failed, err := examine(t, servers.Replicas[0].Client(t))
	require.NoError(t, err)
	require.True(t, failed)
	require.Equal(t, Fail, results["role"].Status)
	require.Contains(t, results["role"].Fix, servers.Master.Addr())
	results, _, err = examine(t, servers.Master.Client(t))
	require.NoError(t, err)
	require.Contains(t, results["replicas"].Detail, "1 in sync")
}

func TestMemorySettings(t *testing.T) {
	t.Parallel()
	server := redistest.Fresh(t)
	rdb := server.Client(t)
	for _, tt := range []struct {
		policy, limit, check, status, detail string
	}{
		{"allkeys-lru", "0", "maxmemory-policy", Warn, "no limit"},
		{"allkeys-lru", "100mb", "maxmemory-policy", Fail, "evicts keys of locks"},
		{"volatile-ttl", "100mb", "maxmemory-policy", Fail, "volatile-ttl"},
		{"noeviction", "100mb", "maxmemory-policy", OK, "noeviction"},
		{"noeviction", "100mb", "memory", OK, "of 100.00M used"},
		{"noeviction", "500kb", "memory", Fail, "nothing can be acquired"},
		{"noeviction", "500kb", "primitives", Fail, "OOM"},
	} {
		require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory-policy", tt.policy).Err())
		require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", tt.limit).Err())
		results, _, err := examine(t, rdb)
		require.NoError(t, err)
		require.Equal(t, tt.status, results[tt.check].Status, "%+v", results[tt.check])
		require.Contains(t, results[tt.check].Detail, tt.detail)
	}
	require.Empty(t, redistest.Keys(t, server, "*"))
}

// The user of doc/operations.md, without one right each time.
func TestMissingRights(t *testing.T) {
	t.Parallel()
	server := redistest.Fresh(t)
	admin := server.Client(t)
	rules := redistest.DocumentedRules(t, "locks")
	documented, names := strings.Join(rules[0], " "), strings.Join(rules[1], " ")
	base := documented + " " + names + " +scan +getrange +wait +info +config|get +acl|whoami"
	without := func(rule string) string { return strings.ReplaceAll(base, " "+rule+" ", " ") }
	for name, tt := range map[string]struct {
		rules         string
		check, status string
		fix           string // what the line tells to do
	}{
		"none missing":        {base, "acl", OK, ""},
		"as documented":       {documented, "acl", Warn, "ACL SETUSER locks ~redlatch_client:* "},
		"INFO":                {base + " -info", "maxmemory-policy", Warn, "+info"},
		"CONFIG GET":          {base + " -config|get", "timeouts", Warn, "+config|get"},
		"a command":           {base + " -hset -zadd", "acl", Fail, "ACL SETUSER locks +hset +zadd"},
		"a command of a kind": {base + " -rpush", "primitives", OK, ""},
		"a command of a lock": {base + " -incrby", "primitives", Fail, "see acl"},
		"TIME":                {base + " -time", "acl", Fail, "+time"},
		"EVALSHA":             {base + " -evalsha", "scripts", Fail, "+evalsha"}, // EVAL alone does not do
		"scripts":             {base + " -evalsha -eval", "scripts", Fail, "+evalsha"},
		"SUBSCRIBE":           {base + " -subscribe", "pubsub", Warn, "see acl"},
		"SUBSCRIBE, in acl":   {base + " -subscribe", "acl", Warn, "ACL SETUSER locks +subscribe"},
		"SET":                 {base + " -set", "acl", Fail, "ACL SETUSER locks +set"},
		"PUBLISH, in acl":     {base + " -publish", "acl", Fail, "ACL SETUSER locks +publish"},
		"PUBLISH":             {base + " -publish", "pubsub", Fail, "+publish"},
		"channels":            {base + " resetchannels", "acl", Fail, "&redisson_sc:{orders:*"},
		"keys of the library": {without("~redisson_lock_queue:{orders:*"), "acl", Fail, "~redisson_lock_queue:{orders:*"},
		"all names":           {without("~orders:*"), "acl", Fail, "--prefix"},
		"SCAN":                {base + " -scan", "acl", Warn, "+scan"},
		"GETRANGE":            {base + " -getrange", "acl", Warn, "+getrange"},
		"PING":                {base + " -ping", "latency", Warn, "+ping"},
		"WHOAMI":              {base + " -acl|whoami", "acl", OK, ""},
		"nearly everything":   {"reset on >secret", "primitives", Fail, "acl"},
	} {
		require.NoError(t, admin.Do(t.Context(), "acl", "deluser", "locks").Err())
		args := []any{"acl", "setuser", "locks"}
		for rule := range strings.FieldsSeq(tt.rules) {
			args = append(args, rule)
		}
		require.NoError(t, admin.Do(t.Context(), args...).Err(), name)
		rdb := server.Client(t, func(o *redis.Options) { o.Username, o.Password = "locks", "secret" })
		results, _, err := examine(t, rdb, func(c *Config) { c.Prefix = "orders:" })
		require.NoError(t, err, name)
		require.Equal(t, tt.status, results[tt.check].Status, "%s: %+v", name, results)
		require.Contains(t, results[tt.check].Fix, tt.fix, name)
		require.Equal(t, 1, max(1, strings.Count(results[tt.check].Fix, "+subscribe")), name)
		require.Empty(t, redistest.Keys(t, server, "*"), name)
		if name == "SET" || strings.HasSuffix(name, "in acl") {
			require.NotRegexp(t, "[~&]", results["acl"].Fix, name)
		}
	}
	// Without a prefix no fix gives the rights to all keys.
	rdb := server.Client(t, func(o *redis.Options) { o.Username, o.Password = "locks", "secret" })
	all := append([]any{"acl", "setuser", "locks"}, anys(strings.Fields(base))...)
	require.NoError(t, admin.Do(t.Context(), all...).Err())
	results, _, err := examine(t, rdb)
	require.NoError(t, err)
	require.NotContains(t, results["acl"].Fix, "~*")
	require.Contains(t, results["acl"].Fix, "redlatch acl --prefix P --user locks")
	// Not even a warning's: names in braces may be any names, too.
	require.NoError(t, admin.Do(t.Context(), "acl", "setuser", "locks", "~*", "&*", "resetkeys", "~redlatch-doctor-*",
		"~red*:{redlatch-doctor-*", "~redisson_countdownlatch__channel__*", "~redlatch_client:*").Err())
	results, _, err = examine(t, rdb)
	require.NoError(t, err)
	require.Equal(t, Warn, results["acl"].Status, results["acl"])
	require.Contains(t, results["acl"].Detail, "~{*")
	require.NotContains(t, results["acl"].Fix, "~{*")
}

func anys(words []string) (all []any) {
	for _, word := range words {
		all = append(all, word)
	}
	return all
}

// A server that cannot say much, as some proxies and services, is no failure.
func TestServerThatReportsLittle(t *testing.T) {
	t.Parallel()
	server := redistest.Miniredis(t)
	results, failed, err := examine(t, server.Client(t), func(c *Config) { c.Timeout = 20 * time.Second })
	require.NoError(t, err)
	require.False(t, failed, "%+v", results)
	require.Equal(t, OK, results["primitives"].Status)
	require.Empty(t, redistest.Keys(t, server, "*"))
}

func TestClockSkew(t *testing.T) {
	t.Parallel()
	server := redistest.Miniredis(t)
	server.Mini().SetTime(time.Now().Add(-time.Hour))
	results, _, err := examine(t, server.Client(t))
	require.NoError(t, err)
	require.Equal(t, Warn, results["clock"].Status)
	require.Regexp(t, `is (1h0m0s|59m59\.9+s) behind this machine's`, results["clock"].Detail)
}

func TestMessagesThatDoNotArrive(t *testing.T) {
	t.Parallel()
	proxy := redistest.Redis(t).Proxy(t)
	proxy.DropMessages(true)
	results, failed, err := examine(t, proxy.Client(t), func(c *Config) { c.Timeout = 2 * time.Second })
	require.NoError(t, err)
	require.False(t, failed, "locks work, by polls")
	require.Equal(t, Warn, results["pubsub"].Status)
	require.Contains(t, results["pubsub"].Detail, "did not arrive")
}

// once makes a client give up after one attempt.
func once(o *redis.Options) { o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled = -1, 1, true }

func TestServerOutOfReach(t *testing.T) {
	t.Parallel()
	server := redistest.Fresh(t)
	require.NoError(t, server.Client(t).ConfigSet(t.Context(), "requirepass", "secret").Err())
	silent := redistest.Redis(t).Proxy(t)
	silent.BlackHole(true)
	busy := redistest.Miniredis(t)
	busy.Mini().Server().SetPreHook(func(peer *miniserver.Peer, _ string, _ ...string) bool {
		peer.WriteError("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.")
		return true
	})
	for name, tt := range map[string]struct {
		rdb         *redis.Client
		detail, fix string
	}{
		"nobody there": {
			server.Client(t, once, func(o *redis.Options) { o.Addr = "127.0.0.1:1" }), "refused", "redis-server runs",
		},
		"no password": {server.Client(t, once), "NOAUTH", "give a password"},
		"wrong password": {
			server.Client(t, once, func(o *redis.Options) { o.Password = "wrong" }), "WRONGPASS", "password in the URL is wrong",
		},
		"silent": {silent.Client(t, once), "no answer from the server within 300ms", "does redis-server hang"},
		"busy":   {busy.Client(t, once), "BUSY", "SCRIPT KILL"},
	} {
		results, failed, err := examine(t, tt.rdb, func(c *Config) { c.Timeout = 300 * time.Millisecond })
		require.ErrorIs(t, err, ErrUnreachable, name)
		require.True(t, failed, name)
		require.Len(t, results, 1, name)
		require.Equal(t, Fail, results["connection"].Status, name)
		require.Contains(t, results["connection"].Detail, tt.detail, name)
		require.Contains(t, results["connection"].Fix, tt.fix, "%s: %+v", name, results)
	}
}

// Masters of a cluster that hang are named, each.
func TestSilentMastersAreNamed(t *testing.T) {
	t.Parallel()
	masters := []string{redistest.ServeSilence(t), redistest.Miniredis(t).Addr(), redistest.ServeSilence(t)}
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		ContextTimeoutEnabled: true,
		ClusterSlots: func(context.Context) (slots []redis.ClusterSlot, _ error) {
			for i, addr := range masters {
				slots = append(slots, redis.ClusterSlot{Start: i, End: i, Nodes: []redis.ClusterNode{{Addr: addr}}})
			}
			return slots, nil
		},
	})
	t.Cleanup(func() { require.NoError(t, rdb.Close()) })
	var silent []string
	_, _, err := examine(t, rdb, func(c *Config) {
		c.Timeout = time.Second
		c.Report = func(r Result) { silent = append(silent, r.Check+": "+r.Detail) }
	})
	require.ErrorIs(t, err, ErrUnreachable)
	var want []string
	for _, i := range []int{0, 2} { // go-redis leaves the host out if it did not learn the address from a server there
		_, port, err := net.SplitHostPort(masters[i])
		require.NoError(t, err)
		want = append(want, "connection: no answer from :"+port+" within 1s")
	}
	require.ElementsMatch(t, want, silent)
}

// Errors of TLS, as Go and OpenSSL word them, and of a server that has too many clients.
func TestAdviceOnErrors(t *testing.T) {
	t.Parallel()
	for text, fix := range map[string]string{
		"remote error: tls: certificate required":                                                    "--tls-key",
		"tls: failed to verify certificate: x509: certificate is valid for 127.0.0.1, not 127.0.0.2": "a host that it names",
		"x509: cannot validate certificate for 127.0.0.1 because it doesn't contain any IP SANs":     "a host that it names",
		"tls: failed to verify certificate: x509: certificate has expired or is not yet valid":       "expired",
		"tls: failed to verify certificate: x509: certificate signed by unknown authority":           "--tls-ca",
		"remote error: tls: bad certificate":                                                         "another --tls-cert",
		"remote error: tls: expired certificate":                                                     "another --tls-cert",
		"remote error: tls: unknown certificate authority":                                           "another --tls-cert",
		"ERR max number of clients reached":                                                          "raise maxclients",
		"write: broken pipe":                                                                         "(maxclients)",
	} {
		require.Contains(t, new(exam).reachFix(errors.New(text)), fix, text)
	}
}

// A server that refuses the client's certificate, or the lack of one, closes the connection after
// an alert. The advice is about the certificate.
func TestServerThatRefusesTheClientsCertificate(t *testing.T) {
	t.Parallel()
	s, tweak := redistest.FreshTLS(t)
	foreign, _ := redistest.Certificate(t, "127.0.0.1")
	for _, tt := range []struct {
		name         string
		certificates []tls.Certificate
		detail, fix  string
	}{
		{"none", nil, "certificate required", "--tls-cert"},
		{"of an unknown authority", []tls.Certificate{foreign}, "unknown certificate authority", "tls-ca-cert-file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rdb := s.Client(t, tweak, func(o *redis.Options) { o.TLSConfig.Certificates = tt.certificates }, once)
			var got []Result
			_, _, err := examine(t, rdb, func(c *Config) { c.Report = func(r Result) { got = append(got, r) } })
			require.ErrorIs(t, err, ErrUnreachable)
			require.Len(t, got, 1)
			require.Contains(t, got[0].Detail, tt.detail)
			require.NotContains(t, got[0].Detail, "without an answer")
			require.Contains(t, got[0].Fix, tt.fix)
		})
	}
}

// When the connection is lost on the way, doctor says so once and stops.
func TestConnectionLostDuringTheChecks(t *testing.T) {
	t.Parallel()
	proxy := redistest.Redis(t).Proxy(t)
	rdb := proxy.Client(t, once)
	results, failed, err := examine(t, rdb, func(c *Config) {
		report := c.Report
		c.Report = func(r Result) {
			report(r)
			if r.Check == "replicas" {
				proxy.Cut()
			}
		}
	})
	require.ErrorIs(t, err, ErrUnreachable)
	require.True(t, failed)
	require.Equal(t, []string{"timeouts"}, allOf(results, Fail))
	require.NotContains(t, results, "clock")
}

func TestCancelledRunReturns(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cfg := Config{Redis: redistest.Redis(t).Client(t), Where: func() string { return "" }, Timeout: time.Second}
	cfg.Report = func(r Result) {
		if r.Check == "role" {
			cancel()
		}
	}
	_, err := Run(ctx, cfg)
	require.ErrorIs(t, err, context.Canceled)
}

// The list of commands is that of the scripts.
func TestAllCommandsOfScriptsAreChecked(t *testing.T) {
	files, err := filepath.Glob("../../../../scripts/*/*.lua")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	called := regexp.MustCompile(`redis\.p?call\('(\w+)'`)
	used := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range called.FindAllStringSubmatch(string(text), -1) {
			used[m[1]] = true
		}
	}
	listed := map[string]bool{"time": true} // it has no key, and is asked for separately
	for _, command := range slices.Concat(acl.Scripts, acl.Lists) {
		listed[strings.Fields(command)[0]] = true
	}
	require.Equal(t, used, listed)
}
