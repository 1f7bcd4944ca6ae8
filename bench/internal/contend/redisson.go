package contend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/redlatch/redlatch/interop/redisson"
)

const (
	javaWarmUp = 1500 * time.Millisecond // for Java to compile what a workload uses
	javaLimit  = time.Minute             // for what takes as long as Redisson takes
)

// javaFlags leave the compiler all its tiers. By the serial collector alone the heap in use is known to the byte.
var javaFlags = []string{"-Xmx1g", "-XX:+UseSerialGC"}

// redissonRemote has Redisson run workloads in one Java process.
type redissonRemote struct {
	log     io.Writer
	warming time.Duration // javaWarmUp
	version string

	mu     sync.Mutex
	driver *redisson.Driver   // guarded by mu; another one after it has been killed
	warm   map[warmthKey]bool // guarded by mu; what the process is warm for
}

type warmthKey struct {
	id        string
	primitive Primitive
}

// OpenRedisson starts Java, whose log goes to log. The error wraps redisson.ErrMissing where there is no Java, or no Maven to build with.
func OpenRedisson(ctx context.Context, log io.Writer) (Remote, error) {
	r := &redissonRemote{log: log, warming: javaWarmUp}
	d, err := r.running(ctx)
	if err != nil {
		return nil, err
	}
	r.version = d.Redisson()
	return r, nil
}

func (r *redissonRemote) Version() string { return r.version }

// Commands: what Redisson sends beside scripts, a DEL after each unlock, its scripts send too.
func (r *redissonRemote) Commands() []string { return nil }

func (r *redissonRemote) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.driver.Close()
}

// running returns the process, a new one if the last had to be killed.
func (r *redissonRemote) running(ctx context.Context) (*redisson.Driver, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.driver != nil {
		select {
		case <-r.driver.Done():
		default:
			return r.driver, nil
		}
	}
	d, err := redisson.Open(ctx, redisson.Options{JVM: javaFlags, Stderr: r.log})
	if err != nil {
		return nil, fmt.Errorf("contend: %w", err)
	}
	r.driver, r.warm = d, map[warmthKey]bool{}
	return d, nil
}

func (r *redissonRemote) Open(ctx context.Context, target Target, w Workload) (Session, error) {
	if target.Network != "tcp" {
		return nil, fmt.Errorf("contend: redisson has no %s sockets", target.Network)
	}
	ctx, cancel := context.WithTimeout(ctx, javaLimit)
	defer cancel()
	d, err := r.running(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.compile(ctx, d, target, w); err != nil {
		return nil, err
	}
	s, err := connectRedisson(ctx, d, target, w)
	if err != nil {
		return nil, err
	}
	if w.Kind != Section { // whose first run does that
		err = s.practise(ctx, w, r.warming/5)
	}
	if err == nil {
		s.load, err = d.Load(ctx, loadOf(w, s.clients))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("contend: %w", err), s.Close())
	}
	return s, nil
}

// compile has Java compile what w uses, by clients of its own, unless it has done so before.
func (r *redissonRemote) compile(ctx context.Context, d *redisson.Driver, target Target, w Workload) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := warmthKey{w.ID, w.Primitive}
	if r.warm[key] {
		return nil
	}
	s, err := connectRedisson(ctx, d, target, w)
	if err != nil {
		return err
	}
	if err := s.practise(ctx, w, r.warming); err != nil {
		return errors.Join(fmt.Errorf("contend: %w", err), s.Close())
	}
	r.warm[key] = true
	return s.Close()
}

func connectRedisson(ctx context.Context, d *redisson.Driver, target Target, w Workload) (*redissonSession, error) {
	s := &redissonSession{driver: d}
	for range clientsOf(w) {
		c, err := d.Connect(ctx, redissonConfig(target, w))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("contend: %w", err), s.Close())
		}
		s.clients = append(s.clients, c)
	}
	return s, nil
}

// clientsOf is how many clients a workload takes, the one that holds what a crowd waits for included.
func clientsOf(w Workload) int {
	if w.Kind == Crowd {
		return w.Clients + 1
	}
	return w.Clients
}

// Redisson's defaults, but for what a fair lock needs: each waiting thread subscribes to a channel of its own.
const (
	redissonConnections   = 64
	redissonIdle          = 24
	redissonSubscriptions = 50 // connections
	redissonChannels      = 5  // on each
)

