package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/urfave/cli/v3"

	"github.com/redlatch/redlatch/internal/redisutil"
	"github.com/redlatch/redlatch/primitives"
	"github.com/redlatch/redlatch/scripts"
)

// The flags that all commands share, and the clients that they describe.

const (
	defaultURL  = "redis://localhost:6379"
	urlVariable = "REDIS_URL"
	// The URLs have the user and the password of the master.
	sentinelUserVariable     = "REDIS_SENTINEL_USERNAME"
	sentinelPasswordVariable = "REDIS_SENTINEL_PASSWORD"
)

// connectionFlags returns the flags of the root command. Its commands inherit them. REDIS_URL is
// read by addresses, not by the flag: help would print a password in it.
func connectionFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringSliceFlag{
			Name: "redis", HideDefault: true,
			Usage: "`URL` of Redis: redis://, rediss:// (TLS) or unix://, with user, password and /db; " +
				"repeat it for the seeds of a cluster (default: $REDIS_URL, else " + defaultURL + ")",
		},
		&cli.BoolFlag{Name: "cluster", Usage: "the addresses are seeds of a cluster"},
		&cli.StringFlag{Name: "sentinel-master", Usage: "the addresses are Sentinels of the master `NAME`; " +
			"their own login: $" + sentinelUserVariable + " and $" + sentinelPasswordVariable},
		&cli.StringFlag{Name: "tls-ca", Usage: "`FILE` with the certificates of trusted authorities", TakesFile: true},
		&cli.StringFlag{Name: "tls-cert", Usage: "`FILE` with the client's certificate", TakesFile: true},
		&cli.StringFlag{Name: "tls-key", Usage: "`FILE` with the client's key", TakesFile: true},
		&cli.StringFlag{Name: "prefix", Usage: "`PREFIX` of all names in Redis, not shown in the output"},
		&cli.DurationFlag{
			Name: "timeout", Value: scripts.DefaultTimeout,
			Usage: "how long to wait for an answer from Redis, a `DURATION` such as 500ms",
		},
		&cli.BoolFlag{Name: "json", Usage: "print JSON, one object a line, also for errors"},
	}
}

// session is what a command works with: the connection that the flags describe, and a client on it.
type session struct {
	rdb    redis.UniversalClient
	where  func() string // see connect
	client *primitives.Client
	prefix string
	// giveUp is when a wait ends although Redis does not answer; zero: when the commands time out.
	giveUp time.Time
	silent bool // Redis has not answered for so long that nothing waits for it any more
}

// withSession connects as the flags say, runs f, and closes the connection. It fails at once if
// Redis does not answer or refuses the credentials. Before that it calls check, if there is one,
// with a context that has ended: the library sends nothing then, but says what is wrong with a name
// or a number.
func withSession(
	ctx context.Context, c *cli.Command, check func(context.Context, *session) error, f func(*session) error,
	opts ...primitives.ClientOption,
) (err error) {
	s, err := open(c, opts...)
	if err != nil {
		return err
	}
	defer func() { s.close(err) }()
	if check != nil {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		if err := check(ended, s); exitCode(ended, err) == exitUsage {
			return err
		}
	}
	if c.IsSet("wait") {
		s.giveUp = time.Now().Add(waitLimit(c))
	}
	// A server that is not ready yet is waited for by the library, for as long as the command
	// waits.
	if err := s.ping(ctx, answerLimit(c)); err != nil && (c.Bool("nonblock") || !isNotReady(err)) {
		return err
	}
	return f(s)
}

const (
	waitGrace  = 400 * time.Millisecond // how much longer than --wait a command waits for Redis
	closeGrace = 150 * time.Millisecond // and at least for what an attempt without an answer has left there
)

// waitLimit returns how long after its start a command with --wait gives up, even if Redis does not
// answer.
func waitLimit(c *cli.Command) time.Duration { return max(c.Duration("wait"), 0) + waitGrace }

// answerLimit returns how long the command waits for the first answer. A silent Redis must not make
// a wait longer.
func answerLimit(c *cli.Command) time.Duration {
	if c.IsSet("wait") {
		return min(c.Duration("timeout"), waitLimit(c))
	}
	return c.Duration("timeout")
}

