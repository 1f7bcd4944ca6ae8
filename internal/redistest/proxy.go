package redistest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Proxy stands between clients and one server and does harm on request. It
// understands the protocol: commands and replies pass it whole and in order, and
// each reply is known by its command. Its faults add up, last until Heal (or a
// count of their own) and, unless said otherwise, concern open and new
// connections alike. In front of an Embedded server it works without a socket,
// in the bubble. It does not understand CLIENT REPLY and MONITOR, which break the
// rule of one reply per command. Its methods are safe for concurrent use.
type Proxy struct {
	upstream func() (net.Conn, error)
	target   string
	options  func() *redis.Options
	port     int            // 0: no listener, clients come through dial
	links    sync.WaitGroup // all connections served
	accepts  sync.WaitGroup // the loop of the current listener

	mu       sync.Mutex
	settled  *sync.Cond // a link's pending changed, or a link ended
	listener net.Listener
	refusing bool
	closed   bool
	open     map[*link]struct{}
	lastID   int
	faults   faults
	record   bool
	seen     []Command
	dropped  int // messages, by DropMessages
}

// faults is what is wrong at the moment; guarded by Proxy.mu.
type faults struct {
	rules      []*rule
	delay      time.Duration
	hole       bool // commands and replies vanish
	muteHole   bool // replies vanish
	noMessages bool
}

// effect is what befalls a command chosen by a rule.
type effect int

const (
	dropCommand effect = iota // swallow it and cut the connection
	dropReply                 // have it executed, swallow its reply and cut the connection
	holdReply                 // have it executed, keep its reply back
	sendTwice                 // have it executed twice
)

type rule struct {
	effect effect
	match  Match
	fires  func() bool   // asked once per match, in the order of their coming
	gate   chan struct{} // holdReply: closed when the reply may go
	lifted bool          // guarded by Proxy.mu: gate is closed
}

// lift lets go what the rule holds. The caller holds the lock.
func (r *rule) lift() {
	if r.gate != nil && !r.lifted {
		close(r.gate)
		r.lifted = true
	}
}

// Command is one command as a proxy saw it come.
type Command struct {
	Time time.Time
	Conn int // numbers the connections of the proxy from 1
	Args []string
}

// Proxy starts a proxy in front of s. It ends with t.
func (s *Server) Proxy(t testing.TB) *Proxy {
	t.Helper()
	p := &Proxy{
		upstream: s.connect,
		target:   s.addr,
		options:  s.Options,
		open:     map[*link]struct{}{},
	}
	p.settled = sync.NewCond(&p.mu)
	if s.dial == nil {
		if err := p.listen(); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(p.Close)
	return p
}

// connect opens a bare connection to s.
func (s *Server) connect() (net.Conn, error) {
	if s.dial != nil {
		return s.dial()
	}
	return net.DialTimeout("tcp", s.addr, startLimit)
}

// Addr is the host:port the proxy listens on; empty in front of Embedded.
func (p *Proxy) Addr() string {
	if p.port == 0 {
		return ""
	}
	return loopback(p.port)
}

// Options returns fresh client options that lead through the proxy, otherwise
// those of the server.
func (p *Proxy) Options() *redis.Options {
	if p.port == 0 {
		return pipeOptions(p.dial)
	}
	o := p.options()
	o.Addr = p.Addr()
	return o
}

// Client returns a client through the proxy that is closed when t ends. The
// tweaks change its options first.
func (p *Proxy) Client(t testing.TB, tweaks ...func(*redis.Options)) *redis.Client {
	return newClient(t, p.Options(), tweaks)
}

// Dialer is for clients that find their servers themselves, as those of a
// cluster or of sentinels do: it leads to the proxy of the server they dial, or
// straight to a server that has none.
func Dialer(proxies ...*Proxy) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		for _, p := range proxies {
			if p.target == addr {
				addr = p.Addr()
				break
			}
		}
		var d net.Dialer
		return d.DialContext(ctx, network, addr)
	}
}

func (p *Proxy) listen() error {
	l, err := listen()
	if err != nil {
		return err
	}
	p.port = l.Addr().(*net.TCPAddr).Port
	p.listener = l
	p.accepts.Go(func() { p.accept(l) })
	return nil
}

func (p *Proxy) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		if err := p.serve(conn); err != nil {
			_ = conn.Close()
		}
	}
}

// dial is how clients in a bubble reach the proxy.
func (p *Proxy) dial() (net.Conn, error) {
	client, server := net.Pipe()
	if err := p.serve(server); err != nil {
		return nil, err
	}
	return newBuffered(client), nil
}

// Refuse has new connections refused, or no longer. Open ones stay.
func (p *Proxy) Refuse(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.refusing == on {
		return
	}
	p.refusing = on
	switch {
	case p.port == 0:
	case on:
		_ = p.listener.Close()
	default:
		p.reopen()
	}
}

// reopen listens on the old port again. Nobody else takes a port of ours while
// it is closed, or the test cannot go on.
func (p *Proxy) reopen() {
	l, err := net.Listen("tcp", p.Addr())
	if err != nil {
		panic(fmt.Sprintf("redistest: a refusing proxy lost its port: %v", err))
	}
	p.listener = l
	p.accepts.Go(func() { p.accept(l) })
}

