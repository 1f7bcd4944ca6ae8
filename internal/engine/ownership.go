package engine

import (
	"context"
	"sync"
	"time"

	"github.com/redlatch/redlatch/internal/failure"
	"github.com/redlatch/redlatch/watchdog"
)

// How an ownership changes.
//
// Each hold needs one count. Nested holds join the ownership of the outer hold, and the server's
// count is set to the number of holds that are left. The command that sets it carries the wanted
// number, not a difference, so it may be repeated. The wire lock keeps the commands in order, and
// the count is read while it is held, so a late command never writes an old count. The last release
// sends Release with 0, or hands the lock off, and wire.outcome keeps the answer.
//
// Without the wire lock, a nested acquisition and a release could overtake each other:
//
//	release of the outer hold      nested acquisition
//	count 1 -> 0
//	                               count 0 -> 1
//	                               sends "count 1", is answered: a hold
//	sends "free", is answered
//	(another client acquires while the nested hold is live)
//
// A release without an answer is repeated in the background (writeCountLater), for as long as a
// copy of it can do no harm: see repeatUntil.
//
// A loss ends all holds of an ownership:
//
//   - A renewal was refused (LeaseLost). If validity has passed instead, holds with a fixed lease
//     stay.
//   - The reply to another command: the server does not know the id (lose).
//   - A question of package presence, after a takeover notice or a restart of the server (Verify,
//     LoseAsGone).
//
// One hold alone ends by its limit (lapsed), or by a Check or an Extend that finds its validity
// over before the watchdog reports that (loseIfOver).

// Ownership is one acquisition as the server knows it: an id and its count. Nested holds share one.
// The first hold makes it, each hold joins it, and it is garbage when the last hold has ended and
// no command about it is left.
type Ownership struct {
	r *Resource
	Owner
	Token     int64 // as in Result; of a fenced lock that of the first hold, 0 if it has none
	streak    streak
	turnTerms *Terms // of the users who take turns on it; noTurns if nobody does

	// wire is held around each command that sets the count, so that counts reach the server in the
	// order in which they were decided. It is taken with a context, because a command may be stuck.
	wire wireLock
	min  *minHold // nil if there is none; does not change once the hold is made

	mu        sync.Mutex // guards the rest; never held around a command
	holds     *Hold      // live holds that have joined, linked by sibling
	count     int32      // the count that the server should have
	extends   int16      // commands under way that extend the lease
	lapsed    int16      // holds that ended by their limit and were not released since then
	lost      bool       // set once: there are no holds any longer, and none joins
	kept      bool       // the watchdog renews lease
	otherKind bool       // a hold of another kind may have the id: a writer that also reads
	wanted    bool       // another client has asked for it; guarded by waitQueues.mu instead
	// askedMemory is set once the release has asked whether the server remembers the permits, and
	// isRemembered is the answer. The release sends the same command again and again, although that
	// time may end meanwhile. The wire lock guards both.
	askedMemory  bool
	isRemembered bool
	failing      *renewFailures // the latest renewals, if they have failed; else nil
	latestEnd    Instant        // the latest end of the lease, or of the server's memory where there is no lease
	lateTTL      time.Duration  // the longest TTL that a renewal, or a late copy of an extension, may set; 0 if none
	shortLease   time.Duration  // the lease so far, if it is shorter than renewals ask for; else 0
	lease        watchdog.Lease
	shortening   chan struct{} // closed when a command that shortens the lease has ended; nil if there is none

	first Hold // the hold that it was acquired for; see NewHold
}

// freeing is the answer to the command that frees an ownership. Once there is one, no further
// release is sent: siblings that were released at the same time take it as their answer too.
type freeing uint8

const (
	notFreed   freeing = iota // not sent, or not answered
	freed                     // answered: it is free
	handedOff                 // answered: the successor has it
	wasNotOurs                // answered: there was nothing to free
)

// sharedGroup is the group of leases with shared ids. Their driver renews them by another command
// than the other leases of the same group.
type sharedGroup struct{ group any }

// noTurns has no cohort and no linger.
var noTurns Terms

