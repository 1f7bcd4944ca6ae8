//go:build !race

package protocol

import (
	"fmt"
	"slices"
	"strings"
)

// step is a transition of a model with states of type S.
type step[S comparable] struct {
	label string // with a verb for the name of the actor
	actor int    // 0 is A
	next  S
}

// model is a set of states and transitions.
type model[S comparable] struct {
	start S
	steps func(s S) []step[S]
	// same maps states that differ in names only to one of them.
	same func(s S) S
	// check returns what is wrong with a state, "" if nothing is.
	check func(s S) string
}

// result is what explore found.
type result struct {
	states, steps int
	violation     string   // "": none
	trace         []string // the shortest way to the violation
}

func (r result) String() string {
	if r.violation == "" {
		return fmt.Sprintf("%d states, %d steps, no violation", r.states, r.steps)
	}
	return fmt.Sprintf("%s\n\t%s", r.violation, strings.Join(r.trace, "\n\t"))
}

// explore visits all states that a model can reach, the nearest first. It ends with the first violation.
// visit, if not nil, is called once for each state.
func explore[S comparable](m model[S], visit func(S)) (r result) {
	type origin struct {
		from  S
		label string
		actor int
	}
	start := m.same(m.start)
	origins := map[S]origin{start: {}} // by same
	for queue := []S{m.start}; len(queue) > 0; {
		s := queue[0]
		queue = queue[1:]
		r.states++
		if visit != nil {
			visit(s)
		}
		if r.violation = m.check(s); r.violation != "" {
			for s = m.same(s); s != start; {
				o := origins[s]
				r.trace = append(r.trace, fmt.Sprintf(o.label, "ABCDE"[o.actor:o.actor+1]))
				s = o.from
			}
			slices.Reverse(r.trace)
			return r
		}
		from := m.same(s)
		for _, step := range m.steps(s) {
			r.steps++
			key := m.same(step.next)
			if _, known := origins[key]; !known {
				origins[key] = origin{from, step.label, step.actor}
				queue = append(queue, step.next)
			}
		}
	}
	return r
}
