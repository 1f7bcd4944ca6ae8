package watchdog

import (
	"container/heap"
	"context"
	"log/slog"
	"math/rand/v2"
	"time"
)

const (
	maxTimely = 16 // calls of a group under way that are not late
	maxCalls  = 64 // calls of a group under way
)

// group is the leases that share batches. It is there while it has leases or calls.
type group struct {
	key    any
	due    dues    // all its leases
	queue  []*call // batches that wait for others to answer
	timely int     // calls under way within their limit
	calls  int     // calls under way
}

// call is one batch: queued, then under way.
type call struct {
	group  *group
	batch  []Ask
	start  instant // never: queued
	live   int     // leases for which it may still tell something
	late   bool    // it has lost its place among the timely
	ctx    context.Context
	cancel context.CancelFunc
}

// left is called when one lease less is interested. The last one ends the call.
func (c *call) left() {
	c.live--
	if c.live == 0 && c.start != never {
		c.cancel()
		c.giveWay()
	}
}

// giveWay lets another call of the group begin.
func (c *call) giveWay() {
	if !c.late {
		c.late = true
		c.group.timely--
	}
}

func (d *Dog) instant(t time.Time) instant { return instant(t.Sub(d.epoch)) }
func (d *Dog) now() instant                { return instant(time.Since(d.epoch)) }

// groupOf finds or makes the group of that key.
func (d *Dog) groupOf(key any) *group {
	g := d.groups[key]
	if g == nil {
		if g, d.spare = d.spare, nil; g == nil {
			g = new(group)
		}
		g.key = key
		d.groups[key] = g
	}
	return g
}

// release forgets a group that nobody needs any more.
func (d *Dog) release(g *group) {
	if len(g.due) > 0 || g.calls > 0 {
		return
	}
	delete(d.groups, g.key)
	g.key, g.queue = nil, nil
	d.spare = g
}

// remove takes l, if registered, out of everything it is in. Its news and keeper stay.
func (d *Dog) remove(l *Lease) {
	if !l.registered() {
		return
	}
	heap.Remove(&d.alarms, int(l.alarm-1))
	g := l.group
	if g == nil {
		return
	}
	l.group = nil
	heap.Remove(&g.due, int(l.place-1))
	for _, c := range l.calls {
		if c != nil {
			l.leave(c)
		}
	}
	d.launch(g)
	d.release(g)
}

// lose unregisters l and leaves its keeper to be told.
func (d *Dog) lose(l *Lease, how news) {
	d.remove(l)
	l.news |= how
}

// confirm moves l's validity on and plans what comes next.
func (d *Dog) confirm(l *Lease, granted, now instant) {
	l.extend(granted)
	l.fails = 0
	for _, c := range l.calls {
		// A queued attempt is not needed now, and one that asked for no more than we have could tell nothing new.
		if c != nil && (c.start == never || c.start.add(l.ask(c.start)) <= l.granted) {
			l.leave(c)
		}
	}
	if l.asked() {
		d.plan(l, max(now, l.hedge()))
	} else {
		d.plan(l, l.due())
	}
}

// plan sets when l is asked for next, and puts it where it belongs now.
func (d *Dog) plan(l *Lease, next instant) {
	l.next = next
	heap.Fix(&d.alarms, int(l.alarm-1))
	if l.group != nil {
		heap.Fix(&l.group.due, int(l.place-1))
	}
}

// settle sees to it that the scheduler looks when the first alarm is due. Whoever may have brought one forward calls it
// before giving mu back.
func (d *Dog) settle() {
	if len(d.alarms) == 0 {
		return
	}
	first := d.alarms[0].wake()
	switch {
	case !d.running:
		d.running, d.armed = true, first
		d.wg.Go(d.run)
	case first < d.armed:
		d.armed = first
		select {
		case d.wake <- struct{}{}:
		default:
		}
	}
}

// lull is how long the scheduler stays without leases: whoever takes and drops them by turns need not start it each time.
const lull = 100 * time.Millisecond

// run is the scheduler. It never blocks but to wait for the next alarm, and ends when there has been none for a lull.
func (d *Dog) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		wait, ok := d.pass()
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

// pass does what is due, and says how long there is nothing to do.
func (d *Dog) pass() (wait time.Duration, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.now()
	var told []*Lease
	for len(d.alarms) > 0 && d.alarms[0].wake() <= now {
		l := d.alarms[0]
		if l.valid() <= now {
			d.lose(l, newsOver)
			told = append(told, l)
		} else {
			told = d.serve(l.group, now, told)
		}
	}
	if len(told) > 0 {
		d.wg.Go(func() { d.tell(told) }) // a loop of its own: no keeper holds the scheduler up
	}
	if len(d.alarms) == 0 {
		d.running, d.idle = !d.idle, !d.idle
		d.armed = now.add(lull)
		return lull, d.running
	}
	d.idle = false
	d.armed = d.alarms[0].wake()
	return time.Duration(d.armed.add(-time.Duration(now))), true
}

// serve makes batches of g's leases that are due. They are begun for one that has to be asked for now, and filled with
// those that will have to be soon: so each is full, or nothing follows it for a slice. As waking up costs as much as a batch does, more go with it
// if they are full; no more than may be under way, for they keep the server from others.
func (d *Dog) serve(g *group, now instant, told []*Lease) []*Lease {
	for n := 0; n%maxTimely != 0 || g.due[0].next <= now; n++ {
		pressing := g.due[0].next <= now
		c := &call{group: g, start: never, batch: make([]Ask, 0, min(Batch, len(g.due)))}
		told = d.fill(c, now, told)
		if !pressing && len(c.batch) < Batch {
			d.spill(c)
			break
		}
		g.queue = append(g.queue, c)
	}
	d.launch(g)
	return told
}