// newOwnership returns the ownership of a request that was granted by res. Its one count is for the
// hold that the caller makes next.
func (r *Resource) newOwnership(q *Request, res Result) *Ownership {
	o := &Ownership{
		r: r, Owner: q.Owner, Token: res.Token, streak: res.streak, turnTerms: &noTurns, count: 1, shortLease: res.Lease,
		latestEnd: r.Core.Instant(time.Now().Add(q.TTL)), min: q.min,
	}
	isOutermost := r.Traits.Leased && !q.UnderSameID
	if isOutermost && q.Terms.MinHold > 0 {
		o.min = &minHold{d: q.Terms.MinHold}
	}
	if o.min != nil && q.Group == nil { // else the joint hold begins it
		o.min.begin(r.Core, time.Now())
	}
	o.Tokens = res.Tokens // not as many as asked for, near the end of the counter
	if q.isTenure {
		o.turnTerms = q.Terms
	}
	if o.streak.count == 0 {
		o.streak.since = r.Core.Instant(res.Sent)
	}
	if !r.Traits.Leased {
		o.latestEnd = r.Core.Instant(res.Sent.Add(r.Traits.Remembered - rememberedReserve))
	}
	return o
}

// OwnershipOf returns an ownership without holds, for LeaseDriver.Check of another client's id.
func (r *Resource) OwnershipOf(id string) *Ownership {
	return &Ownership{r: r, Owner: Owner{ID: id}}
}

// RenewGroup identifies the leases that one command can renew or ask about: those whose groups are
// equal.
func (o *Ownership) RenewGroup() any {
	if o.Shared {
		return sharedGroup{o.r.RenewGroup}
	}
	return o.r.RenewGroup
}

// Resource returns the resource that the ownership was acquired from.
func (o *Ownership) Resource() *Resource { return o.r }

// OwnerID implements [Holding].
func (o *Ownership) OwnerID() string { return o.ID }

// Ownership implements [Holding].
func (o *Ownership) Ownership() *Ownership { return o }

// TokenOf implements [Holding]. A hold that nests in a turn has the token of that turn. An adopted
// hold has none.
func (o *Ownership) TokenOf(h *Hold) int64 {
	hasToken := o.r.Traits.Fenced && o.Token != 0
	if !hasToken {
		return 0
	}
	return o.Token + int64(h.earlier)
}

// Member implements [Holding]: there are no members.
func (o *Ownership) Member(*Resource) *Hold { return nil }

// ValidUntil implements [Holding]: the hold's own limit, or the end of the renewed lease if that
// comes first. A fixed lease has only a limit.
func (o *Ownership) ValidUntil(h *Hold) time.Time {
	limit := h.Limit()
	if !o.r.Traits.Leased || !h.renew {
		return limit
	}
	if until := o.lease.ValidUntil(); limit.IsZero() || until.Before(limit) {
		return until
	}
	return limit
}

// Join implements [Holding]: it adds a hold. The watchdog renews while at least one hold is a
// renewed one, and watches the limit of each hold that has one. The ownership may have been lost
// between the command that added the count and Join. In that case h ends at once: no event would
// come for it later.
func (o *Ownership) Join(h *Hold) {
	if !o.r.Traits.Leased {
		return
	}
	o.mu.Lock()
	lost := o.lost
	if !lost {
		h.sibling = o.holds
		o.holds = h
		o.setSchedule(h)
	}
	o.mu.Unlock()
	if lost {
		h.LoseInBackground(goneLoss)
		return
	}
	h.watchLimit()
}

// setSchedule updates the watchdog's schedule after the holds have changed: renew for the longest
// of their TTLs, up to the last of their limits if all have one. fresh, if not nil, is a new hold:
// the server has just confirmed its TTL. mu is held.
//
// When a hold leaves, validity may shrink. Its release may shorten the lease on the server, and an
// answer to an older renewal says nothing about the lease after that.
func (o *Ownership) setSchedule(fresh *Hold) {
	c := o.r.Core
	all := o.renewed()
	if all.ttl == 0 { // no hold is renewed: each has a limit of its own
		o.lateTTL = max(o.lateTTL, c.dog.Drop(&o.lease))
		o.kept = false
		return
	}
	// The key has one TTL: the longest. But each hold learns of a loss as soon as without the
	// others.
	schedule := watchdog.Schedule{Group: o.RenewGroup(), TTL: all.ttl, Period: all.shortest / 3}
	if o.shortLease > 0 {
		schedule.TTL = min(schedule.TTL, o.shortLease) // until the first renewal
	}
	schedule.Margin = c.MarginOf(schedule.TTL)
	if all.limited {
		schedule.End = c.Time(all.limit).Add(schedule.Margin) // validity ends at the limit, not before
	}
	until := o.lease.ValidUntil()
	if fresh == nil {
		// A hold has left, or a limit was raised. Trust only the lease that the remaining holds
		// need.
		now := time.Now()
		if own := now.Add(all.lease(c, c.Instant(now)) - schedule.Margin); own.Before(until) {
			until = own
		}
	} else {
		ttl := fresh.ttl // a fixed lease may be longer than the schedule's
		if o.shortLease > 0 {
			ttl = min(ttl, o.shortLease)
		}
		confirmed := c.trustedUntil(c.Time(fresh.since), ttl)
		if !o.kept || confirmed.After(until) { // a release may have shortened a lease that was dropped
			until = confirmed
		}
	}
	o.kept = true
	_ = c.dog.Keep(&o.lease, o, schedule, until) // fails after Close, which ends the holds
}

