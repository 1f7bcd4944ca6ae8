package engine

import (
	"context"
	"strconv"
	"time"

	"github.com/redlatch/redlatch/watchdog"
)

// driver is a [Driver] for the server in memory. The kinds of the tests differ in their traits.
type driver struct {
	c         *client
	name      string
	exclusive bool // a request takes all permits
	noLease   bool
	lined     bool          // clients that wait stand in line
	shortens  bool          // a release shortens the lease to what the remaining holds were promised
	lease     time.Duration // of a grant, if it is shorter than asked for
}

// lock is an exclusive lock whose waiters hand it off to each other.
func (c *client) lock(name string) *Resource {
	d := &driver{c: c, name: name}
	r := c.resource("lock", name, d)
	r.Traits = &Traits{
		Leased: true, Nests: true, NestsInTurn: true,
		HandsOff: true, ClientsTakeTurns: true, Cohorts: true, Fenced: true,
	}
	return r
}

// reader is the side of a read-write lock that many may hold. Waiting writers of its client go first.
func (c *client) reader(name string) *Resource {
	d := &driver{c: c, name: name, shortens: true}
	r := c.resource("reader", name, d)
	r.Traits = &Traits{
		Leased: true, Nests: true, ManyHolders: true,
		AcquireBatch: d.acquireBatch, YieldsTo: "writer",
	}
	return r
}

// writer is the side of a read-write lock that takes all permits.
func (c *client) writer(name string) *Resource {
	d := &driver{c: c, name: name, exclusive: true}
	r := c.resource("writer", name, d)
	r.Traits = &Traits{Leased: true, Nests: true, NestsInTurn: true}
	return r
}

// cohortWriter is a writer that passes the lock on within a cohort.
func (c *client) cohortWriter(name string) *Resource {
	r := c.writer(name)
	r.Traits.HandsOff, r.Traits.Cohorts, r.Traits.SharesWith = true, true, "reader"
	return r
}

// semaphore is a number of permits without leases.
func (c *client) semaphore(name string) *Resource {
	d := &driver{c: c, name: name, noLease: true}
	r := c.resource("semaphore", name, d)
	r.Traits = &Traits{
		ManyHolders: true, HandsOff: true, ClientsTakeTurns: true, Remembered: 24 * time.Hour,
		NameOwner: func(o *Owner) { o.Name("", false); o.TTL = 100 * 365 * 24 * time.Hour },
	}
	return r
}

func (c *client) resource(kind, name string, d Driver) *Resource {
	return &Resource{
		Core: c.Core, Kind: kind, Name: name, Key: &Key{Core: c.Core, Kind: kind, Name: name}, Driver: d,
		RenewGroup: kind,
	}
}

// key is the request on the server.
func (d *driver) key(o *Owner) string { return d.c.id + "#" + strconv.FormatUint(o.Number, 10) }

// id is the holder on the server.
func (d *driver) id(o *Owner) string {
	if o.ID == "" {
		return d.key(o)
	}
	return o.ID
}

func (d *driver) ttl(o *Owner) time.Duration {
	if d.noLease {
		return 0
	}
	return o.TTL
}

func (d *driver) command(op string, o *Owner) command {
	return command{op: op, name: d.name, id: d.id(o)}
}

func (d *driver) attempt(q *Request) attempt {
	a := attempt{
		name: d.name, key: d.key(&q.Owner), id: d.id(&q.Owner), permits: q.Permits, ttl: d.ttl(&q.Owner),
		shared: q.Shared, nonReentrant: q.NonReentrant, nested: q.Nested, tokens: q.Tokens,
	}
	if d.exclusive {
		a.permits = -1
	}
	if d.lease > 0 {
		a.ttl = d.lease
	}
	return a
}

