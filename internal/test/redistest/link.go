package redistest

import (
	"bufio"
	"net"
	"slices"
	"sync"
	"time"
)

// link is a client connection of a proxy and the corresponding server connection.
//
// One goroutine reads commands from the client, a second one reads replies from
// the server, and the outbox toClient has a third one that writes to the client.
// The outbox is unbounded, so a client that writes without reading blocks nobody.
type link struct {
	p        *Proxy
	id       int
	client   net.Conn
	server   net.Conn // nil if the server was unreachable in a black hole
	toClient *outbox
	// handshake holds the commands that a second connection must send first. Only
	// the goroutine that reads commands uses it.
	handshake [][]byte

	// All fields below are guarded by Proxy.mu.
	pending      []*pendingReply // commands without a reply yet, in the order of sending
	subscriber   bool            // has sent a subscribe command
	resp3        bool            // HELLO 3 was accepted
	lostCommands bool            // a command was discarded, so all later ones are too
	lostReplies  bool            // a reply was discarded, so all later ones are too
	held         int             // replies in toClient that HoldReplies holds
	closed       bool
}

// pendingReply is a command that was sent to the server and awaits its reply.
type pendingReply struct {
	command  command
	confirms int // confirmations to come, for subscribe and unsubscribe commands
	drop     bool
	holds    []<-chan struct{}     // the reply waits until all are closed
	instead  []byte                // what the client gets in place of the reply; nil: the reply
	executed []func(args []string) // called when the reply comes, if it is no error
}

// serve starts a link for client. It returns an error if the proxy refuses
// connections.
func (p *Proxy) serve(client net.Conn) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.refusing {
		return refused()
	}
	// Add the link to open under the same lock as the check, so that Close sees every link.
	p.lastID++
	l := &link{p: p, id: p.lastID, client: client, toClient: newOutbox(client)}
	p.open[l] = struct{}{}
	p.links.Go(l.run)
	return nil
}

// run connects to the server and forwards until either side ends.
func (l *link) run() {
	server, err := l.p.upstream() // may block, so not in serve, which holds Proxy.mu
	if l.attach(server, err) {
		var replies sync.WaitGroup
		if server != nil {
			replies.Go(l.forwardReplies)
		}
		l.forwardCommands()
		l.finish() // closes the server connection, which ends forwardReplies
		replies.Wait()
	}
	l.finish()
	<-l.toClient.done
}

// attach sets the server connection and reports whether to continue. In a black
// hole the link continues without a server, because the client must not notice
// that the server is unreachable.
func (l *link) attach(server net.Conn, err error) bool {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	switch {
	case err != nil:
		l.lostCommands, l.lostReplies = true, true
		return l.p.faults.blackHole || l.p.faults.blackHoleReplies
	case l.closed: // by Reset or Close, while run was dialling
		_ = server.Close()
		return false
	}
	l.server = server
	return true
}

// finish closes l and removes it from the proxy.
func (l *link) finish() {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	l.close()
	delete(l.p.open, l)
}

// close closes both connections, which ends the goroutines of l. The caller
// holds Proxy.mu.
func (l *link) close() {
	l.closed = true
	l.toClient.stop()
	_ = l.client.Close()
	if l.server != nil {
		_ = l.server.Close()
	}
	l.p.changed.Broadcast()
}

// forwardCommands forwards commands until the client disconnects or a fault cuts
// the connection.
func (l *link) forwardCommands() {
	r := bufio.NewReader(l.client)
	for {
		c, err := readCommand(r)
		if err != nil {
			return
		}
		action := l.decide(c)
		switch {
		case action.discard:
			continue
		case action.cut:
			// Commands before this one must not be affected: deliver their replies first.
			l.awaitReplies()
			l.flush()
			return
		case action.twice:
			first, err := l.sendSeparately(c)
			if err != nil {
				return
			}
			if action.reply != nil {
				action.reply.instead = first
			}
		}
		if !l.send(c, action.reply) {
			return
		}
	}
}

// action is what the faults of the proxy do to one command.
type action struct {
	discard, cut, twice bool
	reply               *pendingReply // nil if the command has no reply of its own
}

// decide records c and returns what to do with it.
func (l *link) decide(c command) action {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	if l.p.record {
		l.p.seen = append(l.p.seen, Command{Time: time.Now(), Conn: l.id, Args: c.args})
	}
	if l.p.faults.blackHole || l.lostCommands {
		// Once a command is lost, later replies would be matched to the wrong commands, so the link
		// never recovers.
		l.lostCommands, l.lostReplies = true, true
		return action{discard: true}
	}
	a := action{reply: &pendingReply{command: c}}
	switch {
	case c.is("subscribe", "psubscribe", "ssubscribe"):
		l.subscriber = true
		a.reply.confirms = len(c.args) - 1
	case c.is("unsubscribe", "punsubscribe", "sunsubscribe"):
		a.reply.confirms = len(c.args) - 1
		if a.reply.confirms == 0 {
			// Without arguments there is one confirmation per subscription, a number not known
			// here.
			a.reply = nil
		}
	case c.is("hello", "auth", "select"):
		l.handshake = append(l.handshake, c.raw)
	}
	for _, r := range l.p.faults.applicable(c.args) {
		a.apply(r)
	}
	return a
}

