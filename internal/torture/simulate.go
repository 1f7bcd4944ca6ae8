package torture

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/test/memredis"
	"github.com/redlatch/redlatch/internal/torture/simnet"
	"github.com/redlatch/redlatch/internal/torture/simstop"
	"github.com/redlatch/redlatch/scripts"
)

// A simulation is a round whose client processes, network and servers are all in this process, and
// that a [Plan] decides. It is meant for a program that has one thread, a virtual clock and seeded
// random numbers: there, equal plans give equal rounds. The directory sim has that program.

// slowestRoundTrip is how long a command and its answer take at most when nothing disturbs them:
// see simnet.
const slowestRoundTrip = 16 * time.Millisecond

// Simulated is what a simulated round has found.
type Simulated struct {
	Seed       uint64      `json:"seed"`
	Hash       string      `json:"hash"` // of all that was sent and recorded, and of when
	Operations int         `json:"operations"`
	Virtual    int64       `json:"virtual_ms"`
	Undecided  int         `json:"undecided,omitempty"`
	Violations []Violation `json:"violations,omitempty"`
	Error      string      `json:"error,omitempty"` // the simulation itself could not go on
	Log        string      `json:"log,omitempty"`   // all that happened
	Page       string      `json:"page,omitempty"`  // HTML
	Story      []string    `json:"story,omitempty"` // what happened, in a few lines; only if there are violations
}

// SimulationOptions say what a simulation returns beside its violations.
type SimulationOptions struct {
	Log, Page bool
}

// world is what a simulated round consists of.
type world struct {
	plan    *Plan
	net     *simnet.Net
	servers []*simnet.Server // of Single: the primary, which has a name, and a replica, which may take its place
	primary atomic.Int64     // of Single: the index of the primary
	// stoodStill is when the machine stood still last, and 0 if it never did. The guest has one
	// thread.
	stoodStill int64
	harness    *simnet.Client
	round      *round
	working    atomic.Int64 // sessions that have steps left, and processes that will be replaced
	hash       uint64       // of the records
	dead       []*simulatedProcess
	replaced   sync.Map // the processes that a fault has killed

	goroutines int // before the round
}

// Simulate runs a plan.
func Simulate(plan *Plan, o SimulationOptions) *Simulated {
	redis.SetLogger(discard{})
	began := time.Now()
	w := newWorld(plan)
	out := &Simulated{Seed: plan.Seed}
	violations, h, err := w.run()
	if err != nil {
		out.Error = err.Error()
	}
	out.Virtual = time.Since(began).Milliseconds()
	if h != nil {
		out.Operations = len(h.ops)
		if len(violations) > 0 {
			out.Story = h.story(violations)
		}
		if o.Log {
			var log strings.Builder
			h.print(&log, violations)
			out.Log = log.String()
		}
		if o.Page {
			out.Page, err = w.page(h, violations)
			if err != nil {
				out.Error = err.Error()
			}
		}
	}
	out.Undecided = len(w.round.result.Undecided)
	for i := range violations {
		violations[i].Seed = plan.Seed
	}
	out.Violations = violations
	sum := fnv.New64a()
	fmt.Fprintf(sum, "%x %x %d %v", w.net.Trace(), w.hash, out.Virtual, violations)
	out.Hash = fmt.Sprintf("%016x", sum.Sum64())
	return out
}

