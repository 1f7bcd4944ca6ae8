package engine

import (
	"context"
	"slices"
	"time"
)

// How the holds of an ownership end when it is lost.

// goneLoss is the loss of a hold whose id the server does not know.
var goneLoss = Loss{Reason: LossGone}

// unknownLoss returns the loss of a lease that the server does not know. If validity has ended
// while the process stood still, the server has ended the lease because nobody renewed it
// meanwhile. A call that goes on at the same time as the watchdog then reports the same loss.
func (o *Ownership) unknownLoss() Loss {
	if stood := o.lease.Stood(); stood > 0 {
		return Loss{Reason: LossPaused, Silent: stood}
	}
	return goneLoss
}

// expiredLoss returns the loss of a lease that the server has not confirmed in time. A renewal
// without an answer may be executed now, and keep the key for a TTL: see Abandon.
func (o *Ownership) expiredLoss() Loss {
	o.lastsUntil(time.Now().Add(o.TTL))
	if stood := o.lease.Stood(); stood > 0 {
		return Loss{Reason: LossPaused, Silent: stood}
	}
	loss := Loss{Reason: LossExpired, Silent: o.lease.Silent()}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failing != nil {
		loss.Refusal = o.failing.refusal
	}
	return loss
}

// lose ends all holds, because the call with ctx, about h, found that the lock is lost. It returns
// the loss of h, which has left the others already if it is being released. The caller must not
// hold wire.
func (o *Ownership) lose(ctx context.Context, h *Hold) (err error) {
	loss := o.unknownLoss() // before end, which unregisters the lease
	var emits []func()
	for _, each := range append(o.endAll(), h) { // h may be among them: then it is lost once
		var emit func()
		emit, err = each.lose(ctx, loss)
		emits = append(emits, emit)
	}
	o.r.Core.queues.holdLost(o.r)
	for _, emit := range emits { // when all have ended: the observer may be slow
		emit()
	}
	return err
}

// loseUnlessReleased is lose for a Check or an Extend of h. If a release of h has begun, it may
// have freed the lock before they were executed. Only the answer to the release then says whether
// the lock was lost.
func (o *Ownership) loseUnlessReleased(ctx context.Context, h *Hold) error {
	if h.state().taken {
		return ErrReleased
	}
	return o.lose(ctx, h)
}

// loseInBackground ends all holds when no call of the user found the loss. It does not wait for the
// observer.
func (o *Ownership) loseInBackground(loss Loss) { o.loseEach(o.endAll(), loss) }

// loseEach ends the holds that endAll or endRenewed has returned.
func (o *Ownership) loseEach(ended []*Hold, loss Loss) {
	for _, h := range ended {
		h.LoseInBackground(loss)
	}
	if len(ended) > 0 {
		o.r.Core.queues.holdLost(o.r)
	}
}

// endAll marks o as lost, once, and returns the holds that the caller must end. It returns them
// instead of ending them, because a hold must not end with mu held.
func (o *Ownership) endAll() (ended []*Hold) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.markLost()
}

// endRenewed is endAll when the validity of the renewed lease has passed. Holds with a fixed lease
// stay until their limits, because the server has confirmed their leases.
func (o *Ownership) endRenewed() (ended []*Hold) {
	o.mu.Lock()
	defer o.mu.Unlock()
	isFixed := func(h *Hold) bool { return !h.renew }
	ended = o.list()
	if !slices.ContainsFunc(ended, isFixed) {
		return o.markLost()
	}
	ended = slices.DeleteFunc(ended, isFixed)
	for _, h := range ended {
		o.forget(h)
	}
	return ended
}

// markLost is endAll with mu held.
func (o *Ownership) markLost() (ended []*Hold) {
	ended = o.list()
	o.holds = nil
	o.lost = true
	o.r.Core.dog.Drop(&o.lease) // no renewal may keep the key of a lost lock
	return ended
}
