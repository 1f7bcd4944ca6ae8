package engine

import (
	"context"
	"sync/atomic"
	"time"
)

// How a minimum hold works.
//
// A job that must run once holds its lock for longer than the clocks of its hosts differ. With a
// minimum of d, a release sooner than d after the acquisition ends the hold, but the lock stays
// taken for the rest of d:
//
//	 0 s  A is acquired, with d = 60 s
//	 2 s  A is released: the server shortens the lease to 58 s, and publishes a message
//	      a waiter wakes up, is refused, and learns that the lease ends in 58 s
//	60 s  the lease ends, and the waiter acquires
//
// So the release of such a hold frees nothing. The command is the one that also shortens a lease
// which lasts too long because the server's clock was set back: see shorten.go. The rest is a
// duration by this client's monotonic clock, so no two clocks are compared, and a copy of the
// command never keeps the lock longer.
//
// Usually the end of the lease frees the lock. If it may last longer than the rest, the client
// sends a release when the rest is over (freeAfterRest):
//
//   - A renewal, an Extend or a nested acquisition may be executed after the release, and extends
//     the lease. So does a late copy of the acquisition.
//   - Others need the lease, so the server has not shortened it: a writer also reads, or other
//     acquisitions have the same id by WithOwner.
//
// Nested holds share the ownership of the outermost one, so its minimum counts. In a joint lock,
// the minimum of each member counts from when the joint hold is made: a failed attempt frees its
// members at once.

// minHold is the minimum hold of an ownership. A nested acquisition that the server counts shares
// the minimum of its outer hold. It is nil if there is no minimum. All methods accept nil.
type minHold struct {
	d     time.Duration
	since atomic.Int64 // Instant when the acquisition was confirmed; 0 before that
}

// begin starts the minimum hold: the acquisition was confirmed at confirmed. Only the first call
// has an effect.
func (m *minHold) begin(c *Core, confirmed time.Time) {
	if m != nil {
		m.since.CompareAndSwap(0, max(int64(c.Instant(confirmed)), 1))
	}
}

// remaining returns how much of the minimum hold is left.
func (m *minHold) remaining(now Instant) time.Duration {
	if m == nil || m.since.Load() == 0 {
		return 0
	}
	return max(m.d-time.Duration(now)+time.Duration(m.since.Load()), 0)
}

// minHoldLeft returns how long a release that frees the lock must leave it taken. It is 0 if there
// is no minimum hold, or if it is over.
func (o *Ownership) minHoldLeft() time.Duration { return o.min.remaining(o.r.Core.Instant(time.Now())) }

// freeAfterRest is called after the release of o. If o may last for longer than the rest of its
// minimum hold, it frees o when the rest is over. That may be at once, because the rest was
// computed before the release was sent. stays says that the server has not shortened the lease. It
// does not block.
func (o *Ownership) freeAfterRest(stays bool) {
	if o.min == nil {
		return
	}
	if rest, c := o.minHoldLeft(), o.r.Core; rest > 0 && c.Presence.StaysTaken != nil {
		c.Presence.StaysTaken(o.ID, rest)
	}
	o.mu.Lock()
	mayBeExtended := o.lateTTL > 0
	o.mu.Unlock()
	mayOutlastRest := stays || mayBeExtended || o.outlivesLease()
	if !mayOutlastRest {
		return
	}
	over := time.Now().Add(o.minHoldLeft())
	o.r.addDuty(context.Background(), over, over.Add(o.r.Core.RepeatFor), func(ctx context.Context) error {
		_, err := o.free(ctx) // if the client is closing, o may have to stay taken for the rest
		return err
	})
}
