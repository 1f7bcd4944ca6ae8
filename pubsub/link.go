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
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	perCommand = 1000     // channels in one SUBSCRIBE or UNSUBSCRIBE
	perWrite   = 64 << 10 // bytes, about: each write has a deadline of its own, so that slow links can keep it
)

// link is one connection, from dialing to its end. It is never re-made: its channels become homeless and are placed again.
//
// Two goroutines serve it. One writes: what is pending, and a PING a second. The other reads, and gives up after a long silence.
// The server answers in the order of the commands, so whatever comes is the answer to the first of l.inflight; only messages, and the
// notice that a slot has moved, come unasked.
type link struct {
	hub    *Hub
	server server
	ctx    context.Context // ends with the hub, or when the link has been idle
	cancel context.CancelFunc
	kick   chan struct{} // tells the writer of dirty channels
	idle   *time.Timer   // expires the link; set when its last channel leaves
	due    []*Subscription

	// guarded by hub.mu
	channels map[*channel]struct{}
	dirty    []*channel   // what is sent for them may differ from what is wanted
	again    [][]*channel // parts of a refused command: each to be sent as a command
	inflight []*command   // sent, in order, and not fully answered
	served   bool         // something was confirmed
}

// command is one command on the wire. PING has no channels.
type command struct {
	word     string
	channels []*channel // answered in this order
	answered int
}

const (
	ping        = "PING"
	subscribe   = "SUBSCRIBE"
	unsubscribe = "UNSUBSCRIBE"
)

func newLink(h *Hub, s server) *link {
	l := &link{hub: h, server: s, kick: make(chan struct{}, 1), channels: make(map[*channel]struct{})}
	l.ctx, l.cancel = context.WithCancel(h.ctx)
	l.inflight = []*command{{word: ping}} // connect's
	l.idle = time.AfterFunc(h.cfg.limits.idle, l.expire)
	l.idle.Stop()
	return l
}

// adopt gives a homeless channel to the link. hub.mu is held.
func (l *link) adopt(c *channel) {
	c.link = l
	l.channels[c] = struct{}{}
	l.touch(c)
}

// touch has the writer look at a channel. hub.mu is held.
func (l *link) touch(c *channel) {
	if !c.dirty {
		c.dirty = true
		l.dirty = append(l.dirty, c)
	}
	l.wake()
}

func (l *link) wake() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// drop takes a channel that nobody wants off the books. hub.mu is held.
func (l *link) drop(c *channel) {
	l.release(c)
	c.uproot()
	l.hub.forget(c)
}

// release takes a channel off the link. hub.mu is held.
func (l *link) release(c *channel) {
	delete(l.channels, c)
	if len(l.channels) == 0 && !l.hub.closed {
		l.idle.Reset(l.hub.cfg.limits.idle)
	}
}

// expire ends a link that is still without channels.
func (l *link) expire() {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	if len(l.channels) == 0 {
		l.unlist()
		l.cancel()
	}
}

// unlist keeps new channels away. hub.mu is held.
func (l *link) unlist() {
	l.idle.Stop()
	if l.hub.links[l.server.name] == l {
		delete(l.hub.links, l.server.name)
	}
}

// run is the link's life.
func (l *link) run() {
	err := l.serve()
	l.cancel()
	h := l.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	l.unlist()
	if h.closed {
		return
	}
	if len(l.channels) == 0 {
		delete(h.failures, l.server.name)
		return
	}
	if l.served {
		h.failures[l.server.name] = 0
	}
	h.failures[l.server.name]++
	for c := range l.channels {
		c.uproot()
		if !c.wanted() {
			h.forget(c)
			continue
		}
		h.fresh = append(h.fresh, c)
	}
	if h.router != nil {
		h.router.refresh(h.ctx)
	}
	h.settleSoon()
	h.logger.LogAttrs(h.ctx, slog.LevelWarn, "link lost", slog.String("server", l.server.options.Addr), slog.Any("error", err))
}

