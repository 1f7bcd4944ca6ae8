package simnet

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/redlatch/redlatch/internal/test/memredis"
	"github.com/redlatch/redlatch/internal/torture/simstop"
)

// Usual bounds of the time that data is under way in one direction.
const (
	fastest = 40 * time.Microsecond
	slowest = 400 * time.Microsecond
)

// Net is a network.
type Net struct {
	mu      sync.Mutex // guards everything, also the servers; lock and unlock take it
	group   int        // of the goroutine that has mu
	rand    *rand.Rand
	servers []*Server
	names   map[string]*Server // that may lead to other servers later
	clients []*Client
	links   []*link // that are open, by their numbers
	last    int     // number of the latest link
	trace   uint64  // hash of all that was delivered
}

// New returns a network without servers and clients.
func New(seed uint64) *Net {
	rng := rand.New(rand.NewPCG(seed, 991)) //nolint:gosec // a simulation repeats it
	return &Net{rand: rng, trace: 14695981039346656037, names: map[string]*Server{}}
}

// lock takes mu. A process that is stopped must not keep it. What its goroutines do meanwhile is
// done by the network: the timers of data that is under way do not stop with the process.
func (n *Net) lock() {
	group := simstop.Join(0)
	n.mu.Lock()
	n.group = group
}

func (n *Net) unlock() {
	group := n.group
	n.mu.Unlock()
	simstop.Join(group)
}

// Trace is a hash of all that was delivered so far, and of when.
func (n *Net) Trace() uint64 {
	n.lock()
	defer n.unlock()
	return n.trace
}

// note adds a delivery to the trace. n.mu is held.
func (n *Net) note(link, direction int, data []byte) {
	const prime = 1099511628211
	h := n.trace
	for _, v := range [...]uint64{uint64(time.Now().UnixNano()), uint64(link), uint64(direction), uint64(len(data))} {
		h = (h ^ v) * prime
	}
	for _, b := range data {
		h = (h ^ uint64(b)) * prime
	}
	n.trace = h
}

// Server is a server of the network.
type Server struct {
	n       *Net
	addr    string
	redis   *memredis.Server
	down    bool
	stalled overlapping
	seen    []func(args []string)
}

// Serve adds a server.
func (n *Net) Serve(addr string, redis *memredis.Server) *Server {
	n.lock()
	defer n.unlock()
	s := &Server{n: n, addr: addr, redis: redis}
	n.servers = append(n.servers, s)
	return s
}

// Name lets dials of an address lead to a server, from now on. Open connections stay where they
// are.
func (n *Net) Name(addr string, s *Server) {
	n.lock()
	defer n.unlock()
	n.names[addr] = s
}

// find returns the server with an address; nil if there is none. n.mu is held.
func (n *Net) find(addr string) *Server {
	if s := n.names[addr]; s != nil {
		return s
	}
	for _, s := range n.servers {
		if s.addr == addr {
			return s
		}
	}
	return nil
}

// Addr is the address of the server.
func (s *Server) Addr() string { return s.addr }

// Use calls f with the server's data, between two commands.
func (s *Server) Use(f func(redis *memredis.Server)) {
	s.n.lock()
	defer s.n.unlock()
	f(s.redis)
}

// Kill ends the server: its connections break, and dials are refused. f then changes its data.
func (s *Server) Kill(f func(redis *memredis.Server)) {
	s.n.lock()
	defer s.n.unlock()
	s.down, s.stalled = true, 0
	s.n.reset(func(l *link) bool { return l.server == s })
	f(s.redis)
}

// Start starts the server again.
func (s *Server) Start() {
	s.n.lock()
	defer s.n.unlock()
	s.down = false
}

// Stall makes the server keep all commands waiting, until it is called with false as often as with
// true, or until the server is killed.
func (s *Server) Stall(on bool) {
	s.n.lock()
	defer s.n.unlock()
	s.stalled.set(on)
	if s.stalled.isOn() {
		return
	}
	for _, l := range slices.Clone(s.n.links) {
		if l.server == s {
			l.execute()
		}
	}
}

// Client is the network of a client process.
type Client struct {
	n       *Net
	id      int
	dead    bool
	hung    chan struct{} // not nil while dials hang; closed when they go on
	hanging overlapping
	routes  map[*Server]*Route
}

// Client adds a client process.
func (n *Net) Client(id int) *Client {
	n.lock()
	defer n.unlock()
	c := &Client{n: n, id: id, routes: map[*Server]*Route{}}
	for _, s := range n.servers {
		c.routes[s] = &Route{n: n, client: c, server: s}
	}
	n.clients = append(n.clients, c)
	return c
}

// Route returns the route to a server.
func (c *Client) Route(s *Server) *Route { return c.routes[s] }

// Kill takes the network away for good: the servers see that the connections are closed, and each
// further call of the process that needs the network does not return.
func (c *Client) Kill() {
	c.n.lock()
	defer c.n.unlock()
	c.dead = true
	for _, l := range slices.Clone(c.n.links) {
		if l.client == c {
			l.hangUp()
		}
	}
}

// HangDials lets dials wait, until it is called with false as often as with true.
func (c *Client) HangDials(on bool) {
	c.n.lock()
	defer c.n.unlock()
	c.hanging.set(on)
	switch {
	case c.hanging.isOn() && c.hung == nil:
		c.hung = make(chan struct{})
	case !c.hanging.isOn() && c.hung != nil:
		close(c.hung)
		c.hung = nil
	}
}

// Dial connects to the server with an address.
func (c *Client) Dial(ctx context.Context, _, addr string) (net.Conn, error) {
	n := c.n
	n.lock()
	hung, pause := c.hung, 2*n.delay()
	n.unlock()
	if hung != nil {
		select {
		case <-hung:
		case <-ctx.Done():
			return nil, dialError(context.Cause(ctx))
		}
	}
	select {
	case <-time.After(pause):
	case <-ctx.Done():
		return nil, dialError(context.Cause(ctx))
	}
	n.lock()
	if c.dead {
		n.unlock()
		stop()
	}
	defer n.unlock()
	s := n.find(addr)
	if s == nil {
		return nil, dialError(errors.New("no such host"))
	}
	if s.down || c.routes[s].refusing.isOn() {
		return nil, dialError(os.NewSyscallError("connect", syscall.ECONNREFUSED))
	}
	return c.connect(s), nil
}

func dialError(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }

// stop ends the caller, a goroutine of a process that has been killed.
func stop() { select {} }

// delay draws how long data is under way. n.mu is held.
func (n *Net) delay() time.Duration {
	d := fastest + time.Duration(n.rand.Int64N(int64(slowest-fastest)))
	if n.rand.IntN(64) == 0 { // now and then much longer
		d *= 20
	}
	return d
}

// reset breaks connections: what is under way is lost. n.mu is held.
func (n *Net) reset(which func(*link) bool) {
	for _, l := range slices.Clone(n.links) {
		if which(l) {
			l.reset()
		}
	}
}