func redissonConfig(target Target, w Workload) redisson.Config {
	idle := redissonIdle
	if w.Kind != Section { // all that will be there: what comes later would count as heap of those who wait or hold
		idle = redissonConnections
	}
	return redisson.Config{Addr: target.Addr, Watchdog: w.TTL, Server: map[string]any{
		"connectionPoolSize":             redissonConnections,
		"connectionMinimumIdleSize":      idle,
		"subscriptionConnectionPoolSize": redissonSubscriptions,
		"subscriptionsPerConnection":     max(redissonChannels, 2*w.Goroutines/redissonSubscriptions),
	}}
}

func loadOf(w Workload, clients []*redisson.Client) redisson.Load {
	return redisson.Load{
		Shape: string(w.Kind), Primitive: string(w.Primitive), Clients: clients, Threads: w.Goroutines, Name: w.Name, Keys: w.Keys,
		Permits: w.Permits, Reads: w.Reads, Inside: w.Inside, Turns: w.Turns, Queued: w.Queued,
	}
}

// redissonSession is a workload in Java.
type redissonSession struct {
	driver  *redisson.Driver
	clients []*redisson.Client
	load    *redisson.Session // nil until it is open
}

// practise enters and leaves sections on other keys for that long: afterwards the clients have the connections and buffers that it takes.
func (s *redissonSession) practise(ctx context.Context, w Workload, length time.Duration) error {
	w.Kind, w.Name, w.Keys, w.Queued, w.Goroutines = Section, w.Name+":java", min(w.Keys, redissonConnections), false, min(w.Goroutines, redissonConnections)
	load, err := s.driver.Load(ctx, loadOf(w, s.clients))
	if err != nil {
		return err
	}
	if _, err := load.Run(ctx, length); err != nil {
		return err
	}
	return load.Close(ctx)
}

// Run kills Java when something fails: what is left of it would be in the way of those who come next.
func (s *redissonSession) Run(ctx context.Context, w Workload) (Result, error) {
	ctx, cancel := context.WithTimeout(ctx, w.Duration+javaLimit)
	defer cancel()
	o, err := s.load.Run(ctx, w.Duration)
	if err != nil {
		return Result{}, fmt.Errorf("contend: %w", errors.Join(err, s.driver.Kill()))
	}
	return s.result(w, o), nil
}

func (s *redissonSession) result(w Workload, o redisson.Outcome) Result {
	usage := s.load.Usage()
	r := Result{
		Elapsed: o.Took, Ops: o.Operations, HandOvers: o.HandOvers, Reads: o.Reads, PerWorker: o.PerThread, Waits: nanos(o.Waits),
		AllOps: o.AllOperations, AllHandOvers: o.AllHandOvers, Overlaps: o.Overlaps, Lost: o.LostUpdates, CPU: o.CPU,
		Unseen: unlocks(w, o), Stuck: o.Stuck, Heap: usage.Heap, Goroutines: usage.Threads,
	}
	if w.Kind == Crowd {
		r.Elapsed, r.Drain = w.Duration, o.Took
	}
	if w.Turns {
		r.HandOverTimes = nanos(o.HandOverTimes)
	}
	return r
}

// unlocks is how often a lock, rather than a permit, has been given back: each time Redisson also deletes the key that lets it repeat the
// unlock.
func unlocks(w Workload, o redisson.Outcome) int64 {
	switch {
	case w.Primitive == Semaphore, w.Primitive == Permits:
		return 0
	case w.Kind == Crowd: // by the holder, too
		return o.AllOperations + 1
	default:
		return o.AllOperations
	}
}

func nanos(durations []time.Duration) []int64 {
	all := make([]int64, len(durations))
	for i, d := range durations {
		all[i] = d.Nanoseconds()
	}
	return all
}

// Close also tells when holds were found lost. Where Java is gone, so is all that it had open.
func (s *redissonSession) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), javaLimit)
	defer cancel()
	var err error
	if s.load != nil {
		err = s.load.Close(ctx)
	}
	for _, c := range s.clients {
		err = errors.Join(err, c.Close(ctx))
	}
	if err != nil && !errors.Is(err, redisson.ErrEnded) {
		return fmt.Errorf("contend: %w", err)
	}
	return nil
}
