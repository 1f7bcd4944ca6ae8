package enginetest

import (
	"context"
	"strconv"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/failure"
	"github.com/redlatch/redlatch/watchdog"
)

// FakeDriver is a [engine.Driver] for the server in memory. The kinds of the tests differ in their
// traits.
type FakeDriver struct {
	Client    *Client
	Name      string
	exclusive bool // a request takes all permits
	NoLease   bool
	pool      bool          // refusals name no holder
	lined     bool          // clients that wait stand in line
	shortens  bool          // a release shortens the lease to what the remaining holds were promised
	Lease     time.Duration // of a grant, if it is shorter than asked for
}

// Lock is an exclusive lock whose waiters hand it off to each other.
func (c *Client) Lock(name string) *engine.Resource {
	d := &FakeDriver{Client: c, Name: name}
	r := c.Resource("lock", name, d)
	r.Traits = &engine.Traits{
		Leased: true, Nests: true,
		HandsOff: true, Fenced: true,
	}
	return r
}

// Reader is the side of a read-write lock that many may hold. Waiting writers of its client go
// first.
func (c *Client) Reader(name string) *engine.Resource {
	d := &FakeDriver{Client: c, Name: name, shortens: true}
	r := c.Resource("reader", name, d)
	r.Traits = &engine.Traits{
		Leased: true, Nests: true, ManyHolders: true,
		AcquireBatch: d.acquireBatch, OtherSide: "writer",
	}
	return r
}

// Writer is the side of a read-write lock that takes all permits.
func (c *Client) Writer(name string) *engine.Resource {
	d := &FakeDriver{Client: c, Name: name, exclusive: true}
	r := c.Resource("writer", name, d)
	r.Traits = &engine.Traits{Leased: true, Nests: true}
	return r
}

// CohortWriter is a writer that passes the lock on within a cohort.
func (c *Client) CohortWriter(name string) *engine.Resource {
	r := c.Writer(name)
	r.Traits.HandsOff, r.Traits.OtherSide = true, "reader"
	return r
}

// Semaphore is a number of permits without leases.
func (c *Client) Semaphore(name string) *engine.Resource {
	d := &FakeDriver{Client: c, Name: name, NoLease: true, pool: true}
	r := c.Resource("semaphore", name, d)
	r.Traits = &engine.Traits{
		ManyHolders: true, HandsOff: true, Remembered: 24 * time.Hour,
		NameOwner: func(o *engine.Owner) { o.SetID("", false); o.TTL = 100 * 365 * 24 * time.Hour },
	}
	return r
}

// Permits is a number of permits with leases.
func (c *Client) Permits(name string) *engine.Resource {
	r := c.Resource("permits", name, &FakeDriver{Client: c, Name: name, pool: true})
	r.Traits = &engine.Traits{Leased: true, ManyHolders: true, HandsOff: true}
	return r
}

// Resource is a resource with a driver of the test, which may have holds and leases.
func (c *Client) Resource(kind, name string, d engine.Driver) *engine.Resource {
	r := &engine.Resource{Core: c.Core, Kind: kind, Name: name, Driver: d, RenewGroup: kind}
	r.Holds, _ = d.(engine.HoldDriver)
	r.Leases, _ = d.(engine.LeaseDriver)
	if fake, isFake := d.(*FakeDriver); isFake && fake.NoLease {
		r.Leases = nil
	}
	return r
}

// key is the request on the server.
func (d *FakeDriver) key(o *engine.Owner) string {
	return d.Client.ID + "#" + strconv.FormatUint(o.Number, 10)
}

// id is the holder on the server.
func (d *FakeDriver) id(o *engine.Owner) string {
	if o.ID == "" {
		return d.key(o)
	}
	return o.ID
}

func (d *FakeDriver) ttl(o *engine.Owner) time.Duration {
	if d.NoLease {
		return 0
	}
	return o.TTL
}

// Overwritten implements [engine.HoldDriver]: the server in memory has no other data.
func (d *FakeDriver) Overwritten(context.Context, error) bool { return false }

func (d *FakeDriver) Command(op string, o *engine.Owner) Command {
	return Command{Op: op, Name: d.Name, ID: d.id(o)}
}

func (d *FakeDriver) attempt(q *engine.Request) attempt {
	a := attempt{
		name: d.Name, key: d.key(&q.Owner), id: d.id(&q.Owner), permits: int(q.Permits), ttl: d.ttl(&q.Owner),
		shared: q.Shared, nonReentrant: q.NonReentrant, nested: q.UnderSameID, tokens: int32(q.Tokens), pool: d.pool,
	}
	if d.exclusive {
		a.permits = -1
	}
	if d.Lease > 0 {
		a.ttl = d.Lease
	}
	return a
}

