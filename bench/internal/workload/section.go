package workload

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/redlatch/redlatch/bench/internal/contend"
	"github.com/redlatch/redlatch/bench/internal/delay"
)

// worker runs sections one after another, in one goroutine.
type worker struct {
	number int // unique among the workers of all processes
	lock   contend.Locker
	read   contend.Locker // nil except for read-write locks
	guard  *Guard
	random *rand.Rand

	tally
}

// tally is a worker's counts of one run. Only the worker writes to it, without a lock. sum reads it
// after the worker has ended.
type tally struct {
	ops, handOffs, reads int64 // within the window
	allOps, allHandOffs  int64
	waits, handOffTimes  []int64 // ns
}

// newWorkers makes the workers of all clients in this process.
func (s *session) newWorkers(ctx context.Context) error {
	for i, client := range s.clients {
		for j := range s.w.Goroutines {
			w, err := s.newWorker(ctx, client, (s.part.First+i)*s.w.Goroutines+j)
			if err != nil {
				return fmt.Errorf("workload: %s: %w", s.contender.Name, err)
			}
			s.workers = append(s.workers, w)
		}
	}
	return nil
}

func (s *session) newWorker(ctx context.Context, client contend.Client, number int) (*worker, error) {
	random := rand.New(rand.NewPCG(1, uint64(number))) //nolint:gosec // repeatable, the same in each run
	w := &worker{number: number, guard: s.guard, random: random}
	if s.w.Keys > 1 { // each worker has its own key
		w.guard = new(Guard)
	}
	name := KeyOf(s.w, number)
	var err error
	if w.lock, err = client.Locker(ctx, name, false); err != nil {
		return nil, err
	}
	if s.w.Reads > 0 {
		w.read, err = client.Locker(ctx, name, true)
	}
	return w, err
}

// window is the time in which sections count. It is shared: one goroutine opens it while the
// workers read it.
type window struct {
	start    atomic.Int64 // Unix ns; 0 before the window opens
	duration time.Duration
}

func (w *window) open() { w.start.Store(time.Now().UnixNano()) }

func (w *window) over(now time.Time) bool {
	start := w.start.Load()
	return start != 0 && now.UnixNano() > start+int64(w.duration)
}

// contains reports whether a section that ended at the time end counts.
func (w *window) contains(end time.Time) bool {
	start := w.start.Load()
	return start != 0 && start <= end.UnixNano() && !w.over(end)
}

// runSection lets all workers run sections until the window is over.
func (s *session) runSection(ctx context.Context, w contend.Workload) (contend.Result, error) {
	s.resetCounts()
	window := &window{duration: w.Duration}
	g, ctx := errgroup.WithContext(ctx) // the first failure stops all workers
	if w.Queued {
		g.Go(func() error { return s.openWhenQueued(ctx, window) })
	} else {
		window.open()
	}
	for _, worker := range s.workers {
		g.Go(func() error { return worker.runSections(ctx, w, window) })
	}
	err := g.Wait()
	r := s.sum()
	r.Elapsed = w.Duration
	return r, err
}

// resetCounts resets the guards and tallies. If several processes share the guard, Fork resets it.
func (s *session) resetCounts() {
	if s.part.Clients == s.w.Clients {
		s.guard.Reset()
	}
	for _, worker := range s.workers {
		worker.tally = tally{}
		if worker.guard != s.guard {
			worker.guard.Reset()
		}
	}
}

const (
	queueTimeout      = 30 * time.Second
	queuePollInterval = 5 * time.Millisecond
)

// openWhenQueued opens the window when 95 % of the workers that can wait are in Redisson's queue.
// The others are on their way into it or out of it.
func (s *session) openWhenQueued(ctx context.Context, window *window) error {
	ctx, cancel := context.WithTimeout(ctx, queueTimeout)
	defer cancel()
	rdb := s.clientConfig(0).Dial()
	defer func() { _ = rdb.Close() }()
	wanted := int64(len(s.workers)-1) * 95 / 100
	for {
		n, err := rdb.LLen(ctx, "redisson_lock_queue:{"+s.w.Name+"}").Result()
		if err != nil {
			return fmt.Errorf("workload: wait for %d workers in the queue: %w", wanted, err)
		}
		if n >= wanted {
			window.open()
			return nil
		}
		time.Sleep(queuePollInterval)
	}
}

// runSections runs sections until the window is over, ctx is done or a call fails.
func (w *worker) runSections(ctx context.Context, wl contend.Workload, window *window) error {
	for !window.over(time.Now()) && ctx.Err() == nil {
		if err := w.runSection(ctx, wl, window); err != nil {
			return err
		}
		if wl.Turns {
			w.awaitTurn(ctx, window)
		}
	}
	return context.Cause(ctx) // nil if the window is over
}

func (w *worker) runSection(ctx context.Context, wl contend.Workload, window *window) error {
	lock, reading := w.lock, false
	if wl.Reads > 0 && w.random.IntN(100) < wl.Reads {
		lock, reading = w.read, true
	}
	started := time.Now()
	hold, err := lock.Acquire(ctx)
	if err != nil {
		return err
	}
	acquired := time.Now()
	// The guard sees less than the time that the lock is held: it is entered after Acquire and left
	// before Release. So it never reports an overlap of a correct lock.
	e := w.guard.enter(accessOf(wl, reading), w.number, acquired)
	if wl.Inside > 0 {
		delay.ParkUntil(acquired.Add(wl.Inside))
	}
	w.guard.leave(e)
	if wl.Turns {
		// Store the time before the release: the next worker may read it before Release returns.
		w.guard.released.Store(time.Now().UnixNano())
	}
	err = hold.Release(ctx)
	w.count(e, reading, acquired.Sub(started), window.contains(time.Now()))
	return err
}

// count adds a section to the tally. inWindow is false for sections that only the totals include.
func (t *tally) count(e entry, reading bool, waited time.Duration, inWindow bool) {
	t.allOps++
	if e.handOff {
		t.allHandOffs++
	}
	if !inWindow {
		return
	}
	t.ops++
	t.waits = append(t.waits, int64(waited))
	if reading {
		t.reads++
	}
	if e.handOff {
		t.handOffs++
	}
	if e.handOffTime > 0 {
		t.handOffTimes = append(t.handOffTimes, int64(e.handOffTime))
	}
}

// awaitTurn waits until another worker has entered, the window is over or ctx is done. It polls, as
// the other worker may be in another process.
func (w *worker) awaitTurn(ctx context.Context, window *window) {
	for w.guard.last.Load() == int64(w.number)+1 && !window.over(time.Now()) && ctx.Err() == nil {
		time.Sleep(50 * time.Microsecond)
	}
}

// sum adds up the tallies of the workers and the violations that their guards found.
func (s *session) sum() contend.Result {
	var r contend.Result
	guards := map[*Guard]struct{}{s.guard: {}}
	for _, w := range s.workers {
		r.Ops += w.ops
		r.HandOffs += w.handOffs
		r.Reads += w.reads
		r.AllOps += w.allOps
		r.AllHandOffs += w.allHandOffs
		r.PerWorker = append(r.PerWorker, w.ops)
		r.Waits = append(r.Waits, w.waits...)
		r.HandOffTimes = append(r.HandOffTimes, w.handOffTimes...)
		guards[w.guard] = struct{}{}
	}
	for g := range guards {
		overlaps, lost := g.violations()
		r.Overlaps += overlaps
		r.Lost += lost
	}
	return r
}
