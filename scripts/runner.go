package scripts

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Runner runs scripts on one client's Redis. All commands of the library go through it. It is safe for concurrent use.
type Runner struct {
	rdb      redis.UniversalClient
	repeats  int           // further attempts after the first
	minDelay time.Duration // between attempts, doubling up to maxDelay
	maxDelay time.Duration
	memory   time.Duration
	brief    bool // the client's own limits end an attempt soon

	lane  lane
	pipes pipes
	well  atomic.Bool // a pipeline was answered, and since then no command went without an answer

	closing chan struct{} // closed by Stop: nothing is repeated
	stop    sync.Once
	mu      sync.RWMutex // held for reading while a run registers in running
	closed  bool
	running sync.WaitGroup // calls, and workers of the lane
}

// Reply is a script's answer.
type Reply struct {
	Value any       // nil, int64, string or []any of these
	Sent  time.Time // before the attempt that was answered went out: a TTL that the script set counts from here
}

// Bounds of what a request is remembered for: a copy of a command may be on its way that long.
const (
	minMemory = 15 * time.Second
	maxMemory = 60 * time.Second
)

// briefly bounds the client's limits with which DoWithin may wait for an attempt to end by itself.
const briefly = 5 * time.Second

// NewRunner makes a runner that repeats as often as rdb's own configuration says (MaxRetries, on a cluster MaxRedirects),
// with its delays. It sends nothing.
func NewRunner(rdb redis.UniversalClient) *Runner {
	r := &Runner{rdb: rdb, repeats: 3, minDelay: 10 * time.Millisecond, maxDelay: time.Second, closing: make(chan struct{})}
	r.lane.r, r.pipes.r = r, r
	timeout := 5 * time.Second
	switch c := rdb.(type) {
	case interface{ Options() *redis.Options }:
		o := c.Options()
		r.repeats, r.minDelay, r.maxDelay, timeout = o.MaxRetries, o.MinRetryBackoff, o.MaxRetryBackoff, o.ReadTimeout
		r.brief = min(o.ReadTimeout, o.WriteTimeout) > 0 && max(o.ReadTimeout, o.WriteTimeout) <= briefly
		r.lane.gathers = true
	case interface{ Options() *redis.ClusterOptions }:
		o := c.Options()
		r.repeats, r.minDelay, r.maxDelay, timeout = o.MaxRedirects, o.MinRetryBackoff, o.MaxRetryBackoff, o.ReadTimeout
	}
	r.repeats = max(r.repeats, 0)
	horizon := time.Duration(r.repeats+1) * (max(timeout, 0) + max(r.maxDelay, 0))
	r.memory = min(max(horizon, minMemory), maxMemory)
	return r
}

// Memory is how long a script should remember a request: longer than a copy of it may be on its way.
func (r *Runner) Memory() time.Duration { return r.memory }

// Do runs s and repeats it, with equal arguments, while its outcome is unknown or it could not be executed, as often as the
// client's configuration says and ctx lasts. An attempt under way is never interrupted by ctx: it ends within the client's own
// timeouts, so that its outcome is known if it can be. Failures are an [*Error]. Keys are strings; they are taken as a command takes them, so
// that who has them so need not make them so again.
//
// Of many commands at the same time some go together, by a pipeline. A hook of the client sees it, with no values of ctx.
func (r *Runner) Do(ctx context.Context, s *Script, keys []any, args ...any) (Reply, error) {
	if !r.enter() {
		return Reply{}, &Error{s.name, NotExecuted, ErrClosed}
	}
	defer r.running.Done()
	c, free := newCall(s, keys, args), unbound(ctx)
	return r.repeat(ctx, s.name, func() (Reply, error) { return r.try(free, c) })
}

// DoWithin is Do, but returns when ctx is done, with unknown outcome, though an attempt be under way. That attempt goes on by itself; Close waits
// for it. There is one exception: where ctx has a deadline, the client's read and write timeouts are 5 s at most and Redis was answering so far,
// an attempt under way is awaited, which may take that timeout. It goes by a pipeline, for which go-redis has connections of their own.
func (r *Runner) DoWithin(ctx context.Context, s *Script, keys []any, args ...any) (Reply, error) {
	if !r.enter() {
		return Reply{}, &Error{s.name, NotExecuted, ErrClosed}
	}
	defer r.running.Done()
	c := newCall(s, keys, args)
	return r.repeat(ctx, s.name, func() (Reply, error) { return r.tryWithin(ctx, c) })
}

