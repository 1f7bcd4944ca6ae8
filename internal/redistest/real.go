package redistest

import (
	"errors"
	"os"
	"strconv"
	"sync"
	"testing"
)

// shared holds the servers that all tests of this test binary use. It is the
// one piece of package state: Go has nothing smaller that outlives a test.
var shared struct {
	sync.Mutex
	redis   *Server
	cluster *ClusterServers
	dirs    []string
}

// Main runs the tests and then stops the servers they shared. It returns the
// exit code: a package whose tests use Redis or Cluster has
//
//	func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }
func Main(m *testing.M) int {
	code := m.Run()
	stopShared()
	return code
}

func stopShared() {
	shared.Lock()
	defer shared.Unlock()
	if shared.redis != nil {
		_ = shared.redis.proc.stop()
	}
	if shared.cluster != nil {
		for _, s := range shared.cluster.nodes {
			_ = s.proc.stop()
		}
	}
	for _, dir := range shared.dirs {
		_ = os.RemoveAll(dir)
	}
	shared.redis, shared.cluster, shared.dirs = nil, nil, nil
}

// sharedDir makes a directory that stopShared removes. The caller holds the lock.
func sharedDir() (string, error) {
	dir, err := os.MkdirTemp("", "redistest-")
	if err == nil {
		shared.dirs = append(shared.dirs, dir)
	}
	return dir, err
}

// Redis returns the redis-server that all tests of this test binary share,
// started on first use and stopped by Main. Tests keep apart by their key names
// (Name); they must not flush it, nor change its configuration. Without a
// binary the test ends as in Missing.
func Redis(t testing.TB) *Server {
	t.Helper()
	binary := Require(t, NeedRedis)
	shared.Lock()
	defer shared.Unlock()
	if shared.redis != nil {
		return shared.redis
	}
	dir, err := sharedDir()
	if err != nil {
		t.Fatal(err)
	}
	s, err := startServer("redis", binary, dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.shared = true
	shared.redis = s
	return s
}

// Fresh starts a redis-server for t alone, with more arguments if need be, such
// as "--maxmemory", "10mb". It ends with t. Without a binary the test ends as in
// Missing.
func Fresh(t testing.TB, args ...string) *Server {
	t.Helper()
	return fresh(t, "redis", Require(t, NeedRedis), args...)
}

func fresh(t testing.TB, name, binary string, args ...string) *Server {
	t.Helper()
	s, err := startServer(name, binary, t.TempDir(), args)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// startServer starts a redis-server without persistence in dir.
func startServer(name, binary, dir string, args []string) (*Server, error) {
	return startSomewhere(name, 1, func(ports []string) *process {
		return &process{binary: binary, args: append(baseArgs(ports[0], dir), args...), dir: dir}
	})
}

func baseArgs(port, dir string) []string {
	return []string{"--port", port, "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no"}
}

// startSomewhere starts what on makes for n free ports, the first of which takes
// clients. It tries others while one of the chosen turns out to be taken.
func startSomewhere(name string, n int, on func(ports []string) *process) (*Server, error) {
	var failures error
	for range startAttempts {
		ports, err := freePorts(n)
		if err != nil {
			return nil, err
		}
		var texts []string
		for _, port := range ports {
			texts = append(texts, strconv.Itoa(port))
		}
		s := &Server{name: name, addr: loopback(ports[0]), proc: on(texts)}
		if err = s.start(); err == nil {
			return s, nil
		}
		failures = errors.Join(failures, err)
		if !errors.Is(err, errPortTaken) {
			break
		}
	}
	return nil, failures
}

// start starts the process and waits until it answers; if it does not, it is
// stopped.
func (s *Server) start() error {
	if err := s.proc.start(); err != nil {
		return err
	}
	if err := s.proc.ready(s.addr); err != nil {
		_ = s.proc.stop()
		return err
	}
	return nil
}