// Forget implements [Holding]: it removes a hold, so that it is neither renewed nor ended by a loss
// from now on. It sends nothing and does not block. Only the first call has an effect. Its callers
// are a release, a detach, the end of the hold's limit, and Close.
func (o *Ownership) Forget(h *Hold) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.forget(h)
}

// forget is Forget with mu held.
func (o *Ownership) forget(h *Hold) {
	at := &o.holds
	for *at != nil && *at != h {
		at = &(*at).sibling
	}
	if *at == nil {
		return
	}
	*at = h.sibling
	h.sibling = nil
	if !h.state().taken {
		h.isLapsed = true // its limit has come, and the server still counts it until its Release: see Abandon
		o.lapsed++
	}
	o.setSchedule(nil)
}

// giveBack removes h, and gives back its count, which the next command of the release sends.
func (o *Ownership) giveBack(h *Hold) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.forget(h)
	if h.isLapsed { // its limit came just when its release began
		h.isLapsed = false
		o.lapsed--
	}
	o.count--
}

// addCount changes the count that the server should have, and returns it. It sends nothing. A
// command that sends the count must read it, by addCount(0), with wire held.
func (o *Ownership) addCount(delta int) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.count += int32(delta)
	return int(o.count)
}

// nest adds a count on the server for a hold that is about to join. It blocks for the wire lock and
// for the reply. It fails with ErrLost if the server does not know o, and with errOuterEnded if the
// release of outer has begun. The wire lock decides which of the two comes first:
//
//	nest                            release of outer
//	takes wire, outer is live
//	sends "count 2"                 waits for wire
//	is answered
//	                                takes wire, sends "count 1": the lock stays held
//
//	                                takes wire, sends "free"
//	waits for wire
//	takes wire: outer is released
//	errOuterEnded, sends nothing
//
// If the reply is lost, the server may have counted the new hold, or may still do so. In that case
// the current count is sent in the background.
func (o *Ownership) nest(ctx context.Context, outer *Hold, ttl time.Duration) (sent time.Time, err error) {
	began := time.Now()
	if !o.wire.LockContext(ctx) {
		return time.Time{}, failure.CutShort(ctx, began)
	}
	if outer.state().taken {
		o.wire.Unlock()
		return time.Time{}, errOuterEnded
	}
	// From here on wire is held until the reply. A release of outer that begins now is sent after
	// the count.
	o.beginExtend(ctx, ttl)
	defer o.endExtend()
	undo := func() {
		o.addCount(-1)
		o.wire.Unlock()
		o.writeCountLater(ctx, 0)
	}
	var lost bool
	Guarded(undo, func() { sent, lost, err = o.r.Leases.SetCount(ctx, o, o.addCount(+1), ttl) })
	if err != nil && !lost {
		lost = o.r.Holds.Overwritten(ctx, err)
	}
	if err == nil && !lost {
		o.lastsUntil(sent.Add(ttl))
		o.mu.Lock()
		o.shortLease = 0
		o.mu.Unlock()
		o.wire.Unlock()
		return sent, nil
	}
	left := o.addCount(-1)
	o.wire.Unlock()
	if left == 0 || failure.Of(err).InDoubt() { // at 0, the release of a lost hold has left the rest to us
		o.writeCountLater(ctx, o.r.Core.RollbackLimit(began))
	}
	if lost {
		_ = o.lose(ctx, outer)
		err = ErrLost
	}
	return sent, err
}

