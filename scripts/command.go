package scripts

import (
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// Commands sends plain commands, each with its key as the first argument, in one pipeline. It
// returns one value per command, nil for a missing key, and the first error of a command. It
// returns when ctx or the runner's timeout ends; the attempt then goes on in its own goroutine, and
// Close waits for it. Use it for best-effort work only: Commands does not retry, and Redis does not
// remember the request.
func (r *Runner) Commands(ctx context.Context, commands ...[]any) ([]any, error) {
	return r.commands(ctx, commands, false)
}

// Reads is [Runner.Commands] for commands that only read. A former primary would answer from old
// data, and therefore counts as a server that refuses them. On a cluster such a node no longer
// serves the keys.
func (r *Runner) Reads(ctx context.Context, commands ...[]any) ([]any, error) {
	return r.commands(ctx, commands, r.slots.client == nil)
}

// CountListeners returns the command that asks how many connections listen to a channel: PUBSUB
// NUMSUB. On a cluster it is nil unless the channels are sharded, because a node knows only of its
// own connections. [Runner.Reads] sends it to the node of the channel.
func (r *Runner) CountListeners(channel string) []any {
	isCluster := r.slots.client != nil
	isSharded := r.Publish() == SPublish
	switch {
	case !isCluster:
		return []any{"pubsub", "numsub", channel}
	case isSharded:
		return []any{"pubsub", "shardnumsub", channel}
	}
	return nil
}

// keyPosition returns the position of a plain command's key. For PUBSUB, the channel counts as the
// key.
func keyPosition(args []any) int8 {
	if args[0] == "pubsub" {
		return 2
	}
	return 1
}

func (r *Runner) commands(ctx context.Context, commands [][]any, asksRole bool) ([]any, error) {
	if len(commands) == 0 {
		return nil, nil
	}
	return attemptOnce(ctx, r, commands[0][0].(string), func(ctx context.Context) ([]any, error) {
		return r.plain(ctx, commands, asksRole)
	})
}

// plain makes the one attempt of Commands. It blocks until go-redis is done with it, which may be
// after ctx has ended. Answered commands keep their values when others fail or the connection
// breaks.
func (r *Runner) plain(ctx context.Context, commands [][]any, asksRole bool) ([]any, error) {
	cmds := make([]*singleCmd, len(commands))
	queue := make([]redis.Cmder, len(commands))
	for i, args := range commands {
		cmds[i] = newCmd(ctx, keyPosition(args), args...)
		queue[i] = cmds[i]
	}
	var role *singleCmd
	if asksRole {
		role = newRoleCmd(ctx)
		queue = slices.Insert(queue, 0, redis.Cmder(role))
	}
	broken := r.batch.timed.batch(ctx, queue)
	if asksRole && repliedWith(role.Err(), readOnly) {
		r.recovery.note(commands[0][1], errFormer)
		return nil, errFormer
	}
	values := make([]any, len(cmds))
	var first error
	for i, cmd := range cmds {
		reply, err := cmd.reply(time.Time{}, broken) // no TTL counts from here
		values[i] = reply.Value
		if args := commands[i]; len(args) > 1 {
			r.recovery.note(args[keyPosition(args)], err)
		}
		if first == nil {
			first = err
		}
	}
	return values, first
}
