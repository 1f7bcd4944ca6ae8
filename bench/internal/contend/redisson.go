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
	javaWarmUp  = 1500 * time.Millisecond // lets Java compile the code of a workload
	javaTimeout = time.Minute             // for operations whose length depends on Redisson
)

// javaFlags keep all compiler tiers. Only the serial collector reports the heap in use exactly.
var javaFlags = []string{"-Xmx1g", "-XX:+UseSerialGC"}

// redissonRemote runs Redisson's workloads in one Java process.
type redissonRemote struct {
	log     io.Writer
	warmUp  time.Duration // javaWarmUp; shorter in tests
	version string

	mu     sync.Mutex
	driver *redisson.Driver   // guarded by mu; replaced after the process was killed
	warm   map[warmUpKey]bool // guarded by mu; workloads that the current process has compiled
}

type warmUpKey struct {
	id        string
	primitive Primitive
}

// OpenRedisson starts Java, which logs to log. If Java or Maven is not installed, the error wraps
// redisson.ErrMissing.
func OpenRedisson(ctx context.Context, log io.Writer) (Remote, error) {
	r := &redissonRemote{log: log, warmUp: javaWarmUp}
	d, err := r.ensureRunning(ctx)
	if err != nil {
		return nil, err
	}
	r.version = d.Redisson()
	return r, nil
}

func (r *redissonRemote) Version() string { return r.version }

// Commands returns nil. Besides scripts, Redisson sends only a DEL after each unlock. Its scripts
// also call DEL, so Result.Unseen counts these.
func (r *redissonRemote) Commands() []string { return nil }

func (r *redissonRemote) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.driver.Close()
}

// ensureRunning returns the Java process. It starts a new one if the last one was killed.
func (r *redissonRemote) ensureRunning(ctx context.Context) (*redisson.Driver, error) {
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
	r.driver, r.warm = d, map[warmUpKey]bool{}
	return d, nil
}

func (r *redissonRemote) Open(ctx context.Context, target Target, w Workload) (Session, error) {
	if target.Network != "tcp" {
		return nil, fmt.Errorf("contend: redisson does not support %s sockets", target.Network)
	}
	ctx, cancel := context.WithTimeout(ctx, javaTimeout)
	defer cancel()
	d, err := r.ensureRunning(ctx)
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
	if w.Kind != Section { // the first Run of a Section warms up its clients
		err = s.warmUp(ctx, w, r.warmUp/5)
	}
	if err == nil {
		s.load, err = d.Load(ctx, loadOf(w, s.clients))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("contend: %w", err), s.Close())
	}
	return s, nil
}

// compile makes Java compile the code that w uses, once per process. It uses clients of its own, so
// that the measured ones start fresh.
func (r *redissonRemote) compile(ctx context.Context, d *redisson.Driver, target Target, w Workload) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := warmUpKey{w.ID, w.Primitive}
	if r.warm[key] {
		return nil
	}
	s, err := connectRedisson(ctx, d, target, w)
	if err != nil {
		return err
	}
	if err := s.warmUp(ctx, w, r.warmUp); err != nil {
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

// clientsOf returns the number of clients that w needs, including the holder of a crowd's lock.
func clientsOf(w Workload) int {
	if w.Kind == Crowd {
		return w.Clients + 1
	}
	return w.Clients
}

// Redisson's defaults.
const (
	redissonConnections   = 64
	redissonIdle          = 24
	redissonSubscriptions = 50 // connections
	redissonChannels      = 5  // per subscription connection
)

// redissonConfig returns Redisson's defaults, with two exceptions. A fair lock gets more channels,
// because each waiting thread subscribes to its own. Crowd and Holds open all connections at once,
// because later ones would count as heap of the waiters or holds.
func redissonConfig(target Target, w Workload) redisson.Config {
	idle := redissonIdle
	if w.Kind != Section {
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
		Shape: string(w.Kind), Primitive: string(w.Primitive), Clients: clients, Threads: w.Goroutines,
		Name: w.Name, Keys: w.Keys, Permits: w.Permits, Reads: w.Reads, Inside: w.Inside,
		Turns: w.Turns, Queued: w.Queued,
	}
}

// redissonSession is a workload in the Java process.
type redissonSession struct {
	driver  *redisson.Driver
	clients []*redisson.Client
	load    *redisson.Session // nil until it is open
}

// warmUp runs sections on other keys for the given time. Afterwards the clients have the
// connections and buffers that w needs.
func (s *redissonSession) warmUp(ctx context.Context, w Workload, length time.Duration) error {
	w.Kind, w.Name, w.Queued = Section, w.Name+":java", false
	w.Keys, w.Goroutines = min(w.Keys, redissonConnections), min(w.Goroutines, redissonConnections)
	load, err := s.driver.Load(ctx, loadOf(w, s.clients))
	if err != nil {
		return err
	}
	if _, err := load.Run(ctx, length); err != nil {
		return err
	}
	return load.Close(ctx)
}

// Run kills the Java process on failure, because remaining threads would disturb later
// measurements.
func (s *redissonSession) Run(ctx context.Context, w Workload) (Result, error) {
	ctx, cancel := context.WithTimeout(ctx, w.Duration+javaTimeout)
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
		Elapsed: o.Took,
		Ops:     o.Operations, HandOffs: o.HandOffs, Reads: o.Reads,
		PerWorker: o.PerThread, Waits: nanoseconds(o.Waits),
		AllOps: o.AllOperations, AllHandOffs: o.AllHandOffs, Unseen: unlockDELs(w, o), Stuck: o.Stuck,
		Overlaps: o.Overlaps, Lost: o.LostUpdates,
		CPU: o.CPU, Heap: usage.Heap, Goroutines: usage.Threads,
	}
	if w.Kind == Crowd {
		r.Elapsed, r.Drain = w.Duration, o.Took
	}
	if w.Turns {
		r.HandOffTimes = nanoseconds(o.HandOffTimes)
	}
	return r
}

// unlockDELs returns the number of DELs that Redisson's clients sent. A client sends one after each
// unlock of a lock, to delete the key that makes the unlock idempotent. Permits have no such key.
func unlockDELs(w Workload, o redisson.Outcome) int64 {
	switch {
	case w.Primitive == Semaphore, w.Primitive == Permits:
		return 0
	case w.Kind == Crowd: // plus the holder's unlock
		return o.AllOperations + 1
	default:
		return o.AllOperations
	}
}

func nanoseconds(durations []time.Duration) []int64 {
	all := make([]int64, len(durations))
	for i, d := range durations {
		all[i] = d.Nanoseconds()
	}
	return all
}

// Close also returns an error if holds were lost. It returns nil if the Java process has ended.
func (s *redissonSession) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), javaTimeout)
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
