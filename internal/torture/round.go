package torture

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

// round is a part of a run with its own names, client processes and history. All holds are
// released before it ends, so that anything left behind shows.
type round struct {
	*lane

	seed      uint64
	tag       string
	rand      *rand.Rand // of the goroutine that injects faults
	theme     theme
	pace      pace
	times     slots // which primitives are used when
	slots     []*slot
	length    time.Duration
	names     int // of each primitive
	rates     rates
	long      int // one hold in so many lasts
	ttl       time.Duration
	sessions  int // of each process
	victims   int // faults of processes and their networks hit so many of the first slots
	faults    sync.WaitGroup
	copies    sync.WaitGroup // late copies of commands
	healing   context.Context
	heal      context.CancelFunc
	exclusive exclusive
	stays     stays
	losses    atomic.Int64
	void      atomic.Bool  // something that is no fault has disturbed it
	changing  atomic.Int64 // faults that make replicas take over
	began     int64

	mu         sync.Mutex
	windows    []*window
	delivered  []lateCopy
	samples    []sample
	appeared   []appearance // only in simulations
	processes  []*process
	counts     map[string]int
	asked      map[string]int64 // by server: since when it has not answered its probe
	generation int64
	err        error
}

// slot is a place for a client process: a killed one is replaced.
type slot struct {
	proxies  []*redistest.Proxy
	routes   map[string]string
	replicas int  // of WithReplicas
	other    bool // its processes are of another build
	mu       sync.Mutex
	process  *process
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
func (r *lane) round(ctx context.Context, seed uint64) error {
	rd := r.newRound(seed)
	rd.healing, rd.heal = context.WithCancel(ctx)
	defer rd.heal()
	defer rd.stopAll()
	rd.began = monotonic()
	stopProbes := rd.startProbes()
	defer stopProbes()
	r.begins(rd)
	defer r.ends(rd)
	if err := rd.startClients(); err != nil { // they begin to work at once, so the probes come first
		return err
	}
	kept := rd.keepCommands()
	time.AfterFunc(rd.length, rd.heal)
	rd.injectFaults()
	rd.faults.Wait()
	if err := rd.failure(); err != nil || ctx.Err() != nil {
		return err
	}
	violations := rd.drain()
	if err := rd.failure(); err != nil {
		return err
	}
	if rd.void.Load() {
		return nil
	}
	r.keep(rd, kept)
	rd.copies.Wait()
	h := rd.history()
	outside := func(p *process) bool { return p.library != "" }
	violations = append(violations, rd.closeClients(outside)...) // what they leave behind, they may
	left := rd.leftovers(h)
	violations = append(violations, rd.closeClients(func(p *process) bool { return !outside(p) })...)
	stopProbes()
	if h.areOthersTooOld() {
		return fmt.Errorf("%w: the other build is too old: it does not record the events of acquisitions", ErrConfig)
	}
	r.checking.Lock() // it computes, while the other lanes forward what their clients send
	found, undecided := h.check()
	r.checking.Unlock()
	violations = slices.Concat(violations, found, left)
	r.ends(rd)
	r.count(rd, h, undecided)
	return r.report(rd, h, violations)
}

// newRound draws a round: its theme and pace, and what follows from them.
func (r *lane) newRound(seed uint64) *round {
	theme, pace := themeOf(seed, r.enabled)
	pace = cmp.Or(r.cfg.pace, pace)
	rd := &round{
		lane: r, seed: seed, tag: fmt.Sprintf("%storture:%s:%d", r.cfg.Prefix, r.nonce, seed),
		rand: seeded(seed, 1), counts: map[string]int{}, asked: map[string]int64{}, theme: theme, pace: pace,
		length: r.cfg.Round, names: namesOf, long: r.cfg.long, ttl: r.cfg.TTL, sessions: r.cfg.Sessions, rates: r.cfg.rates,
		victims: (r.cfg.Processes + 1) / 2,
	}
	switch pace {
	case paceMixed:
	case paceCrowd:
		rd.names, rd.long, rd.rates = 1, 8*rd.long, rareTakeovers // each ends a streak
	case paceCalm: // a poll must not come soon, because a lease ends
		rd.names, rd.sessions, rd.ttl = 1, 1, longTTL*rd.ttl
	}
	if pace != paceMixed && len(r.cfg.Primitives) > slotPrimitives {
		rd.length += rd.length / 2
	}
	if r.d.kind == Sentinel && theme.has(faultSwitch) { // a release that is forgotten is seen, if no lease ends soon
		rd.ttl *= 3
	}
	rd.times = slotsOf(r.cfg.Primitives, pace, rd.length, seed)
	return rd
}

// startProbes starts what watches this process, the locks and the servers during the round. stop
// ends it, and may be called again.
func (r *round) startProbes() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var probes sync.WaitGroup
	onEachProcessor(&probes, func() { r.watchItself(ctx) })
	probes.Go(func() { r.sample(ctx) })
	for _, target := range r.d.targets {
		probes.Go(func() { r.probe(ctx, target) })
	}
	if r.d.own && (r.d.kind == Sentinel || r.d.kind == Cluster) {
		probes.Go(func() { r.watchMasters(ctx) })
	}
	return sync.OnceFunc(func() {
		cancel()
		probes.Wait()
	})
}

