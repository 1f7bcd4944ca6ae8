package watchdog

import (
	"container/heap"
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	maxOnTime   = 16 // calls of a group in flight that are not overdue
	maxInFlight = 64 // calls of a group in flight
)

// idleTime is how long the scheduler keeps running without leases, so a caller that acquires and
// releases in turn does not start it each time.
const idleTime = 100 * time.Millisecond

// The steps of a renewal:
//
//  1. The scheduler (run, step) finds a lease whose next attempt is due.
//  2. makeBatches collects it and others of its group in a call, and queues the call.
//  3. startQueued starts the call within the limits of its group. prepare reads its start time.
//  4. renewBatch calls Renew without mu, in a goroutine of the call.
//  5. applyAnswer applies the states and plans the next attempts.
//  6. notify calls the keepers, without mu.
//
// Invariants, whenever mu is free:
//
//   - A registered lease is in Dog.alarms. If it has a group, it is in the due heap of that group.
//   - Both heaps are ordered: l.next and validity change only together with a heap operation.
//   - While an attempt is queued, l.next is never, so a lease is in at most one queued call.
//   - While there are alarms, the scheduler runs and wakes up by the time of the first one.
//
// The caller of each function below holds Dog.mu, except for run, step, renewBatch, applyAnswer,
// notify, notifyOne and deliver.

// group is a set of leases that share batches. It exists while it has leases or calls.
type group struct {
	key      any
	due      leaseHeap // all leases of the group
	queue    []*call   // batches that wait until fewer calls are in flight
	onTime   int       // calls in flight that count against maxOnTime
	inFlight int       // calls in flight
}

// call is one batch: first queued, then in flight.
type call struct {
	group  *group
	batch  []Renewal
	start  instant // never while queued
	leases int     // leases for which the answer still counts
	freed  bool    // the call no longer counts against maxOnTime
	ctx    context.Context
	cancel context.CancelFunc
}

// leaseLeft records that one lease no longer needs the answer. Without leases the call is canceled.
func (c *call) leaseLeft() {
	c.leases--
	if c.leases == 0 && c.start != never {
		c.cancel()
		c.free()
	}
}

// free lets another call of the group start. It is idempotent.
func (c *call) free() {
	if !c.freed {
		c.freed = true
		c.group.onTime--
	}
}

func (d *Dog) instant(t time.Time) instant { return instant(t.Sub(d.epoch)) }
func (d *Dog) now() instant                { return instant(time.Since(d.epoch)) }

// groupOf returns the group with that key, and makes it if there is none.
func (d *Dog) groupOf(key any) *group {
	g := d.groups[key]
	if g == nil {
		g = d.spare
		d.spare = nil
		if g == nil {
			g = new(group)
		}
		g.key = key
		d.groups[key] = g
	}
	return g
}

// release deletes a group without leases and calls. It becomes the spare one, so that a caller that
// acquires and releases in turn does not allocate.
func (d *Dog) release(g *group) {
	if len(g.due.leases) > 0 || g.inFlight > 0 {
		return
	}
	delete(d.groups, g.key)
	d.spare = g
}

// remove unregisters l if it is registered. Its events and its keeper stay, for the loss event.
func (d *Dog) remove(l *Lease) {
	if !l.registered() {
		return
	}
	heap.Remove(&d.alarms, int(l.index[byAlarm]-1))
	g := l.group
	if g == nil {
		return
	}
	l.group = nil
	heap.Remove(&g.due, int(l.index[byNext]-1))
	for _, c := range l.attempts {
		if c != nil {
			l.leave(c)
		}
	}
	d.startQueued(g) // a call that only served l may have made room
	d.release(g)
}

// lose unregisters l and records the loss event. The caller has to notify the keeper.
func (d *Dog) lose(l *Lease, how event) {
	d.remove(l)
	l.events |= how
}

// confirm extends l's validity and plans the next attempt, after a command that was sent at start.
// The schedule does not depend on granted, because renewals also find out if the lease is gone.
func (d *Dog) confirm(l *Lease, start, granted instant) {
	l.extend(granted)
	l.heard = max(l.heard, start)
	l.due = max(l.due, start.add(l.period()))
	l.failures = 0
	for _, c := range l.attempts {
		if c != nil && !l.mayExtend(c) {
			l.leave(c)
		}
	}
	if l.hasAttempt() {
		d.plan(l, l.hedgeAt())
	} else {
		d.plan(l, l.due)
	}
}

// mayExtend reports whether an attempt is of use after a confirmation. One that is still queued is
// not needed now. One in flight that requested no more than what is granted cannot extend validity.
// Nor can any attempt once End is reached: it would only be hedged again and again, because TTLs
// are cut to whole units.
func (l *Lease) mayExtend(c *call) bool {
	isQueued := c.start == never
	if isQueued || l.confirmedToEnd() {
		return false
	}
	return c.start.add(l.requestTTL(c.start)) > l.granted
}

