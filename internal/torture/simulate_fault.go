package torture

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/redlatch/redlatch/internal/test/memredis"
	"github.com/redlatch/redlatch/internal/torture/simnet"
	"github.com/redlatch/redlatch/internal/torture/simstop"
)

// The faults of simulations. What the checks must know of them is the same as of the others, so
// they have their names.

// simulatedFault is a kind of fault.
type simulatedFault struct {
	usage  string
	inject func(w *world, f *PlannedFault, rng *rand.Rand) error
}

// ofOperators are acts of operators on one name.
var ofOperators = []string{faultDelete, faultOverwrite, faultForce, faultShorten}

// ofReplicas are the faults of a primary with a replica.
var ofReplicas = []string{faultPromotion, faultSplit}

// simulatedFaults are all of them. To add one, list it here.
var simulatedFaults map[string]simulatedFault

func init() {
	simulatedFaults = map[string]simulatedFault{
		"kill":    {"a client process is killed, and another one takes its place", (*world).killProcess},
		faultStop: {"a client process stands still, often for longer than its holds last", (*world).stopProcess},
		"hole": {
			"nothing arrives in either direction, and all of it later",
			onProcess(faultHole, holding(simnet.ToServer, simnet.ToClient), nil),
		},
		"hole-and-reset": {
			"nothing arrives in either direction, and then the connections break",
			onProcess(faultHole, holding(simnet.ToServer, simnet.ToClient), (*simnet.Route).Reset),
		},
		"late-commands": {
			"commands arrive late, also those of connections that are closed by then",
			onProcess("late-commands", holding(simnet.ToServer), nil),
		},
		"late-answers": {"answers arrive late", onProcess("late-answers", holding(simnet.ToClient), nil)},
		"dials":        {"connections break, and dials hang", (*world).hangDials},
		"refuse": {"connections break, and dials are refused", onProcess(faultRefuse, func(r *simnet.Route, on bool) {
			r.Refuse(on)
			if on {
				r.Reset()
			}
		}, nil)},
		"lost-commands": {"connections break before a command arrives", ruled("commands", simnet.LoseCommand, 0.3)},
		"lost-replies":  {"connections break after a command was executed", ruled(faultReplies, simnet.LoseReply, 0.3)},
		"copies":        {"commands arrive seconds late, after their repetitions", (*world).lateCopies},
		"held-replies":  {"replies to commands of one kind are held back", (*world).holdReplies},
		"pubsub": {"subscriptions break", onProcess(faultPubSub, func(r *simnet.Route, on bool) {
			if on {
				r.CutSubscriptions()
			}
		}, nil)},
		faultPubSubOfAll: {"the subscriptions of all processes break", (*world).cutAllSubscriptions},
		"messages":       {"messages are lost", onProcess(faultMessages, (*simnet.Route).Silence, nil)},
		"slow":           {"both directions are slow", (*world).slowDown},
		"scripts":        {"SCRIPT FLUSH", (*world).flushScripts},
		"delete":         {"an operator deletes a key", operated(faultDelete)},
		"overwrite": {
			"an operator overwrites a key", operated(faultOverwrite),
		},
		"force":   {"ForceRelease", operated(faultForce)},
		"shorten": {"an operator shortens the TTL of a key to its last millisecond as a command comes", (*world).shortenTTL},
		"pause":   {"the server executes nothing for a while", (*world).pauseServer},
		"memory":  {"full memory", refusing(faultMemory, memredis.Full)},
		"busy":    {"a script of somebody else does not end", refusing("busy", memredis.Busy)},
		"standstill": {
			"the whole machine stands still, often for longer than its holds last", (*world).standStill,
		},
		"loading":   {"the server restarts with its data, which takes time", (*world).restartServer},
		"data-loss": {"the server restarts empty", (*world).restartEmpty},
		"old-data":  {"a server without the latest writes takes its place", (*world).restartOld},
		faultPromotion: {
			"a replica without the latest writes becomes the primary, and the former one refuses writes", (*world).promote,
		},
		faultSplit: {
			"a replica becomes the primary, while the former one still accepts writes from open connections",
			(*world).split,
		},
		faultEviction: {"a full server evicts keys of all kinds", (*world).evict},
		faultForward: {
			"the server's clock jumps forward", func(w *world, f *PlannedFault, rng *rand.Rand) error {
				return w.jump(f, between(rng, w.plan.TTL/8, 3*w.plan.TTL))
			},
		},
		faultBack: {
			"the server's clock jumps back", func(w *world, f *PlannedFault, rng *rand.Rand) error {
				return w.jump(f, -between(rng, w.plan.TTL/8, 3*w.plan.TTL))
			},
		},
		faultMinutes: {
			"commands arrive minutes late, long after their connections broke", (*world).strandCommands,
		},
		"restart-process": {
			"a client process is killed, and starts again at once, while its last commands are still on their way",
			(*world).restartProcess,
		},
	}
}

