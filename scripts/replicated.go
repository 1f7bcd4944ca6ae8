package scripts

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/redlatch/redlatch/internal/failure"
)

// Scripts whose writes replicas must confirm.
//
// WAIT waits only for the writes of its own connection, so the script and its WAIT go over one
// connection, in one pipeline. That connection is a redis.Tx without a transaction. Two other ways
// look simpler:
//
//   - A pipeline of the client itself. go-redis keeps ten connections for pipelines, and renewals
//     need them. WAIT would block them for as long as a replica is slow.
//   - redis.Conn. It shares its options with the client, but not the mutex that guards them. Both
//     write to them if the server refuses maintenance notifications, so that is a data race in
//     go-redis 9.23.
//
// Watch, which makes a redis.Tx, is called on the client that a user's type embeds, not on the
// type.

// errNotConfirmedYet is the reason given when a call ends before WAIT was answered.
var errNotConfirmedYet = errors.New("the replicas have not confirmed yet")

// RunReplicated is [Runner.Do] for a script whose writes n replicas should have within timeout. If
// fewer have them, [Reply].Unconfirmed says so. If the script has written nothing, for example
// because an acquisition was refused, Unconfirmed means nothing. A server that refuses WAIT counts
// as a server without replicas.
//
// timeout is added to the timeout of the runner. An attempt is answered when its WAIT is. If WAIT
// fails, a retry runs the script again.
func (r *Runner) RunReplicated(
	ctx context.Context, n int, timeout time.Duration, s *Script, keys []any, args ...any,
) (Reply, error) {
	if err := r.register(ctx); err != nil {
		return Reply{}, err
	}
	defer r.running.Done()
	c := newCall(s, keys, args)
	// All attempts share one deadline, so a retry has the time that earlier attempts have left
	// over.
	c.end, c.ctx = r.ends.after(ctx, r.timeout+timeout, &c.memory.joined)
	var failed failures
	for {
		began := time.Now()
		var heard atomic.Int64 // how long after began the server has last answered; 0 if it has not answered yet
		reply, err := r.watch(ctx, c, func(ctx context.Context) (Reply, error) {
			return r.attemptReplicated(ctx, c, n, timeout, func() { heard.Store(int64(time.Since(began))) })
		})
		// A server that waits for replicas is not silent, because it was told to answer later.
		if i, ok := errors.AsType[*failure.Interrupted](err); ok && heard.Load() > 0 {
			i.Silent = max(0, i.Silent-time.Duration(heard.Load())-min(timeout, maxWait))
			i.Why = errNotConfirmedYet
		}
		if err == nil {
			reply.Doubt = failed.doubt
			return reply, nil
		}
		err = r.afterFailure(ctx, c, r.batch.probe, &failed, err)
		if err != nil {
			return Reply{}, err
		}
	}
}

// watch makes an attempt that holds a connection. As many attempts may be in flight as the client
// has connections. The others wait here, so that they need no goroutine while Redis is silent. If
// the call ends first, nothing is sent.
func (r *Runner) watch(ctx context.Context, c call, attempt func(context.Context) (Reply, error)) (Reply, error) {
	if r.watches != nil {
		began := time.Now()
		select {
		case r.watches <- struct{}{}:
		case <-ctx.Done():
			return Reply{}, notSent(ctx, began)
		case <-c.end.Done():
			return Reply{}, notSent(ctx, began)
		}
	}
	return bounded(ctx, c.ctx, c.end, r, func(ctx context.Context) (Reply, error) {
		if r.watches != nil {
			defer func() { <-r.watches }()
		}
		return attempt(ctx)
	})
}

// maxRedirections is how many redirections one attempt follows: from a node that has left the
// cluster to the node that has the slot, and from there to the node that gets it.
const maxRedirections = 2

// attemptReplicated is [Runner.attempt] with a WAIT. On a cluster it follows redirections. heard is
// called with each of the server's answers.
func (r *Runner) attemptReplicated(
	ctx context.Context, c call, n int, timeout time.Duration, heard func(),
) (reply Reply, err error) {
	// on runs the script on one connection of a client.
	on := func(client redis.UniversalClient, asking bool, readTimeout time.Duration) error {
		return client.Watch(ctx, func(tx *redis.Tx) error {
			w := waiting{tx: tx, asking: asking, n: n, timeout: timeout, longest: longestWait(readTimeout), heard: heard}
			got, err := r.attempt(ctx, &w, c)
			if err != nil {
				return err
			}
			reply, reply.Unconfirmed = got, w.unconfirmed()
			return w.failed
		})
	}
	if err := r.slots.await(ctx, nil); err != nil {
		return Reply{}, err
	}
	key := c.args[c.firstKey].(string)
	cluster := r.slots.client
	if cluster == nil {
		client := r.rdb
		readTimeout := minReadTimeout
		if single, ok := r.base.(interface{ Options() *redis.Options }); ok {
			readTimeout = single.Options().ReadTimeout
		}
		if r.batch.hook != nil {
			client = r.batch.hook.copy // a transaction has options of its own, so marking its commands is not enough
		}
		err = on(client, false, readTimeout)
		return reply, err
	}
	node, err := cluster.MasterForKey(ctx, key)
	if err != nil {
		return Reply{}, err
	}
	err = on(punctualOf(node).copy, false, node.Options().ReadTimeout)
	for range maxRedirections {
		addr, asking := redirection(err, node)
		if addr == "" {
			break
		}
		if isAbandoned(ctx) {
			return Reply{}, &failure.Interrupted{Cause: err, NotSent: true} // as in attempt
		}
		if !asking {
			r.slots.refresh()
		}
		other := cluster.Options().NewClient(optionsFor(node, addr))
		err = on(other, asking, node.Options().ReadTimeout)
		_ = other.Close()
	}
	return reply, err
}

