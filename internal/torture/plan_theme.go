package torture

import (
	"math/rand/v2"
	"slices"
	"time"
)

// Two features that meet, at the instant of a fault, do so in few rounds if each of them is drawn
// by itself. Therefore most rounds have a theme: a few primitives, habits and faults that meet, at
// a high rate. Consecutive rounds have the themes in turn, so that each comes some times in a
// hundred seeds. A theme names what may meet, and never how. Every fourth round has none, and a
// part of the others is as if it had none: so whatever nobody thought of may meet, too.

// planTheme is what meets in a round.
type planTheme struct {
	name       string
	primitives []string // a round has two of them, in turn
	faults     []string // it has some of these
	moments    []string // when the faults begin; nil: as in other rounds
	// count is about how many faults there are.
	count int
	// few: there are two sessions, so that locks are free at times, and one waits alone.
	few bool
	// long: the faults last for longer than calls.
	long bool
	// shape changes what else the round has.
	shape func(p *Plan)
}

// Kinds of faults, for themes.
var (
	lossesOfAnswers  = []string{"lost-replies", "late-answers", "held-replies"}
	lossesOfCommands = []string{"lost-commands", "late-commands", "hole"}
)

// Primitives, for themes.
var (
	ofHolds = []string{"lock", "fenced", "fair", "rwlock", "permits", "owner", "election"}
	cutOff  = []string{"rwlock", "semaphore", "permits", "lock", "fair", "nested"}
	waited  = []string{"lock", "fair", "rwlock", "semaphore", "permits", "fenced", "nested", "election", keyedPrimitive}
)

// planThemes are the themes of rounds. The one without a name is that of rounds that have none.
var planThemes = []planTheme{
	{},
	{ // Callers of one owner, of whom some do not know whether Redis has executed what they sent.
		name: "owners", primitives: []string{"owner"}, faults: lossesOfCommands, count: 8,
		moments: []string{momentAcquire, momentRelease, momentStay},
		shape: func(p *Plan) {
			p.Names, p.Long, p.Rates.GiveUp, p.Rates.TakeOver, p.Rates.Detach = 1, 3, often, seldom, seldom
		},
	},
	{ // Holds with limits, which are extended, and last to their ends.
		name: "limits", primitives: ofHolds, faults: []string{"slow", "late-answers", faultStop}, count: 2,
		shape: func(p *Plan) {
			p.Rates.Limit, p.Rates.Fixed, p.Rates.Inspect, p.Rates.Past = often, 2*often, often, often
			p.Rates.TakeOver = seldom
		},
	},
	{ // Waiters that give up, while others wait behind them.
		name: "giving up", primitives: waited, faults: lossesOfAnswers, count: 2,
		moments: []string{momentAcquire, momentRelease},
		shape: func(p *Plan) {
			p.Names, p.Long, p.Rates.GiveUp, p.Rates.TakeOver, p.Rates.Minimum = 1, 3, often, seldom, seldom
		},
	},
	{},
	{ // Wake-ups that are lost, and nothing else that wakes anybody up.
		name: "cuts", primitives: cutOff, faults: []string{faultPubSubOfAll}, count: 14, few: true,
		moments: []string{momentEnding},
		shape: func(p *Plan) {
			p.Names, p.Long, p.Rates.TakeOver, p.Rates.Detach = 1, 2, seldom, seldom
		},
	},
	{ // Copies that come late, often when their lock is free.
		name: "copies", primitives: []string{"lock", "fair", "semaphore", "rwlock", "fenced", "latch", "permits", "owner"},
		faults: []string{"copies", "lost-replies"}, count: 8, few: true, moments: []string{"", momentAcquire, momentRelease},
		shape: func(p *Plan) { p.Long, p.Rates.TakeOver, p.Rates.Detach = 12, seldom, seldom },
	},
	{ // Joint holds that lose members.
		name: "members", primitives: []string{"multi", "redlock"},
		faults: []string{faultDelete, faultDelete, faultDelete, faultDataLoss, faultEviction}, count: 14,
		moments: []string{momentHeld, momentHeld, momentStay},
		shape:   func(p *Plan) { p.Long, p.Rates.Middle = 4, often },
	},
	{},
	{ // Minimum holds, of what is taken over, lost, acquired again or released early.
		name: "minimum holds", primitives: []string{"redlock", "lock", "redlock", "rwlock", "fair", "permits", "fenced"},
		faults: []string{faultDataLoss, faultEviction, faultForce}, count: 8, moments: []string{momentHeld, momentStay},
		shape: func(p *Plan) { p.Long, p.Rates.Minimum, p.Rates.Inspect = 3, often, often },
	},
	{ // Holds that others take over, while they are renewed, on slow connections.
		name: "takeovers", primitives: ofHolds, faults: []string{"slow", "late-answers", "held-replies", faultStop}, count: 5,
		moments: []string{momentRenew, momentOld, momentStay, momentExtend},
		shape: func(p *Plan) {
			p.Long, p.Rates.TakeOver, p.Rates.Detach, p.Rates.Inspect = 2, 3, 3, often
		},
	},
	{ // What has no lease, or has counts.
		name: "counts", primitives: []string{"semaphore", "permits", "latch", "semaphore", "owner"},
		faults: append(slices.Clone(lossesOfAnswers), "copies", "hole-and-reset"), count: 6,
		moments: []string{momentAcquire, momentRelease, momentRenew},
	},
	{},
	{ // Locks that pass on within a client, with whatever else a hold can do.
		name: "passing on", primitives: []string{"cohort", "linger", "rwlock"},
		faults: []string{faultPubSub, "slow", "held-replies", faultDelete}, count: 4,
		shape: func(p *Plan) { p.Rates.Inspect, p.Rates.Nest, p.Long = often, often, 4 },
	},
	{ // Candidates that lead, resign and crash.
		name: "elections", primitives: []string{"election"}, faults: []string{"kill", faultDelete, faultStop, faultPubSub},
		count: 2, moments: []string{momentHeld, momentEnding, momentStay},
		shape: func(p *Plan) { p.Names, p.Long = 1, 2 },
	},
	{ // Servers that say nothing for longer than calls wait for them.
		name: "silence", primitives: []string{"lock", "rwlock", "fair", "owner", "fenced", "spin"},
		faults: []string{"hole", "refuse", "hole-and-reset", "dials"}, count: 5, long: true,
		shape: func(p *Plan) { p.Rates.TryDo = often },
	},
	{ // Processes that stand still, more than once while they hold.
		name:       "standing still",
		primitives: []string{"lock", "rwlock", "fair", "permits", "multi", "cohort", "redlock", "owner"},
		faults:     []string{faultStop, "standstill", faultStop}, count: 5,
		moments: []string{momentStay, momentRenew, momentRelease, momentAcquire},
		shape:   func(p *Plan) { p.Long, p.Rates.Inspect = 2, often },
	},
}

