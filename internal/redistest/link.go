package redistest

import (
	"bufio"
	"net"
	"slices"
	"sync"
	"time"
)

// link is one client connection and its counterpart at the server. One goroutine
// reads commands, one reads replies, and an outbox writes to the client, so that
// a client that writes on without reading blocks nobody.
type link struct {
	p        *Proxy
	id       int
	client   net.Conn
	server   net.Conn // nil: there was no server to be reached
	toClient *outbox
	prelude  [][]byte // what a second connection has to start with; the command goroutine's own

	// All below is guarded by Proxy.mu.
	pending    []*expected // commands sent to the server, not yet answered
	subscriber bool        // has asked for a subscription
	resp3      bool        // HELLO 3 was accepted
	blind      bool        // a command was lost: all that follow are
	mute       bool        // a reply was lost: all that follow are
	held       int         // replies in toClient that wait for a gate
	ended      bool
}

// expected is a command whose reply is to come.
type expected struct {
	command  command
	confirms int // subscribe and unsubscribe: confirmations to come
	drop     bool
	gates    []<-chan struct{}
}

// serve takes client in, or says why not.
func (p *Proxy) serve(client net.Conn) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.refusing {
		return refused()
	}
	p.lastID++
	l := &link{p: p, id: p.lastID, client: client, toClient: newOutbox(client)}
	p.open[l] = struct{}{}
	p.links.Go(l.run)
	return nil
}

func (l *link) run() {
	server, err := l.p.upstream()
	if l.attach(server, err) {
		var replies sync.WaitGroup
		if server != nil {
			replies.Go(l.replies)
		}
		l.commands()
		l.finish()
		replies.Wait()
	}
	l.finish()
	<-l.toClient.done
}

// attach gives l its server, and tells whether to go on: without a server only
// in a black hole, where the client must not learn of it.
func (l *link) attach(server net.Conn, err error) bool {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	switch {
	case err != nil:
		l.blind, l.mute = true, true
		return l.p.faults.hole || l.p.faults.muteHole
	case l.ended:
		_ = server.Close()
		return false
	}
	l.server = server
	return true
}

// finish closes l and forgets it.
func (l *link) finish() {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	l.close()
	delete(l.p.open, l)
}

// close closes both connections; the goroutines of l end by it. The caller holds
// the lock.
func (l *link) close() {
	l.ended = true
	l.toClient.stop()
	_ = l.client.Close()
	if l.server != nil {
		_ = l.server.Close()
	}
	l.p.settled.Broadcast()
}

// commands passes commands on until the client is gone or cut.
func (l *link) commands() {
	r := bufio.NewReader(l.client)
	for {
		c, err := readCommand(r)
		if err != nil {
			return
		}
		fate := l.take(c)
		switch {
		case fate.lost:
			continue
		case fate.cut:
			l.await()
			l.flush()
			return
		case fate.twice && l.rehearse(c) != nil:
			return
		}
		if !l.forward(c, fate.expect) {
			return
		}
	}
}

// fate is what the faults make of one command.
type fate struct {
	lost, cut, twice bool
	expect           *expected // nil: no reply of its own will come
}

// take records c and decides on it.
func (l *link) take(c command) fate {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	if l.p.record {
		l.p.seen = append(l.p.seen, Command{Time: time.Now(), Conn: l.id, Args: c.args})
	}
	if l.p.faults.hole || l.blind {
		l.blind, l.mute = true, true
		return fate{lost: true}
	}
	f := fate{expect: &expected{command: c}}
	switch {
	case c.is("subscribe", "psubscribe", "ssubscribe"):
		l.subscriber = true
		f.expect.confirms = len(c.args) - 1
	case c.is("unsubscribe", "punsubscribe", "sunsubscribe"):
		f.expect.confirms = len(c.args) - 1
		if f.expect.confirms == 0 { // from all: as many confirmations as there were subscriptions
			f.expect = nil
		}
	case c.is("hello", "auth", "select"):
		l.prelude = append(l.prelude, c.raw)
	}
	for _, r := range l.p.faults.chosen(c.args) {
		f.add(r)
	}
	return f
}

