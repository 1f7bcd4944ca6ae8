package pubsub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/redlatch/redlatch/internal/redisutil"
)

const (
	perCommand = 1000 // channels in one SUBSCRIBE or UNSUBSCRIBE
	// perWrite is the approximate size of one write, in bytes. Each write has its own deadline, so
	// that a slow connection can send a large batch of commands in time.
	perWrite = 64 << 10
)

// link is one connection, from the dial to its end. It never reconnects: when it ends, its channels
// become unplaced and the hub places them on a new link.
//
// Two goroutines serve a link. The writer sends pending commands, and a PING when nothing has
// arrived for a while. It also checks regularly whether the server is still the right one. The reader
// handles replies and messages. It ends the link if the silence lasts.
//
// A channel that needs a command is dirty. The writer turns all dirty channels into a few commands,
// appends the commands to inflight and writes them, in the same order. The server replies in the
// order of the commands. So every reply belongs to the first command in flight. Only messages, and
// the SUNSUBSCRIBE of a slot that has moved, come without a command.
type link struct {
	hub        *Hub
	server     server
	ctx        context.Context // ends with the hub, or when the link has been idle
	cancel     context.CancelFunc
	wakeWriter chan struct{}   // capacity 1: there are dirty channels or split commands
	idle       *time.Timer     // runs expire; started when the last channel leaves
	leaving    *time.Timer     // runs unsubscribeNow; started by leave
	started    time.Time       // heard counts from here, in ns
	heard      atomic.Int64    // when the reader began to wait for data
	toSignal   []*Subscription // used by the reader only; reused to avoid allocations

	// The fields below are guarded by hub.mu.

	channels  map[*channel]struct{}
	dirty     []*channel   // channels for which a command may have to be sent
	isLeaving bool         // the timer leaving runs
	split     [][]*channel // parts of a refused SUBSCRIBE; each part is sent again as one command
	inflight  []*command   // sent, in order, and not fully answered
	served    bool         // the server has confirmed at least one channel
	leftover  int          // channels whose UNSUBSCRIBE was refused: the server still sends their messages
}

// maxLeftover limits the subscriptions without listeners that a server keeps for one link because it
// refuses UNSUBSCRIBE. Then a new connection replaces the link.
const maxLeftover = 10_000

// command is one command on the wire. PING has no channels.
//
// A SUNSUBSCRIBE is followed by a PING that counts as part of it. If its slot moves before the server
// executes it, the server sends a SUNSUBSCRIBE of its own for each channel, which looks like the answer,
// and then refuses the command. Only the reply to PING shows that nothing more will come.
type command struct {
	word     string
	channels []*channel // the server answers for each of them, in this order
	answered int
	fenced   bool // a PING follows
}

const (
	ping        = "PING"
	subscribe   = "SUBSCRIBE"
	unsubscribe = "UNSUBSCRIBE"
)

func newLink(h *Hub, s server) *link {
	l := &link{
		hub: h, server: s, wakeWriter: make(chan struct{}, 1), started: time.Now(),
		channels: make(map[*channel]struct{}),
	}
	l.ctx, l.cancel = context.WithCancel(h.ctx)
	l.inflight = []*command{{word: ping}} // connect leaves the reply to its PING unread
	l.idle = time.AfterFunc(h.cfg.limits.idle, l.expire)
	l.idle.Stop() // a new link gets a channel at once
	l.leaving = time.AfterFunc(h.cfg.limits.leave, l.unsubscribeNow)
	l.leaving.Stop()
	return l
}

// place assigns an unplaced channel to the link. hub.mu is held.
func (l *link) place(c *channel) {
	c.link = l
	l.channels[c] = struct{}{}
	l.markDirty(c)
}

// markDirty makes the writer check whether a command has to be sent for the channel. The writer
// decides when it sends, so a quick close and subscribe cancel each other out. hub.mu is held.
func (l *link) markDirty(c *channel) {
	l.addDirty(c)
	l.wake()
}

func (l *link) addDirty(c *channel) {
	if !c.dirty {
		c.dirty = true
		l.dirty = append(l.dirty, c)
	}
}

// leave has a channel without listeners unsubscribed, a moment later or with the next command. A waiter that has
// just acquired would be delayed by waking the writer. The next waiter often comes soon, and then nothing is sent.
// hub.mu is held.
func (l *link) leave(c *channel) {
	l.addDirty(c)
	if !l.isLeaving {
		l.isLeaving = true
		l.leaving.Reset(l.hub.cfg.limits.leave)
	}
}

