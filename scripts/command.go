package scripts

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// Commands sends plain commands, each with its key as the first argument: one alone by a pooled
// connection, several by a pipeline. It repeats them as [Runner.Do] does, so they must be
// idempotent. It returns one value per command, nil for a missing key.
//
// It returns when ctx is done. An attempt under way ends then too, if the client is a *redis.Client;
// else it goes on by itself, and Close waits for it. So the outcome is often unknown. Use Commands for
// best-effort work only: nothing here remembers a request.
func (r *Runner) Commands(ctx context.Context, commands ...[]any) ([]any, error) {
	if len(commands) == 0 {
		return nil, nil
	}
	name := commands[0][0].(string)
	if !r.enter() {
		return nil, &Error{name, NotExecuted, ErrClosed}
	}
	done := make(chan commandsResult, 1)
	go func() {
		defer r.running.Done()
		var values []any
		_, err := r.repeat(ctx, name, func() (_ Reply, err error) {
			values, err = r.plain(ctx, commands)
			return Reply{}, err
		})
		done <- commandsResult{values, err}
	}()
	select {
	case res := <-done:
		return res.values, res.err
	case <-ctx.Done():
		return nil, &Error{name, Unknown, &interrupted{context.Cause(ctx)}}
	}
}

type commandsResult struct {
	values []any
	err    error
}

// plain makes one attempt. It returns the first error that a command met.
func (r *Runner) plain(ctx context.Context, commands [][]any) ([]any, error) {
	cmds, queue := make([]*once, len(commands)), make([]redis.Cmder, len(commands))
	for i, args := range commands {
		cmd := redis.NewCmd(ctx, args...)
		cmd.SetFirstKeyPos(1)
		cmds[i] = &once{Cmd: cmd}
		queue[i] = cmds[i]
	}
	sent := time.Now()
	rdb := r.until(ctx)
	var broken error
	if len(queue) == 1 {
		broken = rdb.Process(ctx, queue[0])
	} else {
		pipe := rdb.Pipeline()
		_ = pipe.BatchProcess(ctx, queue...)
		_, broken = pipe.Exec(ctx)
	}
	values := make([]any, len(cmds))
	var first error
	for i, cmd := range cmds {
		reply, err := r.read(cmd, sent, cmd.outcome(broken))
		values[i] = reply.Value
		if first == nil {
			first = err
		}
	}
	return values, first
}

// until returns the client with timeouts that end when ctx does, if that is possible: go-redis reads
// and writes do not end with a context by themselves.
func (r *Runner) until(ctx context.Context) redis.UniversalClient {
	c, single := r.rdb.(*redis.Client)
	deadline, limited := ctx.Deadline()
	if !single || !limited {
		return r.rdb
	}
	left := max(time.Until(deadline), time.Millisecond)
	if o := c.Options(); o.ReadTimeout > 0 && max(o.ReadTimeout, o.WriteTimeout) <= left {
		return c
	}
	return c.WithTimeout(left)
}

// Answering reports whether a pipeline was answered and every command since then was.
func (r *Runner) Answering() bool { return r.well.Load() }
