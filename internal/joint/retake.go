package joint

import (
	"context"
	"slices"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
)

// A red lock survives a rolling restart of servers without persistence. A member that has forgotten the
// lock is acquired again, in the background, as long as a majority is left.
//
// The steps for one lost member:
//
//  1. A majority of the other members confirms that it holds the id.
//  2. The member is acquired again, with the same id, and counted.
//  3. A majority of the other members confirms again. If it does not, the member is released.
//
// Why this is safe: a member that has forgotten the id cannot hold it again except by this code. So the
// members of the second confirmation have held the lock without a break, and no other client can have had
// a majority.
//
// A retaken member has the id of the joint hold, which is private. Members with a shared id are not
// retaken. Such ids come from WithOwner, and from nested acquisitions that acquired a member themselves. The
// server counts for them, and a repeated acquisition could count twice. The member of a nested joint hold nests
// under the enclosing red lock's new hold of it.
//
// A late copy of the command that acquired the lost member may acquire it again. Only the Release of the lost hold
// prevents that, and a retake forgoes it. So a retake waits until no copy can come.

// retakes is the state of the goroutine that retakes members of one joint hold. It starts with the first loss, and
// ends with the joint hold. Ownership.mu guards over; the other fields do not change once it is set.
type retakes struct {
	over    chan struct{}            // closed when the joint hold ends; nil: no member was ever lost
	wakeup  engine.Signal            // sent when a member is lost
	pending map[*engine.Hold]*retake // by lost hold; only the goroutine uses it
}

// retake replaces one lost hold of a member.
type retake struct {
	q     *engine.Request // the same for all attempts, so that a late copy of one harms no other; nil: none yet
	after time.Time       // do not try before: the release of an earlier hold would free the next one
}

// retakeLater starts the goroutine, or wakes it up. MemberEnded and join call it, for a red lock that has enough
// members left. It does not block.
func (o *Ownership) retakeLater() {
	o.mu.Lock()
	if o.closed {
		o.mu.Unlock()
		return
	}
	t := &o.retakes
	start := t.over == nil
	if start {
		*t = retakes{make(chan struct{}), engine.NewSignal(), map[*engine.Hold]*retake{}}
	}
	o.mu.Unlock()
	t.wakeup.Send()
	if start {
		o.core().Spawn(o.retakeAll)
	}
}

// retakeAll is the goroutine. It tries to acquire each lost member again: at once, a few times soon after
// that, and then once in a third of its TTL. It ends with the joint hold, or on stopping.
func (o *Ownership) retakeAll() {
	defer o.withdrawRetakes()
	for next := shortestRetake; ; next *= 2 {
		missing := o.missing()
		if len(missing) == 0 {
			o.withdrawRetakes() // a lost member was released
		}
		pause := longestRetake
		for _, lost := range missing {
			o.retakeMember(lost)
			pause = min(pause, lost.TTL()/3)
		}
		next = min(next, pause)
		select {
		case <-time.After(next):
		case <-o.retakes.wakeup:
			next = shortestRetake
		case <-o.retakes.over:
			return
		case <-o.core().Stopping():
			return
		}
	}
}

const (
	// shortestRetake is the first pause between two attempts; it doubles. The attempt of a rival, which
	// cannot have a majority, may hold the member for a moment.
	shortestRetake = 100 * time.Millisecond
	// longestRetake is the longest pause.
	longestRetake = 24 * time.Hour
)

// missing returns the lost holds to replace: none once the joint hold has ended.
func (o *Ownership) missing() (lost []*engine.Hold) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil
	}
	for _, hold := range o.holds {
		if hold.Renewed() && hold.IsLostUnreleased() && !hold.Ownership().Shared {
			lost = append(lost, hold)
		}
	}
	return lost
}

