package engine

import (
	"context"
	"maps"
	"strings"
	"time"
)

// How a lock lingers.
//
// With Terms.Linger the last release of a lock for which nobody is known to wait sends nothing. A keeper, a
// hold without a user, takes the place of the released hold, as the next member of a cohort would. So the
// watchdog goes on renewing the lease, a loss ends the keeper, and Close waits for it. The next acquisition of
// the same kind takes the place of the keeper, and sends nothing either.
//
//	Acquire by a -> command            the server: id 7 holds
//	Release by a -> the keeper         the server: id 7 holds
//	Acquire by b -> b for the keeper   the server: id 7 holds
//	Release by b -> the keeper         the server: id 7 holds
//	(time passes)-> command            the server: free
//
// The keeper gives the lock up, by the ordinary release, when its time is over, when a local request waits or
// asks for other terms, when another client asks for it, and when the client closes. Whoever removes it from
// waitQueues.lingering decides what becomes of it.
//
// Another client is refused by an id that says that it lingers (lingerID), and asks the client of that id. Such
// a request also comes while the lock is used. Then its next release frees it.

// keeper is a hold that keeps a lock while nobody uses it.
type keeper struct {
	hold  *Hold
	timer *time.Timer // gives the lock up
}

// mayPass reports whether the hold of q may be passed on without a command. Only renewed holds without a limit
// are. The others rely on a lease of their own on the server, which passing on does not set. A member of a joint
// lock must have the id of its joint lock.
func (q *Request) mayPass() bool {
	t := q.Terms
	return t.Renew && t.MaxHold == 0 && t.MinHold == 0 && !q.Shared && q.Group == nil
}

// lingerID returns the id of a request whose hold may linger: its number begins with a 0. So a client that is
// refused knows that it should ask.
func lingerID(id string) string {
	at := strings.LastIndexByte(id, ':') + 1
	return id[:at] + "0" + id[at:]
}

// mayLinger reports whether a holder has an id of lingerID.
func mayLinger(id string) bool {
	at := strings.LastIndexByte(id, ':') + 1
	return at > 0 && at < len(id) && id[at] == '0'
}

// askFor asks the holder that has refused q to give a lingering lock up. Waiters of the same kind on this client
// need not ask: see isWanted. isMember: q is for a joint lock, and r is the member that refused it.
func (r *Resource) askFor(q *Request, holder string, isMember bool) {
	switch at := strings.LastIndexByte(holder, ':') + 1; {
	case !q.LeavesTraces() || !mayLinger(holder):
	case q.Shared || !strings.HasPrefix(q.ID, holder[:at]):
		r.Core.Ask(r, holder)
	default:
		r.Core.askedHere(r.Name, holder, func(h *Hold) bool { return isMember || h.r.Kind != r.Kind })
	}
}

// giveUpHolder frees the lock if the holder that has refused q lingers on this client as another kind, such as a writer
// that has refused a reader. It is askFor for a request that does not wait: it blocks for the server's answer. It
// reports whether the holder lingered here.
func (r *Resource) giveUpHolder(ctx context.Context, q *Request, holder string) bool {
	if q.UnderSameID || !mayLinger(holder) {
		return false
	}
	return r.Core.queues.giveUp(ctx, r.Core.RollbackLimit(time.Now()), func(kept *Hold) bool {
		return kept.r.Name == r.Name && kept.ID() == holder
	})
}

// isWanted reports whether a local request waits for what r locks. mu is held.
func (qs *waitQueues) isWanted(r *Resource) bool {
	for _, kind := range [...]string{r.Kind, r.Traits.SharesWith} {
		key := queueKey{kind, r.Name}
		if qs.open[key] != nil || qs.polling[key] > 0 {
			return true
		}
	}
	return false
}

