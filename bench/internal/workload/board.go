// Package workload runs workloads in Go: in this process, or with a process for each client.
package workload

import (
	"sync/atomic"
	"time"

	"github.com/redlatch/redlatch/bench/internal/contend"
)

// Board is what all workers of a measurement look at and write on while they are inside. It may lie in memory that several processes share,
// so it has a fixed layout and no pointers; its zero value is ready for use.
//
// It is a guard, and must not help what it guards: its counter is read at the start of a section and written at its end, each atomically, so that
// sections that overlap lose an update, as with a plain variable, but no race detector minds.
type Board struct {
	inside   atomic.Int64 // weights of those who are in
	overlaps atomic.Int64
	counter  atomic.Int64
	entered  atomic.Int64 // exclusive sections; counter shall become this
	last     atomic.Int64 // who entered last: worker + 1
	released atomic.Int64 // when the last release began, Unix ns
}

// Reset makes the board as new. Nobody may be inside.
func (b *Board) Reset() {
	for _, field := range []*atomic.Int64{&b.inside, &b.overlaps, &b.counter, &b.entered, &b.last, &b.released} {
		field.Store(0)
	}
}

// pass is what a worker is allowed in for: no more than limit weights may be inside together.
type pass struct {
	weight, limit int64
}

// crowdOfReaders is more than there are workers: a writer has this weight, a reader one.
const crowdOfReaders = 1 << 32

// passOf returns what to enter with. reading concerns read-write locks only.
func passOf(w contend.Workload, reading bool) pass {
	switch {
	case w.Primitive == contend.RW && reading:
		return pass{1, crowdOfReaders}
	case w.Primitive == contend.RW:
		return pass{crowdOfReaders, crowdOfReaders}
	case w.Primitive == contend.Semaphore || w.Primitive == contend.Permits:
		return pass{1, int64(w.Permits)}
	default:
		return pass{1, 1}
	}
}

func (p pass) exclusive() bool { return p.weight == p.limit }

// visit is one section that a worker is in.
type visit struct {
	pass     pass
	counter  int64
	handOver bool          // another worker was in before
	took     time.Duration // of a hand-over: since the release began, if it did
}

// enter tells that worker is in, at the time now.
func (b *Board) enter(p pass, worker int, now time.Time) visit {
	v := visit{pass: p}
	if b.inside.Add(p.weight) > p.limit {
		b.overlaps.Add(1)
	}
	if last := b.last.Swap(int64(worker) + 1); last != int64(worker)+1 && last != 0 {
		v.handOver = true
		if b.released.Load() != 0 {
			v.took = b.sinceRelease(now)
		}
	}
	if p.exclusive() {
		b.entered.Add(1)
		v.counter = b.counter.Load()
	}
	return v
}

// leave comes before the release.
func (b *Board) leave(v visit) {
	if v.pass.exclusive() {
		b.counter.Store(v.counter + 1)
	}
	b.inside.Add(-v.pass.weight)
}

func (b *Board) sinceRelease(now time.Time) time.Duration {
	return time.Duration(now.UnixNano() - b.released.Load())
}

// verdict is what the guard has seen so far. Nobody may be inside.
func (b *Board) verdict() (overlaps, lost int64) {
	return b.overlaps.Load(), b.entered.Load() - b.counter.Load()
}