// SimulatedFaults describes the faults of simulations.
func SimulatedFaults() (out []Fault) {
	for _, kind := range simulatedKinds() {
		out = append(out, Fault{kind, simulatedFaults[kind].usage})
	}
	return out
}

func simulatedKinds() []string { return slices.Sorted(maps.Keys(simulatedFaults)) }

// routes returns the routes of the process that is the target of a fault now.
func (w *world) routes(f *PlannedFault) (p *process, routes []*simnet.Route) {
	p = w.round.slots[f.Process].current()
	for _, s := range w.servers {
		routes = append(routes, p.child.(*simulatedProcess).simulated.Route(s))
	}
	return p, routes
}

// placingSimulated is how long a fault waits for its moment. Rare moments, such as an Extend, need
// more than placing.
const placingSimulated = 1500 * time.Millisecond

// awaitMoment waits until the moment of a fault, among all processes if process < 0.
func (w *world) awaitMoment(f *PlannedFault, process int, name string) {
	if f.Moment == "" {
		return
	}
	seen := make(chan struct{}, 1)
	begins := func() {
		select {
		case seen <- struct{}{}:
		default:
		}
	}
	if isOfHold(f.Moment) {
		defer w.round.stays.watch(func(s *slot, m string, names []string) {
			if m == f.Moment && (process < 0 || s == w.round.slots[process]) && (name == "" || slices.Contains(names, name)) {
				begins()
			}
		})()
	} else {
		for i, s := range w.round.slots {
			if process >= 0 && i != process {
				continue
			}
			client := s.current().child.(*simulatedProcess).simulated
			for _, server := range w.servers {
				defer client.Route(server).Add(&simnet.Rule{Match: func(args []string) bool {
					if momentOf(args) == f.Moment && (name == "" || slices.ContainsFunc(args[2:], func(arg string) bool {
						return strings.Contains(arg, name)
					})) {
						begins()
					}
					return false
				}})()
			}
		}
	}
	select {
	case <-seen:
	case <-time.After(placingSimulated):
	case <-w.round.healing.Done():
	}
}

// onProcess returns a fault of the network of a process: set begins it with true and ends it with
// false on each route, and then after is called.
func onProcess(
	name string, set func(r *simnet.Route, on bool), after func(*simnet.Route),
) func(*world, *PlannedFault, *rand.Rand) error {
	return func(w *world, f *PlannedFault, _ *rand.Rand) error {
		w.awaitMoment(f, f.Watched, "")
		p, routes := w.routes(f)
		return w.during(window{fault: name, process: p.id}, f.Length, func(on bool) {
			for _, r := range routes {
				set(r, on)
				if !on && after != nil {
					after(r)
				}
			}
		})
	}
}

// cutAllSubscriptions breaks the subscriptions of all processes at once: then no process is left
// that is woken up, and that wakes up the others by its own release.
func (w *world) cutAllSubscriptions(f *PlannedFault, _ *rand.Rand) error {
	w.awaitMoment(f, f.Watched, "")
	return w.during(window{fault: faultPubSub, process: -1}, 0, func(on bool) {
		for _, s := range w.round.slots {
			for _, server := range w.servers {
				if on {
					s.current().child.(*simulatedProcess).simulated.Route(server).CutSubscriptions()
				}
			}
		}
	})
}

// during sets something for a while, in a window.
func (w *world) during(win window, d time.Duration, set func(on bool)) error {
	r := w.round
	r.injected(win.fault)
	began := r.begin(win)
	set(true)
	r.sleep(d)
	set(false)
	r.finish(began)
	return nil
}

func holding(directions ...int) func(r *simnet.Route, on bool) {
	return func(r *simnet.Route, on bool) {
		for _, d := range directions {
			r.Hold(d, on)
		}
	}
}

