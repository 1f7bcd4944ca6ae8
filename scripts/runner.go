package scripts

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/failure"
	"github.com/redlatch/redlatch/internal/redisutil"
)

// DefaultTimeout is how long a call waits for Redis's answer if nothing else is configured.
const DefaultTimeout = 5 * time.Second

const (
	// maxCopyDelay is how long after the last attempt was sent a copy may still arrive. When
	// go-redis closes a connection, the kernel goes on sending what was written to it: Linux eight
	// times, the last time after 102 s. See doc/decisions/late-copies.md.
	maxCopyDelay = 2 * time.Minute
	// minMemory is how long Redis remembers a request at least, so that its copies do not count.
	minMemory = 3 * time.Minute
	// maxTimeout bounds the timeout of a call, so that all its attempts are made within minMemory
	// minus maxCopyDelay.
	maxTimeout = 50 * time.Second
	// maxMovingDelay is the longest delay between attempts while a slot moves, before jitter. Redis
	// refuses most scripts until the slot has moved, and there may be only a moment before it moves
	// again.
	maxMovingDelay = 100 * time.Millisecond
)

// Runner runs scripts on one client's Redis. It sends all commands of the library. It is safe for
// concurrent use.
//
// A call returns when its context ends, or after the runner's timeout, even if Redis does not
// answer. An attempt that is in flight then goes on in a goroutine of its own until the timeout is
// over, and Close waits for it. If the client has a shorter read timeout, another attempt is made
// when that is over, and the first answer to either attempt counts.
type Runner struct {
	rdb      redis.UniversalClient // sends the commands; a user's type may override its methods
	base     redis.UniversalClient // the go-redis client that rdb is or embeds: see redisutil.Underlying
	timeout  time.Duration         // how long a call waits for its answer
	retries  int                   // how many further attempts follow the first one
	minDelay time.Duration         // the delay between attempts, which doubles up to maxDelay
	maxDelay time.Duration
	memory   time.Duration // how long Redis remembers a request
	answers  time.Duration // how long Redis keeps an answer that only repetitions of a call need

	publish   atomic.Value // the command by which scripts publish: see call.go
	durations durations
	batch     *batcher // the batcher of the commands without a shard
	slots     slotMap
	shards    shards
	ends      deadlines
	limits    limits
	slow      deadlines // the deadlines at which attempts are slow: see slowAfter
	// slowAfter is how long an attempt waits for its answer until another one is made as well. If it
	// is 0, the attempt waits until the call ends.
	slowAfter time.Duration
	patient   patientAttempts
	recovery  recovery
	dialed    *lastDial // the dials of the client; nil for a cluster client
	// connections is how many connections the client has at most.
	connections int
	silent      atomic.Bool // the latest script got no answer
	// watches limits the calls that hold a connection to themselves. It is nil if there is no
	// limit.
	watches chan struct{}

	closing chan struct{} // Stop closes it; there are no more retries then
	stop    sync.Once
	mu      sync.RWMutex // guards closed; read-locked while a call registers in running
	closed  bool
	running sync.WaitGroup // counts calls, attempts that outlive their call, and the workers of the batchers
}

// Reply is the answer to a script.
type Reply struct {
	Value any       // nil, int64, string or []any of these
	Sent  time.Time // read before the answered attempt was sent; a TTL that the script has set counts from here
	// Doubt reports that an earlier attempt of the same call has an unknown outcome: a copy of the
	// command may still run after the answered one.
	Doubt bool
	// Unconfirmed is why too few replicas have confirmed the script's writes, see
	// [Runner.RunReplicated]. It matches [failure.ErrNotReplicated], or is nil.
	Unconfirmed error
}

// NewRunner returns a runner. Calls wait for their answer for at most timeout, where 0 means
// DefaultTimeout. They are retried as often as rdb's configuration says (MaxRetries, on a cluster
// MaxRedirects), with its delays. rdb is a client of go-redis, or a type that embeds one: see
// redisutil.Underlying. NewRunner sends nothing.
func NewRunner(rdb redis.UniversalClient, timeout time.Duration) *Runner {
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	base, err := redisutil.Underlying(rdb)
	if err != nil {
		base = rdb // its methods are used as they are; primitives.New refuses such a client
	}
	r := &Runner{
		rdb: rdb, base: base, retries: 3, minDelay: 10 * time.Millisecond, maxDelay: time.Second,
		closing: make(chan struct{}), connections: defaultConnections,
	}
	r.patient.connections = defaultConnections
	r.publish.Store(Publish)
	readTimeout, direct := r.readOptions(base)
	r.retries = max(r.retries, 0)
	r.slots.r = r
	r.shards.r = r
	r.recovery.cluster = r.slots.client != nil
	r.recovery.server = r.Server
	r.shards.batches.Store(&map[*redis.Client]*batcher{})
	// A type that embeds a cluster client may override its methods, which batches would bypass.
	r.shards.cluster, _ = rdb.(*redis.ClusterClient) // not base
	// A type that embeds a client may send a command as late as one read timeout after its context
	// ended.
	r.timeout = min(timeout, maxTimeout)
	r.ends.sending, r.ends.abandon = context.WithCancel(context.Background())
	r.limits.timeout = r.timeout
	r.limits.ends = &r.ends
	if readTimeout > 0 && readTimeout < r.timeout {
		r.slowAfter = readTimeout
	}
	lastAttempt := r.timeout + max(readTimeout, 0)
	r.memory = max(lastAttempt+maxCopyDelay, minMemory)
	r.answers = lastAttempt + answerReserve
	r.batch = newBatcher(r, rdb, base, direct, direct)
	if r.slots.client != nil {
		r.batch.plain.masters = &toMasters{r}
	}
	if r.slots.client != nil && r.shards.cluster == nil {
		r.batch.alone = throughCluster{r}
	}
	return r
}

