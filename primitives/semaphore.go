package primitives

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redlatch/redlatch/scripts"
)

// Semaphore is a number of permits that all who use its name share, Redisson's RSemaphore: [Client.Semaphore]. It is a handle:
// immutable, shareable, without I/O to make one.
//
// Redis keeps a number and nothing else, so nobody knows who has a permit: a process that dies takes its permits with it, until somebody
// gives as many back by Add, or deletes the semaphore and sets it anew. Where that matters, use [Client.PermitExpirableSemaphore].
// A hold's context ends with the release and with the caller's own, but never by a loss that nobody can see.
type Semaphore struct {
	_ noCopy
	handle
	pool counting
}

// semaphoreChannel tells of permits that have come.
const semaphoreChannel = "redisson_sc"

// maxPermits is the most that Redisson's ints can count; maxBatch the most ids that one script should handle.
const (
	maxPermits = 1<<31 - 1
	maxBatch   = 100_000
)

// Semaphore is the plain semaphore. It has no permits until Init or Add sets them; who acquires before waits for that.
func (c *Client) Semaphore(name string, opts ...Option) *Semaphore {
	s := &Semaphore{}
	s.init(c, "semaphore", name, opts)
	s.many = true
	s.pool = counting{h: &s.handle, left: s.raw, news: prefixed(semaphoreChannel, s.raw)}
	s.speaks(&s.pool, s.pool.keys(s.memory("")))
	return s
}

// Acquire waits until it has as many permits as [WithPermits] says, all or none, until ctx is done ([ErrNotAcquired] and ctx's cause) or
// until the limit of [WithWait] is over ([ErrNotAcquired]). On failure it has none. Who wants few is not held up by one who waits for many.
func (s *Semaphore) Acquire(ctx context.Context, opts ...Option) (*Hold, error) {
	return s.acquirePermits(ctx, maxPermits, opts, false)
}

// TryAcquire is Acquire with [WithWait](0) over all scopes: one try.
func (s *Semaphore) TryAcquire(ctx context.Context, opts ...Option) (*Hold, error) {
	return s.acquirePermits(ctx, maxPermits, opts, true)
}

// Do runs f with permits held, and gives them back on return, error and panic. It returns f's error, joined with [ErrLost] if the semaphore
// was gone when they were to be given back.
func (s *Semaphore) Do(ctx context.Context, f func(context.Context) error, opts ...Option) error {
	return s.do(ctx, func() (*Hold, error) { return s.Acquire(ctx, opts...) }, f)
}

// Init sets the number of permits, 0 or more, unless the semaphore has been set before, and tells whether it did.
func (s *Semaphore) Init(ctx context.Context, n int) (created bool, err error) {
	answer, err := s.change(ctx, "init", semaphoreInit, s.pool.keys, atLeast(0, n), n)
	return answer == 1, err
}

// Add adds delta permits, or takes them away if it is negative; what is left may then be below 0 until permits come back. A semaphore that
// was not set is set by it.
func (s *Semaphore) Add(ctx context.Context, delta int) error {
	_, err := s.change(ctx, "add", semaphoreAdd, s.pool.keys, atLeast(-maxPermits, delta), delta)
	return err
}

// Drain takes all permits that are left, for good, and returns how many. What was below 0 is 0 then, and the answer is negative.
func (s *Semaphore) Drain(ctx context.Context) (int, error) {
	return s.change(ctx, "drain", semaphoreDrain, s.pool.keys, nil)
}

// Delete removes the semaphore and tells whether there was one. Who holds a permit of it learns [ErrLost] when giving it back; who waits,
// waits for the next Init.
func (s *Semaphore) Delete(ctx context.Context) (bool, error) {
	answer, err := s.change(ctx, "delete", semaphoreDelete, s.pool.keys, nil)
	return answer == 1, err
}

// Info asks how many permits are left: Available, and Permits too, as nobody knows of those that are out.
func (s *Semaphore) Info(ctx context.Context) (Info, error) {
	info := Info{Name: s.name, Kind: s.kind}
	err := s.call(ctx, "inspect", func() error {
		reply, err := s.c.run.Do(ctx, semaphoreInfo, []any{s.pool.left})
		left, _ := reply.Value.(int64)
		info.Permits, info.Available = int(left), int(left)
		return err
	})
	return info, err
}

// acquirePermits is Acquire and TryAcquire of both semaphores, for at most that many permits.
func (h *handle) acquirePermits(ctx context.Context, most int, opts []Option, try bool) (*Hold, error) {
	s, err := h.with(opts)
	if err == nil && s.permits > most {
		err = invalid("%d permits (at most %d)", s.permits, most)
	}
	if err != nil {
		h.notAcquired(ctx, &wait{}, time.Time{}, err)
		return nil, h.failed("acquire", err)
	}
	limit := s.wait
	if try {
		limit = 0
	}
	var hold *Hold
	if s.permits == 0 {
		hold, err = h.acquireNothing(ctx, s)
	} else {
		hold, err = h.acquire(ctx, s, limit)
	}
	return hold, h.failed("acquire", err)
}

// acquireNothing makes a hold of no permits, of which Redis need not hear.
func (h *handle) acquireNothing(ctx context.Context, s *settings) (*Hold, error) {
	err := h.c.enter()
	if err != nil {
		return nil, err
	}
	defer h.c.calls.Done()
	var hold *Hold
	if ctx.Err() != nil {
		err = gaveUp(ctx, nil)
	} else {
		hold, err = h.newHold(ctx, nil, s, time.Now(), nil)
	}
	if err != nil {
		h.c.emit(h.failure(ctx, &wait{}, time.Time{}, err))
		return nil, err
	}
	h.acquired(ctx, hold, EventAcquired, &wait{}, time.Time{})
	return hold, nil
}

