package pubsub

import (
	"container/list"
	"time"
)

const (
	defaultLinger = 500 * time.Millisecond
	maxLingering  = 1000 // channels of a hub; the one that has lingered longest makes room
)

// lingering holds the channels that nobody listens to but that are still subscribed, on their links, in case somebody comes back. All
// linger equally long, so the first in the list is the first to go and one timer does for all. It fires once more than needed rather
// than being stopped and started again with each who comes and goes. Guarded by Hub.mu.
type lingering struct {
	list  list.List // of *channel
	timer *time.Timer
	armed bool // the timer is to fire
}

// first returns the channel that is to go first, or nil.
func (l *lingering) first() *channel {
	if e := l.list.Front(); e != nil {
		return e.Value.(*channel)
	}
	return nil
}

// linger puts off the end of a channel. mu is held.
func (h *Hub) linger(c *channel) {
	if h.lingering.list.Len() == maxLingering {
		h.dismiss(h.lingering.first())
	}
	c.until = time.Now().Add(h.cfg.Linger)
	c.place = h.lingering.list.PushBack(c)
	h.awaitLingering()
}

// awaitLingering has the timer fire when the first channel is to go, unless it is to fire before. mu is held.
func (h *Hub) awaitLingering() {
	l := &h.lingering
	c := l.first()
	if l.armed || c == nil {
		return
	}
	l.armed = true
	wait := time.Until(c.until)
	if l.timer == nil {
		l.timer = time.AfterFunc(wait, h.dismissDue)
		return
	}
	l.timer.Reset(wait)
}

// dismissDue ends the channels whose time is up.
func (h *Hub) dismissDue() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lingering.armed = false
	now := time.Now()
	for c := h.lingering.first(); c != nil && !now.Before(c.until); c = h.lingering.first() {
		h.dismiss(c)
	}
	h.awaitLingering()
}

// dismiss ends the lingering of a channel: its link is to unsubscribe it. mu is held.
func (h *Hub) dismiss(c *channel) {
	h.recall(c)
	c.link.touch(c)
}

// recall takes a channel off the list if it is there: it is wanted again, or has lost its link, or its time is up. mu is held.
func (h *Hub) recall(c *channel) {
	if c.place != nil {
		h.lingering.list.Remove(c.place)
		c.place = nil
	}
}

// endLingering forgets all, as the hub is closed. mu is held.
func (h *Hub) endLingering() {
	for c := h.lingering.first(); c != nil; c = h.lingering.first() {
		h.recall(c)
	}
	if h.lingering.timer != nil {
		h.lingering.timer.Stop()
	}
}
