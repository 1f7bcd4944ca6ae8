package torture

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// Config says what to test, with what, and for how long. The zero values of its durations and numbers
// stand for the defaults.
type Config struct {
	Duration   time.Duration // default: one round
	Round      time.Duration // length of a round; default 20 s
	Seed       uint64        // of the first round; each further round adds 1
	Faults     []string      // default: all that can be injected
	Primitives []string      // default: all
	Topology   string        // of servers that are started; default Single. Ignored with an Endpoint
	Endpoint   *Endpoint     // servers of somebody else
	Prefix     string        // of all names
	Every      [2]time.Duration
	Processes  int
	Sessions   int           // goroutines of each process
	TTL        time.Duration // of half of the names; the others have four times as much
	Timelines  string        // directory for the timelines of violations; default: the current one
	Progress   func(Progress)
	// Client returns the command that starts a client process, which calls Worker.
	Client func() *exec.Cmd

	defect string
	drain  time.Duration // how long sessions may take to end
	long   int           // one hold in so many lasts
	until  []string      // stop after the first round in which one of these checks has failed
}

// Progress is how far a run is.
type Progress struct {
	Elapsed     time.Duration
	Round       int
	Operations  int
	Faults      int
	Violations  int
	LongestWait time.Duration
}

// Result is what a run has found.
type Result struct {
	Topology    string         `json:"topology"`
	Seed        uint64         `json:"seed"`
	Rounds      int            `json:"rounds"`
	Elapsed     time.Duration  `json:"-"`
	ElapsedMS   int64          `json:"elapsed_ms"`
	Operations  map[string]int `json:"operations"` // by primitive
	Outcomes    map[string]int `json:"outcomes"`
	Unknown     int            `json:"unknown"`
	Faults      map[string]int `json:"faults"`
	LeftOut     []string       `json:"left_out,omitempty"` // faults that cannot be injected here
	Lost        int            `json:"lost"`               // holds
	LongestWait time.Duration  `json:"-"`
	LongestMS   int64          `json:"longest_wait_ms"`
	Undecided   int            `json:"undecided"` // histories of a name that porcupine could not decide in time
	Violations  []Violation    `json:"violations"`
	Logs        []string       `json:"logs,omitempty"` // of the rounds with violations
}

// Total is the number of operations of all primitives.
func (r *Result) Total() int {
	sum := 0
	for _, n := range r.Operations {
		sum += n
	}
	return sum
}

// NoFaults in place of faults injects none.
const NoFaults = "none"

// ErrConfig is an error of a Config.
var ErrConfig = errors.New("torture: bad configuration")

// ErrUnreachable means that a given Redis does not answer, or refuses.
var ErrUnreachable = errors.New("torture: cannot use Redis")

func (c Config) withDefaults() (Config, error) {
	set := func(d *time.Duration, value time.Duration) {
		if *d == 0 {
			*d = value
		}
	}
	set(&c.Duration, 20*time.Second)
	set(&c.Round, min(c.Duration, 20*time.Second))
	set(&c.TTL, 1500*time.Millisecond)
	set(&c.drain, drainLimit)
	set(&c.Every[0], 2*time.Second)
	set(&c.Every[1], 5*time.Second)
	if c.Processes == 0 {
		c.Processes = 4
	}
	if c.long == 0 {
		c.long = 12
	}
	if c.Sessions == 0 {
		c.Sessions = 10
	}
	if c.Topology == "" {
		c.Topology = Single
	}
	if c.Timelines == "" {
		c.Timelines = "."
	}
	if c.Progress == nil {
		c.Progress = func(Progress) {}
	}
	if len(c.Primitives) == 0 {
		c.Primitives = Primitives
	}
	for _, p := range c.Primitives {
		if !slices.Contains(Primitives, p) {
			return c, fmt.Errorf("%w: no primitive %q; there are %s", ErrConfig, p, strings.Join(Primitives, ", "))
		}
	}
	known := []string{NoFaults}
	for _, f := range faults() {
		known = append(known, f.name)
	}
	for _, f := range c.Faults {
		if !slices.Contains(known, f) {
			return c, fmt.Errorf("%w: no fault %q; there are %s", ErrConfig, f, strings.Join(known, ", "))
		}
	}
	if !slices.Contains(Topologies, c.Topology) {
		return c, fmt.Errorf("%w: no topology %q; there are %s", ErrConfig, c.Topology, strings.Join(Topologies, ", "))
	}
	if c.Duration < 0 || c.Client == nil {
		return c, fmt.Errorf("%w: a negative duration, or no client", ErrConfig)
	}
	return c, nil
}

