// Package server starts a redis-server for one run.
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
	startLimit   = 10 * time.Second
	pollInterval = 5 * time.Millisecond
	attempts     = 5 // ports tried
)

// Server is a redis-server of our own, on a unix socket and on a loopback port, without persistence.
type Server struct {
	Unix, TCP contend.Target
	Version   string
	// Admin observes: its own commands are INFO and CLIENT LIST while something is being measured.
	Admin *redis.Client

	dir    string
	cmd    *exec.Cmd
	ended  chan struct{}
	output bytes.Buffer
}

// Binary is the redis-server to start: $REDIS_SERVER, else the one in the PATH.
func Binary() (string, error) {
	name := os.Getenv("REDIS_SERVER")
	if name == "" {
		name = "redis-server"
	}
	return exec.LookPath(name)
}

// Start starts a server and waits until it answers.
func Start(ctx context.Context) (*Server, error) {
	binary, err := Binary()
	if err != nil {
		return nil, fmt.Errorf("server: no redis-server (set REDIS_SERVER): %w", err)
	}
	var failures error
	for range attempts {
		s, err := start(ctx, binary)
		if err == nil {
			return s, nil
		}
		failures = errors.Join(failures, err)
	}
	return nil, failures
}

func start(ctx context.Context, binary string) (*Server, error) {
	port, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	s := &Server{
		dir: dir, ended: make(chan struct{}),
		Unix: contend.Target{Network: "unix", Addr: filepath.Join(dir, "s")},
		TCP:  contend.Target{Network: "tcp", Addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))},
	}
	// The server outlives ctx: Close ends it, after what is being measured has let go.
	s.cmd = exec.CommandContext(context.WithoutCancel(ctx), binary, "--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--unixsocket", s.Unix.Addr, "--dir", dir,
		"--save", "", "--appendonly", "no", "--maxclients", "12000", "--loglevel", "warning")
	s.cmd.Stdout, s.cmd.Stderr = &s.output, &s.output
	s.cmd.SysProcAttr = diesWithUs()
	started := make(chan error)
	go s.tend(started)
	if err := <-started; err != nil {
		_ = os.RemoveAll(dir)
		return nil, fmt.Errorf("server: %w", err)
	}
	if err := s.ready(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// tend starts the process and reaps it. It keeps its thread as long: the death signal of Linux is tied to the thread that started the child.
func (s *Server) tend(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(s.ended)
	err := s.cmd.Start()
	started <- err
	if err == nil {
		_ = s.cmd.Wait() // killed, as a rule
	}
}

// ready waits until the process answers on its socket, and reads its version.
func (s *Server) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		if conn, err := (&net.Dialer{}).DialContext(ctx, "unix", s.Unix.Addr); err == nil {
			_ = conn.Close()
			break
		}
		select {
		case <-s.ended:
			return fmt.Errorf("server: ended: %s", bytes.TrimSpace(s.output.Bytes()))
		case <-ctx.Done():
			return fmt.Errorf("server: does not answer: %w", context.Cause(ctx))
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

// Close ends the server and removes what it left.
func (s *Server) Close() {
	if s.Admin != nil {
		_ = s.Admin.Close()
	}
	_ = s.cmd.Process.Kill()
	<-s.ended
	_ = os.RemoveAll(s.dir)
}

// freePort returns a port that was free a moment ago, from below the range that systems hand out to outgoing connections: nobody takes it by
// chance before the server does.
func freePort(ctx context.Context) (int, error) {
	for range 100 {
		port := 20000 + rand.IntN(12000) //nolint:gosec // no secret
		if l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, l.Close()
		}
	}
	return 0, errors.New("server: found no free port")
}
