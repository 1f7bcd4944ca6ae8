package primitives

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"strconv"
	"strings"
	"time"

	"github.com/redlatch/redlatch/scripts"
)

// PermitExpirableSemaphore is a number of permits, each with an id and a lease of its own, that all who use its name share: Redisson's
// RPermitExpirableSemaphore, [Client.PermitExpirableSemaphore]. It is a handle: immutable, shareable, without I/O to make one.
//
// Permits are renewed while they are held ([WithWatchdog]), or have a fixed lease ([WithLease]): those of a process that died come
// back when the lease ends. Whether it has ended is judged by the server's clock alone. A hold of several permits has one id, theirs,
// comma-separated; they are released, renewed and lost together.
type PermitExpirableSemaphore struct {
	_ noCopy
	handle
	pool leasing
}

// PermitExpirableSemaphore is the semaphore whose permits have leases. It has no permits until Init, Add or Resize sets them; who acquires
// before waits for that.
func (c *Client) PermitExpirableSemaphore(name string, opts ...Option) *PermitExpirableSemaphore {
	s := &PermitExpirableSemaphore{}
	s.init(c, "permits", name, opts)
	s.many = true
	s.pool = leasing{h: &s.handle, free: s.raw, news: prefixed(semaphoreChannel, s.raw), leases: suffixed(s.raw, "timeout")}
	s.speaks(&s.pool, s.pool.keys(s.memory("")))
	return s
}

// Acquire waits until it has as many permits as [WithPermits] says, all or none and at most 100,000, until ctx is done
// ([ErrNotAcquired] and ctx's cause) or until the limit of [WithWait] is over ([ErrNotAcquired]). On failure it has none. Who wants few is not held up
// by one who waits for many.
func (s *PermitExpirableSemaphore) Acquire(ctx context.Context, opts ...Option) (*Hold, error) {
	return s.acquirePermits(ctx, maxBatch, opts, false)
}

// TryAcquire is Acquire with [WithWait](0) over all scopes: one try.
func (s *PermitExpirableSemaphore) TryAcquire(ctx context.Context, opts ...Option) (*Hold, error) {
	return s.acquirePermits(ctx, maxBatch, opts, true)
}

// Do runs f with permits held, with the hold's context, and gives them back on return, error and panic. It returns f's error, joined with
// [ErrLost] if the permits were lost before f ended. A release that fails otherwise goes to the observer.
func (s *PermitExpirableSemaphore) Do(ctx context.Context, f func(context.Context) error, opts ...Option) error {
	return s.do(ctx, func() (*Hold, error) { return s.Acquire(ctx, opts...) }, f)
}

// Adopt takes over the permits of these ids (comma-separated, all or none) under fresh ones, to hand them from one process to another. It
// renews, or leases, from here on. The former holder learns [ErrLost]. [ErrNotHeld] if one of them is not held.
func (s *PermitExpirableSemaphore) Adopt(ctx context.Context, id string, opts ...Option) (*Hold, error) {
	var hold *Hold
	set, err := s.with(opts)
	if err != nil {
		return nil, s.failed("adopt", err)
	}
	err = s.call(ctx, "adopt", func() error {
		hold, err = s.adoptPermits(ctx, id, *set)
		if err != nil {
			s.c.emit(s.failure(ctx, &wait{}, time.Time{}, err))
			return err
		}
		s.acquired(ctx, hold, EventAcquired, &wait{}, time.Time{})
		return nil
	})
	return hold, err
}

func (s *PermitExpirableSemaphore) adoptPermits(ctx context.Context, id string, set settings) (*Hold, error) {
	if s.c.isClosing() {
		return nil, ErrClosed
	}
	raw, err := rawPermits(id)
	if err != nil {
		return nil, err
	}
	set.permits = len(raw) / permitBytes
	q := s.request(&set)
	reply, err := s.c.run.Do(ctx, permitsAdopt, s.pool.keys(s.memoryOf(&q.claim)), s.c.publish(), raw, rawOf(q.id), millis(q.ttl))
	if err == nil && reply.Value != int64(1) {
		err = ErrNotHeld
	}
	s.takenFrom(ctx, err, strings.Split(strings.ToLower(id), ",")...)
	if err != nil {
		return nil, err // an unknown outcome is left to the lease: the former holder's section may still run
	}
	return s.newHold(ctx, s.newTenure(q, verdict{sent: reply.Sent}, 1), &set, reply.Sent, nil)
}

// ReleaseID gives back the permits of these ids (comma-separated, all or none; one named twice counts once): those that another process,
// or an earlier life of this one, holds. [ErrNotHeld] if one of them is not held.
func (s *PermitExpirableSemaphore) ReleaseID(ctx context.Context, id string) error {
	raw, wrong := rawPermits(id)
	held, err := s.change(ctx, "release id", permitsRelease, s.pool.keys, wrong, raw, 1)
	if err == nil && held == 0 {
		err = s.failed("release id", ErrNotHeld)
	}
	if s.c.enter() == nil {
		defer s.c.calls.Done()
		s.takenFrom(ctx, err, strings.Split(strings.ToLower(id), ",")...)
	}
	return err
}

