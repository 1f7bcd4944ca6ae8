package engine

import (
	"context"
	"sync"
	"time"

	"github.com/redlatch/redlatch/watchdog"
)

// How an ownership changes.
//
// Each hold needs one count. Nested holds join the ownership of the outer hold, and the server's count is
// set to the number of holds that are left. The command that sets it carries the wanted number, not a
// difference, so it may be repeated. The wire lock keeps the commands in order: whoever has it reads the
// number anew, so a late command never writes an old one. The last release sends Release with 0, or hands
// the lock off, and freed remembers the answer.
//
// A release that is not answered goes on in the background (writeCountLater), for as long as a copy of it
// can do no harm: see repeatUntil.
//
// Loss comes from four sides: the watchdog (a renewal was refused, or validity has passed), a reply to any
// command that says the id holds nothing, Verify after a takeover notice, and the limit of a single hold.
// All but the last end every hold of the ownership.

// Ownership is one acquisition as the server knows it: an id, and how often it is held. Nested holds
// share one.
type Ownership struct {
	r *Resource
	Owner
	Token  int64 // of the first hold; 0: it has none
	streak streak
	cohort time.Duration // how long its holds may be passed on without a command; 0: they are not

	// wire is held around each command that sets the count, so that counts reach the server in the order
	// in which they were decided. Take it with a context: a command may be stuck.
	wire   wireLock
	freed  freeing // guarded by wire
	change uint32  // number of the last change of the count; guarded by wire

	mu         sync.Mutex // guards the rest
	holds      *Hold      // those not released yet, linked by sibling
	passed     int32      // how often a fenced lock was passed on within a cohort
	count      int32      // the count that the holds need on the wire
	lapsed     int16      // holds that ended by their limit and were not released since
	lost       bool
	shortening bool          // a release that shortens the lease was sent and not answered yet
	over       Instant       // when the lease, or the server's memory of what was taken, ends at the latest
	shortLease time.Duration // the lease so far, if it is shorter than renewals ask for; else 0
	lease      watchdog.Lease
}

// freeing is what is known of the command that frees an ownership.
type freeing uint8

const (
	notFreed   freeing = iota
	freed              // answered: it is free
	wasNotOurs         // answered: there was nothing to free
)

// newOwnership returns what res grants to q.
func (r *Resource) newOwnership(q *Request, res Result) *Ownership {
	o := &Ownership{
		r: r, Owner: q.Owner, Token: res.Token, streak: res.streak, count: 1, shortLease: res.Lease,
		over: r.Core.Instant(time.Now().Add(q.TTL)),
	}
	if r.Traits.Cohorts && q.inCohort() && !r.Core.NeedsReplicas {
		o.cohort = q.Terms.Cohort
	}
	if o.streak.count == 0 {
		o.streak.since = r.Core.Instant(res.Sent)
	}
	if !r.Traits.Leased {
		o.over = r.Core.Instant(res.Sent.Add(r.Traits.Remembered - rememberedReserve))
	}
	return o
}

// OwnershipOf returns the ownership of an id that no local hold has, for Driver.Check.
func (r *Resource) OwnershipOf(id string) *Ownership {
	return &Ownership{r: r, Owner: Owner{ID: id}}
}

// Resource is what is owned.
func (o *Ownership) Resource() *Resource { return o.r }

func (o *Ownership) id() string            { return o.ID }
func (o *Ownership) leased() bool          { return o.r.Traits.Leased }
func (o *Ownership) ownership() *Ownership { return o }
func (o *Ownership) member(*Key) *Hold     { return nil }

// limit is when a hold ends that may last d after sent; zero: never.
func (o *Ownership) limit(sent time.Time, d time.Duration) time.Time {
	if !o.leased() {
		return time.Time{}
	}
	return sent.Add(d - o.r.Core.MarginOf(d))
}

func (o *Ownership) validUntil(h *Hold) time.Time {
	limit := h.until()
	if !o.leased() || !h.renew {
		return limit
	}
	if until := o.lease.ValidUntil(); limit.IsZero() || until.Before(limit) {
		return until
	}
	return limit
}

