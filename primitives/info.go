package primitives

import (
	"time"

	"github.com/redlatch/redlatch/scripts"
)

// What Info and Locks return.

// Holder is one holder of a lock or a permit.
type Holder struct {
	ID     string        // the id, as [Hold.ID] returns it
	Count  int           // how often it holds the lock; 1 for a permit
	TTL    time.Duration // the TTL of the holder; for a plain lock, that of the key; -1 without expiry
	Client string        // the name of its client ([WithClientName]); "" if it is unknown
	Held   time.Duration // how long it has been held, if its client tells that; else 0
	// MinHold is set if it was released, and stays taken for the rest of its minimum hold
	// ([WithMinHold]).
	MinHold bool
}

// Waiter is a client that waits: see [Client.Waiting].
type Waiter struct {
	Client string // its name ([WithClientName])
	ID     string // its id ([Client.ID])
}

// Info describes a primitive as it was in Redis at one instant. It may have changed since, so it is
// for people and for monitoring, not for decisions about who may go on.
type Info struct {
	Name      string
	Kind      string // lock, fair, fenced, reader, writer, semaphore, permits; see also [Client.Inspect]
	Holders   []Holder
	Waiters   []string      // the waiters of a FairLock, in order
	TTL       time.Duration // 0 when nothing is held, -1 without expiry
	Token     int64         // the last token of a FencedLock, of this holder or of an earlier one; 0 if there is none
	Permits   int           // the permits, free and taken; for a plain semaphore only the free ones
	Available int           // the free permits; below 0 if more were taken away than were free
}

// heldBy returns what a script says about the holders of a lock. The TTL of the lock is the longest
// one of its holders.
func heldBy(reply scripts.Holders) (info Info) {
	for _, h := range reply.Holders {
		holder := Holder{ID: h.ID, Count: int(h.Count), TTL: ttlOf(h.PTTL)}
		info.Holders = append(info.Holders, holder)
		info.TTL = max(info.TTL, holder.TTL)
	}
	if len(info.Holders) > 0 && ttlOf(reply.PTTL) < 0 {
		info.TTL = -1 // the lock stays when its holders are dead
	}
	return info
}

// ttlOf turns the reply of PTTL into a Duration: -2 (gone) is 0, and -1 (no expiry) is -1.
func ttlOf(ms int64) time.Duration {
	if ms == -1 {
		return -1
	}
	return fromMillis(max(ms, 0))
}
