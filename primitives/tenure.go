package primitives

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redlatch/redlatch/scripts"
	"github.com/redlatch/redlatch/watchdog"
)

// tenure is one acquisition on the wire: an id, and how often it is held. Holds that nest share one.
type tenure struct {
	h *handle
	claim
	token int64
	reign reign

	// wire is held around each command that sets the count, so that counts reach Redis in the order in
	// which they are decided. Take it with lockWire: a command may be stuck.
	wire sync.Mutex

	mu    sync.Mutex
	grips *grip         // those that have not left, linked by also; guarded by mu
	holds int32         // how many counts the holds have: what is to stand on the wire; guarded by mu
	lost  bool          // guarded by mu
	gone  ending        // whether a release has freed the lock; guarded by wire
	over  instant       // by then the lease has ended whatever happened; guarded by mu
	brief time.Duration // the lease so far, if shorter than what renewals ask for; 0: it is not; guarded by mu
	lease watchdog.Lease

	promises leaseState
}

func (h *handle) newTenure(q *request, v verdict, holds int) *tenure {
	t := &tenure{h: h, claim: q.claim, token: v.token, reign: v.reign, holds: int32(holds), over: h.c.instant(time.Now().Add(q.ttl)), brief: v.brief}
	if t.reign.heirs == 0 {
		t.reign.since = h.c.instant(v.sent)
	}
	if t.lasts() == nil {
		t.over = h.c.instant(v.sent.Add(maxDuration))
	}
	return t
}

// ending is whether a release was answered, and how.
type ending uint8

const (
	notReleased ending = iota
	wasReleased
	wasLost
)

// lasts is the protocol of a tenure that has a lease, nil of one that has none.
func (t *tenure) lasts() leased {
	l, _ := t.h.proto.(leased)
	return l
}

// publicID is the id as the API gives it.
func (t *tenure) publicID() string { return t.id }

func (t *tenure) fence() int64 { return t.token }
func (t *tenure) leases() bool { return t.lasts() != nil }

func (t *tenure) limit(sent time.Time, d time.Duration) time.Time {
	if !t.leases() {
		return time.Time{}
	}
	return sent.Add(d - t.h.c.marginOf(d))
}

func (t *tenure) valid(g *grip) time.Time {
	limit := g.until()
	if !t.leases() || !g.renew {
		return limit
	}
	if until := t.lease.ValidUntil(); limit.IsZero() || until.Before(limit) {
		return until
	}
	return limit
}

func (t *tenure) check(ctx context.Context) error {
	lost, err := t.lasts().check(ctx, t)
	return t.judge(ctx, lost, err)
}

// join adds a hold. The watchdog renews as long as one of the holds is a renewed one, and watches the limit of each that has one.
func (t *tenure) join(g *grip) {
	l := t.lasts()
	if l == nil {
		return
	}
	t.mu.Lock()
	g.also, t.grips = t.grips, g
	lost := t.lost
	if !lost {
		t.keep(g)
	}
	t.mu.Unlock()
	if lost {
		g.loseInBackground()
		return
	}
	t.watch(g)
}

// watch has the watchdog tell g when its limit has come. A renewed hold alone on its tenure needs no second watch.
func (t *tenure) watch(g *grip) {
	g.mu.Lock()
	limit, over := g.limit, g.cause != nil
	if limit == 0 || over {
		g.mu.Unlock()
		return
	}
	if g.lapse == nil {
		g.lapse = new(watchdog.Lease)
	}
	lapse := g.lapse
	g.mu.Unlock()
	_ = t.h.c.dog.Keep(lapse, g, watchdog.Terms{}, t.h.c.time(limit)) // closed: Close ends the hold
}

// rejoin is told when g's limit has moved.
func (t *tenure) rejoin(g *grip) {
	t.mu.Lock()
	if !t.lost && *t.link(g) != nil {
		t.keep(nil)
	}
	t.mu.Unlock()
	t.watch(g)
}