// ruled returns a fault of single commands, each with a probability.
func ruled(name string, effect simnet.Effect, probability float64) func(*world, *PlannedFault, *rand.Rand) error {
	return func(w *world, f *PlannedFault, rng *rand.Rand) error {
		w.awaitMoment(f, f.Watched, "")
		p, routes := w.routes(f)
		return w.during(window{fault: name, process: p.id}, f.Length, w.rules(routes, func() *simnet.Rule {
			return &simnet.Rule{Effect: effect, Match: func(args []string) bool {
				return isScript(args) && rng.Float64() < probability
			}}
		}))
	}
}

// rules adds a rule to each route, and removes it.
func (w *world) rules(routes []*simnet.Route, rule func() *simnet.Rule) func(on bool) {
	var remove []func()
	return func(on bool) {
		if on {
			for _, r := range routes {
				remove = append(remove, r.Add(rule()))
			}
			return
		}
		for _, f := range remove {
			f()
		}
	}
}

func (w *world) killProcess(f *PlannedFault, _ *rand.Rand) error {
	w.awaitMoment(f, f.Watched, "")
	return w.replaceProcess(f, f.Length/4)
}

// replaceProcess kills the process that is the target of a fault. Another one takes its place after
// a pause. Two faults may have the same moment: then only the first one kills it, because only one
// process may take its place.
func (w *world) replaceProcess(f *PlannedFault, pause time.Duration) error {
	r := w.round
	p := r.slots[f.Process].current()
	if _, isReplaced := w.replaced.LoadOrStore(p, true); isReplaced {
		return nil
	}
	r.injected(faultKill)
	win := r.begin(window{fault: faultKill, process: p.id})
	w.working.Add(1)
	defer w.finish()
	p.kill()
	for range p.child.(*simulatedProcess).busy.Load() { // its sessions do not end
		w.finish()
	}
	r.sleep(pause)
	r.finish(win)
	r.nextGeneration()
	return w.startProcess(f.Process, time.Duration(monotonic()-r.began))
}

// betweenStops is how long a process runs at most between two stops that belong together.
const betweenStops = 60 * time.Millisecond

// stopProcess stops one process, while the others go on. Every third time it stops once more, soon
// after that: what a process has found out about the first standstill must not mislead it about the
// second one.
func (w *world) stopProcess(f *PlannedFault, rng *rand.Rand) error {
	if !simstop.Supported {
		return errors.New("the runtime of this program cannot stop goroutines")
	}
	w.awaitMoment(f, f.Watched, "")
	p, _ := w.routes(f)
	if !w.round.exclusive.take(p) { // it stands still already
		return nil
	}
	defer w.round.exclusive.give(p)
	stop := func(on bool) {
		if p.alive() {
			p.child.stop(on)
		}
	}
	win := window{fault: faultStop, process: p.id}
	if rng.IntN(3) > 0 {
		return w.during(win, f.Length, stop)
	}
	err := w.during(win, f.Length, stop)
	w.round.sleep(between(rng, 0, betweenStops))
	return errors.Join(err, w.during(win, between(rng, w.plan.TTL/8, w.plan.TTL), stop))
}

func (w *world) hangDials(f *PlannedFault, _ *rand.Rand) error {
	w.awaitMoment(f, f.Watched, "")
	p, routes := w.routes(f)
	return w.during(window{fault: faultDials, process: p.id}, f.Length, func(on bool) {
		p.child.(*simulatedProcess).simulated.HangDials(on)
		for _, r := range routes {
			r.Reset()
		}
	})
}

// lateCopies is like that of a round with real processes.
func (w *world) lateCopies(f *PlannedFault, rng *rand.Rand) error {
	w.awaitMoment(f, f.Watched, "")
	r := w.round
	p, routes := w.routes(f)
	losses := r.losses.Load()
	left := 5
	return w.during(window{fault: faultCopies, process: p.id}, f.Length, w.rules(routes, func() *simnet.Rule {
		rule := &simnet.Rule{Effect: simnet.Late, After: between(rng, 5*time.Millisecond, copyDelay)}
		rule.Match = func(args []string) bool {
			if left == 0 || !isScript(args) || rng.IntN(4) != 0 {
				return false
			}
			left--
			rule.After = between(rng, 5*time.Millisecond, copyDelay)
			r.copies.Add(1)
			return true
		}
		rule.Alive = func() bool { return p.alive() && r.losses.Load() == losses }
		rule.Over = r.copies.Done
		return rule
	}))
}

