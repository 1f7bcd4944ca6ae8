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
	acquire, enter *scripts.Script // for an id of our own, and for one that others may share
	release, leave *scripts.Script // likewise
	force, adopt   *scripts.Script
}

var lockScripts = &mutexScripts{
	acquire: scripts.Load("lock/acquire"),
	enter:   scripts.Load("lock/acquire_shared"),
	release: scripts.Load("lock/release"),
	leave:   scripts.Load("lock/release_shared"),
	force:   scripts.Load("lock/force"),
	adopt:   scripts.Load("lock/adopt"),
}

// And those in which they do not.
var (
	lockNest   = scripts.Load("lock/nested_acquire")
	lockUnnest = scripts.Load("lock/nested_release")
	lockCheck  = scripts.Load("lock/check")
	lockInfo   = scripts.Load("lock/info")
)

// lockRenewals renews whatever is one owner's field in a hash.
var lockRenewals = &renewals{
	script: scripts.Load("lock/renew"),
	keys:   func(keys []any, t *tenure) []any { return append(keys, t.h.key) },
	args: func(args []any, t *tenure, ttl time.Duration) []any {
		return append(args, t.id, t.h.lease(ttl))
	},
}

func exclusiveOf(h *handle, lua *mutexScripts, more ...any) exclusive {
	news := prefixed(lockChannel, h.raw)
	return exclusive{h: h, hash: h.raw, news: news, both: []any{h.raw, news}, more: more, lua: lua}
}

func (e *exclusive) channel(*request) string   { return e.news }
func (e *exclusive) heeds(payload string) bool { return payload == "0" || payload == "1" }
func (e *exclusive) renewals() *renewals       { return lockRenewals }
func (e *exclusive) turns() bool               { return true }

func (e *exclusive) parent(ctx context.Context) (*Hold, error) { return outerFrom(ctx, e.h.nests), nil }

func (e *exclusive) keys(memory string) []any {
	all := make([]any, 0, 8) // of fixed size, so that it need not escape
	return append(append(append(all, e.both...), memory, e.h.shared), e.more...)
}

// enter is take for an id that others may share.
func (e *exclusive) enter(ctx context.Context, q *request) (verdict, error) {
	reply, err := e.h.c.confirm(ctx, e.lua.enter, e.keys(e.h.memoryOf(&q.claim)), q.id, millis(q.ttl), e.h.c.publish(), e.h.c.remembered, flag(q.once), flag(q.nested))
	if err != nil {
		return verdict{}, err
	}
	return readTake(reply)
}

// readTake reads what acquiring scripts of locks answer.
func readTake(reply scripts.Reply) (verdict, error) {
	v := verdict{doubt: reply.Doubt}
	switch answer := reply.Value.(type) {
	case int64:
		v.granted, v.sent, v.token = true, reply.Sent, answer
		return v, nil
	case string:
		switch answer {
		case "again":
			return v, ErrDeadlock
		case "lost":
			return v, ErrLost
		}
		return v, fmt.Errorf("this acquisition was given back already: %w", ErrReleased)
	case []any:
		refused := refusal(answer)
		refused.doubt = reply.Doubt
		return refused, nil
	}
	return v, fmt.Errorf("unexpected answer %v", reply.Value)
}

// refusal reads {pttl, holder}.
func refusal(answer []any) verdict {
	v := verdict{wait: -1}
	if ms, ok := answer[0].(int64); ok && ms >= 0 {
		v.wait = fromMillis(ms)
	}
	if len(answer) > 1 {
		v.holder, _ = answer[1].(string)
	}
	return v
}

// lessen gives back a count where that need not free the lock: others stay, or may share the id.
func (e *exclusive) lessen(ctx context.Context, t *tenure, left int) (lost bool, err error) {
	if left == 0 {
		return e.leave(ctx, &t.claim, false)
	}
	reply, err := e.h.c.run.Do(ctx, lockUnnest, []any{e.hash, e.h.shared}, t.id, left, millis(t.ttl))
	return reply.Value == int64(0), err
}

