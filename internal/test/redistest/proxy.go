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

// Proxy forwards connections to one server and injects faults on request.
//
// It parses the protocol. It forwards whole commands and replies in order, and
// matches each reply to its command. Faults accumulate and last until Heal, or
// until their own count is used up. They apply to open and new connections,
// unless stated otherwise.
//
// In front of an Embedded server the proxy uses no sockets, so it works in a
// bubble. It does not support CLIENT REPLY and MONITOR, which break the rule of
// one reply per command. Its methods are safe for concurrent use.
type Proxy struct {
	upstream func() (net.Conn, error)
	target   string
	options  func() *redis.Options
	port     int            // 0: no listener, clients connect by dial
	links    sync.WaitGroup // one goroutine for each link
	accepts  sync.WaitGroup // the accept loop of the current listener

	mu       sync.Mutex
	changed  *sync.Cond // a link's pending changed, or a link was closed
	listener net.Listener
	refusing bool
	closed   bool
	open     map[*link]struct{}
	lastID   int
	faults   faults
	record   bool
	seen     []Command
	dropped  int // number of messages that DropMessages has dropped
}

// faults is the set of current faults. It is guarded by Proxy.mu.
type faults struct {
	rules            []*rule
	delay            time.Duration
	blackHole        bool // discard commands and replies
	blackHoleReplies bool // discard replies
	noMessages       bool
}

// effect is what a rule does to a matching command.
type effect int

const (
	dropCommand effect = iota // discard it and close the connection
	dropReply                 // execute it, discard its reply and close the connection
	holdReply                 // execute it, hold its reply
	sendTwice                 // execute it twice
	tellReply                 // tell that it was executed
)

type rule struct {
	effect     effect
	match      Match
	fires      func() bool         // called once for each matching command, in order
	released   chan struct{}       // for holdReply: closed when held replies may be sent
	isReleased bool                // released is closed; guarded by Proxy.mu
	executed   func(args []string) // for tellReply
}

// release sends the replies that the rule holds. Proxy.mu is held.
func (r *rule) release() {
	if r.released != nil && !r.isReleased {
		close(r.released)
		r.isReleased = true
	}
}

// Command is a command that a proxy has received.
type Command struct {
	Time time.Time
	Conn int // number of the proxy's connection, from 1
	Args []string
}