// readOptions takes over what the options of the client say about retries and connections. It
// returns the read timeout, and how many commands may be in flight alone.
func (r *Runner) readOptions(base redis.UniversalClient) (readTimeout time.Duration, direct int) {
	readTimeout = 5 * time.Second
	switch c := base.(type) {
	case interface{ Options() *redis.Options }:
		o := c.Options()
		r.retries = o.MaxRetries
		r.minDelay = o.MinRetryBackoff
		r.maxDelay = o.MaxRetryBackoff
		readTimeout = o.ReadTimeout
		direct = maxDirect
		r.connections = connectionsOf(o)
		r.patient.connections = r.connections
		r.watches = make(chan struct{}, max(o.PoolSize, 1))
		if node, ok := base.(*redis.Client); ok {
			r.dialed = &punctualOf(node).lastDial
		} else {
			r.dialed = lastDialOf(base, o)
		}
	case clusterClient:
		r.slots.client = c
		o := c.Options()
		r.retries = o.MaxRedirects
		r.minDelay = o.MinRetryBackoff
		r.maxDelay = o.MaxRetryBackoff
		readTimeout = o.ReadTimeout
		r.patient.connections = o.PoolSize + max(o.PipelinePoolSize, 0) // for each node
	}
	return readTimeout, direct
}

// answerReserve is how much longer than its call an answer is kept.
const answerReserve = 5 * time.Second

// Memory returns how long a script should remember a request, which is longer than a copy of it may
// take to arrive. A script needs that if a copy of it would count again, or would take what was
// given back.
func (r *Runner) Memory() time.Duration { return r.memory }

// AnswerMemory returns how long a script should keep an answer for repetitions of the same call, if
// a later copy finds nothing to do anyway.
func (r *Runner) AnswerMemory() time.Duration { return r.answers }

// Repeatable returns how long after its first attempt a command that Redis remembers may be sent
// again.
func (r *Runner) Repeatable() time.Duration { return r.memory - maxCopyDelay }

// Timeout returns how long a call waits for its answer.
func (r *Runner) Timeout() time.Duration { return r.timeout }

// Do runs s, and retries it with identical arguments while its outcome is unknown or it could not
// be executed. It gives up when ctx ends, after the runner's timeout, or after as many retries as
// the client's configuration says. Temporary refusals, such as LOADING, do not count as retries. A
// failure is a [*failure.Error]. The first key is a string, because the cluster slot is found by
// it. The other keys and the arguments are of any type that go-redis sends.
//
// Commands of many goroutines are sent in pipelines, on a cluster in pipelines for each master. A
// hook sees such a pipeline with a context that has no values. On a cluster all commands are sent
// by the node's client, so only hooks of that client see them.
func (r *Runner) Do(ctx context.Context, s *Script, keys []any, args ...any) (Reply, error) {
	if err := r.register(ctx); err != nil {
		return Reply{}, err
	}
	defer r.running.Done()
	c := newCall(s, keys, args)
	c.end, c.ctx = r.ends.after(ctx, r.timeout, &c.memory.joined)
	r.bound(&c)
	var failed failures
	for {
		reply, b, err := r.attemptVia(ctx, c, &failed)
		if err == nil {
			reply.Doubt = failed.doubt
			return reply, nil
		}
		if errors.Is(err, errSlow) {
			failed.attempts++
			failed.counted++
			if rereading := r.slots.refresh(); rereading != nil { // the slot may have moved, and its old node may hang
				r.sleep(ctx, c.end, maxRerouting, rereading.done)
			}
			c = c.copy() // the slow attempt has the arguments of c
			continue
		}
		last := err
		err = r.afterFailure(ctx, c, b.probe, &failed, last)
		switch {
		case errors.Is(err, errAwaitSlow):
			return r.awaitSlow(ctx, c, b, &failed, last)
		case err != nil:
			return Reply{}, err
		}
	}
}