func (w *world) holdReplies(f *PlannedFault, rng *rand.Rand) error {
	w.awaitMoment(f, f.Watched, "")
	p, routes := w.routes(f)
	moment := []string{"", momentAcquire, momentNest, momentRenew, momentRenew, momentRelease}[rng.IntN(6)]
	return w.during(window{fault: faultLate, process: p.id}, f.Length, w.rules(routes, func() *simnet.Rule {
		return &simnet.Rule{Effect: simnet.HoldReply, Match: func(args []string) bool {
			return isScript(args) && (moment == "" || momentOf(args) == moment)
		}}
	}))
}

func (w *world) slowDown(f *PlannedFault, rng *rand.Rand) error {
	w.awaitMoment(f, f.Watched, "")
	p, routes := w.routes(f)
	var delays [2]time.Duration
	for i := range delays {
		delays[i] = between(rng, 0, w.plan.TTL/5)
	}
	return w.during(window{fault: faultSlow, process: p.id}, f.Length, func(on bool) {
		for _, r := range routes {
			for i, d := range delays {
				if on {
					r.Delay(i, d)
				} else {
					r.Delay(i, -d)
				}
			}
		}
	})
}

func (w *world) flushScripts(f *PlannedFault, _ *rand.Rand) error {
	w.awaitMoment(f, -1, "")
	return w.during(window{fault: faultScripts, process: noProcess}, 0, func(on bool) {
		if on {
			w.server(f).Use((*memredis.Server).ForgetScripts)
		}
	})
}

// operated returns an act of an operator on one key.
func operated(name string) func(*world, *PlannedFault, *rand.Rand) error {
	return func(w *world, f *PlannedFault, _ *rand.Rand) error {
		primitive := strings.Split(f.Name, ":")[1]
		if !workloads[primitive].operator {
			return nil
		}
		w.awaitMoment(f, -1, f.Name)
		_ = w.round.operateOn(name, primitive, f.Name) // another fault may have hindered it
		return nil
	}
}

// faultShorten is a fault of simulations only.
const faultShorten = "shorten"

// shortenTTL makes commands come in the last millisecond of a lease. If the moment of the fault is
// a kind of command, it is for these only: else most leases would end with the attempts of waiters,
// before their holders send anything.
func (w *world) shortenTTL(f *PlannedFault, rng *rand.Rand) error {
	primitive := strings.Split(f.Name, ":")[1]
	if !workloads[primitive].operator {
		return nil
	}
	isAny := f.Moment == "" || isOfHold(f.Moment)
	var db *memredis.Server
	server := w.server(f)
	server.Use(func(of *memredis.Server) { db = of })
	var routes []*simnet.Route
	for _, s := range w.round.slots {
		routes = append(routes, s.current().child.(*simulatedProcess).simulated.Route(server))
	}
	return w.during(window{fault: faultShorten, process: -1, names: []string{f.Name}}, f.Length,
		w.rules(routes, func() *simnet.Rule {
			return &simnet.Rule{Match: func(args []string) bool {
				isMet := isScript(args) && slices.Contains(args, f.Name) && (isAny || momentOf(args) == f.Moment)
				if isMet && rng.IntN(2) == 0 {
					db.EndSoon(f.Name)
				}
				return false
			}}
		}))
}

func (w *world) pauseServer(f *PlannedFault, _ *rand.Rand) error {
	w.awaitMoment(f, -1, "")
	return w.during(window{fault: faultPause, process: -1}, min(f.Length, w.plan.TTL), w.server(f).Stall)
}

// refusing returns a fault in which a server refuses commands.
func refusing(name string, state memredis.Fault) func(*world, *PlannedFault, *rand.Rand) error {
	return func(w *world, f *PlannedFault, _ *rand.Rand) error {
		w.awaitMoment(f, -1, "")
		s := w.server(f)
		return w.during(window{fault: name, process: -1}, f.Length, func(on bool) {
			s.Use(func(db *memredis.Server) {
				if on {
					db.SetFault(state)
				} else {
					db.SetFault(memredis.Healthy)
				}
			})
		})
	}
}

