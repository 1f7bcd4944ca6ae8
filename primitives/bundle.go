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
	settled *settings     // of the request it was made for

	mu     sync.Mutex
	parts  []*Hold
	sealed bool   // add takes in no further part
	closed bool   // released, detached or lost: how its parts end does not matter any more
	g      *grip  // the user's hold, once it has joined
	asking int    // calls of Check and Extend under way, which report a loss themselves
	again  retake // of lost parts
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

// seal lets no further part in.
func (b *bundle) seal() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sealed = true
}

// close seals the bundle for good, and returns its parts. From now on they end because the joint
// hold does.
func (b *bundle) close() []*Hold {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shut()
	return slices.Clone(b.parts)
}

// shut is close for callers that hold b.mu.
func (b *bundle) shut() {
	if !b.closed {
		b.sealed, b.closed = true, true
		b.again.stop()
	}
}

func (b *bundle) held() []*Hold {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.parts)
}

// short tells whether fewer parts are live than must be. b.mu is held.
func (b *bundle) short() bool {
	live := 0
	for _, part := range b.parts {
		if part.g.live() {
			live++
		}
	}
	return live < b.need
}

// stands tells whether the parts that were taken suffice, and still do.
func (b *bundle) stands() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.short()
}

// ended is called when a part has ended, and when the caller of its Release is about to free it. Only
// parts that joined count. The joint hold is lost as soon as too few are live, whatever ended the others.
func (b *bundle) ended(part *grip, cause error) {
	b.mu.Lock()
	joined := slices.ContainsFunc(b.parts, func(p *Hold) bool { return p.g == part })
	// The client that ends its holds ends the joint hold too, with ErrClosed.
	closing := errors.Is(cause, ErrClosed) && part.h.c == b.h.c
	if b.closed || b.g == nil || !joined || closing {
		b.mu.Unlock()
		return
	}
	lost, reported := b.short(), b.asking > 0
	b.mu.Unlock()
	if lost && reported {
		return // the call that asks reports it
	}
	if lost {
		b.loseInBackground()
	} else if errors.Is(cause, ErrLost) {
		b.retakeLater()
	}
}

// lose ends the joint hold with ErrLost.
func (b *bundle) lose(ctx context.Context) {
	b.close()
	b.g.lose(ctx)
}

func (b *bundle) loseInBackground() {
	b.close()
	b.g.loseInBackground()
}