// attemptVia makes one attempt at c by the batcher of its server. It returns that batcher too, or
// the one for all servers if no server was found.
func (r *Runner) attemptVia(ctx context.Context, c call, failed *failures) (Reply, *batcher, error) {
	b := r.batch
	if r.slots.client != nil {
		shard, err := r.shardOf(ctx, c)
		if err != nil {
			return Reply{}, cmp.Or(shard, b), err
		}
		b = shard
	}
	reply, err := b.do(ctx, c, failed)
	return reply, b, err
}

// awaitSlow waits for the answer to an earlier slow attempt, after the last one failed with err.
func (r *Runner) awaitSlow(ctx context.Context, c call, b *batcher, failed *failures, err error) (Reply, error) {
	began := time.Now()
	for len(failed.slow) > 0 && !wasAnswered(err) {
		select {
		case slow := <-failed.slow[0].done:
			failed.removeSlow(slow)
			if wasAnswered(slow.err) {
				r.noteAnswered(slow.err)
			}
			if slow.err == nil {
				failed.dropSlow()
				slow.reply.Doubt = failed.doubt
				return slow.reply, nil
			}
			class := classify(slow.err)
			if wasAnswered(slow.err) || class.Outcome == failure.Unknown {
				err = slow.err
			}
			failed.doubt = failed.doubt || class.Outcome == failure.Unknown
			continue
		case <-ctx.Done():
			err = b.probe.explain(failure.Interrupt(ctx, began), began)
		case <-c.end.Done():
			err = b.probe.explain(failure.Interrupt(ctx, began), began)
		}
		break
	}
	failed.dropSlow()
	outcome := classify(err).Outcome
	if failed.doubt {
		outcome = failure.Unknown
	}
	return Reply{}, newError(c.script.name, err, outcome)
}

// bound applies the runner's limits to the attempts at c, and makes its mark.
func (r *Runner) bound(c *call) {
	c.memory.joined.limits = &r.limits
	c.memory.joined.mark = c.mark
	c.mark.begin(c.ctx, c.script)
}

// shardOf returns the batcher of the cluster's master that serves c, or the batcher of all masters
// if that master is not known.
func (r *Runner) shardOf(ctx context.Context, c call) (*batcher, error) {
	if err := r.slots.await(ctx, c.end.Done()); err != nil {
		return nil, err
	}
	if shard := r.shards.batcher(ctx, c); shard != nil {
		return shard, nil
	}
	return r.batch, nil
}

// noteFailed begins to read the slot map again, if an attempt may have failed because its node is
// down or no longer the master. It returns the reading that will end next, or nil if there is none.
// An attempt that its caller has canceled says nothing about the node.
func (r *Runner) noteFailed(ctx context.Context, got failure.Failure) *reading {
	if got.Outcome == failure.Executed || errors.Is(ctx.Err(), context.Canceled) {
		return nil
	}
	return r.slots.refresh()
}

// Stop ends retries. Calls in flight and later calls get no further attempt after their first one.
// All of them, and their attempts, end within the runner's timeout from now. It may be called
// again.
func (r *Runner) Stop() {
	r.stop.Do(func() {
		r.ends.last(r.timeout)
		close(r.closing)
	})
}

func (r *Runner) isStopped() bool {
	select {
	case <-r.closing:
		return true
	default:
		return false
	}
}

// Refuse makes later calls fail with [failure.ErrClosed], and ends the deadline of the calls in
// flight. It does not wait for them, because a hook of go-redis may block for ever. A command that
// such a hook passes on later is not sent, because its context has ended.
func (r *Runner) Refuse() {
	r.refuse()
	r.ends.close()
}

func (r *Runner) refuse() {
	r.Stop()
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.ends.abandon()
}

// Close makes later calls fail with [failure.ErrClosed] and waits for the commands in flight. They
// end within the runner's timeout. It may be called again.
//
// Nobody waits for their answers, so attempts that have not sent anything end at once. Close does
// not wait for an attempt that does not end because it is in the application's code, or reads from
// a connection that was dialed before [NewRunner] and has no deadlines.
func (r *Runner) Close() {
	r.refuse()
	done := make(chan struct{})
	go func() {
		r.running.Wait()
		close(done)
	}()
	tick := time.NewTicker(interruptPause)
	defer tick.Stop()
	waits := true
	for waits {
		select {
		case <-done:
			waits = false
		case now := <-tick.C:
			r.interrupt(&r.limits.making)
			final := r.ends.final.Load().until
			if now.After(final) {
				r.interrupt(&r.limits.patient)
			}
			waits = now.Before(final.Add(closeReserve))
		}
	}
	r.ends.close()
	r.slow.close()
	r.slots.ends.close()
	r.batch.probe.close()
}

