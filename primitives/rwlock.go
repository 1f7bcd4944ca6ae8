package primitives

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/redlatch/redlatch/scripts"
)

const (
	rwChannel = "redisson_rwlock"
	rwClaim   = "redlatch_rwlock_claim"
)

// claimTTL is how long a waiting writer keeps new readers out with one look: two looks, and room for a late one. It bounds what a writer that
// died while it waited costs them.
const claimTTL = 5 * slowPoll / 2

// RWLock is Redisson's RReadWriteLock: any number of readers, or one writer. It is a handle with two sides, each of them a [Lock].
//
// Acquiring one side with the context of a hold of the other: a writer may read (downgrade: to go on reading when the writer has been
// released, acquire with context.WithoutCancel of the writer's context), a reader may not write ([ErrDeadlock]).
//
// While a writer waits for readers to leave, new readers wait behind it, as with sync.RWMutex: so a goroutine that reads must not wait for
// another's new read lock; nest with the hold's context instead. Readers of Redisson do not wait, and may keep a writer out.
type RWLock struct {
	_ noCopy

	name   string
	reader Lock
	writer Lock
}

// RWLock makes a handle of the read-write lock of that name. The options are those of both sides.
func (c *Client) RWLock(name string, opts ...Option) *RWLock {
	rw := &RWLock{name: name}
	rw.reader.init(c, "reader", name, opts)
	rw.writer.init(c, "writer", name, opts)
	rw.reader.behind = rw.writer.kind
	read, write := &readers{rwSideOf(&rw.reader, &rw.writer)}, &writer{rwSideOf(&rw.writer, &rw.reader)}
	rw.reader.speaks(read, read.keys(rw.reader.memory("")))
	rw.writer.speaks(write, write.keys(rw.writer.memory("")))
	return rw
}

// Name is the user's name, without the client's prefix.
func (rw *RWLock) Name() string { return rw.name }

// Reader is the side that many may hold, the same Lock each time. Its Info and ForceRelease concern readers alone.
func (rw *RWLock) Reader() *Lock { return &rw.reader }

// Writer is the side that one may hold while nobody reads, the same Lock each time. Its Info and ForceRelease concern the writer alone.
func (rw *RWLock) Writer() *Lock { return &rw.writer }

// rwSide is what both sides of a read-write lock have in common: a hash with the field mode, "read" or "write"; a field for each reader, its
// id, that counts its holds; one for the writer, its id and ":write".
type rwSide struct {
	h     *handle
	other *nestKey // by which a context finds holds of the other side
	hash  string
	news  string // the channel of releases
	claim string // while it stands a writer waits
}

func rwSideOf(side, other *Lock) rwSide {
	return rwSide{
		h: &side.handle, other: other.nests, hash: side.raw,
		news: prefixed(rwChannel, side.raw), claim: prefixed(rwClaim, side.raw),
	}
}

func (s *rwSide) channel(*request) string   { return s.news }
func (s *rwSide) heeds(payload string) bool { return payload == "0" || payload == "1" }

func (s *rwSide) keys(memory string) []any {
	return []any{s.hash, s.news, memory, s.claim, s.h.shared}
}

// remembers is how long an acquisition by q is remembered: only where the wire counts.
func (s *rwSide) remembers(q *request) any {
	if q.shared {
		return s.h.c.remembered
	}
	return 0
}

// end gives back what q has: one count of an id that others may share, else all its own. undoing: only what is known to have been taken.
func (s *rwSide) end(ctx context.Context, script *scripts.Script, q *claim, undoing bool) (lost bool, err error) {
	reply, err := s.h.c.run.Do(ctx, script, s.keys(s.h.memoryOf(q)),
		q.id, s.h.c.publish(), s.h.c.rememberedFor(q), flag(q.shared), flag(undoing), millis(q.ttl))
	return reply.Value == int64(0), err
}