func newWorld(plan *Plan) *world {
	w := &world{plan: plan, net: simnet.New(plan.Seed), goroutines: runtime.NumGoroutine()}
	count := 2
	if plan.Topology == Independent {
		count = redLockMembers
	}
	for i := range count {
		db := memredis.New(time.Now, plan.Seed+uint64(i))
		w.servers = append(w.servers, w.net.Serve(fmt.Sprintf("10.0.0.%d:6379", i+1), db))
	}
	w.harness = w.net.Client(-1)
	d := &deployment{own: true, kind: plan.Topology}
	if plan.Topology == Independent {
		for _, s := range w.servers {
			d.targets = append(d.targets, s.Addr())
		}
	} else {
		w.net.Name(primaryName, w.servers[0])
		follow(w.servers[1], w.servers[0])
		d.targets = []string{primaryName}
	}
	for _, addr := range d.targets {
		rdb := newClient(&redis.UniversalOptions{Addrs: []string{addr}, Dialer: w.harness.Dial, MaxRetries: -1})
		d.simulated = append(d.simulated, rdb.(*redis.Client))
	}
	d.Addrs, d.rdb = d.targets[:1], d.simulated[0]
	if plan.Topology == Independent {
		d.Members = d.targets
	}
	r := &runner{
		cfg: Config{
			TTL: plan.TTL, Primitives: plan.Primitives, Processes: len(plan.Processes),
			// A waiter without a limit waits for the end of a hold that was extended and detached.
			drain: drainLimit + longestExtension*plan.TTL,
		},
		running: map[*round]bool{},
		result: &Result{
			Topology: plan.Topology, Seed: plan.Seed, Operations: map[string]int{}, Outcomes: map[string]int{},
			Faults: map[string]int{}, Coverage: Coverage{},
		},
	}
	w.round = &round{
		lane: &lane{runner: r, d: d}, seed: plan.Seed, tag: "sim", rand: seeded(plan.Seed, 1), pace: plan.Pace,
		times:  slots{Length: time.Hour, Groups: [][]string{plan.Primitives}},
		length: plan.Length, names: plan.Names, rates: plan.Rates, long: plan.Long, ttl: plan.TTL,
		counts: map[string]int{}, asked: map[string]int64{},
	}
	return w
}

// primaryName is the address of the primary, whichever server that is.
const primaryName = "redis.sim:6379"

// follow makes a server a replica of another one.
func follow(replica, primary *simnet.Server) {
	var db *memredis.Server
	primary.Use(func(redis *memredis.Server) { db = redis })
	replica.Use(func(redis *memredis.Server) { redis.Follow(db) })
}

// run runs the round.
func (w *world) run() (violations []Violation, h *history, err error) {
	r := w.round
	if r.client, err = operator(r.d.rdb); err != nil {
		return nil, nil, err
	}
	r.healing, r.heal = context.WithCancel(context.Background())
	defer r.heal()
	r.began = monotonic()
	for i := range w.plan.Processes {
		r.slots = append(r.slots, &slot{})
		if err := w.startProcess(i, 0); err != nil {
			return nil, nil, err
		}
	}
	watching, stop := context.WithCancel(context.Background())
	defer stop()
	go w.sample(watching)
	for _, server := range w.servers {
		w.watchAppearances(server)
	}
	kept := w.keepCommands()
	w.injectFaults()
	time.AfterFunc(w.plan.Length, r.heal)
	r.faults.Wait()
	<-r.healing.Done()
	if err := r.failure(); err != nil {
		return nil, nil, err
	}
	violations = r.drain()
	r.copies.Wait()
	h = r.history()
	h.exact = true
	h.noteStops()
	collectForgotten(h)
	left := r.leftovers(h)
	stop() // not before: most of what stays after its release is seen when nobody uses the locks any more
	h.samples, h.appeared = r.samples, r.appeared
	if len(left) == 0 {
		left = w.sendCopies(kept)
	}
	violations = append(violations, r.closeClients(func(*process) bool { return true })...)
	violations = append(violations, w.goroutinesLeft()...)
	found, undecided := h.check()
	r.result.Undecided = undecided
	return slices.Concat(violations, found, left), h, r.failure()
}

// noteStops notes when processes stood still. A process of the machine reports that itself.
func (h *history) noteStops() {
	for _, w := range h.windows {
		if w.fault == faultStop {
			h.stalls[w.process] = append(h.stalls[w.process], w.interval)
		}
	}
}

