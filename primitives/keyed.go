package primitives

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
)

// Keyed locks and unlocks names. It is for code whose interface has no place for a [Hold]: storages
// and middlewares with methods such as Lock(ctx, key) and Unlock(ctx, key). It uses the locks of
// [Client.Lock]. Any goroutine may unlock. It is safe for concurrent use, and keeps nothing for
// names that are not locked.
//
// Unlock names no owner, so a name is unlocked before this Keyed locks it again, even if the lock
// was lost meanwhile. Then an Unlock never frees the lock of a later caller. The price is that a
// caller that has lost its lock, and never unlocks it, keeps the other callers of this Keyed out.
// Share one Keyed among the goroutines of a process, because two of them know nothing of each
// other's losses.
//
// A caller does not learn of a loss before Unlock, unless it asks with [Keyed.Ensure]. Only the
// observer does. If that matters, use [Lock.Do] or [Lock.Acquire].
type Keyed struct {
	_ noCopy

	c    *Client
	opts []Option

	mu    sync.Mutex
	names map[string]*keyedName // the names that are locked, or for which a call is under way
}

// keyedName is a name of a Keyed. Keyed.mu guards its fields.
type keyedName struct {
	calls    int           // the number of calls under way
	hold     *Hold         // nil if the name is not locked
	unlocked chan struct{} // closed when hold has been unlocked
	ensuring chan struct{} // capacity 1: full while a call of Ensure uses the lock; the channel never changes
}

// Keyed returns a Keyed for locks with these options, such as [WithWatchdog] and [WithWait]. It
// sends nothing. A bad option makes Lock and TryLock fail with [ErrInvalid].
func (c *Client) Keyed(opts ...Option) *Keyed {
	return &Keyed{c: c, opts: slices.Clone(opts), names: map[string]*keyedName{}}
}

// Lock waits until it has locked name, or until ctx is done: see [Lock.Acquire] for its errors. A
// [WithWait] among the options limits the wait. The lock outlasts ctx, and is renewed until Unlock.
// A caller that locks a name twice without unlocking it waits for itself.
func (k *Keyed) Lock(ctx context.Context, name string) error {
	l := k.c.Lock(name, k.opts...)
	began := time.Now()
	n := k.enter(name)
	defer k.leave(name, n)
	limit := l.settings.Wait
	left := limit // what is left of the wait; engine.Forever if it has no limit
	unlocked, mustWait := k.locked(n)
	for {
		// While the name is locked, others wait for it as for any lock. After a loss, Redis would
		// grant the lock, but it could not be kept.
		if mustWait && l.settings.err == nil {
			err := k.await(ctx, unlocked, left)
			if err != nil {
				l.res.ReportNotAcquired(ctx, err)
				return l.failed("acquire", err)
			}
		}
		if limit != engine.Forever {
			left = max(0, limit-time.Since(began))
		}
		hold, err := k.acquire(ctx, l, left)
		if err != nil {
			return err
		}
		if k.put(n, hold) {
			return nil
		}
		// The name is locked, but Redis does not have its lock, or has it under the same WithOwner.
		k.releaseInBackground(hold)
		unlocked, _ = k.locked(n)
		mustWait = unlocked != nil
	}
}

// TryLock locks name if it is free, and reports whether it did. (false, nil) means that somebody
// holds it. An error means that Redis did not answer, or refused, or that ctx is done.
func (k *Keyed) TryLock(ctx context.Context, name string) (bool, error) {
	l := k.c.Lock(name, k.opts...)
	n := k.enter(name)
	defer k.leave(name, n)
	unlocked, _ := k.locked(n)
	if unlocked != nil && ctx.Err() == nil {
		return false, nil
	}
	hold, err := k.acquire(ctx, l, engine.NoWait)
	switch {
	case isTaken(err):
		return false, nil
	case err != nil:
		return false, err
	case !k.put(n, hold):
		k.releaseInBackground(hold)
		return false, nil
	}
	return true, nil
}

// Unlock unlocks name, as [Hold.Release] does. It works even if ctx is done. [ErrNotHeld] means
// that this Keyed has not locked name, and [ErrLost] that the lock was lost before. In both cases
// name is unlocked here. If Redis does not answer, Unlock returns the transport error, and the
// release is repeated in the background.
func (k *Keyed) Unlock(ctx context.Context, name string) error {
	n := k.enter(name)
	defer k.leave(name, n)
	k.mu.Lock()
	hold := n.hold
	unlocked := n.unlocked
	n.hold = nil // before the release, because the next caller may have the lock before Release returns
	k.mu.Unlock()
	if hold == nil {
		return k.failed("release", name, ErrNotHeld)
	}
	defer close(unlocked) // even if an observer panics
	return hold.Release(ctx)
}

