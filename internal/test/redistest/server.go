package redistest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Server is one Redis server: a miniredis or a redis-server process. Its
// methods are safe for concurrent use.
type Server struct {
	name   string
	addr   string   // empty when the server has no listener
	shared bool     // other tests use it too, so no test may pause or stop its process
	proc   *process // nil for a miniredis
	paused atomic.Bool
	mini   *miniredis.Miniredis
	dial   func() (net.Conn, error) // only for a server without a listener
	calls  *callCounter             // only for a miniredis, which has no INFO commandstats
	user   string                   // that clients log in as; empty: they do not log in
}

// Name returns the kind of server: "miniredis", "embedded", "redis", "replica",
// "cluster" or "sentinel". It is suitable as the name of a subtest.
func (s *Server) Name() string { return s.name }

// Addr returns the host:port the server listens on. It is empty for Embedded,
// which is reachable through Options only.
func (s *Server) Addr() string { return s.addr }

// Mini returns the miniredis behind s, or nil for a redis-server. Calling its
// SetError disables the hook that Commands depends on.
func (s *Server) Mini() *miniredis.Miniredis { return s.mini }

// Options returns new client options for s, which the caller may change. They
// are the defaults of go-redis without maintenance notifications. For Embedded
// they also work in a synctest bubble.
func (s *Server) Options() *redis.Options {
	if s.dial != nil {
		return pipeOptions(s.dial)
	}
	o := options(s.addr)
	if s.user != "" {
		o.Username, o.Password = s.user, Password
	}
	return o
}

// Client returns a client of s and closes it when t ends. The tweaks change its
// options before it is made.
func (s *Server) Client(t testing.TB, tweaks ...func(*redis.Options)) *redis.Client {
	return newClient(t, s.Options(), tweaks)
}

func newClient(t testing.TB, o *redis.Options, tweaks []func(*redis.Options)) *redis.Client {
	for _, tweak := range tweaks {
		tweak(o)
	}
	rdb := redis.NewClient(o)
	t.Cleanup(func() { _ = rdb.Close() }) // the test may have closed it
	return rdb
}

// bufferSize is the size of each buffer of a connection. Those of go-redis have 32 and 128 KiB, and
// tests make thousands of connections for a few commands each.
const bufferSize = 4 << 10