func (f *fate) add(r *rule) {
	switch r.effect {
	case dropCommand:
		f.cut = true
	case sendTwice:
		f.twice = true
	case dropReply:
		if f.expect != nil {
			f.expect.drop = true
		}
	case holdReply:
		if f.expect != nil {
			f.expect.gates = append(f.expect.gates, r.gate)
		}
	}
}

// forward sends c to the server. The reply is expected before it can come.
func (l *link) forward(c command, e *expected) bool {
	l.p.mu.Lock()
	if e != nil {
		l.pending = append(l.pending, e)
	}
	l.p.mu.Unlock()
	_, err := l.server.Write(c.raw)
	return err == nil || l.silenced()
}

// rehearse has c executed on a connection of its own, after everything that the
// client sent before it.
func (l *link) rehearse(c command) error {
	l.await()
	conn, err := l.p.upstream()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	for _, raw := range slices.Concat(l.prelude, [][]byte{c.raw}) {
		if _, err := conn.Write(raw); err != nil {
			return err
		}
	}
	r := bufio.NewReader(conn)
	for range len(l.prelude) + 1 {
		if _, err := readFrame(r); err != nil {
			return err
		}
	}
	return nil
}

// await waits until the server has answered all that it was sent.
func (l *link) await() {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	for len(l.pending) > 0 && !l.ended {
		l.p.settled.Wait()
	}
}

// flush waits until the client was sent all that is on its way to it.
func (l *link) flush() {
	l.toClient.seal()
	<-l.toClient.done
}

// replies passes on what the server sends until it is gone, or a reply is to be
// dropped. The client then still gets what was sent before, and is cut.
func (l *link) replies() {
	r := bufio.NewReader(l.server)
	for {
		f, err := readFrame(r)
		if err != nil && l.silenced() {
			return
		}
		if err != nil || !l.answer(f) {
			break
		}
	}
	l.flush()
	l.finish()
}

// silenced tells whether the client must not learn that the server is gone, and
// keeps it that way.
func (l *link) silenced() bool {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	if !l.p.faults.hole && !l.p.faults.muteHole && !l.mute {
		return false
	}
	l.blind, l.mute = true, true
	return !l.ended
}

// answer passes f on as the faults have it, and tells whether the connection
// lives on.
func (l *link) answer(f frame) bool {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	faults := &l.p.faults
	c := chunk{data: f.raw}
	if faults.delay > 0 {
		c.due = time.Now().Add(faults.delay)
	}
	if l.isMessage(f) {
		if faults.noMessages {
			l.p.dropped++
			return true
		}
	} else if e := l.settle(f); e != nil {
		if e.drop {
			return false
		}
		c.gates = e.gates
	}
	if faults.hole || faults.muteHole || l.mute {
		l.mute = true
		return true
	}
	if len(c.gates) > 0 {
		l.held++
		c.passed = l.released
	}
	return l.toClient.put(c) == nil
}

func (l *link) released() {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	l.held--
}

// push tells whether f comes on the side: all of RESP3's pushes, and in RESP2
// what a subscriber gets that is not the reply to a PING.
func (l *link) push(f frame) bool {
	return f.kind() == '>' || f.kind() == '*' && l.subscriber && !l.resp3
}

func (l *link) isMessage(f frame) bool {
	return l.push(f) && slices.Contains([]string{"message", "pmessage", "smessage"}, f.word)
}

func (l *link) isConfirmation(f frame) bool {
	return l.push(f) && slices.Contains([]string{
		"subscribe", "psubscribe", "ssubscribe", "unsubscribe", "punsubscribe", "sunsubscribe",
	}, f.word)
}

// settle finds the command that f answers, nil for what nobody asked for. The
// caller holds the lock.
func (l *link) settle(f frame) *expected {
	if len(l.pending) == 0 {
		return nil
	}
	e := l.pending[0]
	switch confirmation := l.isConfirmation(f); {
	case confirmation && !e.command.is(f.word):
		return nil
	case confirmation && e.confirms > 1:
		e.confirms--
		return e
	case !confirmation && f.kind() == '>':
		return nil
	}
	if e.command.is("hello") {
		l.resp3 = f.kind() == '%'
	}
	l.pending = l.pending[1:]
	l.p.settled.Broadcast()
	return e
}
