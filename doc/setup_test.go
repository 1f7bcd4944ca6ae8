package doc_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// The functions have the code of setup.md. The test runs each against the servers that it is for.

func oneServer(addr string) (*redis.Client, *primitives.Client, error) {
	rdb := redis.NewClient(&redis.Options{
		Addr:                     addr, // such as "redis:6379"
		DialTimeout:              time.Second,
		DialerRetries:            2,
		ReadTimeout:              time.Second,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	client, err := primitives.New(rdb)
	return rdb, client, err
}

func cluster(addrs []string) (redis.UniversalClient, *primitives.Client, error) {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: addrs, // one or more seeds; the client finds the other nodes
	})
	client, err := primitives.New(rdb)
	return rdb, client, err
}

func sentinel(
	name string, addrs []string, sentinelPassword, user, password string,
) (redis.UniversalClient, *primitives.Client, error) {
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName:       name,  // such as "mymaster"
		SentinelAddrs:    addrs, // of the Sentinels, not of the Redis servers
		SentinelPassword: sentinelPassword,
		Username:         user,
		Password:         password,
	})
	client, err := primitives.New(rdb)
	return rdb, client, err
}

func overTLS(addr, caFile, certFile, keyFile string) (*redis.Client, error) {
	authority, err := os.ReadFile(caFile)
	if err != nil {
		return nil, err
	}
	trusted := x509.NewCertPool()
	if !trusted.AppendCertsFromPEM(authority) {
		return nil, fmt.Errorf("%s: no certificate", caFile)
	}
	certificate, err := tls.LoadX509KeyPair(certFile, keyFile) // if the server asks for one
	if err != nil {
		return nil, err
	}
	rdb := redis.NewClient(&redis.Options{
		Addr: addr,
		TLSConfig: &tls.Config{
			MinVersion:   tls.VersionTLS12,
			RootCAs:      trusted, // nil: the certificates that the system trusts
			Certificates: []tls.Certificate{certificate},
		},
	})
	return rdb, nil
}

func asUser(addr, password string) *redis.Client {
	rdb := redis.NewClient(&redis.Options{
		Addr:     addr,
		Username: "locks",
		Password: password,
	})
	return rdb
}

func rotating(addr, passwordFile string) *redis.Client {
	rdb := redis.NewClient(&redis.Options{
		Addr: addr,
		CredentialsProviderContext: func(context.Context) (user, password string, err error) {
			text, err := os.ReadFile(passwordFile)
			return "locks", strings.TrimSpace(string(text)), err
		},
	})
	return rdb
}

func inDatabaseOfACluster(addrs []string) *redis.ClusterClient {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: addrs,
		OnConnect: func(ctx context.Context, cn *redis.Conn) error {
			return cn.Select(ctx, 1).Err()
		},
	})
	return rdb
}

func inAProgram(ctx context.Context, rdb *redis.Client, logger *slog.Logger, count func(primitives.Event)) error {
	client, err := primitives.New(rdb,
		primitives.WithClientName("shop-web-1"), // shown by redlatch ls; default: host:pid
		primitives.WithLogger(logger),           // failures that no caller can see
		primitives.WithObserver(count),          // every event, for metrics
	)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		_ = client.Close(closing) // waits for holds; then close rdb
	}()
	return client.Lock("orders:42").Do(ctx, work)
}

// requireLocks checks that a lock can be acquired, and closes both clients.
func requireLocks(t *testing.T, rdb redis.UniversalClient, client *primitives.Client) {
	t.Helper()
	require.NoError(t, client.Lock("orders:42").Do(t.Context(), work, primitives.WithWait(10*time.Second)))
	require.NoError(t, client.Close(t.Context()))
	require.NoError(t, rdb.Close())
}

// requireLocksOf does so with a client of rdb.
func requireLocksOf(t *testing.T, rdb redis.UniversalClient) {
	t.Helper()
	client, err := primitives.New(rdb)
	require.NoError(t, err)
	requireLocks(t, rdb, client)
}

func TestSetUpOfOneServer(t *testing.T) {
	t.Parallel()
	addr := redistest.Redis(t).Addr()
	rdb, client, err := oneServer(addr)
	require.NoError(t, err)
	requireLocks(t, rdb, client)

	rdb = redis.NewClient(&redis.Options{Addr: addr})
	var events atomic.Int32
	count := func(primitives.Event) { events.Add(1) }
	require.NoError(t, inAProgram(t.Context(), rdb, slog.New(slog.DiscardHandler), count))
	require.NoError(t, rdb.Close())
	require.EqualValues(t, 2, events.Load(), "acquired and released")
}