// collectForgotten lets the garbage collector find all forgotten holds.
func collectForgotten(h *history) {
	if !slices.ContainsFunc(h.ops, func(o *op) bool { return o.forgot }) {
		return
	}
	for range 4 {
		runtime.GC()
		time.Sleep(10 * time.Millisecond)
	}
}

// page draws the round.
func (w *world) page(h *history, violations []Violation) (string, error) {
	r := w.round.result
	r.Rounds, r.Violations = 1, violations
	r.Elapsed = time.Duration(h.end - h.begin)
	w.round.count(w.round, h, nil)
	r.Rounds = 1
	r.keepPicture(h.picture(w.plan.Seed, nil, w.plan.Pace, violations))
	var page strings.Builder
	err := r.Page(&page, Made{})
	return page.String(), err
}

// simulatedProcess is a client process that is a part of this program.
type simulatedProcess struct {
	*worker

	world    *world
	process  *process
	index    int // of the plan
	sessions sync.WaitGroup
	busy     atomic.Int64       // sessions that have steps left
	names    map[int64][]string // of each operation, if they can be sampled
}

// startProcess starts a process of the plan, whose sessions begin with the first step that is due
// after an instant of the plan.
func (w *world) startProcess(i int, after time.Duration) error {
	r := w.round
	sl := r.slots[i]
	r.mu.Lock()
	defer r.mu.Unlock()
	s := setup{
		Process: len(r.processes), Seed: w.plan.Seed, Tag: r.tag, Primitives: w.plan.Primitives, Long: r.long,
		Names: r.names, Slots: r.times, Pace: r.pace, TTL: r.ttl, Rates: r.rates,
		Sessions: len(w.plan.Processes[i].Sessions), ClientID: w.plan.Processes[i].ClientID,
		Endpoint: clientEndpoint{Addrs: r.d.Addrs, Members: r.d.Members},
	}
	p := &process{
		id: s.Process, slot: sl, died: never, stays: func(moment string, names []string) { r.stays.tell(sl, moment, names) },
		exited: make(chan struct{}), ready: make(chan struct{}), drained: make(chan struct{}), speaks: protocol,
	}
	sp := &simulatedProcess{
		world: w, process: p, index: i, names: map[int64][]string{},
		worker: &worker{setup: s, clock: newClock(), simulated: w.net.Client(s.Process)},
	}
	p.child = sp
	sp.out = recorder{clock: sp.clock, sink: sp.record}
	sp.draining, sp.drain = context.WithCancel(context.Background())
	sp.generation.Store(r.generation)
	// What is started from here on stops with the process.
	defer simstop.Join(simstop.Join(sp.group()))
	if err := sp.connect(); err != nil {
		return err
	}
	r.processes = append(r.processes, p)
	sl.set(p)
	close(p.ready)
	for n, steps := range w.plan.Processes[i].Sessions {
		w.working.Add(1)
		sp.busy.Add(1)
		sp.sessions.Go(func() {
			sp.follow(n, steps, after)
			sp.busy.Add(-1)
			w.finish()
		})
	}
	return nil
}

// group is the group of the goroutines of the process.
func (p *simulatedProcess) group() int { return p.process.id + 1 }

// finish notes that something has ended that the round waits for.
func (w *world) finish() {
	if w.working.Add(-1) == 0 {
		w.round.heal()
	}
}

// follow runs the steps of a session.
func (p *simulatedProcess) follow(n int, steps []Step, after time.Duration) {
	s := p.newSession(n)
	for _, step := range steps {
		if step.At < after {
			continue
		}
		wait := time.Duration(p.world.round.began) + step.At - time.Duration(monotonic())
		select {
		case <-time.After(wait):
		case <-p.draining.Done():
			return
		}
		s.rand = seeded(step.Seed, p.world.plan.Seed)
		time.Sleep(between(s.rand, 0, 4*time.Millisecond))
		workloads[step.Primitive].act(s, step.Primitive)
	}
}

