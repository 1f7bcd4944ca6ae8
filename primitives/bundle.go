package primitives

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// bundle is what a hold of several locks holds: one hold of each, of which need must stand. Each member's is renewed by its own
// client; one that is no longer ours is never extended, as no script extends what is another's.
type bundle struct {
	h    *handle
	id   string
	need int

	mu    sync.Mutex
	parts []*Hold
	gone  int   // parts that ended other than by our release
	g     *grip // the user's hold, once it has joined
}

func (b *bundle) add(part *Hold) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.parts = append(b.parts, part)
}

// ended is told by a part that it ended.
func (b *bundle) ended(cause error) {
	if errors.Is(cause, ErrReleased) {
		return
	}
	b.mu.Lock()
	b.gone++
	g := b.g
	lost := g != nil && len(b.parts)-b.gone < b.need
	b.mu.Unlock()
	if lost {
		g.lose()
	}
}

func (b *bundle) join(g *grip) {
	b.mu.Lock()
	b.g = g
	lost := len(b.parts)-b.gone < b.need
	b.mu.Unlock()
	if lost {
		g.lose()
	}
}

func (b *bundle) publicID() string { return b.id }
func (b *bundle) fence() int64     { return 0 }
func (b *bundle) leases() bool     { return true }

// limit: each part has its own.
func (b *bundle) limit(time.Time, time.Duration) time.Time { return time.Time{} }

// valid is when too few would be left if nothing were heard of any.
func (b *bundle) valid(*grip) time.Time {
	ends := make([]time.Time, 0, len(b.held()))
	for _, part := range b.held() {
		if part.g.live() {
			ends = append(ends, part.ValidUntil())
		}
	}
	if len(ends) < b.need {
		return time.Time{}
	}
	slices.SortFunc(ends, func(a, b time.Time) int { return b.Compare(a) })
	return ends[b.need-1]
}

func (b *bundle) held() []*Hold {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.parts)
}

// part is the hold of the member that key names, nil if it is none or over.
func (b *bundle) part(key *nestKey) *Hold {
	for _, part := range b.held() {
		if *part.g.h.nests == *key && part.g.live() {
			return part
		}
	}
	return nil
}

func (b *bundle) forget(*grip) {
	for _, part := range b.held() {
		part.Detach()
	}
}

func (b *bundle) leave(ctx context.Context, _ *grip) (lost bool, err error) {
	return b.enough(func(part *Hold) error { return part.Release(ctx) })
}

func (b *bundle) abandon(ctx context.Context) {
	b.all(func(part *Hold) error { return part.Release(ctx) })
}

func (b *bundle) check(ctx context.Context) error {
	return b.judge(b.enough(func(part *Hold) error { return part.Check(ctx) }))
}

func (b *bundle) extend(ctx context.Context, _ *grip, d time.Duration) error {
	return b.judge(b.enough(func(part *Hold) error { return part.Extend(ctx, d) }))
}

func (b *bundle) judge(lost bool, err error) error {
	if !lost {
		return err
	}
	b.mu.Lock()
	g := b.g
	b.mu.Unlock()
	g.lose()
	return ErrLost
}

// enough does f to all parts at once, and tells whether so many are gone that too few are left, or why too few succeeded.
func (b *bundle) enough(f func(*Hold) error) (lost bool, err error) {
	t := b.all(f)
	switch {
	case t.good >= b.need:
		return false, nil
	case len(b.held())-t.lost < b.need:
		return true, nil
	}
	return false, errors.Join(t.errs...)
}

// all does f to all parts at once.
func (b *bundle) all(f func(*Hold) error) tally {
	parts := b.held()
	errs := make([]error, len(parts))
	var wg sync.WaitGroup
	for i, part := range parts {
		wg.Go(func() { errs[i] = f(part) })
	}
	wg.Wait()
	var t tally
	for _, err := range errs {
		t.count(err)
	}
	return t
}

// nestAll nests under each part of a bundle.
func (h *handle) nestAll(ctx context.Context, outer *bundle, s *settings, w *wait, parent *grip) (*Hold, error) {
	b := &bundle{h: h, id: outer.id, need: outer.need}
	sent := time.Now()
	var t tally
	for _, part := range outer.held() {
		m := part.g.h
		ms := m.settings.overlaid(s)
		ms.of = b
		hold, err := m.nestNow(ctx, part.g, &ms, w, nil)
		if err == nil {
			hold.g.depth = part.g.depth + 1
			b.add(hold)
		}
		t.count(err)
	}
	if t.good < b.need {
		b.abandon(ctx)
		return nil, errors.Join(t.errs...)
	}
	hold, err := h.newHold(ctx, b, s, sent, parent)
	if err != nil {
		b.abandon(ctx)
	}
	return hold, err
}
