package torture

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Plan decides everything of a simulated round. Whatever is left out of it, the rest stays as it
// is: each step and each fault has random numbers of its own.
type Plan struct {
	Seed       uint64           `json:"seed"`
	Theme      string           `json:"theme,omitempty"`
	Topology   string           `json:"topology"` // Single or Independent
	Pace       pace             `json:"pace"`
	TTL        time.Duration    `json:"ttl"`
	Length     time.Duration    `json:"length"` // the round ends no later
	Names      int              `json:"names"`  // of each primitive
	Primitives []string         `json:"primitives"`
	Rates      rates            `json:"rates"`
	Long       int              `json:"long"` // one hold in so many lasts
	Processes  []PlannedProcess `json:"processes"`
	Faults     []PlannedFault   `json:"faults"`
}

// PlannedProcess is a client process.
type PlannedProcess struct {
	ClientID string   `json:"client_id,omitempty"` // of WithClientID, also of those that replace it
	Sessions [][]Step `json:"sessions"`            // what each of its goroutines does
}

// Step is one action of a session. It begins at its instant, or when the step before has ended.
type Step struct {
	At        time.Duration `json:"at"`
	Primitive string        `json:"primitive"`
	Seed      uint64        `json:"seed"`
}

// PlannedFault is a fault. With a moment, it begins when that comes after its instant, or a little
// later if it does not come.
type PlannedFault struct {
	Kind    string        `json:"kind"`
	At      time.Duration `json:"at"`
	Length  time.Duration `json:"length"`
	Process int           `json:"process"`
	Watched int           `json:"watched"` // the process whose moment it is; -1: any
	Server  int           `json:"server"`
	Moment  string        `json:"moment,omitempty"`
	Name    string        `json:"name,omitempty"`
	Seed    uint64        `json:"seed"`
}

// simulatedRates are the rates of operations in simulations. Takeovers and minimum holds are more
// frequent there.
var simulatedRates = rates{
	TakeOver: 12, Detach: 8, Leave: 6, habits: habits{Inspect: 6, Nest: 4, Fixed: 8, Limit: 12, Minimum: 5},
}

// vary returns other rates of a round: half of them are as usual, some are much higher and some are
// much lower. A defect where two features meet needs rounds in which both are frequent. Others keep
// a third feature out.
func (r rates) vary(rng *rand.Rand) rates {
	for _, n := range []*int{&r.TakeOver, &r.Detach} { // which excuse much
		varyRate(rng, n, 2)
	}
	for _, n := range []*int{&r.Inspect, &r.Nest, &r.Fixed, &r.Limit, &r.Minimum} {
		varyRate(rng, n, 3)
	}
	return r
}

// varyRate makes a rate high in some of eight rounds, and low in two of them.
func varyRate(rng *rand.Rand, n *int, high int) {
	switch drawn := rng.IntN(8); {
	case drawn < high:
		*n = often
	case drawn < high+2:
		*n *= 8
	}
}

// often is the rate of an act that is frequent in a round.
const often = 2

// moment returns the moment of a fault. For a fifth of the faults a hold is about to be let go. In
// half of the others it is that of an act which is frequent in the round, if there is one.
func (r rates) moment(rng *rand.Rand) string {
	if rng.IntN(5) == 0 {
		return momentEnding
	}
	var frequent []string
	if r.Inspect == often {
		frequent = append(frequent, momentExtend)
	}
	if r.Nest == often {
		frequent = append(frequent, momentNest)
	}
	usual := aMoment(rng)
	if len(frequent) == 0 || rng.IntN(2) == 0 {
		return usual
	}
	return frequent[rng.IntN(len(frequent))]
}

