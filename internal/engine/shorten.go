package engine

import (
	"context"
	"time"

	"github.com/redlatch/redlatch/internal/failure"
)

// A server's clock that is set back.
//
// The server keeps the time at which a lease ends. If its clock is set back, all leases last longer
// by as much:
//
//	client                          server
//	renews: 30 s                    keeps the lock for 30 s
//	                                its clock is set back by an hour: the lock stays for 1 h 0 m 30 s
//	renews: 30 s                    a longer TTL stays, so nothing changes
//	crashes                         nobody gets the lock for an hour
//
// A renewal must not lower a TTL: a copy of it that comes late would shorten a longer lease that
// was promised meanwhile, by Extend or to a nested hold. So a renewal only tells the client how
// long the lease lasts. If that is longer than all that was promised, the client shortens the lease
// by a command of its own. The server executes that only within a second of the renewal, so a late
// copy does nothing. Until it is answered, or that second is over, no other command about the same
// lease is sent that could promise more.

const (
	// shortenTolerance is how much longer than promised a lease may last: the server counts from
	// when it executes a command, the client from when it was sent.
	shortenTolerance = 500 * time.Millisecond
	// shortenLimit is how long after its renewal the command may be executed, by this client's
	// clock, with a reserve.
	shortenLimit = 1200 * time.Millisecond
)

// Shorten is called after a renewal for ttl which has found that the lease lasts for left. If that
// is longer than promised to the holds, Shorten calls send in the background, to shorten the lease.
// counts is the count of o on the server. A lease that a detached hold shares stays as it is.
// Shorten does not block.
func (o *Ownership) Shorten(
	ttl, left time.Duration, send func(ctx context.Context, ttl time.Duration, counts int) error,
) {
	c := o.r.Core
	o.mu.Lock()
	defer o.mu.Unlock()
	isOver := o.lost || o.holds == nil
	isBusy := o.extends > 0 || o.shortening != nil // the next renewal finds it again
	if isOver || isBusy {
		return
	}
	if !o.hasOnlyItsHolds(int(o.count)) {
		return
	}
	ttl = max(ttl, o.promised())
	if left <= ttl+shortenTolerance {
		return
	}
	counts := int(o.count)
	done := make(chan struct{})
	o.shortening = done
	began := time.Now()
	c.Spawn(func() {
		ctx, cancel := context.WithDeadline(context.Background(), began.Add(shortenLimit))
		defer cancel()
		err := send(ctx, ttl, counts)
		if err != nil && failure.Of(err).InDoubt() {
			Pause(ctx, time.Until(began.Add(shortenLimit)), c.stopping)
		}
		o.mu.Lock()
		o.shortening = nil
		o.mu.Unlock()
		close(done)
	})
}

// promised returns how long from now the lease must last for all that was promised, or may still
// be. mu is held.
func (o *Ownership) promised() time.Duration {
	c := o.r.Core
	now := c.Instant(time.Now())
	until := o.latestEnd
	if o.kept {
		until = max(until, c.Instant(o.lease.ValidUntil().Add(c.MarginOf(o.TTL))))
	}
	for h := o.holds; h != nil; h = h.sibling {
		until = max(until, h.state().extended)
	}
	return max(time.Duration(until-now), o.renewed().ttl, o.min.remaining(now))
}

// beginExtend notes that a command is about to be sent that extends the lease, and is repeated if
// it is not answered. It waits while the lease is being shortened, or until ctx ends. The caller
// calls endExtend when the command has ended.
func (o *Ownership) beginExtend(ctx context.Context, ttl time.Duration) {
	o.mu.Lock()
	o.lateTTL = max(o.lateTTL, ttl)
	o.extends++
	shortening := o.shortening
	o.mu.Unlock()
	if shortening == nil {
		return
	}
	select {
	case <-shortening:
	case <-ctx.Done():
	}
}

// endExtend ends what beginExtend has begun.
func (o *Ownership) endExtend() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.extends--
}
