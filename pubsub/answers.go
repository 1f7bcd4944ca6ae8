package pubsub

import (
	"fmt"
	"log/slog"
	"net"
	"time"
)

// maxLeftover limits the subscriptions without listeners that a server keeps for one link because
// it refuses UNSUBSCRIBE. Then a new connection replaces the link.
const maxLeftover = 10_000

// read handles replies until the connection fails, the server violates the protocol, or the silence
// lasts too long.
func (l *link) read(conn net.Conn) error {
	d := newDecoder(&deadlineReader{conn: conn, silence: l.hub.cfg.limits.silence(), link: l})
	for {
		r, err := d.next()
		if err != nil {
			return err
		}
		if err := l.handle(r); err != nil {
			return err
		}
	}
}

// sinceHeard returns how long the reader has been waiting for data.
func (l *link) sinceHeard() time.Duration {
	return time.Since(l.started) - time.Duration(l.heard.Load())
}

// deadlineReader fails a Read once nothing has arrived for the silence limit. To save system calls
// it does not move the deadline on each Read, so the limit may be exceeded by a thirtieth.
type deadlineReader struct {
	link    *link
	conn    net.Conn
	silence time.Duration
	moved   time.Time // when the deadline was last set
}

func (r *deadlineReader) Read(p []byte) (int, error) {
	slack := r.silence / 30
	now := time.Now()
	r.link.heard.Store(int64(now.Sub(r.link.started)))
	if now.Sub(r.moved) >= slack {
		if err := r.conn.SetReadDeadline(now.Add(r.silence + slack)); err != nil {
			return 0, err
		}
		r.moved = now
	}
	return r.conn.Read(p)
}

// handle processes one reply or push. An error ends the link.
func (l *link) handle(r reply) error {
	if r.err != "" {
		return l.handleError(r.err)
	}
	if len(r.parts) == 0 {
		return nil // an empty push
	}
	kind := string(r.parts[0])
	args := r.parts[1:]
	switch {
	case kind == "PONG", kind == "pong": // +PONG, or an array of "pong" in the pub/sub mode of RESP2
		return l.handleAnswer(ping, "")
	case len(args) < 2:
		return nil // a push of another kind
	}
	switch kind {
	case "message", "smessage":
		if !r.truncated { // this library sends no message that long
			l.deliver(args[0], args[1])
		}
	case "subscribe", "ssubscribe":
		return l.handleAnswer(subscribe, string(args[0]))
	case "unsubscribe":
		return l.handleAnswer(unsubscribe, string(args[0]))
	case "sunsubscribe":
		l.shardUnsubscribed(string(args[0]))
	}
	return nil
}

// deliver passes a message to the listeners of its channel, in the reader's goroutine. Messages
// before the confirmation are dropped: no listener may rely on them yet. Delivery allocates nothing
// except the string of a payload longer than one byte.
func (l *link) deliver(name, payload []byte) {
	// The listeners are copied, because they must be called without mu. A subscription that is
	// closed meanwhile ignores the signal.
	l.hub.mu.Lock()
	c := l.hub.channels[string(name)] // the compiler does not allocate for this conversion
	if c != nil && c.link == l && c.confirmed() {
		l.toSignal = append(l.toSignal, c.listeners...)
	}
	l.hub.mu.Unlock()
	if len(l.toSignal) > 0 {
		l.signal(Signal{Payload: string(payload)})
	}
}

// signal calls the listeners in toSignal and empties it. hub.mu is not held.
func (l *link) signal(sig Signal) {
	for i, s := range l.toSignal {
		l.toSignal[i] = nil // the array is reused and must not keep closed subscriptions alive
		s.signal(sig)
	}
	l.toSignal = l.toSignal[:0]
}

// handleAnswer applies an answer to the first command in flight, and signals the listeners of a
// channel that was confirmed again.
func (l *link) handleAnswer(word, name string) error {
	if err := l.applyAnswer(word, name); err != nil {
		return err
	}
	l.signal(Signal{Resubscribed: true})
	l.logBack()
	return nil
}

// applyAnswer checks that an answer matches the first command in flight and that command's next
// unanswered channel, and counts it. A mismatch means that client and server disagree about the
// commands, so it ends the link.
func (l *link) applyAnswer(word, name string) error {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	if len(l.inflight) == 0 || l.inflight[0].lastWord() != word {
		return fmt.Errorf("%w: unexpected answer to %s %q", errProtocol, word, name)
	}
	cmd := l.inflight[0]
	if word == ping {
		l.popInflight()
		return nil
	}
	c := cmd.channels[cmd.answered]
	if c.name != name {
		return fmt.Errorf("%w: %s of %q answered for %q", errProtocol, word, c.name, name)
	}
	cmd.answered++
	if cmd.answered == len(cmd.channels) {
		l.popInflight()
	}
	// A channel stays placed while a SUBSCRIBE of it is unanswered, so c still belongs to this
	// link.
	if word == subscribe {
		c.unanswered--
		l.confirm(c)
	}
	return nil
}

// popInflight removes the first command in flight. hub.mu is held.
func (l *link) popInflight() {
	l.inflight[0] = nil
	l.inflight = l.inflight[1:]
}

// confirm handles the confirmation of a SUBSCRIBE. If it answers the latest one, confirm closes
// Confirmed of new listeners and collects old listeners in toSignal. hub.mu is held.
func (l *link) confirm(c *channel) {
	switch {
	case c.confirmed():
		c.attempts = 0
		l.served = true
		for _, s := range c.listeners {
			if s.isConfirmed {
				l.toSignal = append(l.toSignal, s)
			}
			s.confirm()
		}
	case c.unanswered == 0 && !c.wanted():
		l.remove(c) // UNSUBSCRIBE was sent before this answer arrived
	}
}