// fill puts into c what is ripe.
func (d *Dog) fill(c *call, now instant, told []*Lease) []*Lease {
	g := c.group
	for len(c.batch) < Batch && g.due[0].ripe(now) {
		l := g.due[0]
		if l.overdue(now) {
			l.fail(ErrNoAnswer)
			told = append(told, l)
		}
		if l.join(c) { // always: without room, next is never
			c.batch = append(c.batch, Ask{Lease: l, Keeper: l.keeper})
		}
		d.plan(l, never)
	}
	return told
}

// spill puts back what c was filled with, of which none has to be asked for yet.
func (d *Dog) spill(c *call) {
	for _, a := range c.batch {
		a.Lease.leave(c)
		d.plan(a.Lease, a.Lease.due())
	}
}

// overdue says, once for each attempt, whether l's newest has not answered in time. Other calls may pass those that have
// not.
func (l *Lease) overdue(now instant) bool {
	for _, c := range l.calls {
		if c != nil && c.start.add(l.limit()) <= now {
			c.giveWay()
		}
	}
	latest := l.latest()
	if latest <= l.late || latest.add(l.limit()) > now {
		return false
	}
	l.late = latest
	return true
}

// launch begins queued calls of g, as many as may be under way.
func (d *Dog) launch(g *group) {
	for len(g.queue) > 0 && g.timely < maxTimely && g.calls < maxCalls {
		c := g.queue[0]
		g.queue[0] = nil
		g.queue = g.queue[1:]
		if d.begin(c); len(c.batch) > 0 {
			g.timely++
			g.calls++
			c.ctx, c.cancel = context.WithCancel(d.ctx)
			d.wg.Go(func() { d.call(c) })
		}
	}
}

// begin starts c's clock and fills in what is asked of the leases that are still of interest.
func (d *Dog) begin(c *call) {
	now := d.now()
	kept := c.batch[:0]
	for _, a := range c.batch {
		l := a.Lease
		if !l.in(c) {
			continue
		}
		if a.TTL = l.ask(now); a.TTL <= 0 || l.valid() <= now {
			l.leave(c)
			continue
		}
		kept = append(kept, a)
	}
	clear(c.batch[len(kept):])
	c.batch, c.start = kept, now
	for _, a := range kept {
		d.plan(a.Lease, a.Lease.hedge())
	}
}

// call runs Renew for c, in a goroutine of its own.
func (d *Dog) call(c *call) {
	states, err := d.renew(c.ctx, c.group.key, c.batch)
	if err != nil && c.ctx.Err() == nil {
		d.log.LogAttrs(c.ctx, slog.LevelWarn, "renewal failed", slog.Any("group", c.group.key), slog.Int("leases", len(c.batch)),
			slog.Any("error", err))
	}
	d.tell(d.answer(c, states, err))
	c.cancel()
}

// answer takes in what Renew said, and gives the leases whose keepers have to be told.
func (d *Dog) answer(c *call, states []State, err error) []*Lease {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	if err == nil {
		err = ErrNoAnswer
	}
	now := d.now()
	jitter := 1 - rand.Float64()/4 //nolint:gosec // One for the batch, so that it stays together; it guards nothing.
	told := make([]*Lease, 0, len(c.batch))
	for i, a := range c.batch {
		state := Unknown
		if i < len(states) {
			state = states[i]
		}
		if d.apply(c, a, state, err, now, jitter) {
			told = append(told, a.Lease)
		}
	}
	c.giveWay()
	c.group.calls--
	d.launch(c.group)
	d.release(c.group)
	d.settle()
	return told
}

// apply takes in the answer for one lease; true: its keeper has to be told.
func (d *Dog) apply(c *call, a Ask, state State, err error, now instant, jitter float64) bool {
	l, latest := a.Lease, a.Lease.latest()
	if !l.leave(c) {
		// Dropped, kept again, or confirmed by something newer. A refusal contradicts that confirmation, and which of the two
		// was executed last is not known: a further attempt tells.
		if state == Lost && l.registered() && l.group == c.group && !l.asked() {
			d.plan(l, now)
		}
		return false
	}
	switch {
	case state == Lost:
		d.lose(l, newsRefused)
	case l.valid() <= now: // too late; the scheduler is about to say so
		return false
	case state == Renewed:
		d.confirm(l, c.start.add(a.TTL), now)
		l.news |= newsRenewed
	default:
		known := c.start <= l.late // it has been told as overdue
		if !known {
			l.fail(err)
		}
		if c.start == latest {
			d.plan(l, now.add(l.backoff(now, jitter)))
		} else {
			d.plan(l, max(now, l.hedge()))
		}
		return !known
	}
	return true
}

// tell calls the keepers of leases that have news. Only one goroutine at a time does it for a lease: the others leave
// their news to it.
func (d *Dog) tell(leases []*Lease) {
	for _, l := range leases {
		d.tellOne(l)
	}
}

func (d *Dog) tellOne(l *Lease) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l.telling {
		return
	}
	l.telling = true
	for l.news != 0 && !d.closed {
		k, gen := l.keeper, l.gen.Load()
		n, err := l.take()
		d.mu.Unlock()
		// Nothing may come between this look and the call: Drop has returned, or the call has begun.
		if l.gen.Load() == gen {
			n.tell(k, l, err)
		}
		d.mu.Lock()
	}
	l.telling = false
}

func (n news) tell(k Keeper, l *Lease, err error) {
	switch n {
	case newsUnknown:
		k.LeaseUnknown(l, err)
	case newsRenewed:
		k.LeaseRenewed(l)
	default:
		k.LeaseLost(l, n == newsRefused)
	}
}