// options returns the options for a server on addr. Maintenance notifications
// are disabled: they add a command to every handshake, and no test server sends
// them.
func options(addr string) *redis.Options {
	return &redis.Options{
		Addr:           addr,
		ReadBufferSize: bufferSize, WriteBufferSize: bufferSize,
		PipelineReadBufferSize: bufferSize, PipelineWriteBufferSize: bufferSize,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// pipeOptions returns options that work in a synctest bubble. The pool must
// never run out: a wait for a connection uses timers that go-redis shares
// between clients, and so between bubbles. Addr must be numeric: host names are
// resolved by goroutines outside of the bubble.
func pipeOptions(dial func() (net.Conn, error)) *redis.Options {
	o := options("127.0.0.1:0")
	o.Dialer = func(context.Context, string, string) (net.Conn, error) { return dial() }
	o.PoolSize, o.PipelinePoolSize = 1000, 1000
	return o
}

// adminName is the client name of this package's own connections, which
// Connections does not count.
const adminName = "redistest"

func adminOptions(addr string) *redis.Options {
	o := options(addr)
	o.ClientName, o.PoolSize, o.PipelinePoolSize = adminName, 1, -1
	o.DialerRetries, o.MaxRetries = 1, -1
	o.ContextTimeoutEnabled = true
	return o
}

// do runs one command on s on behalf of this package. On a miniredis it uses no
// connection, so that it does not change the number of connections.
func (s *Server) do(ctx context.Context, args ...string) (any, error) {
	if s.mini != nil {
		return s.doMini(args)
	}
	rdb := redis.NewClient(adminOptions(s.addr))
	defer func() { _ = rdb.Close() }()
	all := make([]any, len(args))
	for i, arg := range args {
		all[i] = arg
	}
	return rdb.Do(ctx, all...).Result()
}

func (s *Server) doMini(args []string) (any, error) {
	srv := s.mini.Server()
	if srv == nil {
		return nil, errStopped
	}
	var reply bytes.Buffer
	w := bufio.NewWriter(&reply)
	srv.Dispatch(server.NewPeer(w), args)
	if err := w.Flush(); err != nil {
		return nil, err
	}
	return server.ParseReply(bufio.NewReader(&reply))
}

// Miniredis starts a miniredis with a running clock (see the package comment)
// and closes it when t ends.
func Miniredis(t testing.TB) *Server {
	t.Helper()
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	skew(t, m)
	if err := startMini(m); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	calls := newCallCounter()
	m.Server().SetPreHook(calls.hook)
	return &Server{name: "miniredis", addr: m.Addr(), mini: m, calls: calls}
}

func startMini(m *miniredis.Miniredis) error {
	var failures error
	for range startAttempts {
		ports, err := freePorts(1)
		if err != nil {
			return err
		}
		if err = m.StartAddr(loopback(ports[0])); err == nil {
			return nil
		}
		failures = errors.Join(failures, err)
	}
	return failures
}

// Embedded starts a miniredis without a listener, for use inside a synctest
// bubble, and closes it when t ends. t must be the bubble's own, because its
// cleanups run in the bubble. Make clients with Client, or from Options; close
// the latter before the bubble ends.
func Embedded(t testing.TB) *Server {
	s := NewEmbedded()
	t.Cleanup(s.Close)
	return s
}

// NewEmbedded is like Embedded for a caller without a testing.TB of the bubble.
// The caller calls Close in the bubble, after it has closed its clients.
func NewEmbedded() *Server {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	calls := newCallCounter()
	var hook sync.Once
	dial := func() (net.Conn, error) {
		conn, err := m.Dial()
		if err != nil {
			return nil, err
		}
		hook.Do(func() { m.Server().SetPreHook(calls.hook) }) // Server is nil before the first Dial
		return newBuffered(conn), nil
	}
	return &Server{name: "embedded", mini: m, dial: dial, calls: calls}
}

// Close stops the server. It does nothing for a shared server and on further
// calls. A server that was started with a testing.TB is closed without it.
func (s *Server) Close() {
	switch {
	case s.mini != nil:
		s.mini.Close()
	case !s.shared:
		_ = s.proc.stop()
	}
}

// Pid returns the process id of a redis-server. It is 0 if the server is not
// running, and for a miniredis.
func (s *Server) Pid() int {
	if s.proc == nil {
		return 0
	}
	pid, _, _ := s.proc.running()
	return pid
}

// ownProcess returns the process of a server that is not shared with other tests.
func (s *Server) ownProcess() (*process, error) {
	switch {
	case s.proc == nil:
		return nil, fmt.Errorf("redistest: %s is not a process", s.name)
	case s.shared:
		return nil, errors.New("redistest: the server is shared with other tests; use Fresh")
	}
	return s.proc, nil
}

// Pause suspends the process (SIGSTOP). Its connections stay open and the kernel
// accepts new ones, but the server does not answer. Pause, Resume, Kill and
// Restart return an error for a miniredis and for a shared server.
func (s *Server) Pause() error { return s.signal(pauseProcess, true) }

// Resume continues a paused process (SIGCONT).
func (s *Server) Resume() error { return s.signal(resumeProcess, false) }

func (s *Server) signal(send func(pid int) error, paused bool) error {
	p, err := s.ownProcess()
	if err != nil {
		return err
	}
	pid, _, err := p.running()
	if err != nil {
		return err
	}
	s.paused.Store(paused)
	return send(pid)
}

// Kill kills the process (SIGKILL) and waits until it has exited. It does
// nothing if the process is not running.
func (s *Server) Kill() error {
	p, err := s.ownProcess()
	if err != nil {
		return err
	}
	return p.stop()
}

// Restart kills the process if it runs, starts it again on the same port, and
// waits until it answers. The data is lost unless the server was started with
// persistence, such as by Fresh(t, "--appendonly", "yes").
func (s *Server) Restart() error {
	p, err := s.ownProcess()
	if err != nil {
		return err
	}
	if err := p.stop(); err != nil {
		return err
	}
	s.paused.Store(false)
	return s.start()
}
