package torture

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

// Topologies of servers that the harness starts itself.
const (
	Single      = "single"
	Sentinel    = "sentinel"
	Cluster     = "cluster"
	Independent = "independent" // three servers: a redlock has a member on each
)

// Topologies are all of them.
var Topologies = []string{Single, Sentinel, Cluster, Independent}

// startTimeout bounds how long servers take to find each other.
const startTimeout = 30 * time.Second

// deployment is the Redis under test.
type deployment struct {
	Endpoint

	own       bool // the harness started it
	kind      string
	dir       string
	rdb       redis.UniversalClient // for the harness itself
	servers   []*redistest.Server   // those that clients connect to; with replicas, if own
	sentinels []*redistest.Server
	homes     map[*redistest.Server]string
	targets   []string        // addresses of servers, for the proxies
	simulated []*redis.Client // clients of simulated servers
}

// connect prepares the tests of a deployment that somebody else runs.
func connect(e Endpoint) (*deployment, error) {
	d := &deployment{Endpoint: e, rdb: e.client(), kind: "given", targets: e.Addrs}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := d.rdb.Ping(ctx).Err(); err != nil {
		_ = d.rdb.Close()
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	switch {
	case e.Cluster:
		slots, err := d.rdb.ClusterSlots(ctx).Result()
		if err != nil {
			return nil, err
		}
		d.targets = nil
		for _, s := range slots {
			for _, n := range s.Nodes {
				d.targets = append(d.targets, n.Addr)
			}
		}
	case e.Master != "":
		d.targets = nil // the way to the Sentinels and through them is not disturbed
		sentinel := redis.NewSentinelClient(&redis.Options{Addr: e.Addrs[0], TLSConfig: e.TLS})
		defer func() { _ = sentinel.Close() }()
		if at, err := sentinel.GetMasterAddrByName(ctx, e.Master).Result(); err == nil && len(at) == 2 {
			d.targets = append(d.targets, net.JoinHostPort(at[0], at[1]))
		}
	}
	return d, nil
}

// start starts servers of a topology.
func start(topology string) (*deployment, error) {
	dir, err := redistest.MakeDir("redlatch-torture-")
	if err != nil {
		return nil, err
	}
	d := &deployment{own: true, kind: topology, dir: dir, homes: map[*redistest.Server]string{}}
	switch topology {
	case Single:
		err = d.startSingle()
	case Independent:
		err = d.startIndependent()
	case Sentinel:
		err = d.startSentinel()
	case Cluster:
		err = d.startCluster()
	default:
		err = fmt.Errorf("torture: no topology %q", topology)
	}
	if err != nil {
		d.close()
		return nil, err
	}
	for _, s := range d.servers {
		d.targets = append(d.targets, s.Addr())
	}
	d.rdb = d.client()
	return d, nil
}

func (d *deployment) close() {
	if d.rdb != nil {
		_ = d.rdb.Close()
	}
	for _, s := range append(d.sentinels, d.servers...) {
		s.Close()
	}
	if d.dir != "" {
		_ = os.RemoveAll(d.dir)
	}
}

// home makes a directory for a server.
func (d *deployment) home(name string) (string, error) {
	dir := filepath.Join(d.dir, name)
	return dir, os.Mkdir(dir, 0o700)
}

// launch starts a redis-server that survives a restart with all its data.
func (d *deployment) launch(name string, args ...string) (*redistest.Server, error) {
	dir, err := d.home(name)
	if err != nil {
		return nil, err
	}
	args = append([]string{"--appendonly", "yes", "--appendfsync", "always", "--repl-diskless-sync-delay", "0"}, args...)
	s, err := redistest.StartServer(dir, args...)
	if err != nil {
		return nil, err
	}
	d.servers = append(d.servers, s)
	d.homes[s] = dir
	return s, nil
}

func (d *deployment) startSingle() error {
	s, err := d.launch("server")
	if err != nil {
		return err
	}
	d.Addrs = []string{s.Addr()}
	return nil
}

// startIndependent starts servers that know nothing of each other. The first one has all but the
// redlocks.
func (d *deployment) startIndependent() error {
	for i := range redLockMembers {
		s, err := d.launch("server" + strconv.Itoa(i))
		if err != nil {
			return err
		}
		d.Members = append(d.Members, s.Addr())
	}
	d.Addrs = d.Members[:1]
	return nil
}

func (d *deployment) startSentinel() error {
	master, err := d.launch("master")
	if err != nil {
		return err
	}
	host, port, _ := net.SplitHostPort(master.Addr())
	for i := range 2 {
		if _, err := d.launch("replica"+strconv.Itoa(i), "--replicaof", host, port); err != nil {
			return err
		}
	}
	for i := range 3 {
		dir, err := d.home("sentinel" + strconv.Itoa(i))
		if err != nil {
			return err
		}
		s, err := redistest.StartSentinel(dir, master.Addr())
		if err != nil {
			return err
		}
		d.sentinels = append(d.sentinels, s)
		d.Addrs = append(d.Addrs, s.Addr())
	}
	d.Master = redistest.MasterName
	for _, s := range d.sentinels { // on a busy machine a server may be silent for a second
		if _, err := command(s, "SENTINEL", "SET", d.Master, "down-after-milliseconds", "3000"); err != nil {
			return err
		}
	}
	return d.awaitSentinels()
}

// awaitSentinels waits until the Sentinels agree that the master and both replicas are there.
func (d *deployment) awaitSentinels() error {
	want := fmt.Sprintf("slaves=%d,sentinels=%d", len(d.servers)-1, len(d.sentinels))
	return eventually(startTimeout, func(ctx context.Context) error {
		for _, s := range d.sentinels {
			rdb := redis.NewClient(s.Options())
			info, err := rdb.Info(ctx, "sentinel").Result()
			_ = rdb.Close()
			if err != nil {
				return err
			}
			if !strings.Contains(info, "status=ok") || !strings.Contains(info, want) {
				return fmt.Errorf("a Sentinel does not see all servers: %s", info)
			}
		}
		return nil
	})
}

func (d *deployment) startCluster() error {
	dir, err := d.home("cluster")
	if err != nil {
		return err
	}
	c, err := redistest.StartCluster(dir, 3)
	if err != nil {
		return err
	}
	masters := c.Nodes()
	d.servers = append(d.servers, masters...)
	for i, master := range masters {
		home, err := d.home("replica" + strconv.Itoa(i))
		if err != nil {
			return err
		}
		s, err := c.AddReplica(home, master)
		if err != nil {
			return err
		}
		d.servers = append(d.servers, s)
	}
	d.Cluster = true
	for _, s := range d.servers {
		d.Addrs = append(d.Addrs, s.Addr())
	}
	return d.awaitCluster()
}

// awaitCluster waits until every node sees three masters with one replica each, and no failure.
func (d *deployment) awaitCluster() error {
	return eventually(startTimeout, func(ctx context.Context) error {
		for _, s := range d.servers {
			rdb := redis.NewClient(s.Options())
			info, err := rdb.ClusterInfo(ctx).Result()
			nodes, err2 := rdb.ClusterNodes(ctx).Result()
			_ = rdb.Close()
			if err := errors.Join(err, err2); err != nil {
				return err
			}
			if !strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, "cluster_size:3") ||
				strings.Contains(nodes, "fail") || strings.Count(nodes, "slave ") != 3 {
				return fmt.Errorf("the cluster is not complete: %s", nodes)
			}
		}
		return nil
	})
}

