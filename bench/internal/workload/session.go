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

// Part is the share of a workload that one process has: Clients of its clients, the first of which has the number First. The zero Part is
// all of it.
type Part struct {
	First   int `json:"first"`
	Clients int `json:"clients"`
}

// Open brings a contender to where measuring begins, with all clients in this process.
func Open(ctx context.Context, c contend.Contender, target contend.Target, w contend.Workload) (contend.Session, error) {
	return OpenPart(ctx, c, target, w, Part{}, new(Board))
}

// OpenPart is Open for a part. Of the processes that share a workload, the one with the first client opens first.
func OpenPart(ctx context.Context, c contend.Contender, target contend.Target, w contend.Workload, part Part, board *Board) (contend.Session, error) {
	if part.Clients == 0 {
		part.Clients = w.Clients
	}
	s := &session{contender: c, target: target, w: w, part: part, board: board}
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// session is a contender at work in this process.
type session struct {
	contender contend.Contender
	target    contend.Target
	w         contend.Workload
	part      Part
	board     *Board

	clients []contend.Client
	workers []*worker
	held    []contend.Hold // Holds: all of them; Crowd: that of the holder, if it is ours
	takes   contend.Result // what waiting or holding takes

	// Of a Crowd.
	holding visit
	waiting *errgroup.Group
	stop    context.CancelFunc // tells those who wait to leave
}

// open connects the clients, and does what else comes before measuring.
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
		return s.employ(ctx)
	}
}

func (s *session) prepare(ctx context.Context) error {
	if s.contender.Prepare == nil {
		return nil
	}
	rdb := s.setting(0).Dial()
	defer func() { _ = rdb.Close() }()
	return s.contender.Prepare(ctx, rdb, s.w)
}

func (s *session) setting(number int) contend.ClientConfig {
	return contend.ClientConfig{Target: s.target, Workload: s.w, Number: number}
}

func (s *session) connect(ctx context.Context, number int) error {
	c, err := s.contender.Open(ctx, s.setting(number))
	if err != nil {
		return fmt.Errorf("workload: %s: %w", s.contender.Name, err)
	}
	s.clients = append(s.clients, c)
	return nil
}

// Run runs the workload once.
func (s *session) Run(ctx context.Context, w contend.Workload) (contend.Result, error) {
	runtime.GC()
	cpu, mallocs := measure.CPU(), measure.Mallocs()
	r, err := s.run(ctx, w)
	if err != nil {
		return r, fmt.Errorf("workload: %s, %s: %w", s.contender.Name, w.ID, err)
	}
	r.Allocs, r.CPU = measure.Mallocs()-mallocs, measure.CPU()-cpu
	r.Heap, r.Stack, r.Goroutines = s.takes.Heap, s.takes.Stack, s.takes.Goroutines
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

// Close lets go of what is held and disconnects.
func (s *session) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	if s.stop != nil {
		s.stop()
		_ = s.waiting.Wait() // they were told to leave
	}
	err := s.releaseAll(ctx)
	for _, c := range s.clients {
		err = errors.Join(err, c.Close())
	}
	return err
}

const (
	closeLimit = 30 * time.Second
	atOnce     = 64 // goroutines that acquire or release many locks
)

func (s *session) releaseAll(ctx context.Context) error {
	held := s.held
	s.held = nil
	return each(len(held), func(i int) error { return held[i].Release(ctx) })
}

// each runs f for 0 to n-1, some at once.
func each(n int, f func(i int) error) error {
	var g errgroup.Group
	for first := range min(n, atOnce) {
		g.Go(func() error {
			for i := first; i < n; i += atOnce {
				if err := f(i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// KeyOf is the name of a workload's key i.
func KeyOf(w contend.Workload, i int) string {
	if w.Keys <= 1 {
		return w.Name
	}
	return w.Name + ":" + strconv.Itoa(i)
}

// growth measures what happens between its making and the call of it. Goroutines that ended before leave their descriptors to those that
// come: n are made here, and end, so that n that come cost nothing on the heap for being goroutines.
func growth(n int) func() measure.Memory {
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

func (s *session) note(m measure.Memory) {
	s.takes.Heap, s.takes.Stack, s.takes.Goroutines = m.Heap, m.Stack, m.Goroutines
}