// record takes a record. A process that was killed does not go on.
func (p *simulatedProcess) record(r record) {
	defer simstop.Join(simstop.Join(0)) // others take pr.mu, too
	pr := p.process
	pr.mu.Lock()
	if pr.died != never {
		pr.mu.Unlock()
		select {}
	}
	defer pr.mu.Unlock()
	if r.Kind == kindStay {
		go pr.stays(r.Do, r.Names)
		return
	}
	pr.recorded = append(pr.recorded, r)
	p.world.note(pr.id, &r)
	switch {
	case r.Kind == kindCall && isSimulatedSampled(r.Primitive):
		p.names[r.Op] = r.Names
	case r.Kind == kindValid, r.Kind == kindReturn && r.Until != 0:
		// A validity that is claimed now is compared with what Redis has now.
		p.world.sampleNow(p.names[r.Op])
	}
}

// note adds a record to the hash.
func (w *world) note(process int, r *record) {
	const prime = 1099511628211
	for _, v := range [...]int64{int64(process), r.At, r.Op, r.Until, r.Token, r.Count} {
		w.hash = (w.hash ^ uint64(v)) * prime
	}
	for _, text := range [...]string{r.Kind, r.Do, r.Outcome, r.Err, r.ID} {
		for i := range len(text) {
			w.hash = (w.hash ^ uint64(text[i])) * prime
		}
	}
}

// send implements child.
func (p *simulatedProcess) send(v any) error {
	o, ok := v.(order)
	if !ok {
		return errors.New("torture: a simulated process reads orders only")
	}
	switch o.Do {
	case "hang":
		p.simulated.HangDials(o.On)
	case "generation":
		p.generation.Store(o.Generation)
	case "drain":
		p.drain()
		go func() {
			p.sessions.Wait()
			close(p.process.drained)
		}()
	case "close":
		go func() {
			err := p.close()
			p.process.mu.Lock()
			p.process.err = err
			p.process.mu.Unlock()
			close(p.process.exited)
		}()
	}
	return nil
}

// kill implements child. The goroutines of the process stop for good.
func (p *simulatedProcess) kill() {
	p.stop(true)
	p.simulated.Kill()
	p.world.dead = append(p.world.dead, p)
	close(p.process.exited)
}

// stop implements child.
func (p *simulatedProcess) stop(on bool) { simstop.Stop(p.group(), on) }

