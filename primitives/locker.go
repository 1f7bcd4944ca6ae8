package primitives

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/redisutil"
)

// Locker adapts a lock to [sync.Locker]. Goroutines first take a local lock, so Unlock releases the
// hold of the goroutine that locked. It is safe to share.
//
// Lock never returns without the lock. It retries while Redis is down, and reports that to the
// observer. It panics if the Locker's context ends, or on a permanent error. Unlock panics if the
// Locker is not locked, as package sync does.
//
// A [sync.Locker] cannot report a loss. Only the observer learns of it. If that matters, use
// [Lock.Do] or [Lock.Acquire].
type Locker struct {
	_ noCopy

	lock  *Lock
	ctx   context.Context //nolint:containedctx // sync.Locker has no place for one
	local chan struct{}   // capacity 1: full while locked, or being locked
	// hold is set by Lock while it has local, and taken by Unlock, which then empties local. It is
	// nil if the Locker is not locked, or is being locked.
	hold atomic.Pointer[Hold]
}

// Locker adapts l to [sync.Locker]. ctx bounds every wait. Each call makes a Locker of its own;
// share one among the goroutines of a process.
func (l *Lock) Locker(ctx context.Context) *Locker {
	return &Locker{lock: l, ctx: ctx, local: make(chan struct{}, 1)}
}

// Pauses between the attempts of Lock, doubling from the first to the longest.
const (
	firstLockerPause   = 20 * time.Millisecond
	longestLockerPause = time.Second
)

// Lock locks, and waits as long as it takes: a default [WithWait] does not apply. It panics when
// the Locker's context is done, and on permanent errors, such as WRONGTYPE, NOPERM or [ErrClosed].
func (l *Locker) Lock() {
	select {
	case l.local <- struct{}{}:
	case <-l.ctx.Done():
		panic(l.lock.failed("lock", engine.GaveUp(l.ctx, nil)))
	}
	for pause := firstLockerPause; !l.acquire(waitForever); pause = min(2*pause, longestLockerPause) {
		engine.Pause(l.ctx, pause, l.lock.c.core.Closing())
	}
}

// TryLock makes one attempt. It returns false if the lock is held, or if Redis does not answer,
// which the observer learns. It panics on the same errors as Lock.
func (l *Locker) TryLock() bool {
	select {
	case l.local <- struct{}{}:
	default:
		if l.ctx.Err() != nil {
			panic(l.lock.failed("lock", engine.GaveUp(l.ctx, nil)))
		}
		return false
	}
	if l.acquire(tryOnce) {
		return true
	}
	<-l.local
	return false
}

// Unlock releases the lock, as [Hold.Release] does. It panics if l is not locked. Any goroutine may
// call it.
func (l *Locker) Unlock() {
	hold := l.hold.Swap(nil)
	if hold == nil {
		panic("redlatch: unlock of unlocked Locker")
	}
	defer func() { <-l.local }() // even if the observer panics
	_ = hold.Release(l.ctx)      // the observer learns of a failure
}

// acquire makes an acquisition. The observer learns of an error that may pass. On any other error
// acquire panics. The caller has the local lock. A panic, also one of the observer, unlocks it.
func (l *Locker) acquire(how waitMode) (locked bool) {
	returned := false
	defer func() {
		if !returned {
			<-l.local
		}
	}()
	hold, err := l.lock.acquire(l.ctx, nil, how)
	switch {
	case err == nil:
		l.hold.Store(hold)
		locked = true
	case l.ctx.Err() != nil, !mayPass(err), l.nestsUnderALoss(err):
		panic(err)
	case !errors.Is(err, ErrNotAcquired), errors.Is(err, ErrUnavailable):
		l.lock.c.core.Report(engine.Event{Kind: engine.EventWait, Resource: &l.lock.res, Err: err})
	}
	returned = true
	return locked
}

// nestsUnderALoss reports whether err is the loss of a hold that the Locker's context carries.
// After any other ErrLost a later attempt may succeed: the lock was acquired too late.
func (l *Locker) nestsUnderALoss(err error) bool {
	if !errors.Is(err, ErrLost) {
		return false
	}
	outer, _ := l.lock.res.Outer(l.ctx)
	return outer != nil && errors.Is(outer.Ended(), ErrLost)
}

// mayPass reports whether a later attempt may succeed. An outage passes. A closed client, a key of
// another type or a missing permission does not.
func mayPass(err error) bool {
	for _, lasting := range []error{ErrInvalid, ErrClosed, ErrDeadlock, ErrUnsupported, ErrForeign, redis.ErrClosed} {
		if errors.Is(err, lasting) {
			return false
		}
	}
	return !redisutil.LacksRights(err)
}

// String names the lock.
func (l *Locker) String() string {
	return fmt.Sprintf("Locker(%s %q)", l.lock.res.Kind, l.lock.res.Name)
}
