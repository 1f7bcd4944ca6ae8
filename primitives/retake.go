package primitives

import (
	"context"
	"slices"
	"time"
)

// A red lock survives a rolling restart of servers without persistence: a member that has forgotten
// the lock is acquired again, in the background, while the majority stands.
//
// Why this is safe. Redis must confirm twice that a majority of the other members still holds the
// id: before a member is acquired again, and after. A member that has forgotten the id cannot come
// to hold it again except by this code. So the members of the second confirmation have held the
// lock without a break, and nobody else can have had a majority.
//
// What is acquired again has the id of the joint hold, and is never shared. Shared parts are not
// acquired again (WithOwner, and members that a nested acquisition took for itself): Redis counts
// them, and a repeated acquisition could count twice. A nested hold's part joins the enclosing red
// lock's new part of the same member.

// retake is the state of one joint hold's background task that acquires lost parts again.
// The bundle's mutex guards it.
type retake struct {
	running bool
	bell    bell               // rung when a part is lost
	over    chan struct{}      // closed when the joint hold has ended
	claims  map[*Hold]*reclaim // by lost part; only the running task uses them
}

// reclaim is the acquisition that is to replace one lost part.
type reclaim struct {
	q     *request  // the same in all tries, so that a late copy of one harms no other; nil: none yet
	after time.Time // do not try before: an earlier acquisition is still being given back, and would free the next one
}

// stop ends the task.
func (r *retake) stop() {
	if r.over != nil {
		close(r.over)
	}
}

// retakeLater starts the task, or wakes it up. Only a red lock has one.
func (b *bundle) retakeLater() {
	if b.budget == 0 {
		return
	}
	b.mu.Lock()
	if b.closed || b.g == nil {
		b.mu.Unlock()
		return
	}
	r := &b.again
	if r.over == nil {
		r.over, r.bell, r.claims = make(chan struct{}), newBell(), map[*Hold]*reclaim{}
	}
	start := !r.running
	r.running = true
	b.mu.Unlock()
	r.bell.ring()
	if start {
		b.h.c.spawn(b.retakeAll)
	}
}

// retakeAll tries to acquire each lost part again: at once, and then once in a third of its TTL. It
// ends with the joint hold, or when no part is missing.
func (b *bundle) retakeAll() {
	for {
		missing := b.missing(false)
		if len(missing) == 0 {
			b.withdraw()
			if missing = b.missing(true); len(missing) == 0 {
				return
			}
		}
		pause := maxDuration
		for _, part := range missing {
			b.retake(part)
			pause = min(pause, part.g.ttl/3)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-b.again.bell:
		case <-b.again.over:
		case <-b.h.c.stopping:
		}
		timer.Stop()
	}
}

// missing returns the parts to acquire again. If there are none and the task says so, it is over.
func (b *bundle) missing(over bool) (parts []*Hold) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.h.c.stopping:
	default:
		for _, part := range b.parts {
			if !b.closed && part.g.renew && part.g.lostUnreleased() && !part.g.t.(*tenure).shared {
				parts = append(parts, part)
			}
		}
	}
	b.again.running = len(parts) > 0 || !over
	return parts
}

// lostUnreleased tells whether g was lost, and nobody has called Release since.
func (g *grip) lostUnreleased() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.cause == ErrLost && !g.taken //nolint:errorlint // causes are not wrapped
}

// retake tries once to acquire a lost part again.
func (b *bundle) retake(part *Hold) {
	m := part.g.h
	if m.c.isClosing() {
		return
	}
	claim := b.again.claims[part]
	if claim != nil && time.Now().Before(claim.after) {
		return
	}
	ctx := context.WithoutCancel(b.g.ctx)
	if m.c.begin(ctx) != nil {
		return
	}
	defer m.c.calls.Done()
	if !b.confirmed(ctx) {
		return
	}
	fresh := b.reacquire(ctx, part)
	if fresh == nil {
		return
	}
	if b.confirmed(ctx) && b.replace(part, fresh) {
		delete(b.again.claims, part)
		return
	}
	claim = b.again.claims[part]
	claim.q = nil // this one is given back, which Redis remembers
	if fresh.Release(ctx) != nil {
		// It goes on in the background. A copy of it may be executed for as long as requests are remembered.
		claim.after = fresh.g.t.(*tenure).ends().Add(m.c.run.Memory())
	}
}