// leave gives back one count of an id that others may share. undoing: only what is known to have been taken.
func (e *exclusive) leave(ctx context.Context, c *claim, undoing bool) (lost bool, err error) {
	reply, err := e.h.c.run.Do(ctx, e.lua.leave, e.keys(e.h.memoryOf(c)), c.id, e.h.c.publish(), e.h.c.rememberedFor(c), flag(undoing), millis(c.ttl))
	return reply.Value == int64(0), err
}

// mutex is the exclusive lock that is free for whoever comes first, so that those of one client may hand it on.
type mutex struct{ exclusive }

func (m *mutex) rotates() bool { return true }

func (m *mutex) take(ctx context.Context, q *request) (verdict, error) {
	if q.shared {
		return m.enter(ctx, q)
	}
	keys := append(append(make([]any, 0, 4), m.both...), m.h.shelfOf(&q.claim))
	keys = append(keys, m.more...)
	reply, err := m.h.c.confirm(ctx, m.lua.acquire, keys, q.id, m.h.lease(q.ttl), m.h.c.publish(), q.shelved())
	if err != nil {
		return verdict{}, err
	}
	return readTake(reply)
}

func (m *mutex) undo(ctx context.Context, q *request) (err error) {
	if q.shared {
		_, err = m.leave(ctx, &q.claim, true)
	} else {
		_, _, _, err = m.end(ctx, &q.claim, nil)
	}
	return err
}

func (m *mutex) give(ctx context.Context, t *tenure, left int) (lost bool, err error) {
	if left > 0 || t.shared {
		return m.lessen(ctx, t, left)
	}
	_, _, lost, err = m.end(ctx, &t.claim, nil)
	return lost, err
}

func (m *mutex) pass(ctx context.Context, t *tenure, heir *claim) (verdict, int, bool, error) {
	return m.end(ctx, &t.claim, heir)
}

// end frees what c has, or hands it on to heir if that is not nil.
func (m *mutex) end(ctx context.Context, c, heir *claim) (verdict, int, bool, error) {
	keys := m.keys(m.h.shelfOf(c))[:4]
	args := append(make([]any, 0, 7), c.id, m.h.c.publish(), m.h.c.rememberedLong, c.shelved())
	if heir != nil {
		keys = append(append(keys, m.h.shelfOf(heir)), m.more...)
		args = append(args, heir.id, m.h.lease(heir.ttl), heir.shelved())
	}
	return readPass(m.h.c.run.Do(ctx, m.lua.release, keys, args...))
}

func (m *mutex) adopt(ctx context.Context, id string, q *request) (time.Time, int, error) {
	return m.adoptBy(ctx, m.h.shelfOf(&q.claim), id, q)
}

func (e *exclusive) count(ctx context.Context, t *tenure, n int, ttl time.Duration) (time.Time, bool, error) {
	reply, err := e.h.c.confirm(ctx, lockNest, []any{e.hash, e.h.shared}, t.id, n, millis(ttl))
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

// adoptBy adopts for an id of its own, whose release is remembered at memory.
func (e *exclusive) adoptBy(ctx context.Context, memory, id string, q *request) (time.Time, int, error) {
	reply, err := e.h.c.run.Do(ctx, e.lua.adopt, e.keys(memory)[:4], q.id, millis(q.ttl), e.h.c.publish(), id, q.shelved())
	counts, _ := reply.Value.(int64)
	return reply.Sent, int(counts), err
}

func (e *exclusive) releaseID(ctx context.Context, id string, q *request) (held bool, err error) {
	reply, err := e.h.c.run.Do(ctx, e.lua.leave, e.keys(e.h.memoryOf(&q.claim)), id, e.h.c.publish(), e.h.c.remembered, 0, millis(q.ttl))
	return reply.Value == int64(1), err
}

func (e *exclusive) forceRelease(ctx context.Context, q *request) (held bool, err error) {
	reply, err := e.h.c.run.Do(ctx, e.lua.force, e.keys(e.h.memoryOf(&q.claim)), e.h.c.publish(), e.h.c.remembered)
	return q.forced(reply.Value), err
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
