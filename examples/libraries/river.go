package libraries

import (
	"context"
	"time"

	"github.com/riverqueue/river"

	"github.com/redlatch/redlatch/primitives"
)

// ShipArgs are the arguments of a job of River.
type ShipArgs struct {
	Customer string `json:"customer"`
}

// Kind names the kind of job.
func (ShipArgs) Kind() string { return "ship" }

// ShipWorker ships for one customer at a time. A job whose customer is busy is snoozed, which
// leaves its worker to other jobs.
type ShipWorker struct {
	river.WorkerDefaults[ShipArgs]
	Locks *primitives.Client
	Ship  func(ctx context.Context, customer string) error
}

// Work is called by River.
func (w *ShipWorker) Work(ctx context.Context, job *river.Job[ShipArgs]) error {
	ran, err := w.Locks.Lock("customer:"+job.Args.Customer).TryDo(ctx, func(ctx context.Context) error {
		return w.Ship(ctx, job.Args.Customer)
	})
	if !ran && err == nil {
		return river.JobSnooze(time.Second)
	}
	return err
}
