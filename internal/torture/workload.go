package torture

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

// namesOf is how many names each primitive has in a round with faults. Few, so that sessions meet.
const namesOf = 2

// waiterTimeout is how long a silent waiter of a fair lock keeps its place.
const waiterTimeout = 2 * time.Second

// writerClaim is how long a writer that waits, and has died, keeps new readers out.
const writerClaim = 2500 * time.Millisecond

// workload says what client processes do with a primitive, and what the checks may expect of it.
type workload struct {
	act func(s *session, primitive string)
	// operator: its keys may be deleted or overwritten by the operator.
	operator bool
	fair     bool
	// polls: its waiters try by themselves. They have no turn, but a chance that grows with the
	// pauses of the others: doc/lock.md.
	polls bool
}

// Primitives are the names of all workloads.
var Primitives = []string{
	"lock", "owner", "nested", "spin", "cohort", "linger", "fenced", "fair", "rwlock", "semaphore", "permits",
	"latch", "multi", "redlock", electionPrimitive,
}

var workloads map[string]*workload

func init() {
	workloads = map[string]*workload{
		"lock":            {act: (*session).useLock, operator: true},
		"owner":           {act: (*session).useOwner, operator: true},
		"nested":          {act: (*session).useNested, operator: true},
		"spin":            {act: (*session).useSpin, operator: true, polls: true},
		"cohort":          {act: (*session).useCohort, operator: true},
		"linger":          {act: (*session).useLinger, operator: true},
		"fenced":          {act: (*session).useFenced, operator: true},
		"fair":            {act: (*session).useFair, operator: true, fair: true},
		"rwlock":          {act: (*session).useRWLock, operator: true},
		"semaphore":       {act: (*session).useSemaphore},
		"permits":         {act: (*session).usePermits},
		"latch":           {act: (*session).useLatch},
		"multi":           {act: (*session).useMulti, operator: true},
		"redlock":         {act: (*session).useRedLock},
		electionPrimitive: {act: (*session).useElection, operator: true},
		keyedPrimitive:    {act: (*session).useKeyed, operator: true},
	}
}

// simulatedPrimitives are the names of all workloads of simulations.
var simulatedPrimitives = append(slices.Clone(Primitives), keyedPrimitive)

// session is one goroutine of a client process, with its own random numbers.
type session struct {
	*worker

	n    int
	rand *rand.Rand
}

// one in n.
func (s *session) one(n int) bool { return s.rand.IntN(n) == 0 }

// name returns one of the names of a primitive, and the TTL that its holds have. The TTLs differ:
// with a short one holds expire often, with a long one whatever is left behind is seen.
func (s *session) name(primitive string) (string, time.Duration) {
	i := s.rand.IntN(s.Names)
	return lockName(s.Tag, primitive, i), ttlOf(s.TTL, i)
}

func lockName(tag, primitive string, i int) string { return fmt.Sprintf("%s:%s:%d", tag, primitive, i) }

// longTTL is how many times longer the TTL of every second name is.
const longTTL = 7

// longestLease is how many times longer than the TTL of a round a lease may be.
const longestLease = max(longTTL, longestExtension)

func ttlOf(ttl time.Duration, i int) time.Duration {
	if i%2 == 1 {
		return longTTL * ttl
	}
	return ttl
}

// acquirer is a lock or a semaphore.
type acquirer interface {
	Acquire(ctx context.Context, opts ...primitives.Option) (*primitives.Hold, error)
}

// usualTryDo is the rate of TryDo among the uses of a lock.
const usualTryDo = 10

// use acquires a lock, or takes it over from its holder.
func (s *session) use(l inspectable, call record, nested acquirer) {
	lock, isLock := l.(*primitives.Lock)
	// The observer tells how the release of TryDo has ended, by an id, which several holds of an
	// owner share.
	canTryDo := isLock && s.Defect == "" && call.Owner == ""
	switch {
	case s.one(s.Rates.TakeOver):
		s.takeOver(l, call, nested)
	case canTryDo && s.one(cmp.Or(s.Rates.TryDo, usualTryDo)):
		s.tryDo(lock, call, nested)
	default:
		s.hold(l, call, nested)
	}
}

func (s *session) useLock(primitive string) {
	name, ttl := s.name(primitive)
	s.use(s.client.Lock(name), record{Primitive: primitive, Names: []string{name}, TTL: ttl}, nil)
}

// owners is how many ids the callers of WithOwner share, in all processes.
const owners = 2

func (s *session) useOwner(primitive string) {
	name, ttl := s.name(primitive)
	call := record{Primitive: primitive, Names: []string{name}, TTL: ttl}
	if !s.one(3) {
		call.Owner = fmt.Sprintf("torture-owner:%d", s.rand.IntN(owners))
	}
	s.use(s.client.Lock(name), call, nil)
}

func (s *session) useCohort(primitive string) {
	name, ttl := s.name(primitive)
	l := s.client.FencedLock(name, primitives.WithCohort(cohortTime))
	s.use(l, record{Primitive: primitive, Names: []string{name}, TTL: ttl, Passes: true}, nil)
}

// cohortTime is how long the holds of a client may pass a lock on among themselves.
const cohortTime = 50 * time.Millisecond

// lingerTime is how long a released lock may stay with its client.
const lingerTime = 100 * time.Millisecond