// runner is a run.
type runner struct {
	cfg     Config
	d       *deployment
	client  *primitives.Client // of the operator
	enabled []fault
	nonce   string // makes names of different runs differ
	began   time.Time
	result  *Result
}

// Run tests the library. It returns what it has found, and an error if it could not go on. When ctx ends,
// the current round is dropped.
func Run(ctx context.Context, c Config) (*Result, error) {
	if !supported {
		return nil, fmt.Errorf("torture: %w on this system", errors.ErrUnsupported)
	}
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	var d *deployment
	if c.Endpoint != nil {
		d, err = connect(*c.Endpoint)
	} else {
		d, err = start(c.Topology)
	}
	if err != nil {
		return nil, err
	}
	defer d.close()
	r := &runner{cfg: c, d: d, nonce: fmt.Sprintf("%x", time.Now().UnixMilli()), began: time.Now()}
	if r.client, err = operator(d.rdb); err != nil {
		return nil, err
	}
	defer func() {
		ctx, cancel := soon()
		defer cancel()
		_ = r.client.Close(ctx)
	}()
	r.result = &Result{
		Topology: d.kind, Seed: c.Seed, Operations: map[string]int{}, Outcomes: map[string]int{}, Faults: map[string]int{},
		Violations: []Violation{},
	}
	for _, f := range faults() {
		wanted := len(c.Faults) == 0 || slices.Contains(c.Faults, f.name)
		switch {
		case wanted && f.possible(d):
			r.enabled = append(r.enabled, f)
		case wanted:
			r.result.LeftOut = append(r.result.LeftOut, f.name)
		}
	}
	for seed := c.Seed; ctx.Err() == nil && (seed == c.Seed || time.Since(r.began) < c.Duration); seed++ {
		if err = r.round(ctx, seed); err != nil {
			break
		}
		if slices.ContainsFunc(r.result.Violations, func(v Violation) bool { return slices.Contains(c.until, v.Check) }) {
			break
		}
	}
	r.result.Elapsed = time.Since(r.began)
	r.result.ElapsedMS, r.result.LongestMS = r.result.Elapsed.Milliseconds(), r.result.LongestWait.Milliseconds()
	return r.result, err
}

// round is a part of a run with its own names, client processes and history. It ends with all holds
// released, so that what is left behind can be seen.
type round struct {
	*runner

	seed      uint64
	tag       string
	rand      *rand.Rand // of the goroutine that injects faults
	deck      []*fault   // the faults to come, shuffled: all kinds come equally often
	slots     []*slot
	faults    sync.WaitGroup
	copies    sync.WaitGroup // late copies of commands
	healing   context.Context
	heal      context.CancelFunc
	exclusive exclusive
	losses    atomic.Int64
	changing  atomic.Int64 // faults that make replicas take over
	began     int64

	mu         sync.Mutex
	windows    []*window
	delivered  []lateCopy
	processes  []*process
	counts     map[string]int
	generation int64
	err        error
}

// slot is a place for a client process: a killed one is replaced.
type slot struct {
	proxies []*redistest.Proxy
	routes  map[string]string
	mu      sync.Mutex
	process *process
}

func (s *slot) current() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

func (s *slot) set(p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.process = p
}

// fail ends the round: the harness itself could not go on.
func (r *round) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = errors.Join(r.err, err)
	r.heal()
}

func (r *round) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

func (r *round) injected(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[name]++
}