// Proxy starts a proxy in front of s and closes it when t ends.
func (s *Server) Proxy(t testing.TB) *Proxy {
	t.Helper()
	p := &Proxy{
		upstream: s.connect,
		target:   s.addr,
		options:  s.Options,
		open:     map[*link]struct{}{},
	}
	p.changed = sync.NewCond(&p.mu)
	if s.dial == nil {
		if err := p.listen(); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(p.Close)
	return p
}

// connect opens a raw connection to s.
func (s *Server) connect() (net.Conn, error) {
	if s.dial != nil {
		return s.dial()
	}
	return net.DialTimeout("tcp", s.addr, startTimeout)
}

// Addr returns the host:port the proxy listens on. It is empty in front of an
// Embedded server.
func (p *Proxy) Addr() string {
	if p.port == 0 {
		return ""
	}
	return loopback(p.port)
}

// Options returns the server's client options with the address of the proxy. The
// caller may change them.
func (p *Proxy) Options() *redis.Options {
	if p.port == 0 {
		return pipeOptions(p.dial)
	}
	o := p.options()
	o.Addr = p.Addr()
	return o
}

// Client returns a client that connects through the proxy, and closes it when t
// ends. The tweaks change its options before it is made.
func (p *Proxy) Client(t testing.TB, tweaks ...func(*redis.Options)) *redis.Client {
	return newClient(t, p.Options(), tweaks)
}

// Dialer returns a dial function for clients that discover their servers, such
// as clients of a cluster or of sentinels. It connects to the proxy of the dialled
// server, or to the server itself if it has no proxy.
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

// dial connects a client in a bubble to the proxy.
func (p *Proxy) dial() (net.Conn, error) {
	client, server := net.Pipe()
	if err := p.serve(server); err != nil {
		return nil, err
	}
	return newBuffered(client), nil
}

// Refuse refuses new connections (true) or accepts them again (false). Open
// connections are not affected.
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

// reopen listens on the old port again. On a busy machine the old listener may
// not have ended yet, because Accept keeps it open until it returns. reopen panics
// if another process has taken the port meanwhile, which the port range makes
// unlikely.
func (p *Proxy) reopen() {
	l, err := net.Listen("tcp", p.Addr())
	for limit := time.Now().Add(setupTimeout); err != nil && time.Now().Before(limit); {
		time.Sleep(time.Millisecond)
		l, err = net.Listen("tcp", p.Addr())
	}
	if err != nil {
		panic(fmt.Sprintf("redistest: proxy cannot listen on its port again: %v", err))
	}
	p.listener = l
	p.accepts.Go(func() { p.accept(l) })
}

// Close closes the proxy and all its connections, and waits for its goroutines.
// Further calls do nothing.
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

// Reset closes all connections and returns their number.
func (p *Proxy) Reset() int { return p.cut(func(*link) bool { return true }) }

// Cut refuses new connections and resets the open ones: the server is out of reach.
func (p *Proxy) Cut() {
	p.Refuse(true)
	p.Reset()
}

// CutPubSub closes the connections that have ever sent a subscribe command and
// returns their number.
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

// Heal ends all faults. The proxy sends held replies and accepts connections.
// Connections that lost data in a black hole stay silent (see BlackHole).
func (p *Proxy) Heal() {
	p.Refuse(false)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.faults.rules {
		r.release()
	}
	p.faults = faults{}
}

// Recover ends all faults and resets the connections, of which some may have lost data.
func (p *Proxy) Recover() {
	p.Heal()
	p.Reset()
}

// DropCommands discards the next n matching commands and closes their
// connections. The server does not receive these commands.
func (p *Proxy) DropCommands(n int, match Match) {
	p.add(&rule{effect: dropCommand, match: match, fires: atMost(n)})
}

// DropReplies lets the server execute the next n matching commands, discards
// their replies and closes their connections. Replies to earlier commands on the
// connection still arrive. Replies to later commands do not, and the server may
// or may not execute these commands. (For a broken pipeline, go-redis returns the
// error for every command, even if some replies arrived.)
func (p *Proxy) DropReplies(n int, match Match) {
	p.add(&rule{effect: dropReply, match: match, fires: atMost(n)})
}

// DropRepliesRandomly is like DropReplies, for each matching command with the
// given probability. For the same order of matching commands, the same seed
// selects the same commands.
func (p *Proxy) DropRepliesRandomly(probability float64, seed uint64, match Match) {
	random := rand.New(rand.NewPCG(seed, seed))
	p.add(&rule{effect: dropReply, match: match, fires: func() bool { return random.Float64() < probability }})
}

// HoldReplies lets the server execute matching commands, and holds their replies
// and all later replies on the same connections until release is called. Held
// returns the number of held replies. release also ends the fault. Further calls
// of release do nothing.
func (p *Proxy) HoldReplies(match Match) (release func()) {
	r := &rule{effect: holdReply, match: match, fires: always, released: make(chan struct{})}
	p.add(r)
	return func() { p.remove(r) }
}

// Held returns the number of replies that are held now. The server has executed
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

// Duplicate executes matching commands twice, as if a copy had arrived right after
// the command. The client gets the reply of the first execution, which uses a
// separate connection.
func (p *Proxy) Duplicate(match Match) {
	p.add(&rule{effect: sendTwice, match: match, fires: always})
}

// Watch calls seen for each command that the proxy receives, before it is forwarded, until stop is
// called or Heal ends the faults. seen must not block, and must not call the proxy.
func (p *Proxy) Watch(seen func(args []string)) (stop func()) {
	r := &rule{match: func(args []string) bool {
		seen(args)
		return false
	}, fires: always}
	p.add(r)
	return func() { p.remove(r) }
}

// WatchExecuted calls seen for each command whose reply has arrived and is no error, before the
// client gets it, until Heal ends the faults. seen must not block, and must not call the proxy.
func (p *Proxy) WatchExecuted(seen func(args []string)) {
	p.add(&rule{effect: tellReply, match: func([]string) bool { return true }, fires: always, executed: seen})
}

// BlackHole discards all data in both directions. The server receives no
// commands. Connections stay open, even if the server dies. New connections are
// accepted and get no replies.
//
// A connection that lost data stays silent after BlackHole(false): its replies
// can no longer be matched to its commands.
func (p *Proxy) BlackHole(on bool) {
	p.change(func(f *faults) { f.blackHole = on })
}

// BlackHoleReplies is like BlackHole, but commands still reach the server. Only
// the data from the server is discarded.
func (p *Proxy) BlackHoleReplies(on bool) {
	p.change(func(f *faults) { f.blackHoleReplies = on })
}

// Delay delays all data from the server by d, from now on. 0 ends the delay.
// Commands are not delayed, so d is added to each round trip once.
func (p *Proxy) Delay(d time.Duration) {
	p.change(func(f *faults) { f.delay = d })
}

// DropMessages discards published messages, including pattern and sharded ones.
// Confirmations of subscriptions and pongs are not affected.
func (p *Proxy) DropMessages(on bool) {
	p.change(func(f *faults) { f.noMessages = on })
}

func (p *Proxy) change(f func(*faults)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&p.faults)
}

// Record starts recording commands and discards earlier records.
func (p *Proxy) Record() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.record, p.seen = true, nil
}

// Commands returns the commands received since Record, in order. It includes
// commands of handshakes and commands that a fault discarded.
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
	r.release()
	p.faults.rules = slices.DeleteFunc(p.faults.rules, func(other *rule) bool { return other == r })
}

func always() bool { return true }

func atMost(n int) func() bool {
	return func() bool {
		n--
		return n >= 0
	}
}

// applicable returns the rules that fire for a command. Proxy.mu is held.
func (f *faults) applicable(args []string) []*rule {
	var out []*rule
	for _, r := range f.rules {
		if r.match(args) && r.fires() {
			out = append(out, r)
		}
	}
	return out
}

// refused returns the error of a dial to a closed port.
func refused() error {
	return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
}
