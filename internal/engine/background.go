package engine

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// Duties: rollbacks and releases that the server has not answered. They must go on after their call has
// returned, because the lock would otherwise stay taken until its lease ends, or for ever without one.
// But a caller often wants to know that the lock is free when its call returns. So the call waits for
// the first attempt for a short time, and attempts in goroutines of the core repeat it.
//
// An outage collects duties, and must not collect goroutines with them. All duties of a server wait in one
// lane, oldest first. A lane makes few attempts at a time, and when one was not answered, only one. But an
// attempt on a dead connection ends late. So while duties wait, a lane begins another attempt each
// probePause: it notices within that time that the server answers again. Then it makes more and more
// attempts at once, and begins those anew that are still stuck.
//
// A silent server delays no duty of another one.

// Bounds of work in the background.
const (
	releaseTimeout = 5 * time.Second // for one attempt, and for a release that its caller waits for
	// rollbackGrace is how long a call waits for its rollback when its own time is over.
	rollbackGrace = 15 * time.Millisecond
	// rollbackTimeout is how long a call waits for its rollback when it still has time.
	rollbackTimeout = time.Second
	// The pause between two attempts at a duty doubles from firstRetry to longestRetry.
	firstRetry   = 20 * time.Millisecond
	longestRetry = time.Second

	firstAttempts = 8                      // of a new lane at a time
	maxAttempts   = 64                     // of a lane at a time, while the server answers
	probePause    = 500 * time.Millisecond // between attempts beyond the limit; few are in flight, as each ends
	sweepPause    = 10 * time.Second       // how often duties whose time is over are dropped
)

// duty is a command that is repeated until the server has answered it.
type duty struct {
	r    *Resource
	do   func(context.Context) error
	ctx  context.Context //nolint:containedctx // the values of its call's context; it never ends
	over time.Time       // when it is dropped

	// duties.mu guards the rest.
	first chan struct{} // closed when the first attempt has ended, or when it was dropped; then nil
	due   time.Time     // when the next attempt may begin
	delay time.Duration // the pause before that
	began time.Time     // of the attempt under way
	stop  context.CancelFunc
	stuck bool // its attempt was stopped because later ones were answered
}

// settle wakes the call that waits for the first attempt.
func (d *duty) settle() {
	if d.first != nil {
		close(d.first)
		d.first = nil
	}
}

// duties are all duties of a client, by server. It is a part of Core.
type duties struct {
	mu     sync.Mutex // guards the rest; Core.mu may be taken while it is held
	lanes  map[any]*lane
	ending bool          // the client closes: each duty gets one more attempt at most
	idle   chan struct{} // closed when no lane is left, while ending
	closed bool          // none is accepted
}

// lane is the duties of one server. It exists as long as it has any.
type lane struct {
	waiting dutyHeap
	running map[*duty]struct{}
	limit   int // attempts at a time
	began   time.Time
	swept   time.Time
	timer   *time.Timer // calls wake
}

// dutyHeap has the duty that is due first on top. A duty is due as soon as it arrives, so the oldest
// comes first.
type dutyHeap []*duty