// MakePlan returns the plan of a seed. Consecutive seeds have the paces, the primitives and the
// faults in turn, so that a few hundred of them leave nothing out.
func MakePlan(seed uint64) *Plan {
	rng := seeded(seed, 2024)
	p := &Plan{
		Seed: seed, Topology: Single, Pace: paceMixed, Names: 1 + rng.IntN(namesOf), Rates: simulatedRates, Long: 6,
		TTL: []time.Duration{300, 600, 600, 1000}[rng.IntN(4)] * time.Millisecond,
	}
	processes, sessions, steps := 2+rng.IntN(3), 2+rng.IntN(3), 12
	theme, themeTurn := themeOfPlan(seed)
	kinds, turn := 1+rng.IntN(3), withoutTheme(seed)
	pause := 40 * time.Millisecond
	if rng.IntN(5) == 0 { // what a client does by itself, such as to linger, needs that no other client waits
		processes, sessions = 1, 4+rng.IntN(3)
	}
	if rng.IntN(4) == 0 { // holds that last for some renewals, and meet more of the faults
		p.Long = 2
	}
	switch seed % 8 {
	case 3:
		p.Pace, p.Names, p.Long, p.Rates, kinds = paceCrowd, 1, 48, rareTakeovers, 1
		processes, sessions, steps, pause, turn = 2, 4, 60, 2*time.Millisecond, seed/8
	case 6:
		p.Pace, p.Names, p.TTL = paceCalm, 1, longTTL*p.TTL
		processes, sessions, steps, pause, turn = 2+rng.IntN(3), 1, 8, 300*time.Millisecond, seed/8
	default:
		if theme.few {
			processes, sessions, pause = 2, 1, longPause
		}
	}
	usable := slices.DeleteFunc(weighted(), func(name string) bool {
		return !p.Pace.judges(name) || p.Pace == paceCrowd && workloads[name].polls
	})
	p.Primitives = []string{usable[turn%uint64(len(usable))]}
	for _, i := range rng.Perm(len(usable))[:kinds-1] {
		if !slices.Contains(p.Primitives, usable[i]) {
			p.Primitives = append(p.Primitives, usable[i])
		}
	}
	isThemed := p.Pace == paceMixed && theme.name != ""
	if isThemed {
		p.Theme, p.Primitives = theme.name, theme.primitivesOf(themeTurn, usable, rng)
	}
	if slices.Contains(p.Primitives, "redlock") && rng.IntN(4) > 0 {
		p.Topology = Independent
	}
	named := rng.IntN(3) == 0
	for i := range processes {
		process := PlannedProcess{}
		if named {
			process.ClientID = fmt.Sprintf("%08x-0000-4000-8000-%012x", seed&0xffffffff, i)
		}
		for range sessions {
			var list []Step
			at := between(rng, 0, pause)
			for range steps {
				list = append(list, Step{At: at, Primitive: p.Primitives[rng.IntN(len(p.Primitives))], Seed: rng.Uint64()})
				at += between(rng, 0, 2*pause)
				if rng.IntN(12) == 0 && p.Pace == paceMixed {
					at += between(rng, 0, 2*p.TTL)
				}
			}
			p.Length = max(p.Length, at+2*time.Second)
			process.Sessions = append(process.Sessions, list)
		}
		p.Processes = append(p.Processes, process)
	}
	if p.Pace == paceMixed {
		p.Rates = p.Rates.vary(rng)
	}
	switch {
	case isThemed:
		if theme.shape != nil {
			theme.shape(p)
		}
		p.planFaultsOf(theme, rng)
	case p.Pace == paceMixed:
		p.planFaults(rng)
	case p.Pace == paceCalm && seed/8%4 != 0:
		kind := []string{faultPubSub, faultPubSub, faultRefuse, "hole-and-reset"}[rng.IntN(4)]
		p.planCuts(rng, kind, 8+rng.IntN(8))
	}
	return p
}

// weighted returns the primitives of simulations. Those of which there are many variants are there
// twice.
func weighted() []string {
	return append(slices.Clone(simulatedPrimitives), "rwlock", "redlock", "permits")
}

// planCuts draws faults that break connections, lose messages, and are over soon. In a calm round,
// a client often waits alone, and nobody else wakes it up.
func (p *Plan) planCuts(rng *rand.Rand, kind string, n int) {
	for range n {
		f := p.aFault(rng, kind, rng.IntN(len(p.Processes)))
		f.Length = between(rng, 0, 60*time.Millisecond)
		f.Watched, f.Moment = -1, momentEnding
		p.Faults = append(p.Faults, f)
	}
	p.sortFaults()
}

// mixedBefore is how many of the seeds before a seed have rounds of the mixed pace, the only ones
// with faults.
func mixedBefore(seed uint64) uint64 {
	return seed/8*6 + [...]uint64{0, 1, 2, 3, 3, 4, 5, 5}[seed%8]
}

