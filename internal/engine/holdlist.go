package engine

import (
	"sync"
	"time"

	"github.com/redlatch/redlatch/internal/list"
)

// The list of a client's live holds. It serves four purposes: Close waits until it is empty. Close
// ends the holds that are left. The client's presence asks which holds are old enough to listen for
// takeovers. A refused acquisition asks whether its own client holds the name.

// holdList is a client's holds that have not ended, in the order in which they were added. It is a
// part of Core. NewHold adds to it, and Hold.end removes.
type holdList struct {
	mu        sync.Mutex             // guards the rest, and the list fields of the holds; taken before Hold.mu
	all       list.List[Hold, *Hold] // the oldest hold first
	byName    map[string]*Hold       // the newest hold of each name; sameName.older links the others
	oldEnough *Hold                  // the newest hold that HoldTags has counted; nil if there is none
	tags      map[string]int         // how many holds HoldTags has counted, by tag
	sealed    bool
	drained   chan struct{} // closed when the list is sealed and empty
	// undelivered has the holds whose acquisition has not returned, because the observer runs.
	undelivered map[*Hold]struct{}
}

// add registers a new hold with the client. It reports false when the list is sealed, because the
// client is closing: the hold must not be used then. It does not block.
func (l *holdList) add(h *Hold) bool {
	l.mu.Lock()
	if l.sealed {
		l.mu.Unlock()
		return false
	}
	l.all.Append(h)
	l.addName(h)
	l.mu.Unlock()
	h.r.Core.Presence.HoldAdded() // without the mutex, which it may take
	h.r.Core.watchForLeaks()
	return true
}

// remove removes a hold that has ended, and the count of its tag. Hold.end calls it once.
func (l *holdList) remove(h *Hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h.listed {
		if l.oldEnough == h {
			l.oldEnough = h.Prev // all before it were counted too
		}
		tag := h.tag()
		if tag != "" {
			l.tags[tag]--
		}
		if l.tags[tag] == 0 {
			delete(l.tags, tag)
		}
	}
	l.all.Remove(h)
	l.removeName(h)
	l.closeIfDrained()
}

// sameName links the holds of one name.
type sameName struct{ older, newer *Hold }

// addName adds a hold to the index by name. mu is held.
func (l *holdList) addName(h *Hold) {
	h.sameName.older = l.byName[h.r.Name]
	if h.sameName.older != nil {
		h.sameName.older.sameName.newer = h
	}
	l.byName[h.r.Name] = h
}

// removeName removes a hold from the index by name. mu is held.
func (l *holdList) removeName(h *Hold) {
	older := h.sameName.older
	newer := h.sameName.newer
	h.sameName = sameName{}
	if older != nil {
		older.sameName.newer = newer
	}
	switch {
	case newer != nil:
		newer.sameName.older = older
	case older != nil:
		l.byName[h.r.Name] = older
	default:
		delete(l.byName, h.r.Name)
	}
}

// delivering notes that the observer is about to hear of a new hold. delivered notes that it has
// returned.
func (l *holdList) delivering(h *Hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.undelivered[h] = struct{}{}
}

func (l *holdList) delivered(h *Hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.undelivered, h)
}

// allUndelivered reports whether no user has any of the holds yet: only the acquisitions could
// release them.
func (l *holdList) allUndelivered() bool {
	for _, h := range l.list() { // without mu: the user's hold may be in the list of another client
		if !h.isUndelivered() {
			return false
		}
	}
	return true
}

// isUndelivered reports whether no user has h, or its joint hold, yet. A member without a joint
// hold belongs to an attempt that is under way, and that ends by itself.
func (h *Hold) isUndelivered() bool {
	user := h
	if h.group != nil {
		joint, isJoint := h.group.JointHold()
		if !isJoint {
			return true // the holds of the users of a tenure hold are in the list too
		}
		user = joint
	}
	return user != nil && user.r.Core.holds.isUndelivered(user)
}

func (l *holdList) isUndelivered(h *Hold) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, undelivered := l.undelivered[h]
	return undelivered
}

// seal refuses further holds. Close calls it first, so that the list can only shrink from then on.
func (l *holdList) seal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sealed = true
	l.closeIfDrained()
}

// closeIfDrained closes drained once the list is sealed and empty. mu is held.
func (l *holdList) closeIfDrained() {
	isDrained := l.sealed && l.all.First == nil
	if isDrained && !IsClosed(l.drained) {
		close(l.drained)
	}
}

