// Package workload runs workloads of Go contenders, in this process or with a process per client.
package workload

import (
	"sync/atomic"
	"time"

	"github.com/redlatch/redlatch/bench/internal/contend"
)

// Guard checks mutual exclusion. All workers that share a key share a guard.
// It may be in memory that several processes map, so it has a fixed layout and no pointers. The
// zero value is ready to use.
//
// A guard must not add the exclusion that it checks. So a section increments counter in two steps:
// an atomic load at its start and an atomic store at its end. Overlapping sections lose an update,
// as with a plain variable, but without a data race.
type Guard struct {
	inside   atomic.Int64 // sum of the weights of the workers in their sections
	overlaps atomic.Int64
	counter  atomic.Int64
	entered  atomic.Int64 // exclusive sections; equals counter if no update was lost
	last     atomic.Int64 // worker that entered last, plus 1
	released atomic.Int64 // start of the last release, Unix ns
}

// Reset sets the guard to its zero value. No worker may be inside.
func (g *Guard) Reset() {
	for _, field := range []*atomic.Int64{&g.inside, &g.overlaps, &g.counter, &g.entered, &g.last, &g.released} {
		field.Store(0)
	}
}

// access says how a section excludes others: the sum of the weights inside must not exceed limit.
type access struct {
	weight, limit int64
}

// writerWeight is greater than the number of workers. A reader has weight 1.
const writerWeight = 1 << 32

// accessOf returns the access of a section. reading selects the read side of a read-write lock.
func accessOf(w contend.Workload, reading bool) access {
	switch {
	case w.Primitive == contend.RW && reading:
		return access{1, writerWeight}
	case w.Primitive == contend.RW:
		return access{writerWeight, writerWeight}
	case w.Primitive == contend.Semaphore || w.Primitive == contend.Permits:
		return access{1, int64(w.Permits)}
	default:
		return access{1, 1}
	}
}

func (a access) exclusive() bool { return a.weight == a.limit }

// entry is one worker's presence in a section.
type entry struct {
	access      access
	counter     int64 // Guard.counter at the start
	handOff     bool  // a different worker entered before
	handOffTime time.Duration
}

// enter records that the worker has acquired the lock at the time now.
func (g *Guard) enter(a access, worker int, now time.Time) entry {
	e := entry{access: a}
	if g.inside.Add(a.weight) > a.limit {
		g.overlaps.Add(1)
	}
	if last := g.last.Swap(int64(worker) + 1); last != int64(worker)+1 && last != 0 {
		e.handOff = true
		if g.released.Load() != 0 { // only some workloads record releases
			e.handOffTime = g.sinceRelease(now)
		}
	}
	if a.exclusive() {
		g.entered.Add(1)
		e.counter = g.counter.Load()
	}
	return e
}

// leave records the end of the section. Call it before the release: afterwards the next worker may
// be inside.
func (g *Guard) leave(e entry) {
	if e.access.exclusive() {
		g.counter.Store(e.counter + 1)
	}
	g.inside.Add(-e.access.weight)
}

func (g *Guard) sinceRelease(now time.Time) time.Duration {
	return time.Duration(now.UnixNano() - g.released.Load())
}

// violations returns the overlaps and lost updates so far. No worker may be inside.
func (g *Guard) violations() (overlaps, lost int64) {
	return g.overlaps.Load(), g.entered.Load() - g.counter.Load()
}
