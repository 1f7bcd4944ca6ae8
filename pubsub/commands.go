package pubsub

import (
	"iter"
	"net"
	"slices"
	"time"

	"github.com/redlatch/redlatch/internal/redisutil"
)

const (
	perCommand = 1000 // channels in one SUBSCRIBE or UNSUBSCRIBE
	// perWrite is the approximate size of one write, in bytes. Each write has its own deadline, so
	// that a slow connection can send a large batch of commands in time.
	perWrite = 64 << 10
)

// command is one command on the wire. PING has no channels.
//
// A SUNSUBSCRIBE is followed by a PING that counts as part of it. If its slot moves before the
// server executes it, the server sends a SUNSUBSCRIBE of its own for each channel, which looks like
// the answer, and then refuses the command. Only the reply to PING shows that nothing more will
// come.
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
			if err := l.check(conn); err != nil {
				return err
			}
		case <-l.lookNow:
			if err := l.check(conn); err != nil {
				return err
			}
		case <-timer.C:
			if l.server.check != nil {
				// Reload the server map for later checks. A client that only waits may have no
				// other reason to reload it for a minute.
				l.hub.router.refresh(l.ctx) // the router does not change while there are links
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

// check returns why the link should leave its server, if it should.
func (l *link) check(conn net.Conn) error {
	if l.server.check == nil {
		return nil
	}
	return l.server.check(l.ctx, conn.RemoteAddr())
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
	l.split = nil
	l.dirty = nil
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
