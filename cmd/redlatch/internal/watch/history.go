package watch

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Bounds of what the page remembers.
const (
	pageWindow = 5 * time.Minute // how long ago a hold may have ended
	maxSpans   = 5_000           // holds that have ended
	maxEvents  = 200
)

// span is one hold, as the looks have seen it.
type span struct {
	Name   string     `json:"name"`
	ID     string     `json:"id"`
	Client string     `json:"client,omitempty"`
	From   time.Time  `json:"from"`
	Before bool       `json:"before,omitempty"` // it began before From, and nobody says when
	Kept   bool       `json:"kept,omitempty"`   // it is no hold, but the rest of a minimum hold that was released
	To     *time.Time `json:"to,omitempty"`     // nil: it is held
	End    string     `json:"end,omitempty"`    // how: ended or expired
}

// How holds end, as far as can be seen from outside.
const (
	ended   = "ended"   // it was released, or taken by force, or a minimum hold is over
	expired = "expired" // its lease ran out: nobody renewed it
)

// event is something that an operator may look for.
type event struct {
	At     time.Time `json:"at"`
	Name   string    `json:"name"`
	ID     string    `json:"id"`
	Client string    `json:"client,omitempty"`
	Text   string    `json:"text"`
}

// history is what the looks of the last minutes have seen. It reads no clock.
type history struct {
	last   *Snapshot
	locks  map[string]*Lock // of the last look, by name
	open   map[holderKey]*span
	done   []*span // the oldest first
	events []event // the oldest first
}

// apply adds a snapshot.
func (h *history) apply(s *Snapshot) {
	now := s.At
	open := make(map[holderKey]*span, len(h.open))
	for i := range s.Held {
		l := &s.Held[i]
		for _, holder := range l.Holders {
			key := holderKey{l.Name, holder.ID}
			known := h.open[key]
			wasReleased := known != nil && !known.Kept && holder.kept
			if wasReleased {
				h.end(known, now, ended)
			}
			if known == nil || wasReleased {
				known = h.begin(s, l, holder)
			}
			if known.Before && holder.Held != nil {
				known.beganAgo(s.At, *holder.Held)
			}
			known.Client = cmp.Or(holder.Client, known.Client)
			open[key] = known
		}
	}
	for key, was := range h.open {
		if open[key] != nil {
			continue
		}
		how := ended
		isLoss := !was.Kept && h.ranOut(key, now) // the rest of a minimum hold is left to run out
		if isLoss {
			how = expired
			h.note(event{now, was.Name, was.ID, was.Client, "the lease ran out: nobody renewed it"})
		}
		h.end(was, now, how)
	}
	h.open, h.last = open, s
	h.locks = make(map[string]*Lock, len(s.Held))
	for i := range s.Held {
		h.locks[s.Held[i].Name] = &s.Held[i]
	}
	h.done = slices.DeleteFunc(h.done, func(d *span) bool { return now.Sub(*d.To) > pageWindow })
	h.done = h.done[max(len(h.done)-maxSpans, 0):]
}

// begin returns the span of a holder that was not there at the last look.
func (h *history) begin(s *Snapshot, l *Lock, holder Holder) *span {
	isFirstLook := h.last == nil
	mayHaveBeenMissed := isFirstLook || !h.last.Whole && h.locks[l.Name] == nil
	begun := &span{
		Name: l.Name, ID: holder.ID, Client: holder.Client, From: s.At, Before: mayHaveBeenMissed, Kept: holder.kept,
	}
	if holder.Held != nil {
		begun.beganAgo(s.At, *holder.Held)
	}
	return begun
}

// beganAgo notes when a span began: so many milliseconds before now, as its client says.
func (s *span) beganAgo(now time.Time, ms int64) {
	s.From, s.Before = now.Add(-time.Duration(ms)*time.Millisecond), false
}

// end ends a span.
func (h *history) end(s *span, now time.Time, how string) {
	s.To, s.End = &now, how
	h.done = append(h.done, s)
}

// ranOut reports whether the lease of a holder that is gone cannot have lasted until now.
func (h *history) ranOut(key holderKey, now time.Time) bool {
	holder := h.locks[key.name].holder(key.id)
	return holder != nil && holder.TTL >= 0 && time.Duration(holder.TTL) <= now.Sub(h.last.At)
}

func (h *history) note(e event) {
	h.events = append(h.events, e)
	h.events = h.events[max(len(h.events)-maxEvents, 0):]
}

// spans returns the holds of the last minutes, the oldest first.
func (h *history) spans() []*span {
	all := slices.Clone(h.done)
	for _, s := range h.open {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *span) int {
		return cmp.Or(a.From.Compare(b.From), cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
	return all
}

// step is a part of a cycle: a client has a lock for which the next client waits.
type step struct {
	Client string `json:"client"`
	Holds  string `json:"holds"`
	Waits  string `json:"waits"`
}

// clientOf returns the part of a holder's or a waiter's id that is the same for all of its
// client's.
func clientOf(id string) string {
	client, _, _ := strings.Cut(id, ":")
	return client
}

// cycles returns the clients that wait for each other: each has a lock for which the next one
// waits. That may be a deadlock, or not: a client has many goroutines, and a wait may have a limit.
// Each client is in one cycle at most.
func cycles(locks []Lock) (found [][]step) {
	type wait struct{ name, holder string }
	names := map[string]string{}    // of clients, for people
	waits := map[string][]wait{}    // by client: for what it waits, and who has that
	holdsOf := map[string][]*Lock{} // by client
	for i := range locks {
		for _, h := range locks[i].Holders {
			client := clientOf(h.ID)
			holdsOf[client] = append(holdsOf[client], &locks[i])
			names[client] = cmp.Or(h.Client, names[client], client)
		}
	}
	for i := range locks {
		for _, w := range locks[i].Clients {
			waiter := clientOf(w.ID)
			for _, h := range locks[i].Holders {
				if holder := clientOf(h.ID); holder != waiter && len(holdsOf[waiter]) > 0 {
					waits[waiter] = append(waits[waiter], wait{locks[i].Name, holder})
				}
			}
		}
	}
	settled := map[string]bool{} // it is in a cycle, or in none
	var path []string
	var visit func(client string)
	visit = func(client string) {
		if at := slices.Index(path, client); at >= 0 {
			var cycle []step
			for i := at; i < len(path); i++ {
				next := path[at]
				if i+1 < len(path) {
					next = path[i+1]
				}
				for _, w := range waits[path[i]] {
					if w.holder == next {
						cycle = append(cycle, step{names[path[i]], "", w.name})
						break
					}
				}
			}
			for i := range cycle { // what a client has is what the one before it waits for
				cycle[(i+1)%len(cycle)].Holds = cycle[i].Waits
			}
			found = append(found, cycle)
			return
		}
		if settled[client] {
			return
		}
		path = append(path, client)
		before := len(found)
		for _, w := range waits[client] {
			visit(w.holder)
			if len(found) > before {
				break
			}
		}
		path = path[:len(path)-1]
		settled[client] = true
	}
	clients := make([]string, 0, len(waits))
	for client := range waits {
		clients = append(clients, client)
	}
	slices.Sort(clients)
	for _, client := range clients {
		visit(client)
	}
	return found
}
