package torture

import (
	"context"
	"fmt"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

// poolSize is the number of permits that semaphores begin with.
const poolSize = 3

// latchSize is the count that latches begin with.
const latchSize = 5

// generationName is the name of a pool or latch, which is given up when it may have lost its
// content.
func (s *session) generationName(primitive string) (string, time.Duration) {
	name, ttl := s.name(primitive)
	return fmt.Sprintf("%s:g%d", name, s.generation.Load()), ttl
}

func (s *session) useSemaphore(primitive string) {
	name, ttl := s.generationName(primitive)
	sem := s.client.Semaphore(name)
	call := s.permitsOf(primitive, name, ttl)
	switch {
	case !s.create(primitive, name, sem.Init):
	case s.Pace == paceCalm: // with fewer permits, some would wait for ever
		s.hold(sem, call, nil)
	case s.one(s.changes()):
		s.addAndRemove(sem, call)
	case s.one(s.changes()):
		s.drainAndRefill(sem, call)
	case s.one(s.changes()):
		s.look(sem, call)
	default:
		s.hold(sem, call, nil)
	}
}

func (s *session) usePermits(primitive string) {
	name, ttl := s.generationName(primitive)
	sem := s.client.PermitExpirableSemaphore(name)
	call := s.permitsOf(primitive, name, ttl)
	switch {
	case !s.create(primitive, name, sem.Init):
	case s.Pace == paceCalm:
		s.hold(sem, call, nil)
	case s.one(s.changes()):
		call.Do, call.Permits = opResize, poolSize-1+s.rand.IntN(3)
		s.change(call, func(ctx context.Context, _ *record) error {
			return s.resizePermits(ctx, sem, call.Permits)
		})
	case s.one(s.changes()):
		s.look(sem, call)
	case s.one(s.changes()):
		s.takeOver(sem, call, nil)
	default:
		s.hold(sem, call, nil)
	}
}

// changes says how rare each kind of change of a pool is: one use in so many.
func (s *session) changes() int {
	if s.simulated != nil {
		return 8
	}
	return 20
}

func (s *session) permitsOf(primitive, name string, ttl time.Duration) record {
	call := record{
		Session: s.n, Primitive: primitive, Names: []string{name}, TTL: ttl,
		Permits: 1 + s.rand.IntN(2), Limit: poolSize,
	}
	isAlone := s.simulated != nil && s.Sessions == 1
	if s.Pace == paceCalm || isAlone {
		call.Permits = poolSize // else nobody would wait
	}
	return call
}

// create sets the size of a pool, unless this process has done so, and reports whether it has one.
func (s *session) create(primitive, name string, init func(context.Context, int) (bool, error)) bool {
	if _, ok := s.inits.Load(name); ok {
		return true
	}
	call := record{Do: opInit, Session: s.n, Primitive: primitive, Names: []string{name}, Permits: poolSize}
	ok := s.change(call, func(ctx context.Context, _ *record) error {
		_, err := init(ctx, poolSize)
		return err
	})
	if ok {
		s.inits.Store(name, true)
	}
	return ok
}

// change records an operation on a pool, and reports whether it succeeded.
func (s *session) change(call record, f func(ctx context.Context, result *record) error) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	call.Bound = s.deadline(ctx)
	call = s.call(call)
	var result record
	err := f(ctx, &result)
	s.finish(call, err, result)
	return err == nil
}

func (s *session) add(sem *primitives.Semaphore, call record, delta int) bool {
	call.Do, call.Permits = opAdd, delta
	return s.change(call, func(ctx context.Context, _ *record) error { return s.addPermits(ctx, sem, delta) })
}

// addAndRemove adds a permit for a moment.
func (s *session) addAndRemove(sem *primitives.Semaphore, call record) {
	if s.add(sem, call, 1) {
		time.Sleep(between(s.rand, 0, 20*time.Millisecond))
		s.add(sem, call, -1)
	}
}

// drainAndRefill removes the permits that are left for a moment.
func (s *session) drainAndRefill(sem *primitives.Semaphore, call record) {
	call.Do, call.Permits = opDrain, 0
	taken := 0
	s.change(call, func(ctx context.Context, result *record) (err error) {
		taken, err = s.drainPermits(ctx, sem)
		result.Count = int64(taken)
		return err
	})
	if taken != 0 {
		time.Sleep(between(s.rand, 0, 10*time.Millisecond))
		for try := 0; try < 3 && !s.add(sem, call, taken); try++ { // without permits the others only wait
		}
	}
}

// look asks how many permits there are. Redis does not know the number of a plain semaphore, only
// how many are left.
func (s *session) look(sem interface {
	Info(ctx context.Context) (primitives.Info, error)
}, call record) {
	call.Do, call.Permits = opInfo, 0
	s.change(call, func(ctx context.Context, result *record) error {
		info, err := sem.Info(ctx)
		result.Count = int64(info.Permits)
		return err
	})
}

// useLatch counts a latch down, reads it, waits for it, or starts it again.
func (s *session) useLatch(primitive string) {
	name, _ := s.generationName(primitive)
	latch := s.client.CountDownLatch(name)
	ctx, cancel := context.WithTimeout(context.Background(), between(s.rand, 200*time.Millisecond, time.Second))
	defer cancel()
	call := record{Session: s.n, Primitive: primitive, Names: []string{name}, Bound: s.deadline(ctx)}
	kinds := []string{opInit, opCountDown, opCountDown, opCountDown, opCount, opAwait}
	call.Do = kinds[s.rand.IntN(len(kinds))]
	if s.simulated != nil {
		call.Do = s.simulatedLatchCall(name)
	}
	if call.Do == opInit {
		call.Permits = latchSize
	}
	call = s.call(call)
	var result record
	var err error
	switch call.Do {
	case opInit:
		var created bool
		created, err = latch.Init(ctx, latchSize)
		result.Count = countOf(created)
	case opCountDown:
		err = s.countDown(ctx, latch)
	case opCount:
		result.Count, err = latch.Count(ctx)
	case opAwait:
		err = latch.Wait(ctx)
	}
	s.finish(call, err, result)
}

// simulatedLatchCall returns what a simulated session does with a latch. Its steps are few: each
// process starts a latch at once. Later that is rare: a latch must stay open for longer than a
// wake-up takes, or nobody sees who waits in vain.
func (s *session) simulatedLatchCall(name string) string {
	_, isStarted := s.inits.LoadOrStore(name, true)
	n := s.rand.IntN(20)
	switch {
	case !isStarted, n == 0:
		return opInit
	case n <= 10:
		return opCountDown
	case n <= 12:
		return opCount
	}
	return opAwait
}
