package primitives

import (
	"context"
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
// A permit has no id and no lease, so a hold is never renewed and never lost by time. Only the
// memory of each acquisition makes its commands safe to repeat: see rememberedTaken. The epoch
// tells a release whether the semaphore is still the one that the permits came from.

// Semaphore is a number of permits that all clients of its name share: Redisson's RSemaphore
// ([Client.Semaphore]). It is a handle: immutable, shareable, and made without I/O.
//
// Redis keeps a number and nothing else, so it does not know which clients have permits. If a
// process dies, its permits are missing until somebody adds as many, or deletes the semaphore and
// sets it again. If that matters, use [Client.PermitExpirableSemaphore].
//
// A hold's context ends with the release and with the caller's own context, but never by a loss,
// because Redis does not know the holders. [Hold.Check] and [Hold.Extend] return [ErrUnsupported].
type Semaphore struct {
	_ noCopy
	handle

	driver semaphoreDriver
}

// semaphoreChannel is the prefix of the channel that announces permits.
const semaphoreChannel = "redisson_sc"

// maxPermits is the largest number of permits: Redisson counts them with Java's int.
const maxPermits = 1<<31 - 1

// Semaphore returns the plain semaphore of that name. It has no permits until Init or Add sets
// them; earlier acquisitions wait for that. If they give up, their error says that there is no
// count.
func (c *Client) Semaphore(name string, opts ...Option) *Semaphore {
	s := &Semaphore{}
	s.init(c, "semaphore", name, opts)
	s.keys.Channel = s.nextName(semaphoreChannel, "")
	s.keys.KindKeys = &scripts.KindKeys{EpochKey: s.nextName(requestPrefix, ":"+epochKey)}
	s.driver.h = &s.handle
	s.maxPermits = maxPermits
	s.useHolds(&s.driver, &engine.Traits{
		ManyHolders: true, HandsOff: true,
		NameOwner: s.driver.nameOwner, Remembered: rememberedTaken,
	})
	return s
}

// Acquire acquires as many permits as [WithPermits] says (1 by default), all or none, and waits
// until there are enough. It gives up when ctx is done ([ErrNotAcquired] and ctx's cause) or when
// the limit of [WithWait] is over ([ErrNotAcquired]). On failure it has none: permits that an
// attempt may have taken are released in the background.
//
// There is no queue among clients. A request for few permits does not wait behind a request for
// many, so the latter may wait for long. Semaphores do not nest: with the context of a hold,
// Acquire acquires further permits.
func (s *Semaphore) Acquire(ctx context.Context, opts ...Option) (*Hold, error) {
	return s.acquire(ctx, opts, waitAsOptionsSay)
}

// Init sets the number of permits, 0 or more, unless the semaphore has been set before. It reports
// whether it did.
func (s *Semaphore) Init(ctx context.Context, n int) (created bool, err error) {
	return isOne(s.driver.change(ctx, "init", outOfRange(0, n), scripts.SemaphoreInit, n))
}

// Add adds delta permits. A negative delta takes permits away. The number that is left may then be
// below 0 until permits come back. A number beyond Java's int, in either direction, is
// [ErrInvalid], and nothing changes. Add sets a semaphore that was not set.
func (s *Semaphore) Add(ctx context.Context, delta int) error {
	_, err := s.driver.change(ctx, "add", outOfRange(-maxPermits, delta), scripts.SemaphoreAdd, delta)
	return err
}

// Drain removes all permits that are left, for good, and returns how many there were. A number
// below 0 becomes 0, and the result is negative.
func (s *Semaphore) Drain(ctx context.Context) (int, error) {
	were, err := s.driver.change(ctx, "drain", nil, scripts.SemaphoreDrain, 0)
	return int(were.Number), err
}

// Delete removes the semaphore, and reports whether there was one. Holders get [ErrLost] when they
// release their permits. Waiters wait for the next Init.
func (s *Semaphore) Delete(ctx context.Context) (bool, error) {
	return isOne(s.driver.change(ctx, "delete", nil, scripts.SemaphoreDelete, 0))
}

// Info asks Redis how many permits are left. Available and Permits are both that number, because
// Redis does not know how many are taken. It lists no holders, and its TTL is 0.
func (s *Semaphore) Info(ctx context.Context) (Info, error) {
	return s.inspect(ctx, func() (Info, error) {
		left, err := scripts.SemaphoreInfo{Keys: &s.keys}.Do(ctx, s.c.calls)
		return Info{Permits: int(left.Number), Available: int(left.Number)}, err
	})
}

// outOfRange returns [ErrInvalid] if n is below least or above maxPermits, and nil otherwise.
func outOfRange(least, n int) error {
	if n < least || n > maxPermits {
		return invalid("%d (from %d to %d)", n, least, maxPermits)
	}
	return nil
}

// semaphoreDriver is the driver of RSemaphore. Its holds have no lease, so the engine never renews,
// extends or checks them.
type semaphoreDriver struct{ base }

// epochKey ends the name of the key of a semaphore's epoch. The name has the prefix of remembered
// requests, so the same ACL rules cover it.
const epochKey = "epoch"

// rememberedTaken is how long Redis remembers that an acquisition took its permits. Nothing in
// Redis distinguishes one permit from another, so an acquisition is known by this memory alone. A
// release gives back only what the memory says was taken, and ends the memory, so it may be
// repeated for as long. It also says which semaphore of this name the permits came from.
const rememberedTaken = 24 * time.Hour

// nameOwner implements [engine.Traits].NameOwner. A permit has no id and no lease. The owner's
// number remains, and names the key that remembers the acquisition.
func (d *semaphoreDriver) nameOwner(o *engine.Owner) {
	o.SetID("", false)
	o.TTL = maxDuration
}

// TryAcquire implements [engine.Driver] by semaphore/acquire. If a reply was lost, a copy finds the
// request's key, takes nothing more and is granted again. After a release or a rollback the same
// key makes it answer "over".
func (d *semaphoreDriver) TryAcquire(ctx context.Context, q *engine.Request) (engine.Result, error) {
	call := scripts.SemaphoreAcquire{
		Keys: &d.h.keys, MemoryKey: d.h.ownerKey(&q.Owner), MemoryTTL: rememberedTaken, Wanted: int64(q.Permits),
	}
	if q.MayQueue {
		call.Mark, call.MarkTTL = d.pollMark(q)
	}
	return acquiredResult(call.Do(ctx, d.h.c.confirmed))
}

// Rollback implements [engine.Driver] by semaphore/release, which gives back only what the memory
// says was taken. If nothing was, the memory stops late copies of the attempt.
func (d *semaphoreDriver) Rollback(ctx context.Context, q *engine.Request) error {
	_, err := scripts.SemaphoreRelease{
		Keys: &d.h.keys, MemoryKey: d.h.ownerKey(&q.Owner), MemoryTTL: d.h.c.rememberFor(&q.Owner),
		Permits: int64(q.Permits), OnlyIfAcquired: true, RemembersRelease: true,
	}.Do(ctx, d.h.c.calls)
	return err
}

// Release implements [engine.HoldDriver] by semaphore/release. Lost means that the semaphore is
// gone, or is another one by now. The permits of the successor go to it directly. The script adds
// the others to the number and publishes it.
//
// The release ends the memory of the acquisition, so a copy finds none, and gives nothing back. If
// a repetition gets that answer, the engine assumes that the first copy has released: see
// [engine.Released].
//
// After a day Redis has forgotten what o took. The script must then give the permits back without
// asking its memory, and remember that: IsRemembered says which is the case.
func (d *semaphoreDriver) Release(
	ctx context.Context, o *engine.Ownership, _ int, next engine.Next,
) (engine.Released, error) {
	call := scripts.SemaphoreRelease{
		Keys: &d.h.keys, MemoryKey: d.h.ownerKey(&o.Owner), MemoryTTL: d.h.c.rememberFor(&o.Owner),
		Permits: int64(o.Permits), OnlyIfAcquired: o.IsRemembered(), KnownEpoch: o.Token,
	}
	call.RemembersRelease = o.InDoubt || !call.OnlyIfAcquired
	if !call.OnlyIfAcquired {
		call.MemoryTTL = d.h.c.run.Memory()
	}
	call.SuccessorMemory = d.successorKey(next)
	if s := next.Successor; s != nil {
		call.SuccessorPermits = int64(s.Permits)
		call.SuccessorMemoryTTL = rememberedTaken
	}
	reply, err := call.Do(ctx, d.h.c.calls)
	got, err := releasedResult(reply.Released, err)
	got.InDoubt = reply.Doubt && !reply.Gone
	got.Successor.Token = reply.Epoch
	return got, err
}