// serve connects and works until the link ends, and says why.
func (l *link) serve() error {
	if err := l.pause(); err != nil {
		return err
	}
	conn, err := connect(l.ctx, l.server.options, l.hub.cfg.limits)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer closeWith(l.ctx, conn)()

	var reason error
	ended := make(chan struct{})
	l.hub.tasks.Go(func() {
		defer close(ended)
		reason = l.read(conn)
	})
	err = l.write(conn, ended)
	conn.Close()
	<-ended
	return cmp.Or(err, reason)
}

// pause lets a server that failed recover.
func (l *link) pause() error {
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

// write sends commands until that fails or the reader has ended.
func (l *link) write(conn net.Conn, ended <-chan struct{}) error {
	beat := time.NewTicker(l.hub.cfg.limits.ping)
	defer beat.Stop()
	for {
		var cmds []*command
		select {
		case <-ended:
			return nil
		case <-beat.C:
			cmds = l.pulse()
		case <-l.kick:
			cmds = l.pending()
		}
		if err := l.send(conn, cmds); err != nil {
			return err
		}
	}
}

func (l *link) send(conn net.Conn, cmds []*command) error {
	var buf []byte
	for i, cmd := range cmds {
		buf = cmd.append(buf, l.server.sharded)
		if len(buf) < perWrite && i+1 < len(cmds) {
			continue
		}
		if err := conn.SetWriteDeadline(time.Now().Add(l.hub.cfg.limits.dead)); err != nil {
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
	return b
}

func (l *link) pulse() []*command {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	return l.enqueue(nil, &command{word: ping})
}

// pending returns the commands that make the server's view of the dirty channels the wanted one. They count as in flight from here on,
// so no answer can come too early.
func (l *link) pending() []*command {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	var cmds []*command
	for _, part := range l.again {
		part = slices.DeleteFunc(part, func(c *channel) bool { return c.link != l || c.sent || !c.wanted() })
		cmds = l.subscribe(cmds, part)
	}
	var join, leave []*channel
	for _, c := range l.dirty {
		if c.link != l {
			continue // dropped; perhaps somebody else's by now
		}
		c.dirty = false
		switch {
		case c.wanted() && !c.sent:
			join = append(join, c)
		case !c.wanted() && c.sent:
			leave = append(leave, c)
		}
	}
	l.again, l.dirty = nil, nil
	for batch := range l.batches(leave) {
		cmds = l.unsubscribe(cmds, batch)
	}
	for batch := range l.batches(join) {
		cmds = l.subscribe(cmds, batch)
	}
	return cmds
}

// batches cuts channels into what fits a command. Sharded ones must also share a slot.
func (l *link) batches(channels []*channel) iter.Seq[[]*channel] {
	if !l.server.sharded {
		return slices.Chunk(channels, perCommand)
	}
	bySlot := make(map[uint16][]*channel)
	for _, c := range channels {
		slot := slotOf(c.name)
		bySlot[slot] = append(bySlot[slot], c)
	}
	return func(yield func([]*channel) bool) {
		for _, same := range bySlot {
			for batch := range slices.Chunk(same, perCommand) {
				if !yield(batch) {
					return
				}
			}
		}
	}
}

func (l *link) subscribe(cmds []*command, channels []*channel) []*command {
	if len(channels) == 0 {
		return cmds
	}
	for _, c := range channels {
		c.sent = true
		c.unanswered++
	}
	return l.enqueue(cmds, &command{word: subscribe, channels: channels})
}

func (l *link) unsubscribe(cmds []*command, channels []*channel) []*command {
	for _, c := range channels {
		c.sent = false
		if c.unanswered == 0 {
			l.drop(c) // a newcomer of that name starts afresh, behind this command
		}
	}
	return l.enqueue(cmds, &command{word: unsubscribe, channels: channels})
}

func (l *link) enqueue(cmds []*command, cmd *command) []*command {
	l.inflight = append(l.inflight, cmd)
	return append(cmds, cmd)
}

// read takes in what the server sends until that fails, makes no sense, or stops for too long.
func (l *link) read(conn net.Conn) error {
	d := newDecoder(&impatient{conn: conn, dead: l.hub.cfg.limits.dead})
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

// impatient fails once nothing at all has come for a while: for dead, or a little longer, as the deadline is not moved at each Read.
type impatient struct {
	conn  net.Conn
	dead  time.Duration
	moved time.Time // the deadline was, last
}

func (r *impatient) Read(p []byte) (int, error) {
	slack := r.dead / 30
	if now := time.Now(); now.Sub(r.moved) >= slack {
		if err := r.conn.SetReadDeadline(now.Add(r.dead + slack)); err != nil {
			return 0, err
		}
		r.moved = now
	}
	return r.conn.Read(p)
}

// handle acts on one reply. An error ends the link.
func (l *link) handle(r reply) error {
	if r.err != "" {
		return l.failed(r.err)
	}
	if len(r.parts) == 0 {
		return nil
	}
	kind, args := string(r.parts[0]), r.parts[1:]
	switch {
	case kind == "PONG", kind == "pong":
		return l.answer(ping, "")
	case len(args) < 2:
		return nil // a push that is none of our business
	}
	switch kind {
	case "message", "smessage":
		if !r.cut { // a message with something discarded is not ours
			l.deliver(args[0], args[1])
		}
	case "subscribe", "ssubscribe":
		return l.answer(subscribe, string(args[0]))
	case "unsubscribe":
		return l.answer(unsubscribe, string(args[0]))
	case "sunsubscribe":
		name := string(args[0])
		if l.evicted(name) {
			return nil
		}
		return l.answer(unsubscribe, name)
	}
	return nil
}

// deliver hands a message to the listeners of its channel. Before the confirmation there is nobody who could have missed it. The reader
// itself calls them, and nothing is allocated on the way but a payload of more than one byte.
func (l *link) deliver(name, payload []byte) {
	l.hub.mu.Lock()
	c := l.hub.channels[string(name)]
	if c != nil && c.link == l && c.confirmed() {
		l.due = append(l.due, c.listeners...)
	}
	l.hub.mu.Unlock()
	if len(l.due) > 0 {
		l.signal(Signal{Payload: string(payload)})
	}
}

// signal calls those who are due.
func (l *link) signal(sig Signal) {
	for i, s := range l.due {
		l.due[i] = nil
		s.signal(sig)
	}
	l.due = l.due[:0]
}

// answer books an answer to the first command in flight.
func (l *link) answer(word, name string) error {
	if err := l.book(word, name); err != nil {
		return err
	}
	l.signal(Signal{Resubscribed: true})
	return nil
}

func (l *link) book(word, name string) error {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	if len(l.inflight) == 0 || l.inflight[0].word != word {
		return fmt.Errorf("%w: unexpected answer to %s %q", errProtocol, word, name)
	}
	cmd := l.inflight[0]
	if word == ping {
		l.answered()
		return nil
	}
	c := cmd.channels[cmd.answered]
	if c.name != name {
		return fmt.Errorf("%w: %s of %q answered for %q", errProtocol, word, c.name, name)
	}
	if cmd.answered++; cmd.answered == len(cmd.channels) {
		l.answered()
	}
	if word == subscribe {
		c.unanswered--
		l.confirm(c)
	}
	return nil
}

// answered takes the first command off those in flight.
func (l *link) answered() {
	l.inflight[0] = nil
	l.inflight = l.inflight[1:]
}

// confirm tells the listeners of a channel if the latest SUBSCRIBE was answered: the new ones by Confirmed, the others by a signal.
func (l *link) confirm(c *channel) {
	switch {
	case c.confirmed():
		c.tries = 0
		l.served = true
		for _, s := range c.listeners {
			if s.isConfirmed {
				l.due = append(l.due, s)
			}
			s.confirm()
		}
	case c.unanswered == 0 && !c.wanted():
		l.drop(c) // it was unsubscribed while the answer was on its way
	}
}

// evicted handles the notice that a slot has moved away with its channels. It returns false if we had unsubscribed by ourselves.
func (l *link) evicted(name string) bool {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	if len(l.inflight) > 0 {
		if cmd := l.inflight[0]; cmd.word == unsubscribe && cmd.channels[cmd.answered].name == name {
			return false
		}
	}
	if c := l.hub.channels[name]; c != nil && c.link == l && c.confirmed() {
		l.turnAway(c)
	}
	return true
}

// turnAway makes a channel homeless that the server does not serve, or not now.
func (l *link) turnAway(c *channel) {
	l.release(c)
	if !c.wanted() {
		c.uproot()
		l.hub.forget(c)
		return
	}
	l.hub.lose(c)
}

// failed books an error reply to the first command in flight. An error that concerns the whole connection ends the link.
func (l *link) failed(text string) error {
	refused, err := l.blame(text)
	if err != nil {
		return err
	}
	for _, name := range refused {
		l.hub.logger.LogAttrs(l.ctx, slog.LevelWarn, "channel refused", slog.String("channel", name), slog.String("error", text))
	}
	l.signal(Signal{Resubscribed: true})
	return nil
}

// blame finds out what an error reply means to the channels of its command, and returns those that are refused for good.
func (l *link) blame(text string) (refused []string, err error) {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	if len(l.inflight) == 0 {
		return nil, fmt.Errorf("pubsub: server says: %s", text)
	}
	cmd := l.inflight[0]
	l.answered()
	switch {
	case cmd.word == ping:
		return nil, nil // as good as a PONG
	case cmd.word == unsubscribe && passing(text):
		return nil, nil // the slot has moved, and the channel with it
	case cmd.word == unsubscribe, code(text) == "NOAUTH":
		return nil, fmt.Errorf("pubsub: %s: %s", cmd.word, text)
	}

	rest := cmd.channels[cmd.answered:]
	var latest []*channel // those of which this was the latest command
	for _, c := range rest {
		c.unanswered--
		switch {
		case c.unanswered > 0:
		case !c.wanted():
			l.drop(c)
		case c.sent:
			c.sent = false
			latest = append(latest, c)
		}
	}
	switch {
	case code(text) == "NOPERM" && len(rest) > 1: // one of them is enough for the refusal of all
		half := len(latest) / 2
		l.again = append(l.again, latest[:half], latest[half:])
		l.wake()
	case passing(text):
		for _, c := range latest {
			l.turnAway(c)
		}
	default:
		for _, c := range latest {
			refused = append(refused, c.name)
			l.due = append(l.due, l.hub.refuse(c, fmt.Errorf("pubsub: subscribe to %q: %s", c.name, text))...)
			l.drop(c)
		}
	}
	return refused, nil
}

// closeWith closes a connection when ctx is done. The func that it returns, to be called once, ends that; it waits for a closing under
// way, and tells whether there was none.
func closeWith(ctx context.Context, conn net.Conn) (intact func() bool) {
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(closed)
		conn.Close()
	})
	return func() bool {
		if stop() {
			return true
		}
		<-closed
		return false
	}
}

// connect has go-redis dial and greet the server as o says. The socket it returns is ours alone, with the answer to a PING to come; closing
// it ends all I/O. If ctx ends, what is under way is cut short.
func connect(ctx context.Context, o *redis.Options, limits limits) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, limits.connect)
	defer cancel()
	var conn *loan
	intact := func() bool { return true }
	opts := *o
	opts.Dialer = func(_ context.Context, network, addr string) (net.Conn, error) {
		if conn != nil {
			return nil, errors.New("pubsub: a link is dialed once")
		}
		c, err := o.Dialer(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		conn = &loan{Conn: c}
		intact = closeWith(ctx, c)
		return conn, nil
	}
	opts.ReadTimeout, opts.WriteTimeout = limits.dead, limits.dead
	opts.MaxRetries, opts.MinIdleConns, opts.PoolSize = -1, 0, 1
	opts.ClientSideCache, opts.ClientSideCacheConfig = nil, nil
	opts.PushNotificationProcessor = nil
	opts.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}

	client := redis.NewClient(&opts)
	defer client.Close()
	err := client.Subscribe(ctx).Ping(ctx) // of no channels: only connects
	if !intact() && err == nil {
		err = context.Cause(ctx)
	}
	switch {
	case err == nil:
		conn.kept = true
		return conn.Conn, nil
	case conn != nil:
		_ = conn.Close() // go-redis has done so, perhaps
	}
	return nil, fmt.Errorf("pubsub: connect: %w", err)
}

// loan is a connection as go-redis has it: closing its client closes the connection, unless that is kept. What the client takes, its buffers above
// all, need not stay with it.
type loan struct {
	net.Conn
	kept bool
}

func (l *loan) Close() error {
	if l.kept {
		return nil
	}
	return l.Conn.Close()
}
