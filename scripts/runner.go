package scripts

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// DefaultTimeout is how long a call waits for Redis's answer if nothing else is configured.
const DefaultTimeout = 5 * time.Second

// Bounds of how long Redis remembers a request: a copy of a command may be on its way that long.
const (
	minMemory = 15 * time.Second
	maxMemory = 60 * time.Second
	// lateness is how late a copy may arrive after its client has stopped sending copies.
	lateness = 10 * time.Second
)

// Runner runs scripts on one client's Redis. All commands of the library go through it. It is safe
// for concurrent use.
//
// A call returns when its context ends, or after the runner's timeout, whatever Redis and the
// network do. An attempt that is under way by then goes on in a goroutine of its own until go-redis
// gives it up; Close waits for it.
type Runner struct {
	rdb      redis.UniversalClient
	timeout  time.Duration // how long a call waits for its answer
	repeats  int           // further attempts after the first
	minDelay time.Duration // between attempts, doubling up to maxDelay
	maxDelay time.Duration
	memory   time.Duration // how long Redis remembers a request

	single processor // sends one command by itself
	piped  processor // sends one command in a pipeline of its own
	batch  batcher
	ends   deadlines
	silent atomic.Bool // the latest script was not answered
	// endsInTime: go-redis itself gives an attempt up within timeout, once it has a connection.
	endsInTime bool

	closing chan struct{} // closed by Stop: nothing is repeated
	stop    sync.Once
	mu      sync.RWMutex // held for reading while a call registers in running
	closed  bool
	running sync.WaitGroup // calls, attempts that outlive their call, and the batcher's workers
}

// Reply is a script's answer.
type Reply struct {
	Value any       // nil, int64, string or []any of these
	Sent  time.Time // before the answered attempt was sent: a TTL that the script set counts from here
	// Doubt: an earlier attempt of the same call has an unknown outcome. A copy of the command may
	// still run after the answered one.
	Doubt bool
}

// NewRunner makes a runner. Calls wait at most timeout for their answer; 0 means DefaultTimeout.
// They are repeated as often as rdb's configuration says (MaxRetries, on a cluster MaxRedirects),
// with its delays. NewRunner sends nothing.
func NewRunner(rdb redis.UniversalClient, timeout time.Duration) *Runner {
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	r := &Runner{
		rdb: rdb, repeats: 3, minDelay: 10 * time.Millisecond, maxDelay: time.Second,
		closing: make(chan struct{}),
	}
	r.batch.r = r
	r.piped = &pipelines{r: r}
	r.single = rdb
	readTimeout := 5 * time.Second
	switch c := rdb.(type) {
	case interface{ Options() *redis.Options }:
		o := c.Options()
		r.repeats, r.minDelay, r.maxDelay, readTimeout = o.MaxRetries, o.MinRetryBackoff, o.MaxRetryBackoff, o.ReadTimeout
		r.endsInTime = min(o.ReadTimeout, o.WriteTimeout) > 0 && max(o.ReadTimeout, o.WriteTimeout) <= timeout
		r.single = r.piped
		r.batch.enabled = true
	case interface{ Options() *redis.ClusterOptions }:
		o := c.Options()
		r.repeats, r.minDelay, r.maxDelay, readTimeout = o.MaxRedirects, o.MinRetryBackoff, o.MaxRetryBackoff, o.ReadTimeout
	}
	r.repeats = max(r.repeats, 0)
	// go-redis may send a command as late as one read timeout after its context ended: it does not
	// look at the context between greeting a new connection and using it.
	horizon := timeout + max(readTimeout, 0) + lateness
	r.memory = min(max(horizon, minMemory), maxMemory)
	r.timeout = min(timeout, r.memory-lateness)
	return r
}

// Memory is how long a script should remember a request: longer than a copy of it may be on its way.
func (r *Runner) Memory() time.Duration { return r.memory }

// MaxMemory is how long a script should remember what must not happen any more: a request that was
// rolled back although a copy of it may still arrive.
func (r *Runner) MaxMemory() time.Duration { return maxMemory }

// Repeatable is how long after its first attempt a command that Redis remembers may be sent again.
func (r *Runner) Repeatable() time.Duration { return r.memory - lateness }

// Timeout is how long a call waits for its answer.
func (r *Runner) Timeout() time.Duration { return r.timeout }

// Do runs s, and repeats it with identical arguments while its outcome is unknown or it could not be
// executed. It gives up when ctx ends, after the runner's timeout, or after as many repetitions as
// the client's configuration says; refusals that will pass, such as LOADING, do not count as
// repetitions. Failures are an [*Error]. Keys are strings, passed as []any so that a prebuilt slice
// is sent without copying.
//
// Many commands at the same time go together in pipelines. A hook of the client sees such a
// pipeline with a context that has no values.
func (r *Runner) Do(ctx context.Context, s *Script, keys []any, args ...any) (Reply, error) {
	if !r.enter() {
		return Reply{}, &Error{Script: s.name, Outcome: NotExecuted, Err: ErrClosed}
	}
	defer r.running.Done()
	if cause := context.Cause(ctx); cause != nil {
		return Reply{}, &Error{Script: s.name, Outcome: NotExecuted, Err: cause}
	}
	c := newCall(s, keys, args)
	end := r.ends.after(r.timeout)
	reply, err := r.batch.do(ctx, end, c)
	if err == nil {
		return reply, nil
	}
	return r.repeat(ctx, end, s.name, err, func() (Reply, error) { return r.batch.do(ctx, end, c) })
}