const (
	interruptPause = 5 * time.Millisecond
	closeReserve   = 200 * time.Millisecond // how much longer than their time attempts may take to end
)

// interrupt ends the reads and writes on the connections whose deadlines have that location.
func (r *Runner) interrupt(location *time.Location) {
	if r.dialed != nil {
		r.dialed.conns.Interrupt(location)
	}
	for node := range *r.shards.batches.Load() {
		punctualOf(node).conns.Interrupt(location)
	}
}

// register begins a call, which it adds to running. The caller then calls running.Done, unless
// register returns a [*failure.Error] because the runner is closed or ctx has ended. In that case
// nothing must be sent.
func (r *Runner) register(ctx context.Context) error {
	r.mu.RLock() // held so that no call registers after Close has begun to wait
	closed := r.closed
	if !closed {
		r.running.Add(1)
	}
	r.mu.RUnlock()
	if closed {
		return &failure.Error{Failure: failure.Failure{Outcome: failure.NotExecuted, Closed: true}, Err: failure.ErrClosed}
	}
	if cause := context.Cause(ctx); cause != nil {
		r.running.Done()
		return &failure.Error{Failure: failure.Failure{Outcome: failure.NotExecuted, CallerEnded: true}, Err: cause}
	}
	return nil
}

// Answering reports whether the latest script got an answer. It counts only scripts whose callers
// waited until the answer or the timeout.
func (r *Runner) Answering() bool { return !r.silent.Load() }

// noteAnswered notes for Answering how an attempt of Do ended. An attempt that its caller ended
// early says nothing. Only a change is written, so that callers do not compete for the cache line.
func (r *Runner) noteAnswered(err error) {
	silent := !wasAnswered(err)
	i, isCut := errors.AsType[*failure.Interrupted](err)
	if isCut && i.EndedEarly() {
		return
	}
	if r.silent.Load() != silent {
		r.silent.Store(silent)
	}
}

// tryKey is the key of contexts that Try returns.
type tryKey struct{}

// Try returns a context for calls that do not wait for the end of a temporary refusal, such as
// NOREPLICAS or BUSY. They repeat their command once, after a short pause, and then fail.
func Try(ctx context.Context) context.Context { return context.WithValue(ctx, tryKey{}, true) }

func isTry(ctx context.Context) bool { return ctx.Value(tryKey{}) != nil }

// bounded runs f with the context attempt in a goroutine of its own. It returns f's result, or an
// error of unknown outcome if ctx or end ends before. In that case f goes on, and Close waits for
// it. The caller is registered in running.
func bounded[T any](
	ctx, attempt context.Context, end *deadline, r *Runner, f func(context.Context) (T, error),
) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1) // has room for the result, so that f ends even if nobody receives it
	began := time.Now()
	r.running.Go(func() {
		value, err := f(attempt)
		done <- result{value, err}
	})
	silent := r.batch.probe.due(began)
	isOver := false
	for !isOver {
		select {
		case res := <-done:
			return res.value, r.batch.probe.noticed(ctx, end, res.err, began)
		case <-silent:
			silent = nil
			r.batch.probe.start()
		case <-ctx.Done():
			isOver = true
		case <-end.Done():
			isOver = true
		}
	}
	select {
	case res := <-done: // it was answered at the same time, so the answer counts
		return res.value, r.batch.probe.noticed(ctx, end, res.err, began)
	default:
		var none T
		return none, r.batch.probe.explain(failure.Interrupt(ctx, began), began)
	}
}

// attemptOnce runs f without retries, with a context that ends after the runner's timeout. It
// returns when f does, when ctx ends, or after the timeout. An error is a [*failure.Error].
func attemptOnce[T any](
	ctx context.Context, r *Runner, name string, f func(context.Context) (T, error),
) (value T, err error) {
	err = r.register(ctx)
	if err != nil {
		return value, err
	}
	defer r.running.Done()
	var joined joinedContext
	end, attempt := r.ends.after(ctx, r.timeout, &joined) // there is no mark that notes when it is sent
	if until, ok := ctx.Deadline(); ok && until.Before(joined.until) {
		joined.until = until // nobody needs a late reply
	}
	var met staleAnswers
	for {
		value, err = bounded(ctx, attempt, end, r, f)
		repeats := met.isOld(r, err) && ctx.Err() == nil
		if !repeats {
			break
		}
	}
	if err != nil {
		got := classify(err)
		r.noteFailed(ctx, got)
		if name == scan && got.Outcome == failure.Unknown {
			got.Outcome = failure.NotExecuted // the command only reads
		}
		return value, newError(name, err, got.Outcome)
	}
	return value, nil
}