func (d *FakeDriver) TryAcquire(ctx context.Context, q *engine.Request) (engine.Result, error) {
	a, polls := d.attempt(q), pollMark(q)
	place := q.Place
	res, trip, err := Do(ctx, d.Client, d.Command("acquire", &q.Owner), func() (engine.Result, error) {
		res, err := d.execute(a, place)
		d.Client.s.leaveMark(d.Name, res, polls)
		return res, err
	})
	res.Sent, res.InDoubt, res.Lease = trip.Sent, trip.doubt, d.Lease
	return res, err
}

func (d *FakeDriver) acquireBatch(
	ctx context.Context, q *engine.Request, others []*engine.Request,
) (engine.Result, []bool, error) {
	first, polls := d.attempt(q), pollMark(q)
	rest := make([]attempt, len(others))
	for i, o := range others {
		rest[i] = d.attempt(o)
	}
	type reply struct {
		res     engine.Result
		granted []bool
	}
	r, trip, err := Do(ctx, d.Client, d.Command("acquire", &q.Owner), func() (r reply, err error) {
		r.res, err = d.Client.s.acquire(first)
		d.Client.s.leaveMark(d.Name, r.res, polls)
		if err != nil || !r.res.Granted {
			return r, err
		}
		r.granted = make([]bool, len(rest))
		for i, a := range rest {
			other, err := d.Client.s.acquire(a)
			r.granted[i] = err == nil && other.Granted
			r.res.Free = other.Free
		}
		return r, nil
	})
	r.res.Sent, r.res.InDoubt = trip.Sent, trip.doubt
	return r.res, r.granted, err
}

// pollMark is how long the refusal of a request stays marked, because it polls.
func pollMark(q *engine.Request) time.Duration {
	if !q.MayQueue {
		return 0
	}
	return 2 * q.Terms.PollMax
}

// leaveMark marks a name whose lock was refused to a client that polls.
func (s *Server) leaveMark(name string, res engine.Result, lasts time.Duration) {
	if !res.Granted && lasts > 0 {
		s.polls[name] = time.Now().Add(lasts)
	}
}

// keep is how long the server remembers that a request was ended.
func (d *FakeDriver) keep(o *engine.Owner) time.Duration {
	switch {
	case o.InDoubt:
		return d.Client.LateCopies
	case o.Shared || d.NoLease:
		return time.Minute
	}
	return 0
}

func (d *FakeDriver) Rollback(ctx context.Context, q *engine.Request) error {
	key, id, shared, keep := d.key(&q.Owner), d.id(&q.Owner), q.Shared, d.keep(&q.Owner)
	_, _, err := Do(ctx, d.Client, d.Command("rollback", &q.Owner), func() (bool, error) {
		freed, lost := d.Client.s.end(d.Name, key, id, shared, true, keep)
		if freed {
			d.Client.s.publish(d.Name, nil)
		}
		return lost, nil
	})
	return err
}

func (d *FakeDriver) Release(
	ctx context.Context, o *engine.Ownership, left int, next engine.Next,
) (got engine.Released, err error) {
	if left == 0 {
		return d.free(ctx, o, next)
	}
	need, known := time.Duration(0), false
	if d.shortens {
		if need, known = o.LeaseFor(left); known && need == 0 {
			return d.free(ctx, o, engine.Next{})
		}
		defer func() { o.NoteChangeDoubt(failure.Of(err).InDoubt()) }()
	}
	id, change := d.id(&o.Owner), o.NextChange()
	got.Lost, _, err = Do(ctx, d.Client, d.Command("count", &o.Owner), func() (lost bool, err error) {
		h := d.Client.s.lock(d.Name).holders[id]
		if h == nil || !h.hasOwn() {
			return true, nil
		}
		if change > h.change {
			h.Count, h.change = left+len(h.shared), change
			if known {
				h.until = time.Now().Add(need)
			}
		}
		return false, nil
	})
	return got, err
}

func (d *FakeDriver) ReleaseAfter(
	ctx context.Context, o *engine.Ownership, rest time.Duration,
) (engine.Released, error) {
	key, id, shared := d.key(&o.Owner), d.id(&o.Owner), o.Shared
	got, trip, err := Do(ctx, d.Client, d.Command("release", &o.Owner), func() (engine.Released, error) {
		return d.Client.s.shorten(d.Name, key, id, shared, rest), nil
	})
	got.InDoubt = trip.doubt
	return got, err
}