// wouldBeExpired reports whether a hold with these terms would not be valid any longer, if it
// joined o now, or whether o is lost. The command that counted it was sent at sent.
func (o *Ownership) wouldBeExpired(terms *Terms, sent time.Time) bool {
	until := o.r.Core.trustedUntil(sent, terms.FirstTTL())
	o.mu.Lock()
	defer o.mu.Unlock()
	hasLimit := !terms.Renew || terms.MaxHold != 0
	if o.kept && !hasLimit {
		renewed := o.lease.ValidUntil() // with the other holds
		if renewed.After(until) {
			until = renewed
		}
	}
	return o.lost || !time.Now().Before(until)
}

// Release implements [Holding]: it gives back the count of h. The last count frees the lock, or
// hands it off. It blocks for the wire lock and for the reply, for releaseTimeout at most, even if
// ctx has ended. Without a reply the release is repeated in the background.
//
// For two holds that are released at the same time, one command may be enough:
//
//	release of A: count 2 -> 1     release of B: count 1 -> 0
//	takes wire, reads 0, frees
//	                               takes wire: freed already, sends nothing
func (o *Ownership) Release(ctx context.Context, h *Hold) (wasHandedOff bool, err error) {
	o.giveBack(h) // before the command: nothing renews what is being released
	locked := o.wire.TryLock()
	bounded, stop := o.r.Core.releaseContext(ctx, locked)
	defer stop()
	if !locked && !o.wire.LockContext(bounded) {
		// A command of another hold is stuck on its connection. Our count goes out after it.
		o.writeCountLater(ctx, 0)
		return false, failure.Unanswered(errSiblingStuck)
	}
	undo := func() {
		o.wire.Unlock()
		o.writeCountLater(ctx, 0)
	}
	var answer freeing
	Guarded(undo, func() { answer, err = o.releaseOne(bounded) })
	o.wire.Unlock() // before the loss is reported: no hold ends with wire held
	isOverwritten := err != nil && o.r.Holds.Overwritten(bounded, err)
	switch {
	case answer == wasNotOurs, isOverwritten:
		err = o.lose(ctx, h)
	case err != nil:
		o.writeCountLater(ctx, 0)
		timedOut := !locked && bounded.Err() != nil
		if timedOut && !failure.Of(err).InDoubt() {
			// The wire came free when the time was over, so the command was not sent. It will be.
			err = failure.Unanswered(errSiblingStuck)
		}
	}
	return answer == handedOff, err
}

// releaseOne sends the command of a release, and returns what it means for the lock. The caller has
// taken wire, and has given back its count.
func (o *Ownership) releaseOne(ctx context.Context) (freeing, error) {
	remaining := o.addCount(0) // siblings may have been released before wire was taken
	switch {
	case remaining > 0:
		got, err := o.r.Holds.Release(ctx, o, remaining, Next{})
		if got.Lost {
			return wasNotOurs, err
		}
		return notFreed, err
	case o.wire.outcome == handedOff: // by a sibling that was released at the same time, which reports it
		return freed, nil
	case o.wire.outcome != notFreed: // the same
		return o.wire.outcome, nil
	}
	return o.releaseLast(ctx)
}

// releaseContext returns the context of a release, which ends within releaseTimeout and not with
// ctx. Usually the wire is locked already, and commands end in time: then no timer is needed.
func (c *Core) releaseContext(ctx context.Context, locked bool) (context.Context, context.CancelFunc) {
	ctx = context.WithoutCancel(ctx)
	if locked && c.CommandTimeout <= releaseTimeout {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, releaseTimeout)
}

// writeCountLater sends the count in the background until the server has answered. Each repetition
// reads the count anew, so that it never undoes a later change. writeCountLater blocks for the
// first attempt, for limit at most. The caller must not hold wire.
func (o *Ownership) writeCountLater(ctx context.Context, limit time.Duration) {
	o.writeCountUntil(ctx, o.repeatUntil(), limit)
}

// writeCountUntil is writeCountLater, but gives up at until.
func (o *Ownership) writeCountUntil(ctx context.Context, until time.Time, limit time.Duration) {
	o.r.inBackground(ctx, until, limit, func(ctx context.Context) error {
		if !o.wire.LockContext(ctx) {
			return context.Cause(ctx)
		}
		defer o.wire.Unlock()
		if o.wire.outcome != notFreed {
			return nil // a release got through meanwhile
		}
		// No hand-off here: the lock may have been lost long ago, and the waiters try by
		// themselves.
		left := o.addCount(0)
		if left > 0 {
			_, err := o.r.Holds.Release(ctx, o, left, Next{})
			return err
		}
		sent := time.Now()
		got, err := o.free(ctx)
		o.recordAnswer(got, sent, err)
		return err
	})
}