// round runs one round and adds what it found to the result.
func (r *runner) round(ctx context.Context, seed uint64) error {
	rd := &round{
		runner: r, seed: seed, tag: fmt.Sprintf("%storture:%s:%d", r.cfg.Prefix, r.nonce, seed),
		rand: seeded(seed, 1), counts: map[string]int{},
	}
	rd.healing, rd.heal = context.WithCancel(ctx)
	defer rd.heal()
	defer rd.stopAll()
	if err := rd.startClients(); err != nil {
		return err
	}
	time.AfterFunc(r.cfg.Round, rd.heal)
	rd.began = monotonic()
	probing, stopProbes := context.WithCancel(context.Background())
	var probes sync.WaitGroup
	for _, target := range r.d.targets {
		probes.Go(func() { rd.probe(probing, target) })
	}
	if r.d.own && r.d.kind != Single {
		probes.Go(func() { rd.watchMasters(probing) })
	}
	defer probes.Wait()
	defer stopProbes()
	rd.injectFaults()
	rd.faults.Wait()
	if err := rd.failure(); err != nil || ctx.Err() != nil {
		return err
	}
	violations := rd.drain()
	rd.copies.Wait()
	left := rd.leftovers()
	for _, s := range rd.slots {
		p := s.current()
		if !p.alive() {
			continue // drain has killed it
		}
		if err := p.close(15 * time.Second); err != nil {
			violations = append(violations, Violation{Check: checkProcess, Detail: err.Error()})
		}
	}
	stopProbes()
	probes.Wait()
	h := rd.history()
	found, undecided := h.check()
	violations = slices.Concat(violations, found, left)
	r.count(rd, h, len(undecided))
	return r.report(rd, h, violations)
}

func (r *round) startClients() error {
	for range r.cfg.Processes {
		s := &slot{routes: map[string]string{}}
		for _, target := range r.d.targets {
			p, err := redistest.StartProxy(target, r.d.connectTo(target))
			if err != nil {
				return err
			}
			s.proxies = append(s.proxies, p)
			s.routes[target] = p.Addr()
		}
		r.slots = append(r.slots, s)
		if err := r.startClient(s); err != nil {
			return err
		}
	}
	for _, p := range r.processes {
		select {
		case <-p.ready:
		case <-p.exited:
			return p.failure(errors.New("it ended by itself"))
		case <-time.After(startTimeout):
			return fmt.Errorf("torture: process %d has not started within %v", p.id, startTimeout)
		}
	}
	return nil
}

func (r *round) startClient(s *slot) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, err := startProcess(r.cfg.Client(), s, setup{
		Process: len(r.processes), Seed: r.seed, Tag: r.tag, Primitives: r.cfg.Primitives, Sessions: r.cfg.Sessions,
		Long: r.cfg.long, TTL: r.cfg.TTL, Defect: r.cfg.defect, Endpoint: clientEndpoint{
			Addrs: r.d.Addrs, Master: r.d.Master, Cluster: r.d.Cluster,
			Username: r.d.Username, Password: r.d.Password, DB: r.d.DB, Routes: s.routes,
		},
	})
	if err != nil {
		return err
	}
	r.processes = append(r.processes, p)
	s.set(p)
	return p.send(order{Do: "generation", Generation: r.generation})
}

// replace starts a new process in the place of one that was killed. A plain semaphore's permits of a dead
// process stay taken, so all processes go on with new semaphores.
func (r *round) replace(p *process) {
	r.nextGeneration()
	if err := r.startClient(p.slot); err != nil {
		r.fail(err)
	}
}

// nextGeneration makes the clients use new pools and latches.
func (r *round) nextGeneration() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.generation++
	for _, s := range r.slots {
		if p := s.current(); p != nil && p.alive() {
			_ = p.send(order{Do: "generation", Generation: r.generation}) // a dead process is noticed elsewhere
		}
	}
}

// stopAll ends what is left of the round.
func (r *round) stopAll() {
	r.heal()
	r.faults.Wait()
	for _, p := range r.processes {
		p.kill()
		<-p.exited
	}
	r.copies.Wait()
	for _, s := range r.slots {
		for _, p := range s.proxies {
			p.Close()
		}
	}
}

// injectFaults injects faults until the round heals.
func (r *round) injectFaults() {
	last := time.Now()
	for {
		r.sleep(between(r.rand, r.cfg.Every[0], r.cfg.Every[1]))
		if r.healing.Err() != nil {
			return
		}
		if time.Since(last) > time.Second {
			last = time.Now()
			r.cfg.Progress(r.progress())
		}
		if len(r.enabled) > 0 {
			r.inject(r.next())
		}
	}
}

