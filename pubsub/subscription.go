package pubsub

import (
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

// Close ends the subscription. It waits for a call of listen that is under way; once it has returned,
// listen is not called any more. So a listener must not call it, not even for another subscription.
// The last listener's Close also unsubscribes the channel. Close may be called again.
func (s *Subscription) Close() {
	s.closed.Store(true)
	s.detach()
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