// What the page says of MinIdleConns and PoolSize: locks use the connections for pipelines, which
// go-redis dials when they are needed, and which commands that block do not occupy.
func TestLocksUseTheConnectionsForPipelines(t *testing.T) {
	t.Parallel()
	server := redistest.Redis(t)
	rdb := server.Client(t, func(o *redis.Options) { o.PoolSize, o.MinIdleConns = 1, 1 })
	redistest.WaitFor(t, 10*time.Second, func() bool { return rdb.PoolStats().IdleConns == 1 }, "an idle connection")
	client, err := primitives.New(rdb, primitives.WithClientName(""))
	require.NoError(t, err)
	lock := client.Lock(redistest.Name(t))
	require.Zero(t, rdb.PoolStats().PipelineStats.TotalConns, "MinIdleConns is not for them")
	_, err = lock.Info(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, rdb.PoolStats().PipelineStats.TotalConns)

	blocked := make(chan error, 1)
	go func() { blocked <- rdb.BLPop(t.Context(), 10*time.Second, redistest.Name(t)+"list").Err() }()
	redistest.WaitFor(t, 10*time.Second, func() bool { return rdb.PoolStats().IdleConns == 0 }, "no idle connection")
	hold, err := lock.Acquire(t.Context())
	require.NoError(t, err)
	require.NoError(t, hold.Release(t.Context()))
	require.Empty(t, blocked, "the only other connection was in use")
	require.NoError(t, client.Close(t.Context()))
}

func TestSetUpOfACluster(t *testing.T) {
	t.Parallel()
	rdb, client, err := cluster(redistest.Cluster(t).Options().Addrs[:1])
	require.NoError(t, err)
	requireLocks(t, rdb, client)
}

// The user and its passwords, in the order of the page.
func TestSetUpOfUsersAndSentinel(t *testing.T) {
	t.Parallel()
	servers := redistest.Sentinel(t)
	admin := servers.Master.Client(t)
	do := func(args ...any) {
		t.Helper()
		require.NoError(t, admin.Do(t.Context(), args...).Err())
	}
	do("acl", "setuser", "locks", "on", ">old", "~*", "&*", "+@all")
	var addrs []string
	for _, s := range servers.Sentinels {
		addrs = append(addrs, s.Addr())
	}
	rdb, client, err := sentinel("main", addrs, "", "locks", "old")
	require.NoError(t, err)
	requireLocks(t, rdb, client)
	requireLocksOf(t, asUser(servers.Master.Addr(), "old"))

	file := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(file, []byte("old\n"), 0o600))
	changing := rotating(servers.Master.Addr(), file)
	client, err = primitives.New(changing)
	require.NoError(t, err)
	hold, err := client.Lock("orders:43").Acquire(t.Context())
	require.NoError(t, err)
	do("acl", "setuser", "locks", ">new")
	require.NoError(t, os.WriteFile(file, []byte("new\n"), 0o600))
	do("acl", "setuser", "locks", "<old")
	do("client", "kill", "user", "locks")
	require.NoError(t, hold.Release(t.Context()))
	requireLocks(t, changing, client)
}

func TestSetUpOfTLS(t *testing.T) {
	t.Parallel()
	s, tweak := redistest.FreshTLS(t)
	var options redis.Options
	tweak(&options)
	authority, err := s.Client(t).ConfigGet(t.Context(), "tls-ca-cert-file").Result()
	require.NoError(t, err)
	own := options.TLSConfig.Certificates[0]
	key, err := x509.MarshalECPrivateKey(own.PrivateKey.(*ecdsa.PrivateKey))
	require.NoError(t, err)
	write := func(name, kind string, content []byte) string {
		file := filepath.Join(t.TempDir(), name)
		text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content})
		require.NoError(t, os.WriteFile(file, text, 0o600))
		return file
	}
	rdb, err := overTLS(options.Addr, authority["tls-ca-cert-file"],
		write("cert", "CERTIFICATE", own.Certificate[0]), write("key", "EC PRIVATE KEY", key))
	require.NoError(t, err)
	requireLocksOf(t, rdb)
}

func TestSetUpOfADatabaseOfACluster(t *testing.T) {
	t.Parallel()
	servers := redistest.FreshClusterOfDatabases(t, 3)
	client, err := primitives.New(servers.ClusterClient(t))
	require.NoError(t, err)
	held, err := client.Lock("orders:42").Acquire(t.Context())
	require.NoError(t, err)
	requireLocksOf(t, inDatabaseOfACluster(servers.Options().Addrs))
	require.NoError(t, held.Release(t.Context()))
	require.NoError(t, client.Close(t.Context()))
}

