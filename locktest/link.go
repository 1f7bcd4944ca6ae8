package locktest

import (
	"context"
	"net"
	"sync"
)

// Dial opens a connection, as [redis.Options].Dialer does.
type Dial func(ctx context.Context, network, addr string) (net.Conn, error)

// Link is a network path between a client and its server that can be cut and mended. Set the
// client's Dialer to [Link.Dial].
//
// A cut link behaves like a network that drops packets. Nothing passes in either direction and no
// side gets an error: connections stay open, and dials get no answer. Data sent meanwhile arrives
// when the link is mended, unless the client has closed the connection by then.
//
// A Link is safe for concurrent use. A new Link is mended.
type Link struct {
	dial Dial

	mu   sync.Mutex
	open chan struct{} // closed while the link is mended; Cut replaces it with an open one
}

// NewLink returns a link over dial. The usual dial is [redis.NewDialer].
func NewLink(dial Dial) *Link {
	l := &Link{dial: dial, open: make(chan struct{})}
	close(l.open)
	return l
}

// Cut stops all traffic. Data that is being written during the call may still arrive.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isMended() {
		l.open = make(chan struct{})
	}
}

// Mend resumes all traffic.
func (l *Link) Mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.isMended() {
		close(l.open)
	}
}

// isMended reports whether open is closed. mu is held.
func (l *Link) isMended() bool {
	select {
	case <-l.open:
		return true
	default:
		return false
	}
}

// waitMended waits until the link is mended or done is closed. It reports whether the link is
// mended.
func (l *Link) waitMended(done <-chan struct{}) bool {
	// The select must not hold mu, because Mend needs it. A Cut after the unlock has no effect on
	// this call: the doc of Cut allows data in flight to arrive.
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

// Dial opens a connection over the link. While the link is cut, Dial waits until ctx is done.
func (l *Link) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if !l.waitMended(ctx.Done()) {
		return nil, context.Cause(ctx)
	}
	far, err := l.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	// The client gets one end of a pipe. A pipe needs no socket, so the link works in a bubble.
	user, near := net.Pipe()
	return &conn{user, l.connect(near, far)}, nil
}

// conn is the client's end of a connection over a link.
type conn struct {
	net.Conn
	relay *connection
}

// Close closes the connection and waits for its goroutines. A bubble, and a leak detector, require
// that no goroutine outlives the client.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.relay.close()
	return err
}

// connection forwards data between its two ends while the link is mended.
//
// Each direction has two goroutines, joined by an unbounded queue: one reads, the other writes. So
// the sender never waits for the receiver. A server must not block on a client that is cut off.
type connection struct {
	link      *Link
	near, far net.Conn
	once      sync.Once
	done      chan struct{}  // closed by end
	copying   sync.WaitGroup // the four goroutines
}

func (l *Link) connect(near, far net.Conn) *connection {
	c := &connection{link: l, near: near, far: far, done: make(chan struct{})}
	c.copy(near, far)
	c.copy(far, near)
	return c
}

// copy starts the goroutines that forward data from one end to the other.
func (c *connection) copy(from, to net.Conn) {
	q := &queue{filled: make(chan struct{}, 1)}
	c.copying.Go(func() {
		// Ends at the next failed read, also when end closes from. The writer then drains the
		// queue.
		defer q.close()
		buf := make([]byte, 32<<10)
		for {
			n, err := from.Read(buf)
			q.put(buf[:n])
			if err != nil {
				return
			}
		}
	})
	c.copying.Go(func() {
		// When one direction ends, the whole connection ends, as with a socket that is closed.
		defer c.end()
		for {
			data, ok := q.take(c.done)
			// Wait after the take: the link may be cut while take waits for data.
			if !ok || !c.link.waitMended(c.done) {
				return
			}
			if _, err := to.Write(data); err != nil {
				return
			}
		}
	})
}

// end closes both ends, which stops the goroutines. It does not wait for them.
func (c *connection) end() {
	c.once.Do(func() {
		close(c.done)
		_ = c.near.Close()
		_ = c.far.Close()
	})
}

// close ends the connection and waits for its goroutines.
func (c *connection) close() {
	c.end()
	c.copying.Wait()
}

// queue holds data that was read but not yet written. One goroutine calls take. Another one calls
// put, and close at the end.
type queue struct {
	filled chan struct{} // capacity 1: signals coalesce, and put never blocks

	mu     sync.Mutex
	data   []byte
	closed bool // no more data will be put
}

// put appends a copy of p. It never blocks.
func (q *queue) put(p []byte) {
	q.mu.Lock()
	q.data = append(q.data, p...)
	q.mu.Unlock()
	q.wake()
}

func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.wake()
}

// wake signals take. If a signal is already pending, take will see the new state with it.
func (q *queue) wake() {
	select {
	case q.filled <- struct{}{}:
	default:
	}
}

// take waits for data and returns all of it. It returns false if the queue is closed and empty, or
// if done is closed first.
func (q *queue) take(done <-chan struct{}) ([]byte, bool) {
	for {
		q.mu.Lock()
		data, closed := q.data, q.closed
		q.data = nil
		q.mu.Unlock()
		// Return the remaining data of a closed queue first. The next call then returns false.
		if len(data) > 0 || closed {
			return data, len(data) > 0
		}
		select {
		case <-q.filled:
		case <-done:
			return nil, false
		}
	}
}