func (h dutyHeap) Len() int           { return len(h) }
func (h dutyHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h dutyHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements [heap.Interface].
func (h *dutyHeap) Push(x any) { *h = append(*h, x.(*duty)) }

// Pop implements [heap.Interface].
func (h *dutyHeap) Pop() any {
	last := len(*h) - 1
	d := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return d
}

// inBackground runs do until it succeeds, until over, or until the client closes. It blocks until the
// first attempt has ended, for limit at most, and for rollbackGrace at most once ctx has ended.
//
// do runs in a goroutine that Close waits for. Its context has the values of ctx but does not end with
// it, because a cancelled caller must not leave the lock taken. do must be safe to repeat.
func (r *Resource) inBackground(
	ctx context.Context, over time.Time, limit time.Duration, do func(context.Context) error,
) {
	first := make(chan struct{})
	r.Core.addDuty(&duty{
		r: r, do: do, ctx: context.WithoutCancel(ctx), over: over,
		first: first, due: time.Now(), delay: firstRetry,
	})
	awaitFirst(ctx, first, limit)
}

// awaitFirst waits until first is closed, for limit at most, and for rollbackGrace at most once ctx has
// ended.
func awaitFirst(ctx context.Context, first <-chan struct{}, limit time.Duration) {
	if limit <= 0 {
		return
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-first:
		return
	case <-timer.C:
		return
	case <-ctx.Done():
	}
	timer.Reset(min(limit, rollbackGrace)) // the caller's time is over
	select {
	case <-first:
	case <-timer.C:
	}
}

func (c *Core) addDuty(d *duty) {
	c.duties.mu.Lock()
	defer c.duties.mu.Unlock()
	if c.duties.closed {
		d.settle()
		return
	}
	c.enqueue(d)
}

// enqueue puts a duty into the lane of the server that has its resource now. duties.mu is held.
func (c *Core) enqueue(d *duty) {
	server := c.serverOf(d.r)
	l := c.duties.lanes[server]
	if l == nil {
		if c.duties.lanes == nil {
			c.duties.lanes = map[any]*lane{}
		}
		l = &lane{running: map[*duty]struct{}{}, limit: firstAttempts, swept: time.Now()}
		l.timer = time.AfterFunc(time.Hour, func() {
			c.duties.mu.Lock()
			defer c.duties.mu.Unlock()
			c.proceed(server, l)
		})
		c.duties.lanes[server] = l
	}
	heap.Push(&l.waiting, d)
	c.proceed(server, l)
}

// proceed begins the attempts that a lane may make now, and sets its timer for the next ones. It removes
// the lane if it is empty. duties.mu is held.
func (c *Core) proceed(server any, l *lane) {
	now := time.Now()
	if now.Sub(l.swept) >= sweepPause {
		l.swept = now
		l.drop(func(d *duty) bool { return !now.Before(d.over) })
	}
	for len(l.waiting) > 0 {
		d := l.waiting[0]
		probe := l.began.Add(probePause)
		switch {
		case !now.Before(d.over):
			heap.Pop(&l.waiting)
			d.settle()
			continue
		case now.Before(d.due):
			l.timer.Reset(d.due.Sub(now))
			return
		case len(l.running) >= l.limit && now.Before(probe):
			l.timer.Reset(probe.Sub(now))
			return
		}
		heap.Pop(&l.waiting)
		l.began, d.began = now, now
		l.running[d] = struct{}{}
		c.begin(server, l, d)
	}
	if len(l.running) > 0 {
		return
	}
	l.timer.Stop()
	if c.duties.lanes[server] == l {
		delete(c.duties.lanes, server)
	}
	if c.duties.ending && len(c.duties.lanes) == 0 && !isClosed(c.duties.idle) {
		close(c.duties.idle)
	}
}

// begin makes an attempt at d in a goroutine that Close waits for. duties.mu is held.
func (c *Core) begin(server any, l *lane, d *duty) {
	until := time.Now().Add(releaseTimeout)
	if d.over.Before(until) {
		until = d.over
	}
	ctx, stop := context.WithDeadline(d.ctx, until)
	d.stop, d.stuck = stop, false
	c.Spawn(func() {
		defer stop()
		c.ended(server, l, d, d.do(ctx))
	})
}

// ended takes in the result of an attempt.
func (c *Core) ended(server any, l *lane, d *duty, err error) {
	failure := c.FailureOf(err)
	ds := &c.duties
	ds.mu.Lock()
	defer ds.mu.Unlock()
	delete(l.running, d)
	d.settle()
	silent := failure.InDoubt || failure.Retry
	switch {
	case d.stuck: // not the server's fault: others were answered
	case silent:
		l.limit = 1
	default:
		l.limit = min(2*l.limit, maxAttempts)
		l.restartBefore(d.began)
	}
	now := time.Now()
	switch {
	case err == nil, failure.Closed, !now.Before(d.over), ds.closed:
	case ds.ending && !d.stuck: // d had its last attempt
		if silent {
			l.drop(func(*duty) bool { return true })
		}
	case d.stuck:
		d.due = now
		c.enqueue(d)
	default:
		d.due = now.Add(d.delay)
		d.delay = min(2*d.delay, longestRetry)
		c.enqueue(d)
	}
	c.proceed(server, l)
}

// restartBefore stops the attempts that began well before one that was answered. They are stuck on
// connections that the outage has broken, and begin anew. duties.mu is held.
func (l *lane) restartBefore(began time.Time) {
	for d := range l.running {
		if began.Sub(d.began) >= probePause {
			d.stuck = true
			d.stop()
		}
	}
}

// drop drops the waiting duties for which which is true. duties.mu is held.
func (l *lane) drop(which func(*duty) bool) {
	kept := l.waiting[:0]
	for _, d := range l.waiting {
		if which(d) {
			d.settle()
		} else {
			kept = append(kept, d)
		}
	}
	clear(l.waiting[len(kept):])
	l.waiting = kept
	heap.Init(&l.waiting)
}

// finishDuties makes the last attempts, for a client that closes: one for each duty. If the server did not
// answer the latest attempts, duties that were tried before are dropped. If it does not answer now either, all
// are dropped. finishDuties blocks for the command timeout at most. Later duties are dropped at once.
func (c *Core) finishDuties() {
	ds := &c.duties
	ds.mu.Lock()
	ds.ending, ds.idle = true, make(chan struct{})
	for server, l := range ds.lanes {
		silent := l.limit == 1
		l.drop(func(d *duty) bool {
			d.due = time.Now()
			return silent && d.first == nil
		})
		c.proceed(server, l)
	}
	if len(ds.lanes) == 0 && !isClosed(ds.idle) {
		close(ds.idle)
	}
	ds.mu.Unlock()
	timer := time.NewTimer(c.CommandTimeout)
	defer timer.Stop()
	select {
	case <-ds.idle:
	case <-timer.C:
	}
	ds.mu.Lock()
	defer ds.mu.Unlock()
	ds.closed = true
	for _, l := range ds.lanes {
		l.drop(func(*duty) bool { return true })
		for d := range l.running {
			d.stop()
		}
		l.timer.Stop()
	}
}

// rollbackLimit is how long a call that began then may wait for its rollback. A server that was silent
// for the whole command timeout will probably not answer the rollback either, so then it is short.
func (c *Core) rollbackLimit(began time.Time) time.Duration {
	return min(max(c.CommandTimeout-time.Since(began), rollbackGrace), rollbackTimeout)
}
