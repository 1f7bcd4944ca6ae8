package primitives

import (
	"context"
	"errors"
	"math"

	"github.com/redlatch/redlatch/scripts"
)

// CountDownLatch lets any number of processes wait until others have counted it down to 0, Redisson's RCountDownLatch:
// [Client.CountDownLatch]. It is a handle: immutable, shareable, without I/O to make one.
//
// Redis keeps a number: it does not know who is to count down, so a process that dies before its CountDown leaves the latch closed. A latch
// that has opened is gone, and can be set again.
type CountDownLatch struct {
	_ noCopy
	handle
	gate gate
}

// latchChannel is followed by the name in braces, whatever braces the name has: so does Redisson.
const latchChannel = "redisson_countdownlatch__channel__"

// CountDownLatch is the latch of that name. In a cluster a name with braces of its own is [ErrInvalid]: Redisson's channel for it would be in another
// slot.
func (c *Client) CountDownLatch(name string) *CountDownLatch {
	l := &CountDownLatch{}
	l.init(c, "latch", name, nil)
	l.many = true
	l.gate = gate{h: &l.handle, count: l.raw, news: latchChannel + "{" + l.raw + "}"}
	l.speaks(&l.gate, l.gate.keys(l.memory("")))
	return l
}

// Init sets the count, 1 or more, unless there is one, and tells whether it did.
func (l *CountDownLatch) Init(ctx context.Context, n int) (created bool, err error) {
	answer, err := l.change(ctx, "init", latchInit, l.gate.keys, atLeast(1, n), n)
	return answer == 1, err
}

// CountDown counts down by one. The one that reaches 0 opens the latch. Without a latch it does nothing.
func (l *CountDownLatch) CountDown(ctx context.Context) error {
	_, err := l.change(ctx, "count down", latchCountDown, l.gate.keys, nil)
	return err
}

// Count is how often it is still to be counted down; 0 if there is no latch.
func (l *CountDownLatch) Count(ctx context.Context) (int64, error) {
	var count int64
	err := l.call(ctx, "count", func() error {
		reply, err := l.c.run.Do(ctx, latchLeft, []any{l.gate.count})
		count, _ = reply.Value.(int64)
		return err
	})
	return max(count, 0), err // Redisson's trySetCount takes any number
}

// Delete removes the latch and tells whether there was one. Those that wait go on, as there is nothing to wait for any more.
func (l *CountDownLatch) Delete(ctx context.Context) (bool, error) {
	answer, err := l.change(ctx, "delete", latchDelete, l.gate.keys, nil)
	return answer == 1, err
}

// Wait waits until the count is 0 or there is no latch: never set, or deleted. It returns nil then, ctx's cause when ctx is done before, and
// [ErrClosed] when the client closes. A latch that was opened and set again before a waiter could look keeps it waiting. Of a transport error it tells on
// the first look; once waiting it is ridden out.
func (l *CountDownLatch) Wait(ctx context.Context) error {
	return l.call(ctx, "wait", func() error {
		if l.c.isClosing() {
			return ErrClosed
		}
		s := defaultSettings()
		w := wait{limit: -1}
		defer l.c.presence.waited(&w)
		_, err := l.obtain(ctx, &request{claim: claim{permits: 1, ttl: maxDuration}}, &s, &w)
		if errors.Is(err, ErrNotAcquired) {
			return context.Cause(ctx)
		}
		return err
	})
}

// gate speaks Redisson's RCountDownLatch: a string, the count, which is gone when it is 0. To wait for it is to try to pass, which takes
// nothing.
type gate struct {
	h     *handle
	count string
	news  string
}

var (
	latchInit      = scripts.Load("latch/init")
	latchCountDown = scripts.Load("latch/count_down")
	latchDelete    = scripts.Load("latch/delete")
	latchLeft      = scripts.Load("latch/info")
)

func (g *gate) keys(memory string) []any { return []any{g.count, g.news, memory} }

func (g *gate) channel(*request) string   { return g.news }
func (g *gate) heeds(payload string) bool { return payload == "0" || payload == "1" }

// take tries to pass. When one can, so can all.
func (g *gate) take(ctx context.Context, _ *request) (verdict, error) {
	reply, err := g.h.c.run.Do(ctx, latchLeft, []any{g.count})
	if err != nil {
		return verdict{}, err
	}
	if count, _ := reply.Value.(int64); count > 0 {
		return verdict{wait: -1}, nil
	}
	return verdict{granted: true, sent: reply.Sent, more: math.MaxInt}, nil
}

// undo and give: nothing was taken.
func (g *gate) undo(context.Context, *request) error                      { return nil }
func (g *gate) give(context.Context, *tenure, int) (lost bool, err error) { return false, nil }