func (b *bundle) join(g *grip) {
	b.mu.Lock()
	b.g = g
	lost, gone := b.short(), false
	for _, part := range b.parts {
		part.g.mu.Lock()
		part.g.ctx = g.ctx // what bounded the asking does not bound the hold
		gone = gone || part.g.cause != nil
		part.g.mu.Unlock()
	}
	b.mu.Unlock()
	if lost {
		b.loseInBackground()
	} else if gone {
		b.retakeLater()
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
	for _, part := range b.close() {
		part.Detach()
	}
}

func (b *bundle) leave(ctx context.Context, _ *grip) (lost bool, err error) {
	return b.outcome(b.release(ctx))
}

func (b *bundle) abandon(ctx context.Context) { b.release(ctx) }

// release gives back all parts, even if ctx is done. One that does not answer in time is given back in the background.
func (b *bundle) release(ctx context.Context) tally {
	return b.giveBack(ctx).count(context.WithoutCancel(ctx), b.budget)
}

// giveBack starts to release all parts. The caller decides how long it waits.
func (b *bundle) giveBack(ctx context.Context) *survey {
	parts := b.close()
	return b.h.c.survey(len(parts), func(i int) error { return parts[i].Release(ctx) })
}

func (b *bundle) check(ctx context.Context) error {
	return b.find(ctx, func(part *Hold) error { return part.Check(ctx) })
}

func (b *bundle) extend(ctx context.Context, _ *grip, d time.Duration) error {
	return b.find(ctx, func(part *Hold) error { return part.Extend(ctx, d) })
}

// find does f to all parts, and reports a loss that it finds before it returns.
func (b *bundle) find(ctx context.Context, f func(*Hold) error) error {
	b.mu.Lock()
	b.asking++
	b.mu.Unlock()
	lost, err := b.outcome(b.ask(ctx, f))
	b.mu.Lock()
	b.asking--
	lost = lost || (b.short() && !b.closed)
	b.mu.Unlock()
	if !lost {
		return err
	}
	b.lose(ctx)
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
func (b *bundle) ask(ctx context.Context, f func(*Hold) error) tally {
	parts := b.held()
	return b.h.c.canvass(ctx, len(parts), b.budget, func(i int) error { return f(parts[i]) })
}

// tally is what came of asking several.
type tally struct {
	good int
	no   int     // that refused: another holds it, or it is not held
	errs []error // of those that failed
}

// count notes an answer. An error that is only the end of ctx is no refusal, even if the cause of that end reads like one:
// ctx may be the context of another hold, which was lost.
func (t *tally) count(ctx context.Context, err error) {
	switch {
	case err == nil:
		t.good++
	case ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
		t.errs = append(t.errs, err)
	case errors.Is(err, ErrNotAcquired), errors.Is(err, ErrNotHeld), errors.Is(err, ErrLost):
		t.no++
	default:
		t.errs = append(t.errs, err)
	}
}

// noAnswer is the error of a member that has not answered in time.
func noAnswer(err error) error {
	return &scripts.Error{Script: "joint lock", Outcome: scripts.Unknown, Err: err}
}

var errBudget = noAnswer(errors.New("no answer within the budget of a member"))

// canvass runs f for all i < n at the same time and counts the answers, until ctx is done. With a limit it waits no longer
// than that. Calls of f that have not returned by then go on in the background, and Close waits for them.
// The caller is a call that Close waits for.
func (c *Client) canvass(ctx context.Context, n int, limit time.Duration, f func(i int) error) tally {
	return c.survey(n, f).count(ctx, limit)
}

// survey asks several members at the same time.
type survey struct {
	answers chan error
	open    int   // answers that nobody has read yet
	failed  error // the last answer that was an error
}

// survey runs f for all i < n in goroutines that Close waits for. The caller is a call that Close waits for.
func (c *Client) survey(n int, f func(i int) error) *survey {
	s := &survey{answers: make(chan error, n), open: n}
	for i := range n {
		c.spawn(func() { s.answers <- f(i) })
	}
	return s
}

// next is the next answer. ok is false if done is closed or late fires before there is one.
func (s *survey) next(done <-chan struct{}, late <-chan time.Time) (ok bool, answer error) {
	select {
	case answer = <-s.answers: // counts even if the time is over
	default:
		select {
		case answer = <-s.answers:
		case <-done:
			return false, nil
		case <-late:
			return false, nil
		}
	}
	s.open--
	if answer != nil {
		s.failed = answer
	}
	return true, answer
}

// gaveUp is the error of an acquisition that ended before the survey was answered, or at the same time.
func (s *survey) gaveUp(ctx context.Context) error {
	if met := s.failed; errors.Is(met, ErrNotAcquired) && (ctx.Err() == nil || errors.Is(met, context.Cause(ctx))) {
		return met
	}
	return gaveUp(ctx, s.failed)
}

// count counts the answers that come until ctx is done, or within limit if that is not 0. The others count as failed.
func (s *survey) count(ctx context.Context, limit time.Duration) (t tally) {
	var late <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		late = timer.C
	}
	for s.open > 0 {
		ok, answer := s.next(ctx.Done(), late)
		if !ok {
			err := errBudget
			if ctx.Err() != nil {
				err = noAnswer(context.Cause(ctx))
			}
			t.errs = append(t.errs, slices.Repeat([]error{err}, s.open)...)
			return t
		}
		t.count(ctx, answer)
	}
	return t
}

// undoTime is how long a joint acquisition still waits, once its ctx or its wait has ended, for members to take back what the
// attempt had. It leaves the rest to the background.
const undoTime = 20 * time.Millisecond

// window is the time that a joint acquisition has. One goroutine uses it.
type window struct {
	ending context.Context //nolint:containedctx // done when the caller's ctx is, or when the wait is over
	close  context.CancelFunc
	until  time.Time // when to wait no longer for what is given back; zero: the acquisition has not ended
}

func newWindow(ctx context.Context, w *wait) *window {
	if w.limit <= 0 || w.until.IsZero() {
		return &window{ending: ctx, close: func() {}}
	}
	ending, stop := context.WithDeadlineCause(ctx, w.until, errWaitOver)
	return &window{ending: ending, close: stop}
}

// call calls f, but does not wait for it once the acquisition has ended: then it returns the survey that f will answer.
func (w *window) call(c *Client, f func() error) (pending *survey, err error) {
	if w.ending.Done() == nil {
		return nil, f()
	}
	s := c.survey(1, func(int) error { return f() })
	if ok, answer := s.next(w.ending.Done(), nil); ok {
		return nil, answer
	}
	return s, nil
}

// settle waits until the surveys are answered, or for as long as limit says if that is not 0. It returns undoTime after the
// acquisition has ended in any case.
func (w *window) settle(limit time.Duration, surveys ...*survey) {
	var late <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		late = timer.C
	}
	ended := w.ending.Done()
	for _, s := range surveys {
		for s.open > 0 {
			ok, _ := s.next(ended, late)
			switch {
			case ok:
			case ended != nil && w.ending.Err() != nil:
				if w.until.IsZero() {
					w.until = time.Now().Add(undoTime)
				}
				timer := time.NewTimer(time.Until(w.until))
				defer timer.Stop()
				ended, late = nil, timer.C
			default:
				return
			}
		}
	}
}