// Init sets the number of permits, 0 or more, unless the semaphore has been set before, and tells whether it did.
func (s *PermitExpirableSemaphore) Init(ctx context.Context, n int) (created bool, err error) {
	answer, err := s.change(ctx, "init", permitsInit, s.pool.keys, atLeast(0, n), n)
	return answer == 1, err
}

// Add adds delta permits, or takes them away if it is negative; what is free may then be below 0 until permits come back. A semaphore that
// was not set is set by it.
func (s *PermitExpirableSemaphore) Add(ctx context.Context, delta int) error {
	_, err := s.change(ctx, "add", permitsAdd, s.pool.keys, atLeast(-maxPermits, delta), delta)
	return err
}

// Resize makes the number of permits, free and taken, n: 0 or more. Permits that are out stay out: with more than n of them, what is free is
// below 0 until enough have come back. A semaphore that was not set is set by it.
func (s *PermitExpirableSemaphore) Resize(ctx context.Context, n int) error {
	_, err := s.change(ctx, "resize", permitsResize, s.pool.keys, atLeast(0, n), n)
	return err
}

// Delete removes the semaphore and tells whether there was one. Permits that are out are lost; who waits, waits for the next Init.
func (s *PermitExpirableSemaphore) Delete(ctx context.Context) (bool, error) {
	answer, err := s.change(ctx, "delete", permitsDelete, s.pool.keys, nil)
	return answer == 1, err
}

// Info asks how many permits there are, how many of them are free, and who has the others. Its TTL is that of the holder who may keep
// longest.
func (s *PermitExpirableSemaphore) Info(ctx context.Context) (Info, error) {
	info := Info{Name: s.name, Kind: s.kind}
	err := s.call(ctx, "inspect", func() error {
		reply, err := s.c.run.Do(ctx, permitsInfo, s.pool.keys(s.memory("")))
		if err != nil {
			return err
		}
		answer := reply.Value.([]any)
		free := int(answer[1].(int64))
		info.Holders = permitHolders(answer[0].(int64), answer[2:])
		info.Permits, info.Available = free+len(info.Holders), free
		s.c.identify(ctx, info.Holders, nil)
		for _, holder := range info.Holders {
			if holder.TTL < 0 || info.TTL < 0 {
				info.TTL = -1
			} else {
				info.TTL = max(info.TTL, holder.TTL)
			}
		}
		return nil
	})
	return info, err
}

// never is Redisson's score of a permit whose lease does not end.
const never = 922337203685477

// permitHolders reads ids and the ms at which their leases end.
func permitHolders(now int64, answer []any) []Holder {
	holders := make([]Holder, 0, len(answer)/2)
	for i := 0; i+1 < len(answer); i += 2 {
		id, _ := answer[i].(string)
		text, _ := answer[i+1].(string)
		ends, _ := strconv.ParseFloat(text, 64)
		ttl := time.Duration(-1)
		if ends != never {
			ttl = fromMillis(min(int64(ends)-now, maxDuration.Milliseconds()))
		}
		holders = append(holders, Holder{ID: hex.EncodeToString([]byte(id)), Count: 1, TTL: ttl})
	}
	return holders
}

// permitBytes is how long a permit's id is on the wire, where it stands raw.
const permitBytes = 16

// mintPermits makes n ids as the API gives them: hex, comma-separated. Each begins with the tag of
// its client, so that a takeover can be told to that client, and the rest is random.
func mintPermits(tag []byte, n int) string {
	raw := make([]byte, n*permitBytes)
	_, _ = rand.Read(raw) // never fails
	for i := 0; i < len(raw); i += permitBytes {
		copy(raw[i:], tag)
	}
	var b strings.Builder
	b.Grow(n * (2*permitBytes + 1))
	for i := 0; i < len(raw); i += permitBytes {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(hex.EncodeToString(raw[i : i+permitBytes]))
	}
	return b.String()
}

// rawPermits reads ids as a caller gives them; on the wire they stand one behind the other, each once.
func rawPermits(ids string) (string, error) {
	var b strings.Builder
	seen := map[string]bool{}
	for id := range strings.SplitSeq(ids, ",") {
		raw, err := hex.DecodeString(id)
		if err != nil || len(raw) != permitBytes {
			return "", invalid("permit id %q", id)
		}
		if !seen[string(raw)] {
			seen[string(raw)] = true
			b.Write(raw)
		}
	}
	if len(seen) > maxBatch {
		return "", invalid("%d permits at once", len(seen))
	}
	return b.String(), nil
}