// useLinger does not take over: an id that lingers holds nothing for anybody.
func (s *session) useLinger(primitive string) {
	name, ttl := s.name(primitive)
	l := s.client.FencedLock(name, primitives.WithLinger(lingerTime))
	s.hold(l, record{Primitive: primitive, Names: []string{name}, TTL: ttl, Passes: true, Lingers: true}, nil)
}

func (s *session) useSpin(primitive string) {
	name, ttl := s.name(primitive)
	l := s.client.Lock(name, primitives.WithPolling(2*time.Millisecond, 40*time.Millisecond))
	s.use(l, record{Primitive: primitive, Names: []string{name}, TTL: ttl}, nil)
}

// useNested releases a hold while others nest in it. Each of those is nested, or it is an outermost
// one.
func (s *session) useNested(primitive string) {
	name, ttl := s.name(primitive)
	l := s.client.Lock(name)
	call := record{Session: s.n, Primitive: primitive, Names: []string{name}, TTL: ttl}
	h, end := s.acquire(context.Background(), l, &call)
	defer end()
	if h == nil {
		return
	}
	var siblings sync.WaitGroup
	for i := range 1 + s.rand.IntN(2) {
		sibling := &session{
			worker: s.worker, n: s.n + (i+1)*s.Sessions, rand: seeded(s.rand.Uint64(), s.rand.Uint64()),
		}
		siblings.Go(func() {
			inner := call
			inner.Session = sibling.n
			time.Sleep(between(sibling.rand, 0, 2*time.Millisecond))
			sibling.inside(context.WithoutCancel(h.Context()), l, inner)
		})
	}
	s.section(h, l, call)
	time.Sleep(between(s.rand, 0, nestedPause))
	s.release(h, call)
	siblings.Wait()
}

// nestedPause is how long useNested pauses at most between the section and the release.
const nestedPause = 2 * time.Millisecond

func (s *session) useFenced(primitive string) {
	name, ttl := s.name(primitive)
	s.use(s.client.FencedLock(name), record{Primitive: primitive, Names: []string{name}, TTL: ttl}, nil)
}

func (s *session) useFair(primitive string) {
	name, ttl := s.name(primitive)
	l := s.client.FairLock(name, primitives.WithWaiterTimeout(waiterTimeout))
	s.use(l, record{Primitive: primitive, Names: []string{name}, TTL: ttl}, nil)
}

func (s *session) useRWLock(primitive string) {
	name, ttl := s.name(primitive)
	call := record{Primitive: primitive, Names: []string{name}, TTL: ttl, Read: !s.one(3)}
	lingers := s.simulated != nil && s.one(2)
	if lingers { // writers linger: a writer under which somebody reads needs another one soon
		call.Read = s.one(4)
	}
	rw := s.client.RWLock(name)
	if ttl > s.TTL {
		rw = s.client.RWLock(name, primitives.WithCohort(cohortTime))
		call.Passes = !call.Read
	}
	if lingers { // on a name of its own, which nobody takes over: see useLinger
		name, call.TTL = lockName(s.Tag, primitive, namesOf), s.TTL
		rw = s.client.RWLock(name, primitives.WithLinger(lingerTime))
		call.Names, call.Passes, call.Lingers = []string{name}, !call.Read, true
	}
	mayDowngrade := s.simulated != nil && !call.Read
	isOften := lingers && s.one(2)
	if mayDowngrade && (isOften || s.one(3)) {
		s.downgrade(rw, call)
	} else if lingers && call.Read {
		s.hold(rw.Reader(), call, nil)
	} else if lingers {
		s.hold(rw.Writer(), call, rw.Reader())
	} else if call.Read {
		s.use(rw.Reader(), call, nil)
	} else {
		s.use(rw.Writer(), call, rw.Reader())
	}
}

// downgrade begins to read while it writes, and goes on reading after it has written.
func (s *session) downgrade(rw *primitives.RWLock, call record) {
	call.Session = s.n
	h, end := s.acquire(context.Background(), rw.Writer(), &call)
	defer end()
	if h == nil {
		return
	}
	s.section(h, rw.Reader(), call)
	inner := call
	inner.Session, inner.Read, inner.Passes = s.n+s.Sessions, true, false
	r, endInner := s.acquire(context.WithoutCancel(h.Context()), rw.Reader(), &inner)
	defer endInner()
	if r == nil {
		s.release(h, call)
		return
	}
	stop := s.watch(r, inner)
	s.release(h, call)
	time.Sleep(between(s.rand, 0, 80*time.Millisecond))
	stop()
	s.release(r, inner)
}

// multiMembers is how many locks there are of which multilocks have two.
const multiMembers = 4

func (s *session) useMulti(primitive string) {
	order := s.rand.Perm(multiMembers)
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

// memberName is the name of a member of a redlock.
func memberName(name string, i int) string { return fmt.Sprintf("%s:%d", name, i) }

func (s *session) useRedLock(primitive string) {
	name := lockName(s.Tag, primitive, 0)
	var locks []*primitives.Lock
	for i, m := range s.members {
		locks = append(locks, m.client.Lock(memberName(name, i)))
	}
	ttl := ttlOf(s.TTL, 1) // a tenth of it is what a member may take to answer
	if s.simulated != nil && s.one(2) {
		ttl = 2 * s.TTL // so that a member that was lost is acquired again soon
	}
	s.hold(primitives.NewRedLock(locks), record{Primitive: primitive, Names: []string{name}, TTL: ttl}, nil)
}
