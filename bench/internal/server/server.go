// Package server starts a redis-server, or a cluster of them, for one benchmark run.
package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/bench/internal/contend"
)

const (
	startTimeout = 10 * time.Second
	pollInterval = 5 * time.Millisecond
	maxAttempts  = 5 // each on another port
)

// Server is a redis-server child process without persistence. It listens on a unix socket and on a
// loopback port.
type Server struct {
	Unix, TCP contend.Target
	Version   string
	// Admin is the observer's client. During a measurement it sends only INFO and CLIENT LIST. They
	// do not count as commands of a contender.
	Admin *redis.Client

	dir    string
	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has been reaped
	output bytes.Buffer  // written by the process; read after exited is closed
}

// Binary returns the path of the redis-server to start: $REDIS_SERVER, or else the one in the PATH.
func Binary() (string, error) {
	name := os.Getenv("REDIS_SERVER")
	if name == "" {
		name = "redis-server"
	}
	return exec.LookPath(name)
}

// Start starts a server and waits until it accepts connections. Cancelling ctx does not stop it;
// Close does.
func Start(ctx context.Context) (*Server, error) {
	return startOnFreePort(ctx, func() ([]string, error) { return nil, nil })
}

// startOnFreePort starts a server with further arguments. It calls args for each attempt, because
// the arguments may name a port too.
func startOnFreePort(ctx context.Context, args func() ([]string, error)) (*Server, error) {
	binary, err := Binary()
	if err != nil {
		return nil, fmt.Errorf("server: find redis-server (set REDIS_SERVER): %w", err)
	}
	var failures error
	for range maxAttempts {
		more, err := args()
		if err != nil {
			return nil, err
		}
		s, err := start(ctx, binary, more)
		if err == nil {
			return s, nil
		}
		failures = errors.Join(failures, err)
	}
	return nil, failures
}

func start(ctx context.Context, binary string, more []string) (*Server, error) {
	port, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	s := &Server{
		dir: dir, exited: make(chan struct{}),
		Unix: contend.Target{Network: "unix", Addr: filepath.Join(dir, "s")},
		TCP:  contend.Target{Network: "tcp", Addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))},
	}
	// The server must outlive ctx: after a cancellation the sessions still release their holds.
	args := append([]string{
		"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--unixsocket", s.Unix.Addr, "--dir", dir,
		"--save", "", "--appendonly", "no", "--maxclients", "12000", "--loglevel", "warning",
	}, more...)
	s.cmd = exec.CommandContext(context.WithoutCancel(ctx), binary, args...)
	s.cmd.Stdout, s.cmd.Stderr = &s.output, &s.output
	s.cmd.SysProcAttr = killWithParent()
	started := make(chan error)
	go s.runProcess(started)
	if err := <-started; err != nil {
		_ = os.RemoveAll(dir)
		return nil, fmt.Errorf("server: %w", err)
	}
	if err := s.waitReady(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// runProcess starts the process, sends the result of the start to started, and reaps the process.
// It locks its OS thread until then: Linux sends the death signal when the thread that started the
// child ends.
func (s *Server) runProcess(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(s.exited)
	err := s.cmd.Start()
	started <- err
	if err == nil {
		_ = s.cmd.Wait() // Close kills it, so an error is expected
	}
}

// waitReady waits until the process accepts connections on its socket, then reads its version.
func (s *Server) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		if conn, err := (&net.Dialer{}).DialContext(ctx, "unix", s.Unix.Addr); err == nil {
			_ = conn.Close()
			break
		}
		select {
		case <-s.exited:
			return fmt.Errorf("server: redis-server exited: %s", bytes.TrimSpace(s.output.Bytes()))
		case <-ctx.Done():
			return fmt.Errorf("server: redis-server does not accept connections: %w", context.Cause(ctx))
		case <-time.After(pollInterval):
		}
	}
	s.Admin = redis.NewClient(s.Unix.Options())
	info, err := s.Admin.InfoMap(ctx, "server").Result()
	if err != nil {
		return fmt.Errorf("server: %w", err)
	}
	s.Version = info["Server"]["redis_version"]
	return nil
}

// Close kills the server and removes its directory.
func (s *Server) Close() {
	if s.Admin != nil {
		_ = s.Admin.Close()
	}
	_ = s.cmd.Process.Kill()
	<-s.exited
	_ = os.RemoveAll(s.dir)
}

// freePort returns a port that is free at this moment. It is below the ephemeral port range, so
// that an outgoing connection cannot take it before the server listens. Another server still can:
// then Start tries again.
func freePort(ctx context.Context) (int, error) {
	for range 100 {
		port := 20000 + rand.IntN(12000) //nolint:gosec // not a secret
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		if l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr); err == nil {
			return port, l.Close()
		}
	}
	return 0, errors.New("server: no free port found")
}
