package joint

import (
	"context"
	"slices"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
)

// A redlock survives a rolling restart of servers without persistence. A member that has forgotten
// the lock is acquired again, in the background, as long as a majority is left.
//
// The steps for one lost member:
//
//  1. A majority of the other members confirms that it holds the id.
//  2. The member is acquired again, with the same id, and counted.
//  3. A majority of the other members confirms again. If it does not, the member is released.
//
// Why this is safe: a member that has forgotten the id cannot hold it again except by this code. So
// the members that confirm it the second time have held the lock without a break, and no other
// client can have had a majority. Several members may be retaken at the same time: each counts only
// once it has replaced the lost one.
//
// A retaken member has the id of the joint hold, which is private. Members with a shared id are not
// retaken. Such ids come from WithOwner, and from nested acquisitions that acquired a member
// themselves. The server counts their holds, and a repeated acquisition could count twice. A member
// of a nested joint hold nests under the enclosing redlock's new hold of that member.
//
// A late copy of the command that acquired the lost member may acquire it again. Only the Release
// of the lost hold prevents that, and a retake forgoes it. So a retake waits until no copy can
// come.

// A member that the joint hold has never had is acquired in the same way: a rival may have held it
// when the majority was acquired, or its server may have been down. The first request for it must
// be undone before. Otherwise a late copy of that request's rollback would free the member, because
// all requests for it have one id.

// retake is the goroutine that acquires one member while the joint hold lasts: a member that was
// lost, or one that the joint hold has never had. The goroutine ends with the joint hold at the
// latest.
type retake struct {
	o     *Holding
	m     *engine.Resource
	lost  *engine.Hold    // nil if the joint hold has never had this member
	first *engine.Request // the first request for such a member; nil if there is none, or if it is undone
	q     *engine.Request // shared by all attempts, so that a late copy of one harms no other; nil if none was made
	wait  time.Duration   // the pause until the next attempt
}

// shortestRetake is the first pause between two attempts. The pause doubles, up to five budgets. A
// rival's attempt, which cannot have a majority, may hold the member for a moment.
const shortestRetake = 100 * time.Millisecond

// retakeLater starts the goroutine that replaces a lost hold, unless the hold is to stay lost. It
// does not block.
func (o *Holding) retakeLater(lost *engine.Hold) {
	if lost.Renewed() && !lost.Ownership().Shared {
		o.core().Spawn((&retake{o: o, m: lost.Resource(), lost: lost, wait: lost.AcquireCopyWindow()}).run)
	}
}

// takeLater starts the goroutine that acquires the i-th member, which has refused or failed, if the
// member is to be renewed. Without a joint hold it only notes the member, for Join. It does not
// block.
func (o *Holding) takeLater(i int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	mayTake := !o.closed && o.asked.mayTake && o.terms.ForMember(i).Renew
	switch {
	case !mayTake: // the joint hold does without this member
	case o.h == nil:
		o.asked.missing = append(o.asked.missing, i)
	default:
		t := &retake{o: o, m: o.lock.Members[i], first: o.asked.requests[i], wait: shortestRetake}
		o.core().Spawn(t.run)
	}
}

func (t *retake) run() {
	t.o.mu.Lock()
	over := t.o.untilOver()
	t.o.mu.Unlock()
	ctx := t.o.h.WithoutCancel()
	defer t.withdraw(ctx)
	for pause := shortestRetake; ; pause = min(2*pause, 5*t.o.budget) {
		select {
		case <-time.After(t.wait):
		case <-over.Done():
			return
		}
		if !t.isMissing() {
			return
		}
		t.wait = pause
		if t.checkUndone() && t.try(ctx) {
			return
		}
	}
}

// isMissing reports whether the member is still to be acquired.
func (t *retake) isMissing() bool {
	if t.lost == nil {
		return t.o.Member(t.m) == nil
	}
	return t.lost.IsLostUnreleased()
}

// checkUndone reports whether the first request for the member is completely undone. If a copy of
// its rollback may come later, the next attempt waits for that.
func (t *retake) checkUndone() bool {
	if t.first == nil {
		return true
	}
	switch t.first.RollbackState() {
	case engine.NoRollback:
		if t.first.MayHaveTraces() {
			return false
		}
	case engine.RollbackPending:
		return false
	case engine.RolledBackLate:
		t.wait = t.m.RollbackCopyWindow(t.first)
		t.first = nil
		return false
	case engine.RolledBack: // nothing is left
	}
	t.first = nil
	return true
}

