package scripts

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Runner runs scripts on one client's Redis. All commands of the library go through it. It is safe for concurrent use.
type Runner struct {
	rdb      redis.UniversalClient
	via      processor     // where commands go: rdb, or a connection of it
	repeats  int           // further attempts after the first
	minDelay time.Duration // between attempts, doubling up to maxDelay
	maxDelay time.Duration
	memory   time.Duration

	closing chan struct{} // closed by Stop: nothing is repeated
	stop    sync.Once
	mu      sync.RWMutex // held for reading while a run registers in running
	closed  bool
	running sync.WaitGroup
}

type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
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

// NewRunner makes a runner that repeats as often as rdb's own configuration says (MaxRetries, on a cluster MaxRedirects),
// with its delays. It sends nothing.
func NewRunner(rdb redis.UniversalClient) *Runner {
	r := &Runner{rdb: rdb, via: rdb, repeats: 3, minDelay: 10 * time.Millisecond, maxDelay: time.Second, closing: make(chan struct{})}
	timeout := 5 * time.Second
	switch c := rdb.(type) {
	case interface{ Options() *redis.Options }:
		o := c.Options()
		r.repeats, r.minDelay, r.maxDelay, timeout = o.MaxRetries, o.MinRetryBackoff, o.MaxRetryBackoff, o.ReadTimeout
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

// Run runs s and repeats it, with equal arguments, while its outcome is unknown or it could not be executed, as often as the
// client's configuration says and ctx lasts. An attempt under way is never interrupted by ctx: it ends within the client's own
// timeouts, so that its outcome is known if it can be. Failures are an [*Error].
func (r *Runner) Run(ctx context.Context, s *Script, keys []string, args ...any) (Reply, error) {
	if !r.enter() {
		return Reply{}, &Error{s.name, NotExecuted, ErrClosed}
	}
	defer r.running.Done()
	return r.run(ctx, s, command(s.sha, "evalsha", keys, args))
}

// RunWithin is Run, but returns when ctx is done, with unknown outcome, though an attempt be under way. That attempt
// goes on by itself; Close waits for it.
func (r *Runner) RunWithin(ctx context.Context, s *Script, keys []string, args ...any) (Reply, error) {
	if !r.enter() {
		return Reply{}, &Error{s.name, NotExecuted, ErrClosed}
	}
	type result struct {
		reply Reply
		err   error
	}
	done := make(chan result, 1)
	go func() {
		defer r.running.Done()
		reply, err := r.run(ctx, s, command(s.sha, "evalsha", keys, args))
		done <- result{reply, err}
	}()
	select {
	case res := <-done:
		return res.reply, res.err
	case <-ctx.Done():
		return Reply{}, &Error{s.name, Unknown, context.Cause(ctx)}
	}
}

// Once makes one attempt, for callers that repeat by themselves. A NOSCRIPT is dealt with as in Run.
func (r *Runner) Once(ctx context.Context, s *Script, keys []string, args ...any) (Reply, error) {
	if !r.enter() {
		return Reply{}, &Error{s.name, NotExecuted, ErrClosed}
	}
	defer r.running.Done()
	sent := time.Now()
	value, err := r.attempt(context.WithoutCancel(ctx), s, command(s.sha, "evalsha", keys, args))
	if err != nil {
		return Reply{}, &Error{s.name, classify(err).outcome, err}
	}
	return Reply{value, sent}, nil
}

// Closing is closed when Close begins.
func (r *Runner) Closing() <-chan struct{} { return r.closing }

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

func (r *Runner) run(ctx context.Context, s *Script, args []any) (Reply, error) {
	return r.repeat(ctx, s.name, func(free context.Context) (any, error) { return r.attempt(free, s, args) })
}

// repeat makes attempts until one is answered, or no more may be made.
func (r *Runner) repeat(ctx context.Context, name string, attempt func(context.Context) (any, error)) (Reply, error) {
	free := context.WithoutCancel(ctx)
	worst := Executed
	for n := 0; ; n++ {
		sent := time.Now()
		value, err := attempt(free)
		if err == nil {
			return Reply{value, sent}, nil
		}
		got := classify(err)
		worst = worse(worst, got.outcome)
		if !got.transient || n >= r.repeats || !r.pause(ctx, n) {
			return Reply{}, &Error{name, worst, err}
		}
		if got.outcome == NotExecuted {
			r.reroute(free)
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

// attempt sends s once. If the server does not know it, it is loaded and sent again; if it is forgotten in between too
// (SCRIPT FLUSH), its text goes along. None of these is a repetition: NOSCRIPT means that nothing was executed.
func (r *Runner) attempt(ctx context.Context, s *Script, args []any) (any, error) {
	value, err := r.send(ctx, args)
	if !isNoScript(err) {
		return value, err
	}
	if r.load(ctx, s, args) == nil {
		if value, err = r.send(ctx, args); !isNoScript(err) {
			return value, err
		}
	}
	whole := append([]any{"eval", s.text}, args[2:]...)
	return r.send(ctx, whole)
}

// send hands one command to go-redis, which must not repeat it: it could not tell us of the first try's outcome.
func (r *Runner) send(ctx context.Context, args []any) (any, error) {
	cmd := once{redis.NewCmd(ctx, args...)}
	cmd.SetFirstKeyPos(firstKey(args))
	err := r.via.Process(ctx, cmd)
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return cmd.Val(), err
}

// load makes the script known to the node that serves the command's keys; a dead shard elsewhere does not matter.
func (r *Runner) load(ctx context.Context, s *Script, args []any) error {
	if c, ok := r.rdb.(*redis.ClusterClient); ok && firstKey(args) > 0 {
		node, err := c.MasterForKey(ctx, args[3].(string))
		if err != nil {
			return err
		}
		return node.ScriptLoad(ctx, s.text).Err()
	}
	return r.rdb.ScriptLoad(ctx, s.text).Err()
}

// reroute has a cluster client look at the cluster afresh after a node could not be reached or would not serve: the client
// itself does so only in its own repetitions.
func (r *Runner) reroute(ctx context.Context) {
	if c, ok := r.rdb.(*redis.ClusterClient); ok {
		c.ReloadState(ctx)
	}
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

// command builds EVALSHA's arguments.
func command(sha, name string, keys []string, args []any) []any {
	c := make([]any, 0, 3+len(keys)+len(args))
	c = append(c, name, sha, len(keys))
	for _, k := range keys {
		c = append(c, k)
	}
	return append(c, args...)
}

func firstKey(args []any) int8 {
	if args[2] == 0 {
		return 0
	}
	return 3
}

// once is a command that go-redis must not send twice.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

// Clone keeps the promise in the copies that go-redis makes.
func (c once) Clone() redis.Cmder { return once{c.Cmd.Clone().(*redis.Cmd)} }
