package primitives

import (
	"context"
	"encoding/hex"
	"strconv"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/scripts"
)

// Semaphores with leases in Redis: Redisson's RPermitExpirableSemaphore.
//
//	<name>                string: the number of free permits
//	{<name>}:timeout      sorted set: ids of taken permits, by the ends of their leases, ms since 1970
//	redisson_sc:{<name>}  channel: a number, whenever permits become free
//
// A permit's id is 16 bytes, raw in Redis and hexadecimal in the API. A permit whose lease has ended
// stays in the set until an acquisition collects it.

// PermitExpirableSemaphore is a number of permits that all clients of its name share. Each permit has an
// id and a lease of its own. It is Redisson's RPermitExpirableSemaphore
// ([Client.PermitExpirableSemaphore]), and a handle: immutable, shareable, and made without I/O.
//
// Permits are renewed while they are held ([WithWatchdog]), or have a fixed lease ([WithLease]). The
// permits of a process that died come back when their lease ends. The server's clock alone decides when
// that is.
//
// A hold of several permits has one id: the ids of its permits, comma-separated. They are released,
// renewed and lost together.
type PermitExpirableSemaphore struct {
	_ noCopy
	handle

	driver permitDriver
}

// PermitExpirableSemaphore returns the semaphore of that name whose permits have leases. It has no permits
// until Init, Add or Resize sets them; earlier acquisitions wait for that. If they give up, their error says
// that there is no count.
func (c *Client) PermitExpirableSemaphore(name string, opts ...Option) *PermitExpirableSemaphore {
	s := &PermitExpirableSemaphore{}
	s.init(c, permitsKind, name, opts)
	s.driver = permitDriver{
		h: &s.handle, free: s.raw, channel: prefixed(semaphoreChannel, s.raw), leases: suffixed(s.raw, "timeout"),
	}
	s.use(&s.driver, &engine.Traits{
		Leased: true, ManyHolders: true, HandsOff: true, ClientsTakeTurns: true, NameOwner: s.driver.nameOwner,
	})
	return s
}

// Acquire acquires as many permits as [WithPermits] says (1 by default, at most 100,000), all or none,
// and waits until there are enough. It gives up when ctx is done ([ErrNotAcquired] and ctx's cause) or
// when the limit of [WithWait] is over ([ErrNotAcquired]). On failure it has none: permits that an
// attempt may have taken are given back in the background.
//
// There is no queue among clients. A request for few permits does not wait behind a request for many,
// so the latter may wait for long. Semaphores do not nest.
func (s *PermitExpirableSemaphore) Acquire(ctx context.Context, opts ...Option) (*Hold, error) {
	return s.acquire(ctx, opts, false, maxPermitIDs)
}

// TryAcquire makes one attempt. It is Acquire with [WithWait](0), whatever other scopes say.
func (s *PermitExpirableSemaphore) TryAcquire(ctx context.Context, opts ...Option) (*Hold, error) {
	return s.acquire(ctx, opts, true, maxPermitIDs)
}

// Do runs f with permits held, and with the hold's context. It gives the permits back when f returns or
// panics. It returns f's error, joined with [ErrLost] if the permits were lost before f ended.
// Any other failure of the release goes to the observer.
func (s *PermitExpirableSemaphore) Do(ctx context.Context, f func(context.Context) error, opts ...Option) error {
	hold, err := s.Acquire(ctx, opts...)
	if err != nil {
		return err
	}
	return hold.do(ctx, f)
}

// Adopt takes over the permits of these ids (comma-separated, all or none) under new ids. Use it to hand
// permits from one process to another. They are renewed, or have a lease, from now on. The former holder
// learns [ErrLost], as with [Lock.ForceRelease]. Adopt returns [ErrNotHeld] if one of the permits is not
// held, and [ErrInvalid] if id has another form than [Hold.ID] returns.
func (s *PermitExpirableSemaphore) Adopt(ctx context.Context, id string, opts ...Option) (*Hold, error) {
	set, err := s.with(opts)
	if err != nil {
		return nil, s.failed("adopt", err)
	}
	var hold *Hold
	err = s.call(ctx, "adopt", func() error {
		adopted, err := s.adopt(ctx, id, set.Terms)
		s.res.EmitAcquired(ctx, adopted, err)
		if err == nil {
			hold = newHold(adopted)
		}
		return err
	})
	return hold, err
}