func (s *rwSide) adoptBy(ctx context.Context, script *scripts.Script, id string, q *request) (time.Time, int, error) {
	reply, err := s.h.c.run.Do(ctx, script, s.keys(s.h.memoryOf(&q.claim)), q.id, millis(q.ttl), s.h.c.publish(), id)
	counts, _ := reply.Value.(int64)
	if counts < 0 {
		return reply.Sent, 0, fmt.Errorf("%w: %s writes too; adopt the writer", ErrUnsupported, id)
	}
	return reply.Sent, int(counts), err
}

func (s *rwSide) releaseBy(ctx context.Context, script *scripts.Script, id string, q *request) (held bool, err error) {
	reply, err := s.h.c.run.Do(ctx, script, s.keys(s.h.memoryOf(&q.claim)), id, s.h.c.publish(), s.h.c.remembered, 1, 0, millis(q.ttl))
	return err == nil && reply.Value != int64(0), err
}

func (s *rwSide) forceBy(ctx context.Context, script *scripts.Script, q *request) (held bool, err error) {
	reply, err := s.h.c.run.Do(ctx, script, s.keys(s.h.memoryOf(&q.claim)), s.h.c.publish(), s.h.c.remembered)
	return q.forced(reply.Value), err
}

// infoBy reads {ttl of the hash, id, count, ttl, ...}.
func (s *rwSide) infoBy(ctx context.Context, script *scripts.Script) (info Info, err error) {
	reply, err := s.h.c.run.Do(ctx, script, []any{s.hash})
	if err != nil {
		return Info{}, err
	}
	answer := reply.Value.([]any)
	ttl := ttlOf(answer[0].(int64))
	for answer = answer[1:]; len(answer) >= 3; answer = answer[3:] {
		id, _ := answer[0].(string)
		holder := Holder{ID: id, Count: int(answer[1].(int64)), TTL: ttlOf(answer[2].(int64))}
		info.Holders = append(info.Holders, holder)
		info.TTL = max(info.TTL, holder.TTL)
	}
	if len(info.Holders) > 0 && ttl < 0 {
		info.TTL = -1 // the lock stays when its holders are dead
	}
	return info, nil
}

// readers speaks RReadLock. Beside its field in the hash a reader has a key for each of its holds, which lives as long as that hold's lease: by
// these, Redisson's readers and ours tell who is alive.
type readers struct{ rwSide }

var (
	readAcquire = scripts.Load("rwlock/read_acquire")
	readEnd     = scripts.Load("rwlock/read_release")
	readRecount = scripts.Load("rwlock/read_set_count")
	readCheck   = scripts.Load("rwlock/read_check")
	readAdopt   = scripts.Load("rwlock/read_adopt")
	readForce   = scripts.Load("rwlock/read_force")
	readInfo    = scripts.Load("rwlock/read_info")
)

var readRenewals = &renewals{
	script: scripts.Load("rwlock/read_renew"),
	keys: func(keys []any, t *tenure) []any {
		return append(keys, t.h.key, firstHold(t))
	},
	args: func(args []any, t *tenure, ttl time.Duration) []any { return append(args, t.id, t.h.lease(ttl)) },
}

// firstHold is the key of t's first hold. While a cluster moves the lock's slot, it must be where the hash is: without it in
// KEYS, a reader of which only the hash has moved would look dead.
func firstHold(t *tenure) any { return suffixed(t.h.raw, t.id) + ":rwlock_timeout:1" }

func (r *readers) renewals() *renewals { return readRenewals }
func (r *readers) turns() bool         { return false }

// parent: a reader nests in a reader, and in a writer, which goes on writing.
func (r *readers) parent(ctx context.Context) (*Hold, error) {
	if outer := outerFrom(ctx, r.h.nests); outer != nil {
		return outer, nil
	}
	return outerFrom(ctx, r.other), nil
}

func (r *readers) take(ctx context.Context, q *request) (verdict, error) {
	v, _, err := r.takeWith(ctx, q, nil)
	return v, err
}