// redirection returns the address of the node to which err redirects a command that was sent to
// from, or "" if err is not a redirection. asking means that the node accepts the command only
// after ASKING.
func redirection(err error, from *redis.Client) (addr string, asking bool) {
	addr, moved := redis.IsMovedError(err) // moved is false for a nil error, too
	if !moved {
		addr, asking = redis.IsAskError(err)
	}
	host, port, bad := net.SplitHostPort(addr)
	if bad != nil {
		return "", false
	}
	if host == "" || host == "?" { // a node that does not know its own address
		host, _, _ = net.SplitHostPort(from.Options().Addr)
	}
	return net.JoinHostPort(host, port), asking
}

// optionsFor returns the options for one connection to the node at addr, made from the options for
// another node of the cluster. The cluster client itself has a client for addr only if that node
// had slots before, and gives none away. Redirections end with the move of the slot, so nothing
// keeps the connection.
func optionsFor(node *redis.Client, addr string) *redis.Options {
	o := *node.Options()
	o.Addr = addr
	o.NodeAddress = ""
	o.PoolSize = 1
	o.MinIdleConns = 0
	o.MaxIdleConns = 0
	o.PipelinePoolSize = -1
	// node has its own copy of this, and may be writing to it.
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	for _, d := range []*time.Duration{&o.ReadTimeout, &o.WriteTimeout} {
		if *d == 0 { // 0 means none in a client's options, but the default in options for a new client
			*d = -1
		}
	}
	return &o
}

// minReadTimeout is assumed for a client that does not say what its read timeout is.
const minReadTimeout = 200 * time.Millisecond

// maxWait is the longest single WAIT with any read timeout.
const maxWait = time.Second

// longestWait returns the longest single WAIT. It must answer well before the read timeout, which
// is 0 if there is none.
func longestWait(readTimeout time.Duration) time.Duration {
	if readTimeout <= 0 {
		return maxWait
	}
	return min(readTimeout/2, maxWait)
}

// waiting is a [processor] that sends each command on one connection, together with WAIT. It sends
// WAIT again while too few replicas have confirmed and there is time left. It belongs to one
// attempt.
type waiting struct {
	tx      *redis.Tx
	asking  bool
	n       int
	timeout time.Duration // the timeout of all commands together
	longest time.Duration // the longest single WAIT
	heard   func()        // called with each answer

	began   time.Time // when the first command was sent; zero before that
	acked   int       // the number of replicas that have the last command's writes
	refused error     // Redis's answer to WAIT, if it was an error
	failed  error     // WAIT got no answer, so it is unknown how many replicas confirm
}

// Process implements [processor]. cmd keeps its own result if WAIT fails.
func (w *waiting) Process(ctx context.Context, cmd redis.Cmder) error {
	if w.began.IsZero() {
		w.began = time.Now()
	}
	queue := []redis.Cmder{cmd}
	if single, ok := cmd.(*singleCmd); ok {
		single.heard = w.heard
	}
	if w.asking {
		queue = []redis.Cmder{&singleCmd{Cmd: redis.NewCmd(ctx, "asking")}, cmd}
	}
	for pipe := w.tx.Pipeline(); ; queue = nil {
		// A WAIT of 0 ms would wait without limit, so the least is 1 ms.
		left := w.timeout - time.Since(w.began)
		ms := max(min(left, w.longest), time.Millisecond).Milliseconds()
		wait := &singleCmd{Cmd: redis.NewCmd(ctx, "wait", w.n, ms), heard: w.heard}
		_ = pipe.BatchProcess(ctx, append(queue, wait)...) // only queues them
		_, broken := pipe.Exec(ctx)
		reply, err := wait.reply(time.Time{}, broken)
		_, refused := err.(redis.Error) //nolint:errorlint // as go-redis returns it
		acked, _ := reply.Value.(int64)
		isMissing := cmd.Err() == nil && int(acked) < w.n
		isOver := left <= w.longest || isAbandoned(ctx)
		switch {
		case refused:
			w.acked = 0
			w.refused = err
			w.failed = nil
		case err != nil:
			w.failed = err
		case isMissing && !isOver:
			continue
		default:
			w.acked = int(acked)
			w.refused = nil
			w.failed = nil
		}
		return broken
	}
}

// unconfirmed returns [Reply].Unconfirmed for the last command.
func (w *waiting) unconfirmed() error {
	switch {
	case w.refused != nil:
		return fmt.Errorf("%w: %w", failure.ErrNotReplicated, w.refused)
	case w.acked < w.n:
		return fmt.Errorf("%w: %d of %d replicas confirmed", failure.ErrNotReplicated, w.acked, w.n)
	}
	return nil
}