func (d *driver) TryAcquire(ctx context.Context, q *Request) (Result, error) {
	a, polls := d.attempt(q), pollMark(q)
	place := q.Place
	res, trip, err := do(ctx, d.c, d.command("acquire", &q.Owner), func() (Result, error) {
		res, err := d.execute(a, place)
		d.c.s.leaveMark(d.name, res, polls)
		return res, err
	})
	res.Sent, res.InDoubt, res.Lease = trip.sent, trip.doubt, d.lease
	return res, err
}

func (d *driver) acquireBatch(ctx context.Context, q *Request, others []*Request) (Result, []bool, error) {
	first, polls := d.attempt(q), pollMark(q)
	rest := make([]attempt, len(others))
	for i, o := range others {
		rest[i] = d.attempt(o)
	}
	type reply struct {
		res     Result
		granted []bool
	}
	r, trip, err := do(ctx, d.c, d.command("acquire", &q.Owner), func() (r reply, err error) {
		r.res, err = d.c.s.acquire(first)
		d.c.s.leaveMark(d.name, r.res, polls)
		if err != nil || !r.res.Granted {
			return r, err
		}
		r.granted = make([]bool, len(rest))
		for i, a := range rest {
			other, err := d.c.s.acquire(a)
			r.granted[i] = err == nil && other.Granted
			r.res.Free = other.Free
		}
		return r, nil
	})
	r.res.Sent, r.res.InDoubt = trip.sent, trip.doubt
	return r.res, r.granted, err
}

// pollMark is how long the refusal of a request stays marked, because it polls.
func pollMark(q *Request) time.Duration {
	if !q.MayQueue {
		return 0
	}
	return 2 * q.Terms.PollMax
}

// leaveMark marks a name whose lock was refused to a client that polls.
func (s *server) leaveMark(name string, res Result, lasts time.Duration) {
	if !res.Granted && lasts > 0 {
		s.polls[name] = time.Now().Add(lasts)
	}
}

// keep is how long the server remembers that a request was ended.
func (d *driver) keep(o *Owner) time.Duration {
	switch {
	case o.InDoubt:
		return d.c.LateCopies
	case o.Shared || d.noLease:
		return d.c.Memory
	}
	return 0
}

func (d *driver) Rollback(ctx context.Context, q *Request) error {
	key, id, shared, keep := d.key(&q.Owner), d.id(&q.Owner), q.Shared, d.keep(&q.Owner)
	_, _, err := do(ctx, d.c, d.command("rollback", &q.Owner), func() (bool, error) {
		freed, lost := d.c.s.end(d.name, key, id, shared, true, keep)
		if freed {
			d.c.s.publish(d.name, nil)
		}
		return lost, nil
	})
	return err
}

func (d *driver) Release(ctx context.Context, o *Ownership, left int, next Next) (got Released, err error) {
	if left == 0 {
		return d.free(ctx, o, next)
	}
	need, known := time.Duration(0), false
	if d.shortens {
		if need, known = o.BeginShortening(left); known && need == 0 {
			return d.free(ctx, o, Next{})
		}
		defer func() { o.EndShortening(err) }()
	}
	id, change := d.id(&o.Owner), o.NextChange()
	got.Lost, _, err = do(ctx, d.c, d.command("count", &o.Owner), func() (lost bool, err error) {
		h := d.c.s.lock(d.name).holders[id]
		if h != nil && change > h.change {
			h.count, h.change = left, change
			if known {
				h.until = time.Now().Add(need)
			}
		}
		return h == nil, nil
	})
	return got, err
}

