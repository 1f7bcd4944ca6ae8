package pubsub

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// Subscription is one listener of one channel.
type Subscription struct {
	hub       *Hub
	listen    func(Signal)
	confirmed chan struct{}

	calling sync.Mutex // held while listen runs
	closed  atomic.Bool

	// guarded by hub.mu
	channel     *channel // nil when closed or refused
	index       int      // in channel.listeners
	isConfirmed bool     // confirmed is closed
	err         error
}

// Confirmed returns a channel that is closed once the server confirmed the subscription, or refused it: see Err. A message published
// from then on is signalled, so whoever waits for a change subscribes, awaits this, looks once more and only then waits.
func (s *Subscription) Confirmed() <-chan struct{} { return s.confirmed }

// Err returns why the server refused the channel (NOPERM for instance), or ErrClosed, or nil. Once it is not nil no signal will come and
// the caller has to poll. A subscription that is refused after it had been confirmed gets one last signal, with Resubscribed set.
func (s *Subscription) Err() error {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	return s.err
}

// Close ends the subscription. Once it has returned listen is not called any more; if Close is called from within a listener, a call of
// listen that is under way at that moment may still be ending. The channel of the last listener is unsubscribed. Close may be called
// again.
func (s *Subscription) Close() {
	s.closed.Store(true)
	s.detach()
	if s.calling.TryLock() {
		s.calling.Unlock()
		return
	}
	if insideListener() { // perhaps our own call: waiting for it would never end
		return
	}
	s.calling.Lock()
	s.calling.Unlock() //nolint:staticcheck // only to wait for the call under way
}

func (s *Subscription) detach() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	c := s.channel
	if c == nil {
		return
	}
	c.leave(s)
	if !c.wanted() {
		s.hub.abandon(c)
	}
}

// confirm closes Confirmed, once. hub.mu is held.
func (s *Subscription) confirm() {
	if !s.isConfirmed {
		s.isConfirmed = true
		close(s.confirmed)
	}
}

// refuse sets Err and closes Confirmed. hub.mu is held.
func (s *Subscription) refuse(err error) {
	s.err = err
	s.confirm()
}

// signal calls listen, unless the subscription was closed. hub.mu is not held.
func (s *Subscription) signal(sig Signal) {
	s.calling.Lock()
	defer s.calling.Unlock()
	if !s.closed.Load() {
		s.listen(sig)
	}
}

// insideListener reports whether the calling goroutine is inside a listener, which its stack shows. It is asked only in the rare case
// that Close meets a call under way.
func insideListener() bool {
	const frame = "github.com/redlatch/redlatch/pubsub.(*Subscription).signal"
	pcs := make([]uintptr, 32)
	for {
		n := runtime.Callers(2, pcs)
		if n < len(pcs) {
			pcs = pcs[:n]
			break
		}
		pcs = make([]uintptr, 2*len(pcs))
	}
	if len(pcs) == 0 {
		return false
	}
	frames := runtime.CallersFrames(pcs)
	for {
		f, more := frames.Next()
		if f.Function == frame {
			return true
		}
		if !more {
			return false
		}
	}
}
