package scripts

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// Commands sends plain commands, each with its key as the first argument, in one pipeline. It
// returns one value per command, nil for a missing key, and the first error of a command. It
// returns when ctx or the runner's timeout ends; the attempt then goes on in its own goroutine, and
// Close waits for it. Use it for best-effort work only: Commands does not retry, and Redis does not
// remember the request.
func (r *Runner) Commands(ctx context.Context, commands ...[]any) ([]any, error) {
	if len(commands) == 0 {
		return nil, nil
	}
	return attemptOnce(ctx, r, commands[0][0].(string), func(ctx context.Context) ([]any, error) {
		return r.plain(ctx, commands)
	})
}

// plain makes the one attempt of Commands. It blocks until go-redis is done with it, which may be
// after ctx has ended. Answered commands keep their values when others fail or the connection
// breaks.
func (r *Runner) plain(ctx context.Context, commands [][]any) ([]any, error) {
	cmds, queue := make([]*singleCmd, len(commands)), make([]redis.Cmder, len(commands))
	for i, args := range commands {
		cmd := redis.NewCmd(ctx, args...)
		cmd.SetFirstKeyPos(1)
		cmds[i] = &singleCmd{Cmd: cmd}
		queue[i] = cmds[i]
	}
	pipe := r.withDeadline(ctx).Pipeline()
	_ = pipe.BatchProcess(ctx, queue...)
	_, broken := pipe.Exec(ctx)
	values := make([]any, len(cmds))
	var first error
	for i, cmd := range cmds {
		reply, err := cmd.reply(time.Time{}, broken) // no TTL counts from here
		values[i] = reply.Value
		if args := commands[i]; len(args) > 1 {
			r.contact.note(args[1], err)
		}
		if first == nil {
			first = err
		}
	}
	return values, first
}

// withDeadline returns the client with read and write timeouts that end soon after ctx, if that is
// possible: go-redis's reads and writes do not end with a context, and Close waits for them.
func (r *Runner) withDeadline(ctx context.Context) redis.UniversalClient {
	c, single := r.rdb.(*redis.Client)
	deadline, limited := ctx.Deadline()
	if !single || !limited {
		return r.rdb
	}
	bounded := c.WithTimeout(max(time.Until(deadline), 0) + 50*time.Millisecond)
	bounded.Options().ContextTimeoutEnabled = true // ends the handshake of a new connection, too
	return bounded
}
