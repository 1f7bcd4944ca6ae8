package engine

import (
	"sync"
	"time"

	"github.com/redlatch/redlatch/internal/list"
)

// The list serves three purposes: Close waits until it is empty, Close ends the holds that are left, and the
// client finds out which of its holds are old enough to listen for takeovers.

// holdList is a client's holds that have not ended, in the order in which they were added.
type holdList struct {
	tagOf func(ownerID string) string

	mu        sync.Mutex // guards the rest
	all       list.List[Hold, *Hold]
	oldEnough *Hold          // the newest hold that HoldTags has counted
	tags      map[string]int // how many holds it has counted, by tag
	sealed    bool
	drained   chan struct{} // closed when the list is sealed and empty
}

// add reports false when the list is sealed.
func (l *holdList) add(h *Hold) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sealed {
		return false
	}
	l.all.Append(h)
	return true
}

func (l *holdList) remove(h *Hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h.listed {
		if l.oldEnough == h {
			l.oldEnough = h.Prev
		}
		if tag := l.tag(h); tag != "" {
			if l.tags[tag]--; l.tags[tag] == 0 {
				delete(l.tags, tag)
			}
		}
	}
	l.all.Remove(h)
	l.closeIfDrained()
}

// seal lets no further hold in.
func (l *holdList) seal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sealed = true
	l.closeIfDrained()
}

func (l *holdList) closeIfDrained() {
	if l.sealed && l.all.First == nil && !isClosed(l.drained) {
		close(l.drained)
	}
}

// abandon ends the holds that nobody is releasing with ErrClosed, and reports whether there were any.
func (l *holdList) abandon() bool {
	l.mu.Lock()
	var left []*Hold
	for h := l.all.Last; h != nil; h = h.Prev {
		left = append(left, h)
	}
	l.mu.Unlock()
	abandoned := false
	for _, h := range left {
		if h.isLive() {
			if h.held != nil {
				h.held.forget(h)
			}
			abandoned = h.end(ErrClosed) || abandoned
		}
	}
	return abandoned
}

// tag is the tag of a hold that can be lost; "" for others, and for joint holds, whose members have tags.
func (l *holdList) tag(h *Hold) string {
	o := h.Ownership()
	if o == nil || !o.leased() {
		return ""
	}
	return l.tagOf(o.ID)
}

// Never is later than every instant.
const Never = Instant(1<<63 - 1)

// HoldTags returns the tags of all holds that are older than age, since when the oldest hold lasts, and
// when the next one becomes older than age. Both are Never if there is none. Each hold is visited once,
// in the order in which holds were added, so it costs little to ask often.
func (c *Core) HoldTags(now Instant, age time.Duration) (tags []string, oldest, next Instant) {
	l := &c.holds
	l.mu.Lock()
	defer l.mu.Unlock()
	oldest, next = Never, Never
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
		l.oldEnough, h.listed = h, true
		if tag := l.tag(h); tag != "" {
			if l.tags == nil {
				l.tags = map[string]int{}
			}
			l.tags[tag]++
		}
	}
	for tag := range l.tags {
		tags = append(tags, tag)
	}
	return tags, oldest, next
}

// LeasedOwnerships returns the ownerships of the holds that can be lost and for which match is true.
// It calls match with a mutex held.
func (c *Core) LeasedOwnerships(match func(*Hold) bool) (owned []*Ownership) {
	l := &c.holds
	l.mu.Lock()
	defer l.mu.Unlock()
	for h := l.all.Last; h != nil; h = h.Prev {
		if o := h.Ownership(); o != nil && o.leased() && match(h) {
			owned = append(owned, o)
		}
	}
	return owned
}
