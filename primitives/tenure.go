package primitives

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
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

	// wire is held around each command that sets the count, so that counts reach Redis in the order in which they are decided.
	wire  sync.Mutex
	holds int // the count on the wire; guarded by wire

	mu    sync.Mutex
	grips *grip         // those that have not left, linked by also; guarded by mu
	lost  bool          // guarded by mu
	over  instant       // by then the lease has ended whatever happened; guarded by mu
	brief time.Duration // the lease so far, if shorter than what renewals ask for; 0: it is not; guarded by mu
	lease watchdog.Lease

	promises leaseState
}

func (h *handle) newTenure(q *request, v verdict, holds int) *tenure {
	t := &tenure{h: h, claim: q.claim, token: v.token, reign: v.reign, holds: holds, over: h.c.instant(time.Now().Add(q.ttl)), brief: v.brief}
	if t.reign.heirs == 0 {
		t.reign.since = h.c.instant(v.sent)
	}
	if t.lasts() == nil {
		t.over = h.c.instant(v.sent.Add(maxDuration))
	}
	return t
}

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
	return t.judge(lost, err)
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
		g.lose()
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

// nest adds a count for a hold that is about to join. It fails with ErrLost when the lock is not t's any more.
func (t *tenure) nest(ctx context.Context, ttl time.Duration) (sent time.Time, err error) {
	t.wire.Lock()
	defer t.wire.Unlock()
	sent, lost, err := t.lasts().count(ctx, t, t.holds+1, ttl)
	if err == nil && !lost {
		t.holds++
		t.outlives(sent.Add(ttl))
		t.mu.Lock()
		t.brief = 0
		t.mu.Unlock()
		return sent, nil
	}
	if standing(err) {
		t.recount(ctx)
	}
	return sent, t.judge(lost, err)
}

// unnest takes back a count that nobody has joined for.
func (t *tenure) unnest(ctx context.Context) {
	t.wire.Lock()
	defer t.wire.Unlock()
	t.holds--
	t.recount(ctx)
}

// recount sees that the count on the wire is the one decided upon. The caller holds wire.
func (t *tenure) recount(ctx context.Context) {
	now, cancel := within(ctx, briefly)
	defer cancel()
	if _, err := t.h.proto.give(now, t, t.holds); err != nil {
		t.giveLater(ctx)
	}
}

// leave gives back g's count; the last one frees the lock. It ends within 5 s, and goes on in the background if Redis did not
// answer.
func (t *tenure) leave(ctx context.Context, g *grip) (lost bool, err error) {
	t.wire.Lock()
	defer t.wire.Unlock()
	t.holds--
	left := t.holds
	t.forget(g) // before the command: nothing renews what is being released
	now := t.h.c.deadlines.patiently(ctx)
	if left > 0 {
		lost, err = t.h.proto.give(now, t, left)
	} else {
		lost, err = t.part(now)
	}
	if err != nil {
		t.giveLater(ctx)
	} else if lost {
		t.lose(g)
	}
	return lost, err
}

// giveLater goes on giving back what Redis did not answer for: down to the count that is decided upon when it gets through.
func (t *tenure) giveLater(ctx context.Context) {
	t.h.c.persist(ctx, t.ends(), func(ctx context.Context) error {
		t.wire.Lock()
		defer t.wire.Unlock()
		_, err := t.h.proto.give(ctx, t, t.holds)
		return err
	})
}

// abandon is called when a hold that was told of the loss by time is given up by its owner, who has left its section: the key, if a renewal did
// reach it, need not block others until the lease is over.
func (t *tenure) abandon(ctx context.Context) {
	t.wire.Lock()
	defer t.wire.Unlock()
	t.holds--
	t.abandoned()
	if t.holds == 0 && time.Now().Before(t.ends()) {
		t.giveLater(ctx)
	}
}

// extend keeps the lock for at least d from now, and g with it.
func (t *tenure) extend(ctx context.Context, g *grip, d time.Duration) error {
	if err := t.settle(ctx, g, d); err != nil {
		return err
	}
	sent, lost, err := t.lasts().extend(ctx, t, d)
	if err = t.judge(lost, err); err != nil {
		return err
	}
	t.outlives(sent.Add(d))
	until := sent.Add(d - t.h.c.marginOf(d))
	t.h.c.dog.Confirm(&t.lease, until)
	limit := t.h.c.instant(until)
	g.mu.Lock()
	raised := g.limit != 0 && limit > g.limit
	if raised {
		g.limit = limit
	}
	g.mu.Unlock()
	if raised {
		t.rejoin(g)
	}
	return nil
}

// judge makes an error of a command's answer, and tells all holds of a loss.
func (t *tenure) judge(lost bool, err error) error {
	if err == nil && lost {
		t.lose(nil)
		return ErrLost
	}
	return err
}

// lose tells all holds but one that the tenure is over.
func (t *tenure) lose(but *grip) {
	t.mu.Lock()
	if t.lost {
		t.mu.Unlock()
		return
	}
	t.lost = true
	grips := t.all()
	t.grips = nil
	t.h.c.dog.Drop(&t.lease)
	t.mu.Unlock()
	for _, g := range grips {
		if g != but {
			g.lose()
		}
	}
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
func (t *tenure) LeaseLost(*watchdog.Lease, bool) { t.lose(nil) }

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

// How long a call waits for what must be given back before it leaves that to the background.
const (
	patience = 5 * time.Second
	briefly  = time.Second
	again    = time.Second // at most between two tries in the background
)

// within is ctx for a command that must go out though ctx be done, and be answered in time.
func within(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), limit)
}

// deadlines makes contexts that end in time, one for all that are asked for at about the same time: most commands are answered long before.
type deadlines struct {
	latest atomic.Pointer[deadline]
}

type deadline struct {
	context.Context //nolint:containedctx // it is one
	until           time.Time
	stop            context.CancelFunc
}

// bounded has the values of one context and the end of another.
type bounded struct {
	context.Context
	values context.Context
}

func (b *bounded) Value(key any) any { return b.values.Value(key) }

// close spares the latest its end.
func (d *deadlines) close() {
	if latest := d.latest.Load(); latest != nil {
		latest.stop()
	}
}

// patiently is ctx for a command that must go out though ctx be done, and be answered within patience, or a hundredth less.
func (d *deadlines) patiently(ctx context.Context) context.Context {
	now := time.Now()
	latest := d.latest.Load()
	if latest == nil || latest.until.Sub(now) < patience-patience/100 {
		until := now.Add(patience)
		end, stop := context.WithDeadline(context.Background(), until)
		latest = &deadline{end, until, stop}
		d.latest.Store(latest) // the one before ends by itself
	}
	return &bounded{latest.Context, ctx}
}

// persist does in the background what Redis has not answered yet, until it does, the lease is over or the client closes.
func (c *Client) persist(ctx context.Context, over time.Time, do func(context.Context) error) {
	c.spawn(func() { c.retry(context.WithoutCancel(ctx), over, do) })
}

func (c *Client) retry(ctx context.Context, over time.Time, do func(context.Context) error) {
	ctx, cancel := context.WithDeadline(ctx, over)
	defer cancel()
	for delay := 20 * time.Millisecond; ; delay = min(2*delay, again) {
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		case <-c.stopping:
			timer.Stop()
			return
		}
		attempt, stop := context.WithTimeout(ctx, patience)
		err := do(attempt)
		stop()
		if err == nil || errors.Is(err, scripts.ErrClosed) {
			return
		}
	}
}
