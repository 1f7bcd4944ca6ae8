package main

import (
	"context"
	"sync"
)

// group runs functions in goroutines until the first one fails.
type group struct {
	goroutines sync.WaitGroup
	ctx        context.Context //nolint:containedctx // it ends with the group
	fail       context.CancelCauseFunc
}

// newGroup returns a group, and a context that ends when a function of the group has failed or all have
// returned.
func newGroup(ctx context.Context) (*group, context.Context) {
	ctx, fail := context.WithCancelCause(ctx)
	return &group{ctx: ctx, fail: fail}, ctx
}

// run calls f in a goroutine.
func (g *group) run(f func() error) {
	g.goroutines.Go(func() {
		if err := f(); err != nil {
			g.fail(err)
		}
	})
}

// wait waits for all functions, and returns the first error.
func (g *group) wait() error {
	g.goroutines.Wait()
	err := context.Cause(g.ctx)
	g.fail(nil)
	return err
}