// free frees o for whoever comes first, or leaves it taken for the rest of its minimum hold. It
// blocks for the reply.
func (o *Ownership) free(ctx context.Context) (Released, error) {
	if rest := o.minHoldLeft(); rest > 0 {
		return o.r.Leases.ReleaseAfter(ctx, o, rest)
	}
	return o.r.Holds.Release(ctx, o, 0, Next{})
}

// recordAnswer notes the answer to the command that frees o, which was first sent at sent, and
// returns what it means; without an answer, notFreed. The answer counts for whoever releases a hold
// of o at the same time. wire is held.
//
// If a repeated release finds nothing, and the lease had not ended when the first copy was sent,
// then the first copy was executed. The lock may also have been taken by force at that moment. The
// two cannot be told apart.
func (o *Ownership) recordAnswer(got Released, sent time.Time, err error) freeing {
	if err != nil {
		o.wire.freeInDoubt = o.wire.freeInDoubt || failure.Of(err).InDoubt()
		return notFreed
	}
	inDoubt := got.InDoubt || o.wire.freeInDoubt
	isOfFirstCopy := inDoubt && sent.Before(o.EndsAt())
	switch {
	case got.Lost && !isOfFirstCopy:
		o.wire.outcome = wasNotOurs
		return wasNotOurs
	case got.Successor.Granted:
		o.wire.outcome = handedOff
	default:
		o.wire.outcome = freed
	}
	o.freeAfterRest(got.Stays)
	return o.wire.outcome
}

// repeatUntil returns when the repetition of a release must end.
//
//   - A private id with a lease: when the lease is over, even if a late copy extends it in its last
//     moment. A second execution changes nothing.
//   - An id that may outlive its lease (outlivesLease): the same, but not before the time in the
//     next point.
//   - Without a lease: while the server remembers the permits, or the first execution.
func (o *Ownership) repeatUntil() time.Time {
	until := o.EndsAt()
	if o.r.Traits.Leased && !o.outlivesLease() {
		o.mu.Lock()
		defer o.mu.Unlock()
		return until.Add(o.lateTTL)
	}
	// The first copy was sent up to a command timeout ago.
	remembered := time.Now().Add(o.r.Core.RepeatFor - o.r.Core.CommandTimeout)
	if until.After(remembered) {
		return until
	}
	return remembered
}

// outlivesLease reports whether the server may still count o after its lease has ended, or may
// count it again. Others with the same id may have renewed the lock: owners that share the id, or
// the read holds of a writer. Or the acquisition is in doubt: a late copy of it would acquire
// again, unless the server remembers the release.
func (o *Ownership) outlivesLease() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.Shared || o.InDoubt || o.otherKind
}

// rememberedReserve is a safety margin: the client stops relying on the server's memory of an
// acquisition without a lease this long before it ends.
const rememberedReserve = time.Hour

// IsRemembered reports whether the server certainly remembers the permits of an acquisition without
// a lease. If so, the driver may have the server release only what it remembers. The answer is that
// of the release's first attempt: its repetitions must not release once more when the time is over.
// The server remembers for longer than they take (rememberedReserve). The wire lock is held.
func (o *Ownership) IsRemembered() bool {
	if !o.askedMemory {
		o.askedMemory = true
		o.isRemembered = time.Now().Before(o.EndsAt())
	}
	return o.isRemembered
}

// Abandon implements [Holding]: it deletes the key of a lost hold, in case a late renewal extended
// it.
//
//  1. A renewal is sent, and its reply is lost.
//  2. validUntil passes: the hold is lost here.
//  3. The server executes the renewal, and keeps the key for another TTL.
//  4. The user calls Release. Without Abandon, nobody could acquire for the rest of that TTL.
//
// It waits for Release, because until then the user's critical section may still run. A count may
// also stay because others with the same id renew the lock: see outlivesLease. It does not block.
func (o *Ownership) Abandon(ctx context.Context) {
	o.mu.Lock()
	o.lapsed = max(o.lapsed-1, 0)
	o.mu.Unlock()
	// Others may have been given the id of a lock, but not that of a permit.
	mayStay := o.r.Traits.Nests || o.outlivesLease() || time.Now().Before(o.EndsAt())
	if o.addCount(-1) == 0 && mayStay {
		until := time.Now().Add(releaseTimeout) // if the lease is over, usually nothing is left
		if repeat := o.repeatUntil(); repeat.After(until) {
			until = repeat
		}
		o.writeCountUntil(ctx, until, 0)
	}
}