// shardUnsubscribed handles a SUNSUBSCRIBE. It is the answer to ours, or the server has sent it on
// its own because the slot has moved to another server. A channel whose SUNSUBSCRIBE was sent is
// not confirmed until a later SUBSCRIBE has been answered, so a confirmed channel has lost its
// slot.
func (l *link) shardUnsubscribed(name string) {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	if len(l.inflight) > 0 {
		if cmd := l.inflight[0]; cmd.fenced && cmd.expects(name) {
			cmd.answered++
			return
		}
	}
	// An unconfirmed channel still gets the answer to its SUBSCRIBE.
	if c := l.hub.channels[name]; c != nil && c.link == l && c.confirmed() {
		l.retryLater(c)
	}
}

// lastWord returns the command whose reply ends cmd.
func (cmd *command) lastWord() string {
	if cmd.fenced {
		return ping
	}
	return cmd.word
}

// expects reports whether the next answer is for the channel.
func (cmd *command) expects(name string) bool {
	return cmd.answered < len(cmd.channels) && cmd.channels[cmd.answered].name == name
}

// retryLater detaches a channel that the server does not serve now. If it has listeners, the hub
// places it again later. hub.mu is held.
func (l *link) retryLater(c *channel) {
	l.detach(c)
	if !c.wanted() {
		c.unplace()
		l.hub.remove(c)
		return
	}
	l.hub.retryLater(c)
}

// handleError applies an error reply to the first command in flight. It returns an error, and so
// ends the link, if the reply concerns the whole connection.
func (l *link) handleError(text string) error {
	message, refused, err := l.applyError(text)
	if err != nil {
		return err
	}
	for _, name := range refused {
		l.hub.logger.LogAttrs(l.ctx, slog.LevelWarn, message,
			slog.String("channel", name), slog.String("error", text))
	}
	l.signal(Signal{Resubscribed: true}) // the last signal of refused listeners
	return nil
}

// applyError updates the channels of the failed command. It returns what to log, for which
// channels.
func (l *link) applyError(text string) (message string, channels []string, err error) {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	if len(l.inflight) == 0 {
		return "", nil, fmt.Errorf("pubsub: error reply without a command: %s", text)
	}
	cmd := l.inflight[0]
	switch {
	case errorCode(text) == "NOAUTH" && cmd.word != ping:
		return "", nil, fmt.Errorf("pubsub: %s: %s", cmd.word, text)
	case cmd.word == ping:
		l.popInflight() // PING may be forbidden; any reply proves that the link works
		return "", nil, nil
	case cmd.word == unsubscribe:
		return l.unsubscribeRefused(cmd, text)
	default:
		l.popInflight()
		return "channel refused", l.subscribeRefused(cmd, text), nil
	}
}

// unsubscribeRefused handles an error reply to UNSUBSCRIBE. The link stays, because a message for a
// channel without listeners does no harm, and new links would be refused too. hub.mu is held.
func (l *link) unsubscribeRefused(cmd *command, text string) (message string, channels []string, err error) {
	done := cmd.answered == len(cmd.channels)
	rest := cmd.channels[cmd.answered:]
	cmd.answered = len(cmd.channels)
	// After all answers, only the PING of the command can be forbidden.
	if !cmd.fenced || done && errorCode(text) == "NOPERM" {
		l.popInflight()
	}
	if done || isTemporary(text) {
		return "", nil, nil // the slot has moved, and the server has dropped the subscription with it
	}
	l.leftover += len(rest)
	if l.leftover > maxLeftover {
		return "", nil, fmt.Errorf("pubsub: too many channels that cannot be unsubscribed: %s", text)
	}
	if l.hub.unsubscribeRefused {
		return "", nil, nil
	}
	l.hub.unsubscribeRefused = true // log the first one only: each waiter that leaves would cause another
	return "unsubscribe refused", []string{rest[0].name}, nil
}

// subscribeRefused updates the channels of a failed SUBSCRIBE. It returns the channels that are
// refused for good. hub.mu is held.
func (l *link) subscribeRefused(cmd *command, text string) (refused []string) {
	// Only channels whose latest command this was are affected. The others have
	// been unsubscribed or subscribed again since, and later replies decide about them.
	rest := cmd.channels[cmd.answered:]
	var latest []*channel
	for _, c := range rest {
		c.unanswered--
		switch {
		case c.unanswered > 0: // a newer SUBSCRIBE decides
		case !c.wanted():
			l.remove(c)
		case c.subscribeSent:
			c.subscribeSent = false
			latest = append(latest, c)
		}
	}
	switch {
	case errorCode(text) == "NOPERM" && len(rest) > 1:
		// One forbidden channel fails the whole command, and the reply does not name it. Send each
		// half again, until a forbidden channel is alone in its command.
		half := len(latest) / 2
		l.split = append(l.split, latest[:half], latest[half:])
		l.wake()
	case isTemporary(text):
		// The slot has moved, or the server is loading or read-only. Look the server up again
		// later.
		for _, c := range latest {
			l.retryLater(c)
		}
	default:
		// A refusal is permanent until somebody changes the server. Retrying would only repeat it,
		// so end the subscriptions.
		for _, c := range latest {
			refused = append(refused, c.name)
			err := fmt.Errorf("pubsub: subscribe to %q: %s", c.name, text)
			l.toSignal = append(l.toSignal, l.hub.failListeners(c, err)...)
			l.remove(c)
		}
	}
	return refused
}