// apply adds the effect of a rule. Several rules may apply to one command.
func (a *action) apply(r *rule) {
	switch r.effect {
	case dropCommand:
		a.cut = true
	case sendTwice:
		a.twice = true
	case dropReply:
		if a.reply != nil {
			a.reply.drop = true
		}
	case holdReply:
		if a.reply != nil {
			a.reply.holds = append(a.reply.holds, r.released)
		}
	case tellReply:
		if a.reply != nil {
			a.reply.executed = append(a.reply.executed, r.executed)
		}
	}
}

// send sends c to the server and reports whether the link continues. It appends
// to pending before it writes, because the reply may arrive before Write returns.
func (l *link) send(c command, reply *pendingReply) bool {
	l.p.mu.Lock()
	if reply != nil {
		l.pending = append(l.pending, reply)
	}
	l.p.mu.Unlock()
	_, err := l.server.Write(c.raw)
	return err == nil || l.hidesFailure()
}

// sendSeparately executes c on a second connection and returns the reply. It
// first waits for the replies to all earlier commands, which keeps the order of
// execution.
func (l *link) sendSeparately(c command) (reply []byte, err error) {
	l.awaitReplies()
	conn, err := l.p.upstream()
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	for _, raw := range slices.Concat(l.handshake, [][]byte{c.raw}) {
		if _, err := conn.Write(raw); err != nil {
			return nil, err
		}
	}
	// Read all replies before returning: c must have been executed before it is sent again.
	r := bufio.NewReader(conn)
	for range len(l.handshake) + 1 {
		f, err := readFrame(r)
		if err != nil {
			return nil, err
		}
		reply = f.raw
	}
	return reply, nil
}

// awaitReplies waits until the server has replied to all commands, or l is closed.
func (l *link) awaitReplies() {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	for len(l.pending) > 0 && !l.closed {
		l.p.changed.Wait()
	}
}

// flush waits until all replies in the outbox are written to the client.
func (l *link) flush() {
	l.toClient.closeInput()
	<-l.toClient.done
}

// forwardReplies forwards what the server sends until the server disconnects or
// a reply is to be dropped. It then writes the earlier replies and closes l.
func (l *link) forwardReplies() {
	r := bufio.NewReader(l.server)
	for {
		f, err := readFrame(r)
		if err != nil && l.hidesFailure() {
			return
		}
		if err != nil || !l.deliver(f) {
			break
		}
	}
	l.flush()
	l.finish()
}

// hidesFailure reports whether a black hole hides a failed server connection
// from the client. If so, the link discards everything from now on.
func (l *link) hidesFailure() bool {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	if !l.p.faults.blackHole && !l.p.faults.blackHoleReplies && !l.lostReplies {
		return false
	}
	l.lostCommands, l.lostReplies = true, true
	return !l.closed
}

// deliver applies the faults to f and puts it into the outbox. It reports
// whether the connection continues.
func (l *link) deliver(f frame) bool {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	faults := &l.p.faults
	c := chunk{data: f.raw}
	if faults.delay > 0 {
		c.due = time.Now().Add(faults.delay)
	}
	// Match f to its command even if it is discarded below: the order of pending must stay right.
	if l.isMessage(f) {
		if faults.noMessages {
			l.p.dropped++
			return true
		}
	} else if reply := l.matchReply(f); reply != nil {
		for _, tell := range reply.executed {
			if f.kind() != '-' {
				tell(reply.command.args)
			}
		}
		if reply.drop {
			return false // forwardReplies flushes the earlier replies and closes the link
		}
		c.holds = reply.holds
		if reply.instead != nil {
			c.data = reply.instead
		}
	}
	if faults.blackHole || faults.blackHoleReplies || l.lostReplies {
		l.lostReplies = true
		return true
	}
	if len(c.holds) > 0 {
		l.held++
		c.onRelease = l.replyReleased
	}
	return l.toClient.put(c) == nil
}

// replyReleased is called by the outbox, which does not hold Proxy.mu.
func (l *link) replyReleased() {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	l.held--
}

// isPush reports whether f may be no reply: any RESP3 push, and in RESP2 any
// array sent to a subscriber.
func (l *link) isPush(f frame) bool {
	return f.kind() == '>' || f.kind() == '*' && l.subscriber && !l.resp3
}

func (l *link) isMessage(f frame) bool {
	return l.isPush(f) && slices.Contains([]string{"message", "pmessage", "smessage"}, f.word)
}

func (l *link) isConfirmation(f frame) bool {
	return l.isPush(f) && slices.Contains([]string{
		"subscribe", "psubscribe", "ssubscribe", "unsubscribe", "punsubscribe", "sunsubscribe",
	}, f.word)
}

// matchReply returns the command that f replies to. It returns nil for a frame
// that is not a reply. It removes the command from pending after its last
// confirmation. Proxy.mu is held.
func (l *link) matchReply(f frame) *pendingReply {
	if len(l.pending) == 0 {
		return nil
	}
	reply := l.pending[0]
	switch confirmation := l.isConfirmation(f); {
	case confirmation && !reply.command.is(f.word):
		return nil // of an unsubscribe without arguments, which is not in pending
	case confirmation && reply.confirms > 1:
		reply.confirms--
		return reply
	case !confirmation && f.kind() == '>':
		return nil // another push
	}
	// The reply to HELLO is a map in RESP3 and an array in RESP2.
	if reply.command.is("hello") {
		l.resp3 = f.kind() == '%'
	}
	l.pending = l.pending[1:]
	l.p.changed.Broadcast()
	return reply
}
