package workload

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/redlatch/redlatch/bench/internal/contend"
)

// worker enters sections, one after another.
type worker struct {
	number  int // among all
	lock    contend.Locker
	read    contend.Locker // nil but for read-write locks
	board   *Board
	choices *rand.Rand

	tally
}

// tally is what a worker has counted in one run.
type tally struct {
	ops, handOvers, reads int64 // while it counts
	allOps, allHandOvers  int64
	waits, handOverTimes  []int64
}

// employ makes the workers.
func (s *session) employ(ctx context.Context) error {
	for i, client := range s.clients {
		for j := range s.w.Goroutines {
			w, err := s.hire(ctx, client, (s.part.First+i)*s.w.Goroutines+j)
			if err != nil {
				return fmt.Errorf("workload: %s: %w", s.contender.Name, err)
			}
			s.workers = append(s.workers, w)
		}
	}
	return nil
}

func (s *session) hire(ctx context.Context, client contend.Client, number int) (*worker, error) {
	choices := rand.New(rand.NewPCG(1, uint64(number))) //nolint:gosec // the same in each run
	w := &worker{number: number, board: s.board, choices: choices}
	if s.w.Keys > 1 { // nobody else comes there
		w.board = new(Board)
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

// window is the time in which sections count.
type window struct {
	from     atomic.Int64 // Unix ns; 0: it has not begun
	duration time.Duration
}

func (w *window) begin() { w.from.Store(time.Now().UnixNano()) }

func (w *window) over(now time.Time) bool {
	from := w.from.Load()
	return from != 0 && now.UnixNano() > from+int64(w.duration)
}

func (w *window) counts(end time.Time) bool {
	from := w.from.Load()
	return from != 0 && from <= end.UnixNano() && !w.over(end)
}

// runSection has all workers come and go until the window is over.
func (s *session) runSection(ctx context.Context, w contend.Workload) (contend.Result, error) {
	s.clear()
	window := &window{duration: w.Duration}
	g, ctx := errgroup.WithContext(ctx)
	if w.Queued {
		g.Go(func() error { return s.beginQueued(ctx, window) })
	} else {
		window.begin()
	}
	for _, worker := range s.workers {
		g.Go(func() error { return worker.work(ctx, w, window) })
	}
	err := g.Wait()
	r := s.sum()
	r.Elapsed = w.Duration
	return r, err
}

// clear makes the boards and tallies as new. A board that several processes share is not ours to clear.
func (s *session) clear() {
	if s.part.Clients == s.w.Clients {
		s.board.Reset()
	}
	for _, worker := range s.workers {
		worker.tally = tally{}
		if worker.board != s.board {
			worker.board.Reset()
		}
	}
}

const (
	queueLimit = 30 * time.Second
	queueLook  = 5 * time.Millisecond
)

// beginQueued begins the window when all workers stand in Redisson's queue, but the one inside and a few that are on their way.
func (s *session) beginQueued(ctx context.Context, window *window) error {
	ctx, cancel := context.WithTimeout(ctx, queueLimit)
	defer cancel()
	rdb := s.setting(0).Dial()
	defer func() { _ = rdb.Close() }()
	wanted := int64(len(s.workers)-1) * 95 / 100
	for {
		n, err := rdb.LLen(ctx, "redisson_lock_queue:{"+s.w.Name+"}").Result()
		if err != nil {
			return fmt.Errorf("workload: %d of %d wait: %w", n, wanted, err)
		}
		if n >= wanted {
			window.begin()
			return nil
		}
		time.Sleep(queueLook)
	}
}

// work is a worker's life.
func (w *worker) work(ctx context.Context, wl contend.Workload, window *window) error {
	for !window.over(time.Now()) && ctx.Err() == nil {
		if err := w.section(ctx, wl, window); err != nil {
			return err
		}
		if wl.Turns {
			w.awaitTurn(ctx, window)
		}
	}
	return context.Cause(ctx)
}

func (w *worker) section(ctx context.Context, wl contend.Workload, window *window) error {
	lock, reading := w.choose(wl)
	asked := time.Now()
	held, err := lock.Acquire(ctx)
	if err != nil {
		return err
	}
	in := time.Now()
	v := w.board.enter(passOf(wl, reading), w.number, in)
	if wl.Inside > 0 {
		time.Sleep(wl.Inside)
	}
	w.board.leave(v)
	if wl.Turns {
		w.board.released.Store(time.Now().UnixNano())
	}
	err = held.Release(ctx)
	w.count(v, reading, in.Sub(asked), window.counts(time.Now()))
	return err
}

func (w *worker) choose(wl contend.Workload) (lock contend.Locker, reading bool) {
	if wl.Reads > 0 && w.choices.IntN(100) < wl.Reads {
		return w.read, true
	}
	return w.lock, false
}

func (t *tally) count(v visit, reading bool, waited time.Duration, counts bool) {
	t.allOps++
	if v.handOver {
		t.allHandOvers++
	}
	if !counts {
		return
	}
	t.ops++
	t.waits = append(t.waits, int64(waited))
	if reading {
		t.reads++
	}
	if v.handOver {
		t.handOvers++
	}
	if v.took > 0 {
		t.handOverTimes = append(t.handOverTimes, int64(v.took))
	}
}

// awaitTurn waits until another has been in.
func (w *worker) awaitTurn(ctx context.Context, window *window) {
	for w.board.last.Load() == int64(w.number)+1 && !window.over(time.Now()) && ctx.Err() == nil {
		time.Sleep(50 * time.Microsecond)
	}
}

// sum adds up what the workers have counted.
func (s *session) sum() contend.Result {
	var r contend.Result
	boards := map[*Board]struct{}{s.board: {}}
	for _, w := range s.workers {
		r.Ops += w.ops
		r.HandOvers += w.handOvers
		r.Reads += w.reads
		r.AllOps += w.allOps
		r.AllHandOvers += w.allHandOvers
		r.PerWorker = append(r.PerWorker, w.ops)
		r.Waits = append(r.Waits, w.waits...)
		r.HandOverTimes = append(r.HandOverTimes, w.handOverTimes...)
		boards[w.board] = struct{}{}
	}
	for b := range boards {
		overlaps, lost := b.verdict()
		r.Overlaps += overlaps
		r.Lost += lost
	}
	return r
}
