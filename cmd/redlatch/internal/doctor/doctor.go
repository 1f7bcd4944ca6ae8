package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/redisutil"
)

// The states of a result.
const (
	OK   = "ok"
	Warn = "warn"
	Fail = "FAIL"
)

// Result is what one check found, and what to do about it.
type Result struct {
	Check  string `json:"check"`
	Status string `json:"status"`
	Detail string `json:"detail"`
	Fix    string `json:"fix"` // "" if nothing is to be done
}

// Config is what Run needs.
type Config struct {
	Redis   redis.UniversalClient
	Where   func() string // names the server, or the cluster
	Prefix  string        // of all names, as WithPrefix
	Timeout time.Duration
	Report  func(Result) // is called for each result, in order
}

// ErrUnreachable is returned when Redis does not answer, or refuses the connection.
var ErrUnreachable = errors.New("redis is out of reach")

// exam is one run of all checks.
type exam struct {
	Config
	cluster bool
	nodes   []*node       // the masters
	name    string        // throw-away
	unfit   bool          // a check found that nothing can be written, so the others do not try
	latency time.Duration // of a command; 0: not known yet
	seen    sight         // of a server that did not answer a PING in time
}

// node is one server and what it says about itself.
type node struct {
	rdb    *redis.Client
	addr   string
	hello  map[string]string // version, mode and role
	info   map[string]string // nil: INFO is forbidden
	denied error             // why info is nil
}

// check is one check. An error means that Redis did not answer.
type check struct {
	name string
	run  func(context.Context, *exam) ([]Result, error)
}

// checks returns all checks in their order.
func checks() []check {
	return []check{
		{"latency", latency},
		{"version", eachNode(version)},
		{"uptime", eachNode(uptime)},
		{"role", eachNode(role)},
		{"cluster", clusterState},
		{"maxmemory-policy", eachNode(policy)},
		{"memory", eachNode(memory)},
		{"evictions", eachNode(evictions)},
		{"flushes", eachNode(flushes)},
		{"persistence", eachNode(persistence)},
		{"replicas", eachNode(replicas)},
		{"clients", eachNode(clients)},
		{"timeouts", eachNode(timeouts)},
		{"clock", clock},
		{"commands", commands},
		{"scripts", scriptCalls},
		{"acl", rights},
		{"pubsub", pubsub},
		{"primitives", tryAll},
	}
}

// Run checks everything and reports each result. failed: a check found a failure. The error is
// ErrUnreachable, or that of ctx.
func Run(ctx context.Context, cfg Config) (failed bool, err error) {
	e := &exam{Config: cfg, name: cfg.Prefix + "redlatch-doctor-" + rand.Text()[:12]}
	_, e.cluster = cfg.Redis.(*redis.ClusterClient)
	report := func(name string, results ...Result) {
		for _, r := range results {
			r.Check = name
			failed = failed || r.Status == Fail
			cfg.Report(r)
		}
	}
	if errs := e.connect(ctx); len(errs) > 0 {
		if ctx.Err() != nil {
			return failed, context.Cause(ctx)
		}
		for _, err := range errs {
			report("connection", Result{Status: Fail, Detail: oneLine(err), Fix: e.reachFix(err)})
		}
		return failed, ErrUnreachable
	}
	report("connection", Result{Status: OK, Detail: "Redis answers at " + e.addrs()})
	for _, c := range checks() {
		results, err := c.run(ctx, e)
		if ctx.Err() != nil {
			return failed, context.Cause(ctx)
		}
		report(c.name, results...)
		if err != nil {
			report(c.name, Result{Status: Fail, Detail: "no answer: " + oneLine(err),
				Fix: "look at the network and at the server's log, and try again"})
			return failed, ErrUnreachable
		}
	}
	return failed, nil
}

// commandsPerCheck is twice as many as any check sends, one after another. The longest one uses a
// pool of permits: on a server without the scripts it sends about twenty commands, those of a new
// connection included. A slow server is no silent one, so a check has time for the answers to all
// of them.
const commandsPerCheck = 40