// restartServer restarts a server, which reads its data for as long as it was down.
func (w *world) restartServer(f *PlannedFault, _ *rand.Rand) error {
	w.awaitMoment(f, -1, "")
	s := w.server(f)
	return w.during(window{fault: faultRestart, process: -1}, f.Length/2, func(on bool) {
		if on {
			s.Kill(func(db *memredis.Server) { db.Restore(db.Snapshot()) })
			return
		}
		s.Use(func(db *memredis.Server) { db.SetFault(memredis.Loading) })
		s.Start()
		w.round.sleep(f.Length / 2)
		s.Use(func(db *memredis.Server) { db.SetFault(memredis.Healthy) })
	})
}

// betweenStandStills is how long the machine runs at least between two standstills: one that a plan
// has earlier is left out. A waiter whose attempt was cut short by the first one looks again after
// a second.
const betweenStandStills = 1500 * time.Millisecond

// standStill stops all processes and the servers. Their clocks go on.
func (w *world) standStill(f *PlannedFault, _ *rand.Rand) error {
	w.awaitMoment(f, -1, "")
	if w.stoodStill != 0 && monotonic()-w.stoodStill < int64(betweenStandStills) {
		return nil
	}
	w.round.injected("standstill")
	stall := w.round.begin(window{fault: faultStall, process: -1})
	advance(int64(f.Length))
	w.round.finish(stall)
	w.stoodStill = monotonic()
	return nil
}

func (w *world) restartEmpty(f *PlannedFault, _ *rand.Rand) error {
	w.awaitMoment(f, -1, "")
	return w.loseData(faultDataLoss, f, (*memredis.Server).Forget)
}

// restartOld is what clients see when a replica takes over that lacks the latest writes.
func (w *world) restartOld(f *PlannedFault, rng *rand.Rand) error {
	var old memredis.Snapshot
	w.server(f).Use(func(db *memredis.Server) { old = db.Snapshot() })
	lag := w.round.begin(window{fault: faultFailover, process: noProcess})
	w.round.sleep(between(rng, 0, 200*time.Millisecond))
	w.awaitMoment(f, -1, "")
	w.round.finish(lag)
	return w.loseData(faultFailover, f, func(db *memredis.Server) { db.Restore(old) })
}

func (w *world) loseData(name string, f *PlannedFault, restart func(*memredis.Server)) error {
	r, s := w.round, w.server(f)
	r.injected(name)
	win := r.lose(name)
	defer r.finish(win)
	s.Kill(restart)
	r.endAct(win) // nothing that is acquired from now on is lost
	r.sleep(f.Length / 2)
	s.Start()
	r.nextGeneration()
	return nil
}

// The faults of simulations only.
const (
	faultEviction = "eviction"
	faultForward  = "clock-forward"
	faultBack     = "clock-back"
	faultMinutes  = "minutes"

	faultPubSubOfAll = "pubsub-of-all"

	faultPromotion = "promotion"
	faultSplit     = "split"
)

// server is the target of a fault: the primary, or one of the independent ones.
func (w *world) server(f *PlannedFault) *simnet.Server {
	if w.plan.Topology == Independent {
		return w.servers[f.Server]
	}
	return w.servers[w.primary.Load()]
}

// promote makes the former primary read-only before its name moves: no write is accepted that is
// forgotten later, except the writes that the replica has not seen yet.
func (w *world) promote(f *PlannedFault, rng *rand.Rand) error {
	return w.changePrimary(f, rng, func(former, next *simnet.Server, lost *window) {
		former.Use(func(db *memredis.Server) { db.SetReadOnly(true) })
		w.round.endAct(lost) // nothing that is acquired from now on is lost
		w.round.sleep(between(rng, 0, f.Length/2))
		w.movePrimary(next)
	})
}

// split lets two servers accept writes for a while. Those of the former primary are forgotten.
func (w *world) split(f *PlannedFault, rng *rand.Rand) error {
	return w.changePrimary(f, rng, func(former, next *simnet.Server, lost *window) {
		w.movePrimary(next)
		w.round.sleep(between(rng, 0, f.Length/2))
		former.Use(func(db *memredis.Server) { db.SetReadOnly(true) })
		w.round.endAct(lost)
	})
}