// takeWith: who waits to read may when another may.
func (r *readers) takeWith(ctx context.Context, q *request, others []*waiter) (verdict, []bool, error) {
	keys := r.keys(r.h.memoryOf(&q.claim))
	args := append(make([]any, 0, 6+2*len(others)), q.id, millis(q.ttl), r.h.c.publish(), r.remembers(q), flag(q.once), flag(q.nested))
	for _, w := range others {
		keys = append(keys, r.h.memoryOf(&w.q.claim))
		args = append(args, w.q.id, millis(w.q.ttl))
	}
	reply, err := r.h.c.confirm(ctx, readAcquire, keys, args...)
	if err != nil {
		return verdict{}, nil, err
	}
	if answer, ok := reply.Value.([]any); ok && answer[0] == "in" {
		in := make([]bool, len(others))
		for i, one := range answer[1:] {
			in[i] = one == int64(1)
		}
		return verdict{granted: true, sent: reply.Sent, more: math.MaxInt, doubt: reply.Doubt}, in, nil
	}
	v, err := readTake(reply)
	if v.granted {
		v.more = math.MaxInt
	}
	return v, nil, err
}

func (r *readers) undo(ctx context.Context, q *request) error {
	_, err := r.end(ctx, readEnd, &q.claim, true)
	return err
}

func (r *readers) give(ctx context.Context, t *tenure, left int) (lost bool, err error) {
	if left == 0 {
		return r.end(ctx, readEnd, &t.claim, false)
	}
	need := t.shorten(left)
	if need == 0 { // the leases of the holds that are left have ended
		return r.end(ctx, readEnd, &t.claim, false)
	}
	reply, err := r.h.c.run.Do(ctx, readRecount, r.counted(t), t.id, left, 0, need, t.changed(), r.h.c.remembered)
	t.shortenedBy(err)
	return reply.Value == int64(0), err
}

func (r *readers) count(ctx context.Context, t *tenure, n int, ttl time.Duration) (time.Time, bool, error) {
	reply, err := r.h.c.confirm(ctx, readRecount, r.counted(t), t.id, n, millis(ttl), -1, t.changed(), r.h.c.remembered)
	return reply.Sent, reply.Value == int64(0), err
}

// counted are the keys of readRecount.
func (r *readers) counted(t *tenure) []any {
	return []any{r.hash, r.h.shared, r.h.memoryOf(&t.claim) + ":count"}
}

func (r *readers) extend(ctx context.Context, t *tenure, d time.Duration) (time.Time, bool, error) {
	reply, err := r.h.c.run.Do(ctx, readRenewals.script, []any{r.hash, firstHold(t)}, t.id, millis(d))
	kept, _ := reply.Value.([]any)
	return reply.Sent, len(kept) == 1 && kept[0] == int64(0), err
}

func (r *readers) check(ctx context.Context, t *tenure) (lost bool, err error) {
	reply, err := r.h.c.run.Do(ctx, readCheck, []any{r.hash, firstHold(t)}, t.id)
	return reply.Value == int64(0), err
}

func (r *readers) adopt(ctx context.Context, id string, q *request) (time.Time, int, error) {
	return r.adoptBy(ctx, readAdopt, id, q)
}

func (r *readers) releaseID(ctx context.Context, id string, q *request) (held bool, err error) {
	return r.releaseBy(ctx, readEnd, id, q)
}

func (r *readers) forceRelease(ctx context.Context, q *request) (held bool, err error) {
	return r.forceBy(ctx, readForce, q)
}

func (r *readers) info(ctx context.Context) (Info, error) { return r.infoBy(ctx, readInfo) }

// writer speaks RWriteLock.
type writer struct{ rwSide }

var (
	writeAcquire = scripts.Load("rwlock/write_acquire")
	writeEnd     = scripts.Load("rwlock/write_release")
	writeAdopt   = scripts.Load("rwlock/write_adopt")
	writeForce   = scripts.Load("rwlock/write_force")
	writeInfo    = scripts.Load("rwlock/write_info")
)

// writeRenewals renews a writer as a plain lock's owner is renewed: its field in the hash is its id's own.
var writeRenewals = &renewals{
	script: lockRenewals.script,
	keys:   lockRenewals.keys,
	args: func(args []any, t *tenure, ttl time.Duration) []any {
		return append(args, writeField(t), t.h.lease(ttl))
	},
}

func writeField(t *tenure) string { return t.id + ":write" }