// Once makes one attempt, for callers that repeat by themselves. A NOSCRIPT is dealt with as in Do. It waits for no other command, and goes by a
// pipeline of its own, for which go-redis has connections of their own: those of other commands may all be in use.
func (r *Runner) Once(ctx context.Context, s *Script, keys []any, args ...any) (Reply, error) {
	if !r.enter() {
		return Reply{}, &Error{s.name, NotExecuted, ErrClosed}
	}
	defer r.running.Done()
	reply, err := r.attempt(unbound(ctx), &r.pipes, newCall(s, keys, args))
	if err != nil {
		return Reply{}, &Error{s.name, classify(err).outcome, err}
	}
	return reply, nil
}

// Stop ends repeating: what is under way and what still comes gets one attempt. It may be called again.
func (r *Runner) Stop() {
	r.stop.Do(func() { close(r.closing) })
}

// Close lets no further command out and waits for those under way, which end within the client's own timeouts. It may be
// called again.
func (r *Runner) Close() {
	r.Stop()
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.running.Wait()
}

func (r *Runner) enter() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.closed {
		return false
	}
	r.running.Add(1)
	return true
}

// try makes an attempt that nothing interrupts.
func (r *Runner) try(free context.Context, c call) (Reply, error) {
	if r.lane.enter() {
		defer r.lane.leave()
		return r.attempt(free, r.rdb, c)
	}
	s := r.lane.put(c)
	<-s.done
	return r.lane.settle(s)
}

// tryWithin makes an attempt that is awaited no longer than ctx lasts.
func (r *Runner) tryWithin(ctx context.Context, c call) (Reply, error) {
	if r.endsWith(ctx) && r.lane.enter() {
		defer r.lane.leave()
		reply, err := r.attempt(ctx, &r.pipes, c)
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			err = &interrupted{context.Cause(ctx)}
		}
		return reply, err
	}
	s := r.lane.put(c)
	select {
	case <-s.done:
		return r.lane.settle(s)
	case <-ctx.Done():
	}
	select {
	case <-s.done: // at the same time: an answer counts
		return r.lane.settle(s)
	default:
		return Reply{}, &interrupted{context.Cause(ctx)}
	}
}

// endsWith tells whether an attempt by a pipeline of its own can be counted on to end when ctx does, or soon after. Getting a connection does. Writing
// and reading end by the client's limits; and where pipelines were answered lately a connection is there, and need not be made first.
func (r *Runner) endsWith(ctx context.Context) bool {
	_, limited := ctx.Deadline()
	return r.brief && r.well.Load() && (limited || ctx.Done() == nil) && ctx.Err() == nil
}

// repeat makes attempts until one is answered, or no more may be made.
func (r *Runner) repeat(ctx context.Context, name string, attempt func() (Reply, error)) (Reply, error) {
	worst := Executed
	for n := 0; ; n++ {
		reply, err := attempt()
		if err == nil {
			return reply, nil
		}
		got := classify(err)
		worst = worse(worst, got.outcome)
		if !got.transient || n >= r.repeats || !r.pause(ctx, n) {
			return Reply{}, &Error{name, worst, err}
		}
		if got.outcome == NotExecuted {
			r.reroute(unbound(ctx))
		}
	}
}

// worse orders outcomes by how much is left open: once an attempt's outcome is unknown, so is that of the whole.
func worse(a, b Outcome) Outcome {
	if a == Unknown || b == Unknown {
		return Unknown
	}
	return b
}

// pause waits before attempt+1 and tells whether it may still be made.
func (r *Runner) pause(ctx context.Context, attempt int) bool {
	if ctx.Err() != nil {
		return false
	}
	delay := min(r.minDelay<<min(attempt, 20), r.maxDelay)
	if delay > 0 {
		delay = delay/2 + rand.N(delay) //nolint:gosec // jitter
	}
	timer := time.NewTimer(max(delay, 0))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-r.closing:
	}
	return false
}