// Ensure asks Redis whether name is still locked by this Keyed, and locks it again if the lock was
// lost and is free. After a loss somebody else may have done the caller's work meanwhile, so it
// must look. Ensure returns [ErrLost] if somebody else has the lock now, and [ErrNotHeld] if this
// Keyed has not locked name. Another error means that Redis did not answer: then nothing has
// changed.
func (k *Keyed) Ensure(ctx context.Context, name string) error {
	n := k.enter(name)
	defer k.leave(name, n)
	// Only one call at a time goes on, because the lock that it acquires again would refuse the
	// others.
	select {
	case n.ensuring <- struct{}{}:
		defer func() { <-n.ensuring }()
	case <-ctx.Done():
		return k.failed("check", name, context.Cause(ctx))
	}
	k.mu.Lock()
	hold := n.hold
	k.mu.Unlock()
	if hold == nil {
		return k.failed("check", name, ErrNotHeld)
	}
	err := hold.Check(ctx)
	if !errors.Is(err, ErrLost) {
		return err
	}
	again, refused := k.acquire(ctx, k.c.Lock(name, k.opts...), 0)
	if refused != nil {
		return errors.Join(err, refused)
	}
	k.mu.Lock()
	if n.hold == hold {
		n.hold, again = again, hold // the lost hold is released below, which removes what a late renewal has left
		err = nil
	}
	k.mu.Unlock()
	k.releaseInBackground(again)
	return err // the loss, if Unlock has ended the hold meanwhile
}

// failed wraps an error about a name.
func (k *Keyed) failed(op, name string, err error) error {
	return failed(&engine.Resource{Core: k.c.core, Kind: "lock", Name: name}, op, err)
}

// enter returns what is kept about a name, for a call that ends with leave.
func (k *Keyed) enter(name string) *keyedName {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := k.names[name]
	if n == nil {
		n = &keyedName{ensuring: make(chan struct{}, 1)}
		k.names[name] = n
	}
	n.calls++
	return n
}

// leave ends a call. A name that is not locked is forgotten after its last call.
func (k *Keyed) leave(name string, n *keyedName) {
	k.mu.Lock()
	defer k.mu.Unlock()
	n.calls--
	if n.calls == 0 && n.hold == nil {
		delete(k.names, name)
	}
}

// locked returns a channel that is closed when the name has been unlocked, and whether its lock is
// lost. The channel is nil if the name is not locked.
func (k *Keyed) locked(n *keyedName) (unlocked <-chan struct{}, lost bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if n.hold == nil {
		return nil, false
	}
	return n.unlocked, n.hold.hold.Ended() != nil
}

// await waits until a name has been unlocked, for limit at most. [engine.Forever] means that there
// is no limit.
func (k *Keyed) await(ctx context.Context, unlocked <-chan struct{}, limit time.Duration) error {
	var over <-chan time.Time
	if limit != engine.Forever {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-unlocked:
		return nil
	case <-over:
	case <-ctx.Done():
	case <-k.c.core.Closing():
		return ErrClosed
	}
	return engine.GaveUp(ctx, nil)
}

// acquire acquires l with a hold that keeps nothing of ctx, because it outlasts the request.
func (k *Keyed) acquire(ctx context.Context, l *Lock, limit time.Duration) (*Hold, error) {
	opts := []Option{WithHoldContext(context.Background())}
	if limit != engine.Forever {
		opts = append(opts, WithWait(limit))
	}
	return l.acquire(ctx, opts, waitAsOptionsSay)
}

// releaseInBackground releases a hold that no caller gets. Redis may take longer to answer than the
// caller waits.
func (k *Keyed) releaseInBackground(hold *Hold) {
	k.c.core.Spawn(func() { _ = hold.Release(context.Background()) })
}

// put makes hold the lock of a name. It returns false if the name is locked.
func (k *Keyed) put(n *keyedName, hold *Hold) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if n.hold != nil {
		return false
	}
	n.hold = hold
	n.unlocked = make(chan struct{})
	return true
}
