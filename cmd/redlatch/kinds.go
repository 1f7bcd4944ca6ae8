package main

import (
	"context"

	"github.com/redlatch/redlatch/primitives"
)

// The kinds, as flags, JSON and variables name them.
const (
	kindLock      = "lock"
	kindFair      = "fair"
	kindFenced    = "fenced"
	kindRead      = "read"
	kindWrite     = "write"
	kindSemaphore = "semaphore"
	kindPermits   = "permits"
	kindLatch     = "latch"
	kindInteger   = "integer" // a number that may be a semaphore's, a latch's or somebody's counter
)

var (
	lockKinds = []string{kindLock, kindFair, kindFenced, kindRead, kindWrite}
	runKinds  = []string{kindLock, kindFair, kindFenced, kindRead, kindWrite, kindSemaphore, kindPermits}
	allKinds  = append(append([]string{}, runKinds...), kindLatch, kindInteger)
)

// kindOf is the name of a kind that the library calls kind.
func kindOf(kind string) string {
	switch kind {
	case "reader":
		return kindRead
	case "writer":
		return kindWrite
	}
	return kind
}

// acquirer is what can be held.
type acquirer interface {
	Acquire(ctx context.Context, opts ...primitives.Option) (*primitives.Hold, error)
	Info(ctx context.Context) (primitives.Info, error)
}

// releaser is a kind whose holders have ids.
type releaser interface {
	ReleaseID(ctx context.Context, id string) error
}

// lock returns the lock of a kind; nil for other kinds.
func (s *session) lock(kind, name string) *primitives.Lock {
	switch kind {
	case kindLock:
		return s.client.Lock(name)
	case kindFair:
		return s.client.FairLock(name)
	case kindFenced:
		return s.client.FencedLock(name)
	case kindRead:
		return s.client.RWLock(name).Reader()
	case kindWrite:
		return s.client.RWLock(name).Writer()
	}
	return nil
}

// acquirer returns the primitive of a kind in runKinds.
func (s *session) acquirer(kind, name string) acquirer {
	switch kind {
	case kindSemaphore:
		return s.client.Semaphore(name)
	case kindPermits:
		return s.client.PermitExpirableSemaphore(name)
	}
	return s.lock(kind, name)
}

// numberKinds are the kinds whose key is a number.
var numberKinds = []string{kindSemaphore, kindPermits, kindLatch, kindInteger}
