package demo

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/cmd/redlatch/internal/timeline"
	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

// stage is the environment of one scene: servers, a unique key prefix, and the report.
type stage struct {
	*report

	scene   string
	nodes   nodes
	prefix  string // of all names in this scene
	started time.Time

	mu        sync.Mutex
	processes []*process
	events    []timeline.Event
}

// newStage makes the stage of a scene. Each stage has a different key prefix.
func newStage(r *report, n nodes, prefix, scene string) *stage {
	var id [6]byte
	_, _ = rand.Read(id[:]) // never fails
	return &stage{
		report: r, scene: scene, nodes: n, started: time.Now(),
		prefix: fmt.Sprintf("%s:%s:%s:", prefix, hex.EncodeToString(id[:]), scene),
	}
}

// process simulates one process: a client with its own connections.
type process struct {
	*primitives.Client
	name string
	rdb  *redis.Client
	link *locktest.Link // its network path to the server

	waits   chan struct{} // receives an element when an acquisition starts to wait
	renewed chan struct{} // receives an element when a hold is renewed

	confirmed atomic.Int64 // when Redis last confirmed a hold, in nanoseconds since 1970
}

// newProcess makes a process that uses the first server.
func (s *stage) newProcess(name string, opts ...primitives.ClientOption) (*process, error) {
	return s.newProcessOn(s.nodes[0], name, opts...)
}

// newProcessOn makes a process that uses the given server.
func (s *stage) newProcessOn(node *redis.Options, name string, opts ...primitives.ClientOption) (*process, error) {
	o := *node
	dial := o.Dialer
	if dial == nil {
		dial = redis.NewDialer(node)
	}
	p := &process{
		name: name, link: locktest.NewLink(dial),
		waits: make(chan struct{}, 100), renewed: make(chan struct{}, 1),
	}
	o.Dialer = p.link.Dial
	p.rdb = redis.NewClient(&o)
	// Nobody would delete the names of clients: the connections are closed first, see cleanUp.
	opts = append(opts, primitives.WithClientName(""), primitives.WithPrefix(s.prefix), primitives.WithObserver(p.observe),
		primitives.WithObserver(func(e primitives.Event) { s.record(name, e) }))
	c, err := primitives.New(p.rdb, opts...)
	if err != nil {
		return nil, err
	}
	p.Client = c
	s.mu.Lock()
	defer s.mu.Unlock()
	s.processes = append(s.processes, p)
	return p, nil
}

