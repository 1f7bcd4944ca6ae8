package primitives

import (
	"context"
	"fmt"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/scripts"
)

// The public methods of all locks: plain, fenced, fair, both sides of a read-write lock, and joint
// locks. The kinds differ in their drivers (mutex.go, fairlock.go, rwlock.go) and, for joint locks,
// in [jointLock]. The methods of semaphores are in their own files.

// Lock is mutual exclusion among all clients that use its name: [Client.Lock]. The same type serves
// the other kinds of lock. It is a handle: immutable, shareable, and made without I/O.
//
// While a hold is valid, nobody else holds the name on that Redis, in Go or in Java. Three things
// are not promised:
//
//   - A Redis may forget a lock: somebody deletes its key, or it restarts without its data, or
//     evicts keys. The holder learns of that with its next renewal, and somebody else may hold the
//     lock meanwhile.
//   - A Redis that fails over to a replica may forget a lock that was not replicated yet. See
//     [WithReplicas].
//   - A critical section may go on after its hold was lost. Only a fencing token can stop it
//     ([Client.FencedLock]), checked by the resource that it writes to.
//
// Errors are an [*Error], which names the operation and the lock.
type Lock struct {
	_ noCopy
	handle
}

// lockDriver is the driver of a lock that is not joint.
type lockDriver interface {
	takeableDriver
	// forceRelease frees the lock, and returns the ids that held it.
	forceRelease(ctx context.Context, q *engine.Request) (scripts.IDs, error)
	// info reads the holders, and a fair lock's waiters. The caller fills in names and kind.
	info(ctx context.Context) (Info, error)
}

// useLock is [handle.useLeases] for a lock that is not joint.
func (l *Lock) useLock(driver lockDriver, traits *engine.Traits) { l.useLeases(driver, traits) }

// driver returns the driver of a lock that is not joint.
func (l *Lock) driver() lockDriver { return l.res.Driver.(lockDriver) }

// Acquire acquires the lock, and waits for it if somebody else holds it. It gives up when ctx is
// done ([ErrNotAcquired] and ctx's cause) or when the limit of [WithWait] is over
// ([ErrNotAcquired]). On failure nothing is held and nothing stays queued: what an attempt may have
// taken is rolled back in the background.
//
// If ctx carries a hold of the same lock, the new hold nests: it has the same id, and the count
// grows by one. The context of a hold ([Hold.Context]) carries it, as do contexts derived from it.
//
// If Redis does not answer, the error is [ErrUnavailable] with the reason. A transport error of the
// first attempt is returned at once. While Acquire waits, it retries; if Redis has refused before,
// the error matches [ErrNotAcquired] too. Errors of Redis itself, such as WRONGTYPE or NOPERM, end
// the waiting.
func (l *Lock) Acquire(ctx context.Context, opts ...Option) (*Hold, error) {
	return l.acquire(ctx, opts, waitAsOptionsSay)
}

// HoldFrom returns the nearest live hold of this lock that ctx carries, or nil if there is none.
// The function [HoldFrom] finds a hold of any primitive.
func (l *Lock) HoldFrom(ctx context.Context) *Hold {
	return carriedHold(engine.HoldFrom(ctx, &l.res))
}

// Adopt takes over the hold of id, with all its counts, under a new id. Use it to hand a lock from
// one process to another: the first one calls [Hold.Detach] and passes on the id. The lock is
// renewed, or has a lease, from now on, and one Release releases all counts. A former holder that
// has not detached gets [ErrLost], as with ForceRelease.
//
// Adopt returns [ErrNotHeld] if id holds nothing. If Redis does not answer, the lock may stay taken
// until its lease ends: it is not freed, because the former holder's critical section may still
// run.
func (l *Lock) Adopt(ctx context.Context, id string, opts ...Option) (*Hold, error) {
	return l.adopt(ctx, id, opts)
}

// ReleaseID releases one count of the holder of id. Use it to free a lock that another process, or
// an earlier life of this one, has left behind. Counts of acquisitions with [WithOwner] go first,
// the oldest before the others. The holder gets [ErrLost] if that was its last count, as with
// ForceRelease. ReleaseID returns [ErrNotHeld] if id holds nothing.
func (l *Lock) ReleaseID(ctx context.Context, id string) error {
	return l.releaseID(ctx, id)
}

// ForceRelease frees the lock, whoever holds it, and reports whether anybody did. It does not stop
// the holder's critical section: that must watch its context.
//
// The holder gets [ErrLost], within 200 ms if it has held for longer than a second and its client
// receives messages. That is so with a fixed lease, too. Otherwise it learns of the loss at its
// next renewal, Check or Release. Joint locks return [ErrUnsupported].
func (l *Lock) ForceRelease(ctx context.Context) (bool, error) {
	var former scripts.IDs
	err := l.call(ctx, "force release", func() (err error) {
		if l.joint != nil {
			return fmt.Errorf("%w: free each of its locks", ErrUnsupported)
		}
		former, err = l.driver().forceRelease(ctx, l.res.NewRequest(&l.settings.Terms))
		l.announceTakeover(ctx, err, former.IDs...)
		return err
	})
	return former.Found, err
}

// Info asks Redis who holds the lock, and who waits if it is a fair lock. The names of the holders'
// clients are best effort. Joint locks return [ErrUnsupported].
func (l *Lock) Info(ctx context.Context) (Info, error) {
	return l.inspect(ctx, func() (Info, error) {
		if l.joint != nil {
			return Info{}, fmt.Errorf("%w: ask each of its locks", ErrUnsupported)
		}
		return l.driver().info(ctx)
	})
}
