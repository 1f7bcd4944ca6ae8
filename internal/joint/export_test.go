package joint

import (
	"context"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
)

// Unexported parts that the tests in package joint_test need.

const (
	FirstMemberWait = firstMemberWait
	RollbackWait    = rollbackWait
	Together        = together
	Promptly        = promptly
)

var (
	ErrBudget        = errBudget
	Overdue    error = overdue{errBudget}
	OverBudget       = overBudget
)

// Add adds the hold of a member.
func (o *Holding) Add(member *engine.Hold) bool { return o.add(member) }

// Replace is replace, for holds of members.
func (o *Holding) Replace(lost, fresh *engine.Hold) bool { return o.replace(lost, fresh) }

// UntilOver is untilOver.
func (o *Holding) UntilOver() context.Context {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.untilOver()
}

// SettleSilent begins an attempt whose ctx is done, and settles n questions to members that answer
// after silence. It returns how long that took.
func SettleSilent(c *engine.Core, n int, silence time.Duration) time.Duration {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	began, attempt := time.Now(), newAttemptTime(ctx, &engine.Wait{})
	for range n {
		attempt.settle(0, newFanOut(c, 1, func(int) error { time.Sleep(silence); return nil }))
	}
	return time.Since(began)
}
