// Package duty repeats commands in the background until they succeed, cannot succeed any more, or
// are too old.
//
// The engine uses it for rollbacks and releases. They must go on after their call has returned,
// because the lock would otherwise stay taken until its lease ends, or for ever without one.
//
// Duties pile up during an outage, but goroutines must not. All duties of a server wait in one
// lane, oldest first. A lane makes few attempts at a time, and only one after an attempt was not
// answered. But an attempt on a dead connection ends late. So while duties wait, a lane begins
// another attempt every [ProbePause], and notices within that time that the server answers again.
// Then it makes more and more attempts at a time, and restarts those that are still stuck.
//
// A silent server does not delay other servers' duties.
//
// # Mutexes and goroutines
//
// Lanes.mu is held while the caller's spawn func runs, which starts a goroutine for each attempt.
// So it may be held while a mutex of spawn is taken, but no other one. A lane's timer takes
// Lanes.mu, and returns.
package duty

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// Bounds of the attempts.
const (
	// The pause between two attempts at a duty doubles from FirstRetry to LongestRetry.
	FirstRetry   = 20 * time.Millisecond
	LongestRetry = time.Second

	FirstAttempts = 8                      // attempts at a time in a new lane
	MaxAttempts   = 64                     // attempts at a time in a lane, while the server answers
	ProbePause    = 500 * time.Millisecond // pause between attempts beyond the limit; each ends by its timeout
	SweepPause    = 10 * time.Second       // how often duties whose time is over are dropped
)

// Answer is what an attempt says about the server.
type Answer uint8

// The answers.
const (
	Done   Answer = iota // the duty is done
	Failed               // the server has answered with an error, so the duty is repeated
	Silent               // the server has not answered, so the duty is repeated with care
	Final                // no attempt can succeed
)

// Duty is a command that is repeated until its answer is Done or Final, or until Over.
type Duty struct {
	// Do makes one attempt. It must be safe to repeat. Its context has the values of the context
	// passed to [Lanes.Add], and ends with the attempt's time.
	Do func(context.Context) Answer
	// Server returns a comparable value that stands for the server. Duties with equal values share
	// a lane. Server must only compute.
	Server func() any
	Over   time.Time // when the duty is dropped
	Due    time.Time // when the next attempt is due; set by the caller for the first one

	ctx context.Context //nolint:containedctx // has the values of Add's context, and never ends

	// Lanes.mu guards the rest.
	first chan struct{} // closed when the first attempt has ended, or the duty was dropped; then nil
	delay time.Duration // the pause before the next attempt
	began time.Time     // when the attempt under way began
	stop  context.CancelFunc
	stuck bool // the attempt was stopped because later ones were answered
}

// settle wakes the call that waits for the first attempt.
func (d *Duty) settle() {
	if d.first != nil {
		close(d.first)
		d.first = nil
	}
}

// Lanes are a client's duties, by server. Make them with [NewLanes]. They are safe for concurrent
// use.
type Lanes struct {
	spawn   func(f func())
	attempt time.Duration

	mu     sync.Mutex // guards the rest; spawn is called while it is held
	lanes  map[any]*lane
	ending bool          // the client is closing: each duty gets one more attempt at most
	idle   chan struct{} // closed when no lane is left, while ending
	closed bool          // no duty is accepted
}

// NewLanes returns lanes without duties. spawn starts a goroutine for each attempt, which ends by
// itself within the time of an attempt if Do heeds its context. spawn must not block.
func NewLanes(spawn func(f func()), attempt time.Duration) *Lanes {
	return &Lanes{spawn: spawn, attempt: attempt, lanes: map[any]*lane{}}
}

// Add adds a duty, which is repeated until it is done, until d.Over, or until [Lanes.Finish]. It
// does not block. The attempts have the values of ctx, but do not end with it. first is closed when
// the first attempt has ended, or when the duty was dropped without one.
func (ls *Lanes) Add(ctx context.Context, d *Duty) (first <-chan struct{}) {
	settled := make(chan struct{})
	d.ctx = context.WithoutCancel(ctx)
	d.first = settled
	d.delay = FirstRetry
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.closed {
		d.settle()
	} else {
		ls.enqueue(d)
	}
	return settled
}

// Len returns how many servers have duties.
func (ls *Lanes) Len() int {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return len(ls.lanes)
}

// Finish makes the last attempts for a client that is closing: one for each duty. If a server did
// not answer its latest attempt, its duties that were tried before are dropped. If it does not
// answer now either, all its duties are dropped. Finish blocks for limit at most. Later duties are
// dropped at once.
func (ls *Lanes) Finish(limit time.Duration) {
	ls.mu.Lock()
	ls.ending = true
	ls.idle = make(chan struct{})
	for _, l := range ls.lanes {
		silent := l.limit == 1
		l.drop(func(d *Duty) bool {
			d.Due = time.Now()
			return silent && d.first == nil
		})
		l.proceed()
	}
	if len(ls.lanes) == 0 {
		ls.settle()
	}
	ls.mu.Unlock()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-ls.idle:
	case <-timer.C:
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.closed = true
	for _, l := range ls.lanes {
		l.drop(func(*Duty) bool { return true })
		for d := range l.running {
			d.stop()
		}
		l.timer.Stop()
	}
}

