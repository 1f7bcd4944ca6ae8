// Package certmagiclock is a Locker for the storages of certmagic, and so of Caddy, with locks of redlatch.
// Use it in a storage whose own locks are not shared between hosts:
//
//	type storage struct {
//		certmagic.Storage     // keeps the certificates
//		*certmagiclock.Locker // keeps hosts from obtaining the same one at the same time
//	}
//
//	// Both fields have these methods, so the storage chooses.
//	func (s storage) Lock(ctx context.Context, name string) error   { return s.Locker.Lock(ctx, name) }
//	func (s storage) Unlock(ctx context.Context, name string) error { return s.Locker.Unlock(ctx, name) }
//
//	certmagic.Default.Storage = storage{files, certmagiclock.NewLocker(client)}
//
// Locks are renewed until Unlock, so a slow challenge does not lose its lock. If a host dies, the lock is
// free when its TTL ends.
package certmagiclock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

// Locker implements certmagic's Locker, and its optional interfaces TryLocker and LockLeaseRenewer. It is
// safe for many names and goroutines.
//
// Unlock names no owner, so a local gate for each name stands before the lock: the next caller of this
// process passes it only after Unlock, even if the lock was lost meanwhile. Then Unlock always belongs to
// the caller that has locked.
type Locker struct {
	client *primitives.Client
	opts   []primitives.Option

	mu    sync.Mutex
	names map[string]*gate
}

// gate is a name that somebody has locked, or wants to lock.
type gate struct {
	users int              // guarded by Locker.mu; the gate is forgotten with the last one
	local chan struct{}    // full while locked, or being locked
	renew chan struct{}    // full while a call of RenewLockLease uses the lock
	hold  *primitives.Hold // guarded by Locker.mu; nil while not locked
}

// NewLocker returns a Locker that takes locks of c. opts are options of the acquisitions, such as
// [primitives.WithWatchdog]. A fixed lease ([primitives.WithLease]) suits no certificate: certmagic may
// retry for 30 days under one lock. To keep the names apart from other locks, use a client with
// [primitives.WithPrefix].
func NewLocker(c *primitives.Client, opts ...primitives.Option) *Locker {
	return &Locker{client: c, opts: opts, names: map[string]*gate{}}
}

// Lock waits until it has locked name, or until ctx is done. A [primitives.WithWait] among the options, or among the
// defaults of the client, limits the wait: then the error matches [primitives.ErrNotAcquired].
func (l *Locker) Lock(ctx context.Context, name string) error {
	g := l.enter(name)
	select {
	case g.local <- struct{}{}:
	case <-ctx.Done():
		l.leave(name, g)
		return fmt.Errorf("certmagiclock: lock %q: %w", name, context.Cause(ctx))
	}
	return l.acquired(name, g, func() (*primitives.Hold, error) { return l.client.Lock(name).Acquire(ctx, l.opts...) })
}

// TryLock locks name if it is free, and reports whether it did. An error means that ctx is done, or that
// Redis did not answer, or refused.
func (l *Locker) TryLock(ctx context.Context, name string) (bool, error) {
	g := l.enter(name)
	select {
	case g.local <- struct{}{}:
	default:
		l.leave(name, g)
		return false, nil
	}
	err := l.acquired(name, g, func() (*primitives.Hold, error) { return l.client.Lock(name).TryAcquire(ctx, l.opts...) })
	if errors.Is(err, primitives.ErrNotAcquired) && ctx.Err() == nil {
		return false, nil
	}
	return err == nil, err
}

// Unlock unlocks name. It works even if ctx is done. [primitives.ErrNotHeld] means that this Locker has not
// locked name, and [primitives.ErrLost] that the lock was lost before: name is unlocked here all the same.
func (l *Locker) Unlock(ctx context.Context, name string) error {
	l.mu.Lock()
	g := l.names[name]
	var hold *primitives.Hold
	if g != nil {
		hold, g.hold = g.hold, nil
	}
	l.mu.Unlock()
	if hold == nil {
		return fmt.Errorf("certmagiclock: unlock %q: %w", name, primitives.ErrNotHeld)
	}
	defer l.open(name, g) // also if an observer panics
	return hold.Release(ctx)
}

// RenewLockLease asks Redis whether name is still locked by this Locker. If the lock was lost and is free,
// RenewLockLease locks it again: certmagic calls it before each attempt, and looks afterwards whether another
// host has obtained the certificate. It returns [primitives.ErrLost] if another host has the lock now, and
// [primitives.ErrNotHeld] if this Locker has not locked name.
//
// It does not lengthen the lease: the lock is renewed until Unlock. certmagic asks for minutes to 30 days,
// and if this host died, nobody else could lock name for that long.
func (l *Locker) RenewLockLease(ctx context.Context, name string, _ time.Duration) error {
	g := l.enter(name)
	defer l.leave(name, g)
	// One call at a time: another one would be refused by the lock that this one has acquired again.
	select {
	case g.renew <- struct{}{}:
		defer func() { <-g.renew }()
	case <-ctx.Done():
		return fmt.Errorf("certmagiclock: renew %q: %w", name, context.Cause(ctx))
	}
	l.mu.Lock()
	hold := g.hold
	l.mu.Unlock()
	if hold == nil {
		return fmt.Errorf("certmagiclock: renew %q: %w", name, primitives.ErrNotHeld)
	}
	err := hold.Check(ctx)
	if !errors.Is(err, primitives.ErrLost) {
		return err
	}
	again, refused := l.client.Lock(name).TryAcquire(ctx, l.opts...)
	if refused != nil {
		return errors.Join(err, refused)
	}
	l.mu.Lock()
	if g.hold == hold {
		g.hold, again = again, hold // the lost one is released below: that removes what a late renewal has left
		err = nil
	}
	l.mu.Unlock()
	_ = again.Release(ctx)
	return err // the loss, if Unlock has ended it meanwhile
}

// enter returns the gate of name, and counts its user.
func (l *Locker) enter(name string) *gate {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.names[name]
	if g == nil {
		g = &gate{local: make(chan struct{}, 1), renew: make(chan struct{}, 1)}
		l.names[name] = g
	}
	g.users++
	return g
}

// leave ends what enter began.
func (l *Locker) leave(name string, g *gate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g.users--; g.users == 0 {
		delete(l.names, name)
	}
}

// open lets the next caller pass the gate of name, and leaves it.
func (l *Locker) open(name string, g *gate) {
	<-g.local
	l.leave(name, g)
}

// acquired acquires behind a gate that the caller has passed. If that fails, or if an observer panics, it opens the
// gate again.
func (l *Locker) acquired(name string, g *gate, acquire func() (*primitives.Hold, error)) error {
	var hold *primitives.Hold
	defer func() {
		if hold == nil {
			l.open(name, g)
		}
	}()
	var err error
	if hold, err = acquire(); err != nil {
		return err
	}
	l.mu.Lock()
	g.hold = hold
	l.mu.Unlock()
	return nil
}
