package engine

import (
	"context"
	"time"

	"github.com/redlatch/redlatch/internal/waitq"
)

// Internals of the package for the tests in package engine_test.

const (
	ReleaseTimeout  = releaseTimeout
	RollbackGrace   = rollbackGrace
	RollbackTimeout = rollbackTimeout
	SlowPoll        = waitq.SlowPoll
	StuckAfter      = waitq.StuckAfter
)

var (
	ErrSiblingStuck = errSiblingStuck
	ErrWaitOver     = errWaitOver
)

// SetTags replaces the tags of holds.
func (c *Core) SetTags(tagOf func(ownerID string) string) { c.Owners.TagOf = tagOf }

func (h *Hold) IsLost() bool          { return h.lossCause() != nil }
func (h *Hold) SetDepth(depth uint16) { h.depth = depth }

// PassLimit moves the limit of h to now. No timer notices that, as if the process had stood still.
func (h *Hold) PassLimit() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.limit = h.r.Core.Instant(time.Now())
}

func (o *Ownership) EndAll(loss Loss) { o.loseInBackground(loss) }
func (o *Ownership) IsLoss(got Released, sent time.Time) bool {
	return o.recordAnswer(got, sent, nil) == wasNotOurs
}
func (o *Ownership) LockWire() bool { return o.wire.TryLock() }
func (o *Ownership) UnlockWire()    { o.wire.Unlock() }
func (o *Ownership) WriteCountLater(ctx context.Context, limit time.Duration) {
	o.writeCountLater(ctx, limit)
}

// NewWaiter returns a waiter that is in no queue.
func NewWaiter(r *Resource, q *Request) *Waiter {
	return &Waiter{Request: q, resource: r, wakeup: make(chan struct{}, 1)}
}

// JoinLocal adds a waiter to the local queue of its name.
func (c *Core) JoinLocal(w *Waiter) *waitQueue { return c.queues.join(w, Result{RetryAfter: -1}) }

func (wq *waitQueue) Message(m Message)        { wq.message(m) }
func (t *Terms) PollPause(n int) time.Duration { return t.pollPause(n) }

// RetryAfter returns how soon another attempt is worth making.
func RetryAfter(v Verdict, res Result) time.Duration { return v.retryAfter(res) }