// rawOf is rawPermits of ids that we made.
func rawOf(ids string) string {
	raw, _ := hex.DecodeString(strings.ReplaceAll(ids, ",", ""))
	return string(raw)
}

// leasing speaks Redisson's RPermitExpirableSemaphore: a string, the number of permits that are free, and a sorted set of those that are
// taken.
type leasing struct {
	h      *handle
	free   string
	news   string // the channel of permits that have come
	leases string
}

var (
	permitsAcquire = scripts.Load("permitsemaphore/acquire")
	permitsRelease = scripts.Load("permitsemaphore/release")
	permitsCheck   = scripts.Load("permitsemaphore/check")
	permitsAdopt   = scripts.Load("permitsemaphore/adopt")
	permitsInit    = scripts.Load("permitsemaphore/init")
	permitsAdd     = scripts.Load("permitsemaphore/add")
	permitsResize  = scripts.Load("permitsemaphore/resize")
	permitsDelete  = scripts.Load("permitsemaphore/delete")
	permitsInfo    = scripts.Load("permitsemaphore/info")
)

var permitRenewals = &renewals{
	script: scripts.Load("permitsemaphore/renew"),
	keys: func(keys []any, t *tenure) []any {
		p := t.h.proto.(*leasing)
		return append(keys, p.free, p.leases)
	},
	args: func(args []any, t *tenure, ttl time.Duration) []any { return append(args, rawOf(t.id), t.h.lease(ttl)) },
}

// collected is how many ended leases one script gives back at the most.
const collected = 1000

func (p *leasing) keys(memory string) []any {
	return []any{p.free, p.news, memory, p.leases}
}

func (p *leasing) channel(*request) string   { return p.news }
func (p *leasing) heeds(payload string) bool { return isNumber(payload) }
func (p *leasing) renewals() *renewals       { return permitRenewals }

// name: each permit of an acquisition has an id that nobody else has.
func (p *leasing) name(q *claim) { q.named(mintPermits(p.h.c.presence.raw, q.permits), false) }

func (p *leasing) take(ctx context.Context, q *request) (verdict, error) {
	for doubt := false; ; {
		reply, err := p.h.c.confirm(ctx, permitsAcquire, p.keys(p.h.memoryOf(&q.claim)), p.h.c.publish(), collected, rawOf(q.id), millis(q.ttl))
		if err != nil {
			return verdict{doubt: doubt}, err
		}
		v, err := readPermits(reply)
		doubt = doubt || v.doubt
		v.doubt = doubt
		if err != nil || v.granted || v.wait != 0 || ctx.Err() != nil {
			return v, err
		}
		// More leases have ended than one script collects: each round finds fewer of them.
	}
}

func (p *leasing) undo(ctx context.Context, q *request) error {
	_, err := p.release(ctx, &q.claim)
	return err
}

func (p *leasing) give(ctx context.Context, t *tenure, _ int) (lost bool, err error) {
	return p.release(ctx, &t.claim)
}

func (p *leasing) release(ctx context.Context, q *claim) (lost bool, err error) {
	_, _, lost, err = p.handOn(ctx, q, nil)
	return lost, err
}

func (p *leasing) rotates() bool { return true }

func (p *leasing) pass(ctx context.Context, t *tenure, heir *claim) (verdict, int, bool, error) {
	return p.handOn(ctx, &t.claim, heir)
}

func (p *leasing) handOn(ctx context.Context, q, heir *claim) (verdict, int, bool, error) {
	c := p.h.c
	keys, args := p.keys(p.h.memoryOf(q)), []any{c.publish(), c.rememberedFor(q), rawOf(q.id), 0}
	if heir != nil {
		keys, args = append(keys, p.h.memoryOf(heir)), append(args, rawOf(heir.id), millis(heir.ttl))
	}
	return readPermitsPass(c.run.Do(ctx, permitsRelease, keys, args...))
}

// count: permits do not nest.
func (p *leasing) count(context.Context, *tenure, int, time.Duration) (time.Time, bool, error) {
	return time.Time{}, false, ErrUnsupported
}

func (p *leasing) extend(ctx context.Context, t *tenure, d time.Duration) (time.Time, bool, error) {
	reply, err := p.h.c.run.Do(ctx, permitRenewals.script, []any{p.free, p.leases}, rawOf(t.id), millis(d))
	kept, _ := reply.Value.([]any)
	return reply.Sent, len(kept) == 1 && kept[0] == int64(0), err
}

func (p *leasing) check(ctx context.Context, t *tenure) (lost bool, err error) {
	reply, err := p.h.c.run.Do(ctx, permitsCheck, p.keys(p.h.memoryOf(&t.claim)), rawOf(t.id))
	return reply.Value == int64(0), err
}
