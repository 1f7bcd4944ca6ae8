package engine

import (
	"context"
	"errors"
	"time"

	"github.com/redlatch/redlatch/internal/failure"
)

// What a joint lock needs of the requests and the holds of its members, beyond what a driver needs.
// Package joint uses it.

// HearFrom takes over what a request for a member of q's joint lock has heard. Without HearFrom, q
// notes one answer for each attempt for the joint lock.
func (q *Request) HearFrom(member *Request, granted bool) {
	q.membersNote = true
	k := member.contact
	if granted { // the holder that had refused it is gone
		k = &Contact{}
		k.refused = member.Wait.waited
	}
	if k == nil {
		return
	}
	isNews := !granted || k.refused
	if isNews || q.contact != nil {
		q.ownContact().takeOver(k)
	}
}

// WaitForMember notes what member, the latest request for m, has heard: q waits for m too, and the
// client of m asks the holder of m: see wanted.go. If q gives up, the others in its queue go on
// with what it has heard. member is nil if q waits for no holder of m.
func (q *Request) WaitForMember(m *Resource, member *Request) {
	k := q.members[m]
	isRefused := member != nil && member.contact != nil
	switch {
	case isRefused && k == nil:
		k = &Contact{}
		if q.members == nil {
			q.members = map[*Resource]*Contact{}
		}
		q.members[m] = k
		k.takeOver(member.contact)
		m.Core.waitedFor.add(k, m)
		m.Core.Presence.WaitBegan(m)
	case isRefused:
		k.takeOver(member.contact)
	case k != nil:
		k.released()
	}
}

// leaveMembers undoes WaitForMember for all members, because nobody waits for them any longer. The
// caller holds no mutex.
func leaveMembers(members map[*Resource]*Contact) {
	for m, k := range members {
		m.Core.waitedFor.remove(k)
		m.Core.Presence.WaitEnded(m)
	}
}

// NoteSilence notes that members have not answered since the given time, for a joint lock that may
// give up for another reason.
func (q *Request) NoteSilence(since time.Time) {
	if silent := time.Since(since); silent >= failure.SilentAfter {
		f := failure.Failure{Outcome: failure.Unknown, CallerEnded: true, Waited: silent}
		q.ownContact().fail(failure.SilenceError(silent), f, 0)
	}
}

// GaveUp returns the error of an acquisition of a joint lock that ended before all members had
// answered.
func (q *Request) GaveUp(ctx context.Context) error { return q.gaveUp(ctx, nil) }

// JoinAs makes h the hold of a member of joint. h gets the context of joint, because the attempt's
// context ends with the attempt. The member's minimum hold counts from when the joint lock was
// acquired, even if the member comes later, or replaces a lost one.
func (h *Hold) JoinAs(joint *Hold, acquired time.Time) {
	h.mu.Lock()
	h.ctx = joint.ctx
	h.mu.Unlock()
	h.Ownership().min.begin(h.r.Core, acquired)
}

// WasNested reports whether an acquisition has nested in h, or has tried to.
func (h *Hold) WasNested() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.gate != nil
}

// WithoutCancel returns a context that never ends, with the values of the context of h.
func (h *Hold) WithoutCancel() context.Context { return context.WithoutCancel(h.ctx) }

// AcquireCopyWindow returns how long a late copy of the command that acquired h may still arrive.
func (h *Hold) AcquireCopyWindow() time.Duration {
	if !h.Ownership().InDoubt {
		return 0
	}
	return h.r.Core.LateCopies - h.heldFor()
}

// KeepForReplacement makes sure that no Release of o's holds, all of which are lost, sends
// anything. A release would free their replacement, which has the same id: see Abandon.
func (o *Ownership) KeepForReplacement() { o.addCount(+1) }

