package pubsub

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"
)

// link is one connection, from the dial to its end. It never reconnects: when it ends, its channels
// become unplaced and the hub places them on a new link.
//
// Two goroutines serve a link. The writer sends pending commands, and a PING when nothing has
// arrived for a while. It also checks regularly whether the server is still the right one. The
// reader handles replies and messages. It ends the link if the silence lasts.
//
// A channel that needs a command is dirty. The writer turns all dirty channels into a few commands,
// appends the commands to inflight and writes them, in the same order. The server replies in the
// order of the commands, so every reply belongs to the first command in flight. Only messages, and
// the SUNSUBSCRIBE of a slot that has moved, come without a command.
type link struct {
	hub        *Hub
	server     server
	ctx        context.Context // ends with the hub, or when the link has been idle
	cancel     context.CancelFunc
	wakeWriter chan struct{}   // capacity 1: there are dirty channels or split commands
	lookNow    chan struct{}   // capacity 1: the server is to be checked
	idle       *time.Timer     // runs expire; started when the last channel leaves
	leaving    *time.Timer     // runs unsubscribeNow; started by leave
	started    time.Time       // heard counts from here, in ns
	heard      atomic.Int64    // when the reader began to wait for data
	toSignal   []*Subscription // used by the reader only; reused to avoid allocations

	confirmedOnce bool // the reader has seen the first confirmation: see logBack

	// The fields below are guarded by hub.mu.

	channels  map[*channel]struct{}
	dirty     []*channel   // channels for which a command may have to be sent
	isLeaving bool         // the timer leaving runs
	split     [][]*channel // parts of a refused SUBSCRIBE; each part is sent again as one command
	inflight  []*command   // sent, in order, and not fully answered
	served    bool         // the server has confirmed at least one channel
	leftover  int          // channels whose UNSUBSCRIBE was refused: the server still sends their messages
}

func newLink(h *Hub, s server) *link {
	l := &link{
		hub: h, server: s, wakeWriter: make(chan struct{}, 1), lookNow: make(chan struct{}, 1),
		started:  time.Now(),
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

// leave has a channel without listeners unsubscribed, a moment later or with the next command. A
// waiter that has just acquired would be delayed by waking the writer. The next waiter often comes
// soon, and then nothing is sent. hub.mu is held.
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
		l.logLost(err)
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
	if len(l.channels) == 0 { // the link was idle: this is not a failure
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
