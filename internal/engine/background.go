package engine

import (
	"context"
	"time"
)

// Bounds of work in the background.
const (
	releaseTimeout = 5 * time.Second // for one attempt, and for a release that its caller waits for
	// rollbackGrace is how long a call whose time is over waits for its rollback, and rollbackTimeout how
	// long a call waits that still has time.
	rollbackGrace   = 15 * time.Millisecond
	rollbackTimeout = time.Second
	firstRetry      = 20 * time.Millisecond
	longestRetry    = time.Second
)

// inBackground runs do until it succeeds, until the time is over, or until the client closes. It
// returns when the first attempt has ended, after limit, or rollbackGrace after ctx has ended.
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

// retry closes first when its first attempt has ended.
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

// rollbackLimit is how long a call that began then may wait for its rollback: no longer than the
// server had to answer the call.
func (c *Core) rollbackLimit(began time.Time) time.Duration {
	return min(max(c.CommandTimeout-time.Since(began), rollbackGrace), rollbackTimeout)
}
