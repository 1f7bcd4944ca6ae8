package primitives

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/redlatch/redlatch/scripts"
)

// bundle is what a hold of several locks holds: one hold of each, its parts, of which need must stand. Each part is renewed by its own
// client; one that is no longer ours is never extended, as no script extends what is another's.
type bundle struct {
	h       *handle
	id      string // the owner in every member
	carried bool   // the id is that of a hold in ctx
	need    int
	budget  time.Duration // how long a part may take to answer; 0: as long as it takes

	mu     sync.Mutex
	parts  []*Hold
	sealed bool  // no part may join any more
	gone   int   // parts that ended other than by a release
	g      *grip // the user's hold, once it has joined
}

// add takes a part in, unless it comes too late: then the caller must see to it.
func (b *bundle) add(part *Hold) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sealed {
		return false
	}
	b.parts = append(b.parts, part)
	return true
}

// seal lets no further part in, and tells which there are.
func (b *bundle) seal() []*Hold {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sealed = true
	return slices.Clone(b.parts)
}

func (b *bundle) held() []*Hold {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.parts)
}

// short tells whether fewer parts stand than must. b.mu is held.
func (b *bundle) short() bool { return len(b.parts)-b.gone < b.need }

// stands tells whether the parts that were taken suffice, and still do.
func (b *bundle) stands() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.short()
}

// ended is told by a part that it ended.
func (b *bundle) ended(cause error) {
	if errors.Is(cause, ErrReleased) {
		return
	}
	b.mu.Lock()
	b.gone++
	g, lost := b.g, b.short()
	b.mu.Unlock()
	if lost && g != nil {
		g.loseInBackground()
	}
}

func (b *bundle) join(g *grip) {
	b.mu.Lock()
	b.g = g
	lost := b.short()
	for _, part := range b.parts {
		part.g.mu.Lock()
		part.g.ctx = g.ctx // what bounded the asking does not bound the hold
		part.g.mu.Unlock()
	}
	b.mu.Unlock()
	if lost {
		g.loseInBackground()
	}
}

func (b *bundle) publicID() string { return b.id }
func (b *bundle) fence() int64     { return 0 }
func (b *bundle) leases() bool     { return true }

// limit: each part has its own.
func (b *bundle) limit(time.Time, time.Duration) time.Time { return time.Time{} }

// valid is when too few would be left if nothing were heard of any.
func (b *bundle) valid(*grip) time.Time {
	var ends []time.Time
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
	for _, part := range b.seal() {
		part.Detach()
	}
}

func (b *bundle) leave(ctx context.Context, _ *grip) (lost bool, err error) {
	return b.outcome(b.release(ctx))
}

func (b *bundle) abandon(ctx context.Context) { b.release(ctx) }

// release gives back all parts. One that does not answer in time is given back in the background.
func (b *bundle) release(ctx context.Context) tally {
	b.seal()
	return b.ask(func(part *Hold) error { return part.Release(ctx) })
}

func (b *bundle) check(ctx context.Context) error {
	return b.judge(ctx, b.ask(func(part *Hold) error { return part.Check(ctx) }))
}

func (b *bundle) extend(ctx context.Context, _ *grip, d time.Duration) error {
	return b.judge(ctx, b.ask(func(part *Hold) error { return part.Extend(ctx, d) }))
}

func (b *bundle) judge(ctx context.Context, t tally) error {
	lost, err := b.outcome(t)
	if !lost {
		return err
	}
	b.g.lose(ctx)
	return ErrLost
}

// outcome tells whether so many parts are gone that too few are left, or why too few answered.
func (b *bundle) outcome(t tally) (lost bool, err error) {
	switch {
	case t.good >= b.need:
		return false, nil
	case t.good+len(t.errs) < b.need:
		return true, nil
	}
	return false, errors.Join(t.errs...)
}

// ask does f to all parts.
func (b *bundle) ask(f func(*Hold) error) tally {
	parts := b.held()
	return b.h.c.canvass(len(parts), b.budget, func(i int) error { return f(parts[i]) })
}

// tally is what came of asking several.
type tally struct {
	good int
	no   int     // that refused: another holds it, or it is not held
	errs []error // of those that failed
}

func (t *tally) count(err error) {
	switch {
	case err == nil:
		t.good++
	case errors.Is(err, ErrNotAcquired), errors.Is(err, ErrNotHeld), errors.Is(err, ErrLost):
		t.no++
	default:
		t.errs = append(t.errs, err)
	}
}

var errBudget = &scripts.Error{Script: "joint lock", Outcome: scripts.Unknown, Err: errors.New("no answer within the budget of a member")}

// canvass does f for all i < n at once, and counts what comes of it. It returns when all have answered; with a limit, it does not wait longer
// than that for any: those go on by themselves, and Close waits for them. The caller is a call that Close waits for.
func (c *Client) canvass(n int, limit time.Duration, f func(i int) error) (t tally) {
	answers := make(chan error, n)
	for i := range n {
		c.spawn(func() { answers <- f(i) })
	}
	var late <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		late = timer.C
	}
	for answered := range n {
		select {
		case err := <-answers:
			t.count(err)
		case <-late:
			for range n - answered {
				t.count(errBudget)
			}
			return t
		}
	}
	return t
}
