package primitives

import (
	"context"
	"time"

	"github.com/redlatch/redlatch/scripts"
)

const (
	fairQueue     = "redisson_lock_queue"
	fairDeadlines = "redisson_lock_timeout"
	fairOurs      = "redlatch_lock_waiters"
	fairSigns     = "redlatch_lock_clients"
)

// FairLock is Redisson's RFairLock: first come, first served, over all clients, Java's included. Waiters stand in a queue in
// Redis, in the order in which they came there. A waiter whose process died costs those behind it its waiter timeout
// ([WithWaiterTimeout], 10 s) at the most; a dead one of Redisson's costs what Redisson's configuration says (5 minutes by default).
// TryAcquire never stands in the queue, and succeeds only if nobody does.
func (c *Client) FairLock(name string, opts ...Option) *Lock {
	l := &Lock{}
	l.init(c, "fair", name, opts)
	f := &fair{exclusiveOf(&l.handle, fairScripts,
		prefixed(fairQueue, l.raw), prefixed(fairDeadlines, l.raw), prefixed(fairOurs, l.raw), prefixed(fairSigns, l.raw))}
	l.speaks(f, f.keys(l.memory("")))
	return l
}

// fair speaks RFairLock: the plain lock's hash, with a queue before it.
type fair struct{ exclusive }

var (
	fairScripts = &mutexScripts{
		acquire: scripts.Load("fairlock/acquire"),
		release: scripts.Load("lock/release", "fairlock"),
		leave:   scripts.Load("lock/leave", "fairlock"),
		force:   scripts.Load("lock/force", "fairlock"),
	}
	fairRefresh = scripts.Load("fairlock/refresh")
	fairLeave   = scripts.Load("fairlock/leave")
	fairInfo    = scripts.Load("fairlock/info")
)

func (f *fair) take(ctx context.Context, q *request) (verdict, error) {
	var memory any = 0
	if q.shared {
		memory = f.h.c.remembered
	}
	q.open = q.open || q.queue // what stands in the queue must leave it
	reply, err := f.h.c.confirm(ctx, f.lua.acquire, f.keys(f.h.memoryOf(&q.claim)), q.id, millis(q.ttl), f.h.c.publish(),
		memory, flag(q.once), flag(q.queue), millis(q.patience), f.h.c.id)
	if err != nil {
		return verdict{}, err
	}
	return readTake(reply)
}

func (f *fair) undo(ctx context.Context, q *request) error {
	// In this order: the first sees that a late copy of take does not stand in the queue again.
	if err := f.exclusive.undo(ctx, q); err != nil {
		return err
	}
	if !q.queue || (q.shared && f.h.c.queues.awaits(f, q.id)) { // who shares the id shares the place
		return nil
	}
	return f.leaves(ctx, q.id)
}

// leaves takes an id out of the queue.
func (f *fair) leaves(ctx context.Context, id string) error {
	_, err := f.h.c.run.DoWithin(ctx, fairLeave, f.keys(f.h.memory("")), id, f.h.c.publish())
	return err
}

// channel is the waiter's own.
func (f *fair) channel(q *request) string { return f.news + ":" + q.id }

func (f *fair) info(ctx context.Context) (Info, error) {
	reply, err := f.h.c.run.Do(ctx, fairInfo, []any{f.hash, f.more[0]})
	if err != nil {
		return Info{}, err
	}
	answer := reply.Value.([]any)
	info := Info{TTL: ttlOf(answer[0].(int64))}
	info.Holders = holders(answer[1].([]any), info.TTL)
	for _, id := range answer[2].([]any) {
		info.Waiters = append(info.Waiters, id.(string))
	}
	return info, nil
}

// refresh tells Redis that those who wait here do, and brings back what they should know.
func (f *fair) refresh(ctx context.Context, longest time.Duration, ids []string) (news fairNews, err error) {
	args := make([]any, 0, 3+len(ids))
	args = append(args, f.h.c.id, f.h.c.publish(), millis(longest))
	for _, id := range ids {
		args = append(args, id)
	}
	reply, err := f.h.c.run.DoWithin(ctx, fairRefresh, f.keys(f.h.memory("")), args...)
	if err != nil {
		return fairNews{wait: -1}, err
	}
	answer := reply.Value.([]any)
	left := answer[0].(int64)
	news.free = left == -2
	news.next, _ = answer[1].(string)
	if news.free && news.next != "" {
		left = answer[2].(int64)
	}
	news.wait = -1
	if left >= 0 {
		news.wait = time.Duration(left) * time.Millisecond
	}
	news.own = answer[3] == int64(1)
	news.waiting = int(answer[4].(int64))
	for _, id := range answer[5:] {
		news.missing = append(news.missing, id.(string))
	}
	return news, nil
}

// fairNews is what one look for all waiters brings.
type fairNews struct {
	wait    time.Duration // until the lease of the holder, or the time that the next owner of a free lock is given, ends; negative: unknown
	free    bool
	next    string // the next owner
	own     bool   // it is one of this client's
	waiting int
	missing []string // those who should be waiting and are not
}

// stand is the waiting: in Redis's queue, and here in the client's share of it.
func (f *fair) stand(ctx context.Context, q *request, s *settings, w *wait) (verdict, error) {
	q.patience = s.waiterTimeout
	v, err := f.h.try(ctx, q)
	if err != nil || v.granted {
		return v, err
	}
	f.h.waits(w, q.id)
	return f.h.c.queues.wait(ctx, f, q, w, v)
}
