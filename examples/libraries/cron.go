package libraries

import (
	"context"
	"log/slog"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/redlatch/redlatch/primitives"
)

// OnOneHost is a cron.JobWrapper: of all hosts that start the job, the first one runs it. The
// minimum hold is longer than their clocks differ, and shorter than the interval of the job.
func OnOneHost(ctx context.Context, lock *primitives.Lock, job func(context.Context) error) cron.Job {
	return cron.FuncJob(func() {
		_, err := lock.TryDo(ctx, job, primitives.WithMinHold(10*time.Second))
		if err != nil { // the job has failed, or Redis; a job that runs on another host is no error
			slog.ErrorContext(ctx, "job failed", "name", lock.Name(), "error", err)
		}
	})
}
