package primitives

import (
	"time"

	"github.com/redlatch/redlatch/scripts"
)

// What Info and Locks return.

// Holder is one holder of a lock or a permit.
type Holder struct {
	ID     string        // as [Hold.ID] gives it
	Count  int           // how often it holds the lock; a permit's is 1
	TTL    time.Duration // its own; a plain lock's is the key's; -1 without expiry
	Client string        // the name of its client ([WithClientName]); "" if unknown
}

// Info describes a primitive as it was in Redis at one instant. It may have changed since, so it is for
// people and for monitoring, not for decisions about who may go on.
type Info struct {
	Name      string
	Kind      string // lock, fair, fenced, reader, writer, semaphore, permits; see also [Client.Inspect]
	Holders   []Holder
	Waiters   []string      // a FairLock's, in order
	TTL       time.Duration // 0 when nothing is held, -1 without expiry
	Token     int64         // a FencedLock's last token, of this holder or of an earlier one; 0 if there is none
	Permits   int           // free and taken; for a plain semaphore the free ones only
	Available int           // free permits; below 0 if more were taken away than were free
}

// heldBy returns what a script says of the holders of a lock. The TTL of the lock is that of its longest-lived holder.
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

// ttlOf reads PTTL: -2 (gone) is 0, -1 (no expiry) is -1 as a Duration.
func ttlOf(ms int64) time.Duration {
	if ms == -1 {
		return -1
	}
	return fromMillis(max(ms, 0))
}