// confirmed tells whether Redis says that enough members still hold the id.
func (b *bundle) confirmed(ctx context.Context) bool {
	parts := slices.DeleteFunc(b.held(), func(part *Hold) bool { return !part.g.live() })
	if len(parts) < b.need {
		return false
	}
	t := b.h.c.canvass(ctx, len(parts), b.budget, func(i int) error { return parts[i].Check(ctx) })
	return t.good >= b.need
}

// reacquire makes one try. A try of unknown outcome is repeated by the next one, or undone by withdraw.
func (b *bundle) reacquire(ctx context.Context, part *Hold) *Hold {
	ctx, cancel := context.WithTimeout(ctx, b.budget)
	defer cancel()
	m := part.g.h
	s, ok := b.settingsOf(part)
	if !ok {
		return nil
	}
	claim := b.again.claims[part]
	if claim == nil {
		claim = &reclaim{}
		b.again.claims[part] = claim
		keepFromFreeing(part.g.t.(*tenure))
	}
	if b.carried {
		// The enclosing hold's part, if it stands again.
		hold, err := m.acquireNested(ctx, s, &wait{quiet: true})
		if err != nil {
			return nil
		}
		return hold
	}
	if claim.q == nil {
		claim.q = m.request(s)
		claim.q.named(b.id, false)
	}
	v, err := m.try(ctx, claim.q)
	if err != nil || !v.granted {
		return nil
	}
	hold, err := m.newHold(b.g.ctx, m.newTenure(claim.q, v, 1), s, v.sent, nil)
	if err != nil {
		claim.q.open = true
		return nil
	}
	return hold
}

// settingsOf are those by which part was acquired. With a maximum hold time, what is left of that.
func (b *bundle) settingsOf(part *Hold) (*settings, bool) {
	s := part.g.h.settings.overlaid(b.settled)
	s.of = b
	if s.maxHold > 0 {
		s.maxHold = time.Until(part.g.until()).Truncate(time.Millisecond)
	}
	return &s, s.maxHold == 0 || s.maxHold >= minDuration
}

// keepFromFreeing sees that a Release of t's lost hold does not free what replaces it: both have one id.
func keepFromFreeing(t *tenure) { t.count(+1) }

// replace puts fresh in the place of a lost part, unless the joint hold has ended, or its other parts
// do not suffice at this moment.
func (b *bundle) replace(part, fresh *Hold) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now, valid := time.Now(), 0
	for _, other := range b.parts {
		if other.g.live() && other.ValidUntil().After(now) {
			valid++
		}
	}
	at := slices.Index(b.parts, part)
	if b.closed || at < 0 || valid < b.need || !fresh.g.live() {
		return false
	}
	fresh.g.mu.Lock()
	fresh.g.ctx = b.g.ctx // what bounded the try does not bound the hold
	fresh.g.mu.Unlock()
	b.parts[at] = fresh
	return true
}

// withdraw undoes what tries may have had, or may yet have, for parts that are not to be acquired any more.
func (b *bundle) withdraw() {
	for part, claim := range b.again.claims {
		delete(b.again.claims, part)
		m, t := part.g.h, part.g.t.(*tenure)
		if m.c.enter() != nil {
			continue
		}
		if q := claim.q; q != nil && (q.open || time.Now().Before(t.ends())) {
			q.open = true
			m.rollback(context.WithoutCancel(b.g.ctx), q, rollbackTimeout)
		}
		m.c.calls.Done()
	}
}
