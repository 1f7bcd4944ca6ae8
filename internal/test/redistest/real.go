package redistest

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"testing"
)

// shared holds the servers that all tests of this test binary use. It is package
// state because it must outlive every test. A cluster takes seconds to start, so it
// has a lock of its own: tests that need none go on meanwhile.
var shared struct {
	redisLock sync.Mutex
	redis     *Server

	clusterLock sync.Mutex
	cluster     *ClusterServers

	dirsLock sync.Mutex
	dirs     []string
}

// checks is how many random cases rapid.Check tries, unless all tests run.
const checks = "25"

// gcPercent makes collections of garbage rare: tests allocate much and keep little.
const gcPercent = 400

// Main runs the tests, stops the shared servers and returns the exit code. More tests run at a time
// than there are processors, unless the flag -parallel says how many, and properties are checked
// with fewer cases than rapid's default, unless all tests run or -rapid.checks says how many.
// Programs that the tests start ignore no signal, even if the tests themselves were started by
// nohup. A package whose tests use Redis or Cluster must have
//
//	func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }
func Main(m *testing.M) int {
	flag.Parse()
	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if !given["test.parallel"] {
		_ = flag.Set("test.parallel", parallel)
	}
	if !given["rapid.checks"] && !Full() {
		_ = flag.Set("rapid.checks", checks) // an error: the package has no such tests
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	startProgramsWithDefaultSignals()
	code := m.Run()
	stopShared()
	return code
}

func stopShared() {
	shared.redisLock.Lock()
	defer shared.redisLock.Unlock()
	shared.clusterLock.Lock()
	defer shared.clusterLock.Unlock()
	shared.dirsLock.Lock()
	defer shared.dirsLock.Unlock()
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

// sharedDir makes a directory that stopShared removes.
func sharedDir() (string, error) {
	shared.dirsLock.Lock()
	defer shared.dirsLock.Unlock()
	dir, err := MakeDir("redistest-")
	if err == nil {
		shared.dirs = append(shared.dirs, dir)
	}
	return dir, err
}

// Redis returns the redis-server that all tests of this test binary share. The
// first call starts it, Main stops it. Tests must use different key names
// (Name), must not flush the server and must not change its configuration.
// Without a binary the test ends as described at Missing.
func Redis(t testing.TB) *Server {
	t.Helper()
	binary := Require(t, NeedRedis)
	shared.redisLock.Lock()
	defer shared.redisLock.Unlock()
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

// Fresh starts a redis-server for t only and stops it when t ends. args are
// additional arguments, such as "--maxmemory", "10mb". Without a binary the test
// ends as described at Missing.
func Fresh(t testing.TB, args ...string) *Server {
	t.Helper()
	return fresh(t, "redis", Require(t, NeedRedis), args...)
}

func fresh(t testing.TB, name, binary string, args ...string) *Server {
	t.Helper()
	s, err := startServer(name, binary, testDir(t), args)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// startServer starts a redis-server without persistence in dir.
func startServer(name, binary, dir string, args []string) (*Server, error) {
	return startOnFreePorts(name, 1, func(ports []string) *process {
		return &process{binary: binary, args: append(baseArgs(ports[0], dir), args...), dir: dir}
	})
}

func baseArgs(port, dir string) []string {
	return []string{"--port", port, "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no"}
}

// startOnFreePorts starts the process that newProcess makes for n free ports.
// Clients connect to the first port. Another process may take a port before the
// server listens on it; startOnFreePorts then tries other ports.
func startOnFreePorts(name string, n int, newProcess func(ports []string) *process) (*Server, error) {
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
		s := &Server{name: name, addr: loopback(ports[0]), proc: newProcess(texts)}
		if err = s.start(); err == nil {
			return s, nil
		}
		// On a busy machine, a server was once seen to write not even its first line for ten
		// seconds.
		isSilentOnce := errors.Is(err, errSilent) && failures == nil
		if isSilentOnce {
			fmt.Fprintln(os.Stderr, "once more:", err)
		}
		failures = errors.Join(failures, err)
		if !isSilentOnce && !errors.Is(err, errPortTaken) {
			break
		}
	}
	return nil, failures
}

// start starts the process and waits until it answers. It stops a process that
// does not answer.
func (s *Server) start() error {
	if err := s.proc.start(); err != nil {
		return err
	}
	if err := s.proc.waitReady(s.addr); err != nil {
		_ = s.proc.stop()
		return err
	}
	return nil
}