// Names of different databases are different locks, and messages know no database.
func TestDatabasesShareMessages(t *testing.T) {
	t.Parallel()
	server, name := redistest.Redis(t), redistest.Name(t)
	var clients []*primitives.Client
	for db := range 2 {
		client, err := primitives.New(server.Client(t, func(o *redis.Options) { o.DB = db }))
		require.NoError(t, err)
		t.Cleanup(func() { _ = client.Close(context.Background()) })
		clients = append(clients, client)
	}
	first, err := clients[0].Lock(name).Acquire(t.Context())
	require.NoError(t, err)
	second, err := clients[1].Lock(name).Acquire(t.Context())
	require.NoError(t, err, "the same name in another database")
	acquired := make(chan *primitives.Hold, 1)
	go func() {
		hold, err := clients[1].Lock(name).Acquire(t.Context())
		if err != nil {
			t.Error(err)
		}
		acquired <- hold
	}()
	channel := "redisson_lock__channel:{" + name + "}"
	redistest.WaitFor(t, 10*time.Second, func() bool {
		return server.Client(t).PubSubNumSub(t.Context(), channel).Val()[channel] > 0
	}, "it waits")
	require.NoError(t, first.Release(t.Context())) // its message reaches the waiter in the other database
	time.Sleep(50 * time.Millisecond)
	require.Empty(t, acquired)
	require.NoError(t, second.Release(t.Context()))
	require.NoError(t, (<-acquired).Release(t.Context()))
}

// breaker is a Limiter that can be opened.
type breaker struct {
	open    atomic.Bool
	refused atomic.Int32
}

func (b *breaker) Allow() error {
	if b.open.Load() {
		b.refused.Add(1)
		return errBusy
	}
	return nil
}

func (*breaker) ReportResult(error) {}

// A hold survives a limiter that refuses for a while, and a call that it refuses fails.
func TestHoldsSurviveALimiter(t *testing.T) {
	t.Parallel()
	var limiter breaker
	rdb := redistest.Redis(t).Client(t, func(o *redis.Options) { o.Limiter = &limiter })
	client, err := primitives.New(rdb,
		primitives.WithCommandTimeout(time.Second), primitives.WithDefaults(primitives.WithWatchdog(6*time.Second)))
	require.NoError(t, err)
	hold, err := client.Lock(redistest.Name(t)).Acquire(t.Context())
	require.NoError(t, err)
	limiter.open.Store(true)
	_, err = client.Lock(redistest.Name(t) + "other").TryAcquire(t.Context())
	require.Error(t, err)
	require.NotErrorIs(t, err, primitives.ErrNotAcquired)
	before := hold.ValidUntil()
	refused := limiter.refused.Load()
	redistest.WaitFor(t, 10*time.Second, func() bool { return limiter.refused.Load() > refused }, "a renewal is refused")
	limiter.open.Store(false)
	redistest.WaitFor(t, 10*time.Second, func() bool {
		return hold.ValidUntil().After(before) || hold.Context().Err() != nil
	}, "it is renewed")
	require.NoError(t, hold.Release(t.Context()))
	require.NoError(t, client.Close(t.Context()))
}

// tokens is a provider whose credentials change.
type tokens struct {
	mu        sync.Mutex
	current   auth.Credentials
	listeners []auth.CredentialsListener
}

func (p *tokens) Subscribe(l auth.CredentialsListener) (auth.Credentials, auth.UnsubscribeFunc, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listeners = append(p.listeners, l)
	return p.current, func() error { return nil }, nil
}

func (p *tokens) change(to auth.Credentials) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.current = to
	for _, l := range p.listeners {
		l.OnNext(to)
	}
}

// Holds survive a new token: open connections authenticate again.
func TestHoldsSurviveANewToken(t *testing.T) {
	t.Parallel()
	server := redistest.Fresh(t)
	admin := server.Client(t)
	set := func(args ...any) {
		t.Helper()
		require.NoError(t, admin.Do(t.Context(), append([]any{"acl", "setuser", "locks"}, args...)...).Err())
	}
	set("on", ">old", "~*", "&*", "+@all")
	provider := &tokens{current: auth.NewBasicCredentials("locks", "old")}
	rdb := server.Client(t, func(o *redis.Options) { o.StreamingCredentialsProvider = provider })
	client, err := primitives.New(rdb, primitives.WithDefaults(primitives.WithWatchdog(3*time.Second)))
	require.NoError(t, err)
	hold, err := client.Lock("orders:42").Acquire(t.Context())
	require.NoError(t, err)
	set(">new")
	provider.change(auth.NewBasicCredentials("locks", "new"))
	set("<old")
	before := hold.ValidUntil()
	redistest.WaitFor(t, 10*time.Second, func() bool {
		return hold.ValidUntil().After(before) || hold.Context().Err() != nil
	}, "it is renewed")
	require.NoError(t, hold.Release(t.Context()))
	requireLocks(t, rdb, client)
}