// unsubscribeNow runs when the timer leaving fires. The link may have ended since.
func (l *link) unsubscribeNow() {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	l.isLeaving = false
	l.wake()
}

// wake wakes up the writer. It never blocks: one pending wake-up is enough.
func (l *link) wake() {
	select {
	case l.wakeWriter <- struct{}{}:
	default:
	}
}

// remove deletes a channel without listeners from the link and the hub. hub.mu is held.
func (l *link) remove(c *channel) {
	l.detach(c)
	c.unplace()
	l.hub.remove(c)
}

// detach deletes a channel from the link, and starts the idle timer after the last one. hub.mu is
// held.
func (l *link) detach(c *channel) {
	delete(l.channels, c)
	if len(l.channels) == 0 && !l.hub.closed {
		l.idle.Reset(l.hub.cfg.limits.idle)
	}
}

// expire ends the link if it still has no channels.
func (l *link) expire() {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	if len(l.channels) == 0 { // a channel may have arrived after the timer fired
		l.unregister()
		l.cancel()
	}
}

// unregister deletes the link from the hub, so that no channel is placed on it. hub.mu is held.
func (l *link) unregister() {
	l.stopTimers()
	if l.hub.links[l.server.name] == l {
		delete(l.hub.links, l.server.name)
	}
}

func (l *link) stopTimers() {
	l.idle.Stop()
	l.leaving.Stop()
}

// run serves the link until it ends, then gives its channels back to the hub.
func (l *link) run() {
	err := l.serve()
	l.cancel()
	if l.returnChannels() {
		// Without hub.mu: the handler may use the hub.
		l.hub.logger.LogAttrs(l.hub.ctx, slog.LevelWarn, "link lost",
			slog.String("server", l.server.options.Addr), slog.Any("error", err))
		if l.hub.cfg.LinkLost != nil {
			l.hub.cfg.LinkLost(err)
		}
	}
}

// returnChannels makes the link's channels unplaced, for a new link. It reports whether the link
// was lost, rather than idle or closed with the hub. The reader and the writer have ended by then,
// so no reply can interfere.
func (l *link) returnChannels() (lost bool) {
	h := l.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	l.unregister()
	if h.closed {
		return false
	}
	if len(l.channels) == 0 { // the link was idle: this is no failure
		delete(h.failures, l.server.name)
		return false
	}
	// A link that served counts as one failure, so the next link dials after the shortest backoff.
	if l.served {
		h.failures[l.server.name] = 0
	}
	h.failures[l.server.name]++
	for c := range l.channels {
		c.unplace()
		if !c.wanted() {
			h.remove(c) // the end of the connection has unsubscribed it
			continue
		}
		// unplaced, not retry: the channel itself was not refused, and the new link backs off
		// anyway.
		h.unplaced = append(h.unplaced, c)
	}
	if h.router != nil {
		h.router.refresh(h.ctx) // the server may have left the cluster
	}
	h.startPlacer()
	return true
}

// serve connects, and reads and writes until the link ends. It returns the reason.
func (l *link) serve() error {
	if err := l.backoff(); err != nil {
		return err
	}
	conn, err := connect(l.ctx, l.server.options, l.hub.cfg.limits)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer closeOnDone(l.ctx, conn)() // unblocks reads and writes when the hub is closed

	// Either side ends the other: a failed read closes readerDone, a failed write closes conn.
	var readErr error
	readerDone := make(chan struct{})
	l.hub.tasks.Go(func() {
		defer close(readerDone)
		readErr = l.read(conn)
	})
	err = l.write(conn, readerDone)
	conn.Close()
	<-readerDone
	return cmp.Or(err, readErr)
}

// backoff waits before the dial if earlier links to the server have failed.
func (l *link) backoff() error {
	l.hub.mu.Lock()
	failures := l.hub.failures[l.server.name]
	l.hub.mu.Unlock()
	if failures == 0 {
		return nil
	}
	timer := time.NewTimer(backoff(failures))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-l.ctx.Done():
		return context.Cause(l.ctx)
	}
}

