package watch

import (
	"strconv"
	"time"
)

// Snapshot is what one look at Redis found. Its parts were read one after another, within a
// fraction of a second.
type Snapshot struct {
	At      time.Time
	Held    []Lock
	Keys    int64   // in the databases looked at
	Visited float64 // part of the keys that the current pass of SCAN has visited; 1: the pass is complete
	Whole   bool    // this look alone visited all keys: a name that is missing was not held
	Cut     bool    // more locks are held than a look reads
	Denied  int     // hashes that this user may not read
}

// Lock is a held lock, with the JSON fields of "redlatch ls".
type Lock struct {
	Name    string   `json:"name"`
	Base64  string   `json:"name_base64,omitempty"` // of a name that is not UTF-8; set in JSON only
	Kind    string   `json:"kind"`
	TTL     TTL      `json:"ttl_ms"`
	MinHold bool     `json:"min_hold,omitempty"` // it was released, and stays taken for the rest of its minimum hold
	Holders []Holder `json:"holders"`
	Waiters []string `json:"waiters,omitzero"` // the head of a fair lock's queue
	// Waiting is the length of a fair lock's queue, else the number of clients that listen for a
	// release.
	Waiting int `json:"waiting_count,omitempty"`
	// Clients are those of the waiters that are known: of the head of a fair lock's queue, and
	// clients that say for what they wait.
	Clients []Waiter `json:"waiting,omitzero"`
	Token   int64    `json:"token,omitempty"` // the last fencing token
	more    bool     // there are more holders than were read
}

// Waiter is a client that waits, or one waiter of a fair lock.
type Waiter struct {
	Client string `json:"client"` // "" if unknown
	ID     string `json:"id"`     // a fair waiter's in Redis, else its client's
}

// Holder is one holder of a lock.
type Holder struct {
	ID     string `json:"id"`
	Client string `json:"client"` // "" if unknown
	Count  int    `json:"count"`
	TTL    TTL    `json:"ttl_ms"`
	Held   *int64 `json:"held_ms,omitempty"` // as its client says; nil: it does not
	kept   bool   // its client says that it has released, and that the rest of its minimum hold stays
}

// TTL is the time left at the instant of the snapshot; negative: no expiry. In JSON it is in
// milliseconds.
type TTL time.Duration

// MarshalJSON returns whole milliseconds, or -1.
func (t TTL) MarshalJSON() ([]byte, error) {
	if t < 0 {
		return []byte("-1"), nil
	}
	return strconv.AppendInt(nil, time.Duration(t).Milliseconds(), 10), nil
}

// waiting is the sum over all locks.
func (s *Snapshot) waiting() int {
	n := 0
	for i := range s.Held {
		n += s.Held[i].Waiting
	}
	return n
}

// changes compares two successive snapshots.
//
// acquired counts holder ids that are new. A name that is new counts only if the earlier look was
// whole: otherwise it may have been held before. Of a fenced lock it is the increase of the token,
// which counts every acquisition. Acquisitions of other kinds that ended between the looks are not
// seen, so acquired is a lower bound.
//
// lost counts holders that are gone and whose TTL cannot have lasted until the later look: nobody
// renewed it. A holder that was replaced by force, or that released an expiring lease in time,
// looks the same as a release or a loss. The end of a minimum hold that was released is none.
func changes(before, after *Snapshot) (acquired, lost int) {
	was := make(map[string]*Lock, len(before.Held))
	for i := range before.Held {
		was[before.Held[i].Name] = &before.Held[i]
	}
	is := make(map[string]*Lock, len(after.Held))
	for i := range after.Held {
		now := &after.Held[i]
		is[now.Name] = now
		old := was[now.Name]
		if old == nil && !before.Whole {
			continue
		}
		fresh := 0
		for _, h := range now.Holders {
			if old.holder(h.ID) == nil {
				fresh++
			}
		}
		if old != nil && old.Token > 0 && now.Token > old.Token {
			fresh = int(now.Token - old.Token)
		}
		acquired += fresh
	}
	elapsed := after.At.Sub(before.At)
	for i := range before.Held {
		old := &before.Held[i]
		for _, h := range old.Holders {
			gone := is[old.Name].holder(h.ID) == nil
			ranOut := h.TTL >= 0 && time.Duration(h.TTL) <= elapsed && !h.kept
			if gone && ranOut && !after.Cut {
				lost++
			}
		}
	}
	return acquired, lost
}

// holder returns the holder with that id, or nil. l may be nil.
func (l *Lock) holder(id string) *Holder {
	if l == nil {
		return nil
	}
	for i := range l.Holders {
		if l.Holders[i].ID == id {
			return &l.Holders[i]
		}
	}
	return nil
}