// settle wakes Finish. mu is held.
func (ls *Lanes) settle() {
	select {
	case <-ls.idle:
	default:
		close(ls.idle)
	}
}

// enqueue puts a duty into its current server's lane. mu is held.
func (ls *Lanes) enqueue(d *Duty) {
	server := d.Server()
	l := ls.lanes[server]
	if l == nil {
		l = &lane{lanes: ls, server: server, running: map[*Duty]struct{}{}, limit: FirstAttempts, swept: time.Now()}
		l.timer = time.AfterFunc(time.Hour, func() {
			ls.mu.Lock()
			defer ls.mu.Unlock()
			l.proceed()
		})
		ls.lanes[server] = l
	}
	heap.Push(&l.waiting, d)
	l.proceed()
}

// lane is the duties of one server. It exists as long as there are any. Lanes.mu guards it, and is
// held by the callers of its methods.
type lane struct {
	lanes   *Lanes
	server  any
	waiting byDue
	running map[*Duty]struct{}
	limit   int         // attempts at a time
	began   time.Time   // when the latest attempt began
	swept   time.Time   // when duties whose time is over were last dropped
	timer   *time.Timer // calls proceed
}

// proceed begins the attempts that the lane may make now, and sets its timer for the next ones. It
// removes the lane if it is empty.
func (l *lane) proceed() {
	now := time.Now()
	if now.Sub(l.swept) >= SweepPause {
		l.swept = now
		l.drop(func(d *Duty) bool { return !now.Before(d.Over) })
	}
	for len(l.waiting) > 0 {
		d := l.waiting[0]
		probe := l.began.Add(ProbePause)
		switch {
		case !now.Before(d.Over):
			heap.Pop(&l.waiting)
			d.settle()
			continue
		case now.Before(d.Due):
			l.timer.Reset(d.Due.Sub(now))
			return
		case len(l.running) >= l.limit && now.Before(probe):
			l.timer.Reset(probe.Sub(now))
			return
		}
		heap.Pop(&l.waiting)
		l.began = now
		d.began = now
		l.running[d] = struct{}{}
		l.begin(d)
	}
	if len(l.running) > 0 {
		return
	}
	l.timer.Stop()
	if l.lanes.lanes[l.server] == l {
		delete(l.lanes.lanes, l.server)
	}
	if l.lanes.ending && len(l.lanes.lanes) == 0 {
		l.lanes.settle()
	}
}

// begin makes an attempt at d in another goroutine.
func (l *lane) begin(d *Duty) {
	until := time.Now().Add(l.lanes.attempt)
	if d.Over.Before(until) {
		until = d.Over
	}
	ctx, stop := context.WithDeadline(d.ctx, until)
	d.stop = stop
	d.stuck = false
	l.lanes.spawn(func() {
		defer stop()
		answer := d.Do(ctx)
		l.lanes.mu.Lock()
		defer l.lanes.mu.Unlock()
		l.ended(d, answer)
	})
}

// ended handles the result of an attempt.
func (l *lane) ended(d *Duty, answer Answer) {
	delete(l.running, d)
	d.settle()
	switch {
	case d.stuck: // not the server's fault: others were answered
	case answer == Silent:
		l.limit = 1
	default:
		l.limit = min(2*l.limit, MaxAttempts)
		l.restartBefore(d.began)
	}
	now := time.Now()
	switch {
	case answer == Done, answer == Final, !now.Before(d.Over), l.lanes.closed: // no further attempt
	case l.lanes.ending && !d.stuck: // d had its last attempt
		if answer == Silent {
			l.drop(func(*Duty) bool { return true })
		}
	case d.stuck:
		l.lanes.enqueue(d)
	default:
		d.Due = now.Add(d.delay)
		d.delay = min(2*d.delay, LongestRetry)
		l.lanes.enqueue(d)
	}
	l.proceed()
}

// restartBefore stops the attempts that began well before one that was answered. They are stuck on
// connections that the outage has broken, and are made again.
func (l *lane) restartBefore(began time.Time) {
	for d := range l.running {
		if began.Sub(d.began) >= ProbePause {
			d.stuck = true
			d.stop()
		}
	}
}

// drop drops the waiting duties for which match is true.
func (l *lane) drop(match func(*Duty) bool) {
	kept := l.waiting[:0]
	for _, d := range l.waiting {
		if match(d) {
			d.settle()
		} else {
			kept = append(kept, d)
		}
	}
	clear(l.waiting[len(kept):])
	l.waiting = kept
	heap.Init(&l.waiting)
}

// byDue is a heap of duties, with the first one that is due on top. A new duty is usually due at
// once, so the oldest comes first.
type byDue []*Duty

func (h byDue) Len() int           { return len(h) }
func (h byDue) Less(i, j int) bool { return h[i].Due.Before(h[j].Due) }
func (h byDue) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements [heap.Interface].
func (h *byDue) Push(x any) { *h = append(*h, x.(*Duty)) }

// Pop implements [heap.Interface].
func (h *byDue) Pop() any {
	last := len(*h) - 1
	d := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return d
}