// slowAfter is how late an answer of a server is that may delay its clients.
const slowAfter = 100 * time.Millisecond

// faultStall is no injected fault: a server did not answer for a while, such as when its disk is slow.
const faultStall = "server stall"

// probe notes when a server answers late.
func (r *round) probe(ctx context.Context, target string) {
	rdb := newClient(&redis.UniversalOptions{
		Addrs: []string{target}, Username: r.d.Username, Password: r.d.Password, TLSConfig: r.d.TLS,
		MaxRetries: -1, PoolSize: 1, DialTimeout: time.Second,
	})
	defer func() { _ = rdb.Close() }()
	for ctx.Err() == nil {
		begin := monotonic()
		err := rdb.Ping(ctx).Err()
		if end := monotonic(); end-begin > int64(slowAfter) && (err == nil || ctx.Err() == nil) {
			r.mu.Lock()
			r.windows = append(r.windows, &window{interval: interval{begin, end}, fault: faultStall, process: -1})
			r.counts[faultStall]++
			r.mu.Unlock()
		}
		select {
		case <-ctx.Done():
		case <-time.After(slowAfter / 4):
		}
	}
}

// next draws a fault.
func (r *round) next() *fault {
	if len(r.deck) == 0 {
		for i := range r.enabled {
			r.deck = append(r.deck, &r.enabled[i])
		}
		r.rand.Shuffle(len(r.deck), func(i, j int) { r.deck[i], r.deck[j] = r.deck[j], r.deck[i] })
	}
	f := r.deck[0]
	r.deck = r.deck[1:]
	return f
}