// adopt runs permitsemaphore/adopt: 1, or 0 if not all old ids are held. A copy finds the new ids in
// place and gets the same answer; after their release it finds the request's key, and takes nothing.
func (s *PermitExpirableSemaphore) adopt(ctx context.Context, id string, terms engine.Terms) (*engine.Hold, error) {
	if s.c.core.IsClosing() {
		return nil, ErrClosed
	}
	raw, err := rawPermits(id)
	if err != nil {
		return nil, err
	}
	terms.Permits = len(raw) / permitBytes
	q := s.res.NewRequest(&terms)
	reply, err := s.c.confirm(ctx, permitsAdopt, s.driver.keys(s.ownerKey(&q.Owner)),
		s.c.publish(), raw, rawOf(q.ID), millis(q.TTL))
	q.InDoubt = q.InDoubt || reply.Doubt
	lost, err := readLost(reply, err)
	switch {
	case lost:
		err = ErrNotHeld
	case err == nil:
		err = reply.Unconfirmed
	}
	s.announceTakeover(ctx, err, splitPermits(id)...)
	if err != nil {
		return nil, err // an unknown outcome is left to the lease: the former holder may still work
	}
	return s.res.Adopted(ctx, q, reply.Sent)
}

// ReleaseID gives back the permits of these ids (comma-separated, all or none; an id that is named twice
// counts once). Use it to free permits that another process, or an earlier life of this one, has left
// behind. It returns [ErrNotHeld] if one of the permits is not held.
func (s *PermitExpirableSemaphore) ReleaseID(ctx context.Context, id string) error {
	raw, wrong := rawPermits(id)
	held, err := s.change(ctx, "release id", permitsRelease, s.driver.keys, wrong, raw, 1, 0)
	if err == nil && held == 0 {
		err = s.failed("release id", ErrNotHeld)
	}
	if s.c.core.Enter() == nil { // the call in change has ended; Close must wait for this one too
		defer s.c.core.Leave()
		s.announceTakeover(ctx, err, splitPermits(id)...)
	}
	return err
}

// Init sets the number of permits, 0 or more, unless the semaphore has been set before. It reports whether
// it did.
func (s *PermitExpirableSemaphore) Init(ctx context.Context, n int) (created bool, err error) {
	answer, err := s.change(ctx, "init", permitsInit, s.driver.keys, outOfRange(0, n), n)
	return answer == 1, err
}

// Add adds delta permits. A negative delta takes permits away. The number that is free may then be below
// 0 until permits come back. Add sets a semaphore that was not set.
func (s *PermitExpirableSemaphore) Add(ctx context.Context, delta int) error {
	_, err := s.change(ctx, "add", permitsAdd, s.driver.keys, outOfRange(-maxPermits, delta), delta)
	return err
}

// Resize sets the number of permits, free and taken, to n: 0 or more. It takes no permit from its holder:
// with more than n taken, the number that is free is below 0 until enough have come back. It sets a
// semaphore that was not set.
func (s *PermitExpirableSemaphore) Resize(ctx context.Context, n int) error {
	_, err := s.change(ctx, "resize", permitsResize, s.driver.keys, outOfRange(0, n), n)
	return err
}

// Delete removes the semaphore, and reports whether there was one. Taken permits are lost. Waiters wait for
// the next Init.
func (s *PermitExpirableSemaphore) Delete(ctx context.Context) (bool, error) {
	answer, err := s.change(ctx, "delete", permitsDelete, s.driver.keys, nil)
	return answer == 1, err
}