// goroutinesLeft finds goroutines of the library, once all clients are closed. Those of a process
// that was killed stay.
func (w *world) goroutinesLeft() []Violation {
	if len(w.dead) > 0 {
		return nil
	}
	ctx, cancel := soon()
	defer cancel()
	_ = w.round.client.Close(ctx)
	for range 50 {
		if runtime.NumGoroutine() <= w.goroutines {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	left := libraryGoroutines() // not before: it takes the stacks of all goroutines, which costs much
	if left == 0 {
		return nil
	}
	return []Violation{{Check: checkLeft, Detail: fmt.Sprintf("%d goroutines of the library", left)}}
}

// sample looks at the locks, again and again. It takes no time.
func (w *world) sample(ctx context.Context) {
	r := w.round
	var names []string
	for _, p := range w.plan.Primitives {
		for i := range max(r.names, namesOf+1) {
			if slices.Contains(sampled, p) {
				names = append(names, lockName(r.tag, p, i))
			}
		}
	}
	for ctx.Err() == nil {
		w.sampleNow(names)
		w.sampleMembers()
		time.Sleep(sampling)
	}
}

// sampleNow looks at some locks. It takes no time.
func (w *world) sampleNow(names []string) {
	for _, name := range names {
		w.look(w.servers[w.primary.Load()], name, sample{name: name, member: isMultilock(name)})
	}
}

// isSimulatedSampled reports whether a simulation looks at the holders of a primitive.
func isSimulatedSampled(primitive string) bool {
	return slices.Contains(sampled, primitive) || primitive == "permits" || primitive == "multi"
}

// isMultilock reports whether a lock may be a member of a multilock.
func isMultilock(name string) bool { return primitiveOf(name) == "multi" }

// primitiveOf returns the primitive of a name.
func primitiveOf(name string) string { return strings.Split(name, ":")[1] }

// sampleMembers looks at the members of joint locks.
func (w *world) sampleMembers() {
	r := w.round
	if slices.Contains(w.plan.Primitives, "multi") {
		for i := range multiMembers {
			name := lockName(r.tag, "multi", i)
			w.look(w.servers[w.primary.Load()], name, sample{name: name, member: true})
		}
	}
	if slices.Contains(w.plan.Primitives, "redlock") {
		name := lockName(r.tag, "redlock", 0)
		for i := range redLockMembers {
			server := w.servers[w.primary.Load()]
			if w.plan.Topology == Independent {
				server = w.servers[i%len(w.servers)]
			}
			w.look(server, memberName(name, i), sample{name: name, member: true})
		}
	}
}

// look adds a sample of a lock's key, if it exists.
func (w *world) look(server *simnet.Server, key string, s sample) {
	server.Use(func(db *memredis.Server) {
		at := monotonic()
		s.before, s.after = at, at
		primitive := primitiveOf(s.name)
		if primitive == "permits" {
			s.own = map[string]int64{}
			for id, left := range db.PeekScores("{" + key + "}:timeout") {
				s.own[hex.EncodeToString([]byte(id))] = at + int64(left)
			}
			w.round.samples = append(w.round.samples, s)
			return
		}
		fields, left, ok := db.Peek(key)
		if !ok {
			return
		}
		s.until = at + int64(left)
		for _, f := range fields {
			s.ids = append(s.ids, strings.TrimSuffix(f, ":write"))
		}
		if primitive == "rwlock" {
			s.own = map[string]int64{}
			for _, id := range s.ids {
				if left := readerLease(db, key, id); left > 0 {
					s.own[id] = at + int64(left)
				}
			}
		}
		w.round.samples = append(w.round.samples, s)
	})
}

// mostCounts is how many counts of a reader have leases that are looked at.
const mostCounts = 6

// readerLease returns how long the longest lease of a reader lasts. Each of its counts has one.
func readerLease(db *memredis.Server, name, id string) (left time.Duration) {
	for n := range mostCounts {
		left = max(left, db.Left(fmt.Sprintf("{%s}:%s:rwlock_timeout:%d", name, id, n+1)))
	}
	return left
}

// keepCommands keeps some commands that count, for sendCopies.
func (w *world) keepCommands() *keeper {
	k := &keeper{seed: w.plan.Seed, count: map[*scripts.Script]int{}}
	w.servers[w.primary.Load()].Watch(k.see)
	return k
}

// sendCopies sends kept commands again, more than a minute later. They must change nothing.
func (w *world) sendCopies(k *keeper) []Violation {
	r := w.round
	if len(k.kept) == 0 || r.losses.Load() > 0 {
		return nil
	}
	time.Sleep(copyAge)
	for _, c := range k.kept {
		age := time.Since(c.at)
		if age > copyAgeLimit {
			continue
		}
		if err := r.sendCopy(c, age); err != nil {
			r.fail(err)
		}
	}
	return r.result.Violations
}

// injectFaults starts the faults of the plan.
func (w *world) injectFaults() {
	for i := range w.plan.Faults {
		f := &w.plan.Faults[i]
		w.round.faults.Go(func() {
			r := w.round
			r.sleep(f.At)
			if r.healing.Err() != nil {
				return
			}
			if err := simulatedFaults[f.Kind].inject(w, f, seeded(w.plan.Seed, f.Seed)); err != nil {
				r.fail(fmt.Errorf("fault %s: %w", f.Kind, err))
			}
		})
	}
}
