package torture

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

// poolSize is the number of permits of semaphores.
const poolSize = 3

// latchSize is the count that latches begin with.
const latchSize = 5

// namesOf is how many names each primitive has in a round. Few, so that sessions meet.
const namesOf = 2

// waiterTimeout is how long a silent waiter of a fair lock keeps its place.
const waiterTimeout = 2 * time.Second

// workload says what client processes do with a primitive, and what the checks may expect of it.
type workload struct {
	act func(s *session, primitive string)
	// operator: its keys may be deleted or overwritten by the operator.
	operator bool
	pool     bool // holds share a number of permits
	fair     bool
}

// Primitives are the names of all workloads.
var Primitives = []string{
	"lock", "cohort", "fenced", "fair", "rwlock", "semaphore", "permits", "latch", "multi", "redlock",
}

var workloads map[string]*workload

func init() {
	workloads = map[string]*workload{
		"lock":      {act: (*session).useLock, operator: true},
		"cohort":    {act: (*session).useCohort, operator: true},
		"fenced":    {act: (*session).useFenced, operator: true},
		"fair":      {act: (*session).useFair, operator: true, fair: true},
		"rwlock":    {act: (*session).useRWLock, operator: true},
		"semaphore": {act: (*session).useSemaphore, pool: true},
		"permits":   {act: (*session).usePermits, pool: true},
		"latch":     {act: (*session).useLatch},
		"multi":     {act: (*session).useMulti, operator: true},
		"redlock":   {act: (*session).useRedLock},
	}
}

// session is one goroutine of a client process, with its own random numbers.
type session struct {
	*worker

	n    int
	rand *rand.Rand
}

// one in n.
func (s *session) one(n int) bool { return s.rand.IntN(n) == 0 }

// name returns one of the names of a primitive, and the TTL that its holds have. The TTLs differ: with a
// short one holds expire often, with a long one whatever is left behind is seen.
func (s *session) name(primitive string) (string, time.Duration) {
	i := s.rand.IntN(namesOf)
	return lockName(s.Tag, primitive, i), ttlOf(s.TTL, i)
}

func lockName(tag, primitive string, i int) string { return fmt.Sprintf("%s:%s:%d", tag, primitive, i) }

func ttlOf(ttl time.Duration, i int) time.Duration {
	if i%2 == 1 {
		return 4 * ttl
	}
	return ttl
}

// generationName is the name of a pool or latch, which is given up when it may have lost its content.
func (s *session) generationName(primitive string) (string, time.Duration) {
	name, ttl := s.name(primitive)
	return fmt.Sprintf("%s:g%d", name, s.generation.Load()), ttl
}

// acquirer is a lock or a semaphore.
type acquirer interface {
	Acquire(ctx context.Context, opts ...primitives.Option) (*primitives.Hold, error)
}

func (s *session) useLock(primitive string) {
	name, ttl := s.name(primitive)
	s.hold(s.client.Lock(name), record{Primitive: primitive, Names: []string{name}, TTL: ttl}, nil)
}

func (s *session) useCohort(primitive string) {
	name, ttl := s.name(primitive)
	cohort := primitives.WithCohort(50 * time.Millisecond)
	s.hold(s.client.FencedLock(name, cohort), record{Primitive: primitive, Names: []string{name}, TTL: ttl}, nil)
}

func (s *session) useFenced(primitive string) {
	name, ttl := s.name(primitive)
	s.hold(s.client.FencedLock(name), record{Primitive: primitive, Names: []string{name}, TTL: ttl}, nil)
}

func (s *session) useFair(primitive string) {
	name, ttl := s.name(primitive)
	l := s.client.FairLock(name, primitives.WithWaiterTimeout(waiterTimeout))
	s.hold(l, record{Primitive: primitive, Names: []string{name}, TTL: ttl}, nil)
}

func (s *session) useRWLock(primitive string) {
	name, ttl := s.name(primitive)
	rw := s.client.RWLock(name)
	call := record{Primitive: primitive, Names: []string{name}, TTL: ttl, Read: !s.one(3)}
	if call.Read {
		s.hold(rw.Reader(), call, nil)
	} else {
		s.hold(rw.Writer(), call, rw.Reader())
	}
}

func (s *session) useSemaphore(primitive string) {
	name, ttl := s.generationName(primitive)
	sem := s.client.Semaphore(name)
	if s.create(primitive, name, sem.Init) {
		s.hold(sem, s.permitsOf(primitive, name, ttl), nil)
	}
}

func (s *session) usePermits(primitive string) {
	name, ttl := s.generationName(primitive)
	sem := s.client.PermitExpirableSemaphore(name)
	if s.create(primitive, name, sem.Init) {
		s.hold(sem, s.permitsOf(primitive, name, ttl), nil)
	}
}

