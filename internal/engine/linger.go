package engine

import (
	"maps"
	"strings"
	"time"
)

// How a client asks for a lock that lingers.
//
// With Terms.Linger a lock stays with its client after the last release: see package turns. Another
// client that wants it must be heard.
//
// That client is refused by an id which says that the lock may linger (lingerID), and asks the
// client of that id. It may also ask while the lock is in use, or before the reply that grants the
// lock. Then the release that ends the tenure leaves the lock to the others.

// lingerID returns the id of a request whose hold may linger: its number begins with a 0, so that a
// client that is refused knows that it should ask.
func lingerID(id string) string {
	at := strings.LastIndexByte(id, ':') + 1
	return id[:at] + "0" + id[at:]
}

// mayLinger reports whether a holder has an id of lingerID.
func mayLinger(id string) bool {
	at := strings.LastIndexByte(id, ':') + 1
	return at > 0 && at < len(id) && id[at] == '0'
}

// askFor asks the holder that has refused q to give up a lingering lock. Waiters of the same kind
// on this client need not ask: package turns knows them. isMember says that q is for a joint lock,
// and that r is the member that refused it.
func (r *Resource) askFor(q *Request, holder string, isMember bool) {
	mayBeAsked := q.LeavesTraces() && mayLinger(holder)
	if !mayBeAsked {
		return
	}
	client := holder[:strings.LastIndexByte(holder, ':')+1]
	isOurs := !q.Shared && strings.HasPrefix(q.ID, client)
	if !isOurs {
		r.Core.Presence.Ask(r, holder)
		return
	}
	r.Core.askedHere(r.Name, holder, func(h *Hold) bool { return isMember || h.r.Kind != r.Kind })
}

// HandleAsk notes that another client has asked for the lock that the holder id has, or is about to
// get. A lingering lock is given up. A lock that is in use, and could linger, is freed by its next
// release. It does not block.
func (c *Core) HandleAsk(name, id string) {
	qs := &c.queues
	qs.mu.Lock()
	q := qs.pending[id]
	if q != nil {
		q.wanted = true
	}
	qs.mu.Unlock()
	isHeard := c.asked(c.holds.named(name, func(h *Hold) bool { return hasID(h, id) })) || q != nil
	isOwn, _ := c.Owners.IsOwn(id)
	if isHeard || !isOwn {
		return
	}
	// The holder has released the lock, or is doing so, and may have handed it off here. The client
	// that asks hears nothing of that, so the ask is for the present holder, or for the next one.
	isHeard = c.asked(c.holds.named(name, (*Hold).mayLinger))
	if !isHeard {
		qs.mu.Lock()
		defer qs.mu.Unlock()
		qs.wantNext(name)
	}
}

// mayLinger reports whether the lock may linger after the release of h, which has not begun.
func (h *Hold) mayLinger() bool {
	o := h.Ownership()
	lingers := o != nil && o.turnTerms.Linger > 0
	return lingers && h.IsLive()
}

// askedHere is HandleAsk for a request of this client of another kind than the holder, or for a
// joint lock.
func (c *Core) askedHere(name, id string, match func(*Hold) bool) {
	c.asked(c.holds.named(name, func(h *Hold) bool { return h.ID() == id && match(h) }))
}

// asked notes that somebody has asked for these holds. It reports whether one of them will be freed
// because of that, or is being freed already.
func (c *Core) asked(holds []*Hold) (isHeard bool) {
	qs := &c.queues
	for _, h := range holds {
		qs.mu.Lock()
		state := h.state() // with mu held: a release that begins from now on sees that it was asked for
		isInUse := !state.taken && state.cause == nil
		wasWanted := false
		if o := h.Ownership(); o != nil {
			wasWanted = o.wanted
			o.wanted = true
		}
		isHeard = isHeard || isInUse || wasWanted
		qs.mu.Unlock()
		h.NotifyWanted()
	}
	return isHeard
}

// wantNext notes that somebody has asked for the next hold of a name. mu is held.
func (qs *waitQueues) wantNext(name string) {
	now := time.Now()
	if len(qs.wantedNext) >= maxKept {
		maps.DeleteFunc(qs.wantedNext, func(_ string, until time.Time) bool { return !now.Before(until) })
	}
	qs.wantedNext[name] = now.Add(askAfter)
}

// takeWantedNext reports whether somebody has asked for the next hold of that name, and forgets
// that. mu is held.
func (qs *waitQueues) takeWantedNext(name string) bool {
	until, isWanted := qs.wantedNext[name]
	if !isWanted {
		return false
	}
	delete(qs.wantedNext, name)
	return time.Now().Before(until)
}

// hasID reports whether id is the id of h, or of one of its permits.
func hasID(h *Hold, id string) bool {
	own := h.ID()
	if own == id {
		return true
	}
	isOneOfMany := h.r.Traits.NameOwner != nil && strings.Contains(own, id) // ids of permits have one length
	return isOneOfMany && id != ""
}

// expectAsks makes HandleAsk find q from now on, if its hold may linger. The caller calls stop when
// the hold is known, with nil if there is none.
func (qs *waitQueues) expectAsks(r *Resource, q *Request) (stop func(h *Hold)) {
	mayLinger := q.Terms.Linger > 0 && !q.Shared
	if !mayLinger {
		return func(*Hold) {}
	}
	qs.mu.Lock()
	defer qs.mu.Unlock()
	id := q.ID // each attempt for a joint lock changes it
	qs.pending[id] = q
	return func(h *Hold) {
		qs.mu.Lock()
		defer qs.mu.Unlock()
		delete(qs.pending, id)
		if h == nil {
			return
		}
		isWanted := qs.takeWantedNext(r.Name) || q.wanted
		if o := h.Ownership(); o != nil && isWanted {
			o.wanted = true
		}
	}
}
