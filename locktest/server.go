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

// Server is a Redis inside this process: a miniredis whose clock runs. Its methods are safe for concurrent use.
type Server struct {
	mini *miniredis.Miniredis
	link *Link // everybody's way to the server

	watching sync.Mutex // held while Lose uses the miniredis's hook

	mu       sync.Mutex
	closed   bool
	listener net.Listener // nil until Addr is asked for
	accepted map[*connection]struct{}
	serving  sync.WaitGroup
}

// NewServer starts a server that ends with t.
func NewServer(t testing.TB) *Server {
	t.Helper()
	s := Start()
	t.Cleanup(s.Close)
	return s
}

// Start starts a server for a caller without a testing.TB, who ends it by [Server.Close].
func Start() *Server {
	s := &Server{mini: miniredis.NewMiniRedis(), accepted: map[*connection]struct{}{}}
	s.mini.ClockTTL(true)
	s.link = NewLink(s.dial)
	return s
}

var errStopped = errors.New("locktest: the server is closed")

func (s *Server) dial(context.Context, string, string) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errStopped
	}
	return s.mini.Dial()
}

// Client returns a client of the server that is closed when t ends; tweaks change its options first.
//
// Between it and the server there is no socket, so that both work in a testing/synctest bubble, if both are made there: with the bubble's own t,
// whose cleanups run in the bubble.
func (s *Server) Client(t testing.TB, tweaks ...func(*redis.Options)) *redis.Client {
	t.Helper()
	o := s.Options()
	for _, tweak := range tweaks {
		tweak(o)
	}
	rdb := redis.NewClient(o)
	t.Cleanup(func() { _ = rdb.Close() }) // the test may have closed it
	return rdb
}

// Options returns fresh options for a client of the server, for the caller to change. Clients are to be closed before the server.
func (s *Server) Options() *redis.Options {
	return &redis.Options{
		Addr:   "127.0.0.1:0", // never dialled
		Dialer: s.link.Dial,
		// A wait for a connection would use timers that go-redis shares between clients, and so between bubbles.
		PoolSize: 1000, PipelinePoolSize: 1000,
		// The server sends none; asking for them would resolve names outside of a bubble.
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// Addr is a host:port on the loopback interface where the server can be reached by whoever dials for himself: another process, or
// code that makes its own client. It listens from the first call on. Not for use in a bubble. It panics if no port can be had.
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

// accept serves those who come to l until it is closed.
func (s *Server) accept(l net.Listener) {
	for {
		near, err := l.Accept()
		if err != nil {
			return
		}
		s.serve(near)
	}
}

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
	s.serving.Go(func() {
		<-c.done
		c.close()
		s.mu.Lock()
		delete(s.accepted, c)
		s.mu.Unlock()
	})
}

// Close ends the server. It may be called again.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	if s.listener != nil {
		_ = s.listener.Close()
	}
	for c := range s.accepted {
		c.end()
	}
	s.mu.Unlock()
	s.mini.Close()
	s.serving.Wait()
}

// Partition cuts all clients off from the server (true), or lets them reach it again (false); see [Link]. A hold that is
// renewed is told of its loss when its validity ends, and its key expires on the server shortly after.
func (s *Server) Partition(on bool) {
	if on {
		s.link.Cut()
	} else {
		s.link.Mend()
	}
}
