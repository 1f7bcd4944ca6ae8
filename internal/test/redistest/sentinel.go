package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	masterName      = "main"
	sentinels       = 3
	quorum          = 2
	downAfter       = time.Second
	failoverTimeout = 3 * time.Second
)

// ReplicaServers is a master and its replicas.
type ReplicaServers struct {
	Master   *Server
	Replicas []*Server
}

// Replicated starts a master and n replicas for t only, and waits until the
// replicas are in sync. They are stopped when t ends. Without a binary the test
// ends as described at Missing.
func Replicated(t testing.TB, n int) *ReplicaServers {
	t.Helper()
	return replicated(t, Require(t, NeedRedis), n)
}

func replicated(t testing.TB, binary string, n int) *ReplicaServers {
	t.Helper()
	r := &ReplicaServers{Master: fresh(t, "redis", binary, "--repl-diskless-sync-delay", "0")}
	host, port, _ := net.SplitHostPort(r.Master.addr)
	for range n {
		r.Replicas = append(r.Replicas, fresh(t, "replica", binary,
			"--replicaof", host, port, "--repl-diskless-sync-delay", "0"))
	}
	ctx, cancel := context.WithTimeout(context.Background(), setupTimeout)
	defer cancel()
	for _, s := range r.Replicas {
		_, port, _ := net.SplitHostPort(s.addr)
		// Both sides: for a moment, the master still counts the replica as one that loads its data.
		err := errors.Join(
			s.waitForReply(ctx, []string{"master_link_status:up"}, "info", "replication"),
			r.Master.waitForReply(ctx, []string{"port=" + port + ",state=online"}, "info", "replication"),
		)
		if err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// SentinelServers is a master with replicas, monitored by three sentinels. A
// failover starts when two sentinels have had no answer for one second.
type SentinelServers struct {
	ReplicaServers // the roles at the start
	Sentinels      []*Server
}

// Sentinel starts a master, one replica and three sentinels for t only. It waits
// until the sentinels have discovered the replica and each other. All of them
// are stopped when t ends. Without a binary the test ends as described at
// Missing.
func Sentinel(t testing.TB) *SentinelServers {
	t.Helper()
	return SentinelReplicas(t, 1)
}

// SentinelReplicas is like Sentinel with n replicas.
func SentinelReplicas(t testing.TB, n int) *SentinelServers {
	t.Helper()
	binary := Require(t, NeedSentinel)
	s := &SentinelServers{ReplicaServers: *replicated(t, binary, n)}
	for range sentinels {
		sentinel, err := startSentinel(binary, testDir(t), s.Master.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(sentinel.Close)
		s.Sentinels = append(s.Sentinels, sentinel)
	}
	s.AwaitHealthy(t, s.Master)
	return s
}

// AwaitHealthy waits until all sentinels report the master as healthy and know
// all replicas and each other.
func (s *SentinelServers) AwaitHealthy(t testing.TB, master *Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), setupTimeout)
	defer cancel()
	want := []string{fmt.Sprintf("status=ok,address=%s,slaves=%d,sentinels=%d", master.addr, len(s.Replicas), sentinels)}
	for _, sentinel := range s.Sentinels {
		if err := sentinel.waitForReply(ctx, want, "info", "sentinel"); err != nil {
			t.Fatal(err)
		}
	}
}

// startSentinel starts a sentinel. A sentinel rewrites its configuration file to
// store its state, so the file is in dir.
func startSentinel(binary, dir, master string) (*Server, error) {
	host, port, err := net.SplitHostPort(master)
	if err != nil {
		return nil, err
	}
	conf := filepath.Join(dir, "sentinel.conf")
	text := fmt.Sprintf(`bind 127.0.0.1
sentinel monitor %[1]s %[2]s %[3]s %[4]d
sentinel down-after-milliseconds %[1]s %[5]d
sentinel failover-timeout %[1]s %[6]d
`, masterName, host, port, quorum, downAfter.Milliseconds(), failoverTimeout.Milliseconds())
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return nil, err
	}
	return startOnFreePorts("sentinel", 1, func(ports []string) *process {
		return &process{binary: binary, dir: dir, args: []string{conf, "--sentinel", "--port", ports[0], "--dir", dir}}
	})
}

// Options returns new client options that find the master through the sentinels.
// The caller may change them.
func (s *SentinelServers) Options() *redis.FailoverOptions {
	o := &redis.FailoverOptions{MasterName: masterName}
	for _, sentinel := range s.Sentinels {
		o.SentinelAddrs = append(o.SentinelAddrs, sentinel.addr)
	}
	return o
}

// FailoverClient returns a client that follows the master, and closes it when t
// ends. The tweaks change its options before it is made.
func (s *SentinelServers) FailoverClient(t testing.TB, tweaks ...func(*redis.FailoverOptions)) *redis.Client {
	o := s.Options()
	for _, tweak := range tweaks {
		tweak(o)
	}
	rdb := redis.NewFailoverClient(o)
	t.Cleanup(func() { _ = rdb.Close() }) // the test may have closed it
	return rdb
}

// AwaitFailover waits until the first sentinel reports another master than old,
// and returns it.
func (s *SentinelServers) AwaitFailover(t testing.TB, old *Server) (current *Server) {
	t.Helper()
	WaitFor(t, setupTimeout, func() bool {
		current = s.Current(t)
		return current != old
	}, "failover")
	return current
}

// Current returns the server that the first sentinel reports as the master.
func (s *SentinelServers) Current(t testing.TB) *Server {
	t.Helper()
	reply, _ := ask(t, s.Sentinels[0], "sentinel", "get-master-addr-by-name", masterName).([]any)
	if len(reply) != 2 {
		t.Fatalf("redistest: the sentinel reports no master: %v", reply)
	}
	addr := net.JoinHostPort(fmt.Sprint(reply[0]), fmt.Sprint(reply[1]))
	for _, server := range append([]*Server{s.Master}, s.Replicas...) {
		if server.addr == addr {
			return server
		}
	}
	t.Fatalf("redistest: the master %s is neither Master nor a replica", addr)
	return nil
}