// write sends commands until a write fails or the reader has ended. It is the only writer of the
// connection, so commands leave in the order of inflight.
func (l *link) write(conn net.Conn, readerDone <-chan struct{}) error {
	quiet := l.hub.cfg.limits.quiet
	timer := time.NewTimer(quiet)
	defer timer.Stop()
	var look <-chan time.Time
	if l.server.check != nil {
		ticker := time.NewTicker(l.hub.cfg.limits.look)
		defer ticker.Stop()
		look = ticker.C
	}
	for {
		var cmds []*command
		select {
		case <-readerDone:
			return nil
		case <-look:
			if err := l.server.check(l.ctx, conn.RemoteAddr()); err != nil {
				return err
			}
		case <-timer.C:
			if l.server.check != nil {
				// For later checks. A client that only waits may have no other reason to do so for a minute.
				l.hub.router.refresh(l.ctx) // it does not change while there are links
			}
			// The timer is not reset for each message. It looks at the last one when it fires.
			if heard := l.sinceHeard(); heard < quiet {
				timer.Reset(quiet - heard)
				continue
			}
			timer.Reset(quiet)
			l.hub.mu.Lock()
			cmds = l.enqueue(nil, &command{word: ping})
			l.hub.mu.Unlock()
		case <-l.wakeWriter:
			cmds = l.nextCommands()
		}
		if err := l.send(conn, cmds); err != nil {
			return err
		}
	}
}

// send encodes the commands and writes them in pieces of about perWrite bytes. hub.mu is not held:
// a slow connection must not block the hub.
func (l *link) send(conn net.Conn, cmds []*command) error {
	var buf []byte
	for i, cmd := range cmds {
		buf = cmd.append(buf, l.server.sharded)
		if len(buf) < perWrite && i+1 < len(cmds) {
			continue
		}
		if err := conn.SetWriteDeadline(time.Now().Add(l.hub.cfg.limits.answer)); err != nil {
			return err
		}
		if _, err := conn.Write(buf); err != nil {
			return err
		}
		buf = buf[:0]
	}
	return nil
}

// append encodes a command.
func (cmd *command) append(b []byte, sharded bool) []byte {
	word := cmd.word
	if sharded && word != ping {
		word = "S" + word
	}
	b = appendCommand(b, 1+len(cmd.channels), word)
	for _, c := range cmd.channels {
		b = appendWord(b, c.name)
	}
	if cmd.fenced {
		b = appendCommand(b, 1, ping)
	}
	return b
}

// nextCommands returns the commands that bring the server's subscriptions to the wanted state. The
// commands enter inflight before they are written, so that no reply can arrive too early.
func (l *link) nextCommands() []*command {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	var cmds []*command
	for _, part := range l.split {
		// Channels may have been closed, moved or subscribed again since the refusal.
		part = slices.DeleteFunc(part, func(c *channel) bool {
			return c.link != l || c.subscribeSent || !c.wanted()
		})
		cmds = l.subscribe(cmds, part)
	}
	// Compare only the wanted state with the last command sent. Replies in flight do not matter:
	// the server executes the commands in order, so the last one decides.
	var join, leave []*channel
	for _, c := range l.dirty {
		if c.link != l {
			continue // removed, and perhaps placed on another link since
		}
		c.dirty = false
		switch {
		case c.wanted() && !c.subscribeSent:
			join = append(join, c)
		case !c.wanted() && c.subscribeSent:
			leave = append(leave, c)
		}
	}
	l.split, l.dirty = nil, nil
	for batch := range l.batches(leave) {
		cmds = l.unsubscribe(cmds, batch)
	}
	for batch := range l.batches(join) {
		cmds = l.subscribe(cmds, batch)
	}
	return cmds
}

// batches splits channels into groups that fit one command. Sharded channels of one command must
// share a slot.
func (l *link) batches(channels []*channel) iter.Seq[[]*channel] {
	if !l.server.sharded {
		return slices.Chunk(channels, perCommand)
	}
	// A command with channels of several slots fails with CROSSSLOT.
	bySlot := make(map[uint16][]*channel)
	for _, c := range channels {
		slot := redisutil.Slot(c.name)
		bySlot[slot] = append(bySlot[slot], c)
	}
	return func(yield func([]*channel) bool) {
		for _, sameSlot := range bySlot {
			for batch := range slices.Chunk(sameSlot, perCommand) {
				if !yield(batch) {
					return
				}
			}
		}
	}
}

// subscribe appends a SUBSCRIBE of the channels to cmds. hub.mu is held.
func (l *link) subscribe(cmds []*command, channels []*channel) []*command {
	if len(channels) == 0 {
		return cmds
	}
	for _, c := range channels {
		c.subscribeSent = true
		c.unanswered++
	}
	return l.enqueue(cmds, &command{word: subscribe, channels: channels})
}