// plan sets the time of l's next attempt and restores the order of both heaps.
func (d *Dog) plan(l *Lease, next instant) {
	l.next = next
	heap.Fix(&d.alarms, int(l.index[byAlarm]-1))
	if l.group != nil {
		heap.Fix(&l.group.due, int(l.index[byNext]-1))
	}
}

// arm makes the scheduler wake up in time for the first alarm. Every method that may move an alarm
// forward calls it before it unlocks mu. The scheduler is not woken up for later alarms.
func (d *Dog) arm() {
	if len(d.alarms.leases) == 0 {
		return
	}
	first := d.alarms.leases[0].alarmAt()
	switch {
	case !d.running:
		d.running = true
		d.armed = first
		d.beat = d.now()
		d.wakesAt = d.beat
		d.wg.Go(d.run)
	case first < d.armed:
		d.armed = first
		select {
		case d.wake <- struct{}{}:
		default: // a wake-up is pending and covers this alarm too
		}
	}
}

// run is the scheduler. It blocks only to wait for the next alarm. It ends after idleTime without
// leases.
func (d *Dog) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		wait, ok := d.step()
		if !ok {
			return
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-d.wake:
		case <-d.ctx.Done():
			return
		}
	}
}

// step handles all alarms that are due. It returns how long the scheduler may sleep, and false if
// it has to end.
func (d *Dog) step() (wait time.Duration, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.now()
	d.noteStandstill(now)
	defer func() { d.beat, d.wakesAt = now, now.add(wait) }()
	var toNotify []*Lease
	for len(d.alarms.leases) > 0 && d.alarms.leases[0].alarmAt() <= now {
		l := d.alarms.leases[0]
		// The end of validity comes first: after a pause of the process an expired lease must not
		// be renewed.
		if l.valid() <= now {
			d.lose(l, eventExpired)
			toNotify = append(toNotify, l)
		} else {
			toNotify = d.makeBatches(l.group, now, toNotify)
		}
	}
	if len(toNotify) > 0 {
		// In a goroutine of its own, so that no keeper blocks the scheduler.
		d.wg.Go(func() { d.notify(toNotify) })
	}
	if len(d.alarms.leases) == 0 {
		// The first time without alarms: stay for idleTime. The second time in a row: end. running
		// changes with mu held, so arm starts a new scheduler if this one ends.
		d.running = !d.idle
		d.idle = !d.idle
		d.armed = now.add(idleTime)
		return idleTime, d.running
	}
	d.idle = false
	d.armed = min(d.alarms.leases[0].alarmAt(), d.nextBeat(now))
	return time.Duration(d.armed.add(-time.Duration(now))), true
}

// makeBatches queues batches for g's leases that are due. A batch starts because of a lease that is
// due now, and is filled with leases that are due within a tenth of a period. Therefore a batch is
// full, or no other one follows it within that time.
//
// A wake-up of the scheduler costs as much as a batch, so it also takes full batches of leases that
// are due soon. It adds them only up to a multiple of maxOnTime, because no more may be in flight.
func (d *Dog) makeBatches(g *group, now instant, toNotify []*Lease) []*Lease {
	for n := 0; n%maxOnTime != 0 || g.due.leases[0].next <= now; n++ {
		due := g.due.leases[0].next <= now
		c := &call{group: g, start: never, batch: make([]Renewal, 0, min(Batch, len(g.due.leases)))}
		toNotify = d.fill(c, now, toNotify)
		if !due && len(c.batch) < Batch {
			d.unfill(c)
			break
		}
		g.queue = append(g.queue, c)
	}
	d.startQueued(g)
	return toNotify
}

// fill adds batchable leases to c.
func (d *Dog) fill(c *call, now instant, toNotify []*Lease) []*Lease {
	g := c.group
	for len(c.batch) < Batch && g.due.leases[0].batchable(now) {
		l := g.due.leases[0]
		if l.checkOverdue(now) {
			l.fail(ErrNoAnswer)
			toNotify = append(toNotify, l)
		}
		l.join(c)
		c.batch = append(c.batch, Renewal{Lease: l, Keeper: l.keeper})
		// Plan no attempt while this one is queued. This also moves another lease to the top of the
		// heap.
		d.plan(l, never)
	}
	return toNotify
}

// unfill puts the leases of c back. None of them is due yet.
func (d *Dog) unfill(c *call) {
	for _, a := range c.batch {
		a.Lease.leave(c)
		d.plan(a.Lease, a.Lease.due)
	}
}

// checkOverdue reports whether l's newest attempt has not answered in time, once per attempt. It
// also frees the slots of all overdue attempts, so that a hanging call does not block others.
func (l *Lease) checkOverdue(now instant) bool {
	for _, c := range l.attempts {
		if c != nil && c.start.add(l.answerTime()) <= now {
			c.free()
		}
	}
	latest := l.latestStart()
	if latest <= l.overdue || latest.add(l.answerTime()) > now {
		return false
	}
	l.overdue = latest
	return true
}

