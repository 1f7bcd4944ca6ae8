package primitives

import (
	"context"
	"errors"
	"strconv"
	"strings"
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
		release: scripts.Load("fairlock/release"),
		leave:   scripts.Load("lock/release_shared", "fairlock"),
		force:   scripts.Load("lock/force", "fairlock"),
		adopt:   scripts.Load("lock/adopt", "fairlock"),
	}
	fairRefresh = scripts.Load("fairlock/refresh")
	fairLeave   = scripts.Load("fairlock/leave_queue")
	fairInfo    = scripts.Load("fairlock/info")
)

// How fairlock/acquire is to be refused.
const (
	fairAway  = iota // not to stand in the queue
	fairTold         // to stand there, and to ask when told that the lock is free
	fairGiven        // to stand there, and to be given it
)

func (f *fair) take(ctx context.Context, q *request) (verdict, error) {
	var memory any = 0
	if q.shared {
		memory = f.h.c.remembered
	}
	stands := fairAway
	switch {
	case q.queue && (q.shared || f.h.c.replicas.n > 0): // whoever shares the id holds it too; and a grant is nobody's to confirm
		stands = fairTold
	case q.queue:
		stands = fairGiven
	}
	q.open = q.open || q.queue // what stands in the queue must leave it
	reply, err := f.h.c.confirm(ctx, f.lua.acquire, f.keys(f.h.memoryOf(&q.claim)), q.id, f.h.lease(q.ttl), f.h.c.publish(),
		memory, flag(q.once), stands, millis(q.patience), f.h.c.life, f.h.c.id, flag(q.nested))
	if err != nil {
		return verdict{}, err
	}
	v, err := readTake(reply)
	if answer, ok := reply.Value.([]any); ok && len(answer) == 4 {
		v.place = placed(answer, reply.Sent)
	}
	return v, err
}

// place is where a request stands in the queue.
type place struct {
	since   string    // when it came to stand there, by the server's clock; "": it is told, not given the lock
	seen    time.Time // it stood there no earlier than this
	foreign bool      // one of Redisson's holds the lock, or may before it
}

func placed(answer []any, sent time.Time) place {
	since, _ := answer[2].(string)
	return place{since: since, seen: sent, foreign: answer[3] == int64(1)}
}

// gift is the lock, given to one that waits for it.
type gift struct {
	id    string
	since string        // to the place that it has had since then
	ttl   time.Duration // for so long
	sent  time.Time     // if zero, from a moment after it was seen to stand there
}

// readGift reads "<id> <since> <ttl>".
func readGift(word string) (g gift, ok bool) {
	id, rest, _ := strings.Cut(word, " ")
	since, ttl, _ := strings.Cut(rest, " ")
	ms, err := strconv.ParseInt(ttl, 10, 64)
	return gift{id: id, since: since, ttl: time.Duration(ms) * time.Millisecond}, err == nil
}

func (f *fair) undo(ctx context.Context, q *request) error {
	if !q.shared {
		_, err := f.end(ctx, &q.claim)
		return err
	}
	// In this order: after the first command, a late copy of take cannot join the queue again. An error of Redis's own,
	// as for a key of another type, does not keep the second from leaving it.
	_, err := f.leave(ctx, &q.claim, true)
	if err != nil && scripts.OutcomeOf(err) != scripts.Executed {
		return err
	}
	if !q.queue || f.h.c.queues.awaits(f, q.id) { // waiters that share the id share the place
		return err
	}
	return errors.Join(err, f.leaves(ctx, q.id))
}

func (f *fair) give(ctx context.Context, t *tenure, left int) (lost bool, err error) {
	if left > 0 || t.shared {
		return f.lessen(ctx, t, left)
	}
	return f.end(ctx, &t.claim)
}

func (f *fair) adopt(ctx context.Context, id string, q *request) (time.Time, int, error) {
	return f.adoptBy(ctx, f.h.memoryOf(&q.claim), id, q)
}

// end ends what an id of its own has: the lock, or a place in the queue. If that gives the lock to another who waits here, it is told.
func (f *fair) end(ctx context.Context, c *claim) (lost bool, err error) {
	reply, err := f.h.c.run.Do(ctx, f.lua.release, f.keys(f.h.memoryOf(c)), c.id, f.h.c.publish(), f.h.c.rememberedFor(c), f.h.c.life)
	if word, ok := reply.Value.(string); ok {
		if g, ok := readGift(word); ok {
			g.sent = reply.Sent
			f.h.c.queues.given(f, g)
		}
	}
	return reply.Value == int64(0), err
}

// leaves takes an id out of the queue.
func (f *fair) leaves(ctx context.Context, id string) error {
	_, err := f.h.c.run.Do(ctx, fairLeave, f.keys(f.h.memory("")), id, f.h.c.publish())
	return err
}

// channel is the waiter's own: Redisson tells it there, and so does whatever does not give the lock.
func (f *fair) channel(q *request) string { return f.news + ":" + q.id }

// gifts is the channel on which this client's waiters are told that the lock was granted to one of them. A former
// life of the client listens on another channel.
func (f *fair) gifts() string { return f.news + ":" + f.h.c.life }

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
	args = append(args, f.h.c.life, f.h.c.publish(), millis(longest))
	for _, id := range ids {
		args = append(args, id)
	}
	reply, err := f.h.c.run.Do(ctx, fairRefresh, f.keys(f.h.memory("")), args...)
	if err != nil {
		return fairNews{wait: -1}, err
	}
	answer := reply.Value.([]any)
	left := answer[0].(int64)
	news.free = left == -2
	news.holder, _ = answer[1].(string)
	news.next, _ = answer[2].(string)
	if news.free && news.next != "" {
		left = answer[3].(int64)
	}
	news.wait = -1
	if left >= 0 {
		news.wait = time.Duration(left) * time.Millisecond
	}
	news.own = answer[4] == int64(1)
	news.waiting = int(answer[5].(int64))
	for _, id := range answer[6:] {
		news.missing = append(news.missing, id.(string))
	}
	return news, nil
}

// fairNews is what one look for all waiters brings.
type fairNews struct {
	wait    time.Duration // until the lease of the holder, or the time that the next owner of a free lock is given, ends; negative: unknown
	free    bool
	holder  string
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
