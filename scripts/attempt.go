package scripts

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// processor sends commands: a client, one of its connections, or its pipelines.
type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// call is one run of a script. Every attempt sends the same arguments.
type call struct {
	script *Script
	args   []any // "evalsha", digest, number of keys, keys, arguments
}

func newCall(s *Script, keys, args []any) call {
	all := make([]any, 0, 3+len(keys)+len(args))
	all = append(all, "evalsha", s.digest, len(keys))
	all = append(all, keys...)
	return call{s, append(all, args...)}
}

// evalArgs returns the same call as an EVAL, with the script's text.
func (c call) evalArgs() []any { return append([]any{"eval", c.script.text}, c.args[2:]...) }

// attempt runs a script once. If the server does not know it, attempt loads it and sends it again;
// if the server has forgotten it in between (SCRIPT FLUSH), attempt sends it with its text. None of
// these is a retry: NOSCRIPT means that nothing was executed.
func (r *Runner) attempt(ctx context.Context, via processor, c call) (Reply, error) {
	reply, err := r.send(ctx, via, c.args)
	if !isNoScript(err) {
		return reply, err
	}
	// If loading fails, the last attempt needs no loaded script.
	if r.load(ctx, c) == nil {
		if reply, err = r.send(ctx, via, c.args); !isNoScript(err) {
			return reply, err
		}
	}
	return r.send(ctx, via, c.evalArgs())
}

// send sends one command and reads its reply.
func (r *Runner) send(ctx context.Context, via processor, args []any) (Reply, error) {
	cmd := newSingleCmd(ctx, args)
	sent := time.Now() // before the command is written: a TTL that it sets counts from no later than this
	return cmd.read(sent, via.Process(ctx, cmd))
}

// load loads the script into the node that serves the command's keys. On a cluster client,
// ScriptLoad would fail if any shard is down.
func (r *Runner) load(ctx context.Context, c call) error {
	if cluster, ok := r.rdb.(*redis.ClusterClient); ok && firstKey(c.args) > 0 {
		node, err := cluster.MasterForKey(ctx, c.args[3].(string))
		if err != nil {
			return err
		}
		return node.ScriptLoad(ctx, c.script.text).Err()
	}
	return r.rdb.ScriptLoad(ctx, c.script.text).Err()
}

// reroute makes a cluster client read the slot map again after a node could not be reached or
// refused a command: the client itself does so only in its own retries, which are off.
func (r *Runner) reroute(ctx context.Context) {
	if c, ok := r.rdb.(*redis.ClusterClient); ok {
		c.ReloadState(ctx)
	}
}

// singleCmd is a command that go-redis must not send twice. The runner retries instead: go-redis
// would not report that the first attempt has an unknown outcome.
type singleCmd struct {
	*redis.Cmd
	answered bool // SetErr(nil) was called
}

func newSingleCmd(ctx context.Context, args []any) *singleCmd {
	cmd := redis.NewCmd(ctx, args...)
	cmd.SetFirstKeyPos(firstKey(args))
	return &singleCmd{Cmd: cmd}
}

// firstKey returns the index of the first key of an EVALSHA or EVAL, 0 if it has no keys. A cluster
// client routes by it.
func firstKey(args []any) int8 {
	if args[2] == 0 {
		return 0
	}
	return 3
}

// NoRetry keeps go-redis from sending the command again.
func (*singleCmd) NoRetry() bool { return true }

// Clone returns a singleCmd too, so that copies that go-redis makes are not sent twice.
func (c *singleCmd) Clone() redis.Cmder { return &singleCmd{c.Cmd.Clone().(*redis.Cmd), c.answered} }

// SetErr records the command's result. An answer stays: when a pipeline breaks, go-redis sets the
// error of the pipeline on the commands that were answered before, too.
func (c *singleCmd) SetErr(err error) {
	if c.answered {
		return
	}
	c.answered = err == nil
	c.Cmd.SetErr(err)
}

// result returns the command's error in a pipeline that ended with err: its own, or err if a hook
// kept the pipeline from being sent.
func (c *singleCmd) result(err error) error {
	if own := c.Err(); own != nil || c.answered {
		return own
	}
	return err
}

// read returns the reply to a command that was sent at that time and ended with err.
func (c *singleCmd) read(sent time.Time, err error) (Reply, error) {
	switch {
	case err == nil:
		return Reply{Value: c.Val(), Sent: sent}, nil
	case errors.Is(err, redis.Nil): // a nil answer is an answer
		return Reply{Sent: sent}, nil
	}
	return Reply{}, err
}

// pipelines sends each command in a pipeline of its own. go-redis keeps connections for pipelines
// alone, so commands that block, such as an application's BLPOP, cannot use them up.
type pipelines struct {
	r    *Runner
	idle sync.Pool // of redis.Pipeliner
}

func (p *pipelines) Process(ctx context.Context, cmd redis.Cmder) error {
	pipe, ok := p.idle.Get().(redis.Pipeliner)
	if !ok {
		pipe = p.r.rdb.Pipeline()
	}
	_ = pipe.Process(ctx, cmd) // only queues cmd
	_, err := pipe.Exec(ctx)   // leaves the pipeline empty, so it can be used again
	p.idle.Put(pipe)
	return cmd.(*singleCmd).result(err)
}
