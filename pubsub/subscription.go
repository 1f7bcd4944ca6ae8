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

	calling sync.Mutex  // held while listen runs; never taken with hub.mu held
	closed  atomic.Bool // read with calling held, so that Close can wait for a running call

	// The fields below are guarded by hub.mu.

	channel     *channel // nil once the subscription is closed or failed
	index       int      // position in channel.listeners
	isConfirmed bool     // the confirmed channel is closed
	err         error
}

// Confirmed returns a channel that is closed once the server has confirmed or refused the
// subscription. Err distinguishes the two. Messages published after a confirmation reach the
// listener. To wait for a change without missing it: subscribe, wait for Confirmed, check the
// state, then wait for a signal.
func (s *Subscription) Confirmed() <-chan struct{} { return s.confirmed }

// Err returns nil, or why the subscription ended: the server's refusal (NOPERM for instance) or
// ErrClosed. Once Err is not nil, no more signals arrive and the caller has to poll. A subscription
// that is refused after it was confirmed gets one last signal, with Resubscribed set.
func (s *Subscription) Err() error {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	return s.err
}

// Close ends the subscription. It waits for a running call of the listener and allows no later one.
// A listener must therefore not call Close, not even on another subscription. Closing the last
// listener of a channel also unsubscribes the channel. Close is idempotent.
func (s *Subscription) Close() { s.close(false) }

// CloseSoon is like Close, but the channel stays subscribed for a moment. It is for callers that
// are in a hurry, if another listener will probably come soon.
func (s *Subscription) CloseSoon() { s.close(true) }

func (s *Subscription) close(soon bool) {
	// closed is set before calling is locked. A call that starts later sees it; a call that started
	// earlier holds calling, and the Lock below waits for it.
	s.closed.Store(true)
	s.detach(soon)
	s.calling.Lock()
	s.calling.Unlock() //nolint:staticcheck // locked only to wait for the running call
}

// detach removes the subscription from its channel. soon: as in CloseSoon.
func (s *Subscription) detach(soon bool) {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	c := s.channel
	if c == nil {
		return
	}
	c.removeListener(s)
	if !c.wanted() {
		s.hub.lastListenerClosed(c, soon)
	}
}

// confirm closes Confirmed, once. hub.mu is held.
func (s *Subscription) confirm() {
	if !s.isConfirmed {
		s.isConfirmed = true
		close(s.confirmed)
	}
}

// fail sets Err and closes Confirmed, so that no caller waits for a reply that never comes.
// hub.mu is held.
func (s *Subscription) fail(err error) {
	s.err = err
	s.confirm()
}

// signal calls the listener unless the subscription is closed. hub.mu is not held, because a
// listener may call Subscribe.
func (s *Subscription) signal(sig Signal) {
	s.calling.Lock()
	defer s.calling.Unlock()
	if !s.closed.Load() {
		s.listen(sig)
	}
}
