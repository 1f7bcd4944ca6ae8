package simnet

import (
	"io"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/redlatch/redlatch/internal/test/memredis"
)

// link is a connection. All of it is guarded by Net.mu.
type link struct {
	n      *Net
	number int
	client *Client
	server *Server
	route  *Route
	redis  *memredis.Conn
	under  [2][]chunk   // data on its way, in order
	due    [2]time.Time // of the latest
	heldBy []*Rule      // whose replies wait
	input  []byte       // of the server: not executed yet
	hungUp bool         // the client has closed its side
	broken bool

	received []byte        // what the client has not read yet
	failed   error         // of the client's reads, after all of received
	wake     chan struct{} // capacity 1: the client's reader should look again
	deadline time.Time     // of reads
	timer    *time.Timer
}

// chunk is what was written at once.
type chunk struct {
	data []byte
	due  time.Time
	end  bool // the end of the data
}

// connect opens a connection. n.mu is held.
func (c *Client) connect(s *Server) net.Conn {
	n := c.n
	n.last++
	l := &link{n: n, number: n.last, client: c, server: s, route: c.routes[s], wake: make(chan struct{}, 1)}
	l.redis = s.redis.NewConn(func(data []byte) {
		if !l.route.silent.isOn() || !isMessage(data) {
			l.send(ToClient, chunk{data: data})
		}
	})
	n.links = append(n.links, l)
	return &conn{l}
}

// isMessage reports whether a push is a message, and no confirmation.
func isMessage(push []byte) bool {
	text := string(push[:min(len(push), 40)])
	return len(text) > 4 && (contains(text, "\r\nmessage\r\n") || contains(text, "\r\nsmessage\r\n"))
}

func contains(text, part string) bool {
	for i := range len(text) - len(part) + 1 {
		if text[i:i+len(part)] == part {
			return true
		}
	}
	return false
}

// send puts data on its way.
func (l *link) send(direction int, c chunk) {
	now := time.Now()
	c.due = now.Add(l.n.delay() + l.route.delays[direction])
	if c.due.Before(l.due[direction]) {
		c.due = l.due[direction]
	}
	l.due[direction] = c.due
	l.under[direction] = append(l.under[direction], c)
	time.AfterFunc(c.due.Sub(now), func() {
		l.n.lock()
		defer l.n.unlock()
		l.deliver(direction)
	})
}

// deliver delivers what is due, unless it is held back.
func (l *link) deliver(direction int) {
	now := time.Now()
	for len(l.under[direction]) > 0 && !l.isHeld(direction) {
		c := l.under[direction][0]
		if c.due.After(now) {
			return
		}
		l.under[direction] = l.under[direction][1:]
		l.n.note(l.number, direction, c.data)
		if direction == ToServer {
			l.arrive(c)
		} else {
			l.received = append(l.received, c.data...)
			l.wakeUp()
		}
	}
}

func (l *link) isHeld(direction int) bool {
	return l.broken || l.route.held[direction].isOn() || direction == ToClient && len(l.heldBy) > 0
}

// arrive takes what has come to the server.
func (l *link) arrive(c chunk) {
	l.input = append(l.input, c.data...)
	l.execute()
	if c.end && !l.server.stalled.isOn() {
		l.remove()
	}
}

// execute executes the commands that have arrived.
func (l *link) execute() {
	for !l.broken && !l.server.stalled.isOn() {
		args, size, err := memredis.ReadCommand(l.input)
		if err != nil {
			l.reset()
			return
		}
		if size == 0 {
			break
		}
		l.input = l.input[size:]
		l.do(args)
	}
	if l.hungUp && len(l.under[ToServer]) == 0 && !l.server.stalled.isOn() {
		l.remove()
	}
}

// do executes a command, with the faults that rules make.
func (l *link) do(args []string) {
	effect := Pass
	for _, rule := range slices.Clone(l.route.rules) {
		if !rule.Match(args) {
			continue
		}
		switch rule.Effect {
		case Pass:
		case LoseCommand:
			l.reset()
			return
		case Late:
			l.route.executeLate(rule, args)
			l.reset()
			return
		case LoseReply:
			effect = LoseReply
		case HoldReply:
			l.heldBy = append(l.heldBy, rule)
			rule.links = append(rule.links, l)
		}
	}
	reply := l.server.execute(l.redis, args)
	if effect == LoseReply {
		l.reset()
		return
	}
	l.send(ToClient, chunk{data: reply})
}

// reset breaks the connection for both sides.
func (l *link) reset() {
	if l.broken {
		return
	}
	l.broken = true
	l.remove()
	l.failed = &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
	l.wakeUp()
}

// remove ends the connection for the server.
func (l *link) remove() {
	l.redis.Close()
	l.n.links = slices.DeleteFunc(l.n.links, func(other *link) bool { return other == l })
	if l.failed == nil {
		l.failed = io.EOF
	}
}

// hangUp closes the client's side. What it has written still arrives.
func (l *link) hangUp() {
	if l.hungUp || l.broken {
		return
	}
	l.hungUp = true
	l.send(ToServer, chunk{end: true})
}

func (l *link) wakeUp() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// conn is the client's side.
type conn struct{ l *link }

type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }

func (c *conn) LocalAddr() net.Addr  { return address("client") }
func (c *conn) RemoteAddr() net.Addr { return address(c.l.server.addr) }

func (c *conn) Read(p []byte) (int, error) {
	l := c.l
	for {
		l.n.lock()
		switch {
		case l.client.dead:
			l.n.unlock()
			stop()
		case l.hungUp:
			l.n.unlock()
			return 0, net.ErrClosed
		case !l.deadline.IsZero() && !time.Now().Before(l.deadline):
			l.n.unlock()
			return 0, &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}
		case len(l.received) > 0:
			size := copy(p, l.received)
			l.received = l.received[size:]
			l.n.unlock()
			return size, nil
		case l.failed != nil:
			err := l.failed
			l.n.unlock()
			return 0, err
		}
		l.n.unlock()
		<-l.wake
	}
}

func (c *conn) Write(p []byte) (int, error) {
	l := c.l
	l.n.lock()
	if l.client.dead {
		l.n.unlock()
		stop()
	}
	defer l.n.unlock()
	switch {
	case l.hungUp:
		return 0, net.ErrClosed
	case l.broken:
		return 0, &net.OpError{Op: "write", Net: "tcp", Err: os.NewSyscallError("write", syscall.EPIPE)}
	}
	l.send(ToServer, chunk{data: slices.Clone(p)})
	return len(p), nil
}

func (c *conn) Close() error {
	c.l.n.lock()
	defer c.l.n.unlock()
	if c.l.broken {
		c.l.hungUp = true
	}
	c.l.hangUp()
	c.l.wakeUp()
	return nil
}

func (c *conn) SetReadDeadline(t time.Time) error {
	l := c.l
	l.n.lock()
	defer l.n.unlock()
	l.deadline = t
	switch {
	case t.IsZero():
		if l.timer != nil {
			l.timer.Stop()
		}
	case l.timer == nil:
		l.timer = time.AfterFunc(time.Until(t), func() {
			l.n.lock()
			defer l.n.unlock()
			l.wakeUp()
		})
	default:
		l.timer.Reset(time.Until(t))
	}
	return nil
}

// SetWriteDeadline does nothing: writes never wait.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }

func (c *conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }
