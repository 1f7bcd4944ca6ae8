package libraries

import (
	"context"

	"github.com/hibiken/asynq"

	"github.com/redlatch/redlatch/primitives"
)

// OneAtATime is asynq middleware: tasks with the same key run one after another, on all servers. If
// the lock is busy for longer than the options allow, asynq retries the task later.
func OneAtATime(
	client *primitives.Client, key func(*asynq.Task) string, opts ...primitives.Option,
) asynq.MiddlewareFunc {
	return func(next asynq.Handler) asynq.Handler {
		return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			return client.Lock(key(task)).Do(ctx, func(ctx context.Context) error {
				return next.ProcessTask(ctx, task)
			}, opts...)
		})
	}
}