func (s *session) permitsOf(primitive, name string, ttl time.Duration) record {
	return record{
		Primitive: primitive, Names: []string{name}, TTL: ttl,
		Permits: 1 + s.rand.IntN(2), Limit: poolSize,
	}
}

// create sets the size of a pool, unless this process has done so, and reports whether it has one.
func (s *session) create(primitive, name string, init func(context.Context, int) (bool, error)) bool {
	if _, ok := s.inits.Load(name); ok {
		return true
	}
	ctx, cancel := context.WithTimeout(s.draining, time.Second)
	defer cancel()
	call := s.call(record{
		Do: opInit, Primitive: primitive, Names: []string{name}, Permits: poolSize, Bound: s.deadline(ctx),
	})
	_, err := init(ctx, poolSize)
	s.finish(call, err, record{})
	if err == nil {
		s.inits.Store(name, true)
	}
	return err == nil
}

func (s *session) useMulti(primitive string) {
	const members = 4
	order := s.rand.Perm(members)
	call := record{Primitive: primitive, TTL: s.TTL}
	var locks []*primitives.Lock
	for _, i := range order[:2] {
		call.Names = append(call.Names, lockName(s.Tag, primitive, i))
		locks = append(locks, s.client.Lock(lockName(s.Tag, primitive, i)))
	}
	if s.one(3) {
		call.Names = call.Names[:1]
		s.hold(locks[0], call, nil)
		return
	}
	s.hold(primitives.NewMultiLock(locks), call, nil)
}

func (s *session) useRedLock(primitive string) {
	name := lockName(s.Tag, primitive, 0)
	var locks []*primitives.Lock
	for i := range 3 {
		locks = append(locks, s.client.Lock(fmt.Sprintf("%s:%d", name, i)))
	}
	s.hold(primitives.NewRedLock(locks), record{Primitive: primitive, Names: []string{name}, TTL: s.TTL}, nil)
}

// deadline returns the instant at which a call with ctx must return.
func (s *session) deadline(ctx context.Context) int64 {
	if d, ok := ctx.Deadline(); ok {
		return s.clock.at(d)
	}
	return s.clock.now() + int64(commandTimeout)
}

// call records that an operation begins, and gives it a number.
func (w *worker) call(r record) record {
	r.Kind, r.Op, r.At = kindCall, w.ops.Add(1), w.clock.now()
	w.out.write(r)
	return r
}

// finish records that an operation has returned.
func (w *worker) finish(call record, err error, r record) {
	r.Kind, r.Op, r.At, r.Outcome = kindReturn, call.Op, w.clock.now(), outcomeOf(err)
	r.Err = errorText(err)
	w.out.write(r)
}

// hold acquires, holds for a while, and releases. nested, if not nil, is the lock to nest; else it is l.
func (s *session) hold(l acquirer, call record, nested acquirer) {
	call.Session = s.n
	h, end := s.acquire(context.Background(), l, &call)
	defer end()
	if h == nil {
		return
	}
	if nested == nil {
		nested = l
	}
	s.section(h, nested, call)
	s.release(h, call)
}

// acquire acquires l in one of the ways that callers have. It completes call, and returns nil if it
// failed. end ends the context of the acquisition, and so that of the hold.
func (s *session) acquire(ctx context.Context, l acquirer, call *record) (h hold, end func()) {
	opts := []primitives.Option{primitives.WithWatchdog(call.TTL)}
	if s.one(8) {
		opts[0], call.Fixed = primitives.WithLease(call.TTL), true
	}
	if call.Permits > 0 {
		opts = append(opts, primitives.WithPermits(call.Permits))
	}
	wait := between(s.rand, 20*time.Millisecond, s.TTL)
	end = func() {}
	now := time.Now()
	switch s.rand.IntN(6) {
	case 0:
		opts = append(opts, primitives.WithWait(0))
		call.Bound = s.clock.at(now.Add(commandTimeout))
	case 1:
		opts = append(opts, primitives.WithWait(wait))
		call.Bound = s.clock.at(now.Add(wait))
	case 2:
		ctx, end = withTimeout(ctx, wait)
		call.Bound = s.clock.at(now.Add(wait))
	case 3: // cancelled early, often while the first command is under way
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		early := between(s.rand, 0, 4*time.Millisecond)
		timer := time.AfterFunc(early, cancel)
		end = func() { timer.Stop(); cancel() }
		call.Bound = s.clock.at(now.Add(early))
	default:
		ctx, end = withTimeout(ctx, 8*s.TTL)
		call.Bound = s.clock.at(now.Add(20 * time.Second))
	}
	call.Do = opAcquire
	root := call.Root
	*call = s.call(*call)
	if root == 0 {
		call.Root = call.Op
	}
	ctx = context.WithValue(ctx, opKey{}, call.Op) // the observer finds the operation by it
	h, err := attempt{session: s, ctx: ctx, lock: l, call: call, opts: opts}.run()
	if err != nil {
		s.finish(*call, err, record{})
		return nil, end
	}
	s.finish(*call, nil, record{ID: h.ID(), Token: h.Token(), Until: s.clock.at(h.ValidUntil())})
	return h, end
}