// change runs a script that changes what a name stands for, with a memory of its own, and returns its answer. wrong is what is wrong
// with args.
func (h *handle) change(ctx context.Context, op string, s *scripts.Script, keys func(memory string) []any, wrong error, args ...any) (int, error) {
	if wrong != nil {
		return 0, h.failed(op, wrong)
	}
	var answer int64
	err := h.call(ctx, op, func() error {
		args := append([]any{h.c.publish(), h.c.remembered}, args...)
		reply, err := h.c.run.Do(ctx, s, keys(h.memory(h.c.mint())), args...)
		answer, _ = reply.Value.(int64)
		return err
	})
	return int(answer), err
}

// atLeast is what is wrong with n.
func atLeast(least, n int) error {
	if n < least || n > maxPermits {
		return invalid("%d (from %d to %d)", n, least, maxPermits)
	}
	return nil
}

// counting speaks Redisson's RSemaphore: a string, the number of permits that are left.
type counting struct {
	h    *handle
	left string
	news string // the channel of permits that have come
}

var (
	semaphoreAcquire = scripts.Load("semaphore/acquire")
	semaphoreRelease = scripts.Load("semaphore/release")
	semaphoreInit    = scripts.Load("semaphore/init")
	semaphoreAdd     = scripts.Load("semaphore/add")
	semaphoreDrain   = scripts.Load("semaphore/drain")
	semaphoreDelete  = scripts.Load("semaphore/delete")
	semaphoreInfo    = scripts.Load("semaphore/info")
)

// rememberedTaken is how long Redis remembers that an acquisition took its permits. Nothing in Redis
// tells one permit from another, so an acquisition is known by this memory alone, and a release gives
// back only what it says was taken: a release may then be repeated for as long as it takes.
const rememberedTaken = 24 * time.Hour

// rememberedFor is how long the release or rollback of q must be remembered, as an argument. A late
// copy of an acquisition would take its permits for nobody, and no lease would return them.
func (c *counting) rememberedFor(q *claim) any {
	if q.doubt {
		return millis(rememberedTaken)
	}
	return c.h.c.remembered
}

func (c *counting) keys(memory string) []any { return []any{c.left, c.news, memory} }

func (c *counting) channel(*request) string   { return c.news }
func (c *counting) heeds(payload string) bool { return isNumber(payload) }

func isNumber(payload string) bool {
	_, err := strconv.ParseInt(payload, 10, 64)
	return err == nil
}

// name: a permit has no id, and no lease.
func (c *counting) name(q *claim) {
	q.named("", false)
	q.ttl = maxDuration
}

func (c *counting) take(ctx context.Context, q *request) (verdict, error) {
	reply, err := c.h.c.confirm(ctx, semaphoreAcquire, c.keys(c.h.memoryOf(&q.claim)), c.h.c.publish(), millis(rememberedTaken), q.permits)
	if err != nil {
		return verdict{}, err
	}
	return readPermits(reply)
}

// readPermits reads what the acquiring scripts of semaphores answer.
func readPermits(reply scripts.Reply) (verdict, error) {
	answer, ok := reply.Value.([]any)
	if !ok {
		if reply.Value == "over" {
			return verdict{doubt: reply.Doubt}, fmt.Errorf("this acquisition was given back already: %w", ErrReleased)
		}
		return verdict{doubt: reply.Doubt}, fmt.Errorf("unexpected answer %v", reply.Value)
	}
	left, _ := answer[1].(int64)
	v := verdict{granted: answer[0] == int64(1), sent: reply.Sent, wait: -1, more: int(left), doubt: reply.Doubt}
	if len(answer) > 2 {
		if ms, _ := answer[2].(int64); ms >= 0 {
			v.wait = time.Duration(min(ms, maxDuration.Milliseconds())) * time.Millisecond
		}
	}
	return v, nil
}

func (c *counting) undo(ctx context.Context, q *request) error {
	_, err := c.h.c.run.Do(ctx, semaphoreRelease, c.keys(c.h.memoryOf(&q.claim)), c.h.c.publish(), c.rememberedFor(&q.claim), q.permits, 1)
	return err
}

func (c *counting) rotates() bool { return true }

func (c *counting) give(ctx context.Context, t *tenure, _ int) (lost bool, err error) {
	_, _, lost, err = c.pass(ctx, t, nil)
	return lost, err
}

func (c *counting) pass(ctx context.Context, t *tenure, heir *claim) (verdict, int, bool, error) {
	keys := c.keys(c.h.memoryOf(&t.claim))
	args := []any{c.h.c.publish(), c.rememberedFor(&t.claim), t.permits, flag(time.Now().Before(t.knownUntil()))}
	if heir != nil {
		keys, args = append(keys, c.h.memoryOf(heir)), append(args, heir.permits, millis(rememberedTaken))
	}
	return readPermitsPass(c.h.c.run.Do(ctx, semaphoreRelease, keys, args...))
}

// readPermitsPass reads what the releasing scripts of semaphores answer: to an heir, {permits left}.
func readPermitsPass(reply scripts.Reply, err error) (verdict, int, bool, error) {
	v, heard, lost, err := readPass(reply, err)
	v.more, v.token = int(v.token), 0
	return v, heard, lost, err
}
