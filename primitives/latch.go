package primitives

import (
	"context"
	"math"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/scripts"
)

// Count-down latches in Redis: Redisson's RCountDownLatch.
//
//	<name>                                      string: the count; deleted at 0
//	redisson_countdownlatch__channel__{<name>}  channel: "0" when it opens, "1" when set or deleted
//
// To the engine a waiter is a request that takes nothing: it is granted when the latch is open.
// Waiting for a latch therefore uses the same queue, subscription and slow poll as waiting for a
// lock.

// CountDownLatch lets any number of processes wait until others have counted it down to 0:
// Redisson's RCountDownLatch ([Client.CountDownLatch]). It is a handle: immutable, shareable, and
// made without I/O.
//
// Redis keeps a number, and does not know which processes will count down. If one dies before its
// CountDown, the latch stays closed. A latch that has opened is gone, and can be set again.
type CountDownLatch struct {
	_ noCopy

	h      handle
	driver latchDriver
}

// latchChannel is the beginning of the name of the channel. The name in braces follows, even if it
// has braces of its own, because Redisson does the same.
const latchChannel = "redisson_countdownlatch__channel__"

// CountDownLatch returns the latch of that name. On a cluster a name with braces of its own is
// [ErrInvalid]: Redisson's channel for it would be in another slot.
func (c *Client) CountDownLatch(name string) *CountDownLatch {
	l := &CountDownLatch{}
	l.h.init(c, "latch", name, nil)
	channel := wireName(latchChannel + "{" + l.h.raw() + "}")
	l.h.keys.Channel = &channel
	l.driver.h = &l.h
	l.h.use(&l.driver, &engine.Traits{ManyHolders: true})
	return l
}

// Name returns the user's name, without the client's prefix.
func (l *CountDownLatch) Name() string { return l.h.Name() }

// Init sets the count, 1 or more, unless there is one, and reports whether it did.
func (l *CountDownLatch) Init(ctx context.Context, n int) (created bool, err error) {
	return isOne(l.driver.change(ctx, "init", outOfRange(1, n), scripts.LatchInit, n))
}

// CountDown decrements the count, once: a repetition after a lost reply does not count again. At 0
// the latch opens. Without a latch CountDown does nothing.
func (l *CountDownLatch) CountDown(ctx context.Context) error {
	_, err := l.driver.change(ctx, "count down", nil, scripts.LatchCountDown, 0)
	return err
}

// Count returns the count that is left, or 0 if there is no latch.
func (l *CountDownLatch) Count(ctx context.Context) (int64, error) {
	var count scripts.Number
	err := l.h.call(ctx, "count", func() (err error) {
		count, err = scripts.LatchInfo{Keys: &l.h.keys}.Do(ctx, l.h.c.calls)
		return err
	})
	return max(count.Number, 0), err // Redisson's trySetCount accepts any number
}

// Delete removes the latch, and reports whether there was one. Waiters go on, because there is
// nothing left to wait for.
func (l *CountDownLatch) Delete(ctx context.Context) (bool, error) {
	return isOne(l.driver.change(ctx, "delete", nil, scripts.LatchDelete, 0))
}

// Wait waits until the count is 0 or there is no latch: never set, or deleted. It returns ctx's
// cause if ctx is done first, without [ErrNotAcquired], and [ErrClosed] if the client closes. If a
// latch opens and is set again before a waiter has looked, that waiter waits on.
//
// If Redis does not answer, the error is [ErrUnavailable] with the reason. A transport error of the
// first attempt is returned at once. While Wait waits, it retries.
func (l *CountDownLatch) Wait(ctx context.Context) error {
	return l.h.call(ctx, "wait", func() error {
		if l.h.c.core.IsClosing() {
			return ErrClosed
		}
		return l.h.res.Await(ctx, &engine.Terms{Wait: engine.Forever, TTL: maxDuration, Permits: 1})
	})
}

// latchDriver is the driver of RCountDownLatch. A message "1" is a reason to look, too, because it
// also announces a deletion. Waiters take nothing, so there is nothing to release, to renew or to
// roll back.
type latchDriver struct{ base }

// TryAcquire implements [engine.Driver] by latch/info, which reads the count. At 0 it grants the
// request, and all other requests, so Free is as large as it can be. While the latch is closed,
// nothing says when it will open.
func (d *latchDriver) TryAcquire(ctx context.Context, _ *engine.Request) (engine.Result, error) {
	count, err := scripts.LatchInfo{Keys: &d.h.keys}.Do(ctx, d.h.c.calls)
	if err != nil {
		return engine.Result{}, err
	}
	if count.Number > 0 {
		return engine.Result{RetryAfter: -1}, nil
	}
	return engine.Result{Granted: true, Sent: count.Sent, Free: math.MaxInt}, nil
}

// Rollback does nothing: TryAcquire takes nothing.
func (d *latchDriver) Rollback(context.Context, *engine.Request) error { return nil }
