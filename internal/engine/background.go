package engine

import (
	"context"
	"time"
)

// Rollbacks and releases that the server has not answered. They must go on after their call has
// returned, because the lock would otherwise stay taken until its lease ends, or for ever without one.
// But a caller often wants to know that the lock is free when its call returns. So the call waits for
// the first attempt for a short time, and a goroutine repeats it.

// Bounds of work in the background.
const (
	releaseTimeout = 5 * time.Second // for one attempt, and for a release that its caller waits for
	// rollbackGrace is how long a call waits for its rollback when its own time is over.
	rollbackGrace = 15 * time.Millisecond
	// rollbackTimeout is how long a call waits for its rollback when it still has time.
	rollbackTimeout = time.Second
	// The pause between two attempts doubles from firstRetry to longestRetry.
	firstRetry   = 20 * time.Millisecond
	longestRetry = time.Second
)

// inBackground runs do until it succeeds, until over, or until the client closes. It blocks until the
// first attempt has ended, for limit at most, and for rollbackGrace at most once ctx has ended.
//
// do runs in a goroutine that Close waits for. Its context has the values of ctx but does not end with
// it, because a cancelled caller must not leave the lock taken. do must be safe to repeat.
func (c *Core) inBackground(ctx context.Context, over time.Time, limit time.Duration, do func(context.Context) error) {
	first := make(chan struct{})
	c.Spawn(func() { c.retry(context.WithoutCancel(ctx), over, do, first) })
	if limit <= 0 {
		return
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-first:
		return
	case <-timer.C:
		return
	case <-ctx.Done():
	}
	timer.Reset(min(limit, rollbackGrace)) // the caller's time is over
	select {
	case <-first:
	case <-timer.C:
	}
}

// retry is the goroutine of inBackground. It closes first when its first attempt has ended, in
// success or not. It ends when do succeeds, at over, when the transport is closed, or on stopping.
func (c *Core) retry(ctx context.Context, over time.Time, do func(context.Context) error, first chan<- struct{}) {
	ctx, cancel := context.WithDeadline(ctx, over)
	defer cancel()
	for delay := firstRetry; ; delay = min(2*delay, longestRetry) {
		attempt, stop := context.WithTimeout(ctx, releaseTimeout)
		err := do(attempt)
		stop()
		if first != nil {
			close(first)
			first = nil
		}
		if err == nil || ctx.Err() != nil || c.failure(err).Closed {
			return
		}
		Pause(ctx, delay, c.stopping)
		if ctx.Err() != nil || isClosed(c.stopping) {
			return
		}
	}
}

// rollbackLimit is how long a call that began then may wait for its rollback. A server that was silent
// for the whole command timeout will probably not answer the rollback either, so then it is short.
func (c *Core) rollbackLimit(began time.Time) time.Duration {
	return min(max(c.CommandTimeout-time.Since(began), rollbackGrace), rollbackTimeout)
}