// Close closes the proxy and all its connections, and waits for its goroutines.
// It may be called again.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	if p.listener != nil {
		_ = p.listener.Close()
	}
	p.mu.Unlock()
	p.Reset()
	p.accepts.Wait()
	p.links.Wait()
}

// Reset closes all connections and returns how many there were.
func (p *Proxy) Reset() int { return p.cut(func(*link) bool { return true }) }

// CutPubSub closes the connections that have ever asked for a subscription and
// returns how many there were.
func (p *Proxy) CutPubSub() int { return p.cut(func(l *link) bool { return l.subscriber }) }

func (p *Proxy) cut(which func(*link) bool) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for l := range p.open {
		if which(l) {
			l.close()
			n++
		}
	}
	return n
}

// Heal ends all faults: what was held goes out, and connections are accepted
// again. Connections that have lost something stay silent (see BlackHole).
func (p *Proxy) Heal() {
	p.Refuse(false)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.faults.rules {
		r.lift()
	}
	p.faults = faults{}
}

// DropCommands swallows the next n commands that match, unseen by the server,
// and cuts their connections.
func (p *Proxy) DropCommands(n int, match Match) {
	p.add(&rule{effect: dropCommand, match: match, fires: atMost(n)})
}

// DropReplies lets the server execute the next n commands that match, swallows
// each reply and then cuts its connection. Replies to commands sent before on
// that connection still arrive, those to later ones do not; these may or may not
// have been executed. (Of a broken pipeline, go-redis gives the error to every
// command, whatever arrived.)
func (p *Proxy) DropReplies(n int, match Match) {
	p.add(&rule{effect: dropReply, match: match, fires: atMost(n)})
}

// DropRepliesRandomly does as DropReplies to each matching command with the
// given probability. The same seed gives the same choices for the same order of
// matching commands.
func (p *Proxy) DropRepliesRandomly(probability float64, seed uint64, match Match) {
	random := rand.New(rand.NewPCG(seed, seed))
	p.add(&rule{effect: dropReply, match: match, fires: func() bool { return random.Float64() < probability }})
}

// HoldReplies lets the server execute commands that match and keeps their
// replies, and whatever follows on their connections, until release is called.
// Held tells how many are kept. release ends the fault and may be called again.
func (p *Proxy) HoldReplies(match Match) (release func()) {
	r := &rule{effect: holdReply, match: match, fires: always, gate: make(chan struct{})}
	p.add(r)
	return func() { p.remove(r) }
}

// Held returns how many replies are held at the moment. The server has executed
// their commands.
func (p *Proxy) Held() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for l := range p.open {
		n += l.held
	}
	return n
}

// Duplicate has matching commands executed twice, as if the network had
// repeated them: first on a connection of its own, then, with that answer
// swallowed, on the client's, which gets the second answer.
func (p *Proxy) Duplicate(match Match) {
	p.add(&rule{effect: sendTwice, match: match, fires: always})
}

// BlackHole discards everything in both directions, before the server sees it,
// and closes nothing, not even when the server is gone. New connections open
// and stay silent. A connection that lost anything stays silent also after
// BlackHole(false), because nothing on it could be told apart any more.
func (p *Proxy) BlackHole(on bool) {
	p.change(func(f *faults) { f.hole = on })
}

// BlackHoleReplies discards everything that comes from the server while
// commands still reach it; else as BlackHole.
func (p *Proxy) BlackHoleReplies(on bool) {
	p.change(func(f *faults) { f.muteHole = on })
}

// Delay keeps everything from the server back for d, a round trip's worth, from
// now on; 0 ends it. Commands reach the server at once.
func (p *Proxy) Delay(d time.Duration) {
	p.change(func(f *faults) { f.delay = d })
}

// DropMessages swallows published messages, pattern and sharded ones included.
// Confirmations of subscriptions and pongs pass.
func (p *Proxy) DropMessages(on bool) {
	p.change(func(f *faults) { f.noMessages = on })
}

func (p *Proxy) change(f func(*faults)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&p.faults)
}

// Record starts recording commands, from nothing.
func (p *Proxy) Record() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.record, p.seen = true, nil
}

// Commands returns the commands that came since Record in their order, those
// that a fault swallowed and those of handshakes included.
func (p *Proxy) Commands() []Command {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.seen)
}

func (p *Proxy) add(r *rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults.rules = append(p.faults.rules, r)
}

func (p *Proxy) remove(r *rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.lift()
	p.faults.rules = slices.DeleteFunc(p.faults.rules, func(other *rule) bool { return other == r })
}

func always() bool { return true }

func atMost(n int) func() bool {
	return func() bool {
		n--
		return n >= 0
	}
}

// chosen returns the rules that fire for a command. The caller holds the lock.
func (f *faults) chosen(args []string) []*rule {
	var out []*rule
	for _, r := range f.rules {
		if r.match(args) && r.fires() {
			out = append(out, r)
		}
	}
	return out
}

// refused is what dialling a closed port gives.
func refused() error {
	return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
}