// join adds a hold. The watchdog renews while at least one hold is a renewed one, and watches the limit
// of each hold that has one.
func (o *Ownership) join(h *Hold) {
	if !o.leased() {
		return
	}
	o.mu.Lock()
	h.sibling, o.holds = o.holds, h
	h.member = uint16(o.passed)
	lost := o.lost
	if !lost {
		o.setTerms(h)
	}
	o.mu.Unlock()
	if lost { // after the command that added its count, before it joined
		h.loseInBackground()
		return
	}
	if h.limit != 0 { // nobody changes it yet
		h.watchLimit()
	}
}

// setTerms tells the watchdog how to renew after the holds have changed: for the longest of their TTLs,
// up to the last of their limits if all have one. fresh, if not nil, is a hold whose TTL was just
// confirmed. mu is held.
func (o *Ownership) setTerms(fresh *Hold) {
	c, all := o.r.Core, o.renewed()
	if all.ttl == 0 { // no hold is renewed: each has a limit of its own
		c.dog.Drop(&o.lease)
		return
	}
	terms := watchdog.Terms{Group: o.r.Traits.RenewGroup, TTL: all.ttl}
	if o.shortLease > 0 {
		terms.TTL = min(terms.TTL, o.shortLease) // until the first renewal
	}
	terms.Margin = c.MarginOf(terms.TTL)
	if all.limited {
		terms.End = c.Time(all.limit).Add(terms.Margin) // validity ends at the limit, not before
	}
	until := o.lease.ValidUntil()
	if fresh == nil {
		// A hold has left. Its release gives its lease back, so only what the others were promised is trusted.
		now := time.Now()
		if own := now.Add(all.lease(c, c.Instant(now)) - terms.Margin); own.Before(until) {
			until = own
		}
	} else {
		ttl := fresh.ttl
		if o.shortLease > 0 {
			ttl = min(ttl, o.shortLease)
		}
		if confirmed := c.Time(fresh.since).Add(ttl - c.MarginOf(ttl)); confirmed.After(until) {
			until = confirmed
		}
	}
	_ = c.dog.Keep(&o.lease, o, terms, until) // fails after Close, which ends the holds
}

// forget removes a hold from renewal and from news of a loss. It sends nothing.
func (o *Ownership) forget(h *Hold) {
	if !o.leased() {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	at := &o.holds
	for *at != nil && *at != h {
		at = &(*at).sibling
	}
	if *at == nil {
		return
	}
	*at, h.sibling = h.sibling, nil
	if !h.isReleased() {
		o.lapsed++ // its limit has come
	}
	if !o.lost {
		o.setTerms(nil)
	}
}

// addCount changes the count that the holds need, and returns it.
func (o *Ownership) addCount(delta int) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.count += int32(delta)
	return int(o.count)
}

// nest adds a count for a hold that is about to join. It fails with ErrLost when o holds nothing any
// more, and with errOuterEnded when the release of outer has begun: the release may be on its way, and
// would free the lock under the new hold.
func (o *Ownership) nest(ctx context.Context, outer *Hold, ttl time.Duration) (sent time.Time, err error) {
	began := time.Now()
	if !o.wire.LockContext(ctx) {
		return time.Time{}, GaveUp(ctx, nil)
	}
	if outer.isReleased() {
		o.wire.Unlock()
		return time.Time{}, errOuterEnded
	}
	// From here on wire is held until the server has answered, so a release of outer comes after the count.
	sent, lost, err := o.r.Driver.SetCount(ctx, o, o.addCount(+1), ttl)
	if err == nil && !lost {
		o.lastsUntil(sent.Add(ttl))
		o.mu.Lock()
		o.shortLease = 0
		o.mu.Unlock()
		o.wire.Unlock()
		return sent, nil
	}
	o.addCount(-1)
	o.wire.Unlock()
	if o.r.Core.failure(err).InDoubt {
		o.writeCountLater(ctx, o.r.Core.rollbackLimit(began))
	}
	return sent, o.judge(ctx, lost, err)
}

// unnest takes back a count that no hold has joined for.
func (o *Ownership) unnest(ctx context.Context) {
	o.addCount(-1)
	o.writeCountLater(ctx, rollbackGrace)
}