func (r *round) startClients() error {
	for i := range r.cfg.Processes {
		isOther := r.cfg.Other != nil && (r.cfg.Client == nil || i%2 == 1)
		s := &slot{routes: map[string]string{}, other: isOther}
		if r.d.own && r.d.kind == Sentinel && i == r.cfg.Processes-1 {
			s.replicas = 1
		}
		for _, target := range r.d.targets {
			p, err := redistest.StartProxy(target, r.d.connectTo(target))
			if err != nil {
				return err
			}
			s.proxies = append(s.proxies, p)
			s.routes[target] = p.Addr()
		}
		r.slots = append(r.slots, s)
	}
	// Java takes seconds to start, and much processor time. The others wait for it: they would have
	// all locks to themselves, and be late.
	if err := r.startSlots(true); err != nil {
		return err
	}
	r.began = monotonic()
	return r.startSlots(false)
}

// startSlots starts the client processes of another build, or of this one, and waits until they are
// ready.
func (r *round) startSlots(other bool) error {
	var all []*slot
	for _, s := range r.slots {
		if s.other == other {
			all = append(all, s)
		}
	}
	for _, s := range all {
		if err := r.startClient(s); err != nil {
			return s.blame(err)
		}
	}
	for _, s := range all {
		if err := s.current().started(); err != nil {
			return s.blame(err)
		}
	}
	return nil
}

// closeClients ends some of the client processes, unless drain has killed them.
func (r *round) closeClients(which func(*process) bool) (out []Violation) {
	for _, s := range r.slots {
		p := s.current()
		if !p.alive() || !which(p) {
			continue
		}
		if err := p.close(15 * time.Second); err != nil {
			out = append(out, Violation{Check: checkProcess, Detail: err.Error()})
		}
	}
	return out
}

// blame says whose error it is that a client process did not start.
func (s *slot) blame(err error) error {
	if s.other {
		return fmt.Errorf("%w: the other build cannot be a client: %w", ErrConfig, err)
	}
	return fmt.Errorf("torture: %w", err)
}

func (r *round) startClient(s *slot) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	client := r.cfg.Client
	if s.other {
		client = r.cfg.Other
	}
	p, err := startProcess(client(), s, setup{
		Process: len(r.processes), Seed: r.seed, Tag: r.tag, Primitives: r.cfg.Primitives, Sessions: r.sessions,
		Long: r.long, Names: r.names, Slots: r.times, Pace: r.pace, TTL: r.ttl,
		Replicas: s.replicas, Rates: r.rates, Defect: r.cfg.defect, Endpoint: clientEndpoint{
			Addrs: r.d.Addrs, Master: r.d.Master, Cluster: r.d.Cluster, Members: r.d.Members,
			Username: r.d.Username, Password: r.d.Password, DB: r.d.DB, Routes: s.routes,
		},
	}, func(moment string, names []string) { r.stays.tell(s, moment, names) })
	if err != nil {
		return err
	}
	r.processes = append(r.processes, p)
	s.set(p)
	return p.tell(order{Do: "generation", Generation: r.generation})
}

// replace starts a new process in the place of one that was killed. A plain semaphore's permits of
// a dead process stay taken, so all processes go on with new semaphores.
func (r *round) replace(p *process) {
	r.nextGeneration()
	if err := r.startClient(p.slot); err != nil {
		r.fail(p.slot.blame(err))
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

// stopAll stops everything in the round that is still running.
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
		if len(r.theme) > 0 {
			r.inject(r.theme.draw(r.rand))
		}
	}
}

