package scripts

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// Commands sends plain commands, each with its key as the first argument: one by itself, several in
// a pipeline. It returns one value per command, nil for a missing key, and the first error that a
// command met. It returns when ctx or the runner's timeout ends; the attempt goes on by itself, and
// Close waits for it. Use it for best-effort work only: nothing is repeated, and nothing is
// remembered.
func (r *Runner) Commands(ctx context.Context, commands ...[]any) ([]any, error) {
	if len(commands) == 0 {
		return nil, nil
	}
	return attemptOnce(ctx, r, commands[0][0].(string), func(ctx context.Context) ([]any, error) {
		return r.plain(ctx, commands)
	})
}

func (r *Runner) plain(ctx context.Context, commands [][]any) ([]any, error) {
	cmds, queue := make([]*once, len(commands)), make([]redis.Cmder, len(commands))
	for i, args := range commands {
		cmd := redis.NewCmd(ctx, args...)
		cmd.SetFirstKeyPos(1)
		cmds[i] = &once{Cmd: cmd}
		queue[i] = cmds[i]
	}
	sent := time.Now()
	pipe := r.until(ctx).Pipeline()
	_ = pipe.BatchProcess(ctx, queue...)
	_, broken := pipe.Exec(ctx)
	values := make([]any, len(cmds))
	var first error
	for i, cmd := range cmds {
		reply, err := cmd.read(sent, cmd.outcome(broken))
		values[i] = reply.Value
		if first == nil {
			first = err
		}
	}
	return values, first
}

// until returns the client with timeouts that end soon after ctx, if that is possible: go-redis's
// reads and writes do not end with a context by themselves, and Close waits for them.
func (r *Runner) until(ctx context.Context) redis.UniversalClient {
	c, single := r.rdb.(*redis.Client)
	deadline, limited := ctx.Deadline()
	if !single || !limited {
		return r.rdb
	}
	return c.WithTimeout(max(time.Until(deadline), 0) + 50*time.Millisecond)
}

// Answering reports whether Redis answered the latest script that was awaited to its end.
func (r *Runner) Answering() bool { return !r.silent.Load() }

// heard notes whether a script was answered.
func (r *Runner) heard(answered bool) {
	if r.silent.Load() == answered {
		r.silent.Store(!answered)
	}
}
