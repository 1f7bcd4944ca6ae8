package engine

import (
	"context"
	"sync"
)

// wireLock is a mutex that is taken with a context. Its holder waits for the server, so a caller must be
// able to stop waiting for it. The zero value is unlocked. Waiters are not served in order.
type wireLock struct {
	mu    sync.Mutex // guards the rest; never held for long
	held  bool
	freed chan struct{} // closed by Unlock; nil while nobody waits
}

// TryLock takes the lock if it is free.
func (l *wireLock) TryLock() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held {
		return false
	}
	l.held = true
	return true
}

// LockContext takes the lock. It reports false if ctx ends first.
func (l *wireLock) LockContext(ctx context.Context) bool {
	for {
		l.mu.Lock()
		if !l.held {
			l.held = true
			l.mu.Unlock()
			return true
		}
		if l.freed == nil {
			l.freed = make(chan struct{})
		}
		freed := l.freed
		l.mu.Unlock()
		select {
		case <-freed: // another waiter may be faster
		case <-ctx.Done():
			return false
		}
	}
}

// Unlock frees the lock and wakes all waiters.
func (l *wireLock) Unlock() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = false
	if l.freed != nil {
		close(l.freed)
		l.freed = nil
	}
}
