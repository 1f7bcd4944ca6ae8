package primitives

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/scripts"
)

// Plain semaphores in Redis: Redisson's RSemaphore.
//
//	<name>                string: the number of permits that are left, below 0 after Add(-n)
//	redisson_sc:{<name>}  channel: that number, whenever permits come back
//	redisson_unlock_latch:{<name>}:epoch  a number that is new whenever this library sets the semaphore
//
// A permit has no id and no lease, so a hold is never renewed and never lost by time. What makes its
// commands safe to repeat is the memory of each acquisition alone: see rememberedTaken. The epoch tells a
// release whether the semaphore is still the one that the permits are from.

// Semaphore is a number of permits that all clients of its name share: Redisson's RSemaphore
// ([Client.Semaphore]). It is a handle: immutable, shareable, and made without I/O.
//
// Redis keeps a number and nothing else, so it does not know which clients have permits. If a process
// dies, its permits are missing until somebody adds as many, or deletes the semaphore and sets it anew.
// Where that matters, use [Client.PermitExpirableSemaphore].
//
// A hold's context ends with the release and with the caller's own context, but never by a loss, which
// nobody can see. [Hold.Check] and [Hold.Extend] return [ErrUnsupported].
type Semaphore struct {
	_ noCopy
	handle

	driver semaphoreDriver
}

// semaphoreChannel is the prefix of the channel that announces permits.
const semaphoreChannel = "redisson_sc"

// maxPermits is the largest number of permits: Redisson counts them with Java's int.
const maxPermits = 1<<31 - 1

// Semaphore returns the plain semaphore of that name. It has no permits until Init or Add sets them;
// earlier acquisitions wait for that. If they give up, their error says that there is no count.
func (c *Client) Semaphore(name string, opts ...Option) *Semaphore {
	s := &Semaphore{}
	s.init(c, "semaphore", name, opts)
	s.driver = semaphoreDriver{
		h: &s.handle, permits: s.raw, channel: prefixed(semaphoreChannel, s.raw), epoch: s.requestName(epochKey),
	}
	s.use(&s.driver, &engine.Traits{
		ManyHolders: true, HandsOff: true, ClientsTakeTurns: true,
		NameOwner: s.driver.nameOwner, Remembered: rememberedTaken,
	})
	return s
}

// Acquire acquires as many permits as [WithPermits] says (1 by default), all or none, and waits until
// there are enough. It gives up when ctx is done ([ErrNotAcquired] and ctx's cause) or when the limit of
// [WithWait] is over ([ErrNotAcquired]). On failure it has none: permits that an attempt may have taken
// are given back in the background.
//
// There is no queue among clients. A request for few permits does not wait behind a request for many,
// so the latter may wait for long. Semaphores do not nest: with the context of a hold, Acquire acquires
// further permits.
func (s *Semaphore) Acquire(ctx context.Context, opts ...Option) (*Hold, error) {
	return s.acquire(ctx, opts, false, maxPermits)
}

// TryAcquire makes one attempt. It is Acquire with [WithWait](0), whatever other scopes say.
func (s *Semaphore) TryAcquire(ctx context.Context, opts ...Option) (*Hold, error) {
	return s.acquire(ctx, opts, true, maxPermits)
}

// Do runs f with permits held, and gives them back when f returns or panics. It returns f's error, joined
// with [ErrLost] if the semaphore was gone when they were given back. Any other failure of the release
// goes to the observer, and the release is repeated in the background.
func (s *Semaphore) Do(ctx context.Context, f func(context.Context) error, opts ...Option) error {
	hold, err := s.Acquire(ctx, opts...)
	if err != nil {
		return err
	}
	return hold.do(ctx, f)
}

// Init sets the number of permits, 0 or more, unless the semaphore has been set before. It reports whether
// it did.
func (s *Semaphore) Init(ctx context.Context, n int) (created bool, err error) {
	answer, err := s.change(ctx, "init", semaphoreInit, s.driver.keys, outOfRange(0, n), n)
	return answer == 1, err
}

// Add adds delta permits. A negative delta takes permits away. The number that is left may then be below
// 0 until permits come back. Add sets a semaphore that was not set.
func (s *Semaphore) Add(ctx context.Context, delta int) error {
	_, err := s.change(ctx, "add", semaphoreAdd, s.driver.keys, outOfRange(-maxPermits, delta), delta)
	return err
}

