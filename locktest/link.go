package locktest

import (
	"context"
	"net"
	"sync"
)

// Dial opens a connection, as [redis.Options].Dialer does.
type Dial func(ctx context.Context, network, addr string) (net.Conn, error)

// Link is a client's way to its server, which can be cut and mended: give its [Link.Dial] to the client as its Dialer.
//
// While the link is cut nothing passes, in either direction, and nobody is told: connections stay open and new ones are not
// answered, as when a network swallows packets. What was sent meanwhile arrives when the link is mended, unless the client has
// given up the connection by then. A Link is safe for concurrent use, and starts mended.
type Link struct {
	dial Dial

	mu   sync.Mutex
	open chan struct{} // closed while the link is mended
}

// NewLink makes a link over dial; [redis.NewDialer] makes the usual one.
func NewLink(dial Dial) *Link {
	l := &Link{dial: dial, open: make(chan struct{})}
	close(l.open)
	return l
}

// Cut lets nothing pass from now on. What is passing this very moment may still arrive.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mended() {
		l.open = make(chan struct{})
	}
}

// Mend lets everything pass again.
func (l *Link) Mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.mended() {
		close(l.open)
	}
}

// mended tells whether open is closed. The caller holds mu.
func (l *Link) mended() bool {
	select {
	case <-l.open:
		return true
	default:
		return false
	}
}

// pass waits until the link is mended, and tells whether that came before done.
func (l *Link) pass(done <-chan struct{}) bool {
	l.mu.Lock()
	open := l.open
	l.mu.Unlock()
	select {
	case <-open:
		return true
	case <-done:
		return false
	}
}

// Dial opens a connection over the link. While it is cut, Dial waits until ctx is done.
func (l *Link) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if !l.pass(ctx.Done()) {
		return nil, context.Cause(ctx)
	}
	far, err := l.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	user, near := net.Pipe()
	return &conn{user, l.connect(near, far)}, nil
}

// conn is the client's end of a connection over a link.
type conn struct {
	net.Conn
	between *connection
}

// Close closes the connection and waits for its goroutines.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.between.close()
	return err
}

// connection passes on what comes at either end to the other one.
type connection struct {
	link      *Link
	near, far net.Conn
	once      sync.Once
	done      chan struct{} // closed when it ends
	flows     sync.WaitGroup
}

func (l *Link) connect(near, far net.Conn) *connection {
	c := &connection{link: l, near: near, far: far, done: make(chan struct{})}
	c.flow(near, far)
	c.flow(far, near)
	return c
}

// flow passes on what comes from one end to the other one. The one who writes never waits for the one who reads, as the queue takes all there is:
// a server must not wait for a client that is cut off.
func (c *connection) flow(from, to net.Conn) {
	q := &queue{filled: make(chan struct{}, 1)}
	c.flows.Go(func() {
		defer q.seal()
		buf := make([]byte, 32<<10)
		for {
			n, err := from.Read(buf)
			q.put(buf[:n])
			if err != nil {
				return
			}
		}
	})
	c.flows.Go(func() {
		defer c.end()
		for {
			data, ok := q.take(c.done)
			if !ok || !c.link.pass(c.done) {
				return
			}
			if _, err := to.Write(data); err != nil {
				return
			}
		}
	})
}

// end closes both ends; the goroutines end by it.
func (c *connection) end() {
	c.once.Do(func() {
		close(c.done)
		_ = c.near.Close()
		_ = c.far.Close()
	})
}

func (c *connection) close() {
	c.end()
	c.flows.Wait()
}

// queue holds what was read and is not written yet.
type queue struct {
	filled chan struct{} // capacity 1: one nudge is enough

	mu     sync.Mutex
	data   []byte
	sealed bool // nothing more will come
}

func (q *queue) put(p []byte) {
	q.mu.Lock()
	q.data = append(q.data, p...)
	q.mu.Unlock()
	q.nudge()
}

func (q *queue) seal() {
	q.mu.Lock()
	q.sealed = true
	q.mu.Unlock()
	q.nudge()
}

func (q *queue) nudge() {
	select {
	case q.filled <- struct{}{}:
	default:
	}
}

// take waits for data and takes it all; false: there will be none, or done came first.
func (q *queue) take(done <-chan struct{}) ([]byte, bool) {
	for {
		q.mu.Lock()
		data, sealed := q.data, q.sealed
		q.data = nil
		q.mu.Unlock()
		if len(data) > 0 || sealed {
			return data, len(data) > 0
		}
		select {
		case <-q.filled:
		case <-done:
			return nil, false
		}
	}
}
