package primitives

import (
	"context"
	"strconv"
	"time"
)

// Lock is a mutual exclusion among all who use its name: [Client.Lock]. The same type serves the other kinds of lock. It is a
// handle: immutable, shareable, without I/O to make one.
//
// What it promises: while a hold is valid nobody else holds the name on that Redis, Go or Java. What it does not: a Redis that fails over to
// a replica may forget a lock that was not replicated yet (see [WithReplicas]); and a section that goes on though its hold is lost is
// not stopped by anything but a fencing token ([Client.FencedLock]) that what it writes to checks.
type Lock struct {
	_ noCopy
	handle
}

// locking is what a kind of lock can do beside being acquired.
type locking interface {
	leased
	nester
	byID
	// adopt puts q's id in the place of a holder's, with its counts; 0: it has none.
	adopt(ctx context.Context, id string, q *request) (sent time.Time, counts int, err error)
}

// byID is what can be done to a lock from outside of a hold.
type byID interface {
	// releaseID takes one count of a holder; q is the request to be remembered.
	releaseID(ctx context.Context, id string, q *request) (held bool, err error)
	forceRelease(ctx context.Context, q *request) (held bool, err error)
	info(ctx context.Context) (Info, error)
}

// Lock is the plain lock, Redisson's RLock; with [WithPolling] its SpinLock, with [WithNonReentrant] its NonReentrantLock.
func (c *Client) Lock(name string, opts ...Option) *Lock {
	l := &Lock{}
	l.init(c, "lock", name, opts)
	e := &mutex{exclusiveOf(&l.handle, lockScripts)}
	l.speaks(e, e.keys(l.memory("")))
	return l
}

// Acquire waits until the lock is held, ctx is done ([ErrNotAcquired] and ctx's cause) or the limit of [WithWait] is over
// ([ErrNotAcquired]). On failure nothing is held and nothing stays queued. If ctx carries a hold of the same lock, it nests: same id, one count
// more. A transport error on the first try is returned; once waiting it is ridden out.
func (l *Lock) Acquire(ctx context.Context, opts ...Option) (*Hold, error) {
	return l.acquireWith(ctx, opts, false)
}

// TryAcquire is Acquire with [WithWait](0) over all scopes: one try.
func (l *Lock) TryAcquire(ctx context.Context, opts ...Option) (*Hold, error) {
	return l.acquireWith(ctx, opts, true)
}

// acquireWith is Acquire, and TryAcquire if once.
func (l *Lock) acquireWith(ctx context.Context, opts []Option, once bool) (*Hold, error) {
	s, err := l.with(opts)
	if err != nil {
		l.notAcquired(ctx, &wait{}, time.Time{}, err)
		return nil, l.failed("acquire", err)
	}
	limit := s.wait
	if once {
		limit = 0
	}
	hold, err := l.acquire(ctx, s, limit)
	return hold, l.failed("acquire", err)
}

// Do runs f while the lock is held, with the hold's context, and releases on return, error and panic. It returns f's error, joined with
// [ErrLost] if exclusivity ended before f did. A release that fails otherwise goes to the observer.
func (l *Lock) Do(ctx context.Context, f func(context.Context) error, opts ...Option) error {
	return l.do(ctx, func() (*Hold, error) { return l.Acquire(ctx, opts...) }, f)
}

// HoldFrom is the nearest live hold of this lock that ctx carries, nil if none.
func (l *Lock) HoldFrom(ctx context.Context) *Hold { return holdFrom(ctx, l.nests) }

// Adopt takes over what the holder of that id holds, with all its counts, under a fresh id: to hand a lock from one process to another.
// It renews, or leases, from here on. The former holder learns [ErrLost], as by ForceRelease. [ErrNotHeld] if that id holds nothing.
func (l *Lock) Adopt(ctx context.Context, id string, opts ...Option) (*Hold, error) {
	var hold *Hold
	s, err := l.with(opts)
	if err != nil {
		return nil, l.failed("adopt", err)
	}
	err = l.call(ctx, "adopt", func() error {
		hold, err = l.adopt(ctx, id, *s)
		return err
	})
	return hold, err
}

func (h *handle) adopt(ctx context.Context, id string, s settings) (*Hold, error) {
	if h.c.isClosing() {
		return nil, ErrClosed
	}
	if !validOwner(id) {
		return nil, invalid("id %q", id)
	}
	s.owner = ""
	var hold *Hold
	var err error
	if p, ok := h.proto.(adopter); ok {
		hold, err = p.adoptAll(ctx, id, &s)
	} else {
		hold, err = h.adoptAs(ctx, id, h.c.mint(), &s)
	}
	h.takenFrom(ctx, err, id)
	if err != nil {
		h.c.emit(h.failure(ctx, &wait{}, time.Time{}, err))
		return nil, err
	}
	h.acquired(ctx, hold, EventAcquired, &wait{}, time.Time{})
	return hold, nil
}

// adopter is a protocol that adopts in a way of its own.
type adopter interface {
	adoptAll(ctx context.Context, id string, s *settings) (*Hold, error)
}

// adoptAs puts a fresh id in the place of a holder's.
func (h *handle) adoptAs(ctx context.Context, id, fresh string, s *settings) (*Hold, error) {
	q := h.request(s)
	q.named(fresh, false)
	sent, counts, err := h.proto.(locking).adopt(ctx, id, q)
	if err != nil {
		return nil, err // an unknown outcome is left to the lease: the former holder's section may still run
	}
	if counts == 0 {
		return nil, ErrNotHeld
	}
	// One release gives back all counts.
	return h.newHold(ctx, h.newTenure(q, verdict{sent: sent}, 1), s, sent, nil)
}

// ReleaseID takes one count of the holder of that id: to free what another process, or an earlier life of this one, holds.
// [ErrNotHeld] if it holds nothing.
func (l *Lock) ReleaseID(ctx context.Context, id string) error {
	return l.call(ctx, "release id", func() error {
		if !validOwner(id) {
			return invalid("id %q", id)
		}
		held, err := l.proto.(byID).releaseID(ctx, id, l.request(&l.settings))
		if err == nil && !held {
			err = ErrNotHeld
		}
		l.takenFrom(ctx, err, id)
		return err
	})
}

// ForceRelease frees the lock whoever holds it, and tells whether anybody did. The holder learns
// [ErrLost]: within 200 ms if it has held for longer than a second and its client receives messages,
// with a fixed lease too; else at its next renewal, Check or Release.
func (l *Lock) ForceRelease(ctx context.Context) (bool, error) {
	held := false
	err := l.call(ctx, "force release", func() (err error) {
		q := l.request(&l.settings)
		held, err = l.proto.(byID).forceRelease(ctx, q)
		l.takenFrom(ctx, err, q.ousted...)
		return err
	})
	return held, err
}

// Info asks who holds the lock.
func (l *Lock) Info(ctx context.Context) (Info, error) {
	var info Info
	err := l.call(ctx, "inspect", func() (err error) {
		info, err = l.proto.(byID).info(ctx)
		l.c.identify(ctx, info.Holders, nil)
		info.Name, info.Kind = l.name, l.kind
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

// flag is a condition as scripts take it.
func flag(on bool) int {
	if on {
		return 1
	}
	return 0
}