// Info asks Redis how many permits there are, how many are free, and who holds the others. Its TTL is the
// longest of the holders'.
func (s *PermitExpirableSemaphore) Info(ctx context.Context) (Info, error) {
	info := Info{Name: s.res.Name, Kind: s.res.Kind}
	err := s.call(ctx, "inspect", func() error {
		reply, err := s.c.run.Do(ctx, permitsInfo, s.driver.keys(s.requestKey("")))
		answer := elementsOf(reply.Value, err)
		now, free := answer.number(), int(answer.number())
		info.Holders = readPermitHolders(now, &answer)
		if answer.err != nil {
			info.Holders = nil
			return answer.err
		}
		info.Permits, info.Available = free+len(info.Holders), free
		s.c.nameClients(ctx, info.Holders, nil)
		for _, holder := range info.Holders {
			if holder.TTL < 0 || info.TTL < 0 {
				info.TTL = -1
			} else {
				info.TTL = max(info.TTL, holder.TTL)
			}
		}
		return nil
	})
	return info, err
}

// never is Redisson's score for a permit whose lease does not end. This library makes no such permits.
const never = 922337203685477

// readPermitHolders reads ids, and the times at which their leases end. All times are the server's, in ms
// since 1970, so the client's clock has no part in the TTLs.
func readPermitHolders(now int64, answer *elements) []Holder {
	holders := make([]Holder, 0, len(answer.rest)/2)
	for answer.more() {
		id, score := answer.text(), answer.text()
		ends, _ := strconv.ParseFloat(score, 64)
		ttl := time.Duration(-1)
		if ends != never {
			// A float, because the score of another program may be beyond any integer.
			ttl = fromMillis(int64(min(ends-float64(now), float64(maxDuration.Milliseconds()))))
		}
		holders = append(holders, Holder{ID: hex.EncodeToString([]byte(id)), Count: 1, TTL: ttl})
	}
	return holders
}

// permitDriver is the driver of RPermitExpirableSemaphore. It never changes after its constructor. An id
// belongs to one permit, so a copy of a release cannot free another one: it finds the ids gone. The memory
// of a release makes its repetitions give the first answer. It lasts longer where a copy of the acquisition
// may still arrive, and stops that.
type permitDriver struct {
	h       *handle
	free    string
	channel string // announces permits
	leases  string
}

var (
	permitsAcquire = scripts.Load("permitsemaphore/acquire")
	permitsRelease = scripts.Load("permitsemaphore/release")
	permitsRenew   = scripts.Load("permitsemaphore/renew")
	permitsCheck   = scripts.Load("permitsemaphore/check")
	permitsAdopt   = scripts.Load("permitsemaphore/adopt")
	permitsInit    = scripts.Load("permitsemaphore/init")
	permitsAdd     = scripts.Load("permitsemaphore/add")
	permitsResize  = scripts.Load("permitsemaphore/resize")
	permitsDelete  = scripts.Load("permitsemaphore/delete")
	permitsInfo    = scripts.Load("permitsemaphore/info")
)

// Ended leases are collected in slices, so that no script blocks Redis for long.
const (
	maxCollected   = 1000   // leases that one script collects
	maxCollections = 10_000 // scripts that one attempt sends for that; the next attempt goes on
)

// keys returns the keys of all scripts but the renewal. request is the key that remembers.
func (d *permitDriver) keys(request string) []any {
	return []any{d.free, d.channel, request, d.leases}
}

// Subscribe implements [engine.Driver]. The channel is that of a plain semaphore of the same name.
func (d *permitDriver) Subscribe(_ *engine.Request, wake func(missed bool)) []engine.Subscription {
	return d.h.c.subscribe(d.channel, isNumber, wake)
}

// nameOwner implements [engine.Traits].NameOwner: each permit of an acquisition gets a new random id.
func (d *permitDriver) nameOwner(o *engine.Owner) {
	o.Name(newPermits(d.h.c.presence.raw, o.Permits), false)
}