// abandon ends holds with ErrClosed, unless their release is under way, and returns them. Close
// calls it when its context ends. It sends nothing: the leases end by themselves.
func (l *holdList) abandon() (abandoned []*Hold) {
	for _, h := range l.list() { // Hold.end takes mu to remove a hold
		if h.IsLive() {
			h.held.Forget(h)
			if h.end(ErrClosed) {
				abandoned = append(abandoned, h)
			}
		}
	}
	return abandoned
}

// list returns the holds, the newest first: nested ones before their outer ones.
func (l *holdList) list() (holds []*Hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for h := l.all.Last; h != nil; h = h.Prev {
		holds = append(holds, h)
	}
	return holds
}

func (l *holdList) len() int { return len(l.list()) }

func (l *holdList) isNotEmpty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.First != nil
}

// owns reports whether this client holds r under an owner's id. If no client has made the id, only
// this client's holds can tell.
func (c *Core) owns(r *Resource, ownerID string) bool {
	if own, known := c.Owners.IsOwn(ownerID); known {
		return own
	}
	return c.holds.hasHold(r.Name, func(h *Hold) bool { return h.ID() == ownerID })
}

// holdsSome reports whether this client has a hold of r's name that has not ended, such as one of
// several readers.
func (c *Core) holdsSome(r *Resource) bool {
	return c.holds.hasHold(r.Name, func(h *Hold) bool { return h.Ended() == nil })
}

// named returns the holds with that name that satisfy match, which is called with mu held.
func (l *holdList) named(name string, match func(h *Hold) bool) (holds []*Hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for h := l.byName[name]; h != nil; h = h.sameName.older {
		if match(h) {
			holds = append(holds, h)
		}
	}
	return holds
}

// hasHold reports whether a hold with that name satisfies match, which is called with mu held.
func (l *holdList) hasHold(name string, match func(h *Hold) bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for h := l.byName[name]; h != nil; h = h.sameName.older {
		if match(h) {
			return true
		}
	}
	return false
}

// tag returns the tag of a hold that can be lost. It is "" for other holds, and for joint holds,
// because their members have tags.
func (h *Hold) tag() string {
	o := h.Ownership()
	if o == nil || !h.r.Traits.Leased {
		return ""
	}
	return o.r.Core.Owners.TagOf(o.ID)
}

// Never is later than every instant.
const Never = Instant(1<<63 - 1)

// HoldTags returns the tags of all holds that are older than age. oldest is when the oldest hold
// began, and next is when another hold becomes older than age. Both are Never if there is none.
//
// A client's presence calls it often. So it visits each hold once, in the order in which holds were
// added, and goes on after oldEnough the next time. It does not block.
func (c *Core) HoldTags(now Instant, age time.Duration) (tags []string, oldest, next Instant) {
	l := &c.holds
	l.mu.Lock()
	defer l.mu.Unlock()
	oldest = Never
	next = Never
	h := l.all.First
	if h != nil {
		oldest = h.since
	}
	if l.oldEnough != nil {
		h = l.oldEnough.Next
	}
	for ; h != nil; h = h.Next {
		if old := h.since + Instant(age); now < old {
			next = old
			break
		}
		l.oldEnough = h
		h.listed = true
		if tag := h.tag(); tag != "" {
			l.tags[tag]++
		}
	}
	for tag := range l.tags {
		tags = append(tags, tag)
	}
	return tags, oldest, next
}

// HeldSince is a hold's id, and when the hold began.
type HeldSince struct {
	ID    string
	Since Instant
}

// OldestHolds returns up to n holds that can be lost and are at least as old as before, the oldest
// first. It does not block.
func (c *Core) OldestHolds(n int, before Instant) (held []HeldSince) {
	l := &c.holds
	l.mu.Lock()
	defer l.mu.Unlock()
	for h := l.all.First; h != nil && n > 0 && h.since <= before; h = h.Next {
		n--
		if h.tag() != "" {
			held = append(held, HeldSince{h.Ownership().ID, h.since})
		}
	}
	return held
}

// LeasedOwnerships returns the ownerships of the holds that can be lost and for which match is
// true, once for each such hold. It calls match with a mutex held, so match must only compute.
func (c *Core) LeasedOwnerships(match func(*Hold) bool) (owned []*Ownership) {
	l := &c.holds
	l.mu.Lock()
	defer l.mu.Unlock()
	for h := l.all.Last; h != nil; h = h.Prev {
		o := h.Ownership()
		hasLease := o != nil && h.r.Traits.Leased
		if hasLease && match(h) {
			owned = append(owned, o)
		}
	}
	return owned
}