// withTimeout is context.WithTimeout, with a plain func.
func withTimeout(ctx context.Context, d time.Duration) (context.Context, func()) {
	return context.WithTimeout(ctx, d)
}

// hold is a *primitives.Hold, or one with a planted defect.
type hold interface {
	Context() context.Context
	Release(ctx context.Context) error
	Check(ctx context.Context) error
	Extend(ctx context.Context, d time.Duration) error
	ID() string
	Token() int64
	ValidUntil() time.Time
}

// section is the work that a hold protects. It ends early if the hold does.
func (s *session) section(h hold, nested acquirer, call record) {
	ctx := h.Context()
	stop := context.AfterFunc(ctx, func() {
		s.out.write(record{
			Kind: kindEnd, Op: call.Op, At: s.clock.now(),
			Outcome: outcomeOf(context.Cause(ctx)), Err: errorText(context.Cause(ctx)),
		})
	})
	defer stop()
	d := between(s.rand, 0, 5*time.Millisecond)
	switch {
	case s.one(s.Long): // some renewals
		d = between(s.rand, s.TTL/4, min(call.TTL, 2*s.TTL)*3/2)
	case s.one(6):
		d = between(s.rand, 0, 100*time.Millisecond)
	}
	if d >= s.TTL/4 {
		s.stay(h, call, d)
	} else {
		time.Sleep(d)
	}
	switch {
	case ctx.Err() != nil || call.Limit > 0:
	case s.one(6):
		s.checkHold(h, call)
	case s.one(4) && call.Root == call.Op:
		inner := call
		inner.Fixed, inner.Read = false, call.Read || call.Primitive == "rwlock"
		n, end := s.acquire(ctx, nested, &inner)
		defer end()
		if n != nil {
			time.Sleep(between(s.rand, 0, 3*time.Millisecond))
			s.release(n, inner)
		}
	}
}

// stay holds for d, and records each new end of the validity: if this process is killed, that is how long
// it has held.
func (s *session) stay(h hold, call record, d time.Duration) {
	until := h.ValidUntil()
	end := time.After(d)
	for {
		select {
		case <-end:
			return
		case <-s.draining.Done():
			return
		case <-h.Context().Done():
			return
		case <-time.After(25 * time.Millisecond):
			if u := h.ValidUntil(); u.After(until) {
				until = u
				s.out.write(record{Kind: kindValid, Op: call.Op, At: s.clock.now(), Until: s.clock.at(u)})
			}
		}
	}
}

// checkHold calls Check or Extend.
func (s *session) checkHold(h hold, call record) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	do := record{
		Do: opCheck, Session: s.n, Primitive: call.Primitive, Names: call.Names, Root: call.Op, Bound: s.deadline(ctx),
	}
	f := h.Check
	if s.one(2) {
		do.Do = opExtend
		f = func(ctx context.Context) error { return h.Extend(ctx, call.TTL) }
	}
	do = s.call(do)
	err := f(ctx)
	s.finish(do, err, record{Until: s.clock.at(h.ValidUntil())})
}

// release releases h. The hold is believed to last until the call.
func (s *session) release(h hold, call record) {
	until := s.clock.at(h.ValidUntil())
	do := s.call(record{
		Do: opRelease, Session: s.n, Primitive: call.Primitive, Names: call.Names, Root: call.Op, Until: until,
		Bound: s.clock.now() + int64(5*time.Second),
	})
	err := h.Release(context.Background())
	s.finish(do, err, record{})
}

// useLatch counts a latch down, reads it, waits for it, or starts it again.
func (s *session) useLatch(primitive string) {
	name, _ := s.generationName(primitive)
	latch := s.client.CountDownLatch(name)
	ctx, cancel := context.WithTimeout(context.Background(), between(s.rand, 200*time.Millisecond, time.Second))
	defer cancel()
	call := record{Session: s.n, Primitive: primitive, Names: []string{name}, Bound: s.deadline(ctx)}
	call.Do = []string{opInit, opCountDown, opCountDown, opCountDown, opCount, opAwait}[s.rand.IntN(6)]
	if call.Do == opInit {
		call.Permits = latchSize
	}
	call = s.call(call)
	var result record
	var err error
	switch call.Do {
	case opInit:
		var created bool
		if created, err = latch.Init(ctx, latchSize); created {
			result.Count = 1
		}
	case opCountDown:
		err = s.countDown(ctx, latch)
	case opCount:
		result.Count, err = latch.Count(ctx)
	case opAwait:
		err = latch.Wait(ctx)
	}
	s.finish(call, err, result)
}
