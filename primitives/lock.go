package primitives

import (
	"context"
	"strconv"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
)

// Lock is mutual exclusion among all clients that use its name: [Client.Lock]. The same type serves the
// other kinds of lock. It is a handle: immutable, shareable, and made without I/O.
//
// While a hold is valid nobody else holds the name on that Redis, in Go or in Java. Two things are not
// promised. A Redis that fails over to a replica may forget a lock that was not replicated yet: see
// [WithReplicas]. A critical section that goes on although its hold is lost is stopped by nothing but a
// fencing token ([Client.FencedLock]), checked by the resource that it writes to.
type Lock struct {
	_ noCopy
	handle

	driver lockDriver
	joint  *jointLock // of a multi lock or red lock; else nil
}

// lockDriver is what drivers of locks can do beside acquiring and releasing.
type lockDriver interface {
	engine.Driver
	// adopt puts the id of q in the place of a holder's, with the holder's counts; 0: it holds nothing.
	adopt(ctx context.Context, id string, q *engine.Request) (sent time.Time, counts int, err error)
	// releaseID gives back one count of a holder. Redis remembers it by q.
	releaseID(ctx context.Context, id string, q *engine.Request) (held bool, err error)
	// forceRelease frees the lock, and returns the ids that held it.
	forceRelease(ctx context.Context, q *engine.Request) (ids []string, held bool, err error)
	info(ctx context.Context) (Info, error)
}

// useLock sets the driver.
func (l *Lock) useLock(driver lockDriver, traits engine.Traits, keys []any) {
	l.driver = driver
	l.use(driver, traits, keys)
}

// Acquire waits until the lock is held. It gives up when ctx is done ([ErrNotAcquired] and ctx's cause)
// or when the limit of [WithWait] is over ([ErrNotAcquired]). On failure nothing is held and nothing
// stays queued. If ctx carries a hold of the same lock, the new hold nests: it has the same id, and the
// count grows by one. Acquire returns a transport error of its first attempt; while it waits it retries
// after transport errors.
func (l *Lock) Acquire(ctx context.Context, opts ...Option) (*Hold, error) {
	return l.acquire(ctx, opts, false, 0)
}

// TryAcquire makes one attempt. It is Acquire with [WithWait](0), whatever other scopes say.
func (l *Lock) TryAcquire(ctx context.Context, opts ...Option) (*Hold, error) {
	return l.acquire(ctx, opts, true, 0)
}

// Do runs f with the lock held, and with the hold's context. It releases the lock when f returns, fails
// or panics. It returns f's error, joined with [ErrLost] if the lock was lost before f ended. Any other
// failure of the release goes to the observer.
func (l *Lock) Do(ctx context.Context, f func(context.Context) error, opts ...Option) error {
	hold, err := l.Acquire(ctx, opts...)
	if err != nil {
		return err
	}
	return hold.do(ctx, f)
}

// HoldFrom returns the nearest live hold of this lock that ctx carries; nil if there is none.
func (l *Lock) HoldFrom(ctx context.Context) *Hold {
	if l.res.Key == nil {
		return nil
	}
	hold, handle := engine.HoldFrom(ctx, l.res.Key)
	if hold == nil {
		return nil
	}
	if h, ok := handle.(*Hold); ok {
		return h
	}
	return &Hold{hold: hold} // a member of a joint lock
}

// Adopt takes over what the holder of id holds, with all its counts, under a new id. Use it to hand a
// lock from one process to another. The lock is renewed, or has a lease, from now on. The former holder
// learns [ErrLost], as with ForceRelease. [ErrNotHeld] if id holds nothing.
func (l *Lock) Adopt(ctx context.Context, id string, opts ...Option) (*Hold, error) {
	s, err := l.with(opts)
	if err != nil {
		return nil, l.failed("adopt", err)
	}
	var hold *Hold
	err = l.call(ctx, "adopt", func() error {
		switch {
		case l.c.core.IsClosing():
			return ErrClosed
		case !validOwner(id):
			return invalid("id %q", id)
		}
		terms := s.Terms
		terms.Owner = ""
		adopt := l.adoptOne
		if l.joint != nil {
			adopt = l.joint.adopt
		}
		adopted, err := adopt(ctx, id, &terms)
		l.announceTakeover(ctx, err, id)
		l.res.EmitAcquired(ctx, adopted, err)
		if err == nil {
			hold = newHold(adopted)
		}
		return err
	})
	return hold, err
}

// adoptOne adopts a lock that is not joint. An attempt of unknown outcome is left to its lease, because
// the former holder's critical section may still run.
func (l *Lock) adoptOne(ctx context.Context, id string, terms *engine.Terms) (*engine.Hold, error) {
	q := l.res.NewRequest(terms)
	sent, counts, err := l.driver.adopt(ctx, id, q)
	if err != nil {
		return nil, err
	}
	if counts == 0 {
		return nil, ErrNotHeld
	}
	return l.res.Adopted(ctx, q, sent) // its release gives back all counts
}

// ReleaseID gives back one count of the holder of id. Use it to free what another process, or an earlier
// life of this one, holds. [ErrNotHeld] if id holds nothing.
func (l *Lock) ReleaseID(ctx context.Context, id string) error {
	return l.call(ctx, "release id", func() error {
		if !validOwner(id) {
			return invalid("id %q", id)
		}
		q := l.res.NewRequest(&l.settings.Terms)
		var held bool
		var err error
		if l.joint != nil {
			held, err = l.joint.releaseID(ctx, id, q)
		} else {
			held, err = l.driver.releaseID(ctx, id, q)
		}
		if err == nil && !held {
			err = ErrNotHeld
		}
		l.announceTakeover(ctx, err, id)
		return err
	})
}

// ForceRelease frees the lock whoever holds it, and reports whether anybody did. The holder learns
// [ErrLost]: within 200 ms if it has held for longer than a second and its client receives messages,
// with a fixed lease too; else at its next renewal, Check or Release.
func (l *Lock) ForceRelease(ctx context.Context) (bool, error) {
	held := false
	err := l.call(ctx, "force release", func() (err error) {
		if l.joint != nil {
			return ErrUnsupported
		}
		var ids []string
		ids, held, err = l.driver.forceRelease(ctx, l.res.NewRequest(&l.settings.Terms))
		l.announceTakeover(ctx, err, ids...)
		return err
	})
	return held, err
}

// Info asks Redis who holds the lock.
func (l *Lock) Info(ctx context.Context) (Info, error) {
	var info Info
	err := l.call(ctx, "inspect", func() (err error) {
		if l.joint != nil {
			return ErrUnsupported
		}
		info, err = l.driver.info(ctx)
		l.c.nameClients(ctx, info.Holders, nil)
		info.Name, info.Kind = l.res.Name, l.res.Kind
		return err
	})
	return info, err
}

// holders reads field, value, ... of a lock's hash.
func holders(fields []any, ttl time.Duration) []Holder {
	var list []Holder
	for i := 0; i+1 < len(fields); i += 2 {
		id, _ := fields[i].(string)
		value, _ := fields[i+1].(string)
		if count, err := strconv.Atoi(value); err == nil {
			list = append(list, Holder{ID: id, Count: count, TTL: ttl})
		}
	}
	return list
}