// seldom is the rate of an act that a round mostly leaves out.
const seldom = 200

// themeOfPlan returns the theme of the round with a seed, and how often the theme has come before.
func themeOfPlan(seed uint64) (t *planTheme, turn uint64) {
	n := mixedBefore(seed)
	return &planThemes[n%uint64(len(planThemes))], n / uint64(len(planThemes))
}

// withoutTheme returns how many rounds before that of a seed have no theme.
func withoutTheme(seed uint64) (n uint64) {
	mixed, all := mixedBefore(seed), uint64(len(planThemes))
	for i, t := range planThemes {
		if t.name == "" {
			n += (mixed + all - 1 - uint64(i)) / all
		}
	}
	return n
}

// primitivesOf returns the primitives of a round of the theme, from those that are usable. A
// quarter of the rounds have one of the others, too.
func (t *planTheme) primitivesOf(turn uint64, usable []string, rng *rand.Rand) []string {
	n := uint64(len(t.primitives))
	out := []string{t.primitives[turn%n]}
	other := t.primitives[(turn+1+turn/n)%n]
	if rng.IntN(2) == 0 && !slices.Contains(out, other) {
		out = append(out, other)
	}
	if rng.IntN(4) == 0 {
		out = append(out, usable[rng.IntN(len(usable))])
		slices.Sort(out)
		out = slices.Compact(out)
	}
	return out
}

// planFaultsOf draws the faults of a round with a theme. In half of the rounds they spare some of
// the processes. A quarter have a fault of another kind.
func (p *Plan) planFaultsOf(t *planTheme, rng *rand.Rand) {
	kinds := simulatedKinds()
	usable := func(kind string) bool {
		return p.Topology == Single || !slices.Contains(ofReplicas, kind)
	}
	victims := len(p.Processes)
	if rng.IntN(2) == 0 {
		victims = 1 + rng.IntN(victims)
	}
	count := t.count/2 + rng.IntN(t.count+1)
	for range count {
		f := p.aFault(rng, t.faults[rng.IntN(len(t.faults))], rng.IntN(victims))
		if len(t.moments) > 0 && rng.IntN(4) > 0 {
			f.Moment = t.moments[rng.IntN(len(t.moments))]
		}
		if t.long {
			f.Length += 2 * commandTimeout
		}
		if f.Kind == faultPubSubOfAll {
			f.Watched, f.Moment = -1, momentEnding
		}
		p.Faults = append(p.Faults, f)
	}
	if kind := kinds[rng.IntN(len(kinds))]; rng.IntN(4) == 0 && usable(kind) {
		p.Faults = append(p.Faults, p.aFault(rng, kind, rng.IntN(victims)))
	}
	p.sortFaults()
	if slices.ContainsFunc(p.Faults, func(f PlannedFault) bool { return f.Kind == faultMinutes }) {
		p.goOn(rng)
	}
}

// sortFaults puts the faults in the order of their instants.
func (p *Plan) sortFaults() {
	slices.SortStableFunc(p.Faults, func(a, b PlannedFault) int { return int(a.At - b.At) })
}

// longPause is the pause between two steps of a session in a round with few of them.
const longPause = 400 * time.Millisecond