// open returns the session that the flags describe. It sends nothing.
func open(c *cli.Command, opts ...primitives.ClientOption) (*session, error) {
	rdb, where, err := connect(c)
	if err != nil {
		return nil, err
	}
	opts = append(opts, primitives.WithPrefix(c.String("prefix")), primitives.WithCommandTimeout(c.Duration("timeout")))
	client, err := primitives.New(rdb, opts...)
	if err != nil {
		_ = rdb.Close()
		return nil, err
	}
	return &session{rdb: rdb, where: where, client: client, prefix: c.String("prefix")}, nil
}

// untilGiveUp returns ctx with giveUp as its deadline, if there is one. The caller must call
// cancel.
func (s *session) untilGiveUp(ctx context.Context) (bounded context.Context, cancel context.CancelFunc) {
	if s.giveUp.IsZero() {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, s.giveUp)
}

// close ends the session. Holds that are left stay until their leases end. It does not wait for a
// Redis that is silent, or was when the command failed with err, and after any other err not beyond
// giveUp: the process ends, and with it the removal of what an attempt has left.
func (s *session) close(err error) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.client.Close(ctx)
		_ = s.rdb.Close()
	}()
	var limit <-chan time.Time
	switch {
	case s.silent, s.giveUp.IsZero() && errors.Is(err, primitives.ErrUnavailable):
		limit = time.After(closeGrace)
	case err != nil && !s.giveUp.IsZero():
		limit = time.After(max(time.Until(s.giveUp), closeGrace))
	}
	select {
	case <-closed:
	case <-limit:
	}
}

// ping checks that Redis answers within timeout.
func (s *session) ping(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := redisutil.Ping(ctx, s.rdb); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause // without it, errors of a deadline differ by where go-redis noticed it
		}
		late := errors.Is(err, context.DeadlineExceeded)
		if late {
			err = fmt.Errorf("no answer within %v", timeout)
		}
		if _, ok := errors.AsType[*signalError](err); ok {
			return err
		}
		// A server without TLS waits for the end of what it takes for a command; one with TLS hangs
		// up.
		switch usesTLS := usesTLS(s.rdb); {
		case usesTLS && (late || errors.Is(err, io.EOF)):
			err = fmt.Errorf("%w: does the server use TLS, as rediss:// says?", err)
		case !usesTLS && errors.Is(err, io.EOF):
			err = fmt.Errorf("%w: does the server expect TLS (rediss://)?", err)
		}
		return &codedError{exitUnreachable, fmt.Errorf("cannot use Redis: %w", err)}
	}
	return nil
}

// isNotReady reports whether Redis refused a command for now.
func isNotReady(err error) bool {
	return slices.ContainsFunc([]string{"LOADING ", "BUSY ", "MASTERDOWN "},
		func(prefix string) bool { return redis.HasErrorPrefix(err, prefix) })
}

func usesTLS(rdb redis.UniversalClient) bool {
	switch c := rdb.(type) {
	case *redis.Client:
		return c.Options().TLSConfig != nil
	case *redis.ClusterClient:
		return c.Options().TLSConfig != nil
	}
	return false
}