// watchItself notes when this process, through which all traffic passes, does not run on a
// processor. A busy machine may let a thread wait for its turn for a second, while threads on other
// processors run.
func (r *round) watchItself(ctx context.Context) {
	const pause = 5 * time.Millisecond
	for ctx.Err() == nil {
		begin := monotonic()
		time.Sleep(pause)
		if end := monotonic(); end-begin > int64(pause+stallAfter) {
			r.mu.Lock()
			r.windows = append(r.windows, &window{interval: interval{begin, end}, fault: faultStall, process: -1})
			r.counts[faultStall]++
			r.mu.Unlock()
		}
	}
}

// slowAfter is how late an answer of a server is that may delay its clients: a call may need two
// answers before it may speak of silence.
const slowAfter = silence / 2

// faultStall is not an injected fault: a server did not answer for a while, for example because its
// disk is slow.
const faultStall = "server stall"

// probe notes when a server answers late.
func (r *round) probe(ctx context.Context, target string) {
	rdb := newClient(&redis.UniversalOptions{
		Addrs: []string{target}, Username: r.d.Username, Password: r.d.Password, TLSConfig: r.d.TLS,
		MaxRetries: -1, PoolSize: 1, DialTimeout: time.Second,
	})
	defer func() { _ = rdb.Close() }()
	for ctx.Err() == nil {
		r.asks(target)
		_ = rdb.Ping(ctx).Err() // late, or not at all
		r.answered(target)
		select {
		case <-ctx.Done():
		case <-time.After(slowAfter / 2):
		}
	}
}

// asks notes that a server is asked for an answer.
func (r *round) asks(target string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked[target] = monotonic()
}

// answered notes that a server has answered, and a stall if that took long.
func (r *round) answered(target string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	since := r.asked[target]
	delete(r.asked, target)
	if stall := stallSince(since); stall != nil {
		r.windows = append(r.windows, stall)
		r.counts[faultStall]++
	}
}

// stallSince returns the stall of a server that was asked at an instant, or nil if it may still
// answer in time.
func stallSince(asked int64) *window {
	now := monotonic()
	if now-asked <= int64(slowAfter) {
		return nil
	}
	return &window{interval: interval{asked, now}, fault: faultStall, process: -1}
}

// begins and ends note which rounds are under way, for the progress.
func (r *runner) begins(rd *round) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running[rd] = true
}

func (r *runner) ends(rd *round) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.running, rd)
}

// progress counts what is over and what is under way.
func (r *runner) progress() Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := Progress{
		Elapsed: time.Since(r.began), Round: r.result.Rounds + 1, Operations: r.result.Total(),
		Violations: len(r.result.Violations), LongestWait: r.result.LongestWait,
	}
	for _, n := range r.result.Faults {
		p.Faults += n
	}
	for rd := range r.running {
		faults, operations := rd.soFar()
		p.Faults += faults
		p.Operations += operations
	}
	return p
}

// soFar counts the faults and the operations of a round that is under way.
func (r *round) soFar() (faults, operations int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.counts {
		faults += n
	}
	for _, p := range r.processes {
		p.mu.Lock()
		operations += len(p.lines) / 2
		p.mu.Unlock()
	}
	return faults, operations
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
			err := p.failure(errEnded)
			if s.other && p.speaks == 0 { // it may have been too old for what it was told
				r.fail(s.blame(err))
			}
			out = append(out, Violation{Check: checkProcess, Detail: err.Error()})
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
	h := &history{tag: r.tag, ttl: r.ttl, begin: r.began, stalls: map[int][]interval{}}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.windows {
		h.windows = append(h.windows, *w)
	}
	for _, since := range r.asked {
		if stall := stallSince(since); stall != nil {
			h.windows = append(h.windows, *stall)
		}
	}
	h.copies, h.samples = r.delivered, r.samples
	for _, p := range r.processes {
		h.add(p.id, p.records(""), p.diedAt(), p.library != "")
		if p.slot.other {
			h.others = append(h.others, p.id)
		}
	}
	h.end = monotonic()
	h.sort()
	h.noteStarts()
	return h
}

// count adds a round to the result.
func (r *runner) count(rd *round, h *history, undecided []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	res := r.result
	res.Rounds++
	res.Coverage.cover(h)
	res.Undecided = append(res.Undecided, undecided...)
	for name, n := range rd.counts {
		res.Faults[name] += n
	}
	for _, o := range h.ops {
		res.Operations[o.call.Primitive]++
		if slices.Contains(h.others, o.process) {
			res.Others++
		}
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