// ConfirmCount makes sure that the server counts o, and reports whether it does. A nested
// acquisition may have acquired the member with the same id before. The server then took the
// command that acquired o for a copy of one that had counted, and the nested hold's release would
// free the member.
//
// A late copy of the command would count again, under the nested hold's id. If one may come, the
// server therefore remembers the release of o. ConfirmCount blocks for limit at most. Only the
// caller knows o.
func (o *Ownership) ConfirmCount(ctx context.Context, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if !o.wire.LockContext(ctx) {
		return false
	}
	defer o.wire.Unlock()
	_, lost, err := o.r.Leases.SetCount(ctx, o, o.addCount(0), o.TTL)
	o.InDoubt = o.InDoubt || o.ChangeInDoubt() || failure.Of(err).InDoubt()
	return err == nil && !lost
}

// Member returns a request for a member of q's joint lock that has been acquired by the command for
// q. The owner is q's. One such request may serve all members.
func (q *Request) Member(terms *Terms, of Group) *Request {
	m := &Request{Owner: q.Owner, Terms: terms, Group: of}
	m.TTL = terms.WireTTL()
	return m
}

// ReleaseTogether releases holds of members with one id by one command, free. free returns for each
// hold whether the server still had it, and whether an earlier attempt of the call has an unknown
// outcome. done is false if a hold must be released by a command of its own, for example because
// another one is nested in it: then nothing has been done. Otherwise ReleaseTogether does for each
// hold what its Release would, but it hands no lock off. lost reports whether one of the holds was
// lost.
func ReleaseTogether(
	ctx context.Context, holds []*Hold, free func(ctx context.Context) (held []bool, inDoubt bool, err error),
) (done, lost bool, err error) {
	for i, h := range holds {
		if !h.Ownership().lockForRelease(h) {
			for _, locked := range holds[:i] {
				locked.Ownership().wire.Unlock()
			}
			return false, false, nil
		}
	}
	bounded, stop := holds[0].r.Core.releaseContext(ctx, true)
	defer stop()
	for _, h := range holds {
		// If h has just ended, another goroutine may be about to send its release, which then finds
		// the lock freed.
		if taken := h.takeAndForget(); taken == nil || errors.Is(taken, ErrLost) {
			h.Ownership().addCount(-1)
		}
	}
	sent := time.Now()
	var held []bool
	inDoubt := false
	abort := func() { settleReleases(ctx, holds, nil, Released{}, sent, errPanicked) }
	Guarded(abort, func() { held, inDoubt, err = free(bounded) })
	lost = settleReleases(ctx, holds, held, Released{InDoubt: inDoubt}, sent, err)
	return true, lost, err
}

// settleReleases does for each hold what follows the answer to its release, which was sent at sent:
// held says of each whether the server knew it, unless there was an error. It reports whether one
// of the holds was lost.
func settleReleases(
	ctx context.Context, holds []*Hold, held []bool, answer Released, sent time.Time, err error,
) (lost bool) {
	gone := make([]bool, len(holds))
	for i, h := range holds {
		o := h.Ownership()
		answer.Lost = err == nil && !held[i]
		gone[i] = o.recordAnswer(answer, sent, err) == wasNotOurs
		o.wire.Unlock()
	}
	for i, h := range holds {
		switch {
		case err != nil:
			h.Ownership().writeCountLater(ctx, 0)
		case gone[i]:
			_ = h.Ownership().lose(ctx, h)
		}
		h.end(ErrReleased) // unless it was lost
		lost = lost || h.lossCause() != nil
	}
	return lost
}

// lockForRelease takes the wire lock of o, and reports whether it has. It does not if the release
// of h needs more than a command that frees the lock, or is about to be sent by somebody else. It
// does not block.
func (o *Ownership) lockForRelease(h *Hold) bool {
	needsMore := o.Shared || o.InDoubt || o.minHoldLeft() > 0
	if needsMore || !h.IsLive() {
		return false
	}
	if !o.wire.TryLock() {
		return false
	}
	o.mu.Lock()
	isOnlyHold := o.holds == h && h.sibling == nil
	isAlone := isOnlyHold && o.count == 1
	o.mu.Unlock()
	isInDoubt := o.wire.freeInDoubt || o.wire.changeInDoubt
	isUntouched := o.wire.outcome == notFreed && !isInDoubt
	if isAlone && isUntouched {
		return true
	}
	o.wire.Unlock()
	return false
}
