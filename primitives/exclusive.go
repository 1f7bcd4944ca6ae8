package primitives

import (
	"context"
	"fmt"
	"time"

	"github.com/redlatch/redlatch/scripts"
)

// exclusive speaks Redisson's RLock: a hash with one field, the owner's id, that counts its holds.
type exclusive struct {
	h    *handle
	hash string
	news string // the channel of releases
	both []any  // hash and news: keys
	more []any  // further keys of those scripts that take or free the lock
	lua  *mutexScripts
}

// mutexScripts are the scripts in which kinds of lock differ.
type mutexScripts struct {
	acquire, enter        *scripts.Script // for an id of our own, and for one that others may share
	release, leave, force *scripts.Script
}

var lockScripts = &mutexScripts{
	acquire: scripts.Load("lock/acquire"),
	enter:   scripts.Load("lock/enter"),
	release: scripts.Load("lock/release"),
	leave:   scripts.Load("lock/leave"),
	force:   scripts.Load("lock/force"),
}

// And those in which they do not.
var (
	lockNest   = scripts.Load("lock/nest")
	lockUnnest = scripts.Load("lock/unnest")
	lockCheck  = scripts.Load("lock/check")
	lockAdopt  = scripts.Load("lock/adopt")
	lockInfo   = scripts.Load("lock/info")
)

// lockRenewals renews whatever is one owner's field in a hash.
var lockRenewals = &renewals{
	script: scripts.Load("lock/renew"),
	keys:   func(keys []any, t *tenure) []any { return append(keys, t.lasts().key()) },
	args: func(args []any, t *tenure, ttl time.Duration) []any {
		return append(args, t.id, millis(ttl))
	},
}

func exclusiveOf(h *handle, lua *mutexScripts, more ...any) exclusive {
	news := prefixed(lockChannel, h.raw)
	return exclusive{h: h, hash: h.raw, news: news, both: []any{h.raw, news}, more: more, lua: lua}
}

func (e *exclusive) channel(*request) string   { return e.news }
func (e *exclusive) heeds(payload string) bool { return payload == "0" || payload == "1" }
func (e *exclusive) key() string               { return e.hash }
func (e *exclusive) renewals() *renewals       { return lockRenewals }
func (e *exclusive) turns() bool               { return true }

func (e *exclusive) parent(ctx context.Context) (*Hold, error) { return holdFrom(ctx, e.h.nests), nil }

func (e *exclusive) keys(memory string) []any {
	all := make([]any, 0, 8) // of fixed size, so that it need not escape
	return append(append(append(all, e.both...), memory), e.more...)
}

func (e *exclusive) take(ctx context.Context, q *request) (verdict, error) {
	var reply scripts.Reply
	var err error
	if q.shared {
		reply, err = e.h.c.confirm(ctx, e.lua.enter, e.keys(e.h.memoryOf(&q.claim)), q.id, millis(q.ttl), e.h.c.publish(), e.h.c.remembered, flag(q.once))
	} else {
		reply, err = e.h.c.confirm(ctx, e.lua.acquire, e.keys(e.h.memoryOf(&q.claim)), q.id, e.h.lease(&q.claim), e.h.c.publish())
	}
	if err != nil {
		return verdict{}, err
	}
	return readTake(reply)
}

// readTake reads what lock/acquire and lock/enter answer.
func readTake(reply scripts.Reply) (verdict, error) {
	switch answer := reply.Value.(type) {
	case nil:
		return verdict{granted: true, sent: reply.Sent}, nil
	case int64:
		return verdict{granted: true, sent: reply.Sent, token: answer}, nil
	case string:
		if answer == "again" {
			return verdict{}, ErrDeadlock
		}
		return verdict{}, fmt.Errorf("this acquisition was given back already: %w", ErrReleased)
	case []any:
		return refusal(answer), nil
	}
	return verdict{}, fmt.Errorf("unexpected answer %v", reply.Value)
}

// refusal reads {pttl, holder}.
func refusal(answer []any) verdict {
	v := verdict{wait: -1}
	if ms, ok := answer[0].(int64); ok && ms >= 0 {
		v.wait = time.Duration(ms) * time.Millisecond
	}
	if len(answer) > 1 {
		v.holder, _ = answer[1].(string)
	}
	return v
}