// TryAcquire implements [engine.Driver] by permitsemaphore/acquire, which also collects ended leases.
// [readPermits] lists the replies. RetryAfter 0 means that there are more to collect, so it asks again
// at once.
//
// A copy finds the ids among the leases, and is granted again. After a release or a rollback it finds
// the request's key, and takes nothing. InDoubt covers all rounds: a copy of any of them may arrive.
func (d *permitDriver) TryAcquire(ctx context.Context, q *engine.Request) (engine.Result, error) {
	for round, inDoubt := 1, false; ; round++ {
		reply, err := d.h.c.confirm(ctx, permitsAcquire, d.keys(d.h.ownerKey(&q.Owner)),
			d.h.c.publish(), maxCollected, rawOf(q.ID), millis(q.TTL))
		if err != nil {
			return engine.Result{InDoubt: inDoubt}, err
		}
		res, err := readPermits(reply)
		inDoubt = inDoubt || res.InDoubt
		res.InDoubt = inDoubt
		if err != nil || res.Granted || res.RetryAfter != 0 || ctx.Err() != nil || round == maxCollections {
			return res, err
		}
		// More leases have ended than one script collects. Each round leaves fewer of them.
	}
}

// Rollback implements [engine.Driver]: a release of whichever of the ids are there. Its memory stops late
// copies of the attempt.
func (d *permitDriver) Rollback(ctx context.Context, q *engine.Request) error {
	_, err := d.release(ctx, &q.Owner, engine.Next{})
	return err
}

// Release implements [engine.Driver]. Lost: not all of o's permits were held. The others are given back.
func (d *permitDriver) Release(
	ctx context.Context, o *engine.Ownership, _ int, next engine.Next,
) (engine.Released, error) {
	return d.release(ctx, &o.Owner, next)
}

// release runs permitsemaphore/release for all permits of o. The 0 among the arguments allows it to
// release the remaining permits if some are lost. ReleaseID passes 1: all or none. If there is a successor,
// the script also gives the successor's ids as many permits as it asks for. If the minimum hold is not over, the
// permits stay taken for the rest of it. [readPermitsReleased] reads the reply.
func (d *permitDriver) release(ctx context.Context, o *engine.Owner, next engine.Next) (engine.Released, error) {
	c := d.h.c
	keys := d.keys(d.h.ownerKey(o))
	args := []any{c.publish(), c.rememberFor(o), rawOf(o.ID), 0, millis(next.Rest)}
	if successor := next.Successor; successor != nil {
		keys = append(keys, d.h.ownerKey(successor))
		args = append(args, rawOf(successor.ID), millis(successor.TTL))
	}
	return readPermitsReleased(c.run.Do(ctx, permitsRelease, keys, args...))
}

// SetCount is not called: permits do not nest.
func (d *permitDriver) SetCount(context.Context, *engine.Ownership, int, time.Duration) (time.Time, bool, error) {
	return time.Time{}, false, ErrUnsupported
}

// Extend implements [engine.Driver] by permitsemaphore/renew, with a batch of one. No lease is shortened.
func (d *permitDriver) Extend(
	ctx context.Context, o *engine.Ownership, ttl time.Duration,
) (time.Time, bool, error) {
	keys := []any{d.free, d.leases}
	return readRenewal(d.h.c.confirmChange(ctx, permitsRenew, keys, rawOf(o.ID), millis(ttl)))
}

// Check implements [engine.Driver] by permitsemaphore/check: are all of o's permits held? The script
// writes nothing; the request's key only keeps the other keys in their places.
func (d *permitDriver) Check(ctx context.Context, o *engine.Ownership) (lost bool, err error) {
	return readLost(d.h.c.run.Do(ctx, permitsCheck, d.keys(d.h.ownerKey(&o.Owner)), rawOf(o.ID)))
}

// renewScript implements [renewer].
func (d *permitDriver) renewScript(bool) *scripts.Script { return permitsRenew }

// renewal implements [renewer]: two keys and two arguments for each hold, however many permits it has.
func (d *permitDriver) renewal(
	keys, args []any, o *engine.Ownership, ttl time.Duration,
) ([]any, []any) {
	return append(keys, d.free, d.leases), append(args, rawOf(o.ID), d.h.ttlArg(ttl))
}

// probe implements [renewer]. It looks for the first permit only: Redis forgets all of them or none.
func (d *permitDriver) probe(o *engine.Ownership) []any {
	raw := rawOf(o.ID)
	return []any{"zscore", d.leases, raw[:min(len(raw), 16)]}
}