// bounded returns a context for one check of a server.
func (e *exam) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, e.Timeout+commandsPerCheck*e.latency)
}

// connect pings Redis and reads what each master says about itself. Its errors, one of each master,
// mean that no check can run.
func (e *exam) connect(ctx context.Context) []error {
	err := e.ping(ctx)
	if err != nil && !forbidden(err) {
		return []error{e.unreached(err)}
	}
	ctx, cancel := e.bounded(ctx)
	defer cancel()
	switch c := e.Redis.(type) {
	case *redis.Client:
		e.nodes = []*node{{rdb: c, addr: e.Where()}}
	case *redis.ClusterClient:
		var mu sync.Mutex // ForEachMaster calls the function concurrently
		err := c.ForEachMaster(ctx, func(_ context.Context, m *redis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			e.nodes = append(e.nodes, &node{rdb: m, addr: m.Options().Addr})
			return nil
		})
		if err != nil {
			return []error{err}
		}
	default:
		return []error{fmt.Errorf("a client of type %T", e.Redis)}
	}
	errs := make([]error, len(e.nodes))
	var asked sync.WaitGroup // a master that hangs leaves no time for others
	for i, n := range e.nodes {
		asked.Go(func() {
			if err := n.ask(ctx); err != nil {
				errs[i] = e.named(n.addr, err)
			}
		})
	}
	asked.Wait()
	return slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}

// named names the server that did not answer, or that answered with err. A failure to connect names
// it already.
func (e *exam) named(addr string, err error) error {
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() { // a context's or a connection's
		return fmt.Errorf("no answer from %s within %v", addr, e.Timeout)
	}
	if strings.Contains(err.Error(), addr) {
		return err
	}
	return fmt.Errorf("%s: %w", addr, err)
}

// ask reads HELLO and INFO. Either may be forbidden, or unknown to a proxy.
func (n *node) ask(ctx context.Context) error {
	n.hello = map[string]string{}
	hello, err := n.rdb.Do(ctx, "hello").Result()
	if err != nil && !answered(err) {
		return err
	}
	pair := func(k, v any) {
		if text, ok := v.(string); ok {
			n.hello[fmt.Sprint(k)] = text
		}
	}
	switch reply := hello.(type) {
	case map[any]any:
		for k, v := range reply {
			pair(k, v)
		}
	case []any: // RESP2
		for i := 0; i+1 < len(reply); i += 2 {
			pair(reply[i], reply[i+1])
		}
	}
	text, err := n.rdb.Info(ctx).Result()
	if err != nil {
		n.denied = err
		if answered(err) {
			return nil
		}
		return err
	}
	n.info = map[string]string{}
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			n.info[k] = v
		}
	}
	return nil
}

func (e *exam) addrs() string {
	var addrs []string
	for _, n := range e.nodes {
		addrs = append(addrs, n.addr)
	}
	return strings.Join(addrs, ", ")
}

// otherCertificate is what to do if the server refuses the certificate of --tls-cert.
const otherCertificate = "the server refuses the client's certificate: give another --tls-cert and --tls-key, which " +
	"an authority has signed that the server trusts, or add that authority to the server's tls-ca-cert-file"