// Drain removes all permits that are left, for good, and returns how many there were. A number below 0
// becomes 0, and the result is negative.
func (s *Semaphore) Drain(ctx context.Context) (int, error) {
	return s.change(ctx, "drain", semaphoreDrain, s.driver.keys, nil)
}

// Delete removes the semaphore, and reports whether there was one. Holders learn [ErrLost] when they give
// their permits back. Waiters wait for the next Init.
func (s *Semaphore) Delete(ctx context.Context) (bool, error) {
	answer, err := s.change(ctx, "delete", semaphoreDelete, s.driver.keys, nil)
	return answer == 1, err
}

// Info asks Redis how many permits are left. Available and Permits are both that number, because Redis
// does not know how many are taken. There are no holders in it, and its TTL is 0.
func (s *Semaphore) Info(ctx context.Context) (Info, error) {
	info := Info{Name: s.res.Name, Kind: s.res.Kind}
	err := s.call(ctx, "inspect", func() error {
		left, err := readNumber(s.c.run.Do(ctx, semaphoreInfo, []any{s.driver.permits}))
		info.Permits, info.Available = int(left), int(left)
		return err
	})
	return info, err
}

// outOfRange returns [ErrInvalid] if n is below least or above maxPermits; else nil.
func outOfRange(least, n int) error {
	if n < least || n > maxPermits {
		return invalid("%d (from %d to %d)", n, least, maxPermits)
	}
	return nil
}

// semaphoreDriver is the driver of RSemaphore. Like its handle it never changes. Its holds have no lease,
// so the engine never renews, extends or checks them.
type semaphoreDriver struct {
	engine.NoLease

	h       *handle
	permits string
	channel string   // announces permits
	epoch   wireName // key of the epoch
}

// epochKey ends the name of the key of a semaphore's epoch. The name has the prefix of remembered requests,
// so the same ACL rules cover it.
const epochKey = "epoch"

var (
	semaphoreAcquire = scripts.Load("semaphore/acquire")
	semaphoreRelease = scripts.Load("semaphore/release")
	semaphoreInit    = scripts.Load("semaphore/init")
	semaphoreAdd     = scripts.Load("semaphore/add")
	semaphoreDrain   = scripts.Load("semaphore/drain")
	semaphoreDelete  = scripts.Load("semaphore/delete")
	semaphoreInfo    = scripts.Load("semaphore/info")
)

// rememberedTaken is how long Redis remembers that an acquisition took its permits. Nothing in Redis
// distinguishes one permit from another, so an acquisition is known by this memory alone. A release
// gives back only what the memory says was taken, and ends the memory, so it may be repeated for as long.
// It also says from which semaphore of this name the permits are.
const rememberedTaken = 24 * time.Hour

// keys returns the keys of the scripts that change the number. request is the key that remembers.
func (d *semaphoreDriver) keys(request string) []any {
	return append(make([]any, 0, 5), d.permits, d.channel, request, &d.epoch) // with room for a successor's
}

// Subscribe implements [engine.Driver]. Redisson publishes on this channel too.
func (d *semaphoreDriver) Subscribe(_ *engine.Request, wake func(missed bool)) []engine.Subscription {
	return d.h.c.subscribe(d.channel, isNumber, wake)
}

// isNumber reports whether a payload announces permits: it is their number.
func isNumber(payload string) bool {
	_, err := strconv.ParseInt(payload, 10, 64)
	return err == nil
}

// nameOwner implements [engine.Traits].NameOwner: a permit has no id and no lease. The owner's number
// remains, and names the key that remembers the acquisition.
func (d *semaphoreDriver) nameOwner(o *engine.Owner) {
	o.Name("", false)
	o.TTL = maxDuration
}