// eventually repeats check until it succeeds.
func eventually(limit time.Duration, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("torture: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// connectTo returns how a proxy connects to a server.
func (d *deployment) connectTo(addr string) func() (net.Conn, error) {
	return func() (net.Conn, error) {
		dial := net.Dialer{Timeout: 5 * time.Second}
		if d.TLS != nil {
			secure := tls.Dialer{NetDialer: &dial, Config: d.TLS}
			return secure.DialContext(context.Background(), "tcp", addr)
		}
		return dial.DialContext(context.Background(), "tcp", addr)
	}
}

// eachNode calls f with a client of each server that can be reached: masters only, in a cluster.
func (d *deployment) eachNode(ctx context.Context, f func(ctx context.Context, rdb *redis.Client) error) error {
	if d.simulated != nil {
		for _, rdb := range d.simulated {
			if err := f(ctx, rdb); err != nil {
				return err
			}
		}
		return nil
	}
	if d.kind == Independent {
		for _, s := range d.servers {
			each := func(ctx context.Context, rdb *redis.Client) (any, error) { return nil, f(ctx, rdb) }
			if _, err := on(s, each); err != nil {
				return err
			}
		}
		return nil
	}
	switch rdb := d.rdb.(type) {
	case *redis.ClusterClient:
		return rdb.ForEachMaster(ctx, f)
	case *redis.Client:
		return f(ctx, rdb)
	}
	return nil
}
