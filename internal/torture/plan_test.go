package torture

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A seed always has the same plan, and a few hundred seeds leave nothing out.
func TestPlans(t *testing.T) {
	used := map[string]int{}
	rates, spares := map[string]int{}, 0
	for seed := range uint64(200) {
		p := MakePlan(seed)
		require.Equal(t, p, MakePlan(seed))
		used["pace "+string(p.Pace)]++
		used["topology "+p.Topology]++
		for _, name := range p.Primitives {
			used[string(p.Pace)+" "+name]++
		}
		for _, f := range p.Faults {
			used[f.Kind]++
			require.Less(t, f.Process, len(p.Processes))
			isCut := p.Pace == paceCalm && slices.Contains([]string{faultPubSub, faultRefuse, "hole-and-reset"}, f.Kind)
			require.True(t, isCut || p.Pace == paceMixed, "seed %d: %s", seed, f.Kind)
			used["at a moment of any process"] += min(f.Watched, 0)
		}
		hit, faults := map[int]bool{}, 0
		for _, f := range p.Faults {
			if slices.Contains(ofOperators, f.Kind) {
				operated := len(p.operated()) == 0 || workloads[strings.Split(f.Name, ":")[1]].operator
				require.True(t, operated, "seed %d: %s of %s", seed, f.Kind, f.Name)
				continue
			}
			if f.Kind == faultPubSub { // it is over at once
				continue
			}
			faults++
			hit[f.Process] = true
		}
		if faults >= 5 && len(p.Processes) >= 3 && len(hit) == 1 {
			spares++
		}
		for name, rate := range map[string][2]int{
			"take over": {p.Rates.TakeOver, simulatedRates.TakeOver}, "detach": {p.Rates.Detach, simulatedRates.Detach},
			"inspect": {p.Rates.Inspect, simulatedRates.Inspect}, "nest": {p.Rates.Nest, simulatedRates.Nest},
			"fixed": {p.Rates.Fixed, simulatedRates.Fixed}, "limit": {p.Rates.Limit, simulatedRates.Limit},
			"minimum": {p.Rates.Minimum, simulatedRates.Minimum},
		} {
			rates[name+" "+[...]string{"often", "usual", "seldom"}[1+cmp.Compare(rate[0], rate[1])]]++
		}
	}
	require.Negative(t, used["at a moment of any process"])
	require.Greater(t, spares, 3)
	require.Len(t, rates, 7*3, "%v", rates)
	for _, pace := range []pace{paceMixed, paceCrowd, paceCalm} {
		require.Positive(t, used["pace "+string(pace)])
		for _, name := range simulatedPrimitives {
			if pace.judges(name) && !(pace == paceCrowd && workloads[name].polls) {
				require.Positive(t, used[string(pace)+" "+name], "%s %s", pace, name)
			}
		}
	}
	for _, topology := range []string{Single, Independent} {
		require.Positive(t, used["topology "+topology], topology)
	}
	for _, f := range SimulatedFaults() {
		require.Positive(t, used[f.Name], f.Name)
	}
}

// In a hundred seeds each theme comes four times at least, and each of its primitives with it.
func TestThemesOfPlans(t *testing.T) {
	seen, themes := map[string]int{}, 0
	for seed := range uint64(100) {
		p := MakePlan(seed + 1)
		seen[p.Theme]++
		for _, name := range p.Primitives {
			seen[p.Theme+" "+name]++
		}
	}
	for _, theme := range planThemes {
		if theme.name == "" {
			continue
		}
		themes++
		require.GreaterOrEqual(t, seen[theme.name], 4, theme.name)
		for _, name := range theme.primitives {
			require.Contains(t, simulatedPrimitives, name)
		}
		for _, kind := range theme.faults {
			require.Contains(t, simulatedFaults, kind)
		}
	}
	require.Greater(t, seen[""], 4*themes/2, "rounds without a theme")
}

// A latch is open from the count-down that opens it to the next call that may close it.
func TestOpenTimes(t *testing.T) {
	call := func(do string, begin, end int64, permits int, count int64) *op {
		return &op{
			call: record{Do: do, At: begin, Permits: permits, Primitive: "latch", Names: []string{"l"}},
			ret:  &record{At: end, Outcome: outcomeOK, Count: count},
		}
	}
	created := call(opInit, 10, 20, 2, 1)
	ops := []*op{
		call(opCountDown, 5, 25, 0, 0), // perhaps of the latch before
		created, call(opCountDown, 30, 40, 0, 0), call(opCountDown, 32, 60, 0, 0),
	}
	require.Equal(t, []interval{{60, never}}, openTimes(ops))
	require.Equal(t, []interval{{60, 90}}, openTimes(append(ops, call(opInit, 90, 95, 2, 1))))
	require.Equal(t, []interval{{60, never}}, openTimes(append(ops, call(opInit, 50, 55, 2, 0)))) // there was one
	unknown := call(opInit, 50, 55, 2, 0)
	unknown.ret.Outcome = outcomeUnknown
	require.Empty(t, openTimes(append(ops, unknown)))
	require.Empty(t, openTimes(ops[:3]))
}

// A wait that goes on although the latch is open is a violation, unless a fault explains it.
func TestWaitForAnOpenLatch(t *testing.T) {
	const ms = int64(time.Millisecond)
	begin := int64(time.Minute)
	call := func(do string, from, to int64, permits int, count int64) *op {
		return &op{
			call: record{Do: do, At: begin + from*ms, Permits: permits, Primitive: "latch", Names: []string{"l"}},
			ret:  &record{At: begin + to*ms, Outcome: outcomeOK, Count: count}, died: never,
		}
	}
	h := &history{exact: true, begin: begin, end: begin + 1000*ms}
	h.names = map[string][]*op{"l": {
		call(opInit, 0, 1, 1, 1), call(opCountDown, 10, 11, 0, 0), call(opAwait, 5, 12, 0, 0),
	}}
	require.Empty(t, h.checkLatches())
	h.names["l"] = append(h.names["l"], call(opAwait, 6, 500, 0, 0))
	require.Len(t, h.checkLatches(), 1)
	h.windows = []window{{interval: interval{begin, begin + 20*ms}, fault: faultMessages, process: 0}}
	require.Empty(t, h.checkLatches())
}
