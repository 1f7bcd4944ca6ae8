package demo

import (
	"context"
	"sync"
)

// tasks runs functions in goroutines until the first one fails.
type tasks struct {
	goroutines sync.WaitGroup
	ctx        context.Context //nolint:containedctx // it ends with the tasks
	fail       context.CancelCauseFunc
}

// newTasks returns a tasks, and a context that ends when a function of them has failed or all have
// returned.
func newTasks(ctx context.Context) (*tasks, context.Context) {
	ctx, fail := context.WithCancelCause(ctx)
	return &tasks{ctx: ctx, fail: fail}, ctx
}

// run calls f in a goroutine.
func (g *tasks) run(f func() error) {
	g.goroutines.Go(func() {
		if err := f(); err != nil {
			g.fail(err)
		}
	})
}

// wait waits for all functions, and returns the first error.
func (g *tasks) wait() error {
	g.goroutines.Wait()
	err := context.Cause(g.ctx)
	g.fail(nil)
	return err
}