// connect returns a client of the Redis that the flags describe, and a function that names that
// Redis for people: a master behind Sentinels by its address once it is known. It sends nothing.
func connect(c *cli.Command) (rdb redis.UniversalClient, where func() string, err error) {
	master := c.String("sentinel-master")
	switch isSet := c.IsSet("sentinel-master"); {
	case c.Bool("cluster") && isSet:
		return nil, nil, badUsage("--cluster and --sentinel-master exclude each other")
	case isSet && master == "":
		return nil, nil, badUsage("--sentinel-master is empty")
	}
	nodes, err := serversOf(c)
	if err != nil {
		return nil, nil, err
	}
	first := nodes[0]
	if !c.Bool("cluster") && master == "" && len(nodes) == 1 {
		return redis.NewClient(first), func() string { return addrWithDB(first) }, nil
	}
	many := &redis.UniversalOptions{
		MasterName: master, IsClusterMode: master == "",
		SentinelUsername: os.Getenv(sentinelUserVariable), SentinelPassword: os.Getenv(sentinelPasswordVariable),
		Username: first.Username, Password: first.Password, DB: first.DB, TLSConfig: first.TLSConfig,
		DialTimeout: first.DialTimeout, ReadTimeout: first.ReadTimeout, WriteTimeout: first.WriteTimeout,
		DialerRetries: first.DialerRetries, ContextTimeoutEnabled: true,
		MaintNotificationsConfig: first.MaintNotificationsConfig,
	}
	var hosts []string
	for _, node := range nodes {
		if node.Network == "unix" {
			return nil, nil, badUsage("--redis: a unix:// socket is one server, no cluster and no Sentinel")
		}
		if contradicts(node, first) {
			return nil, nil, badUsage("--redis: the scheme, user, password or database of a later URL is not that of the first")
		}
		many.Addrs = append(many.Addrs, node.Addr)
		hosts = append(hosts, hostOf(node.Addr))
	}
	if many.TLSConfig != nil {
		many.Dialer = dialerFor(many.TLSConfig, hosts, first.DialTimeout)
	}
	limit := lookupLimit(answerLimit(c))
	if master != "" {
		rdb, where = behindSentinels(many, limit)
		return rdb, where, nil
	}
	if first.DB != 0 {
		return nil, nil, badUsage("--redis: a cluster has no database %d", first.DB)
	}
	cluster := redis.NewClusterClient(many.Cluster())
	cluster.OnNewNode(func(node *redis.Client) { node.AddHook(hurryLookups(limit)) })
	return cluster, func() string { return "the cluster " + strings.Join(many.Addrs, ",") }, nil
}

// serversOf returns what the URLs say, at least one. The first has the options of the flags, too.
func serversOf(c *cli.Command) ([]*redis.Options, error) {
	urls, from := c.StringSlice("redis"), "--redis"
	if len(urls) == 0 {
		urls, from = []string{cmp.Or(os.Getenv(urlVariable), defaultURL)}, "$"+urlVariable
	}
	var nodes []*redis.Options
	for _, u := range urls {
		node, err := parseURL(from, u)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, node)
	}
	first, timeout := nodes[0], c.Duration("timeout")
	if err := addTLS(first, c.String("tls-ca"), c.String("tls-cert"), c.String("tls-key")); err != nil {
		return nil, err
	}
	if timeout < time.Millisecond {
		return nil, badUsage("--timeout %v: at least 1ms", timeout)
	}
	first.DialTimeout, first.ReadTimeout, first.WriteTimeout = timeout, timeout, timeout
	first.DialerRetries, first.ContextTimeoutEnabled = 1, true
	first.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return nodes, nil
}

func addrWithDB(o *redis.Options) string {
	if o.DB == 0 {
		return o.Addr
	}
	return o.Addr + "/" + strconv.Itoa(o.DB)
}

// contradicts reports whether a later URL asks for a connection that differs from that of the
// first, which applies to all servers. It may leave out what the first one says.
func contradicts(later, first *redis.Options) bool {
	differs := func(later, first string) bool { return later != "" && later != first }
	return (later.TLSConfig == nil) != (first.TLSConfig == nil) || differs(later.Username, first.Username) ||
		differs(later.Password, first.Password) || later.DB != 0 && later.DB != first.DB
}

// parseURL parses the URL of one server, which the user gave by that flag or variable. The parser's
// error is not shown: it quotes what it takes for a host, a port or a database, and that may be a
// piece of a password with a "/", "?" or "#".
func parseURL(from, u string) (*redis.Options, error) {
	o, err := redis.ParseURL(u)
	if err != nil || strings.Contains(u, "#") || // the parser would ignore all from there on
		o.DB < 0 || o.Network != "unix" && !hasValidPort(o.Addr) {
		return nil, badUsage("%s: bad URL; write redis://[[user]:password@]host[:port][/db], rediss:// for TLS "+
			"or unix:///path, and special characters of a password as in %%2F for a slash", from)
	}
	return o, nil
}

func hasValidPort(addr string) bool {
	_, port, _ := net.SplitHostPort(addr)
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}