// Once makes one attempt, for callers that repeat by themselves and run in a goroutine of their own.
// ctx bounds the time until the command is sent; then go-redis's own timeouts apply. Once waits for
// no batch, and uses go-redis's connections for pipelines: other commands may occupy all others.
func (r *Runner) Once(ctx context.Context, s *Script, keys []any, args ...any) (Reply, error) {
	if !r.enter() {
		return Reply{}, &Error{Script: s.name, Outcome: NotExecuted, Err: ErrClosed}
	}
	defer r.running.Done()
	reply, err := r.attempt(ctx, r.piped, newCall(s, keys, args))
	if err != nil {
		return Reply{}, failure(s.name, err, classify(err).outcome)
	}
	return reply, nil
}

// Stop ends repeating: what is under way and what still comes gets one attempt. It may be called again.
func (r *Runner) Stop() {
	r.stop.Do(func() { close(r.closing) })
}

// Close sends no further command and waits for those under way, which end within the client's own
// timeouts. It may be called again.
func (r *Runner) Close() {
	r.Stop()
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.running.Wait()
	r.ends.close()
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

// repeat makes further attempts after a first one failed with err, until one is answered, or no more
// may be made.
func (r *Runner) repeat(ctx context.Context, end *deadline, name string, err error, attempt func() (Reply, error)) (Reply, error) {
	doubt := false
	for n, repeats := 0, 0; ; n++ {
		got := classify(err)
		doubt = doubt || got.outcome == Unknown
		if !got.notNow {
			repeats++
		}
		if !got.transient || repeats > r.repeats || !r.pause(ctx, end, n) {
			outcome := got.outcome
			if doubt {
				outcome = Unknown
			}
			return Reply{}, failure(name, err, outcome)
		}
		if got.outcome == NotExecuted {
			r.reroute(context.WithoutCancel(ctx))
		}
		var reply Reply
		if reply, err = attempt(); err == nil {
			reply.Doubt = doubt
			return reply, nil
		}
	}
}

// pause waits before another attempt, and reports whether it may still be made.
func (r *Runner) pause(ctx context.Context, end *deadline, attempt int) bool {
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
	case <-end.Done():
	case <-r.closing:
	}
	return false
}

// bounded runs f in a goroutine of its own. It returns f's result, or an error of unknown outcome
// when ctx or end comes first; f then goes on by itself and Close waits for it. The caller is
// registered in running.
func bounded[T any](ctx context.Context, r *Runner, end *deadline, f func(context.Context) (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	attempt := end.with(ctx)
	r.running.Go(func() {
		value, err := f(attempt)
		done <- result{value, err}
	})
	select {
	case res := <-done:
		return res.value, res.err
	case <-ctx.Done():
	case <-end.Done():
	}
	select {
	case res := <-done: // at the same time: an answer counts
		return res.value, res.err
	default:
		var none T
		return none, interruption(ctx)
	}
}

// attemptOnce runs f, which nothing repeats, for as long as ctx and the runner's timeout last.
func attemptOnce[T any](ctx context.Context, r *Runner, name string, f func(context.Context) (T, error)) (T, error) {
	var value T
	if !r.enter() {
		return value, &Error{Script: name, Outcome: NotExecuted, Err: ErrClosed}
	}
	defer r.running.Done()
	err := context.Cause(ctx)
	if err == nil {
		value, err = bounded(ctx, r, r.ends.after(r.timeout), f)
	}
	if err != nil {
		return value, failure(name, err, classify(err).outcome)
	}
	return value, nil
}

// deadlines makes contexts that end in time. Calls that begin at about the same time share one: most
// commands are answered long before, so a timer for each would be wasted.
type deadlines struct {
	latest atomic.Pointer[deadline]
}

// deadline is a context that ends for all calls that share it.
type deadline struct {
	context.Context //nolint:containedctx // it is one
	until           time.Time
	stop            context.CancelFunc
}

// after returns a deadline in d from now, or up to a hundredth earlier.
func (ds *deadlines) after(d time.Duration) *deadline {
	now := time.Now()
	latest := ds.latest.Load()
	if left := d - d/100; latest == nil || latest.until.Sub(now) < left || latest.until.Sub(now) > d {
		until := now.Add(d)
		ctx, stop := context.WithDeadline(context.Background(), until)
		latest = &deadline{ctx, until, stop}
		ds.latest.Store(latest) // the one before ends by itself
	}
	return latest
}

// close ends the latest deadline early, so that its timer does not stay behind.
func (ds *deadlines) close() {
	if latest := ds.latest.Load(); latest != nil {
		latest.stop()
	}
}

// with returns a context with ctx's values that ends with whichever of the two has the nearer
// deadline. go-redis looks at it while it waits for a connection or dials.
func (d *deadline) with(ctx context.Context) context.Context {
	if until, ok := ctx.Deadline(); ok && until.Before(d.until) {
		return ctx
	}
	return &bothContexts{d, ctx}
}

// bothContexts has the values of one context and the end of another.
type bothContexts struct {
	context.Context
	values context.Context
}

func (b *bothContexts) Value(key any) any { return b.values.Value(key) }
