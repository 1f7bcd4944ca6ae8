package engine

import (
	"context"
	"sync/atomic"
	"time"
)

// How a minimum hold works.
//
// A job that must run once holds its lock for longer than the clocks of its hosts differ. With a minimum of
// d, a release sooner than d after the acquisition ends the hold, but the lock stays taken for the rest of d:
//
//	 0 s  A is acquired, with d = 60 s
//	 2 s  A is released: the server keeps the id, with a TTL of 58 s, and publishes a message
//	      a waiter wakes up, is refused, and learns that the lease ends in 58 s
//	60 s  the lease ends, and the waiter acquires
//
// The rest is a duration by this client's monotonic clock, so no two clocks are compared. On the server a
// release only lowers a TTL, so a copy of it never keeps the lock longer. A renewal, an Extend or a nested acquisition
// that is executed after the release may do that: the lock then stays taken for the lease that it asked for. So if a
// renewal has not been answered, or one of the others was sent, the client frees the lock when the rest is over
// (freeAfterRest).
//
// It does the same for a writer that also reads, with holds that outlive its own. For the server both have one
// lease, the longer one, and others would wait for the readers' lease.
//
// Nested holds share the ownership of the outermost one, so that one decides. Of a joint lock, the minimum of
// each member counts from when the joint hold is made: a failed attempt frees its members at once.

// minHold is the minimum hold of an ownership. A nested acquisition that the server counts shares the minimum
// of its outer hold. All methods accept nil: there is no minimum.
type minHold struct {
	d     time.Duration
	since atomic.Int64 // Instant when the acquisition was confirmed; 0: not yet
}

// begin begins it: the acquisition was confirmed at that time. Only the first call has an effect.
func (m *minHold) begin(c *Core, confirmed time.Time) {
	if m != nil {
		m.since.CompareAndSwap(0, max(int64(c.Instant(confirmed)), 1))
	}
}

// left is how much is left of it.
func (m *minHold) left(now Instant) time.Duration {
	if m == nil || m.since.Load() == 0 {
		return 0
	}
	return max(m.d-time.Duration(now)+time.Duration(m.since.Load()), 0)
}

// rest is how long a release that frees the lock must leave it taken: 0 if there is no minimum hold, or if
// it is over.
func (o *Ownership) rest() time.Duration { return o.min.left(o.r.Core.Instant(time.Now())) }

// freeAfterRest frees o, which was released, when the rest of its minimum hold is over. That may be at once, because
// the rest was computed before the release was sent. It does nothing unless something may keep o beyond its rest: holds
// of another kind with o's id, or a command that extends it and comes late. It does not block.
func (o *Ownership) freeAfterRest() {
	if o.min == nil {
		return
	}
	if rest, c := o.rest(), o.r.Core; rest > 0 && c.Presence.StaysTaken != nil {
		c.Presence.StaysTaken(o.ID, rest)
	}
	o.mu.Lock()
	mayStay := o.otherKind || o.lateTTL > 0
	o.mu.Unlock()
	if !mayStay {
		return
	}
	over := time.Now().Add(o.rest())
	o.r.addDuty(context.Background(), over, over.Add(o.r.Core.RepeatFor), func(ctx context.Context) error {
		_, err := o.r.Driver.Release(ctx, o, 0, Next{Rest: o.rest()})
		return err
	})
}