func (e *exclusive) undo(ctx context.Context, q *request) error {
	_, err := e.release(ctx, &q.claim, true)
	return err
}

func (e *exclusive) give(ctx context.Context, t *tenure, left int) (lost bool, err error) {
	if left > 0 {
		reply, err := e.h.c.run.DoWithin(ctx, lockUnnest, []any{e.hash}, t.id, left, millis(t.ttl))
		return reply.Value == int64(0), err
	}
	return e.release(ctx, &t.claim, false)
}

// release frees the lock, or leaves it to those who share the id. undoing: only what is known to have been taken.
func (e *exclusive) release(ctx context.Context, q *claim, undoing bool) (lost bool, err error) {
	var reply scripts.Reply
	if q.shared {
		reply, err = e.h.c.run.DoWithin(ctx, e.lua.leave, e.keys(e.h.memoryOf(q)), q.id, e.h.c.publish(), e.h.c.remembered, flag(undoing), millis(q.ttl))
	} else {
		reply, err = e.h.c.run.DoWithin(ctx, e.lua.release, e.keys(e.h.memoryOf(q)), q.id, e.h.c.publish(), e.h.c.remembered)
	}
	return reply.Value == int64(0), err
}

// mutex is the exclusive lock that is free for whoever comes first, so that those of one client may hand it on.
type mutex struct{ exclusive }

func (e *mutex) pass(ctx context.Context, t *tenure, heir *claim) (verdict, int, bool, error) {
	keys := e.keys(e.h.memoryOf(&t.claim))
	args := append(make([]any, 0, 5), t.id, e.h.c.publish(), e.h.c.remembered)
	if heir != nil {
		keys = append(append(keys[:3], e.h.memoryOf(heir)), e.more...)
		args = append(args, heir.id, e.h.lease(heir))
	}
	return readPass(e.h.c.run.DoWithin(ctx, e.lua.release, keys, args...))
}

func (e *exclusive) count(ctx context.Context, t *tenure, n int, ttl time.Duration) (time.Time, bool, error) {
	reply, err := e.h.c.confirm(ctx, lockNest, []any{e.hash}, t.id, n, millis(ttl))
	return reply.Sent, reply.Value == int64(0), err
}

func (e *exclusive) extend(ctx context.Context, t *tenure, d time.Duration) (time.Time, bool, error) {
	reply, err := e.h.c.run.Do(ctx, lockRenewals.script, []any{e.hash}, t.id, millis(d))
	kept, _ := reply.Value.([]any)
	return reply.Sent, len(kept) == 1 && kept[0] == int64(0), err
}

func (e *exclusive) check(ctx context.Context, t *tenure) (lost bool, err error) {
	reply, err := e.h.c.run.Do(ctx, lockCheck, []any{e.hash}, t.id)
	return reply.Value == int64(0), err
}

func (e *exclusive) adopt(ctx context.Context, id string, q *request) (time.Time, int, error) {
	reply, err := e.h.c.run.Do(ctx, lockAdopt, e.keys(e.h.memoryOf(&q.claim))[:3], q.id, millis(q.ttl), e.h.c.publish(), id)
	counts, _ := reply.Value.(int64)
	return reply.Sent, int(counts), err
}

func (e *exclusive) releaseID(ctx context.Context, id string, q *request) (held bool, err error) {
	reply, err := e.h.c.run.Do(ctx, e.lua.leave, e.keys(e.h.memoryOf(&q.claim)), id, e.h.c.publish(), e.h.c.remembered, 0, millis(q.ttl))
	return reply.Value == int64(1), err
}

func (e *exclusive) forceRelease(ctx context.Context, q *request) (held bool, err error) {
	reply, err := e.h.c.run.Do(ctx, e.lua.force, e.keys(e.h.memoryOf(&q.claim)), e.h.c.publish(), e.h.c.remembered)
	return reply.Value == int64(1), err
}

func (e *exclusive) info(ctx context.Context) (Info, error) {
	reply, err := e.h.c.run.Do(ctx, lockInfo, []any{e.hash})
	if err != nil {
		return Info{}, err
	}
	answer := reply.Value.([]any)
	info := Info{TTL: ttlOf(answer[0].(int64))}
	info.Holders = holders(answer[1:], info.TTL)
	return info, nil
}