// reachFix is what to do about a connection that failed with err.
func (e *exam) reachFix(err error) string {
	text := err.Error()
	if e.wasClosed(err) {
		return e.closedFix()
	}
	for _, known := range []struct{ part, fix string }{
		{"WRONGPASS", "the user or the password in the URL is wrong: redis://user:password@host"},
		{"NOAUTH", "give a password in the URL: redis://:password@host"},
		{"DENIED", "the server is in protected mode: set a password, or bind it to a private network"},
		{"LOADING", "the server loads its data: wait, and try again"},
		{"MASTERDOWN", "the server is a replica that has lost its master: connect to the master"},
		{"CLUSTERDOWN", "look at CLUSTER NODES: a master is down, or slots have no master"},
		{"BUSY", "a script has been running for too long: wait, or end it with SCRIPT KILL"},
		{"cluster support disabled", "this is no cluster: leave out --cluster, and give one address"},
		{"first record does not look like a TLS", "the server does not use TLS: redis:// instead of rediss://"},
		{"certificate required", "the server wants a certificate of the client: give --tls-cert and --tls-key"},
		{"unknown certificate authority", otherCertificate},
		{"tls: bad certificate", otherCertificate},
		{"tls: expired certificate", otherCertificate},
		{"certificate is valid for", "the server's certificate is for another host: use a host that it names"},
		{"cannot validate certificate for", "the server's certificate names no addresses: use a host that it names"},
		{"certificate has expired", "the server's certificate has expired, or a clock is wrong"},
		{"certificate", "give the authority that signed the certificate by --tls-ca"},
		{"EOF", "the server closed the connection: look at its log, and whether a proxy in between has lost it"},
		{"no such host", "the host name is unknown: check the URL"},
		{"no answer from", "does redis-server hang (redis-cli ping on its host)? Else check the address, the firewall, " +
			"and whether the server uses TLS as the URL says (rediss://)"},
		{"max number of clients", "raise maxclients, or close idle connections"},
		// A server with too many clients closes a connection before the client has sent anything.
		// Whether its reply can still be read is a matter of luck.
		{"broken pipe", "does the server have too many clients (maxclients)? Else check that it is a Redis server"},
	} {
		if strings.Contains(text, known.part) {
			return known.fix
		}
	}
	return "check the address, that redis-server runs, and that no firewall is in between"
}

// answered reports whether err is an answer of the server, as opposed to no answer.
func answered(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
}

// forbidden reports whether an ACL forbids the command, or the server or a proxy does not have it.
func forbidden(err error) bool {
	return redisutil.LacksRights(err) || answered(err) && strings.Contains(err.Error(), "unknown command")
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

func ok(format string, args ...any) []Result {
	return []Result{{Status: OK, Detail: fmt.Sprintf(format, args...)}}
}

func warn(fix, format string, args ...any) []Result {
	return []Result{{Status: Warn, Detail: fmt.Sprintf(format, args...), Fix: fix}}
}

func fail(fix, format string, args ...any) []Result {
	return []Result{{Status: Fail, Detail: fmt.Sprintf(format, args...), Fix: fix}}
}

// deniedCommand finds the command in an error of an ACL.
var deniedCommand = regexp.MustCompile(`run the '([^' ]+)' command`)

// unknownCommand finds the command in an error of a server that does not have it.
var unknownCommand = regexp.MustCompile("(?i)unknown command ['`]([a-z]+)")

// unchecked is the result of a check that the server forbids.
func unchecked(why error) []Result {
	if missing := unknownCommand.FindStringSubmatch(why.Error()); missing != nil {
		return warn("look there by hand, or remove rename-command from the server's configuration",
			"not checked: the server has no %s command", strings.ToUpper(missing[1]))
	}
	user := "an administrator"
	if found := deniedCommand.FindStringSubmatch(why.Error()); found != nil {
		user = "a user with +" + found[1]
	}
	return warn("run doctor as "+user, "not checked: %s", oneLine(why))
}

// eachNode makes a check of one server a check of all masters. If all are well, the first one speaks for all.
func eachNode(f func(ctx context.Context, n *node) ([]Result, error)) func(context.Context, *exam) ([]Result, error) {
	return func(ctx context.Context, e *exam) ([]Result, error) {
		var good, bad []Result
		for _, n := range e.nodes {
			bound, cancel := e.bounded(ctx)
			results, err := f(bound, n)
			cancel()
			if err != nil {
				return bad, fmt.Errorf("%s: %w", n.addr, err)
			}
			for _, r := range results {
				if r.Status == OK {
					good = append(good, r)
					continue
				}
				if len(e.nodes) > 1 {
					r.Detail = n.addr + ": " + r.Detail
				}
				bad = append(bad, r)
			}
		}
		if len(bad) > 0 || len(good) == 0 {
			return bad, nil
		}
		if len(e.nodes) > 1 {
			good[0].Detail = fmt.Sprintf("%s (%s; all %d masters are ok)", good[0].Detail, e.nodes[0].addr, len(e.nodes))
		}
		return good[:1], nil
	}
}
