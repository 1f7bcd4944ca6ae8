package primitives

import (
	"context"
	"errors"
	"math"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/scripts"
)

// CountDownLatch lets any number of processes wait until others have counted it down to 0. It is
// Redisson's RCountDownLatch: [Client.CountDownLatch]. It is a handle: immutable, shareable, and made
// without I/O.
//
// Redis keeps a number and does not know who is to count down. A process that dies before its CountDown
// leaves the latch closed. A latch that has opened is gone, and can be set again.
type CountDownLatch struct {
	_ noCopy
	handle

	driver latchDriver
}

// latchChannel is followed by the name in braces, even if the name has braces: so does Redisson.
const latchChannel = "redisson_countdownlatch__channel__"

// CountDownLatch returns the latch of that name. On a cluster a name with braces of its own is
// [ErrInvalid]: Redisson's channel for it would be in another slot.
func (c *Client) CountDownLatch(name string) *CountDownLatch {
	l := &CountDownLatch{}
	l.init(c, "latch", name, nil)
	l.driver = latchDriver{h: &l.handle, count: l.raw, channel: latchChannel + "{" + l.raw + "}"}
	l.use(&l.driver, engine.Traits{ManyHolders: true}, l.driver.keys(l.requestKey("")))
	return l
}

// Init sets the count, 1 or more, unless there is one, and reports whether it did.
func (l *CountDownLatch) Init(ctx context.Context, n int) (created bool, err error) {
	answer, err := l.change(ctx, "init", latchInit, l.driver.keys, outOfRange(1, n), n)
	return answer == 1, err
}

// CountDown decrements the count. At 0 the latch opens. Without a latch it does nothing.
func (l *CountDownLatch) CountDown(ctx context.Context) error {
	_, err := l.change(ctx, "count down", latchCountDown, l.driver.keys, nil)
	return err
}

// Count is the count that is left; 0 if there is no latch.
func (l *CountDownLatch) Count(ctx context.Context) (int64, error) {
	var count int64
	err := l.call(ctx, "count", func() error {
		reply, err := l.c.run.Do(ctx, latchInfo, []any{l.driver.count})
		count, _ = reply.Value.(int64)
		return err
	})
	return max(count, 0), err // Redisson's trySetCount takes any number
}

// Delete removes the latch, and reports whether there was one. Waiters go on, because there is nothing
// left to wait for.
func (l *CountDownLatch) Delete(ctx context.Context) (bool, error) {
	answer, err := l.change(ctx, "delete", latchDelete, l.driver.keys, nil)
	return answer == 1, err
}

// Wait waits until the count is 0 or there is no latch: never set, or deleted. It returns ctx's cause if
// ctx is done first, and [ErrClosed] if the client closes. A latch that opens and is set again before a
// waiter could look keeps it waiting. Wait returns a transport error of its first attempt; while it waits
// it retries after transport errors.
func (l *CountDownLatch) Wait(ctx context.Context) error {
	return l.call(ctx, "wait", func() error {
		if l.c.core.IsClosing() {
			return ErrClosed
		}
		err := l.res.Await(ctx, &engine.Terms{Wait: -1, TTL: maxDuration, Permits: 1})
		if errors.Is(err, ErrNotAcquired) {
			return context.Cause(ctx)
		}
		return err
	})
}

// latchDriver is the driver of RCountDownLatch: a string, the count, which is deleted at 0. To wait is to
// try to pass, which takes nothing.
type latchDriver struct {
	engine.NoLease

	h       *handle
	count   string
	channel string
}

var (
	latchInit      = scripts.Load("latch/init")
	latchCountDown = scripts.Load("latch/count_down")
	latchDelete    = scripts.Load("latch/delete")
	latchInfo      = scripts.Load("latch/info")
)

func (d *latchDriver) keys(request string) []any { return []any{d.count, d.channel, request} }

func (d *latchDriver) Subscribe(_ *engine.Request, wake func(missed bool)) []engine.Subscription {
	return d.h.c.subscribe(d.channel, isUnlockMessage, wake)
}

// TryAcquire tries to pass. If one waiter can, all can.
func (d *latchDriver) TryAcquire(ctx context.Context, _ *engine.Request) (engine.Result, error) {
	reply, err := d.h.c.run.Do(ctx, latchInfo, []any{d.count})
	if err != nil {
		return engine.Result{}, err
	}
	if count, _ := reply.Value.(int64); count > 0 {
		return engine.Result{RetryAfter: -1}, nil
	}
	return engine.Result{Granted: true, Sent: reply.Sent, Free: math.MaxInt}, nil
}

// Rollback does nothing: TryAcquire takes nothing.
func (d *latchDriver) Rollback(context.Context, *engine.Request) error { return nil }

// Release is not called: nothing is held.
func (d *latchDriver) Release(context.Context, *engine.Ownership, int) (bool, error) {
	return false, nil
}