// Check implements [Holding]: it asks the server.
func (o *Ownership) Check(ctx context.Context, h *Hold) error {
	lost, err := o.r.Leases.Check(ctx, o)
	if err == nil && lost {
		return o.loseUnlessReleased(ctx, h)
	}
	return err
}

// Verify asks the server whether o still holds the lock, after a takeover notice has named it, and
// ends its holds if it does not. It is Check for a goroutine of the client's presence: it does not
// wait for the observer.
func (o *Ownership) Verify(ctx context.Context) error {
	lost, err := o.r.Leases.Check(ctx, o)
	if err == nil && lost {
		o.loseInBackground(Loss{Reason: LossForced})
		return ErrLost
	}
	return err
}

// LoseAsGone ends the holds of o, because the server has said that o does not hold the lock. It
// does not wait for the observer.
func (o *Ownership) LoseAsGone() { o.loseInBackground(o.unknownLoss()) }

// ValidFor returns how long, from now, the hold of o that ends first is valid. It is 0 if o has no
// holds any longer.
func (o *Ownership) ValidFor() (d time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for h := o.holds; h != nil; h = h.sibling {
		if left := time.Until(o.ValidUntil(h)); d == 0 || left < d {
			d = left
		}
	}
	return max(d, 0)
}

// RenewNow has the watchdog renew the leases of ownerships at once, because the server may have
// forgotten them. It returns the ownerships whose leases are not renewed. It does not block.
func (c *Core) RenewNow(owned []*Ownership) (fixed []*Ownership) {
	renewed := make([]*watchdog.Lease, 0, len(owned))
	for _, o := range owned {
		o.mu.Lock()
		kept := o.kept
		o.mu.Unlock()
		if kept {
			renewed = append(renewed, &o.lease)
		} else {
			fixed = append(fixed, o)
		}
	}
	c.dog.RenewNow(renewed...)
	return fixed
}

// Extend implements [Holding]: it keeps the lock, and h, for at least d from now. It blocks for the
// reply. If the reply is lost, validity stays as it was: the server may keep the lock longer than h
// lasts, which is safe.
func (o *Ownership) Extend(ctx context.Context, h *Hold, d time.Duration) error {
	if err := o.promise(ctx, h, d); err != nil {
		return err
	}
	o.beginExtend(ctx, d)
	defer o.endExtend()
	sent, lost, err := o.r.Leases.Extend(ctx, o, d)
	switch {
	case err != nil:
		return err
	case lost:
		return o.loseUnlessReleased(ctx, h)
	}
	o.lastsUntil(sent.Add(d))
	until := o.r.Core.trustedUntil(sent, d)
	limit := o.r.Core.Instant(until)
	h.mu.Lock()
	raised := h.cause == nil && h.limit != 0 && limit > h.limit // a lost hold keeps the end of its validity
	if raised {
		h.limit = limit
	}
	h.mu.Unlock()
	if raised { // before Confirm, which never extends validity beyond the limits
		o.mu.Lock()
		o.setSchedule(nil)
		o.mu.Unlock()
		h.watchLimit()
	}
	o.r.Core.dog.Confirm(&o.lease, until)
	return nil
}

// lastsUntil notes that the server may keep the key until over. It never takes back a later time,
// because the command that caused it may still be executed.
func (o *Ownership) lastsUntil(over time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.latestEnd = max(o.latestEnd, o.r.Core.Instant(over))
}

// EndsAt returns when the lease is over at the latest, by the clock of this client. Validity ends
// earlier. After EndsAt there is nothing left to release.
func (o *Ownership) EndsAt() time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	over := o.r.Core.Time(o.latestEnd)
	if renewed := o.lease.ValidUntil(); renewed.After(over) {
		return renewed.Add(o.r.Core.MarginOf(o.TTL))
	}
	return over
}

// list returns the live holds. mu is held.
func (o *Ownership) list() (holds []*Hold) {
	for h := o.holds; h != nil; h = h.sibling {
		holds = append(holds, h)
	}
	return holds
}