func (r *round) progress() Progress {
	p := Progress{
		Elapsed: time.Since(r.runner.began), Round: r.result.Rounds + 1, Operations: r.result.Total(),
		Violations: len(r.result.Violations), LongestWait: r.result.LongestWait,
	}
	for _, n := range r.result.Faults {
		p.Faults += n
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.counts {
		p.Faults += n
	}
	for _, c := range r.processes {
		c.mu.Lock()
		p.Operations += len(c.records) / 2
		c.mu.Unlock()
	}
	return p
}

// drainLimit is how long sessions may take to end: a wait, a release and a repetition of each.
const drainLimit = 30 * time.Second

// drain waits until all sessions have ended.
func (r *round) drain() (out []Violation) {
	for _, s := range r.slots {
		_ = s.current().send(order{Do: "drain"}) // a dead process is noticed below
	}
	limit := time.After(r.cfg.drain)
	for _, s := range r.slots {
		p := s.current()
		select {
		case <-p.drained:
		case <-p.exited:
			out = append(out, Violation{Check: checkProcess, Detail: p.failure(errors.New("it ended by itself")).Error()})
		case <-limit:
			out = append(out, Violation{
				Check: checkForever, Detail: fmt.Sprintf("process %d: calls have not returned for %v", p.id, r.cfg.drain),
			})
			p.kill()
			<-p.exited
			limit = time.After(0)
		}
	}
	return out
}

// history collects what the processes have recorded.
func (r *round) history() *history {
	h := &history{tag: r.tag, ttl: r.cfg.TTL, begin: r.began, stalls: map[int][]interval{}}
	for _, w := range r.windows {
		h.windows = append(h.windows, *w)
	}
	h.copies = r.delivered
	for _, p := range r.processes {
		p.mu.Lock()
		h.add(p.id, p.records, p.died)
		p.mu.Unlock()
	}
	h.end = monotonic()
	return h
}

// count adds a round to the result.
func (r *runner) count(rd *round, h *history, undecided int) {
	res := r.result
	res.Rounds++
	res.Undecided += undecided
	for name, n := range rd.counts {
		res.Faults[name] += n
	}
	for _, o := range h.ops {
		res.Operations[o.call.Primitive]++
		res.Outcomes[o.outcome()]++
		if o.outcome() == outcomeUnknown {
			res.Unknown++
		}
		if o.ended != nil && o.ended.Outcome == outcomeLost {
			res.Lost++
		}
		if o.holds() {
			res.LongestWait = max(res.LongestWait, time.Duration(o.ret.At-o.call.At))
		}
	}
}

// leftovers waits until nothing of the round is left in Redis, and returns what stays although it must not.
func (r *round) leftovers() []Violation {
	limit := int64(3 * time.Second)
	begin := monotonic()
	until := begin + limit
	r.mu.Lock()
	for _, w := range r.windows {
		if w.fault == faultKill || w.lossy { // what a dead process held, or a server forgot to release, expires
			until = max(until, w.end+4*int64(r.cfg.TTL)+int64(waiterTimeout)+limit)
		}
	}
	r.mu.Unlock()
	for {
		left, err := r.left()
		switch {
		case err == nil && len(left) == 0:
			return nil
		case monotonic() < until:
			time.Sleep(50 * time.Millisecond)
		case err != nil:
			return []Violation{{Check: checkLeft, Detail: "cannot look: " + err.Error()}}
		default:
			slices.Sort(left)
			return []Violation{{Check: checkLeft, Detail: strings.Join(slices.Compact(left), "; ")}}
		}
	}
}

// left returns what is left of the round in Redis although nobody holds or waits.
func (r *round) left() (out []string, err error) {
	ctx, cancel := soon()
	defer cancel()
	var mu sync.Mutex
	err = r.d.eachNode(ctx, func(ctx context.Context, rdb *redis.Client) error {
		found, err := r.leftOn(ctx, rdb)
		mu.Lock()
		defer mu.Unlock()
		out = append(out, found...)
		return err
	})
	return out, err
}

func (r *round) leftOn(ctx context.Context, rdb *redis.Client) (out []string, err error) {
	keys := rdb.Scan(ctx, 0, "*"+r.tag+"*", 1000).Iterator()
	for keys.Next(ctx) {
		key := keys.Val()
		switch {
		case strings.HasPrefix(key, "redisson_lock_token:"): // counts for ever
		case strings.HasPrefix(key, "redisson_unlock_latch:"), strings.HasPrefix(key, "redlatch_rwlock_claim:"),
			strings.Contains(key, ":rwlock_timeout:") && r.hadOperators(): // the operator knows only the lock's key
			if ttl := rdb.PTTL(ctx, key).Val(); ttl < 0 && ttl != -2 {
				out = append(out, fmt.Sprintf("key %s without a TTL", key))
			}
		case r.isPool(key):
			n, err := rdb.Get(ctx, key).Int()
			if low, high := r.permitsLeft(key); err == nil && (n < low || n > high) {
				out = append(out, fmt.Sprintf("%s has %d permits of %d", key, n, poolSize))
			}
		case r.hadDeaths() && (strings.HasPrefix(key, "redisson_lock_") || strings.HasPrefix(key, "redlatch_lock_") ||
			strings.HasSuffix(key, ":timeout")):
			// the queue of a fair lock where nobody has waited since a waiter died; permits of a dead process
		default:
			out = append(out, "key "+key)
		}
	}
	if err := keys.Err(); err != nil {
		return nil, err
	}
	for _, ask := range []string{"CHANNELS", "SHARDCHANNELS"} {
		channels, err := rdb.Do(ctx, "PUBSUB", ask, "*"+r.tag+"*").StringSlice()
		if err != nil {
			return nil, err
		}
		for _, channel := range channels {
			out = append(out, "subscription to "+channel)
		}
	}
	return out, nil
}

// isPool reports whether key is the count of a semaphore or a latch.
func (r *round) isPool(key string) bool {
	return strings.HasPrefix(key, r.tag+":semaphore:") || strings.HasPrefix(key, r.tag+":permits:") ||
		strings.HasPrefix(key, r.tag+":latch:")
}

// permitsLeft returns how many permits a pool may have once nobody holds any.
func (r *round) permitsLeft(key string) (low, high int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case strings.Contains(key, ":latch:"), !strings.HasSuffix(key, fmt.Sprintf(":g%d", r.generation)):
		return math.MinInt, math.MaxInt
	case r.generation > 0: // a process that began with an earlier one may have died
		return math.MinInt, poolSize
	}
	return poolSize, poolSize
}

func (r *round) hadOperators() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.windows, func(w *window) bool { return len(w.names) > 0 })
}

func (r *round) hadDeaths() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.windows, func(w *window) bool { return w.fault == faultKill || w.lossy })
}
