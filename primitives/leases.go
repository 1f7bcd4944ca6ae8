package primitives

import (
	"context"
	"time"
)

// leaseState is what a tenure notes of the leases that its holds were promised.
type leaseState struct {
	change    uint32 // number of the latest change of the count; guarded by the tenure's wire
	lapsed    int16  // holds that ended by their limit and were not released yet; guarded by the tenure's mu
	shortened bool   // a release that shortens the lease was sent and not answered yet; guarded by the tenure's mu
}

// left notes that g is not in the list of holds any more. If nobody releases or detaches it, its limit has come.
func (s *leaseState) left(g *grip) {
	if !g.released() {
		s.lapsed++
	}
}

// abandoned notes that a hold was released after its limit.
func (t *tenure) abandoned() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.promises.lapsed = max(t.promises.lapsed-1, 0)
}

// remaining returns how long, from now, Redis must keep t so that each of the left holds has the lease that it was promised: 0 if
// all of them have lapsed. ok is false if that is not known: some hold has not joined yet, or was detached and is to last.
//
// The caller holds t.wire, so that no hold is added meanwhile.
func (t *tenure) remaining(left int) (need time.Duration, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	need, n := t.promised()
	if n > 0 {
		need = max(need, time.Millisecond)
	}
	return need, n+int(t.promises.lapsed) == left && !t.lost
}

// promised returns the longest lease, from now, that a hold in the list was promised, and the length of the list. t.mu is held.
func (t *tenure) promised() (need time.Duration, n int) {
	now := t.h.c.instant(time.Now())
	for g := t.grips; g != nil; g = g.also {
		n++
		if !g.renew {
			need = max(need, time.Duration(max(g.since+instant(g.ttl), g.extension())-now))
		}
	}
	return max(need, t.renewedFor(now)), n
}

// renewedFor returns the longest lease, from now, that a renewed hold was promised; 0 if none is renewed. A renewal may be
// under way, so it is never less than what the next one asks for. t.mu is held.
func (t *tenure) renewedFor(now instant) time.Duration {
	var ttl time.Duration
	unlimited, last, extended := false, instant(0), instant(0)
	for g := t.grips; g != nil; g = g.also {
		if !g.renew {
			continue
		}
		ttl = max(ttl, g.ttl)
		extended = max(extended, g.extension())
		g.mu.Lock()
		limit := g.limit
		g.mu.Unlock()
		unlimited = unlimited || limit == 0
		last = max(last, limit)
	}
	if ttl == 0 {
		return 0
	}
	if !unlimited {
		ttl = min(ttl, time.Duration(last-now)+t.h.c.marginOf(ttl))
	}
	return max(ttl, time.Duration(extended-now))
}

// trusted returns until when t is valid for its renewed holds after another hold has left: until, or earlier if they were
// promised less. The longer lease of the one that left is not trusted, because its release gives that lease back.
// t.mu is held.
func (t *tenure) trusted(until time.Time, margin time.Duration) time.Time {
	now := time.Now()
	if own := now.Add(t.renewedFor(t.h.c.instant(now)) - margin); own.Before(until) {
		return own
	}
	return until
}

// shorten returns what remaining returns, in ms; -1 if that is not known. It notes that the lease is being shortened, until
// shortenedBy is told that the release was answered. The caller holds t.wire.
func (t *tenure) shorten(left int) int64 {
	need, ok := t.remaining(left)
	if !ok {
		return -1
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.promises.shortened = t.promises.shortened || need > 0
	return millis(need)
}

func (t *tenure) shortenedBy(err error) {
	if err != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.promises.shortened = false
}

func (t *tenure) isShortened() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.promises.shortened
}

// changed numbers a change of the count, so that a late copy of an earlier change does nothing. The caller holds t.wire.
func (t *tenure) changed() uint32 {
	t.promises.change++
	return t.promises.change
}

// settle notes that g is to have a lease of d, before that is sent: a release of another hold that begins now leaves it
// alone. A release that is under way may not know of it. So settle waits for its answer, or repeats it.
func (t *tenure) settle(ctx context.Context, g *grip, d time.Duration) error {
	g.mu.Lock()
	g.extended = max(g.extended, t.h.c.instant(time.Now().Add(d)))
	g.mu.Unlock()
	for t.isShortened() {
		if t.wire.TryLock() {
			_, err := t.h.proto.give(ctx, t, t.count(0))
			t.wire.Unlock()
			if err != nil {
				return err
			}
			continue
		}
		timer := time.NewTimer(time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
	return nil
}

// extension is when the longest lease ends that an Extend got, or may get, for g.
func (g *grip) extension() instant {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.extended
}
