package scripts

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// processor is a way to the server: the client, a connection of it, or its pipelines.
type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// call is one run of a script: what is sent for it, the same in every attempt.
type call struct {
	script *Script
	args   []any // of EVALSHA, its name first
}

func newCall(s *Script, keys, args []any) call {
	all := make([]any, 0, 3+len(keys)+len(args))
	all = append(all, "evalsha", s.digest, len(keys))
	all = append(all, keys...)
	return call{s, append(all, args...)}
}

// whole returns EVAL's arguments, with the script's text.
func (c call) whole() []any { return append([]any{"eval", c.script.text}, c.args[2:]...) }

// attempt sends a script once. If the server does not know it, it is loaded and sent again; if it is
// forgotten in between too (SCRIPT FLUSH), it is sent with its text. None of these is a repetition:
// NOSCRIPT means that nothing was executed.
func (r *Runner) attempt(ctx context.Context, via processor, c call) (Reply, error) {
	reply, err := r.send(ctx, via, c.args)
	if !isNoScript(err) {
		return reply, err
	}
	if r.load(ctx, c) == nil {
		if reply, err = r.send(ctx, via, c.args); !isNoScript(err) {
			return reply, err
		}
	}
	return r.send(ctx, via, c.whole())
}

// send sends one command.
func (r *Runner) send(ctx context.Context, via processor, args []any) (Reply, error) {
	cmd := newOnce(ctx, args)
	sent := time.Now()
	return cmd.read(sent, via.Process(ctx, cmd))
}

// load makes the script known to the node that serves the command's keys; a dead shard elsewhere
// does not matter.
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

// reroute makes a cluster client read the slot map again after a node could not be reached or would
// not serve: the client itself does so only in its own repetitions.
func (r *Runner) reroute(ctx context.Context) {
	if c, ok := r.rdb.(*redis.ClusterClient); ok {
		c.ReloadState(ctx)
	}
}

// once is a command that go-redis must not send twice: it could not report the first try's outcome.
type once struct {
	*redis.Cmd
	answered bool
}

func newOnce(ctx context.Context, args []any) *once {
	cmd := redis.NewCmd(ctx, args...)
	cmd.SetFirstKeyPos(firstKey(args))
	return &once{Cmd: cmd}
}

func firstKey(args []any) int8 {
	if args[2] == 0 {
		return 0
	}
	return 3
}

// NoRetry keeps go-redis from sending the command again.
func (*once) NoRetry() bool { return true }

// Clone keeps that promise in the copies that go-redis makes.
func (c *once) Clone() redis.Cmder { return &once{c.Cmd.Clone().(*redis.Cmd), c.answered} }

// SetErr records how the command fared. An answer stands: when a pipeline breaks off, go-redis gives
// its error to the commands that were answered before, too.
func (c *once) SetErr(err error) {
	if c.answered {
		return
	}
	c.answered = err == nil
	c.Cmd.SetErr(err)
}

// outcome returns how the command fared in a pipeline that ended with err: its own result, or err if
// a hook kept the pipeline from being sent.
func (c *once) outcome(err error) error {
	if own := c.Err(); own != nil || c.answered {
		return own
	}
	return err
}

// read returns the reply to a command that was sent then and ended with err.
func (c *once) read(sent time.Time, err error) (Reply, error) {
	switch {
	case err == nil:
		return Reply{Value: c.Val(), Sent: sent}, nil
	case errors.Is(err, redis.Nil):
		return Reply{Sent: sent}, nil
	}
	return Reply{}, err
}

// pipelines sends each command in a pipeline of its own. go-redis keeps connections for pipelines
// alone, so commands that block, such as an application's BLPOP, cannot use them up.
type pipelines struct {
	r    *Runner
	idle sync.Pool // of pipelines
}

func (p *pipelines) Process(ctx context.Context, cmd redis.Cmder) error {
	pipe, ok := p.idle.Get().(redis.Pipeliner)
	if !ok {
		pipe = p.r.rdb.Pipeline()
	}
	_ = pipe.Process(ctx, cmd)
	_, err := pipe.Exec(ctx)
	p.idle.Put(pipe)
	return cmd.(*once).outcome(err)
}