// planFaults draws the faults of a round without a theme: none in a fifth of the rounds, and else
// of one to three kinds. In half of the rounds they spare some of the processes, whose calls have
// no excuse then.
func (p *Plan) planFaults(rng *rand.Rand) {
	if rng.IntN(5) == 0 {
		return
	}
	kinds := simulatedKinds()
	if p.Topology == Independent {
		kinds = slices.DeleteFunc(kinds, func(kind string) bool { return slices.Contains(ofReplicas, kind) })
	}
	chosen := []string{kinds[withoutTheme(p.Seed)%uint64(len(kinds))]}
	if p.Topology == Independent && rng.IntN(2) == 0 { // one member of a redlock loses what the others keep
		chosen = append(chosen, []string{faultDataLoss, faultEviction}[rng.IntN(2)])
	}
	for range 2 {
		if rng.IntN(2) == 0 {
			chosen = append(chosen, kinds[rng.IntN(len(kinds))])
		}
	}
	victims := len(p.Processes)
	if rng.IntN(2) == 0 {
		victims = 1 + rng.IntN(victims)
	}
	for range 3 + rng.IntN(6) {
		kind := chosen[rng.IntN(len(chosen))]
		times := 1
		if slices.Contains(ofOperators, kind) { // it disturbs one name, for a moment
			times = 3
		}
		for range times {
			p.Faults = append(p.Faults, p.aFault(rng, kind, rng.IntN(victims)))
		}
	}
	p.planOperators()
	if rng.IntN(4) == 0 { // which excuse little
		p.planCuts(rng, faultPubSub, 4+rng.IntN(4))
	}
	p.sortFaults()
	if slices.ContainsFunc(p.Faults, func(f PlannedFault) bool { return f.Kind == faultMinutes }) {
		p.goOn(rng)
	}
}

// planOperators adds acts of operators of one kind to every second round with faults. They disturb
// one name for a moment, so they meet all other faults without excusing much.
func (p *Plan) planOperators() {
	rng := seeded(p.Seed, 2025)
	if rng.IntN(2) == 0 || len(p.operated()) == 0 {
		return
	}
	kind := ofOperators[rng.IntN(len(ofOperators))]
	for range 2 + rng.IntN(4) {
		f := p.aFault(rng, kind, rng.IntN(len(p.Processes)))
		if rng.IntN(2) == 0 { // between an acquisition and the release that follows
			f.Moment = momentHeld
		}
		p.Faults = append(p.Faults, f)
	}
}

// operated are the primitives of the plan on which operators act.
func (p *Plan) operated() []string {
	return slices.DeleteFunc(slices.Clone(p.Primitives), func(name string) bool { return !workloads[name].operator })
}

// aFault draws a fault of a kind.
func (p *Plan) aFault(rng *rand.Rand, kind string, process int) PlannedFault {
	span := p.Length - 2*time.Second
	f := PlannedFault{
		Kind: kind, At: between(rng, 0, span), Length: between(rng, p.TTL/8, 2*p.TTL),
		Process: process, Watched: process, Moment: p.Rates.moment(rng), Seed: rng.Uint64(),
	}
	if rng.IntN(5) < 2 { // what one process does meets a fault of another one
		f.Watched = -1
	}
	if rng.IntN(5) < 2 { // so long that calls begin and end within it
		f.Length += 2 * p.TTL
	}
	if p.Topology == Independent {
		f.Server = rng.IntN(redLockMembers)
	}
	named := p.Primitives
	if operated := p.operated(); slices.Contains(ofOperators, kind) && len(operated) > 0 {
		named = operated
	}
	f.Name = lockName("sim", named[rng.IntN(len(named))], rng.IntN(p.Names))
	return f
}

// goOn gives each session steps for the minutes in which late commands arrive.
func (p *Plan) goOn(rng *rand.Rand) {
	const steps = 4
	for _, process := range p.Processes {
		for n := range process.Sessions {
			for i := range steps {
				at := between(rng, time.Minute+time.Duration(i)*copyAgeLimit/steps/2, copyAgeLimit)
				process.Sessions[n] = append(process.Sessions[n], Step{
					At: at, Primitive: p.Primitives[rng.IntN(len(p.Primitives))], Seed: rng.Uint64(),
				})
				p.Length = max(p.Length, at+2*time.Second)
			}
			slices.SortFunc(process.Sessions[n], func(a, b Step) int { return int(a.At - b.At) })
		}
	}
}