// unsubscribe appends an UNSUBSCRIBE of the channels to cmds. hub.mu is held.
func (l *link) unsubscribe(cmds []*command, channels []*channel) []*command {
	for _, c := range channels {
		c.subscribeSent = false
		// Without an unanswered SUBSCRIBE the channel is done. A new channel of that name may start
		// at once, because its SUBSCRIBE is sent after this command.
		if c.unanswered == 0 {
			l.remove(c)
		}
	}
	return l.enqueue(cmds, &command{word: unsubscribe, channels: channels, fenced: l.server.sharded})
}

// enqueue appends cmd to cmds and to the commands in flight. hub.mu is held.
func (l *link) enqueue(cmds []*command, cmd *command) []*command {
	l.inflight = append(l.inflight, cmd)
	return append(cmds, cmd)
}

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
	kind, args := string(r.parts[0]), r.parts[1:]
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
	if cmd.answered++; cmd.answered == len(cmd.channels) {
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

// shardUnsubscribed handles a SUNSUBSCRIBE. It is the answer to ours, or the server has sent it on its own
// because the slot has moved to another server. A channel whose SUNSUBSCRIBE was sent is not confirmed
// until a later SUBSCRIBE has been answered. So a confirmed channel has lost its slot.
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

// applyError updates the channels of the failed command. It returns what to log, for which channels.
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

// unsubscribeRefused handles an error reply to UNSUBSCRIBE. The link stays, because a message for a channel
// without listeners does no harm, and new links would be refused too. hub.mu is held.
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
	if l.leftover += len(rest); l.leftover > maxLeftover {
		return "", nil, fmt.Errorf("pubsub: too many channels that cannot be unsubscribed: %s", text)
	}
	if l.hub.unsubscribeRefused {
		return "", nil, nil
	}
	l.hub.unsubscribeRefused = true // log the first one only: each waiter that leaves would cause another
	return "unsubscribe refused", []string{rest[0].name}, nil
}

// subscribeRefused updates the channels of a failed SUBSCRIBE. It returns the channels that are refused
// for good. hub.mu is held.
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

// closeOnDone closes conn when ctx is done. The returned func ends that and must be called once. It
// waits for a close that has begun, and reports whether conn was left open.
func closeOnDone(ctx context.Context, conn net.Conn) (stop func() bool) {
	closed := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		defer close(closed)
		conn.Close()
	})
	return func() bool {
		if cancel() {
			return true
		}
		<-closed
		return false
	}
}

// connect makes go-redis dial the server and do the handshake as configured in o, and returns the
// socket. The reply to a PING is still unread on it. When ctx ends, connect closes the socket and
// returns.
func connect(ctx context.Context, o *redis.Options, limits limits) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, limits.connect)
	defer cancel()
	var conn *detachableConn
	stop := func() bool { return true }
	opts := *o
	// The dialer uses ctx of connect instead of its own, so that it ends with the link.
	opts.Dialer = func(_ context.Context, network, addr string) (net.Conn, error) {
		// conn and stop belong to a single socket, so refuse to dial again.
		if conn != nil {
			return nil, errors.New("pubsub: a link dials only once")
		}
		c, err := o.Dialer(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		conn = &detachableConn{Conn: c}
		stop = closeOnDone(ctx, c) // go-redis does not watch ctx while it reads
		return conn, nil
	}
	opts.ReadTimeout, opts.WriteTimeout = limits.answer, limits.answer
	// One connection, no retries, and nothing that uses the socket in the background.
	opts.MaxRetries, opts.MinIdleConns, opts.PoolSize = -1, 0, 1
	opts.ClientSideCache, opts.ClientSideCacheConfig = nil, nil
	opts.PushNotificationProcessor = nil
	opts.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}

	client := redis.NewClient(&opts)
	defer client.Close()
	err := client.Subscribe(ctx).Ping(ctx) // without channels: connects and sends a PING
	// Stop watching ctx before the socket is handed over. If ctx ended first, the socket is closed.
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	switch {
	case err == nil:
		conn.detached = true
		return conn.Conn, nil
	case conn != nil:
		_ = conn.Close() // go-redis may have closed it already
	}
	return nil, fmt.Errorf("pubsub: connect: %w", err)
}

// detachableConn lets a socket outlive the client that dialed it: once detached, Close does
// nothing. The client is closed after the handshake, which frees its buffers.
type detachableConn struct {
	net.Conn
	detached bool
}

func (c *detachableConn) Close() error {
	if c.detached {
		return nil
	}
	return c.Conn.Close()
}