// keep sets the terms of renewal after the holds have changed: the longest of their TTLs, up to the last of their limits if all
// have one. fresh, if not nil, is a hold whose TTL has just been confirmed.
func (t *tenure) keep(fresh *grip) {
	var terms watchdog.Terms
	unlimited, last := false, instant(0)
	for g := t.grips; g != nil; g = g.also {
		if !g.renew {
			continue
		}
		terms.TTL = max(terms.TTL, g.ttl)
		g.mu.Lock()
		limit := g.limit
		g.mu.Unlock()
		unlimited = unlimited || limit == 0
		last = max(last, limit)
	}
	dog := t.h.c.dog
	if terms.TTL == 0 { // none is renewed: each has a limit of its own
		dog.Drop(&t.lease)
		return
	}
	if t.brief > 0 {
		terms.TTL = min(terms.TTL, t.brief) // until the first renewal
	}
	terms.Margin = t.h.c.marginOf(terms.TTL)
	if !unlimited {
		terms.End = t.h.c.time(last).Add(terms.Margin) // validity is to end at the limit, not before
	}
	terms.Group = t.h.group
	until := t.lease.ValidUntil()
	if fresh == nil {
		until = t.trusted(until, terms.Margin)
	}
	if fresh != nil {
		ttl := fresh.ttl
		if t.brief > 0 {
			ttl = min(ttl, t.brief)
		}
		if confirmed := t.h.c.time(fresh.since).Add(ttl - t.h.c.marginOf(ttl)); confirmed.After(until) {
			until = confirmed
		}
	}
	_ = dog.Keep(&t.lease, t, terms, until) // closed: Close ends the holds
}

// forget takes a hold out of what is renewed and told, and leaves the wire as it is.
func (t *tenure) forget(g *grip) {
	if t.lasts() == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if at := t.link(g); *at != nil {
		*at, g.also = g.also, nil
		t.promises.left(g)
		if !t.lost {
			t.keep(nil)
		}
	}
}

// link is what points to g in the list, or the list's end. mu is held.
func (t *tenure) link(g *grip) **grip {
	at := &t.grips
	for *at != nil && *at != g {
		at = &(*at).also
	}
	return at
}

// lockWire takes wire. It reports false if ctx ends first.
func (t *tenure) lockWire(ctx context.Context) bool {
	if t.wire.TryLock() {
		return true
	}
	locked := make(chan struct{})
	t.h.c.spawn(func() {
		t.wire.Lock()
		select {
		case locked <- struct{}{}:
		case <-ctx.Done():
			t.wire.Unlock()
		}
	})
	select {
	case <-locked:
		return true
	case <-ctx.Done():
		return false
	}
}

// count changes how many counts the holds have, and returns the new number.
func (t *tenure) count(delta int) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.holds += int32(delta)
	return int(t.holds)
}

// nest adds a count for a hold that is about to join. It fails with ErrLost when the lock is not t's
// any more, and with errOuterEnded when outer's release has begun: the release may be on its way, and
// would free the lock under the new hold.
func (t *tenure) nest(ctx context.Context, outer *grip, ttl time.Duration) (sent time.Time, err error) {
	began := time.Now()
	if !t.lockWire(ctx) {
		return time.Time{}, gaveUp(ctx, nil)
	}
	if outer.released() {
		t.wire.Unlock()
		return time.Time{}, errOuterEnded
	}
	sent, lost, err := t.lasts().count(ctx, t, t.count(+1), ttl)
	if err == nil && !lost {
		t.outlives(sent.Add(ttl))
		t.mu.Lock()
		t.brief = 0
		t.mu.Unlock()
		t.wire.Unlock()
		return sent, nil
	}
	t.count(-1)
	t.wire.Unlock()
	if standing(err) {
		t.giveLater(ctx, t.h.c.rollbackLimit(began))
	}
	return sent, t.judge(ctx, lost, err)
}

// unnest takes back a count that nobody has joined for.
func (t *tenure) unnest(ctx context.Context) {
	t.count(-1)
	t.giveLater(ctx, rollbackGrace)
}

// errStuck: a sibling's command has taken all the time of a release.
var errStuck = errors.New("no answer to a command of another hold of the same lock")

// releaseTimeout is how long a release waits for Redis.
const releaseTimeout = 5 * time.Second