// TryAcquire implements [engine.Driver] by semaphore/acquire. If a reply was lost, a copy finds the
// request's key, takes nothing more and is granted again. After a release or a rollback the same key
// makes it answer "over".
func (d *semaphoreDriver) TryAcquire(ctx context.Context, q *engine.Request) (engine.Result, error) {
	reply, err := d.h.c.confirm(ctx, semaphoreAcquire, d.keys(d.h.ownerKey(&q.Owner)),
		d.h.c.publish(), millis(rememberedTaken), q.Permits)
	if err != nil {
		return engine.Result{}, err
	}
	res, err := readPermits(reply)
	if answer, ok := reply.Value.([]any); ok && res.Granted {
		res.Token, err = readEpoch(answer, 2, err)
	}
	return res, err
}

// readEpoch reads the epoch, which is element i of the answer to a granted acquisition. The engine keeps it
// as the driver's token. err is the call's.
func readEpoch(answer []any, i int, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	list := elementsOf(answer[min(i, len(answer)):], nil)
	return list.number(), list.err
}

// errNoCount says why an acquisition waits although nobody has a permit.
var errNoCount = errors.New("the semaphore has no count: Init sets it")

// readPermits reads the reply of the scripts that acquire permits: {1 or 0 for granted, permits left, ms
// until the next lease ends}. The last element is there only for permits with leases that are refused;
// -1 means that no lease will end. {0} means that no number is set. "over" is a late copy of an acquisition
// that has ended.
func readPermits(reply scripts.Reply) (engine.Result, error) {
	res := engine.Result{Sent: reply.Sent, RetryAfter: -1, InDoubt: reply.Doubt}
	if reply.Value == "over" {
		return res, fmt.Errorf("this acquisition was given back already: %w", ErrReleased)
	}
	answer := elementsOf(reply.Value, nil)
	granted := answer.number() == 1
	if !granted && answer.err == nil && !answer.more() {
		res.Met = errNoCount
		return res, nil
	}
	res.Free = int(answer.number())
	if answer.more() && !granted {
		if ms := answer.number(); ms >= 0 {
			res.RetryAfter = fromMillis(min(ms, maxDuration.Milliseconds()))
		}
	}
	if res.Granted = granted && answer.err == nil; res.Granted {
		return res, reply.Unconfirmed
	}
	return res, answer.err
}

// Rollback implements [engine.Driver] by semaphore/release. The last argument, 1, makes it give back only
// what the memory says was taken. If nothing was, the memory stops late copies of the attempt.
func (d *semaphoreDriver) Rollback(ctx context.Context, q *engine.Request) error {
	_, err := d.h.c.run.Do(ctx, semaphoreRelease, d.keys(d.h.ownerKey(&q.Owner)),
		d.h.c.publish(), d.h.c.rememberFor(&q.Owner), q.Permits, 1, 0)
	return err
}

// Release implements [engine.Driver] by semaphore/release. Lost: the semaphore is gone, or is another one
// by now. The successor's permits go to it directly; the script adds the rest to the number and publishes
// it. [readPermitsReleased] reads the reply.
//
// After a day Redis has forgotten what o took. Then the script must give the permits back without asking
// its memory, and remember that: IsRemembered says which is the case.
func (d *semaphoreDriver) Release(
	ctx context.Context, o *engine.Ownership, _ int, next engine.Next,
) (engine.Released, error) {
	keys := d.keys(d.h.ownerKey(&o.Owner))
	isRemembered := o.IsRemembered()
	memoryTTL := d.h.c.rememberFor(&o.Owner)
	if !isRemembered {
		memoryTTL = d.h.c.remembered
	}
	args := append(make([]any, 0, 7), d.h.c.publish(), memoryTTL, o.Permits, flag(isRemembered), o.Token)
	if s := next.Successor; s != nil {
		keys = append(keys, d.h.ownerKey(s))
		args = append(args, s.Permits, millis(rememberedTaken))
	}
	reply, err := d.h.c.run.Do(ctx, semaphoreRelease, keys, args...)
	got, err := readPermitsReleased(reply, err)
	if answer, ok := reply.Value.([]any); ok {
		got.Granted.Token, err = readEpoch(answer, 1, err)
	}
	return got, err
}

// readPermitsReleased reads the reply of the scripts that release permits. It is as [readReleased] says, but
// the element for a successor is the number of permits left.
func readPermitsReleased(reply scripts.Reply, err error) (engine.Released, error) {
	got, err := readReleased(reply, err)
	got.Granted.Free, got.Granted.Token = int(got.Granted.Token), 0
	return got, err
}
