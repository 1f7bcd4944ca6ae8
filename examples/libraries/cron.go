package libraries

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/redlatch/redlatch/primitives"
)

// OnOneHost is a cron.JobWrapper: of all hosts that start the job, the first one runs it. The minimum hold is
// longer than their clocks differ, and shorter than the interval of the job.
func OnOneHost(ctx context.Context, lock *primitives.Lock, job func(context.Context) error) cron.Job {
	return cron.FuncJob(func() {
		err := lock.Do(ctx, job, primitives.WithWait(0), primitives.WithMinHold(10*time.Second))
		if err != nil && (!errors.Is(err, primitives.ErrNotAcquired) || errors.Is(err, primitives.ErrUnavailable)) {
			slog.ErrorContext(ctx, "job failed", "name", lock.Name(), "error", err)
		}
	})
}
