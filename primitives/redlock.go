package primitives

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/redlatch/redlatch/pubsub"
)

// NewRedLock makes one lock of several on independent Redis servers: it is held while a majority of them is, so that it survives the loss of
// the others. All are asked in parallel, each with a budget of a tenth of the TTL, at least 100 ms and at most 2 s: what a dead server costs.
//
// While the majority stands without a break, a renewed RedLock acquires a member again that has forgotten it (restarted empty)
// and that nobody else holds. So it survives a rolling restart. A majority that was lost is never acquired again.
//
// It is the algorithm published as Redlock (https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/): its safety rests on
// clocks that drift by no more than the margin ([WithSafetyMargin]: a hundredth of the TTL and 2 ms, as published), and on servers
// that, having crashed without their data on disk, stay away for as long as the longest TTL. It gives no fencing token.
//
// Members, options and identity are as [NewMultiLock] says.
func NewRedLock(locks []*Lock, opts ...Option) *Lock {
	l, j := newJoint("red", locks, opts)
	j.need, j.hasty = len(j.members)/2+1, true
	l.proto = &red{j}
	return l
}

// red takes a majority of the members, at once.
type red struct{ *joint }

func (r *red) stand(ctx context.Context, q *request, s *settings, w *wait) (verdict, error) {
	if id, err := r.carried(ctx); err != nil || id != "" {
		// Those who wait in the room may wait for what this context holds: not to be queued up behind.
		return r.insist(ctx, q, w, func() (verdict, error) { return r.h.try(ctx, q) })
	}
	v := verdict{wait: -1}
	if !r.h.c.rooms.hopeless(r.h, q, s) {
		var err error
		if v, err = r.h.try(ctx, q); err != nil || v.granted {
			return v, err
		}
	}
	r.h.waits(w, q.id)
	return r.h.c.rooms.wait(ctx, r.h, q, s, w, v)
}

func (r *red) take(ctx context.Context, q *request) (verdict, error) {
	b, err := r.attempt(ctx, q)
	if err != nil {
		return verdict{}, err
	}
	win := newWindow(ctx, &q.wait)
	defer win.close()
	if q.split > 0 { // rivals had some each: whoever comes back first should find all
		(&wait{}).rest(win.ending, rand.N(min(max(16*q.split, 5*time.Millisecond), 250*time.Millisecond))) //nolint:gosec // jitter
	}
	limited, cancel := context.WithTimeout(win.ending, b.budget)
	defer cancel()
	began := time.Now()
	asked := r.askAll(ctx, limited, q, b)
	t := asked.count(win.ending, b.budget)
	b.seal()
	if ctx.Err() == nil && b.stands() {
		q.parts = b
		return verdict{granted: true, sent: time.Now()}, nil
	}
	cancel()
	back := b.giveBack(ctx)
	win.settle(b.budget, back)
	if win.ending.Err() != nil {
		win.settle(b.budget, asked) // what was under way is given back too
	}
	if q.split = 0; t.good > 0 {
		q.split = time.Since(began)
	}
	switch tolerated := len(r.members) - r.need; {
	case ctx.Err() != nil:
		return verdict{}, gaveUp(ctx, nil)
	case win.ending.Err() != nil:
		return verdict{}, gaveUp(ctx, errors.Join(t.errs...))
	case t.no > tolerated, len(t.errs) <= tolerated: // those that failed are not to blame
		return verdict{wait: -1, met: errors.Join(t.errs...)}, nil
	default:
		return verdict{}, decisive(t.errs, tolerated)
	}
}

// askAll asks all members for q until limited is done, and gathers in b what is had. What comes later is given back.
func (r *red) askAll(ctx, limited context.Context, q *request, b *bundle) *survey {
	return r.h.c.survey(len(r.members), func(i int) error {
		part, err := b.take(limited, r.members[i], q, &wait{quiet: true})
		switch {
		case err == nil && b.add(part):
			return nil
		case err == nil:
			_ = part.Release(ctx) // goes on in the background if it must
			return errLate
		case limited.Err() != nil:
			return errBudget
		}
		return err
	})
}

// decisive joins errors: those that do not pass come first if they alone are too many, for the first decides whether waiting goes on.
func decisive(errs []error, tolerated int) error {
	rank := func(err error) int {
		if unanswered(err) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(errs, func(a, b error) int { return rank(a) - rank(b) })
	if passing := slices.IndexFunc(errs, func(err error) bool { return rank(err) == 1 }); passing >= 0 && len(errs)-passing > tolerated {
		slices.Reverse(errs)
	}
	return errors.Join(errs...)
}

// listen hears of releases. Reason to try is that a majority has told of one: what an attempt gives back, ours or a rival's, is told too, and
// would else have those who wait for a holder of some other members wake each other for ever.
func (r *red) listen(hear func(pubsub.Signal)) []*pubsub.Subscription {
	var mu sync.Mutex
	told := map[int]bool{}
	enough := func(member int) bool {
		mu.Lock()
		defer mu.Unlock()
		told[member] = true
		if len(told) < r.need {
			return false
		}
		clear(told)
		return true
	}
	subs := make([]*pubsub.Subscription, len(r.members))
	for i, m := range r.members {
		subs[i] = m.c.hub.Subscribe(m.proto.channel(&request{}), func(s pubsub.Signal) {
			if s.Resubscribed || (r.heeds(s.Payload) && enough(i)) {
				hear(s)
			}
		})
	}
	return subs
}