// try makes one attempt, by the three steps above, and reports whether it has replaced the lost
// hold. It blocks for each step, for the budget at most. A silent server makes it give up until the
// next attempt.
func (t *retake) try(ctx context.Context) (done bool) {
	m := t.m
	if m.Core.IsClosing() || m.Core.EnterReady(ctx) != nil {
		return false
	}
	defer m.Core.Leave()
	if !t.o.isConfirmed(ctx) {
		return false
	}
	fresh := t.acquire(ctx, m)
	if fresh == nil {
		return false
	}
	// The next attempt needs a new request: the server remembers that this one was released, and
	// grants none of its copies.
	t.q = nil
	isHeld := fresh.Ownership().ConfirmCount(ctx, t.o.budget) && t.o.isConfirmed(ctx)
	if isHeld && t.o.replace(t.lost, fresh) {
		return true
	}
	if fresh.Release(ctx) != nil {
		// The release is repeated in the background, and a late copy of it would free the next
		// hold, which has the same id. So wait until no copy can have an effect.
		t.wait = time.Until(fresh.Ownership().EndsAt()) + m.Core.LateCopies
	}
	return false
}

// isConfirmed asks the servers of all live members, and reports whether enough confirm that they
// still hold the id. A server that does not answer within the budget does not count.
func (o *Holding) isConfirmed(ctx context.Context) bool {
	holds := slices.DeleteFunc(o.memberHolds(), func(member *engine.Hold) bool { return !member.IsLive() })
	fan := newFanOut(o.core(), len(holds), func(i int) error { return holds[i].Check(ctx) })
	return fan.count(ctx, o.budget).yes >= o.lock.Need
}

// acquire tries to acquire m, the member of the lost hold. It returns nil if that fails. An attempt
// of unknown outcome is granted again by the next one, or rolled back by withdraw.
func (t *retake) acquire(ctx context.Context, m *engine.Resource) *engine.Hold {
	budgetCtx, cancel := context.WithTimeout(ctx, t.o.budget)
	defer cancel()
	if t.o.carried {
		// This is a nested joint hold. Its member nests under the enclosing joint hold's new hold
		// of the same member, if there is one.
		hold, _ := m.AcquireNested(budgetCtx, t.newRequest(m)) // nil if it fails
		return hold
	}
	if t.q == nil {
		t.q = t.newRequest(m)
		t.q.SetID(t.o.ID, false)
		// The Release of the lost hold must not free its replacement: both have one id. With this
		// count, Abandon never lowers the count of the lost ownership to 0, and sends nothing.
		if t.lost != nil {
			t.lost.Ownership().KeepForReplacement()
		}
	}
	res, err := m.Try(budgetCtx, t.q)
	if err != nil || !res.Granted {
		return nil
	}
	hold, err := m.NewHold(ctx, t.q, res)
	if err != nil {
		t.q.MustRollback = true
	}
	return hold
}

// newRequest returns a request for m with the lost hold's terms, and the rest of its maximum hold
// time.
func (t *retake) newRequest(m *engine.Resource) *engine.Request {
	terms := *t.o.terms.ForMember(slices.Index(t.o.lock.Members, m))
	if terms.MaxHold > 0 {
		limit := t.o.memberHolds()[0].Limit() // of all
		if t.lost != nil {
			limit = t.lost.Limit()
		}
		terms.MaxHold = max(time.Until(limit).Truncate(time.Millisecond), time.Millisecond)
	}
	q := m.NewRequest(&terms)
	q.Group = t.o
	return q
}

// replace puts fresh in the place of a lost hold, or adds it if lost is nil. It returns false if
// the joint hold has ended, if fewer members than needed are valid at this moment by this process's
// clock, or if fresh has ended. The caller then releases fresh.
func (o *Holding) replace(lost, fresh *engine.Hold) bool {
	isReplaced, listens := o.tryReplace(lost, fresh)
	if isReplaced && listens {
		fresh.Wanted() // without mu
	}
	return isReplaced
}

// tryReplace is replace, but reports whether fresh must listen for waiters, as the others do.
func (o *Holding) tryReplace(lost, fresh *engine.Hold) (isReplaced, listens bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	at := len(o.holds)
	if lost != nil {
		at = slices.Index(o.holds, lost)
	}
	hasEnded := o.closed || !o.enoughAre(isValid)
	if hasEnded || at < 0 {
		return false, false
	}
	if !fresh.IsLive() {
		return false, false
	}
	fresh.JoinAs(o.h, o.since)
	if lost != nil {
		o.holds[at] = fresh
	} else {
		o.holds = append(o.holds, fresh)
	}
	return true, o.listens
}

// withdraw rolls back the request of attempts that did not succeed. An attempt without a reply may
// have acquired the member, or may still do so.
func (t *retake) withdraw(ctx context.Context) {
	if t.q == nil || t.m.Core.Enter() != nil {
		return
	}
	defer t.m.Core.Leave()
	mayHaveLease := t.lost != nil && time.Now().Before(t.lost.Ownership().EndsAt())
	if t.q.MustRollback || mayHaveLease {
		t.m.Rollback(ctx, t.q)
	}
}
