package engine

import (
	"context"
	"math/rand/v2"
	"time"
)

// How a request polls.
//
// A request with Terms.PollMin waits as a spin lock does: it tries by itself, after pauses of its
// own. It is in no local queue, so it waits for no other request of its client, and none waits for
// it. It subscribes to nothing, and no release hands the lock off to it. Requests of joint locks
// that no message wakes poll too.
//
// A refused attempt leaves a mark on the server. Clients that hand a lock off among their waiters
// find it: see handoff.go.

// poller is the queue of one request that polls. One goroutine at a time uses it: that of the
// request, or the timer of beginWait. Only wakeUp may be called by others.
type poller struct {
	r       *Resource
	pause   func(n int) time.Duration // returns the next pause after n others
	pauses  int
	contact Contact
	tryAt   time.Time
	wakeUp  *time.Timer // at tryAt
}

// PrivateQueue returns a queue for one request, which polls. pause returns its next pause after n
// others. Other requests do not find the queue, so it delays none of them.
func (r *Resource) PrivateQueue(pause func(n int) time.Duration) Queue {
	return &poller{r: r, pause: pause}
}

// pollPause returns the pause after n pauses: PollMin doubled n times, PollMax at most, and up to a
// quarter more.
func (t *Terms) pollPause(n int) time.Duration {
	pause := t.PollMin
	for ; n > 0 && pause < t.PollMax; n-- {
		pause *= 2 // a shift could overflow
	}
	pause = min(pause, t.PollMax)
	return pause + rand.N(pause/4+1) //nolint:gosec // jitter
}

// Join implements [Queue].
func (p *poller) Join(w *Waiter, refused Result) {
	w.Request.ShareContact(&p.contact)
	qs := &p.r.Core.queues
	key := queueKey{p.r.Kind, p.r.Name}
	qs.mu.Lock()
	qs.polling[key]++
	qs.mu.Unlock()
	p.schedule(w, refused.RetryAfter)
}

// schedule has w try after the next pause, or after retryAfter if that is sooner. A negative
// retryAfter is unknown.
func (p *poller) schedule(w *Waiter, retryAfter time.Duration) {
	pause := p.pause(p.pauses)
	p.pauses++
	if retryAfter >= 0 && retryAfter < pause { // a longer one may be as long as a Duration can be
		pause = min(pause, retryAfter+time.Millisecond) // Redis rounds a TTL down
	}
	p.tryAt = time.Now().Add(pause)
	p.wakeUp = time.AfterFunc(pause, w.Wake)
}

// NextStep implements [Queue].
func (p *poller) NextStep(*Waiter) Step { return Step{Try: !time.Now().Before(p.tryAt)} }

// Try implements [Queue].
func (p *poller) Try(ctx context.Context, w *Waiter) (Result, error) {
	res, err := p.r.Try(ctx, w.Request)
	if verdict := Judge(res, err); verdict != Acquired {
		p.schedule(w, verdict.retryAfter(res))
	}
	return res, err
}

// Leave implements [Queue].
func (p *poller) Leave(*Waiter, Result) {
	p.wakeUp.Stop()
	qs := &p.r.Core.queues
	key := queueKey{p.r.Kind, p.r.Name}
	qs.mu.Lock()
	defer qs.mu.Unlock()
	qs.polling[key]--
	if qs.polling[key] == 0 {
		delete(qs.polling, key)
	}
}
