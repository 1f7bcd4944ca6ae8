package engine

import (
	"sync"
	"time"
)

// How a holder hears that somebody waits for its lock.
//
// A waiter that the same holder has kept waiting for askAfter asks that holder's client, and asks
// again as long as it waits. Package presence carries the message. An ask is advice, and takes
// nothing away. It closes the channel of Hold.Wanted. A lock that lingers is given up, and one that
// could linger is freed at the end of a turn: see package turns.
//
//	waiter                               client of the holder
//	is refused by id 7
//	is still refused by it: asks id 7    Core.HandleAsk: closes the channels of the holds of id 7
//	                                     its user may release
//
// All waiters of a queue share one [Contact], which says who has refused them, and since when. Each
// client therefore sends one ask a second at most for each name, and none for a lock that changes
// hands more often than that.
//
// The holders of a pool, such as permits, are not named by a refusal: all of them are asked, once
// the waiter in front has waited for askAfter. Other holders may come and go meanwhile: that
// does not restart the time.
//
// Clients of other libraries do not ask. While a hold listens, its client looks once a second
// whether anybody waits for the messages of a release.

const (
	// askAfter is how long the same holder must have kept somebody waiting.
	askAfter = 100 * time.Millisecond
	// askAgain is the pause before the same holder is asked once more.
	askAgain = time.Second
	// askAllAgain is the same where the holders must be read first, such as those of permits. A
	// hold that begins to listen later finds most waiters by itself.
	askAllAgain = 10 * time.Second
	// firstLook is when a client first looks for waiters, after a hold began to listen. They may
	// have asked before.
	firstLook = 200 * time.Millisecond
	// lookAgain is the pause between two looks.
	lookAgain = time.Second
)

// Ask is a holder that is to be asked: the client of that id, or the clients of all holders if the
// id is "".
type Ask struct {
	Resource *Resource
	Holder   string
}

// listeningHolds are the holds of a client whose users want to hear that somebody waits. It is a
// part of Core.
type listeningHolds struct {
	mu    sync.Mutex          // guards looks; innermost
	looks map[*Hold]time.Time // for each hold that listens, when the client looks next for its waiters
}

// Wanted returns a channel that is closed when somebody waits for the resource of h. Once closed,
// it stays closed. From the first call on, the client of h listens until h ends. Wanted does not
// block.
func (h *Hold) Wanted() <-chan struct{} {
	h.mu.Lock()
	isFirst := h.wanted == nil
	if isFirst {
		h.wanted = make(chan struct{})
	}
	wanted := h.wanted
	hasEnded := h.cause != nil
	h.mu.Unlock()
	if isFirst && !hasEnded {
		h.held.Listen(h)
	}
	return wanted
}

// alreadyWanted is the channel of a hold that was wanted before anybody listened.
var alreadyWanted = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// NotifyWanted notes that somebody waits for the resource of h. It does not block. No mutex is
// held.
func (h *Hold) NotifyWanted() {
	h.mu.Lock()
	switch {
	case h.wanted == nil:
		h.wanted = alreadyWanted
	case !IsClosed(h.wanted):
		close(h.wanted)
	}
	h.mu.Unlock()
	h.r.Core.listening.remove(h)
	if h.group != nil {
		h.group.MemberWanted(h)
	}
}

// Listen implements [Holding]: the client hears asks for h from now on, and looks for waiters that
// do not ask.
func (o *Ownership) Listen(h *Hold) {
	c := o.r.Core
	if o.wasWanted() {
		h.NotifyWanted()
		return
	}
	c.listening.add(h, time.Now())
	if !h.IsLive() {
		c.listening.remove(h) // it has ended meanwhile, and end has not found it
		return
	}
	c.Presence.HoldListens()
}

// wasWanted reports whether another client has asked for o.
func (o *Ownership) wasWanted() bool {
	qs := &o.r.Core.queues
	qs.mu.Lock()
	defer qs.mu.Unlock()
	return o.wanted
}

func (l *listeningHolds) add(h *Hold, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.looks == nil {
		l.looks = map[*Hold]time.Time{}
	}
	l.looks[h] = now.Add(firstLook)
}

func (l *listeningHolds) remove(h *Hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.looks, h)
}

// ListeningTags returns the tags of the ids of all holds that listen: asks come to the channels of
// these tags.
func (c *Core) ListeningTags() (tags []string) {
	l := &c.listening
	l.mu.Lock()
	defer l.mu.Unlock()
	for h := range l.looks {
		if id := h.ID(); id != "" {
			tags = append(tags, c.Owners.TagOf(id))
		}
	}
	return tags
}

// HoldsToLookFor returns the listening holds for whose waiters the client should look now. next is
// when it should look again; [Never] if no hold listens.
func (c *Core) HoldsToLookFor(now time.Time) (holds []*Hold, next Instant) {
	l := &c.listening
	l.mu.Lock()
	defer l.mu.Unlock()
	next = Never
	for h, due := range l.looks {
		if !now.Before(due) {
			holds = append(holds, h)
			due = now.Add(lookAgain)
			l.looks[h] = due
		}
		next = min(next, c.Instant(due))
	}
	return holds, next
}

// HoldersToAsk returns the holders that are to be asked now, because they have kept waiters of this
// client waiting. Each is returned again as long as somebody waits. Holds of this client hear of
// their waiters here, without a message. next is when the next holder may be due; [Never] if none
// is.
func (c *Core) HoldersToAsk(now time.Time) (asks []Ask, next Instant) {
	next = Never
	var due []Ask
	f := &c.waitedFor
	f.mu.Lock()
	for k, w := range f.contacts {
		of, holder, at := k.takeDueAsk(now)
		if of == nil {
			of = w.resource
		}
		isOfMembers := of.Identity != nil && holder == "" // a joint lock: the holders of its members are asked
		switch {
		case at.IsZero(), isOfMembers: // nobody is asked
		case now.Before(at):
			next = min(next, c.Instant(at))
		default:
			next = min(next, c.Instant(now.Add(askAgain)))
			due = append(due, Ask{of, holder})
		}
	}
	f.mu.Unlock()
	for _, ask := range due {
		if !ask.notifyLocalHolds() {
			asks = append(asks, ask)
		}
	}
	return asks, next
}

// notifyLocalHolds notifies the holds that a is for, on the client of its resource, and reports
// whether no other client can have the lock. That client may be another one: the client of a joint
// lock's member.
func (a Ask) notifyLocalHolds() bool {
	c := a.Resource.Core
	r := a.Resource
	if a.Holder != "" {
		c.notifyWanted(r.Name, func(h *Hold) bool { return h.ID() == a.Holder })
		own, known := c.Owners.IsOwn(a.Holder)
		isWhole := r.Identity != nil // only a joint hold of this client is known as a whole
		return isWhole || own && known
	}
	c.notifyWanted(r.Name, func(h *Hold) bool {
		switch h.r.Kind {
		case r.Kind, r.Traits.OtherSide:
			return true
		}
		return false
	})
	return false
}

// notifyWanted closes the channels of the holds of a name for which match is true. It calls match
// with a mutex held.
func (c *Core) notifyWanted(name string, match func(*Hold) bool) {
	for _, h := range c.holds.named(name, match) {
		h.NotifyWanted()
	}
}