// release gives back the count of h. The last count frees the lock, or hands it off. It returns within
// releaseTimeout. If the server does not answer, the release goes on in the background.
func (o *Ownership) release(ctx context.Context, h *Hold) (lost bool, err error) {
	if o.passOn(h) {
		return false, nil
	}
	o.forget(h) // before the command: nothing renews what is being released
	o.addCount(-1)
	bounded := context.WithoutCancel(ctx)
	// Usually the wire is free and commands end in time: then no timer is needed.
	locked := o.wire.TryLock()
	if !locked || o.r.Core.CommandTimeout > releaseTimeout {
		var stop context.CancelFunc
		bounded, stop = context.WithTimeout(bounded, releaseTimeout)
		defer stop()
		if !locked && !o.wire.LockContext(bounded) {
			o.writeCountLater(ctx, 0)
			return false, o.r.Core.Unanswered(errSiblingStuck)
		}
	}
	// The count is read with wire held: siblings may have been released meanwhile.
	left := o.addCount(0)
	switch {
	case left > 0:
		lost, err = o.r.Driver.Release(bounded, o, left)
	case o.freed != notFreed: // by the last of the siblings that were released at the same time
		lost = o.freed == wasNotOurs
	default:
		if lost, err = o.releaseOrHandOff(bounded); err == nil {
			o.freed = freed
			if lost {
				o.freed = wasNotOurs
			}
		}
	}
	o.wire.Unlock()
	switch {
	case err != nil:
		o.writeCountLater(ctx, 0)
	case lost:
		o.lose(ctx, h)
	}
	return lost, err
}

// writeCountLater sends the count in the background until the server has answered: the count that is
// decided when a command gets through. It waits up to limit for the first attempt.
func (o *Ownership) writeCountLater(ctx context.Context, limit time.Duration) {
	o.r.Core.inBackground(ctx, o.repeatUntil(), limit, func(ctx context.Context) error {
		if !o.wire.LockContext(ctx) {
			return context.Cause(ctx)
		}
		defer o.wire.Unlock()
		if o.freed != notFreed {
			return nil // a release got through meanwhile
		}
		// Not handed off: the lock may have been lost long ago, and its waiters acquire by themselves.
		_, err := o.r.Driver.Release(ctx, o, o.addCount(0))
		return err
	})
}

// repeatUntil is how long a release may be repeated: until the lease has ended, or, where a second
// execution would give back more than the first, for as long as the server remembers the first.
func (o *Ownership) repeatUntil() time.Time {
	// The first copy was sent up to a command timeout ago.
	remembered := time.Now().Add(o.r.Core.RepeatFor - o.r.Core.CommandTimeout)
	switch {
	case o.Shared:
		return remembered
	case o.leased():
		return o.endsAt()
	}
	if until := o.endsAt(); until.After(remembered) {
		return until
	}
	return remembered
}

// rememberedReserve is how much earlier than the server the client takes an acquisition without a lease
// to be forgotten.
const rememberedReserve = time.Hour

// IsRemembered reports whether the server is known to remember what an acquisition without a lease took.
func (o *Ownership) IsRemembered() bool { return time.Now().Before(o.endsAt()) }

// abandon deletes the key of an expired hold, in case a late renewal extended it. Its owner has left
// the critical section. A count of a shared id is left to the lease: the id may hold the lock again by
// now, and would lose a count.
func (o *Ownership) abandon(ctx context.Context) {
	o.mu.Lock()
	o.lapsed = max(o.lapsed-1, 0)
	o.mu.Unlock()
	if o.addCount(-1) == 0 && !o.Shared && time.Now().Before(o.endsAt()) {
		o.writeCountLater(ctx, 0)
	}
}

func (o *Ownership) check(ctx context.Context) error {
	lost, err := o.r.Driver.Check(ctx, o)
	return o.judge(ctx, lost, err)
}

// Verify asks the server whether o still holds, and ends its holds if it does not. No user's call
// waits for it.
func (o *Ownership) Verify(ctx context.Context) error {
	lost, err := o.r.Driver.Check(ctx, o)
	if err == nil && lost {
		o.loseInBackground()
		return ErrLost
	}
	return err
}

