package torture

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

// namesOf is how many names each primitive has in a round. Few, so that sessions meet.
const namesOf = 2

// waiterTimeout is how long a silent waiter of a fair lock keeps its place.
const waiterTimeout = 2 * time.Second

// workload says what client processes do with a primitive, and what the checks may expect of it.
type workload struct {
	act func(s *session, primitive string)
	// operator: its keys may be deleted or overwritten by the operator.
	operator bool
	fair     bool
}

// Primitives are the names of all workloads.
var Primitives = []string{
	"lock", "owner", "cohort", "fenced", "fair", "rwlock", "semaphore", "permits", "latch", "multi", "redlock",
}

var workloads map[string]*workload

func init() {
	workloads = map[string]*workload{
		"lock":      {act: (*session).useLock, operator: true},
		"owner":     {act: (*session).useOwner, operator: true},
		"cohort":    {act: (*session).useCohort, operator: true},
		"fenced":    {act: (*session).useFenced, operator: true},
		"fair":      {act: (*session).useFair, operator: true, fair: true},
		"rwlock":    {act: (*session).useRWLock, operator: true},
		"semaphore": {act: (*session).useSemaphore},
		"permits":   {act: (*session).usePermits},
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

// acquirer is a lock or a semaphore.
type acquirer interface {
	Acquire(ctx context.Context, opts ...primitives.Option) (*primitives.Hold, error)
}

// use acquires a lock, or takes it over from its holder.
func (s *session) use(l inspectable, call record, nested acquirer) {
	if s.one(25) {
		s.takeOver(l, call, nested)
	} else {
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
	cohort := primitives.WithCohort(50 * time.Millisecond)
	s.use(s.client.FencedLock(name, cohort), record{Primitive: primitive, Names: []string{name}, TTL: ttl}, nil)
}

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
	rw := s.client.RWLock(name)
	call := record{Primitive: primitive, Names: []string{name}, TTL: ttl, Read: !s.one(3)}
	if call.Read {
		s.use(rw.Reader(), call, nil)
	} else {
		s.use(rw.Writer(), call, rw.Reader())
	}
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
