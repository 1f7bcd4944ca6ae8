package engine

import (
	"context"
	"time"

	"github.com/redlatch/redlatch/internal/duty"
	"github.com/redlatch/redlatch/internal/failure"
)

// Rollbacks and releases that the server has not answered go on as duties: see package duty. But a
// caller often wants to know that the lock is free when its call returns, so the call waits for the
// first attempt for a short time.

// Bounds of work in the background.
const (
	releaseTimeout = 5 * time.Second // for one attempt, and for a release that its caller waits for
	// rollbackGrace is how long a call waits for its rollback when its own time is over.
	rollbackGrace = 15 * time.Millisecond
	// rollbackTimeout is how long a call waits for its rollback when it still has time.
	rollbackTimeout = time.Second
)

// inBackground runs do until it succeeds, until over, or until the client closes. It blocks until
// the first attempt has ended, for limit at most, and for rollbackGrace at most once ctx has ended.
//
// do runs in a goroutine that Close waits for. Its context has the values of ctx but does not end
// with it, because a cancelled caller must not leave the lock taken. do must be safe to repeat.
func (r *Resource) inBackground(
	ctx context.Context, over time.Time, limit time.Duration, do func(context.Context) error,
) {
	awaitFirst(ctx, r.addDuty(ctx, time.Now(), over, do), limit)
}

// addDuty is inBackground for a command that is first sent when it is due. It does not block. first
// is closed when the first attempt has ended.
func (r *Resource) addDuty(
	ctx context.Context, due, over time.Time, do func(context.Context) error,
) (first <-chan struct{}) {
	c := r.Core
	return c.duties.Add(ctx, &duty.Duty{
		Do:     func(ctx context.Context) duty.Answer { return r.answerOf(do(ctx)) },
		Server: func() any { return c.Commands.Server(r) },
		Due:    due, Over: over,
	})
}

// answerOf returns what the error of a command says about the server.
//
// A final answer ends a duty if a lease ends what the duty leaves behind. Repeating it would send a
// command a second, for minutes, for each caller that has given up. Ending it is safe even if an
// attempt of unknown outcome may still be executed. While the reason lasts, a late copy is refused
// as well. If the reason passes first, a copy may take the lock, and nobody holds it: it stays
// taken until its lease ends, as after a crash. Without a lease it would stay taken for ever, so
// such a duty is repeated.
func (r *Resource) answerOf(err error) duty.Answer {
	f := failure.Of(err)
	switch {
	case err == nil:
		return duty.Done
	case f.Closed, f.Final && r.Traits.Leased:
		return duty.Final
	case f.InDoubt() || f.Retry():
		return duty.Silent
	}
	return duty.Failed
}

// awaitFirst waits until first is closed, for limit at most, and for rollbackGrace at most once ctx
// has ended.
func awaitFirst(ctx context.Context, first <-chan struct{}, limit time.Duration) {
	if limit <= 0 {
		return
	}
	Pause(ctx, limit, first)
	if ctx.Err() != nil { // the caller's time is over
		Pause(context.Background(), min(limit, rollbackGrace), first)
	}
}

// RollbackLimit returns how long a call that began at began may wait for its rollback. It is short
// after a whole command timeout, because a server that was silent for so long will probably not
// answer the rollback either.
func (c *Core) RollbackLimit(began time.Time) time.Duration {
	return min(max(c.CommandTimeout-time.Since(began), rollbackGrace), rollbackTimeout)
}