// startQueued starts queued calls of g within the limits of calls in flight.
func (d *Dog) startQueued(g *group) {
	for len(g.queue) > 0 && g.onTime < maxOnTime && g.inFlight < maxInFlight {
		c := g.queue[0]
		g.queue[0] = nil
		g.queue = g.queue[1:]
		d.prepare(c)
		if len(c.batch) == 0 {
			continue
		}
		g.onTime++
		g.inFlight++
		c.ctx, c.cancel = context.WithCancel(d.ctx)
		d.wg.Go(func() { d.renewBatch(c) })
	}
}

// prepare sets the start of c and the requested TTLs. It drops leases that were removed, confirmed
// or lost while c was queued.
func (d *Dog) prepare(c *call) {
	// The start is read before the call, so validity counts from before the command was sent.
	now := d.now()
	kept := c.batch[:0]
	for _, a := range c.batch {
		l := a.Lease
		if !slices.Contains(l.attempts[:], c) {
			continue
		}
		a.TTL = l.requestTTL(now)
		if a.TTL <= 0 || l.valid() <= now {
			l.leave(c)
			continue
		}
		kept = append(kept, a)
	}
	clear(c.batch[len(kept):])
	c.batch = kept
	c.start = now
	for _, a := range kept {
		d.plan(a.Lease, a.Lease.hedgeAt())
	}
}

// renewBatch runs Renew for c, in a goroutine of its own.
func (d *Dog) renewBatch(c *call) {
	states, err := d.renew(c.ctx, c.group.key, c.batch)
	if err != nil && c.ctx.Err() == nil {
		d.log.LogAttrs(c.ctx, slog.LevelWarn, "renewal failed",
			slog.Int("leases", len(c.batch)), slog.Any("error", err))
	}
	d.notify(d.applyAnswer(c, states, err))
}

// applyAnswer applies the result of Renew and returns the leases whose keepers have to be notified.
func (d *Dog) applyAnswer(c *call, states []State, err error) []*Lease {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	if err == nil {
		err = ErrNoAnswer // for Unknown leases
	}
	now := d.now()
	// One jitter per batch, so that its leases are retried in one batch again.
	jitter := 1 - rand.Float64()/4 //nolint:gosec // jitter needs no secure source
	toNotify := make([]*Lease, 0, len(c.batch))
	for i, a := range c.batch {
		state := Unknown
		if i < len(states) {
			state = states[i]
		}
		if d.applyState(c, a, state, err, now, jitter) {
			toNotify = append(toNotify, a.Lease)
		}
	}
	c.group.inFlight-- // all leases have left the call, so its context has ended, and it is free
	d.startQueued(c.group)
	d.release(c.group)
	d.arm()
	return toNotify
}

// applyState applies the answer for one lease. It reports whether the keeper has to be notified.
func (d *Dog) applyState(c *call, a Renewal, state State, err error, now instant, jitter float64) bool {
	l := a.Lease
	latest := a.Lease.latestStart()
	if !l.leave(c) {
		// The lease was dropped, kept again, or confirmed by a newer command. A refusal contradicts
		// that confirmation, and it is unknown which of the two commands was executed last. A
		// further attempt finds out.
		isContradicted := state == Lost && l.group == c.group
		if isContradicted && !l.hasAttempt() {
			d.plan(l, now)
		}
		return false
	}
	switch {
	case state == Lost:
		d.lose(l, eventRefused)
	case l.valid() <= now: // too late; the scheduler is about to report the loss
		return false
	case state == Renewed:
		l.late.Store(int64(max(now-l.due, 0)))
		d.confirm(l, c.start, c.start.add(a.TTL))
		l.events |= eventRenewed
	default:
		reported := c.start <= l.overdue // an overdue attempt was reported as unknown already
		if !reported {
			l.fail(err)
		}
		// Only the newest attempt determines the next one. A hedge covers all older ones.
		if c.start == latest {
			d.plan(l, now.add(l.backoff(now, jitter)))
		} else {
			d.plan(l, l.hedgeAt())
		}
		return !reported
	}
	return true
}

// notify delivers the events of leases to their keepers. mu is not held.
func (d *Dog) notify(leases []*Lease) {
	for _, l := range leases {
		d.notifyOne(l)
	}
}

// notifyOne delivers all events of l. Only one goroutine at a time does so for a lease. Others
// leave their events to it, so the calls of a keeper never overlap and keep their order.
func (d *Dog) notifyOne(l *Lease) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l.notifying {
		return
	}
	l.notifying = true
	for l.events != 0 && !d.closed {
		k := l.keeper
		gen := l.gen.Load()
		e, err := l.takeEvent()
		d.mu.Unlock()
		// Nothing may come between this check and the call: either Drop returned before the check,
		// and the event is not delivered, or the call counts as started before Drop.
		if l.gen.Load() == gen {
			e.deliver(k, l, err)
		}
		d.mu.Lock()
	}
	l.notifying = false
}

func (e event) deliver(k Keeper, l *Lease, err error) {
	switch e {
	case eventUnknown:
		k.LeaseUnknown(l, err)
	case eventRenewed:
		k.LeaseRenewed(l)
	default:
		k.LeaseLost(l, e == eventRefused)
	}
}