// leave gives back g's count; the last one frees the lock. It ends within releaseTimeout, and goes on
// in the background if Redis did not answer.
func (t *tenure) leave(ctx context.Context, g *grip) (lost bool, err error) {
	t.forget(g) // before the command: nothing renews what is being released
	left := t.count(-1)
	now := context.WithoutCancel(ctx)
	if locked := t.wire.TryLock(); !locked || t.h.c.timeout > releaseTimeout {
		var stop context.CancelFunc
		now, stop = context.WithTimeout(now, releaseTimeout)
		defer stop()
		if !locked && !t.lockWire(now) {
			t.giveLater(ctx, 0)
			return false, &scripts.Error{Script: "release", Outcome: scripts.Unknown, Err: errStuck}
		}
	}
	lost, err = t.giveNow(now, left)
	t.wire.Unlock()
	switch {
	case err != nil:
		t.giveLater(ctx, 0)
	case lost:
		t.lose(ctx, g)
	}
	return lost, err
}

// giveNow writes how many counts are left; at 0 it frees the lock or hands it off. The caller holds wire.
func (t *tenure) giveNow(ctx context.Context, left int) (lost bool, err error) {
	left = min(left, t.count(0)) // siblings may have left meanwhile
	if left > 0 {
		return t.h.proto.give(ctx, t, left)
	}
	if t.gone != notReleased {
		return t.gone == wasLost, nil
	}
	lost, err = t.part(ctx)
	switch {
	case err != nil:
	case lost:
		t.gone = wasLost
	default:
		t.gone = wasReleased
	}
	return lost, err
}

// giveLater gives back in the background what Redis has not answered for: down to the count that is
// decided upon when it gets through. It waits up to limit for the first attempt.
func (t *tenure) giveLater(ctx context.Context, limit time.Duration) {
	t.h.c.inBackground(ctx, t.repeatUntil(), limit, func(ctx context.Context) error {
		if !t.lockWire(ctx) {
			return context.Cause(ctx)
		}
		defer t.wire.Unlock()
		if t.gone != notReleased {
			return nil
		}
		_, err := t.h.proto.give(ctx, t, t.count(0))
		return err
	})
}

// repeatUntil is how long a release may be repeated: until the lease is over, or, where a second
// execution would give back more than the first, for as long as Redis remembers the first.
func (t *tenure) repeatUntil() time.Time {
	// The first copy was sent up to a command timeout ago.
	remembered := time.Now().Add(t.h.c.run.Repeatable() - t.h.c.run.Timeout())
	switch {
	case t.shared:
		return remembered
	case t.leases():
		return t.ends()
	}
	if until := t.knownUntil(); until.After(remembered) {
		return until
	}
	return remembered
}

// knownUntil is how long Redis is known to remember what an acquisition without a lease took.
func (t *tenure) knownUntil() time.Time {
	return t.ends().Add(rememberedTaken - time.Hour - maxDuration)
}

// abandon deletes the key of an expired hold that its owner releases, in case a late renewal extended
// it. The owner has left its section. A count of a shared id is left to the lease: the id may hold the
// lock again by now, and would lose a count.
func (t *tenure) abandon(ctx context.Context) {
	t.abandoned()
	if t.count(-1) == 0 && !t.shared && time.Now().Before(t.ends()) {
		t.giveLater(ctx, 0)
	}
}

// extend keeps the lock for at least d from now, and g with it.
func (t *tenure) extend(ctx context.Context, g *grip, d time.Duration) error {
	if err := t.settle(ctx, g, d); err != nil {
		return err
	}
	sent, lost, err := t.lasts().extend(ctx, t, d)
	if err = t.judge(ctx, lost, err); err != nil {
		return err
	}
	t.outlives(sent.Add(d))
	until := sent.Add(d - t.h.c.marginOf(d))
	limit := t.h.c.instant(until)
	g.mu.Lock()
	raised := g.limit != 0 && limit > g.limit
	if raised {
		g.limit = limit
	}
	g.mu.Unlock()
	if raised {
		t.rejoin(g) // before Confirm, which never goes beyond the limits
	}
	t.h.c.dog.Confirm(&t.lease, until)
	return nil
}

// judge makes an error of a command's answer, and tells all holds of a loss.
func (t *tenure) judge(ctx context.Context, lost bool, err error) error {
	if err == nil && lost {
		t.lose(ctx, nil)
		return ErrLost
	}
	return err
}

