package engine

import (
	"context"
	"sync"
)

// The wire lock of an ownership. It is held while a command that sets the count is under way, so
// counts reach the server in the order in which they were decided (ownership.go).

// wireLock is a mutex that is taken with a context. It is held while a command waits for the
// server, so other callers must be able to stop waiting for it. The zero value is unlocked.
//
// Waiters are not served in order. They need no order: each reads the count anew once it has the
// lock.
type wireLock struct {
	mu   sync.Mutex // guards held and unlocked; held only for a moment
	held bool

	// Whoever holds the lock reads and writes these fields.
	outcome       freeing // of the command that frees the ownership
	freeInDoubt   bool    // the command that frees the ownership was sent, and an attempt has an unknown outcome
	changeInDoubt bool    // a change of the count had an attempt of unknown outcome
	change        uint32  // number of the last change of the count

	unlocked chan struct{} // closed by Unlock; nil if there is no waiter
}

// TryLock takes the lock if it is free. It does not block.
func (l *wireLock) TryLock() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held {
		return false
	}
	l.held = true
	return true
}

// LockContext takes the lock. It blocks until then, and reports false if ctx ends first.
func (l *wireLock) LockContext(ctx context.Context) bool {
	for {
		l.mu.Lock()
		if !l.held {
			l.held = true
			l.mu.Unlock()
			return true
		}
		if l.unlocked == nil {
			l.unlocked = make(chan struct{})
		}
		freed := l.unlocked
		l.mu.Unlock()
		select {
		case <-freed: // another waiter may be faster: look again
		case <-ctx.Done():
			return false
		}
	}
}

// Unlock frees the lock and wakes all waiters. It wakes them all because a single one might have
// given up at this moment, and nobody would take the lock then. Any goroutine may call it.
func (l *wireLock) Unlock() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = false
	if l.unlocked != nil {
		close(l.unlocked)
		l.unlocked = nil
	}
}
