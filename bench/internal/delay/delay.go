// Package delay simulates a network: a proxy in front of a server that delays all data in both
// directions. It only delays. Data stays in order, and any amount of it can be on its way at once.
package delay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/redlatch/redlatch/bench/internal/contend"
)

const (
	readSize = 64 << 10
	// maxQueued bounds the pieces of data on their way in each direction. It is far above what the
	// clients of a benchmark send within a delay.
	maxQueued = 1 << 16
)

// Proxy accepts connections and forwards each to the target.
type Proxy struct {
	target    contend.Target
	listener  net.Listener
	up, down  *line              // to the target, and from it
	cancel    context.CancelFunc // ends dials to the target
	accepting sync.WaitGroup     // the accept loop, and a goroutine per direction of each connection

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]struct{} // open connections, of both sides
}

// Listen starts a proxy on a unix socket. Half of roundTrip passes in each direction.
func Listen(ctx context.Context, path string, target contend.Target, roundTrip time.Duration) (*Proxy, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("delay: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	p := &Proxy{
		target: target, listener: listener, cancel: cancel, up: newLine(roundTrip / 2), down: newLine(roundTrip / 2),
		conns: map[net.Conn]struct{}{},
	}
	p.accepting.Go(func() { p.accept(ctx) })
	return p, nil
}

// Close closes all connections and waits for all goroutines.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	for conn := range p.conns {
		conn.Close()
	}
	p.mu.Unlock()
	p.cancel()
	_ = p.listener.Close() // also removes the socket
	p.accepting.Wait()
	p.up.close()
	p.down.close()
}

func (p *Proxy) accept(ctx context.Context) {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // Close has closed the listener
		}
		server, err := (&net.Dialer{}).DialContext(ctx, p.target.Network, p.target.Addr)
		if err != nil {
			client.Close()
			continue
		}
		if !p.add(client, server) {
			return
		}
		p.accepting.Go(func() { p.up.copy(server, client) })
		p.accepting.Go(func() {
			p.down.copy(client, server)
			p.remove(client, server)
		})
	}
}

// add reports whether the proxy is still open. If it is not, add closes the connections.
func (p *Proxy) add(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range conns {
		if p.closed {
			conn.Close()
			continue
		}
		p.conns[conn] = struct{}{}
	}
	return !p.closed
}

func (p *Proxy) remove(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range conns {
		delete(p.conns, conn)
	}
}

// line is one direction of all connections. Every piece of data takes equally long, so the pieces
// arrive in the order in which they were sent, and one goroutine delivers all of them.
type line struct {
	takes time.Duration
	sent  chan piece
	done  sync.WaitGroup
}

// piece is data on its way.
type piece struct {
	due  time.Time
	to   net.Conn
	data []byte // nil: the sender has closed its connection
}

func newLine(takes time.Duration) *line {
	l := &line{takes: takes, sent: make(chan piece, maxQueued)}
	l.done.Go(l.deliver)
	return l
}

func (l *line) close() {
	close(l.sent)
	l.done.Wait()
}

// copy sends all data that arrives from a connection to another one, and then the end.
func (l *line) copy(to, from net.Conn) {
	buf := make([]byte, readSize)
	for {
		n, err := from.Read(buf)
		due := time.Now().Add(l.takes)
		if n > 0 {
			l.sent <- piece{due, to, bytes.Clone(buf[:n])}
		}
		if err != nil {
			l.sent <- piece{due, to, nil}
			return
		}
	}
}

// deliver writes each piece when it is due.
func (l *line) deliver() {
	runtime.LockOSThread() // see SleepUntil
	defer runtime.UnlockOSThread()
	sharpen()
	for p := range l.sent {
		SleepUntil(p.due)
		if p.data == nil {
			p.to.Close()
			continue
		}
		// A receiver that does not read would hold all others up. Redis and go-redis read what
		// arrives.
		_, err := p.to.Write(p.data)
		if err != nil && !errors.Is(err, net.ErrClosed) {
			p.to.Close() // the other side of the proxy then sees the end too
		}
	}
}