// linger puts a keeper in the place of h, whose release has begun, and reports whether it did. If not, the caller
// releases h by a command, as it does for a hold without a user: see giveBack.
//
// There may be a keeper already, of another acquisition. One of the two has lost the lock, and nobody knows which:
//
//	Acquire by a -> command            the server: id 7 holds
//	                                   an operator deletes the key
//	Acquire by b -> command            the server: id 8 holds
//	Release by b -> the keeper of 8
//	Release by a -> the keeper of 7
//
// Then the client gives both up.
func (o *Ownership) linger(ctx context.Context, h *Hold) bool {
	if h.depth > 1 || h.state().unaccepted || !o.r.Core.CanLinger(ctx) || !o.wire.TryLock() {
		return false
	}
	qs, key, now := &o.r.Core.queues, queueKey{o.r.Kind, o.r.Name}, time.Now()
	qs.mu.Lock()
	defer qs.mu.Unlock()
	defer o.wire.Unlock() // before mu: the next acquisition may come at once
	other := qs.keeperOf(key)
	other.giveBack(context.Background(), 0)
	// A cohort whose time is over leaves the lock to others. Redisson's waiters cannot ask for it.
	o.wanted = o.wanted || qs.takeWantedNext(o.r.Name)
	if other != nil || o.wanted || qs.isWanted(o.r) || o.passes.Cohort > 0 && o.streakIsOver(now) {
		return false
	}
	kept := o.succeed(context.Background(), h, now, false)
	if kept == nil {
		return false
	}
	qs.lingering[key] = keeper{kept, time.AfterFunc(o.passes.Linger, func() {
		qs.mu.Lock()
		defer qs.mu.Unlock()
		if qs.lingering[key].hold == kept { // else it was removed a moment ago
			qs.keeperOf(key).giveBack(context.Background(), 0)
		}
	})}
	return true
}

// giveUp gives up the lingering locks whose keepers match, and reports whether there was one. It takes waitQueues.mu,
// and waits for each as giveBack does: with a limit of 0 it does not block.
func (qs *waitQueues) giveUp(ctx context.Context, limit time.Duration, match func(*Hold) bool) bool {
	qs.mu.Lock()
	var kept []*Hold
	for key, k := range qs.lingering {
		if match(k.hold) {
			kept = append(kept, qs.keeperOf(key))
		}
	}
	qs.mu.Unlock()
	for _, h := range kept {
		h.giveBack(ctx, limit)
	}
	return len(kept) > 0
}

// keeperOf removes the keeper of a resource, and returns its hold; nil if there is none. mu is held.
func (qs *waitQueues) keeperOf(key queueKey) *Hold {
	k := qs.lingering[key]
	if k.hold != nil {
		delete(qs.lingering, key)
		k.timer.Stop()
	}
	return k.hold
}

// resume gives q the lingering lock, if there is one, and reports whether it did. If q is to be kept in another
// way, it waits until the lock is given up, or until ctx ends.
func (r *Resource) resume(ctx context.Context, q *Request) bool {
	qs := &r.Core.queues
	qs.mu.Lock()
	kept := qs.keeperOf(queueKey{r.Kind, r.Name})
	if kept == nil {
		qs.mu.Unlock()
		return false
	}
	o := kept.Ownership()
	if o.isFor(q, kept) && o.wire.TryLock() {
		q.passed = o.succeed(q.Terms.holdContext(q.Wait.caller), kept, time.Now(), true)
		if q.passed != nil && o.passes.Cohort == 0 { // a cohort goes on
			o.streak = streak{since: q.passed.since} // nobody has waited meanwhile
		}
		o.wire.Unlock()
	}
	qs.mu.Unlock()
	if q.passed == nil {
		kept.giveBack(ctx, r.Core.RollbackLimit(time.Now()))
		return false
	}
	kept.end(ErrReleased)
	if !q.passed.accept() {
		q.passed.giveBack(ctx, r.Core.RollbackLimit(time.Now()))
		q.passed = nil
	}
	return q.passed != nil
}

// GiveUpLingering gives resources up that linger, before a command that acquires them together. It waits for the
// answers.
func (c *Core) GiveUpLingering(ctx context.Context, resources []*Resource) {
	for _, r := range resources { // not by giveUp: many locks may linger, and few of them are meant
		c.queues.mu.Lock()
		kept := c.queues.keeperOf(queueKey{r.Kind, r.Name})
		c.queues.mu.Unlock()
		kept.giveBack(ctx, c.RollbackLimit(time.Now()))
	}
}