// retakeMember tries once to replace a lost hold, by the three steps above. It blocks for each of them,
// for the budget at most. A silent server makes it give up until the next round.
func (o *Ownership) retakeMember(lost *engine.Hold) {
	m := lost.Resource()
	if m.Core.IsClosing() || lost.MayComeAgain() {
		return
	}
	t := o.retakes.pending[lost]
	if t != nil && time.Now().Before(t.after) {
		return
	}
	ctx := o.h.Detached()
	if m.Core.Begin(ctx) != nil {
		return
	}
	defer m.Core.Leave()
	if !o.isConfirmed(ctx) {
		return
	}
	if t == nil {
		t = &retake{}
		o.retakes.pending[lost] = t
		// The Release of the lost hold must not free its replacement: both have one id. With this
		// count, abandon never lowers the count of the lost ownership to 0, and sends nothing.
		lost.Ownership().KeepForReplacement()
	}
	fresh := o.acquireAgain(ctx, lost, t)
	if fresh == nil {
		return
	}
	if fresh.Ownership().ConfirmCount(ctx, o.budget) && o.isConfirmed(ctx) && o.replace(lost, fresh) {
		delete(o.retakes.pending, lost)
		return
	}
	// The next attempt needs a new request: the server remembers that this one was released, and grants
	// none of its copies.
	t.q = nil
	if fresh.Release(ctx) != nil {
		// The release is repeated in the background, and a late copy of it would free the next hold,
		// which has the same id. So wait until no copy can have an effect.
		t.after = fresh.Ownership().EndsAt().Add(m.Core.LateCopies)
	}
}

// isConfirmed asks the servers of all live members, and reports whether enough confirm that they still
// hold the id. A server that does not answer within the budget does not count.
func (o *Ownership) isConfirmed(ctx context.Context) bool {
	holds := slices.DeleteFunc(o.memberHolds(), func(member *engine.Hold) bool { return !member.IsLive() })
	fan := newFanOut(o.core(), len(holds), func(i int) error { return holds[i].Check(ctx) })
	return fan.count(ctx, o.budget).yes >= o.lock.Need
}

// acquireAgain makes one attempt to acquire the member of a lost hold. It returns nil if that fails. All
// attempts of t use one request, so an attempt of unknown outcome is granted again by the next one, or rolled
// back by withdrawRetakes.
func (o *Ownership) acquireAgain(ctx context.Context, lost *engine.Hold, t *retake) *engine.Hold {
	trying, cancel := context.WithTimeout(ctx, o.budget)
	defer cancel()
	m := lost.Resource()
	terms := o.termsFor(lost)
	if o.carried {
		// A nested joint hold: nest under the enclosing joint hold's new hold of this member, if there
		// is one.
		q := m.NewRequest(terms)
		q.Group = o
		hold, _ := m.AcquireNested(trying, q) // nil if it fails
		return hold
	}
	if t.q == nil {
		t.q = m.NewRequest(terms)
		t.q.Name(o.ID, false)
		t.q.Group = o
	}
	res, err := m.Try(trying, t.q)
	if err != nil || !res.Granted {
		return nil
	}
	hold, err := m.NewHold(ctx, t.q, res)
	if err != nil {
		t.q.MustRollback = true
	}
	return hold
}

// termsFor returns the terms of lost, with the rest of its maximum hold time.
func (o *Ownership) termsFor(lost *engine.Hold) *engine.Terms {
	terms := *o.terms.ForMember(slices.Index(o.lock.Members, lost.Resource()))
	if terms.MaxHold > 0 {
		terms.MaxHold = max(time.Until(lost.Limit()).Truncate(time.Millisecond), time.Millisecond)
	}
	return &terms
}

// replace puts fresh in the place of a lost hold. It reports false if the joint hold has ended, or if
// fewer members than needed are valid at this moment, by our own clock. The caller then releases fresh.
func (o *Ownership) replace(lost, fresh *engine.Hold) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	at := slices.Index(o.holds, lost)
	if o.closed || at < 0 || o.valid() < o.lock.Need || !fresh.IsLive() {
		return false
	}
	fresh.JoinAs(o.h, lost)
	o.holds[at] = fresh
	return true
}

// withdrawRetakes ends the retakes that have not succeeded: the joint hold has ended, or the lost member
// was released. It rolls back their requests, because an attempt without a reply may have acquired the
// member, or may still do so. The goroutine of the retakes calls it.
func (o *Ownership) withdrawRetakes() {
	for lost, t := range o.retakes.pending {
		delete(o.retakes.pending, lost)
		m := lost.Resource()
		if m.Core.Enter() != nil {
			continue
		}
		if q := t.q; q != nil && (q.MustRollback || time.Now().Before(lost.Ownership().EndsAt())) {
			m.Rollback(o.h.Detached(), q)
		}
		m.Core.Leave()
	}
}