// lose tells all holds but one that the call with ctx found the lock lost.
func (t *tenure) lose(ctx context.Context, but *grip) {
	for _, g := range t.end() {
		if g != but {
			g.lose(ctx)
		}
	}
}

// end marks the tenure lost, once, and returns the holds that are to be told.
func (t *tenure) end() []*grip {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lost {
		return nil
	}
	t.lost = true
	grips := t.all()
	t.grips = nil
	t.h.c.dog.Drop(&t.lease)
	return grips
}

// outlives notes that the key may last until then.
func (t *tenure) outlives(over time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = max(t.over, t.h.c.instant(over))
}

// ends is when the lease is over at the latest.
func (t *tenure) ends() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	over := t.h.c.time(t.over)
	if renewed := t.lease.ValidUntil(); renewed.After(over) {
		return renewed.Add(t.h.c.marginOf(t.ttl))
	}
	return over
}

// grown has a brief lease, now that it was renewed once, renewed for as long as its holds ask for: at once.
func (t *tenure) grown() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.brief > 0 && t.grips != nil {
		t.brief = 0
		t.keep(nil)
	}
}

// LeaseRenewed is the watchdog's word that the lock is kept.
func (t *tenure) LeaseRenewed(*watchdog.Lease) {
	t.grown()
	if t.h.c.observe != nil {
		for _, g := range t.present() {
			t.h.c.emitLater(g.event(EventRenewed, nil))
		}
	}
}

// LeaseUnknown is the watchdog's word that a renewal was not answered.
func (t *tenure) LeaseUnknown(_ *watchdog.Lease, err error) {
	if t.h.c.observe != nil {
		for _, g := range t.present() {
			t.h.c.emitLater(g.event(EventRenewFailed, err))
		}
	}
}

// LeaseLost is the watchdog's word that the lock is not ours any more, or must be taken not to be.
func (t *tenure) LeaseLost(*watchdog.Lease, bool) { t.loseInBackground() }

// loseInBackground tells all holds that the lock is lost, found by no call of the user's.
func (t *tenure) loseInBackground() {
	for _, g := range t.end() {
		g.loseInBackground()
	}
}

func (t *tenure) present() []*grip {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all()
}

// all are the holds that have not left. mu is held.
func (t *tenure) all() (grips []*grip) {
	for g := t.grips; g != nil; g = g.also {
		grips = append(grips, g)
	}
	return grips
}

// retryPause is the longest pause between two attempts in the background.
const retryPause = time.Second

// inBackground runs do until it succeeds, until over, or until the client closes. It returns when the
// first attempt has ended, or after limit.
func (c *Client) inBackground(ctx context.Context, over time.Time, limit time.Duration, do func(context.Context) error) {
	first := make(chan struct{})
	c.spawn(func() { c.retry(context.WithoutCancel(ctx), over, do, first) })
	if limit <= 0 {
		return
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-first:
		return
	case <-timer.C:
		return
	case <-ctx.Done():
	}
	timer.Reset(min(limit, rollbackGrace)) // the caller's time is over
	select {
	case <-first:
	case <-timer.C:
	}
}

// rollbackLimit is how long a call that began then may wait for its rollback: no longer than Redis
// had to answer the call.
func (c *Client) rollbackLimit(began time.Time) time.Duration {
	return min(max(c.timeout-time.Since(began), rollbackGrace), rollbackTimeout)
}

// retry closes first when its first attempt has ended.
func (c *Client) retry(ctx context.Context, over time.Time, do func(context.Context) error, first chan<- struct{}) {
	ctx, cancel := context.WithDeadline(ctx, over)
	defer cancel()
	for delay := 20 * time.Millisecond; ; delay = min(2*delay, retryPause) {
		attempt, stop := context.WithTimeout(ctx, releaseTimeout)
		err := do(attempt)
		stop()
		if first != nil {
			close(first)
			first = nil
		}
		if err == nil || errors.Is(err, scripts.ErrClosed) || ctx.Err() != nil {
			return
		}
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-ctx.Done():
		case <-c.stopping:
		}
		timer.Stop()
		if ctx.Err() != nil || isClosed(c.stopping) {
			return
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
