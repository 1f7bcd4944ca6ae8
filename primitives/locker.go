package primitives

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Locker makes a sync.Locker of a lock. A local gate stands before the remote lock, so an Unlock can only belong to the goroutine that
// passed it; it is safe to share.
//
// Lock rides out outages, telling the observer, and never returns without the lock; it panics if the Locker's context ends, or if the error cannot
// heal. Unlock panics if it is not locked, as sync does. That a hold was lost meanwhile goes to the observer: where that matters, use
// [Lock.Do] or [Lock.Acquire].
type Locker struct {
	_ noCopy

	lock *Lock
	ctx  context.Context //nolint:containedctx // sync.Locker has no place for one
	gate chan struct{}   // capacity 1: full while locked, or being locked
	hold atomic.Pointer[Hold]
}

// Locker adapts l to sync.Locker; ctx bounds every wait.
func (l *Lock) Locker(ctx context.Context) *Locker {
	return &Locker{lock: l, ctx: ctx, gate: make(chan struct{}, 1)}
}

// Lock locks. It panics when the context of the Locker is done, and on errors that cannot heal.
func (l *Locker) Lock() {
	select {
	case l.gate <- struct{}{}:
	case <-l.ctx.Done():
		panic(l.lock.failed("lock", gaveUp(l.ctx, nil)))
	}
	for delay := 20 * time.Millisecond; ; delay = min(2*delay, time.Second) {
		hold, err := l.lock.acquireForLocker(l.ctx)
		if err == nil {
			l.hold.Store(hold)
			return
		}
		l.refused(err)
		l.rest(delay)
	}
}

// acquireForLocker is Acquire without a limit of waiting: a default WithWait is not for Locker.
func (l *Lock) acquireForLocker(ctx context.Context) (*Hold, error) {
	s, err := l.with(nil)
	if err != nil {
		return nil, l.failed("acquire", err)
	}
	hold, err := l.acquire(ctx, s, -1)
	return hold, l.failed("acquire", err)
}

// TryLock tries once: false when it is held, or when Redis does not answer.
func (l *Locker) TryLock() bool {
	select {
	case l.gate <- struct{}{}:
	default:
		if l.ctx.Err() != nil {
			panic(l.lock.failed("lock", gaveUp(l.ctx, nil)))
		}
		return false
	}
	hold, err := l.lock.TryAcquire(l.ctx)
	if err != nil {
		l.refused(err)
		<-l.gate
		return false
	}
	l.hold.Store(hold)
	return true
}

// Unlock releases. It panics if l is not locked.
func (l *Locker) Unlock() {
	hold := l.hold.Swap(nil)
	if hold == nil {
		panic("redlatch: unlock of unlocked Locker")
	}
	_ = hold.Release(l.ctx) // the observer is told of what goes wrong
	<-l.gate
}

// refused panics, having opened the gate, if waiting longer is no use; else the observer is told.
func (l *Locker) refused(err error) {
	if l.ctx.Err() != nil || !heals(err) {
		<-l.gate
		panic(err)
	}
	if !errors.Is(err, ErrNotAcquired) || unanswered(err) {
		l.lock.c.report(Event{Kind: EventWait, Lock: l.lock.kind, Name: l.lock.name, Err: err})
	}
}

// rest pauses between tries of Lock.
func (l *Locker) rest(delay time.Duration) {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.ctx.Done():
	case <-l.lock.c.closing:
	}
}

// heals tells errors that pass from those that stay.
func heals(err error) bool {
	for _, lasting := range []error{ErrInvalid, ErrClosed, ErrDeadlock, ErrUnsupported, redis.ErrClosed} {
		if errors.Is(err, lasting) {
			return false
		}
	}
	if reply, ok := errors.AsType[redis.Error](err); ok {
		for _, lasting := range []string{"WRONGTYPE", "NOPERM"} {
			if strings.Contains(reply.Error(), lasting) {
				return false
			}
		}
	}
	return true
}

// String names what it locks.
func (l *Locker) String() string { return fmt.Sprintf("Locker(%s %q)", l.lock.kind, l.lock.name) }
