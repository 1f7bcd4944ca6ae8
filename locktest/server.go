package locktest

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Server is an in-process Redis server: a miniredis with a running clock. Its methods are safe for
// concurrent use.
type Server struct {
	mini *miniredis.Miniredis
	link *Link // shared by all clients, so that Partition affects all of them

	// hookMu serializes the use of the single pre-hook of miniredis.
	hookMu sync.Mutex

	mu       sync.Mutex
	closed   bool
	listener net.Listener // nil until the first call of Addr
	accepted map[*connection]struct{}
	serving  sync.WaitGroup // the accept loop, and one goroutine for each accepted connection
}

// NewServer starts a server and closes it when t ends. The link is mended as soon as the test
// function returns, so that cleanups need not wait for answers.
func NewServer(t testing.TB) *Server {
	t.Helper()
	s := Start()
	context.AfterFunc(t.Context(), s.link.Mend) // before the cleanups of t
	t.Cleanup(s.Close)
	return s
}

// Start starts a server for a caller without a testing.TB. The caller closes it with
// [Server.Close].
func Start() *Server {
	s := &Server{mini: miniredis.NewMiniRedis(), accepted: map[*connection]struct{}{}}
	s.mini.ClockTTL(true)
	s.link = NewLink(s.dial)
	return s
}

var errServerClosed = errors.New("locktest: server closed")

// dial connects to the miniredis directly. It bypasses the link.
func (s *Server) dial(context.Context, string, string) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errServerClosed
	}
	return s.mini.Dial()
}

// Client returns a client of the server and closes it when t ends. The tweaks change its options
// before it is made.
//
// Client and server communicate without a socket, so both work in a testing/synctest bubble. Make
// both inside the bubble and pass the bubble's own t, because its cleanups run in the bubble.
func (s *Server) Client(t testing.TB, tweaks ...func(*redis.Options)) *redis.Client {
	t.Helper()
	o := s.Options()
	for _, tweak := range tweaks {
		tweak(o)
	}
	rdb := redis.NewClient(o)
	t.Cleanup(func() { _ = rdb.Close() }) // fails if the test has closed the client already
	return rdb
}

// Options returns new options for a client of the server. The caller may change them, and must
// close the client before the server.
func (s *Server) Options() *redis.Options {
	return &redis.Options{
		Addr:   "127.0.0.1:0", // never dialled
		Dialer: s.link.Dial,
		// The pool must never run out of connections. A wait for one would use timers that go-redis
		// shares between clients, and a timer must not be shared between bubbles.
		PoolSize: 1000, PipelinePoolSize: 1000,
		// The pool dials in goroutines that it does not wait for. The clock of a bubble stops when
		// the test ends, so a goroutine that sleeps before it dials again would never end.
		DialerRetries: 1,
		// The server sends no such notifications. Asking for them would resolve a host name, which
		// blocks on I/O outside of the bubble.
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// Addr returns a host:port on the loopback interface at which the server is reachable. Use it for
// another process, or for code that makes its own client. The server listens from the first call
// on. Addr does not work in a bubble. It panics if it cannot listen.
func (s *Server) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener == nil {
		var config net.ListenConfig
		l, err := config.Listen(context.Background(), "tcp", "127.0.0.1:0")
		if err != nil {
			panic("locktest: " + err.Error())
		}
		s.listener = l
		s.serving.Go(func() { s.accept(l) })
	}
	return s.listener.Addr().String()
}

// accept serves the connections of l until l is closed.
func (s *Server) accept(l net.Listener) {
	for {
		near, err := l.Accept()
		if err != nil {
			return
		}
		s.serve(near)
	}
}

// serve connects an accepted connection to the miniredis, over the link.
func (s *Server) serve(near net.Conn) {
	far, err := s.dial(context.Background(), "", "")
	if err != nil {
		_ = near.Close()
		return
	}
	c := s.link.connect(near, far)
	s.mu.Lock()
	s.accepted[c] = struct{}{}
	s.mu.Unlock()
	// serve runs in the accept loop. serving counts the loop, so Close cannot have passed
	// serving.Wait.
	s.serving.Go(func() {
		<-c.done
		c.close()
		s.mu.Lock()
		delete(s.accepted, c)
		s.mu.Unlock()
	})
}

// Close mends the link, stops the server and closes all connections. Further calls do nothing.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true // dial fails from now on
	s.link.Mend()   // dials that wait for it end
	if s.listener != nil {
		_ = s.listener.Close()
	}
	for c := range s.accepted {
		c.end()
	}
	s.mu.Unlock()
	// mu is unlocked here because the goroutines counted by serving need it to return. Closing the
	// miniredis also ends a connection that serve has dialled but not yet added to accepted.
	s.mini.Close()
	s.serving.Wait()
}

// Partition cuts all clients off from the server (true), or reconnects them (false); see [Link]. A
// renewed hold reports its loss when its validity ends. Its key expires on the server shortly
// after.
func (s *Server) Partition(on bool) {
	if on {
		s.link.Cut()
	} else {
		s.link.Mend()
	}
}
