package torture

import (
	"math/rand/v2"
	"slices"
	"time"
)

// A round has a theme: one fault, or two that combine, or none. Its time is divided into slots, and
// in each slot most sessions use the same few primitives, so they meet on few names, and each
// primitive meets each fault of the round. Consecutive seeds have the themes in turn.

const (
	slotPrimitives = 4                       // how many primitives most sessions use in a slot
	slotLength     = 1200 * time.Millisecond // default
)

// theme is what a round injects.
type theme []*fault

// pace is how the sessions of a round go on. Without faults they go on in two ways, in turn.
type pace string

const (
	paceMixed pace = "mixed" // many short holds, and some that last for renewals
	// paceCrowd: all sessions are on one name at a time, for a short time each. The clients must
	// take turns.
	paceCrowd pace = "crowd"
	// paceCalm: few sessions, with pauses. Often one client waits alone, and only the release can
	// wake it up.
	paceCalm pace = "calm"
)

// withoutFaults is how many rounds have no fault, while each fault has its round: crowds and calm
// rounds in turn.
const withoutFaults = 4

// fewFaults is how many faults somebody selects who wants to see these. Then no round is without.
const fewFaults = 4

// themeOf returns the theme of the round with a seed. Some rounds have a second fault, of a client,
// its network or an operator.
func themeOf(seed uint64, enabled []fault) (theme, pace) {
	n := uint64(len(enabled))
	rounds := n
	if n == 0 || n > fewFaults {
		rounds += withoutFaults
	}
	switch i := seed % rounds; {
	case i >= n && (i-n)%2 == 0:
		return nil, paceCrowd
	case i >= n:
		return nil, paceCalm
	default:
		t := theme{&enabled[i]}
		rng := seeded(seed, 2)
		if other := &enabled[rng.IntN(len(enabled))]; other != t[0] && rng.IntN(2) == 0 && other.combines() {
			t = append(t, other)
		}
		return t, paceMixed
	}
}

// has reports whether the fault of that name is part of the theme.
func (t theme) has(name string) bool {
	return slices.ContainsFunc(t, func(f *fault) bool { return f.name == name })
}

// combines reports whether the fault can be the second one of a theme.
func (f *fault) combines() bool {
	return f.process != nil || f.name == faultDelete || f.name == faultForce || f.name == faultScripts
}

// draw returns a fault of the theme: mostly the first.
func (t theme) draw(rng *rand.Rand) *fault {
	if len(t) > 1 && rng.IntN(3) == 0 {
		return t[1]
	}
	return t[0]
}

// slots says which primitives are used when. It needs no state: all processes read the same clock.
type slots struct {
	Length time.Duration `json:"length"`
	Groups [][]string    `json:"groups"`
}

// slotsOf divides the time of a round among its primitives, so many to a slot. The seed decides
// which of them meet. Without faults a slot must be longer than the patience of the checks, so
// there are only some of the primitives.
func slotsOf(names []string, p pace, length time.Duration, seed uint64) slots {
	names = slices.Clone(names)
	judged := func(name string) bool { return p.judges(name) }
	if slices.ContainsFunc(names, judged) {
		names = slices.DeleteFunc(names, func(name string) bool { return !judged(name) })
	}
	rng := seeded(seed, 3)
	rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	each, most := slotPrimitives, len(names)
	switch p {
	case paceMixed:
	case paceCrowd:
		each, most = 1, 3
	case paceCalm:
		each, most = 2, slotPrimitives
	}
	s := slots{Groups: slices.Collect(slices.Chunk(names[:min(most, len(names))], each))}
	s.Length = max(length/time.Duration(len(s.Groups)), time.Millisecond)
	return s
}

// judges reports whether the check that a pace is for judges a primitive: that of turns, or that of
// wake-ups.
func (p pace) judges(primitive string) bool {
	switch p {
	case paceCrowd:
		return !slices.Contains([]string{"semaphore", "permits", "latch", "multi", "redlock", electionPrimitive}, primitive)
	case paceCalm:
		return !slices.Contains([]string{"spin", "latch", "multi", "redlock"}, primitive)
	case paceMixed:
	}
	return true
}

// at returns the primitives of the slot at an instant.
func (s slots) at(now int64) []string {
	return s.Groups[now/int64(s.Length)%int64(len(s.Groups))]
}

// pick returns a primitive to use now.
func (s slots) pick(now int64, rng *rand.Rand) string {
	group := s.at(now)
	if rng.IntN(8) == 0 {
		group = s.Groups[rng.IntN(len(s.Groups))]
	}
	return group[rng.IntN(len(group))]
}
