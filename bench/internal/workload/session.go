package workload

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/redlatch/redlatch/bench/internal/contend"
	"github.com/redlatch/redlatch/bench/internal/measure"
)

// Part is the share of a workload that one process runs: Clients clients, numbered from First. The
// zero Part is the whole workload.
type Part struct {
	First   int `json:"first"`
	Clients int `json:"clients"`
}

// Open opens a session with all clients in this process.
func Open(
	ctx context.Context, c contend.Contender, target contend.Target, w contend.Workload,
) (contend.Session, error) {
	return OpenPart(ctx, c, target, w, Part{}, new(Guard))
}

// OpenPart opens a session for a part of the workload. All parts share the guard. The part with
// First 0 must be open before the others start to open.
func OpenPart(
	ctx context.Context, c contend.Contender, target contend.Target, w contend.Workload, part Part, guard *Guard,
) (contend.Session, error) {
	if part.Clients == 0 {
		part.Clients = w.Clients
	}
	s := &session{contender: c, target: target, w: w, part: part, guard: guard}
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// session runs a workload, or a part of it, in this process.
type session struct {
	contender contend.Contender
	target    contend.Target
	w         contend.Workload
	part      Part
	guard     *Guard

	clients []contend.Client
	workers []*worker
	holds   []contend.Hold // Holds: all of them; Crowd: the holder's, in the first part
	memory  measure.Memory // Crowd, Holds: used by the waiters or holds

	// Crowd only.
	holder  entry
	waiting *errgroup.Group    // the workers
	cancel  context.CancelFunc // cancels their waits
}

// open connects the clients and prepares the workload, as contend.Kind describes.
func (s *session) open(ctx context.Context) error {
	if s.part.First == 0 {
		if err := s.prepare(ctx); err != nil {
			return err
		}
	}
	for i := range s.part.Clients {
		if err := s.connect(ctx, s.part.First+i); err != nil {
			return err
		}
	}
	switch s.w.Kind {
	case contend.Crowd:
		return s.openCrowd(ctx)
	case contend.Holds:
		return s.openHolds(ctx)
	default:
		return s.newWorkers(ctx)
	}
}

func (s *session) prepare(ctx context.Context) error {
	if s.contender.Prepare == nil {
		return nil
	}
	rdb := s.clientConfig(0).Dial()
	defer func() { _ = rdb.Close() }()
	return s.contender.Prepare(ctx, rdb, s.w)
}

func (s *session) clientConfig(number int) contend.ClientConfig {
	return contend.ClientConfig{Target: s.target, Workload: s.w, Number: number}
}

func (s *session) connect(ctx context.Context, number int) error {
	c, err := s.contender.Open(ctx, s.clientConfig(number))
	if err != nil {
		return fmt.Errorf("workload: %s: %w", s.contender.Name, err)
	}
	s.clients = append(s.clients, c)
	return nil
}

// Run implements contend.Session.
func (s *session) Run(ctx context.Context, w contend.Workload) (contend.Result, error) {
	runtime.GC() // the run must not collect earlier garbage
	cpu, mallocs := measure.CPU(), measure.Mallocs()
	r, err := s.run(ctx, w)
	if err != nil {
		return r, fmt.Errorf("workload: %s, %s: %w", s.contender.Name, w.ID, err)
	}
	r.Allocs, r.CPU = measure.Mallocs()-mallocs, measure.CPU()-cpu
	r.Heap, r.Stack, r.Goroutines = s.memory.Heap, s.memory.Stack, s.memory.Goroutines
	return r, nil
}

func (s *session) run(ctx context.Context, w contend.Workload) (contend.Result, error) {
	switch w.Kind {
	case contend.Crowd:
		return s.runCrowd(ctx, w)
	case contend.Holds:
		return s.runHolds(ctx, w)
	default:
		return s.runSection(ctx, w)
	}
}

// Close implements contend.Session.
func (s *session) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if s.cancel != nil {
		s.cancel()
		_ = s.waiting.Wait() // cancelled waits return an error
	}
	err := s.releaseAll(ctx)
	for _, c := range s.clients {
		err = errors.Join(err, c.Close())
	}
	return err
}

const (
	closeTimeout = 30 * time.Second
	parallelism  = 64 // goroutines that acquire or release the holds
)

func (s *session) releaseAll(ctx context.Context) error {
	holds := s.holds
	s.holds = nil
	return forEach(len(holds), func(i int) error { return holds[i].Release(ctx) })
}

// forEach calls f for 0 to n-1 in up to parallelism goroutines. A goroutine stops at its first
// error.
func forEach(n int, f func(i int) error) error {
	var g errgroup.Group
	for first := range min(n, parallelism) {
		g.Go(func() error {
			for i := first; i < n; i += parallelism {
				if err := f(i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// KeyOf returns the name of key i of a workload.
func KeyOf(w contend.Workload, i int) string {
	if w.Keys <= 1 {
		return w.Name
	}
	return w.Name + ":" + strconv.Itoa(i)
}

// startMemoryGrowth returns a function that returns the growth of memory use since this call. The
// caller starts up to n goroutines in between.
//
// The runtime reuses the descriptors of goroutines that have ended. So startMemoryGrowth starts and
// ends n goroutines first: the descriptors of the caller's goroutines then do not count as growth.
func startMemoryGrowth(n int) func() measure.Memory {
	var all sync.WaitGroup
	end := make(chan struct{})
	for range n {
		all.Go(func() { <-end })
	}
	close(end)
	all.Wait()
	before := measure.MemoryNow()
	return func() measure.Memory { return measure.MemoryNow().Since(before) }
}