// newProcesses makes one process per name.
func (s *stage) newProcesses(names ...string) ([]*process, error) {
	var all []*process
	for _, name := range names {
		p, err := s.newProcess(name)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

// observe signals events that a scene may wait for. It must not block, because the client calls it
// in its own goroutines, so it drops events that nobody has read.
func (p *process) observe(e primitives.Event) {
	var signal chan struct{}
	switch e.Kind {
	case primitives.EventWait:
		signal = p.waits
	case primitives.EventAcquired:
		p.confirmed.Store(time.Now().UnixNano())
		return
	case primitives.EventRenewed:
		p.confirmed.Store(time.Now().UnixNano())
		signal = p.renewed
	default:
		return
	}
	select {
	case signal <- struct{}{}:
	default:
	}
}

// kill stops a process as kill -9 does: it sends no more commands and releases nothing. Its hold,
// which has the TTL, stays in Redis until that ends.
func (s *stage) kill(p *process, ttl time.Duration) {
	p.link.Cut()
	s.mu.Lock()
	s.events = append(s.events, timeline.Event{
		At: time.Now(), Process: p.name, Event: timeline.Killed,
		Stays: time.Unix(0, p.confirmed.Load()).Add(ttl), Err: "left to its lease",
	})
	s.mu.Unlock()
	_ = p.rdb.Close()
}

// acquisition is the result of an acquisition, and the time at which it ended.
type acquisition struct {
	hold *primitives.Hold
	at   time.Time
	err  error
}

// startWaiting starts an acquisition that p must wait for, and returns once p waits. It is an error
// if p does not have to wait.
func startWaiting(p *process, acquire func() (*primitives.Hold, error)) (<-chan acquisition, error) {
	done := make(chan acquisition, 1)
	go func() {
		hold, err := acquire()
		done <- acquisition{hold, time.Now(), err}
	}()
	select {
	case <-p.waits:
		return done, nil
	case a := <-done:
		if a.err == nil {
			a.err = fmt.Errorf("%s did not have to wait", p.name)
		}
		return nil, a.err
	}
}

// isFree reports whether an acquisition succeeds at once. It releases what it acquires.
func isFree(ctx context.Context, handle interface {
	TryAcquire(ctx context.Context, opts ...primitives.Option) (*primitives.Hold, error)
},
) (bool, error) {
	hold, err := handle.TryAcquire(ctx)
	switch {
	case errors.Is(err, primitives.ErrNotAcquired):
		return false, nil
	case err != nil:
		return false, err
	}
	return true, hold.Release(ctx)
}

// occupancy counts goroutines in critical sections. It is safe for concurrent use. It is atomic, so
// that it detects overlaps without the lock under test.
type occupancy struct {
	current, peak, entries, violations atomic.Int64

	limit int64 // an entry that makes current exceed limit is a violation
}

// enter counts an entry and returns the number of entries so far.
func (o *occupancy) enter() (nth int64) {
	current := o.current.Add(1)
	if current > o.limit {
		o.violations.Add(1)
	}
	for peak := o.peak.Load(); current > peak && !o.peak.CompareAndSwap(peak, current); peak = o.peak.Load() {
	}
	return o.entries.Add(1)
}

func (o *occupancy) leave() { o.current.Add(-1) }

// say prints an event: when it happened, which process it concerns, and what it is.
func (s *stage) say(who, format string, args ...any) {
	lead := fmt.Sprintf("  %7.3f s  %-7s ", time.Since(s.started).Seconds(), who)
	s.printf("%s", wrap(lead, fmt.Sprintf(format, args...)))
}

// check records a check: the measured value, the wanted value, and whether it passed.
func (s *stage) check(what string, measured, wanted any, ok bool) {
	s.add(s.scene, what, fmt.Sprint(measured), fmt.Sprint(wanted), ok)
}

// equal checks that a number has the wanted value.
func (s *stage) equal(what string, measured, wanted int64) {
	s.check(what, measured, wanted, measured == wanted)
}

// confirm checks that a statement is true.
func (s *stage) confirm(what string, ok bool) { s.check(what, yes(ok), "yes", ok) }

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// cleanUpTimeout bounds the search for keys to remove, which is slow in a large database. Remaining
// keys expire within minutes.
const cleanUpTimeout = 5 * time.Second

// cleanUp closes all processes and removes all keys of the scene. That includes the keys that
// remember requests, because no copy of a request can arrive once all connections are closed.
func (s *stage) cleanUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
	defer cancel()
	cancelled, cancelNow := context.WithCancel(ctx)
	cancelNow()
	// Close all connections before the first client: a joint lock's client waits for commands that
	// it sends through other clients.
	for _, p := range s.processes {
		_ = p.rdb.Close()
		p.link.Mend() // otherwise a pending command or dial waits until it times out
	}
	for _, p := range s.processes {
		_ = p.Close(cancelled) // does not wait for the holds of killed processes
	}
	var failed []error
	for _, node := range slices.Compact(slices.Clone(s.nodes)) {
		if err := s.removeKeys(ctx, node); err != nil && ctx.Err() == nil {
			failed = append(failed, fmt.Errorf("remove keys: %w", err))
		}
	}
	return errors.Join(failed...)
}

// removeKeys removes the scene's keys from one server.
func (s *stage) removeKeys(ctx context.Context, node *redis.Options) error {
	rdb := redis.NewClient(node)
	defer func() { _ = rdb.Close() }()
	keys := rdb.Scan(ctx, 0, "*"+s.prefix+"*", 1000).Iterator()
	for keys.Next(ctx) {
		if err := rdb.Unlink(ctx, keys.Val()).Err(); err != nil {
			return err
		}
	}
	return keys.Err()
}