// extend keeps the lock for at least d from now, and h with it.
func (o *Ownership) extend(ctx context.Context, h *Hold, d time.Duration) error {
	if err := o.promise(ctx, h, d); err != nil {
		return err
	}
	sent, lost, err := o.r.Driver.Extend(ctx, o, d)
	if err = o.judge(ctx, lost, err); err != nil {
		return err
	}
	o.lastsUntil(sent.Add(d))
	until := sent.Add(d - o.r.Core.MarginOf(d))
	limit := o.r.Core.Instant(until)
	h.mu.Lock()
	raised := h.limit != 0 && limit > h.limit
	if raised {
		h.limit = limit
	}
	h.mu.Unlock()
	if raised { // before Confirm, which never goes beyond the limits
		o.mu.Lock()
		if !o.lost && o.has(h) {
			o.setTerms(nil)
		}
		o.mu.Unlock()
		h.watchLimit()
	}
	o.r.Core.dog.Confirm(&o.lease, until)
	return nil
}

// judge turns a reply into an error. It ends all holds if the lock is lost.
func (o *Ownership) judge(ctx context.Context, lost bool, err error) error {
	if err == nil && lost {
		o.lose(ctx, nil)
		return ErrLost
	}
	return err
}

// lose ends all holds but one, because the call with ctx found that the lock is lost.
func (o *Ownership) lose(ctx context.Context, except *Hold) {
	for _, h := range o.endAll() {
		if h != except {
			h.lose(ctx)
		}
	}
}

// loseInBackground ends all holds, because the lock was found to be lost by no call of the user's.
func (o *Ownership) loseInBackground() {
	for _, h := range o.endAll() {
		h.loseInBackground()
	}
}

// endAll marks o as lost, once, and returns the holds that are to be told.
func (o *Ownership) endAll() []*Hold {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.lost {
		return nil
	}
	o.lost = true
	holds := o.list()
	o.holds = nil
	o.r.Core.dog.Drop(&o.lease) // no renewal may revive what was lost
	return holds
}

// lastsUntil notes that the server may keep the key until then.
func (o *Ownership) lastsUntil(over time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.over = max(o.over, o.r.Core.Instant(over))
}

// endsAt is when the lease is over at the latest.
func (o *Ownership) endsAt() time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	over := o.r.Core.Time(o.over)
	if renewed := o.lease.ValidUntil(); renewed.After(over) {
		return renewed.Add(o.r.Core.MarginOf(o.TTL))
	}
	return over
}

// LeaseRenewed implements [watchdog.Keeper]: the server keeps the lock.
func (o *Ownership) LeaseRenewed(*watchdog.Lease) {
	o.mu.Lock()
	if o.shortLease > 0 && o.holds != nil {
		// Now that the short first lease was renewed once, ask for what the holds want: at once.
		o.shortLease = 0
		o.setTerms(nil)
	}
	o.mu.Unlock()
	o.report(EventRenewed, nil)
}

// LeaseUnknown implements [watchdog.Keeper]: a renewal was not answered.
func (o *Ownership) LeaseUnknown(_ *watchdog.Lease, err error) { o.report(EventRenewFailed, err) }

// LeaseLost implements [watchdog.Keeper]: the lock is lost, or must be taken to be.
func (o *Ownership) LeaseLost(_ *watchdog.Lease, refused bool) {
	if !refused {
		o.lastsUntil(time.Now().Add(o.TTL)) // a renewal without an answer may have been executed: see abandon
	}
	o.loseInBackground()
}

// report emits an event of each hold.
func (o *Ownership) report(kind EventKind, err error) {
	if o.r.Core.Observe == nil {
		return
	}
	o.mu.Lock()
	holds := o.list()
	o.mu.Unlock()
	for _, h := range holds {
		o.r.Core.emitLater(h.event(kind, err))
	}
}

// list returns the holds that are not released yet. mu is held.
func (o *Ownership) list() (holds []*Hold) {
	for h := o.holds; h != nil; h = h.sibling {
		holds = append(holds, h)
	}
	return holds
}

// has reports whether h is among the holds. mu is held.
func (o *Ownership) has(h *Hold) bool {
	for other := o.holds; other != nil; other = other.sibling {
		if other == h {
			return true
		}
	}
	return false
}