// changePrimary lets the replica take over from the primary. change does it. Then the former
// primary answers reads with its old data for a while, before it follows the new one. Its
// connections stay open all the time.
func (w *world) changePrimary(
	f *PlannedFault, rng *rand.Rand, change func(former, next *simnet.Server, lost *window),
) error {
	r := w.round
	if w.plan.Topology == Independent || !r.exclusive.take("primary") {
		return nil
	}
	defer r.exclusive.give("primary")
	former, next := w.server(f), w.servers[1-w.primary.Load()]
	follow(next, former) // the replica has all writes so far; later ones are still on their way to it
	lag := r.begin(window{fault: faultFailover, process: noProcess})
	r.sleep(between(rng, 0, 200*time.Millisecond))
	w.awaitMoment(f, -1, "")
	r.finish(lag)
	r.injected(faultFailover)
	lost := r.lose(faultFailover)
	change(former, next, lost)
	r.nextGeneration()
	r.sleep(between(rng, 0, f.Length/2))
	follow(former, next)
	r.finish(lost)
	return nil
}

// movePrimary promotes a server, and lets the name of the primary lead to it.
func (w *world) movePrimary(next *simnet.Server) {
	former := w.servers[w.primary.Load()]
	next.Use((*memredis.Server).Promote)
	w.primary.Store(1 - w.primary.Load())
	w.net.Name(primaryName, next)
	w.harness.Route(former).Reset()
}

// evict lets a server evict some keys of the round.
func (w *world) evict(f *PlannedFault, rng *rand.Rand) error {
	w.awaitMoment(f, -1, "")
	r := w.round
	r.injected(faultEviction)
	w.server(f).Use(func(db *memredis.Server) {
		keys := db.Keys()
		rng.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
		for _, key := range keys[:min(len(keys), 1+rng.IntN(3))] {
			lost := r.begin(window{fault: faultEviction, process: -1, lossy: true, names: w.namesOf(key)})
			db.Evict(key)
			r.finish(lost)
		}
	})
	r.losses.Add(1)
	r.nextGeneration()
	return nil
}

// namesOf returns the names whose data a key is a part of; all of them, if nobody knows.
func (w *world) namesOf(key string) (names []string) {
	for _, p := range w.plan.Primitives {
		at := strings.Index(key, w.round.tag+":"+p+":")
		if at < 0 {
			continue
		}
		// The name of a pool or a latch ends with a generation, that of a member of a joint lock
		// with its number.
		name := strings.FieldsFunc(key[at:], func(c rune) bool { return c == '}' })[0]
		parts := strings.Split(name, ":")
		for n := 3; n <= len(parts); n++ {
			names = append(names, strings.Join(parts[:n], ":"))
		}
	}
	return names
}

// jump lets the clock of a server jump, together with that of its replica.
func (w *world) jump(f *PlannedFault, d time.Duration) error {
	w.awaitMoment(f, -1, "")
	r := w.round
	together := w.servers
	if w.plan.Topology == Independent {
		together = []*simnet.Server{w.server(f)}
	}
	name := faultForward
	if d < 0 {
		name = faultBack
	}
	r.injected(name)
	began := r.begin(window{fault: name, process: -1, jump: d})
	for _, s := range together {
		s.Use(func(db *memredis.Server) { db.Jump(d) })
	}
	r.endAct(began)
	r.sleep(max(-d, 0)) // what ends by the server's clock ends as much later
	r.finish(began)
	return nil
}

// strandCommands holds commands back for a while, and delivers them minutes later.
func (w *world) strandCommands(f *PlannedFault, rng *rand.Rand) error {
	w.awaitMoment(f, f.Watched, "")
	p, routes := w.routes(f)
	after := between(rng, time.Minute, copyAgeLimit)
	return w.during(window{fault: faultHole, process: p.id}, f.Length, func(on bool) {
		for _, route := range routes {
			if !on {
				route.Strand(after)
			}
			route.Hold(simnet.ToServer, on)
		}
	})
}

// restartProcess lets the last commands of a process arrive after those of the process that takes
// its place, which may have the same client id.
func (w *world) restartProcess(f *PlannedFault, rng *rand.Rand) error {
	w.awaitMoment(f, f.Watched, "")
	p, routes := w.routes(f)
	r := w.round
	began := r.begin(window{fault: faultHole, process: p.id})
	for _, route := range routes {
		route.Hold(simnet.ToServer, true)
	}
	r.sleep(between(rng, 0, 20*time.Millisecond))
	err := w.replaceProcess(f, 0)
	r.sleep(f.Length)
	for _, route := range routes {
		route.Hold(simnet.ToServer, false)
	}
	r.finish(began)
	return err
}