// free ends o, and has the successor, if there is one, hold what o held.
func (d *FakeDriver) free(ctx context.Context, o *engine.Ownership, to engine.Next) (engine.Released, error) {
	successor := to.Successor
	op := "release"
	var next attempt
	if successor != nil {
		op = "handoff"
		next = attempt{
			name: d.Name, key: d.key(successor), id: d.id(successor), permits: int(successor.Permits), ttl: d.ttl(successor),
			tokens: int32(successor.Tokens),
		}
		if d.exclusive {
			next.permits = -1
		}
	}
	var own *placeID
	if to.Place.Number != 0 {
		own = &placeID{d.Name, d.Client, to.Place.Number}
	}
	s, key, id, shared, keep := d.Client.s, d.key(&o.Owner), d.id(&o.Owner), o.Shared, d.keep(&o.Owner)
	got, trip, err := Do(ctx, d.Client, d.Command(op, &o.Owner), func() (got engine.Released, err error) {
		freed, lost := s.end(d.Name, key, id, shared, false, keep)
		got.Lost = lost
		if freed && successor != nil {
			got.Successor, _ = s.acquire(next) // refused if the successor has been rolled back
			if got.Successor.Granted && own != nil {
				s.giveUpPlace(*own)
			}
		}
		if freed && !got.Successor.Granted {
			got.Receivers = s.publish(d.Name, own)
			got.Polled = to.AskPolls && time.Now().Before(s.polls[d.Name])
		}
		return got, nil
	})
	if got.Successor.Granted {
		got.Successor.Sent, got.Successor.InDoubt = trip.Sent, trip.doubt
	}
	got.InDoubt = trip.doubt && keep == 0
	return got, err
}

func (d *FakeDriver) Subscribe(hear func(engine.Message)) []engine.Subscription {
	return []engine.Subscription{d.Client.s.NewSubscription(d.Client, d.Name, hear)}
}

func (d *FakeDriver) SetCount(
	ctx context.Context, o *engine.Ownership, n int, ttl time.Duration,
) (time.Time, bool, error) {
	id, change := d.id(&o.Owner), o.NextChange()
	lost, trip, err := Do(ctx, d.Client, d.Command("nest", &o.Owner), func() (lost bool, err error) {
		h := d.Client.s.lock(d.Name).holders[id]
		if h == nil || !h.hasOwn() && n > 1 {
			return true, nil
		}
		if change > h.change {
			h.Count, h.change = n+len(h.shared), change
			h.keep(ttl)
		}
		return false, nil
	})
	return trip.Sent, lost, err
}

func (d *FakeDriver) Extend(ctx context.Context, o *engine.Ownership, ttl time.Duration) (time.Time, bool, error) {
	lost, trip, err := Do(ctx, d.Client, d.Command("extend", &o.Owner), func() (bool, error) {
		return !d.renew(d.id(&o.Owner), ttl), nil
	})
	return trip.Sent, lost, err
}

// renew extends the lease of a holder. mu is held.
func (d *FakeDriver) renew(id string, ttl time.Duration) bool {
	h := d.Client.s.lock(d.Name).holders[id]
	if h != nil {
		h.keep(ttl)
	}
	return h != nil
}

func (d *FakeDriver) Check(ctx context.Context, o *engine.Ownership) (lost bool, err error) {
	lost, _, err = Do(ctx, d.Client, d.Command("check", &o.Owner), func() (bool, error) {
		return d.Client.s.lock(d.Name).holders[d.id(&o.Owner)] == nil, nil
	})
	return lost, err
}

// renewBatch implements [watchdog.Renew].
func (c *Client) renewBatch(ctx context.Context, _ any, batch []watchdog.Renewal) ([]watchdog.State, error) {
	asks := append([]watchdog.Renewal(nil), batch...)
	first := asks[0].Keeper.(*engine.Ownership)
	cmd := Command{Op: "renew", Name: first.Resource().Name, ID: first.ID}
	states, _, err := Do(ctx, c, cmd, func() ([]watchdog.State, error) {
		states := make([]watchdog.State, len(asks))
		for i, ask := range asks {
			o := ask.Keeper.(*engine.Ownership)
			states[i] = watchdog.Lost
			if d := o.Resource().Driver.(*FakeDriver); d.renew(d.id(&o.Owner), ask.TTL) {
				states[i] = watchdog.Renewed
			}
		}
		return states, nil
	})
	return states, err
}
