//go:build !race

package protocol

import (
	"fmt"
	"hash/maphash"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

// step is a transition of a model with states of type S.
type step[S comparable] struct {
	label string // with a verb for the name of the actor
	actor int    // 0 is A
	// sure: it happens in the end, unless something fails or somebody decides otherwise.
	sure bool
	next S
}

// model is a set of states and transitions.
type model[S comparable] struct {
	start S
	// steps appends the transitions of a state.
	steps func(s S, to []step[S]) []step[S]
	// same maps states that differ in names only to one of them.
	same func(s S) S
	// check returns what is wrong with a state, "" if nothing is.
	check func(s S) string
	// done, if not nil: from every state, steps that are sure lead to one that is done.
	done func(s S) bool
}

// result is what explore found.
type result struct {
	states, steps int
	cut           bool     // there are more states
	violation     string   // "": none
	trace         []string // the shortest way to the violation
}

func (r result) String() string {
	if r.violation == "" {
		which := ""
		if r.cut {
			which = "the first "
		}
		return fmt.Sprintf("%s%d states, %d steps, no violation", which, r.states, r.steps)
	}
	return fmt.Sprintf("%s\n\t%s", r.violation, strings.Join(r.trace, "\n\t"))
}

func (r result) requireNoViolation(t *testing.T) {
	t.Helper()
	require.Empty(t, r.violation, "%v", r)
	t.Log(r)
}

// requireViolation checks that a model with a planted defect shows it.
func (r result) requireViolation(t *testing.T) {
	t.Helper()
	require.NotEmpty(t, r.violation, "the model does not find the defect")
	t.Log(r)
}

// rename changes a name as it must when two acquisitions exchange theirs.
func rename(name *int8, i, j int8) {
	switch *name {
	case i:
		*name = j
	case j:
		*name = i
	}
}

// explore visits all states that a model can reach, the nearest first. It ends with the first
// violation. visit, if not nil, is called once for each state.
//
// It remembers a hash of each state, not the state: 64 bits with a new seed in each run. With ten
// million states, two have the same hash in one run of 300,000. Then it would miss states.
func explore[S comparable](m model[S], visit func(S)) result {
	return exploreUpTo(m, visit, math.MaxInt)
}

// exploreByDefault is how many states of a large model are visited unless all tests run.
const exploreByDefault = 100_000

// exploreUnlessFull is like explore if all tests run, and otherwise visits only the nearest states.
func exploreUnlessFull[S comparable](m model[S], visit func(S)) result {
	if redistest.Full() {
		return explore(m, visit)
	}
	return exploreUpTo(m, visit, exploreByDefault)
}

// exploreUpTo is explore with a limit to the number of states. If there are more, it does not find
// waiters that wait for ever.
func exploreUpTo[S comparable](m model[S], visit func(S), limit int) (r result) {
	seed := maphash.MakeSeed()
	key := func(s S) uint64 { return maphash.Comparable(seed, m.same(s)) }
	found := map[uint64]int32{key(m.start): 0} // numbers of states, in the order in which they were found
	ways := []way{{}}
	var sure []edge
	var done []bool
	var steps []step[S]
	for queue := []S{m.start}; len(queue) > 0; {
		if r.states == limit {
			r.cut = true
			return r
		}
		s, number := queue[0], int32(r.states)
		queue = queue[1:]
		r.states++
		if visit != nil {
			visit(s)
		}
		if r.violation = m.check(s); r.violation != "" {
			r.trace = traceOf(m, ways, number)
			return r
		}
		if m.done != nil {
			done = append(done, m.done(s))
		}
		steps = m.steps(s, steps[:0])
		for i := range steps {
			r.steps++
			next := &steps[i].next
			if *next == s {
				continue
			}
			k := key(*next)
			to, known := found[k]
			if !known {
				to = int32(len(ways))
				found[k] = to
				ways = append(ways, way{number, uint8(i)})
				queue = append(queue, *next)
			}
			if m.done != nil && steps[i].sure {
				sure = append(sure, edge{number, to})
			}
		}
	}
	if m.done != nil {
		if number := firstStuck(done, sure); number >= 0 {
			r.violation = "what is sure to happen from here on does not end all waiting"
			r.trace = traceOf(m, ways, number)
		}
	}
	return r
}

// reached are the states of a model's server, in the order in which they were found.
type reached[V comparable] struct {
	seen map[V]bool
	list []V
}

func (r *reached[V]) add(v V) {
	if r.seen[v] {
		return
	}
	if r.seen == nil {
		r.seen = map[V]bool{}
	}
	r.seen[v] = true
	r.list = append(r.list, v)
}

// way is how a state was found: by a step of an earlier state.
type way struct {
	from int32
	step uint8
}

// traceOf returns the labels of the steps from the start to a state.
func traceOf[S comparable](m model[S], ways []way, number int32) (trace []string) {
	var taken []uint8
	for ; number != 0; number = ways[number].from {
		taken = append(taken, ways[number].step)
	}
	slices.Reverse(taken)
	s := m.start
	for _, i := range taken {
		step := m.steps(s, nil)[i]
		trace = append(trace, strings.ReplaceAll(step.label, "%s", "ABCDE"[step.actor:step.actor+1]))
		s = step.next
	}
	return trace
}

// edge is a step between two states.
type edge struct{ from, to int32 }

// firstStuck returns the first state from which no edges lead to one that is done, -1 if there is
// none.
func firstStuck(done []bool, edges []edge) int32 {
	// The edges into a state i are into[first[i]:first[i+1]].
	first := make([]int32, len(done)+1)
	for _, e := range edges {
		first[e.to]++
	}
	for i := range done {
		first[i+1] += first[i]
	}
	into := make([]int32, len(edges))
	for _, e := range edges {
		first[e.to]--
		into[first[e.to]] = e.from
	}
	ends := slices.Clone(done)
	var queue []int32
	for i, d := range done {
		if d {
			queue = append(queue, int32(i))
		}
	}
	for ; len(queue) > 0; queue = queue[1:] {
		i := queue[0]
		for _, from := range into[first[i]:first[i+1]] {
			if !ends[from] {
				ends[from] = true
				queue = append(queue, from)
			}
		}
	}
	return int32(slices.Index(ends, false))
}

const (
	acquisitions = 3
	nobody       = -1
)

// processes numbers the client of each acquisition.
type processes [acquisitions]int8

// equals says which neighbors, i and i+1, have equal standing: two acquisitions of one client, or
// two with clients of their own.
func (of processes) equals() (equal [acquisitions - 1]bool) {
	clients := [acquisitions]int{}
	for _, c := range of {
		clients[c]++
	}
	for i := range equal {
		equal[i] = of[i] == of[i+1] || (clients[of[i]] == 1 && clients[of[i+1]] == 1)
	}
	return equal
}

// sortNames renames acquisitions of equal standing, so that many states that differ in the names
// only become one state. rank is a number that depends on what an acquisition has done, and not on
// its name.
func sortNames(equal [acquisitions - 1]bool, rank func(i int) uint64, swap func(i, j int8)) {
	var ranks [acquisitions]uint64
	for i := range ranks {
		ranks[i] = rank(i)
	}
	for range equal {
		for i := range equal {
			if equal[i] && ranks[i] > ranks[i+1] {
				ranks[i], ranks[i+1] = ranks[i+1], ranks[i]
				swap(int8(i), int8(i+1))
			}
		}
	}
}