func (w *writer) renewals() *renewals { return writeRenewals }
func (w *writer) turns() bool         { return true }

// parent: a writer nests in a writer. In a reader it would wait for itself.
func (w *writer) parent(ctx context.Context) (*Hold, error) {
	if outer := outerFrom(ctx, w.h.nests); outer != nil {
		return outer, nil
	}
	if holdFrom(ctx, w.other) != nil {
		return nil, ErrDeadlock
	}
	return nil, nil
}

func (w *writer) take(ctx context.Context, q *request) (verdict, error) {
	claim := int64(0)
	if q.queue && !q.behind {
		claim = millis(claimTTL)
	}
	reply, err := w.h.c.confirm(ctx, writeAcquire, w.keys(w.h.memoryOf(&q.claim)), q.id, millis(q.ttl), w.h.c.publish(), w.remembers(q), flag(q.once), claim, flag(q.nested))
	if err != nil {
		return verdict{}, err
	}
	if answer, ok := reply.Value.([]any); ok && len(answer) > 2 {
		q.open = true // the claim must go when q gives up
	}
	v, err := readTake(reply)
	if err != nil || v.granted {
		return v, err
	}
	// Readers that have waited behind a writer go first, all of them: the next writer leaves them a moment before it claims.
	writes := v.holder != ""
	if q.behind && !writes {
		v.wait = 0
	}
	q.behind = writes
	return v, nil
}

func (w *writer) undo(ctx context.Context, q *request) error {
	_, err := w.end(ctx, writeEnd, &q.claim, true)
	return err
}

func (w *writer) give(ctx context.Context, t *tenure, left int) (lost bool, err error) {
	if left == 0 {
		_, _, lost, err = w.pass(ctx, t, nil)
		return lost, err
	}
	reply, err := w.h.c.run.Do(ctx, lockUnnest, []any{w.hash, w.h.shared}, writeField(t), left, millis(t.ttl))
	return reply.Value == int64(0), err
}

// rotates: a writer's release is for all readers.
func (w *writer) rotates() bool { return false }

// pass hands on from writer to writer.
func (w *writer) pass(ctx context.Context, t *tenure, heir *claim) (verdict, int, bool, error) {
	keys := w.keys(w.h.memoryOf(&t.claim))
	args := []any{t.id, w.h.c.publish(), w.h.c.rememberedFor(&t.claim), flag(t.shared), 0, millis(t.ttl)}
	if heir != nil {
		keys, args = append(keys, w.h.memoryOf(heir)), append(args, heir.id, millis(heir.ttl))
	}
	return readPass(w.h.c.run.Do(ctx, writeEnd, keys, args...))
}

func (w *writer) count(ctx context.Context, t *tenure, n int, ttl time.Duration) (time.Time, bool, error) {
	reply, err := w.h.c.confirm(ctx, lockNest, []any{w.hash, w.h.shared}, writeField(t), n, millis(ttl))
	return reply.Sent, reply.Value == int64(0), err
}

func (w *writer) extend(ctx context.Context, t *tenure, d time.Duration) (time.Time, bool, error) {
	reply, err := w.h.c.run.Do(ctx, writeRenewals.script, []any{w.hash}, writeField(t), millis(d))
	kept, _ := reply.Value.([]any)
	return reply.Sent, len(kept) == 1 && kept[0] == int64(0), err
}

func (w *writer) check(ctx context.Context, t *tenure) (lost bool, err error) {
	reply, err := w.h.c.run.Do(ctx, lockCheck, []any{w.hash}, writeField(t))
	return reply.Value == int64(0), err
}

func (w *writer) adopt(ctx context.Context, id string, q *request) (time.Time, int, error) {
	return w.adoptBy(ctx, writeAdopt, id, q)
}

func (w *writer) releaseID(ctx context.Context, id string, q *request) (held bool, err error) {
	return w.releaseBy(ctx, writeEnd, id, q)
}

func (w *writer) forceRelease(ctx context.Context, q *request) (held bool, err error) {
	return w.forceBy(ctx, writeForce, q)
}

func (w *writer) info(ctx context.Context) (Info, error) { return w.infoBy(ctx, writeInfo) }
