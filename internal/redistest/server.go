package redistest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
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
	shared bool     // used by other tests too: its process is not to be touched
	proc   *process // a redis-server, else nil
	mini   *miniredis.Miniredis
	dial   func() (net.Conn, error) // only for a server without a listener
	calls  *callCounter             // miniredis does not count itself
}

// Name says what kind of server it is: "miniredis", "embedded", "redis",
// "replica", "cluster" or "sentinel". It suits subtests.
func (s *Server) Name() string { return s.name }

// Addr is the host:port the server listens on; empty for Embedded, which can
// only be reached by way of Options.
func (s *Server) Addr() string { return s.addr }

// Mini is the miniredis behind s, nil for a redis-server. Its SetError stops
// the counting that Commands relies on.
func (s *Server) Mini() *miniredis.Miniredis { return s.mini }

// Options returns fresh client options for s, for the caller to change. They are
// the defaults of go-redis, without maintenance notifications; for Embedded
// they are also fit for a synctest bubble.
func (s *Server) Options() *redis.Options {
	if s.dial == nil {
		return options(s.addr)
	}
	return pipeOptions(s.dial)
}

// Client returns a client of s that is closed when t ends. The tweaks change
// its options first.
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

// options returns the options for a server on addr. Maintenance notifications
// would add a command to every handshake, and none of our servers sends any.
func options(addr string) *redis.Options {
	return &redis.Options{
		Addr:                     addr,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// pipeOptions returns options fit for a synctest bubble. The pool is larger
// than any test needs, because a wait for a connection uses timers that
// go-redis shares between clients, and with that between bubbles; Addr is
// numeric, because names are resolved outside of the bubble.
func pipeOptions(dial func() (net.Conn, error)) *redis.Options {
	o := options("127.0.0.1:0")
	o.Dialer = func(context.Context, string, string) (net.Conn, error) { return dial() }
	o.PoolSize, o.PipelinePoolSize = 1000, 1000
	return o
}

// adminName marks our own connections, which Connections does not count.
const adminName = "redistest"

func adminOptions(addr string) *redis.Options {
	o := options(addr)
	o.ClientName, o.PoolSize, o.PipelinePoolSize = adminName, 1, -1
	o.DialerRetries, o.MaxRetries = 1, -1
	return o
}

// do runs one command on s for ourselves: miniredis is asked directly, so that
// no connection shows up in what the test counts.
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

// Miniredis starts a miniredis on a port of its own, with a running clock (see
// the package comment). It ends with t.
func Miniredis(t testing.TB) *Server {
	t.Helper()
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
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
// bubble: t is the bubble's own, whose cleanups run in the bubble. Clients of s
// are made by Client, or from Options and then closed before the bubble ends.
func Embedded(t testing.TB) *Server {
	s := NewEmbedded()
	t.Cleanup(s.Close)
	return s
}

// NewEmbedded is Embedded for a caller without a testing.TB of the bubble; it
// calls Close itself, in the bubble, after its clients.
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
		hook.Do(func() { m.Server().SetPreHook(calls.hook) })
		return newBuffered(conn), nil
	}
	return &Server{name: "embedded", mini: m, dial: dial, calls: calls}
}

// Close stops the server, a shared one excepted. It may be called again, and
// need not be called at all where the constructor was given a testing.TB.
func (s *Server) Close() {
	switch {
	case s.mini != nil:
		s.mini.Close()
	case !s.shared:
		_ = s.proc.stop()
	}
}

// Pid is the process id of a redis-server; 0 when it is not running, or for
// miniredis.
func (s *Server) Pid() int {
	if s.proc == nil {
		return 0
	}
	pid, _, _ := s.proc.running()
	return pid
}

// own returns the process of a server that belongs to one test alone.
func (s *Server) own() (*process, error) {
	switch {
	case s.proc == nil:
		return nil, fmt.Errorf("redistest: %s is no process", s.name)
	case s.shared:
		return nil, errors.New("redistest: the server is shared with other tests; use Fresh")
	}
	return s.proc, nil
}

// Pause stops the process as it is (SIGSTOP): its connections stay open and
// new ones are still accepted by the kernel, but nothing answers. It fails for
// miniredis and for shared servers, as Resume, Kill and Restart do.
func (s *Server) Pause() error { return s.signal(pauseProcess) }

// Resume lets a paused process go on (SIGCONT).
func (s *Server) Resume() error { return s.signal(resumeProcess) }

func (s *Server) signal(send func(pid int) error) error {
	p, err := s.own()
	if err != nil {
		return err
	}
	pid, _, err := p.running()
	if err != nil {
		return err
	}
	return send(pid)
}

// Kill ends the process at once (SIGKILL) and waits until it is gone. Killing a
// dead server does nothing.
func (s *Server) Kill() error {
	p, err := s.own()
	if err != nil {
		return err
	}
	return p.stop()
}

// Restart starts the process again on the same port, killing it first if it
// runs, and waits until it answers. Its data are lost unless it was started
// with persistence, as by Fresh(t, "--appendonly", "yes").
func (s *Server) Restart() error {
	p, err := s.own()
	if err != nil {
		return err
	}
	if err := p.stop(); err != nil {
		return err
	}
	return s.start()
}
