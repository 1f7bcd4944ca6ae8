package redisutil

import (
	"bytes"
	"crypto/tls"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Conns contains the open connections of a go-redis client that were passed to Wrap. The zero Conns
// is empty. It is safe for concurrent use.
type Conns struct {
	mu   sync.Mutex
	open map[*conn]struct{}
}

// Wrap returns nc as a connection that can be interrupted, and whose deadlines work. It has the
// methods that go-redis looks for.
func (cs *Conns) Wrap(nc net.Conn) net.Conn {
	c := &conn{Conn: nc, of: cs}
	if !keepsDeadlines(nc) {
		c.patched.Store(newPatched(nc))
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.open == nil {
		cs.open = map[*conn]struct{}{}
	}
	cs.open[c] = struct{}{}
	if c.patched.Load() != nil {
		return c
	}
	if raw, ok := nc.(syscall.Conn); ok { // go-redis uses it to find closed connections and pushes
		return &rawConn{c, raw}
	}
	if layered, ok := nc.(interface{ NetConn() net.Conn }); ok {
		return &layeredConn{c, layered}
	}
	return c
}

// Interrupt ends what is under way on the connections whose deadlines have that location.
func (cs *Conns) Interrupt(location *time.Location) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for c := range cs.open {
		if c.location.Load() == location {
			_ = c.setDeadline(longAgo)
		}
	}
}

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)

// conn is a connection of a go-redis client.
type conn struct {
	net.Conn
	of       *Conns
	location atomic.Pointer[time.Location] // the latest deadline's location
	patched  atomic.Pointer[patched]       // nil if Conn's own deadlines work
}

type rawConn struct {
	*conn
	syscall.Conn
}

type layeredConn struct {
	*conn
	layered interface{ NetConn() net.Conn }
}

// NetConn returns the underlying connection.
func (c *layeredConn) NetConn() net.Conn { return c.layered.NetConn() }

func (c *conn) Read(p []byte) (int, error) {
	if s := c.patched.Load(); s != nil {
		return s.read(p)
	}
	return c.Conn.Read(p)
}

func (c *conn) Write(p []byte) (int, error) {
	if s := c.patched.Load(); s != nil {
		return s.write(p)
	}
	return c.Conn.Write(p)
}

func (c *conn) SetDeadline(t time.Time) error {
	c.location.Store(t.Location())
	return c.setDeadline(t)
}

func (c *conn) setDeadline(t time.Time) error {
	if s := c.patched.Load(); s != nil {
		s.reads.until.set(t)
		s.writes.until.set(t)
		return nil
	}
	return c.Conn.SetDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.location.Store(t.Location())
	if s := c.patched.Load(); s != nil {
		s.reads.until.set(t)
		return nil
	}
	return c.Conn.SetReadDeadline(t)
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.location.Store(t.Location())
	if s := c.patched.Load(); s != nil {
		s.writes.until.set(t)
		return nil
	}
	return c.Conn.SetWriteDeadline(t)
}

func (c *conn) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	if s := c.patched.Load(); s != nil {
		return s.close()
	}
	return c.Conn.Close()
}

// keepsDeadlines reports whether a connection's deadlines are known to work. On an application's
// own type they may fail or do nothing, as on an SSH channel.
func keepsDeadlines(nc net.Conn) bool {
	switch c := nc.(type) {
	case *net.TCPConn, *net.UnixConn:
		return true
	case *tls.Conn:
		return keepsDeadlines(c.NetConn())
	case *conn:
		return true
	}
	return false
}

// WithDeadlines returns nc, or, if nc's deadlines may not work, a connection over nc with deadlines
// that do.
func WithDeadlines(nc net.Conn) net.Conn {
	if keepsDeadlines(nc) {
		return nc
	}
	return new(Conns).Wrap(nc)
}

// patched gives deadlines to a connection that has none. Another goroutine reads and writes, and
// goes on after the deadline has passed. The data that it reads then is kept for the next read.
type patched struct {
	nc     net.Conn
	closed chan struct{}
	once   sync.Once

	reads, writes half
	rest          bytes.Buffer // data that was read but not yet delivered
}

