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
	"time"

	"github.com/redlatch/redlatch/primitives"
)

// Locker implements certmagic's Locker, and its optional interfaces TryLocker and LockLeaseRenewer. It is
// safe for many names and goroutines.
//
// It is a [primitives.Keyed]: Unlock names no owner, so a name is unlocked before this process locks it again, even if
// the lock was lost meanwhile. Then Unlock always belongs to the caller that has locked.
type Locker struct{ keyed *primitives.Keyed }

// NewLocker returns a Locker that takes locks of c. opts are options of the acquisitions, such as
// [primitives.WithWatchdog]. A fixed lease ([primitives.WithLease]) suits no certificate: certmagic may
// retry for 30 days under one lock. To keep the names apart from other locks, use a client with
// [primitives.WithPrefix].
func NewLocker(c *primitives.Client, opts ...primitives.Option) *Locker {
	return &Locker{c.Keyed(opts...)}
}

// Lock waits until it has locked name, or until ctx is done. A [primitives.WithWait] among the options, or among the
// defaults of the client, limits the wait: then the error matches [primitives.ErrNotAcquired].
func (l *Locker) Lock(ctx context.Context, name string) error { return l.keyed.Lock(ctx, name) }

// TryLock locks name if it is free, and reports whether it did. An error means that ctx is done, or that
// Redis did not answer, or refused.
func (l *Locker) TryLock(ctx context.Context, name string) (bool, error) {
	return l.keyed.TryLock(ctx, name)
}

// Unlock unlocks name. It works even if ctx is done. [primitives.ErrNotHeld] means that this Locker has not
// locked name, and [primitives.ErrLost] that the lock was lost before: name is unlocked here all the same.
func (l *Locker) Unlock(ctx context.Context, name string) error { return l.keyed.Unlock(ctx, name) }

// RenewLockLease asks Redis whether name is still locked by this Locker. If the lock was lost and is free,
// RenewLockLease locks it again: certmagic calls it before each attempt, and looks afterwards whether another
// host has obtained the certificate. It returns [primitives.ErrLost] if another host has the lock now, and
// [primitives.ErrNotHeld] if this Locker has not locked name.
//
// It does not lengthen the lease: the lock is renewed until Unlock. certmagic asks for minutes to 30 days,
// and if this host died, nobody else could lock name for that long.
func (l *Locker) RenewLockLease(ctx context.Context, name string, _ time.Duration) error {
	return l.keyed.Ensure(ctx, name)
}
