package primitives

import (
	"context"
	"errors"
)

// nester is a protocol whose holds nest. Semaphores' do not.
type nester interface {
	// parent finds the hold in ctx under which an acquisition nests: nil if none, an error if it must
	// not. The hold may be one that was lost: then the acquisition fails with ErrLost.
	parent(ctx context.Context) (*Hold, error)
	// turns tells whether siblings under one hold take turns.
	turns() bool
}

// holdFrom finds the nearest live hold that ctx carries.
func holdFrom(ctx context.Context, key *nestKey) *Hold {
	hold, _ := ctx.Value(key).(*Hold)
	return hold
}

// outerFrom finds the nearest hold that ctx carries and whose release has not begun. It may be lost.
func outerFrom(ctx context.Context, key *nestKey) *Hold {
	hold, _ := ctx.Value(outerKey{key}).(*Hold)
	return hold
}

// outerKey asks a context for a hold that is live or lost.
type outerKey struct{ *nestKey }

// nestsIn tells whether an acquisition with ctx is one under a hold, or must not be one.
func (h *handle) nestsIn(ctx context.Context) bool {
	n, ok := h.proto.(nester)
	if !ok {
		return false
	}
	outer, err := n.parent(ctx)
	return outer != nil || err != nil
}

// acquireNested acquires under a hold that ctx carries. It returns neither a hold nor an error if there is none.
func (h *handle) acquireNested(ctx context.Context, s *settings, w *wait) (*Hold, error) {
	n, ok := h.proto.(nester)
	if !ok {
		return nil, nil
	}
	for {
		outer, err := n.parent(ctx)
		if outer == nil || err != nil {
			return nil, err
		}
		if s.nonReentrant {
			return nil, ErrDeadlock
		}
		hold, err := h.nestUnder(ctx, outer.g, s, w, n.turns())
		if !errors.Is(err, errOuterEnded) {
			return hold, err
		}
		if ctx.Err() != nil {
			return nil, gaveUp(ctx, nil)
		}
	}
}

// errOuterEnded: the hold to nest under ended while its turn, or Redis, was waited for.
var errOuterEnded = errors.New("outer hold ended")

func (h *handle) nestUnder(ctx context.Context, outer *grip, s *settings, w *wait, turns bool) (*Hold, error) {
	parent := (*grip)(nil)
	if turns {
		if err := h.takeTurn(ctx, outer, w); err != nil {
			return nil, err
		}
		parent = outer
	}
	hold, err := h.nestNow(ctx, outer, s, w, parent)
	if err != nil && parent != nil {
		parent.passTurn()
	}
	if hold != nil {
		hold.g.depth = outer.depth + 1
	}
	return hold, err
}

func (h *handle) nestNow(ctx context.Context, outer *grip, s *settings, w *wait, parent *grip) (*Hold, error) {
	t, ok := outer.t.(*tenure)
	if !ok {
		return h.nestAll(ctx, outer.t.(*bundle), s, w, parent)
	}
	if outer.lost() {
		return nil, ErrLost
	}
	if t.shared || t.h.kind != h.kind {
		// The wire counts for a shared id; the other side of a read-write lock counts by itself. Either
		// way it is the same id's own lock, which it may enter at once, as long as it still has it.
		q := h.request(s)
		q.named(t.id, true)
		q.nested = true
		hold, err := h.acquireOutermost(ctx, q, s, &wait{limit: 0}, parent)
		if errors.Is(err, ErrLost) {
			if outer.released() {
				return nil, errOuterEnded
			}
			_ = t.check(ctx) // reports the loss, if Redis confirms it
		}
		return hold, err
	}
	ttl := s.firstTTL()
	trying, stop := w.context(ctx)
	defer stop()
	sent, err := t.nest(trying, outer, ttl)
	if err != nil {
		if trying.Err() != nil && unanswered(err) {
			err = gaveUp(trying, err)
		}
		return nil, err
	}
	if ctx.Err() != nil {
		t.unnest(ctx)
		return nil, gaveUp(ctx, nil)
	}
	hold, err := h.newHold(ctx, t, s, sent, parent)
	if err != nil {
		t.unnest(ctx)
	}
	return hold, err
}

// takeTurn waits until no sibling is nested under outer.
func (h *handle) takeTurn(ctx context.Context, outer *grip, w *wait) error {
	nest := outer.gate()
	select {
	case nest.turn <- struct{}{}:
		return nil
	default:
	}
	if w.limit == 0 {
		return ErrNotAcquired
	}
	h.waits(w, outer.t.publicID())
	timer, stop := w.timer()
	defer stop()
	select {
	case nest.turn <- struct{}{}:
		return nil
	case <-nest.ended:
		return errOuterEnded
	case <-timer:
		return ErrNotAcquired
	case <-ctx.Done():
		return gaveUp(ctx, nil)
	case <-h.c.closing:
		return ErrClosed
	}
}

// nest is where those that nest under a hold wait for each other.
type nest struct {
	turn  chan struct{} // capacity 1: full while one has its turn
	ended chan struct{} // closed when the hold has ended
}

func (g *grip) gate() *nest {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.nest == nil {
		g.nest = &nest{make(chan struct{}, 1), make(chan struct{})}
		if g.cause != nil {
			close(g.nest.ended)
		}
	}
	return g.nest
}

func (g *grip) passTurn() { <-g.gate().turn }