// half is one direction of a connection. mu is held while a caller waits.
type half struct {
	mu    sync.Mutex
	until expiry
	busy  chan transfer // gets the result of the read or write under way; nil if there is none
}

// transfer is the result of a read or a write.
type transfer struct {
	data []byte
	n    int
	err  error
}

const (
	patchedBuffer = 32 << 10
	// closeLimit is how long close waits for the connection's own Close, which may be stuck.
	closeLimit = 50 * time.Millisecond
)

func newPatched(nc net.Conn) *patched { return &patched{nc: nc, closed: make(chan struct{})} }

func (s *patched) read(p []byte) (int, error) {
	s.reads.mu.Lock()
	defer s.reads.mu.Unlock()
	if s.rest.Len() > 0 {
		return s.rest.Read(p)
	}
	if len(p) == 0 {
		return 0, nil
	}
	got, err := s.transfer(&s.reads, func() transfer {
		data := make([]byte, min(max(len(p), 512), patchedBuffer))
		n, err := s.nc.Read(data)
		return transfer{data[:n], n, err}
	})
	if err != nil {
		return 0, err
	}
	n := copy(p, got.data)
	s.rest.Write(got.data[n:])
	if n > 0 {
		return n, nil // the next read returns the error again
	}
	return 0, got.err
}

func (s *patched) write(p []byte) (int, error) {
	s.writes.mu.Lock()
	defer s.writes.mu.Unlock()
	if s.writes.busy != nil {
		return 0, os.ErrDeadlineExceeded // an earlier write is stuck
	}
	data := bytes.Clone(p) // p belongs to the caller again when the deadline has passed
	done, err := s.transfer(&s.writes, func() transfer {
		n, err := s.nc.Write(data)
		return transfer{nil, n, err}
	})
	if err != nil {
		return 0, err
	}
	return done.n, done.err
}

// transfer begins f, unless an earlier one is under way, and waits for the result, the deadline or
// the close.
func (s *patched) transfer(h *half, f func() transfer) (transfer, error) {
	over := h.until.wait()
	select {
	case <-over:
		return transfer{}, os.ErrDeadlineExceeded
	case <-s.closed:
		return transfer{}, net.ErrClosed
	default:
	}
	if h.busy == nil {
		busy := make(chan transfer, 1)
		h.busy = busy
		go func() { busy <- f() }()
	}
	for {
		select {
		case got := <-h.busy:
			h.busy = nil
			return got, nil
		case <-s.closed:
			return transfer{}, net.ErrClosed
		case <-over:
			if h.until.passed() {
				return transfer{}, os.ErrDeadlineExceeded
			}
			over = h.until.wait() // the deadline was moved
		}
	}
}

// close closes the connection. It does not wait for long if that blocks.
func (s *patched) close() (err error) {
	s.once.Do(func() {
		close(s.closed)
		done := make(chan error, 1)
		go func() { done <- s.nc.Close() }()
		timer := time.NewTimer(closeLimit)
		defer timer.Stop()
		select {
		case err = <-done:
		case <-timer.C:
		}
		s.reads.until.set(time.Time{})
		s.writes.until.set(time.Time{})
	})
	return err
}

// expiry is a deadline that may be moved while somebody waits for it.
type expiry struct {
	mu    sync.Mutex
	until time.Time
	timer *time.Timer
	over  chan struct{} // closed when the deadline has passed or was moved
}

func (e *expiry) set(t time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.timer != nil {
		e.timer.Stop()
		e.timer = nil
	}
	if e.over != nil {
		close(e.over)
		e.over = nil
	}
	e.until = t
}

// wait returns a channel that is closed when the deadline has passed or was moved. Without a
// deadline, it is closed when one is set.
func (e *expiry) wait() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over == nil {
		over := make(chan struct{})
		e.over = over
		if !e.until.IsZero() {
			left := time.Until(e.until)
			if left <= 0 {
				close(over)
				e.over = nil
				return over
			}
			e.timer = time.AfterFunc(left, func() {
				e.mu.Lock()
				defer e.mu.Unlock()
				if e.over == over {
					close(over)
					e.over = nil
				}
			})
		}
	}
	return e.over
}

func (e *expiry) passed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.until.IsZero() && !time.Now().Before(e.until)
}