// Asked notes that another client has asked for what the holder with that id has, or is about to get. A lock that
// lingers is given up. One that is in use, and could linger, is freed by its next release. It does not block.
func (c *Core) Asked(name, id string) {
	qs := &c.queues
	qs.mu.Lock()
	q := qs.pending[id]
	if q != nil {
		q.wanted = true
	}
	qs.mu.Unlock()
	isHeard := c.asked(c.holds.named(name, func(h *Hold) bool { return hasID(h, id) })) || q != nil
	isOwn, _ := c.IsOwn(id)
	if isHeard || !isOwn {
		return
	}
	// The holder has released the lock, or is doing so, and may have handed it off here. The client that asks hears
	// nothing of that. So the ask is for the present holder, or for the next one.
	isHeard = c.asked(c.holds.named(name, (*Hold).mayLinger))
	if !isHeard {
		qs.mu.Lock()
		defer qs.mu.Unlock()
		qs.wantNext(name)
	}
}

// mayLinger reports whether the lock may linger after the release of h, which has not begun.
func (h *Hold) mayLinger() bool {
	o := h.Ownership()
	passesOn := o != nil && o.passes.Linger > 0
	return passesOn && h.IsLive()
}

// askedHere is Asked by a request of this client of another kind than the holder, or for a joint lock.
func (c *Core) askedHere(name, id string, match func(*Hold) bool) {
	c.asked(c.holds.named(name, func(h *Hold) bool { return h.ID() == id && match(h) }))
}

// asked notes that somebody has asked for these holds. It reports whether one of them will be freed because of that, or
// is being freed already.
func (c *Core) asked(holds []*Hold) (isHeard bool) {
	qs := &c.queues
	for _, h := range holds {
		key := queueKey{h.r.Kind, h.r.Name}
		qs.mu.Lock()
		state := h.state() // with mu held: a release that begins from now on sees that it was asked for
		isInUse := !state.taken && state.cause == nil
		wasWanted := false
		if o := h.Ownership(); o != nil {
			wasWanted, o.wanted = o.wanted, true
		}
		// The release of a hold without a user hands the lock off to nobody.
		isHeard = isHeard || isInUse || wasWanted || state.unaccepted
		var kept *Hold
		if qs.lingering[key].hold == h {
			kept = qs.keeperOf(key)
		}
		qs.mu.Unlock()
		kept.giveBack(context.Background(), 0)
		h.Want()
	}
	return isHeard
}

// wantNext notes that somebody has asked for the next hold of a name. mu is held.
func (qs *waitQueues) wantNext(name string) {
	now := time.Now()
	if len(qs.wantedNext) >= maxKept {
		maps.DeleteFunc(qs.wantedNext, func(_ string, until time.Time) bool { return !now.Before(until) })
	}
	qs.wantedNext[name] = now.Add(askAfter)
}

// takeWantedNext reports whether somebody has asked for the next hold of that name, and forgets that. mu is held.
func (qs *waitQueues) takeWantedNext(name string) bool {
	until, isWanted := qs.wantedNext[name]
	if !isWanted {
		return false
	}
	delete(qs.wantedNext, name)
	return time.Now().Before(until)
}

// hasID reports whether id is that of a hold, or one of the ids of its permits.
func hasID(h *Hold, id string) bool {
	own := h.ID()
	if own == id {
		return true
	}
	isOneOfMany := h.r.Traits.NameOwner != nil && strings.Contains(own, id) // ids of permits have one length
	return isOneOfMany && id != ""
}

// expectAsks makes Asked find q from now on, if its hold may linger. The caller calls stop when the hold is known, with
// nil if there is none.
func (qs *waitQueues) expectAsks(r *Resource, q *Request) (stop func(h *Hold)) {
	mayLinger := q.Terms.Linger > 0 && !q.Shared
	if !mayLinger {
		return func(*Hold) {}
	}
	qs.mu.Lock()
	defer qs.mu.Unlock()
	qs.pending[q.ID] = q
	return func(h *Hold) {
		qs.mu.Lock()
		defer qs.mu.Unlock()
		delete(qs.pending, q.ID)
		if h == nil {
			return
		}
		isWanted := qs.takeWantedNext(r.Name) || q.wanted
		if o := h.Ownership(); o != nil && isWanted {
			o.wanted = true
		}
	}
}

// EndLingering gives all lingering locks up, in the background: the client closes, or may have missed that another
// client has asked.
func (c *Core) EndLingering() {
	c.queues.giveUp(context.Background(), 0, func(*Hold) bool { return true })
}