// free ends o, and has the successor, if there is one, hold what o held.
func (d *driver) free(ctx context.Context, o *Ownership, to Next) (Released, error) {
	successor := to.Successor
	op := "release"
	var next attempt
	if successor != nil {
		op = "handoff"
		next = attempt{
			name: d.name, key: d.key(successor), id: d.id(successor), permits: successor.Permits, ttl: d.ttl(successor),
			tokens: successor.Tokens,
		}
		if d.exclusive {
			next.permits = -1
		}
	}
	var own *placeID
	if to.Place.Number != 0 {
		own = &placeID{d.name, d.c, to.Place.Number}
	}
	s, key, id, shared, keep := d.c.s, d.key(&o.Owner), d.id(&o.Owner), o.Shared, d.keep(&o.Owner)
	got, trip, err := do(ctx, d.c, d.command(op, &o.Owner), func() (got Released, err error) {
		freed, lost := s.end(d.name, key, id, shared, false, keep)
		got.Lost = lost
		if freed && successor != nil {
			got.Granted, _ = s.acquire(next) // refused if the successor has been rolled back
			if got.Granted.Granted && own != nil {
				s.giveUpPlace(*own)
			}
		}
		if freed && !got.Granted.Granted {
			got.Heard = s.publish(d.name, own)
			if to.CountPolls && time.Now().Before(s.polls[d.name]) {
				got.Heard++
			}
		}
		return got, nil
	})
	if got.Granted.Granted {
		got.Granted.Sent, got.Granted.InDoubt = trip.sent, trip.doubt
	}
	got.InDoubt = trip.doubt && keep == 0
	return got, err
}

func (d *driver) Subscribe(_ *Request, wake func(missed bool)) []Subscription {
	return []Subscription{d.c.s.newSubscription(d.c, d.name, wake)}
}

func (d *driver) SetCount(
	ctx context.Context, o *Ownership, n int, ttl time.Duration,
) (time.Time, bool, error) {
	if d.noLease {
		return NoLease{}.SetCount(ctx, o, n, ttl)
	}
	id, change := d.id(&o.Owner), o.NextChange()
	lost, trip, err := do(ctx, d.c, d.command("nest", &o.Owner), func() (lost bool, err error) {
		h := d.c.s.lock(d.name).holders[id]
		if h != nil && change > h.change {
			h.count, h.change = n, change
			h.keep(ttl)
		}
		return h == nil, nil
	})
	return trip.sent, lost, err
}

func (d *driver) Extend(ctx context.Context, o *Ownership, ttl time.Duration) (time.Time, bool, error) {
	if d.noLease {
		return NoLease{}.Extend(ctx, o, ttl)
	}
	lost, trip, err := do(ctx, d.c, d.command("extend", &o.Owner), func() (bool, error) {
		return !d.renew(d.id(&o.Owner), ttl), nil
	})
	return trip.sent, lost, err
}

// renew extends the lease of a holder. mu is held.
func (d *driver) renew(id string, ttl time.Duration) bool {
	h := d.c.s.lock(d.name).holders[id]
	if h != nil {
		h.keep(ttl)
	}
	return h != nil
}

func (d *driver) Check(ctx context.Context, o *Ownership) (lost bool, err error) {
	if d.noLease {
		return NoLease{}.Check(ctx, o)
	}
	lost, _, err = do(ctx, d.c, d.command("check", &o.Owner), func() (bool, error) {
		return d.c.s.lock(d.name).holders[d.id(&o.Owner)] == nil, nil
	})
	return lost, err
}

// renewBatch implements [watchdog.Renew].
func (c *client) renewBatch(ctx context.Context, _ any, batch []watchdog.Ask) ([]watchdog.State, error) {
	asks := append([]watchdog.Ask(nil), batch...)
	first := asks[0].Keeper.(*Ownership)
	cmd := command{op: "renew", name: first.r.Name, id: first.ID}
	states, _, err := do(ctx, c, cmd, func() ([]watchdog.State, error) {
		states := make([]watchdog.State, len(asks))
		for i, ask := range asks {
			o := ask.Keeper.(*Ownership)
			states[i] = watchdog.Lost
			if d := o.r.Driver.(*driver); d.renew(d.id(&o.Owner), ask.TTL) {
				states[i] = watchdog.Renewed
			}
		}
		return states, nil
	})
	return states, err
}
